"""What projections share at their border: names and numbers of features, new rows."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import _check_feature_names, _check_n_features, check_is_fitted

from distclust.engine import as_matrix
from distclust.errors import InputError
from distclust.store import Column, Matrix, has_default_names


class Projection(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What projections share; not to be used by itself."""

    _columns: tuple[Column, ...]
    n_features_in_: int

    def _training_rows(self, X: Any, where: str) -> Matrix:
        """Return the rows to fit, and keep names and number of their features."""
        X = _opened(X, where)
        self._check_features(X, where, reset=True)
        matrix = as_matrix(X, where=where)
        check_numbers(matrix, where)
        self.n_features_in_ = matrix.shape[1]
        self._columns = matrix.columns
        return matrix

    def _new_rows(self, X: Any, method: str) -> Matrix:
        """Return rows with the features of the fit."""
        check_is_fitted(self)
        where = f"{type(self).__name__}.{method}"
        X = _opened(X, where)
        self._check_features(X, where, reset=False)
        return as_matrix(X, columns=self._columns, where=where)

    def _check_features(self, X: Any, where: str, *, reset: bool) -> None:
        """Keep or compare names and number of features, in scikit-learn's way."""
        if reset:
            self.__dict__.pop("feature_names_in_", None)
        if isinstance(X, Matrix):
            X = _header(X)
        if not hasattr(X, "shape"):
            return
        expected = "columns with usable names" if reset else "the features of the fit"
        try:
            _check_feature_names(self, X, reset=reset)
            if len(X.shape) == 2:
                _check_n_features(self, X, reset=reset)
        except (ValueError, TypeError) as error:
            hint = "Name columns by strings." if reset else "Pass the same columns."
            raise InputError(where, expected, str(error).rstrip().rstrip("."), hint) from None


def check_numbers(matrix: Matrix, where: str) -> None:
    """Refuse categories, whose codes have no distances."""
    for column in matrix.columns:
        if column.kind != "number":
            hint = "Leave it out, or encode it as numbers."
            raise InputError(f"{where} column {column.name!r}", "numbers", "categories", hint)


def _opened(X: Any, where: str) -> Any:
    """Return the matrix of a store; anything else as it is."""
    is_store = isinstance(X, (str, os.PathLike)) or hasattr(X, "matrix")
    return as_matrix(X, where=where) if is_store else X


def _header(matrix: Matrix) -> Any:
    """Return a table without rows that has the names of a matrix, if it has any."""
    if has_default_names(matrix.columns):
        return np.empty((0, matrix.shape[1]))
    import pandas as pd

    return pd.DataFrame(columns=[column.name for column in matrix.columns], dtype=np.float64)
