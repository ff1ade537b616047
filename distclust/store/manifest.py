"""What one generation of a matrix store consists of.

A store is a ledger of manifests (see ``ledger``). A manifest names the segments that hold
the rows, one after the other, the positions that are deleted, and the file that describes
the features; everything it names is named together with its digest and never changes. Names
are drawn at random, so that nobody who sweeps away what is not named can meet a name that is
about to be.

Rows have stored positions: those of the first segment first, then those of the next. A
deleted row keeps its position until the store is compacted.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, TypeAlias

from distclust._version import __version__
from distclust.errors import StoreError
from distclust.store.ledger import Ledger, Record
from distclust.store.objects import MissingObject, Objects
from distclust.store.sealed import seal, unseal
from distclust.store.segments import CodecName, IdsKind, LayoutName, ObsKind

FORMAT_VERSION = 1

HIDDEN = ".distclust"
GENERATIONS = f"{HIDDEN}/generations"
LEASES = f"{HIDDEN}/leases"
WORK = f"{HIDDEN}/ingest"
CLAIM = f"{HIDDEN}/claim.json"
LATEST = f"{HIDDEN}/latest.json"
TABLES = f"{HIDDEN}/segments"
FEATURES = f"{HIDDEN}/columns"
TOMBSTONES = f"{HIDDEN}/tombstones"
CONDEMNED = f"{HIDDEN}/condemned"
SEGMENTS = "segments"

_FORM = "distclust-matrix"
_LATEST_FORM = "distclust-latest"
_NAME = re.compile(r"[0-9a-f]{16}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_MOST = 2**53  # more rows than this is a lie, and would not survive a float

Obs: TypeAlias = tuple[tuple[str, ObsKind], ...]


def new_name() -> str:
    """Return a name that nothing in any store has."""
    return secrets.token_hex(8)


def digest_bytes(*contents: bytes) -> str:
    """Return the BLAKE2 digest by which a manifest knows a file."""
    digest = hashlib.blake2b(digest_size=16)
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


@dataclass(frozen=True)
class Part:
    """A file beside the arrays: the features, or the deleted positions."""

    name: str
    digest: str


@dataclass(frozen=True)
class SegmentEntry:
    """One segment.

    Attributes
    ----------
    name, is_root
        Name, and whether it lies at the root of the store: the first one does.
    n_rows
        Its rows.
    digest
        Digest of its table as a file.
    content
        Digest of what the table says: equal for equal rows written in the same way.
    """

    name: str
    is_root: bool
    n_rows: int
    digest: str
    content: str

    @property
    def path(self) -> str:
        """Where its arrays lie: the first segment at the root of the store."""
        return "" if self.is_root else f"{SEGMENTS}/{self.name}"

    @property
    def table(self) -> str:
        """Key of the file that says what every chunk must be."""
        return f"{TABLES}/{self.name}.table"


@dataclass(frozen=True)
class Manifest:
    """One generation.

    Attributes
    ----------
    layout, codec
        How rows are stored, as chosen when the store was made; later segments may have to
        differ, but dense stays dense.
    ids_kind, obs
        Kinds of the row ids and of the annotations.
    features
        The file of the features; `n_features` of them.
    segments
        The segments in the order of their rows.
    tombstones, n_deleted
        The file of the deleted positions, if there are any.
    next_id
        Whole numbers from here on are free for rows without ids of their own; lower bound.
    action, created, provenance
        What was done, when (UTC) and with what.
    request
        Digest of what was asked for: asking again for what was just done is no change.
    """

    layout: LayoutName
    codec: CodecName
    ids_kind: IdsKind
    obs: Obs
    n_features: int
    features: Part
    segments: tuple[SegmentEntry, ...]
    tombstones: Part | None = None
    n_deleted: int = 0
    next_id: int = 0
    action: str = "create"
    request: str = ""
    created: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_stored(self) -> int:
        """Stored positions, those of deleted rows included."""
        return sum(entry.n_rows for entry in self.segments)

    @property
    def n_rows(self) -> int:
        """Rows that are not deleted."""
        return self.n_stored - self.n_deleted

    @property
    def is_sparse(self) -> bool:
        """Whether blocks are sparse."""
        return self.layout != "dense"

    @property
    def is_plain(self) -> bool:
        """Whether the store is one segment at its root, without deleted rows."""
        return len(self.segments) == 1 and self.segments[0].is_root and self.tombstones is None

    @property
    def fingerprint(self) -> str:
        """Digest of all that readers can see; the same for the same rows stored again."""
        parts = [self.features.digest, *(entry.content for entry in self.segments)]
        if self.tombstones is not None:
            parts.append(self.tombstones.digest)
        return digest_bytes(" ".join(parts).encode())

    def keys(self) -> set[str]:
        """Return the keys of the files beside the arrays that the generation consists of."""
        keys = {features_key(self.features), *(entry.table for entry in self.segments)}
        return keys if self.tombstones is None else {*keys, tombstones_key(self.tombstones)}

    def encode(self) -> dict[str, Any]:
        """Return the record's content, stamped with the present time."""
        return {
            "format": _FORM,
            "format_version": FORMAT_VERSION,
            "writer": __version__,
            "created": datetime.datetime.now(datetime.UTC).isoformat(),
            "action": self.action,
            "request": self.request,
            "provenance": dict(self.provenance),
            "layout": self.layout,
            "codec": self.codec,
            "ids": self.ids_kind,
            "obs": [list(pair) for pair in self.obs],
            "n_features": self.n_features,
            "features": _encode_part(self.features),
            "segments": [list(astuple(entry)) for entry in self.segments],
            "tombstones": self.tombstones and _encode_part(self.tombstones),
            "n_deleted": self.n_deleted,
            "next_id": self.next_id,
        }


