"""Where the bytes of stores lie: named objects below one root, here or far away.

Everything that stores write or read goes through `Objects`. An object appears whole or not
at all, and `create` makes a name exclusively: of any number of writers one succeeds. On
these two promises rest the ledgers, and on ledgers everything that is published. Local
folders keep them by links and renames (see ``files``), object stores by single puts and
conditional puts. Storages that keep only part of that can be read but not written.

Keys are plain names joined by ``/``; anything else is refused wherever it comes from, so
that no name in a manifest leads out of its store.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError, StoreError
from distclust.store import files

Bytes: TypeAlias = npt.NDArray[np.uint8]
Keys: TypeAlias = list[str]  # below, `list` is a method

_SEGMENT = re.compile(r"[A-Za-z0-9._-]{1,200}")
_LONGEST_KEY = 900  # S3 allows 1024 bytes with the root
_ALIGNMENT = 64


class MissingObject(StoreError):
    """An object that should be there is not."""


@dataclass(frozen=True)
class Finding:
    """Something wrong in a store: which object, and what is wrong with it."""

    key: str
    problem: str


def check_key(key: str) -> None:
    """Refuse what is not a plain relative name: ``..``, absolute, empty or odd parts."""
    parts = key.split("/")
    if len(key) > _LONGEST_KEY or not all(map(_is_plain, parts)):
        raise StoreError(
            f"store key {key[:80]!r}",
            "a relative name of letters, digits, '.', '_', '-' and '/'",
            "something else",
            "The store was damaged or made by another program; do not use it.",
        )


def _is_plain(part: str) -> bool:
    is_name = _SEGMENT.fullmatch(part) is not None and part not in {".", ".."}
    return is_name and not part.endswith(files.PARTIAL)


def checksum(*buffers: Any) -> bytes:
    """Return the 16-byte XXH3 digest of the buffers, one after the other.

    It finds damage, not forgery. Large buffers are hashed without the interpreter's lock.
    """
    import xxhash

    if len(buffers) == 1:
        return bytes(xxhash.xxh3_128_digest(buffers[0]))
    state = xxhash.xxh3_128()
    for buffer in buffers:
        state.update(buffer)
    return bytes(state.digest())


class Objects(ABC):
    """Objects below one root; a handle that pickles and holds nothing open.

    Attributes
    ----------
    url
        The root, as it is printed and as `open_objects` takes it.
    path
        The root as a local folder, or None if it is elsewhere.
    """

    url: str
    path: Path | None

    @property
    def is_local(self) -> bool:
        """Whether the objects are files of this machine."""
        return self.path is not None

    def where(self, key: str) -> str:
        """Return the place of an object, for messages."""
        return f"{self.url}/{key}"

    def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        return self.size(key) is not None

    def delete(self, key: str) -> None:
        """Remove an object; one that is absent already is no error."""
        check_key(key)
        self._delete(key)

    def delete_tree(self, prefix: str) -> None:
        """Remove all objects below ``prefix/``, and what killed writers left there."""
        check_key(prefix)
        self._delete_tree(prefix)

    @abstractmethod
    def sweep(self, seconds: float) -> None:
        """Remove what writers killed more than `seconds` ago left behind."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Return the whole object; `MissingObject` if there is none."""

    @abstractmethod
    def read_array(self, key: str, n_bytes: int | None = None) -> Bytes:
        """Return the object as a fresh aligned array, shape (size,), or its beginning.

        An object shorter than `n_bytes` comes as it is: no more memory is taken than there
        are bytes, whatever a manifest claims.
        """

    def map_array(self, key: str) -> Bytes:
        """Content of an object, mapped into memory where that is possible; not to be written."""
        return self.read_array(key)

    @abstractmethod
    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)``, cut off at the object's end."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return the size in bytes, or None if there is no such object."""

    @abstractmethod
    def write(self, key: str, *buffers: Any) -> None:
        """Write or replace an object, whole or not at all."""

    def jot(self, key: str, *buffers: Any) -> None:
        """Write or replace an object that a power cut may damage: who reads it verifies it.

        Whoever dies in the middle of it leaves nothing, as with `write`.
        """
        self.write(key, *buffers)

    @abstractmethod
    def create(self, key: str, *buffers: Any) -> bool:
        """Write an object unless the name is taken; return whether this call did.

        Of several writers exactly one succeeds. Over a network, False may also mean that
        this very call succeeded and the answer was lost: who needs to know writes a token.
        """

    def copy(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Give objects further names, pairs of old and new; what had a new name loses it.

        No content passes through this process where the storage can do without. An object is
        never changed in place, so that it does not matter whether both names share it.
        """
        for source, target in pairs:
            self.write(target, self.read(source))

    @abstractmethod
    def list(self, prefix: str = "") -> Keys:
        """Return the sorted keys of all objects below ``prefix/``, leftovers not shown."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of all objects below ``prefix/``, by key."""
        found = ((key, self.size(key)) for key in self.list(prefix))
        return {key: size for key, size in found if size is not None}

    @abstractmethod
    def _delete(self, key: str) -> None: ...

    @abstractmethod
    def _delete_tree(self, prefix: str) -> None: ...

    def _missing(self, key: str) -> MissingObject:
        hint = "The store is incomplete; restore it from a copy or make it again."
        return MissingObject(self.where(key), "an object of the store", "nothing there", hint)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


def open_objects(url: str | os.PathLike[str]) -> Objects:
    """Return a handle on the objects below a local path or a URL; nothing is made yet.

    Parameters
    ----------
    url
        A path, ``file://``, ``memory://``, ``s3://bucket/folder`` or any other URL that an
        installed fsspec driver knows. Credentials and endpoints come from the driver's own
        configuration (environment, profile, fsspec's configuration).

    Raises
    ------
    InputError
        If the driver for the URL is not known or not installed.
    """
    text = os.fspath(url)
    for scheme in ("file://", "local://"):
        text = text.removeprefix(scheme)
    if not text:
        raise InputError("store", "a path or URL", "an empty name", "Name a folder.")
    if "://" not in text and "::" not in text:
        if os.path.isfile(text):
            raise InputError(text, "a folder or a URL", "a file", "Name the folder of a store.")
        return LocalObjects(text)
    from distclust.store.remote import RemoteObjects, check_driver

    check_driver(text)
    return RemoteObjects(text)


class LocalObjects(Objects):
    """Objects as files of a folder."""

    path: Path

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(folder))
        self.url = str(self.path)

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalObjects, (self.url,)

    def _file(self, key: str) -> Path:
        check_key(key)
        return self.path / key

    @contextlib.contextmanager
    def _open(self, key: str) -> Iterator[Any]:
        check_key(key)
        try:
            file = open(f"{self.url}/{key}", "rb", buffering=0)  # noqa: SIM115 - closed below
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise self._missing(key) from None
        with file:
            yield file

    def read(self, key: str) -> bytes:
        """Return the whole object."""
        with self._open(key) as file:
            content: bytes = file.readall()
        return content

    def read_array(self, key: str, n_bytes: int | None = None) -> Bytes:
        """Return the object, or its beginning, read straight into a fresh array."""
        with self._open(key) as file:
            size = os.fstat(file.fileno()).st_size
            array = aligned_empty(size if n_bytes is None else min(n_bytes, size))
            return array[: _read_into(file, array)]

    def map_array(self, key: str) -> Bytes:
        """Content of a file, which the system reads when it is looked at."""
        with self._open(key) as file:
            if os.fstat(file.fileno()).st_size == 0:
                return np.empty(0, np.uint8)
            return np.asarray(np.memmap(file, np.uint8, "r"))

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)``, cut off at the object's end."""
        with self._open(key) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(start)
            array = np.empty(max(min(stop, size) - start, 0), np.uint8)
            return array[: _read_into(file, array)].tobytes()

    def size(self, key: str) -> int | None:
        """Return the size in bytes, or None."""
        try:
            status = os.stat(self._file(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if stat.S_ISDIR(status.st_mode) else status.st_size

    def write(self, key: str, *buffers: Any) -> None:
        """Write by way of a temporary file, synced, then renamed."""
        files.write_file(self._file(key), buffers)

    def jot(self, key: str, *buffers: Any) -> None:
        """Write by way of a temporary file, renamed; the system writes it out when it likes."""
        files.write_file(self._file(key), buffers, is_synced=False)

    def create(self, key: str, *buffers: Any) -> bool:
        """Write by way of a temporary file, synced, then linked to its name."""
        return files.create_file(self._file(key), buffers)

    def copy(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Link files to their new names."""
        for source, _ in pairs:
            if not self.exists(source):
                raise self._missing(source)
        files.link_files([(self._file(source), self._file(target)) for source, target in pairs])

    def list(self, prefix: str = "") -> Keys:
        """Return the sorted keys of all files below ``prefix/``; linked folders are left out."""
        if prefix:
            check_key(prefix)
        top = os.path.join(self.url, prefix)
        keys = []
        for folder, _, names in os.walk(top):
            inside = os.path.relpath(folder, self.url).replace(os.sep, "/")
            head = "" if inside == "." else f"{inside}/"
            keys += [head + name for name in names if not name.endswith(files.PARTIAL)]
        return sorted(keys)

    def sweep(self, seconds: float) -> None:
        """Remove temporary files older than `seconds`."""
        files.remove_leftovers(self.path, time.time() - seconds)

    def _delete(self, key: str) -> None:
        files.remove_file(self._file(key))

    def _delete_tree(self, prefix: str) -> None:
        files.remove_tree(self._file(prefix))


def aligned_empty(n_bytes: int) -> Bytes:
    """Return an uninitialised array that begins at a cache line, shape (n_bytes,)."""
    room = np.empty(n_bytes + _ALIGNMENT, np.uint8)
    offset = -room.ctypes.data % _ALIGNMENT
    return room[offset : offset + n_bytes]


def _read_into(file: Any, array: Bytes) -> int:
    """Fill `array` from an unbuffered file; return how many bytes there were."""
    done = 0
    while done < len(array):
        count = file.readinto(array[done:])  # one call reads 2 GB at most
        if not count:
            break
        done += count
    return done
