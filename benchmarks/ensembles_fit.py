"""Bases and a consensus of stored rows in a process of their own: ``METHOD STORE OPTIONS``.

Prints seconds, peak memory of all processes, and saves the labels for whoever knows the truth.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import distclust
from benchmarks.large_fit import Watch
from distclust.engine import as_matrix
from distclust.ensembles.bases import make_bases, plan_bases
from distclust.ensembles.cluster_ensemble import ClusterEnsemble
from distclust.errors import ConvergenceWarning


def main() -> None:
    """Fit once and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=["bce", "dpce"])
    parser.add_argument("store")
    parser.add_argument("labels", type=Path, help="where labels are saved")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bases", type=int, default=10)
    parser.add_argument("--parameters", type=json.loads, default={})
    options = parser.parse_args()
    place = {"workers": options.workers, "threads": 1, "memory_limit": None}
    warnings.simplefilter("ignore", ConvergenceWarning)
    with distclust.connect("local", **place), Watch(memory=True) as watch:
        _warm_up(options.method, options.parameters)
        start = time.perf_counter()
        codes = _bases(options.store, options.bases)
        middle = time.perf_counter()
        before = _peak(watch)
        model = ClusterEnsemble(options.method, random_state=0, **options.parameters)
        model.fit_labels(codes)
        end = time.perf_counter()
    np.savez(options.labels, consensus=model.labels_, bases=codes)
    report: dict[str, Any] = {
        "base_seconds": middle - start,
        "consensus_seconds": end - middle,
        "base_bytes": before,
        "bytes": _peak(watch),
        "n_clusters": int(model.n_clusters_),
        "n_distinct": len(np.unique(codes, axis=0)),
        "agreed": bool(model.agreed_),
        "n_sweeps": int(getattr(model, "n_sweeps_", 0)),
    }
    json.dump(report, sys.stdout)


def _bases(store: str, n_bases: int) -> Any:
    matrix = as_matrix(store)
    recipes = plan_bases("kmeans", n_bases, None, None, matrix.shape[0], "benchmark")
    return make_bases(matrix, recipes, 0, "benchmark").labels.codes


def _warm_up(method: str, parameters: dict[str, Any]) -> None:
    """Load compiled functions, here and on workers."""
    codes = np.random.default_rng(0).integers(0, 3, (200, 4))
    few = parameters | ({"max_sweeps": 4} if method == "dpce" else {"n_init": 1})
    ClusterEnsemble(method, random_state=0, **few).fit_labels(codes)


def _peak(watch: Watch) -> int:
    """Peak of this process and of each child, added up: not less than that of all together."""
    return int(watch.client + sum(watch.workers.values()))


if __name__ == "__main__":
    main()
