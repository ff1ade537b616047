"""What in a store is its own; removing that, and nothing that somebody else put beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from distclust.errors import StoreError
from distclust.store.arrays import METADATA, join
from distclust.store.manifest import (
    CLAIM,
    CONDEMNED,
    FEATURES,
    GENERATIONS,
    HIDDEN,
    LATEST,
    LEASES,
    SEGMENTS,
    TABLES,
    TOMBSTONES,
    WORK,
)
from distclust.store.objects import Objects
from distclust.store.segment_table import Segment

_TREES = ("X", "obs", "var")
# What Zarr names the objects of arrays and groups.
_ZARR = re.compile(r"(?:.+/)?(?:zarr\.json|c(?:/\d+)+)")
_NAME = "[0-9a-f]{16}"
_KEPT = {
    GENERATIONS: r"\d{8}\.json",
    LEASES: r"[0-9a-f]+\.json",
    CONDEMNED: r"[a-z0-9-]+\.json",
    TABLES: rf"{_NAME}\.table",
    FEATURES: rf"{_NAME}\.json",
    TOMBSTONES: rf"{_NAME}\.int64",
    WORK: rf"{_NAME}/.*|[0-9a-f]{{32}}\.json",
}
_HIDDEN = re.compile("|".join(f"{re.escape(place)}/(?:{names})" for place, names in _KEPT.items()))
# Everything that has a drawn name, by that name.
_NAMED = re.compile(
    rf"(?:{re.escape(HIDDEN)}/(?:segments|columns|tombstones|ingest)|{SEGMENTS})/({_NAME})[./].*"
)


def is_hidden(key: str) -> bool:
    """Whether an object is one that stores keep beside their arrays."""
    return key in (CLAIM, LATEST) or _HIDDEN.fullmatch(key) is not None


def is_array(key: str) -> bool:
    """Whether an object lies where arrays of a store do and looks like Zarr."""
    is_there = key == METADATA or key.startswith(tuple(f"{tree}/" for tree in (*_TREES, SEGMENTS)))
    return is_there and _ZARR.fullmatch(key) is not None


def drawn_name(key: str) -> str | None:
    """Return the name that a change drew for itself and gave to this object."""
    match = _NAMED.fullmatch(key)
    return None if match is None else match[1]


def has_begun(objects: Objects) -> bool:
    """Whether a store is there, complete or not."""
    return any(map(is_hidden, objects.list(HIDDEN)))


def segment_keys(path: str, segment: Segment) -> Iterator[str]:
    """Yield the keys of all objects of a segment but its own ``zarr.json``."""
    for name in segment.metadata:
        yield join(path, f"{name}/{METADATA}")
    for name, array in segment.arrays.items():
        for number in range(array.n_chunks):
            yield join(path, f"{name}/{array.key(number)}")


def chunk_sizes(path: str, segment: Segment) -> Iterator[tuple[str, int]]:
    """Yield the keys of all chunks of a segment with their sizes."""
    for name, array in segment.arrays.items():
        sizes = segment.tables[name].sizes.tolist()
        for number in range(array.n_chunks):
            yield join(path, f"{name}/{array.key(number)}"), sizes[number]


def read_table(objects: Objects, name: str) -> Segment | None:
    """Return the table of a segment, or None if it was never finished or is damaged."""
    key = f"{TABLES}/{name}.table"
    try:
        return Segment.decode(objects.read(key), objects.where(key))
    except StoreError:
        return None


def remove_segment(objects: Objects, path: str, segment: Segment | None = None) -> None:
    """Remove the arrays of a segment, and its own metadata if it is not at the root.

    Parameters
    ----------
    objects
        The store.
    path
        Where the segment lies.
    segment
        What it consists of. Without it everything that looks like Zarr is removed: nobody
        adds to a segment that is not finished.
    """
    names = None if segment is None else set(segment_keys(path, segment))
    for tree in _TREES:
        _remove_tree(objects, join(path, tree), names)
    if path:
        objects.delete(f"{path}/{METADATA}")
        if not objects.list(path):
            objects.delete_tree(path)  # empty folders, and what killed writers left


def _remove_tree(objects: Objects, tree: str, names: set[str] | None) -> None:
    keys = objects.list(tree)
    ours = [key for key in keys if (_ZARR.fullmatch(key) if names is None else key in names)]
    if len(ours) == len(keys):
        objects.delete_tree(tree)
        return
    for key in ours:
        objects.delete(key)


def remove_store(objects: Objects) -> None:
    """Remove a store, complete or not, and nothing that is not its own.

    The generations go first, the oldest first: the store is what it was until it is absent.
    What tells that there was one goes last, so that a removal that was killed can be
    repeated.
    """
    hidden = [key for key in objects.list(HIDDEN) if is_hidden(key)]
    if not hidden:
        return
    for key in (LATEST, *(key for key in hidden if key.startswith(f"{GENERATIONS}/"))):
        objects.delete(key)
    roots: list[Segment | None] = []
    for name in {name for key in objects.list() if (name := drawn_name(key)) is not None}:
        table = read_table(objects, name)
        if objects.list(f"{SEGMENTS}/{name}"):
            remove_segment(objects, f"{SEGMENTS}/{name}", table)
        elif table is not None:
            roots.append(table)
    for table in roots or [None]:  # none where the first segment was not finished
        remove_segment(objects, "", table)
    for key in (f"{SEGMENTS}/{METADATA}", METADATA):
        objects.delete(key)
    for key in hidden:
        objects.delete(key)
    for place in (SEGMENTS, HIDDEN):
        if not objects.list(place):
            objects.delete_tree(place)
