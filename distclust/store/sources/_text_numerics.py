"""Compiled passes over the bytes of text tables.

A cell is quoted if its first character but spaces is a quote; inside, two quotes stand for
one, and separators and line ends are text. A quote anywhere else is an ordinary character.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

Array = npt.NDArray[Any]

_QUOTE = 34
_SPACE = 32
_NEWLINE = 10
_RETURN = 13
_MINUS, _POINT, _ZERO, _NINE = 45, 46, 48, 57
_EXACT_DIGITS = np.uint64(15)  # all such whole numbers are exact in double precision
_LONGEST_INTEGER = np.uint64(18)  # digits that surely fit in 64 bits
_NONE, _ONE = np.uint64(0), np.uint64(1)
# Where in a cell a byte is.
_START, _PLAIN, _QUOTED, _CLOSED = 0, 1, 2, 3
_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)


@compiled
def _step(state: int, byte: int, separator: int, newline: int) -> int:
    if state == _QUOTED:
        return _CLOSED if byte == _QUOTE else _QUOTED
    if byte == separator or byte == newline:
        return _START
    if byte == _QUOTE and state != _PLAIN:  # opens a cell, or is the second of two
        return _QUOTED
    return _START if state == _START and byte == _SPACE else _PLAIN


@compiled
def last_line_end(data: Array, separator: int, newline: int, quoted: bool) -> tuple[int, int]:
    """Return where the last line ends that ends in `data`, and where an open cell begins.

    `data` are bytes that begin with a line, or inside a quoted cell if `quoted`. The end is
    the place after the newline, 0 if no line ends. The beginning is that of the quoted cell
    that is open at the end of `data`: -1 if there is none, 0 if it was open already.
    """
    end = 0
    opened = 0
    state = _QUOTED if quoted else _START
    for i in range(data.shape[0]):
        following = _step(state, data[i], separator, newline)
        if data[i] == newline and state != _QUOTED:
            end = i + 1
        elif state == _START and following == _QUOTED:
            opened = i
        state = following
    return end, opened if state == _QUOTED else -1


@compiled
def drop_spaces(data: Array, separator: int, newline: int, out: Array) -> int:
    """Copy `data` to `out` without the spaces that cells begin with; return the length."""
    length = 0
    state = _START
    for i in range(data.shape[0]):
        following = _step(state, data[i], separator, newline)
        if not (state == _START and data[i] == _SPACE and following == _START):
            out[length] = data[i]
            length += 1
        state = following
    return length


@compiled
def hash_texts(data: Array, offsets: Array, out: Array) -> None:
    """out[i] = 64-bit FNV-1a hash of ``data[offsets[i]:offsets[i + 1]]``."""
    for i in range(out.shape[0]):
        value = _FNV_OFFSET
        for k in range(offsets[i], offsets[i + 1]):
            value = (value ^ np.uint64(data[k])) * _FNV_PRIME
        out[i] = value


# What a byte can be in a cell that may be a number.
PLAIN, REAL, END, OTHER = 0, 1, 2, 3


@compiled
def split_numbers(
    data: Array,
    separator: int,
    newline: int,
    is_number: Array,
    kinds: Array,
    numbers: Array,
    rest: Array,
    is_real: Array,
) -> tuple[int, Any, Any]:
    """Copy the cells of some columns to `numbers`, one a line, and all others to `rest`.

    Parameters
    ----------
    data
        Whole lines, the last one with its line end.
    separator, newline
        Bytes between cells and between lines.
    is_number
        Which columns go to `numbers`, shape (n_columns,).
    kinds
        What each byte can be in a number, shape (256,).
    numbers, rest
        Where cells go, each as long as `data`.
    is_real
        Set for columns with a number that is not written as a whole one.

    Returns
    -------
    Rows, and bytes in `numbers` and `rest`. Rows are -1 if a line has more or fewer cells
    than there are columns, or if a cell is surely no number or a very long one.
    """
    n_rows, column = 0, 0
    # Unsigned: signed places would be checked for counting from the end at every byte.
    i, n_numbers, n_rest = _NONE, _NONE, _NONE
    while i < np.uint64(data.shape[0]):
        if column == 0 and (data[i] == newline or data[i] == _RETURN):  # an empty line
            i += _ONE
            continue
        if is_number[column]:
            start, has_real = i, False
            kind = kinds[data[i]]
            while kind < END:
                has_real |= kind == REAL
                numbers[n_numbers] = data[i]
                n_numbers += _ONE
                i += _ONE
                kind = kinds[data[i]]
            if i - start > _LONGEST_INTEGER and not has_real:
                return -1, _NONE, _NONE
            is_real[column] |= has_real
            numbers[n_numbers] = _NEWLINE
            n_numbers += _ONE
            i = _skip_return(data, i, newline)
        else:
            i, n_rest = _copy_cell(data, i, separator, newline, rest, n_rest)
        column += 1
        if column == is_number.shape[0]:
            if data[i] != newline:
                return -1, _NONE, _NONE
            n_rows += 1
            column = 0
            if n_rest > 0:
                rest[n_rest - _ONE] = _NEWLINE
        elif data[i] != separator:
            return -1, _NONE, _NONE
        i += _ONE
    return n_rows, n_numbers, n_rest


@compiled
def read_short_numbers(
    data: Array,
    separator: int,
    newline: int,
    is_number: Array,
    numbers: Array,
    rest: Array,
    is_real: Array,
    n_missing: Array,
) -> tuple[int, Any, Any]:
    """Read the cells of some columns into `numbers`, and copy all others to `rest`.

    As `split_numbers`, but for numbers of at most 15 digits without an exponent. Digits and
    powers of ten are then exact, and a quotient of exact numbers is rounded correctly.
    `numbers` are float64; an empty cell is NaN and counted in `n_missing`.
    """
    n_rows, column = 0, 0
    i, n_numbers, n_rest = _NONE, _NONE, _NONE
    while i < np.uint64(data.shape[0]):
        if column == 0 and (data[i] == newline or data[i] == _RETURN):
            i += _ONE
            continue
        if is_number[column]:
            is_negative = data[i] == _MINUS
            if is_negative:
                i += _ONE
            start, mantissa, divisor = i, np.int64(0), 1.0
            while _ZERO <= data[i] <= _NINE:
                mantissa = 10 * mantissa + (np.int64(data[i]) - _ZERO)
                i += _ONE
            n_digits = i - start
            has_point = data[i] == _POINT
            if has_point:
                i += _ONE
                start = i
                while _ZERO <= data[i] <= _NINE:
                    mantissa = 10 * mantissa + (np.int64(data[i]) - _ZERO)
                    divisor *= 10.0
                    i += _ONE
                n_digits += i - start
                is_real[column] = True
            if n_digits > _EXACT_DIGITS or (n_digits == 0 and (is_negative or has_point)):
                return -1, _NONE, _NONE
            n_missing[column] += n_digits == 0
            value = mantissa / divisor if n_digits > 0 else np.nan
            numbers[n_numbers] = -value if is_negative else value
            n_numbers += _ONE
            i = _skip_return(data, i, newline)
        else:
            i, n_rest = _copy_cell(data, i, separator, newline, rest, n_rest)
        column += 1
        if column == is_number.shape[0]:
            if data[i] != newline:
                return -1, _NONE, _NONE
            n_rows += 1
            column = 0
            if n_rest > 0:
                rest[n_rest - _ONE] = _NEWLINE
        elif data[i] != separator:
            return -1, _NONE, _NONE
        i += _ONE
    return n_rows, n_numbers, n_rest


@compiled
def _skip_return(data: Array, i: Any, newline: int) -> Any:
    is_two = data[i] == _RETURN and newline == _NEWLINE and data[i + _ONE] == newline
    return i + _ONE if is_two else i


@compiled
def _copy_cell(
    data: Array, i: Any, separator: int, newline: int, out: Array, place: Any
) -> tuple[Any, Any]:
    """Copy the cell that begins at `i` and a separator; return where both are then."""
    state = _START
    while state == _QUOTED or (data[i] != separator and data[i] != newline):
        state = _step(state, data[i], separator, newline)
        out[place] = data[i]
        place += _ONE
        i += _ONE
    out[place] = separator
    return i, place + _ONE
