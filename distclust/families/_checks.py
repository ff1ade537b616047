"""Hyperparameters, labels and columns are checked here, once, with a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.families._blocks import FloatArray, IntArray
from distclust.families.columns import Column
from distclust.validation import check_real

Hyperparameter: TypeAlias = Any  # None (empirical), a number, or an array (n_features,)


def check_positive(value: object, where: str) -> Hyperparameter:
    """Return None, a positive float or an array of positive floats."""
    if value is None:
        return None
    if np.ndim(value) == 0:  # type: ignore[arg-type]
        item = value.item() if isinstance(value, np.ndarray) else value
        return check_real(item, where, above=0.0)
    return check_vector(value, where, "positive finite numbers", positive=True)


def check_vector(
    value: object, where: str, expected: str = "finite numbers", *, positive: bool = False
) -> FloatArray:
    """Return `value` as a fresh float64 vector."""
    try:
        vector = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(where, expected, repr(value), "Pass a list of numbers.") from None
    if vector.ndim != 1:
        shape = f"an array of shape {vector.shape}"
        raise InputError(where, "one number or a vector", shape, "Pass one a feature.")
    bad = ~np.isfinite(vector) | ((vector <= 0.0) if positive else False)
    if vector.size == 0 or bad.any():
        got = repr(float(vector[bad][0])) if vector.size else "an empty list"
        raise InputError(where, expected, got, "Pass values in that range.")
    return vector


def check_labels(
    labels: npt.ArrayLike, n_groups: int, weights: npt.ArrayLike | None, n_rows: int
) -> tuple[IntArray, FloatArray]:
    """Return labels and weights as arrays that compiled loops can trust."""
    groups = np.ascontiguousarray(labels, dtype=np.int64)
    loads = np.ones(n_rows) if weights is None else np.ascontiguousarray(weights, dtype=float)
    if groups.shape != (n_rows,) or loads.shape != (n_rows,):
        got = f"shapes {groups.shape} and {loads.shape}"
        raise InputError("accumulate", f"{n_rows} labels and weights", got, "One a row.")
    if n_rows and (groups.min() < -1 or groups.max() >= n_groups):
        got = f"labels from {groups.min()} to {groups.max()}"
        expected = f"labels from -1 to {n_groups - 1}"
        raise InputError("accumulate", expected, got, "Raise n_groups or relabel.")
    return groups, loads


def refuse(
    bad: npt.NDArray[Any],
    columns: Sequence[Column],
    where: str,
    expected: str,
    got: str | npt.NDArray[Any],
    hint: str = "Clean that column or leave it out.",
) -> None:
    """Raise InputError naming the first column where `bad` holds."""
    if not np.any(bad):
        return
    first = int(np.flatnonzero(bad)[0])
    found = got if isinstance(got, str) else f"{got[first]:g}"
    n_bad = int(np.count_nonzero(bad))
    others = f" (and in {n_bad - 1} more)" if n_bad > 1 else ""
    raise InputError(where, expected, f"{found} in column {columns[first].name!r}{others}", hint)
