"""Berths that die, freeze, come back and are retired as a script says; no processes.

Everything happens in one thread, at the moments at which a supervisor waits. A berth that is
given up may live on: what it was asked before is then done later, when its members are at work
elsewhere. That is what a zombie does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from distclust.engine.crews import Role, Room, Vault
from distclust.engine.crews.berth import Berth
from distclust.engine.crews.hands import Answer, Hands, Lost
from distclust.errors import DistclustError
from tests.walkers import Shelf

MOST_WAITS = 2000


class Snapshot(Shelf):
    """A shelf as somebody sees it who looked at its list long ago."""

    def __init__(self, shelf: Shelf) -> None:
        super().__init__()
        self.content = shelf.content
        self.seen = list(shelf.content)

    def list(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.seen if key.startswith(f"{prefix}/"))


@dataclass
class Request:
    number: int
    berth: str
    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def members(self) -> list[int]:
        if self.method == "drop":
            return []
        return [part.member for part in self.args[0]]


class Stage(Hands):
    """Berths in this thread; `script` says what happens at each wait.

    Parameters
    ----------
    script
        Numbers; each is an event and to whom it happens. Afterwards all goes well.
    threads
        Threads of the first berths, by name.
    """

    EVENTS = ("answer", "answer", "answer", "silence", "late", "die", "lose", "freeze", "come")

    def __init__(
        self, script: Iterable[int] = (), threads: Mapping[str, int] | None = None
    ) -> None:
        self.script = list(script)
        self.threads = dict(threads or {"a": 1, "b": 1})
        self.here: dict[str, Berth] = {}
        self.requests: list[Request] = []
        self.zombies: list[tuple[Berth, Request]] = []
        self.gone: list[str] = []  # to be reported as lost
        self.retiring: set[str] = set()
        self.released: list[str] = []
        self.calls: list[Request] = []  # all there were
        self.events: list[str] = []  # all that happened
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.role: tuple[Role[Any], Vault | None] | None = None
        self.n_made = 0
        self.n_waits = 0

    # ---- what a crew sees ---------------------------------------------------------------------

    def open(self, role: Role[Any], vault: Vault | None, n_members: int) -> None:
        self.role = role, vault
        for name in self.threads:
            self._make(name)

    def berths(self) -> Mapping[str, int]:
        return {n: t for n, t in self.threads.items() if n in self.here and n not in self.retiring}

    def call(self, number: int, berth: str, method: str, *args: Any, **options: Any) -> None:
        request = Request(number, berth, method, args, options)
        busy = [m for other in self.requests if other.method != "save" for m in other.members]
        if method != "save":
            assert not set(busy) & set(request.members), "two calls for one member"
        self.calls.append(request)
        self.requests.append(request)

    def wait(self) -> Answer | None:
        self.n_waits += 1
        assert self.n_waits < MOST_WAITS, "the crew waits for ever"
        number = self.script.pop(0) if self.script else 0
        event = self.EVENTS[number % len(self.EVENTS)]
        return getattr(self, f"_{event}")(number // len(self.EVENTS))

    def lost(self) -> Iterable[str]:
        found, self.gone = self.gone, []
        return found

    def draining(self) -> Iterable[str]:
        return [name for name in self.here if name in self.retiring]

    def release(self, berth: str) -> None:
        self.released.append(berth)
        self._forget(berth)

    def tell(self, kind: str, **facts: Any) -> None:
        self.told.append((kind, facts))

    def close(self) -> None: ...

    # ---- what happens -------------------------------------------------------------------------

    def _answer(self, which: int) -> Answer | None:
        """A call is carried out and answered."""
        if not self.requests:
            return None
        request = self.requests.pop(which % len(self.requests))
        return _carry_out(self.here[request.berth], request)

    def _silence(self, which: int) -> None:
        """Nothing happens, but one who was given up may wake."""
        if self.zombies:
            self._wake(which)

    def _late(self, which: int) -> Answer | None:
        """A call is carried out, then the berth dies with the answer."""
        if not self.requests:
            return None
        request = self.requests[which % len(self.requests)]
        _carry_out(self.here[request.berth], request)
        return self._break(request)

    def _die(self, which: int) -> Answer | None:
        """A berth dies, and a call to it breaks off."""
        if not self.requests:
            return None
        return self._break(self.requests[which % len(self.requests)])

    def _break(self, request: Request) -> Answer:
        self.events.append("death")
        self._forget(request.berth)
        if request.method == "drop":  # nobody waits for it: it is found out by silence
            self.gone.append(request.berth)
        return Answer(request.number, error=Lost("it broke off"))

    def _lose(self, which: int) -> None:
        """A berth dies, perhaps while nobody calls it; it is found out by silence."""
        if self.here:
            name = sorted(self.here)[which % len(self.here)]
            self.events.append("loss")
            self._forget(name)
            self.gone.append(name)

    def _freeze(self, which: int) -> None:
        """A berth is given up and lives on: it does later what it was asked."""
        if not self.here:
            return
        name = sorted(self.here)[which % len(self.here)]
        berth = self.here[name]
        vault = berth._vault
        if vault is not None and which % 2:  # it looked before others went on
            berth._vault = replace(vault, objects=Snapshot(vault.objects))
        self.events.append("freeze")
        self.zombies += [(berth, request) for request in self.requests if request.berth == name]
        self._forget(name)
        self.gone.append(name)

    def _come(self, which: int) -> None:
        """A new worker comes, or one is to be retired."""
        if which % 3 == 0 and self.here:
            self.events.append("retire")
            self.retiring.add(sorted(self.here)[which % len(self.here)])
        elif self.n_made < 12:
            self.events.append("arrival")
            self._add(1 + which % 2)

    def _wake(self, which: int) -> None:
        berth, request = self.zombies.pop(which % len(self.zombies))
        self.events.append("awakening")
        answer = _carry_out(berth, request)
        assert answer.error is None or isinstance(answer.error, DistclustError)  # shut out

    # ---- helpers ------------------------------------------------------------------------------

    def _add(self, threads: int) -> str:
        name = f"n{self.n_made}"
        self.threads[name] = threads
        self._make(name)
        return name

    def _make(self, name: str) -> None:
        assert self.role is not None
        role, vault = self.role
        self.n_made += 1
        self.here[name] = Berth(1)
        self.here[name].open(role, Room(), vault)

    def _forget(self, name: str) -> None:
        self.here.pop(name, None)
        self.threads.pop(name, None)
        self.retiring.discard(name)
        self.requests = [request for request in self.requests if request.berth != name]
        if not self.berths():
            self._add(1)  # somebody starts it again


def _carry_out(berth: Berth, request: Request) -> Answer:
    try:
        value = getattr(berth, request.method)(*request.args, **request.options)
    except Exception as error:
        return Answer(request.number, error=error)
    return Answer(request.number, value=value)
