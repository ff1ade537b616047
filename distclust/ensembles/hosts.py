r"""Consensus of bases whose labels stay where they are: EM and variational Bayes.

A member of a crew holds a part of the labels, and reads it where it works. Parts are columns
(some bases of all rows) or rows (all bases of some rows).

By columns, a host keeps :math:`\theta` of its bases; memberships (n_rows, K) go out and sums
of as many numbers come back. By rows, a host keeps memberships; :math:`\theta` goes out and
expected counts come back. Both are the local algorithms (`multinomial_mixture`,
`bayesian_ensemble`) up to the order of sums, which is that of the hosts.

A part must be readable from every process that may get the member, also after a loss.
See `hosts_by_columns` and `hosts_by_rows` for the fits, and `blocked_hosts` for the
Dirichlet-process ensemble.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distclust.engine import Role, Room
from distclust.ensembles._numerics import add_expected_counts
from distclust.ensembles.bayesian_ensemble import (
    BayesianFit,
    VariationalOptions,
)
from distclust.ensembles.label_rows import Floats, Integers, LabelRows, normalised_by_base
from distclust.ensembles.multinomial_mixture import (
    EMOptions,
    MixtureFit,
    is_settled,
    log_prior,
)
from distclust.errors import InputError
from distclust.seeding import generator
from distclust.validation import check_integer

NOTHING = np.empty((0, 0))
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

    def labels_of_rows(self, member: int, n_rows: int) -> LabelRows:
        """Return the part of a member that holds bases of all rows.

        Raises
        ------
        InputError
            If it has another number of rows. Compiled loops would not notice.
        """
        found = self.labels(member)
        if found.n_rows != n_rows:
            expected, got = f"{n_rows:,} rows, as on all hosts", f"{found.n_rows:,}"
            hint = "Give every host all rows, in the same order; -1 where a base has no label."
            raise InputError(f"labels of host {member}", expected, got, hint)
        return found

    def labels_of_bases(self, member: int, n_labels: Integers) -> LabelRows:
        """Return the part of a member that holds some rows of all bases.

        Raises
        ------
        InputError
            If its bases are others. Compiled loops would not notice.
        """
        found = self.labels(member)
        if not np.array_equal(found.n_labels, n_labels):
            expected = f"bases of {n_labels.tolist()} labels, as on all hosts"
            hint = "Pass the largest number of labels of each base, the same for every host."
            got = str(found.n_labels.tolist())
            raise InputError(f"labels of host {member}", expected, got, hint)
        return found


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


# ---- what fits share ---------------------------------------------------------------------------


def check_parts(parts: Sequence[Part], n_components: int) -> None:
    """Refuse what are no parts."""
    check_integer(n_components, "n_components", at_least=1)
    if not parts or not all(isinstance(part, Part) for part in parts):
        hint = "Pass for instance ArrayPart(LabelRows.of(codes, n_labels)) for each host."
        raise InputError("parts", "parts of labels, at least one", repr(list(parts)), hint)


def mixture_fit(found: Climb, options: EMOptions) -> MixtureFit:
    """Return where EM ended."""
    log_likelihood = float(found.trace[-1]) - log_prior(found.theta, options.epsilon)
    return MixtureFit(found.shares, found.theta, log_likelihood, found.trace, found.has_converged)


def bayesian_fit(found: Climb, gamma: Floats, options: VariationalOptions) -> BayesianFit:
    """Return where variational Bayes ended."""
    bound = float(found.trace[-1]) - log_prior(found.theta, options.epsilon)
    return BayesianFit(gamma, found.theta, found.shares, bound, found.trace, found.has_converged)
