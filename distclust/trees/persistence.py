"""Fitted trees to a file and back: arrays and JSON, no pickle.

What follows from other parts (statistics of inner nodes, evidence, labels) is not stored but
computed again by the same code, so a loaded model cannot contradict itself.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distclust.errors import InputError, ModelFormatError
from distclust.families import Family, family_from_dict
from distclust.store import Column, read_archive, write_archive
from distclust.trees.evaluate import MIXINGS, DirichletProcess, Mixing
from distclust.trees.structure import Structure
from distclust.trees.tree import Tree

if TYPE_CHECKING:
    from distclust.trees.base import TreeEstimator

_FAMILY, _PARAMETER_FAMILY = "family.", "parameter_family."


def save_model(model: TreeEstimator, path: str | Path) -> None:
    """Write a fitted estimator to one file, complete or not at all."""
    tree = model.tree_
    assert tree.statistics is not None, "a fitted tree keeps its statistics"
    family_meta, family_arrays = model.family_.to_dict()
    parameters, parameter_arrays = _parameters_to_store(model)
    meta = {
        "parameters": parameters,
        "family": family_meta,
        "family_reason": model.family_reason_,
        "mixing": _mixing_to_store(tree.mixing),
        "columns": [
            [column.name, column.kind, list(column.levels), column.number]
            for column in model._columns
        ],
        "has_feature_names": hasattr(model, "feature_names_in_"),
    }
    arrays = {
        "child_start": tree.structure.child_start,
        "child_list": tree.structure.child_list,
        "leaf_statistics": tree.statistics[: tree.n_leaves],
        "log_marginal": tree.log_marginal,
        "leaf_of_row": tree.leaf_of_row,
        "row_ids": tree.row_ids,
        "objective_path": model.objective_path_,
        **{_FAMILY + name: array for name, array in family_arrays.items()},
        **{_PARAMETER_FAMILY + name: array for name, array in parameter_arrays.items()},
    }
    write_archive(path, type(model).__name__, meta, arrays)


def load(path: str | Path) -> TreeEstimator:
    """Read a fitted model that was written with its ``save`` method.

    Raises
    ------
    ModelFormatError
        If the file is truncated, altered, not a model, or of a newer format.
    MissingFileError
        If there is no such file.
    """
    from distclust.trees.estimators import BHC, BayesianRoseTree

    archive = read_archive(path)
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


def _rebuild(
    kind: type[TreeEstimator], meta: Mapping[str, Any], arrays: Mapping[str, Any], where: str
) -> TreeEstimator:
    stored = dict(meta["parameters"])
    if isinstance(stored["family"], Mapping):
        parts = _with_prefix(arrays, _PARAMETER_FAMILY)
        stored["family"] = family_from_dict(stored["family"], parts, where)
    model = kind(**stored)
    stats = arrays["leaf_statistics"]
    structure = Structure(len(stats), arrays["child_start"], arrays["child_list"])
    model._columns = tuple(
        Column(name, kind, tuple(levels), number) for name, kind, levels, number in meta["columns"]
    )
    names = tuple(column.name for column in model._columns)
    model.tree_ = Tree.build(
        structure,
        stats[:, 0],
        arrays["log_marginal"],
        _mixing_from_store(meta["mixing"]),
        leaf_of_row=arrays["leaf_of_row"],
        row_ids=arrays["row_ids"],
        feature_names=names,
        family=family_from_dict(meta["family"], _with_prefix(arrays, _FAMILY), where),
        statistics=structure.sum_up(stats),
    )
    model.family_reason_ = meta["family_reason"]
    model.objective_path_ = arrays["objective_path"]
    model.n_features_in_ = len(names)
    if meta["has_feature_names"]:
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


def _mixing_to_store(mixing: Mixing) -> list[Any]:
    is_dp = isinstance(mixing, DirichletProcess)
    return [mixing.name, mixing.concentration if is_dp else mixing.gamma]  # type: ignore[union-attr]


def _mixing_from_store(stored: list[Any]) -> Mixing:
    return MIXINGS[stored[0]](stored[1])


def _with_prefix(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
