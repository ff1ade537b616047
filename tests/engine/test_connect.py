from __future__ import annotations

import contextlib
import copy
import itertools
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from distclust import engine
from distclust._version import __version__
from distclust.engine import diagnosis, fetching, reviving, sessions, threads
from distclust.errors import CapacityError, ClusterError, InputError

PLAIN = {
    "host": "127.0.0.1",
    "protocol": "tcp",
    "dashboard_address": "127.0.0.1:0",
    "worker_dashboard_address": "127.0.0.1:0",
    "scheduler_kwargs": {"dashboard": False},
}


def current_place() -> tuple[bool, int]:
    return engine.current_client() is None, engine.local_threads()


def worker_settings() -> tuple[str, str | None]:
    import dask

    interval = str(dask.config.get("distributed.worker.profile.interval"))
    return interval, os.environ.get("MALLOC_TRIM_THRESHOLD_")


def test_connect__threads_until_closed():
    before = engine.local_threads()
    session = engine.connect("threads", threads=3)
    assert repr(session) == "Session('threads', 3 threads)"
    assert engine.local_threads() == 3
    with engine.connect("threads", threads=5):
        assert engine.local_threads() == 5
    assert engine.local_threads() == 3
    session.close()
    session.close()
    assert not session.is_open
    assert "closed" in repr(session)
    assert session.dashboard_link is None
    assert engine.local_threads() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "somewhere"}, "'somewhere'.*tcp://host:8786"),
        ({"where": 8786}, "8786"),
        ({"where": "nosuch://127.0.0.1:1"}, "address Dask knows"),
        ({"threads": 0}, r"connect\(threads\)"),
        ({"workers": -1}, r"connect\(workers\)"),
        ({"timeout": 0}, r"connect\(timeout\)"),
    ],
)
def test_connect__refuses_what_it_cannot_use(options, message):
    with pytest.raises(InputError, match=message):
        engine.connect(**options)
    assert engine.current_client() is None


@pytest.mark.cluster
def test_connect__no_scheduler_is_a_cluster_error():
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:9.*within 1 s"):
        engine.connect("tcp://127.0.0.1:9", timeout=1)
    assert engine.current_client() is None


def test_connect__tls_without_certificates_is_refused_at_once():
    with pytest.raises(InputError, match=r"certificates.*ca-file"):
        engine.connect("tls://127.0.0.1:1", timeout=30)


