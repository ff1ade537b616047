"""The Dask side of the engine: tasks out, results and events back, in order.

Data of the caller travel inside the tasks, not by ``scatter``: a task that lost its
worker is then run again by Dask from what the scheduler holds. What all tasks of a map
share is one task of its own, sent once.

Everything is sealed before Dask sees it, arguments and results; see
`distclust.engine.sealing`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import math
import os
import queue
import re
import threading
import time
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from distclust import events
from distclust.engine.dask_matrix import DaskMatrix, hold_in_memory
from distclust.engine.pieces import Grain, PieceCut, guided_batches
from distclust.engine.sealing import Sealed, seal
from distclust.engine.sessions import is_started_here
from distclust.engine.threads import grant_threads, one_blas_thread
from distclust.engine.workers import asking_scheduler, list_threads
from distclust.errors import ClusterError, InputError

# Seconds without any worker after which waiting is given up; Dask would wait for ever.
# The environment variable DISTCLUST_NO_WORKERS_SECONDS overrules.
NO_WORKERS_SECONDS = 60.0

_QUIET_POLL_SECONDS = 5.0
_EVENT_POLL_SECONDS = 0.1
_LOOK_SECONDS = 1.0  # asking the scheduler for its workers takes time of everybody
_BALANCE_SECONDS = 2.0  # after so long somebody looks which workers there are
_AHEAD = 2  # tasks in work or waiting, for each thread
_BATCHES_AHEAD = 4  # what they carry takes little memory; it hides how long a message takes
_LARGE_TASKS = {"distributed.admin.large-graph-warning-threshold": "1 TB"}

_event_queues: weakref.WeakKeyDictionary[Any, queue.SimpleQueue[events.Event]] = (
    weakref.WeakKeyDictionary()
)


class _Shared:
    """What all tasks of a map share, opened by the first that needs it on each worker.

    A worker hands the same object to every task and drops it when the map is over: what was
    opened lives as long, and needs no other place to be kept. It travels unopened.
    """

    def __init__(self, sealed: Sealed) -> None:
        self._sealed = sealed
        self._lock = threading.Lock()
        self._opened: tuple[Any, ...] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Shared, (self._sealed,)

    def open(self) -> tuple[Any, ...]:
        with self._lock:
            if self._opened is None:
                self._opened = tuple(self._sealed.open())
            return self._opened


@dataclass(frozen=True)
class _Slot:
    """Stands in for an argument that reaches the worker by another road."""

    index: int


@dataclass(frozen=True)
class _Order:
    """What a worker is told beside the data: the function, and who listens."""

    function: Callable[..., Any]
    topic: str | None
    threads: int | None = 1  # None: all that the worker has

    def call(self, *args: Any, **kwargs: Any) -> Sealed:
        from distributed import get_worker

        worker = get_worker()
        with contextlib.ExitStack() as stack:
            stack.enter_context(grant_threads(self.threads or worker.state.nthreads))
            stack.enter_context(one_blas_thread)
            if self.topic is not None:
                topic = self.topic
                send = lambda event: worker.log_event(topic, event.as_dict())  # noqa: E731
                stack.enter_context(events.redirect(send))
            return seal(self.function(*args, **kwargs))


def map_items(
    client: Any,
    function: Callable[..., Any],
    items: Iterable[tuple[Any, ...]],
    shared: tuple[Any, ...],
    name: str,
) -> Iterator[Any]:
    """Yield ``function(*item, *shared)`` in order."""
    weighed = ((item, 1) for item in items)
    return _map_weighed(client, function, weighed, shared, name, _Balance(client), _AHEAD)


def map_batches(
    client: Any,
    function: Callable[..., list[Any]],
    items: Sequence[Any],
    shared: tuple[Any, ...],
    name: str,
    grain: Grain,
) -> Iterator[Any]:
    """Yield what ``function(some_items, *shared)`` lists, in order, for runs of the items."""
    balance = _Balance(client)
    batches = guided_batches(items, balance.n_threads, grain)
    weighed = (((batch,), len(batch)) for batch in batches)
    parts = _map_weighed(client, function, weighed, shared, name, balance, _BATCHES_AHEAD)
    return (value for part in parts for value in part)


def _map_weighed(
    client: Any,
    function: Callable[..., Any],
    weighed: Iterable[tuple[tuple[Any, ...], int]],
    shared: tuple[Any, ...],
    name: str,
    balance: _Balance,
    ahead: int,
) -> Iterator[Any]:
    """Yield results in order, `ahead` times the cluster's threads ahead.

    Workers get equal shares of the items' weights.
    """
    order = _Order(function, _topic(client))
    prefix = _task_prefix(name)
    common = _submit(client, _hold, f"{prefix}-shared", _Shared(seal(*shared)))
    limit = ahead * balance.n_threads
    pending: deque[_Fetch] = deque()
    try:
        for i, (item, weight) in enumerate(weighed):
            if len(pending) == limit:
                yield _opened(client, pending.popleft())
            sealed = seal(order, item)
            worker = balance.choose(weight)
            task = _submit(client, _call_item, f"{prefix}-{i}", sealed, common, worker=worker)
            fetch = _Fetch(client, task, worker)  # results come while others are worked on
            fetch.future.add_done_callback(functools.partial(balance.note_end, worker, weight))
            pending.append(fetch)
        while pending:
            yield _opened(client, pending.popleft())
    finally:
        for fetch in pending:
            fetch.cancel()


def map_groups(
    client: Any,
    function: Callable[..., Any],
    numbers: Sequence[int],
    shared: tuple[Any, ...],
    name: str,
) -> Iterator[Any]:
    """Yield ``function(group, *shared)`` for one group of `numbers` a worker.

    A number goes to the same worker as long as the workers are the same; when one comes or
    goes, only its share moves (rendezvous hashing).
    """
    workers = sorted(set(list_threads(client)))
    groups: dict[str | None, list[int]] = {}
    for number in numbers:
        owner = max(workers, key=lambda w: _affinity(w, number), default=None)
        groups.setdefault(owner, []).append(number)
    order, prefix = _Order(function, _topic(client)), _task_prefix(name)
    sealed_shared = _Shared(seal(*shared))
    fetches = []
    for i, (owner, group) in enumerate(groups.items()):
        sealed = seal(order, (group,))
        task = _submit(client, _call_item, f"{prefix}-{i}", sealed, sealed_shared, worker=owner)
        fetches.append(_Fetch(client, task, owner))
    try:
        for fetch in fetches:
            yield _opened(client, fetch)
    finally:
        for fetch in fetches:
            fetch.cancel()


def _affinity(worker: str, number: int) -> bytes:
    return hashlib.blake2b(f"{worker}/{number}".encode(), digest_size=8).digest()


class _Balance:
    """Gives every task to the worker with the least to do for each of its threads.

    Dask would send short tasks to where the shared value lies, all of them to one worker. A
    worker that is gone is no harm: Dask then chooses another.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._look()
        self._to_do: Counter[str] = Counter()  # what was given out and is not back
        self._lock = threading.Lock()  # results arrive in the client's own thread

    @property
    def n_threads(self) -> int:
        """Threads of all workers when somebody last looked, at least 1."""
        return max(1, self._threads.total())

    def _look(self) -> None:
        self._looked = time.monotonic()
        self._threads = Counter(list_threads(self._client))

    def choose(self, weight: int) -> str | None:
        """Return the worker for a task of that weight, or None while there is no worker."""
        if time.monotonic() - self._looked > _BALANCE_SECONDS:
            self._look()
        with self._lock:
            worker = min(
                self._threads,
                key=lambda address: self._to_do[address] / self._threads[address],
                default=None,
            )
            if worker is not None:
                self._to_do[worker] += weight
        return worker

    def note_end(self, worker: str | None, weight: int, _: Future[Any]) -> None:
        """Remember that such a task is no longer to be done."""
        if worker is not None:
            with self._lock:
                self._to_do[worker] -= weight


