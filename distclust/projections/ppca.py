"""Probabilistic PCA (Tipping and Bishop; thesis A, section 5.1) as an estimator."""

from __future__ import annotations

import os
import warnings
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse
from sklearn.utils.validation import check_is_fitted

from distclust import events
from distclust.engine import map_blocks, one_blas_thread, reduce_blocks
from distclust.errors import (
    CapacityError,
    ConstantColumnsWarning,
    ConvergenceWarning,
    InputError,
)
from distclust.projections.base import Projection
from distclust.projections.persistence import save_ppca
from distclust.projections.ppca_blocks import (
    Survey,
    density_block,
    expect_block,
    fill_block,
    multiply_block,
    project_block,
    rows_of,
    survey_block,
)
from distclust.projections.ppca_em import (
    NOISE_FLOOR,
    Ascent,
    Complete,
    Expectation,
    Floats,
    Model,
    NoiseRule,
    Partial,
    climb,
    model_of,
    ordered_axes,
    starting_model,
)
from distclust.seeding import check_seed
from distclust.store import Matrix
from distclust.validation import check_integer, check_real

_GRAM_FEATURES = 2_000  # up to here a Gram matrix is gathered, and EM reads no rows
_COVARIANCE_FEATURES = 10_000  # a matrix of 0.8 GB
_POSTERIOR_BYTES = 1e9  # of sums over rows with missing values
_LEAST_VARIANCE, _MOST_VARIANCE = 1e-200, 1e200  # beyond, squares lose their digits


