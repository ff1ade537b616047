"""Tables as people keep them: CSV and TSV (also gzipped), NumPy and scipy files.

A table becomes the plainest thing an estimator takes: a pandas frame whose index names the
rows, a NumPy array, or a CSR array. What cannot be read gets one sentence. Files are data,
never code: pickled objects in NumPy files are refused.

Rules for text files. The separator is a tab for ``.tsv``; for ``.csv`` it is the one of
comma, semicolon and tab that the header uses most. The first column names the rows if its
header is empty, or if it is text and no value is missing or occurs twice. Empty cells are
missing values. A column of numbers with a few cells that are not numbers is refused, as
that is a slip far more often than a category.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distclust.errors import InputError, MissingFileError

if TYPE_CHECKING:
    import pandas as pd
    from scipy.sparse import csr_array

Table: TypeAlias = "pd.DataFrame | NDArray[Any] | csr_array[Any]"

TEXT_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
SUFFIXES = (*TEXT_SUFFIXES, ".npy", ".npz")
SLIPS = 0.5  # a column with a smaller share of cells that are not numbers is one of numbers


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
        return _read_text(path, suffix, ids, drop, categories)
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


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what readers raise on bad content into one sentence."""
    import pandas as pd

    hint = "Check that the file is complete and of the kind its name says."
    try:
        yield
    except pd.errors.EmptyDataError:
        raise InputError(str(path), "a header and rows", "an empty file", hint) from None
    except UnicodeDecodeError as error:
        got = f"a byte that is not UTF-8 at position {error.start}"
        raise InputError(str(path), "UTF-8 text", got, "Save the file as UTF-8.") from None
    except (pd.errors.ParserError, gzip.BadGzipFile, zipfile.BadZipFile, EOFError) as error:
        got = str(error).strip().removesuffix(".") or "an unreadable file"
        raise InputError(str(path), "a table", got, hint) from None


def _read_text(
    path: Path, suffix: str, ids: str | None, drop: Sequence[str], categories: Sequence[str]
) -> pd.DataFrame:
    import pandas as pd

    with _told(path):
        frame = pd.read_csv(
            path,
            sep=_separator(path, suffix),
            dtype=dict.fromkeys(categories, "string"),
            low_memory=False,
            skipinitialspace=True,
        )
    if isinstance(frame.index, pd.MultiIndex):
        got = f"{frame.shape[1]} names over {frame.shape[1] + frame.index.nlevels} columns"
        raise InputError(str(path), "a name for every column", got, "Complete the header.")
    _check_columns(path, frame, [*drop, *categories, *([ids] if ids else [])])
    frame = _name_rows(frame, ids).drop(columns=list(drop))
    if frame.shape[0] == 0 or frame.shape[1] == 0:
        got = f"{frame.shape[0]} rows and {frame.shape[1]} columns"
        raise InputError(str(path), "at least one row and one column", got, "Check the file.")
    _check_numbers(path, frame.drop(columns=list(categories)))
    return frame.astype(dict.fromkeys(categories, "category"))


def _separator(path: Path, suffix: str) -> str:
    if suffix.startswith(".tsv"):
        return "\t"
    opener: Any = gzip.open if suffix.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        header = file.readline()
    return max(",;\t", key=header.count)


def _check_columns(path: Path, frame: pd.DataFrame, wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in frame.columns:
            names = ", ".join(map(str, frame.columns[:8])) + (", ..." if frame.shape[1] > 8 else "")
            raise InputError(str(path), f"a column {name!r}", names, "Check the name.")


def _name_rows(frame: pd.DataFrame, ids: str | None) -> pd.DataFrame:
    import pandas as pd

    if ids == "" or frame.shape[1] == 0:
        return frame
    if ids is not None:
        return frame.set_index(ids)
    if not isinstance(frame.index, pd.RangeIndex):  # the header was one name short
        return frame.rename_axis("row")
    first = frame.iloc[:, 0]
    if str(frame.columns[0]).startswith("Unnamed:"):
        return frame.set_index(frame.columns[0]).rename_axis("row")
    is_name = pd.api.types.is_string_dtype(first.dtype) and first.notna().all() and first.is_unique
    is_numbers = pd.to_numeric(first, errors="coerce").notna().mean() > 1.0 - SLIPS
    if is_numbers:  # with a slip, which is told below
        return frame
    return frame.set_index(frame.columns[0]) if is_name and frame.shape[1] > 1 else frame


def _check_numbers(path: Path, frame: pd.DataFrame) -> None:
    """Refuse a column that is numbers but for a few cells."""
    import pandas as pd

    for name in frame.select_dtypes(include=["object", "string"]).columns:
        present = frame[name].notna().to_numpy()
        spoilt = present & pd.to_numeric(frame[name], errors="coerce").isna().to_numpy()
        if 0 < spoilt.sum() < SLIPS * present.sum():
            first = int(spoilt.argmax())
            where = f"{path}, column {str(name)!r}, line {first + 2}"  # line 1 is the header
            got = repr(str(frame[name].iloc[first]))
            hint = f"Mend the cell, empty it, or pass --category {name}."
            raise InputError(where, "a number as in most rows", got, hint)


def _read_numpy(path: Path) -> NDArray[Any] | csr_array[Any]:
    hint = "Save it again with numpy.save, numpy.savez or scipy.sparse.save_npz."
    try:
        with _told(path), path.open("rb") as file:
            return _arrays(path, np.load(file, allow_pickle=False), hint)
    except InputError:
        raise
    except (ValueError, KeyError, zlib.error) as error:
        raise InputError(str(path), "a plain NumPy file", str(error), hint) from None


def _arrays(path: Path, content: Any, hint: str) -> NDArray[Any] | csr_array[Any]:
    if isinstance(content, np.ndarray):
        return content
    if {"format", "data", "shape"} <= set(content.files):
        from scipy import sparse

        return sparse.csr_array(sparse.load_npz(path))
    if len(content.files) != 1:
        raise InputError(str(path), "one array", f"{len(content.files)} arrays", hint)
    array: NDArray[Any] = content[content.files[0]]
    return array
