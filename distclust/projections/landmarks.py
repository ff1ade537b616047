"""New rows by a fitted kernel PCA (spec 4.6): z = Λ^{-1/2} Vᵀ k̂(x).

With A = V Λ^{-1/2} and row means r of the training kernel, z = kᵀA − rᵀA: columns of A have
mean 0, so the other terms of the centred k̂ vanish.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from distclust.projections.kernels import (
    TILE,
    Floats,
    Kernel,
    Preparation,
    RowArray,
    Tile,
    is_sparse,
)
from distclust.store import Block

Doubles = npt.NDArray[np.float64]


class Landmarks:
    """Training rows with their weights; prepared once in every process that uses them.

    Parameters
    ----------
    rows
        Training rows, shape (N, features).
    weights
        A, shape (N, n_components).
    row_means
        r = K 1 / N, shape (N,).
    kernel, dtype, middle
        As for `KernelProducts`.
    """

    def __init__(
        self,
        rows: RowArray,
        weights: Doubles,
        row_means: Doubles,
        kernel: Kernel,
        dtype: str,
        middle: Floats | None,
    ) -> None:
        self._arguments = (rows, weights, row_means, kernel, dtype, middle)
        self._preparation = Preparation(kernel, dtype, middle)
        self._offset = row_means @ weights
        self._tiles: list[Tile] = []
        self._weights: list[Floats] = []
        self._inner: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Landmarks, self._arguments

    def project(self, rows: RowArray) -> Doubles:
        """Return the coordinates of new rows, shape (n_rows, n_components)."""
        self._prepare()
        rows = in_layout_of(self._arguments[0], rows)
        parts = [self._project_tile(tile) for tile in self._preparation.tiles(rows)]
        return np.concatenate(parts)

    def _prepare(self) -> None:
        if self._tiles:
            return
        rows, weights, *_ = self._arguments
        tiles = self._preparation.tiles(rows)
        padded = np.zeros((len(tiles) * TILE, weights.shape[1]), self._preparation.dtype)
        padded[: len(weights)] = weights
        pieces = padded.reshape(-1, TILE, weights.shape[1])
        self._weights = [np.ascontiguousarray(piece.T) for piece in pieces]
        if self._preparation.kernel.is_product:
            inner = np.zeros((rows.shape[1], weights.shape[1]))
            for tile, piece in zip(tiles, self._weights, strict=True):
                inner += tile.rows.T @ piece.T
            self._inner = inner.astype(self._preparation.dtype)
        self._tiles = tiles

    def _project_tile(self, tile: Tile) -> Doubles:
        if self._inner is not None:
            found = np.asarray(tile.rows @ self._inner, np.float64)[: tile.n]
            return found - self._offset
        total = np.zeros((len(self._weights[0]), TILE))
        values = np.empty((TILE, TILE), self._preparation.dtype)
        for known, weights in zip(self._tiles, self._weights, strict=True):
            total += weights @ self._preparation.values(known, tile, values)
        return np.ascontiguousarray(total[:, : tile.n].T) - self._offset


def in_layout_of(known: RowArray, rows: RowArray) -> RowArray:
    """Return rows as known ones are, dense or CSR: tiles of both are multiplied."""
    if is_sparse(known) == is_sparse(rows):
        return rows
    return sp.csr_array(rows) if is_sparse(known) else rows.toarray()


def project_block(block: Block, start: int, landmarks: Landmarks) -> Doubles:
    """Return the coordinates of a block of rows; for `distclust.engine.map_blocks`."""
    rows = block if hasattr(block, "indptr") else np.asarray(block, np.float64)
    return landmarks.project(rows)
