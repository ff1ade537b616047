"""Fits of ensembles beside a results store."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distclust.engine import Vault
from distclust.engine.stored_fits import StoredFit, fit_beside
from distclust.ensembles.persistence import KIND, parameters_of, read_model, to_archive
from distclust.store.objects import checksum

if TYPE_CHECKING:
    from distclust.ensembles.cluster_ensemble import ClusterEnsemble


def fit_ensemble_beside(
    model: ClusterEnsemble,
    fit: Callable[[Vault], None],
    input_fingerprint: str,
    results: str | os.PathLike[str],
    *,
    fresh: bool,
    where: str,
) -> None:
    """Fit `model`, saving its chains in a results store, and publish it there.

    Bases are made again when a fit is resumed: they are the same, and chains go on from where
    they were.
    """
    parameters = parameters_of(model)
    parameters.pop("random_state")

    def fingerprint() -> str:
        settings = repr((sorted(parameters.items(), key=repr), model._seed))
        return checksum(input_fingerprint.encode(), settings.encode()).hex()

    how = StoredFit(
        identity={
            "kind": KIND,
            "parameters": parameters,
            "seed": model._seed,
            "input_fingerprint": input_fingerprint,
        },
        fingerprint=fingerprint,
        fit=fit,
        archive=lambda: to_archive(model),
        read=read_model,
        metrics=lambda: _metrics(model),
        resumed=lambda _: None,  # chains tell that themselves, in sweeps
    )
    fit_beside(model, results, how, fresh=fresh, where=where)


def _metrics(model: ClusterEnsemble) -> dict[str, Any]:
    names = ("log_joint_", "log_bound_", "log_likelihood_", "expected_loss_", "n_sweeps_")
    figures = {name.rstrip("_"): getattr(model, name) for name in names if hasattr(model, name)}
    return {
        "n_rows": len(model.labels_),
        "n_clusters": int(model.n_clusters_),
        "n_bases": int(model.base_labels_.shape[1]),
        "mean_confidence": float(model.confidence_.mean()),
        "agreed": bool(model.agreed_),
        **figures,
    }
