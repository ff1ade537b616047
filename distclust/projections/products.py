"""Products of the kernel between any rows and some weighted ones: κ(x, X) W."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import local_threads, thread_map
from distclust.projections._product_numerics import ADD, multiply, panels_of
from distclust.projections.kernels import TILE, Floats, Preparation, Tile

Doubles = npt.NDArray[np.float64]


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
        self._inner: Any = None
        if preparation.kernel.is_product:
            self._inner = inner_product(block, tiles, preparation.dtype)
        else:
            self._panels = cut_block(block, tiles, preparation.dtype)

    def times(self, tile: Tile) -> Doubles:
        """Return κ of every row of a tile with these rows, times the block: (tile.n, k)."""
        if self._inner is not None:
            return np.asarray(tile.rows @ self._inner, np.float64)[: tile.n]
        total = np.zeros((len(tile.norms), self._width))
        values = np.empty((len(tile.norms), TILE), self._preparation.dtype)
        for known, panels in zip(self._tiles, self._panels, strict=True):
            out = values[:, : len(known.norms)]
            multiply(self._preparation.values(tile, known, out), panels, total, ADD)
        return total[: tile.n]

    def times_all(self, tiles: Sequence[Tile]) -> Doubles:
        """Return the same for many tiles, by the threads there are."""
        return np.concatenate(thread_map(self.times, tiles, local_threads()))


def cut_block(block: Doubles, tiles: Sequence[Tile], dtype: Any) -> list[Floats]:
    """Return panels of a block, cut into pieces that fit the tiles, padded as they are."""
    ends = np.cumsum([len(tile.norms) for tile in tiles])
    panels = panels_of(block, dtype, int(ends[-1]))
    return np.split(panels, ends[:-1], axis=1)


def inner_product(block: Doubles, tiles: Sequence[Tile], dtype: Any) -> Any:
    """Return Xᵀ Z, shape (features, k), for kernels that are products of rows."""
    sizes = [len(tile.norms) for tile in tiles]
    padded = np.zeros((sum(sizes), block.shape[1]), dtype)
    padded[: len(block)] = block
    total = np.zeros((tiles[0].rows.shape[1], block.shape[1]))
    for tile, piece in zip(tiles, np.split(padded, np.cumsum(sizes)[:-1]), strict=True):
        total += tile.rows.T @ piece
    return total.astype(dtype)
