"""What the families of counts share: accumulating, products, information of tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from distclust.errors import InputError
from distclust.families._blocks import (
    Block,
    FloatArray,
    IntArray,
    csr_parts,
    has_nan,
    is_sparse,
    n_rows_of,
    numeric_rows,
)
from distclust.families._checks import check_labels, refuse
from distclust.families._counts_numerics import add_rising
from distclust.families._numerics import (
    accumulate_bytes,
    accumulate_counts,
    accumulate_counts_csr,
)
from distclust.families.base import Family
from distclust.families.columns import Column, Profile

_ROW_CELLS = 1 << 20  # a dense chunk of rows stays near 8 MB
_SPARSE_ROWS = 1 << 14
_UNITS = 4
_BYTE_ROWS = 1 << 23  # so many bytes still fit 32 bits when they are added up

LARGEST_COUNT = 2.0**40


def accumulate_counts_of(
    family: Family,
    block: Block,
    labels: npt.ArrayLike,
    n_groups: int,
    weights: npt.ArrayLike | None,
    *,
    first: int,
    factorials: bool = False,
) -> FloatArray:
    """Return statistics (n_groups, p) whose counts start at column `first`."""
    groups, loads = check_labels(labels, n_groups, weights, n_rows_of(block))
    stats = np.zeros((n_groups, family.n_statistics))
    observed_at = first + family.n_features if family.has_missing else 0
    if is_sparse(block):
        accumulate_counts_csr(
            stats, *csr_parts(block), groups, loads, first, observed_at, factorials
        )
        return stats
    rows = numeric_rows(block)
    if rows.dtype == np.uint8 and weights is None and not (observed_at or factorials):
        _add_bytes(stats, rows, groups, first)
        return stats
    if not accumulate_counts(stats, rows, groups, loads, first, observed_at, factorials):
        raise unexpected_missing(family)
    return stats


def _add_bytes(stats: FloatArray, rows: npt.NDArray[Any], groups: IntArray, first: int) -> None:
    """Add rows of bytes to statistics; whole numbers, so the order does not matter."""
    stats[:, 0] += np.bincount(groups[groups >= 0], minlength=len(stats))
    for start in range(0, len(rows), _BYTE_ROWS):
        part = slice(start, start + _BYTE_ROWS)
        counts = np.zeros((len(stats), rows.shape[1]), np.int32)
        accumulate_bytes(counts, rows[part], groups[part])
        stats[:, first : first + rows.shape[1]] += counts


def count_summary(family: Family, block: Block, weights: FloatArray | None) -> FloatArray:
    """Return the statistics of all rows of a block as one group, shape (p,)."""
    one_group = np.zeros(n_rows_of(block), dtype=np.int64)
    return np.asarray(family.accumulate(block, one_group, 1, weights)[0])


def check_counts(title: str, profile: Profile, columns: Sequence[Column], where: str) -> None:
    """Refuse negative numbers and fractions."""
    expected = f"counts (whole numbers from 0 on) for the {title} family"
    hint = "Remove the column, or choose a family for real numbers."
    refuse(profile.minimum < 0, columns, where, expected, profile.minimum, hint)
    fractional = ~np.asarray(profile.all_integer, dtype=bool)
    refuse(fractional, columns, where, expected, "a fraction", hint)
    # Sums of larger ones are no longer exact, and log Γ of them is mostly rounding.
    too_large = profile.maximum > LARGEST_COUNT
    refuse(too_large, columns, where, "counts of at most 2^40", profile.maximum, hint)


def unexpected_missing(family: Family) -> InputError:
    """Return the error for NaN in rows whose statistics have no place for it."""
    return InputError(
        f"{type(family).__name__}.accumulate",
        "rows without missing values, like those the family was resolved on",
        "NaN",
        "Resolve the family on data that include them (has_missing=True).",
    )


def row_chunks(block: Block, n_features: int) -> Iterator[slice]:
    """Yield slices of rows that are small enough to be converted."""
    step = _SPARSE_ROWS if is_sparse(block) else max(1, _ROW_CELLS // n_features)
    for start in range(0, n_rows_of(block), step):
        yield slice(start, min(start + step, n_rows_of(block)))


def as_csr(block: Block) -> Any:
    """Return rows of counts as a float64 CSR array without explicit zeros."""
    rows = sparse.csr_array(block)
    return rows if rows.dtype == np.float64 else rows.astype(np.float64)


def split_missing(block: Block) -> tuple[Block, npt.NDArray[np.bool_] | None]:
    """Return the rows with 0 for NaN, and the mask of observed entries (None: all)."""
    if not has_nan(block):
        return block, None
    observed = ~np.isnan(block)
    return np.where(observed, block, 0.0), observed


class RisingLogs:
    r"""Sums over columns of :math:`\log \Gamma(a + x) - \log \Gamma(a)` for rows of counts.

    The ratio is the product of a, a + 1, ..., a + x - 1. The first few units of every
    count are sparse products with logarithms that are taken once for a chunk of groups;
    only what larger counts have beyond them costs a logarithm an entry.

    Parameters
    ----------
    posterior
        The values a, shape (D, B).
    """

    def __init__(self, posterior: FloatArray) -> None:
        self._logs = [np.log(posterior + unit) for unit in range(_UNITS)]
        self._beyond = posterior + _UNITS

    def sums(self, counts: Any) -> FloatArray:
        """Return the sums for rows of a CSR array (n, D), shape (n, B)."""
        out = np.zeros((counts.shape[0], self._beyond.shape[1]))
        for unit, logs in enumerate(self._logs):
            reached = _select(counts, counts.data > unit)
            if not reached.nnz:
                return out
            out += reached.sign() @ logs
        rest = _select(counts, counts.data > _UNITS)
        add_rising(rest.data - _UNITS, rest.indices, rest.indptr, self._beyond, out)
        return out


def _select(counts: Any, chosen: npt.NDArray[np.bool_]) -> Any:
    """Return the CSR array with only the chosen entries."""
    if chosen.all():
        return counts
    before = np.concatenate([[0], np.cumsum(chosen)])
    parts = counts.data[chosen], counts.indices[chosen], before[counts.indptr]
    return sparse.csr_array(parts, shape=counts.shape)


def jensen_shannon(a: FloatArray, b: FloatArray, weight_a: Any, weight_b: Any) -> FloatArray:
    """Return the weighted Jensen-Shannon divergence over the last axis, in nats.

    It is the mutual information between the outcome and which table it came from. Weights are
    numbers, or arrays that fit the tables.
    """
    total = np.asarray(weight_a + weight_b)
    share_a = np.divide(weight_a, total, out=np.full(total.shape, 0.5), where=total > 0)
    mixed = share_a * a + (1.0 - share_a) * b
    terms = share_a * _relative(a, mixed) + (1.0 - share_a) * _relative(b, mixed)
    return np.asarray(np.maximum(0.0, terms.sum(axis=-1)))


def _relative(p: FloatArray, mixed: FloatArray) -> FloatArray:
    """Return p log(p / mixed), 0 where p is 0."""
    ratio = np.divide(p, mixed, out=np.ones_like(p), where=p > 0)
    out: FloatArray = p * np.log(ratio)
    return out
