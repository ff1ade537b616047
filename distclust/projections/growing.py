"""Kernel PCA of rows that keep coming (Algorithm 5.2; spec 4.7, 4.8).

Old rows come first. Of the kernel matrix only K₂₁ and K₂₂ are new: with a basis U of old rows
and its product K₁₁ U at hand, the product of the longer matrix with [U; E] is

    [K₁₁ U; K₂₁ U] + K_{·2} E,

two corners of it. E, the coordinates of new rows, is their projection (not random), so the
longer basis starts near the truth; what is missing is found by as few more products as the
tolerance asks for. Row sums grow in the same way (5.28-5.30).

Online, no product with K₁₁ is ever made again: the basis is [U; 0] and [0; I], and what lies
outside the span of U stays unknown for good.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.linalg

from distclust.engine import Crew, one_blas_thread
from distclust.projections.krylov import Subspace
from distclust.projections.shards import Product
from distclust.projections.subspace import centred

Doubles = npt.NDArray[np.float64]


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


def known_of(subspace: Subspace, vectors: Doubles) -> Known:
    """Return the Ritz vectors of a subspace, given in terms of its basis."""
    with one_blas_thread:
        return Known(
            subspace.basis @ vectors,
            subspace.product @ vectors,
            subspace.values[: vectors.shape[1]],
            subspace.row_sums,
        )


def grown(crew: Crew, known: Known, n_rows: int, n_components: int, *, online: bool) -> Subspace:
    """Return a subspace for all `n_rows` rows, of which the first are known.

    The crew's role is the products of the longer matrix.
    """
    n_old, width = known.basis.shape
    longer = np.zeros((n_rows, width + 1))
    longer[:n_old, :width] = known.basis
    longer[:, width] = 1.0
    corner = np.concatenate([r for r in crew.round(Product(longer, n_old)) if len(r)])
    old_with_new, new_sums = corner[:, :width], corner[:, width]
    with one_blas_thread:
        entries = _identity(n_rows - n_old) if online else _extension(known, old_with_new)
        block = np.zeros((n_rows, entries.shape[1] + 1))
        block[n_old:, :-1] = entries
        block[n_old:, -1] = 1.0
    product = np.concatenate(crew.round(Product(block, 0, n_old)))
    row_sums = np.concatenate([known.row_sums + product[:n_old, -1], new_sums])
    with one_blas_thread:
        basis = np.zeros((n_rows, width))
        basis[:n_old] = known.basis
        raised = np.concatenate([known.product, old_with_new])
        if online:
            basis = np.column_stack([basis, block[:, :-1]])
            raised = np.column_stack([raised, product[:, :-1]])
        else:
            basis[n_old:] = entries
            raised += product[:, :-1]
        return _orthonormal(basis, raised, row_sums, n_components)


def _identity(n: int) -> Doubles:
    return np.eye(n)


def _extension(known: Known, old_with_new: Doubles) -> Doubles:
    """Return the entries of eigenvectors for new rows: (kᵀU − rᵀU) / θ."""
    means = known.row_sums @ known.basis / len(known.basis)
    is_positive = known.values > 1e-12 * max(known.values[0], 1e-300)
    scale = np.where(is_positive, known.values, np.inf)
    found: Doubles = (old_with_new - means) / scale
    return found


def _orthonormal(
    basis: Doubles, product: Doubles, row_sums: Doubles, n_components: int
) -> Subspace:
    """Return the subspace of a basis that is neither centred nor orthonormal."""
    means = basis.mean(axis=0)
    basis, product = basis - means, product - np.outer(row_sums, means)
    values, vectors = np.linalg.eigh(basis.T @ basis)
    keep = values > 1e-10 * values[-1]  # new rows alone may already span the mean
    turn = vectors[:, keep] / np.sqrt(values[keep])
    basis, product = basis @ turn, product @ turn
    # Once more: rounding of the first time.
    factor = np.linalg.cholesky(basis.T @ basis)
    basis = scipy.linalg.solve_triangular(factor, basis.T, lower=True).T
    product = scipy.linalg.solve_triangular(factor, product.T, lower=True).T
    state = Subspace.starting_with(np.empty((len(basis), 0)), n_components)
    return replace(
        state,
        basis=np.ascontiguousarray(centred(basis)),
        product=np.ascontiguousarray(product),
        row_sums=row_sums,
    )
