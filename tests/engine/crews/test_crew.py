"""The supervisor in process: checkpoints, resuming, interrupts, damage, full disks."""

from __future__ import annotations

import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from distclust import engine
from distclust.engine.crews import Crew, Vault
from distclust.engine.crews import crew as crew_module
from distclust.engine.crews.in_process import LocalHands
from distclust.errors import CheckpointWarning, ConflictError, InputError
from tests.walkers import (
    Leader,
    Shelf,
    Walker,
    disk_full,
    n_redone,
    steps_in,
    walk_alone,
    walk_together,
)

N_MEMBERS, N_ROUNDS, EVERY = 4, 9, 3
WANTED = walk_together(N_MEMBERS, N_ROUNDS)


def vault_on(shelf: Shelf, incarnation: int = 1, fingerprint: str = "mine") -> Vault:
    return Vault(shelf, "run", fingerprint, incarnation)


def follow(vault=None, journal=None, n_rounds=N_ROUNDS, every=EVERY, plan=None, **options) -> bytes:
    role = Walker(journal=journal)
    with Crew(role, N_MEMBERS, vault=vault, every=every, **options) as crew:
        return crew.follow(plan or Leader(n_rounds)).total.tobytes()


def saved_positions(shelf: Shelf, part: str) -> list[int]:
    return [step for _, step in vault_on(shelf).checkpoints(part)._saved()]


class Killed(BaseException):
    """Ends a crew at once, as a kill does: nothing is saved."""


# ---- rounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("has_vault", [False, True])
def test_follow__equals_a_plain_loop(threads, has_vault):
    with engine.connect("threads", threads=threads):
        assert follow(vault_on(Shelf()) if has_vault else None) == WANTED


@pytest.mark.parametrize("is_alone", [False, True])
def test_calls__at_most_one_is_on_its_way_for_each_member(is_alone, monkeypatch):
    """And it is bounded: of a member's orders it carries one."""
    under_way: dict[int, list[int]] = {}
    n_orders = []
    call, wait = LocalHands.call, LocalHands.wait

    def spy_on_call(hands, number, berth, method, *args, **options):
        if method == "advance":
            members = [start.member for start in args[0]]
            busy = [m for others in under_way.values() for m in others]
            assert not set(members) & set(busy)
            under_way[number] = members
            n_orders.append(len(options["orders"]))
        call(hands, number, berth, method, *args, **options)

    def spy_on_wait(hands):
        answer = wait(hands)
        if answer is not None:
            under_way.pop(answer.call, None)
        return answer

    monkeypatch.setattr(LocalHands, "call", spy_on_call)
    monkeypatch.setattr(LocalHands, "wait", spy_on_wait)
    if is_alone:
        with Crew(Walker(), N_MEMBERS, vault=vault_on(Shelf()), every=EVERY) as crew:
            assert len(list(crew.run(N_ROUNDS, float))) == N_MEMBERS * N_ROUNDS
    else:
        assert follow(vault_on(Shelf())) == WANTED
    assert not under_way
    assert set(n_orders) == {1}


def test_round__reports_come_in_the_order_of_members():
    with Crew(Walker(), 3) as crew:
        for n in range(4):
            reports = crew.round(float(n))
            assert crew.position == n + 1
            assert [r.tobytes() for r in reports] == [walk_alone(m, 4)[n] for m in range(3)]


def test_run__every_member_for_itself():
    shelf = Shelf()
    with Crew(Walker(), 3, vault=vault_on(shelf), every=2) as crew:
        found = {(m, p): r.tobytes() for m, p, r in crew.run(5, float)}
        assert found == {(m, p + 1): walk_alone(m, 5)[p] for m in range(3) for p in range(5)}
        assert [p for m, p, _ in crew.run(7, float) if m == 1] == [6, 7]  # they go on
    assert saved_positions(shelf, "member-000001")[-1] == 7
    with Crew(Walker(), 3, vault=vault_on(shelf, 2), every=2) as crew:
        found = {(m, p): r.tobytes() for m, p, r in crew.run(8, float)}
    assert found == {(m, 8): walk_alone(m, 8)[7] for m in range(3)}


