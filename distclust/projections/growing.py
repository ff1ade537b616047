"""Kernel PCA of rows that keep coming (Algorithm 5.2; spec 4.7, 4.8).

Old rows come first. Of the kernel matrix only K₂₁ and K₂₂ are new (5.25-5.27): with a basis U
of old rows and its product K₁₁ U at hand, the product of the longer matrix with [U; E] is

    [K₁₁ U + K₁₂ E; K₂₁ U + K₂₂ E].

E, the entries of new rows, is their projection (not random), so the longer basis starts near
the truth; what is missing is found by as few products with the whole matrix as the tolerance
asks for. Row sums grow in the same way (5.28-5.30). The corners are computed here, where the
basis is: sending it out would take longer.

Online, no product with K₁₁ is ever made again: the basis is [U; 0] and [0; I], and what lies
outside the span of U stays unknown for good.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.linalg

from distclust.engine import local_threads, one_blas_thread, thread_map
from distclust.engine.held import RowArray
from distclust.projections._product_numerics import PUT, multiply, multiply_across, panels_of
from distclust.projections.closing import PROBED, Probe
from distclust.projections.kernels import TILE, Floats, Preparation, Tile
from distclust.projections.krylov import Subspace, thinned
from distclust.projections.products import WeightedRows
from distclust.projections.subspace import ritz, times, with_room
from distclust.seeding import generator

Doubles = npt.NDArray[np.float64]

_KEPT_BYTES = 64_000_000  # of a corner: what is beyond is evaluated twice
_AT_ONCE = 32  # parts of a sum that are held in memory
_LEAST_SAVING = 8  # old rows for each that is probed: below it, a product takes no longer
_FEWEST, _MOST = 2, 5  # Ritz vectors kept for each component
_SLACK = 1.5  # columns of a basis for each vector kept; they are dropped when rows join
_ROOM = 14  # blocks that may follow in the memory of a basis
_WELL_APART = 0.1  # parts of columns that are their own: above it a Cholesky factor is exact enough
_TELLING = 0.1  # of the eigenvalue of the last component


@dataclass(frozen=True, eq=False)
class Known:
    """What a fit leaves for rows to come.

    Attributes
    ----------
    basis
        Shape (N, w); orthonormal, of mean 0.
    product
        K times the basis, not centred.
    projected
        The basis times its product, shape (w, w).
    values, vectors
        Ritz values, the largest first, and their vectors in terms of the basis; as many as matter.
    row_sums
        K 1, shape (N,).
    """

    basis: Doubles
    product: Doubles
    projected: Doubles
    values: Doubles
    vectors: Doubles
    row_sums: Doubles

    @classmethod
    def of_vectors(cls, basis: Doubles, product: Doubles, values: Doubles, sums: Doubles) -> Known:
        """Return what is known if the basis are Ritz vectors themselves."""
        return cls(basis, product, np.diag(values), values, np.eye(len(values)), sums)

    def leading(self, n: int) -> tuple[Doubles, Doubles]:
        """Return the first Ritz vectors and K times them."""
        return times(self.basis, self.vectors[:, :n]), times(self.product, self.vectors[:, :n])


def known_of(found: Subspace, n_components: int) -> Known:
    """Return what is known from a subspace, from which longer data start.

    As many Ritz vectors as matter: what is left out slows the next fit down by how its eigenvalues
    compare with that of the last component. A basis that is much wider is thinned out.
    """
    q, width = n_components, found.basis.shape[1]
    last = max(float(found.values[min(q, len(found.values)) - 1]), 0.0)
    n_large = int(np.count_nonzero(found.values > _TELLING * last))
    n_kept = min(max(n_large, _FEWEST * q), _MOST * q, width)
    if width > _SLACK * n_kept:
        with one_blas_thread:
            found = thinned(found, n_kept)
    values, vectors = found.values[:n_kept], found.vectors[:, :n_kept]
    return Known(found.basis, found.product, found.projected, values, vectors, found.row_sums)


@dataclass(frozen=True, eq=False)
class Joined:
    """Old rows and new ones, prepared for the kernel.

    Attributes
    ----------
    preparation
        Of the kernel.
    old, new
        The rows.
    old_tiles, new_tiles
        The same in tiles. Those of new rows need no padding: they are the same wherever this runs.
    """

    preparation: Preparation
    old: RowArray
    new: RowArray
    old_tiles: Sequence[Tile]
    new_tiles: Sequence[Tile]

    @classmethod
    def of(
        cls, preparation: Preparation, old: RowArray, new: RowArray, old_tiles: Sequence[Tile]
    ) -> Joined:
        """Prepare new rows."""
        starts = range(0, new.shape[0], TILE)
        tiles = [preparation.tile(new[i : i + TILE], padded=False) for i in starts]
        return cls(preparation, old, new, old_tiles, tiles)

    def probe(self, seed: int) -> Probe | None:
        """Return what judges a last step without a product; None where it would save nothing."""
        if self.preparation.kernel.is_product or self.old.shape[0] < _LEAST_SAVING * PROBED:
            return None
        return Probe(self.preparation, (self.old_tiles, self.new_tiles), (self.old, self.new), seed)


class Corner:
    """What new rows add to the matrix, K₂₁ and K₂₂, as far as possible evaluated only once.

    Where the kernel is a product of rows, not at all.
    """

    def __init__(self, joined: Joined) -> None:
        self._joined = joined
        n_new = sum(len(tile.norms) for tile in joined.new_tiles)
        self._shape = n_new, TILE
        n_kept = _KEPT_BYTES // (TILE * n_new * joined.preparation.dtype.itemsize)
        self._kept: list[Floats | None] = [None] * min(n_kept, len(joined.old_tiles))

    def below(self, block: Doubles) -> tuple[Doubles, Doubles]:
        """Return K₂₁ times a block, one row of it for each old row, and the sums of rows of K₂₁."""
        if self._joined.preparation.kernel.is_product:
            with_ones = np.column_stack([block, np.ones(len(block))])
            product = self._weighted(self._joined.old_tiles, with_ones, self._joined.new_tiles)
            return product[:, :-1], product[:, -1]

        def part(j: int) -> tuple[Doubles, Doubles]:
            start, n = j * TILE, self._joined.old_tiles[j].n
            values, product = self._beside(j)[:, :n], np.empty((n_new, block.shape[1]))
            multiply(values, panels_of(block[start : start + n], values.dtype), product, PUT)
            return product, values.sum(axis=1, dtype=np.float64)

        n_tiles, n_new = len(self._joined.old_tiles), self._shape[0]
        total, sums = np.zeros((n_new, block.shape[1])), np.zeros(n_new)
        for first in range(0, n_tiles, _AT_ONCE):
            some = range(first, min(first + _AT_ONCE, n_tiles))
            for product, sum_of_rows in thread_map(part, some, local_threads()):
                total += product
                sums += sum_of_rows
        return total, sums

    def right(self, block: Doubles, above: Doubles) -> Doubles:
        """Return [K₁₂; K₂₂] times a block, one row of it for each new row; transposed.

        In old rows `above` is added to the first columns.
        """
        width = above.shape[1]
        old_tiles, new_tiles = self._joined.old_tiles, self._joined.new_tiles
        if self._joined.preparation.kernel.is_product:
            product = self._weighted(new_tiles, block, [*old_tiles, *new_tiles]).T
            product[:width, : len(above)] += above.T
            return product
        n_old = self._joined.old.shape[0]
        found = np.empty((block.shape[1], n_old + len(block)))
        turned = np.ascontiguousarray(block.T, self._joined.preparation.dtype)

        def fill(j: int) -> None:
            start, n = j * TILE, old_tiles[j].n
            part = found[:, start : start + n]
            multiply_across(turned, self._beside(j)[:, :n], part)
            part[:width] += above[start : start + n].T

        thread_map(fill, range(len(old_tiles)), local_threads())
        found[:, n_old:] = self._weighted(new_tiles, block, new_tiles).T
        return found

    def _weighted(self, right: Sequence[Tile], block: Doubles, left: Sequence[Tile]) -> Doubles:
        """Return κ of some rows with others, times a block."""
        return WeightedRows(self._joined.preparation, right, block).times_all(left)

    def _beside(self, j: int) -> Floats:
        """Return κ of all new rows with an old tile."""
        kept = self._kept[j] if j < len(self._kept) else None
        if kept is not None:
            return kept
        found, start = np.empty(self._shape, self._joined.preparation.dtype), 0
        for tile in self._joined.new_tiles:
            stop = start + len(tile.norms)
            self._joined.preparation.values(tile, self._joined.old_tiles[j], found[start:stop])
            start = stop
        if j < len(self._kept):
            self._kept[j] = found
        return found


def grown(joined: Joined, known: Known, n_components: int, seed: int, *, online: bool) -> Subspace:
    """Return a subspace for old and new rows together.

    Parameters
    ----------
    joined
        The rows.
    known
        What is known of old rows.
    n_components
        Eigenpairs wanted.
    seed
        Of the choice of new rows that tell their own directions, where there are many.
    online
        Whether new rows get a direction each instead of being projected.
    """
    n_old, width = known.basis.shape
    n_new = joined.new.shape[0]
    corner = Corner(joined)
    with one_blas_thread:
        below, sums_below = corner.below(known.basis)
        extension, own = np.zeros((n_new, width)), np.eye(n_new)
        if not online:
            ends = _extension(known, below)
            own = _own_directions(joined, known, sums_below, ends, n_components, seed)
            extension = ends @ known.vectors.T
        entries = np.column_stack([extension, own])
        product = corner.right(np.column_stack([entries, np.ones(n_new)]), known.product)
        product[-1, :n_old] += known.row_sums
        product[-1, n_old:] += sums_below
        product[:width, n_old:] += below.T
        return _centred_subspace(known, below, entries, product.T, n_components)


def _own_directions(
    joined: Joined,
    known: Known,
    sums_below: Doubles,
    extension: Doubles,
    n_components: int,
    seed: int,
) -> Doubles:
    """Return directions of new rows among themselves that matter, shape (n_new, any number).

    New rows that are unlike all old ones lie where the old basis is zero, and no product of it
    with the matrix leads there. What they have in common that old rows do not explain is
    K̂₂₂ − E Θ Eᵀ, E being their projection; its eigenvectors of some size are added. Many new rows
    are represented by some of them (Nyström).
    """
    preparation, n_new = joined.preparation, joined.new.shape[0]
    last = float(known.values[min(n_components, len(known.values)) - 1])
    chosen = np.arange(n_new)
    if n_new > TILE:
        rng = generator(seed, "kernel PCA", "new rows", n_new)
        chosen = np.sort(rng.choice(n_new, TILE, replace=False))
    sample = preparation.tile(joined.new[chosen], padded=False)
    common = np.concatenate([_values(preparation, tile, sample) for tile in joined.new_tiles])
    means = sums_below / len(known.basis)
    common += known.row_sums.mean() / len(known.basis)
    common -= means[:, None] + means[chosen]
    common -= (extension * known.values) @ extension[chosen].T
    among = common[chosen]
    large = _TELLING * max(last, 1e-300) * len(chosen) / n_new
    if np.linalg.norm(among) <= large:  # which no eigenvalue exceeds
        return np.empty((n_new, 0))
    values, vectors = ritz(among)
    n_kept = min(int(np.count_nonzero(values > large)), n_components)
    found: Doubles = np.linalg.qr(common @ vectors[:, :n_kept])[0]
    return found


def _values(preparation: Preparation, left: Tile, right: Tile) -> Doubles:
    out = np.empty((left.n, right.n), preparation.dtype)
    return np.asarray(preparation.values(left, right, out), np.float64)


def _extension(known: Known, new_with_old: Doubles) -> Doubles:
    """Return the entries of Ritz vectors for new rows: (kᵀU − rᵀU) / θ."""
    means = known.row_sums @ known.basis / len(known.basis)
    is_positive = known.values > 1e-12 * max(known.values[0], 1e-300)
    scale = np.where(is_positive, known.values, np.inf)
    found: Doubles = (new_with_old - means) @ known.vectors / scale
    return found


def _centred_subspace(
    known: Known,
    below: Doubles,
    entries: Doubles,
    with_sums: Doubles,
    n_components: int,
) -> Subspace:
    """Return the Ritz vectors of a basis that is neither centred nor orthonormal.

    Its columns are `entries` in new rows; in old rows the first ones are the known basis, the
    others zero. K times them, and K 1 as one column more, is `with_sums`. K(B − 1mᵀ) =
    K B − (K 1)mᵀ, so centring needs no product; and it is done where the matrices are small,
    before they are turned. Of the known basis U, UᵀU = 1, Uᵀ K₁₁ U and K₂₁ U, which is `below`,
    are at hand.
    """
    old = known.basis
    product, row_sums = with_sums[:, :-1], with_sums[:, -1]
    n_rows, (n_old, width) = len(row_sums), old.shape
    beside = product[n_old:]
    means = entries.sum(axis=0) / n_rows  # of the known basis they are 0
    gram = entries.T @ entries - n_rows * np.outer(means, means)
    gram[:width, :width] += np.eye(width)
    projected, weighted = entries.T @ beside, entries.T @ row_sums[n_old:]
    projected[:width] += below.T @ entries
    projected[:width, :width] += known.projected
    weighted[:width] += old.T @ row_sums[:n_old]
    projected -= np.outer(means, product.sum(axis=0)) + np.outer(weighted, means)
    projected += row_sums.sum() * np.outer(means, means)
    turn = _orthonormalising(gram)
    values, vectors = ritz(turn.T @ projected @ turn)
    n_kept = len(known.values) + entries.shape[1] - width  # and as many as there are new columns
    values, turn = values[:n_kept], turn @ vectors[:, :n_kept]
    room = len(values) + _ROOM * n_components
    basis, raised = (with_room(len(values), n_rows, room) for _ in range(2))
    shifts = means @ turn
    times(old, turn[:width], basis[:n_old], less=shifts)
    basis[n_old:] = entries @ turn - shifts
    times(with_sums, np.vstack([turn, -shifts]), raised)
    state = Subspace.starting_with(np.empty((n_rows, 0)), n_components)
    return replace(
        state,
        basis=basis,
        product=raised,
        row_sums=row_sums.copy(),
        projected=np.diag(values),
        values=values,
        vectors=np.eye(len(values)),
    )


def _orthonormalising(gram: Doubles) -> Doubles:
    """Return T with TᵀGT = 1 for the Gram matrix G of a basis, as wide as its span."""
    with contextlib.suppress(np.linalg.LinAlgError):
        factor = _cholesky(gram)
        diagonal = factor.diagonal()
        if diagonal.min() > _WELL_APART * diagonal.max():
            return _inverse(factor).T
    # Directions of new rows may add up to the mean.
    sizes, turns = np.linalg.eigh(gram)
    keep = sizes > 1e-10 * sizes[-1]
    turn = turns[:, keep] / np.sqrt(sizes[keep])
    # A second factor: the first one is orthonormal to the digits that sizes lost only.
    turned: Doubles = turn @ _inverse(_cholesky(turn.T @ gram @ turn)).T
    return turned


def _cholesky(gram: Doubles) -> Doubles:
    return np.asarray(np.linalg.cholesky(gram), np.float64)


def _inverse(factor: Doubles) -> Doubles:
    found: Doubles = scipy.linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
    return found
