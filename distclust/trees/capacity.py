"""What a fit of data of any size needs, asked for before it starts."""

from __future__ import annotations

import psutil

from distclust.engine import check_worker_memory
from distclust.errors import CapacityError
from distclust.store import Matrix
from distclust.trees.data import memory_needed
from distclust.trees.search import SearchPlan
from distclust.trees.splitting import Settings

_SCORES = 2.0**25  # bytes
_SPARSE_ROW = 2.0**10  # bytes; how long rows are is known when they are read
_FLOAT = 8
_SHARE_OF_MEMORY = 0.8


def check_reading(matrix: Matrix, where: str) -> None:
    """Refuse a fit whose blocks do not fit where they are read.

    Raises
    ------
    CapacityError
        With what a thread needs and what it has.
    """
    check_worker_memory(_block_bytes(matrix) + _SCORES, where, "a block and its scores")


def check_fitting(matrix: Matrix, n_statistics: int, settings: Settings, where: str) -> None:
    """Refuse a fit whose sample, or whose tree down to the rows, does not fit.

    Parameters
    ----------
    matrix
        The rows.
    n_statistics
        Numbers that a group of rows is described by.
    settings
        Sample size, and how far the tree goes.
    where
        Place to name in the error.

    Raises
    ------
    CapacityError
        With what is needed and what there is.
    """
    n_rows = matrix.shape[0]
    n_sampled = min(settings.sample_size, n_rows)
    is_kept = SearchPlan(mixing=settings.mixing).keeps_keys(n_sampled)
    key_bytes = 4.0 * n_sampled**2 if is_kept else 0.0
    of_sample = memory_needed(n_sampled, n_statistics, key_bytes)
    what = f"a block, its scores and the tree of {n_sampled:,} sampled rows"
    check_worker_memory(_block_bytes(matrix) + _SCORES + of_sample, where, what)
    if settings.resolve == "rows":
        _check_rows(n_rows, n_statistics, where)


def _block_bytes(matrix: Matrix) -> float:
    """Bytes of a decoded block and its copy in floating point."""
    n_rows = min(matrix.block_rows, matrix.shape[0])
    if matrix.is_sparse:
        return n_rows * _SPARSE_ROW
    return float(n_rows * matrix.shape[1] * (matrix.dtype.itemsize + _FLOAT))


def _check_rows(n_rows: int, n_statistics: int, where: str) -> None:
    """Refuse a tree with a leaf for every row that this process could not hold."""
    available = _SHARE_OF_MEMORY * psutil.virtual_memory().available
    needed = memory_needed(n_rows, n_statistics, 0.0)
    if needed > available:
        raise CapacityError(
            f"{where}: resolve='rows'",
            f"at most {available / 1e9:,.2f} GB for a tree down to the rows",
            f"{needed / 1e9:,.2f} GB for {n_rows:,} rows of {n_statistics:,} numbers",
            "Use resolve='clusters', whose tree does not grow with the rows.",
        )
