"""Matrix Market files: coordinate and array format, plain or gzipped, in any order.

Entries come in any order, most often by column, while stores are written by rows: parts of
a file are parsed in parallel into runs of entries, which are then gathered by rows (see
``runs``). Duplicates add up to the same sums as ``scipy.io.mmread`` gives; the other triangle
of a symmetric matrix is filled in. Pattern files hold booleans, so an entry named twice is
there once. Several files are stacked.

What follows a number on its line is refused, where other readers skip it: ``1,5`` is not 1.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.matrix import default_columns, number_kind
from distclust.store.sources.base import Prepared, Scratch, Source, SourceOptions
from distclust.store.sources.files import SourceFile, name_files
from distclust.store.sources.lines import (
    MOST_FEATURES,
    LinePart,
    fill_lines,
    is_compressed,
    open_content,
    parse_cells,
    refuse_line,
    shown,
    squeeze,
)
from distclust.store.sources.runs import Frame, gather_runs, make_run
from distclust.store.sources.spool import Parsed, Piece, Spool

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper

Array: TypeAlias = npt.NDArray[Any]

_PART_BYTES = 2**24  # long runs, as every band reads a stretch of each
_MOST_ROWS = 2**31 - 1  # entries count them in 32 bits
_MOST_COMPRESSED = 1032  # times; gzip reaches no more
_TYPES = {
    "real": "float64",
    "double": "float64",
    "integer": "int64",
    "unsigned-integer": "uint64",
    "pattern": "bool",
}
_NO_OPPOSITES = (["pattern", "skew-symmetric"], ["unsigned-integer", "skew-symmetric"])
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")
_HINT = "Check the file, or write it again with scipy.io.mmwrite."


@dataclass(frozen=True)
class Header:
    """What the first lines of a file say.

    Attributes
    ----------
    layout, field, symmetry
        The words of the banner.
    n_rows, n_columns
        Shape of the matrix.
    n_entries
        Entries that follow.
    start
        First byte after the header.
    first_row
        Rows of the files before this one.
    """

    layout: str
    field: str
    symmetry: str
    n_rows: int = 0
    n_columns: int = 0
    n_entries: int = 0
    start: int = 0
    first_row: int = 0

    @property
    def dtype(self) -> str:
        """Name of the type of the values."""
        return _TYPES[self.field]

    @property
    def cell_types(self) -> list[str]:
        """Types of the numbers on a line."""
        places = ["int64", "int64"] if self.layout == "coordinate" else []
        return places if self.field == "pattern" else [*places, self.dtype]


class MatrixMarketSource(Source):
    """Matrix Market files, one below the other."""

    def __init__(self, files: tuple[SourceFile, ...], options: SourceOptions) -> None:
        self.name = name_files(files)
        options.refuse_columns(self.name, "a Matrix Market file")
        self._files = files
        self._options = options

    def identity(self) -> dict[str, Any]:
        """Return files and options."""
        files = [file.identity() for file in self._files]
        options = self._options.identity()
        return {"format": "mtx", "files": files, "options": options, "cut": _PART_BYTES}

    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Parse all entries, and gather them by rows."""
        headers = _read_headers(self._files)
        first = headers[self._files[0].url]
        n_rows = sum(header.n_rows for header in headers.values())
        frame = Frame(n_rows, first.n_columns, first.dtype, first.layout == "coordinate")
        starts = {url: header.start for url, header in headers.items()}
        work = (parse_entries, headers, frame)
        spool = Spool(scratch.below("lines"))
        pieces = fill_lines(spool, self._files, _PART_BYTES, *work, mapper=mapper, starts=starts)
        counts = _check_counts(headers, pieces)
        if first.layout == "array":
            values, spool = spool, Spool(scratch.below("runs"))
            items = list(zip(pieces, counts, strict=True))
            pieces = list(spool.fill(_place_values, items, values, headers, frame, mapper=mapper))
        rows = gather_runs(spool, pieces, frame, scratch=scratch, mapper=mapper)
        columns = default_columns(frame.n_features, number_kind(rows.dtype))
        file_rows = tuple(header.n_rows for header in headers.values())
        return Prepared(rows, columns, has_ids=False, file_rows=file_rows)


def make_source(files: tuple[SourceFile, ...], options: SourceOptions) -> Source:
    """Return the source over Matrix Market files."""
    return MatrixMarketSource(files, options)


