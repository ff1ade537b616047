"""Sources that are slow or only flow forward are parsed once, piece by piece, into a spool.

A piece is a few MB of the source. Parsing turns it into named arrays and a small survey of
what it holds; both are one object in the scratch, which is there whole or not at all, so
that a run that was killed takes up the pieces it had finished. Surveys of all pieces
together settle what no piece knows alone; then rows are read from the arrays.

Layout of the object: length of the header (8 bytes), its checksum (16), the header as JSON,
the arrays one after the other. Everything begins at a multiple of 64 bytes.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust import events
from distclust.errors import StoreError
from distclust.store.matrix import slice_csr
from distclust.store.row_views import join_rows
from distclust.store.rows import Rows
from distclust.store.sources.base import Scratch

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper

Array: TypeAlias = npt.NDArray[Any]
Item = TypeVar("Item")

PIECE_BYTES = 8 * 2**20
_ALIGNMENT = 64
_PREFIX = 24  # length and checksum of the header
_HEADER_GUESS = 2**16  # read at once; most headers are shorter
_CACHED_PIECES = 2


@dataclass(frozen=True)
class Parsed:
    """What parsing one piece gave.

    Attributes
    ----------
    n_rows
        Rows in the piece.
    arrays
        What is kept of them, by name; any shapes, no objects.
    survey
        JSON to be combined over all pieces.
    """

    n_rows: int
    arrays: Mapping[str, Array]
    survey: Any = None


# What a parser returns: one piece, or several that are worked out one after the other.
Work: TypeAlias = "Parsed | Iterable[Callable[[], Parsed]]"


@dataclass(frozen=True)
class Piece:
    """One piece in the spool.

    Attributes
    ----------
    number, part
        Which item it came from, and its place among the pieces of that item.
    is_last
        Whether the item has no more pieces.
    n_rows
        Rows in it.
    start
        First byte of its arrays.
    layout
        Type, shape, place after `start` and checksum of every array by name.
    survey
        What `Parsed.survey` said.
    """

    number: int
    part: int
    is_last: bool
    n_rows: int
    start: int
    layout: Mapping[str, tuple[str, tuple[int, ...], int, str]] = field(default_factory=dict)
    survey: Any = None


class Spool:
    """Pieces in a scratch; picklable."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def fill(
        self,
        parse: Callable[..., Work],
        items: Iterable[Any],
        *shared: Any,
        mapper: Mapper,
        stage: str = "",
    ) -> Iterator[Piece]:
        """Yield the pieces of every item, in order, parsing those that are not there yet.

        Parameters
        ----------
        parse
            Module-level function of an item and `shared`. It returns what it parsed, or
            yields functions that do: those of finished pieces are not called, and the next
            one is got ready by another thread while one is at work.
        items
            Small descriptions of parts of the source, the same ones in the same order in
            every run.
        shared
            Values that every call gets.
        mapper
            Where the calls run.
        stage
            Name in progress events.
        """
        numbered = list(enumerate(items))
        # If one item is all there is, its pieces are told, though not how many will come.
        inner = f"{stage} pieces" if stage and len(numbered) == 1 else ""
        for pieces in mapper(_spool_item, numbered, parse, self, inner, *shared, stage=stage):
            yield from pieces

    def find(self, number: int, part: int = 0) -> Piece | None:
        """Return a piece that is there already, or None."""
        from distclust.store.objects import checksum

        name = _name(number, part)
        content = self._scratch.read_range(name, 0, _HEADER_GUESS)
        if content is None:
            return None
        end = _PREFIX + int.from_bytes(content[:8], "little")
        if end > len(content):
            content = self._scratch.read_range(name, 0, end) or b""
        header = content[_PREFIX:end]
        if checksum(header) != content[8:_PREFIX]:
            raise self.damaged(number)
        return Piece(number, part, start=_padded(end), **json.loads(header))

    def write(self, number: int, parsed: Parsed, part: int = 0, is_last: bool = True) -> Piece:
        """Keep what parsing gave."""
        from distclust.store.objects import checksum

        layout: dict[str, tuple[str, tuple[int, ...], int, str]] = {}
        buffers: list[Any] = []
        place = 0
        for name, array in parsed.arrays.items():
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            layout[name] = (array.dtype.str, array.shape, place, checksum(content).hex())
            buffers += [content, bytes(_padded(len(content)) - len(content))]
            place += _padded(len(content))
        facts = {
            "is_last": is_last,
            "n_rows": parsed.n_rows,
            "layout": layout,
            "survey": parsed.survey,
        }
        header = json.dumps(facts).encode()
        end = _PREFIX + len(header)
        prefix = len(header).to_bytes(8, "little") + checksum(header)
        padding = bytes(_padded(end) - end)
        self._scratch.write(_name(number, part), prefix, header, padding, *buffers)
        return Piece(number, part, start=_padded(end), **json.loads(header))

    def arrays(self, piece: Piece) -> dict[str, Array]:
        """Return the arrays of a piece, checked; views of one buffer."""
        content = self._scratch.read(_name(piece.number, piece.part))[piece.start :]
        return {
            name: self._view(piece, name, content[place : place + _size(dtype, shape)])
            for name, (dtype, shape, place, _) in piece.layout.items()
        }

    def array(self, piece: Piece, name: str) -> Array:
        """Return one array of a piece, checked, without reading the others."""
        dtype, shape, place, _ = piece.layout[name]
        start = piece.start + place
        stop = start + _size(dtype, shape)
        content = self._scratch.read_range(_name(piece.number, piece.part), start, stop)
        return self._view(piece, name, np.frombuffer(content or b"", np.uint8))

    def stretch(self, piece: Piece, name: str, start: int, stop: int) -> Array:
        """Return entries ``[start, stop)`` of a one-dimensional array, and read no others.

        Only their length is checked, as the checksum is one of all entries.
        """
        dtype, _, place, _ = piece.layout[name]
        size = np.dtype(dtype).itemsize
        first = piece.start + place + start * size
        n_bytes = (stop - start) * size
        content = self._scratch.read_range(_name(piece.number, piece.part), first, first + n_bytes)
        if content is None or len(content) != n_bytes:
            raise self.damaged(piece.number)
        return np.frombuffer(content, dtype)

    def _view(self, piece: Piece, name: str, content: Array) -> Array:
        from distclust.store.objects import checksum

        dtype, shape, _, digest = piece.layout[name]
        if checksum(content).hex() != digest:
            raise self.damaged(piece.number)
        return content.view(dtype).reshape(shape)

    def pieces_of(self, number: int) -> tuple[Piece, ...] | None:
        """Return all pieces of an item, or None if some are not there yet."""
        pieces: list[Piece] = []
        while not pieces or not pieces[-1].is_last:
            piece = self.find(number, len(pieces))
            if piece is None:
                return None
            pieces.append(piece)
        return tuple(pieces)

    def damaged(self, number: int) -> StoreError:
        """Return the error about a piece that is not what was written."""
        where = f"{self._scratch.url}, piece {number} of an unfinished ingest"
        return StoreError(where, "what was written", "something else", "Start over with --fresh.")


