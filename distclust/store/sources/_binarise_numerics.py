"""Compiled passes over the values of some rows, given as values and their columns.

Dense rows list all their values, sparse ones those that are not zero; missing values (NaN)
are passed over. So sparse and dense rows give the same sums: zeros add nothing to them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

Array = npt.NDArray[Any]


@compiled
def add_sums(
    data: Array, columns: Array, counts: Array, sums: Array, low: Array, high: Array
) -> None:
    """Add to the facts of every column.

    counts[0] and counts[1] are the numbers of all and of negative values, sums[0] + sums[1]
    the sum (the second makes up for what the first has lost), low and high the bounds.
    """
    for k in range(data.shape[0]):
        value = data[k]
        if math.isnan(value):
            continue
        j = columns[k]
        counts[0, j] += 1
        counts[1, j] += value < 0.0
        low[j] = min(low[j], value)
        high[j] = max(high[j], value)
        total = sums[0, j] + value
        if abs(sums[0, j]) >= abs(value):
            sums[1, j] += (sums[0, j] - total) + value
        else:
            sums[1, j] += (value - total) + sums[0, j]
        sums[0, j] = total


@compiled
def add_powers(data: Array, columns: Array, mean: Array, scale: Array, powers: Array) -> None:
    """Add ((x - mean) / scale) squared and cubed to powers[0] and powers[1]."""
    for k in range(data.shape[0]):
        if math.isnan(data[k]):
            continue
        j = columns[k]
        deviation = (data[k] - mean[j]) / scale[j]
        powers[0, j] += deviation * deviation
        powers[1, j] += deviation * deviation * deviation


@compiled
def row_means(data: Array, indptr: Array, n_features: int, is_sparse: bool, out: Array) -> None:
    """out[i] = mean of row i, whose values are data[indptr[i]:indptr[i + 1]].

    The mean lies between the smallest and the largest value, which rounding would not
    ensure: no value of a row of equal ones exceeds it.
    """
    for i in range(out.shape[0]):
        n_values, total, lost = 0, 0.0, 0.0
        low, high = math.inf, -math.inf
        if is_sparse and indptr[i + 1] - indptr[i] < n_features:
            low, high = 0.0, 0.0
            n_values = n_features - (indptr[i + 1] - indptr[i])
        for k in range(indptr[i], indptr[i + 1]):
            value = data[k]
            if math.isnan(value):
                continue
            n_values += 1
            low, high = min(low, value), max(high, value)
            longer = total + value
            if abs(total) >= abs(value):
                lost += (total - longer) + value
            else:
                lost += (value - longer) + total
            total = longer
        out[i] = min(max((total + lost) / n_values, low), high) if n_values > 0 else 0.0


@compiled
def count_bins(
    keys: Array, columns: Array, prefixes: Array, shift: int, n_bits: int, counts: Array
) -> None:
    """counts[t, j, b] += keys of column j whose leading bits are prefixes[t, j], then b.

    b are the `n_bits` bits above the lowest `shift` ones; what is above them is the prefix.
    """
    mask = np.uint64((1 << n_bits) - 1)
    lower, upper = np.uint64(shift), np.uint64(shift + n_bits)
    has_prefix = shift + n_bits < 64
    for k in range(keys.shape[0]):
        j = columns[k]
        prefix = keys[k] >> upper if has_prefix else np.uint64(0)
        b = (keys[k] >> lower) & mask
        for t in range(prefixes.shape[0]):
            if prefix == prefixes[t, j]:
                counts[t, j, b] += 1


@compiled
def matches(keys: Array, columns: Array, prefixes: Array, shift: int, out: Array) -> None:
    """out[k] = whether key k begins with one of its column's prefixes, above `shift` bits."""
    has_prefix = shift < 64
    lower = np.uint64(shift)
    for k in range(keys.shape[0]):
        prefix = keys[k] >> lower if has_prefix else np.uint64(0)
        for t in range(prefixes.shape[0]):
            out[k] |= prefix == prefixes[t, columns[k]]