def read_header(file: SourceFile) -> Header:
    """Return what the first lines of a file say.

    Raises
    ------
    InputError
        If they are not those of a matrix of real numbers, whole numbers or a pattern.
    """
    with open_content(file) as content:
        words = content.readline(1024).decode("latin-1").lower().split()
        header = _read_banner(file.url, words)
        n_lines = 2
        while (line := content.readline(2**16)) and (line[:1] == b"%" or not line.strip()):
            n_lines += 1
        where = f"{file.url}, line {n_lines}"
        header = replace(_read_size(where, header, line.split()), start=content.tell())
    most_bytes = file.size * (_MOST_COMPRESSED if is_compressed(file) else 1)
    if 2 * len(header.cell_types) * header.n_entries > most_bytes + 1:
        raise _wrong_count(file.url, header, "a file too short for them")
    return header


def _read_banner(url: str, words: list[str]) -> Header:
    kinds = (["%%matrixmarket"], ["matrix"], ["coordinate", "array"], [*_TYPES], [*_SYMMETRIES])
    is_known = len(words) == 5 and all(w in known for w, known in zip(words, kinds, strict=True))
    if not is_known or words[2:4] == ["array", "pattern"] or words[3:] in _NO_OPPOSITES:
        expected = (
            "'%%MatrixMarket matrix', then coordinate or array, then real, integer or pattern, "
            "then general, symmetric or skew-symmetric"
        )
        raise InputError(f"{url}, line 1", expected, shown(" ".join(words).encode()), _HINT)
    return Header(words[2], words[3], words[4])


def _read_size(where: str, header: Header, words: list[bytes]) -> Header:
    wanted = ["rows", "columns"] if header.layout == "array" else ["rows", "columns", "entries"]
    if len(words) != len(wanted) or not all(word.isdigit() for word in words):
        expected = f"numbers of {', '.join(wanted)}"
        raise InputError(where, expected, shown(b" ".join(words)), _HINT)
    n_rows, n_columns, *counts = map(int, words)
    got = f"{n_rows} rows and {n_columns} columns"
    if not (0 < n_rows <= _MOST_ROWS and 0 < n_columns <= MOST_FEATURES):
        expected = f"1 to {_MOST_ROWS} rows and 1 to {MOST_FEATURES} columns"
        raise InputError(where, expected, got, _HINT)
    if header.symmetry != "general" and n_rows != n_columns:
        raise InputError(where, f"a square matrix, as it is {header.symmetry}", got, _HINT)
    n_entries = n_rows * n_columns
    if header.symmetry != "general":
        diagonal = n_rows if header.symmetry == "symmetric" else -n_rows
        n_entries = (n_entries + diagonal) // 2
    return replace(header, n_rows=n_rows, n_columns=n_columns, n_entries=[*counts, n_entries][0])


def _wrong_count(url: str, header: Header, got: object) -> InputError:
    return InputError(url, f"{header.n_entries} entries as its header says", got, _HINT)


def _read_headers(files: tuple[SourceFile, ...]) -> dict[str, Header]:
    """Read the headers of all files; rows are counted on from file to file."""
    headers: dict[str, Header] = {}
    n_rows = 0
    for file in files:
        if file.url in headers:
            raise InputError(file.url, "every file once", "it twice", "Name it once.")
        header = replace(read_header(file), first_row=n_rows)
        first = next(iter(headers.values()), header)
        for name in ("layout", "field", "n_columns"):
            expected, got = getattr(first, name), getattr(header, name)
            if expected != got:
                word = name.removeprefix("n_")
                where = f"{file.url}, {word}"
                raise InputError(where, f"{expected} as in {files[0].url}", got, _HINT)
        headers[file.url] = header
        n_rows += header.n_rows
    return headers


def parse_entries(part: LinePart, headers: Mapping[str, Header], frame: Frame) -> Parsed:
    """Parse a part of a file into a run of entries, or values whose place is not known yet.

    Raises
    ------
    InputError
        If a line is not an entry, or lies outside of the matrix.
    """
    header = headers[part.url]
    text = part.read()
    try:
        arrays = _check_cells(_parse_cells(text, header.cell_types), header)
    except ValueError:
        fault = functools.partial(_fault, header=header)
        refuse_line(part, text, fault, _wanted(header), _HINT)
    survey = {"url": part.url, "n_entries": len(arrays[0])}
    if header.layout == "array":
        return Parsed(0, {"values": arrays[0]}, survey)
    rows, columns, *values = arrays
    return Parsed(0, _make_run(rows - 1, columns - 1, values, header, frame), survey)


