"""Fitted models to a file and back: arrays and JSON, no pickle.

A file holds the tree (:mod:`distclust.trees.export`), the family, the parameters and the
columns. Labels follow from the tree and are found again by the same code.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distclust.errors import InputError, ModelFormatError
from distclust.families import Family, family_from_dict
from distclust.store import Archive, Column, read_archive, write_archive
from distclust.store.archive import with_prefix
from distclust.trees.export import from_arrays, to_arrays

if TYPE_CHECKING:
    from distclust.store.results import ResultsStore
    from distclust.store.versions import Version
    from distclust.trees.base import TreeEstimator

MODEL_FILE = "model.distclust"  # of a version in a results store
LABELS_FILE = "labels/zarr.json"

_SEED = "random_state"
_WEIGHTS = "row_weights"
_TREE, _FAMILY, _PARAMETER_FAMILY = "tree.", "family.", "parameter_family."


def save_model(model: TreeEstimator, path: str | Path) -> None:
    """Write a fitted estimator to one file, complete or not at all."""
    write_archive(path, *to_archive(model))


def publish_model(model: TreeEstimator, results: ResultsStore, input_fingerprint: str) -> Version:
    """Make a fitted estimator the current version of a results store."""
    with results.begin(**identity_of(model, input_fingerprint)) as draft:
        draft.write_archive(MODEL_FILE, *to_archive(model))
        model._write_beside(draft)
        return draft.publish(metrics_of(model, len(model.tree_.leaf_of_row)))


def identity_of(model: TreeEstimator, input_fingerprint: str) -> dict[str, Any]:
    """Return what the results of a fit are made from, as `ResultsStore.begin` takes it."""
    parameters, _ = _parameters_to_store(model)
    seed = parameters.pop(_SEED)
    return {
        "kind": type(model).__name__,
        "parameters": parameters,
        "seed": seed,
        "input_fingerprint": input_fingerprint,
    }


def metrics_of(model: TreeEstimator, n_rows: int) -> dict[str, Any]:
    """Return the figures that a version shows."""
    return {
        "n_rows": n_rows,
        "n_clusters": int(model.n_clusters_),
        "log_evidence": float(model.log_evidence_),
    }


def to_archive(model: TreeEstimator) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return kind, JSON part and arrays of a fitted estimator."""
    tree_facts, tree_arrays = to_arrays(model.tree_)
    family_facts, family_arrays = model.family_.to_dict()
    parameters, parameter_arrays = _parameters_to_store(model)
    facts = {
        "parameters": parameters,
        "tree": tree_facts,
        "family": family_facts,
        "family_reason": model.family_reason_,
        "columns": [
            [column.name, column.kind, list(column.levels), column.number]
            for column in model._columns
        ],
        "has_feature_names": hasattr(model, "feature_names_in_"),
    }
    arrays = {
        "objective_path": model.objective_path_,
        **({} if model._row_weights is None else {_WEIGHTS: model._row_weights}),
        **{_TREE + name: array for name, array in tree_arrays.items()},
        **{_FAMILY + name: array for name, array in family_arrays.items()},
        **{_PARAMETER_FAMILY + name: array for name, array in parameter_arrays.items()},
    }
    more_facts, more_arrays = model._extra_state()
    return type(model).__name__, facts | more_facts, arrays | more_arrays


def load(path: str | Path) -> TreeEstimator:
    """Read a fitted model.

    Parameters
    ----------
    path
        A file that the model's ``save`` method wrote, or the path or URL of a results
        store, whose current version is read.

    Raises
    ------
    ModelFormatError
        If the file is truncated, altered, not a model, or of a newer format.
    MissingFileError
        If there is no such file.
    StoreError
        If there is no results store, or what it holds was altered.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InputError("load", "the path of a model file", repr(path), "Pass a string.")
    place = os.fspath(path)
    if "://" in place or os.path.isdir(place):
        from distclust.store.results import ResultsStore

        return read_model(ResultsStore(place))
    return from_archive(read_archive(place), place)


def read_model(
    results: ResultsStore, version_id: str | None = None, *, with_labels: bool = True
) -> TreeEstimator:
    """Read the model of a version, or of the current one, with its labels where it has any."""
    with results.open_version(version_id) as reader:
        version = reader.version
        model = from_archive(reader.read_archive(MODEL_FILE), f"{results.url}, {version.id}")
    if with_labels and LABELS_FILE in version.files and not hasattr(model, "labels_"):
        from distclust.trees.stored_fits import attach

        attach(model, results, version)
    return model


def from_archive(archive: Archive, path: str) -> TreeEstimator:
    """Return the fitted model that an archive holds."""
    from distclust.trees.estimators import BHC, EMBHC, BayesianRoseTree, RandomizedBHC

    kinds = (BHC, BayesianRoseTree, RandomizedBHC, EMBHC)
    classes: dict[str, type[TreeEstimator]] = {kind.__name__: kind for kind in kinds}
    if archive.kind not in classes:
        raise ModelFormatError(
            str(path),
            f"a model among {', '.join(classes)}",
            repr(archive.kind),
            "Update distclust.",
        )
    try:
        return _rebuild(classes[archive.kind], archive.meta, archive.arrays, str(path))
    except (KeyError, TypeError, IndexError, InputError) as error:
        raise ModelFormatError(
            str(path), "a complete model", f"{type(error).__name__}: {error}", "Save it again."
        ) from error


def _rebuild(
    kind: type[TreeEstimator], facts: Mapping[str, Any], arrays: Mapping[str, Any], where: str
) -> TreeEstimator:
    stored = dict(facts["parameters"])
    if isinstance(stored["family"], Mapping):
        parts = with_prefix(arrays, _PARAMETER_FAMILY)
        stored["family"] = family_from_dict(stored["family"], parts, where)
    model = kind(**stored)
    model._columns = tuple(
        Column(name, kind, tuple(levels), number) for name, kind, levels, number in facts["columns"]
    )
    family = family_from_dict(facts["family"], with_prefix(arrays, _FAMILY), where)
    model.tree_ = from_arrays(facts["tree"], with_prefix(arrays, _TREE), family)
    model.family_reason_ = facts["family_reason"]
    model.objective_path_ = arrays["objective_path"]
    model._row_weights = arrays.get(_WEIGHTS)
    model._restore(facts, arrays, family)
    model.n_features_in_ = len(model._columns)
    if facts["has_feature_names"]:
        names = [column.name for column in model._columns]
        model.feature_names_in_ = np.array(names, dtype=object)
    model._describe()
    return model


def _parameters_to_store(model: TreeEstimator) -> tuple[dict[str, Any], dict[str, Any]]:
    parameters = model.get_params(deep=False)
    arrays: dict[str, Any] = {}
    if isinstance(parameters["family"], Family):
        parameters["family"], arrays = parameters["family"].to_dict()
    seed = parameters["random_state"]
    # A generator has moved on since the fit; only a plain seed can be repeated.
    parameters["random_state"] = int(seed) if isinstance(seed, numbers.Integral) else None
    return {name: _plain(value) for name, value in parameters.items()}, arrays


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
