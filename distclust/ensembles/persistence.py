"""Fitted ensembles to a file and back: arrays and JSON, no pickle."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distclust.engine.stored_fits import read_version
from distclust.ensembles.base_fitting import (
    Base,
    BaseRecipe,
    BaseRecord,
    KMeansBase,
    MixtureBase,
)
from distclust.ensembles.consensus import ConsensusModel, Items
from distclust.ensembles.labels import LabelMatrix
from distclust.errors import InputError, ModelFormatError
from distclust.families import family_from_dict
from distclust.store import Archive, write_archive
from distclust.store.archive import with_prefix
from distclust.store.borders import border_facts, restore_border

if TYPE_CHECKING:
    from distclust.ensembles.cluster_ensemble import ClusterEnsemble
    from distclust.store.results import ResultsStore

KIND = "ClusterEnsemble"

_FACTS = ("diagnostics_", "agreed_", "_seed")
_FACTS_OF_METHODS = (
    "log_joint_",
    "log_bound_",
    "log_likelihood_",
    "expected_loss_",
    "concentration_",
    "n_sweeps_",
)
_TRACE, _BASE, _VALUES = "trace.", "base{}.", "values."
_OPTIONAL = ("draws_",)


def save_ensemble(model: ClusterEnsemble, path: str | os.PathLike[str]) -> None:
    """Write a fitted model to one file, complete or not at all."""
    write_archive(path, *to_archive(model))


def read_model(results: ResultsStore, version_id: str | None = None) -> Any:
    """Read the model of a version, or of the current one."""
    return read_version(results, version_id, from_archive)


def to_archive(model: ClusterEnsemble) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return kind, JSON part and arrays of a fitted model."""
    labels, items = model._labels, model._items
    facts = border_facts(model) | {"parameters": parameters_of(model)}
    facts |= {name: getattr(model, name) for name in _FACTS}
    facts |= {name: getattr(model, name) for name in _FACTS_OF_METHODS if hasattr(model, name)}
    facts["records"] = [dataclasses.asdict(record) for record in model.bases_]
    facts["names"] = list(labels.names)
    facts["texts"] = {
        str(m): values.tolist() for m, values in enumerate(labels.values) if _is_text(values)
    }
    arrays: dict[str, Any] = {
        "codes": labels.codes,
        "n_labels": labels.n_labels,
        "item_labels": model._item_labels,
        "item_confidence": model._item_confidence,
        "weights": model._model.weights,
        "theta": np.ascontiguousarray(model._model.theta),
    }
    for m, values in enumerate(labels.values):
        if not _is_text(values):
            arrays[f"{_VALUES}{m}"] = values
    if labels.row_ids is not None:
        ids = np.asarray(labels.row_ids)
        arrays["row_ids"] = ids if ids.dtype.kind in "iu" else ids.astype(str)
    if items.item_of_row is not None:
        arrays["item_of_row"] = items.item_of_row
    if items.counts is not None:
        arrays |= {"item_codes": items.codes, "item_counts": items.counts}
    arrays |= {name: getattr(model, name) for name in _OPTIONAL if hasattr(model, name)}
    arrays |= {_TRACE + name: np.ascontiguousarray(t) for name, t in model.traces_.items()}
    facts["bases"] = []
    for m, base in enumerate(model._bases):
        told, own = _base_to_dict(base)
        facts["bases"].append(told)
        arrays |= {_BASE.format(m) + name: array for name, array in own.items()}
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
    except (KeyError, TypeError, ValueError, IndexError, InputError) as error:
        got = f"{type(error).__name__}: {error}"
        raise ModelFormatError(path, "a complete model", got, "Save it again.") from error


def parameters_of(model: ClusterEnsemble) -> dict[str, Any]:
    """Return the parameters as JSON values."""
    parameters = dict(border_facts(model)["parameters"])
    if not isinstance(parameters["bases"], str):
        parameters["bases"] = [
            base.as_dict() if isinstance(base, BaseRecipe) else base for base in parameters["bases"]
        ]
    for name in ("base_clusters", "beta"):
        if np.ndim(parameters[name]) > 0:
            parameters[name] = np.asarray(parameters[name]).tolist()
    return parameters


