r"""BCE: Bayesian cluster ensembles, by variational Bayes or by Gibbs sampling.

An object is a mixture of consensus clusters, and each of its labels chooses one:

.. math:: \pi_n \sim Dir(a), \quad s_{nm} \sim \pi_n, \quad y_{nm} \sim \theta_{m s_{nm}}

for every label that is not missing. Membership is one indicator a label, unlike in the mixture
of multinomials and in the Dirichlet-process ensemble, which have one an object.

Variational parameters of an object follow from its labels alone, so the variational fit on
distinct rows with multiplicities is exact. The sampler draws indicators of every row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from scipy.special import gammaln, polygamma, psi

from distclust.engine import map_ordered
from distclust.ensembles._numerics import count_indicators, membership_pass, sweep_indicators
from distclust.ensembles.label_rows import (
    Array,
    Floats,
    Integers,
    LabelRows,
    normalised_by_base,
)
from distclust.ensembles.multinomial_mixture import begin as begin_mixture
from distclust.ensembles.multinomial_mixture import is_settled, log_prior
from distclust.errors import InputError
from distclust.mixtures.chains import Sampler
from distclust.seeding import generator
from distclust.validation import check_integer, check_real

STAGE = "Bayesian cluster ensemble"

_NEWTON_STEPS = 20
_HALVINGS = 30
_ROUNDING = 1e-13
_PREDICTIVE_DRAWS = 4096
_DRAWS_AT_ONCE = 256


# ---- variational Bayes ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class VariationalState:
    """Variational parameters, and the bound at those before them.

    Attributes
    ----------
    gamma
        Dirichlet parameters of the memberships, shape (n_rows, K).
    theta
        Probability of each label in each cluster, shape (n_cells, K).
    prior
        Dirichlet parameters a, shape (K,).
    bound
        Evidence lower bound (and the log prior of theta where there is smoothing) at the
        parameters from which these were computed. Minus infinity at the beginning.
    iteration
        Steps so far.
    """

    gamma: Floats
    theta: Floats
    prior: Floats
    bound: float = -np.inf
    iteration: int = 0


@dataclass(frozen=True, eq=False)
class BayesianFit:
    """A fitted ensemble.

    Attributes
    ----------
    gamma, theta, prior
        See `VariationalState`.
    bound
        Evidence lower bound of all objects.
    trace
        The bound at every iteration, the last one included.
    has_converged
        Whether the tolerance was reached.
    restart
        Which restart was the best.
    """

    gamma: Floats
    theta: Floats
    prior: Floats
    bound: float
    trace: Floats
    has_converged: bool
    restart: int = 0

    @property
    def memberships(self) -> Floats:
        """Mean memberships, shape (n_rows, K)."""
        found: Floats = self.gamma / self.gamma.sum(axis=1, keepdims=True)
        return found

    @property
    def labels(self) -> Integers:
        """The consensus: the cluster in which each row is most; the first of equals."""
        found: Integers = self.gamma.argmax(axis=1)
        return found


@dataclass(frozen=True)
class VariationalOptions:
    """How the bound is climbed.

    Attributes
    ----------
    max_iterations
        Steps at most.
    tolerance
        The climb ends when a step gains less than this for each object.
    epsilon
        Pseudo-count of every label; 0 is maximum likelihood.
    inner
        Passes over memberships in each step.
    learns_prior
        Whether a is fitted by Newton's method; otherwise it stays as given.
    """

    max_iterations: int = 500
    tolerance: float = 1e-6
    epsilon: float = 0.0
    inner: int = 2
    learns_prior: bool = False

    def __post_init__(self) -> None:
        check_integer(self.max_iterations, "max_iterations", at_least=1)
        check_real(self.tolerance, "tolerance", at_least=0.0)
        check_real(self.epsilon, "epsilon", at_least=0.0)
        check_integer(self.inner, "inner", at_least=1)


DEFAULT_VARIATIONAL = VariationalOptions()


def fit_bayesian_ensemble(
    codes: Array,
    n_labels: Array,
    n_components: int,
    *,
    weights: Array | None = None,
    prior: float | Array | None = None,
    n_restarts: int = 10,
    seed: int = 0,
    options: VariationalOptions = DEFAULT_VARIATIONAL,
) -> BayesianFit:
    """Fit by variational Bayes from several starts, each a task of its own; return the best.

    Parameters
    ----------
    codes, n_labels, weights
        See `LabelRows`.
    n_components
        K.
    prior
        Dirichlet parameters a, one number or one a cluster; None: 1 / K.
    n_restarts
        Starts; the first of equally good ones wins.
    seed
        Each restart has its own stream.
    options
        How the bound is climbed.
    """
    labels = LabelRows.of(codes, n_labels, weights)
    check_integer(n_components, "n_components", at_least=1)
    a = prior_of(prior, n_components)
    restarts = range(check_integer(n_restarts, "n_restarts", at_least=1))
    fits = map_ordered(fit_restart, restarts, labels, a, seed, options, stage=STAGE)
    return max(fits, key=lambda fit: fit.bound)


def fit_restart(
    restart: int, labels: LabelRows, prior: Floats, seed: int, options: VariationalOptions
) -> BayesianFit:
    """Fit from one start: that of a mixture of multinomials."""
    mixture = begin_mixture(labels, len(prior), generator(seed, "bayesian ensemble", restart))
    return climb(labels, start(labels, mixture.theta, prior), options, restart)


def start(labels: LabelRows, theta: Floats, prior: Floats) -> VariationalState:
    """Return a state with given distributions and indifferent memberships."""
    gamma = first_gamma(labels.n_rows, labels.n_bases, prior)
    return VariationalState(gamma, theta, prior)


def first_gamma(n_rows: int, n_bases: int, prior: Floats) -> Floats:
    """Return Dirichlet parameters of rows whose labels are spread over all clusters."""
    return np.tile(prior + n_bases / len(prior), (n_rows, 1))


def climb(
    labels: LabelRows, state: VariationalState, options: VariationalOptions, restart: int = 0
) -> BayesianFit:
    """Do steps until they gain little."""
    trace: list[float] = []
    has_converged = False
    for _ in range(options.max_iterations):
        following = advance(labels, state, options)
        trace.append(following.bound)
        has_converged = is_settled(trace, options.tolerance * labels.n_objects)
        if has_converged:
            break
        state = following
    else:
        trace.append(advance(labels, state, options).bound)
    bound = trace[-1] - log_prior(state.theta, options.epsilon)
    return BayesianFit(
        state.gamma, state.theta, state.prior, bound, np.array(trace), has_converged, restart
    )


def advance(
    labels: LabelRows, state: VariationalState, options: VariationalOptions
) -> VariationalState:
    """Do one step: the bound of the given parameters, and the next parameters.

    The indicators' part is optimal for the present memberships; memberships are then optimal
    for it, some passes long; labels' distributions follow from the last one.
    """
    gamma, theta = np.empty_like(state.gamma), np.zeros_like(state.theta)
    bound = log_prior(state.theta, options.epsilon)
    for rows, block in labels.blocks():
        found = memberships_of(block, state.gamma[rows], state.theta, state.prior, options.inner)
        gamma[rows] = found.gamma
        theta += found.counts
        bound += found.bound
    theta = normalised_by_base(theta + options.epsilon, labels)
    prior = state.prior
    if options.learns_prior:
        prior = fitted_prior(prior, *expected_log_memberships(labels.weights, gamma))
    return VariationalState(gamma, theta, prior, bound, state.iteration + 1)


@dataclass(frozen=True, eq=False)
class Passed:
    """What passes over some rows leave: memberships, counts, and the bound before them."""

    gamma: Floats
    counts: Floats
    bound: float


def memberships_of(
    labels: LabelRows, gamma: Floats, theta: Floats, prior: Floats, n_passes: int
) -> Passed:
    """Do passes over the memberships of some rows, from given ones."""
    bound = 0.0
    for step in range(n_passes):
        shares, offset = shares_of(gamma)
        sums, logs, counts = label_pass(labels, shares, theta)
        if step == 0:
            bound = float(labels.weights @ (logs + row_bounds(gamma, prior)))
            bound += float(labels.weights @ (offset * (labels.codes >= 0).sum(axis=1)))
        gamma = prior + sums
    return Passed(gamma, counts, bound)


def shares_of(gamma: Floats) -> tuple[Floats, Floats]:
    """Return exp(E log pi) of each row over its largest one, and the log of that.

    A membership that is nearly zero would vanish from all of them otherwise.
    """
    logs = expected_logs(gamma)
    top = logs.max(axis=1)
    return np.exp(logs - top[:, None]), top


def label_pass(labels: LabelRows, shares: Floats, theta: Floats) -> tuple[Floats, Floats, Floats]:
    """Return sums of phi by row, its log normalisers by row, and its sums by label."""
    sums = np.zeros_like(shares)
    logs = np.zeros(labels.n_rows)
    counts = np.zeros_like(theta)
    membership_pass(labels.codes, labels.offsets, labels.weights, shares, theta, sums, logs, counts)
    return sums, logs, counts


def row_bounds(gamma: Floats, prior: Floats) -> Floats:
    """Return the part of the bound that memberships have: minus the divergence from the prior."""
    logs = expected_logs(gamma)
    found: Floats = _log_dirichlet(prior) - _log_dirichlet(gamma) + ((prior - gamma) * logs).sum(1)
    return found


def expected_logs(gamma: Floats) -> Floats:
    """Return E log pi of each row."""
    found: Floats = psi(gamma) - psi(gamma.sum(axis=1, keepdims=True))
    return found


def expected_log_memberships(weights: Floats, gamma: Floats) -> tuple[Floats, float]:
    """Return what Newton's method for the prior needs: sums of E log pi, and of weights."""
    return weights @ expected_logs(gamma), float(weights.sum())


