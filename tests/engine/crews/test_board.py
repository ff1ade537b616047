"""The board on the scheduler: what it makes of events, and what clients read from it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from distclust.engine.crews import Crew, Vault, board, drain_worker, read_board
from distclust.engine.crews.board_plugin import _KEPT, Board
from distclust.errors import ClusterError, InputError
from tests.walkers import Leader, Walker


class Told:
    """A board, and what one would read from it."""

    def __init__(self) -> None:
        self.plugin = Board()
        self.words: list[tuple[str, Any]] = []
        self.scheduler = SimpleNamespace(
            plugins={board.PLUGIN: self.plugin},
            log_event=lambda topic, word: self.words.append((topic, word)),
        )

    def tell(self, kind: str, crew: str = "c1", **facts: Any) -> None:
        self.plugin.log_event(board.TOPIC, {"crew": crew, "kind": kind, **facts})

    def begin(self, crew: str = "c1", n_members: int = 2) -> None:
        labels = [f"walker {i}" for i in range(n_members)]
        self.tell("begin", crew, name="walk", run="r", client="me", labels=labels)

    def members(self, *positions: tuple[int, int], worker="tcp://a", incarnation=1000) -> None:
        facts = [
            {
                "member": member,
                "incarnation": incarnation,
                "position": position,
                "checkpoint": position // 2 * 2,
                "metrics": {"x": 0.5},
            }
            for member, position in positions
        ]
        self.tell("members", worker=worker, members=facts)

    def read(self) -> list[dict[str, Any]]:
        return board._read(self.scheduler)


def test_board__empty():
    assert Told().read() == []
    assert board._read(SimpleNamespace(plugins={})) == []


def test_board__who_runs_what():
    told = Told()
    told.begin()
    (crew,) = told.read()
    assert (crew["name"], crew["run"], crew["state"]) == ("walk", "r", "running")
    assert (crew["checkpoint"], crew["restarts"], crew["workers"]) == (None, 0, [])
    told.members((0, 5), (1, 4))
    (crew,) = told.read()
    assert crew["checkpoint"] == 4
    assert crew["workers"] == ["tcp://a"]
    assert crew["members"][0] == {
        "member": 0,
        "label": "walker 0",
        "worker": "tcp://a",
        "restarts": 0,
        "position": 5,
        "checkpoint": 4,
        "metrics": {"x": 0.5},
    }
    assert crew["silent"] >= 0


def test_board__one_that_was_given_up_is_not_heard():
    told = Told()
    told.begin()
    told.members((0, 5), (1, 5))
    told.tell("restart", members=[1])
    assert [m["worker"] for m in told.read()[0]["members"]] == ["tcp://a", None]
    told.members((1, 4), worker="tcp://b", incarnation=1001)
    told.members((1, 6), worker="tcp://a", incarnation=1000)  # it woke up
    found = told.read()[0]["members"][1]
    assert (found["worker"], found["position"], found["restarts"]) == ("tcp://b", 4, 1)


@pytest.mark.parametrize("state", ["done", "stopped", "failed"])
def test_board__how_it_ended(state):
    told = Told()
    told.begin()
    told.tell("end", state=state)
    told.tell("end", state="done")  # closed once more
    told.plugin.remove_client(None, "me")
    assert told.read()[0]["state"] == state


def test_board__whoever_led_it_is_gone():
    told = Told()
    told.begin()
    told.plugin.remove_client(None, "somebody else")
    assert told.read()[0]["state"] == "running"
    told.plugin.remove_client(None, "me")
    assert told.read()[0]["state"] == "lost"


def test_board__newest_first_and_bounded():
    told = Told()
    for i in range(_KEPT + 20):
        told.begin(f"c{i}", 1)
        if i != 3:
            told.tell("end", f"c{i}", state="done")
    names = [crew["id"] for crew in told.read()]
    assert names[0] == f"c{_KEPT + 19}"
    assert "c3" in names  # still at work
    assert len(names) <= _KEPT + 1


def test_board__other_topics_are_no_concern():
    told = Told()
    told.plugin.log_event("something-else", {"no": "crew"})
    assert told.read() == []


def test_board__a_retired_worker_may_come_back():
    told = Told()
    told.scheduler.workers = {"tcp://a": SimpleNamespace(actors=set())}
    assert board._ask_to_drain(told.scheduler, "tcp://a")
    assert told.plugin.draining == {"tcp://a"}
    assert told.words == [(board.DRAIN_TOPIC, {"worker": "tcp://a"})]
    board._ask_to_stay(told.scheduler, "tcp://a")
    assert told.plugin.draining == set()
    assert board._ask_to_drain(told.scheduler, "tcp://a")
    told.plugin.remove_worker(None, "tcp://a")
    assert told.plugin.draining == set()
    assert not board._ask_to_drain(told.scheduler, "tcp://nobody")


def test_read_board__without_a_cluster():
    for call in (read_board, lambda: drain_worker("tcp://127.0.0.1:1")):
        with pytest.raises(ClusterError, match="a Dask cluster"):
            call()


@pytest.mark.cluster
@pytest.mark.usefixtures("on_client")
def test_drain__nobody_of_that_name():
    with pytest.raises(InputError, match="tcp://127"):
        drain_worker("tcp://127.0.0.1:1")


@pytest.mark.cluster
def test_read_board__of_a_crew_at_work(on_client, tmp_path):
    seen: list[dict[str, Any]] = []

    class Looking(Leader):
        def order(self, state):
            if state.n == 5:
                seen.extend(c for c in read_board() if c["name"] == "looked at")
            return super().order(state)

    vault = Vault.at(tmp_path, "run-7", "mine")
    with Crew(Walker(), 3, name="looked at", vault=vault, every=2) as crew:
        crew.follow(Looking(6))
    (found,) = seen
    assert (found["id"], found["run"], found["state"]) == (crew.id, "run-7", "running")
    assert found["workers"] == sorted(on_client.nthreads())
    assert [member["label"] for member in found["members"]] == [f"walker {i}" for i in range(3)]
    # Workers report by themselves: the last word of a round may still be on its way.
    assert all(4 <= member["position"] <= 5 for member in found["members"])
    assert found["checkpoint"] in {2, 4}
    assert all("x" in member["metrics"] for member in found["members"])
    end = time.monotonic() + 30
    while time.monotonic() < end:
        (after,) = [c for c in read_board() if c["id"] == crew.id]
        if [member["position"] for member in after["members"]] == [6] * 3:
            break
    assert after["state"] == "done"
    assert [member["position"] for member in after["members"]] == [6] * 3
