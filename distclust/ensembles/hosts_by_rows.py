r"""EM and variational Bayes of rows that are on hosts: all bases of some rows each.

See `hosts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from distclust.engine import Crew, Plan, Vault
from distclust.ensembles.bayesian_ensemble import (
    DEFAULT_VARIATIONAL,
    BayesianFit,
    VariationalOptions,
    expected_log_memberships,
    first_gamma,
    fitted_prior,
    memberships_of,
    prior_of,
)
from distclust.ensembles.hosts import (
    NOTHING,
    Climb,
    HostRole,
    Part,
    Place,
    bayesian_fit,
    check_parts,
    counts_of,
    mixture_fit,
    random_memberships,
)
from distclust.ensembles.label_rows import Array, Floats, LabelRows, normalised_by_base
from distclust.ensembles.multinomial_mixture import (
    DEFAULT_EM,
    EMOptions,
    MixtureFit,
    expected_counts,
    log_prior,
)

# ---- EM by rows -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Parameters:
    """An order: parameters for a step.

    Attributes
    ----------
    shares, theta
        See `Climb`.
    step
        -1: begin with memberships drawn at random; 0: a step; 1: tell the memberships.
    """

    shares: Floats
    theta: Floats
    step: int


@dataclass(frozen=True, eq=False)
class HostRows:
    """The state of a host of rows: Dirichlet parameters of its rows, and those before them."""

    gamma: Floats
    previous: Floats


@dataclass(frozen=True, eq=False)
class Expected:
    """What a host's rows add to the M step.

    Attributes
    ----------
    counts, sizes
        Expected counts (n_cells, K), and sizes or sums of E log pi (K,).
    objective
        The part of these rows.
    n_objects
        Objects of this host.
    memberships
        Of its rows, if they were asked for.
    """

    counts: Floats
    sizes: Floats
    objective: float
    n_objects: float
    memberships: Floats


@dataclass(frozen=True, eq=False)
class MixtureRows(HostRole):
    """Hosts of EM that hold rows."""

    parts: tuple[Part, ...]
    n_labels: Array
    seed: int

    state_type = HostRows

    def begin(self, member: int) -> HostRows:
        """Return nothing: responsibilities are found anew in each step."""
        return HostRows(NOTHING, NOTHING)

    def advance(
        self, place: Place, member: int, state: HostRows, order: Parameters
    ) -> tuple[HostRows, Expected]:
        """Do the E step of these rows."""
        labels = place.labels_of_bases(member, self.n_labels)
        if order.step < 0:
            first = random_memberships(labels.n_rows, len(order.shares), self.seed, member)
            counts, sizes, objective = counts_of(labels, first), labels.weights @ first, 0.0
        else:
            counts, sizes, objective = expected_counts(labels, order.shares, order.theta)
        return state, Expected(counts, sizes, objective, labels.n_objects, NOTHING)


@dataclass(frozen=True, eq=False)
class MixtureByRows(Plan[Climb]):
    """EM whose rows are on hosts."""

    n_labels: Array
    n_components: int
    options: EMOptions

    state_type = Climb

    def begin(self) -> Climb:
        """Return no parameters yet."""
        shares = np.full(self.n_components, 1.0 / self.n_components)
        return Climb(NOTHING, shares, NOTHING, np.empty(0))

    def order(self, state: Climb) -> Parameters | None:
        """Return the parameters, or None at the end."""
        return None if state.is_over else Parameters(state.shares, state.theta, state.step)

    def absorb(self, state: Climb, reports: Sequence[Expected]) -> Climb:
        """Add up the counts, in the order of hosts, and do the M step."""
        if state.step == 0:
            objective = sum(report.objective for report in reports)
            objective += log_prior(state.theta, self.options.epsilon)
            n_objects = sum(report.n_objects for report in reports)
            state = state.noted(objective, self.options, n_objects)
            if state.is_over:
                return state
        sizes = np.sum([report.sizes for report in reports], axis=0)
        theta = _summed_tables(reports, self.n_labels, self.options.epsilon)
        return replace(state, shares=sizes / sizes.sum(), theta=theta, step=0)


def fit_mixture_by_rows(
    parts: Sequence[Part],
    n_labels: Array,
    n_components: int,
    *,
    seed: int = 0,
    options: EMOptions = DEFAULT_EM,
    vault: Vault | None = None,
) -> MixtureFit:
    """Fit a mixture of multinomials to rows that are on hosts.

    Parameters
    ----------
    parts
        All bases of some rows, for each host.
    n_labels
        Labels of each base, the same on all hosts.
    n_components
        K.
    seed
        Of the memberships from which EM starts.
    options
        How EM is run.
    vault
        Where checkpoints go.
    """
    check_parts(parts, n_components)
    plan = MixtureByRows(np.asarray(n_labels, np.int64), n_components, options)
    role = MixtureRows(tuple(parts), plan.n_labels, seed)
    with Crew(role, len(parts), name="mixture by rows", vault=vault) as crew:
        return mixture_fit(crew.follow(plan), options)


# ---- variational Bayes by rows ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BayesianRows(HostRole):
    """Hosts of variational Bayes that hold rows and their Dirichlet parameters."""

    parts: tuple[Part, ...]
    n_labels: Array
    seed: int
    inner: int

    state_type = HostRows

    def begin(self, member: int) -> HostRows:
        """Return nothing: the first order says how many clusters there are."""
        return HostRows(NOTHING, NOTHING)

    def advance(
        self, place: Place, member: int, state: HostRows, order: Parameters
    ) -> tuple[HostRows, Expected]:
        """Do passes over the memberships of these rows."""
        labels = place.labels_of_bases(member, self.n_labels)
        n, nothing = labels.n_objects, np.empty(0)
        if order.step > 0:
            return state, Expected(NOTHING, nothing, 0.0, n, state.previous)
        if order.step < 0:
            first = random_memberships(labels.n_rows, len(order.shares), self.seed, member)
            gamma = first_gamma(labels.n_rows, labels.n_bases, order.shares)
            report = Expected(counts_of(labels, first), nothing, 0.0, n, NOTHING)
            return HostRows(gamma, gamma), report
        gamma, counts, bound = np.empty_like(state.gamma), np.zeros_like(order.theta), 0.0
        for rows, block in labels.blocks():
            found = memberships_of(block, state.gamma[rows], order.theta, order.shares, self.inner)
            gamma[rows] = found.gamma
            counts += found.counts
            bound += found.bound
        log_sums, _ = expected_log_memberships(labels.weights, gamma)
        return HostRows(gamma, state.gamma), Expected(counts, log_sums, bound, n, NOTHING)


@dataclass(frozen=True, eq=False)
class BayesianByRows(Plan[Climb]):
    """Variational Bayes whose rows are on hosts; the last order asks for memberships."""

    n_labels: Array
    prior: Floats
    options: VariationalOptions

    state_type = Climb

    def begin(self) -> Climb:
        """Return no parameters yet."""
        return Climb(NOTHING, self.prior, NOTHING, np.empty(0))

    def order(self, state: Climb) -> Parameters | None:
        """Return the parameters, or None at the end."""
        if state.is_over and len(state.memberships):
            return None
        return Parameters(state.shares, state.theta, 1 if state.is_over else state.step)

    def absorb(self, state: Climb, reports: Sequence[Expected]) -> Climb:
        """Add up the counts, in the order of hosts."""
        if state.is_over:
            told = np.vstack([report.memberships for report in reports])
            return replace(state, memberships=told)
        prior, n_objects = state.shares, sum(report.n_objects for report in reports)
        if state.step == 0:
            bound = sum(report.objective for report in reports)
            bound += log_prior(state.theta, self.options.epsilon)
            state = state.noted(bound, self.options, n_objects)
            if state.is_over:
                return state
            if self.options.learns_prior:
                log_sums = np.sum([report.sizes for report in reports], axis=0)
                prior = fitted_prior(prior, log_sums, n_objects)
        theta = _summed_tables(reports, self.n_labels, self.options.epsilon)
        return replace(state, shares=prior, theta=theta, step=0)


def fit_bayesian_by_rows(
    parts: Sequence[Part],
    n_labels: Array,
    n_components: int,
    *,
    prior: float | Array | None = None,
    seed: int = 0,
    options: VariationalOptions = DEFAULT_VARIATIONAL,
    vault: Vault | None = None,
) -> BayesianFit:
    """Fit a Bayesian cluster ensemble to rows that are on hosts; see `fit_mixture_by_rows`."""
    check_parts(parts, n_components)
    a = prior_of(prior, n_components)
    plan = BayesianByRows(np.asarray(n_labels, np.int64), a, options)
    role = BayesianRows(tuple(parts), plan.n_labels, seed, options.inner)
    with Crew(role, len(parts), name="Bayesian ensemble by rows", vault=vault) as crew:
        found = crew.follow(plan)
    return bayesian_fit(found, found.memberships, options)


def _summed_tables(reports: Sequence[Expected], n_labels: Array, epsilon: float) -> Floats:
    counts = np.sum([report.counts for report in reports], axis=0)
    shape = LabelRows(np.empty((0, len(n_labels)), np.int8), n_labels, np.empty(0))
    return normalised_by_base(counts + epsilon, shape)
