"""Fits on clusters whose processes die: the same bits in the end, or a sentence."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distclust
from distclust import EMBHC, RandomizedBHC, engine, events
from distclust.errors import ClusterError
from distclust.store.checkpoints import CHECKPOINTS
from distclust.store.results import ResultsStore
from distclust.trees.large import LargeTreeEstimator
from tests.small_blocks import BLOCK_ROWS, SmallBlocks, shrink

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

N_ROWS, N_SPANS = 60 * BLOCK_ROWS + 3, 8
ROOT = Path(__file__).parent.parent
N_KILLS, N_EVENTS = 3, 30  # workers that die within so many first events of a fit

MAKERS: dict[str, Callable[[], LargeTreeEstimator]] = {
    "rbhc": lambda: RandomizedBHC(
        sample_size=48, check_size=16, family="diagonal_gaussian", random_state=1
    ),
    "embhc": lambda: EMBHC(sample_size=48, n_sweeps=4, family="diagonal_gaussian", random_state=1),
}


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "X.zarr"
    rng = np.random.default_rng(0)
    centres = rng.normal(0.0, 2.0, size=(24, 8))
    # Real numbers: their sums tell in which order they were added.
    rows = centres[rng.integers(24, size=N_ROWS)] + rng.normal(size=(N_ROWS, 8))
    distclust.ingest(iter([rows]), path)
    return path


@pytest.fixture(scope="module")
def in_process(stored, tmp_path_factory) -> dict[str, LargeTreeEstimator]:
    place = tmp_path_factory.mktemp("in-process")
    return {kind: make().fit(stored, results=place / kind) for kind, make in MAKERS.items()}


def assert_same(got: LargeTreeEstimator, wanted: LargeTreeEstimator) -> None:
    """Labels, tree and evidence, to the last bit."""
    np.testing.assert_array_equal(got.labels_.compute(), wanted.labels_.compute())
    a, b = got.tree_, wanted.tree_
    assert a.structure.child_list.tobytes() == b.structure.child_list.tobytes()
    assert a.statistics.tobytes() == b.statistics.tobytes()
    assert a.log_odds.tobytes() == b.log_odds.tobytes()
    assert got.objective_path_.tobytes() == wanted.objective_path_.tobytes()
    assert (got.log_evidence_, got.n_passes_) == (wanted.log_evidence_, wanted.n_passes_)


# ---- workers -------------------------------------------------------------------------------------


class Killer:
    """Kills workers of a local cluster at seeded random moments.

    A moment is a number of events of the fit and a little time after it, so that workers die
    within the fit however fast or slow it is, at the start of a stage, amid its tasks or between.
    """

    def __init__(self, session: engine.Session, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.keepers = session._cluster.workers  # those that start again what dies
        moments = self.rng.choice(np.arange(1, N_EVENTS), N_KILLS, replace=False)
        self.delays = dict(zip(moments.tolist(), self.rng.uniform(0.0, 0.02, N_KILLS), strict=True))
        self.killed: list[int] = []
        self._n_events = 0
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> Killer:
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.join()

    def see(self, event: events.Event) -> None:
        self._n_events += 1
        if self._n_events in self.delays:
            self._timers.append(threading.Timer(self.delays[self._n_events], self._kill))
            self._timers[-1].start()

    def _kill(self) -> None:
        pids = [keeper.pid for keeper in list(self.keepers.values()) if keeper.pid]
        if not pids:  # all are starting
            return
        pid = int(self.rng.choice(pids))
        with contextlib.suppress(ProcessLookupError):  # died of itself meanwhile
            os.kill(pid, signal.SIGKILL)
            self.killed.append(pid)


def test_workers__killed_at_random_moments_change_nothing(seed, stored, in_process, tmp_path):
    with engine.connect("local", workers=3, threads=1) as session:
        session.client.register_plugin(SmallBlocks())
        for kind, make in MAKERS.items():
            with Killer(session, seed) as killer, events.listen(killer.see):
                model = make().fit(stored, results=tmp_path / kind)
                n_killed = len(killer.killed)
            assert n_killed >= 1, "nobody died during the fit"
            assert_same(model, in_process[kind])
            store = ResultsStore(tmp_path / kind)
            assert store.verify() == []
            assert store.objects.list(CHECKPOINTS) == []


# ---- the scheduler -------------------------------------------------------------------------------


class Cluster:
    """A scheduler and a worker, processes of their own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        file = folder / "scheduler.json"
        self.scheduler = _start("scheduler", "--port", "0", "--no-dashboard", file=file)
        self.worker = _start("worker", "--no-nanny", "--nthreads", "1", file=file)
        self.address = _address(file)

    def kill_scheduler(self) -> None:
        self.scheduler.kill()
        self.scheduler.wait()

    def close(self) -> None:
        for process in (self.worker, self.scheduler):
            process.kill()
            process.wait()


def _start(role: str, *options: str, file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{role}", *options]
    command += ["--host", "127.0.0.1", "--scheduler-file", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(file.with_suffix(f".{role}.log"), "wb") as log:
        return subprocess.Popen(
            command, env=environment, cwd=file.parent, stdout=log, stderr=subprocess.STDOUT
        )


def _address(file: Path) -> str:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # not yet, or half
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.1)
    raise AssertionError(f"no scheduler within a minute: {file}")


@pytest.fixture
def clusters(tmp_path) -> Iterator[Callable[[], Cluster]]:
    made: list[Cluster] = []

    def make() -> Cluster:
        made.append(Cluster(tmp_path / f"cluster-{len(made)}"))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


class Stage:
    """Calls a function once, when so many tasks of a stage of a fit are done."""

    def __init__(self, name: str, n_done: int, action: Callable[[], Any]) -> None:
        self.name = name
        self.n_done = n_done
        self.action = action
        self.was_reached = False

    def see(self, event: events.Event) -> None:
        if event.stage == self.name and event.done >= self.n_done and not self.was_reached:
            self.was_reached = True
            self.action()


@pytest.mark.parametrize(
    ("kind", "stage", "n_done", "next_stages"),
    [
        ("rbhc", "filtering, pass 2", 1, ["filtering, pass 2"]),
        # Not every task is reported: the sweep may be over before its first report.
        ("embhc", "sweep 1 of 4", 1, ["sweep 1 of 4", "sweep 2 of 4"]),
        ("embhc", "rows to seeds", N_SPANS, ["sweep 1 of 4"]),  # found out when tasks are sent
    ],
)
def test_scheduler__its_death_is_said_and_another_one_goes_on(
    kind, stage, n_done, next_stages, stored, in_process, clusters, tmp_path
):
    results = tmp_path / "results"
    first = clusters()
    death = Stage(stage, n_done, first.kill_scheduler)
    with engine.connect(first.address, timeout=15) as session:
        session.client.register_plugin(SmallBlocks())
        with events.listen(death.see), pytest.raises(ClusterError, match="scheduler"):
            MAKERS[kind]().fit(stored, results=results)
    assert death.was_reached
    (run,) = ResultsStore(results).unfinished()
    with engine.connect(clusters().address, timeout=60) as session:
        session.client.register_plugin(SmallBlocks())
        stages: list[str] = []
        with events.listen(lambda event: stages.append(event.stage)):
            model = MAKERS[kind]().fit(stored, results=results)
    assert stages[0] in next_stages  # what was saved is not done again
    assert model.version_ == run
    assert_same(model, in_process[kind])