def fitted_prior(prior: Floats, log_sums: Floats, n_objects: float) -> Floats:
    """Return the Dirichlet parameters that make the expected memberships most likely.

    Newton's method; its matrix is diagonal plus a constant, so a step is linear in K. A step
    is halved until it gains.
    """
    for _ in range(_NEWTON_STEPS):
        total = prior.sum()
        slope = n_objects * (psi(total) - psi(prior)) + log_sums
        diagonal = -n_objects * polygamma(1, prior)
        constant = n_objects * polygamma(1, total)
        shift = (slope / diagonal).sum() / (1.0 / constant + (1.0 / diagonal).sum())
        step = -(slope - shift) / diagonal
        found = _gaining(prior, step, log_sums, n_objects)
        if found is prior or np.allclose(found, prior, rtol=1e-10, atol=0.0):
            return found
        prior = found
    return prior


def log_probabilities(labels: LabelRows, theta: Floats, prior: Floats, *, seed: int = 0) -> Floats:
    r"""Return log p of the labels of each row, as of an object that was never seen.

    .. math:: p(y) = \int Dir(\pi; a) \prod_m \sum_k \pi_k \theta_{m k y_m} d\pi,

    by draws from the prior that all rows share; they follow from the seed.
    """
    rng = generator(seed, "memberships")
    totals = np.zeros(labels.n_rows)
    for _ in range(_PREDICTIVE_DRAWS // _DRAWS_AT_ONCE):
        chances = rng.dirichlet(prior, size=_DRAWS_AT_ONCE) @ theta.T  # (draws, n_cells)
        for rows, block in labels.blocks():
            product = np.ones((block.n_rows, _DRAWS_AT_ONCE))
            for m in range(block.n_bases):
                seen = np.flatnonzero(block.codes[:, m] >= 0)
                cells = block.offsets[m] + block.codes[seen, m]
                product[seen] *= chances[:, cells].T
            totals[rows] += product.sum(axis=1)
    with np.errstate(divide="ignore"):
        found: Floats = np.log(totals / _PREDICTIVE_DRAWS)
    return found


def prior_of(value: float | Array | None, n_components: int) -> Floats:
    """Return Dirichlet parameters a, shape (n_components,)."""
    given = 1.0 / n_components if value is None else value
    found = np.array(np.broadcast_to(np.asarray(given, np.float64), (n_components,)))
    if not (np.isfinite(found) & (found > 0)).all():
        raise InputError("prior", "positive numbers", repr(value), "Pass for instance 0.5.")
    return found


def _log_dirichlet(parameters: Floats) -> Any:
    """Return the log normaliser of Dirichlet densities."""
    return gammaln(parameters.sum(-1)) - gammaln(parameters).sum(-1)


def _gaining(prior: Floats, step: Floats, log_sums: Floats, n_objects: float) -> Floats:
    def objective(a: Floats) -> float:
        return float(n_objects * _log_dirichlet(a) + (a - 1.0) @ log_sums)

    now = objective(prior)
    now -= _ROUNDING * abs(now)  # near the top gains are lost in rounding
    for _ in range(_HALVINGS):
        found = prior + step
        if (found > 0).all() and objective(found) > now:
            return found
        step = 0.5 * step
    return prior


# ---- Gibbs sampling ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class IndicatorState:
    """A state of the sampler.

    Attributes
    ----------
    indicators
        Cluster that each label chose, shape (n_rows, n_bases); 0 where there is no label.
    generator
        Of all that is random.
    sweep
        Sweeps so far.
    log_joint
        Log probability of labels and indicators.
    memberships
        Labels of each row in each cluster, shape (n_rows, K).
    """

    indicators: npt.NDArray[Any]
    generator: np.random.Generator
    sweep: int
    log_joint: float
    memberships: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class BayesianEnsembleSampler(Sampler[IndicatorState]):
    """Collapsed Gibbs sampling of indicators; memberships and distributions are integrated out.

    Attributes
    ----------
    labels_of_rows
        The labels; every row counts once.
    prior
        Dirichlet parameters a, shape (K,).
    smoothing
        Pseudo-count of every label.
    """

    labels_of_rows: LabelRows
    prior: Floats
    smoothing: float = 1.0

    state_type = IndicatorState
    scalar_names = ("log_joint", "n_clusters")

    @classmethod
    def of(
        cls,
        codes: Array,
        n_labels: Array,
        n_components: int,
        prior: float | Array | None = None,
        smoothing: float = 1.0,
    ) -> BayesianEnsembleSampler:
        """Return a sampler of plain arrays; see `fit_bayesian_ensemble`."""
        check_integer(n_components, "n_components", at_least=1)
        check_real(smoothing, "smoothing", above=0.0)
        labels = LabelRows.of(codes, n_labels)
        return cls(labels, prior_of(prior, n_components), float(smoothing))

    def begin(self, chain: int, generator: np.random.Generator) -> IndicatorState:
        """Return indicators drawn at random."""
        labels, n_components = self.labels_of_rows, len(self.prior)
        kind = np.int8 if n_components <= 127 else np.int32
        drawn = generator.integers(n_components, size=labels.codes.shape).astype(kind)
        drawn[labels.codes < 0] = 0
        state = IndicatorState(drawn, generator, 0, 0.0, np.empty((0, 0), np.int32))
        return self._told(state, *self._counts(drawn))

    def sweep(self, place: Any, state: IndicatorState) -> IndicatorState:
        """Draw every indicator anew. Counts are whole numbers, counted before each sweep."""
        labels = self.labels_of_rows
        uniforms = state.generator.random(labels.codes.shape)
        counts = self._counts(state.indicators)
        smoothing = np.full(labels.n_bases, self.smoothing)
        sweep_indicators(
            labels.codes,
            labels.offsets,
            self.prior,
            smoothing,
            smoothing * labels.n_labels,
            uniforms,
            state.indicators,
            *counts,
        )
        return self._told(replace(state, sweep=state.sweep + 1), *counts)

    def scalars(self, state: IndicatorState) -> Sequence[float]:
        """Return the log joint, and how many clusters some row is most in."""
        return state.log_joint, float(np.count_nonzero(np.bincount(self.labels(state))))

    def labels(self, state: IndicatorState) -> Integers:
        """Return the cluster that each row is most in; the first of equals."""
        found: Integers = (state.memberships + self.prior).argmax(axis=1)
        return found

    @property
    def n_items(self) -> int:
        """Rows."""
        return self.labels_of_rows.n_rows

    def theta(self, state: IndicatorState) -> Floats:
        """Return the mean distributions of labels given the indicators, shape (n_cells, K)."""
        _, per_cell, _ = self._counts(state.indicators)
        return normalised_by_base(per_cell + self.smoothing, self.labels_of_rows)

    def mean_memberships(self, state: IndicatorState) -> Floats:
        """Return the mean memberships given the indicators, shape (n_rows, K)."""
        counts = state.memberships + self.prior
        found: Floats = counts / counts.sum(axis=1, keepdims=True)
        return found

    def _counts(self, indicators: Array) -> tuple[Array, Array, Array]:
        labels, n_components = self.labels_of_rows, len(self.prior)
        per_row = np.zeros((labels.n_rows, n_components), np.int32)
        per_cell = np.zeros((labels.n_cells, n_components), np.int32)
        totals = np.zeros((labels.n_bases, n_components), np.int32)
        count_indicators(labels.codes, labels.offsets, indicators, per_row, per_cell, totals)
        return per_row, per_cell, totals

    def _told(
        self, state: IndicatorState, per_row: Array, per_cell: Array, totals: Array
    ) -> IndicatorState:
        joint = _log_marginals(per_row, self.prior)
        eta, n_labels = self.smoothing, self.labels_of_rows.n_labels[:, None]
        joint += float((gammaln(per_cell + eta) - math.lgamma(eta)).sum())
        joint += float((gammaln(eta * n_labels) - gammaln(totals + eta * n_labels)).sum())
        return replace(state, log_joint=joint, memberships=per_row)


def align(memberships: Array, reference: Array) -> Array:
    """Return memberships (n_rows, K) with clusters in the order that fits a reference best.

    Chains may swap the names of clusters: draws are aligned before they are averaged.
    """
    _, order = linear_sum_assignment(reference.T @ memberships, maximize=True)
    found: Array = memberships[:, order]
    return found


def _log_marginals(counts: Array, prior: Floats) -> float:
    """Return the log marginals of all rows of counts under a Dirichlet prior.

    Counts are at most the number of bases: how often each comes is all that matters.
    """
    found, top = 0.0, int(counts.max(initial=0))
    for value in range(1, top + 1):
        found += float((counts == value).sum(axis=0) @ (gammaln(value + prior) - gammaln(prior)))
    sizes = np.bincount(counts.sum(axis=1))
    total = float(prior.sum())
    return found + float(sizes @ (gammaln(total) - gammaln(np.arange(len(sizes)) + total)))
