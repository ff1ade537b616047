"""Fitting of exact trees: every pair of rows is looked at, in memory."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from distclust.engine import as_matrix, check_features, local_threads, opened, run
from distclust.families import Family
from distclust.seeding import check_seed
from distclust.store import Matrix
from distclust.trees.base import TreeEstimator, check_enough_rows
from distclust.trees.data import (
    Leaves,
    check_capacity,
    check_leaves,
    check_row_weights,
    first_look,
    grouped_leaves,
    memory_needed,
    resolve_family,
    singleton_leaves,
)
from distclust.trees.evaluate import Mixing
from distclust.trees.optimise import FittedTree, LearningPlan, fit_tree
from distclust.trees.search import Criterion, SearchPlan
from distclust.trees.tree import Tree
from distclust.validation import check_choice, check_flag, check_integer, check_real

Floats = npt.NDArray[np.float64]

_CRITERIA: tuple[Criterion, ...] = ("posterior_odds", "likelihood_ratio")
_CUTS = ("posterior", "map")


class ExactTreeEstimator(TreeEstimator):
    """What the exact estimators share; not to be used by itself."""

    # ---- what a variant says --------------------------------------------------------------

    def _mixing(self) -> Mixing:
        raise NotImplementedError

    def _many_children(self) -> bool:
        return False

    # ---- fitting --------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        row_weights: npt.ArrayLike | None = None,
        leaves: npt.ArrayLike | None = None,
    ) -> Self:
        """Find the hierarchy of the rows of `X`.

        Parameters
        ----------
        X
            Rows and features, shape (n_rows, n_features): an array, a scipy or ``sparse``
            sparse matrix, a pandas table, a Dask array, or a store or its path or URL.
        y
            Ignored.
        row_weights
            How many equal rows each row stands for, shape (n_rows,); the copies are never
            separated. By default one.
        leaves
            Label of the pre-formed leaf each row belongs to, shape (n_rows,). Rows of a leaf
            are never separated. By default every row is a leaf.
        """
        where = f"{type(self).__name__}.fit"
        X = opened(X, where)
        check_features(self, X, where, reset=True)
        search, learning = self._plans(where)
        matrix = as_matrix(X, where=where)
        with matrix.held():
            self._fit(matrix, search, learning, row_weights, leaves, where)
        return self

    def _fit(
        self,
        matrix: Matrix,
        search: SearchPlan,
        learning: LearningPlan,
        row_weights: npt.ArrayLike | None,
        leaves: npt.ArrayLike | None,
        where: str,
    ) -> None:
        n_rows = matrix.shape[0]
        check_enough_rows(n_rows, where)
        weights = check_row_weights(row_weights, n_rows, where)
        leaf_of_row = None if leaves is None else check_leaves(leaves, n_rows, where)
        look = first_look(matrix)
        family, reason = resolve_family(self.family, matrix, look, where, weights)
        n_leaves = n_rows if leaf_of_row is None else int(leaf_of_row.max()) + 1
        key_bytes = 4.0 * n_leaves**2 if search.keeps_keys(n_leaves) else 0.0
        needed = memory_needed(n_leaves, family.n_statistics, key_bytes)
        check_capacity(needed, n_leaves, family.n_statistics, where)
        if leaf_of_row is None:
            start = singleton_leaves(matrix, family, weights)
        else:
            start = grouped_leaves(matrix, family, leaf_of_row, weights)
        fitted: FittedTree = run(fit_here, family, start.stats, search, learning)
        self.n_features_in_ = matrix.shape[1]
        self.family_reason_ = reason
        self._columns, self._row_weights = matrix.columns, weights
        self._keep(fitted, start, matrix.row_ids)

    def _plans(self, where: str) -> tuple[SearchPlan, LearningPlan]:
        """Check every parameter before any work."""
        check_real(self.threshold, f"{where}: threshold", at_least=0.0, at_most=1.0)
        check_choice(self.cut, f"{where}: cut", _CUTS)
        criterion = check_choice(self.criterion, f"{where}: criterion", _CRITERIA)
        search = SearchPlan(
            mixing=self._mixing(),
            criterion=criterion,
            many_children=self._many_children(),
            key_budget=check_real(self.key_budget, f"{where}: key_budget", at_least=0.0),
        )
        learning = LearningPlan(
            optimise=check_flag(self.optimize, f"{where}: optimize"),
            n_restarts=check_integer(self.n_restarts, f"{where}: n_restarts"),
            max_rebuilds=check_integer(self.max_rebuilds, f"{where}: max_rebuilds", at_least=1),
            seed=check_seed(self.random_state, f"{where}: random_state"),
        )
        return search, learning

    def _keep(self, fitted: FittedTree, start: Leaves, row_ids: npt.NDArray[Any]) -> None:
        self.tree_ = Tree.build(
            fitted.structure,
            start.stats[:, 0],
            fitted.log_marginal,
            fitted.mixing,
            leaf_of_row=start.leaf_of_row,
            row_ids=row_ids,
            feature_names=tuple(column.name for column in self._columns),
            family=fitted.family,
            statistics=fitted.structure.sum_up(start.stats),
        )
        self.objective_path_ = np.array(fitted.path)
        self._describe()


def fit_here(
    family: Family, stats: Floats, search: SearchPlan, learning: LearningPlan
) -> FittedTree:
    """Fit with as many threads as this process or this worker may use."""
    return fit_tree(family, stats, dataclasses.replace(search, threads=local_threads()), learning)
