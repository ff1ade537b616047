"""Parts of the benchmark of Bayesian Sets in processes of their own: ``build STORE``."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import distclust
from distclust.engine import as_matrix
from distclust.retrieval.index import build_index, place_of_index


def main() -> None:
    """Build the index of a store, compiled functions loaded before, and print what was seen."""
    what, store = sys.argv[1:]
    assert what == "build"
    with tempfile.TemporaryDirectory() as folder:
        rows = np.random.default_rng(0).random((500, 40)) < 0.2
        distclust.ingest(rows, f"{folder}/rows.zarr")
        build_index(as_matrix(f"{folder}/rows.zarr"), f"{folder}/index")  # type: ignore[arg-type]
    start = time.perf_counter()
    build_index(as_matrix(store), place_of_index(store))  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    json.dump({"seconds": seconds, "peak_bytes": peak_bytes()}, sys.stdout)


def peak_bytes() -> int:
    """Peak of this program; `getrusage` would have that of the one that started it, too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status: expected VmHWM")


if __name__ == "__main__":
    main()
