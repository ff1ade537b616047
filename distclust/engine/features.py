"""The border of estimators: rows come in, names and numbers of their features are kept."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from distclust.engine.matrices import as_matrix
from distclust.errors import InputError
from distclust.store import Matrix, has_default_names


def opened(X: Any, where: str) -> Any:
    """Return the matrix of a store; anything else as it is."""
    is_store = isinstance(X, (str, os.PathLike)) or hasattr(X, "matrix")
    return as_matrix(X, where=where) if is_store else X


def check_features(estimator: Any, X: Any, where: str, *, reset: bool) -> None:
    """Keep or compare names and number of features, in scikit-learn's way.

    Raises
    ------
    InputError
        If names are not usable, or not those of the fit.
    """
    from sklearn.utils.validation import _check_feature_names, _check_n_features

    if reset:
        estimator.__dict__.pop("feature_names_in_", None)
    if isinstance(X, Matrix):
        X = _header(X)
    if not hasattr(X, "shape"):
        return
    expected = "columns with usable names" if reset else "the features of the fit"
    try:
        _check_feature_names(estimator, X, reset=reset)
        if len(X.shape) == 2:
            _check_n_features(estimator, X, reset=reset)
    except (ValueError, TypeError) as error:
        hint = "Name columns by strings." if reset else "Pass the same columns."
        raise InputError(where, expected, str(error).rstrip().rstrip("."), hint) from None


def _header(matrix: Matrix) -> Any:
    """Return a table without rows that has the names of a matrix, if it has any."""
    if has_default_names(matrix.columns):
        return np.empty((0, matrix.shape[1]))
    import pandas as pd

    return pd.DataFrame(columns=[column.name for column in matrix.columns], dtype=np.float64)
