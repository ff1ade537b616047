"""Columns of numbers, read all at once.

A parser of tables does some work for each column of each block of lines, and its columns
have to be woven into rows afterwards. Where cells are numbers, neither is needed: written
one below the other they are a single column, which Arrow reads at full speed, and which is
the matrix of rows as soon as it has been given its shape. Cells of other columns are copied
apart on the way and read as usual.

The first line tells which columns may be numbers. If a cell further down is none, nothing is
lost but time: the lines are then read in the usual way, with the same result.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.sources.cell_reader import MISSING, Grid
from distclust.store.sources.header import Header, records
from distclust.store.sources.packing import Numbers
from distclust.store.sources.schema import INTEGER, REAL, Roles

if TYPE_CHECKING:
    import pyarrow as pa

Array: TypeAlias = npt.NDArray[Any]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MISSING = frozenset(MISSING)
_FEWEST = 0.5  # of all columns; for less the detour does not pay


def split_numbers(content: bytes, header: Header, roles: Roles) -> tuple[Numbers, Grid] | None:
    """Return columns of numbers as a matrix, and the cells of all other columns.

    Parameters
    ----------
    content
        Whole lines; no quoted cell is open at their end.
    header
        What the first lines of the file say.
    roles
        What columns are for; numbers are looked for among features only.

    Returns
    -------
    None if there are too few numbers, or if a cell is not what it seemed to be.
    """
    place_of = {place: j for j, place in enumerate(roles.places)}
    is_number = _guess(content, header, roles, place_of)
    if is_number.mean() < _FEWEST:
        return None
    n_rows, cells, rest, is_real = _split(content, header, is_number)
    if n_rows < 1:
        return None
    (column,) = Grid(cells, ",", [0], has_empty_rows=True).read([0], ())
    places = [place_of[place] for place in np.flatnonzero(is_number).tolist()]
    numbers = _shape(column, n_rows, places, is_real[is_number])
    if numbers is None:
        return None
    others = np.flatnonzero(~is_number).tolist()
    return numbers, Grid(rest, header.separator, others, has_empty_rows=True)


def _guess(
    content: bytes, header: Header, roles: Roles, place_of: dict[int, int]
) -> npt.NDArray[np.bool_]:
    """Return which columns of the file hold numbers, to judge from the first line."""
    is_number = np.zeros(len(header.names), np.bool_)
    lines = content.lstrip(b"\r\n")
    line = lines[: lines.find(header.newline) + 1 or None]
    try:
        _, _, cells = next(records([line], header.separator, str), (0, 0, []))
    except InputError:  # not UTF-8, which is told elsewhere
        return is_number
    for place, cell in enumerate(cells[: len(is_number)]):
        j = place_of.get(place)
        is_free = j is not None and roles.is_feature(j) and j not in roles.as_text
        is_number[place] = is_free and (cell in _MISSING or _NUMBER.fullmatch(cell) is not None)
    return is_number


def _split(
    content: bytes, header: Header, is_number: npt.NDArray[np.bool_]
) -> tuple[int, bytearray, bytearray, npt.NDArray[np.bool_]]:
    """Return the number of rows, cells of numbers, other cells, and which are not whole."""
    from distclust.store.sources import _text_numerics as numerics

    newline = bytes([header.newline])
    data = np.frombuffer(content if content.endswith(newline) else content + newline, np.uint8)
    numbers, rest = bytearray(len(data)), bytearray(0 if is_number.all() else len(data))
    is_real = np.zeros(len(is_number), np.bool_)
    n_rows, n_numbers, n_rest = numerics.split_columns(
        data,
        ord(header.separator),
        header.newline,
        is_number,
        _kinds(header.separator, header.newline),
        np.frombuffer(numbers, np.uint8),
        np.frombuffer(rest, np.uint8),
        is_real,
    )
    del numbers[n_numbers:], rest[n_rest:]  # in place
    return n_rows, numbers, rest, is_real


@functools.lru_cache
def _kinds(separator: str, newline: int) -> npt.NDArray[np.uint8]:
    """Return what each byte can be in a number or in what stands for a missing one."""
    from distclust.store.sources import _text_numerics as numerics

    kinds = np.full(256, numerics.OTHER, np.uint8)
    kinds[list(f"0123456789- {''.join(MISSING)}".encode())] = numerics.PLAIN
    kinds[list(b".eE+")] = numerics.REAL
    kinds[[ord(separator), newline]] = numerics.END
    return kinds


def _shape(
    column: pa.ChunkedArray, n_rows: int, places: list[int], is_real: npt.NDArray[np.bool_]
) -> Numbers | None:
    """Return a column of cells as a matrix, or None if they are not all numbers."""
    from pyarrow import types

    if types.is_null(column.type):
        column = column.cast("float64")
    is_integer = types.is_integer(column.type)
    if not (is_integer or types.is_floating(column.type)):
        return None
    n_missing = np.zeros(len(places), np.int64)
    if column.null_count:
        n_missing = column.is_null().to_numpy().reshape(n_rows, -1).sum(axis=0)
    flags = np.where(is_real & (not is_integer), REAL, INTEGER).astype(np.uint8)
    flags[n_missing == n_rows] = 0
    return Numbers(column.to_numpy().reshape(n_rows, -1), places, flags, n_missing)
