"""Crews on a cluster whose processes live: the same bits, connections that break, errors."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from distclust import engine
from distclust.engine.crews import Addition, Crew, Room, Vault
from distclust.engine.crews import on_client as module
from distclust.errors import ClusterError, InputError
from tests.walkers import Leader, Walker, n_redone, steps_in, walk_alone, walk_together

pytestmark = pytest.mark.cluster

N_MEMBERS, N_ROUNDS = 5, 8
WANTED = walk_together(N_MEMBERS, N_ROUNDS)


def total(crew: Crew, n_rounds: int = N_ROUNDS) -> bytes:
    return crew.follow(Leader(n_rounds)).total.tobytes()


@pytest.mark.usefixtures("on_client")
def test_follow__same_bits_as_in_process(tmp_path):
    with Crew(Walker(), N_MEMBERS, vault=Vault.at(tmp_path, "run", "mine"), every=3) as crew:
        assert total(crew) == WANTED
        assert (crew.n_restarts, crew.n_redone) == (0, 0)
        remotes = crew._hands._remotes.values()
        assert sorted(len(b) for b in by_berth(crew).values()) == [2, 3]
        assert [dict(remote.calls) for remote in remotes] == [{}, {}]  # answers are not kept
    with Crew(Walker(), N_MEMBERS, vault=Vault.at(tmp_path, "run", "mine"), every=3) as crew:
        assert total(crew) == WANTED


def by_berth(crew: Crew) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = {}
    for member in crew._members:
        found.setdefault(member.berth, []).append(member.number)
    return found


@pytest.mark.usefixtures("on_client")
def test_run__same_bits_as_in_process():
    with Crew(Walker(), 3) as crew:
        found = {(m, p): r.tobytes() for m, p, r in crew.run(4, float)}
    assert found == {(m, p + 1): walk_alone(m, 4)[p] for m in range(3) for p in range(4)}


@pytest.mark.usefixtures("on_client")
def test_open__goes_on_beside_and_is_waited_for_when_it_matters():
    with Crew(Walker(), N_MEMBERS) as crew:
        for role in (Second(), Walker()):
            hands = crew._hands
            assert len(hands._coming) + len(hands._remotes) == 2
            assert hands._is_opening
            assert crew.n_threads == 2
            assert len(hands._remotes) == 2
            assert not hands._coming
            crew.assign(role, N_MEMBERS)
        assert total(crew) == WANTED


@pytest.mark.usefixtures("on_client")
def test_assign__another_role_while_the_first_is_opened():
    with Crew(Walker(), N_MEMBERS) as crew:
        crew.assign(Elsewhere(), 3)
        assert crew.round(0.0) == ["another place"] * 3


class Elsewhere(Walker):
    def open(self, previous: Any, room: Room) -> str:
        return "another place"

    def advance(self, place: Any, member: int, state: Any, order: Any) -> tuple[Any, Any]:
        return state, place


@pytest.mark.usefixtures("on_client")
def test_assign__the_places_of_the_first_role_are_passed_on():
    with Crew(Walker(), N_MEMBERS) as crew:
        crew.round(0.0)
        before = set(crew._hands._remotes)
        crew.assign(Second(), 3)
        assert total(crew) == walk_together(3, N_ROUNDS)
        assert set(crew._hands._remotes) == before


class Second(Walker):
    def open(self, previous: Any, room: Room) -> str:
        assert previous == "a place"
        assert 0 < room.share <= 1
        assert room.memory_limit is not None
        return super().open(previous, room)


@dataclass(frozen=True)
class More(Addition):
    text: str

    def onto(self, role: Any) -> Any:
        return role if role.text.endswith(self.text) else Saying(role.text + self.text)


class Saying(Walker):
    """Reports a text; of a longer one only the end is sent to who knows the beginning."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def since(self, earlier: Any) -> Any:
        return More(self.text.removeprefix(earlier.text))

    def advance(self, place: Any, member: int, state: Any, order: Any) -> tuple[Any, Any]:
        return state, self.text


@pytest.mark.usefixtures("on_client")
def test_assign__what_berths_know_already_is_not_sent_again(monkeypatch):
    sealed: list[Any] = []
    seal = module.seal
    monkeypatch.setattr(module, "seal", lambda *values: sealed.extend(values) or seal(*values))
    with Crew(first := Saying("one"), N_MEMBERS) as crew:
        crew.assign(second := Saying("one, two"), N_MEMBERS)  # before anybody was asked
        assert crew.round(0.0) == ["one, two"] * N_MEMBERS
        crew._hands.release(next(iter(crew._hands._remotes)))  # will be made anew, knowing nothing
        sealed.clear()
        crew.assign(third := Saying("one, two, three"), N_MEMBERS)
        assert crew.round(0.0) == ["one, two, three"] * N_MEMBERS
        assert len(by_berth(crew)) == 2
    assert not any(value is first or value is second for value in sealed)
    assert [value.text for value in sealed if isinstance(value, More)] == [", three"]
    assert sum(value is third for value in sealed) == 1


