"""The supervisor of a crew: calls, checkpoints, restarts.

A member is told what to do by orders, one after another; its position is how many it has
carried out. Its state at a position follows from the first state and the orders before, so a
member that is lost begins again from its last checkpoint and carries out once more what came
after it: the supervisor keeps those orders. At most one call is on its way for each member.

Members of a crew that works in rounds are saved at the same position, and the plan that
leads them after them: the plan's checkpoint says that the whole is complete. Until then what
was complete before is kept.

A member that was just saved may be moved: away from a worker that is to be retired, or to one
that came back. It goes on there from its checkpoint.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
import uuid
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, Self, TypeVar

from distclust.engine.crews.berth import NoWholeCheckpoint, Post, Start, Vault
from distclust.engine.crews.hands import Answer, Hands, Lost
from distclust.engine.crews.in_process import LocalHands
from distclust.engine.crews.role import Plan, Role, check_kind
from distclust.engine.sessions import current_client
from distclust.engine.threads import with_one_blas_thread
from distclust.errors import CheckpointWarning, ClusterError, InputError, StoreError
from distclust.store.states import as_restored, with_own_generators
from distclust.validation import check_integer, check_real

State = TypeVar("State")

SECONDS_BETWEEN_SAVES = 10.0
RESTARTS = 5

_PLAN = "plan"
_WORK_FOR_SAVING = 40  # seconds of work for each second of saving
_STARTS = 1000  # incarnations that one process may give a member
_MOST = 400  # of these for restarts, and as many for moves
_LAST_SAVE_SECONDS = 30.0

_LOGGER = logging.getLogger(__name__)


@dataclass
class _Member:
    """What the supervisor knows of a member."""

    number: int
    reported: int = 0  # position up to which reports came in
    position: int = 0  # position of its state
    berth: str | None = None
    call: int | None = None  # the one on its way
    saved: int = -1  # position of its last checkpoint
    restarts: int = 0
    moves: int = 0


@dataclass(frozen=True)
class _Call:
    kind: Literal["adopt", "advance"]
    berth: str
    members: tuple[int, ...]
    position: int = 0  # that members have when it is done
    is_saving: bool = False


@dataclass(frozen=True)
class _Led(Generic[State]):
    """The state of a plan, and after which round."""

    position: int
    state: State


class Crew:
    """A supervised set of members that hold their state where they work.

    Parameters
    ----------
    role
        What members do.
    n_members
        How many there are, numbered from 0.
    name
        What people see on the board and in messages.
    vault
        Where checkpoints go. Without it a lost member begins at the beginning.
    every
        Save when so many orders have been carried out since the last time, or None.
    seconds
        Save when so many seconds have passed since the last time; less often if saving takes
        so long that more than a few hundredths of the time would go there.
    restarts
        How often a member may be restarted before the crew is given up.
    heartbeat
        Seconds of silence after which a worker is taken for lost. None: 60, or what the
        environment variable DISTCLUST_HEARTBEAT_SECONDS says.

    Attributes
    ----------
    position
        Rounds that all members have finished.
    n_redone
        Orders that were carried out once more after a loss.
    n_restarts
        Members that were restarted after a loss.

    Notes
    -----
    With no Dask client the members work in this process; with a current client they are
    spread over its workers, in proportion to their threads. The result is the same to the
    bit. Several crews may share a cluster.
    """

    def __init__(
        self,
        role: Role[Any],
        n_members: int,
        *,
        name: str = "crew",
        vault: Vault | None = None,
        every: int | None = None,
        seconds: float = SECONDS_BETWEEN_SAVES,
        restarts: int = RESTARTS,
        heartbeat: float | None = None,
    ) -> None:
        where = f"Crew {name}"
        if every is not None:
            check_integer(every, f"{where}: every", at_least=1)
        check_real(seconds, f"{where}: seconds", above=0)
        self.name = name
        self.id = uuid.uuid4().hex[:12]
        self._every, self._seconds = every, float(seconds)
        self._restarts = check_integer(restarts, f"{where}: restarts")
        if self._restarts > _MOST:
            hint = "Pass fewer."
            raise InputError(f"{where}: restarts", f"at most {_MOST}", restarts, hint)
        self._numbers = itertools.count()
        self._calls: dict[int, _Call] = {}
        self.n_redone = 0
        self.n_restarts = 0
        self._hands = _hands_for(self.id, name, heartbeat)
        try:
            self.assign(role, n_members, vault)
        except BaseException:
            self._hands.close()
            raise

    # ---- the public side ------------------------------------------------------------------

    @property
    def n_threads(self) -> int:
        """Members that can work at the same time, here and now."""
        return sum(self._hands.berths().values())

    def assign(self, role: Role[Any], n_members: int, vault: Vault | None = None) -> None:
        """Give the crew another role; processes stay, and with them what they opened.

        Members begin anew, at position 0.
        """
        check_kind(role, Role, f"Crew {self.name}")
        check_integer(n_members, f"Crew {self.name}: n_members", at_least=1)
        self._await_calls()
        if vault is not None:  # what is saved belongs to so many members
            vault = replace(vault, fingerprint=f"{vault.fingerprint}, {n_members} members")
        self._role, self._vault = role, vault
        self._members = [_Member(i) for i in range(n_members)]
        self.position = 0
        self._reports: list[Any] = []  # of the last round
        self._orders: dict[int, Any] = {}  # of rounds that may have to be carried out again
        self._saved: list[int] = [0]  # positions that all members were saved at, two at most
        self._saved_at = time.monotonic()
        self._is_free = False  # whether members go on independently
        self._may_balance = False  # whether members were saved since the last look
        self._has_led = False  # whether a plan was followed
        self._cannot_save = False  # whether that was said already
        self._saving_seconds = 0.0  # what the last state of the plan took
        self._hands.open(role, vault, n_members)

    def settle(self) -> None:
        """Have members taken in without waiting for it, while a plan is made."""
        self._place_homeless(self.position)

    def round(self, order: Any) -> list[Any]:
        """Give all members an order; return their reports in the order of members."""
        self._do_round(order)
        if self._are_all_saved():
            self._note_saved()
        return self._reports

    def follow(self, plan: Plan[State]) -> State:
        """Do rounds as a plan says until it has no more orders; return its last state.

        Goes on from the last checkpoint of the run if there is one. An interrupt saves
        everything first.
        """
        check_kind(plan, Plan, f"Crew {self.name}: follow")
        state = self._lead(plan)
        self._hands.rest()
        return state

    @with_one_blas_thread
    def _lead(self, plan: Plan[State]) -> State:
        led = self._resume(plan)
        try:
            while (order := plan.order(with_own_generators(led.state))) is not None:
                self._do_round(order)
                led = self._absorb(plan, led)
                if self._are_all_saved():
                    self._save_plan(led)
        except KeyboardInterrupt:
            self._at_last(lambda: self._save_now(plan, led))
            raise
        return led.state

    def run(self, n_orders: int, order_at: Callable[[int], Any]) -> Iterator[tuple[int, int, Any]]:
        """Let members go on independently; yield (member, position, report) as they come.

        Parameters
        ----------
        n_orders
            Position at which members stop.
        order_at
            The order at a position, the same whenever it is asked for.

        Notes
        -----
        Each member goes on from its own last checkpoint. Reports of one member come in
        order; those before its checkpoint do not come again.
        """
        for member in self._members:
            member.reported = -1  # known when it is adopted
        self._is_free = True
        try:
            yield from self._drive(n_orders, order_at, None)
        except KeyboardInterrupt:
            self._at_last(self._save_each)
            raise
        self._is_free = False
        self._hands.rest()

    def close(self) -> None:
        """Let the processes go; closing twice does no harm."""
        self._end("done")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_stop = kind is not None and issubclass(kind, KeyboardInterrupt)
        if is_stop and self._is_free:  # struck while reports of `run` were looked at
            self._at_last(self._save_each)
        self._end("done" if kind is None else "stopped" if is_stop else "failed")

    def _end(self, state: Literal["done", "stopped", "failed"]) -> None:
        self._hands.tell("end", state=state)
        self._hands.close()

    # ---- the state machine ----------------------------------------------------------------

    def _do_round(self, order: Any) -> None:
        save = self._is_time_to_save()
        if self._vault is None or self._saved[-1] == self.position:
            self._rearrange()
        self._orders[self.position] = order
        reports: list[Any] = [None] * len(self._members)
        for member, _, report in self._drive(self.position + 1, self._orders.__getitem__, save):
            reports[member] = report
        self._reports = reports  # first: an interrupt finds them if the position is new
        self.position += 1

    def _absorb(self, plan: Plan[State], led: _Led[State]) -> _Led[State]:
        state = plan.absorb(with_own_generators(led.state), self._reports)
        return _Led(led.position + 1, as_restored(state))

    def _drive(
        self,
        target: int,
        order_at: Callable[[int], Any],
        save: bool | None,
        until: float = math.inf,
    ) -> Iterator[tuple[int, int, Any]]:
        """Bring all members to a position; yield what they report for the first time.

        `save` says whether they are saved there; None: each for itself, when it is time.
        """
        alone = save is None
        saved_at: dict[int, tuple[int, float]] = defaultdict(lambda: (0, time.monotonic()))
        while time.monotonic() < until:
            self._look_for_losses()
            if alone:
                self._rearrange()
            self._place_homeless(target if alone else self.position)
            # Orders of a round may be large: they wait until all members have a berth.
            if alone or not any(call.kind == "adopt" for call in self._calls.values()):
                for berth, numbers in self._idle(target, alone).items():
                    self._start(berth, numbers, target, order_at, save, saved_at)
            if all(self._is_at(member, target) for member in self._members):
                return
            answer = self._hands.wait()
            if answer is not None and answer.call in self._calls:
                yield from self._handle(answer)

    def _is_at(self, member: _Member, target: int) -> bool:
        return member.position >= target and self._is_home(member)

    def _is_home(self, member: _Member) -> bool:
        """Whether its berth has it: it may be at work, but not on its way there."""
        call = None if member.call is None else self._calls.get(member.call)
        return member.berth is not None and (call is None or call.kind == "advance")

    def _handle(self, answer: Answer) -> Iterator[tuple[int, int, Any]]:
        call = self._calls.pop(answer.call)
        if isinstance(answer.error, Lost):
            self._lose(call.berth, str(answer.error))
            return
        for number in call.members:
            self._members[number].call = None
        if answer.error is not None:
            raise answer.error
        if call.kind == "adopt":
            positions, notes = answer.value
            self._note_adopted(positions)
            for note in notes:
                self._warn(note)
            return
        reports, problem = answer.value
        if problem:
            self._say_unsaved(problem)
        elif call.is_saving and self._is_free:
            self._cannot_save = False
        for number, report in zip(call.members, reports, strict=True):
            member = self._members[number]
            member.position = call.position
            if call.is_saving and not problem:
                member.saved = call.position
                self._may_balance = True
            if call.position > member.reported:
                member.reported = call.position
                yield number, call.position, report

    def _idle(self, target: int, alone: bool) -> dict[str, list[list[int]]]:
        """Return members to be called, in groups that start alike, by berth."""
        found: dict[str, dict[Any, list[int]]] = defaultdict(lambda: defaultdict(list))
        for member in self._members:
            if member.berth and member.call is None and member.position < target:
                key = member.number if alone else member.position
                found[member.berth][key].append(member.number)
        return {berth: list(groups.values()) for berth, groups in found.items()}

    def _start(
        self,
        berth: str,
        groups: list[list[int]],
        target: int,
        order_at: Callable[[int], Any],
        save: bool | None,
        saved_at: dict[int, tuple[int, float]],
    ) -> None:
        for numbers in groups:
            first = self._members[numbers[0]]
            # What is carried out once more ends where the others are: an interrupt saves that.
            end = target if first.position >= target - 1 else target - 1
            wants_save = bool(save) and end == target
            if save is None:  # short calls, so that little is lost
                end = first.position + 1
                then, moment = saved_at[first.number]
                wants_save = self._is_due(end - then, moment) or end == target
                wants_save |= berth in self._hands.draining()
                if wants_save:
                    saved_at[first.number] = (end, time.monotonic())
            starts = [self._at(self._members[number], first.position) for number in numbers]
            orders = [order_at(i) for i in range(first.position, end)]
            call = _Call("advance", berth, tuple(numbers), end, wants_save)
            keep = () if save is None else (self._saved[-1],)
            self._send(call, "advance", starts, orders=orders, save=wants_save, keep=keep)

    def _send(self, call: _Call, method: str, *args: Any, **options: Any) -> int:
        number = next(self._numbers)
        self._calls[number] = call
        for member in call.members:
            self._members[member].call = number
        self._hands.call(number, call.berth, method, *args, **options)
        return number

    # ---- losses ---------------------------------------------------------------------------

    def _look_for_losses(self) -> None:
        for berth in self._hands.lost():
            self._lose(berth, "the scheduler does not know it any more, or it fell silent")

    def _lose(self, berth: str, reason: str) -> None:
        """Make the members of a berth homeless; each loss counts against the budget."""
        self._calls = {n: call for n, call in self._calls.items() if call.berth != berth}
        lost = [member for member in self._members if member.berth == berth]
        self._hands.release(berth)
        if not lost:
            return
        _LOGGER.warning("Crew %s lost %s with %d members: %s", self.name, berth, len(lost), reason)
        for member in lost:
            member.berth = member.call = None
            member.restarts += 1
            self.n_restarts += 1
            if member.restarts > self._restarts:
                raise ClusterError(
                    f"crew {self.name}, {self._role.label(member.number)}",
                    f"at most {self._restarts} restarts",
                    f"another loss, of {berth}: {reason}",
                    "See the workers' logs; most often they need more memory each.",
                )
        self._hands.tell("restart", members=[member.number for member in lost])

    def _place_homeless(self, newest: int) -> None:
        """Have members without a berth taken in where there is most room."""
        homeless = [m for m in self._members if m.berth is None and m.call is None]
        threads = self._hands.berths() if homeless else {}
        if not threads:
            return
        load = Counter(member.berth for member in self._members)
        chosen: dict[str, list[Post]] = defaultdict(list)
        for member in homeless:
            berth = min(threads, key=lambda b: ((load[b] + 1) / threads[b], b))
            load[berth] += 1
            member.berth = berth
            chosen[berth].append(self._post(member, newest))
        for berth, posts in chosen.items():
            call = _Call("adopt", berth, tuple(post.member for post in posts))
            self._send(call, "adopt", posts)

    def _post(self, member: _Member, newest: int) -> Post:
        oldest = 0 if member.reported < 0 or self._vault is None else self._floor()
        if member.reported >= 0:
            newest = member.reported
        return Post(
            member.number,
            self._incarnation(member),
            min(oldest, newest),
            newest,
            is_restart=member.restarts + member.moves > 0,
            keep=() if self._is_free else tuple(self._saved),
        )

    def _at(self, member: _Member, position: int) -> Start:
        return Start(member.number, position, self._incarnation(member))

    def _incarnation(self, member: _Member) -> int:
        base = self._vault.incarnation if self._vault else 1
        return base * _STARTS + member.restarts + member.moves

    def _floor(self) -> int:
        """Return the oldest position whose orders are still known."""
        return min(self._orders, default=self.position)

    def _note_adopted(self, positions: dict[int, int]) -> None:
        for number, position in positions.items():
            member = self._members[number]
            member.position = member.saved = position
            if member.reported < 0:
                member.reported = position
            self.n_redone += member.reported - position

    # ---- moves ----------------------------------------------------------------------------

    def _rearrange(self) -> None:
        """Move members that were just saved: away from who leaves, to who has few."""
        leaving = set(self._hands.draining())
        for member in self._members:
            if member.berth in leaving and self._may_move(member):
                self._move(member)
        for berth in leaving - {member.berth for member in self._members}:
            self._hands.release(berth)
        if self._may_balance:
            self._may_balance = False
            self._balance()

    def _balance(self) -> None:
        """Take members from berths that hold more than their share, by threads."""
        threads = self._hands.berths()
        load = Counter(member.berth for member in self._members)
        held: dict[str, list[_Member]] = defaultdict(list)
        # Those that were lost often come last: a worker that came back may die again.
        for member in sorted(self._members, key=lambda m: (m.restarts, m.number)):
            if member.berth in threads and self._may_move(member):
                held[str(member.berth)].append(member)
        while any(held.values()):
            fullest = max((b for b in held if held[b]), key=lambda b: load[b] / threads[b])
            emptiest = min(threads, key=lambda b: ((load[b] + 1) / threads[b], b))
            if load[fullest] / threads[fullest] <= (load[emptiest] + 1) / threads[emptiest]:
                return
            load[fullest] -= 1
            load[emptiest] += 1
            self._move(held[fullest].pop(0))

    def _may_move(self, member: _Member) -> bool:
        if member.call is not None or member.moves >= _MOST:
            return False
        return self._vault is None or member.position in {0, member.saved}

    def _move(self, member: _Member) -> None:
        """Have a berth forget a member; it is taken in elsewhere."""
        assert member.berth is not None
        left = [self._at(member, member.position)]
        self._hands.call(next(self._numbers), member.berth, "drop", left)
        member.berth = None
        member.moves += 1

    # ---- checkpoints ----------------------------------------------------------------------

    def _is_time_to_save(self) -> bool:
        if self._vault is None:
            return False
        leaving = set(self._hands.draining())
        if any(member.berth in leaving for member in self._members):
            return True
        return self._is_due(self.position + 1 - self._saved[-1], self._saved_at)

    def _is_due(self, n_orders: int, since: float) -> bool:
        by_position = self._every is not None and n_orders >= self._every
        seconds = max(self._seconds, _WORK_FOR_SAVING * self._saving_seconds)
        return by_position or time.monotonic() - since >= seconds

    def _note_saved(self) -> None:
        """Forget the orders before the older of the two generations that are kept."""
        self._cannot_save = False
        self._saved = [self._saved[-1], self.position]
        self._saved_at = time.monotonic()
        for position in [p for p in self._orders if p < self._saved[0]]:
            del self._orders[position]

    def _are_all_saved(self) -> bool:
        if self._vault is None:
            return False
        return all(member.saved == self.position for member in self._members)

    def _save_plan(self, led: _Led[Any]) -> None:
        """Save the plan: from then on the checkpoint is complete."""
        assert self._vault is not None
        begun = time.monotonic()
        try:
            self._vault.save(_PLAN, led.position, self._vault.incarnation * _STARTS, led.state)
        except OSError as error:
            problem = f"{error.strerror or error} ({error.filename})"
            self._say_unsaved(problem)
        else:
            self._saving_seconds = time.monotonic() - begun
            self._note_saved()

    def _say_unsaved(self, problem: str) -> None:
        """Say that a checkpoint could not be written, once until one is complete again."""
        if not self._cannot_save:
            self._warn(f"A checkpoint could not be written: {problem}. The work goes on without.")
        self._cannot_save = True

    def _at_last(self, save: Callable[[], None]) -> None:
        """Save after an interrupt; whatever goes wrong then, it stays an interrupt."""
        try:
            save()
        except Exception as error:
            self._warn(f"Not everything could be saved: {error}")

    def _save_now(self, plan: Plan[State], led: _Led[State]) -> None:
        """Save all members and the plan as they were after the last whole round."""
        if self._vault is None or self.position == self._saved[-1]:
            return
        if led.position < self.position:  # struck before the reports were absorbed
            led = self._absorb(plan, led)
        end = time.monotonic() + _LAST_SAVE_SECONDS
        for _ in self._drive(self.position, self._orders.__getitem__, False, end):
            pass  # those that were lost come to where the others are
        wanted = {m.number: self.position for m in self._members}
        if self._are_all_saved() or self._finish_saving(wanted, end):
            self._save_plan(led)

    def _save_each(self) -> None:
        """Save members that go on independently, as far as their reports came."""
        self._is_free = False
        if self._vault is not None:
            wanted = {m.number: m.position for m in self._members if self._is_home(m)}
            self._finish_saving(wanted, time.monotonic() + _LAST_SAVE_SECONDS)

    def _finish_saving(self, positions: dict[int, int], end: float) -> bool:
        """Have members saved as they were at these positions; wait, but not for ever."""
        by_berth: dict[str | None, list[Start]] = defaultdict(list)
        for number, position in positions.items():
            member = self._members[number]
            member.moves += 1  # under the present one it may have saved a later position
            by_berth[member.berth].append(self._at(member, position))
        waiting: dict[int, str] = {}
        problems = []
        for berth, wanted in by_berth.items():
            if berth is None:
                problems.append(f"{self._role.label(wanted[0].member)} was lost")
                continue
            number = next(self._numbers)
            waiting[number] = berth
            self._hands.call(number, berth, "save", wanted, tuple(self._saved))
        while waiting and time.monotonic() < end:
            answer = self._hands.wait()
            gone = set(self._hands.lost())
            if answer is not None and isinstance(answer.error, Lost):
                known = self._calls.get(answer.call)
                gone.add(known.berth if known else waiting.get(answer.call, ""))
            elif answer is not None and answer.call in waiting:
                del waiting[answer.call]
                if answer.error is not None or answer.value:
                    problems.append(str(answer.error or answer.value))
            problems += [f"{berth} was lost" for berth in waiting.values() if berth in gone]
            waiting = {n: berth for n, berth in waiting.items() if berth not in gone}
        problems += [f"{berth} does not answer" for berth in waiting.values()]
        if problems:
            self._warn(f"Not everything could be saved: {'; '.join(problems)}.")
        return not problems

    def _resume(self, plan: Plan[State]) -> _Led[State]:
        """Return the plan's last state with whose position all members can be restored."""
        if self._vault is not None and self._has_led:
            hint = "Give the crew the role again, with another vault: Crew.assign."
            raise InputError(f"Crew {self.name}: follow", "one plan a run", "a second", hint)
        self._has_led = True
        if self._vault is None or self.position:
            return _Led(self.position, as_restored(plan.begin()))
        problems: list[StoreError] = []
        is_damaged = False
        for saved in self._vault.checkpoints(_PLAN).newest_first(problems):
            state: State = self._vault.restore(plan.state_type, saved)
            self._warn_of(problems)
            try:
                self._return_to(saved.step)
            except NoWholeCheckpoint as error:
                is_damaged = True
                what = f"The checkpoint of position {saved.step} is passed over"
                self._warn(f"{what}. {error.where}: {error.got}")
                continue
            return _Led(saved.step, state)
        if problems or is_damaged:
            self._warn_of(problems)
            self._warn("No checkpoint is whole; the work starts over.")
        if is_damaged:  # members may have been brought elsewhere
            self._return_to(0)
        return _Led(0, as_restored(plan.begin()))

    def _return_to(self, position: int) -> None:
        self._await_calls()
        self._members = [
            _Member(old.number, position, position, restarts=old.restarts, moves=old.moves)
            for old in self._members
        ]
        self._orders.clear()
        self.position = position
        self._saved = [position]
        if position:
            for _ in self._drive(position, self._orders.__getitem__, False):
                pass

    def _await_calls(self) -> None:
        """Wait for answers that nobody needs any more: what is asked next comes after them."""
        while self._calls:
            self._look_for_losses()
            answer = self._hands.wait()
            call = None if answer is None else self._calls.pop(answer.call, None)
            if answer is not None and call is not None and isinstance(answer.error, Lost):
                self._lose(call.berth, str(answer.error))

    def _warn_of(self, problems: list[StoreError]) -> None:
        for error in problems:
            self._warn(f"A damaged checkpoint is passed over. {error}")
        problems.clear()

    def _warn(self, text: str) -> None:
        warnings.warn(f"Crew {self.name}: {text}", CheckpointWarning, stacklevel=2)


def _hands_for(crew: str, name: str, heartbeat: float | None) -> Hands:
    client = current_client()
    if client is None:
        return LocalHands()
    from distclust.engine.crews.on_client import ClientHands, heartbeat_seconds

    return ClientHands(client, crew, name, heartbeat_seconds(heartbeat))
