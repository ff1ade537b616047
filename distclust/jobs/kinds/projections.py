"""Kernel PCA, to which rows are added; and probabilistic PCA, which is fitted anew."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from distclust.engine import keeping_notes
from distclust.engine.stored_fits import MODEL_FILE, vault_in
from distclust.jobs.kinds.base import FIRST, Kind, Made, Request, count, figures, fitted, kept
from distclust.projections import PPCA, KernelPCA
from distclust.projections.persistence import (
    kernel_pca_to_archive,
    ppca_to_archive,
    read_model,
)
from distclust.projections.stored_fits import metrics_of
from distclust.store import Matrix
from distclust.store.borders import border_facts
from distclust.store.changes import changes_between
from distclust.store.matrix import ArrayMatrix, SparseMatrix
from distclust.store.results import ResultsStore
from distclust.store.stored_matrix import StoredMatrix
from distclust.store.versions import Version
from distclust.trees.drift import DriftRules

_MANY_ROWS = 2**62  # parameters are checked before the rows are known


class KernelProjection(Kind):
    """`distclust.KernelPCA`: added rows join by `partial_fit`."""

    name = "kpca"

    def estimator(self, parameters: Mapping[str, Any], seed: int) -> KernelPCA:
        """Return the estimator, not yet fitted."""
        return KernelPCA(**parameters, random_state=seed)

    def check_values(self, model: Any, where: str) -> None:
        """Refuse parameters that the estimator would refuse."""
        model._check_parameters((_MANY_ROWS, 1), where)

    def make(self, request: Request) -> Made:
        """Fit the components, let rows join, or keep them."""
        store, before = ResultsStore(request.place), request.before
        if before is not None and request.refit_reason is None and not request.has_news:
            return kept(request, store.get(before.version).metrics)
        reason = _reason_to_fit(request)
        if reason is None:
            return self._grown(request, store)
        model = self.estimator(request.parameters, request.seed)
        with request.matrix.held():
            model.fit(request.matrix, results=request.place)
        model.close()
        return fitted(store.get(model.version_), reason)

    def plan_update(self, parameters: Mapping[str, Any], drift: DriftRules) -> str:
        """Return in words what `make` does about new rows."""
        return "update: New rows join; if rows changed or went, the components are fitted anew."

    def _grown(self, request: Request, store: ResultsStore) -> Made:
        before = request.before
        assert before is not None, "rows join others"
        model = read_model(store, before.version)
        facts = border_facts(model)["parameters"]
        identity = {
            "kind": type(model).__name__,
            "parameters": facts | {"update_of": before.version},
            "seed": request.seed,
            "input_fingerprint": request.matrix.fingerprint,
        }
        n_old = before.matrix.shape[0]
        with store.begin(**identity, run=store.find_run(**identity)) as draft:
            if draft.is_sealed:
                version = draft.publish()
            else:
                with request.matrix.held():
                    model._join_beside(
                        _rows_from(request.matrix, n_old), functools.partial(vault_in, draft)
                    )
                model.close()
                draft.write_archive(MODEL_FILE, *kernel_pca_to_archive(model))
                version = draft.publish(metrics_of(model))
        n_new = request.matrix.shape[0] - n_old
        reason = f"{count(n_new, 'row')} joined the components of {count(n_old, 'row')}."
        return Made(version.id, None, "updated", reason, figures(version.metrics), before.refit_at)


class LinearProjection(Kind):
    """`distclust.PPCA`: few passes over the rows, so that nothing is gained by an update."""

    name = "ppca"

    def estimator(self, parameters: Mapping[str, Any], seed: int) -> PPCA:
        """Return the estimator, not yet fitted."""
        return PPCA(**parameters, random_state=seed)

    def check_values(self, model: Any, where: str) -> None:
        """Refuse parameters that the estimator would refuse."""
        model._check_parameters(where)

    def make(self, request: Request) -> Made:
        """Fit the components, or keep them."""
        store, before = ResultsStore(request.place), request.before
        if before is not None and request.refit_reason is None and not request.has_news:
            return kept(request, store.get(before.version).metrics)
        version = self._fit(request, store)
        return fitted(version, request.refit_reason or (FIRST if before is None else _CHANGED))

    def plan_update(self, parameters: Mapping[str, Any], drift: DriftRules) -> str:
        """Return in words what `make` does about new rows."""
        return f"fit: {_CHANGED}"

    def _fit(self, request: Request, store: ResultsStore) -> Version:
        model = self.estimator(request.parameters, request.seed)
        parameters = dict(model.get_params(deep=False))
        identity = {
            "kind": type(model).__name__,
            "parameters": parameters,
            "seed": parameters.pop("random_state"),
            "input_fingerprint": request.matrix.fingerprint,
        }
        with store.begin(**identity, run=store.find_run(**identity)) as draft:
            if draft.is_sealed:
                return draft.publish()
            with request.matrix.held(), keeping_notes(draft.notebook("fit")):
                model.fit(request.matrix)
            draft.write_archive(MODEL_FILE, *ppca_to_archive(model))
            return draft.publish(
                {
                    "n_rows": request.matrix.shape[0],
                    "n_components": len(model.components_),
                    "log_likelihood": float(model.log_likelihood_),
                    "noise_variance": float(model.noise_variance_),
                    "n_iter": int(model.n_iter_),
                }
            )


_CHANGED = "The rows changed, and a fit costs no more than an update would."


def _reason_to_fit(request: Request) -> str | None:
    """Return why rows cannot just join; None if they can."""
    before = request.before
    if before is None:
        return FIRST
    if request.refit_reason is not None:
        return request.refit_reason
    changes = changes_between(before.matrix, request.matrix)
    if changes is None:
        return "The rows of the store were rewritten (compacted or rolled back)."
    if len(changes.deleted):
        gone = count(len(changes.deleted), "row")
        return f"{gone} changed or went; kernel PCA can only let rows join."
    return None


def _rows_from(matrix: StoredMatrix, first: int) -> Matrix:
    """Return the rows from number `first` on, in memory."""
    parts: list[Any] = []
    for i in range(matrix.n_blocks):
        start, stop = matrix.block_bounds(i)
        if stop > first:
            parts.append(matrix.block(i)[max(first - start, 0) :])
    if matrix.is_sparse:
        return SparseMatrix(sp.csr_array(sp.vstack(parts)), matrix.columns)
    return ArrayMatrix(np.concatenate(parts), matrix.columns)
