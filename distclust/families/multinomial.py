"""Rows of counts of K words, one Dirichlet prior over words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import digamma, gammaln

from distclust.families._blocks import Block, FloatArray, IntArray, n_rows_of
from distclust.families._checks import Hyperparameter, check_positive
from distclust.families._counts import (
    RisingLogs,
    accumulate_counts_of,
    as_csr,
    check_counts,
    count_summary,
    jensen_shannon,
    row_chunks,
)
from distclust.families._counts_numerics import (
    multinomial_add,
    multinomial_log_predictive_row,
    multinomial_pairs,
    multinomial_remove,
)
from distclust.families.base import CompiledFamily, RowFunctions, group_chunks
from distclust.families.columns import Column, Profile
from distclust.families.registry import register_family


@register_family
@dataclass(frozen=True, eq=False, repr=False)
class Multinomial(CompiledFamily):
    r"""Count vectors (words of a document) with a Dirichlet prior.

    Parameters
    ----------
    alpha
        Pseudo-counts: a number, or one a column. Left out, they are ``kappa * m`` with
        the smoothed share ``m = (count + 0.5) / (total + K / 2)`` of each column.
    kappa
        Total pseudo-count of the empirical prior; left out, the number of columns K.

    Notes
    -----
    Statistics of a group: ``[n, counts (K)]``. With C the total count and A the total
    pseudo-count,

    .. math::
        \log f = \log \Gamma(A) - \log \Gamma(A + C)
                 + \sum_k \log \Gamma(\alpha_k + c_k) - \log \Gamma(\alpha_k)

    without the multinomial coefficients, which cancel in every ratio;
    :meth:`log_coefficient` has them.
    """

    name = "multinomial"
    positive = ("alpha",)

    alpha: Hyperparameter = None
    kappa: float | None = None

    def __post_init__(self) -> None:
        self._assign("kappa", check_positive(self.kappa, "Multinomial(kappa)"))
        super().__post_init__()

    @property
    def n_statistics(self) -> int:
        """Length of the statistics of a group."""
        return 1 + self.n_features

    def check(self, profile: Profile, columns: Sequence[Column], where: str) -> None:
        """Refuse anything but counts."""
        super().check(profile, columns, where)
        check_counts("Multinomial", profile, columns, where)

    def summarise(
        self, block: Block, origin: FloatArray, weights: FloatArray | None = None
    ) -> FloatArray:
        """Return ``[n, counts (K)]``."""
        return count_summary(self, block, weights)

    def resolve(
        self,
        summary: FloatArray,
        origin: FloatArray,
        profile: Profile,
        columns: Sequence[Column],
    ) -> Self:
        """Fill in the empirical prior if `alpha` was left out."""
        family = self.prepare(profile, columns)
        if family.alpha is not None:
            return family
        counts = summary[1:]
        share = (counts + 0.5) / (counts.sum() + 0.5 * family.n_features)
        kappa = family.n_features if family.kappa is None else family.kappa
        return dataclasses.replace(family, alpha=kappa * share)

    def accumulate(
        self,
        block: Block,
        labels: npt.ArrayLike,
        n_groups: int,
        weights: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Return the statistics of each group of rows, shape (n_groups, p)."""
        return accumulate_counts_of(self, block, labels, n_groups, weights, first=1)

    def _pairs(
        self, stats: FloatArray, lefts: IntArray, other: FloatArray, rights: IntArray
    ) -> FloatArray:
        out = np.empty(len(lefts))
        multinomial_pairs(
            stats, lefts, other, rights, self.alpha, self._log_gamma_alpha, self._total, out
        )
        return out

    def log_predictive(self, block: Block, stats: FloatArray) -> FloatArray:
        """Return log p(x | D_k) without coefficients, shape (n, B)."""
        out = np.empty((n_rows_of(block), len(stats)))
        for groups in group_chunks(len(stats), self.n_features):
            rising = RisingLogs(np.ascontiguousarray((self.alpha + stats[groups, 1:]).T))
            total = self._total + stats[groups, 1:].sum(axis=1)
            for rows in row_chunks(block, self.n_features):
                counts = as_csr(block[rows])
                tokens = np.asarray(counts.sum(axis=1)).reshape(-1, 1)
                part = rising.sums(counts)
                out[rows, groups] = part - (gammaln(total + tokens) - gammaln(total))
        return out

    def log_coefficient(self, block: Block) -> FloatArray:
        """Return log (|x|! / prod x_k!) of every row, shape (n,)."""
        out = np.empty(n_rows_of(block))
        for rows in row_chunks(block, self.n_features):
            counts = as_csr(block[rows])
            logs = sparse.csr_array(
                (gammaln(counts.data + 1.0), counts.indices, counts.indptr), shape=counts.shape
            )
            tokens = np.asarray(counts.sum(axis=1)).ravel()
            out[rows] = gammaln(tokens + 1.0) - np.asarray(logs.sum(axis=1)).ravel()
        return out

    def feature_means(self, stats: FloatArray) -> FloatArray:
        """Return the mean count of each column a row, shape (B, K)."""
        n = stats[:, :1]
        unknown = np.full((len(stats), self.n_features), np.nan)
        return np.asarray(np.divide(stats[:, 1:], n, out=unknown, where=n > 0))

    def feature_information(self, stats_a: FloatArray, stats_b: FloatArray) -> FloatArray:
        """Return, for each word, what "this token is it" says about membership, in nats."""
        tables = []
        for stats in (stats_a, stats_b):
            share = (self.alpha + stats[1:]) / (self._total + stats[1:].sum())
            tables.append(np.stack([share, 1.0 - share], axis=-1))
        return jensen_shannon(tables[0], tables[1], stats_a[0], stats_b[0])

    def gradient(self, stats: FloatArray) -> FloatArray:
        """Return d log f / d log alpha, shape (B, K)."""
        counts = stats[:, 1:]
        shared = digamma(self._total) - digamma(self._total + counts.sum(axis=1))
        by_alpha = digamma(self.alpha + counts) - digamma(self.alpha) + shared[:, None]
        out: FloatArray = self.alpha * by_alpha
        return out

    def row_functions(self) -> RowFunctions:
        """Return the compiled add, remove and log_predictive of one row."""
        return RowFunctions(multinomial_add, multinomial_remove, multinomial_log_predictive_row)

    def row_parameters(self) -> tuple[Any, ...]:
        """Return ``(alpha, total_alpha)``."""
        return self.alpha, self._total

    @cached_property
    def _log_gamma_alpha(self) -> FloatArray:
        return np.asarray(gammaln(self.alpha))

    @cached_property
    def _total(self) -> float:
        return float(self.alpha.sum())
