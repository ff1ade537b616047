"""Trees of many rows: speed against scikit-learn, growth, memory, workers, overhead.

Rows are binary with 64 columns, drawn from 200 planted clusters of equal probability whose
column means are Beta(1/2, 1/2). Ours are read from a store on disk (page cache), the peers
get the same rows in memory as float32. Fits run in processes of their own with compiled
functions loaded.
"""

from __future__ import annotations

import functools
import json
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
from sklearn.cluster import BisectingKMeans, MiniBatchKMeans
from sklearn.metrics import adjusted_rand_score

import distclust
from benchmarks.problem import Problem, Results, Size, table
from distclust.engine import as_matrix, map_spans, one_blas_thread
from distclust.engine.spans import Span, _blocks_of, _ReadRows, n_spans, span_bounds
from distclust.trees import growing, passes
from distclust.trees.estimators import RandomizedBHC

CLUSTERS = 200
COLUMNS = 64

_PIECE = 250_000
_MEGABYTE = 1e6


@dataclass(frozen=True)
class Sizes:
    """Numbers of rows of a benchmark."""

    rows: tuple[int, ...]
    clusters: int = CLUSTERS
    tries: int = 3  # the best of which counts


def planted(n_rows: int, n_clusters: int = CLUSTERS) -> Iterator[tuple[Any, Any]]:
    """Yield rows and their clusters in pieces, the same ones every time."""
    random = np.random.default_rng(0)
    profiles = random.beta(0.5, 0.5, (n_clusters, COLUMNS)).astype(np.float32)
    for start in range(0, n_rows, _PIECE):
        n_piece = min(_PIECE, n_rows - start)
        y = random.integers(0, n_clusters, n_piece)
        noise = random.random((n_piece, COLUMNS), dtype=np.float32)
        yield (noise < profiles[y]).astype(np.uint8), y


def planted_rows(n_rows: int, n_clusters: int = CLUSTERS) -> npt.NDArray[np.uint8]:
    """All rows in memory."""
    return np.concatenate([rows for rows, _ in planted(n_rows, n_clusters)])


def planted_classes(n_rows: int, n_clusters: int = CLUSTERS) -> npt.NDArray[np.int64]:
    """Cluster of every row."""
    return np.concatenate([y for _, y in planted(n_rows, n_clusters)])


def store_rows(folder: str, n_rows: int, n_clusters: int = CLUSTERS) -> str:
    """Ingest the rows; return the path of the store."""
    path = f"{folder}/rows-{n_rows}.zarr"
    distclust.ingest(planted_rows(n_rows, n_clusters), path)
    return path


def fit_apart(method: str, store: str, folder: str, *options: str) -> dict[str, Any]:
    """Fit in a process of its own; return what it saw."""
    command = [sys.executable, "-m", "benchmarks.large_fit", method, store, f"{folder}/results"]
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [*command, *options], check=True, capture_output=True, text=True, cwd=root
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def agreement(folder: str, n_rows: int, n_clusters: int) -> float:
    """Adjusted Rand index of the labels in the results with the planted clusters."""
    labels = distclust.load(f"{folder}/results").labels_.compute()
    return float(adjusted_rand_score(planted_classes(n_rows, n_clusters), labels))


# ---- speed, growth and memory --------------------------------------------------------------------


def make_speed_sizes(size: Size) -> Sizes:
    """One, three and ten million rows."""
    return (
        Sizes((1_000_000, 3_000_000, 10_000_000)) if size == "full" else Sizes((2000, 4000), 5, 1)
    )


def run_speed(sizes: Sizes) -> Results:
    """Fits of all sizes in process on all cores, then the peers on the largest."""
    ours = []
    with tempfile.TemporaryDirectory() as folder:
        for n_rows in sizes.rows:
            store = store_rows(folder, n_rows, sizes.clusters)
            runs = [fit_apart("RandomizedBHC", store, folder) for _ in range(sizes.tries)]
            best = min(runs, key=lambda run: run["seconds"])
            watched = fit_apart("RandomizedBHC", store, folder, "--memory")
            best["client_bytes"] = watched["client_bytes"]
            best["agreement"] = agreement(folder, n_rows, sizes.clusters)
            ours.append({"rows": n_rows, **best})
    n_rows = sizes.rows[-1]
    X = planted_rows(n_rows, sizes.clusters).astype(np.float32)
    y = planted_classes(n_rows, sizes.clusters)
    peers = {}
    for name, model in (
        ("BisectingKMeans", BisectingKMeans(sizes.clusters, random_state=0)),
        ("MiniBatchKMeans", MiniBatchKMeans(sizes.clusters, batch_size=16384, random_state=0)),
    ):
        start = time.perf_counter()
        model.fit(X)
        seconds = time.perf_counter() - start
        peers[name] = {
            "seconds": seconds,
            "agreement": float(adjusted_rand_score(y, model.labels_)),
        }
    first, last = ours[0], ours[-1]
    growth = np.log(last["seconds"] / first["seconds"]) / np.log(last["rows"] / first["rows"])
    return {"ours": ours, "peers": peers, "exponent": float(growth), "clusters": sizes.clusters}


