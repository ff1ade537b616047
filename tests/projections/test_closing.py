"""The last step without a product: what it says of itself is judged by the dense matrix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import distclust
from distclust import KernelPCA
from distclust.projections import closing
from distclust.projections.closing import PROBED, Probe, close
from distclust.projections.growing import Joined
from distclust.projections.kernels import Kernel, Preparation
from distclust.projections.subspace import orthonormal
from tests.oracles import kernel_pca as oracle
from tests.small_tiles import shrink

GAMMA = 0.1
N_OLD, N_NEW = 1060, 30


@pytest.fixture(scope="module", autouse=True)
def small_tiles():
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch, 128)
        yield


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = 2.5 * rng.normal(size=(6, 8))
    return centres[rng.integers(6, size=N_OLD + N_NEW)] + 0.6 * rng.normal(size=(N_OLD + N_NEW, 8))


@pytest.fixture(scope="module")
def truth(rows) -> oracle.Fitted:
    return oracle.fit(oracle.kernel_matrix(rows, gamma=GAMMA))


def probe_of(rows: np.ndarray, n_old: int = N_OLD, kernel: str = "rbf") -> Probe | None:
    preparation = Preparation(Kernel(kernel, GAMMA), "float64", None)
    old_tiles = preparation.tiles(rows[:n_old])
    return Joined.of(preparation, rows[:n_old], rows[n_old:], old_tiles).probe(0)


def true_residuals(truth: oracle.Fitted, model: KernelPCA) -> np.ndarray:
    return oracle.true_residuals(truth.matrix, model.eigenvalues_, model.components_)


# ---- the probe ---------------------------------------------------------------------------------


def test_probe__multiplies_rows_of_the_matrix(rows):
    probe, block = probe_of(rows), np.random.default_rng(1).normal(size=(len(rows), 3))
    block[N_OLD:] *= 10.0  # new rows are drawn, too
    drawn = probe.draw(block)
    assert drawn.draws.sum() == PROBED >= len(drawn.rows)
    assert drawn.rows.min() < N_OLD <= drawn.rows.max()
    wanted = oracle.kernel_matrix(rows, gamma=GAMMA)[drawn.rows] @ block
    np.testing.assert_allclose(probe.product(drawn.rows, block), wanted, atol=1e-11)


def test_probe__is_worth_it_for_many_rows_of_kernels_that_take_a_matrix(rows):
    assert probe_of(rows, 8 * PROBED) is not None
    assert probe_of(rows, 8 * PROBED - 1) is None
    assert probe_of(rows, kernel="linear") is None


def scales_of(n_rows: int, kind: str, rng: np.random.Generator) -> np.ndarray:
    if kind == "even":
        return np.ones(n_rows)
    if kind == "falling":
        return rng.exponential(size=n_rows)
    return np.where(np.arange(n_rows) < 5, 30.0, 1.0)  # nearly all lies in five rows


@pytest.mark.parametrize("kind", ["even", "falling", "few"])
def test_lengths__are_bounds_where_entries_lie_as_in_the_block(rows, kind):
    rng, probe = np.random.default_rng(0), probe_of(rows)
    scales, enough, ratios = scales_of(len(rows), kind, rng)[:, None], [], []
    for seed in range(30):
        columns = scales * rng.normal(size=(len(rows), 40))
        drawn = replace(probe, seed=seed).draw(scales * rng.normal(size=(len(rows), 20)))
        found = drawn.lengths(columns[drawn.rows])
        wanted = np.linalg.norm(columns, axis=0)
        enough.append(found >= wanted)
        ratios.append(found / wanted)
    assert np.mean(enough) > 0.99
    assert np.median(ratios) < 1.5  # and not wide ones


def test_lengths__are_those_of_the_mean_over_all_draws(rows):
    """The estimate has no bias: with no standard errors added, squares are right on average."""
    rng, probe = np.random.default_rng(0), probe_of(rows)
    block, column = rng.normal(size=(len(rows), 4)), rng.exponential(size=(len(rows), 1))
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closing, "_STANDARD_ERRORS", 0.0)
        for seed in range(2000):
            drawn = replace(probe, seed=seed).draw(block)
            found.append(float(drawn.lengths(column[drawn.rows])[0] ** 2))
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - float((column**2).sum())) < 4 * error


# ---- the step ----------------------------------------------------------------------------------


def test_close__is_a_power_step_and_knows_its_residuals(rows, truth):
    """What is left of a residual falls as by a product, and the bound is above it, not far."""
    q, rng = 3, np.random.default_rng(0)
    raw = oracle.kernel_matrix(rows, gamma=GAMMA)
    noise = 1e-4 * rng.normal(size=(len(rows), 8))
    basis = orthonormal(oracle.centring(len(rows)) @ (truth.vectors[:, :8] + noise))
    values, turn = np.linalg.eigh(basis.T @ raw @ basis)
    vectors, values = basis @ turn[:, ::-1][:, :q], values[::-1][:q]
    before = truth.matrix @ vectors - vectors * values
    sizes = np.linalg.norm(before, axis=0)
    found = close(probe_of(rows), vectors, values, before, sizes, raw.sum(axis=1), 0.0)
    after = np.linalg.norm(truth.matrix @ found.vectors - found.vectors * found.values, axis=0)
    assert (after < 0.2 * sizes).all()
    assert (found.residuals >= after).all()
    assert (found.residuals <= 2.0 * after).all()
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(q), atol=1e-12)
    np.testing.assert_allclose(found.vectors.mean(axis=0), 0.0, atol=1e-14)
    np.testing.assert_allclose(found.values, truth.values[:q], rtol=1e-7)


# ---- fits that end with it ---------------------------------------------------------------------


def grown_model(rows: np.ndarray, tolerance: float) -> KernelPCA:
    model = KernelPCA(3, gamma=GAMMA, tolerance=tolerance, random_state=0).fit(rows[:N_OLD])
    return model.partial_fit(rows[N_OLD:])


@pytest.mark.parametrize("tolerance", [1e-5, 1e-8, 1e-10])
def test_partial_fit__saves_a_product_and_is_within_the_tolerance(
    rows, truth, tolerance, monkeypatch
):
    model = grown_model(rows, tolerance)
    residuals = true_residuals(truth, model)
    largest = truth.values[0]
    assert residuals.max() <= model.residuals_.max() <= tolerance * largest
    assert (np.abs(model.eigenvalues_ - truth.values[:3]) <= residuals + 1e-12 * largest).all()
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(3), atol=1e-12)
    scores = model.components_.T * np.sqrt(model.eigenvalues_)
    np.testing.assert_allclose(model.transform(rows), scores, atol=3 * residuals.max())
    monkeypatch.setattr(Joined, "probe", lambda *_: None)
    plain = grown_model(rows, tolerance)
    assert model.n_iter_ == plain.n_iter_ - 1
    np.testing.assert_allclose(plain.residuals_, true_residuals(truth, plain), atol=1e-11 * largest)


def test_partial_fit__goes_on_where_the_bound_is_too_wide(rows, truth, monkeypatch):
    n_products = grown_model(rows, 1e-8).n_iter_
    monkeypatch.setattr(closing, "_STANDARD_ERRORS", 1e6)
    model = grown_model(rows, 1e-8)
    assert model.n_iter_ == n_products + 1
    np.testing.assert_allclose(
        model.residuals_, true_residuals(truth, model), atol=1e-11 * truth.values[0]
    )


def test_partial_fit__more_rows_join_a_model_that_ended_so(rows, truth):
    model = KernelPCA(3, gamma=GAMMA, tolerance=1e-8, random_state=0).fit(rows[: N_OLD - 10])
    model.partial_fit(rows[N_OLD - 10 : N_OLD]).partial_fit(rows[N_OLD:])
    assert true_residuals(truth, model).max() <= model.residuals_.max() * (1 + 1e-9)
    assert model.residuals_.max() <= 1e-8 * truth.values[0]


def test_saved__components_that_were_improved_are_not_those_whose_product_is_known(
    rows, truth, tmp_path
):
    model = grown_model(rows, 1e-8)
    model.save(tmp_path / "model")
    loaded = distclust.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.components_, model.components_)
    known, largest = loaded._known, truth.values[0]
    raw = oracle.kernel_matrix(rows, gamma=GAMMA)
    np.testing.assert_allclose(known.product, raw @ known.basis, atol=1e-12 * largest)
    assert np.abs(known.product - raw @ model.components_.T).max() > 1e-11 * largest


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_partial_fit__finds_what_has_nothing_in_common_with_old_rows(kernel):
    """The matrix falls into two blocks: no product leads from one to the other."""
    rng = np.random.default_rng(0)
    old, new = np.zeros((40, 8)), np.zeros((20, 8))
    old[:, :4] = rng.normal(size=(40, 4))
    new[:, 4:] = 3.0 * rng.normal(size=(20, 4)) + (100.0 if kernel == "rbf" else 0.0)
    rows = np.concatenate([old, new])
    model = KernelPCA(3, kernel=kernel, gamma=0.01, random_state=0).fit(old).partial_fit(new)
    whole = KernelPCA(3, kernel=kernel, gamma=0.01, random_state=0).fit(rows)
    np.testing.assert_allclose(model.eigenvalues_, whole.eigenvalues_, rtol=1e-5)
