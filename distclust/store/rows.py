"""Rows on their way into a store: the one thing a segment is written from.

A source of rows says what it holds and reads any range of rows, here or on a worker. What
is expensive to read twice, or can only be read from its start, is spooled first (see
``distclust.store.sources``); in-memory arrays are a source as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import InputError
from distclust.store.matrix import canonical_csr, slice_csr

Array: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = "Array | scipy.sparse.csr_array"


@dataclass(frozen=True, eq=False)
class Rows:
    """A range of rows.

    Attributes
    ----------
    values
        Shape (n, n_features): a dense array of booleans, integers or floats with NaN for
        missing values, or a ``csr_array`` of finite numbers.
    ids
        Shape (n,): int64, or text (``str`` or object).
    obs
        Annotations by name, shape (n,) each: numbers, booleans, or text with None for
        missing.
    """

    values: Values
    ids: Array
    obs: Mapping[str, Array] = field(default_factory=dict)


class RowSource(Protocol):
    """Anything rows can be read from, in any order and in any process; picklable."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    def n_features(self) -> int:
        """Number of features."""

    @property
    def is_sparse(self) -> bool:
        """Whether `read` gives ``csr_array`` values."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)``; the same ones every time."""


class ArrayRows:
    """Rows of an array or a scipy sparse matrix in memory.

    Parameters
    ----------
    values
        Shape (n_rows, n_features): booleans, integers or floats, or any scipy sparse
        matrix of these.
    ids
        Shape (n_rows,): whole numbers or text; None counts from 0.
    obs
        Annotations by name, shape (n_rows,) each.
    """

    def __init__(
        self, values: Any, ids: Any = None, obs: Mapping[str, Array] | None = None
    ) -> None:
        self.is_sparse = bool(scipy.sparse.issparse(values))
        self._values: Any = canonical_csr(values) if self.is_sparse else np.asarray(values)
        if self._values.ndim != 2 or self._values.dtype.kind not in "biuf":
            got = f"{self._values.ndim} dimensions of {self._values.dtype}"
            raise InputError("rows", "a table of numbers", got, "Pass rows and features.")
        self._ids = np.arange(len(self)) if ids is None else np.asarray(ids)
        self._obs = dict(obs or {})
        for name, column in {"ids": self._ids, **self._obs}.items():
            if column.shape != (self.n_rows,):
                got = f"shape {column.shape} of {name!r}"
                raise InputError("rows", f"{self.n_rows} values", got, "Pass one for each row.")

    def __len__(self) -> int:
        return int(self._values.shape[0])

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self)

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self._values.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        dtype: np.dtype[Any] = self._values.dtype
        return dtype

    def read(self, start: int, stop: int) -> Rows:
        """Rows ``[start, stop)``, as views."""
        cut = slice_csr(self._values, start, stop) if self.is_sparse else self._values[start:stop]
        obs = {name: column[start:stop] for name, column in self._obs.items()}
        return Rows(cut, self._ids[start:stop], obs)
