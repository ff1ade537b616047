"""Label rows as the consensus models see them: plain arrays with multiplicities."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

BLOCK_ROWS = 65_536  # sums run over blocks of so many rows, one after another


@dataclass(frozen=True, eq=False)
class LabelRows:
    """Labels that several clusterings give to rows.

    Attributes
    ----------
    codes
        Shape (n_rows, n_bases); labels of base m are 0 to n_labels[m] - 1, and -1 is missing.
    n_labels
        Labels of each base.
    weights
        How many equal rows each row stands for.
    """

    codes: Array
    n_labels: Integers
    weights: Floats

    @classmethod
    def of(cls, codes: Array, n_labels: Array, weights: Array | None = None) -> Self:
        """Return plain arrays as label rows.

        Raises
        ------
        InputError
            If they do not fit together, or a label is out of range.
        """
        codes = np.ascontiguousarray(codes)
        found = np.asarray(n_labels, np.int64)
        if codes.ndim != 2 or codes.dtype.kind != "i" or 0 in codes.shape:
            got = f"{codes.dtype} of shape {codes.shape}"
            raise InputError("codes", "signed whole numbers, rows by bases", got, _HINT)
        n_rows, n_bases = codes.shape
        if found.shape != (n_bases,):
            raise InputError("n_labels", f"{n_bases} numbers", f"shape {found.shape}", _HINT)
        low, high = codes.min(axis=0), codes.max(axis=0)
        for m in np.flatnonzero((low < -1) | (high >= found) | (found < 1)):
            expected = f"labels 0 to {found[m] - 1}, and -1 where there is none"
            raise InputError(f"codes of base {m}", expected, f"{low[m]} to {high[m]}", _HINT)
        many = np.ones(n_rows) if weights is None else np.ascontiguousarray(weights, np.float64)
        if many.shape != (n_rows,) or not (np.isfinite(many) & (many > 0)).all():
            hint = "Leave rows out that stand for nothing."
            raise InputError("weights", f"{n_rows} positive numbers", "others", hint)
        return cls(codes, found, many)

    @property
    def n_rows(self) -> int:
        """Rows as they are stored."""
        return int(self.codes.shape[0])

    @property
    def n_bases(self) -> int:
        """Clusterings."""
        return int(self.codes.shape[1])

    @property
    def n_cells(self) -> int:
        """Labels of all bases together: rows of a table."""
        return int(self.n_labels.sum())

    @functools.cached_property
    def offsets(self) -> Integers:
        """First row of each base in a table."""
        return np.cumsum(self.n_labels) - self.n_labels

    @functools.cached_property
    def n_objects(self) -> float:
        """Rows that all rows stand for."""
        return float(self.weights.sum())

    @functools.cached_property
    def n_observed(self) -> float:
        """Labels that are not missing, of all objects."""
        return float(sum((self.weights[rows] @ (codes >= 0)).sum() for rows, codes in self._cut()))

    def blocks(self) -> Iterator[tuple[slice, LabelRows]]:
        """Yield rows in blocks of a fixed size: where they are, and the rows."""
        for rows, codes in self._cut():
            yield rows, LabelRows(codes, self.n_labels, self.weights[rows])

    def columns(self, bases: slice) -> LabelRows:
        """Return some of the bases."""
        codes = np.ascontiguousarray(self.codes[:, bases])
        return LabelRows(codes, self.n_labels[bases], self.weights)

    def rows(self, rows: slice) -> LabelRows:
        """Return some of the rows."""
        return LabelRows(self.codes[rows], self.n_labels, self.weights[rows])

    def _cut(self) -> Iterator[tuple[slice, Array]]:
        for start in range(0, self.n_rows, BLOCK_ROWS):
            rows = slice(start, min(start + BLOCK_ROWS, self.n_rows))
            yield rows, self.codes[rows]


def sum_by_base(table: Floats, labels: LabelRows) -> Floats:
    """Return the sums of a table (n_cells, K) over the labels of each base, (n_bases, K)."""
    found: Floats = np.add.reduceat(table, labels.offsets, axis=0)
    return found


def normalised_by_base(table: Floats, labels: LabelRows) -> Floats:
    """Return a table whose columns sum to one over the labels of each base.

    A component that nobody is in, in a base, knows nothing of it: its labels are equally
    likely.
    """
    totals = np.repeat(sum_by_base(table, labels), labels.n_labels, axis=0)
    uniform = np.repeat(1.0 / labels.n_labels, labels.n_labels)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(totals > 0.0, table / totals, uniform)


_HINT = "Pass what LabelMatrix holds, or such arrays."
