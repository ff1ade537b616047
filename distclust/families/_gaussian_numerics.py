r"""Compiled loops of the Gaussian families.

Statistics are sums of the shifted rows y = x - shift. The prior mean may move away from
the shift (hyperparameter learning), by `offset` = mean - shift; with :math:`\delta` the
offset the posterior of the normal-inverse-Wishart is

.. math:: S' = S + r \delta\delta^T + Q - (s + r\delta)(s + r\delta)^T / (r + n)

and at :math:`\delta = 0` the formula of the shifted data. Pairs of groups add their
statistics entry by entry, left first; a single group is a pair with the row of zeros.
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

_LOG_PI = math.log(math.pi)
_LOG_TWO_PI = math.log(2.0 * math.pi)
_PANEL = 128  # rows solved together: D x 128 doubles stay in the cache


# ---- normal-inverse-Wishart -------------------------------------------------------------


@compiled
def accumulate_scatter(
    stats: FloatArray,
    block: AnyArray,
    labels: IntArray,
    weights: FloatArray,
    shift: FloatArray,
) -> bool:
    """Add n, sum y and the upper triangle of sum y yT; False if a NaN was met."""
    n_features = shift.shape[0]
    y = np.empty(n_features)
    for i in range(block.shape[0]):
        group = labels[i]
        if group < 0:
            continue
        for d in range(n_features):
            y[d] = block[i, d] - shift[d]
            if y[d] != y[d]:
                return False
        _add_scatter(stats[group], y, weights[i])
    return True


@compiled
def accumulate_scatter_csr(
    stats: FloatArray,
    data: FloatArray,
    indices: AnyArray,
    indptr: AnyArray,
    labels: IntArray,
    weights: FloatArray,
    shift: FloatArray,
) -> None:
    """As `accumulate_scatter`, with one row at a time laid out densely."""
    n_features = shift.shape[0]
    y = np.empty(n_features)
    for i in range(labels.shape[0]):
        group = labels[i]
        if group < 0:
            continue
        for d in range(n_features):
            y[d] = 0.0 - shift[d]
        for k in range(indptr[i], indptr[i + 1]):
            y[indices[k]] = data[k] - shift[indices[k]]
        _add_scatter(stats[group], y, weights[i])


@compiled
def _add_scatter(stats_row: FloatArray, y: FloatArray, weight: float) -> None:
    n_features = y.shape[0]
    stats_row[0] += weight
    k = 1 + n_features
    for a in range(n_features):
        load = weight * y[a]
        stats_row[1 + a] += load
        for b in range(a, n_features):
            stats_row[k] += load * y[b]
            k += 1


@compiled
def _fill_posterior(
    stats: FloatArray,
    i: int,
    other: FloatArray,
    j: int,
    scatter: FloatArray,
    strength: float,
    offset: FloatArray,
    pull: FloatArray,
    work: FloatArray,
) -> float:
    """Fill `work`'s lower triangle with S' and `pull` with s + r offset; return r + n."""
    n_features = offset.shape[0]
    total = strength + (stats[i, 0] + other[j, 0])
    for a in range(n_features):
        pull[a] = (stats[i, 1 + a] + other[j, 1 + a]) + strength * offset[a]
    k = 1 + n_features
    for a in range(n_features):
        for b in range(a, n_features):
            prior = scatter[a, b] + strength * offset[a] * offset[b]
            moment = stats[i, k] + other[j, k]
            work[b, a] = prior + (moment - pull[a] * pull[b] / total)
            k += 1
    return float(total)


@compiled
def _factorise(work: FloatArray) -> float:
    """Replace the lower triangle by its Cholesky factor; log determinant, NaN if it fails."""
    log_det = 0.0
    for a in range(work.shape[0]):
        for b in range(a + 1):
            value = work[a, b]
            for c in range(b):
                value -= work[a, c] * work[b, c]
            if b < a:
                work[a, b] = value / work[b, b]
            elif value > 0.0:
                work[a, a] = math.sqrt(value)
                log_det += math.log(value)
            else:
                return math.nan
    return log_det


@compiled
def factorise_posterior(
    stats: FloatArray,
    i: int,
    other: FloatArray,
    j: int,
    scatter: FloatArray,
    strength: float,
    offset: FloatArray,
    pull: FloatArray,
    work: FloatArray,
) -> float:
    """Fill `work` with the Cholesky factor of S'; log |S'|, NaN if it cannot be had.

    A failure is met once with a jitter of 1e-10 trace / D.
    """
    n_features = offset.shape[0]
    _fill_posterior(stats, i, other, j, scatter, strength, offset, pull, work)
    log_det = _factorise(work)
    if log_det == log_det:
        return log_det
    _fill_posterior(stats, i, other, j, scatter, strength, offset, pull, work)
    trace = 0.0
    for d in range(n_features):
        trace += work[d, d]
    for d in range(n_features):
        work[d, d] += 1e-10 * trace / n_features
    return _factorise(work)


@compiled
def gaussian_base(
    n: float, n_features: int, strength: float, degrees: float, log_det: float
) -> float:
    r"""Return the part of the log marginal that depends on `n` alone.

    .. math::
        -\tfrac{nD}{2} \log \pi + \tfrac{D}{2} \log \tfrac{r}{r + n}
        + \tfrac{v}{2} \log |S|
        + \sum_d \log \Gamma(\tfrac{v + n + 1 - d}{2}) - \log \Gamma(\tfrac{v + 1 - d}{2})
    """
    gammas = 0.0
    for d in range(n_features):
        gammas += math.lgamma(0.5 * (degrees + n - d)) - math.lgamma(0.5 * (degrees - d))
    return (
        -0.5 * n * n_features * _LOG_PI
        + 0.5 * n_features * math.log(strength / (strength + n))
        + 0.5 * degrees * log_det
        + gammas
    )


@compiled
def gaussian_pairs(
    stats: FloatArray,
    lefts: IntArray,
    other: FloatArray,
    rights: IntArray,
    scatter: FloatArray,
    strength: float,
    degrees: float,
    offset: FloatArray,
    log_det: float,
    out: FloatArray,
) -> None:
    """Fill `out` with log f(stats[lefts] + other[rights]); NaN where S' is not definite."""
    n_features = offset.shape[0]
    work = np.empty((n_features, n_features))
    pull = np.empty(n_features)
    last_n = -1.0
    base = 0.0
    for k in range(out.shape[0]):
        i, j = lefts[k], rights[k]
        n = stats[i, 0] + other[j, 0]
        if n != last_n:
            base = gaussian_base(n, n_features, strength, degrees, log_det)
            last_n = n
        posterior = factorise_posterior(stats, i, other, j, scatter, strength, offset, pull, work)
        out[k] = base - 0.5 * (degrees + n) * posterior


