"""Compiled densities of one row under one cluster of an urn, from its statistics.

See `_urn_numerics`.
"""

from __future__ import annotations

import math

import numpy as np

from distclust.compiled import compiled
from distclust.families._numerics import log_rising
from distclust.mixtures._urn_statistics_numerics import (
    BINARY,
    COLUMNS,
    DENSE,
    DIAGONAL,
    FLAG,
    GAPS,
    GAUSSIAN,
    KIND,
    LEVELS,
    MULTINOMIAL,
    PARAMS,
    STATS,
    AnyArray,
    FloatArray,
    IntArray,
)

LOG_PI = math.log(math.pi)
LOG_TWO_PI = math.log(2.0 * math.pi)
SMALL, LARGE = 1e-100, 1e100


@compiled
def predictive(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    load: float,
    taken: float,
) -> float:
    """Return log p(`load` copies of row i | group), for one part.

    The statistics are taken without `taken` copies, `load` where they hold the row and 0
    otherwise. Constants of the row alone are left out.
    """
    kind = program[p, KIND]
    if kind == DIAGONAL:
        return _predict_diagonal(program, params, dense, p, stats, g, i, load, taken)
    if kind == GAUSSIAN:
        return _predict_gaussian(program, params, dense, p, stats, g, i, load, taken)
    if kind == LEVELS:
        return _predict_levels(program, params, pointers, tokens, p, stats, g, i, load, taken)
    if kind == BINARY:
        return _predict_binary(program, params, pointers, tokens, p, stats, g, i, load, taken)
    if kind == MULTINOMIAL:
        return _predict_multinomial(
            program, params, pointers, tokens, values, p, stats, g, i, load, taken
        )
    return _predict_poisson(program, params, pointers, tokens, values, p, stats, g, i, load, taken)


@compiled
def _predict_diagonal(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    load: float,
    taken: float,
) -> float:
    """Student densities; equal powers share one logarithm."""
    size, at = program[p, COLUMNS], program[p, STATS]
    first, flag = program[p, DENSE], program[p, FLAG]
    own = program[p, PARAMS]
    value, gammas, widths, last = 0.0, 0.0, 1.0, -1.0
    growth = 1.0
    power = 0.0
    for d in range(size):
        y = dense[i, first + d]
        if y != y:
            continue
        strength, offset = params[own + d], params[own + 3 * size + d]
        n = (stats[g, at + 2 * size + d] if flag == GAPS else stats[g, 0]) - taken
        total = strength + n
        pull = stats[g, at + d] - taken * y + strength * offset
        extra = stats[g, at + size + d] - taken * y * y + strength * offset * offset
        extra -= pull * pull / total
        rate = params[own + 2 * size + d] + (0.5 * extra if extra > 0.0 else 0.0)
        half = params[own + size + d] + 0.5 * n
        if half != last:
            value -= power * math.log(growth)
            growth, last = 1.0, half
            gammas = math.lgamma(half + 0.5 * load) - math.lgamma(half)
        power = half + 0.5 * load
        value += gammas
        widths *= (total + load) / total
        away = y - pull / total
        growth *= 1.0 + 0.5 * load * total / (total + load) * away * away / rate
        if growth > LARGE:
            value -= power * math.log(growth)
            growth = 1.0
        value -= 0.5 * load * math.log(rate)
        if widths > LARGE:
            value -= 0.5 * math.log(widths)
            widths = 1.0
        value -= 0.5 * load * LOG_TWO_PI
    return value - power * math.log(growth) - 0.5 * math.log(widths)


@compiled
def _predict_gaussian(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    load: float,
    taken: float,
) -> float:
    size, first = program[p, COLUMNS], program[p, DENSE]
    own = program[p, PARAMS]
    strength, degrees = params[own + size * size], params[own + size * size + 1]
    n = stats[g, 0] - taken
    total = strength + n
    factor, centre = np.empty((size, size)), np.empty(size)
    log_det = factorise(program, params, dense, p, stats, g, i, taken, factor, centre)
    square = 0.0
    for a in range(size):
        y = dense[i, first + a] - centre[a]
        for c in range(a):
            y -= factor[a, c] * centre[c]
        y /= factor[a, a]
        centre[a] = y
        square += y * y
    constant = gaussian_constant(size, total, degrees + n, load)
    ratio = load * total / (total + load) * square
    power = 0.5 * (degrees + n + load)
    value: float = constant - 0.5 * load * log_det - power * math.log1p(ratio)
    return value


@compiled
def gaussian_constant(size: int, total: float, degrees: float, load: float) -> float:
    """Return what does not depend on the rows; `total` and `degrees` before the copies."""
    gammas = 0.0
    if load == 1.0:  # the others cancel
        gammas = math.lgamma(0.5 * (degrees + 1.0)) - math.lgamma(0.5 * (degrees + 1.0 - size))
    else:
        for d in range(size):
            gammas += math.lgamma(0.5 * (degrees + load - d)) - math.lgamma(0.5 * (degrees - d))
    return gammas - 0.5 * size * (load * LOG_PI + math.log((total + load) / total))


@compiled
def factorise(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    taken: float,
    factor: FloatArray,
    centre: FloatArray,
) -> float:
    """Fill `factor` with the Cholesky factor of S', `centre` with the mean; return log |S'|.

    `taken` copies of row i are left out. Rounding that costs definiteness is met by a jitter,
    ten times as large at each attempt.
    """
    size = program[p, COLUMNS]
    jitter = 0.0
    for _attempt in range(10):
        trace = _fill_posterior(
            program, params, dense, p, stats, g, i, taken, factor, centre, jitter
        )
        log_det = _cholesky(factor)
        if log_det == log_det:
            return log_det
        jitter = max(10.0 * jitter, 1e-10 * abs(trace) / size)
    return math.nan


