"""Algebra of thin blocks: centring, orthonormal bases, Rayleigh-Ritz.

Blocks are tall and narrow, (N, k). Products go by strips of rows of one length, whose sums are
added in order: the bits do not depend on the machine's number of cores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from distclust.engine import local_threads, thread_map
from distclust.projections._product_numerics import PUT, multiply, multiply_across, panels_of

Doubles = npt.NDArray[np.float64]

_STRIP = 1024  # rows of a product that one thread does at a time
_MOST_PASSES = 4
_ENOUGH = 0.1  # of a column that is its own: rounding grows by one over it
_WORST_CONDITION = 1e7  # beyond it a Cholesky factor of the Gram matrix loses half the digits


def centred(block: Doubles) -> Doubles:
    """Return H Z: the block without its column means (4.3)."""
    found: Doubles = block - block.mean(axis=0)
    return found


class Columns:
    """Puts blocks side by side without copying those that are there.

    The result of a call is extended in place by the next, behind its last column; anything
    else is copied first. So nothing that was returned ever changes.

    Parameters
    ----------
    capacity
        Columns there is to be room for.
    start
        A block to begin with. Where it was made `with_room`, it is extended, too.
    """

    def __init__(self, capacity: int, start: Doubles) -> None:
        self._capacity, self._used = capacity, start.shape[1]
        self._buffer = np.empty((0, 0)) if start.base is None else start.base

    def beside(self, left: Doubles, right: Doubles) -> Doubles:
        """Return two blocks side by side, column after column in memory."""
        old, new = left.shape[1], left.shape[1] + right.shape[1]
        is_last = left.base is self._buffer and old == self._used and new <= len(self._buffer)
        if not is_last:
            self._buffer = with_room(old, len(left), max(self._capacity, new)).base
            self._buffer[:old] = left.T
        self._buffer[old:new] = right.T
        self._used = new
        return self._buffer[:new].T


def with_room(n_columns: int, n_rows: int, capacity: int) -> Any:
    """Return a block that is not filled yet, in memory that has room for more columns."""
    return np.empty((capacity, n_rows))[:n_columns].T


def times(
    tall: Doubles,
    small: Doubles,
    out: Doubles | None = None,
    less: Doubles | None = None,
) -> Doubles:
    """Return A S for a tall A of shape (N, w) and a small S of shape (w, k), column by column.

    Parameters
    ----------
    tall, small
        The factors.
    out
        Where to, shape (N, k); left out: new memory.
    less
        What is taken away from all numbers of a column, shape (k,).
    """
    found = np.empty((small.shape[1], len(tall))) if out is None else out.T
    turned = np.ascontiguousarray(small.T)

    def fill(start: int) -> None:
        rows = slice(start, start + _STRIP)
        part = found[:, rows]
        multiply_across(turned, tall[rows].T, part)
        if less is not None:
            part -= less[:, None]

    thread_map(fill, range(0, len(tall), _STRIP), local_threads())
    return found.T


def inner(left: Doubles, right: Doubles) -> Doubles:
    """Return Aᵀ B of two tall blocks, the strips added in order."""
    shape = left.shape[1], right.shape[1]

    def part(start: int) -> Doubles:
        rows, found = slice(start, start + _STRIP), np.empty(shape)
        multiply(left[rows].T, panels_of(right[rows], np.float64), found, PUT)
        return found

    parts = thread_map(part, range(0, len(left), _STRIP), local_threads())
    return np.sum(parts, axis=0) if parts else np.zeros(shape)


def bordered(square: Doubles, columns: Doubles) -> Doubles:
    """Return a symmetric matrix with more rows and columns, of which the columns are given."""
    n_old, n_new = len(square), columns.shape[1]
    larger = np.empty((n_old + n_new, n_old + n_new))
    larger[:n_old, :n_old] = square
    larger[:, n_old:] = columns
    larger[n_old:, :n_old] = columns[:n_old].T
    return larger


def orthonormal(block: Doubles, basis: Doubles | None = None) -> Doubles:
    """Return an orthonormal basis of a block's span that is orthogonal to `basis`.

    Residuals of Rayleigh-Ritz are nearly orthogonal to its basis already; once is enough for
    them, unless they are little more than rounding or nearly dependent. Directions that are lost
    are replaced by others: the number of columns stays. Columns of the result have mean 0 if
    those of the block and the basis have.
    """
    if block.shape[1] == 0:
        return block
    found = _unit_columns(block)
    for _ in range(_MOST_PASSES):
        found = _without(found, basis)
        found -= found.mean(axis=0)
        found, shortest = _factor(found)
        if shortest > _ENOUGH:
            break
    return found


def _unit_columns(block: Doubles) -> Doubles:
    lengths = np.sqrt(np.einsum("ij,ij->j", block, block))
    return block / np.where(lengths > 0, lengths, 1.0)


def _without(block: Doubles, basis: Doubles | None) -> Doubles:
    if basis is None or basis.shape[1] == 0:
        return block
    along = times(basis, inner(basis, block))
    return np.subtract(block, along, out=along)


def _factor(block: Doubles) -> tuple[Doubles, float]:
    """Return Q of a QR decomposition, and the least part of a column that is its own.

    By Cholesky where the block is well conditioned.
    """
    gram = inner(block, block)
    try:
        factor: Doubles | None = np.asarray(np.linalg.cholesky(gram), np.float64).T
    except np.linalg.LinAlgError:
        factor = None
    if factor is not None:
        diagonal = np.abs(factor.diagonal())
        if diagonal.min() * _WORST_CONDITION > diagonal.max():
            half = _solved(factor, block)
            again = np.asarray(np.linalg.cholesky(inner(half, half)), np.float64)
            found = _solved(again.T, half)
            return found, float(diagonal.min())
    found, triangle = np.linalg.qr(block)
    return found, float(np.abs(triangle.diagonal()).min())


def _solved(factor: Doubles, block: Doubles) -> Doubles:
    """Return Z R⁻¹; the factor is small and well conditioned."""
    return times(block, scipy.linalg.solve_triangular(factor, np.eye(len(factor))))


def ritz(projected: Doubles) -> tuple[Doubles, Doubles]:
    """Return Ritz values, the largest first, and their vectors in the basis."""
    values, vectors = np.linalg.eigh((projected + projected.T) / 2.0)
    return values[::-1].copy(), np.ascontiguousarray(vectors[:, ::-1])


def signs_of(vectors: Doubles) -> Doubles:
    """Return signs that make the entry of largest modulus positive, the first one on ties."""
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return np.where(signs == 0, 1.0, signs)
