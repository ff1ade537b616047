"""A user's labels, from any tool, become one `LabelMatrix`, or one sentence that says why not.

Rows are read in blocks, and no more than a block is ever held in the user's own type. Labels
get codes as they come and are put in order at the end.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.engine import as_matrix, map_blocks
from distclust.ensembles.labels import (
    MISSING,
    Codes,
    Indices,
    LabelMatrix,
    default_names,
    row_slices,
    smallest_signed,
)
from distclust.errors import InputError
from distclust.store import Block, Column, Matrix, has_default_names

Array = npt.NDArray[Any]

_ROWS_AT_A_TIME = 1 << 16
_LARGEST_WHOLE = 2.0**53  # beyond it floats skip whole numbers
_NUMBERS = ("integer", "floating", "mixed-integer-float", "boolean", "decimal", "empty")


def as_labels(Y: Any, *, where: str = "labels", known: LabelMatrix | None = None) -> LabelMatrix:
    """Return labels as a `LabelMatrix`.

    Parameters
    ----------
    Y
        Rows and bases, shape (n_rows, n_bases): an array of whole numbers, of floats with NaN,
        of text or of objects; a pandas table; a Dask array of numbers; the path or URL of a
        store, or a `Matrix`. Or a list of label vectors, one a base. A label is missing where
        it is -1, NaN or None. Objects that are not all numbers are compared as text.
    where
        Place to name in errors.
    known
        Labels of a fit: new ones must be among them, and get the same codes.

    Raises
    ------
    InputError
        For anything else: bases of different length, negative or fractional or infinite
        labels, no rows, no bases, a base without labels, bases that say nothing.
    """
    if isinstance(Y, LabelMatrix) and known is None:
        Y.check(where)
        return Y
    source = _source_of(Y, where)
    _check_shape(source, where, known)
    labels = _read(source, where, known)
    if known is None:
        labels.check(where)
    return labels


def _check_shape(source: _Source, where: str, known: LabelMatrix | None) -> None:
    if source.n_bases == 0:
        raise InputError(where, "at least one base", "none", "Pass labels of some clusterings.")
    if source.n_rows == 0:
        raise InputError(where, "at least one row", "none", "Pass labels of some rows.")
    if known is not None:
        _check_bases(source, where, known)


def _check_bases(source: _Source, where: str, known: LabelMatrix) -> None:
    if source.n_bases != known.n_bases:
        expected = f"labels of {known.n_bases} bases, as in the fit"
        raise InputError(where, expected, source.n_bases, "Pass the same bases in their order.")
    have_names = default_names(source.n_bases) not in (source.names, known.names)
    if have_names and source.names != known.names:
        expected = f"the bases of the fit, {', '.join(known.names)}, in this order"
        got = ", ".join(source.names)
        raise InputError(where, expected, got, "Choose the columns by these names.")


def _read(source: _Source, where: str, known: LabelMatrix | None) -> LabelMatrix:
    tables = [_Known(known.values[m] if known else None) for m in range(source.n_bases)]
    codes: Codes = np.empty((source.n_rows, source.n_bases), np.int8)
    for part in source.parts(where):
        rows = slice(part.start, part.start + len(part.codes[0]))
        for m, (own, found) in enumerate(zip(part.codes, part.values, strict=True)):
            table = tables[m]
            if known is not None:
                table.check(found, f"{where}: base {known.names[m]!r}")
            places = np.append(table.codes_of(found), MISSING)
            codes = _wide_enough(codes, table.n_codes - 1)
            codes[rows, m] = places[own]
    codes = _wide_enough(codes, max(table.n_codes - 1 for table in tables))
    for m, table in enumerate(tables):
        _reorder(codes, m, table.codes)
    values = tuple(table.values for table in tables)
    sizes = np.array([len(found) for found in values], np.int64)
    names = known.names if known else source.names
    return LabelMatrix(codes, sizes, values, names, source.row_ids)


def _wide_enough(codes: Codes, top: int) -> Codes:
    """Return codes in a type that holds `top`."""
    return codes if top <= np.iinfo(codes.dtype).max else codes.astype(smallest_signed(top))


def _reorder(codes: Codes, base: int, codes_in_order: Indices) -> None:
    """Turn codes that were given as labels came into those of their order."""
    n_codes = len(codes_in_order)
    if np.array_equal(codes_in_order, np.arange(n_codes)):
        return
    places = np.full(n_codes + 1, MISSING, codes.dtype)
    places[codes_in_order] = np.arange(n_codes)
    for rows in row_slices(len(codes)):
        codes[rows, base] = places[codes[rows, base]]


class _Known:
    """Labels of a base that were seen so far, and their codes.

    Attributes
    ----------
    values
        Whole numbers or text (objects), sorted.
    codes
        Code of each.
    """

    def __init__(self, values: Array | None) -> None:
        self.values: Array = np.empty(0, np.int64) if values is None else values
        self.codes: Indices = np.arange(len(self.values))

    @property
    def n_codes(self) -> int:
        return len(self.codes)

    def codes_of(self, found: Array) -> Indices:
        """Return the codes of labels (sorted); new ones get the next codes."""
        if found.dtype != self.values.dtype:
            found = self._in_one_type(found)
        places = np.searchsorted(self.values, found)
        new = ~self._has(found, places)
        if new.any():
            fresh = np.arange(self.n_codes, self.n_codes + int(new.sum()))
            self.values = np.insert(self.values, places[new], found[new])
            self.codes = np.insert(self.codes, places[new], fresh)
            places = np.searchsorted(self.values, found)
        return self.codes[places]

    def check(self, found: Array, where: str) -> None:
        """Refuse labels that are not known."""
        if len(found) == 0:
            return
        if found.dtype != self.values.dtype:
            found = self._in_one_type(found)
        unknown = found[~self._has(found, np.searchsorted(self.values, found))]
        if len(unknown):
            shown = ", ".join(map(repr, self.values[:10].tolist()))
            hint = "Replace it by a known label or by a missing one (-1)."
            got = repr(unknown[:1].tolist()[0])
            raise InputError(where, f"one of the labels of the fit ({shown})", got, hint)

    def _has(self, found: Array, places: Indices) -> npt.NDArray[np.bool_]:
        if self.n_codes == 0:
            return np.zeros(len(found), bool)
        near = self.values[np.minimum(places, self.n_codes - 1)]
        return np.asarray(near == found, bool)

    def _in_one_type(self, found: Array) -> Array:
        """Return labels in the type of those known; numbers beside text become text."""
        if len(found) == 0 or (self.n_codes and self.values.dtype == object):
            return _texts(found) if len(found) else found.astype(self.values.dtype)
        if self.n_codes:
            texts = _texts(self.values)
            order = np.argsort(texts)
            self.values, self.codes = texts[order], self.codes[order]
        else:
            self.values = self.values.astype(object)
        return found


# ---- where labels come from --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Part:
    """Labels of some consecutive rows.

    Attributes
    ----------
    start
        Number of the first row.
    codes
        For each base codes into `values`, -1 where a label is missing.
    values
        For each base its labels in these rows, sorted: int64, or text as objects.
    """

    start: int
    codes: list[Codes]
    values: list[Array]

    @classmethod
    def of(cls, start: int, columns: Iterable[tuple[Codes, Array]]) -> _Part:
        pairs = list(columns)
        own = [codes.astype(smallest_signed(len(values)), copy=False) for codes, values in pairs]
        return cls(start, own, [values for _, values in pairs])


class _Source(ABC):
    """Labels in the user's own form."""

    n_rows: int
    n_bases: int
    names: tuple[str, ...]
    row_ids: Array | None = None

    @abstractmethod
    def parts(self, where: str) -> Iterator[_Part]:
        """Yield all rows in order."""


