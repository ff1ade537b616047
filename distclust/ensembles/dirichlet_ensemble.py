r"""DPCE: a Dirichlet-process mixture of products of multinomials over label rows.

.. math:: z \sim CRP(\alpha), \quad \theta_{km} \sim Dir(\beta_m / J_m, \ldots), \quad
          y_{nm} \sim \theta_{z_n m}

for every label that is not missing; :math:`J_m` is the number of labels of base m and
:math:`\beta_m` the *total* pseudo-count. The number of consensus clusters is found. All
distributions are integrated out; see `distclust.ensembles.blocked_hosts` for the form in which
they are drawn, for labels that stay where they are.

Rows with equal labels share their conditionals, so cells are kept for each distinct row. Yet
every row is drawn on its own: moving equal rows together (``collapse=True``) is another model,
in which they must not part, and an approximation of this one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from distclust.ensembles._process_group_numerics import (
    join_greedily,
    nearest_rows,
    propose,
    sweep_groups,
)
from distclust.ensembles._process_numerics import count_cells, sweep_rows
from distclust.ensembles.label_rows import Array, Floats, Integers, LabelRows
from distclust.ensembles.labels import LabelMatrix
from distclust.ensembles.multinomial_mixture import (
    EMOptions,
    climb,
    log_probabilities,
    responsibilities,
)
from distclust.ensembles.multinomial_mixture import begin as begin_mixture
from distclust.errors import InputError
from distclust.mixtures.chains import Sampler
from distclust.mixtures.concentration import Concentration, EscobarWest, log_partition
from distclust.validation import check_choice, check_integer, check_real

Int32s = npt.NDArray[np.int32]

START_ROWS = 200  # distinct rows that a chain starts from, the most frequent ones
START_COMPONENTS = (2, 4, 8, 16, 32, 64)
START_OPTIONS = EMOptions(max_iterations=100, tolerance=1e-6, epsilon=1e-3)
RESTRICTED_SCANS = 4
DEFAULT_CONCENTRATION = EscobarWest()

_SAFE_LOG = 600.0  # products whose logarithm stays below this are in the range of numbers


@dataclass(frozen=True, eq=False)
class EnsembleState:
    """A state of a chain.

    Attributes
    ----------
    assignments
        Cluster of each item, 0 to n_clusters - 1.
    generator
        Of all that is random.
    sweep
        Sweeps so far.
    log_joint
        Log probability of the partition and of all labels.
    concentration
        Of the process.
    n_clusters
        Clusters.
    n_accepted
        Splits and merges that were accepted.
    """

    assignments: Int32s
    generator: np.random.Generator
    sweep: int
    log_joint: float
    concentration: float
    n_clusters: int
    n_accepted: int = 0


@dataclass(frozen=True, eq=False)
class Cells:
    """Label rows as the compiled loops want them.

    Attributes
    ----------
    patterns
        Distinct rows, as cells of tables, shape (n_patterns, n_bases).
    pattern_of
        Which of them each item is.
    multiplicities
        Rows that each item stands for.
    log_new
        Log probability of each pattern in a cluster of its own.
    missing
        The cell of each base that stands for a missing label.
    pseudo
        Pseudo-count of each cell; the total one where a label is missing.
    groups
        See `sweep_rows`.
    """

    patterns: Int32s
    pattern_of: Int32s
    multiplicities: Integers
    log_new: Floats
    missing: Integers
    pseudo: Floats
    groups: Integers


@dataclass(frozen=True, eq=False)
class DirichletEnsembleSampler(Sampler[EnsembleState]):
    """Collapsed Gibbs sampling of consensus partitions, with splits and merges.

    Attributes
    ----------
    labels_of_rows
        The labels.
    betas
        Total pseudo-count of each base.
    concentration_step
        How the concentration is drawn.
    collapse
        Whether rows with equal labels move together. That is an approximation, much faster
        where there are few distinct rows: equal rows are never apart, while a chain over rows
        may part them. Multiplicities count: probabilities are those of all rows.
    n_proposals
        Splits and merges that are proposed after each sweep.
    start
        "mixed", "distinct" or "single". From distinct rows: the 200 most frequent ones are a
        cluster each, and others go where most labels agree. From one cluster: chains are known
        to stick. "mixed": even chains start from distinct rows, odd ones from one cluster.

        With ``collapse=True`` large groups hardly ever move, and a chain stays near its start.
        So "mixed" starts each chain from mixtures of multinomials of its own, with 2 to 64
        components that are then joined as long as that gains: the most likely partition.
    """

    labels_of_rows: LabelRows
    betas: Floats
    concentration_step: Concentration
    collapse: bool = False
    n_proposals: int = 1
    start: str = "mixed"

    state_type = EnsembleState

    @classmethod
    def of(
        cls,
        codes: Array,
        n_labels: Array,
        *,
        beta: float | Array | str = 1.0,
        concentration: Concentration = DEFAULT_CONCENTRATION,
        collapse: bool = False,
        weights: Array | None = None,
        n_proposals: int = 1,
        start: str = "mixed",
    ) -> DirichletEnsembleSampler:
        """Return a sampler of plain arrays.

        Parameters
        ----------
        codes, n_labels, weights
            See `LabelRows`; weights are whole numbers, and ask for ``collapse=True``.
        beta
            Total pseudo-count of each base: one number, one a base, or "labels", which is one
            a label.
        concentration
            How the concentration is drawn.
        collapse, n_proposals, start
            See above.
        """
        labels = LabelRows.of(codes, n_labels, weights)
        if weights is not None and not collapse:
            hint = "Pass all rows, or collapse=True, which is an approximation."
            raise InputError("weights", "None, as every row is drawn", "multiplicities", hint)
        if (labels.weights % 1.0).any():
            raise InputError("weights", "whole numbers", "others", "Pass numbers of rows.")
        check_integer(n_proposals, "n_proposals")
        check_choice(start, "start", ("mixed", "distinct", "single"))
        betas = betas_of(beta, labels.n_labels)
        return cls(labels, betas, concentration, collapse, n_proposals, start)

    @property
    def n_items(self) -> int:
        """Rows, as they were given."""
        return self.labels_of_rows.n_rows

    @functools.cached_property
    def cells(self) -> Cells:
        """The rows as cells."""
        return self._rows_and_cells[1]

    @functools.cached_property
    def _rows_and_cells(self) -> tuple[npt.NDArray[Any], Cells]:
        """Which distinct row each row is, and the cells of items."""
        labels = self.labels_of_rows
        distinct = LabelMatrix.of_codes(labels.codes, labels.n_labels.tolist()).collapsed()
        many = np.bincount(distinct.inverse, labels.weights).astype(np.int64)
        starts = labels.offsets + np.arange(labels.n_bases)  # a cell more for each base before
        missing = starts + labels.n_labels
        codes = distinct.codes.astype(np.int32)
        patterns = np.where(codes >= 0, codes + starts, missing).astype(np.int32)
        pseudo = np.repeat(self.betas / labels.n_labels, labels.n_labels + 1)
        pseudo[missing] = self.betas
        n = len(patterns)
        log_new = np.dot(codes >= 0, -np.log(labels.n_labels.astype(np.float64)))
        items = np.arange(n) if self.collapse else distinct.inverse
        cells = Cells(
            patterns,
            items.astype(np.int32),
            many if self.collapse else np.ones(labels.n_rows, np.int64),
            log_new,
            missing,
            pseudo,
            _safe_groups(self.betas, labels.n_labels, labels.n_objects),
        )
        return distinct.inverse, cells

    def open(self) -> Cells:
        """Return the cells."""
        return self.cells

    def begin(self, chain: int, generator: np.random.Generator) -> EnsembleState:
        """Return the partition that a chain starts from; see `start`."""
        value = self.concentration_step.start()
        is_odd = self.start == "mixed" and chain % 2 == 1
        if self.start == "single" or (is_odd and not self.collapse):
            assignments = np.zeros(len(self.cells.pattern_of), np.int32)
        elif self.collapse and self.start == "mixed":
            assignments = self._from_mixtures(value, generator)
        else:
            assignments = _from_distinct_rows(self.cells)
        n = int(assignments.max()) + 1
        joint = self.log_joint(assignments, value)
        return EnsembleState(assignments, generator, 0, joint, value, n)

    def sweep(self, place: Cells, state: EnsembleState) -> EnsembleState:
        """Draw every item anew, propose splits and merges, and draw the concentration.

        Counts are whole numbers, counted before each sweep; nothing is carried along that could
        drift.
        """
        cells, rng, z = place, state.generator, state.assignments
        log_concentration = math.log(state.concentration)
        n = self._sweep_items(cells, log_concentration, rng.random(len(z)), state.n_clusters, z)
        accepted = state.n_accepted
        for _ in range(self.n_proposals):
            n, is_accepted = split_or_merge(cells, log_concentration, n, z, rng)
            accepted += is_accepted
        value = self.concentration_step.draw(
            state.concentration, n, self.labels_of_rows.n_objects, rng
        )
        return replace(
            state,
            sweep=state.sweep + 1,
            log_joint=self.log_joint(z, value),
            concentration=value,
            n_clusters=n,
            n_accepted=accepted,
        )

    def scalars(self, state: EnsembleState) -> Sequence[float]:
        """Return the log joint, the number of clusters and the concentration."""
        return state.log_joint, float(state.n_clusters), state.concentration

    def labels(self, state: EnsembleState) -> Int32s:
        """Return the cluster of every row."""
        if not self.collapse:
            return state.assignments
        found: Int32s = state.assignments[self._rows_and_cells[0]]
        return found

    def log_joint(self, assignments: Int32s, concentration: float) -> float:
        """Return log p(z | concentration) + log p(Y | z), for items' clusters.

        With ``collapse=True`` it is that of all rows.
        """
        counts, sizes = self._counts(assignments)
        return log_partition(sizes, concentration) + _log_labels(counts, self.cells)

    def log_likelihood(self, assignments: Int32s) -> float:
        """Return log p(Y | z), for items' clusters."""
        return _log_labels(self._counts(assignments)[0], self.cells)

    def consensus(self, assignments: Int32s, concentration: float) -> Consensus:
        """Return what a partition of items says of rows to come."""
        counts, sizes = self._counts(assignments)
        cells = self.cells
        is_label = np.ones(len(cells.pseudo), bool)
        is_label[cells.missing] = False
        n_labels = self.labels_of_rows.n_labels
        totals = np.repeat(counts[cells.missing] + self.betas[:, None], n_labels, axis=0)
        theta = (counts + cells.pseudo[:, None])[is_label] / totals
        unseen = np.repeat(1.0 / n_labels, n_labels)[:, None]
        n = sizes.sum() + concentration
        shares = np.append(sizes / n, concentration / n)
        return Consensus(n_labels, shares, np.hstack([theta, unseen]))

    def _sweep_items(
        self, cells: Cells, log_concentration: float, uniforms: Floats, n: int, z: Int32s
    ) -> int:
        if self.collapse:
            return sweep_groups(
                cells.patterns,
                cells.multiplicities,
                cells.missing,
                cells.pseudo,
                log_concentration,
                uniforms,
                n,
                z,
            )
        return sweep_rows(
            cells.patterns,
            cells.pattern_of,
            cells.log_new,
            cells.missing,
            cells.pseudo,
            cells.groups,
            log_concentration,
            uniforms,
            n,
            z,
        )

    def _from_mixtures(self, concentration: float, rng: np.random.Generator) -> Int32s:
        """Return the most likely of the partitions that mixtures of several sizes give."""
        labels = self._distinct
        found = np.zeros(labels.n_rows, np.int32)
        best = self.log_joint(found, concentration)
        for n in START_COMPONENTS:
            fit = climb(labels, begin_mixture(labels, n, rng), START_OPTIONS)
            chosen = responsibilities(labels, fit.shares, fit.theta).argmax(axis=1)
            compact = np.unique(chosen, return_inverse=True)[1].astype(np.int32)
            joined = self._joined(compact, concentration)
            joint = self.log_joint(joined, concentration)
            if joint > best:
                found, best = joined, joint
        return found

    def _joined(self, assignments: Int32s, concentration: float) -> Int32s:
        """Return a partition whose clusters were joined while that gains."""
        cells = self.cells
        counts, sizes = self._counts(assignments)
        log_concentration = math.log(concentration)
        names = join_greedily(counts, sizes, cells.missing, cells.pseudo, log_concentration)
        found: Int32s = names[assignments]
        return found

    @property
    def _distinct(self) -> LabelRows:
        """The items of a sampler with ``collapse=True``."""
        labels, cells = self.labels_of_rows, self.cells
        first = cells.missing - labels.n_labels
        codes = np.where(cells.patterns == cells.missing, -1, cells.patterns - first)
        kind = labels.codes.dtype
        return LabelRows.of(codes.astype(kind), labels.n_labels, cells.multiplicities)

    def _counts(self, assignments: Int32s) -> tuple[Integers, Integers]:
        cells, n = self.cells, int(assignments.max()) + 1
        counts, sizes = np.zeros((len(cells.pseudo), n), np.int64), np.zeros(n, np.int64)
        count_cells(
            cells.patterns,
            cells.pattern_of,
            cells.multiplicities,
            cells.missing,
            assignments,
            counts,
            sizes,
        )
        return counts, sizes


