"""Shards of an index: which rows have a feature, for some thousand rows each.

A shard has up to 65,536 consecutive rows, so that a row's number within it takes 16 bits.
Features that at least one row in 8 has are kept as bits, a few bytes a row; the others as
lists of rows. A shard follows from its own rows only: appending rows changes no other.

A search adds the gains of the query's lists to the base of every row, in 32 bits. What the
bits may add is bounded by how many of them a row has in each of four groups of about equally
frequent features. They are looked at only for rows that can still be among the best, and rows
that are left get their exact score from lists and bits in 64 bits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import StoreError
from distclust.retrieval.prior import BinaryPrior, Query, make_room
from distclust.retrieval.ranking import Top, best, highest, just_below
from distclust.retrieval.scanning import EXACT_ROUNDING, ROUNDING

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

SHARD_ROWS = 65_536
BITS_FROM = 8  # a feature that one row in so many has is kept as bits

_SIZES_KEPT = 4
_GROUPS = 4
_MOST_BITS = 255 * _GROUPS  # two counts of a group make a number of 16 bits
_PARTS = ("columns", "starts", "rows", "bit_columns", "bit_places", "bits")


@dataclass(frozen=True, eq=False)
class Shard:
    """Rows by feature.

    Attributes
    ----------
    n_rows, n_features
        The shape.
    columns, starts, rows
        Features with lists, ascending, int32; where their lists begin, with the end added,
        int64; numbers of the rows, ascending in a list, uint16.
    bit_columns, bit_places, bits
        Features kept as bits, ascending, int32; which bit each is, frequent ones first,
        int32; packed, shape (n_rows, n_bytes).
    """

    n_rows: int
    n_features: int
    columns: Array
    starts: Array
    rows: Array
    bit_columns: Array
    bit_places: Array
    bits: Array
    _resting: dict[tuple[float, float, int], Resting] = field(default_factory=dict, repr=False)

    @property
    def n_ones(self) -> int:
        """How many features all rows have together."""
        return len(self.rows) + int(np.bitwise_count(self.bits).sum(dtype=np.int64))

    def count_ones(self) -> npt.NDArray[np.int64]:
        """Return how many rows have each feature, shape (n_features,)."""
        counts = np.zeros(self.n_features, np.int64)
        counts[self.columns] = np.diff(self.starts)
        unpacked = np.unpackbits(self.bits, axis=1, count=len(self.bit_columns))
        counts[self.bit_columns] = unpacked.sum(axis=0, dtype=np.int64)[self.bit_places]
        return counts

    @functools.cached_property
    def _counts(self) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
        """How many bits every row has in the four groups, two of them in each number."""
        from distclust.retrieval import _numerics as numerics

        first, second = np.empty((2, self.n_rows), np.uint16)
        numerics.count_bits_by_group(self.bits, _group_size(len(self.bit_columns)), first, second)
        return first, second

    def search(self, prior: BinaryPrior, query: Query, k: int, floor: float) -> Top:
        """Return the best `k` rows, at most, of those that may reach the score `floor`."""
        from distclust.retrieval import _numerics as numerics

        resting, asked = self.resting(prior, query.n_items), self._look_up(query)
        sums = resting.by_lists.copy()
        numerics.add_by_lists(self.rows, asked.begins, asked.ends, asked.places, query.gains, sums)
        weights = resting.weights.copy()
        has_bit = asked.places >= 0
        weights[asked.places[has_bit]] += query.gains[has_bit]
        tables = np.empty((self.bits.shape[1], 256), np.float32)
        numerics.byte_tables(weights, tables)
        # Roundings on the way of a row: one a list, one a byte, eight in the tables, and a few
        # where numbers become 32 bits and where bounds are added.
        n_terms = len(query.columns) + len(tables) + 16.0
        slack = ROUNDING * n_terms * (float(query.gains.sum()) + resting.largest)
        slack += EXACT_ROUNDING * abs(query.constant)
        found = np.arange(self.n_rows)
        threshold = floor - query.constant - slack
        if floor > -np.inf:
            n_found = numerics.promising(
                sums, *self._counts, *_caps(weights), just_below(threshold), found
            )
            found = found[:n_found]
        found = found[: numerics.refine(self.bits, tables, just_below(threshold), found, sums)]
        if floor == -np.inf:
            threshold = highest(sums[: len(found)], k) - 2.0 * slack
        chosen = found[sums[: len(found)] >= just_below(threshold)]
        return best(chosen, self.scores(resting, query, asked, chosen), k)

    def scores(self, resting: Resting, query: Query, asked: Asked, chosen: Array) -> Floats:
        """Return the exact scores of some rows."""
        from distclust.retrieval import _numerics as numerics

        scores = np.empty(len(chosen))
        numerics.score_by_lists(
            chosen, self.rows, asked.begins, asked.ends, asked.places, self.bits,
            query.gains, resting.exact, query.constant, scores,
        )  # fmt: skip
        return scores

    def resting(self, prior: BinaryPrior, n_items: int) -> Resting:
        """Return what all queries of one size share; the last few are kept."""
        key = (prior.kappa, prior.smoothing, n_items)  # the counts are those of the index
        found = self._resting.get(key)
        if found is None:
            found = Resting.of(self, prior, n_items)
            make_room(self._resting, _SIZES_KEPT)
            self._resting[key] = found
        return found

    def _look_up(self, query: Query) -> Asked:
        """Return where the features of a query lie."""
        from distclust.retrieval import _numerics as numerics

        begins, ends, places = np.empty((3, len(query.columns)), np.int64)
        numerics.look_up(
            query.columns, self.columns, self.starts, self.bit_columns, self.bit_places,
            begins, ends, places,
        )  # fmt: skip
        return Asked(begins, ends, places)


@dataclass(frozen=True, eq=False)
class Asked:
    """Where the features of a query lie in a shard: lists, and places of bits or -1."""

    begins: Array
    ends: Array
    places: Array


@dataclass(frozen=True, eq=False)
class Resting:
    """Scores that rows have without any feature of the query, for one size of queries.

    Attributes
    ----------
    exact
        Sum of base weights over all features of a row, in their order, shape (n,).
    by_lists
        The same over features with lists only, in 32 bits.
    weights
        Base weights of the features with bits, by place.
    largest
        Largest magnitude of a partial sum.
    """

    exact: Floats
    by_lists: npt.NDArray[np.float32]
    weights: Floats
    largest: float

    @classmethod
    def of(cls, shard: Shard, prior: BinaryPrior, n_items: int) -> Resting:
        """Add up the base weights of all rows."""
        from distclust.retrieval import _numerics as numerics

        base = prior.base(n_items).weights
        by_lists, exact = np.zeros(shard.n_rows), np.zeros(shard.n_rows)
        begins, ends = shard.starts[:-1], shard.starts[1:]
        numerics.add_lists(shard.rows, begins, ends, base[shard.columns], by_lists)
        columns = np.concatenate([shard.columns, shard.bit_columns])
        order = np.argsort(columns)
        numerics.add_columns(
            shard.rows, shard.starts, shard.bits, shard.bit_places, order, base[columns], exact
        )
        weights = np.empty(len(shard.bit_columns))
        weights[shard.bit_places] = base[shard.bit_columns]
        largest = float(np.abs(exact).max(initial=0.0))  # base weights have one sign
        return cls(exact, by_lists.astype(np.float32), weights, largest)


def build(blocks: Iterable[Any], n_rows: int, n_features: int) -> Shard:
    """Return the shard of some blocks, which hold `n_rows` rows together."""
    from distclust.retrieval import _numerics as numerics

    held = [scipy.sparse.csr_array(block) for block in blocks]
    counts = np.zeros(n_features, np.int64)
    for block in held:
        numerics.count_ids(block.indices, counts)
    frequent = np.argsort(-counts, kind="stable")[:_MOST_BITS]
    frequent = frequent[(counts[frequent] * BITS_FROM >= n_rows) & (counts[frequent] > 0)]
    has_bit = np.zeros(n_features, bool)
    has_bit[frequent] = True
    place = np.full(n_features, -1)
    place[frequent] = np.arange(len(frequent))
    bit_columns = np.flatnonzero(has_bit).astype(np.int32)
    columns = np.flatnonzero(~has_bit & (counts > 0)).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(counts[columns])])
    cursor = np.full(n_features, -1)
    cursor[columns] = starts[:-1]
    rows = np.empty(int(starts[-1]), np.uint16)
    bits = np.zeros((n_rows, -(-len(bit_columns) // 8)), np.uint8)
    first = 0
    for block in held:
        numerics.transpose(block.indptr, block.indices, first, cursor, rows)
        numerics.set_bits(block.indptr, block.indices, first, place, bits)
        first += block.shape[0]
    places = place[bit_columns].astype(np.int32)
    return Shard(n_rows, n_features, columns, starts, rows, bit_columns, places, bits)


# ---- as words ------------------------------------------------------------------------------------


def to_words(shard: Shard) -> tuple[npt.NDArray[np.uint16], dict[str, Any]]:
    """Return a shard as 16-bit words, and where its parts lie among them."""
    parts, places, at = [], {}, 0
    for name in _PARTS:
        array = getattr(shard, name)
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        padded = np.zeros(-(-len(content) // 8) * 8, np.uint8)  # numbers start at whole ones
        padded[: len(content)] = content
        parts.append(padded.view(np.uint16))
        places[name] = [at, len(parts[-1]), array.dtype.str, list(array.shape)]
        at += len(parts[-1])
    return np.concatenate(parts), {"shape": [shard.n_rows, shard.n_features], "parts": places}


def from_words(words: npt.NDArray[np.uint16], facts: dict[str, Any], where: str) -> Shard:
    """Inverse of `to_words`; refuses what compiled code could not look up."""
    n_rows, n_features = facts["shape"]
    arrays = {}
    for name in _PARTS:
        at, n_words, dtype, shape = facts["parts"][name]
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        arrays[name] = words[at : at + n_words].view(np.uint8)[:size].view(dtype).reshape(shape)
    shard = Shard(int(n_rows), int(n_features), **arrays)
    _check(shard, where)
    return shard


def _check(shard: Shard, where: str) -> None:
    starts, rows = shard.starts, shard.rows
    is_sound = (
        len(starts) == len(shard.columns) + 1
        and starts[0] == 0
        and starts[-1] == len(rows)
        and bool((np.diff(starts) >= 0).all())
        and int(rows.max(initial=0)) < max(shard.n_rows, 1)
        and shard.bits.shape == (shard.n_rows, -(-len(shard.bit_columns) // 8))
        and len(shard.bit_columns) <= _MOST_BITS
        and np.array_equal(np.sort(shard.bit_places), np.arange(len(shard.bit_columns)))
        and _ascends_below(shard.columns, shard.n_features)
        and _ascends_below(shard.bit_columns, shard.n_features)
    )
    if not is_sound:
        hint = "Build the index again: `distclust sets build --fresh`."
        raise StoreError(where, "a shard of an index", "lists that do not fit together", hint)


def _ascends_below(columns: Array, limit: int) -> bool:
    is_within = len(columns) == 0 or (columns[0] >= 0 and columns[-1] < limit)
    return bool(is_within and (np.diff(columns) > 0).all())


def _group_size(n_bits: int) -> int:
    return max(-(-n_bits // _GROUPS), 1)


def _caps(weights: Floats) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the most that bits of the first two and of the last two groups can add.

    Indexed as the counts of a shard are; rounded up.
    """
    size = _group_size(len(weights))
    padded = np.zeros((_GROUPS, size))
    padded.reshape(-1)[: len(weights)] = np.maximum(weights, 0.0)
    caps = np.zeros((_GROUPS, size + 1))
    caps[:, 1:] = np.cumsum(-np.sort(-padded, axis=1), axis=1)
    first, second = (np.add.outer(caps[g], caps[g + 1]).reshape(-1) for g in (0, 2))
    return _rounded_up(first), _rounded_up(second)


def _rounded_up(values: Floats) -> npt.NDArray[np.float32]:
    return np.nextafter(values.astype(np.float32), np.float32(np.inf))
