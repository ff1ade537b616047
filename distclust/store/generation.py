"""One generation of a matrix store, opened: its rows by stored position.

Opening reads the manifest and what it names beside the arrays; rows are read and verified
when they are asked for. A generation never changes, so that its handle is a consistent view
whatever is published after it. It pickles as a name and is opened once a process.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import StoreError
from distclust.seeding import Keys
from distclust.store.columns import Features
from distclust.store.ids import StoredIds, cut_blocks, starts_of
from distclust.store.ledger import Record
from distclust.store.manifest import (
    Manifest,
    SegmentEntry,
    features_key,
    read_generation,
    read_part,
    tombstones_key,
)
from distclust.store.matrix import Block, block_dtype, block_rows_for, slice_csr
from distclust.store.objects import Objects, open_objects
from distclust.store.resident import Resident
from distclust.store.row_views import KeptRows, join_values, live_mask
from distclust.store.rows import Rows, RowSource
from distclust.store.segments import CompactBlock, Segment, SegmentReader

Array: TypeAlias = npt.NDArray[Any]
Positions: TypeAlias = npt.NDArray[np.int64]

_CUT_BLOCKS = 4  # blocks kept in memory that belong to two logical blocks each


class Generation:
    """Rows and features of one generation.

    Attributes
    ----------
    objects
        Where the store lies.
    number, digest
        Place in the ledger, and what tells it from another of the same number.
    manifest
        What it consists of.
    """

    def __init__(self, objects: Objects, record: Record, manifest: Manifest) -> None:
        self.objects = objects
        self.number = record.number
        self.digest = record.digest
        self.manifest = manifest
        self._compact: Resident[CompactBlock] = Resident(_bytes_of)
        self._cut_block = functools.lru_cache(_CUT_BLOCKS)(self._read_block)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_once, (self.objects.url, self.number, self.digest)

    @functools.cached_property
    def features(self) -> Features:
        """Columns, and facts that were learned from the first rows."""
        part = self.manifest.features
        key = features_key(part)
        features = Features.decode(
            read_part(self.objects, key, part.digest), self.objects.where(key)
        )
        if len(features.columns) != self.manifest.n_features:
            raise self._contradiction(key, f"{len(features.columns)} features")
        return features

    @functools.cached_property
    def tombstones(self) -> Positions:
        """Sorted stored positions of deleted rows, shape (n_deleted,)."""
        part = self.manifest.tombstones
        if part is None:
            return np.empty(0, np.int64)
        key = tombstones_key(part)
        content = read_part(self.objects, key, part.digest)
        if len(content) != 8 * self.manifest.n_deleted:
            raise self._contradiction(key, f"{len(content)} bytes")
        positions = np.frombuffer(content, "<i8").astype(np.int64)
        if (np.diff(positions, prepend=-1) <= 0).any() or positions[-1] >= self.manifest.n_stored:
            raise self._contradiction(key, "other positions")
        return positions

    @functools.cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments' tables, in the order of their rows."""
        return tuple(self.read_table(entry) for entry in self.manifest.segments)

    def read_table(self, entry: SegmentEntry) -> Segment:
        """Return what the chunks of one of its segments must be."""
        content = read_part(self.objects, entry.table, entry.digest)
        segment = Segment.decode(content, self.objects.where(entry.table))
        spec, manifest = segment.spec, self.manifest
        found = (spec.n_rows, spec.n_features, spec.ids_kind, tuple(spec.obs))
        wanted = (entry.n_rows, manifest.n_features, manifest.ids_kind, manifest.obs)
        if found != wanted or (spec.layout != "dense") != manifest.is_sparse:
            raise self._contradiction(entry.table, "a segment of another kind")
        return segment

    def _contradiction(self, key: str, got: str) -> StoreError:
        expected = f"what generation {self.number} says"
        hint = "Restore it from a copy, or roll back to an older generation."
        return StoreError(self.objects.where(key), expected, got, hint)

    @functools.cached_property
    def readers(self) -> tuple[SegmentReader, ...]:
        """Readers of the segments, in the order of their rows."""
        pairs = zip(self.manifest.segments, self.segments, strict=True)
        return tuple(SegmentReader(self.objects, entry.path, segment) for entry, segment in pairs)

    @functools.cached_property
    def _starts(self) -> Positions:
        return starts_of(self.readers)

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values in every block: what all segments fit into."""
        return block_dtype(_common_type([reader.dtype for reader in self.readers]))

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """A type that holds the values of every segment, narrower than blocks where it can be."""
        pairs = zip(self.segments, self.readers, strict=True)
        return _common_type(
            [
                # The compact layout keeps whole numbers, whatever type they came in.
                reader.dtype if segment.spec.layout == "compact" else np.dtype(segment.spec.dtype)
                for segment, reader in pairs
            ]
        )

    @functools.cached_property
    def block_rows(self) -> int:
        """Stored positions in a logical block."""
        if self.segments:
            return self.segments[0].spec.block_rows
        return block_rows_for(self.manifest.n_features, self.manifest.is_sparse)

    @property
    def ids_of_rows(self) -> StoredIds:
        """Ids of the rows, in the form in which they are compared."""
        return StoredIds(self.readers, self.tombstones)

    def rows(self) -> RowSource:
        """Return the live rows, numbered on, as a source for another segment."""
        return KeptRows(_StoredRows(self), self.tombstones)

    def read(self, start: int, stop: int) -> Rows:
        """Return rows at stored positions ``[start, stop)``, deleted ones included."""
        obs = {name: self.obs(name, start, stop) for name, _ in self.manifest.obs}
        return Rows(self.values(start, stop), self.ids(start, stop), obs)

    def is_live(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Whether the rows at stored positions ``[start, stop)`` are not deleted."""
        return live_mask(self.tombstones, start, stop)

    def values(self, start: int, stop: int) -> Block:
        """Return values at stored positions ``[start, stop)``, deleted rows included."""
        parts = []
        for k, j, _, cut in cut_blocks(self.readers, self._starts, start, stop):
            first, last = self.readers[k].block_bounds(j)
            is_whole = cut.stop - cut.start == last - first
            # A block that is cut belongs to two logical blocks: the other comes soon.
            block = self._read_block(k, j) if is_whole else self._cut_block(k, j)
            parts.append(block if is_whole else _slice(block, cut))
        return join_values(parts, self.dtype)

    def compact_block(self, start: int, stop: int) -> CompactBlock | None:
        """Return values at stored positions ``[start, stop)`` if they are a compact block."""
        (first, *others) = cut_blocks(self.readers, self._starts, start, stop)
        k, j, _, cut = first
        reader = self.readers[k]
        a, b = reader.block_bounds(j)
        if others or cut.stop - cut.start != b - a or reader.spec.layout != "compact":
            return None
        return self._compact.get((k, j), lambda: reader.compact_block(j))

    def signature(self, start: int, stop: int) -> str:
        """Return what stored positions ``[start, stop)`` are: parts of segments, deleted rows."""
        parts = [
            f"{self.manifest.segments[k].content}:{j}:{cut.start}:{cut.stop}"
            for k, j, _, cut in cut_blocks(self.readers, self._starts, start, stop)
        ]
        dead = np.flatnonzero(~self.is_live(start, stop))
        digest = hashlib.blake2b("|".join(parts).encode(), digest_size=16)
        digest.update(dead.astype("<i8").tobytes())
        return digest.hexdigest()

    def ids(self, start: int, stop: int) -> Array:
        """Return row ids at stored positions ``[start, stop)``."""
        return self._gather(start, stop, SegmentReader.block_ids)

    def keys(self, start: int, stop: int) -> Keys:
        """Return row keys at stored positions ``[start, stop)``."""
        return self._gather(start, stop, SegmentReader.block_keys)

    def obs(self, name: str, start: int, stop: int) -> Array:
        """Return an annotation at stored positions ``[start, stop)``."""
        return self._gather(start, stop, lambda reader, j: reader.obs(name, j))

    def _gather(self, start: int, stop: int, read: Callable[[SegmentReader, int], Array]) -> Array:
        blocks = cut_blocks(self.readers, self._starts, start, stop)
        return np.concatenate([read(self.readers[k], j)[cut] for k, j, _, cut in blocks])

    def _read_block(self, k: int, j: int) -> Block:
        return self.readers[k].block(j)


