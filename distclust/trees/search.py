"""Exact greedy search: which two subtrees to merge next, n − 1 times.

The search keeps, for every active subtree, its best partner (spec 8.5). A merge can only
lower another row's maximum, so a row whose partner disappeared keeps the old maximum as an
upper bound and is looked at again only when it comes first. This is exact and needs O(n)
memory beside the statistics. Where n² keys fit a budget they are kept (as float32), which
makes looking again a scan instead of a recomputation.

Keys are ranked with the fast answer of a :class:`~distclust.families.pair_scorer.PairScorer` and
decided with the family's own formula wherever the stated error leaves a doubt; so the tree is
the same with and without the key matrix, for any number of threads and any BLAS, and equal
to the tree of a naive search over all pairs, ties included. Equal keys are ordered by their
log odds, then by node ids.

Rejected: the nearest-neighbour chain (reducibility fails for these keys), a heap of all pairs
(n² log n and n² memory), merging all reciprocal pairs at once (an approximation).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from distclust import events
from distclust.engine import thread_map
from distclust.families.base import Family
from distclust.families.pair_scorer import PairScorer
from distclust.families.pairs import pair_scorer
from distclust.trees import _numerics as numerics
from distclust.trees.evaluate import DirichletProcess, Mixing
from distclust.trees.structure import Structure

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Criterion = Literal["posterior_odds", "likelihood_ratio"]

_LEAF_TILE = 128  # rows of the first pair stage that are computed together
_LOG_GAMMA_ENTRIES = 2**20
# One compiled call does so many merges, fewer if each of them takes long: in between there is
# progress to report and an interrupt to notice.
_MERGES_A_CALL = 256
_CELLS_A_CALL = 2**28


@dataclass(frozen=True)
class SearchPlan:
    """What to search for and how.

    Attributes
    ----------
    mixing
        Prior over partitions of a node's children.
    criterion
        Rank merges by the odds of the merged hypothesis or by the likelihood ratio.
    many_children
        Allow absorb and collapse beside join.
    key_budget
        Bytes that the key matrix may take; 0 never keeps it.
    threads
        Threads for the first pair stage.
    """

    mixing: Mixing
    criterion: Criterion = "posterior_odds"
    many_children: bool = False
    key_budget: float = 1e9
    threads: int = 1

    def keeps_keys(self, n_leaves: int) -> bool:
        """Whether the key matrix of `n_leaves` leaves fits the budget."""
        return 4.0 * n_leaves**2 <= self.key_budget


@dataclass(frozen=True)
class Found:
    """A tree and the log marginal of every node, shape (n_nodes,)."""

    structure: Structure
    log_marginal: Floats
    n_rescans: int


def greedy_search(family: Family, stats: Floats, plan: SearchPlan) -> Found:
    """Build a tree over the groups whose statistics are the rows of `stats`.

    Parameters
    ----------
    family
        A resolved family.
    stats
        Statistics of the leaves, shape (n_leaves, p); a leaf may stand for several rows.
    plan
        Model and resources.

    Notes
    -----
    About n² evaluations of the log marginal of a union. Deterministic; ties go to the pair
    with the smallest (older node id, younger node id).
    """
    return _Search(family, stats, plan).run()


class _Search:
    """State of one search. Slots hold active subtrees; a merge reuses the older one's slot."""

    def __init__(self, family: Family, stats: Floats, plan: SearchPlan) -> None:
        n = len(stats)
        self.plan = plan
        self.scorer: PairScorer = pair_scorer(family, stats)
        self.n_leaves = n
        self.active = np.arange(n, dtype=np.int64)
        self.n_active = n
        self.leaf_log_f = self.scorer.own()
        self.slots = np.zeros(n, numerics.SLOT)
        self.rule = _rule(plan, int(stats[:, 0].sum()), n)
        self._fill_leaves(stats)
        kept = n if plan.keeps_keys(n) else 0
        self.keys = np.empty((kept, kept), np.float32)
        self.key_error = 0.0  # largest error of any log marginal behind a kept key
        self.history = np.empty(n - 1, numerics.MERGE)
        self.n_rescans = 0
        self._others = np.empty(n, np.int64)
        self._row_keys = np.empty(n)
        self._chosen = np.empty(n, np.int64)
        self._distinct = np.empty(n, np.int64)
        self._place = np.empty(n, np.int64)
        self._everyone = np.arange(n)

    def _fill_leaves(self, stats: Floats) -> None:
        slots = self.slots
        slots["id"] = np.arange(self.n_leaves)
        slots["partner"] = -1
        slots["best"] = slots["odds"] = -math.inf
        slots["n_rows"] = stats[:, 0].astype(np.int64)
        slots["value"] = self.leaf_log_f
        if isinstance(self.plan.mixing, DirichletProcess):
            numerics.add_leaf_priors(slots, self.rule)

    def run(self) -> Found:
        n = self.n_leaves
        if n > 1:
            self._first_pairs()
        with events.stage("merging", n - 1) as progress:
            for n_done in self._merges():
                progress.advance(n_done)
        history = self.history
        merges = np.column_stack([history["older"], history["younger"]])
        structure, kept = Structure.from_operations(merges, history["operation"])
        log_marginal = np.concatenate([self.leaf_log_f, history["log_f"]])
        return Found(structure, log_marginal[kept], self.n_rescans)

    # -- the first pair stage ----------------------------------------------------------------

    def _first_pairs(self) -> None:
        n = self.n_leaves
        starts = range(0, n, _LEAF_TILE)
        with events.stage("pairing leaves", len(starts)) as progress:

            def settle_rows(start: int) -> float:
                error = self._first_rows(start)
                progress.advance(1)
                return error

            self.key_error = max(thread_map(settle_rows, starts, self.plan.threads))

    def _first_rows(self, start: int) -> float:
        """Settle the rows of one tile; returns the error of its keys."""
        stop = min(start + _LEAF_TILE, self.n_leaves)
        tile, error = self.scorer.leaf_rows(start, stop)
        lowest = np.empty(stop - start)
        count = numerics.count_first_candidates(self.slots, start, tile, error, self.rule, lowest)
        if len(self.keys):
            self.keys[start:stop] = tile
        lefts, rights = np.empty(count, np.int64), np.empty(count, np.int64)
        count = numerics.list_first_candidates(
            start, tile, lowest, self.scorer.stats, lefts, rights
        )
        lefts, rights = lefts[:count], rights[:count]
        log_f = self.scorer.exact(lefts, rights)
        numerics.settle_first(self.slots, lefts, rights, log_f, self.rule)
        return error

    # -- who drives the merges ---------------------------------------------------------------

    def _merges(self) -> Iterator[int]:
        """Do all merges and say how many were done, now and then.

        Compiled as a whole where the scorer offers its groups, else step by step. Both take
        the same steps in the same order.
        """
        offered = self.scorer.compiled_groups()
        if offered is None:
            for merge in range(self.n_leaves - 1):
                self._merge(merge)
                yield 1
            return
        groups, error = offered
        state = numerics.State(self.slots, self.active, self.rule, self.keys, self.history)
        step = min(_MERGES_A_CALL, max(1, _CELLS_A_CALL // groups.stats.size))
        for first in range(0, self.n_leaves - 1, step):
            stop = min(first + step, self.n_leaves - 1)
            self.n_rescans += numerics.merge_groups(state, groups, error, first, stop)
            yield stop - first

    # -- one merge ---------------------------------------------------------------------------

    def _merge(self, merge: int) -> None:
        active = self.active[: self.n_active]
        i, j = numerics.next_merge(self.slots, active)
        while j < 0:
            self._rescan(i)
            i, j = numerics.next_merge(self.slots, active)
        count, log_f = numerics.apply_merge(
            self.slots, active, i, j, self.rule, self._others, self.history, merge
        )
        self.scorer.combine(i, j, log_f)
        self.n_active -= 1
        if count > 0:
            self._introduce(i, self._others[:count])

    def _introduce(self, k: int, others: Indices) -> None:
        """Find the new node's best partner, and offer it to everyone."""
        log_f, error = self.scorer.row(k, others)
        self.key_error = max(self.key_error, error)
        count = numerics.introduce(
            self.slots, k, others, log_f, error, self.rule, self.keys, self._row_keys, self._chosen
        )
        chosen = self._chosen[:count]
        self._settle(k, others[chosen], log_f[chosen], error, offer=True)

    def _rescan(self, k: int) -> None:
        """Find the best partner of a row that only had an upper bound."""
        self.n_rescans += 1
        count = numerics.others_of(self.active[: self.n_active], k, self._others)
        others, keys = self._others[:count], self._row_keys[:count]
        if len(self.keys):
            highest, error = numerics.cached_keys(
                self.slots, self.keys, k, others, self.key_error, keys
            )
            log_f = keys  # not a log marginal: the positive error has it evaluated
        else:
            log_f, error = self.scorer.row(k, others)
            highest = numerics.row_keys(self.slots, k, others, log_f, self.rule, keys)
        count = numerics.near_row_maximum(keys, highest - 2.0 * error, self._chosen)
        chosen = self._chosen[:count]
        self._settle(k, others[chosen], log_f[chosen], error, offer=False)

    def _settle(
        self, k: int, candidates: Indices, log_f: Floats, error: float, *, offer: bool
    ) -> None:
        """Let the exact log marginals of the candidates decide."""
        place = self._everyone[: len(candidates)]
        if error > 0.0:
            place = self._place[: len(candidates)]
            count = numerics.list_distinct(self.scorer.stats, candidates, self._distinct, place)
            log_f = self.scorer.exact(k, self._distinct[:count])
        numerics.settle(self.slots, k, candidates, log_f, place, offer, self.rule)


def _rule(plan: SearchPlan, n_total: int, n_leaves: int) -> numerics.Rule:
    mixing = plan.mixing
    is_dp = isinstance(mixing, DirichletProcess)
    settings = np.array([is_dp, plan.criterion == "posterior_odds", plan.many_children, 0.0])
    if isinstance(mixing, DirichletProcess):
        settings[numerics.LOG_CONCENTRATION] = math.log(mixing.concentration)
        entries = min(n_total + 1, _LOG_GAMMA_ENTRIES)
        tables = np.array([[0.0, *map(math.lgamma, range(1, entries))]])
    else:
        tables = np.stack(mixing.log_prior(np.maximum(np.arange(n_leaves + 1), 2)))
    return numerics.Rule(settings, tables)
