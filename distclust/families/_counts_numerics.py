r"""Compiled loops of the multinomial, Poisson and categorical families.

Canonical sums, as in `_numerics.py`: a part that depends on sizes alone, then the columns
with nonzero counts in column order.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled
from distclust.families._numerics import log_rising

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
AnyArray: TypeAlias = npt.NDArray[Any]


@compiled
def add_rising(
    data: FloatArray,
    indices: AnyArray,
    indptr: AnyArray,
    posterior: FloatArray,
    out: FloatArray,
) -> None:
    r"""Add :math:`\log \Gamma(a + x) - \log \Gamma(a)` for the entries x of CSR rows.

    `posterior` (D, B) holds a, `out` (n, B).
    """
    for i in range(out.shape[0]):
        for k in range(indptr[i], indptr[i + 1]):
            d = indices[k]
            for b in range(out.shape[1]):
                out[i, b] += log_rising(posterior[d, b], data[k])


# ---- multinomial ------------------------------------------------------------------------


@compiled
def multinomial_pairs(
    stats: FloatArray,
    lefts: IntArray,
    other: FloatArray,
    rights: IntArray,
    alpha: FloatArray,
    log_gamma_alpha: FloatArray,
    total_alpha: float,
    out: FloatArray,
) -> None:
    r"""Fill `out` with log f(stats[lefts] + other[rights]).

    .. math::
        \log \Gamma(A) - \log \Gamma(A + C)
        + \sum_{k: c_k > 0} \log \Gamma(\alpha_k + c_k) - \log \Gamma(\alpha_k)
    """
    n_features = alpha.shape[0]
    for pair in range(out.shape[0]):
        i, j = lefts[pair], rights[pair]
        tokens = 0.0
        for d in range(n_features):
            tokens += stats[i, 1 + d] + other[j, 1 + d]
        total = math.lgamma(total_alpha) - math.lgamma(total_alpha + tokens)
        for d in range(n_features):
            count = stats[i, 1 + d] + other[j, 1 + d]
            if count > 0.0:
                total += math.lgamma(alpha[d] + count) - log_gamma_alpha[d]
        out[pair] = total


@compiled
def multinomial_add(
    stats_row: FloatArray, x: FloatArray, alpha: FloatArray, total_alpha: float
) -> None:
    """Add one row."""
    stats_row[0] += 1.0
    for d in range(x.shape[0]):
        stats_row[1 + d] += x[d]


@compiled
def multinomial_remove(
    stats_row: FloatArray, x: FloatArray, alpha: FloatArray, total_alpha: float
) -> None:
    """Remove one row."""
    stats_row[0] -= 1.0
    for d in range(x.shape[0]):
        stats_row[1 + d] -= x[d]


@compiled
def multinomial_log_predictive_row(
    x: FloatArray, stats_row: FloatArray, alpha: FloatArray, total_alpha: float
) -> float:
    """Return log p(x | D), without the multinomial coefficient."""
    value, tokens, posterior = 0.0, 0.0, total_alpha
    for d in range(x.shape[0]):
        posterior += stats_row[1 + d]
        if x[d] > 0.0:
            tokens += x[d]
            value += log_rising(alpha[d] + stats_row[1 + d], x[d])
    return value - log_rising(posterior, tokens)


# ---- Poisson ----------------------------------------------------------------------------


@compiled
def poisson_base(
    n: float, shape: FloatArray, rate: FloatArray, log_rate: FloatArray, log_rates: FloatArray
) -> float:
    r"""Return :math:`\sum_d a_d (\log b_d - \log(b_d + n))`; fill `log_rates`.

    `log_rates` receives :math:`\log(b_d + n)`.
    """
    total = 0.0
    for d in range(shape.shape[0]):
        log_rates[d] = math.log(rate[d] + n)
        total += shape[d] * (log_rate[d] - log_rates[d])
    return total


@compiled
def poisson_pairs(
    stats: FloatArray,
    lefts: IntArray,
    other: FloatArray,
    rights: IntArray,
    shape: FloatArray,
    rate: FloatArray,
    log_gamma_shape: FloatArray,
    log_rate: FloatArray,
    has_missing: bool,
    out: FloatArray,
) -> None:
    r"""Fill `out` with log f(stats[lefts] + other[rights]).

    .. math::
        \sum_d a_d \log \tfrac{b_d}{b_d + n} - \ell + \sum_{d: t_d > 0}
        \log \Gamma(a_d + t_d) - \log \Gamma(a_d) - t_d \log(b_d + n)
    """
    n_features = shape.shape[0]
    log_rates = np.empty(n_features)
    last_n = -1.0
    base = 0.0
    for pair in range(out.shape[0]):
        i, j = lefts[pair], rights[pair]
        n = stats[i, 0] + other[j, 0]
        if has_missing:
            base = 0.0
            for d in range(n_features):
                observed = stats[i, 2 + n_features + d] + other[j, 2 + n_features + d]
                log_rates[d] = math.log(rate[d] + observed)
                base += shape[d] * (log_rate[d] - log_rates[d])
        elif n != last_n:
            base = poisson_base(n, shape, rate, log_rate, log_rates)
            last_n = n
        total = base - (stats[i, 1] + other[j, 1])
        for d in range(n_features):
            count = stats[i, 2 + d] + other[j, 2 + d]
            if count > 0.0:
                total += (math.lgamma(shape[d] + count) - log_gamma_shape[d]) - (
                    count * log_rates[d]
                )
        out[pair] = total


@compiled
def poisson_add(
    stats_row: FloatArray, x: FloatArray, shape: FloatArray, rate: FloatArray, missing: int
) -> None:
    """Add one row; `missing` is 1 when statistics count observed entries."""
    _poisson_change(stats_row, x, 1.0, missing)


@compiled
def poisson_remove(
    stats_row: FloatArray, x: FloatArray, shape: FloatArray, rate: FloatArray, missing: int
) -> None:
    """Remove one row."""
    _poisson_change(stats_row, x, -1.0, missing)


@compiled
def _poisson_change(stats_row: FloatArray, x: FloatArray, sign: float, missing: int) -> None:
    n_features = x.shape[0]
    stats_row[0] += sign
    log_factorial = 0.0
    for d in range(n_features):
        if x[d] == x[d]:
            stats_row[2 + d] += sign * x[d]
            log_factorial += math.lgamma(x[d] + 1.0)
            if missing == 1:
                stats_row[2 + n_features + d] += sign
    stats_row[1] += sign * log_factorial


@compiled
def poisson_log_predictive_row(
    x: FloatArray, stats_row: FloatArray, shape: FloatArray, rate: FloatArray, missing: int
) -> float:
    """Return log p(x | D), a product of negative binomials; NaN entries are left out."""
    n_features = x.shape[0]
    total = 0.0
    for d in range(n_features):
        if x[d] == x[d]:
            observed = stats_row[2 + n_features + d] if missing == 1 else stats_row[0]
            size = shape[d] + stats_row[2 + d]
            after = rate[d] + observed
            total += log_rising(size, x[d]) - math.lgamma(x[d] + 1.0)
            total += size * math.log(after / (after + 1.0)) - x[d] * math.log(after + 1.0)
    return total


# ---- categorical ------------------------------------------------------------------------


@compiled
def accumulate_codes(
    stats: FloatArray,
    block: AnyArray,
    labels: IntArray,
    weights: FloatArray,
    starts: IntArray,
) -> int:
    """Count levels; return -1, or the first column with a code out of range."""
    for i in range(block.shape[0]):
        group = labels[i]
        if group < 0:
            continue
        stats[group, 0] += weights[i]
        for d in range(block.shape[1]):
            x = block[i, d]
            if x != x:
                continue
            if x < 0 or x >= starts[d + 1] - starts[d]:
                return d
            stats[group, 1 + starts[d] + int(x)] += weights[i]
    return -1


@compiled
def accumulate_codes_csr(
    stats: FloatArray,
    data: FloatArray,
    indices: AnyArray,
    indptr: AnyArray,
    labels: IntArray,
    weights: FloatArray,
    starts: IntArray,
) -> int:
    """As `accumulate_codes`; level 0 has what the other levels of its column leave."""
    for i in range(labels.shape[0]):
        group = labels[i]
        if group < 0:
            continue
        stats[group, 0] += weights[i]
        for k in range(indptr[i], indptr[i + 1]):
            d = indices[k]
            if data[k] < 0 or data[k] >= starts[d + 1] - starts[d]:
                return int(d)
            stats[group, 1 + starts[d] + int(data[k])] += weights[i]
    for group in range(stats.shape[0]):
        for d in range(starts.shape[0] - 1):
            rest = stats[group, 0]
            for level in range(starts[d] + 1, starts[d + 1]):
                rest -= stats[group, 1 + level]
            stats[group, 1 + starts[d]] = rest
    return -1


@compiled
def categorical_pairs(
    stats: FloatArray,
    lefts: IntArray,
    other: FloatArray,
    rights: IntArray,
    alpha: FloatArray,
    log_gamma_alpha: FloatArray,
    totals: FloatArray,
    log_gamma_totals: FloatArray,
    starts: IntArray,
    out: FloatArray,
) -> None:
    """Fill `out` with log f(stats[lefts] + other[rights]), column after column."""
    for pair in range(out.shape[0]):
        i, j = lefts[pair], rights[pair]
        total = 0.0
        for d in range(totals.shape[0]):
            observed = 0.0
            for level in range(starts[d], starts[d + 1]):
                count = stats[i, 1 + level] + other[j, 1 + level]
                if count > 0.0:
                    observed += count
                    total += math.lgamma(alpha[level] + count) - log_gamma_alpha[level]
            if observed > 0.0:
                total -= math.lgamma(totals[d] + observed) - log_gamma_totals[d]
        out[pair] = total


@compiled
def categorical_add(
    stats_row: FloatArray, x: FloatArray, alpha: FloatArray, totals: FloatArray, starts: IntArray
) -> None:
    """Add one row of codes."""
    stats_row[0] += 1.0
    for d in range(x.shape[0]):
        if x[d] == x[d]:
            stats_row[1 + starts[d] + int(x[d])] += 1.0


@compiled
def categorical_remove(
    stats_row: FloatArray, x: FloatArray, alpha: FloatArray, totals: FloatArray, starts: IntArray
) -> None:
    """Remove one row of codes."""
    stats_row[0] -= 1.0
    for d in range(x.shape[0]):
        if x[d] == x[d]:
            stats_row[1 + starts[d] + int(x[d])] -= 1.0


@compiled
def categorical_log_predictive_row(
    x: FloatArray, stats_row: FloatArray, alpha: FloatArray, totals: FloatArray, starts: IntArray
) -> float:
    """Return log p(x | D); NaN entries are left out."""
    total = 0.0
    for d in range(x.shape[0]):
        if x[d] == x[d]:
            observed = 0.0
            for level in range(starts[d], starts[d + 1]):
                observed += stats_row[1 + level]
            chosen = starts[d] + int(x[d])
            total += math.log((alpha[chosen] + stats_row[1 + chosen]) / (totals[d] + observed))
    return total
