"""Labels of all rows, as one Zarr array inside a version of results.

    versions/<id>/labels/zarr.json
    versions/<id>/labels/c/<i>          labels of rows [i, i + 1) * LABEL_CHUNK

Chunks are written where the rows are, by any number of workers and in any order, and then
adopted by the draft: nobody holds all labels. The seal of the version says what every chunk
must be; until then its own checksum does, so that a run that is taken up keeps those that are
there (`take_up_chunks`). The array does not say where its labels come from, a fit or a prediction:

    place = draft.place()
    spec = LabelsSpec(n_rows, n_labels)
    entries = (write_values_chunk(i, place, spec, labels_of(i)) for i in range(spec.n_chunks))
    adopt_labels(draft, spec, enumerate(entries))
    version = draft.publish()
    StoredLabels(store.url, version.id).read(0, 10)

Row i of the array is the i-th row of the matrix; row ids stay with the matrix.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError, StoreError
from distclust.store.arrays import METADATA, ArraySpec, ChunkTable, StoredArray
from distclust.store.changes import Changes
from distclust.store.codecs import Chain, Crc32c, Zstd
from distclust.store.codes import Codes, SpanBounds, read_range
from distclust.store.drafts import Draft, DraftPlace
from distclust.store.objects import Objects, open_objects
from distclust.store.versions import FileEntry, file_key, read_verified, read_version
from distclust.store.zarr_metadata import decode_json, encode_json, parse_array, refused

Array: TypeAlias = npt.NDArray[Any]

LABELS = "labels"
LABEL_CHUNK = 2**18  # rows

_CHAIN = Chain((Zstd(), Crc32c()))
_N_LABELS = "n_labels"  # attribute of the array


@dataclass(frozen=True)
class LabelsSpec:
    """What an array of labels is; follows from two numbers.

    Attributes
    ----------
    n_rows
        Number of rows.
    n_labels
        Labels are 0 to ``n_labels - 1``; not all of them need to occur.
    folder
        Name of the array within the version: a version may hold several.
    """

    n_rows: int
    n_labels: int
    folder: str = LABELS

    def __post_init__(self) -> None:
        if self.n_rows < 0 or not 0 <= self.n_labels <= 2**31:
            got = f"{self.n_rows} rows, {self.n_labels} labels"
            raise InputError("labels", "numbers from 0 on, at most 2**31 labels", got, "Count.")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the labels: the narrowest of uint8, uint16 and int32."""
        narrow = np.uint8 if self.n_labels <= 2**8 else np.uint16
        return np.dtype(narrow if self.n_labels <= 2**16 else np.int32)

    @property
    def array(self) -> ArraySpec:
        """The Zarr array."""
        attributes = {_N_LABELS: self.n_labels}
        return ArraySpec((self.n_rows,), (LABEL_CHUNK,), self.dtype, _CHAIN, attributes)

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return self.array.n_chunks

    def chunk_bounds(self, index: int) -> tuple[int, int]:
        """First row of a chunk and the row after its last."""
        return _chunk_bounds(self.array, index)

    def chunk_name(self, index: int) -> str:
        """Name of the file of a chunk within the version."""
        return f"{self.folder}/{self.array.key(index)}"


def write_chunk(
    index: int,
    place: DraftPlace,
    spec: LabelsSpec,
    codes: Codes,
    bounds: SpanBounds,
    label_of_code: Array,
) -> FileEntry:
    """Write one chunk of labels from the codes of a pass; return what it must be.

    Parameters
    ----------
    index
        Which chunk.
    place, spec
        Where the array goes and what it is.
    codes, bounds
        Codes of the rows, and the bounds of all spans or of those that hold rows of this
        chunk, see `distclust.store.codes.spans_between`.
    label_of_code
        Label of every code, shape (codes,).
    """
    start, stop = spec.chunk_bounds(index)
    found = read_range(codes, bounds, start, stop)
    _check_range(found, len(label_of_code), f"codes of rows {start:,} to {stop:,}")
    return write_values_chunk(index, place, spec, label_of_code[found])


