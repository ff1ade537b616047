"""Steps of changes that add rows: what is asked for, what is written, what it comes to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.columns import Features
from distclust.store.generation import Generation, encode_positions
from distclust.store.ids import (
    Duplicates,
    SourceIds,
    Span,
    StoredIds,
    count_shared,
    find_repeats,
)
from distclust.store.manifest import Manifest, SegmentEntry
from distclust.store.mapping import Mapper
from distclust.store.matching import trim_spans
from distclust.store.matrix import Profile
from distclust.store.segments import (
    CodecName,
    LayoutName,
    SegmentReader,
    SegmentSpec,
    choose_layout,
    survey_rows,
    write_segment,
)
from distclust.store.sources.base import Prepared, Scratch
from distclust.store.surveys import holds_counts
from distclust.store.work import Work
from distclust.validation import check_choice

Positions: TypeAlias = npt.NDArray[np.int64]
Incoming: TypeAlias = "Prepared | Callable[[Scratch], Prepared]"
AnyLayout: TypeAlias = 'LayoutName | Literal["auto"]'

CHECKING = "checking ids"

_NONE: Positions = np.empty(0, np.int64)
_EXACT = 2.0**53  # larger whole numbers are rounded as float64
_KEEP_ONE = "Keep the first or the last of them with duplicates (--duplicates)."


@dataclass(frozen=True)
class Change:
    """What a change does, told before it is published.

    Attributes
    ----------
    ranges
        Stored positions that each file wrote and may still own, by file.
    n_added, n_changed, n_deleted, n_same
        Rows that are new, that take the place of others of the same id, that go without
        another in their place, and that were read again and stay.
    notes
        What was decided when the rows were read.
    """

    ranges: tuple[tuple[Span, ...], ...]
    n_added: int
    n_changed: int = 0
    n_deleted: int = 0
    n_same: int = 0
    notes: tuple[str, ...] = ()


Provenance: TypeAlias = Mapping[str, Any] | Callable[[Change], Mapping[str, Any]]


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
        JSON to keep with the generation, or a function that returns it right before the
        generation is published.
    tells_rows
        Whether an equal identity means equal rows. If not (an iterator), unfinished work is
        taken up, but finished work is never taken for what is asked for.
    """

    mapper: Mapper
    duplicates: Duplicates = "refuse"
    replacing: bool = False
    identity: Any = None
    provenance: Provenance = field(default_factory=dict)
    tells_rows: bool = True

    def __post_init__(self) -> None:
        check_choice(self.duplicates, "duplicates", ("refuse", "first", "last"))

    def request(self, action: str, **others: Any) -> dict[str, Any] | None:
        """Return what tells this change from others, if it can be told."""
        if self.identity is None:
            return None
        asked = {"identity": self.identity, "duplicates": self.duplicates, **others}
        return {"action": action, **asked}

    def describe(self, change: Callable[[], Change]) -> Mapping[str, Any]:
        """Return the provenance of a change."""
        return self.provenance(change()) if callable(self.provenance) else self.provenance


def prepare(incoming: Incoming, work: Work) -> Prepared:
    """Return rows that are ready to be written."""
    if isinstance(incoming, Prepared):
        return incoming
    return incoming(scratch_of(work))


def scratch_of(work: Work) -> Scratch:
    """Return the place where a source keeps what took long."""
    return Scratch(work.objects, f"{work.scratch}/source")


def without_repeats(
    prepared: Prepared, stored: StoredIds, addition: Addition, work: Work, part: str = "ids"
) -> Prepared:
    """Leave out the rows that give way to others, before anything is written."""
    keep = addition.duplicates
    if keep == "refuse":
        return prepared  # found in what was written, which takes no pass over the rows
    if addition.replacing or keep == "last":
        stored = StoredIds()  # stored rows give way, whatever new ones do
    repeats = find_repeats(
        SourceIds(prepared.rows, work.objects, f"{work.scratch}/{part}"),
        stored,
        addition.mapper,
        is_exact=prepared.ids_kind == "integer",
        stage=CHECKING,
    )
    return prepared.without(repeats.losers(keep)[1])


def write_rows(
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


def check_exact(readers: Sequence[SegmentReader], where: str) -> None:
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


def check_ids(
    reader: SegmentReader, prepared: Prepared, stored: StoredIds, addition: Addition, where: str
) -> Positions:
    """Make sure that no id is there twice; return stored positions that give way."""
    new = StoredIds([reader])
    is_exact = prepared.ids_kind == "integer"
    repeats = find_repeats(new, stored, addition.mapper, is_exact=is_exact, stage=CHECKING)
    if not addition.replacing and addition.duplicates != "last":
        repeats.refuse(new, where, _KEEP_ONE)
        return _NONE
    repeats.among_new().refuse(new, where, _KEEP_ONE)
    return repeats.losers("last")[0]


def with_deleted(
    manifest: Manifest, base: Generation, positions: Positions, work: Work
) -> Manifest:
    """Return a manifest that has further positions deleted."""
    if len(positions) == 0:
        return manifest
    deleted = np.union1d(base.tombstones, positions)
    part = work.write_tombstones(encode_positions(deleted))
    return replace(manifest, tombstones=part, n_deleted=len(deleted))


def write_features(work: Work, base: Generation, prepared: Prepared) -> Any:
    """Return the file of the features, a new one if there are new levels."""
    if prepared.columns == base.features.columns:
        return base.manifest.features
    return work.write_features(Features(prepared.columns, base.features.facts).encode())


def first_change(kept: Prepared) -> Change:
    """Return what making a store comes to."""
    counts = (kept.rows.n_rows,) if kept.file_rows is None else kept.file_rows
    return Change(_spans_of(counts, 0), kept.rows.n_rows, notes=kept.notes)


def change_of(
    base: Generation,
    kept: Prepared,
    reader: SegmentReader | None,
    gone: Positions,
    n_same: int,
    earlier: Sequence[Sequence[Span]] | None = None,
) -> Change:
    """Return what adding rows and letting others go comes to."""
    n_new = kept.rows.n_rows
    counts = (n_new,) if kept.file_rows is None else kept.file_rows
    deleted = np.union1d(base.tombstones, gone)
    ranges = tuple(
        (*trim_spans(before, deleted), *after)
        for before, after in zip(
            earlier or [()] * len(counts),
            _spans_of(counts, base.manifest.n_stored),
            strict=True,
        )
    )
    n_changed = 0
    if kept.has_ids and reader is not None:
        n_changed = count_shared(StoredIds([reader]), StoredIds(base.readers), gone)
    n_added, n_deleted = n_new - n_changed, len(gone) - n_changed
    return Change(ranges, n_added, n_changed, n_deleted, n_same, kept.notes)


def _spans_of(counts: Sequence[int], first: int) -> tuple[tuple[Span, ...], ...]:
    """Return where the rows of every file lie that are stored one after the other."""
    ends = itertools.accumulate(counts, initial=first)
    return tuple(((a, b),) if a < b else () for a, b in itertools.pairwise(ends))
