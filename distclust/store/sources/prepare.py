"""Tables in pieces are settled: types, levels, row ids, and the rows that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.store.rows import Rows, RowSource
from distclust.store.sources.base import Prepared, Scratch, SourceOptions
from distclust.store.sources.packing import SpooledTable, read_text
from distclust.store.sources.roles import Roles
from distclust.store.sources.schema import Schema, Totals, settle
from distclust.store.sources.spool import Piece, PiecedRows, Spool

Array: TypeAlias = npt.NDArray[Any]
# Pieces of a table, each with what turns its lines into places to name in errors.
PlacedPieces: TypeAlias = Iterable[tuple[Piece, Callable[[int], str]]]

_KEYS_AT_ONCE = 2**24  # 128 MB


class Settled(NamedTuple):
    """A table in a spool: where, in which pieces, and what its columns are."""

    spool: Spool
    pieces: list[Piece]
    schema: Schema


def prepare_table(
    name: str,
    roles: Roles,
    fill: Callable[[Spool, Roles], PlacedPieces],
    options: SourceOptions,
    scratch: Scratch,
    file_of: Sequence[int] | None = None,
    n_files: int = 0,
) -> Prepared:
    """Spool a table and settle what its columns are.

    Parameters
    ----------
    name
        The source, for errors.
    roles
        What the columns are for.
    fill
        Function that parses the table into a spool with `packing.pack`. It is called again
        if a column that seemed to be something else at first turns out to be text.
    options, scratch
        As for `Source.prepare`.
    file_of, n_files
        Number of the file that every item of the spool is a part of, and how many there are;
        None if there are no files.
    """
    spool, pieces, schema = settle_table(name, roles, fill, options, scratch, read_text)
    counts = [piece.n_rows for piece in pieces]
    load = SpooledTable(spool, pieces, first_rows(counts), schema)
    file_rows = None if file_of is None else rows_of_files(pieces, file_of, n_files)
    return prepared(pieced_rows(counts, schema, load), schema, file_rows)


def settle_table(
    name: str,
    roles: Roles,
    fill: Callable[[Spool, Roles], PlacedPieces],
    options: SourceOptions,
    scratch: Scratch,
    read_text: Callable[[Spool, Piece, int], Array],
) -> Settled:
    """Settle what the columns of a table are, of which the spool need hold only surveys.

    `read_text` returns a column of text of one piece; the rest is as in `prepare_table`.
    """
    for attempt in count():
        spool = Spool(scratch.below(f"table-{attempt}"))
        totals, pieces = survey_pieces(fill(spool, roles), roles)
        totals.check_slips()
        misread = totals.misread() - roles.as_text
        if not misread:
            break
        roles = roles.reading_as_text(misread)

    def is_distinct(column: int) -> bool:
        return are_distinct(spool, pieces, lambda i: read_text(spool, pieces[i], column))

    return Settled(spool, pieces, settle(totals, options.expected, name, is_distinct))


def survey_pieces(placed: PlacedPieces, roles: Roles) -> tuple[Totals, list[Piece]]:
    """Return the surveys of all pieces added up, and the pieces without them."""
    totals, pieces = Totals(roles), []
    for piece, place in placed:
        totals.add(piece.survey, piece.n_rows, place)
        pieces.append(replace(piece, survey=None))
    return totals, pieces


def first_rows(counts: Sequence[int]) -> list[int]:
    """Return the number of every piece's first row, given their numbers of rows."""
    starts = np.cumsum([0, *counts])[:-1].tolist()
    return [int(start) for start in starts]


def rows_of_files(pieces: Iterable[Piece], file_of: Sequence[int], n_files: int) -> tuple[int, ...]:
    """Return how many rows every file gave, given the file of every item of a spool."""
    file_rows = [0] * n_files
    for piece in pieces:
        file_rows[file_of[piece.number]] += piece.n_rows
    return tuple(file_rows)


def pieced_rows(counts: Sequence[int], schema: Schema, load: Callable[[int], Rows]) -> PiecedRows:
    """Return the rows of a table whose pieces `load` reads."""
    return PiecedRows(counts, len(schema.columns), False, schema.dtype, load)


def prepared(rows: RowSource, schema: Schema, file_rows: tuple[int, ...] | None) -> Prepared:
    """Return the rows of a table with what was settled about them."""
    return Prepared(
        rows,
        schema.columns,
        schema.obs_kinds,
        schema.ids_kind,
        has_ids=schema.ids is not None,
        notes=schema.notes,
        file_rows=file_rows,
    )


def are_distinct(spool: Spool, pieces: Sequence[Piece], texts: Callable[[int], Array]) -> bool:
    """Whether no text of a column occurs in two pieces, in bounded memory.

    Parameters
    ----------
    spool, pieces
        Pieces with an array ``keys``: the hashes of the texts.
    texts
        Function that returns the texts of a piece; called only if hashes are equal.
    """
    n_parts = -(-sum(piece.n_rows for piece in pieces) // _KEYS_AT_ONCE)
    return all(_are_distinct(spool, pieces, texts, n_parts, part) for part in range(n_parts))


def _are_distinct(
    spool: Spool,
    pieces: Sequence[Piece],
    texts: Callable[[int], Array],
    n_parts: int,
    part: int,
) -> bool:
    """Look at the texts whose hash leaves the remainder `part`."""
    keys = np.sort(np.concatenate([_keys(spool, piece, n_parts, part) for piece in pieces]))
    repeated = np.unique(keys[1:][keys[1:] == keys[:-1]])
    seen: set[str] = set()
    for i, piece in enumerate(pieces if len(repeated) else ()):
        rows = np.isin(_keys(spool, piece, 1, 0), repeated)
        if not rows.any():
            continue
        for text in texts(i)[rows].tolist():
            if text in seen:
                return False
            seen.add(text)
    return True


def _keys(spool: Spool, piece: Piece, n_parts: int, part: int) -> Array:
    keys = spool.array(piece, "keys") if piece.n_rows else np.empty(0, np.uint64)
    return keys[keys % np.uint64(n_parts) == part] if n_parts > 1 else keys
