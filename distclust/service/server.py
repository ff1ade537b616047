"""The server below the application: its socket, its patience, its end.

Uvicorn waits for ever for a client that sends its request byte by byte, or that does not read
its answer. Here both are cut off, and there are only so many connections at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from distclust.errors import InputError
from distclust.service.app import Service
from distclust.service.metrics import Metrics
from distclust.service.refusals import Refusal, refusal

KEEP_ALIVE_SECONDS = 15
GRACE_SECONDS = 10  # for running requests at the end

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_PHRASES = {400: "Bad Request", 408: "Request Timeout", 503: "Service Unavailable"}

log = logging.getLogger("distclust.service")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def own_names(host: str) -> tuple[str, ...]:
    """Return the names by which a service on a loopback address may be called."""
    shown = f"[{host}]" if ":" in host else host
    return tuple(dict.fromkeys((*_LOOPBACK_NAMES, shown)))


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; nobody is let in yet."""
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        hint = "Try --host 127.0.0.1."
        raise InputError(where, "an address of this machine", str(error), hint) from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        hint = "Choose another with --port or --host; --port 0 takes any free one."
        raise InputError(where, "a free port", error.strerror or str(error), hint) from None
    return bound


def url_of(bound: socket.socket) -> str:
    """Return where a browser finds a socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def run(service: Service, bound: socket.socket, on_start: Callable[[], None]) -> None:
    """Serve until the process is asked to end; requests that are running are finished."""
    make_server(service, on_start).run(sockets=[bound])


def make_server(service: Service, on_start: Callable[[], None]) -> uvicorn.Server:
    """Return the server of a service; setting its `should_exit` ends it."""
    settings = service.settings
    patient = {
        "figures": service.metrics,
        "patience": settings.patience,
        # Clients that are answered, clients that are refused, and some that only look.
        "most_connections": 2 * settings.limit + 100,
    }
    protocol = type("Connection", (_Connection,), patient)
    config = uvicorn.Config(
        service.app,
        http=protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return _Server(config, on_start)


class _Server(uvicorn.Server):
    """Ends in peace when it is asked to: that is no failure of the command."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Uvicorn would raise the signals again afterwards.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        ends = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in ends}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Connection(H11Protocol):
    """A connection that has to send its requests, and read its answers, in good time.

    Attributes
    ----------
    figures
        Where connections that were cut off are counted.
    patience
        Seconds for the head of a request, and for an answer to be read.
    most_connections
        One more is told to come back later.
    """

    figures: Metrics
    patience: float
    most_connections: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._is_surplus = False
        self._has_part = False  # of a request's head

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._is_surplus = len(self.connections) > self.most_connections
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._waiting, self._reading)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_surplus:
            got = "more than it can hold"
            hint = "Try again in a second."
            headers = {"Retry-After": "1"}
            self._cut(refusal(503, "distclust", "fewer connections", got, hint, headers), "surplus")
            return
        self._has_part = True
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._reading = self.loop.call_later(self.patience, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(self._reading)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():  # an answer that nobody fetched
            self._abort()

    def send_400_response(self, msg: str) -> None:
        hint = "Is this a browser or a program that speaks HTTP/1.1?"
        self._cut(refusal(400, "distclust", "an HTTP request", "something else", hint), "malformed")

    def _watch(self) -> None:
        """Begin or end to wait for the head of a request.

        Uvicorn itself ends connections on which nothing comes after an answer.
        """
        cycle: Any = self.cycle  # None before the first request
        is_busy = cycle is not None and not cycle.response_complete
        if is_busy or self.timeout_keep_alive_task is not None or self.transport.is_closing():
            self._stop(self._waiting)
            self._waiting, self._has_part = None, False
        elif self._waiting is None:
            self._waiting = self.loop.call_later(self.patience, self._lose_patience)

    def _lose_patience(self) -> None:
        if not self._has_part:  # browsers open connections that they may need: no harm
            self.transport.close()
            return
        expected = f"a request within {self.patience:g} seconds"
        self._cut(refusal(408, "distclust", expected, "a part of it", "Send it at once."), "slow")

    def _cut(self, refused: Refusal, reason: str) -> None:
        """Say why, as far as there is an open ear, and end the connection."""
        if self.transport.is_closing():
            return
        self.figures.connections[reason] += 1
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(_raw(refused))
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self.patience, self._abort)

    def _abort(self) -> None:
        self.figures.connections["slow"] += 1
        self.transport.abort()

    def _stop(self, *timers: asyncio.TimerHandle | None) -> None:
        for timer in timers:
            if timer is not None:
                timer.cancel()


def _raw(refused: Refusal) -> bytes:
    """Return a refusal as it goes over the wire, for where there is no application yet."""
    from distclust.service.app import to_bytes

    body = to_bytes(refused.to_dict())
    lines = [f"HTTP/1.1 {refused.status} {_PHRASES[refused.status]}"]
    headers = refused.headers | {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
