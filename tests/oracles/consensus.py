"""Partitions compared by their definitions: all pairs, all cells, all partitions; R-hat by loops.

Partitions are sequences of labels. Nothing here shares code with the package.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

Partition = Sequence[int]


def all_partitions(n: int) -> Iterator[tuple[int, ...]]:
    """Yield all partitions of n items, as labels by first appearance."""
    if n == 0:
        yield ()
        return
    for shorter in all_partitions(n - 1):
        for label in range(max(shorter, default=-1) + 2):
            yield (*shorter, label)


# ---- losses -------------------------------------------------------------------------------------


def variation_of_information(c: Partition, z: Partition) -> float:
    """Return VI in bits, as a mean over items of the sizes of their clusters."""
    total = 0.0
    for i in range(len(c)):
        mine = {j for j in range(len(c)) if c[j] == c[i]}
        other = {j for j in range(len(z)) if z[j] == z[i]}
        total += math.log2(len(mine)) + math.log2(len(other)) - 2 * math.log2(len(mine & other))
    return total / len(c)


def binder(c: Partition, z: Partition) -> float:
    """Return the share of pairs that are together in one partition and apart in the other."""
    pairs = list(itertools.combinations(range(len(c)), 2))
    if not pairs:
        return 0.0
    return sum((c[i] == c[j]) != (z[i] == z[j]) for i, j in pairs) / len(pairs)


LOSSES: dict[str, Callable[[Partition, Partition], float]] = {
    "vi": variation_of_information,
    "binder": binder,
}


def expected_loss(
    c: Partition,
    draws: Sequence[Partition],
    loss: str,
    draw_weights: Sequence[float] | None = None,
) -> float:
    weights = draw_weights if draw_weights is not None else [1.0] * len(draws)
    losses = [LOSSES[loss](c, z) for z in draws]
    return math.fsum(w * x for w, x in zip(weights, losses, strict=True)) / math.fsum(weights)


def least_loss(
    draws: Sequence[Partition], loss: str, draw_weights: Sequence[float] | None = None
) -> tuple[float, set[tuple[int, ...]]]:
    """Return the least expected loss over all partitions, and which have it."""
    losses = {c: expected_loss(c, draws, loss, draw_weights) for c in all_partitions(len(draws[0]))}
    least = min(losses.values())
    return least, {c for c, value in losses.items() if value < least + 1e-9}


def posterior(rows: Sequence[float], concentration: float) -> dict[tuple[int, ...], float]:
    """Return the exact posterior of partitions under a Dirichlet process mixture.

    Clusters are normal with variance 1, their means normal with variance 4.
    """
    logs = {}
    for z in all_partitions(len(rows)):
        sizes = Counter(z)
        value = sum(math.log(concentration) + math.lgamma(n) for n in sizes.values())
        for k in sizes:
            x = np.array([row for row, label in zip(rows, z, strict=True) if label == k])
            covariance = np.eye(len(x)) + 4.0
            sign, log_determinant = np.linalg.slogdet(covariance)
            assert sign > 0
            value -= 0.5 * (x @ np.linalg.solve(covariance, x) + log_determinant)
        logs[z] = value
    top = max(logs.values())
    total = sum(math.exp(value - top) for value in logs.values())
    return {z: math.exp(value - top) / total for z, value in logs.items()}


# ---- similarity ---------------------------------------------------------------------------------


def coassociation(first: Sequence[int], second: Sequence[int]) -> tuple[int, int]:
    """Return in how many bases two rows agree, and in how many both have labels."""
    both = [(a, b) for a, b in zip(first, second, strict=True) if a != -1 and b != -1]
    return sum(a == b for a, b in both), len(both)


def neighbours(labels: Sequence[Sequence[int]], row: int, k: int) -> dict[int, float]:
    """Return the k rows most similar to one, the lowest of equal ones, without zeros."""
    found = []
    for other in range(len(labels)):
        agreed, observed = coassociation(labels[row], labels[other])
        if other != row and agreed:
            found.append((-agreed / observed, other))
    return {other: -value for value, other in sorted(found)[:k]}


def confidence(c: Partition, draws: Sequence[Partition], row: int) -> float:
    """Return the mean share of draws in which a row lies with the others of its cluster."""
    others = [j for j in range(len(c)) if c[j] == c[row] and j != row]
    if not others:
        return statistics.mean(float(z.count(z[row]) == 1) for z in map(list, draws))
    return statistics.mean(float(z[j] == z[row]) for z in draws for j in others)


# ---- diagnostics --------------------------------------------------------------------------------


def plain_rhat(chains: Sequence[Sequence[float]]) -> float:
    """Return R-hat of chains as they are (Gelman and others, Bayesian Data Analysis)."""
    n = len(chains[0])
    within = statistics.mean(statistics.variance(chain) for chain in chains)
    between = n * statistics.variance(statistics.mean(chain) for chain in chains)
    return math.sqrt(((n - 1) / n * within + between / n) / within)


def halves(chains: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the halves of all chains; the middle draw of an odd number is left out."""
    half = len(chains[0]) // 2
    return [list(part) for chain in chains for part in (chain[:half], chain[-half:])]


def normal_scores(chains: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return normal quantiles of average ranks among all chains (Blom's offset of 3/8)."""
    flat = sorted(itertools.chain.from_iterable(chains))
    ranks: dict[float, float] = {}
    for value, group in itertools.groupby(enumerate(flat, start=1), key=lambda pair: pair[1]):
        ranks[value] = statistics.mean(rank for rank, _ in group)
    quantile = statistics.NormalDist().inv_cdf
    return [[quantile((ranks[x] - 0.375) / (len(flat) + 0.25)) for x in chain] for chain in chains]


def rank_rhat(chains: Sequence[Sequence[float]]) -> float:
    """Return the rank-normalised split R-hat, of places and of spreads (Vehtari et al., 2021)."""
    split = halves(chains)
    middle = statistics.median(itertools.chain.from_iterable(split))
    folded = [[abs(x - middle) for x in chain] for chain in split]
    return max(plain_rhat(normal_scores(split)), plain_rhat(normal_scores(folded)))
