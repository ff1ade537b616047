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
from distclust.trees.export import from_arrays, to_arrays

if TYPE_CHECKING:
    from distclust.store.results import ResultsStore
    from distclust.store.versions import Version
    from distclust.trees.base import TreeEstimator

MODEL_FILE = "model.distclust"  # of a version in a results store

_SEED = "random_state"
_WEIGHTS = "row_weights"
_TREE, _FAMILY, _PARAMETER_FAMILY = "tree.", "family.", "parameter_family."


def save_model(model: TreeEstimator, path: str | Path) -> None:
    """Write a fitted estimator to one file, complete or not at all."""
    write_archive(path, *_to_archive(model))


def publish_model(model: TreeEstimator, results: ResultsStore, input_fingerprint: str) -> Version:
    """Make a fitted estimator the current version of a results store."""
    kind, facts, arrays = _to_archive(model)
    parameters = {name: value for name, value in facts["parameters"].items() if name != _SEED}
    seed = facts["parameters"][_SEED]
    with results.begin(kind, parameters, seed, input_fingerprint) as draft:
        draft.write_archive(MODEL_FILE, kind, facts, arrays)
        metrics = {
            "n_rows": len(model.tree_.leaf_of_row),
            "n_clusters": int(model.n_clusters_),
            "log_evidence": float(model.log_evidence_),
        }
        return draft.publish(metrics)


def _to_archive(model: TreeEstimator) -> tuple[str, dict[str, Any], dict[str, Any]]:
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
    return type(model).__name__, facts, arrays


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
    from distclust.trees.estimators import BHC, BayesianRoseTree

    if not isinstance(path, (str, os.PathLike)):
        raise InputError("load", "the path of a model file", repr(path), "Pass a string.")
    archive = _read(os.fspath(path))
    classes: dict[str, type[TreeEstimator]] = {"BHC": BHC, "BayesianRoseTree": BayesianRoseTree}
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


def _read(path: str) -> Archive:
    if "://" not in path and not os.path.isdir(path):
        return read_archive(path)
    from distclust.store.results import ResultsStore

    with ResultsStore(path).open_version() as version:
        return version.read_archive(MODEL_FILE)


def _rebuild(
    kind: type[TreeEstimator], facts: Mapping[str, Any], arrays: Mapping[str, Any], where: str
) -> TreeEstimator:
    stored = dict(facts["parameters"])
    if isinstance(stored["family"], Mapping):
        parts = _with_prefix(arrays, _PARAMETER_FAMILY)
        stored["family"] = family_from_dict(stored["family"], parts, where)
    model = kind(**stored)
    model._columns = tuple(
        Column(name, kind, tuple(levels), number) for name, kind, levels, number in facts["columns"]
    )
    family = family_from_dict(facts["family"], _with_prefix(arrays, _FAMILY), where)
    model.tree_ = from_arrays(facts["tree"], _with_prefix(arrays, _TREE), family)
    model.family_reason_ = facts["family_reason"]
    model.objective_path_ = arrays["objective_path"]
    model._row_weights = arrays.get(_WEIGHTS)
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


def _with_prefix(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
