"""What a service allows."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from distclust.errors import InputError

_WHERE = "distclust.service.Settings"
_SHORTEST_TOKEN = 8


@dataclass(frozen=True)
class Settings:
    """Limits of a service, and who may use it.

    Attributes
    ----------
    limit
        Requests that are worked on or wait for their turn; one more is refused with 503.
    timeout
        Seconds until a request that waits or is worked on is given up with 504.
    threads
        Requests that are worked on at the same time; by default one a core.
    token
        What clients have to show; None lets everybody in.
    hosts
        Names by which the service may be called, without port; None for any. For a service
        without a token on a loopback address: a foreign web page could otherwise reach it by
        giving its own name that address.
    title
        What the corpus is called.
    most_items, most_results, most_characters
        Largest query, largest k, and the longest name of an item.
    body_bytes
        Largest body of a request.
    patience
        Seconds in which the head of a request has to arrive, then its body, and in which an
        answer has to be read.
    """

    limit: int = 200
    timeout: float = 10.0
    threads: int | None = None
    token: str | None = None
    hosts: tuple[str, ...] | None = None
    title: str = ""
    most_items: int = 1000
    most_results: int = 1000
    most_characters: int = 1000
    body_bytes: int = 262_144
    patience: float = 10.0

    def __post_init__(self) -> None:
        numbers = ("limit", "most_items", "most_results", "most_characters", "body_bytes")
        for name in numbers:
            if getattr(self, name) < 1:
                _refuse(name, "at least 1", getattr(self, name), "Choose a larger one.")
        if self.threads is not None and self.threads < 1:
            _refuse("threads", "at least 1", self.threads, "Leave it out.")
        for name in ("timeout", "patience"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                _refuse(name, "a number of seconds above 0", value, "Try 10.")
        if self.token is not None:
            _check_token(self.token)

    def on_threads(self, threads: int) -> Settings:
        """Return the same settings for so many threads."""
        return dataclasses.replace(self, threads=threads)


def _check_token(token: str) -> None:
    is_sendable = token.isascii() and token.isprintable() and " " not in token
    if not is_sendable or len(token) < _SHORTEST_TOKEN:
        expected = f"at least {_SHORTEST_TOKEN} letters, digits and signs without spaces"
        hint = "Make one: `python -c 'import secrets; print(secrets.token_urlsafe())'`."
        _refuse("token", expected, "another text", hint)


def _refuse(name: str, expected: str, got: object, hint: str) -> None:
    raise InputError(f"{_WHERE}: {name}", expected, got, hint)
