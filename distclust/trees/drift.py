r"""Do new rows fit the clusters they land in as well as old rows do?

The score of a row is its log predictive density under the leaf it is in, by the leaf's rows as
they were when it was fitted. For an old row it is that of the other rows of the leaf, so that
old and new scores have the same distribution as long as nothing changes. With mean, variance
and number of the old scores and of the new ones,

.. math:: z = \frac{\bar s_{old} - \bar s_{new}}
                   {\sqrt{v_{old} / n_{old} + v_{new} / n_{new}}}

tells by how many standard errors new rows fit worse. The variance of few new scores is easily
too small, so that of the old ones stands in for it where it is larger. At an inner node the
differences of its leaves are added up, weighted by their new rows, and their variances with the
squares of the weights: a change in how many rows go to which cluster is no drift.

Scores of old rows are measured once, on blocks chosen by hash, and kept with the tree. Those of
new rows add up from night to night, so that a slow drift is found, too; a node is reopened on a
night that brings it rows. Where the lowest nodes that drifted are reopened, the nodes above them
drifted with them: that is answered then, and what is left of it counts anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import map_ordered
from distclust.families import Bernoulli, Family
from distclust.seeding import path_salt
from distclust.store import Matrix
from distclust.store.codes import Codes, read_range, spans_between
from distclust.trees.fits import bounds_of
from distclust.trees.structure import Structure
from distclust.trees.sweeping import Clusters, own_sums

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

FEWEST = 8  # rows of either kind below which nothing is compared

_LEAST_VARIANCE = 1e-4  # rows that are all alike: a hundredth of a nat is no drift
_TOLD = 20  # nodes that a report names
_ROWS, _ROWS_A_LEAF = 65_536, 256
_CELLS = 2**28  # of statistics that are looked at to leave a row out of its cluster


@dataclass(frozen=True)
class DriftRules:
    """When a tree is fitted again.

    Attributes
    ----------
    threshold
        Standard errors by which new rows fit worse than old ones.
    share
        Part of all rows in nodes that drifted from which on the whole tree is fitted again.
    """

    threshold: float = 4.0
    share: float = 0.25


@dataclass(frozen=True, eq=False)
class Moments:
    """Number, mean and sum of squared deviations of scores, each (n_groups,)."""

    n: Floats
    mean: Floats
    m2: Floats

    @classmethod
    def none(cls, n_groups: int) -> Moments:
        """Return those of no scores."""
        return cls(np.zeros(n_groups), np.zeros(n_groups), np.zeros(n_groups))

    @classmethod
    def of(cls, scores: Floats, groups: Indices, n_groups: int) -> Moments:
        """Return those of scores (n,) by group (n,)."""
        n = np.bincount(groups, minlength=n_groups).astype(np.float64)
        mean = np.bincount(groups, scores, n_groups) / np.maximum(n, 1.0)
        m2 = np.bincount(groups, (scores - mean[groups]) ** 2, n_groups)
        return cls(n, mean, m2.astype(np.float64))

    def __add__(self, later: Moments) -> Moments:
        n = self.n + later.n
        step = later.mean - self.mean
        part = later.n / np.maximum(n, 1.0)
        return Moments(n, self.mean + step * part, self.m2 + later.m2 + step**2 * self.n * part)

    def take(self, chosen: Indices) -> Moments:
        """Return those of some groups; of none where the number is negative."""
        is_known = chosen >= 0
        parts = (np.where(is_known, part[np.maximum(chosen, 0)], 0.0) for part in self.arrays)
        return Moments(*parts)

    def without(self, groups: npt.NDArray[np.bool_]) -> Moments:
        """Return those of no scores for some groups, the same for all others."""
        return self.take(np.where(groups, -1, np.arange(len(groups))))

    @property
    def arrays(self) -> tuple[Floats, Floats, Floats]:
        """The three arrays."""
        return self.n, self.mean, self.m2

    @property
    def variance(self) -> Floats:
        """Variance of the scores of each group; 0 where it is unknown."""
        return np.where(self.n > 1, self.m2 / np.maximum(self.n - 1.0, 1.0), 0.0)


@dataclass(frozen=True, eq=False)
class Baseline:
    """What new rows are compared with, by leaf.

    Attributes
    ----------
    reference
        Statistics of the leaves when they were fitted, shape (n_leaves, p).
    old
        Scores of rows of the fit.
    since
        Scores of all rows that came since.
    """

    reference: Floats
    old: Moments
    since: Moments

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return it as arrays by name."""
        arrays: dict[str, npt.NDArray[Any]] = {"reference": self.reference}
        for name in ("old", "since"):
            arrays[name] = np.stack(getattr(self, name).arrays)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Baseline:
        """Inverse of `to_arrays`."""
        return cls(arrays["reference"], Moments(*arrays["old"]), Moments(*arrays["since"]))

    def joined(self, measured: Baseline, known_as: Indices) -> Baseline:
        """Return the baseline of another tree.

        Parameters
        ----------
        measured
            Of its new leaves.
        known_as
            What each of its leaves was before, -1 for new ones, shape (n_leaves,).
        """
        is_new = known_as < 0
        reference = self.reference[np.maximum(known_as, 0)]
        reference[is_new] = measured.reference[is_new]
        return replace(
            measured,
            reference=reference,
            old=measured.old + self.old.take(known_as),
            since=self.since.take(known_as),
        )