@pytest.mark.cluster
def test_connect__a_script_that_its_workers_would_run_is_told_so(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text("import distclust\ndistclust.connect('local', workers=1)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "called by a worker, which runs the script" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "connect('local'): expected workers to start, got none" in last
    assert "below `if __name__ == '__main__':`" in last
    assert len(done.stderr.splitlines()) < 25


@pytest.mark.cluster
def test_connect__joins_a_running_cluster(local_client):
    address = local_client.scheduler.address
    with engine.connect(address) as session:
        assert engine.current_client() is session.client
        assert repr(session) == f"Session({address!r}, 2 workers, 2 threads)"
        assert session.dashboard_link.startswith("http://127.0.0.1:")
        with engine.connect("threads"):
            assert engine.current_client() is None
    assert engine.current_client() is None
    assert local_client.nthreads()  # joining and leaving stops nobody's cluster


@pytest.mark.cluster
@pytest.mark.chaos
def test_connect__local_workers_come_back_when_their_keepers_gave_up(monkeypatch):
    monkeypatch.setattr(reviving, "REVIVE_SECONDS", 0.1)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")  # as a cluster of Dask's leaves it
    with engine.connect("local", workers=2, threads=1) as session:
        before = set(session.client.nthreads())
        for keeper in list(session._cluster.workers.values()):
            session._cluster.sync(keeper.close)  # as after a worker that died while starting
        session.client.wait_for_workers(2, timeout=30)
        assert engine.run(current_place) == (True, 2)  # nobody else works on this cluster
        found = session.client.run(worker_settings)
        assert list(found.values()) == [("100ms", str(2**27))] * 2
        assert before.isdisjoint(session.client.nthreads())


@pytest.fixture(scope="module")
def versions(local_client) -> dict[str, Any]:
    found: dict[str, Any] = local_client.get_versions(packages=["distclust", "scipy", "numba"])
    for place in (found["client"], found["scheduler"]):
        place["packages"]["distclust"] = __version__  # as if all were installed
    return found


@pytest.mark.cluster
def test_compare_versions__names_what_differs(versions):
    address = next(iter(versions["workers"]))
    releases = dict.fromkeys(versions["workers"], __version__)
    assert sessions._compare_versions(versions, releases) == []
    other = copy.deepcopy(versions)
    other["workers"][address]["packages"]["python"] = "3.10.1.final.0"
    other["workers"][address]["packages"]["numpy"] = "1.0"
    other["scheduler"]["packages"]["distclust"] = None
    assert sessions._compare_versions(other, releases | {address: ImportError("no")}) == [
        f"distclust missing on scheduler but {__version__} here",
        f"python 3.10 on worker {address} but 3.11 here",
        f"distclust missing on worker {address} but {__version__} here",
        f"numpy 1.0 on worker {address} but {np.__version__} here",
    ]


@pytest.mark.cluster
def test_connect__refuses_a_cluster_of_other_versions(local_client, monkeypatch):
    monkeypatch.setattr(sessions, "__version__", "0.0.1")
    with pytest.raises(ClusterError, match=r"distclust .* on worker .* but 0\.0\.1 here"):
        engine.connect(local_client.scheduler.address)
    assert engine.current_client() is None


@pytest.mark.cluster
def test_connect__cluster_without_workers():
    from distributed import LocalCluster

    with (
        LocalCluster(n_workers=0, processes=False, **PLAIN) as cluster,
        pytest.raises(ClusterError, match=r"a worker within 0.5 s"),
    ):
        engine.connect(cluster.scheduler_address, timeout=0.5)


@pytest.mark.cluster
def test_result_of__gives_up_when_all_workers_are_gone(monkeypatch):
    from distributed import Client, LocalCluster

    monkeypatch.setattr(fetching, "NO_WORKERS_SECONDS", 0.2)
    monkeypatch.setattr(fetching, "_QUIET_POLL_SECONDS", 0.1)
    with (
        LocalCluster(n_workers=0, processes=False, **PLAIN) as cluster,
        Client(cluster, set_as_default=False) as client,
        client.as_current(),
        pytest.raises(ClusterError, match="at least one worker"),
    ):
        engine.run(current_place)


@pytest.mark.parametrize(
    ("text", "seconds"), [(None, fetching.NO_WORKERS_SECONDS), ("90", 90.0), ("0.5", 0.5)]
)
def test_patience__environment_overrules(monkeypatch, text, seconds):
    monkeypatch.delenv("DISTCLUST_NO_WORKERS_SECONDS", raising=False)
    if text is not None:
        monkeypatch.setenv("DISTCLUST_NO_WORKERS_SECONDS", text)
    assert fetching._patience_seconds() == seconds


@pytest.mark.cluster
@pytest.mark.parametrize("text", ["0", "-1", "long", "nan", "inf", ""])
def test_patience__refuses_what_is_no_number_of_seconds(monkeypatch, on_client, text):
    monkeypatch.setenv("DISTCLUST_NO_WORKERS_SECONDS", text)
    with pytest.raises(InputError, match=f"DISTCLUST_NO_WORKERS_SECONDS.*{text!r}"):
        engine.run(current_place)


@pytest.mark.cluster
def test_result_of__task_the_scheduler_dropped_is_a_cluster_error():
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=0, processes=False, **PLAIN) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        future = client.submit(current_place, pure=False)
        client.cancel([future])
        with pytest.raises(ClusterError, match="the connection to the scheduler was lost"):
            fetching.result_of(client, future)


@pytest.mark.cluster
def test_result_of__who_gives_up_waiting_does_not_stop_others(local_client):
    """Dask sends few requests at a time; one that waits its turn is shared by all that ask."""
    client = local_client
    tasks = [client.submit(abs, -number, pure=False) for number in (3, 4, 5)]
    assert [task.result() for task in tasks] == [3, 4, 5]

    async def hold_requests() -> None:
        for _ in range(5):
            await client._gather_semaphore.acquire()

    async def let_go() -> None:
        for _ in range(5):
            client._gather_semaphore.release()

    client.sync(hold_requests)
    first, second = (fetching.Fetch(client, task) for task in tasks[:2])
    deadline = time.monotonic() + 10
    while client._gather_keys != {task.key for task in tasks[:2]}:
        assert time.monotonic() < deadline, "the second did not join the first"
        time.sleep(0.01)
    first.cancel()
    client.sync(let_go)
    assert second.result() == 4
    assert fetching.result_of(client, tasks[2]) == 5
    assert fetching.result_of(client, tasks[0]) == 3  # still held by its owner


def test_check_worker_memory__in_process():
    engine.check_worker_memory(1e3, "BHC.fit", "a block")
    with engine.connect("threads", threads=2):
        share = 0.8 * psutil.virtual_memory().available / 2
        engine.check_worker_memory(0.5 * share, "BHC.fit", "a block")
        message = r"BHC\.fit: .*at least .* GB of free memory for each thread \(a block\)"
        with pytest.raises(CapacityError, match=message):
            engine.check_worker_memory(1.5 * share, "BHC.fit", "a block")


@pytest.mark.cluster
def test_check_worker_memory__on_a_client(on_client):
    engine.check_worker_memory(1.9e9, "BHC.fit", "a block")
    message = (
        r"BHC\.fit: expected workers with at least 2\.10 GB for each thread \(a block\), "
        r"got 2\.00 GB on tcp://127\.0\.0\.1:\d+\. Give workers more memory or fewer threads\."
    )
    with pytest.raises(CapacityError, match=message):
        engine.check_worker_memory(2.1e9, "BHC.fit", "a block")


def cluster_of(machines: dict[str, tuple[int, int]], scheduler: str = "tcp://10.0.0.1:1") -> Any:
    """Return a client of workers with these addresses, memories and threads."""
    facts = {
        address: {"memory_limit": memory, "nthreads": threads}
        for address, (memory, threads) in machines.items()
    }

    def tell(n_workers: int = 5) -> dict[str, Any]:  # as some releases of Dask have it
        shown = list(facts.items())[: n_workers if n_workers >= 0 else None]
        return {"workers": dict(shown)}

    return SimpleNamespace(
        scheduler_info=tell,
        scheduler=SimpleNamespace(address=scheduler),
        nthreads=lambda: {address: threads for address, (_, threads) in machines.items()},
        close=lambda: None,
    )


def started_for(addresses: list[str]) -> Any:
    """Return a cluster of this process, with such workers."""
    workers = {address: SimpleNamespace(address=address, nthreads=1) for address in addresses}
    running = SimpleNamespace(name="running")
    scheduler = SimpleNamespace(status=running, workers=workers)
    return SimpleNamespace(scheduler=scheduler, close=lambda: None)


GB = 10**9


@pytest.mark.parametrize(
    ("machines", "smallest"),
    [
        ([(8 * GB, 1), (8 * GB, 4)], 2 * GB),
        ([(8 * GB, 1)] * 7 + [(GB, 1)], GB),
        ([(0, 1), (3 * GB, 1)], 3 * GB),
        ([(0, 1)], None),
        ([], None),
    ],
)
def test_check_worker_memory__smallest_share_of_a_thread_counts(machines, smallest):
    found = {f"tcp://10.0.0.2:{port}": machine for port, machine in enumerate(machines, 1)}
    with sessions.Session("there", cluster_of(found)):
        if smallest is None:
            engine.check_worker_memory(1e18, "fit", "a block")
            return
        engine.check_worker_memory(smallest, "fit", "a block")
        with pytest.raises(CapacityError, match=f"got {smallest / GB:.2f} GB"):
            engine.check_worker_memory(smallest + 1, "fit", "a block")


@pytest.mark.parametrize(
    ("addresses", "started_here", "shared"),
    [
        (["tcp://127.0.0.1:1", "tcp://127.8.0.1:2"], False, True),
        (["tcp://[::1]:1", "tls://localhost:2"], False, True),
        (["inproc://10.0.0.1/1/2"], False, True),
        (["tcp://127.0.0.1:1", "tcp://10.0.0.1:2"], False, False),
        (["tcp://10.0.0.1:2"], True, True),
        (["tcp://127.0.0.1:1", "tcp://10.0.0.1:2"], True, True),
        (["tcp://10.0.0.2:2"], True, False),
        ([*(f"tcp://127.0.0.1:{port}" for port in range(1, 8)), "tcp://10.0.0.2:2"], False, False),
        ([], True, True),
        ([], False, False),
    ],
)
def test_shares_disk__where_all_workers_are_on_this_machine(addresses, started_here, shared):
    client = cluster_of(dict.fromkeys(addresses, (GB, 1)))
    cluster = started_for(addresses) if started_here else None
    client.cluster = cluster
    with sessions.Session("there", client, cluster):
        assert engine.shares_disk() is shared


@pytest.mark.cluster
def test_shares_disk__in_process_and_on_a_local_cluster(local_client):
    assert engine.shares_disk()
    with local_client.as_current():
        assert engine.shares_disk()


@pytest.mark.cluster
def test_current_client__never_one_inside_a_task(local_client):
    assert current_place()[0]
    with local_client.as_current():
        assert engine.current_client() is local_client
        assert engine.run(current_place) == (True, 1)
    # a task of the user's own, not sent by the engine
    assert local_client.submit(current_place, pure=False).result() == (True, 1)


@pytest.mark.cluster
def test_run__worker_in_this_process_works_and_stays_in_process():
    from distributed import Client, LocalCluster

    from distclust import events

    seen: list[events.Event] = []
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, **PLAIN) as cluster,
        Client(cluster, set_as_default=False) as client,
        client.as_current(),
        events.listen(seen.append),
    ):
        assert engine.run(current_place) == (True, 2)
        engine.run(events.emit, "once", 1)
    assert [event.stage for event in seen] == ["once"]


