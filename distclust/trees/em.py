"""EM-BHC as a method of fitting by passes: seeds, sweeps, a tree of what remains.

Algorithm 3.6 of the thesis (spec section 4): a few rows seed clusters, all rows go to the seed
they are likeliest under, some sweeps improve the clusters, and exact BHC makes a tree of those
that still have rows. Sweeps may oscillate: the best clustering so far is kept, by

    J(z) = Σ_c log α + log Γ(n_c) + log f(D_c),

and sweeping ends when J drops or no row moves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import local_threads, run
from distclust.families import Family, family_from_dict
from distclust.store import Matrix
from distclust.store.archive import with_prefix
from distclust.trees import growing
from distclust.trees.assembly import log_marginal_of
from distclust.trees.filters import Filter
from distclust.trees.fits import Finished, Method
from distclust.trees.growing import CodesFor, Ground, Growth
from distclust.trees.optimise import LearningPlan, fit_tree
from distclust.trees.randomised import RandomisedBHC
from distclust.trees.routing import ROOT, Router, Share
from distclust.trees.search import SearchPlan, greedy_search
from distclust.trees.splitting import Exact, Settings
from distclust.trees.structure import Structure
from distclust.trees.sweeping import (
    Clusters,
    SweepTask,
    objective,
    run_sweep_of_clusters,
)

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sweeps:
    """The state of the sweeps.

    Attributes
    ----------
    family, reason, digests
        As in `Growth`.
    step
        Passes done, the first of which brings rows to seeds.
    stats
        Statistics of the clusters after the best pass (before the first: of the seeds),
        shape (n_seeds, p).
    first_rows
        Number of each cluster's first row (before the first pass: of the seed itself).
    best_step
        The pass after which J was highest.
    path
        J after each pass that raised it.
    is_over
        Whether sweeping has ended.
    merges
        The tree of the clusters that have rows; None until it is made.
    """

    family: Family
    reason: str
    digests: npt.NDArray[np.uint64]
    step: int
    stats: Floats
    first_rows: Indices
    best_step: int
    path: Floats
    is_over: bool = False
    merges: Indices | None = None


@dataclass(frozen=True, eq=False)
class EM(Method[Sweeps | Growth]):
    """Algorithm 3.6; nodes resolved to rows go on as in randomised BHC.

    Attributes
    ----------
    family
        As the user gave it.
    n_sweeps
        Largest number of sweeps after the first pass.
    settings
        Of the refinement; sample size, concentration and seed are those of the fit.
    where
        Place to name in errors.
    """

    family: Family | str
    n_sweeps: int
    settings: Settings
    where: str

    @property
    def _refining(self) -> RandomisedBHC:
        return RandomisedBHC(self.family, self.settings, self.where)

    def start(self, matrix: Matrix) -> Sweeps | Growth:
        """Look at all rows and draw the seeds; few rows make an exact tree at once."""
        settings = self.settings
        if matrix.shape[0] <= settings.sample_size:
            exact = replace(settings, resolve="rows")
            return growing.plant(matrix, self.family, exact, self.where)
        ground = growing.prepare_ground(matrix, self.family, settings, self.where)
        family, stats = run(plant_seeds, ground, settings)
        return Sweeps(
            family=family,
            reason=ground.reason,
            digests=ground.digests,
            step=0,
            stats=stats,
            first_rows=ground.candidates.positions[: len(stats)],
            best_step=0,
            path=np.empty(0),
        )

    def is_complete(self, state: Sweeps | Growth) -> bool:
        """Whether the tree can be put together."""
        if isinstance(state, Growth):
            return state.is_complete
        return state.merges is not None

    def advance(
        self, matrix: Matrix, state: Sweeps | Growth, codes_for: CodesFor
    ) -> Sweeps | Growth:
        """Sweep once; after the last sweep make the tree, then refine its leaves if asked."""
        if isinstance(state, Growth):
            return self._refining.advance(matrix, state, codes_for)
        if not state.is_over:
            return _sweep(matrix, state, self.n_sweeps, self._concentration, codes_for)
        used = np.flatnonzero(state.stats[:, 0] > 0)
        merges = run(tree_of_clusters, state.family, state.stats[used], self.settings)
        state = replace(state, merges=merges)
        if self.settings.resolve == "clusters":
            return state
        growth = _as_growth(state, self.settings)
        return growing.ask(
            matrix, growth, np.arange(1, len(growth.sizes)), None, self.settings, codes_for
        )

    def finish(self, state: Sweeps | Growth) -> Finished:
        """Put the tree together."""
        if isinstance(state, Growth):
            return self._refining.finish(state)
        assert state.merges is not None, "the tree is made before the end"
        used = np.flatnonzero(state.stats[:, 0] > 0)
        order = np.argsort(state.first_rows[used], kind="stable")
        rank = np.empty(len(used), np.int64)
        rank[order] = np.arange(len(used))
        structure = _renumbered(state.merges, rank)
        stats = structure.sum_up(state.stats[used[order]])
        leaf_of_code = np.full(len(state.stats) + 1, -1)
        leaf_of_code[used + 1] = rank
        router, leaf_of_end = _router(state, used, rank, self.settings.seed)
        return Finished(
            family=state.family,
            structure=structure,
            stats=stats,
            log_marginal=log_marginal_of(state.family, stats),
            first_rows=state.first_rows[used[order]],
            step=state.best_step,
            leaf_of_code=leaf_of_code,
            row_leaves=(np.empty(0, np.int64), np.empty(0, np.int64)),
            router=router,
            leaf_of_end=leaf_of_end,
            facts={
                "family_reason": state.reason,
                "n_passes": state.step,
                "sample_size": self.settings.sample_size,
                "objective": state.path.tolist(),
            },
        )

    def step_of(self, state: Sweeps | Growth) -> int:
        """Return the number of the codes after the last pass."""
        return self._refining.step_of(state) if isinstance(state, Growth) else state.step

    def steps_needed(self, state: Sweeps | Growth) -> set[int]:
        """Return the numbers of the codes that it takes to go on; the best sweep may be back."""
        if isinstance(state, Growth):
            return self._refining.steps_needed(state)
        return {state.step, state.best_step} - {0}

    def to_arrays(
        self, state: Sweeps | Growth
    ) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return a state as JSON values and arrays."""
        if isinstance(state, Growth):
            facts, arrays = growing.to_arrays(state)
            return {"state": "growth", **facts}, arrays
        family_facts, family_arrays = state.family.to_dict()
        facts = {
            "state": "sweeps",
            "family": family_facts,
            "reason": state.reason,
            "step": state.step,
            "best_step": state.best_step,
            "is_over": state.is_over,
        }
        arrays = {name: getattr(state, name) for name in _ARRAYS}
        if state.merges is not None:
            arrays["merges"] = state.merges
        return facts, arrays | {f"family.{name}": a for name, a in family_arrays.items()}

    def from_arrays(
        self, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> Sweeps | Growth:
        """Inverse of `to_arrays`."""
        if facts["state"] == "growth":
            return growing.from_arrays(facts, arrays, self.where)
        return Sweeps(
            family=family_from_dict(facts["family"], with_prefix(arrays, "family."), self.where),
            reason=str(facts["reason"]),
            step=int(facts["step"]),
            best_step=int(facts["best_step"]),
            is_over=bool(facts["is_over"]),
            merges=arrays.get("merges"),
            **{name: arrays[name] for name in _ARRAYS},
        )

    @property
    def _concentration(self) -> float:
        return self.settings.mixing.concentration


_ARRAYS = ("digests", "stats", "first_rows", "path")


def plant_seeds(ground: Ground, settings: Settings) -> tuple[Family, Floats]:
    """Return the family, its scale chosen by a tree of the seeds, and the seeds' statistics."""
    family = ground.family
    rows = ground.candidates.take(np.arange(settings.sample_size)).rows
    n_seeds = rows.shape[0]
    stats = family.accumulate(rows, np.arange(n_seeds), n_seeds)
    if family.scale_grid:
        search = SearchPlan(mixing=settings.mixing, threads=local_threads())
        family = fit_tree(family, stats, search, LearningPlan()).family
    return family, stats


def tree_of_clusters(family: Family, stats: Floats, settings: Settings) -> Indices:
    """Return the exact tree of clusters as merges, shape (n_clusters - 1, 2)."""
    search = SearchPlan(mixing=settings.mixing, threads=local_threads())
    structure = greedy_search(family, stats, search).structure
    return structure.child_list.reshape(-1, 2)


def _sweep(
    matrix: Matrix, state: Sweeps, n_sweeps: int, concentration: float, codes_for: CodesFor
) -> Sweeps:
    step = state.step + 1
    used = np.flatnonzero(state.stats[:, 0] > 0)
    stats = state.stats[used]
    log_weights = np.zeros(len(used)) if step == 1 else np.log(stats[:, 0])
    clusters = Clusters(state.family, stats, log_weights, math.log(concentration))
    task = SweepTask(
        clusters,
        used,
        len(state.stats),
        before=codes_for(state.step) if state.step else None,
        after=codes_for(step),
        digests=state.digests,
        seed_rows=state.first_rows if step == 1 else np.empty(0, np.int64),
    )
    stage = "rows to seeds" if step == 1 else f"sweep {step - 1} of {n_sweeps}"
    swept = run_sweep_of_clusters(matrix, task, stage)
    value = objective(state.family, swept.stats, concentration)
    if len(state.path) and value < state.path[-1]:
        return replace(state, step=step, is_over=True)
    return replace(
        state,
        step=step,
        stats=swept.stats,
        first_rows=swept.first_rows,
        best_step=step,
        path=np.append(state.path, value),
        is_over=step > n_sweeps or swept.n_moved == 0,
    )


def _renumbered(merges: Indices, rank: Indices) -> Structure:
    """Return the tree with its leaves in another order."""
    n_leaves = len(rank)
    is_leaf = merges < n_leaves
    return Structure.from_merges(np.where(is_leaf, rank[np.where(is_leaf, merges, 0)], merges))


def _filter_of(state: Sweeps, used: Indices) -> Filter:
    stats = state.stats[used]
    return Filter(state.family, stats, np.log(stats[:, 0]), np.arange(len(used) + 1))


def _router(state: Sweeps, used: Indices, rank: Indices, seed: int) -> tuple[Router, Indices]:
    """Return how new rows find their cluster, and the leaf of each node."""
    none = np.empty((0, 2), np.int64)
    router = Router.start(seed).divided({ROOT: Share(_filter_of(state, used), none)})
    return router, np.concatenate([[-1], rank])


def _as_growth(state: Sweeps, settings: Settings) -> Growth:
    """Return the clusters as nodes below the root, to be resolved to their rows.

    Clusters without rows stay as nodes without rows, so that codes keep their meaning.
    """
    assert state.merges is not None, "the tree is made before"
    n_seeds = len(state.stats)
    sizes = state.stats[:, 0].astype(np.int64)
    used = np.flatnonzero(sizes)
    every = Filter(
        state.family,
        np.where(state.stats[:, :1] > 0, state.stats, 0.0),
        np.where(sizes > 0, np.log(np.maximum(sizes, 1)), -np.inf),
        np.arange(n_seeds + 1),
    )
    router = Router.start(settings.seed).divided({ROOT: Share(every, _spread(state, used))})
    return Growth(
        family=state.family,
        reason=state.reason,
        router=router,
        step=state.best_step,
        levels=np.append(0, np.ones(n_seeds, np.int64)),
        sizes=np.append(sizes.sum(), sizes),
        first_rows=np.append(0, state.first_rows),
        stats=np.concatenate([np.zeros((1, state.stats.shape[1])), state.stats]),
        want=np.append(0, np.full(n_seeds, settings.sample_size)),
        expected=np.append(0.0, sizes.astype(np.float64)),
        exact=dict[int, Exact](),
        digests=state.digests,
        objective=tuple(state.path.tolist()),
    )


def _spread(state: Sweeps, used: Indices) -> Indices:
    """Return the merges of clusters that have rows as merges of all, the others aside."""
    assert state.merges is not None, "the tree is made before"
    n_seeds, n_used = len(state.stats), len(used)
    rest = np.setdiff1d(np.arange(n_seeds), used)
    merges = [
        [int(used[k]) if k < n_used else n_seeds + k - n_used for k in pair]
        for pair in state.merges.tolist()
    ]
    top = n_seeds + len(merges) - 1 if merges else int(used[0])
    for seed in rest.tolist():
        merges.append([seed, top])
        top = n_seeds + len(merges) - 1
    return np.array(merges, dtype=np.int64).reshape(-1, 2)
