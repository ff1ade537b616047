"""Scan: one pass over all rows, for one query or many at once.

A block is scored in 32 bits, eight queries at a time where there are many. Rows that could be
among the best in spite of the rounding are scored again by the exact sum, so what comes out
does not depend on how it was found.
"""

from __future__ import annotations

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

    @property
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
    """Return the best `k` rows for every query, from one pass."""
    weighed = Weighed.of(prior, queries, k)
    tops = [NOBODY] * len(queries)
    for found in map_spans(scan_span, matrix, weighed, stage=stage):
        tops = [merge(pair, k) for pair in zip(tops, found, strict=True)]
    return tops


def scan_span(span: Span, weighed: Weighed) -> list[Top]:
    """Return the best rows of a span for every query."""
    n_queries = len(weighed.constants)
    tops = [NOBODY] * n_queries
    total = weighed.bases + weighed.gains
    weights = np.zeros((total.shape[1], _whole(n_queries)), np.float32)
    weights[:, :n_queries] = total.T
    largest = np.abs(weights[:, :n_queries]).max(axis=0, initial=0.0).astype(np.float64)
    # Base and gain may cancel; exact scores add them apart and have the rounding of both.
    apart = np.abs(weighed.bases).max(axis=1) + weighed.gains.max(axis=1)
    for rows in span:
        ones = Ones.of(rows)
        sums = approximate(ones, weights)
        longest = float(ones.lengths.max(initial=0))
        approximation = ROUNDING * longest * largest
        exactness = EXACT_ROUNDING * (longest * apart + np.abs(weighed.constants))
        slacks = (longest + 4.0) * (approximation + exactness)
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


def approximate(ones: Ones, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return 32-bit sums of weights (J, q), q being 1 or a multiple of eight; shape (n, q)."""
    from distclust.retrieval import _numerics as numerics

    n_queries = weights.shape[1]
    by_id = np.ascontiguousarray(ones.by_id(weights))
    if n_queries == 1:
        sums = np.zeros(len(ones.lengths), np.float32)
        numerics.add_weights(ones.lengths, ones.ids, by_id[:, 0], sums)
        return sums[:, None]
    parts = []
    for first in range(0, n_queries, TOGETHER):
        eight = np.zeros((len(ones.lengths), TOGETHER), np.float32)
        some = np.ascontiguousarray(by_id[:, first : first + TOGETHER])
        numerics.add_eight_weights(ones.lengths, ones.ids, some, eight)
        parts.append(eight)
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


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


def _whole(n_queries: int) -> int:
    """Return for how many queries weights are made: one, or whole eights."""
    return 1 if n_queries == 1 else TOGETHER * -(-n_queries // TOGETHER)