@pytest.mark.usefixtures("on_client")
def test_settle__a_plan_is_followed_by_members_that_were_taken_in_before(monkeypatch, tmp_path):
    methods: list[str] = []
    call = module.ClientHands.call

    def note(hands: Any, number: int, berth: str, method: str, *args: Any, **options: Any) -> None:
        methods.append(method)
        call(hands, number, berth, method, *args, **options)

    monkeypatch.setattr(module.ClientHands, "call", note)
    with Crew(Walker(), N_MEMBERS, vault=Vault.at(tmp_path, "run", "mine")) as crew:
        crew.settle()
        assert methods == ["adopt", "adopt"]
        assert total(crew) == WANTED
    assert methods.count("adopt") == 2


@pytest.mark.usefixtures("on_client")
def test_settle__what_was_saved_before_is_found_nevertheless(tmp_path):
    with Crew(Walker(), N_MEMBERS, vault=Vault.at(tmp_path, "run", "mine"), every=1) as crew:
        crew.follow(Leader(3))
    with Crew(Walker(), N_MEMBERS, vault=Vault.at(tmp_path, "run", "mine")) as crew:
        crew.settle()
        assert total(crew) == WANTED
        assert crew.position == N_ROUNDS
        assert crew.n_redone == 0


@pytest.mark.usefixtures("on_client")
def test_berths__no_more_than_members():
    with Crew(Walker(), 1) as crew:
        assert total(crew) == walk_together(1, N_ROUNDS)
        assert len(crew._hands._remotes) == 1


@pytest.mark.usefixtures("on_client")
def test_orders__are_sealed_once_for_all_berths(monkeypatch):
    sealed: list[Any] = []
    seal = module.seal
    monkeypatch.setattr(module, "seal", lambda *values: sealed.extend(values) or seal(*values))
    with Crew(role := Walker(), N_MEMBERS) as crew:
        crew.round(order := object_that_travels())
        assert len(by_berth(crew)) == 2
    assert sum(value is role for value in sealed) == 1
    assert sum(value is order for value in sealed) == 1


@pytest.mark.usefixtures("on_client")
def test_orders__an_array_that_is_used_again_is_sent_again():
    order = np.zeros(1)
    with Crew(Walker(), N_MEMBERS) as crew:
        first = [np.array(report) for report in crew.round(order)]
        order[:] = 7.0
        second = [np.array(report) for report in crew.round(order)]
    with engine.connect("threads"), Crew(Walker(), N_MEMBERS) as crew:
        for number, wanted in ((0.0, first), (7.0, second)):
            got = crew.round(np.full(1, number))
            np.testing.assert_array_equal(np.array(got), np.array(wanted))


def object_that_travels() -> float:
    return float("0.5")  # a number of its own: literals are one and the same


# ---- connections -----------------------------------------------------------------------------


class Breaking(Leader):
    """Breaks all connections to workers while they are at work, in some rounds."""

    def __init__(self, client: Any, rounds: set[int]) -> None:
        super().__init__(N_ROUNDS)
        self.client = client
        self.rounds = rounds
        self.n_broken = 0

    def order(self, state):
        if state.n in self.rounds:
            threading.Timer(0.05, lambda: self.client.loop.add_callback(self._break)).start()
        return super().order(state)

    def _break(self) -> None:
        for comms in list(self.client.rpc.occupied.values()):
            for comm in list(comms):
                if comm.peer_address != self.client.scheduler.address:
                    comm.abort()
                    self.n_broken += 1


def test_connection__lost_while_the_worker_lives_is_a_repeated_call(on_client, tmp_path):
    journal = tmp_path / "journal"
    plan = Breaking(on_client, {2, 5})
    with Crew(Walker(0.05, journal), N_MEMBERS, restarts=0) as crew:
        assert crew.follow(plan).total.tobytes() == WANTED
        assert crew.n_restarts == 0
    assert plan.n_broken >= 2
    assert n_redone(journal) == 0
    assert len(steps_in(journal)) == N_MEMBERS * N_ROUNDS


