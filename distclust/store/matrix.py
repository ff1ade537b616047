"""A matrix of rows and features, read in logical row blocks.

Block ``i`` holds rows ``[i * B, (i + 1) * B)``. ``B`` follows from the number of features
and the layout alone, never from the number of rows or from how the data are chunked, so
that every reduction over blocks has the same shapes and the same order everywhere. In a
store that rows were deleted from, these are stored positions: a block holds the rows that
are still there, and a block without any is left out.

A dense block is a C-contiguous, aligned array: booleans and integers keep their type, every other
number is float64, a missing value is NaN and a category is the code of its level. A sparse
block is a ``csr_array`` with sorted indices, no duplicates, no explicit zeros and only
finite values. Blocks may be views of what the user passed in: nobody writes into them.
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import InputError
from distclust.seeding import row_keys

if TYPE_CHECKING:
    from distclust.store.layouts import CompactBlock

Array: TypeAlias = npt.NDArray[Any]
Block: TypeAlias = Array | scipy.sparse.csr_array
ColumnKind: TypeAlias = Literal["number", "category"]
NumberKind: TypeAlias = Literal["bool", "integer", "real"]

_DENSE_BLOCK_VALUES = 2**21  # 16 MiB of float64
_MANY_FEATURES = 100_000


@dataclass(frozen=True, slots=True)
class Column:
    """Name and meaning of one feature.

    Attributes
    ----------
    name
        Shown to the user, and compared when new rows come to a fitted model.
    kind
        Numbers, or categories held as codes into `levels`.
    levels
        Names of the categories in the order of their codes; empty for numbers.
    number
        What kind of number the user's column held, before any conversion.
    """

    name: str
    kind: ColumnKind = "number"
    levels: tuple[str, ...] = ()
    number: NumberKind = "real"


def default_columns(n_features: int, number: NumberKind = "real") -> tuple[Column, ...]:
    """Columns ``x0, x1, ...`` for data that came without names."""
    return tuple(Column(f"x{i}", number=number) for i in range(n_features))


def has_default_names(columns: tuple[Column, ...]) -> bool:
    """Whether the columns are named as an array's are, by position."""
    return all(column.name == f"x{i}" for i, column in enumerate(columns))


def number_kind(dtype: np.dtype[Any]) -> NumberKind:
    """Which of the three kinds of number a dtype holds."""
    if dtype.kind == "b":
        return "bool"
    return "integer" if dtype.kind in "iu" else "real"


