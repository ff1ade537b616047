"""Bayesian Sets on real data: lists, and precision at ten on sets with classes.

Precision: many queries of three items of one class, the class drawn first, each as likely as
any other; how many of the ten best other items are of that class. Peers are the cosine nearest
neighbours of the mean of the query (scikit-learn), and `bayessets`, which computes the same
scores. All methods see the same zeros and ones. Where these were made from values, a second
comparison is on the values: ours by the family for such values.

The strength of the prior belongs to the kind of data: 10 for documents, with which the
published lists of papers come out exactly, and the default 2 for the rest. What other
strengths give is shown too.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from benchmarks import sets_data
from benchmarks.problem import Problem, Results, Size, mean_and_error, table
from benchmarks.sets_data import Labelled
from benchmarks.sets_lists import (
    DEFAULT_KAPPA,
    DOCUMENTS_KAPPA,
    TOP,
    make_lists,
    run_lists,
    summarise_lists,
)
from distclust.retrieval.sets import BayesianSets

KAPPAS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
QUERY_ITEMS = 3
PEER = "bayessets"

_BATCH = 100
_ROUNDING = 1e-9  # scores that are nearer than this are ties
_CLEAR = 2.0  # a difference counts from so many of its standard errors

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sets:
    """How to read each set, and how many queries to draw."""

    read: dict[str, Callable[[], Labelled]]
    n_queries: int


@dataclass(frozen=True)
class Queries:
    """Queries of one class each.

    Attributes
    ----------
    rows
        Items of every query, shape (Q, 3).
    classes
        The class of every query, shape (Q,).
    is_right
        Whether an item is in a class, shape (n, C).
    """

    rows: Rows
    classes: Rows
    is_right: npt.NDArray[np.bool_]

    def precision(self, found: Sequence[Rows]) -> Floats:
        """Share of right items among those found for each query."""
        pairs = zip(found, self.classes.tolist(), strict=True)
        return np.array([self.is_right[rows, kind].mean() for rows, kind in pairs])

    @property
    def by_chance(self) -> float:
        """Precision of items drawn blindly from the others."""
        sizes = self.is_right.sum(axis=0)[self.classes] - QUERY_ITEMS
        return float(np.mean(sizes / (len(self.is_right) - QUERY_ITEMS)))


def make_sets(size: Size) -> Sets:
    """All sets with classes; at toy size inventions."""
    if size == "toy":
        return Sets(sets_data.toy_labelled(), 20)
    return Sets(sets_data.labelled_sets(), 1000)


def draw_queries(classes: Any, n_queries: int, seed: int = 0) -> Queries:
    """Draw a class, then items of it, among classes that have ten items beyond a query."""
    random = np.random.default_rng(seed)
    is_right = classes.toarray().astype(bool)
    large = np.flatnonzero(is_right.sum(axis=0) >= QUERY_ITEMS + TOP)
    drawn = random.choice(large, n_queries)
    members = {kind: np.flatnonzero(is_right[:, kind]) for kind in large.tolist()}
    rows = [random.choice(members[kind], QUERY_ITEMS, replace=False) for kind in drawn.tolist()]
    return Queries(np.array(rows), drawn, is_right)


# ---- methods -------------------------------------------------------------------------------------


def by_sets(sets: BayesianSets, queries: Queries) -> tuple[list[Rows], list[Floats]]:
    """Rank by Bayesian Sets: rows and scores of the ten best others."""
    rankings = []
    for start in range(0, len(queries.rows), _BATCH):
        asked = queries.rows[start : start + _BATCH].tolist()
        rankings += sets.query_many(asked, TOP, exclude_query=True)
    return [found.rows for found in rankings], [found.log_scores for found in rankings]


def by_cosine(values: Any, queries: Queries) -> list[Rows]:
    """Rank by the cosine to the mean of the query."""
    if not isinstance(values, np.ndarray):
        values = scipy.sparse.csr_matrix(values).astype(np.float64)
    n_wanted = min(TOP + QUERY_ITEMS, values.shape[0])
    nearest = NearestNeighbors(n_neighbors=n_wanted, metric="cosine", algorithm="brute").fit(values)
    found: list[Rows] = []
    for start in range(0, len(queries.rows), _BATCH):
        asked = queries.rows[start : start + _BATCH]
        means = [np.asarray(values[rows].mean(axis=0)).ravel() for rows in asked]
        order = nearest.kneighbors(np.array(means), return_distance=False)
        found += [near[~np.isin(near, rows)][:TOP] for near, rows in zip(order, asked, strict=True)]
    return found


def by_peer(binary: Any, kappa: float, queries: Queries) -> tuple[list[Rows], list[Floats]] | None:
    """Rank by `bayessets`: the ten best others and all scores; None if it is not installed.

    It divides by zero for features that all items have or none, so these are left out.
    """
    if importlib.util.find_spec(PEER) is None:
        return None
    peer = importlib.import_module(PEER)
    ones = np.asarray(binary.sum(axis=0), np.int64).ravel()
    used = np.flatnonzero((ones > 0) & (ones < binary.shape[0]))
    model = peer.BernoulliBayesianSet(
        scipy.sparse.csr_matrix(binary[:, used], dtype=np.float64), meanfactor=kappa
    )
    found, scores = [], []
    for rows in queries.rows:
        all_scores = np.asarray(model.query(rows), np.float64).ravel()
        scores.append(all_scores)
        order = np.argsort(-all_scores, kind="stable")[: TOP + QUERY_ITEMS]
        found.append(order[~np.isin(order, rows)][:TOP])
    return found, scores


# ---- running -------------------------------------------------------------------------------------


def run_precision(sets: Sets) -> Results:
    """Every set."""
    return {
        "n_queries": sets.n_queries,
        "sets": [one_set(read(), sets.n_queries) for read in sets.read.values()],
    }


def _summary(values: Floats) -> tuple[float, float]:
    return mean_and_error(values.tolist())


def kappa_of(corpus: Labelled) -> float:
    """The strength of the prior for a kind of data."""
    return DOCUMENTS_KAPPA if corpus.kind == "documents" else DEFAULT_KAPPA


def shuffled(corpus: Labelled, seed: int = 0) -> Labelled:
    """Put the items into another order: ties go by it, and many files are sorted by class."""
    order = np.random.default_rng(seed).permutation(corpus.binary.shape[0])
    return replace(
        corpus,
        binary=corpus.binary[order],
        classes=scipy.sparse.csc_array(corpus.classes.tocsr()[order]),
        values=None if corpus.values is None else corpus.values[order],
    )


def one_set(corpus: Labelled, n_queries: int) -> dict[str, Any]:
    """All methods on one set."""
    corpus = shuffled(corpus)
    queries = draw_queries(corpus.classes, n_queries)
    kappa = kappa_of(corpus)
    cosine = queries.precision(by_cosine(corpus.binary, queries))
    found, scores = by_sets(BayesianSets(kappa=kappa).fit(corpus.binary).build_index(), queries)
    ours = queries.precision(found)
    described: dict[str, Any] = {
        "name": corpus.name,
        "kind": corpus.kind,
        "items": int(corpus.binary.shape[0]),
        "features": int(corpus.binary.shape[1]),
        "classes": len(np.unique(queries.classes)),
        "chance": queries.by_chance,
        "kappa": kappa,
        "ours": _summary(ours),
        "cosine": _summary(cosine),
        "difference": _summary(ours - cosine),
        "peer": _against_peer(corpus, kappa, queries, (found, scores), ours),
        "kappas": _all_kappas(corpus, queries, cosine),
    }
    if corpus.values is not None:
        described["values"] = _on_values(corpus, queries)
    if (binary := by_published_rule(corpus)) is not None:
        described["published rule"] = _on_other_bits(binary, kappa, queries)
    return described


def _against_peer(
    corpus: Labelled,
    kappa: float,
    queries: Queries,
    answers: tuple[list[Rows], list[Floats]],
    ours: Floats,
) -> dict[str, Any] | None:
    """Precision of `bayessets`, how far its scores are off, and how often its ten are ours."""
    ranked = by_peer(corpus.binary, kappa, queries)
    if ranked is None:
        return None
    found, all_scores = ranked
    off = max(
        float(np.max(np.abs(theirs[rows] - scores) / np.maximum(1.0, np.abs(scores))))
        for theirs, rows, scores in zip(all_scores, *answers, strict=True)
    )
    same = [set(a.tolist()) == set(b.tolist()) for a, b in zip(found, answers[0], strict=True)]
    tied = [
        np.allclose(theirs[rows], scores, rtol=_ROUNDING, atol=_ROUNDING)
        for theirs, rows, scores in zip(all_scores, found, answers[1], strict=True)
    ]
    precision = queries.precision(found)
    return {
        "precision": _summary(precision),
        "difference": _summary(ours - precision),
        "largest relative difference of scores": off,
        "same ten": float(np.mean(same)),
        "same ten but for ties": float(np.mean(tied)),
    }


def _all_kappas(corpus: Labelled, queries: Queries, cosine: Floats) -> list[dict[str, Any]]:
    """Precision with other strengths of the prior."""
    found = []
    for kappa in KAPPAS:
        sets = BayesianSets(kappa=kappa).fit(corpus.binary).build_index()
        ours = queries.precision(by_sets(sets, queries)[0])
        found.append(
            {
                "kappa": kappa,
                "ours": _summary(ours),
                "difference": _summary(ours - cosine),
            }
        )
    return found


def _on_values(corpus: Labelled, queries: Queries) -> dict[str, Any]:
    """Ours and cosine on what the zeros and ones were made from."""
    assert corpus.family is not None, "values have a family"
    sets = BayesianSets(family=corpus.family).fit(corpus.values)
    ours = queries.precision(by_sets(sets, queries)[0])
    cosine = queries.precision(by_cosine(corpus.values, queries))
    weighted = queries.precision(by_cosine(weighted_values(corpus), queries))
    return {
        "family": corpus.family,
        "ours": _summary(ours),
        "cosine": _summary(cosine),
        "difference": _summary(ours - cosine),
        "cosine, weighted": _summary(weighted),
        "difference, weighted": _summary(ours - weighted),
    }


def weighted_values(corpus: Labelled) -> Any:
    """Values as those who use cosines weigh them: tf-idf of counts, else unit variances."""
    if corpus.family == "multinomial":
        return TfidfTransformer().fit_transform(scipy.sparse.csr_matrix(corpus.values))
    return StandardScaler().fit_transform(corpus.values)


def by_published_rule(corpus: Labelled) -> Any:
    """Zeros and ones by the thesis' rule for the kind where ours is another; None elsewhere."""
    if corpus.kind == "documents" and corpus.family == "multinomial":
        return sets_data.binarised(sets_data.shares(corpus.values), sets_data.PUBLISHED)
    if corpus.kind == "pictures" and corpus.values is not None:
        return sets_data.binarised(corpus.values, sets_data.SKEWNESS)
    return None