class _Vectors(_Source):
    """Columns in memory: arrays, or columns of a pandas table."""

    def __init__(self, columns: Sequence[Any], names: Sequence[str] | None = None) -> None:
        self.columns = list(columns)
        self.n_bases = len(self.columns)
        self.n_rows = len(self.columns[0]) if self.columns else 0
        self.names = tuple(names) if names is not None else default_names(self.n_bases)
        self._are_texts = [_holds_texts(column) for column in self.columns]

    def parts(self, where: str) -> Iterator[_Part]:
        for rows in row_slices(self.n_rows, _ROWS_AT_A_TIME):
            yield _Part.of(rows.start, self._columns_of(rows, where))

    def _columns_of(self, rows: slice, where: str) -> Iterator[tuple[Codes, Array]]:
        for m, column in enumerate(self.columns):
            place = f"{where}: base {self.names[m]!r}"
            yield _read_column(_cut(column, rows), place, rows.start, self._are_texts[m])


class _Blocks(_Source):
    """Rows of a matrix, read block by block wherever they lie."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.n_rows, self.n_bases = matrix.shape
        named = not has_default_names(matrix.columns)
        names = tuple(column.name for column in matrix.columns)
        self.names = names if named else default_names(self.n_bases)

    @property
    def row_ids(self) -> Array | None:  # type: ignore[override]
        """Ids of the rows; a Dask array or a sparse matrix only counts them."""
        ids = self.matrix.row_ids
        is_count = ids.dtype.kind in "iu" and np.array_equal(ids, np.arange(len(ids)))
        return None if is_count else ids

    def parts(self, where: str) -> Iterator[_Part]:
        stage = "reading labels" if self.matrix.n_blocks > 1 else ""
        yield from map_blocks(
            _read_block, self.matrix, self.matrix.columns, self.names, where, stage=stage
        )


def _read_block(
    block: Block, start: int, columns: tuple[Column, ...], names: tuple[str, ...], where: str
) -> _Part:
    rows: Array = block.toarray() if scipy.sparse.issparse(block) else np.asarray(block)
    pairs = []
    for m, column in enumerate(columns):
        codes, values = _read_numbers(rows[:, m], f"{where}: base {names[m]!r}", start)
        if column.kind == "category":
            codes, values = _renamed(codes, values, np.array(column.levels, object))
        pairs.append((codes, values))
    return _Part.of(start, pairs)


def _source_of(Y: Any, where: str) -> _Source:
    if isinstance(Y, LabelMatrix):
        return _Vectors([_labels_of(Y, m) for m in range(Y.n_bases)], Y.names)
    if _is_frame(Y):
        return _from_frame(Y)
    if isinstance(Y, list | tuple):
        return _from_vectors(Y, where)
    if isinstance(Y, np.ndarray):
        if Y.ndim != 2:
            raise InputError(
                where,
                "rows and bases, shape (n_rows, n_bases)",
                f"an array of shape {Y.shape}",
                "Pass [labels] for the labels of a single base.",
            )
        return _Vectors([Y[:, m] for m in range(Y.shape[1])])
    if getattr(Y, "ndim", None) == 1:
        hint = "Pass [labels] for the labels of a single base."
        raise InputError(where, "rows and bases", "one column of labels", hint)
    if hasattr(Y, "shape") and 0 in Y.shape:
        what = "row" if Y.shape[0] == 0 else "base"
        raise InputError(where, f"at least one {what}", "none", "Pass labels of some rows.")
    return _Blocks(as_matrix(Y, where=where))


def _labels_of(labels: LabelMatrix, base: int) -> Array:
    values = labels.values[base]
    missing: Any = None if values.dtype == object else MISSING
    return np.append(values, np.array([missing], values.dtype))[labels.codes[:, base]]


def _is_frame(Y: Any) -> bool:
    return "pandas" in sys.modules and isinstance(Y, sys.modules["pandas"].DataFrame)


def _from_frame(table: Any) -> _Source:
    import pandas as pd

    names = [str(name) for name in table.columns]
    source = _Vectors([table.iloc[:, m] for m in range(table.shape[1])], names)
    source.n_rows = len(table)
    index = table.index
    if not (isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1):
        ids = index.to_numpy()
        source.row_ids = ids if ids.dtype.kind in "iu" else np.array([str(i) for i in index])
    return source


def _from_vectors(vectors: Sequence[Any], where: str) -> _Source:
    columns = [_vector(vector, m, where) for m, vector in enumerate(vectors)]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        odd = next(m for m, length in enumerate(lengths) if length != lengths[0])
        raise InputError(
            where,
            "bases of equal length, one label a row",
            f"{lengths[0]:,} labels in base 0 and {lengths[odd]:,} in base {odd}",
            "Give every row a label in every base; -1 where it has none.",
        )
    return _Vectors(columns)


def _vector(vector: Any, base: int, where: str) -> Any:
    if "pandas" in sys.modules:
        pd = sys.modules["pandas"]
        if isinstance(vector, pd.Categorical):
            vector = pd.Series(vector)
        if isinstance(vector, pd.Series):
            return vector.reset_index(drop=True)
    # Objects: an array of text would take a missing label for the text "nan".
    is_plain = isinstance(vector, list | tuple)
    array = np.array(vector, object) if is_plain else np.asarray(vector)
    if array.ndim != 1:
        raise InputError(
            f"{where}: base {base}",
            "a vector of labels, one a row",
            f"an array of shape {array.shape}",
            "A list holds one vector a base; pass numpy.array(...) for rows and bases.",
        )
    return array


def _cut(column: Any, rows: slice) -> Any:
    return column.iloc[rows] if hasattr(column, "iloc") else column[rows]


# ---- one column --------------------------------------------------------------------------------


def _holds_texts(column: Any) -> bool:
    """Return whether objects are to be compared as text: not all of them are numbers."""
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "US":
        return True
    if not isinstance(dtype, np.dtype) or dtype.kind != "O":
        return False
    import pandas as pd

    return pd.api.types.infer_dtype(column, skipna=True) not in _NUMBERS


def _read_column(column: Any, where: str, start: int, is_text: bool) -> tuple[Codes, Array]:
    """Return codes and sorted labels of a part of a base."""
    dtype = column.dtype
    if hasattr(dtype, "categories"):
        codes, used = _read_numbers(column.cat.codes.to_numpy(), where, start)
        levels = dtype.categories
        return _renamed(codes, used, levels.to_numpy(), where)
    if not isinstance(dtype, np.dtype):  # a type of pandas, such as Int64 or string
        import pandas as pd

        if pd.api.types.is_numeric_dtype(dtype):
            return _read_numbers(column.to_numpy(np.float64, na_value=np.nan), where, start)
        if not pd.api.types.is_string_dtype(dtype):
            raise _no_labels(dtype, where)
        column, is_text = column.astype(object), True
    values = _plain_array(column)
    if is_text:
        return _read_texts(values)
    if values.dtype == object:
        return _read_numbers(_numbers(values), where, start)
    if values.dtype.kind not in "biuf":
        raise _no_labels(values.dtype, where)
    return _read_numbers(values, where, start)


def _no_labels(dtype: Any, where: str) -> InputError:
    hint = "Pass whole numbers, text or categories."
    return InputError(where, "labels", f"values of type {dtype}", hint)


def _plain_array(column: Any) -> Array:
    if isinstance(column, np.ma.MaskedArray):
        found: Array = column.data.astype(object)
        found[np.ma.getmaskarray(column)] = None
        return found
    return np.asarray(column)


def _numbers(values: Array) -> Array:
    """Return numbers that came as objects, NaN for those missing."""
    import pandas as pd

    missing = np.asarray(pd.isna(values), bool)
    numbers = np.full(len(values), np.nan)
    numbers[~missing] = values[~missing].astype(np.float64)
    return numbers


def _read_texts(values: Array) -> tuple[Codes, Array]:
    import pandas as pd

    codes, found = pd.factorize(values.astype(object, copy=False), use_na_sentinel=True)
    return _renamed(codes, np.arange(len(found)), np.asarray(found, object))


def _renamed(codes: Codes, used: Array, levels: Array, where: str = "") -> tuple[Codes, Array]:
    """Return codes into the labels that `levels` has at the places `used`."""
    names = levels[used]
    if where and names.dtype.kind in "biuf":
        places, values = _read_numbers(names, where, 0)
    else:
        values, places = np.unique(_texts(names), return_inverse=True)
    table = np.append(places, MISSING)
    return table[codes], values


def _texts(values: Array) -> Array:
    """Return labels as text, in an array of objects: texts may have any length."""
    texts = np.empty(len(values), object)
    texts[:] = [
        value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        for value in values.tolist()
    ]
    return texts


def _read_numbers(values: Array, where: str, start: int) -> tuple[Codes, Array]:
    """Return codes and sorted labels of whole numbers; -1 and NaN are missing."""
    if values.dtype.kind == "f":
        values = _whole(values, where, start)
    elif values.dtype.kind == "b":
        values = values.astype(np.int8)
    if len(values) == 0:
        return np.empty(0, np.int8), np.empty(0, np.int64)
    if int(values.min()) < MISSING:
        row = int(np.argmax(values < MISSING))
        raise _bad_label(where, row + start, values[row], "-1 is the only negative one: missing.")
    top = int(values.max())
    if top > np.iinfo(np.int64).max:
        raise _bad_label(where, start + int(values.argmax()), top, "Number the labels from 0 on.")
    return _coded(values, top)


def _coded(values: Array, top: int) -> tuple[Codes, Array]:
    if top > 4 * len(values) + _ROWS_AT_A_TIME:  # few labels, far apart
        found, codes = np.unique(values.astype(np.int64), return_inverse=True)
        n_missing = int(found[0] == MISSING)
        return codes - n_missing, found[n_missing:]
    is_there = np.zeros(top + 2, bool)
    is_there[values] = True  # -1 is the last
    found = np.flatnonzero(is_there[:-1])
    places = np.full(top + 2, MISSING, smallest_signed(len(found)))
    places[found] = np.arange(len(found))
    return places[values], found


def _whole(values: Array, where: str, start: int) -> Indices:
    """Return floats as whole numbers, NaN as -1."""
    missing = np.isnan(values)
    filled = np.where(missing, MISSING, values)
    bad = (np.floor(filled) != filled) | (np.abs(filled) >= _LARGEST_WHOLE)
    if bad.any():
        row = int(bad.argmax())
        value = filled[row]
        hint = "Replace it by a missing label (NaN)." if np.isinf(value) else "Number the labels."
        raise _bad_label(where, row + start, value, hint)
    return filled.astype(np.int64)


def _bad_label(where: str, row: int, value: Any, hint: str) -> InputError:
    expected = "whole numbers of at least 0, or -1 for missing labels"
    return InputError(where, expected, f"{value} in row {row}", hint)
