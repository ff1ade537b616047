"""Tables 4.2 and 4.3 of Wang's thesis: how well consensus models tell labels, and their quality."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import logsumexp

from benchmarks import data
from benchmarks.problem import Problem, Results, Size, show, table
from distclust import DPMixture
from distclust.ensembles import bayesian_ensemble as bce
from distclust.ensembles import multinomial_mixture as mm
from distclust.ensembles.dirichlet_ensemble import DirichletEnsembleSampler
from distclust.ensembles.label_rows import LabelRows
from distclust.ensembles.perplexity import Perplexity, plugin_perplexity, predictive_perplexity
from distclust.errors import ConvergenceWarning
from distclust.metrics import adjusted_rand_score, normalized_mutual_info_score
from distclust.mixtures.chains import run_chains
from distclust.mixtures.point_estimates import best_draw

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

BASES = 5
METHODS = ("MM", "BCE, a = 1/K", "BCE", "DPCE")
FIRST_PRIOR = 0.1  # total of a from which BCE learns it
LEAST_SHARE = 1e-3  # of a component of MM, for the a of BCE that starts from it
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "train": {
        "MM": (1.323, 1.465, 1.704, 1.986, 2.536),
        "BCE": (1.093, 1.320, 1.545, 1.874, 2.248),
        "DPCE": (0.972, 1.214, 1.334, 1.762, 2.136),
    },
    "test": {
        "MM": (1.202, 1.977, 2.449, 2.572, 3.724),
        "BCE": (1.167, 1.759, 2.137, 2.315, 3.303),
        "DPCE": (1.025, 1.524, 1.933, 2.014, 2.956),
    },
}


@dataclass(frozen=True)
class LabelledSet:
    """A data set of the tables.

    Attributes
    ----------
    shape, classes
        Of the set that was published: rows and columns, and the number that MM and BCE get.
    read
        Returns rows and classes from files.
    sweeps
        Of the chains whose last partitions are the bases.
    """

    name: str
    shape: tuple[int, int]
    classes: int
    read: Callable[[], tuple[Array, Array]]
    sweeps: int


def _csv(*parts: str, column: str, without: tuple[str, ...] = ()) -> tuple[Array, Array]:
    found = pd.read_csv(data.path_of(*parts))
    y = found[column].to_numpy(str)
    return found.drop(columns=[column, *without]).to_numpy(float), y


def _isolet() -> tuple[Array, Array]:
    with np.load(data.path_of("isolet", "isolet.npz")) as file:
        return file["X"].astype(float), file["y"]


def labelled_sets() -> list[LabelledSet]:
    """The five sets; of isolet a fifth of the rows is freely available."""
    return [
        LabelledSet("glass", (214, 9), 6, lambda: _csv("glass", "glass.csv", column="Type"), 1000),
        LabelledSet(
            "ecoli",
            (336, 7),
            8,
            lambda: _csv("ecoli", "ecoli.csv", column="site", without=("name",)),
            1000,
        ),
        LabelledSet(
            "segmentation",
            (2310, 19),
            7,
            lambda: _csv("segmentation", "segmentation.csv.gz", column="category"),
            1000,
        ),
        LabelledSet("isolet", (7797, 617), 26, _isolet, 100),
        LabelledSet(
            "letter",
            (20_000, 16),
            26,
            lambda: _csv("letter", "letter.csv.gz", column="lettr"),
            200,
        ),
    ]


def generated(kind: LabelledSet) -> tuple[Array, Array]:
    """Rows of the same shape as a set, from as many Gaussian classes that overlap."""
    random = np.random.default_rng(kind.shape[0])
    n_rows, n_columns = kind.shape
    centres = 3.0 / math.sqrt(n_columns) * random.normal(size=(kind.classes, n_columns))
    y = random.integers(0, kind.classes, n_rows)
    return centres[y] + random.normal(size=kind.shape), y


def rows_of(kind: LabelledSet) -> tuple[Array, Array, bool]:
    """Return rows with standardised columns, classes, and whether they are real."""
    try:
        X, y = kind.read()
        is_real = True
    except FileNotFoundError:
        X, y = generated(kind)
        is_real = False
    width = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(width > 0, width, 1.0), y, is_real


@dataclass(frozen=True)
class TableSizes:
    """Sets, repetitions, and chains and sweeps of DPCE."""

    kinds: tuple[LabelledSet, ...]
    repetitions: int
    chains: int
    sweeps: int


def make_table_sizes(size: Size) -> TableSizes:
    """All five sets, or a small one that is made up."""
    kinds = labelled_sets()
    if size == "full":
        return TableSizes(tuple(kinds), 5, 2, 500)
    small = replace(kinds[0], shape=(60, 3), classes=3, sweeps=6, read=_no_files)
    return TableSizes((small,), 2, 1, 6)


def _no_files() -> tuple[Array, Array]:
    raise FileNotFoundError("made up")


def run_tables(sizes: TableSizes) -> Results:
    """All sets, all repetitions."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for kind in sizes.kinds:
            X, y, is_real = rows_of(kind)
            runs = [_repetition(X, y, kind, sizes, r) for r in range(sizes.repetitions)]
            facts = {"name": kind.name, "rows": len(X), "columns": X.shape[1], "real": is_real}
            found.append(facts | {"sweeps": kind.sweeps, "runs": runs})
    return {"sets": found, "ensemble_sweeps": sizes.sweeps}


