"""The supervisor while berths die, freeze, come back and are retired: every interleaving."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distclust.engine.crews import Crew, Vault
from distclust.engine.crews import crew as crew_module
from distclust.errors import CheckpointWarning, ClusterError
from tests.crew_stage import Stage
from tests.walkers import Leader, Shelf, Walker, walk_alone, walk_together

N_MEMBERS, N_ROUNDS, EVERY = 4, 7, 3
WANTED = walk_together(N_MEMBERS, N_ROUNDS)

# An event and to whom it happens; see Stage.
SCRIPTS = st.lists(st.integers(0, len(Stage.EVENTS) * 12 - 1), max_size=80)


def on_stage(stage: Stage, role=None, vault: Vault | None = None, **options) -> Crew:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crew_module, "_hands_for", lambda *_: stage)
        return Crew(role or Walker(), N_MEMBERS, vault=vault, **{"every": EVERY, **options})


class Counting(Walker):
    """Counts steps, in this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: Counter[tuple[int, int]] = Counter()

    def advance(self, place, member, state, order):
        self.steps[member, state.n] += 1
        return super().advance(place, member, state, order)


def vault_on(shelf: Shelf, incarnation: int = 1) -> Vault:
    return Vault(shelf, "run", "mine", incarnation)


@given(script=SCRIPTS, has_vault=st.booleans())
@settings(max_examples=300)
def test_follow__same_bits_whatever_happens(script, has_vault):
    stage, role = Stage(script), Counting()
    vault = vault_on(Shelf()) if has_vault else None
    with on_stage(stage, role, vault, restarts=400) as crew:
        assert crew.follow(Leader(N_ROUNDS)).total.tobytes() == WANTED
    n_losses = sum(stage.events.count(kind) for kind in ("death", "loss", "freeze"))
    assert crew.n_restarts <= N_MEMBERS * n_losses
    if has_vault:
        # Each restart goes back to the last checkpoint that is complete, or to a later one.
        assert crew.n_redone <= crew.n_restarts * (EVERY + 1)
        n_zombies = stage.events.count("awakening") * N_MEMBERS * (EVERY + 1)
        n_begun = crew.n_restarts * (EVERY + 1)  # broken off, and done once more
        assert role.steps.total() - N_MEMBERS * N_ROUNDS <= crew.n_redone + n_begun + n_zombies


@given(script=SCRIPTS)
@settings(max_examples=200)
def test_run__same_bits_whatever_happens(script):
    stage = Stage(script)
    found: dict[tuple[int, int], bytes] = {}
    last: Counter[int] = Counter()
    with on_stage(stage, vault=vault_on(Shelf()), restarts=400) as crew:
        for member, position, report in crew.run(N_ROUNDS, float):
            assert position == last[member] + 1  # in order, and each once
            last[member] = position
            found[member, position] = report.tobytes()
    assert found == {
        (m, p + 1): walk_alone(m, N_ROUNDS)[p] for m in range(N_MEMBERS) for p in range(N_ROUNDS)
    }


@given(script=SCRIPTS, more=SCRIPTS, last=st.integers(0, N_ROUNDS))
@settings(max_examples=200)
def test_follow__then_the_driver_dies_and_another_goes_on(script, more, last):
    """What the first left behind is whole; its workers may still live and write."""

    class Killed(BaseException): ...

    class Until(Leader):
        def order(self, state):
            if state.n == last:
                raise Killed
            return super().order(state)

    shelf = Shelf()
    first = Stage(script)
    with on_stage(first, vault=vault_on(shelf), restarts=400) as crew:
        with pytest.raises(Killed):
            crew.follow(Until(N_ROUNDS))
        complete = crew._saved[-1]
    second, role = Stage(more), Counting()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is passed over
        with on_stage(second, role, vault_on(shelf, 2), restarts=400) as crew:
            while first.zombies:
                first._wake(0)
            assert crew.follow(Leader(N_ROUNDS)).total.tobytes() == WANTED
    assert complete >= last - EVERY
    assert min((n for _, n in role.steps), default=complete) >= complete


