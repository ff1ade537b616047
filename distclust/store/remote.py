"""Objects far away, through fsspec.

Writing asks two things of a storage: a put is whole, and a put can be made on condition that
the name is free. Drivers are listed by what they are known to do, since they cannot be
asked: s3fs sends ``If-None-Match``, gcsfs a generation of 0, and memory is guarded by a lock
here. The driver for HTTP takes the same option and ignores it, and fsspec's own default
looks before it writes. Storages that are not listed can be read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from distclust.errors import InputError
from distclust.store.files import PARTIAL
from distclust.store.objects import Bytes, Keys, Objects, aligned_empty, check_key

_S3 = {"s3", "s3a"}
_EXCLUSIVE = {"memory", "gs", "gcs", *_S3}
_MEMORY_LOCK = threading.RLock()


def check_driver(url: str) -> None:
    """Refuse a URL whose driver is unknown or not installed."""
    from fsspec.registry import get_filesystem_class, known_implementations

    protocol = _protocol(url)
    try:
        get_filesystem_class(protocol)
    except ImportError as error:
        package = known_implementations[protocol]["class"].split(".")[0]
        hint = f"Install the package {package}."
        raise InputError(url, f"a driver for {protocol}://", "none installed", hint) from error
    except ValueError as error:
        hint = "Give a local path or a URL such as s3://bucket/folder."
        raise InputError(url, "a path or a known kind of URL", f"{protocol}://", hint) from error


def _protocol(url: str) -> str:
    return re.split("://|::", url)[0]


class RemoteObjects(Objects):
    """Objects of a storage that fsspec has a driver for."""

    path = None

    def __init__(self, url: str) -> None:
        self.url = url if url.endswith("://") else url.rstrip("/")
        self._opened: tuple[int, Any, str] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteObjects, (self.url,)

    def _driver(self) -> tuple[Any, str]:
        """Return the driver of this process and the root as it names it.

        Opened late and once a process: drivers run an event loop in a thread of their own,
        which does not live on in a fork.
        """
        if self._opened is None or self._opened[0] != os.getpid():
            import fsspec
            from fsspec.asyn import AsyncFileSystem

            protocol = _protocol(self.url)
            options: dict[str, Any] = {}
            if issubclass(fsspec.get_filesystem_class(protocol), AsyncFileSystem):
                # Listings kept by a driver would show what was, not what is.
                options["use_listings_cache"] = False
            if protocol in _S3:
                # Otherwise s3fs asks for the size before every read, to read large objects
                # in several parts; chunks are read several at a time anyway.
                options["max_concurrency"] = 1
            driver, root = fsspec.core.url_to_fs(self.url, **options)
            self._opened = os.getpid(), driver, root.rstrip("/")
        return self._opened[1:]

    @contextlib.contextmanager
    def _at(self, key: str | None) -> Iterator[tuple[Any, str]]:
        """Give the driver and the full name of a key or of the root, and label its errors."""
        if key is not None:
            check_key(key)
        lock = _MEMORY_LOCK if self.url.startswith("memory:") else contextlib.nullcontext()
        try:
            with lock:
                driver, root = self._driver()
                yield driver, root if key is None else f"{root}/{key}"
        except _driver_errors() as error:
            raise OSError(errno.EIO, str(error), self.where(key or "")) from error
        except OSError as error:
            raise _labelled(error, self.where(key or "")) from error

    def read(self, key: str) -> bytes:
        """Return the whole object."""
        try:
            with self._at(key) as (driver, name):
                return bytes(driver.cat_file(name))
        except (FileNotFoundError, IsADirectoryError):
            raise self._missing(key) from None

    def read_array(self, key: str, n_bytes: int | None = None) -> Bytes:
        """Return the object, or its beginning, as a fresh array."""
        content = self.read(key) if n_bytes is None else self.read_range(key, 0, n_bytes)
        array = aligned_empty(len(content))
        array[:] = np.frombuffer(content, np.uint8)
        return array

    def read_range(self, key: str, start: int, stop: int) -> bytes:
        """Return bytes ``[start, stop)``, cut off at the object's end."""
        # Servers refuse a range that begins behind the end, each with an error of its own.
        size = self.size(key)
        if size is None:
            raise self._missing(key)
        if start >= min(stop, size):
            return b""
        try:
            with self._at(key) as (driver, name):
                return bytes(driver.cat_file(name, start=start, end=min(stop, size)))
        except (FileNotFoundError, IsADirectoryError):
            raise self._missing(key) from None

    def size(self, key: str) -> int | None:
        """Return the size in bytes, or None."""
        try:
            with self._at(key) as (driver, name):
                facts = driver.info(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if facts["type"] == "directory" else int(facts["size"])

    def write(self, key: str, *buffers: Any) -> None:
        """Write by a single put."""
        self._check_writable()
        with self._at(key) as (driver, name):
            driver.pipe_file(name, b"".join(buffers))

    def create(self, key: str, *buffers: Any) -> bool:
        """Write by a put on condition that the name is free."""
        self._check_writable()
        try:
            with self._at(key) as (driver, name):
                driver.pipe_file(name, b"".join(buffers), mode="create")
        except OSError:
            # Servers differ in how they say that the name is taken; the name itself tells.
            if self.exists(key):
                return False
            raise
        return True

    def copy(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Let the storage copy, several objects at a time."""
        self._check_writable()
        if not pairs:
            return
        for pair in pairs:
            for key in pair:
                check_key(key)
        with self._at(None) as (driver, root):
            sources, targets = (
                [f"{root}/{key}" for key in keys] for keys in zip(*pairs, strict=True)
            )
            driver.copy(sources, targets, on_error="raise")

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes of all objects below ``prefix/``, by one listing."""
        try:
            with self._at(prefix) as (driver, name):
                found = driver.find(name, detail=True)
                start = len(self._driver()[1]) + 1
        except FileNotFoundError:
            return {}
        return {path[start:]: int(facts["size"]) for path, facts in found.items()}

    def list(self, prefix: str = "") -> Keys:
        """Return the sorted keys of all objects below ``prefix/``."""
        return [key for key in self._find(prefix) if not key.endswith(PARTIAL)]

    def _find(self, prefix: str) -> Keys:
        try:
            with self._at(prefix or None) as (driver, name):
                found = driver.find(name)
                start = len(self._driver()[1]) + 1
        except FileNotFoundError:
            return []
        return sorted(path[start:] for path in found if path.startswith(f"{name}/"))

    def sweep(self, seconds: float) -> None:
        """Do nothing: unfinished uploads are no objects, and the bucket's rules end them."""

    def _delete(self, key: str) -> None:
        self._check_writable()
        with contextlib.suppress(FileNotFoundError), self._at(key) as (driver, name):
            driver.rm_file(name)

    def _delete_tree(self, prefix: str) -> None:
        keys = self._find(prefix)
        if not keys:
            return
        self._check_writable()
        with self._at(None) as (driver, root):
            driver.rm([f"{root}/{key}" for key in keys])

    def _check_writable(self) -> None:
        protocol = _protocol(self.url)
        if protocol not in _EXCLUSIVE:
            raise InputError(
                self.url,
                "a local path or an object store (s3, gs) to write to",
                f"{protocol}://, which cannot create a name exclusively",
                "Write to one of those and copy the finished store.",
            )


def _driver_errors() -> tuple[type[Exception], ...]:
    """What drivers raise beside OSError, of those that are loaded."""
    names = {"botocore.exceptions": "BotoCoreError", "aiohttp.client_exceptions": "ClientError"}
    return tuple(
        getattr(sys.modules[module], name)
        for module, name in names.items()
        if module in sys.modules
    )


def _labelled(error: OSError, where: str) -> OSError:
    """Return the same error with a number and a place; drivers often give neither."""
    by_type = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}
    number = error.errno or by_type.get(type(error), errno.EIO)
    return OSError(number, error.strerror or str(error), where)
