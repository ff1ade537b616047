"""Binary columns, each with its own Beta prior."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import digamma, gammaln

from distclust.families._blocks import Block, FloatArray, IntArray, product
from distclust.families._checks import Hyperparameter, check_positive, refuse
from distclust.families._counts import (
    accumulate_counts_of,
    count_summary,
    jensen_shannon,
    split_missing,
)
from distclust.families._numerics import (
    bernoulli_add,
    bernoulli_base,
    bernoulli_log_predictive_row,
    bernoulli_pairs,
    bernoulli_remove,
)
from distclust.families.base import CompiledFamily, RowFunctions, group_chunks
from distclust.families.columns import Column, Profile
from distclust.families.registry import register_family


@register_family
@dataclass(frozen=True, eq=False, repr=False)
class Bernoulli(CompiledFamily):
    r"""Independent binary columns with Beta priors.

    Parameters
    ----------
    alpha, beta
        Pseudo-counts of ones and zeros: numbers, or one a column. Left out, they are
        ``kappa * m`` and ``kappa * (1 - m)`` with the smoothed column means
        ``m = (n_ones + 0.5) / (n_observed + 1)``.
    kappa
        Total pseudo-count of the empirical prior.

    Notes
    -----
    Statistics of a group: ``[n, ones (D)]``, and ``observed (D)`` after them when entries
    are missing. With them,

    .. math::
        \log f = \sum_d \log B(\alpha_d + n_{1d}, \beta_d + n_{0d}) - \log B(\alpha_d, \beta_d)

    Missing entries are not counted, which marginalises them exactly.

    Examples
    --------
    >>> import numpy as np
    >>> family = Bernoulli(alpha=1, beta=1, n_features=2)
    >>> rows = np.array([[1, 0], [1, 1], [0, 0]])
    >>> stats = family.accumulate(rows, [0, 0, 0], 1)
    >>> stats
    array([[3., 2., 1.]])
    >>> round(float(family.log_marginal(stats)[0]), 6)
    -4.969813
    """

    name = "bernoulli"
    supports_missing = True
    positive = ("alpha", "beta")

    alpha: Hyperparameter = None
    beta: Hyperparameter = None
    kappa: float = 2.0

    def __post_init__(self) -> None:
        self._assign("kappa", check_positive(self.kappa, "Bernoulli(kappa)"))
        super().__post_init__()

    @property
    def n_statistics(self) -> int:
        """Length of the statistics of a group."""
        return 1 + self.n_features * (2 if self.has_missing else 1)

    def check(self, profile: Profile, columns: Sequence[Column], where: str) -> None:
        """Refuse anything but zeros, ones and NaN."""
        super().check(profile, columns, where)
        expected = "zeros and ones for the Bernoulli family"
        hint = "Binarise the column, or choose another family."
        refuse(profile.minimum < 0, columns, where, expected, profile.minimum, hint)
        refuse(profile.maximum > 1, columns, where, expected, profile.maximum, hint)
        fractional = ~np.asarray(profile.all_integer, dtype=bool)
        refuse(fractional, columns, where, expected, "a fraction", hint)

    def summarise(
        self, block: Block, origin: FloatArray, weights: FloatArray | None = None
    ) -> FloatArray:
        """Return ``[n, ones (D)]``, with ``observed (D)`` when entries are missing."""
        return count_summary(self, block, weights)

    def summary_of(self, profile: Profile) -> FloatArray:
        """Return the same from the profile: ones are the entries that are not zero."""
        observed = profile.n_rows - profile.n_missing
        parts = (profile.n_nonzero, observed) if self.has_missing else (profile.n_nonzero,)
        return np.concatenate([np.array([profile.n_rows]), *parts]).astype(np.float64)

    def resolve(
        self,
        summary: FloatArray,
        origin: FloatArray,
        profile: Profile,
        columns: Sequence[Column],
    ) -> Self:
        """Fill in the empirical prior where `alpha` or `beta` were left out."""
        family = self.prepare(profile, columns)
        ones = summary[1 : 1 + family.n_features]
        observed = family._observed(summary[None])[0]
        mean = (ones + 0.5) / (observed + 1.0)
        alpha = family.kappa * mean if family.alpha is None else family.alpha
        beta = family.kappa * (1.0 - mean) if family.beta is None else family.beta
        return dataclasses.replace(family, alpha=alpha, beta=beta)

    def accumulate(
        self,
        block: Block,
        labels: npt.ArrayLike,
        n_groups: int,
        weights: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Return the statistics of each group of rows, shape (n_groups, p)."""
        return accumulate_counts_of(self, block, labels, n_groups, weights, first=1)

    def log_base(self, n: float) -> float:
        """Return the log marginal of `n` rows of zeros, as `log_marginal` adds it up."""
        scratch = np.empty(self.n_features)
        _, log_gamma_beta, log_gamma_total = self._log_gammas
        return bernoulli_base(
            float(n), self.alpha, self.beta, log_gamma_beta, log_gamma_total, scratch
        )

    def affine(self, stats: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return weights (D, B) and constants (B,): log p(x | D_k) = x @ weights + constants.

        For complete binary rows.
        """
        log_one, log_zero = self._log_probabilities(stats)
        return np.ascontiguousarray((log_one - log_zero).T), log_zero.sum(axis=1)

    def log_predictive(self, block: Block, stats: FloatArray) -> FloatArray:
        """Return log p(x | D_k), shape (n, B), by matrix products."""
        out = np.empty((block.shape[0], len(stats)))
        rows, observed = split_missing(block)
        for groups in group_chunks(len(stats), self.n_features):
            if observed is None:
                weights, constants = self.affine(stats[groups])
                out[:, groups] = product(rows, weights) + constants
            else:
                log_one, log_zero = self._log_probabilities(stats[groups])
                out[:, groups] = product(rows, (log_one - log_zero).T)
                out[:, groups] += product(observed, log_zero.T)
        return out

    def entry_log_predictive(self, column: int, value: float, stats: FloatArray) -> FloatArray:
        """Return log p(x_column = value | D_k), shape (B,)."""
        ones = stats[:, 1 + column]
        observed = self._observed(stats)[:, column]
        alpha, beta = self.alpha[column], self.beta[column]
        hits = alpha + ones if value else beta + (observed - ones)
        log_probability: FloatArray = np.log(hits / (alpha + beta + observed))
        return log_probability

    def feature_means(self, stats: FloatArray) -> FloatArray:
        """Return the share of ones among the observed entries, shape (B, D)."""
        observed = self._observed(stats)
        unknown = np.full(observed.shape, np.nan)
        ones = stats[:, 1 : 1 + self.n_features]
        return np.asarray(np.divide(ones, observed, out=unknown, where=observed > 0))

    def feature_information(self, stats_a: FloatArray, stats_b: FloatArray) -> FloatArray:
        """Return the mutual information of each column with membership, in nats."""
        information: FloatArray = self.feature_informations(stats_a[None], stats_b[None])[0]
        return information

    def feature_informations(self, stats_a: FloatArray, stats_b: FloatArray) -> FloatArray:
        """Return the mutual information of columns with membership in pairs of groups, (B, D)."""
        a, b = (np.stack(self._log_probabilities(stats), axis=-1) for stats in (stats_a, stats_b))
        return jensen_shannon(np.exp(a), np.exp(b), stats_a[:, :1, None], stats_b[:, :1, None])

    def gradient(self, stats: FloatArray) -> FloatArray:
        """Return d log f / d (log alpha, log beta), shape (B, 2 D)."""
        ones = stats[:, 1 : 1 + self.n_features]
        observed = self._observed(stats)
        alpha, beta = self.alpha, self.beta
        shared = digamma(alpha + beta) - digamma(alpha + beta + observed)
        by_alpha = alpha * (digamma(alpha + ones) - digamma(alpha) + shared)
        by_beta = beta * (digamma(beta + (observed - ones)) - digamma(beta) + shared)
        return np.concatenate([by_alpha, by_beta], axis=1)

    def row_functions(self) -> RowFunctions:
        """Return the compiled add, remove and log_predictive of one row."""
        return RowFunctions(bernoulli_add, bernoulli_remove, bernoulli_log_predictive_row)

    def row_parameters(self) -> tuple[Any, ...]:
        """Return ``(alpha, beta, missing)``."""
        return self.alpha, self.beta, int(self.has_missing)

    @cached_property
    def _log_gammas(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        pseudo_counts = self.alpha, self.beta, self.alpha + self.beta
        a, b, total = (np.asarray(gammaln(values)) for values in pseudo_counts)
        return a, b, total

    def _pairs(
        self, stats: FloatArray, lefts: IntArray, other: FloatArray, rights: IntArray
    ) -> FloatArray:
        out = np.empty(len(lefts))
        bernoulli_pairs(
            stats, lefts, other, rights, self.alpha, self.beta,
            *self._log_gammas, self.has_missing, out,
        )  # fmt: skip
        return out

    def _observed(self, stats: FloatArray) -> FloatArray:
        """Return the numbers of observed entries, shape (B, D)."""
        if self.has_missing:
            return stats[:, 1 + self.n_features :]
        return np.broadcast_to(stats[:, :1], (len(stats), self.n_features))

    def _log_probabilities(self, stats: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return log p(x_d = 1 | D_k) and log p(x_d = 0 | D_k), each (B, D)."""
        ones = stats[:, 1 : 1 + self.n_features]
        observed = self._observed(stats)
        log_total = np.log(self.alpha + self.beta + observed)
        log_one = np.log(self.alpha + ones) - log_total
        log_zero = np.log(self.beta + (observed - ones)) - log_total
        return log_one, log_zero
