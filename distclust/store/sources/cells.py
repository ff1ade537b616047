"""Arrow columns, one at a time: what they are, their text, their numbers, their levels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.sources import schema
from distclust.store.sources.base import ObsKind
from distclust.store.sources.schema import MAX_LEVELS, TextFacts, smallest_integer

if TYPE_CHECKING:
    import pyarrow as pa

Array: TypeAlias = npt.NDArray[Any]

_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_TILE = 4096  # rows copied at a time, so that what is written stays in the cache


def flag_of(dtype: pa.DataType, where: str) -> int:
    """Return the flag of an Arrow type; `InputError` for what is no cell of a table."""
    from pyarrow import types

    if types.is_null(dtype):
        return 0
    if types.is_boolean(dtype):
        return schema.BOOL
    if types.is_integer(dtype):
        return schema.INTEGER
    if types.is_floating(dtype) or types.is_decimal(dtype):
        return schema.REAL
    if types.is_date(dtype) or types.is_timestamp(dtype):
        return schema.ZONED_DATE if getattr(dtype, "tz", None) else schema.DATE
    if types.is_dictionary(dtype):
        flag_of(dtype.value_type, where)
        return schema.TEXT
    if _is_string(dtype) or types.is_time(dtype):
        return schema.TEXT
    hint = "Leave the column out with --drop, or convert it."
    raise InputError(where, "numbers, truth values, text or dates", f"values of type {dtype}", hint)


def _is_string(dtype: pa.DataType) -> bool:
    from pyarrow import types

    kinds = (types.is_string, types.is_large_string, types.is_string_view)
    return any(is_kind(dtype) for is_kind in kinds)


def is_number(dtype: pa.DataType) -> bool:
    """Whether values go into a matrix as they are; so do columns without any value."""
    from pyarrow import types

    kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_null, types.is_decimal)
    return any(is_kind(dtype) for is_kind in kinds)


def as_text(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as strings, with dates and times in ISO form."""
    import pyarrow as pa
    from pyarrow import compute, types

    text = column.cast(pa.string()).combine_chunks()
    if not types.is_timestamp(column.type):
        return text
    text = compute.replace_substring(text, " ", "T", max_replacements=1)
    text = compute.replace_substring_regex(text, r"(\.\d*[1-9])0+(Z?)$", r"\1\2")
    return compute.replace_substring_regex(text, r"\.0+(Z?)$", r"\1")


def gather_numbers(columns: Sequence[pa.ChunkedArray], n_rows: int) -> Array:
    """Return columns of numbers side by side, in a type that holds them all.

    Missing values are NaN. Shape (n_rows, number of columns).
    """
    import pyarrow as pa
    from pyarrow import types

    numbers = [column.cast("float64") if _needs_cast(column) else column for column in columns]
    out = np.empty((n_rows, len(columns)), _common_type(numbers))
    row = 0
    table = pa.table(numbers, names=[str(k) for k in range(len(numbers))])
    for batch in table.to_batches(max_chunksize=_TILE):
        rows = out[row : row + batch.num_rows]
        for k, part in enumerate(batch.columns):
            is_empty = types.is_null(part.type)
            rows[:, k] = np.nan if is_empty else part.to_numpy(zero_copy_only=False)
        row += batch.num_rows
    return without_negative_zero(out)


def _common_type(columns: Sequence[pa.ChunkedArray]) -> np.dtype[Any]:
    """Return a type for columns side by side; whole numbers stay whole if any type allows."""
    dtypes = [_numpy_type(column) for column in columns]
    dtype = np.result_type(*dtypes) if dtypes else np.dtype(np.uint8)
    if dtype.kind != "f" or any(kind.kind == "f" for kind in dtypes):
        return dtype
    low, high = zip((0, 1), *whole_bounds(dict(enumerate(columns))).values(), strict=True)
    return smallest_integer(min(low), max(high))


def whole_bounds(columns: Mapping[int, Any]) -> dict[int, tuple[int, int]]:
    """Return the bounds of the columns of whole numbers, by place."""
    from pyarrow import compute, types

    found = {}
    for j, column in columns.items():
        if types.is_integer(column.type):
            bounds = compute.min_max(column).as_py()
            if bounds["min"] is not None:
                found[j] = bounds["min"], bounds["max"]
    return found


def without_negative_zero(matrix: Array) -> Array:
    """Return numbers with one zero only, in place where they can be written.

    Otherwise "-0" would be one or the other, depending on what else its piece holds.
    """
    if matrix.dtype.kind != "f":
        return matrix
    zero = matrix.dtype.type(0.0)
    changed: Array = np.add(matrix, zero, out=matrix if matrix.flags.writeable else None)
    return changed


