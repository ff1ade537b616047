"""Fitted mixtures to a file or a results store, and back: arrays and JSON, no pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from distclust.engine import Vault, fingerprint_of
from distclust.engine.stored_fits import StoredFit, fit_beside, read_version
from distclust.errors import InputError, ModelFormatError
from distclust.families import Family, family_from_dict
from distclust.store import Archive, Matrix, write_archive
from distclust.store.archive import with_prefix
from distclust.store.borders import border_facts, restore_border
from distclust.store.objects import checksum

if TYPE_CHECKING:
    from distclust.mixtures.dp_mixture import DPMixture
    from distclust.store.results import ResultsStore

KIND = "DPMixture"

_ARRAYS = ("labels_", "draws_", "confidence_", "_stats")
_FACTS = (
    "expected_loss_",
    "family_reason_",
    "concentration_",
    "diagnostics_",
    "agreed_",
    "n_sweeps_",
    "_seed",
)
_TRACE, _FAMILY, _PARAMETER_FAMILY = "trace.", "family.", "parameter_family."
_WEIGHTS = "row_weights"


def save_mixture(model: DPMixture, path: str | os.PathLike[str]) -> None:
    """Write a fitted model to one file, complete or not at all."""
    write_archive(path, *to_archive(model))


def fit_mixture_beside(
    model: DPMixture,
    matrix: Matrix,
    results: str | os.PathLike[str],
    *,
    fresh: bool,
    where: str,
) -> None:
    """Fit `model`, saving its chains in a results store, and publish it there."""

    def fit(vault: Vault) -> None:
        model._fit_rows(vault)

    how = StoredFit(
        identity=_identity(model, matrix),
        fingerprint=model._fingerprint,
        fit=fit,
        archive=lambda: to_archive(model),
        read=read_model,
        metrics=lambda: _metrics(model),
        resumed=lambda _: None,  # chains tell that themselves, in sweeps
    )
    fit_beside(model, results, how, fresh=fresh, where=where)


def read_model(results: ResultsStore, version_id: str | None = None) -> Any:
    """Read the model of a version, or of the current one."""
    return read_version(results, version_id, from_archive)


def to_archive(model: DPMixture) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return kind, JSON part and arrays of a fitted model."""
    facts = border_facts(model)
    facts["parameters"], parameter_arrays = _parameters(model)
    family, family_arrays = model.family_.to_dict()
    facts |= {"family": family, "traces": list(model.traces_)}
    facts |= {name: getattr(model, name) for name in _FACTS}
    arrays = {
        **{name: getattr(model, name) for name in _ARRAYS},
        **({} if model._row_weights is None else {_WEIGHTS: model._row_weights}),
        **{_TRACE + name: trace for name, trace in model.traces_.items()},
        **{_FAMILY + name: array for name, array in family_arrays.items()},
        **{_PARAMETER_FAMILY + name: array for name, array in parameter_arrays.items()},
    }
    return KIND, facts, arrays


def from_archive(archive: Archive, path: str) -> Any:
    """Return the fitted model that an archive holds.

    Raises
    ------
    ModelFormatError
        If the archive does not hold a complete model.
    """
    try:
        return _rebuild(archive.meta, archive.arrays)
    except (KeyError, TypeError, ValueError, InputError) as error:
        got = f"{type(error).__name__}: {error}"
        raise ModelFormatError(path, "a complete model", got, "Save it again.") from error


def _rebuild(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> DPMixture:
    from distclust.mixtures.dp_mixture import DPMixture

    parameters = dict(facts["parameters"])
    if isinstance(parameters["family"], Mapping):
        own = with_prefix(arrays, _PARAMETER_FAMILY)
        parameters["family"] = family_from_dict(parameters["family"], own)
    model = DPMixture(**parameters)
    restore_border(model, facts)
    model.family_ = family_from_dict(facts["family"], with_prefix(arrays, _FAMILY))
    for name in _FACTS:
        setattr(model, name, facts[name])
    for name in _ARRAYS:
        setattr(model, name, arrays[name])
    model.traces_ = {name: arrays[_TRACE + name] for name in facts["traces"]}
    model._row_weights = arrays.get(_WEIGHTS)
    model.n_clusters_ = len(model._stats)
    _check(model)
    return model


def _check(model: DPMixture) -> None:
    n_rows, labels = len(model.labels_), model.labels_
    shapes = (model.draws_.shape[2:], model.confidence_.shape)
    if shapes != ((n_rows,), (n_rows,)) or n_rows == 0:
        raise ValueError(f"arrays of shapes {shapes} for {n_rows:,} rows")
    if labels.min() < 0 or int(labels.max()) + 1 != model.n_clusters_:
        raise ValueError(f"labels up to {labels.max()} for {model.n_clusters_} clusters")
    if model._stats.shape[1] != model.family_.n_statistics:
        raise ValueError(f"statistics of shape {model._stats.shape}")


def _parameters(model: DPMixture) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters as JSON values, and the arrays of a family among them."""
    parameters = dict(border_facts(model)["parameters"])
    parameters["concentration_prior"] = [float(v) for v in model.concentration_prior]
    arrays: dict[str, Any] = {}
    if isinstance(parameters["family"], Family):
        parameters["family"], arrays = parameters["family"].to_dict()
    return parameters, arrays


def _identity(model: DPMixture, matrix: Matrix) -> dict[str, Any]:
    parameters, arrays = _parameters(model)
    parameters.pop("random_state")
    if arrays or model._row_weights is not None:
        more = [np.ascontiguousarray(array) for _, array in sorted(arrays.items())]
        more += [] if model._row_weights is None else [model._row_weights]
        parameters["arrays"] = checksum(*more).hex()
    return {
        "kind": KIND,
        "parameters": parameters,
        "seed": model._seed,
        "input_fingerprint": getattr(matrix, "fingerprint", None) or fingerprint_of(model._rows),
    }


def _metrics(model: DPMixture) -> dict[str, Any]:
    log_joint = model.traces_["log_joint"]
    return {
        "n_rows": len(model.labels_),
        "n_clusters": int(model.n_clusters_),
        "n_sweeps": int(model.n_sweeps_),
        "log_joint": float(log_joint[:, log_joint.shape[1] // 2 :].mean()),
        "agreed": bool(model.agreed_),
    }
