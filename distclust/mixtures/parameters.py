r"""Parameters of groups drawn from their posteriors, and densities of rows given them.

Collapsed samplers integrate parameters out; blocked ones draw them, and rows are then
independent. Two things are said about each family here: how the parameters of groups are
drawn given the groups' statistics (a group without rows draws from the prior), and how the
log densities of a tile of rows under all groups are matrix products.

Most families are affine: log p(x | group) = features(x) @ weights + constants, with features
``[y^2, y]`` for diagonal Gaussians (y are shifted rows), indicators of levels for categories,
the row itself for counts and binary rows. A missing entry has features 0, and a feature that
says whether it is there takes the place of its constant: that marginalises it. The features
are centred as the family's own statistics are, so both lose the same digits on columns whose
clusters are a millionth as wide as the column. Full Gaussians take the product with each
group's factor of the precision and add up squares.

Draws are made as logarithms: with small pseudo-counts a probability may be too small for a
floating-point number, its logarithm is not.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import gammaln

from distclust.errors import InputError
from distclust.families import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Gaussian,
    Multinomial,
    Poisson,
    Product,
    dense_rows,
    is_sparse,
)
from distclust.families.gaussian import unpack_triangle
from distclust.mixtures._blocked_numerics import add_sparse_products, subtract_half_squares

Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = Any  # an array (n, d), or a CSR matrix

_TILE_CELLS = 1 << 17
_TILE_ROWS = (1024, 512, 256, 128)
_PRODUCT_CELLS = 1 << 18
_RIDGES = (1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
_LOG_2_PI = math.log(2.0 * math.pi)


class Parameters(ABC):
    """The parameters of several groups."""

    @property
    @abstractmethod
    def n_groups(self) -> int:
        """How many groups there are."""


class AffineParameters(Parameters):
    """Parameters whose log densities are features @ weights + constants.

    Attributes
    ----------
    weights
        Shape (features, groups), C-contiguous.
    constants
        Shape (groups,).
    """

    weights: Floats
    constants: Floats

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return len(self.constants)


@dataclass(frozen=True, eq=False)
class DiagonalParameters(AffineParameters):
    """Means and precisions of columns.

    Attributes
    ----------
    log_precisions
        Shape (groups, D).
    centres
        Square roots of the precisions times the (shifted) means, shape (groups, D): finite
        also where a precision is zero in floating point.
    has_missing
        Whether constants are features, one for each column.
    """

    log_precisions: Floats
    centres: Floats
    has_missing: bool

    @property
    def means(self) -> Floats:
        """Means less the family's shift, shape (groups, D)."""
        means: Floats = self.centres * np.exp(-0.5 * self.log_precisions)
        return means

    @property
    def weights(self) -> Floats:  # type: ignore[override]
        """Of squares, of values, and of being there if entries are missing."""
        roots = np.exp(0.5 * self.log_precisions)
        parts = [-0.5 * roots**2, roots * self.centres]
        if self.has_missing:
            parts.append(self._entry_constants)
        return _columns(np.concatenate(parts, axis=1))

    @property
    def constants(self) -> Floats:  # type: ignore[override]
        """Sums over columns, unless constants are features."""
        return _totals(self._entry_constants, self.has_missing)

    @property
    def _entry_constants(self) -> Floats:
        return 0.5 * (self.log_precisions - _LOG_2_PI - self.centres**2)


@dataclass(frozen=True, eq=False)
class BernoulliParameters(AffineParameters):
    """Log probabilities of ones and zeros, each of shape (groups, D)."""

    log_ones: Floats
    log_zeros: Floats
    has_missing: bool

    @property
    def weights(self) -> Floats:  # type: ignore[override]
        """Log odds, and of being there if entries are missing."""
        parts = [self.log_ones - self.log_zeros]
        return _columns(np.concatenate(parts + [self.log_zeros] * self.has_missing, axis=1))

    @property
    def constants(self) -> Floats:  # type: ignore[override]
        """Log probabilities of rows of zeros."""
        return _totals(self.log_zeros, self.has_missing)


@dataclass(frozen=True, eq=False)
class PoissonParameters(AffineParameters):
    """Logarithms of the rates, shape (groups, D)."""

    log_rates: Floats
    has_missing: bool

    @property
    def weights(self) -> Floats:  # type: ignore[override]
        """Log rates, and of being there if entries are missing."""
        parts = [self.log_rates]
        return _columns(np.concatenate(parts + [-self._rates] * self.has_missing, axis=1))

    @property
    def constants(self) -> Floats:  # type: ignore[override]
        """Log probabilities of rows of zeros."""
        return _totals(-self._rates, self.has_missing)

    @property
    def _rates(self) -> Floats:
        return np.asarray(np.exp(self.log_rates))


