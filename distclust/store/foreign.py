"""Zarr stores of other programs as they are: AnnData's (v2 and v3) and plain dense arrays.

Such a store has no table of checksums. What can be checked is: metadata against a list of
what is understood, shapes against each other, that every chunk is there, that rows of a
sparse matrix follow each other and its columns exist. Whether the numbers are the ones that
were written nobody can tell: its health is "unverified".

Zarr leaves out chunks of zeros when it writes, and reads absent ones as zeros; so a store
that lost chunks looks like one full of zeros. Absent chunks are therefore refused unless the
caller says that they are zeros.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import StoreError
from distclust.store.arrays import ArraySpec
from distclust.store.foreign_frames import Frame
from distclust.store.foreign_nodes import ForeignArray, MissingChunks, read_node
from distclust.store.layouts.base import ObsKind
from distclust.store.layouts.csr import check_csr
from distclust.store.matrix import (
    Block,
    Column,
    Matrix,
    aligned,
    block_dtype,
    canonical_csr,
    number_kind,
)
from distclust.store.objects import Objects, open_objects
from distclust.store.rows import Rows
from distclust.store.surveys import check_finite
from distclust.store.zarr_metadata import refused

Array: TypeAlias = npt.NDArray[Any]

_MOST_ROWS = 2**40
_MOST_FEATURES = 2**31 - 1


def open_foreign(
    place: Objects | str, *, missing_chunks: MissingChunks = "refuse"
) -> ForeignMatrix:
    """Open an AnnData store, or a Zarr array of rows and features, as a matrix.

    Parameters
    ----------
    place
        A path, a URL or the objects there.
    missing_chunks
        Whether absent chunks of values are refused, or are zeros that Zarr left out.

    Raises
    ------
    StoreError
        If there is no such store, or one that cannot be read or trusted.
    """
    objects = place if isinstance(place, Objects) else open_objects(place)
    root = read_node(objects, "")
    if root is None:
        raise StoreError(objects.url, "a Zarr store", "nothing there", "Check the path.")
    if root.array is not None:
        return ForeignMatrix(DenseValues(objects, "", root.array, missing_chunks))
    node = read_node(objects, "X")
    if node is None:
        raise refused(objects.url, "an AnnData store or an array", sorted(root.attributes))
    values: DenseValues | CsrValues
    if node.array is not None:
        values = DenseValues(objects, "X", node.array, missing_chunks)
    else:
        values = CsrValues(objects, "X", node.attributes, missing_chunks)
    n_rows, n_features = values.shape
    return ForeignMatrix(values, Frame(objects, "obs", n_rows), Frame(objects, "var", n_features))


class ForeignMatrix(Matrix):
    """A matrix of another program, read where it lies; also a source of rows.

    Attributes
    ----------
    health
        How far the values can be trusted.
    obs_kinds
        Names and kinds of the annotations that `read` gives.
    """

    travels_by_name: ClassVar[bool] = True
    health: ClassVar[str] = "unverified"

    def __init__(
        self, values: DenseValues | CsrValues, obs: Frame | None = None, var: Frame | None = None
    ) -> None:
        self.is_sparse = values.is_sparse
        super().__init__(values.shape, values.dtype)
        self._values = values
        self._obs = obs
        self._var = var
        self.obs_kinds: dict[str, ObsKind] = {} if obs is None else obs.kinds

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.shape[1]

    @functools.cached_property
    def columns(self) -> tuple[Column, ...]:
        """Name and meaning of every feature."""
        if self._var is None:
            return super().columns
        kind = number_kind(self.dtype)
        names = self._var.index.read(0, self.n_features)
        return tuple(Column(str(name), number=kind) for name in names)

    @functools.cached_property
    def row_ids(self) -> Array:
        """Identifier of every row, shape (n_rows,); read when first asked for."""
        return self._ids(0, self.n_rows)

    def block_ids(self, index: int) -> Array:
        """Identifiers of the rows of block `index`, shape (rows,)."""
        return self._ids(*self.block_bounds(index))

    def _ids(self, start: int, stop: int) -> Array:
        if self._obs is None:
            return np.arange(start, stop)
        return self._obs.index.read(start, stop)

    def block(self, index: int) -> Block:
        """Rows of block `index`."""
        return self._values.read(*self.block_bounds(index))

    def read_all(self) -> Block:
        """All rows in memory as one block."""
        return self._values.read(0, self.n_rows)

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)`` with their ids and annotations."""
        obs = {} if self._obs is None else self._obs.read(start, stop)
        return Rows(self._values.read(start, stop), self._ids(start, stop), obs)


