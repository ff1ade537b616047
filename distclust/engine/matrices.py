"""Whatever a user has becomes one `Matrix`, or one sentence that says why not."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.engine.frames import read_table, wrong_width
from distclust.errors import InputError
from distclust.store import ArrayMatrix, Column, Matrix, SparseMatrix, has_default_names

Array = npt.NDArray[Any]


def as_matrix(X: Any, *, columns: tuple[Column, ...] | None = None, where: str = "X") -> Matrix:
    """Return `X` as a `Matrix`, without a copy where its type and layout allow.

    Parameters
    ----------
    X
        Shape (n_rows, n_features): a numpy array or nested lists, a scipy sparse matrix
        or array of any format, a `sparse` array, a pandas table, a Dask array whose
        chunks are any of the arrays above, a path or URL of a store (of ours, an AnnData
        ``.zarr`` or a plain Zarr array), an opened store, or a `Matrix`.
    columns
        Columns of a fitted model. New data must fit them: as many, the same names in the
        same order where the data have names, and only known levels.
    where
        Place to name in errors, such as ``BHC.fit(X)``.

    Raises
    ------
    InputError
        For anything that is not a table of real numbers, booleans or categories. Values
        of a Dask array are checked when they are read.
    """
    if X is None or isinstance(X, (bytes, dict, set)):
        raise InputError(
            where,
            "rows and features: an array, a sparse matrix, a table, a Dask array or a store",
            f"{X!r:.60}",
            "Read a file first, for example with pandas.read_csv.",
        )
    if isinstance(X, Matrix):
        matrix = X
    elif isinstance(X, (str, os.PathLike)):
        matrix = _from_store(X, where)
    elif _is_from("distclust", X) and hasattr(X, "matrix"):  # an opened store
        matrix = X.matrix()
    elif _is_from("pandas", X):
        matrix = _from_pandas(X, columns, where)
    elif _is_from("dask", X):
        matrix = _from_dask(X, columns, where)
    else:
        matrix = _from_memory(X, columns, where)
    if columns is not None and columns != matrix.columns:
        _check_columns(matrix, columns, where)
    return matrix


def _from_store(path: str | os.PathLike[str], where: str) -> Matrix:
    """Open the store at a path or URL; a table in a file is not one."""
    text = os.fspath(path)
    if "://" not in text and not os.path.isdir(text):
        raise InputError(
            where,
            "a store, or rows and features",
            f"the file {text!r:.60}" if os.path.exists(text) else f"nothing at {text!r:.60}",
            "Read a file first, for example with pandas.read_csv, or distclust.ingest it.",
        )
    from distclust.store.matrix_store import open_store

    return open_store(text).matrix()


def _from_memory(X: Any, columns: tuple[Column, ...] | None, where: str) -> Matrix:
    values: Any = _to_scipy(X, where) if _is_from("sparse", X) else X
    if is_scipy_sparse(values):
        check_shape(values.shape, where)
        check_dtype(values.dtype, where)
        matrix: Matrix = SparseMatrix(values, _fitting(columns, values.shape[1]))
        check_finite_csr(matrix.read_all(), where)
        return matrix
    array = _to_array(values, where)
    check_no_infinity(array, where)
    return ArrayMatrix(array, _fitting(columns, array.shape[1]))


def _fitting(columns: tuple[Column, ...] | None, n_features: int) -> tuple[Column, ...] | None:
    """Columns that an array without names may take over from the model."""
    if columns is None or len(columns) != n_features:
        return None
    return columns if all(column.kind == "number" for column in columns) else None


def _check_columns(matrix: Matrix, columns: tuple[Column, ...], where: str) -> None:
    found, wanted = matrix.shape[1], len(columns)
    if found != wanted:
        raise wrong_width(found, wanted, where)
    named = not (has_default_names(columns) or has_default_names(matrix.columns))
    for have, want in zip(matrix.columns, columns, strict=True):
        if have.kind != want.kind or (have.levels != want.levels):
            raise InputError(
                f"{where} column {want.name!r}",
                "categories as in fit" if want.kind == "category" else "numbers as in fit",
                "a column of another kind or with other levels",
                "Pass a table with the same columns as in fit.",
            )
        if named and have.name != want.name:
            raise InputError(where, f"a column named {want.name!r}", repr(have.name), "Rename it.")


def _is_from(package: str, X: Any) -> bool:
    """Whether the type of `X` comes from `package`, without importing it."""
    bases = type(X).__mro__  # a subclass of a table is a table
    return package in sys.modules and any(b.__module__.split(".")[0] == package for b in bases)


def is_scipy_sparse(X: Any) -> bool:
    """Whether `X` is a scipy sparse matrix or array, of any format."""
    return bool(scipy.sparse.issparse(X))  # its own type would hide shape and dtype


def _from_pandas(X: Any, columns: tuple[Column, ...] | None, where: str) -> Matrix:
    import pandas as pd

    if not isinstance(X, pd.DataFrame):
        raise _not_two_dimensional(np.shape(X), where)
    check_shape(X.shape, where)
    if all(isinstance(dtype, pd.SparseDtype) for dtype in X.dtypes):
        table: Any = X  # the accessor is made at run time
        return _from_memory(table.sparse.to_coo(), columns, where)
    values, columns, row_ids = read_table(X, columns, where)
    check_no_infinity(values, where)
    return ArrayMatrix(values, columns, row_ids)


def _from_dask(X: Any, columns: tuple[Column, ...] | None, where: str) -> Matrix:
    import dask.array

    from distclust.engine.dask_matrix import DaskMatrix

    if not isinstance(X, dask.array.Array):
        raise InputError(
            where,
            "a Dask array",
            f"a Dask {type(X).__name__}",
            "Convert a table with .to_dask_array(lengths=True).",
        )
    if X.ndim == 2 and np.isnan(X.shape).any():
        X = X.copy()
        X.compute_chunk_sizes()
    check_shape(X.shape, where)
    check_dtype(X.dtype, where)
    return DaskMatrix(X, _fitting(columns, X.shape[1]), where)


def _to_array(X: Any, where: str) -> Array:
    """Return a two-dimensional array of numbers."""
    if isinstance(X, np.ma.MaskedArray):
        X = np.ma.filled(X.astype(np.float64), np.nan)
    try:
        array = np.asarray(X)
    except ValueError as error:  # rows of different lengths
        raise InputError(
            where, "rows of equal length", f"{error}", "Make all rows equally long."
        ) from error
    check_shape(array.shape, where)
    if array.dtype.kind == "O":
        array = _objects_to_numbers(array, where)
    check_dtype(array.dtype, where)
    return array


def _objects_to_numbers(array: Array, where: str) -> Array:
    text = next((value for value in array.flat if isinstance(value, (str, bytes))), None)
    if text is None:
        # A TypeError from here, about what float() takes, is what callers of
        # scikit-learn expect for objects that are no numbers at all.
        return array.astype(np.float64)
    raise InputError(
        where,
        "numbers",
        f"the text {text!r}",
        "Pass categories as a pandas table; its text columns are understood.",
    )


def _to_scipy(X: Any, where: str) -> Any:
    if X.ndim != 2:
        raise _not_two_dimensional(X.shape, where)
    if X.fill_value != 0:
        raise InputError(
            where,
            "a sparse array with fill value 0",
            f"fill value {X.fill_value}",
            "Subtract it first, or pass X.todense().",
        )
    return X.asformat("coo").tocsr()


def check_shape(shape: tuple[int, ...], where: str) -> None:
    """Refuse anything but two dimensions with at least one row and one feature."""
    if len(shape) != 2:
        raise _not_two_dimensional(shape, where)
    for size, name in ((shape[0], "sample"), (shape[1], "feature")):
        if size == 0:
            raise InputError(
                where,
                "at least one row and one feature",
                f"0 {name}(s) (shape={shape}) while a minimum of 1 is required",
                "Pass a table that is not empty.",
            )


def _not_two_dimensional(shape: tuple[int, ...], where: str) -> InputError:
    return InputError(
        where,
        "2D array of rows and features",
        f"{len(shape)}D array instead, of shape {shape}",
        "Reshape your data, using X.reshape(-1, 1) if it has a single feature "
        "or X.reshape(1, -1) if it is a single row.",
    )


def check_dtype(dtype: np.dtype[Any], where: str) -> None:
    """Refuse values that are not real numbers or booleans."""
    if dtype.kind in "biuf":
        return
    got = "Complex data not supported" if dtype.kind == "c" else f"values of type {dtype}"
    raise InputError(where, "real numbers", got, "Convert the values to real numbers.")


def check_no_infinity(array: Array, where: str, first_row: int = 0) -> None:
    """Refuse infinities in dense values; NaN is a missing value."""
    if array.dtype.kind != "f":
        return
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(array.sum())  # one quick pass settles the usual case
    if finite or not np.isinf(array).any():
        return
    row, column = np.argwhere(np.isinf(array))[0]
    raise _not_finite(where, "inf", row + first_row, column)


def check_finite_csr(csr: Any, where: str, first_row: int = 0) -> None:
    """Refuse infinities and NaN in sparse values, which have no missing ones."""
    if csr.dtype.kind != "f" or np.isfinite(csr.data).all():
        return
    position = int(np.argmin(np.isfinite(csr.data)))
    row = int(np.searchsorted(csr.indptr, position, side="right")) - 1
    value = "NaN" if np.isnan(csr.data[position]) else "inf"
    raise _not_finite(where, value, row + first_row, csr.indices[position])


def _not_finite(where: str, value: str, row: int, column: int) -> InputError:
    return InputError(
        where,
        "finite numbers (dense data may hold NaN for missing values)",
        f"{value} in row {row}, column {column}",
        "Replace it by a finite number or a missing value.",
    )
