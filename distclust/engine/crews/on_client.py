"""A crew on a Dask cluster: one actor a worker, and a watch over all of them.

The actor is a shell around a `Berth`. Calls go straight to the worker where the client can
reach it, else by way of the scheduler, and travel sealed (see `distclust.engine.sealing`).

Three things tell that a worker is lost: a call that breaks off, the scheduler which no
longer knows it, and silence: no heartbeat for longer than allowed. In the last case the
worker may come back; nobody listens to it then, and what it saves is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import queue
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from distclust.engine.crews.berth import Berth, Vault
from distclust.engine.crews.board import (
    DRAIN_TOPIC,
    TOPIC,
    install_board,
    look_at_scheduler,
)
from distclust.engine.crews.hands import Answer, Hands, Lost
from distclust.engine.crews.role import Addition, Role, Room
from distclust.engine.fetching import Patience, deliver_events
from distclust.engine.sealing import Sealed, seal
from distclust.engine.threads import grant_threads, one_blas_thread
from distclust.engine.workers import asking_scheduler, look_at
from distclust.errors import ClusterError, InputError

HEARTBEAT_SECONDS = 60.0

_WAIT_SECONDS = 0.1
_WATCH_SECONDS = 1.0
_OPEN_SECONDS = 60.0
_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.002
_TRIES = 3


class BerthActor:
    """A berth on a worker; its calls run in threads of their own, not in Dask's."""

    def __init__(self, crew: str) -> None:
        from distributed import get_worker

        self._worker = get_worker()
        self._crew = crew
        threads = self._worker.state.nthreads
        self._berth = Berth(threads)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="distclust-crew")
        # The last save does not queue behind work that nobody waits for any more.
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="distclust-save")

    async def call(self, method: str, sealed: Sealed, *common: Sealed) -> Sealed:
        """Call a method of the berth; `common` is what all berths are told alike."""
        loop = asyncio.get_running_loop()
        pool = self._saver if method == "save" else self._pool
        return await loop.run_in_executor(pool, self._work, method, sealed, common)

    def _work(self, method: str, sealed: Sealed, common: Sequence[Sealed]) -> Sealed:
        try:
            return self._do(method, sealed, common)
        except Exception as error:
            found = _sendable(error)
        raise found  # here: an error carries along the one that is being handled

    def _do(self, method: str, sealed: Sealed, common: Sequence[Sealed]) -> Sealed:
        args, options = sealed.open()
        told = [value for one in common for value in one.open()]
        if method == "open":
            options["role"] = told[0]
        elif method == "advance":
            options["orders"] = told
        with grant_threads(self._berth.threads), one_blas_thread:
            value = getattr(self._berth, method)(*args, **options)
        if method == "adopt":
            self._report(value[0])
        elif method in {"advance", "save"}:
            self._report([start.member for start in args[0]])
        return seal(value)

    def _report(self, members: Iterable[int]) -> None:
        facts = {"worker": self._worker.address, "members": self._berth.facts(members)}
        self._worker.log_event(TOPIC, {"crew": self._crew, "kind": "members", **facts})


def _sendable(error: Exception) -> Exception:
    """Return the error, or its text if it would not arrive as it is.

    Dask drops the connection over such an error, and the worker would be taken for lost.
    """
    try:
        seal(error).open()
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def heartbeat_seconds(chosen: float | None) -> float:
    """Return how long a worker may be silent."""
    text = os.environ.get("DISTCLUST_HEARTBEAT_SECONDS")
    if chosen is None and text is None:
        return HEARTBEAT_SECONDS
    with contextlib.suppress(ValueError):
        seconds = float(text if chosen is None else chosen)  # type: ignore[arg-type]
        if 0 < seconds < math.inf:
            return seconds
    raise InputError(
        "DISTCLUST_HEARTBEAT_SECONDS" if chosen is None else "Crew: heartbeat",
        "a number of seconds above 0",
        repr(text if chosen is None else chosen),
        "Pass for instance 60.",
    )


@dataclass
class _Remote:
    """A berth on a worker, as seen from here."""

    address: str
    threads: int
    actor: Any  # Dask's future of it: the actor lives as long as this
    is_direct: bool = False
    role: Role[Any] | None = None  # the last one that was opened there
    calls: dict[int, Future[Any]] = field(default_factory=dict)