def map_cuts(
    client: Any,
    function: Callable[..., Any],
    matrix: DaskMatrix,
    cuts: Sequence[PieceCut],
    shared: tuple[Any, ...],
    name: str,
) -> Iterator[Any]:
    """Yield ``function(*piece, *shared)`` over pieces whose chunks are Dask's.

    One graph with a task for every piece, so that a chunk touched by several pieces is
    computed once and Dask decides when to let go of it.
    """
    import dask

    order = _Order(function, _topic(client))
    prefix = _task_prefix(name)
    common = _submit(client, _hold, f"{prefix}-shared", _Shared(seal(*shared)))
    call = dask.delayed(_call_cut, pure=False)
    tasks = []
    for i, cut in enumerate(cuts):
        chunks = [matrix.chunks[j] for j in cut.chunks]
        sealed = dask.delayed(seal(order, cut), traverse=False, pure=False)
        tasks.append(call(sealed, common, *chunks, dask_key_name=f"{prefix}-{i}"))
    with dask.config.set(_LARGE_TASKS), asking_scheduler():
        pending = deque(client.compute(tasks))
    del tasks
    while pending:
        yield _open(client, pending.popleft())


def run_on_client(
    client: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return ``function(*args, **kwargs)`` computed by one task on one worker."""
    # The workers of a cluster started here share this machine, and all the others wait now.
    threads = len(list_threads(client)) if is_started_here(client) else None
    order = _Order(function, _topic(client), threads or None)
    matrices: list[Any] = []
    sent_args = tuple(_send(client, value, matrices) for value in args)
    sent_kwargs = {name: _send(client, value, matrices) for name, value in kwargs.items()}
    sealed = seal(order, sent_args, sent_kwargs)
    key = _task_prefix(getattr(function, "__name__", "run"))
    return _open(client, _submit(client, _call_run, key, sealed, *matrices))


class _Fetch:
    """The value of a task on its way here: waiting and fetching in one.

    The last worker may die between the two.
    """

    def __init__(self, client: Any, task: Any, worker: str | None = None) -> None:
        from distributed import Future as Hold

        self.task = task  # holds on to it
        self.worker = worker  # where it is best done
        self._hold = Hold(task.key, client)  # that of who waits; `task` may be another's
        self.future: Future[Any] = asyncio.run_coroutine_threadsafe(
            _gather(client, self._hold), client.loop.asyncio_loop
        )

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


def _open(client: Any, task: Any) -> Any:
    return _opened(client, _Fetch(client, task))


def _opened(client: Any, fetch: _Fetch) -> Any:
    (value,) = _result(client, fetch).open()
    return value


def result_of(client: Any, task: Any) -> Any:
    """Return the value of a task; see `_result`."""
    return _result(client, _Fetch(client, task))


def _result(client: Any, fetch: _Fetch) -> Any:
    """Return a task's value, delivering events while it is waited for.

    Raises
    ------
    ClusterError
        If the scheduler or all workers were lost, or the task took its workers with it.
    """
    from distributed import KilledWorker
    from distributed.comm import CommClosedError

    try:
        return _wait(client, fetch)
    except KilledWorker as error:
        raise ClusterError(
            f"task {fetch.task.key}",
            "a worker to finish it",
            "several that died of it",
            "See the workers' logs; most often they need more memory each.",
        ) from error
    except (CancelledError, CommClosedError) as error:
        raise ClusterError(
            f"task {fetch.task.key}",
            "the scheduler to keep it",
            "a cancelled task: the connection to the scheduler was lost",
            "Start the scheduler again and repeat.",
        ) from error
    finally:
        fetch.cancel()


def _wait(client: Any, fetch: _Fetch) -> Any:
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
                workers = set(list_threads(client))
                patience.check(bool(workers))
                if workers and fetch.worker not in workers | {None}:
                    _schedule_stranded(client)
                next_look = time.monotonic() + _LOOK_SECONDS
        finally:
            deliver_events(client)


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


def _submit(
    client: Any, function: Callable[..., Any], key: str, *args: Any, worker: str | None = None
) -> Any:
    import dask

    place = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
    with dask.config.set(_LARGE_TASKS), asking_scheduler():
        # First come, first served (but for a first burst): Dask would mix those of 100 ms.
        return client.submit(function, *args, key=key, pure=False, fifo_timeout="0 ms", **place)


def _task_prefix(name: str) -> str:
    """Return a unique key whose first word people recognise on the dashboard."""
    words = re.sub(r"\W+", "_", name).strip("_") or "task"
    return f"{words}-{uuid.uuid4().hex}"


def _send(client: Any, value: Any, matrices: list[Any]) -> Any:
    """Replace a Dask matrix by a slot: its chunks stay on the workers."""
    if not isinstance(value, DaskMatrix):
        return value
    import dask

    gather = dask.delayed(_call_hold, pure=False)
    facts = (value.cut_all(), value.columns, None)
    sealed = dask.delayed(seal(*facts), traverse=False, pure=False)
    chunks = [value.chunks[j] for j in facts[0].chunks]
    task = gather(sealed, *chunks, dask_key_name=_task_prefix("gather_rows"))
    with dask.config.set(_LARGE_TASKS), asking_scheduler():
        matrices.append(client.compute(task))
    return _Slot(len(matrices) - 1)


# What runs on workers -------------------------------------------------------------------


def _hold(shared: _Shared) -> _Shared:
    return shared


def _call_item(sealed: Sealed, shared: _Shared) -> Sealed:
    order: _Order
    order, item = sealed.open()
    return order.call(*item, *shared.open())


def _call_cut(sealed: Sealed, shared: _Shared, *chunks: Any) -> Sealed:
    order: _Order
    cut: PieceCut
    order, cut = sealed.open()
    return order.call(*cut.arguments(*chunks), *shared.open())


def _call_hold(sealed: Sealed, *chunks: Any) -> Any:
    return hold_in_memory(*sealed.open(), *chunks)


def _call_run(sealed: Sealed, *matrices: Any) -> Sealed:
    order: _Order
    order, args, kwargs = sealed.open()
    args = [_fill(value, matrices) for value in args]
    return order.call(*args, **{name: _fill(value, matrices) for name, value in kwargs.items()})


def _fill(value: Any, matrices: tuple[Any, ...]) -> Any:
    return matrices[value.index] if isinstance(value, _Slot) else value


# Events ---------------------------------------------------------------------------------


def _topic(client: Any) -> str | None:
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