@dataclass(frozen=True, eq=False)
class Consensus:
    """What a partition says of label rows to come: a mixture, with a new cluster as its last.

    Attributes
    ----------
    n_labels
        Labels of each base.
    shares
        Weights of the clusters, and of a new one, shape (K + 1,).
    theta
        Mean probability of each label in each of them, shape (n_cells, K + 1).
    """

    n_labels: Integers
    shares: Floats
    theta: Floats

    def log_predictive(self, codes: Array) -> Floats:
        """Return log p of label rows, shape (n_rows,); missing labels are left out."""
        labels = LabelRows.of(codes, self.n_labels)
        return log_probabilities(labels, self.shares, self.theta)

    def predict_proba(self, codes: Array) -> Floats:
        """Return the probability of each cluster, and of a new one, shape (n_rows, K + 1)."""
        labels = LabelRows.of(codes, self.n_labels)
        return responsibilities(labels, self.shares, self.theta)


def split_or_merge(
    cells: Cells, log_concentration: float, n_clusters: int, z: Int32s, rng: np.random.Generator
) -> tuple[int, bool]:
    """Pick two items; propose to part or to join their clusters.

    `z` is written over. Returns how many clusters there are, and whether it was accepted.
    """
    if len(z) < 2:
        return n_clusters, False
    i, j = _pair(len(z), rng)
    is_split = bool(z[i] == z[j])
    own, other = int(z[i]), int(z[j])
    members = np.flatnonzero((z == own) | (z == other))
    members = np.concatenate([[i, j], members[(members != i) & (members != j)]])
    uniforms = rng.random((RESTRICTED_SCANS + 2, len(members)))
    sides = (z[members] == other).astype(np.int8)
    ratio = propose(
        cells.patterns[cells.pattern_of[members]],
        cells.multiplicities[members],
        cells.missing,
        cells.pseudo,
        log_concentration,
        is_split,
        uniforms,
        sides,
    )
    if math.log1p(-rng.random()) >= ratio:
        return n_clusters, False
    if is_split:
        z[members[sides == 1]] = n_clusters
        return n_clusters + 1, True
    z[members] = own
    z[z == n_clusters - 1] = other
    return n_clusters - 1, True


