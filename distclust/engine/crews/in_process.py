"""A crew in this process: one berth, nothing to lose."""

from __future__ import annotations

import contextvars
import queue
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from distclust.engine.crews.berth import Berth, Vault
from distclust.engine.crews.hands import Answer, Hands
from distclust.engine.crews.role import Role, Room
from distclust.engine.sessions import local_threads

HERE = "here"

_SECONDS = 0.1


class LocalHands(Hands):
    """Calls a berth from threads, so that an interrupt is heard at once."""

    def __init__(self) -> None:
        self._threads = local_threads()
        self._berth = Berth(self._threads)
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="distclust-crew")
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="distclust-save")
        self._opening: Future[None] | None = None

    def open(self, role: Role[Any], vault: Vault | None, n_members: int) -> None:
        """Open the role here, without waiting: that is done when somebody asks for berths."""
        self._await_berth()
        context = contextvars.copy_context()
        self._opening = self._pool.submit(context.run, self._berth.open, role, Room(), vault)

    def berths(self) -> Mapping[str, int]:
        """Return the one berth."""
        self._await_berth()
        return {HERE: self._threads}

    def _await_berth(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.result()

    def call(self, number: int, berth: str, method: str, *args: Any, **options: Any) -> None:
        """Call the berth from another thread."""
        context = contextvars.copy_context()
        function = getattr(self._berth, method)
        # The last save does not queue behind work that nobody waits for any more.
        pool = self._saver if method == "save" else self._pool
        future = pool.submit(context.run, lambda: function(*args, **options))
        future.add_done_callback(lambda done: self._answers.put(_answer(number, done)))

    def wait(self) -> Answer | None:
        """Return the next answer."""
        try:
            return self._answers.get(timeout=_SECONDS)
        except queue.Empty:
            return None

    def close(self) -> None:
        """End the threads when they are done with what they do."""
        for pool in (self._pool, self._saver):
            pool.shutdown(wait=False, cancel_futures=True)


def _answer(number: int, done: Future[Any]) -> Answer:
    if done.cancelled():
        return Answer(number, error=RuntimeError("the call was cancelled"))
    error = done.exception()
    return Answer(number, error=error) if error else Answer(number, value=done.result())