@pytest.mark.cluster
def test_current_client__asynchronous_client_is_refused():
    import asyncio

    from distributed import Client, Scheduler

    async def ask() -> None:
        async with (
            Scheduler(
                host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0", dashboard=False
            ) as scheduler,
            Client(scheduler.address, asynchronous=True, set_as_default=True),
        ):
            engine.current_client()

    with pytest.raises(ClusterError, match="asynchronous"):
        asyncio.run(ask())


def test_allowed_cores__environment_overrules(monkeypatch):
    monkeypatch.setenv("DISTCLUST_THREADS", "7")
    assert engine.allowed_cores() == 7
    assert engine.local_threads() == 7
    monkeypatch.setenv("DISTCLUST_THREADS", "many")
    with pytest.raises(InputError, match=r"DISTCLUST_THREADS.*'many'"):
        engine.allowed_cores()


@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("", 8), (None, 8)],
)
def test_container_cores__follow_the_quota(tmp_path, text, cores):
    path = tmp_path / "cpu.max"
    if text is not None:
        path.write_text(text)
    assert threads._container_cores(path, 8) == cores


def test_thread_map__keeps_order_and_uses_threads():
    barrier = threading.Barrier(3, timeout=20)

    def meet(item: int) -> tuple[int, int, int]:
        if item < 3:
            barrier.wait()  # passes only if three threads are at work
        return item, threading.get_ident(), engine.local_threads()

    results = engine.thread_map(meet, range(40), 3)
    assert [item for item, _, _ in results] == list(range(40))
    assert threading.get_ident() in {thread for _, thread, _ in results}
    assert {granted for _, _, granted in results} == {1}


