"""Families against integrals, sums over outcomes and each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from distclust.families import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Gaussian,
    Multinomial,
    Poisson,
)
from tests.oracles import families as oracle

positive = st.floats(0.05, 20.0)


def log_marginal(family: Family, rows: np.ndarray) -> float:
    group = family.accumulate(rows, np.zeros(len(rows), dtype=int), 1)
    return float(family.log_marginal(group)[0])


# ---- integrals over the parameter -------------------------------------------------------


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (2.5, 0.9), (1.2, 7.0)])
def test_bernoulli__marginal_is_the_integral(alpha: float, beta: float) -> None:
    x = np.array([1.0, 0.0, 1.0, 1.0])
    family = Bernoulli(alpha, beta, n_features=1)
    assert log_marginal(family, x[:, None]) == pytest.approx(
        oracle.integral_bernoulli(x, alpha, beta), rel=1e-8
    )


@pytest.mark.parametrize(("shape", "rate"), [(1.0, 1.0), (2.5, 0.4)])
def test_poisson__marginal_is_the_integral(shape: float, rate: float) -> None:
    x = np.array([3.0, 0.0, 1.0, 11.0])
    family = Poisson(shape, rate, n_features=1)
    assert log_marginal(family, x[:, None]) == pytest.approx(
        oracle.integral_poisson(x, shape, rate), rel=1e-8
    )


def test_diagonal__marginal_is_the_integral() -> None:
    x = np.array([0.3, 1.9, -0.4])
    family = DiagonalGaussian(mean=0.5, strength=0.7, shape=1.5, rate=0.8, n_features=1)
    expected = oracle.integral_normal_gamma(x, 0.5, 0.7, 1.5, 0.8)
    assert log_marginal(family, x[:, None]) == pytest.approx(expected, rel=1e-7)


# ---- sums and integrals over outcomes ---------------------------------------------------


def test_bernoulli__probabilities_of_all_datasets_sum_to_one() -> None:
    family = Bernoulli(alpha=[0.3, 2.0], beta=[1.5, 0.7])
    bits = oracle.all_binary_rows(6).reshape(-1, 3, 2)
    total = sum(np.exp(log_marginal(family, rows)) for rows in bits)
    assert total == pytest.approx(1.0, rel=1e-12)


def test_multinomial__coefficients_make_rows_sum_to_one() -> None:
    family = Multinomial(alpha=[0.4, 1.0, 3.0])
    group = family.accumulate(np.array([[2.0, 0.0, 5.0]]), [0], 1)
    rows = np.array([[i, j, 4 - i - j] for i in range(5) for j in range(5 - i)], dtype=float)
    logs = family.log_predictive(rows, group)[:, 0] + family.log_coefficient(rows)
    assert np.exp(logs).sum() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("name", ["bernoulli", "categorical", "poisson", "diagonal"])
def test_missing__entry_equals_the_sum_over_its_values(name: str) -> None:
    """p(rows with a hole) is the sum (integral) of p(rows) over what the hole may hold."""
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 2, (5, 2)).astype(float)
    families: dict[str, Family] = {
        "bernoulli": Bernoulli(0.7, 1.9, n_features=2, has_missing=True),
        "categorical": Categorical(alpha=[[0.5, 2.0], [1.0, 0.2]], has_missing=True),
        "poisson": Poisson(1.3, 0.8, n_features=2, has_missing=True),
        "diagonal": DiagonalGaussian(0.2, 0.5, 1.5, 0.3, n_features=2, has_missing=True),
    }
    family = families[name]

    def likelihood(value: float) -> float:
        filled = rows.copy()
        filled[2, 1] = value
        return float(np.exp(log_marginal(family, filled)))

    if name == "diagonal":
        total = integrate.quad(likelihood, -np.inf, np.inf, epsabs=0, epsrel=1e-10)[0]
    else:
        total = sum(likelihood(value) for value in range(400 if name == "poisson" else 2))
    holed = rows.copy()
    holed[2, 1] = np.nan
    assert np.exp(log_marginal(family, holed)) == pytest.approx(total, rel=1e-8)


# ---- one family as another --------------------------------------------------------------


@given(
    m=st.floats(-5, 5), r=positive, a=positive, b=positive,
    x=st.lists(st.floats(-10, 10), min_size=1, max_size=8),
)  # fmt: skip
def test_diagonal__one_column_is_the_full_gaussian(
    m: float, r: float, a: float, b: float, x: list[float]
) -> None:
    rows = np.array(x)[:, None]
    diagonal = DiagonalGaussian(m, r, a, b, n_features=1)
    full = Gaussian(mean=m, strength=r, degrees=2 * a, scatter=[[2 * b]])
    expected = log_marginal(full, rows)
    assert log_marginal(diagonal, rows) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(
    alpha=positive, beta=positive,
    x=st.lists(st.sampled_from([0.0, 1.0, np.nan]), min_size=1, max_size=12),
)  # fmt: skip
def test_categorical__two_levels_are_bernoulli(alpha: float, beta: float, x: list[float]) -> None:
    rows = np.array(x)[:, None]
    binary = Bernoulli(alpha, beta, n_features=1, has_missing=True)
    two_levels = Categorical(alpha=[[beta, alpha]])
    expected = log_marginal(two_levels, rows)
    assert log_marginal(binary, rows) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_categorical__default_prior_of_two_levels_is_bernoullis() -> None:
    rows = np.array([[0.0], [1.0], [np.nan], [1.0]])
    binary = oracle.resolved(Bernoulli(), rows)
    two_levels = oracle.resolved(Categorical(n_levels=2), rows)
    np.testing.assert_allclose(two_levels.alpha, [binary.beta[0], binary.alpha[0]], rtol=1e-14)


@given(
    alpha=st.lists(positive, min_size=3, max_size=3),
    codes=st.lists(st.integers(0, 2), min_size=1, max_size=12),
)
def test_multinomial__one_word_rows_are_categorical(alpha: list[float], codes: list[int]) -> None:
    words = np.eye(3)[codes]
    levels = np.array(codes, dtype=float)[:, None]
    expected = log_marginal(Categorical(alpha=[alpha]), levels)
    assert log_marginal(Multinomial(alpha), words) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_gaussian__ratios_survive_affine_maps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, A, b = rng.normal(size=(7, 3)), rng.normal(size=(3, 3)), rng.normal(size=3)
    S = np.cov(rng.normal(size=(3, 9)))
    family = Gaussian(mean=[1.0, 0.0, -1.0], strength=0.3, degrees=4.5, scatter=S)
    moved = Gaussian(A @ family.mean + b, 0.3, 4.5, A @ S @ A.T)

    def ratio(f: Family, x: np.ndarray) -> float:
        return log_marginal(f, x) - log_marginal(f, x[:3]) - log_marginal(f, x[3:])

    assert ratio(moved, rows @ A.T + b) == pytest.approx(ratio(family, rows), rel=1e-9)


# ---- extremes ---------------------------------------------------------------------------


def test_diagonal__long_products_neither_overflow_nor_lose_digits() -> None:
    """The logarithm of products is taken in time, also for single huge factors."""
    n_features = 300
    rows = np.full((2, n_features), 1e3)
    rows[:, 7] = 1e120
    family = DiagonalGaussian(0.0, 1.0, 1.5, 1e-6, n_features=n_features)
    expected = oracle.chain_diagonal(
        rows[:1], family.mean, family.strength, family.shape, family.rate
    )
    assert log_marginal(family, rows[:1]) == pytest.approx(expected, rel=1e-10)
    nothing = np.zeros((1, family.n_statistics))
    assert family.log_predictive(rows[:1], nothing)[0, 0] == pytest.approx(expected, rel=1e-10)


def test_gaussian__far_from_zero_keeps_its_digits() -> None:
    """Rows are shifted before they are squared."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 2))
    near, far = oracle.resolved(Gaussian(), rows), oracle.resolved(Gaussian(), rows + 1e7)
    expected = log_marginal(near, rows)
    assert log_marginal(far, rows + 1e7) == pytest.approx(expected, rel=1e-6)


