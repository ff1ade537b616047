"""Where work runs: in this process, on a cluster started here, or on one that exists.

The newest open session decides. Without one, a current Dask client is used if the user
made one; else work runs in process. Nothing here is imported from Dask until it is needed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from typing import Any, Self

from distclust.engine.threads import allowed_cores, granted_threads
from distclust.errors import ClusterError, InputError
from distclust.validation import check_integer, check_real

_sessions: list[Session] = []

# Versions that change results or the wire between processes.
_COMPARED = ("python", "dask", "distributed", "distclust", "numpy", "scipy", "numba")


class Session:
    """A place where work runs, in force until it is closed.

    Made by `connect`. Use it as a context manager, or call `close`.
    """

    def __init__(
        self, where: str, client: Any = None, cluster: Any = None, threads: int | None = None
    ) -> None:
        self.where = where
        self.client = client
        self.threads = threads
        self._cluster = cluster
        _sessions.append(self)

    @property
    def dashboard_link(self) -> str | None:
        """Address of the Dask dashboard, if there is one."""
        if self.client is None:
            return None
        services = self.client.scheduler_info(n_workers=0).get("services", {})
        return self.client.dashboard_link if "dashboard" in services else None

    @property
    def is_open(self) -> bool:
        """Whether work still goes here."""
        return self in _sessions

    def close(self) -> None:
        """Disconnect, and stop what `connect` started; closing twice does no harm."""
        if not self.is_open:
            return
        _sessions.remove(self)
        for part in (self.client, self._cluster):
            if part is not None:
                part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self.is_open else ", closed"
        if self.client is None:
            return f"Session('threads', {self.threads or allowed_cores()} threads{state})"
        if not self.is_open:
            return f"Session({self.where!r}, closed)"
        threads = self.client.nthreads()
        return f"Session({self.where!r}, {len(threads)} workers, {sum(threads.values())} threads)"


def connect(
    where: str = "threads",
    *,
    workers: int | None = None,
    threads: int | None = None,
    memory_limit: str | int | float | None = "auto",
    timeout: float = 30.0,
) -> Session:
    """Choose where fits run from now on.

    Parameters
    ----------
    where
        ``"threads"``: in this process. ``"local"``: on a Dask cluster of processes started
        here, reachable from this machine only. An address such as ``"tcp://host:8786"`` or
        ``"tls://host:8786"``: on a Dask cluster that exists.
    workers
        Processes of a local cluster; by default one a core.
    threads
        Threads in this process, or in each worker of a local cluster.
    memory_limit
        Memory of each worker of a local cluster, as Dask writes it.
    timeout
        Seconds to wait for a scheduler and its first worker.

    Returns
    -------
    A session in force until its ``close()`` or the end of its ``with`` block.

    Raises
    ------
    ClusterError
        If no scheduler answers, no worker comes, or versions differ across the cluster.

    Notes
    -----
    A script that starts a local cluster needs ``if __name__ == "__main__":`` around its
    work, as for any Python processes.
    """
    for value, label in ((workers, "workers"), (threads, "threads")):
        if value is not None:
            check_integer(value, f"connect({label})", at_least=1)
    check_real(timeout, "connect(timeout)", above=0)
    if where == "threads":
        return Session(where, threads=threads)
    if where == "local":
        return _start_local(workers, threads, memory_limit)
    if "://" in str(where):
        return _join(where, timeout)
    raise InputError(
        "connect(where)",
        "'threads', 'local' or an address",
        repr(where),
        "Write an address as 'tcp://host:8786'.",
    )


def current_client() -> Any | None:
    """Return the Dask client to work on, or None for work in this process.

    Inside a task of the engine or of Dask the answer is always None: work that was sent
    somewhere stays there.
    """
    if granted_threads.get() is not None or _inside_dask_task():
        return None
    if _sessions:
        return _sessions[-1].client
    distributed = sys.modules.get("distributed")
    if distributed is None:  # then nobody can have made a client
        return None
    try:
        client = distributed.Client.current()
    except ValueError:
        return None
    if client.asynchronous:
        raise ClusterError(
            "the current Dask client",
            "a synchronous client",
            "an asynchronous one",
            "Make it with Client(asynchronous=False), or use distclust.connect('threads').",
        )
    return client


def local_threads() -> int:
    """Return how many threads work running here may use.

    In process: the session's number, or the cores this process may use. Within a block
    map or a Dask task: 1. Within `run` on a worker: the worker's threads.
    """
    granted = granted_threads.get()
    if granted is not None:
        return granted
    if _inside_dask_task():
        return 1
    if _sessions and _sessions[-1].threads is not None:
        return _sessions[-1].threads
    return allowed_cores()


def _inside_dask_task() -> bool:
    worker = sys.modules.get("distributed.worker")
    return worker is not None and hasattr(worker.thread_state, "execution_state")


def version_mismatches(client: Any) -> list[str]:
    """Return a phrase for every version that differs between here and the cluster."""
    extra = ["distclust", "scipy", "numba"]
    found = client.get_versions(packages=extra)
    here = _relevant(found["client"])
    others = {"scheduler": _relevant(found["scheduler"])}
    for address, facts in found["workers"].items():
        others[f"worker {address}"] = _relevant(facts)
    return [
        f"{package} {there.get(package) or 'missing'} on {place} but {here.get(package)} here"
        for place, there in others.items()
        for package in _COMPARED
        if here.get(package) != there.get(package)
    ]


def _relevant(facts: dict[str, Any]) -> dict[str, str | None]:
    versions = dict(facts["packages"])
    # Patch releases of Python are exchangeable; "3.11.7.final.0" -> "3.11".
    versions["python"] = ".".join(str(versions.get("python")).split(".")[:2])
    return versions


def _start_local(
    workers: int | None, threads: int | None, memory_limit: str | int | float | None
) -> Session:
    from distributed import Client, LocalCluster

    n_threads = threads or 1
    n_workers = workers or max(1, allowed_cores() // n_threads)
    has_dashboard = importlib.util.find_spec("bokeh") is not None
    cluster = LocalCluster(
        n_workers=n_workers,
        threads_per_worker=n_threads,
        memory_limit=memory_limit,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0" if has_dashboard else None,
        worker_dashboard_address=None,
    )
    return Session("local", Client(cluster), cluster)


def _join(address: str, timeout: float) -> Session:
    from distributed import Client
    from distributed.versions import VersionMismatchWarning

    unreachable = ClusterError(
        f"connect({address!r})",
        f"a Dask scheduler to answer within {timeout:g} s",
        "none",
        "Check the address and that `dask scheduler` runs there.",
    )
    with warnings.catch_warnings():  # our own comparison follows, in one sentence
        warnings.simplefilter("ignore", VersionMismatchWarning)
        try:
            client = Client(address, timeout=timeout)
        except OSError as error:
            raise unreachable from error
        except ValueError as error:
            raise InputError(
                "connect(where)", "an address Dask knows", repr(address), f"{error}."
            ) from error
    with contextlib.ExitStack() as stack:
        stack.callback(client.close)
        _check_cluster(client, address, timeout)
        stack.pop_all()
    return Session(address, client)


def _check_cluster(client: Any, address: str, timeout: float) -> None:
    where = f"connect({address!r})"
    try:
        client.wait_for_workers(1, timeout=timeout)
    except TimeoutError as error:
        raise ClusterError(
            where, f"a worker within {timeout:g} s", "none", "Start one with `dask worker`."
        ) from error
    mismatches = version_mismatches(client)
    if mismatches:
        raise ClusterError(
            where,
            "the same versions everywhere",
            "; ".join(mismatches[:5]),
            "Install the same versions on client, scheduler and workers.",
        )