# ---- scores --------------------------------------------------------------------------------------


def new_scores(family: Family, block: Any, leaves: Indices, reference: Floats) -> Floats:
    """Return log p(x | leaf) of rows that the leaves have not seen, shape (n,)."""
    if isinstance(family, Bernoulli) and not family.has_missing:
        groups, own = np.unique(leaves, return_inverse=True)
        slopes, constants = family.affine(reference[groups])
        return constants[own] + own_sums(block, np.ascontiguousarray(slopes.T), own)
    scores = np.empty(len(leaves))
    order = np.argsort(leaves, kind="stable")
    cuts = np.flatnonzero(np.diff(leaves[order])) + 1
    for rows in np.split(order, cuts):
        if len(rows):
            leaf = leaves[rows[0]]
            scores[rows] = family.log_predictive(block[rows], reference[leaf : leaf + 1])[:, 0]
    return scores


@dataclass(frozen=True, eq=False)
class LeafOfRow:
    """Where the leaves of rows are read; travels to workers."""

    codes: Codes | None  # None: all rows are in leaf 0
    leaf_of_code: Indices

    def read(self, bounds: Mapping[int, tuple[int, int]], start: int, stop: int) -> Indices:
        """Return the leaves of rows ``[start, stop)``, which lie in the spans of `bounds`."""
        if self.codes is None:
            return np.zeros(stop - start, np.int64)
        return self.leaf_of_code[read_range(self.codes, bounds, start, stop)]


def measure(
    matrix: Matrix,
    leaves: LeafOfRow,
    family: Family,
    stats: Floats,
    is_wanted: npt.NDArray[np.bool_],
    seed: int,
) -> Baseline:
    """Return the baseline of some leaves, from some blocks.

    Blocks are taken in the order of a hash, those left out that bring no rows of a leaf of
    which too few are known; so leaves whose rows lie together are measured, too.

    Parameters
    ----------
    matrix, leaves
        The rows, and where they are.
    family, stats
        Of the leaves, shape (n_leaves, p).
    is_wanted
        Which leaves are measured, shape (n_leaves,).
    seed
        Of the hash.
    """
    n_leaves = len(stats)
    found = Moments.none(n_leaves)
    if is_wanted.any():
        chosen = _choose_blocks(matrix, leaves, stats, is_wanted, seed)
        clusters = Clusters(family, stats, np.zeros(n_leaves), 0.0)
        shared = matrix, leaves, clusters, is_wanted
        stage = "measuring the fit"
        for part in map_ordered(_score_block, chosen, *shared, stage=stage, is_noted=True):
            found = found + part
    return Baseline(stats, found, Moments.none(n_leaves))


