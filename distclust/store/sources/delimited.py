"""Text tables: CSV and TSV, also gzipped, in any number of files with the same header.

Files are cut into ranges of a few MB at line ends, and ranges are parsed apart. Whether a
line end is one, or lies in a quoted cell, cannot be told from the middle of a file. So cuts
are made at any line end at first; a range that turns out to end in an open cell says so,
and then the files are looked through for their true line ends. A gzipped file is read
forward by one task, which cuts and parses at the same time.

The parser is Arrow's: its numbers are rounded correctly. What it takes for a date, a time or
a hexadecimal number is read again as text, so that cells stay as they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np

from distclust.errors import InputError
from distclust.store.sources.base import Prepared, Scratch, Source, SourceOptions
from distclust.store.sources.files import SourceFile, name_files
from distclust.store.sources.header import Header, read_header
from distclust.store.sources.lines import is_compressed, open_content
from distclust.store.sources.parser import Lines, parse_lines
from distclust.store.sources.prepare import PlacedPieces, prepare_table
from distclust.store.sources.roles import Roles, assign_roles, check_same_names
from distclust.store.sources.spool import PIECE_BYTES, Parsed, Piece, Spool, Work

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper

# Where a part begins; its last line end and open cell if it begins outside or in a cell.
Scan: TypeAlias = tuple[int, tuple[int, int], tuple[int, int]]

_READ_BYTES = 2**16  # at a time, when looking for the end of a line
_LONGEST_CELL = 2**27  # a quoted cell that is longer was never closed


@dataclass(frozen=True)
class Part:
    """A part of a text table that one task parses.

    Attributes
    ----------
    file, header
        The file, and what its first lines say.
    start, stop
        The lines that begin in this range of bytes are the part's; all of a gzipped file.
    is_exact
        Whether lines begin exactly at `start` and `stop`, quoted cells considered.
    """

    file: SourceFile
    header: Header
    start: int
    stop: int
    is_exact: bool = False

    def read(self) -> tuple[int, bytes]:
        """Return the first byte of the part's lines in a plain file, and the lines."""
        with self.file.open() as file:
            start, stop = self.start, self.stop
            if not self.is_exact:
                start, stop = (_line_start(file, at, self.header) for at in (start, stop))
            file.seek(start)
            return start, file.read(stop - start)

    def line_at(self, position: int) -> int:
        """Return the number of the line that begins at a byte of a plain file, from 1."""
        line = 1
        with self.file.open() as file:
            while position:
                content = file.read(min(position, PIECE_BYTES))
                line += content.count(self.header.newline)
                position -= len(content)
        return line


def _line_start(file: IO[bytes], position: int, header: Header) -> int:
    """Return where the first line begins that does not begin before `position`."""
    start = position - 1
    file.seek(start)
    while content := file.read(_READ_BYTES):
        end = content.find(header.newline) + 1
        if end:
            return start + end
        start += len(content)
    return start


