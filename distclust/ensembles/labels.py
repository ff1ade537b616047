"""Labels of several clusterings as one matrix of small whole numbers.

Whatever tools made the labels, a row is a few bytes here: one code a base, -1 where a label
is missing. Equal rows are found exactly, so that models may look at each distinct row once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import local_threads, thread_map
from distclust.errors import InputError

Codes = npt.NDArray[np.signedinteger[Any]]
Indices = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

MISSING = -1

_ROWS_AT_A_TIME = 1 << 18
_LARGEST_WAIT = 1 << 20  # keys that wait to be merged
_LARGEST_KEY = 2**62
_LARGEST_TABLE = 1 << 24  # keys below it are looked up, not searched for


@dataclass(frozen=True, eq=False)
class LabelMatrix:
    """Labels of rows by several base clusterings.

    Attributes
    ----------
    codes
        Shape (n_rows, n_bases), the smallest signed type that holds them: 0 to
        ``n_labels[m] - 1`` for base m, -1 where a label is missing.
    n_labels
        Number of labels of each base, shape (n_bases,).
    values
        For each base the user's label of every code, shape (n_labels[m],): whole numbers or
        text, sorted.
    names
        Name of every base.
    row_ids
        Identifier of every row, or None where rows are merely counted.
    """

    codes: Codes
    n_labels: Indices
    values: tuple[Array, ...]
    names: tuple[str, ...]
    row_ids: Array | None = None

    @classmethod
    def of_codes(
        cls, codes: Codes, n_labels: Sequence[int], names: Sequence[str] | None = None
    ) -> LabelMatrix:
        """Return codes that are what they should be already, as bases made here are."""
        sizes = np.asarray(n_labels, np.int64)
        titles = names if names is not None else default_names(len(sizes))
        values = tuple(np.arange(size) for size in sizes.tolist())
        return cls(np.ascontiguousarray(codes), sizes, values, tuple(titles))

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.codes.shape[0])

    @property
    def n_bases(self) -> int:
        """Number of bases."""
        return int(self.codes.shape[1])

    @functools.cached_property
    def n_observed(self) -> Indices:
        """How many rows have a label, for each base, shape (n_bases,)."""
        counts = np.zeros(self.n_bases, np.int64)
        for rows in row_slices(self.n_rows):
            counts += np.count_nonzero(self.codes[rows] >= 0, axis=0)
        return counts

    @functools.cached_property
    def is_labelled(self) -> npt.NDArray[np.bool_]:
        """Which rows have a label of some base, shape (n_rows,)."""
        found = np.empty(self.n_rows, bool)
        for rows in row_slices(self.n_rows):
            (self.codes[rows] >= 0).any(axis=1, out=found[rows])
        return found

    def take(self, rows: npt.ArrayLike) -> LabelMatrix:
        """Return some of the rows, by number or by a mask."""
        chosen = np.asarray(rows)
        ids = None if self.row_ids is None else self.row_ids[chosen]
        codes = np.ascontiguousarray(self.codes[chosen])
        return LabelMatrix(codes, self.n_labels, self.values, self.names, ids)

    def explain(self, row: int) -> dict[str, Any]:
        """Return the user's own labels of a row by base; None where one is missing."""
        pairs = zip(self.names, self.codes[row].tolist(), self.values, strict=True)
        return {name: values.tolist()[code] if code >= 0 else None for name, code, values in pairs}

    def collapsed(self) -> Collapsed:
        """Return the distinct rows, how often each comes, and which one every row is.

        Exact, in the order of the codes (missing labels first). Beside the result, memory for
        a few hundred thousand rows is used.
        """
        return _collapse(self.codes, self.n_labels)

    def check(self, where: str) -> None:
        """Refuse labels from which no consensus can come.

        Raises
        ------
        InputError
            If a base has no labels, or no base says anything about the rows: each has a single
            cluster or makes every row its own.
        """
        empty = np.flatnonzero(self.n_observed == 0)
        if len(empty):
            raise InputError(
                f"{where}: base {self.names[empty[0]]!r}",
                "some labels",
                f"{self.n_rows:,} missing ones",
                "Leave that base out.",
            )
        is_single = self.n_labels == 1
        is_shattered = self.n_labels == self.n_observed
        if not (is_single | is_shattered).all():
            return
        if is_single.all():
            got = "one cluster in every base"
        elif is_shattered.all():
            got = "bases that make each row its own cluster"
        else:
            got = "bases with one cluster, and bases that make each row its own"
        raise InputError(
            where,
            "a base that puts some rows together and others apart",
            got,
            "Such bases say nothing about the rows: make them with more clusters than one and "
            "fewer than there are rows.",
        )


@dataclass(frozen=True, eq=False)
class Collapsed:
    """Distinct rows of labels.

    Attributes
    ----------
    codes
        Shape (n_distinct, n_bases), of the same type as those of the rows.
    counts
        How many rows are like each, shape (n_distinct,).
    inverse
        Number of the distinct row of every row, shape (n_rows,); int32 where that is enough.
    """

    codes: Codes
    counts: Indices
    inverse: npt.NDArray[Any]

    def spread(self, values: Array) -> Array:
        """Return for every row what its distinct row has, of shape (n_rows, ...)."""
        rows: Array = values[self.inverse]
        return rows


def default_names(n_bases: int) -> tuple[str, ...]:
    """Return names of bases that came without."""
    return tuple(f"base {m}" for m in range(n_bases))


