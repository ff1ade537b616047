"""Clustering ensembles: speed of a sweep, nested bases, a consensus of two million rows."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans

import distclust
from benchmarks.problem import Problem, Results, Size, table
from distclust.ensembles.dirichlet_ensemble import DirichletEnsembleSampler
from distclust.metrics import adjusted_rand_score

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


# ---- nested bases --------------------------------------------------------------------------------

NESTED_SIZES = (4, 8, 16, 32, 32)
N_GAUSSIAN, N_NOISE = 75, 50


@dataclass(frozen=True)
class NestedSizes:
    """Samples, pseudo-counts of a base, and sweeps, of which the second half counts."""

    samples: int
    betas: tuple[float, ...]
    sweeps: int


def make_nested_sizes(size: Size) -> NestedSizes:
    """The values that the specification asks to report, and the one that it asserts."""
    if size == "full":
        return NestedSizes(8, (1.0, 10.0, 30.0, 60.0, 100.0), 600)
    return NestedSizes(1, (60.0,), 10)


def nested_bases(seed: int) -> Array:
    """Labels of two Gaussians and a band of noise by k-means of several sizes."""
    random = np.random.default_rng(seed)
    ends = [random.normal([x, 0.0], 0.6, size=(N_GAUSSIAN, 2)) for x in (0.0, 6.0)]
    noise = random.uniform([-2.0, -2.0], [8.0, 2.0], size=(N_NOISE, 2))
    points = np.vstack([*ends, noise])
    bases = [
        KMeans(j, n_init=1, random_state=10 * seed + m).fit_predict(points)
        for m, j in enumerate(NESTED_SIZES)
    ]
    return np.stack(bases, axis=1).astype(np.int8)


def run_nested(sizes: NestedSizes) -> Results:
    """Chains from distinct rows and from one cluster on every sample, at every value."""
    found: dict[str, Any] = {}
    for beta in sizes.betas:
        runs = [
            _nested_chain(s, beta, sizes.sweeps, c) for s in range(sizes.samples) for c in (0, 1)
        ]
        found[f"{beta:g}"] = {
            "modes": [mode for mode, _ in runs],
            "apart": float(np.mean([apart for _, apart in runs])),
        }
    return {"samples": sizes.samples, "sweeps": sizes.sweeps, "betas": found}


def _nested_chain(seed: int, beta: float, n_sweeps: int, chain: int) -> tuple[int, float]:
    """The most frequent number of clusters, and how often the Gaussians were apart."""
    sampler = DirichletEnsembleSampler.of(nested_bases(seed), np.array(NESTED_SIZES), beta=beta)
    state, counts, apart = sampler.begin(chain, np.random.default_rng(seed)), [], []
    for _ in range(n_sweeps):
        state = sampler.sweep(sampler.open(), state)
        first, second = (
            np.bincount(state.assignments[i : i + N_GAUSSIAN]).argmax() for i in (0, N_GAUSSIAN)
        )
        counts.append(state.n_clusters)
        apart.append(first != second)
    late = n_sweeps // 2
    return int(np.bincount(counts[late:]).argmax()), float(np.mean(apart[late:]))


def summarise_nested(results: Results) -> str:
    """How many chains have which number of clusters."""
    lines = []
    for beta, facts in results["betas"].items():
        numbers, times = np.unique(facts["modes"], return_counts=True)
        told = ", ".join(f"{k} ({n})" for k, n in zip(numbers, times, strict=True))
        lines.append([beta, told, f"{100 * facts['apart']:.0f} %"])
    header = ["beta", "clusters (chains)", "draws with the Gaussians apart"]
    head = f"{results['samples']} samples, two chains of {results['sweeps']} sweeps each."
    return f"{head}\n\n{table(header, lines)}"


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
            "dpce-nested",
            "clusters that the Dirichlet-process ensemble finds in nested k-means bases",
            make_nested_sizes,
            run_nested,
            summarise_nested,
        ),
        Problem(
            "ensemble-large",
            "a consensus of ten k-means runs over two million rows",
            make_large_sizes,
            run_large,
            summarise_large,
        ),
    ]
