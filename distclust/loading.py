"""Fitted models of any kind from a file or a results store."""

from __future__ import annotations

import os
from typing import Any

from distclust.store import read_archive


def load(path: str | os.PathLike[str]) -> Any:
    """Read a fitted model of any kind.

    Parameters
    ----------
    path
        A file that a model's ``save`` method wrote, or the path or URL of a results store,
        whose current version is read.

    Raises
    ------
    ModelFormatError
        If the file is truncated, altered, not a model, or of a newer format.
    MissingFileError
        If there is no such file.
    StoreError
        If there is no results store, or what it holds was altered.
    """
    from distclust.trees import load as load_tree

    is_file = isinstance(path, str | os.PathLike) and os.path.isfile(path)
    if is_file:
        from distclust.retrieval.persistence import KIND, from_archive

        archive = read_archive(path)
        if archive.kind == KIND:
            return from_archive(archive, os.fspath(path))
    return load_tree(path)
