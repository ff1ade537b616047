"""Parameters of groups: posterior moments by known formulas, densities by scipy's.

Draws are compared in standard errors, with fixed seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import sparse, stats

from distclust.errors import InputError
from distclust.families import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Gaussian,
    Product,
)
from distclust.mixtures import parameters as subject
from distclust.mixtures.parameters import (
    BernoulliParameters,
    DiagonalParameters,
    GaussianParameters,
    PoissonParameters,
    ProductParameters,
    TableParameters,
    draw_parameters,
    lay_out,
    log_beta_draws,
    log_density,
    log_dirichlet_draw,
    log_gamma_draws,
    tile_rows,
)
from tests.families.conftest import CASES, make

N_DRAWS = 20_000
SEED = 1  # of examples that draws are made for
CHOICES = ["bernoulli", "categorical", "multinomial", "poisson", "diagonal", "gaussian"]


def draws_of(family: Family, rows: np.ndarray, seed: int = 3, n: int = N_DRAWS) -> Any:
    """Many draws of the parameters of one group."""
    group = family.accumulate(rows, np.zeros(len(rows)), 1)
    return draw_parameters(family, np.repeat(group, n, axis=0), np.random.default_rng(seed))


def assert_moments(draws: np.ndarray, mean: Any, variance: Any) -> None:
    """Means and variances of draws (n, ...) within 4.5 standard errors."""
    mean, variance = np.asarray(mean), np.asarray(variance)
    found = draws.mean(axis=0)
    assert (np.abs(found - mean) < 4.5 * np.sqrt(variance / len(draws))).all()
    squares = (draws - mean) ** 2
    error = squares.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(squares.mean(axis=0) - variance) < 4.5 * error).all()


# ---- posterior moments -------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("case", ["diagonal", "diagonal-missing"])
@pytest.mark.parametrize("n_rows", [0, 6])
def test_diagonal_draws(case: str, n_rows: int) -> None:
    example = make(case, SEED)
    family: Any = example.family
    rows = example.rows[:n_rows]
    drawn = draws_of(family, rows)
    for d in range(family.n_features):
        x = rows[:, d][~np.isnan(rows[:, d])]
        m, r, a, b = (v[d] for v in (family.mean, family.strength, family.shape, family.rate))
        centre = x.mean() if len(x) else 0.0
        total, shape = r + len(x), a + len(x) / 2
        rate = b + 0.5 * np.sum((x - centre) ** 2) + r * len(x) * (centre - m) ** 2 / (2 * total)
        assert_moments(np.exp(drawn.log_precisions[:, d]), shape / rate, shape / rate**2)
        if shape > 2.5:  # the variance of squares must exist
            mean = (r * m + np.sum(x)) / total - family.shift[d]
            assert_moments(drawn.means[:, d], mean, rate / (total * (shape - 1)))


@pytest.mark.statistical
@pytest.mark.parametrize("n_rows", [0, 7])
def test_gaussian_draws(n_rows: int) -> None:
    example = make("gaussian", SEED)
    family: Any = example.family
    rows = example.rows[:n_rows]
    drawn = draws_of(family, rows)
    size, n = family.n_features, len(rows)
    total, degrees = family.strength + n, family.degrees + n
    centre = rows.mean(axis=0) if n else np.zeros(size)
    gap = centre - family.mean
    scatter = family.scatter + (rows - centre).T @ (rows - centre)
    scatter = scatter + family.strength * n / total * np.outer(gap, gap)
    inverse = np.linalg.inv(scatter)
    precisions = drawn.factors @ drawn.factors.transpose(0, 2, 1)
    spread = np.outer(np.diag(inverse), np.diag(inverse))
    assert_moments(precisions, degrees * inverse, degrees * (inverse**2 + spread))
    log_dets = np.linalg.slogdet(precisions)[1]
    np.testing.assert_allclose(drawn.log_roots, 0.5 * log_dets, atol=1e-8)
    if degrees > size + 4:
        mean = (family.strength * family.mean + n * centre) / total - family.shift
        assert_moments(drawn.means, mean, np.diag(scatter) / (total * (degrees - size - 1)))


@pytest.mark.statistical
@pytest.mark.parametrize("case", ["bernoulli", "bernoulli-missing"])
@pytest.mark.parametrize("n_rows", [0, 6])
def test_bernoulli_draws(case: str, n_rows: int) -> None:
    example = make(case, SEED)
    family: Any = example.family
    rows = example.rows[:n_rows]
    a, b = family.alpha + np.nansum(rows, axis=0), family.beta + np.nansum(1 - rows, axis=0)
    drawn = draws_of(family, rows)
    assert_moments(np.exp(drawn.log_ones), a / (a + b), stats.beta.var(a, b))
    np.testing.assert_allclose(np.exp(drawn.log_ones) + np.exp(drawn.log_zeros), 1.0)


@pytest.mark.statistical
@pytest.mark.parametrize("case", ["poisson", "poisson-missing"])
@pytest.mark.parametrize("n_rows", [0, 6])
def test_poisson_draws(case: str, n_rows: int) -> None:
    example = make(case, SEED)
    family: Any = example.family
    rows = example.rows[:n_rows]
    shape = family.shape + np.nansum(rows, axis=0)
    rate = family.rate + (~np.isnan(rows)).sum(axis=0)
    drawn = draws_of(family, rows)
    assert_moments(np.exp(drawn.log_rates), shape / rate, shape / rate**2)


@pytest.mark.statistical
@pytest.mark.parametrize("n_rows", [0, 6])
def test_multinomial_draws(n_rows: int) -> None:
    example = make("multinomial", SEED)
    family: Any = example.family
    alpha = family.alpha + example.rows[:n_rows].sum(axis=0)
    drawn = draws_of(family, example.rows[:n_rows])
    assert_moments(np.exp(drawn.logs), alpha / alpha.sum(), stats.dirichlet.var(alpha))


@pytest.mark.statistical
@pytest.mark.parametrize("case", ["categorical", "categorical-missing"])
@pytest.mark.parametrize("n_rows", [0, 6])
def test_categorical_draws(case: str, n_rows: int) -> None:
    example = make(case, SEED)
    family: Any = example.family
    rows = example.rows[:n_rows]
    drawn = draws_of(family, rows)
    start = 0
    for d, levels in enumerate(family.n_levels):
        counts = [np.count_nonzero(rows[:, d] == level) for level in range(levels)]
        alpha = family.alpha[start : start + levels] + counts
        part = np.exp(drawn.logs[:, start : start + levels])
        assert_moments(part, alpha / alpha.sum(), stats.dirichlet.var(alpha))
        np.testing.assert_allclose(part.sum(axis=1), 1.0)
        start += levels


def gentle(case: str) -> tuple[Family, np.ndarray]:
    """Families whose densities under the prior differ little, so that few draws suffice."""
    if case not in ("diagonal", "diagonal-missing", "gaussian", "product", "product-missing"):
        example = make(case, SEED)
        return example.family, example.rows
    rng = np.random.default_rng(SEED)
    missing = case.endswith("missing")
    rows = rng.normal(size=(8, 4))
    rows[:, 3] = rng.random(8) < 0.4
    rows[:6:2, 0], rows[5, 3] = (np.nan, np.nan) if missing else (0.5, 1.0)
    diagonal = DiagonalGaussian(0.2, 2.0, 5.0, 4.0, n_features=2, has_missing=missing)
    gaussian = Gaussian([0.1, -0.2], 2.0, 9.0, [[6.0, 1.0], [1.0, 5.0]])
    binary = Bernoulli(1.0, 2.0, n_features=1, has_missing=missing)
    if case == "gaussian":
        return gaussian, rows[:, 1:3]
    if case.startswith("diagonal"):
        return diagonal, rows[:, :2]
    # Columns in turns: 0 and 2 diagonal, 1 and 4 full, 3 binary.
    rows = np.insert(rows, 4, rng.normal(size=8), axis=1)
    parts = [(diagonal, [0, 2]), (binary, [3]), (gaussian, [1, 4])]
    return Product(parts, n_features=5), rows


@pytest.mark.statistical
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("n_rows", [0, 5])
def test_mean_density_is_the_predictive(case: str, n_rows: int) -> None:
    """The mean over draws of the density of a row is its marginal given the group."""
    family, rows = gentle(case)
    group = family.accumulate(rows[:n_rows], np.zeros(n_rows), 1)
    drawn = draws_of(family, rows[:n_rows])
    others = rows[n_rows : n_rows + 3]
    wanted = family.log_predictive(others, group)[:, 0]
    ratios = np.exp(log_density(family, others, drawn) - wanted[:, None])
    errors = ratios.std(axis=1) / np.sqrt(ratios.shape[1])
    assert (errors < 0.1).all()
    assert (np.abs(ratios.mean(axis=1) - 1.0) < 4 * errors).all()


# ---- densities ---------------------------------------------------------------------------


@dataclass
class Plain:
    """Log densities of rows, entry by entry with scipy."""

    family: Any
    rows: np.ndarray

    def of(self, drawn: Any) -> np.ndarray:
        if isinstance(drawn, ProductParameters):
            pairs = zip(self.family.parts, drawn.parts, strict=True)
            shares = [Plain(part, self.rows[:, list(d)]).of(own) for (part, d), own in pairs]
            return np.asarray(np.sum(shares, axis=0))
        out = np.empty((len(self.rows), drawn.n_groups))
        for i, row in enumerate(self.rows):
            for k in range(drawn.n_groups):
                out[i, k] = self.one(row, drawn, k)
        return out

    def one(self, row: np.ndarray, drawn: Any, k: int) -> float:
        there = ~np.isnan(row)
        if isinstance(drawn, DiagonalParameters):
            means = drawn.means[k] + self.family.shift
            logs = stats.norm.logpdf(row, means, np.exp(-0.5 * drawn.log_precisions[k]))
        elif isinstance(drawn, GaussianParameters):
            covariance = np.linalg.inv(drawn.factors[k] @ drawn.factors[k].T)
            mean = drawn.means[k] + self.family.shift
            return float(stats.multivariate_normal.logpdf(row, mean, covariance))
        elif isinstance(drawn, BernoulliParameters):
            logs = np.where(row == 1, drawn.log_ones[k], drawn.log_zeros[k])
        elif isinstance(drawn, PoissonParameters):
            logs = stats.poisson.logpmf(row, np.exp(drawn.log_rates[k]))
        elif isinstance(self.family, Categorical):
            assert isinstance(drawn, TableParameters)
            tables = np.split(drawn.logs[k], np.cumsum(self.family.n_levels)[:-1])
            logs = [table[int(x)] for table, x in zip(tables, row, strict=True) if x == x]
            return float(np.sum(logs))
        else:
            logs = row * drawn.logs[k]
        return float(np.sum(logs[there]))


@pytest.mark.parametrize("case", CASES)
def test_densities_are_scipys(case: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_PRODUCT_CELLS", 2 * 3 * 1024)  # two groups at a time
    example = make(case, seed)
    family, rows = example.family, example.rows
    group = family.accumulate(rows, np.arange(len(rows)) % 5, 5)
    drawn = draw_parameters(family, group, np.random.default_rng(1))
    found = log_density(family, rows, drawn)
    assert found.shape == (len(rows), 5)
    np.testing.assert_allclose(found, Plain(family, rows).of(drawn), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("case", [*CHOICES, "product"])
def test_sparse_rows_have_the_same_densities(case: str, seed: int) -> None:
    example = make(case, seed)
    family, rows = example.family, example.rows
    drawn = draw_parameters(family, example.stats[:6], np.random.default_rng(1))
    dense = log_density(family, rows, drawn)
    found = log_density(family, sparse.csr_array(rows), drawn)
    np.testing.assert_allclose(found, dense, rtol=1e-10, atol=1e-10)
    if case in ("bernoulli", "poisson", "categorical"):
        found = log_density(family, rows.astype(np.uint8), drawn)
        np.testing.assert_allclose(found, dense, rtol=1e-12, atol=1e-12)


def test_sparse_rows_of_a_family_with_missing_entries(seed: int) -> None:
    gapped = make("bernoulli-missing", seed)
    rows = np.nan_to_num(gapped.rows)
    drawn = draw_parameters(gapped.family, gapped.stats[:4], np.random.default_rng(1))
    dense = log_density(gapped.family, rows, drawn)
    found = log_density(gapped.family, sparse.csr_array(rows), drawn)
    np.testing.assert_allclose(found, dense, atol=1e-12)


def test_rows_of_many_tiles(seed: int) -> None:
    """Tiles have one shape: a row's density does not depend on how many follow."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(2500, 3))
    family = make("diagonal", seed).family
    drawn = draw_parameters(family, np.zeros((4, 7)), rng)
    found = log_density(family, rows, drawn)
    np.testing.assert_array_equal(log_density(family, rows[:1500], drawn), found[:1500])
    np.testing.assert_allclose(found[2400:], log_density(family, rows[2400:], drawn), rtol=1e-9)


