"""The last step towards eigenvectors, without a product: a power step, judged by a probe.

A Ritz pair (θ, v) of residual r = K̂v − θv is improved by v + r/θ: what is left is K̂r/θ, which
is what the next product would be for. Only to know how much is left takes K̂r; and a few of its
rows tell that nearly as well as all of them. So the Ritz vectors are improved within the span of
the basis and of the next block, whose own Rayleigh quotients are as good as known, and what is
left is computed exactly for rows drawn at random, half of them in proportion to what the block
has there: what lies in few rows only is found. The estimated sum of squares, and four standard
errors more, is what is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distclust.engine.held import RowArray
from distclust.projections.kernels import Preparation, Tile
from distclust.projections.products import WeightedRows
from distclust.projections.subspace import bordered, inner, ritz, times
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
    basis: Doubles,
    product: Doubles,
    projected: Doubles,
    block: Doubles,
    row_sums: Doubles,
    level: float,
    n_components: int,
) -> Closing:
    """Return what Rayleigh-Ritz finds in the basis and one more block, which is not multiplied.

    Parameters
    ----------
    probe
        Looks at rows of the matrix.
    basis, product, projected, block, row_sums
        As of a `Subspace`.
    level
        About what K̂ multiplies the block by: its effect is of second order.
    n_components
        Eigenpairs wanted.
    """
    n_rows, width = basis.shape
    across = np.concatenate([inner(product, block), level * np.eye(block.shape[1])])
    values, turns = ritz(bordered(projected, across))
    values, turns = values[:n_components], turns[:, :n_components]
    vectors = times(basis, turns[:width]) + times(block, turns[width:])
    drawn = probe.draw(block)
    rows = drawn.rows
    raised = product[rows] @ turns[:width] + probe.product(rows, block) @ turns[width:]
    means = product.mean(axis=0) @ turns[:width] + (row_sums @ block / n_rows) @ turns[width:]
    left = raised - means - vectors[rows] * values
    return Closing(vectors, values, drawn.lengths(left))
