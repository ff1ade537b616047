"""Pair scorers of count families: tables instead of log Γ, nonzero columns only.

The log marginal of counts is a part that depends on sizes plus a sum over columns of
log Γ(α_d + c_d) − log Γ(α_d). A column's count never exceeds its total, so one table of as
many entries as there are counts in the data answers every union.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import gammaln

from distclust.families import _pair_numerics as numerics
from distclust.families.base import Family
from distclust.families.bernoulli import Bernoulli
from distclust.families.categorical import Categorical
from distclust.families.multinomial import Multinomial
from distclust.families.pair_scorer import ROUNDING, Floats, Indices, PairScorer
from distclust.families.poisson import Poisson

_TABLE_ENTRIES = 2**24


class CountPairs(PairScorer):
    """What the count families share; `first` is the column of the first count."""

    first = 1

    def __init__(self, family: Family, stats: Floats, alpha: Floats) -> None:
        super().__init__(family, stats)
        self._n_rows = stats[:, 0].astype(np.int64)
        self._counts = stats[:, self.first :].astype(np.int32)
        largest = self._counts.sum(axis=0, dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(largest + 1)])
        self._tables = np.empty(self._starts[-1])
        numerics.rising_tables(alpha, largest, self._starts, self._tables)
        rows, columns = np.nonzero(self._counts)
        self._leaf_start = np.searchsorted(rows, np.arange(len(stats) + 1)).astype(np.int64)
        self._leaf_columns = columns.astype(np.int32)
        self._is_leaf = np.ones(len(stats), np.bool_)
        largest_terms = np.maximum.reduceat(np.abs(self._tables), self._starts[:-1]).sum()
        # Sums of D + 4 terms on either route, each rounded at every step.
        scale = float(largest_terms) + self._largest_part()
        self._error = 8.0 * ROUNDING * (len(alpha) + 4) * scale

    def _sizes_part(self, k: int, others: Indices, out: Floats) -> None:
        """Add the part of log f that is not a sum over tables."""
        raise NotImplementedError

    def _largest_part(self) -> float:
        """Bound on the absolute values that :meth:`_sizes_part` adds up."""
        raise NotImplementedError

    def row(self, k: int, others: Indices) -> tuple[Floats, float]:
        """See :meth:`PairScorer.row`."""
        out = np.empty(len(others))
        numerics.count_row(
            k, others, self._counts, self._is_leaf, self._leaf_start, self._leaf_columns,
            self._starts, self._tables, out,
        )  # fmt: skip
        self._sizes_part(k, others, out)
        return out, self._error

    def combine(self, i: int, j: int, log_f: float) -> None:
        """See :meth:`PairScorer.combine`."""
        super().combine(i, j, log_f)
        self._counts[i] += self._counts[j]
        self._n_rows[i] += self._n_rows[j]
        self._is_leaf[i] = False


class MultinomialPairs(CountPairs):
    """One Dirichlet over all columns: the sizes are numbers of tokens."""

    def __init__(self, family: Multinomial, stats: Floats) -> None:
        self._total = float(np.sum(family.alpha))
        self._tokens = stats[:, 1:].sum(axis=1)
        super().__init__(family, stats, family.alpha)

    def _sizes_part(self, k: int, others: Indices, out: Floats) -> None:
        tokens = self._total + self._tokens[k] + self._tokens[others]
        out += math.lgamma(self._total) - gammaln(tokens)

    def _largest_part(self) -> float:
        return 2.0 * abs(math.lgamma(self._total + float(self._tokens.sum()) + 2.0))

    def combine(self, i: int, j: int, log_f: float) -> None:
        """See :meth:`PairScorer.combine`."""
        super().combine(i, j, log_f)
        self._tokens[i] += self._tokens[j]


class CategoricalPairs(CountPairs):
    """One Dirichlet a column, complete rows: every column has as many codes as rows."""

    def __init__(self, family: Categorical, stats: Floats) -> None:
        starts = np.cumsum([0, *family.n_levels[:-1]])
        self._totals = np.add.reduceat(family.alpha, starts)
        n_rows = int(stats[:, 0].sum())
        totals, multiplicity = np.unique(self._totals, return_counts=True)
        prior = math.fsum(map(math.lgamma, self._totals))
        self._by_rows = numerics.rows_part_table(
            n_rows + 1, prior, totals, multiplicity.astype(np.float64)
        )
        super().__init__(family, stats, family.alpha)

    def _sizes_part(self, k: int, others: Indices, out: Floats) -> None:
        out += self._by_rows[self._n_rows[k] + self._n_rows[others]]

    def _largest_part(self) -> float:
        n_rows = float(self._n_rows.sum())
        return 2.0 * len(self._totals) * abs(math.lgamma(n_rows + float(self._totals.max()) + 2.0))


class PoissonPairs(CountPairs):
    """Independent Gamma rates: columns also carry (a + t) log(b + n)."""

    first = 2

    def __init__(self, family: Poisson, stats: Floats) -> None:
        self._shape, self._rate = family.shape, family.rate
        super().__init__(family, stats, family.shape)

    def _sizes_part(self, k: int, others: Indices, out: Floats) -> None:
        numerics.add_poisson_rates(
            k, others, self._n_rows, self._counts, self._is_leaf, self._leaf_start,
            self._leaf_columns, self._shape, self._rate, out,
        )  # fmt: skip
        out -= self.stats[k, 1] + self.stats[others, 1]

    def _largest_part(self) -> float:
        totals = self.stats[:, 2:].sum(axis=0)
        n_rows = float(self._n_rows.sum())
        logs = np.maximum(np.abs(np.log(self._rate)), np.abs(np.log(self._rate + n_rows)))
        return float(((2 * self._shape + totals) * logs).sum() + self.stats[:, 1].sum())


class SparseBernoulliPairs(CountPairs):
    """Wide binary data: log f is that of zeros plus the columns with ones (spec 8.2)."""

    def __init__(self, family: Bernoulli, stats: Floats) -> None:
        self._beta = family.beta
        self._log_base = functools.cache(family.log_base)
        super().__init__(family, stats, family.alpha)

    def _sizes_part(self, k: int, others: Indices, out: Floats) -> None:
        sizes, place = np.unique(self._n_rows[k] + self._n_rows[others], return_inverse=True)
        out += np.array([self._log_base(float(n)) for n in sizes])[place]
        numerics.add_bernoulli_zeros(
            k, others, self._n_rows, self._counts, self._is_leaf, self._leaf_start,
            self._leaf_columns, self._beta, out,
        )  # fmt: skip

    def _largest_part(self) -> float:
        n_rows = float(self._n_rows.sum())
        # log Γ is largest at either end of its range.
        ends = [float(self._beta.min()), n_rows + float(self._beta.max()) + 2.0]
        largest = 1.0 + max(abs(math.lgamma(end)) for end in ends)
        return abs(self._log_base(n_rows)) + 2.0 * len(self._beta) * largest


def count_scorer(family: Family, stats: Floats) -> PairScorer | None:
    """Return a scorer with tables, or None for other families or tables that would not fit."""
    kinds: dict[type[Family], type[CountPairs]] = {
        Multinomial: MultinomialPairs,
        Categorical: CategoricalPairs,
        Poisson: PoissonPairs,
        Bernoulli: SparseBernoulliPairs,
    }
    kind = kinds.get(type(family))
    if kind is None or family.has_missing or _has_gaps(family, stats):
        return None
    counts = stats[:, kind.first :]
    if not _fits(counts):
        return None
    return kind(family, stats)  # type: ignore[call-arg]


def _has_gaps(family: Family, stats: Floats) -> bool:
    """Whether categorical rows have fewer codes than columns."""
    if not isinstance(family, Categorical):
        return False
    return bool(np.any(stats[:, 1:].sum(axis=1) != family.n_features * stats[:, 0]))


def _fits(counts: Floats) -> bool:
    return bool(counts.sum() + counts.shape[1] <= _TABLE_ENTRIES)
