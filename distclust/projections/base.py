"""What projections share at their border: names and numbers of features, new rows."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from distclust.engine import as_matrix, check_features, opened
from distclust.errors import InputError
from distclust.store import Column, Matrix


class Projection(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """What projections share; not to be used by itself."""

    _columns: tuple[Column, ...]
    n_features_in_: int

    def _training_rows(self, X: Any, where: str) -> Matrix:
        """Return the rows to fit, and keep names and number of their features."""
        X = opened(X, where)
        check_features(self, X, where, reset=True)
        matrix = as_matrix(X, where=where)
        check_numbers(matrix, where)
        self.n_features_in_ = matrix.shape[1]
        self._columns = matrix.columns
        return matrix

    def _new_rows(self, X: Any, method: str) -> Matrix:
        """Return rows with the features of the fit."""
        check_is_fitted(self)
        where = f"{type(self).__name__}.{method}"
        X = opened(X, where)
        check_features(self, X, where, reset=False)
        return as_matrix(X, columns=self._columns, where=where)


def check_numbers(matrix: Matrix, where: str) -> None:
    """Refuse categories, whose codes have no distances."""
    for column in matrix.columns:
        if column.kind != "number":
            hint = "Leave it out, or encode it as numbers."
            raise InputError(f"{where} column {column.name!r}", "numbers", "categories", hint)
