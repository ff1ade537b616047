"""Threads of this process: how many, for whom, and BLAS kept to one of them.

Blocks are the unit of parallel work, so a matrix product inside one uses a single thread:
it is then the same to the last bit in process and on a worker, whatever the machine.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from distclust.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
Default = TypeVar("Default", int, None)

# Threads granted to the work in this context; None where the engine granted nothing yet.
granted_threads: contextvars.ContextVar[int | None] = contextvars.ContextVar(
    "distclust_granted_threads", default=None
)


def allowed_cores() -> int:
    """Return how many cores this process may use; ``DISTCLUST_THREADS`` overrules."""
    chosen = os.environ.get("DISTCLUST_THREADS")
    if chosen is not None:
        if chosen.isdecimal() and int(chosen) > 0:
            return int(chosen)
        raise InputError(
            "DISTCLUST_THREADS", "a whole number of at least 1", repr(chosen), "Unset it."
        )
    return _system_cores()


@functools.cache
def _system_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores, _container_cores(Path("/sys/fs/cgroup/cpu.max"), cores)))


def _container_cores(quota_file: Path, cores: int) -> int:
    """Return the whole cores that a container's quota of processor time amounts to."""
    try:
        quota, period = quota_file.read_text().split()[:2]
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, int(quota) // int(period))


@contextlib.contextmanager
def grant_threads(n_threads: int) -> Iterator[None]:
    """Let the work in this context use `n_threads` threads."""
    token = granted_threads.set(n_threads)
    try:
        yield
    finally:
        granted_threads.reset(token)


class _BlasLimit:
    """Counts who needs BLAS on one thread: the first sets the limit, the last lifts it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._limiter: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._depth == 0:
                with _in_control():
                    self._limiter = _controller().limit(limits=1, user_api="blas")
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                with _in_control():
                    self._limiter.restore_original_limits()


@contextlib.contextmanager
def _in_control() -> Iterator[None]:
    """Let this thread set the limit, and any other one after it.

    Since threadpoolctl 3.8 the first thread that sets a limit of OpenBLAS is the only one whose
    calls have an effect, until it gives that up. The limit is everybody's: one thread may set
    it and another one lift it.
    """
    import threadpoolctl  # type: ignore[import-untyped]

    give_up = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if give_up is not None:
        give_up(force=True)
    yield
    if give_up is not None:
        give_up(force=True)


def with_one_blas_thread(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Keep BLAS to one thread throughout a function: threads that are let loose spin a while."""

    @functools.wraps(function)
    def limited(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with one_blas_thread:
            return function(*args, **kwargs)

    return limited


@functools.cache
def _controller() -> Any:
    import scipy.linalg  # noqa: F401  brings its own BLAS, which must be found below
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()  # looking for libraries takes milliseconds: done once


one_blas_thread = _BlasLimit()


def thread_map(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> list[Result]:
    """Return ``[function(item) for item in items]``, computed by several threads.

    For work that lets go of the interpreter (compiled functions, BLAS). The calling thread
    takes part and helpers come from one shared pool, so a call costs some tens of
    microseconds, and calls may nest.
    """
    todo = list(items)
    results: list[Any] = [None] * len(todo)
    positions = iter(range(len(todo)))  # taking the next one is atomic

    def work() -> None:
        with grant_threads(1):
            try:
                for i in positions:
                    results[i] = function(todo[i])
            finally:
                deque(positions, maxlen=0)  # after an error nobody starts anything new

    with one_blas_thread:
        n_helpers = min(threads, len(todo)) - 1
        if n_helpers < 1:
            return [function(item) for item in todo]
        pool = _shared_pool(os.getpid())
        helpers = [pool.submit(contextvars.copy_context().run, work) for _ in range(n_helpers)]
        try:
            work()
        except Exception:
            for helper in helpers:
                _finish(helper)
            raise
        except BaseException:
            # An interrupt waits for nobody: it may have struck inside the compiler, whose
            # lock a helper would then wait for in vain.
            for helper in helpers:
                helper.cancel()
            raise
        errors = [_finish(helper) for helper in helpers]
        for error in filter(None, errors):
            raise error
    return results


def _finish(helper: Future[None]) -> BaseException | None:
    # A helper that never started is not waited for: nested calls cannot lock up.
    return None if helper.cancel() else helper.exception()


@functools.cache
def _shared_pool(process: int) -> ThreadPoolExecutor:  # a forked child has threads no more
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix=f"distclust-{process}")


def map_in_order(
    call: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Yield ``call(item)`` for every item in order, at most ``2 * threads`` of them ahead.

    Items are taken as they are needed: they may come from a stream. A single item runs in
    the calling thread and keeps all its threads to itself.
    """
    if threads == 1 or count_of(items, 2) <= 1:
        for item in items:
            yield _call_limited(call, item)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="distclust-map")
    try:
        pending: deque[Future[Result]] = deque()
        for item in items:
            if len(pending) == 2 * threads:
                yield pending.popleft().result()
            context = contextvars.copy_context()
            pending.append(pool.submit(context.run, _call_granted, call, item))
        while pending:
            yield pending.popleft().result()
    finally:
        # An interrupt waits for nobody, as in thread_map.
        interrupted = isinstance(sys.exc_info()[1], KeyboardInterrupt)
        pool.shutdown(wait=not interrupted, cancel_futures=True)


def count_of(items: Iterable[Any], unknown: Default) -> int | Default:
    """Return how many items there are, or `unknown` for a stream."""
    return len(items) if isinstance(items, Sized) else unknown


def _call_limited(call: Callable[[Item], Result], item: Item) -> Result:
    with one_blas_thread:
        return call(item)


def _call_granted(call: Callable[[Item], Result], item: Item) -> Result:
    with grant_threads(1), one_blas_thread:
        return call(item)
