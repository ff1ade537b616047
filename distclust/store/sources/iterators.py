"""Rows that a Python program yields: arrays, sparse matrices or tables, a batch at a time.

An iterator can be read once, so its rows go into the spool as they come, in pieces of a few
MB whatever the size of its batches. Work that stopped is taken up with an iterator that
yields the same again: pieces that are in the spool are compared and not written twice. Blocks
in memory are told apart by their content. An iterator says nothing before it is read, and its
identity says so: equal ones do not mean equal rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError, OtherRowsError
from distclust.store.matrix import default_columns, number_kind
from distclust.store.rows import Rows
from distclust.store.sources.annotations import settle_kind, unpack_annotation
from distclust.store.sources.base import IdsKind, Prepared, Scratch, Source, SourceOptions
from distclust.store.sources.batches import Batch, join_batches, read_batch, read_table
from distclust.store.sources.cells import as_text
from distclust.store.sources.flat import rebuild_csr
from distclust.store.sources.packing import pack
from distclust.store.sources.prepare import PlacedPieces, first_rows, prepare_table
from distclust.store.sources.roles import Roles, assign_roles
from distclust.store.sources.spool import PIECE_BYTES, Parsed, Piece, PiecedRows, Spool

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper

Array: TypeAlias = npt.NDArray[Any]

_PIECE_BYTES = PIECE_BYTES


class IteratorSource(Source):
    """Rows from an iterable of blocks, or from one block."""

    name = "iterator"

    def __init__(self, blocks: Any, options: SourceOptions) -> None:
        is_block = hasattr(blocks, "shape") or hasattr(blocks, "columns")
        self._blocks: Iterable[Any] = [blocks] if is_block else blocks
        self._options = options
        self.tells_rows = isinstance(self._blocks, (list, tuple))
        if not isinstance(self._blocks, Iterable):
            expected = "a path, a URL, or an iterable of blocks of rows"
            raise InputError("source", expected, repr(blocks)[:60], "Pass one of these.")

    def identity(self) -> dict[str, Any]:
        """Return the options, and a digest of rows that are in memory."""
        return {
            "format": "iterator",
            "options": self._options.identity(),
            "cut": _PIECE_BYTES,
            "tells_rows": self.tells_rows,
            "content": self._digest() if self.tells_rows else None,
        }

    def _digest(self) -> str:
        from distclust.store.objects import checksum

        content = []
        for parsed in _joined(_read(self._blocks, self.name), _PIECE_BYTES):
            content.append(json.dumps([parsed.n_rows, parsed.survey]).encode())
            for name, array in parsed.arrays.items():
                content += [name.encode(), checksum(array.tobytes())]
        return checksum(*content).hex()

    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Read all rows, then settle what they hold."""
        spool = Spool(scratch.below("batches"))
        pieces = list(self._spooled(spool))
        if not any(piece.n_rows for piece in pieces):
            raise InputError(self.name, "rows", "none", "Check that it was not read before.")
        if pieces[0].survey["described"][0] == "table":
            return self._prepare_tables(spool, pieces, scratch, mapper)
        return self._prepare_numbers(spool, pieces)

    def _spooled(self, spool: Spool) -> Iterator[Piece]:
        """Yield the piece of every few MB of rows; those that are there must be the same."""
        number = -1
        for number, parsed in enumerate(_joined(_read(self._blocks, self.name), _PIECE_BYTES)):
            known = spool.find(number)
            if known is None:
                yield spool.write(number, parsed)
                continue
            if not _is_same(parsed, known.n_rows, known.survey, spool.arrays(known)):
                raise self._changed("others")
            yield known
        if spool.find(number + 1) is not None:
            raise self._changed("fewer")

    def _changed(self, got: str) -> OtherRowsError:
        hint = "Pass an iterator that yields the same rows, or start over (fresh)."
        return OtherRowsError(self.name, "the rows of the run that is taken up", got, hint)

    def _prepare_numbers(self, spool: Spool, pieces: Sequence[Piece]) -> Prepared:
        self._options.refuse_columns(self.name, "numbers without names")
        kind, n_features, _ = pieces[0].survey["described"]
        dtype = np.result_type(*(np.dtype(piece.survey["dtype"]) for piece in pieces))
        expected = self._options.expected
        ids_kind = _settle_ids(pieces, expected.ids_kind if expected else None)
        counts = [piece.n_rows for piece in pieces]
        is_sparse = kind == "sparse matrix"
        load = _LoadRows(spool, pieces, first_rows(counts), n_features, dtype, ids_kind)
        return Prepared(
            PiecedRows(counts, n_features, is_sparse, dtype, load),
            default_columns(n_features, number_kind(dtype)),
            ids_kind=ids_kind or "integer",
            has_ids=ids_kind is not None,
        )

    def _prepare_tables(
        self, spool: Spool, pieces: Sequence[Piece], scratch: Scratch, mapper: Mapper
    ) -> Prepared:
        _, index, *names = pieces[0].survey["described"]
        place = None if index is None else len(names) - 1
        roles = assign_roles(names, self._options, self.name, place)
        starts = first_rows([piece.n_rows for piece in pieces])

        def fill(target: Spool, roles: Roles) -> PlacedPieces:
            filled = target.fill(_pack_table, pieces, spool, roles, mapper=mapper, stage="reading")
            places = (partial(_place, start) for start in starts)
            return zip(filled, places, strict=True)

        return prepare_table(self.name, roles, fill, self._options, scratch)


