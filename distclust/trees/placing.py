"""Rows of a later generation on a fitted tree: the first pass of an update.

Kept rows stay in their leaves, which are read from the version before where somebody asks for
them (`PlantedCodes`). Added rows go the way of their filters; they are counted, and scored against
the rows of the fit. Blocks without added rows are not visited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import Rows, Span, map_ordered, map_spans, n_spans, span_bounds
from distclust.families import Family
from distclust.store import Column, Matrix, profile_block
from distclust.store.changes import Changes
from distclust.store.codes import CodeArray, Codes
from distclust.store.row_labels import KeptLabels, StoredLabels
from distclust.store.stored_matrix import StoredMatrix
from distclust.trees import _filter_numerics as numerics
from distclust.trees.drift import Moments, new_scores
from distclust.trees.passes import NOWHERE
from distclust.trees.routing import Router

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Planting:
    """Where rows go.

    Attributes
    ----------
    family, columns
        Resolved, and what it is asked about new rows.
    router, leaf_of_end, end_of_leaf
        The tree before, and its leaves as ends of the router.
    leaves
        Leaf of every row before, and which rows are kept.
    reference
        Statistics against which new rows are scored, shape (n_leaves, p).
    after
        Where the end of every row is kept.
    where
        Place to name in errors.
    """

    family: Family
    columns: tuple[Column, ...]
    router: Router
    leaf_of_end: Indices
    end_of_leaf: Indices
    leaves: KeptLabels
    reference: Floats
    after: Codes
    where: str


@dataclass(frozen=True, eq=False)
class Placed:
    """Where added rows went, by leaf.

    Attributes
    ----------
    first_rows
        Number of the first row of each leaf in the spans with added rows, shape (n_leaves,).
    added
        Statistics of added rows, shape (n_leaves, p).
    scores
        Of added rows.
    """

    first_rows: Indices
    added: Floats
    scores: Moments


def place_added(matrix: Matrix, planting: Planting, stage: str) -> Placed:
    """Place the rows of all spans that hold added ones."""
    n_leaves = len(planting.reference)
    first_rows, scores = np.full(n_leaves, NOWHERE), Moments.none(n_leaves)
    added = np.zeros(planting.reference.shape)
    skip = range(_n_kept_spans(matrix, planting.leaves.changes))
    for part in map_spans(_place_span, matrix, planting, stage=stage, skip=skip):
        np.minimum(first_rows, part.first_rows, out=first_rows)
        planting.after.collect(part.index, part.kept)
        added += part.added
        scores = scores + part.scores
    return Placed(first_rows, added, scores)


def _n_kept_spans(matrix: Matrix, changes: Changes) -> int:
    """Return how many spans, the first ones, hold kept rows only."""
    total = n_spans(matrix)
    return next((i for i in range(total) if span_bounds(matrix, i)[1] > changes.n_kept), total)


@dataclass(frozen=True, eq=False)
class _PlacedSpan:
    """What one span sends to the driver."""

    index: int
    kept: Any  # what `Codes.keep` returned
    first_rows: Indices
    added: Floats
    scores: Moments


def _place_span(span: Span, planting: Planting) -> _PlacedSpan:
    """Place the rows of a span; runs where they are."""
    n_leaves = len(planting.reference)
    n_old = max(0, min(span.stop, planting.leaves.changes.n_kept) - span.start)
    leaves = np.empty(span.stop - span.start, np.int64)
    end_of_old = span.start + n_old
    leaves[:n_old] = planting.leaves.read(span.start, end_of_old)
    added, scores = np.zeros(planting.reference.shape), Moments.none(n_leaves)
    for rows in span:
        first = max(rows.start, end_of_old)
        if first >= rows.stop:
            continue
        found, more, of_these = span.once(rows, _place_in_block, first - rows.start, planting)
        added += more
        scores = scores + of_these
        leaves[first - span.start : rows.stop - span.start] = found
    first_rows = np.full(n_leaves, NOWHERE)
    numerics.note_first_rows(leaves, span.start, first_rows)
    kept = planting.after.keep(span.index, planting.end_of_leaf[leaves])
    return _PlacedSpan(span.index, kept, first_rows, added, scores)


def _place_in_block(rows: Rows, first: int, planting: Planting) -> tuple[Indices, Floats, Moments]:
    """Return leaf, statistics and scores of the rows of a block from `first` on."""
    n_leaves, new = len(planting.reference), rows.block[first:]
    planting.family.check(profile_block(new), planting.columns, planting.where)
    found = planting.leaf_of_end[planting.router.place(new)]
    added = planting.family.accumulate(new, found, n_leaves)
    values = new_scores(planting.family, new, found, planting.reference)
    return found, added, Moments.of(values, found, n_leaves)


@dataclass(frozen=True, eq=False)
class PlantedCodes(Codes):
    """The end of every row after `place_added`; pickles as names only.

    Attributes
    ----------
    matrix
        The rows as they are now.
    leaves, end_of_leaf
        Leaf of every row before, and its end.
    placed
        Codes of the spans with added rows.
    """

    matrix: StoredMatrix
    leaves: KeptLabels
    end_of_leaf: Indices
    placed: Codes

    def read(self, span: int) -> CodeArray:
        """Return the codes of a span; of kept rows, from the version before."""
        start, stop = span_bounds(self.matrix, span)
        if stop > self.leaves.changes.n_kept:
            return self.placed.read(span)
        return self.end_of_leaf[self.leaves.read(start, stop)].astype(np.int32)

    def keep(self, span: int, codes: npt.ArrayLike) -> CodeArray | None:
        """Keep the codes of a span with added rows."""
        return self.placed.keep(span, codes)

    def collect(self, span: int, kept: CodeArray | None) -> None:
        """Take what `keep` returned."""
        self.placed.collect(span, kept)

    def remove(self) -> None:
        """Forget those that were kept."""
        self.placed.remove()


def first_kept_rows(first_rows: Indices, before: KeptLabels) -> Indices:
    """Return the number now of the first kept row of each leaf, `NOWHERE` without any.

    Parameters
    ----------
    first_rows
        Number of the first row of each leaf before, shape (n_leaves,).
    before
        Leaf of every row before, and which rows are kept; read only if a first row is not.
    """
    leaves, changes = before.labels, before.changes
    is_known = first_rows != NOWHERE
    is_gone = is_known & np.isin(first_rows, changes.deleted)
    now = first_rows - np.where(is_known, np.searchsorted(changes.deleted, first_rows), 0)
    now[is_gone] = NOWHERE
    found = now.copy()
    for i in range(leaves.n_chunks):
        if not (found[is_gone] == NOWHERE).any():
            break
        start, stop = leaves.chunk_bounds(i)
        gone = changes.deleted[slice(*np.searchsorted(changes.deleted, (start, stop)))] - start
        kept = np.delete(leaves.read_chunk(i), gone).astype(np.int64)
        first = start - int(np.searchsorted(changes.deleted, start))
        numerics.note_first_rows(kept, first, found)
    return found


def count_deleted(
    before: StoredMatrix,
    changes: Changes,
    leaves: StoredLabels,
    family: Family,
    n_leaves: int,
    stage: str,
) -> Floats:
    """Return statistics of the deleted rows by their leaf, shape (n_leaves, p)."""
    removed = np.zeros((n_leaves, family.n_statistics))
    items = [(block, places) for block, _, places in before.places_of(changes.deleted)]
    shared = before, leaves, family, n_leaves
    name = stage if items else ""
    for part in map_ordered(_count_in_block, items, *shared, stage=name, is_noted=True):
        removed += part
    return removed


def _count_in_block(
    item: tuple[int, Indices],
    before: StoredMatrix,
    leaves: StoredLabels,
    family: Family,
    n_leaves: int,
) -> Floats:
    block, places = item
    found = leaves.read(*before.block_bounds(block))[places].astype(np.int64)
    return family.accumulate(before.block(block)[places], found, n_leaves)
