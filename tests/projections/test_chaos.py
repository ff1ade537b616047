"""Fits of kernel PCA on processes that die, freeze or run out of disk: the same bits."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import WorkerPlugin

import distclust
from distclust import KernelPCA, engine, events
from distclust.engine import Crew
from distclust.errors import CheckpointWarning, ClusterError
from distclust.projections import kernel_pca
from distclust.projections.krylov import STAGE
from distclust.store.checkpoints import CHECKPOINTS, Checkpoints
from distclust.store.results import ResultsStore
from tests import slow_kernels
from tests.small_tiles import SmallTiles, shrink
from tests.test_chaos import Cluster

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

ROOT = Path(__file__).parents[2]
TILE = 64
N = 10 * TILE + 5  # eleven shards
EVERY = 2  # rounds between checkpoints
N_WORKERS = 3


@pytest.fixture(scope="module", autouse=True)
def small_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, TILE)
        yield


def make_rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 6)) + rng.integers(0, 4, size=(N, 1))


def make() -> KernelPCA:
    """Return a model that evaluates all tiles in every round: a round takes a while."""
    return KernelPCA(
        6,
        kernel=slow_kernels.slow_rbf,
        tolerance=1e-11,
        memory_budget=1,
        random_state=0,
    )


@pytest.fixture(scope="module")
def unbroken() -> KernelPCA:
    """The fit in process, without waiting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slow_kernels, "SECONDS", 0.0)
        with engine.connect("threads", threads=2):
            model = make().fit(make_rows())
    assert model.n_iter_ >= 8
    return model


def check_same(got: Any, wanted: KernelPCA) -> None:
    assert got.components_.tobytes() == wanted.components_.tobytes()
    assert got.eigenvalues_.tobytes() == wanted.eigenvalues_.tobytes()
    assert got.residuals_.tobytes() == wanted.residuals_.tobytes()
    assert got.n_iter_ == wanted.n_iter_


class Crews:
    """Makes the crews of fits; the last one can be looked at."""

    def __init__(self, **options: Any) -> None:
        self.options = {"every": EVERY, **options}
        self.made: list[Crew] = []
        self.rounds: list[int] = []

    def __call__(self, *args: Any, **options: Any) -> Crew:
        crew = Crew(*args, **{**options, **self.options})
        self.made.append(crew)
        return crew

    @property
    def last(self) -> Crew:
        return self.made[-1]


@pytest.fixture
def crews(monkeypatch) -> Crews:
    found = Crews()
    plain = Crew._do_round

    def spy(crew: Crew, order: Any) -> None:
        found.rounds.append(crew.position)
        plain(crew, order)

    monkeypatch.setattr(kernel_pca, "Crew", found)
    monkeypatch.setattr(Crew, "_do_round", spy)
    return found


def check_redone(crew: Crew, every: int = EVERY) -> None:
    """No more is done again than what came after the last checkpoint."""
    assert crew.n_restarts >= 1, "nobody was lost"
    assert crew.n_redone <= every * crew.n_restarts


@pytest.fixture(scope="module")
def cluster() -> Iterator[engine.Session]:
    with engine.connect("local", workers=N_WORKERS, threads=1) as session:
        session.client.register_plugin(SmallTiles(TILE))
        yield session


@pytest.fixture
def session(cluster) -> engine.Session:
    """The cluster, when all its workers are there again."""
    end = time.monotonic() + 60
    while not _are_all_there(cluster):
        assert time.monotonic() < end, "workers did not come back"
        time.sleep(0.05)
    return cluster


def _are_all_there(cluster: engine.Session) -> bool:
    """Whether those that the scheduler knows are those that live."""
    pids = cluster.client.run(os.getpid, on_error="return").values()
    return len(pids) == N_WORKERS and set(pids) == set(pids_of(cluster))


def pids_of(session: engine.Session) -> list[int]:
    return [k.pid for k in list(session._cluster.workers.values()) if k.pid]


class At:
    """Calls a function once, when so many products of a fit are done."""

    def __init__(self, n_done: int, action: Callable[[], Any]) -> None:
        self.n_done, self.action = n_done, action
        self.was_reached = False

    def __call__(self, event: events.Event) -> None:
        if event.stage == STAGE and event.done >= self.n_done and not self.was_reached:
            self.was_reached = True
            self.action()


# ---- workers that die --------------------------------------------------------------------------


