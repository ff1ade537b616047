"""Kernel PCA by EM, step by step as published (Algorithm 5.1; spec 4.1, 4.2).

With B = Z C⁻¹ and K̂B from a round,

    G = Bᵀ K̂ B + σ² I,    Z ← K̂ B G⁻¹,    C ← N σ² G⁻¹ + Zᵀ Z.

Whatever σ² is, the span of Z is that of K̂ᵗ Z₀: EM is subspace iteration, and the angle to the
truth shrinks by λ_{q+1}/λ_q a step. Only the scale of Z depends on σ², and it settles much
later; so the end is judged, and the result taken, by Rayleigh-Ritz on the span.

A round multiplies an orthonormal basis Q of B = Q R: columns of B that are lost in rounding
(λ ≤ N σ² drives them to zero; the matrix may have no more directions) do no harm then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distclust import events
from distclust.engine import Plan, one_blas_thread
from distclust.projections.forecast import expected_rounds
from distclust.projections.krylov import Subspace
from distclust.projections.shards import Product
from distclust.projections.subspace import centred, orthonormal, ritz

Doubles = npt.NDArray[np.float64]

STAGE = "EM steps"  # in progress events

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
            self.basis.T @ self.product,
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
        events.emit(STAGE, self.start.n_products)
        return self.start

    def order(self, state: EMState) -> Product | None:
        """Return the product K Q of the next step, or None at the end."""
        if self.is_converged(state) or state.n_products >= self.max_iter:
            return None
        with one_blas_thread:
            block = orthonormal(_weights(state))
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
        before, worst = self._worst(state), self._worst(found)
        goal = worst if self.is_converged(found) else self.tolerance
        total = expected_rounds(found.n_products, worst, goal, before, 1, self.max_iter)
        events.emit(STAGE, found.n_products, total, residual=worst)
        return found

    def _worst(self, state: EMState) -> float:
        """Return the largest residual in parts of the largest Ritz value."""
        if len(state.values) == 0:
            return np.inf
        return float(state.residuals.max() / max(state.values[0], _ROUNDING * self.scale))

    def _step(self, state: EMState, raw_product: Doubles, row_sums: Doubles) -> EMState:
        n, q = state.latent.shape
        weights = _weights(state)
        basis, multiplied = orthonormal(weights), centred(raw_product)
        product = multiplied @ (basis.T @ weights)
        gram = weights.T @ product + self.sigma2 * np.eye(q)
        inverse = np.asarray(np.linalg.pinv((gram + gram.T) / 2.0, hermitian=True), np.float64)
        latent = product @ inverse
        moments = n * self.sigma2 * inverse + latent.T @ latent
        objective = state.objective
        if self.sigma2 > 0:
            value = _objective(gram, product, inverse, self.sigma2)
            objective = np.append(objective, value)
        values, vectors = ritz(basis.T @ multiplied)
        residual = multiplied @ vectors - (basis @ vectors) * values
        return EMState(
            latent,
            moments,
            basis,
            np.ascontiguousarray(raw_product),
            row_sums,
            values,
            vectors,
            np.sqrt(np.einsum("ij,ij->j", residual, residual)),
            objective,
            state.n_products + 1,
        )


def _weights(state: EMState) -> Doubles:
    """Return B = Z C⁻¹, of mean 0."""
    weights = np.linalg.lstsq(state.moments, state.latent.T, rcond=None)[0].T
    return centred(np.asarray(weights, np.float64))


def _objective(gram: Doubles, product: Doubles, inverse: Doubles, sigma2: float) -> float:
    """Return (5.24): −(N/2) {ln |G| − tr(K̂ B G⁻¹ Bᵀ K̂)/(N σ²)}."""
    n = len(product)
    fitted = np.einsum("ij,ij->", product @ inverse, product)
    return float(-n / 2.0 * (np.linalg.slogdet(gram)[1] - fitted / (n * sigma2)))
