"""Eigenvectors of a centred kernel matrix by block Krylov subspaces (spec 4.3, 4.5).

EM for kernel PCA is subspace iteration: it multiplies by K and forgets what came before. A
Krylov subspace keeps it. A round multiplies a block Z by K; Rayleigh-Ritz on all blocks so far
gives Ritz pairs (θ, v) and the residuals ‖K̂v − θv‖, each of which bounds the distance of θ to
an eigenvalue. The residuals, made orthonormal, are the next block.

The matrix is never centred: columns of the basis have mean 0, and K̂Z = H K Z for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from distclust import events
from distclust.engine import Plan, one_blas_thread
from distclust.projections.closing import Probe, close
from distclust.projections.forecast import expected_rounds
from distclust.projections.shards import Product
from distclust.projections.subspace import (
    Columns,
    bordered,
    centred,
    inner,
    orthonormal,
    ritz,
    times,
)

Doubles = npt.NDArray[np.float64]

STAGE = "kernel products"  # in progress events

OVERSAMPLING = 8

_WIDEST = 12  # blocks of a basis before it is thinned out
_KEPT = 3  # blocks that stay then
_DONE = 0.1  # of the residual allowed: below it a column is not multiplied any more
_SURE = 0.7  # of the residual allowed: what a step without a product is to come to
_SINGLE = 4e-7  # of √N entries: more than single precision adds to a product
_UNNOTICED = 5e-4  # of the residual allowed
_ROUNDING = 1e-15
_ZERO = 1e-9  # of the largest Ritz value: below it nothing is divided by a value


@dataclass(frozen=True, eq=False)
class Subspace:
    """A basis, what K makes of it, and the best that can be said about eigenvectors so far.

    Attributes
    ----------
    basis
        Orthonormal columns of mean 0, shape (N, w); after the first round.
    product
        K times the basis, not centred, shape (N, w).
    block
        What is multiplied next, shape (N, b); orthonormal, orthogonal to the basis.
    row_sums
        K 1, shape (N,); empty before they are known.
    projected
        The basis times its product, shape (w, w): K̂ as seen in the basis.
    values, vectors
        Ritz values, the largest first, and their vectors in terms of the basis, shape (w, w).
    residuals
        ‖K̂v − θv‖ of the wanted ones; infinite before the first round.
    n_products
        Rounds so far.
    closed, closed_values
        Eigenpairs that were improved without another product, shape (N, q) and (q,), of which
        `residuals` are then bounds; without columns if that was not done.
    """

    basis: Doubles
    product: Doubles
    block: Doubles
    row_sums: Doubles
    projected: Doubles
    values: Doubles
    vectors: Doubles
    residuals: Doubles
    n_products: int
    closed: Doubles = field(default_factory=lambda: np.empty((0, 0)))
    closed_values: Doubles = field(default_factory=lambda: np.empty(0))

    @classmethod
    def starting_with(cls, block: Doubles, n_components: int) -> Subspace:
        """Return the state before the first round."""
        empty = np.empty((len(block), 0))
        unknown = np.full(n_components, np.inf)
        none, nothing = np.empty(0), np.empty((0, 0))
        return cls(empty, empty, block, none, nothing, none, nothing, unknown, 0)


@dataclass(frozen=True, eq=False)
class RitzPairs:
    """The first Ritz pairs of a subspace and their residuals.

    Attributes
    ----------
    state
        The subspace.
    vectors, residual
        v and K̂v − θv, shape (N, k).
    sizes
        Lengths of the residuals, shape (k,).
    """

    state: Subspace
    vectors: Doubles
    residual: Doubles
    sizes: Doubles


@dataclass(frozen=True, eq=False)
class Krylov(Plan[Subspace]):
    """Leads kernel products until residuals are small.

    Attributes
    ----------
    start
        The first state.
    n_components
        Eigenpairs wanted.
    tolerance
        Largest residual allowed, in parts of the largest Ritz value.
    max_iter
        Products allowed.
    scale
        Of the matrix: eigenvalues below rounding of it are zero.
    width
        Columns of a block; 0: `block_width`.
    probe
        What judges a last step without a product, or None: then residuals are always exact.
    may_round
        Whether entries of the matrix are at most 1, so that products may be asked for in single
        precision where that is enough.
    """

    start: Subspace
    n_components: int
    tolerance: float
    max_iter: int
    scale: float
    width: int = 0
    probe: Probe | None = None
    may_round: bool = False
    _basis: Columns = field(init=False, repr=False)
    _product: Columns = field(init=False, repr=False)

    state_type = Subspace

    def __post_init__(self) -> None:
        start = self.start
        n_rows, first = start.block.shape
        capacity = start.basis.shape[1] + max(first, self._width(n_rows))
        capacity += _WIDEST * self._width(n_rows)
        object.__setattr__(self, "_basis", Columns(capacity, start.basis))
        object.__setattr__(self, "_product", Columns(capacity, start.product))

    def begin(self) -> Subspace:
        """Return the first state."""
        events.emit(STAGE, self.start.n_products)
        return self.start

    def order(self, state: Subspace) -> Product | None:
        """Return the next product; the first one also asks for the row sums of K."""
        if self.is_converged(state) or state.n_products >= self.max_iter:
            return None
        if state.block.shape[1] == 0:
            return None  # the basis spans everything
        block = state.block
        if len(state.row_sums) == 0:
            block = np.column_stack([block, np.ones(len(block))])
        elif self._suits_single(state):
            return Product(block.astype(np.float32))
        return Product(block)

    def _suits_single(self, state: Subspace) -> bool:
        """Whether rounding a product to single precision would not be noticed.

        What follows residuals of length r in a better Ritz pair (θ, v) is about r / θ of it, and
        that share of what rounding adds to products is added to its residual. Roundings of N
        entries have random signs: they add up as √N.
        """
        q = self.n_components
        if not self.may_round or len(state.values) < q or state.values[q - 1] <= 0:
            return False
        share = float(state.residuals.max() / state.values[q - 1])
        added = _SINGLE * self.scale / np.sqrt(len(state.block))
        return bool(share * added <= _UNNOTICED * self._allowed(state))

    def is_converged(self, state: Subspace) -> bool:
        """Whether all residuals are within the tolerance."""
        if len(state.values) == 0:
            return False
        return bool(state.residuals.max() <= self._allowed(state))

    def _allowed(self, state: Subspace) -> float:
        return max(self.tolerance * float(state.values[0]), _ROUNDING * self.scale)

    def absorb(self, state: Subspace, reports: Sequence[Doubles]) -> Subspace:
        """Enlarge the basis by the block that was multiplied."""
        with one_blas_thread:
            product = np.concatenate(list(reports))
            row_sums = state.row_sums
            if len(row_sums) == 0:
                row_sums, product = product[:, -1].copy(), product[:, :-1]
            before, block = self._worst(state), state.block
            # What is between old columns and new ones is told by old products: they may be more
            # exact, and the Ritz vectors depend on it as they are.
            columns = inner(state.product, block), inner(block, product)
            state = replace(
                state,
                basis=self._basis.beside(state.basis, block),
                product=self._product.beside(state.product, product),
                projected=bordered(state.projected, np.concatenate(columns)),
                row_sums=row_sums,
                n_products=state.n_products + 1,
            )
            pairs = self._ritz_pairs(state)
            state = self._closed(pairs, before) or self._with_block(pairs)
        worst, n_done = self._worst(state), state.n_products
        goal = worst if self.is_converged(state) else self.tolerance
        # Since the start: from one product to the next the fall is uneven.
        earlier, n_since = self._worst(self.start), n_done - self.start.n_products
        total = expected_rounds(n_done, worst, goal, earlier, n_since, self.max_iter)
        events.emit(STAGE, n_done, total, residual=worst)
        return state

    def _closed(self, pairs: RitzPairs, before: float) -> Subspace | None:
        """Return the last state, with improved eigenpairs, if that ends the fit.

        It is tried where residuals, falling as by the last product, would end well below what is
        allowed.
        """
        state = pairs.state
        if self.probe is None or self.is_converged(state):
            return None
        worst, allowed = self._worst(state), self._allowed(state)
        q, first = self.n_components, float(state.values[0])
        has_direction = len(state.values) >= q and state.values[q - 1] > _ZERO * first
        if not has_direction or worst**2 / before * first > _SURE * allowed:
            return None
        # What was multiplied last, residuals of before, tells what K̂ makes of those of now.
        quotients = state.projected.diagonal()[-state.block.shape[1] :]
        found = close(
            self.probe,
            pairs.vectors[:, :q],
            state.values[:q],
            pairs.residual[:, :q],
            pairs.sizes[:q],
            state.row_sums,
            min(float(quotients.mean()), float(state.values[q - 1]) / 2.0),
        )
        if found.residuals.max() > allowed:
            return None
        return replace(
            state,
            block=np.empty((len(state.basis), 0)),
            residuals=found.residuals,
            closed=found.vectors,
            closed_values=found.values,
        )

    def _worst(self, state: Subspace) -> float:
        """Return the largest residual in parts of the largest Ritz value; at first about 1."""
        if len(state.values) == 0:
            return 1.0
        return float(state.residuals.max() / max(state.values[0], _ROUNDING * self.scale))

    def begun(self, state: Subspace) -> Subspace:
        """Return a state, whose basis are Ritz vectors, with what is multiplied next."""
        n_wanted = self._n_wanted(state)
        first, raised = state.basis[:, :n_wanted], state.product[:, :n_wanted]
        return self._with_block(self._pairs(state, first, raised))

    def _ritz_pairs(self, state: Subspace) -> RitzPairs:
        """Do Rayleigh-Ritz on the basis."""
        values, vectors = ritz(state.projected)
        chosen = vectors[:, : self._n_wanted(state)]
        state = replace(state, values=values, vectors=vectors)
        return self._pairs(state, times(state.basis, chosen), times(state.product, chosen))

    def _n_wanted(self, state: Subspace) -> int:
        return max(self._width(len(state.basis)), self.n_components)

    def _pairs(self, state: Subspace, vectors: Doubles, raised: Doubles) -> RitzPairs:
        """Return the first Ritz pairs with their residuals; what K makes of them is given."""
        residual = centred(raised)
        residual -= vectors * state.values[: vectors.shape[1]]
        sizes = np.sqrt(np.einsum("ij,ij->j", residual, residual))
        state = replace(state, residuals=sizes[: self.n_components].copy())
        return RitzPairs(state, vectors, residual, sizes)

    def _with_block(self, pairs: RitzPairs) -> Subspace:
        """Return the state with what is multiplied next: residuals, made orthonormal."""
        state, residual = pairs.state, pairs.residual
        n_rows, width = state.basis.shape
        if self.is_converged(state):
            return replace(state, block=np.empty((n_rows, 0)))
        wide = self._width(n_rows)
        if width > (_WIDEST - 1) * wide:
            state = thinned(state, _KEPT * wide)
        left = n_rows - 1 - state.basis.shape[1]  # dimensions that are not in the basis
        worth = np.flatnonzero(pairs.sizes > _DONE * self._allowed(state))[: min(wide, left)]
        if len(worth) < residual.shape[1]:
            residual = residual[:, worth]
        return replace(state, block=orthonormal(residual, state.basis))

    def _width(self, n_rows: int) -> int:
        return min(self.width, n_rows - 1) or block_width(self.n_components, n_rows)


def thinned(state: Subspace, width: int) -> Subspace:
    """Return the subspace of the first Ritz vectors: it costs no product."""
    kept = state.vectors[:, :width]
    values = state.values[: kept.shape[1]]
    return replace(
        state,
        basis=times(state.basis, kept),
        product=times(state.product, kept),
        projected=np.diag(values),
        values=values,
        vectors=np.eye(len(values)),
    )


def block_width(n_components: int, n_rows: int) -> int:
    """Return the columns of a block: one a component, and some more for faster convergence."""
    return min(n_components + OVERSAMPLING, n_rows - 1)