def test_gaussian__hopeless_scatter_is_refused_with_a_sentence() -> None:
    family = Gaussian(mean=[0.0, 0.0], scatter=1e-30 * np.eye(2))
    group = np.array([[2.0, 0.0, 0.0, 1.0, 5.0, 1.0]])  # moments of no data at all
    with pytest.raises(ValueError, match="positive definite"):
        family.log_marginal(group)


def test_gaussian__jitter_rescues_rounding() -> None:
    """A last pivot of -1e-13, as rounding leaves it, is within the jitter; -1e-9 is not."""
    family = Gaussian(mean=[0.0, 0.0], scatter=1e-30 * np.eye(2))
    group = np.array([[1.0, 0.0, 0.0, 1.0, 1.0, 1.0 - 1e-13]])
    assert np.isfinite(family.log_marginal(group)).all()
    group[0, -1] = 1.0 - 1e-9
    with pytest.raises(ValueError, match="even with jitter"):
        family.log_marginal(group)


@pytest.mark.parametrize("x", [0.0, 1.0, 2.0, 8.0, 9.0, 400.0])
def test_log_rising__equals_scipy(x: float) -> None:
    from scipy.special import poch

    from distclust.families._numerics import log_rising

    for a in (1e-3, 0.5, 7.0):
        expected = np.log(poch(a, x)) if x < 100 else stats.nbinom.logpmf(x, a, 0.5) + _rest(a, x)
        assert log_rising(a, x) == pytest.approx(expected, rel=1e-10, abs=1e-12)


