"""EM on label rows against plain sums."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from distclust.ensembles import label_rows
from distclust.ensembles.label_rows import LabelRows
from distclust.ensembles.multinomial_mixture import (
    EMOptions,
    MixtureState,
    advance,
    begin,
    climb,
    fit_multinomial_mixture,
    log_probabilities,
    responsibilities,
)
from distclust.errors import InputError
from tests.oracles import ensembles as oracle

SIZES = [3, 4, 2]


def make_codes(seed=0, n=120, missing=0.15, noise=0.2):
    """Return labels of three groups, with errors and gaps, and the groups."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(3, size=n)
    codes = np.stack([truth % j for j in SIZES], axis=1)
    wrong = rng.random(codes.shape) < noise
    codes[wrong] = (rng.random(codes.shape) * SIZES).astype(int)[wrong]
    codes[rng.random(codes.shape) < missing] = -1
    return codes.astype(np.int8), truth


def distinct(codes):
    rows, inverse, counts = np.unique(codes, axis=0, return_inverse=True, return_counts=True)
    return np.ascontiguousarray(rows), inverse.ravel(), counts.astype(float)


def start(labels, n_components=3, seed=0):
    return begin(labels, n_components, np.random.default_rng(seed))


def obvious_step(codes, weights, shares, theta, epsilon):
    """Do one step of EM by loops."""
    offsets = np.cumsum([0, *SIZES])
    sizes, counts, total = np.zeros(len(shares)), np.full(theta.shape, epsilon), 0.0
    for row, weight in zip(codes, weights, strict=True):
        parts = np.array(shares)
        for m, label in enumerate(row):
            if label >= 0:
                parts = parts * theta[offsets[m] + label]
        total += weight * np.log(parts.sum())
        rho = weight * parts / parts.sum()
        sizes += rho
        for m, label in enumerate(row):
            if label >= 0:
                counts[offsets[m] + label] += rho
    for m, size in enumerate(SIZES):
        here = slice(offsets[m], offsets[m] + size)
        counts[here] /= counts[here].sum(axis=0)
    return sizes / sizes.sum(), counts, total


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_step__is_that_of_loops(rng, epsilon):
    codes, _ = make_codes()
    weights = rng.integers(1, 5, size=len(codes)).astype(float)
    labels = LabelRows.of(codes, SIZES, weights)
    state = start(labels)
    found = advance(labels, state, epsilon)
    shares, theta, total = obvious_step(codes, weights, state.shares, state.theta, epsilon)
    np.testing.assert_allclose(found.shares, shares, atol=1e-12)
    np.testing.assert_allclose(found.theta, theta, atol=1e-12)
    prior = epsilon * np.log(state.theta).sum() if epsilon else 0.0
    assert found.objective == pytest.approx(total + prior, abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_objective__never_falls(seed, epsilon):
    codes, _ = make_codes(seed)
    labels = LabelRows.of(codes, SIZES)
    options = EMOptions(max_iterations=200, epsilon=epsilon)
    fit = climb(labels, start(labels, 4, seed), options)
    assert len(fit.trace) > 5
    assert np.diff(fit.trace).min() > -1e-10 * abs(fit.trace[-1])


def test_probabilities__are_those_of_the_mixture():
    codes, _ = make_codes(n=40)
    labels = LabelRows.of(codes, SIZES)
    state = start(labels)
    found = np.exp(log_probabilities(labels, state.shares, state.theta))
    wanted = [oracle.mixture_probability(r, state.shares, state.theta, SIZES) for r in codes]
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    every = np.array(list(np.ndindex(*SIZES)), np.int8)
    total = np.exp(log_probabilities(LabelRows.of(every, SIZES), state.shares, state.theta))
    assert total.sum() == pytest.approx(1.0)
    rho = responsibilities(labels, state.shares, state.theta)
    first = [
        oracle.mixture_probability(r, state.shares * [1, 0, 0], state.theta, SIZES) for r in codes
    ]
    np.testing.assert_allclose(rho[:, 0], np.array(first) / wanted, rtol=1e-10)


def test_distinct_rows__give_the_fit_of_all_rows():
    codes, _ = make_codes()
    rows, inverse, counts = distinct(codes)
    all_labels, few = LabelRows.of(codes, SIZES), LabelRows.of(rows, SIZES, counts)
    state, options = start(few), EMOptions(max_iterations=20, tolerance=0.0)
    long, short = climb(all_labels, state, options), climb(few, state, options)
    np.testing.assert_allclose(short.trace, long.trace, rtol=1e-12)
    np.testing.assert_allclose(short.theta, long.theta, atol=1e-10)
    spread = responsibilities(few, short.shares, short.theta)[inverse]
    np.testing.assert_allclose(
        spread, responsibilities(all_labels, long.shares, long.theta), atol=1e-9
    )


def test_blocks__change_sums_only(monkeypatch):
    codes, _ = make_codes()
    labels = LabelRows.of(codes, SIZES)
    whole = advance(labels, start(labels))
    monkeypatch.setattr(label_rows, "BLOCK_ROWS", 7)
    parts = advance(labels, start(labels))
    np.testing.assert_allclose(parts.theta, whole.theta, rtol=1e-12)
    rho = responsibilities(labels, parts.shares, parts.theta)
    assert rho.shape == (120, 3)
    np.testing.assert_allclose(rho.sum(axis=1), 1.0)
    assert len(log_probabilities(labels, parts.shares, parts.theta)) == 120


def test_fit__finds_the_groups(seed):
    codes, truth = make_codes(seed, n=400, missing=0.05, noise=0.1)
    fit = fit_multinomial_mixture(codes, SIZES, 3, n_restarts=5, seed=seed)
    found = responsibilities(LabelRows.of(codes, SIZES), fit.shares, fit.theta).argmax(axis=1)
    assert adjusted_rand_score(found, truth) > 0.7
    assert fit.has_converged


def test_fit__is_the_best_of_its_restarts():
    codes, _ = make_codes()
    one = [
        fit_multinomial_mixture(codes, SIZES, 5, n_restarts=n, seed=2).log_likelihood
        for n in (1, 4, 8)
    ]
    assert one[0] <= one[1] <= one[2]
    fit = fit_multinomial_mixture(codes, SIZES, 5, n_restarts=8, seed=2)
    alone = climb_of(codes, fit.restart)
    assert fit.log_likelihood == alone.log_likelihood


def climb_of(codes, restart):
    from distclust.ensembles.multinomial_mixture import fit_restart

    return fit_restart(restart, LabelRows.of(codes, SIZES), 5, 2, EMOptions())


def test_restarts__are_the_same_on_workers(on_client):
    codes, _ = make_codes()
    there = fit_multinomial_mixture(codes, SIZES, 4, n_restarts=3, seed=1)
    labels = LabelRows.of(codes, SIZES)
    from distclust.ensembles.multinomial_mixture import fit_restart

    here = fit_restart(there.restart, labels, 4, 1, EMOptions())
    np.testing.assert_array_equal(there.theta, here.theta)
    np.testing.assert_array_equal(there.trace, here.trace)


def test_unseen_labels__are_impossible_without_smoothing():
    codes = np.array([[0], [0], [1]], np.int8)
    fit = fit_multinomial_mixture(codes, [3], 1)
    rows = LabelRows.of(np.array([[2], [0]], np.int8), [3])
    found = log_probabilities(rows, fit.shares, fit.theta)
    assert found[0] == -np.inf
    assert found[1] == pytest.approx(np.log(2 / 3))
    np.testing.assert_allclose(responsibilities(rows, fit.shares, fit.theta), 1.0)
    smooth = fit_multinomial_mixture(codes, [3], 1, options=EMOptions(epsilon=1.0))
    np.testing.assert_allclose(smooth.theta[:, 0], [3 / 6, 2 / 6, 1 / 6])


def test_more_components_than_rows__is_no_harm():
    codes = np.array([[0, 1], [0, 1]], np.int8)
    fit = fit_multinomial_mixture(codes, [2, 2], 4)
    assert fit.log_likelihood == pytest.approx(0.0, abs=1e-6)


def test_rows_without_labels__have_the_shares():
    state = MixtureState(np.array([0.3, 0.7]), np.full((2, 2), 0.5))
    rows = LabelRows.of(np.array([[-1]], np.int8), [2])
    np.testing.assert_allclose(responsibilities(rows, state.shares, state.theta), [[0.3, 0.7]])


@pytest.mark.parametrize(
    "options", [{"epsilon": -1.0}, {"max_iterations": 0}, {"tolerance": float("nan")}]
)
def test_bad_options__get_a_sentence(options):
    with pytest.raises(InputError):
        EMOptions(**options)
