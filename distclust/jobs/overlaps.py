"""How many rows two labellings of a store have in common, cluster by cluster.

Rows are matched by stored position where one generation grew out of the other: appended rows
come after all others and a deleted row keeps its position. A row that was replaced left its
position, so it counts as one that left and one that came. After a compaction positions say
nothing and rows are matched by the 64-bit keys of their ids instead, in parts of bounded size;
a row that was replaced then counts as one that stayed.

The work is done by ranges of positions, where the blocks are; nobody holds a label of every
row. Chunks of labels that both versions share (equal checksums, equal rows) are not read if the
version tells its rows by cluster, as `label_store` has it do.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.engine import map_ordered
from distclust.errors import InputError
from distclust.seeding import Keys
from distclust.store.generation import Generation
from distclust.store.row_labels import StoredLabels
from distclust.store.stored_matrix import StoredMatrix
from distclust.store.versions import read_version

Indices: TypeAlias = npt.NDArray[np.int64]
Matching: TypeAlias = Literal["positions", "keys"]

ABSENT = -1  # label of a row on the side where it is not
RANGE = 2**18  # stored positions in a task: two or three chunks of labels on either side
PART_ROWS = 2**22  # rows that are matched by their keys at a time
_FEW_CODES = 2**20  # up to here counting beats sorting

COUNTS = "counts"  # metric of a version: rows of every label
_STAGE = "comparing labels"


@dataclass(frozen=True, eq=False)
class Labelled:
    """A generation of rows with a label each; travels to workers by name.

    Attributes
    ----------
    labels
        Label of every live row.
    matrix
        The rows they are labels of.
    """

    labels: StoredLabels
    matrix: StoredMatrix

    def __post_init__(self) -> None:
        n_labels, n_rows = self.labels.n_rows, self.matrix.shape[0]
        if n_labels != n_rows:
            where = f"labels of version {self.labels.version_id}"
            expected, got = f"{n_rows:,}, one a row of {self.matrix.url}", f"{n_labels:,}"
            raise InputError(where, expected, got, "Pass the generation that was labelled.")

    @property
    def generation(self) -> Generation:
        """The rows by stored position."""
        return self.matrix.generation

    @functools.cached_property
    def counts(self) -> Indices | None:
        """Rows of every label if the version tells them, shape (n_labels,)."""
        version = read_version(self.labels.objects, self.labels.version_id)
        told = version.metrics.get(COUNTS)
        if not isinstance(told, list) or not all(type(value) is int for value in told):
            return None
        counts = np.array(told, np.int64)
        is_sound = len(counts) == self.labels.n_labels and counts.sum() == self.labels.n_rows
        return counts if is_sound else None

    def labels_at(self, start: int, stop: int) -> Indices:
        """Labels at stored positions ``[start, stop)``, `ABSENT` where no live row is."""
        found = np.full(stop - start, ABSENT, np.int64)
        end = min(stop, self.generation.manifest.n_stored)
        if start < end:
            is_live = self.generation.is_live(start, end)
            first = start - int(np.searchsorted(self.generation.tombstones, start))
            labels = self.labels.read(first, first + int(is_live.sum()))
            found[: end - start][is_live] = labels
        return found


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Rows by the cluster before and the cluster after: a sparse table, one entry a pair.

    Attributes
    ----------
    before, after, rows
        Labels of either side and rows that have both, each of shape (n_pairs,), ordered by
        labels. `ABSENT` before stands for rows that came, after for rows that left.
    matching
        Whether rows were matched by position or by key.
    """

    before: Indices
    after: Indices
    rows: Indices
    matching: Matching = "positions"


