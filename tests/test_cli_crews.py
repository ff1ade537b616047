"""Crews on the command line: what runs on a scheduler, once and live, and draining."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import distclust
from distclust import cli
from distclust.commands import crews as command
from distclust.engine import Crew, Plan, Role, Vault, read_board

NOBODY = "tcp://127.0.0.1:1"  # a port that nobody listens on


@pytest.fixture(autouse=True)
def _restore_process() -> Iterator[None]:
    """``main`` sets handlers for the whole process; tests share theirs."""
    handler, show = signal.getsignal(signal.SIGTERM), warnings.showwarning
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    signal.signal(signal.SIGTERM, handler)
    warnings.showwarning = show
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@dataclass(frozen=True)
class Sum:
    total: npt.NDArray[np.float64]


class Adder(Role[Sum]):
    """Adds what it is told to."""

    state_type = Sum

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def begin(self, member: int) -> Sum:
        return Sum(np.full(2, float(member)))

    def advance(self, place: Any, member: int, state: Sum, order: float) -> tuple[Sum, float]:
        time.sleep(self.seconds)
        total = np.sin(state.total + order)
        return Sum(total), float(total[0])

    def label(self, member: int) -> str:
        return f"shard {member}"

    def metrics(self, state: Sum) -> dict[str, float]:
        return {"total": state.total[0]}  # a number of numpy's: people write that


@dataclass(frozen=True)
class Rounds:
    n: int = 0
    total: float = 0.0


class Count(Plan[Rounds]):
    """So many rounds."""

    state_type = Rounds

    def __init__(self, n: int) -> None:
        self.n = n

    def begin(self) -> Rounds:
        return Rounds()

    def order(self, state: Rounds) -> float | None:
        return state.total if state.n < self.n else None

    def absorb(self, state: Rounds, reports: Any) -> Rounds:
        return Rounds(state.n + 1, state.total + sum(reports))


def run(*arguments: object) -> int:
    return cli.main(["crews", *map(str, arguments)])


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def entry(found: Any, crew: Crew) -> Any:
    return next(one for one in found["crews"] if one["id"] == crew.id)


@pytest.fixture
def address(on_client: Any) -> str:
    return str(on_client.scheduler.address)


@pytest.fixture
def crew(on_client: Any, tmp_path: Path) -> Iterator[Crew]:
    """Three members, four rounds done, saved after the third."""
    vault = Vault.at(tmp_path, "night", "f")
    with Crew(Adder(), 3, name="adders", vault=vault, every=3, seconds=1000) as made:
        for order in range(4):
            made.round(float(order))
        yield made


# ---- without a cluster ---------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [(), ("drain",)])
def test_help__has_an_example_and_the_common_options(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*verb, "--help") == 0
    text = capsys.readouterr().out
    assert f"Example:\n    distclust {' '.join(('crews', *verb))}" in text
    for option in ("--json", "--seed", "--plan", "-v, --verbose", "-q, --quiet", "--scheduler"):
        assert option in text


@pytest.mark.parametrize("verb", [(), ("drain", NOBODY)])
def test_plan__asks_nobody(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*verb, "--scheduler", NOBODY, "--plan", "--json") == 0
    assert document(capsys)["disk_bytes"] == 0


@pytest.mark.parametrize("verb", [(), ("drain", NOBODY)])
@pytest.mark.parametrize("place", [(), ("--scheduler", "local"), ("--scheduler", "foo://x")])
def test_scheduler__has_to_be_an_address(
    verb: tuple[str, ...], place: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*verb, *place) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "address" in captured.err


@pytest.mark.parametrize("verb", [(), ("--watch",), ("drain", NOBODY)])
def test_scheduler__that_does_not_answer_is_one_sentence(
    verb: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "CONNECT_SECONDS", 0.5)
    assert run(*verb, "--scheduler", NOBODY) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a Dask scheduler to answer within 0.5 s, got none" in captured.err
    assert len(captured.err.splitlines()) == 1


# ---- the table -----------------------------------------------------------------------------------


@pytest.mark.cluster
def test_crews__none_is_said_also_where_there_are_no_workers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from distributed import LocalCluster

    quiet = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
    with LocalCluster(n_workers=0, processes=True, host="127.0.0.1", **quiet) as cluster:
        assert run("--scheduler", cluster.scheduler_address) == 0
        assert capsys.readouterr().out == f"No crews on {cluster.scheduler_address}.\n"
        assert run("--scheduler", cluster.scheduler_address, "--json") == 0
        assert document(capsys)["crews"] == []


@pytest.mark.cluster
def test_crews__a_line_says_what_runs(
    crew: Crew, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--scheduler", address) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if crew.id in line]
    # Columns are as wide as the longest word of any crew on the scheduler.
    cells = re.split(r"\s{2,}", line.strip())
    assert cells[:3] == [crew.id, "adders", "running"]
    assert cells[4:8] == ["4", "3", "0", "2"]
    assert cells[8].startswith("total ")


@pytest.mark.cluster
def test_crews__members_are_listed_where_they_work(
    crew: Crew, address: str, on_client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--scheduler", address, "--members") == 0
    text = capsys.readouterr().out
    own = text[text.index(f"adders ({crew.id})") :].splitlines()[2:5]
    assert [" ".join(line.split()[:2]) for line in own] == ["shard 0", "shard 1", "shard 2"]
    assert {line.split()[2] for line in own} == set(on_client.nthreads())


@pytest.mark.cluster
def test_crews__json_is_what_the_board_says(
    crew: Crew, address: str, on_client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--scheduler", address, "--json") == 0
    found = document(capsys)
    assert (found["command"], found["scheduler"]) == ("crews", address)
    shown = entry(found, crew)
    known = next(one for one in read_board() if one["id"] == crew.id)
    assert shown.pop("silent") >= 0
    assert known.pop("silent") >= 0
    assert shown == known
    assert (shown["run"], shown["checkpoint"]) == ("night", 3)
    with Crew(Adder(), 3) as alone:  # what it would be in process
        reports = [alone.round(float(order)) for order in range(4)]
    assert [member["metrics"]["total"] for member in shown["members"]] == reports[-1]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("error", "state"), [(None, "done"), (KeyboardInterrupt, "stopped"), (OSError, "failed")]
)
def test_crews__how_one_ended_is_told(
    error: type[BaseException] | None,
    state: str,
    address: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with contextlib.suppress(KeyboardInterrupt, OSError), Crew(Adder(), 1) as ended:
        ended.round(0.0)
        if error is not None:
            raise error
    ended.close()  # once more: how it ended stays as it was
    assert run("--scheduler", address, "--json") == 0
    assert entry(document(capsys), ended)["state"] == state


@pytest.mark.cluster
def test_crews__one_whose_driver_is_gone_is_lost(
    address: str, on_client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from distributed import Client

    with Client(address, set_as_default=False) as other, other.as_current():
        left = Crew(Adder(), 1)
        left.round(0.0)
    assert run("--scheduler", address, "--json") == 0
    assert entry(document(capsys), left)["state"] == "lost"
    left.close()  # its client is closed: nobody is told, nothing is raised


@pytest.mark.cluster
def test_crews__members_that_go_on_alone_have_their_own_positions_and_checkpoints(
    on_client: Any, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vault = Vault.at(tmp_path, "run", "f")
    with Crew(Adder(), 2, vault=vault, every=2, seconds=1000) as alone:
        list(alone.run(5, float))
        assert run("--scheduler", address, "--json") == 0
    shown = entry(document(capsys), alone)
    assert [member["position"] for member in shown["members"]] == [5, 5]
    assert [member["checkpoint"] for member in shown["members"]] == [5, 5]
    assert shown["checkpoint"] == 5


@pytest.mark.cluster
def test_crews__what_a_worker_says_that_was_given_up_is_not_shown(
    crew: Crew, address: str, on_client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"member": 0, "incarnation": 1, "position": 99, "checkpoint": 98, "metrics": {}}
    event = {"crew": crew.id, "kind": "members", "worker": "tcp://10.0.0.9:1", "members": [facts]}
    on_client.log_event("distclust-crews", event)
    newer = {**event, "members": [{**facts, "member": 1, "incarnation": 10**6}]}
    on_client.log_event("distclust-crews", newer)
    assert run("--scheduler", address, "--json") == 0
    members = entry(document(capsys), crew)["members"]
    assert [member["position"] for member in members] == [4, 99, 4]


# ---- watching ------------------------------------------------------------------------------------


def watching(address: str, *options: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "distclust", "crews", "--watch", "--every", "0.1"]
    pipe = subprocess.PIPE
    arguments = [*line, "--scheduler", address, *options]
    return subprocess.Popen(arguments, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.cluster
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_watch__json_lines_follow_until_the_end_is_asked_for(
    end: signal.Signals, crew: Crew, address: str
) -> None:
    process = watching(address, "--json")
    assert process.stdout is not None
    first = entry(json.loads(process.stdout.readline()), crew)
    crew.round(9.0)
    later = (entry(json.loads(line), crew) for line in process.stdout)
    followed = next(found for found in later if found["members"][0]["position"] == 5)
    process.send_signal(end)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")
    assert [member["position"] for member in first["members"]] == [4, 4, 4]
    assert followed["began"] == first["began"]


@pytest.mark.cluster
def test_watch__prints_a_line_only_when_there_is_news(crew: Crew, address: str) -> None:
    process = watching(address)
    assert process.stdout is not None
    own = (line for line in process.stdout if crew.id in line)
    assert "position 4  saved 3" in next(own)
    time.sleep(0.5)  # several looks
    crew.assign(Adder(), 1)
    crew.round(0.0)
    between = list(itertools.takewhile(lambda line: "position 1 " not in line, own))
    process.send_signal(signal.SIGINT)
    rest, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")
    assert all("position 0 " in line for line in between)  # the moment after `assign`
    assert crew.id not in rest


@pytest.mark.cluster
def test_watch__ends_when_nobody_reads_any_more(crew: Crew, address: str) -> None:
    process = watching(address, "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.cluster
def test_watch__renews_a_table_on_a_terminal_until_ctrl_c(crew: Crew, address: str) -> None:
    ours, theirs = pty.openpty()
    line = [sys.executable, "-m", "distclust", "crews", "--watch", "--every", "0.1"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    arguments = [*line, "--scheduler", address]
    process = subprocess.Popen(arguments, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = read_until(ours, b"running")
    crew.round(1.0)
    shown += read_until(ours, b"         5      3")
    process.send_signal(signal.SIGINT)
    shown += read_until(ours, None)
    os.close(ours)
    assert process.wait(timeout=60) == 0
    assert b"\x1b[1A" in shown  # the cursor went up: the table was drawn in place
    assert shown.rstrip().endswith(b"\x1b[?25h")  # and is visible again
    assert b"Traceback" not in shown


def read_until(descriptor: int, wanted: bytes | None) -> bytes:
    """Read a terminal until it shows something, or with None until it is closed."""
    found = b""
    end = time.monotonic() + 60
    while wanted is None or wanted not in found:
        if not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
            raise AssertionError(f"{wanted!r} was not shown in {found!r}")
        try:
            found += os.read(descriptor, 65536)
        except OSError:  # the other side is closed
            break
    return found


# ---- draining ------------------------------------------------------------------------------------


@pytest.fixture
def own_cluster() -> Iterator[Any]:
    """Two workers that may be lost."""
    with distclust.connect("local", workers=2, threads=1) as session:
        yield session.client


@pytest.mark.cluster
def test_drain__members_go_on_elsewhere_and_the_worker_is_retired(
    own_cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = own_cluster.scheduler.address
    found: list[Rounds] = []
    going, enough = threading.Event(), threading.Event()

    class Patient(Count):
        def order(self, state: Rounds) -> float | None:
            going.set() if state.n == 3 else None
            return None if enough.is_set() and state.n >= 20 else state.total

    def work() -> None:
        vault = Vault.at(tmp_path, "run", "f")
        with Crew(Adder(0.01), 4, vault=vault, every=5) as crew:
            found.append(crew.follow(Patient(0)))
            redone.append((crew.n_redone, crew.n_restarts))

    redone: list[tuple[int, int]] = []
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert going.wait(60)
        leaving, staying = sorted(own_cluster.nthreads())
        assert run("drain", leaving, "--scheduler", address) == 0
        said = capsys.readouterr().out
        assert list(own_cluster.scheduler_info(n_workers=-1)["workers"]) == [staying]
        end = time.monotonic() + 20
        while True:  # members are reported when they have been taken in
            assert run("--scheduler", address, "--json") == 0
            shown = document(capsys)["crews"][0]
            if shown["workers"] == [staying] or time.monotonic() > end:
                break
            time.sleep(0.1)
    finally:
        enough.set()
        thread.join(60)
    assert said == f"All crews left {leaving}, and it was retired.\n"
    assert (shown["workers"], shown["restarts"]) == ([staying], 0)
    assert redone == [(0, 0)]
    with distclust.connect("threads"), Crew(Adder(), 4) as alone:
        assert found == [alone.follow(Count(found[0].n))]


@pytest.mark.cluster
def test_drain__a_crew_that_does_not_leave_in_time_is_told(
    crew: Crew, address: str, on_client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = min(on_client.nthreads())
    try:  # nobody gives the crew orders: it does not look up
        assert run("drain", worker, "--scheduler", address, "--timeout", "0.5") == 1
    finally:
        on_client.run_on_scheduler(_forget_draining)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{worker}: expected all crews to leave within 0.5 s" in captured.err
    assert len(captured.err.splitlines()) == 1
    assert worker in on_client.nthreads()


def _forget_draining(dask_scheduler: Any) -> None:
    """Let shared workers be as they were: others test on them."""
    dask_scheduler.plugins["distclust-board"].draining.clear()


@pytest.mark.cluster
def test_drain__an_unknown_worker_is_bad_input(
    crew: Crew, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--scheduler", address, "drain", NOBODY) == 2  # the option may stand before, too
    captured = capsys.readouterr()
    assert f"expected the address of a worker, got '{NOBODY}'" in captured.err
    assert len(captured.err.splitlines()) == 1


# ---- the example ---------------------------------------------------------------------------------


@pytest.mark.cluster
@pytest.mark.chaos
def test_example__ends_alike_with_a_worker_killed() -> None:
    example = Path(__file__).parent.parent / "examples" / "own_crew.py"
    if not example.is_file():
        pytest.skip("the examples are not part of an installed package")
    code = [line for line in example.read_text().splitlines() if line.strip()]
    assert len(code) < 60
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", str(example)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the same bits: True\n")
