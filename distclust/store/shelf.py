"""Which version is current, which are in use, and which are being removed.

Published versions are named by the pointer, a ledger: each move is a record, the head names
the current version. What is in use has a lease. What a collector wants to remove is first
marked as condemned; from then on nobody new gets hold of it. A collector that is killed
leaves the mark, and the next one finishes; so a version is complete or absent for readers,
however much of it is left.

Whoever uses a version first takes the lease and then looks for the mark; the collector marks
and then looks, first for leases, then at the pointer. Whoever moves the pointer to a version
holds a lease on it. So a version that is held, or that the pointer came to name, is spared.
"""

from __future__ import annotations

import contextlib
import datetime
import time

from distclust.errors import ConflictError, StoreError
from distclust.store.leases import Lease, lease
from distclust.store.ledger import Ledger, Record
from distclust.store.objects import MissingObject, Objects
from distclust.store.sealed import seal
from distclust.store.versions import VERSIONS, is_id

POINTER = ".distclust/pointer"
DRAFTS = ".distclust/drafts"
LEASES = ".distclust/leases"
CONDEMNED = ".distclust/condemned"


def holds_results(objects: Objects) -> bool:
    """Whether a results store lies here, published or in the making."""
    return any(objects.list(place) for place in (POINTER, DRAFTS, VERSIONS))


class Shelf:
    """The pointer, the leases and the marks of one results store."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.pointer = Ledger(objects, POINTER)

    def current(self) -> str | None:
        """Return the id of the current version, or None if nothing was published."""
        head = self.pointer.head()
        return None if head is None else self.target(head)

    def published(self) -> dict[str, list[int]]:
        """Return the ids of published versions in order, with the numbers of their records."""
        found: dict[str, list[int]] = {}
        for number in self.pointer.numbers():
            with contextlib.suppress(MissingObject):  # dropped since the listing
                found.setdefault(self.target(self.pointer.read(number)), []).append(number)
        return found

    def target(self, record: Record) -> str:
        """Return the id that a record of the pointer names."""
        name = record.content.get("version")
        if not isinstance(name, str) or not is_id(name):
            where = self.objects.where(f"{POINTER}/{record.number:08d}.json")
            raise StoreError(where, "the id of a version", repr(name)[:80], "Restore a copy.")
        return name

    def point_to(self, version_id: str, action: str, after: int) -> None:
        """Move the pointer: one step, seen by everybody or by nobody."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.pointer.append({"version": version_id, "action": action, "time": now}, after)

    def publish(self, version_id: str) -> None:
        """Move the pointer to a version that it never named; the last publisher wins."""
        while version_id not in self.published():
            head = self.pointer.head()
            # A conflict: something else was published in between, and this one follows it.
            with contextlib.suppress(ConflictError):
                return self.point_to(version_id, "publish", head.number if head else 0)
        return None

    def hold(self, version_id: str, seconds: float) -> Lease:
        """Take a lease on a version or draft that is not being removed."""
        held = lease(self.objects, LEASES, version_id, seconds)
        try:
            self.check_not_condemned(version_id)
        except BaseException:
            held.release()
            raise
        return held

    def check_not_condemned(self, version_id: str) -> None:
        """Raise StoreError if a collector marked it; the current version is never removed."""
        if self.is_condemned(version_id) and self.current() != version_id:
            raise StoreError(
                f"{self.objects.url}, version {version_id}",
                "a version that is kept",
                "one that is being removed",
                "Choose another, or run the collection again to finish it.",
            )

    def is_condemned(self, version_id: str) -> bool:
        """Whether a collector marked it."""
        return self.objects.exists(_mark(version_id))

    def condemned(self) -> set[str]:
        """Return the ids that collectors marked."""
        keys = self.objects.list(CONDEMNED)
        names = (key.removeprefix(f"{CONDEMNED}/").removesuffix(".json") for key in keys)
        return {name for name in names if is_id(name)}

    def folders(self, prefix: str) -> set[str]:
        """Return the ids that have something below ``prefix/<id>/``."""
        names = (key[len(prefix) + 1 :].split("/")[0] for key in self.objects.list(prefix))
        return {name for name in names if is_id(name)}

    def condemn(self, version_id: str) -> None:
        """Mark what is to be removed."""
        content = {"version": version_id, "time": time.time()}
        self.objects.write(_mark(version_id), seal("distclust-condemned", content))

    def pardon(self, version_id: str) -> None:
        """Take the mark away: the version is kept, or all of it is gone."""
        self.objects.delete(_mark(version_id))


def _mark(version_id: str) -> str:
    return f"{CONDEMNED}/{version_id}.json"
