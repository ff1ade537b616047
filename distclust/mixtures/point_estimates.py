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

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.engine import local_threads, thread_map
from distclust.errors import InputError
from distclust.mixtures import _partition_numerics as numerics
from distclust.seeding import generator
from distclust.validation import check_integer

Labels: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Loss: TypeAlias = Literal["vi", "binder"]

# Work is counted in rows of a pair of partitions; one takes about a nanosecond.
_EXACT_WORK = 8_000_000_000  # all pairs of draws are compared up to here
_SCREENING_WORK = 1_000_000_000
_FINAL_WORK = 3_000_000_000
_SCREENING_DRAWS = 200
_LEAST_FINALISTS = 8
_SEARCH_WORK = 2_000_000_000  # rows x draws x groups of a greedy search, all passes
_SEARCH_BYTES = 400_000_000
_LEAST_PASSES = 4  # an order takes about so many; rather few orders than few passes
_LINKAGE_ROWS = 2000
_CANDIDATES_A_TASK = 8
_DRAWS_A_TASK = 64
_WORTH_COLLAPSING = 4  # candidates
_TABLE_SIZE = 1 << 17
_WIDEST = 1 << 31  # whole weights that sum to less are counted as such
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


def canonical(labels: Labels) -> npt.NDArray[np.int32]:
    """Return labels 0.. in order of first appearance: equal for equal partitions.

    >>> canonical(np.array([7, 3, 7, -1]))
    array([0, 1, 0, 2], dtype=int32)
    """
    found = np.asarray(labels)
    _check_whole(found, "canonical: labels", n_dims=1)
    out = np.empty(found.size, np.int32)
    _number(found, out)
    return out


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

    Equal partitions are scored once. All pairs of draws are compared where that takes
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
    sample = _gather(draws, loss, row_weights, draw_weights, "choose_draw")
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
    sample = _gather(draws, loss, row_weights, draw_weights, "minimise", start)
    small = sample.collapsed()
    search = _Search(small)
    search.offer("draws", small.labels[[small.index_of(_choose(small).index)]])
    if start is not None:
        search.offer("start", small.extra)
    search.cut_linkage()
    search.relocate(n_orders, seed)
    return search.result()


# ---- partitions as they are compared -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Sample:
    """Distinct partitions with their weights, numbered by first appearance.

    Attributes
    ----------
    loss
        Which loss.
    labels
        Distinct draws, shape (n_distinct, n_rows).
    extra
        Other partitions, shape (n_extra, n_rows).
    shares
        Weights of distinct draws; they sum to 1.
    origin
        Which distinct draw each draw is.
    weights
        Of rows.
    row_of
        Which row here each row of the user is.
    """

    loss: Loss
    labels: Labels
    extra: Labels
    shares: Floats
    origin: Ints
    weights: npt.NDArray[Any]
    row_of: Ints

    @property
    def is_binder(self) -> bool:
        return self.loss == "binder"

    @cached_property
    def total(self) -> float:
        return float(self.weights.sum(dtype=np.float64))

    @cached_property
    def table(self) -> Floats:
        return _make_table(self.weights, self.total, self.is_binder)

    @cached_property
    def n_clusters(self) -> Ints:
        return _count_clusters(self.labels)

    @cached_property
    def own(self) -> Floats:
        """F of the draws."""
        return self.cluster_sums(self.labels, self.n_clusters)

    @property
    def scale(self) -> float:
        """What turns F(c) + F(z) - 2 F(c, z) into the loss."""
        if not self.is_binder:
            return 1.0 / self.total
        pairs = self.total * (self.total - 1.0)
        return 1.0 / pairs if pairs > 0 else 0.0

    def index_of(self, draw: int) -> int:
        """Return which distinct draw a draw is."""
        return int(self.origin[draw])

    def cluster_sums(self, labels: Labels, n_clusters: Ints) -> Floats:
        """Return F of partitions."""
        return np.array(
            [
                numerics.cluster_sum(row, int(n), self.weights, self.table, self.is_binder)
                for row, n in zip(labels, n_clusters, strict=True)
            ]
        )

    def distances(self, candidates: Labels) -> Floats:
        """Return the distances of candidates to the distinct draws, (candidates, draws)."""
        n_clusters = _count_clusters(candidates)
        own = self.cluster_sums(candidates, n_clusters)
        starts = range(0, len(self.labels), _DRAWS_A_TASK)
        tasks = [(c, first) for c in range(len(candidates)) for first in starts]

        def compare(task: tuple[int, int]) -> Floats:
            c, first = task
            part = slice(first, first + _DRAWS_A_TASK)
            return self._gaps(candidates[c], int(n_clusters[c]), own[c], part)

        found = thread_map(compare, tasks, local_threads())
        return np.concatenate(found).reshape(len(candidates), -1)

    def expected(self, candidates: Labels) -> Floats:
        """Return expected losses of candidates, a few at a time."""
        parts = [
            (self.distances(candidates[first : first + 64]) * self.shares).sum(axis=1)
            for first in range(0, len(candidates), 64)
        ]
        return np.concatenate(parts)

    def expected_of_draws(self) -> Floats:
        """Return expected losses of the distinct draws; each pair is compared once."""
        n_draws = len(self.labels)

        def compare(first: int) -> Floats:
            sums = np.zeros(n_draws)
            for c in range(first, min(first + _CANDIDATES_A_TASK, n_draws)):
                later = slice(c + 1, n_draws)
                gaps = self._gaps(self.labels[c], int(self.n_clusters[c]), self.own[c], later)
                sums[c] += (gaps * self.shares[later]).sum()
                sums[later] += gaps * self.shares[c]
            return sums

        parts = thread_map(compare, range(0, n_draws, _CANDIDATES_A_TASK), local_threads())
        return np.sum(parts, axis=0)  # in the order of the tasks

    def _gaps(self, candidate: Labels, n_clusters: int, own: float, part: slice) -> Floats:
        draws = self.labels[part]
        joint = np.empty(len(draws))
        numerics.joint_sums(
            candidate,
            n_clusters,
            draws,
            self.n_clusters[part],
            self.weights,
            self.table,
            self.is_binder,
            joint,
        )
        gaps = (own + self.own[part]) - 2.0 * joint
        return np.maximum(gaps, 0.0) * self.scale

    def collapsed(self) -> _Sample:
        """Return the same with rows counted together that lie together in all partitions."""
        first, row_of = _equal_columns([*self.labels, *self.extra])
        if len(first) == self.weights.size:
            return self
        weights = np.bincount(row_of, self.weights, len(first))
        return _Sample(
            self.loss,
            np.ascontiguousarray(self.labels[:, first]),
            np.ascontiguousarray(self.extra[:, first]),
            self.shares,
            self.origin,
            _as_counts(weights),
            row_of,
        )

    def screened(self, n_rows: int, n_draws: int) -> _Sample:
        """Return some rows and draws: evenly spaced, rows by their cluster in the first draw."""
        order = np.argsort(self.labels[0], kind="stable")
        ends = np.cumsum(self.weights[order], dtype=np.float64)
        points = (np.arange(n_rows) + 0.5) * (ends[-1] / n_rows)
        hits = np.bincount(np.searchsorted(ends, points, side="right"), minlength=order.size)
        rows = order[hits[: order.size] > 0]
        counts = hits[: order.size][hits[: order.size] > 0]
        kept = np.arange(n_draws) * len(self.labels) // n_draws
        every = _number_all(self.labels[:, rows], self.labels.dtype)
        shares = self.shares[kept]
        return _Sample(
            self.loss,
            every[kept],
            every,
            shares / shares.sum(),
            self.origin,
            _as_counts(counts),
            self.row_of,
        )