@dataclass(frozen=True, eq=False)
class TableParameters(AffineParameters):
    """Log probabilities of words, or of the levels of all columns, shape (groups, levels)."""

    logs: Floats

    @property
    def weights(self) -> Floats:  # type: ignore[override]
        """The log probabilities."""
        return _columns(self.logs)

    @property
    def constants(self) -> Floats:  # type: ignore[override]
        """None."""
        return np.zeros(len(self.logs))


@dataclass(frozen=True, eq=False)
class GaussianParameters(Parameters):
    r"""Means and precision matrices.

    Attributes
    ----------
    factors
        F with precision :math:`F F^T`, shape (groups, D, D).
    centres
        :math:`F^T` times the (shifted) means, shape (groups, D).
    log_roots
        Half the log determinants of the precisions, shape (groups,).
    """

    factors: Floats
    centres: Floats
    log_roots: Floats

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return len(self.log_roots)

    @property
    def means(self) -> Floats:
        """Means less the family's shift, shape (groups, D)."""
        transposed = self.factors.transpose(0, 2, 1)
        return np.asarray(np.linalg.solve(transposed, self.centres[:, :, None])[:, :, 0])


@dataclass(frozen=True, eq=False)
class ProductParameters(Parameters):
    """Parameters of the parts of a product, in their order."""

    parts: list[Parameters]

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return self.parts[0].n_groups


# ---- draws -------------------------------------------------------------------------------


def draw_parameters(family: Family, stats: Floats, generator: np.random.Generator) -> Parameters:
    """Return parameters of groups with statistics (B, p), drawn from their posteriors.

    Statistics of zeros draw from the prior.
    """
    if isinstance(family, DiagonalGaussian):
        return _draw_diagonal(family, stats, generator)
    if isinstance(family, Gaussian):
        return _draw_gaussian(family, stats, generator)
    if isinstance(family, Bernoulli):
        return _draw_bernoulli(family, stats, generator)
    if isinstance(family, Categorical):
        logs = log_gamma_draws(family.alpha + stats[:, 1:], generator)
        return TableParameters(_log_shares(logs, _starts(family)))
    if isinstance(family, Multinomial):
        logs = log_gamma_draws(family.alpha + stats[:, 1:], generator)
        return TableParameters(_log_shares(logs, np.zeros(1, np.int64)))
    if isinstance(family, Poisson):
        first, observed = _counts_of(family, stats, 2)
        logs = log_gamma_draws(family.shape + first, generator)
        return PoissonParameters(logs - np.log(family.rate + observed), family.has_missing)
    if isinstance(family, Product):
        shares = product_shares(family, stats)
        pairs = zip(family.parts, shares, strict=True)
        return ProductParameters(
            [draw_parameters(part, share, generator) for (part, _), share in pairs]
        )
    raise _no_parameters(family)


def log_gamma_draws(shapes: Floats, generator: np.random.Generator) -> Floats:
    """Return logarithms of draws from Gamma distributions with rate 1.

    Where the shape is below 1 the draw is one of shape + 1 times a power of a uniform
    number, whose logarithm never underflows.
    """
    small = shapes < 1.0
    logs: Floats = np.log(generator.standard_gamma(np.where(small, shapes + 1.0, shapes)))
    uniforms = generator.random(np.count_nonzero(small))
    logs[small] += np.log1p(-uniforms) / shapes[small]
    return logs


def log_dirichlet_draw(shapes: Floats, generator: np.random.Generator) -> Floats:
    """Return the logarithm of one draw from a Dirichlet distribution, shape (M,)."""
    logs = log_gamma_draws(shapes, generator)
    return np.asarray(_log_shares(logs[None], np.zeros(1, np.int64))[0])


def log_beta_draws(a: Floats, b: Floats, generator: np.random.Generator) -> tuple[Floats, Floats]:
    """Return ln V and ln(1 - V) of draws V from Beta distributions."""
    left, right = log_gamma_draws(a, generator), log_gamma_draws(b, generator)
    total = np.logaddexp(left, right)
    return left - total, right - total


