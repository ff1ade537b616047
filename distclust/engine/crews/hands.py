"""What a crew needs of the place where it works; in process and on a cluster alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distclust.engine.crews.berth import Vault
from distclust.engine.crews.role import Role


class Lost(Exception):
    """A berth is gone, with all the members it held."""


@dataclass(frozen=True)
class Answer:
    """What came of a call: a value, or what was raised instead.

    Attributes
    ----------
    call
        Number of the call.
    value, error
        One of them; `Lost` as error stands for the berth, everything else for the work.
    """

    call: int
    value: Any = None
    error: BaseException | None = None


class Hands(ABC):
    """Reaches the berths of a crew. Calls do not wait; answers come in any order."""

    @abstractmethod
    def open(self, role: Role[Any], vault: Vault | None, n_members: int) -> None:
        """Make the berths ready for a role; what earlier ones opened is passed on."""

    @abstractmethod
    def berths(self) -> Mapping[str, int]:
        """Return the threads of every berth that takes members; empty while there is none."""

    @abstractmethod
    def call(self, number: int, berth: str, method: str, *args: Any, **options: Any) -> None:
        """Call a method of a berth; the answer carries the number."""

    @abstractmethod
    def wait(self) -> Answer | None:
        """Return the next answer, or None after a while without one."""

    def lost(self) -> Iterable[str]:
        """Return berths that died or fell silent, each once."""
        return ()

    def draining(self) -> Iterable[str]:
        """Return berths whose workers are to be retired."""
        return ()

    def rest(self) -> None:  # noqa: B027  nothing to do in process
        """Note that nothing is to be done for now: berths may be given up if need be."""

    def release(self, berth: str) -> None:  # noqa: B027  nothing to do in process
        """Give a berth up that holds no members any more."""

    def tell(self, kind: str, **facts: Any) -> None:  # noqa: B027  nobody to tell in process
        """Report to the board."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all berths."""
