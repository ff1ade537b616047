"""One fit of a store in a process of its own, watched: ``python -m benchmarks.large_fit``.

Prints JSON: seconds of the fit (compiled functions loaded before by a small fit), of its
stages and, if asked, peak of resident memory of this process and of each worker.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import distclust
from distclust import events

_POLL_SECONDS = 0.1  # looking for processes takes time that the fit would have


class Watch:
    """Peak of resident memory of this process and its workers, seconds of each stage."""

    def __init__(self, memory: bool) -> None:
        self.memory = memory
        self.client = 0
        self.workers: dict[int, int] = {}
        self.stages: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Watch:
        if self.memory:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self.memory:
            self._thread.join()

    def note(self, event: events.Event) -> None:
        """Remember when a stage began and ended."""
        begun = self._begun.setdefault(event.stage, event.time)
        self.stages[event.stage] = event.time - begun

    def _poll(self) -> None:
        me = psutil.Process(os.getpid())
        while not self._is_over.wait(_POLL_SECONDS):
            self.client = max(self.client, me.memory_info().rss)
            for child in me.children(recursive=True):
                try:
                    used = child.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
                self.workers[child.pid] = max(self.workers.get(child.pid, 0), used)


def warm_up(model: Any, scheduler: str, n_rows: int) -> None:
    """Load or compile all functions, here or on every worker, by a small fit."""
    random = np.random.default_rng(0)
    profiles = random.beta(0.5, 0.5, (20, 64))
    rows = (random.random((n_rows, 64)) < profiles[random.integers(0, 20, n_rows)]).astype(np.uint8)
    for _ in range(2 if scheduler == "local" else 1):  # so that every worker has its share
        with tempfile.TemporaryDirectory() as folder:
            distclust.ingest(rows, f"{folder}/rows.zarr")
            model(sample_size=512, random_state=0).fit(f"{folder}/rows.zarr")


def main() -> None:
    """Fit once and print what was seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("method", choices=["RandomizedBHC", "EMBHC"])
    parser.add_argument("store")
    parser.add_argument("results")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--memory", action="store_true", help="watch it, which costs time")
    parser.add_argument("--parameters", type=json.loads, default={})
    options = parser.parse_args()
    kind = getattr(distclust, options.method)
    where = "local" if options.workers else "threads"
    place: dict[str, Any] = {"threads": options.threads}
    if options.workers:
        place = {"workers": options.workers, "threads": 1, "memory_limit": None}
    shutil.rmtree(options.results, ignore_errors=True)
    with distclust.connect(where, **place), Watch(options.memory) as watch:
        warm_up(kind, where, min(40_000, distclust.open_store(options.store).shape[0]))
        model = kind(random_state=0, **options.parameters)
        with events.listen(watch.note):
            start = time.perf_counter()
            model.fit(options.store, results=Path(options.results))
            seconds = time.perf_counter() - start
    report = {
        "seconds": seconds,
        "stages": watch.stages,
        "client_bytes": watch.client,
        "worker_bytes": max(sorted(watch.workers.values())[-options.workers :], default=0)
        if options.workers
        else 0,
        "n_passes": model.n_passes_,
        "n_clusters": model.n_clusters_,
        "n_leaves": model.tree_.n_leaves,
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
