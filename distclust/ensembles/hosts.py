r"""Consensus of bases whose labels stay where they are: EM and variational Bayes.

A member of a crew holds a part of the labels, and reads it where it works. Parts are columns
(some bases of all rows) or rows (all bases of some rows).

By columns, a host keeps :math:`\theta` of its bases; memberships (n_rows, K) go out and sums
of as many numbers come back. By rows, a host keeps memberships; :math:`\theta` goes out and
expected counts come back. Both are the local algorithms (`multinomial_mixture`,
`bayesian_ensemble`) up to the order of sums, which is that of the hosts.

A part must be readable from every process that may get the member, also after a loss.
See `blocked_hosts` for the Dirichlet-process ensemble.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distclust.engine import Crew, Plan, Role, Room, Vault
from distclust.ensembles._numerics import add_expected_counts, add_label_logs
from distclust.ensembles.bayesian_ensemble import (
    DEFAULT_VARIATIONAL,
    BayesianFit,
    VariationalOptions,
    expected_log_memberships,
    first_gamma,
    fitted_prior,
    label_pass,
    memberships_of,
    prior_of,
    row_bounds,
    shares_of,
)
from distclust.ensembles.label_rows import Array, Floats, LabelRows, normalised_by_base
from distclust.ensembles.multinomial_mixture import (
    DEFAULT_EM,
    EMOptions,
    MixtureFit,
    expected_counts,
    is_settled,
    log_prior,
    logs_of,
)
from distclust.errors import InputError
from distclust.seeding import generator
from distclust.validation import check_integer

_NOTHING = np.empty((0, 0))
_SHARPNESS = 4.0  # of random memberships at the start


# ---- parts of labels --------------------------------------------------------------------------


class Part(ABC):
    """A part of the labels that is read where a member works."""

    @abstractmethod
    def read(self) -> LabelRows:
        """Return the labels."""


@dataclass(frozen=True, eq=False)
class ArrayPart(Part):
    """A part that travels with the role, once to each process."""

    labels: LabelRows

    def read(self) -> LabelRows:
        """Return the labels."""
        return self.labels


@dataclass(frozen=True)
class FilePart(Part):
    """A part in a file of numpy (``.npy``) that the host reads.

    Attributes
    ----------
    path
        Of an array of codes, shape (rows, bases).
    n_labels
        Labels of each base.
    """

    path: str
    n_labels: tuple[int, ...]

    def read(self) -> LabelRows:
        """Return the labels."""
        return LabelRows.of(np.load(self.path), np.array(self.n_labels))


class Place:
    """The parts that members in one process have read."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._read: dict[int, LabelRows] = {}
        self._lock = threading.Lock()

    def labels(self, member: int) -> LabelRows:
        """Return the part of a member, read once."""
        with self._lock:
            if member not in self._read:
                self._read[member] = self._parts[member].read()
            return self._read[member]


class HostRole(Role[Any]):
    """Members that hold parts."""

    parts: tuple[Part, ...]

    def open(self, previous: Any, room: Room) -> Place:
        """Return a place where nothing was read yet."""
        return Place(self.parts)

    def label(self, member: int) -> str:
        """Return the name of a host."""
        return f"host {member}"


def random_memberships(n_rows: int, n_components: int, seed: int, part: int = 0) -> Floats:
    """Return memberships that lean to a random component each."""
    rng = generator(seed, "start on hosts", part)
    found = rng.random((n_rows, n_components)) ** _SHARPNESS
    found /= found.sum(axis=1, keepdims=True)
    return found


def tables_of(labels: LabelRows, memberships: Floats, epsilon: float) -> Floats:
    """Return the distributions of labels that memberships give, as the M step does."""
    return normalised_by_base(counts_of(labels, memberships) + epsilon, labels)