@given(script=SCRIPTS, when=st.integers(1, 80))
@settings(max_examples=200)
def test_follow__interrupted_amid_losses(script, when):
    stage, shelf = Stage(script), Shelf()
    plain, left = stage.wait, when

    def wait():
        nonlocal left, is_quiet
        left -= 1
        if left == 0:
            is_quiet = not stage.script  # from here on nothing more goes wrong
            raise KeyboardInterrupt
        return plain()

    stage.wait = wait
    is_quiet = False
    with on_stage(stage, vault=vault_on(shelf), restarts=400) as crew, warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # who is lost in the last moment
        try:
            assert crew.follow(Leader(N_ROUNDS)).total.tobytes() == WANTED
        except KeyboardInterrupt:
            # One that was lost when it had saved the round, and was restored there, cannot go
            # back to where the others are: then the last checkpoint is all there is.
            is_ahead = any(m.restarts and m.saved > crew.position for m in crew._members)
            assert crew._saved[-1] == crew.position or is_ahead or not is_quiet
    with on_stage(Stage(), vault=vault_on(shelf, 2)) as crew:
        assert crew.follow(Leader(N_ROUNDS)).total.tobytes() == WANTED


@given(script=SCRIPTS, when=st.integers(1, 80))
def test_run__interrupted_amid_losses_misses_no_report(script, when):
    stage, shelf = Stage(script), Shelf()
    seen: dict[tuple[int, int], bytes] = {}

    def look(stage: Stage, incarnation: int, most: int) -> None:
        with on_stage(stage, vault=vault_on(shelf, incarnation), restarts=400) as crew:
            for member, position, report in crew.run(N_ROUNDS, float):
                seen[member, position] = report.tobytes()
                if len(seen) == most:
                    stage.script.clear()  # a death in this moment takes reports with it
                    raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        try:
            look(stage, 1, when)
        except KeyboardInterrupt:
            look(Stage(), 2, 1000)
    assert seen == {
        (m, p + 1): walk_alone(m, N_ROUNDS)[p] for m in range(N_MEMBERS) for p in range(N_ROUNDS)
    }


@pytest.mark.parametrize("is_alone", [False, True])
def test_interrupt__stays_one_when_the_cluster_is_gone(is_alone):
    stage = Stage()
    plain, left = stage.wait, 15

    def wait():
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        if left < 0:
            raise ClusterError("the Dask cluster", "the scheduler to answer", "none", "Start it.")
        return plain()

    stage.wait = wait
    with (
        pytest.warns(CheckpointWarning, match="Not everything could be saved: the Dask cluster"),
        pytest.raises(KeyboardInterrupt),
        on_stage(stage, vault=vault_on(Shelf()), every=100) as crew,
    ):
        list(crew.run(9, float)) if is_alone else crew.follow(Leader(9))


def lines_of_crew(action, strike_at: int | None) -> int:
    """Run an action; raise KeyboardInterrupt at a line of the supervisor; return how many."""
    n_lines = 0

    def trace(frame, event, argument):
        nonlocal n_lines
        if frame.f_code.co_filename != crew_module.__file__:
            return None
        if event == "line":
            n_lines += 1
            if n_lines == strike_at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return n_lines


def test_interrupt__at_any_line_of_the_supervisor():
    """A short run, struck at each line that it executes, one after another."""
    wanted = walk_together(N_MEMBERS, 3)

    def begin(shelf: Shelf, incarnation: int = 1) -> Crew:
        role = Counting()
        roles.append(role)
        return on_stage(Stage(), role, vault_on(shelf, incarnation), every=2)

    roles: list[Counting] = []
    with begin(Shelf()) as crew:
        n_lines = lines_of_crew(lambda: crew.follow(Leader(3)), None)
    n_inexact = 0
    for line in range(1, n_lines):
        shelf = Shelf()
        with begin(shelf) as crew, warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            with contextlib.suppress(KeyboardInterrupt):
                lines_of_crew(lambda crew=crew: crew.follow(Leader(3)), line)
        with begin(shelf, 2) as crew:
            assert crew.follow(Leader(3)).total.tobytes() == wanted
        steps = roles[-1].steps + roles[-2].steps
        n_inexact += steps.total() - len(steps) > N_MEMBERS
    assert n_lines > 300
    # In a few lines of the bookkeeping the last checkpoint is all there is.
    assert n_inexact <= 0.05 * n_lines


def test_interrupt__while_a_lost_member_is_behind():
    """It is brought to where the others are, and then all are saved."""
    stage, shelf, role = Stage(), Shelf(), Counting()

    class Interrupted(Leader):
        def order(self, state):
            if state.n == 5:
                stage._lose(0)
                plain, stage.wait = stage.wait, strike
                strike.plain = plain
            return super().order(state)

    def strike():
        stage.wait = strike.plain
        raise KeyboardInterrupt

    with on_stage(stage, vault=vault_on(shelf)) as crew:
        with pytest.raises(KeyboardInterrupt):
            crew.follow(Interrupted(N_ROUNDS))
        assert crew._saved[-1] == crew.position == 5
    with on_stage(Stage(), role, vault=vault_on(shelf, 2)) as crew:
        assert crew.follow(Leader(N_ROUNDS)).total.tobytes() == WANTED
    assert min(n for _, n in role.steps) == 5