def betas_of(beta: float | Array | str, n_labels: Integers) -> Floats:
    """Return the total pseudo-count of each base.

    Raises
    ------
    InputError
        If it is neither a positive number, nor one a base, nor "labels".
    """
    if isinstance(beta, str):
        check_choice(beta, "beta", ("labels",))
        return n_labels.astype(np.float64)
    if np.ndim(beta) == 0:
        return np.full(len(n_labels), check_real(beta, "beta", above=0.0))
    found = np.asarray(beta, np.float64)
    if found.shape != n_labels.shape or not (np.isfinite(found) & (found > 0)).all():
        hint = "Pass one number for all bases, or 'labels'."
        raise InputError("beta", f"{len(n_labels)} positive numbers", repr(beta), hint)
    return found


def _from_distinct_rows(cells: Cells) -> Int32s:
    """Return clusters around the most frequent rows."""
    kept = np.sort(_by_frequency(cells)[:START_ROWS])
    found: Int32s = nearest_rows(cells.patterns, kept)[cells.pattern_of]
    return found


def _by_frequency(cells: Cells) -> npt.NDArray[np.intp]:
    """Return distinct rows, frequent ones first."""
    n = len(cells.patterns)
    many = np.bincount(cells.pattern_of, cells.multiplicities, minlength=n)
    return np.argsort(-many, kind="stable")