@pytest.mark.parametrize(
    ("n_features", "n_groups", "size"),
    [(3, 5, 1024), (128, 5, 1024), (129, 5, 512), (20, 1000, 128), (100_000, 5, 64)],
)
def test_tiles_fit_a_cache(n_features: int, n_groups: int, size: int) -> None:
    assert tile_rows(n_features, n_groups) == size


# ---- numerics ----------------------------------------------------------------------------


@pytest.mark.statistical
def test_logarithms_of_gamma_draws() -> None:
    generator = np.random.default_rng(4)
    shapes = np.repeat([[0.3, 1.0, 7.0]], 40_000, axis=0)
    logs = log_gamma_draws(shapes, generator)
    # Digamma and trigamma of the shapes.
    means, variances = [-3.502524, -0.577216, 1.872784], [12.245365, 1.644934, 0.153545]
    assert_moments(logs, means, variances)


def test_tiny_pseudo_counts() -> None:
    generator = np.random.default_rng(4)
    log_ones, log_zeros = log_beta_draws(np.full(50, 1e-9), np.full(50, 1e-9), generator)
    assert np.isfinite(log_ones).all()
    assert np.isfinite(log_zeros).all()
    assert (np.maximum(log_ones, log_zeros) == 0.0).all()
    weights = log_dirichlet_draw(np.full(20, 1e-200), generator)
    assert np.isfinite(weights).all()
    assert np.exp(weights).sum() == pytest.approx(1.0)


