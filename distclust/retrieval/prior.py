"""Bayesian Sets on binary features: the prior, and what a query weighs.

Thesis of Heller, chapter 4. With Beta(alpha_j, beta_j) priors the score of a row ``x`` for a
query of ``N`` rows, ``s_j`` of which have feature ``j``, is the log Bayes factor

    log p(x | query) / p(x) = c + sum over the ones j of x of q_j
    q_j = log(1 + s_j / alpha_j) - log(1 + (N - s_j) / beta_j)                    (4.14)
    c   = sum_j log(alpha_j + beta_j) - log(alpha_j + beta_j + N)
                + log(beta_j + N - s_j) - log(beta_j)                             (4.13)

A feature that no row of the query has weighs ``-log(1 + N / beta_j)``, which depends on the
size of the query only. So the sum is split into a base, which is the same for all queries of
that size, and a gain over the features of the query:

    score(x) = (c + sum over ones of base_j) + sum over ones in the query of gain_j
    gain_j   = log(1 + s_j / alpha_j) + log((beta_j + N) / (beta_j + N - s_j)) > 0
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Columns = npt.NDArray[np.int32]

_SIZES_KEPT = 16


@dataclass(frozen=True, eq=False)
class Base:
    """What all queries of one size share.

    Attributes
    ----------
    weights
        Weight of a feature that the query does not have, at most 0, shape (J,).
    constant
        Score of a row of zeros for a query of rows of zeros.
    """

    weights: Floats
    constant: float


@dataclass(frozen=True, eq=False)
class Query:
    """A query, weighed; small enough to be sent anywhere.

    Attributes
    ----------
    n_items
        Its size N.
    columns
        Features that some of its rows have and that count, ascending.
    gains
        What a row gains for each of them, above 0.
    constant
        Score of a row of zeros.
    """

    n_items: int
    columns: Columns
    gains: Floats
    constant: float


@dataclass(frozen=True, eq=False)
class BinaryPrior:
    """Beta priors at the column means: ``alpha = kappa m``, ``beta = kappa (1 - m)``.

    Attributes
    ----------
    n_rows, ones
        Rows of the corpus, and how many of them have each feature, shape (J,).
    kappa
        Strength: the prior counts as so many rows.
    smoothing
        ``m = (ones + smoothing) / (n_rows + 2 smoothing)``. With 0, as published, features
        that all rows have or none are left out: they contribute nothing for rows of the
        corpus.
    """

    n_rows: int
    ones: npt.NDArray[np.int64]
    kappa: float = 2.0
    smoothing: float = 0.0
    _bases: dict[int, Base] = field(default_factory=dict, repr=False)

    @functools.cached_property
    def is_used(self) -> npt.NDArray[np.bool_]:
        """Which features count, shape (J,)."""
        if self.smoothing > 0.0:
            return np.ones(len(self.ones), bool)
        return (self.ones > 0) & (self.ones < self.n_rows)

    @functools.cached_property
    def means(self) -> Floats:
        """Prior probability of every feature, shape (J,)."""
        smoothed = (self.ones + self.smoothing) / (self.n_rows + 2.0 * self.smoothing)
        return np.asarray(smoothed, np.float64)

    @functools.cached_property
    def alpha(self) -> Floats:
        """Pseudo-counts of ones, shape (J,)."""
        return np.asarray(self.kappa * self.means)

    @functools.cached_property
    def beta(self) -> Floats:
        """Pseudo-counts of zeros, shape (J,)."""
        zeros = (self.n_rows - self.ones) + self.smoothing
        return np.asarray(self.kappa * zeros / (self.n_rows + 2.0 * self.smoothing))

    def base(self, n_items: int) -> Base:
        """Return what all queries of that size share; the last few are kept."""
        found = self._bases.get(n_items)
        if found is None:
            found = self._make_base(n_items)
            make_room(self._bases, _SIZES_KEPT)
            self._bases[n_items] = found
        return found

    def _make_base(self, n_items: int) -> Base:
        used = self.is_used
        of_used = -np.log1p(n_items / self.beta[used])
        weights = np.zeros(len(self.ones))
        weights[used] = of_used
        shrink = -np.log1p(n_items / self.kappa)  # log((alpha + beta) / (alpha + beta + N))
        return Base(weights, float(len(of_used) * shrink - of_used.sum()))

    def query(self, n_items: int, columns: npt.ArrayLike, sums: npt.ArrayLike) -> Query:
        """Weigh a query of `n_items` rows, `sums` of which have each of the `columns`."""
        found, counts = np.asarray(columns, np.int32), np.asarray(sums, np.float64)
        counted = self.is_used[found] & (counts > 0)
        found, counts = found[counted], counts[counted]
        order = np.argsort(found)
        found, counts = found[order], counts[order]
        alpha, beta = self.alpha[found], self.beta[found]
        # log((beta + N - s) / (beta + N)): what the constant loses, the gains have.
        lost = _log_share(beta + (n_items - counts), counts)
        gains = np.log1p(counts / alpha) - lost
        constant = self.base(n_items).constant + float(lost.sum())
        return Query(int(n_items), found, gains, constant)

    def weights(self, query: Query) -> Floats:
        """Return the weight q_j of every feature, shape (J,)."""
        weights = self.base(query.n_items).weights.copy()
        weights[query.columns] += query.gains
        return weights


def _log_share(part: Floats, rest: Floats) -> Floats:
    """Return ``log(part / (part + rest))`` with all its digits, be it near 0 or not."""
    whole = part + rest
    shares = np.log(part / whole)
    is_large = rest <= part
    shares[is_large] = np.log1p(-rest[is_large] / whole[is_large])
    return shares


def make_room(kept: dict[Any, Any], most: int) -> None:
    """Remove the oldest so that with one more there are at most so many; for many threads."""
    oldest = list(kept)
    for name in oldest[: max(len(oldest) + 1 - most, 0)]:
        kept.pop(name, None)
