"""Kernels, evaluated on tiles of fixed shape.

Rows are prepared once: moved to the middle of the data, scaled to unit length, squared norms
taken, whatever the kernel needs. A tile is the kernel of `TILE` prepared rows with `TILE`
others; the last rows are padded with zeros. Every number of a product is one sum in the order of
features: the same pair of rows gives the same bits in whatever company it is evaluated.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from distclust.engine import local_threads, thread_map
from distclust.engine.held import RowArray, is_sparse
from distclust.errors import InputError
from distclust.projections._numerics import raise_e
from distclust.projections._product_numerics import (
    PUT,
    PUT_EXPONENTIAL,
    block_of,
    multiply,
    panels_of,
)

TILE = 512

_STRIP = 64  # rows that a user's function gets at a time for its diagonal

Floats: TypeAlias = npt.NDArray[np.floating[Any]]

PRODUCT_KERNELS = ("linear", "cosine")  # whose matrix is X Xᵀ: it is never formed
NAMED_KERNELS = ("rbf", "poly", *PRODUCT_KERNELS)


@dataclass(frozen=True)
class Kernel:
    """A kernel with all its numbers.

    Attributes
    ----------
    name
        One of `NAMED_KERNELS`, or ``module:function`` of a callable κ(X, Y) that takes two
        arrays of rows and returns all values between them.
    gamma
        Of ``rbf``, exp(−γ ‖x − y‖²), and of ``poly``, (γ x·y + c)^degree.
    degree, coef0
        Of ``poly``.
    """

    name: str
    gamma: float = 1.0
    degree: int = 3
    coef0: float = 1.0

    @property
    def is_product(self) -> bool:
        """Whether the matrix is a product of rows: linear in memory and in time."""
        return self.name in PRODUCT_KERNELS

    @property
    def ignores_shifts(self) -> bool:
        """Whether moving all rows alike changes nothing."""
        return self.name == "rbf"

    @property
    def is_bounded(self) -> bool:
        """Whether values that a matrix is filled with are at most 1: they do well rounded."""
        return self.name == "rbf"

    @property
    def is_callable(self) -> bool:
        """Whether the user wrote it."""
        return self.name not in NAMED_KERNELS

    def function(self) -> Callable[[Any, Any], Any]:
        """Return the user's function."""
        return find_function(self.name)

    def diagonal(self, rows: RowArray) -> npt.NDArray[np.float64]:
        """Return κ(x, x) of every row, shape (n_rows,)."""
        if self.name == "rbf":
            return np.ones(rows.shape[0])
        if self.is_callable:
            function = self.function()
            parts = [rows[i : i + _STRIP] for i in range(0, rows.shape[0], _STRIP)]
            found = [np.asarray(function(part, part), np.float64).diagonal() for part in parts]
            return np.concatenate(found)
        norms = squared_norms(rows).astype(np.float64)
        if self.name == "cosine":
            return (norms > 0).astype(np.float64)
        if self.name == "linear":
            return norms
        powers: npt.NDArray[np.float64] = (self.gamma * norms + self.coef0) ** self.degree
        return powers


