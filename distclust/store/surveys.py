"""One pass over rows before they are written: facts that choose and cut a layout."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import InputError
from distclust.store.matrix import (
    Profile,
    aligned,
    block_dtype,
    block_rows_for,
    canonical_csr,
    profile_block,
)
from distclust.store.objects import MissingObject

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper
    from distclust.store.objects import Objects
    from distclust.store.rows import Rows, RowSource

Array: TypeAlias = npt.NDArray[Any]
LayoutName: TypeAlias = Literal["dense", "csr", "compact"]

UNIT_ROWS = 1024  # divides every size of a sparse block
LARGEST_COUNT = 65_535  # in the compact layout

_DENSE_BYTES = 2**26  # of dense rows that are read at a time; block sizes are for sparse ones
_SPARSE = 1 / 16  # above this density, bits of a dense matrix take less room than ids
_KIND = "survey"


@dataclass(frozen=True, eq=False)
class Survey:
    """Facts about all rows of a source.

    Attributes
    ----------
    profile
        Facts about every column.
    unit_nonzeros
        Values that are not zero (missing ones included) in every 1,024 rows, shape
        (ceil(n_rows / 1024),).
    """

    profile: Profile
    unit_nonzeros: npt.NDArray[np.int64]

    def offsets(self, block_rows: int) -> npt.NDArray[np.int64]:
        """Nonzeros before each block of rows and in all, shape (n_blocks + 1,)."""
        ends = np.concatenate([[0], np.cumsum(self.unit_nonzeros)])
        inside = ends[: -1 : block_rows // UNIT_ROWS]
        return np.concatenate([inside, ends[-1:]])

    def to_arrays(self) -> dict[str, Array]:
        """Return the facts as small arrays, for an archive."""
        profile = self.profile
        facts = {name: shrink(getattr(profile, name)) for name in _facts()}
        return facts | {"unit_nonzeros": self.unit_nonzeros}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], n_rows: int, n_features: int) -> Survey:
        """Return what `to_arrays` described, or raise ValueError; takes no memory."""
        units = arrays["unit_nonzeros"]
        n_units = -(-n_rows // UNIT_ROWS)
        if units.dtype != np.int64 or units.shape != (n_units,) or (units < 0).any():
            raise ValueError("another number of rows")
        if (units > UNIT_ROWS * n_features).any():
            raise ValueError("more values than there is room for")
        facts: dict[str, Any] = {
            name: np.broadcast_to(arrays[name].astype(dtype), (n_features,))
            for name, dtype in _facts().items()
        }
        return cls(Profile(n_rows, **facts), units)


def _facts() -> dict[str, type]:
    return {
        "n_missing": np.int64,
        "n_nonzero": np.int64,
        "minimum": np.float64,
        "maximum": np.float64,
        "all_integer": np.bool_,
        "any_infinite": np.bool_,
    }


def shrink(values: Array) -> Array:
    """Return equal values in less room: one for all, or in the smallest whole numbers."""
    if len(values) and (values == values[0]).all():
        return np.asarray(values[0])
    for dtype in (np.bool_, np.uint8, np.uint16, np.uint32):
        with np.errstate(invalid="ignore"):
            small = values.astype(dtype)
        if (small == values).all():
            return small
    return values


def choose_layout(profile: Profile, is_sparse: bool) -> LayoutName:
    """Return the layout for rows of this profile.

    Compact for whole numbers from 0 to 65,535 of which fewer than one in sixteen is not
    zero, whether they came sparse or dense; CSR for other sparse data; else dense.
    """
    n_values = max(profile.n_rows * profile.n_features, 1)
    is_thin = int(profile.n_nonzero.sum()) < _SPARSE * n_values
    if is_thin and holds_counts(profile):
        return "compact"
    return "csr" if is_sparse else "dense"


def holds_counts(profile: Profile) -> bool:
    """Whether every value is a whole number that the compact layout can hold."""
    return bool(
        not profile.has_missing
        and profile.all_integer.all()
        and (profile.minimum >= 0).all()
        and (profile.maximum <= LARGEST_COUNT).all()
    )


def survey_rows(
    rows: RowSource,
    *,
    mapper: Mapper,
    objects: Objects | None = None,
    scratch: str = "",
    stage: str = "surveying",
) -> Survey:
    """Read all rows once and return the facts about them.

    Parameters
    ----------
    rows
        What will be written.
    mapper
        Does the work.
    objects, scratch
        Where to keep the result, and to look for it first.
    stage
        Name in progress events.

    Raises
    ------
    InputError
        If a value is infinite, or a sparse one is NaN.
    """
    if rows.n_rows < 1 or rows.n_features < 1:
        got = f"{rows.n_rows} rows and {rows.n_features} features"
        raise InputError("rows", "at least one row and one feature", got, "Check the source.")
    key = f"{scratch}/{_KIND}"
    kept = None if objects is None else _read(objects, key, rows)
    if kept is not None:
        return kept
    step = block_rows_for(rows.n_features, is_sparse=True)
    starts = range(0, rows.n_rows, step)
    parts = mapper(_survey_part, starts, rows, step, stage=stage)
    profile, units = next(parts)
    all_units = [units]
    for more, units in parts:
        profile += more
        all_units.append(units)
    survey = Survey(profile, np.concatenate(all_units))
    if objects is not None:
        _write(objects, key, survey)
    return survey


def _read(objects: Objects, key: str, rows: RowSource) -> Survey | None:
    from distclust.store.archive import decode_archive

    try:
        content = objects.read(key)
    except MissingObject:
        return None
    arrays = decode_archive(content, objects.where(key)).arrays
    return Survey.from_arrays(arrays, rows.n_rows, rows.n_features)


def _write(objects: Objects, key: str, survey: Survey) -> None:
    from distclust.store.archive import encode_archive

    objects.write(key, encode_archive(_KIND, {}, survey.to_arrays()))


def _survey_part(start: int, rows: RowSource, step: int) -> tuple[Profile, Array]:
    profiles, all_lengths = [], []
    for first, last in pieces_of(rows, start, min(start + step, rows.n_rows)):
        values = canonical_values(rows.read(first, last))
        check_finite(values, first)
        is_sparse = scipy.sparse.issparse(values)
        lengths = np.diff(values.indptr) if is_sparse else np.count_nonzero(values, axis=1)
        all_lengths.append(lengths)
        profiles.append(profile_block(values))
    lengths = np.concatenate(all_lengths)
    units = np.add.reduceat(lengths, range(0, len(lengths), UNIT_ROWS), dtype=np.int64)
    return functools.reduce(Profile.combine, profiles), units


def pieces_of(rows: RowSource, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut a range of rows into what may be read at a time: all, or so many bytes if dense."""
    fitting = _DENSE_BYTES // (rows.n_features * block_dtype(rows.dtype).itemsize)
    step = stop - start if rows.is_sparse else max(fitting, 1)
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


def canonical_values(rows: Rows) -> Any:
    """Values as blocks hold them: canonical CSR, or aligned and of a block's type."""
    if scipy.sparse.issparse(rows.values):
        return canonical_csr(rows.values)
    return aligned(rows.values, block_dtype(rows.values.dtype))


def check_finite(values: Any, first_row: int) -> None:
    """Refuse infinities, and NaN in sparse values; `first_row` is the number of their first."""
    is_sparse = scipy.sparse.issparse(values)
    if values.dtype.kind != "f":
        return
    spoilt = ~np.isfinite(values.data) if is_sparse else np.isinf(values)
    if not spoilt.any():
        return
    if is_sparse:
        k = int(spoilt.argmax())
        row, column = int(np.searchsorted(values.indptr, k, side="right")) - 1, values.indices[k]
        value = values.data[k]
    else:
        row, column = np.argwhere(spoilt)[0]
        value = values[row, column]
    raise InputError(
        f"row {first_row + row}, feature {column}",
        "a finite number (dense data may hold NaN for missing values)",
        str(value),
        "Replace it by a finite number or a missing value.",
    )
