"""How often rows lie together: of base clusterings, and of sampled partitions.

The co-association of two rows is the share of the bases that have labels for both in which
these are equal; 0 if no base has both. All pairs are compared only among chosen rows. The
neighbour graph of all rows never makes a matrix of N x N.

Neighbours are found as in an index of strings (multi-index hashing: Norouzi, Punjani and
Fleet, 2014). Identical rows are one group. Bases are divided into P parts: two groups that
disagree in fewer than P bases have a part in which they agree, so it is enough to look at
groups that have some part in common. P rises until the neighbours of all groups are certain;
with P bases each, parts are single bases, and those that share none have similarity 0.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from distclust.engine import local_threads, thread_map
from distclust.errors import CapacityError, InputError
from distclust.mixtures import _partition_numerics as numerics
from distclust.mixtures.partitions import canonical
from distclust.validation import check_integer

Labels: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

MISSING = -1
MAX_CELLS = 100_000_000  # of a dense matrix: 10,000 rows

_ROWS_A_BLOCK = 256
_GROUPS_A_BLOCK = 2048
_ROWS_EXPANDED = 65_536
_DRAWS_A_BLOCK = 16


@dataclass(frozen=True, eq=False)
class CoAssociation:
    """Co-association of chosen rows.

    Attributes
    ----------
    values
        Shares of bases, shape (n_chosen, n_chosen); 0 where no base has both labels.
    counts
        How many bases have both labels.
    """

    values: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int32]


def coassociation(
    labels: Labels, rows: Any = None, *, max_cells: int | None = MAX_CELLS
) -> CoAssociation:
    """Return the co-association of chosen rows, as a dense matrix.

    Parameters
    ----------
    labels
        Labels of each row in each base, -1 where missing, shape (n_rows, n_bases).
    rows
        Numbers of the rows; None for all.
    max_cells
        More cells than these are refused; None for no limit.
    """
    found = _check_labels(labels, "coassociation: labels")
    chosen = check_rows(rows, len(found), max_cells, "coassociation")
    by_base = np.ascontiguousarray(found[chosen].T.astype(np.int32))
    agreed, observed = _compare(by_base)
    values = np.divide(agreed, observed, out=np.zeros(agreed.shape, np.float32), where=observed > 0)
    return CoAssociation(values, observed)


def coassignment(draws: Labels, rows: Any = None, *, max_cells: int | None = MAX_CELLS) -> Floats:
    """Return the share of draws in which chosen rows lie together, (n_chosen, n_chosen).

    Parameters
    ----------
    draws
        Sampled partitions, shape (n_draws, n_rows).
    rows
        Numbers of the rows; None for all.
    max_cells
        More cells than these are refused; None for no limit.
    """
    found = _check_whole(draws, "coassignment: draws", "(n_draws, n_rows)")
    chosen = check_rows(rows, found.shape[1], max_cells, "coassignment")
    picked = np.empty((len(found), chosen.size), np.int32)
    for s, draw in enumerate(found):
        picked[s] = canonical(draw[chosen])
    agreed, _ = _compare(picked)
    return agreed / len(found)


def confidence(labels: Labels, draws: Labels, row_weights: Any = None) -> Floats:
    """Return how surely each row lies with the others of its cluster.

    That is the mean, over the other members of its cluster, of the share of draws in which
    both lie together. A row that is alone in its cluster has the share of draws in which it
    is alone. It takes one contingency table for each draw.

    Parameters
    ----------
    labels
        The partition, shape (n_rows,).
    draws
        Sampled partitions, shape (n_draws, n_rows).
    row_weights
        Multiplicities of rows: a row of weight 3 counts as three equal rows.
    """
    own = canonical(labels).astype(np.int64)
    found = _check_whole(draws, "confidence: draws", "(n_draws, n_rows)")
    if found.shape[1] != own.size:
        hint = "Pass draws of the rows that have labels."
        raise InputError("confidence: draws", f"{own.size} rows", found.shape[1], hint)
    weights = np.ones(own.size) if row_weights is None else np.asarray(row_weights, np.float64)
    if weights.shape != own.shape or not np.all(weights >= 0):
        hint = "Pass how often each row occurs."
        raise InputError("confidence: row_weights", "a weight of at least 0 a row", "others", hint)

    def count(first: int) -> tuple[Floats, Floats]:
        return _count_together(own, found[first : first + _DRAWS_A_BLOCK], weights)

    parts = thread_map(count, range(0, len(found), _DRAWS_A_BLOCK), local_threads())
    together = np.sum([part[0] for part in parts], axis=0) / len(found)
    alone = np.sum([part[1] for part in parts], axis=0) / len(found)
    others = np.bincount(own, weights)[own] - 1.0
    shared: Floats = (together - 1.0) / np.where(others > 0, others, 1.0)
    return np.where(others > 0, np.clip(shared, 0.0, 1.0), alone)


def neighbour_graph(labels: Labels, n_neighbours: int) -> sp.csr_array:
    """Return the rows with the largest co-association to each row, as a sparse matrix.

    Parameters
    ----------
    labels
        Labels of each row in each base, -1 where missing, shape (n_rows, n_bases).
    n_neighbours
        How many other rows to keep for each row: the most similar, the lowest of equal ones.
        A row has fewer if fewer have anything in common with it.

    Returns
    -------
    Matrix of co-association, shape (n_rows, n_rows), float32, without the diagonal; rows list
    neighbours by their number.
    """
    found = _check_labels(labels, "neighbour_graph: labels")
    check_integer(n_neighbours, "neighbour_graph: n_neighbours", at_least=1)
    groups = _Groups.of(found)
    n_best = min(n_neighbours + 1, len(found))  # a row may be among the best of its own group
    rows, values, n_found = _best_of_groups(groups, n_best)
    return _as_graph(groups, rows, values, n_found, min(n_neighbours, n_best))


# ---- neighbours ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Groups:
    """Sets of identical rows.

    Attributes
    ----------
    labels
        Of each group, shape (n_groups, n_bases).
    group_of
        Which group each row is in.
    members, starts
        Rows of group g, from low to high, are ``members[starts[g]:starts[g + 1]]``.
    """

    labels: npt.NDArray[np.int32]
    group_of: Ints
    members: Ints
    starts: Ints

    @classmethod
    def of(cls, labels: Labels) -> _Groups:
        group_of = np.zeros(len(labels), np.int64)
        for column in labels.T:
            group_of = _refine(group_of, column)
        n_groups = int(group_of.max()) + 1
        members = np.argsort(group_of, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(group_of, minlength=n_groups))])
        firsts = labels[members[starts[:-1]]].astype(np.int32)
        return cls(np.ascontiguousarray(firsts), group_of, members, starts)

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)


def _refine(key: Ints, column: Labels) -> Ints:
    """Return numbers 0.. of the distinct pairs of a key 0.. and a label, in sorted order."""
    low = int(column.min())
    compact = _compact(column.astype(np.int64) - low)
    return _compact(key * (int(compact.max()) + 1) + compact)


def _compact(numbers: Ints) -> Ints:
    """Return the rank of each number among the distinct ones."""
    span = int(numbers.max()) + 1
    if span > 8 * numbers.size + 1024:
        return np.unique(numbers, return_inverse=True)[1].astype(np.int64)
    is_used = np.zeros(span, np.int64)
    is_used[numbers] = 1
    return (np.cumsum(is_used) - 1)[numbers]


def _best_of_groups(groups: _Groups, n_best: int) -> tuple[Ints, npt.NDArray[np.float32], Ints]:
    """Return the best rows of each group, how similar they are, and how many there are."""
    n_groups = len(groups.labels)
    rows = np.empty((n_groups, n_best), np.int64)
    values = np.zeros((n_groups, n_best), np.float32)
    n_found = np.zeros(n_groups, np.int64)
    wanted = np.arange(n_groups)
    for n_parts in _parts(groups.labels):
        buckets = _Buckets.of(groups.labels, n_parts)
        search = functools.partial(buckets.best_rows, groups, n_best)
        blocks = [wanted[i : i + _GROUPS_A_BLOCK] for i in range(0, wanted.size, _GROUPS_A_BLOCK)]
        found = thread_map(search, blocks, local_threads())
        rows[wanted], values[wanted], n_found[wanted] = (
            np.concatenate(column) for column in zip(*found, strict=True)
        )
        is_certain = _are_certain(values[wanted, -1], groups.labels.shape[1], n_parts)
        wanted = wanted[~is_certain]
        if wanted.size == 0:
            break
    return rows, values, n_found


def _are_certain(last: npt.NDArray[Any], n_bases: int, n_parts: int) -> npt.NDArray[np.bool_]:
    """Return whether the last of the best is more similar than any that was not looked at.

    Those disagree in at least as many bases as there are parts.
    """
    n_agreed: Floats = np.rint(last * n_bases)
    return n_agreed > n_bases - n_parts


def _parts(labels: npt.NDArray[np.int32]) -> Iterator[int]:
    """Yield into how many parts bases are divided, time after time.

    With missing labels rows that agree where both have labels may have no larger part in
    common: then parts are single bases at once.
    """
    n_bases = labels.shape[1]
    n_parts = 1
    while n_parts < n_bases and not np.any(labels < 0):
        yield n_parts
        n_parts = n_parts + 1 if n_parts < 3 else 2 * n_parts - 1
    yield n_bases


@dataclass(frozen=True, eq=False)
class _Buckets:
    """Groups with equal labels in a part of the bases.

    Attributes
    ----------
    numbers
        Buckets of each group, one for each part, shape (n_groups, n_parts); -1 where a label
        is missing.
    groups, starts
        Groups of bucket b are ``groups[starts[b]:starts[b + 1]]``.
    """

    numbers: Ints
    groups: Ints
    starts: Ints

    @classmethod
    def of(cls, labels: npt.NDArray[np.int32], n_parts: int) -> _Buckets:
        columns, listed, sizes, n_before = [], [], [], 0
        for part in np.array_split(labels, n_parts, axis=1):
            key = np.zeros(len(labels), np.int64)
            for column in part.T:
                key = _refine(key, column)
            has_all = np.all(part >= 0, axis=1)
            columns.append(np.where(has_all, key + n_before, -1))
            counted = np.bincount(key[has_all], minlength=int(key.max()) + 1)
            order = np.argsort(key, kind="stable")
            listed.append(order[has_all[order]])
            sizes.append(counted)
            n_before += counted.size
        starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
        return cls(np.stack(columns, axis=1), np.concatenate(listed), starts)

    def best_rows(
        self, groups: _Groups, n_best: int, wanted: Ints
    ) -> tuple[Ints, npt.NDArray[np.float32], Ints]:
        """Return the best rows of some groups; see `numerics.best_rows`."""
        rows = np.empty((wanted.size, n_best), np.int64)
        values = np.zeros((wanted.size, n_best))
        n_found = np.empty(wanted.size, np.int64)
        numerics.best_rows(
            wanted,
            groups.labels,
            self.numbers,
            self.starts,
            self.groups,
            groups.members,
            groups.starts,
            rows,
            values,
            n_found,
        )
        return rows, values.astype(np.float32), n_found


def _as_graph(
    groups: _Groups, rows: Ints, values: npt.NDArray[np.float32], n_found: Ints, n_kept: int
) -> sp.csr_array:
    """Return the graph of rows from the best rows of each group."""
    n_rows = groups.group_of.size
    kind = np.int32 if n_rows * n_kept < 2**31 else np.int64

    def expand(first: int) -> tuple[Ints, npt.NDArray[Any], npt.NDArray[np.float32]]:
        here = np.arange(first, min(first + _ROWS_EXPANDED, n_rows))
        group = groups.group_of[here]
        best, similar = rows[group], values[group]
        is_other = (np.arange(best.shape[1]) < n_found[group][:, None]) & (best != here[:, None])
        is_kept = is_other & (np.cumsum(is_other, axis=1) <= n_kept)
        best[~is_kept] = n_rows  # behind all others
        order = np.argsort(best, axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        is_kept = best < n_rows
        similar = np.take_along_axis(similar, order, axis=1)
        return is_kept.sum(axis=1), best[is_kept].astype(kind), similar[is_kept]

    parts = thread_map(expand, range(0, n_rows, _ROWS_EXPANDED), local_threads())
    counts, indices, data = (np.concatenate(column) for column in zip(*parts, strict=True))
    edges = np.concatenate([[0], np.cumsum(counts)]).astype(kind)
    return sp.csr_array((data, indices, edges), shape=(n_rows, n_rows))


# ---- helpers ------------------------------------------------------------------------------------


def _compare(
    by_base: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return agreements and labels in common of all pairs of columns."""
    n_rows = by_base.shape[1]
    agreed = np.empty((n_rows, n_rows), np.int32)
    observed = np.empty((n_rows, n_rows), np.int32)

    def compare(first: int) -> None:
        part = slice(first, first + _ROWS_A_BLOCK)
        some = np.ascontiguousarray(by_base[:, part])
        numerics.agreements(some, by_base, agreed[part], observed[part])

    thread_map(compare, range(0, n_rows, _ROWS_A_BLOCK), local_threads())
    return agreed, observed


