"""What is known of those who do the work: their memory, and whose files they see."""

from __future__ import annotations

import contextlib
import ipaddress
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from distclust.engine.sessions import current_client, is_started_here, local_threads
from distclust.errors import CapacityError, ClusterError, InputError

Found = TypeVar("Found")

_SHARE_OF_MEMORY = 0.8  # of what is free; the rest is for everybody else


@contextlib.contextmanager
def asking_scheduler() -> Iterator[None]:
    """Say in a sentence that the scheduler is gone; Dask says it in several ways."""
    from distributed.client import ClosedClientError

    try:
        yield
    except (OSError, ClosedClientError) as error:  # a closed connection is an OSError
        raise ClusterError(
            "the Dask cluster",
            "the scheduler to answer",
            f"none: {error}",
            "Start the scheduler again and repeat.",
        ) from error


def worker_facts(client: Any) -> dict[str, dict[str, Any]]:
    """Return what the scheduler knows of every worker, by address."""
    with asking_scheduler():
        # All of them by request: some releases of Dask tell of five.
        facts: dict[str, dict[str, Any]] = client.scheduler_info(n_workers=-1)["workers"]
    return facts


def list_threads(client: Any) -> list[str]:
    """Return the address of every thread's worker, all workers before any comes again."""
    threads = _threads_of_workers(client)
    rounds = range(max(threads.values(), default=0))
    return [address for i in rounds for address, n in sorted(threads.items()) if i < n]


def look_at(client: Any, look: Callable[..., Found]) -> Found:
    """Return ``look(dask_scheduler=...)``, a module-level function that changes nothing.

    It runs on the scheduler. One in this process need not be asked, nor waited for: then it may
    be at work meanwhile.
    """
    scheduler = _scheduler_here(client)
    if scheduler is not None:
        return look(dask_scheduler=scheduler)
    with asking_scheduler():
        found: Found = client.run_on_scheduler(look)
    return found


def _scheduler_here(client: Any) -> Any:
    """Return the scheduler of a cluster that was started here, None if it is another's."""
    if is_started_here(client):
        scheduler = client.cluster.scheduler
        if scheduler.status.name == "running":
            return scheduler
    return None


def _threads_of_workers(client: Any) -> dict[str, int]:
    """Return how many threads every worker has, by address."""
    scheduler = _scheduler_here(client)
    if scheduler is not None:
        return {worker.address: worker.nthreads for worker in list(scheduler.workers.values())}
    with asking_scheduler():  # whatever is installed there
        return dict(client.nthreads())


def check_worker_memory(needed_bytes: float, where: str, what: str) -> None:
    """Refuse work whose tasks would not fit into the memory of a thread.

    Parameters
    ----------
    needed_bytes
        What one task holds at its peak.
    where
        Place to name in the error, such as ``RandomizedBHC.fit``.
    what
        What takes the memory, in words: ``a block, the filters and its scores``.

    Raises
    ------
    CapacityError
        If the smallest worker has less for each of its threads or, in process, if four
        fifths of the free memory are less for each thread. Workers without a limit, or
        none at all yet, are taken at their word.
    """
    client = current_client()
    if client is None:
        _check_here(needed_bytes, where, what)
        return
    shares = {
        address: facts["memory_limit"] / facts["nthreads"]
        for address, facts in worker_facts(client).items()
        if facts["memory_limit"]
    }
    if not shares:
        return
    smallest = min(shares, key=lambda address: shares[address])
    if shares[smallest] < needed_bytes:
        raise CapacityError(
            where,
            f"workers with at least {_gigabytes(needed_bytes)} for each thread ({what})",
            f"{_gigabytes(shares[smallest])} on {smallest}",
            "Give workers more memory or fewer threads.",
        )


def _check_here(needed_bytes: float, where: str, what: str) -> None:
    import psutil

    threads = local_threads()
    share = _SHARE_OF_MEMORY * psutil.virtual_memory().available / threads
    if share < needed_bytes:
        raise CapacityError(
            where,
            f"at least {_gigabytes(needed_bytes)} of free memory for each thread ({what})",
            f"{_gigabytes(share)} for each of {threads}",
            "Use fewer threads, or a machine with more memory.",
        )


def shares_disk() -> bool:
    """Return whether those who do the work see the files of this machine.

    True in process, and where all workers are reached by an address of this machine alone,
    or by the host address of a cluster that `connect` started here.
    """
    client = current_client()
    if client is None:
        return True
    # While no worker is there, the scheduler has to speak for those to come.
    addresses = list(_threads_of_workers(client)) or [client.scheduler.address]
    own = _host(client.scheduler.address) if is_started_here(client) else None
    return all(_is_loopback(address) or _host(address) == own for address in addresses)


def temporary_results(where: str) -> tempfile.TemporaryDirectory[str]:
    """Return a folder for results that nobody asked to keep; `where` is for the error.

    Raises
    ------
    InputError
        If workers would not see it.
    """
    if not shares_disk():
        raise InputError(
            f"{where}: results",
            "a path or URL that all workers see",
            "none",
            "Pass results=..., where labels and state are written.",
        )
    return tempfile.TemporaryDirectory(prefix="distclust-results-")


def _is_loopback(address: str) -> bool:
    if address.startswith("inproc://"):  # threads of this process
        return True
    host = _host(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host(address: str) -> str:
    from distributed.comm import get_address_host

    host: str = get_address_host(address)
    return host


def _gigabytes(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:,.2f} GB"
