"""Versions of results: what one holds, and the seal that says so.

A version is a folder of files and ``version.json``, its seal, written last: the size and the
checksum of every file, and what the results were made from. A folder without a seal is a
draft. Nothing in a sealed version ever changes, and every read is checked against the seal.
"""

from __future__ import annotations

import datetime
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distclust.errors import InputError, StoreError
from distclust.store.archive import Archive, decode_archive
from distclust.store.leases import Lease
from distclust.store.objects import Objects, check_key, checksum
from distclust.store.sealed import seal, unseal

VERSIONS = "versions"
SEAL = "version.json"

_FORM = "distclust-version"
_ID = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]{8}")
_TIME = "%Y%m%dT%H%M%SZ"
_CHECKSUM = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class FileEntry:
    """What a file of a version must be: its size in bytes and its checksum."""

    size: int
    checksum: str

    @classmethod
    def of(cls, *buffers: Any) -> FileEntry:
        """Describe the file that these buffers make, one after the other."""
        size = sum(memoryview(buffer).nbytes for buffer in buffers)
        return cls(size, checksum(*buffers).hex())

    @classmethod
    def from_json(cls, values: Any, where: str) -> FileEntry:
        """Return the entry that `as_json` described."""
        size, digest = _get(values, "size", int, where), _get(values, "checksum", str, where)
        if size < 0 or not _CHECKSUM.fullmatch(digest):
            raise _refused(where, f"a file of {size} bytes with checksum {digest[:40]!r}")
        return cls(size, digest)

    def as_json(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return {"size": self.size, "checksum": self.checksum}


@dataclass(frozen=True)
class Version:
    """One published (or at least sealed) version.

    Attributes
    ----------
    id
        Its name: the time it was begun (UTC) and a random part.
    created
        When it was sealed, UTC, ISO format.
    kind
        What sort of results these are.
    parameters, seed, code_version, input_fingerprint
        What they were made from; equal ones give equal results.
    metrics
        Figures by name.
    files
        Size and checksum by file name.
    is_current
        Whether the pointer named it when this was read.
    """

    id: str
    created: str
    kind: str
    parameters: dict[str, Any]
    seed: int | None
    code_version: str
    input_fingerprint: str
    metrics: dict[str, Any]
    files: dict[str, FileEntry] = field(repr=False)
    is_current: bool = False

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(entry.size for entry in self.files.values())

    @property
    def identity(self) -> dict[str, Any]:
        """What the results were made from, as JSON values."""
        return {
            "kind": self.kind,
            "parameters": self.parameters,
            "seed": self.seed,
            "input_fingerprint": self.input_fingerprint,
            "code_version": self.code_version,
        }


def new_id() -> str:
    """Return an id that no version has; ids sort by the time they were made."""
    return f"{datetime.datetime.now(datetime.UTC).strftime(_TIME)}-{secrets.token_hex(4)}"


def is_id(text: str) -> bool:
    """Whether `text` could be the id of a version."""
    return _ID.fullmatch(text) is not None


def time_of(version_id: str) -> float:
    """Return when a version was begun, in seconds since 1970."""
    match = _ID.fullmatch(version_id)
    assert match is not None
    begun = datetime.datetime.strptime(match[1], _TIME).replace(tzinfo=datetime.UTC)
    return begun.timestamp()


def file_key(version_id: str, name: str) -> str:
    """Return the key of a file of a version."""
    return f"{VERSIONS}/{version_id}/{name}"


def encode_version(version: Version) -> bytes:
    """Return the seal of a version."""
    content = {
        **version.identity,
        "id": version.id,
        "created": version.created,
        "metrics": version.metrics,
        "files": {name: entry.as_json() for name, entry in version.files.items()},
    }
    return seal(_FORM, content)


def decode_version(document: bytes, version_id: str, where: str) -> Version:
    """Return the version whose seal this is.

    Raises
    ------
    StoreError
        If the seal is altered, of a newer format, of another version, or names files that
        lead out of its folder.
    """
    values = unseal(document, _FORM, where)
    if values.get("id") != version_id:
        raise _refused(where, f"the seal of {values.get('id')!r}")
    seed = values.get("seed")
    if seed is not None and not isinstance(seed, int):
        raise _refused(where, f"a seed of {seed!r}")
    files = _get(values, "files", dict, where)
    for name in files:
        check_name(name)
    return Version(
        id=version_id,
        created=_get(values, "created", str, where),
        kind=_get(values, "kind", str, where),
        parameters=_get(values, "parameters", dict, where),
        seed=seed,
        code_version=_get(values, "code_version", str, where),
        input_fingerprint=_get(values, "input_fingerprint", str, where),
        metrics=_get(values, "metrics", dict, where),
        files={name: FileEntry.from_json(entry, where) for name, entry in files.items()},
    )


def read_version(objects: Objects, version_id: str) -> Version:
    """Read the seal of a version; `MissingObject` if it has none."""
    key = file_key(version_id, SEAL)
    return decode_version(objects.read(key), version_id, objects.where(key))


def check_name(name: str) -> None:
    """Refuse names of files that lead out of a version or hide its seal."""
    check_key(name)
    if name == SEAL:
        raise StoreError(f"file {name!r}", "another name", "the seal's own", "Choose another.")


def read_verified(objects: Objects, key: str, entry: FileEntry) -> bytes:
    """Return the content of a file, which is what the seal says, or StoreError."""
    content = objects.read(key)
    if len(content) != entry.size:
        raise damaged(objects.where(key), f"{entry.size} bytes", f"{len(content)} bytes")
    if checksum(content).hex() != entry.checksum:
        raise damaged(objects.where(key), "the content that was sealed", "altered content")
    return content


def damaged(where: str, expected: str, got: object) -> StoreError:
    """Return the error about a file that is not what its seal says."""
    return StoreError(where, expected, got, "Roll back to another version or restore a copy.")


class VersionReader:
    """Reads the files of one version, each verified; holds a lease until it is closed.

    Collectors leave the version alone meanwhile: ``with store.open_version() as reader``.
    """

    def __init__(self, objects: Objects, version: Version, lease: Lease) -> None:
        self.version = version
        self._objects = objects
        self._lease = lease

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises
        ------
        InputError
            If the version has no such file.
        StoreError
            If the file is missing or not what was sealed.
        """
        entry = self.version.files.get(name)
        if entry is None:
            names = ", ".join(sorted(self.version.files)) or "no files"
            where = self._objects.where(f"{VERSIONS}/{self.version.id}")
            raise InputError(where, f"a file {name!r}", names, "Check the name.")
        # A lease that ran out may have cost files: that shows as a missing file.
        self._lease.keep()
        return read_verified(self._objects, file_key(self.version.id, name), entry)

    def read_archive(self, name: str) -> Archive:
        """Return an archive that `Draft.write_archive` wrote."""
        return decode_archive(self.read(name), self._objects.where(file_key(self.version.id, name)))

    def close(self) -> None:
        """Release the lease."""
        self._lease.release()

    def __enter__(self) -> VersionReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def compare(a: Version, b: Version) -> dict[str, Any]:
    """Return what differs between two versions, as JSON values; empty if nothing does.

    ``parameters`` and ``metrics`` map a name to ``[of a, of b]`` (None: absent), metrics of
    numbers with ``b - a`` as a third value; ``files`` lists those ``added``, ``removed`` and
    ``changed`` in b; the others are ``[of a, of b]``.
    """
    found: dict[str, Any] = {}
    for name in ("kind", "seed", "code_version", "input_fingerprint"):
        if getattr(a, name) != getattr(b, name):
            found[name] = [getattr(a, name), getattr(b, name)]
    metrics = _differing(a.metrics, b.metrics)
    parts = {
        "parameters": _differing(a.parameters, b.parameters),
        "metrics": {name: _with_difference(pair) for name, pair in metrics.items()},
        "files": {
            "added": sorted(b.files.keys() - a.files.keys()),
            "removed": sorted(a.files.keys() - b.files.keys()),
            "changed": sorted(
                name for name in a.files.keys() & b.files.keys() if a.files[name] != b.files[name]
            ),
        },
    }
    return found | {name: part for name, part in parts.items() if any(part.values())}


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    names = sorted(a.keys() | b.keys())
    # By text, as not-a-number equals itself there.
    return {n: [a.get(n), b.get(n)] for n in names if repr(a.get(n)) != repr(b.get(n))}


def _with_difference(pair: list[Any]) -> list[Any]:
    is_numeric = all(isinstance(value, int | float) for value in pair)
    return [*pair, pair[1] - pair[0]] if is_numeric else pair


def _get(values: Any, name: str, kind: type, where: str) -> Any:
    value = values.get(name) if isinstance(values, dict) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _refused(where, f"{name!r} of {str(value)[:40]!r}")
    return value


def _refused(where: str, got: str) -> StoreError:
    return StoreError(where, "the seal of this version", got, "Restore it from a copy.")
