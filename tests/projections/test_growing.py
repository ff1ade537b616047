"""Rows that join later: the fit of all of them, from products with new rows only."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import distclust
from distclust import KernelPCA
from distclust.engine import Crew
from distclust.errors import InputError
from distclust.projections import growing, kernel_pca
from distclust.projections.growing import Corner, Joined, Known, grown
from distclust.projections.kernels import Kernel, Preparation
from distclust.projections.shards import Product
from tests.oracles import kernel_pca as oracle
from tests.small_tiles import TILE, shrink


@pytest.fixture(scope="module", autouse=True)
def small_tiles():
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


def make_rows(n: int, seed: int = 0, d: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = 2.0 * rng.normal(size=(4, d))
    return centres[rng.integers(4, size=n)] + 0.5 * rng.normal(size=(n, d))


@pytest.fixture
def pairs(monkeypatch) -> list[tuple[bytes, bytes]]:
    """Tiles between which a kernel was evaluated: the first rows of both.

    Rows are as they were passed for the polynomial kernel only.
    """
    seen: list[tuple[bytes, bytes]] = []
    plain = Preparation.values

    def spy(preparation, left, right, out):
        seen.append((left.rows[0].tobytes(), right.rows[0].tobytes()))
        return plain(preparation, left, right, out)

    monkeypatch.setattr(Preparation, "values", spy)
    return seen


def n_between(pairs: list[tuple[bytes, bytes]], rows: np.ndarray) -> int:
    """Return how often the kernel between tiles of these rows was evaluated."""
    names = {row.tobytes() for row in rows}
    return sum(left in names and right in names for left, right in pairs)


def known_of(matrix: np.ndarray, width: int) -> Known:
    truth = oracle.fit(matrix)
    # Vectors of eigenvalue 0 need not have mean 0.
    width = min(width, int(np.count_nonzero(truth.values > 1e-9 * truth.values[0])))
    basis = truth.vectors[:, :width]
    return Known.of_vectors(basis, matrix @ basis, truth.values[:width], matrix.sum(axis=1))


def grow(rows, n_old, kernel="rbf", *, online):
    """Return what is found of all rows from what is known of the first, and their matrix."""
    matrix = oracle.kernel_matrix(rows, None, kernel, 0.2)
    known = known_of(matrix[:n_old, :n_old], 6)
    preparation = Preparation(Kernel(kernel, 0.2), "float64", None)
    joined = Joined.of(preparation, rows[:n_old], rows[n_old:], preparation.tiles(rows[:n_old]))
    found = grown(joined, known, 2, 0, online=online)
    return found, matrix


@pytest.mark.parametrize("kernel", ["rbf", "poly", "cosine"])
@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize(("n_old", "n_new"), [(40, 1), (40, 30), (16, 16), (10, 60)])
def test_grown__knows_its_basis_product_and_sums(kernel, online, n_old, n_new):
    found, matrix = grow(make_rows(n_old + n_new), n_old, kernel, online=online)
    scale = np.abs(matrix).sum(axis=1).max()
    width = found.basis.shape[1]
    if kernel != "cosine":  # which has no more directions than features
        # Each new row has a direction online; else a few have one that matter, 2 at most.
        assert width == 6 + n_new if online else 6 <= width <= 6 + 2
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(width), atol=1e-12)
    np.testing.assert_allclose(found.basis.mean(axis=0), 0.0, atol=1e-14)
    np.testing.assert_allclose(found.product, matrix @ found.basis, atol=1e-11 * scale)
    # Incremental centring (5.28-5.30) is that of the batch.
    np.testing.assert_allclose(found.row_sums, matrix.sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize("online", [False, True])
def test_grown__evaluates_no_kernel_between_old_rows(online, pairs):
    rows = make_rows(70)
    grow(rows, 40, "poly", online=online)
    assert n_between(pairs, rows) == len(pairs) > 0
    assert n_between(pairs, rows[:40]) == 0


def test_grown__starts_near_the_truth():
    found, matrix = grow(make_rows(200), 190, online=False)
    truth = oracle.fit(matrix).vectors[:, :2]
    random = np.random.default_rng(0).normal(size=(200, 6))
    assert projection_error(found.basis, truth) < 0.02
    assert projection_error(np.linalg.qr(random)[0], truth) > 0.5


@pytest.mark.parametrize("kernel", ["rbf", "poly"])
def test_grown__rows_that_are_there_already_come_to_lie_with_themselves(kernel):
    rows = make_rows(40)
    found, _ = grow(np.concatenate([rows, rows[5:15]]), 40, kernel, online=False)
    np.testing.assert_allclose(found.basis[40:], found.basis[5:15], atol=1e-9)


@pytest.mark.parametrize("kernel", ["rbf", "poly", "cosine"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_corner__is_the_same_however_much_of_it_is_kept(kernel, dtype, monkeypatch):
    rows, n_old = make_rows(90), 50
    preparation = Preparation(Kernel(kernel, 0.2), dtype, None)
    joined = Joined.of(preparation, rows[:n_old], rows[n_old:], preparation.tiles(rows[:n_old]))
    raw = oracle.kernel_matrix(rows, None, kernel, 0.2)
    rng = np.random.default_rng(0)
    above, beside = rng.normal(size=(n_old, 3)), rng.normal(size=(40, 3))
    found = []
    for n_tiles in (4, 2, 0):
        kept = n_tiles * TILE * 40 * np.dtype(dtype).itemsize
        monkeypatch.setattr(growing, "_KEPT_BYTES", kept)
        corner = Corner(joined)
        below, sums = corner.below(above)
        found.append((below, sums, corner.right(beside, np.zeros((n_old, 0)))))
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, same)
    below, sums, right = found[0]
    exactly = {"rtol": 1e-12, "atol": 1e-12} if dtype == "float64" else {"rtol": 1e-3, "atol": 1e-3}
    np.testing.assert_allclose(below, raw[n_old:, :n_old] @ above, **exactly)
    np.testing.assert_allclose(sums, raw[n_old:, :n_old].sum(axis=1), **exactly)
    np.testing.assert_allclose(right.T, raw[:, n_old:] @ beside, **exactly)


def projection_error(basis: np.ndarray, vectors: np.ndarray) -> float:
    return float(np.linalg.norm(vectors - basis @ (basis.T @ vectors), axis=0).max())


# ---- partial_fit -------------------------------------------------------------------------------


def check_as_exact(model: KernelPCA, raw: np.ndarray, tolerance: float = 1e-6) -> None:
    """The model is that of all rows, to its tolerance, and its residuals are true.

    Where products may be rounded, as of the RBF kernel, to a small part of the tolerance.
    """
    truth = oracle.fit(raw)
    largest, q = truth.values[0], len(model.eigenvalues_)
    assert model.components_.shape == (q, len(raw))
    wanted = oracle.true_residuals(truth.matrix, model.eigenvalues_, model.components_)
    unnoticed = max(5e-4 * tolerance, 1e-11) if model.kernel == "rbf" else 1e-11
    np.testing.assert_allclose(model.residuals_, wanted, atol=unnoticed * largest)
    assert wanted.max() <= tolerance * largest * 1.001
    error = np.abs(model.eigenvalues_ - truth.values[:q])
    assert (error <= model.residuals_ + 1e-11 * largest).all()
    gram = model.components_ @ model.components_.T
    np.testing.assert_allclose(gram, np.eye(q), atol=1e-10)


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(0, 1000),
    st.sampled_from(["rbf", "linear", "poly", "cosine"]),
    st.booleans(),
)
def test_partial_fit__over_pieces_ends_where_fit_ends(sizes, seed, kernel, is_sparse):
    q, first = 3, 12
    rows = make_rows(first + sum(sizes), seed)
    put = sp.csr_array if is_sparse else np.asarray
    model = KernelPCA(q, kernel=kernel, gamma=0.2, random_state=seed)
    bounds = np.cumsum([0, first, *sizes])
    for start, stop in itertools.pairwise(bounds):
        assert model.partial_fit(put(rows[start:stop])) is model
        check_as_exact(model, oracle.kernel_matrix(rows[:stop], None, kernel, 0.2))
    model.close()
    whole = KernelPCA(q, kernel=kernel, gamma=0.2, random_state=seed).fit(rows)
    largest = whole.eigenvalues_[0]
    np.testing.assert_allclose(model.eigenvalues_, whole.eigenvalues_, atol=2e-6 * largest)
    assert model.noise_variance_ == pytest.approx(whole.noise_variance_, rel=1e-4, abs=1e-9)
    check_growth_of_transform(model, rows, kernel)


def check_growth_of_transform(model: KernelPCA, rows: np.ndarray, kernel: str) -> None:
    new = make_rows(7, 99)
    raw = oracle.kernel_matrix(rows, None, kernel, 0.2)
    across = oracle.kernel_matrix(new, rows, kernel, 0.2)
    lengths = np.sqrt(model.eigenvalues_)
    wanted = oracle.centred_new(across, raw) @ model.components_.T / lengths
    np.testing.assert_allclose(model.transform(new), wanted, rtol=1e-8, atol=1e-8)


def test_partial_fit__few_rows_cost_few_products():
    rows = make_rows(600)
    whole = KernelPCA(3, gamma=0.2, random_state=0).fit(rows)
    model = KernelPCA(3, gamma=0.2, random_state=0).fit(rows[:594])
    model.partial_fit(rows[594:])
    check_as_exact(model, oracle.kernel_matrix(rows, gamma=0.2))
    assert model.n_iter_ < whole.n_iter_


def test_partial_fit__keeps_tiles_of_old_rows(pairs):
    rows = make_rows(7 * TILE)
    model = KernelPCA(2, kernel="poly", gamma=0.2, random_state=0).fit(rows[: 6 * TILE])
    assert n_between(pairs, rows[: 6 * TILE]) == 36
    pairs.clear()
    model.partial_fit(rows[6 * TILE :])
    assert model.n_iter_ > 0, "no product with old rows was needed"
    assert n_between(pairs, rows[: 6 * TILE]) == 0


def test_partial_fit__of_one_row():
    rows = make_rows(50)
    model = KernelPCA(2, gamma=0.2, random_state=0).fit(rows[:49])
    model.partial_fit(rows[49:])
    check_as_exact(model, oracle.kernel_matrix(rows, gamma=0.2))


def test_partial_fit__mixes_layouts():
    rows = make_rows(60)
    for first, then in [(np.asarray, sp.csr_array), (sp.csr_array, np.asarray)]:
        model = KernelPCA(2, gamma=0.2, random_state=0).fit(first(rows[:40]))
        model.partial_fit(then(rows[40:]))
        check_as_exact(model, oracle.kernel_matrix(rows, gamma=0.2))
        for put in (np.asarray, sp.csr_array):
            scores = model.components_.T * np.sqrt(model.eigenvalues_)
            np.testing.assert_allclose(model.transform(put(rows)), scores, atol=1e-4)


def test_partial_fit__of_rows_far_from_the_first():
    """The middle that was subtracted is that of the first rows."""
    rows = np.concatenate([make_rows(40), make_rows(40, 1) + 30.0])
    model = KernelPCA(3, gamma=0.2, random_state=0).fit(rows[:40]).partial_fit(rows[40:])
    check_as_exact(model, oracle.kernel_matrix(rows, gamma=0.2))


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
def test_partial_fit__of_a_model_that_was_loaded(kernel, tmp_path):
    rows, tolerance = make_rows(80), 1e-4
    model = KernelPCA(3, kernel=kernel, gamma=0.2, random_state=0, tolerance=tolerance)
    model.fit(rows[:60])
    model.save(tmp_path / "model")
    for online in (False, True):
        loaded = distclust.load(tmp_path / "model").partial_fit(rows[60:], online=online)
        truth = oracle.fit(oracle.kernel_matrix(rows, None, kernel, 0.2))
        wanted = oracle.true_residuals(truth.matrix, loaded.eigenvalues_, loaded.components_)
        # Products of the RBF kernel are rounded as far as that is not noticed.
        unnoticed = 5e-4 * tolerance if kernel == "rbf" else 1e-11
        np.testing.assert_allclose(loaded.residuals_, wanted, atol=unnoticed * truth.values[0])


def test_partial_fit__after_em(seed):
    rows = make_rows(60, seed)
    model = KernelPCA(2, gamma=0.2, solver="em", random_state=seed).fit(rows[:40])
    model.partial_fit(rows[40:])
    check_as_exact(model, oracle.kernel_matrix(rows, gamma=0.2))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_partial_fit__names_the_row_that_is_not_finite(bad):
    rows = make_rows(60)
    model = KernelPCA(2, gamma=0.2, random_state=0).fit(rows[:40])
    before = model.components_
    added = rows[40:].copy()
    added[7, 2] = bad
    for online in (False, True):
        with pytest.raises(InputError, match=r"KernelPCA.partial_fit.* row 7\b"):
            model.partial_fit(added, online=online)
    assert model.components_ is before
    model.partial_fit(rows[40:])
    check_as_exact(model, oracle.kernel_matrix(rows, gamma=0.2))


def test_partial_fit__with_other_features_or_components_is_refused():
    model = KernelPCA(2, gamma=0.2, random_state=0).fit(make_rows(40))
    with pytest.raises(InputError, match="3 features"):
        model.partial_fit(make_rows(10, d=3))
    model.set_params(n_components=3)
    with pytest.raises(InputError, match="n_components=2, as fitted"):
        model.partial_fit(make_rows(10))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_partial_fit__that_fails_changes_nothing(error, monkeypatch, tmp_path):
    rows = make_rows(60)
    model = KernelPCA(2, gamma=0.2, random_state=0).fit(rows[:40])
    before = (model.components_, model.transform(rows))

    def fail(*_):
        raise error("stop")

    with monkeypatch.context() as patch:
        patch.setattr(Crew, "follow", fail)
        with pytest.raises(error):
            model.partial_fit(rows[40:])
    assert model.components_ is before[0]
    np.testing.assert_array_equal(model.transform(rows), before[1])
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(distclust.load(tmp_path / "model").transform(rows), before[1])
    model.partial_fit(rows[40:])
    check_as_exact(model, oracle.kernel_matrix(rows, gamma=0.2))


# ---- online ------------------------------------------------------------------------------------


@pytest.fixture
def orders(monkeypatch) -> list[Product]:
    """Orders that crews are given, in rounds and by plans."""
    seen: list[Product] = []
    plain = Crew._do_round

    def spy(crew, order):
        seen.append(order)
        return plain(crew, order)

    monkeypatch.setattr(Crew, "_do_round", spy)
    return seen


@pytest.mark.parametrize("n_new", [1, 30, 90])
def test_online__is_exact_when_nothing_lies_outside_the_span(n_new, monkeypatch):
    monkeypatch.setattr(kernel_pca, "_ONLINE_ROWS", 40)
    rows = make_rows(50 + n_new)  # four features: the linear kernel has rank four
    model = KernelPCA(4, kernel="linear", random_state=0, tolerance=1e-12).fit(rows[:50])
    model.partial_fit(rows[50:], online=True)
    check_as_exact(model, oracle.kernel_matrix(rows, None, "linear"), 1e-11)


def test_online__never_looks_at_the_kernel_between_old_rows(orders, pairs, monkeypatch):
    monkeypatch.setattr(kernel_pca, "_ONLINE_ROWS", 20)
    rows = make_rows(110)
    model = KernelPCA(2, kernel="poly", gamma=0.2, random_state=0).fit(rows[:60])
    orders.clear()
    pairs.clear()
    model.partial_fit(rows[60:], online=True)
    assert n_between(pairs, rows[:60]) == 0
    assert orders == []  # the crew holds all rows
    # Of the new rows those that came together meet, and the later ones the earlier.
    assert n_between(pairs, rows[60:]) > 0
    # Exact growth does come back to old rows.
    model.partial_fit(make_rows(5, 3))
    assert len(orders) == model.n_iter_ > 0


@pytest.mark.parametrize("kernel", ["rbf", "poly"])
def test_online__tells_how_far_it_is_from_exact(kernel, monkeypatch, seed):
    monkeypatch.setattr(kernel_pca, "_ONLINE_ROWS", 25)
    rows = make_rows(60 + 70, seed)
    rows[60:] += 3.0  # what comes is unlike what was there
    model = KernelPCA(2, kernel=kernel, gamma=0.5, random_state=0).fit(rows[:60])
    model.partial_fit(rows[60:], online=True)
    truth = oracle.fit(oracle.kernel_matrix(rows, None, kernel, 0.5))
    wanted = oracle.true_residuals(truth.matrix, model.eigenvalues_, model.components_)
    np.testing.assert_allclose(model.residuals_, wanted, atol=1e-11 * truth.values[0])
    assert (model.eigenvalues_ <= truth.values[:2] * (1 + 1e-12)).all()  # Rayleigh-Ritz
    sums = oracle.kernel_matrix(rows, None, kernel, 0.5).sum(axis=1)
    np.testing.assert_allclose(model._row_sums, sums, rtol=1e-10)


def test_online__is_near_and_exact_growth_mends_it(monkeypatch):
    monkeypatch.setattr(kernel_pca, "_ONLINE_ROWS", 25)
    rows = make_rows(200)
    raw = oracle.kernel_matrix(rows, gamma=0.2)
    model = KernelPCA(3, gamma=0.2, random_state=0).fit(rows[:80])
    model.partial_fit(rows[80:199], online=True)
    near = oracle.fit(raw[:199, :199])
    np.testing.assert_allclose(model.eigenvalues_, near.values[:3], rtol=0.01)
    assert model.residuals_.max() > 1e-6 * near.values[0]  # no warning: it is told, not asked
    model.partial_fit(rows[199:])
    check_as_exact(model, raw)


@pytest.mark.parametrize("rank", [6, 4])
def test_orthonormalising__as_many_columns_as_there_are_dimensions(rank):
    rng = np.random.default_rng(rank)
    basis = np.eye(40)[:, :6] + 0.05 * rng.normal(size=(40, 6))
    if rank < 6:
        basis[:, 4:] = basis[:, :2] @ rng.normal(size=(2, 2))
    turn = growing._orthonormalising(basis.T @ basis)
    turned = basis @ turn
    assert turned.shape == (40, rank)
    np.testing.assert_allclose(turned.T @ turned, np.eye(rank), atol=1e-13)
    along = turned @ (turned.T @ basis)
    np.testing.assert_allclose(along, basis, atol=1e-12)
