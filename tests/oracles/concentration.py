"""Slow answers about concentrations: quadrature, urns row by row, all partitions.

Ratios of Gamma functions are written out as products; none is taken from the package.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy import integrate, special, stats


def log_likelihood(value: np.ndarray, n_clusters: int, n_rows: int) -> np.ndarray:
    """K log a - sum of log(a + i): the part of the partition's probability that a changes."""
    value = np.asarray(value, dtype=float)
    rows = np.arange(n_rows).reshape((-1,) + (1,) * value.ndim)
    return np.asarray(n_clusters * np.log(value) - np.log(value + rows).sum(axis=0))


def posterior_moments(
    n_clusters: int, n_rows: int, shape: float, rate: float
) -> tuple[float, float]:
    """Mean and variance by adaptive quadrature over the concentration itself."""

    def density(value: float) -> float:
        prior = (shape - 1) * math.log(value) - rate * value
        return math.exp(float(log_likelihood(np.array(value), n_clusters, n_rows)) + prior + shift)

    grid = np.logspace(-8, 4, 4000)
    logs = log_likelihood(grid, n_clusters, n_rows) + (shape - 1) * np.log(grid) - rate * grid
    shift, peak = -logs.max(), grid[logs.argmax()]
    pieces = [0.0, 0.1 * peak, peak, 3 * peak, 10 * peak, 1000 * peak + 100]

    def moment(power: int) -> float:
        return sum(
            integrate.quad(lambda a: a**power * density(a), low, high, limit=200)[0]
            for low, high in itertools.pairwise(pieces)
        )

    total, first, second = (moment(power) for power in range(3))
    return first / total, second / total - (first / total) ** 2


def posterior_quantiles(
    n_clusters: int, n_rows: int, shape: float, rate: float, levels: Sequence[float]
) -> np.ndarray:
    """Quantiles from a fine grid."""
    grid = np.linspace(1e-6, 20.0, 40_001)
    logs = log_likelihood(grid, n_clusters, n_rows) + stats.gamma.logpdf(grid, shape, 0, 1 / rate)
    mass = np.cumsum(np.exp(logs - logs.max()))
    return np.asarray(np.interp(np.asarray(levels) * mass[-1], mass, grid))


def set_partitions(n: int) -> Iterator[tuple[int, ...]]:
    """All partitions of n rows, as labels numbered by first appearance."""

    def grow(labels: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(labels) == n:
            yield labels
            return
        for label in range(max(labels, default=-1) + 2):
            yield from grow((*labels, label))

    return grow(())


def canonical(labels: Sequence[int]) -> tuple[int, ...]:
    """Labels numbered by first appearance."""
    names: dict[int, int] = {}
    return tuple(names.setdefault(int(label), len(names)) for label in labels)


def crp(labels: Sequence[int], value: float) -> float:
    """Probability of a partition, one row after another: Chinese restaurant process."""
    total = 1.0
    for i, label in enumerate(labels):
        same = list(labels[:i]).count(label)
        total *= (same if same else value) / (value + i)
    return total


def dma(labels: Sequence[int], value: float, n_components: int) -> float:
    """The same for a symmetric Dirichlet prior over so many components."""
    total, share = 1.0, value / n_components
    for i, label in enumerate(labels):
        same, seen = list(labels[:i]).count(label), len(set(labels[:i]))
        weight = share + same if same else share * (n_components - seen)
        total *= weight / (value + i)
    return total


def tdp(labels: Sequence[int], value: float, n_components: int) -> float:
    """The same for truncated sticks: the sum over all ways to name the clusters."""
    sizes = np.bincount(labels)
    total = 0.0
    for names in itertools.permutations(range(n_components), len(sizes)):
        counts = np.zeros(n_components)
        counts[list(names)] = sizes
        total += tdp_labels(counts, value)
    return total


def tdp_labels(counts: np.ndarray, value: float) -> float:
    """Probability of labels with so many rows in each component, sticks integrated out."""
    later = counts[::-1].cumsum()[::-1]
    sticks = special.beta(1 + counts[:-1], value + later[1:]) / special.beta(1, value)
    return float(np.prod(sticks))


def averaged(
    prior: Callable[[float], float], shape: float, rate: float, n_points: int = 60
) -> float:
    """The mean of a function of the concentration under its Gamma prior."""
    nodes, weights = special.roots_genlaguerre(n_points, shape - 1.0)
    values = [prior(node / rate) for node in nodes]
    return float(np.dot(weights, values) / special.gamma(shape))


def exact_posterior(
    n: int, prior: Callable[[tuple[int, ...]], float], log_marginal: Callable[[np.ndarray], float]
) -> dict[tuple[int, ...], float]:
    """Posterior of every partition; `log_marginal` takes the positions of a cluster."""
    joint = {}
    for labels in set_partitions(n):
        groups = [np.flatnonzero(np.equal(labels, k)) for k in range(max(labels) + 1)]
        joint[labels] = prior(labels) * math.exp(sum(log_marginal(group) for group in groups))
    total = sum(joint.values())
    return {labels: value / total for labels, value in joint.items()}


def total_variation(exact: dict[tuple[int, ...], float], draws: Sequence[tuple[int, ...]]) -> float:
    """Half the summed difference between probabilities and shares of the draws."""
    shares = dict.fromkeys(exact, 0.0)
    for draw in draws:
        shares[draw] += 1.0 / len(draws)
    return 0.5 * sum(abs(shares[labels] - exact[labels]) for labels in exact)
