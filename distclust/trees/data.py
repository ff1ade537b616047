"""What a tree needs to know of the data: a resolved family and the leaves' statistics.

Three passes over the blocks, each through the engine: facts about the columns (which also
refuse bad input before anything else happens), the empirical prior, the statistics.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from distclust.engine import map_blocks, reduce_blocks
from distclust.errors import CapacityError, ConstantColumnsWarning, InputError
from distclust.families import (
    DiagonalGaussian,
    Family,
    Gaussian,
    choose_family,
    column_origin,
    family_named,
    summarise_block,
)
from distclust.store import Matrix, Profile, profile_block

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_SHARE_OF_MEMORY = 0.8
_LARGEST_WEIGHT = 2.0**40


@dataclass(frozen=True)
class Leaves:
    """The starting groups of a tree.

    Attributes
    ----------
    stats
        Statistics of each leaf, shape (n_leaves, p).
    leaf_of_row
        Leaf of each input row, shape (n_rows,).
    """

    stats: Floats
    leaf_of_row: Indices


@dataclass(frozen=True)
class Look:
    """First look at the data: facts about the columns, and a point near the rows."""

    profile: Profile
    origin: Floats

    def __add__(self, later: Look) -> Look:
        return Look(self.profile + later.profile, self.origin)


def first_look(matrix: Matrix) -> Look:
    """Facts about every column, from one pass; the origin is the first block's mean."""
    look: Look = reduce_blocks(_look, matrix, stage="checking the data")
    return look


def resolve_family(
    family: Family | str,
    matrix: Matrix,
    look: Look,
    where: str,
    row_weights: Floats | None = None,
) -> tuple[Family, str]:
    """Return the family with all its hyperparameters, and why it was chosen.

    Raises
    ------
    InputError
        If the data do not fit the family, naming the first column that does not.
    """
    prepared, reason = prepare_family(family, matrix, look.profile, where)
    summary = reduce_blocks(
        summarise_block, matrix, prepared, look.origin, row_weights, stage="learning the prior"
    )
    return prepared.resolve(summary, look.origin, look.profile, matrix.columns), reason


def prepare_family(
    family: Family | str, matrix: Matrix, profile: Profile, where: str
) -> tuple[Family, str]:
    """Return the family prepared for the columns, and why it was chosen.

    Raises
    ------
    InputError
        If the data do not fit the family, naming the first column that does not.
    """
    reason = "chosen by the user"
    template = family
    if isinstance(template, str):
        if template == "auto":
            template, reason = choose_family(profile, matrix.columns, matrix.is_sparse)
            _check_sparse_choice(template, matrix, where)
        else:
            template = family_named(template, f"{where}: family")
    if not isinstance(template, Family):
        raise InputError(
            f"{where}: family",
            "'auto', the name of a family or a family",
            repr(family),
            "For example family='bernoulli' or distclust.families.Gaussian().",
        )
    template.check(profile, matrix.columns, where)
    _report_constant_columns(matrix, profile, where)
    return template.prepare(profile, matrix.columns), reason


def singleton_leaves(matrix: Matrix, family: Family, row_weights: Floats | None) -> Leaves:
    """Every row is a leaf; a weighted one stands for several equal rows."""
    parts = map_blocks(_row_statistics, matrix, family, row_weights, stage="reading the rows")
    leaf_of_row = np.arange(matrix.shape[0], dtype=np.int64)
    return Leaves(np.concatenate(list(parts)), leaf_of_row)


def grouped_leaves(
    matrix: Matrix, family: Family, leaf_of_row: Indices, row_weights: Floats | None
) -> Leaves:
    """Rows of the same leaf are one group."""
    stats = reduce_blocks(
        _group_statistics,
        matrix,
        family,
        leaf_of_row,
        int(leaf_of_row.max()) + 1,
        row_weights,
        stage="reading the rows",
    )
    return Leaves(stats, leaf_of_row)


def memory_needed(n_leaves: int, family_statistics: int, key_bytes: float) -> float:
    """Bytes of an exact tree: statistics of all nodes, working copies, the key matrix."""
    return 8.0 * family_statistics * 6 * n_leaves + key_bytes