def _count_together(own: Ints, draws: Labels, weights: Floats) -> tuple[Floats, Floats]:
    """Return, summed over draws, the weight of those that lie with a row in both partitions.

    And in how many draws a row is alone.
    """
    together, alone = np.zeros(own.size), np.zeros(own.size)
    n_own = int(own.max()) + 1
    for draw in draws:
        other = canonical(draw).astype(np.int64)
        cells = own + other * n_own
        if n_own * (int(other.max()) + 1) > 4 * own.size + 1024:  # few cells are used
            cells = np.unique(cells, return_inverse=True)[1]
        together += np.bincount(cells, weights)[cells]
        alone += np.bincount(other)[other] == 1
    return together, alone


def _check_labels(labels: Labels, where: str) -> Labels:
    found = _check_whole(labels, where, "(n_rows, n_bases)")
    low, high = int(found.min()), int(found.max())
    if low < MISSING or high >= 2**31:
        hint = "Use labels from 0 up, and -1 for a missing one."
        raise InputError(where, "labels of at least -1", low if low < MISSING else high, hint)
    return found


def _check_whole(labels: Labels, where: str, shape: str) -> Labels:
    found = np.asarray(labels)
    if found.ndim != 2 or found.size == 0 or found.dtype.kind not in "iub":
        got = f"{found.dtype} of shape {found.shape}"
        raise InputError(where, f"whole numbers of shape {shape}", got, "Pass labels.")
    return found


