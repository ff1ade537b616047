"""The first lines of a text table: separator, line ends, names of columns."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from distclust.errors import InputError
from distclust.store.sources.base import SourceOptions
from distclust.store.sources.files import SourceFile
from distclust.store.sources.lines import open_content

_BOM = b"\xef\xbb\xbf"
_FIRST_READ = 2**16
_LONGEST_CELL = 2**31 - 1
_SEPARATORS = ",;\t"


@dataclass(frozen=True)
class Header:
    """What the first lines of a text table say.

    Attributes
    ----------
    names
        Of the columns; those without one are called as pandas calls them.
    index
        Place of a column that is there to name the rows, having no name itself.
    separator
        Between cells, one character.
    newline
        Last byte of a line end.
    start
        First byte after the header.
    n_lines
        Lines up to there.
    """

    names: tuple[str, ...]
    index: int | None
    separator: str
    newline: int
    start: int
    n_lines: int


def read_header(file: SourceFile, options: SourceOptions) -> Header:
    """Return the header of a text table.

    Raises
    ------
    InputError
        If there is none, if it is not UTF-8, or if columns have no name.
    """
    size = _FIRST_READ
    while True:
        with open_content(file) as opened:
            content = opened.read(size)
        is_all = len(content) < size
        text = content.removeprefix(_BOM)
        lines = text.splitlines(keepends=True)
        # The last line may be cut short, even within a character.
        header = _parse(lines if is_all else lines[:-1], is_all, options, file)
        if header is not None:
            return replace(header, start=header.start + len(content) - len(text))
        size *= 2


def _parse(
    lines: list[bytes], is_all: bool, options: SourceOptions, file: SourceFile
) -> Header | None:
    """Return what the lines say, or None if they are too few."""
    first = next((line for line in lines if line.strip(b"\r\n")), None)
    if first is None and is_all:
        hint = "Check that the file is complete and of the kind its name says."
        raise InputError(file.url, "a header and rows", "an empty file", hint)
    separator = options.separator or _separator(first or b"", file)
    found = list(islice(records(lines, separator, lambda line: f"{file.url}, line {line}"), 2))
    if not is_all and len(found) < 2:
        return None
    (_, last, names), (_, _, cells) = found[0], found[-1]
    newline = b"\n" if any(line.endswith(b"\n") for line in lines) else b"\r"
    named, index = _name_columns(names, len(cells), file.url)
    return Header(named, index, separator, newline[0], sum(map(len, lines[:last])), last)


def records(
    lines: Iterable[bytes], separator: str, place: Callable[[int], str]
) -> Iterator[tuple[int, int, list[str]]]:
    """Yield first line, last line (from 1) and cells of every record, slowly.

    Parameters
    ----------
    lines, separator
        What to read, and what separates cells.
    place
        Function that turns a line into a place to name in errors.

    Raises
    ------
    InputError
        If a line is not UTF-8.
    """
    reader = csv.reader(_decoded(lines, place), delimiter=separator, skipinitialspace=True)
    end = 0
    usual = csv.field_size_limit(_LONGEST_CELL)
    try:
        for cells in reader:
            if cells:
                yield end + 1, reader.line_num, cells
            end = reader.line_num
    finally:
        csv.field_size_limit(usual)


def _decoded(lines: Iterable[bytes], place: Callable[[int], str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            got = f"the byte {line[error.start]:#04x}, which is not"
            raise InputError(place(number), "UTF-8 text", got, "Save the file as UTF-8.") from None


def _separator(line: bytes, file: SourceFile) -> str:
    if file.name.lower().endswith((".tsv", ".tsv.gz")):
        return "\t"
    return max(_SEPARATORS, key=lambda separator: line.count(separator.encode()))


def _name_columns(names: list[str], n_cells: int, url: str) -> tuple[tuple[str, ...], int | None]:
    """Return a name for every column, and the place of one that names the rows."""
    if n_cells == len(names) + 1:  # nothing stands above the names of rows
        return ("row", *_filled(names, 1)), 0
    if n_cells > len(names):
        got = f"{len(names)} names over {n_cells} columns"
        raise InputError(url, "a name for every column", got, "Complete the header.")
    if not names[0]:
        return ("row", *_filled(names[1:], 1)), 0
    return tuple(_filled(names, 0)), None


def _filled(names: list[str], first: int) -> list[str]:
    return [name or f"Unnamed: {i}" for i, name in enumerate(names, first)]
