"""What a saved estimator keeps of its border: parameters, columns, names of features."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from distclust.store.matrix import Column


def border_facts(model: Any) -> dict[str, Any]:
    """Return parameters, columns and names of a fitted estimator as JSON values."""
    parameters = {name: _plain(value) for name, value in model.get_params(deep=False).items()}
    seed = parameters["random_state"]
    # A generator has moved on since the fit; only a plain seed can be repeated.
    parameters["random_state"] = seed if isinstance(seed, numbers.Integral) else None
    return {
        "parameters": parameters,
        "columns": [[c.name, c.kind, list(c.levels), c.number] for c in model._columns],
        "has_feature_names": hasattr(model, "feature_names_in_"),
    }


def restore_border(model: Any, facts: Mapping[str, Any]) -> None:
    """Set what `border_facts` described beside the parameters."""
    model._columns = tuple(
        Column(name, kind, tuple(levels), number) for name, kind, levels, number in facts["columns"]
    )
    model.n_features_in_ = len(model._columns)
    if facts["has_feature_names"]:
        model.feature_names_in_ = np.array([c.name for c in model._columns], dtype=object)


def take_over(model: Any, fitted: Any) -> None:
    """Make a model what another one was fitted to be; its parameters stay the user's."""
    own = model.get_params(deep=False)
    model.__dict__.update({k: v for k, v in fitted.__dict__.items() if k not in own})


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
