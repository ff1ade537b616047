"""Segments: immutable runs of rows in a store, written once and verified on every read.

A segment is a Zarr group with ``X``, ``obs`` and, if features have names, ``var``; a dense
or CSR one is an AnnData group. Beside it stands its table (`Segment`), kept by the caller:
what every chunk must be, the metadata as they were written, and the facts of the survey.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import StoreError
from distclust.store.arrays import METADATA, Entry, StoredArray, join, problem_of
from distclust.store.layouts import (
    READERS,
    CodecName,
    CompactBlock,
    CompactReader,
    IdsKind,
    LayoutName,
    ObsKind,
    SegmentSpec,
)
from distclust.store.layouts.annotations import read_obs
from distclust.store.mapping import Mapper
from distclust.store.matrix import Block
from distclust.store.objects import Finding, MissingObject, Objects
from distclust.store.segment_table import Segment
from distclust.store.segment_writer import write_segment
from distclust.store.surveys import Survey, choose_layout, survey_rows
from distclust.store.zarr_metadata import decode_json, refused

__all__ = [
    "CodecName",
    "CompactBlock",
    "Finding",
    "IdsKind",
    "LayoutName",
    "ObsKind",
    "Segment",
    "SegmentReader",
    "SegmentSpec",
    "Survey",
    "choose_layout",
    "survey_rows",
    "verify_segment",
    "write_segment",
]

Array: TypeAlias = npt.NDArray[Any]
Json: TypeAlias = Mapping[str, Any]

_KEYS_A_TASK = 32
_OTHERS = (".distclust/", "segments/")  # in the root, but not of its segment


class SegmentReader:
    """Reads a segment block by block; thread-safe.

    Parameters
    ----------
    objects, path
        Where it lies.
    segment
        Its table.

    Notes
    -----
    Every chunk is checked against the table before its values are used, and the metadata of
    an array when it is read first: what other tools see is what is read here.
    """

    def __init__(self, objects: Objects, path: str, segment: Segment) -> None:
        self.objects = objects
        self.path = path
        self.segment = segment
        self.spec = segment.spec
        self.profile = segment.profile
        self._open: dict[str, StoredArray] = {}
        self._values = READERS[self.spec.layout](self.spec, segment.survey, self._array)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.spec.n_rows

    @property
    def n_blocks(self) -> int:
        """How many blocks hold all rows."""
        return self.spec.n_blocks

    @property
    def block_rows(self) -> int:
        """Rows in every block but the last."""
        return self.spec.block_rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values of blocks; the compact layout has bool, uint8 or uint16."""
        return self._values.dtype

    def block_bounds(self, index: int) -> tuple[int, int]:
        """First row of block `index` and the row after its last."""
        return self.spec.block_bounds(index)

    def block(self, index: int) -> Block:
        """Rows of block `index`, as `distclust.store.matrix` describes them."""
        return self._values.block(index)

    def compact_block(self, index: int) -> CompactBlock:
        """Rows of block `index` as the compact layout stores them; of that layout only."""
        if not isinstance(self._values, CompactReader):
            raise TypeError(f"a segment of the {self.spec.layout} layout has no compact blocks")
        return self._values.compact_block(index)

    def block_ids(self, index: int) -> Array:
        """Row ids of block `index`: int64, or str in an object array."""
        return self._rows_of("obs/_index", index)

    def block_keys(self, index: int) -> npt.NDArray[np.uint64]:
        """Keys of the row ids of block `index`."""
        return self._rows_of("obs/_key", index)

    def obs(self, name: str, index: int) -> Array:
        """Annotation `name` of the rows of block `index`; None where text is missing."""
        return read_obs(self.spec, name, index, self._array)

    def _rows_of(self, path: str, index: int) -> Array:
        start, stop = self.block_bounds(index)
        return self._array(path).chunk(index)[: stop - start]

    def _array(self, path: str) -> StoredArray:
        if path not in self._open:
            key = join(self.path, path)
            problem = _problem(self.objects, f"{key}/{METADATA}", self.segment.metadata[path])
            if problem is not None:
                where = self.objects.where(f"{key}/{METADATA}")
                raise refused(where, "the metadata that were written", problem)
            spec, table = self.segment.arrays[path], self.segment.tables[path]
            self._open[path] = StoredArray(self.objects, key, spec, table)
        return self._open[path]


def verify_segment(
    objects: Objects, path: str, segment: Segment, mapper: Mapper, stage: str = "verifying"
) -> list[Finding]:
    """Read all of a segment and return what is missing, truncated, altered or foreign.

    The root's own ``zarr.json``, ``.distclust`` and ``segments`` are the caller's to check.
    """
    chunks, documents = dict(_chunks(path, segment)), dict(_documents(path, segment))
    keys = list(chunks.items())
    batches = [keys[i : i + _KEYS_A_TASK] for i in range(0, len(keys), _KEYS_A_TASK)]
    problems = [
        found for part in mapper(_chunk_problems, batches, objects, stage=stage) for found in part
    ]
    problems += [(key, _problem(objects, key, values)) for key, values in documents.items()]
    for key in objects.list(path):
        is_others = not path and (key == METADATA or key.startswith(_OTHERS))
        if key not in chunks and key not in documents and not is_others:
            problems.append((key, "foreign"))
    return [Finding(key, problem) for key, problem in sorted(problems) if problem is not None]


def _chunks(path: str, segment: Segment) -> Iterator[tuple[str, Entry]]:
    for name, table in segment.tables.items():
        spec = segment.arrays[name]
        for number in range(len(table)):
            yield join(path, f"{name}/{spec.key(number)}"), table.entry(number)


def _documents(path: str, segment: Segment) -> Iterator[tuple[str, Json]]:
    for name, values in segment.metadata.items():
        yield join(path, f"{name}/{METADATA}"), values
    if path:
        yield f"{path}/{METADATA}", decode_json(segment.face(), path)


def _chunk_problems(
    batch: list[tuple[str, Entry]], objects: Objects
) -> list[tuple[str, str | None]]:
    return [(key, problem_of(objects, key, entry)) for key, entry in batch]


def _problem(objects: Objects, key: str, expected: Json) -> str | None:
    """Say what is wrong with stored metadata."""
    try:
        content = objects.read(key)
    except MissingObject:
        return "missing"
    try:
        return None if decode_json(content, key) == expected else "altered"
    except StoreError:
        return "altered"
