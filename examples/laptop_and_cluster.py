"""One script for a laptop and for a Dask cluster, with the same answer on both.

python examples/laptop_and_cluster.py                     # this process
python examples/laptop_and_cluster.py local               # worker processes, here
python examples/laptop_and_cluster.py tcp://10.0.0.5:8786 # a cluster that exists
"""

from __future__ import annotations

import hashlib
import sys

import dask.array as da
import numpy as np

import distclust


def survey(n_rows: int = 600, n_questions: int = 40, seed: int = 0) -> np.ndarray:
    """Make yes-no answers of people with one of six attitudes."""
    rng = np.random.default_rng(seed)
    attitudes = rng.beta(0.4, 0.4, size=(6, n_questions))
    return rng.random((n_rows, n_questions)) < attitudes[rng.integers(0, 6, n_rows)]


def main(where: str) -> None:
    """Fit where the user says and print a fingerprint of the answer."""
    answers = da.from_array(survey(), chunks=(100, 40))  # the chunks do not matter
    with distclust.connect(where) as session, distclust.progress():
        print(session)
        model = distclust.BHC(concentration=1.0).fit(answers)
    digest = hashlib.sha256(model.tree_.to_json().encode()).hexdigest()[:12]
    print(f"{model.n_clusters_} clusters, sizes {np.bincount(model.labels_).tolist()}")
    print(f"log evidence {model.log_evidence_:.4f}, fingerprint of the tree {digest}")


if __name__ == "__main__":  # worker processes import this file
    main(sys.argv[1] if len(sys.argv) > 1 else "threads")
