r"""Collapsed Gibbs sampling of a Dirichlet-process mixture: the Polya urn.

Parameters of clusters are integrated out. A sweep takes each row out of its cluster and lets
it choose one anew: with its :math:`n_k` other members and their predictive density for an
existing one, with the concentration :math:`\alpha` and the prior predictive density for a new
one. A row of weight w is w equal rows that stay together: then the choices weigh

.. math::
    \frac{\Gamma(n_k + w)}{\Gamma(n_k)} \frac{f(D_k \cup x^w)}{f(D_k)}
    \quad\text{and}\quad \alpha\, \Gamma(w)\, f(x^w),

which is what the exchangeable partition function of the expanded rows gives. Between sweeps,
clusters are split and merged (`split_merge`), and the concentration is drawn.

Families that the package knows, and products of them, have compiled visits; any other family
is visited in Python through its marginal.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.families import Family
from distclust.mixtures._urn_numerics import (
    alone,
    choose,
    log_weights,
    refresh_all,
    visit,
    visit_two,
)
from distclust.mixtures._urn_statistics_numerics import LANES, Room, change
from distclust.mixtures.chains import Sampler
from distclust.mixtures.concentration import Concentration, log_partition
from distclust.mixtures.split_merge import (
    PROPOSALS,
    Floats,
    Integers,
    Labels,
    Pairs,
    Partition,
    capacity,
    split_or_merge,
    with_room,
)
from distclust.mixtures.starts import check_start, starting_labels
from distclust.mixtures.urn_parts import Rows, is_compiled, make_parts, working_family

REBUILD_EVERY = 50  # sweeps: statistics are added up afresh, and rounding starts from nothing

_STATISTICS_CELLS = 1 << 22


@dataclass(frozen=True, eq=False)
class UrnState:
    """A chain between two sweeps.

    Attributes
    ----------
    labels
        Cluster of each row, 0 to n_clusters - 1 as they are: slots decide what a random
        number hits.
    statistics
        Of each cluster, shape (capacity, p); zeros beyond n_clusters.
    marginals
        Their log marginals, shape (n_clusters,): most clusters stay as they are for a sweep.
    n_clusters
        How many there are.
    concentration, log_joint
        Of the Dirichlet process, and log p(labels, data | concentration).
    sweep
        Sweeps done.
    proposed, accepted
        Splits and merges.
    generator
        Of the chain.
    """

    labels: Labels
    statistics: Floats
    marginals: Floats
    n_clusters: int
    concentration: float
    log_joint: float
    sweep: int
    proposed: int
    accepted: int
    generator: np.random.Generator

    @property
    def sizes(self) -> Floats:
        """Total weight of each cluster, shape (n_clusters,)."""
        return self.statistics[: self.n_clusters, 0]


@dataclass(frozen=True, eq=False)
class UrnSampler(Sampler[UrnState]):
    """Collapsed Gibbs sampling for a resolved conjugate family.

    Parameters
    ----------
    rows
        Dense float64 (n, d) or CSR.
    family
        Resolved on them.
    concentration
        How the concentration is drawn.
    init
        Where chains start; see `starts`.
    split_merge
        Whether clusters are split and merged, too.
    row_weights
        Whole numbers above 0, shape (n,): how many equal rows each stands for, which stay in
        one cluster. None: one each.
    """

    rows: Rows
    family: Family
    concentration: Concentration
    init: str = "mixed"
    split_merge: bool = True
    row_weights: Floats | None = None

    state_type = UrnState

    def __post_init__(self) -> None:
        check_start(self.init, "init")
        if self.row_weights is not None:
            weights = _check_weights(self.row_weights, int(self.rows.shape[0]))
            object.__setattr__(self, "row_weights", weights)

    @property
    def n_items(self) -> int:
        """How many rows are clustered."""
        return int(self.rows.shape[0])

    def open(self) -> Urn:
        """Return the tables that chains in one process share."""
        if is_compiled(self.rows, self._working):
            return CompiledUrn(self.rows, self._working, self._weights)
        return PlainUrn(self.rows, self._working, self._weights)

    def begin(self, chain: int, generator: np.random.Generator) -> UrnState:
        """Return the state that a chain starts from."""
        labels = starting_labels(
            self.init, chain, self.rows, self.family, generator, self.row_weights
        )
        n_clusters = int(labels.max(initial=-1)) + 1
        statistics = self._accumulate(labels, n_clusters)
        used, value = statistics[:n_clusters], self.concentration.start()
        marginals = self._working.log_marginal(used)
        log_joint = self._log_joint(used, marginals, value)
        return UrnState(
            labels, statistics, marginals, n_clusters, value, log_joint, 0, 0, 0, generator
        )

    def sweep(self, place: Urn, state: UrnState) -> UrnState:
        """Let every row choose anew, propose splits and merges, and draw the concentration."""
        generator, concentration = state.generator, state.concentration
        statistics, proposed, accepted = state.statistics, state.proposed, state.accepted
        before = statistics[: state.n_clusters].copy()
        if state.sweep and state.sweep % REBUILD_EVERY == 0:
            statistics = self._accumulate(state.labels, state.n_clusters)
        found = Partition(state.labels, statistics, state.n_clusters)
        found = place.visit(found, concentration, generator.random(self.n_items))
        if self.split_merge:
            for _ in range(PROPOSALS):
                found, tried, took = split_or_merge(place, found, concentration, generator)
                proposed, accepted = proposed + tried, accepted + took
        used = found.statistics[: found.n_clusters]
        concentration = self.concentration.draw(
            concentration, found.n_clusters, self._total, generator
        )
        marginals = self._marginals(used, before, state.marginals)
        return UrnState(
            found.labels, found.statistics, marginals, found.n_clusters, concentration,
            self._log_joint(used, marginals, concentration), state.sweep + 1, proposed, accepted,
            generator,
        )  # fmt: skip

    def scalars(self, state: UrnState) -> Sequence[float]:
        """Return the log joint, the number of clusters and the concentration."""
        return state.log_joint, float(state.n_clusters), state.concentration

    def labels(self, state: UrnState) -> Labels:
        """Return the cluster of each row."""
        return state.labels

    def _accumulate(self, labels: Labels, n_clusters: int) -> Floats:
        statistics = np.zeros((capacity(n_clusters), self._working.n_statistics))
        statistics[:n_clusters] = self._working.accumulate(
            self.rows, labels, n_clusters, self.row_weights
        )
        return statistics

    def _marginals(self, statistics: Floats, before: Floats, known: Floats) -> Floats:
        """Return log marginals; those of clusters that are as they were `before` are known."""
        marginals = np.empty(len(statistics))
        shared = min(len(statistics), len(before))
        changed = np.ones(len(statistics), np.bool_)
        changed[:shared] = np.any(statistics[:shared] != before[:shared], axis=1)
        marginals[:shared] = known[:shared]
        if changed.any():
            marginals[changed] = self._working.log_marginal(statistics[changed])
        return marginals

    def _log_joint(self, statistics: Floats, marginals: Floats, concentration: float) -> float:
        likelihood = float(np.sum(marginals)) + self._coefficient
        return log_partition(statistics[:, 0], concentration) + likelihood

    @cached_property
    def _working(self) -> Family:
        return working_family(self.family)

    @cached_property
    def _weights(self) -> Floats:
        return np.ones(self.n_items) if self.row_weights is None else self.row_weights

    @cached_property
    def _total(self) -> float:
        return float(self._weights.sum())

    @cached_property
    def _coefficient(self) -> float:
        """Constants of the rows that ratios leave out."""
        return float(self._weights @ self.family.log_coefficient(self.rows))


class Urn(Pairs):
    """What chains in one process share of the data, and how rows choose."""

    @abstractmethod
    def visit(self, found: Partition, concentration: float, uniforms: Floats) -> Partition:
        """Let every row choose a cluster; arrays of `found` may be written over."""

    @abstractmethod
    def log_choices(self, found: Partition, concentration: float, row: int) -> Floats:
        """Return the logarithms of a row's weights: of its clusters, then of a new one.

        A row that is alone in its cluster finds the new one in its place.
        """


class CompiledUrn(Urn):
    """Compiled visits of families that the package knows."""

    def __init__(self, rows: Rows, family: Family, weights: Floats) -> None:
        self.weights = weights
        self._family = family
        self._parts, self._n_figures = make_parts(rows, family, weights)
        self._order = np.arange(len(weights))
        self._log_new = np.empty(len(weights))
        alone(*self._parts, self._log_new, np.zeros((1, family.n_statistics)))

    def visit(self, found: Partition, concentration: float, uniforms: Floats) -> Partition:
        """Let every row choose a cluster."""
        step, n_clusters, statistics = 0, found.n_clusters, found.statistics
        while step < len(uniforms):
            statistics = with_room(statistics, n_clusters)
            room = self._room(statistics, n_clusters)
            step, n_clusters = visit(
                *self._parts, self._order, step, uniforms, found.labels, n_clusters,
                math.log(concentration), self._log_new, statistics, *room,
            )  # fmt: skip
        return Partition(found.labels, statistics, n_clusters)

    def log_choices(self, found: Partition, concentration: float, row: int) -> Floats:
        """Return the logarithms of a row's weights."""
        room = self._room(found.statistics, found.n_clusters)
        n_choices = log_weights(
            *self._parts, row, int(found.labels[row]), found.n_clusters,
            math.log(concentration), self._log_new, found.statistics, *room,
        )  # fmt: skip
        return room.weights.reshape(-1)[:n_choices].copy()

    def visit_two(
        self, order: Integers, uniforms: Floats, forced: Labels, labels: Labels, stats: Floats
    ) -> float:
        """Let rows choose between clusters 0 and 1."""
        room = self._room(stats, 2)
        return visit_two(*self._parts, order, uniforms, forced, labels, self._log_new, stats, *room)

    def log_marginal(self, stats: Floats) -> Floats:
        """Return log f of groups."""
        return self._family.log_marginal(stats)

    def add(self, stats: Floats, group: int, row: int) -> None:
        """Add a row to the statistics of a group."""
        change(*self._parts, stats, group, row, self.weights[row])

    def _room(self, statistics: Floats, n_clusters: int) -> Room:
        """Return caches that are filled, and room to work in; one more place than clusters."""
        n_blocks = capacity(len(statistics)) // LANES
        cache = np.ones((n_blocks, self._n_figures, LANES))
        refresh_all(*self._parts, statistics, cache, n_clusters, -1)
        work = np.empty((1 + self._parts.dense.shape[1], LANES))
        return Room(cache, np.empty((n_blocks, LANES)), np.empty((n_blocks, LANES)), work)


