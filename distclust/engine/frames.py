"""A pandas table becomes an array of numbers and codes, with columns that say which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store import Column, default_columns
from distclust.store.matrix import NumberKind

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[Any]


def read_table(
    table: pd.DataFrame, expected: tuple[Column, ...] | None, where: str
) -> tuple[Array, tuple[Column, ...], Array | None]:
    """Return the values, columns and row ids of a table.

    Parameters
    ----------
    table
        Columns of numbers or booleans are numbers, columns of categories, strings or
        other objects are categories.
    expected
        Columns of a fitted model that the table must fit, or None.
    where
        Place to name in errors.

    Returns
    -------
    Values, shape (n_rows, n_features), their columns, and row ids where the table's index
    is more than a count of its rows.
    """
    columns = expected if expected is not None else tuple(_describe(table, where))
    if expected is not None:
        _check_names(_column_names(table), [column.name for column in expected], where)
    parts = [_encode(table.iloc[:, i], column, where) for i, column in enumerate(columns)]
    values = _gather(parts, len(table))
    return values, columns, _row_ids(table.index)


def _column_names(table: pd.DataFrame) -> list[str]:
    # A table whose columns are merely counted is like an array.
    names: list[Any] = list(table.columns)
    if names == list(range(table.shape[1])):
        return [column.name for column in default_columns(table.shape[1])]
    return [str(name) for name in names]


def _check_names(found: list[str], wanted: list[str], where: str) -> None:
    defaults = [column.name for column in default_columns(len(wanted))]
    if len(found) != len(wanted):
        raise wrong_width(len(found), len(wanted), where)
    if found == wanted or defaults in (found, wanted):
        return
    i = next(i for i, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1])
    if sorted(found) == sorted(wanted):
        hint = "Feature names must be in the same order as they were in fit: reorder the columns."
    else:
        hint = "The feature names should match those that were passed during fit."
    raise InputError(where, f"column {i} named {wanted[i]!r}", repr(found[i]), hint)


def wrong_width(found: int, wanted: int, where: str) -> InputError:
    """Return the error for new data with another number of features."""
    model = where.split(".")[0]
    return InputError(
        where,
        "the same features as in fit",
        f"{found}",
        # scikit-learn's words, which its own checks look for
        f"X has {found} features, but {model} is expecting {wanted} features as input.",
    )


def _describe(table: pd.DataFrame, where: str) -> list[Column]:
    names = _column_names(table)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            where, "columns with different names", f"{twice!r} twice", "Rename one of them."
        )
    return [_describe_column(table.iloc[:, i], name, where) for i, name in enumerate(names)]


def _describe_column(values: pd.Series[Any], name: str, where: str) -> Column:
    import pandas as pd

    dtype = values.dtype
    number = _number_kind(values)
    if number is not None:
        return Column(name, number=number)
    if isinstance(dtype, pd.CategoricalDtype):
        levels = _level_names(dtype.categories)
        if not dtype.ordered:
            levels = sorted(levels)
    elif pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype):
        levels = sorted(_level_names(_distinct(values, name, where)))
    else:
        raise InputError(
            f"{where} column {name!r}",
            "numbers, booleans, strings or categories",
            f"values of type {dtype}",
            "Convert the column to numbers or to categories, or drop it.",
        )
    if len(set(levels)) < len(levels):
        twice = next(level for level in levels if levels.count(level) > 1)
        raise InputError(
            f"{where} column {name!r}",
            "categories with different names",
            f"several that print as {twice!r}",
            "Rename them, for instance with .cat.rename_categories.",
        )
    return Column(name, "category", tuple(levels))


def _distinct(values: pd.Series[Any], name: str, where: str) -> Any:
    try:
        return values.dropna().unique()
    except TypeError:  # lists and the like
        raise InputError(
            f"{where} column {name!r}",
            "numbers, booleans, strings or categories",
            "values that cannot be compared, such as lists",
            "Convert the column, or drop it.",
        ) from None


def _number_kind(values: pd.Series[Any]) -> NumberKind | None:
    import pandas as pd

    dtype = values.dtype
    if pd.api.types.is_bool_dtype(dtype) and not isinstance(dtype, pd.CategoricalDtype):
        return "bool"
    if pd.api.types.is_integer_dtype(dtype):
        return "integer"
    if pd.api.types.is_float_dtype(dtype):
        return "real"
    if not pd.api.types.is_object_dtype(dtype):
        return None
    # Objects that are all numbers, as None among numbers makes them.
    inferred = pd.api.types.infer_dtype(values.dropna())
    kinds: dict[str, NumberKind] = {
        "boolean": "bool",
        "integer": "integer",
        "floating": "real",
        "mixed-integer-float": "real",
        "decimal": "real",
        "empty": "real",  # nothing but missing values
    }
    return kinds.get(inferred)


def _level_names(levels: Any) -> list[str]:
    return [str(level) for level in levels]


def _encode(values: pd.Series[Any], column: Column, where: str) -> Array:
    """Return one column as booleans, integers or float64 with NaN for missing."""
    if column.kind == "category":
        return _encode_levels(values, column, where)
    if _number_kind(values) is None:
        raise InputError(
            f"{where} column {column.name!r}",
            "numbers as in fit",
            f"values of type {values.dtype}",
            "Convert the column to numbers.",
        )
    dtype = values.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "biu":
        return values.to_numpy()
    return values.to_numpy(dtype=np.float64, na_value=np.nan)


def _encode_levels(values: pd.Series[Any], column: Column, where: str) -> Array:
    import pandas as pd

    # Distinct values are few: only they are turned into text and looked up.
    codes, distinct = pd.factorize(values, use_na_sentinel=True)
    code_of = {level: code for code, level in enumerate(column.levels)}
    names = _level_names(distinct)
    unknown = [name for name in names if name not in code_of]
    if unknown:
        raise InputError(
            f"{where} column {column.name!r}",
            f"one of the levels seen in fit ({', '.join(map(repr, column.levels[:10]))})",
            repr(unknown[0]),
            "Replace it by a known level or by a missing value.",
        )
    lookup = np.array([*(code_of[name] for name in names), np.nan])
    encoded: Array = lookup[codes]  # code -1, a missing value, takes the last entry
    return encoded


def _gather(parts: list[Array], n_rows: int) -> Array:
    """Put columns side by side, in their own type if they share it, else as float64."""
    types = {part.dtype for part in parts}
    dtype = types.pop() if len(types) == 1 else np.dtype(np.float64)
    values = np.empty((n_rows, len(parts)), dtype)
    for i, part in enumerate(parts):
        values[:, i] = part
    return values


def _row_ids(index: pd.Index[Any]) -> Array | None:
    import pandas as pd

    if isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1:
        return None
    ids: Array = index.to_numpy()
    return ids if ids.dtype.kind in "iu" else np.array([str(row_id) for row_id in index])