def _choose_blocks(
    matrix: Matrix, leaves: LeafOfRow, stats: Floats, is_wanted: npt.NDArray[np.bool_], seed: int
) -> list[tuple[int, dict[int, tuple[int, int]]]]:
    """Return the numbers of blocks to read, ascending, each with the spans it lies in."""
    bounds = bounds_of(matrix)
    items = [(i, spans_between(bounds, *matrix.block_bounds(i))) for i in range(matrix.n_blocks)]
    counts = list(map_ordered(_count_block, items, matrix, leaves, is_wanted))
    lacking = np.where(is_wanted, np.minimum(stats[:, 0], _ROWS_A_LEAF), 0.0)
    most = min(_ROWS, max(_CELLS // stats.shape[1], _ROWS_A_LEAF))
    taken, n_rows = [], 0
    for i in sorted(range(len(items)), key=lambda i: int(path_salt(seed, "baseline", i))):
        here, n_here = counts[i]
        if n_rows >= most or not (lacking[here] > 0).any():
            continue
        taken.append(i)
        n_rows += int(n_here.sum())
        lacking[here] -= n_here
    return [items[i] for i in sorted(taken)]


def _count_block(
    item: tuple[int, dict[int, tuple[int, int]]],
    matrix: Matrix,
    leaves: LeafOfRow,
    is_wanted: npt.NDArray[np.bool_],
) -> tuple[Indices, Indices]:
    """Return which wanted leaves rows of a block are in, and how many; reads codes only."""
    index, bounds = item
    found, counts = np.unique(leaves.read(bounds, *matrix.block_bounds(index)), return_counts=True)
    return found[is_wanted[found]], counts[is_wanted[found]]


def _score_block(
    item: tuple[int, dict[int, tuple[int, int]]],
    matrix: Matrix,
    leaves: LeafOfRow,
    clusters: Clusters,
    is_wanted: npt.NDArray[np.bool_],
) -> Moments:
    """Return the scores of rows of a block, each left out of its own leaf."""
    index, bounds = item
    own = leaves.read(bounds, *matrix.block_bounds(index))
    rows = np.flatnonzero(is_wanted[own])
    scores = clusters.own_densities(matrix.block(index)[rows], own[rows])
    return Moments.of(scores, own[rows], len(is_wanted))


# ---- the test ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Drift:
    """What a comparison found, by node of the tree.

    Attributes
    ----------
    z
        Standard errors by which new rows fit worse, the larger of the last rows' and of all
        that came since; NaN where too few are known, shape (n_nodes,).
    is_outgrown
        Leaves with too few old rows to compare with, and enough new ones, shape (n_nodes,).
    reopened
        The lowest nodes that drifted, ascending.
    is_answered
        Leaves below a node that drifted and has a reopened one below it, shape (n_leaves,).
    """

    z: Floats
    is_outgrown: npt.NDArray[np.bool_]
    reopened: Indices
    is_answered: npt.NDArray[np.bool_]


def find_drift(
    structure: Structure, baseline: Baseline, latest: Moments, threshold: float
) -> Drift:
    """Compare new rows with old ones at every node.

    Parameters
    ----------
    structure
        The tree.
    baseline
        With all rows that came since in it.
    latest
        Scores of those that came last.
    threshold
        In standard errors.
    """
    z = np.fmax(
        z_of_nodes(structure, baseline.old, latest),
        z_of_nodes(structure, baseline.old, baseline.since),
    )
    is_outgrown = np.zeros(structure.n_nodes, np.bool_)
    is_outgrown[: structure.n_leaves] = (baseline.old.n < FEWEST) & (
        baseline.since.n >= np.maximum(FEWEST, baseline.reference[:, 0])
    )
    with np.errstate(invalid="ignore"):
        has_drifted = (z > threshold) | is_outgrown
    has_drifted &= structure.sum_up(latest.n) > 0
    is_above = np.zeros(structure.n_nodes, np.bool_)  # something below has drifted
    for node in range(structure.n_leaves, structure.n_nodes):
        children = structure.children(node)
        is_above[node] = (has_drifted[children] | is_above[children]).any()
    is_answered = has_drifted & is_above
    for node in range(structure.n_nodes - 1, structure.n_leaves - 1, -1):
        is_answered[structure.children(node)] |= is_answered[node]
    reopened = np.flatnonzero(has_drifted & ~is_above)
    return Drift(z, is_outgrown, reopened, is_answered[: structure.n_leaves])


def z_of_nodes(structure: Structure, old: Moments, new: Moments) -> Floats:
    """Return z of every node, NaN where fewer than `FEWEST` rows can be compared."""
    is_known = (old.n >= FEWEST) & (new.n > 0)
    weight = np.where(is_known, new.n, 0.0)
    of_old = np.maximum(old.variance, _LEAST_VARIANCE)
    of_new = np.maximum(new.variance, of_old)
    spread = of_old / np.maximum(old.n, 1.0) + of_new / np.maximum(new.n, 1.0)
    difference = np.where(is_known, old.mean - new.mean, 0.0)
    sums = structure.sum_up(np.stack([weight, weight * difference, weight**2 * spread], axis=1))
    enough = sums[:, 0] >= FEWEST
    errors = np.sqrt(np.where(enough, sums[:, 2], 1.0))
    return np.where(enough, sums[:, 1] / errors, math.nan)


def describe(
    structure: Structure,
    drift: Drift,
    baseline: Baseline,
    latest: Moments,
    sizes: Indices | Floats,
    paths: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return what a comparison found as JSON values, with the nodes that drifted most.

    Parameters
    ----------
    structure, drift, baseline, latest
        What was compared, and what was found; see `find_drift`.
    sizes
        Rows of every node now, shape (n_nodes,).
    paths
        Name of every leaf, where they have any.
    """
    n_old, n_since, n_new = (
        structure.sum_up(scores.n) for scores in (baseline.old, baseline.since, latest)
    )
    order = np.argsort(-np.nan_to_num(drift.z, nan=-np.inf), kind="stable")
    told = dict.fromkeys([*drift.reopened.tolist(), *order[:_TOLD].tolist()])
    known = drift.z[~np.isnan(drift.z)]
    return {
        "n_compared": len(known),
        "n_reopened": len(drift.reopened),
        "largest_z": float(known.max()) if len(known) else None,
        "nodes": [
            {
                "node": node,
                "path": None if paths is None or node >= structure.n_leaves else paths[node],
                "is_leaf": node < structure.n_leaves,
                "n_rows": int(sizes[node]),
                "n_old": int(n_old[node]),
                "n_new": int(n_new[node]),
                "n_since": int(n_since[node]),
                "z": None if math.isnan(drift.z[node]) else float(drift.z[node]),
                "is_outgrown": bool(drift.is_outgrown[node]),
                "is_reopened": bool((drift.reopened == node).any()),
            }
            for node in list(told)[:_TOLD]
        ],
    }