def product_shares(family: Product, stats: Floats) -> list[Floats]:
    """Return the statistics of each part of a product, with the number of rows."""
    shares, start = [], 1
    for part, _ in family.parts:
        stop = start + part.n_statistics - 1
        shares.append(np.concatenate([stats[:, :1], stats[:, start:stop]], axis=1))
        start = stop
    return shares


def _draw_diagonal(
    family: DiagonalGaussian, stats: Floats, generator: np.random.Generator
) -> DiagonalParameters:
    size = family.n_features
    n = stats[:, 1 + 2 * size :] if family.has_missing else stats[:, :1]
    sums, squares = stats[:, 1 : 1 + size], stats[:, 1 + size : 1 + 2 * size]
    prior = family.mean - family.shift
    strength = family.strength + n
    pull = sums + family.strength * prior
    rest = squares + family.strength * prior**2 - pull**2 / strength
    rate = family.rate + 0.5 * np.maximum(0.0, rest)
    log_precisions = log_gamma_draws(np.broadcast_to(family.shape + 0.5 * n, rate.shape), generator)
    log_precisions = log_precisions - np.log(rate)
    noise = generator.standard_normal(rate.shape) / np.sqrt(strength)
    centres = np.exp(0.5 * log_precisions) * pull / strength + noise
    return DiagonalParameters(log_precisions, centres, family.has_missing)


def _draw_gaussian(
    family: Gaussian, stats: Floats, generator: np.random.Generator
) -> GaussianParameters:
    """Return draws of the precision by Bartlett's decomposition, then of the mean."""
    size, n = family.n_features, stats[:, 0]
    assert family.degrees is not None
    prior = family.mean - family.shift
    strength = family.strength + n
    pull = stats[:, 1 : 1 + size] + family.strength * prior
    moment = unpack_triangle(stats[:, 1 + size :], size)
    moment -= pull[:, :, None] * pull[:, None, :] / strength[:, None, None]
    lower = _cholesky(family.scatter + family.strength * np.outer(prior, prior) + moment)
    bartlett = np.tril(generator.standard_normal(lower.shape), -1)
    freedom = (family.degrees + n)[:, None] - np.arange(size)
    roots = 0.5 * (log_gamma_draws(0.5 * freedom, generator) + math.log(2.0))
    every = np.arange(size)
    bartlett[:, every, every] = np.exp(roots)
    factors = np.asarray(np.linalg.solve(lower.transpose(0, 2, 1), bartlett), np.float64)
    centres = np.einsum("bij,bi->bj", factors, pull / strength[:, None])
    centres += generator.standard_normal(centres.shape) / np.sqrt(strength)[:, None]
    log_roots = roots.sum(axis=1) - np.log(lower[:, every, every]).sum(axis=1)
    return GaussianParameters(factors, centres, log_roots)


def _draw_bernoulli(
    family: Bernoulli, stats: Floats, generator: np.random.Generator
) -> BernoulliParameters:
    ones, observed = _counts_of(family, stats, 1)
    logs = log_beta_draws(family.alpha + ones, family.beta + (observed - ones), generator)
    return BernoulliParameters(*logs, family.has_missing)


def _counts_of(family: Family, stats: Floats, first: int) -> tuple[Floats, Floats]:
    """Return the sums of columns and the numbers of observed entries, (B, D) each."""
    middle = first + family.n_features
    observed = stats[:, middle:] if family.has_missing else stats[:, :1]
    sums = stats[:, first:middle]
    return sums, np.broadcast_to(observed, sums.shape)


