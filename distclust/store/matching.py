"""Which rows that were read again are stored already, found in bounded memory.

Files that rows come from change. Of a file that is read again, the rows that it gave before
and gives still stay where they are: so blocks in which nothing changed stay the same to the
bit. Rows are the same if their values, their annotations and, where the source names its
rows, their ids are. They are compared by 128-bit digests, never side by side; where rows
have no ids, as many of several equal ones stay as there are on both sides.

Memory: 24 bytes for every row of files that changed, stored or new (digest and position),
and one partition of them being sorted. Rows of other files take none.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.seeding import Keys, row_keys, salted_hashes
from distclust.store.generation import Generation
from distclust.store.ids import PARTITION, Span
from distclust.store.mapping import Mapper
from distclust.store.matrix import block_rows_for, canonical_csr
from distclust.store.row_views import keep_rows, live_mask
from distclust.store.rows import Rows, RowSource

Array: TypeAlias = npt.NDArray[Any]
Positions: TypeAlias = npt.NDArray[np.int64]
Digests: TypeAlias = npt.NDArray[np.uint64]  # shape (n, 2)
Mask: TypeAlias = npt.NDArray[np.bool_]
Found: TypeAlias = tuple[Positions, Digests]

_COMPARING = "comparing rows"
_MISSING = np.uint64(0x6D697373696E6721)  # key of an annotation that is not there


@dataclass(frozen=True)
class Form:
    """How rows are spelt before they are digested, so that equal rows have equal bytes.

    Attributes
    ----------
    is_sparse
        Whether only values other than zero are told.
    dtype
        Type of the values, 8 bytes each.
    has_ids
        Whether ids count.
    """

    is_sparse: bool
    dtype: np.dtype[Any]
    has_ids: bool

    @classmethod
    def common(cls, base: Generation, rows: RowSource, *, has_ids: bool) -> Form:
        """Return a form that holds both stored and new rows."""
        both = np.result_type(base.dtype, rows.dtype)
        whole = np.dtype(np.uint64 if both == np.uint64 else np.int64)
        dtype = whole if both.kind in "biu" else np.dtype(np.float64)
        return cls(base.manifest.is_sparse, dtype, has_ids)


@dataclass(frozen=True, eq=False)
class Matched:
    """What became of rows that were read again.

    Attributes
    ----------
    same
        Numbers of new rows that are stored already, ascending.
    gone
        Stored positions of rows that are no longer there, ascending.
    """

    same: Positions
    gone: Positions


def match_rows(
    base: Generation,
    rows: RowSource,
    file_rows: Sequence[int],
    earlier: Sequence[Sequence[Span]],
    mapper: Mapper,
    *,
    has_ids: bool,
) -> Matched:
    """Compare the rows of files with those that the same files gave before.

    Parameters
    ----------
    base
        The stored rows.
    rows
        The new rows, in the columns and codes of the store.
    file_rows
        How many of them each file gave.
    earlier
        Stored positions that each file wrote before; deleted rows among them do not count.
    mapper
        Where rows are read.
    has_ids
        Whether the ids of new rows are their own, rather than counted.
    """
    owners = _Owners.of(earlier)
    is_compared = np.array([bool(spans) for spans in earlier]) & (np.array(file_rows) > 0)
    form = Form.common(base, rows, has_ids=has_ids)
    starts = np.concatenate([[0], np.cumsum(file_rows)]).astype(np.int64)
    step = block_rows_for(rows.n_features, rows.is_sparse)
    touched = [
        (start, min(start + step, rows.n_rows))
        for start in range(0, rows.n_rows, step)
        if is_compared[_files(starts, start, min(start + step, rows.n_rows))].any()
    ]
    shared = (rows, starts, is_compared, form)
    new = _joined(list(mapper(_digest_new, touched, *shared, stage=_COMPARING)))
    some = owners.where(is_compared)
    spans = some.blocks(base.block_rows, base.manifest.n_stored)
    old = _joined(list(mapper(_digest_stored, spans, base, some, form, stage=_COMPARING)))
    is_old, is_new = _find_same(old[1], new[1])
    emptied = live_positions(base, owners.where(~is_compared).spans)
    return Matched(new[0][is_new], np.union1d(old[0][~is_old], emptied))


def live_positions(base: Generation, spans: Sequence[Span]) -> Positions:
    """Return the positions of live rows within ranges of stored positions, ascending."""
    parts = [np.flatnonzero(base.is_live(*span)) + span[0] for span in sorted(spans)]
    return np.concatenate([np.empty(0, np.int64), *parts])


def trim_spans(spans: Sequence[Span], deleted: Positions) -> tuple[Span, ...]:
    """Return ranges of stored positions without deleted rows at their ends."""
    kept = []
    for start, stop in spans:
        live = np.flatnonzero(live_mask(deleted, start, stop))
        if len(live):
            kept.append((start + int(live[0]), start + int(live[-1]) + 1))
    return tuple(kept)


@dataclass(frozen=True, eq=False)
class _Owners:
    """Which file wrote which stored positions: ranges that do not overlap, ascending."""

    starts: Positions
    stops: Positions
    files: Positions

    @classmethod
    def of(cls, earlier: Sequence[Sequence[Span]]) -> _Owners:
        table = sorted((*span, file) for file, spans in enumerate(earlier) for span in spans)
        columns = np.array(table, np.int64).reshape(-1, 3).T
        return cls(columns[0], columns[1], columns[2])

    @property
    def spans(self) -> list[Span]:
        return list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))

    def where(self, is_wanted: Mask) -> _Owners:
        """Those of some files."""
        mask = is_wanted[self.files] if len(self.files) else np.empty(0, np.bool_)
        return _Owners(self.starts[mask], self.stops[mask], self.files[mask])

    def blocks(self, block_rows: int, n_stored: int) -> list[Span]:
        """Ranges to be read, at most one a logical block."""
        blocks: dict[int, Span] = {}
        for start, stop in self.spans:
            for block in range(start // block_rows, -(-stop // block_rows)):
                low, high = block * block_rows, min((block + 1) * block_rows, n_stored)
                part = max(start, low), min(stop, high)
                known = blocks.get(block, part)
                blocks[block] = min(known[0], part[0]), max(known[1], part[1])
        return [blocks[block] for block in sorted(blocks)]

    def files_at(self, positions: Positions) -> Positions:
        """File of every position, -1 for those of none."""
        k = np.searchsorted(self.starts, positions, side="right") - 1
        is_inside = (k >= 0) & (positions < self.stops[k])
        return np.where(is_inside, self.files[k], -1)


def _files(starts: Positions, start: int, stop: int) -> slice:
    """Files with rows among ``[start, stop)``, and perhaps empty ones between them."""
    first = int(np.searchsorted(starts, start, side="right")) - 1
    return slice(first, int(np.searchsorted(starts, stop, side="left")))


def _digest_new(
    span: Span, rows: RowSource, starts: Positions, is_compared: Mask, form: Form
) -> Found:
    positions = np.arange(*span)
    files = np.searchsorted(starts, positions, side="right") - 1
    is_wanted = is_compared[files]
    read = keep_rows(rows.read(*span), is_wanted)
    return positions[is_wanted], row_digests(read, form, files[is_wanted])


def _digest_stored(span: Span, base: Generation, owners: _Owners, form: Form) -> Found:
    positions = np.arange(*span)
    files = owners.files_at(positions)
    is_wanted = (files >= 0) & base.is_live(*span)
    if not is_wanted.any():
        return positions[:0], np.empty((0, 2), np.uint64)
    read = keep_rows(base.read(*span), is_wanted)
    return positions[is_wanted], row_digests(read, form, files[is_wanted])


def _joined(parts: Sequence[Found]) -> Found:
    positions = np.concatenate([np.empty(0, np.int64), *(found for found, _ in parts)])
    return positions, np.concatenate([np.empty((0, 2), np.uint64), *(d for _, d in parts)])


def row_digests(rows: Rows, form: Form, files: Positions) -> Digests:
    """Return the digest of every row, shape (n, 2): values, id, annotations and its file."""
    digests = _value_digests(rows.values, form)
    columns = [files.astype(np.uint64)]
    if form.has_ids:
        columns.append(row_keys(rows.ids))
    columns += [_keys_of(column) for _, column in sorted(rows.obs.items())]
    for keys in columns:
        digests[:, 0] = salted_hashes(digests[:, 0], keys)
        digests[:, 1] = salted_hashes(digests[:, 1], ~keys)
    return digests


def _value_digests(values: Any, form: Form) -> Digests:
    import xxhash

    is_sparse: bool = scipy.sparse.issparse(values)
    if form.is_sparse:
        csr = canonical_csr(values if is_sparse else scipy.sparse.csr_array(values))
        words = np.empty((csr.nnz, 2), np.int64)
        words[:, 0] = csr.indices
        words[:, 1] = _spelt(csr.data, form.dtype).view(np.int64)
        ends = (csr.indptr.astype(np.int64) * 16).tolist()
    else:
        words = _spelt(values.toarray() if is_sparse else values, form.dtype)
        ends = (np.arange(len(words) + 1) * words.shape[1] * 8).tolist()
    content = words.reshape(-1).view(np.uint8).data
    digests = [xxhash.xxh3_128_digest(content[a:b]) for a, b in itertools.pairwise(ends)]
    return np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2).copy()


def _spelt(values: Any, dtype: np.dtype[Any]) -> Array:
    """Return numbers of one type, of which equal ones have equal bytes: one zero, one NaN."""
    words = np.array(values, dtype, order="C")  # a copy
    if dtype.kind == "f":
        words += 0.0
        words[np.isnan(words)] = np.nan
    return words


def _keys_of(column: Array) -> Keys:
    """Return a 64-bit key of every value of an annotation, shape (n,)."""
    if column.dtype.kind in "biu":
        return row_keys(column.astype(np.int64))
    if column.dtype.kind == "f":
        return row_keys(_spelt(column, np.dtype(np.float64)).view(np.int64))
    keys = row_keys(column)
    keys[np.array([value is None for value in column.tolist()], np.bool_)] = _MISSING
    return keys


def _find_same(old: Digests, new: Digests) -> tuple[Mask, Mask]:
    """Return which of the old and which of the new rows have an equal one on the other side."""
    is_old, is_new = np.zeros(len(old), np.bool_), np.zeros(len(new), np.bool_)
    n_parts = 1 << (max(len(old) + len(new) - 1, 0) // PARTITION).bit_length()
    for part in range(n_parts):
        a, b = (_of_part(digests, part, n_parts) for digests in (old, new))
        digests = np.concatenate([old[a], new[b]])
        # Stable: of equal rows the old ones come first, each side in its order.
        order = np.lexsort((digests[:, 1], digests[:, 0]))
        ordered = digests[order]
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        firsts, groups = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        n_old = np.bincount(groups[order < len(a)], minlength=len(firsts))
        n_both = np.minimum(n_old, np.bincount(groups, minlength=len(firsts)) - n_old)
        rank = np.arange(len(order)) - firsts[groups]
        rank -= np.where(order < len(a), 0, n_old[groups])
        same = order[rank < n_both[groups]]
        is_old[a[same[same < len(a)]]] = True
        is_new[b[same[same >= len(a)] - len(a)]] = True
    return is_old, is_new


def _of_part(digests: Digests, part: int, n_parts: int) -> Positions:
    if n_parts == 1:
        return np.arange(len(digests))
    shift = np.uint64(65 - n_parts.bit_length())
    return np.flatnonzero(digests[:, 0] >> shift == np.uint64(part))