def smallest_signed(top: int) -> np.dtype[Any]:
    """Return the smallest signed type that holds -1 to `top`."""
    return np.dtype(next(t for t in (np.int8, np.int16, np.int32, np.int64) if top <= _max(t)))


def row_slices(n_rows: int, step: int = _ROWS_AT_A_TIME) -> Iterator[slice]:
    """Yield slices that have all rows together."""
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def _max(kind: Any) -> int:
    return int(np.iinfo(kind).max)


# ---- equal rows --------------------------------------------------------------------------------


def _collapse(codes: Codes, n_labels: Indices) -> Collapsed:
    sizes = [int(size) + 1 for size in n_labels]  # and one for a missing label
    ids, n_ids = None, 1
    for group in _groups(sizes):
        keys = functools.partial(_packed, codes, group, sizes)
        n_keys = int(np.prod([sizes[m] for m in group], dtype=object))
        found, n_found = _ranks(keys, len(codes), n_keys)
        if ids is None:
            ids, n_ids = found, n_found
        else:  # ranks are at most as many as rows, so that a pair of them is a key again
            pairs = functools.partial(_paired, ids, found, n_found)
            ids, n_ids = _ranks(pairs, len(codes), n_ids * n_found)
    assert ids is not None, "there is a base"
    counts = np.bincount(ids, minlength=n_ids).astype(np.int64, copy=False)
    return Collapsed(codes[_one_of_each(ids, n_ids)], counts, ids)


def _groups(sizes: Sequence[int]) -> list[list[int]]:
    """Return runs of bases whose labels fit into one key together."""
    groups: list[list[int]] = []
    product = _LARGEST_KEY
    for m, size in enumerate(sizes):
        if product * size >= _LARGEST_KEY:
            groups.append([])
            product = 1
        groups[-1].append(m)
        product *= size
    return groups


def _packed(codes: Codes, group: list[int], sizes: Sequence[int], rows: slice) -> Indices:
    """Return the labels of some rows as one number each, in the order of the labels."""
    keys = codes[rows, group[0]].astype(np.int64)
    keys += 1
    for m in group[1:]:
        keys *= sizes[m]
        keys += codes[rows, m]
        keys += 1
    return keys


def _paired(ids: Array, others: Array, n_others: int, rows: slice) -> Indices:
    keys = ids[rows].astype(np.int64)
    keys *= n_others
    keys += others[rows]
    return keys


def _ranks(
    keys: Callable[[slice], Indices], n_rows: int, n_keys: int
) -> tuple[npt.NDArray[Any], int]:
    """Return the rank of each row's key among the distinct ones, and how many there are."""
    slices = list(row_slices(n_rows))
    threads = local_threads()
    if n_keys <= _LARGEST_TABLE:
        found = _present(keys, slices, n_keys)
        table = np.zeros(n_keys, np.int64)
        table[found] = np.arange(len(found))

        def rank(rows: slice) -> Array:
            return table[keys(rows)]
    else:
        found = _distinct(keys, slices, threads)

        def rank(rows: slice) -> Array:
            return _places(found, keys(rows))

    ranks = np.empty(n_rows, np.int32 if len(found) <= _max(np.int32) else np.int64)

    def fill(rows: slice) -> None:
        ranks[rows] = rank(rows)

    thread_map(fill, slices, threads)
    return ranks, len(found)


def _present(keys: Callable[[slice], Indices], slices: list[slice], n_keys: int) -> Indices:
    is_there = np.zeros(n_keys, bool)
    for rows in slices:
        is_there[keys(rows)] = True
    return np.flatnonzero(is_there)


def _distinct(keys: Callable[[slice], Indices], slices: list[slice], threads: int) -> Indices:
    """Return the distinct keys, sorted.

    What waits is merged when it is as much as there is already: each key a few times only.
    """
    found, waiting, n_waiting = np.empty(0, np.int64), [], 0
    for start in range(0, len(slices), threads):
        some = slices[start : start + threads]
        parts = thread_map(lambda rows: _sorted_set(keys(rows)), some, threads)
        waiting += parts
        n_waiting += sum(map(len, parts))
        if n_waiting > max(len(found), _LARGEST_WAIT):
            found = _sorted_set(np.concatenate([found, *waiting]))
            waiting, n_waiting = [], 0
    return _sorted_set(np.concatenate([found, *waiting]))


def _sorted_set(keys: Indices) -> Indices:
    """Return distinct keys by a sort: where all differ, much faster than numpy's hash table."""
    keys = np.sort(keys)
    return keys[_is_first(keys)]


def _is_first(ordered: Indices) -> npt.NDArray[np.bool_]:
    """Return where a sorted array has a value for the first time."""
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


def _places(found: Indices, keys: Indices) -> Indices:
    """Return where keys are among the distinct ones; sorted keys are found in one sweep."""
    order = np.argsort(keys)
    ordered = keys[order]
    first = _is_first(ordered)
    places = np.empty(len(keys), np.int64)
    places[order] = np.searchsorted(found, ordered[first])[np.cumsum(first) - 1]
    return places


def _one_of_each(ids: npt.NDArray[Any], n_ids: int) -> Indices:
    """Return the number of one row of each kind; any will do, since they are equal."""
    rows = np.empty(n_ids, np.int64)
    for part in row_slices(len(ids)):
        rows[ids[part]] = np.arange(part.start, part.stop)
    return rows
