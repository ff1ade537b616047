"""Bayesian cluster ensembles against enumeration of indicators."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import digamma
from sklearn.metrics import adjusted_rand_score

from distclust.ensembles import bayesian_ensemble as bce
from distclust.ensembles.bayesian_ensemble import BayesianEnsembleSampler, VariationalOptions
from distclust.ensembles.label_rows import LabelRows
from distclust.errors import InputError
from distclust.store.states import pack_state, unpack_state
from tests.ensembles.test_multinomial_mixture import SIZES, distinct, make_codes
from tests.oracles import ensembles as oracle

TINY = np.array([[0, 1], [1, -1], [0, 0]], np.int8)  # four labels but one
TINY_SIZES = [3, 2]
PRIOR = np.array([0.4, 0.9])


def start(labels, n_components=3, seed=0, prior=None):
    rng = np.random.default_rng(seed)
    theta = np.vstack([rng.dirichlet(np.ones(j), n_components).T for j in labels.n_labels])
    return bce.start(labels, theta, bce.prior_of(prior, n_components))


# ---- variational ------------------------------------------------------------------------------


def test_bound__is_that_of_the_definition():
    codes, _ = make_codes(n=30)
    labels = LabelRows.of(codes, SIZES)
    state = start(labels)
    for _ in range(3):
        following = bce.advance(labels, state, VariationalOptions(inner=1))
        phi = obvious_phi(codes, state)
        wanted = oracle.bce_bound(state.gamma, phi, state.theta, state.prior, codes, SIZES)
        assert following.bound == pytest.approx(wanted, abs=1e-9)
        gamma = [
            state.prior + sum(p for p, y in zip(ps, row, strict=True) if y >= 0)
            for ps, row in zip(phi, codes, strict=True)
        ]
        np.testing.assert_allclose(following.gamma, gamma, atol=1e-10)
        state = following


def obvious_phi(codes, state):
    offsets = np.cumsum([0, *SIZES])
    found = []
    for n, row in enumerate(codes):
        share = np.exp(digamma(state.gamma[n]))
        parts = [share * state.theta[offsets[m] + max(y, 0)] for m, y in enumerate(row)]
        found.append([part / part.sum() for part in parts])
    return found


@pytest.mark.parametrize("options", [{}, {"inner": 1}, {"learns_prior": True}, {"epsilon": 0.2}])
def test_bound__never_falls(seed, options):
    codes, _ = make_codes(seed)
    labels = LabelRows.of(codes, SIZES)
    fit = bce.climb(labels, start(labels, 4, seed), VariationalOptions(150, **options))
    assert len(fit.trace) > 5
    assert np.diff(fit.trace).min() > -1e-10 * abs(fit.trace[-1])


def test_bound__is_below_the_evidence():
    labels = LabelRows.of(TINY, TINY_SIZES)
    fit = bce.climb(labels, start(labels, 2, prior=PRIOR), VariationalOptions())
    exact = [oracle.bce_probability(r, fit.theta, PRIOR, TINY_SIZES) for r in TINY]
    assert fit.bound < np.log(exact).sum() < fit.bound + 3.0


def test_newton__finds_the_most_likely_prior(rng):
    a = np.array([0.3, 1.0, 4.0])
    logs = np.log(rng.dirichlet(a, size=4000))
    found = bce.fitted_prior(np.ones(3), logs.sum(axis=0), 4000.0)
    np.testing.assert_allclose(found, a, rtol=0.1)
    slope = digamma(found.sum()) - digamma(found) + logs.mean(axis=0)
    np.testing.assert_allclose(slope, 0.0, atol=1e-8)


def test_distinct_rows__give_the_fit_of_all_rows():
    codes, _ = make_codes()
    rows, inverse, counts = distinct(codes)
    everyone, few = LabelRows.of(codes, SIZES), LabelRows.of(rows, SIZES, counts)
    options = VariationalOptions(20, tolerance=0.0, learns_prior=True)
    long = bce.climb(everyone, start(everyone), options)
    short = bce.climb(few, start(few), options)
    np.testing.assert_allclose(short.trace, long.trace, rtol=1e-8)
    np.testing.assert_allclose(short.gamma[inverse], long.gamma, rtol=1e-6)
    np.testing.assert_allclose(short.prior, long.prior, rtol=1e-6)


def test_fit__finds_the_groups(seed):
    codes, truth = make_codes(seed, n=400, missing=0.05, noise=0.1)
    fit = bce.fit_bayesian_ensemble(codes, SIZES, 3, n_restarts=5, seed=seed)
    assert adjusted_rand_score(fit.labels, truth) > 0.6
    np.testing.assert_allclose(fit.memberships.sum(axis=1), 1.0)
    np.testing.assert_allclose(fit.prior, 1 / 3)


def test_predictive__is_a_sum_over_indicators():
    labels = LabelRows.of(TINY, TINY_SIZES)
    state = start(labels, 2)
    found = np.exp(bce.log_probabilities(labels, state.theta, PRIOR))
    wanted = [oracle.bce_probability(r, state.theta, PRIOR, TINY_SIZES) for r in TINY]
    np.testing.assert_allclose(found, wanted, rtol=0.03)
    again = np.exp(bce.log_probabilities(labels, state.theta, PRIOR))
    np.testing.assert_array_equal(found, again)


# ---- Gibbs ------------------------------------------------------------------------------------


def make_sampler(codes=TINY, n_labels=TINY_SIZES, prior=PRIOR, smoothing=0.7):
    return BayesianEnsembleSampler.of(codes, n_labels, len(prior), prior, smoothing)


def all_indicators(codes, n_components):
    """Yield indicators of all labels; 0 where there is none."""
    seen = np.argwhere(codes >= 0)
    for chosen in itertools.product(range(n_components), repeat=len(seen)):
        found = np.zeros(codes.shape, np.int8)
        found[tuple(seen.T)] = chosen
        yield found


def test_log_joint__is_that_of_the_definition():
    sampler = make_sampler()
    state = sampler.begin(0, np.random.default_rng(0))
    for s in all_indicators(TINY, 2):
        told = sampler._told(replace(state, indicators=s), *sampler._counts(s))
        wanted = oracle.bce_log_joint(s, TINY, TINY_SIZES, PRIOR, 0.7)
        assert told.log_joint == pytest.approx(wanted, abs=1e-10)


def test_conditionals__are_ratios_of_the_joint():
    """The first label is drawn given all others: the edge of its interval is found by halving."""
    sampler = make_sampler()
    state = sampler.begin(0, np.random.default_rng(0))

    class Fixed:
        def __init__(self, first):
            self.first = first

        def random(self, shape):
            found = np.full(shape, 0.5)
            found.flat[0] = self.first
            return found

    for s in itertools.islice(all_indicators(TINY, 2), 0, None, 5):
        low, high = 0.0, 1.0
        for _ in range(50):
            middle = 0.5 * (low + high)
            moved = sampler.sweep(
                None, replace(state, indicators=s.copy(), generator=Fixed(middle))
            )
            if moved.indicators[0, 0] == 0:
                low = middle
            else:
                high = middle
        logs = []
        for k in range(2):
            changed = s.copy()
            changed[0, 0] = k
            logs.append(oracle.bce_log_joint(changed, TINY, TINY_SIZES, PRIOR, 0.7))
        assert low == pytest.approx(1 / (1 + np.exp(logs[1] - logs[0])), abs=1e-10)


def test_sweeps__draw_from_the_posterior():
    sampler = make_sampler()
    exact = {
        s.tobytes(): np.exp(oracle.bce_log_joint(s, TINY, TINY_SIZES, PRIOR, 0.7))
        for s in all_indicators(TINY, 2)
    }
    total = sum(exact.values())
    state, n_sweeps = sampler.begin(0, np.random.default_rng(5)), 10_000
    found: Counter[bytes] = Counter()
    for _ in range(n_sweeps):
        state = sampler.sweep(None, state)
        found[state.indicators.tobytes()] += 1 / n_sweeps
    wanted = {s: p / total for s, p in exact.items()}
    assert oracle.total_variation(found, wanted) < 0.05


def test_sweeps__pass_the_joint_test_of_geweke():
    rng, n, sizes, eta = np.random.default_rng(1), 4, [2, 3], 0.8
    prior = np.array([0.5, 0.5, 1.0])

    def labels_given(s):
        codes = np.empty((n, 2), np.int8)
        for m, j in enumerate(sizes):
            for k in range(3):
                here = s[:, m] == k
                codes[here, m] = rng.choice(j, here.sum(), p=rng.dirichlet(np.full(j, eta)))
        return codes

    def statistics(s, codes):
        same = (s[:, 0] == s[:, 1]).mean()
        return [same, (s == 2).mean(), codes.mean(), (codes[:, 0] == codes[0, 0]).mean()]

    alone = []
    for _ in range(3000):
        pi = rng.dirichlet(prior, n)
        s = np.array([rng.choice(3, 2, p=p) for p in pi])
        codes = labels_given(s)
        alone.append(statistics(s, codes))
    chain, state = [], None
    for _ in range(6000):
        sampler = BayesianEnsembleSampler.of(codes, sizes, 3, prior, eta)
        state = sampler.begin(0, rng) if state is None else state
        state = sampler.sweep(None, state)
        codes = labels_given(state.indicators)
        chain.append(statistics(state.indicators, codes))
    scores = oracle.z_scores(alone, chain)
    assert np.abs(scores).max() < 4.0, scores


def test_sweeps__find_the_groups():
    codes, truth = make_codes(1, n=200, missing=0.05, noise=0.05)
    sampler = BayesianEnsembleSampler.of(codes, SIZES, 3)
    state = sampler.begin(0, np.random.default_rng(0))
    for _ in range(150):
        state = sampler.sweep(None, state)
    assert adjusted_rand_score(sampler.labels(state), truth) > 0.6
    np.testing.assert_array_equal(state.memberships.sum(axis=1), (codes >= 0).sum(axis=1))
    np.testing.assert_allclose(sampler.mean_memberships(state).sum(axis=1), 1.0)
    theta = sampler.theta(state)
    np.testing.assert_allclose(np.add.reduceat(theta, [0, 3, 7], axis=0), 1.0)
    assert sampler.scalars(state)[1] == 3.0


def test_resumed__is_unbroken_bit_for_bit():
    codes, _ = make_codes()
    sampler = BayesianEnsembleSampler.of(codes, SIZES, 3)
    unbroken = sampler.begin(0, np.random.default_rng(0))
    state = sampler.begin(0, np.random.default_rng(0))
    for _ in range(6):
        unbroken = sampler.sweep(None, unbroken)
        state = unpack_state(sampler.state_type, *pack_state(state))
        state = sampler.sweep(None, state)
    np.testing.assert_array_equal(state.indicators, unbroken.indicators)
    assert state.log_joint == unbroken.log_joint


def test_align__undoes_a_change_of_names(rng):
    reference = (
        rng.integers(0, 5, size=(50, 4)) + 8 * np.eye(4, dtype=int)[rng.integers(4, size=50)]
    )
    shuffled = reference[:, [2, 0, 3, 1]]
    np.testing.assert_array_equal(bce.align(shuffled, reference), reference)


@pytest.mark.parametrize("prior", [0.0, [1.0, -1.0], float("nan")])
def test_bad_priors__get_a_sentence(prior):
    with pytest.raises(InputError):
        bce.prior_of(prior, 2)