def test_restart__from_the_older_generation_during_the_run():
    """The newest checkpoint of a member is found to be damaged when it is lost."""
    stage, shelf = Stage(), Shelf()

    class Damaging(Leader):
        def order(self, state):
            if state.n == 6:
                shelf.damage(shelf.newest("member-000000"))
                stage._lose(0)
            return super().order(state)

    with (
        pytest.warns(CheckpointWarning, match="damaged checkpoint is passed over"),
        on_stage(stage, vault=vault_on(shelf)) as crew,
    ):
        assert crew.follow(Damaging(N_ROUNDS)).total.tobytes() == WANTED
    assert crew.n_redone == 3  # of member 0; the other one of that berth has its own


# ---- the budget ------------------------------------------------------------------------------


def test_budget__used_up_is_an_error_with_the_label():
    die = Stage.EVENTS.index("die")
    stage = Stage([die] * 100, {"a": 1})
    with on_stage(stage, restarts=3) as crew:
        with pytest.raises(ClusterError, match="crew crew, walker 0: expected at most 3 restarts"):
            crew.round(0.0)
        assert crew.n_restarts == 3 * N_MEMBERS + 1


def test_budget__is_each_members_own():
    """Losses of different members do not add up."""
    stage = Stage(threads=dict.fromkeys("abcd", 1))
    with on_stage(stage, vault=vault_on(Shelf()), restarts=1, every=1) as crew:
        for name in "abcd":
            crew.round(0.0)
            lone = [m.berth for m in crew._members].count(name) == 1
            assert lone
            stage._lose(sorted(stage.here).index(name))
            crew._may_balance = False  # the others stay where they are
            stage._add(1)
            crew.round(0.0)
    assert crew.n_restarts == 4


# ---- moves -----------------------------------------------------------------------------------


def loads(crew: Crew) -> list[int]:
    return sorted(Counter(member.berth for member in crew._members).values())


def test_balance__a_worker_that_comes_back_gets_members_at_the_next_checkpoint():
    stage, role = Stage(), Counting()
    with on_stage(stage, role, vault_on(Shelf())) as crew:
        crew.round(0.0)
        assert loads(crew) == [2, 2]
        stage._lose(0)
        crew.round(0.0)
        assert loads(crew) == [4]
        stage._add(1)
        crew.round(0.0)  # is saved
        assert loads(crew) == [4]
        crew.round(0.0)
        assert loads(crew) == [2, 2]
        assert crew.n_restarts == 2
        assert crew.n_redone == 2  # of the loss; a move costs nothing
        moved = [
            post for call in stage.calls[-8:] if call.method == "adopt" for post in call.args[0]
        ]
        assert all(post.is_restart and post.incarnation > 1000 for post in moved)
        assert moved
    assert role.steps.total() == 4 * N_MEMBERS + 2
    for name, berth in stage.here.items():
        mine = {m.number for m in crew._members if m.berth == name}
        assert set(berth._members) == mine  # dropped where they were


@pytest.mark.parametrize(("threads", "wanted"), [(1, [1, 1, 2]), (2, [1, 1, 2]), (6, [4])])
def test_balance__follows_threads(threads, wanted):
    stage = Stage()
    with on_stage(stage, vault=vault_on(Shelf()), every=1) as crew:
        crew.round(0.0)
        name = stage._add(threads)
        for _ in range(4):
            crew.round(0.0)
        assert loads(crew) == wanted
        if threads > 1:
            assert (
                max(Counter(m.berth for m in crew._members).items(), key=lambda i: i[1])[0] == name
            )
        moves = [call for call in stage.calls if call.method == "adopt"]
        crew.round(0.0)
        assert [call for call in stage.calls if call.method == "adopt"] == moves  # it is settled


def test_balance__without_checkpoints_nobody_moves():
    stage = Stage()
    with on_stage(stage) as crew:
        crew.round(0.0)
        stage._add(4)
        for _ in range(2 * EVERY):
            crew.round(0.0)
        assert loads(crew) == [2, 2]


def test_balance__members_that_were_lost_less_often_go_first():
    stage = Stage(threads={"a": 1})
    with on_stage(stage, vault=vault_on(Shelf()), every=1) as crew:
        crew.round(0.0)
        for number, restarts in enumerate((2, 0, 1, 0)):
            crew._members[number].restarts = restarts
        name = stage._add(1)
        crew.round(0.0)
        crew.round(0.0)
        assert [m.number for m in crew._members if m.berth == name] == [1, 3]