class Killer(threading.Thread):
    """Kills workers at seeded random moments, from the first product on."""

    def __init__(self, session: engine.Session, seed: int, n_kills: int) -> None:
        super().__init__()
        self.session, self.n_kills = session, n_kills
        self.rng = np.random.default_rng(seed)
        self.has_begun, self.is_over = threading.Event(), threading.Event()
        self.n_killed = 0

    def run(self) -> None:
        self.has_begun.wait()
        while self.n_killed < self.n_kills and not self.is_over.wait(self.rng.uniform(0.05, 0.5)):
            pids = pids_of(self.session)
            if len(pids) < 2:  # others are starting: somebody goes on
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(self.rng.choice(pids)), signal.SIGKILL)
                self.n_killed += 1

    def __enter__(self) -> Killer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.has_begun.set()
        self.join()


def test_workers__killed_at_random_moments_change_nothing(seed, crews, unbroken, session):
    with (
        Killer(session, seed, n_kills=2) as killer,
        events.listen(At(1, killer.has_begun.set)),
    ):
        model = make().fit(make_rows())
    assert killer.n_killed >= 1
    check_same(model, unbroken)
    check_redone(model._kept_crew.crew)
    model.close()


def test_workers__killed_while_rows_join(crews, session):
    rows = make_rows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slow_kernels, "SECONDS", 0.0)
        with engine.connect("threads", threads=2):
            wanted = make().fit(rows[:600]).partial_fit(rows[600:])
    model = make().fit(rows[:600])
    death = At(2, lambda: os.kill(pids_of(session)[0], signal.SIGKILL))
    with events.listen(death):
        model.partial_fit(rows[600:])
    assert death.was_reached
    check_same(model, wanted)
    check_redone(model._kept_crew.crew)
    model.close()


def test_restart_budget__exceeded_names_the_shard(crews, session, tmp_path):
    crews.options["restarts"] = 0
    death = At(2, lambda: os.kill(pids_of(session)[0], signal.SIGKILL))
    with (
        events.listen(death),
        pytest.raises(ClusterError, match=r"shard \d+ \(rows \d+ to \d+\)") as raised,
    ):
        make().fit(make_rows(), results=tmp_path)
    assert "at most 0 restarts" in str(raised.value)
    assert len(ResultsStore(tmp_path).unfinished()) == 1  # and may be gone on with


# ---- workers that freeze -----------------------------------------------------------------------


def test_worker__frozen_beyond_the_heartbeat_and_thawed(
    crews, session, unbroken, monkeypatch, tmp_path
):
    """Its shards went on elsewhere; what it still believes must not count."""
    monkeypatch.setenv("DISTCLUST_HEARTBEAT_SECONDS", "2")
    thawed_at: list[int] = []
    with contextlib.ExitStack() as stack:

        def freeze() -> None:
            pid = pids_of(session)[0]
            os.kill(pid, signal.SIGSTOP)
            stack.callback(os.kill, pid, signal.SIGCONT)
            thread = threading.Thread(target=thaw, args=(pid,))
            stack.callback(thread.join)
            thread.start()

        def thaw(pid: int) -> None:
            end = time.monotonic() + 60
            while crews.last.n_restarts == 0 and time.monotonic() < end:
                time.sleep(0.02)
            thawed_at.append(crews.last.position)
            os.kill(pid, signal.SIGCONT)

        with events.listen(At(3, freeze)):
            model = make().fit(make_rows(), results=tmp_path)
    check_same(model, unbroken)
    check_redone(model._kept_crew.crew)
    assert thawed_at[0] < unbroken.n_iter_ - 1, "it came back when all was over"
    model.close()
    check_same(distclust.load(tmp_path), unbroken)
    assert ResultsStore(tmp_path).verify() == []


# ---- the scheduler -----------------------------------------------------------------------------


@pytest.fixture
def clusters(tmp_path) -> Iterator[Callable[[], Cluster]]:
    made: list[Cluster] = []

    def make_one() -> Cluster:
        made.append(Cluster(tmp_path / f"cluster-{len(made)}"))
        return made[-1]

    yield make_one
    for cluster in made:
        cluster.close()


def test_scheduler__its_death_is_said_and_another_one_goes_on(crews, clusters, unbroken, tmp_path):
    results = tmp_path / "results"
    first = clusters()
    death = At(5, first.kill_scheduler)
    with engine.connect(first.address, timeout=15) as session:
        session.client.register_plugin(SmallTiles(TILE))
        with events.listen(death), pytest.raises(ClusterError, match="scheduler"):
            make().fit(make_rows(), results=results)
    assert death.was_reached
    crews.rounds.clear()
    with engine.connect(clusters().address, timeout=60) as session:
        session.client.register_plugin(SmallTiles(TILE))
        model = make().fit(make_rows(), results=results)
        model.close()
    check_same(model, unbroken)
    assert 5 - EVERY <= crews.rounds[0] <= 6
    assert crews.rounds == list(range(crews.rounds[0], unbroken.n_iter_))


