"""Cells of text become Arrow columns, read neither more nor less cleverly than pandas does.

The parser is Arrow's: its numbers are rounded correctly. What it takes for a date, a time or
a hexadecimal number is read again as text, so that cells stay as they were written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distclust.store.sources.cells import flag_of
from distclust.store.sources.schema import TEXT

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
class Grid:
    """Lines of cells.

    Attributes
    ----------
    content
        The lines as they are.
    separator
        One character between cells.
    places
        Place in the file of each cell of a line.
    has_empty_rows
        Whether an empty line is a row with one missing value, rather than nothing.
    """

    content: bytes | bytearray
    separator: str
    places: Sequence[int]
    has_empty_rows: bool = False

    def read(self, wanted: Sequence[int], as_text: Collection[int]) -> list[pa.ChunkedArray]:
        """Return the columns of some places in their order; those of `as_text` as strings.

        Raises
        ------
        pyarrow.ArrowInvalid
            If lines have different numbers of cells.
        """
        import pyarrow as pa
        from pyarrow import csv

        if not wanted:
            return []
        content = self.content
        is_blank = not content[:1].strip() and not content.strip(b"\r\n")  # the latter is slow
        if is_blank and not (content and self.has_empty_rows):
            return [pa.chunked_array([], pa.null()) for _ in wanted]
        names = [str(place) for place in wanted]
        convert = csv.ConvertOptions(
            column_types={str(place): pa.string() for place in as_text},
            null_values=MISSING,
            true_values=_TRUE,
            false_values=_FALSE,
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            include_columns=[] if list(wanted) == list(self.places) else names,
        )
        parse = csv.ParseOptions(
            delimiter=self.separator,
            newlines_in_values=b'"' in content,
            ignore_empty_lines=not self.has_empty_rows,
        )
        table = _read(content, [str(place) for place in self.places], parse, convert)
        columns: list[pa.ChunkedArray] = table.columns
        return columns

    def read_as_written(
        self, wanted: Sequence[int], as_text: Collection[int]
    ) -> tuple[dict[int, pa.ChunkedArray], dict[int, int]]:
        """Return columns by place, and what those are that are text for being dates and so on."""
        import pyarrow as pa
        from pyarrow import types

        columns = dict(zip(wanted, self.read(wanted, as_text), strict=True))
        if any(types.is_binary(column.type) for column in columns.values()):
            raise pa.ArrowInvalid("bytes that are no text")
        has_x = b"x" in self.content or b"X" in self.content
        again = [place for place, column in columns.items() if _is_clever(column.type, has_x)]
        flags = {}
        for place, text in zip(again, self.read(again, again) if again else (), strict=True):
            is_integer = types.is_integer(columns[place].type)
            if not is_integer or _has_x(text):
                flags[place] = TEXT if is_integer else flag_of(columns[place].type, "")
                columns[place] = text
        return columns, flags


def _read(content: bytes | bytearray, names: list[str], parse: object, convert: object) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    longest = len(content) + 1
    for size in (min(_BLOCK_BYTES, longest), longest):
        reading = csv.ReadOptions(use_threads=False, block_size=size, column_names=names)
        try:
            return csv.read_csv(pa.BufferReader(content), reading, parse, convert)
        except pa.ArrowInvalid as error:
            if "straddling" not in str(error) or size == longest:
                raise  # otherwise a line was longer than a block
    raise AssertionError


def _is_clever(dtype: pa.DataType, has_x: bool) -> bool:
    """Whether cells may have been read as something that they are not."""
    from pyarrow import types

    return bool(types.is_temporal(dtype)) or (has_x and types.is_integer(dtype))


def _has_x(texts: pa.ChunkedArray) -> bool:
    from pyarrow import compute

    found = compute.any(compute.match_substring(texts, "x", ignore_case=True))
    return bool(found.as_py())
