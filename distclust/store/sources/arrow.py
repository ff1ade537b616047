"""Typed tables: Parquet and Arrow IPC (Feather), single files or folders of them.

Types are certain, so a table is read as it lies: a row group or record batch is a piece.
Only what types do not tell takes a pass of its own, over the columns concerned: levels of
text, bounds of whole numbers, missing values. Groups too large to be read whole again and
again, and streams, which cannot be entered in the middle, are spooled instead.

A column that pandas wrote as the index of a frame names the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.sources import cells
from distclust.store.sources.arrow_files import TypedFile, open_typed
from distclust.store.sources.base import Prepared, Scratch, Source, SourceOptions
from distclust.store.sources.files import SourceFile, name_files
from distclust.store.sources.packing import make_rows, pack
from distclust.store.sources.prepare import (
    PlacedPieces,
    first_rows,
    pieced_rows,
    prepare_table,
    prepared,
    settle_table,
)
from distclust.store.sources.roles import Roles, assign_roles, check_same_names
from distclust.store.sources.schema import REAL, Schema
from distclust.store.sources.spool import PIECE_BYTES, Parsed, Piece, Spool

if TYPE_CHECKING:
    import pyarrow as pa

    from distclust.store.mapping import Mapper
    from distclust.store.rows import Rows

_LARGEST_GROUP = 64 * 2**20  # bytes once decoded, about
_INDEX = "__index_level_0__"  # what pandas calls an index without a name


@dataclass(frozen=True)
class Group:
    """Some rows of a typed file that lie together, with what its types say."""

    table: TypedFile
    number: int
    flags: tuple[int, ...]  # by place among the columns that are read
    names: tuple[str, ...]  # in the file, likewise

    def read(self, places: Iterable[int]) -> dict[int, pa.ChunkedArray]:
        """Return columns by place."""
        wanted = list(places)
        columns = self.table.read(self.number, [self.names[j] for j in wanted]).columns
        return dict(zip(wanted, columns, strict=True))


class ArrowSource(Source):
    """One or more Parquet or Arrow files with the same columns."""

    def __init__(self, files: Sequence[SourceFile], options: SourceOptions) -> None:
        self.name = name_files(files)
        self._files = tuple(files)
        self._options = options

    def identity(self) -> dict[str, Any]:
        """Return the files with sizes and times, the options, and the size of pieces."""
        return {
            "files": [file.identity() for file in self._files],
            "options": self._options.identity(),
            "piece_bytes": PIECE_BYTES,
        }

    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Settle what types do not tell; spool what cannot be read group by group."""
        opened = [open_typed(file) for file in self._files]
        first, schema = opened[0]
        for table, _ in opened:
            check_same_names(table.names, first.names, table.file.url, first.file.url)
        names, index = _name_index(schema)
        roles = assign_roles(names, self._options, first.file.url, index)
        groups = [group for one in opened for group in _groups(*one, roles)]
        file_of = [i for i, (table, _) in enumerate(opened) for _ in range(table.n_groups)]
        if any(_is_unwieldy(table) for table, _ in opened):
            fill = partial(_fill_pieces, groups, mapper)
            return prepare_table(
                self.name, roles, fill, self._options, scratch, file_of, len(opened)
            )
        fill = partial(_fill_surveys, groups, mapper)
        read = partial(_read_text, groups)
        settled = settle_table(self.name, roles, fill, self._options, scratch, read).schema
        if all(_is_single(schema, names, settled) for _, schema in opened):
            settled = replace(settled, dtype=np.dtype(np.float32))
        counts = [group.table.counts[group.number] for group in groups]
        load = GroupReader(groups, first_rows(counts), settled)
        file_rows = tuple(sum(table.counts) for table, _ in opened)
        return prepared(pieced_rows(counts, settled, load), settled, file_rows)


make_source = ArrowSource


