"""Bring rows into a store: open the source, parse and write in parallel, publish."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from distclust.engine.blocks import map_ordered
from distclust.errors import InputError
from distclust.validation import check_choice

if TYPE_CHECKING:
    from distclust.store.matrix_store import MatrixStore
    from distclust.store.sources import Prepared, Scratch, SourceOptions

How = Literal["create", "append", "replace"]


def ingest(
    source: Any,
    store: str | os.PathLike[str],
    *,
    how: How = "create",
    layout: Literal["auto", "dense", "csr", "compact"] = "auto",
    storage: Literal["auto", "hot", "packed"] = "auto",
    duplicates: Literal["refuse", "first", "last"] = "refuse",
    fresh: bool = False,
    **reading: Any,
) -> MatrixStore:
    """Bring rows into a store, complete or not at all.

    A run that was killed is taken up by the same call: parts that were read and blocks that
    were written stay. Work runs on the current Dask client, or on threads of this process.

    Parameters
    ----------
    source
        A path, a folder, a pattern or a URL, or a list of these (CSV, TSV, Parquet, Arrow,
        ``.npy``, ``.npz``, Matrix Market, svmlight, JSON lines, text, AnnData, Zarr, another
        store), or an iterable of arrays, sparse matrices, pandas tables or pairs of row ids
        and one of these.
    store
        Path or URL of the store.
    how
        Make the store, append rows whose ids are new, or also replace rows by id.
    layout
        ``compact`` for binary data and small counts, ``csr`` for other sparse data,
        ``dense``; by default as the data suggest. AnnData reads csr and dense.
    storage
        ``hot``: uncompressed, for local disks; ``packed``: compressed shards, for object
        stores; by default as the place suggests.
    duplicates
        Refuse ids that occur twice, or keep the first or last row.
    fresh
        Start over instead of taking up an unfinished run.
    reading
        How to read the source: fields of `distclust.store.sources.SourceOptions`, such as
        ``ids``, ``drop``, ``categories``, ``obs``, ``binarise``, ``min_df``.

    Returns
    -------
    The store as it is now.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> store = ingest(iter([np.eye(3), np.ones((2, 3))]), f"{folder}/five.zarr")
    >>> store.shape
    (5, 3)
    """
    from distclust.store.matrix_store import create_store, open_store
    from distclust.store.sources import open_source

    check_choice(how, "ingest: how", ("create", "append", "replace"))
    check_choice(layout, "ingest: layout", ("auto", "dense", "csr", "compact"))
    check_choice(storage, "ingest: storage", ("auto", "hot", "packed"))
    check_choice(duplicates, "ingest: duplicates", ("refuse", "first", "last"))
    if how != "create" and (fresh or layout != "auto" or storage != "auto"):
        got, hint = "layout, storage or fresh", "Leave them out: the store's own are kept."
        raise InputError(f"ingest: how={how!r}", "no options of a new store", got, hint)
    options = reading_options(reading)
    grown = None if how == "create" else open_store(store)
    if grown is not None:
        options = dataclasses.replace(options, expected=grown.expected())
    opened = open_source(source, options)
    told: dict[str, Any] = {"source": _name_of(source)}

    def prepare(scratch: Scratch) -> Prepared:
        prepared = opened.prepare(scratch, map_ordered)
        told["notes"] = list(prepared.notes)
        return prepared

    change: dict[str, Any] = {
        "duplicates": duplicates,
        "identity": opened.identity(),
        "tells_rows": opened.tells_rows,
        "provenance": told,
        "mapper": map_ordered,
    }
    with opened.held():
        if grown is None:
            return create_store(store, prepare, layout=layout, codec=storage, fresh=fresh, **change)
        return (grown.append if how == "append" else grown.replace)(prepare, **change)


def reading_options(reading: Mapping[str, Any], where: str = "ingest") -> SourceOptions:
    """Return how to read a source from options by name, as JSON may hold them.

    Raises
    ------
    InputError
        If there is no such option.
    """
    from distclust.store.sources import SourceOptions

    known = {field.name for field in dataclasses.fields(SourceOptions)} - {"expected"}
    for name in reading:
        if name not in known:
            hint = "Check the spelling."
            raise InputError(where, f"an option among {', '.join(sorted(known))}", name, hint)
    lists = {name: tuple(value) for name, value in reading.items() if isinstance(value, list)}
    return SourceOptions(**{**reading, **lists})


def _name_of(source: Any) -> Any:
    """Return what is kept of where rows came from: names, never rows."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, (list, tuple)) and all(isinstance(s, (str, os.PathLike)) for s in source):
        return [os.fspath(one) for one in source]
    return type(source).__name__
