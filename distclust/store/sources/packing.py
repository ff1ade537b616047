"""Tables become pieces of a spool with their surveys, and pieces become rows.

Numbers among the features of a piece are one matrix of the smallest type that holds them;
text, annotations and ids stay Arrow columns. Columns are known by their place among those
that are read (see `distclust.store.sources.schema`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.store.sources import cells
from distclust.store.sources.roles import Roles
from distclust.store.sources.schema import (
    BOOL,
    INTEGER,
    LONG,
    TEXT,
    Schema,
    Survey,
    TextFacts,
)
from distclust.store.sources.spool import Parsed, Piece, Spool

if TYPE_CHECKING:
    import pyarrow as pa

    from distclust.store.rows import Rows

Array: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = "Mapping[int, pa.ChunkedArray]"


@dataclass(frozen=True, eq=False)
class Numbers:
    """Columns of numbers side by side.

    Attributes
    ----------
    matrix
        Shape (n_rows, n_columns), NaN for missing values.
    places
        Place of each column.
    flags
        What each column is, shape (n_columns,).
    n_missing
        Missing values of each column, shape (n_columns,).
    """

    matrix: Array
    places: Sequence[int]
    flags: npt.NDArray[np.uint8]
    n_missing: npt.NDArray[np.int64]


def pack(
    columns: Columns,
    n_rows: int,
    roles: Roles,
    *,
    numbers: Numbers | None = None,
    flags: Mapping[int, int] | None = None,
    line_of: Callable[[int], int] | None = None,
) -> Parsed:
    """Return columns as a piece of a spool, with its survey.

    Parameters
    ----------
    columns
        By place, shape (n_rows,) each.
    n_rows
        Rows of the piece.
    roles
        What the columns are for.
    numbers
        Features that are a matrix already.
    flags
        What columns were found to be, where their type does not tell.
    line_of
        Function of a row that returns its line. Without it types are certain, and text is
        not judged to be misspelt numbers.
    """
    kept = {j: _kept(column, j, roles) for j, column in columns.items()}
    own = [j for j in kept if roles.is_feature(j) and cells.is_number(kept[j].type)]
    places = [*(numbers.places if numbers else ()), *own]
    parts = [*([numbers.matrix] if numbers else ()), *_gathered(kept, own, n_rows)]
    nothing = np.empty((n_rows, 0), np.uint8)
    matrix, bounds = cells.narrow(parts[0] if len(parts) == 1 else np.hstack([nothing, *parts]))
    found = _flags(columns, roles, numbers, flags or {})
    rest = {j: kept[j] for j in kept.keys() - set(own)}
    wide = _wide_bounds(matrix, [k for k, j in enumerate(places) if found[j] == INTEGER])
    if bounds is None and wide:  # whole numbers that no type of theirs holds together
        bounds = min(low for low, _ in wide.values()), max(high for _, high in wide.values())
    whole = {places[k]: ends for k, ends in wide.items()} | cells.whole_bounds(rest)
    survey = Survey(
        flags=found.tobytes().hex(),
        missing=_missing(kept, numbers),
        bounds=bounds,
        long={str(j): (low, high) for j, (low, high) in whole.items() if max(-low, high) >= LONG},
        infinite=_first_infinite(matrix, places, line_of),
        texts={str(j): facts for j, facts in _texts(kept, found, roles, line_of)},
    )
    arrays = {"places": np.array(places, np.int32), "matrix": matrix, "rest": _to_bytes(rest)}
    candidate = survey["texts"].get(str(roles.candidate))
    if roles.candidate is not None and candidate is not None and candidate["is_distinct"]:
        # The levels of a column without repetitions are the column itself.
        arrays["keys"] = cells.hash_texts(kept[roles.candidate].dictionary)
    return Parsed(n_rows, arrays, survey)


def _wide_bounds(matrix: Array, columns: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the bounds of some columns of whole numbers, if 8 bytes hold each of them."""
    if not columns or len(matrix) == 0 or matrix.dtype.itemsize < 8:
        return {}
    low, high = np.fmin.reduce(matrix), np.fmax.reduce(matrix)
    return {k: (int(low[k]), int(high[k])) for k in columns if low[k] <= high[k]}


def _gathered(kept: Mapping[int, Any], places: Sequence[int], n_rows: int) -> list[Array]:
    return [cells.gather_numbers([kept[j] for j in places], n_rows)] if places else []


def _flags(
    columns: Columns, roles: Roles, numbers: Numbers | None, known: Mapping[int, int]
) -> npt.NDArray[np.uint8]:
    """Return what all columns are."""
    found = np.zeros(len(roles.names), np.uint8)
    for j, column in columns.items():
        found[j] = cells.flag_of(column.type, f"column {roles.names[j]!r}")
    for j, flag in known.items():
        found[j] = flag
    for j in roles.as_text & columns.keys():
        found[j] = found[j] and TEXT
    if numbers is not None:
        found[list(numbers.places)] = numbers.flags
    return found