def block_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Type of a block made from `dtype`: compact where exact, else float64."""
    return dtype.newbyteorder("=") if dtype.kind in "biu" else np.dtype(np.float64)


def aligned(values: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """Return `values` C-contiguous and aligned, copied only if they are not.

    Arrays that came over a wire or out of a file may start at any byte. Numpy then sums
    them in pieces of another size, and the last bits differ.
    """
    return np.require(values, dtype, ["C", "A"])


def block_rows_for(n_features: int, is_sparse: bool) -> int:
    """Rows in a logical block: a power of two fixed by width and layout.

    Dense blocks aim at 16 MiB of float64 within 256 to 65,536 rows. Sparse blocks have
    16,384 rows, or 4,096 from 100,000 features on, where rows tend to be long.
    """
    if is_sparse:
        return 16_384 if n_features < _MANY_FEATURES else 4_096
    rows = _DENSE_BLOCK_VALUES // max(n_features, 1)
    power = 1 << max(rows.bit_length() - 1, 0)
    return min(max(power, 256), 65_536)


class Matrix(ABC):
    """Rows and features behind one face, whatever holds them.

    Attributes
    ----------
    shape
        Numbers of rows and features.
    dtype
        Type of the values in every block.
    is_sparse
        Whether blocks are ``csr_array`` rather than dense arrays.
    block_rows
        Stored positions in every block but the last.
    travels_by_name
        Whether pickling sends where the rows lie instead of the rows.
    """

    is_sparse: bool
    travels_by_name: ClassVar[bool] = False

    def __init__(
        self,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        columns: tuple[Column, ...] | None = None,
        row_ids: Array | None = None,
    ) -> None:
        self.shape = shape
        self.dtype = block_dtype(dtype)
        self.block_rows = block_rows_for(shape[1], self.is_sparse)
        self._columns = columns
        self._row_ids = row_ids
        assert columns is None or len(columns) == shape[1]
        assert row_ids is None or len(row_ids) == shape[0]

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """Name and meaning of every feature."""
        if self._columns is not None:
            return self._columns
        return default_columns(self.shape[1], number_kind(self.dtype))

    @functools.cached_property
    def row_ids(self) -> Array:
        """Identifier of every row, shape (n_rows,); 0, 1, 2, ... when none were given."""
        return np.arange(self.shape[0]) if self._row_ids is None else self._row_ids

    @property
    def n_blocks(self) -> int:
        """How many blocks hold all rows."""
        return -(-self.shape[0] // self.block_rows)

    def block_bounds(self, index: int) -> tuple[int, int]:
        """First row of block `index` and the row after its last."""
        start = index * self.block_rows
        if not 0 <= start < self.shape[0]:
            raise IndexError(f"block {index} of a matrix with {self.n_blocks} blocks")
        return start, min(start + self.block_rows, self.shape[0])

    def compact_block(self, index: int) -> CompactBlock | None:
        """Rows of block `index` as the compact layout stores them, None where there is none."""
        return None

    def block_ids(self, index: int) -> Array:
        """Identifiers of the rows of block `index`, shape (rows,)."""
        start, stop = self.block_bounds(index)
        if self._row_ids is None:  # never all of them for the sake of a block
            return np.arange(start, stop)
        return self._row_ids[start:stop]

    def block_keys(self, index: int) -> npt.NDArray[np.uint64]:
        """64-bit keys of the rows of block `index`, shape (rows,); see `row_keys`."""
        return row_keys(self.block_ids(index))

    def places_of(self, rows: npt.ArrayLike) -> Iterator[tuple[int, Array, Array]]:
        """Yield the blocks that hold some rows, which of the rows those are, and where in it."""
        wanted = np.asarray(rows, np.int64)
        blocks = np.searchsorted(self._block_starts, wanted, side="right") - 1
        for block in np.unique(blocks).tolist():
            chosen = np.flatnonzero(blocks == block)
            yield block, chosen, wanted[chosen] - self._block_starts[block]

    def ids_at(self, rows: npt.ArrayLike) -> Array:
        """Return the ids of some rows, reading the blocks they are in."""
        found: list[Any] = [None] * np.size(rows)
        for block, chosen, places in self.places_of(rows):
            ids = self.block_ids(block)
            for i, place in zip(chosen.tolist(), places.tolist(), strict=True):
                found[i] = ids[place]
        ids_found = np.array(found)
        return ids_found if ids_found.dtype.kind in "iu" else np.array([str(i) for i in found])

    @functools.cached_property
    def _block_starts(self) -> npt.NDArray[np.int64]:
        bounds = [self.block_bounds(i)[0] for i in range(self.n_blocks)]
        return np.array(bounds, np.int64)

    @abstractmethod
    def block(self, index: int) -> Block:
        """Rows of block `index`, shape (rows, n_features); not to be written into."""

    @abstractmethod
    def read_all(self) -> Block:
        """All rows in memory as one block; the caller has checked that they fit."""

    def held(self) -> contextlib.AbstractContextManager[object]:
        """Keep the rows from being removed while the context is open; see `StoredMatrix`."""
        return contextlib.nullcontext()

    def blocks(self) -> Iterator[Block]:
        """All blocks in order, one in memory at a time."""
        return (self.block(index) for index in range(self.n_blocks))

    def __repr__(self) -> str:
        layout = "sparse" if self.is_sparse else "dense"
        return (
            f"{type(self).__name__}({self.shape[0]} x {self.shape[1]}, "
            f"{layout} {self.dtype}, {self.n_blocks} blocks)"
        )


class ArrayMatrix(Matrix):
    """A dense array in memory, shape (n_rows, n_features)."""

    is_sparse = False

    def __init__(
        self,
        values: Array,
        columns: tuple[Column, ...] | None = None,
        row_ids: Array | None = None,
    ) -> None:
        n_rows, n_features = values.shape
        super().__init__((n_rows, n_features), values.dtype, columns, row_ids)
        self._values = values

    def block(self, index: int) -> Array:
        """Rows of block `index`; a view where type and order allow."""
        start, stop = self.block_bounds(index)
        return aligned(self._values[start:stop], self.dtype)

    def read_all(self) -> Array:
        """All rows; a view where type and order allow."""
        return aligned(self._values, self.dtype)


class SparseMatrix(Matrix):
    """A CSR matrix in memory, made canonical once when it comes in."""

    is_sparse = True

    def __init__(
        self,
        values: Any,
        columns: tuple[Column, ...] | None = None,
        row_ids: Array | None = None,
    ) -> None:
        self._values = canonical_csr(values)
        n_rows, n_features = self._values.shape
        super().__init__((n_rows, n_features), self._values.dtype, columns, row_ids)

    def block(self, index: int) -> scipy.sparse.csr_array:
        """Rows of block `index`; its values and indices are views."""
        return slice_csr(self._values, *self.block_bounds(index))

    def read_all(self) -> scipy.sparse.csr_array:
        """All rows, without a copy."""
        return self._values


def slice_csr(matrix: Any, start: int, stop: int) -> scipy.sparse.csr_array:
    """Rows ``[start, stop)`` of a canonical CSR matrix, values and indices as views."""
    first, last = matrix.indptr[start], matrix.indptr[stop]
    # Set one by one: the constructor copies what is a small part of something larger.
    block = scipy.sparse.csr_array((stop - start, matrix.shape[1]), dtype=matrix.dtype)
    block.data = matrix.data[first:last]
    block.indices = matrix.indices[first:last]
    block.indptr = matrix.indptr[start : stop + 1] - first
    return _mark_canonical(block)


def canonical_csr(matrix: Any) -> scipy.sparse.csr_array:
    """Return any scipy sparse matrix as a canonical ``csr_array`` of a block's type.

    Sorted indices, no duplicates, no explicit zeros; the input is never changed, and
    copied only where something has to be. Indices that lead out of the matrix are an
    `InputError`: scipy itself does not look, and compiled code would follow them.
    """
    has_indices = matrix.format in ("csr", "csc", "bsr", "coo")
    if has_indices:  # the way to CSR would follow them already
        _check_indices(matrix)
    given = scipy.sparse.csr_array(matrix)
    if not has_indices:
        _check_indices(given)
    data = aligned(given.data, block_dtype(given.dtype))
    parts = (data, aligned(given.indices), aligned(given.indptr))
    csr = scipy.sparse.csr_array(parts, shape=given.shape)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    if np.count_nonzero(csr.data) != csr.nnz:
        csr = csr.copy()
        csr.eliminate_zeros()
    return _mark_canonical(csr)


def _check_indices(matrix: Any) -> None:
    """Refuse a CSR, CSC, BSR or COO matrix whose parts do not fit each other."""
    height, width = (n // m for n, m in zip(matrix.shape, _unit(matrix), strict=True))
    if matrix.format == "coo":
        is_sane = _is_inside(matrix.row, height) and _is_inside(matrix.col, width)
        is_sane = is_sane and len(matrix.row) == len(matrix.col) == len(matrix.data)
    else:
        n_major, n_minor = (width, height) if matrix.format == "csc" else (height, width)
        indptr, n_values = matrix.indptr, len(matrix.indices)
        is_sane = (
            indptr.shape == (n_major + 1,)
            and indptr[0] == 0
            and indptr[-1] <= n_values == len(matrix.data)
            and bool((indptr[1:] >= indptr[:-1]).all())
            and _is_inside(matrix.indices[: indptr[-1]], n_minor)
        )
    if not is_sane:
        raise InputError(
            "a sparse matrix",
            f"indices inside its {matrix.shape[0]} rows and {matrix.shape[1]} columns",
            "indices that lead out of it",
            "Make the matrix again; its indices or its indptr are damaged.",
        )


def _unit(matrix: Any) -> tuple[int, int]:
    """Shape of what an index stands for: one value, or a block of them."""
    return matrix.blocksize if matrix.format == "bsr" else (1, 1)


def _is_inside(indices: Array, n: int) -> bool:
    return not len(indices) or bool(indices.min() >= 0 and indices.max() < n)


def _mark_canonical(csr: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    # Known already; otherwise scipy scans the indices when it is asked.
    csr.has_sorted_indices = True
    csr.has_canonical_format = True
    return csr


@dataclass(frozen=True, eq=False)
class Profile:
    """Facts about every column, found in one pass; profiles of parts add up.

    Attributes
    ----------
    n_rows
        Rows seen.
    n_missing, n_nonzero
        Counts of NaN and of other values that are not zero, shape (n_features,).
    minimum, maximum
        Over the values that are not missing, shape (n_features,); plus and minus
        infinity where there are none.
    all_integer
        Whether every value that is not missing is a whole number, shape (n_features,).
    any_infinite
        Whether any value is infinite, shape (n_features,).
    """

    n_rows: int
    n_missing: npt.NDArray[np.int64]
    n_nonzero: npt.NDArray[np.int64]
    minimum: npt.NDArray[np.float64]
    maximum: npt.NDArray[np.float64]
    all_integer: npt.NDArray[np.bool_]
    any_infinite: npt.NDArray[np.bool_]

    @property
    def n_features(self) -> int:
        """Number of columns described."""
        return len(self.n_missing)

    @property
    def has_missing(self) -> bool:
        """Whether any value at all is missing."""
        return bool(self.n_missing.any())

    def combine(self, other: Profile) -> Profile:
        """Profile of the rows of both."""
        return Profile(
            self.n_rows + other.n_rows,
            self.n_missing + other.n_missing,
            self.n_nonzero + other.n_nonzero,
            np.minimum(self.minimum, other.minimum),
            np.maximum(self.maximum, other.maximum),
            self.all_integer & other.all_integer,
            self.any_infinite | other.any_infinite,
        )

    __add__ = combine

    def take(self, columns: Array) -> Profile:
        """Profile of some of the columns, by index or by mask."""
        return Profile(
            self.n_rows,
            self.n_missing[columns],
            self.n_nonzero[columns],
            self.minimum[columns],
            self.maximum[columns],
            self.all_integer[columns],
            self.any_infinite[columns],
        )


def profile_block(block: Block) -> Profile:
    """Profile of one block, sparse without densifying."""
    if scipy.sparse.issparse(block):
        return _profile_csr(block)
    assert isinstance(block, np.ndarray)
    if block.dtype.kind in "biu":
        return _profile_integers(block)
    # Compiled functions are imported late: reading a model or printing help needs none.
    from distclust.store import _numerics

    return Profile(len(block), *_numerics.profile_dense(block))


def _profile_csr(block: Any) -> Profile:
    from distclust.store import _numerics

    data = block.data.astype(np.float64, copy=False)
    facts = _numerics.profile_csr(data, block.indices, *block.shape)
    return Profile(block.shape[0], *facts)


def _profile_integers(block: Array) -> Profile:
    n_features = block.shape[1]
    nonzero = np.zeros(n_features, np.int64)
    if len(block) == 0:
        minimum, maximum = np.full(n_features, np.inf), np.full(n_features, -np.inf)
    elif block.dtype.itemsize == 1 and block.dtype.kind in ("b", "u"):
        minimum, maximum, nonzero = _byte_facts(block.view(np.uint8))
    else:
        minimum, maximum = (
            bound.astype(np.float64) for bound in (block.min(axis=0), block.max(axis=0))
        )
        nonzero = np.count_nonzero(block, axis=0).astype(np.int64)
    return Profile(
        len(block),
        np.zeros(n_features, np.int64),
        nonzero,
        minimum,
        maximum,
        np.ones(n_features, np.bool_),
        np.zeros(n_features, np.bool_),
    )


def _byte_facts(block: npt.NDArray[np.uint8]) -> tuple[Array, Array, Array]:
    """Minimum, maximum and number of nonzeros of every column, each (n_features,)."""
    from distclust.store import _numerics

    low, high = block[0].copy(), block[0].copy()
    nonzero = np.zeros(block.shape[1], np.int32)
    _numerics.profile_bytes(np.ascontiguousarray(block), low, high, nonzero)
    return low.astype(np.float64), high.astype(np.float64), nonzero.astype(np.int64)