@pytest.mark.parametrize("n_threads", [1, 2, 8])
def test_thread_map__raises_what_was_raised_and_starts_no_more(n_threads):
    started = []

    def fail(item: int) -> None:
        started.append(item)
        if item == 5:
            raise KeyError(item)

    with pytest.raises(KeyError):
        engine.thread_map(fail, range(10_000), n_threads)
    assert len(started) < 10_000


def test_thread_map__may_nest_deeper_than_the_pool():
    def inner(item: int) -> int:
        return sum(engine.thread_map(abs, [item, -1], 4))

    def outer(item: int) -> int:
        return sum(engine.thread_map(inner, range(item, item + 4), 4))

    assert engine.thread_map(outer, range(100), 100) == [4 * i + 10 for i in range(100)]


def test_thread_map__nothing_to_do():
    assert engine.thread_map(abs, [], 4) == []


def blas_threads() -> set[int]:
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_info

    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


def test_one_blas_thread__overlapping_users_keep_it_until_the_last_leaves():
    controller = threads._controller()
    with controller.limit(limits=2, user_api="blas"):
        first, second = contextlib.ExitStack(), contextlib.ExitStack()
        first.enter_context(engine.one_blas_thread)
        second.enter_context(engine.one_blas_thread)
        assert blas_threads() == {1}
        first.close()
        assert blas_threads() == {1}
        second.close()
        assert blas_threads() == {2}


