"""Which rows have the same id, found in bounded memory.

Every row has a 64-bit key that follows from its id and takes 8 bytes on disk. Keys are
compared, never all ids: new keys are sorted, a part of the range of keys at a time, and
equal neighbours stand out; keys of rows that are stored already (and differ from each
other) are looked up among them. What is left are suspects, which are few unless ids really
are repeated. Keys of whole numbers are a one-to-one mixture, so that equal keys are equal
ids; keys of text are hashes, and the ids of suspects are read and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.seeding import Keys, row_keys
from distclust.store.mapping import Mapper
from distclust.store.matrix import block_rows_for
from distclust.store.objects import Objects
from distclust.store.row_views import live_mask
from distclust.store.rows import RowSource
from distclust.store.segments import SegmentReader

Array: TypeAlias = npt.NDArray[Any]
Positions: TypeAlias = npt.NDArray[np.int64]
Span: TypeAlias = tuple[int, int]
Duplicates: TypeAlias = Literal["refuse", "first", "last"]

PARTITION = 1 << 24  # keys that are sorted at a time: 128 MB
COMPARED = 1 << 18  # ids in memory at a time
TABLE_BITS = 26  # of the largest table of wanted keys: 64 MB

_ODD = np.uint64(0x9E3779B97F4A7C15)
_SPAN = 1 << 16
_NONE: Positions = np.empty(0, np.int64)


class Ids(Protocol):
    """Ids and keys of some rows by their positions; picklable."""

    @property
    def n_rows(self) -> int: ...  # noqa: D102

    @property
    def spans(self) -> list[Span]:
        """Ranges of positions that are worked on one by one."""

    def keys(self, span: Span) -> tuple[Positions, Keys]:
        """Positions within one of the spans that hold a row, and the keys of these."""

    def take(self, positions: Positions) -> Array:
        """Ids at ascending positions."""


def _cut(n_rows: int, rows: int) -> list[Span]:
    return [(start, min(start + rows, n_rows)) for start in range(0, n_rows, rows)]


class StoredIds:
    """Ids of written segments, one after the other, without the deleted rows."""

    def __init__(
        self, readers: Sequence[SegmentReader] = (), tombstones: Positions = _NONE
    ) -> None:
        self._readers = tuple(readers)
        self._tombstones = tombstones
        self._starts = starts_of(readers)

    @property
    def n_rows(self) -> int:
        """Number of positions."""
        return int(self._starts[-1])

    @property
    def spans(self) -> list[Span]:
        """Ranges of positions."""
        return _cut(self.n_rows, _SPAN)

    def keys(self, span: Span) -> tuple[Positions, Keys]:
        """Positions of live rows within a span, and their keys."""
        blocks = cut_blocks(self._readers, self._starts, *span)
        keys = np.concatenate([self._readers[k].block_keys(j)[cut] for k, j, _, cut in blocks])
        is_live = live_mask(self._tombstones, *span)
        return np.flatnonzero(is_live) + span[0], keys[is_live]

    def take(self, positions: Positions) -> Array:
        """Ids at ascending positions."""
        parts = []
        while len(positions):
            start = int(positions[0])
            k, j, first, _ = next(cut_blocks(self._readers, self._starts, start, start + 1))
            ids = self._readers[k].block_ids(j)
            n_here = int(np.searchsorted(positions, first + len(ids)))
            parts.append(ids[positions[:n_here] - first])
            positions = positions[n_here:]
        return np.concatenate(parts) if parts else np.empty(0, object)


def starts_of(readers: Sequence[SegmentReader]) -> Positions:
    """Stored position of the first row of every segment, and of the end."""
    return np.cumsum([0, *(reader.n_rows for reader in readers)])


def cut_blocks(
    readers: Sequence[SegmentReader], starts: Positions, start: int, stop: int
) -> Iterator[tuple[int, int, int, slice]]:
    """Yield the segments' own blocks that hold stored positions ``[start, stop)``.

    Yields
    ------
    Number of the segment, number of the block in it, position of the block's first row, and
    which of the block's rows belong to the range.
    """
    first_segment = int(np.searchsorted(starts, start, side="right")) - 1
    for k in range(first_segment, len(readers)):
        begin, end = int(starts[k]), min(int(starts[k + 1]), stop)
        rows = readers[k].block_rows
        for j in range(max(start - begin, 0) // rows, -(-max(end - begin, 0) // rows)):
            first = begin + j * rows
            yield k, j, first, slice(max(start - first, 0), min(rows, end - first))


class SourceIds:
    """Ids of rows that are not written yet; keys are kept in a scratch."""

    def __init__(self, rows: RowSource, objects: Objects, scratch: str) -> None:
        self._rows = rows
        self._objects = objects
        self._scratch = scratch

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self._rows.n_rows

    @property
    def spans(self) -> list[Span]:
        """Ranges of rows, no larger than blocks: their values may have to be read."""
        return _cut(self.n_rows, block_rows_for(self._rows.n_features, self._rows.is_sparse))

    def keys(self, span: Span) -> tuple[Positions, Keys]:
        """All positions of a span, and their keys; made once, then read back."""
        key = f"{self._scratch}/keys/{span[0]}"
        if not self._objects.exists(key):
            self._objects.write(key, row_keys(self._rows.read(*span).ids).tobytes())
        return np.arange(*span), self._objects.read_array(key).view(np.uint64)

    def take(self, positions: Positions) -> Array:
        """Ids at ascending positions."""
        parts = []
        for start, stop in self.spans:
            low, high = np.searchsorted(positions, (start, stop))
            if low < high:
                parts.append(self._rows.read(start, stop).ids[positions[low:high] - start])
        return np.concatenate(parts) if parts else np.empty(0, object)


class GivenIds:
    """Ids that somebody listed, shape (n,)."""

    def __init__(self, ids: Array) -> None:
        self._ids = ids

    @property
    def n_rows(self) -> int:
        """Number of ids."""
        return len(self._ids)

    @property
    def spans(self) -> list[Span]:
        """Ranges of positions."""
        return _cut(self.n_rows, _SPAN)

    def keys(self, span: Span) -> tuple[Positions, Keys]:
        """All positions of a span, and their keys."""
        return np.arange(*span), row_keys(self._ids[slice(*span)])

    def take(self, positions: Positions) -> Array:
        """Ids at ascending positions."""
        return self._ids[positions]


@dataclass(frozen=True, eq=False)
class Repeats:
    """Rows whose id occurs more than once, shape (n_repeats,) each.

    Attributes
    ----------
    positions
        New rows count on from the positions of the stored ones; ascending in every group.
    groups
        Rows of one id have one number from 1 on; ascending.
    n_stored
        Number of stored positions.
    """

    positions: Positions
    groups: Positions
    n_stored: int

    def losers(self, keep: Literal["first", "last"]) -> tuple[Positions, Positions]:
        """Rows that give way if the first or the last of every id is kept.

        Returns
        -------
        Stored positions and numbers of new rows, both ascending.
        """
        is_first = np.diff(self.groups, prepend=0) != 0
        is_last = np.diff(self.groups, append=0) != 0
        gone = np.sort(self.positions[~(is_first if keep == "first" else is_last)])
        n_old = int(np.searchsorted(gone, self.n_stored))
        return gone[:n_old], gone[n_old:] - self.n_stored

    def among_new(self) -> Repeats:
        """The new rows alone."""
        is_new = self.positions >= self.n_stored
        return Repeats(self.positions[is_new], self.groups[is_new], self.n_stored)

    def refuse(self, new: Ids, where: str, hint: str) -> None:
        """Raise `InputError` about the first new row that repeats an earlier one, if any."""
        _, later = self.losers("first")
        if len(later) == 0:
            return
        second = int(later[0])
        group = self.groups[self.positions == second + self.n_stored]
        first = int(self.positions[np.searchsorted(self.groups, group[0])])
        is_stored = first < self.n_stored
        place = f"row {first} of the store" if is_stored else f"row {first - self.n_stored}"
        got = f"{new.take(later[:1]).tolist()[0]!r} in {place} and in row {second}"
        raise InputError(where, "every row id once", got, hint)


def find_repeats(
    new: Ids, stored: Ids, mapper: Mapper, *, is_exact: bool, stage: str = ""
) -> Repeats:
    """Find the rows that share an id with another row.

    Parameters
    ----------
    new
        Rows of which nothing is known.
    stored
        Rows that have different ids.
    mapper
        How work over many parts is done.
    is_exact
        Whether equal keys are equal ids, as for whole numbers.
    stage
        Name in progress events.

    Notes
    -----
    One pass over the new and one over the stored keys for every `PARTITION` new rows, and
    one more over both where there are suspects. Memory for one partition of keys, and 16
    bytes a row that has a suspect key.
    """
    suspects = _suspects(new, stored, mapper, stage)
    if len(suspects) == 0:
        return Repeats(_NONE, _NONE, stored.n_rows)
    old_positions, old_keys = _with_keys(stored, suspects, mapper)
    new_positions, new_keys = _with_keys(new, suspects, mapper)
    positions = np.concatenate([old_positions, new_positions + stored.n_rows])
    keys = np.concatenate([old_keys, new_keys])
    order = np.lexsort((positions, keys))
    positions, keys = positions[order], keys[order]
    groups = 1 + np.cumsum(np.append(False, keys[1:] != keys[:-1]))
    if not is_exact:
        positions, groups = _compare(positions, groups, new, stored)
    is_repeated = np.bincount(groups)[groups] > 1
    return Repeats(positions[is_repeated], groups[is_repeated], stored.n_rows)


def count_shared(new: Ids, stored: StoredIds, positions: Positions) -> int:
    """Return how many new rows have the id of a row at some stored positions, ascending.

    By their keys, which are looked at in 16 bytes a position.
    """
    cuts = np.searchsorted(positions, [start for start, _ in stored.spans])
    parts = [np.empty(0, np.uint64)]
    for span, low, high in zip(stored.spans, cuts, [*cuts[1:], len(positions)], strict=True):
        if low < high:
            parts.append(stored.keys(span)[1][positions[low:high] - span[0]])
    known = Wanted.of(np.sort(np.concatenate(parts)))
    return sum(int(known.has(new.keys(span)[1]).sum()) for span in new.spans)


def _suspects(new: Ids, stored: Ids, mapper: Mapper, stage: str) -> Keys:
    """Return the sorted keys of new rows that occur once more among all rows."""
    n_parts = 1 << (max(new.n_rows - 1, 0) // PARTITION).bit_length()
    suspects = [np.empty(0, np.uint64)]
    for part in range(n_parts):
        parts = mapper(_keys_of_part, new.spans, new, part, n_parts, stage=stage)
        keys = np.concatenate([np.empty(0, np.uint64), *parts])
        keys.sort()
        hits = mapper(_known_keys, stored.spans, stored, Wanted.of(keys), stage=stage)
        suspects.append(_distinct(np.concatenate([keys[1:][keys[1:] == keys[:-1]], *hits])))
    return np.concatenate(suspects)  # parts are ranges of keys in ascending order


def _distinct(keys: Keys) -> Keys:
    """Sorted keys, each once; `numpy.unique` hashes them first, which takes longer."""
    ascending = np.sort(keys)
    is_first = np.ones(len(keys), np.bool_)
    is_first[1:] = ascending[1:] != ascending[:-1]
    distinct: Keys = ascending[is_first]
    return distinct


def _keys_of_part(span: Span, ids: Ids, part: int, n_parts: int) -> Keys:
    keys = ids.keys(span)[1]
    shift = np.uint64(65 - n_parts.bit_length())
    return keys if n_parts == 1 else keys[keys >> shift == np.uint64(part)]


def _known_keys(span: Span, ids: Ids, wanted: Wanted) -> Keys:
    keys = ids.keys(span)[1]
    return keys[wanted.has(keys)]


@dataclass(frozen=True, eq=False)
class Wanted:
    """Sorted keys that others are compared with.

    Most of the others are told apart at a glance, by a table of the upper bits of their
    products with an odd number: a night that adds few rows looks at the keys of all that are
    there, and sorting those would take ten times as long.

    Attributes
    ----------
    keys
        Ascending.
    is_used
        Whether one of the keys has these upper bits, shape (2**k,), at least eight for every
        key as long as the table is not too large.
    """

    keys: Keys
    is_used: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, keys: Keys) -> Wanted:
        """Make the table."""
        n_bits = min((8 * len(keys) + 1).bit_length(), TABLE_BITS)
        wanted = cls(keys, np.zeros(1 << n_bits, np.bool_))
        wanted.is_used[wanted._slots(keys)] = True
        return wanted

    def has(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Whether each of some keys is among these, shape (n,)."""
        is_known: npt.NDArray[np.bool_] = self.is_used[self._slots(keys)]
        likely = np.flatnonzero(is_known)
        if len(likely):
            # In ascending order: a search for keys at random misses the cache at every step.
            likely = likely[np.argsort(keys[likely])]
            found = keys[likely]
            places = np.minimum(np.searchsorted(self.keys, found), len(self.keys) - 1)
            is_known[likely] = self.keys[places] == found
        return is_known

    def _slots(self, keys: Keys) -> Keys:
        shift = np.uint64(65 - len(self.is_used).bit_length())
        return (keys * _ODD) >> shift


