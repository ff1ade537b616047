"""Compiled loops of ensembles: sweeps over label rows, and passes of EM and variational Bayes.

Tables are label-major: a row of a table belongs to one label of one base, a column to a
cluster. What a label says about all clusters lies in one piece, and products over bases
stream through memory.

In the loops of the Dirichlet-process ensemble each base has one more row, for "missing". Its
count is how many members of the cluster have a label in that base, its pseudo-count the total
one, so its factor cancels that of the total: rows with missing labels need no other code.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

Array = npt.NDArray[Any]

SPARE_CLUSTERS = 16
_FEW = 16  # so many factors are multiplied rather than taken from two log gammas
_HUGE = 1e150
_TINY = 1e-150


# ---- the Dirichlet-process ensemble -----------------------------------------------------------


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
def _relabel(assignments: Array, old: int, new: int) -> None:
    for i in range(len(assignments)):
        if assignments[i] == old:
            assignments[i] = new


@compiled
def _wider(table: Array, fill: Array, capacity: int) -> Array:
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
def _draw(weights: Array, n: int, new: float, uniform: float) -> int:
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
        chosen = _draw(weights, n, new, uniforms[i])
        if chosen == own or (chosen == n and sizes[own] == 1):
            continue  # a cluster of its own is a new cluster: the row stays in it
        if chosen == n and n + 1 == capacity:
            capacity *= 2
            counts = _wider(counts, no_counts, capacity)
            factors = _wider(factors, pseudo, capacity)
            scales = _wider(scales, np.ones(len(scales)), capacity)
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
                _relabel(assignments, n, own)
            _clear_column(n, sizes, counts, factors, pseudo)
    return n


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
        chosen = _draw(logs, n, logs[n], uniforms[i])
        if chosen == own or (chosen == n and is_alone):
            continue
        if chosen == n and n + 2 == capacity:
            capacity *= 2
            counts = _wider(counts, np.zeros(cells, np.int64), capacity)
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
                _relabel(assignments, n, own)
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


# ---- mixtures of multinomials -----------------------------------------------------------------


@compiled
def mixture_pass(
    codes: Array,
    offsets: Array,
    weights: Array,
    log_shares: Array,
    log_theta: Array,
    row_logs: Array,
    memberships: Array,
    counts: Array,
    sizes: Array,
) -> None:
    """Do the E step for some rows: log probabilities, and what the M step needs.

    Parameters
    ----------
    codes
        Labels, shape (n, n_bases), -1 where there is none.
    offsets
        First row of each base in tables.
    weights
        Rows that each row stands for.
    log_shares
        Log weight of each component, shape (K,).
    log_theta
        Log probability of each label in each component, shape (cells, K).
    row_logs
        Filled with log p of each row.
    memberships
        Filled with responsibilities, shape (n, K); without rows: left out.
    counts, sizes
        Expected counts (cells, K) and (K,) are added to them; `counts` without rows: left out.
    """
    n_components = len(log_shares)
    w = np.empty(n_components)
    for i in range(len(codes)):
        w[:] = log_shares
        for m in range(codes.shape[1]):
            if codes[i, m] >= 0:
                said = log_theta[offsets[m] + codes[i, m]]
                for k in range(n_components):
                    w[k] += said[k]
        highest = -math.inf
        for k in range(n_components):
            highest = max(highest, w[k])
        if highest == -math.inf:  # no component has all of these labels
            row_logs[i] = highest
            if len(memberships):
                for k in range(n_components):
                    memberships[i, k] = math.exp(log_shares[k])
            continue
        total = 0.0
        for k in range(n_components):
            w[k] = math.exp(w[k] - highest)
            total += w[k]
        row_logs[i] = highest + math.log(total)
        for k in range(n_components):
            w[k] /= total
        if len(memberships):
            memberships[i] = w
        if len(counts):
            for k in range(n_components):
                w[k] *= weights[i]
                sizes[k] += w[k]
            for m in range(codes.shape[1]):
                if codes[i, m] >= 0:
                    cell = counts[offsets[m] + codes[i, m]]
                    for k in range(n_components):
                        cell[k] += w[k]


@compiled
def add_label_logs(codes: Array, offsets: Array, log_theta: Array, totals: Array) -> None:
    """Add the log probabilities of the labels of each row to totals (n, K)."""
    for i in range(len(codes)):
        for m in range(codes.shape[1]):
            if codes[i, m] >= 0:
                said = log_theta[offsets[m] + codes[i, m]]
                for k in range(totals.shape[1]):
                    totals[i, k] += said[k]


@compiled
def add_expected_counts(
    codes: Array, offsets: Array, weights: Array, memberships: Array, counts: Array
) -> None:
    """Add the memberships of rows, times their weights, to the cells of their labels."""
    for i in range(len(codes)):
        for m in range(codes.shape[1]):
            if codes[i, m] >= 0:
                cell = counts[offsets[m] + codes[i, m]]
                for k in range(memberships.shape[1]):
                    cell[k] += weights[i] * memberships[i, k]


# ---- Bayesian cluster ensembles -----------------------------------------------------------------


@compiled
def membership_pass(
    codes: Array,
    offsets: Array,
    weights: Array,
    shares: Array,
    theta: Array,
    sums: Array,
    row_logs: Array,
    counts: Array,
) -> None:
    """Find phi of every label, and add it up over bases and over rows.

    Parameters
    ----------
    codes, offsets, weights
        See `mixture_pass`.
    shares
        exp(E log pi) of each row up to a factor a row, shape (n, K).
    theta
        Probability of each label in each component, shape (cells, K).
    sums
        Sums of phi over the bases of a row are added to it, shape (n, K).
    row_logs
        Sums of log sum_k shares theta over the bases of a row are added to it.
    counts
        Weighted sums of phi over rows are added to it, shape (cells, K).
    """
    n_components = theta.shape[1]
    phi = np.empty(n_components)
    for i in range(len(codes)):
        share = shares[i]
        for m in range(codes.shape[1]):
            if codes[i, m] < 0:
                continue
            cell = offsets[m] + codes[i, m]
            said = theta[cell]
            total = 0.0
            for k in range(n_components):
                phi[k] = share[k] * said[k]
                total += phi[k]
            row_logs[i] += math.log(total)
            for k in range(n_components):
                phi[k] /= total
                sums[i, k] += phi[k]
                counts[cell, k] += weights[i] * phi[k]


@compiled
def count_indicators(
    codes: Array, offsets: Array, indicators: Array, per_row: Array, per_cell: Array, totals: Array
) -> None:
    """Count the indicators of labels: by row (n, K), by label (cells, K), by base (n_bases, K)."""
    for i in range(len(codes)):
        for m in range(codes.shape[1]):
            if codes[i, m] >= 0:
                k = indicators[i, m]
                per_row[i, k] += 1
                per_cell[offsets[m] + codes[i, m], k] += 1
                totals[m, k] += 1


@compiled
def sweep_indicators(
    codes: Array,
    offsets: Array,
    prior: Array,
    smoothing: Array,
    total_smoothing: Array,
    uniforms: Array,
    indicators: Array,
    per_row: Array,
    per_cell: Array,
    totals: Array,
) -> None:
    """Draw the indicator of every label anew, rows one after another.

    Parameters
    ----------
    codes, offsets
        See `mixture_pass`.
    prior
        Pseudo-counts a of memberships, shape (K,).
    smoothing, total_smoothing
        Pseudo-count of a label of each base, and of all its labels.
    uniforms
        One a label, shape (n, n_bases).
    indicators
        Component of each label; written over.
    per_row, per_cell, totals
        See `count_indicators`; kept up to date.
    """
    n_components = len(prior)
    cumulated = np.empty(n_components)
    for i in range(len(codes)):
        mine = per_row[i]
        for m in range(codes.shape[1]):
            if codes[i, m] < 0:
                continue
            cell, total = per_cell[offsets[m] + codes[i, m]], totals[m]
            k = indicators[i, m]
            mine[k] -= 1
            cell[k] -= 1
            total[k] -= 1
            weight = 0.0
            for k in range(n_components):
                said = (cell[k] + smoothing[m]) / (total[k] + total_smoothing[m])
                weight += (prior[k] + mine[k]) * said
                cumulated[k] = weight
            threshold = uniforms[i, m] * weight
            k = 0
            while k < n_components - 1 and cumulated[k] <= threshold:
                k += 1
            indicators[i, m] = k
            mine[k] += 1
            cell[k] += 1
            total[k] += 1
