"""Products of the kernel between any rows and some weighted ones: κ(x, X) W."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import blas_architecture, local_threads, thread_map
from distclust.projections.kernels import TILE, Floats, Preparation, Tile

Doubles = npt.NDArray[np.float64]

_SMALL_PRODUCT = 1_000_000
_WITH_SMALL_PRODUCTS = ("SkylakeX", "Cooperlake", "SapphireRapids")  # as OpenBLAS names them


class WeightedRows:
    """Rows with a block of weights, one row of the block for each.

    Parameters
    ----------
    preparation
        Of the kernel.
    tiles
        The rows.
    block
        Shape (n_rows, k).
    """

    def __init__(self, preparation: Preparation, tiles: Sequence[Tile], block: Doubles) -> None:
        self._preparation = preparation
        self._tiles = tiles
        self._width = block.shape[1]
        self._pieces = cut_block(block, tiles, preparation.dtype)
        self._inner: Any = None
        if preparation.kernel.is_product:
            self._inner = inner_product(tiles, self._pieces, preparation.dtype)

    def times(self, tile: Tile) -> Doubles:
        """Return κ of every row of a tile with these rows, times the block: (tile.n, k)."""
        if self._inner is not None:
            return np.asarray(tile.rows @ self._inner, np.float64)[: tile.n]
        total = np.zeros((len(tile.norms), self._width))
        values = np.empty((len(tile.norms), TILE), self._preparation.dtype)
        for known, piece in zip(self._tiles, self._pieces, strict=True):
            out = values[:, : len(known.norms)]
            add_product(total, self._preparation.values(tile, known, out), piece)
        return total[: tile.n]

    def times_all(self, tiles: Sequence[Tile]) -> Doubles:
        """Return the same for many tiles, by the threads there are."""
        return np.concatenate(thread_map(self.times, tiles, local_threads()))


def cut_block(block: Doubles, tiles: Sequence[Tile], dtype: Any) -> list[Floats]:
    """Return a block in pieces that fit the tiles, padded as they are."""
    sizes = [len(tile.norms) for tile in tiles]
    padded = np.zeros((sum(sizes), block.shape[1]), dtype)
    padded[: len(block)] = block
    return np.split(padded, np.cumsum(sizes)[:-1])


def inner_product(tiles: Sequence[Tile], pieces: Sequence[Floats], dtype: Any) -> Any:
    """Return Xᵀ Z, shape (features, k), for kernels that are products of rows."""
    total = np.zeros((tiles[0].rows.shape[1], pieces[0].shape[1]))
    for tile, piece in zip(tiles, pieces, strict=True):
        total += tile.rows.T @ piece
    return total.astype(dtype)


def add_product(total: Doubles, values: Floats, piece: Floats) -> None:
    """Add the product of a tile of kernel values and a narrow block.

    BLAS copies large factors into an order of its own, which for narrow blocks may take as long
    as the product. On some processors it has other ways for products below a million
    multiplications: there a strip at a time.
    """
    n_rows, width = len(values), piece.shape[1]
    if blas_architecture() in _WITH_SMALL_PRODUCTS:
        n_rows = next((r for r in (64, 32, 16) if r * TILE * width <= _SMALL_PRODUCT), n_rows)
    for start in range(0, len(values), n_rows):
        total[start : start + n_rows] += values[start : start + n_rows] @ piece
