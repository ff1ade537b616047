"""Leases: readers say what they use, so that nobody sweeps it away under them.

A lease is a small object that names what is in use and until when. There are no locks; the
order of steps is what makes it safe. A reader writes its lease and *then* looks whether the
thing is still meant to be there. A collector marks the thing as condemned and *then* looks
for leases; if one is live it takes the mark back. Whatever the timing, at least one of the
two sees the other.

A lease ends by itself, because readers get killed. Clocks of machines differ, so collectors
grant every lease some time more than it says, and readers claim none beyond.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from types import TracebackType

from distclust.errors import StoreError
from distclust.store.objects import MissingObject, Objects
from distclust.store.sealed import seal, unseal

SECONDS = 3600.0
SKEW = 600.0  # how far clocks of readers and collectors may be apart

_FORM = "distclust-lease"


class Lease:
    """Holds `name` below `prefix` until released or run out; a context manager."""

    def __init__(self, objects: Objects, prefix: str, name: str, seconds: float) -> None:
        self.objects = objects
        self.prefix = prefix
        self.name = name
        self.seconds = seconds
        self._key = ""
        self._expires = 0.0
        self.renew()

    def keep(self) -> bool:
        """Renew if less than half of the time is left; call it again and again.

        Returns whether the lease held all the time. If not (the process slept, say), it
        holds again from now on, and the caller looks whether the thing is still there.
        """
        left = self._expires - time.time()
        if left < self.seconds / 2:
            self.renew()
        return left > 0

    def renew(self) -> None:
        """Hold for the full time from now on."""
        now = time.time()
        if now >= self._expires:
            # Somebody may be sweeping the old one away: a new name cannot be mistaken for it.
            self._key = f"{self.prefix}/{secrets.token_hex(8)}.json"
        self._expires = now + self.seconds
        self._write(self._expires)

    def lapse(self) -> None:
        """Let go, but leave a trace that says when, for collectors that grant a grace."""
        self._expires = 0.0
        self._write(time.time() - SKEW)

    def release(self) -> None:
        """Let go; nothing happens the second time."""
        self._expires = 0.0
        self.objects.delete(self._key)

    def _write(self, expires: float) -> None:
        holder = {"host": socket.gethostname(), "process": os.getpid()}
        content = {"name": self.name, "expires": expires, **holder}
        self.objects.write(self._key, seal(_FORM, content))

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def lease(objects: Objects, prefix: str, name: str, seconds: float = SECONDS) -> Lease:
    """Take a lease on `name`: ``with lease(...)``, then check that the thing is there."""
    return Lease(objects, prefix, name, seconds)


def live_names(objects: Objects, prefix: str, now: float | None = None) -> set[str]:
    """Return what is leased below `prefix` at time `now` (seconds since 1970).

    For a time in the past: what was not let go before then, or was and left its trace.

    Raises
    ------
    StoreError
        If a lease cannot be read: what it protects is not known then.
    """
    now = time.time() if now is None else now
    return {name for _, name, expires in _leases(objects, prefix) if now < expires + SKEW}


def sweep_leases(objects: Objects, prefix: str, now: float | None = None) -> None:
    """Remove leases that ran out, of readers that were killed."""
    now = time.time() if now is None else now
    for key, _, expires in _leases(objects, prefix):
        if now >= expires + SKEW:
            objects.delete(key)


def _leases(objects: Objects, prefix: str) -> list[tuple[str, str, float]]:
    """Return key, name and end of every lease."""
    found = []
    for key in objects.list(prefix):
        with contextlib.suppress(MissingObject):  # released since the listing
            content = unseal(objects.read(key), _FORM, objects.where(key))
            name, expires = content.get("name"), content.get("expires")
            if not isinstance(name, str) or not isinstance(expires, float | int):
                hint = "Remove the file if no process uses the store."
                raise StoreError(objects.where(key), "a lease", "something else", hint)
            found.append((key, name, float(expires)))
    return found
