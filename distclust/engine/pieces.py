"""Map a function over pieces of a matrix, wherever the matrix lies and the work runs.

Blocks and spans of blocks are the pieces there are. What differs between them is how a
piece is read here, packed to be sent, or put together from the chunks of a Dask array;
all the rest is here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from distclust import events
from distclust.engine.notes import with_noted
from distclust.engine.sessions import current_client, local_threads
from distclust.engine.threads import map_in_order
from distclust.store import Matrix
from distclust.store.notes import Notes

Item = TypeVar("Item")
Result = TypeVar("Result")


class PieceCut(Protocol):
    """How a piece is put together from the chunks of a Dask array; sent to workers."""

    @property
    def chunks(self) -> tuple[int, ...]:
        """Numbers of the chunks it touches."""

    def arguments(self, *chunks: Any) -> tuple[Any, ...]:
        """Return what a function gets for the piece, from the values of these chunks."""


@dataclass(frozen=True)
class Pieces:
    """A way to take a matrix apart; every field is a module-level function.

    Attributes
    ----------
    read
        Arguments for the piece of that number, which may read rows when they are asked for.
    pack
        The same with all rows in memory, ready to be sent.
    cut
        How the piece of a `DaskMatrix` is put together.
    number
        What the piece of that number is known by in notes.
    call_and_note
        Calls a function of the piece and keeps what it returns; see `distclust.engine.notes`.
    is_small
        Whether results are small, so that a task may do several pieces of a store.
    """

    read: Callable[[Matrix, int], tuple[Any, ...]]
    pack: Callable[[Matrix, int], tuple[Any, ...]]
    cut: Callable[[Any, int], PieceCut]
    number: Callable[[Matrix, int], int]
    call_and_note: Callable[..., Any]
    is_small: bool = False


_SHARE_A_TASK = 0.5  # of what is left for a thread: large tasks first, small ones to end together


def map_pieces(
    pieces: Pieces,
    indices: Sequence[int],
    function: Callable[..., Result],
    matrix: Matrix,
    shared: tuple[Any, ...],
    stage: str,
    is_brief: bool = False,
    notes: Notes | None = None,
) -> Iterator[Result]:
    """Yield ``function(*piece, *shared)`` for the pieces of these numbers, in order."""
    check_travels(function)
    if notes is not None:
        call, given = pieces.call_and_note, (function, notes, *shared)

        def compute(todo: list[int]) -> Iterator[Result]:
            return map_pieces(pieces, todo, call, matrix, given, stage, is_brief)

        numbers = [pieces.number(matrix, i) for i in indices]
        yield from with_noted(notes, numbers, indices, compute)
        return
    client = current_client()
    if client is None:
        results = map_in_order(
            lambda i: function(*pieces.read(matrix, i), *shared), indices, local_threads()
        )
    else:
        grain = BRIEF if is_brief else LONG
        results = _map_on_client(client, pieces, indices, function, matrix, shared, stage, grain)
    with matrix.held():
        yield from reported(results, len(indices), stage)


def _map_on_client(
    client: Any,
    pieces: Pieces,
    indices: Sequence[int],
    function: Callable[..., Result],
    matrix: Matrix,
    shared: tuple[Any, ...],
    stage: str,
    grain: Grain,
) -> Iterator[Result]:
    from distclust.engine.dask_matrix import DaskMatrix
    from distclust.engine.on_client import map_batches, map_cuts, map_items

    name = stage or function.__name__
    if isinstance(matrix, DaskMatrix):
        cuts = [pieces.cut(matrix, i) for i in indices]
        return map_cuts(client, function, matrix, cuts, shared, name)
    if matrix.travels_by_name:
        grain = grain if pieces.is_small else ONE
        sent = (pieces.read, function, matrix, *shared)
        return map_batches(client, _read_and_call, indices, sent, name, grain)
    arguments = (pieces.pack(matrix, i) for i in indices)
    return map_items(client, function, arguments, shared, name)


@dataclass(frozen=True)
class Grain:
    """How many items of a map one task does: from `least`, at its end, to `most`."""

    least: int
    most: int


# A task costs milliseconds, of the worker and of everybody else. Where an item takes as long,
# it takes several to be worth a task; where it takes longer, the last tasks are best short.
BRIEF = Grain(4, 16)
LONG = Grain(1, 8)
ONE = Grain(1, 1)  # results may be as large as blocks


def guided_batches(items: Sequence[Item], n_threads: int, grain: Grain) -> Iterator[Sequence[Item]]:
    """Yield runs of `items` for one task each, shorter and shorter towards the end.

    There should be few tasks; but the last ones must be short, or a thread waits for another's
    long one (guided self-scheduling).
    """
    start = 0
    while start < len(items):
        n_left = len(items) - start
        fair = int(_SHARE_A_TASK * n_left / n_threads)
        size = min(max(fair, min(grain.least, -(-n_left // n_threads))), grain.most)
        yield items[start : start + size]
        start += size


def _read_and_call(
    indices: Sequence[int],
    read: Callable[[Matrix, int], tuple[Any, ...]],
    function: Callable[..., Result],
    matrix: Matrix,
    *shared: Any,
) -> list[Result]:
    """Read pieces where they are worked on; runs on a worker that sees the store."""
    return [function(*read(matrix, index), *shared) for index in indices]


def reported(results: Iterator[Result], total: int | None, stage: str) -> Iterator[Result]:
    """Yield the results, with a progress event for each if the stage has a name."""
    if not stage:
        yield from results
        return
    with events.stage(stage, total) as progress:
        for result in results:
            progress.advance()
            yield result


def check_travels(function: Callable[..., Any]) -> None:
    """Refuse a function that a worker could not import."""
    name = getattr(function, "__qualname__", "")
    assert "<" not in name, f"{name}: only module-level functions reach a worker by name"