def count_overlaps(before: Labelled, after: Labelled) -> Overlaps:
    """Count the rows of every pair of clusters, wherever the current session runs."""
    by_position = is_comparable(before.generation, after.generation)
    codes, rows = (_by_position if by_position else _by_key)(before, after)
    width = after.labels.n_labels + 1
    matching: Matching = "positions" if by_position else "keys"
    return Overlaps(codes // width + ABSENT, codes % width + ABSENT, rows, matching)


def is_comparable(before: Generation, after: Generation) -> bool:
    """Whether a stored position is the same row in both, if it is a row in both."""
    if before.objects.url != after.objects.url:
        return False
    pairs = zip(before.manifest.segments, after.manifest.segments, strict=False)
    return all(old == new for old, new in pairs)


# A tally: codes of pairs, ascending, and the rows of each. The code of a pair is
# (before + 1) * (labels after + 1) + after + 1, so that 0 is a position without a row.
_Tally: TypeAlias = tuple[Indices, Indices]


def _tally(before: Indices, after: Indices, sides: tuple[Labelled, Labelled]) -> _Tally:
    """Count pairs of labels, shape (n,) each; positions without a row are left out."""
    n_before, n_after = (side.labels.n_labels + 1 for side in sides)
    codes = (before - ABSENT) * n_after + (after - ABSENT)
    if n_before * n_after <= _FEW_CODES:
        counts = np.bincount(codes)
        found = np.flatnonzero(counts)
        rows = counts[found]
    else:
        found, rows = np.unique(codes, return_counts=True)
    is_pair = found > 0
    return found[is_pair], rows[is_pair].astype(np.int64)


def _add(a: _Tally, b: _Tally) -> _Tally:
    codes, places = np.unique(np.concatenate([a[0], b[0]]), return_inverse=True)
    rows = np.zeros(len(codes), np.int64)
    np.add.at(rows, places, np.concatenate([a[1], b[1]]))
    return codes, rows


_NOTHING: _Tally = (np.empty(0, np.int64), np.empty(0, np.int64))


def _by_position(before: Labelled, after: Labelled) -> _Tally:
    shared, others = _ranges(before, after)
    both = before, after
    parts = map_ordered(_count_range, others, *both, stage=_STAGE)
    tally = functools.reduce(_add, parts, _NOTHING)
    if not shared:
        return tally
    if before.counts is None:
        parts = map_ordered(_count_shared, shared, *both, stage=_STAGE)
        return functools.reduce(_add, parts, tally)
    # Rows of shared chunks have the same label twice: all rows, without those just counted.
    labels = tally[0] // (after.labels.n_labels + 1) + ABSENT
    was_there = labels != ABSENT
    rest = before.counts.copy()
    np.subtract.at(rest, labels[was_there], tally[1][was_there])
    found = np.flatnonzero(rest)
    codes = (found - ABSENT) * (after.labels.n_labels + 1) + (found - ABSENT)
    return _add(tally, (codes, rest[found]))


def _ranges(before: Labelled, after: Labelled) -> tuple[list[int], list[tuple[int, int]]]:
    """Chunks of labels that both sides share, and the ranges of positions of all other rows."""
    old, new = before.generation, after.generation
    n_alike = _first_difference(old, new)
    n_aligned = n_alike - int(np.searchsorted(old.tombstones, n_alike))  # live rows among them
    kept_before = old.tombstones - np.arange(len(old.tombstones))
    shared: list[int] = []
    others: list[tuple[int, int]] = []
    position = 0
    for index in range(min(before.labels.n_chunks, after.labels.n_chunks)):
        start, stop = before.labels.chunk_bounds(index)
        if stop > n_aligned or (start, stop) != after.labels.chunk_bounds(index):
            break
        begin = position
        position = stop + int(np.searchsorted(kept_before, stop - 1, side="right"))
        if before.labels.shares_chunk(after.labels, index):
            shared.append(index)
        else:
            others.append((begin, position))
    end = max(old.manifest.n_stored, new.manifest.n_stored)
    others += [(a, min(a + RANGE, end)) for a in range(position, end, RANGE)]
    return shared, others


def _first_difference(old: Generation, new: Generation) -> int:
    """Return the first stored position that is a live row on one side only, or the end."""
    end = min(old.manifest.n_stored, new.manifest.n_stored)
    a, b = old.tombstones, new.tombstones
    n_both = min(len(a), len(b))
    differing = np.flatnonzero(a[:n_both] != b[:n_both])[:1]
    first = int(differing[0]) if len(differing) else n_both
    return int(min([end, *a[first : first + 1], *b[first : first + 1]]))


def _count_range(item: tuple[int, int], before: Labelled, after: Labelled) -> _Tally:
    """Count the pairs at a range of stored positions; runs where the work runs."""
    return _tally(before.labels_at(*item), after.labels_at(*item), (before, after))


def _count_shared(index: int, before: Labelled, after: Labelled) -> _Tally:
    """Count the pairs of a chunk of labels that is the same on both sides, read once."""
    labels = before.labels.read_chunk(index).astype(np.int64)
    return _tally(labels, labels, (before, after))


def _by_key(before: Labelled, after: Labelled) -> _Tally:
    largest = max(before.labels.n_rows, after.labels.n_rows)
    n_parts = max(1, -(-largest // PART_ROWS))
    parts = map_ordered(_count_part, range(n_parts), n_parts, before, after, stage=_STAGE)
    return functools.reduce(_add, parts, _NOTHING)


def _count_part(part: int, n_parts: int, before: Labelled, after: Labelled) -> _Tally:
    """Count the pairs of the rows whose keys fall into one part of all keys."""
    old_keys, old_labels = _rows_of_part(part, n_parts, before)
    new_keys, new_labels = _rows_of_part(part, n_parts, after)
    _, old, new = np.intersect1d(old_keys, new_keys, return_indices=True)
    left, came = np.delete(old_labels, old), np.delete(new_labels, new)
    nowhere = np.full(len(left), ABSENT), np.full(len(came), ABSENT)
    pairs_before = np.concatenate([old_labels[old], left, nowhere[1]])
    pairs_after = np.concatenate([new_labels[new], nowhere[0], came])
    return _tally(pairs_before, pairs_after, (before, after))


def _rows_of_part(part: int, n_parts: int, side: Labelled) -> tuple[Keys, Indices]:
    keys_found: list[Keys] = [np.empty(0, np.uint64)]
    labels_found: list[Indices] = [np.empty(0, np.int64)]
    for keys, labels in _keys_and_labels(side):
        is_here = keys % np.uint64(n_parts) == part
        keys_found.append(keys[is_here])
        labels_found.append(labels[is_here])
    return np.concatenate(keys_found), np.concatenate(labels_found)


def _keys_and_labels(side: Labelled) -> Iterator[tuple[Keys, Indices]]:
    """Yield keys and labels of all rows, a chunk of labels at a time: blocks are smaller."""
    blocks = iter(range(side.matrix.n_blocks))
    held: Keys = np.empty(0, np.uint64)
    for index in range(side.labels.n_chunks):
        labels = side.labels.read_chunk(index).astype(np.int64)
        parts, n_held = [held], len(held)
        while n_held < len(labels):
            parts.append(side.matrix.block_keys(next(blocks)))
            n_held += len(parts[-1])
        keys = np.concatenate(parts)
        held = keys[len(labels) :]
        yield keys[: len(labels)], labels