def test_assign__members_begin_anew_and_places_are_passed_on():
    class Counting(Walker):
        def open(self, previous, room):
            opened.append(previous)
            return super().open(previous, room)

    opened: list[object] = []
    with Crew(Counting(), 2) as crew:
        crew.round(0.0)
        crew.assign(Counting(), 3)
        assert crew.position == 0
        reports = crew.round(0.0)
    assert [r.tobytes() for r in reports] == [walk_alone(m, 1)[0] for m in range(3)]
    assert opened == [None, "a place"]


@pytest.mark.parametrize(
    "options",
    [{"every": 0}, {"seconds": 0}, {"restarts": -1}, {"restarts": 1000}, {"n_members": 0}],
)
def test_crew__bad_options(options):
    with pytest.raises(InputError, match="Crew walkers: "):
        Crew(Walker(), **{"n_members": 2, "name": "walkers", **options})


def test_advance__what_a_role_raises_comes_through():
    class Failing(Walker):
        def advance(self, place, member, state, order):
            raise ZeroDivisionError(f"at {member}")

    with Crew(Failing(), 2) as crew, pytest.raises(ZeroDivisionError, match="at "):
        crew.round(0.0)


# ---- when it is saved ------------------------------------------------------------------------


def test_checkpoints__by_position():
    shelf = Shelf()
    seen = []
    with Crew(Walker(), 2, vault=vault_on(shelf), every=3) as crew:
        for n in range(8):
            crew.round(float(n))
            seen.append(saved_positions(shelf, "member-000000"))
    assert seen == [[], [], [3], [3], [3], [3, 6], [3, 6], [3, 6]]


