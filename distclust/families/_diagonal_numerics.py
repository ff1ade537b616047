r"""Compiled loops of the Gaussian family with independent columns (normal-gamma).

Shift and offset as in `_gaussian_numerics.py`. With :math:`\delta` the offset,

.. math:: b' = b + \tfrac12 (q + r \delta^2 - (s + r\delta)^2 / (r + n)) \ge b

Columns with one shared shape parameter have one shared power, and a sum of logarithms
becomes the logarithm of a product, taken whenever the product grows large.
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
_LARGE = 1e150  # two factors below it cannot overflow


# ---- statistics -------------------------------------------------------------------------


@compiled
def accumulate_moments(
    stats: FloatArray,
    block: AnyArray,
    labels: IntArray,
    weights: FloatArray,
    shift: FloatArray,
    observed_at: int,
    n_nonzero: FloatArray,
) -> bool:
    """Add n, sum y and sum y^2 (and observed entries) of the groups; False on a NaN.

    Zeros are only counted, and added in one go by `add_zeros`: then a CSR block costs its
    nonzeros and still gives the same bits. `n_nonzero` (groups, D) is scratch space.
    """
    n_features = shift.shape[0]
    for i in range(block.shape[0]):
        group = labels[i]
        if group < 0:
            continue
        stats[group, 0] += weights[i]
        for d in range(n_features):
            x = block[i, d]
            if x != x:
                if observed_at == 0:
                    return False
                continue
            if observed_at > 0:
                stats[group, observed_at + d] += weights[i]
            if x != 0:
                _add_moment(stats, group, d, x - shift[d], weights[i], n_features)
                n_nonzero[group, d] += weights[i]
    return True


@compiled
def accumulate_moments_csr(
    stats: FloatArray,
    data: FloatArray,
    indices: AnyArray,
    indptr: AnyArray,
    labels: IntArray,
    weights: FloatArray,
    shift: FloatArray,
    observed_at: int,
    n_nonzero: FloatArray,
) -> None:
    """As `accumulate_moments`, in O(nonzeros)."""
    n_features = shift.shape[0]
    for i in range(labels.shape[0]):
        group = labels[i]
        if group < 0:
            continue
        stats[group, 0] += weights[i]
        for k in range(indptr[i], indptr[i + 1]):
            d = indices[k]
            _add_moment(stats, group, d, data[k] - shift[d], weights[i], n_features)
            n_nonzero[group, d] += weights[i]
        if observed_at > 0:
            for d in range(n_features):
                stats[group, observed_at + d] += weights[i]


@compiled
def _add_moment(
    stats: FloatArray, group: int, d: int, y: float, weight: float, n_features: int
) -> None:
    stats[group, 1 + d] += weight * y
    stats[group, 1 + n_features + d] += weight * y * y


@compiled
def add_zeros(
    stats: FloatArray, shift: FloatArray, observed_at: int, n_nonzero: FloatArray
) -> None:
    """Add the entries that were zero, y = -shift, to the moments of their groups."""
    n_features = shift.shape[0]
    for group in range(stats.shape[0]):
        for d in range(n_features):
            observed = stats[group, observed_at + d] if observed_at > 0 else stats[group, 0]
            n_zero = observed - n_nonzero[group, d]
            if n_zero > 0.0:
                _add_moment(stats, group, d, -shift[d], n_zero, n_features)


# ---- marginal ---------------------------------------------------------------------------


@compiled
def _growth(s: float, q: float, n: float, strength: float, rate: float, offset: float) -> float:
    """Return b' / b, at least one."""
    pull = s + strength * offset
    extra = q + strength * offset * offset - pull * pull / (strength + n)
    return 1.0 + 0.5 * extra / rate if extra > 0.0 else 1.0


@compiled
def diagonal_base(n: float, strength: float, shape: float, rate: float) -> float:
    r"""Return the part of a column's log marginal that depends on `n` alone.

    .. math::
        \log \Gamma(a + \tfrac n2) - \log \Gamma(a) + \tfrac12 \log \tfrac{r}{r + n}
        - \tfrac n2 \log(2 \pi b)
    """
    return (
        (math.lgamma(shape + 0.5 * n) - math.lgamma(shape))
        + 0.5 * math.log(strength / (strength + n))
        - 0.5 * n * (_LOG_TWO_PI + math.log(rate))
    )


