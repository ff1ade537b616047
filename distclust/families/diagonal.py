"""Real columns, each Gaussian with its own normal-gamma prior."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import digamma

from distclust.families._blocks import (
    Block,
    FloatArray,
    IntArray,
    csr_parts,
    dense_rows,
    is_sparse,
    n_rows_of,
    numeric_rows,
)
from distclust.families._checks import Hyperparameter, check_labels
from distclust.families._counts import row_chunks, unexpected_missing
from distclust.families._diagonal_numerics import (
    accumulate_moments,
    accumulate_moments_csr,
    add_zeros,
    diagonal_add,
    diagonal_log_predictive,
    diagonal_log_predictive_csr,
    diagonal_log_predictive_row,
    diagonal_pairs,
    diagonal_remove,
)
from distclust.families._students import (
    SCALE_GRID,
    check_mean,
    check_scale,
    log_student,
    student_information,
)
from distclust.families.base import CompiledFamily, RowFunctions
from distclust.families.columns import Column, Profile
from distclust.families.registry import register_family


@register_family
@dataclass(frozen=True, eq=False, repr=False)
class DiagonalGaussian(CompiledFamily):
    r"""Independent Gaussian columns with normal-gamma priors.

    Parameters
    ----------
    mean
        Prior means m: a number, or one a column; left out, the column means.
    strength
        How many rows the prior mean is worth, r: a number, or one a column.
    shape
        Shape a of the Gamma prior on the precision: a number, or one a column.
    rate
        Its rate b: a number, or one a column; left out, ``scale`` times the column's
        variance. Constant columns get 1e-6 of the mean variance (all constant: 1), for
        they still need a density.
    scale
        The factor g of the variance. The default "auto" starts at 0.03 and offers
        `scale_grid` to a search.

    Notes
    -----
    Statistics of a group: ``[n, s (D), q (D)]``, sums of y and y^2 of the shifted rows
    y = x - shift, and ``observed (D)`` after them when entries are missing. With
    :math:`a' = a + n/2`, :math:`r' = r + n` and :math:`b' = b + (q - s^2 / r') / 2`,

    .. math::
        \log f = \sum_d \log \Gamma(a') - \log \Gamma(a) + a \log b - a' \log b'
                 + \tfrac12 \log \tfrac{r}{r'} - \tfrac n2 \log 2 \pi

    Missing entries are not counted, which marginalises them exactly. For one column it
    is the normal-inverse-Wishart with v = 2 a and S = 2 b.
    """

    name = "diagonal_gaussian"
    supports_missing = True
    positive = ("strength", "shape", "rate")

    mean: Hyperparameter = None
    strength: Hyperparameter = 0.05
    shape: Hyperparameter = 1.5
    rate: Hyperparameter = None
    scale: Any = "auto"
    shift: Any = dataclasses.field(default=None, kw_only=True)
    variance: FloatArray | None = dataclasses.field(default=None, kw_only=True)
    scale_candidates: tuple[float, ...] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        self._assign("scale", check_scale(self.scale, "DiagonalGaussian(scale)"))
        self._assign("scale_candidates", tuple(self.scale_candidates))
        self._assign("mean", check_mean(self.mean, "DiagonalGaussian(mean)"))
        super().__post_init__()
        self._broadcast(["mean", *self.positive])
        if self.shift is None and isinstance(self.mean, np.ndarray):
            self._assign("shift", self.mean.copy())

    @property
    def is_resolved(self) -> bool:
        """Whether every hyperparameter has its value."""
        return super().is_resolved and isinstance(self.mean, np.ndarray)

    @property
    def n_statistics(self) -> int:
        """Length of the statistics of a group."""
        return 1 + self.n_features * (3 if self.has_missing else 2)

    @property
    def scale_grid(self) -> tuple[float, ...]:
        """Scales among which a search should choose."""
        return self.scale_candidates

    def with_scale(self, scale: float) -> Self:
        """Return the family with b = scale * variance, if b came from the data."""
        if self.variance is None:
            return self
        return dataclasses.replace(self, scale=scale, rate=scale * self.variance)

    def summarise(
        self, block: Block, origin: FloatArray, weights: FloatArray | None = None
    ) -> FloatArray:
        """Return the statistics of the block, shifted by `origin`."""
        groups, loads = check_labels(np.zeros(n_rows_of(block)), 1, weights, n_rows_of(block))
        return np.asarray(self._accumulate(block, groups, loads, 1, origin)[0])

    def resolve(
        self,
        summary: FloatArray,
        origin: FloatArray,
        profile: Profile,
        columns: Sequence[Column],
    ) -> Self:
        """Fill in the empirical prior where `mean` or `rate` were left out."""
        family = self.prepare(profile, columns)
        n, s, q = (part[0] for part in family._moments(summary[None]))
        n = np.maximum(n, 1.0)
        changes: dict[str, Any] = {}
        if family.mean is None:
            changes["mean"] = origin + s / n
        if family.rate is None:
            varies = profile.minimum < profile.maximum
            variance = np.where(varies, np.maximum(0.0, q / n - (s / n) ** 2), 0.0)
            spare = 1e-6 * variance.mean() if variance.any() else 1.0
            variance = np.where(variance > 0.0, variance, spare)
            automatic = family.scale == "auto" or family.scale is None
            scale = 0.03 if automatic else family.scale
            changes["scale"], changes["variance"] = scale, variance
            changes["rate"] = scale * variance
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
        self, block: Block, groups: IntArray, loads: FloatArray, n_groups: int, shift: FloatArray
    ) -> FloatArray:
        stats = np.zeros((n_groups, self.n_statistics))
        n_nonzero = np.zeros((n_groups, self.n_features))
        observed_at = 1 + 2 * self.n_features if self.has_missing else 0
        if is_sparse(block):
            accumulate_moments_csr(
                stats, *csr_parts(block), groups, loads, shift, observed_at, n_nonzero
            )
        elif not accumulate_moments(
            stats, numeric_rows(block), groups, loads, shift, observed_at, n_nonzero
        ):
            raise unexpected_missing(self)
        add_zeros(stats, shift, observed_at, n_nonzero)
        return stats

    def _pairs(
        self, stats: FloatArray, lefts: IntArray, other: FloatArray, rights: IntArray
    ) -> FloatArray:
        out = np.empty(len(lefts))
        one_shape = bool(np.all(self.shape == self.shape[0]))
        diagonal_pairs(
            stats, lefts, other, rights, self.strength, self.shape, self.rate, self._offset,
            one_shape, self.has_missing, out,
        )  # fmt: skip
        return out

    def log_predictive(self, block: Block, stats: FloatArray) -> FloatArray:
        """Return log p(x | D_k), products of Student densities, shape (n, B)."""
        stats = np.ascontiguousarray(stats)
        out = np.empty((n_rows_of(block), len(stats)))
        if is_sparse(block):
            diagonal_log_predictive_csr(
                *csr_parts(block), self.shift, stats, self.strength, self.shape, self.rate,
                self._offset, self.has_missing, out,
            )  # fmt: skip
            return out
        for rows in row_chunks(block, self.n_features):
            shifted = dense_rows(block[rows]) - self.shift
            diagonal_log_predictive(
                shifted, stats, self.strength, self.shape, self.rate, self._offset,
                self.has_missing, out[rows],
            )  # fmt: skip
        return out

    def entry_log_predictive(self, column: int, value: float, stats: FloatArray) -> FloatArray:
        """Return the log density of x_column = value given D_k, shape (B,)."""
        freedom, centre, spread = (part[:, column] for part in self._students(stats))
        return log_student(np.full(len(stats), value - self.shift[column]), freedom, centre, spread)

    def feature_means(self, stats: FloatArray) -> FloatArray:
        """Return the mean of the observed entries, shape (B, D)."""
        n, s, _ = self._moments(stats)
        unknown = np.full(s.shape, np.nan)
        means: FloatArray = self.shift + np.divide(s, n, out=unknown, where=n > 0)
        return means

    def feature_information(self, stats_a: FloatArray, stats_b: FloatArray) -> FloatArray:
        """Return the mutual information of each column with membership, in nats."""
        stats = np.stack([stats_a, stats_b])
        return student_information(*self._students(stats), stats[:, 0])

    @property
    def parameters(self) -> FloatArray:
        """Means, then logarithms of strengths, shapes and rates; h = 4 D."""
        return np.concatenate([self.mean, super().parameters])

    @property
    def parameter_reach(self) -> FloatArray:
        """Means may go anywhere."""
        reach = super().parameter_reach
        reach[: self.n_features] = np.inf
        return reach

    def with_parameters(self, vector: FloatArray) -> Self:
        """Return the family with hyperparameters from such a vector; same shift."""
        mean = np.array(vector[: self.n_features])
        free = dataclasses.replace(self, mean=mean, scale=None, variance=None, scale_candidates=())
        return super(DiagonalGaussian, free).with_parameters(vector[self.n_features :])

    def gradient(self, stats: FloatArray) -> FloatArray:
        """Return d log f / d parameters, shape (B, 4 D)."""
        n, s, _ = self._moments(stats)
        total, shapes, rates = self._posterior(stats)
        precision = shapes / rates
        drift = (s - n * self._offset) / total  # posterior mean minus prior mean
        by_strength = 0.5 * (1.0 / self.strength - 1.0 / total) - 0.5 * precision * drift**2
        by_shape = digamma(shapes) - digamma(self.shape) + np.log(self.rate / rates)
        by_rate = self.shape / self.rate - precision
        return np.concatenate(
            [
                precision * self.strength * drift,
                self.strength * by_strength,
                self.shape * by_shape,
                self.rate * by_rate,
            ],
            axis=1,
        )

    def row_functions(self) -> RowFunctions:
        """Return the compiled add, remove and log_predictive of one row."""
        return RowFunctions(diagonal_add, diagonal_remove, diagonal_log_predictive_row)

    def row_parameters(self) -> tuple[Any, ...]:
        """Return ``(shift, strength, shape, rate, offset, missing)``."""
        prior = self.strength, self.shape, self.rate
        return self.shift, *prior, self._offset, int(self.has_missing)

    @cached_property
    def _offset(self) -> FloatArray:
        """Prior mean minus the shift of the statistics; zero until parameters move."""
        offset: FloatArray = self.mean - self.shift
        return offset

    def _moments(self, stats: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return n, s and q of the groups, each (B, D)."""
        size = self.n_features
        s, q = stats[:, 1 : 1 + size], stats[:, 1 + size : 1 + 2 * size]
        if self.has_missing:
            return stats[:, 1 + 2 * size :], s, q
        return np.broadcast_to(stats[:, :1], s.shape), s, q

    def _posterior(self, stats: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return r', a' and b' of the groups, each (B, D)."""
        n, s, q = self._moments(stats)
        total = self.strength + n
        pull = s + self.strength * self._offset
        extra = q + self.strength * self._offset**2 - pull**2 / total
        return total, self.shape + 0.5 * n, self.rate + 0.5 * np.maximum(0.0, extra)

    def _students(self, stats: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return freedom, centre (of y) and spread of the predictives, each (B, D)."""
        _, s, _ = self._moments(stats)
        total, shapes, rates = self._posterior(stats)
        centre = (s + self.strength * self._offset) / total
        return 2.0 * shapes, centre, np.sqrt(rates * (total + 1.0) / (shapes * total))
