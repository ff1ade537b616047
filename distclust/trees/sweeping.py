r"""EM sweeps: each row moves to the cluster it is likeliest in, statistics frozen meanwhile.

Algorithm 3.6 of the thesis in the form of spec section 4. A row that is in no cluster yet goes
to the seed under which it is likeliest, a seed to itself; in a sweep row i compares

.. math:: s_{ic} = \log n_c + \log p(x_i \mid D_c), \qquad
          s_{iz} = \log (n_z - 1) + \log p(x_i \mid D_z \setminus x_i)

for all clusters c and its own, z, from which it is taken out first; a row alone in its cluster
counts :math:`\log\alpha + \log p(x_i)`. Ties go to the last cluster.

Codes are numbers of clusters plus one, so that a cluster may become a node below the root.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from distclust.engine import Rows, Span, map_spans
from distclust.families import Bernoulli, Family, is_sparse
from distclust.store import Matrix
from distclust.store.codes import Codes
from distclust.trees import _filter_numerics as numerics
from distclust.trees.filters import Tables, by_parts, make_tables, pack
from distclust.trees.passes import NOWHERE, Digests, check_same

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_STATISTICS_CELLS = 1 << 20


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters as a sweep sees them.

    Attributes
    ----------
    family
        Resolved.
    stats
        Statistics of clusters that have rows, shape (n_clusters, p).
    log_weights
        Log sizes, or zeros for seeds, shape (n_clusters,).
    log_alone
        Log concentration.
    """

    family: Family
    stats: Floats
    log_weights: Floats
    log_alone: float

    def nearest(self, block: Any) -> Indices:
        """Return the likeliest cluster of rows that are in none."""
        tables, packed = self._packed(block)
        if tables is None or packed is None:
            return self._decide(block, None)
        chosen = tables.choose(packed, np.arange(len(self.stats) + 1))
        return self._settle(block, None, chosen)

    def better(self, block: Any, own: Indices) -> Indices:
        """Return the likeliest cluster of rows that are in clusters `own`."""
        tables, packed = self._packed(block)
        without = None if tables is None or packed is None else self._own_tables
        if tables is None or packed is None or without is None:
            return self._decide(block, own)
        chosen = np.empty(len(packed), np.int64)
        numerics.choose_with_own(
            packed, tables.tables, tables.constants, without.tables, without.constants, own,
            tables.margin, chosen,
        )  # fmt: skip
        return self._settle(block, own, chosen)

    def _packed(self, block: Any) -> tuple[Tables | None, npt.NDArray[np.uint8] | None]:
        """Return the tables and the rows as bits, None where they do not apply."""
        tables = None if is_sparse(block) else self._tables
        return tables, None if tables is None else pack(block)

    def _settle(self, block: Any, own: Indices | None, chosen: Indices) -> Indices:
        doubtful = np.flatnonzero(chosen == numerics.DOUBT)
        if len(doubtful):
            mine = None if own is None else own[doubtful]
            chosen[doubtful] = self._decide(block[doubtful], mine)
        return chosen

    def _decide(self, block: Any, own: Indices | None) -> Indices:
        def decide(rows: slice, chosen: Indices) -> None:
            part = block[rows]
            scores = self.family.log_predictive(part, self.stats) + self.log_weights
            if own is not None:
                mine = own[rows]
                scores[np.arange(len(mine)), mine] = self.own_scores(part, mine)
            numerics.last_highest(scores, chosen)

        return by_parts(decide, block, len(self.stats))

    def own_scores(self, block: Any, own: Indices) -> Floats:
        """Return the score of each row's own cluster without the row, shape (n,)."""
        weights = self._own_log_weights[own]
        if self._own_affine is None:
            return weights + left_out(self.family, block, self.stats, own)
        slopes, constants = self._own_affine
        return weights + constants[own] + own_sums(block, slopes, own)

    def own_densities(self, block: Any, own: Indices) -> Floats:
        """Return log p(x | D_own without x) of each row, shape (n,)."""
        if self._own_affine is None:
            return left_out(self.family, block, self.stats, own)
        slopes, constants = self._own_affine
        return constants[own] + own_sums(block, slopes, own)

    @functools.cached_property
    def _own_log_weights(self) -> Floats:
        sizes = self.stats[:, 0]
        is_alone = sizes <= 1.0
        return np.where(is_alone, self.log_alone, np.log(np.where(is_alone, 1.0, sizes - 1.0)))

    @functools.cached_property
    def _own_affine(self) -> tuple[Floats, Floats] | None:
        """Weights (K, D) and constants (K,) of log p(x | D_k without x), binary rows only."""
        family = self.family
        if not isinstance(family, Bernoulli) or family.has_missing:
            return None
        n, ones = self.stats[:, :1], self.stats[:, 1:]
        log_total = np.log(family.alpha + family.beta + np.maximum(n - 1.0, 0.0))
        zeros = n - ones
        # A one among no ones, or a zero among no zeros, cannot be left out: never asked for.
        some_ones, some_zeros = ones > 0.0, zeros > 0.0
        log_one = np.log(np.where(some_ones, family.alpha + (ones - 1.0), 1.0)) - log_total
        log_zero = np.log(np.where(some_zeros, family.beta + (zeros - 1.0), 1.0)) - log_total
        log_one[~some_ones], log_zero[~some_zeros] = 0.0, 0.0
        return log_one - log_zero, log_zero.sum(axis=1)

    @functools.cached_property
    def _tables(self) -> Tables | None:
        none = np.zeros(len(self.stats))
        return make_tables(self.family, self.stats, self.log_weights, none)

    @functools.cached_property
    def _own_tables(self) -> Tables | None:
        assert self._tables is not None, "asked only where there are tables"
        assert self._own_affine is not None, "tables are for binary rows"
        slopes, constants = self._own_affine
        return self._tables.beside(slopes.T, constants + self._own_log_weights)


