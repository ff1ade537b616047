"""Files that appear whole or not at all, and stay after a power cut.

Content goes to a temporary file in the same folder, is synced, and then takes its name in
one step: by a rename, which replaces, or by a hard link, which refuses to. The folder is
synced last, since the name lives there. Temporary files end in ``.partial``: what a killed
process leaves behind can be told from files, whoever lists a folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from distclust.errors import InputError, MissingFileError

if TYPE_CHECKING:
    import pandas as pd

PARTIAL = ".partial"

# What link() says on file systems without hard links (FAT, SMB, some mounts).
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}
# What fsync() says about folders where they cannot be synced.
_NO_SYNC = {errno.EINVAL, errno.EBADF, errno.EOPNOTSUPP, errno.ENOTSUP}


def write_file(path: Path, buffers: Iterable[Any], *, is_synced: bool = True) -> None:
    """Write buffers one after the other, so that `path` holds all of them or what it held.

    Missing folders are made. What the system refuses is an OSError about `path`, and the
    space is given back. What is not synced may be lost or damaged when the power fails.
    """
    with _beside(path) as temporary:
        _fill(temporary, path, buffers, is_synced)
        os.replace(temporary, path)
    if is_synced:
        sync_folder(path.parent)


def create_file(path: Path, buffers: Iterable[Any]) -> bool:
    """Write as `write_file` does unless `path` exists; return whether this call made it.

    Of any number of processes that try, one gets True, and nobody ever sees a part.
    """
    if path.exists():
        return False  # saves writing what would be thrown away
    with _beside(path) as temporary:
        _fill(temporary, path, buffers)
        is_ours = _claim(temporary, path)
        temporary.unlink(missing_ok=True)
    if is_ours:
        sync_folder(path.parent)
    return is_ours


def link_files(pairs: Sequence[tuple[Path, Path]]) -> None:
    """Give files further names, pairs of old and new; copies where there are no links.

    The folders of the new names are synced together in the end: the first sync makes all names
    durable, and the others find nothing left to do.
    """
    changed: dict[Path, None] = {}
    for source, target in pairs:
        try:
            changed |= dict.fromkeys([*_make_folders(target.parent), target.parent])
            _link(source, target)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(target)) from error
    for folder in changed:
        sync_folder(folder)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        if not os.path.samefile(source, target):
            os.unlink(target)
            os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with source.open("rb") as file, replacing(target) as copy:
            shutil.copyfileobj(file, copy, 2**20)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that takes the place of `path` only when all went well."""
    target = Path(os.path.realpath(path))  # a link keeps pointing at the file
    if not target.parent.is_dir():
        raise MissingFileError(
            os.fspath(path), "a folder to write into", "none there", "Create the folder first."
        )
    if target.is_dir():
        raise InputError(os.fspath(path), "a file to write", "a folder", "Name a file in it.")
    with _beside(target) as temporary:
        # Made by open, not by tempfile, so that the file gets the user's usual permissions.
        with open(temporary, "xb+") as file:
            yield file
            _sync_file(file)
        os.replace(temporary, target)
    sync_folder(target.parent)


def write_text(path: str | Path, text: str) -> None:
    """Write text as UTF-8 so that `path` holds all of it or what it held before."""
    with replacing(Path(path)) as file:
        file.write(text.encode("utf-8"))


def write_csv(path: str | Path, frame: pd.DataFrame) -> None:
    """Write a frame, without its index, as CSV."""
    write_text(path, frame.to_csv(index=False))


def remove_file(path: Path) -> None:
    """Remove a file for good; one that is absent already is no error."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)
        sync_folder(path.parent)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, leftovers too; links are not followed.

    Others may be removing it at the same time. A folder into which somebody still writes
    stays.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        _empty(folder)
        sync_folder(folder.parent)


def remove_leftovers(folder: Path, before: float) -> None:
    """Remove temporary files below `folder` that were last written before that time."""
    for inside, _, names in os.walk(folder):
        for name in names:
            if name.endswith(PARTIAL):
                with contextlib.suppress(FileNotFoundError):
                    path = os.path.join(inside, name)
                    if os.stat(path, follow_symlinks=False).st_mtime < before:
                        os.unlink(path)


def sync_folder(folder: Path) -> None:
    """Make names in `folder` durable, where the system can."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise OSError(error.errno, error.strerror, str(folder)) from error
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Name a temporary file in the folder of `target`; none is left when something fails."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}{PARTIAL}")
    try:
        yield temporary
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(temporary)
        if isinstance(error, OSError) and str(error.filename) in {"None", str(temporary)}:
            # A failing write names no file, and nobody knows the temporary one.
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise


def _fill(temporary: Path, target: Path, buffers: Iterable[Any], is_synced: bool = True) -> None:
    try:
        file = open(temporary, "xb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        _make_folder(target.parent)
        file = open(temporary, "xb")  # noqa: SIM115
    with file:
        for buffer in buffers:
            file.write(buffer)
        if is_synced:
            _sync_file(file)


def _sync_file(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, durable."""
    for above in _make_folders(folder):
        sync_folder(above)


def _make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; return where names are new, from the top down."""
    if folder.is_dir():
        return []
    changed = _make_folders(folder.parent)
    with contextlib.suppress(FileExistsError):  # somebody else was first
        os.mkdir(folder)
    return [*changed, folder.parent]


def _claim(temporary: Path, target: Path) -> bool:
    """Give a finished file its name unless that is taken, in one step."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        # Over NFS the answer to a link that was made may be lost, and the second try fails.
        return os.stat(temporary).st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _claim_without_links(temporary, target)
    return True


def _claim_without_links(temporary: Path, target: Path) -> bool:
    """Give the name under a lock on the folder, which a killed process lets go of.

    Safe among the processes that see each other's locks: those of one machine, and of
    several where the mount carries locks to its server, as SMB and NFS do by default.
    Writing into a file opened exclusively would not be: a killed writer leaves a part.
    """
    if os.name == "nt":
        try:
            os.rename(temporary, target)  # refuses an existing name there
        except FileExistsError:
            return False
        return True
    import fcntl

    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if target.exists():
            return False
        os.replace(temporary, target)
        return True
    finally:
        os.close(descriptor)  # lets the lock go


def _empty(folder: Path) -> None:
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                _empty(Path(entry.path))
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
