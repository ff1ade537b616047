"""Files of lines, cut into parts that are parsed apart: what several text formats share.

A plain file is cut by bytes. A part owns the lines that *begin* in its range, so a cut may
fall anywhere and nobody looks for line ends beforehand. A compressed file can only be read
forward: it comes as a stream of parts that carry their own lines.

Parsing is fast and says little about what it does not like. A parser that fails goes through
the lines of its part again, slowly, to name the one at fault.
"""

from __future__ import annotations

import codecs
import functools
import gzip
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NoReturn, Protocol, cast

from distclust.errors import InputError
from distclust.store.sources.spool import Parsed, Piece, Spool

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper
    from distclust.store.sources.files import SourceFile

MOST_FEATURES = 2**27  # each has a name, so more than that is a slip or an attack

_COUNTED_BYTES = 2**20  # read at a time where lines are only counted


class LinePart(Protocol):
    """Some whole lines of one file; picklable."""

    @property
    def url(self) -> str:
        """The file."""

    def read(self) -> bytes:
        """Return the lines."""

    def first_line(self) -> int:
        """Return the number of the first line in its file, from 1; may take a while."""


@dataclass(frozen=True)
class FilePart:
    """The lines of a plain file that begin in bytes ``[start, stop)``."""

    file: SourceFile
    start: int
    stop: int

    @property
    def url(self) -> str:
        """The file."""
        return self.file.url

    def read(self) -> bytes:
        """Return the lines."""
        with self.file.open() as file:
            start, stop = _line_start(file, self.start), _line_start(file, self.stop)
            file.seek(start)
            content = file.read(stop - start)
        return content if start else content.removeprefix(codecs.BOM_UTF8)

    def first_line(self) -> int:
        """Count the lines before."""
        with self.file.open() as file:
            left = _line_start(file, self.start)
            file.seek(0)
            line = 1
            while left:
                content = file.read(min(left, _COUNTED_BYTES))
                line += content.count(b"\n")
                left -= len(content)
        return line


@dataclass(frozen=True)
class StreamPart:
    """Lines that were read from a stream."""

    url: str
    content: bytes
    line: int

    def read(self) -> bytes:
        """Return the lines."""
        return self.content if self.line > 1 else self.content.removeprefix(codecs.BOM_UTF8)

    def first_line(self) -> int:
        """Return what was counted on the way."""
        return self.line


@dataclass(frozen=True)
class FileStream:
    """The lines of a compressed file from byte `start` of its content on, a part at a time."""

    file: SourceFile
    start: int
    n_bytes: int

    def parts(self) -> Iterator[StreamPart]:
        """Yield the lines in parts."""
        with open_content(self.file) as content:
            line = content.read(self.start).count(b"\n") + 1
            while lines := content.read(self.n_bytes) + content.readline():
                yield StreamPart(self.file.url, lines, line)
                line += lines.count(b"\n")


def is_compressed(file: SourceFile) -> bool:
    """Whether a file is gzipped, by its name."""
    return file.name.lower().endswith(".gz")


@contextmanager
def open_content(file: SourceFile) -> Iterator[IO[bytes]]:
    """Open a file, and uncompress it on the way if its name says so.

    Raises
    ------
    InputError
        If what is compressed is damaged.
    """
    with file.open() as raw:
        if not is_compressed(file):
            yield raw
            return
        try:
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            hint = "Copy the file again."
            raise InputError(file.url, "a complete gzip file", str(error), hint) from error


def cut_file(file: SourceFile, start: int, n_bytes: int) -> list[FilePart | FileStream]:
    """Return what can be parsed apart, from byte `start` of a file's content on."""
    if is_compressed(file):
        return [FileStream(file, start, n_bytes)]
    cuts = [*range(start, file.size, n_bytes), file.size]
    return [FilePart(file, *pair) for pair in itertools.pairwise(cuts)]