@compiled
def diagonal_pairs(
    stats: FloatArray,
    lefts: IntArray,
    other: FloatArray,
    rights: IntArray,
    strength: FloatArray,
    shape: FloatArray,
    rate: FloatArray,
    offset: FloatArray,
    one_shape: bool,
    has_missing: bool,
    out: FloatArray,
) -> None:
    """Fill `out` with log f(stats[lefts] + other[rights])."""
    n_features = shape.shape[0]
    last_n = -1.0
    base = 0.0
    for pair in range(out.shape[0]):
        i, j = lefts[pair], rights[pair]
        n = stats[i, 0] + other[j, 0]
        if not has_missing and n != last_n:
            base = 0.0
            for d in range(n_features):
                base += diagonal_base(n, strength[d], shape[d], rate[d])
            last_n = n
        total = base
        product = 1.0
        for d in range(n_features):
            if has_missing:
                n = stats[i, 1 + 2 * n_features + d] + other[j, 1 + 2 * n_features + d]
                total += diagonal_base(n, strength[d], shape[d], rate[d])
            s = stats[i, 1 + d] + other[j, 1 + d]
            q = stats[i, 1 + n_features + d] + other[j, 1 + n_features + d]
            growth = _growth(s, q, n, strength[d], rate[d], offset[d])
            power = shape[d] + 0.5 * n
            if one_shape and not has_missing and growth < _LARGE:
                if product >= _LARGE:
                    total -= power * math.log(product)
                    product = 1.0
                product *= growth
            else:
                total -= power * math.log(growth)
        out[pair] = total - (shape[0] + 0.5 * n) * math.log(product)


# ---- predictive -------------------------------------------------------------------------


@compiled
def _predictive_constants(
    stats: FloatArray,
    k: int,
    strength: FloatArray,
    shape: FloatArray,
    rate: FloatArray,
    offset: FloatArray,
    has_missing: bool,
    centre: FloatArray,
    inverse: FloatArray,
    power: FloatArray,
    constant: FloatArray,
) -> bool:
    """Fill the Student density of every column; True if all powers are equal.

    log p(y_d) = constant - power log1p((y_d - centre)^2 inverse).
    """
    n_features = shape.shape[0]
    same = True
    gammas = 0.0
    for d in range(n_features):
        n = stats[k, 1 + 2 * n_features + d] if has_missing else stats[k, 0]
        total = strength[d] + n
        s, q = stats[k, 1 + d], stats[k, 1 + n_features + d]
        growth = _growth(s, q, n, strength[d], rate[d], offset[d])
        width = 2.0 * rate[d] * growth * (total + 1.0) / total
        centre[d] = (s + strength[d] * offset[d]) / total
        inverse[d] = 1.0 / width
        power[d] = shape[d] + 0.5 * n + 0.5
        if d == 0 or power[d] != power[d - 1]:
            gammas = math.lgamma(power[d]) - math.lgamma(power[d] - 0.5)
            same = same and d == 0
        constant[d] = gammas - 0.5 * (_LOG_PI + math.log(width))
    return same


@compiled
def diagonal_log_predictive(
    rows: FloatArray,
    stats: FloatArray,
    strength: FloatArray,
    shape: FloatArray,
    rate: FloatArray,
    offset: FloatArray,
    has_missing: bool,
    out: FloatArray,
) -> None:
    """Fill `out` (n, B) with log densities of shifted rows (n, D); NaN is left out."""
    n_rows, n_features = rows.shape
    centre, inverse = np.empty(n_features), np.empty(n_features)
    power, constant = np.empty(n_features), np.empty(n_features)
    for k in range(stats.shape[0]):
        same = _predictive_constants(
            stats, k, strength, shape, rate, offset, has_missing, centre, inverse, power,
            constant,
        )  # fmt: skip
        for i in range(n_rows):
            total = 0.0
            product = 1.0
            for d in range(n_features):
                y = rows[i, d]
                if y != y:
                    continue
                total += constant[d]
                factor = 1.0 + (y - centre[d]) * (y - centre[d]) * inverse[d]
                if same and factor < _LARGE:
                    if product >= _LARGE:
                        total -= power[0] * math.log(product)
                        product = 1.0
                    product *= factor
                else:
                    total -= power[d] * math.log(factor)
            out[i, k] = total - power[0] * math.log(product)


