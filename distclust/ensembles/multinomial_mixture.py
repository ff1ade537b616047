r"""MM: label rows as a finite mixture of products of multinomials, fitted by EM.

.. math:: p(y_n) = \sum_k w_k \prod_{m\ observed} \theta_{k m y_{nm}}

An object has one component, and missing labels are left out. Equal label rows have equal
responsibilities, so EM on distinct rows with multiplicities is exact.

Tables are label-major: ``theta`` has a row for each label of each base, the bases one after
another, and a column for each component.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distclust.engine import map_ordered
from distclust.ensembles._numerics import mixture_pass
from distclust.ensembles.label_rows import Array, Floats, LabelRows, normalised_by_base
from distclust.seeding import generator
from distclust.validation import check_integer, check_real

STAGE = "mixture of multinomials"
SEED_SHARE = 0.5  # of a component's first distribution lies on the labels of its seed

_NO_TABLE = np.empty((0, 0))
_NO_SIZES = np.empty(0)


@dataclass(frozen=True, eq=False)
class MixtureState:
    """Parameters of a mixture, and how good those before them were.

    Attributes
    ----------
    shares
        Weights w of the components, shape (K,).
    theta
        Probability of each label in each component, shape (n_cells, K).
    objective
        What EM climbs, at the parameters from which these were computed: the log-likelihood,
        and the log prior where there is smoothing. Minus infinity at the beginning.
    iteration
        Steps so far.
    """

    shares: Floats
    theta: Floats
    objective: float = -np.inf
    iteration: int = 0


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """A fitted mixture.

    Attributes
    ----------
    shares, theta
        See `MixtureState`.
    log_likelihood
        Of all objects.
    trace
        The objective at the parameters of every iteration, the last ones included.
    has_converged
        Whether the tolerance was reached.
    restart
        Which restart was the best.
    """

    shares: Floats
    theta: Floats
    log_likelihood: float
    trace: Floats
    has_converged: bool
    restart: int = 0


@dataclass(frozen=True)
class EMOptions:
    """How EM is run.

    Attributes
    ----------
    max_iterations
        Steps at most.
    tolerance
        EM ends when a step gains less than this for each object.
    epsilon
        Pseudo-count of every label in the M step; 0 is maximum likelihood. Without smoothing
        a label that a component never saw is impossible in it, also in rows to come.
    """

    max_iterations: int = 500
    tolerance: float = 1e-6
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        check_integer(self.max_iterations, "max_iterations", at_least=1)
        check_real(self.tolerance, "tolerance", at_least=0.0)
        check_real(self.epsilon, "epsilon", at_least=0.0)


DEFAULT_EM = EMOptions()


def fit_multinomial_mixture(
    codes: Array,
    n_labels: Array,
    n_components: int,
    *,
    weights: Array | None = None,
    n_restarts: int = 10,
    seed: int = 0,
    options: EMOptions = DEFAULT_EM,
) -> MixtureFit:
    """Fit from several starts, each a task of its own; return the best.

    Parameters
    ----------
    codes, n_labels, weights
        See `LabelRows`.
    n_components
        K.
    n_restarts
        Starts; the first of equally good ones wins.
    seed
        Each restart has its own stream.
    options
        How EM is run.
    """
    labels = LabelRows.of(codes, n_labels, weights)
    check_integer(n_components, "n_components", at_least=1)
    restarts = range(check_integer(n_restarts, "n_restarts", at_least=1))
    fits = map_ordered(fit_restart, restarts, labels, n_components, seed, options, stage=STAGE)
    return max(fits, key=lambda fit: fit.trace[-1])


def fit_restart(
    restart: int, labels: LabelRows, n_components: int, seed: int, options: EMOptions
) -> MixtureFit:
    """Fit from one start."""
    state = begin(labels, n_components, generator(seed, "mixture", restart))
    return climb(labels, state, options, restart)


def begin(labels: LabelRows, n_components: int, rng: np.random.Generator) -> MixtureState:
    """Return a start: components lean towards the labels of rows that differ.

    Each next seed is drawn with a probability that grows with the number of labels in which
    a row differs from all seeds before, as in k-means++.
    """
    one_object = np.repeat(1.0 / labels.n_labels, labels.n_labels)  # no label is impossible
    overall = normalised_by_base((_label_counts(labels) + one_object)[:, None], labels)
    theta = np.repeat((1.0 - SEED_SHARE) * overall, n_components, axis=1)
    distance = np.full(labels.n_rows, float(labels.n_bases))
    for k in range(n_components):
        chances = np.cumsum(labels.weights * distance)
        if chances[-1] <= 0.0:  # fewer distinct rows than components
            chances = np.cumsum(labels.weights)
        row = labels.codes[np.searchsorted(chances, rng.random() * chances[-1], side="right")]
        distance = np.minimum(distance, _differing(labels.codes, row))
        for m in range(labels.n_bases):
            base = slice(labels.offsets[m], labels.offsets[m] + labels.n_labels[m])
            if row[m] >= 0:
                theta[labels.offsets[m] + row[m], k] += SEED_SHARE
            else:
                theta[base, k] /= 1.0 - SEED_SHARE
    return MixtureState(np.full(n_components, 1.0 / n_components), theta)


def climb(
    labels: LabelRows, state: MixtureState, options: EMOptions, restart: int = 0
) -> MixtureFit:
    """Do EM steps until they gain little."""
    trace: list[float] = []
    has_converged = False
    for _ in range(options.max_iterations):
        following = advance(labels, state, options.epsilon)
        trace.append(following.objective)
        has_converged = is_settled(trace, options.tolerance * labels.n_objects)
        if has_converged:
            break
        state = following
    else:
        trace.append(advance(labels, state, options.epsilon).objective)
    log_likelihood = trace[-1] - log_prior(state.theta, options.epsilon)
    return MixtureFit(
        state.shares, state.theta, log_likelihood, np.array(trace), has_converged, restart
    )


def is_settled(trace: list[float], tolerance: float) -> bool:
    """Return whether the last step gained at most the tolerance."""
    return len(trace) > 1 and trace[-1] - trace[-2] <= tolerance


def advance(labels: LabelRows, state: MixtureState, epsilon: float = 0.0) -> MixtureState:
    """Do one step of EM: the objective of the given parameters, and the next parameters."""
    counts, sizes, log_likelihood = expected_counts(labels, state.shares, state.theta)
    objective = log_likelihood + log_prior(state.theta, epsilon)
    return maximised(labels, counts, sizes, epsilon, objective, state.iteration + 1)


def expected_counts(
    labels: LabelRows, shares: Floats, theta: Floats
) -> tuple[Floats, Floats, float]:
    """Do the E step: counts (n_cells, K), sizes (K,) and the log-likelihood.

    Responsibilities of one block of rows at a time are in memory.
    """
    counts, sizes, total = np.zeros_like(theta), np.zeros_like(shares), 0.0
    log_shares, log_theta = logs_of(shares), logs_of(theta)
    for _, block in labels.blocks():
        part, size = np.zeros_like(theta), np.zeros_like(shares)
        logs = _pass(block, log_shares, log_theta, part, size)
        counts += part
        sizes += size
        total += float(block.weights @ logs)
    return counts, sizes, total


def maximised(
    labels: LabelRows,
    counts: Floats,
    sizes: Floats,
    epsilon: float,
    objective: float,
    iteration: int,
) -> MixtureState:
    """Do the M step."""
    theta = normalised_by_base(counts + epsilon, labels)
    return MixtureState(sizes / sizes.sum(), theta, objective, iteration)


def responsibilities(labels: LabelRows, shares: Floats, theta: Floats) -> Floats:
    """Return the probability of each component for each row, shape (n_rows, K).

    A row that is impossible in every component has the shares of the components.
    """
    found = np.empty((labels.n_rows, len(shares)))
    log_shares, log_theta = logs_of(shares), logs_of(theta)
    for rows, block in labels.blocks():
        _pass(block, log_shares, log_theta, memberships=found[rows])
    return found


def log_probabilities(labels: LabelRows, shares: Floats, theta: Floats) -> Floats:
    """Return log p of each row, shape (n_rows,)."""
    log_shares, log_theta = logs_of(shares), logs_of(theta)
    blocks = [_pass(block, log_shares, log_theta) for _, block in labels.blocks()]
    return np.concatenate(blocks)


def log_prior(theta: Floats, epsilon: float) -> float:
    """Return the log prior that smoothing stands for, without its constant."""
    return float(epsilon * np.log(theta).sum()) if epsilon else 0.0


def _pass(
    block: LabelRows,
    log_shares: Floats,
    log_theta: Floats,
    counts: Floats = _NO_TABLE,
    sizes: Floats = _NO_SIZES,
    memberships: Floats = _NO_TABLE,
) -> Floats:
    logs = np.empty(block.n_rows)
    mixture_pass(
        block.codes,
        block.offsets,
        block.weights,
        log_shares,
        log_theta,
        logs,
        memberships,
        counts,
        sizes,
    )
    return logs


def logs_of(values: Floats) -> Floats:
    """Return logarithms; of what is impossible, minus infinity."""
    with np.errstate(divide="ignore"):
        found: Floats = np.log(values)
    return found


def _label_counts(labels: LabelRows) -> Floats:
    counts = np.zeros(labels.n_cells)
    for m, (offset, n) in enumerate(zip(labels.offsets, labels.n_labels, strict=True)):
        column = labels.codes[:, m]
        seen = column >= 0
        counts[offset : offset + n] = np.bincount(
            column[seen], labels.weights[seen], minlength=int(n)
        )
    return counts


def _differing(codes: Array, row: Array) -> Floats:
    """Return in how many labels each row differs from one; missing ones do not differ."""
    both = (codes >= 0) & (row >= 0)
    found: Floats = ((codes != row) & both).sum(axis=1, dtype=np.float64)
    return found
