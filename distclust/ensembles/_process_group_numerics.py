"""Compiled moves of many label rows at once in the Dirichlet-process ensemble.

Equal rows that move together, splits and merges of clusters, and where chains start. See
`_process_numerics` for the tables.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled
from distclust.ensembles._process_numerics import SPARE_CLUSTERS, count_cells, draw, relabel, wider

Array = npt.NDArray[Any]

_FEW = 16  # so many factors are multiplied rather than taken from two log gammas
_HUGE = 1e150
_TINY = 1e-150


@compiled
def _log_rising(x: float, n: int) -> float:
    """Return log x (x + 1) ... (x + n - 1)."""
    if n == 1:
        return math.log(x)
    if n > _FEW:
        return math.lgamma(x + n) - math.lgamma(x)
    total, product = 0.0, 1.0
    for i in range(n):
        product *= x + i
        if product > _HUGE or product < _TINY:
            total += math.log(product)
            product = 1.0
    return total + math.log(product)


@compiled
def _log_said(
    row: Array, k: int, n: int, missing: Array, pseudo: Array, counts: Array, sign: int
) -> float:
    """Return the log predictive of n equal label rows in a cluster; sign -1: they are in it."""
    taken = n if sign < 0 else 0
    total, ratio = 0.0, 1.0
    for m in range(len(row)):
        r, every = row[m], missing[m]
        if r == every:
            continue
        above = counts[r, k] - taken + pseudo[r]
        below = counts[every, k] - taken + pseudo[every]
        if n > _FEW:
            total += _log_rising(above, n) - _log_rising(below, n)
            continue
        for i in range(n):
            ratio *= (above + i) / (below + i)
            if ratio < _TINY:
                total += math.log(ratio)
                ratio = 1.0
    return total + math.log(ratio)


@compiled
def _move_between(
    row: Array, many: int, k: int, sign: int, missing: Array, counts: Array, sizes: Array
) -> None:
    """Add equal label rows to a cluster, or take them away."""
    sizes[k] += sign * many
    for m in range(len(row)):
        if row[m] != missing[m]:
            counts[row[m], k] += sign * many
            counts[missing[m], k] += sign * many


@compiled
def sweep_groups(
    patterns: Array,
    multiplicities: Array,
    missing: Array,
    pseudo: Array,
    log_concentration: float,
    uniforms: Array,
    n_clusters: int,
    assignments: Array,
) -> int:
    """Draw the cluster of every distinct row anew, all rows that are equal to it together.

    See `sweep_rows`; `multiplicities` says how many rows each pattern stands for.
    """
    n, n_items = n_clusters, len(assignments)
    cells = len(pseudo)
    capacity = n + SPARE_CLUSTERS
    sizes = np.zeros(capacity, np.int64)
    counts = np.zeros((cells, capacity), np.int64)
    items = np.arange(n_items)
    count_cells(patterns, items, multiplicities, missing, assignments, counts, sizes)
    logs = np.empty(capacity)
    for i in range(n_items):
        own, many = assignments[i], multiplicities[i]
        row = patterns[i]
        is_alone = sizes[own] == many
        # Column n is empty: it says what a new cluster does.
        highest = -math.inf
        for k in range(n + 1):
            sign = -1 if k == own else 1
            if k == own and is_alone:
                logs[k] = -math.inf
                continue
            size = sizes[k] - many if k == own else sizes[k]
            prior = log_concentration + math.lgamma(many) if k == n else _log_rising(size, many)
            logs[k] = prior + _log_said(row, k, many, missing, pseudo, counts, sign)
            highest = max(highest, logs[k])
        for k in range(n + 1):
            logs[k] = math.exp(logs[k] - highest)
        chosen = draw(logs, n, logs[n], uniforms[i])
        if chosen == own or (chosen == n and is_alone):
            continue
        if chosen == n and n + 2 == capacity:
            capacity *= 2
            counts = wider(counts, np.zeros(cells, np.int64), capacity)
            sizes = np.concatenate((sizes, np.zeros(capacity - len(sizes), np.int64)))
            logs = np.empty(capacity)
        assignments[i] = chosen
        n = max(n, chosen + 1)
        _move_between(row, many, own, -1, missing, counts, sizes)
        _move_between(row, many, chosen, 1, missing, counts, sizes)
        if is_alone:
            n -= 1
            if own != n:
                sizes[own] = sizes[n]
                counts[:, own] = counts[:, n]
                relabel(assignments, n, own)
            sizes[n] = 0
            counts[:, n] = 0
    return n


@compiled
def _log_odds(
    row: Array, many: int, missing: Array, pseudo: Array, counts: Array, sizes: Array
) -> float:
    """Return the log odds of side 1 for rows that are in neither."""
    odds = _log_rising(sizes[1], many) - _log_rising(sizes[0], many)
    odds += _log_said(row, 1, many, missing, pseudo, counts, 1)
    return odds - _log_said(row, 0, many, missing, pseudo, counts, 1)


@compiled
def _log_marginal(counts: Array, sizes: Array, side: int, missing: Array, pseudo: Array) -> float:
    """Return lgamma(size) and the log marginal of a side's labels."""
    total = math.lgamma(sizes[side])
    m = 0
    for r in range(len(pseudo)):
        sign = 1.0
        if r == missing[m]:
            sign = -1.0
            m += 1
        if counts[r, side]:
            total += sign * (math.lgamma(counts[r, side] + pseudo[r]) - math.lgamma(pseudo[r]))
    return total


