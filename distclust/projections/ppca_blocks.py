"""What probabilistic PCA asks of a block of rows; run where the block lies.

Sparse rows are never centred: ``(X − 1μᵀ)W = XW − 1(μᵀW)``. Dense rows are taken in tiles of
one height, the last one padded, so that a row's answer does not depend on its company.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.linalg import cho_solve

from distclust.projections.ppca_em import (
    LOG_2_PI,
    Floats,
    Model,
    Posteriors,
    inner_factor,
    packed_outer,
    unpacked,
)
from distclust.store import Block, Profile, profile_block

_TILE_VALUES = 2**20
_TILE_ROWS = 256


def tile_rows(n_features: int) -> int:
    """Rows worked on at a time; follows from the number of features only."""
    return max(16, min(_TILE_ROWS, _TILE_VALUES // n_features))


# ---- a first look -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Survey:
    """First look at the rows; surveys of parts add up in their order (Chan's formula).

    Attributes
    ----------
    profile
        Counts of missing values and extremes of every column.
    n_empty
        Rows without any value.
    mean
        Mean of every column over its observed values, shape (n_features,).
    squares
        Sum of squares of every column about its mean, shape (n_features,).
    scatter
        ``Σ (x − mean)(x − mean)ᵀ``, shape (n_features, n_features); None where it was not
        asked for or values are missing.
    """

    profile: Profile
    n_empty: int
    mean: Floats
    squares: Floats
    scatter: Floats | None

    @property
    def n_observed(self) -> npt.NDArray[np.int64]:
        """Observed values of every column, shape (n_features,)."""
        return self.profile.n_rows - self.profile.n_missing

    def __add__(self, later: Survey) -> Survey:
        n, more = self.n_observed, later.n_observed
        total = np.maximum(n + more, 1)
        step = later.mean - self.mean
        weight = n * (more / total)
        scatter = None
        if self.scatter is not None and later.scatter is not None:
            scatter = self.scatter + later.scatter  # all columns have the same counts
            scatter += np.outer(step * weight[0], step)
        return Survey(
            self.profile + later.profile,
            self.n_empty + later.n_empty,
            self.mean + step * (more / total),
            self.squares + later.squares + step * step * weight,
            scatter,
        )


def survey_block(block: Block, start: int, with_scatter: bool) -> Survey:
    """Look at the rows of a block."""
    profile = profile_block(block)
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused later
        if scipy.sparse.issparse(block):
            return _survey_sparse(block, profile, with_scatter)
        return _survey_dense(np.asarray(block, np.float64), profile, with_scatter)


def _survey_sparse(block: Any, profile: Profile, with_scatter: bool) -> Survey:
    rows = block.astype(np.float64, copy=False)
    n, n_features = rows.shape
    columns = rows.indices
    mean = np.bincount(columns, weights=rows.data, minlength=n_features) / n
    squares = np.bincount(columns, weights=rows.data**2, minlength=n_features)
    scatter = None
    if with_scatter:
        scatter = np.asarray((rows.T @ rows).toarray())
        scatter -= np.outer(n * mean, mean)
    return Survey(profile, 0, mean, np.maximum(squares - n * mean**2, 0.0), scatter)


def _survey_dense(rows: Floats, profile: Profile, with_scatter: bool) -> Survey:
    missing = np.isnan(rows) if profile.has_missing else None
    if missing is None:
        mean = rows.mean(axis=0)
        centred = rows - mean
        scatter = centred.T @ centred if with_scatter else None
        return Survey(profile, 0, mean, np.sum(centred**2, axis=0), scatter)
    counts = np.maximum(len(rows) - profile.n_missing, 1)
    mean = np.sum(rows, axis=0, where=~missing) / counts
    centred = np.where(missing, 0.0, rows - mean)
    n_empty = int(missing.all(axis=1).sum())
    return Survey(profile, n_empty, mean, np.sum(centred**2, axis=0), None)


# ---- EM over passes -----------------------------------------------------------------------------


def multiply_block(block: Block, start: int, model: Model) -> Floats:
    """Return ``XᵀX W`` of the centred rows, shape (n_features, n_components)."""
    mean, loadings = model.mean, model.loadings
    if scipy.sparse.issparse(block):
        rows: Any = block.astype(np.float64, copy=False)
        scores = rows @ loadings - mean @ loadings
        return np.asarray(rows.T @ scores - np.outer(mean, scores.sum(axis=0)))
    total = np.zeros(loadings.shape)
    for _, rows in _tiles(block, mean):
        total += rows.T @ (rows @ loadings)
    return total


def expect_block(block: Block, start: int, model: Model, origin: Floats) -> Posteriors:
    """Return the sums of the posteriors of rows that may have missing values."""
    q = model.n_components
    pairs = packed_outer(model.loadings)
    n_packed = (q + 1) * (q + 2) // 2
    sums = Posteriors(
        0.0,
        np.zeros(n_packed),
        np.zeros((len(origin), n_packed)),
        np.zeros((len(origin), q + 1)),
    )
    for start_row, rows in _tiles(_dense(block), model.mean):
        # Rows that only fill the tile up have no values: they count nowhere.
        rows[block.shape[0] - start_row :] = np.nan
        sums = sums + _expect_tile(rows, model, pairs, origin)
    return sums


def _expect_tile(rows: Floats, model: Model, pairs: Floats, origin: Floats) -> Posteriors:
    seen = ~np.isnan(rows)
    mask = seen.astype(np.float64)
    latent = _latent_of(rows, seen, model, pairs)
    q = model.n_components
    moments = np.empty((len(rows), q + 1, q + 1))
    moments[:, :q, :q] = latent.covariance + latent.mean[:, :, None] * latent.mean[:, None, :]
    moments[:, :q, q] = moments[:, q, :q] = latent.mean
    moments[:, q, q] = 1.0
    packed = moments[:, *np.triu_indices(q + 1)]
    values = np.where(seen, rows + (model.mean - origin), 0.0)
    return Posteriors(
        float(latent.log_density.sum()),
        packed[seen.any(axis=1)].sum(axis=0),
        mask.T @ packed,
        values.T @ moments[:, :, q],
    )


# ---- new rows -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Latent:
    """What a model makes of some rows.

    Attributes
    ----------
    mean
        E[z | x], shape (n_rows, n_components).
    covariance
        Cov[z | x], shape (n_rows, n_components, n_components).
    log_density
        ln p of the observed values, shape (n_rows,); 0 where there are none.
    """

    mean: Floats
    covariance: Floats
    log_density: Floats


def _latent_of(
    rows: Floats, seen: npt.NDArray[np.bool_], model: Model, pairs: Floats, some: Any = slice(None)
) -> Latent:
    """Return posteriors with the observed rows of W, of the tile's rows or of `some`."""
    q, noise = model.n_components, model.noise
    given = np.where(seen, rows, 0.0)
    inner = unpacked((seen.astype(np.float64) @ pairs)[some], q)
    inner[:, np.arange(q), np.arange(q)] += noise
    factor = np.linalg.cholesky(inner)
    half = np.linalg.solve(factor, np.broadcast_to(np.eye(q), inner.shape))
    inverse = half.transpose(0, 2, 1) @ half
    pull = (given @ model.loadings)[some]
    mean = np.einsum("nij,nj->ni", inverse, pull)
    n_seen = seen.sum(axis=1)[some]
    log_det = 2.0 * np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    misfit = np.sum(given * given, axis=1)[some] - np.sum(pull * mean, axis=1)
    density = n_seen * LOG_2_PI + (n_seen - q) * math.log(noise) + log_det + misfit / noise
    return Latent(mean, noise * inverse, np.where(n_seen > 0, -0.5 * density, 0.0))


def project_block(block: Block, start: int, model: Model) -> Floats:
    """Return E[z | x] of every row, shape (rows, n_components)."""
    return _describe(block, model)[0]


def density_block(block: Block, start: int, model: Model) -> Floats:
    """Return ln p of the observed values of every row, shape (rows,)."""
    return _describe(block, model)[1]


def fill_block(block: Block, start: int, model: Model) -> Block:
    """Return the rows with missing values replaced by E[x | observed values]."""
    if scipy.sparse.issparse(block) or block.dtype.kind != "f":
        return block
    assert isinstance(block, np.ndarray), "dense"
    missing = np.isnan(block)
    if not missing.any():
        return block
    filled = block.copy()
    for first, expected in _expected_tiles(project_block(block, start, model), model):
        stop = first + len(expected)
        gaps = missing[first:stop]
        filled[first:stop][gaps] = expected[gaps]
    return filled


def _expected_tiles(latent: Floats, model: Model) -> Iterator[tuple[int, Floats]]:
    """Yield ``μ + W z`` of runs of rows, each with its first row."""
    height = tile_rows(len(model.mean))
    for first in range(0, len(latent), height):
        some = np.zeros((height, latent.shape[1]))
        n_some = len(latent[first : first + height])
        some[:n_some] = latent[first : first + height]
        yield first, (model.mean + some @ model.loadings.T)[:n_some]


def rows_of(latent: Floats, model: Model) -> Floats:
    """Return ``μ + W z`` for latent positions, shape (rows, n_features)."""
    return np.concatenate([expected for _, expected in _expected_tiles(latent, model)])


def _describe(block: Block, model: Model) -> tuple[Floats, Floats]:
    """Return posterior means and log densities of the rows of a block."""
    n_features, q = model.loadings.shape
    factor = inner_factor(model)
    inverse = cho_solve(factor, np.eye(q))
    log_det = 2.0 * float(np.log(np.diagonal(factor[0])).sum())
    constant = n_features * LOG_2_PI + (n_features - q) * math.log(model.noise) + log_det
    pull, squares = _pulls(block, model)
    means = np.einsum("ij,nj->ni", inverse, pull)
    misfit = squares - np.sum(pull * means, axis=1)
    densities = -0.5 * (constant + misfit / model.noise)
    if np.isnan(squares).any():
        _describe_partial(_dense(block), model, np.isnan(squares), means, densities)
    return means, densities


def _pulls(block: Block, model: Model) -> tuple[Floats, Floats]:
    """Return ``Wᵀ(x − μ)`` and ``|x − μ|²`` of every row; NaN where values are missing."""
    mean, loadings = model.mean, model.loadings
    n_rows = block.shape[0]
    if scipy.sparse.issparse(block):
        rows: Any = block.astype(np.float64, copy=False)
        own = np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
        squares = np.maximum(own - 2.0 * (rows @ mean) + mean @ mean, 0.0)
        return np.asarray(rows @ loadings - mean @ loadings), squares
    pull, squares = np.empty((n_rows, loadings.shape[1])), np.empty(n_rows)
    for first, rows in _tiles(block, mean):
        stop = min(first + len(rows), n_rows)
        pull[first:stop] = (rows @ loadings)[: stop - first]
        squares[first:stop] = np.sum(rows * rows, axis=1)[: stop - first]
    return pull, squares


def _describe_partial(
    block: npt.NDArray[Any],
    model: Model,
    partial: npt.NDArray[np.bool_],
    means: Floats,
    densities: Floats,
) -> None:
    """Fill in the answers of rows with missing values."""
    pairs = packed_outer(model.loadings)
    for first, rows in _tiles(block, model.mean):
        some = np.flatnonzero(partial[first : first + len(rows)])
        if len(some):
            latent = _latent_of(rows, ~np.isnan(rows), model, pairs, some)
            means[first + some] = latent.mean
            densities[first + some] = latent.log_density


def _dense(block: Block) -> npt.NDArray[Any]:
    assert isinstance(block, np.ndarray), "sparse rows have no missing values"
    return block


def _tiles(block: Any, mean: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield the first row and ``x − mean`` of tiles of one height; zeros fill the last one up."""
    height = tile_rows(block.shape[1])
    for first in range(0, block.shape[0], height):
        some = block[first : first + height]
        tile = np.zeros((height, block.shape[1]))
        np.subtract(some, mean, out=tile[: len(some)])
        yield first, tile
