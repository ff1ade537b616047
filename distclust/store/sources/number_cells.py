"""Columns of numbers, read all at once.

A parser of tables does some work for each column of each block of lines, and its columns
have to be woven into rows afterwards. Where cells are numbers, neither is needed: written
one below the other they are a single column, which Arrow reads at full speed, and which is
the matrix of rows as soon as it has been given its shape. Numbers of few digits need not
even be copied for that, as they can be rounded correctly in a simple way (W. D. Clinger,
How to read floating point numbers accurately, 1990). Cells of other columns are copied apart
on the way and read as usual.

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
from distclust.store.sources.cells import without_negative_zero
from distclust.store.sources.header import Header, records
from distclust.store.sources.packing import Numbers
from distclust.store.sources.roles import Roles
from distclust.store.sources.schema import INTEGER, REAL, smallest_integer

if TYPE_CHECKING:
    import pyarrow as pa

Array: TypeAlias = npt.NDArray[Any]
Mask: TypeAlias = npt.NDArray[np.bool_]

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_MISSING = frozenset(MISSING)
_SHORT = 17  # characters: 15 digits, a sign and a point
# For less the detour does not pay: share of the columns, and bytes.
_FEWEST = 0.5
_SMALLEST = 2**16


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
    if len(content) < _SMALLEST:
        return None
    place_of = {place: j for j, place in enumerate(roles.places)}
    is_number, is_short = _guess(content, header, roles, place_of)
    if is_number.mean() < _FEWEST:
        return None
    places = [place_of[place] for place in np.flatnonzero(is_number).tolist()]
    newline = bytes([header.newline])
    data = np.frombuffer(content if content.endswith(newline) else content + newline, np.uint8)
    found = _read_short(data, header, is_number, places) if is_short else None
    found = found or _read_long(data, header, is_number, places)
    if found is None:
        return None
    numbers, rest = found
    others = np.flatnonzero(~is_number).tolist()
    return numbers, Grid(rest, header.separator, others, has_empty_rows=True)


def _guess(
    content: bytes, header: Header, roles: Roles, place_of: dict[int, int]
) -> tuple[Mask, bool]:
    """Return which columns hold numbers and whether those are short, by the first line."""
    is_number, is_short = np.zeros(len(header.names), np.bool_), True
    lines = content.lstrip(b"\r\n")
    line = lines[: lines.find(header.newline) + 1 or None]
    try:
        _, _, cells = next(records([line], header.separator, str), (0, 0, []))
    except InputError:  # not UTF-8, which is told elsewhere
        return is_number, is_short
    for place, cell in enumerate(cells[: len(is_number)]):
        j = place_of.get(place)
        is_free = j is not None and roles.is_feature(j) and j not in roles.as_text
        if is_free and (cell in _MISSING or _NUMBER.fullmatch(cell)):
            is_number[place] = True
            is_short &= len(cell) <= _SHORT
    return is_number, is_short


def _read_short(
    data: Array, header: Header, is_number: Mask, places: list[int]
) -> tuple[Numbers, bytearray] | None:
    """Return numbers of few digits without Arrow, and all other cells."""
    from distclust.store.sources import _text_numerics as numerics

    values = np.empty(len(data))  # what is not needed of it is never touched
    rest = bytearray(0 if is_number.all() else len(data))
    is_real = np.zeros(len(is_number), np.bool_)
    n_missing = np.zeros(len(is_number), np.int64)
    with np.errstate(over="ignore"):  # too many digits, which is noticed after the cell
        n_rows, n_numbers, n_rest = numerics.read_short_numbers(
            data,
            ord(header.separator),
            header.newline,
            is_number,
            values,
            np.frombuffer(rest, np.uint8),
            is_real,
            n_missing,
        )
    if n_rows < 1:
        return None
    del rest[int(n_rest) :]  # in place
    matrix = values[: int(n_numbers)].reshape(n_rows, -1)
    if not is_real.any() and not n_missing.any():
        matrix = matrix.astype(smallest_integer(int(matrix.min()), int(matrix.max())))
    return _described(matrix, places, is_real[is_number], n_missing[is_number]), rest


def _read_long(
    data: Array, header: Header, is_number: Mask, places: list[int]
) -> tuple[Numbers, bytearray] | None:
    """Return numbers of any length, and all other cells."""
    from distclust.store.sources import _text_numerics as numerics

    cells, rest = bytearray(len(data)), bytearray(0 if is_number.all() else len(data))
    is_real = np.zeros(len(is_number), np.bool_)
    n_rows, n_numbers, n_rest = numerics.split_numbers(
        data,
        ord(header.separator),
        header.newline,
        is_number,
        _kinds(header.separator, header.newline),
        np.frombuffer(cells, np.uint8),
        np.frombuffer(rest, np.uint8),
        is_real,
    )
    if n_rows < 1:
        return None
    del cells[int(n_numbers) :], rest[int(n_rest) :]  # in place
    (column,) = Grid(cells, ",", [0], has_empty_rows=True).read([0], ())
    numbers = _shape(column, n_rows, places, is_real[is_number])
    return None if numbers is None else (numbers, rest)


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
    column: pa.ChunkedArray, n_rows: int, places: list[int], is_real: Mask
) -> Numbers | None:
    """Return a column of cells as a matrix, or None if they are not all numbers."""
    from pyarrow import types

    if types.is_null(column.type):
        column = column.cast("float64")
    if not (types.is_integer(column.type) or types.is_floating(column.type)):
        return None
    n_missing = np.zeros(len(places), np.int64)
    if column.null_count:
        n_missing = column.is_null().to_numpy().reshape(n_rows, -1).sum(axis=0)
    matrix = column.to_numpy().reshape(n_rows, -1)
    return _described(matrix, places, is_real, n_missing)


def _described(
    matrix: Array, places: list[int], is_real: Mask, n_missing: npt.NDArray[np.int64]
) -> Numbers:
    flags = np.where(is_real, REAL, INTEGER).astype(np.uint8)
    flags[n_missing == len(matrix)] = 0
    return Numbers(without_negative_zero(matrix), places, flags, n_missing)
