"""Parts of stores that stay in memory, within one budget for the whole process.

What was read and verified once need not be again: generations of a store never change. When
the budget is spent nothing is thrown out for something new: whoever reads a store from
beginning to end, again and again, would else find nothing of what he comes to.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")

BUDGET = 2**29  # bytes

_lock = threading.Lock()
_spent = 0


class Resident(Generic[Value]):
    """Values by key; they live as long as this object.

    Parameters
    ----------
    size_of
        Bytes that a value takes.
    """

    def __init__(self, size_of: Callable[[Value], int]) -> None:
        self._size_of = size_of
        self._values: dict[Hashable, Value] = {}
        self._bytes = [0]
        weakref.finalize(self, _give_back, self._bytes)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of a key; one that is made anew is kept if there is room."""
        found = self._values.get(key)
        if found is None:
            found = make()
            self._keep(key, found)
        return found

    def _keep(self, key: Hashable, value: Value) -> None:
        global _spent
        size = self._size_of(value)
        with _lock:
            if key in self._values or _spent + size > BUDGET:
                return
            _spent += size
            self._bytes[0] += size
            self._values[key] = value


def _give_back(taken: list[int]) -> None:
    global _spent
    with _lock:
        _spent -= taken[0]


def spent() -> int:
    """Return the bytes that are kept now."""
    return _spent
