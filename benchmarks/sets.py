"""Bayesian Sets: scans, the index and a cold start, side by side with a plain product.

Rows have 50 ones among 10,000 columns, column j being drawn with probability proportional to
1 / (j + 10), without repeats. The peer is scipy's product of the same rows, float64 CSR in
memory, with one vector: what computing all scores of one query costs, without finding the
best. Ours reads a store (page cache), verifies what it reads, and finds the best ten.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import scipy.sparse

import distclust
from benchmarks.problem import Problem, Results, Size, table
from distclust.retrieval import scanning
from distclust.retrieval.sets import BayesianSets

COLUMNS = 10_000
ONES = 50
QUERY_ITEMS = 3

_MEGA = 1e6
_PIECE = 50_000


@dataclass(frozen=True)
class Sizes:
    """Rows, columns, ones a row, queries and tries."""

    rows: int
    columns: int = COLUMNS
    ones: int = ONES
    queries: int = 1000
    tries: int = 5


def make_sizes(size: Size) -> Sizes:
    """A million rows."""
    return Sizes(1_000_000) if size == "full" else Sizes(2000, 300, 10, 20, 1)


def make_many(size: Size) -> Sizes:
    """Ten million rows."""
    return Sizes(10_000_000, tries=2) if size == "full" else Sizes(3000, 300, 10, 20, 1)


def draw_rows(sizes: Sizes, seed: int = 0) -> scipy.sparse.csr_array:
    """Return the rows, the same ones every time."""
    shares = 1.0 / (np.arange(sizes.columns) + 10.0)
    cumulated = np.cumsum(shares / shares.sum())
    random = np.random.default_rng(seed)
    indices = np.empty((sizes.rows, sizes.ones), np.int32)
    for start in range(0, sizes.rows, _PIECE):
        piece = indices[start : start + _PIECE]
        # Three times as many draws as are kept: repeats never use them up.
        drawn = np.searchsorted(cumulated, random.random((len(piece), 3 * sizes.ones)))
        _keep_first(np.minimum(drawn, sizes.columns - 1), sizes.columns, piece)
    indptr = np.arange(0, indices.size + 1, sizes.ones)
    data = np.ones(indices.size, np.bool_)
    kind = np.int32 if indices.size < 2**31 else np.int64
    parts = (data, indices.reshape(-1), indptr.astype(kind))
    return scipy.sparse.csr_array(parts, shape=(sizes.rows, sizes.columns))


@numba.njit  # type: ignore[untyped-decorator]
def _keep_first(
    drawn: npt.NDArray[np.int64], n_columns: int, indices: npt.NDArray[np.int32]
) -> None:
    """Keep the first draws of every row that are no repeats, in ascending order."""
    last_row = np.full(n_columns, -1)
    for i in range(len(indices)):
        n = k = 0
        while n < indices.shape[1]:
            j = drawn[i, k]
            k += 1
            if last_row[j] != i:
                last_row[j] = i
                indices[i, n] = j
                n += 1
        indices[i].sort()


def run_speed(sizes: Sizes) -> Results:
    """Build, scan, ask the index, start cold; a plain product beside them."""
    X = draw_rows(sizes)
    n_ones = int(X.nnz)
    plain = scipy.sparse.csr_array((np.ones(n_ones), X.indices, X.indptr), shape=X.shape)
    random = np.random.default_rng(1)
    asked = [random.choice(sizes.rows, QUERY_ITEMS, replace=False) for _ in range(sizes.queries)]
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/rows.zarr"
        distclust.ingest(X, store)
        del X
        built = _apart("build", store)
        sets = BayesianSets().fit(store)
        weights = np.random.default_rng(2).standard_normal(sizes.columns)
        product = min(_timed(lambda: plain @ weights) for _ in range(sizes.tries))
        scans = {}
        with distclust.connect("threads", threads=1):
            for n_queries in (1, scanning.TOGETHER):
                some = asked[:n_queries]
                sets.query_many(some, engine="scan")
                best = min(
                    _timed(lambda some=some: sets.query_many(some, engine="scan"))  # type: ignore[misc]
                    for _ in range(sizes.tries)
                )
                scans[str(n_queries)] = best
        index = {}
        for threads in (1, 2):
            with distclust.connect("threads", threads=threads):
                sets.warm([QUERY_ITEMS])
                sets.query(asked[0], engine="index")
                times = [
                    _timed(lambda q=q: sets.query(q, engine="index"))  # type: ignore[misc]
                    for q in asked
                ]
            index[str(threads)] = _quantiles(times)
        cold = [_cold(store, asked[0]) for _ in range(min(3, sizes.tries))]
        corpus_bytes = _bytes_of(store)
        index_bytes = _bytes_of(f"{store}.sets")
    return {
        "rows": sizes.rows,
        "ones": n_ones,
        "product": product,
        "scans": scans,
        "index": index,
        "build": built,
        "cold": min(cold),
        "corpus_bytes": corpus_bytes,
        "index_bytes": index_bytes,
    }


def _timed(function: Any) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _quantiles(seconds: list[float]) -> dict[str, float]:
    return {"p50": float(np.quantile(seconds, 0.5)), "p99": float(np.quantile(seconds, 0.99))}


def _bytes_of(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def _apart(what: str, store: str) -> dict[str, Any]:
    """Run a part of this module in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.sets_apart", what, store]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _cold(store: str, rows: npt.NDArray[np.int64]) -> float:
    """Seconds of the command, from the shell and back."""
    command = [sys.executable, "-m", "distclust", "sets", "query", store, *map(str, rows)]
    root = Path(__file__).parents[1]
    return _timed(lambda: subprocess.run(command, check=True, capture_output=True, cwd=root))


