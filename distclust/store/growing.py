"""Changes of a store: each builds the next generation on the one it was asked about.

Rows are only ever added at the end, in a segment of their own, or declared deleted; so every
earlier generation stays readable as it was. Changes are complete when the ledger has them
and leave nothing behind otherwise (see ``work``).

A change that says where its rows come from (an identity) is done once: asked for again right
after it was published, it returns what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from distclust.errors import ConflictError, InputError
from distclust.store.adding import (
    CHECKING,
    Addition,
    AnyLayout,
    Change,
    Incoming,
    change_of,
    check_exact,
    check_ids,
    first_change,
    prepare,
    scratch_of,
    with_deleted,
    without_repeats,
    write_features,
    write_rows,
)
from distclust.store.columns import Features
from distclust.store.fitting import fit_rows, free_id, given_ids
from distclust.store.generation import Generation, open_generation
from distclust.store.ids import Span, StoredIds, find_repeats
from distclust.store.manifest import (
    Manifest,
    SegmentEntry,
    generations_of,
    read_latest,
    read_manifest,
)
from distclust.store.mapping import Mapper, serial_map
from distclust.store.matching import Matched, live_positions, match_rows
from distclust.store.objects import Objects
from distclust.store.removal import has_begun
from distclust.store.segments import CodecName
from distclust.store.shelf import holds_results
from distclust.store.sources.base import Prepared, Scratch
from distclust.store.work import (
    Work,
    fingerprint_of,
    finish_published,
    is_claimed,
    reading,
    working,
)


@dataclass(frozen=True)
class Revision:
    """Files that were read again or for the first time, and what they gave before.

    Attributes
    ----------
    rows
        All rows of these files; None if no file was read.
    earlier
        Stored positions that each of the files wrote before, as ranges: none of a new one.
    gone
        Stored positions whose rows go in any case.
    name
        What to call the rows in errors about what they are made of.
    """

    rows: Prepared | None = None
    earlier: tuple[tuple[Span, ...], ...] = ()
    gone: tuple[Span, ...] = ()
    name: str = "new rows"


def create(
    objects: Objects, incoming: Incoming, addition: Addition, layout: AnyLayout, codec: CodecName
) -> Generation:
    """Write the first generation of a store."""
    request = addition.request("create", layout=layout, codec=codec)
    known = request if addition.tells_rows else None
    if (done := _find_done(objects, known)) is not None:
        return done
    where = f"ingest into {objects.url}"
    _check_free(objects, where)
    with working(objects, _fingerprint(request, after=""), is_root=True) as work:
        prepared = prepare(incoming, work)
        kept = without_repeats(prepared, StoredIds(), addition, work)
        if kept.rows.n_rows == 0 or kept.rows.n_features == 0:
            got = f"{kept.rows.n_rows} rows of {kept.rows.n_features} features"
            hint = "Check the source."
            raise InputError(where, "at least one row and one feature", got, hint)
        entry, reader = write_rows(work, kept, layout, codec, addition.mapper)
        check_ids(reader, kept, StoredIds(), addition, where)
        manifest = Manifest(
            layout=reader.segment.spec.layout,
            codec=codec,
            ids_kind=kept.ids_kind,
            obs=tuple(kept.obs_kinds.items()),
            n_features=kept.rows.n_features,
            features=work.write_features(Features(kept.columns, kept.facts).encode()),
            segments=(entry,),
            request=_digest(known),
            provenance=addition.describe(lambda: first_change(kept)),
        )
        return work.publish(manifest, after=0)


def has_created(objects: Objects, addition: Addition, layout: AnyLayout, codec: CodecName) -> bool:
    """Whether unfinished work on this very store is there to be taken up."""
    request = addition.request("create", layout=layout, codec=codec)
    return is_claimed(objects, _fingerprint(request, after=""), is_root=True)


def append(base: Generation, incoming: Incoming, addition: Addition, action: str) -> Generation:
    """Add rows at the end; stored rows of the same id are refused, kept or give way."""
    objects, manifest = base.objects, base.manifest
    request = addition.request(action)
    known = request if addition.tells_rows else None
    if (done := _find_done(objects, known)) is not None:
        return done
    check_present(base)
    where = f"{action} in {objects.url}"
    with working(objects, _fingerprint(request, base.digest)) as work:
        fitting = fit_rows(
            prepare(incoming, work), base, addition.mapper, where, replacing=addition.replacing
        )
        kept = without_repeats(fitting, base.ids_of_rows, addition, work)
        if kept.rows.n_rows == 0:
            return base
        entry, reader = write_rows(work, kept, manifest.layout, manifest.codec, addition.mapper)
        check_exact([*base.readers, reader], where)
        replaced = check_ids(reader, kept, base.ids_of_rows, addition, where)
        grown = replace(
            manifest,
            features=write_features(work, base, kept),
            segments=(*manifest.segments, entry),
        )
        changed = with_deleted(grown, base, replaced, work)
        told = addition.describe(lambda: change_of(base, kept, reader, replaced, 0))
        return work.publish(_described(changed, action, told, known), after=base.number)


def revise(
    base: Generation, incoming: Revision | Callable[[Scratch], Revision], addition: Addition
) -> Generation:
    """Bring the rows of files up to date: one generation that adds, replaces and deletes.

    Rows that a file gave before and gives still stay where they are (see ``matching``); its
    other rows go, and what it gives now comes at the end. Ids that rows of other files have
    are duplicates. There is a generation even if no row differs: its provenance says so.
    """
    objects, manifest = base.objects, base.manifest
    request = addition.request("revise")
    known = request if addition.tells_rows else None
    if (done := _find_done(objects, known)) is not None:
        return done
    check_present(base)
    where = f"revise in {objects.url}"
    with working(objects, _fingerprint(request, base.digest)) as work:
        revision = incoming if isinstance(incoming, Revision) else incoming(scratch_of(work))
        prepared, gone = revision.rows, live_positions(base, revision.gone)
        if prepared is None or prepared.rows.n_rows == 0:
            emptied = [span for spans in revision.earlier for span in spans]
            gone = np.union1d(gone, live_positions(base, emptied))
            changed = with_deleted(manifest, base, gone, work)
            change = Change(((),) * len(revision.earlier), 0, 0, len(gone))
            told = addition.describe(lambda: change)
            return work.publish(_described(changed, "revise", told, known), after=base.number)
        kept, matched = _unmatched(base, prepared, revision, addition, work)
        gone = np.union1d(gone, matched.gone)
        left = StoredIds(base.readers, np.union1d(base.tombstones, gone))
        kept = without_repeats(kept, left, addition, work)
        grown, reader = manifest, None
        if kept.rows.n_rows > 0:
            entry, reader = write_rows(work, kept, manifest.layout, manifest.codec, addition.mapper)
            check_exact([*base.readers, reader], where)
            gone = np.union1d(gone, check_ids(reader, kept, left, addition, where))
            grown = replace(
                manifest,
                features=write_features(work, base, kept),
                segments=(*manifest.segments, entry),
            )
        changed = with_deleted(grown, base, gone, work)
        told = addition.describe(
            lambda: change_of(base, kept, reader, gone, len(matched.same), revision.earlier)
        )
        return work.publish(_described(changed, "revise", told, known), after=base.number)


def _unmatched(
    base: Generation,
    prepared: Prepared,
    revision: Revision,
    addition: Addition,
    work: Work,
) -> tuple[Prepared, Matched]:
    """Return the new rows that are not stored already, as rows of the store."""
    fitting = fit_rows(prepared, base, addition.mapper, revision.name, replacing=False)
    fitting = replace(fitting, file_rows=prepared.file_rows or (prepared.rows.n_rows,))
    if prepared.has_ids:  # the one that stays of several is compared, whichever was stored
        fitting = without_repeats(fitting, StoredIds(), addition, work, "among-new")
    assert fitting.file_rows is not None
    matched = match_rows(
        base,
        fitting.rows,
        fitting.file_rows,
        revision.earlier,
        work.watched(addition.mapper),
        has_ids=prepared.has_ids,
    )
    return fitting.without(matched.same), matched


def delete(
    base: Generation,
    ids: Sequence[Any],
    missing: Literal["refuse", "ignore"],
    provenance: Mapping[str, Any],
    mapper: Mapper,
) -> Generation:
    """Declare rows deleted by their ids; their positions stay taken."""
    check_present(base)
    manifest = base.manifest
    where = f"delete in {base.objects.url}"
    given = given_ids(ids, manifest, where)
    with working(base.objects, fingerprint_of(None)) as work:
        is_exact = manifest.ids_kind == "integer"
        stored = base.ids_of_rows
        repeats = find_repeats(given, stored, mapper, is_exact=is_exact, stage=CHECKING)
        gone = repeats.losers("last")[0]  # what is given counts as later
        if missing == "refuse" and len(gone) < given.n_rows:
            found = repeats.positions[repeats.positions >= stored.n_rows] - stored.n_rows
            absent = np.setdiff1d(np.arange(given.n_rows), found)[:1]
            got = f"no row {given.take(absent).tolist()[0]!r}"
            hint = "Check the ids, or ignore missing ones (--ignore-missing)."
            raise InputError(where, "ids of stored rows", got, hint)
        if len(gone) == 0:
            return base
        changed = _described(manifest, "delete", provenance)
        return work.publish(with_deleted(changed, base, gone, work), after=base.number)


def compact(base: Generation, provenance: Mapping[str, Any], mapper: Mapper) -> Generation:
    """Write the live rows into one segment, without the deleted ones."""
    check_present(base)
    manifest = base.manifest
    if len(manifest.segments) <= 1 and manifest.tombstones is None:
        return base
    request = {"action": "compact"}
    with (
        reading(base.objects, base.number),
        working(base.objects, _fingerprint(request, base.digest)) as work,
    ):
        columns, obs = base.features.columns, dict(manifest.obs)
        live = Prepared(base.rows(), columns, obs, manifest.ids_kind)
        segments: tuple[SegmentEntry, ...] = ()
        if live.rows.n_rows > 0:
            segments = (write_rows(work, live, manifest.layout, manifest.codec, mapper)[0],)
        changed = replace(
            _described(manifest, "compact", provenance),
            segments=segments,
            tombstones=None,
            n_deleted=0,
            next_id=free_id(base, mapper),
        )
        return work.publish(changed, after=base.number)


def roll_back(base: Generation, number: int, provenance: Mapping[str, Any]) -> Generation:
    """Publish the content of an older generation once more."""
    check_present(base)
    objects = base.objects
    with reading(objects, number), working(objects, fingerprint_of(None)) as work:
        older = open_generation(objects, number)  # after the lease: gc leaves it from here on
        if older.manifest.fingerprint == base.manifest.fingerprint:
            return base
        next_id = max(older.manifest.next_id, free_id(base, serial_map))
        told = {**provenance, "generation": number}
        changed = replace(_described(older.manifest, "rollback", told), next_id=next_id)
        return work.publish(changed, after=base.number)


def _check_free(objects: Objects, where: str) -> None:
    """Refuse to make a store where there is one, or something of another program."""
    if read_latest(objects) is not None:
        hint = "Append to it (--append), choose another place, or remove it yourself."
        raise InputError(where, "no store yet", "one that is complete", hint)
    if holds_results(objects):
        hint = "Choose another place."
        raise InputError(where, "a place without a store", "a results store", hint)
    others = objects.list()
    if others and not has_begun(objects):
        got = f"{others[0]!r} in it"
        raise InputError(where, "an empty place", got, "Choose another place.")


def check_present(base: Generation) -> None:
    """Refuse to build on a generation that is no longer the present one."""
    if not generations_of(base.objects).is_head(base.number):
        raise ConflictError(
            base.objects.url,
            f"generation {base.number} to be the present one",
            "a later one by another writer",
            "Open the store again and repeat the change.",
        )


def _find_done(objects: Objects, request: dict[str, Any] | None) -> Generation | None:
    """Return the present generation if it is what is asked for."""
    head = None if request is None else read_latest(objects)
    if request is None or head is None:
        return None
    manifest = read_manifest(head, objects.url)
    if manifest.request != _digest(request):
        return None
    is_root = head.number == 1
    fingerprint = _fingerprint(request, "" if is_root else head.previous)
    finish_published(objects, fingerprint, is_root=is_root)
    return Generation(objects, head, manifest)


def _digest(request: dict[str, Any] | None) -> str:
    return "" if request is None else fingerprint_of(request)


def _fingerprint(request: dict[str, Any] | None, after: str) -> str:
    """Fingerprint of a change: what is asked for, and of which generation."""
    return fingerprint_of(None if request is None else {**request, "after": after})


def _described(
    manifest: Manifest,
    action: str,
    provenance: Mapping[str, Any],
    request: dict[str, Any] | None = None,
) -> Manifest:
    return replace(manifest, action=action, provenance=provenance, request=_digest(request))
