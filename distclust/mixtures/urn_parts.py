"""A family and its rows as tables for the compiled visits of `_urn_numerics`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from distclust.families import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Gaussian,
    Multinomial,
    Poisson,
    Product,
)
from distclust.mixtures._urn_statistics_numerics import (
    ALIKE,
    BINARY,
    DIAGONAL,
    GAPS,
    GAUSSIAN,
    LEVELS,
    MULTINOMIAL,
    POISSON,
    UNLIKE,
    Parts,
)

Floats = npt.NDArray[np.float64]
Rows = Any  # dense float64 (n, d), or CSR

_KINDS = (Bernoulli, Categorical, DiagonalGaussian, Gaussian, Multinomial, Poisson)
_DENSE_CELLS = 1 << 27  # a dense copy of sparse real columns stays below 1 GB
_DIGITS = 290.0  # products stay within 10^-290 and 10^290


def working_family(family: Family) -> Family:
    """Return a family with the same densities whose statistics the compiled visits keep.

    Binary columns with gaps are columns of two levels: then what was observed is in the counts.
    """
    if type(family) is Bernoulli and family.has_missing:
        alpha: Any = [[b, a] for a, b in zip(family.alpha, family.beta, strict=True)]
        return Categorical(alpha=alpha, n_features=family.n_features, has_missing=True)
    if type(family) is Product:
        parts = tuple((working_family(part), columns) for part, columns in family.parts)
        return Product(parts, n_features=family.n_features)
    return family


def is_compiled(rows: Rows, family: Family) -> bool:
    """Whether compiled visits know all parts of a family, and their tables have room."""
    pieces = [part for part, _ in _pieces(family)]
    if any(type(part) not in _KINDS for part in pieces):
        return False
    real = sum(p.n_features for p in pieces if type(p) in (DiagonalGaussian, Gaussian))
    levels = sum(p.n_features for p in pieces if type(p) is Categorical)
    return not _is_sparse(rows) or (real + levels) * rows.shape[0] <= _DENSE_CELLS


def make_parts(rows: Rows, family: Family, weights: Floats) -> tuple[Parts, int]:
    """Return the tables of a working family, and how many figures are cached of a cluster."""
    tables = _Tables(rows, weights)
    for part, columns in _pieces(family):
        tables.add(part, columns)
    return tables.finish()


def _pieces(family: Family) -> Iterator[tuple[Family, npt.NDArray[np.int64]]]:
    """Yield the parts of a family with their columns, in the order of their statistics."""
    if type(family) is Product:
        for part, columns in family.parts:
            yield part, np.array(columns, np.int64)
    else:
        yield family, np.arange(family.n_features)


@dataclass
class _Table:
    """What one part needs; `figures` are cached of each cluster."""

    kind: int
    params: list[Floats]
    figures: int
    flag: int = ALIKE
    flush: int = 1
    place: int = 0
    dense: Floats | None = None
    tokens: Any = None


class _Tables:
    """Tables that grow part by part."""

    def __init__(self, rows: Rows, weights: Floats) -> None:
        self._rows, self._weights = rows, weights
        self._tables: list[_Table] = []
        self._lines: list[list[int]] = []
        self._stats_at, self._cache_at, self._params_at, self._dense_at = 1, 1, 0, 0

    def add(self, family: Family, columns: npt.NDArray[np.int64]) -> None:
        """Append a part."""
        whole = len(columns) == self._rows.shape[1] and bool(np.all(np.diff(columns) == 1))
        block = self._rows if whole else self._rows[:, columns]
        table = _MAKERS[type(family)](family, block, self._weights)
        place = table.place
        if table.dense is not None:
            place, self._dense_at = self._dense_at, self._dense_at + family.n_features
        self._lines.append(
            [
                table.kind, family.n_features, self._stats_at, self._cache_at, self._params_at,
                place, table.flag, table.flush,
            ]
        )  # fmt: skip
        self._tables.append(table)
        self._stats_at += family.n_statistics - 1
        self._cache_at += table.figures
        self._params_at += sum(len(part) for part in table.params)

    def finish(self) -> tuple[Parts, int]:
        """Return all parts as one set of arrays."""
        n_rows = self._rows.shape[0]
        dense = [table.dense for table in self._tables if table.dense is not None]
        pointers = np.zeros((len(self._tables), n_rows + 1), np.int64)
        tokens, values, before = [np.empty(0, np.int32)], [np.empty(0)], 0
        for p, table in enumerate(self._tables):
            if table.tokens is not None:
                pointers[p] = table.tokens.indptr.astype(np.int64) + before
                tokens.append(table.tokens.indices.astype(np.int32))
                values.append(table.tokens.data.astype(np.float64))
                before += table.tokens.nnz
        params = [part for table in self._tables for part in table.params]
        parts = Parts(
            np.array(self._lines, np.int64),
            np.concatenate(params).astype(np.float64),
            np.ascontiguousarray(np.hstack(dense)) if dense else np.empty((n_rows, 0)),
            pointers,
            np.concatenate(tokens),
            np.concatenate(values),
            self._weights,
        )
        return parts, self._cache_at


def _diagonal(family: Any, rows: Rows, weights: Floats) -> _Table:
    size = family.n_features
    shifted = _dense(rows) - family.shift
    offset = family.mean - family.shift
    prior = [family.strength, family.shape, family.rate, offset]
    breaks = _breaks(_largest_growth(shifted, offset, family.rate))
    table = _Table(DIAGONAL, [*prior, breaks], 4 * size, dense=shifted)
    if family.has_missing:
        table.flag = GAPS
    elif np.ptp(family.strength) > 0.0 or np.ptp(family.shape) > 0.0:
        table.flag = UNLIKE
    else:
        table.flag, table.figures = ALIKE, 2 * size + 5
    return table


def _largest_growth(shifted: Floats, offset: Floats, rate: Floats) -> Floats:
    """Return the largest factor 1 + t of each column: centres lie among rows and prior."""
    with np.errstate(all="ignore"):
        high = np.fmax(np.fmax.reduce(shifted, axis=0), offset)
        low = np.fmin(np.fmin.reduce(shifted, axis=0), offset)
        return np.asarray(1.0 + (high - low) ** 2 / (2.0 * rate))


def _breaks(growth: Floats) -> Floats:
    """Return ones after columns where logarithms of products are taken; after the last, too."""
    breaks, digits = np.zeros(len(growth)), 0.0
    for d, factor in enumerate(growth):
        own = math.log10(factor) if np.isfinite(factor) else _DIGITS
        # Factors of a row's own cluster may be as small as one over this bound, or 1e-3.
        own = max(own, 3.0)
        if d and digits + own > _DIGITS:
            breaks[d - 1], digits = 1.0, 0.0
        digits += own
    breaks[-1] = 1.0
    return breaks


def _gaussian(family: Any, rows: Rows, weights: Floats) -> _Table:
    size = family.n_features
    numbers = np.array([family.strength, family.degrees])
    params = [family.scatter.ravel(), numbers, family.mean - family.shift]
    figures = size + size * (size + 1) // 2 + 4
    return _Table(GAUSSIAN, params, figures, dense=_dense(rows) - family.shift)


def _levels(family: Any, rows: Rows, weights: Floats) -> _Table:
    levels = np.array(family.n_levels)
    starts = np.concatenate([[0], np.cumsum(levels)])
    totals = np.add.reduceat(family.alpha, starts[:-1])
    column = np.repeat(np.arange(len(levels)), levels)
    least = np.min(family.alpha / (totals[column] + weights.sum()))
    params = [family.alpha, column.astype(float), starts.astype(float), totals]
    return _Table(
        LEVELS, params, len(column), GAPS, _flush(least), place=len(column),
        tokens=_indicators(family, rows),
    )  # fmt: skip


def _indicators(family: Any, rows: Rows) -> Any:
    """Return the levels of all rows as tokens; a sparse block is laid out in pieces."""
    step = max(1, (1 << 22) // family.n_features)
    pieces = range(0, max(1, rows.shape[0]), step)
    return sparse.vstack([family.indicators(rows[at : at + step]) for at in pieces], format="csr")


def _binary(family: Any, rows: Rows, weights: Floats) -> _Table:
    a, b, n = family.alpha, family.beta, weights.sum()
    extremes = [a / (b + n), (a + n) / b, b / (a + b + n), 1.0 / (a + b + n), 1.0 / (a + b)]
    flush = _flush(*(bound for values in extremes for bound in (values.min(), values.max())))
    tokens = _counts(rows)
    tokens.data[:] = 1.0
    return _Table(BINARY, [a, b], family.n_features + 2, flush=flush, tokens=tokens)


def _multinomial(family: Any, rows: Rows, weights: Floats) -> _Table:
    tokens = _counts(rows)
    total = family.alpha.sum()
    largest = total + float(weights @ np.asarray(tokens.sum(axis=1)).ravel()) + 8.0
    flush = _flush(float(family.alpha.min()), largest)
    params = [family.alpha, np.array([total])]
    return _Table(MULTINOMIAL, params, family.n_features + 2, flush=flush, tokens=tokens)


def _poisson(family: Any, rows: Rows, weights: Floats) -> _Table:
    tokens = _counts(rows)
    sums = float(weights.sum()) * (1.0 + float(np.nan_to_num(tokens.data).max(initial=0.0)))
    least = np.min(family.shape / (family.rate + weights.sum() + 1.0))
    most = np.max((family.shape + sums + 8.0) / (family.rate + 1.0))
    return _Table(
        POISSON, [family.shape, family.rate], 2 * family.n_features + 2,
        GAPS if family.has_missing else ALIKE, _flush(float(least), float(most)), tokens=tokens,
    )  # fmt: skip


_MAKERS: dict[type[Family], Any] = {
    Bernoulli: _binary,
    Categorical: _levels,
    DiagonalGaussian: _diagonal,
    Gaussian: _gaussian,
    Multinomial: _multinomial,
    Poisson: _poisson,
}


def _flush(*bounds: float) -> int:
    """Return how many factors within bounds may be multiplied before a logarithm is taken."""
    digits = max(abs(math.log10(bound)) if bound > 0.0 else _DIGITS for bound in bounds)
    return max(1, int(_DIGITS / max(digits, 1.0)))


def _counts(rows: Rows) -> Any:
    """Return rows as a CSR array of its own without explicit zeros; NaN entries stay."""
    counts = sparse.csr_array(rows, dtype=np.float64, copy=True)
    counts.sum_duplicates()
    counts.eliminate_zeros()
    return counts


def _dense(rows: Rows) -> Floats:
    laid_out = rows.toarray() if _is_sparse(rows) else rows
    return np.ascontiguousarray(laid_out, dtype=np.float64)


def _is_sparse(rows: Rows) -> bool:
    return bool(sparse.issparse(rows))
