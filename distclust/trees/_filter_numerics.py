"""Compiled loops of filters: which outcome of a filter a row belongs to.

Rows of zeros and ones are scored by tables: eight columns of a row are one byte, and a table
holds the sum of their weights for each of its 256 values and every component. Weights are
whole numbers (fixed point), so a sum does not depend on its order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

Array = npt.NDArray[Any]

_LOWEST = np.int32(-(2**31) + 1)
_NONE = np.int32(0)
_ROUNDING = 1e-12  # of a score; far above that of a sum of logarithms
DOUBT = -1
WORD = 8  # bytes of a row that are scored at once


@compiled
def _score_word(row: Array, tables: Array, constants: Array, scores: Array) -> None:
    # All bytes of a word at once: the scores are stored once and never loaded.
    a, b, c, d = tables[0, row[0]], tables[1, row[1]], tables[2, row[2]], tables[3, row[3]]
    e, f, g, h = tables[4, row[4]], tables[5, row[5]], tables[6, row[6]], tables[7, row[7]]
    for k in range(len(scores)):
        rest = ((a[k] + b[k]) + (c[k] + d[k])) + ((e[k] + f[k]) + (g[k] + h[k]))
        scores[k] = constants[k] + rest


@compiled
def _add_word(row: Array, tables: Array, scores: Array) -> None:
    a, b, c, d = tables[0, row[0]], tables[1, row[1]], tables[2, row[2]], tables[3, row[3]]
    e, f, g, h = tables[4, row[4]], tables[5, row[5]], tables[6, row[6]], tables[7, row[7]]
    for k in range(len(scores)):
        scores[k] += ((a[k] + b[k]) + (c[k] + d[k])) + ((e[k] + f[k]) + (g[k] + h[k]))


@compiled
def _score(row: Array, tables: Array, constants: Array, scores: Array) -> None:
    """Fill `scores` with those of a row, shape (components,)."""
    _score_word(row, tables, constants, scores)
    for first in range(WORD, len(row), WORD):
        _add_word(row[first:], tables[first:], scores)


@compiled
def _highest(scores: Array) -> Any:
    best = _LOWEST
    for c in range(len(scores)):
        best = max(best, scores[c])
    return best


@compiled
def _settle(scores: Array, slack: Array, outcome: Array, margin: int) -> int:
    """Return the outcome that wins whatever the rounding, or DOUBT."""
    best = _highest(scores)
    # Its first component, and the best of all others, without a branch that depends on the
    # row: a processor that guesses it wrong loses as much time as the loop takes.
    n_from = _NONE
    for c in range(len(scores)):
        n_from = max(n_from, np.int32(len(scores) - c) if scores[c] == best else _NONE)
    winner = outcome[len(scores) - n_from]
    rival = _LOWEST
    for c in range(len(scores)):
        rival = max(rival, scores[c] + slack[c] if outcome[c] != winner else _LOWEST)
    # In 64 bits, as the difference of two 32-bit numbers may not fit.
    if rival == _LOWEST or np.int64(best) - np.int64(rival) > margin:
        return int(winner)
    return DOUBT


@compiled
def choose_by_tables(
    packed: Array,
    tables: Array,
    constants: Array,
    slack: Array,
    outcome: Array,
    margin: int,
    chosen: Array,
) -> None:
    """Fill `chosen` (n,) with the outcome of every row, DOUBT where rounding may decide.

    Parameters
    ----------
    packed
        Rows as bytes, shape (n, n_bytes), `n_bytes` a multiple of `WORD`.
    tables
        Shape (n_bytes, 256, components), int32.
    constants
        Score of a row of zeros, shape (components,).
    slack
        What other components of the same outcome may add to a component's score.
    outcome
        Outcome of every component, ascending, int32.
    margin
        Difference of two scores that rounding cannot reverse.
    """
    scores = np.empty(len(constants), np.int32)
    if packed.shape[1] == WORD:  # a loop without a loop over words is compiled to a faster one
        for i in range(len(packed)):
            _score_word(packed[i], tables, constants, scores)
            chosen[i] = _settle(scores, slack, outcome, margin)
        return
    for i in range(len(packed)):
        _score(packed[i], tables, constants, scores)
        chosen[i] = _settle(scores, slack, outcome, margin)


@compiled
def choose_with_own(
    packed: Array,
    tables: Array,
    constants: Array,
    own_tables: Array,
    own_constants: Array,
    own: Array,
    margin: int,
    chosen: Array,
) -> None:
    """As `choose_by_tables` with one component an outcome, for rows that are in one already.

    The score of a row's own component comes from the tables without that row.
    """
    n_components = len(constants)
    scores = np.empty(n_components, np.int32)
    none = np.zeros(n_components, np.int32)
    outcome = np.arange(n_components).astype(np.int32)
    for i in range(len(packed)):
        _score(packed[i], tables, constants, scores)
        score, mine = own_constants[own[i]], own[i]
        for j in range(packed.shape[1]):
            score += own_tables[j, packed[i, j], mine]
        scores[mine] = score
        chosen[i] = _settle(scores, none, outcome, margin)


@compiled
def _log_sum(terms: Array, first: int, stop: int, highest: float) -> float:
    """log Σ exp of some terms, of which the highest is given."""
    if stop - first == 1 or highest == -math.inf:
        return highest
    total = 0.0
    for c in range(first, stop):
        total += math.exp(terms[c] - highest)
    return highest + math.log(total)


@compiled
def _highest_between(terms: Array, first: int, stop: int) -> float:
    highest = -math.inf
    for c in range(first, stop):
        highest = max(highest, terms[c])
    return highest


@compiled
def choose_outcomes(joint: Array, starts: Array, chosen: Array) -> None:
    """Fill `chosen` (n,) with the outcome of the highest score, the last one on ties.

    The score of an outcome is log Σ exp of its components. Together m of them exceed the highest
    by log m at most, so most outcomes cannot win and need not be added up.
    """
    n_outcomes = len(starts) - 1
    gains, tops = np.log((starts[1:] - starts[:-1]).astype(np.float64)), np.empty(n_outcomes)
    for i in range(len(joint)):
        highest = -math.inf
        for g in range(n_outcomes):
            tops[g] = _highest_between(joint[i], starts[g], starts[g + 1])
            highest = max(highest, tops[g])
        if highest == -math.inf:
            chosen[i] = n_outcomes - 1
            continue
        rounding = _ROUNDING * (1.0 + abs(highest))
        best, place = -math.inf, n_outcomes - 1
        for g in range(n_outcomes):
            if tops[g] + gains[g] + rounding < highest:
                continue
            score = _log_sum(joint[i], starts[g], starts[g + 1], tops[g])
            if score >= best:
                best, place = score, g
        chosen[i] = place


@compiled
def last_highest(scores: Array, chosen: Array) -> None:
    """Fill `chosen` (n,) with the column of the highest score, the last one on ties."""
    for i in range(len(scores)):
        best, place = scores[i, 0], 0
        for g in range(1, scores.shape[1]):
            if scores[i, g] >= best:
                best, place = scores[i, g], g
        chosen[i] = place


@compiled
def note_first_rows(groups: Array, start: int, first_rows: Array) -> None:
    """Lower `first_rows` of each group to its first row; rows are counted from `start`."""
    for i in range(len(groups)):
        g = groups[i]
        if g >= 0 and start + i < first_rows[g]:
            first_rows[g] = start + i


@compiled
def add_own_weights(indptr: Array, indices: Array, weights: Array, own: Array, sums: Array) -> None:
    """Add up the weights (K, D) of the ones of each CSR row in its own cluster, (n,)."""
    for i in range(len(own)):
        total = 0.0
        for k in range(indptr[i], indptr[i + 1]):
            total += weights[own[i], indices[k]]
        sums[i] = total


@compiled
def multiply_own_weights(rows: Array, weights: Array, own: Array, sums: Array) -> None:
    """Multiply each dense row with the weights (K, D) of its own cluster, (n,)."""
    for i in range(len(own)):
        total = 0.0
        for d in range(rows.shape[1]):
            total += rows[i, d] * weights[own[i], d]
        sums[i] = total
