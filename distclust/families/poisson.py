"""Columns of counts, each Poisson with a Gamma prior."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import digamma, gammaln

from distclust.families._blocks import Block, FloatArray, IntArray, n_rows_of, product
from distclust.families._checks import Hyperparameter
from distclust.families._counts import (
    RisingLogs,
    accumulate_counts_of,
    as_csr,
    check_counts,
    count_summary,
    jensen_shannon,
    row_chunks,
    split_missing,
)
from distclust.families._counts_numerics import (
    poisson_add,
    poisson_log_predictive_row,
    poisson_pairs,
    poisson_remove,
)
from distclust.families.base import CompiledFamily, RowFunctions, group_chunks
from distclust.families.columns import Column, Profile
from distclust.families.registry import register_family

_MAX_OUTCOMES = 4096  # more outcomes than this are sampled at even steps


@register_family
@dataclass(frozen=True, eq=False, repr=False)
class Poisson(CompiledFamily):
    r"""Independent counts with Gamma priors on their rates.

    Parameters
    ----------
    shape
        Shape a of the Gamma prior: a number, or one a column.
    rate
        Rate b of the Gamma prior: a number, or one a column. Left out, it is
        ``shape / max(column mean, 1e-3)``, so that the prior mean is the column's.

    Notes
    -----
    Statistics of a group: ``[n, sum of log x!, counts t (D)]``, and ``observed (D)``
    after them when entries are missing. With them,

    .. math::
        \log f = \sum_d a_d \log \tfrac{b_d}{b_d + n} + \log \Gamma(a_d + t_d)
                 - \log \Gamma(a_d) - t_d \log(b_d + n) \; - \sum \log x!

    Missing entries are not counted, which marginalises them exactly.
    """

    name = "poisson"
    supports_missing = True
    positive = ("shape", "rate")

    shape: Hyperparameter = 1.0
    rate: Hyperparameter = None

    @property
    def n_statistics(self) -> int:
        """Length of the statistics of a group."""
        return 2 + self.n_features * (2 if self.has_missing else 1)

    def check(self, profile: Profile, columns: Sequence[Column], where: str) -> None:
        """Refuse anything but counts and NaN."""
        super().check(profile, columns, where)
        check_counts("Poisson", profile, columns, where)

    def summarise(
        self, block: Block, origin: FloatArray, weights: FloatArray | None = None
    ) -> FloatArray:
        """Return the statistics of the block."""
        return count_summary(self, block, weights)

    def resolve(
        self,
        summary: FloatArray,
        origin: FloatArray,
        profile: Profile,
        columns: Sequence[Column],
    ) -> Self:
        """Fill in the empirical prior if `rate` was left out."""
        family = self.prepare(profile, columns)
        if family.rate is not None:
            return family
        means = np.nan_to_num(family.feature_means(summary[None])[0])
        return dataclasses.replace(family, rate=family.shape / np.maximum(means, 1e-3))

    def accumulate(
        self,
        block: Block,
        labels: npt.ArrayLike,
        n_groups: int,
        weights: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Return the statistics of each group of rows, shape (n_groups, p)."""
        return accumulate_counts_of(
            self, block, labels, n_groups, weights, first=2, factorials=True
        )

    def _pairs(
        self, stats: FloatArray, lefts: IntArray, other: FloatArray, rights: IntArray
    ) -> FloatArray:
        out = np.empty(len(lefts))
        poisson_pairs(
            stats, lefts, other, rights, self.shape, self.rate, *self._logs,
            self.has_missing, out,
        )  # fmt: skip
        return out

    def log_predictive(self, block: Block, stats: FloatArray) -> FloatArray:
        """Return log p(x | D_k), products of negative binomials, shape (n, B)."""
        out = np.empty((n_rows_of(block), len(stats)))
        for groups in group_chunks(len(stats), self.n_features):
            size = self.shape + self._counts(stats[groups])
            after = self.rate + self._observed(stats[groups])
            rising = RisingLogs(np.ascontiguousarray(size.T))
            per_count = np.ascontiguousarray(-np.log1p(after).T)
            per_entry = np.ascontiguousarray(-(size * np.log1p(1.0 / after)).T)
            for rows in row_chunks(block, self.n_features):
                values, observed = split_missing(block[rows])
                counts = as_csr(values)
                part = rising.sums(counts) + counts @ per_count
                if observed is None:
                    part += per_entry.sum(axis=0)
                else:
                    part += product(observed, per_entry)
                out[rows, groups] = part - _log_factorials(counts)[:, None]
        return out

    def entry_log_predictive(self, column: int, value: float, stats: FloatArray) -> FloatArray:
        """Return log p(x_column = value | D_k), shape (B,)."""
        size = self.shape[column] + self._counts(stats)[:, column]
        after = self.rate[column] + self._observed(stats)[:, column]
        out: FloatArray = (
            gammaln(size + value)
            - gammaln(size)
            - gammaln(value + 1.0)
            - size * np.log1p(1.0 / after)
            - value * np.log1p(after)
        )
        return out

    def feature_means(self, stats: FloatArray) -> FloatArray:
        """Return the mean count of the observed entries, shape (B, D)."""
        observed = self._observed(stats)
        unknown = np.full(observed.shape, np.nan)
        return np.asarray(np.divide(self._counts(stats), observed, out=unknown, where=observed > 0))

    def feature_information(self, stats_a: FloatArray, stats_b: FloatArray) -> FloatArray:
        """Return the mutual information of each column with membership, in nats.

        Sums over the outcomes of the two negative binomials; ranges beyond a few
        thousand outcomes are summed at even steps.
        """
        from scipy.stats import nbinom  # slow to import, and needed here only

        stats = np.stack([stats_a, stats_b])
        size = self.shape + self._counts(stats)
        after = self.rate + self._observed(stats)
        success = after / (after + 1.0)
        last = nbinom.isf(1e-12, size, success).max(axis=0)
        information = np.empty(self.n_features)
        for d in range(self.n_features):
            step = int(last[d] // _MAX_OUTCOMES) + 1
            outcomes = np.arange(0, int(last[d]) + 1, step)
            tables = step * nbinom.pmf(outcomes, size[:, d, None], success[:, d, None])
            information[d] = jensen_shannon(tables[0], tables[1], stats_a[0], stats_b[0])
        return information

    def gradient(self, stats: FloatArray) -> FloatArray:
        """Return d log f / d (log shape, log rate), shape (B, 2 D)."""
        counts = self._counts(stats)
        after = self.rate + self._observed(stats)
        by_shape = np.log(self.rate / after) + digamma(self.shape + counts) - digamma(self.shape)
        by_rate = self.shape / self.rate - (self.shape + counts) / after
        return np.concatenate([self.shape * by_shape, self.rate * by_rate], axis=1)

    def row_functions(self) -> RowFunctions:
        """Return the compiled add, remove and log_predictive of one row."""
        return RowFunctions(poisson_add, poisson_remove, poisson_log_predictive_row)

    def row_parameters(self) -> tuple[Any, ...]:
        """Return ``(shape, rate, missing)``."""
        return self.shape, self.rate, int(self.has_missing)

    @cached_property
    def _logs(self) -> tuple[FloatArray, FloatArray]:
        return np.asarray(gammaln(self.shape)), np.log(self.rate)

    def _counts(self, stats: FloatArray) -> FloatArray:
        return stats[:, 2 : 2 + self.n_features]

    def _observed(self, stats: FloatArray) -> FloatArray:
        if self.has_missing:
            return stats[:, 2 + self.n_features :]
        return np.broadcast_to(stats[:, :1], (len(stats), self.n_features))


def _log_factorials(counts: Any) -> FloatArray:
    """Return the sum of log x! of every CSR row."""
    logs = counts.copy()
    logs.data = gammaln(counts.data + 1.0)
    return np.asarray(logs.sum(axis=1)).ravel()
