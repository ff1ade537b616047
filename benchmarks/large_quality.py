"""Hierarchies of many rows: planted ones, all filter options side by side, and text.

A planted hierarchy has three levels of branches; every branch moves its parent's profile by
a random step, smaller at lower levels. Sizes of its 36 clusters fall geometrically, the
largest 1,000 times the smallest. Dendrogram purity is measured on the rows of one subsample:
of exact BHC fitted to it, and of where the same rows lie in the tree fitted to all rows.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse
from sklearn.metrics import adjusted_rand_score

import distclust
from benchmarks import data
from benchmarks.problem import Problem, Results, Size, table
from distclust.metrics import dendrogram_purity
from distclust.trees.tree import Tree

BRANCHES = (4, 3, 3)
LARGEST_TO_SMALLEST = 1000.0
FAMILIES = ("gaussian", "poisson", "multinomial")
FILTERS = {
    "auto (default)": {},
    "subtree": {"filter_predictive": "subtree"},
    "single": {"filter_predictive": "single"},
    "prior pi": {"filter_prior": "pi"},
    "prior flat": {"filter_prior": "flat"},
    "one level a pass": {"levels_per_pass": 1, "filter_predictive": "single", "max_levels": 8},
}


@dataclass(frozen=True)
class Hierarchies:
    """Size of the experiment on planted hierarchies."""

    n_rows: int
    n_subsample: int
    seeds: tuple[int, ...]


def make_hierarchies(size: Size) -> Hierarchies:
    """Thirty thousand rows, one draw: filters of whole subtrees are slow."""
    if size == "full":
        return Hierarchies(30_000, 1500, (0,))
    return Hierarchies(1500, 200, (0,))


def planted_hierarchy(kind: str, n_rows: int, seed: int) -> tuple[Any, npt.NDArray[np.int64]]:
    """Rows and their clusters, in random order."""
    random = np.random.default_rng(seed)
    n_columns, steps = {
        "gaussian": (8, (12.0, 5.0, 2.0)),
        "poisson": (30, (1.0, 0.7, 0.5)),
        "multinomial": (100, (1.5, 1.0, 0.8)),
    }[kind]
    profiles = np.zeros((1, n_columns))
    for n_branches, step in zip(BRANCHES, steps, strict=True):
        profiles = np.repeat(profiles, n_branches, axis=0)
        profiles = profiles + random.normal(0.0, step, profiles.shape)
    n_clusters = len(profiles)
    share = LARGEST_TO_SMALLEST ** (-np.arange(n_clusters) / (n_clusters - 1))
    sizes = np.maximum(1, np.round(n_rows * share / share.sum())).astype(np.int64)
    y = np.repeat(random.permutation(n_clusters), sizes)
    random.shuffle(y)
    if kind == "gaussian":
        return profiles[y] + random.normal(0.0, 0.5, (len(y), n_columns)), y
    rates = np.exp(profiles)
    if kind == "poisson":
        return random.poisson(rates[y]), y
    rates /= rates.sum(axis=1, keepdims=True)
    return random.multinomial(80, rates[y]), y


def run_hierarchies(sizes: Hierarchies) -> Results:
    """Every family and filter."""
    found: dict[str, Any] = {}
    for kind in FAMILIES:
        draws = [_one_hierarchy(kind, sizes, seed) for seed in sizes.seeds]
        found[kind] = {
            name: {
                figure: [draw[name][figure] for draw in draws]
                for figure in ("purity", "agreement", "seconds", "n_clusters")
            }
            for name in draws[0]
        }
    return {"n_rows": sizes.n_rows, "n_subsample": sizes.n_subsample, "families": found}


def _one_hierarchy(kind: str, sizes: Hierarchies, seed: int) -> dict[str, Any]:
    X, y = planted_hierarchy(kind, sizes.n_rows, seed)
    family = "multinomial" if kind == "multinomial" else "auto"
    drawn = np.random.default_rng(seed).choice(len(X), sizes.n_subsample, replace=False)
    found = {"BHC of the subsample": _fitted(distclust.BHC(family=family), X[drawn], y[drawn])}
    for name, options in FILTERS.items():
        model = distclust.RandomizedBHC(
            sample_size=sizes.n_subsample, family=family, random_state=seed, **options
        )
        found[name] = _fitted(model, X, y, drawn)
    model = distclust.EMBHC(sample_size=sizes.n_subsample // 4, family=family, random_state=seed)
    found["EMBHC"] = _fitted(model, X, y, drawn)
    return found


def _fitted(model: Any, X: Any, y: Any, drawn: Any = None) -> dict[str, float]:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", distclust.errors.ConvergenceWarning)
        model.fit(X)
    seconds = time.perf_counter() - start
    tree, labels = model.tree_, model.labels_
    if drawn is None:
        drawn = np.arange(len(y))
    return {
        "seconds": seconds,
        "purity": purity_of_rows(tree, drawn, y[drawn]),
        "agreement": float(adjusted_rand_score(y[drawn], labels[drawn])),
        "n_clusters": int(model.n_clusters_),
    }


def purity_of_rows(tree: Tree, rows: Any, y: Any) -> float:
    """Dendrogram purity of some rows in the tree of all."""
    import dataclasses

    part = dataclasses.replace(tree, leaf_of_row=tree.leaf_of_row[rows], row_ids=tree.row_ids[rows])
    return dendrogram_purity(part, y)


def summarise_hierarchies(results: Results) -> str:
    """One table a family."""
    parts = [
        f"{results['n_rows']:,} rows; purity and adjusted Rand index on a subsample of "
        f"{results['n_subsample']:,} rows, means over the draws."
    ]
    for kind, found in results["families"].items():
        lines = [
            [
                name,
                f"{np.mean(row['purity']):.4f}",
                f"{np.mean(row['agreement']):.4f}",
                f"{np.mean(row['n_clusters']):.1f}",
                f"{np.mean(row['seconds']):.1f}",
            ]
            for name, row in found.items()
        ]
        header = [kind, "purity", "adjusted Rand", "clusters of 36", "seconds"]
        parts.append(table(header, lines))
    return "\n\n".join(parts)


# ---- text ----------------------------------------------------------------------------------------


_MOST_TIMES = 5  # a few posts are encoded files, one of which has a "word" 11,151 times


@dataclass(frozen=True)
class Text:
    """Posts as word counts, their groups, their words, and how many rows to tile them to."""

    counts: Any
    groups: npt.NDArray[Any]
    words: npt.NDArray[Any]
    tiled_rows: int


def make_text(size: Size) -> Text:
    """All posts of twenty newsgroups over their most frequent words; at toy size an invention."""
    if size == "toy":
        random = np.random.default_rng(0)
        shares = random.dirichlet(np.full(60, 0.1), 4)
        y = random.integers(0, 4, 400)
        counts = scipy.sparse.csr_array(random.multinomial(40, shares[y]))
        return Text(counts, y.astype(str), np.array([f"w{i}" for i in range(60)]), 2000)
    counts, groups, words = _newsgroups()
    return Text(counts, groups, words, 1_000_000)


@cache
def _newsgroups(n_words: int = 10_000) -> tuple[Any, Any, Any]:
    import gzip

    counts = scipy.sparse.load_npz(data.path_of("newsgroups20", "counts.npz")).tocsr()
    table_ = pd.read_csv(data.path_of("newsgroups20", "docs.csv.gz"))
    with gzip.open(data.path_of("newsgroups20", "vocab.txt.gz"), "rt", encoding="utf-8") as lines:
        words = np.array([line.split("\t")[0].strip() for line in lines])
    often = np.sort(
        np.argsort(-np.asarray((counts > 0).sum(axis=0)).ravel(), kind="stable")[:n_words]
    )
    kept = counts[:, often]
    some = np.flatnonzero(np.asarray(kept.sum(axis=1)).ravel() > 0)
    return (
        scipy.sparse.csr_array(kept[some].astype(np.int64)),
        table_["group"].to_numpy(str)[some],
        words[often],
    )


def run_text(text: Text) -> Results:
    """Fit the posts as they are, and tiled; purity, top words of the largest nodes."""
    found: dict[str, Any] = {
        "rows": int(text.counts.shape[0]),
        "columns": int(text.counts.shape[1]),
    }
    random = np.random.default_rng(0)
    drawn = random.choice(text.counts.shape[0], min(1000, text.counts.shape[0]), replace=False)
    methods = {
        "RandomizedBHC": distclust.RandomizedBHC(
            sample_size=1024, family="multinomial", random_state=0
        ),
        "EMBHC": distclust.EMBHC(family="multinomial", sample_size=256, n_sweeps=5, random_state=0),
    }
    found["posts"] = {}
    exact = distclust.BHC(family="multinomial")
    start = time.perf_counter()
    exact.fit(text.counts[drawn])
    found["posts"]["BHC of 1,000 posts"] = {
        "seconds": time.perf_counter() - start,
        "purity": dendrogram_purity(exact.tree_, text.groups[drawn]),
        "n_clusters": int(exact.n_clusters_),
        "agreement": float(adjusted_rand_score(text.groups[drawn], exact.labels_)),
    }
    for name, model in methods.items():
        start = time.perf_counter()
        model.fit(text.counts)
        found["posts"][name] = {
            "seconds": time.perf_counter() - start,
            "purity": purity_of_rows(model.tree_, drawn, text.groups[drawn]),
            "n_clusters": int(model.n_clusters_),
            "agreement": float(adjusted_rand_score(text.groups, model.labels_)),
        }
    found["nodes"] = top_words(methods["RandomizedBHC"], text.words, text.groups)
    found["tiled"] = _tiled(text)
    return found


def top_words(model: Any, words: Any, groups: Any, n_nodes: int = 12) -> list[dict[str, Any]]:
    """The largest clusters: rows, commonest group, telling words."""
    tree = model.tree_
    nodes = tree.cut_nodes()
    largest = nodes[np.argsort(-tree.n_rows[nodes], kind="stable")[:n_nodes]]
    found = []
    for node in largest.tolist():
        names, counts = np.unique(groups[tree.rows(node)], return_counts=True)
        features = [] if node == tree.root else tree.top_features(node, 40)
        here = [f for f in features if f.mean > f.sibling_mean][:8]
        found.append(
            {
                "node": node,
                "rows": int(tree.n_rows[node]),
                "group": str(names[counts.argmax()]),
                "share": float(counts.max() / counts.sum()),
                "words": [str(words[int(f.name[1:])]) for f in here],
            }
        )
    return found


def _tiled(text: Text) -> dict[str, Any]:
    """Posts repeated to many rows, in a store, never dense."""
    import tempfile

    n_posts = text.counts.shape[0]
    copies = -(-text.tiled_rows // n_posts)
    tiled = scipy.sparse.vstack([text.counts] * copies, format="csr")[: text.tiled_rows]
    with tempfile.TemporaryDirectory() as folder:
        distclust.ingest(scipy.sparse.csr_array(tiled), f"{folder}/text.zarr")
        nonzeros = int(tiled.nnz)
        del tiled
        from benchmarks.large import fit_apart

        seen = fit_apart(
            "RandomizedBHC",
            f"{folder}/text.zarr",
            folder,
            "--parameters",
            '{"family": "multinomial", "sample_size": 1024}',
            "--memory",
        )
    return {"rows": text.tiled_rows, "nonzeros": nonzeros, **seen}


def summarise_text(results: Results) -> str:
    """Quality, top words, and the tiled fit."""
    lines = [
        [
            name,
            f"{row['purity']:.3f}",
            f"{row['agreement']:.3f}",
            str(row["n_clusters"]),
            f"{row['seconds']:.1f}",
        ]
        for name, row in results["posts"].items()
    ]
    nodes = [
        [f"{n['rows']:,}", n["group"], f"{n['share']:.2f}", ", ".join(n["words"])]
        for n in results["nodes"]
    ]
    tiled = results["tiled"]
    return "\n\n".join(
        [
            f"{results['rows']:,} posts, {results['columns']:,} words; purity on 1,000 of them.",
            table(["", "purity", "adjusted Rand", "clusters", "seconds"], lines),
            "The largest clusters of RandomizedBHC, their commonest group and its share:",
            table(["posts", "group", "share", "words that tell it from its sibling"], nodes),
            f"Tiled to {tiled['rows']:,} rows with {tiled['nonzeros']:,} nonzeros: "
            f"{tiled['seconds']:.1f} s, {tiled['n_clusters']} clusters, peak "
            f"{tiled['client_bytes'] / 1e6:.0f} MB (dense rows would take "
            f"{tiled['rows'] * results['columns'] * 8 / 1e9:.0f} GB).",
        ]
    )


def problems() -> list[Problem]:
    """The problems of this module."""
    return [
        Problem(
            "large-hierarchies",
            "planted three-level hierarchies, all filter options side by side",
            make_hierarchies,
            run_hierarchies,
            summarise_hierarchies,
        ),
        Problem(
            "large-text",
            "twenty newsgroups as they are, and tiled to a million rows",
            make_text,
            run_text,
            summarise_text,
            needs_files=True,
        ),
    ]