def _with_keys(ids: Ids, known: Keys, mapper: Mapper) -> tuple[Positions, Keys]:
    parts = list(mapper(_rows_with_keys, ids.spans, ids, Wanted.of(known)))
    positions = np.concatenate([_NONE, *(positions for positions, _ in parts)])
    return positions, np.concatenate([np.empty(0, np.uint64), *(keys for _, keys in parts)])


def _rows_with_keys(span: Span, ids: Ids, wanted: Wanted) -> tuple[Positions, Keys]:
    positions, keys = ids.keys(span)
    is_known = wanted.has(keys)
    return positions[is_known], keys[is_known]


def _compare(
    positions: Positions, groups: Positions, new: Ids, stored: Ids
) -> tuple[Positions, Positions]:
    """Split groups of equal keys into groups of equal ids."""
    compared = []
    n_groups = 0
    for low, high in _whole_groups(groups):
        ids = _take_both(positions[low:high], new, stored)
        codes = np.unique(ids, return_inverse=True)[1]
        order = np.lexsort((positions[low:high], codes))
        compared.append((positions[low:high][order], codes[order] + n_groups + 1))
        n_groups += int(codes.max()) + 1
    split = [np.concatenate(parts) for parts in zip(*compared, strict=True)]
    return split[0], split[1]


def _whole_groups(groups: Positions) -> Iterator[Span]:
    """Cut ascending groups into ranges of about `COMPARED` rows."""
    low = 0
    while low < len(groups):
        last = groups[min(low + COMPARED, len(groups)) - 1]
        high = int(np.searchsorted(groups, last, side="right"))
        yield low, high
        low = high


def _take_both(positions: Positions, new: Ids, stored: Ids) -> Array:
    """Return the ids at positions in any order."""
    order = np.argsort(positions)
    ascending = positions[order]
    n_old = int(np.searchsorted(ascending, stored.n_rows))
    taken = [stored.take(ascending[:n_old]), new.take(ascending[n_old:] - stored.n_rows)]
    ids = np.empty(len(positions), object)
    ids[order] = np.concatenate([part.astype(object) for part in taken])
    return ids
