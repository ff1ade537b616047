"""Where work runs: in this process, on a cluster started here, or on one that exists.

The newest open session decides. Without one, a current Dask client is used if the user
made one; else work runs in process. Nothing here is imported from Dask until it is needed.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from distclust._version import __version__
from distclust.engine.reviving import keep_workers_alive, keeper_class, own_settings
from distclust.engine.threads import allowed_cores, granted_threads
from distclust.errors import ClusterError, InputError
from distclust.validation import check_integer, check_real

# Workers that may die with one task before it is given up, on clusters started here. Dask's
# own 3 are used up quickly: a task counts a death even while it waits behind others.
ALLOWED_FAILURES = 100

# How long a client waits for more to send with what it has. Dask's 10 ms are a part of the time
# that short stages take, and a scheduler in this process is not flooded.
_SENDING_SECONDS = 0.001

_UNINTERRUPTED = "distclust.engine.uninterrupted"  # workers get on with a Ctrl-C

_sessions: list[Session] = []

# Versions that change results or the wire between processes.
_COMPARED = ("python", "dask", "distributed", "distclust", "numpy", "scipy", "numba")


class Session:
    """A place where work runs, in force until it is closed.

    Made by `connect`. Use it as a context manager, or call `close`.
    """

    def __init__(
        self,
        where: str,
        client: Any = None,
        cluster: Any = None,
        threads: int | None = None,
        has_dashboard: bool = False,
    ) -> None:
        self.where = where
        self.client = client
        self.threads = threads
        self._cluster = cluster
        self._has_dashboard = has_dashboard
        _sessions.append(self)

    @property
    def dashboard_link(self) -> str | None:
        """Address of the Dask dashboard, if this session knows of one."""
        return self.client.dashboard_link if self._has_dashboard and self.is_open else None

    @property
    def owns_cluster(self) -> bool:
        """Whether `connect` started the cluster here, and closing stops it."""
        return self._cluster is not None

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


def look_at(address: str, timeout: float = 30.0) -> Session:
    """Connect to a scheduler to ask it things, not to work there.

    Whether it has workers, and which versions they run, does not matter.

    Raises
    ------
    ClusterError
        If no scheduler answers.
    """
    from distributed import Client

    with _reaching(address, timeout):
        client = Client(address, timeout=timeout, set_as_default=False)
    return Session(address, client, has_dashboard=True)


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


def is_started_here(client: Any) -> bool:
    """Return whether `connect` started the cluster of this client."""
    return any(session.client is client and session.owns_cluster for session in _sessions)


def local_memory() -> int:
    """Return the bytes that workers of this machine may have together; containers have less."""
    from distributed.system import memory_limit

    return int(memory_limit())


def local_threads() -> int:
    """Return how many threads work running here may use.

    In process: the session's number, or the cores this process may use. Within a block
    map or a Dask task: 1. Within `run` on a worker: the worker's threads, or those of all
    workers of a cluster that `connect` started, which have nothing else to do.
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
    found = client.get_versions(packages=["distclust", "scipy", "numba"])
    # Asked of the workers themselves: a source folder has no installed version.
    releases = client.run(_release, on_error="return")
    return _compare_versions(found, releases)


def _release() -> str:
    return __version__


def _compare_versions(found: dict[str, Any], releases: dict[str, Any]) -> list[str]:
    """Compare Dask's report on versions, with our own release on each worker."""
    here = _relevant(found["client"], __version__)
    is_installed = found["client"]["packages"].get("distclust") is not None
    there = found["scheduler"]["packages"].get("distclust") if is_installed else __version__
    others = {"scheduler": _relevant(found["scheduler"], there)}
    for address, facts in found["workers"].items():
        release = releases.get(address)  # an exception where distclust cannot be imported
        known = release if isinstance(release, str) else None
        others[f"worker {address}"] = _relevant(facts, known)
    return [
        f"{package} {versions.get(package) or 'missing'} on {place} but {here[package]} here"
        for place, versions in others.items()
        for package in _COMPARED
        if here[package] != versions.get(package)
    ]


def _relevant(facts: dict[str, Any], release: str | None) -> dict[str, str | None]:
    versions = dict(facts["packages"])
    # Patch releases of Python are exchangeable; "3.11.7.final.0" -> "3.11".
    versions["python"] = ".".join(str(versions.get("python")).split(".")[:2])
    versions["distclust"] = release
    return versions


def _start_local(
    workers: int | None, threads: int | None, memory_limit: str | int | float | None
) -> Session:
    import dask
    from distributed import Client, LocalCluster

    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit("connect('local'): called by a worker, which runs the script as it starts.")
    n_threads = threads or 1
    n_workers = workers or max(1, allowed_cores() // n_threads)
    has_dashboard = importlib.util.find_spec("bokeh") is not None
    with own_settings(), _starting():
        cluster = LocalCluster(
            n_workers=n_workers,
            threads_per_worker=n_threads,
            worker_class=keeper_class(),
            memory_limit=memory_limit,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",  # without one Dask would try port 8787 and warn
            worker_dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": has_dashboard, "allowed_failures": ALLOWED_FAILURES},
            preload=[*dask.config.get("distributed.worker.preload"), _UNINTERRUPTED],
        )
    keep_workers_alive(cluster)
    client = Client(cluster, direct_to_workers=True)  # all on this machine: no detour
    client.scheduler_comm.interval = _SENDING_SECONDS
    return Session("local", client, cluster, has_dashboard=has_dashboard)


@contextmanager
def _starting() -> Iterator[None]:
    """Say in a sentence that workers do not start, and what most often is the cause."""
    try:
        yield
    except RuntimeError as error:
        hint = (
            "Put what a script does below `if __name__ == '__main__':`, since every worker runs "
            "the script. If it is there, see what the workers said."
        )
        got = f"none: {error}".rstrip(".")
        raise ClusterError("connect('local')", "workers to start", got, hint) from None


def _join(address: str, timeout: float) -> Session:
    from distributed import Client

    # Looked at first by a client that nobody else sees: Dask makes a client the current
    # one even when it then fails to connect.
    with _reaching(address, timeout):
        with Client(address, timeout=timeout, set_as_default=False) as scout:
            _check_cluster(scout, address, timeout)
        client = Client(address, timeout=timeout)
    return Session(address, client, has_dashboard=True)


@contextmanager
def _reaching(address: str, timeout: float) -> Iterator[None]:
    """Say in a sentence that no scheduler is there; Dask says it in several ways."""
    from distributed.versions import VersionMismatchWarning

    hint = "Check the address and that `dask scheduler` runs there."
    if address.startswith("tls://"):
        _check_certificates(address)
        hint += " A wrong certificate is refused without a word."
    with warnings.catch_warnings():  # our own comparison says it in one sentence
        warnings.simplefilter("ignore", VersionMismatchWarning)
        try:
            yield
        except (OSError, EOFError, MemoryError) as error:  # nobody, or another protocol
            raise ClusterError(
                f"connect({address!r})",
                f"a Dask scheduler to answer within {timeout:g} s",
                "none",
                hint,
            ) from error
        except ValueError as error:
            raise InputError(
                "connect(where)", "an address Dask knows", repr(address), f"{error}."
            ) from error


def _check_certificates(address: str) -> None:
    """Refuse TLS without certificates: Dask would try for a while and end in a traceback."""
    from distributed.security import Security

    if Security().get_connection_args("client").get("ssl_context") is None:
        raise InputError(
            f"connect({address!r})",
            "certificates for TLS in Dask's configuration",
            "none",
            "Set distributed.comm.tls.ca-file, .client.cert and .client.key "
            "(DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on).",
        )


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
