"""Crews on real processes that die, freeze and lose their scheduler: the same bits in the end."""

from __future__ import annotations

import contextlib
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

from distclust import engine
from distclust.engine.crews import Crew, Vault, drain_worker, on_client, read_board
from distclust.errors import CheckpointWarning, ClusterError
from distclust.store.objects import LocalObjects
from tests import crew_driver
from tests.test_chaos import Cluster
from tests.walkers import (
    Leader,
    Walk,
    Walker,
    n_redone,
    steps_in,
    walk_together,
    write_down,
)

pytestmark = [pytest.mark.chaos, pytest.mark.cluster]

N_MEMBERS, N_ROUNDS, EVERY = 6, 30, 5
STEP_SECONDS = 0.02
WANTED = walk_together(N_MEMBERS, N_ROUNDS)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def shared_session() -> Iterator[engine.Session]:
    with engine.connect("local", workers=2, threads=1) as session:
        yield session


@pytest.fixture
def session(shared_session) -> engine.Session:
    """The cluster, when all that an earlier test killed are there again."""
    wait_for(lambda: len(shared_session.client.nthreads()) == 2)
    return shared_session


def pids_of(session: engine.Session) -> list[int]:
    """Return the processes of the workers that are up."""
    return [keeper.pid for keeper in session._cluster.workers.values() if keeper.pid]


