"""Files of a source: found by path, folder, glob or URL, opened and read by range."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from distclust.errors import InputError, MissingFileError


@dataclass(frozen=True)
class SourceFile:
    """One file with what tells it from a later version of itself.

    Attributes
    ----------
    url
        Path or URL.
    size
        Bytes.
    stamp
        What a file system keeps to tell versions apart. A copy may have been given the time
        of the original, so that of a local file also has what cannot be set.
    inside
        Its path below the folder that was named; empty if the file was named itself.
    """

    url: str
    size: int
    stamp: str
    inside: str = ""

    @property
    def is_local(self) -> bool:
        """Whether it is a path of this machine."""
        return not is_url(self.url)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.url.rstrip("/").rsplit("/", 1)[-1] if is_url(self.url) else Path(self.url).name

    def open(self) -> IO[bytes]:
        """Open it for reading; it can be seeked.

        Raises
        ------
        InputError
            If the file is no longer what it was when it was found.
        """
        if self.is_local:
            file = open(self.url, "rb")  # noqa: SIM115 - closed by the caller
            status = os.fstat(file.fileno())
            if (status.st_size, _stamp(status)) == (self.size, self.stamp):
                return file
            file.close()
            hint = "Start again, and leave the file alone meanwhile."
            raise InputError(self.url, "the file as it was at first", "a changed one", hint)
        system, path = file_system(self.url)
        return cast("IO[bytes]", system.open(path, "rb"))

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes ``[start, stop)``."""
        with self.open() as file:
            file.seek(start)
            return file.read(stop - start)

    def identity(self) -> list[Any]:
        """Return path, size and stamp as JSON."""
        return [self.url, self.size, self.stamp]


def name_files(files: Sequence[SourceFile]) -> str:
    """Return what to call files in messages about all of them."""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0].url}{more}"


def is_url(spec: str) -> bool:
    """Whether `spec` names another file system; ``C:`` is a drive, not a protocol."""
    return "://" in spec


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path in it."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        hint = "Install the package it names, or check the part before '://'."
        raise InputError(url, "a URL that fsspec can open", str(error), hint) from error
    return system, str(path)


def find_files(spec: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[SourceFile]:
    """Return the files that a path, a folder, a glob, a URL or a list of these names.

    Files of a folder or glob come in the order of their names; hidden files, and those
    that begin with an underscore (markers of other tools), are left out.

    Raises
    ------
    MissingFileError
        If there is nothing there or it cannot be read.
    """
    if isinstance(spec, (str, os.PathLike)):
        name = os.fspath(spec)
        found = _remote_files(name) if is_url(name) else _local_files(name)
        if not found:
            raise MissingFileError(name, "a file", "nothing there", "Check the path.")
        return found
    files = [file for one in spec for file in find_files(one)]
    if not files:
        raise InputError("source", "at least one file", "an empty list", "Name a file.")
    return files


def _is_visible(inside: str) -> bool:
    return not any(part.startswith((".", "_")) for part in inside.split("/"))


def _local_files(name: str) -> list[SourceFile]:
    if os.path.isdir(name):
        found = (os.path.join(folder, file) for folder, _, files in os.walk(name) for file in files)
        n_before = len(os.path.join(name, ""))
        inside = {path: path[n_before:].replace(os.sep, "/") for path in found}
        visible = sorted(path for path in inside if _is_visible(inside[path]))
        return [_local_file(path, inside[path]) for path in visible]
    if glob.has_magic(name) and not os.path.exists(name):
        paths = [path for path in glob.glob(name, recursive=True) if os.path.isfile(path)]
        return [_local_file(path) for path in sorted(paths)]
    return [_local_file(name)]


def _local_file(path: str, inside: str = "") -> SourceFile:
    # Files are not opened: there may be thousands, of which few are read.
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise MissingFileError(path, "a file", "nothing there", "Check the path.") from None
    except OSError as error:
        raise _unreadable(path, error.strerror) from error
    if not os.access(path, os.R_OK):
        raise _unreadable(path, os.strerror(errno.EACCES))
    return SourceFile(path, status.st_size, _stamp(status), inside)


def _unreadable(path: str, got: str | None) -> MissingFileError:
    return MissingFileError(path, "a readable file", got, "Check the permissions.")


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_ino}"


def _remote_files(url: str) -> list[SourceFile]:
    system, path = file_system(url)
    system.invalidate_cache()  # a driver may remember what was there
    if glob.has_magic(path) and not system.exists(path):
        listed = system.glob(path, detail=True)
        paths = [found for found in listed if listed[found]["type"] == "file"]
        return [_remote_file(system, found, listed[found]) for found in sorted(paths)]
    if system.isdir(path):
        # One listing tells all there is to know, without a question about every file.
        listed = system.find(path, detail=True)
        inside = {found: found.removeprefix(path.rstrip("/") + "/") for found in listed}
        visible = sorted(found for found in inside if _is_visible(inside[found]))
        return [_remote_file(system, path, listed[path], inside[path]) for path in visible]
    return [_remote_file(system, path, system.info(path))] if system.exists(path) else []


def _remote_file(system: Any, path: str, facts: Any, inside: str = "") -> SourceFile:
    stamps = (facts.get(key) for key in ("ETag", "etag", "mtime", "LastModified", "created"))
    stamp = next((str(stamp) for stamp in stamps if stamp is not None), "")
    return SourceFile(system.unstrip_protocol(path), int(facts["size"]), stamp, inside)
