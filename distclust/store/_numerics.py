"""Compiled passes over one block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

Array = npt.NDArray[Any]


@compiled
def _empty_facts(n_features: int) -> tuple[Array, Array, Array, Array, Array, Array]:
    return (
        np.zeros(n_features, np.int64),  # missing
        np.zeros(n_features, np.int64),  # not zero
        np.full(n_features, np.inf),  # minimum
        np.full(n_features, -np.inf),  # maximum
        np.ones(n_features, np.bool_),  # whole numbers only
        np.zeros(n_features, np.bool_),  # infinite values
    )


@compiled
def profile_dense(block: Array) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Facts about every column of a dense float64 block, shape (rows, n_features)."""
    missing, nonzero, low, high, integer, infinite = _empty_facts(block.shape[1])
    for i in range(block.shape[0]):
        for j in range(block.shape[1]):
            value = block[i, j]
            if math.isnan(value):
                missing[j] += 1
                continue
            nonzero[j] += value != 0.0
            low[j] = min(low[j], value)
            high[j] = max(high[j], value)
            is_infinite = math.isinf(value)
            infinite[j] |= is_infinite
            # floor of an infinity has no integer type without the JIT
            integer[j] &= (not is_infinite) and value == np.floor(value)
    return missing, nonzero, low, high, integer, infinite


@compiled
def profile_bytes(block: Array, low: Array, high: Array, nonzero: Array) -> None:
    """Lower `low`, raise `high` and count what is not zero, for a block of bytes.

    All three have shape (n_features,) and narrow types, so that many columns go at once.
    """
    for i in range(block.shape[0]):
        row = block[i]
        for j in range(block.shape[1]):
            low[j] = min(low[j], row[j])
            high[j] = max(high[j], row[j])
            nonzero[j] += np.int32(row[j] != 0)


@compiled
def profile_csr(
    data: Array, indices: Array, n_rows: int, n_features: int
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Facts about every column of a canonical CSR block, implicit zeros included."""
    missing, nonzero, low, high, integer, infinite = _empty_facts(n_features)
    for k in range(data.shape[0]):
        j = indices[k]
        value = data[k]
        nonzero[j] += 1
        low[j] = min(low[j], value)
        high[j] = max(high[j], value)
        is_infinite = math.isinf(value)
        infinite[j] |= is_infinite
        integer[j] &= (not is_infinite) and value == np.floor(value)
    for j in range(n_features):
        if nonzero[j] < n_rows:
            low[j] = min(low[j], 0.0)
            high[j] = max(high[j], 0.0)
    return missing, nonzero, low, high, integer, infinite
