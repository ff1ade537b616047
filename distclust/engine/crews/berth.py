"""The members of a crew in one process: they advance, are saved and restored here.

Every call names the position it expects. A call that comes twice (its first answer was lost
on the way) is recognised and answered again without doing anything twice.

Saves carry the incarnation of the member. One that was given up for lost and lives on has
an older one: what it saves is refused, or never read (see `distclust.store.checkpoints`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from distclust.engine.crews.role import Addition, Role, Room
from distclust.engine.threads import thread_map
from distclust.errors import ConflictError, InputError, StoreError
from distclust.store.checkpoints import CHECKPOINTS, Checkpoint, Checkpoints
from distclust.store.ledger import Ledger
from distclust.store.objects import Objects, open_objects
from distclust.store.states import as_restored, pack_state, unpack_state, with_own_generators

_BEGUN = "begun"


@dataclass(frozen=True)
class Vault:
    """Where a crew's checkpoints lie, and whose they are.

    Attributes
    ----------
    objects
        The store; every process of the crew reaches it.
    run
        Name of the run in it.
    fingerprint
        Of data and parameters: a checkpoint of others is refused.
    incarnation
        How often the run was begun or taken up, 1 being the first time.
    """

    objects: Objects
    run: str
    fingerprint: str
    incarnation: int = 1

    @classmethod
    def at(
        cls, place: str | os.PathLike[str], run: str, fingerprint: str, *, fresh: bool = False
    ) -> Self:
        """Begin a run in a folder, or take it up again there.

        Parameters
        ----------
        place
            A folder or URL that every process of the crew reaches.
        run
            Name of the run: letters, digits, ``.``, ``_`` and ``-``.
        fingerprint
            Of everything that the result depends on: data, parameters, seed.
        fresh
            Begin anew: what was saved of the run is removed.

        Raises
        ------
        ConflictError
            If another process begins the same run at this moment.
        """
        vault = cls(open_objects(place), run, fingerprint)
        begun = Ledger(vault.objects, vault._key(_BEGUN))
        numbers = begun.numbers()
        incarnation = begun.append({}, max(numbers, default=0)).number
        begun.drop(numbers)
        if fresh:
            vault.clear()
        return cls(vault.objects, run, fingerprint, incarnation)

    def clear(self) -> None:
        """Remove all checkpoints of the run: it is over, or to be begun anew.

        How often it was begun is kept: a process that lives on from before stays shut out.
        """
        begun = f"{self._key(_BEGUN)}/"
        for key in self.objects.list(self._key()):
            if not key.startswith(begun):
                self.objects.delete(key)

    def checkpoints(self, part: str) -> Checkpoints:
        """Return the checkpoints of a member or of the plan."""
        return Checkpoints(self.objects, f"{self.run}/{part}")

    def save(
        self, part: str, step: int, incarnation: int, state: Any, keep: Collection[int] = ()
    ) -> None:
        """Save a state under the fingerprint of the run; `keep` as for `Checkpoints.save`."""
        values, arrays = pack_state(state)
        meta = {"fingerprint": self.fingerprint, "values": values}
        self.checkpoints(part).save(step, incarnation, meta, arrays, keep)

    def restore(self, kind: type[Any], saved: Checkpoint) -> Any:
        """Return the state of a checkpoint.

        Raises
        ------
        InputError
            If it is of other data or parameters.
        """
        found = saved.meta.get("fingerprint")
        if found != self.fingerprint:
            raise InputError(
                f"{self.objects.url}, run {self.run}",
                f"a checkpoint of the data and parameters {self.fingerprint}",
                f"one of {found}",
                "Start over with fresh=True (--fresh), or pass what the run began with.",
            )
        return unpack_state(kind, saved.meta["values"], saved.arrays)

    def _key(self, *parts: str) -> str:
        return "/".join((CHECKPOINTS, self.run, *parts))


@dataclass(frozen=True)
class Post:
    """A member that is to work here.

    Attributes
    ----------
    member, incarnation
        Who, and in which of its starts.
    oldest, newest
        Positions from which it may go on: the orders after them are known.
    is_restart
        Whether others may still believe that the member is theirs.
    keep
        Positions whose checkpoints stay.
    """

    member: int
    incarnation: int
    oldest: int
    newest: int
    is_restart: bool
    keep: tuple[int, ...] = ()


class Start(NamedTuple):
    """A member that is to go on: from where, and under which incarnation it is saved then."""

    member: int
    position: int
    incarnation: int


class NoWholeCheckpoint(StoreError):
    """A member cannot go on: nothing that was saved of it is whole and recent enough."""


class _Stand(NamedTuple):
    """How far a member is, and what it then has."""

    position: int
    state: Any
    report: Any = None


@dataclass
class _Member:
    # Where it is and where it was one call earlier, for an interrupt: one attribute, so that
    # who saves it meanwhile never sees the state of one under the position of the other.
    stands: tuple[_Stand, ...]
    incarnation: int
    saved: int | None = None  # position of its last checkpoint
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def now(self) -> _Stand:
        return self.stands[0]


def part_of(member: int) -> str:
    """Return the name of a member's checkpoints."""
    return f"member-{member:06d}"


