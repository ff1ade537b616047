"""Garbage collection of results stores: old versions, abandoned drafts, leftovers.

What is to go is marked, all of it; then leases and pointer are looked at, once; then what is
neither leased nor current is removed and its mark last. See ``shelf`` for why no reader is
cut off. Killed at any point, the next collection finishes what is marked. Of two at once the
one that began first stops, since the other might let somebody in where it removes.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable
from dataclasses import dataclass

from distclust.errors import ConflictError, StoreError
from distclust.store.checkpoints import CHECKPOINTS
from distclust.store.leases import live_names, sweep_leases
from distclust.store.ledger import Ledger
from distclust.store.shelf import DRAFTS, LEASES, Shelf
from distclust.store.versions import VERSIONS, read_version, time_of

COLLECTIONS = ".distclust/collections"


@dataclass(frozen=True)
class Collected:
    """Ids of what a collection did.

    Attributes
    ----------
    versions, drafts
        Published versions and unfinished drafts that were removed.
    spared
        What was to be removed but is being read or written.
    """

    versions: tuple[str, ...] = ()
    drafts: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()


def collect(
    shelf: Shelf, keep: int, older_than: float | None, grace: float, now: float | None = None
) -> Collected:
    """Remove what is old, abandoned or left over, see `ResultsStore.gc`."""
    now = time.time() if now is None else now
    turn = _Turn(shelf)
    old = _old_versions(shelf, keep, older_than, now)
    drafts = _abandoned(shelf, grace, now)
    doomed = sorted(old | drafts | shelf.condemned())
    for name in doomed:
        shelf.condemn(name)
    # In this order: whoever moves the pointer holds a lease until it is moved.
    spared = live_names(shelf.objects, LEASES, now)
    published = shelf.published()
    spared |= {shelf.current() or ""} | (drafts & published.keys())
    removed = [name for name in doomed if name not in spared]
    for name in doomed:
        turn.check()
        if name in removed:
            _remove(shelf, name, published.get(name, ()))
        shelf.pardon(name)
    turn.end()
    _sweep(shelf, published.keys() - set(removed), grace, now)
    return Collected(
        tuple(name for name in published if name in removed),
        tuple(name for name in removed if name not in published),
        tuple(name for name in doomed if name in spared),
    )


class _Turn:
    """The right of one collection to remove things, until another one begins."""

    def __init__(self, shelf: Shelf) -> None:
        self.turns = Ledger(shelf.objects, COLLECTIONS)
        head = self.turns.head()
        self.number = self.turns.append({}, head.number if head else 0).number

    def check(self) -> None:
        """Raise ConflictError if another collection began."""
        if not self.turns.is_head(self.number):
            raise ConflictError(
                self.turns.objects.url,
                "one collection at a time",
                "another that began later",
                "Let that one finish.",
            )

    def end(self) -> None:
        """Keep the ledger short; its head stays."""
        self.turns.drop(range(self.number))


def _old_versions(shelf: Shelf, keep: int, older_than: float | None, now: float) -> set[str]:
    published = list(shelf.published())
    old = set(published[: max(len(published) - keep, 0)]) - {shelf.current() or ""}
    if older_than is None:
        return old
    return {name for name in old if now - _sealed_at(shelf, name) > older_than}


def _sealed_at(shelf: Shelf, name: str) -> float:
    try:
        created = read_version(shelf.objects, name).created
        return datetime.datetime.fromisoformat(created).timestamp()
    except (StoreError, ValueError):  # damaged: when it was begun is the next best
        return time_of(name)


def _abandoned(shelf: Shelf, grace: float, now: float) -> set[str]:
    """Return the drafts, sealed or not, that nobody began or let go of within the grace."""
    begun = shelf.folders(VERSIONS) | shelf.folders(DRAFTS) | shelf.folders(CHECKPOINTS)
    begun -= shelf.published().keys() | live_names(shelf.objects, LEASES, now - grace)
    return {name for name in begun if now - time_of(name) > grace}


def _remove(shelf: Shelf, name: str, records: Iterable[int]) -> None:
    for prefix in (VERSIONS, DRAFTS, CHECKPOINTS):
        shelf.objects.delete_tree(f"{prefix}/{name}")
    shelf.pointer.drop(records)


def _sweep(shelf: Shelf, published: Iterable[str], grace: float, now: float) -> None:
    """Remove what killed processes left: papers of published drafts, leases, part files."""
    held = live_names(shelf.objects, LEASES, now)
    for name in (shelf.folders(DRAFTS) | shelf.folders(CHECKPOINTS)) & set(published) - held:
        shelf.objects.delete_tree(f"{DRAFTS}/{name}")
        shelf.objects.delete_tree(f"{CHECKPOINTS}/{name}")
    sweep_leases(shelf.objects, LEASES, now - grace)
    shelf.objects.sweep(grace)
