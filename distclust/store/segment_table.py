"""The table of a segment: what it holds, and what every object of it must be."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from distclust.store.archive import decode_archive, encode_archive
from distclust.store.arrays import ArraySpec, ChunkTable
from distclust.store.codecs import TEXT
from distclust.store.layouts import LAYOUTS, Layout, SegmentSpec
from distclust.store.layouts.annotations import frame, obs_arrays, obs_groups
from distclust.store.layouts.base import encoded
from distclust.store.matrix import Profile
from distclust.store.surveys import Survey
from distclust.store.zarr_metadata import encode_json, parse_array, refused

Json: TypeAlias = Mapping[str, Any]

NAMES_A_CHUNK = 2**16

_KIND = "segment"


@dataclass(frozen=True, eq=False)
class Segment:
    """All there is to know about a written segment.

    Attributes
    ----------
    spec
        What it holds and how.
    survey
        Facts about its rows.
    metadata
        Zarr metadata of all arrays and groups, by path.
    tables
        What the chunks of every array must be, by path.
    """

    spec: SegmentSpec
    survey: Survey
    metadata: Mapping[str, Json]
    tables: Mapping[str, ChunkTable]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.spec.n_rows

    @property
    def profile(self) -> Profile:
        """Facts about every column."""
        return self.survey.profile

    @property
    def nnz(self) -> int:
        """Values that are neither zero nor missing."""
        return int(self.profile.n_nonzero.sum())

    @property
    def n_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(int(table.sizes.sum()) for table in self.tables.values())

    @functools.cached_property
    def arrays(self) -> dict[str, ArraySpec]:
        """All arrays, by path."""
        return {path: parse_array(self.metadata[path], path) for path in self.tables}

    def face(self, others: Sequence[str] = ()) -> bytes:
        """Return the ``zarr.json`` of the segment's group.

        Other tools find members in it rather than by listing, so that they do not see what
        is not Zarr. `others` are groups to list besides: AnnData then refuses the whole,
        as it should where the group does not hold all of the rows.
        """
        is_known = self.spec.layout != "compact"
        attributes = encoded("anndata" if is_known else "distclust", "0.1.0")
        members = {**self.metadata, **{path: group_metadata({}) for path in others}}
        # Zarr wants members of a group side by side, and groups before what is in them.
        members = dict(sorted(members.items(), key=lambda item: (item[0].count("/"), item[0])))
        listing = {"kind": "inline", "must_understand": False, "metadata": members}
        return encode_json({**group_metadata(attributes), "consolidated_metadata": listing})

    def encode(self) -> bytes:
        """Return the table of the segment as one object."""
        meta = {"spec": self.spec.to_json(), "metadata": self.metadata}
        tables = [self.tables[path] for path in sorted(self.tables)]
        arrays = {
            **self.survey.to_arrays(),
            "sizes": np.concatenate([table.sizes for table in tables]),
            "checksums": np.concatenate([table.checksums for table in tables]),
        }
        return encode_archive(_KIND, meta, arrays)

    @classmethod
    def decode(cls, content: bytes, where: str) -> Segment:
        """Return what `encode` wrote; `StoreError` if it is something else."""
        archive = decode_archive(content, where)
        try:
            spec = SegmentSpec.from_json(archive.meta["spec"])
            survey = Survey.from_arrays(archive.arrays, spec.n_rows, spec.n_features)
            metadata = dict(archive.meta["metadata"])
            layout = LAYOUTS[spec.layout](spec, survey)
            arrays = _checked_arrays(layout, metadata)
            ends = [0, *itertools.accumulate(array.n_chunks for array in arrays.values())]
            table = ChunkTable(archive.arrays["sizes"], archive.arrays["checksums"])
            if archive.kind != _KIND or len(table) != ends[-1]:
                raise ValueError("another number of chunks")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise refused(where, "the table of a segment", str(error)) from error
        cuts = zip(arrays, itertools.pairwise(ends), strict=True)
        tables = {
            path: ChunkTable(table.sizes[start:stop], table.checksums[start:stop])
            for path, (start, stop) in cuts
        }
        return cls(spec, survey, metadata, tables)


def group_metadata(attributes: Json) -> dict[str, Any]:
    """Describe a group as Zarr v3 does."""
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def segment_arrays(layout: Layout, has_names: bool) -> dict[str, ArraySpec]:
    """All arrays of a segment, by path; `has_names` if features have."""
    spec = layout.spec
    arrays = {**layout.arrays, **obs_arrays(spec)}
    if has_names:
        chunks = (min(spec.n_features, NAMES_A_CHUNK),)
        arrays["var/_index"] = spec.array((spec.n_features,), chunks, TEXT, "string-array")
    return arrays


def segment_groups(layout: Layout, has_names: bool) -> dict[str, dict[str, Any]]:
    """Attributes of all groups of a segment, by path."""
    group = layout.group()
    groups = obs_groups(layout.spec)
    if group is not None:
        groups["X"] = group
    if has_names:
        groups["var"] = frame([])
    return groups


def _checked_arrays(layout: Layout, metadata: Mapping[str, Json]) -> dict[str, ArraySpec]:
    """Arrays that metadata describe, in the order of paths; those of the layout, no others."""
    has_names = "var" in metadata
    expected = segment_arrays(layout, has_names)
    if metadata.keys() != expected.keys() | segment_groups(layout, has_names).keys():
        raise ValueError("other arrays than those of the layout")
    found = {path: parse_array(metadata[path], path) for path in sorted(expected)}
    for path, array in expected.items():
        other = found[path]
        if (other.shape, other.chunks, other.dtype) != (array.shape, array.chunks, array.dtype):
            raise ValueError(f"{path} of another shape or type")
    return found