@compiled
def _fill_posterior(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    taken: float,
    factor: FloatArray,
    centre: FloatArray,
    jitter: float,
) -> float:
    size, at = program[p, COLUMNS], program[p, STATS]
    first, own = program[p, DENSE], program[p, PARAMS]
    strength, shifts = params[own + size * size], own + size * size + 2
    total = strength + (stats[g, 0] - taken)
    for a in range(size):
        y = dense[i, first + a] if taken > 0.0 else 0.0
        centre[a] = (stats[g, at + a] - taken * y + strength * params[shifts + a]) / total
    trace = 0.0
    e = at + size
    for a in range(size):
        y = dense[i, first + a] if taken > 0.0 else 0.0
        for b in range(a, size):
            prior = params[own + a * size + b]
            prior += strength * params[shifts + a] * params[shifts + b]
            moment = stats[g, e]
            if taken > 0.0:
                moment -= taken * y * dense[i, first + b]
            factor[b, a] = prior + (moment - total * centre[a] * centre[b])
            e += 1
        factor[a, a] += jitter
        trace += factor[a, a]
    return trace


@compiled
def _cholesky(work: FloatArray) -> float:
    """Replace the lower triangle by its factor; return the log determinant, NaN if it fails."""
    log_det = 0.0
    for a in range(work.shape[0]):
        for b in range(a):
            value = work[a, b]
            for c in range(b):
                value -= work[a, c] * work[b, c]
            work[a, b] = value / work[b, b]
        value = work[a, a]
        for c in range(a):
            value -= work[a, c] * work[a, c]
        if not value > 0.0:
            return math.nan
        work[a, a] = math.sqrt(value)
        log_det += math.log(value)
    return log_det


@compiled
def _predict_levels(
    program: IntArray,
    params: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    load: float,
    taken: float,
) -> float:
    """Shares of the levels of a row; params: alpha (L), column (L), start (D + 1), total (D)."""
    size, at, own = program[p, COLUMNS], program[p, STATS], program[p, PARAMS]
    n_levels = program[p, DENSE]
    value, product = 0.0, 1.0
    for e in range(pointers[p, i], pointers[p, i + 1]):
        level = tokens[e]
        d = int(params[own + n_levels + level])
        observed = -taken
        start = own + 2 * n_levels + d
        for other in range(int(params[start]), int(params[start + 1])):
            observed += stats[g, at + other]
        hits = params[own + level] + (stats[g, at + level] - taken)
        total = params[own + 2 * n_levels + size + 1 + d] + observed
        if load == 1.0:
            product *= hits / total
            if product < SMALL:
                value += math.log(product)
                product = 1.0
        else:
            value += log_rising(hits, load) - log_rising(total, load)
    return value + math.log(product)


@compiled
def _predict_binary(
    program: IntArray,
    params: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    load: float,
    taken: float,
) -> float:
    """All columns as if they were zero, then those that are one."""
    size, at, own = program[p, COLUMNS], program[p, STATS], program[p, PARAMS]
    alpha, beta = own, own + size
    n = stats[g, 0] - taken
    value = 0.0
    for d in range(size):
        zeros = params[beta + d] + (n - stats[g, at + d])
        if zeros > 0.0:
            value += log_rising(zeros, load)
        value -= log_rising(params[alpha + d] + params[beta + d] + n, load)
    for e in range(pointers[p, i], pointers[p, i + 1]):
        d = tokens[e]
        zeros = params[beta + d] + (n - stats[g, at + d])
        if zeros > 0.0:
            value -= log_rising(zeros, load)
        value += log_rising(params[alpha + d] + (stats[g, at + d] - taken), load)
    return value


@compiled
def _predict_multinomial(
    program: IntArray,
    params: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    load: float,
    taken: float,
) -> float:
    size, at, own = program[p, COLUMNS], program[p, STATS], program[p, PARAMS]
    total = 0.0
    for d in range(size):
        total += stats[g, at + d]
    value, drawn = 0.0, 0.0
    for e in range(pointers[p, i], pointers[p, i + 1]):
        d, x = tokens[e], values[e]
        value += log_rising(params[own + d] + (stats[g, at + d] - taken * x), load * x)
        drawn += x
    return value - log_rising(params[own + size] + (total - taken * drawn), load * drawn)


@compiled
def _predict_poisson(
    program: IntArray,
    params: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    load: float,
    taken: float,
) -> float:
    """Negative binomials: all columns as if they were zero, then those that are not."""
    size, at, own = program[p, COLUMNS], program[p, STATS], program[p, PARAMS]
    gaps = program[p, FLAG] == GAPS
    value = 0.0
    for d in range(size):
        n = (stats[g, at + 1 + size + d] if gaps else stats[g, 0]) - taken
        if n >= 0.0:
            after = params[own + size + d] + n
            value += (params[own + d] + stats[g, at + 1 + d]) * math.log(after / (after + load))
    for e in range(pointers[p, i], pointers[p, i + 1]):
        d, x = tokens[e], values[e]
        n = (stats[g, at + 1 + size + d] if gaps else stats[g, 0]) - taken
        after = params[own + size + d] + n
        if x == x:
            without = params[own + d] + (stats[g, at + 1 + d] - taken * x)
            value += log_rising(without, load * x) - load * x * math.log(after + load)
            value -= taken * x * math.log(after / (after + load))
        elif n >= 0.0:
            value -= (params[own + d] + stats[g, at + 1 + d]) * math.log(after / (after + load))
    return value
