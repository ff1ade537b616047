"""AnnData's ``.h5ad`` files, read by AnnData itself, a range of rows at a time.

AnnData reads annotations as a whole, so ids and annotations of all rows are held in memory;
values are not. Whoever has too many rows for that writes a ``.zarr`` instead.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.matrix import Column, aligned, block_dtype, canonical_csr, number_kind
from distclust.store.rows import Rows
from distclust.store.sources.base import ObsKind, Prepared, Scratch, Source, SourceOptions
from distclust.store.sources.files import SourceFile, find_files

if TYPE_CHECKING:
    import pandas as pd

    from distclust.store.mapping import Mapper

Array: TypeAlias = npt.NDArray[Any]

_OPEN_FILES = 4


class H5adSource(Source):
    """One local ``.h5ad`` file."""

    def __init__(self, url: str, options: SourceOptions) -> None:
        (file,) = find_files(url)
        if not file.is_local:
            hint = "Copy the file here first, or write it as .zarr."
            raise InputError(url, "a local file", "a URL", hint)
        self.name = url
        self._options = options
        self._file = file

    def identity(self) -> dict[str, Any]:
        """Return the file and the options."""
        return {"h5ad": self._file.identity(), "options": self._options.identity()}

    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Return the rows as they lie."""
        rows = H5adRows(self._file)
        return Prepared(rows, rows.columns, rows.obs_kinds, "text")


class H5adRows:
    """Rows of a file; pickles as its name.

    Parameters
    ----------
    file
        The file; if it changes, it is opened again.
    """

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        content = _open(file)
        self.n_rows, self.n_features = content.shape
        try:
            values = content.X
        except KeyError:  # annotations alone
            values = None
        self._check(values)
        self.is_sparse = hasattr(values, "format")
        self.dtype = block_dtype(np.dtype(values.dtype))

    def __reduce__(self) -> tuple[Any, ...]:
        return H5adRows, (self._file,)

    def _check(self, values: Any) -> None:
        hint = "Write it by rows: adata.X = adata.X.tocsr()."
        if values is None or len(values.shape) != 2 or np.dtype(values.dtype).kind not in "biuf":
            got = "nothing" if values is None else f"{values.dtype}"
            raise InputError(self._file.url, "a matrix X of numbers", got, hint)
        if getattr(values, "format", "csr") != "csr":
            got = "one stored by columns"
            raise InputError(self._file.url, "a matrix stored by rows", got, hint)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Name of every feature."""
        number = number_kind(self.dtype)
        return tuple(Column(str(name), number=number) for name in _open(self._file).var_names)

    @functools.cached_property
    def obs_kinds(self) -> dict[str, ObsKind]:
        """Kinds of the annotations, by name."""
        return {str(name): _kind(column) for name, column in _open(self._file).obs.items()}

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)``."""
        from distclust.store.surveys import check_finite

        content = _open(self._file)
        part = content.X[start:stop]
        values = canonical_csr(part) if self.is_sparse else aligned(np.asarray(part), self.dtype)
        check_finite(values, start)
        frame = content.obs.iloc[start:stop]
        obs = {name: _convert(frame[name], kind) for name, kind in self.obs_kinds.items()}
        ids = np.array([str(name) for name in frame.index], object)
        return Rows(values, ids, obs)


@functools.lru_cache(_OPEN_FILES)
def _open(file: SourceFile) -> Any:
    """Open a file once a process; what was opened long ago is closed with its last user."""
    try:
        import anndata
    except ImportError as error:
        hint = "Install it, for instance with pip install distclust[anndata]."
        raise InputError(file.url, "the package anndata to read it", "none", hint) from error
    try:
        return anndata.read_h5ad(file.url, backed="r")
    except (OSError, KeyError, ValueError) as error:
        got = str(error).splitlines()[0]
        raise InputError(file.url, "an AnnData file", got, "Write it again.") from error


def _kind(column: pd.Series[Any]) -> ObsKind:
    import pandas as pd

    dtype, has_missing = column.dtype, bool(column.isna().any())
    if isinstance(dtype, pd.CategoricalDtype) or not pd.api.types.is_numeric_dtype(dtype):
        return "text"
    if pd.api.types.is_bool_dtype(dtype):
        return "text" if has_missing else "bool"
    is_whole = pd.api.types.is_integer_dtype(dtype) and not has_missing
    return "integer" if is_whole else "real"


def _convert(column: pd.Series[Any], kind: ObsKind) -> Array:
    if kind == "text":
        is_missing = column.isna().to_numpy()
        texts = np.array([str(value) for value in column], object)
        texts[is_missing] = None
        return texts
    if kind == "real":
        return column.to_numpy(np.float64, na_value=np.nan)
    return column.to_numpy(np.bool_ if kind == "bool" else np.int64)