def fill_lines(
    spool: Spool,
    files: Sequence[SourceFile],
    n_bytes: int,
    parse: Callable[..., Parsed],
    *shared: Any,
    mapper: Mapper,
    starts: Mapping[str, int] | None = None,
) -> list[Piece]:
    """Parse the lines of files into a spool, part by part; return its pieces.

    Parameters
    ----------
    spool
        Parts that it holds already are not parsed again.
    files
        In the order of their rows.
    n_bytes
        Size of a part.
    parse
        Module-level function of a `LinePart` and `shared`.
    shared
        Values that every call gets.
    mapper
        Where the calls run.
    starts
        First byte to read by file, where it is not 0; a line begins there.
    """
    known = starts or {}
    items = [item for file in files for item in cut_file(file, known.get(file.url, 0), n_bytes)]
    return list(spool.fill(_parse, items, parse, *shared, mapper=mapper, stage="reading"))


def files_of_lines(
    files: Sequence[SourceFile], n_bytes: int, starts: Mapping[str, int] | None = None
) -> list[int]:
    """Return the number of the file of every item that `fill_lines` makes."""
    known = starts or {}
    cuts = (cut_file(file, known.get(file.url, 0), n_bytes) for file in files)
    return [number for number, parts in enumerate(cuts) for _ in parts]


def _parse(
    item: FilePart | FileStream, parse: Callable[..., Parsed], *shared: Any
) -> Parsed | Iterator[Callable[[], Parsed]]:
    if isinstance(item, FilePart):
        return parse(item, *shared)
    return (functools.partial(parse, part, *shared) for part in item.parts())


def squeeze(text: bytes) -> bytes:
    """Return lines with single spaces between words, and none around them."""
    if b"\t" in text or b"\r" in text:
        text = text.translate(bytes.maketrans(b"\t\r", b"  "))
    while b"  " in text:
        text = text.replace(b"  ", b" ")
    return text.replace(b" \n", b"\n").replace(b"\n ", b"\n").strip()


def parse_cells(
    text: bytes, delimiter: str, types: Sequence[str], nulls: Sequence[str] = ()
) -> list[Any]:
    """Return the columns of a table of numbers, as Arrow arrays.

    Parameters
    ----------
    text
        Lines of cells; empty lines are skipped.
    delimiter
        One character between cells.
    types
        Name of the Arrow type of every column.
    nulls
        Cells of numbers that stand for a missing value.

    Raises
    ------
    ValueError
        If a line has another number of cells, or a cell is not such a number.
    """
    import pyarrow as pa
    from pyarrow import csv

    names = [str(i) for i in range(len(types))]
    known = {name: pa.type_for_alias(kind) for name, kind in zip(names, types, strict=True)}
    if not text:
        return [pa.array([], kind) for kind in known.values()]
    table = csv.read_csv(
        pa.BufferReader(text),
        csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
        csv.ParseOptions(delimiter=delimiter, quote_char=False),
        csv.ConvertOptions(column_types=known, null_values=list(nulls), strings_can_be_null=False),
    )
    return [column.combine_chunks() for column in table.columns]


def refuse_line(
    part: LinePart,
    text: bytes,
    fault: Callable[[bytes], str | None],
    expected: str,
    hint: str,
) -> NoReturn:
    """Raise the error about the first line that has a fault, with its number.

    Parameters
    ----------
    part, text
        Lines that could not be parsed.
    fault
        Function of one line that says what was found there instead, or None.
    expected, hint
        What a line should hold, and what to do.
    """
    for i, line in enumerate(text.split(b"\n")):
        got = fault(line)
        if got is not None:
            raise InputError(f"{part.url}, line {part.first_line() + i}", expected, got, hint)
    raise InputError(part.url, expected, "lines that cannot be read", hint)


def shown(token: bytes) -> str:
    """Return the beginning of a token as it appears in an error."""
    return repr(token[:40].decode("utf-8", "replace"))


def _line_start(file: IO[bytes], position: int) -> int:
    """Return where the first line begins that does not begin before `position`."""
    if position == 0:
        return 0
    file.seek(position - 1)
    file.readline()
    return file.tell()
