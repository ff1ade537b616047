"""Bayesian Sets for any conjugate family: posterior predictive over prior predictive.

    log score = log h(eta + 1, nu + u(x)) + log h(eta + N, nu + U)
              - log h(eta, nu) - log h(eta + N + 1, nu + u(x) + U)
              = log p(x | query) - log p(x)

The family has both predictives, so its statistics of the query are all that is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distclust.engine import Span, map_spans
from distclust.retrieval.ranking import NOBODY, Top, best, merge
from distclust.store import Matrix

if TYPE_CHECKING:
    from distclust.families import Family

Floats = npt.NDArray[np.float64]


def query_statistics(family: Family, rows: Any) -> Floats:
    """Return the statistics of a query's rows and of no rows, shape (2, p)."""
    n_rows = rows.shape[0]
    return np.asarray(family.accumulate(rows, np.zeros(n_rows, np.int64), 2))


def corpus_statistics(block: Any, start: int, family: Family) -> Floats:
    """Return the statistics of all rows of a block, shape (1, p)."""
    return np.asarray(family.accumulate(block, np.zeros(block.shape[0], np.int64), 1))


def score_block(block: Any, start: int, family: Family, stats: Floats) -> Floats:
    """Return the scores of all rows of a block, shape (n,)."""
    joint = family.log_predictive(block, stats)
    return np.asarray(joint[:, 0] - joint[:, 1])


def scan(matrix: Matrix, family: Family, queries: list[Floats], k: int, stage: str) -> list[Top]:
    """Return the best `k` rows for every query, from one pass."""
    tops = [NOBODY] * len(queries)
    for found in map_spans(_scan_span, matrix, family, queries, k, stage=stage):
        tops = [merge(pair, k) for pair in zip(tops, found, strict=True)]
    return tops


def _scan_span(span: Span, family: Family, queries: list[Floats], k: int) -> list[Top]:
    tops = [NOBODY] * len(queries)
    for rows in span:
        for q, stats in enumerate(queries):
            scores = score_block(rows.block, rows.start, family, stats)
            numbers = np.arange(rows.start, rows.start + len(scores))
            tops[q] = merge([tops[q], best(numbers, scores, k)], k)
    return tops


def column_scores(family: Family, row: Floats, stats: Floats) -> Floats:
    """Return what every column of a dense row adds to its score, shape (J,).

    For families of independent columns. What is missing (NaN) adds nothing.
    """
    added = np.zeros(len(row))
    for column in np.flatnonzero(~np.isnan(row)).tolist():
        given, alone = family.entry_log_predictive(column, float(row[column]), stats)
        added[column] = given - alone
    return added
