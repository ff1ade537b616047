"""Passes over all rows: what a span of rows tells, and how spans add up.

Each function runs where its rows are, returns values whose size does not grow with the
number of rows, and sends or writes the new node of every row through `Codes`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
import xxhash

from distclust.engine import Rows, Span, map_spans
from distclust.errors import OtherRowsError
from distclust.families import Family, column_origin, summarise_block
from distclust.store import Matrix, Profile, profile_block
from distclust.store.codes import Codes
from distclust.store.stored_matrix import StoredMatrix
from distclust.trees import _filter_numerics as numerics
from distclust.trees.routing import Router
from distclust.trees.sampling import Candidates, Wanted, join

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]

NOWHERE = np.iinfo(np.int64).max  # the first row of a node that has none


# ---- the passes before rows move ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Seen:
    """First sight of some rows.

    Attributes
    ----------
    profile
        Facts about columns.
    origin
        A point near all rows, shape (d,); only the first block tells it.
    digests
        What each block is; empty where the store answers for that.
    candidates
        For the sample of all rows.
    """

    profile: Profile
    origin: Floats | None
    digests: Digests
    candidates: Candidates


def look(span: Span, wanted: Wanted, is_watched: bool) -> Seen:
    """Return the facts about a span, all rows being in the root."""
    parts = (span.once(rows, _look_at_block, wanted, is_watched) for rows in span)
    return _together(parts, wanted)


def _look_at_block(rows: Rows, wanted: Wanted, is_watched: bool) -> Seen:
    origin = column_origin(rows.block) if rows.index == 0 else None
    digests = [digest_of(rows)] if is_watched else []
    at_root = np.zeros(len(rows.keys), np.int64)
    candidates = wanted.candidates(rows.block, at_root, rows.keys, rows.start)
    profile = profile_block(rows.block)
    return Seen(profile, origin, np.array(digests, np.uint64), candidates)


def _together(parts: Iterator[Seen], wanted: Wanted) -> Seen:
    """Put together what consecutive parts tell."""
    first = next(parts)
    profile, digests, held = first.profile, [first.digests], [first.candidates]
    for part in parts:
        profile = profile + part.profile
        digests.append(part.digests)
        held = fold_candidates([*held, part.candidates], wanted.want)
    candidates = join(held).trimmed(wanted.want)
    return Seen(profile, first.origin, np.concatenate(digests), candidates)


def look_at_all(matrix: Matrix, wanted: Wanted) -> Seen:
    """Run the first pass over all spans and put together what they tell, in their order."""
    is_watched = not isinstance(matrix, StoredMatrix)  # its rows have checksums of their own
    shared = wanted, is_watched
    parts = map_spans(look, matrix, *shared, stage="checking the data", is_brief=True)
    return _together(parts, wanted)


def summarise(span: Span, prepared: Family, origin: Floats) -> Floats:
    """Return what the prior is learnt from, of a span."""
    parts = (span.once(rows, _summarise_block, prepared, origin) for rows in span)
    return functools.reduce(operator.add, parts)


def _summarise_block(rows: Rows, prepared: Family, origin: Floats) -> Floats:
    return summarise_block(rows.block, rows.start, prepared, origin)


def summarise_all(matrix: Matrix, prepared: Family, seen: Seen) -> Floats:
    """Return what the prior is learnt from; reads the rows unless the profile tells it."""
    known = prepared.summary_of(seen.profile)
    if known is not None:
        return known
    shared = (prepared, seen.origin)
    parts = map_spans(summarise, matrix, *shared, stage="learning the prior", is_brief=True)
    return functools.reduce(operator.add, parts)


# ---- the passes that move rows -----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Task:
    """What a pass is to do.

    Attributes
    ----------
    family, router
        How rows move.
    before
        Nodes of all rows before the pass; None: all are in the root.
    after
        Where their nodes after the pass are kept; None: they do not change.
    counted
        First of the nodes whose statistics are wanted: all from here on.
    wanted
        Which nodes want a sample.
    digests
        What each block was when it was first seen; empty where the store answers for that.
    """

    family: Family
    router: Router
    before: Codes | None
    after: Codes | None
    counted: int
    wanted: Wanted
    digests: Digests


@dataclass(frozen=True, eq=False)
class Gleaned:
    """What a pass found.

    Attributes
    ----------
    stats
        Statistics of the counted nodes, shape (n, p).
    first_rows
        Number of the first row in each of them, NOWHERE for none, shape (n,).
    candidates
        For the samples.
    """

    stats: Floats
    first_rows: Indices
    candidates: Candidates | None


@dataclass(frozen=True, eq=False)
class SpanResult:
    """What one span sends to the driver."""

    index: int
    gleaned: Gleaned
    kept: Any  # what `Codes.keep` returned


def sweep(span: Span, task: Task) -> SpanResult:
    """Move the rows of a span to where their filters lead, and count them there."""
    n_counted = task.router.n_nodes - task.counted
    stats = np.zeros((n_counted, task.family.n_statistics))
    first_rows = np.full(n_counted, NOWHERE)
    before = None if task.before is None else task.before.read(span.index)
    if before is not None and not _concerns(before, task):
        kept = None if task.after is None else task.after.keep(span.index, before)
        return SpanResult(span.index, Gleaned(stats, first_rows, None), kept)
    held: list[Candidates] = []
    moved = []
    for rows in span:
        nodes = None if before is None else before[rows.start - span.start :]
        gleaned, ends = span.once(rows, _sweep_block, nodes, task)
        stats += gleaned.stats
        np.minimum(first_rows, gleaned.first_rows, out=first_rows)
        assert gleaned.candidates is not None, "every block that is read has them, be they none"
        held = fold_candidates([*held, gleaned.candidates], task.wanted.want)
        moved.append(ends)
    candidates = join(held).trimmed(task.wanted.want)
    kept = None if task.after is None else task.after.keep(span.index, np.concatenate(moved))
    return SpanResult(span.index, Gleaned(stats, first_rows, candidates), kept)


def _sweep_block(
    rows: Rows, before: npt.NDArray[np.int32] | None, task: Task
) -> tuple[Gleaned, npt.NDArray[np.int32]]:
    """Move the rows of a block; `before` is where they are, and further rows."""
    check_same(rows, task.digests)
    n_counted = task.router.n_nodes - task.counted
    nodes = None if before is None else before[: rows.stop - rows.start]
    ends = task.router.place(rows.block, rows.start, nodes)
    groups = np.maximum(ends - task.counted, -1)
    stats = task.family.accumulate(rows.block, groups, n_counted)
    first_rows = np.full(n_counted, NOWHERE)
    numerics.note_first_rows(groups, rows.start, first_rows)
    candidates = task.wanted.candidates(rows.block, ends, rows.keys, rows.start)
    return Gleaned(stats, first_rows, candidates), ends.astype(np.int32)


def run_sweep(matrix: Matrix, task: Task, stage: str, *, is_brief: bool = False) -> Gleaned:
    """Run a pass over all spans and add up what they found, in their order.

    `is_brief` says that few rows move, see `map_spans`.
    """
    n_counted = task.router.n_nodes - task.counted
    stats = np.zeros((n_counted, task.family.n_statistics))
    first_rows = np.full(n_counted, NOWHERE)
    held: list[Candidates] = []
    for result in map_spans(sweep, matrix, task, stage=stage, is_brief=is_brief):
        stats += result.gleaned.stats
        np.minimum(first_rows, result.gleaned.first_rows, out=first_rows)
        if task.after is not None:
            task.after.collect(result.index, result.kept)
        if result.gleaned.candidates is not None:
            held = fold_candidates([*held, result.gleaned.candidates], task.wanted.want)
    return Gleaned(stats, first_rows, join(held).trimmed(task.wanted.want) if held else None)


def fold_candidates(parts: list[Candidates], want: Indices) -> list[Candidates]:
    """Keep what is held bounded: trim once it has grown to four times what is wanted."""
    if sum(map(len, parts)) > 4 * int(want.sum()) + 1024:
        return [join(parts).trimmed(want)]
    return parts


def _concerns(nodes: npt.NDArray[np.int32], task: Task) -> bool:
    """Whether any row moves on or may be wanted."""
    return bool((task.router.is_split | (task.wanted.want > 0))[nodes].any())


# ---- the same rows in every pass ---------------------------------------------------------------


def digest_of(rows: Rows) -> int:
    """Return what tells the rows of a block and their keys from others."""
    digest: Any = xxhash.xxh3_64()
    names = ("data", "indices", "indptr") if scipy.sparse.issparse(rows.block) else ()
    parts = [getattr(rows.block, name) for name in names] or [rows.block]
    for part in (rows.keys, *parts):
        digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
    return int(digest.intdigest())


def check_same(rows: Rows, digests: Digests) -> None:
    """Refuse rows that are not those of the first pass, if their digests are known."""
    if len(digests) and digest_of(rows) != int(digests[rows.index]):
        raise OtherRowsError(
            f"rows {rows.start:,} to {rows.stop:,}",
            "the rows of the first pass",
            "other rows: the data changed while they were read",
            "Fit again once nobody writes to them; a Dask array must compute the same "
            "values every time.",
        )