def summarise_speed(results: Results) -> str:
    """Ours by size, peers at the largest, ratios."""
    last = results["ours"][-1]
    lines = [
        [
            "RandomizedBHC, from the store",
            f"{run['rows']:,}",
            f"{run['seconds']:.2f}",
            f"{run['agreement']:.4f}",
            f"{run['client_bytes'] / _MEGABYTE:.0f}",
            "",
        ]
        for run in results["ours"]
    ]
    for name, peer in results["peers"].items():
        ratio = peer["seconds"] / last["seconds"]
        lines.append(
            [
                f"{name}({results['clusters']}), float32 in memory",
                f"{last['rows']:,}",
                f"{peer['seconds']:.2f}",
                f"{peer['agreement']:.4f}",
                "",
                f"{ratio:.1f} times as long",
            ]
        )
    header = ["", "rows", "seconds", "adjusted Rand", "peak MB", ""]
    stages = ", ".join(f"{name} {value:.2f} s" for name, value in last["stages"].items())
    return (
        f"{table(header, lines)}\n\nSeconds grow as rows^{results['exponent']:.2f}. "
        f"Stages of the largest fit: {stages}."
    )


# ---- workers -------------------------------------------------------------------------------------


def make_worker_sizes(size: Size) -> Sizes:
    """As for speed."""
    return replace(make_speed_sizes(size), tries=5) if size == "full" else Sizes((2000,), 5, 1)


def run_workers(sizes: Sizes) -> Results:
    """One and two workers on the largest, memory of two workers on all sizes."""
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for n_rows in sizes.rows:
            store = store_rows(folder, n_rows, sizes.clusters)
            crews = (1, 2) if n_rows == sizes.rows[-1] else (2,)
            tries: dict[int, list[Any]] = {workers: [] for workers in crews}
            for _ in range(sizes.tries):  # in turn, as the machine has slow minutes
                for workers in crews:
                    options = ("--workers", str(workers))
                    tries[workers].append(fit_apart("RandomizedBHC", store, folder, *options))
            for workers in crews:
                options = ("--workers", str(workers))
                best = min(tries[workers], key=lambda run: run["seconds"])
                watched = fit_apart("RandomizedBHC", store, folder, *options, "--memory")
                memory = {name: watched[name] for name in ("client_bytes", "worker_bytes")}
                runs.append({"rows": n_rows, "workers": workers, **best, **memory})
    one, two = (run for run in runs if run["rows"] == sizes.rows[-1])
    return {"runs": runs, "speed_up": one["seconds"] / two["seconds"]}


def summarise_workers(results: Results) -> str:
    """Seconds and memory."""
    lines = [
        [
            f"{run['rows']:,}",
            str(run["workers"]),
            f"{run['seconds']:.2f}",
            f"{run['worker_bytes'] / _MEGABYTE:.0f}",
            f"{run['client_bytes'] / _MEGABYTE:.0f}",
        ]
        for run in results["runs"]
    ]
    header = ["rows", "workers", "seconds", "peak MB of a worker", "peak MB of the client"]
    return f"{table(header, lines)}\n\nTwo workers: {results['speed_up']:.2f} times one."


# ---- EM ------------------------------------------------------------------------------------------


def make_em_sizes(size: Size) -> Sizes:
    """A million rows."""
    return Sizes((1_000_000,)) if size == "full" else Sizes((3000,), 5)


def run_em(sizes: Sizes) -> Results:
    """EM-BHC, and plain products of all rows with as many columns as there are seeds."""
    (n_rows,) = sizes.rows
    sweeps = 5
    seeds = 2048 if n_rows > 2048 * 4 else 200
    with tempfile.TemporaryDirectory() as folder:
        store = store_rows(folder, n_rows, sizes.clusters)
        parameters = json.dumps({"sample_size": seeds, "n_sweeps": sweeps})
        found = fit_apart("EMBHC", store, folder, "--parameters", parameters)
        found["agreement"] = agreement(folder, n_rows, sizes.clusters)
    X = planted_rows(n_rows, sizes.clusters)
    passes_ = {name: product_pass(X, seeds, name) for name in ("float64", "float32")}
    return {"rows": n_rows, "seeds": seeds, "sweeps": sweeps, "pass": passes_, "em": found}


