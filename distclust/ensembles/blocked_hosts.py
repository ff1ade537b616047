r"""The Dirichlet-process ensemble with labels that stay on hosts: blocked Gibbs sampling.

The process is truncated to some sticks. Distributions of labels are drawn on the hosts, each
with its own stream; hosts return the log likelihood of each row in each cluster, a matrix
(n_rows, n_sticks), and the clusters of all rows are drawn at once where the plan is. It is
exact for the truncated process, and one round a sweep. It mixes more slowly than the collapsed
sampler: use that one wherever labels may move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from distclust.engine import Crew, Plan, Vault
from distclust.ensembles._numerics import add_label_logs
from distclust.ensembles.dirichlet_ensemble import DEFAULT_CONCENTRATION, betas_of
from distclust.ensembles.hosts import HostRole, Part, Place
from distclust.ensembles.label_rows import Floats, LabelRows, sum_by_base
from distclust.errors import InputError
from distclust.mixtures.chains import Traces, smallest
from distclust.mixtures.concentration import (
    Concentration,
    draw_stick_concentration,
    log_partition,
)
from distclust.seeding import generator
from distclust.validation import check_integer

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class HostStream:
    """The state of a host: its stream, from which distributions are drawn anew each sweep."""

    generator: np.random.Generator


@dataclass(frozen=True, eq=False)
class LogLikelihoods:
    """What a host reports.

    Attributes
    ----------
    rows
        Log likelihood of each row's labels in each cluster, shape (n_rows, n_sticks).
    labels
        Log marginal of its labels given the clusters it was told.
    """

    rows: Floats
    labels: float


@dataclass(frozen=True, eq=False)
class BlockedColumns(HostRole):
    """Hosts that draw distributions of their labels; an order is the cluster of each row.

    Attributes
    ----------
    parts
        Some bases of all rows, for each host.
    beta
        Total pseudo-count of each base, or "labels".
    n_sticks
        Clusters of the truncated process.
    seed, chain
        Name the streams of the hosts.
    """

    parts: tuple[Part, ...]
    beta: float | str
    n_sticks: int
    seed: int
    chain: int

    state_type = HostStream

    def begin(self, member: int) -> HostStream:
        """Return the stream of a host."""
        return HostStream(generator(self.seed, "chain", self.chain, "host", member))

    def advance(
        self, place: Place, member: int, state: HostStream, order: Int32s
    ) -> tuple[HostStream, LogLikelihoods]:
        """Draw the distributions of these bases' labels, and weigh all rows."""
        labels = place.labels_of_rows(member, len(order))
        pseudo = np.repeat(betas_of(self.beta, labels.n_labels) / labels.n_labels, labels.n_labels)
        counts = _counts(labels, order, self.n_sticks)
        log_theta = _log_dirichlet_draw(counts + pseudo[:, None], labels, state.generator)
        rows = np.zeros((labels.n_rows, self.n_sticks))
        add_label_logs(labels.codes, labels.offsets, log_theta, rows)
        return state, LogLikelihoods(rows, _log_marginal(counts, pseudo[:, None], labels))


@dataclass(frozen=True, eq=False)
class BlockedState:
    """The state of a chain on hosts.

    Attributes
    ----------
    assignments
        Stick of each row.
    log_shares
        Log weights of the sticks.
    concentration
        Of the process.
    generator
        Of sticks, clusters and concentration.
    sweep
        Sweeps so far.
    scalars
        Log joint, number of clusters and concentration of each sweep, shape (sweeps, 3). The
        log joint is that of the whole process, which collapsed chains report too.
    draws
        Partitions that were kept, shape (n_kept, n_rows).
    """

    assignments: Int32s
    log_shares: Floats
    concentration: float
    generator: np.random.Generator
    sweep: int
    scalars: Floats
    draws: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class BlockedByColumns(Plan[BlockedState]):
    """Blocked Gibbs sampling over labels on hosts.

    A round is told the clusters, and ends with new ones; what hosts report of the labels
    belongs to the clusters they were told, so the log joint is that of the sweep before.
    """

    n_rows: int
    n_sticks: int
    concentration: Concentration
    seed: int
    chain: int
    n_sweeps: int
    keep_every: int

    state_type = BlockedState

    def begin(self) -> BlockedState:
        """Return rows spread over all sticks at random."""
        rng = generator(self.seed, "chain", self.chain)
        assignments = rng.integers(self.n_sticks, size=self.n_rows).astype(np.int32)
        state = BlockedState(
            assignments,
            np.empty(0),
            self.concentration.start(),
            rng,
            0,
            np.empty((0, 3)),
            np.empty((0, self.n_rows), np.int32),
        )
        return self._with_sticks(state)

    def order(self, state: BlockedState) -> Int32s | None:
        """Return the clusters; one round more than sweeps, for the last log joint."""
        return state.assignments if state.sweep <= self.n_sweeps else None

    def absorb(self, state: BlockedState, reports: Sequence[LogLikelihoods]) -> BlockedState:
        """Note the sweep before; draw clusters, sticks and the concentration."""
        if state.sweep > 0:
            state = self._noted(state, sum(report.labels for report in reports))
        if state.sweep == self.n_sweeps:
            return replace(state, sweep=state.sweep + 1)
        logs = state.log_shares + sum(report.rows for report in reports)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True)).cumsum(axis=1)
        threshold = state.generator.random(self.n_rows) * weights[:, -1]
        chosen = (weights <= threshold[:, None]).sum(axis=1)
        assignments = np.minimum(chosen, self.n_sticks - 1).astype(np.int32)
        return self._with_sticks(replace(state, assignments=assignments, sweep=state.sweep + 1))

    def _with_sticks(self, state: BlockedState) -> BlockedState:
        """Draw the sticks given the clusters, and the concentration given the sticks."""
        rng = state.generator
        sizes = np.bincount(state.assignments, minlength=self.n_sticks)
        later = sizes[::-1].cumsum()[::-1] - sizes
        mine = rng.standard_gamma(1.0 + sizes[:-1])
        log_rest = _log_gammas(state.concentration + later[:-1], rng)
        total = np.logaddexp(np.log(mine), log_rest)
        log_stick = np.append(np.log(mine) - total, 0.0)
        log_left = np.append(0.0, np.cumsum(log_rest - total))
        value, prior = state.concentration, self.concentration.prior
        if prior is not None:
            value = draw_stick_concentration(float(log_left[-1]), self.n_sticks, prior, rng)
        return replace(state, log_shares=log_stick + log_left, concentration=value)

    def _noted(self, state: BlockedState, log_labels: float) -> BlockedState:
        sizes = np.bincount(state.assignments)
        joint = log_partition(sizes, state.concentration) + log_labels
        figures = [joint, float(np.count_nonzero(sizes)), state.concentration]
        draws = state.draws
        if state.sweep % self.keep_every == 0:
            kept = np.unique(state.assignments, return_inverse=True)[1].astype(np.int32)
            draws = np.concatenate([draws, kept[None]])
        return replace(state, scalars=np.vstack([state.scalars, figures]), draws=draws)


