"""Compiled passes over a tree whose node numbers put children before parents.

Every pass is one loop over node numbers, upwards (children first) or downwards (parents
first), so a cascade of any depth costs no stack. A tree is given as three arguments:
`n_leaves`, `child_start` (n_internal + 1,) and `child_list` (n_nodes - 1,); the children of
internal node `n_leaves + i` are ``child_list[child_start[i] : child_start[i + 1]]``.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from distclust.compiled import compiled

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@compiled
def softplus(t: float) -> float:
    """Return log(1 + exp(t)) without overflow; exact limits at both infinities."""
    return max(t, 0.0) + math.log1p(math.exp(-abs(t)))


@compiled
def first_fault(n_leaves: int, child_start: Ints, child_list: Ints) -> int:
    """Return the first internal node (counted from 0) that breaks the rules, or -1."""
    n_internal = child_start.shape[0] - 1
    seen = np.zeros(n_leaves + n_internal, dtype=np.bool_)
    for i in range(n_internal):
        if child_start[i + 1] - child_start[i] < 2:
            return i
        previous = -1
        for j in range(child_start[i], child_start[i + 1]):
            child = child_list[j]
            if child <= previous or child >= n_leaves + i or seen[child]:
                return i
            seen[child] = True
            previous = child
    return -1


@compiled
def find_parents(n_leaves: int, child_start: Ints, child_list: Ints, parent: Ints) -> None:
    """Fill `parent` (n_nodes,); the root gets -1."""
    parent[:] = -1
    for i in range(child_start.shape[0] - 1):
        for j in range(child_start[i], child_start[i + 1]):
            parent[child_list[j]] = n_leaves + i


@compiled
def lists_from_parents(n_leaves: int, parent: Ints, child_start: Ints, child_list: Ints) -> None:
    """Fill the child lists from `parent`, children of each node ascending."""
    child_start[:] = 0
    n_children = parent.shape[0] - 1
    for k in range(n_children):
        child_start[parent[k] - n_leaves + 1] += 1
    for i in range(child_start.shape[0] - 1):
        child_start[i + 1] += child_start[i]
    following = child_start.copy()
    for k in range(n_children):
        slot = following[parent[k] - n_leaves]
        child_list[slot] = k
        following[parent[k] - n_leaves] = slot + 1


@compiled
def add_up(n_leaves: int, child_start: Ints, child_list: Ints, values: Floats) -> None:
    """Fill rows of `values` (n_nodes, p) above the leaves with sums over children.

    Children are added one after another in child order: bitwise reproducible, and equal to
    what a search obtains that adds the right child's statistics to the left one's.
    """
    for i in range(child_start.shape[0] - 1):
        k = n_leaves + i
        for d in range(values.shape[1]):
            values[k, d] = values[child_list[child_start[i]], d]
        for j in range(child_start[i] + 1, child_start[i + 1]):
            child = child_list[j]
            for d in range(values.shape[1]):
                values[k, d] += values[child, d]


@compiled
def place_leaves(
    n_leaves: int, child_start: Ints, child_list: Ints, size: Ints, start: Ints
) -> None:
    """Fill `start` (n_nodes,): where each node's leaves begin in left-to-right order.

    `size` is the number of leaves below each node; a node's leaves are contiguous, so
    positions follow from sizes alone, parents first.
    """
    start[start.shape[0] - 1] = 0
    for i in range(child_start.shape[0] - 2, -1, -1):
        position = start[n_leaves + i]
        for j in range(child_start[i], child_start[i + 1]):
            start[child_list[j]] = position
            position += size[child_list[j]]


@compiled
def fold_up(
    n_leaves: int,
    child_start: Ints,
    child_list: Ints,
    log_together: Floats,
    log_apart: Floats,
    log_total: Floats,
    log_odds: Floats,
) -> None:
    r"""The one recursion behind evidence, prior and counts of partitions.

    .. math::
        L_k = t_k \text{ (leaf)}, \qquad
        e^{L_k} = e^{t_k} + e^{s_k} \prod_{c} e^{L_c} \text{ (children } c)

    `log_together` is :math:`t`, `log_apart` is :math:`s`, `log_total` is :math:`L`;
    `log_odds` is :math:`t_k - s_k - \sum_c L_c`, infinite at leaves. The odds are formed by
    subtracting the children one after another and the total is built on them, so neither
    is ever recovered from the other by cancellation.
    """
    for k in range(n_leaves):
        log_total[k] = log_together[k]
        log_odds[k] = math.inf
    for i in range(child_start.shape[0] - 1):
        k = n_leaves + i
        odds = log_together[k] - log_apart[k]
        product = log_apart[k]
        for j in range(child_start[i], child_start[i + 1]):
            odds -= log_total[child_list[j]]
            product += log_total[child_list[j]]
        log_odds[k] = odds
        log_total[k] = product + softplus(odds)


@compiled
def prefer_together(
    n_leaves: int,
    child_start: Ints,
    child_list: Ints,
    log_together: Floats,
    log_apart: Floats,
    together: Bools,
) -> None:
    """Max-product twin of :func:`fold_up`: is one block the best partition of a node?

    `together` (n_nodes,) is True where the single block is at least as probable as the best
    partition of the children; always at leaves.
    """
    best = log_together.copy()
    together[:] = True
    for i in range(child_start.shape[0] - 1):
        k = n_leaves + i
        product = log_apart[k]
        for j in range(child_start[i], child_start[i + 1]):
            product += best[child_list[j]]
        if product > best[k]:
            best[k] = product
            together[k] = False


@compiled
def spread_down(
    n_leaves: int, child_start: Ints, child_list: Ints, log_pass: Floats, log_reach: Floats
) -> None:
    """Fill `log_reach` with the sum of `log_pass` over the proper ancestors of each node."""
    log_reach[log_reach.shape[0] - 1] = 0.0
    for i in range(child_start.shape[0] - 2, -1, -1):
        reached = log_reach[n_leaves + i] + log_pass[n_leaves + i]
        for j in range(child_start[i], child_start[i + 1]):
            log_reach[child_list[j]] = reached


@compiled
def first_stops(
    n_leaves: int, child_start: Ints, child_list: Ints, stop: Bools, chosen: Bools
) -> None:
    """Mark in `chosen` the first node with `stop` on every way down; leaves always stop."""
    chosen[:] = False
    open_nodes = np.zeros(chosen.shape[0], dtype=np.bool_)
    open_nodes[chosen.shape[0] - 1] = True
    for k in range(chosen.shape[0] - 1, -1, -1):
        if not open_nodes[k]:
            continue
        if k < n_leaves or stop[k]:
            chosen[k] = True
            continue
        for j in range(child_start[k - n_leaves], child_start[k - n_leaves + 1]):
            open_nodes[child_list[j]] = True


@compiled
def max_up(n_leaves: int, child_start: Ints, child_list: Ints, values: Floats) -> None:
    """Raise `values` (n_nodes,) of internal nodes to the largest of their children's."""
    for i in range(child_start.shape[0] - 1):
        for j in range(child_start[i], child_start[i + 1]):
            child = child_list[j]
            if values[child] > values[n_leaves + i]:
                values[n_leaves + i] = values[child]