def _needs_cast(column: pa.ChunkedArray) -> bool:
    from pyarrow import types

    has_no_nan = types.is_boolean(column.type) and column.null_count > 0
    return has_no_nan or bool(types.is_decimal(column.type))


def _numpy_type(column: pa.ChunkedArray) -> np.dtype[Any]:
    from pyarrow import types

    if types.is_boolean(column.type):
        return np.dtype(np.bool_)
    if types.is_null(column.type) or (column.null_count and types.is_integer(column.type)):
        return np.dtype(np.float64)
    if types.is_float16(column.type):
        return np.dtype(np.float32)
    dtype: np.dtype[Any] = np.dtype(column.type.to_pandas_dtype())
    return dtype


def narrow(matrix: Array) -> tuple[Array, tuple[int, int] | None]:
    """Return whole numbers in the smallest type, with their bounds; others as they are."""
    if matrix.dtype.kind not in "iu" or matrix.size == 0:
        return matrix, None
    bounds = int(matrix.min()), int(matrix.max())
    return matrix.astype(smallest_integer(*bounds), copy=False), bounds


def text_facts(
    values: pa.DictionaryArray, line_of: Callable[[int], int] | None = None
) -> TextFacts:
    """Return what a column of text says about itself.

    Parameters
    ----------
    values
        The column, encoded.
    line_of
        Function of a row that returns its line, or None if text is known to be text.
    """
    from pyarrow import compute

    levels = values.dictionary
    numbers, first = 0, None
    if line_of is not None:
        could_be = compute.match_substring_regex(levels, _NUMBER).take(values.indices)
        numbers = could_be.true_count
        row = compute.index(could_be, False).as_py()
        first = (line_of(row), values[row].as_py()) if row >= 0 else None
    return TextFacts(
        numbers=numbers,
        first=first,
        levels=levels.to_pylist() if len(levels) <= MAX_LEVELS else None,
        is_distinct=len(levels) == len(values),
        is_whole=is_whole(levels),
    )


def truth_facts(values: pa.ChunkedArray, line_of: Callable[[int], int] | None) -> TextFacts:
    """Return what a column of truth values says about itself."""
    from pyarrow import compute

    first = None
    if line_of is not None:
        row = compute.index(compute.is_valid(values), True).as_py()
        first = (line_of(row), str(values[row].as_py()))
    return TextFacts(numbers=0, first=first, levels=[], is_distinct=False, is_whole=False)


def is_whole(texts: pa.Array) -> bool:
    """Whether all texts are whole numbers, written as Python would."""
    import pyarrow as pa

    try:
        numbers = texts.cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    return bool(numbers.cast(texts.type).equals(texts))


def hash_texts(texts: pa.Array) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of every text, shape (n,); none is missing."""
    import pyarrow as pa

    from distclust.store.sources import _text_numerics as numerics

    _, offsets, data = pa.concat_arrays([texts.cast(pa.large_string())]).buffers()
    out = np.empty(len(texts), np.uint64)
    bounds = np.frombuffer(offsets, np.int64)[: len(texts) + 1]
    with np.errstate(over="ignore"):  # meant to wrap around, also without the compiler
        numerics.hash_texts(np.frombuffer(data or b"", np.uint8), bounds, out)
    return out


def level_codes(column: pa.ChunkedArray, levels: pa.Array, where: str) -> Array:
    """Return the codes of a column's text in `levels`, float64 with NaN for missing.

    Raises
    ------
    InputError
        If there is a level that was not there when the source was surveyed.
    """
    from pyarrow import compute, types

    is_encoded = types.is_dictionary(column.type) and types.is_string(column.type.value_type)
    values = column.combine_chunks() if is_encoded else as_text(column).dictionary_encode()
    known = compute.index_in(values.dictionary, value_set=levels)
    if known.null_count:
        hint = "Start again and leave the source alone meanwhile."
        raise InputError(where, "the source as it was at first", "a new level", hint)
    codes: Array = known.take(values.indices).to_numpy(zero_copy_only=False)
    return codes


def annotation(column: pa.ChunkedArray, kind: ObsKind) -> Array:
    """Return a column as an annotation of its kind, shape (n,); text has None for missing."""
    if kind == "text":
        text: Array = np.empty(len(column), object)
        text[:] = as_text(column).to_pylist()  # `to_numpy` loads pandas: a third of a second
        return text
    name = {"bool": "bool", "integer": "int64", "real": "float64"}[kind]
    values: Array = column.cast(name, safe=kind != "real").to_numpy()
    return values
