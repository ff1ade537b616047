"""Kernel PCA as an estimator: fitted by a crew, growing with its rows."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from distclust.engine import (
    Crew,
    Vault,
    current_client,
    fingerprint_of,
    held_rows,
    map_blocks,
    one_blas_thread,
    passing_vault,
)
from distclust.engine.held import RowArray, in_layout_of, is_sparse, stacked
from distclust.errors import (
    CapacityError,
    ConvergenceWarning,
    IndefiniteKernelWarning,
    InputError,
)
from distclust.projections.base import Projection
from distclust.projections.em import EM, EMState
from distclust.projections.growing import Joined, Known, grown, known_of
from distclust.projections.kernels import NAMED_KERNELS, Kernel, Preparation, Tile, name_of
from distclust.projections.krylov import Krylov, Subspace, block_width
from distclust.projections.landmarks import Landmarks, project_block
from distclust.projections.shards import KernelProducts, n_shards
from distclust.projections.starting import near_block, random_block
from distclust.projections.subspace import orthonormal, signs_of, times
from distclust.seeding import check_seed
from distclust.store import Matrix
from distclust.store.objects import checksum
from distclust.validation import check_bytes, check_choice, check_integer, check_real

Doubles = npt.NDArray[np.float64]

_LOOKED_AT = 512  # rows that tell the size of the kernel
_ONLINE_ROWS = 512  # new rows that are taken in at a time
_SHARE_OF_MEMORY = 0.8
_ZERO = 1e-12  # of the largest eigenvalue: below it a component has no direction
_ROUNDING = 1e-15  # of the size that eigenvalues could have
_SINGLE_ROUNDING = 1e-6  # the same with float32
_NEGATIVE = 1e-8  # of the largest eigenvalue: rounding makes smaller negative ones


class KernelPCA(Projection):
    r"""Kernel principal component analysis: few directions of a space of features.

    The eigenvectors of the centred kernel matrix :math:`\hat K`, found by products with it;
    the matrix is never formed. Rows are held by a crew of actors, `TILE` rows each, which
    keep as much of the kernel as memory allows and evaluate the rest again.

    Parameters
    ----------
    n_components
        Number of components q, below the number of rows.
    kernel
        ``"rbf"`` :math:`\exp(-\gamma \|x-y\|^2)`, ``"linear"`` :math:`x \cdot y`, ``"poly"``
        :math:`(\gamma\, x \cdot y + c)^d`, ``"cosine"``, or a function of two arrays of rows
        that returns all values between them and can be imported by its name.
    gamma
        Left out: 1 / number of features.
    sigma2
        Noise variance of the probabilistic model, fixed. 0 takes the limit without noise;
        `noise_variance_` then tells what is left over. It shapes the steps of
        ``solver="em"`` and the likelihood, not the components.
    solver
        ``"krylov"``: block Krylov subspaces. ``"em"``: the steps of Algorithm 5.1 as
        published, which converge by :math:`\lambda_{q+1} / \lambda_q` a step. ``"auto"``:
        ``"krylov"``.
    tolerance
        The fit ends when :math:`\|\hat K v - \lambda v\| \le` tolerance
        :math:`\cdot \lambda_1` for every component. With ``dtype="float32"`` it is at least
        2e-6.
    memory_budget
        Memory for kernel tiles in all processes together, in bytes or as in ``"4 GB"``.
        ``"auto"``: half of each worker's limit, or of what is free in this process. It
        changes the time of a fit, never its result.
    dtype
        Of kernel values and products with them. ``"float32"`` halves the memory; sums
        over tiles are float64 in either case. With ``"float64"`` and the RBF kernel, products
        that only correct what is known are rounded as far as the tolerance does not notice.
    random_state
        Seed of the block to start from.
    degree, coef0
        Of the ``"poly"`` kernel.
    max_iter
        Products with the kernel matrix at most.

    Attributes
    ----------
    eigenvalues_
        Of the centred kernel matrix, the largest first, shape (n_components,).
    components_
        Eigenvectors, shape (n_components, n_rows): orthonormal, the entry of largest modulus
        positive. Coordinates are :math:`\sqrt{\lambda}\, v`.
    residuals_
        :math:`\|\hat K v - \lambda v\|` of every component, which bounds the error of its
        eigenvalue. After `partial_fit` it may be judged by some rows: what they tell of all, and
        four standard errors more.
    noise_variance_
        `sigma2`, or where that is 0 the mean of the eigenvalues left out, divided by N
        (5.4).
    log_likelihood_
        Of the rows in feature space under the probabilistic model, restricted to the span of
        the data: min(features, N − 1) dimensions for linear and cosine kernels, N − 1 for
        others.
    objective_path_
        For ``solver="em"`` with noise: (5.24) after every step; never falls.
    n_iter_
        Products with the kernel matrix.
    n_features_in_, feature_names_in_
        Number and names of the features of the fit.

    Notes
    -----
    The result does not depend on workers, threads, memory or restarts, to the bit. After a
    fit the crew stays, with its tiles, as long as the model, so that `partial_fit` finds
    them; `close` lets it go.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centres = np.array([[-0.5, -0.2], [0.0, 0.6], [0.5, 0.0]])
    >>> rows = np.repeat(centres, 30, axis=0) + 0.1 * rng.normal(size=(90, 2))
    >>> model = KernelPCA(n_components=2, gamma=10.0, random_state=0).fit(rows)
    >>> model.transform(rows).shape
    (90, 2)
    >>> bool(model.residuals_.max() <= 1e-6 * model.eigenvalues_[0])
    True
    """

    eigenvalues_: Doubles
    components_: Doubles
    residuals_: Doubles
    noise_variance_: float
    log_likelihood_: float
    n_iter_: int
    _rows: RowArray
    _kernel: Kernel
    _middle: Any
    _row_sums: Doubles
    _known: Known
    _tiles: list[Tile]
    _seed: int

    def __init__(
        self,
        n_components: int = 2,
        kernel: Any = "rbf",
        gamma: float | None = None,
        sigma2: float = 0.0,
        solver: str = "auto",
        tolerance: float = 1e-6,
        memory_budget: int | str = "auto",
        dtype: str = "float64",
        random_state: Any = None,
        *,
        degree: int = 3,
        coef0: float = 1.0,
        max_iter: int = 1000,
    ) -> None:
        self.n_components = n_components
        self.kernel = kernel
        self.gamma = gamma
        self.sigma2 = sigma2
        self.solver = solver
        self.tolerance = tolerance
        self.memory_budget = memory_budget
        self.dtype = dtype
        self.random_state = random_state
        self.degree = degree
        self.coef0 = coef0
        self.max_iter = max_iter

    # ---- fitting --------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        results: str | os.PathLike[str] | None = None,
        *,
        fresh: bool = False,
    ) -> Self:
        """Find the components of the rows of `X`.

        Parameters
        ----------
        X
            Rows and features: an array, a sparse matrix, a data frame, a Dask array, or the
            path or URL of a store.
        y
            Ignored.
        results
            Path or URL of a results store. State is saved there every ten seconds; the same
            fit begun again goes on, and the model is published as a version.
        fresh
            Discard an unfinished fit instead of going on with it.
        """
        where = f"{type(self).__name__}.fit"
        matrix = self._training_rows(X, where)
        self._check_parameters(matrix.shape, where)
        rows = _held(matrix, self.n_components, where)
        self._kernel = self._resolved_kernel(matrix.shape[1], where)
        self._middle = _middle_of(rows, self._kernel)
        self._seed = check_seed(self.random_state, f"{where}: random_state")
        if results is None:
            self._fit_rows(rows, None)
            return self
        from distclust.projections.stored_fits import fit_beside

        fit_beside(self, matrix, rows, results, fresh=fresh, where=where)
        return self

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Doubles:
        """Fit, and return the coordinates of the rows, shape (n_rows, n_components)."""
        self.fit(X, y, **fit_params)
        return self._coordinates()

    def partial_fit(self, X: Any, y: Any = None, *, online: bool = False) -> Self:
        """Let more rows join those fitted so far (Algorithm 5.2).

        The result is that of a fit of all rows, to the tolerance, and starts from the
        components there are: a few more rows cost a fraction of a fit.

        Parameters
        ----------
        X
            More rows, with the same features. The first call fits them.
        y
            Ignored.
        online
            Never multiply by the kernel of old rows again: time and memory of a step are
            O(N q). The result is approximate and stays so: what old rows have outside the
            kept directions is lost for good, and a component that was minor at first is not
            found later. `residuals_` tells how far it is from exact.
        """
        if not hasattr(self, "components_"):
            return self.fit(X, y)
        added = self._joining_rows(X)
        starts = range(0, added.shape[0], _ONLINE_ROWS if online else max(added.shape[0], 1))
        for start in starts:
            self._grow(added[start : start + starts.step], online=online)
        return self

    def _join_beside(self, X: Any, vault_of: Callable[[str], Vault]) -> None:
        """Let rows join as in `partial_fit`, saving state in the vault of a fingerprint."""
        self._grow(self._joining_rows(X), online=False, vault_of=vault_of)

    def _joining_rows(self, X: Any) -> RowArray:
        """Return rows that may join, checked."""
        where = f"{type(self).__name__}.partial_fit"
        added = held_rows(self._new_rows(X, "partial_fit"))
        _check_finite(added, where)
        self._check_parameters((len(self._row_sums), self.n_features_in_), where)
        self._check_same_components(where)
        return added

    def _fit_rows(self, rows: RowArray, vault: Vault | None) -> None:
        """Fit rows that are in memory; state is saved in the vault."""
        self._rows, self._tiles = rows, []
        role = self._role()
        # Throughout, not now and then: threads of BLAS that are let loose spin for a while.
        with one_blas_thread, self._working_crew(role, vault) as crew:
            solver = "krylov" if self.solver == "auto" else self.solver
            found = self._by_krylov(crew) if solver == "krylov" else self._by_em(crew)
        self._keep(found)

    def _by_krylov(self, crew: Crew) -> Subspace:
        n_rows = self._rows.shape[0]
        width = block_width(self.n_components, n_rows)
        near = near_block(self._preparation(), self._rows, width, self._seed, self._tiles_of)
        crew.settle()
        start = Subspace.starting_with(orthonormal(near), self.n_components)
        self.__dict__.pop("objective_path_", None)
        return crew.follow(self._krylov(start))

    def _by_em(self, crew: Crew) -> Subspace:
        n_rows = self._rows.shape[0]
        start = EMState.starting_with(random_block(n_rows, self.n_components, self._seed))
        scale = self._scale()
        plan = EM(start, float(self.sigma2), self._tolerance(), self.max_iter, scale)
        state = crew.follow(plan)
        self.objective_path_ = state.objective
        return state.as_subspace()

    def _grow(
        self,
        added: RowArray,
        *,
        online: bool,
        vault_of: Callable[[str], Vault] | None = None,
    ) -> None:
        before = self._rows
        self._rows = stacked(before, added)
        try:
            with one_blas_thread:
                found = self._grown(before, added, online, vault_of)
        except BaseException:
            self._rows = before  # the model is what it was, and may be given the rows again
            raise
        self._keep(found, is_final=not online)

    def _grown(
        self,
        before: RowArray,
        added: RowArray,
        online: bool,
        vault_of: Callable[[str], Vault] | None,
    ) -> Subspace:
        added = in_layout_of(before, added)
        if online:
            return self._started(before, added)[1]
        role = self._role()
        vault = None if vault_of is None else vault_of(self._fingerprint(role.rows))
        with self._working_crew(role, vault) as crew:  # which is made ready meanwhile
            plan, start = self._started(before, added, crew)
            return crew.follow(replace(plan, start=start))

    def _started(
        self, before: RowArray, added: RowArray, crew: Crew | None = None
    ) -> tuple[Krylov, Subspace]:
        """Return where all rows start from what is known of old ones, and a plan to go on.

        Without a crew to go on, online.
        """
        q = self.n_components
        joined = Joined.of(self._preparation(), before, added, self._tiles_of(before))
        start = grown(joined, self._known, q, self._seed, online=crew is None)
        if crew is not None:
            crew.settle()
        # It starts so near that more columns are no help.
        plan = replace(self._krylov(start), width=q, probe=joined.probe(self._seed))
        return plan, plan.begun(start)

    def _krylov(self, start: Subspace) -> Krylov:
        return Krylov(
            start,
            self.n_components,
            self._tolerance(),
            self.max_iter,
            self._scale(),
            may_round=self._kernel.is_bounded,
        )

    def _keep(self, found: Subspace, *, is_final: bool = True) -> None:
        """Set the fitted attributes from a subspace."""
        q, values = self.n_components, found.values
        self._known = known_of(found, q)
        vectors, eigenvalues = found.closed, found.closed_values
        if not vectors.shape[1]:
            vectors, eigenvalues = times(found.basis, found.vectors[:, :q]), values[:q]
        self.components_ = np.ascontiguousarray((vectors * signs_of(vectors)).T)
        self._row_sums = found.row_sums
        self.eigenvalues_ = eigenvalues.copy()
        self.residuals_ = found.residuals
        self.n_iter_ = found.n_products
        self._describe()
        lowest = float(values[-1])
        is_exact = self.dtype == "float64" and not self._kernel.is_bounded
        rounding = _ROUNDING if is_exact else _SINGLE_ROUNDING
        if lowest < -max(_NEGATIVE * abs(values[0]), rounding * self._scale()):
            warnings.warn(
                f"The kernel has negative eigenvalues, down to {lowest:.6g} (the largest is "
                f"{values[0]:.6g}): it is no product of features. Components with negative "
                "eigenvalues have no coordinates.",
                IndefiniteKernelWarning,
                stacklevel=4,
            )
        allowed = self._tolerance() * max(float(values[0]), 0.0)
        if is_final and self.residuals_.max() > max(allowed, _ROUNDING * self._scale()):
            warnings.warn(
                f"Residuals are up to {self.residuals_.max():.3g} after {self.n_iter_} products; "
                f"{allowed:.3g} was asked for. {self._remedy()}",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _remedy(self) -> str:
        hint = "Raise max_iter or the tolerance."
        if self.solver == "em" and self.sigma2 > 0:
            least = len(self._row_sums) * float(self.sigma2)
            hint += f" EM drives components below N sigma2 = {least:.3g} to zero."
        return hint

    def _describe(self) -> None:
        """Set what follows from eigenvalues and row sums: noise, likelihood, weights."""
        n_rows = len(self._row_sums)
        diagonal = self._diagonal(self._rows)
        trace = float(diagonal.sum() - self._row_sums.sum() / n_rows)
        n_dimensions = n_rows - 1
        if self._kernel.is_product:
            n_dimensions = min(n_dimensions, self.n_features_in_)
        self.noise_variance_, self.log_likelihood_ = _likelihood(
            self.eigenvalues_, trace, n_rows, n_dimensions, float(self.sigma2)
        )
        self._landmarks = self._make_landmarks()

    def _make_landmarks(self) -> Landmarks:
        lengths = self._lengths()
        weights = self.components_.T / np.where(lengths > 0, lengths, np.inf)
        means = self._row_sums / len(self._row_sums)
        return Landmarks(self._rows, weights, means, self._kernel, self.dtype, self._middle)

    def _coordinates(self) -> Doubles:
        scores: Doubles = self.components_.T * self._lengths()
        return scores

    def _lengths(self) -> Doubles:
        """Return the square roots of the eigenvalues; 0 for those that are zero or below."""
        values = self.eigenvalues_
        has_direction = values > _ZERO * max(float(values[0]), 1e-300)
        lengths: Doubles = np.sqrt(np.where(has_direction, values, 0.0))
        return lengths

    # ---- projecting -----------------------------------------------------------------------

    def transform(self, X: Any) -> Doubles:
        """Return the coordinates of rows, shape (n_rows, n_components)."""
        matrix = self._new_rows(X, "transform")
        parts = map_blocks(
            _checked_projection, matrix, self._landmarks, stage="projecting the rows"
        )
        return np.concatenate(list(parts))

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file, complete or not at all.

        Read it back with :func:`distclust.load`. The training rows are part of it.
        """
        check_is_fitted(self, "components_")
        from distclust.projections.persistence import save_kernel_pca

        save_kernel_pca(self, path)

    # ---- the crew -------------------------------------------------------------------------

    def close(self) -> None:
        """Let the crew and its tiles go; the model stays as it is."""
        self.__dict__.pop("_tiles", None)
        kept = self.__dict__.pop("_kept_crew", None)
        if kept is not None:
            kept.finalizer()

    @contextlib.contextmanager
    def _working_crew(self, role: KernelProducts, vault: Vault | None) -> Iterator[Crew]:
        """Give the crew of this model a role; a new crew if it has none here and now."""
        with contextlib.ExitStack() as stack:
            if vault is None:
                prints = partial(self._fingerprint, role.rows)
                vault = stack.enter_context(passing_vault(type(self).__name__, prints))
            kept: _KeptCrew | None = self.__dict__.get("_kept_crew")
            n_members = n_shards(role.rows.shape[0])
            if kept is not None and kept.client() is not current_client():
                self.close()
                kept = None
            if kept is None:
                crew = Crew(role, n_members, name="kernel PCA", vault=vault)
                self._kept_crew = kept = _KeptCrew(self, crew)
            else:
                kept.crew.assign(role, n_members, vault)
            try:
                yield kept.crew
            except BaseException:
                self.close()
                raise

    def _role(self) -> KernelProducts:
        budget = self.memory_budget
        n_bytes = None if budget == "auto" else check_bytes(budget, "KernelPCA: memory_budget")
        return KernelProducts(self._rows, self._kernel, self.dtype, self._middle, n_bytes)

    def _fingerprint(self, rows: RowArray) -> str:
        """Return what a fit depends on, as a checksum."""
        method = (self.solver, self.sigma2, self.tolerance, self.max_iter)
        settings = (self._kernel, self.dtype, self.n_components, self._seed, *method)
        return checksum(fingerprint_of(rows).encode(), repr(settings).encode()).hex()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        for name in ("_kept_crew", "_tiles"):
            state.pop(name, None)
        return state

    # ---- small parts ----------------------------------------------------------------------

    def _preparation(self) -> Preparation:
        return Preparation(self._kernel, self.dtype, self._middle)

    def _tiles_of(self, rows: RowArray) -> list[Tile]:
        """Return the rows of this model in tiles; those that are whole are prepared only once."""
        self._tiles = self._preparation().tiles(rows, self.__dict__.get("_tiles", ()))
        return self._tiles

    def _scale(self) -> float:
        """Return the size that eigenvalues could have: N times a value of the kernel."""
        largest = float(np.abs(self._diagonal(self._rows[:_LOOKED_AT])).max())
        return float(self._rows.shape[0] * max(largest, 1e-300))

    def _diagonal(self, rows: RowArray) -> Doubles:
        """Return κ(x, x) of rows as they are multiplied: moved to the middle, if they are."""
        is_moved = self._middle is not None and not self._kernel.ignores_shifts
        return self._kernel.diagonal(rows - self._middle if is_moved else rows)

    def _tolerance(self) -> float:
        return max(float(self.tolerance), 2e-6 if self.dtype == "float32" else 1e-14)

    def _resolved_kernel(self, n_features: int, where: str) -> Kernel:
        name = self.kernel
        if callable(name):
            return Kernel(name_of(name, f"{where}: kernel"))
        gamma = 1.0 / n_features if self.gamma is None else float(self.gamma)
        return Kernel(str(name), gamma, int(self.degree), float(self.coef0))

    def _check_parameters(self, shape: tuple[int, int], where: str) -> None:
        n_rows, _ = shape
        q = check_integer(self.n_components, f"{where}: n_components", at_least=1)
        if q > n_rows - 1:
            raise InputError(
                where,
                f"at least n_components + 1 = {q + 1} rows",
                f"n_samples = {n_rows}",
                "Pass more rows, or ask for fewer components.",
            )
        if not callable(self.kernel):
            check_choice(self.kernel, f"{where}: kernel", NAMED_KERNELS)
        if self.gamma is not None:
            check_real(self.gamma, f"{where}: gamma", above=0)
        check_real(self.sigma2, f"{where}: sigma2", at_least=0)
        check_real(self.tolerance, f"{where}: tolerance", above=0)
        check_choice(self.solver, f"{where}: solver", ("auto", "em", "krylov"))
        check_choice(self.dtype, f"{where}: dtype", ("float64", "float32"))
        check_integer(self.degree, f"{where}: degree", at_least=1)
        check_real(self.coef0, f"{where}: coef0")
        check_integer(self.max_iter, f"{where}: max_iter", at_least=1)
        if self.memory_budget != "auto":
            check_bytes(self.memory_budget, f"{where}: memory_budget")

    def _check_same_components(self, where: str) -> None:
        if self.n_components != len(self.eigenvalues_):
            expected = f"n_components={len(self.eigenvalues_)}, as fitted"
            raise InputError(where, expected, self.n_components, "Fit all rows again.")

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class _KeptCrew:
    """A crew that ends with its model."""

    def __init__(self, model: KernelPCA, crew: Crew) -> None:
        self.crew = crew
        client = current_client()
        self.client: Any = (lambda: None) if client is None else weakref.ref(client)
        self.finalizer = weakref.finalize(model, crew.close)


