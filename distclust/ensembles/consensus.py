"""From label rows to a consensus: what is clustered, and what a fitted model says of labels.

Equal label rows are one item with a multiplicity where the model allows it. Rows without any
label say nothing: they are left out of the fit and get no cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.ensembles import bayesian_ensemble as bce
from distclust.ensembles import multinomial_mixture as mm
from distclust.ensembles.label_rows import Array, Floats, Integers, LabelRows
from distclust.ensembles.labels import MISSING, Codes, LabelMatrix
from distclust.errors import InputError
from distclust.mixtures.chains import Traces
from distclust.mixtures.point_estimates import canonical, expected_vi, minimise

METHODS = ("dpce", "bce", "mm")
CONSENSUS = ("vi", "binder", "best")

_LEAST_SHARE = 1e-12
_MEMBERSHIP_PASSES = 100  # of a row to come, with the distributions of labels given


@dataclass(frozen=True, eq=False)
class Items:
    """What a model clusters: rows, or distinct rows with multiplicities.

    Attributes
    ----------
    codes
        Labels, shape (n_items, n_bases).
    counts
        How many rows each item is, or None where each is one.
    item_of_row
        Which item every row is, shape (n_rows,), -1 for rows without labels; or None where
        items are the rows.
    """

    codes: Codes
    counts: Integers | None
    item_of_row: npt.NDArray[Any] | None

    @classmethod
    def of(cls, labels: LabelMatrix, *, collapse: bool, where: str) -> Items:
        """Return the items of some labels; equal rows are one if they may be."""
        is_labelled = labels.is_labelled
        if not is_labelled.any():
            raise InputError(where, "rows with labels", "none", "Pass labels of some rows.")
        some = labels if is_labelled.all() else labels.take(is_labelled)
        if not collapse:
            numbers = None if some is labels else np.cumsum(is_labelled) - 1
            return cls(some.codes, None, _without(numbers, is_labelled))
        found = some.collapsed()
        numbers = found.inverse
        if some is not labels:
            numbers = np.zeros(labels.n_rows, found.inverse.dtype)
            numbers[is_labelled] = found.inverse
        return cls(found.codes, found.counts, _without(numbers, is_labelled))

    def spread(self, values: Array, otherwise: Any) -> Array:
        """Return what every row has, from what every item has."""
        if self.item_of_row is None:
            return values
        found: Array = values[self.item_of_row]
        found[self.item_of_row < 0] = otherwise
        return found


def _without(
    numbers: npt.NDArray[Any] | None, is_labelled: npt.NDArray[np.bool_]
) -> npt.NDArray[Any] | None:
    if numbers is None:
        return None
    return numbers if is_labelled.all() else np.where(is_labelled, numbers, MISSING)


@dataclass(frozen=True, eq=False)
class ConsensusModel:
    """What a fit says of label rows, also of those to come.

    Attributes
    ----------
    method
        One of `METHODS`.
    n_labels
        Labels of each base.
    weights
        Shares of the clusters, and for "dpce" of a new one at the end; for "bce" Dirichlet
        parameters of the memberships.
    theta
        Probability of each label in each of them, shape (n_cells, len(weights)).
    """

    method: str
    n_labels: Integers
    weights: Floats
    theta: Floats

    @property
    def n_clusters(self) -> int:
        """Clusters, without a new one."""
        return len(self.weights) - (self.method == "dpce")

    def proba(self, codes: Codes) -> Floats:
        """Return the probability of each cluster, or for "bce" the mean membership in it."""
        labels = LabelRows.of(codes, self.n_labels)
        if self.method == "bce":
            start = bce.start(labels, self.theta, self.weights).gamma
            gamma = np.empty_like(start)
            for rows, block in labels.blocks():
                passes = _MEMBERSHIP_PASSES
                gamma[rows] = bce.memberships_of(
                    block, start[rows], self.theta, self.weights, passes
                ).gamma
            memberships: Floats = gamma / gamma.sum(axis=1, keepdims=True)
            return memberships
        n = self.n_clusters
        return mm.responsibilities(labels, self.weights[:n], self.theta[:, :n])

    def log_likelihood(self, codes: Codes, clusters: Integers) -> Floats:
        """Return the log probability of label rows, each in a cluster, shape (n,).

        Missing labels say nothing; what a cluster never had counts as one in a million million.
        """
        offsets = np.cumsum(self.n_labels) - self.n_labels
        found = np.zeros(len(codes))
        for m, offset in enumerate(offsets.tolist()):
            own = self.theta[offset + np.maximum(codes[:, m], 0), clusters]
            found += np.where(codes[:, m] < 0, 0.0, np.log(np.maximum(own, _LEAST_SHARE)))
        return found

    def only(self, clusters: Integers) -> ConsensusModel:
        """Return a model of some clusters in a given order; not for "dpce"."""
        return ConsensusModel(
            self.method,
            self.n_labels,
            self.weights[clusters],
            np.ascontiguousarray(self.theta[:, clusters]),
        )


@dataclass(frozen=True, eq=False)
class Chosen:
    """One partition for all draws.

    Attributes
    ----------
    labels
        Of the items, by first appearance.
    loss
        Expected loss: Binder's, or the variation of information in bits.
    """

    labels: Integers
    loss: float


def choose_partition(
    consensus: str,
    draws: npt.NDArray[Any],
    log_joint: Floats,
    counts: Integers | None,
    seed: int,
) -> Chosen:
    """Return the partition that stands for draws (n_chains, n_draws, n_items).

    Parameters
    ----------
    consensus
        "vi" or "binder": the least expected loss that is found. "best": the draw with the
        highest log joint; the first of equal ones.
    draws
        Sampled partitions.
    log_joint
        Of each draw, shape (n_chains, n_draws).
    counts
        How many rows each item is.
    seed
        Of the search.
    """
    pooled = draws.reshape(-1, draws.shape[2])
    if consensus == "best":
        best = pooled[int(log_joint.argmax())]
        return Chosen(canonical(best).astype(np.int64), float(expected_vi(best, pooled, counts)[0]))
    loss = "vi" if consensus == "vi" else "binder"
    found = minimise(pooled, loss, row_weights=counts, seed=seed)  # type: ignore[arg-type]
    return Chosen(found.labels.astype(np.int64), float(found.loss))


def log_joint_of_draws(traces: Traces, keep_every: int) -> Floats:
    """Return the log joint of the draws that `Traces.kept_draws` returns."""
    n_all, n_draws = traces.draws.shape[1], traces.kept_draws(keep_every).shape[1]
    sweeps = keep_every * np.arange(n_all - n_draws + 1, n_all + 1) - 1
    return traces.scalars[:, sweeps, 0]
