"""Entries of a matrix, given in any order, become rows in bounded memory.

Entries come in runs, one a part of a file. A run is ordered by row and has an index: the rows
of the matrix fall into at most 4,096 groups, and the index tells where each group begins. All
indexes together say how many entries a group has; so the matrix is cut into bands of groups
that fit in memory, and each band reads its own stretch of every run. Sums over the entries
before each group tell whether a stretch is what was written.

Within a row entries stay in the order they came in, so that duplicates add up to the same sum
wherever runs and bands are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.store.matrix import canonical_csr
from distclust.store.rows import Rows
from distclust.store.sources.flat import flatten_csr, rebuild_csr
from distclust.store.sources.prepare import first_rows
from distclust.store.sources.spool import Parsed, Piece, PiecedRows, Spool

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper
    from distclust.store.sources.base import Scratch

Array: TypeAlias = npt.NDArray[Any]

_GROUPS = 4096
_BAND_ENTRIES = 2**21
_BAND_ROWS = 2**20  # empty rows take memory too


@dataclass(frozen=True)
class Frame:
    """The matrix that entries belong to.

    Attributes
    ----------
    n_rows, n_features
        Its shape, each below 2**31.
    dtype
        Name of the type of its values. Booleans are true wherever there is an entry.
    is_sparse
        Whether places without an entry are the rule.
    """

    n_rows: int
    n_features: int
    dtype: str
    is_sparse: bool

    @property
    def group_rows(self) -> int:
        """Rows in every group but the last."""
        return max(-(-self.n_rows // _GROUPS), 1)

    @property
    def group_edges(self) -> Array:
        """First row of every group and the row after the last, shape (n_groups + 1,)."""
        n_groups = -(-self.n_rows // self.group_rows)
        edges: Array = np.arange(n_groups + 1) * self.group_rows
        return np.minimum(edges, self.n_rows)

    @property
    def entry(self) -> np.dtype[Any]:
        """Type of an entry; booleans have no value of their own."""
        places: list[Any] = [("row", np.int32), ("column", np.int32)]
        return np.dtype(places if self.dtype == "bool" else [*places, ("value", self.dtype)])


@dataclass(frozen=True)
class _Band:
    """Rows ``[start, stop)``, and where the stretch of each run begins, ends, and its sum."""

    start: int
    stop: int
    stretches: list[tuple[int, int, int]]


def make_run(rows: Array, columns: Array, values: Array | None, frame: Frame) -> dict[str, Array]:
    """Return the arrays of a run.

    Parameters
    ----------
    rows, columns
        Places of the entries, from 0, shape (n,).
    values
        Shape (n,); None for booleans.
    frame
        The whole matrix.
    """
    order = _stable_order(rows)
    entries = np.empty(len(rows), frame.entry)
    entries["row"], entries["column"] = rows[order], columns[order]
    if values is not None:
        entries["value"] = values[order]
    index = np.searchsorted(entries["row"], frame.group_edges)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(_weights(entries))])[index]
    return {"entries": entries, "index": np.stack([index.astype(np.uint64), sums])}


def _weights(entries: Array) -> Array:
    """Return one 64-bit number an entry; any bit that is turned changes their sum."""
    words = entries.view(np.uint64).reshape(len(entries), entries.itemsize // 8)
    weights: Array = words.sum(axis=1, dtype=np.uint64)
    return weights


def _stable_order(rows: Array) -> Array:
    # Numbers that differ are sorted several times faster than numpy's stable sort.
    keys = (rows.astype(np.int64) << 32) | np.arange(len(rows))
    keys.sort()
    return keys & 0xFFFFFFFF


def gather_runs(
    runs: Spool, pieces: Sequence[Piece], frame: Frame, *, scratch: Scratch, mapper: Mapper
) -> PiecedRows:
    """Return the rows of all runs together; what the scratch holds already is kept.

    Rows are numbered from 0. Entries at one place add up.
    """
    spool = Spool(scratch.below("bands"))
    bands = list(_cut_bands(runs, pieces, frame))
    shared = (runs, tuple(pieces), frame)
    filled = tuple(spool.fill(_gather, bands, *shared, mapper=mapper, stage="sorting"))
    counts = [piece.n_rows for piece in filled]
    load = _LoadBand(spool, filled, first_rows(counts), frame)
    return PiecedRows(counts, frame.n_features, frame.is_sparse, np.dtype(frame.dtype), load)


def _cut_bands(runs: Spool, pieces: Sequence[Piece], frame: Frame) -> Iterator[_Band]:
    edges = frame.group_edges
    index = np.zeros((len(pieces), 2, len(edges)), np.uint64)
    for i, piece in enumerate(pieces):
        index[i] = runs.array(piece, "index")
    before = index[:, 0].sum(axis=0).astype(np.int64)  # entries before every group
    first = 0
    while first < len(edges) - 1:
        # as many groups as fit, but at least one
        by_entries = np.searchsorted(before, before[first] + _BAND_ENTRIES, side="right") - 1
        by_rows = np.searchsorted(edges, edges[first] + _BAND_ROWS, side="right") - 1
        last = max(min(int(by_entries), int(by_rows)), first + 1)
        starts, stops = index[:, 0, first].tolist(), index[:, 0, last].tolist()
        sums = (index[:, 1, last] - index[:, 1, first]).tolist()
        stretches = list(zip(starts, stops, sums, strict=True))
        yield _Band(int(edges[first]), int(edges[last]), stretches)
        first = last


def _gather(band: _Band, runs: Spool, pieces: Sequence[Piece], frame: Frame) -> Parsed:
    import scipy.sparse

    entries = np.concatenate([np.empty(0, frame.entry), *_read(band, runs, pieces, frame)])
    rows, columns = entries["row"] - np.int32(band.start), entries["column"]
    values = np.ones(len(rows), np.bool_) if frame.dtype == "bool" else entries["value"]
    shape = (band.stop - band.start, frame.n_features)
    if frame.is_sparse:
        csr = scipy.sparse.csr_array((values, (rows, columns)), shape=shape)
        return Parsed(shape[0], flatten_csr(canonical_csr(csr)))
    dense = np.zeros(shape, frame.dtype)
    dense[rows, columns] = values
    return Parsed(shape[0], {"values": dense})


def _read(band: _Band, runs: Spool, pieces: Sequence[Piece], frame: Frame) -> Iterator[Array]:
    """Yield the band's stretch of every run, checked."""
    for piece, (start, stop, expected) in zip(pieces, band.stretches, strict=True):
        if start == stop:
            continue
        entries = runs.stretch(piece, "entries", start, stop).view(frame.entry)
        if int(_weights(entries).sum(dtype=np.uint64)) != expected:
            raise runs.damaged(piece.number)
        yield entries


@dataclass(frozen=True)
class _LoadBand:
    """Reads all rows of a band."""

    spool: Spool
    pieces: Sequence[Piece]
    starts: Sequence[int]
    frame: Frame

    def __call__(self, number: int) -> Rows:
        piece, start = self.pieces[number], self.starts[number]
        arrays = self.spool.arrays(piece)
        ids = np.arange(start, start + piece.n_rows)
        if self.frame.is_sparse:
            return Rows(rebuild_csr(arrays, self.frame.n_features), ids)
        return Rows(arrays["values"], ids)
