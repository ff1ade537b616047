"""Tables as people keep them: CSV and TSV (also gzipped), NumPy and scipy files.

A table becomes the plainest thing an estimator takes: a pandas frame whose index names the
rows, a NumPy array, or a CSR array. What cannot be read gets one sentence. Files are data,
never code: pickled objects in NumPy files are refused.

Text files are read as ``ingest`` reads them (see `distclust.store.sources.delimited`), so a
model is fitted to the same matrix either way. The separator is a tab for ``.tsv``; for
``.csv`` it is the one of comma, semicolon and tab that the header uses most. The first
column names the rows if its header is empty, or if it is text and no value is missing or
occurs twice. Empty cells are missing values. A column of numbers with a few cells that are
not numbers is refused, as that is a slip far more often than a category. Columns of dates
are no features and are left out; ``frame.attrs["notes"]`` says so.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distclust.errors import InputError, MissingFileError
from distclust.store.matrix import Column
from distclust.store.sources.base import SourceOptions

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array

Table: TypeAlias = "pd.DataFrame | NDArray[Any] | csr_array[Any]"

TEXT_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
SUFFIXES = (*TEXT_SUFFIXES, ".npy", ".npz")


def read_table(
    path: str | Path,
    *,
    ids: str | None = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
) -> Table:
    """Read a table from a file, by its suffix.

    Parameters
    ----------
    path
        ``.csv``, ``.tsv`` (or ``.gz`` of these), ``.npy`` (one array) or ``.npz`` (a scipy
        sparse matrix, or exactly one array).
    ids
        Text files only: the column that names the rows. None finds it by the rule above;
        an empty string says that there is none.
    drop
        Text files only: columns to leave out.
    categories
        Text files only: columns whose numbers are codes of categories.

    Returns
    -------
    A frame, an array of shape (n_rows, n_features) or a CSR array.

    Raises
    ------
    MissingFileError
        If the file is absent or cannot be opened.
    InputError
        If its content is not such a table.
    """
    path = Path(path)
    suffix = _suffix(path)
    _check_readable(path)
    if suffix in TEXT_SUFFIXES:
        options = SourceOptions(ids=ids, drop=tuple(drop), categories=tuple(categories))
        return _read_text(path, options)
    if ids or drop or categories:
        hint = "Leave --ids, --drop and --category out for NumPy files."
        raise InputError(str(path), "a text table when columns are named", suffix, hint)
    return _read_numpy(path)


def row_names(table: Table) -> list[str] | None:
    """Names of the rows, or None where the table has none of its own."""
    index = getattr(table, "index", None)
    if index is None or index.name is None:
        return None
    return [str(name) for name in index]


def _suffix(path: Path) -> str:
    name = path.name.lower()
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return suffix
    hint = "Save the table in one of these forms."
    raise InputError(str(path), f"a file ending in {', '.join(SUFFIXES)}", repr(path.name), hint)


def _check_readable(path: Path) -> None:
    hint = "Check the path."
    if path.is_dir():
        raise MissingFileError(str(path), "a file", "a folder", hint)
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise MissingFileError(str(path), "a file", "nothing there", hint) from None
    except OSError as error:
        hint = "Check the permissions."
        raise MissingFileError(str(path), "a readable file", error.strerror, hint) from error


def _read_text(path: Path, options: SourceOptions) -> pd.DataFrame:
    """Read a text table as ``ingest`` does, all of it into memory."""
    import pandas as pd

    from distclust.store.mapping import serial_map
    from distclust.store.objects import open_objects
    from distclust.store.sources.base import Scratch
    from distclust.store.sources.delimited import DelimitedSource
    from distclust.store.sources.files import find_files

    memory = open_objects(f"memory://distclust-{secrets.token_hex(8)}")
    try:
        source = DelimitedSource(find_files(path), options)
        prepared = source.prepare(Scratch(memory, "table"), serial_map)
        rows = prepared.rows.read(0, prepared.rows.n_rows)
    finally:
        memory.delete_tree("table")
    values = np.asarray(rows.values)
    columns = enumerate(prepared.columns)
    frame = pd.DataFrame({column.name: _series(values[:, k], column) for k, column in columns})
    frame.attrs["notes"] = list(prepared.notes)
    return frame.set_index(pd.Index(rows.ids, name="row")) if prepared.has_ids else frame


def _series(values: NDArray[Any], column: Column) -> Any:
    """Return one column of a frame, of the type that pandas would have given it."""
    import pandas as pd

    is_missing = np.isnan(values)
    if column.kind == "category":
        codes = np.where(is_missing, -1, values).astype(np.int64)
        return pd.Categorical.from_codes(codes, pd.Index(list(column.levels)))
    if column.number == "bool":
        truths = values != 0
        return np.where(is_missing, None, truths) if is_missing.any() else truths
    return values.astype(np.int64 if column.number == "integer" else np.float64)


def _read_numpy(path: Path) -> NDArray[Any] | csr_array[Any]:
    from distclust.store.sources.numpy_files import told

    with told(str(path)), path.open("rb") as file:
        return _arrays(path, np.load(file, allow_pickle=False))


def _arrays(path: Path, content: Any) -> NDArray[Any] | csr_array[Any]:
    if isinstance(content, np.ndarray):
        return content
    from distclust.store.sources.flat import sum_repeated
    from distclust.store.sources.numpy_files import is_sparse_archive, make_sparse

    if is_sparse_archive(content.files):
        return sum_repeated(make_sparse(dict(content)))
    if len(content.files) != 1:
        hint = "Save one of them with numpy.save."
        raise InputError(str(path), "one array", f"{len(content.files)} arrays", hint)
    array: NDArray[Any] = content[content.files[0]]
    return array
