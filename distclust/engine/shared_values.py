"""What all tasks of a map share, opened once on each worker."""

from __future__ import annotations

import threading
import time
from typing import Any

from distclust.engine.sealing import Sealed

_KEPT_SECONDS = 2.0  # for which an opened one waits for the next task


class Shared:
    """What all tasks of a map share, opened by the first that needs it on each worker.

    What is large is a task of its own, sent to each worker once: a worker hands the same object
    to every task and drops it when the map is over; what was opened lives as long. What is small
    travels with every task, as the first ones would else wait for another and for its result;
    then a token tells that it was opened already. It travels unopened.
    """

    def __init__(self, sealed: Sealed, token: str = "") -> None:
        self._sealed = sealed
        self._token = token
        self._lock = threading.Lock()
        self._opened: tuple[Any, ...] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Shared, (self._sealed, self._token)

    def open(self) -> tuple[Any, ...]:
        """Return the values."""
        if self._token:
            return _opened_values.get(self._token, self._sealed)
        with self._lock:
            if self._opened is None:
                self._opened = tuple(self._sealed.open())
            return self._opened


class _OpenedValues:
    """Small shared values by token, as long as tasks ask for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, tuple[Any, ...]] = {}
        self._asked: dict[str, float] = {}

    def get(self, token: str, sealed: Sealed) -> tuple[Any, ...]:
        with self._lock:
            if token not in self._values:
                self._values[token] = tuple(sealed.open())
                self._drop_later(token)
            self._asked[token] = time.monotonic()
            return self._values[token]

    def _drop_later(self, token: str) -> None:
        timer = threading.Timer(_KEPT_SECONDS, self._drop, (token,))
        timer.daemon = True
        timer.start()

    def _drop(self, token: str) -> None:
        with self._lock:
            if time.monotonic() - self._asked[token] < _KEPT_SECONDS:
                self._drop_later(token)
            else:
                del self._values[token], self._asked[token]


_opened_values = _OpenedValues()