def _name_index(schema: pa.Schema) -> tuple[list[str], int | None]:
    """Return the names of all columns, and the place of one that was a frame's index."""
    names = list(schema.names)
    stored = json.loads((schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    if len(stored) != 1 or stored[0] not in names:  # a mere count is not stored
        return names, None
    index = names.index(stored[0])
    if names[index] == _INDEX and "row" not in names:
        names[index] = "row"
    return names, index


def _groups(table: TypedFile, schema: pa.Schema, roles: Roles) -> list[Group]:
    fields = [schema.field(place) for place in roles.places]
    where = f"{table.file.url}, column"
    flags = tuple(cells.flag_of(field.type, f"{where} {field.name!r}") for field in fields)
    names = tuple(field.name for field in fields)
    return [Group(table, number, flags, names) for number in range(table.n_groups)]


def _is_unwieldy(table: TypedFile) -> bool:
    """Whether groups of a file cannot be read whole whenever a few rows are wanted."""
    n_bytes = max(table.counts, default=0) * len(table.names) * 8
    return not table.can_seek or n_bytes > _LARGEST_GROUP


def _is_single(schema: pa.Schema, names: Sequence[str], settled: Schema) -> bool:
    """Whether all features are real numbers in single precision, or less."""
    types = (schema.field(names.index(column.name)).type for column in settled.columns)
    return all(str(dtype) in ("float", "halffloat") for dtype in types)


# ---- spooled --------------------------------------------------------------------------------


def _fill_pieces(
    groups: Sequence[Group], mapper: Mapper, spool: Spool, roles: Roles
) -> PlacedPieces:
    pieces = spool.fill(parse_group, groups, roles, mapper=mapper, stage="reading")
    return _placed(pieces, groups)


def parse_group(group: Group, roles: Roles) -> Iterator[Callable[[], Parsed]]:
    """Yield functions that pack the rows of a group, some MB at a time."""
    n_rows = max(PIECE_BYTES // (8 * len(group.names)), 256)
    for part in group.table.parts(group.number, group.names, n_rows):
        yield partial(pack, dict(enumerate(part.columns)), part.num_rows, roles)


def _placed(pieces: Iterable[Piece], groups: Sequence[Group]) -> PlacedPieces:
    """Yield pieces with what names their rows."""
    url, row = "", 1
    for piece in pieces:
        if groups[piece.number].table.file.url != url:
            url, row = groups[piece.number].table.file.url, 1
        yield piece, partial(_place, url, row)
        row += piece.n_rows


def _place(url: str, first: int, row: int) -> str:
    return f"{url}, row {first + row}"


# ---- read where it lies ---------------------------------------------------------------------


def _fill_surveys(
    groups: Sequence[Group], mapper: Mapper, spool: Spool, roles: Roles
) -> PlacedPieces:
    is_told = {j for j in range(len(roles.names)) if all(g.flags[j] == REAL for g in groups)}
    unsure = [j for j in range(len(roles.names)) if j not in is_told - roles.as_text]
    if unsure:
        pieces = spool.fill(survey_group, groups, roles, unsure, mapper=mapper, stage="surveying")
    else:
        pieces = (_told_by_types(i, group, roles) for i, group in enumerate(groups))
    return _placed(pieces, groups)


def survey_group(group: Group, roles: Roles, places: Sequence[int]) -> Parsed:
    """Return what some columns of a group say, and nothing of the rows themselves."""
    columns = group.read(places)
    n_rows = group.table.counts[group.number]
    parsed = pack(columns, n_rows, roles, flags=dict(enumerate(group.flags)))
    return replace(parsed, arrays={k: v for k, v in parsed.arrays.items() if k == "keys"})


def _told_by_types(number: int, group: Group, roles: Roles) -> Piece:
    n_rows = group.table.counts[group.number]
    survey = pack({}, n_rows, roles, flags=dict(enumerate(group.flags))).survey
    return Piece(number, 0, True, n_rows, 0, {}, survey)


def _read_text(
    groups: Sequence[Group], spool: Spool, piece: Piece, column: int
) -> npt.NDArray[Any]:
    return cells.annotation(groups[piece.number].read([column])[column], "text")


@dataclass(frozen=True)
class GroupReader:
    """Reads the rows of a group from its file; picklable.

    Attributes
    ----------
    groups
        All groups in order.
    starts
        First row of every group.
    schema
        What becomes of the columns.
    """

    groups: Sequence[Group]
    starts: Sequence[int]
    schema: Schema

    def __call__(self, number: int) -> Rows:
        """Return the rows of one group."""
        group, schema = self.groups[number], self.schema
        columns = group.read(range(len(group.names)))
        n_rows = group.table.counts[group.number]
        pairs = zip(schema.columns, schema.features, strict=True)
        numbers = [j for column, j in pairs if column.kind == "number"]
        matrix = cells.gather_numbers([columns.pop(j) for j in numbers], n_rows)
        if matrix.dtype.kind == "f" and np.isinf(matrix).any():
            row, k = np.argwhere(np.isinf(matrix))[0].tolist()
            where = f"{group.table.file.url}, row {self.starts[number] + row + 1}"
            hint = "Replace it by a finite number or a missing value."
            name = group.names[numbers[k]]
            raise InputError(f"{where}, column {name!r}", "finite numbers", "inf", hint)
        return make_rows(schema, matrix, numbers, columns, self.starts[number])
