"""What other tools see at the root of a store.

A store that is one dense or CSR segment without deleted rows is an AnnData group. Any other
lists a group that AnnData does not know, and AnnData refuses it: a tool that knows nothing
of generations must not take a part of the rows for all of them. Once hidden the face stays
so; ``MatrixStore.to_anndata`` gives the rows of any store.
"""

from __future__ import annotations

from distclust.store.arrays import METADATA
from distclust.store.manifest import SEGMENTS, Manifest, read_part
from distclust.store.objects import MissingObject, Objects
from distclust.store.segment_table import Segment, group_metadata
from distclust.store.zarr_metadata import encode_json

SEGMENTS_METADATA = f"{SEGMENTS}/{METADATA}"

_LISTING = {
    "kind": "inline",
    "must_understand": False,
    "metadata": {SEGMENTS: group_metadata({})},
}
GROUP = encode_json(group_metadata({}))
BARE = encode_json({**group_metadata({}), "consolidated_metadata": _LISTING})


def hide_face(objects: Objects, manifest: Manifest) -> None:
    """Make other tools refuse the root of a store that is more than its first segment."""
    segment = _root_segment(objects, manifest)
    face = BARE if segment is None else segment.face([SEGMENTS])
    for key, content in ((SEGMENTS_METADATA, GROUP), (METADATA, face)):
        try:
            is_same = objects.read(key) == content
        except MissingObject:
            is_same = False
        if not is_same:
            objects.write(key, content)


def faces(objects: Objects, manifest: Manifest) -> set[bytes]:
    """Return what the root's metadata may be.

    A change that is under way, or did not come to its end, may have hidden the face already.
    """
    segment = _root_segment(objects, manifest)
    if segment is None:
        return {BARE}
    hidden = {BARE, segment.face([SEGMENTS])}
    return {segment.face(), *hidden} if manifest.is_plain else hidden


def _root_segment(objects: Objects, manifest: Manifest) -> Segment | None:
    root = next((entry for entry in manifest.segments if entry.is_root), None)
    if root is None:
        return None
    content = read_part(objects, root.table, root.digest)
    return Segment.decode(content, objects.where(root.table))
