"""One script for the laptop, a Dask cluster and Kubernetes, with the same answer on all.

python examples/everywhere.py                                        # this process
python examples/everywhere.py --scheduler local                      # worker processes, here
python examples/everywhere.py --scheduler tcp://10.0.0.5:8786 --folder /shared/everywhere
DASK_SCHEDULER_ADDRESS=tls://scheduler:8786 python examples/everywhere.py --folder s3://bucket/demo

Certificates for tls:// are Dask's own settings (DASK_DISTRIBUTED__COMM__TLS__CA_FILE and others);
the script does not know of them. In Kubernetes a DaskJob runs it as it is: docs/kubernetes.md.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

import distclust
from distclust.errors import DistclustError

N_FEATURES, N_KINDS = 256, 8


def rows(n_rows: int) -> Iterator[np.ndarray]:
    """Yield yes-no answers of people of several kinds, some at a time."""
    rng = np.random.default_rng(8)
    profiles = rng.beta(2.0, 2.0, size=(N_KINDS, N_FEATURES))
    for start in range(0, n_rows, 5_000):
        kinds = rng.integers(0, N_KINDS, min(5_000, n_rows - start))
        yield rng.random((len(kinds), N_FEATURES)) < profiles[kinds]


def stored(place: str, n_rows: int) -> Any:
    """Return the store at a place, a path or a URL; bring the rows in if there is none."""
    try:
        return distclust.open_store(place)
    except DistclustError:
        return distclust.ingest(rows(n_rows), place)


def main(scheduler: str, folder: str, n_rows: int) -> None:
    """Bring rows in, find their hierarchy, complete a set, and print what was found."""
    with distclust.connect(scheduler) as session, distclust.progress():
        print(session, file=sys.stderr)  # the only thing that differs
        store = stored(f"{folder}/rows.zarr", n_rows)
        model = distclust.RandomizedBHC(sample_size=256, random_state=0)
        model.fit(store, results=f"{folder}/tree")
        labels = np.asarray(model.labels_)
        found = distclust.BayesianSets().fit(store).query([0, 1, 2], k=5)
    print(f"{model.n_clusters_} clusters, sizes {np.bincount(labels).tolist()}")
    print(f"log evidence {model.log_evidence_!r}")
    print(f"with rows 0, 1 and 2 belong {np.asarray(found.ids).tolist()}")
    digest = hashlib.sha256(model.tree_.to_json().encode())
    digest.update(labels.astype("<i8").tobytes())
    digest.update(np.asarray(found.log_scores, "<f8").tobytes())
    print(f"fingerprint {digest.hexdigest()[:16]}")


if __name__ == "__main__":  # worker processes import this file
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--scheduler",
        default=os.environ.get("DASK_SCHEDULER_ADDRESS", "threads"),
        help="threads, local or an address; by default what DASK_SCHEDULER_ADDRESS says",
    )
    parser.add_argument("--folder", help="path or URL for stores, which all workers see")
    parser.add_argument("--rows", type=int, default=20_000, help="how many to make")
    given = parser.parse_args()
    if given.folder is None and "://" in given.scheduler:
        parser.error("workers elsewhere need a --folder that they see, such as s3://bucket/demo")
    with tempfile.TemporaryDirectory() as temporary:
        main(given.scheduler, given.folder or temporary, given.rows)
