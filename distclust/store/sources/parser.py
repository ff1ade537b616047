"""Lines of a text table become a piece of a spool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from distclust.errors import InputError
from distclust.store.sources.cells import flag_of
from distclust.store.sources.header import Header, records
from distclust.store.sources.packing import pack
from distclust.store.sources.schema import TEXT, Roles
from distclust.store.sources.spool import Parsed

if TYPE_CHECKING:
    import pyarrow as pa

# As pandas reads them by default.
MISSING = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
_TRUE = ("True", "TRUE", "true")
_FALSE = ("False", "FALSE", "false")
_BLOCK_BYTES = 2**20  # what Arrow parses at a time: a block's columns stay in the cache


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

    content = _without_spaces(lines.content, lines.header)
    try:
        columns, flags = _read_columns(content, lines.header, roles)
    except pa.ArrowInvalid as error:
        _refuse(lines, str(error))
    n_rows = len(columns[0])
    line_of = partial(lines.line_of, n_rows=n_rows)
    return pack(columns, n_rows, roles, flags=flags, line_of=line_of)


def _read_columns(
    content: bytes, header: Header, roles: Roles
) -> tuple[dict[int, pa.ChunkedArray], dict[int, int]]:
    """Return the columns by place, and what those are that are kept as text."""
    import pyarrow as pa
    from pyarrow import compute, types

    texts = [roles.places[j] for j in roles.as_text]
    columns = dict(enumerate(_read(content, header, roles.places, texts).columns))
    if any(types.is_binary(column.type) for column in columns.values()):
        raise pa.ArrowInvalid("bytes that are no text")
    has_x = b"x" in content or b"X" in content
    again = [
        j
        for j, column in columns.items()
        if types.is_temporal(column.type) or (has_x and types.is_integer(column.type))
    ]
    flags = {}
    places = [roles.places[j] for j in again]
    written = _read(content, header, places, places).columns if again else []
    for j, column in zip(again, written, strict=True):
        is_integer = types.is_integer(columns[j].type)
        has_digits = not compute.any(compute.match_substring(column, "x", ignore_case=True)).as_py()
        if not (is_integer and has_digits):
            flags[j] = TEXT if is_integer else flag_of(columns[j].type, "")
            columns[j] = column
    return columns, flags


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


def _read(
    content: bytes, header: Header, places: Sequence[int], as_text: Sequence[int]
) -> pa.Table:
    """Return the columns at some places of the file; those of `as_text` as strings."""
    import pyarrow as pa
    from pyarrow import csv

    names = [str(i) for i in range(len(header.names))]
    wanted = [names[place] for place in places]
    if not content[:1].strip() and not content.strip(b"\r\n"):  # the latter makes a copy
        return pa.table({name: pa.array([], pa.null()) for name in wanted})
    convert = csv.ConvertOptions(
        column_types={names[place]: pa.string() for place in as_text},
        null_values=MISSING,
        true_values=_TRUE,
        false_values=_FALSE,
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
        include_columns=[] if wanted == names else wanted,
    )
    parse = csv.ParseOptions(delimiter=header.separator, newlines_in_values=b'"' in content)
    longest = len(content) + 1
    for size in (min(_BLOCK_BYTES, longest), longest):
        reading = csv.ReadOptions(use_threads=False, block_size=size, column_names=names)
        try:
            return csv.read_csv(pa.BufferReader(content), reading, parse, convert)
        except pa.ArrowInvalid as error:
            if "straddling" not in str(error) or size == longest:
                raise  # otherwise a line was longer than a block
    raise AssertionError


def _refuse(lines: Lines, error: str) -> NoReturn:
    """Go through lines that could not be parsed, and say which one is to blame."""
    n_columns = len(lines.header.names)
    hint = "Check that the file is complete, and the quotes in it."
    for line, _, cells in lines.records():
        if len(cells) != n_columns:
            expected = f"{n_columns} cells as in the header"
            raise InputError(lines.place(line), expected, f"{len(cells)}", hint)
    raise InputError(lines.url, "a table", error, hint)
