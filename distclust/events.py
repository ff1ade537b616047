"""Reports of long work: emit them anywhere, listen to them anywhere in the process.

A progress bar, a JSON-lines log and the report are listeners. Work that runs on a Dask
worker emits in the same way; the engine carries those events to the process that waits
for the result, where they reach the same listeners.

    with events.listen(print):
        with events.stage("merge", total=100) as progress:
            progress.advance(100)

Listeners are called in the thread that emits, so they are quick and thread-safe. What a
listener raises comes out of ``emit``: a broken listener is a visible error.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Metric: TypeAlias = float | int | str
Listener: TypeAlias = "Callable[[Event], object]"

_SECONDS_BETWEEN = 0.1


@dataclass(frozen=True)
class Event:
    """One report: how far a stage of a job has come.

    Attributes
    ----------
    job
        Whose work it is; empty when there is only one.
    stage
        Which part of the work.
    done, total
        Steps finished, and steps in all where that is known.
    metrics
        Figures worth seeing now, by name.
    time
        Seconds since 1970 by the clock of the process that emitted.
    """

    job: str
    stage: str
    done: int
    total: int | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    time: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the event as JSON values, for one line of a log."""
        return {
            "job": self.job,
            "stage": self.stage,
            "done": self.done,
            "total": self.total,
            "metrics": dict(self.metrics),
            "time": self.time,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Event:
        """Return the event that `as_dict` described; unknown names are ignored."""
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        return cls(**known)


# Replaced, never changed in place, so that `deliver` can walk it without the lock.
_listeners: tuple[Listener, ...] = ()
_lock = threading.Lock()
_redirected: contextvars.ContextVar[Listener | None] = contextvars.ContextVar(
    "distclust_events_redirected", default=None
)


def has_listeners() -> bool:
    """Whether an event emitted here and now would reach anybody."""
    return bool(_listeners) or _redirected.get() is not None


def emit(stage: str, done: int, total: int | None = None, job: str = "", **metrics: Metric) -> None:
    """Tell all listeners how far `stage` has come; costs next to nothing without any."""
    if has_listeners():
        deliver(Event(job, stage, done, total, metrics, time.time()))


def deliver(event: Event) -> None:
    """Hand a ready-made event to the listeners."""
    redirected = _redirected.get()
    if redirected is not None:
        redirected(event)
        return
    for listener in _listeners:
        listener(event)


@contextlib.contextmanager
def listen(callback: Listener) -> Iterator[None]:
    """Call `callback` with every event of this process while the context is open."""
    global _listeners
    with _lock:
        _listeners = (*_listeners, callback)
    try:
        yield
    finally:
        with _lock:
            position = max(i for i, known in enumerate(_listeners) if known == callback)
            _listeners = _listeners[:position] + _listeners[position + 1 :]


@contextlib.contextmanager
def redirect(callback: Listener) -> Iterator[None]:
    """Send the events of this context (thread) to `callback` instead of to listeners.

    The engine uses it in workers, whose process may be shared by several jobs and may
    even be the process that listens.
    """
    token = _redirected.set(callback)
    try:
        yield
    finally:
        _redirected.reset(token)


class Progress:
    """Counts the steps of one stage and emits at most about ten times a second.

    The first and the last state are always emitted.
    """

    def __init__(self, name: str, total: int | None = None, job: str = "") -> None:
        self.name = name
        self.total = total
        self.job = job
        self.done = 0
        self._metrics: dict[str, Metric] = {}
        self._next_time = 0.0
        self._unsaid = True

    def advance(self, n: int = 1, **metrics: Metric) -> None:
        """Note that `n` more steps are done; metrics keep their value until replaced."""
        self.done += n
        self._metrics.update(metrics)
        self._unsaid = True
        if time.monotonic() >= self._next_time:
            self.flush()

    def flush(self) -> None:
        """Emit the present state unless it has been emitted already."""
        if self._unsaid:
            self._unsaid = False
            self._next_time = time.monotonic() + _SECONDS_BETWEEN
            emit(self.name, self.done, self.total, self.job, **self._metrics)


@contextlib.contextmanager
def stage(name: str, total: int | None = None, job: str = "") -> Iterator[Progress]:
    """Report the progress of one stage: ``with stage("merge", n) as progress``.

    Work that fails emits no last state: the stage did not end.
    """
    progress = Progress(name, total, job)
    progress.flush()
    yield progress
    progress.flush()
