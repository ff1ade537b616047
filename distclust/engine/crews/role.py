"""What members of a crew do, and what leads them: pure functions from state to state."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from distclust.errors import InputError

State = TypeVar("State")


@dataclass(frozen=True)
class Room:
    """What a process offers the members that work in it.

    Attributes
    ----------
    share
        Which part of all processes of the crew this one is, 1.0 if it is the only one.
    memory_limit
        Bytes the process may take, or None where nobody set a limit.
    """

    share: float = 1.0
    memory_limit: int | None = None


class Addition(ABC):
    """What turns a role into one that came after it: less to send than the whole of it."""

    @abstractmethod
    def onto(self, role: Any) -> Any:
        """Return the later role; given that one already, as it is."""


class Role(ABC, Generic[State]):
    """What every member of a crew does. It is pickled to where members work.

    Attributes
    ----------
    state_type
        The frozen dataclass that states are; see `distclust.store.states`.
    """

    state_type: type[State]

    @abstractmethod
    def begin(self, member: int) -> State:
        """Return the state of a member at position 0."""

    @abstractmethod
    def advance(self, place: Any, member: int, state: State, order: Any) -> tuple[State, Any]:
        """Return the next state and a report; pure: the same from the same, nothing changed.

        Parameters
        ----------
        place
            What `open` returned.
        member
            Number of the member.
        state
            Its state.
        order
            What it is told to do.
        """

    def open(self, previous: Any, room: Room) -> Any:
        """Return what the members in one process share: data, caches; never saved.

        Parameters
        ----------
        previous
            What an earlier role of the same crew had opened here, or None.
        room
            What the process offers.
        """
        return None

    def since(self, earlier: Any) -> Role[State] | Addition:
        """Return what is sent to processes that know an earlier role: this one, or an addition."""
        return self

    def label(self, member: int) -> str:
        """Return the name of a member, for messages and tables."""
        return f"member {member}"

    def metrics(self, state: State) -> dict[str, float]:
        """Return figures of a state worth seeing on the board."""
        return {}


class Plan(ABC, Generic[State]):
    """What leads a crew through rounds: an order to all, then their reports, again and again.

    It runs in the process that made the crew, and is a state and pure functions, too.
    """

    state_type: type[State]

    @abstractmethod
    def begin(self) -> State:
        """Return the first state."""

    @abstractmethod
    def order(self, state: State) -> Any | None:
        """Return the order of the next round, or None when all is done."""

    @abstractmethod
    def absorb(self, state: State, reports: Sequence[Any]) -> State:
        """Return the state after a round; reports come in the order of members."""


def check_kind(given: Any, kind: type[Any], where: str) -> None:
    """Refuse what is no role or plan, or does not say what its states are.

    Raises
    ------
    InputError
        Before any work was done.
    """
    name = f"distclust.engine.{kind.__name__}"
    if not isinstance(given, kind):
        got = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
        hint = f"Derive a class from {name} and pass an object of it."
        raise InputError(where, f"a {kind.__name__.lower()}", got, hint)
    state_type = getattr(given, "state_type", None)
    if not (isinstance(state_type, type) and dataclasses.is_dataclass(state_type)):
        hint = "Set it to a class with @dataclass(frozen=True)."
        where = f"{where}: {type(given).__name__}.state_type"
        raise InputError(where, "the class of its states, a dataclass", repr(state_type), hint)
