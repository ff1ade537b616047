"""Drafts: versions while they are written.

A file is written and then recorded with its size and checksum, so a run that was killed
finds its finished files. Publishing reads everything back, seals, and moves the pointer.

A run may be taken up again while the process that began it is not dead but asleep. Every
process that works on a draft therefore claims it by the next number of a small ledger, and
looks before each step whether its claim is still the last: the sleeper wakes up to a
`ConflictError`, not to files that are no longer its own.

Large files are written by workers, straight to their place (`DraftPlace`), and recorded by
the process that holds the draft (`Draft.adopt`).

Who publishes several versions as one (a job) makes them held back: ``with held_back():`` they
are verified and sealed, but no pointer moves until `ResultsStore.release`.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from distclust.errors import ConflictError, InputError, StoreError
from distclust.store.archive import encode_archive
from distclust.store.checkpoints import CHECKPOINTS, Checkpoints
from distclust.store.ledger import Ledger
from distclust.store.notes import Notebook, notes_folder
from distclust.store.objects import MissingObject, Objects
from distclust.store.sealed import plain, seal, unseal
from distclust.store.shelf import DRAFTS, Shelf
from distclust.store.versions import (
    SEAL,
    VERSIONS,
    FileEntry,
    Version,
    check_name,
    damaged,
    encode_version,
    file_key,
    read_verified,
    read_version,
)

_FORM = "distclust-draft-file"

_is_held_back: ContextVar[bool] = ContextVar("is_held_back", default=False)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Seal what is published inside, and leave it to `ResultsStore.release` to show it.

    Until then the run counts as unfinished: the same work begun again finds its seal.
    """
    token = _is_held_back.set(True)
    try:
        yield
    finally:
        _is_held_back.reset(token)


def holds_back() -> bool:
    """Whether what is published now is held back."""
    return _is_held_back.get()


