"""A small crew for tests: walkers with random steps, a leader, and their serial twin.

Results depend on every order, on every random number and on the order of all of them, so that
whatever is left out, done twice or taken from elsewhere shows in the bits.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine.crews import Plan, Role, Room
from distclust.store.objects import Objects

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Walk:
    x: Floats
    n: int
    rng: np.random.Generator


@dataclass(frozen=True, eq=False)
class Tally:
    total: Floats
    n: int
    rng: np.random.Generator


class Walker(Role[Walk]):
    """Walks; writes down every step in a journal if it is given one.

    Parameters
    ----------
    seconds
        How long a step takes at least.
    journal
        File to which every step is added when it is done.
    """

    state_type = Walk

    def __init__(self, seconds: float = 0.0, journal: Path | None = None) -> None:
        self.seconds = seconds
        self.journal = journal

    def open(self, previous: Any, room: Room) -> str:
        return "a place"

    def begin(self, member: int) -> Walk:
        return Walk(np.full(3, member + 0.5), 0, np.random.default_rng([7, member]))

    def advance(self, place: Any, member: int, state: Walk, order: Any) -> tuple[Walk, Floats]:
        assert place == "a place"
        time.sleep(self.seconds)
        self._dawdle(state.n)
        # Drawn as people do it, from the generator of the state.
        x = np.sin(state.x * 1.1 + order + 0.1 * state.rng.standard_normal(3))
        if self.journal is not None:
            write_down(self.journal, f"{member} {state.n}")
        return Walk(x, state.n + 1, state.rng), x

    def _dawdle(self, n: int) -> None:
        """Take one step slowly, in processes whose environment says so."""
        text = os.environ.get("DISTCLUST_TEST_DAWDLE")
        if text is not None and self.journal is not None and n == int(text.split()[0]):
            (self.journal.parent / "dawdling").touch()
            time.sleep(float(text.split()[1]))

    def label(self, member: int) -> str:
        return f"walker {member}"

    def metrics(self, state: Walk) -> dict[str, float]:
        return {"x": float(state.x[0])}


class Leader(Plan[Tally]):
    """Leads through a number of rounds."""

    state_type = Tally

    def __init__(self, n_rounds: int) -> None:
        self.n_rounds = n_rounds

    def begin(self) -> Tally:
        return Tally(np.zeros(3), 0, np.random.default_rng(3))

    def order(self, state: Tally) -> Floats | None:
        return None if state.n == self.n_rounds else 0.01 * state.total

    def absorb(self, state: Tally, reports: Any) -> Tally:
        total = state.total + sum(reports) + 0.1 * state.rng.standard_normal(3)
        return Tally(total, state.n + 1, state.rng)


def walk_together(n_members: int, n_rounds: int) -> bytes:
    """Return the bits of the leader's total, computed by one plain loop."""
    walks = [np.full(3, member + 0.5) for member in range(n_members)]
    streams = [np.random.default_rng([7, member]) for member in range(n_members)]
    total, own = np.zeros(3), np.random.default_rng(3)
    for _ in range(n_rounds):
        order = 0.01 * total
        for member, stream in enumerate(streams):
            walks[member] = np.sin(walks[member] * 1.1 + order + 0.1 * stream.standard_normal(3))
        total = total + sum(walks) + 0.1 * own.standard_normal(3)
    return total.tobytes()


def walk_alone(member: int, n_orders: int) -> list[bytes]:
    """Return the bits of a walker's reports, its orders being 0.0, 1.0, 2.0..."""
    x, stream = np.full(3, member + 0.5), np.random.default_rng([7, member])
    reports = []
    for order in range(n_orders):
        x = np.sin(x * 1.1 + float(order) + 0.1 * stream.standard_normal(3))
        reports.append(x.tobytes())
    return reports


def write_down(journal: Path, line: str) -> None:
    """Add a line; lines of several processes do not mix."""
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def steps_in(journal: Path) -> Counter[tuple[int, int]]:
    """Return how often each step (member, number) was done."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return Counter((int(member), int(n)) for member, n in map(str.split, lines))


def n_redone(journal: Path) -> int:
    """Return how many steps were done more than once."""
    steps = steps_in(journal)
    return steps.total() - len(steps)


class Shelf(Objects):
    """Objects in a dictionary; `fault` is called before every write and may raise."""

    path = None

    def __init__(self) -> None:
        self.url = "shelf://"
        self.content: dict[str, bytes] = {}
        self.fault: Any = None
        self._lock = threading.Lock()

    def sweep(self, seconds: float) -> None: ...

    def read(self, key: str) -> bytes:
        try:
            return self.content[key]
        except KeyError:
            raise self._missing(key) from None

    def read_array(self, key: str, n_bytes: int | None = None) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.read(key)[:n_bytes], np.uint8).copy()

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        return self.read(key)[start:stop]

    def size(self, key: str) -> int | None:
        return len(self.content[key]) if key in self.content else None

    def write(self, key: str, *buffers: Any) -> None:
        if self.fault is not None:
            self.fault(key)
        with self._lock:
            self.content[key] = b"".join(map(bytes, buffers))

    def create(self, key: str, *buffers: Any) -> bool:
        if key in self.content:
            return False
        self.write(key, *buffers)
        return True

    def list(self, prefix: str = "") -> list[str]:
        with self._lock:
            return sorted(key for key in self.content if key.startswith(f"{prefix}/"))

    def _delete(self, key: str) -> None:
        with self._lock:
            self.content.pop(key, None)

    def _delete_tree(self, prefix: str) -> None:
        for key in self.list(prefix):
            self._delete(key)

    # ---- what tests do to it --------------------------------------------------------------

    def newest(self, part: str) -> str:
        """Return the key of the newest checkpoint of a part."""
        return max(key for key in self.content if f"/{part}/" in key)

    def damage(self, key: str) -> None:
        middle = len(self.content[key]) // 2
        old = self.content[key]
        self.content[key] = old[:middle] + bytes([old[middle] ^ 1]) + old[middle + 1 :]


def disk_full(key: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), key)
