"""Compiled sweeps of the Dirichlet-process ensemble, row after row.

Tables are label-major: a row of a table belongs to one label of one base, a column to a
cluster. What a label says about all clusters lies in one piece, and products over bases
stream through memory.

Each base has one more row, for "missing". Its count is how many members of the cluster have a
label in that base, its pseudo-count the total one, so its factor cancels that of the total:
rows with missing labels need no other code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

Array = npt.NDArray[Any]

SPARE_CLUSTERS = 16


@compiled
def count_cells(
    patterns: Array,
    pattern_of: Array,
    weights: Array,
    missing: Array,
    assignments: Array,
    counts: Array,
    sizes: Array,
) -> None:
    """Add up counts (cells, clusters) and sizes (clusters,) of a partition."""
    for i in range(len(assignments)):
        k = assignments[i]
        sizes[k] += weights[i]
        row = patterns[pattern_of[i]]
        for m in range(len(row)):
            if row[m] != missing[m]:
                counts[row[m], k] += weights[i]
                counts[missing[m], k] += weights[i]


@compiled
def _set_scales(
    k: int, counts: Array, betas: Array, missing: Array, groups: Array, scales: Array
) -> None:
    """Set one over the product of the totals of each group of bases."""
    for g in range(len(groups) - 1):
        product = 1.0
        for m in range(groups[g], groups[g + 1]):
            product *= counts[missing[m], k] + betas[m]
        scales[g, k] = 1.0 / product


@compiled
def _shift(
    row: Array, k: int, by: int, missing: Array, pseudo: Array, counts: Array, factors: Array
) -> None:
    """Add a label row to a cluster so many times, or take it away."""
    for m in range(len(row)):
        r, total = row[m], missing[m]
        if r != total:
            counts[r, k] += by
            factors[r, k] = counts[r, k] + pseudo[r]
            counts[total, k] += by
            factors[total, k] = counts[total, k] + pseudo[total]


@compiled
def _move_column(source: int, target: int, sizes: Array, counts: Array, factors: Array) -> None:
    sizes[target] = sizes[source]
    for r in range(len(counts)):
        counts[r, target] = counts[r, source]
        factors[r, target] = factors[r, source]


@compiled
def _clear_column(k: int, sizes: Array, counts: Array, factors: Array, pseudo: Array) -> None:
    sizes[k] = 0
    for r in range(len(counts)):
        counts[r, k] = 0
        factors[r, k] = pseudo[r]


@compiled
def relabel(assignments: Array, old: int, new: int) -> None:
    for i in range(len(assignments)):
        if assignments[i] == old:
            assignments[i] = new


@compiled
def wider(table: Array, fill: Array, capacity: int) -> Array:
    """Return a table with more columns, the new ones filled with `fill` (cells,)."""
    found = np.empty((table.shape[0], capacity), table.dtype)
    for r in range(table.shape[0]):
        found[r, : table.shape[1]] = table[r]
        found[r, table.shape[1] :] = fill[r]
    return found


@compiled
def _multiply(row: Array, first: int, end: int, factors: Array, n: int, weights: Array) -> None:
    """Multiply the weights of all clusters with the factors of a label row, two bases at once."""
    m = first
    while m + 1 < end:
        a, b = factors[row[m]], factors[row[m + 1]]
        for k in range(n):
            weights[k] *= a[k] * b[k]
        m += 2
    if m < end:
        a = factors[row[m]]
        for k in range(n):
            weights[k] *= a[k]


@compiled
def _own_product(
    row: Array, k: int, first: int, end: int, missing: Array, pseudo: Array, counts: Array
) -> float:
    """Return what a group of bases says for the cluster that the row is in, without the row."""
    above, below = 1.0, 1.0
    for m in range(first, end):
        if row[m] != missing[m]:
            above *= counts[row[m], k] - 1 + pseudo[row[m]]
            below *= counts[missing[m], k] - 1 + pseudo[missing[m]]
    return above / below


@compiled
def _weigh_plainly(
    row: Array,
    own: int,
    n: int,
    missing: Array,
    pseudo: Array,
    sizes: Array,
    counts: Array,
    factors: Array,
    scales: Array,
    weights: Array,
) -> None:
    """Set the weights of clusters where products of all bases are in the range of numbers."""
    for k in range(n):
        weights[k] = sizes[k] * scales[0, k]
    _multiply(row, 0, len(row), factors, n, weights)
    said = _own_product(row, own, 0, len(row), missing, pseudo, counts)
    weights[own] = (sizes[own] - 1) * said


@compiled
def _weigh_by_logs(
    row: Array,
    own: int,
    n: int,
    log_new: float,
    groups: Array,
    missing: Array,
    pseudo: Array,
    sizes: Array,
    counts: Array,
    factors: Array,
    scales: Array,
    logs: Array,
    weights: Array,
) -> float:
    """Set weights from logs of the products of groups of bases; return that of a new cluster."""
    logs[:n] = 0.0
    for g in range(len(groups) - 1):
        first, end = groups[g], groups[g + 1]
        for k in range(n):
            weights[k] = scales[g, k]
        _multiply(row, first, end, factors, n, weights)
        weights[own] = _own_product(row, own, first, end, missing, pseudo, counts)
        for k in range(n):
            logs[k] += math.log(weights[k])
    highest = log_new
    for k in range(n):
        size = sizes[k] - 1 if k == own else sizes[k]
        logs[k] = logs[k] + math.log(size) if size else -math.inf
        highest = max(highest, logs[k])
    for k in range(n):
        weights[k] = math.exp(logs[k] - highest)
    return math.exp(log_new - highest)


@compiled
def draw(weights: Array, n: int, new: float, uniform: float) -> int:
    """Return the first cluster whose cumulated weight is above; n: a new one."""
    total = 0.0
    for k in range(n):
        total += weights[k]
        weights[k] = total
    threshold = uniform * (total + new)
    k = 0
    while k < n and weights[k] <= threshold:
        k += 1
    return k


@compiled
def sweep_rows(
    patterns: Array,
    pattern_of: Array,
    log_new: Array,
    missing: Array,
    pseudo: Array,
    groups: Array,
    log_concentration: float,
    uniforms: Array,
    n_clusters: int,
    assignments: Array,
) -> int:
    """Draw the cluster of every row anew, one after another; return how many there are.

    Parameters
    ----------
    patterns
        Distinct label rows as cells of the tables, shape (n_patterns, n_bases).
    pattern_of
        Which of them each row is.
    log_new
        Log probability of each pattern in a cluster of its own.
    missing
        The cell of each base that stands for no label.
    pseudo
        Pseudo-count of each cell.
    groups
        Bases from groups[g] to groups[g + 1] may be multiplied without leaving the range of
        numbers.
    log_concentration
        Of the process.
    uniforms
        One a row.
    n_clusters
        Clusters now.
    assignments
        Cluster of each row; written over.
    """
    n = n_clusters
    cells = len(pseudo)
    capacity = n + SPARE_CLUSTERS
    sizes = np.zeros(capacity, np.int64)
    counts = np.zeros((cells, capacity), np.int32)
    count_cells(
        patterns,
        pattern_of,
        np.ones(len(assignments), np.int32),
        missing,
        assignments,
        counts,
        sizes,
    )
    factors = np.empty((cells, capacity))
    for r in range(cells):
        for k in range(capacity):
            factors[r, k] = counts[r, k] + pseudo[r]
    betas = pseudo[missing]
    no_counts = np.zeros(cells, np.int32)
    scales = np.ones((len(groups) - 1, capacity))
    for k in range(n):
        _set_scales(k, counts, betas, missing, groups, scales)
    weights, logs = np.empty(capacity), np.empty(capacity)
    is_plain = len(groups) == 2
    for i in range(len(assignments)):
        own, pattern = assignments[i], pattern_of[i]
        row = patterns[pattern]
        new = log_concentration + log_new[pattern]
        if is_plain:
            _weigh_plainly(row, own, n, missing, pseudo, sizes, counts, factors, scales, weights)
            new = math.exp(new)
        else:
            new = _weigh_by_logs(
                row,
                own,
                n,
                new,
                groups,
                missing,
                pseudo,
                sizes,
                counts,
                factors,
                scales,
                logs,
                weights,
            )
        chosen = draw(weights, n, new, uniforms[i])
        if chosen == own or (chosen == n and sizes[own] == 1):
            continue  # a cluster of its own is a new cluster: the row stays in it
        if chosen == n and n + 1 == capacity:
            capacity *= 2
            counts = wider(counts, no_counts, capacity)
            factors = wider(factors, pseudo, capacity)
            scales = wider(scales, np.ones(len(scales)), capacity)
            sizes = np.concatenate((sizes, np.zeros(capacity - len(sizes), np.int64)))
            weights, logs = np.empty(capacity), np.empty(capacity)
        assignments[i] = chosen
        n = max(n, chosen + 1)
        sizes[own] -= 1
        _shift(row, own, -1, missing, pseudo, counts, factors)
        _set_scales(own, counts, betas, missing, groups, scales)
        sizes[chosen] += 1
        _shift(row, chosen, 1, missing, pseudo, counts, factors)
        _set_scales(chosen, counts, betas, missing, groups, scales)
        if sizes[own] == 0:
            n -= 1
            if own != n:
                _move_column(n, own, sizes, counts, factors)
                _set_scales(own, counts, betas, missing, groups, scales)
                relabel(assignments, n, own)
            _clear_column(n, sizes, counts, factors, pseudo)
    return n
