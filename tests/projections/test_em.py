"""EM for kernel PCA: both published forms, what the theorem says, directions that vanish."""

from __future__ import annotations

import numpy as np
import pytest

from distclust.projections.em import EM, EMState
from distclust.projections.shards import Product
from tests.oracles import kernel_pca as oracle

TOY = oracle.kernel_matrix(oracle.toy(), gamma=10.0)
TRUTH = oracle.fit(TOY)
N = len(TOY)


def starting_block(q: int, seed: int = 0, n: int = N) -> np.ndarray:
    block = np.random.default_rng(seed).normal(size=(n, q))
    return block - block.mean(axis=0)


def make_plan(sigma2: float, q: int = 3, seed: int = 0, tolerance=1e-30, max_iter=1000, n=N) -> EM:
    start = EMState.starting_with(starting_block(q, seed, n))
    return EM(start, sigma2, tolerance, max_iter, 1.0)


def steps(plan: EM, matrix: np.ndarray, n_steps: int | None = None):
    """Yield the state after every step; two shards answer."""
    state = plan.begin()
    while n_steps is None or state.n_products < n_steps:
        order = plan.order(state)
        if order is None:
            return
        assert isinstance(order, Product)
        product = matrix @ order.block
        state = plan.absorb(state, [product[:40], product[40:]])
        yield state


@pytest.mark.parametrize("sigma2", [0.3, 0.05, 1e-3, 0.0])
def test_steps__are_those_of_both_published_forms(sigma2, seed):
    z = starting_block(3, seed)
    c = z.T @ z
    z2, c2 = z, c
    for state in steps(make_plan(sigma2, seed=seed), TOY, 15):
        z, c = oracle.em_step(TRUTH.matrix, z, c, sigma2)
        z2, c2 = oracle.em_step_growing(TRUTH.matrix, z2, c2, sigma2)
        for wanted_z, wanted_c in ((z, c), (z2, c2)):
            np.testing.assert_allclose(state.latent, wanted_z, rtol=1e-7, atol=1e-8)
            np.testing.assert_allclose(state.moments, wanted_c, rtol=1e-7, atol=1e-7 * N)


def test_objective__is_the_published_one_and_never_falls(seed):
    sigma2 = 0.02
    z = starting_block(3, seed)
    c = z.T @ z
    *_, last = steps(make_plan(sigma2, seed=seed), TOY, 60)
    assert len(last.objective) == 60
    for got in last.objective[:12]:
        assert got == pytest.approx(oracle.em_objective(TRUTH.matrix, z, c, sigma2), rel=1e-8)
        z, c = oracle.em_step(TRUTH.matrix, z, c, sigma2)
    rises = np.diff(last.objective)
    assert (rises >= -1e-10 * np.abs(last.objective[1:])).all()
    assert rises[:5].min() > 0


def test_objective__needs_noise():
    *_, last = steps(make_plan(0.0), TOY, 3)
    assert len(last.objective) == 0


def test_path__spans_powers_of_the_matrix_whatever_the_noise(seed):
    paths = [steps(make_plan(sigma2, seed=seed), TOY, 8) for sigma2 in (1e-4, 0.03)]
    power = starting_block(3, seed)
    for one, other in zip(*paths, strict=True):
        # The basis that was multiplied is that of the step before.
        assert oracle.angle(one.basis, power) < 1e-9
        assert oracle.angle(other.basis, power) < 1e-9
        power = np.linalg.qr(TRUTH.matrix @ power)[0]
        assert oracle.angle(one.latent, power) < 1e-9
        assert oracle.angle(other.latent, power) < 1e-9


def test_stationary_point__is_that_of_the_theorem():
    q, sigma2 = 2, 0.1
    assert N * sigma2 < TRUTH.values[q - 1]
    *_, last = steps(make_plan(sigma2, q), TOY, 200)
    v, values = TRUTH.vectors[:, :q], TRUTH.values[:q]
    wanted = N * (v * (1.0 - N * sigma2 / values)) @ v.T
    np.testing.assert_allclose(last.latent @ last.latent.T, wanted, atol=1e-8)
    np.testing.assert_allclose(last.moments, N * np.eye(q), atol=1e-6)


def test_collapse__when_the_noise_lies_between_two_eigenvalues():
    sigma2 = (TRUTH.values[1] + TRUTH.values[2]) / 2.0 / N
    *_, last = steps(make_plan(sigma2, 3), TOY, 60)
    lengths = np.linalg.svd(last.latent, compute_uv=False)
    wanted = np.sqrt(N * (1.0 - N * sigma2 / TRUTH.values[:2]))
    np.testing.assert_allclose(lengths[:2], wanted, rtol=1e-6)
    assert lengths[2] < 1e-6 * lengths[0]
    # What is left is right, and what is told about the rest is true.
    np.testing.assert_allclose(last.values[:2], TRUTH.values[:2], rtol=1e-9)
    check_honest(last, TOY)


def check_honest(state: EMState, raw: np.ndarray) -> None:
    """Basis, product and residuals are what they are said to be."""
    q = state.basis.shape[1]
    scale = np.abs(raw).max() * len(raw)
    np.testing.assert_allclose(state.basis.T @ state.basis, np.eye(q), atol=1e-12)
    np.testing.assert_allclose(state.basis.mean(axis=0), 0.0, atol=1e-14)
    np.testing.assert_allclose(state.product, raw @ state.basis, atol=1e-13 * scale)
    np.testing.assert_allclose(state.row_sums, raw.sum(axis=1), rtol=1e-12)
    vectors = (state.basis @ state.vectors).T
    wanted = oracle.true_residuals(oracle.centred(raw), state.values, vectors)
    np.testing.assert_allclose(state.residuals, wanted, atol=1e-12 * scale)


def test_everything_vanishes__and_the_numbers_stay_finite():
    plan = make_plan(4.0 * TRUTH.values[0] / N, 3)
    *_, last = steps(plan, TOY, 900)  # far beyond the smallest number there is
    assert np.abs(last.latent).max() < 1e-250
    check_honest(last, TOY)


@pytest.mark.parametrize("sigma2", [0.0, 0.05])
def test_more_components_than_directions(sigma2):
    rows = np.random.default_rng(0).normal(size=(N, 2))
    raw = rows @ rows.T
    plan = make_plan(sigma2, 5, tolerance=1e-9)
    *_, last = steps(plan, raw)
    truth = oracle.fit(raw)
    np.testing.assert_allclose(last.values, truth.values[:5], atol=1e-9 * truth.values[0])
    check_honest(last, raw)


def test_end__at_the_tolerance_or_at_the_last_product():
    plan = make_plan(0.0, 2, tolerance=1e-7)
    *_, last = steps(plan, TOY)
    assert plan.is_converged(last)
    assert last.residuals.max() <= 1e-7 * last.values[0]
    assert oracle.angle(last.basis, TRUTH.vectors[:, :2]) < 1e-6
    short = make_plan(0.0, 2, tolerance=1e-7, max_iter=4)
    *_, last = steps(short, TOY)
    assert last.n_products == 4
    assert not short.is_converged(last)


def test_as_subspace__carries_everything_over():
    *_, last = steps(make_plan(0.0, 2), TOY, 5)
    found = last.as_subspace()
    assert found.basis is last.basis
    assert found.product is last.product
    assert found.row_sums is last.row_sums
    assert found.block.shape == (N, 0)
    assert found.n_products == 5