@pytest.mark.usefixtures("on_client")
def test_connection__answers_that_are_lost_on_the_way(monkeypatch, tmp_path):
    """Every call is carried out, and every first answer lost: adopt, advance, save."""
    plain = module.ClientHands._rpc
    lost: list[str] = []

    class Losing:
        def __init__(self, rpc: Any) -> None:
            self.rpc = rpc

        async def actor_execute(self, **message: Any) -> Any:
            answer = await self.rpc.actor_execute(**message)
            if len(lost) % 2 == 0:
                lost.append(message["args"][0])
                raise OSError("the answer was lost")
            lost.append("")
            return answer

    monkeypatch.setattr(module.ClientHands, "_rpc", lambda *args: Losing(plain(*args)))
    journal = tmp_path / "journal"
    vault = Vault.at(tmp_path, "run", "mine")
    with Crew(Walker(journal=journal), 1, vault=vault, every=2, restarts=0) as crew:
        assert total(crew, 4) == walk_together(1, 4)
    assert {"open", "adopt", "advance"} <= set(lost)
    assert n_redone(journal) == 0


@pytest.mark.usefixtures("on_client")
def test_connection__by_way_of_the_scheduler(monkeypatch):
    """The client may not reach the workers' network."""

    async def reaches(*_: object) -> bool:
        return False

    monkeypatch.setattr(module.ClientHands, "_reaches", reaches)
    with Crew(Walker(), N_MEMBERS) as crew:
        assert not any(remote.is_direct for remote in crew._hands._remotes.values())
        assert total(crew) == WANTED


# ---- errors ----------------------------------------------------------------------------------


class Odd(Exception):
    """Cannot be made again from its arguments, as many cannot."""

    def __init__(self, place: str, number: int) -> None:
        super().__init__(f"{place} {number}")


class Failing(Walker):
    def __init__(self, error: Exception, is_opening: bool = False) -> None:
        super().__init__()
        self.error, self.is_opening = error, is_opening

    def open(self, previous: Any, room: Room) -> str:
        if self.is_opening:
            self._fail()
        return super().open(previous, room)

    def advance(self, place, member, state, order):
        self._fail()

    def _fail(self) -> None:
        if isinstance(self.error, EOFError):
            raise Odd("shelf", 7)
        if isinstance(self.error, ZeroDivisionError):
            raise ZeroDivisionError(lambda: None)  # no way to pickle it without cloudpickle
        raise self.error


@pytest.mark.usefixtures("on_client")
@pytest.mark.parametrize("is_opening", [False, True])
@pytest.mark.parametrize(
    ("error", "wanted", "text"),
    [
        (InputError("a", "b", "c", "d"), InputError, "a: expected b, got c"),
        (OSError(2, "No such file", "x"), OSError, "No such file"),  # not a lost connection
        (KeyError("x"), KeyError, "x"),
        (EOFError(), RuntimeError, "Odd: shelf 7"),
        (ZeroDivisionError(), ZeroDivisionError, "lambda"),
    ],
)
def test_errors__of_a_role_come_through(error, wanted, text, is_opening):
    with pytest.raises(wanted, match=text), Crew(Failing(error, is_opening), 2) as crew:
        crew.round(0.0)


def _fail_to_begin(crew: str) -> None:
    raise ImportError("nothing of that kind here")


@pytest.mark.usefixtures("on_client")
def test_errors__a_worker_that_takes_nobody_in(monkeypatch):
    monkeypatch.setattr(module, "BerthActor", _fail_to_begin)
    with pytest.raises(ClusterError, match="takes members in, got nothing of that kind here"):
        Crew(Walker(), 2).round(0.0)


def test_close__after_the_session_does_no_harm():
    with engine.connect("local", workers=1, threads=1):
        crew = Crew(Walker(), 2)
        crew.round(0.0)
    crew.close()
    crew.close()


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon"])
def test_heartbeat__bad_values(text, monkeypatch):
    monkeypatch.setenv("DISTCLUST_HEARTBEAT_SECONDS", text)
    with pytest.raises(InputError, match="DISTCLUST_HEARTBEAT_SECONDS"):
        module.heartbeat_seconds(None)
    if text != "soon":
        with pytest.raises(InputError, match="Crew: heartbeat"):
            module.heartbeat_seconds(float(text))


def test_heartbeat__chosen(monkeypatch):
    monkeypatch.delenv("DISTCLUST_HEARTBEAT_SECONDS", raising=False)
    assert module.heartbeat_seconds(None) == 60
    monkeypatch.setenv("DISTCLUST_HEARTBEAT_SECONDS", "7.5")
    assert module.heartbeat_seconds(None) == 7.5
    assert module.heartbeat_seconds(3) == 3
