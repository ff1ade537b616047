"""The rows of a store as a `Matrix`: logical blocks across segments, live rows only.

Block ``i`` holds the live rows of stored positions ``[iB, (i+1)B)``, so that appended rows
touch the last block only and a deleted row changes no block but its own. Blocks without
live rows are left out of the numbering.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.seeding import Keys
from distclust.store.generation import Generation
from distclust.store.layouts import CompactBlock
from distclust.store.matrix import Block, Column, Matrix, Profile
from distclust.store.row_views import join_values, keep_values
from distclust.store.work import reading

Array: TypeAlias = npt.NDArray[Any]


class StoredMatrix(Matrix):
    """Live rows of one generation of a store; pickles as the generation's name.

    Attributes
    ----------
    fingerprint
        Digest of everything that can be read from the matrix.
    """

    travels_by_name: ClassVar[bool] = True

    def __init__(self, generation: Generation) -> None:
        manifest = generation.manifest
        self.is_sparse = manifest.is_sparse
        super().__init__((manifest.n_rows, manifest.n_features), generation.dtype)
        self.block_rows = generation.block_rows
        self.fingerprint = manifest.fingerprint
        self._generation = generation

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredMatrix, (self._generation,)

    @property
    def generation(self) -> Generation:
        """What the rows are read from, by stored position."""
        return self._generation

    @property
    def url(self) -> str:
        """Where the store lies."""
        return self._generation.objects.url

    def held(self) -> contextlib.AbstractContextManager[object]:
        """Keep `gc` from removing the rows while the context is open."""
        return reading(self._generation.objects, self._generation.number)

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """Name and meaning of every feature."""
        return self._generation.features.columns

    @functools.cached_property
    def row_ids(self) -> Array:
        """Identifier of every row, shape (n_rows,); read when first asked for."""
        ids = [self.block_ids(index) for index in range(self.n_blocks)]
        return np.concatenate(ids) if ids else np.empty(0, object)

    @functools.cached_property
    def _numbering(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Logical blocks that have live rows, and their first rows with the end added."""
        n_stored = self._generation.manifest.n_stored
        edges = np.append(np.arange(0, n_stored, self.block_rows), n_stored)
        dead = np.diff(np.searchsorted(self._generation.tombstones, edges))
        live = np.diff(edges) - dead
        blocks = np.flatnonzero(live)
        return blocks, np.append(0, np.cumsum(live[blocks]))

    @property
    def n_blocks(self) -> int:
        """How many blocks have live rows."""
        return len(self._numbering[0])

    def block_bounds(self, index: int) -> tuple[int, int]:
        """First live row of block `index` and the row after its last."""
        if not 0 <= index < self.n_blocks:
            raise IndexError(f"block {index} of a matrix with {self.n_blocks} blocks")
        rows = self._numbering[1]
        return int(rows[index]), int(rows[index + 1])

    def block(self, index: int) -> Block:
        """Live rows of block `index`, read and verified."""
        span = self._span(index)
        values = self._generation.values(*span)
        is_live = self._generation.is_live(*span)
        return values if is_live.all() else keep_values(values, is_live)

    def compact_block(self, index: int) -> CompactBlock | None:
        """Rows of block `index` as they are stored: compact, in one piece and all live."""
        span = self._span(index)
        if not self._generation.is_live(*span).all():
            return None
        return self._generation.compact_block(*span)

    def block_ids(self, index: int) -> Array:
        """Identifiers of the rows of block `index`, shape (rows,)."""
        span = self._span(index)
        return self._generation.ids(*span)[self._generation.is_live(*span)]

    def block_keys(self, index: int) -> Keys:
        """64-bit keys of the rows of block `index`, shape (rows,)."""
        span = self._span(index)
        return self._generation.keys(*span)[self._generation.is_live(*span)]

    def block_obs(self, name: str, index: int) -> Array:
        """Annotation `name` of the rows of block `index`, shape (rows,)."""
        span = self._span(index)
        return self._generation.obs(name, *span)[self._generation.is_live(*span)]

    def block_signature(self, index: int) -> str:
        """Return what block `index` is made of; equal ones hold equal rows."""
        return self._generation.signature(*self._span(index))

    @property
    def known_profile(self) -> Profile | None:
        """Facts about every column, kept when rows were written; None if some were deleted."""
        if self._generation.manifest.n_deleted > 0 or not self._generation.segments:
            return None
        parts = (segment.profile for segment in self._generation.segments)
        return functools.reduce(Profile.combine, parts)

    def read_all(self) -> Block:
        """All live rows in memory as one block."""
        if self.n_blocks == 0:
            return self._empty()
        return join_values(list(self.blocks()), self.dtype)

    def _span(self, index: int) -> tuple[int, int]:
        """Stored positions of block `index`."""
        self.block_bounds(index)  # checks the index
        start = int(self._numbering[0][index]) * self.block_rows
        return start, min(start + self.block_rows, self._generation.manifest.n_stored)

    def _empty(self) -> Block:
        if not self.is_sparse:
            return np.empty(self.shape, self.dtype)
        import scipy.sparse

        return scipy.sparse.csr_array(self.shape, dtype=self.dtype)
