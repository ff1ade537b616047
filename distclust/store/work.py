"""Changes under way: where the half-done lies, who may go on with it, who clears it away.

A change is known by a fingerprint of what is asked for. The first process that works at it
draws a name for everything it will write, and puts the name into a claim; a process that is
asked for the same later finds the claim, takes it over and goes on with what is there. So
work that was killed is taken up, and of two processes that do the same the older one finds
the claim taken and stops; what both have written until then has the same bytes.

A change that fails by itself (a full disk, bad rows, a conflict) gives its space back; one
that is interrupted leaves its work to be taken up. While it runs, a writer holds a lease,
which keeps `gc` from taking its work for leftovers.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from distclust.errors import (
    CapacityError,
    ConflictError,
    InputError,
    OtherRowsError,
    StoreError,
)
from distclust.store.arrays import METADATA
from distclust.store.face import hide_face
from distclust.store.generation import Generation
from distclust.store.leases import Lease, lease
from distclust.store.manifest import (
    CLAIM,
    HIDDEN,
    LEASES,
    WORK,
    Manifest,
    Part,
    SegmentEntry,
    condemned_key,
    digest_bytes,
    features_key,
    generations_of,
    lease_name,
    new_name,
    note_latest,
    read_manifest,
    tombstones_key,
)
from distclust.store.mapping import Mapper
from distclust.store.objects import MissingObject, Objects
from distclust.store.removal import remove_segment
from distclust.store.sealed import digest_of, seal, unseal
from distclust.store.segments import Segment

WRITING = "writing"

_log = logging.getLogger(__name__)
_FORM = "distclust-claim"
_SECONDS_BETWEEN_LOOKS = 10.0
_NAME = re.compile(r"[0-9a-f]{16}")
# Failures after which nobody will go on with the work; of those of the system, the ones
# that will be there again. A connection that was lost is no reason to begin anew.
_HOPELESS = (InputError, StoreError, CapacityError, ConflictError)
_HOPELESS_NUMBERS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
}


def fingerprint_of(request: dict[str, Any] | None) -> str:
    """Return the fingerprint of a request; of one that cannot be known again, a fresh one."""
    return secrets.token_hex(16) if request is None else digest_of(request)


@dataclass(frozen=True)
class Work:
    """One change under way.

    Attributes
    ----------
    objects
        The store.
    claim
        What is worked at, by whom.
    is_root
        Whether its segment lies at the root of the store: the first one.
    """

    objects: Objects
    claim: Claim
    is_root: bool

    @property
    def name(self) -> str:
        """Name of everything that the change writes."""
        return self.claim.name

    @property
    def scratch(self) -> str:
        """Prefix below which unfinished work is kept."""
        return f"{WORK}/{self.name}"

    @property
    def path(self) -> str:
        """Where the segment lies."""
        return self._entry(0).path

    def _entry(self, n_rows: int, digest: str = "", content: str = "") -> SegmentEntry:
        return SegmentEntry(self.name, self.is_root, n_rows, digest, content)

    def watched(self, mapper: Mapper) -> Mapper:
        """Return a mapper that stops when somebody else has taken the work over."""

        def mapped(
            function: Callable[..., Any], items: Any, *shared: Any, stage: str = ""
        ) -> Iterator[Any]:
            looked = time.monotonic()
            for result in mapper(function, items, *shared, stage=stage):
                yield result
                if time.monotonic() - looked > _SECONDS_BETWEEN_LOOKS:
                    self.check_ours()
                    looked = time.monotonic()
            self.check_ours()

        return mapped

    def write_table(self, segment: Segment) -> SegmentEntry:
        """Write what the chunks of a finished segment must be; return its manifest entry.

        A table that is there stays, if it says the same: it tells another time, and a second
        process that did this work may have published it.
        """
        table, content = segment.encode(), _content_digest(segment)
        key = self._entry(0).table
        if not self.objects.create(key, table):
            kept = self.objects.read(key)
            if _content_digest(Segment.decode(kept, self.objects.where(key))) == content:
                table = kept
            else:
                self.check_ours()
                self.objects.write(key, table)
        return self._entry(segment.n_rows, digest_bytes(table), content)

    def write_features(self, content: bytes) -> Part:
        """Write a description of features."""
        return self._write_part(features_key, content)

    def write_tombstones(self, content: bytes) -> Part:
        """Write deleted positions."""
        return self._write_part(tombstones_key, content)

    def _write_part(self, key_of: Callable[[Part], str], content: bytes) -> Part:
        part = Part(self.name, digest_bytes(content))
        self.objects.write(key_of(part), content)
        return part

    def publish(self, manifest: Manifest, after: int) -> Generation:
        """Make a manifest the present one, after generation number `after`.

        Raises
        ------
        ConflictError
            If somebody else published meanwhile, or took the work over.
        """
        self.check_ours()
        if not manifest.is_plain:
            # Before, not after: other tools must never take a part of the rows for all.
            hide_face(self.objects, manifest)
        record = generations_of(self.objects).append(manifest.encode(), after)
        quietly(functools.partial(note_latest, self.objects, record.number))
        return Generation(self.objects, record, read_manifest(record, self.objects.url))

    def check_ours(self) -> None:
        """Raise `ConflictError` if somebody else has taken the work over."""
        if not self.is_ours():
            raise _conflict(self.objects, "a second process that does the same")

    def is_ours(self) -> bool:
        """Whether nobody has taken the work over."""
        try:
            return _read_claim(self.objects, self.claim.key).token == self.claim.token
        except MissingObject:
            return False

    def finish(self) -> None:
        """Clear away what is of no use once the change is published."""
        self.objects.delete_tree(self.scratch)
        self.objects.delete(self.claim.key)

    def give_back(self) -> None:
        """Remove everything that was written, unless it was published or taken over."""
        part = Part(self.name, "")
        keys = [self._entry(0).table, features_key(part), tombstones_key(part)]
        if not self.is_ours() or self._is_published(keys):
            return
        remove_segment(self.objects, self.path)
        for key in [*keys, METADATA] if self.is_root else keys:
            self.objects.delete(key)
        self.finish()
        if not self.objects.list(HIDDEN):
            self.objects.delete_tree(HIDDEN)  # empty folders
        if self.is_root and self.objects.path is not None:
            with contextlib.suppress(OSError):  # somebody else's files are in it
                self.objects.path.rmdir()

    def _is_published(self, keys: list[str]) -> bool:
        """Whether it was, after all: of a failing write one may not know."""
        head = generations_of(self.objects).head()
        if head is None:
            return False
        return not read_manifest(head, self.objects.url).keys().isdisjoint(keys)


@contextlib.contextmanager
def working(objects: Objects, fingerprint: str, *, is_root: bool = False) -> Iterator[Work]:
    """Do a change: take up what is there of it, clear away what is not needed after it.

    Raises
    ------
    ConflictError
        If the store is being made from something else.
    """
    with contextlib.ExitStack() as stack:
        if not is_root:  # there is no gc before the first generation
            stack.enter_context(leased(objects, WRITING))
        work = Work(objects, _take(objects, fingerprint, is_root), is_root)
        try:
            yield work
        except (*_HOPELESS, OSError) as error:
            if _is_hopeless(error):
                try:
                    work.give_back()
                except (OSError, StoreError) as trouble:
                    error.add_note(f"Not all of the unfinished work could be removed: {trouble}")
            raise
        quietly(work.finish)


def _is_hopeless(error: Exception) -> bool:
    if isinstance(error, OtherRowsError):
        return False  # the right rows may still come
    return isinstance(error, _HOPELESS) or getattr(error, "errno", None) in _HOPELESS_NUMBERS


def is_claimed(objects: Objects, fingerprint: str, *, is_root: bool = False) -> bool:
    """Whether work on a change was begun and not finished."""
    try:
        return _read_claim(objects, _claim_key(fingerprint, is_root)).fingerprint == fingerprint
    except MissingObject:
        return False


def finish_published(objects: Objects, fingerprint: str, *, is_root: bool = False) -> None:
    """Clear away what a process left that was killed right after it published."""
    with contextlib.suppress(MissingObject):
        claim = _read_claim(objects, _claim_key(fingerprint, is_root))
        if claim.fingerprint == fingerprint:
            quietly(Work(objects, claim, is_root).finish)


@contextlib.contextmanager
def leased(objects: Objects, name: str) -> Iterator[None]:
    """Hold a lease and renew it from a thread of its own, however long the work takes."""
    held = lease(objects, LEASES, name)
    ended = threading.Event()
    keeper = threading.Thread(target=_keep, args=(held, ended), daemon=True, name="lease")
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
        quietly(held.release)  # one that cannot be released runs out


def _keep(held: Lease, ended: threading.Event) -> None:
    while not ended.wait(held.seconds / 8):
        quietly(held.keep)


@contextlib.contextmanager
def reading(objects: Objects, number: int) -> Iterator[None]:
    """Hold a generation, so that `gc` leaves it; the caller opens it afterwards.

    Raises
    ------
    StoreError
        If it is being removed.
    """
    name = lease_name(number)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(leased(objects, name))
        except OSError as error:  # a reader that may not write: the grace period is its time
            _log.debug("reads without a lease: %s", error)
        if objects.exists(condemned_key(name)):
            hint = "Open a later generation, or run gc again to finish the removal."
            where = f"{objects.url}, generation {number}"
            raise StoreError(where, "a generation that is kept", "one being removed", hint)
        yield


def quietly(step: Callable[[], object]) -> None:
    """Do something on which nothing depends, such as clearing away what `gc` would."""
    try:
        step()
    except OSError as error:
        _log.warning("went on without: %s", error)


@dataclass(frozen=True)
class Claim:
    """Who works at what: where it says so, since when, and the name of what is written."""

    key: str
    fingerprint: str
    token: str
    name: str
    begun: float

    def encode(self) -> bytes:
        """Return the content of the file."""
        names = ("fingerprint", "token", "name", "begun")
        return seal(_FORM, {name: getattr(self, name) for name in names})


def read_claims(objects: Objects) -> list[Claim]:
    """Return the claims on all changes that are under way or were given up."""
    keys = [CLAIM] if objects.exists(CLAIM) else []
    keys += [key for key in objects.list(WORK) if key.count("/") == WORK.count("/") + 1]
    claims = []
    for key in keys:
        with contextlib.suppress(MissingObject):  # let go since the listing
            claims.append(_read_claim(objects, key))
    return claims


def _read_claim(objects: Objects, key: str) -> Claim:
    values = unseal(objects.read(key), _FORM, objects.where(key))
    try:
        claim = Claim(key, **values)
        is_sound = _NAME.fullmatch(claim.name) is not None and claim.begun >= 0
    except TypeError:
        is_sound = False
    if not is_sound:
        hint = "Remove the file if no process writes to the store."
        raise StoreError(objects.where(key), "a claim", "something else", hint)
    return claim


def _claim_key(fingerprint: str, is_root: bool) -> str:
    return CLAIM if is_root else f"{WORK}/{fingerprint}.json"


def _take(objects: Objects, fingerprint: str, is_root: bool) -> Claim:
    """Claim a change: a new one, or one that is there from a process that did not finish."""
    key = _claim_key(fingerprint, is_root)
    mine = Claim(key, fingerprint, new_name(), new_name(), time.time())
    while not _create(objects, mine):
        with contextlib.suppress(MissingObject):  # let go since: try again
            found = _read_claim(objects, key)
            if found.fingerprint != fingerprint:
                raise _conflict(objects, "another unfinished ingest")
            if not objects.exists(condemned_key(found.name)):
                mine = replace(mine, name=found.name)
            objects.write(key, mine.encode())
            break
    return mine


def _create(objects: Objects, mine: Claim) -> bool:
    """Put a new claim up; one that fails half-way is taken down again."""
    try:
        return objects.create(mine.key, mine.encode())
    except OSError:
        work = Work(objects, mine, is_root=False)
        quietly(lambda: objects.delete(mine.key) if work.is_ours() else None)
        raise


def _content_digest(segment: Segment) -> str:
    """Digest of what a segment holds, whenever and by whatever release it was written."""
    described = {"spec": segment.spec.to_json(), "metadata": segment.metadata}
    parts = [json.dumps(described, sort_keys=True).encode()]
    for path in sorted(segment.tables):
        table = segment.tables[path]
        parts += [table.sizes.astype("<u8").tobytes(), table.checksums.tobytes()]
    return digest_bytes(*parts)


def _conflict(objects: Objects, got: str) -> ConflictError:
    hint = "Let it finish; if nobody is at work, pass fresh (--fresh) to start over."
    return ConflictError(objects.url, "no other writer at this work", got, hint)
