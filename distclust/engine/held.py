"""Rows that are held in memory as a whole, by models that go over them again and again."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from distclust.store import Matrix
from distclust.store.objects import checksum

RowArray: TypeAlias = Any  # npt.NDArray[np.float64] | scipy.sparse.csr_array, (n_rows, features)


def is_sparse(rows: RowArray) -> bool:
    """Whether rows are a CSR matrix."""
    return bool(sp.issparse(rows))


def held_rows(matrix: Matrix) -> RowArray:
    """Return all rows as one array of float64, or as a CSR matrix of it."""
    rows: Any = matrix.read_all()
    if is_sparse(rows):
        return sp.csr_array(rows, dtype=np.float64)
    dense: npt.NDArray[np.float64] = np.ascontiguousarray(rows, np.float64)
    return dense


def in_layout_of(known: RowArray, rows: RowArray) -> RowArray:
    """Return rows as known ones are, dense or CSR."""
    if is_sparse(known) == is_sparse(rows):
        return rows
    return sp.csr_array(rows) if is_sparse(known) else rows.toarray()


def stacked(rows: RowArray, more: RowArray) -> RowArray:
    """Return rows with more of them below, in the layout of the first."""
    more = in_layout_of(rows, more)
    if is_sparse(rows):
        return sp.csr_array(sp.vstack([rows, more]))
    return np.concatenate([rows, more])


def are_equal(rows: RowArray, others: RowArray) -> bool:
    """Whether rows are the same, and lie in the same layout."""
    if is_sparse(rows) != is_sparse(others):
        return False
    if is_sparse(rows):
        return rows.shape == others.shape and all(
            np.array_equal(getattr(rows, part), getattr(others, part))
            for part in ("indptr", "indices", "data")
        )
    return bool(np.array_equal(rows, others))


def fingerprint_of(rows: RowArray) -> str:
    """Return a checksum of rows, which tells those of different fits apart."""
    parts = (rows.data, rows.indices, rows.indptr) if is_sparse(rows) else (rows,)
    shape = repr(rows.shape).encode()
    return checksum(shape, *(np.ascontiguousarray(part) for part in parts)).hex()
