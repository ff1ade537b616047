"""Blocks of rows, dense or CSR: slices, tiles and products, never a dense copy of a CSR."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
Block: TypeAlias = Any  # an array (n, d) of numbers or booleans, or a CSR matrix or array

# Products run on tiles of one shape, the last one padded: a product over other shapes may
# differ in the last bits, and then a row's density would depend on its company.
_TILE_ROWS = 256
_TILE_GROUPS = 128


def is_sparse(block: Block) -> bool:
    """Whether the block is a scipy sparse matrix or array."""
    return bool(sparse.issparse(block))


def n_rows_of(block: Block) -> int:
    """Return the number of rows."""
    return int(block.shape[0])


def row_slice(block: Block, start: int, stop: int) -> Block:
    """Return some of the rows, in the block's layout."""
    return block[start:stop]


def dense_rows(block: Block) -> FloatArray:
    """Return the rows as a C-contiguous float64 array; for a few rows at a time."""
    rows = block.toarray() if is_sparse(block) else block
    return np.ascontiguousarray(rows, dtype=np.float64)


def numeric_rows(block: Block) -> npt.NDArray[Any]:
    """Return a dense block as a C-contiguous uint8 or float64 array, copied if it must.

    Two types only, so that compiled loops are compiled at most twice.
    """
    rows = np.ascontiguousarray(block)
    if rows.dtype == np.bool_:
        return rows.view(np.uint8)
    return rows if rows.dtype == np.uint8 else rows.astype(np.float64, copy=False)


def csr_parts(block: Block) -> tuple[FloatArray, npt.NDArray[Any], npt.NDArray[Any]]:
    """Return data (float64), indices and indptr of a CSR block."""
    rows = block if block.format == "csr" else block.tocsr()
    return np.asarray(rows.data, dtype=np.float64), rows.indices, rows.indptr


def has_nan(block: Block) -> bool:
    """Whether a dense float block has missing entries."""
    if is_sparse(block) or block.dtype.kind != "f":
        return False
    # One pass without a mask: NaN survives any sum; infinities are confirmed slowly.
    return bool(np.isnan(np.sum(block)) and np.isnan(block).any())


def column_origin(block: Block) -> FloatArray:
    """Return the column means of a block, shape (d,), NaN entries left out; 0 if none."""
    if is_sparse(block):
        total = np.asarray(block.sum(axis=0), dtype=np.float64).ravel()
        return total / max(1, n_rows_of(block))
    rows = np.asarray(block, dtype=np.float64)
    observed = ~np.isnan(rows)
    total = np.sum(rows, axis=0, where=observed)
    origin: FloatArray = total / np.maximum(1, observed.sum(axis=0))
    return origin


def product(block: Block, weights: FloatArray) -> FloatArray:
    """Return block @ weights, (n, d) by (d, B), each entry free of the other rows' number.

    Dense products run tile by tile, so one tile of rows is converted at a time; a sparse
    product adds each row's entries in their order.
    """
    if is_sparse(block):
        return np.asarray(block.astype(np.float64, copy=False) @ weights)
    n_rows, n_groups = n_rows_of(block), weights.shape[1]
    out = np.empty((n_rows, n_groups))
    for left in range(0, n_groups, _TILE_GROUPS):
        right = _padded(weights[:, left : left + _TILE_GROUPS], 1, _TILE_GROUPS)
        for start in range(0, n_rows, _TILE_ROWS):
            rows = _padded(block[start : start + _TILE_ROWS], 0, _TILE_ROWS)
            part = out[start : start + _TILE_ROWS, left : left + _TILE_GROUPS]
            part[...] = (rows @ right)[: part.shape[0], : part.shape[1]]
    return out


def _padded(values: npt.NDArray[Any], axis: int, size: int) -> FloatArray:
    """Return float64 `values` with zeros after them so that `axis` has length `size`."""
    if values.shape[axis] == size:
        return np.ascontiguousarray(values, dtype=np.float64)
    shape = list(values.shape)
    shape[axis] = size
    out = np.zeros(shape)
    out[: values.shape[0], : values.shape[1]] = values
    return out
