"""Block Krylov subspaces: eigenpairs of a dense solver, on spectra of all kinds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distclust.engine.threads import grant_threads
from distclust.projections.krylov import Krylov, Subspace, block_width, thinned
from distclust.projections.shards import Product
from distclust.projections.subspace import centred, inner, orthonormal, ritz, signs_of, times
from tests.oracles import kernel_pca as oracle

N = 120


def planted_matrix(values: np.ndarray, n: int = N, seed: int = 0) -> np.ndarray:
    """Return a matrix with these eigenvalues after centring, and a large mean."""
    rng = np.random.default_rng(seed)
    block = np.column_stack([np.ones(n), rng.normal(size=(n, len(values)))])
    vectors = np.linalg.qr(block)[0][:, 1:]
    shift = rng.normal(size=n)
    matrix = (vectors * values) @ vectors.T
    return matrix + np.abs(values).max() * (shift[:, None] + shift + 1.0)


def make_plan(q, n=N, tolerance=1e-10, max_iter=1000, scale=1.0, seed=0) -> Krylov:
    rng = np.random.default_rng(seed)
    block = orthonormal(centred(rng.normal(size=(n, block_width(q, n)))))
    return Krylov(Subspace.starting_with(block, q), q, tolerance, max_iter, scale)


def follow(plan: Krylov, matrix: np.ndarray, look=None) -> Subspace:
    state = plan.begin()
    while (order := plan.order(state)) is not None:
        product = rounded(matrix, order.block) if is_single(order) else matrix @ order.block
        state = plan.absorb(state, [product[:7], product[7:50], product[50:]])
        if look is not None:
            look(state)
    return state


def is_single(order: Product) -> bool:
    return order.block.dtype == np.float32


def rounded(matrix: np.ndarray, block: np.ndarray) -> np.ndarray:
    return (matrix.astype(np.float32) @ block.astype(np.float32)).astype(np.float64)


def wanted_vectors(state: Subspace) -> np.ndarray:
    return state.basis @ state.vectors[:, : len(state.residuals)]


def check_state(state: Subspace, matrix: np.ndarray) -> None:
    """What a state says of itself is true."""
    width = state.basis.shape[1]
    scale = np.abs(matrix).max() * len(matrix)
    np.testing.assert_allclose(state.basis.T @ state.basis, np.eye(width), atol=1e-11)
    np.testing.assert_allclose(state.basis.mean(axis=0), 0.0, atol=1e-13)
    np.testing.assert_allclose(state.product, matrix @ state.basis, atol=1e-13 * scale)
    np.testing.assert_allclose(state.row_sums, matrix.sum(axis=1), atol=1e-13 * scale)
    q = len(state.residuals)
    vectors = wanted_vectors(state).T
    wanted = oracle.true_residuals(oracle.centred(matrix), state.values[:q], vectors)
    np.testing.assert_allclose(state.residuals, wanted, atol=1e-12 * scale)
    if state.block.shape[1]:
        assert np.abs(state.basis.T @ state.block).max() < 1e-11
        np.testing.assert_allclose(state.block.mean(axis=0), 0.0, atol=1e-13)


@pytest.mark.parametrize("q", [1, 6])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("gamma", [1e-5, 1e-2, 0.1, 3.0])
def test_rounding__is_not_noticed(gamma, tolerance, q, seed):
    """Residuals are true to a small part of the tolerance, also where all entries are alike."""
    rng = np.random.default_rng(seed)
    rows = 2.0 * rng.normal(size=(5, 4))[rng.integers(5, size=N)] + rng.normal(size=(N, 4))
    matrix = oracle.kernel_matrix(rows, gamma=gamma)
    plan = make_plan(q, tolerance=tolerance, scale=N, seed=seed)
    found = follow(replace(plan, may_round=True), matrix)
    truth = oracle.fit(matrix)
    true = oracle.true_residuals(truth.matrix, found.values[:q], wanted_vectors(found).T)
    np.testing.assert_allclose(found.residuals, true, atol=5e-4 * tolerance * truth.values[0])
    assert found.residuals.max() <= tolerance * found.values[0]


def test_rounding__only_where_it_is_allowed_and_residuals_are_small():
    rows = np.random.default_rng(0).normal(size=(N, 4))
    matrix = oracle.kernel_matrix(rows, gamma=0.2)
    for may_round in (False, True):
        plan = replace(make_plan(3, tolerance=1e-6, scale=N), may_round=may_round)
        state, asked = plan.begin(), []
        while (order := plan.order(state)) is not None:
            asked.append(is_single(order))
            state = plan.absorb(state, [matrix @ order.block.astype(np.float64)])
        assert asked[0] is False
        assert any(asked) == may_round
        assert asked == sorted(asked)  # from some round on


@pytest.mark.parametrize("q", [1, 3, 12])
@pytest.mark.parametrize("spectrum", oracle.SPECTRA)
def test_eigenpairs__on_many_spectra(spectrum, q, seed):
    values = oracle.SPECTRA[spectrum]
    matrix = planted_matrix(values, seed=seed)
    truth = oracle.fit(matrix)
    found = follow(make_plan(q, seed=seed), matrix)
    check_state(found, matrix)
    assert found.residuals.max() <= 1e-10 * truth.values[0] * 1.01
    error = np.abs(found.values[:q] - truth.values[:q])
    assert (error <= found.residuals + 1e-12 * np.abs(matrix).max() * N).all()
    check_angles(wanted_vectors(found), truth, q)


def check_angles(vectors: np.ndarray, truth: oracle.Fitted, q: int) -> None:
    """Compare spans of all eigenvalues above each gap that is wide enough."""
    gaps = -np.diff(truth.values[: q + 1]) > 1e-3 * truth.values[0]
    for k in np.flatnonzero(gaps) + 1:
        assert oracle.angle(vectors[:, :k], truth.vectors[:, :k]) < 1e-6


@pytest.mark.parametrize("spectrum", ["no gaps", "slow", "one huge"])
def test_states__are_consistent_on_the_way(spectrum):
    """Also after a wide basis was thinned out, of which there must be some."""
    matrix = planted_matrix(np.resize(oracle.SPECTRA[spectrum], 110), n=300)
    widths = []

    def look(state):
        check_state(state, matrix)
        widths.append(state.basis.shape[1])

    found = follow(make_plan(2, 300, 1e-13, scale=0.0), matrix, look)
    assert found.residuals.max() < 1e-10 * np.abs(matrix).max() * 300
    if spectrum == "slow":
        assert max(np.diff(widths)) <= block_width(2, 300)


def test_blocks__columns_that_are_done_are_not_multiplied_any_more():
    """Three stand out and are found at once, two take longer."""
    matrix = planted_matrix(np.append([100.0, 90.0, 80.0], np.linspace(1.0, 0.0, 200)), n=300)
    plan = make_plan(5, 300, 1e-8)
    states: list[Subspace] = []
    found = follow(plan, matrix, states.append)
    assert plan.is_converged(found)
    widths = [state.block.shape[1] for state in states]
    assert widths[0] == block_width(5, 300)
    assert widths[-2] == block_width(5, 300) - 3
    for state in states:
        check_state(state, matrix)


def test_thinning__bounds_the_basis_and_still_converges():
    values = np.linspace(1.0, 0.5, 500)  # nothing stands out
    matrix = planted_matrix(values, n=600)
    widths = []
    plan = make_plan(2, 600, 1e-6)
    found = follow(plan, matrix, lambda state: widths.append(state.basis.shape[1]))
    assert plan.is_converged(found)
    assert min(np.diff(widths)) < 0, "the basis was never thinned out"
    assert max(widths) <= 13 * block_width(2, 600)
    np.testing.assert_allclose(found.values[:2], oracle.fit(matrix).values[:2], rtol=1e-6)


def test_all_components__that_there_are():
    n = 25
    values = np.linspace(3.0, 0.1, n - 1)
    matrix = planted_matrix(values, n)
    found = follow(make_plan(n - 1, n), matrix)
    assert found.basis.shape == (n, n - 1)
    np.testing.assert_allclose(found.values, values, atol=1e-11)
    for q in (1, 5):  # the basis comes to span everything
        few = follow(make_plan(q, n, tolerance=1e-30, scale=0.0), matrix)
        assert few.basis.shape[1] <= n - 1
        np.testing.assert_allclose(few.values[:q], values[:q], atol=1e-11)


def test_nothing_at_all():
    found = follow(make_plan(3, scale=1.0), np.zeros((N, N)))
    assert (found.values == 0).all()
    assert found.n_products == 1


def test_constant_matrix__has_nothing_beside_its_mean():
    found = follow(make_plan(3, scale=5.0 * N), np.full((N, N), 5.0))
    np.testing.assert_allclose(found.values, 0.0, atol=1e-11)
    assert found.n_products == 1


def test_negative_eigenvalues__do_not_come_first():
    values = np.r_[3.0, 2.0, 1.0, -2.5, -4.0]
    found = follow(make_plan(2), planted_matrix(values))
    np.testing.assert_allclose(found.values[:2], [3.0, 2.0], atol=1e-8)
    assert found.values[-1] == pytest.approx(-4.0, abs=1e-6)


def test_end__at_the_last_product():
    matrix = planted_matrix(oracle.SPECTRA["no gaps"])
    plan = make_plan(5, max_iter=2)
    found = follow(plan, matrix)
    assert found.n_products == 2
    assert not plan.is_converged(found)
    check_state(found, matrix)


def test_start__with_a_basis_that_is_right_costs_no_product():
    matrix = planted_matrix(oracle.SPECTRA["gaps"])
    plan = make_plan(3, tolerance=1e-8)
    found = follow(plan, matrix)
    start = thinned(replace(found, n_products=0), found.basis.shape[1])
    again = replace(plan, start=plan.begun(start))
    assert follow(again, matrix).n_products == 0


@given(st.integers(3, 40), st.integers(1, 6), st.integers(0, 10_000))
def test_any_matrix(n, q, seed):
    q = min(q, n - 1)
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, n + 1))
    features = rng.normal(size=(n, rank)) * 10.0 ** rng.uniform(-3, 3, rank)
    features[: n // 3] = features[0]  # the same row, again and again
    matrix = features @ features.T
    plan = make_plan(q, n, 1e-9, scale=float(np.trace(matrix)), seed=seed)
    state = plan.begin()
    while (order := plan.order(state)) is not None:
        state = plan.absorb(state, [matrix @ order.block])
    assert state.basis.shape[1] <= n - 1
    truth = oracle.fit(matrix)
    allowed = 1e-9 * truth.values[0] + 1e-12 * np.trace(matrix)
    np.testing.assert_allclose(state.values[:q], truth.values[:q], rtol=0, atol=allowed)
    assert state.residuals.max() <= allowed


# ---- algebra of thin blocks --------------------------------------------------------------------


@pytest.mark.parametrize("condition", [1.0, 1e6, 1e12, np.inf])
def test_orthonormal__whatever_the_condition(condition, rng):
    basis = np.linalg.qr(centred(rng.normal(size=(50, 4))))[0]
    block = centred(rng.normal(size=(50, 5)))
    block[:, -1] = block[:, 0] + block[:, -1] / condition
    found = orthonormal(block, basis)
    np.testing.assert_allclose(found.T @ found, np.eye(5), atol=1e-13)
    np.testing.assert_allclose(basis.T @ found, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.mean(axis=0), 0.0, atol=1e-14)
    if condition < 1e7:
        wanted = np.column_stack([basis, block])
        assert oracle.angle(np.column_stack([basis, found]), wanted) < 1e-8


@pytest.mark.parametrize("n_rows", [1, 2048, 5000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_tall_products__are_right_and_the_same_by_any_threads(n_rows, order, rng):
    tall = np.asarray(rng.normal(size=(n_rows, 7)), order=order)
    small, other = rng.normal(size=(7, 3)), rng.normal(size=(n_rows, 4))
    found = []
    for n_threads in (1, 2, 5):
        with grant_threads(n_threads):
            found.append((times(tall, small), inner(tall, other)))
    np.testing.assert_allclose(found[0][0], tall @ small, atol=1e-12)
    np.testing.assert_allclose(found[0][1], tall.T @ other, atol=1e-10)
    for product, gram in found[1:]:
        np.testing.assert_array_equal(product, found[0][0])
        np.testing.assert_array_equal(gram, found[0][1])


def test_ritz__is_ordered_and_symmetrises(rng):
    matrix = rng.normal(size=(6, 6))
    values, vectors = ritz(matrix)
    assert (np.diff(values) <= 0).all()
    half = (matrix + matrix.T) / 2.0
    np.testing.assert_allclose(half @ vectors, vectors * values, atol=1e-13)


def test_signs__largest_entry_positive_first_on_ties():
    vectors = np.array([[1.0, -3.0, 2.0, 0.0], [-2.0, 3.0, -2.0, 0.0], [0.5, 1.0, 0.0, 0.0]])
    wanted = np.array([[-1.0, 3.0, 2.0, 0.0], [2.0, -3.0, -2.0, 0.0], [-0.5, -1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(vectors * signs_of(vectors), wanted)
