"""A crew on three hosts, one of which is cut off during the work."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distclust.engine.crews import Vault
from distclust.store.objects import open_objects
from tests import crew_driver
from tests.hosts import Hosts, why_impossible
from tests.walkers import Walk, steps_in, walk_together

pytestmark = [pytest.mark.netns, pytest.mark.chaos, pytest.mark.cluster]

N_ROUNDS, CUT_AT, HEARTBEAT = 16, 9, 3.0
DAWDLE = 2 * HEARTBEAT  # the cut-off host is still at work when others took over


@pytest.fixture
def hosts(tmp_path) -> Iterator[Hosts]:
    if reason := why_impossible():
        pytest.skip(reason)
    with Hosts(3, tmp_path) as hosts:
        yield hosts


def wait_for(what: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def drive(hosts: Hosts, folder: Path, scheduler: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crew_driver", str(folder), str(N_ROUNDS), "0.05"]
    environment = {"DISTCLUST_HEARTBEAT_SECONDS": str(HEARTBEAT)}
    return hosts.start(0, [*command, scheduler], environment=environment, is_read=True)


LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 9999)) as server:
    while True:
        server.accept()[0].close()
"""
CALL = "import socket, sys; socket.create_connection((sys.argv[1], 9999), timeout=1)"


def test_hosts__reach_each_other_until_they_are_cut_off(hosts):
    def reaches() -> bool:
        return hosts.start(0, [sys.executable, "-c", CALL, hosts.address(1)]).wait() == 0

    hosts.start(1, [sys.executable, "-c", LISTEN, hosts.address(1)])
    wait_for(reaches)
    hosts.cut(1)
    assert not reaches()
    hosts.heal(1)
    wait_for(reaches)


def test_cut__a_host_during_the_work(hosts, tmp_path):
    """The run ends right; what the cut-off host still writes does not count."""
    folder = tmp_path / "run"
    folder.mkdir()
    scheduler = hosts.start_scheduler(0)
    hosts.start_worker(1, scheduler)
    dawdling = {"DISTCLUST_TEST_DAWDLE": f"{CUT_AT} {DAWDLE}"}
    hosts.start_worker(2, scheduler, dawdling)
    driver = drive(hosts, folder, scheduler)
    assert driver.stdout is not None
    printed = ""
    for line in driver.stdout:
        printed += line
        if line == f"round {CUT_AT}\n":
            # It is asked for a step after which it saves, and at it when it is cut off.
            wait_for((folder / "dawdling").exists)
            hosts.cut(2)
            break
    printed += driver.stdout.read()
    assert driver.wait() == 0, printed
    assert f"lost tcp://{hosts.address(2)}" in printed
    wanted = walk_together(crew_driver.N_MEMBERS, N_ROUNDS)
    assert (folder / "result").read_bytes() == wanted

    # The zombie did its step, and what came of it was not taken.
    steps = steps_in(folder / "journal")
    wait_for(
        lambda: any(
            times > 1 for (_, n), times in steps_in(folder / "journal").items() if n == CUT_AT
        )
    )
    assert all(n >= 5 for (_, n), times in steps.items() if times > 1)
    fingerprint = f"mine, {crew_driver.N_MEMBERS} members"
    vault = Vault(open_objects(folder / "results"), "run", fingerprint)
    for member in range(crew_driver.N_MEMBERS):
        saved = vault.checkpoints(f"member-{member:06d}").latest()
        assert saved is not None
        assert saved.step == 15
        assert vault.restore(Walk, saved).n == saved.step
    hosts.heal(2)