@compiled
def propose(
    patterns: Array,
    multiplicities: Array,
    missing: Array,
    pseudo: Array,
    log_concentration: float,
    is_split: bool,
    uniforms: Array,
    sides: Array,
) -> float:
    """Propose a split or a merge of two clusters; return the log of its acceptance ratio.

    Parameters
    ----------
    patterns
        Members of both clusters as cells, shape (n, n_bases). The first and the second are
        those that were picked: they are on sides 0 and 1.
    multiplicities
        Rows that each member stands for.
    missing, pseudo, log_concentration
        See `sweep_rows`.
    is_split
        Whether the members are one cluster now.
    uniforms
        Shape (scans + 2, n).
    sides
        For a merge, the side of each member now. For a split, filled with the proposed sides.

    Notes
    -----
    Jain and Neal: a launch state of random sides, restricted Gibbs scans, and a last one, whose
    probability is that of the split: drawn for a split, recomputed for a merge.
    """
    n = len(multiplicities)
    counts = np.zeros((len(pseudo), 3), np.int64)
    sizes = np.zeros(3, np.int64)
    now = np.empty(n, np.int8)
    for i in range(n):
        now[i] = i if i < 2 else (0 if uniforms[0, i] < 0.5 else 1)
        _move_between(patterns[i], multiplicities[i], now[i], 1, missing, counts, sizes)
        _move_between(patterns[i], multiplicities[i], 2, 1, missing, counts, sizes)
    log_q = 0.0
    last = len(uniforms) - 1
    for scan in range(1, last + 1):
        for i in range(2, n):
            row, many = patterns[i], multiplicities[i]
            _move_between(row, many, now[i], -1, missing, counts, sizes)
            odds = _log_odds(row, many, missing, pseudo, counts, sizes)
            # log p of side 1 and of side 0
            if odds > 0:
                log_1 = -math.log1p(math.exp(-odds))
                log_0 = log_1 - odds
            else:
                log_0 = -math.log1p(math.exp(odds))
                log_1 = log_0 + odds
            if scan == last and not is_split:
                side = sides[i]
            else:
                side = 1 if uniforms[scan, i] < math.exp(log_1) else 0
            if scan == last:
                log_q += log_1 if side == 1 else log_0
            now[i] = side
            _move_between(row, many, side, 1, missing, counts, sizes)
    apart = log_concentration
    apart += _log_marginal(counts, sizes, 0, missing, pseudo)
    apart += _log_marginal(counts, sizes, 1, missing, pseudo)
    together = _log_marginal(counts, sizes, 2, missing, pseudo)
    if is_split:
        sides[:] = now
        return apart - together - log_q
    return together - apart + log_q


@compiled
def _merge_gain(
    a: int, b: int, counts: Array, sizes: Array, missing: Array, pseudo: Array
) -> float:
    """Return what the log joint gains when two clusters become one, without the concentration."""
    gain = math.lgamma(sizes[a] + sizes[b]) - math.lgamma(sizes[a]) - math.lgamma(sizes[b])
    m = 0
    for r in range(len(pseudo)):
        sign = 1.0
        if r == missing[m]:
            sign = -1.0
            m += 1
        x, y, p = counts[r, a], counts[r, b], pseudo[r]
        if x and y:  # otherwise the cell says the same before and after
            gain += sign * (math.lgamma(x + y + p) + math.lgamma(p))
            gain -= sign * (math.lgamma(x + p) + math.lgamma(y + p))
    return gain


@compiled
def join_greedily(
    counts: Array, sizes: Array, missing: Array, pseudo: Array, log_concentration: float
) -> Array:
    """Join the two clusters that gain most while any gain; return the new cluster of each.

    `counts` (cells, clusters) and `sizes` are written over.
    """
    n = len(sizes)
    gains = np.full((n, n), -np.inf)
    for a in range(n):
        for b in range(a):
            gains[a, b] = _merge_gain(a, b, counts, sizes, missing, pseudo)
    owner = np.arange(n)
    while True:
        best = int(np.argmax(gains))
        b, a = best // n, best % n  # a is the smaller number
        if not gains[b, a] > log_concentration:
            break
        sizes[a] += sizes[b]
        counts[:, a] += counts[:, b]
        owner[owner == b] = a
        gains[b, :] = -np.inf
        gains[:, b] = -np.inf
        for k in range(n):
            if k != a and owner[k] == k:
                low, high = min(a, k), max(a, k)
                gains[high, low] = _merge_gain(high, low, counts, sizes, missing, pseudo)
    found = np.empty(n, np.int32)
    n_found = 0
    for k in range(n):
        if owner[k] == k:
            found[k] = n_found
            n_found += 1
        else:
            found[k] = found[owner[k]]
    return found


@compiled
def nearest_rows(patterns: Array, kept: Array) -> Array:
    """Return which of the kept patterns shares most labels with each pattern; first of equals."""
    found = np.zeros(len(patterns), np.int32)
    for i in range(len(patterns)):
        best = -1
        for j in range(len(kept)):
            equal = 0
            for m in range(patterns.shape[1]):
                equal += patterns[i, m] == patterns[kept[j], m]
            if equal > best:
                best = equal
                found[i] = j
    return found
