"""Results stores: versions of results, one of which is current.

::

    results/
      versions/<id>/...               the files of a version, and version.json, its seal
      checkpoints/<run>/...           states of runs that are not finished
      .distclust/pointer/             the ledger whose head names the current version
      .distclust/drafts/<id>/         who works on a draft, and which of its files are done
      .distclust/leases/              which versions are being read or written
      .distclust/condemned/<id>.json  which are being removed
      .distclust/collections/         who removes

A reader gets the version that the pointer names, or any other by id, and nothing else ever
changes what it reads. Publishing writes and verifies everything under a new id, seals it,
and then moves the pointer, which is one step. A version that no record of the pointer names
does not exist for readers, unless they know its id: a job makes several versions, holds them
back until all are sealed, and then names them at once.

    store = ResultsStore("results")
    with store.begin("bhc", {"alpha": 1.0}, 0, matrix.fingerprint) as draft:
        draft.write("labels.csv", text.encode())
        draft.publish({"log_evidence": -1234.5})
    with store.open_version() as reader:
        reader.read("labels.csv")
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from distclust._version import __version__
from distclust.errors import InputError, StoreError
from distclust.store import leases
from distclust.store.collecting import Collected, collect
from distclust.store.drafts import Draft, show_version
from distclust.store.ledger import Ledger
from distclust.store.objects import Finding, MissingObject, open_objects
from distclust.store.sealed import plain
from distclust.store.shelf import DRAFTS, LEASES, POINTER, Shelf
from distclust.store.versions import (
    SEAL,
    VERSIONS,
    Version,
    VersionReader,
    compare,
    file_key,
    is_id,
    new_id,
    read_verified,
    read_version,
)

DAY = 86400.0
MATRIX_STORE = (".distclust/generations", ".distclust/ingest")  # what only those have


class ResultsStore:
    """A store of results at a path or URL; a handle that holds nothing open and pickles.

    Nothing is made until the first draft is begun: a store that is not there is empty.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.objects = open_objects(url)
        self.url = self.objects.url
        self._shelf = Shelf(self.objects)

    def begin(
        self,
        kind: str,
        parameters: Mapping[str, Any],
        seed: int | None,
        input_fingerprint: str,
        code_version: str = __version__,
        run: str | None = None,
        seconds: float = leases.SECONDS,
    ) -> Draft:
        """Begin a version, or take up one that was begun.

        Parameters
        ----------
        kind
            What sort of results these are.
        parameters, seed, input_fingerprint, code_version
            What they are made from; parameters are JSON values.
        run
            Id of a draft to continue, for instance from `find_run`. It must have been begun
            with the same arguments.
        seconds
            How long collectors leave the draft alone without a sign of life.

        Raises
        ------
        InputError
            If `run` is not a draft of this store, or of other work.
        """
        if run is not None and not self._is_known(run):
            raise self._unknown(run, "a run that was begun here")
        if any(self.objects.list(place) for place in MATRIX_STORE):
            hint = "Choose another place for results."
            raise InputError(self.url, "a results store, or nothing", "a matrix store", hint)
        identity = _identity(kind, parameters, seed, input_fingerprint, code_version)
        return Draft(self._shelf, run or new_id(), identity, seconds)

    def find_run(
        self,
        kind: str,
        parameters: Mapping[str, Any],
        seed: int | None,
        input_fingerprint: str,
        code_version: str = __version__,
    ) -> str | None:
        """Return the newest unfinished run of exactly this work, or None."""
        identity = plain(_identity(kind, parameters, seed, input_fingerprint, code_version))
        same = (name for name, other in self.unfinished().items() if other == identity)
        return max(same, default=None)

    def unfinished(self) -> dict[str, dict[str, Any]]:
        """Return what each unfinished run is made from, by its id, the oldest first."""
        found = {}
        for name in sorted(self._shelf.folders(DRAFTS) - self._shelf.condemned()):
            head = Ledger(self.objects, f"{DRAFTS}/{name}").head()
            if head is not None:
                found[name] = head.content
        return found

    def current(self) -> Version | None:
        """Return the current version, or None if nothing was published yet."""
        name = self._shelf.current()
        return None if name is None else self._version(name, name)

    def versions(self) -> list[Version]:
        """Return all versions in the order in which they were published.

        Raises
        ------
        StoreError
            If the seal of one of them is damaged or missing; `verify` says of which.
        """
        current = self._shelf.current()
        return [self._version(name, current) for name in self.names()]

    def names(self) -> list[str]:
        """Return the ids of all versions in the order in which they were published."""
        current, condemned = self._shelf.current(), self._shelf.condemned()
        return [n for n in self._shelf.published() if n == current or n not in condemned]

    def get(self, version_id: str) -> Version:
        """Return one version by its id, also one that is held back.

        Raises
        ------
        InputError
            If there is no such version.
        """
        if version_id not in self.names() and not self._waits(version_id):
            raise self._unknown(version_id, "the id of a version")
        return self._version(version_id, self._shelf.current())

    def open_version(
        self, version_id: str | None = None, seconds: float = leases.SECONDS
    ) -> VersionReader:
        """Open a version, or the current one, for reading: ``with store.open_version()``.

        It is not removed while it is open and read from time to time; `seconds` is how long
        it may go without.
        """
        if version_id is not None:
            return self._open(version_id, seconds)
        while (name := self._shelf.current()) is not None:
            try:
                return self._open(name, seconds)
            except (StoreError, InputError):
                if self._shelf.current() == name:
                    raise  # else it was replaced and removed since the pointer was read
        hint = "Publish one first, or check the path."
        raise StoreError(self.url, "a published version", "none", hint)

    def release(self, version_id: str) -> Version:
        """Make a version current that was held back; one that was published stays as it is.

        See `distclust.store.drafts.held_back`.

        Raises
        ------
        StoreError
            If it was never sealed, or was removed.
        """
        with self._shelf.hold(version_id, leases.SECONDS):
            read_version(self.objects, version_id)
            show_version(self._shelf, version_id)
        return self._version(version_id, self._shelf.current())

    def rollback(self, version_id: str | None = None) -> Version:
        """Make an older version current again, or the one published before the current.

        All of its files are verified first. To repeat a rollback that may have happened,
        name the version.

        Raises
        ------
        InputError
            If there is no such version, or none before the current one.
        ConflictError
            If the pointer was moved by somebody else meanwhile.
        """
        head = self._shelf.pointer.head()
        name = version_id or self._before(self._shelf.target(head) if head else "")
        with self.open_version(name) as reader:
            if head is not None and self._shelf.target(head) != name:
                for file in reader.version.files:
                    reader.read(file)
                self._shelf.point_to(name, "rollback", head.number)
        return dataclasses.replace(reader.version, is_current=True)

    def diff(self, a: str, b: str) -> dict[str, Any]:
        """Return what differs between two versions, see `distclust.store.versions.compare`."""
        return compare(self.get(a), self.get(b))

    def gc(
        self,
        keep: int = 5,
        older_than: float | None = None,
        grace: float = DAY,
        now: float | None = None,
    ) -> Collected:
        """Remove old versions, abandoned drafts and leftovers.

        Parameters
        ----------
        keep
            How many of the newest versions stay; the current one always does.
        older_than
            Of the others, remove only those sealed more than so many seconds ago.
        grace
            Drafts and leftovers younger than so many seconds stay.
        now
            The time, in seconds since 1970; None asks the clock.

        Returns
        -------
        What was removed, and what was to be but is in use.
        """
        if keep < 0 or grace < 0:
            got = f"keep={keep}, grace={grace}"
            raise InputError("gc", "numbers of at least 0", got, "Pass for instance keep=5.")
        return collect(self._shelf, keep, older_than, grace, now)

    def is_read(self) -> bool:
        """Whether somebody holds a version or a draft open."""
        return bool(leases.live_names(self.objects, LEASES))

    def verify(self) -> list[Finding]:
        """Read everything that is published; return what is missing, truncated or altered.

        Files that no seal names are found, too.
        """
        findings: list[Finding] = []
        try:
            names = self.names()
        except StoreError as error:
            return [Finding(POINTER, str(error))]
        for name in names:
            findings += self._verify_version(name)
        return findings

    def _open(self, name: str, seconds: float) -> VersionReader:
        if not is_id(name):
            raise self._unknown(name, "the id of a version")
        held = self._shelf.hold(name, seconds)
        try:
            return VersionReader(self.objects, self.get(name), held)
        except BaseException:
            held.release()
            raise

    def _verify_version(self, name: str) -> list[Finding]:
        try:
            version = read_version(self.objects, name)
        except StoreError as error:
            return [Finding(file_key(name, SEAL), _problem(error))]
        findings = []
        for file, entry in sorted(version.files.items()):
            key = file_key(name, file)
            try:
                read_verified(self.objects, key, entry)
            except StoreError as error:
                findings.append(Finding(key, _problem(error)))
        known = {file_key(name, file) for file in (*version.files, SEAL)}
        strangers = set(self.objects.list(f"{VERSIONS}/{name}")) - known
        return findings + [Finding(key, "no seal names this file") for key in sorted(strangers)]

    def _version(self, name: str, current: str | None) -> Version:
        version = read_version(self.objects, name)
        return dataclasses.replace(version, is_current=name == current)

    def _before(self, name: str) -> str:
        earlier: list[str] = []
        for other in self.names():
            if other == name:
                break
            earlier.append(other)
        if not earlier:
            got = "none" if name else "nothing published"
            hint = "Name a version; `distclust versions list` shows them."
            raise InputError(self.url, "a version before the current one", got, hint)
        return earlier[-1]

    def _waits(self, version_id: str) -> bool:
        """Whether a version is sealed and its run not finished: it was held back."""
        if not is_id(version_id) or self._shelf.is_condemned(version_id):
            return False
        is_begun = bool(Ledger(self.objects, f"{DRAFTS}/{version_id}").numbers())
        return is_begun and self.objects.exists(file_key(version_id, SEAL))

    def _is_known(self, run: str) -> bool:
        if not is_id(run):
            return False
        has_claim = bool(Ledger(self.objects, f"{DRAFTS}/{run}").numbers())
        return has_claim or self.objects.exists(file_key(run, SEAL))

    def _unknown(self, name: str, expected: str) -> InputError:
        hint = "`distclust versions list` shows what is there."
        return InputError(self.url, expected, repr(name)[:80], hint)


def _identity(
    kind: str, parameters: Mapping[str, Any], seed: int | None, fingerprint: str, code: str
) -> dict[str, Any]:
    return {
        "kind": kind,
        "parameters": dict(parameters),
        "seed": seed,
        "input_fingerprint": fingerprint,
        "code_version": code,
    }


def _problem(error: StoreError) -> str:
    if isinstance(error, MissingObject):
        return "missing"
    return f"expected {error.expected}, got {error.got}"
