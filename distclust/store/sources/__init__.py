"""Where rows come from: files of many formats, other stores, and Python itself.

``open_source`` finds the format; every format is a module with one function

    make_source(files, options) -> Source

where `files` is a tuple of `SourceFile` (for ``stores`` the URL, for ``iterators`` the
object itself). Formats are imported when they are needed.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Sequence
from typing import Any, cast

from distclust.errors import InputError
from distclust.store.sources.base import Expected, Prepared, Scratch, Source, SourceOptions
from distclust.store.sources.files import SourceFile, file_system, find_files, is_url

__all__ = [
    "FORMATS",
    "Expected",
    "Prepared",
    "Scratch",
    "Source",
    "SourceFile",
    "SourceOptions",
    "find_files",
    "is_store",
    "open_files",
    "open_source",
]

# name of a format -> its module and the suffixes it is known by
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "csv": ("delimited", (".csv", ".csv.gz")),
    "tsv": ("delimited", (".tsv", ".tsv.gz")),
    "parquet": ("arrow", (".parquet", ".pq")),
    "arrow": ("arrow", (".arrow", ".feather", ".ipc", ".arrows")),
    "npy": ("arrays", (".npy",)),
    "npz": ("arrays", (".npz",)),
    "mtx": ("matrix_market", (".mtx", ".mtx.gz")),
    "svmlight": (
        "svmlight",
        (".svm", ".svmlight", ".libsvm", ".svm.gz", ".svmlight.gz", ".libsvm.gz"),
    ),
    "text": ("text", (".txt", ".txt.gz")),
    "jsonl": ("text", (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")),
    "zarr": ("stores", (".zarr",)),
    "h5ad": ("stores", (".h5ad",)),
}

_STORES = ("zarr", "h5ad")
# objects that make a folder a Zarr store rather than a folder of files
_STORE_MARKS = ("zarr.json", ".zgroup", ".zarray", ".distclust")


def open_source(spec: Any, options: SourceOptions | None = None) -> Source:
    """Return the source that `spec` names; nothing but names and sizes is read.

    Parameters
    ----------
    spec
        A path, a folder, a glob or a URL, or a list of these, all of one format; a Zarr
        store; or an iterable of blocks of rows (arrays, frames, sparse matrices, or pairs
        of row ids and such a block).
    options
        How to read it.

    Raises
    ------
    MissingFileError
        If nothing is there.
    InputError
        If its format is unknown, or if several formats are mixed.
    """
    options = options or SourceOptions()
    if options.format is not None and options.format not in FORMATS:
        known = ", ".join(FORMATS)
        raise InputError("format", f"one of {known}", repr(options.format), "Choose one of them.")
    if isinstance(spec, (str, os.PathLike)):
        name = os.fspath(spec)
        if is_store(name, options.format):
            return _make("stores", name, options)
    elif not _is_list_of_paths(spec):
        return _make("iterators", spec, options)
    return open_files(find_files(spec), options)


def open_files(files: Sequence[SourceFile], options: SourceOptions) -> Source:
    """Return the source over files that were found before, all of one format.

    Raises
    ------
    InputError
        If their format is unknown, or if several formats are mixed.
    """
    return _make(_format_module(tuple(files), options), tuple(files), options)


def format_of(file: SourceFile) -> str:
    """Return the name of the format that a file's suffix stands for.

    Raises
    ------
    InputError
        If there is none.
    """
    name = file.name.lower()
    for known, (_, suffixes) in FORMATS.items():
        if name.endswith(suffixes):
            return known
    known_ends = ", ".join(suffix for _, suffixes in FORMATS.values() for suffix in suffixes)
    hint = "Name the format, or save the rows in one of these forms."
    raise InputError(file.url, f"a file ending in {known_ends}", repr(file.name), hint)


def _make(module: str, what: Any, options: SourceOptions) -> Source:
    options = _with_rule(options)
    maker = importlib.import_module(f"distclust.store.sources.{module}").make_source
    source = cast("Source", maker(what, options))
    if options.binarise is None:
        return source
    from distclust.store.sources.binarise import BinarisedSource

    return BinarisedSource(source, options)


def _with_rule(options: SourceOptions) -> SourceOptions:
    """Return the options with the rule of the store that rows are to join, if it has one."""
    if options.expected is None:
        return options
    from distclust.store.sources.binarise import FACT

    known = options.expected.facts.get(FACT)
    if options.binarise is None:
        return dataclasses.replace(options, binarise=known["rule"] if known else None)
    if known is None or known["rule"] != options.binarise:
        expected = f"the rule {known['rule']!r} of the store" if known else "none, as in the store"
        hint = "Leave --binarise out: rows that join a store are turned as it was."
        raise InputError("binarise", expected, repr(options.binarise), hint)
    return options


def _is_list_of_paths(spec: Any) -> bool:
    is_list = isinstance(spec, Sequence) and len(spec) > 0
    return is_list and all(isinstance(one, (str, os.PathLike)) for one in spec)


def is_store(name: str, form: str | None = None) -> bool:
    """Whether a path or URL is a store rather than files; `form` is the format, if known."""
    if form is not None:
        return form in _STORES
    if name.lower().rstrip("/").endswith((".zarr", ".h5ad")):
        return True
    if not is_url(name):
        return any(os.path.exists(os.path.join(name, mark)) for mark in _STORE_MARKS)
    system, path = file_system(name)
    return any(system.exists(f"{path.rstrip('/')}/{mark}") for mark in _STORE_MARKS)


def _format_module(files: tuple[SourceFile, ...], options: SourceOptions) -> str:
    """Return the one module that reads all the files."""
    if options.format is not None:
        return FORMATS[options.format][0]
    first = format_of(files[0])
    for file in files[1:]:
        if format_of(file) != first:
            hint = "Ingest them one after another, or name the files of one format."
            raise InputError(file.url, f"{first} as {files[0].url} is", format_of(file), hint)
    return FORMATS[first][0]
