"""Scan: one pass over all rows, for one query or many at once.

A block is scored approximately, eight queries at a time where there are many. Rows that could be
among the best in spite of the rounding are scored again by the exact sum, so what comes out
does not depend on how it was found.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.engine import Rows, Span, map_spans
from distclust.retrieval.prior import BinaryPrior, Query
from distclust.retrieval.ranking import NOBODY, Top, best, highest, just_below, merge
from distclust.store import Matrix

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

TOGETHER = 8  # queries that share the reading of a row
_WEIGHTS_AT_ONCE = 2**22  # of all features and queries of a pass: some 32 MB, thrice
_COARSEST = 0.5  # nats that packed sums may be off: more would cost too many exact scores

ROUNDING = 2.0**-24  # relative error of a 32-bit sum, for each of its terms
EXACT_ROUNDING = 2.0**-52  # twice that of an exact sum: with the error of a threshold


@dataclass(frozen=True, eq=False)
class Ones:
    """Which features the rows of a block have.

    Attributes
    ----------
    lengths
        Ones in every row, shape (n,).
    ids
        Row after row, ascending in `columns`.
    columns
        Column of every id; None: ids are columns.
    """

    lengths: Array
    ids: Array
    columns: Array | None

    @classmethod
    def of(cls, rows: Rows) -> Ones:
        """Return the ones of a block, as they are stored where that is quickest to read."""
        stored = rows.compact
        if stored is not None and len(stored.ids) == 1:
            return cls(stored.lengths[0], stored.ids[0], stored.order)
        return cls.of_block(rows.block)

    @classmethod
    def of_block(cls, block: Any) -> Ones:
        """Return the ones of a dense or CSR block."""
        pattern = scipy.sparse.csr_array(block)
        return cls(np.diff(pattern.indptr), pattern.indices, None)

    @functools.cached_property
    def starts(self) -> Indices:
        """Where every row begins in `ids`."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        return ends - self.lengths

    def by_id(self, weights: Array) -> Array:
        """Return weights of columns in the order of ids."""
        return weights if self.columns is None else weights[self.columns]


@dataclass(frozen=True, eq=False)
class Weighed:
    """Queries ready for scanning.

    Attributes
    ----------
    bases, gains
        Weights of all features in every query, shape (n_queries, J).
    constants
        Shape (n_queries,).
    wanted
        How many rows are wanted.
    """

    bases: Floats
    gains: Floats
    constants: Floats
    wanted: int

    @classmethod
    def of(cls, prior: BinaryPrior, queries: Sequence[Query], wanted: int) -> Weighed:
        """Put the weights of queries side by side."""
        gains = np.zeros((len(queries), len(prior.ones)))
        for i, query in enumerate(queries):
            gains[i, query.columns] = query.gains
        bases = np.stack([prior.base(query.n_items).weights for query in queries])
        return cls(bases, gains, np.array([query.constant for query in queries]), wanted)


