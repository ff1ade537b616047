"""Compiled loops over sampled partitions and label matrices.

Both losses between partitions c and z have one form, F(c) + F(z) - 2 F(c, z), where F sums
f(size) over clusters, or over the cells of the contingency table: f(n) = n log2 n for the
variation of information, f(n) = n² for Binder's loss. Small whole sizes are looked up in a
table of f.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

Labels: TypeAlias = npt.NDArray[Any]  # 0.. of an unsigned kind
Weights: TypeAlias = npt.NDArray[Any]  # int32, or float64 if some are not whole
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_SMALL_TABLES = 1 << 16  # cells of the tables of four draws, so that they stay in the cache


# ---- partitions ---------------------------------------------------------------------------------


@compiled
def number_by_appearance(labels: Ints, slots: Ints, out: Labels) -> int:
    """Write labels 0.. in order of first appearance into `out`; return how many there are.

    `slots` is filled with -1 and has a place for each of the labels, which are not negative.
    """
    n_found = 0
    for i in range(labels.size):
        label = labels[i]
        if slots[label] < 0:
            slots[label] = n_found
            n_found += 1
        out[i] = slots[label]
    return n_found


@compiled
def term(size: Any, table: Floats, is_binder: bool) -> Any:
    """Return f(size)."""
    whole = int(size)
    if whole < table.size and whole == size:
        return table[whole]
    x = float(size)
    if is_binder:
        return x * x
    # Weights that are not whole leave a rounding error when a group becomes empty.
    return x * np.log2(x) if x > 0.0 else 0.0


@compiled
def cluster_sum(
    labels: Labels, n_clusters: int, weights: Weights, table: Floats, is_binder: bool
) -> float:
    """Return F(c)."""
    sizes = np.zeros(n_clusters, weights.dtype)
    for i in range(labels.size):
        sizes[labels[i]] += weights[i]
    total = 0.0
    for k in range(n_clusters):
        total += term(sizes[k], table, is_binder)
    return total


@compiled
def joint_sums(
    candidate: Labels,
    n_clusters: int,
    draws: Labels,
    n_by_draw: Ints,
    weights: Weights,
    table: Floats,
    is_binder: bool,
    out: Floats,
) -> None:
    """Write F(c, z) into `out` for each draw z (draws, rows).

    Four draws at once, so that one addition need not wait for the one before.
    """
    n_draws = draws.shape[0]
    order, starts = np.empty(0, np.int64), np.empty(0, np.int64)
    for first in range(0, n_draws, 4):
        last = min(first + 4, n_draws)
        width = 0
        for s in range(first, last):
            width = max(width, n_by_draw[s])
        if 4 * n_clusters * width <= _SMALL_TABLES:
            _four_joint_sums(
                candidate, n_clusters * width, width, draws, first, weights, table, is_binder, out
            )
            continue
        if order.size == 0:
            order, starts = _group_rows(candidate, n_clusters)
        for s in range(first, last):
            out[s] = _grouped_joint_sum(
                order, starts, draws[s], n_by_draw[s], weights, table, is_binder
            )


@compiled
def _four_joint_sums(
    candidate: Labels,
    cells: int,
    width: int,
    draws: Labels,
    first: int,
    weights: Weights,
    table: Floats,
    is_binder: bool,
    out: Floats,
) -> None:
    top = draws.shape[0] - 1
    counts = np.zeros(4 * cells, weights.dtype)
    # At the end some draws are counted more than once: only the first count is used.
    z0, z1 = draws[first], draws[min(first + 1, top)]
    z2, z3 = draws[min(first + 2, top)], draws[min(first + 3, top)]
    for i in range(candidate.size):
        weight = weights[i]
        start = np.int64(candidate[i]) * width
        counts[start + np.int64(z0[i])] += weight
        counts[start + np.int64(z1[i]) + cells] += weight
        counts[start + np.int64(z2[i]) + 2 * cells] += weight
        counts[start + np.int64(z3[i]) + 3 * cells] += weight
    for s in range(first, min(first + 4, top + 1)):
        total = 0.0
        for cell in range((s - first) * cells, (s - first + 1) * cells):
            total += term(counts[cell], table, is_binder)
        out[s] = total


@compiled
def _group_rows(labels: Labels, n_clusters: int) -> tuple[Ints, Ints]:
    """Return rows by cluster, and where each cluster begins."""
    starts = np.zeros(n_clusters + 1, np.int64)
    for i in range(labels.size):
        starts[np.int64(labels[i]) + 1] += 1
    for k in range(n_clusters):
        starts[k + 1] += starts[k]
    nexts = starts.copy()
    order = np.empty(labels.size, np.int64)
    for i in range(labels.size):
        label = labels[i]
        order[nexts[label]] = i
        nexts[label] += 1
    return order, starts


@compiled
def _grouped_joint_sum(
    order: Ints,
    starts: Ints,
    draw: Labels,
    n_clusters: int,
    weights: Weights,
    table: Floats,
    is_binder: bool,
) -> float:
    """Return F(c, z) with one row of the table at a time, however many clusters there are."""
    counts = np.zeros(n_clusters, weights.dtype)
    total = 0.0
    for k in range(starts.size - 1):
        for j in range(starts[k], starts[k + 1]):
            counts[draw[order[j]]] += weights[order[j]]
        for j in range(starts[k], starts[k + 1]):
            cell = draw[order[j]]
            total += term(counts[cell], table, is_binder)  # f(0) = 0: each cell counts once
            counts[cell] = 0
    return total


# ---- relocation ---------------------------------------------------------------------------------


@compiled
def fill_tables(labels: Ints, draws: Labels, weights: Weights, tables: Weights) -> None:
    """Count rows (rows, draws) into tables (draws, clusters of the draw, groups).

    Rows whose label is negative are left out.
    """
    tables[:] = 0
    for i in range(labels.size):
        if labels[i] >= 0:
            for s in range(draws.shape[1]):
                tables[s, draws[i, s], labels[i]] += weights[i]


@compiled
def relocate(
    order: Ints,
    labels: Ints,
    draws: Labels,
    shares: Floats,
    weights: Weights,
    sizes: Weights,
    tables: Weights,
    table: Floats,
    is_binder: bool,
    tolerance: float,
) -> int:
    """Give each row the best group, an empty one among them; return how many moved.

    Parameters
    ----------
    order
        Rows in the order in which they are looked at.
    labels
        Groups, negative for rows that have none yet; written over.
    draws
        Sampled labels, shape (rows, draws).
    shares
        Weights of draws, which sum to 1.
    sizes, tables
        Weights by group, and see `fill_tables`; they follow the moves.
    tolerance
        A row moves only if the loss falls by more.
    """
    n_groups, n_draws = sizes.size, shares.size
    costs = np.empty(n_groups)
    n_moved = 0
    for i in order:
        old, weight = labels[i], weights[i]
        if old >= 0:
            sizes[old] -= weight
            for s in range(n_draws):
                tables[s, draws[i, s], old] -= weight
        n_used = _count_used(sizes)
        for g in range(n_used):
            costs[g] = term(sizes[g] + weight, table, is_binder) - term(sizes[g], table, is_binder)
        for s in range(n_draws):
            counts = tables[s, draws[i, s]]
            twice = 2.0 * shares[s]
            for g in range(n_used):
                costs[g] -= twice * (
                    term(counts[g] + weight, table, is_binder) - term(counts[g], table, is_binder)
                )
        best = 0
        for g in range(1, n_used):
            if costs[g] < costs[best]:
                best = g
        # A row that was the last one of its group may lie beyond those in use.
        if old >= 0 and old < n_used and costs[old] <= costs[best] + tolerance:
            best = old
        labels[i] = best
        if best != old:
            n_moved += 1
        sizes[best] += weight
        for s in range(n_draws):
            tables[s, draws[i, s], best] += weight
    return n_moved


@compiled
def _count_used(sizes: Weights) -> int:
    """Return how many groups have to be looked at: up to the last used one, and one more."""
    n_used = sizes.size
    while n_used > 0 and sizes[n_used - 1] == 0:
        n_used -= 1
    return min(n_used + 1, sizes.size)


# ---- similarity ---------------------------------------------------------------------------------


@compiled
def agreements(
    first: npt.NDArray[np.int32],
    second: npt.NDArray[np.int32],
    agreed: npt.NDArray[np.int32],
    observed: npt.NDArray[np.int32],
) -> None:
    """Count in how many columns two rows agree, and in how many both have a label.

    Parameters
    ----------
    first, second
        Labels, negative where they are missing, shapes (bases, a) and (bases, b): a base
        after another, so that the inner loop runs along rows.
    agreed, observed
        Shape (a, b), written over.
    """
    agreed[:] = 0
    observed[:] = 0
    for i in range(first.shape[1]):
        for m in range(first.shape[0]):
            label = first[m, i]
            if label >= 0:
                for j in range(second.shape[1]):
                    agreed[i, j] += second[m, j] == label
                    observed[i, j] += second[m, j] >= 0


@compiled
def best_rows(
    wanted: Ints,
    labels: npt.NDArray[np.int32],
    buckets: Ints,
    bucket_starts: Ints,
    groups: Ints,
    members: Ints,
    member_starts: Ints,
    rows: Ints,
    values: Floats,
    n_found: Ints,
) -> None:
    """Find the rows most similar to those of each wanted group of identical rows.

    Parameters
    ----------
    wanted
        Numbers of groups.
    labels
        Labels of each group, negative where they are missing, shape (groups, bases).
    buckets
        Which bucket each group is in, for each way of making buckets, shape (groups, ways);
        negative for none. Groups that share no bucket are not looked at.
    bucket_starts, groups
        Members of bucket b are ``groups[bucket_starts[b]:bucket_starts[b + 1]]``.
    members, member_starts
        Rows of group g, from low to high, as for buckets.
    rows, values, n_found
        The best rows of each wanted group, the most similar first, the lowest first of equal
        ones; written over.
    """
    seen = np.full(labels.shape[0], -1, np.int64)
    for w in range(wanted.size):
        group = wanted[w]
        n_found[w] = 0
        for way in range(buckets.shape[1]):
            bucket = buckets[group, way]
            if bucket < 0:
                continue
            for j in range(bucket_starts[bucket], bucket_starts[bucket + 1]):
                other = groups[j]
                if seen[other] == w:
                    continue
                seen[other] = w
                similarity = _similarity(labels[group], labels[other])
                if similarity > 0.0:
                    start, stop = member_starts[other], member_starts[other + 1]
                    n_found[w] = _offer(
                        similarity, members[start:stop], rows[w], values[w], n_found[w]
                    )


@compiled
def _similarity(first: npt.NDArray[np.int32], second: npt.NDArray[np.int32]) -> float:
    agreed, observed = 0, 0
    for m in range(first.size):
        if first[m] >= 0 and second[m] >= 0:
            observed += 1
            agreed += first[m] == second[m]
    return agreed / observed if observed else 0.0


@compiled
def _offer(similarity: float, offered: Ints, rows: Ints, values: Floats, n_found: int) -> int:
    """Put rows of one similarity where they belong among the best; return how many there are."""
    for row in offered:
        if n_found == rows.size:
            last = values[n_found - 1]
            if similarity < last or (similarity == last and row > rows[n_found - 1]):
                break
            n_found -= 1
        place = n_found
        while place > 0 and (
            values[place - 1] < similarity
            or (values[place - 1] == similarity and rows[place - 1] > row)
        ):
            values[place], rows[place] = values[place - 1], rows[place - 1]
            place -= 1
        values[place], rows[place] = similarity, row
        n_found += 1
    return n_found
