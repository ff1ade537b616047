"""Stores of other programs behind the face of our own: to be read, not to be changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from distclust.store.foreign import open_foreign
from distclust.store.listing import list_objects
from distclust.store.matrix import Column, Matrix, Profile
from distclust.store.matrix_store import MatrixStore
from distclust.store.objects import Objects
from distclust.store.segments import CodecName, IdsKind, LayoutName, ObsKind


class ForeignStore(MatrixStore):
    """An AnnData or plain Zarr store as it is; whatever would change it is refused.

    Its fingerprint is made of names, sizes and times: without checksums nobody can tell
    whether the values are the ones that were written.
    """

    def __init__(self, objects: Objects) -> None:
        self._opened = None
        self._matrix = open_foreign(objects)
        self._listing = list_objects(objects.url)
        self.url = objects.url
        self.generation = 0
        self.fingerprint = self._listing.stamp

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and of features."""
        return self._matrix.shape

    @property
    def columns(self) -> tuple[Column, ...]:
        """Name and meaning of every feature."""
        return self._matrix.columns

    @property
    def facts(self) -> Mapping[str, Any]:
        """Nothing was learned."""
        return {}

    @property
    def layout(self) -> LayoutName:
        """How rows are stored."""
        return "csr" if self._matrix.is_sparse else "dense"

    @property
    def codec(self) -> CodecName:
        """As a rule other programs compress."""
        return "packed"

    @property
    def ids_kind(self) -> IdsKind:
        """Whether row ids are whole numbers or text."""
        return "integer" if self._matrix.read(0, 1).ids.dtype.kind in "iu" else "text"

    @property
    def obs_kinds(self) -> dict[str, ObsKind]:
        """Kinds of the annotations of rows, by name."""
        return dict(self._matrix.obs_kinds)

    @property
    def size_bytes(self) -> int:
        """Bytes of all objects."""
        return self._listing.n_bytes

    def matrix(self) -> Matrix:
        """Return the rows as a matrix."""
        return self._matrix

    @contextlib.contextmanager
    def reading(self) -> Iterator[Matrix]:
        """Give the rows; nobody can be kept from removing them."""
        yield self._matrix

    def health(self) -> str:
        """Say that the values cannot be verified."""
        return self._matrix.health

    def _known_profiles(self, with_deleted: bool) -> Iterable[Profile]:
        return ()
