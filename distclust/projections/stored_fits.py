"""Fits of kernel PCA beside a results store: saved, resumed, published as a version."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distclust import events
from distclust.engine import Vault
from distclust.errors import ConflictError
from distclust.projections import em, krylov
from distclust.projections.kernel_pca import KernelPCA, fingerprint_of
from distclust.projections.kernels import RowArray
from distclust.projections.persistence import (
    MODEL_FILE,
    border_facts,
    kernel_pca_to_archive,
    read_model,
)
from distclust.store import Matrix
from distclust.store.results import ResultsStore
from distclust.store.sealed import plain
from distclust.store.unfinished import begin_or_resume

if TYPE_CHECKING:
    from distclust.store.drafts import Draft

_HOW = ("memory_budget", "random_state")  # do not change what is computed, or are the seed


def fit_beside(
    model: KernelPCA,
    matrix: Matrix,
    rows: RowArray,
    results: str | os.PathLike[str],
    *,
    fresh: bool,
    where: str,
) -> None:
    """Fit `model`, saving its state in a results store, and publish it there."""
    store = ResultsStore(results)
    identity = _identity(model, matrix, rows)
    if model.random_state is None and not fresh:
        identity["seed"] = model._seed = _begun_seed(store, identity)
    draft = begin_or_resume(store, identity, fresh=fresh, where=where, alike=("kind",))
    with draft:
        if draft.is_sealed:
            version = draft.publish()
            _take_over(model, read_model(store, version.id))
        else:
            _fit(model, rows, draft)
            draft.write_archive(MODEL_FILE, *kernel_pca_to_archive(model))
            version = draft.publish(_metrics(model))
    model.results_, model.version_ = store.url, version.id


def _fit(model: KernelPCA, rows: RowArray, draft: Draft) -> None:
    fingerprint = model._fingerprint(rows)
    vault = Vault(draft.place().objects, draft.id, fingerprint, draft.incarnation)
    step = vault.checkpoints("plan").newest_step()
    if step is not None:
        events.emit(em.STAGE if model.solver == "em" else krylov.STAGE, step)
    try:
        model._fit_rows(rows, vault)
    except ConflictError:
        raise  # the run is another's
    except Exception:
        if not vault.objects.list(vault.checkpoints("plan").prefix):
            draft.abandon()  # nothing to go on from
        raise


def _identity(model: KernelPCA, matrix: Matrix, rows: RowArray) -> dict[str, Any]:
    parameters = border_facts(model)["parameters"]
    parameters["kernel"] = dataclasses.asdict(model._kernel)
    for name in _HOW:
        parameters.pop(name)
    return {
        "kind": type(model).__name__,
        "parameters": parameters,
        "seed": model._seed,
        "input_fingerprint": getattr(matrix, "fingerprint", None) or fingerprint_of(rows),
    }


def _begun_seed(store: ResultsStore, identity: Mapping[str, Any]) -> int:
    """Return the seed that an unfinished fit of the same rows drew; else that of this one."""
    ours = {k: v for k, v in plain(dict(identity)).items() if k != "seed"}
    for begun in store.unfinished().values():
        if {name: begun.get(name) for name in ours} == ours:
            return int(begun["seed"])
    return int(identity["seed"])


def _metrics(model: KernelPCA) -> dict[str, Any]:
    return {
        "n_rows": model.components_.shape[1],
        "n_components": len(model.eigenvalues_),
        "largest_eigenvalue": float(model.eigenvalues_[0]),
        "largest_residual": float(model.residuals_.max()),
        "n_iter": model.n_iter_,
    }


def _take_over(model: KernelPCA, fitted: KernelPCA) -> None:
    """Make a model what another one was fitted to be; its parameters stay the user's."""
    own = model.get_params(deep=False)
    model.__dict__.update({k: v for k, v in fitted.__dict__.items() if k not in own})
