"""One partition that stands for many sampled ones, and how far it is from them.

Distances between partitions c and z of N rows (Wade and Ghahramani, Bayesian Analysis 2018):
the variation of information, in bits, and Binder's loss with equal costs, here as the share of
the pairs of rows on which c and z disagree. Both are F(c) + F(z) - 2 F(c, z) up to a factor,
where F sums a function of the sizes of clusters, or of the cells of the contingency table; so
a distance takes one pass over the rows, and no matrix of N x N is made. Both are metrics.

Weights of rows are multiplicities: a row of weight 3 counts as three equal rows. Rows that lie
together in all partitions are counted together, which changes no result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import local_threads, thread_map
from distclust.mixtures import _partition_numerics as numerics
from distclust.mixtures.partitions import (
    Floats,
    Ints,
    Labels,
    Loss,
    Sample,
    canonical,
    gather,
    number_all,
)
from distclust.seeding import generator
from distclust.validation import check_integer

__all__ = [
    "DrawChoice",
    "Loss",
    "PointEstimate",
    "best_draw",
    "canonical",
    "choose_draw",
    "expected_binder",
    "expected_vi",
    "minimise",
]

# Work is counted in rows of a pair of partitions; one takes about a nanosecond.
_EXACT_WORK = 20_000_000_000  # all pairs of draws are compared up to here: 400 of 250,000 rows
_SCREENING_WORK = 1_000_000_000
_FINAL_WORK = 3_000_000_000
_SCREENING_DRAWS = 200
_LEAST_FINALISTS = 8
_SEARCH_WORK = 2_000_000_000  # rows x draws x groups of a greedy search, all passes
_SEARCH_BYTES = 400_000_000
_LEAST_PASSES = 4  # an order takes about so many; rather few orders than few passes
_LINKAGE_ROWS = 2000
_WORTH_COLLAPSING = 4  # candidates
_TOLERANCE = 1e-12  # of the total weight: a greedy move must gain more


@dataclass(frozen=True, eq=False)
class DrawChoice:
    """The sampled partition that is nearest to all of them.

    Attributes
    ----------
    index
        Number of the draw.
    loss
        Its expected loss.
    losses
        Expected losses of all draws; NaN for those that a screening left out.
    is_proven
        Whether no draw can have a smaller loss. False only if there was a screening, and the
        triangle inequality does not rule out those that were left out.
    """

    index: int
    loss: float
    losses: Floats
    is_proven: bool


@dataclass(frozen=True, eq=False)
class PointEstimate:
    """A partition with a small expected loss.

    Attributes
    ----------
    labels
        Labels 0.. in order of first appearance.
    loss
        Expected loss over the sampled partitions.
    losses
        The least loss by family of candidates: ``draws``, ``start``, ``linkage``,
        ``relocation``, as far as they were tried.
    skipped
        Families that were left out or cut short, and why.
    is_settled
        Whether relocating single rows was seen to bring no more gain.
    """

    labels: npt.NDArray[np.int32]
    loss: float
    losses: dict[str, float]
    skipped: dict[str, str] = field(default_factory=dict)
    is_settled: bool = False


# ---- what users call ----------------------------------------------------------------------------


def expected_vi(
    candidates: Labels,
    draws: Labels,
    row_weights: Any = None,
    draw_weights: Any = None,
) -> Floats:
    """Return the expected variation of information of candidates to draws, in bits.

    Parameters
    ----------
    candidates
        Partitions, shape (n_candidates, n_rows) or (n_rows,).
    draws
        Sampled partitions, shape (n_draws, n_rows), of any kind of whole numbers.
    row_weights
        Multiplicities of rows, shape (n_rows,).
    draw_weights
        Weights of draws, shape (n_draws,); only their ratios matter.

    Returns
    -------
    Losses, shape (n_candidates,).
    """
    return _expected("vi", candidates, draws, row_weights, draw_weights)


def expected_binder(
    candidates: Labels,
    draws: Labels,
    row_weights: Any = None,
    draw_weights: Any = None,
) -> Floats:
    """Return the expected share of pairs of rows on which candidates and draws disagree.

    Parameters are those of `expected_vi`. With weights there are W (W - 1) / 2 pairs, where W
    is their sum.
    """
    return _expected("binder", candidates, draws, row_weights, draw_weights)


def best_draw(
    draws: Labels, loss: Loss = "vi", row_weights: Any = None, draw_weights: Any = None
) -> tuple[int, Floats]:
    """Return the draw with the least expected loss over all draws, and the losses of all.

    See `choose_draw`, which also says whether the choice is proven.
    """
    choice = choose_draw(draws, loss, row_weights, draw_weights)
    return choice.index, choice.losses


def choose_draw(
    draws: Labels, loss: Loss = "vi", row_weights: Any = None, draw_weights: Any = None
) -> DrawChoice:
    """Return the draw with the least expected loss over all draws; the first of equal ones.

    Equal partitions are scored once. All pairs of draws are compared where that takes some
    seconds. Beyond, draws are screened against a part of the draws on a part of the rows, both
    fixed; the best ones are then scored exactly. From their distances to all other draws the
    triangle inequality bounds the losses of those that were left out.

    Parameters
    ----------
    draws
        Sampled partitions, shape (n_draws, n_rows).
    loss
        ``"vi"`` or ``"binder"``.
    row_weights, draw_weights
        See `expected_vi`.
    """
    sample = gather(draws, loss, row_weights, draw_weights, "choose_draw")
    return _choose(sample.collapsed())


def minimise(
    draws: Labels,
    loss: Loss = "vi",
    *,
    start: Labels | None = None,
    row_weights: Any = None,
    draw_weights: Any = None,
    n_orders: int = 4,
    seed: int = 0,
) -> PointEstimate:
    """Return a partition with a small expected loss, which need not be a draw.

    Candidates are the draws, `start`, cuts of the average linkage of the rows (for some
    thousand rows at most), and what greedy relocation of single rows makes of them until it
    brings no more gain: half of the orders begin with the best candidate, half with no groups
    at all. For many rows the search is cut short or left out; the result says so.

    Parameters
    ----------
    draws
        Sampled partitions, shape (n_draws, n_rows).
    loss
        ``"vi"`` or ``"binder"``.
    start
        Another candidate, shape (n_rows,).
    row_weights, draw_weights
        See `expected_vi`.
    n_orders
        Random orders of rows for the greedy search; 0 leaves it out.
    seed
        Of the orders.
    """
    check_integer(n_orders, "minimise: n_orders")
    sample = gather(draws, loss, row_weights, draw_weights, "minimise", start)
    small = sample.collapsed()
    search = _Search(small)
    search.offer("draws", small.labels[[small.index_of(_choose(small).index)]])
    if start is not None:
        search.offer("start", small.extra)
    search.cut_linkage()
    search.relocate(n_orders, seed)
    return search.result()


def _expected(
    loss: Loss, candidates: Labels, draws: Labels, row_weights: Any, draw_weights: Any
) -> Floats:
    where = f"expected_{loss}"
    sample = gather(draws, loss, row_weights, draw_weights, where, np.asarray(candidates))
    if len(sample.extra) >= _WORTH_COLLAPSING:
        sample = sample.collapsed()
    if not len(sample.extra):
        return np.empty(0)
    return sample.expected(sample.extra)


# ---- the best draw ------------------------------------------------------------------------------


def _choose(sample: Sample) -> DrawChoice:
    n_draws, n_rows = sample.labels.shape
    if n_draws * (n_draws - 1) // 2 * n_rows <= _EXACT_WORK:
        losses = sample.expected_of_draws()
        return _chosen(sample, losses, is_proven=True)
    finalists = _finalists(sample)
    distances = sample.distances(sample.labels[finalists])
    losses = np.full(n_draws, np.nan)
    losses[finalists] = (distances * sample.shares).sum(axis=1)
    bounds = _least_losses(distances, finalists, sample.shares)
    best = np.nanmin(losses)
    return _chosen(sample, losses, is_proven=bool(np.all(bounds[np.isnan(losses)] >= best)))


def _chosen(sample: Sample, losses: Floats, is_proven: bool) -> DrawChoice:
    everywhere = losses[sample.origin]  # numbers of distinct draws rise with first appearance
    index = int(np.nanargmin(everywhere))
    return DrawChoice(index, float(everywhere[index]), everywhere, is_proven)


def _finalists(sample: Sample) -> Ints:
    """Return the distinct draws that do best in a screening, from low to high numbers."""
    n_draws, n_rows = sample.labels.shape
    n_against = min(_SCREENING_DRAWS, n_draws)
    n_points = max(_SCREENING_WORK // (n_draws * n_against), 1)
    part = sample.screened(int(n_points), n_against)
    losses = part.expected(part.extra)
    n_kept = max(_FINAL_WORK // (n_draws * n_rows), _LEAST_FINALISTS)
    return np.sort(np.argsort(losses, kind="stable")[:n_kept])


def _least_losses(distances: Floats, finalists: Ints, shares: Floats) -> Floats:
    """Return lower bounds of the expected losses of all draws.

    Distances (finalists, draws) are known; of those between others the triangle inequality
    says d(j, s) >= |d(i, j) - d(i, s)| for each finalist i.
    """
    rest = np.setdiff1d(np.arange(shares.size), finalists)
    known = shares[finalists] @ distances
    bounds = np.empty(shares.size)
    for j in range(shares.size):
        gaps = np.abs(distances[:, rest] - distances[:, j : j + 1]).max(axis=0)
        bounds[j] = known[j] + gaps @ shares[rest]
    return bounds


# ---- partitions that are no draws ---------------------------------------------------------------


class _Search:
    """Candidates for the partition with the least loss; the best one is kept."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self.best: Labels | None = None
        self.loss = np.inf
        self.losses: dict[str, float] = {}
        self.skipped: dict[str, str] = {}
        self.is_settled = False

    def offer(self, family: str, candidates: Labels) -> None:
        losses = self.sample.expected(candidates)
        index = int(np.argmin(losses))
        self.losses[family] = float(losses[index])
        if losses[index] < self.loss:
            self.loss, self.best = float(losses[index]), candidates[index]

    def result(self) -> PointEstimate:
        assert self.best is not None
        labels = canonical(self.best[self.sample.row_of])
        return PointEstimate(labels, self.loss, self.losses, self.skipped, self.is_settled)

    def cut_linkage(self) -> None:
        """Try the cuts of average linkage, up to twice as many groups as any draw has."""
        n_rows = self.sample.weights.size
        if n_rows > _LINKAGE_ROWS:
            self.skipped["linkage"] = f"{n_rows} different rows, more than {_LINKAGE_ROWS}"
            return
        if n_rows > 1:
            most = min(n_rows, 2 * int(self.sample.n_clusters.max()))
            cuts = _linkage_cuts(self.sample, most)
            self.offer("linkage", number_all(cuts, self.sample.labels.dtype))

    def relocate(self, n_orders: int, seed: int) -> None:
        """Move single rows greedily, in several orders."""
        n_passes, n_orders = self._afford(n_orders)
        if n_orders == 0:
            return
        work = _Relocation(self.sample)
        best = self.best

        def search(order: int) -> tuple[Labels, bool]:
            rng = generator(seed, "relocation", order)
            start = best if order % 2 == 0 else None
            return work.run(start, rng, n_passes)

        found = thread_map(search, range(n_orders), local_threads())
        self.offer("relocation", np.stack([labels for labels, _ in found]))
        self.is_settled = all(settled for _, settled in found)
        if not self.is_settled:
            self.skipped["relocation"] = f"stopped after {n_passes} passes over the rows"

    def _afford(self, n_orders: int) -> tuple[int, int]:
        """Return how many passes in how many orders there may be."""
        sample = self.sample
        n_draws, n_rows = sample.labels.shape
        widest = int(sample.n_clusters.max())
        n_bytes = n_draws * widest * (2 * widest + 8) * sample.weights.itemsize
        n_passes = _SEARCH_WORK // (n_draws * n_rows * (widest + 1))
        if n_bytes > _SEARCH_BYTES or n_passes < 1:
            self.skipped["relocation"] = f"{n_draws} draws of {n_rows} different rows are too many"
            return 0, 0
        n_orders = min(n_orders, max(n_passes // _LEAST_PASSES, 1))
        return n_passes // max(n_orders, 1), n_orders


@dataclass(frozen=True, eq=False)
class _Relocation:
    """Greedy moves of single rows."""

    sample: Sample

    @cached_property
    def by_row(self) -> Labels:
        return np.ascontiguousarray(self.sample.labels.T)

    def run(
        self, start: Labels | None, rng: np.random.Generator, n_passes: int
    ) -> tuple[Labels, bool]:
        """Return where moves end, and whether that is because none brings a gain."""
        n_rows = self.sample.weights.size
        labels = np.full(n_rows, -1) if start is None else start.astype(np.int64)
        is_settled = False
        for _ in range(n_passes):
            n_moved = self._one_pass(labels, rng.permutation(n_rows))
            labels = canonical(labels).astype(np.int64)
            is_settled = n_moved == 0
            if is_settled:
                break
        return labels.astype(self.sample.labels.dtype), is_settled

    def _one_pass(self, labels: Ints, order: Ints) -> int:
        sample = self.sample
        n_draws, n_rows = sample.labels.shape
        widest = int(sample.n_clusters.max())
        n_now = int(labels.max()) + 1 or widest
        n_groups = min(n_rows, 2 * n_now + 8)  # there is always room for a new one
        tables = np.empty((n_draws, widest, n_groups), sample.weights.dtype)
        numerics.fill_tables(labels, self.by_row, sample.weights, tables)
        placed = labels >= 0
        sizes = np.bincount(labels[placed], sample.weights[placed], n_groups)
        return int(
            numerics.relocate(
                order,
                labels,
                self.by_row,
                sample.shares,
                sample.weights,
                sizes.astype(sample.weights.dtype),
                tables,
                sample.table,
                sample.is_binder,
                _TOLERANCE * sample.total * (sample.total if sample.is_binder else 1.0),
            )
        )


def _linkage_cuts(sample: Sample, most: int) -> Labels:
    """Return cuts into 1, 2, ... `most` groups of the average linkage on 1 - P."""
    import scipy.cluster.hierarchy as hierarchy
    from scipy.spatial.distance import squareform

    apart = np.maximum(1.0 - _similarity(sample), 0.0)
    np.fill_diagonal(apart, 0.0)
    tree = hierarchy.linkage(squareform(apart, checks=False), "average")
    cuts = [hierarchy.fcluster(tree, k, criterion="maxclust") for k in range(1, most + 1)]
    return np.stack(cuts)


def _similarity(sample: Sample) -> Floats:
    """Return how probably two rows share a cluster, (n_rows, n_rows)."""
    import scipy.sparse as sp

    n_draws, n_rows = sample.labels.shape
    starts = np.concatenate([[0], np.cumsum(sample.n_clusters)])
    columns = sample.labels.T.astype(np.int64) + starts[:-1]
    values = np.tile(np.sqrt(sample.shares), n_rows)
    edges = np.arange(0, n_rows * n_draws + 1, n_draws)
    one_hot = sp.csr_array((values, columns.ravel(), edges), shape=(n_rows, int(starts[-1])))
    found: Floats = (one_hot @ one_hot.T).toarray()
    return found