def _rest(a: float, x: float) -> float:
    from scipy.special import gammaln

    return float(gammaln(x + 1) + (a + x) * np.log(2.0))


# ---- information ------------------------------------------------------------------------


def test_feature_information__bernoulli_and_categorical_from_tables() -> None:
    rows = np.array([[1.0], [1.0], [1.0], [0.0], [0.0]])
    family = Bernoulli(1, 1, n_features=1)
    a, b = family.accumulate(rows, [0, 0, 0, 1, 1], 2)
    expected = oracle.information_of_tables([4 / 5, 1 / 5], [1 / 4, 3 / 4], 3, 2)
    assert family.feature_information(a, b)[0] == pytest.approx(expected, rel=1e-10)
    same = Categorical(alpha=1.0, n_levels=[2])
    a, b = same.accumulate(rows, [0, 0, 0, 1, 1], 2)
    assert same.feature_information(a, b)[0] == pytest.approx(expected, rel=1e-10)


def test_feature_information__poisson_from_long_tables() -> None:
    family = Poisson(1, 1, n_features=1)
    a, b = family.accumulate(np.array([[0.0], [1.0], [9.0]]), [0, 0, 1], 2)
    x = np.arange(3000)
    tables = [stats.nbinom.pmf(x, 1 + t, (1 + n) / (2 + n)) for t, n in ((1, 2), (9, 1))]
    expected = oracle.information_of_tables(*tables, 2, 1)
    assert family.feature_information(a, b)[0] == pytest.approx(expected, rel=1e-9)
    a[2] *= 1e6
    b[2] *= 1e6  # outcomes at even steps
    assert 0.0 < family.feature_information(a, b)[0] < np.log(2)


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_feature_information__gaussians_by_quadrature(spread: float) -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(0, 1, 12), rng.normal(2, spread, 6)])[:, None]
    labels = np.repeat([0, 1], [12, 6])
    family = DiagonalGaussian(0.0, 0.05, 1.5, 1e-4, n_features=1)
    groups = family.accumulate(rows, labels, 2)
    actual = family.feature_information(*groups)[0]
    predictives = [
        lambda x, k=k: np.exp(family.log_predictive(np.array([[x]]), groups[k : k + 1])[0, 0])
        for k in range(2)
    ]

    def integrand(x: float) -> float:
        p = [2 / 3 * predictives[0](x), 1 / 3 * predictives[1](x)]
        return float(p[0] * np.log(p[0] / (sum(p) * 2 / 3)) + p[1] * np.log(p[1] / (sum(p) / 3)))

    cuts = [-1e3, -10, 0, *(2 + 40 * spread * np.array([-1, -0.1, -0.01, 0, 0.01, 0.1, 1])), 1e3]
    expected = sum(
        integrate.quad(integrand, low, high, limit=100)[0]
        for low, high in zip(np.sort(cuts), np.sort(cuts)[1:], strict=False)
    )
    assert actual == pytest.approx(expected, rel=1e-4)
    full = Gaussian(0.0, 0.05, 3.0, [[2e-4]])
    assert full.feature_information(*full.accumulate(rows, labels, 2))[0] == pytest.approx(
        actual, rel=1e-9
    )


def test_feature_information__multinomial_is_about_one_token() -> None:
    family = Multinomial(alpha=[1.0, 1.0, 1.0])
    a, b = family.accumulate(np.array([[3.0, 0.0, 0.0], [0.0, 1.0, 1.0]]), [0, 1], 2)
    expected = oracle.information_of_tables([4 / 6, 2 / 6], [1 / 5, 4 / 5], 1, 1)
    assert family.feature_information(a, b)[0] == pytest.approx(expected, rel=1e-10)
