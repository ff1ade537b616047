"""Blocks of rows as Python programs hold them: arrays, sparse matrices, tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import InputError
from distclust.store.sources.annotations import pack_annotation
from distclust.store.sources.flat import flatten_csr, sum_repeated
from distclust.store.sources.spool import Parsed

Array: TypeAlias = npt.NDArray[Any]
Kind: TypeAlias = Literal["array", "sparse matrix", "table"]

_HINT = "Yield arrays, sparse matrices, pandas tables, or pairs of row ids and one of these."


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows, checked.

    Attributes
    ----------
    kind
        What `values` are: an array, a CSR array or an Arrow table.
    values
        Shape (n_rows, n_features).
    ids
        Shape (n_rows,), or None; those of a table are its last column.
    index
        Name of a table's column of ids, or None.
    """

    kind: Kind
    values: Any
    ids: Array | None = None
    index: str | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.values.shape[0])

    @property
    def n_bytes(self) -> int:
        """Memory that the values take."""
        if self.kind == "sparse matrix":
            return int(self.values.data.nbytes + self.values.indices.nbytes)
        return int(self.values.nbytes)

    @property
    def type(self) -> Any:
        """Type of the values, or types of a table's columns."""
        return self.values.schema if self.kind == "table" else self.values.dtype

    def describe(self) -> list[Any]:
        """Return what all batches of one source share, as JSON."""
        if self.kind == "table":
            return [self.kind, self.index, *self.values.column_names]
        return [self.kind, self.values.shape[1], "with ids" if self.ids is not None else "counted"]

    def cut(self, most_bytes: int) -> Iterator[Batch]:
        """Yield the rows in batches of at most so many bytes, or of one row."""
        step = max(self.n_rows * most_bytes // max(self.n_bytes, 1), 1)
        for start in range(0, self.n_rows, step):
            ids = None if self.ids is None else self.ids[start : start + step]
            rows = self.values[start : start + step]
            yield Batch(self.kind, rows, ids, self.index)


def read_batch(item: Any, where: str) -> Batch:
    """Return what an iterator yielded, checked.

    Parameters
    ----------
    item
        An array or nested lists, a scipy or `sparse` sparse matrix, a pandas or Arrow table,
        or a pair of row ids and one of these.
    where
        Place to name in errors.

    Raises
    ------
    InputError
        If it is nothing of the kind.
    """
    ids, block = item if isinstance(item, tuple) and len(item) == 2 else (None, item)
    if hasattr(block, "to_scipy_sparse"):
        block = block.to_scipy_sparse()
    if scipy.sparse.issparse(block):
        batch = Batch("sparse matrix", _check_numbers(block, where), _check_ids(ids, block, where))
    elif hasattr(block, "columns"):
        batch = _read_table(block, _check_ids(ids, block, where), where)
    else:
        array = _check_numbers(_as_array(block, where), where)
        batch = Batch("array", array, _check_ids(ids, array, where))
    return batch


def _as_array(block: Any, where: str) -> Array:
    try:
        return np.asarray(block)
    except ValueError as error:  # lists of different lengths
        raise InputError(where, "rows of equal length", str(error), _HINT) from error


def _check_numbers(block: Any, where: str) -> Any:
    if block.ndim != 2 or block.dtype.kind not in "biuf":
        got = f"{block.ndim} dimensions of type {block.dtype}"
        raise InputError(where, "two dimensions of real numbers", got, _HINT)
    if block.dtype.kind == "f" and block.dtype.itemsize not in (4, 8):
        block = block.astype(np.float64)
    is_sparse = scipy.sparse.issparse(block)
    values = block.data if is_sparse else block
    if block.dtype.kind == "f":
        is_wrong = ~np.isfinite(values) if is_sparse else np.isinf(values)
        if is_wrong.any():
            hint = "Replace it by a finite number; in an array NaN is a missing value."
            raise InputError(where, "finite numbers", f"{values[is_wrong][0]}", hint)
    return sum_repeated(block) if is_sparse else block.astype(block.dtype.newbyteorder("="))


def _check_ids(ids: Any, block: Any, where: str) -> Array | None:
    if ids is None:
        return None
    array = np.asarray(ids, object)  # in arrays of text, zeros at the end are lost
    if array.shape != (block.shape[0],):
        got = f"{array.size} for {block.shape[0]} rows"
        raise InputError(where, "one id for each row", got, "Check the pairs.")
    plain = [row_id.item() if isinstance(row_id, np.generic) else row_id for row_id in array]
    types = {type(row_id) for row_id in plain}
    if not types <= {str, int}:
        got = ", ".join(sorted(kind.__name__ for kind in types))
        raise InputError(where, "ids that are text or whole numbers", got, "Convert them.")
    array = np.empty(len(plain), object)
    array[:] = plain if len(types) == 1 else [str(row_id) for row_id in plain]
    return array


def _read_table(frame: Any, ids: Array | None, where: str) -> Batch:
    """Return a pandas or Arrow table; an index that is more than a count names the rows."""
    import pandas as pd
    import pyarrow as pa

    index = "row"
    if isinstance(frame, pd.DataFrame):
        if ids is None and not isinstance(frame.index, pd.RangeIndex):
            ids = _check_ids(frame.index, frame, where)
            index = index if frame.index.name is None else str(frame.index.name)
        counted = frame.columns.equals(pd.RangeIndex(frame.shape[1]))
        frame = frame.set_axis([f"x{i}" if counted else str(i) for i in frame.columns], axis=1)
        frame = frame.reset_index(drop=True)
    try:
        table = pa.table(frame).replace_schema_metadata()
        if ids is not None:
            index = index if index not in table.column_names else "__index__"
            table = table.append_column(index, pa.array(ids.tolist()))
    except (pa.ArrowException, TypeError, ValueError) as error:
        got = str(error).splitlines()[0]
        raise InputError(where, "columns of one type each", got, _HINT) from error
    return Batch("table", table, index=None if ids is None else index)


def join_batches(batches: Sequence[Batch]) -> Parsed:
    """Return batches of one description and type as a piece of a spool."""
    first = batches[0]
    ids = [row_id for batch in batches if batch.ids is not None for row_id in batch.ids.tolist()]
    found, arrays = pack_annotation("ids", ids)
    survey: dict[str, Any] = {"described": first.describe(), "ids": found}
    if first.kind == "table":
        arrays = {"table": _write_table([batch.values for batch in batches])}
    elif first.kind == "array":
        arrays["values"] = np.concatenate([batch.values for batch in batches])
        survey["dtype"] = arrays["values"].dtype.str
    else:
        joined = scipy.sparse.vstack([batch.values for batch in batches], format="csr")
        arrays |= flatten_csr(joined)
        survey["dtype"] = joined.dtype.str
    return Parsed(sum(batch.n_rows for batch in batches), arrays, survey)


def _write_table(tables: Iterable[Any]) -> Array:
    import pyarrow as pa

    table = pa.concat_tables(tables).unify_dictionaries()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def read_table(content: Array) -> Any:
    """Return the Arrow table of a piece."""
    import pyarrow as pa

    return pa.ipc.open_stream(pa.py_buffer(content)).read_all()
