"""Fitted projections to a file and back: arrays and JSON, no pickle."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from distclust.errors import InputError, ModelFormatError
from distclust.store import Archive, Column, write_archive

if TYPE_CHECKING:
    from distclust.projections.base import Projection
    from distclust.projections.ppca import PPCA

PPCA_KIND = "PPCA"

_PPCA_ARRAYS = (
    "components_",
    "explained_variance_",
    "loadings_",
    "mean_",
    "log_likelihood_path_",
)


def save_ppca(model: PPCA, path: str | os.PathLike[str]) -> None:
    """Write a fitted model to one file, complete or not at all."""
    facts = border_facts(model) | {"noise_variance": model.noise_variance_}
    arrays = {name: getattr(model, name) for name in _PPCA_ARRAYS}
    write_archive(path, PPCA_KIND, facts, arrays)


def from_archive(archive: Archive, path: str) -> PPCA:
    """Return the fitted model that an archive holds.

    Raises
    ------
    ModelFormatError
        If the archive does not hold a complete model.
    """
    try:
        return _rebuild_ppca(archive.meta, archive.arrays)
    except (KeyError, TypeError, ValueError, InputError) as error:
        got = f"{type(error).__name__}: {error}"
        raise ModelFormatError(path, "a complete model", got, "Save it again.") from error


def border_facts(model: Projection) -> dict[str, Any]:
    """Return parameters, columns and names of a fitted projection as JSON values."""
    parameters = {name: _plain(value) for name, value in model.get_params(deep=False).items()}
    seed = parameters["random_state"]
    # A generator has moved on since the fit; only a plain seed can be repeated.
    parameters["random_state"] = seed if isinstance(seed, numbers.Integral) else None
    return {
        "parameters": parameters,
        "columns": [[c.name, c.kind, list(c.levels), c.number] for c in model._columns],
        "has_feature_names": hasattr(model, "feature_names_in_"),
    }


def restore_border(model: Projection, facts: Mapping[str, Any]) -> None:
    """Set what `border_facts` described beside the parameters."""
    model._columns = tuple(
        Column(name, kind, tuple(levels), number) for name, kind, levels, number in facts["columns"]
    )
    model.n_features_in_ = len(model._columns)
    if facts["has_feature_names"]:
        model.feature_names_in_ = np.array([c.name for c in model._columns], dtype=object)


def _rebuild_ppca(facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> PPCA:
    from distclust.projections.ppca import PPCA

    model = PPCA(**facts["parameters"])
    restore_border(model, facts)
    for name in _PPCA_ARRAYS:
        setattr(model, name, arrays[name])
    model.noise_variance_ = float(facts["noise_variance"])
    path = model.log_likelihood_path_
    model.log_likelihood_, model.n_iter_ = float(path[-1]), len(path) - 1
    n_components = len(model.components_)
    shapes = (model.components_.shape, model.loadings_.shape[::-1], model.mean_.shape)
    n_features = model.n_features_in_
    wanted = ((n_components, n_features), (n_components, n_features), (n_features,))
    if shapes != wanted or model.explained_variance_.shape != (n_components,):
        raise ValueError(f"arrays of shapes {shapes} for {n_features:,} columns")
    return model


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
