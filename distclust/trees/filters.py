r"""Filters: to which subtree of a sample's tree does a row belong?

A filter compares the *outcomes* of a split, subtrees of the tree of a sample, by the mass
with which the row would join some cluster inside each (spec section 3):

.. math:: s_g(x) = \log \sum_{k \in T_g} n_k \rho^g_k\, p(x \mid D_k)

with :math:`\rho^g_k` the probability that node k is a block of the partition once g's
ancestors are split. An outcome that is one cluster for certain has one *component*, its root;
one that holds several clusters has a component for every node below it. A row goes to the
outcome with the highest score, on ties to the last one ("right", as published).

Rows of zeros and ones are ranked by whole-number tables, whose rounding is bounded, and
decided by the family's own density wherever the bound leaves a doubt; so tables change how
fast an answer comes, never the answer.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from distclust.engine import local_threads, thread_map
from distclust.families import Bernoulli, Family, is_sparse
from distclust.store.objects import aligned_empty
from distclust.trees import _filter_numerics as numerics
from distclust.trees.components import Components, dense, of_nodes, take
from distclust.trees.evaluate import Evaluation, log_reach_probability
from distclust.trees.structure import Structure

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
FilterPrior = Literal["size", "pi", "flat"]
FilterPredictive = Literal["auto", "subtree", "single"]

CERTAIN = 1e-3  # "auto" takes one component where a merge is doubted less than this

_SCORE_CELLS = 1 << 22  # 32 MB of scores at a time
_SPARSE_SCORE_CELLS = 1 << 24  # wide rows: tables of components are made for each piece
_TABLE_BYTES = 1 << 26
_FEW_ROWS = 512
_LARGEST_SCORE = 2.0**30
_FINEST = 2.0**24
_COARSEST = 2.0**10


@dataclass(frozen=True, eq=False)
class Filter:
    """How rows are told apart.

    Attributes
    ----------
    family
        Resolved.
    components
        Their statistics, those of an outcome together.
    log_weights
        Shape (components,).
    starts
        First component of every outcome, with the number of components added.
    """

    family: Family
    components: Components
    log_weights: Floats
    starts: Indices

    @property
    def stats(self) -> Floats:
        """Statistics of the components, shape (components, p); made anew where they are sums."""
        return dense(self.components)

    @property
    def n_outcomes(self) -> int:
        """Number of outcomes."""
        return len(self.starts) - 1

    def choose(self, block: Any) -> Indices:
        """Return the outcome of every row, shape (n,)."""
        few = block.shape[0] < _FEW_ROWS  # not worth the tables
        tables = None if few or is_sparse(block) else self._tables
        packed = None if tables is None else pack(block)
        if tables is None or packed is None:
            return self._decide(block)
        chosen = tables.choose(packed, self.starts)
        doubtful = np.flatnonzero(chosen == numerics.DOUBT)
        if len(doubtful):
            chosen[doubtful] = self._decide(block[doubtful])
        return chosen

    def scores(self, block: Any) -> Floats:
        """Return log scores of all outcomes, shape (n, n_outcomes)."""
        joint = self._joint(block, self.stats)
        return np.asarray(np.logaddexp.reduceat(joint, self.starts[:-1], axis=1))

    def _joint(self, block: Any, stats: Floats) -> Floats:
        """Return log scores of all components, shape (n, components)."""
        return np.asarray(self.family.log_predictive(block, stats) + self.log_weights)

    def only(self, outcomes: Indices) -> Filter:
        """Return the filter between some of the outcomes, ascending."""
        if len(outcomes) == self.n_outcomes:
            return self
        kept = np.concatenate([np.arange(*self.starts[g : g + 2]) for g in outcomes.tolist()])
        counts = np.diff(self.starts)[outcomes]
        starts = np.concatenate([[0], np.cumsum(counts)])
        return Filter(self.family, take(self.components, kept), self.log_weights[kept], starts)

    def _decide(self, block: Any) -> Indices:
        stats = self.stats

        def decide(rows: slice, chosen: Indices) -> None:
            joint = self._joint(block[rows], stats)
            if self.n_outcomes == len(stats):
                numerics.last_highest(joint, chosen)
            else:
                numerics.choose_outcomes(joint, self.starts, chosen)

        return by_parts(decide, block, len(stats))

    @functools.cached_property
    def _tables(self) -> Tables | None:
        counts = np.diff(self.starts)
        slack = np.repeat(np.log(counts), counts)
        return make_tables(self.family, self.stats, self.log_weights, slack)


def by_parts(decide: Callable[[slice, Indices], None], block: Any, n_components: int) -> Indices:
    """Return what `decide` fills in for some rows at a time, so that memory is bounded.

    All threads that the work here may use take part: those of a block that is alone.
    """
    n_rows = block.shape[0]
    cells = _SPARSE_SCORE_CELLS if is_sparse(block) else _SCORE_CELLS
    step = max(256, cells // n_components)
    chosen = np.empty(n_rows, np.int64)

    def fill(start: int) -> None:
        rows = slice(start, start + step)
        decide(rows, chosen[rows])

    thread_map(fill, range(0, n_rows, step), local_threads())
    return chosen


# ---- tables ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tables:
    """Whole-number scores of rows of zeros and ones.

    Attributes
    ----------
    tables, constants, slack
        See `choose_by_tables`.
    scale, shift
        Units a nat, and what was taken from all constants.
    margin
        Difference of two scores, in units, that rounding cannot reverse.
    """

    tables: npt.NDArray[np.int32]
    constants: npt.NDArray[np.int32]
    slack: npt.NDArray[np.int32]
    scale: float
    shift: float
    margin: int

    def beside(self, weights: Floats, constants: Floats) -> Tables | None:
        """Return tables of other weights (D, K) in the same units, if they fit."""
        none = np.zeros(len(constants))
        return _fixed_point(weights, constants, none, self.scale, self.shift)

    def choose(self, packed: npt.NDArray[np.uint8], starts: Indices) -> Indices:
        """Return the outcome of every row, DOUBT where rounding may decide."""
        chosen = np.empty(len(packed), np.int64)
        outcome = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
        numerics.choose_by_tables(
            packed, self.tables, self.constants, self.slack, outcome, self.margin, chosen
        )
        return chosen


def make_tables(family: Family, stats: Floats, log_weights: Floats, slack: Floats) -> Tables | None:
    """Return the scores of components as tables, or None where they do not pay or fit."""
    if not isinstance(family, Bernoulli) or family.has_missing:
        return None
    n_features, n_components = family.n_features, len(stats)
    if 1024.0 * _whole_words(n_features) * n_components > _TABLE_BYTES:
        return None
    weights, constants = family.affine(stats)
    joint = constants + log_weights
    shift = float(joint.max())  # only differences count
    largest = _largest(weights, joint - shift, slack)
    # A quarter of the range is left for tables beside these.
    scale = min(_FINEST, 2.0 ** math.floor(math.log2(0.25 * _LARGEST_SCORE / largest)))
    if scale < _COARSEST:
        return None
    return _fixed_point(weights, joint, slack, scale, shift)


def _largest(weights: Floats, constants: Floats, slack: Floats) -> float:
    return max(1.0, float((np.abs(weights).sum(axis=0) + np.abs(constants) + slack).max()))


def _fixed_point(
    weights: Floats, constants: Floats, slack: Floats, scale: float, shift: float
) -> Tables | None:
    constants = constants - shift
    if _largest(weights, constants, slack) * scale > _LARGEST_SCORE:
        return None
    n_features = len(weights)
    units = np.rint(weights * scale).astype(np.int32)
    # Every weight and constant is off by half a unit at most, slack is rounded up, and the
    # family's own rounding is far below a unit.
    return Tables(
        _sums_by_byte(units),
        np.rint(constants * scale).astype(np.int32),
        np.ceil(slack * scale).astype(np.int32),
        scale,
        shift,
        margin=n_features + 4,
    )


def _sums_by_byte(units: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the sum of the weights of each byte's ones, shape (n_bytes, 256, components)."""
    n_features, n_components = units.shape
    n_bytes = _whole_words(n_features)
    padded = np.zeros((8 * n_bytes, n_components), np.int32)
    padded[:n_features] = units
    by_bit = padded.reshape(n_bytes, 8, 1, n_components)[:, ::-1]  # the first column is the top bit
    shape = n_bytes, 256, n_components
    tables = aligned_empty(4 * math.prod(shape)).view(np.int32).reshape(shape)
    tables[:, 0] = 0
    for bit in range(8):
        below = 1 << bit  # values without this bit and all above it
        np.add(tables[:, :below], by_bit[:, bit], out=tables[:, below : 2 * below])
    return tables


