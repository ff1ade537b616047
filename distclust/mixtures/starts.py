"""Where chains start: partitions that differ from chain to chain.

Chains that start alike may agree for the wrong reason. ``"mixed"`` gives chain 0 groups that
the family itself finds and joins, chain 1 a single cluster, chain 2 random groups and chain 3
as many clusters as there are rows (many groups where that would take too long), then again from
the first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from distclust.errors import InputError
from distclust.families import Family

Labels = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

STARTS = ("mixed", "single", "singletons", "groups", "kmeans", "joined")

_IN_TURN = ("joined", "single", "groups", "singletons")
_MOST_SINGLETONS = 1000  # a first sweep visits as many clusters as rows, for each row
_GROUPS = 10
_MANY_GROUPS = 50
_ROUNDS = 3
_ROUNDING = 1e-9  # a gain below it may be none: a row that misses everything joins for nothing


def check_start(init: str, where: str) -> None:
    """Raise InputError unless there is such a start."""
    if init not in STARTS:
        expected = "one of " + ", ".join(repr(name) for name in STARTS)
        raise InputError(where, expected, repr(init), "The default is 'mixed'.")


def starting_labels(
    init: str,
    chain: int,
    rows: Any,
    family: Family,
    generator: np.random.Generator,
    weights: Floats | None = None,
) -> Labels:
    """Return the partition that a chain starts from, labels 0 to K - 1, all in use.

    Parameters
    ----------
    init
        "single": one cluster. "singletons": one a row. "groups": every row in one of at most
        ten groups at random. "kmeans": rows go to the one of some rows, then groups, under
        which they are most probable, three times; ten of them, of very many rows up to fifty.
        "joined": these groups, two by two put together as long as that makes the partition
        more probable. "mixed": four of these in turn.
    chain
        Number of the chain.
    rows, family, weights
        The data; only "kmeans" and "joined" look at them.
    generator
        Of the chain.
    """
    n_rows = int(rows.shape[0])
    # Too many groups are soon too few, by merging; too few stay so where clusters overlap.
    n_found = min(max(_GROUPS, math.isqrt(n_rows) // 3), _MANY_GROUPS)
    kind = init
    if init == "mixed":
        kind = _IN_TURN[chain % len(_IN_TURN)]
        if kind == "singletons" and n_rows > _MOST_SINGLETONS:
            kind, n_found = "kmeans", _MANY_GROUPS
    if kind == "single":
        return np.zeros(n_rows, np.int32)
    if kind == "singletons":
        return np.arange(n_rows, dtype=np.int32)
    if kind == "groups":
        return compact(generator.integers(min(_GROUPS, n_rows), size=n_rows))
    labels, statistics = _found_groups(rows, family, min(n_found, n_rows), generator, weights)
    return compact(_joined(family, statistics)[labels]) if kind == "joined" else labels


def compact(labels: npt.NDArray[Any]) -> Labels:
    """Return labels 0 to K - 1 in the order of the old ones."""
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def _found_groups(
    rows: Any,
    family: Family,
    n_groups: int,
    generator: np.random.Generator,
    weights: Floats | None,
) -> tuple[Labels, Floats]:
    """Groups around rows chosen at random, then around the groups, as k-means does.

    Returns labels and the statistics of the groups.
    """
    seeds = np.sort(generator.choice(rows.shape[0], n_groups, replace=False))
    stats = family.accumulate(rows[seeds], np.arange(n_groups), n_groups)
    labels = np.zeros(rows.shape[0], np.int32)
    for _ in range(_ROUNDS):
        labels = compact(np.argmax(family.log_predictive(rows, stats), axis=1))
        stats = family.accumulate(rows, labels, int(labels.max()) + 1, weights)
    return labels, stats


def _joined(family: Family, statistics: Floats) -> npt.NDArray[np.int64]:
    """Return the group, one of them, that each group is in after joining.

    Joins the two groups whose union raises log p(D, c) of a Dirichlet process with concentration
    one most, sum_k [log Gamma(n_k) + log f(D_k)], until no union raises it. A sampler joins
    clusters one proposal at a time, and its sweeps take as long as there are clusters.
    """
    stats = np.array(statistics)
    n_groups = len(stats)
    groups = np.arange(n_groups)
    own = family.log_marginal(stats) + gammaln(stats[:, 0])
    gains = np.full((n_groups, n_groups), -np.inf)
    for left in range(n_groups - 1):
        gains[left, left + 1 :] = _gains(family, stats, own, left, np.arange(left + 1, n_groups))
    while gains.max(initial=-np.inf) > _ROUNDING:
        left, right = divmod(int(np.argmax(gains)), n_groups)
        groups[groups == right] = left
        stats[left] += stats[right]
        own[left] = family.log_marginal(stats[[left]])[0] + gammaln(stats[left, 0])
        gains[right], gains[:, right] = -np.inf, -np.inf
        others = np.setdiff1d(groups, left)
        gains[np.minimum(left, others), np.maximum(left, others)] = _gains(
            family, stats, own, left, others
        )
    return groups


def _gains(family: Family, stats: Floats, own: Floats, left: int, others: Any) -> Floats:
    """What the unions of one group with others raise the log of the joint by."""
    together = family.log_marginal_pairs(stats, left, others)
    sizes = stats[left, 0] + stats[others, 0]
    return np.asarray(together + gammaln(sizes) - own[left] - own[others])
