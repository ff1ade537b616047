"""The Dask side of the engine: tasks out, results and events back, in order.

Data of the caller travel inside the tasks, not by ``scatter``: a task that lost its
worker is then run again by Dask from what the scheduler holds. What all tasks of a map
share is one task of its own, sent once, unless it is small.

Everything is sealed before Dask sees it, arguments and results; see
`distclust.engine.sealing`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import re
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from distclust import events
from distclust.engine.dask_matrix import DaskMatrix, hold_in_memory
from distclust.engine.fetching import Fetch, topic_of
from distclust.engine.pieces import Grain, PieceCut, guided_batches
from distclust.engine.sealing import Sealed, seal
from distclust.engine.sessions import is_started_here
from distclust.engine.shared_values import Shared
from distclust.engine.threads import grant_threads, one_blas_thread
from distclust.engine.workers import asking_scheduler, list_threads

_BALANCE_SECONDS = 2.0  # after so long somebody looks which workers there are
_AHEAD = 2  # tasks in work or waiting, for each thread
_BATCHES_AHEAD = 4  # what they carry takes little memory; it hides how long a message takes
_SMALL_BYTES = 2**22  # of a shared value, for all tasks together: they pass the scheduler
_LARGE_TASKS = {"distributed.admin.large-graph-warning-threshold": "1 TB"}


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
    prefix = _task_prefix(name)
    weighed = ((item, 1) for item in items)
    common = _held(client, prefix, seal(*shared))
    return _map_weighed(client, function, weighed, common, prefix, _Balance(client), _AHEAD)


def map_batches(
    client: Any,
    function: Callable[..., list[Any]],
    items: Sequence[Any],
    shared: tuple[Any, ...],
    name: str,
    grain: Grain,
) -> Iterator[Any]:
    """Yield what ``function(some_items, *shared)`` lists, in order, for runs of the items."""
    balance, prefix = _Balance(client), _task_prefix(name)
    weighed = [((batch,), len(batch)) for batch in guided_batches(items, balance.n_threads, grain)]
    sealed = seal(*shared)
    is_small = len(sealed.content) * len(weighed) <= _SMALL_BYTES
    common = Shared(sealed, token=prefix) if is_small else _held(client, prefix, sealed)
    parts = _map_weighed(client, function, weighed, common, prefix, balance, _BATCHES_AHEAD)
    return (value for part in parts for value in part)


def _map_weighed(
    client: Any,
    function: Callable[..., Any],
    weighed: Iterable[tuple[tuple[Any, ...], int]],
    common: Any,
    prefix: str,
    balance: _Balance,
    ahead: int,
) -> Iterator[Any]:
    """Yield results in order, `ahead` times the cluster's threads ahead.

    Workers get equal shares of the items' weights. `common` is what the tasks share, or a task
    that holds it.
    """
    order = _Order(function, topic_of(client))
    numbers = itertools.count()

    def start(some: Sequence[tuple[tuple[Any, ...], int]]) -> list[Fetch]:
        """Send tasks out, those of a worker together: most of a task's price is its message."""
        places = [balance.choose(weight) for _, weight in some]
        sealed = [seal(order, item) for item, _ in some]
        keys = [f"{prefix}-{next(numbers)}" for _ in some]
        tasks: dict[str, Any] = {}
        for place in dict.fromkeys(places):
            here = [i for i, other in enumerate(places) if other == place]
            chosen = [keys[i] for i in here], [sealed[i] for i in here]
            tasks |= zip(chosen[0], _submit_all(client, *chosen, common, place), strict=True)
        fetches = []
        for key, place, (_, weight) in zip(keys, places, some, strict=True):
            fetch = Fetch(client, tasks[key], place)  # results come while others are worked on
            fetch.future.add_done_callback(functools.partial(balance.note_end, place, weight))
            fetches.append(fetch)
        return fetches

    waiting = iter(weighed)
    pending: deque[Fetch] = deque()
    try:
        pending.extend(start(list(itertools.islice(waiting, ahead * balance.n_threads))))
        for one in waiting:
            yield pending.popleft().opened()
            pending.extend(start([one]))
        while pending:
            yield pending.popleft().opened()
    finally:
        for fetch in pending:
            fetch.cancel()


def _held(client: Any, prefix: str, sealed: Sealed) -> Any:
    """Return a task that holds what others share."""
    return _submit(client, _hold, f"{prefix}-shared", Shared(sealed))


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
    order, prefix = _Order(function, topic_of(client)), _task_prefix(name)
    sealed_shared = Shared(seal(*shared))
    fetches = []
    for i, (owner, group) in enumerate(groups.items()):
        sealed = seal(order, (group,))
        task = _submit(client, _call_item, f"{prefix}-{i}", sealed, sealed_shared, worker=owner)
        fetches.append(Fetch(client, task, owner))
    try:
        for fetch in fetches:
            yield fetch.opened()
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

    order = _Order(function, topic_of(client))
    prefix = _task_prefix(name)
    common = _held(client, prefix, seal(*shared))
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
        yield Fetch(client, pending.popleft()).opened()


def run_on_client(
    client: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return ``function(*args, **kwargs)`` computed by one task on one worker."""
    # The workers of a cluster started here share this machine, and all the others wait now.
    threads = len(list_threads(client)) if is_started_here(client) else None
    order = _Order(function, topic_of(client), threads or None)
    matrices: list[Any] = []
    sent_args = tuple(_send(client, value, matrices) for value in args)
    sent_kwargs = {name: _send(client, value, matrices) for name, value in kwargs.items()}
    sealed = seal(order, sent_args, sent_kwargs)
    key = _task_prefix(getattr(function, "__name__", "run"))
    return Fetch(client, _submit(client, _call_run, key, sealed, *matrices)).opened()


def _submit(
    client: Any, function: Callable[..., Any], key: str, *args: Any, worker: str | None = None
) -> Any:
    import dask

    with dask.config.set(_LARGE_TASKS), asking_scheduler():
        return client.submit(function, *args, key=key, **_placed(worker))


def _submit_all(
    client: Any, keys: list[str], sealed: list[Sealed], common: Any, worker: str | None
) -> list[Any]:
    """Send out tasks of `_call_item` in one message."""
    import dask

    with dask.config.set(_LARGE_TASKS), asking_scheduler():
        tasks: list[Any] = client.map(
            _call_item, sealed, key=keys, shared=common, **_placed(worker)
        )
    return tasks


def _placed(worker: str | None) -> dict[str, Any]:
    """Return how Dask is to treat tasks that are best done by a worker."""
    # First come, first served (but for a first burst): Dask would mix those of 100 ms.
    options: dict[str, Any] = {"pure": False, "fifo_timeout": "0 ms"}
    return (
        options if worker is None else options | {"workers": [worker], "allow_other_workers": True}
    )


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


def _hold(shared: Shared) -> Shared:
    return shared


def _call_item(sealed: Sealed, shared: Shared) -> Sealed:
    order: _Order
    order, item = sealed.open()
    return order.call(*item, *shared.open())


def _call_cut(sealed: Sealed, shared: Shared, *chunks: Any) -> Sealed:
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