def sample_by_columns(
    parts: Sequence[Part],
    n_rows: int,
    *,
    beta: float | str = 1.0,
    concentration: Concentration = DEFAULT_CONCENTRATION,
    n_sticks: int = 50,
    n_chains: int = 4,
    n_sweeps: int = 1000,
    keep_every: int = 10,
    seed: int = 0,
    vault: Vault | None = None,
) -> Traces:
    """Run chains of the Dirichlet-process ensemble over bases that are on hosts.

    Chains are run one after another: all hosts work for each.

    Parameters
    ----------
    parts
        Some bases of all rows, for each host.
    n_rows
        Rows.
    beta
        Total pseudo-count of each base, or "labels".
    concentration
        A given concentration, or one with a prior.
    n_sticks
        Clusters at most.
    n_chains, n_sweeps, keep_every, seed
        See `distclust.mixtures.chains.run_chains`.
    vault
        Where checkpoints go.
    """
    check_integer(n_sticks, "n_sticks", at_least=2)
    if not parts:
        raise InputError("parts", "at least one part of labels", "none", "Pass one a host.")
    found = []
    for chain in range(n_chains):
        role = BlockedColumns(tuple(parts), beta, n_sticks, seed, chain)
        plan = BlockedByColumns(n_rows, n_sticks, concentration, seed, chain, n_sweeps, keep_every)
        own = None if vault is None else replace(vault, run=f"{vault.run}-chain-{chain}")
        with Crew(role, len(parts), name=f"ensemble on hosts {chain}", vault=own) as crew:
            found.append(crew.follow(plan))
    scalars = np.stack([state.scalars for state in found])
    return Traces(scalars, smallest(np.stack([state.draws for state in found])))


def _counts(labels: LabelRows, assignments: Int32s, n_sticks: int) -> npt.NDArray[np.int64]:
    counts = np.zeros((labels.n_cells, n_sticks), np.int64)
    for m, offset in enumerate(labels.offsets):
        seen = labels.codes[:, m] >= 0
        cells = (offset + labels.codes[seen, m].astype(np.int64)) * n_sticks + assignments[seen]
        counts += np.bincount(cells, minlength=counts.size).reshape(counts.shape)
    return counts


def _log_gammas(shapes: npt.NDArray[Any], rng: np.random.Generator) -> Floats:
    """Return logs of Gamma draws; those of small shapes are often zero, their logs are not."""
    lifts = np.log1p(-rng.random(shapes.shape)) / shapes
    found: Floats = np.log(rng.standard_gamma(shapes + 1.0)) + lifts
    return found


def _log_dirichlet_draw(shapes: Floats, labels: LabelRows, rng: np.random.Generator) -> Floats:
    """Return logs of distributions of the labels of each base, in each column."""
    logs = _log_gammas(shapes, rng)
    top = np.maximum.reduceat(logs, labels.offsets, axis=0)
    logs -= np.repeat(top, labels.n_labels, axis=0)
    totals = np.log(sum_by_base(np.exp(logs), labels))
    logs -= np.repeat(totals, labels.n_labels, axis=0)
    return logs


def _log_marginal(counts: npt.NDArray[np.int64], pseudo: Floats, labels: LabelRows) -> float:
    rising = float((gammaln(counts + pseudo) - gammaln(pseudo)).sum())
    totals = sum_by_base(counts.astype(np.float64), labels)
    betas = np.add.reduceat(pseudo, labels.offsets, axis=0)
    return rising - float((gammaln(totals + betas) - gammaln(betas)).sum())
