r"""EM and variational Bayes of bases that are on hosts: some bases of all rows each.

See `hosts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from distclust.engine import Crew, Plan, Vault
from distclust.ensembles._numerics import add_label_logs
from distclust.ensembles.bayesian_ensemble import (
    DEFAULT_VARIATIONAL,
    BayesianFit,
    VariationalOptions,
    expected_log_memberships,
    first_gamma,
    fitted_prior,
    label_pass,
    prior_of,
    row_bounds,
    shares_of,
)
from distclust.ensembles.hosts import (
    NOTHING,
    Climb,
    HostRole,
    Part,
    Place,
    bayesian_fit,
    check_parts,
    mixture_fit,
    random_memberships,
    tables_of,
)
from distclust.ensembles.label_rows import Array, Floats, normalised_by_base
from distclust.ensembles.multinomial_mixture import (
    DEFAULT_EM,
    EMOptions,
    MixtureFit,
    log_prior,
    logs_of,
)
from distclust.errors import InputError


@dataclass(frozen=True, eq=False)
class HostTables:
    """The state of a host of columns: distributions of its labels, shape (its cells, K)."""

    theta: Floats


@dataclass(frozen=True, eq=False)
class SaidOfRows:
    """What a host's labels say of every row.

    Attributes
    ----------
    sums
        Shape (n_rows, K).
    theta
        Distributions of the host's labels by which it says so.
    objective
        Their part of what is climbed.
    """

    sums: Floats
    theta: Floats
    objective: float


# ---- EM by columns ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MixtureColumns(HostRole):
    """Hosts of EM: an order is memberships, a report the sums of log theta."""

    parts: tuple[Part, ...]
    epsilon: float

    state_type = HostTables

    def begin(self, member: int) -> HostTables:
        """Return no tables: the first order brings memberships."""
        return HostTables(NOTHING)

    def advance(
        self, place: Place, member: int, state: HostTables, order: Floats
    ) -> tuple[HostTables, SaidOfRows]:
        """Do the M step for these bases, and their part of the E step."""
        labels = place.labels_of_rows(member, len(order))
        theta = tables_of(labels, order, self.epsilon)
        sums = np.zeros_like(order)
        add_label_logs(labels.codes, labels.offsets, logs_of(theta), sums)
        return HostTables(theta), SaidOfRows(sums, theta, log_prior(theta, self.epsilon))


@dataclass(frozen=True, eq=False)
class MixtureByColumns(Plan[Climb]):
    """EM whose labels are on hosts."""

    memberships: Floats
    weights: Floats
    options: EMOptions

    state_type = Climb

    def begin(self) -> Climb:
        """Return the first memberships."""
        n_components = self.memberships.shape[1]
        shares = np.full(n_components, 1.0 / n_components)
        return Climb(self.memberships, shares, NOTHING, np.empty(0))

    def order(self, state: Climb) -> Floats | None:
        """Return the memberships, or None at the end."""
        return None if state.is_over else state.memberships

    def absorb(self, state: Climb, reports: Sequence[SaidOfRows]) -> Climb:
        """Add up what hosts say, in their order."""
        shares = self.weights @ state.memberships
        shares /= shares.sum()
        logs = logs_of(shares) + sum(report.sums for report in reports)
        top = logs.max(axis=1, keepdims=True)
        found = np.exp(logs - top)
        totals = found.sum(axis=1, keepdims=True)
        objective = float(self.weights @ (top + np.log(totals)).ravel())
        objective += sum(report.objective for report in reports)
        theta = np.vstack([report.theta for report in reports])
        now = replace(state, memberships=found / totals, shares=shares, theta=theta)
        return now.noted(objective, self.options, float(self.weights.sum()))


def fit_mixture_by_columns(
    parts: Sequence[Part],
    n_rows: int,
    n_components: int,
    *,
    weights: Array | None = None,
    memberships: Floats | None = None,
    seed: int = 0,
    options: EMOptions = DEFAULT_EM,
    vault: Vault | None = None,
) -> MixtureFit:
    """Fit a mixture of multinomials to bases that are on hosts.

    Parameters
    ----------
    parts
        Some bases of all rows, for each host, with the same weights.
    n_rows
        Rows.
    n_components
        K.
    weights
        How many rows each row stands for.
    memberships
        Where EM starts, shape (n_rows, n_components); None: drawn at random.
    seed
        Of the random start.
    options
        How EM is run.
    vault
        Where checkpoints go.

    Returns
    -------
    MixtureFit
        Rows of theta are those of the first host's bases, then those of the next.
    """
    first, many = _start(parts, n_rows, n_components, weights, memberships, seed)
    role = MixtureColumns(tuple(parts), options.epsilon)
    plan = MixtureByColumns(first, many, options)
    with Crew(role, len(parts), name="mixture by columns", vault=vault) as crew:
        return mixture_fit(crew.follow(plan), options)


# ---- variational Bayes by columns ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pass:
    """An order: one pass over memberships.

    Attributes
    ----------
    memberships
        Dirichlet parameters, shape (n_rows, K); before the first pass, probabilities from
        which distributions are set.
    step
        See `Climb`.
    is_last
        Whether distributions of labels are set after it.
    """

    memberships: Floats
    step: int
    is_last: bool


@dataclass(frozen=True, eq=False)
class BayesianColumns(HostRole):
    """Hosts of variational Bayes."""

    parts: tuple[Part, ...]
    epsilon: float

    state_type = HostTables

    def begin(self, member: int) -> HostTables:
        """Return no tables: the first order brings memberships."""
        return HostTables(NOTHING)

    def advance(
        self, place: Place, member: int, state: HostTables, order: Pass
    ) -> tuple[HostTables, SaidOfRows]:
        """Find phi of these bases' labels, and set their distributions."""
        labels = place.labels_of_rows(member, len(order.memberships))
        if order.step < 0:
            theta = tables_of(labels, order.memberships, self.epsilon)
            return HostTables(theta), SaidOfRows(NOTHING, NOTHING, 0.0)
        sums, counts = np.empty_like(order.memberships), np.zeros_like(state.theta)
        objective = log_prior(state.theta, self.epsilon)
        for rows, block in labels.blocks():
            shares, top = shares_of(order.memberships[rows])
            sums[rows], logs, part = label_pass(block, shares, state.theta)
            counts += part
            seen = (block.codes >= 0).sum(axis=1)
            objective += float(block.weights @ (logs + top * seen))
        theta = state.theta
        if order.is_last:
            theta = normalised_by_base(counts + self.epsilon, labels)
        return HostTables(theta), SaidOfRows(sums, state.theta, objective)