def _repetition(
    X: Array, y: Array, kind: LabelledSet, sizes: TableSizes, seed: int
) -> dict[str, Any]:
    """Bases of all rows; the ensembles see three quarters of them."""
    chains = DPMixture(
        "diagonal_gaussian", n_chains=BASES, max_sweeps=kind.sweeps, stop=None, random_state=seed
    ).fit(X)
    codes = np.stack([_coded(draws[-1]) for draws in chains.draws_], axis=1)
    n_labels = codes.max(axis=0) + 1
    order = np.random.default_rng(seed).permutation(len(X))
    test, train = np.split(order, [len(X) // 4])
    labels = {"train": LabelRows.of(codes[train], n_labels)}
    labels["test"] = LabelRows.of(codes[test], n_labels)
    found: dict[str, Any] = {"rhat": chains.diagnostics_["rhat"]["log_joint"]}
    found["n_labels"] = n_labels.tolist()
    epsilon = 1.0 / float(n_labels.max())
    mixture = mm.fit_multinomial_mixture(
        labels["train"].codes,
        n_labels,
        kind.classes,
        seed=seed,
        options=mm.EMOptions(epsilon=epsilon),
    )
    fits = {
        "MM": _said_by_mixture(labels, mixture),
        "BCE, a = 1/K": _said_by_memberships(labels, _fixed(labels["train"], kind, epsilon, seed)),
        "BCE": _said_by_memberships(labels, _learned(labels["train"], mixture, epsilon)),
        "DPCE": _fit_process(labels, sizes, seed),
    }
    for name, fit in fits.items():
        found[name] = {
            part: _both(fit[part], labels[part]) for part in ("train", "test")
        } | _scores(y[train], fit["labels"])
        found[name]["evidence"] = _evidence(chains.family_, X[train], fit["labels"])
    found["baseline"] = predictive_perplexity(np.zeros(len(test)), codes[test], n_labels).baseline
    found["bases"] = [
        _scores(y[train], column)
        | {"evidence": _evidence(chains.family_, X[train], _coded(column))}
        for column in codes[train].T
    ]
    return found


def _coded(labels: Array) -> npt.NDArray[np.int32]:
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def _said_by_mixture(labels: dict[str, LabelRows], fit: mm.MixtureFit) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part, rows in labels.items():
        logs = mm.log_probabilities(rows, fit.shares, fit.theta)
        found[part] = (logs, mm.responsibilities(rows, fit.shares, fit.theta), fit.theta)
    return found | {"labels": found["train"][1].argmax(axis=1)}


def _fixed(train: LabelRows, kind: LabelledSet, epsilon: float, seed: int) -> bce.BayesianFit:
    """The best of ten starts, with the prior of memberships that `ClusterEnsemble` has."""
    options = bce.VariationalOptions(epsilon=epsilon)
    return bce.fit_bayesian_ensemble(
        train.codes, train.n_labels, kind.classes, seed=seed, options=options
    )


def _learned(train: LabelRows, mixture: mm.MixtureFit, epsilon: float) -> bce.BayesianFit:
    """As its authors have it, with the prior learned; from where MM ended.

    The smaller a is, the more is BCE like MM: of random starts most end below it.
    """
    prior = FIRST_PRIOR * np.maximum(mixture.shares, LEAST_SHARE)
    options = bce.VariationalOptions(epsilon=epsilon, learns_prior=True)
    return bce.climb(train, bce.start(train, mixture.theta, prior), options)


def _said_by_memberships(labels: dict[str, LabelRows], fit: bce.BayesianFit) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part, rows in labels.items():
        start = bce.start(rows, fit.theta, fit.prior).gamma
        gamma = bce.memberships_of(rows, start, fit.theta, fit.prior, 100).gamma
        logs = bce.log_probabilities(rows, fit.theta, fit.prior)
        found[part] = (logs, gamma / gamma.sum(axis=1, keepdims=True), fit.theta)
    return found | {"labels": fit.labels}


def _fit_process(labels: dict[str, LabelRows], sizes: TableSizes, seed: int) -> dict[str, Any]:
    """Probabilities of all draws, averaged; the partition nearest to all of them."""
    train = labels["train"]
    sampler = DirichletEnsembleSampler.of(train.codes, train.n_labels)
    keep_every = max(1, sizes.sweeps // 50)
    traces = run_chains(
        sampler, sizes.chains, seed, sizes.sweeps,
        keep_every=keep_every, agreement=None, name="benchmark",
    )  # fmt: skip
    draws = traces.kept_draws(keep_every).reshape(-1, train.n_rows).astype(np.int32)
    concentration = float(traces.scalars[:, traces.n_sweeps // 2 :, 2].mean())
    said = [sampler.consensus(_coded(draw), concentration) for draw in draws]
    best = draws[best_draw(draws)[0]]
    chosen = sampler.consensus(_coded(best), concentration)
    found: dict[str, Any] = {}
    for part, rows in labels.items():
        logs = logsumexp([c.log_predictive(rows.codes) for c in said], axis=0) - np.log(len(said))
        found[part] = (logs, chosen.predict_proba(rows.codes), chosen.theta)
    return found | {"labels": _coded(best)}


def _both(said: tuple[Doubles, Doubles, Doubles], rows: LabelRows) -> dict[str, float]:
    """Perplexity of whole rows, and label by label with the row's memberships as known."""
    logs, memberships, theta = said
    whole: Perplexity = predictive_perplexity(logs, rows.codes, rows.n_labels)
    plain = plugin_perplexity(memberships, theta, rows.codes, rows.n_labels)
    return {"predictive": whole.value, "plug-in": plain.value}


def _scores(y: Array, labels: Array) -> dict[str, float]:
    return {
        "rand": float(adjusted_rand_score(y, labels)),
        "information": float(normalized_mutual_info_score(y, labels)),
        "clusters": len(np.unique(labels)),
    }


def _evidence(family: Any, X: Array, labels: Array) -> float:
    """Log p(X | partition) in the model of the bases."""
    numbers = _coded(labels)
    stats = family.accumulate(X, numbers, int(numbers.max()) + 1)
    return float(np.sum(family.log_marginal(stats)))


def ordering(runs: list[dict[str, Any]], part: str, measure: str) -> bool:
    """Return whether DPCE <= BCE <= MM holds for the means of repetitions."""
    dpce, bayesian, mixture = (
        float(np.mean([run[method][part][measure] for run in runs]))
        for method in ("DPCE", "BCE", "MM")
    )
    return dpce <= bayesian <= mixture


def summarise_tables(results: Results) -> str:
    """Perplexities and orderings, then quality of the consensus."""
    blocks = [_perplexities(results["sets"], part) for part in ("train", "test")]
    head = (
        f"Chains of {results['ensemble_sweeps']} sweeps for DPCE. Mean ± standard error over "
        "repetitions; published figures in italics."
    )
    return "\n\n".join([head, _about(results["sets"]), *blocks, _consensus(results["sets"])])


def _about(sets: list[dict[str, Any]]) -> str:
    lines = []
    for facts in sets:
        runs = facts["runs"]
        labels = np.mean([np.mean(run["n_labels"]) for run in runs])
        rhat = np.mean([run["rhat"] for run in runs])
        kind = "real" if facts["real"] else "made up, of the same shape"
        line = [facts["name"], f"{facts['rows']:,} x {facts['columns']}", kind]
        rhat_text = f"{rhat:.2f}" if np.isfinite(rhat) else ""
        lines.append([*line, str(facts["sweeps"]), f"{labels:.1f}", rhat_text])
    header = ["data", "rows and columns", "kind", "sweeps of a base", "labels of a base"]
    return table([*header, "R-hat of bases"], lines)


def _perplexities(sets: list[dict[str, Any]], part: str) -> str:
    lines = []
    for number, facts in enumerate(sets):
        runs = facts["runs"]
        for measure in ("predictive", "plug-in"):
            values = [show([run[m][part][measure] for run in runs]) for m in METHODS]
            guess = show([run["baseline"] for run in runs], 1)
            is_so = "yes" if ordering(runs, part, measure) else "no"
            lines.append([f"{facts['name']}, {measure}", guess, *values, is_so])
        printed = PUBLISHED[part]
        published = [f"*{printed[m][number]:.3f}*" if m in printed else "" for m in METHODS]
        lines.append(["*thesis*", "", *published, "*yes*"])
    header = [f"{part}, perplexity of a label", "guessing", *METHODS, "DPCE ≤ BCE ≤ MM"]
    return table(header, lines)


def _consensus(sets: list[dict[str, Any]]) -> str:
    lines = []
    for facts in sets:
        runs = facts["runs"]
        for name, score in (("adjusted Rand index", "rand"), ("mutual information", "information")):
            bases = [[base[score] for base in run["bases"]] for run in runs]
            values = [show([run[m][score] for run in runs]) for m in METHODS]
            mean, best = show([np.mean(b) for b in bases]), show([max(b) for b in bases])
            lines.append([f"{facts['name']}, {name}", *values, mean, best])
        clusters = [show([run[m]["clusters"] for run in runs], 1) for m in METHODS]
        own = show([np.mean([base["clusters"] for base in run["bases"]]) for run in runs], 1)
        lines.append([f"{facts['name']}, clusters", *clusters, own, ""])
        above = [_n_above(runs, m) for m in METHODS]
        lines.append([f"{facts['name']}, log p(X) above all bases", *above, "", ""])
    return table(["consensus, rows of training", *METHODS, "mean base", "best base"], lines)


def _n_above(runs: list[dict[str, Any]], method: str) -> str:
    above = sum(
        run[method]["evidence"] >= max(base["evidence"] for base in run["bases"]) for run in runs
    )
    return f"{above} of {len(runs)}"


def problems() -> list[Problem]:
    """The problem of this module."""
    return [
        Problem(
            "ensemble-tables",
            "perplexity of consensus models by the protocol of the thesis, and their quality",
            make_table_sizes,
            run_tables,
            summarise_tables,
        ),
    ]