@compiled
def count_depth(parent: Ints, depth: Ints) -> None:
    """Fill `depth` (n_nodes,) with the number of proper ancestors of each node."""
    depth[depth.shape[0] - 1] = 0
    for k in range(depth.shape[0] - 2, -1, -1):
        depth[k] = depth[parent[k]] + 1


@compiled
def lift_dissolved(dissolved: Bools, parent: Ints) -> None:
    """Let `parent` skip `dissolved` nodes: their children go to the next one above."""
    for k in range(parent.shape[0] - 2, -1, -1):
        if dissolved[parent[k]]:
            parent[k] = parent[parent[k]]


@compiled
def fill_linkage(
    n_leaves: int,
    child_start: Ints,
    child_list: Ints,
    order: Ints,
    heights: Floats,
    rows: Floats,
) -> None:
    """Fill `rows` (n_leaves - 1, 4) with pairwise merges, internal nodes taken in `order`.

    A node with many children becomes a chain of merges at one height, in child order.
    """
    name = np.arange(n_leaves + child_start.shape[0] - 1)
    n_below = np.ones(n_leaves + rows.shape[0], dtype=np.int64)
    t = 0
    for i in order:
        k = n_leaves + i
        current = name[child_list[child_start[i]]]
        for j in range(child_start[i] + 1, child_start[i + 1]):
            other = name[child_list[j]]
            n_below[n_leaves + t] = n_below[current] + n_below[other]
            rows[t, 0] = min(current, other)
            rows[t, 1] = max(current, other)
            rows[t, 2] = heights[k]
            rows[t, 3] = n_below[n_leaves + t]
            current = n_leaves + t
            t += 1
        name[k] = current