def lease_name(number: int) -> str:
    """Name under which readers hold a generation."""
    return f"generation-{number}"


def condemned_key(name: str) -> str:
    """Key of the mark on something that `gc` is about to remove."""
    return f"{CONDEMNED}/{name}.json"


def features_key(part: Part) -> str:
    """Key of a file that describes features."""
    return f"{FEATURES}/{part.name}.json"


def tombstones_key(part: Part) -> str:
    """Key of a file of deleted positions."""
    return f"{TOMBSTONES}/{part.name}.int64"


def _encode_part(part: Part) -> list[str]:
    return [part.name, part.digest]


def read_manifest(record: Record, where: str) -> Manifest:
    """Return the manifest that a ledger's record holds.

    Raises
    ------
    StoreError
        If it is no manifest, contradicts itself, or is of a newer format.
    """
    content = record.content
    version = content.get("format_version")
    if content.get("format") != _FORM or type(version) is not int:
        raise _refused(where, "something else")
    if version > FORMAT_VERSION:
        got = f"version {version}, written by distclust {content.get('writer')}"
        expected = f"format version {FORMAT_VERSION} or older"
        raise StoreError(where, expected, got, "Upgrade distclust to read it.")
    try:
        return _READERS[version](content)
    except (KeyError, ValueError, TypeError) as error:
        raise _refused(where, f"other content ({error})") from error


def _refused(where: str, got: str) -> StoreError:
    hint = "Restore it from a copy, or check that this is a store of distclust."
    return StoreError(where, "a generation of a matrix store", got, hint)


def _read_1(content: Mapping[str, Any]) -> Manifest:
    manifest = Manifest(
        layout=_one_of(content["layout"], "dense", "csr", "compact"),
        codec=_one_of(content["codec"], "hot", "packed"),
        ids_kind=_one_of(content["ids"], "integer", "text"),
        obs=tuple((_text(name), _obs_kind(kind)) for name, kind in content["obs"]),
        n_features=_count(content["n_features"]),
        features=_part(content["features"]),
        segments=tuple(_segment(*entry) for entry in content["segments"]),
        tombstones=_part(content["tombstones"]) if content["tombstones"] else None,
        n_deleted=_count(content["n_deleted"]),
        next_id=_count(content["next_id"], 2**63),
        action=_text(content["action"]),
        request=_text(content["request"]),
        created=_text(content["created"]),
        provenance=dict(content["provenance"]),
    )
    names = [entry.name for entry in manifest.segments]
    if len(set(names)) < len(names) or any(entry.is_root for entry in manifest.segments[1:]):
        raise ValueError("segments that lie in the same place")
    if manifest.n_deleted > manifest.n_stored or manifest.n_stored > _MOST:
        raise ValueError("impossible numbers of rows")
    if (manifest.n_deleted > 0) != (manifest.tombstones is not None):
        raise ValueError("deleted rows without positions, or positions without rows")
    return manifest