def _parse_cells(text: bytes, types: list[str]) -> list[Array]:
    """Return the columns of numbers of some lines; ValueError if they are none."""
    try:
        cells = parse_cells(text, " ", types)
    except ValueError:  # most files have single spaces; the others take a second look
        cells = parse_cells(squeeze(text).replace(b" +", b" "), " ", types)
    return [cell.to_numpy() for cell in cells]


def _check_cells(cells: list[Array], header: Header) -> list[Array]:
    """Return the columns of numbers of a part; ValueError for numbers that cannot be."""
    is_right = True
    if header.layout == "array":
        is_right = not np.isinf(cells[0]).any()  # missing values are allowed
    else:
        for places, end in ((cells[0], header.n_rows), (cells[1], header.n_columns)):
            is_right &= bool(((places >= 1) & (places <= end)).all())
        is_right &= all(np.isfinite(values).all() for values in cells[2:])
        if header.symmetry == "skew-symmetric":
            is_right &= not (cells[0] == cells[1]).any()
    if not is_right:
        raise ValueError
    return cells


def _place_values(
    item: tuple[Piece, int], spool: Spool, headers: Mapping[str, Header], frame: Frame
) -> Parsed:
    """Turn values of an array file into a run, once it is known how many come before."""
    piece, first = item
    header = headers[piece.survey["url"]]
    values = spool.arrays(piece)["values"]
    rows, columns = _unfold(first, len(values), header)
    return Parsed(0, _make_run(rows, columns, [values], header, frame))


def _make_run(
    rows: Array, columns: Array, values: list[Array], header: Header, frame: Frame
) -> dict[str, Array]:
    """Return a run with the other triangle filled in."""
    if header.symmetry != "general":
        other = rows != columns
        sign = -1 if header.symmetry == "skew-symmetric" else 1
        values = [np.concatenate([column, sign * column[other]]) for column in values]
        rows, columns = (
            np.concatenate([rows, columns[other]]),
            np.concatenate([columns, rows[other]]),
        )
    return make_run(rows + header.first_row, columns, values[0] if values else None, frame)


def _unfold(first: int, n_entries: int, header: Header) -> tuple[Array, Array]:
    """Return the places of array entries, which run down the columns, shape (n_entries,)."""
    n_rows = header.n_rows
    numbers = np.arange(first, first + n_entries)
    if header.symmetry == "general":
        return numbers % n_rows, numbers // n_rows
    # Column j of a lower triangle begins at row j, or below if the diagonal is left out.
    skipped = int(header.symmetry == "skew-symmetric")
    j = np.arange(header.n_columns + 1)
    starts = j * (n_rows - skipped) - j * (j - 1) // 2
    columns = np.searchsorted(starts, numbers, side="right") - 1
    return numbers - starts[columns] + columns + skipped, columns


def _wanted(header: Header) -> str:
    if header.layout == "array":
        return f"one number of type {header.field}"
    value = "" if header.field == "pattern" else f" and a finite value of type {header.field}"
    return f"row and column of a {header.n_rows} x {header.n_columns} matrix{value}"


def _fault(line: bytes, header: Header) -> str | None:
    """Return what is wrong with a line; slow, and only asked about a part that has a fault."""
    words = line.split()
    if not words:
        return None
    if len(words) != len(header.cell_types):
        return shown(line)
    try:
        pairs = zip(words, header.cell_types, strict=True)
        cells = [np.dtype(kind).type(word.decode()) for word, kind in pairs]
    except (ValueError, OverflowError):
        return shown(line)
    if header.layout == "array":
        return shown(line) if np.isinf(cells[0]) else None
    is_inside = 1 <= cells[0] <= header.n_rows and 1 <= cells[1] <= header.n_columns
    is_diagonal = header.symmetry == "skew-symmetric" and cells[0] == cells[1]
    return None if is_inside and not is_diagonal and np.isfinite(cells).all() else shown(line)


def _check_counts(headers: Mapping[str, Header], pieces: list[Piece]) -> list[int]:
    """Return for every piece how many entries of its file come before it.

    Raises
    ------
    InputError
        If a file has more or fewer entries than its header says.
    """
    found = dict.fromkeys(headers, 0)
    before = []
    for piece in pieces:
        before.append(found[piece.survey["url"]])
        found[piece.survey["url"]] += piece.survey["n_entries"]
    for url, header in headers.items():
        if found[url] != header.n_entries:
            raise _wrong_count(url, header, found[url])
    return before
