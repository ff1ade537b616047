"""Rose trees: groups without inner structure become one node with many children.

python examples/rose_tree.py
"""

from __future__ import annotations

import numpy as np
from rich import print as rich_print

from distclust import BHC, BayesianRoseTree


def nested_groups(seed: int = 1) -> np.ndarray:
    """Make yes-no answers of three groups; the first two share half of their answers."""
    rng = np.random.default_rng(seed)
    shared = np.array([0.95] * 8 + [0.05] * 8)
    chances = [
        np.concatenate([shared, [0.9] * 8, [0.1] * 8]),
        np.concatenate([shared, [0.1] * 8, [0.9] * 8]),
        np.concatenate([1 - shared, [0.5] * 16]),
    ]
    return np.concatenate([rng.random((8, 32)) < chance for chance in chances])


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
