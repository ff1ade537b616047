"""The last step towards eigenvectors, without a product: a power step, judged by a probe.

A Ritz pair (θ, v) of residual r = K̂v − θv is improved by v + r/(θ − ℓ), where ℓ is about what K̂
multiplies r by. What is left is (K̂ − ℓ)r/(θ − ℓ), which is what the next product would be for.
Only to know how much is left takes K̂r; and a few of its rows tell that nearly as well as all of
them. So what is left is computed exactly for rows drawn at random, half of them in proportion to
what the residuals have there: what lies in few rows only is found. The estimated sum of squares,
and four standard errors more, is what is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg

from distclust.engine.held import RowArray
from distclust.projections.kernels import Preparation, Tile
from distclust.projections.products import WeightedRows
from distclust.projections.subspace import inner, times
from distclust.seeding import generator

Doubles = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

PROBED = 128  # draws
_ROWS_AT_ONCE = 64  # of those drawn, that one thread does
_STANDARD_ERRORS = 4.0


@dataclass(frozen=True, eq=False)
class Drawn:
    """Rows that were drawn, with replacement.

    Attributes
    ----------
    rows
        Which, ascending, each once.
    draws
        How often each was drawn.
    chances
        Of each in one draw.
    """

    rows: Indices
    draws: Indices
    chances: Doubles

    def lengths(self, entries: Doubles) -> Doubles:
        """Return bounds on the lengths of columns of which the entries in these rows are given.

        Σ y² is the mean of y² / chance over draws.
        """
        squares = entries**2 / self.chances[:, None]
        n_draws = int(self.draws.sum())
        mean = self.draws @ squares / n_draws
        variance = self.draws @ (squares - mean) ** 2 / (n_draws - 1)
        found: Doubles = np.sqrt(mean + _STANDARD_ERRORS * np.sqrt(variance / n_draws))
        return found


@dataclass(frozen=True, eq=False)
class Probe:
    """Looks at a few rows of the kernel matrix.

    Attributes
    ----------
    preparation
        Of the kernel.
    parts
        All rows, those of each part prepared as tiles of which only the last is padded.
    rows
        The same as they came.
    seed
        Of the draws.
    """

    preparation: Preparation
    parts: Sequence[Sequence[Tile]]
    rows: Sequence[RowArray]
    seed: int

    def draw(self, block: Doubles) -> Drawn:
        """Draw rows, half of them evenly, half where a block has most."""
        n_rows = len(block)
        squares = np.einsum("ij,ij->i", block, block)
        chances = 0.5 / n_rows + 0.5 * squares / squares.sum()
        rng = generator(self.seed, "kernel PCA", "probe", n_rows)
        picked = rng.choice(n_rows, PROBED, p=chances / chances.sum())
        rows, draws = np.unique(picked, return_counts=True)
        return Drawn(rows, draws, chances[rows])

    def product(self, chosen: Indices, block: Doubles) -> Doubles:
        """Return the chosen rows of K times a block, shape (len(chosen), k)."""
        tiles, total, start = self._prepared(chosen), np.zeros((len(chosen), block.shape[1])), 0
        for part in self.parts:
            stop = start + sum(tile.n for tile in part)
            weighted = WeightedRows(self.preparation, part, block[start:stop])
            total += weighted.times_all(tiles)
            start = stop
        return total

    def _prepared(self, chosen: Indices) -> list[Tile]:
        found, start = [], 0
        for rows in self.rows:
            stop = start + rows.shape[0]
            here = chosen[(chosen >= start) & (chosen < stop)] - start
            pieces = [here[i : i + _ROWS_AT_ONCE] for i in range(0, len(here), _ROWS_AT_ONCE)]
            found += [self.preparation.tile(rows[piece], padded=False) for piece in pieces]
            start = stop
        return found


@dataclass(frozen=True, eq=False)
class Closing:
    """Improved eigenpairs: vectors of shape (N, q), values, and what bounds their residuals."""

    vectors: Doubles
    values: Doubles
    residuals: Doubles


def close(
    probe: Probe,
    vectors: Doubles,
    values: Doubles,
    residual: Doubles,
    sizes: Doubles,
    row_sums: Doubles,
    level: float,
) -> Closing:
    """Return Ritz pairs improved by a power step.

    Parameters
    ----------
    probe
        Looks at rows of the matrix.
    vectors, values
        Ritz vectors, shape (N, q), and values, above 0.
    residual, sizes
        K̂v − θv of each, shape (N, q), and its length.
    row_sums
        K 1.
    level
        ℓ, below the values.
    """
    gaps = values - level
    step = residual / gaps
    improved = vectors + step
    factor = np.linalg.cholesky(inner(improved, improved))
    turn = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True).T
    improved = times(improved, turn)
    better = values + sizes**2 / gaps  # vᵀr = 0, so the quotient grows by the square
    drawn = probe.draw(residual / np.where(sizes > 0, sizes, 1.0))
    rows = drawn.rows
    raised = residual[rows] + vectors[rows] * values  # K̂v
    raised += probe.product(rows, step) - row_sums @ step / len(row_sums)
    left = raised @ turn - improved[rows] * better
    return Closing(improved, better, drawn.lengths(left))