def _gather(
    draws: Labels,
    loss: Loss,
    row_weights: Any,
    draw_weights: Any,
    where: str,
    extra: Labels | None = None,
) -> _Sample:
    """Return partitions as they are compared, from what a user gave."""
    if loss not in ("vi", "binder"):
        raise InputError(f"{where}: loss", "'vi' or 'binder'", repr(loss), "Choose one.")
    found = np.asarray(draws)
    _check_whole(found, f"{where}: draws", n_dims=2)
    n_draws, n_rows = found.shape
    others = np.empty((0, n_rows), np.int64) if extra is None else np.atleast_2d(extra)
    _check_whole(others, f"{where}: candidates", n_dims=2, n_rows=n_rows)
    weights = _check_weights(row_weights, n_rows, f"{where}: row_weights")
    shares = _check_weights(draw_weights, n_draws, f"{where}: draw_weights")
    kind = max(_kind_for(found), _kind_for(others))
    numbered = _number_all(found, kind)
    first, origin = _equal_rows(numbered)
    if len(first) < n_draws:
        numbered = numbered[first]
    shares = np.bincount(origin, shares, len(first))
    if loss == "binder" and n_rows > 1 and weights.sum() <= 1.0:
        hint = "Weights are multiplicities: pass how often each row occurs."
        raise InputError(f"{where}: row_weights", "a sum above 1", weights.sum(), hint)
    return _Sample(
        loss,
        numbered,
        _number_all(others, kind),
        shares / shares.sum(),
        origin,
        _as_counts(weights),
        np.arange(n_rows),
    )


def _expected(
    loss: Loss, candidates: Labels, draws: Labels, row_weights: Any, draw_weights: Any
) -> Floats:
    where = f"expected_{loss}"
    sample = _gather(draws, loss, row_weights, draw_weights, where, np.asarray(candidates))
    if len(sample.extra) >= _WORTH_COLLAPSING:
        sample = sample.collapsed()
    if not len(sample.extra):
        return np.empty(0)
    return sample.expected(sample.extra)


# ---- the best draw ------------------------------------------------------------------------------


def _choose(sample: _Sample) -> DrawChoice:
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


def _chosen(sample: _Sample, losses: Floats, is_proven: bool) -> DrawChoice:
    everywhere = losses[sample.origin]  # numbers of distinct draws rise with first appearance
    index = int(np.nanargmin(everywhere))
    return DrawChoice(index, float(everywhere[index]), everywhere, is_proven)