def _on_other_bits(binary: Any, kappa: float, queries: Queries) -> dict[str, Any]:
    """Ours and cosine on zeros and ones that were made by another rule."""
    cosine = queries.precision(by_cosine(binary, queries))
    sets = BayesianSets(kappa=kappa).fit(binary).build_index()
    ours = queries.precision(by_sets(sets, queries)[0])
    return {
        "kappa": kappa,
        "ours": _summary(ours),
        "cosine": _summary(cosine),
        "difference": _summary(ours - cosine),
    }


# ---- tables --------------------------------------------------------------------------------------


def summarise_precision(results: Results) -> str:
    """Same features; values; the published rule; other strengths of the prior."""
    found = results["sets"]
    valued = [row for row in found if "values" in row]
    by_rule = [row for row in found if "published rule" in row]
    parts = [
        f"{results['n_queries']:,} queries a set; mean ± standard error, of the difference query "
        "by query. All on the same zeros and ones:",
        _same_features(found),
        verdict("Against cosine", [row["difference"] for row in found], found),
        _peer_verdict(found),
        "On the values that the zeros and ones were made from, also weighted as is usual with "
        "cosines (tf-idf of counts; measurements standardised):",
        _values_table(found),
        verdict("Against cosine", [row["values"]["difference"] for row in valued], valued),
        verdict(
            "Against weighted cosine",
            [row["values"]["difference, weighted"] for row in valued],
            valued,
        ),
        "Made binary by the rules of the thesis instead: documents by shares above twice the mean "
        "of the word, pictures by skewness:",
        _published_rule_table(found),
        verdict(
            "Against cosine", [row["published rule"]["difference"] for row in by_rule], by_rule
        ),
        "Precision by the strength of the prior κ, with the difference to cosine:",
        _kappas_table(found),
        verdict(
            f"With the default κ = {DEFAULT_KAPPA:g} for all sets",
            [_at_kappa(row, DEFAULT_KAPPA)["difference"] for row in found],
            found,
        ),
    ]
    return "\n\n".join(parts)