def scan(
    matrix: Matrix, prior: BinaryPrior, queries: Sequence[Query], k: int, stage: str = ""
) -> list[Top]:
    """Return the best `k` rows for every query.

    From one pass, or from one for every so many queries whose weights fit into memory.
    """
    size = max(_WEIGHTS_AT_ONCE // len(prior.ones) // TOGETHER, 1) * TOGETHER
    best_rows: list[Top] = []
    for first in range(0, len(queries), size):
        weighed = Weighed.of(prior, queries[first : first + size], k)
        tops = [NOBODY] * len(weighed.constants)
        for found in map_spans(scan_span, matrix, weighed, stage=stage):
            tops = [merge(pair, k) for pair in zip(tops, found, strict=True)]
        best_rows += tops
    return best_rows


def scan_span(span: Span, weighed: Weighed) -> list[Top]:
    """Return the best rows of a span for every query."""
    n_queries = len(weighed.constants)
    tops = [NOBODY] * n_queries
    approximation = Approximation((weighed.bases + weighed.gains).T)
    # Base and gain may cancel; exact scores add them apart and have the rounding of both.
    apart = np.abs(weighed.bases).max(axis=1) + weighed.gains.max(axis=1)
    for rows in span:
        ones = Ones.of(rows)
        longest = float(ones.lengths.max(initial=0))
        sums, slacks = approximation.of(ones, int(longest))
        exactness = EXACT_ROUNDING * (longest * apart + np.abs(weighed.constants))
        slacks = slacks + (longest + 4.0) * exactness
        for q in range(n_queries):
            tops[q] = _improve(tops[q], rows.start, ones, sums[:, q], slacks[q], weighed, q)
    return tops


def _improve(
    top: Top, start: int, ones: Ones, sums: Array, slack: float, weighed: Weighed, q: int
) -> Top:
    """Return the best rows so far and of one more block."""
    k, constant = weighed.wanted, float(weighed.constants[q])
    threshold = top.floor(k) - constant - slack
    if threshold == -np.inf:
        threshold = highest(sums, k) - 2.0 * slack
    chosen = np.flatnonzero(sums >= just_below(threshold))
    if len(chosen) == 0:
        return top
    scores = exact_scores(ones, chosen, weighed.bases[q], weighed.gains[q], constant)
    return merge([top, best(start + chosen, scores, k)], k)


class Approximation:
    """Quick sums of weights over the ones of rows, for several queries.

    One query takes 32-bit sums. Eight at a time share the reading of a row: as whole numbers
    of 16 bits, four of which are added at once, if rows are so short that these are fine
    enough, else as 32-bit numbers.

    Parameters
    ----------
    weights
        Shape (J, n_queries).
    """

    def __init__(self, weights: Floats) -> None:
        self._weights = weights
        self._largest = np.abs(weights).max(axis=0, initial=0.0)
        self._packed: dict[tuple[int, int], Packed | None] = {}

    def of(self, ones: Ones, longest: int) -> tuple[npt.NDArray[np.float32], Floats]:
        """Return sums (n, n_queries) of rows, and by how much each may be off (n_queries,)."""
        from distclust.retrieval import _numerics as numerics

        n_queries = self._weights.shape[1]
        slack = (longest + 4.0) * ROUNDING * longest * self._largest
        if n_queries == 1:
            sums = np.zeros(len(ones.lengths), np.float32)
            by_id = ones.by_id(self._weights[:, 0]).astype(np.float32)
            numerics.add_weights(ones.lengths, ones.ids, by_id, sums)
            return sums[:, None], slack
        parts = []
        for first in range(0, n_queries, TOGETHER):
            packed = self._pack(first, longest)
            if packed is not None:
                words = np.empty((len(ones.lengths), 2), np.uint64)
                numerics.add_packed_weights(ones.lengths, ones.ids, ones.by_id(packed.words), words)
                parts.append(packed.sums(words, ones.lengths))
                slack[first : first + TOGETHER] = packed.slack
                continue
            eight = np.zeros((len(ones.lengths), TOGETHER), np.float32)
            some = np.zeros((len(self._weights), TOGETHER), np.float32)
            given = self._weights[:, first : first + TOGETHER]
            some[:, : given.shape[1]] = given
            numerics.add_eight_weights(ones.lengths, ones.ids, ones.by_id(some), eight)
            parts.append(eight[:, : given.shape[1]])
        return np.concatenate(parts, axis=1), slack

    def _pack(self, first: int, longest: int) -> Packed | None:
        """Return eight queries packed for rows of at most a power of two ones, if that does."""
        power = 1 << max(longest - 1, 0).bit_length()
        key = (first, power)
        if key not in self._packed:
            self._packed[key] = pack(self._weights[:, first : first + TOGETHER], power)
        return self._packed[key]


@dataclass(frozen=True, eq=False)
class Packed:
    """Weights of up to eight queries as whole numbers of 16 bits from 0 on.

    Attributes
    ----------
    words
        Four numbers a word, shape (J, 2).
    scale, bias
        Number of a weight: ``(weight + bias) * scale``, shape (n_queries,).
    slack
        By how much a sum may be off, shape (n_queries,).
    """

    words: npt.NDArray[np.uint64]
    scale: Floats
    bias: Floats
    slack: Floats

    def sums(self, words: npt.NDArray[np.uint64], lengths: Array) -> npt.NDArray[np.float32]:
        """Return sums of weights from sums of words (n, 2), shape (n, n_queries)."""
        numbers = words.view(np.uint16)[:, : len(self.scale)].astype(np.float32)
        numbers *= (1.0 / self.scale).astype(np.float32)
        numbers -= np.multiply.outer(lengths.astype(np.float32), self.bias.astype(np.float32))
        return numbers


def pack(weights: Floats, longest: int) -> Packed | None:
    """Pack weights (J, n_queries) for rows of up to `longest` ones; None: that is too coarse."""
    n_columns, n_queries = weights.shape
    bias = -np.minimum(weights.min(axis=0, initial=0.0), 0.0)
    shifted = weights + bias
    n_most = min(longest, n_columns)
    heaviest = np.partition(shifted, n_columns - n_most, axis=0)[n_columns - n_most :]
    most = np.maximum(heaviest.sum(axis=0), 1e-9)  # no row has more
    # Rounding may add half a unit a one.
    scale = (2.0**16 - 2.0 - longest / 2.0) / most
    slack = 0.5 * longest / scale + 8.0 * ROUNDING * (most + longest * bias)
    if longest > 2**14 or (slack > _COARSEST).any():
        return None
    numbers = np.zeros((n_columns, TOGETHER), np.uint16)
    numbers[:, :n_queries] = np.rint(shifted * scale)
    return Packed(numbers.view(np.uint64), scale, bias, slack)


def exact_scores(ones: Ones, rows: Indices, base: Floats, gains: Floats, constant: float) -> Floats:
    """Return the exact scores of some rows of a block."""
    from distclust.retrieval import _numerics as numerics

    columns = np.arange(len(base), dtype=np.int32) if ones.columns is None else ones.columns
    scores = np.empty(len(rows))
    starts, lengths = ones.starts[rows], ones.lengths[rows].astype(np.int64)
    numerics.score_rows(starts, lengths, ones.ids, columns, base, gains, constant, scores)
    return scores


def score_all(block: Any, start: int, base: Floats, gains: Floats, constant: float) -> Floats:
    """Return the exact scores of all rows of a block, shape (n,)."""
    ones = Ones.of_block(block)
    return exact_scores(ones, np.arange(block.shape[0]), base, gains, constant)
