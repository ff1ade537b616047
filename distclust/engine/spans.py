"""Map a function over spans: runs of consecutive blocks, one or a few of them a task.

A block alone may be a few milliseconds of work, less than a task costs. A span follows
from the block numbers only, so it holds the same rows everywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from distclust.engine.notes import notes_of_pass
from distclust.engine.pieces import Pieces, map_pieces
from distclust.seeding import Keys, row_keys
from distclust.store import Block, Matrix
from distclust.store.notes import Notes

if TYPE_CHECKING:
    from distclust.engine.dask_matrix import Cut, DaskMatrix
    from distclust.store.layouts import CompactBlock

Result = TypeVar("Result")

SPAN_BLOCKS = 8


@dataclass(frozen=True, eq=False)
class Rows:
    """One block of a span; what is not asked for is not read.

    Attributes
    ----------
    index
        Number of the block.
    start, stop
        Numbers of its first row in the matrix and of the row after its last.
    """

    index: int
    start: int
    stop: int
    _source: Matrix | _HeldRows = field(repr=False)

    @functools.cached_property
    def block(self) -> Block:
        """Its values, shape (rows, n_features); not to be written into."""
        return self._source.block(self.index)

    @functools.cached_property
    def keys(self) -> Keys:
        """64-bit keys of its rows, shape (rows,)."""
        return self._source.block_keys(self.index)

    @functools.cached_property
    def compact(self) -> CompactBlock | None:
        """Its rows as the compact layout stores them, or None where they lie otherwise."""
        return self._source.compact_block(self.index)


@dataclass(frozen=True, eq=False)
class _HeldRows:
    """A block that is in memory already, for `Rows`."""

    values: Block
    keys: Keys

    def block(self, index: int) -> Block:
        return self.values

    def block_keys(self, index: int) -> Keys:
        return self.keys

    def compact_block(self, index: int) -> None:
        return None


@dataclass(frozen=True)
class Span:
    """Consecutive blocks of a matrix; iterating reads one after another, as often as wanted.

    Attributes
    ----------
    index
        Number of the span.
    start, stop
        It covers the rows ``[start, stop)`` of the matrix.
    """

    index: int
    start: int
    stop: int
    _rows: Iterable[Rows] = field(repr=False)
    _notes: Notes | None = field(default=None, repr=False)

    def __iter__(self) -> Iterator[Rows]:
        return iter(self._rows)

    def once(self, rows: Rows, function: Callable[..., Result], *shared: Any) -> Result:
        """Return ``function(rows, *shared)`` of one of its blocks.

        Where notes are kept, a span that was cut off is begun again without reading the blocks
        that were done: the function is called once for each.
        """
        if self._notes is None:
            return function(rows, *shared)
        return self._notes.of_block(rows.index, lambda: function(rows, *shared))


def n_spans(matrix: Matrix) -> int:
    """Return how many spans hold all blocks."""
    return -(-matrix.n_blocks // SPAN_BLOCKS)


def span_bounds(matrix: Matrix, index: int) -> tuple[int, int]:
    """First row of span `index` and the row after its last."""
    blocks = _blocks_of(matrix, index)
    return matrix.block_bounds(blocks[0])[0], matrix.block_bounds(blocks[-1])[1]


def map_spans(
    function: Callable[..., Result],
    matrix: Matrix,
    *shared: Any,
    stage: str = "",
    skip: Collection[int] = (),
    is_brief: bool = False,
) -> Iterator[Result]:
    """Yield ``function(span, *shared)`` for every span, in order; see `map_blocks`.

    Parameters
    ----------
    function
        Module-level function of a `Span` and `shared`.
    matrix
        Where it can, a span reads its blocks one at a time. A matrix in memory sends whole
        spans to a cluster, and a Dask array keeps the chunks of a span on the worker.
    shared
        Values that every call gets, sent to a cluster once; nobody writes into them.
    stage
        Name in progress events and on the dashboard; no events without it.
    skip
        Numbers of spans to leave out: nothing of them is read, counted or yielded.
    is_brief
        Whether the function takes little longer than reading, so that tasks of a cluster
        had better hold several spans.
    """
    skipped = frozenset(skip)
    indices = [i for i in range(n_spans(matrix)) if i not in skipped]
    notes = notes_of_pass()
    notes = None if notes is None else notes.with_blocks()
    yield from map_pieces(_SPANS, indices, function, matrix, shared, stage, is_brief, notes)


def _blocks_of(matrix: Matrix, index: int) -> range:
    """Return the numbers of the blocks of span `index`."""
    if not 0 <= index < n_spans(matrix):
        raise IndexError(f"span {index} of a matrix with {n_spans(matrix)} spans")
    start = index * SPAN_BLOCKS
    return range(start, min(start + SPAN_BLOCKS, matrix.n_blocks))


@dataclass(frozen=True)
class _ReadRows:
    """Blocks of a matrix, read when they are asked for."""

    matrix: Matrix
    blocks: range

    def __iter__(self) -> Iterator[Rows]:
        for i in self.blocks:
            yield Rows(i, *self.matrix.block_bounds(i), self.matrix)


@dataclass(frozen=True)
class _CutRows:
    """Blocks put together from the chunks of a Dask array when they are asked for."""

    blocks: range
    cuts: tuple[Cut, ...]
    chunks: dict[int, Any]

    def __iter__(self) -> Iterator[Rows]:
        for i, cut in zip(self.blocks, self.cuts, strict=True):
            block = cut.assemble(*(self.chunks[j] for j in cut.chunks))
            # A Dask array has no ids of its own: its rows are numbered.
            start, stop = cut.first_row, cut.first_row + block.shape[0]
            keys = row_keys(np.arange(start, stop))
            yield Rows(i, start, stop, _HeldRows(block, keys))


@dataclass(frozen=True)
class _SpanCut:
    """How a span is put together from the chunks of a Dask array; sent to workers."""

    index: int
    start: int
    stop: int
    blocks: range
    cuts: tuple[Cut, ...]

    @property
    def chunks(self) -> tuple[int, ...]:
        """Numbers of the chunks that the blocks touch, each once."""
        return tuple(sorted({j for cut in self.cuts for j in cut.chunks}))

    def arguments(self, *chunks: Any) -> tuple[Span]:
        """Return the span from the values of its chunks."""
        from distclust.engine.dask_matrix import to_layout

        # Once a chunk, not once a block that touches it.
        values = {j: to_layout(chunk) for j, chunk in zip(self.chunks, chunks, strict=True)}
        return (Span(self.index, self.start, self.stop, _CutRows(self.blocks, self.cuts, values)),)


def _read_span(matrix: Matrix, index: int) -> tuple[Span]:
    rows = _ReadRows(matrix, _blocks_of(matrix, index))
    return (Span(index, *span_bounds(matrix, index), rows),)


def _pack_span(matrix: Matrix, index: int) -> tuple[Span]:
    (span,) = _read_span(matrix, index)
    held = (
        Rows(rows.index, rows.start, rows.stop, _HeldRows(rows.block, rows.keys)) for rows in span
    )
    return (Span(span.index, span.start, span.stop, tuple(held)),)


def _cut_span(matrix: DaskMatrix, index: int) -> _SpanCut:
    blocks = _blocks_of(matrix, index)
    cuts = tuple(matrix.cut(i) for i in blocks)
    return _SpanCut(index, *span_bounds(matrix, index), blocks, cuts)


def _number_of_span(matrix: Matrix, index: int) -> int:
    return index


def _note_span(span: Span, function: Callable[..., Any], notes: Notes, *shared: Any) -> Any:
    return notes.of_piece(span.index, lambda: function(replace(span, _notes=notes), *shared))


_SPANS = Pieces(_read_span, _pack_span, _cut_span, _number_of_span, _note_span, is_small=True)
