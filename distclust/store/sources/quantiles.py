"""Exact order statistics of the columns of any number of rows, in bounded memory.

Numbers are mapped to whole numbers of 64 bits in the same order. One pass over the rows
counts them by their leading bits, which tells in which group the wanted one lies; the next
pass counts only that group by the bits that follow. As soon as the groups that are left fit
in memory they are gathered and sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.store.sources.entries import read_entries, row_ranges

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper
    from distclust.store.rows import RowSource

Array: TypeAlias = npt.NDArray[Any]

_GATHERED = 2**23  # values that are sorted in memory
_COUNTERS = 2**22  # of 8 bytes
_SIGN = np.uint64(1 << 63)


def order_statistics(
    rows: RowSource, ranks: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], mapper: Mapper
) -> npt.NDArray[np.float64]:
    """Return the entries of some ranks in every column, missing ones not counted.

    Parameters
    ----------
    rows
        Where the values come from. Zeros that sparse rows do not list have no rank.
    ranks
        From 0, shape (n_ranks, n_features).
    counts
        Entries of every column, shape (n_features,); columns without any get 0.
    mapper
        Where the passes run.
    """
    ranks = np.clip(ranks, 0, np.maximum(counts - 1, 0))
    prefixes = np.zeros(ranks.shape, np.uint64)
    sizes = np.broadcast_to(counts, ranks.shape)
    shift = 64
    n_bits = int(np.clip(np.log2(_COUNTERS / max(ranks.size, 1)), 1, 16))
    while shift > 0 and sizes.sum() > _GATHERED:
        taken = min(n_bits, shift)
        shift -= taken
        found = reduce(add, mapper(_count, row_ranges(rows), rows, prefixes, shift, taken))
        prefixes, ranks, sizes = _enter(prefixes, ranks, found, taken)
    if shift > 0:
        parts = list(mapper(_gather, row_ranges(rows), rows, prefixes, shift))
        prefixes = _select(parts, prefixes, ranks, shift)
    return np.where(counts > 0, _numbers(prefixes), 0.0)


def _count(
    bounds: tuple[int, int], rows: RowSource, prefixes: Array, shift: int, n_bits: int
) -> Array:
    """Return how many entries with each prefix go on with each next group of bits."""
    from distclust.store.sources import _binarise_numerics as numerics

    counts = np.zeros((*prefixes.shape, 1 << n_bits), np.int64)
    for data, columns in read_entries(rows, bounds):
        keys, places = _present_keys(data, columns)
        numerics.count_bins(keys, places, prefixes, shift, n_bits, counts)
    return counts


def _enter(prefixes: Array, ranks: Array, counts: Array, n_bits: int) -> tuple[Array, Array, Array]:
    """Return the longer prefixes of the wanted entries, their ranks there, and the sizes."""
    ends = counts.cumsum(axis=2)
    chosen = np.minimum((ends <= ranks[:, :, None]).sum(axis=2), counts.shape[2] - 1)
    sizes = np.take_along_axis(counts, chosen[:, :, None], axis=2)[:, :, 0]
    before = np.take_along_axis(ends, chosen[:, :, None], axis=2)[:, :, 0] - sizes
    longer = (prefixes << np.uint64(n_bits)) | chosen.astype(np.uint64)
    return longer, np.maximum(ranks - before, 0), sizes


def _gather(
    bounds: tuple[int, int], rows: RowSource, prefixes: Array, shift: int
) -> tuple[Array, Array]:
    """Return the keys that begin with a prefix of their column, and their columns."""
    from distclust.store.sources import _binarise_numerics as numerics

    found = []
    for data, columns in read_entries(rows, bounds):
        keys, places = _present_keys(data, columns)
        is_wanted = np.zeros(len(keys), np.bool_)
        numerics.matches(keys, places, prefixes, shift, is_wanted)
        found.append((keys[is_wanted], places[is_wanted]))
    keys, places = map(np.concatenate, zip(*found, strict=True))
    return keys, places


def _select(
    parts: Sequence[tuple[Array, Array]], prefixes: Array, ranks: Array, shift: int
) -> Array:
    """Return the key of each rank among those that begin with its prefix."""
    keys, columns = map(np.concatenate, zip(*parts, strict=True))
    order = np.lexsort((keys, columns))
    keys, columns = keys[order], columns[order]
    ends = np.searchsorted(columns, np.arange(prefixes.shape[1] + 1))
    chosen = np.zeros(prefixes.shape, np.uint64)
    for t, j in np.ndindex(prefixes.shape):
        inside = keys[ends[j] : ends[j + 1]]
        lowest = prefixes[t, j] << np.uint64(shift) if shift < 64 else np.uint64(0)
        if len(inside):
            chosen[t, j] = inside[np.searchsorted(inside, lowest) + ranks[t, j]]
    return chosen


def _present_keys(data: Array, columns: Array) -> tuple[Array, Array]:
    """Return entries that are not missing as whole numbers in the same order."""
    is_present = ~np.isnan(data)
    if not is_present.all():
        data, columns = data[is_present], columns[is_present]
    bits = (data + 0.0).view(np.uint64)  # there is one zero only
    return np.where(bits & _SIGN, ~bits, bits | _SIGN), columns


def _numbers(keys: Array) -> npt.NDArray[np.float64]:
    bits: Array = np.where(keys & _SIGN, keys ^ _SIGN, ~keys)
    return bits.view(np.float64)
