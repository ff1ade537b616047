"""Kernel PCA by EM, step by step as published (Algorithm 5.1; spec 4.1, 4.2).

With B = Z C⁻¹ a round computes K̂B; then

    G = Bᵀ K̂ B + σ² I,    Z ← K̂ B G⁻¹,    C ← N σ² G⁻¹ + Zᵀ Z.

Whatever σ² is, the span of Z is that of K̂ᵗ Z₀: EM is subspace iteration, and the angle to the
truth shrinks by λ_{q+1}/λ_q a step. Only the scale of Z depends on σ², and it settles much
later; so the end is judged, and the result taken, by Rayleigh-Ritz on the span.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.linalg

from distclust import events
from distclust.engine import Plan, one_blas_thread
from distclust.projections.krylov import Subspace
from distclust.projections.shards import Product
from distclust.projections.subspace import centred, ritz

Doubles = npt.NDArray[np.float64]

_ROUNDING = 1e-15


@dataclass(frozen=True, eq=False)
class EMState:
    """The latent matrix and what is known of it.

    Attributes
    ----------
    latent
        Z, shape (N, q).
    moments
        C, shape (q, q).
    basis, product
        Orthonormal basis of the span that was multiplied last, and K times it.
    row_sums
        K 1, shape (N,); empty before the first round.
    values, vectors, residuals
        Of Rayleigh-Ritz on the basis, as in `Subspace`.
    objective
        (5.24) after every step, without constants; empty for σ² = 0.
    n_products
        Steps so far.
    """

    latent: Doubles
    moments: Doubles
    basis: Doubles
    product: Doubles
    row_sums: Doubles
    values: Doubles
    vectors: Doubles
    residuals: Doubles
    objective: Doubles
    n_products: int

    @classmethod
    def starting_with(cls, latent: Doubles) -> EMState:
        """Return the state before the first step, for a block of columns of mean 0."""
        q = latent.shape[1]
        empty, none = np.empty((len(latent), 0)), np.empty(0)
        unknown = np.full(q, np.inf)
        moments = latent.T @ latent
        return cls(latent, moments, empty, empty, none, none, np.empty((0, 0)), unknown, none, 0)

    def as_subspace(self) -> Subspace:
        """Return what was found in the form that other solvers use."""
        return Subspace(
            self.basis,
            self.product,
            np.empty((len(self.latent), 0)),
            self.row_sums,
            self.values,
            self.vectors,
            self.residuals,
            self.n_products,
        )


@dataclass(frozen=True, eq=False)
class EM(Plan[EMState]):
    """Leads kernel products by the published steps.

    Attributes
    ----------
    start
        The first state.
    sigma2
        The noise, fixed. Components with λ ≤ N σ² are driven to zero (spec 4.2).
    tolerance, max_iter, scale
        As for `Krylov`.
    """

    start: EMState
    sigma2: float
    tolerance: float
    max_iter: int
    scale: float

    state_type = EMState

    def begin(self) -> EMState:
        """Return the first state."""
        return self.start

    def order(self, state: EMState) -> Product | None:
        """Return the product K̂ B of the next step, or None at the end."""
        if self.is_converged(state) or state.n_products >= self.max_iter:
            return None
        with one_blas_thread:
            block = self._weights(state)
        if len(state.row_sums) == 0:
            block = np.column_stack([block, np.ones(len(block))])
        return Product(block)

    def is_converged(self, state: EMState) -> bool:
        """Whether all residuals are within the tolerance."""
        if len(state.values) == 0:
            return False
        allowed = max(self.tolerance * float(state.values[0]), _ROUNDING * self.scale)
        return bool(state.residuals.max() <= allowed)

    def absorb(self, state: EMState, reports: Sequence[Doubles]) -> EMState:
        """Do the step whose product is given."""
        with one_blas_thread:
            product, row_sums = np.concatenate(list(reports)), state.row_sums
            if len(row_sums) == 0:
                row_sums, product = product[:, -1].copy(), product[:, :-1]
            found = self._step(state, product, row_sums)
        worst = float(found.residuals.max() / max(found.values[0], _ROUNDING * self.scale))
        events.emit("EM steps", found.n_products, residual=worst)
        return found

    def _weights(self, state: EMState) -> Doubles:
        """Return B = Z C⁻¹, of mean 0."""
        weights = np.linalg.lstsq(state.moments, state.latent.T, rcond=None)[0].T
        return centred(np.asarray(weights, np.float64))

    def _step(self, state: EMState, raw_product: Doubles, row_sums: Doubles) -> EMState:
        n, q = state.latent.shape
        weights = self._weights(state)
        product = centred(raw_product)
        gram = weights.T @ product + self.sigma2 * np.eye(q)
        inverse = np.asarray(np.linalg.pinv((gram + gram.T) / 2.0, hermitian=True), np.float64)
        latent = product @ inverse
        moments = n * self.sigma2 * inverse + latent.T @ latent
        objective = state.objective
        if self.sigma2 > 0:
            value = _objective(gram, product, inverse, self.sigma2)
            objective = np.append(objective, value)
        basis, factor = np.linalg.qr(weights)
        multiplied = scipy.linalg.solve_triangular(factor.T, raw_product.T, lower=True).T
        values, vectors = ritz(basis.T @ centred(multiplied))
        residual = centred(multiplied) @ vectors - (basis @ vectors) * values
        return EMState(
            latent,
            moments,
            basis,
            np.ascontiguousarray(multiplied),
            row_sums,
            values,
            vectors,
            np.sqrt(np.einsum("ij,ij->j", residual, residual)),
            objective,
            state.n_products + 1,
        )


def _objective(gram: Doubles, product: Doubles, inverse: Doubles, sigma2: float) -> float:
    """Return (5.24): −(N/2) {ln |G| − tr(K̂ B G⁻¹ Bᵀ K̂)/(N σ²)}."""
    n = len(product)
    fitted = np.einsum("ij,ij->", product @ inverse, product)
    return float(-n / 2.0 * (np.linalg.slogdet(gram)[1] - fitted / (n * sigma2)))