def test_checkpoints__by_time(monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(crew_module, "time", clock)
    shelf = Shelf()
    with Crew(Walker(), 2, vault=vault_on(shelf), seconds=10) as crew:
        for moment, wanted in ((9.9, []), (10.0, [2]), (15.0, [2]), (20.1, [2, 4])):
            clock.now = moment
            crew.round(0.0)
            assert saved_positions(shelf, "member-000000") == wanted


def test_checkpoints__the_plan_comes_last_and_two_are_kept():
    shelf = Shelf()
    written: list[str] = []
    shelf.fault = written.append
    assert follow(vault_on(shelf)) == WANTED
    parts = [key.split("/")[2] for key in written]
    assert len(parts) == (N_MEMBERS + 1) * 3
    assert {parts[i] for i in range(N_MEMBERS, len(parts), N_MEMBERS + 1)} == {"plan"}
    for part in ("plan", "member-000000", "member-000003"):
        assert saved_positions(shelf, part) == [6, 9]


# ---- resuming --------------------------------------------------------------------------------


class Until(Leader):
    """Is killed before a round."""

    def __init__(self, last: int, error: type[BaseException] = Killed) -> None:
        super().__init__(N_ROUNDS)
        self.last = last
        self.error = error

    def order(self, state):
        if state.n == self.last:
            raise self.error
        return super().order(state)


@pytest.mark.parametrize("last", range(N_ROUNDS + 1))
def test_resume__after_any_round(last, tmp_path):
    shelf, journal = Shelf(), tmp_path / "journal"
    with pytest.raises(Killed):
        follow(vault_on(shelf), journal, plan=Until(last))
    assert follow(vault_on(shelf, 2), journal) == WANTED
    assert n_redone(journal) == N_MEMBERS * (last % EVERY)


@pytest.mark.parametrize("n_writes", range((N_MEMBERS + 1) * 3))
def test_resume__after_any_write(n_writes, tmp_path):
    """Killed while some members are saved and others are not, in every life."""

    def fault(key: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    shelf, journal = Shelf(), tmp_path / "journal"
    shelf.fault = fault
    for life in range(1, 40):
        left = n_writes if life == 1 else N_MEMBERS + 1 + n_writes % 3
        try:
            assert follow(vault_on(shelf, life), journal) == WANTED
        except Killed:
            assert life < 10
        else:
            break
    shelf.fault = None
    assert follow(vault_on(shelf, life + 1), journal) == WANTED


def test_resume__again_and_again():
    shelf = Shelf()
    for life in range(1, N_ROUNDS):
        with pytest.raises(Killed):
            follow(vault_on(shelf, life), every=1, plan=Until(life))
    assert saved_positions(shelf, "plan") == [N_ROUNDS - 2, N_ROUNDS - 1]
    assert follow(vault_on(shelf, N_ROUNDS), every=1) == WANTED


def test_resume__a_finished_run_is_not_done_again(tmp_path):
    shelf, journal = Shelf(), tmp_path / "journal"
    assert follow(vault_on(shelf), journal) == WANTED
    assert follow(vault_on(shelf, 2), journal) == WANTED
    assert n_redone(journal) == 0


def test_resume__other_data_are_refused_and_both_named():
    shelf = Shelf()
    follow(vault_on(shelf))
    with pytest.raises(InputError, match=r"yours, \d members, got one of mine, \d members.*fresh"):
        follow(vault_on(shelf, 2, "yours"))


def test_resume__an_earlier_process_that_lives_on_is_shut_out():
    """A driver that was taken for dead goes on to lead its members."""
    shelf = Shelf()
    other = Leader(N_ROUNDS)

    class Sleeper(Leader):
        def order(self, state):
            if state.n == 4:
                assert follow(vault_on(shelf, 2), plan=other) == WANTED
            return super().order(state)

    with pytest.raises(ConflictError, match="another one continued the run"):
        follow(vault_on(shelf), plan=Sleeper(N_ROUNDS))
    assert follow(vault_on(shelf, 3)) == WANTED


# ---- damage ----------------------------------------------------------------------------------


def broken_off(last: int = 8) -> Shelf:
    shelf = Shelf()
    with pytest.raises(Killed):
        follow(vault_on(shelf), plan=Until(last))
    assert saved_positions(shelf, "plan") == [3, 6]
    return shelf


@pytest.mark.parametrize("part", ["plan", "member-000000", "member-000002"])
def test_damage__the_older_generation_is_used(part, tmp_path):
    shelf = broken_off()
    newest = shelf.newest(part)
    shelf.damage(newest)
    journal = tmp_path / "journal"
    with pytest.warns(CheckpointWarning, match=newest):
        assert follow(vault_on(shelf, 2), journal) == WANTED
    assert min(n for _, n in steps_in(journal)) == 3
    # What follows replaces the damaged one, not the whole one.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert follow(vault_on(shelf, 3)) == WANTED


def test_damage__newest_of_different_members():
    shelf = broken_off()
    for member in (0, 3):
        shelf.damage(shelf.newest(f"member-00000{member}"))
    with pytest.warns(CheckpointWarning, match="damaged"):
        assert follow(vault_on(shelf, 2)) == WANTED


@pytest.mark.parametrize("parts", [["plan"], ["member-000001"], ["plan", "member-000001"]])
def test_damage__nothing_whole_starts_over_and_says_so(parts, tmp_path):
    shelf = broken_off()
    for key in list(shelf.content):
        if key.split("/")[2] in parts:
            shelf.damage(key)
    journal = tmp_path / "journal"
    with pytest.warns(CheckpointWarning) as caught:
        assert follow(vault_on(shelf, 2), journal) == WANTED
    assert "damaged" in str(caught[0].message)
    assert "the work starts over" in str(caught[-1].message)
    assert min(n for _, n in steps_in(journal)) == 0
    assert follow(vault_on(shelf, 3)) == WANTED


def test_damage__a_missing_member_starts_over():
    shelf = broken_off()
    for key in shelf.list("checkpoints/run/member-000002"):
        shelf.delete(key)
    with pytest.warns(CheckpointWarning) as caught:
        assert follow(vault_on(shelf, 2)) == WANTED
    assert "walker 2" in str(caught[0].message)


def test_damage__of_one_generation_in_each_of_two_members_starts_over():
    shelf = broken_off()
    shelf.damage(shelf.newest("member-000000"))
    shelf.damage(shelf.list("checkpoints/run/member-000001")[0])
    with pytest.warns(CheckpointWarning) as caught:
        assert follow(vault_on(shelf, 2)) == WANTED
    assert "the work starts over" in str(caught[-1].message)


# ---- a full disk -----------------------------------------------------------------------------


class Filling(Leader):
    """Calls a function before every round."""

    def __init__(self, before) -> None:
        super().__init__(N_ROUNDS)
        self.before = before

    def order(self, state):
        self.before(state.n)
        return super().order(state)


@pytest.mark.parametrize("only", ["", "plan", "member-000001"])
def test_disk_full__the_work_goes_on_and_is_saved_when_there_is_room(only):
    shelf = Shelf()

    def fault(key: str) -> None:
        if only in key:
            disk_full(key)

    def before(n: int) -> None:
        shelf.fault = fault if 2 <= n < 7 else None  # the saves of 3 to 7 fail
        if n == 8:
            assert saved_positions(shelf, "plan") == [8]

    with pytest.warns(CheckpointWarning, match="No space left on device") as caught:
        assert follow(vault_on(shelf), plan=Filling(before)) == WANTED
    assert len(caught) == 1  # said once


@pytest.mark.parametrize("only", ["", "plan", "member-000001"])
@pytest.mark.parametrize("last", range(4, N_ROUNDS + 1))
def test_disk_full__what_was_complete_before_stays(only, last, tmp_path):
    """Some members find room and others do not; then everything is killed."""
    shelf = Shelf()

    def fault(key: str) -> None:
        if only in key:
            disk_full(key)

    def before(n: int) -> None:
        shelf.fault = fault if n >= 3 else None
        if n == last:
            raise Killed

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        with pytest.raises(Killed):
            follow(vault_on(shelf), plan=Filling(before))
    shelf.fault = None
    journal = tmp_path / "journal"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert follow(vault_on(shelf, 2), journal) == WANTED
    assert min(n for _, n in steps_in(journal)) == 3


def test_disk_full__run_goes_on():
    shelf = Shelf()
    shelf.fault = disk_full
    with (
        Crew(Walker(), 2, vault=vault_on(shelf), every=2) as crew,
        pytest.warns(CheckpointWarning, match="No space left"),
    ):
        found = {(m, p): r.tobytes() for m, p, r in crew.run(5, float)}
    assert found == {(m, p + 1): walk_alone(m, 5)[p] for m in range(2) for p in range(5)}


# ---- interrupts ------------------------------------------------------------------------------


class Interrupted(Leader):
    """Is interrupted once, in one of its functions."""

    def __init__(self, where: str, last: int, is_late: bool) -> None:
        super().__init__(N_ROUNDS)
        self.where, self.last, self.is_late = where, last, is_late

    def _strike(self, where: str, n: int) -> None:
        if (where, n) == (self.where, self.last):
            self.where = ""
            raise KeyboardInterrupt

    def order(self, state):
        self._strike("order", state.n)
        return super().order(state)

    def absorb(self, state, reports):
        if not self.is_late:
            self._strike("absorb", state.n)
        after = super().absorb(state, reports)
        self._strike("absorb", state.n)
        return after


@pytest.mark.parametrize(
    ("where", "is_late"), [("order", False), ("absorb", False), ("absorb", True)]
)
@pytest.mark.parametrize("last", range(N_ROUNDS))
def test_interrupt__in_the_plan_saves_everything(where, is_late, last, tmp_path):
    shelf, journal = Shelf(), tmp_path / "journal"
    with pytest.raises(KeyboardInterrupt):
        follow(vault_on(shelf), journal, plan=Interrupted(where, last, is_late))
    assert follow(vault_on(shelf, 2), journal) == WANTED
    assert n_redone(journal) == 0


def test_interrupt__in_any_wait(monkeypatch, tmp_path):
    plain = crew_module.LocalHands.wait
    for n_waits in range(1, 60):
        shelf, journal = Shelf(), tmp_path / f"journal-{n_waits}"
        left = n_waits

        def wait(hands):
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            return plain(hands)

        with monkeypatch.context() as patch:
            patch.setattr(crew_module.LocalHands, "wait", wait)
            try:
                got = follow(vault_on(shelf), journal)
            except KeyboardInterrupt:
                assert follow(vault_on(shelf, 2), journal) == WANTED
                assert n_redone(journal) <= N_MEMBERS  # one round
            else:
                assert got == WANTED
                assert n_waits > N_ROUNDS
                return
    raise AssertionError("the crew was never done")


def test_interrupt__without_room_leaves_what_there_was(tmp_path):
    shelf, journal = Shelf(), tmp_path / "journal"

    def before(n: int) -> None:
        if n == 5:
            shelf.fault = disk_full
            raise KeyboardInterrupt

    with (
        pytest.warns(CheckpointWarning, match="Not everything could be saved: No space left"),
        pytest.raises(KeyboardInterrupt),
    ):
        follow(vault_on(shelf), journal, plan=Filling(before))
    shelf.fault = None
    assert follow(vault_on(shelf, 2), journal) == WANTED
    assert n_redone(journal) == 2 * N_MEMBERS


@pytest.mark.parametrize("n_seen", range(1, 12, 3))
@pytest.mark.parametrize("is_inside", [False, True])
def test_interrupt__of_a_run(n_seen, is_inside, monkeypatch):
    """Whether it strikes in the generator or in the loop around it: no report is missing."""
    shelf = Shelf()
    seen: dict[tuple[int, int], bytes] = {}
    plain = crew_module.LocalHands.wait

    def wait(hands):
        if len(seen) == n_seen:
            seen[-1, -1] = b""  # strikes once: the last save waits, too
            raise KeyboardInterrupt
        return plain(hands)

    def look() -> None:
        with Crew(Walker(), 3, vault=vault_on(shelf), every=3) as crew:
            for member, position, report in crew.run(4, float):
                assert (member, position) not in seen
                seen[member, position] = report.tobytes()
                if not is_inside and len(seen) == n_seen:
                    raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if is_inside:
            patch.setattr(crew_module.LocalHands, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            look()
    seen.pop((-1, -1), None)
    assert len(seen) == n_seen
    with Crew(Walker(), 3, vault=vault_on(shelf, 2), every=3) as crew:
        look_again = {(m, p): r.tobytes() for m, p, r in crew.run(4, float)}
    assert not seen.keys() & look_again.keys()
    assert {**seen, **look_again} == {
        (m, p + 1): walk_alone(m, 4)[p] for m in range(3) for p in range(4)
    }


def test_interrupt__in_a_round_of_long_orders_is_prompt(monkeypatch):
    """Members at work are saved as they were before; nobody waits for them."""

    class Long(Walker):
        def advance(self, place, member, state, order):
            if state.n == 2 and member == 1:
                begun.set()
                assert go.wait(60)
            return super().advance(place, member, state, order)

    begun, go = threading.Event(), threading.Event()
    shelf = Shelf()
    plain = crew_module.LocalHands.wait

    def wait(hands):
        if begun.is_set() and not struck:
            struck.append(True)
            raise KeyboardInterrupt
        return plain(hands)

    struck: list[bool] = []
    with monkeypatch.context() as patch, engine.connect("threads", threads=1):
        patch.setattr(crew_module.LocalHands, "wait", wait)
        patch.setattr(crew_module, "_LAST_SAVE_SECONDS", 5.0)
        crew = Crew(Long(), N_MEMBERS, vault=vault_on(shelf))
        with pytest.raises(KeyboardInterrupt), crew:
            crew.follow(Leader(N_ROUNDS))
    assert not go.is_set()
    assert saved_positions(shelf, "plan") == [2]
    go.set()
    assert follow(vault_on(shelf, 2)) == WANTED


def test_vault_at__counts_how_often_a_run_was_begun(tmp_path):
    vault = Vault.at(tmp_path, "run", "mine")
    assert vault.incarnation == 1
    with pytest.raises(Killed):
        follow(vault, plan=Until(5))
    again = Vault.at(tmp_path, "run", "mine")
    assert again.incarnation == 2
    assert follow(again) == WANTED
    fresh = Vault.at(tmp_path, "run", "yours", fresh=True)
    assert fresh.incarnation == 3
    assert follow(fresh) == WANTED
    np.testing.assert_equal([p.suffix for p in tmp_path.rglob("*.partial")], [])