def _log_shares(logs: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """Return logs less the log of their sums, for each stretch of columns on its own."""
    sizes = np.diff(np.append(starts, logs.shape[1]))
    tops = np.repeat(np.maximum.reduceat(logs, starts, axis=1), sizes, axis=1)
    sums = np.add.reduceat(np.exp(logs - tops), starts, axis=1)
    shares: Floats = logs - tops - np.repeat(np.log(sums), sizes, axis=1)
    return shares


def _starts(family: Categorical) -> npt.NDArray[np.int64]:
    """Return where the levels of each column start."""
    return np.concatenate([[0], np.cumsum(family.n_levels)[:-1]]).astype(np.int64)


def _cholesky(matrices: Floats) -> Floats:
    """Return lower factors; a matrix that rounding made indefinite gets a small ridge."""
    try:
        return np.asarray(np.linalg.cholesky(matrices))
    except np.linalg.LinAlgError:
        return np.stack([_ridged_cholesky(matrix) for matrix in matrices])


def _ridged_cholesky(matrix: Floats) -> Floats:
    unit = np.trace(matrix) / len(matrix) * np.eye(len(matrix))
    for ridge in (0.0, *_RIDGES):
        try:
            return np.asarray(np.linalg.cholesky(matrix + ridge * unit))
        except np.linalg.LinAlgError:
            continue
    raise InputError(
        "Gaussian",
        "a positive definite posterior scatter matrix",
        "one that is not, even with a ridge",
        "Bring the columns to comparable scales, or use DiagonalGaussian.",
    )


def _columns(rows: Floats) -> Floats:
    return np.ascontiguousarray(rows.T)


def _totals(entries: Floats, are_features: bool) -> Floats:
    """Return sums over columns, or zeros where entries are features of their own."""
    return np.zeros(len(entries)) if are_features else np.asarray(entries.sum(axis=1))


def _no_parameters(family: Family) -> InputError:
    return InputError(
        "BlockedSampler(family)",
        "a family whose parameters can be drawn",
        repr(family),
        "Use the collapsed sampler: it needs no parameters.",
    )


# ---- densities ---------------------------------------------------------------------------


def log_density(family: Family, rows: Rows, parameters: Parameters) -> Floats:
    """Return log p(x_i | parameters of group k), shape (n, groups).

    Missing entries are left out where the family allows them. As everywhere, multinomial
    coefficients are left out.
    """
    layout = lay_out(family, rows)
    n_rows, n_groups = rows.shape[0], parameters.n_groups
    size = tile_rows(layout.n_features, n_groups)
    out = np.empty((n_rows, n_groups))
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        tile = np.zeros((size, n_groups))
        layout.add_log_densities(start, stop, parameters, tile)
        out[start:stop] = tile[: stop - start] + layout.row_terms(start, stop)[:, None]
    return out


def tile_rows(n_features: int, n_groups: int) -> int:
    """Return how many rows a tile has; it follows from the numbers of features and groups."""
    widest = max(n_features, n_groups)
    return next((size for size in _TILE_ROWS if size * widest <= _TILE_CELLS), 64)


class Layout(ABC):
    """Rows of a family, laid out for products; chains of one process share it.

    Attributes
    ----------
    n_features
        Numbers that a row becomes.
    """

    n_features: int

    @abstractmethod
    def add_log_densities(self, start: int, stop: int, parameters: Any, tile: Floats) -> None:
        """Add the log densities of some rows to a tile of fixed shape (size, groups).

        Without the terms that are the same for all groups. Rows of the tile past the last
        one may hold anything afterwards.
        """

    def row_terms(self, start: int, stop: int) -> Floats:
        """Return the terms of log densities that no group changes, shape (stop - start,)."""
        return np.zeros(stop - start)


def lay_out(family: Family, rows: Rows) -> Layout:
    """Return the rows as a family needs them; nothing dense is made of sparse counts."""
    if isinstance(family, Product):
        parts = []
        for part, columns in family.parts:
            chosen = np.asarray(columns, dtype=np.int64)
            parts.append(lay_out(part, rows[:, chosen]))
        return _ProductLayout(parts)
    if isinstance(family, DiagonalGaussian):
        return _DiagonalLayout(rows, family)
    if isinstance(family, Gaussian):
        return _GaussianLayout(rows, family)
    if isinstance(family, Categorical):
        return _CategoricalLayout(rows, family)
    if isinstance(family, (Bernoulli, Multinomial, Poisson)):
        return _CountLayout(rows, family)
    raise _no_parameters(family)


class _ProductLayout(Layout):
    def __init__(self, parts: Sequence[Layout]) -> None:
        self._parts = parts
        self.n_features = max(part.n_features for part in parts)

    def add_log_densities(
        self, start: int, stop: int, parameters: ProductParameters, tile: Floats
    ) -> None:
        for part, own in zip(self._parts, parameters.parts, strict=True):
            part.add_log_densities(start, stop, own, tile)

    def row_terms(self, start: int, stop: int) -> Floats:
        terms = np.zeros(stop - start)
        for part in self._parts:
            terms += part.row_terms(start, stop)
        return terms


class _DiagonalLayout(Layout):
    def __init__(self, rows: Rows, family: DiagonalGaussian) -> None:
        self._rows, self._shift = rows, family.shift
        self._has_missing = family.has_missing
        self.n_features = family.n_features * (3 if family.has_missing else 2)

    def add_log_densities(
        self, start: int, stop: int, parameters: DiagonalParameters, tile: Floats
    ) -> None:
        features = np.zeros((len(tile), self.n_features))
        size = len(self._shift)
        values = features[: stop - start, size : 2 * size]
        np.subtract(dense_rows(self._rows[start:stop]), self._shift, out=values)
        if self._has_missing:
            observed = ~np.isnan(values)
            features[: stop - start, 2 * size :] = observed
            values[~observed] = 0.0
        np.square(values, out=features[: stop - start, :size])
        tile += features @ parameters.weights
        tile += parameters.constants


class _GaussianLayout(Layout):
    def __init__(self, rows: Rows, family: Gaussian) -> None:
        self._rows, self._shift = rows, family.shift
        self.n_features = family.n_features

    def add_log_densities(
        self, start: int, stop: int, parameters: GaussianParameters, tile: Floats
    ) -> None:
        size, n_groups = self.n_features, tile.shape[1]
        rows = np.zeros((len(tile), size))
        np.subtract(dense_rows(self._rows[start:stop]), self._shift, out=rows[: stop - start])
        tile += parameters.log_roots - 0.5 * size * _LOG_2_PI
        step = max(1, _PRODUCT_CELLS // (size * len(tile)))
        for first in range(0, n_groups, step):
            factors = parameters.factors[first : first + step]
            side_by_side = factors.transpose(1, 2, 0).reshape(size, -1)
            centres = _columns(parameters.centres[first : first + step])
            subtract_half_squares(rows @ side_by_side, centres, stop - start, first, tile)


class _CountLayout(Layout):
    """Binary rows and counts: features are the rows themselves."""

    def __init__(self, rows: Rows, family: Family) -> None:
        self._csr = _csr_parts(rows) if is_sparse(rows) else None
        self._rows, self._with_factorials = rows, isinstance(family, Poisson)
        self._has_missing = family.has_missing
        self.n_features = family.n_features * (2 if family.has_missing else 1)

    def add_log_densities(
        self, start: int, stop: int, parameters: AffineParameters, tile: Floats
    ) -> None:
        weights, constants = parameters.weights, parameters.constants
        if self._csr is not None:
            size = self._rows.shape[1]
            if self._has_missing:  # sparse rows have no missing entries themselves
                constants = weights[size:].sum(axis=0)
            add_sparse_products(*self._csr, start, stop, weights[:size], tile)
        else:
            tile += self._features(start, stop, len(tile)) @ weights
        tile += constants

    def _features(self, start: int, stop: int, size: int) -> Floats:
        features = np.zeros((size, self.n_features))
        rows = dense_rows(self._rows[start:stop])
        features[: stop - start, : rows.shape[1]] = rows
        if self._has_missing:
            observed = ~np.isnan(rows)
            features[: stop - start, rows.shape[1] :] = observed
            features[: stop - start, : rows.shape[1]][~observed] = 0.0
        return features

    def row_terms(self, start: int, stop: int) -> Floats:
        if not self._with_factorials:
            return np.zeros(stop - start)
        rows = np.nan_to_num(dense_rows(self._rows[start:stop]))
        return -np.asarray(gammaln(rows + 1.0).sum(axis=1))


class _CategoricalLayout(Layout):
    """Categories: features are indicators of levels, as a sparse matrix.

    In sparse rows level 0 is everywhere by default: other levels are measured from it.
    """

    def __init__(self, rows: Rows, family: Categorical) -> None:
        self._starts, self._levels = _starts(family), np.asarray(family.n_levels)
        self.n_features = family.n_features
        self._from_zero = is_sparse(rows)
        if self._from_zero:
            data, columns, indptr = _csr_parts(rows)
            codes = self._starts[columns] + data.astype(np.int64)
            self._csr = np.ones(len(codes)), codes, indptr
        else:
            self._csr = _csr_parts(family.indicators(rows))

    def add_log_densities(
        self, start: int, stop: int, parameters: TableParameters, tile: Floats
    ) -> None:
        weights = parameters.weights
        if self._from_zero:
            first = weights[self._starts]
            tile += first.sum(axis=0)
            weights = weights - np.repeat(first, self._levels, axis=0)
        add_sparse_products(*self._csr, start, stop, weights, tile)


def _csr_parts(rows: Rows) -> tuple[Floats, npt.NDArray[Any], npt.NDArray[Any]]:
    matrix = sparse.csr_array(rows)
    return np.asarray(matrix.data, dtype=np.float64), matrix.indices, matrix.indptr