@compiled
def diagonal_log_predictive_csr(
    data: FloatArray,
    indices: AnyArray,
    indptr: AnyArray,
    shift: FloatArray,
    stats: FloatArray,
    strength: FloatArray,
    shape: FloatArray,
    rate: FloatArray,
    offset: FloatArray,
    has_missing: bool,
    out: FloatArray,
) -> None:
    """As `diagonal_log_predictive`: the row of zeros, corrected at the nonzeros."""
    n_features = shift.shape[0]
    centre, inverse = np.empty(n_features), np.empty(n_features)
    power, constant = np.empty(n_features), np.empty(n_features)
    for k in range(stats.shape[0]):
        _predictive_constants(
            stats, k, strength, shape, rate, offset, has_missing, centre, inverse, power,
            constant,
        )  # fmt: skip
        zeros = 0.0
        for d in range(n_features):
            # `constant` becomes the power-weighted logarithm at zero, to be taken back.
            y = -shift[d] - centre[d]
            at_zero = power[d] * math.log(1.0 + y * y * inverse[d])
            zeros += constant[d] - at_zero
            constant[d] = at_zero
        for i in range(out.shape[0]):
            total = zeros
            for e in range(indptr[i], indptr[i + 1]):
                d = indices[e]
                y = data[e] - shift[d] - centre[d]
                total += constant[d] - power[d] * math.log(1.0 + y * y * inverse[d])
            out[i, k] = total


# ---- row face ---------------------------------------------------------------------------


@compiled
def diagonal_add(
    stats_row: FloatArray,
    x: FloatArray,
    shift: FloatArray,
    strength: FloatArray,
    shape: FloatArray,
    rate: FloatArray,
    offset: FloatArray,
    missing: int,
) -> None:
    """Add one row; `missing` is 1 when statistics count observed entries."""
    _diagonal_change(stats_row, x, shift, 1.0, missing)


@compiled
def diagonal_remove(
    stats_row: FloatArray,
    x: FloatArray,
    shift: FloatArray,
    strength: FloatArray,
    shape: FloatArray,
    rate: FloatArray,
    offset: FloatArray,
    missing: int,
) -> None:
    """Remove one row."""
    _diagonal_change(stats_row, x, shift, -1.0, missing)


@compiled
def _diagonal_change(
    stats_row: FloatArray, x: FloatArray, shift: FloatArray, sign: float, missing: int
) -> None:
    n_features = x.shape[0]
    stats_row[0] += sign
    for d in range(n_features):
        if x[d] == x[d]:
            y = x[d] - shift[d]
            stats_row[1 + d] += sign * y
            stats_row[1 + n_features + d] += sign * y * y
            if missing == 1:
                stats_row[1 + 2 * n_features + d] += sign


@compiled
def diagonal_log_predictive_row(
    x: FloatArray,
    stats_row: FloatArray,
    shift: FloatArray,
    strength: FloatArray,
    shape: FloatArray,
    rate: FloatArray,
    offset: FloatArray,
    missing: int,
) -> float:
    """Return log p(x | D); NaN entries are left out."""
    n_features = x.shape[0]
    row = np.empty((1, n_features))
    for d in range(n_features):
        row[0, d] = x[d] - shift[d]
    out = np.empty((1, 1))
    stats = stats_row.reshape((1, stats_row.shape[0]))
    diagonal_log_predictive(row, stats, strength, shape, rate, offset, missing == 1, out)
    return out[0, 0]  # type: ignore[no-any-return]
