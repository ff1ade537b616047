"""Writing a segment: one task a block, and nothing that is finished twice.

Each task leaves a record when all of its chunks are written, so that a run that was killed
goes on where it ended. Metadata come last: before them, there is nothing that a reader would
take for an array.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from distclust.errors import InputError
from distclust.store.arrays import METADATA, ArraySpec, ChunkTable, Entry, join, write_chunk
from distclust.store.codecs import TEXT
from distclust.store.layouts import LAYOUTS, Layout, SegmentSpec
from distclust.store.layouts.annotations import obs_pieces
from distclust.store.layouts.base import Piece, changed, read_sparse
from distclust.store.mapping import Mapper
from distclust.store.objects import MissingObject, Objects
from distclust.store.rows import RowSource
from distclust.store.sealed import seal, unseal
from distclust.store.segment_table import (
    NAMES_A_CHUNK,
    Segment,
    group_metadata,
    segment_arrays,
    segment_groups,
)
from distclust.store.surveys import Survey, holds_counts, survey_rows
from distclust.store.zarr_metadata import NUMBERS, encode_json

__all__ = ["join", "write_segment"]

Chunk: TypeAlias = tuple[str, int]  # path of an array, number of a chunk
Written: TypeAlias = dict[Chunk, Entry]

_RECORD = "distclust-block"


def write_segment(
    objects: Objects,
    path: str,
    rows: RowSource,
    spec: SegmentSpec,
    *,
    mapper: Mapper,
    scratch: str,
    stage: str = "writing",
    survey: Survey | None = None,
    feature_names: Sequence[str] | None = None,
) -> Segment:
    """Write rows as a segment, and its face last.

    Parameters
    ----------
    objects, path
        Where: "" for the root itself, else a folder of its own.
    rows
        What; the same every time it is read.
    spec
        How.
    mapper
        Does the work, one task a block.
    scratch
        Where records of finished blocks are kept, and looked for first. The caller removes
        it, and uses it for these rows only.
    stage
        Name in progress events.
    survey
        Facts about the rows, if they are known.
    feature_names
        Names for ``var``.

    Raises
    ------
    InputError
        If the layout cannot hold the rows, or they change while they are read.
    """
    if survey is None:
        survey = survey_rows(rows, mapper=mapper, objects=objects, scratch=scratch)
    _check_fit(spec, survey)
    layout = LAYOUTS[spec.layout](spec, survey)
    blocks = range(spec.n_blocks)
    written: Written = {}
    for done in mapper(_write_block, blocks, objects, path, rows, layout, scratch, stage=stage):
        written |= done
    pieces = itertools.chain(layout.common_pieces(), _name_pieces(feature_names or ()))
    has_names = feature_names is not None
    arrays, groups = segment_arrays(layout, has_names), segment_groups(layout, has_names)
    written |= _write_pieces(objects, path, arrays, pieces)
    segment = Segment(
        spec,
        survey,
        {name: group_metadata(attributes) for name, attributes in groups.items()}
        | {name: array.metadata() for name, array in arrays.items()},
        {name: _table(name, array, written) for name, array in arrays.items()},
    )
    for name, values in segment.metadata.items():
        objects.write(join(path, f"{name}/{METADATA}"), encode_json(values))
    objects.write(join(path, METADATA), segment.face())
    return segment


def _check_fit(spec: SegmentSpec, survey: Survey) -> None:
    profile = survey.profile
    if spec.dtype not in NUMBERS:
        raise InputError("rows", "numbers or booleans", spec.dtype, "Convert them to float64.")
    if spec.layout == "compact" and not holds_counts(profile):
        is_whole = not profile.has_missing and profile.all_integer.all()
        bounds = f"values from {profile.minimum.min():g} to {profile.maximum.max():g}"
        got = bounds if is_whole else "missing values or fractions"
        expected = "whole numbers from 0 to 65535 for the compact layout"
        raise InputError("rows", expected, got, "Choose another layout.")
    if spec.layout == "csr" and profile.has_missing:
        hint = "Choose the dense layout."
        raise InputError("rows", "no missing values in a sparse layout", "missing values", hint)


def _write_block(
    index: int, objects: Objects, path: str, rows: RowSource, layout: Layout, scratch: str
) -> Written:
    """Write all chunks of a block, then its record; or return the record that is there."""
    record = f"{scratch}/blocks/{index}.json"
    done = _read_record(objects, record)
    if done is not None:
        return done
    start, stop = layout.spec.block_bounds(index)
    is_dense = layout.spec.layout == "dense"
    part = rows.read(start, stop) if is_dense else read_sparse(rows, start, stop)
    if any(len(column) != stop - start for column in (part.ids, *part.obs.values())):
        raise changed(start, stop)
    pieces = itertools.chain(obs_pieces(layout.spec, index, part), layout.pieces(index, part, rows))
    written = _write_pieces(objects, path, segment_arrays(layout, has_names=False), pieces)
    objects.write(record, _encode_record(written))
    return written


def _write_pieces(
    objects: Objects, path: str, arrays: Mapping[str, ArraySpec], pieces: Iterable[Piece]
) -> Written:
    return {
        (name, number): write_chunk(objects, join(path, name), arrays[name], number, values)
        for name, number, values in pieces
    }


def _encode_record(written: Written) -> bytes:
    chunks = [[*chunk, size, digest.hex()] for chunk, (size, digest) in written.items()]
    return seal(_RECORD, {"chunks": chunks})


def _read_record(objects: Objects, key: str) -> Written | None:
    try:
        content = objects.read(key)
    except MissingObject:
        return None
    chunks = unseal(content, _RECORD, objects.where(key))["chunks"]
    return {(name, number): (size, bytes.fromhex(digest)) for name, number, size, digest in chunks}


def _table(name: str, array: ArraySpec, written: Written) -> ChunkTable:
    return ChunkTable.of([written[name, number] for number in range(array.n_chunks)])


def _name_pieces(names: Sequence[str]) -> Iterator[Piece]:
    for number, start in enumerate(range(0, len(names), NAMES_A_CHUNK)):
        yield "var/_index", number, np.array(names[start : start + NAMES_A_CHUNK], TEXT)
