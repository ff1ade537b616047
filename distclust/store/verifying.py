"""Reading all of a store again, to find what is missing, truncated, altered or foreign."""

from __future__ import annotations

from collections.abc import Iterator

from distclust.errors import StoreError
from distclust.store.arrays import METADATA
from distclust.store.face import GROUP, SEGMENTS_METADATA, faces
from distclust.store.generation import Generation, open_generation
from distclust.store.manifest import (
    GENERATIONS,
    HIDDEN,
    LATEST,
    SEGMENTS,
    SegmentEntry,
    features_key,
    generations_of,
    read_noted,
    tombstones_key,
)
from distclust.store.mapping import Mapper
from distclust.store.objects import Finding, MissingObject, Objects
from distclust.store.removal import chunk_sizes, drawn_name, is_array, is_hidden, segment_keys
from distclust.store.segments import Segment, verify_segment


def verify(objects: Objects, mapper: Mapper) -> list[Finding]:
    """Read every generation that is kept and all it consists of.

    Returns
    -------
    Findings by key; leftovers of unfinished changes are no findings.
    """
    findings: set[Finding] = set()
    generations: list[Generation] = []
    findings |= set(_verify_ledger(objects, generations))
    entries: dict[SegmentEntry, Segment] = {}
    for generation in generations:
        findings |= set(_verify_parts(generation, entries))
    for entry, segment in entries.items():
        findings |= set(verify_segment(objects, entry.path, segment, mapper))
    findings |= set(_verify_faces(objects, generations))
    has_root = any(entry.is_root for entry in entries)
    findings |= {Finding(key, "foreign") for key in _foreign(objects, has_root)}
    return sorted(findings, key=lambda finding: finding.key)


def _verify_ledger(objects: Objects, generations: list[Generation]) -> Iterator[Finding]:
    """Check the records; add the generations whose records are sound."""
    try:
        noted = read_noted(objects)
    except StoreError as error:
        yield _finding(LATEST, error)
        noted = 0
    numbers = generations_of(objects).numbers()
    for number in numbers if noted in (0, *numbers) else [*numbers, noted]:
        try:
            generations.append(open_generation(objects, number))
        except StoreError as error:
            absent = number not in numbers
            key = f"{GENERATIONS}/{number:08d}.json"
            yield Finding(key, "missing") if absent else _finding(key, error)


def missing_keys(objects: Objects, path: str, segment: Segment) -> list[str]:
    """Return the objects of a segment that are not there, or visibly not whole.

    Sizes are compared where asking for them costs nothing: on a local disk.
    """
    there = set(objects.list(path))
    missing = [key for key in segment_keys(path, segment) if key not in there]
    if missing or not objects.is_local:
        return missing
    return [key for key, size in chunk_sizes(path, segment) if objects.size(key) != size]


def _finding(key: str, error: StoreError) -> Finding:
    return Finding(key, "missing" if isinstance(error, MissingObject) else "altered")


def _verify_parts(
    generation: Generation, entries: dict[SegmentEntry, Segment]
) -> Iterator[Finding]:
    """Check the files beside the arrays; add the segments whose tables are sound."""
    manifest = generation.manifest
    try:
        generation.features  # noqa: B018 - reading is what is tried
    except StoreError as error:
        yield _finding(features_key(manifest.features), error)
    try:
        generation.tombstones  # noqa: B018
    except StoreError as error:
        assert manifest.tombstones is not None
        yield _finding(tombstones_key(manifest.tombstones), error)
    for entry in manifest.segments:
        try:
            entries.setdefault(entry, generation.read_table(entry))
        except StoreError as error:
            yield _finding(entry.table, error)


def _verify_faces(objects: Objects, generations: list[Generation]) -> Iterator[Finding]:
    if not generations:
        return
    manifest = generations[-1].manifest
    try:
        known = faces(objects, manifest)
    except StoreError:
        return  # the table of the first segment is damaged, which is a finding already
    expected = (
        {METADATA: known}
        if manifest.is_plain
        else {
            METADATA: known,
            SEGMENTS_METADATA: {GROUP},
        }
    )
    for key, contents in expected.items():
        try:
            if objects.read(key) not in contents:
                yield Finding(key, "altered")
        except MissingObject as error:
            yield _finding(key, error)


def _foreign(objects: Objects, has_root: bool) -> Iterator[str]:
    """Yield keys that are nobody's; those within segments are found with the segments."""
    for key in objects.list():
        if key.startswith(f"{HIDDEN}/"):
            is_ours = is_hidden(key)
        elif key.startswith(f"{SEGMENTS}/"):
            is_ours = key == SEGMENTS_METADATA or drawn_name(key) is not None
        else:
            is_ours = has_root or is_array(key)
        if not is_ours:
            yield key
