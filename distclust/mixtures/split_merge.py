r"""Splitting and merging whole clusters, which single rows moving one by one rarely do.

Two rows are drawn, as often from one cluster as from two. If they share a cluster, it is
proposed to split it in two, one row in each; otherwise, to merge their clusters (Jain and
Neal). The other members :math:`S` are first brought to a *launch*: they join the two rows one
after another, then choose again some times, each with the probabilities of the urn restricted
to the two. From the launch a final scan of choices makes the split, with the product of their
probabilities for q; in a merge the final scan is made to end at the present clusters, to learn
its q. A split is accepted with

.. math:: \min\{1, \frac{p(z^*, X)}{p(z, X)} \frac{1}{q} \frac{d(z^*)}{d(z)}\},

a merge with the inverse; d is the probability of drawing the two rows. The launch does not
look at how S is divided at present, and a proposal is made with a probability that follows
from the size of S alone, so both directions do alike; that bounds the cost.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Labels = npt.NDArray[np.int32]

PROPOSALS = 4  # a sweep

_SMALL_GROUP = 100
_SHARE = 30  # proposals visit about one in so many rows, once each scan
_SCANS = 3  # that make the launch


class Pairs(ABC):
    """What splitting needs of an urn: two clusters at a time."""

    weights: Floats

    @abstractmethod
    def visit_two(
        self, order: Integers, uniforms: Floats, forced: Labels, labels: Labels, stats: Floats
    ) -> float:
        """Let rows choose between clusters 0 and 1; return the log probability of it all.

        Labels (-1: nowhere yet) and statistics are changed in place. With `forced` the
        choices are given.
        """

    @abstractmethod
    def log_marginal(self, stats: Floats) -> Floats:
        """Return log f of groups."""

    @abstractmethod
    def add(self, stats: Floats, group: int, row: int) -> None:
        """Add a row, as many times as it counts, to the statistics of a group."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Clusters and their statistics, shape (capacity, p), of which the first K are in use."""

    labels: Labels
    statistics: Floats
    n_clusters: int


def split_or_merge(
    urn: Pairs, found: Partition, concentration: float, generator: np.random.Generator
) -> tuple[Partition, bool, bool]:
    """Return the next partition, whether something was proposed, and whether it was accepted.

    Arrays of `found` may be written over.
    """
    drawn = _two_rows(found, generator)
    if drawn is None:
        return found, False, False
    i, j = drawn
    n_rows = len(found.labels)
    a, b = int(found.labels[i]), int(found.labels[j])
    others = np.flatnonzero((found.labels == a) | (found.labels == b))
    others = others[(others != i) & (others != j)]
    if generator.random() * len(others) > max(_SMALL_GROUP, n_rows // _SHARE):
        return found, False, False
    others = generator.permutation(others)
    labels, stats = _launch(urn, i, j, others, found, generator)
    forced = np.empty(0, np.int32) if a == b else (found.labels[others] == b).astype(np.int32)
    log_q = urn.visit_two(others, generator.random(len(others)), forced, labels, stats)
    both = stats[0] + stats[1]
    gain = _gain(urn, stats[0], stats[1], both, concentration) - log_q
    n_first = 1 + int(np.count_nonzero(labels[others] == 0))
    n_joined = found.n_clusters if a == b else found.n_clusters - 1
    gain += _log_draw_ratio(n_rows, len(others) + 2, n_first, n_joined)
    chance = gain if a == b else -gain
    if not math.log(1.0 - generator.random()) < chance:
        return found, True, False
    if a == b:
        second = np.append(others[labels[others] == 1], j)
        return _split(found, a, second, stats), True, True
    return _merged(found, a, b, both), True, True


def _two_rows(found: Partition, generator: np.random.Generator) -> tuple[int, int] | None:
    """Draw a row, then another of its cluster or of another one; None if there is none."""
    i = int(generator.integers(len(found.labels)))
    shares = found.labels == found.labels[i]
    if found.n_clusters > 1 and generator.random() < 0.5:
        others = np.flatnonzero(~shares)
    else:
        others = np.flatnonzero(shares)
        others = others[others != i]
    return (i, int(generator.choice(others))) if len(others) else None


def _log_draw_ratio(n_rows: int, n_both: int, n_first: int, n_joined: int) -> float:
    """Return log of how likely two rows are drawn when split, relative to when together.

    Parameters
    ----------
    n_rows
        All rows.
    n_both, n_first
        Rows of the two clusters, and of the one with the row that is drawn first.
    n_joined
        Clusters when the two are one.
    """
    chance_together = 1.0 if n_joined == 1 else 0.5
    return math.log(0.5 * (n_both - 1) / ((n_rows - n_first) * chance_together))


def _launch(
    urn: Pairs,
    i: int,
    j: int,
    others: Integers,
    found: Partition,
    generator: np.random.Generator,
) -> tuple[Labels, Floats]:
    labels = np.full(len(found.labels), -1, np.int32)
    stats = np.zeros((2, found.statistics.shape[1]))
    labels[i], labels[j] = 0, 1
    urn.add(stats, 0, i)
    urn.add(stats, 1, j)
    free = np.empty(0, np.int32)
    for _ in range(_SCANS):
        urn.visit_two(others, generator.random(len(others)), free, labels, stats)
    return labels, stats


def _gain(urn: Pairs, first: Floats, second: Floats, both: Floats, concentration: float) -> float:
    """Return log p(z, X) with two clusters less that with one."""
    one, two, joined = urn.log_marginal(np.stack([first, second, both])).tolist()
    sizes = math.lgamma(first[0]) + math.lgamma(second[0]) - math.lgamma(both[0])
    return float(math.log(concentration) + sizes + one + two - joined)


def _split(found: Partition, a: int, second: Integers, stats: Floats) -> Partition:
    last = found.n_clusters
    statistics = with_room(found.statistics, last + 1)
    statistics[a], statistics[last] = stats[0], stats[1]
    found.labels[second] = last
    return Partition(found.labels, statistics, last + 1)


def _merged(found: Partition, a: int, b: int, both: Floats) -> Partition:
    """Join b to a; the last cluster takes the place of b."""
    labels, statistics, last = found.labels, found.statistics, found.n_clusters - 1
    statistics[a] = both
    labels[labels == b] = a
    if b != last:
        statistics[b] = statistics[last]
        labels[labels == last] = b
    statistics[last] = 0.0
    return Partition(labels, statistics, last)


def with_room(statistics: Floats, n_clusters: int) -> Floats:
    """Return statistics with places for so many clusters and one more, twice as many if grown."""
    if n_clusters < len(statistics):
        return statistics
    grown = np.zeros((capacity(2 * n_clusters), statistics.shape[1]))
    grown[: len(statistics)] = statistics
    return grown


def capacity(n_clusters: int) -> int:
    """Return how many places there are for so many clusters: more, in full vectors."""
    return (n_clusters // 8 + 1) * 8