def check_rows(rows: Any, n_rows: int, max_cells: int | None, where: str) -> Ints:
    """Return numbers of rows, all of them for None; refuse others, and too many pairs."""
    n_chosen = n_rows if rows is None else np.asarray(rows).size
    if max_cells is not None and n_chosen**2 > max_cells:
        n_bytes = 12 * n_chosen**2 / 1e9  # values, and two counts
        raise CapacityError(
            f"{where}: rows",
            f"at most {int(max_cells**0.5)} rows, since all pairs are compared",
            f"{n_chosen} rows ({n_bytes:.1f} GB)",
            "Choose fewer rows, take neighbour_graph, or pass max_cells=None.",
        )
    if rows is None:
        return np.arange(n_rows)
    chosen = np.asarray(rows)
    if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
        got = f"{chosen.dtype} of shape {chosen.shape}"
        raise InputError(f"{where}: rows", "numbers of rows", got, "Pass a list of them.")
    if chosen.size and (chosen.min() < 0 or chosen.max() >= n_rows):
        wrong = int(chosen.min()) if chosen.min() < 0 else int(chosen.max())
        hint = "Rows are numbered from 0."
        raise InputError(f"{where}: rows", f"numbers from 0 to {n_rows - 1}", wrong, hint)
    return chosen.astype(np.int64)
