"""The verb that shows crews, and the one that has them leave a worker."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from distclust.commands.common import Common, console, finite, print_json, say_plan
from distclust.errors import InputError

CONNECT_SECONDS = 10.0

Show = Callable[[list[dict[str, Any]]], None]


@dataclass(frozen=True)
class Looking:
    """What is shown of crews.

    Attributes
    ----------
    members
        Whether each member has a line.
    watch
        Whether to go on until the user has seen enough.
    every
        Seconds between two looks.
    """

    members: bool = False
    watch: bool = False
    every: float = 1.0


def show(scheduler: str | None, looking: Looking, common: Common) -> None:
    """Show what crews do on a scheduler, once or until Ctrl-C."""
    address = _address(scheduler)
    if _no_plan_needed("crews", common):
        return
    from distclust.engine import read_board
    from distclust.engine.sessions import look_at

    with look_at(address, CONNECT_SECONDS):
        if looking.watch:
            _watch(read_board, address, looking, common)
        elif common.as_json:
            print_json(_document(address, read_board()))
        else:
            from distclust.report.crews import print_crews

            print_crews(console(), address, read_board(), members=looking.members)


def drain(address: str, scheduler: str | None, timeout: float, common: Common) -> None:
    """Have crews leave a worker, and retire it."""
    place = _address(scheduler)
    if _no_plan_needed("crews drain", common):
        return
    from distclust.engine import drain_worker
    from distclust.engine.sessions import look_at

    with look_at(place, CONNECT_SECONDS):
        drain_worker(address, timeout)
    if common.as_json:
        print_json({"command": "crews drain", "scheduler": place, "worker": address})
    elif not common.quiet:
        console().out(f"All crews left {address}, and it was retired.", highlight=False)


def _address(scheduler: str | None) -> str:
    if scheduler is None or "://" not in scheduler:
        got = "none" if scheduler is None else repr(scheduler)
        hint = "Name it, such as tcp://10.0.0.5:8786."
        raise InputError("crews: --scheduler", "the address of a Dask scheduler", got, hint)
    return scheduler


def _document(address: str, crews: list[dict[str, Any]]) -> dict[str, Any]:
    return {"command": "crews", "scheduler": address, "time": time.time(), "crews": crews}


def _no_plan_needed(command: str, common: Common) -> bool:
    if not common.plan:
        return False
    from distclust.report.plan import Plan

    say_plan(Plan(command, 0, 0, 0, 0, 0, 2.0), common)
    return True


# ---- watching ----------------------------------------------------------------------------


def _watch(
    look: Callable[[], list[dict[str, Any]]], address: str, looking: Looking, common: Common
) -> None:
    """Look again and again; Ctrl-C is how that ends, and no failure."""
    ends = (contextlib.suppress(KeyboardInterrupt), _reader_may_leave())
    with ends[0], ends[1], _display(address, looking, common) as display:
        while True:
            display(look())
            time.sleep(looking.every)


@contextlib.contextmanager
def _display(address: str, looking: Looking, common: Common) -> Iterator[Show]:
    terminal = console()
    if common.as_json:
        yield lambda crews: print(json.dumps(finite(_document(address, crews))), flush=True)
    elif not terminal.is_terminal:
        yield _Lines(address, looking.members)
    else:
        from rich.live import Live

        from distclust.report.crews import draw_crews

        with Live(console=terminal, auto_refresh=False) as live:
            yield lambda crews: live.update(
                draw_crews(address, crews, members=looking.members), refresh=True
            )


class _Lines:
    """Prints a line when there is news: logs are read afterwards."""

    def __init__(self, address: str, members: bool) -> None:
        self._address, self._members = address, members
        self._printed: set[str] | None = None

    def __call__(self, crews: list[dict[str, Any]]) -> None:
        from distclust.report.crews import NO_CREWS, crew_lines

        lines = list(crew_lines(crews, members=self._members))
        if self._printed is None and not lines:
            print(NO_CREWS.format(self._address), flush=True)
        for line in lines:
            if line not in (self._printed or ()):
                print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)
        self._printed = set(lines)


@contextlib.contextmanager
def _reader_may_leave() -> Iterator[None]:
    """Take it as an end, too, that nobody reads any more (``| head``)."""
    try:
        yield
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):  # nothing more is written at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