def own_sums(block: Any, slopes: Floats, own: Indices) -> Floats:
    """Return the product of each row with the slopes of its cluster, shape (n,)."""
    sums = np.empty(len(own))
    if is_sparse(block):
        numerics.add_own_weights(block.indptr, block.indices, slopes, own, sums)
    else:
        rows = np.ascontiguousarray(block, dtype=np.float64)
        numerics.multiply_own_weights(rows, slopes, own, sums)
    return sums


def left_out(family: Family, block: Any, stats: Floats, own: Indices) -> Floats:
    """Return log p(x | D_own without x) of each row as a ratio of marginals, shape (n,)."""
    n_rows = block.shape[0]
    out = np.empty(n_rows)
    log_whole = family.log_marginal(stats)
    step = max(1, _STATISTICS_CELLS // stats.shape[1])
    for start in range(0, n_rows, step):
        part = slice(start, min(start + step, n_rows))
        n_part = part.stop - part.start
        rows = family.accumulate(block[part], np.arange(n_part), n_part)
        rest = stats[own[part]] - rows
        rest[rest[:, 0] == 0.0] = 0.0  # nobody is left, not even rounding
        out[part] = log_whole[own[part]] - family.log_marginal(rest)
    return out


# ---- over spans --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SweepTask:
    """What a sweep is to do.

    Attributes
    ----------
    clusters
        Those that have rows.
    numbers
        Number of each of them among all seeds, ascending.
    n_seeds
        Number of seeds.
    before
        Codes before the sweep; None: rows are in no cluster.
    after
        Where codes after it are kept.
    digests
        What each block was when it was first seen; empty where the store answers for that.
    seed_rows
        Rows that the first pass leaves where they are: the seeds, in their order.
    """

    clusters: Clusters
    numbers: Indices
    n_seeds: int
    before: Codes | None
    after: Codes
    digests: Digests
    seed_rows: Indices


@dataclass(frozen=True, eq=False)
class Swept:
    """What a sweep found: statistics (n_seeds, p), first rows, and how many rows moved."""

    stats: Floats
    first_rows: Indices
    n_moved: int

    def with_added(self, part: Swept) -> Swept:
        """Return what was found in these and in further rows; takes over this one's arrays."""
        np.add(self.stats, part.stats, out=self.stats)
        np.minimum(self.first_rows, part.first_rows, out=self.first_rows)
        return Swept(self.stats, self.first_rows, self.n_moved + part.n_moved)


def sweep_span(span: Span, task: SweepTask) -> tuple[int, Swept, Any]:
    """Move the rows of a span; returns its number, what was found and what codes send."""
    before = None if task.before is None else task.before.read(span.index)
    swept, codes = _nothing_swept(task), []
    for rows in span:
        own = None if before is None else before[rows.start - span.start :]
        part, moved = span.once(rows, _sweep_block, own, task)
        swept = swept.with_added(part)
        codes.append(moved)
    kept = task.after.keep(span.index, np.concatenate(codes))
    return span.index, swept, kept


def _sweep_block(
    rows: Rows, before: npt.NDArray[np.int32] | None, task: SweepTask
) -> tuple[Swept, npt.NDArray[np.int32]]:
    """Move the rows of a block; `before` holds their codes, and those of further rows."""
    check_same(rows, task.digests)
    clusters = task.clusters
    if before is None:
        chosen = clusters.nearest(rows.block)
        places = task.seed_rows - rows.start
        seeds_here = np.flatnonzero((places >= 0) & (places < len(chosen)))
        chosen[places[seeds_here]] = seeds_here
        n_moved = len(chosen)
    else:
        place = np.zeros(task.n_seeds, np.int64)
        place[task.numbers] = np.arange(len(task.numbers))
        own = place[before[: rows.stop - rows.start].astype(np.int64) - 1]
        chosen = clusters.better(rows.block, own)
        n_moved = int(np.sum(chosen != own))
    seeds = task.numbers[chosen]
    stats = clusters.family.accumulate(rows.block, seeds, task.n_seeds)
    first_rows = np.full(task.n_seeds, NOWHERE)
    numerics.note_first_rows(seeds, rows.start, first_rows)
    return Swept(stats, first_rows, n_moved), (seeds + 1).astype(np.int32)


def run_sweep_of_clusters(matrix: Matrix, task: SweepTask, stage: str) -> Swept:
    """Sweep over all spans and add up what they found, in their order."""
    swept = _nothing_swept(task)
    for index, part, kept in map_spans(sweep_span, matrix, task, stage=stage):
        swept = swept.with_added(part)
        task.after.collect(index, kept)
    return swept


def _nothing_swept(task: SweepTask) -> Swept:
    stats = np.zeros((task.n_seeds, task.clusters.family.n_statistics))
    return Swept(stats, np.full(task.n_seeds, NOWHERE), 0)


def objective(family: Family, stats: Floats, concentration: float) -> float:
    """Return J(z) = Σ_c log α + log Γ(n_c) + log f(D_c), over clusters with rows."""
    used = stats[stats[:, 0] > 0]
    priors = math.log(concentration) + gammaln(used[:, 0])
    return float(np.sum(priors + family.log_marginal(used)))
