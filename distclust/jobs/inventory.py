"""What the input of a job consisted of when its rows were brought in, and what differs now.

A survey lists the input once. Files whose size and stamp (times and inode, or ETag) are as
they were are taken for unchanged and not opened; the content of others is hashed, so that a
file that was merely touched or copied is not read again.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from distclust.engine import map_ordered
from distclust.errors import InputError, MissingFileError, StoreError
from distclust.store.sealed import digest_of, plain
from distclust.store.sources import (
    SourceFile,
    SourceOptions,
    find_files,
    is_store,
    open_source,
)
from distclust.store.sources.documents import group_files
from distclust.store.sources.files import is_url

Spec: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
Span: TypeAlias = tuple[int, int]

_READ_BYTES = 2**22
_BATCH_BYTES = 2**26  # hashed by one task
_TICK = 0.02  # seconds in which a file system may not tell two changes apart


@dataclass(frozen=True)
class KnownFile:
    """A file as it was when it was read.

    Attributes
    ----------
    url
        Path or URL.
    size, stamp
        Bytes, and what a file system keeps to tell versions apart.
    digest
        Of its content.
    ranges
        Stored positions that it wrote and may still own: its rows are the live ones.
    """

    url: str
    size: int
    stamp: str
    digest: str
    ranges: tuple[Span, ...]


@dataclass(frozen=True)
class Inventory:
    """All files whose rows a generation holds, and the options that they were read with."""

    files: tuple[KnownFile, ...]
    reading: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the inventory as JSON."""
        files = [
            [file.url, file.size, file.stamp, file.digest, [list(span) for span in file.ranges]]
            for file in self.files
        ]
        return {"files": files, "reading": plain(self.reading)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], where: str) -> Inventory:
        """Return the inventory that `to_json` described; `where` is its place in messages."""
        try:
            files = tuple(_known_file(*facts) for facts in content["files"])
            return cls(files, dict(content["reading"]))
        except (KeyError, TypeError, ValueError) as error:
            hint = "Restore the file from a copy."
            raise StoreError(where, "an inventory of files", repr(error), hint) from error

    @functools.cached_property
    def digest(self) -> str:
        """Digest of all but the stamps: of a file that was only touched nothing is new."""
        content = self.to_json()
        for facts in content["files"]:
            del facts[2]
        return digest_of(content)


def _known_file(url: str, size: int, stamp: str, digest: str, ranges: Any) -> KnownFile:
    spans = tuple((int(start), int(stop)) for start, stop in ranges)
    is_sound = all(isinstance(text, str) for text in (url, stamp, digest)) and type(size) is int
    if not is_sound or any(not 0 <= start < stop for start, stop in spans):
        raise ValueError(f"{url!r:.80} with other facts")
    return KnownFile(url, size, stamp, digest, spans)