class PlainUrn(Urn):
    """Visits through the marginal of any family, row by row in Python."""

    def __init__(self, rows: Rows, family: Family, weights: Floats) -> None:
        self.weights = weights
        self._rows, self._family = rows, family
        n_rows = len(weights)
        self._log_new = np.empty(n_rows)
        step = max(1, _STATISTICS_CELLS // family.n_statistics)
        parts = [slice(at, at + step) for at in range(0, n_rows, step)]
        self._known = family.statistics(rows) if len(parts) == 1 else None
        log_gammas = np.array([math.lgamma(weight) for weight in weights])
        for part in parts:
            copies = weights[part, None] * family.statistics(rows[part])
            self._log_new[part] = family.log_marginal(copies) + log_gammas[part]

    def visit(self, found: Partition, concentration: float, uniforms: Floats) -> Partition:
        """Let every row choose a cluster."""
        labels, stats, n_clusters = found.labels, found.statistics, found.n_clusters
        marginals = np.zeros(capacity(len(stats)))
        marginals[:n_clusters] = self.log_marginal(stats[:n_clusters])
        for i in range(len(labels)):
            stats = with_room(stats, n_clusters)
            marginals = np.resize(marginals, max(len(marginals), len(stats)))
            own = int(labels[i])
            choices, after = self._choices(
                i, own, n_clusters, math.log(concentration), stats, marginals
            )
            chosen = choose(choices, len(choices), uniforms[i])
            if chosen != own:
                n_clusters = self._move(i, own, chosen, after, labels, n_clusters, stats, marginals)
        return Partition(labels, stats, n_clusters)

    def log_choices(self, found: Partition, concentration: float, row: int) -> Floats:
        """Return the logarithms of a row's weights."""
        marginals = self.log_marginal(found.statistics[: found.n_clusters])
        own = int(found.labels[row])
        choices, _ = self._choices(
            row, own, found.n_clusters, math.log(concentration), found.statistics, marginals
        )
        return choices

    def visit_two(
        self, order: Integers, uniforms: Floats, forced: Labels, labels: Labels, stats: Floats
    ) -> float:
        """Let rows choose between clusters 0 and 1."""
        total, marginals = 0.0, self.log_marginal(stats)
        for step, i in enumerate(order.tolist()):
            own = int(labels[i])
            choices, after = self._choices(i, own, 2, -math.inf, stats, marginals)
            log_shares = choices[:2] - np.logaddexp(choices[0], choices[1])
            if len(forced):
                chosen = int(forced[step])
            else:
                chosen = int(uniforms[step] >= math.exp(log_shares[0]))
            total += float(log_shares[chosen])
            if chosen != own:
                self._move(i, own, chosen, after, labels, 2, stats, marginals)
        return total

    def log_marginal(self, stats: Floats) -> Floats:
        """Return log f of groups."""
        return self._family.log_marginal(stats)

    def add(self, stats: Floats, group: int, row: int) -> None:
        """Add a row to the statistics of a group."""
        stats[group] += self._copies(row)

    def _copies(self, i: int) -> Floats:
        """Return the statistics of a row, as many times as it counts."""
        if self._known is not None:
            return np.asarray(self.weights[i] * self._known[i])
        return np.asarray(self.weights[i] * self._family.statistics(self._rows[i : i + 1])[0])

    def _choices(
        self,
        i: int,
        own: int,
        n_clusters: int,
        log_concentration: float,
        stats: Floats,
        marginals: Floats,
    ) -> tuple[Floats, Floats]:
        """Return the logarithms of weights, and marginals of clusters when the row has moved."""
        load, copies = self.weights[i], self._copies(i)
        sizes = stats[:n_clusters, 0].copy()
        changed = stats[:n_clusters] + copies
        single = False
        if own >= 0:
            sizes[own] -= load
            single = sizes[own] <= 0.0
            changed[own] = stats[own] - (0.0 if single else copies)
        after = self.log_marginal(changed)
        choices = np.empty(n_clusters + (not single))
        choices[:n_clusters] = after - marginals[:n_clusters]
        new = log_concentration + self._log_new[i]
        if own >= 0:
            choices[own] = marginals[own] - after[own]
        if single:
            choices[own] = new
        else:
            choices[n_clusters] = new
        for k in range(n_clusters):
            if sizes[k] > 0.0:
                choices[k] += math.lgamma(sizes[k] + load) - math.lgamma(sizes[k])
        return choices, after

    def _move(
        self,
        i: int,
        own: int,
        chosen: int,
        after: Floats,
        labels: Labels,
        n_clusters: int,
        stats: Floats,
        marginals: Floats,
    ) -> int:
        """Take a row from one cluster to another; return the number of clusters."""
        opened = chosen == n_clusters
        copies = self._copies(i)
        stats[chosen] += copies
        marginals[chosen] = self.log_marginal(copies[None])[0] if opened else after[chosen]
        labels[i] = chosen
        n_clusters += opened
        if own < 0:
            return n_clusters
        if stats[own, 0] > self.weights[i]:
            stats[own] -= copies
            marginals[own] = after[own]
            return n_clusters
        last = n_clusters - 1
        if own != last:
            stats[own], marginals[own] = stats[last], marginals[last]
            labels[labels == last] = own
        stats[last] = 0.0
        return last


def _check_weights(weights: npt.ArrayLike, n_rows: int) -> Floats:
    found = np.ascontiguousarray(weights, dtype=np.float64)
    expected = f"{n_rows} whole numbers from 1 on, one a row"
    hint = "A weight says how many equal rows a row stands for."
    if found.shape != (n_rows,):
        raise InputError("row_weights", expected, f"shape {found.shape}", hint)
    bad = ~((found >= 1.0) & (found == np.floor(found)) & np.isfinite(found))
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError("row_weights", expected, f"{found[at]:g} in row {at}", hint)
    return found