def test_vanishing_precisions_stay_finite(seed: int) -> None:
    family = make("diagonal", seed).family.with_parameters(
        np.repeat([0.0, 0.0, np.log(1e-4), 0.0], 3)
    )
    drawn: Any = draw_parameters(family, np.zeros((50, 7)), np.random.default_rng(seed))
    assert drawn.log_precisions.min() < -1000.0
    assert np.isfinite(log_density(family, np.ones((2, 3)), drawn)).all()


def test_rounding_may_not_make_a_scatter_indefinite() -> None:
    family = Gaussian(mean=[0.0, 0.0], scatter=np.eye(2) * 1e-12)
    group = np.array([[2.0, 0.0, 0.0, 1.0, 1.0 + 1e-10, 1.0]])
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky([[1.0, 1.0 + 1e-10], [1.0 + 1e-10, 1.0]])
    drawn: Any = draw_parameters(family, group, np.random.default_rng(0))
    assert np.isfinite(drawn.factors).all()
    group[0, 4] = 2.0
    with pytest.raises(InputError, match="positive definite"):
        draw_parameters(family, group, np.random.default_rng(0))


def test_parts_of_a_product_get_their_own_statistics(seed: int) -> None:
    example = make("product", seed)
    family: Any = example.family
    assert isinstance(family, Product)
    shares = subject.product_shares(family, example.stats)
    for (part, columns), share in zip(family.parts, shares, strict=True):
        np.testing.assert_allclose(share, part.statistics(example.rows[:, list(columns)]))


def test_other_families_are_refused() -> None:
    class Stranger(Family):
        def statistics(self, block: Any) -> np.ndarray:
            return np.ones((len(block), 1))

        def log_marginal(self, stats: np.ndarray) -> np.ndarray:
            return np.zeros(len(stats))

    with pytest.raises(InputError, match="collapsed sampler"):
        draw_parameters(Stranger(), np.zeros((1, 1)), np.random.default_rng(0))
    with pytest.raises(InputError, match="collapsed sampler"):
        lay_out(Stranger(), np.zeros((1, 1)))