class PPCA(Projection):
    r"""Probabilistic principal component analysis, by EM.

    Rows are :math:`x = W z + \mu + \varepsilon` with :math:`z \sim N(0, I)` and
    :math:`\varepsilon \sim N(0, \sigma^2 I)`: a Gaussian whose covariance
    :math:`W W^T + \sigma^2 I` has few directions of its own. It has a likelihood, so models
    can be compared, new rows scored and missing values filled in.

    Parameters
    ----------
    n_components
        Number of latent dimensions q, below min(rows - 1, features).
    noise_variance
        :math:`\sigma^2` if it is known; left out, it is learned. A component whose variance
        is not above it vanishes.
    tolerance
        EM stops when an iteration raises the log-likelihood by less than this share of it
        (or of the number of observed values, if that is larger: units of the data can make
        the log-likelihood zero).
    max_iter
        Iterations at most.
    random_state
        Seed of the loadings at the start.

    Attributes
    ----------
    components_
        Orthonormal directions of decreasing variance, shape (n_components, n_features). The
        entry of largest modulus is positive (the first one on ties).
    explained_variance_
        Variance along each, the eigenvalues :math:`\lambda_k = |w_k|^2 + \sigma^2`. Divided by
        the number of rows N, as likelihood has it, not by N - 1.
    loadings_
        :math:`W = U (\Lambda - \sigma^2 I)^{1/2}`, shape (n_features, n_components).
    noise_variance_
        :math:`\sigma^2`. Learned, it is at least 1e-8 of the mean variance of a column.
    mean_
        :math:`\mu`, shape (n_features,).
    log_likelihood_
        Log-likelihood of all observed values under the fitted model.
    log_likelihood_path_
        The same at the start and after every iteration; never falls.
    n_iter_
        Number of iterations.
    n_features_in_, feature_names_in_
        Number and names of the features of the fit.

    Notes
    -----
    With centred X, :math:`M = W^T W + \sigma^2 I` (q x q) and D features, an iteration is

    .. math::
        Z &= X W M^{-1}, \qquad C = N \sigma^2 M^{-1} + Z^T Z \\
        W &\leftarrow X^T Z C^{-1}, \qquad
        \sigma^2 \leftarrow [\|X\|^2 - \mathrm{tr}(W^T X^T Z)] / (D N) \quad (5.10) \\
        W &\leftarrow W (C / N)^{1/2}

    The last line is parameter expansion (Liu, Rubin and Wu, 1998): it has the same fixed points,
    :math:`W = U_q (\Lambda_q - \sigma^2 I)^{1/2} R` with :math:`\sigma^2` the mean of the
    discarded eigenvalues (5.3-5.4), and the likelihood rises as surely, in far fewer
    iterations where the noise is small. At the end the axes are rotated by the eigenvectors of
    :math:`W^T W`.

    Up to 2,000 features without missing values, one pass gathers the covariance and EM reads
    no more rows; otherwise an iteration is a pass over the blocks. NaN is a missing value: each
    row has its own posterior from the values it has, and the likelihood is that of the observed
    values. Sparse rows are neither centred nor made dense.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(200, 1)) * [3.0, 4.0, 0.0] + 0.1 * rng.normal(size=(200, 3))
    >>> model = PPCA(n_components=1, random_state=0).fit(rows)
    >>> model.components_.round(1).tolist()
    [[0.6, 0.8, 0.0]]
    >>> bool(abs(model.noise_variance_ - 0.01) < 0.001)
    True
    >>> model.impute([[6.0, np.nan, 0.0]]).round(0).tolist()
    [[6.0, 8.0, 0.0]]
    """

    components_: Floats
    explained_variance_: Floats
    loadings_: Floats
    noise_variance_: float
    mean_: Floats
    log_likelihood_: float
    log_likelihood_path_: Floats
    n_iter_: int

    def __init__(
        self,
        n_components: int = 2,
        *,
        noise_variance: float | None = None,
        tolerance: float = 1e-8,
        max_iter: int = 1000,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.noise_variance = noise_variance
        self.tolerance = tolerance
        self.max_iter = max_iter
        self.random_state = random_state

    # ---- fitting --------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn mean, loadings and noise.

        Parameters
        ----------
        X
            Rows: anything `as_matrix` takes, such as an array (NaN is missing), a sparse
            matrix, a table, a Dask array, or the path or URL of a store.
        y
            Ignored.

        Raises
        ------
        InputError
            For parameters or data that cannot be used.
        CapacityError
            If values are missing and there are too many features for so many components.
        """
        where = "PPCA.fit"
        n_components, tolerance, max_iter = self._check_parameters(where)
        seed = check_seed(self.random_state, f"{where}: random_state")
        matrix = self._training_rows(X, where)
        _check_size(n_components, matrix.shape[0], matrix.shape[1], where)
        survey = _look(matrix, n_components, where)
        rule = self._noise_rule(survey, where)
        ascent = _fit(matrix, survey, n_components, rule, seed, tolerance, max_iter)
        if not ascent.converged:
            warnings.warn(
                f"{where}: the log-likelihood still rose by {ascent.last_gain:.3g} in iteration "
                f"{max_iter}. Raise max_iter or tolerance.",
                ConvergenceWarning,
                stacklevel=2,
            )
        self._keep(ascent)
        return self

    def _check_parameters(self, where: str) -> tuple[int, float, int]:
        """Return the number of components, the tolerance and the most iterations, checked."""
        if self.noise_variance is not None:
            check_real(self.noise_variance, f"{where}: noise_variance", above=0.0)
        return (
            check_integer(self.n_components, f"{where}: n_components", at_least=1),
            check_real(self.tolerance, f"{where}: tolerance", at_least=0.0),
            check_integer(self.max_iter, f"{where}: max_iter", at_least=1),
        )

    def _noise_rule(self, survey: Survey, where: str) -> NoiseRule:
        floor = NOISE_FLOOR * _mean_variance(survey)
        if self.noise_variance is None:
            return NoiseRule(None, floor)
        # Below the floor the likelihood is nothing but rounding.
        fixed = check_real(self.noise_variance, f"{where}: noise_variance", at_least=floor)
        return NoiseRule(fixed, floor)

    def _keep(self, ascent: Ascent) -> None:
        with one_blas_thread:
            axes = ordered_axes(ascent.model)
        self.components_ = axes.components
        self.explained_variance_ = axes.variances
        self.noise_variance_ = float(ascent.model.noise)
        self.mean_ = ascent.model.mean
        self.loadings_ = model_of(self.mean_, axes, self.noise_variance_).loadings
        self.log_likelihood_path_ = ascent.path
        self.log_likelihood_ = float(ascent.path[-1])
        self.n_iter_ = len(ascent.path) - 1

    # ---- use ------------------------------------------------------------------------------

    def transform(self, X: Any) -> Floats:
        """Return the posterior mean E[z | x] of each row, shape (n_rows, n_components).

        From the values that a row has; zero for a row without any. Components shrink towards
        zero with the noise: :math:`(\\Lambda - \\sigma^2)^{1/2} \\Lambda^{-1} U^T (x - \\mu)`.
        """
        matrix = self._new_rows(X, "transform")
        parts = map_blocks(project_block, matrix, self._model(), stage="projecting")
        return np.concatenate(list(parts))

    def inverse_transform(self, X: Any) -> Floats:
        """Return ``W z + μ`` for latent positions z, shape (n_rows, n_features).

        Parameters
        ----------
        X
            Latent positions, shape (n_rows, n_components).
        """
        check_is_fitted(self)
        latent = np.asarray(X, dtype=np.float64)
        n_components = len(self.components_)
        if latent.ndim != 2 or latent.shape[1] != n_components:
            raise InputError(
                "PPCA.inverse_transform",
                f"shape (n_rows, {n_components})",
                f"shape {latent.shape}",
                "Pass what transform returned.",
            )
        if not len(latent):
            return np.empty((0, len(self.mean_)))
        with one_blas_thread:
            return rows_of(latent, self._model())

    def impute(self, X: Any) -> Any:
        """Return the rows with missing values replaced by their posterior mean.

        Dense rows come back as an array of float64, shape (n_rows, n_features); sparse ones,
        which have no missing values, as they are in a CSR array.
        """
        matrix = self._new_rows(X, "impute")
        parts: list[Any] = list(map_blocks(fill_block, matrix, self._model(), stage="filling in"))
        if matrix.is_sparse:
            return scipy.sparse.vstack(parts, format="csr")
        return np.concatenate(parts).astype(np.float64, copy=False)

    def score_samples(self, X: Any) -> Floats:
        """Return the log density of the observed values of each row, shape (n_rows,)."""
        matrix = self._new_rows(X, "score_samples")
        parts = map_blocks(density_block, matrix, self._model(), stage="scoring")
        return np.concatenate(list(parts))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log density of the rows."""
        return float(self.score_samples(X).mean())

    def get_covariance(self) -> Floats:
        """Return ``W Wᵀ + σ²I``, shape (n_features, n_features).

        Raises
        ------
        CapacityError
            For more than 10,000 features.
        """
        check_is_fitted(self)
        n_features = len(self.mean_)
        if n_features > _COVARIANCE_FEATURES:
            raise CapacityError(
                "PPCA.get_covariance",
                f"at most {_COVARIANCE_FEATURES:,} features",
                f"{n_features:,}: {8e-9 * n_features**2:,.1f} GB",
                "Use loadings_ and noise_variance_: the covariance is W W^T plus noise.",
            )
        with one_blas_thread:
            covariance = self.loadings_ @ self.loadings_.T
        covariance[np.diag_indices_from(covariance)] += self.noise_variance_
        return covariance

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file, complete or not at all.

        Read it back with :func:`distclust.load`.
        """
        check_is_fitted(self)
        save_ppca(self, path)

    def _model(self) -> Model:
        return Model(self.mean_, self.loadings_, self.noise_variance_)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        return tags


# ---- the driver: from blocks to EM ------------------------------------------------------------


def _look(matrix: Matrix, n_components: int, where: str) -> Survey:
    """Look at all rows once; refuse what has no answer."""
    with_scatter = matrix.shape[1] <= _GRAM_FEATURES
    survey: Survey = reduce_blocks(survey_block, matrix, with_scatter, stage="reading the rows")
    _check_columns(matrix, survey, where)
    _check_size(n_components, matrix.shape[0] - survey.n_empty, matrix.shape[1], where)
    _check_variance(survey, where)
    if survey.profile.has_missing:
        _check_capacity(matrix.shape[1], n_components, where)
    return survey


def _fit(
    matrix: Matrix,
    survey: Survey,
    n_components: int,
    rule: NoiseRule,
    seed: int,
    tolerance: float,
    max_iter: int,
) -> Ascent:
    n_values = int(survey.n_observed.sum())

    def enough(gain: float, log_likelihood: float) -> bool:
        return gain <= tolerance * max(abs(log_likelihood), n_values)

    def expect(model: Model) -> Expectation:
        return _expect(matrix, survey, model)

    start = starting_model(survey.mean, _mean_variance(survey), n_components, rule, seed)
    with events.stage("EM", max_iter) as progress, one_blas_thread:

        def report(log_likelihood: float) -> None:
            progress.advance(log_likelihood=log_likelihood)

        return climb(start, expect, rule, enough, max_iter, report)


def _expect(matrix: Matrix, survey: Survey, model: Model) -> Expectation:
    """Ask the rows about a model: the covariance where it was gathered, else in a pass."""
    squares = float(survey.squares.sum())
    if survey.profile.has_missing:
        sums = reduce_blocks(expect_block, matrix, model, survey.mean)
        return Partial(sums, survey.mean, squares, int(survey.n_observed.sum()))
    if survey.scatter is not None:
        product = survey.scatter @ model.loadings
        squares = float(np.trace(survey.scatter))  # rounded as the products are
    else:
        product = reduce_blocks(multiply_block, matrix, model)
    n_rows = survey.profile.n_rows
    return Complete(model, product / n_rows, squares / n_rows, n_rows)


def _mean_variance(survey: Survey) -> float:
    return float(np.mean(survey.squares / survey.n_observed))


# ---- what is refused ----------------------------------------------------------------------------


def _check_size(n_components: int, n_rows: int, n_features: int, where: str) -> None:
    limit = min(n_rows - 1, n_features)
    if n_components >= limit:
        raise InputError(
            where,
            f"n_components below min(n_samples - 1, n_features) = {limit}",
            f"n_components = {n_components} with n_samples = {n_rows} rows that have values "
            f"and n_features = {n_features}",
            "Take fewer components, or more rows: something has to be left for the noise.",
        )


def _check_columns(matrix: Matrix, survey: Survey, where: str) -> None:
    """Refuse columns without values; say which never vary."""
    infinite = np.flatnonzero(survey.profile.any_infinite)
    if len(infinite):
        names, hint = _names(matrix, infinite), "Replace it by a finite number or NaN."
        raise InputError(where, "finite numbers or NaN", f"infinity in column {names}", hint)
    empty = np.flatnonzero(survey.n_observed == 0)
    if len(empty):
        hint = "Leave such columns out."
        got = f"none in {len(empty)} columns ({_names(matrix, empty)})"
        raise InputError(where, "at least one value in every column", got, hint)
    constant = np.flatnonzero(survey.profile.minimum == survey.profile.maximum)
    if len(constant) == matrix.shape[1]:
        hint = "There is no variance to explain."
        raise InputError(where, "at least one column that varies", "constant columns", hint)
    if len(constant):
        warnings.warn(
            f"{where}: {len(constant)} of {matrix.shape[1]} columns never vary "
            f"({_names(matrix, constant)}). They are kept, and lower the noise variance, which "
            "all columns share.",
            ConstantColumnsWarning,
            stacklevel=4,
        )


def _names(matrix: Matrix, columns: npt.NDArray[np.intp]) -> str:
    names = ", ".join(repr(matrix.columns[i].name) for i in columns[:5].tolist())
    return names + (f" and {len(columns) - 5} more" if len(columns) > 5 else "")


def _check_variance(survey: Survey, where: str) -> None:
    variance = _mean_variance(survey)
    if not _LEAST_VARIANCE < variance < _MOST_VARIANCE:
        raise InputError(
            where,
            f"a mean variance of the columns from {_LEAST_VARIANCE:g} to {_MOST_VARIANCE:g}",
            f"{variance:g}",
            "Scale the columns.",
        )


def _check_capacity(n_features: int, n_components: int, where: str) -> None:
    needed = 8.0 * n_features * (n_components + 1) * (n_components + 2) / 2
    if needed > _POSTERIOR_BYTES:
        raise CapacityError(
            where,
            f"at most {_POSTERIOR_BYTES / 1e9:g} GB of sums, since values are missing",
            f"{needed / 1e9:.1f} GB for {n_features:,} features and {n_components} components",
            "Take fewer components or features, or fill the missing values in first.",
        )
