"""Probabilistic PCA by EM: plain functions from a model and statistics to a better model.

Rows come in as statistics: products with the present loadings where nothing is missing, sums
of posteriors where something is. Whoever gathers them (a Gram matrix here, passes over blocks
elsewhere) leaves the algebra alone.

Every step ends with the parameter-expanded part of EM (Liu, Rubin and Wu, 1998): the latent
covariance, which a step estimates anyway, goes into the loadings. It keeps the fixed points and
the rise of the likelihood. Without it the lengths of the loadings need about λ₁ / 2σ²
iterations, thousands where the noise is small; with it the loadings go as subspace iteration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from distclust.seeding import generator

Floats = npt.NDArray[np.float64]

NOISE_FLOOR = 1e-8  # of the mean variance of a column
LOG_2_PI = math.log(2.0 * math.pi)

_START_SHARE = 0.5  # of the variance that is noise at the start


@dataclass(frozen=True, eq=False)
class Model:
    """A Gaussian of low rank: ``x = W z + μ + ε``.

    Attributes
    ----------
    mean
        μ, shape (n_features,).
    loadings
        W, shape (n_features, n_components).
    noise
        σ², the variance of ε in every column.
    """

    mean: Floats
    loadings: Floats
    noise: float

    @property
    def n_components(self) -> int:
        """Number of latent dimensions."""
        return int(self.loadings.shape[1])


@dataclass(frozen=True)
class NoiseRule:
    """How the noise follows from its residual: learned with a floor, or fixed."""

    fixed: float | None
    floor: float

    def __call__(self, residual: float) -> float:
        """Return the noise for a mean squared residual."""
        return max(residual, self.floor) if self.fixed is None else self.fixed


class Expectation(Protocol):
    """What the rows say about a model: its likelihood, and the way to a better one."""

    @property
    def log_likelihood(self) -> float:
        """Of all observed values under the model."""

    def maximise(self, rule: NoiseRule) -> Model:
        """Return a model that is at least as likely."""


@dataclass(frozen=True, eq=False)
class Ascent:
    """Where EM ended.

    Attributes
    ----------
    model
        The most likely model that was met.
    path
        Its log-likelihood at the start and after every iteration, shape (n_iter + 1,).
    last_gain
        What the last iteration added.
    converged
        Whether that was below the tolerance.
    """

    model: Model
    path: Floats
    last_gain: float
    converged: bool


def starting_model(
    mean: Floats, mean_variance: float, n_components: int, rule: NoiseRule, seed: int
) -> Model:
    """Return random loadings that explain about half of the variance."""
    noise = rule(_START_SHARE * mean_variance)
    drawn = generator(seed, "ppca").standard_normal((len(mean), n_components))
    scale = math.sqrt((1.0 - _START_SHARE) * mean_variance / n_components)
    return Model(mean, scale * drawn, noise)


def climb(
    model: Model,
    expect: Callable[[Model], Expectation],
    rule: NoiseRule,
    enough: Callable[[float, float], bool],
    max_iter: int,
    report: Callable[[float], object],
) -> Ascent:
    """Run EM until an iteration gains too little.

    Parameters
    ----------
    model
        Where to start.
    expect
        Asks the rows about a model.
    rule
        How the noise is found.
    enough
        Whether a gain in log-likelihood, and what it is now, are reason to stop.
    max_iter
        Iterations at most.
    report
        Told the log-likelihood after every iteration.
    """
    found = expect(model)
    path = [found.log_likelihood]
    gain = math.inf
    for _ in range(max_iter):
        candidate = found.maximise(rule)
        found = expect(candidate)
        gain = found.log_likelihood - path[-1]
        if gain <= 0.0:  # a rise within rounding: the model before is as good
            return Ascent(model, np.array(path), gain, converged=True)
        model = candidate
        path.append(found.log_likelihood)
        report(path[-1])
        if enough(gain, path[-1]):
            return Ascent(model, np.array(path), gain, converged=True)
    return Ascent(model, np.array(path), gain, converged=False)


# ---- nothing is missing -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Complete:
    """Complete rows under a model; the mean is the mean of the rows.

    Attributes
    ----------
    model
        The model.
    product
        ``S W`` with the covariance S of the rows, shape (n_features, n_components).
    trace
        Trace of S.
    n_rows
        Number of rows.
    """

    model: Model
    product: Floats
    trace: float
    n_rows: int

    @property
    def log_likelihood(self) -> float:
        """−N/2 {M ln 2π + (M − q) ln σ² + ln|M_| + [tr S − tr(M_⁻¹ WᵀSW)] / σ²}."""
        model, (n_features, q) = self.model, self.product.shape
        factor = inner_factor(model)
        explained = float(np.trace(cho_solve(factor, self._inner)))
        log_det = 2.0 * float(np.log(np.diagonal(factor[0])).sum())
        total = n_features * LOG_2_PI + (n_features - q) * math.log(model.noise) + log_det
        return float(-0.5 * self.n_rows * (total + (self.trace - explained) / model.noise))

    def maximise(self, rule: NoiseRule) -> Model:
        """Return the next model, its latent covariance put into the loadings."""
        plain, covariance = self.plain_step(rule)
        return replace(plain, loadings=expanded(plain.loadings, covariance))

    def plain_step(self, rule: NoiseRule) -> tuple[Model, Floats]:
        """Return the next model of plain EM (noise: 5.10), and the latent covariance C / N."""
        model = self.model
        inverse = cho_solve(inner_factor(model), np.eye(model.n_components))
        with_latent = self.product @ inverse  # XᵀZ / N
        covariance = symmetric(model.noise * inverse + inverse @ self._inner @ inverse)
        loadings = cho_solve(cho_factor(covariance), with_latent.T).T
        residual = self.trace - float(np.sum(loadings * with_latent))
        noise = rule(residual / len(loadings))
        return Model(model.mean, np.ascontiguousarray(loadings), noise), covariance

    @property
    def _inner(self) -> Floats:
        return symmetric(self.model.loadings.T @ self.product)


def expanded(loadings: Floats, covariance: Floats) -> Floats:
    """Return loadings for a standard latent from those for a latent with `covariance`.

    Rotated to orthogonal columns: ``M_`` is then diagonal up to rounding, and the likelihood
    keeps its digits however small the noise is beside the longest axis.
    """
    vectors, lengths, _ = np.linalg.svd(
        loadings @ np.linalg.cholesky(covariance), full_matrices=False
    )
    return np.ascontiguousarray(vectors * lengths)


def inner_factor(model: Model) -> tuple[Floats, bool]:
    """Return the Cholesky factor of ``M_ = WᵀW + σ²I``, as `cho_solve` takes it."""
    inner = model.loadings.T @ model.loadings
    inner[np.diag_indices_from(inner)] += model.noise
    factor: tuple[Floats, bool] = cho_factor(inner)
    return factor


def symmetric(matrix: Floats) -> Floats:
    """Return the symmetric part, which rounding took from a symmetric matrix."""
    half: Floats = 0.5 * (matrix + matrix.T)
    return half


# ---- values are missing -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Posteriors:
    """Sums over rows of what a model makes of them; sums of parts add up.

    With ``ẑ = [z, 1]``, rows count in the sums of a column where they are observed in it.

    Attributes
    ----------
    log_density
        Log-likelihood of the observed values.
    latent
        Upper triangle of Σ E[ẑẑᵀ] over rows that have any value, shape (k,).
    columns
        The same for every column, shape (n_features, k).
    targets
        Σ y E[ẑ] for every column, y counted from `Partial.origin`, shape
        (n_features, n_components + 1).
    """

    log_density: float
    latent: Floats
    columns: Floats
    targets: Floats

    def __add__(self, later: Posteriors) -> Self:
        return type(self)(
            self.log_density + later.log_density,
            self.latent + later.latent,
            self.columns + later.columns,
            self.targets + later.targets,
        )


@dataclass(frozen=True, eq=False)
class Partial:
    """Rows with missing values under a model.

    Attributes
    ----------
    posteriors
        What the model makes of the rows.
    origin
        Point from which values are counted, near the mean, shape (n_features,).
    squares
        Σ y² over all observed values.
    n_values
        Number of observed values.
    """

    posteriors: Posteriors
    origin: Floats
    squares: float
    n_values: int

    @property
    def log_likelihood(self) -> float:
        """Of the observed values."""
        return self.posteriors.log_density

    def maximise(self, rule: NoiseRule) -> Model:
        """Return the next model: a regression of every column on the latent means.

        The mean is learned with the loadings, as one more column of them; the sample mean is
        not the most likely one where values are missing.
        """
        sums, q = self.posteriors, self.posteriors.targets.shape[1] - 1
        moments = unpacked(sums.columns, q + 1)
        solved = np.linalg.solve(moments, sums.targets[:, :, None])
        both: Floats = np.asarray(solved[:, :, 0], np.float64)
        residual = self.squares - float(np.sum(both * sums.targets))
        loadings, offset = both[:, :q], both[:, q]
        total = unpacked(sums.latent[None], q + 1)[0]
        centre = total[:q, q] / total[q, q]
        covariance = total[:q, :q] / total[q, q] - np.outer(centre, centre)
        return Model(
            self.origin + offset + loadings @ centre,
            expanded(loadings, symmetric(covariance)),
            rule(residual / self.n_values),
        )


def packed_outer(rows: Floats) -> Floats:
    """Return the upper triangle of the outer product of every row with itself, (n, k)."""
    first, second = np.triu_indices(rows.shape[1])
    return np.asarray(rows[:, first] * rows[:, second])


def unpacked(packed: Floats, size: int) -> Floats:
    """Return symmetric matrices from their upper triangles, shape (n, size, size)."""
    first, second = np.triu_indices(size)
    matrices = np.empty((len(packed), size, size))
    matrices[:, first, second] = packed
    matrices[:, second, first] = packed
    return matrices


# ---- the end ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Axes:
    """The rotation of a model whose axes are orthogonal and ordered.

    Attributes
    ----------
    components
        Unit vectors, shape (n_components, n_features); the entry of largest modulus is
        positive, the first of them on ties.
    variances
        Variance along each, descending: ``λ = |w|² + σ²``.
    """

    components: Floats
    variances: Floats


def ordered_axes(model: Model) -> Axes:
    """Rotate the loadings by the eigenvectors of ``WᵀW``."""
    vectors, lengths, _ = np.linalg.svd(model.loadings, full_matrices=False)
    return Axes(with_signs(vectors.T), lengths**2 + model.noise)


def with_signs(components: Floats) -> Floats:
    """Make the entry of largest modulus of every row positive, the first one on ties."""
    largest = np.abs(components).argmax(axis=1)
    signs = np.where(components[np.arange(len(components)), largest] < 0.0, -1.0, 1.0)
    return np.ascontiguousarray(components * signs[:, None])


def model_of(mean: Floats, axes: Axes, noise: float) -> Model:
    """Return the model with ``W = U (Λ − σ²)^½`` (5.3)."""
    lengths = np.sqrt(np.maximum(axes.variances - noise, 0.0))
    return Model(mean, np.ascontiguousarray(axes.components.T * lengths), noise)