def pack(block: Any) -> npt.NDArray[np.uint8] | None:
    """Return dense rows of zeros and ones as bits, shape (n, n_bytes); None with NaN."""
    rows = np.asarray(block)
    if rows.dtype.kind == "f":
        if np.isnan(np.sum(rows)):
            return None
        rows = rows != 0.0
    elif rows.dtype not in (np.bool_, np.uint8):
        rows = rows != 0
    bits = np.packbits(rows, axis=1)
    n_bytes = _whole_words(rows.shape[1])
    if bits.shape[1] == n_bytes:
        return bits
    padded = np.zeros((len(bits), n_bytes), np.uint8)
    padded[:, : bits.shape[1]] = bits
    return padded


def _whole_words(n_features: int) -> int:
    return numerics.WORD * max(1, -(-n_features // (8 * numerics.WORD)))


# ---- from the tree of a sample ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SampleTree:
    """The tree of a sample with all that a filter needs to know of it.

    Attributes
    ----------
    structure, evaluation
        Shape and merge probabilities.
    stats
        Statistics of all nodes, shape (n_nodes, p).
    """

    structure: Structure
    evaluation: Evaluation
    stats: Floats


def make_filter(
    family: Family,
    sample: SampleTree,
    outcomes: Indices,
    prior: FilterPrior,
    predictive: FilterPredictive,
) -> Filter:
    """Return the filter between some nodes of a sample's tree, none below another."""
    evaluation, structure = sample.evaluation, sample.structure
    log_reach = log_reach_probability(structure, evaluation)
    log_size = np.log(sample.stats[:, 0])
    nodes, log_weights, counts = [], [], []
    for g in outcomes.tolist():
        log_prior = {"size": log_size[g], "pi": evaluation.log_prior[g], "flat": 0.0}[prior]
        below = (
            np.array([g]) if _is_single(evaluation, g, predictive) else nodes_below(structure, g)
        )
        shares = np.zeros(1)
        if len(below) > 1:
            shares = log_size[below] - log_size[g] + evaluation.log_posterior[below]
            shares += log_reach[below] - log_reach[g]
        nodes.append(below)
        log_weights.append(log_prior + shares)
        counts.append(len(below))
    return Filter(
        family,
        of_nodes(structure, sample.stats, np.concatenate(nodes)),
        np.concatenate(log_weights),
        np.concatenate([[0], np.cumsum(counts)]),
    )


def _is_single(evaluation: Evaluation, node: int, predictive: FilterPredictive) -> bool:
    if predictive == "auto":
        return bool(evaluation.log_not_posterior[node] < math.log(CERTAIN))
    return predictive == "single"


def nodes_below(structure: Structure, node: int) -> Indices:
    """Return all nodes of a subtree, its root included, ascending."""
    first, n_leaves = structure.leaf_start[node], structure.n_leaves_below[node]
    place = structure.leaf_start - first
    return np.flatnonzero(
        (place >= 0) & (place < n_leaves) & (structure.n_leaves_below <= n_leaves)
    )
