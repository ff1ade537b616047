"""Clustering ensembles: speed of a sweep, two million rows, and the tables of the thesis."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import logsumexp

import distclust
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

TARGET_SECONDS = 0.012  # a sweep at full size on one core

# ---- a sweep of DPCE -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepSizes:
    """Rows, bases, labels of each, planted clusters; sweeps before the clock runs, and on it."""

    rows: int
    bases: int
    labels: int
    clusters: int
    first: int
    timed: int
    tries: int


def make_sweep_sizes(size: Size) -> SweepSizes:
    """The sizes for which the specification has a target."""
    if size == "full":
        return SweepSizes(20_000, 5, 26, 28, 50, 50, 5)
    return SweepSizes(200, 3, 5, 4, 3, 2, 1)


def planted_labels(sizes: SweepSizes) -> tuple[Array, npt.NDArray[np.int32]]:
    """Labels drawn from the model itself with beta = 1, and the clusters they came from.

    Labels that err uniformly would not do: the prior wants few labels a cluster, and chains
    then split clusters to have them.
    """
    random = np.random.default_rng(0)
    truth = random.integers(0, sizes.clusters, sizes.rows)
    chances = random.dirichlet(
        np.full(sizes.labels, 1 / sizes.labels), (sizes.bases, sizes.clusters)
    )
    sums = chances.cumsum(axis=2)
    drawn = random.random((sizes.bases, sizes.rows, 1))
    codes = (sums[:, truth] < drawn).sum(axis=2)
    return np.minimum(codes.T, sizes.labels - 1).astype(np.int8), truth.astype(np.int32)


def run_sweep(sizes: SweepSizes) -> Results:
    """Ours and plain numpy from the same state, in turn."""
    codes, truth = planted_labels(sizes)
    n_labels = np.full(sizes.bases, sizes.labels)
    whole = DirichletEnsembleSampler.of(codes, n_labels, start="single")
    bare = replace(whole, n_proposals=0)
    # From the planted clusters: the target is for about as many.
    state = whole.begin(0, np.random.default_rng(0))
    state = replace(state, assignments=truth.copy(), n_clusters=sizes.clusters)
    for _ in range(sizes.first):
        state = whole.sweep(whole.open(), state)
    found = {"whole": math.inf, "bare": math.inf, "numpy": math.inf}
    numpy_labels = state.assignments.copy()
    random, clusters = np.random.default_rng(1), []
    for _ in range(sizes.tries):
        for name, sampler in (("whole", whole), ("bare", bare)):
            place = sampler.open()
            for _ in range(sizes.timed):
                start = time.perf_counter()
                state = sampler.sweep(place, state)
                found[name] = min(found[name], time.perf_counter() - start)
                clusters.append(state.n_clusters)
        uniforms = random.random(sizes.rows)
        start = time.perf_counter()
        numpy_sweep(codes, n_labels, 1.0, state.concentration, uniforms, numpy_labels)
        found["numpy"] = min(found["numpy"], time.perf_counter() - start)
    return {
        "rows": sizes.rows,
        "bases": sizes.bases,
        "labels": sizes.labels,
        "clusters": float(np.mean(clusters)),
        "seconds": found,
    }


def numpy_sweep(
    codes: Array, n_labels: Array, beta: float, concentration: float, uniforms: Doubles, z: Array
) -> None:
    """One sweep as people write it with numpy: a loop over rows, all clusters at once.

    `z` is written over.
    """
    n_rows, n_bases = codes.shape
    offsets = np.cumsum(n_labels) - n_labels
    cells = codes + offsets
    n = int(z.max()) + 1
    sizes = np.zeros(n_rows + 1)
    counts = np.zeros((min(n_rows, 1000) + 1, int(n_labels.sum())))
    np.add.at(sizes, z, 1.0)
    for m in range(n_bases):
        np.add.at(counts, (z, cells[:, m]), 1.0)
    pseudo = beta / n_labels
    log_new = math.log(concentration) - float(np.log(n_labels).sum())
    for i in range(n_rows):
        own = z[i]
        sizes[own] -= 1.0
        counts[own, cells[i]] -= 1.0
        logs = np.log(counts[:n, cells[i]] + pseudo).sum(axis=1)
        with np.errstate(divide="ignore"):  # nobody goes to the cluster that a row leaves empty
            logs += np.log(sizes[:n]) - n_bases * np.log(sizes[:n] + beta)
        logs = np.append(logs, log_new)
        sums = np.cumsum(np.exp(logs - logs.max()))
        chosen = min(int(np.searchsorted(sums, uniforms[i] * sums[-1], side="right")), n)
        is_empty = sizes[own] == 0.0
        if chosen == n and is_empty:
            chosen = own  # alone before, alone again
        elif chosen == n:
            n += 1
        z[i] = chosen
        sizes[chosen] += 1.0
        counts[chosen, cells[i]] += 1.0
        if is_empty and chosen != own:
            n -= 1
            sizes[own], counts[own] = sizes[n], counts[n]
            z[z == n] = own
            sizes[n], counts[n] = 0.0, 0.0


def summarise_sweep(results: Results) -> str:
    """Milliseconds, cost of a label and cluster, and ratios."""
    found = results["seconds"]
    names = {
        "bare": "distclust, without a split or merge",
        "whole": "distclust, with one proposal of a split or merge",
        "numpy": "numpy, a loop over rows",
    }
    work = results["rows"] * results["bases"] * results["clusters"]
    lines = [
        [
            text,
            f"{1e3 * found[name]:,.1f} ms",
            f"{1e9 * found[name] / work:,.2f} ns",
            f"{found[name] / TARGET_SECONDS:,.2f}",
            f"{found['numpy'] / found[name]:,.0f}",
        ]
        for name, text in names.items()
    ]
    header = ["", "a sweep", "a label and cluster", "in parts of 12 ms", "times faster than numpy"]
    return (
        f"{results['rows']:,} rows, {results['bases']} bases of {results['labels']} labels, "
        f"{results['clusters']:.1f} clusters on average. One core; the concentration and the "
        "log joint are part of a sweep of ours.\n\n" + table(header, lines)
    )


# ---- many rows -----------------------------------------------------------------------------------

LARGE_COLUMNS = 10
_PIECE = 250_000


@dataclass(frozen=True)
class LargeSizes:
    """Rows, planted clusters, bases, sweeps of DPCE, and workers."""

    rows: int
    clusters: int
    bases: int
    sweeps: int
    workers: int = 2


def make_large_sizes(size: Size) -> LargeSizes:
    """Two million rows, ten bases."""
    return LargeSizes(2_000_000, 20, 10, 100) if size == "full" else LargeSizes(600, 3, 3, 4, 1)


def blobs(n_rows: int, n_clusters: int) -> Iterator[tuple[Array, Array]]:
    """Yield rows of overlapping clusters and the truth in pieces, the same ones every time."""
    random = np.random.default_rng(0)
    centres = 1.2 * random.normal(size=(n_clusters, LARGE_COLUMNS))
    weights = random.dirichlet(np.full(n_clusters, 5.0))
    for start in range(0, n_rows, _PIECE):
        n_piece = min(_PIECE, n_rows - start)
        y = random.choice(n_clusters, n_piece, p=weights)
        rows = centres[y] + random.normal(size=(n_piece, LARGE_COLUMNS))
        yield rows.astype(np.float32), y


def run_large(sizes: LargeSizes) -> Results:
    """BCE with the true number of clusters, DPCE that finds it, each with bases of its own."""
    parts = list(blobs(sizes.rows, sizes.clusters))
    truth = np.concatenate([y for _, y in parts])
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/rows.zarr"
        distclust.ingest(np.concatenate([rows for rows, _ in parts]), store)
        del parts
        for name, (method, parameters) in _large_methods(sizes).items():
            labels = Path(folder) / "labels.npz"
            found[name] = _fit_apart(method, store, labels, sizes, parameters)
            found[name] |= _qualities(labels, truth)
    return {
        "rows": sizes.rows,
        "clusters": sizes.clusters,
        "bases": sizes.bases,
        "workers": sizes.workers,
        "methods": found,
    }


def _large_methods(sizes: LargeSizes) -> dict[str, tuple[str, dict[str, Any]]]:
    beta = sizes.rows / 30  # what ClusterEnsemble.fit takes for bases that it makes
    chains = {"n_chains": 2, "max_sweeps": sizes.sweeps, "stop": None}
    return {
        "BCE": ("bce", {"n_clusters": sizes.clusters, "n_init": 2}),
        "DPCE, collapse=True": ("dpce", {"collapse": True, "beta": beta, **chains}),
    }


def _fit_apart(
    method: str, store: str, labels: Path, sizes: LargeSizes, parameters: dict[str, Any]
) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.ensembles_fit", method, store, str(labels)]
    command += ["--bases", str(sizes.bases), "--workers", str(sizes.workers)]
    command += ["--parameters", json.dumps(parameters)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=root)
    if done.returncode:
        raise RuntimeError(f"{method}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _qualities(path: Path, truth: Array) -> dict[str, Any]:
    with np.load(path) as file:
        consensus, codes = file["consensus"], file["bases"]
    bases = [float(adjusted_rand_score(truth, column)) for column in codes.T]
    return {"rand": float(adjusted_rand_score(truth, consensus)), "base_rands": bases}


def summarise_large(results: Results) -> str:
    """A line a method."""
    lines = []
    for name, facts in results["methods"].items():
        bases = facts["base_rands"]
        lines.append(
            [
                name,
                f"{facts['base_seconds']:.1f} s",
                f"{facts['consensus_seconds']:.1f} s",
                f"{facts['bytes'] / 1e9:.2f} GB",
                f"{facts['n_distinct']:,}",
                str(facts["n_clusters"]),
                f"{facts['rand']:.3f}",
                f"{np.mean(bases):.3f}",
                f"{max(bases):.3f}",
            ]
        )
    matrix = 4e-12 * results["rows"] ** 2
    header = ["", "bases", "consensus", "peak of all processes", "distinct label rows"]
    header += ["clusters", "adjusted Rand index", "mean base", "best base"]
    return (
        f"{results['rows']:,} rows x {LARGE_COLUMNS} in a store, {results['clusters']} planted "
        f"clusters that overlap, {results['bases']} k-means bases, {results['workers']} workers. "
        f"A matrix of rows by rows would need {matrix:,.3g} TB of 4-byte numbers.\n\n"
        + table(header, lines)
    )


# ---- tables 4.2 and 4.3 --------------------------------------------------------------------------

BASES = 5
METHODS = ("MM", "BCE", "DPCE")
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
    fits = {
        "MM": _fit_mixture(labels, kind.classes, epsilon, seed),
        "BCE": _fit_memberships(labels, kind.classes, epsilon, seed),
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


def _fit_mixture(
    labels: dict[str, LabelRows], n_clusters: int, epsilon: float, seed: int
) -> dict[str, Any]:
    train = labels["train"]
    options = mm.EMOptions(epsilon=epsilon)
    fit = mm.fit_multinomial_mixture(
        train.codes, train.n_labels, n_clusters, seed=seed, options=options
    )
    found: dict[str, Any] = {}
    for part, rows in labels.items():
        logs = mm.log_probabilities(rows, fit.shares, fit.theta)
        found[part] = (logs, mm.responsibilities(rows, fit.shares, fit.theta), fit.theta)
    return found | {"labels": found["train"][1].argmax(axis=1)}


def _fit_memberships(
    labels: dict[str, LabelRows], n_clusters: int, epsilon: float, seed: int
) -> dict[str, Any]:
    train = labels["train"]
    options = bce.VariationalOptions(epsilon=epsilon)
    fit = bce.fit_bayesian_ensemble(
        train.codes, train.n_labels, n_clusters, seed=seed, options=options
    )
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
    means = {m: float(np.mean([run[m][part][measure] for run in runs])) for m in METHODS}
    return means["DPCE"] <= means["BCE"] <= means["MM"]


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
        published = [f"*{PUBLISHED[part][m][number]:.3f}*" for m in METHODS]
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
    """The problems of this module."""
    return [
        Problem(
            "dpce-sweep",
            "a sweep of the Dirichlet-process ensemble against numpy",
            make_sweep_sizes,
            run_sweep,
            summarise_sweep,
        ),
        Problem(
            "ensemble-large",
            "a consensus of ten k-means runs over two million rows",
            make_large_sizes,
            run_large,
            summarise_large,
        ),
        Problem(
            "ensemble-tables",
            "perplexity of consensus models by the protocol of the thesis, and their quality",
            make_table_sizes,
            run_tables,
            summarise_tables,
        ),
    ]