# ---- disks -------------------------------------------------------------------------------------


def fill_disk(patch: pytest.MonkeyPatch) -> None:
    def save(self: Checkpoints, *_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.prefix)

    patch.setattr(Checkpoints, "save", save)


class FullDisk(WorkerPlugin):
    """Nothing can be saved on any worker."""

    name = "full-disk"

    def setup(self, worker: Any) -> None:
        self._patch = pytest.MonkeyPatch()
        fill_disk(self._patch)

    def teardown(self, worker: Any) -> None:
        self._patch.undo()


@pytest.fixture
def full_disk(session) -> Iterator[None]:
    session.client.register_plugin(FullDisk())
    yield
    session.client.unregister_worker_plugin(FullDisk.name)


@pytest.mark.usefixtures("full_disk")
def test_disk__full_and_a_worker_dies(crews, session, unbroken):
    """Everything is done again then, and comes out the same."""
    death = At(3, lambda: os.kill(pids_of(session)[0], signal.SIGKILL))
    with warnings.catch_warnings(record=True) as caught, events.listen(death):
        warnings.simplefilter("always")
        model = make().fit(make_rows())
    assert any("No space left" in str(w.message) for w in caught)
    assert {w.category for w in caught} == {CheckpointWarning}
    check_same(model, unbroken)
    check_redone(model._kept_crew.crew, every=unbroken.n_iter_)
    assert model._kept_crew.crew.n_redone >= 3
    model.close()


def test_newest_checkpoints__damaged_and_a_worker_dies(crews, session, unbroken, tmp_path):
    def strike() -> None:  # in the driver, between two rounds: nobody saves meanwhile
        for folder in (tmp_path / CHECKPOINTS).rglob("member-*"):
            newest = max(folder.glob("*.checkpoint"))
            newest.write_bytes(newest.read_bytes()[:-100])
        os.kill(pids_of(session)[0], signal.SIGKILL)

    blow = At(2 * EVERY + 1, strike)
    with warnings.catch_warnings(record=True) as caught, events.listen(blow):
        warnings.simplefilter("always")
        model = make().fit(make_rows(), results=tmp_path)
    assert blow.was_reached
    assert any("damaged checkpoint is passed over" in str(w.message) for w in caught)
    check_same(model, unbroken)
    check_redone(model._kept_crew.crew, every=2 * EVERY)  # one generation further back
    model.close()


# ---- the driver --------------------------------------------------------------------------------

DRIVER = """
import sys
import numpy as np
import pytest
from distclust import engine, events
from distclust.projections import kernel_pca
from tests.projections import test_chaos
from tests.small_tiles import shrink

address, results, out = sys.argv[1:]
shrink(pytest.MonkeyPatch(), test_chaos.TILE)
kernel_pca.Crew = test_chaos.Crews()
with engine.connect(address, timeout=60):
    tell = lambda event: print(event.stage, event.done, flush=True)
    with events.listen(tell):
        model = test_chaos.make().fit(test_chaos.make_rows(), results=results)
    np.savez(out, components=model.components_, eigenvalues=model.eigenvalues_)
"""


def start_driver(address: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", DRIVER, address, str(folder / "results"), str(folder / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def products_of(line: str) -> int | None:
    stage, _, done = line.rstrip().rpartition(" ")
    return int(done) if stage == STAGE else None


def test_driver__killed_and_the_same_command_again(session, unbroken, tmp_path):
    address = session.client.scheduler.address
    first = start_driver(address, tmp_path)
    assert first.stdout is not None
    for line in first.stdout:
        if (products_of(line) or 0) >= 5:
            break
    first.kill()
    first.wait()
    first.stdout.close()
    assert not (tmp_path / "out.npz").exists()
    second = start_driver(address, tmp_path)
    text, _ = second.communicate(timeout=120)
    assert second.returncode == 0
    done = [n for line in text.splitlines() if (n := products_of(line)) is not None]
    assert done[0] >= 5 - EVERY, "it began at the beginning"
    with np.load(tmp_path / "out.npz") as found:
        assert found["components"].tobytes() == unbroken.components_.tobytes()
        assert found["eigenvalues"].tobytes() == unbroken.eigenvalues_.tobytes()
    assert ResultsStore(tmp_path / "results").unfinished() == {}
