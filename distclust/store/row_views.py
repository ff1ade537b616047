"""Rows seen differently on their way into a store: some left out, recoded or renumbered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import InputError
from distclust.store.layouts.csr import trusted_csr
from distclust.store.matrix import Block
from distclust.store.rows import Rows, RowSource

Array = npt.NDArray[Any]
Positions = npt.NDArray[np.int64]


def join_values(parts: Sequence[Block], dtype: np.dtype[Any]) -> Block:
    """Return blocks one below the other, all of the given type."""
    if len(parts) == 1 and parts[0].dtype == dtype:
        return parts[0]
    if not scipy.sparse.issparse(parts[0]):
        return np.concatenate([np.asarray(part) for part in parts], dtype=dtype)
    csrs: list[Any] = list(parts)
    data = np.concatenate([part.data for part in csrs], dtype=dtype)
    indices = np.concatenate([part.indices for part in csrs])
    lengths = np.concatenate([np.diff(part.indptr) for part in csrs])
    return _csr(data, indices, lengths, csrs[0].shape[1])


def keep_values(values: Block, is_kept: npt.NDArray[np.bool_]) -> Block:
    """Return the rows of a block that are kept, in their order."""
    if not scipy.sparse.issparse(values):
        return np.asarray(values)[is_kept]
    csr: Any = values
    lengths = np.diff(csr.indptr)
    is_inside = np.repeat(is_kept, lengths)
    return _csr(csr.data[is_inside], csr.indices[is_inside], lengths[is_kept], csr.shape[1])


def _csr(data: Array, indices: Array, lengths: Array, n_features: int) -> Block:
    indptr = begins(lengths, indices.dtype)
    return trusted_csr(data, indices.astype(indptr.dtype, copy=False), indptr, n_features)


def begins(lengths: Array, dtype: np.dtype[Any]) -> Array:
    """Return where rows begin and the last one ends, shape (n_rows + 1,).

    Of the given type of whole numbers, or int64 if it cannot count all values.
    """
    is_enough = lengths.sum(dtype=np.int64) <= np.iinfo(dtype).max
    indptr = np.zeros(len(lengths) + 1, dtype if is_enough else np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return indptr


def join_rows(parts: Sequence[Rows], dtype: np.dtype[Any]) -> Rows:
    """Return ranges of rows one below the other."""
    if len(parts) == 1:
        return parts[0]
    return Rows(
        join_values([part.values for part in parts], dtype),
        np.concatenate([part.ids for part in parts]),
        {name: np.concatenate([part.obs[name] for part in parts]) for name in parts[0].obs},
    )


def live_mask(dropped: Positions, start: int, stop: int) -> npt.NDArray[np.bool_]:
    """Whether the positions ``[start, stop)`` are not among the dropped ones, ascending."""
    low, high = np.searchsorted(dropped, (start, stop))
    is_kept = np.ones(stop - start, np.bool_)
    is_kept[dropped[low:high] - start] = False
    return is_kept


class _View:
    """Rows of another source; what a view does not change is as it was."""

    def __init__(self, rows: RowSource) -> None:
        self._rows = rows

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self._rows.n_rows

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self._rows.n_features

    @property
    def is_sparse(self) -> bool:
        """Whether `read` gives sparse values."""
        return self._rows.is_sparse

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return self._rows.dtype


class KeptRows(_View):
    """Rows of a source without those at some positions.

    Parameters
    ----------
    rows
        Where the rows come from.
    dropped
        Sorted positions of rows to leave out, shape (n_dropped,).
    """

    def __init__(self, rows: RowSource, dropped: Positions) -> None:
        super().__init__(rows)
        self._dropped = dropped
        # kept rows before each dropped one; ascending
        self._kept_before = dropped - np.arange(len(dropped))

    @property
    def n_rows(self) -> int:
        """Number of rows that are left."""
        return self._rows.n_rows - len(self._dropped)

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)`` of those that are left."""
        if start == stop:
            return self._rows.read(0, 0)
        first, last = (self._position(kept) for kept in (start, stop - 1))
        return join_rows(list(self._ranges(first, last + 1, stop - start)), self.dtype)

    def _position(self, kept: int) -> int:
        return kept + int(np.searchsorted(self._kept_before, kept, side="right"))

    def _ranges(self, first: int, end: int, step: int) -> Iterator[Rows]:
        """Kept rows of source positions ``[first, end)``, of which `step` are kept.

        No more than that are read at a time: many may be left out between them.
        """
        for start in range(first, end, step):
            stop = min(start + step, end)
            is_kept = live_mask(self._dropped, start, stop)
            if is_kept.any():
                yield keep_rows(self._rows.read(start, stop), is_kept)


def keep_rows(rows: Rows, is_kept: npt.NDArray[np.bool_]) -> Rows:
    """Return the rows that are kept, in their order."""
    if is_kept.all():
        return rows
    obs = {name: column[is_kept] for name, column in rows.obs.items()}
    return Rows(keep_values(rows.values, is_kept), rows.ids[is_kept], obs)


class RecodedRows(_View):
    """Rows whose categories get other codes.

    Parameters
    ----------
    rows
        Dense rows.
    codes
        Column number to the new code of every old one, see `recode_levels`.
    """

    def __init__(self, rows: RowSource, codes: Mapping[int, Array]) -> None:
        super().__init__(rows)
        self._codes = codes
        if rows.is_sparse:
            got = "categories in sparse rows"
            raise InputError("rows", "levels in the order of the store", got, "Pass dense rows.")

    @property
    def dtype(self) -> np.dtype[Any]:
        """A type that holds the new codes as well."""
        largest = max(int(codes.max(initial=0)) for codes in self._codes.values())
        return np.promote_types(self._rows.dtype, np.min_scalar_type(largest))

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)`` with new codes."""
        rows = self._rows.read(start, stop)
        values = np.asarray(rows.values).astype(self.dtype)  # a copy
        for column, codes in self._codes.items():
            is_known = ~np.isnan(values[:, column])
            values[is_known, column] = codes[values[is_known, column].astype(np.int64)]
        return Rows(values, rows.ids, rows.obs)


class NumberedRows(_View):
    """Rows without ids of their own, numbered on from some number."""

    def __init__(self, rows: RowSource, first_id: int) -> None:
        super().__init__(rows)
        self._first_id = first_id
        if first_id + rows.n_rows > 2**63:
            hint = "Give the rows ids of their own."
            raise InputError("rows", "free numbers as ids", f"{first_id} as the next one", hint)

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)`` with their numbers as ids."""
        rows = self._rows.read(start, stop)
        return Rows(rows.values, np.arange(start, stop) + self._first_id, rows.obs)
