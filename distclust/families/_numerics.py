r"""Compiled loops of the families of counts: Bernoulli, categorical, multinomial, Poisson.

Marginals are canonical: a part that depends on the size of the group alone, then the
columns with nonzero counts in column order. Statistics of two groups are added entry by
entry (``stats[i, d] + other[j, d]``, left first), so that a pair has the very bits of the
sum of its statistics; a single group is a pair with the row of zeros.

Notation: `first` is the statistics column of feature 0, `observed_at` the column of its
number of observed entries, 0 when no entry is missing.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
AnyArray: TypeAlias = npt.NDArray[Any]


# ---- statistics -------------------------------------------------------------------------


@compiled
def scatter_rows(
    stats: FloatArray, rows: FloatArray, labels: IntArray, weights: FloatArray
) -> None:
    """Add weighted rows (n, p) to the rows of `stats` that `labels` name."""
    for i in range(rows.shape[0]):
        group = labels[i]
        if group < 0:
            continue
        for d in range(rows.shape[1]):
            stats[group, d] += weights[i] * rows[i, d]


@compiled
def accumulate_counts(
    stats: FloatArray,
    block: AnyArray,
    labels: IntArray,
    weights: FloatArray,
    first: int,
    observed_at: int,
    factorials: bool,
) -> bool:
    """Add rows of counts to groups; False if an unexpected NaN was met.

    With `factorials`, statistics column 1 receives the sum of log x!.
    """
    for i in range(block.shape[0]):
        group = labels[i]
        if group < 0:
            continue
        weight = weights[i]
        stats[group, 0] += weight
        log_factorial = 0.0
        for d in range(block.shape[1]):
            x = block[i, d]
            if x != x:
                if observed_at == 0:
                    return False
                continue
            if observed_at > 0:
                stats[group, observed_at + d] += weight
            if x != 0:
                stats[group, first + d] += weight * x
                if factorials:
                    log_factorial += math.lgamma(x + 1.0)
        if factorials:
            stats[group, 1] += weight * log_factorial
    return True


@compiled
def accumulate_bytes(counts: AnyArray, rows: AnyArray, labels: IntArray) -> None:
    """Add rows of small whole numbers to groups of 32-bit counts, many columns at a time."""
    for i in range(rows.shape[0]):
        group = labels[i]
        if group < 0:
            continue
        row, total = rows[i], counts[group]
        for d in range(rows.shape[1]):
            total[d] += row[d]


@compiled
def accumulate_counts_csr(
    stats: FloatArray,
    data: FloatArray,
    indices: AnyArray,
    indptr: AnyArray,
    labels: IntArray,
    weights: FloatArray,
    first: int,
    observed_at: int,
    factorials: bool,
) -> None:
    """Add rows of a CSR matrix to groups, as `accumulate_counts` does, in O(nonzeros)."""
    n_features = stats.shape[1] - observed_at
    for i in range(labels.shape[0]):
        group = labels[i]
        if group < 0:
            continue
        weight = weights[i]
        stats[group, 0] += weight
        log_factorial = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            stats[group, first + indices[k]] += weight * data[k]
            if factorials:
                log_factorial += math.lgamma(data[k] + 1.0)
        if factorials:
            stats[group, 1] += weight * log_factorial
        if observed_at > 0:
            for d in range(n_features):
                stats[group, observed_at + d] += weight


@compiled
def log_rising(a: float, x: float) -> float:
    r"""Return :math:`\log \Gamma(a + x) - \log \Gamma(a)` for a count `x`.

    Small whole counts multiply the rising factorial out: one logarithm, no cancellation.
    """
    if x <= 8.0 and x == math.floor(x) and a < 1e30:
        value = 1.0
        for j in range(int(x)):
            value *= a + j
        return math.log(value)
    return math.lgamma(a + x) - math.lgamma(a)


# ---- Bernoulli --------------------------------------------------------------------------


@compiled
def bernoulli_base(
    n: float,
    alpha: FloatArray,
    beta: FloatArray,
    log_gamma_beta: FloatArray,
    log_gamma_total: FloatArray,
    log_gamma_zeros: FloatArray,
) -> float:
    r"""Return the log marginal of `n` rows of zeros; fill `log_gamma_zeros`.

    .. math:: \sum_d \log B(\alpha_d, \beta_d + n) - \log B(\alpha_d, \beta_d)

    `log_gamma_zeros` receives :math:`\log \Gamma(\beta_d + n)`.
    """
    total = 0.0
    for d in range(alpha.shape[0]):
        log_gamma_zeros[d] = math.lgamma(beta[d] + n)
        total += (log_gamma_zeros[d] - log_gamma_beta[d]) - (
            math.lgamma(alpha[d] + beta[d] + n) - log_gamma_total[d]
        )
    return total


@compiled
def _bernoulli_ones(
    stats: FloatArray,
    i: int,
    other: FloatArray,
    j: int,
    n: float,
    base: float,
    alpha: FloatArray,
    beta: FloatArray,
    log_gamma_alpha: FloatArray,
    log_gamma_zeros: FloatArray,
) -> float:
    r"""Return `base` plus the columns with ones.

    .. math:: \log B(\alpha + n_1, \beta + n - n_1) - \log B(\alpha, \beta + n)
    """
    total = base
    for d in range(alpha.shape[0]):
        ones = stats[i, 1 + d] + other[j, 1 + d]
        if ones > 0.0:
            total += (math.lgamma(alpha[d] + ones) - log_gamma_alpha[d]) + (
                math.lgamma(beta[d] + (n - ones)) - log_gamma_zeros[d]
            )
    return total


@compiled
def _bernoulli_missing(
    stats: FloatArray,
    i: int,
    other: FloatArray,
    j: int,
    alpha: FloatArray,
    beta: FloatArray,
    log_gamma_alpha: FloatArray,
    log_gamma_beta: FloatArray,
    log_gamma_total: FloatArray,
) -> float:
    """Return the log marginal from counts of ones and of observed entries."""
    n_features = alpha.shape[0]
    total = 0.0
    for d in range(n_features):
        ones = stats[i, 1 + d] + other[j, 1 + d]
        observed = stats[i, 1 + n_features + d] + other[j, 1 + n_features + d]
        if observed > 0.0:
            total += (
                (math.lgamma(alpha[d] + ones) - log_gamma_alpha[d])
                + (math.lgamma(beta[d] + observed - ones) - log_gamma_beta[d])
                - (math.lgamma(alpha[d] + beta[d] + observed) - log_gamma_total[d])
            )
    return total


@compiled
def bernoulli_pairs(
    stats: FloatArray,
    lefts: IntArray,
    other: FloatArray,
    rights: IntArray,
    alpha: FloatArray,
    beta: FloatArray,
    log_gamma_alpha: FloatArray,
    log_gamma_beta: FloatArray,
    log_gamma_total: FloatArray,
    has_missing: bool,
    out: FloatArray,
) -> None:
    """Fill `out` with log f(stats[lefts] + other[rights])."""
    log_gamma_zeros = np.empty(alpha.shape[0])
    last_n = -1.0
    base = 0.0
    for k in range(out.shape[0]):
        i, j = lefts[k], rights[k]
        if has_missing:
            out[k] = _bernoulli_missing(
                stats, i, other, j, alpha, beta, log_gamma_alpha, log_gamma_beta,
                log_gamma_total,
            )  # fmt: skip
            continue
        n = stats[i, 0] + other[j, 0]
        if n != last_n:
            base = bernoulli_base(n, alpha, beta, log_gamma_beta, log_gamma_total, log_gamma_zeros)
            last_n = n
        out[k] = _bernoulli_ones(
            stats, i, other, j, n, base, alpha, beta, log_gamma_alpha, log_gamma_zeros
        )


@compiled
def bernoulli_add(
    stats_row: FloatArray, x: FloatArray, alpha: FloatArray, beta: FloatArray, missing: int
) -> None:
    """Add one row; `missing` is 1 when statistics count observed entries."""
    _add_counts(stats_row, x, 1.0, 1, missing * (1 + x.shape[0]))


@compiled
def bernoulli_remove(
    stats_row: FloatArray, x: FloatArray, alpha: FloatArray, beta: FloatArray, missing: int
) -> None:
    """Remove one row."""
    _add_counts(stats_row, x, -1.0, 1, missing * (1 + x.shape[0]))


@compiled
def bernoulli_log_predictive_row(
    x: FloatArray, stats_row: FloatArray, alpha: FloatArray, beta: FloatArray, missing: int
) -> float:
    """Return log p(x | D); NaN entries are left out."""
    n_features = x.shape[0]
    total = 0.0
    for d in range(n_features):
        if x[d] != x[d]:
            continue
        observed = stats_row[1 + n_features + d] if missing == 1 else stats_row[0]
        ones = stats_row[1 + d]
        hits = alpha[d] + ones if x[d] != 0.0 else beta[d] + (observed - ones)
        total += math.log(hits / (alpha[d] + beta[d] + observed))
    return total


@compiled
def _add_counts(
    stats_row: FloatArray, x: FloatArray, sign: float, first: int, observed_at: int
) -> None:
    stats_row[0] += sign
    for d in range(x.shape[0]):
        if x[d] == x[d]:
            stats_row[first + d] += sign * x[d]
            if observed_at > 0:
                stats_row[observed_at + d] += sign