def _missing(kept: Mapping[int, Any], numbers: Numbers | None) -> dict[str, int]:
    """Return how many values are missing, by place, where there are any."""
    counts = {str(j): kept[j].null_count for j in kept if kept[j].null_count}
    if numbers is not None and numbers.n_missing.any():
        pairs = zip(numbers.places, numbers.n_missing.tolist(), strict=True)
        counts |= {str(j): n_missing for j, n_missing in pairs if n_missing}
    return counts


def _kept(column: pa.ChunkedArray, j: int, roles: Roles) -> Any:
    """Return a column as it is kept: numbers, text, or levels and codes."""
    if cells.is_number(column.type) and j not in roles.as_text:
        return column
    text = cells.as_text(column)
    return text.dictionary_encode() if roles.is_feature(j) else text


def _texts(
    kept: Mapping[int, Any],
    flags: Array,
    roles: Roles,
    line_of: Callable[[int], int] | None,
) -> list[tuple[int, TextFacts]]:
    facts = []
    for j in np.flatnonzero(flags >= BOOL).tolist():
        if j == roles.ids:
            whole = cells.is_whole(kept[j])
            facts.append(
                (j, TextFacts(numbers=0, first=None, levels=[], is_distinct=False, is_whole=whole))
            )
        elif roles.is_feature(j) and flags[j] == BOOL:
            facts.append((j, cells.truth_facts(kept[j], line_of)))
        elif roles.is_feature(j):
            judged = None if j in roles.categories else line_of
            facts.append((j, cells.text_facts(kept[j], judged)))
    return facts


def _first_infinite(
    matrix: Array, places: Sequence[int], line_of: Callable[[int], int] | None
) -> tuple[int, int] | None:
    if matrix.dtype.kind != "f" or not np.isinf(matrix).any():
        return None
    row, k = np.argwhere(np.isinf(matrix))[0].tolist()
    return (line_of(row) if line_of else row), places[k]


def _to_bytes(columns: Mapping[int, Any]) -> Array:
    import pyarrow as pa

    if not columns:
        return np.empty(0, np.uint8)
    table = pa.table({str(j): column for j, column in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _from_bytes(content: Array) -> dict[int, pa.ChunkedArray]:
    import pyarrow as pa

    if not len(content):
        return {}
    table = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
    return {int(name): table.column(name) for name in table.column_names}


def make_rows(
    schema: Schema, matrix: Array, places: Sequence[int], others: Columns, first_row: int
) -> Rows:
    """Return the rows of a piece.

    Parameters
    ----------
    schema
        What becomes of the columns.
    matrix, places
        Columns of numbers, shape (n, len(places)), and the place of each.
    others
        The remaining columns by place.
    first_row
        Number of the piece's first row in the whole table.
    """
    import pyarrow as pa

    from distclust.store.rows import Rows

    n_rows = len(matrix)
    empty = pa.chunked_array([pa.nulls(n_rows)])
    if schema.ids is None:
        ids: Array = np.arange(first_row, first_row + n_rows)
    else:
        ids = cells.annotation(others[schema.ids], schema.ids_kind)
    obs = {name: cells.annotation(others.get(j, empty), kind) for name, j, kind in schema.obs}
    return Rows(_values(schema, matrix, places, others), ids, obs)


def _values(schema: Schema, matrix: Array, places: Sequence[int], others: Columns) -> Array:
    import pyarrow as pa

    if tuple(places) == schema.features:
        return matrix.astype(schema.dtype, copy=False)
    values = np.empty((len(matrix), len(schema.features)), schema.dtype)
    from_matrix = {j: k for k, j in enumerate(places)}
    pairs = [(d, from_matrix[j]) for d, j in enumerate(schema.features) if j in from_matrix]
    if pairs:
        targets, sources = map(list, zip(*pairs, strict=True))
        values[:, targets] = matrix[:, sources]
    for d, (j, column) in enumerate(zip(schema.features, schema.columns, strict=True)):
        if j not in from_matrix:
            levels = pa.array(column.levels, pa.string())
            values[:, d] = cells.level_codes(others[j], levels, f"column {column.name!r}")
    return values


@dataclass(frozen=True)
class SpooledTable:
    """Reads the rows of a piece from a spool; picklable.

    Attributes
    ----------
    spool, pieces
        Where the pieces are, and which.
    starts
        First row of every piece.
    schema
        What becomes of their columns.
    """

    spool: Spool
    pieces: Sequence[Piece]
    starts: Sequence[int]
    schema: Schema

    def __call__(self, number: int) -> Rows:
        """Return the rows of one piece."""
        arrays = self.spool.arrays(self.pieces[number])
        places = arrays["places"].tolist()
        others = _from_bytes(arrays["rest"])
        return make_rows(self.schema, arrays["matrix"], places, others, self.starts[number])


def read_text(spool: Spool, piece: Piece, column: int) -> Array:
    """Return one column of text of a piece in a spool."""
    return cells.annotation(_from_bytes(spool.array(piece, "rest"))[column], "text")
