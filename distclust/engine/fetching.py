"""Results and events on their way back from workers, and what is done if workers are lost."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import queue
import time
import weakref
from concurrent.futures import CancelledError, Future
from typing import Any

from distclust import events
from distclust.engine.workers import asking_scheduler, list_threads
from distclust.errors import ClusterError, InputError

# Seconds without any worker after which waiting is given up; Dask would wait for ever.
# The environment variable DISTCLUST_NO_WORKERS_SECONDS overrules.
NO_WORKERS_SECONDS = 60.0

_QUIET_POLL_SECONDS = 5.0
_EVENT_POLL_SECONDS = 0.1
_LOOK_SECONDS = 1.0  # asking the scheduler for its workers takes time of everybody

_event_queues: weakref.WeakKeyDictionary[Any, queue.SimpleQueue[events.Event]] = (
    weakref.WeakKeyDictionary()
)


class Fetch:
    """The value of a task on its way here: waiting and fetching in one.

    The last worker may die between the two.
    """

    def __init__(self, client: Any, task: Any, worker: str | None = None) -> None:
        from distributed import Future as Hold

        self.client = client
        self.task = task  # holds on to it
        self.worker = worker  # where it is best done
        self._hold = Hold(task.key, client)  # that of who waits; `task` may be another's
        self.future: Future[Any] = asyncio.run_coroutine_threadsafe(
            _gather(client, self._hold), client.loop.asyncio_loop
        )

    def opened(self) -> Any:
        """Return the one value that the task sealed."""
        (value,) = self.result().open()
        return value

    def result(self) -> Any:
        """Return the task's value, delivering events while it is waited for.

        Raises
        ------
        ClusterError
            If the scheduler or all workers were lost, or the task took its workers with it.
        """
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        try:
            return _wait(self)
        except KilledWorker as error:
            raise ClusterError(
                f"task {self.task.key}",
                "a worker to finish it",
                "several that died of it",
                "See the workers' logs; most often they need more memory each.",
            ) from error
        except (CancelledError, CommClosedError) as error:
            raise ClusterError(
                f"task {self.task.key}",
                "the scheduler to keep it",
                "a cancelled task: the connection to the scheduler was lost",
                "Start the scheduler again and repeat.",
            ) from error
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Give up waiting."""
        self.future.cancel()
        self._hold.release()


async def _gather(client: Any, task: Any) -> Any:
    """Return the value of a task; who gives up waiting leaves the request alone.

    Dask makes one request of those that come at the same time. If it were cancelled, the others
    would get nothing, and if it had not been sent yet, no later one ever would.
    """
    request = asyncio.ensure_future(client.gather(task, asynchronous=True))
    request.add_done_callback(_look_at)
    return await asyncio.shield(request)


def _look_at(request: asyncio.Future[Any]) -> None:
    """Take note of how a request ended: it may be that nobody else does."""
    if not request.cancelled():
        request.exception()


def result_of(client: Any, task: Any) -> Any:
    """Return the value of a task; see `Fetch.result`."""
    return Fetch(client, task).result()


def _wait(fetch: Fetch) -> Any:
    """Return what is being fetched, delivering events and looking for workers meanwhile."""
    patience = Patience()
    next_look = time.monotonic() + _LOOK_SECONDS
    while True:
        try:
            return fetch.future.result(timeout=_poll_seconds())
        except TimeoutError as error:
            if fetch.future.done() and fetch.future.exception() is error:  # the function's own
                raise
            if time.monotonic() >= next_look:
                workers = set(list_threads(fetch.client))
                patience.check(bool(workers))
                if workers and fetch.worker not in workers | {None}:
                    _schedule_stranded(fetch.client)
                next_look = time.monotonic() + _LOOK_SECONDS
        finally:
            deliver_events(fetch.client)


def _schedule_stranded(client: Any) -> None:
    """Have tasks done that were to be done on workers that are gone.

    A task that prefers a worker goes to another when its own dies, but not if there is no
    other at that moment: Dask then keeps it until that very address comes back.
    """
    with asking_scheduler():
        client.run_on_scheduler(_recommend_stranded)


def _recommend_stranded(dask_scheduler: Any) -> None:
    stranded = [task for task in dask_scheduler.unrunnable if task.loose_restrictions]
    dask_scheduler.transitions(
        {task.key: "processing" for task in stranded}, f"stranded-{time.time()}"
    )


def _poll_seconds() -> float:
    return _EVENT_POLL_SECONDS if events.has_listeners() else _QUIET_POLL_SECONDS


def _patience_seconds() -> float:
    """Return how long to wait without any worker."""
    chosen = os.environ.get("DISTCLUST_NO_WORKERS_SECONDS")
    if chosen is None:
        return NO_WORKERS_SECONDS
    with contextlib.suppress(ValueError):
        if 0 < float(chosen) < math.inf:
            return float(chosen)
    raise InputError(
        "DISTCLUST_NO_WORKERS_SECONDS", "a number of seconds above 0", repr(chosen), "Unset it."
    )


class Patience:
    """Gives up when there has been no worker for too long; Dask would wait for ever."""

    def __init__(self) -> None:
        self._seconds = _patience_seconds()
        self._since: float | None = None

    def check(self, has_workers: bool) -> None:
        """Note whether there are workers now; raise if there were none for too long."""
        now = time.monotonic()
        if has_workers:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since > self._seconds:
            raise ClusterError(
                "the Dask cluster",
                "at least one worker",
                f"none for {self._seconds:g} s",
                "Start workers with `dask worker` and repeat.",
            )


# Events ---------------------------------------------------------------------------------


def topic_of(client: Any) -> str | None:
    """Return the topic that workers report on, or None while nobody listens."""
    if not events.has_listeners():
        return None
    topic = f"distclust-{client.id}"
    if client not in _event_queues:
        received: queue.SimpleQueue[events.Event] = queue.SimpleQueue()
        _event_queues[client] = received
        # Only queued in the client's own thread; listeners run in the waiting one, where
        # what they raise is seen.
        client.subscribe_topic(topic, lambda entry: received.put(events.Event.from_dict(entry[1])))
    return topic


def deliver_events(client: Any) -> None:
    """Hand on what workers reported since the last time."""
    received = _event_queues.get(client)
    while received is not None and not received.empty():
        events.deliver(received.get())
