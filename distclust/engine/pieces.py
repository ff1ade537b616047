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
from distclust.engine.sessions import current_client, local_threads
from distclust.engine.threads import map_in_order
from distclust.store import Matrix

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
    together
        How many pieces of a store one task may do, where there are many: results are small.
    """

    read: Callable[[Matrix, int], tuple[Any, ...]]
    pack: Callable[[Matrix, int], tuple[Any, ...]]
    cut: Callable[[Any, int], PieceCut]
    together: int = 1


_NAMES_AHEAD = 4  # numbers of pieces take no memory, and hide how long a message takes
_SHARE_A_TASK = 0.5  # of what is left for a thread: large tasks first, small ones to end together


def map_pieces(
    pieces: Pieces,
    indices: Sequence[int],
    function: Callable[..., Result],
    matrix: Matrix,
    shared: tuple[Any, ...],
    stage: str,
) -> Iterator[Result]:
    """Yield ``function(*piece, *shared)`` for the pieces of these numbers, in order."""
    check_travels(function)
    client = current_client()
    if client is None:
        results = map_in_order(
            lambda i: function(*pieces.read(matrix, i), *shared), indices, local_threads()
        )
    else:
        results = _map_on_client(client, pieces, indices, function, matrix, shared, stage)
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
) -> Iterator[Result]:
    from distclust.engine.dask_matrix import DaskMatrix
    from distclust.engine.on_client import map_cuts, map_items
    from distclust.engine.workers import count_threads

    name = stage or function.__name__
    if isinstance(matrix, DaskMatrix):
        cuts = [pieces.cut(matrix, i) for i in indices]
        return map_cuts(client, function, matrix, cuts, shared, name)
    if matrix.travels_by_name:
        sent = (pieces.read, function, matrix, *shared)
        batches = guided_batches(indices, max(1, count_threads(client)), pieces.together)
        items = ((batch,) for batch in batches)
        parts = map_items(
            client, _read_and_call, items, sent, name, _NAMES_AHEAD, weigh=lambda item: len(item[0])
        )
        return (result for part in parts for result in part)
    arguments = (pieces.pack(matrix, i) for i in indices)
    return map_items(client, function, arguments, shared, name)


def guided_batches(indices: Sequence[int], n_threads: int, most: int) -> Iterator[Sequence[int]]:
    """Yield runs of `indices` for one task each, shorter and shorter towards the end.

    A task costs milliseconds of the scheduler, so there should be few; but the last ones must
    be short, or a thread waits for another's long one (guided self-scheduling).
    """
    start = 0
    while start < len(indices):
        fair = int(_SHARE_A_TASK * (len(indices) - start) / n_threads)
        size = min(max(1, fair), most)
        yield indices[start : start + size]
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