def _pair(figures: Sequence[float], sign: str = "") -> str:
    return f"{figures[0]:{sign}.3f} ± {figures[1]:.3f}"


def _same_features(found: list[dict[str, Any]]) -> str:
    header = ["data", "kind", "items", "features", "classes", "chance", "κ"]
    header += ["cosine", PEER, "Bayesian Sets", "less cosine"]
    lines = [
        [
            row["name"],
            row["kind"],
            f"{row['items']:,}",
            f"{row['features']:,}",
            str(row["classes"]),
            f"{row['chance']:.3f}",
            f"{row['kappa']:g}",
            _pair(row["cosine"]),
            _pair(row["peer"]["precision"]) if row["peer"] else "not installed",
            _pair(row["ours"]),
            _pair(row["difference"], "+"),
        ]
        for row in found
    ]
    return table(header, lines)


def _values_table(found: list[dict[str, Any]]) -> str:
    lines = [
        [
            row["name"],
            row["values"]["family"],
            *(_pair(row["values"][name]) for name in ("cosine", "cosine, weighted", "ours")),
            *(_pair(row["values"][name], "+") for name in ("difference", "difference, weighted")),
        ]
        for row in found
        if "values" in row
    ]
    header = ["data", "family", "cosine", "cosine, weighted", "Bayesian Sets"]
    return table([*header, "less cosine", "less weighted"], lines)


