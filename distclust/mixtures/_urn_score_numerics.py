"""Compiled densities of one row under all clusters of an urn, from the caches.

See `_urn_numerics`.
"""

from __future__ import annotations

import math

from distclust.compiled import compiled
from distclust.families._numerics import log_rising
from distclust.mixtures._urn_predictive_numerics import gaussian_constant
from distclust.mixtures._urn_statistics_numerics import (
    BINARY,
    CACHE,
    COLUMNS,
    DENSE,
    FLAG,
    FLUSH,
    GAPS,
    KIND,
    LANES,
    PARAMS,
    STATS,
    AnyArray,
    FloatArray,
    IntArray,
)

_SAFE = 1e-3  # below it, what is left of a difference has lost too many digits
_SHORT = 8.0  # rising factorials up to here are multiplied out


@compiled
def score_alike(
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
def own_alike(
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
def score_unlike(
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
def solve(
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
def score_gaussian(
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
                value = gaussian_constant(size, total, degrees, load)
                value -= 0.5 * load * cache[b, at, k]
                value -= 0.5 * (degrees + load) * math.log(growth)
            weights[b, k] += value


@compiled
def own_gaussian(
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
    constant = gaussian_constant(size, total - load, degrees - load, load)
    return constant - 0.5 * load * log_det + 0.5 * degrees * shrink  # type: ignore[no-any-return]


@compiled
def multiply_tokens(
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
def own_binary(
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
def score_multinomial(
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
def own_multinomial(
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
def score_poisson(
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
def own_poisson(
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