class Berth:
    """Holds members and calls their role."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._role: Role[Any] | None = None
        self._place: Any = None
        self._vault: Vault | None = None
        self._members: dict[int, _Member] = {}

    def open(self, role: Role[Any] | Addition, room: Room, vault: Vault | None) -> None:
        """Make ready for a role; members of an earlier one are forgotten."""
        self._members = {}
        opened: Role[Any] = role.onto(self._role) if isinstance(role, Addition) else role
        self._place = opened.open(self._place, room)
        self._role, self._vault = opened, vault

    def adopt(self, posts: Sequence[Post]) -> tuple[dict[int, int], list[str]]:
        """Take members in; return where each goes on from, and what was odd."""
        notes: list[str] = []
        positions = {}
        for post in posts:
            self._members[post.member] = self._restored(post, notes)
            positions[post.member] = self._members[post.member].now.position
        return positions, notes

    def advance(
        self,
        starts: Sequence[Start],
        orders: Sequence[Any],
        *,
        save: bool,
        keep: Collection[int] = (),
    ) -> tuple[list[Any], str | None]:
        """Carry out orders, one after another, from the positions that members start at.

        Parameters
        ----------
        starts
            The members and where they are.
        orders
            What they are to do.
        save
            Whether they are saved then.
        keep
            Positions whose checkpoints stay.

        Returns
        -------
        The last report of each member, and why states could not be saved, if so.
        """
        problems: list[str] = []

        def work(start: Start) -> Any:
            found = self._member(start.member)
            with found.lock:
                self._carry_out(start, found, orders)
                if save:
                    at = start._replace(position=found.now.position)
                    problems.extend(self._try_save(at, found, keep))
                return found.now.report

        reports = thread_map(work, starts, self.threads)
        return reports, problems[0] if problems else None

    def save(self, wanted: Sequence[Start], keep: Collection[int] = ()) -> str | None:
        """Save members as they were at a position: now, or one call earlier.

        Members in the midst of an order are saved as they were before it.

        Parameters
        ----------
        wanted
            The members and positions, under an incarnation that is new: calls that are still
            under way may save a later position under theirs.
        keep
            Positions whose checkpoints stay.
        """
        problems: list[str] = []
        for at in wanted:
            problems.extend(self._try_save(at, self._member(at.member), keep))
        return problems[0] if problems else None

    def drop(self, left: Sequence[Start]) -> None:
        """Forget members that left, unless they came back under a later incarnation."""
        for at in left:
            found = self._members.get(at.member)
            if found is not None and found.incarnation <= at.incarnation:
                del self._members[at.member]

    def facts(self, members: Iterable[int]) -> list[dict[str, Any]]:
        """Return what the board shows of some members, as JSON values."""
        assert self._role is not None
        return [
            {
                "member": number,
                "incarnation": found.incarnation,
                "position": found.now.position,
                "checkpoint": found.saved,
                "metrics": {k: float(v) for k, v in self._role.metrics(found.now.state).items()},
            }
            for number in members
            if (found := self._members.get(number)) is not None
        ]

    def _carry_out(self, start: Start, found: _Member, orders: Sequence[Any]) -> None:
        assert self._role is not None
        before = found.now
        if before.position == start.position + len(orders):
            return  # asked before: its report is still here
        if before.position != start.position:
            where, expected = f"member {start.member}", f"position {start.position}"
            raise InputError(where, expected, before.position, "This is a defect.")
        state, report = before.state, None
        for position, order in enumerate(orders, start.position):
            mine = with_own_generators(state)
            try:
                state, report = self._role.advance(self._place, start.member, mine, order)
            except Exception as error:
                error.add_note(f"in {self._role.label(start.member)} of a crew, order {position}")
                raise
            state = as_restored(state)
        now = _Stand(start.position + len(orders), state, report)
        found.stands = (now, before._replace(report=None))

    def _try_save(self, at: Start, found: _Member, keep: Collection[int]) -> list[str]:
        """Save a member; a full or read-only disk is a note, not the end of the work."""
        if self._vault is None:
            return []
        state = next((s.state for s in found.stands if s.position == at.position), None)
        if state is None:
            return [f"member {at.member} is no longer at position {at.position}"]
        try:
            self._vault.save(part_of(at.member), at.position, at.incarnation, state, keep)
        except ConflictError:
            raise  # somebody else goes on with this member
        except OSError as error:
            return [f"{error.strerror or error} ({error.filename or self._vault.objects.url})"]
        found.saved = at.position
        return []

    def _restored(self, post: Post, notes: list[str]) -> _Member:
        assert self._role is not None
        found = self._read(post, notes)
        if found is None:
            if post.oldest > 0:
                raise self._nothing_whole(post, notes)
            begun = as_restored(self._role.begin(post.member))
            found = _Member((_Stand(0, begun),), post.incarnation)
        if post.is_restart and self._vault is not None:
            # From here on nothing that an earlier incarnation saves counts any more.
            at = Start(post.member, found.now.position, post.incarnation)
            notes += self._try_save(at, found, post.keep)
        return found

    def _read(self, post: Post, notes: list[str]) -> _Member | None:
        if self._vault is None or self._role is None or post.newest == 0:
            return None
        problems: list[StoreError] = []
        saves = self._vault.checkpoints(part_of(post.member)).newest_first(problems)
        for saved in saves:
            notes += [f"A damaged checkpoint is passed over. {error}" for error in problems]
            problems.clear()
            if saved.step < post.oldest:
                break
            if saved.step <= post.newest:
                state = self._vault.restore(self._role.state_type, saved)
                return _Member((_Stand(saved.step, state),), post.incarnation, saved.step)
        notes += [f"A damaged checkpoint is passed over. {error}" for error in problems]
        return None

    def _nothing_whole(self, post: Post, notes: list[str]) -> NoWholeCheckpoint:
        assert self._role is not None
        where = self._role.label(post.member)
        if self._vault is not None:
            where += f", {self._vault.objects.where(self._vault.run)}"
        expected = f"a whole checkpoint of position {post.oldest}"
        if post.newest > post.oldest:
            expected += f" to {post.newest}"
        found = " ".join(notes) or "none"
        return NoWholeCheckpoint(where, expected, found, "Start over with fresh=True (--fresh).")

    def _member(self, member: int) -> _Member:
        try:
            return self._members[member]
        except KeyError:
            hint = "This is a defect."
            raise InputError(f"member {member}", "a member here", "none", hint) from None