def counts_of(labels: LabelRows, memberships: Floats) -> Floats:
    """Return expected counts of labels, shape (n_cells, K)."""
    counts = np.zeros((labels.n_cells, memberships.shape[1]))
    for rows, block in labels.blocks():
        part = np.zeros_like(counts)
        add_expected_counts(block.codes, block.offsets, block.weights, memberships[rows], part)
        counts += part
    return counts


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


@dataclass(frozen=True, eq=False)
class Climb:
    """The state of a plan.

    Attributes
    ----------
    memberships
        Responsibilities, or Dirichlet parameters, shape (n_rows, K); of rows on hosts: none.
    shares
        Weights of components, or Dirichlet prior, shape (K,).
    theta
        Distributions of labels, shape (n_cells, K).
    trace
        The objective at the parameters of every iteration.
    step
        What is ordered next: -1 a start, 0 a step, and from 1 on the passes within a step.
    is_over
        Whether there are no more steps.
    has_converged
        Whether the tolerance was reached.
    """

    memberships: Floats
    shares: Floats
    theta: Floats
    trace: Floats
    step: int = -1
    is_over: bool = False
    has_converged: bool = False

    def noted(
        self, objective: float, options: EMOptions | VariationalOptions, n_objects: float
    ) -> Climb:
        """Return the state with the objective of its parameters, and whether they are the last."""
        trace = np.append(self.trace, objective)
        is_done = is_settled(trace.tolist(), options.tolerance * n_objects)
        is_over = is_done or len(trace) > options.max_iterations
        return replace(self, trace=trace, is_over=is_over, has_converged=is_done)


# ---- EM by columns ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MixtureColumns(HostRole):
    """Hosts of EM: an order is memberships, a report the sums of log theta."""

    parts: tuple[Part, ...]
    epsilon: float

    state_type = HostTables

    def begin(self, member: int) -> HostTables:
        """Return no tables: the first order brings memberships."""
        return HostTables(_NOTHING)

    def advance(
        self, place: Place, member: int, state: HostTables, order: Floats
    ) -> tuple[HostTables, SaidOfRows]:
        """Do the M step for these bases, and their part of the E step."""
        labels = place.labels(member)
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
        return Climb(self.memberships, shares, _NOTHING, np.empty(0))

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
        return _mixture_fit(crew.follow(plan), options)


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
        return HostTables(_NOTHING)

    def advance(
        self, place: Place, member: int, state: HostTables, order: Pass
    ) -> tuple[HostTables, SaidOfRows]:
        """Find phi of these bases' labels, and set their distributions."""
        labels = place.labels(member)
        if order.step < 0:
            theta = tables_of(labels, order.memberships, self.epsilon)
            return HostTables(theta), SaidOfRows(_NOTHING, _NOTHING, 0.0)
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
        return Climb(self.memberships, self.prior, _NOTHING, np.empty(0))

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
    return _bayesian_fit(found, found.memberships, options)


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
    seed: int

    state_type = HostRows

    def begin(self, member: int) -> HostRows:
        """Return nothing: responsibilities are found anew in each step."""
        return HostRows(_NOTHING, _NOTHING)

    def advance(
        self, place: Place, member: int, state: HostRows, order: Parameters
    ) -> tuple[HostRows, Expected]:
        """Do the E step of these rows."""
        labels = place.labels(member)
        if order.step < 0:
            first = random_memberships(labels.n_rows, len(order.shares), self.seed, member)
            counts, sizes, objective = counts_of(labels, first), labels.weights @ first, 0.0
        else:
            counts, sizes, objective = expected_counts(labels, order.shares, order.theta)
        return state, Expected(counts, sizes, objective, labels.n_objects, _NOTHING)


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
        return Climb(_NOTHING, shares, _NOTHING, np.empty(0))

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
    _check_parts(parts, n_components)
    plan = MixtureByRows(np.asarray(n_labels, np.int64), n_components, options)
    role = MixtureRows(tuple(parts), seed)
    with Crew(role, len(parts), name="mixture by rows", vault=vault) as crew:
        return _mixture_fit(crew.follow(plan), options)


