"""Rose trees: groups without inner structure become one node with many children.

python examples/rose_tree.py
"""

from __future__ import annotations

import numpy as np
from rich import print as rich_print

from distclust import BHC, BayesianRoseTree


def nested_groups(seed: int = 1) -> np.ndarray:
    """Make three groups of real-valued rows; the first two lie close together."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [4.0, 0.0], [20.0, 15.0]])
    return np.concatenate([centre + rng.normal(size=(12, 2)) for centre in centres])


def main() -> None:
    """Fit both kinds of tree and compare what they say."""
    rows = nested_groups()
    for model in (BHC(), BayesianRoseTree()):
        model.fit(rows)
        widest = int(model.tree_.structure.n_children.max())
        rich_print(model.tree_)
        print(f"{type(model).__name__}: log evidence {model.log_evidence_:.2f}")
        print(f"  up to {widest} children; 10^{model.tree_.log10_n_partitions:.1f} partitions\n")


if __name__ == "__main__":
    main()
