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


def fingerprint_of(rows: RowArray) -> str:
    """Return a checksum of rows, which tells those of different fits apart."""
    parts = (rows.data, rows.indices, rows.indptr) if is_sparse(rows) else (rows,)
    shape = repr(rows.shape).encode()
    return checksum(shape, *(np.ascontiguousarray(part) for part in parts)).hex()
