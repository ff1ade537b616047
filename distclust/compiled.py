"""The one decorator for compiled functions, and where their machine code is kept.

Options, the same everywhere: ``nogil`` because Dask and the engine run several threads in
a process; no ``fastmath`` because minus infinity and NaN carry meaning in log space; no
``parallel`` because the engine owns the cores.

Numba's cache does not notice a change in a function imported from another file, so the
cache folder is named after the release and a hash of all compiled sources. The folder may
be read-only (a container image warmed at build time): it is then copied to a private
temporary folder. It may be impossible to create: functions are then compiled in each
process. Set ``DISTCLUST_CACHE_DIR`` to choose the folder.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import njit

from distclust._version import __version__

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile `function` in nopython mode with the project's options."""
    folder = cache_folder()
    # Numba fixes a function's cache folder when it is decorated; restoring the setting
    # leaves the functions of other packages alone.
    previous = numba.config.CACHE_DIR
    try:
        if folder is not None:
            numba.config.CACHE_DIR = str(folder)
        dispatcher: Function = njit(nogil=True, cache=folder is not None)(function)
    finally:
        numba.config.CACHE_DIR = previous
    return dispatcher


@functools.cache
def cache_folder() -> Path | None:
    """Folder for machine code, or None where nothing can be written."""
    wanted = _base_folder() / f"{__version__}-{_source_hash()}"
    if _is_writable(wanted):
        return wanted
    try:
        private = Path(tempfile.mkdtemp(prefix="distclust-compiled-"))
    except OSError:
        return None
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    if wanted.is_dir():
        shutil.copytree(wanted, private, dirs_exist_ok=True)
    return private


def _base_folder() -> Path:
    chosen = os.environ.get("DISTCLUST_CACHE_DIR")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("distclust"))


def _source_hash() -> str:
    package = Path(__file__).parent
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(package.rglob("*_numerics.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