def _finalists(sample: _Sample) -> Ints:
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

    def __init__(self, sample: _Sample) -> None:
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
            self.offer("linkage", _number_all(cuts, self.sample.labels.dtype))

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

    sample: _Sample

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


def _linkage_cuts(sample: _Sample, most: int) -> Labels:
    """Return cuts into 1, 2, ... `most` groups of the average linkage on 1 - P."""
    import scipy.cluster.hierarchy as hierarchy
    from scipy.spatial.distance import squareform

    apart = np.maximum(1.0 - _similarity(sample), 0.0)
    np.fill_diagonal(apart, 0.0)
    tree = hierarchy.linkage(squareform(apart, checks=False), "average")
    cuts = [hierarchy.fcluster(tree, k, criterion="maxclust") for k in range(1, most + 1)]
    return np.stack(cuts)


def _similarity(sample: _Sample) -> Floats:
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


# ---- helpers ------------------------------------------------------------------------------------


def _number_all(draws: Labels, kind: np.dtype[Any]) -> Labels:
    """Return partitions with labels by first appearance."""
    out = np.empty(draws.shape, kind)
    thread_map(lambda s: _number(draws[s], out[s]), range(len(draws)), local_threads())
    return out


def _kind_for(draws: Labels) -> np.dtype[Any]:
    """Return the kind of number for labels by first appearance; two kinds are compiled for."""
    span = int(draws.max(initial=0)) - int(draws.min(initial=0)) + 1
    return np.dtype(np.uint16 if min(span, draws.shape[1]) <= 1 << 16 else np.uint32)


def _number(labels: Labels, out: Labels) -> int:
    low, high = int(labels.min(initial=0)), int(labels.max(initial=0))
    wide = labels.astype(np.int64) - low
    span = high - low + 1
    if span > 4 * labels.size + 1024:
        wide, span = np.unique(labels, return_inverse=True)[1].astype(np.int64), labels.size
    return int(numerics.number_by_appearance(wide, np.full(span, -1), out))


def _count_clusters(labels: Labels) -> Ints:
    return labels.max(axis=1, initial=0).astype(np.int64) + 1


def _equal_rows(numbered: Labels) -> tuple[Ints, Ints]:
    """Return the first of each set of equal rows, and to which set each row belongs."""
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    origin = np.empty(len(numbered), np.int64)
    for s, row in enumerate(numbered):
        key = hashlib.blake2b(row.data, digest_size=16).digest()
        if key not in numbers:
            numbers[key] = len(first)
            first.append(s)
        origin[s] = numbers[key]
    return np.array(first, np.int64), origin


def _equal_columns(rows: list[Labels]) -> tuple[Ints, Ints]:
    """Return the first of each set of equal columns, and to which set each one belongs.

    Columns are compared by a hash, and then in full. Should a hash ever lie, no columns are
    taken for equal: that is only slower.
    """
    n_columns = rows[0].size
    hashes = np.zeros(n_columns, np.uint64)
    for row in rows:
        hashes ^= row
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    first, set_of = _sets_by_appearance(hashes)
    if all(np.array_equal(row[first][set_of], row) for row in rows):
        return first, set_of
    return np.arange(n_columns), np.arange(n_columns)


def _sets_by_appearance(keys: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    _, first, set_of = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return first[order], rank[set_of]


def _make_table(weights: npt.NDArray[Any], total: float, is_binder: bool) -> Floats:
    """Return f of 0, 1, 2, ... as far as sizes are whole."""
    size = int(min(total + 1, _TABLE_SIZE)) if weights.dtype == np.int32 else 1
    x = np.arange(size, dtype=np.float64)
    return x * x if is_binder else x * np.log2(np.maximum(x, 1.0))


def _as_counts(weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return weights as whole numbers if they are."""
    if weights.sum(dtype=np.float64) < _WIDEST and np.all(weights == np.floor(weights)):
        return weights.astype(np.int32)
    return weights.astype(np.float64)


def _check_whole(labels: Labels, where: str, n_dims: int, n_rows: int | None = None) -> None:
    shape = "(n_rows,)" if n_dims == 1 else "(n_partitions, n_rows)"
    if labels.ndim != n_dims or labels.dtype.kind not in "iub":
        got = f"{labels.dtype} of shape {labels.shape}"
        raise InputError(where, f"whole numbers of shape {shape}", got, "Pass labels.")
    if n_rows is None and n_dims == 2 and labels.size == 0:
        raise InputError(where, "at least one partition of one row", labels.shape, "Pass some.")
    if n_rows is not None and labels.shape[1] != n_rows:
        hint = "Pass a label for each row of the draws."
        raise InputError(where, f"{n_rows} rows, as the draws have", labels.shape[1], hint)


def _check_weights(weights: Any, size: int, where: str) -> Floats:
    if weights is None:
        return np.ones(size)
    found = np.asarray(weights, np.float64)
    if found.shape != (size,):
        raise InputError(where, f"shape ({size},)", found.shape, "Pass one weight for each.")
    if not np.all(np.isfinite(found)) or np.any(found < 0) or found.sum() <= 0:
        hint = "Leave out what does not count."
        raise InputError(where, "finite weights of at least 0, not all 0", "others", hint)
    return found
