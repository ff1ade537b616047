"""Changes of a store: each builds the next generation on the one it was asked about.

Rows are only ever added at the end, in a segment of their own, or declared deleted; so every
earlier generation stays readable as it was. Changes are complete when the ledger has them
and leave nothing behind otherwise (see ``work``).

A change that says where its rows come from (an identity) is done once: asked for again right
after it was published, it returns what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import ConflictError, InputError
from distclust.store.columns import Features
from distclust.store.fitting import fit_rows, free_id, given_ids
from distclust.store.generation import Generation, encode_positions, open_generation
from distclust.store.ids import Duplicates, SourceIds, StoredIds, find_repeats
from distclust.store.manifest import (
    Manifest,
    SegmentEntry,
    generations_of,
    read_latest,
    read_manifest,
)
from distclust.store.mapping import Mapper, serial_map
from distclust.store.matrix import Profile
from distclust.store.objects import Objects
from distclust.store.removal import has_begun
from distclust.store.row_views import KeptRows
from distclust.store.segments import (
    CodecName,
    LayoutName,
    SegmentReader,
    SegmentSpec,
    choose_layout,
    survey_rows,
    write_segment,
)
from distclust.store.shelf import holds_results
from distclust.store.sources.base import Prepared, Scratch
from distclust.store.surveys import holds_counts
from distclust.store.work import Work, fingerprint_of, finish_published, reading, working
from distclust.validation import check_choice

Positions: TypeAlias = npt.NDArray[np.int64]
Incoming: TypeAlias = "Prepared | Callable[[Scratch], Prepared]"
AnyLayout: TypeAlias = 'LayoutName | Literal["auto"]'

_NONE: Positions = np.empty(0, np.int64)
_CHECKING = "checking ids"
_EXACT = 2.0**53  # larger whole numbers are rounded as float64
_KEEP_ONE = "Keep the first or the last of them with duplicates (--duplicates)."


@dataclass(frozen=True)
class Addition:
    """How rows are added.

    Attributes
    ----------
    mapper
        How work over many parts is done.
    duplicates
        What happens to rows of one id: they are refused, or the first or last is kept.
    replacing
        Whether rows that are stored give way to new ones in any case.
    identity
        JSON that differs whenever the rows may, or None.
    provenance
        JSON to keep with the generation.
    tells_rows
        Whether an equal identity means equal rows. If not (an iterator), unfinished work is
        taken up, but finished work is never taken for what is asked for.
    """

    mapper: Mapper
    duplicates: Duplicates = "refuse"
    replacing: bool = False
    identity: Any = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    tells_rows: bool = True

    def __post_init__(self) -> None:
        check_choice(self.duplicates, "duplicates", ("refuse", "first", "last"))

    def request(self, action: str, **others: Any) -> dict[str, Any] | None:
        """Return what tells this change from others, if it can be told."""
        if self.identity is None:
            return None
        asked = {"identity": self.identity, "duplicates": self.duplicates, **others}
        return {"action": action, **asked}


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
        prepared = _prepare(incoming, work)
        kept = _without_repeats(prepared, StoredIds(), addition, work)
        if kept.rows.n_rows == 0 or kept.rows.n_features == 0:
            got = f"{kept.rows.n_rows} rows of {kept.rows.n_features} features"
            hint = "Check the source."
            raise InputError(where, "at least one row and one feature", got, hint)
        entry, reader = _write(work, kept, layout, codec, addition.mapper)
        _check_ids(reader, kept, StoredIds(), addition, where)
        manifest = Manifest(
            layout=reader.segment.spec.layout,
            codec=codec,
            ids_kind=kept.ids_kind,
            obs=tuple(kept.obs_kinds.items()),
            n_features=kept.rows.n_features,
            features=work.write_features(Features(kept.columns, kept.facts).encode()),
            segments=(entry,),
            request=_digest(known),
            provenance=addition.provenance,
        )
        return work.publish(manifest, after=0)


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
            _prepare(incoming, work), base, addition.mapper, where, replacing=addition.replacing
        )
        kept = _without_repeats(fitting, base.ids_of_rows, addition, work)
        if kept.rows.n_rows == 0:
            return base
        entry, reader = _write(work, kept, manifest.layout, manifest.codec, addition.mapper)
        _check_exact([*base.readers, reader], where)
        replaced = _check_ids(reader, kept, base.ids_of_rows, addition, where)
        grown = replace(
            _described(manifest, action, addition.provenance, known),
            features=_write_features(work, base, kept),
            segments=(*manifest.segments, entry),
        )
        return work.publish(_with_deleted(grown, base, replaced, work), after=base.number)


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
        repeats = find_repeats(given, stored, mapper, is_exact=is_exact, stage=_CHECKING)
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
        return work.publish(_with_deleted(changed, base, gone, work), after=base.number)


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
            segments = (_write(work, live, manifest.layout, manifest.codec, mapper)[0],)
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


def _prepare(incoming: Incoming, work: Work) -> Prepared:
    if isinstance(incoming, Prepared):
        return incoming
    return incoming(Scratch(work.objects, f"{work.scratch}/source"))


def _without_repeats(
    prepared: Prepared, stored: StoredIds, addition: Addition, work: Work
) -> Prepared:
    """Leave out the rows that give way to others, before anything is written."""
    keep = addition.duplicates
    if keep == "refuse":
        return prepared  # found in what was written, which takes no pass over the rows
    if addition.replacing or keep == "last":
        stored = StoredIds()  # stored rows give way, whatever new ones do
    repeats = find_repeats(
        SourceIds(prepared.rows, work.objects, work.scratch),
        stored,
        addition.mapper,
        is_exact=prepared.ids_kind == "integer",
        stage=_CHECKING,
    )
    dropped = repeats.losers(keep)[1]
    return replace(prepared, rows=KeptRows(prepared.rows, dropped)) if len(dropped) else prepared


def _write(
    work: Work, prepared: Prepared, layout: AnyLayout, codec: CodecName, mapper: Mapper
) -> tuple[SegmentEntry, SegmentReader]:
    """Write rows as a segment, or the rest of it if a part is there already."""
    rows, objects, scratch = prepared.rows, work.objects, work.scratch
    mapper = work.watched(mapper)
    survey = survey_rows(rows, mapper=mapper, objects=objects, scratch=scratch)
    spec = SegmentSpec(
        _settle_layout(layout, survey.profile, prepared, is_first=work.is_root),
        codec,
        rows.n_rows,
        rows.n_features,
        rows.dtype.name,
        prepared.ids_kind,
        tuple(prepared.obs_kinds.items()),
    )
    segment = write_segment(
        objects,
        work.path,
        rows,
        spec,
        mapper=mapper,
        scratch=scratch,
        survey=survey,
        feature_names=[column.name for column in prepared.columns],
    )
    return work.write_table(segment), SegmentReader(objects, work.path, segment)


def _settle_layout(
    layout: AnyLayout, profile: Profile, prepared: Prepared, is_first: bool
) -> LayoutName:
    """Return the layout of a segment: the store's own, if it can hold further rows."""
    if any(column.kind == "category" for column in prepared.columns):
        return _check_dense(layout)  # code 0 is a level, not the absence of one
    if layout == "auto":
        return choose_layout(profile, prepared.rows.is_sparse)
    return "csr" if layout == "compact" and not is_first and not holds_counts(profile) else layout


