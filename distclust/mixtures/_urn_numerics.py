r"""Compiled visits of a Polya urn: rows leave their cluster and choose one anew.

A family is a list of *parts*, each a kind of density over some columns; a product simply has
several. A part has four functions: `_change` of the statistics of a group, `_refresh` of what
is cached of a cluster, `_scores` of one row under all clusters, from the caches, and
`predictive` of a row under one cluster, from its statistics.

Caches are blocks of eight clusters side by side, ``cache[block, figure, lane]``: the loops
over lanes are vector instructions. Figure 0 is the logarithm of the size; those of the parts
follow. They are made from the statistics alone. A row that stays where it was changes
nothing: its own cluster without it is scored apart. Sums of logarithms are logarithms of
products, taken before the product could overflow.

Functions that call others pass on plain arrays and no literal whole numbers: a tuple of arrays
is counted up and down at each step, and a literal makes for another compilation.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled
from distclust.families._numerics import log_rising

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
AnyArray: TypeAlias = npt.NDArray[Any]

DIAGONAL, GAUSSIAN, LEVELS, BINARY, MULTINOMIAL, POISSON = range(6)

# Columns of a program: where the numbers of a part are.
KIND, COLUMNS, STATS, CACHE, PARAMS, DENSE, FLAG, FLUSH = range(8)

# Flags of parts.
ALIKE = 0  # complete rows; diagonal: one shape and one strength for all columns
UNLIKE = 1  # diagonal: complete rows, columns with priors of their own
GAPS = 2  # missing entries

LANES = 8  # clusters of a block

_LOG_PI = math.log(math.pi)
_LOG_TWO_PI = math.log(2.0 * math.pi)
_SMALL, _LARGE = 1e-100, 1e100
_SAFE = 1e-3  # below it, what is left of a difference has lost too many digits
_SHORT = 8.0  # rising factorials up to here are multiplied out
_NEGLIGIBLE = -60.0  # logarithm of a weight that no uniform number can tell from none


class Parts(NamedTuple):
    """A family and its rows, as compiled visits read them.

    Attributes
    ----------
    program
        One line a part; see the columns above.
    params
        Hyperparameters of all parts.
    dense
        Real columns of all parts, shifted, shape (n, columns).
    pointers, tokens, values
        Other columns as CSR rows, one a part: entries of row i of part p are
        ``pointers[p, i]`` to ``pointers[p, i + 1]``.
    loads
        How many times each row counts.
    """

    program: IntArray
    params: FloatArray
    dense: FloatArray
    pointers: IntArray
    tokens: AnyArray
    values: FloatArray
    loads: FloatArray


class Room(NamedTuple):
    """What visits keep of clusters, and where they work.

    Attributes
    ----------
    cache
        Figures of clusters, shape (blocks, figures, 8).
    weights
        What a row's choices weigh, shape (blocks, 8).
    squares
        Squared norms of a row under the Gaussian factors, shape (blocks, 8).
    work
        Shape (1 + real columns, 8).
    """

    cache: FloatArray
    weights: FloatArray
    squares: FloatArray
    work: FloatArray


# ---- statistics -------------------------------------------------------------------------


@compiled
def change(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    loads: FloatArray,
    stats: FloatArray,
    g: int,
    i: int,
    load: float,
) -> None:
    """Add `load` copies of row `i` to the statistics (p,) of a group."""
    stats[g, 0] += load
    for p in range(program.shape[0]):
        kind = program[p, KIND]
        if kind == DIAGONAL:
            _change_moments(program, dense, p, stats, g, i, load)
        elif kind == GAUSSIAN:
            _change_scatter(program, dense, p, stats, g, i, load)
        elif kind == POISSON:
            _change_counts(program, pointers, tokens, values, p, stats, g, i, load)
        else:
            at = program[p, STATS]
            for e in range(pointers[p, i], pointers[p, i + 1]):
                stats[g, at + tokens[e]] += load * values[e]


@compiled
def _change_moments(
    program: IntArray, dense: FloatArray, p: int, stats: FloatArray, g: int, i: int, load: float
) -> None:
    n_columns, at = program[p, COLUMNS], program[p, STATS]
    first, gaps = program[p, DENSE], program[p, FLAG] == GAPS
    for d in range(n_columns):
        y = dense[i, first + d]
        if y == y:
            stats[g, at + d] += load * y
            stats[g, at + n_columns + d] += load * y * y
            if gaps:
                stats[g, at + 2 * n_columns + d] += load


@compiled
def _change_scatter(
    program: IntArray, dense: FloatArray, p: int, stats: FloatArray, g: int, i: int, load: float
) -> None:
    n_columns, at = program[p, COLUMNS], program[p, STATS]
    first = program[p, DENSE]
    e = at + n_columns
    for a in range(n_columns):
        part = load * dense[i, first + a]
        stats[g, at + a] += part
        for b in range(a, n_columns):
            stats[g, e] += part * dense[i, first + b]
            e += 1


@compiled
def _change_counts(
    program: IntArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    load: float,
) -> None:
    """Poisson: sum of log x!, counts, and numbers of observed entries where some are missing."""
    n_columns, at = program[p, COLUMNS], program[p, STATS]
    gaps = program[p, FLAG] == GAPS
    if gaps:
        for d in range(n_columns):
            stats[g, at + 1 + n_columns + d] += load
    log_factorial = 0.0
    for e in range(pointers[p, i], pointers[p, i + 1]):
        x, d = values[e], tokens[e]
        if x == x:
            stats[g, at + 1 + d] += load * x
            log_factorial += math.lgamma(x + 1.0)
        else:
            stats[g, at + 1 + n_columns + d] -= load
    stats[g, at] += load * log_factorial


# ---- one row under one cluster, from statistics -----------------------------------------


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
        if growth > _LARGE:
            value -= power * math.log(growth)
            growth = 1.0
        value -= 0.5 * load * math.log(rate)
        if widths > _LARGE:
            value -= 0.5 * math.log(widths)
            widths = 1.0
        value -= 0.5 * load * _LOG_TWO_PI
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
    log_det = _factorise(program, params, dense, p, stats, g, i, taken, factor, centre)
    square = 0.0
    for a in range(size):
        y = dense[i, first + a] - centre[a]
        for c in range(a):
            y -= factor[a, c] * centre[c]
        y /= factor[a, a]
        centre[a] = y
        square += y * y
    constant = _gaussian_constant(size, total, degrees + n, load)
    ratio = load * total / (total + load) * square
    power = 0.5 * (degrees + n + load)
    value: float = constant - 0.5 * load * log_det - power * math.log1p(ratio)
    return value


@compiled
def _gaussian_constant(size: int, total: float, degrees: float, load: float) -> float:
    """Return what does not depend on the rows; `total` and `degrees` before the copies."""
    gammas = 0.0
    if load == 1.0:  # the others cancel
        gammas = math.lgamma(0.5 * (degrees + 1.0)) - math.lgamma(0.5 * (degrees + 1.0 - size))
    else:
        for d in range(size):
            gammas += math.lgamma(0.5 * (degrees + load - d)) - math.lgamma(0.5 * (degrees - d))
    return gammas - 0.5 * size * (load * _LOG_PI + math.log((total + load) / total))


@compiled
def _factorise(
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
            if product < _SMALL:
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


# ---- caches -----------------------------------------------------------------------------


@compiled
def refresh(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    stats: FloatArray,
    g: int,
    cache: FloatArray,
    i: int,
) -> None:
    """Fill the caches of cluster `g` from its statistics.

    With `i` from 0 on only row i has come or gone, and the caches were right before.
    """
    b, lane = g // LANES, g % LANES
    cache[b, 0, lane] = math.log(stats[g, 0])
    for p in range(program.shape[0]):
        kind = program[p, KIND]
        if kind == DIAGONAL:
            if program[p, FLAG] == ALIKE:
                _refresh_alike(program, params, p, stats, g, cache, b, lane)
            else:
                _refresh_unlike(program, params, p, stats, g, cache, b, lane)
        elif kind == GAUSSIAN:
            _refresh_gaussian(program, params, dense, p, stats, g, cache, b, lane)
        elif kind == LEVELS:
            _refresh_levels(program, params, p, stats, g, cache, b, lane)
        elif kind == BINARY:
            _refresh_binary(program, params, p, stats, g, cache, b, lane)
        elif kind == MULTINOMIAL:
            _refresh_multinomial(program, params, pointers, tokens, p, stats, g, cache, b, lane, i)
        else:
            _refresh_poisson(program, params, p, stats, g, cache, b, lane)


@compiled
def _refresh_alike(
    program: IntArray,
    params: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    cache: FloatArray,
    b: int,
    lane: int,
) -> None:
    """Figures: centre (D), inverse (D), power, constant; own power, constant, gain."""
    size, at = program[p, COLUMNS], program[p, STATS]
    own, to = program[p, PARAMS], program[p, CACHE]
    n, strength, shape = stats[g, 0], params[own], params[own + size]
    total = strength + n
    per_total = 1.0 / total
    logs, product = 0.0, 1.0
    for d in range(size):
        offset = params[own + 3 * size + d]
        pull = stats[g, at + d] + strength * offset
        extra = stats[g, at + size + d] + strength * offset * offset - pull * pull * per_total
        rate = params[own + 2 * size + d] + (0.5 * extra if extra > 0.0 else 0.0)
        cache[b, to + d, lane] = pull * per_total
        cache[b, to + size + d, lane] = 0.5 * total / ((total + 1.0) * rate)
        product *= rate
        if not _SMALL < product < _LARGE:
            logs += math.log(product)
            product = 1.0
    logs += math.log(product)
    half = shape + 0.5 * n
    next_to = to + 2 * size
    cache[b, next_to, lane] = half + 0.5
    cache[b, next_to + 1, lane] = (
        size * (math.lgamma(half + 0.5) - math.lgamma(half))
        - 0.5 * size * (_LOG_TWO_PI + math.log((total + 1.0) * per_total))
        - 0.5 * logs
    )
    if n > 1.0:  # what a row of the cluster scores there, from the figures that hold it
        cache[b, next_to + 2, lane] = half - 0.5
        cache[b, next_to + 3, lane] = (
            size * (math.lgamma(half) - math.lgamma(half - 0.5))
            - 0.5 * size * (_LOG_TWO_PI + math.log(total / (total - 1.0)))
            - 0.5 * logs
        )
        cache[b, next_to + 4, lane] = (total + 1.0) / (total - 1.0)


@compiled
def _refresh_unlike(
    program: IntArray,
    params: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    cache: FloatArray,
    b: int,
    lane: int,
) -> None:
    """Figures: centre, inverse, power and constant of each column."""
    size, at = program[p, COLUMNS], program[p, STATS]
    own, to = program[p, PARAMS], program[p, CACHE]
    gaps = program[p, FLAG] == GAPS
    last, gammas = -1.0, 0.0
    for d in range(size):
        strength, offset = params[own + d], params[own + 3 * size + d]
        n = stats[g, at + 2 * size + d] if gaps else stats[g, 0]
        total = strength + n
        pull = stats[g, at + d] + strength * offset
        extra = stats[g, at + size + d] + strength * offset * offset - pull * pull / total
        rate = params[own + 2 * size + d] + (0.5 * extra if extra > 0.0 else 0.0)
        width = 2.0 * rate * (total + 1.0) / total
        half = params[own + size + d] + 0.5 * n
        if half != last:
            gammas, last = math.lgamma(half + 0.5) - math.lgamma(half), half
        cache[b, to + d, lane] = pull / total
        cache[b, to + size + d, lane] = 1.0 / width
        cache[b, to + 2 * size + d, lane] = half + 0.5
        cache[b, to + 3 * size + d, lane] = gammas - 0.5 * (_LOG_PI + math.log(width))


@compiled
def _refresh_gaussian(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    cache: FloatArray,
    b: int,
    lane: int,
) -> None:
    """Figures: mean (D), factor by rows with inverse diagonal, log determinant; and what
    the Student density of one row needs: constant, power, gain.
    """
    size, to = program[p, COLUMNS], program[p, CACHE]
    factor, centre = np.empty((size, size)), np.empty(size)
    log_det = _factorise(program, params, dense, p, stats, g, g, 0.0, factor, centre)
    e = to + size
    for a in range(size):
        cache[b, to + a, lane] = centre[a]
        for c in range(a):
            cache[b, e, lane] = factor[a, c]
            e += 1
        cache[b, e, lane] = 1.0 / factor[a, a]
        e += 1
    cache[b, e, lane] = log_det
    own = program[p, PARAMS] + size * size
    total, degrees = params[own] + stats[g, 0], params[own + 1] + stats[g, 0]
    cache[b, e + 1, lane] = _gaussian_constant(size, total, degrees, 1.0) - 0.5 * log_det
    cache[b, e + 2, lane] = 0.5 * (degrees + 1.0)
    cache[b, e + 3, lane] = total / (total + 1.0)


@compiled
def _refresh_levels(
    program: IntArray,
    params: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    cache: FloatArray,
    b: int,
    lane: int,
) -> None:
    """Figures: the share of each level."""
    size, at, own = program[p, COLUMNS], program[p, STATS], program[p, PARAMS]
    n_levels, to = program[p, DENSE], program[p, CACHE]
    for d in range(size):
        start = own + 2 * n_levels + d
        first, last = int(params[start]), int(params[start + 1])
        total = params[own + 2 * n_levels + size + 1 + d]
        for level in range(first, last):
            total += stats[g, at + level]
        for level in range(first, last):
            cache[b, to + level, lane] = (params[own + level] + stats[g, at + level]) / total


@compiled
def _refresh_binary(
    program: IntArray,
    params: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    cache: FloatArray,
    b: int,
    lane: int,
) -> None:
    """Figures: odds of a one (D), log p(zeros), and the same with one row less."""
    size, at, own = program[p, COLUMNS], program[p, STATS], program[p, PARAMS]
    to, flush = program[p, CACHE], program[p, FLUSH]
    n = stats[g, 0]
    value, product, less, product_less = 0.0, 1.0, 0.0, 1.0
    count = 0
    for d in range(size):
        ones, alpha, beta = stats[g, at + d], params[own + d], params[own + size + d]
        zeros, total = beta + (n - ones), alpha + beta + n
        cache[b, to + d, lane] = (alpha + ones) / zeros
        product *= zeros / total
        # Where all rows are one, so is the row that leaves: it looks at its ones apart.
        product_less *= beta + (n - ones - 1.0) if ones < n else 1.0
        product_less /= alpha + beta + max(n - 1.0, 0.0)
        count += 1
        if count == flush:
            value += math.log(product)
            less += math.log(product_less)
            product, product_less, count = 1.0, 1.0, 0
    cache[b, to + size, lane] = value + math.log(product)
    cache[b, to + size + 1, lane] = less + math.log(product_less)


@compiled
def _refresh_multinomial(
    program: IntArray,
    params: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    p: int,
    stats: FloatArray,
    g: int,
    cache: FloatArray,
    b: int,
    lane: int,
    i: int,
) -> None:
    """Figures: pseudo-counts and counts (D), all counts, log gamma with pseudo-counts."""
    size, at, own = program[p, COLUMNS], program[p, STATS], program[p, PARAMS]
    to = program[p, CACHE]
    if i >= 0:
        for e in range(pointers[p, i], pointers[p, i + 1]):
            d = tokens[e]
            cache[b, to + d, lane] = params[own + d] + stats[g, at + d]
    else:
        for d in range(size):
            cache[b, to + d, lane] = params[own + d] + stats[g, at + d]
    total = 0.0
    for d in range(size):
        total += stats[g, at + d]
    cache[b, to + size, lane] = total
    cache[b, to + size + 1, lane] = math.lgamma(params[own + size] + total)


@compiled
def _refresh_poisson(
    program: IntArray,
    params: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    cache: FloatArray,
    b: int,
    lane: int,
) -> None:
    """Figures: sizes (D), 1 / (rate + 1) (D), log p(zeros), and with one row less."""
    size, at, own = program[p, COLUMNS], program[p, STATS], program[p, PARAMS]
    to, gaps = program[p, CACHE], program[p, FLAG] == GAPS
    value, less = 0.0, 0.0
    for d in range(size):
        n = stats[g, at + 1 + size + d] if gaps else stats[g, 0]
        total, after = params[own + d] + stats[g, at + 1 + d], params[own + size + d] + n
        cache[b, to + d, lane] = total
        cache[b, to + size + d, lane] = 1.0 / (after + 1.0)
        value += total * math.log(after / (after + 1.0))
        if n >= 1.0:
            before = params[own + size + d] + (n - 1.0)
            less += total * math.log(before / (before + 1.0))
    cache[b, to + 2 * size, lane] = value
    cache[b, to + 2 * size + 1, lane] = less


# ---- one row under all clusters ---------------------------------------------------------


@compiled
def _score_alike(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    p: int,
    i: int,
    n_clusters: int,
    cache: FloatArray,
    weights: FloatArray,
    work: FloatArray,
) -> None:
    size, to = program[p, COLUMNS], program[p, CACHE]
    first, breaks = program[p, DENSE], program[p, PARAMS] + 4 * size
    power = to + 2 * size
    for b in range((n_clusters + LANES - 1) // LANES):
        used = min(LANES, n_clusters - b * LANES)
        for k in range(LANES):
            work[0, k] = 1.0
            weights[b, k] += cache[b, power + 1, k]
        for d in range(size):
            y = dense[i, first + d]
            for k in range(LANES):
                away = y - cache[b, to + d, k]
                work[0, k] *= 1.0 + away * away * cache[b, to + size + d, k]
            if params[breaks + d] != 0.0:
                for k in range(used):
                    weights[b, k] -= cache[b, power, k] * math.log(work[0, k])
                for k in range(LANES):
                    work[0, k] = 1.0


@compiled
def _own_alike(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    p: int,
    i: int,
    cache: FloatArray,
    b: int,
    lane: int,
) -> float:
    """From the figures that hold the row: b without it is b (1 - a share); NaN if unsafe."""
    size, to = program[p, COLUMNS], program[p, CACHE]
    first, breaks = program[p, DENSE], program[p, PARAMS] + 4 * size
    after = to + 2 * size
    gain = cache[b, after + 4, lane]
    value, product, least = 0.0, 1.0, 1.0
    for d in range(size):
        away = dense[i, first + d] - cache[b, to + d, lane]
        left = 1.0 - away * away * cache[b, to + size + d, lane] * gain
        least = min(least, left)
        product *= left
        if params[breaks + d] != 0.0:
            if not least > _SAFE:
                return math.nan
            value += math.log(product)
            product = 1.0
    return cache[b, after + 3, lane] + cache[b, after + 2, lane] * value  # type: ignore[no-any-return]


@compiled
def _score_unlike(
    program: IntArray,
    dense: FloatArray,
    p: int,
    i: int,
    n_clusters: int,
    cache: FloatArray,
    weights: FloatArray,
) -> None:
    size, to = program[p, COLUMNS], program[p, CACHE]
    first = program[p, DENSE]
    for b in range((n_clusters + LANES - 1) // LANES):
        used = min(LANES, n_clusters - b * LANES)
        for d in range(size):
            y = dense[i, first + d]
            if y != y:
                continue
            at = to + d
            for k in range(used):
                away = y - cache[b, at, k]
                growth = 1.0 + away * away * cache[b, at + size, k]
                weights[b, k] += cache[b, at + 3 * size, k] - cache[b, at + 2 * size, k] * math.log(
                    growth
                )


@compiled
def _solve(
    program: IntArray,
    dense: FloatArray,
    p: int,
    i: int,
    n_clusters: int,
    cache: FloatArray,
    squares: FloatArray,
    work: FloatArray,
) -> None:
    """Fill `squares` with the squared norms of a row under the factors of a block."""
    size, to, first = program[p, COLUMNS], program[p, CACHE], program[p, DENSE]
    for b in range((n_clusters + LANES - 1) // LANES):
        for k in range(LANES):
            squares[b, k] = 0.0
        e = to + size
        for a in range(size):
            x = dense[i, first + a]
            for k in range(LANES):
                work[0, k] = x - cache[b, to + a, k]
            for c in range(a):
                for k in range(LANES):
                    work[0, k] -= cache[b, e, k] * work[1 + c, k]
                e += 1
            for k in range(LANES):
                value = work[0, k] * cache[b, e, k]
                work[1 + a, k] = value
                squares[b, k] += value * value
            e += 1


@compiled
def _score_gaussian(
    program: IntArray,
    params: FloatArray,
    p: int,
    load: float,
    n_clusters: int,
    stats: FloatArray,
    cache: FloatArray,
    weights: FloatArray,
    squares: FloatArray,
) -> None:
    size = program[p, COLUMNS]
    at = program[p, CACHE] + size + size * (size + 1) // 2
    own = program[p, PARAMS] + size * size
    for b in range((n_clusters + LANES - 1) // LANES):
        for k in range(min(LANES, n_clusters - b * LANES)):
            if load == 1.0:
                growth = 1.0 + cache[b, at + 3, k] * squares[b, k]
                value = cache[b, at + 1, k] - cache[b, at + 2, k] * math.log(growth)
            else:
                n = stats[b * LANES + k, 0]
                total, degrees = params[own] + n, params[own + 1] + n
                growth = 1.0 + load * total / (total + load) * squares[b, k]
                value = _gaussian_constant(size, total, degrees, load)
                value -= 0.5 * load * cache[b, at, k]
                value -= 0.5 * (degrees + load) * math.log(growth)
            weights[b, k] += value


@compiled
def _own_gaussian(
    program: IntArray,
    params: FloatArray,
    p: int,
    n: float,
    load: float,
    cache: FloatArray,
    b: int,
    lane: int,
    square: float,
) -> float:
    """From the factor that holds the row: |S'| without it is |S'| (1 - a share), NaN if unsafe."""
    size = program[p, COLUMNS]
    at = program[p, PARAMS] + size * size
    total, degrees = params[at] + n, params[at + 1] + n
    left = 1.0 - load * total / (total - load) * square
    if not left > _SAFE:
        return math.nan
    shrink = math.log(left)
    log_det = cache[b, program[p, CACHE] + size + size * (size + 1) // 2, lane] + shrink
    constant = _gaussian_constant(size, total - load, degrees - load, load)
    return constant - 0.5 * load * log_det + 0.5 * degrees * shrink  # type: ignore[no-any-return]


@compiled
def _multiply_tokens(
    program: IntArray,
    pointers: IntArray,
    tokens: AnyArray,
    p: int,
    i: int,
    n_clusters: int,
    cache: FloatArray,
    weights: FloatArray,
    work: FloatArray,
) -> None:
    """Add the logarithm of the product of the cached figures of a row's tokens."""
    to, flush = program[p, CACHE], program[p, FLUSH]
    for b in range((n_clusters + LANES - 1) // LANES):
        used = min(LANES, n_clusters - b * LANES)
        for k in range(LANES):
            work[0, k] = 1.0
        count = 0
        for e in range(pointers[p, i], pointers[p, i + 1]):
            at = to + tokens[e]
            for k in range(LANES):
                work[0, k] *= cache[b, at, k]
            count += 1
            if count == flush:
                _flush(weights, work, b, used)
                count = 0
        if count > 0:
            _flush(weights, work, b, used)
        if program[p, KIND] == BINARY:
            at = to + program[p, COLUMNS]
            for k in range(LANES):
                weights[b, k] += cache[b, at, k]


@compiled
def _flush(weights: FloatArray, work: FloatArray, b: int, used: int) -> None:
    """Take the logarithms of the products of a block, and start new ones."""
    for k in range(used):
        weights[b, k] += math.log(work[0, k])
    for k in range(LANES):
        work[0, k] = 1.0


@compiled
def _own_binary(
    program: IntArray,
    params: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    cache: FloatArray,
    b: int,
    lane: int,
) -> float:
    size, at = program[p, COLUMNS], program[p, STATS]
    first, flush = program[p, PARAMS], program[p, FLUSH]
    n = stats[g, 0]
    value, product, count = cache[b, program[p, CACHE] + size + 1, lane], 1.0, 0
    for e in range(pointers[p, i], pointers[p, i + 1]):
        d = tokens[e]
        ones = stats[g, at + d]
        zeros = params[first + size + d] + (n - ones - 1.0) if ones < n else 1.0
        product *= (params[first + d] + (ones - 1.0)) / zeros
        count += 1
        if count == flush:
            value += math.log(product)
            product, count = 1.0, 0
    return value + math.log(product)  # type: ignore[no-any-return]


@compiled
def _score_multinomial(
    program: IntArray,
    params: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    p: int,
    i: int,
    n_clusters: int,
    cache: FloatArray,
    weights: FloatArray,
    work: FloatArray,
) -> None:
    size, to = program[p, COLUMNS], program[p, CACHE]
    flush, alpha = program[p, FLUSH], params[program[p, PARAMS] + size]
    for b in range((n_clusters + LANES - 1) // LANES):
        used = min(LANES, n_clusters - b * LANES)
        for k in range(LANES):
            work[0, k] = 1.0
        drawn = 0.0
        count = 0
        for e in range(pointers[p, i], pointers[p, i + 1]):
            at, x = to + tokens[e], values[e]
            drawn += x
            if x > _SHORT or x != math.floor(x):
                for k in range(used):
                    weights[b, k] += math.lgamma(cache[b, at, k] + x) - math.lgamma(cache[b, at, k])
                continue
            for j in range(int(x)):
                for k in range(LANES):
                    work[0, k] *= cache[b, at, k] + j
                count += 1
                if count == flush:
                    _flush(weights, work, b, used)
                    count = 0
        if count > 0:
            _flush(weights, work, b, used)
        for k in range(used):
            weights[b, k] -= (
                math.lgamma(alpha + cache[b, to + size, k] + drawn) - cache[b, to + size + 1, k]
            )


@compiled
def _own_multinomial(
    program: IntArray,
    params: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    cache: FloatArray,
    b: int,
    lane: int,
) -> float:
    size, at = program[p, COLUMNS], program[p, STATS]
    first, to = program[p, PARAMS], program[p, CACHE]
    value, drawn = 0.0, 0.0
    for e in range(pointers[p, i], pointers[p, i + 1]):
        d, x = tokens[e], values[e]
        value += log_rising(params[first + d] + (stats[g, at + d] - x), x)
        drawn += x
    total = params[first + size] + (cache[b, to + size, lane] - drawn)
    return value + math.lgamma(total) - cache[b, to + size + 1, lane]  # type: ignore[no-any-return]


@compiled
def _score_poisson(
    program: IntArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    p: int,
    i: int,
    n_clusters: int,
    cache: FloatArray,
    weights: FloatArray,
    work: FloatArray,
) -> None:
    size, to = program[p, COLUMNS], program[p, CACHE]
    flush = program[p, FLUSH]
    for b in range((n_clusters + LANES - 1) // LANES):
        used = min(LANES, n_clusters - b * LANES)
        for k in range(LANES):
            work[0, k] = 1.0
            weights[b, k] += cache[b, to + 2 * size, k]
        count = 0
        for e in range(pointers[p, i], pointers[p, i + 1]):
            at, x = to + tokens[e], values[e]
            if x != x:
                for k in range(used):
                    weights[b, k] -= cache[b, at, k] * math.log1p(-cache[b, at + size, k])
            elif x > _SHORT or x != math.floor(x):
                for k in range(used):
                    weights[b, k] += math.lgamma(cache[b, at, k] + x) - math.lgamma(cache[b, at, k])
                    weights[b, k] += x * math.log(cache[b, at + size, k])
            else:
                for j in range(int(x)):
                    for k in range(LANES):
                        work[0, k] *= (cache[b, at, k] + j) * cache[b, at + size, k]
                    count += 1
                    if count == flush:
                        _flush(weights, work, b, used)
                        count = 0
        if count > 0:
            _flush(weights, work, b, used)


@compiled
def _own_poisson(
    program: IntArray,
    params: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    cache: FloatArray,
    b: int,
    lane: int,
) -> float:
    size, at, first = program[p, COLUMNS], program[p, STATS], program[p, PARAMS]
    gaps = program[p, FLAG] == GAPS
    value = cache[b, program[p, CACHE] + 2 * size + 1, lane]
    for e in range(pointers[p, i], pointers[p, i + 1]):
        d, x = tokens[e], values[e]
        n = stats[g, at + 1 + size + d] if gaps else stats[g, 0]
        before = params[first + size + d] + (n - 1.0)
        if x == x:
            without = params[first + d] + (stats[g, at + 1 + d] - x)
            value += log_rising(without, x) - x * math.log(before + 1.0)
            value -= x * math.log(before / (before + 1.0))
        elif n >= 1.0:
            total = params[first + d] + stats[g, at + 1 + d]
            value -= total * math.log(before / (before + 1.0))
    return value  # type: ignore[no-any-return]


# ---- visits -----------------------------------------------------------------------------


@compiled
def alone(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    loads: FloatArray,
    log_new: FloatArray,
    zeros: FloatArray,
) -> None:
    """Fill `log_new` with log p of the copies of each row in a cluster of their own.

    With them goes what the partition says of copies that open a cluster, log Gamma(weight).
    """
    nothing = zeros.shape[0] - 1
    for i in range(log_new.shape[0]):
        load = loads[i]
        value = math.lgamma(load)
        for p in range(program.shape[0]):
            value += predictive(
                program, params, dense, pointers, tokens, values, p, zeros, nothing, i, load, 0.0
            )
        log_new[i] = value


@compiled
def refresh_all(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    loads: FloatArray,
    stats: FloatArray,
    cache: FloatArray,
    n_clusters: int,
    anything: int,
) -> None:
    """Fill the caches of all clusters; `anything` is -1."""
    for k in range(n_clusters):
        refresh(program, params, dense, pointers, tokens, stats, k, cache, anything)


@compiled
def log_weights(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    loads: FloatArray,
    i: int,
    own: int,
    n_clusters: int,
    log_concentration: float,
    log_new: FloatArray,
    stats: FloatArray,
    cache: FloatArray,
    weights: FloatArray,
    squares: FloatArray,
    work: FloatArray,
) -> int:
    """Fill the weights with the logarithms of a row's choices; return how many there are.

    They are the clusters, then a new one. A row that is alone in its cluster finds the new
    one in its place. A call with many arrays takes as long as scoring a few clusters, so
    that this function calls nothing but short ones on the usual way.
    """
    load = loads[i]
    single = own >= 0 and stats[own, 0] <= load
    leaves = own >= 0 and not single  # and its cluster stays
    b, lane, n_left, mine = 0, 0, 0.0, 0.0
    if leaves:
        b, lane, n_left = own // LANES, own % LANES, stats[own, 0] - load
    _start(n_clusters, load, stats, cache, weights)
    for p in range(program.shape[0]):
        kind, value = program[p, KIND], math.nan
        if kind == GAUSSIAN:
            _solve(program, dense, p, i, n_clusters, cache, squares, work)
            _score_gaussian(program, params, p, load, n_clusters, stats, cache, weights, squares)
            if leaves:
                square = squares[b, lane]
                value = _own_gaussian(
                    program, params, p, n_left + load, load, cache, b, lane, square
                )
        elif load != 1.0:
            for k in range(n_clusters):
                if k != own:
                    weights[k // LANES, k % LANES] += predictive(
                        program, params, dense, pointers, tokens, values, p, stats, k, i, load,
                        0.0,
                    )  # fmt: skip
        elif kind == DIAGONAL:
            if program[p, FLAG] == ALIKE:
                _score_alike(program, params, dense, p, i, n_clusters, cache, weights, work)
                if leaves:
                    value = _own_alike(program, params, dense, p, i, cache, b, lane)
            else:
                _score_unlike(program, dense, p, i, n_clusters, cache, weights)
        elif kind == MULTINOMIAL:
            _score_multinomial(
                program, params, pointers, tokens, values, p, i, n_clusters, cache, weights, work
            )
            if leaves:
                value = _own_multinomial(
                    program, params, pointers, tokens, values, p, stats, own, i, cache, b, lane
                )
        elif kind == POISSON:
            _score_poisson(
                program, pointers, tokens, values, p, i, n_clusters, cache, weights, work
            )
            if leaves:
                value = _own_poisson(
                    program, params, pointers, tokens, values, p, stats, own, i, cache, b, lane
                )
        else:
            _multiply_tokens(program, pointers, tokens, p, i, n_clusters, cache, weights, work)
            if kind == BINARY and leaves:
                value = _own_binary(
                    program, params, pointers, tokens, p, stats, own, i, cache, b, lane
                )
        if leaves:
            if value != value:
                value = predictive(
                    program, params, dense, pointers, tokens, values, p, stats, own, i, load, load
                )
            mine += value
    new = log_concentration + log_new[i]
    if single:
        weights[own // LANES, own % LANES] = new
        return n_clusters
    if leaves:
        weights[b, lane] = mine + _log_size(n_left, load)
    weights[n_clusters // LANES, n_clusters % LANES] = new
    return n_clusters + 1


@compiled
def _start(
    n_clusters: int, load: float, stats: FloatArray, cache: FloatArray, weights: FloatArray
) -> None:
    """Fill the weights with what sizes alone say."""
    for b in range((n_clusters + LANES - 1) // LANES):
        for k in range(LANES):
            weights[b, k] = cache[b, 0, k]
        if load != 1.0:
            for k in range(min(LANES, n_clusters - b * LANES)):
                weights[b, k] = _log_size(stats[b * LANES + k, 0], load)


@compiled
def _log_size(n: float, load: float) -> float:
    r"""Return log (n (n + 1) ... (n + load - 1))."""
    return math.log(n) if load == 1.0 else math.lgamma(n + load) - math.lgamma(n)


@compiled
def choose(weights: FloatArray, n_choices: int, uniform: float) -> int:
    """Replace logarithms by weights, and return the choice that a uniform number makes."""
    largest = weights[0]
    for k in range(1, n_choices):
        largest = max(largest, weights[k])
    total = 0.0
    for k in range(n_choices):
        below = weights[k] - largest
        weights[k] = math.exp(below) if below > _NEGLIGIBLE else 0.0
        total += weights[k]
    target = uniform * total
    reached = 0.0
    for k in range(n_choices):
        reached += weights[k]
        if reached > target:
            return k
    return n_choices - 1


@compiled
def visit(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    loads: FloatArray,
    order: IntArray,
    start: int,
    uniforms: FloatArray,
    labels: AnyArray,
    n_clusters: int,
    log_concentration: float,
    log_new: FloatArray,
    stats: FloatArray,
    cache: FloatArray,
    weights: FloatArray,
    squares: FloatArray,
    work: FloatArray,
) -> tuple[int, int]:
    """Let rows choose clusters, in `order` from `start` on; return where it ended, and K.

    It ends early when there is no room for another cluster. Rows labelled -1 are in no
    cluster yet.
    """
    flat = weights.reshape(-1)
    for step in range(start, order.shape[0]):
        if n_clusters == stats.shape[0]:
            return step, n_clusters
        i = order[step]
        own: Any = np.int64(labels[i])
        n_choices = log_weights(
            program, params, dense, pointers, tokens, values, loads, i, own, n_clusters,
            log_concentration, log_new, stats, cache, weights, squares, work,
        )  # fmt: skip
        chosen = choose(flat, n_choices, uniforms[step])
        if chosen != own:
            n_clusters = move(
                program, params, dense, pointers, tokens, values, loads, i, own, chosen, labels,
                n_clusters, stats, cache,
            )  # fmt: skip
    return order.shape[0], n_clusters


@compiled
def visit_two(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    loads: FloatArray,
    order: IntArray,
    uniforms: FloatArray,
    forced: AnyArray,
    labels: AnyArray,
    log_new: FloatArray,
    stats: FloatArray,
    cache: FloatArray,
    weights: FloatArray,
    squares: FloatArray,
    work: FloatArray,
) -> float:
    """Let rows choose between clusters 0 and 1; return the log probability of their choices.

    With `forced` (one a row of `order`, otherwise empty) the choices are given.
    """
    total, n_clusters = 0.0, stats.shape[0]
    for step in range(order.shape[0]):
        i = order[step]
        own: Any = np.int64(labels[i])
        log_weights(
            program, params, dense, pointers, tokens, values, loads, i, own, n_clusters,
            -math.inf, log_new, stats, cache, weights, squares, work,
        )  # fmt: skip
        odds = weights[0, 1] - weights[0, 0]
        if forced.shape[0] > 0:
            chosen = int(forced[step])
        else:
            chosen = 0 if uniforms[step] < _share(odds) else 1
        against = odds if chosen == 0 else -odds
        if against > 0.0:
            total -= against + math.log1p(math.exp(-against))
        else:
            total -= math.log1p(math.exp(against))
        if chosen != own:
            move(
                program, params, dense, pointers, tokens, values, loads, i, own, chosen, labels,
                n_clusters, stats, cache,
            )  # fmt: skip
    return total


@compiled
def _share(odds: float) -> float:
    """Return 1 / (1 + exp(odds)) without overflow."""
    if odds > 0.0:
        return math.exp(-odds) / (1.0 + math.exp(-odds))
    return 1.0 / (1.0 + math.exp(odds))


@compiled
def move(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    loads: FloatArray,
    i: int,
    own: int,
    chosen: int,
    labels: AnyArray,
    n_clusters: int,
    stats: FloatArray,
    cache: FloatArray,
) -> int:
    """Take row `i` from cluster `own` (-1: none) to `chosen`; return the number of clusters."""
    load = loads[i]
    if own >= 0:
        if stats[own, 0] > load:
            change(program, params, dense, pointers, tokens, values, loads, stats, own, i, -load)
            refresh(program, params, dense, pointers, tokens, stats, own, cache, i)
        else:
            n_clusters -= 1
            _close(own, n_clusters, labels, stats, cache)
            if chosen == n_clusters:
                chosen = own
    opened = chosen == n_clusters
    change(program, params, dense, pointers, tokens, values, loads, stats, chosen, i, load)
    refresh(program, params, dense, pointers, tokens, stats, chosen, cache, -1 if opened else i)
    labels[i] = chosen
    return n_clusters + 1 if opened else n_clusters


@compiled
def _close(own: int, last: int, labels: AnyArray, stats: FloatArray, cache: FloatArray) -> None:
    """Move the last cluster into the place of one that is empty."""
    if own != last:
        for q in range(stats.shape[1]):
            stats[own, q] = stats[last, q]
        for q in range(cache.shape[1]):
            cache[own // LANES, q, own % LANES] = cache[last // LANES, q, last % LANES]
        for j in range(labels.shape[0]):
            if labels[j] == last:
                labels[j] = own
    for q in range(stats.shape[1]):
        stats[last, q] = 0.0
