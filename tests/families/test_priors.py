"""Empirical priors: what is filled in, and that nothing makes them invalid."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from distclust.families import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Gaussian,
    Multinomial,
    Poisson,
    column_origin,
    summarise_block,
)
from distclust.store import profile_block
from tests.oracles import families as oracle

EVERY = [Bernoulli(), Categorical(), Multinomial(), Poisson(), Gaussian(), DiagonalGaussian()]
TAKES_GAPS = [family for family in EVERY if family.supports_missing]


def test_bernoulli__prior_follows_the_smoothed_means() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.0], [np.nan, 1.0]])
    family = oracle.resolved(Bernoulli(), rows)
    mean = np.array([2.5 / 3, 1.5 / 4])
    np.testing.assert_allclose(family.alpha, 2 * mean)
    np.testing.assert_allclose(family.beta, 2 * (1 - mean))
    wider = oracle.resolved(Bernoulli(kappa=5), rows)
    np.testing.assert_allclose(wider.alpha, 5 * mean)


def test_bernoulli__given_parameters_are_kept() -> None:
    rows = np.array([[1.0, 0.0], [1.0, 0.0]])
    family = oracle.resolved(Bernoulli(alpha=3, beta=[1, 2]), rows)
    np.testing.assert_array_equal(family.alpha, [3, 3])
    np.testing.assert_array_equal(family.beta, [1, 2])


def test_multinomial__prior_has_the_weight_of_its_columns() -> None:
    rows = np.array([[3.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    family = oracle.resolved(Multinomial(), rows)
    np.testing.assert_allclose(family.alpha, 3 * np.array([4.5, 0.5, 1.5]) / 6.5)
    assert oracle.resolved(Multinomial(kappa=7.0), rows).alpha.sum() == pytest.approx(7.0)


def test_categorical__prior_has_the_weight_of_its_levels() -> None:
    rows = np.array([[0.0, 2.0], [1.0, 0.0], [np.nan, 0.0]])
    family = oracle.resolved(Categorical(), rows)
    assert family.n_levels == (2, 3)
    np.testing.assert_allclose(family.alpha[:2], 2 * np.array([1.5, 1.5]) / 3)
    np.testing.assert_allclose(family.alpha[2:], 3 * np.array([2.5, 0.5, 1.5]) / 4.5)


def test_poisson__prior_mean_is_the_columns() -> None:
    rows = np.array([[3.0, 0.0], [1.0, 0.0], [np.nan, 0.0]])
    family = oracle.resolved(Poisson(), rows)
    np.testing.assert_allclose(family.rate, [1 / 2, 1 / 1e-3])


def test_gaussian__prior_is_scaled_covariance_with_a_ridge(rng: np.random.Generator) -> None:
    rows = rng.normal(size=(30, 3)) @ rng.normal(size=(3, 3)) + 100.0
    family = oracle.resolved(Gaussian(), rows)
    covariance = np.cov(rows.T, bias=True)
    covariance += 1e-6 * np.trace(covariance) / 3 * np.eye(3)
    np.testing.assert_allclose(family.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(family.scatter, 0.03 * covariance, rtol=1e-8)
    assert (family.strength, family.degrees, family.scale) == (0.05, 5.0, 0.03)


def test_diagonal__prior_is_scaled_variance(rng: np.random.Generator) -> None:
    rows = rng.normal(size=(30, 3)) * [1.0, 1e-6, 1e6] + 100.0
    rows[4, 1] = np.nan
    family = oracle.resolved(DiagonalGaussian(), rows)
    np.testing.assert_allclose(family.mean, np.nanmean(rows, axis=0), rtol=1e-12)
    np.testing.assert_allclose(family.rate, 0.03 * np.nanvar(rows, axis=0), rtol=1e-6)


@pytest.mark.parametrize("template", [Gaussian, DiagonalGaussian])
def test_with_scale__rescales_what_came_from_the_data(
    template: type[Family], rng: np.random.Generator
) -> None:
    rows = rng.normal(size=(12, 2))
    family = oracle.resolved(template(), rows)
    assert family.scale_grid == (0.01, 0.03, 0.1, 0.3, 1.0)
    assert not template().scale_grid
    fixed = oracle.resolved(template(scale=0.3), rows)
    assert fixed.scale_grid == ()
    scaled = family.with_scale(0.3)
    assert scaled.scale_grid == family.scale_grid
    stats = family.statistics(rows)
    np.testing.assert_array_equal(scaled.log_marginal(stats), fixed.log_marginal(stats))
    assert not np.allclose(scaled.log_marginal(stats), family.log_marginal(stats))


def test_with_scale__leaves_given_priors_alone() -> None:
    given = Gaussian(mean=0.0, scatter=np.eye(2))
    assert given.with_scale(0.5) is given
    assert Bernoulli(1, 1, n_features=2).with_scale(0.5).scale_grid == ()


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("template", EVERY, ids=lambda family: family.name)
def test_resolve__constant_columns_are_valid(template: Family, value: float) -> None:
    """One constant column beside others, and nothing but constant columns."""
    some = np.column_stack([np.full(6, value), [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]])
    for rows in (some, np.full((4, 3), value), np.full((1, 2), value)):
        family = oracle.resolved(template, rows)
        stats = family.statistics(rows)
        assert np.isfinite(family.log_marginal(stats)).all()
        assert np.isfinite(family.log_predictive(rows, stats)).all()
        assert np.isfinite(family.gradient(stats)).all()
        assert np.isfinite(family.log_marginal(stats.sum(axis=0)[None])).all()


def test_resolve__constant_columns_that_rounding_moves_count_as_constant() -> None:
    rows = np.full((11, 2), 0.1)
    rows[:, 1] = np.arange(11.0)
    origin = np.array([1e8 / 3, 3.0])  # far off: the first column seems to vary
    diagonal = oracle.resolved(DiagonalGaussian(), rows, origin=origin)
    assert diagonal.variance[0] == pytest.approx(1e-6 * diagonal.variance[1] / 2)
    full = oracle.resolved(Gaussian(), rows, origin=origin)
    assert full.covariance[0, 0] == pytest.approx(1e-6 * np.var(rows[:, 1]) / 2)
    assert full.covariance[0, 1] == 0.0


@pytest.mark.parametrize("template", TAKES_GAPS, ids=lambda family: family.name)
def test_resolve__a_column_without_any_entry_is_valid(template: Family) -> None:
    rows = np.array([[0.0, np.nan], [1.0, np.nan], [np.nan, np.nan]])
    family = oracle.resolved(template, rows)
    stats = family.statistics(rows)
    assert np.isfinite(family.log_marginal(stats)).all()
    assert np.isfinite(family.log_predictive(rows, stats)).all()


@pytest.mark.parametrize("template", EVERY, ids=lambda family: family.name)
def test_resolve__sparse_equals_dense(template: Family, rng: np.random.Generator) -> None:
    rows = rng.integers(0, 2, (9, 4)).astype(float)
    dense = oracle.resolved(template, rows)
    assert oracle.resolved(template, sparse.csr_array(rows)) == dense
    assert dense.is_resolved
    assert not template.is_resolved


def test_resolve__scalars_are_resolved_by_their_columns() -> None:
    template = Bernoulli(alpha=1, beta=1)
    assert repr(template) == "Bernoulli(alpha=1.0, beta=1.0)"
    family = oracle.resolved(template, np.eye(3))
    np.testing.assert_array_equal(family.alpha, np.ones(3))


def test_column_origin__is_the_mean_of_observed_entries() -> None:
    rows = np.array([[1.0, np.nan, 0.0], [3.0, np.nan, 4.0]])
    np.testing.assert_array_equal(column_origin(rows), [2.0, 0.0, 2.0])
    complete = np.nan_to_num(rows)
    np.testing.assert_array_equal(column_origin(sparse.csr_array(complete)), [2.0, 0.0, 2.0])


def test_summarise_block__is_what_the_family_says() -> None:
    family = Bernoulli(n_features=2)
    rows = np.eye(2)
    expected = family.summarise(rows, np.zeros(2))
    np.testing.assert_array_equal(summarise_block(rows, 7, family, np.zeros(2)), expected)


@pytest.mark.parametrize("missing", [False, True])
def test_summary_of__a_profile_tells_what_all_rows_add_up_to(
    rng: np.random.Generator, missing: bool
) -> None:
    rows = (rng.random((50, 4)) < [0.1, 0.5, 0.9, 0.0]).astype(float)
    rows[rng.random(rows.shape) < 0.2 * missing] = np.nan
    family = Bernoulli(n_features=4, has_missing=missing)
    np.testing.assert_array_equal(
        family.summary_of(profile_block(rows)), family.summarise(rows, np.zeros(4))
    )