def _name(number: int, part: int) -> str:
    return f"pieces/{number:08d}-{part:05d}"


def _padded(n_bytes: int) -> int:
    return n_bytes + -n_bytes % _ALIGNMENT


def _size(dtype: str, shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _spool_item(
    numbered: tuple[int, Any], parse: Callable[..., Work], spool: Spool, stage: str, *shared: Any
) -> tuple[Piece, ...]:
    """Return the pieces of one item, parsed where they are not in the spool yet."""
    number, item = numbered
    known = spool.pieces_of(number)
    if known is not None:
        return known
    work = parse(item, *shared)
    if isinstance(work, Parsed):
        return (spool.write(number, work),)
    pieces = []
    progress = events.Progress(stage)
    for part, (make, is_last) in enumerate(_marked_last(_ahead(work))):
        piece = spool.find(number, part)
        pieces.append(piece or spool.write(number, make(), part, is_last))
        if stage:
            progress.advance()
    if stage:
        progress.flush()
    return tuple(pieces)


def _marked_last(items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
    stream = iter(items)
    for item in stream:
        for following in stream:
            yield item, False
            item = following
        yield item, True


def _ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items while the next one is being made by another thread."""
    stream = iter(items)

    def take() -> list[Item]:
        return list(islice(stream, 1))

    with ThreadPoolExecutor(1, thread_name_prefix="distclust-reader") as reader:
        pending = reader.submit(take)
        while taken := pending.result():
            pending = reader.submit(take)
            yield from taken


class PiecedRows:
    """A `RowSource` over pieces that are read whole; the last ones read are remembered.

    Parameters
    ----------
    counts
        Rows of every piece.
    n_features, is_sparse, dtype
        What the rows hold.
    load
        Picklable function of a piece's position in `counts` that returns all its `Rows`.
    """

    def __init__(
        self,
        counts: Sequence[int],
        n_features: int,
        is_sparse: bool,
        dtype: np.dtype[Any],
        load: Callable[[int], Rows],
    ) -> None:
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.n_rows = int(self._starts[-1])
        self.n_features = n_features
        self.is_sparse = is_sparse
        self.dtype = dtype
        self._load = load
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._recent: OrderedDict[int, Rows] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_lock", "_recent")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def read(self, start: int, stop: int) -> Rows:
        """Return rows ``[start, stop)``."""
        first = int(np.searchsorted(self._starts[:-1], start, side="right")) - 1
        last = int(np.searchsorted(self._starts[:-1], stop, side="left"))
        parts = []
        for number in range(first, max(last, first + 1)):
            origin, end = self._starts[number : number + 2].tolist()
            inside = max(start, origin) - origin, min(stop, end) - origin
            parts.append(slice_rows(self._piece(number), *inside))
        return join_rows(parts, self.dtype)

    def _piece(self, number: int) -> Rows:
        with self._lock:
            found = self._recent.get(number)
        if found is not None:
            return found
        rows = self._load(number)
        with self._lock:
            self._recent[number] = rows
            while len(self._recent) > _CACHED_PIECES:
                self._recent.popitem(last=False)
        return rows


def slice_rows(rows: Rows, start: int, stop: int) -> Rows:
    """Return rows ``[start, stop)`` of a range of rows, as views."""
    if start == 0 and stop == len(rows.ids):
        return rows
    values = rows.values
    cut = slice_csr(values, start, stop) if scipy.sparse.issparse(values) else values[start:stop]
    obs = {name: column[start:stop] for name, column in rows.obs.items()}
    return Rows(cut, rows.ids[start:stop], obs)
