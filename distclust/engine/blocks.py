"""Map a function over the blocks of a matrix, and combine what comes back in block order.

The same calls in the same order in process and on a Dask cluster, so the same bits come
out. Functions are module-level ones: they travel to workers by name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from distclust.engine.notes import notes_of_pass, with_noted
from distclust.engine.pieces import BRIEF, Pieces, check_travels, map_pieces, reported
from distclust.engine.sessions import current_client, local_threads
from distclust.engine.threads import count_of, map_in_order, one_blas_thread
from distclust.store import Block, Matrix, Profile, profile_block
from distclust.store.notes import Notes

if TYPE_CHECKING:
    from distclust.engine.dask_matrix import Cut, DaskMatrix

Result = TypeVar("Result")


def map_blocks(
    function: Callable[..., Result], matrix: Matrix, *shared: Any, stage: str = ""
) -> Iterator[Result]:
    """Yield ``function(block, start_row, *shared)`` for every block, in order.

    Parameters
    ----------
    function
        Module-level function of a block, the number of its first row and `shared`.
    matrix
        Read block by block; only blocks in work are in memory.
    shared
        Values that every call gets; sent to a cluster once, and opened once by each worker,
        whose calls share them: nobody writes into them.
    stage
        Name in progress events and on the dashboard; no events without it.

    Notes
    -----
    At most twice as many blocks as threads are in work or waiting. Nothing starts before
    the first value is asked for. A worker that dies is replaced by another: the values
    are the same.
    """
    indices = range(matrix.n_blocks)
    notes = notes_of_pass()
    yield from map_pieces(_BLOCKS, indices, function, matrix, shared, stage, notes=notes)


def reduce_blocks(
    function: Callable[..., Result],
    matrix: Matrix,
    *shared: Any,
    combine: Callable[[Result, Result], Result] = operator.add,
    stage: str = "",
) -> Result:
    """Return the values of `map_blocks`, combined one after another in block order."""
    notes = notes_of_pass()
    n_done: int = 0
    total: Any = None
    if notes is not None:
        n_done, total = notes.read_sum()
    indices = range(n_done, matrix.n_blocks)
    for part in map_pieces(_BLOCKS, indices, function, matrix, shared, stage):
        n_done, total = n_done + 1, part if n_done == 0 else combine(total, part)
        if notes is not None:
            notes.keep_sum(n_done, total)
    assert n_done, "a matrix has blocks"
    result: Result = total
    return result


def map_ordered(
    function: Callable[..., Result],
    items: Iterable[Any],
    *shared: Any,
    stage: str = "",
    is_brief: bool = False,
    is_noted: bool = False,
) -> Iterator[Result]:
    """Yield ``function(item, *shared)`` for every item, in order; see `map_blocks`.

    Items are taken as they are needed: they may come from a stream. Where `is_brief` says
    that each takes milliseconds, a cluster does several of a sequence in one task. Where
    `is_noted` says so, items of a sequence are pieces of a pass, see `distclust.engine.notes`.
    """
    check_travels(function)
    notes = notes_of_pass() if is_noted else None
    if notes is not None:
        pairs, given = list(enumerate(items)), (function, notes, *shared)

        def compute(todo: list[tuple[int, Any]]) -> Iterator[Result]:
            return map_ordered(_note_item, todo, *given, stage=stage, is_brief=is_brief)

        yield from with_noted(notes, range(len(pairs)), pairs, compute)
        return
    client = current_client()
    if client is None:
        results = map_in_order(lambda item: function(item, *shared), items, local_threads())
    elif is_brief and isinstance(items, Sequence):
        from distclust.engine.on_client import map_batches

        sent, name = (function, *shared), stage or function.__name__
        results = map_batches(client, _call_each, items, sent, name, BRIEF)
    else:
        from distclust.engine.on_client import map_items

        arguments = ((item,) for item in items)
        results = map_items(client, function, arguments, shared, stage or function.__name__)
    yield from reported(results, count_of(items, None), stage)


def _note_item(
    item: tuple[int, Any], function: Callable[..., Result], notes: Notes, *shared: Any
) -> Result:
    return notes.of_piece(item[0], lambda: function(item[1], *shared))


def _call_each(items: Sequence[Any], function: Callable[..., Result], *shared: Any) -> list[Result]:
    return [function(item, *shared) for item in items]


def map_placed(
    function: Callable[..., Result], numbers: Sequence[int], *shared: Any, stage: str = ""
) -> Iterator[Result]:
    """Yield ``function(some_numbers, *shared)`` for groups that have all `numbers` together.

    On a cluster there is a group for every worker, and a number goes to the same worker again:
    what the function keeps for it there, such as an opened part of an index, is found again.
    In process there is one group.
    """
    check_travels(function)
    client = current_client()
    if client is None:
        yield function(numbers, *shared)
        return
    from distclust.engine.on_client import map_groups

    yield from map_groups(client, function, numbers, shared, stage or function.__name__)


def run(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Return ``function(*args, **kwargs)``, computed here or by one task on one worker.

    The function may use `local_threads` threads. A `Matrix` over a Dask array arrives on
    the worker as one in memory, without passing through this process.
    """
    check_travels(function)
    client = current_client()
    if client is None:
        with one_blas_thread:
            return function(*args, **kwargs)
    from distclust.engine.on_client import run_on_client

    result: Result = run_on_client(client, function, args, kwargs)
    return result


def profile_matrix(matrix: Matrix, stage: str = "") -> Profile:
    """Return the facts about every column, from one pass over all blocks."""
    return reduce_blocks(_profile_rows, matrix, stage=stage)


def _profile_rows(block: Block, start: int) -> Profile:
    return profile_block(block)


def _read_block(matrix: Matrix, index: int) -> tuple[Block, int]:
    return matrix.block(index), matrix.block_bounds(index)[0]


def _cut_block(matrix: DaskMatrix, index: int) -> Cut:
    return matrix.cut(index)


def _first_row(matrix: Matrix, index: int) -> int:
    return matrix.block_bounds(index)[0]


def _note_block(
    block: Block, start: int, function: Callable[..., Any], notes: Notes, *shared: Any
) -> Any:
    return notes.of_piece(start, lambda: function(block, start, *shared))


_BLOCKS = Pieces(_read_block, _read_block, _cut_block, _first_row, _note_block)
