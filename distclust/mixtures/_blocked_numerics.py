"""Compiled loops of the blocked samplers: densities of tiles of rows, and the draws of labels.

A tile is a fixed number of rows by all components. Inner loops run over components, which
lie side by side, so that they become vector instructions without reordering any sum.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

FloatArray: TypeAlias = npt.NDArray[np.float64]
AnyArray: TypeAlias = npt.NDArray[Any]


@compiled
def pick_components(
    scores: FloatArray,
    log_weights: FloatArray,
    row_weights: FloatArray,
    uniforms: FloatArray,
    labels: AnyArray,
) -> None:
    """Draw a component for each row of a tile, by one uniform number a row.

    Parameters
    ----------
    scores
        Log densities of the rows, shape (at least n, M); written over.
    log_weights
        Log weights of the components, shape (M,).
    row_weights
        How many rows a row stands for, shape (n,).
    uniforms
        Numbers from [0, 1), shape (n,).
    labels
        The draws, shape (n,); the output.
    """
    n_components = log_weights.shape[0]
    reached = np.empty(n_components)
    for i in range(labels.shape[0]):
        row = scores[i]
        weight = row_weights[i]
        best = 0
        for k in range(n_components):
            row[k] = weight * (row[k] + log_weights[k])
            if row[k] > row[best]:
                best = k
        top = row[best]
        total = 0.0
        for k in range(n_components):
            gap = row[k] - top
            if gap > -40.0:  # less would not change the total
                total += math.exp(gap)
            reached[k] = total
        bar = uniforms[i] * total
        choice = best  # rounding may bring the bar up to the total
        for k in range(n_components):
            if reached[k] > bar:
                choice = k
                break
        labels[i] = choice


@compiled
def add_sparse_products(
    data: FloatArray,
    indices: AnyArray,
    indptr: AnyArray,
    start: int,
    stop: int,
    weights: FloatArray,
    out: FloatArray,
) -> None:
    """Add rows `start` to `stop` of a CSR matrix times `weights` (columns, M) to `out`."""
    for i in range(start, stop):
        row = out[i - start]
        for p in range(indptr[i], indptr[i + 1]):
            x = data[p]
            part = weights[indices[p]]
            for k in range(row.shape[0]):
                row[k] += x * part[k]


@compiled
def subtract_half_squares(
    products: FloatArray, centres: FloatArray, n_rows: int, first: int, out: FloatArray
) -> None:
    """Subtract half the squared lengths of rotated rows from `out`, from column `first` on.

    Parameters
    ----------
    products
        Rotated rows, shape (rows, D * groups): entry d of group k at d * groups + k.
    centres
        What the entries are measured from, shape (D, groups).
    n_rows
        Rows of the tile that count.
    first
        Column of `out` of the first group.
    out
        Shape (at least n_rows, at least first + groups).
    """
    n_features, n_groups = centres.shape
    squares = np.empty(n_groups)
    for i in range(n_rows):
        squares[:] = 0.0
        for d in range(n_features):
            entries = products[i, d * n_groups : (d + 1) * n_groups]
            centre = centres[d]
            for k in range(n_groups):
                gap = entries[k] - centre[k]
                squares[k] += gap * gap
        for k in range(n_groups):
            out[i, first + k] -= 0.5 * squares[k]
