"""Real columns with a full covariance: the normal-inverse-Wishart family."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

from distclust.errors import InputError
from distclust.families._blocks import (
    Block,
    FloatArray,
    IntArray,
    csr_parts,
    dense_rows,
    is_sparse,
    n_rows_of,
    numeric_rows,
    row_slice,
)
from distclust.families._checks import Hyperparameter, check_labels
from distclust.families._counts import unexpected_missing
from distclust.families._gaussian_numerics import (
    accumulate_scatter,
    accumulate_scatter_csr,
    gaussian_add,
    gaussian_log_predictive,
    gaussian_log_predictive_row,
    gaussian_pairs,
    gaussian_remove,
)
from distclust.families._students import (
    SCALE_GRID,
    check_mean,
    check_scale,
    student_information,
)
from distclust.families.base import LOG_REACH, CompiledFamily, RowFunctions
from distclust.families.columns import Column, Profile
from distclust.families.registry import register_family
from distclust.validation import check_real

_TILE_ROWS = 1024  # rows shifted and transposed at a time
_MATRIX_CELLS = 1 << 20  # posterior matrices of a chunk of groups stay near 8 MB


@register_family
@dataclass(frozen=True, eq=False, repr=False)
class Gaussian(CompiledFamily):
    r"""Rows from a Gaussian with full covariance, normal-inverse-Wishart prior.

    Parameters
    ----------
    mean
        Prior mean m, shape (D,) or a number; left out, the data's mean.
    strength
        How many rows the prior mean is worth, r.
    degrees
        Degrees of freedom v, above D - 1; left out, D + 2.
    scatter
        Scale matrix S, shape (D, D), positive definite; left out, ``scale`` times the
        data's covariance (with a ridge of 1e-6 trace / D, so that constant columns are
        valid; all constant: the identity).
    scale
        The factor g of that covariance. The default "auto" starts at 0.03 and offers
        `scale_grid` to a search. The covariance of all rows contains the spread between
        clusters, so g = 1 would be far too broad.

    Notes
    -----
    Statistics of a group: ``[n, s (D), upper triangle of Q (D (D + 1) / 2)]`` of the
    shifted rows y = x - shift, where the shift is the prior mean the family was resolved
    with. With :math:`S' = S + Q - s s^T / (r + n)` (at that mean),

    .. math::
        \log f = -\tfrac{nD}{2} \log \pi + \tfrac{D}{2} \log \tfrac{r}{r + n}
          + \tfrac{v}{2} \log |S| - \tfrac{v + n}{2} \log |S'|
          + \sum_{d=1}^{D} \log \Gamma(\tfrac{v + n + 1 - d}{2})
                           - \log \Gamma(\tfrac{v + 1 - d}{2})

    There is no closed form with missing values: use
    :class:`~distclust.families.DiagonalGaussian`.
    """

    name = "gaussian"

    mean: Hyperparameter = None
    strength: float = 0.05
    degrees: float | None = None
    scatter: Any = None
    scale: Any = "auto"
    shift: Any = dataclasses.field(default=None, kw_only=True)
    covariance: FloatArray | None = dataclasses.field(default=None, kw_only=True)
    scale_candidates: tuple[float, ...] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        self._assign("strength", check_real(self.strength, "Gaussian(strength)", above=0.0))
        self._assign("scale", check_scale(self.scale, "Gaussian(scale)"))
        self._assign("scale_candidates", tuple(self.scale_candidates))
        if self.scatter is not None:
            self._assign("scatter", _check_scatter(self.scatter))
            if not self.n_features:
                self._assign("n_features", len(self.scatter))
        self._assign("mean", check_mean(self.mean, "Gaussian(mean)"))
        self._broadcast(["mean"])
        self._check_degrees()
        self._check_sizes()
        if self.shift is None and isinstance(self.mean, np.ndarray):
            self._assign("shift", self.mean.copy())

    def _check_degrees(self) -> None:
        if self.degrees is None:
            if self.n_features:
                self._assign("degrees", self.n_features + 2.0)
            return
        above = max(0.0, self.n_features - 1.0)
        self._assign("degrees", check_real(self.degrees, "Gaussian(degrees)", above=above))

    def _check_sizes(self) -> None:
        if self.scatter is not None and len(self.scatter) != self.n_features:
            raise InputError(
                "Gaussian(scatter)",
                f"a matrix of {self.n_features} x {self.n_features} numbers",
                f"shape {self.scatter.shape}",
                "Its size is the number of features.",
            )

    @property
    def is_resolved(self) -> bool:
        """Whether every hyperparameter has its value."""
        return isinstance(self.mean, np.ndarray) and self.scatter is not None

    @property
    def n_statistics(self) -> int:
        """Length of the statistics of a group."""
        return 1 + self.n_features + self.n_features * (self.n_features + 1) // 2

    @property
    def scale_grid(self) -> tuple[float, ...]:
        """Scales among which a search should choose."""
        return self.scale_candidates

    def with_scale(self, scale: float) -> Self:
        """Return the family with S = scale * covariance, if S came from the data."""
        if self.covariance is None:
            return self
        scatter = scale * self.covariance
        return dataclasses.replace(self, scale=scale, scatter=scatter)

    def summarise(
        self, block: Block, origin: FloatArray, weights: FloatArray | None = None
    ) -> FloatArray:
        """Return ``[n, s, Q]`` of the rows shifted by `origin`."""
        groups, loads = check_labels(np.zeros(n_rows_of(block)), 1, weights, n_rows_of(block))
        return np.asarray(self._accumulate(block, groups, loads, 1, origin)[0])

    def resolve(
        self,
        summary: FloatArray,
        origin: FloatArray,
        profile: Profile,
        columns: Sequence[Column],
    ) -> Self:
        """Fill in the empirical prior where `mean` or `scatter` were left out."""
        family = self.prepare(profile, columns)
        n, size = summary[0], family.n_features
        centre = summary[1 : 1 + size] / n
        changes: dict[str, Any] = {}
        if family.mean is None:
            changes["mean"] = origin + centre
        if family.scatter is None:
            moment = unpack_triangle(summary[None, 1 + size :], size)[0] / n
            constant = ~(profile.minimum < profile.maximum)
            covariance = _ridged(moment - np.outer(centre, centre), constant)
            automatic = family.scale == "auto" or family.scale is None
            scale = 0.03 if automatic else family.scale
            changes["scale"] = scale
            changes["covariance"] = covariance
            changes["scatter"] = scale * covariance
            changes["scale_candidates"] = SCALE_GRID if automatic else ()
        return dataclasses.replace(family, **changes)

    def accumulate(
        self,
        block: Block,
        labels: npt.ArrayLike,
        n_groups: int,
        weights: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Return the statistics of each group of rows, shape (n_groups, p)."""
        groups, loads = check_labels(labels, n_groups, weights, n_rows_of(block))
        return self._accumulate(block, groups, loads, n_groups, self.shift)

    def _accumulate(
        self,
        block: Block,
        groups: npt.NDArray[np.int64],
        loads: FloatArray,
        n_groups: int,
        shift: FloatArray,
    ) -> FloatArray:
        stats = np.zeros((n_groups, self.n_statistics))
        if is_sparse(block):
            accumulate_scatter_csr(stats, *csr_parts(block), groups, loads, shift)
        elif not accumulate_scatter(stats, numeric_rows(block), groups, loads, shift):
            raise unexpected_missing(self)
        return stats

    def log_predictive(self, block: Block, stats: FloatArray) -> FloatArray:
        """Return log p(x | D_k), shape (n, B): Student densities by triangular solves."""
        stats = np.ascontiguousarray(stats)
        out = np.empty((n_rows_of(block), len(stats)))
        for start in range(0, len(out), _TILE_ROWS):
            stop = start + _TILE_ROWS
            rows = dense_rows(row_slice(block, start, stop))
            columns = np.ascontiguousarray((rows - self.shift).T)
            gaussian_log_predictive(
                columns, stats, self.scatter, self.strength, self._v, self._offset,
                out[start:stop],
            )  # fmt: skip
        return self._finite(out, "log_predictive")

    def feature_means(self, stats: FloatArray) -> FloatArray:
        """Return the mean of each column, shape (B, D); NaN for empty groups."""
        n = stats[:, :1]
        total = stats[:, 1 : 1 + self.n_features]
        unknown = np.full(total.shape, np.nan)
        return np.asarray(self.shift + np.divide(total, n, out=unknown, where=n > 0))

    def feature_information(self, stats_a: FloatArray, stats_b: FloatArray) -> FloatArray:
        """Return the mutual information of each column with membership, in nats."""
        stats = np.stack([stats_a, stats_b])
        n, pull, posterior = self._posterior(stats)
        total = self.strength + n
        freedom = self._v + n - self.n_features + 1.0
        variances = np.diagonal(posterior, axis1=1, axis2=2)
        spread = variances * ((total + 1.0) / (total * freedom))[:, None]
        freedoms = np.repeat(freedom[:, None], self.n_features, axis=1)
        centres = pull / total[:, None]
        return student_information(freedoms, centres, np.sqrt(spread), n)

    @property
    def parameters(self) -> FloatArray:
        """Mean, log strength, log (degrees - D + 1), Cholesky factor of the scatter.

        The factor row by row, its diagonal as logarithms; h = D + 2 + D (D + 1) / 2.
        """
        factor = np.linalg.cholesky(self.scatter)
        np.fill_diagonal(factor, np.log(np.diagonal(factor)))
        excess = self._v - self.n_features + 1.0
        return np.concatenate([self.mean, np.log([self.strength, excess]), factor[self._lower]])

    @property
    def parameter_reach(self) -> FloatArray:
        """Means and entries below the diagonal of the factor may go anywhere."""
        rows, columns = self._lower
        factor = np.where(rows == columns, LOG_REACH, np.inf)
        return np.concatenate([np.full(self.n_features, np.inf), [LOG_REACH] * 2, factor])

    def with_parameters(self, vector: FloatArray) -> Self:
        """Return the family with hyperparameters from such a vector; same shift."""
        size = self.n_features
        factor = np.zeros((size, size))
        factor[self._lower] = vector[size + 2 :]
        np.fill_diagonal(factor, np.exp(np.diagonal(factor)))
        return dataclasses.replace(
            self,
            mean=np.array(vector[:size]),
            strength=float(np.exp(vector[size])),
            degrees=float(np.exp(vector[size + 1])) + size - 1.0,
            scatter=factor @ factor.T,
            scale=None,
            covariance=None,
            scale_candidates=(),
        )

    def gradient(self, stats: FloatArray) -> FloatArray:
        """Return d log f / d parameters, shape (B, h)."""
        step = max(1, _MATRIX_CELLS // self.n_features**2)
        parts = [
            self._gradient(stats[start : start + step]) for start in range(0, len(stats), step)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.parameters)))

    def _gradient(self, stats: FloatArray) -> FloatArray:
        size, r, v = self.n_features, self.strength, self._v
        n, pull, posterior = self._posterior(stats)
        total, degrees = r + n, v + n
        inverse = np.linalg.inv(posterior)
        drift = pull / total[:, None] - self._offset  # posterior mean minus prior mean
        solved = np.einsum("bij,bj->bi", inverse, drift)
        by_mean = (degrees * r)[:, None] * solved
        by_strength = 0.5 * size * (1.0 / r - 1.0 / total)
        by_strength -= 0.5 * degrees * np.einsum("bi,bi->b", drift, solved)
        halves = 0.5 * np.arange(size)
        gammas = digamma(0.5 * degrees[:, None] - halves) - digamma(0.5 * v - halves)
        log_dets = np.linalg.slogdet(posterior)[1]
        by_degrees = 0.5 * (self._log_det - log_dets + gammas.sum(axis=1))
        by_scatter = 0.5 * v * np.linalg.inv(self.scatter)
        by_scatter = by_scatter - 0.5 * degrees[:, None, None] * inverse
        factor = np.linalg.cholesky(self.scatter)
        by_factor = 2.0 * by_scatter @ factor
        diagonal = np.arange(size)
        by_factor[:, diagonal, diagonal] *= np.diagonal(factor)
        return np.column_stack(
            [
                by_mean,
                r * by_strength,
                (v - size + 1.0) * by_degrees,
                by_factor[:, *self._lower],
            ]
        )

    def row_functions(self) -> RowFunctions:
        """Return the compiled add, remove and log_predictive of one row."""
        return RowFunctions(gaussian_add, gaussian_remove, gaussian_log_predictive_row)

    def row_parameters(self) -> tuple[Any, ...]:
        """Return ``(shift, scatter, strength, degrees, offset)``."""
        return self.shift, self.scatter, self.strength, self._v, self._offset

    @property
    def _v(self) -> float:
        assert self.degrees is not None
        return self.degrees

    @cached_property
    def _offset(self) -> FloatArray:
        """Prior mean minus the shift of the statistics; zero until parameters move."""
        offset: FloatArray = self.mean - self.shift
        return offset

    @cached_property
    def _log_det(self) -> float:
        return float(np.linalg.slogdet(self.scatter)[1])

    @cached_property
    def _lower(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        return np.tril_indices(self.n_features)

    def _posterior(self, stats: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return n (B,), s + r offset (B, D) and S' (B, D, D)."""
        size, r, offset = self.n_features, self.strength, self._offset
        n = stats[:, 0]
        pull = stats[:, 1 : 1 + size] + r * offset
        moment = unpack_triangle(stats[:, 1 + size :], size)
        outer = pull[:, :, None] * pull[:, None, :] / (r + n)[:, None, None]
        return n, pull, self.scatter + r * np.outer(offset, offset) + (moment - outer)

    def _pairs(
        self, stats: FloatArray, lefts: IntArray, other: FloatArray, rights: IntArray
    ) -> FloatArray:
        out = np.empty(len(lefts))
        gaussian_pairs(
            stats, lefts, other, rights,
            self.scatter, self.strength, self._v, self._offset, self._log_det, out,
        )  # fmt: skip
        return self._finite(out, "log_marginal")

    def _finite(self, values: FloatArray, method: str) -> FloatArray:
        if np.isnan(values).any():
            raise InputError(
                f"Gaussian.{method}",
                "a positive definite posterior scatter matrix",
                "one that is not, even with jitter",
                "Bring the columns to comparable scales, or use DiagonalGaussian.",
            )
        return values


def unpack_triangle(upper: FloatArray, size: int) -> FloatArray:
    """Return symmetric matrices (B, D, D) from upper triangles (B, D (D + 1) / 2)."""
    rows, columns = np.triu_indices(size)
    out = np.empty((len(upper), size, size))
    out[:, rows, columns] = upper
    out[:, columns, rows] = upper
    return out


def _ridged(covariance: FloatArray, constant: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the covariance with exact zeros for constant columns, and a ridge."""
    clean = np.where(constant[:, None] | constant[None, :], 0.0, covariance)
    mean_variance = np.trace(clean) / len(clean)
    if mean_variance <= 0.0:
        return np.eye(len(clean))
    return np.asarray(clean + 1e-6 * mean_variance * np.eye(len(clean)))


def _check_scatter(scatter: object) -> FloatArray:
    where, expected = "Gaussian(scatter)", "a symmetric positive definite matrix"
    matrix = np.array(scatter, dtype=np.float64)
    if matrix.ndim == 0:
        matrix = matrix.reshape(1, 1)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        got = f"shape {matrix.shape}"
        raise InputError(where, expected, got, "Pass a (D, D) matrix.")
    symmetric = np.allclose(matrix, matrix.T, rtol=1e-10, atol=0.0)
    definite = np.isfinite(matrix).all() and np.linalg.eigvalsh(matrix)[0] > 0.0
    if not (symmetric and definite):
        raise InputError(where, expected, "one that is not", "Add a ridge to its diagonal.")
    return np.ascontiguousarray(0.5 * (matrix + matrix.T))
