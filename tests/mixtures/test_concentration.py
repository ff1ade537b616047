"""Concentrations: golden figures, quadrature, exact draws, all partitions of a few rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from distclust.errors import InputError
from distclust.mixtures import concentration as subject
from distclust.mixtures.concentration import (
    Concentration,
    EscobarWest,
    FittedGamma,
    FixedConcentration,
    GammaPrior,
    concentration_of,
    draw_stick_concentration,
    draw_symmetric_concentration,
    expected_clusters,
    fitted_gamma,
    log_gamma_draw,
    log_partition,
    log_rising,
    log_stick_labels,
    log_symmetric_partition,
    posterior_moments,
)
from tests.oracles import concentration as oracle

LEVELS = (0.1, 0.5, 0.9)
N_DRAWS = 30_000


def chain(how: Concentration, n_clusters: int, n_rows: float, n_draws: int) -> np.ndarray:
    generator, value = np.random.default_rng(5), how.start()
    draws = np.empty(n_draws)
    for i in range(n_draws):
        draws[i] = value = how.draw(value, n_clusters, n_rows, generator)
    return draws


def first_correlation(draws: np.ndarray) -> float:
    return float(np.corrcoef(draws[1:], draws[:-1])[0, 1])


# ---- golden figures ----------------------------------------------------------------------


def test_fit_of_the_bare_likelihood() -> None:
    # The figures are printed with three decimals; the mean is shape / rate = 3.9735.
    assert fitted_gamma(15, 200, 1.0, 0.0) == pytest.approx((11.515, 2.898), abs=6e-4)
    assert posterior_moments(15, 200, 1.0, 0.0) == pytest.approx((3.974, 1.371), abs=6e-4)


def test_fit_of_the_posterior() -> None:
    assert posterior_moments(15, 200, 1.0, 1.0) == pytest.approx((2.9877, 0.7154), abs=6e-5)
    # 12.4765 is printed as 12.477, 4.1760 as 4.176.
    assert fitted_gamma(15, 200, 1.0, 1.0) == pytest.approx((12.477, 4.176), abs=6e-4)


@pytest.mark.parametrize(
    ("key", "mean", "variance"),
    [
        ((3, 50, 2.0, 0.5), 1.0367, 0.3260),
        ((1, 30, 1.0, 1.0), 0.2255, 0.0560),
        ((60, 60, 2.0, 1.0), 29.206, 20.33),
    ],
)
def test_other_posteriors(key: tuple[int, int, float, float], mean: float, variance: float) -> None:
    found = posterior_moments(*key)
    assert found[0] == pytest.approx(mean, abs=6e-4 if mean > 10 else 6e-5)
    assert found[1] == pytest.approx(variance, abs=6e-3 if variance > 10 else 6e-5)


@pytest.mark.parametrize(
    "key", [(15, 200, 1.0, 1.0), (3, 50, 2.0, 0.5), (1, 30, 1.0, 1.0), (60, 60, 2.0, 1.0)]
)
def test_moments_are_those_of_quadrature(key: tuple[int, int, float, float]) -> None:
    assert posterior_moments(*key) == pytest.approx(oracle.posterior_moments(*key), rel=1e-7)


def test_fits_are_remembered() -> None:
    subject.posterior_moments.cache_clear()
    how, generator = FittedGamma(walk=0.0), np.random.default_rng(1)
    for _ in range(5):
        how.draw(1.0, 4, 30, generator)
    how.draw(1.0, 5, 30, generator)
    FittedGamma(GammaPrior(2.0, 1.0), walk=0.0).draw(1.0, 5, 30, generator)
    assert subject.posterior_moments.cache_info().misses == 3


# ---- draws -------------------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("how", [EscobarWest(), FittedGamma()], ids=["exact", "fitted"])
@pytest.mark.parametrize("sizes", [(15, 200), (1, 30)])
def test_quantiles_of_draws(how: Concentration, sizes: tuple[int, int]) -> None:
    wanted = oracle.posterior_quantiles(*sizes, 1.0, 1.0, LEVELS)
    found = np.quantile(chain(how, *sizes, N_DRAWS), LEVELS)
    # Within 0.02: at the upper quantile of the wider posterior that is 2 standard errors
    # of so many draws.
    np.testing.assert_allclose(found, wanted, rtol=0, atol=0.02)


@pytest.mark.statistical
def test_the_fitted_proposal_against_a_gaussian_walk() -> None:
    fitted = chain(FittedGamma(walk=0.0), 15, 200, N_DRAWS)
    assert np.mean(fitted[1:] != fitted[:-1]) == pytest.approx(0.99, abs=0.005)
    assert first_correlation(fitted) == pytest.approx(0.01, abs=0.015)
    walk = gaussian_walk(15, 200, N_DRAWS)
    assert np.mean(walk[1:] != walk[:-1]) == pytest.approx(0.65, abs=0.02)
    assert first_correlation(walk) == pytest.approx(0.74, abs=0.03)


def gaussian_walk(n_clusters: int, n_rows: int, n_draws: int) -> np.ndarray:
    """Steps of size 1 that stay above zero, for a prior with shape and rate 1."""
    generator, value = np.random.default_rng(6), 1.0

    def log_density(value: float) -> float:
        return (
            n_clusters * math.log(value) - value + math.lgamma(value) - math.lgamma(value + n_rows)
        )

    draws = np.empty(n_draws)
    for i in range(n_draws):
        then = value + generator.standard_normal()
        if then > 0 and generator.random() < math.exp(
            min(0.0, log_density(then) - log_density(value))
        ):
            value = then
        draws[i] = value
    return draws


@pytest.mark.statistical
def test_one_row_or_a_sum_of_weights() -> None:
    """With rows that weigh 2.5 in all, the density is still what is drawn from."""
    grid = np.linspace(1e-5, 40.0, 200_001)
    logs = np.array([math.lgamma(a) - math.lgamma(a + 2.5) for a in grid]) + 2 * np.log(grid) - grid
    mean = float(np.average(grid, weights=np.exp(logs)))
    assert posterior_moments(2, 2.5, 1.0, 1.0)[0] == pytest.approx(mean, rel=1e-6)
    for how in (EscobarWest(), FittedGamma()):
        assert chain(how, 2, 2.5, N_DRAWS).mean() == pytest.approx(mean, abs=0.05)
    assert log_partition([1.5, 1.0], 0.7) == pytest.approx(
        2 * math.log(0.7) + math.lgamma(0.7) - math.lgamma(3.2) + math.lgamma(1.5)
    )


@pytest.mark.parametrize("value", [1e-300, 1e-12, 1e12, 1e290])
def test_exact_draws_leave_extreme_values(value: float) -> None:
    generator = np.random.default_rng(3)
    for _ in range(20):
        value = EscobarWest().draw(value, 15, 200, generator)
        assert 0.0 < value < math.inf
    assert 0.1 < value < 30.0


@pytest.mark.parametrize("value", [1e-300, 1e-12, 60.0])
def test_the_fitted_proposal_leaves_extreme_values(value: float) -> None:
    """Far above, only the random walk leads back: the proposal falls off faster."""
    generator = np.random.default_rng(3)
    for _ in range(400):
        value = FittedGamma().draw(value, 15, 200, generator)
        assert 0.0 < value < math.inf
    assert 0.1 < value < 30.0


def test_the_random_walk_leads_back_from_far_above() -> None:
    generator, value = np.random.default_rng(3), 1e12
    for _ in range(200):
        then = FittedGamma().draw(value, 15, 200, generator)
        assert then <= value
        value = then
    assert value < 1e12


@pytest.mark.parametrize("shape", [1e-3, 1e5])
@pytest.mark.parametrize("rate", [1e-6, 1e6])
def test_extreme_priors_stay_finite(shape: float, rate: float) -> None:
    for how in (EscobarWest(GammaPrior(shape, rate)), FittedGamma(GammaPrior(shape, rate))):
        draws = chain(how, 1, 10, 200)
        assert np.isfinite(draws).all()
        assert (draws > 0).all()


@pytest.mark.statistical
def test_log_draws_with_small_shapes() -> None:
    generator = np.random.default_rng(2)
    draws = np.array([log_gamma_draw(0.3, generator) for _ in range(40_000)])
    # Mean and variance of the logarithm are digamma(0.3) and trigamma(0.3).
    assert draws.mean() == pytest.approx(-3.50252, abs=4 * 3.5 / 200)
    assert draws.var() == pytest.approx(12.24538, rel=0.05)
    assert math.isfinite(log_gamma_draw(1e-200, generator))


# ---- partitions --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.3, 1.0, 4.0])
def test_partitions_of_six_rows_sum_to_one(value: float) -> None:
    partitions = list(oracle.set_partitions(6))
    assert len(partitions) == 203
    total = 0.0
    for labels in partitions:
        found = math.exp(log_partition(np.bincount(labels), value))
        assert found == pytest.approx(oracle.crp(labels, value), rel=1e-12)
        total += found
    assert total == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("n_components", [3, 6])
def test_partitions_of_truncated_mixtures(n_components: int) -> None:
    totals = np.zeros(2)
    for labels in oracle.set_partitions(5):
        sizes = np.bincount(labels)
        if len(sizes) > n_components:
            continue
        found = math.exp(log_symmetric_partition(sizes, 1.3, n_components))
        assert found == pytest.approx(oracle.dma(labels, 1.3, n_components), rel=1e-12)
        totals += found, oracle.tdp(labels, 1.3, n_components)
    np.testing.assert_allclose(totals, 1.0, atol=1e-12)


@pytest.mark.parametrize("value", [0.2, 3.0])
def test_labels_of_truncated_sticks(value: float) -> None:
    for counts in ([4, 0, 1, 2], [0, 0, 0, 7], [1, 2, 3, 1]):
        wanted = math.log(oracle.tdp_labels(np.array(counts, float), value))
        assert log_stick_labels(counts, value) == pytest.approx(wanted, rel=1e-12)


def test_many_components_tend_to_the_process() -> None:
    sizes, limit = [5, 1, 3], log_partition([5, 1, 3], 0.8)
    gaps = [abs(log_symmetric_partition(sizes, 0.8, m) - limit) for m in (10, 100, 1000, 10**6)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-5


def test_groups_without_rows_are_left_out() -> None:
    assert log_partition([3, 0, 2, 0], 1.5) == log_partition([3, 2], 1.5)
    assert log_symmetric_partition([3, 0, 2], 1.5, 9) == log_symmetric_partition([3, 2], 1.5, 9)


@pytest.mark.parametrize("value", [1e-300, 1e-8, 0.5, 15.9, 16.1, 1e8, 1e15])
def test_probabilities_keep_their_digits(value: float) -> None:
    """Against the product of (a + i), whose terms do not cancel."""
    rising = math.fsum(math.log(value + i) for i in range(40))
    assert log_rising(value, 40) == pytest.approx(rising, rel=1e-12)
    sizes = [30, 9, 1]
    clusters = 3 * math.log(value) + math.lgamma(30) + math.lgamma(9)
    assert log_partition(sizes, value) == pytest.approx(clusters - rising, rel=1e-12, abs=1e-11)


@pytest.mark.parametrize("value", [1e-300, 1e-8, 0.5, 15.9, 16.1, 1e8, 1e15])
def test_expected_number_of_clusters(value: float) -> None:
    wanted = math.fsum(value / (value + i) for i in range(50))
    assert expected_clusters(value, 50) == pytest.approx(wanted, rel=1e-12)


# ---- truncated mixtures ------------------------------------------------------------------


@pytest.mark.statistical
def test_draws_given_groups_of_a_symmetric_prior() -> None:
    sizes, n_components, prior = [6, 3, 0, 1], 4, GammaPrior(2.0, 1.0)
    labels = np.repeat(np.arange(4), sizes).tolist()
    # Values at a grid, from probabilities of partitions by another road.
    grid = np.linspace(1e-4, 30.0, 3001)
    weights = [a * math.exp(-a) * oracle.dma(labels, a, n_components) for a in grid]
    mass = np.cumsum(weights)
    wanted = np.interp(np.array(LEVELS) * mass[-1], mass, grid)
    generator, value = np.random.default_rng(4), 1.0
    draws = np.empty(20_000)
    for i in range(len(draws)):
        value = draw_symmetric_concentration(value, sizes, n_components, prior, generator)
        draws[i] = value
    np.testing.assert_allclose(np.quantile(draws, LEVELS), wanted, rtol=0.03)


@pytest.mark.parametrize("value", [1e-290, 1e290])
def test_slices_come_back_from_far_out(value: float) -> None:
    generator = np.random.default_rng(8)
    for _ in range(200):
        value = draw_symmetric_concentration(value, [50, 20, 5], 10, GammaPrior(), generator)
        assert 0.0 < value < math.inf
    assert 0.01 < value < 20.0


@pytest.mark.statistical
def test_draws_given_sticks() -> None:
    generator = np.random.default_rng(9)
    draws = [
        draw_stick_concentration(-3.0, 6, GammaPrior(2.0, 1.0), generator) for _ in range(20_000)
    ]
    # Gamma(2 + 5, 1 + 3): mean 7 / 4, variance 7 / 16.
    assert np.mean(draws) == pytest.approx(7 / 4, abs=4 * math.sqrt(7 / 16 / 20_000))
    assert np.var(draws) == pytest.approx(7 / 16, rel=0.06)
    assert draw_stick_concentration(-1e300, 6, GammaPrior(), generator) > 0.0


# ---- the border --------------------------------------------------------------------------


def test_what_concentrations_may_be() -> None:
    assert concentration_of("gamma", "here") == EscobarWest(GammaPrior(1.0, 1.0))
    assert concentration_of(2, "here") == FixedConcentration(2.0)
    assert concentration_of(GammaPrior(2.0, 3.0), "here") == EscobarWest(GammaPrior(2.0, 3.0))
    fitted = FittedGamma()
    assert concentration_of(fitted, "here") is fitted


@pytest.mark.parametrize("value", ["beta", 0, -1.0, math.nan, math.inf, True, None, [1.0]])
def test_what_concentrations_may_not_be(value: object) -> None:
    with pytest.raises(InputError, match="here"):
        concentration_of(value, "here")


def test_priors_are_checked() -> None:
    with pytest.raises(InputError, match="rate"):
        GammaPrior(1.0, 0.0)


def test_a_given_value_stays() -> None:
    how, generator = FixedConcentration(1.5), np.random.default_rng(0)
    before = generator.bit_generator.state
    assert how.start() == how.draw(9.0, 3, 10, generator) == 1.5
    assert generator.bit_generator.state == before
    assert EscobarWest(GammaPrior(3.0, 2.0)).start() == 1.5
