"""Listeners that show how far long work has come.

Long work reports events (:mod:`distclust.events`); what is here turns them into a bar on a
terminal, plain lines in a log, one line that renews itself in a notebook, or JSON lines for
machines. Nothing here knows what the work is, and nothing the work does depends on who
listens. Everything goes to standard error unless a file is given: standard output belongs
to results.
"""

from __future__ import annotations

import html
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from distclust.errors import InputError
from distclust.events import Event, listen
from distclust.report.chains import Board, note_of
from distclust.report.pace import Start
from distclust.report.pace import left as _left

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Mode = Literal["auto", "bar", "lines", "notebook", "off"]
Key = tuple[str, str]  # (job, stage)


class Listener(Protocol):
    """What :func:`progress` needs of a display."""

    def __call__(self, event: Event) -> None:
        """Take one event; called from several threads."""

    def close(self) -> None:
        """Show what is still unshown and give the screen back."""


@contextmanager
def progress(
    mode: Mode = "auto", *, file: TextIO | None = None, after: float = 0.0
) -> Iterator[None]:
    """Show the progress of all work inside the ``with`` block.

    Parameters
    ----------
    mode
        ``"bar"`` draws bars on a terminal, ``"lines"`` prints a plain line now and then
        (logs, containers), ``"notebook"`` renews one line under a notebook cell, ``"off"``
        shows nothing. ``"auto"`` chooses by where `file` leads.
    file
        Where to write; standard error when left out.
    after
        Show nothing of work that is done in fewer seconds.

    Examples
    --------
    >>> import distclust
    >>> with distclust.progress("off"):
    ...     pass
    """
    _check(mode)
    file = sys.stderr if file is None else file
    mode = _choose(file) if mode == "auto" else mode
    if mode == "off":
        yield
        return
    listener = Patient(mode, file, after) if after > 0.0 else _open(mode, file)
    try:
        with listen(listener):
            yield
    finally:
        listener.close()


@contextmanager
def json_lines(file: TextIO) -> Iterator[None]:
    """Write every event inside the ``with`` block to `file`, one JSON object a line."""
    lock = threading.Lock()

    def write(event: Event) -> None:
        line = json.dumps(_json_values(event), ensure_ascii=False, allow_nan=False) + "\n"
        with lock:
            file.write(line)
            file.flush()

    with listen(write):
        yield


def _json_values(event: Event) -> dict[str, Any]:
    """JSON knows no infinities, which R-hat may be: they become null."""
    values = event.as_dict()
    values["metrics"] = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in event.metrics.items()
    }
    return values


def _choose(file: TextIO) -> Mode:
    if _in_notebook():
        return "notebook"
    is_screen = file.isatty() and os.environ.get("TERM") != "dumb"
    return "bar" if is_screen else "lines"


def _in_notebook() -> bool:
    # Looked up, not imported: without IPython loaded this cannot be a notebook.
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _open(mode: Mode, file: TextIO) -> Listener:
    kinds: dict[str, type[Bars] | type[Lines]] = {"bar": Bars, "lines": Lines}
    return kinds[mode](file) if mode in kinds else NotebookLine()


def _check(mode: str) -> None:
    modes = ("auto", "bar", "lines", "notebook", "off")
    if mode not in modes:
        expected = f"one of {', '.join(map(repr, modes))}"
        raise InputError("progress(mode)", expected, repr(mode), "Choose one of them.")


