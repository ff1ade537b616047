"""Probabilistic PCA: closed forms, scipy's densities, the same answer everywhere."""

from __future__ import annotations

import dataclasses
import math
import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_info, threadpool_limits

import distclust
from distclust import PPCA, events
from distclust.errors import (
    CapacityError,
    ConstantColumnsWarning,
    ConvergenceWarning,
    InputError,
    ModelFormatError,
)
from distclust.projections import ppca, ppca_blocks, ppca_em
from distclust.store import read_archive, write_archive
from tests.oracles import ppca as oracle
from tests.small_blocks import shrink

ATTRIBUTES = (
    "components_",
    "explained_variance_",
    "loadings_",
    "mean_",
    "noise_variance_",
    "log_likelihood_",
    "log_likelihood_path_",
    "n_iter_",
)


def planted(seed=0, n=300, d=12, q=3, noise=0.3):
    """Rows near a subspace, its axes of clearly different lengths, far from the origin."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(d, q)))[0] * (2.0 ** np.arange(q, 0, -1))
    rows = rng.normal(size=(n, q)) @ axes.T + noise * rng.normal(size=(n, d))
    return rows + rng.normal(scale=5.0, size=d)


def with_gaps(rows, share=0.2, seed=0):
    gaps = rows.copy()
    gaps[np.random.default_rng(seed).random(rows.shape) < share] = np.nan
    return gaps


def thin(seed=0, n=300, d=20):
    """Rows of counts, mostly zeros, with some structure."""
    rng = np.random.default_rng(seed)
    topics = rng.gamma(0.2, size=(4, d)) + 0.05
    return rng.poisson(rng.dirichlet(np.ones(4), n) @ topics).astype(float)


def as_oracle(model):
    return oracle.Gaussian(model.mean_, model.loadings_, model.noise_variance_)


def check_same(one, other):
    for name in ATTRIBUTES:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def check_close(one, other, rtol):
    for name in ATTRIBUTES[:-2]:
        size = np.abs(getattr(one, name)).max()
        np.testing.assert_allclose(
            getattr(other, name), getattr(one, name), rtol=0, atol=rtol * size, err_msg=name
        )


@pytest.fixture
def by_passes(monkeypatch):
    """No covariance is gathered: every iteration reads the rows."""
    monkeypatch.setattr(ppca, "_GRAM_FEATURES", 0)


@pytest.fixture
def small_blocks(monkeypatch):
    shrink(monkeypatch)
    monkeypatch.setattr(ppca_blocks, "_TILE_ROWS", 24)  # does not divide the blocks


# Checks fit for five iterations only, and small tables have constant columns.
@pytest.mark.filterwarnings("ignore::distclust.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::distclust.errors.ConstantColumnsWarning")
# Some have two features, so that two components would leave nothing for the noise.
@parametrize_with_checks([PPCA(n_components=1)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


# ---- the closed form --------------------------------------------------------------------------


def check_closed_form(model, best, atol=1e-7):
    scale = np.abs(best.covariance).max()
    found = model.loadings_ @ model.loadings_.T
    np.testing.assert_allclose(
        found / scale, best.loadings @ best.loadings.T / scale, rtol=0, atol=atol
    )
    assert model.noise_variance_ == pytest.approx(best.noise, rel=atol, abs=atol)
    np.testing.assert_allclose(model.mean_, best.mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("n", "d", "q"), [(300, 12, 3), (50, 3, 1), (500, 60, 5), (30, 80, 2)])
def test_fit__is_the_closed_form(n, d, q, seed):
    rows = planted(seed, n, d, q)
    model = PPCA(q, tolerance=0.0, random_state=seed).fit(rows)
    best = oracle.closed_form(rows, q)
    check_closed_form(model, best)
    assert model.log_likelihood_ == pytest.approx(oracle.log_densities(rows, best).sum(), rel=1e-12)


def test_fit__by_passes_is_the_closed_form(by_passes, seed):
    rows = planted(seed)
    model = PPCA(3, tolerance=0.0, random_state=seed).fit(rows)
    check_closed_form(model, oracle.closed_form(rows, 3))


def test_fit__sparse_is_the_closed_form(seed):
    rows = thin(seed) * np.linspace(3.0, 0.5, 20)
    best = oracle.closed_form(rows, 2)
    for form in (rows, scipy.sparse.csr_array(rows)):
        model = PPCA(2, tolerance=0.0, random_state=seed).fit(form)
        check_closed_form(model, best, atol=1e-6)  # its eigenvalues are close to each other


def test_fit__at_a_fixed_noise_is_the_closed_form(seed):
    rows = planted(seed)
    model = PPCA(3, noise_variance=0.5, tolerance=0.0, random_state=seed).fit(rows)
    assert model.noise_variance_ == 0.5
    check_closed_form(model, oracle.closed_form(rows, 3, 0.5))


def test_fit__components_below_a_fixed_noise_vanish():
    rows = planted(q=3)
    values = np.linalg.eigvalsh(np.cov(rows.T, bias=True))[::-1]
    noise = float(values[1:3].mean())  # between the second and the third
    model = PPCA(3, noise_variance=noise, tolerance=0.0, random_state=0).fit(rows)
    check_closed_form(model, oracle.closed_form(rows, 3, noise), atol=1e-5)
    np.testing.assert_allclose(model.explained_variance_[:2], values[:2], rtol=1e-6)
    assert model.explained_variance_[2] == pytest.approx(noise, rel=1e-5)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(3), atol=1e-12)


@pytest.mark.parametrize("load", [load_iris, load_wine, load_digits])
@pytest.mark.filterwarnings("ignore::distclust.errors.ConstantColumnsWarning")
def test_fit__agrees_with_scikit_learn(load):
    rows = load().data  # noise and signal of wine differ by a factor of a thousand
    model = PPCA(2, tolerance=0.0, random_state=0).fit(rows)
    peer = PCA(2).fit(rows)
    share = (len(rows) - 1) / len(rows)  # likelihood divides by N
    peer.explained_variance_ *= share
    peer.noise_variance_ *= share
    assert model.noise_variance_ == pytest.approx(peer.noise_variance_, rel=1e-6)
    np.testing.assert_allclose(model.explained_variance_, peer.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(np.abs(model.components_ @ peer.components_.T), np.eye(2), atol=1e-5)
    assert model.score(rows) == pytest.approx(peer.score(rows), rel=1e-9)
    scale = np.abs(peer.get_covariance()).max()
    np.testing.assert_allclose(
        model.get_covariance(), peer.get_covariance(), rtol=0, atol=1e-6 * scale
    )


def test_fit__default_tolerance_is_near_the_maximum(seed):
    rows = planted(seed)
    model = PPCA(3, random_state=seed).fit(rows)
    best = oracle.log_densities(rows, oracle.closed_form(rows, 3)).sum()
    assert 0 <= best - model.log_likelihood_ < 1e-6 * abs(best)
    assert model.n_iter_ < 100


def test_axes__are_orthonormal_ordered_and_signed(seed):
    model = PPCA(4, random_state=seed).fit(planted(seed))
    components = model.components_
    np.testing.assert_allclose(components @ components.T, np.eye(4), atol=1e-12)
    assert (np.diff(model.explained_variance_) < 0).all()
    largest = np.abs(components).argmax(axis=1)
    assert (components[np.arange(4), largest] > 0).all()
    lengths = np.sqrt(model.explained_variance_ - model.noise_variance_)
    np.testing.assert_allclose(model.loadings_, components.T * lengths, rtol=1e-12)


def test_axes__ties_of_the_sign_go_to_the_first_entry():
    for loadings in ([[-2.0], [2.0]], [[2.0], [-2.0]]):
        signed = ppca_em.with_signs(np.array(loadings).T)
        assert signed.tolist() == [[2.0, -2.0]]


def test_fit__another_start_ends_at_the_same_place():
    rows = planted()
    one = PPCA(3, tolerance=0.0, random_state=1).fit(rows)
    other = PPCA(3, tolerance=0.0, random_state=2).fit(rows)
    assert one.log_likelihood_path_[0] != other.log_likelihood_path_[0]
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-6)


# ---- steps ------------------------------------------------------------------------------------


def start_of(rows, q, seed=0):
    survey = ppca_blocks.survey_block(rows, 0, False)
    variance = float(np.nanvar(rows, axis=0).mean())
    rule = ppca_em.NoiseRule(None, 1e-8 * variance)
    return survey, rule, ppca_em.starting_model(survey.mean, variance, q, rule, seed)


def complete(rows, model):
    product = ppca_blocks.multiply_block(rows, 0, model) / len(rows)
    trace = float(np.var(rows, axis=0).sum())
    return ppca_em.Complete(model, product, trace, len(rows))


def partial(rows, model, survey):
    sums = ppca_blocks.expect_block(rows, 0, model, survey.mean)
    squares, n_values = float(survey.squares.sum()), int(survey.n_observed.sum())
    return ppca_em.Partial(sums, survey.mean, squares, n_values)


def gaussian(model):
    return oracle.Gaussian(model.mean, model.loadings, model.noise)


def test_step__is_em_as_printed(seed):
    rows = planted(seed, n=40, d=6)
    _, rule, model = start_of(rows, 2, seed)
    for _ in range(4):
        expected = oracle.plain_step(rows, gaussian(model))
        plain, covariance = complete(rows, model).plain_step(rule)
        np.testing.assert_allclose(plain.loadings, expected.loadings, rtol=1e-9, atol=1e-12)
        assert plain.noise == pytest.approx(expected.noise, rel=1e-9)
        model = complete(rows, model).maximise(rule)
        np.testing.assert_allclose(
            model.loadings @ model.loadings.T,
            plain.loadings @ covariance @ plain.loadings.T,
            rtol=1e-9,
            atol=1e-12,
        )


def test_step__with_gaps_is_em_column_by_column(seed):
    rows = with_gaps(planted(seed, n=40, d=6), 0.3, seed)
    rows[3] = np.nan  # a row without values counts nowhere
    survey, rule, model = start_of(rows, 2, seed)
    for _ in range(4):
        expected = oracle.plain_step_with_gaps(rows, gaussian(model))
        found = [oracle.posterior(row, gaussian(model)) for row in np.delete(rows, 3, axis=0)]
        means = np.array([z for z, _ in found])
        moments = np.mean([np.outer(z, z) + spread for z, spread in found], axis=0)
        centre = means.mean(axis=0)
        model = partial(rows, model, survey).maximise(rule)
        assert model.noise == pytest.approx(expected.noise, rel=1e-9)
        np.testing.assert_allclose(
            model.mean, expected.mean + expected.loadings @ centre, rtol=1e-9
        )
        covariance = moments - np.outer(centre, centre)
        np.testing.assert_allclose(
            model.loadings @ model.loadings.T,
            expected.loadings @ covariance @ expected.loadings.T,
            rtol=1e-8,
            atol=1e-10,
        )


def test_products__of_sparse_rows_are_those_of_centred_ones(seed):
    rows = thin(seed)
    _, _, model = start_of(rows, 2, seed)
    some = rows[:70]  # their own mean is not the model's
    centred = some - model.mean
    expected = centred.T @ (centred @ model.loadings)
    for form in (some, scipy.sparse.csr_array(some)):
        found = ppca_blocks.multiply_block(form, 0, model)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_steps__of_both_kinds_agree_where_nothing_is_missing(seed):
    rows = planted(seed)
    survey, rule, here = start_of(rows, 3, seed)
    there = here
    for _ in range(15):
        one, other = complete(rows, here), partial(rows, there, survey)
        assert other.log_likelihood == pytest.approx(one.log_likelihood, rel=1e-9)
        here, there = one.maximise(rule), other.maximise(rule)
        covariances = [gaussian(model).covariance for model in (there, here)]
        np.testing.assert_allclose(*covariances, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(there.mean, here.mean, rtol=1e-9)
        assert there.noise == pytest.approx(here.noise, rel=1e-9)


@given(
    n=st.integers(4, 25),
    d=st.integers(2, 8),
    q=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.1, 0.4]),
    fixed=st.sampled_from([None, 0.05, 3.0]),
    seed=st.integers(0, 1000),
)
def test_step__never_lowers_the_likelihood(n, d, q, share, fixed, seed):
    q = min(q, d - 1, n - 2)
    rows = with_gaps(np.random.default_rng(seed).normal(size=(n, d)) + 3.0, share, seed)
    rows[0] = 1.0  # every column has a value
    survey, rule, model = start_of(rows, q, seed)
    rule = dataclasses.replace(rule, fixed=fixed, floor=1e-3)
    if fixed is not None:
        model = dataclasses.replace(model, noise=fixed)
    before = oracle.log_densities(rows, gaussian(model)).sum()
    for _ in range(6):
        found = partial(rows, model, survey) if share else complete(rows, model)
        assert found.log_likelihood == pytest.approx(before, rel=1e-8, abs=1e-8)
        model = found.maximise(rule)
        after = oracle.log_densities(rows, gaussian(model)).sum()
        assert after >= before - 1e-9 * abs(before)
        before = after


def test_path__rises_from_the_start_to_the_end(seed):
    for rows in (planted(seed), with_gaps(planted(seed))):
        model = PPCA(3, random_state=seed).fit(rows)
        assert (np.diff(model.log_likelihood_path_) > 0).all()
        assert len(model.log_likelihood_path_) == model.n_iter_ + 1 > 3
        assert model.log_likelihood_path_[-1] == model.log_likelihood_
        found = oracle.log_densities(rows, as_oracle(model)).sum()
        assert model.log_likelihood_ == pytest.approx(found, rel=1e-9)


# ---- densities and posteriors -----------------------------------------------------------------


def test_score_samples__is_scipys_density(seed):
    rows = planted(seed)
    model = PPCA(3, random_state=seed).fit(rows)
    new = planted(seed + 10, n=70)
    new[::3] = with_gaps(new[::3], 0.4, seed)
    new[5] = np.nan
    expected = oracle.log_densities(new, as_oracle(model))
    np.testing.assert_allclose(model.score_samples(new), expected, rtol=1e-9)
    assert model.score_samples(new)[5] == 0.0
    assert model.score(new) == pytest.approx(expected.mean(), rel=1e-9)
    np.testing.assert_allclose(model.get_covariance(), as_oracle(model).covariance, rtol=1e-12)


def test_transform__is_the_posterior_mean(seed):
    rows = planted(seed)
    model = PPCA(3, random_state=seed).fit(rows)
    new = with_gaps(planted(seed + 10, n=70), 0.2, seed)
    new[:5] = rows[:5]
    new[6] = np.nan
    expected = [oracle.posterior(row, as_oracle(model))[0] for row in new]
    np.testing.assert_allclose(model.transform(new), expected, rtol=1e-8, atol=1e-10)
    assert (model.transform(new)[6] == 0.0).all()
    scale = np.sqrt(model.explained_variance_ - model.noise_variance_) / model.explained_variance_
    by_book = (rows - model.mean_) @ model.components_.T * scale
    np.testing.assert_allclose(model.transform(rows), by_book, rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(model.fit_transform(rows), model.transform(rows))


def test_impute__is_the_conditional_mean(seed):
    model = PPCA(3, random_state=seed).fit(planted(seed))
    new = with_gaps(planted(seed + 10, n=70), 0.2, seed)
    new[6] = np.nan
    before = new.copy()
    expected = [oracle.filled(row, as_oracle(model)) for row in new]
    found = model.impute(new)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_array_equal(found[~np.isnan(new)], new[~np.isnan(new)])
    np.testing.assert_array_equal(found[6], model.mean_)
    np.testing.assert_array_equal(new, before)
    whole = np.arange(24).reshape(2, 12)
    assert model.impute(whole).dtype == np.float64
    sparse = model.impute(scipy.sparse.coo_array(whole))
    assert scipy.sparse.issparse(sparse)
    np.testing.assert_array_equal(sparse.toarray(), whole)


def test_inverse_transform__undoes_a_projection_without_noise():
    rows = planted(noise=1e-3)
    model = PPCA(3, random_state=0).fit(rows)
    back = model.inverse_transform(model.transform(rows))
    np.testing.assert_allclose(back, rows, atol=0.02)
    latent = np.random.default_rng(0).normal(size=(700, 3))
    expected = latent @ model.loadings_.T + model.mean_
    np.testing.assert_allclose(model.inverse_transform(latent), expected, rtol=1e-12)
    assert model.inverse_transform(np.empty((0, 3))).shape == (0, 12)
    with pytest.raises(InputError, match=r"expected shape \(n_rows, 3\), got shape \(2, 2\)"):
        model.inverse_transform(np.ones((2, 2)))


def test_answers__do_not_depend_on_the_company():
    rows = with_gaps(planted(n=600), 0.1)
    model = PPCA(3, random_state=0).fit(rows)
    for method in (model.transform, model.score_samples, model.impute):
        together = method(rows)
        alone = np.concatenate([method(rows[i : i + 1]) for i in range(0, 600, 37)])
        np.testing.assert_array_equal(together[::37], alone)


# ---- missing values ---------------------------------------------------------------------------


def test_missing__planted_rows_are_recovered(seed):
    rows = planted(seed, n=400, d=15, noise=0.3)
    gaps = with_gaps(rows, 0.2, seed)
    hidden = np.isnan(gaps)
    model = PPCA(3, random_state=seed).fit(gaps)
    error = np.sqrt(np.mean((model.impute(gaps) - rows)[hidden] ** 2))
    of_means = np.sqrt(np.mean((np.nanmean(gaps, axis=0) - rows)[hidden] ** 2))
    assert error < 0.3 * of_means
    assert error < 1.5 * 0.3  # near the noise, below which nothing can go
    assert model.noise_variance_ == pytest.approx(0.3**2, rel=0.1)
    angles = np.linalg.svd(model.components_ @ PCA(3).fit(rows).components_.T)[1]
    assert angles.min() > 0.99


def test_missing__the_mean_is_learned_too():
    # The second column is seen only where the first is large: its own mean is far off.
    rng = np.random.default_rng(0)
    latent = rng.normal(size=(2000, 1))
    rows = latent @ np.ones((1, 4)) + 0.1 * rng.normal(size=(2000, 4))
    rows[latent[:, 0] < 0.5, 1] = np.nan
    model = PPCA(1, random_state=0).fit(rows)
    assert np.nanmean(rows[:, 1]) > 1.0
    assert abs(model.mean_[1] - model.mean_[0]) < 0.05


def test_missing__rows_without_values_change_nothing():
    rows = planted()
    here = PPCA(3, random_state=0).fit(rows)
    there = PPCA(3, random_state=0).fit(np.vstack([rows, np.full((2, 12), np.nan)]))
    check_close(here, there, 1e-9)  # and so do the two ways to compute
    assert there.n_iter_ == here.n_iter_
    np.testing.assert_allclose(there.log_likelihood_path_, here.log_likelihood_path_, rtol=1e-9)


# ---- the same answer everywhere ---------------------------------------------------------------


@pytest.mark.parametrize("features", [2_000, 0])
def test_same__sparse_as_dense(features, small_blocks, monkeypatch):
    monkeypatch.setattr(ppca, "_GRAM_FEATURES", features)
    rows = thin()
    dense = PPCA(2, random_state=0).fit(rows)
    sparse = PPCA(2, random_state=0).fit(scipy.sparse.csr_array(rows))
    check_close(dense, sparse, 1e-9)
    for method in ("transform", "score_samples"):
        found = getattr(sparse, method)(scipy.sparse.csr_array(rows))
        np.testing.assert_allclose(found, getattr(dense, method)(rows), rtol=1e-8, atol=1e-8)
    for form in (scipy.sparse.csc_matrix, scipy.sparse.coo_array):
        check_same(sparse, PPCA(2, random_state=0).fit(form(rows)))
    check_same(dense, PPCA(2, random_state=0).fit(rows.astype(np.uint8)))
    check_same(sparse, PPCA(2, random_state=0).fit(scipy.sparse.csr_array(rows.astype(np.uint8))))


def test_same__by_passes_as_from_the_covariance(small_blocks, monkeypatch, seed):
    rows = planted(seed)
    here = PPCA(3, random_state=seed).fit(rows)
    monkeypatch.setattr(ppca, "_GRAM_FEATURES", 0)
    there = PPCA(3, random_state=seed).fit(rows)
    check_close(here, there, 1e-9)
    assert there.n_iter_ == here.n_iter_


CASES = {
    "covariance": (2_000, planted()),
    "passes": (0, planted()),
    "missing": (2_000, with_gaps(planted())),
    "sparse": (2_000, thin()),
    "sparse passes": (0, thin()),
}


def case(name, monkeypatch):
    features, rows = CASES[name]
    monkeypatch.setattr(ppca, "_GRAM_FEATURES", features)
    return rows, scipy.sparse.csr_array(rows) if "sparse" in name else rows


def chunked(rows, chunks, is_sparse):
    array = da.from_array(rows, chunks=chunks)
    return array.map_blocks(scipy.sparse.csr_array) if is_sparse else array


@pytest.mark.parametrize("name", CASES)
def test_same__in_any_chunks_and_threads(name, small_blocks, monkeypatch):
    rows, given_rows = case(name, monkeypatch)
    here = PPCA(2, random_state=0).fit(given_rows)
    for threads in (1, 3):
        with distclust.connect("threads", threads=threads):
            check_same(here, PPCA(2, random_state=0).fit(given_rows))
    for chunks in ((17, -1), (300, 5), (100, 7)):
        other = chunked(rows, (chunks[0], -1) if "sparse" in name else chunks, "sparse" in name)
        there = PPCA(2, random_state=0).fit(other)
        check_same(here, there)
        np.testing.assert_array_equal(there.transform(other), here.transform(given_rows))
    if "sparse" not in name:
        check_same(here, PPCA(2, random_state=0).fit(np.asfortranarray(rows)))


@pytest.mark.cluster
@pytest.mark.parametrize("name", CASES)
def test_same__on_a_cluster(name, small_blocks, local_client, monkeypatch):
    rows, given_rows = case(name, monkeypatch)
    monkeypatch.undo()  # workers have tiles and blocks of their own size
    shrink(monkeypatch)
    monkeypatch.setattr(ppca, "_GRAM_FEATURES", CASES[name][0])
    here = PPCA(2, random_state=0).fit(given_rows)
    with local_client.as_current():
        there = PPCA(2, random_state=0).fit(given_rows)
        other = PPCA(2, random_state=0).fit(chunked(rows, (77, -1), "sparse" in name))
        scores = there.score_samples(given_rows)
    check_same(here, there)
    check_same(here, other)
    np.testing.assert_array_equal(scores, here.score_samples(given_rows))


def test_same__products_of_the_driver_have_one_thread(monkeypatch):
    # Others would add up in another order, and so in other last bits.
    seen = []

    def spy(*args):
        seen.extend(lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas")
        return climb(*args)

    climb = ppca.climb
    monkeypatch.setattr(ppca, "climb", spy)
    with threadpool_limits(2, "blas"):
        PPCA(random_state=0).fit(planted())
    assert set(seen) == {1}


def test_same__from_a_store(tmp_path):
    rows = pd.DataFrame(with_gaps(planted()), columns=[f"c{i}" for i in range(12)])
    place = tmp_path / "rows.zarr"
    distclust.ingest(rows, place)
    here, there = PPCA(2, random_state=0).fit(rows), PPCA(2, random_state=0).fit(str(place))
    check_same(here, there)
    assert there.feature_names_in_.tolist() == list(rows.columns)
    np.testing.assert_array_equal(there.transform(str(place)), here.transform(rows))


@pytest.mark.parametrize("features", [2_000, 0])
def test_sparse__rows_are_never_made_dense(features, monkeypatch):
    rng = np.random.default_rng(0)
    wide = scipy.sparse.random_array((400, 1500), density=0.01, rng=rng, format="csr")

    def refuse(self, *args, **kwargs):
        assert self.shape != wide.shape, "a block was made dense"
        return original(self, *args, **kwargs)

    original = scipy.sparse.csr_array.toarray
    monkeypatch.setattr(scipy.sparse.csr_array, "toarray", refuse)
    monkeypatch.setattr(scipy.sparse.csr_array, "todense", refuse)
    monkeypatch.setattr(ppca, "_GRAM_FEATURES", features)
    with pytest.warns(ConstantColumnsWarning):
        model = PPCA(2, tolerance=1e-4, random_state=0).fit(wide)
    model.transform(wide)
    model.score_samples(wide)


def test_sparse__many_features_need_no_square_matrix():
    rng = np.random.default_rng(0)
    wide = scipy.sparse.random_array((300, 50_000), density=0.002, rng=rng, format="csr")
    with pytest.warns(ConstantColumnsWarning):
        model = PPCA(2, tolerance=1e-6, random_state=0).fit(wide)
    assert model.components_.shape == (2, 50_000)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(2), atol=1e-12)


def test_covariance__of_too_many_features_is_refused(monkeypatch):
    model = PPCA(random_state=0).fit(planted())
    monkeypatch.setattr(ppca, "_COVARIANCE_FEATURES", 12)
    assert model.get_covariance().shape == (12, 12)
    monkeypatch.setattr(ppca, "_COVARIANCE_FEATURES", 11)
    with pytest.raises(CapacityError, match=r"at most 11 features, got 12: .* Use loadings_"):
        model.get_covariance()


# ---- numbers of all sizes ---------------------------------------------------------------------


def test_rows_far_from_the_origin__lose_little(small_blocks):
    rows = planted(noise=1.0)
    near, far = (PPCA(3, random_state=0).fit(rows + shift) for shift in (0.0, 1e6))
    np.testing.assert_allclose(far.explained_variance_, near.explained_variance_, rtol=1e-8)
    assert far.noise_variance_ == pytest.approx(near.noise_variance_, rel=1e-8)


def test_units__only_move_the_likelihood():
    rows = planted()
    one, other = (PPCA(3, tolerance=1e-12, random_state=0).fit(rows * s) for s in (1.0, 2.0**40))
    np.testing.assert_allclose(other.components_, one.components_, atol=1e-6)
    moved = one.log_likelihood_ - rows.size * math.log(2.0**40)
    assert other.log_likelihood_ == pytest.approx(moved, rel=1e-9)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_rows_of_low_rank__end_at_the_floor_of_the_noise(share):
    rows = with_gaps(planted(noise=0.0), share)
    model = PPCA(3, random_state=0).fit(rows)
    floor = 1e-8 * np.nanvar(rows, axis=0).mean()
    assert floor <= model.noise_variance_ * (1 + 1e-12) < 1.01 * floor
    assert (np.diff(model.log_likelihood_path_) > 0).all()
    assert np.isfinite(model.transform(rows)).all()


def test_constant_columns__are_kept_with_a_warning():
    rows = planted(d=6)
    padded = np.column_stack([rows, np.full(len(rows), 7.1)])
    with pytest.warns(ConstantColumnsWarning, match=r"1 of 7 columns never vary \('x6'\)"):
        model = PPCA(2, tolerance=0.0, random_state=0).fit(padded)
    check_closed_form(model, oracle.closed_form(padded, 2))
    np.testing.assert_allclose(model.components_[:, 6], 0.0, atol=1e-12)


# ---- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 0}, "n_components: expected a whole number of at least 1"),
        ({"n_components": 1.5}, "n_components: expected a whole number"),
        ({"n_components": 12}, r"below min\(n_samples - 1, n_features\) = 12"),
        ({"noise_variance": 0.0}, "noise_variance: expected a finite number above 0"),
        ({"noise_variance": math.nan}, "noise_variance: expected a finite number"),
        ({"noise_variance": 1e-12}, "noise_variance: expected a finite number at least"),
        ({"tolerance": -1.0}, "tolerance: expected a finite number at least 0"),
        ({"max_iter": 0}, "max_iter: expected a whole number of at least 1"),
        ({"random_state": -1}, "random_state: expected None, a whole number"),
    ],
    ids=str,
)
def test_fit__refuses_parameters(options, message):
    with pytest.raises(InputError, match=message):
        PPCA(**options).fit(planted())


def test_fit__refuses_rows():
    rows = planted()
    infinite, empty = rows.copy(), rows.copy()
    infinite[3, 4] = math.inf
    empty[:, [2, 5]] = np.nan
    few = np.full((9, 12), np.nan)
    few[:3] = rows[:3]
    table = pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": ["x", "y", "x"], "c": [1.0, 5.0, 2.0]})
    for bad, message in (
        (infinite, "inf in row 3, column 4"),
        (da.from_array(infinite, chunks=50), "inf in row 3, column 4"),
        (empty, r"none in 2 columns \('x2', 'x5'\)"),
        (np.ones((20, 12)), "at least one column that varies"),
        (few, r"min\(n_samples - 1, n_features\) = 2.*n_samples = 3"),
        (rows[:3], "n_samples = 3"),
        (rows * 1e160, "mean variance .* Scale the columns"),
        (rows * 1e-160, "mean variance .* Scale the columns"),
        (table, "column 'b': expected numbers, got categories"),
    ):
        with pytest.raises(InputError, match=message):
            PPCA().fit(bad)


def test_fit__refuses_what_would_not_fit(monkeypatch):
    monkeypatch.setattr(ppca, "_POSTERIOR_BYTES", 500.0)
    PPCA(random_state=0).fit(planted())  # complete rows need no such sums
    with pytest.raises(CapacityError, match="12 features and 2 components"):
        PPCA().fit(with_gaps(planted()))


def test_new_rows__must_have_the_features_of_the_fit():
    table = pd.DataFrame(planted(d=3, q=1), columns=list("abc"))
    model = PPCA(1, random_state=0).fit(table)
    for method in (model.transform, model.score_samples, model.impute, model.score):
        with pytest.raises(InputError, match="feature names"):
            method(table[["a", "b"]])
        with pytest.raises(InputError, match="feature names"):
            method(table[["b", "a", "c"]])
        with pytest.raises(InputError, match="inf in row 0"):
            method(pd.DataFrame([[math.inf, 0.0, 0.0]], columns=list("abc")))
    model = PPCA(1, random_state=0).fit(table.to_numpy())
    with pytest.raises(InputError, match="expecting 3 features"):
        model.transform(np.ones((2, 2)))
    with pytest.raises(InputError, match="3 features"):
        model.transform([[1.0, 2.0]])


# ---- reports ----------------------------------------------------------------------------------


def test_max_iter__ends_with_a_warning():
    with pytest.warns(ConvergenceWarning, match="in iteration 2. Raise max_iter") as caught:
        model = PPCA(max_iter=2, random_state=0).fit(planted())
    assert caught[0].filename == __file__
    assert model.n_iter_ == 2
    assert len(model.log_likelihood_path_) == 3


def test_events__tell_how_em_goes():
    seen = []
    with events.listen(seen.append):
        model = PPCA(random_state=0).fit(planted())
    assert {event.stage for event in seen} == {"reading the rows", "EM"}
    last = [event for event in seen if event.stage == "EM"][-1]
    assert last.done == model.n_iter_
    assert last.metrics["log_likelihood"] == model.log_likelihood_


def test_seed__decides_the_start():
    rows = planted()
    check_same(PPCA(random_state=3).fit(rows), PPCA(random_state=3).fit(rows))
    paths = [PPCA(random_state=i).fit(rows).log_likelihood_path_[0] for i in (3, 4)]
    assert paths[0] != paths[1]


def test_fit__again_forgets_the_earlier_fit():
    table = pd.DataFrame(planted(d=4, q=1), columns=list("abcd"))
    model = PPCA(1, random_state=0).fit(table)
    assert model.feature_names_in_.tolist() == list("abcd")
    assert model.get_feature_names_out().tolist() == ["ppca0"]
    model.fit(planted(d=3, q=1).tolist())
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 3


# ---- files ------------------------------------------------------------------------------------


def test_save__comes_back_whole(tmp_path):
    table = pd.DataFrame(with_gaps(planted()), columns=[f"c{i}" for i in range(12)])
    model = PPCA(3, noise_variance=np.float64(0.2), random_state=np.int64(4)).fit(table)
    model.save(tmp_path / "model")
    again = distclust.load(tmp_path / "model")
    check_same(model, again)
    assert again.get_params() == model.get_params()
    assert again.feature_names_in_.tolist() == list(table.columns)
    for method in ("transform", "score_samples", "impute"):
        np.testing.assert_array_equal(getattr(again, method)(table), getattr(model, method)(table))
    with pytest.raises(InputError, match="feature names"):
        again.transform(table.rename(columns={"c0": "other"}))
    check_same(clone(again).fit(table), model)
    check_same(pickle.loads(pickle.dumps(model)), model)


def test_save__a_generator_is_not_kept(tmp_path):
    model = PPCA(random_state=np.random.default_rng(0)).fit(planted())
    model.save(tmp_path / "model")
    assert distclust.load(tmp_path / "model").random_state is None


def test_load__refuses_what_is_not_a_model(tmp_path):
    path = tmp_path / "model"
    PPCA(random_state=0).fit(planted()).save(path)
    archive = read_archive(path)
    meta = {key: archive.meta[key] for key in archive.meta if key != "created"}
    others = [
        (meta, {name: a for name, a in archive.arrays.items() if name != "mean_"}),
        (meta, archive.arrays | {"mean_": np.zeros(3)}),
        (meta, archive.arrays | {"loadings_": np.zeros((12, 5))}),
        (meta | {"parameters": {"depth": 3}}, archive.arrays),
        ({}, archive.arrays),
    ]
    for facts, arrays in others:
        write_archive(path, "PPCA", facts, arrays)
        with pytest.raises(ModelFormatError, match="a complete model"):
            distclust.load(path)
    write_archive(path, "Oracle", meta, archive.arrays)
    with pytest.raises(ModelFormatError, match=r"a model among BHC, .*PPCA.*, got 'Oracle'"):
        distclust.load(path)