@compiled
def pair_rows(first: int, last: int, row_class: Ints, pairs: Floats, counts: Floats) -> None:
    """Pair rows ``first:last`` with those counted so far, then count them."""
    for row in range(first, last):
        pairs[row_class[row]] += counts[row_class[row]]
    for row in range(first, last):
        counts[row_class[row]] += 1.0


@compiled
def share_pairs(
    first: int,
    last: int,
    n_rows: int,
    row_class: Ints,
    pairs: Floats,
    counts: Floats,
    shares: Floats,
) -> None:
    """Weigh the pairs of the classes in rows ``first:last`` and forget them."""
    for row in range(first, last):
        label = row_class[row]
        if pairs[label] > 0.0:
            shares[label] += pairs[label] * counts[label] / n_rows
            pairs[label] = 0.0


@compiled
def pair_shares(
    n_leaves: int,
    child_start: Ints,
    child_list: Ints,
    parent: Ints,
    first_row: Ints,
    last_row: Ints,
    row_class: Ints,
    shares: Floats,
) -> None:
    """Add to `shares` (n_classes,), over pairs of a class, its share in their subtree.

    Rows are in left-to-right order, those below node k being ``first_row[k]:last_row[k]``
    (shape (n_nodes,) each); `row_class` has their classes. Each node hands its class counts
    to its parent if it is the largest child, else its rows are counted anew there: a row is
    looked at once for every such step, O(n log n) in all, with one array of counts for the
    whole tree.
    """
    n_nodes = parent.shape[0]
    largest = np.full(n_nodes, -1)
    lowest = np.arange(n_nodes)
    for i in range(n_nodes - n_leaves):
        k = n_leaves + i
        heavy = child_list[child_start[i]]
        for j in range(child_start[i] + 1, child_start[i + 1]):
            child = child_list[j]
            if last_row[child] - first_row[child] > last_row[heavy] - first_row[heavy]:
                heavy = child
        largest[k] = heavy
        lowest[k] = lowest[heavy]
    counts = np.zeros(shares.shape[0])
    pairs = np.zeros(shares.shape[0])
    for top in range(n_nodes):
        if parent[top] >= 0 and largest[parent[top]] == top:
            continue
        k = lowest[top]
        for row in range(first_row[k], last_row[k]):
            pairs[row_class[row]] += counts[row_class[row]]
            counts[row_class[row]] += 1.0
        share_pairs(
            first_row[k], last_row[k], last_row[k] - first_row[k], row_class, pairs, counts, shares
        )
        while k != top:
            heavy = k
            k = parent[k]
            i = k - n_leaves
            for j in range(child_start[i], child_start[i + 1]):
                child = child_list[j]
                if child != heavy:
                    pair_rows(first_row[child], last_row[child], row_class, pairs, counts)
            n_rows = last_row[k] - first_row[k]
            share_pairs(first_row[k], first_row[heavy], n_rows, row_class, pairs, counts, shares)
            share_pairs(last_row[heavy], last_row[k], n_rows, row_class, pairs, counts, shares)
        for row in range(first_row[top], last_row[top]):
            counts[row_class[row]] = 0.0
