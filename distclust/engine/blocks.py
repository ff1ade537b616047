"""Map a function over the blocks of a matrix, and combine what comes back in block order.

The same calls in the same order in process and on a Dask cluster, so the same bits come
out. Functions are module-level ones: they travel to workers by name.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from distclust import events
from distclust.engine.sessions import current_client, local_threads
from distclust.engine.threads import count_of, map_in_order, one_blas_thread
from distclust.store import Block, Matrix, Profile, profile_block

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
        Values that every call gets; sent to a cluster once.
    stage
        Name in progress events and on the dashboard; no events without it.

    Notes
    -----
    At most twice as many blocks as threads are in work or waiting. Nothing starts before
    the first value is asked for. A worker that dies is replaced by another: the values
    are the same.
    """
    _check_travels(function)
    n_blocks = matrix.n_blocks
    client = current_client()
    if client is None:
        results = map_in_order(
            lambda i: function(matrix.block(i), matrix.block_bounds(i)[0], *shared),
            range(n_blocks),
            local_threads(),
        )
    else:
        results = _map_on_client(client, function, matrix, shared, stage)
    with matrix.held():
        yield from _reported(results, n_blocks, stage)


def reduce_blocks(
    function: Callable[..., Result],
    matrix: Matrix,
    *shared: Any,
    combine: Callable[[Result, Result], Result] = operator.add,
    stage: str = "",
) -> Result:
    """Return the values of `map_blocks`, combined one after another in block order."""
    return functools.reduce(combine, map_blocks(function, matrix, *shared, stage=stage))


def map_ordered(
    function: Callable[..., Result], items: Iterable[Any], *shared: Any, stage: str = ""
) -> Iterator[Result]:
    """Yield ``function(item, *shared)`` for every item, in order; see `map_blocks`.

    Items are taken as they are needed: they may come from a stream.
    """
    _check_travels(function)
    client = current_client()
    if client is None:
        results = map_in_order(lambda item: function(item, *shared), items, local_threads())
    else:
        from distclust.engine.on_client import map_items

        arguments = ((item,) for item in items)
        results = map_items(client, function, arguments, shared, stage or function.__name__)
    yield from _reported(results, count_of(items, None), stage)


def run(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Return ``function(*args, **kwargs)``, computed here or by one task on one worker.

    The function may use `local_threads` threads. A `Matrix` over a Dask array arrives on
    the worker as one in memory, without passing through this process.
    """
    _check_travels(function)
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


def _map_on_client(
    client: Any,
    function: Callable[..., Result],
    matrix: Matrix,
    shared: tuple[Any, ...],
    stage: str,
) -> Iterator[Result]:
    from distclust.engine.dask_matrix import DaskMatrix
    from distclust.engine.on_client import map_dask_blocks, map_items

    name = stage or function.__name__
    if isinstance(matrix, DaskMatrix):
        return map_dask_blocks(client, function, matrix, shared, name)
    indices = range(matrix.n_blocks)
    if matrix.travels_by_name:
        sent = (function, matrix, *shared)
        return map_items(client, _read_and_call, ((i,) for i in indices), sent, name)
    arguments = ((matrix.block(i), matrix.block_bounds(i)[0]) for i in indices)
    return map_items(client, function, arguments, shared, name)


def _read_and_call(
    index: int, function: Callable[..., Result], matrix: Matrix, *shared: Any
) -> Result:
    """Read a block where it is worked on; runs on a worker that sees the store."""
    return function(matrix.block(index), matrix.block_bounds(index)[0], *shared)


def _reported(results: Iterator[Result], total: int | None, stage: str) -> Iterator[Result]:
    if not stage:
        yield from results
        return
    with events.stage(stage, total) as progress:
        for result in results:
            progress.advance()
            yield result


def _check_travels(function: Callable[..., Any]) -> None:
    name = getattr(function, "__qualname__", "")
    assert "<" not in name, f"{name}: only module-level functions reach a worker by name"
