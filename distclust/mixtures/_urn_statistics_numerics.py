"""How compiled visits of an urn see a family and its rows, and statistics that rows change.

See `_urn_numerics`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
AnyArray: TypeAlias = npt.NDArray[Any]

DIAGONAL, GAUSSIAN, LEVELS, BINARY, MULTINOMIAL, POISSON = range(6)

# Columns of a program: where the numbers of a part are.
KIND, COLUMNS, STATS, CACHE, PARAMS, DENSE, FLAG, FLUSH = range(8)

# Flags of parts.
ALIKE = 0  # complete rows; diagonal: one shape and one strength for all columns
UNLIKE = 1  # diagonal: complete rows, columns with priors of their own
GAPS = 2  # missing entries

LANES = 8  # clusters of a block


class Parts(NamedTuple):
    """A family and its rows, as compiled visits read them.

    Attributes
    ----------
    program
        One line a part; see the columns above.
    params
        Hyperparameters of all parts.
    dense
        Real columns of all parts, shifted, shape (n, columns).
    pointers, tokens, values
        Other columns as CSR rows, one a part: entries of row i of part p are
        ``pointers[p, i]`` to ``pointers[p, i + 1]``.
    loads
        How many times each row counts.
    """

    program: IntArray
    params: FloatArray
    dense: FloatArray
    pointers: IntArray
    tokens: AnyArray
    values: FloatArray
    loads: FloatArray


class Room(NamedTuple):
    """What visits keep of clusters, and where they work.

    Attributes
    ----------
    cache
        Figures of clusters, shape (blocks, figures, 8).
    weights
        What a row's choices weigh, shape (blocks, 8).
    squares
        Squared norms of a row under the Gaussian factors, shape (blocks, 8).
    work
        Shape (1 + real columns, 8).
    """

    cache: FloatArray
    weights: FloatArray
    squares: FloatArray
    work: FloatArray


# ---- statistics -------------------------------------------------------------------------


@compiled
def change(
    program: IntArray,
    params: FloatArray,
    dense: FloatArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    loads: FloatArray,
    stats: FloatArray,
    g: int,
    i: int,
    load: float,
) -> None:
    """Add `load` copies of row `i` to the statistics (p,) of a group."""
    stats[g, 0] += load
    for p in range(program.shape[0]):
        kind = program[p, KIND]
        if kind == DIAGONAL:
            _change_moments(program, dense, p, stats, g, i, load)
        elif kind == GAUSSIAN:
            _change_scatter(program, dense, p, stats, g, i, load)
        elif kind == POISSON:
            _change_counts(program, pointers, tokens, values, p, stats, g, i, load)
        else:
            at = program[p, STATS]
            for e in range(pointers[p, i], pointers[p, i + 1]):
                stats[g, at + tokens[e]] += load * values[e]


@compiled
def _change_moments(
    program: IntArray, dense: FloatArray, p: int, stats: FloatArray, g: int, i: int, load: float
) -> None:
    n_columns, at = program[p, COLUMNS], program[p, STATS]
    first, gaps = program[p, DENSE], program[p, FLAG] == GAPS
    for d in range(n_columns):
        y = dense[i, first + d]
        if y == y:
            stats[g, at + d] += load * y
            stats[g, at + n_columns + d] += load * y * y
            if gaps:
                stats[g, at + 2 * n_columns + d] += load


@compiled
def _change_scatter(
    program: IntArray, dense: FloatArray, p: int, stats: FloatArray, g: int, i: int, load: float
) -> None:
    n_columns, at = program[p, COLUMNS], program[p, STATS]
    first = program[p, DENSE]
    e = at + n_columns
    for a in range(n_columns):
        part = load * dense[i, first + a]
        stats[g, at + a] += part
        for b in range(a, n_columns):
            stats[g, e] += part * dense[i, first + b]
            e += 1


@compiled
def _change_counts(
    program: IntArray,
    pointers: IntArray,
    tokens: AnyArray,
    values: FloatArray,
    p: int,
    stats: FloatArray,
    g: int,
    i: int,
    load: float,
) -> None:
    """Poisson: sum of log x!, counts, and numbers of observed entries where some are missing."""
    n_columns, at = program[p, COLUMNS], program[p, STATS]
    gaps = program[p, FLAG] == GAPS
    if gaps:
        for d in range(n_columns):
            stats[g, at + 1 + n_columns + d] += load
    log_factorial = 0.0
    for e in range(pointers[p, i], pointers[p, i + 1]):
        x, d = values[e], tokens[e]
        if x == x:
            stats[g, at + 1 + d] += load * x
            log_factorial += math.lgamma(x + 1.0)
        else:
            stats[g, at + 1 + n_columns + d] -= load
    stats[g, at] += load * log_factorial
