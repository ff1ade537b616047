"""Where kernel products begin: near the truth, from a small sample of rows (Nyström).

Eigenvectors of the kernel of a few rows, extended to all rows by the kernel between them, are
worth one or two products with the whole matrix. They come for next to nothing, and in the first
product most of the time goes to evaluating the kernel; so there are more of them than in later
blocks, which saves a round. Noise is added so that no direction is left out because the sample
has nothing of it: K, multiplied again and again, brings it forth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from distclust.engine import one_blas_thread
from distclust.engine.held import RowArray
from distclust.projections.kernels import TILE, Preparation, Tile
from distclust.projections.products import WeightedRows
from distclust.projections.subspace import centred, orthonormal, ritz
from distclust.seeding import generator

Doubles = npt.NDArray[np.float64]

_FEWEST_SAMPLED = 256
_SAMPLED = 4  # rows for each column of the block
_WIDER = 2  # times as many columns as later blocks have
_NOISE = 0.05


def random_block(n_rows: int, width: int, seed: int) -> Doubles:
    """Return orthonormal random columns of mean 0."""
    with one_blas_thread:
        return orthonormal(_noise(n_rows, width, seed))


def _noise(n_rows: int, width: int, seed: int) -> Doubles:
    rng = generator(seed, "kernel PCA", "start")
    return centred(rng.normal(size=(n_rows, width)))


def near_block(
    preparation: Preparation,
    rows: RowArray,
    width: int,
    seed: int,
    tiles_of: Callable[[RowArray], Sequence[Tile]],
) -> Doubles:
    """Return columns of mean 0 near the leading eigenvectors, to be made orthonormal.

    Where products are cheap they are random, `width` of them, else more. `tiles_of` prepares
    all rows.
    """
    n_rows = rows.shape[0]
    n_columns = _WIDER * width
    n_sampled = max(_FEWEST_SAMPLED, _SAMPLED * n_columns)
    if n_sampled >= n_rows or preparation.kernel.is_product:
        return _noise(n_rows, width, seed)
    noise = _noise(n_rows, n_columns, seed) / np.sqrt(n_rows)  # columns of length 1, about
    rng = generator(seed, "kernel PCA", "sample")
    chosen = np.sort(rng.choice(n_rows, n_sampled, replace=False))
    sample = rows[chosen]
    tiles = [
        preparation.tile(sample[i : i + TILE], padded=False) for i in range(0, n_sampled, TILE)
    ]
    with one_blas_thread:
        own = np.block([[_values(preparation, a, b) for b in tiles] for a in tiles])
        _, vectors = ritz(centred(centred(own).T))
        weights = vectors[:, :n_columns]
        near = centred(WeightedRows(preparation, tiles, weights).times_all(tiles_of(rows)))
        lengths = np.sqrt(np.einsum("ij,ij->j", near, near))
        found: Doubles = near / np.where(lengths > 0, lengths, 1.0) + _NOISE * noise
    return found


def _values(preparation: Preparation, left: Tile, right: Tile) -> Doubles:
    out = np.empty((left.n, right.n), preparation.dtype)
    return np.asarray(preparation.values(left, right, out), np.float64)