def check_capacity(needed: float, n_leaves: int, n_statistics: int, where: str) -> None:
    """Refuse work that would not fit, before it starts."""
    available = _SHARE_OF_MEMORY * psutil.virtual_memory().available
    if needed > available:
        raise CapacityError(
            where,
            f"at most {available / 1e9:.1f} GB for an exact tree",
            f"{needed / 1e9:.1f} GB for {n_leaves:,} leaves of {n_statistics:,} numbers",
            "Use fewer rows or features, or group rows with `leaves`.",
        )


def check_row_weights(row_weights: npt.ArrayLike | None, n_rows: int, where: str) -> Floats | None:
    """Return weights as whole numbers held as floats, or None."""
    if row_weights is None:
        return None
    weights = np.asarray(row_weights)
    expected = f"{n_rows} whole numbers from 1 to 2^40"
    hint = "A weight says how many equal rows a row stands for."
    if weights.shape != (n_rows,) or weights.dtype.kind not in "iuf":
        found = f"shape {weights.shape} of {weights.dtype}"
        raise InputError(f"{where}: row_weights", expected, found, hint)
    loads = weights.astype(np.float64)
    bad = ~((loads >= 1.0) & (loads <= _LARGEST_WEIGHT) & (loads == np.round(loads)))
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        found = f"{loads[first]:g} for row {first}"
        raise InputError(f"{where}: row_weights", expected, found, hint)
    return loads


def check_leaves(leaves: npt.ArrayLike, n_rows: int, where: str) -> Indices:
    """Return the leaf of each row, numbered by first row; there are at least two leaves."""
    labels = np.asarray(leaves)
    expected, hint = f"{n_rows} labels, numbers or strings", "Pass one a row."
    if labels.shape != (n_rows,) or labels.dtype.kind not in "biufUS":
        found = f"shape {labels.shape} of {labels.dtype}"
        raise InputError(f"{where}: leaves", expected, found, hint)
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise InputError(f"{where}: leaves", expected, "NaN", "Give every row a leaf.")
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    if len(first) < 2:
        raise InputError(f"{where}: leaves", "at least 2 leaves", "1", "Leave `leaves` out.")
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def _check_sparse_choice(family: Family, matrix: Matrix, where: str) -> None:
    """No density is guessed for real numbers that are mostly exact zeros."""
    if matrix.is_sparse and isinstance(family, (Gaussian, DiagonalGaussian)):
        raise InputError(
            f"{where}: family='auto'",
            "zeros and ones or counts in sparse data",
            "sparse data of real numbers",
            "Name a family, such as family='diagonal_gaussian', or pass a dense array.",
        )


def _look(block: Any, start: int) -> Look:
    return Look(profile_block(block), column_origin(block))


def _row_statistics(block: Any, start: int, family: Family, row_weights: Floats | None) -> Floats:
    n_rows = block.shape[0]
    weights = None if row_weights is None else row_weights[start : start + n_rows]
    return family.accumulate(block, np.arange(n_rows), n_rows, weights)


def _group_statistics(
    block: Any,
    start: int,
    family: Family,
    leaf_of_row: Indices,
    n_leaves: int,
    row_weights: Floats | None,
) -> Floats:
    rows = slice(start, start + block.shape[0])
    weights = None if row_weights is None else row_weights[rows]
    return family.accumulate(block, leaf_of_row[rows], n_leaves, weights)


def _report_constant_columns(matrix: Matrix, profile: Profile, where: str) -> None:
    constant = np.flatnonzero(
        (profile.minimum == profile.maximum) | (profile.n_missing == profile.n_rows)
    )
    if len(constant):
        names = ", ".join(repr(matrix.columns[i].name) for i in constant[:5])
        more = f" and {len(constant) - 5} more" if len(constant) > 5 else ""
        warnings.warn(
            f"{where}: {len(constant)} of {matrix.shape[1]} columns never vary "
            f"({names}{more}). They are kept, and say nothing about clusters.",
            ConstantColumnsWarning,
            stacklevel=5,
        )
