"""Where requests wait for their turn: few are worked on, some wait, the rest are refused."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from distclust.service.refusals import refusal

Result = TypeVar("Result")

_RETRY_AFTER = {"Retry-After": "1"}


class Desk:
    """Runs work in threads, so that the event loop stays free to answer others.

    Attributes
    ----------
    limit, timeout, threads
        As in `Settings`.
    n_inside
        Requests that wait or are worked on.
    """

    def __init__(self, limit: int, timeout: float, threads: int) -> None:
        self.limit = limit
        self.timeout = timeout
        self.threads = threads
        self.n_inside = 0
        self._turns = asyncio.Semaphore(threads)
        self._quick_turns = asyncio.Semaphore(1)
        self._pool = ThreadPoolExecutor(threads + 1, thread_name_prefix="distclust-service")

    async def run(
        self, function: Callable[..., Result], *args: Any, is_quick: bool = False
    ) -> Result:
        """Return ``function(*args)``, computed by a thread when it is this request's turn.

        Quick work has a thread of its own: who types does not wait for who asks. A thread
        cannot be interrupted: what takes too long is answered without it, and its place is
        free when it has ended.
        """
        if self.n_inside >= self.limit:
            got = f"{self.n_inside} already"
            expected = f"at most {self.limit} requests at a time"
            hint = "Try again in a second."
            raise refusal(503, "distclust", expected, got, hint, headers=_RETRY_AFTER)
        self.n_inside += 1
        try:
            async with asyncio.timeout(self.timeout) as clock:
                turns = self._quick_turns if is_quick else self._turns
                await turns.acquire()
                work = asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
                work.add_done_callback(functools.partial(_end, turns))
                return await asyncio.shield(work)
        except TimeoutError:
            if not clock.expired():
                raise
            expected = f"an answer within {self.timeout:g} seconds"
            hint = "Ask for less, or later."
            raise refusal(504, "distclust", expected, "none", hint) from None
        finally:
            self.n_inside -= 1

    def close(self) -> None:
        """Let the threads end."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _end(turns: asyncio.Semaphore, work: asyncio.Future[Any]) -> None:
    turns.release()
    if not work.cancelled():
        work.exception()  # looked at, so that nobody complains if the request has left