@pytest.mark.parametrize("is_alone", [False, True])
@pytest.mark.parametrize("has_vault", [False, True])
def test_drain__members_leave_and_the_berth_is_let_go(is_alone, has_vault):
    stage, role = Stage(), Counting()
    vault = vault_on(Shelf()) if has_vault else None

    def look(crew: Crew) -> None:
        if not is_alone:
            for _ in range(4):
                yield_point(crew)
                crew.round(0.0)
            return
        for _ in crew.run(4, lambda _: 0.0):
            yield_point(crew)

    def yield_point(crew: Crew) -> None:
        if crew.position == 1 or (is_alone and role.steps.total() == 3):
            stage.retiring.add("b")

    with on_stage(stage, role, vault) as crew:
        look(crew)
    assert stage.released == ["b"]
    assert {member.berth for member in crew._members} == {"a"}
    assert crew.n_restarts == 0
    assert (crew.n_redone == 0) == has_vault
    assert role.steps.total() == 4 * N_MEMBERS + crew.n_redone


def test_drain__while_others_are_at_work():
    """Answers of others that come meanwhile are not lost."""
    stage = Stage()
    plain = stage.wait

    def wait():
        stage.retiring.add("b")
        return plain()

    stage.wait = wait
    with on_stage(stage, vault=vault_on(Shelf())) as crew:
        assert crew.follow(Leader(N_ROUNDS)).total.tobytes() == WANTED
    assert stage.released == ["b"]


def test_drain__of_all_waits_for_somebody_new():
    stage = Stage(threads={"a": 1})

    def arrive() -> None:
        stage._add(1)

    with on_stage(stage, vault=vault_on(Shelf()), every=1) as crew:
        crew.round(0.0)
        stage.retiring.add("a")
        plain, n_waits = stage.wait, 0

        def wait():
            nonlocal n_waits
            n_waits += 1
            if n_waits == 5:
                arrive()
            return plain()

        stage.wait = wait
        for _ in range(3):
            crew.round(0.0)
    assert stage.released == ["a"]


# ---- what is told and asked ------------------------------------------------------------------


def test_told__restarts_and_the_end():
    stage = Stage()
    with on_stage(stage) as crew:
        crew.round(0.0)
        stage._lose(0)
        crew.round(0.0)
    assert [kind for kind, _ in stage.told] == ["restart", "end"]
    assert stage.told[0][1]["members"] == [0, 2]
    assert stage.told[-1][1] == {"state": "done"}


@pytest.mark.parametrize(
    ("error", "wanted"), [(KeyboardInterrupt, "stopped"), (ZeroDivisionError, "failed")]
)
def test_told__how_it_ended(error: type[BaseException], wanted: str):
    stage = Stage()
    with pytest.raises(error), on_stage(stage):
        raise error
    assert stage.told == [("end", {"state": wanted})]


def test_restart__both_generations_stay_for_all():
    """A member was restarted; another one's newest checkpoint is then found to be damaged."""

    class Killed(BaseException): ...

    class Until(Leader):
        def order(self, state):
            if state.n == 7:
                stage._lose(0)
            if state.n == 8:
                raise Killed
            return super().order(state)

    shelf, stage, role = Shelf(), Stage(), Counting()
    with pytest.raises(Killed), on_stage(stage, vault=vault_on(shelf)) as crew:
        crew.follow(Until(9))
    restarted = {member.number for member in crew._members if member.restarts}
    (other, *_) = set(range(N_MEMBERS)) - restarted
    shelf.damage(shelf.newest(f"member-{other:06d}"))
    again = on_stage(Stage(), role, vault=vault_on(shelf, 2))
    with pytest.warns(CheckpointWarning) as caught, again as crew:
        crew.follow(Leader(9))
    assert "position 6 is passed over" in str(caught[0].message)
    assert min(n for _, n in role.steps) == 3


def test_resume__calls_under_way_end_before_members_are_asked_again():
    """One member has nothing whole; others are still being restored when that comes."""
    shelf = Shelf()
    with on_stage(Stage(), vault=vault_on(shelf)) as crew:
        crew.follow(Leader(6))
    shelf.damage(shelf.newest("member-000000"))
    stage = Stage([0] * 3)
    done: list[str] = []
    plain: Callable = stage.call

    def call(number, berth, method, *args, **options):
        assert not [r for r in stage.requests if r.berth == berth], "not answered yet"
        done.append(method)
        plain(number, berth, method, *args, **options)

    stage.call = call
    with pytest.warns(CheckpointWarning), on_stage(stage, vault=vault_on(shelf, 2)) as crew:
        assert crew.follow(Leader(N_ROUNDS)).total.tobytes() == WANTED
    assert done[:4] == ["adopt"] * 4
