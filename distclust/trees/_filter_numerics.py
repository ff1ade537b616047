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
DOUBT = -1


@compiled
def _add_scores(row: Array, tables: Array, constants: Array, scores: Array) -> None:
    # Four bytes at once: the scores are loaded and stored a quarter as often.
    for c in range(len(scores)):
        scores[c] = constants[c]
    for first in range(0, len(row), 4):
        a, b = tables[first, row[first]], tables[first + 1, row[first + 1]]
        d, e = tables[first + 2, row[first + 2]], tables[first + 3, row[first + 3]]
        for c in range(len(scores)):
            scores[c] += (a[c] + b[c]) + (d[c] + e[c])


@compiled
def _highest(scores: Array) -> Any:
    best = _LOWEST
    for c in range(len(scores)):
        best = max(best, scores[c])
    return best


@compiled
def _settle(scores: Array, slack: Array, outcome: Array, starts: Array, margin: int) -> int:
    """Return the outcome that wins whatever the rounding, or DOUBT; overwrites `scores`."""
    best = _highest(scores)
    c = 0
    while scores[c] != best:
        c += 1
    winner = outcome[c]
    for c in range(len(scores)):
        scores[c] += slack[c]
    for c in range(starts[winner], starts[winner + 1]):
        scores[c] = _LOWEST
    rival = _highest(scores)
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
    starts: Array,
    margin: int,
    chosen: Array,
) -> None:
    """Fill `chosen` (n,) with the outcome of every row, DOUBT where rounding may decide.

    Parameters
    ----------
    packed
        Rows as bytes, shape (n, n_bytes), `n_bytes` a multiple of four.
    tables
        Shape (n_bytes, 256, components), int32.
    constants
        Score of a row of zeros, shape (components,).
    slack
        What other components of the same outcome may add to a component's score.
    outcome
        Outcome of every component, ascending.
    starts
        First component of every outcome, with the number of components added.
    margin
        Difference of two scores that rounding cannot reverse.
    """
    scores = np.empty(len(constants), np.int32)
    for i in range(len(packed)):
        _add_scores(packed[i], tables, constants, scores)
        chosen[i] = _settle(scores, slack, outcome, starts, margin)


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
    outcome = np.arange(n_components)
    starts = np.arange(n_components + 1)
    for i in range(len(packed)):
        _add_scores(packed[i], tables, constants, scores)
        score, mine = own_constants[own[i]], own[i]
        for j in range(packed.shape[1]):
            score += own_tables[j, packed[i, j], mine]
        scores[mine] = score
        chosen[i] = _settle(scores, none, outcome, starts, margin)


@compiled
def add_up_outcomes(joint: Array, starts: Array, scores: Array) -> None:
    """Add the components of every outcome in log space: (n, components) to (n, outcomes)."""
    for i in range(len(joint)):
        for g in range(len(starts) - 1):
            highest = -math.inf
            for c in range(starts[g], starts[g + 1]):
                highest = max(highest, joint[i, c])
            if starts[g + 1] - starts[g] == 1 or highest == -math.inf:
                scores[i, g] = highest
                continue
            total = 0.0
            for c in range(starts[g], starts[g + 1]):
                total += math.exp(joint[i, c] - highest)
            scores[i, g] = highest + math.log(total)


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