def _check_dense(layout: AnyLayout) -> LayoutName:
    if layout in ("auto", "dense"):
        return "dense"
    hint = 'Choose the layout "dense" or "auto", or drop the columns of categories.'
    raise InputError("layout", "dense for rows with categories", layout, hint)


def _check_exact(readers: Sequence[SegmentReader], where: str) -> None:
    """Refuse whole numbers that would be rounded beside the other rows."""
    together = np.result_type(*(reader.dtype for reader in readers))
    whole = [reader.profile for reader in readers if reader.dtype.kind in "iu"]
    if together.kind != "f" or not whole:
        return
    largest = max(
        float(np.abs(bound).max(initial=0.0, where=np.isfinite(bound)))
        for profile in whole
        for bound in (profile.minimum, profile.maximum)
    )
    if largest >= _EXACT:
        got = f"one of about {largest:.4g} beside rows of another type"
        hint = "Convert them, or make a store of their own."
        raise InputError(where, "whole numbers below 2^53", got, hint)


def _check_ids(
    reader: SegmentReader, prepared: Prepared, stored: StoredIds, addition: Addition, where: str
) -> Positions:
    """Make sure that no id is there twice; return stored positions that give way."""
    new = StoredIds([reader])
    is_exact = prepared.ids_kind == "integer"
    repeats = find_repeats(new, stored, addition.mapper, is_exact=is_exact, stage=_CHECKING)
    if not addition.replacing and addition.duplicates != "last":
        repeats.refuse(new, where, _KEEP_ONE)
        return _NONE
    repeats.among_new().refuse(new, where, _KEEP_ONE)
    return repeats.losers("last")[0]


def _with_deleted(
    manifest: Manifest, base: Generation, positions: Positions, work: Work
) -> Manifest:
    if len(positions) == 0:
        return manifest
    deleted = np.union1d(base.tombstones, positions)
    part = work.write_tombstones(encode_positions(deleted))
    return replace(manifest, tombstones=part, n_deleted=len(deleted))


def _write_features(work: Work, base: Generation, prepared: Prepared) -> Any:
    if prepared.columns == base.features.columns:
        return base.manifest.features
    return work.write_features(Features(prepared.columns, base.features.facts).encode())
