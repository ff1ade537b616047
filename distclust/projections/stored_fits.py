"""Fits of kernel PCA beside a results store."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from distclust import events
from distclust.engine import Vault, fingerprint_of
from distclust.engine.held import RowArray
from distclust.engine.stored_fits import StoredFit
from distclust.engine.stored_fits import fit_beside as fit_model_beside
from distclust.projections import em, krylov
from distclust.projections.kernel_pca import KernelPCA
from distclust.projections.persistence import kernel_pca_to_archive, read_model
from distclust.store import Matrix
from distclust.store.borders import border_facts

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

    def fit(vault: Vault) -> None:
        model._fit_rows(rows, vault)

    how = StoredFit(
        identity=_identity(model, matrix, rows),
        fingerprint=lambda: model._fingerprint(rows),
        fit=fit,
        archive=lambda: kernel_pca_to_archive(model),
        read=read_model,
        metrics=lambda: metrics_of(model),
        resumed=lambda step: events.emit(em.STAGE if model.solver == "em" else krylov.STAGE, step),
    )
    fit_model_beside(model, results, how, fresh=fresh, where=where)


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


def metrics_of(model: KernelPCA) -> dict[str, Any]:
    """Return the figures that a version shows."""
    return {
        "n_rows": model.components_.shape[1],
        "n_components": len(model.eigenvalues_),
        "largest_eigenvalue": float(model.eigenvalues_[0]),
        "largest_residual": float(model.residuals_.max()),
        "n_iter": model.n_iter_,
    }