make_source = IteratorSource


def _read(blocks: Iterable[Any], name: str) -> Iterator[Batch]:
    """Yield the batches that have rows, checked, also against the first one."""
    first: list[Any] | None = None
    for number, block in enumerate(blocks):
        where = f"{name}, batch {number}"
        batch = read_batch(block, where)
        if batch.n_rows == 0:
            continue
        found = batch.describe()
        first = first or found
        if found != first:
            told = [", ".join(map(str, description[:8])) for description in (first, found)]
            hint = "Yield batches of one kind with the same columns."
            raise InputError(where, f"what the first one is ({told[0]})", told[1], hint)
        yield batch


def _joined(batches: Iterable[Batch], most_bytes: int) -> Iterator[Parsed]:
    """Yield the rows in pieces of one type and at most so many bytes, or of one row."""
    waiting: list[Batch] = []
    n_bytes = 0
    for part in (part for batch in batches for part in batch.cut(most_bytes)):
        is_full = n_bytes + part.n_bytes > most_bytes
        if waiting and (is_full or part.type != waiting[0].type):
            yield join_batches(waiting)
            waiting, n_bytes = [], 0
        waiting.append(part)
        n_bytes += part.n_bytes
    if waiting:
        yield join_batches(waiting)


def _is_same(parsed: Parsed, n_rows: int, survey: Any, arrays: Mapping[str, Array]) -> bool:
    """Whether a piece holds what was parsed, bit by bit."""
    return (
        (parsed.n_rows, parsed.survey, parsed.arrays.keys()) == (n_rows, survey, arrays.keys())
        and all(array.dtype == arrays[name].dtype for name, array in parsed.arrays.items())
        and all(array.tobytes() == arrays[name].tobytes() for name, array in parsed.arrays.items())
    )


def _settle_ids(pieces: Sequence[Piece], wanted: IdsKind | None) -> IdsKind | None:
    found = [piece.survey["ids"] for piece in pieces]
    if not found[0][0]:
        return None
    return "integer" if settle_kind(found, wanted) == "integer" else "text"


def _pack_table(piece: Piece, spool: Spool, roles: Roles) -> Parsed:
    import pyarrow as pa

    table = read_table(spool.array(piece, "table"))
    columns = {j: table.column(place) for j, place in enumerate(roles.places)}
    texts = {j: pa.chunked_array([as_text(columns[j])]) for j in columns if j in roles.as_text}
    return pack(columns | texts, piece.n_rows, roles)


def _place(start: int, row: int) -> str:
    return f"{IteratorSource.name}, row {start + row}"


@dataclass(frozen=True)
class _LoadRows:
    """Reads all rows of a piece of numbers."""

    spool: Spool
    pieces: Sequence[Piece]
    starts: Sequence[int]
    n_features: int
    dtype: np.dtype[Any]
    ids_kind: IdsKind | None

    def __call__(self, number: int) -> Rows:
        piece, start = self.pieces[number], self.starts[number]
        arrays = self.spool.arrays(piece)
        if self.ids_kind is None:
            ids: Array = np.arange(start, start + piece.n_rows)
        else:
            ids = unpack_annotation(arrays, "ids", self.ids_kind, piece.n_rows)
        values = arrays["values"] if "values" in arrays else rebuild_csr(arrays, self.n_features)
        return Rows(values.astype(self.dtype, copy=False), ids)