# Version of the format -> how it is read; a version stays here for good.
_READERS: dict[int, Callable[[Mapping[str, Any]], Manifest]] = {1: _read_1}


def _one_of(value: Any, *known: Any) -> Any:
    if value not in known:
        raise ValueError(f"{value!r:.40} is not one of {', '.join(known)}")
    return value


def _obs_kind(value: Any) -> ObsKind:
    kind: ObsKind = _one_of(value, "bool", "integer", "real", "text")
    return kind


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _count(value: Any, most: int = _MOST) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{value!r:.40} is no number of things")
    return value


def _matching(pattern: re.Pattern[str], value: Any) -> str:
    if pattern.fullmatch(_text(value)) is None:
        raise ValueError(f"{value!r:.40} is no name")
    return str(value)


def _part(value: Any) -> Part:
    name, digest = value
    return Part(_matching(_NAME, name), _matching(_DIGEST, digest))


def _segment(name: Any, is_root: Any, n_rows: Any, digest: Any, content: Any) -> SegmentEntry:
    if not isinstance(is_root, bool):
        raise TypeError(f"{is_root!r:.40} is neither true nor false")
    digests = (_matching(_DIGEST, value) for value in (digest, content))
    return SegmentEntry(_matching(_NAME, name), is_root, _count(n_rows), *digests)


def read_part(objects: Objects, key: str, digest: str) -> bytes:
    """Return the content of a file that a manifest names, unaltered."""
    content = objects.read(key)
    if digest_bytes(content) != digest:
        hint = "Restore it from a copy, or roll back to an older generation."
        raise StoreError(objects.where(key), "the file that was written", "an altered one", hint)
    return content


def generations_of(objects: Objects) -> Ledger:
    """Return the ledger of a store's generations."""
    return Ledger(objects, GENERATIONS)


def read_generation(objects: Objects, number: int) -> tuple[Record, Manifest]:
    """Return one generation as the ledger has it; `StoreError` if it has none."""
    ledger = generations_of(objects)
    try:
        record = ledger.read(number)
    except MissingObject:
        kept = ", ".join(map(str, ledger.numbers())) or "none"
        hint = "Open one of these."
        got = f"generations {kept}"
        raise StoreError(objects.url, f"generation {number}", got, hint) from None
    return record, read_manifest(record, f"{objects.url}, generation {number}")


def note_latest(objects: Objects, number: int) -> None:
    """Note that a generation was published, so that the loss of its record is found."""
    objects.write(LATEST, seal(_LATEST_FORM, {"number": number}))


def read_noted(objects: Objects) -> int:
    """Return the highest number that was noted; the last publisher may not have come to it."""
    try:
        content = objects.read(LATEST)
    except MissingObject:
        return 0
    try:
        return _count(unseal(content, _LATEST_FORM, objects.where(LATEST)).get("number"))
    except ValueError as error:
        raise _refused(objects.where(LATEST), f"other content ({error})") from error


def read_latest(objects: Objects) -> Record | None:
    """Return the record of the present generation, or None if there never was one.

    Raises
    ------
    StoreError
        If a later one was published and its record is gone: older rows are not shown for
        the present ones.
    """
    noted = read_noted(objects)  # first: a note is written after its record
    head = generations_of(objects).head()
    number = 0 if head is None else head.number
    if noted > number:
        hint = "Restore it from a copy, or open an older generation by its number."
        got = f"generation {number} as the last" if number else "none"
        raise StoreError(objects.url, f"generation {noted}, which was published", got, hint)
    return head


def read_manifests(objects: Objects) -> dict[int, Manifest]:
    """Return the manifests of all generations that are kept, by number, ascending."""
    ledger = generations_of(objects)
    manifests = {}
    for number in ledger.numbers():
        with contextlib.suppress(MissingObject):  # dropped since the listing
            manifests[number] = read_manifest(ledger.read(number), objects.url)
    return manifests
