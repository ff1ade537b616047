"""Posteriors of Dirichlet-process mixtures by looking at all partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from tests.oracles.partitions import Labels, canonical, log_restaurant, set_partitions

LogMarginal = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Mixture:
    """Rows, how probable they are together as one group, and how many times each counts."""

    rows: np.ndarray
    log_marginal: LogMarginal
    concentration: float
    weights: np.ndarray | None = None

    def log_joint(self, labels: Iterable[int]) -> float:
        """log p(z, X) of the rows with all their copies written out."""
        counts = np.ones(len(self.rows), int) if self.weights is None else self.weights.astype(int)
        rows = np.repeat(self.rows, counts, axis=0)
        z = np.repeat(np.asarray(list(labels)), counts)
        total = log_restaurant(z.tolist(), self.concentration)
        return total + sum(self.log_marginal(rows[z == k]) for k in np.unique(z))

    def posterior(self) -> dict[Labels, float]:
        partitions = list(set_partitions(len(self.rows)))
        logs = np.array([self.log_joint(labels) for labels in partitions])
        weights = np.exp(logs - logs.max())
        return dict(zip(partitions, weights / weights.sum(), strict=True))

    def log_choices(self, labels: np.ndarray, row: int) -> np.ndarray:
        """Conditional log probabilities of the label of a row: clusters, then a new one.

        Clusters are 0 to K - 1; a row that is alone finds the new one in its place.
        """
        alone = np.sum(labels == labels[row]) == 1
        n_clusters = int(labels.max()) + 1
        logs = []
        for label in range(n_clusters + (not alone)):
            changed = labels.copy()
            changed[row] = label
            logs.append(self.log_joint(changed))
        found = np.array(logs)
        return found - np.logaddexp.reduce(found)


def frequencies(visited: Iterable[Iterable[int]]) -> dict[Labels, float]:
    counts = Counter(canonical(list(labels)) for labels in visited)
    total = sum(counts.values())
    return {labels: count / total for labels, count in counts.items()}


def total_variation(a: dict[Labels, float], b: dict[Labels, float]) -> float:
    return 0.5 * sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in {*a, *b})


def together(distribution: dict[Labels, float]) -> np.ndarray:
    """Probability that two items share a cluster, shape (n, n)."""
    size = len(next(iter(distribution)))
    pairs = np.zeros((size, size))
    for labels, weight in distribution.items():
        z = np.array(labels)
        pairs += weight * (z[:, None] == z[None, :])
    return pairs
