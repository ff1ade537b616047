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

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.linalg

from distclust.engine import one_blas_thread
from distclust.engine.held import RowArray
from distclust.projections.kernels import TILE, Preparation
from distclust.projections.krylov import Subspace, thinned
from distclust.projections.products import WeightedRows
from distclust.projections.subspace import inner, ritz, signs_of, times

Doubles = npt.NDArray[np.float64]

_FEWEST, _MOST = 2, 5  # Ritz vectors kept for each component
_TELLING = 0.1  # of the eigenvalue of the last component


@dataclass(frozen=True, eq=False)
class Known:
    """What a fit leaves for rows to come.

    Attributes
    ----------
    basis
        Ritz vectors, the largest first, shape (N, w); orthonormal, of mean 0.
    product
        K times the basis, not centred.
    values
        Their Ritz values, shape (w,).
    row_sums
        K 1, shape (N,).
    """

    basis: Doubles
    product: Doubles
    values: Doubles
    row_sums: Doubles


def known_of(found: Subspace, n_components: int) -> Known:
    """Return the first Ritz vectors of a subspace, from which longer data start.

    As many as matter: what is left out slows the next fit down by how its eigenvalues compare
    with that of the last component.
    """
    q = n_components
    last = max(float(found.values[min(q, len(found.values)) - 1]), 0.0)
    n_large = int(np.count_nonzero(found.values > _TELLING * last))
    with one_blas_thread:
        kept = thinned(found, min(max(n_large, _FEWEST * q), _MOST * q))
        signs = signs_of(kept.basis)
        return Known(kept.basis * signs, kept.product * signs, kept.values, kept.row_sums)


def grown(
    preparation: Preparation,
    known: Known,
    old: RowArray,
    new: RowArray,
    n_components: int,
    *,
    online: bool,
) -> Subspace:
    """Return a subspace for old and new rows together.

    Parameters
    ----------
    preparation
        Of the kernel.
    known
        What is known of old rows.
    old, new
        The rows.
    n_components
        Eigenpairs wanted.
    online
        Whether new rows get a direction each instead of being projected.
    """
    n_old, width = known.basis.shape
    n_new = new.shape[0]
    old_tiles = preparation.tiles(old)
    # New rows are the same wherever this runs: their tile needs no padding.
    new_tiles = [preparation.tile(new[i : i + TILE], padded=False) for i in range(0, n_new, TILE)]
    with one_blas_thread:
        below = WeightedRows(preparation, old_tiles, _with_ones(known.basis)).times_all(new_tiles)
        entries = np.eye(n_new) if online else _extension(known, below[:, :-1])
        weighted = WeightedRows(preparation, new_tiles, _with_ones(entries))
        right = np.concatenate([weighted.times_all(old_tiles), weighted.times_all(new_tiles)])
        row_sums = right[:, -1].copy()
        row_sums[:n_old] += known.row_sums
        row_sums[n_old:] += below[:, -1]
        left = np.concatenate([known.product.T, below[:, :-1].T], axis=1)
        basis = np.zeros((width + (n_new if online else 0), n_old + n_new))
        basis[:width, :n_old] = known.basis.T
        basis[width if online else 0 :, n_old:] = entries.T
        new_product = right[:, :-1].T
        product = np.concatenate([left, new_product]) if online else left + new_product
        return _centred_subspace(basis.T, product.T, row_sums, n_components)


def _with_ones(block: Doubles) -> Doubles:
    return np.column_stack([block, np.ones(len(block))])


def _extension(known: Known, new_with_old: Doubles) -> Doubles:
    """Return the entries of eigenvectors for new rows: (kᵀU − rᵀU) / θ."""
    means = known.row_sums @ known.basis / len(known.basis)
    is_positive = known.values > 1e-12 * max(known.values[0], 1e-300)
    scale = np.where(is_positive, known.values, np.inf)
    found: Doubles = (new_with_old - means) / scale
    return found


def _centred_subspace(
    basis: Doubles, product: Doubles, row_sums: Doubles, n_components: int
) -> Subspace:
    """Return the Ritz vectors of a basis that is neither centred nor orthonormal.

    K(B − 1mᵀ) = K B − (K 1)mᵀ, so centring needs no product; and it is done where the matrices
    are small, before and after they are turned.
    """
    n_rows = len(row_sums)
    means = basis.mean(axis=0)
    gram = inner(basis, basis) - n_rows * np.outer(means, means)
    projected = inner(basis, product)
    projected -= np.outer(means, product.sum(axis=0)) + np.outer(basis.T @ row_sums, means)
    projected += row_sums.sum() * np.outer(means, means)
    sizes, turns = np.linalg.eigh(gram)
    keep = sizes > 1e-10 * sizes[-1]  # directions of new rows may add up to the mean
    turn = turns[:, keep] / np.sqrt(sizes[keep])
    # A second factor: the first one is orthonormal to the digits that sizes lost only.
    factor = np.linalg.cholesky(turn.T @ gram @ turn)
    turn = scipy.linalg.solve_triangular(factor, turn.T, lower=True).T
    values, vectors = ritz(turn.T @ projected @ turn)
    turn = turn @ vectors
    shifts = means @ turn
    turned, raised = times(basis, turn), times(product, turn)
    for i, shift in enumerate(shifts):
        turned[:, i] -= shift
        raised[:, i] -= shift * row_sums
    state = Subspace.starting_with(np.empty((n_rows, 0)), n_components)
    return replace(
        state,
        basis=turned,
        product=raised,
        row_sums=row_sums,
        projected=np.diag(values),
        values=values,
        vectors=np.eye(len(values)),
    )