def _published_rule_table(found: list[dict[str, Any]]) -> str:
    lines = [
        [
            row["name"],
            f"{row['published rule']['kappa']:g}",
            *(_pair(row["published rule"][name]) for name in ("cosine", "ours")),
            _pair(row["published rule"]["difference"], "+"),
        ]
        for row in found
        if "published rule" in row
    ]
    return table(["data", "κ", "cosine", "Bayesian Sets", "less cosine"], lines)


def _kappas_table(found: list[dict[str, Any]]) -> str:
    lines = [
        [
            row["name"],
            *(f"{at['ours'][0]:.3f} ({at['difference'][0]:+.3f})" for at in row["kappas"]),
        ]
        for row in found
    ]
    return table(["data", *(f"κ = {kappa:g}" for kappa in KAPPAS)], lines)


def _at_kappa(row: dict[str, Any], kappa: float) -> dict[str, Any]:
    return next(at for at in row["kappas"] if at["kappa"] == kappa)


def verdict(text: str, differences: Sequence[Sequence[float]], found: list[dict[str, Any]]) -> str:
    """Count sets by whether the difference is clear, and name those that are not better."""
    names: dict[str, list[str]] = {"better": [], "as good": [], "worse": []}
    for (mean, error), row in zip(differences, found, strict=True):
        clear = abs(mean) > _CLEAR * error
        kind = "as good" if not clear or mean == 0.0 else "better" if mean > 0.0 else "worse"
        names[kind].append(row["name"])
    said = [f"better on {len(names['better'])}"]
    for kind in ("as good", "worse"):
        listed = f" ({', '.join(names[kind])})" if names[kind] else ""
        said.append(f"{kind} on {len(names[kind])}{listed}")
    return (
        f"{text}: {', '.join(said)}, where a difference counts from {_CLEAR:g} standard errors on."
    )


def _peer_verdict(found: list[dict[str, Any]]) -> str:
    peers = [row["peer"] for row in found if row["peer"]]
    if not peers:
        return f"{PEER} is not installed."
    off = max(peer["largest relative difference of scores"] for peer in peers)
    same, tied = (
        np.mean([peer[name] for peer in peers]) for name in ("same ten", "same ten but for ties")
    )
    apart = max(abs(peer["difference"][0]) for peer in peers)
    return (
        f"Scores of {PEER} differ from ours by at most {off:.1e} of their size (or of one, if "
        f"that is more); its ten are ours in {same:.2%} of the queries, and in {tied:.2%} if ties "
        f"do not count; precisions differ by at most {apart:.4f}."
    )


def problems() -> list[Problem]:
    """The problems of this module."""
    return [
        Problem(
            "sets-lists",
            "lists by Bayesian Sets, beside the published ones",
            make_lists,
            run_lists,
            summarise_lists,
            needs_files=True,
        ),
        Problem(
            "sets-precision",
            "precision at ten on labelled data, Bayesian Sets and peers",
            make_sets,
            run_precision,
            summarise_precision,
            needs_files=True,
        ),
    ]