class DelimitedSource(Source):
    """One or more CSV or TSV files."""

    def __init__(self, files: Sequence[SourceFile], options: SourceOptions) -> None:
        self.name = name_files(files)
        self._files = tuple(files)
        self._options = options

    def identity(self) -> dict[str, Any]:
        """Return the files with sizes and times, the options, and how files are cut."""
        return {
            "files": [file.identity() for file in self._files],
            "options": self._options.identity(),
            "piece_bytes": PIECE_BYTES,
        }

    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Parse all files into the scratch and settle what their columns are."""
        headers = [read_header(file, self._options) for file in self._files]
        for file, header in zip(self._files, headers, strict=True):
            check_same_names(header.names, headers[0].names, file.url, self._files[0].url)
        first = headers[0]
        roles = assign_roles(first.names, self._options, self._files[0].url, first.index)
        if roles.ids is not None:
            roles = roles.reading_as_text(frozenset([roles.ids]))
        parts = [
            part
            for file, header in zip(self._files, headers, strict=True)
            for part in cut_file(file, header)
        ]
        try:
            return self._prepare(parts, roles, scratch.below("lines"), mapper)
        except _OpenCell:
            exact = find_line_ends(parts, mapper)
            return self._prepare(exact, roles, scratch.below("quoted"), mapper)

    def _prepare(
        self, parts: Sequence[Part], roles: Roles, scratch: Scratch, mapper: Mapper
    ) -> Prepared:
        def fill(spool: Spool, roles: Roles) -> PlacedPieces:
            pieces = spool.fill(parse_part, parts, roles, mapper=mapper, stage="reading")
            return _placed(pieces, parts)

        number_of = {file: number for number, file in enumerate(self._files)}
        owners = [number_of[part.file] for part in parts]
        return prepare_table(
            self.name, roles, fill, self._options, scratch, owners, len(self._files)
        )


make_source = DelimitedSource


class _OpenCell(Exception):
    """A part ends in a quoted cell: line ends cannot be told without looking at all of it."""


def cut_file(file: SourceFile, header: Header) -> list[Part]:
    """Return the parts of a file."""
    if is_compressed(file):
        return [Part(file, header, header.start, file.size)]
    cuts = [*range(header.start, file.size, PIECE_BYTES), file.size]
    return [Part(file, header, *pair) for pair in pairwise(cuts)]


def _placed(pieces: Iterable[Piece], parts: Sequence[Part]) -> PlacedPieces:
    """Yield pieces with what names their lines."""
    file, line = None, 1
    for piece in pieces:
        if piece.survey is None:
            raise _OpenCell
        part = parts[piece.number]
        if part.file != file:
            file, line = part.file, part.header.n_lines + 1
        yield replace(piece, survey=piece.survey["cells"]), partial(_place, part.file.url, line)
        line += piece.survey["n_lines"]


def _place(url: str, first: int, line: int) -> str:
    return f"{url}, line {first + line - 1}"


def parse_part(part: Part, roles: Roles) -> Work:
    """Return a part as a piece, or the functions that parse the pieces of a gzipped file.

    A part that ends in an open cell has no survey, and no rows.
    """
    if is_compressed(part.file):
        return _parse_stream(part, roles)
    start, content = part.read()
    _, opened = _last_line_end(content, part.header)
    if opened >= 0:
        if part.is_exact:
            raise _never_closed(part.file.url, part.line_at(start), content[:opened], part.header)
        return Parsed(0, {}, None)
    return _parse(content, part, partial(part.line_at, start), roles)


def _parse_stream(part: Part, roles: Roles) -> Iterator[Callable[[], Parsed]]:
    """Yield functions that parse lines of a gzipped file, uncompressing on the way."""
    line = part.header.n_lines + 1
    rest = b""
    with open_content(part.file) as file:
        file.read(part.header.start)
        while found := file.read(PIECE_BYTES):
            content = rest + found
            end, opened = _last_line_end(content, part.header)
            if end == 0 and opened >= 0 and len(content) > _LONGEST_CELL:
                raise _never_closed(part.file.url, line, content[:opened], part.header)
            rest = content[end:]
            if end:
                yield partial(_parse, content[:end], part, partial(int, line), roles)
                line += content.count(part.header.newline, 0, end)
        _, opened = _last_line_end(rest, part.header)
        if opened >= 0:
            raise _never_closed(part.file.url, line, rest[:opened], part.header)
        yield partial(_parse, rest, part, partial(int, line), roles)


def _parse(content: bytes, part: Part, first_line: Callable[[], int], roles: Roles) -> Parsed:
    lines = Lines(content, part.file.url, part.header, first_line)
    parsed = parse_lines(lines, roles)
    return replace(parsed, survey={"cells": parsed.survey, "n_lines": lines.count()})


def _last_line_end(content: bytes, header: Header, quoted: bool = False) -> tuple[int, int]:
    """Return where the last line ends, and where a cell begins that is open then, or -1."""
    if not quoted and b'"' not in content:
        return content.rfind(header.newline) + 1, -1
    from distclust.store.sources import _text_numerics as numerics

    data = np.frombuffer(content, np.uint8)
    end, opened = numerics.last_line_end(data, ord(header.separator), header.newline, quoted)
    return int(end), int(opened)


def _never_closed(url: str, first_line: int, before: bytes, header: Header) -> InputError:
    place = f"{url}, line {first_line + before.count(header.newline)}"
    hint = "Close the quote, or double it if it is a part of the text."
    return InputError(place, "a quoted cell to end", "no closing quote", hint)


def find_line_ends(parts: Sequence[Part], mapper: Mapper) -> list[Part]:
    """Return parts of the same files that begin and end with lines, quotes considered."""
    scans = list(mapper(scan_part, parts, stage="looking for line ends"))
    exact: list[Part] = []
    for file, group in groupby(zip(parts, scans, strict=True), lambda pair: pair[0].file):
        members = list(group)
        first = members[0][0]
        if is_compressed(file):
            exact.append(first)
        else:
            cuts = [*_true_cuts(first, [scan for _, scan in members]), file.size]
            exact += [replace(first, start=a, stop=b, is_exact=True) for a, b in pairwise(cuts)]
    return exact


def _true_cuts(first: Part, scans: Sequence[Scan]) -> list[int]:
    """Return where lines begin in a file, about once a part, the first line included."""
    cuts, opened = [first.start], -1
    for start, outside, inside in scans:
        if opened >= 0 and start - cuts[-1] > _LONGEST_CELL:
            raise _never_closed(first.file.url, first.line_at(opened), b"", first.header)
        end, begins = outside if opened < 0 else inside
        if end:
            cuts.append(start + end)
        if begins < 0 or opened < 0 or begins > 0:  # else the same cell is still open
            opened = begins if begins < 0 else start + begins
    return cuts


def scan_part(part: Part) -> Scan:
    """Return where a part begins, and its last line end if it begins outside or in a cell."""
    if is_compressed(part.file):
        return part.start, (0, -1), (0, -1)
    start, content = part.read()
    outside, inside = (_last_line_end(content, part.header, quoted) for quoted in (False, True))
    return start, outside, inside