def name_of(function: Callable[..., Any], where: str) -> str:
    """Return ``module:function`` of a callable kernel that others can import."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    path = f"{module}:{name}"
    refused = InputError(
        where,
        "a kernel that can be imported by its name",
        path,
        "Define it in a module, not in a script, a function or a lambda.",
    )
    if not module or not name or module == "__main__" or "<" in name:
        raise refused
    try:
        found = find_function(path)
    except InputError:
        raise refused from None
    if found is not function:
        raise refused
    return path


def find_function(path: str) -> Callable[..., Any]:
    """Return the function of that name."""
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"kernel {path!r}", "a function that can be imported", str(error), "Install its module."
        ) from None
    if not callable(found):
        raise InputError(f"kernel {path!r}", "a function", type(found).__name__, "Name another.")
    function: Callable[..., Any] = found
    return function


def squared_norms(rows: RowArray) -> Floats:
    """Return ‖x‖² of every row, shape (n_rows,)."""
    if is_sparse(rows):
        return np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
    norms: Floats = np.einsum("ij,ij->i", rows, rows)
    return norms


@dataclass(frozen=True, eq=False)
class Tile:
    """`TILE` prepared rows, of which the first `n` are real; fewer where nothing is padded.

    Attributes
    ----------
    rows
        As the left factor of a product, shape (TILE, features), padded with zeros; CSR arrays
        where rows are sparse.
    facing
        Transposed, as the right factor: in panels, see `multiply`; of sparse rows and for the
        functions of users the rows.
    norms
        ‖x‖², shape (TILE,).
    n
        Rows that are not padding.
    """

    rows: Any
    facing: Any
    norms: Floats
    n: int

    def part(self, rows: slice) -> Tile:
        """Return some of the rows, padding among them."""
        start, stop, _ = rows.indices(self.n)
        facing = self.facing
        if facing.ndim == 3:
            facing = panels_of(block_of(facing)[:, rows], facing.dtype)
        else:
            facing = facing[rows]
        return Tile(self.rows[rows], facing, self.norms[rows], max(stop - start, 0))


class Preparation:
    """Turns rows into tiles for a kernel; the same for training rows and new ones.

    Parameters
    ----------
    kernel
        The kernel.
    dtype
        Of tiles and of what is computed with them.
    middle
        What is subtracted from dense rows where the kernel ignores shifts, or None. Distances
        are differences of large numbers far from the origin.
    """

    def __init__(self, kernel: Kernel, dtype: Any, middle: Floats | None) -> None:
        self.kernel = kernel
        self.dtype = np.dtype(dtype)
        self.middle = middle

    def tiles(self, rows: RowArray, known: Sequence[Tile] = ()) -> list[Tile]:
        """Return all rows in tiles; whole ones that are known as they are."""
        whole = [tile for tile in known if tile.n == TILE]
        starts = range(len(whole) * TILE, rows.shape[0], TILE)
        return whole + self.tiles_of([rows[i : i + TILE] for i in starts])

    def tiles_of(self, parts: Sequence[RowArray]) -> list[Tile]:
        """Return a tile for each of some parts of rows, by the threads there are."""
        return thread_map(self.tile, parts, local_threads())

    def tile(self, rows: RowArray, *, padded: bool = True) -> Tile:
        """Return at most `TILE` rows as a tile."""
        n_rows = TILE if padded else rows.shape[0]
        if is_sparse(rows):
            longer = self._sparse(rows, n_rows)
            return Tile(longer, longer, squared_norms(longer), rows.shape[0])
        moved = rows if self.middle is None else rows - self.middle
        if self.kernel.name == "rbf":
            return self._exponents(moved, n_rows)
        padded_rows = np.zeros((n_rows, rows.shape[1]), self.dtype)
        padded_rows[: len(rows)] = self._scaled(moved)
        facing = padded_rows
        if not self.kernel.is_callable:
            facing = panels_of(padded_rows.T, self.dtype)
        return Tile(padded_rows, facing, squared_norms(padded_rows), len(rows))

    def _exponents(self, moved: Floats, n_rows: int) -> Tile:
        """Return rows with two more columns, so that the product is the exponent: −γ‖x − y‖².

        These come first: then it is the same to the last bit whichever of two rows is the left one.
        """
        left = np.zeros((n_rows, moved.shape[1] + 2), self.dtype)
        scaled = left[:, 2:]
        scaled[: len(moved)] = moved * np.sqrt(2.0 * self.kernel.gamma)
        exponent = squared_norms(scaled) / -2.0
        right = left.copy()
        left[:, 0] = right[:, 1] = exponent
        left[:, 1] = right[:, 0] = 1.0
        facing = panels_of(right.T, self.dtype)
        return Tile(left, facing, exponent / -self.kernel.gamma, len(moved))

    def values(self, left: Tile, right: Tile, out: Floats) -> Floats:
        """Return the kernel of all rows of one tile with all of another, in `out`."""
        if self.kernel.is_callable:
            return self._call(left, right, out)
        is_rbf = self.kernel.name == "rbf"
        if not is_sparse(left.rows):
            multiply(left.rows, right.facing, out, PUT_EXPONENTIAL if is_rbf else PUT)
        else:
            out[:] = (left.rows @ right.facing.T).toarray()
            if is_rbf:
                out *= 2.0
                out -= left.norms[:, None]
                out -= right.norms
                out *= self.kernel.gamma
                _exponential(out)
        if self.kernel.name == "poly":
            _poly(out, self.kernel)
        return out

    def _scaled(self, rows: Floats) -> Floats:
        if self.kernel.name != "cosine":
            return rows
        lengths = np.sqrt(squared_norms(rows))
        return rows / np.where(lengths > 0, lengths, 1.0)[:, None]

    def _sparse(self, rows: sp.csr_array, n_rows: int) -> sp.csr_array:
        ends = np.concatenate([rows.indptr, np.full(n_rows - rows.shape[0], rows.indptr[-1])])
        padded = sp.csr_array(
            (rows.data.astype(self.dtype), rows.indices, ends), shape=(n_rows, rows.shape[1])
        )
        if self.kernel.name == "cosine":
            lengths = np.sqrt(squared_norms(padded))
            scale = 1.0 / np.where(lengths > 0, lengths, 1.0)
            padded.data *= np.repeat(scale, np.diff(padded.indptr)).astype(self.dtype)
        return padded

    def _call(self, left: Tile, right: Tile, out: Floats) -> Floats:
        found = np.asarray(self.kernel.function()(left.rows[: left.n], right.rows[: right.n]))
        if found.shape != (left.n, right.n) or not np.isfinite(found).all():
            shape = f"shape {found.shape}"
            raise InputError(
                f"kernel {self.kernel.name!r}",
                f"finite values of shape {(left.n, right.n)}",
                shape if found.shape != (left.n, right.n) else "values that are not finite",
                "Return κ(x, y) of every row of the first argument with every row of the second.",
            )
        out[:] = 0.0
        out[: left.n, : right.n] = found
        return out


def _exponential(exponents: Floats) -> None:
    """Raise e to the power of each, in place."""
    together = np.ascontiguousarray(exponents, np.float64)
    raise_e(together.reshape(-1))
    if together is not exponents:
        exponents[:] = together


def _poly(products: Floats, kernel: Kernel) -> None:
    products *= kernel.gamma
    products += kernel.coef0
    np.power(products, kernel.degree, out=products)