def _rebuild(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> ClusterEnsemble:
    from distclust.ensembles.cluster_ensemble import ClusterEnsemble

    parameters = dict(facts["parameters"])
    if not isinstance(parameters["bases"], str):
        parameters["bases"] = [
            BaseRecipe(**base) if isinstance(base, Mapping) else base
            for base in parameters["bases"]
        ]
    model = ClusterEnsemble(**parameters)
    restore_border(model, facts)
    if not facts["columns"]:  # fitted to labels
        del model.n_features_in_
    for name in (*_FACTS, *(name for name in _FACTS_OF_METHODS if name in facts)):
        setattr(model, name, facts[name])
    for name in _OPTIONAL:
        if name in arrays:
            setattr(model, name, arrays[name])
    model.traces_ = with_prefix(arrays, _TRACE)
    model._labels = _labels(facts, arrays)
    model.base_labels_ = model._labels.codes
    codes = arrays.get("item_codes")
    of_row = arrays.get("item_of_row")
    if codes is None:
        codes = model.base_labels_ if of_row is None else model.base_labels_[of_row >= 0]
    model._items = Items(codes, arrays.get("item_counts"), of_row)
    model._item_labels = arrays["item_labels"]
    model._item_confidence = arrays["item_confidence"]
    method = parameters["method"]
    n_labels = model._labels.n_labels
    model._model = ConsensusModel(method, n_labels, arrays["weights"], arrays["theta"])
    model.bases_ = tuple(BaseRecord(**record) for record in facts["records"])
    model._bases = tuple(
        _base_from_dict(told, with_prefix(arrays, _BASE.format(m)))
        for m, told in enumerate(facts["bases"])
    )
    _check(model)
    model._describe()
    return model


def _labels(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> LabelMatrix:
    texts, n_labels = facts["texts"], arrays["n_labels"]
    values = tuple(
        np.array(texts[str(m)], object) if str(m) in texts else arrays[f"{_VALUES}{m}"]
        for m in range(len(n_labels))
    )
    if [len(found) for found in values] != n_labels.tolist():
        raise ValueError("labels of another number")
    return LabelMatrix(
        arrays["codes"], n_labels, values, tuple(facts["names"]), arrays.get("row_ids")
    )


def _check(model: ClusterEnsemble) -> None:
    codes, n_labels = model.base_labels_, model._labels.n_labels
    if codes.ndim != 2 or codes.shape[1:] != n_labels.shape or len(codes) == 0:
        raise ValueError(f"labels of shape {codes.shape} for {len(n_labels)} bases")
    if codes.min() < -1 or (codes.max(axis=0) >= n_labels).any():
        raise ValueError("labels that are out of range")
    items, n_items = model._items, len(model._items.codes)
    of_row = np.arange(n_items) if items.item_of_row is None else items.item_of_row
    if of_row.shape != (len(codes),) or of_row.max() >= n_items or of_row.min() < -1:
        raise ValueError("rows that are no items")
    own = model._item_labels
    if own.shape != (n_items,) or model._item_confidence.shape != (n_items,):
        raise ValueError(f"clusters of shape {own.shape} for {n_items:,} items")
    if own.min() < 0 or own.max() >= model._model.n_clusters:
        raise ValueError(f"clusters up to {own.max()} of {model._model.n_clusters}")
    if model._model.theta.shape != (int(n_labels.sum()), len(model._model.weights)):
        raise ValueError(f"distributions of shape {model._model.theta.shape}")
    if model._bases and len(model._bases) != len(n_labels):
        raise ValueError(f"{len(model._bases)} bases for {len(n_labels)} columns of labels")


def _base_to_dict(base: Base) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    if isinstance(base, KMeansBase):
        return {"kind": "kmeans"}, {"columns": base.columns, "centres": base.centres}
    assert isinstance(base, MixtureBase), "there are two kinds of bases"
    family, arrays = base.family.to_dict()
    told = {f"family.{name}": array for name, array in arrays.items()}
    return (
        {"kind": "dp", "family": family},
        {"columns": base.columns, "stats": base.stats, **told},
    )


def _base_from_dict(told: Mapping[str, Any], arrays: Mapping[str, Any]) -> Base:
    if told["kind"] == "kmeans":
        if arrays["centres"].shape[1:] != arrays["columns"].shape:
            raise ValueError("centres of other columns")
        return KMeansBase(arrays["columns"], arrays["centres"])
    family = family_from_dict(told["family"], with_prefix(arrays, "family."))
    return MixtureBase(arrays["columns"], family, arrays["stats"])


def _is_text(values: npt.NDArray[Any]) -> bool:
    return values.dtype.kind not in "iu"