class Draft:
    """One run's results on their way; made by `ResultsStore.begin`, closed by publishing.

    Attributes
    ----------
    id
        Id of the version to be, by which the run can be taken up again.
    incarnation
        How many processes have worked on this draft, with this one; later ones win.
    """

    def __init__(self, shelf: Shelf, version_id: str, identity: Mapping[str, Any], seconds: float):
        self.id = version_id
        self._shelf = shelf
        self._objects: Objects = shelf.objects
        self._identity = plain(identity)
        self._claims = Ledger(self._objects, f"{DRAFTS}/{version_id}")
        self._is_closed = False
        self._taken_over: set[str] = set()
        self._lease = shelf.hold(version_id, seconds)
        try:
            self._sealed = self._read_seal()
            self.incarnation = self._claim()
            self._files = {} if self._sealed else self._recorded()
        except BaseException:
            self._lease.release()
            raise

    @property
    def is_sealed(self) -> bool:
        """Whether everything was written by an earlier process; only publishing is left."""
        return self._sealed is not None

    @property
    def names(self) -> list[str]:
        """Names of the finished files."""
        return sorted(self._sealed.files if self._sealed else self._files)

    def write(self, name: str, *buffers: Any) -> None:
        """Write a file from buffers, one after the other; one already finished is kept.

        Raises
        ------
        ConflictError
            If another process took the run over, or sealed other content.
        """
        check_name(name)
        entry = FileEntry.of(*buffers)
        known = self._sealed.files if self._sealed else self._files
        if known.get(name) == entry:
            return
        if self._sealed:
            raise self._conflict("the content that was sealed", f"other content for {name!r}")
        self._check_claim()
        self._forget(name)  # before what the record describes is gone
        self._objects.write(file_key(self.id, name), *buffers)
        self._record(name, entry)

    def place(self) -> DraftPlace:
        """Return where other processes write files of this draft, to be adopted then.

        Raises
        ------
        ConflictError
            If the draft is sealed: nothing is to be written, only to be published.
        """
        if self._sealed:
            raise _sealed_error(self._objects, self.id)
        return DraftPlace(self._objects, self.id, self.incarnation)

    def adopt(self, name: str, entry: FileEntry) -> None:
        """Take in a file that `DraftPlace.write` wrote; publishing verifies it as all others.

        Raises
        ------
        ConflictError
            If another process took the run over, or sealed other content.
        """
        self.adopt_all({name: entry})

    def adopt_all(self, entries: Mapping[str, FileEntry]) -> None:
        """Take in many files by name at once; as `adopt`."""
        for name in entries:
            check_name(name)
        known = self._sealed.files if self._sealed else self._files
        new = {name: entry for name, entry in entries.items() if known.get(name) != entry}
        if self._sealed and new:
            got = f"other content for {min(new)!r}"
            raise self._conflict("the content that was sealed", got)
        if new:
            self._check_claim()
        self._taken_over -= new.keys()
        self._files |= new

    def take_over(self, version: Version, names: Mapping[str, str]) -> None:
        """Give files of a sealed version a place in this draft, each by its name here.

        Local files are linked, others copied by their storage: what they hold is not read. Their
        readers check it, and `ResultsStore.verify` does. Nothing is recorded, since whoever takes
        up the draft does this again at once.

        Raises
        ------
        MissingObject
            If a file is not there.
        ConflictError
            If another process took the run over, or sealed other content.
        """
        for name in names:
            check_name(name)
        entries = {name: version.files[known] for name, known in names.items()}
        if self._sealed:
            self.adopt_all(entries)
        elif entries:
            self._check_claim()
            self._objects.copy(
                [(file_key(version.id, known), file_key(self.id, n)) for n, known in names.items()]
            )
            self._files |= entries
            self._taken_over |= entries.keys()

    def write_archive(
        self,
        name: str,
        kind: str,
        meta: Mapping[str, Any],
        arrays: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        """Write JSON values and arrays as one file, see `distclust.store.archive`."""
        self.write(name, encode_archive(kind, meta, arrays))

    def read(self, name: str) -> bytes:
        """Return a finished file, verified."""
        entry = (self._sealed.files if self._sealed else self._files).get(name)
        if entry is None:
            got = ", ".join(self.names) or "no files"
            raise InputError(f"draft {self.id}", f"a file {name!r}", got, "Write it first.")
        return read_verified(self._objects, file_key(self.id, name), entry)

    def checkpoints(self, part: str = "") -> Checkpoints:
        """Return the checkpoints of this run, or of a part of it such as a chain."""
        return Checkpoints(self._objects, f"{self.id}/{part}" if part else self.id)

    def notebook(self, chapter: str) -> Notebook:
        """Return where the passes of a chapter of this run keep what they found."""
        return Notebook(self._objects, self.id, chapter)

    def has_notes(self) -> bool:
        """Whether a pass of this run found something that no saved state holds."""
        return bool(self._objects.list(notes_folder(self.id)))

    def remove_notes(self) -> None:
        """Remove the notes of all chapters: a state was saved that comes after them."""
        self._objects.delete_tree(notes_folder(self.id))

    def check(self) -> None:
        """Give a sign of life; for long work between files.

        Raises
        ------
        ConflictError
            If another process took the run over.
        """
        self._check_claim()

    def publish(self, metrics: Mapping[str, Any] | None = None) -> Version:
        """Verify, seal, move the pointer; the draft is closed then.

        A draft that was sealed before keeps the metrics of its seal, and one that was
        published before is not published twice. Inside `held_back` the pointer stays.

        Raises
        ------
        StoreError
            If a file is not what was written; run again, it is made anew.
        ConflictError
            If another process took the run over.
        """
        version = self._sealed or self._seal(dict(metrics or {}))
        if not self._lease.keep():  # slept so long that a collector may have been here
            self._shelf.check_not_condemned(self.id)
            read_version(self._objects, self.id)
        if holds_back():
            self.close()
            return version
        show_version(self._shelf, self.id)
        self._finish()
        return version

    def abandon(self) -> None:
        """Remove the draft and all it holds; a sealed one is left to the collector."""
        if not self._sealed:
            self._check_claim()
            self._objects.delete_tree(f"{VERSIONS}/{self.id}")
            self._objects.delete_tree(f"{CHECKPOINTS}/{self.id}")
            self._objects.delete_tree(self._claims.prefix)
        self._finish()

    def close(self) -> None:
        """Let go of the draft; `ResultsStore.begin` can take it up again."""
        if not self._is_closed:
            self._is_closed = True
            self._lease.lapse()

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _finish(self) -> None:
        self._is_closed = True
        self._lease.release()

    def _claim(self) -> int:
        """Take the draft over from whoever had it, if it was begun for the same work."""
        head = self._claims.head()
        begun = self._sealed.identity if self._sealed else head.content if head else None
        if begun is not None and begun != self._identity:
            names = [name for name in begun if begun[name] != self._identity.get(name)]
            raise InputError(
                f"{self._objects.url}, run {self.id}",
                "the run that is continued to be of the same work",
                f"other {' and '.join(names)}",
                "Begin a new run.",
            )
        return self._claims.append(self._identity, head.number if head else 0).number

    def _read_seal(self) -> Version | None:
        try:
            return read_version(self._objects, self.id)
        except MissingObject:
            return None

    def _recorded(self) -> dict[str, FileEntry]:
        """Return what the files of earlier processes must be."""
        found = {}
        for key in self._objects.list(f"{self._claims.prefix}/files"):
            where = self._objects.where(key)
            values = unseal(self._objects.read(key), _FORM, where)
            name = str(values.get("name"))
            if self._record_key(name) != key:
                raise StoreError(where, "the record of this file", repr(name), "Begin a new run.")
            found[name] = FileEntry.from_json(values, where)
        return found

    def _forget(self, name: str) -> None:
        self._taken_over.discard(name)
        if self._files.pop(name, None):
            self._objects.delete(self._record_key(name))

    def _record(self, name: str, entry: FileEntry) -> None:
        _write_record(self._objects, self.id, name, entry)
        self._files[name] = entry

    def _record_key(self, name: str) -> str:
        return _record_key(self.id, name)

    def _seal(self, metrics: dict[str, Any]) -> Version:
        self._verify()
        self._remove_strangers()
        self._check_claim()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        version = Version(
            id=self.id, created=now, metrics=plain(metrics), files=self._files, **self._identity
        )
        self._objects.create(file_key(self.id, SEAL), encode_version(version))
        # Read back: what counts is what lies there, ours or that of another process.
        sealed = read_version(self._objects, self.id)
        if sealed.files != version.files:
            raise self._conflict("the files of this process", "a seal of other files")
        return sealed

    def _verify(self) -> None:
        """Read what was written; of what was taken over, sizes are enough."""
        sizes = self._objects.sizes(f"{VERSIONS}/{self.id}") if self._taken_over else {}
        for name, entry in sorted(self._files.items()):
            if name in self._taken_over:
                key = file_key(self.id, name)
                if sizes.get(key) != entry.size:
                    raise damaged(self._objects.where(key), f"{entry.size} bytes", sizes.get(key))
                continue
            try:
                read_verified(self._objects, file_key(self.id, name), entry)
            except StoreError:
                self._objects.delete(self._record_key(name))  # made anew by the next run
                raise

    def _remove_strangers(self) -> None:
        """Remove files that were written but not recorded before a process was killed."""
        known = {file_key(self.id, name) for name in self._files}
        for key in self._objects.list(f"{VERSIONS}/{self.id}"):
            if key not in known:
                self._objects.delete(key)

    def _check_claim(self) -> None:
        """Raise ConflictError unless this process is the last that took the run."""
        if not self._lease.keep():
            self._shelf.check_not_condemned(self.id)
        if not self._claims.is_head(self.incarnation):
            raise self._conflict("to be the only process that works on it", "another took over")

    def _conflict(self, expected: str, got: str) -> ConflictError:
        return _conflict(self._objects, self.id, expected, got)


def show_version(shelf: Shelf, version_id: str) -> None:
    """Move the pointer to a sealed version and remove what its run needed until then."""
    shelf.publish(version_id)
    shelf.objects.delete_tree(f"{CHECKPOINTS}/{version_id}")
    shelf.objects.delete_tree(f"{DRAFTS}/{version_id}")  # last: until then the run is found again


@dataclass(frozen=True)
class DraftPlace:
    """Where workers write files of a draft that another process holds; pickles.

    A worker may outlive the process that sent it: one that finds the draft sealed, removed
    or taken over writes nothing. Who slips through in the same moment writes what the
    successor writes, as the work is the same.
    """

    objects: Objects
    version_id: str
    incarnation: int

    def write(self, name: str, *buffers: Any, is_recorded: bool = True) -> FileEntry:
        """Write a file from buffers, one after the other; return what `Draft.adopt` takes.

        It is recorded here, where others do the same for their files at the same time; a file
        that tells by itself whether it is whole needs no record.

        Raises
        ------
        ConflictError
            If the draft is no longer that of the process that made this place.
        """
        check_name(name)
        claims = Ledger(self.objects, f"{DRAFTS}/{self.version_id}")
        if not claims.is_head(self.incarnation):
            expected, got = "the process that sent this one to hold it", "another or none"
            raise _conflict(self.objects, self.version_id, expected, got)
        if self.objects.exists(file_key(self.version_id, SEAL)):
            raise _sealed_error(self.objects, self.version_id)
        record = _record_key(self.version_id, name)
        if self.objects.exists(record):
            self.objects.delete(record)  # before what it describes is gone
        self.objects.write(file_key(self.version_id, name), *buffers)
        entry = FileEntry.of(*buffers)
        if is_recorded:
            _write_record(self.objects, self.version_id, name, entry)
        return entry


def _record_key(version_id: str, name: str) -> str:
    return f"{DRAFTS}/{version_id}/files/{name}.json"


def _write_record(objects: Objects, version_id: str, name: str, entry: FileEntry) -> None:
    """Say what a finished file must be, for who takes the run up."""
    content = seal(_FORM, {"name": name, **entry.as_json()})
    objects.write(_record_key(version_id, name), content)


def _sealed_error(objects: Objects, version_id: str) -> ConflictError:
    hint = "Write nothing more; publish it."
    where = f"{objects.url}, run {version_id}"
    return ConflictError(where, "a draft that is being written", "a sealed one", hint)


def _conflict(objects: Objects, version_id: str, expected: str, got: str) -> ConflictError:
    hint = "Stop this process; the other one goes on."
    return ConflictError(f"{objects.url}, run {version_id}", expected, got, hint)