@dataclass(frozen=True)
class Survey:
    """What the input consists of, beside what is known of it.

    Attributes
    ----------
    files
        All of it, in the order in which rows come.
    new, changed, touched, unchanged
        Files that were not there before, whose content is another, of which only the stamp
        is, and that are as they were.
    gone
        Files that are no longer there.
    digests
        Of the content of new, changed and touched files, by URL.
    n_bytes_hashed
        How much was read to know.
    against
        Digest of the inventory that was known; empty for none.
    store
        URL of the input if it is a store rather than files.
    """

    files: tuple[SourceFile, ...]
    new: tuple[SourceFile, ...]
    changed: tuple[SourceFile, ...]
    touched: tuple[SourceFile, ...]
    unchanged: tuple[SourceFile, ...]
    gone: tuple[KnownFile, ...]
    digests: Mapping[str, str]
    n_bytes_hashed: int
    against: str = ""
    store: str | None = None

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to bring in."""
        return not (self.new or self.changed or self.gone)

    @property
    def to_read(self) -> tuple[SourceFile, ...]:
        """New and changed files, in the order in which rows come."""
        urls = {file.url for file in (*self.new, *self.changed)}
        return tuple(file for file in self.files if file.url in urls)

    def refreshed(self, known: Inventory) -> Inventory:
        """Return a known inventory with the stamps of now, where the content is the same.

        Its digest is the same. Kept in the place of the other one, it saves the next survey
        from hashing files that were touched.
        """
        stamps = {file.url: file.stamp for file in (*self.touched, *self.unchanged)}
        files = (replace(file, stamp=stamps.get(file.url, file.stamp)) for file in known.files)
        return replace(known, files=tuple(files))


def survey_input(
    source: Spec, known: Inventory | None, *, where: str = "input", form: str | None = None
) -> Survey:
    """List the input and say what differs from what is known.

    Parameters
    ----------
    source
        A path, a folder, a pattern or a URL, or a list of these; or one store.
    known
        The input when its rows were brought in, or None if they never were.
    where
        Place to name in errors.
    form
        Name of the format, if it does not go by the suffix.

    Raises
    ------
    MissingFileError
        If nothing is there, or a file cannot be read.
    InputError
        If a file is named twice.
    """
    store, files, is_hashed = _find(source, form)
    known_files = {file.url: file for file in (known.files if known else ())}
    urls: set[str] = set()
    suspects: list[SourceFile] = []
    unchanged: list[SourceFile] = []
    for file in files:
        if file.url in urls:
            raise InputError(where, "every file once", f"{file.url!r} twice", "Name it once.")
        urls.add(file.url)
        before = known_files.get(file.url)
        is_as_before = before is not None and (before.size, before.stamp) == (file.size, file.stamp)
        (unchanged if is_as_before else suspects).append(file)
    digests = _hash_files(suspects) if is_hashed else {file.url: file.stamp for file in suspects}
    found: dict[str, list[SourceFile]] = {"new": [], "changed": [], "touched": []}
    for file in suspects:
        before = known_files.get(file.url)
        is_equal = before is not None and before.digest == digests[file.url]
        found["new" if before is None else "touched" if is_equal else "changed"].append(file)
    return Survey(
        tuple(files),
        tuple(found["new"]),
        tuple(found["changed"]),
        tuple(found["touched"]),
        tuple(unchanged),
        tuple(file for file in known_files.values() if file.url not in urls),
        digests,
        sum(file.size for file in suspects) if is_hashed else 0,
        known.digest if known else "",
        store,
    )


def _find(source: Spec, form: str | None) -> tuple[str | None, list[SourceFile], bool]:
    """Return the store that the input is, if it is one; its files; whether they are hashed."""
    if not isinstance(source, (str, os.PathLike)) and len(source) == 1:
        source = source[0]
    if not isinstance(source, (str, os.PathLike)):
        return None, _list_files([_absolute(one) for one in source]), True
    url = _absolute(source)
    if not is_store(url, form):
        return None, _list_files(url), True
    if form == "h5ad" or url.lower().endswith(".h5ad"):
        return url, _list_files(url), True
    # A store says itself what tells its content from another.
    identity = open_source(url, SourceOptions(format=form)).identity()
    stamp = digest_of({name: identity[name] for name in identity if name != "options"})
    return url, [SourceFile(url, 0, stamp)], False


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return a path that means the same wherever the job is run from."""
    name = os.fspath(path)
    return name if is_url(name) else os.path.abspath(name)


def _list_files(spec: str | list[str]) -> list[SourceFile]:
    """List files, none of which can change again and keep its stamp.

    Times of local files tick. A file that was written within the last tick is looked at
    again after it, as another write of the same size might get the same time.
    """
    files = find_files(spec)
    if any(_changed_at(file) > time.time() - _TICK for file in files if file.is_local):
        time.sleep(_TICK)
        files = find_files(spec)
    return files


def _changed_at(file: SourceFile) -> float:
    return int(file.stamp.rsplit("-", 2)[1]) / 1e9


def _hash_files(files: Sequence[SourceFile]) -> dict[str, str]:
    """Return digests of the content of files by URL, some files a task."""
    digests: dict[str, str] = {}
    batches = group_files(files, _BATCH_BYTES)
    for batch, found in zip(batches, map_ordered(_hash_batch, batches), strict=True):
        digests |= dict(zip((file.url for file in batch), found, strict=True))
    return digests


def _hash_batch(files: Sequence[SourceFile]) -> list[str]:
    return [_hash_file(file) for file in files]


def _hash_file(file: SourceFile) -> str:
    import xxhash

    state = xxhash.xxh3_128()
    try:
        with file.open() as content:
            while part := content.read(_READ_BYTES):
                state.update(part)
    except OSError as error:
        got = error.strerror or type(error).__name__
        raise MissingFileError(file.url, "a readable file", got, "Check it.") from error
    return state.hexdigest()
