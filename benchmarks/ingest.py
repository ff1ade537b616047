"""Bringing a large CSV file into a store, and opening a store of many blocks.

The peer reads the same file with ``pandas.read_csv`` in chunks and writes the numbers it
got with ``ndarray.tofile``: the least that anybody who wants to read them again must do.
Both run in processes of their own, so that memory is measured too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.problem import Problem, Results, Size, table

COLUMNS = 100
CHUNK_ROWS = 50_000
_GIGABYTE = 1e9

PEER = f"""
import sys
import pandas as pd
with open(sys.argv[2], "wb") as out:
    for chunk in pd.read_csv(sys.argv[1], chunksize={CHUNK_ROWS}):
        chunk.to_numpy().tofile(out)
"""
OURS = """
import sys
import distclust
distclust.ingest(sys.argv[1], sys.argv[2])
"""


# ---- a CSV file ----------------------------------------------------------------------------------


def make_csv_size(size: Size) -> int:
    """Bytes of the file."""
    return 2_000_000_000 if size == "full" else 200_000


def run_csv(n_bytes: int) -> Results:
    """Wall seconds and peak memory of both, in turns; the second run of each counts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers.csv"
        n_rows = write_csv(path, n_bytes)
        found: dict[str, list[dict[str, float]]] = {"pandas": [], "distclust": []}
        for turn in range(2):
            for name, code in (("pandas", PEER), ("distclust", OURS)):
                out = Path(folder) / f"{name}-{turn}"
                found[name].append(watch(code, str(path), str(out)))
        best = {name: min(runs, key=lambda run: run["seconds"]) for name, runs in found.items()}
        return {"bytes": path.stat().st_size, "rows": n_rows, "columns": COLUMNS, **best}


def write_csv(path: Path, n_bytes: int) -> int:
    """Write random numbers of six decimals, about `n_bytes` of them; return the rows."""
    random = np.random.default_rng(0)
    names = ",".join(f"f{i}" for i in range(COLUMNS)) + "\n"
    n_rows = 0
    with path.open("w", encoding="ascii") as file:
        file.write(names)
        rows = random.standard_normal((500, COLUMNS))
        text = "".join(",".join(f"{value:.6f}" for value in row) + "\n" for row in rows)
        while file.tell() < n_bytes:
            file.write(text)
            n_rows += len(rows)
    return n_rows


def watch(code: str, *arguments: str) -> dict[str, float]:
    """Run Python code in a process; return its seconds and its peak of resident memory."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    observed, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        try:
            peak = max(peak, observed.memory_info().rss)
        except psutil.NoSuchProcess:
            break
        time.sleep(0.02)
    if process.wait() != 0:
        raise RuntimeError(f"exit code {process.returncode} of {arguments[-1]}")
    return {"seconds": time.perf_counter() - start, "peak_bytes": float(peak)}


def summarise_csv(results: Results) -> str:
    """Both contenders, and their ratio."""
    size = results["bytes"]
    lines = [
        [
            name,
            f"{results[key]['seconds']:.1f}",
            f"{size / 1e6 / results[key]['seconds']:.0f}",
            f"{results[key]['peak_bytes'] / 1e6:.0f}",
        ]
        for name, key in (
            ("distclust.ingest", "distclust"),
            ("pandas.read_csv in chunks, ndarray.tofile", "pandas"),
        )
    ]
    ratio = results["pandas"]["seconds"] / results["distclust"]["seconds"]
    text = (
        f"{size / _GIGABYTE:.2f} GB, {results['rows']:,} rows of {results['columns']} numbers: "
        f"{ratio:.2f} times as fast."
    )
    return f"{table(['', 'wall s', 'MB/s', 'peak MB'], lines)}\n\n{text}"


# ---- opening -------------------------------------------------------------------------------------


def make_block_count(size: Size) -> int:
    """Number of blocks."""
    return 10_000 if size == "full" else 20


def run_open(n_blocks: int) -> Results:
    """Seconds to open a store of many blocks, and to read one of them, in a new process."""
    import distclust
    from distclust.store import block_rows_for

    n_features = 100_000  # from here on blocks are small
    rows_each = block_rows_for(n_features, is_sparse=True)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "many.zarr")
        distclust.ingest(sparse_batches(n_blocks, rows_each, n_features), path)
        runs = [json.loads(_python(OPEN, path)) for _ in range(3)]
    best = {key: min(run[key] for run in runs) for key in runs[0]}
    return {"blocks": n_blocks, "rows": n_blocks * rows_each, **best}


OPEN = """
import json, sys, time
import distclust
from distclust import open_store
start = time.perf_counter()
matrix = open_store(sys.argv[1]).matrix()
opened = time.perf_counter()
matrix.block(matrix.n_blocks // 2)
read = time.perf_counter()
print(json.dumps({"open": opened - start, "block": read - opened, "blocks": matrix.n_blocks}))
"""


def sparse_batches(n_blocks: int, rows_each: int, n_features: int) -> Any:
    """Yield batches of 64 blocks, one nonzero in every row."""
    import scipy.sparse

    random = np.random.default_rng(0)
    for start in range(0, n_blocks, 64):
        n = min(64, n_blocks - start) * rows_each
        parts = (np.ones(n, np.bool_), random.integers(0, n_features, n), np.arange(n + 1))
        yield scipy.sparse.csr_array(parts, shape=(n, n_features))


def _python(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def summarise_open(results: Results) -> str:
    """Seconds to open and to read the first block."""
    line = [f"{results['blocks']:,}", f"{results['rows']:,}"]
    line += [f"{results['open']:.3f}", f"{results['block']:.3f}"]
    return table(["blocks", "rows", "open, s", "one block, s"], [line])


def problems() -> list[Problem]:
    """All problems of this module."""
    return [
        Problem(
            "ingest-csv",
            "a 2 GB CSV file into a store, against pandas in chunks",
            make_csv_size,
            run_csv,
            summarise_csv,
        ),
        Problem(
            "open-store",
            "opening a store of 10,000 blocks",
            make_block_count,
            run_open,
            summarise_open,
        ),
    ]
