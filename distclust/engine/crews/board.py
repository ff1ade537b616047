"""The board: who runs what, kept on the scheduler for any client to read.

Berths and supervisors log events; a plugin of the scheduler gathers them. The board also
passes word that a worker is to be retired: Dask itself never retires one that holds actors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distclust.engine.sessions import current_client
from distclust.engine.workers import asking_scheduler
from distclust.errors import ClusterError, InputError

TOPIC = "distclust-crews"
DRAIN_TOPIC = "distclust-drain"
PLUGIN = "distclust-board"
_POLL_SECONDS = 0.2


def read_board() -> list[dict[str, Any]]:
    """Return the crews that the scheduler of the current client knows of, the newest first.

    Returns
    -------
    For each crew its ``id`` and ``name``, the ``run`` that it saves under (or None), ``state``
    (``running``, ``done``, ``stopped``, ``failed``; ``lost``: whoever led it is gone),
    ``began`` and ``seen`` (seconds since 1970 on the scheduler's clock), ``silent`` (seconds
    since the last word of it), ``checkpoint`` (the position that all members are saved at or
    beyond, or None), ``restarts``, ``workers``, and ``members``: for each ``member``,
    ``label``, ``worker`` (None: on its way), ``position``, ``checkpoint``, ``restarts`` and
    ``metrics``.
    """
    client = _client("read_board")
    with _asking_board():
        crews: list[dict[str, Any]] = client.run_on_scheduler(_read)
    return crews


def drain_worker(address: str, timeout: float = 60.0) -> None:
    """Have all crews leave a worker, then retire it.

    Raises
    ------
    InputError
        If the scheduler knows no such worker.
    ClusterError
        If crews did not leave in time.
    """
    client = _client("drain_worker")
    with _asking_board():
        known = client.run_on_scheduler(_ask_to_drain, address=address)
        if not known:
            hint = "`distclust crews` shows who works where."
            raise InputError("drain_worker", "the address of a worker", repr(address), hint)
        try:
            _await_empty(client, address, timeout)
        except BaseException:
            client.run_on_scheduler(_ask_to_stay, address=address)  # others may use it again
            raise
        client.retire_workers([address])


def _await_empty(client: Any, address: str, timeout: float) -> None:
    end = time.monotonic() + timeout
    while client.run_on_scheduler(_holds_actors, address=address):
        if time.monotonic() > end:
            got = "members that are still there"
            hint = "Repeat; members leave when they are saved after their next order."
            raise ClusterError(address, f"all crews to leave within {timeout:g} s", got, hint)
        time.sleep(_POLL_SECONDS)


def install_board(client: Any) -> None:
    """Make sure the scheduler keeps a board."""
    from distclust.engine.crews.board_plugin import Board

    with asking_scheduler():
        client.register_plugin(Board(), name=PLUGIN)


def look_at_scheduler(dask_scheduler: Any) -> dict[str, Any]:
    """Return what supervisors look at again and again; runs on the scheduler, or beside it."""
    board = dask_scheduler.plugins.get(PLUGIN)
    return {
        "workers": {
            address: (worker.last_seen, worker.nthreads, worker.memory_limit)
            for address, worker in list(dask_scheduler.workers.items())
            if worker.status.name in {"running", "paused"}
        },
        "draining": sorted(board.draining) if board else [],
    }


def _client(where: str) -> Any:
    client = current_client()
    if client is None:
        hint = "Use distclust.connect('tcp://host:8786')."
        raise ClusterError(where, "a Dask cluster", "none", hint)
    return client


@contextmanager
def _asking_board() -> Iterator[None]:
    """Say in a sentence that the scheduler cannot be asked."""
    try:
        with asking_scheduler():
            yield
    except (ImportError, AttributeError) as error:  # what runs there is looked up by name
        hint = "Install the same version on client, scheduler and workers."
        raise ClusterError("the Dask scheduler", "distclust there, too", error, hint) from error


# What runs on the scheduler -------------------------------------------------------------


def _read(dask_scheduler: Any) -> list[dict[str, Any]]:
    board = dask_scheduler.plugins.get(PLUGIN)
    crews = board.crews if board else {}
    now = time.time()
    return [_summary(name, crew, now) for name, crew in reversed(crews.items())]


def _summary(name: str, crew: dict[str, Any], now: float) -> dict[str, Any]:
    members = [
        {key: value for key, value in facts.items() if key != "incarnation"}
        for _, facts in sorted(crew["members"].items())
    ]
    checkpoints = [member["checkpoint"] for member in members]
    return {
        "id": name,
        **{key: crew[key] for key in ("name", "run", "state", "began", "seen")},
        "silent": now - crew["seen"],
        "checkpoint": None if None in checkpoints else min(checkpoints, default=None),
        "restarts": sum(member["restarts"] for member in members),
        "workers": sorted({member["worker"] for member in members if member["worker"]}),
        "members": members,
    }


def _ask_to_drain(dask_scheduler: Any, address: str) -> bool:
    if address not in dask_scheduler.workers:
        return False
    board = dask_scheduler.plugins.get(PLUGIN)
    if board:
        board.draining.add(address)
    dask_scheduler.log_event(DRAIN_TOPIC, {"worker": address})  # for crews that rest
    return True


def _ask_to_stay(dask_scheduler: Any, address: str) -> None:
    board = dask_scheduler.plugins.get(PLUGIN)
    if board:
        board.draining.discard(address)


def _holds_actors(dask_scheduler: Any, address: str) -> bool:
    worker = dask_scheduler.workers.get(address)
    return worker is not None and bool(worker.actors)