def _log_labels(counts: Integers, cells: Cells) -> float:
    """Return log p(Y | z) from counts of cells; cells of missing labels hold the totals."""
    prior = cells.pseudo[:, None]
    rising = (gammaln(counts + prior) - gammaln(prior)).sum(axis=1)
    rising[cells.missing] *= -1.0
    return float(rising.sum())


def _pair(n: int, rng: np.random.Generator) -> tuple[int, int]:
    i, j = int(rng.integers(n)), int(rng.integers(n - 1))
    return i, j + (j >= i)


def _safe_groups(betas: Floats, n_labels: Integers, n_objects: float) -> Integers:
    """Return groups of bases whose factors may be multiplied; see `sweep_rows`.

    A base contributes a count and the inverse of a total; the bound holds for any order.
    """
    pseudo = betas / n_labels
    above = np.maximum(np.abs(np.log(pseudo)), np.log(n_objects + pseudo))
    below = np.maximum(np.abs(np.log(betas)), np.log(n_objects + betas))
    bounds = [0]
    # One object more is the size of the cluster.
    room = start = _SAFE_LOG - math.log(n_objects + 1.0)
    for m, size in enumerate((above + below).tolist()):
        if size > room and m > bounds[-1]:
            bounds.append(m)
            room = start
        room -= size
    return np.array([*bounds, len(betas)], np.int64)