def product_pass(X: npt.NDArray[np.uint8], n_columns: int, dtype: str) -> float:
    """Seconds of X @ W and its row maxima, in tiles, with all threads of BLAS."""
    weights = np.random.default_rng(0).standard_normal((COLUMNS, n_columns)).astype(dtype)
    start = time.perf_counter()
    for first in range(0, len(X), 8192):
        (X[first : first + 8192].astype(dtype) @ weights).argmax(axis=1)
    return time.perf_counter() - start


def summarise_em(results: Results) -> str:
    """Seconds in passes."""
    em, sweeps = results["em"], results["sweeps"]
    lines = [
        [
            f"plain product, {name}",
            f"{seconds:.2f}",
            f"{em['seconds'] / (seconds * (sweeps + 2)):.2f}",
        ]
        for name, seconds in results["pass"].items()
    ]
    header = ["one pass against the seeds", "seconds", "EMBHC / (sweeps + 2) passes"]
    return (
        f"EMBHC, {results['rows']:,} rows, {results['seeds']:,} seeds, {sweeps} sweeps: "
        f"{em['seconds']:.2f} s, adjusted Rand {em['agreement']:.4f}, {em['n_clusters']} "
        f"clusters.\n\n{table(header, lines)}"
    )


# ---- overhead of the engine ----------------------------------------------------------------------


def make_overhead_sizes(size: Size) -> Sizes:
    """Two million rows."""
    return Sizes((2_000_000,)) if size == "full" else Sizes((3000,), 5)


def run_overhead(sizes: Sizes) -> Results:
    """A filtering pass by a plain loop, and by the engine in process and on a worker."""
    (n_rows,) = sizes.rows
    with tempfile.TemporaryDirectory() as folder:
        matrix = as_matrix(store_rows(folder, n_rows, sizes.clusters))
        method = RandomizedBHC(random_state=0)._method(COLUMNS, "benchmark")
        state = method.start(matrix)
        task = passes.Task(
            family=state.family,
            router=state.router,
            before=None,
            after=None,
            counted=1,
            wanted=growing._wanted(state, state.new_nodes, state.expected),
            digests=state.digests,
        )
        plain = functools.partial(plain_loop, matrix, task)
        by_engine = functools.partial(engine_loop, matrix, task)
        for call in (plain, by_engine):
            call()
        found = {"rows": n_rows, "plain": [], "threads": [], "local": []}
        with distclust.connect("threads", threads=1):
            for _ in range(3):
                found["plain"].append(seconds_of(plain))
                found["threads"].append(seconds_of(by_engine))
        with distclust.connect("local", workers=1, threads=1, memory_limit=None):
            by_engine()
            for _ in range(3):
                found["local"].append(seconds_of(by_engine))
        return found


def plain_loop(matrix: Any, task: passes.Task) -> None:
    """Call the function of the pass span by span, and nothing else."""
    with one_blas_thread:
        for i in range(n_spans(matrix)):
            span = Span(i, *span_bounds(matrix, i), _ReadRows(matrix, _blocks_of(matrix, i)))
            passes.sweep(span, task)


def engine_loop(matrix: Any, task: passes.Task) -> None:
    """The same through the engine."""
    for _ in map_spans(passes.sweep, matrix, task):
        pass


def seconds_of(call: Any) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def summarise_overhead(results: Results) -> str:
    """Best of three each."""
    plain = min(results["plain"])
    lines = [
        [name, f"{min(results[key]):.2f}", f"{min(results[key]) / plain:.3f}"]
        for name, key in (
            ("plain loop over the spans", "plain"),
            ("engine, one thread", "threads"),
            ("engine, one worker process", "local"),
        )
    ]
    return f"{results['rows']:,} rows.\n\n{table(['', 'seconds', 'ratio'], lines)}"


def problems() -> list[Problem]:
    """The problems of this module."""
    return [
        Problem(
            "large-speed",
            "RandomizedBHC on 1, 3 and 10 million rows against k-means",
            make_speed_sizes,
            run_speed,
            summarise_speed,
        ),
        Problem(
            "large-workers",
            "RandomizedBHC on one and two workers, and their memory",
            make_worker_sizes,
            run_workers,
            summarise_workers,
        ),
        Problem(
            "large-em",
            "EMBHC on a million rows against plain products",
            make_em_sizes,
            run_em,
            summarise_em,
        ),
        Problem(
            "large-overhead",
            "a filtering pass through the engine against a plain loop",
            make_overhead_sizes,
            run_overhead,
            summarise_overhead,
        ),
    ]
