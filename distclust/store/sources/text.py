"""Text as a bag of words: folders of documents, JSON lines, or a document a line.

- A folder of ``.txt`` files: every file is a document, named by its path in the folder.
- ``.jsonl`` or ``.ndjson``: every line is an object with the text in one field, perhaps an id
  in another, and annotations in the rest.
- Any other ``.txt`` file: every line is a document, also an empty one.

All are UTF-8, also gzipped. Documents are read once, counted, and forgotten; terms are held in
memory (see ``vocabulary``). Rows that join a store are counted in the terms that it has and in
the way it was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.matrix import Column, NumberKind, default_columns
from distclust.store.rows import Rows
from distclust.store.sources.annotations import settle_kind, unpack_annotation
from distclust.store.sources.base import (
    IdsKind,
    ObsKind,
    Prepared,
    Scratch,
    Source,
    SourceOptions,
)
from distclust.store.sources.documents import (
    Fields,
    count_files,
    count_lines,
    count_objects,
    group_files,
)
from distclust.store.sources.files import SourceFile, name_files
from distclust.store.sources.flat import rebuild_csr, rebuild_texts
from distclust.store.sources.lines import files_of_lines, fill_lines
from distclust.store.sources.prepare import first_rows, rows_of_files
from distclust.store.sources.schema import smallest_integer
from distclust.store.sources.spool import PIECE_BYTES, Parsed, Piece, PiecedRows, Spool
from distclust.store.sources.vocabulary import Bag, TermTotals, check_bag

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper

Array: TypeAlias = npt.NDArray[Any]

_JSON_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
_MOST_FIELDS = 1000
_PART_BYTES = PIECE_BYTES


class TextSource(Source):
    """Documents whose terms are counted."""

    def __init__(self, files: tuple[SourceFile, ...], options: SourceOptions) -> None:
        check_bag(options)
        self.name = name_files(files)
        self._files = files
        self._options = options
        self._bag = Bag.chosen(options)
        if options.format == "jsonl" or files[0].name.lower().endswith(_JSON_SUFFIXES):
            self._unit = "object"
        else:
            self._unit = "file" if files[0].inside else "line"
            options.refuse_columns(self.name, "text")

    def identity(self) -> dict[str, Any]:
        """Return files and options."""
        files = [[*file.identity(), file.inside] for file in self._files]
        options = self._options.identity()
        return {"format": "text", "files": files, "options": options, "cut": _PART_BYTES}

    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Count the terms of all documents, then settle which of them are features."""
        spool, pieces = self._spool(scratch, mapper)
        if self._options.expected is None and not any(piece.n_rows for piece in pieces):
            raise InputError(self.name, "documents", "none", "Check the path.")
        columns = self._settle_columns(spool, pieces)
        lookups = None
        if self._bag.hashing is None:
            lookups = _keep_lookups(spool, pieces, columns, scratch)
        ids_kind = self._settle_ids(pieces)
        obs_kinds = self._settle_annotations(pieces)
        largest = max((piece.survey["largest"] for piece in pieces), default=0)
        dtype = np.dtype(np.bool_) if self._bag.binary else smallest_integer(0, largest)
        kinds = (ids_kind, obs_kinds)
        counts = [piece.n_rows for piece in pieces]
        load = _LoadRows(spool, pieces, first_rows(counts), lookups, len(columns), dtype, *kinds)
        return Prepared(
            PiecedRows(counts, len(columns), True, dtype, load),
            columns,
            obs_kinds,
            ids_kind or "integer",
            has_ids=ids_kind is not None,
            notes=(f"Every {self._unit} is a document.",),
            facts={"bag": self._bag.describe()},
            file_rows=self._file_rows(pieces),
        )

    def _spool(self, scratch: Scratch, mapper: Mapper) -> tuple[Spool, list[Piece]]:
        spool = Spool(scratch.below("documents"))
        if self._unit == "file":
            groups = group_files(self._files, _PART_BYTES)
            filled = spool.fill(count_files, groups, self._bag, mapper=mapper, stage="reading")
            return spool, list(filled)
        if self._unit == "line":
            work: tuple[Any, ...] = (count_lines, self._bag)
        else:
            work = (count_objects, self._bag, Fields.chosen(self._options))
        return spool, fill_lines(spool, self._files, _PART_BYTES, *work, mapper=mapper)

    def _file_rows(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        n_files = len(self._files)
        if self._unit == "file":
            return (1,) * n_files
        return rows_of_files(pieces, files_of_lines(self._files, _PART_BYTES), n_files)

    def _settle_columns(self, spool: Spool, pieces: Sequence[Piece]) -> tuple[Column, ...]:
        if self._options.expected is not None:
            return self._expected_columns(self._options.expected.columns)
        number: NumberKind = "bool" if self._bag.binary else "integer"
        if self._bag.hashing is not None:
            return default_columns(self._bag.hashing, number)
        totals = TermTotals()
        for piece in pieces:
            counts = (spool.array(piece, name) for name in ("documents", "occurrences"))
            totals.add(_terms(spool, piece), *counts)
        terms = totals.select(sum(piece.n_rows for piece in pieces), self._options)
        return tuple(Column(term, number=number) for term in terms)

    def _expected_columns(self, columns: tuple[Column, ...]) -> tuple[Column, ...]:
        if self._bag.hashing not in (None, len(columns)):
            got = f"{self._bag.hashing}"
            raise InputError("hashing", f"{len(columns)} as in the store", got, "Leave it out.")
        return columns

    def _settle_ids(self, pieces: Sequence[Piece]) -> IdsKind | None:
        found = [piece.survey["ids"] for piece in pieces if piece.n_rows]
        if not any(kinds for kinds, _ in found):
            return None
        if any(is_missing for _, is_missing in found):
            expected = "an id in every object, or in none"
            got = "both with and without one"
            raise InputError(self.name, expected, got, "Mend the file, or name another field.")
        wanted = self._options.expected.ids_kind if self._options.expected else None
        return "integer" if settle_kind(found, wanted) == "integer" else "text"

    def _settle_annotations(self, pieces: Sequence[Piece]) -> dict[str, ObsKind]:
        wanted = self._options.expected.obs_kinds if self._options.expected else {}
        found = [piece.survey["obs"] for piece in pieces if piece.n_rows]
        names = dict.fromkeys([*wanted, *(name for kinds in found for name in kinds)])
        if len(names) > _MOST_FIELDS:
            hint = "Name those to keep as annotations."
            raise InputError(self.name, f"at most {_MOST_FIELDS} fields", len(names), hint)
        absent = [[], True]  # what a piece says that never met the field
        return {
            name: settle_kind((kinds.get(name, absent) for kinds in found), wanted.get(name))
            for name in names
        }


def make_source(files: tuple[SourceFile, ...], options: SourceOptions) -> Source:
    """Return the source over documents."""
    return TextSource(files, options)


def _terms(spool: Spool, piece: Piece) -> list[str]:
    names = ("terms.bytes", "terms.ends", "terms.missing")
    arrays = {name: spool.array(piece, name) for name in names}
    terms: list[str] = rebuild_texts(arrays, "terms").tolist()
    return terms


@dataclass(frozen=True)
class _Lookups:
    """The column of every term of every piece."""

    spool: Spool
    pieces: Sequence[Piece]

    def columns(self, number: int) -> Array:
        """Columns of the terms of one piece; -1 for terms that are left out."""
        return self.spool.array(self.pieces[number], "columns")


def _keep_lookups(
    spool: Spool, pieces: Sequence[Piece], columns: Sequence[Column], scratch: Scratch
) -> _Lookups:
    """Write down where the terms of every piece went."""
    kept = Spool(scratch.below("columns"))
    column_of = {column.name: j for j, column in enumerate(columns)}
    found = []
    for number, piece in enumerate(pieces):
        known = kept.find(number)
        if known is None:
            places = [column_of.get(term, -1) for term in _terms(spool, piece)]
            known = kept.write(number, Parsed(0, {"columns": np.array(places, np.int32)}))
        found.append(known)
    return _Lookups(kept, found)


@dataclass(frozen=True)
class _LoadRows:
    """Reads all rows of a piece."""

    spool: Spool
    pieces: Sequence[Piece]
    starts: Sequence[int]
    lookups: _Lookups | None
    n_features: int
    dtype: np.dtype[Any]
    ids_kind: IdsKind | None
    obs_kinds: Mapping[str, ObsKind]

    def __call__(self, number: int) -> Rows:
        piece, start = self.pieces[number], self.starts[number]
        arrays = self.spool.arrays(piece)
        obs = {
            name: unpack_annotation(arrays, f"obs.{name}", kind, piece.n_rows)
            for name, kind in self.obs_kinds.items()
        }
        if self.ids_kind is None:
            ids: Array = np.arange(start, start + piece.n_rows)
        else:
            ids = unpack_annotation(arrays, "ids", self.ids_kind, piece.n_rows)
        return Rows(self._values(number, arrays), ids, obs)

    def _values(self, number: int, arrays: dict[str, Array]) -> Any:
        if self.lookups is not None:
            arrays = _keep_entries(arrays, self.lookups.columns(number)[arrays["indices"]])
        return rebuild_csr(arrays, self.n_features).astype(self.dtype)


def _keep_entries(arrays: dict[str, Array], columns: Array) -> dict[str, Array]:
    """Return the arrays of sparse rows in other columns, without entries in column -1."""
    is_kept = columns >= 0
    kept = {"indices": columns[is_kept]}
    if "data" in arrays:
        kept["data"] = arrays["data"][is_kept]
    kept["indptr"] = np.concatenate([[0], np.cumsum(is_kept)])[arrays["indptr"]]
    return kept