class Patient:
    """Another display, opened only once work has lasted some seconds."""

    def __init__(self, mode: Mode, file: TextIO, seconds: float) -> None:
        self._mode = mode
        self._file = file
        self._from = time.monotonic() + seconds
        self._display: Listener | None = None
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Pass an event on if it is late enough."""
        if time.monotonic() < self._from:
            return
        with self._lock:
            if self._display is None:
                self._display = _open(self._mode, self._file)
        self._display(event)

    def close(self) -> None:
        """Close the display if there is one."""
        if self._display is not None:
            self._display.close()


class Bars:
    """One bar a stage, drawn with rich; finished stages stay above the running ones.

    Chains are a table below the bars.
    """

    def __init__(self, file: TextIO) -> None:
        self._board = Board()
        self._progress = _rich_progress(file, self._board)
        self._tasks: dict[Key, TaskID] = {}
        self._started: dict[Key, Start] = {}
        self._lock = threading.Lock()
        self._progress.start()

    def __call__(self, event: Event) -> None:
        """Draw one event."""
        if self._board.take(event):
            return
        key, now = (event.job, event.stage), time.monotonic()
        with self._lock:
            if key not in self._tasks:
                self._tasks[key] = self._progress.add_task(
                    event.stage, total=event.total, note="", left=""
                )
            if event.done == 0 or key not in self._started:
                self._started[key] = now, event.done
            left = _left(event, now, self._started[key])
        self._progress.update(
            self._tasks[key],
            completed=event.done,
            total=event.total,
            note=_note(event),
            left=left,
        )

    def close(self) -> None:
        """Stop drawing and leave the last state on the screen."""
        self._progress.stop()


def _rich_progress(file: TextIO, board: Board) -> Progress:
    from rich import progress as rich_progress
    from rich.console import Console, RenderableType

    class BarsAndBoard(rich_progress.Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            if self.tasks:
                yield self.make_tasks_table(self.tasks)
            yield from board.renderables()

    return BarsAndBoard(
        rich_progress.TextColumn("{task.description:<24}", markup=False),
        rich_progress.BarColumn(bar_width=28),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TextColumn("{task.fields[left]}", style="dim", markup=False),
        rich_progress.TextColumn("{task.fields[note]}", style="dim", markup=False),
        console=Console(file=file),
    )


class Lines:
    """A plain line every few seconds while a stage lasts, and one when it ends.

    A stage that runs again (a search that is repeated, a second pass) does not say again
    that it ended, unless it takes long enough to be worth a line. Chains share a line.
    """

    interval = 5.0  # seconds between two lines of one stage

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._board = Board()
        self._started: dict[Key, Start] = {}
        self._shown: dict[Key, float] = {}
        self._ended: set[Key] = set()
        self._unfinished: dict[Key, Event] = {}
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Print a line for the event if its stage is due for one."""
        if note := note_of(event):
            print(f"distclust: {note}", file=self._file, flush=True)
        seen = self._board.merged(event.job) if self._board.take(event) else event
        if seen is not None:
            self._take(seen)

    def _take(self, event: Event) -> None:
        key, now = (event.job, event.stage), time.monotonic()
        with self._lock:
            if event.done == 0 or key not in self._started:
                self._started[key] = now, event.done
                self._shown.setdefault(key, now)
            has_ended = event.done == event.total
            is_news = has_ended and key not in self._ended
            self._unfinished[key] = event
            if is_news or now - self._shown[key] >= self.interval:
                self._print(key, event, now)
            if has_ended:
                self._ended.add(key)
                self._unfinished.pop(key, None)

    def close(self) -> None:
        """Print the last state of stages that did not end."""
        with self._lock:
            for key, event in list(self._unfinished.items()):
                self._print(key, event, time.monotonic(), is_last=True)

    def _print(self, key: Key, event: Event, now: float, *, is_last: bool = False) -> None:
        self._shown[key] = now
        self._unfinished.pop(key, None)
        start = self._started[key]
        parts = [event.stage, _amount(event), f"{now - start[0]:.1f} s"]
        parts += ["" if is_last else _left(event, now, start), _note(event)]
        print("distclust:", "  ".join(part for part in parts if part), file=self._file, flush=True)


class NotebookLine:
    """One display under the cell, renewed in place; needs no widgets."""

    interval = 0.2

    def __init__(self) -> None:
        self._display = sys.modules["IPython"].display
        self._board = Board()
        self._handle: Any = None
        self._events: dict[Key, Event] = {}
        self._shown = 0.0
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Renew the display, a few times a second at most."""
        seen = self._board.merged(event.job) if self._board.take(event) else event
        if seen is None:
            return
        event = seen
        with self._lock:
            self._events[event.job, event.stage] = event
            if event.done == event.total or time.monotonic() - self._shown >= self.interval:
                self._draw()

    def close(self) -> None:
        """Draw the last state."""
        with self._lock:
            if self._events:
                self._draw()

    def _draw(self) -> None:
        self._shown = time.monotonic()
        page = self._display.HTML("".join(_notebook_row(event) for event in self._events.values()))
        if self._handle is None:
            self._handle = self._display.display(page, display_id=True)
        else:
            self._handle.update(page)


def _notebook_row(event: Event) -> str:
    known = f' value="{event.done}" max="{event.total}"' if event.total else ""
    text = "  ".join(part for part in (event.stage, _amount(event), _note(event)) if part)
    return f"<div><progress{known}></progress> {html.escape(text)}</div>"


def _amount(event: Event) -> str:
    if event.total is None:
        return f"{event.done:,}" if event.done else ""
    percent = 100 * event.done // event.total if event.total else 100
    return f"{event.done:,} of {event.total:,} ({percent} %)"


def _note(event: Event) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in event.metrics.items())


def _short(value: float | int | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
