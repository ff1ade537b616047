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