class _StoredRows:
    """Rows of a generation by stored position, deleted ones included."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation

    @property
    def n_rows(self) -> int:
        return self._generation.manifest.n_stored

    @property
    def n_features(self) -> int:
        return self._generation.manifest.n_features

    @property
    def is_sparse(self) -> bool:
        return self._generation.manifest.is_sparse

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._generation.stored_dtype

    def read(self, start: int, stop: int) -> Rows:
        return self._generation.read(start, stop)


def _bytes_of(block: CompactBlock) -> int:
    counts = block.counts or ()
    return sum(part.nbytes for part in (*block.lengths, *block.ids, *counts))


def _common_type(dtypes: list[np.dtype[Any]]) -> np.dtype[Any]:
    return np.result_type(*dtypes) if dtypes else np.dtype(np.float64)


def _slice(block: Block, cut: slice) -> Block:
    if isinstance(block, np.ndarray):
        return block[cut]
    return slice_csr(block, cut.start, cut.stop)


def encode_positions(positions: Positions) -> bytes:
    """Return deleted positions as the content of a file: little-endian, 8 bytes each."""
    return positions.astype("<i8").tobytes()


def open_generation(objects: Objects, number: int) -> Generation:
    """Open one generation; `StoreError` if the store has no such."""
    return Generation(objects, *read_generation(objects, number))


def reopen(objects: Objects, number: int, digest: str) -> Generation:
    """Open a generation again; `StoreError` if it is gone, or another took its number."""
    generation = open_generation(objects, number)
    if generation.digest != digest:
        expected = f"the generation {number} that was opened"
        raise StoreError(objects.url, expected, "another one", "Open the store again.")
    return generation


@functools.lru_cache(8)
def _open_once(url: str, number: int, digest: str) -> Generation:
    """Open the generation that was pickled, once a process."""
    return reopen(open_objects(url), number, digest)
