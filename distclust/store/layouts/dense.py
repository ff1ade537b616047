"""Dense values: one array ``X`` of whole rows, one chunk a block, in the type they came in."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from distclust.store.arrays import ArraySpec
from distclust.store.layouts.base import (
    Array,
    Layout,
    Piece,
    ValuesReader,
    changed,
)
from distclust.store.matrix import aligned
from distclust.store.rows import Rows, RowSource


class DenseLayout(Layout):
    """Writes ``X``."""

    @functools.cached_property
    def arrays(self) -> dict[str, ArraySpec]:
        """The one array."""
        spec = self.spec
        shape, chunks = (spec.n_rows, spec.n_features), (spec.chunk_rows, spec.n_features)
        return {"X": spec.array(shape, chunks, spec.dtype, "array")}

    def pieces(self, index: int, rows: Rows, source: RowSource) -> Iterator[Piece]:
        """The chunk of a block."""
        given: Any = rows.values
        values = given.toarray() if source.is_sparse else np.asarray(given)
        start, stop = self.spec.block_bounds(index)
        if values.shape != (stop - start, self.spec.n_features):
            raise changed(start, stop)
        yield "X", index, values.astype(self.spec.dtype, copy=False)


class DenseReader(ValuesReader):
    """Reads ``X``."""

    def block(self, index: int) -> Array:
        """Rows of a block; without a copy where type and codec allow."""
        start, stop = self._spec.block_bounds(index)
        return aligned(self._open("X").chunk(index)[: stop - start], self.dtype)