@compiled
def gaussian_log_predictive(
    columns: FloatArray,
    stats: FloatArray,
    scatter: FloatArray,
    strength: float,
    degrees: float,
    offset: FloatArray,
    out: FloatArray,
) -> None:
    """Fill `out` (n, B) with Student densities of shifted rows, `columns` (D, n).

    Rows lie along the last axis, so that the triangular solves of a panel of rows run
    over contiguous memory; each row's arithmetic is the same whatever its company.
    """
    n_features, n_rows = columns.shape
    work = np.empty((n_features, n_features))
    pull = np.empty(n_features)
    panel = np.empty((n_features, _PANEL))
    squares = np.empty(_PANEL)
    nothing = np.zeros((1, stats.shape[1]))
    for k in range(stats.shape[0]):
        total = strength + stats[k, 0]
        log_det = factorise_posterior(stats, k, nothing, 0, scatter, strength, offset, pull, work)
        constant, power = _student_constants(
            n_features, total, degrees + stats[k, 0] - n_features + 1.0, log_det
        )
        for start in range(0, n_rows, _PANEL):
            width = min(_PANEL, n_rows - start)
            _solve_panel(columns, start, width, pull, total, work, panel, squares)
            for q in range(width):
                ratio = squares[q] * (total / (total + 1.0))
                out[start + q, k] = constant - power * math.log1p(ratio)


@compiled
def _student_constants(
    n_features: int, total: float, freedom: float, log_det: float
) -> tuple[float, float]:
    """Return the constant and the power of the multivariate Student log density."""
    power = 0.5 * (freedom + n_features)
    spread = (total + 1.0) / total
    constant = (
        math.lgamma(power)
        - math.lgamma(0.5 * freedom)
        - 0.5 * n_features * (_LOG_PI + math.log(spread))
        - 0.5 * log_det
    )
    return constant, power


@compiled
def _solve_panel(
    columns: FloatArray,
    start: int,
    width: int,
    pull: FloatArray,
    total: float,
    work: FloatArray,
    panel: FloatArray,
    squares: FloatArray,
) -> None:
    """Fill `squares` with the squared norms of L^-1 (y - pull / total)."""
    for q in range(width):
        squares[q] = 0.0
    for a in range(pull.shape[0]):
        centre = pull[a] / total
        for q in range(width):
            panel[a, q] = columns[a, start + q] - centre
        for c in range(a):
            factor = work[a, c]
            for q in range(width):
                panel[a, q] -= factor * panel[c, q]
        inverse = 1.0 / work[a, a]
        for q in range(width):
            value = panel[a, q] * inverse
            panel[a, q] = value
            squares[q] += value * value


@compiled
def gaussian_add(
    stats_row: FloatArray,
    x: FloatArray,
    shift: FloatArray,
    scatter: FloatArray,
    strength: float,
    degrees: float,
    offset: FloatArray,
) -> None:
    """Add one row."""
    _add_scatter(stats_row, x - shift, 1.0)


@compiled
def gaussian_remove(
    stats_row: FloatArray,
    x: FloatArray,
    shift: FloatArray,
    scatter: FloatArray,
    strength: float,
    degrees: float,
    offset: FloatArray,
) -> None:
    """Remove one row."""
    _add_scatter(stats_row, x - shift, -1.0)


@compiled
def gaussian_log_predictive_row(
    x: FloatArray,
    stats_row: FloatArray,
    shift: FloatArray,
    scatter: FloatArray,
    strength: float,
    degrees: float,
    offset: FloatArray,
) -> float:
    """Return log p(x | D)."""
    n_features = x.shape[0]
    columns = np.empty((n_features, 1))
    for d in range(n_features):
        columns[d, 0] = x[d] - shift[d]
    out = np.empty((1, 1))
    stats = stats_row.reshape((1, stats_row.shape[0]))
    gaussian_log_predictive(columns, stats, scatter, strength, degrees, offset, out)
    return out[0, 0]  # type: ignore[no-any-return]
