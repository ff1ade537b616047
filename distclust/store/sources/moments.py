"""Means, skewness and percentiles of the columns of any number of rows.

Missing values are left out. Sums carry what rounding loses along, so that they are the same
for sparse and dense rows and wherever blocks are cut, but for the rarest of cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.store.sources.entries import read_entries, row_ranges
from distclust.store.sources.quantiles import order_statistics

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper
    from distclust.store.rows import RowSource

Array: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sums:
    """Facts about the entries of every column; those of parts add up.

    Attributes
    ----------
    counts
        Entries that are not missing, and negative ones among them, shape (2, n_features).
    sums
        Their sum, and what rounding has lost of it, shape (2, n_features).
    low, high
        Their bounds, shape (n_features,).
    """

    counts: Counts
    sums: Floats
    low: Floats
    high: Floats

    def __add__(self, other: Sums) -> Sums:
        a, b = self.sums[0], other.sums[0]
        total = a + b
        lost = (a - (total - (total - a))) + (b - (total - a))
        return Sums(
            self.counts + other.counts,
            np.stack([total, self.sums[1] + other.sums[1] + lost]),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )


@dataclass(frozen=True, eq=False)
class Moments:
    """What is known about the values of every column, shape (n_features,) each.

    Attributes
    ----------
    n_entries, n_negative
        Values that are listed and not missing, and negative ones among them.
    n_zeros
        Zeros that sparse rows do not list.
    mean, low, high
        Of all values; 0 where all are missing.
    """

    n_entries: Counts
    n_negative: Counts
    n_zeros: Counts
    mean: Floats
    low: Floats
    high: Floats

    @property
    def n_values(self) -> Counts:
        """Values that are not missing."""
        return self.n_entries + self.n_zeros


def column_moments(rows: RowSource, mapper: Mapper) -> Moments:
    """Return counts, means and bounds of all columns.

    A mean lies between the bounds, which rounding would not ensure: no value of a column
    of equal ones exceeds it.
    """
    sums = reduce(add, mapper(_sum_range, row_ranges(rows), rows, stage="means"))
    n_entries, n_negative = sums.counts
    n_zeros = rows.n_rows - n_entries if rows.is_sparse else np.zeros_like(n_entries)
    n_values = n_entries + n_zeros
    low = np.where(n_zeros > 0, np.minimum(sums.low, 0.0), sums.low)
    high = np.where(n_zeros > 0, np.maximum(sums.high, 0.0), sums.high)
    mean = np.clip(sums.sums.sum(axis=0) / np.maximum(n_values, 1), low, high)
    known = (np.where(n_values > 0, facts, 0.0) for facts in (mean, low, high))
    return Moments(n_entries, n_negative, n_zeros, *known)


def _sum_range(bounds: tuple[int, int], rows: RowSource) -> Sums:
    from distclust.store.sources import _binarise_numerics as numerics

    d = rows.n_features
    sums = Sums(
        np.zeros((2, d), np.int64), np.zeros((2, d)), np.full(d, np.inf), np.full(d, -np.inf)
    )
    for data, columns in read_entries(rows, bounds):
        numerics.add_sums(data, columns, sums.counts, sums.sums, sums.low, sums.high)
    return sums


def column_skewness(rows: RowSource, moments: Moments, mapper: Mapper) -> Floats:
    """Return the third standardised moment g1 of all columns; 0 for those that never vary."""
    spread = np.maximum(moments.high - moments.mean, moments.mean - moments.low)
    scale = np.where(spread > 0.0, spread, 1.0)  # powers of what is left cannot overflow
    parts = mapper(_power_range, row_ranges(rows), rows, moments.mean, scale, stage="skewness")
    zero = -moments.mean / scale
    powers = reduce(add, parts) + moments.n_zeros * np.stack([zero**2, zero**3])
    second, third = powers / np.maximum(moments.n_values, 1)
    skewness: Floats = third / np.where(second > 0.0, second, 1.0) ** 1.5
    return skewness


def _power_range(bounds: tuple[int, int], rows: RowSource, mean: Floats, scale: Floats) -> Floats:
    from distclust.store.sources import _binarise_numerics as numerics

    powers = np.zeros((2, rows.n_features))
    for data, columns in read_entries(rows, bounds):
        numerics.add_powers(data, columns, mean, scale, powers)
    return powers


def column_percentiles(
    rows: RowSource, percents: Floats, moments: Moments, mapper: Mapper
) -> Floats:
    """Return one percentile of each column, exact and interpolated as numpy does.

    Parameters
    ----------
    rows
        Where the values come from.
    percents
        From 0 to 100, shape (n_features,).
    moments
        Of the same rows.
    mapper
        Where the passes run.
    """
    last = np.maximum(moments.n_values - 1, 0)
    place = last * (percents / 100)
    below = np.floor(place).astype(np.int64)
    ranks = np.stack([below, np.minimum(below + 1, last)])
    # Zeros that are not listed lie after the negative entries.
    after_zeros = ranks - moments.n_zeros
    is_zero = (ranks >= moments.n_negative) & (after_zeros < moments.n_negative)
    listed = np.where(ranks < moments.n_negative, ranks, after_zeros)
    found = order_statistics(rows, listed, moments.n_entries, mapper)
    a, b = np.where(is_zero, 0.0, found)
    share = place - below
    interpolated: Floats = np.where(share < 0.5, a + (b - a) * share, b - (b - a) * (1 - share))
    return interpolated
