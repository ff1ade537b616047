"""Lines of a text table become a piece of a spool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NoReturn

import numpy as np

from distclust.errors import InputError
from distclust.store.sources.cell_reader import Grid
from distclust.store.sources.header import Header, records
from distclust.store.sources.number_cells import split_numbers
from distclust.store.sources.packing import pack
from distclust.store.sources.roles import Roles
from distclust.store.sources.spool import Parsed


@dataclass(frozen=True)
class Lines:
    """Whole lines of a text table.

    Attributes
    ----------
    content
        The lines as they are.
    url
        The file.
    header
        What its first lines say.
    first_line
        Function that returns the number of the first of these lines in the file, from 1;
        it may take a while.
    """

    content: bytes
    url: str
    header: Header
    first_line: Callable[[], int]

    def count(self) -> int:
        """Return how many line ends there are."""
        return self.content.count(self.header.newline)

    def place(self, line: int) -> str:
        """Return the place of a line, counted from 1, to name in errors."""
        return f"{self.url}, line {self.first_line() + line - 1}"

    def records(self) -> Iterator[tuple[int, int, list[str]]]:
        """Yield first line, last line and cells of every record, slowly."""
        lines = self.content.splitlines(keepends=True)
        return records(lines, self.header.separator, self.place)

    def line_of(self, row: int, n_rows: int) -> int:
        """Return the line, counted from 1, on which a row of all `n_rows` begins."""
        n_lines = self.count() + (self.content[-1] != self.header.newline)
        if n_lines == n_rows:  # no empty lines, no line ends within cells
            return row + 1
        return next(islice(self.records(), row, None))[0]


def parse_lines(lines: Lines, roles: Roles) -> Parsed:
    """Return the cells of some lines as a piece of a spool, with their survey.

    Raises
    ------
    InputError
        If a line has too many or too few cells, or if something is not UTF-8.
    """
    import pyarrow as pa

    header = lines.header
    content = _without_spaces(lines.content, header)
    split = split_numbers(content, header, roles)
    if split is None:
        numbers, grid = None, Grid(content, header.separator, range(len(header.names)))
    else:
        numbers, grid = split
    place_of = {place: j for j, place in enumerate(roles.places)}
    wanted = [place for place in grid.places if place in place_of]
    as_text = [roles.places[j] for j in roles.as_text]
    try:
        columns, flags = grid.read_as_written(wanted, as_text)
    except pa.ArrowInvalid as error:
        _refuse(lines, str(error))
    n_rows = len(numbers.matrix) if numbers else len(columns[wanted[0]])
    return pack(
        {place_of[place]: column for place, column in columns.items()},
        n_rows,
        roles,
        numbers=numbers,
        flags={place_of[place]: flag for place, flag in flags.items()},
        line_of=partial(lines.line_of, n_rows=n_rows),
    )


def _without_spaces(content: bytes, header: Header) -> bytes:
    """Return the lines without spaces at the beginning of cells."""
    if b" " not in content or header.separator == " ":
        return content
    newline, separator = bytes([header.newline]), header.separator.encode()
    if not any(mark + b" " in content for mark in (newline, separator)) and content[:1] != b" ":
        return content
    from distclust.store.sources import _text_numerics as numerics

    data = np.frombuffer(content, np.uint8)
    out = np.empty_like(data)
    length = numerics.drop_spaces(data, separator[0], header.newline, out)
    return out[:length].tobytes()


def _refuse(lines: Lines, error: str) -> NoReturn:
    """Go through lines that could not be parsed, and say which one is to blame."""
    n_columns = len(lines.header.names)
    hint = "Check that the file is complete, and the quotes in it."
    for line, _, cells in lines.records():
        if len(cells) != n_columns:
            expected = f"{n_columns} cells as in the header"
            raise InputError(lines.place(line), expected, f"{len(cells)}", hint)
    raise InputError(lines.url, "a table", error, hint)