def summarise_speed(results: Results) -> str:
    """Times and ratios."""
    ones, product = results["ones"], results["product"]

    def line(name: str, seconds: float, ratio: float | None) -> list[str]:
        rate = f"{ones / seconds / _MEGA:,.0f}"
        return [name, f"{seconds * 1e3:.2f}", rate, "" if ratio is None else f"{ratio:.1f}"]

    lines = [line("scipy CSR product, float64, one vector", product, None)]
    for name, seconds in results["scans"].items():
        each = seconds / int(name)
        label = "scan, one thread" + ("" if name == "1" else f", a query of {name} at once")
        lines.append(line(label, each, product / each))
    for threads, found in results["index"].items():
        for quantile, seconds in found.items():
            label = f"index, {threads} thread{'' if threads == '1' else 's'}, {quantile}"
            lines.append([label, f"{seconds * 1e3:.2f}", "", f"{product / seconds:.1f}"])
    header = ["", "milliseconds", "million ones/s", "times as fast as the product"]
    built = results["build"]
    return "\n\n".join(
        [
            table(header, lines),
            f"{results['rows']:,} rows, {ones:,} ones. On disk "
            f"{results['corpus_bytes'] / ones:.2f} bytes a one for the corpus, "
            f"{results['index_bytes'] / ones:.2f} for the index. Index built in "
            f"{built['seconds']:.2f} s ({ones / built['seconds'] / _MEGA:.0f} million ones a "
            f"second on two threads), peak {built['peak_bytes'] / _MEGA:.0f} MB. "
            f"`distclust sets query` from a cold start: {results['cold']:.2f} s.",
        ]
    )


def problems() -> list[Problem]:
    """The problems of this module."""
    return [
        Problem(
            "sets-speed",
            "Bayesian Sets on a million rows: scans, index, cold start",
            make_sizes,
            run_speed,
            summarise_speed,
        ),
        Problem(
            "sets-many",
            "the same on ten million rows",
            make_many,
            run_speed,
            summarise_speed,
        ),
    ]
