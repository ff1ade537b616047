"""What is no role, or no plan, is refused before anything begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from distclust.engine import Crew, Plan, Role
from distclust.errors import InputError


@dataclass(frozen=True)
class Number:
    n: int = 0


class Counter(Role[Number]):
    state_type = Number

    def begin(self, member: int) -> Number:
        return Number()

    def advance(self, place: Any, member: int, state: Number, order: Any) -> tuple[Number, int]:
        return Number(state.n + 1), state.n


class Untold(Counter):
    state_type = None  # type: ignore[assignment]


class Leader(Plan[Number]):
    state_type = Number

    def begin(self) -> Number:
        return Number()

    def order(self, state: Number) -> int | None:
        return None if state.n == 2 else state.n

    def absorb(self, state: Number, reports: Any) -> Number:
        return Number(state.n + 1)


@pytest.mark.parametrize(
    ("role", "says"),
    [
        (Counter, r"Crew mine: expected a role, got the class Counter\. .*an object of it"),
        (Leader(), "Crew mine: expected a role, got <"),
        (Untold(), r"Crew mine: Untold\.state_type: expected .* a dataclass, got None"),
    ],
)
def test_crew__what_is_no_role_is_refused(role: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        Crew(role, 1, name="mine")


def test_follow__what_is_no_plan_is_refused() -> None:
    with Crew(Counter(), 1) as crew:
        with pytest.raises(InputError, match=r"Crew crew: follow: expected a plan, got the class"):
            crew.follow(Leader)  # type: ignore[arg-type]
        assert crew.follow(Leader()) == Number(2)