def _likelihood(
    eigenvalues: Doubles, trace: float, n_rows: int, n_dimensions: int, sigma2: float
) -> tuple[float, float]:
    """Return noise variance and log-likelihood of PPCA in the span of the features (5.2)."""
    variances = np.maximum(eigenvalues, 0.0) / n_rows
    total = max(trace / n_rows, float(variances.sum()))
    n_left = n_dimensions - len(variances)
    noise = sigma2
    if sigma2 == 0.0:
        noise = (total - float(variances.sum())) / n_left if n_left > 0 else 0.0
    if noise <= 0.0 or n_dimensions < 1:
        return noise, math.inf  # no noise at all: the density has no bound
    kept = variances[variances > noise]
    n_noise = n_dimensions - len(kept)
    log_likelihood = (
        -0.5
        * n_rows
        * (
            n_dimensions * math.log(2.0 * math.pi)
            + float(np.log(kept).sum())
            + n_noise * math.log(noise)
            + len(kept)
            + (total - float(kept.sum())) / noise
        )
    )
    return noise, log_likelihood


# ---- rows --------------------------------------------------------------------------------------


def _held(matrix: Matrix, n_components: int, where: str) -> RowArray:
    """Return all rows in memory, if there is room for them and for what is made of them."""
    import psutil

    n_rows, n_features = matrix.shape
    columns = 40 * max(int(n_components), 10) + (0 if matrix.is_sparse else n_features)
    needed = 8.0 * n_rows * columns
    free = _SHARE_OF_MEMORY * psutil.virtual_memory().available
    if needed > free:
        raise CapacityError(
            where,
            f"room for {needed / 1e9:,.1f} GB ({n_rows:,} rows, {n_components} components)",
            f"{free / 1e9:,.1f} GB that may be used",
            "Ask for fewer components, or fit a sample and transform the rest.",
        )
    rows = held_rows(matrix)
    _check_finite(rows, where)
    return rows


def _check_finite(rows: RowArray, where: str, first_row: int = 0) -> None:
    if is_sparse(rows):
        return  # a matrix holds only finite sparse values
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise InputError(
            f"{where}: row {first_row + int(bad.argmax())}",
            "finite numbers",
            "NaN or infinity",
            "Fill in what is missing (PPCA.impute can), or leave the row out.",
        )


def _checked_projection(block: Any, start: int, landmarks: Landmarks) -> Doubles:
    _check_finite(block, "KernelPCA.transform", start)
    return project_block(block, start, landmarks)


def _middle_of(rows: RowArray, kernel: Kernel) -> Any:
    """Return what is subtracted from rows: it makes no difference, but for rounding.

    Distances do not change, and dot products by what centring takes away.
    """
    if is_sparse(rows) or not (kernel.ignores_shifts or kernel.name == "linear"):
        return None
    return rows.mean(axis=0)
