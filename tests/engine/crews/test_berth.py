"""Members in one process: repeated calls, saves, restores, and who is shut out."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from distclust.engine.crews import Room, Vault, berth
from distclust.engine.crews.berth import Berth, NoWholeCheckpoint, Post, Start
from distclust.errors import ConflictError, InputError
from tests.crew_stage import Snapshot
from tests.walkers import Shelf, Walk, Walker, disk_full, n_redone, steps_in, walk_alone

RUN = "run"


def vault_on(shelf: Shelf, fingerprint: str = "mine") -> Vault:
    return Vault(shelf, RUN, fingerprint)


def opened(role: Walker | None = None, vault: Vault | None = None, threads: int = 1) -> Berth:
    made = Berth(threads)
    made.open(role or Walker(), Room(), vault)
    return made


def post(member: int, newest: int = 0, oldest: int = 0, incarnation: int = 1000, **more) -> Post:
    return Post(member, incarnation, oldest, newest, **{"is_restart": False, **more})


def at(member: int, position: int, incarnation: int = 1000) -> Start:
    return Start(member, position, incarnation)


def orders(first: int, stop: int) -> list[float]:
    return [float(i) for i in range(first, stop)]


def walked(vault: Vault | None = None, n: int = 5, member: int = 0) -> Berth:
    """A berth whose one member did n steps, one a call, the last one saved."""
    made = opened(vault=vault)
    made.adopt([post(member)])
    for i in range(n):
        made.advance([at(member, i)], orders(i, i + 1), save=i == n - 1)
    return made


def places(shelf: Shelf, member: int = 0) -> list[tuple[int, int]]:
    return vault_on(shelf).checkpoints(berth.part_of(member))._saved()


def state_in(shelf: Shelf, step: int, member: int = 0) -> Walk:
    vault = vault_on(shelf)
    for saved in vault.checkpoints(berth.part_of(member)).newest_first([]):
        if saved.step == step:
            return vault.restore(Walk, saved)
    raise AssertionError(f"nothing of step {step}")


def test_advance__orders_are_carried_out_from_a_position():
    made = opened()
    assert made.adopt([post(0), post(1)]) == ({0: 0, 1: 0}, [])
    reports, problem = made.advance([at(0, 0), at(1, 0)], orders(0, 3), save=True)
    assert problem is None
    wanted = [walk_alone(member, 3)[-1] for member in range(2)]
    assert [report.tobytes() for report in reports] == wanted
    facts = made.facts([0, 1, 77])
    assert [(f["member"], f["position"], f["incarnation"]) for f in facts] == [
        (0, 3, 1000),
        (1, 3, 1000),
    ]
    assert all(type(fact["metrics"]["x"]) is float for fact in facts)


def test_advance__a_repeated_call_is_answered_and_not_done_twice(tmp_path):
    journal = tmp_path / "journal"
    made = opened(Walker(journal=journal))
    made.adopt([post(0)])
    first = made.advance([at(0, 0)], orders(0, 2), save=False)
    again = made.advance([at(0, 0)], orders(0, 2), save=False)
    assert again[0][0].tobytes() == first[0][0].tobytes()
    assert steps_in(journal) == {(0, 0): 1, (0, 1): 1}


def test_advance__a_call_repeated_while_the_first_is_under_way(tmp_path):
    journal = tmp_path / "journal"
    made = opened(Walker(seconds=0.1, journal=journal))
    made.adopt([post(0)])
    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(made.advance, [at(0, 0)], orders(0, 2), save=False) for _ in range(3)]
        answers = {call.result()[0][0].tobytes() for call in calls}
    assert answers == {walk_alone(0, 2)[-1]}
    assert n_redone(journal) == 0


@pytest.mark.parametrize("position", [0, 1, 2, 4, 9])
def test_advance__another_position_is_refused(position):
    made = walked(n=3)
    if position == 2:  # the call that brought it to 3, again
        made.advance([at(0, 2)], orders(2, 3), save=False)
        return
    with pytest.raises(InputError, match=f"member 0: expected position {position}, got 3"):
        made.advance([at(0, position)], orders(0, 1), save=False)


def test_advance__the_state_before_is_left_alone():
    """The generator of a state is drawn from by roles; who saves the state needs it as it was."""
    shelf = Shelf()
    made = walked(vault_on(shelf), n=3)
    made.advance([at(0, 3)], orders(3, 4), save=False)
    assert made.save([at(0, 3, 1001)]) is None
    back = opened(vault=vault_on(shelf))
    assert back.adopt([post(0, newest=9)])[0] == {0: 3}
    reports, _ = back.advance([at(0, 3)], orders(3, 6), save=False)
    assert reports[0].tobytes() == walk_alone(0, 6)[-1]


class Strided(Walker):
    """Keeps every other column of a product: a view that does not lie in one piece."""

    def advance(self, place, member, state, order):
        state, report = super().advance(place, member, state, order)
        return Walk(np.repeat(state.x, 2)[::2], state.n, state.rng), report


def test_advance__arrays_lie_as_they_would_after_a_restart():
    made = opened(Strided())
    made.adopt([post(0)])
    made.advance([at(0, 0)], orders(0, 1), save=False)
    assert made._members[0].now.state.x.flags.c_contiguous


def test_unknown_member__is_refused():
    made = walked()
    made.drop([at(0, 5), at(5, 0)])
    for call in (
        lambda: made.advance([at(0, 5)], orders(5, 6), save=False),
        lambda: made.save([at(0, 5, 1000)]),
    ):
        with pytest.raises(InputError, match="member 0: expected a member here"):
            call()


def test_drop__not_one_that_came_back():
    made = walked()
    made.adopt([post(0, incarnation=1001)])
    made.drop([at(0, 5, incarnation=1000)])
    assert made.facts([0]) != []


# ---- saves -----------------------------------------------------------------------------------


def test_save__now_and_one_call_earlier_but_nothing_else():
    shelf = Shelf()
    made = walked(vault_on(shelf), n=5)
    made.advance([at(0, 5)], orders(5, 7), save=False)
    assert made.save([at(0, 7, 1001)]) is None
    assert state_in(shelf, 7).x.tobytes() == walk_alone(0, 7)[-1]
    assert made.save([at(0, 5, 1002)]) is None
    assert state_in(shelf, 5).x.tobytes() == walk_alone(0, 5)[-1]
    assert "no longer at position 6" in str(made.save([at(0, 6, 1003)]))
    assert opened().save([]) is None


def test_save__one_call_earlier_although_the_later_one_is_saved():
    """An interrupt strikes when some members have saved the round and others have not."""
    shelf = Shelf()
    made = walked(vault_on(shelf), n=5)
    made.advance([at(0, 5)], orders(5, 6), save=True, keep=[0])
    assert made.save([at(0, 5, 1001)], keep=[0]) is None
    assert places(shelf)[-1] == (1001, 5)


def test_save__what_is_under_way_does_not_come_after_it():
    """A call that was sent before an interrupt may end after the last save."""
    shelf = Shelf()
    made = walked(vault_on(shelf), n=5)
    made.advance([at(0, 5)], orders(5, 8), save=False)
    assert made.save([at(0, 8, 1001)], keep=[5]) is None
    with pytest.raises(ConflictError, match="1001"):
        made.advance([at(0, 8)], orders(8, 9), save=True, keep=[5])
    assert places(shelf) == [(1000, 5), (1001, 8)]


def test_save__during_an_advance_takes_the_state_of_its_position(monkeypatch):
    """Whoever saves between two steps of the bookkeeping finds states under their positions."""
    shelf = Shelf()
    made = opened(vault=vault_on(shelf))
    made.adopt([post(0)])
    made.advance([at(0, 0)], orders(0, 1), save=False)
    numbers = iter(range(1001, 2000))
    plain = berth._Member.__setattr__
    n_looks = 0

    def look(member, name, value):
        nonlocal n_looks
        plain(member, name, value)
        if name == "saved":
            return
        n_looks += 1
        for step in (1, 2):
            number = next(numbers)
            if made.save([at(0, step, number)]) is None:
                saved = state_in(shelf, step)
                assert saved.n == step
                assert saved.x.tobytes() == walk_alone(0, 2)[step - 1]

    monkeypatch.setattr(berth._Member, "__setattr__", look)
    made.advance([at(0, 1)], orders(1, 2), save=False)
    assert n_looks


def test_save__a_full_disk_is_a_note():
    shelf = Shelf()
    made = walked(vault_on(shelf), n=2)
    shelf.fault = disk_full
    reports, problem = made.advance([at(0, 2)], orders(2, 3), save=True)
    assert reports[0].tobytes() == walk_alone(0, 3)[-1]
    assert "No space left on device (checkpoints/run/member-000000/" in str(problem)
    assert "No space left" in str(made.save([at(0, 3, 1001)]))
    assert made.facts([0])[0]["checkpoint"] == 2


# ---- restores --------------------------------------------------------------------------------


def test_adopt__goes_on_from_the_newest_that_is_allowed():
    shelf = Shelf()
    vault = vault_on(shelf)
    made = walked(vault, n=4)
    made.advance([at(0, 4)], orders(4, 8), save=True)
    for newest, wanted in ((9, 8), (8, 8), (7, 4), (4, 4), (3, 0)):
        back = opened(vault=vault)
        positions, notes = back.adopt([post(0, newest)])
        assert (positions, notes) == ({0: wanted}, [])
        reports, _ = back.advance([at(0, wanted)], orders(wanted, 10), save=False)
        assert reports[0].tobytes() == walk_alone(0, 10)[-1]


def test_adopt__a_damaged_one_is_passed_over_and_named():
    shelf = Shelf()
    vault = vault_on(shelf)
    made = walked(vault, n=4)
    made.advance([at(0, 4)], orders(4, 8), save=True)
    newest = shelf.newest("member-000000")
    shelf.damage(newest)
    positions, (note,) = opened(vault=vault).adopt([post(0, 9)])
    assert positions == {0: 4}
    assert newest in note
    shelf.damage(shelf.list("checkpoints/run")[0])
    positions, notes = opened(vault=vault).adopt([post(0, 9)])
    assert positions == {0: 0}
    assert len(notes) == 2


@pytest.mark.parametrize(
    ("oldest", "newest", "expected"), [(5, 5, "of position 5,"), (5, 7, "of position 5 to 7,")]
)
def test_adopt__nothing_whole_is_an_error_with_the_label(oldest, newest, expected):
    shelf = Shelf()
    walked(vault_on(shelf), n=4)
    with pytest.raises(NoWholeCheckpoint, match=f"walker 0, .*run: .*{expected}"):
        opened(vault=vault_on(shelf)).adopt([post(0, newest, oldest)])
    with pytest.raises(NoWholeCheckpoint, match="walker 0: expected"):
        opened().adopt([post(0, newest, oldest)])


def test_adopt__other_data_are_refused_and_both_named():
    shelf = Shelf()
    walked(vault_on(shelf), n=4)
    with pytest.raises(InputError, match="yours, got one of mine"):
        opened(vault=vault_on(shelf, "yours")).adopt([post(0, 4)])


def test_open__members_of_another_role_are_forgotten():
    made = walked()
    made.open(Walker(), Room(), None)
    assert made.facts([0]) == []


# ---- who is shut out -------------------------------------------------------------------------


def test_fence__an_old_incarnation_is_refused_from_the_moment_of_the_restart():
    shelf = Shelf()
    vault = vault_on(shelf)
    zombie = walked(vault, n=4)
    heir = opened(vault=vault)
    heir.adopt([post(0, 4, incarnation=1001, is_restart=True)])
    with pytest.raises(ConflictError, match="incarnation 1001"):
        zombie.advance([at(0, 4)], orders(4, 5), save=True)
    assert places(shelf) == [(1000, 4), (1001, 4)]


def test_fence__a_save_that_slips_in_is_not_read():
    shelf = Shelf()
    zombie = walked(vault_on(shelf), n=4)
    zombie._vault = vault_on(Snapshot(shelf))
    heir = opened(vault=vault_on(shelf))
    heir.adopt([post(0, 4, incarnation=1001, is_restart=True)])
    other = [5.5]  # as if the zombie did something else
    zombie.advance([at(0, 4)], other, save=True)
    assert (1000, 5) in places(shelf)
    third = opened(vault=vault_on(shelf))
    assert third.adopt([post(0, 5, incarnation=1002, is_restart=True)])[0] == {0: 4}
    reports, _ = third.advance([at(0, 4, 1002)], orders(4, 6), save=True)
    assert reports[0].tobytes() == walk_alone(0, 6)[-1]
    assert (1000, 5) not in places(shelf)


def test_fence__the_generation_before_stays():
    """Others of the crew may have to return to it."""
    shelf = Shelf()
    made = walked(vault_on(shelf), n=4)
    made.advance([at(0, 4)], orders(4, 8), save=True, keep=[4])
    for incarnation in (1001, 1002, 1003):
        heir = opened(vault=vault_on(shelf))
        heir.adopt([post(0, 8, 4, incarnation, is_restart=True, keep=(4, 8))])
        assert places(shelf) == [(1000, 4), (incarnation, 8)]


def test_fence__a_full_disk_at_the_restart_is_a_note():
    shelf = Shelf()
    walked(vault_on(shelf), n=4)
    shelf.fault = disk_full
    positions, (note,) = opened(vault=vault_on(shelf)).adopt([post(0, 4, is_restart=True)])
    assert positions == {0: 4}
    assert "No space left" in note


# ---- threads ---------------------------------------------------------------------------------


class Slow(Walker):
    """Says when it is at work, and waits to be let go."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def advance(self, place, member, state, order):
        self.begun.set()
        assert self.go.wait(30)
        return super().advance(place, member, state, order)


def test_save__does_not_wait_for_members_at_work():
    shelf = Shelf()
    role = Slow()
    made = opened(role, vault_on(shelf))
    made.adopt([post(0)])
    thread = threading.Thread(target=made.advance, args=([at(0, 0)], [0.0]), kwargs={"save": False})
    thread.start()
    assert role.begun.wait(30)
    assert made.save([at(0, 0, 1001)]) is None
    assert not role.go.is_set()
    role.go.set()
    thread.join()
    assert state_in(shelf, 0).n == 0


def test_advance__members_share_the_threads():
    made = opened(Walker(seconds=0.01), threads=4)
    made.adopt([post(member) for member in range(6)])
    reports, _ = made.advance([at(member, 0) for member in range(6)], orders(0, 2), save=False)
    wanted = [walk_alone(member, 2)[-1] for member in range(6)]
    assert [report.tobytes() for report in reports] == wanted
