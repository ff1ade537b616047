"""Where chains start: partitions that differ from chain to chain.

Chains that start alike may agree for the wrong reason. ``"mixed"`` gives chain 0 groups that
the family itself finds, chain 1 a single cluster, chain 2 random groups and chain 3 as many
clusters as there are rows (many groups where that would take too long), then again from the
first.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.families import Family

Labels = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

STARTS = ("mixed", "single", "singletons", "groups", "kmeans")

_IN_TURN = ("kmeans", "single", "groups", "singletons")
_MOST_SINGLETONS = 1000  # a first sweep visits as many clusters as rows, for each row
_GROUPS = 10
_MANY_GROUPS = 50
_ROUNDS = 3


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
        "mixed": these in turn.
    chain
        Number of the chain.
    rows, family, weights
        The data; only "kmeans" looks at them.
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
    return _found_groups(rows, family, min(n_found, n_rows), generator, weights)


def compact(labels: npt.NDArray[Any]) -> Labels:
    """Return labels 0 to K - 1 in the order of the old ones."""
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def _found_groups(
    rows: Any,
    family: Family,
    n_groups: int,
    generator: np.random.Generator,
    weights: Floats | None,
) -> Labels:
    """Groups around rows chosen at random, then around the groups, as k-means does."""
    seeds = np.sort(generator.choice(rows.shape[0], n_groups, replace=False))
    stats = family.accumulate(rows[seeds], np.arange(n_groups), n_groups)
    labels = np.zeros(rows.shape[0], np.int32)
    for _ in range(_ROUNDS):
        labels = compact(np.argmax(family.log_predictive(rows, stats), axis=1))
        stats = family.accumulate(rows, labels, int(labels.max()) + 1, weights)
    return labels