class ClientHands(Hands):
    """Reaches berths on the workers of a client."""

    def __init__(self, client: Any, crew: str, name: str, heartbeat: float) -> None:
        self._client = client
        self._crew, self._name = crew, name
        self._heartbeat = heartbeat
        self._remotes: dict[str, _Remote] = {}
        self._coming: dict[str, tuple[_Remote, Future[Any]]] = {}  # berths that are made ready
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._patience = Patience()
        self._seen: dict[str, tuple[float, float]] = {}  # last heartbeat, and when it was new
        self._draining: set[str] = set()
        self._workers: dict[str, tuple[float, int, int | None]] = {}
        self._failures: Counter[str] = Counter()
        self._watched = -math.inf
        self._role: tuple[Role[Any], Vault | None, int] | None = None
        # The last that all berths are told: a role, or the order at a position.
        self._sealed: tuple[Any, int | None, Sealed] | None = None
        # An earlier role, a later one, and what is sent to who knows the earlier one.
        self._since: tuple[Role[Any], Role[Any], Role[Any] | Addition] | None = None
        self._is_resting = False
        self._is_opening = False  # whether nobody waited yet for the berths of the role
        self._lock = threading.Lock()  # word of draining comes in the client's own thread
        install_board(client)
        _listen_for_drains(client, self)

    def open(self, role: Role[Any], vault: Vault | None, n_members: int) -> None:
        """Open the role on all workers, on no more of them than there are members.

        Without waiting for it: that is done when somebody asks for berths.
        """
        self._await_berths()  # of an earlier role: they are opened for this one now
        for address in list(self._coming):
            self._give_up(address)
        with self._lock:
            self._is_resting = False
        self._role = (role, vault, n_members)
        labels = [role.label(member) for member in range(n_members)]
        run = vault.run if vault else None
        self.tell("begin", name=self._name, run=run, client=self._client.id, labels=labels)
        for address, remote in list(self._remotes.items()):
            del self._remotes[address]
            self._make_ready(remote)
        self._since = None  # roles may be large
        if not self._coming:
            self._refresh()
        self._is_opening = True

    def berths(self) -> Mapping[str, int]:
        """Return the berths that take members, after a look for new workers."""
        self._refresh()
        if self._is_opening:
            self._await_berths()
            self._is_opening = False
        self._patience.check(bool(self._remotes or self._coming))
        return {
            address: remote.threads
            for address, remote in self._remotes.items()
            if address not in self._draining
        }

    def call(self, number: int, berth: str, method: str, *args: Any, **options: Any) -> None:
        """Send a call to a worker."""
        with self._lock:
            self._is_resting = False
        remote = self._remotes.get(berth)
        if remote is None:
            self._answers.put(Answer(number, error=Lost("it is not there any more")))
            return
        orders = options.pop("orders", ())
        common = [
            self._sealed_once(order, args[0][0].position + i) for i, order in enumerate(orders)
        ]
        future = self._in_loop(self._perform(remote, method, seal(args, options), *common))
        remote.calls[number] = future

        def note(done: Future[Any]) -> None:
            remote.calls.pop(number, None)
            self._answers.put(_answer(number, done))

        future.add_done_callback(note)

    def _sealed_once(self, value: Any, position: int | None = None) -> Sealed:
        """Return what was sealed for another berth if it is the same: it may be large.

        At another position it is sealed anew: whoever gives the orders may use an array again.
        """
        known = self._sealed
        if known is None or known[0] is not value or known[1] != position:
            self._sealed = known = (value, position, seal(value))
        return known[2]

    def wait(self) -> Answer | None:
        """Return the next answer, delivering events meanwhile."""
        deliver_events(self._client)
        try:
            return self._answers.get(timeout=_WAIT_SECONDS)
        except queue.Empty:
            return None

    def lost(self) -> Iterable[str]:
        """Return berths whose worker is unknown to the scheduler, or silent."""
        if time.monotonic() - self._watched >= _WATCH_SECONDS:
            self._watch()
        return [address for address in self._remotes if self._is_gone(address)]

    def draining(self) -> Iterable[str]:
        """Return berths on workers that are to be retired."""
        return [address for address in self._remotes if address in self._draining]

    def rest(self) -> None:
        """Let a worker that is to be retired go at once from now on."""
        with self._lock:
            self._is_resting = True

    def leave(self, berth: str) -> None:
        """Leave a worker that is to be retired, if nothing is done there."""
        with self._lock:
            if self._is_resting:
                self.release(berth)

    def release(self, berth: str) -> None:
        """Forget a berth; its actor is dropped wherever it may live on."""
        remote = self._remotes.pop(berth, None)
        if remote is None:
            return
        for future in list(remote.calls.values()):
            future.cancel()
        _let_go(remote.actor)

    def tell(self, kind: str, **facts: Any) -> None:
        """Log an event for the board; nobody to hear it is no reason to stop."""
        message = {"crew": self._crew, "kind": kind, **facts}
        if self._client.status in {"closing", "closed"}:
            return
        # Others will say that it is gone: here it would hide what they say.
        with contextlib.suppress(OSError, RuntimeError, _closed_client()):
            self._client.log_event(TOPIC, message)

    def close(self) -> None:
        """Release all berths."""
        for address in list(self._coming):
            self._give_up(address)
        for address in list(self._remotes):
            self.release(address)

    # ---- watching -------------------------------------------------------------------------

    def _watch(self) -> None:
        found = look_at(self._client, look_at_scheduler)
        self._watched = now = time.monotonic()
        self._workers = {address: tuple(facts) for address, facts in found["workers"].items()}
        self._draining = set(found["draining"])
        for address, (last, _, _) in self._workers.items():
            if address not in self._seen or self._seen[address][0] != last:
                self._seen[address] = (last, now)

    def _is_gone(self, address: str) -> bool:
        if address not in self._workers:
            return True
        return self._watched - self._seen[address][1] > self._heartbeat

    # ---- berths ---------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Make berths on workers that have none, as far as members need them."""
        assert self._role is not None
        self._watch()
        self._look_at_coming()
        _, _, n_members = self._role
        free = sorted(
            address
            for address in self._workers
            if address not in self._remotes
            and address not in self._coming
            and address not in self._draining
            and not self._is_gone(address)
        )
        for address in free[: max(0, n_members - len(self._remotes) - len(self._coming))]:
            threads = self._workers[address][1]
            self._make_ready(_Remote(address, threads, self._make(address)))

    def _await_berths(self) -> None:
        """Wait for the berths that are made ready, so that members are spread over all."""
        end = time.monotonic() + _OPEN_SECONDS
        while self._coming and not (self._remotes and time.monotonic() > end):
            wait([future for _, future in self._coming.values()], timeout=_WATCH_SECONDS)
            if time.monotonic() - self._watched >= _WATCH_SECONDS:
                self._watch()
            self._look_at_coming()

    def _look_at_coming(self) -> None:
        """Take berths that are ready; give those up whose worker died meanwhile."""
        for address, (remote, future) in list(self._coming.items()):
            if future.done():
                del self._coming[address]
                try:
                    future.result()
                except (Lost, CancelledError) as error:
                    self._note_failure(remote, str(error))
                    continue
                self._failures.pop(address, None)
                self._remotes[address] = remote
            elif self._is_gone(address):
                self._give_up(address)

    def _give_up(self, address: str) -> None:
        remote, future = self._coming.pop(address)
        future.cancel()
        _let_go(remote.actor)

    def _note_failure(self, remote: _Remote, reason: str) -> None:
        """Try again, unless a worker lives on and fails every time."""
        if remote.actor.status == "error":
            reason = str(remote.actor.exception())
        _let_go(remote.actor)
        self._failures[remote.address] += 1
        if self._failures[remote.address] == _TRIES and not self._is_gone(remote.address):
            expected = "a worker that takes members in"
            raise ClusterError(remote.address, expected, reason, "See the log of the worker.")

    def _make(self, address: str) -> Any:
        with asking_scheduler():
            return self._client.submit(
                BerthActor,
                self._crew,
                key=f"crew_{self._name}-{uuid.uuid4().hex}",
                workers=[address],
                allow_other_workers=False,
                actor=True,
                pure=False,
            )

    def _make_ready(self, remote: _Remote) -> None:
        """Have a berth opened, without waiting: its worker may be slow, or dead."""
        assert self._role is not None
        role, vault, _ = self._role
        limit = self._workers.get(remote.address, (0.0, 1, None))[2]
        room = Room(1.0 / max(1, min(len(self._workers), self._role[2])), limit or None)
        sealed_role = self._sealed_once(self._told(remote, role))
        opening = self._open(remote, seal((), {"room": room, "vault": vault}), sealed_role, role)
        self._coming[remote.address] = remote, self._in_loop(opening)

    def _told(self, remote: _Remote, role: Role[Any]) -> Role[Any] | Addition:
        """Return what a berth is told of a role: only what it does not know yet."""
        if remote.role is None:
            return role
        known = self._since
        if known is None or known[0] is not remote.role or known[1] is not role:
            self._since = known = remote.role, role, role.since(remote.role)
        return known[2]

    async def _open(
        self, remote: _Remote, sealed: Sealed, sealed_role: Sealed, role: Role[Any]
    ) -> None:
        while remote.actor.status == "pending":
            await asyncio.sleep(_POLL_SECONDS)
        if remote.actor.status != "finished":
            raise Lost(f"the berth is {remote.actor.status}")
        remote.is_direct = await self._reaches(remote.address)
        await self._perform(remote, "open", sealed, sealed_role)
        remote.role = role

    async def _reaches(self, address: str) -> bool:
        """Whether a connection from here to the worker can be made."""
        from distributed.comm import connect

        try:
            arguments = self._client.connection_args
            comm = await connect(address, timeout=_CONNECT_SECONDS, **arguments)
        except (OSError, TimeoutError):
            return False
        await comm.close()
        return True

    def _in_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._client.loop.asyncio_loop)

    async def _perform(self, remote: _Remote, method: str, sealed: Sealed, *common: Sealed) -> Any:
        """Return the berth's answer; a connection that broke is tried again."""
        from distributed.protocol import to_serialize

        for attempt in range(_TRIES):
            try:
                answer = await self._rpc(remote).actor_execute(
                    function="call",
                    actor=remote.actor.key,
                    args=[method, *map(to_serialize, (sealed, *common))],
                    kwargs={},
                )
            except (OSError, KeyError) as error:
                if attempt == _TRIES - 1 or not await self._is_known(remote.address):
                    raise Lost(f"{type(error).__name__}: {error}") from error
                await asyncio.sleep(0.2 * 2**attempt)
                continue
            if answer["status"] == "OK":
                (value,) = answer["result"].open()
                return value
            raise answer["exception"]
        raise AssertionError("unreachable")

    def _rpc(self, remote: _Remote) -> Any:
        from distributed.actor import ProxyRPC

        if remote.is_direct:
            return self._client.rpc(remote.address)
        return ProxyRPC(self._client.scheduler, remote.address)

    async def _is_known(self, address: str) -> bool:
        try:
            known = self._client.scheduler.ncores(workers=[address])
            return bool(await asyncio.wait_for(known, _CONNECT_SECONDS))
        except (OSError, TimeoutError, KeyError):
            return False


def _answer(number: int, done: Future[Any]) -> Answer:
    if done.cancelled():
        return Answer(number, error=Lost("it was given up"))
    error = done.exception()
    return Answer(number, error=error) if error else Answer(number, value=done.result())


def _let_go(actor: Any) -> None:
    with contextlib.suppress(_closed_client()):
        actor.release()


def _closed_client() -> type[Exception]:
    from distributed.client import ClosedClientError

    return ClosedClientError  # type: ignore[no-any-return]


_listening: weakref.WeakKeyDictionary[Any, weakref.WeakSet[ClientHands]] = (
    weakref.WeakKeyDictionary()
)


def _listen_for_drains(client: Any, hands: ClientHands) -> None:
    """Have crews of this client hear of workers that are to be retired while they rest."""
    crews = _listening.get(client)
    if crews is None:
        crews = _listening[client] = weakref.WeakSet()
        listening = crews

        def note(entry: Any) -> None:
            for one in list(listening):
                one.leave(str(entry[1]["worker"]))

        client.subscribe_topic(DRAIN_TOPIC, note)
    crews.add(hands)
