"""Matrix stores: corpora on disk that grow, and never show half a change.

    store = create_store("corpus.zarr", prepared)       # complete or absent
    store = open_store("corpus.zarr")
    store.matrix()                                      # rows in blocks, for estimators
    store = store.append(more).delete(["spam-17"])      # each a new generation
    store.verify(); store.compact(); store.rollback(1); store.gc()

A handle is a view of one generation and never changes. What changes the store returns a
handle of the new generation, or raises `ConflictError` if somebody else was first.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from distclust.errors import InputError, StoreError
from distclust.store import growing
from distclust.store.adding import Addition, AnyLayout, Incoming, Provenance
from distclust.store.generation import Generation, open_generation, reopen
from distclust.store.growing import Revision
from distclust.store.ids import Duplicates
from distclust.store.manifest import read_latest, read_manifest, read_manifests
from distclust.store.mapping import Mapper, serial_map
from distclust.store.matrix import Column, Matrix, Profile, profile_block
from distclust.store.objects import Finding, Objects, open_objects
from distclust.store.removal import has_begun, remove_store
from distclust.store.segments import CodecName, IdsKind, LayoutName, ObsKind
from distclust.store.shelf import holds_results
from distclust.store.sources.base import Expected, Scratch
from distclust.store.stored_matrix import StoredMatrix
from distclust.store.sweeping import Swept, sweep
from distclust.store.verifying import missing_keys, verify
from distclust.store.work import reading
from distclust.validation import check_choice

if TYPE_CHECKING:
    import anndata

DAY = 86_400.0

_MARKS = ("zarr.json", ".zgroup", ".zarray")  # of Zarr stores, version 3 and 2


def create_store(
    url: str | os.PathLike[str],
    rows: Incoming,
    *,
    layout: AnyLayout = "auto",
    codec: CodecName | Literal["auto"] = "auto",
    duplicates: Duplicates = "refuse",
    identity: Any = None,
    tells_rows: bool = True,
    provenance: Provenance | None = None,
    mapper: Mapper = serial_map,
    fresh: bool | Literal["others"] = False,
) -> MatrixStore:
    """Make a store of rows: complete, or absent.

    Parameters
    ----------
    url
        A local folder or a URL.
    rows
        Rows with their description, or a function that makes them ready and may keep what
        took long in the scratch that it is given.
    layout
        "dense", "csr" or "compact"; "auto" goes by the values.
    codec
        "hot" (as in memory, checksummed) or "packed" (compressed shards); "auto" takes the
        first for local folders, the second elsewhere.
    duplicates
        What happens to rows with the same id: all of it is refused, or the first or the
        last of them is kept.
    identity
        JSON that differs whenever the rows may. With it work that was killed is taken up
        when it is asked for again, and work that is done is not repeated.
    tells_rows
        Whether an equal identity means equal rows; if not, as for iterators, work that is
        done is never taken for what is asked for.
    provenance
        JSON to keep with the generation, or a function of the `growing.Change` that returns
        it right before the generation is published.
    mapper
        How work over many parts is done.
    fresh
        Remove unfinished work that is there, instead of taking it up; never anything else.
        "others" takes it up if it is of the same identity, and removes it if not.

    Raises
    ------
    InputError
        If there is a store already, or the rows are not fit for one.
    ConflictError
        If another unfinished ingest is there.
    """
    check_choice(layout, "create_store: layout", ("auto", "dense", "csr", "compact"))
    check_choice(codec, "create_store: codec", ("auto", "hot", "packed"))
    objects = open_objects(url)
    chosen: CodecName = codec if codec != "auto" else "hot" if objects.is_local else "packed"
    addition = Addition(mapper, duplicates, False, identity, provenance or {}, tells_rows)
    is_kept = fresh == "others" and growing.has_created(objects, addition, layout, chosen)
    if fresh and not is_kept and read_latest(objects) is None and not holds_results(objects):
        remove_store(objects)
    return MatrixStore(growing.create(objects, rows, addition, layout, chosen))


def open_store(url: str | os.PathLike[str], generation: int | None = None) -> MatrixStore:
    """Open the present generation of a store, or an older one by its number.

    An AnnData or plain Zarr store of another program opens, too; it can be read but neither
    verified nor changed.

    Raises
    ------
    StoreError
        If nothing is there, or what is there is unfinished, damaged or of a newer format.
    """
    objects = open_objects(url)
    if generation is not None:
        return MatrixStore(open_generation(objects, generation))
    head = read_latest(objects)
    if head is None:
        return _open_other(objects)
    return MatrixStore(Generation(objects, head, read_manifest(head, objects.url)))


def _open_other(objects: Objects) -> MatrixStore:
    """Open what another program wrote, where there is no generation of ours."""
    if has_begun(objects):
        hint = "Run the same ingest again to finish it, or pass fresh (--fresh) to start over."
        raise StoreError(objects.url, "a complete store", "an unfinished ingest", hint)
    if not any(objects.exists(mark) for mark in _MARKS):
        hint = "Check the path, or ingest first."
        raise StoreError(objects.url, "a store", "nothing there", hint)
    from distclust.store.foreign_store import ForeignStore

    return ForeignStore(objects)


@dataclass(frozen=True)
class GenerationInfo:
    """What is to be told about a generation."""

    number: int
    action: str
    created: str
    n_rows: int
    n_deleted: int
    n_segments: int
    fingerprint: str
    provenance: Mapping[str, Any]
    is_current: bool


class MatrixStore:
    """One generation of a store, and the ways to the next.

    Attributes
    ----------
    url
        Where the store lies.
    generation
        Number of the generation.
    fingerprint
        Digest of all that can be read: the same for the same rows stored in the same way.
    """

    def __init__(self, generation: Generation) -> None:
        self._opened: Generation | None = generation
        self.url = generation.objects.url
        self.generation = generation.number
        self.fingerprint = generation.manifest.fingerprint

    def __repr__(self) -> str:
        n_rows, n_features = self.shape
        return (
            f"MatrixStore({self.url!r}, generation {self.generation}: "
            f"{n_rows} x {n_features}, {self.layout})"
        )

    @property
    def _generation(self) -> Generation:
        if self._opened is None:
            got = "one of another program, which is only read"
            hint = "Ingest it into a store of its own first (distclust ingest)."
            raise InputError(self.url, "a store of distclust", got, hint)
        return self._opened

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of live rows and of features."""
        return self._generation.manifest.n_rows, self._generation.manifest.n_features

    @property
    def columns(self) -> tuple[Column, ...]:
        """Name and meaning of every feature."""
        return self._generation.features.columns

    @property
    def facts(self) -> Mapping[str, Any]:
        """What was learned from the first rows and is used again for new ones."""
        return self._generation.features.facts

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Where the rows of this change came from, and what was decided about them."""
        return self._generation.manifest.provenance

    @property
    def layout(self) -> LayoutName:
        """How rows are stored."""
        return self._generation.manifest.layout

    @property
    def codec(self) -> CodecName:
        """How chunks are coded."""
        return self._generation.manifest.codec

    @property
    def ids_kind(self) -> IdsKind:
        """Whether row ids are whole numbers or text."""
        return self._generation.manifest.ids_kind

    @property
    def obs_kinds(self) -> dict[str, ObsKind]:
        """Kinds of the annotations of rows, by name."""
        return dict(self._generation.manifest.obs)

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays of this generation, deleted rows included."""
        return sum(segment.n_bytes for segment in self._generation.segments)

    def expected(self) -> Expected:
        """Return what a source has to know about the store that its rows are to join."""
        return Expected(self.columns, self.obs_kinds, self.ids_kind, self.facts)

    def matrix(self) -> Matrix:
        """Return the live rows as a matrix."""
        return StoredMatrix(self._generation)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Matrix]:
        """Give the live rows and keep `gc` from removing them while the context is open."""
        generation = self._generation
        with reading(generation.objects, generation.number):
            # Opened again once it is held: it may have gone before.
            yield StoredMatrix(reopen(generation.objects, generation.number, generation.digest))

    def refresh(self) -> MatrixStore:
        """Return a handle of the present generation."""
        return open_store(self.url)

    def append(
        self,
        rows: Incoming,
        *,
        duplicates: Duplicates = "refuse",
        identity: Any = None,
        tells_rows: bool = True,
        provenance: Mapping[str, Any] | None = None,
        mapper: Mapper = serial_map,
    ) -> MatrixStore:
        """Add rows at the end.

        Parameters
        ----------
        rows
            Rows with their description, as for `create_store`: the same features in the
            same order. Levels of categories that are new go to the end. Rows without ids
            are numbered on if the ids of the store are whole numbers.
        duplicates
            Rows whose id is there already, or twice among the new ones: all of it is
            refused; or the first is kept, so that stored rows stay; or the last is, so that
            stored rows give way.
        identity, tells_rows, provenance, mapper
            As for `create_store`.
        """
        addition = Addition(mapper, duplicates, False, identity, provenance or {}, tells_rows)
        return MatrixStore(growing.append(self._generation, rows, addition, "append"))

    def replace(
        self,
        rows: Incoming,
        *,
        duplicates: Duplicates = "refuse",
        identity: Any = None,
        tells_rows: bool = True,
        provenance: Mapping[str, Any] | None = None,
        mapper: Mapper = serial_map,
    ) -> MatrixStore:
        """Put rows in the place of those with the same ids, and add the others.

        A replaced row leaves its position; the new one comes at the end. `duplicates` is
        about the new rows among themselves.
        """
        addition = Addition(mapper, duplicates, True, identity, provenance or {}, tells_rows)
        return MatrixStore(growing.append(self._generation, rows, addition, "replace"))

    def delete(
        self,
        ids: Sequence[Any],
        *,
        missing: Literal["refuse", "ignore"] = "refuse",
        provenance: Mapping[str, Any] | None = None,
        mapper: Mapper = serial_map,
    ) -> MatrixStore:
        """Delete rows by their ids; ids that no row has are refused or ignored."""
        told = provenance or {}
        return MatrixStore(growing.delete(self._generation, ids, missing, told, mapper))

    def revise(
        self,
        revision: Revision | Callable[[Scratch], Revision],
        *,
        duplicates: Duplicates = "refuse",
        identity: Any = None,
        provenance: Provenance | None = None,
        mapper: Mapper = serial_map,
    ) -> MatrixStore:
        """Bring the rows of files up to date: add, replace and delete in one generation.

        Of a file that is read again, rows that it gave before and gives still keep their
        positions; those that it gives no longer are deleted, and the others come at the
        end. Rows are the same if values, annotations and ids are; ids that were counted do
        not matter. There is a generation even if no row differs.

        Parameters
        ----------
        revision
            The files that were read, and the stored positions that they wrote before; or a
            function that makes it ready, as for `create_store`.
        duplicates
            As for `append`: about new rows among themselves, and about rows of other files.
        identity, mapper
            As for `create_store`.
        provenance
            JSON to keep with the generation, or a function of the `growing.Change` that
            returns it right before the generation is published.
        """
        addition = Addition(mapper, duplicates, False, identity, provenance or {})
        return MatrixStore(growing.revise(self._generation, revision, addition))

    def compact(
        self, *, provenance: Mapping[str, Any] | None = None, mapper: Mapper = serial_map
    ) -> MatrixStore:
        """Write the live rows into one segment; deleted rows lose their positions.

        Older generations and their space stay until `gc`.
        """
        return MatrixStore(growing.compact(self._generation, provenance or {}, mapper))

    def rank(self, positions: Sequence[int]) -> list[int]:
        """Return how many live rows come before stored positions: where they go by `compact`."""
        places = np.asarray(positions, np.int64)
        ranks: list[int] = (places - np.searchsorted(self._generation.tombstones, places)).tolist()
        return ranks

    def rollback(
        self, generation: int, *, provenance: Mapping[str, Any] | None = None
    ) -> MatrixStore:
        """Make the content of an older generation the present one again."""
        return MatrixStore(growing.roll_back(self._generation, generation, provenance or {}))

    def generations(self) -> list[GenerationInfo]:
        """Return all generations that are kept, the oldest first."""
        manifests = read_manifests(self._generation.objects)
        return [
            GenerationInfo(
                number,
                manifest.action,
                manifest.created,
                manifest.n_rows,
                manifest.n_deleted,
                len(manifest.segments),
                manifest.fingerprint,
                manifest.provenance,
                is_current=number == max(manifests),
            )
            for number, manifest in manifests.items()
        ]

    def verify(self, mapper: Mapper = serial_map) -> list[Finding]:
        """Read all of the store; return every missing, truncated, altered or foreign object."""
        return verify(self._generation.objects, mapper)

    def gc(
        self,
        keep: int = 1,
        older_than: float = DAY,
        grace: float = DAY,
        now: float | None = None,
    ) -> Swept:
        """Remove old generations, and what unfinished changes left.

        Parameters
        ----------
        keep
            How many of the newest generations stay.
        older_than
            Of the others, those that were superseded less than so many seconds ago stay as
            well, for readers that hold no lease.
        grace
            Unfinished changes begun less than so many seconds ago stay, to be taken up.
        now
            The time, in seconds since 1970; None asks the clock.
        """
        if keep < 1 or older_than < 0 or grace < 0:
            got = f"keep={keep}, older_than={older_than}, grace={grace}"
            raise InputError(
                "gc", "keep of at least 1 and times of at least 0", got, "Pass keep=1."
            )
        return sweep(self._generation.objects, keep, older_than, grace, now)

    def profile(self, mapper: Mapper = serial_map, *, with_deleted: bool = False) -> Profile:
        """Return facts about every column, over the live rows.

        With deleted rows, if `with_deleted`: that takes no reading of a store of ours.
        """
        matrix = self.matrix()
        if matrix.n_blocks == 0:
            return profile_block(matrix.read_all())
        parts = self._known_profiles(with_deleted)
        if not parts:
            parts = mapper(_profile_of_block, range(matrix.n_blocks), matrix, stage="profile")
        return functools.reduce(Profile.combine, parts)

    def _known_profiles(self, with_deleted: bool) -> Iterable[Profile]:
        """Profiles that were kept when rows were written; deleted rows are in them."""
        if self._generation.manifest.n_deleted > 0 and not with_deleted:
            return ()
        return [segment.profile for segment in self._generation.segments]

    def health(self) -> str:
        """Say from listings alone whether all objects are there; `verify` reads them."""
        objects, generation = self._generation.objects, self._generation
        pairs = zip(generation.manifest.segments, generation.segments, strict=True)
        missing = [
            key for entry, table in pairs for key in missing_keys(objects, entry.path, table)
        ]
        if missing:
            noun = "object is" if len(missing) == 1 else "objects are"
            return f"damaged: {len(missing)} {noun} missing or cut short, the first: {missing[0]}"
        return "complete"

    def info(self) -> dict[str, Any]:
        """Return what is to be told about the store, as JSON values."""
        manifest = None if self._opened is None else self._opened.manifest
        return {
            "url": self.url,
            "generation": self.generation,
            "shape": list(self.shape),
            "layout": self.layout,
            "codec": self.codec,
            "segments": 1 if manifest is None else len(manifest.segments),
            "deleted": 0 if manifest is None else manifest.n_deleted,
            "blocks": self.matrix().n_blocks,
            "size_bytes": self.size_bytes,
            "ids": self.ids_kind,
            "annotations": self.obs_kinds,
            "fingerprint": self.fingerprint,
            "created": "" if manifest is None else manifest.created,
            "health": self.health(),
        }

    def to_anndata(self) -> anndata.AnnData:
        """Return the live rows in memory as AnnData, with ids, annotations and names."""
        from distclust.store.anndata_view import to_anndata

        return to_anndata(self._generation)


def _profile_of_block(index: int, matrix: Matrix) -> Profile:
    return profile_block(matrix.block(index))