def write_values_chunk(
    index: int, place: DraftPlace, spec: LabelsSpec, values: npt.ArrayLike
) -> FileEntry:
    """Write one chunk of labels, shape (rows of the chunk,); return what it must be."""
    labels = np.asarray(values)
    start, stop = spec.chunk_bounds(index)
    where = f"labels of rows {start:,} to {stop:,}"
    if labels.shape != (stop - start,) or labels.dtype.kind not in "iu":
        got = f"{labels.dtype} values of shape {labels.shape}"
        raise InputError(where, f"{stop - start:,} integers", got, "Pass one label a row.")
    _check_range(labels, spec.n_labels, where)
    content = spec.array.encode(labels.astype(spec.dtype))
    return place.write(spec.chunk_name(index), *content, is_recorded=False)


def _check_range(values: Array, n_values: int, where: str) -> None:
    least, largest = (int(values.min()), int(values.max())) if values.size else (0, -1)
    if least < 0 or largest >= n_values:
        expected, got = f"numbers from 0 to {n_values - 1:,}", f"{least:,} to {largest:,}"
        raise InputError(where, expected, got, "Number the groups from 0.")


def take_up_chunks(draft: Draft, spec: LabelsSpec) -> list[int]:
    """Adopt the chunks that an earlier process of the run wrote; return those that are missing.

    They follow from what the run is made from, so one that is whole is what it must be.
    """
    objects, folder = draft.place().objects, file_key(draft.id, spec.folder)
    written, lying = StoredArray(objects, folder, spec.array), set(objects.list(folder))
    for i in _missing_chunks(draft, spec):
        name = spec.chunk_name(i)
        if file_key(draft.id, name) in lying:
            with contextlib.suppress(StoreError):  # not whole: it is written again
                written.chunk(i)
                draft.adopt(name, FileEntry.of(written.content(i)))
    return _missing_chunks(draft, spec)


def _missing_chunks(draft: Draft, spec: LabelsSpec) -> list[int]:
    done = set(draft.names)
    return [i for i in range(spec.n_chunks) if spec.chunk_name(i) not in done]


def adopt_labels(draft: Draft, spec: LabelsSpec, chunks: Iterable[tuple[int, FileEntry]]) -> None:
    """Adopt chunks by number, each as it comes, and describe the array once all are there.

    Raises
    ------
    InputError
        If chunks are missing.
    ConflictError
        If another process took the run over, or sealed other labels.
    """
    for index, entry in chunks:
        draft.adopt(spec.chunk_name(index), entry)
    missing = _missing_chunks(draft, spec)
    if missing:
        got = f"{spec.n_chunks - len(missing):,}"
        raise InputError(spec.folder, f"{spec.n_chunks:,} chunks", got, "Write and pass all.")
    draft.write(f"{spec.folder}/{METADATA}", encode_json(spec.array.metadata()))


