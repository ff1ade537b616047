"""Slow answers for families: chain rules, integrals, sums over outcomes.

None shares a statistic or a marginal formula with the package: the chain rules go row by
row and entry by entry through predictive probabilities (by hand, or scipy's densities),
the integrals put likelihood times prior under scipy's quadrature.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import integrate, stats

from distclust.families import Family


@dataclass(frozen=True)
class PlainColumn:
    name: str
    kind: str = "number"
    levels: tuple[str, ...] = ()
    number: str = "real"


@dataclass(frozen=True)
class PlainProfile:
    n_rows: int
    n_missing: np.ndarray
    n_nonzero: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    all_integer: np.ndarray
    any_infinite: np.ndarray


def plain_profile(X: Any) -> PlainProfile:
    """Facts about columns by Python loops."""
    rows = np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=float)
    columns = [[x for x in column if not math.isnan(x)] for column in rows.T]
    return PlainProfile(
        n_rows=len(rows),
        n_missing=np.array([len(rows) - len(column) for column in columns]),
        n_nonzero=np.array([sum(x != 0 for x in column) for column in columns]),
        minimum=np.array([min(column, default=math.inf) for column in columns]),
        maximum=np.array([max(column, default=-math.inf) for column in columns]),
        all_integer=np.array(
            [all(math.isfinite(x) and x == int(x) for x in column) for column in columns]
        ),
        any_infinite=np.array([any(math.isinf(x) for x in column) for column in columns]),
    )


def plain_columns(n_columns: int, **facts: Any) -> tuple[PlainColumn, ...]:
    return tuple(PlainColumn(f"x{d}", **facts) for d in range(n_columns))


def resolved(template: Family, X: Any, columns: Any = None, origin: Any = None) -> Family:
    """Check, prepare, summarise in two blocks and resolve, as a driver does."""
    columns = columns or plain_columns(X.shape[1])
    profile = plain_profile(X)
    template.check(profile, columns, "X")
    prepared = template.prepare(profile, columns)
    dense = np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=float)
    origin = np.nan_to_num(dense[0]) if origin is None else origin
    half = X.shape[0] // 2
    summary = prepared.summarise(X[:half], origin) + prepared.summarise(X[half:], origin)
    return prepared.resolve(summary, origin, profile, columns)


# ---- chain rules ------------------------------------------------------------------------


def chain_bernoulli(rows: np.ndarray, alpha: Any, beta: Any) -> float:
    return chain_categorical(rows, [[b, a] for a, b in zip(alpha, beta, strict=True)])


def chain_categorical(rows: np.ndarray, alphas: list[Any]) -> float:
    """Urns: draw a ball, put it back with another of its colour."""
    urns = [[float(a) for a in alpha] for alpha in alphas]
    total = 0.0
    for row in rows:
        for urn, x in zip(urns, row, strict=True):
            if not math.isnan(x):
                total += math.log(urn[int(x)] / sum(urn))
                urn[int(x)] += 1.0
    return total


def chain_multinomial(rows: np.ndarray, alpha: Any) -> float:
    """One urn; the words of a row are drawn one after another."""
    words = [[k] for row in rows for k, x in enumerate(row) for _ in range(int(x))]
    return chain_categorical(np.array(words, dtype=float), [alpha])


def chain_poisson(rows: np.ndarray, shape: Any, rate: Any) -> float:
    total = 0.0
    for d, column in enumerate(rows.T):
        a, b = float(shape[d]), float(rate[d])
        for x in column[~np.isnan(column)]:
            total += stats.nbinom.logpmf(x, a, b / (b + 1.0))
            a, b = a + x, b + 1.0
    return total


def chain_diagonal(rows: np.ndarray, mean: Any, strength: Any, shape: Any, rate: Any) -> float:
    """One observation at a time: the textbook update of (m, r, a, b)."""
    total = 0.0
    for d, column in enumerate(rows.T):
        m, r, a, b = (float(p[d]) for p in (mean, strength, shape, rate))
        for x in column[~np.isnan(column)]:
            total += stats.t.logpdf(x, 2 * a, m, math.sqrt(b * (r + 1) / (a * r)))
            b += 0.5 * r * (x - m) ** 2 / (r + 1)
            m = (r * m + x) / (r + 1)
            r, a = r + 1, a + 0.5
    return total


def chain_gaussian(rows: np.ndarray, mean: Any, r: float, v: float, S: np.ndarray) -> float:
    total, m, S = 0.0, np.array(mean, dtype=float), np.array(S, dtype=float)
    size = len(m)
    for x in rows:
        freedom = v - size + 1
        spread = S * (r + 1) / (r * freedom)
        total += stats.multivariate_t.logpdf(x, m, spread, df=freedom)
        S = S + r / (r + 1) * np.outer(x - m, x - m)
        m = (r * m + x) / (r + 1)
        r, v = r + 1, v + 1
    return total


# ---- integrals in one dimension ---------------------------------------------------------


def integral_bernoulli(x: np.ndarray, alpha: float, beta: float) -> float:
    def joint(p: float) -> float:
        return stats.beta.pdf(p, alpha, beta) * float(np.prod(np.where(x == 1, p, 1 - p)))

    return math.log(integrate.quad(joint, 0, 1, epsabs=0, epsrel=1e-11)[0])


def integral_poisson(x: np.ndarray, shape: float, rate: float) -> float:
    def joint(rho: float) -> float:
        prior = stats.gamma.pdf(rho, shape, scale=1 / rate)
        return float(prior * np.prod(stats.poisson.pmf(x, rho)))

    return math.log(integrate.quad(joint, 0, 60, epsabs=0, epsrel=1e-11, limit=200)[0])


def integral_normal_gamma(x: np.ndarray, m: float, r: float, a: float, b: float) -> float:
    """Over the mean and the logarithm of the precision, on a fine trapezoidal grid."""
    log_tau = np.linspace(-14, 6, 801)
    tau = np.exp(log_tau)
    inside = np.empty(len(tau))
    for i, t in enumerate(tau):
        # The integrand is a Gaussian in the mean: a grid around its centre is exact enough.
        centre, width = (r * m + x.sum()) / (r + len(x)), 1 / math.sqrt((r + len(x)) * t)
        mu = centre + width * np.linspace(-9, 9, 121)
        log_joint = stats.norm.logpdf(mu, m, 1 / math.sqrt(r * t))
        log_joint += stats.norm.logpdf(x[:, None], mu, 1 / math.sqrt(t)).sum(axis=0)
        inside[i] = np.trapezoid(np.exp(log_joint), mu)
    prior = stats.gamma.pdf(tau, a, scale=1 / b)
    return math.log(np.trapezoid(inside * prior * tau, log_tau))


# ---- information ------------------------------------------------------------------------


def information_of_tables(a: Any, b: Any, n_a: float, n_b: float) -> float:
    """Mutual information from the joint table: H(outcome) + H(group) - H(both)."""
    joint = np.array([np.multiply(a, n_a), np.multiply(b, n_b)]) / (n_a + n_b)

    def entropy(p: np.ndarray) -> float:
        return float(stats.entropy(p.ravel()))

    return entropy(joint.sum(axis=0)) + entropy(joint.sum(axis=1)) - entropy(joint)


def all_binary_rows(n_columns: int) -> np.ndarray:
    return np.array(list(itertools.product((0.0, 1.0), repeat=n_columns)))


def differences(family: Family, groups: np.ndarray, step: float = 2e-4) -> np.ndarray:
    """Gradient of the log marginal in the unconstrained parameters, five-point stencil."""
    columns = []
    for i in range(len(family.parameters)):
        values = []
        for k in (-2, -1, 1, 2):
            vector = family.parameters
            vector[i] += k * step
            values.append(family.with_parameters(vector).log_marginal(groups))
        columns.append((values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step))
    return np.stack(columns, axis=1)
