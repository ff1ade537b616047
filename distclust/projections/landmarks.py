"""New rows by a fitted kernel PCA (spec 4.6): z = Λ^{-1/2} Vᵀ k̂(x).

With A = V Λ^{-1/2} and row means r of the training kernel, z = kᵀA − rᵀA: columns of A have
mean 0, so the other terms of the centred k̂ vanish.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine.held import RowArray, in_layout_of
from distclust.projections.kernels import Floats, Kernel, Preparation
from distclust.projections.products import WeightedRows
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
        self._weighted: WeightedRows | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Landmarks, self._arguments

    def project(self, rows: RowArray) -> Doubles:
        """Return the coordinates of new rows, shape (n_rows, n_components)."""
        known, weights, *_ = self._arguments
        if self._weighted is None:
            tiles = self._preparation.tiles(known)
            self._weighted = WeightedRows(self._preparation, tiles, weights)
        tiles = self._preparation.tiles(in_layout_of(known, rows))
        return self._weighted.times_all(tiles) - self._offset


def project_block(block: Block, start: int, landmarks: Landmarks) -> Doubles:
    """Return the coordinates of a block of rows; for `distclust.engine.map_blocks`."""
    rows = block if hasattr(block, "indptr") else np.asarray(block, np.float64)
    return landmarks.project(rows)
