"""A hierarchy of rows that are never in memory together, stopped and resumed at will.

python examples/large.py                                    # this process
python examples/large.py --scheduler local                  # worker processes, here
python examples/large.py --rows 10000000 --folder /scratch  # more than a toy
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import distclust
from distclust.errors import DistclustError
from distclust.store.matrix_store import MatrixStore
from distclust.trees.labelling import label_store
from distclust.trees.levels import describe_levels

N_FEATURES = 48
FAMILIES, KINDS = 4, 6  # families of kinds: a hierarchy of two levels


def kinds(seed: int = 0) -> np.ndarray:
    """Return the profile of every kind; those of a family share a third of their features."""
    rng = np.random.default_rng(seed)
    profiles = rng.beta(0.2, 0.2, size=(FAMILIES, KINDS, N_FEATURES))
    shared = N_FEATURES // 3
    profiles[:, :, :shared] = rng.beta(0.2, 0.2, size=(FAMILIES, 1, shared))
    return profiles.reshape(-1, N_FEATURES)


def rows(n_rows: int, seed: int) -> Iterator[np.ndarray]:
    """Yield rows of zeros and ones, some at a time; common kinds are much more common."""
    rng = np.random.default_rng(seed)
    profiles = kinds()
    shares = rng.permutation(np.geomspace(1.0, 50.0, len(profiles)))
    for start in range(0, n_rows, 50_000):
        n = min(50_000, n_rows - start)
        chosen = rng.choice(len(profiles), size=n, p=shares / shares.sum())
        yield rng.random((n, N_FEATURES)) < profiles[chosen]


def stored(path: Path, n_rows: int, seed: int) -> MatrixStore:
    """Return the store at a path, with rows brought in if it is not complete."""
    try:
        return distclust.open_store(str(path))
    except DistclustError:
        return distclust.ingest(rows(n_rows, seed), str(path))


def main(scheduler: str, n_rows: int, folder: Path) -> None:
    """Make rows, bring them into a store, find their hierarchy, label others by it."""
    store = stored(folder / "rows.zarr", n_rows, seed=1)
    others = stored(folder / "others.zarr", 20_000, seed=2)
    start = time.monotonic()
    with distclust.connect(scheduler) as session, distclust.progress():
        print(session)
        # State is saved in the results after every pass: killed and run again, it goes on.
        model = distclust.RandomizedBHC(random_state=0).fit(store, results=folder / "results")
        seconds = time.monotonic() - start
        labelled = label_store(model, others.matrix(), folder / "labels")
    print(f"{model.n_clusters_} clusters of {n_rows:,} rows in {seconds:.1f} s")
    print(f"passes that moved rows: {model.n_passes_}; log evidence {model.log_evidence_:,.1f}")
    for level in describe_levels(model.tree_)["levels"]:
        print("level {level}: {n_nodes} nodes, {largest:,} to {smallest:,} rows".format(**level))
    sizes = np.bincount(np.asarray(model.labels_))  # a lazy array: here it fits
    print(f"sizes of the clusters from {sizes.min():,} to {sizes.max():,} rows")
    print(f"other rows by cluster: {labelled.metrics['counts']}")


if __name__ == "__main__":  # worker processes import this file
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheduler", default="threads", help="threads, local or tcp://HOST:PORT")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--folder", type=Path, help="for the stores; else a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(given.scheduler, given.rows, given.folder or Path(temporary))
