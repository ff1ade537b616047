r"""Compiled visits of a Polya urn: rows leave their cluster and choose one anew.

A family is a list of *parts*, each a kind of density over some columns; a product simply has
several. A part has four functions, in a module each: `change` of the statistics of a group,
`refresh` of what is cached of a cluster, scores of one row under all clusters, from the caches,
and `predictive` of a row under one cluster, from its statistics.

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
from typing import Any

import numpy as np

from distclust.compiled import compiled
from distclust.mixtures._urn_cache_numerics import refresh
from distclust.mixtures._urn_predictive_numerics import predictive
from distclust.mixtures._urn_score_numerics import (
    multiply_tokens,
    own_alike,
    own_binary,
    own_gaussian,
    own_multinomial,
    own_poisson,
    score_alike,
    score_gaussian,
    score_multinomial,
    score_poisson,
    score_unlike,
    solve,
)
from distclust.mixtures._urn_statistics_numerics import (
    ALIKE,
    BINARY,
    DIAGONAL,
    FLAG,
    GAUSSIAN,
    KIND,
    LANES,
    MULTINOMIAL,
    POISSON,
    AnyArray,
    FloatArray,
    IntArray,
    change,
)

_NEGLIGIBLE = -60.0  # logarithm of a weight that no uniform number can tell from none


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
            solve(program, dense, p, i, n_clusters, cache, squares, work)
            score_gaussian(program, params, p, load, n_clusters, stats, cache, weights, squares)
            if leaves:
                square = squares[b, lane]
                value = own_gaussian(
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
                score_alike(program, params, dense, p, i, n_clusters, cache, weights, work)
                if leaves:
                    value = own_alike(program, params, dense, p, i, cache, b, lane)
            else:
                score_unlike(program, dense, p, i, n_clusters, cache, weights)
        elif kind == MULTINOMIAL:
            score_multinomial(
                program, params, pointers, tokens, values, p, i, n_clusters, cache, weights, work
            )
            if leaves:
                value = own_multinomial(
                    program, params, pointers, tokens, values, p, stats, own, i, cache, b, lane
                )
        elif kind == POISSON:
            score_poisson(program, pointers, tokens, values, p, i, n_clusters, cache, weights, work)
            if leaves:
                value = own_poisson(
                    program, params, pointers, tokens, values, p, stats, own, i, cache, b, lane
                )
        else:
            multiply_tokens(program, pointers, tokens, p, i, n_clusters, cache, weights, work)
            if kind == BINARY and leaves:
                value = own_binary(
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
