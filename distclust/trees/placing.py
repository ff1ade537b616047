"""Rows of a later generation on a fitted tree: the first pass of an update.

Kept rows stay in their leaves, which are read from the version before. Added rows go the way of
their filters; they are counted, and scored against the rows of the fit. Of the blocks without
added rows nothing is read but the leaves of their rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import Span, map_ordered, map_spans
from distclust.families import Family
from distclust.store import Column, Matrix, profile_block
from distclust.store.changes import Changes
from distclust.store.codes import Codes
from distclust.store.row_labels import StoredLabels
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
        Leaf of every row before.
    changes
        Which rows are kept, and which are new.
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
    leaves: StoredLabels
    changes: Changes
    reference: Floats
    after: Codes
    where: str


@dataclass(frozen=True, eq=False)
class Placed:
    """Where rows went, by leaf.

    Attributes
    ----------
    sizes, first_rows
        Rows of each leaf, and the number of its first one, each (n_leaves,).
    added
        Statistics of added rows, shape (n_leaves, p).
    scores
        Of added rows.
    """

    sizes: Indices
    first_rows: Indices
    added: Floats
    scores: Moments


def place_all(matrix: Matrix, planting: Planting, stage: str) -> Placed:
    """Place all rows, span by span."""
    n_leaves, width = planting.reference.shape
    sizes, first_rows = np.zeros(n_leaves, np.int64), np.full(n_leaves, NOWHERE)
    added, scores = np.zeros((n_leaves, width)), Moments.none(n_leaves)
    for part in map_spans(_place_span, matrix, planting, stage=stage):
        sizes += part.sizes
        np.minimum(first_rows, part.first_rows, out=first_rows)
        planting.after.collect(part.index, part.kept)
        if part.added is not None:
            added += part.added
            scores = scores + part.scores
    return Placed(sizes, first_rows, added, scores)


@dataclass(frozen=True, eq=False)
class _PlacedSpan:
    """What one span sends to the driver."""

    index: int
    kept: Any  # what `Codes.keep` returned
    sizes: Indices
    first_rows: Indices
    added: Floats | None
    scores: Moments


def _place_span(span: Span, planting: Planting) -> _PlacedSpan:
    """Place the rows of a span; runs where they are."""
    n_leaves = len(planting.reference)
    n_old = max(0, min(span.stop, planting.changes.n_kept) - span.start)
    leaves = np.empty(span.stop - span.start, np.int64)
    leaves[:n_old] = _leaves_before(planting, span.start, span.start + n_old)
    added, scores = None, Moments.none(n_leaves)
    if span.start + n_old < span.stop:
        added = np.zeros(planting.reference.shape)
        blocks = list(span)
        ends = [rows.start for rows in blocks[1:]] + [span.stop]
        for rows, end in zip(blocks, ends, strict=True):
            first = max(rows.start, span.start + n_old)
            if first >= end:
                continue
            new = rows.block[first - rows.start :]
            planting.family.check(profile_block(new), planting.columns, planting.where)
            found = planting.leaf_of_end[planting.router.place(new)]
            added += planting.family.accumulate(new, found, n_leaves)
            values = new_scores(planting.family, new, found, planting.reference)
            scores = scores + Moments.of(values, found, n_leaves)
            leaves[first - span.start : end - span.start] = found
    first_rows = np.full(n_leaves, NOWHERE)
    numerics.note_first_rows(leaves, span.start, first_rows)
    kept = planting.after.keep(span.index, planting.end_of_leaf[leaves])
    sizes = np.bincount(leaves, minlength=n_leaves)
    return _PlacedSpan(span.index, kept, sizes, first_rows, added, scores)


def _leaves_before(planting: Planting, start: int, stop: int) -> Indices:
    """Return the leaves of kept rows ``[start, stop)``, as they were."""
    rows = planting.changes.rows_before(start, stop)
    if len(rows) == 0:
        return rows
    found = planting.leaves.read(int(rows[0]), int(rows[-1]) + 1)
    leaves: Indices = found[rows - rows[0]].astype(np.int64)
    return leaves


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
    for part in map_ordered(_count_in_block, items, *shared, stage=stage if items else ""):
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