class StoredLabels:
    """Reads the labels in a version, each chunk checked against the seal; thread-safe.

    It pickles as names only and holds no lease: whoever reads a version that may be removed
    meanwhile keeps it open (`ResultsStore.open_version`).

    Parameters
    ----------
    objects
        The results store, or its path or URL.
    version_id
        Which version.
    folder
        Name of the array, see `LabelsSpec`.
    """

    def __init__(
        self,
        objects: Objects | str | os.PathLike[str],
        version_id: str,
        folder: str = LABELS,
    ) -> None:
        self.objects = objects if isinstance(objects, Objects) else open_objects(objects)
        self.version_id = version_id
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredLabels, (self.objects, self.version_id, self.folder)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self._array.spec.shape[0]

    @property
    def n_labels(self) -> int:
        """Labels are 0 to ``n_labels - 1``."""
        return int(self._array.spec.attributes[_N_LABELS])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the labels."""
        return self._array.spec.dtype

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return self._array.spec.n_chunks

    def chunk_bounds(self, index: int) -> tuple[int, int]:
        """First row of a chunk and the row after its last."""
        return _chunk_bounds(self._array.spec, index)

    def read_chunk(self, index: int) -> Array:
        """Return the labels of a chunk, shape (rows,).

        Raises
        ------
        StoreError
            If the chunk is missing or not what was sealed.
        """
        start, stop = self.chunk_bounds(index)
        return self._array.chunk(index)[: stop - start]

    def read(self, start: int, stop: int) -> Array:
        """Return the labels of rows ``[start, stop)``; as `read_chunk`."""
        if not 0 <= start <= stop <= self.n_rows:
            expected, got = f"rows from 0 to {self.n_rows:,}", f"{start:,} to {stop:,}"
            raise InputError(LABELS, expected, got, "Pass rows of the matrix.")
        return self._array.read(start, stop)

    def shares_chunk(self, other: StoredLabels, index: int) -> bool:
        """Whether a chunk is the same in both, rows and labels, as far as the seals tell."""
        ours, theirs = self._array, other._array
        assert ours.table is not None
        assert theirs.table is not None
        return (
            ours.spec.dtype == theirs.spec.dtype
            and self.chunk_bounds(index) == other.chunk_bounds(index)
            and ours.table.entry(index) == theirs.table.entry(index)
        )

    def is_like(self, spec: LabelsSpec) -> bool:
        """Whether a chunk of this array could be one of another, whatever rows there are."""
        return replace(self._array.spec, shape=spec.array.shape) == spec.array

    @functools.cached_property
    def _array(self) -> StoredArray:
        """The array, as the seal and its own metadata agree on it."""
        files = read_version(self.objects, self.version_id).files
        folder = file_key(self.version_id, self.folder)
        metadata = f"{self.folder}/{METADATA}"
        where = self.objects.where(folder)
        if metadata not in files:
            hint = "Choose a version that has labels."
            raise InputError(where, "labels of rows", "a version without them", hint)
        key = file_key(self.version_id, metadata)
        document = read_verified(self.objects, key, files[metadata])
        spec = _parse(document, self.objects.where(key))
        chunks = range(min(spec.n_chunks, len(files)))  # whatever the metadata claim
        found = [files[name] for i in chunks if (name := f"{self.folder}/{spec.key(i)}") in files]
        if len(found) != spec.n_chunks:
            expected, hint = f"a seal of {spec.n_chunks:,} chunks", "Roll back to another version."
            raise StoreError(where, expected, f"{len(found):,} of them", hint)
        table = ChunkTable.of([(each.size, bytes.fromhex(each.checksum)) for each in found])
        return StoredArray(self.objects, folder, spec, table)


@dataclass(frozen=True, eq=False)
class KeptLabels:
    """Labels of an earlier generation, for the rows that are still there; pickles as names.

    Attributes
    ----------
    labels
        Of all rows of the earlier generation.
    changes
        What became of them.
    """

    labels: StoredLabels
    changes: Changes

    def read(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the labels of those of the rows ``[start, stop)`` that were there before."""
        rows = self.changes.rows_before(start, stop)
        if len(rows) == 0:
            return rows
        found = self.labels.read(int(rows[0]), int(rows[-1]) + 1)
        return np.asarray(found[rows - rows[0]], np.int64)

    def take_over(self, draft: Draft, spec: LabelsSpec) -> None:
        """Give a draft the chunks whose rows are all numbered as before.

        Their labels are to be the same. Nothing is read; if the arrays are laid out differently,
        nothing is taken.
        """
        known = self.labels
        if known.is_like(spec):
            chunks = range(self.changes.n_unmoved // spec.array.chunks[0])
            names = {spec.chunk_name(i): f"{known.folder}/{spec.array.key(i)}" for i in chunks}
            draft.take_over(read_version(known.objects, known.version_id), names)


def _parse(document: bytes, where: str) -> ArraySpec:
    """Return the array that the metadata describe, if they are metadata of labels."""
    spec = parse_array(decode_json(document, where), where)
    n_labels = spec.attributes.get(_N_LABELS)
    is_integer = spec.dtype.kind in "iu" and type(n_labels) is int
    if not is_integer or len(spec.shape) != 1:
        raise refused(where, "an array of labels", (spec.shape, spec.dtype.name, n_labels))
    return spec


def _chunk_bounds(spec: ArraySpec, index: int) -> tuple[int, int]:
    if not 0 <= index < spec.n_chunks:
        expected = f"one of {spec.n_chunks:,} chunks"
        raise InputError(LABELS, expected, f"number {index}", "Count chunks from 0.")
    start = index * spec.chunks[0]
    return start, min(start + spec.chunks[0], spec.shape[0])