# ---- variational Bayes by rows ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BayesianRows(HostRole):
    """Hosts of variational Bayes that hold rows and their Dirichlet parameters."""

    parts: tuple[Part, ...]
    seed: int
    inner: int

    state_type = HostRows

    def begin(self, member: int) -> HostRows:
        """Return nothing: the first order says how many clusters there are."""
        return HostRows(_NOTHING, _NOTHING)

    def advance(
        self, place: Place, member: int, state: HostRows, order: Parameters
    ) -> tuple[HostRows, Expected]:
        """Do passes over the memberships of these rows."""
        labels = place.labels(member)
        n, nothing = labels.n_objects, np.empty(0)
        if order.step > 0:
            return state, Expected(_NOTHING, nothing, 0.0, n, state.previous)
        if order.step < 0:
            first = random_memberships(labels.n_rows, len(order.shares), self.seed, member)
            gamma = first_gamma(labels.n_rows, labels.n_bases, order.shares)
            report = Expected(counts_of(labels, first), nothing, 0.0, n, _NOTHING)
            return HostRows(gamma, gamma), report
        gamma, counts, bound = np.empty_like(state.gamma), np.zeros_like(order.theta), 0.0
        for rows, block in labels.blocks():
            found = memberships_of(block, state.gamma[rows], order.theta, order.shares, self.inner)
            gamma[rows] = found.gamma
            counts += found.counts
            bound += found.bound
        log_sums, _ = expected_log_memberships(labels.weights, gamma)
        return HostRows(gamma, state.gamma), Expected(counts, log_sums, bound, n, _NOTHING)


@dataclass(frozen=True, eq=False)
class BayesianByRows(Plan[Climb]):
    """Variational Bayes whose rows are on hosts; the last order asks for memberships."""

    n_labels: Array
    prior: Floats
    options: VariationalOptions

    state_type = Climb

    def begin(self) -> Climb:
        """Return no parameters yet."""
        return Climb(_NOTHING, self.prior, _NOTHING, np.empty(0))

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
    _check_parts(parts, n_components)
    a = prior_of(prior, n_components)
    plan = BayesianByRows(np.asarray(n_labels, np.int64), a, options)
    role = BayesianRows(tuple(parts), seed, options.inner)
    with Crew(role, len(parts), name="Bayesian ensemble by rows", vault=vault) as crew:
        found = crew.follow(plan)
    return _bayesian_fit(found, found.memberships, options)


# ---- what they share ----------------------------------------------------------------------------


def _summed_tables(reports: Sequence[Expected], n_labels: Array, epsilon: float) -> Floats:
    counts = np.sum([report.counts for report in reports], axis=0)
    shape = LabelRows(np.empty((0, len(n_labels)), np.int8), n_labels, np.empty(0))
    return normalised_by_base(counts + epsilon, shape)


def _start(
    parts: Sequence[Part],
    n_rows: int,
    n_components: int,
    weights: Array | None,
    memberships: Floats | None,
    seed: int,
) -> tuple[Floats, Floats]:
    _check_parts(parts, n_components)
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


def _check_parts(parts: Sequence[Part], n_components: int) -> None:
    check_integer(n_components, "n_components", at_least=1)
    if not parts or not all(isinstance(part, Part) for part in parts):
        hint = "Pass for instance ArrayPart(LabelRows.of(codes, n_labels)) for each host."
        raise InputError("parts", "parts of labels, at least one", repr(list(parts)), hint)


def _mixture_fit(found: Climb, options: EMOptions) -> MixtureFit:
    log_likelihood = float(found.trace[-1]) - log_prior(found.theta, options.epsilon)
    return MixtureFit(found.shares, found.theta, log_likelihood, found.trace, found.has_converged)


def _bayesian_fit(found: Climb, gamma: Floats, options: VariationalOptions) -> BayesianFit:
    bound = float(found.trace[-1]) - log_prior(found.theta, options.epsilon)
    return BayesianFit(gamma, found.theta, found.shares, bound, found.trace, found.has_converged)
