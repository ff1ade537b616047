"""What compiled visits of an urn keep of clusters, made from their statistics alone.

See `_urn_numerics`.
"""

from __future__ import annotations

import math

import numpy as np

from distclust.compiled import compiled
from distclust.mixtures._urn_predictive_numerics import (
    LARGE,
    LOG_PI,
    LOG_TWO_PI,
    SMALL,
    factorise,
    gaussian_constant,
)
from distclust.mixtures._urn_statistics_numerics import (
    ALIKE,
    BINARY,
    CACHE,
    COLUMNS,
    DENSE,
    DIAGONAL,
    FLAG,
    FLUSH,
    GAPS,
    GAUSSIAN,
    KIND,
    LANES,
    LEVELS,
    MULTINOMIAL,
    PARAMS,
    STATS,
    AnyArray,
    FloatArray,
    IntArray,
)


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
        if not SMALL < product < LARGE:
            logs += math.log(product)
            product = 1.0
    logs += math.log(product)
    half = shape + 0.5 * n
    next_to = to + 2 * size
    cache[b, next_to, lane] = half + 0.5
    cache[b, next_to + 1, lane] = (
        size * (math.lgamma(half + 0.5) - math.lgamma(half))
        - 0.5 * size * (LOG_TWO_PI + math.log((total + 1.0) * per_total))
        - 0.5 * logs
    )
    if n > 1.0:  # what a row of the cluster scores there, from the figures that hold it
        cache[b, next_to + 2, lane] = half - 0.5
        cache[b, next_to + 3, lane] = (
            size * (math.lgamma(half) - math.lgamma(half - 0.5))
            - 0.5 * size * (LOG_TWO_PI + math.log(total / (total - 1.0)))
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
        cache[b, to + 3 * size + d, lane] = gammas - 0.5 * (LOG_PI + math.log(width))


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
    log_det = factorise(program, params, dense, p, stats, g, g, 0.0, factor, centre)
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
    cache[b, e + 1, lane] = gaussian_constant(size, total, degrees, 1.0) - 0.5 * log_det
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
