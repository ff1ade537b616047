"""Small counts and binary values as 16-bit words, built for scanning.

A block is one chunk of ``X/words``: the lengths of its rows, then the ids of the columns
that are not zero. Where all values are ones that is everything; else ``X/counts`` holds the
values in the order of the ids.

Hot: ids are ranks of columns by falling frequency (``X/order``: rank to column), so that
whatever a scan looks up for frequent columns lies together in cache. Ranks are cut into
panels 65,535 wide, as many as there are columns in use. Inside a row and a panel ids follow
the order of columns: decoding one panel is a look-up without a sort, and sums over a row run
in the order of CSR.

Packed: ids are differences of columns (panels of columns). Measured on blocks of 16,384 rows
with Zipf-like columns, 20,000 features, 44 ones a row, in bits a nonzero and millions of
nonzeros decoded a second on one core (Blosc blocks; "delta" inside rows):

    =================  ============  ================  ==================
    codec              ranks         ranks, delta      columns, delta
    =================  ============  ================  ==================
    none               16.4          16.4              16.4
    zstd               12.6 at 530   9.7 at 480        12.2 at 540
    lz4, bitshuffle    14.6 at 1180  11.7 at 1020      **11.9 at 1030**
    lz4, shuffle       15.5 at 2350  11.1 at 1390      13.3 at 1570
    zstd, bitshuffle   13.0 at 290   9.3 at 290        11.0 at 250
    =================  ============  ================  ==================

Differences of ranks are smallest, but ranks have to be sorted back into columns. That takes
15 to 30 ns a nonzero, more than it takes to fetch the quarter of a byte that is saved from
20 MB/s on.

A block's chunk is a shard whose inner chunks stand one after the other from its beginning;
those past its last word are absent. So Zarr reads a plain array of equal rows, and no room is
lost on blocks with fewer ones than the fullest.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from distclust.store.arrays import ArraySpec
from distclust.store.codecs import Blosc, Chain, Crc32c
from distclust.store.layouts.base import (
    Array,
    Layout,
    OpenArray,
    Piece,
    SegmentSpec,
    ValuesReader,
    encoded,
)
from distclust.store.layouts.csr import trusted_csr
from distclust.store.rows import Rows, RowSource
from distclust.store.surveys import Survey
from distclust.store.zarr_metadata import refused

PANEL_WIDTH = 65_535  # as in _layout_numerics, which is imported late

_HOT_INNER = 2**14  # words; what the last inner chunk of a block may waste
_PACKED_INNER = 2**18


@dataclass(frozen=True, eq=False)
class CompactBlock:
    """Rows of a block as they are stored, for compiled scans.

    Attributes
    ----------
    n_rows, n_features
        The shape.
    lengths
        Ids in every row, uint16, shape (n_rows,), one array a panel.
    ids
        Ranks less 65,535 times the number of the panel, uint16, row after row, one array a
        panel. All are in range.
    counts
        Values in the order of `ids`, uint8 or uint16, one array a panel; None where all
        are ones.
    order
        Column of every rank, int32, shape (n_features,).
    """

    n_rows: int
    n_features: int
    lengths: tuple[Array, ...]
    ids: tuple[Array, ...]
    counts: tuple[Array, ...] | None
    order: Array


class CompactLayout(Layout):
    """Writes words, counts and the order of columns."""

    def __init__(self, spec: SegmentSpec, survey: Survey) -> None:
        super().__init__(spec, survey)
        self.is_ranked = spec.codec == "hot"
        n_used = int(np.count_nonzero(survey.profile.n_nonzero))
        self.n_rank_panels = max(-(-n_used // PANEL_WIDTH), 1)
        n_column_panels = -(-spec.n_features // PANEL_WIDTH)
        self.n_panels = self.n_rank_panels if self.is_ranked else n_column_panels
        self.nonzeros = np.diff(self.offsets)
        self.counts_dtype = counts_dtype(survey)

    @functools.cached_property
    def order(self) -> Array:
        """Column of every rank, shape (n_features,); columns of equal frequency as they are."""
        return np.argsort(-self.survey.profile.n_nonzero, kind="stable").astype(np.uint32)

    @functools.cached_property
    def rank(self) -> Array:
        """Rank of every column, shape (n_features,)."""
        rank = np.empty(len(self.order), np.int32)
        rank[self.order] = np.arange(len(rank), dtype=np.int32)
        return rank

    def n_words(self, index: int) -> int:
        """Words of a block."""
        start, stop = self.spec.block_bounds(index)
        return (stop - start) * self.n_panels + int(self.nonzeros[index])

    def group(self) -> dict[str, Any]:
        """All that is needed to decode the arrays."""
        return encoded(
            "distclust-compact",
            "0.1.0",
            shape=[self.spec.n_rows, self.spec.n_features],
            block_rows=self.spec.block_rows,
            panel_width=PANEL_WIDTH,
            n_panels=self.n_panels,
            ids="ranks" if self.is_ranked else "differences of columns",
        )

    @functools.cached_property
    def arrays(self) -> dict[str, ArraySpec]:
        """Words, counts unless all are ones, and the order of columns."""
        n_features = self.spec.n_features
        fullest = max(map(self.n_words, range(self.spec.n_blocks)))
        arrays = {
            "X/words": self._ragged(fullest, np.dtype(np.uint16)),
            "X/order": self.spec.array((n_features,), (n_features,), np.uint32),
        }
        if self.counts_dtype != np.bool_:
            arrays["X/counts"] = self._ragged(int(self.nonzeros.max()), self.counts_dtype)
        return arrays

    def _ragged(self, fullest: int, dtype: np.dtype[Any]) -> ArraySpec:
        """An array with a row a block, as wide as the fullest block."""
        inner = min(fullest, _HOT_INNER if self.is_ranked else _PACKED_INNER)
        width = -(-fullest // inner) * inner
        packed = (Blosc("lz4", 5, "bitshuffle", dtype.itemsize), Crc32c())
        chain = Chain(() if self.is_ranked else packed, inner=(1, inner))
        return ArraySpec((self.spec.n_blocks, width), (1, width), dtype, chain)

    def common_pieces(self) -> Iterator[Piece]:
        """The order of columns."""
        yield "X/order", 0, self.order

    def pieces(self, index: int, rows: Rows, source: RowSource) -> Iterator[Piece]:
        """Words and counts of a block."""
        block = self.csr(index, rows)
        has_counts = self.counts_dtype != np.bool_
        counts = (block.data if has_counts else block.data[:0]).astype(self.counts_dtype)
        pack = self.pack_ranks if self.is_ranked else self.pack_deltas
        words, counts = pack(block, counts)
        yield "X/words", index, words
        if has_counts:
            yield "X/counts", index, counts

    def pack_ranks(self, block: Any, counts: Array) -> tuple[Array, Array]:
        """Words of a CSR block, and its counts in their order."""
        from distclust.store import _layout_numerics as numerics

        n_panels = self.n_rank_panels
        return numerics.pack_ranks(block.indptr, block.indices, counts, self.rank, n_panels)

    def pack_deltas(self, block: Any, counts: Array) -> tuple[Array, Array]:
        """Words of a CSR block as differences, and its counts in their order."""
        from distclust.store import _layout_numerics as numerics

        return numerics.pack_deltas(block.indptr, block.indices, counts, self.n_panels)


def counts_dtype(survey: Survey) -> np.dtype[Any]:
    """Type of the values of blocks: bool where all are ones."""
    largest = survey.profile.maximum.max()
    return np.dtype(np.bool_ if largest <= 1 else np.uint8 if largest <= 255 else np.uint16)


class CompactReader(ValuesReader):
    """Reads blocks as they are stored, or as CSR."""

    def __init__(self, spec: SegmentSpec, survey: Survey, open_array: OpenArray) -> None:
        super().__init__(spec, survey, open_array)
        self._layout = CompactLayout(spec, survey)
        self.dtype = self._layout.counts_dtype
        self._has_counts = self.dtype != np.bool_

    @functools.cached_property
    def order(self) -> Array:
        """Column of every rank, int32, shape (n_features,)."""
        order = self._open("X/order").chunk(0)
        self._check(order.max() < self._spec.n_features, "a column that does not exist")
        return order.astype(np.int32)

    def compact_block(self, index: int) -> CompactBlock:
        """Rows of a block for compiled scans; without a copy if the codec is hot."""
        if self._layout.is_ranked:
            words, counts = self._read(index)
        else:
            block = self.block(index)
            words, counts = self._layout.pack_ranks(block, block.data[: self._n_counts(index)])
        n_rows = self._rows(index)
        starts = self._panels(words, n_rows, self._layout.n_rank_panels)
        lengths = tuple(words[start : start + n_rows] for start in starts[:-1])
        ids = _ids(words, starts, n_rows)
        self._check_ids(ids)
        split = None
        if self._has_counts:
            split = tuple(np.split(counts, np.cumsum([len(panel) for panel in ids])[:-1]))
        return CompactBlock(n_rows, self._spec.n_features, lengths, ids, split, self.order)

    def block(self, index: int) -> scipy.sparse.csr_array:
        """Rows of a block."""
        from distclust.store import _layout_numerics as numerics

        words, counts = self._read(index)
        n_rows, n_values = self._rows(index), int(self._layout.nonzeros[index])
        whole = np.int32 if n_values <= np.iinfo(np.int32).max else np.int64
        indptr, indices = np.empty(n_rows + 1, whole), np.empty(n_values, whole)
        merged = np.empty_like(counts)
        starts = self._panels(words, n_rows, self._layout.n_panels)
        panels = np.array(starts)
        if not self._layout.is_ranked:
            largest = numerics.unpack_deltas(words, counts, panels, indptr, indices, merged)
            self._check(largest < self._spec.n_features, "a column that does not exist")
        else:
            ids = _ids(words, starts, n_rows)
            self._check_ids(ids)
            if len(ids) == 1:
                merged = counts
                numerics.unpack_ranks(words[:n_rows], ids[0], self.order, indptr, indices)
            else:
                numerics.merge_ranks(words, counts, panels, self.order, indptr, indices, merged)
        data = merged if self._has_counts else ones(n_values)
        return trusted_csr(data, indices, indptr, self._spec.n_features)

    def _rows(self, index: int) -> int:
        start, stop = self._spec.block_bounds(index)
        return stop - start

    def _n_counts(self, index: int) -> int:
        return int(self._layout.nonzeros[index]) if self._has_counts else 0

    def _read(self, index: int) -> tuple[Array, Array]:
        """Words of a block, and its counts (none where all are ones)."""
        words = self._open("X/words").beginning(index, self._layout.n_words(index))
        if not self._has_counts:
            return words, words[:0]
        return words, self._open("X/counts").beginning(index, self._n_counts(index))

    def _panels(self, words: Array, n_rows: int, n_panels: int) -> list[int]:
        """Word at which every panel begins, and the end."""
        starts = [0]
        for _ in range(n_panels):
            lengths = words[starts[-1] : starts[-1] + n_rows]
            starts.append(starts[-1] + n_rows + int(lengths.sum(dtype=np.int64)))
        self._check(starts[-1] == len(words), "rows of another length")
        return starts

    def _check_ids(self, panels: Sequence[Array]) -> None:
        """Make sure that compiled code may look up every id."""
        for p, ids in enumerate(panels):
            width = min(PANEL_WIDTH, self._spec.n_features - p * PANEL_WIDTH)
            self._check(not len(ids) or ids.max() < width, "a column that does not exist")

    def _check(self, holds: bool, problem: str) -> None:
        if not holds:
            words = self._open("X/words")
            where = words.objects.where(words.path)
            raise refused(where, "words of the compact layout", problem)


def _ids(words: Array, starts: list[int], n_rows: int) -> tuple[Array, ...]:
    """Ids of every panel."""
    return tuple(words[a + n_rows : b] for a, b in itertools.pairwise(starts))


_ones = np.ones(2**20, np.bool_)
_ones.flags.writeable = False


def ones(n: int) -> Array:
    """Return `n` times True, shared by all blocks of patterns and not to be written into."""
    global _ones
    shared = _ones  # another thread may replace it
    if len(shared) < n:
        shared = np.ones(1 << n.bit_length(), np.bool_)
        shared.flags.writeable = False
        _ones = shared
    return shared[:n]