@dataclass(frozen=True, eq=False)
class BayesianByColumns(Plan[Climb]):
    """Variational Bayes whose labels are on hosts."""

    memberships: Floats
    gamma: Floats
    prior: Floats
    weights: Floats
    options: VariationalOptions

    state_type = Climb

    def begin(self) -> Climb:
        """Return the first memberships."""
        return Climb(self.memberships, self.prior, NOTHING, np.empty(0))

    def order(self, state: Climb) -> Pass | None:
        """Return the next pass, or None at the end."""
        if state.is_over:
            return None
        return Pass(state.memberships, state.step, state.step == self.options.inner - 1)

    def absorb(self, state: Climb, reports: Sequence[SaidOfRows]) -> Climb:
        """Add up what hosts say, in their order."""
        if state.step < 0:
            return replace(state, memberships=self.gamma, step=0)
        gamma, prior = state.memberships, state.shares
        if state.step == 0:
            bound = float(self.weights @ row_bounds(gamma, prior))
            bound += sum(report.objective for report in reports)
            state = replace(state, theta=np.vstack([report.theta for report in reports]))
            state = state.noted(bound, self.options, float(self.weights.sum()))
            if state.is_over:
                return state
        gamma = prior + sum(report.sums for report in reports)
        step = (state.step + 1) % self.options.inner
        if step == 0 and self.options.learns_prior:
            prior = fitted_prior(prior, *expected_log_memberships(self.weights, gamma))
        return replace(state, memberships=gamma, shares=prior, step=step)


def fit_bayesian_by_columns(
    parts: Sequence[Part],
    n_rows: int,
    n_bases: int,
    n_components: int,
    *,
    weights: Array | None = None,
    memberships: Floats | None = None,
    prior: float | Array | None = None,
    seed: int = 0,
    options: VariationalOptions = DEFAULT_VARIATIONAL,
    vault: Vault | None = None,
) -> BayesianFit:
    """Fit a Bayesian cluster ensemble to bases that are on hosts.

    See `fit_mixture_by_columns`. `n_bases` counts the bases of all hosts; `prior` is described
    in `fit_bayesian_ensemble`.
    """
    first, many = _start(parts, n_rows, n_components, weights, memberships, seed)
    a = prior_of(prior, n_components)
    plan = BayesianByColumns(first, first_gamma(n_rows, n_bases, a), a, many, options)
    role = BayesianColumns(tuple(parts), options.epsilon)
    with Crew(role, len(parts), name="Bayesian ensemble by columns", vault=vault) as crew:
        found = crew.follow(plan)
    return bayesian_fit(found, found.memberships, options)


def _start(
    parts: Sequence[Part],
    n_rows: int,
    n_components: int,
    weights: Array | None,
    memberships: Floats | None,
    seed: int,
) -> tuple[Floats, Floats]:
    check_parts(parts, n_components)
    many = np.ones(n_rows) if weights is None else np.asarray(weights, np.float64)
    if memberships is None:
        memberships = random_memberships(n_rows, n_components, seed)
    for name, found, shape in (
        ("weights", many, (n_rows,)),
        ("memberships", memberships, (n_rows, n_components)),
    ):
        if found.shape != shape:
            hint = "Every row has one, on all hosts."
            raise InputError(name, f"shape {shape}", f"shape {found.shape}", hint)
    return memberships, many
