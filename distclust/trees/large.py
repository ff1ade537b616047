"""What the estimators for data of any size share: `RandomizedBHC` and `EMBHC`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from distclust.engine import as_matrix, check_features, labels_array, map_blocks, opened
from distclust.errors import InputError
from distclust.families import Family
from distclust.seeding import check_seed
from distclust.store import Matrix
from distclust.store.archive import with_prefix
from distclust.store.row_labels import StoredLabels
from distclust.trees.base import TreeEstimator, check_enough_rows
from distclust.trees.capacity import check_reading
from distclust.trees.evaluate import DirichletProcess
from distclust.trees.fits import Finished, Method, fit_in_memory
from distclust.trees.routing import Router
from distclust.trees.tree import Tree
from distclust.validation import check_real

if TYPE_CHECKING:
    from distclust.store.drafts import Draft

Indices = npt.NDArray[np.int64]

_SAMPLE_VALUES = 2**25
_FEWEST_SAMPLED = 512


def auto_sample_size(n_features: int, most: int) -> int:
    """Return the rows of a sample: `most`, fewer where rows are very wide (at least 512)."""
    return max(_FEWEST_SAMPLED, min(most, _SAMPLE_VALUES // max(n_features, 1)))


class LargeTreeEstimator(TreeEstimator):
    """Fits by passes over blocks; not to be used by itself."""

    cut = "posterior"  # clusters are cut where a merge is improbable, as in BHC
    threshold = 0.5

    def _method(self, n_features: int, where: str) -> Method[Any]:
        raise NotImplementedError

    def fit(
        self,
        X: Any,
        y: Any = None,
        results: str | Path | None = None,
        *,
        fresh: bool = False,
    ) -> Self:
        """Find the hierarchy of the rows of `X`.

        Parameters
        ----------
        X
            Rows and features: whatever :meth:`BHC.fit` takes; a store is read block by
            block and never held.
        y
            Ignored.
        results
            Path or URL of a results store. The fit of a store saves its state there after
            every pass, goes on from the last one when it is begun again, and publishes
            model, labels and summaries as a version. Without it a temporary one is used.
            Only for stores: rows in memory have their labels in memory.
        fresh
            Discard an unfinished fit instead of going on with it.
        """
        where = f"{type(self).__name__}.fit"
        X = opened(X, where)
        check_features(self, X, where, reset=True)
        matrix = as_matrix(X, where=where)
        check_enough_rows(matrix.shape[0], where)
        method = self._method(matrix.shape[1], where)
        if results is not None and not matrix.travels_by_name:
            got, hint = f"rows in memory ({type(X).__name__})", "Ingest them, or leave it out."
            raise InputError(f"{where}: results", "a store as X", got, hint)
        check_reading(matrix, where)
        for name in ("results_", "version_"):
            self.__dict__.pop(name, None)  # of an earlier fit of a store
        with matrix.held():
            if matrix.travels_by_name:
                from distclust.trees.stored_fits import fit_store

                fit_store(self, method, matrix, results, fresh=fresh, where=where)
            else:
                found, leaf_of_row = fit_in_memory(method, matrix)
                self._keep(found, matrix, leaf_of_row, matrix.row_ids)
        return self

    def _keep(
        self,
        found: Finished,
        matrix: Matrix,
        leaf_of_row: Indices | None,
        row_ids: npt.NDArray[Any],
    ) -> None:
        """Take over what a fit found; `leaf_of_row` is None if rows stay in their store."""
        self.n_features_in_ = matrix.shape[1]
        self._columns, self._row_weights = matrix.columns, None
        self.family_reason_ = found.facts.get("family_reason", "chosen by the user")
        self.tree_ = Tree.build(
            found.structure,
            found.stats[: found.structure.n_leaves, 0],
            found.log_marginal,
            DirichletProcess(self._concentration()),
            leaf_of_row=leaf_of_row,
            row_ids=row_ids,
            feature_names=tuple(column.name for column in matrix.columns),
            family=found.family,
            statistics=found.stats,
        )
        path = found.facts.get("objective") or [self.tree_.log_lower_bound]
        self.objective_path_ = np.array(path)
        self._router, self._leaf_of_end = found.router, found.leaf_of_end
        self._facts = dict(found.facts)
        self._has_rows = leaf_of_row is not None
        self._describe()

    def _describe(self) -> None:
        super()._describe()
        tree = self.tree_
        of_leaf = np.empty(tree.n_leaves, np.int64)
        of_leaf[tree.leaf_of_row] = self.labels_
        self._label_of_leaf = of_leaf
        self._label_of_end = np.where(self._leaf_of_end < 0, 0, of_leaf[self._leaf_of_end])
        if not self._has_rows:  # one label a leaf so far; those of rows are in the store
            del self.labels_

    @property
    def n_passes_(self) -> int:
        """Passes over the rows that moved them."""
        return int(self._facts["n_passes"])

    # ---- prediction -----------------------------------------------------------------------

    def predict(self, X: Any, results: str | Path | None = None) -> Any:
        """Return the cluster of each row, shape (n_rows,).

        Rows go the way that rows of the fit went, filter by filter.

        Parameters
        ----------
        X
            Rows, as in :meth:`fit`.
        results
            If `X` is a store: path or URL of a results store for its labels. They are
            written there block by block, and a lazy array on them is returned.
        """
        if results is not None:
            return self._predict_store(X, results)
        matrix = self._new_rows(X, "predict")
        parts = map_blocks(place_rows, matrix, self._router, self._label_of_end, stage="predicting")
        return np.concatenate(list(parts))

    def _predict_store(self, X: Any, results: str | Path) -> Any:
        from distclust.trees.labelling import label_store

        check_is_fitted(self, "tree_")
        matrix = as_matrix(X, where=f"{type(self).__name__}.predict")
        version = label_store(self, matrix, results)
        return labels_array(StoredLabels(results, version.id))

    # ---- border ---------------------------------------------------------------------------

    def _concentration(self) -> float:
        where = f"{type(self).__name__}.fit: concentration"
        return check_real(self.concentration, where, above=0.0)

    def _seed(self) -> int:
        return check_seed(self.random_state, f"{type(self).__name__}.fit: random_state")

    def _write_beside(self, draft: Draft) -> None:
        """Write labels and summaries of rows that were fitted in memory."""
        from distclust.trees.stored_fits import write_held_labels, write_levels

        write_held_labels(self, draft)
        write_levels(self, draft)

    def _extra_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return what a saved model holds beside its tree."""
        facts, arrays = self._router.to_arrays()
        named = {f"router.{name}": array for name, array in arrays.items()}
        named["leaf_of_end"] = self._leaf_of_end
        return {"router": facts, "fit": self._facts, "has_rows": self._has_rows}, named

    def _restore(
        self, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], family: Family
    ) -> None:
        """Inverse of `_extra_state`."""
        routes = with_prefix(arrays, "router.")
        self._router = Router.from_arrays(facts["router"], routes, family)
        self._leaf_of_end = arrays["leaf_of_end"]
        self._facts = dict(facts["fit"])
        self._has_rows = bool(facts["has_rows"])


def place_rows(block: Any, start: int, router: Router, label_of_end: Indices) -> Indices:
    """Return the label of every row of a block; runs where the block is."""
    return label_of_end[router.place(block)]


def check_sample_size(value: Any, n_features: int, where: str, most: int) -> int:
    """Return the number of rows of a sample; "auto" takes `most` unless rows are wide."""
    if isinstance(value, str) and value == "auto":
        return auto_sample_size(n_features, most)
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if is_whole and value >= 2:
        return int(value)
    expected = "'auto' or a whole number of at least 2"
    raise InputError(f"{where}: sample_size", expected, repr(value), "Pass for instance 4096.")
