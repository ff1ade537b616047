"""What all tree estimators share once they are fitted: prediction, scores, saving."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from distclust.engine import as_matrix, check_features, map_blocks, opened
from distclust.errors import InputError
from distclust.families import Family
from distclust.store import Matrix, profile_block
from distclust.trees import prediction
from distclust.trees.data import (
    first_look,
    grouped_leaves,
)
from distclust.trees.evaluate import DirichletProcess
from distclust.trees.persistence import save_model
from distclust.validation import check_integer, check_real

if TYPE_CHECKING:
    from distclust.store.drafts import Draft

Floats = npt.NDArray[np.float64]


class TreeEstimator(ClusterMixin, BaseEstimator):
    """What the tree estimators share; not to be used by itself."""

    # ---- fitting --------------------------------------------------------------------------

    def fit_predict(self, X: Any, y: Any = None, **fit_params: Any) -> npt.NDArray[np.int64]:
        """Find the hierarchy and return the label of each row, shape (n_rows,)."""
        labels: npt.NDArray[np.int64] = self.fit(X, y, **fit_params).labels_
        return labels

    def _describe(self) -> None:
        """Set the fitted attributes that follow from the tree."""
        tree = self.tree_
        assert tree.family is not None, "a fitted tree keeps its family"
        self.family_ = tree.family
        self._nodes = tree.map_nodes() if self.cut == "map" else tree.cut_nodes(self.threshold)
        self.labels_ = tree.map_partition() if self.cut == "map" else tree.cut(self.threshold)
        self.n_clusters_ = len(self._nodes)
        self.log_evidence_ = tree.log_evidence
        for name in ("concentration_", "log_lower_bound_", "gamma_"):
            self.__dict__.pop(name, None)  # of an earlier fit with another variant
        if isinstance(tree.mixing, DirichletProcess):
            self.concentration_ = tree.mixing.concentration
            self.log_lower_bound_ = tree.log_lower_bound
        else:
            self.gamma_ = tree.mixing.gamma

    def _extra_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return what a saved model holds beside its tree: JSON values and arrays."""
        return {}, {}

    def _restore(
        self, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], family: Family
    ) -> None:
        """Inverse of `_extra_state`."""

    def _write_beside(self, draft: Draft) -> None:
        """Write what a version holds beside the model."""

    # ---- prediction -----------------------------------------------------------------------

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """Return the most probable cluster of each row, shape (n_rows,).

        The lowest label on ties. Training rows need not get their label back: a row belongs
        to its place in the tree, and may be likelier in a neighbouring cluster.
        """
        labels: npt.NDArray[np.int64] = np.concatenate(
            [part.argmax(axis=1) for part in self._cluster_log_proba(X, "predict")]
        ).astype(np.int64)
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each cluster of the cut, shape (n_rows, n_clusters_).

        Proportional to the cluster's number of rows times its predictive density.
        """
        proba: Floats = np.exp(np.concatenate(list(self._cluster_log_proba(X, "predict_proba"))))
        return proba

    def score_samples(self, X: Any) -> Floats:
        """Return the log predictive density of each row, shape (n_rows,).

        The mixture over all nodes of the tree, and over a new cluster for Dirichlet-process
        variants.
        """
        matrix = self._new_rows(X, "score_samples")
        stats, log_weights = prediction.mixture_of(self.tree_)
        parts = map_blocks(
            prediction.log_density,
            matrix,
            self.family_,
            stats,
            log_weights,
            stage="scoring",
        )
        return np.concatenate(list(parts))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log predictive density of the rows."""
        return float(self.score_samples(X).mean())

    def score_entry(self, row: int, column: int, value: float) -> float:
        """Return log p(entry = value) of an entry that was missing in the fit.

        Parameters
        ----------
        row, column
            Position in the fitted data.
        value
            Its supposed value; for a categorical column the code of its level.
        """
        check_is_fitted(self, "tree_")
        where = f"{type(self).__name__}.score_entry"
        n_rows, n_columns = len(self.tree_.leaf_of_row), self.n_features_in_
        row = check_integer(row, f"{where}: row")
        column = check_integer(column, f"{where}: column")
        if row >= n_rows or column >= n_columns:
            raise InputError(
                where,
                f"a row below {n_rows} and a column below {n_columns}",
                f"({row}, {column})",
                "Positions count from 0.",
            )
        number = check_real(value, f"{where}: value")
        # One row with nothing else observed: the family says whether it can hold the value.
        entry = np.full((1, n_columns), np.nan)
        entry[0, column] = number
        self.family_.check(profile_block(entry), self._columns, where)
        return prediction.entry_log_density(self.tree_, row, column, number)

    def score_missing(self, X: Any) -> float:
        """Return the joint log probability of all entries that were missing in the fit.

        Parameters
        ----------
        X
            The fitted rows in their order, with the missing entries filled in.

        Notes
        -----
        log p(complete | T) − log p(observed | T) on the fitted tree (BRT eq. 1.24).
        """
        where = f"{type(self).__name__}.score_missing"
        matrix = self._new_rows(X, "score_missing")
        if matrix.shape[0] != len(self.tree_.leaf_of_row):
            raise InputError(
                where,
                f"the {len(self.tree_.leaf_of_row)} rows of the fit",
                f"{matrix.shape[0]} rows",
                "Pass them all, in the same order.",
            )
        leaves = grouped_leaves(matrix, self.family_, self.tree_.leaf_of_row, self._row_weights)
        complete = prediction.log_evidence_of_leaves(self.tree_, leaves.stats)
        return complete - float(self.log_evidence_)

    def _cluster_log_proba(self, X: Any, method: str) -> Iterable[Floats]:
        matrix = self._new_rows(X, method)
        assert self.tree_.statistics is not None, "a fitted tree keeps its statistics"
        return map_blocks(
            prediction.cluster_log_proba,
            matrix,
            self.family_,
            self.tree_.statistics[self._nodes],
            np.log(self.tree_.n_rows[self._nodes]),
            stage="predicting",
        )

    def _new_rows(self, X: Any, method: str) -> Matrix:
        check_is_fitted(self, "tree_")
        where = f"{type(self).__name__}.{method}"
        X = opened(X, where)
        check_features(self, X, where, reset=False)
        matrix = as_matrix(X, columns=self._columns, where=where)
        self.family_.check(first_look(matrix).profile, matrix.columns, where)
        return matrix

    # ---- border ---------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file, complete or not at all.

        Read it back with :func:`distclust.load`.
        """
        check_is_fitted(self, "tree_")
        save_model(self, path)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # With "auto" some sparse data are refused (real numbers), so the tag cannot promise.
        tags.input_tags.sparse = not isinstance(self.family, str) or self.family != "auto"
        tags.input_tags.allow_nan = True
        return tags


def check_enough_rows(n_rows: int, where: str) -> None:
    """Refuse to make a tree of a single row."""
    if n_rows < 2:
        raise InputError(
            where,
            "at least 2 rows to make a tree of",
            f"n_samples = {n_rows}",
            "Pass more rows.",
        )