class DenseValues:
    """Rows and features as one array."""

    is_sparse = False

    def __init__(
        self, objects: Objects, path: str, spec: ArraySpec, missing_chunks: MissingChunks
    ) -> None:
        self.shape = _checked_shape(spec.shape, objects.where(path))
        self.dtype = _checked_dtype(spec, objects.where(path))
        self._array = ForeignArray(objects, path, spec, missing_chunks)

    def read(self, start: int, stop: int) -> Array:
        """Rows ``[start, stop)``."""
        values = aligned(self._array.read(start, stop), block_dtype(self.dtype))
        check_finite(values, start)
        return values


class CsrValues:
    """Rows as AnnData keeps a CSR matrix."""

    is_sparse = True

    def __init__(
        self, objects: Objects, path: str, attributes: Any, missing_chunks: MissingChunks
    ) -> None:
        self._where = where = objects.where(path)
        _check_encoding(attributes.get("encoding-type"), where)
        self.shape = _checked_shape(attributes.get("shape"), where)
        specs = {}
        for name in ("data", "indices", "indptr"):
            node = read_node(objects, f"{path}/{name}")
            if node is None or node.array is None or len(node.array.shape) != 1:
                raise refused(where, f"an array {name!r}", node)
            specs[name] = node.array
        self.dtype = _checked_dtype(specs["data"], where)
        self._n_nonzeros = specs["data"].shape[0]
        _check_lengths(specs, self.shape, where)
        # Zeros that these two can only be, and that Zarr therefore may have left out.
        implied = {"indices": self.shape[1] == 1, "indptr": self._n_nonzeros == 0}
        self._arrays = {
            name: ForeignArray(
                objects,
                f"{path}/{name}",
                spec,
                "zeros" if implied.get(name, False) else missing_chunks,
            )
            for name, spec in specs.items()
        }
        ends = [int(self._arrays["indptr"].read(i, i + 1)[0]) for i in (0, self.shape[0])]
        if ends != [0, self._n_nonzeros]:
            raise refused(where, f"rows from 0 to {self._n_nonzeros}", ends)

    def read(self, start: int, stop: int) -> scipy.sparse.csr_array:
        """Rows ``[start, stop)``."""
        indptr = self._arrays["indptr"].read(start, stop + 1).astype(np.int64)
        first, last = int(indptr[0]), int(indptr[-1])
        if not 0 <= first <= last <= self._n_nonzeros:
            raise refused(self._where, "rows that follow each other", (first, last))
        indptr -= first
        indices = self._arrays["indices"].read(first, last)
        check_csr(indptr, indices, self.shape[1], self._where)
        data = self._arrays["data"].read(first, last)
        shape = (stop - start, self.shape[1])
        values = canonical_csr(scipy.sparse.csr_array((data, indices, indptr), shape=shape))
        check_finite(values, start)
        return values


def _checked_shape(shape: Any, where: str) -> tuple[int, int]:
    is_sane = (
        isinstance(shape, (list, tuple))
        and len(shape) == 2
        and all(type(side) is int for side in shape)
        and 0 < shape[0] <= _MOST_ROWS
        and 0 < shape[1] <= _MOST_FEATURES
    )
    if not is_sane:
        raise refused(where, "rows and features", shape)
    return shape[0], shape[1]


def _checked_dtype(spec: ArraySpec, where: str) -> np.dtype[Any]:
    if spec.dtype.kind not in "biuf":
        raise refused(where, "numbers", "text")
    return spec.dtype


def _check_encoding(name: Any, where: str) -> None:
    if name == "csc_matrix":
        hint = "Write it by rows: adata.X = adata.X.tocsr()."
        raise StoreError(where, "a matrix stored by rows", "one stored by columns", hint)
    if name != "csr_matrix":
        raise refused(where, "a dense array or a csr_matrix", name)


def _check_lengths(specs: dict[str, ArraySpec], shape: tuple[int, int], where: str) -> None:
    if specs["data"].shape != specs["indices"].shape:
        raise refused(where, "a column for every value", specs["indices"].shape)
    if specs["indptr"].shape != (shape[0] + 1,):
        raise refused(where, f"the beginnings of {shape[0]} rows", specs["indptr"].shape)
    for name in ("indices", "indptr"):
        if specs[name].dtype.kind not in "iu":
            raise refused(where, f"whole numbers in {name!r}", specs[name].dtype.name)