def wait_for(what: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


class Acting(Leader):
    """Calls functions before some rounds."""

    def __init__(self, actions: dict[int, Callable[[], Any]], n_rounds: int = N_ROUNDS) -> None:
        super().__init__(n_rounds)
        self.actions = actions

    def order(self, state):
        if state.n in self.actions:
            self.actions.pop(state.n)()
        return super().order(state)


class Ready(Acting):
    """Waits before the first round until all workers are there again."""

    def __init__(self, session: engine.Session, actions: dict[int, Callable[[], Any]]) -> None:
        super().__init__(actions)
        self.session = session

    def begin(self):
        wait_for(lambda: len(self.session.client.nthreads()) == 2)
        return super().begin()


@contextlib.contextmanager
def crew_of(tmp_path: Path, role: Walker | None = None, **options: Any) -> Iterator[Crew]:
    vault = options.pop("vault", None) or Vault.at(tmp_path, "run", "mine")
    role = role or Walker(STEP_SECONDS, tmp_path / "journal")
    settings = {"every": EVERY, "restarts": 20, **options}
    with Crew(role, N_MEMBERS, vault=vault, **settings) as crew:
        yield crew


def assert_bounded(crew: Crew, journal: Path, n_losses: int) -> None:
    """What was done again is at most what came after the last checkpoint, for each loss."""
    assert crew.n_restarts <= n_losses * N_MEMBERS
    assert crew.n_redone <= crew.n_restarts * EVERY
    # Steps in a worker that died or froze may have been done, too, without being reported.
    assert n_redone(journal) <= crew.n_redone + n_losses * N_MEMBERS


# ---- workers ---------------------------------------------------------------------------------


def test_kill__at_random_moments(session, seed, tmp_path):
    rng = np.random.default_rng(seed)
    killed: list[int] = []

    def kill() -> None:
        time.sleep(rng.uniform(0.0, 2 * N_MEMBERS * STEP_SECONDS))
        pids = pids_of(session)
        if pids:
            killed.append(int(rng.choice(pids)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(killed[-1], signal.SIGKILL)

    def kill_soon() -> None:
        threads.append(threading.Thread(target=kill))
        threads[-1].start()

    threads: list[threading.Thread] = []
    rounds = rng.choice(np.arange(1, N_ROUNDS - 2), size=2, replace=False)
    plan = Ready(session, {int(n): kill_soon for n in rounds})
    with crew_of(tmp_path) as crew:
        assert crew.follow(plan).total.tobytes() == WANTED
    for thread in threads:
        thread.join()
    assert killed
    assert crew.n_restarts >= 1
    assert_bounded(crew, tmp_path / "journal", len(killed))


def test_kill__without_checkpoints_begins_at_the_beginning(session, tmp_path):
    def kill() -> None:
        """A worker that has members; one that came back after an earlier test may have none."""
        busy = [k for k in session._cluster.workers.values() if k.worker_address in places()]
        os.kill(busy[0].pid, signal.SIGKILL)

    def places() -> set[str | None]:
        return {member.berth for member in crew._members}

    plan = Ready(session, {9: kill})
    role = Walker(0.001, tmp_path / "journal")
    with Crew(role, N_MEMBERS) as crew:
        assert crew.follow(plan).total.tobytes() == WANTED
    assert 1 <= crew.n_restarts <= N_MEMBERS
    assert crew.n_redone in {9 * crew.n_restarts, 10 * crew.n_restarts}


def test_kill__of_all_workers_at_once(session, tmp_path):
    def kill_all() -> None:
        for pid in pids_of(session):
            os.kill(pid, signal.SIGKILL)

    with crew_of(tmp_path) as crew:
        assert crew.follow(Ready(session, {12: kill_all})).total.tobytes() == WANTED
    assert crew.n_restarts >= N_MEMBERS
    assert_bounded(crew, tmp_path / "journal", 2)


def test_balance__a_worker_that_comes_back_works_again(session, tmp_path):
    loads: list[int] = []

    def kill() -> None:
        os.kill(pids_of(session)[0], signal.SIGKILL)

    def look() -> None:
        wait_for(lambda: len(session.client.nthreads()) == 2)
        loads.append(len({member.berth for member in crew._members}))

    plan = Ready(session, {3: kill, 6: look, 29: look})
    with crew_of(tmp_path, every=2) as crew:
        assert crew.follow(plan).total.tobytes() == WANTED
    assert loads[-1] == 2
    assert crew.n_restarts <= N_MEMBERS


class Deadly(Walker):
    """One of its members kills every process that it works in."""

    def advance(self, place, member, state, order):
        if member == 4 and state.n == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().advance(place, member, state, order)


def test_budget__used_up_is_an_error_with_the_label(session, tmp_path):
    with (
        pytest.raises(ClusterError, match=r"crew doomed, walker \d: expected at most 1 restarts"),
        crew_of(tmp_path, Deadly(), name="doomed", restarts=1) as crew,
    ):
        crew.follow(Ready(session, {}))


# ---- zombies ---------------------------------------------------------------------------------


class Frozen:
    """Stops a worker and lets it go on when its members are at work elsewhere."""

    def __init__(self, crew: Crew, pid: int) -> None:
        self.pid = pid
        os.kill(pid, signal.SIGSTOP)
        self.thread = threading.Thread(target=self._thaw, args=(crew,))
        self.thread.start()

    def _thaw(self, crew: Crew) -> None:
        try:
            wait_for(lambda: crew.n_restarts)
            wait_for(lambda: all(m.berth and m.call is None for m in crew._members), 5)
        finally:
            os.kill(self.pid, signal.SIGCONT)


def test_freeze__the_zombie_changes_nothing(session, tmp_path):
    """Stopped for longer than the heartbeat allows, then it goes on and wants to save."""
    rng = np.random.default_rng(0)
    frozen: list[Frozen] = []

    def freeze() -> None:
        pid = int(rng.choice(pids_of(session)))
        time.sleep(rng.uniform(0, N_MEMBERS * STEP_SECONDS))
        frozen.append(Frozen(crew, pid))

    def freeze_soon() -> None:
        threading.Thread(target=freeze).start()

    plan = Ready(session, {int(rng.integers(2, 9)): freeze_soon})
    with crew_of(tmp_path, heartbeat=1.5) as crew:
        assert crew.follow(plan).total.tobytes() == WANTED
        for one in frozen:
            one.thread.join()
    assert crew.n_restarts >= 1
    assert_bounded(crew, tmp_path / "journal", crew.n_restarts)
    assert [path.suffix for path in tmp_path.rglob("*.partial")] == []
    with crew_of(tmp_path) as crew:  # what is saved is whole and of the right ones
        assert crew.follow(Leader(N_ROUNDS)).total.tobytes() == WANTED
        assert crew.n_redone == 0


class Slow(LocalObjects):
    """Takes its time between looking at what is there and writing; says when."""

    def write(self, key: str, *buffers: Any) -> None:
        if (self.path / "be-slow").exists() and "member" in key:
            write_down(self.path / "saving", str(os.getpid()))
            time.sleep(0.5)
        super().write(key, *buffers)
        if (self.path / "saving").exists():
            write_down(self.path / "written", f"{os.getpid()} {key}")

    def __reduce__(self):
        return Slow, (self.url,)


def test_freeze__inside_a_save(session, tmp_path):
    """The zombie looked before its heir came, and writes after it."""
    vault = Vault(Slow(tmp_path), "run", "mine")
    frozen: list[Frozen] = []

    def freeze() -> None:
        (tmp_path / "be-slow").touch()
        saving = tmp_path / "saving"
        wait_for(lambda: saving.exists() and saving.read_text().endswith("\n"))
        frozen.append(Frozen(crew, int(saving.read_text().split()[0])))
        (tmp_path / "be-slow").unlink()

    def freeze_soon() -> None:
        thread.start()

    thread = threading.Thread(target=freeze)
    with crew_of(tmp_path, vault=vault, heartbeat=1.5) as crew:
        assert crew.follow(Ready(session, {3: freeze_soon})).total.tobytes() == WANTED
        thread.join()
        (one,) = frozen
        one.thread.join()
    assert crew.n_restarts >= 1
    written = tmp_path / "written"
    wait_for(
        lambda: any(line.startswith(f"{one.pid} ") for line in written.read_text().split("\n"))
    )
    vault = Vault(Slow(tmp_path), "run", "mine", 2)
    with crew_of(tmp_path, vault=vault) as crew:
        assert crew.follow(Leader(N_ROUNDS)).total.tobytes() == WANTED
    assert crew._vault is not None  # with the number of members in its fingerprint
    for member in range(N_MEMBERS):
        saved = crew._vault.checkpoints(f"member-{member:06d}").latest()
        assert saved is not None
        assert crew._vault.restore(Walk, saved).n == saved.step


def test_freeze__while_it_opens(session, tmp_path, monkeypatch):
    """A worker that stops while it is asked to take members in holds nobody up."""
    monkeypatch.setattr(on_client, "_OPEN_SECONDS", 1e9)  # its silence alone must tell
    marker = tmp_path / "opening"
    frozen: list[int] = []

    def freeze() -> None:
        wait_for(marker.exists)
        frozen.append(int(wait_for(marker.read_text).split()[0]))
        os.kill(frozen[0], signal.SIGSTOP)

    wait_for(lambda: len(session.client.nthreads()) == 2)
    thread = threading.Thread(target=freeze)
    thread.start()
    try:
        with crew_of(tmp_path, SlowToOpen(marker), heartbeat=1.5) as crew:
            thread.join()
            assert crew.follow(Leader(N_ROUNDS)).total.tobytes() == WANTED
    finally:
        os.kill(frozen[0], signal.SIGCONT)


class SlowToOpen(Walker):
    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def open(self, previous, room):
        with contextlib.suppress(FileExistsError), open(self.marker, "x") as file:
            file.write(str(os.getpid()))
            file.flush()
            time.sleep(1.0)
        return super().open(previous, room)


# ---- draining, and several crews -------------------------------------------------------------


def test_drain__members_move_and_the_worker_is_retired(session, tmp_path):
    address: list[str] = []

    def drain() -> None:
        address.append(str(crew._members[0].berth))
        thread.start()

    thread = threading.Thread(target=lambda: drain_worker(address[0]))
    with crew_of(tmp_path) as crew:
        assert crew.follow(Ready(session, {7: drain})).total.tobytes() == WANTED
        assert address[0] not in {member.berth for member in crew._members}
        assert address[0] not in crew._hands._remotes
        thread.join()
    assert (crew.n_restarts, crew.n_redone) == (0, 0)
    assert n_redone(tmp_path / "journal") == 0
    assert address[0] not in session.client.nthreads()


def test_crews__two_at_once(session, tmp_path):
    found: dict[str, bytes] = {}

    def work(name: str, actions: dict[int, Callable[[], Any]]) -> None:
        place = tmp_path / name
        place.mkdir()
        with crew_of(place, name=name) as crew:
            found[name] = crew.follow(Ready(session, actions)).total.tobytes()

    actions = {5: lambda: os.kill(pids_of(session)[0], signal.SIGKILL)}
    threads = [
        threading.Thread(target=work, args=("first", actions)),
        threading.Thread(target=work, args=("second", {})),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"first": WANTED, "second": WANTED}
    board = {crew["name"]: crew for crew in read_board()}
    assert {board[name]["state"] for name in found} == {"done"}
    assert board["first"]["restarts"] + board["second"]["restarts"] >= 1


# ---- the disk --------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "distclust-test", str(place)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no file system can be mounted: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_disk_full__the_work_goes_on_and_is_saved_when_there_is_room(session, small_disk, tmp_path):
    """Some members find room and others do not; then there is more."""
    filler = small_disk / "filler"

    def fill() -> None:
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    vault = Vault.at(small_disk, "run", "mine")
    plan = Ready(session, {11: fill, 22: filler.unlink})
    with crew_of(tmp_path, vault=vault) as crew, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert crew.follow(plan).total.tobytes() == WANTED
    texts = [str(w.message) for w in caught if issubclass(w.category, CheckpointWarning)]
    assert texts
    assert all("No space left on device" in text for text in texts)
    saved = vault.checkpoints("plan").latest()
    assert saved is not None
    assert saved.step >= N_ROUNDS - EVERY


# ---- the scheduler and the driver ------------------------------------------------------------


@pytest.fixture
def clusters(tmp_path) -> Iterator[Callable[[], Cluster]]:
    made: list[Cluster] = []

    def make() -> Cluster:
        made.append(Cluster(tmp_path / f"cluster-{len(made)}"))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def test_scheduler__its_death_is_said_and_another_one_goes_on(clusters, tmp_path):
    first = clusters()
    plan = Acting({12: first.kill_scheduler})
    with (
        engine.connect(first.address, timeout=10),
        pytest.raises(ClusterError, match="scheduler"),
        crew_of(tmp_path) as crew,
    ):
        crew.follow(plan)
    first.close()
    with engine.connect(clusters().address, timeout=60), crew_of(tmp_path) as crew:
        assert crew.follow(Leader(N_ROUNDS)).total.tobytes() == WANTED
    assert n_redone(tmp_path / "journal") <= N_MEMBERS * (12 % EVERY + 1)


class Driver:
    """A process that leads a crew; see tests/crew_driver.py."""

    def __init__(self, folder: Path, n_rounds: int, seconds: float, *more: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        arguments = [str(folder), str(n_rounds), str(seconds), *more]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.crew_driver", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # so that an interrupt reaches its workers, as in a terminal
        )

    def reach(self, n: int) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line == f"round {n}\n":
                return
        raise AssertionError("it ended early")

    def rest(self) -> str:
        return self.process.communicate(timeout=120)[0]

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_interrupt__of_a_whole_process_group_saves_everything(tmp_path):
    """Ctrl-C in a terminal: the workers get it, too."""
    wanted = walk_together(crew_driver.N_MEMBERS, 20)
    with Driver(tmp_path / "run", 20, 0.05) as driver:
        driver.reach(8)
        os.killpg(driver.process.pid, signal.SIGINT)
        printed = driver.rest()
        assert driver.process.returncode == 130
    assert "stopped" in printed.splitlines()  # Dask may have a word about coroutines after it
    assert "Traceback" not in printed
    with Driver(tmp_path / "run", 20, 0.0) as driver:
        printed = driver.rest()
        assert driver.process.returncode == 0
    assert "round 7\n" not in printed
    assert (tmp_path / "run" / "result").read_bytes() == wanted
    # Of the round that was broken off some members may have been done.
    assert n_redone(tmp_path / "run" / "journal") <= crew_driver.N_MEMBERS


def test_driver__killed_is_seen_on_the_board_and_another_one_goes_on(clusters, tmp_path):
    address = clusters().address
    with Driver(tmp_path / "run", 20, 0.02, address) as driver, engine.connect(address, timeout=60):
        driver.reach(13)
        (crew,) = read_board()
        assert (crew["name"], crew["run"], crew["state"]) == ("driven", "run", "running")
        assert crew["workers"] == list(engine.current_client().nthreads())
        assert {member["position"] for member in crew["members"]} <= {12, 13, 14}
        assert crew["checkpoint"] == 10
        driver.process.kill()
        wait_for(lambda: read_board()[0]["state"] == "lost")
        with Driver(tmp_path / "run", 20, 0.0, address) as second:
            second.rest()
            assert second.process.returncode == 0
        assert [crew["state"] for crew in read_board()] == ["done", "lost"]
    assert (tmp_path / "run" / "result").read_bytes() == walk_together(crew_driver.N_MEMBERS, 20)
    redone = steps_in(tmp_path / "run" / "journal")
    assert min(n for (_, n), times in redone.items() if times > 1) >= 10
