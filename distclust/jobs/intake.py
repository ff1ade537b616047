"""Rows of the input come into the matrix store: what is new, changed or gone, and no more.

    known = ...                                    # inventory of the present generation
    survey = survey_input("incoming/", known)
    if not survey.is_quiet:
        intake = bring_in("out/rows.zarr", survey, known, reading, keep=keep)

The first time makes the store. After that every change of the input is one generation: files
that are new or changed are read, and their rows are compared with those that the same files
gave before (by id where the source names its rows, else by content). Rows that are as they
were keep their positions, others are deleted, replaced or added at the end.

The generation says which inventory it was made with, so that a run that was killed right
after publishing finds it, and so that positions are never taken for those of other rows: a
store that somebody else changed meanwhile is refused.

Memory: 24 bytes a row of changed files (see ``distclust.store.matching``), a few hundred
bytes a file, and what reading takes.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from distclust._version import __version__
from distclust.engine import map_ordered
from distclust.engine.ingesting import reading_options
from distclust.errors import ConflictError, InputError
from distclust.jobs.inventory import Inventory, KnownFile, Survey, survey_input
from distclust.store.adding import Change
from distclust.store.growing import Revision
from distclust.store.manifest import read_latest, read_manifest
from distclust.store.matrix_store import MatrixStore, create_store, open_store
from distclust.store.objects import open_objects
from distclust.store.sealed import plain
from distclust.store.sources import Scratch, Source, SourceOptions, open_files, open_source

__all__ = [
    "MARK",
    "Intake",
    "Inventory",
    "KnownFile",
    "Survey",
    "bring_in",
    "compact_rows",
    "present_inventory",
    "survey_input",
]

Layout = Literal["auto", "dense", "csr", "compact"]
Storage = Literal["auto", "hot", "packed"]
Duplicates = Literal["refuse", "first", "last"]
Keep = Callable[[Inventory], Mapping[str, Any]]

MARK = "intake"  # in the provenance of generations
_OPTION = re.compile(r"--([a-z]+)")


@dataclass(frozen=True)
class Intake:
    """What bringing rows in came to.

    Attributes
    ----------
    store
        The store as it is now.
    inventory
        What its rows came from.
    n_added, n_changed, n_deleted
        Rows that are new, that took the place of others of the same id, and that went
        without another in their place. Rows without ids never change: one goes, one comes.
    n_same
        Rows that were read again and stayed where they are.
    notes
        What was decided when files were read, one sentence each.
    """

    store: MatrixStore
    inventory: Inventory
    n_added: int = 0
    n_changed: int = 0
    n_deleted: int = 0
    n_same: int = 0
    notes: tuple[str, ...] = ()


def present_inventory(place: str | os.PathLike[str]) -> str | None:
    """Return the digest of the inventory that a store's present generation was made with.

    None if there is no store, or none that is complete.

    Raises
    ------
    InputError
        If something else made the store or changed it since.
    """
    objects = open_objects(place)
    head = read_latest(objects)
    if head is None:
        return None
    manifest = read_manifest(head, objects.url)
    mark = manifest.provenance.get(MARK)
    if not isinstance(mark, dict) or not isinstance(mark.get("inventory"), str):
        got = f"generation {head.number}, made by {manifest.action!r} of something else"
        hint = "Give the job a place of its own, or roll the store back to a generation of it."
        raise InputError(objects.url, "rows that a job brought in", got, hint)
    return str(mark["inventory"])


def bring_in(
    place: str | os.PathLike[str],
    survey: Survey,
    known: Inventory | None,
    reading: Mapping[str, Any],
    *,
    keep: Keep,
    layout: Layout = "auto",
    storage: Storage = "auto",
    duplicates: Duplicates = "refuse",
) -> Intake:
    """Make the store hold the rows of the input as it was surveyed, by one new generation.

    A call that was killed is taken up by the same call: what was parsed and written stays.
    If the input is as it was, there is no generation.

    Parameters
    ----------
    place
        Path or URL of the matrix store.
    survey
        What there is, and what differs from `known`.
    known
        The inventory of the present generation; None if there is no store yet.
    reading
        How to read files: fields of `distclust.store.sources.SourceOptions`, as JSON.
    keep
        Called with the new inventory right before the generation is published: stores it,
        and returns JSON that goes into the generation's provenance.
    layout, storage
        Of a new store, as for `distclust.ingest`.
    duplicates
        Ids that occur twice, in one file or in several: refused; or the row that came first
        or last is kept, where rows of one survey come in the order of the files.

    Raises
    ------
    InputError
        If files do not fit the store (other features, annotations or kinds of ids), or were
        read in another way before.
    ConflictError
        If the store is not the one that `known` and `survey` are about.
    """
    told = plain(reading)
    _check_known(place, survey, known, told)
    if known is not None and survey.is_quiet:
        return Intake(open_store(place), survey.refreshed(known))
    books = _Books(survey, known, told, keep)
    with _told_for_jobs(books.rows_read):
        store = _changed_store(place, survey, known, books, layout, storage, duplicates)
    return books.intake(store)


def _changed_store(
    place: str | os.PathLike[str],
    survey: Survey,
    known: Inventory | None,
    books: _Books,
    layout: Layout,
    storage: Storage,
    duplicates: Duplicates,
) -> MatrixStore:
    """Make the store, or its next generation."""
    options = reading_options(books.reading, "reading")
    if known is None:
        source = _open(survey, options)
        with source.held():
            return create_store(
                place,
                lambda scratch: source.prepare(scratch, map_ordered),
                layout=layout,
                codec=storage,
                duplicates=duplicates,
                identity=books.identity(),
                provenance=books.close,
                mapper=map_ordered,
                fresh="others",  # of files that have changed since it was begun
            )
    base = open_store(place)
    with contextlib.ExitStack() as stack:
        opened = None
        if survey.to_read:
            opened = _open(survey, replace(options, expected=base.expected()))
            stack.enter_context(opened.held())
        return base.revise(
            lambda scratch: books.revision(opened, scratch),
            duplicates=duplicates,
            identity=books.identity(),
            provenance=books.close,
            mapper=map_ordered,
        )


def compact_rows(place: str | os.PathLike[str], known: Inventory, *, keep: Keep) -> Intake:
    """Write the rows of a job's store into one piece; the inventory follows their positions.

    Files that own no row any more stay in the inventory, as they are part of the input.
    """
    store = open_store(place)
    if present_inventory(place) != known.digest:
        raise _other_store(store.url)
    moved = replace(known, files=tuple(_moved(file, store) for file in known.files))
    told = {**keep(moved), MARK: {"inventory": moved.digest}}
    return Intake(store.compact(provenance=told, mapper=map_ordered), moved)


def _moved(file: KnownFile, store: MatrixStore) -> KnownFile:
    ranks = (store.rank(span) for span in file.ranges)
    return replace(file, ranges=tuple((start, stop) for start, stop in ranks if start < stop))


def _check_known(
    place: str | os.PathLike[str], survey: Survey, known: Inventory | None, told: dict[str, Any]
) -> None:
    digest = None if known is None else known.digest
    if survey.against != (digest or "") or present_inventory(place) != digest:
        raise _other_store(os.fspath(place))
    if known is not None:
        check_reading(known, told, "reading")


def check_reading(known: Inventory, reading: Mapping[str, Any], where: str) -> None:
    """Refuse options by which the rows that are there were not read."""
    before, told = plain(known.reading), plain(reading)
    differing = [name for name in {**before, **told} if before.get(name) != told.get(name)]
    if differing:
        was = {name: before.get(name) for name in differing}
        got = str({name: told.get(name) for name in differing})
        expected = f"the options of the rows that are there, {was}"
        hint = "Restore them, or give the job another place to start anew."
        raise InputError(where, expected, got, hint)


@contextlib.contextmanager
def _told_for_jobs(rows: str) -> Iterator[None]:
    """Let refusals of `rows`, and of what is in files, say what to do about them in a job."""
    try:
        yield
    except InputError as error:
        hint = f"{error.hint}{_meant(error, rows)}{_keys_for(error.hint)}"
        if type(error) is not InputError or hint == error.hint:
            raise
        raise InputError(error.where, error.expected, error.got, hint) from None


def _meant(error: InputError, rows: str) -> str:
    """Return what to do if rows are meant not to fit the store."""
    if not error.where.startswith(rows):
        return ""
    return " If the change is meant, give the job another place (out) to start anew."


def _keys_for(hint: str) -> str:
    """Return where a job has the options of the command line that a hint names."""
    known = {**{name: name for name in ("ids", "drop", "obs")}, "category": "categories"}
    keys = [known[name] for name in dict.fromkeys(_OPTION.findall(hint)) if name in known]
    if not keys:
        return ""
    return f" In a job file: {', '.join(keys)} in [input.reading]."


def _other_store(url: str) -> ConflictError:
    hint = "Take the inventory that the present generation names, and survey the input again."
    got = "a store with rows of another inventory"
    return ConflictError(url, "the store that was surveyed", got, hint)


def _open(survey: Survey, options: SourceOptions) -> Source:
    if survey.store is not None:
        return open_source(survey.store, options)
    return open_files(survey.to_read, options)


class _Books:
    """Keeps account of one call: what is asked for, and what came of it."""

    def __init__(
        self,
        survey: Survey,
        known: Inventory | None,
        reading: dict[str, Any],
        keep: Keep,
    ) -> None:
        self._survey = survey
        self._known = {file.url: file for file in (known.files if known else ())}
        self.reading = reading
        self._keep = keep
        self._closed: tuple[Inventory, Change] | None = None

    def identity(self) -> dict[str, Any]:
        """Return what tells this change from others: content of files rather than times."""
        digests = self._survey.digests
        return {
            "known": self._survey.against,
            "files": [
                [file.url, file.inside, file.size, digests[file.url]]
                for file in self._survey.to_read
            ],
            "gone": [file.url for file in self._survey.gone],
            "reading": self.reading,
            "release": __version__,
        }

    def revision(self, source: Source | None, scratch: Scratch) -> Revision:
        """Read what is to be read."""
        gone = tuple(span for file in self._survey.gone for span in file.ranges)
        if source is None:
            return Revision(gone=gone)
        before = (self._known.get(file.url) for file in self._survey.to_read)
        earlier = tuple(() if file is None else file.ranges for file in before)
        return Revision(source.prepare(scratch, map_ordered), earlier, gone, self.rows_read)

    @property
    def rows_read(self) -> str:
        """What rows that are read are called."""
        names = [file.url for file in self._survey.to_read]
        also = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        return f"rows of {names[0]}{also}" if names else "no rows"

    def close(self, change: Change) -> dict[str, Any]:
        """Take stock right before the generation is published; return its provenance."""
        read = self._survey.to_read
        ranges = dict(zip((file.url for file in read), change.ranges, strict=True))
        files = []
        for file in self._survey.files:
            before = self._known.get(file.url)
            owned = ranges.get(file.url, before.ranges if before else ())
            digest = self._survey.digests.get(file.url) or (before.digest if before else "")
            files.append(KnownFile(file.url, file.size, file.stamp, digest, owned))
        inventory = Inventory(tuple(files), self.reading)
        self._closed = inventory, change
        counts = {
            name: getattr(change, f"n_{name}") for name in ("added", "changed", "deleted", "same")
        }
        mark = {"inventory": inventory.digest, "notes": list(change.notes), **counts}
        return {**self._keep(inventory), MARK: mark}

    def intake(self, store: MatrixStore) -> Intake:
        """Return what came of it."""
        if self._closed is None:  # published by a second process that did the same
            raise _other_store(store.url)
        inventory, change = self._closed
        counts = (change.n_added, change.n_changed, change.n_deleted, change.n_same)
        return Intake(store, inventory, *counts, change.notes)
