"""Bayesian Sets by the book: marginals with Gamma functions, loops over rows, a full sort.

Rows are lists of zeros and ones. Nothing here shares a formula with the package but the
definition of the score, ``log p(x, Q) - log p(x) - log p(Q)``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

Row = Sequence[int]


def priors(rows: Sequence[Row], kappa: float, smoothing: float) -> list[tuple[float, float]]:
    """Return (alpha, beta) of every column; columns that do not count have None instead."""
    found = []
    for column in zip(*rows, strict=True):
        ones = sum(map(int, column))
        zeros = len(column) - ones
        total = len(column) + 2.0 * smoothing
        alpha, beta = kappa * (ones + smoothing) / total, kappa * (zeros + smoothing) / total
        found.append((alpha, beta) if alpha > 0 and beta > 0 else None)
    return found


def log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def log_marginal(rows: Iterable[Row], prior: list[tuple[float, float] | None]) -> float:
    """Return log p(rows), every column with its own Beta prior."""
    listed = list(rows)
    total = []
    for j, pair in enumerate(prior):
        if pair is not None:
            alpha, beta = pair
            ones = sum(int(row[j]) for row in listed)
            total.append(log_beta(alpha + ones, beta + len(listed) - ones))
            total.append(-log_beta(alpha, beta))
    return math.fsum(total)


def three_marginals(
    row: Row, query: Sequence[Row], prior: list[tuple[float, float] | None]
) -> float:
    """Return log p(x, Q) - log p(x) - log p(Q)."""
    together = log_marginal([row, *query], prior)
    return together - log_marginal([row], prior) - log_marginal(query, prior)


def gamma_form(row: Row, query: Sequence[Row], prior: list[tuple[float, float] | None]) -> float:
    """Return the score from predictive probabilities of single entries (thesis 4.10)."""
    total = []
    n = len(query)
    for j, pair in enumerate(prior):
        if pair is None:
            continue
        alpha, beta = pair
        s = sum(int(other[j]) for other in query)
        total.append(math.log(alpha + beta) - math.log(alpha + beta + n))
        if row[j]:
            total.append(math.log(alpha + s) - math.log(alpha))
        else:
            total.append(math.log(beta + (n - s)) - math.log(beta))
    return math.fsum(total)


def canonical_score(
    row: Row, base: Sequence[float], gains: dict[int, float], constant: float
) -> float:
    """Return ``(constant + base) + gain``, columns ascending, as both engines promise."""
    all_ones = shared = 0.0
    for j, value in enumerate(row):
        if value:
            all_ones += base[j]
            if j in gains:
                shared += gains[j]
    return (constant + all_ones) + shared


def ranked(scores: Sequence[float], k: int) -> list[tuple[int, float]]:
    """Return the first `k` rows by falling score, equal ones by number: sort everything."""
    pairs = [(row, float(score)) for row, score in enumerate(scores)]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:k]


def all_rows(n_features: int) -> list[tuple[int, ...]]:
    """Return all 2^J rows."""
    return list(itertools.product((0, 1), repeat=n_features))