def test_one_blas_thread__one_thread_may_set_it_and_another_lift_it():
    limit = engine.one_blas_thread
    with (
        threads._controller().limit(limits=2, user_api="blas"),
        ThreadPoolExecutor(1) as other,
    ):
        for enter, leave in itertools.product((limit.__enter__, None), (limit.__exit__, None)):
            enter() if enter else other.submit(limit.__enter__).result()
            assert blas_threads() == {1}
            leave() if leave else other.submit(limit.__exit__).result()
            assert blas_threads() == {2}


def inside_blas_threads(block: Any, start: int) -> set[int]:
    return blas_threads()


@pytest.mark.cluster
def test_map_blocks__products_use_one_thread_everywhere(local_client):
    matrix = engine.as_matrix(np.ones((5, 2)))
    assert list(engine.map_blocks(inside_blas_threads, matrix)) == [{1}]
    assert engine.thread_map(lambda _: blas_threads(), [0, 1], 2) == [{1}, {1}]
    assert engine.run(blas_threads) == {1}
    with local_client.as_current():
        assert list(engine.map_blocks(inside_blas_threads, matrix)) == [{1}]


def test_doctor__describes_this_installation():
    import json

    report = engine.doctor()
    assert json.loads(json.dumps(report)) == report
    assert report["cluster"] is None
    assert report["packages"]["numpy"] == np.__version__
    assert report["memory"]["total"] >= report["memory"]["available"] > 0
    assert report["threads"]["allowed"] >= 1
    assert report["problems"] == []


def test_doctor__names_what_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(diagnosis, "_version_of", lambda name: None)
    monkeypatch.setattr("distclust.compiled.cache_folder", lambda: None)
    report = engine.doctor()
    assert "dashboard" in report["missing"]["bokeh"]
    assert "Package numba is missing." in report["problems"]
    assert any("DISTCLUST_CACHE_DIR" in problem for problem in report["problems"])


@pytest.mark.cluster
def test_doctor__describes_the_cluster(on_client, monkeypatch):
    cluster = engine.doctor()["cluster"]
    assert (cluster["workers"], cluster["threads"]) == (2, 2)
    assert cluster["scheduler"] == on_client.scheduler.address
    assert cluster["mismatches"] == []
    monkeypatch.setattr(diagnosis, "version_mismatches", lambda _: ["numpy 1 on worker a"])
    assert engine.doctor()["problems"] == ["Versions differ: numpy 1 on worker a."]


def test_import__needs_neither_dask_nor_numba():
    script = (
        "import sys, distclust.events, distclust.store, distclust.seeding, distclust.engine;"
        "print([m for m in ('dask', 'distributed', 'numba', 'pandas', 'sklearn')"
        " if m in sys.modules])"
    )
    root = Path(engine.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.strip() == "[]"
