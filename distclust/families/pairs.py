"""The fastest pair scorer for each family; see :mod:`distclust.families.pair_scorer`."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg

from distclust.families import _pair_numerics as numerics
from distclust.families.base import Family
from distclust.families.bernoulli import Bernoulli
from distclust.families.count_pairs import count_scorer
from distclust.families.gaussian import Gaussian
from distclust.families.pair_scorer import ROUNDING, Floats, Indices, PairScorer

_TABLE_BYTES = 128 * 2**20
_MOST_ROWS = 2**31
_USEFUL = 0.1  # a larger error would leave too many candidates to settle
_SMALL_ROW = 512  # entries of the scatter matrices of a row that is as quick exactly


class BernoulliPairs(PairScorer):
    """Complete binary data: packed bits, tables of log Γ, one product for the leaves."""

    def __init__(self, family: Bernoulli, stats: Floats) -> None:
        super().__init__(family, stats)
        n_columns, n_total = family.n_features, int(stats[:, 0].sum())
        width = min(n_total + 1, max(2, _TABLE_BYTES // (16 * n_columns)))
        self._is_tabled = width == n_total + 1
        self._groups = _bernoulli_groups(family, self.stats, width)
        if self._is_tabled:
            numerics.bernoulli_own(self._groups)
        else:
            self._groups.log_f[:] = family.log_marginal(stats)
        ones, zeros = self._groups.ones, self._groups.zeros
        ends = math.lgamma(n_total + float((family.alpha + family.beta).max()) + 1.0)
        largest = max(ends, np.abs(ones).max(), np.abs(zeros).max())
        # Two sums of 2 D terms, none larger than `largest`, each rounded at every step.
        self._error = 8.0 * n_columns**2 * largest * ROUNDING
        is_row = (self._groups.n_rows == 1).all()
        self._leaf_product = self._prepare_leaf_product() if is_row else None

    def exact(self, lefts: int | Indices, rights: Indices) -> Floats:
        """See :meth:`PairScorer.exact`."""
        if not self._is_tabled:
            return super().exact(lefts, rights)
        sources = np.empty(len(rights), np.int64)
        sources[:] = lefts
        out = np.empty(len(rights))
        numerics.bernoulli_exact(self._groups, sources, rights, out)
        return out

    def row(self, k: int, others: Indices) -> tuple[Floats, float]:
        """See :meth:`PairScorer.row`."""
        out = np.empty(len(others))
        numerics.bernoulli_row(self._groups, k, others, out)
        return out, self._error

    def combine(self, i: int, j: int, log_f: float) -> None:
        """See :meth:`PairScorer.combine`."""
        numerics.bernoulli_combine(self._groups, i, j, log_f)

    def own(self) -> Floats:
        """See :meth:`PairScorer.own`."""
        return self._groups.log_f.copy()

    def compiled_groups(self) -> tuple[numerics.BernoulliGroups, float] | None:
        """See :meth:`PairScorer.compiled_groups`."""
        return (self._groups, self._error) if self._is_tabled else None

    def _prepare_leaf_product(self) -> tuple[Floats, Floats, Floats, float]:
        """log f_ij = Σ h0 + X_i·u + X_j·u + (X_i∘w)·X_j (spec 8.1)."""
        alpha, beta = self._groups.alpha, self._groups.beta
        both = np.log(alpha + beta) + np.log(alpha + beta + 1)
        h_0 = np.log(beta) + np.log(beta + 1) - both
        h_1 = np.log(alpha) + np.log(beta) - both
        h_2 = np.log(alpha) + np.log(alpha + 1) - both
        rows = self._groups.counts.astype(np.float64)
        return rows, rows * (h_2 - 2 * h_1 + h_0), rows @ (h_1 - h_0), float(h_0.sum())

    def leaf_rows(self, start: int, stop: int) -> tuple[Floats, float]:
        """See :meth:`PairScorer.leaf_rows`."""
        if self._leaf_product is None:
            return super().leaf_rows(start, stop)
        rows, weighted, own, constant = self._leaf_product
        product = weighted[start:stop] @ rows.T
        product += own[start:stop, None] + constant
        product += own
        return product, self._error


def _bernoulli_groups(family: Bernoulli, stats: Floats, width: int) -> numerics.BernoulliGroups:
    """Groups whose tables have entries for 0, 1, ..., width − 1 rows; log_f is left empty."""
    alpha, beta = family.alpha, family.beta
    both = alpha + beta
    counts = stats[:, 1:].astype(np.int32)
    prior = math.fsum(map(math.lgamma, both)) - math.fsum(
        map(math.lgamma, np.concatenate([alpha, beta]))
    )
    totals, times = np.unique(both, return_counts=True)
    multiplicity = times.astype(np.float64)
    return numerics.BernoulliGroups(
        stats,
        stats[:, 0].astype(np.int64),
        counts,
        np.packbits(counts != 0, axis=1, bitorder="little"),
        np.empty(len(stats)),
        alpha,
        beta,
        numerics.log_gamma_tables(alpha, width),
        numerics.log_gamma_tables(beta, width),
        *family._log_gammas,
        numerics.rows_part_table(width, prior, totals, multiplicity),
        prior,
        totals,
        multiplicity,
        bases=np.full(width, np.nan),
    )


class GaussianPairs(PairScorer):
    """Full covariance: leaf pairs from one Gram matrix of whitened rows (spec 8.3)."""

    def __init__(self, family: Gaussian, stats: Floats) -> None:
        super().__init__(family, stats)
        d, r = family.n_features, family.strength
        v = float(family.degrees or 0.0)
        factor = np.linalg.cholesky(family.scatter)
        rows = stats[:, 1 : d + 1] - (family.mean - family.shift)
        self._whitened = scipy.linalg.solve_triangular(factor, rows.T, lower=True).T.copy()
        self._norms = np.einsum("ij,ij->i", self._whitened, self._whitened)
        self._strength, self._half_degrees = r, 0.5 * (v + 2)
        gammas = math.fsum(
            math.lgamma((v + 3 - i) / 2) - math.lgamma((v + 1 - i) / 2) for i in range(1, d + 1)
        )
        log_det = 2.0 * float(np.log(np.diag(factor)).sum())
        self._constant = -d * math.log(math.pi) + 0.5 * d * math.log(r / (r + 2)) - log_det
        self._constant += gammas
        spread = np.sqrt(np.diag(family.scatter))
        condition = float(np.linalg.cond(family.scatter / np.outer(spread, spread)))
        self._relative_error = 32.0 * d * ROUNDING * condition
        self._log_f = family.log_marginal(stats)
        self._offset = np.ascontiguousarray(family.mean - family.shift)
        self._largest = (stats[:, 1 : d + 1] ** 2).max(axis=0)
        self._model = (family.scatter, self._offset, r, v)

    def row(self, k: int, others: Indices) -> tuple[Floats, float]:
        """See :meth:`PairScorer.row`."""
        if len(others) * (self.family.n_features + 2) ** 2 < _SMALL_ROW:
            return super().row(k, others)
        out = np.empty(len(others))
        error = numerics.gaussian_leaf_row(
            k, others, self.stats, self._log_f, *self._model, self._largest, out
        )
        if not error < _USEFUL:
            return super().row(k, others)
        groups = np.flatnonzero(np.isnan(out))
        if len(groups):
            out[groups] = self.exact(k, others[groups])
        return out, error

    def combine(self, i: int, j: int, log_f: float) -> None:
        """See :meth:`PairScorer.combine`."""
        super().combine(i, j, log_f)
        self._log_f[i] = log_f

    def leaf_rows(self, start: int, stop: int) -> tuple[Floats, float]:
        """See :meth:`PairScorer.leaf_rows`."""
        own, everyone = self._norms[start:stop], self._norms
        # The determinant formula cancels for rows that lie far from the prior mean.
        error = self._half_degrees * self._relative_error
        error *= (1.0 + float(own.max())) * (1.0 + float(everyone.max()))
        if error > _USEFUL or not (self.stats[:, 0] == 1).all():
            return super().leaf_rows(start, stop)
        gram = self._whitened[start:stop] @ self._whitened.T
        numerics.gaussian_leaf_pairs(
            gram, own, everyone, self._strength, self._half_degrees, self._constant
        )
        return gram, error


def pair_scorer(family: Family, stats: Floats) -> PairScorer:
    """Return the fastest scorer there is for a resolved family and its statistics."""
    if stats[:, 0].sum() >= _MOST_ROWS:  # counts are held in 32 bits below
        return PairScorer(family, stats)
    if isinstance(family, Bernoulli) and not family.has_missing and _is_narrow(stats):
        return BernoulliPairs(family, stats)
    if isinstance(family, Gaussian):
        return GaussianPairs(family, stats)
    return count_scorer(family, stats) or PairScorer(family, stats)


def _is_narrow(stats: Floats) -> bool:
    """Whether tables of a binary problem fit, or its rows are too dense for lists of ones."""
    n_columns = stats.shape[1] - 1
    fits = 16.0 * n_columns * (stats[:, 0].sum() + 1.0) <= _TABLE_BYTES
    return bool(fits or 8 * np.count_nonzero(stats[:, 1:]) > stats[:, 1:].size)
