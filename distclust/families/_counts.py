"""What the families of counts share: accumulating, summaries, information of tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.families._blocks import (
    Block,
    FloatArray,
    csr_parts,
    is_sparse,
    n_rows_of,
    numeric_rows,
)
from distclust.families._numerics import accumulate_counts, accumulate_counts_csr
from distclust.families.base import Family, check_labels


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
    if not accumulate_counts(stats, rows, groups, loads, first, observed_at, factorials):
        raise unexpected_missing(family)
    return stats


def count_summary(family: Family, block: Block) -> FloatArray:
    """Return the statistics of all rows of a block as one group, shape (p,)."""
    n_rows = n_rows_of(block)
    return family.accumulate(block, np.zeros(n_rows, dtype=np.int64), 1)[0]


def unexpected_missing(family: Family) -> InputError:
    """Return the error for NaN in rows whose statistics have no place for it."""
    return InputError(
        f"{type(family).__name__}.accumulate",
        "rows without missing values, like those the family was resolved on",
        "NaN",
        "Resolve the family on data that include them (has_missing=True).",
    )


def jensen_shannon(
    a: FloatArray, b: FloatArray, weight_a: float, weight_b: float
) -> FloatArray:
    """Return the weighted Jensen-Shannon divergence over the last axis, in nats.

    It is the mutual information between the outcome and which table it came from.
    """
    total = weight_a + weight_b
    share_a = weight_a / total if total > 0 else 0.5
    mixed = share_a * a + (1.0 - share_a) * b
    terms = share_a * _relative(a, mixed) + (1.0 - share_a) * _relative(b, mixed)
    return np.maximum(0.0, terms.sum(axis=-1))


def _relative(p: FloatArray, mixed: FloatArray) -> FloatArray:
    """Return p log(p / mixed), 0 where p is 0."""
    ratio = np.divide(p, mixed, out=np.ones_like(p), where=p > 0)
    out: FloatArray = p * np.log(ratio)
    return out
