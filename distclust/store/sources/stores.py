"""Stores as sources: our own, AnnData's ``.zarr`` and ``.h5ad``, and plain Zarr arrays.

They can be read from anywhere, so nothing is spooled. Of our own stores the live rows of the
present generation are read, with ids, annotations, levels and learned facts: what comes out
is a clean copy. Whatever other programs wrote is checked as far as it can be.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from distclust.store.sources.base import Prepared, Scratch, Source, SourceOptions

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper


def make_source(url: str, options: SourceOptions) -> Source:
    """Return the source over a store."""
    from distclust.store.manifest import CLAIM, generations_of
    from distclust.store.objects import open_objects

    options.refuse_columns(url, "a store")
    if options.format == "h5ad" or url.lower().endswith(".h5ad"):
        from distclust.store.sources.h5ad import H5adSource

        return H5adSource(url, options)
    objects = open_objects(url)
    # A claim without a generation is an unfinished store, which must not be half read.
    is_ours = generations_of(objects).head() is not None or objects.exists(CLAIM)
    return OwnSource(url, options) if is_ours else ForeignSource(url, options)


class OwnSource(Source):
    """The present generation of one of our stores."""

    def __init__(self, url: str, options: SourceOptions) -> None:
        from distclust.store.matrix_store import open_store

        self.name = url
        self._options = options
        self._store = open_store(url)

    def identity(self) -> dict[str, Any]:
        """Return the fingerprint of the rows, and the options."""
        fingerprint = self._store.fingerprint
        return {"store": self.name, "fingerprint": fingerprint, "options": self._options.identity()}

    def held(self) -> contextlib.AbstractContextManager[object]:
        """Keep `gc` from removing the rows while the context is open."""
        return self._store.matrix().held()

    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Return the live rows."""
        from distclust.store.generation import open_generation
        from distclust.store.objects import open_objects

        store = self._store
        rows = open_generation(open_objects(store.url), store.generation).rows()
        return Prepared(rows, store.columns, store.obs_kinds, store.ids_kind, facts=store.facts)


class ForeignSource(Source):
    """A Zarr store of another program."""

    def __init__(self, url: str, options: SourceOptions) -> None:
        from distclust.store.foreign import open_foreign

        self.name = url
        self._options = options
        self._matrix = open_foreign(url, missing_chunks=options.missing_chunks)

    def identity(self) -> dict[str, Any]:
        """Return sizes and times of all its objects, and the options."""
        from distclust.store.listing import list_objects

        stamp = list_objects(self.name).stamp
        return {"zarr": self.name, "stamp": stamp, "options": self._options.identity()}

    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Return the rows as they lie."""
        matrix = self._matrix
        is_counted = matrix.read(0, 1).ids.dtype.kind in "iu"
        return Prepared(
            matrix,
            matrix.columns,
            matrix.obs_kinds,
            "integer" if is_counted else "text",
            has_ids=not is_counted,
            notes=("The values cannot be verified: no checksums came with them.",),
        )
