"""KernelPCA: a dense eigensolver, scikit-learn, probabilistic PCA, and what is refused."""

from __future__ import annotations

import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.decomposition
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics.pairwise import laplacian_kernel, sigmoid_kernel
from sklearn.utils.estimator_checks import parametrize_with_checks

import distclust
from distclust import PPCA, KernelPCA
from distclust.errors import (
    CapacityError,
    ConvergenceWarning,
    IndefiniteKernelWarning,
    InputError,
    ModelFormatError,
)
from distclust.projections import kernel_pca
from distclust.projections.kernels import NAMED_KERNELS
from distclust.store import read_archive, write_archive
from tests.oracles import kernel_pca as oracle
from tests.oracles import ppca as ppca_oracle
from tests.small_tiles import shrink

SOLVERS = ["krylov", "em"]


@pytest.fixture(scope="module", autouse=True)
def small_tiles():
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


def make_rows(n: int = 90, seed: int = 0, d: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * 2.0 ** -np.arange(d) + (rng.random((n, d)) < 0.3)
    return rows * (rng.random((n, d)) < 0.8)


def check_against(model: KernelPCA, raw: np.ndarray, tolerance: float) -> oracle.Fitted:
    """Components are eigenvectors to the tolerance; what is reported is true."""
    truth = oracle.fit(raw)
    q, largest = len(model.eigenvalues_), truth.values[0]
    rounding = 1e-13 * np.abs(raw).sum(axis=1).max()
    gram = model.components_ @ model.components_.T
    np.testing.assert_allclose(gram, np.eye(q), atol=1e-10)
    np.testing.assert_allclose(model.components_.sum(axis=1), 0.0, atol=1e-10)
    assert (np.diff(model.eigenvalues_) <= rounding).all()
    peaks = np.abs(model.components_).argmax(axis=1)
    assert (model.components_[np.arange(q), peaks] > 0).all()
    residuals = oracle.true_residuals(truth.matrix, model.eigenvalues_, model.components_)
    np.testing.assert_allclose(model.residuals_, residuals, atol=rounding)
    assert residuals.max() <= tolerance * largest + rounding
    error = np.abs(model.eigenvalues_ - truth.values[:q])
    assert (error <= model.residuals_ + rounding).all()
    return truth


# ---- scikit-learn's contract -------------------------------------------------------------------


@parametrize_with_checks([KernelPCA(n_components=1), KernelPCA(n_components=1, solver="em")])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


# ---- eigenpairs --------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("put", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("kernel", NAMED_KERNELS)
def test_eigenpairs__of_every_kernel(kernel, put, solver):
    rows = make_rows()
    q = 3
    model = KernelPCA(
        q, kernel=kernel, gamma=0.4, solver=solver, tolerance=1e-8, random_state=0
    ).fit(put(rows))
    truth = check_against(model, oracle.kernel_matrix(rows, None, kernel, 0.4), 1e-8)
    assert oracle.angle(model.components_.T, truth.vectors[:, :q]) < 1e-6
    for i in range(q):
        gap = np.abs(np.delete(truth.values, i) - truth.values[i]).min()
        if gap > 0.02 * truth.values[0]:
            np.testing.assert_allclose(model.components_[i], truth.vectors[:, i], atol=1e-6)


@pytest.mark.parametrize("spectrum", oracle.SPECTRA)
@pytest.mark.parametrize("q", [1, 4, 15])
def test_eigenpairs__of_many_spectra(spectrum, q):
    """Also with more components than directions, and with no gap at all."""
    rows = oracle.planted(oracle.SPECTRA[spectrum], 80)
    model = KernelPCA(q, kernel="linear", tolerance=1e-9, random_state=0).fit(rows)
    truth = check_against(model, rows @ rows.T, 1e-9)
    wanted = np.zeros(q)
    values = oracle.SPECTRA[spectrum][:q]
    wanted[: len(values)] = values
    np.testing.assert_allclose(model.eigenvalues_, wanted, atol=1e-8 * truth.values[0])


@pytest.mark.parametrize("spectrum", ["gaps", "low rank", "one huge"])
def test_eigenpairs__of_many_spectra_by_em(spectrum):
    rows = oracle.planted(oracle.SPECTRA[spectrum], 80)
    model = KernelPCA(2, kernel="linear", solver="em", tolerance=1e-7, random_state=0).fit(rows)
    check_against(model, rows @ rows.T, 1e-7)


def gram_of_planted(left, right):
    """A kernel of users: rows are numbers of rows of a matrix with a spectrum of its own."""
    matrix = oracle.planted(oracle.SPECTRA["multiple"], 70, offset=3.0)
    gram = matrix @ matrix.T
    return gram[np.ix_(left[:, 0].astype(int), right[:, 0].astype(int))]


def test_eigenpairs__of_a_kernel_of_users():
    rows = np.arange(70.0)[:, None]
    model = KernelPCA(12, kernel=gram_of_planted, tolerance=1e-9, random_state=0).fit(rows)
    truth = check_against(model, gram_of_planted(rows, rows), 1e-9)
    # Ten times the same eigenvalue: the span of all of them is what there is to compare.
    assert oracle.angle(model.components_[:10].T, truth.vectors[:, :10]) < 1e-6
    across = truth.project(gram_of_planted(rows[::7], rows), 12)
    norms = np.linalg.norm(model.transform(rows[::7])[:, :10], axis=1)
    np.testing.assert_allclose(norms, np.linalg.norm(across[:, :10], axis=1), rtol=1e-7)


def test_eigenpairs__of_duplicates_and_constants():
    rows = np.repeat(make_rows(9), 10, axis=0)
    model = KernelPCA(12, gamma=0.5, random_state=0).fit(rows)
    truth = check_against(model, oracle.kernel_matrix(rows, gamma=0.5), 1e-6)
    np.testing.assert_allclose(model.eigenvalues_[8:], 0.0, atol=1e-6 * truth.values[0])
    # One more row, the same as another.
    assert model.transform(rows)[0] == pytest.approx(model.transform(rows)[1], abs=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kernel", NAMED_KERNELS)
def test_constant_rows__have_no_directions_and_warn_of_nothing(kernel, solver):
    rows = np.full((40, 3), 7.3)
    model = KernelPCA(2, kernel=kernel, solver=solver, random_state=0)
    scores = model.fit_transform(rows)
    np.testing.assert_allclose(scores, 0.0, atol=1e-6)
    assert np.isfinite(model.components_).all()
    np.testing.assert_allclose(model.eigenvalues_, 0.0, atol=1e-9)
    assert np.isfinite(model.transform(rows + 1.0)).all()


def test_all_components_there_are():
    rows = make_rows(12)
    model = KernelPCA(11, gamma=0.5, tolerance=1e-12, random_state=0).fit(rows)
    truth = check_against(model, oracle.kernel_matrix(rows, gamma=0.5), 1e-12)
    np.testing.assert_allclose(model.eigenvalues_, truth.values[:11], atol=1e-12)


@pytest.mark.parametrize("n", [2, 3, 12])
@pytest.mark.parametrize("tolerance", [1e-6, 1e-300])
def test_few_rows__whatever_is_asked_for(n, tolerance):
    """The basis spans everything before so small a tolerance is reached."""
    rows = make_rows(n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KernelPCA(1, gamma=0.5, tolerance=tolerance, random_state=0).fit(rows)
    check_against(model, oracle.kernel_matrix(rows, gamma=0.5), max(tolerance, 1e-13))


def test_float32__is_near():
    rows = make_rows(200) + 10.0
    model = KernelPCA(3, gamma=0.4, dtype="float32", random_state=0).fit(rows)
    assert model.components_.dtype == np.float64
    truth = oracle.fit(oracle.kernel_matrix(rows, gamma=0.4))
    gap = truth.values[2] - truth.values[3]
    assert gap > 0.05 * truth.values[0]
    assert oracle.angle(model.components_.T, truth.vectors[:, :3]) < 1e-4
    np.testing.assert_allclose(model.eigenvalues_, truth.values[:3], rtol=1e-5)


@pytest.mark.parametrize("kernel", ["rbf", "linear"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rows_far_from_the_origin__lose_no_digits(kernel, dtype):
    """And warn of nothing: rounding makes no kernel indefinite."""
    rows = make_rows(200)
    options = {"kernel": kernel, "gamma": 0.4, "dtype": dtype, "random_state": 0}
    near = KernelPCA(3, **options).fit(rows)
    far = KernelPCA(3, **options).fit(rows + 1e5)
    rtol = 1e-9 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(far.eigenvalues_, near.eigenvalues_, rtol=rtol)
    assert oracle.angle(far.components_.T, near.components_.T) < 1e-3
    assert far.noise_variance_ == pytest.approx(near.noise_variance_, rel=1e-4)
    new = make_rows(20, 1)
    far.partial_fit(new + 1e5)
    near.partial_fit(new)
    np.testing.assert_allclose(far.eigenvalues_, near.eigenvalues_, rtol=rtol)
    np.testing.assert_allclose(
        np.abs(far.transform(new + 1e5)), np.abs(near.transform(new)), atol=1e-3
    )


@pytest.mark.parametrize("put", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("kernel", NAMED_KERNELS)
def test_float32__warns_of_nothing(kernel, put):
    KernelPCA(3, kernel=kernel, dtype="float32", random_state=0).fit(put(make_rows(200) + 10.0))


@pytest.mark.parametrize("solver", SOLVERS)
def test_toy_of_figure_4_2(solver):
    rows = oracle.toy()
    model = KernelPCA(2, gamma=10.0, solver=solver, random_state=0)
    scores = model.fit_transform(rows)
    check_against(model, oracle.kernel_matrix(rows, gamma=10.0), 1e-6)
    assert model.n_iter_ < 100
    # Two components part three groups: groups are narrower than they lie apart.
    groups = scores.reshape(3, 30, 2)
    middles = groups.mean(axis=1)
    spread = np.linalg.norm(groups - middles[:, None], axis=2).max()
    apart = min(np.linalg.norm(middles[i] - middles[j]) for i, j in [(0, 1), (0, 2), (1, 2)])
    assert spread < apart


@pytest.mark.parametrize("solver", ["auto", *SOLVERS])
def test_seed__the_same_is_the_same_and_others_agree(solver):
    rows = make_rows()

    def fitted(seed):
        return KernelPCA(3, gamma=0.4, solver=solver, random_state=seed).fit(rows)

    one = fitted(1)
    np.testing.assert_array_equal(one.components_, fitted(1).components_)
    for seed in (2, None, np.random.default_rng(3), np.random.RandomState(4)):
        other = fitted(seed)
        np.testing.assert_allclose(
            other.eigenvalues_, one.eigenvalues_, atol=2e-6 * one.eigenvalues_[0]
        )
        assert oracle.angle(other.components_.T, one.components_.T) < 1e-3


def test_auto__is_krylov():
    rows = make_rows()
    one, other = (
        KernelPCA(2, gamma=0.4, solver=solver, random_state=0).fit(rows)
        for solver in ("auto", "krylov")
    )
    np.testing.assert_array_equal(one.components_, other.components_)
    assert not hasattr(one, "objective_path_")


# ---- scikit-learn's KernelPCA ------------------------------------------------------------------


@pytest.mark.parametrize("put", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("kernel", [*NAMED_KERNELS, laplacian_kernel])
def test_agrees_with_scikit_learn(kernel, put):
    rows, new = make_rows(), make_rows(30, 1)
    if callable(kernel) and put is sp.csr_array:
        pytest.skip("scikit-learn's function takes CSR matrices with equal structure only")
    options = {} if callable(kernel) else {"gamma": 0.4}
    theirs = sklearn.decomposition.KernelPCA(
        3, kernel="precomputed" if callable(kernel) else kernel, eigen_solver="dense", **options
    )
    if callable(kernel):
        wanted = theirs.fit_transform(kernel(rows)), theirs.transform(kernel(new, rows))
    else:
        wanted = theirs.fit_transform(put(rows)), theirs.transform(put(new))
    gaps = -np.diff(np.linalg.eigvalsh(oracle.centred(kernel_of(kernel, rows)))[::-1][:4])
    assert gaps.min() > 1e-3
    ours = KernelPCA(3, kernel=kernel, tolerance=1e-10, random_state=0, **options)
    found = ours.fit_transform(put(rows)), ours.transform(put(new))
    signs = np.sign((found[0] * wanted[0]).sum(axis=0))
    for mine, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine * signs, other, atol=1e-6)
    np.testing.assert_allclose(ours.eigenvalues_, theirs.eigenvalues_, rtol=1e-8)


def kernel_of(kernel, rows):
    return kernel(rows) if callable(kernel) else oracle.kernel_matrix(rows, None, kernel, 0.4)


def test_gamma__left_out_is_that_of_scikit_learn():
    rows = make_rows()
    ours = KernelPCA(2, random_state=0, tolerance=1e-10).fit(rows)
    theirs = sklearn.decomposition.KernelPCA(2, kernel="rbf").fit(rows)
    np.testing.assert_allclose(ours.eigenvalues_, theirs.eigenvalues_, rtol=1e-8)


def test_poly__takes_degree_and_constant():
    rows = make_rows()
    model = KernelPCA(2, kernel="poly", gamma=0.3, degree=2, coef0=0.5, random_state=0).fit(rows)
    check_against(model, oracle.kernel_matrix(rows, None, "poly", 0.3, 2, 0.5), 1e-6)


# ---- the probabilistic model -------------------------------------------------------------------


@pytest.mark.parametrize("sigma2", [0.0, 0.3])
@pytest.mark.parametrize(("n", "d", "q"), [(90, 6, 2), (40, 8, 3), (90, 6, 5)])
def test_likelihood__of_the_linear_kernel_is_that_of_ppca(n, d, q, sigma2):
    rows = make_rows(n, d=d) + 3.0
    model = KernelPCA(q, kernel="linear", sigma2=sigma2, tolerance=1e-10, random_state=0).fit(rows)
    best = ppca_oracle.closed_form(rows, q, sigma2 or None)
    assert model.noise_variance_ == pytest.approx(best.noise, rel=1e-8)
    wanted = ppca_oracle.log_densities(rows, best).sum()
    assert model.log_likelihood_ == pytest.approx(wanted, rel=1e-8)


def test_likelihood__is_that_of_the_estimator_beside_it():
    rows = make_rows(90, d=6) + 3.0
    other = PPCA(2, tolerance=1e-12, max_iter=5000, random_state=0).fit(rows)
    model = KernelPCA(2, kernel="linear", tolerance=1e-10, random_state=0).fit(rows)
    assert model.noise_variance_ == pytest.approx(other.noise_variance_, rel=1e-6)
    assert model.log_likelihood_ == pytest.approx(other.log_likelihood_, rel=1e-6)


@pytest.mark.parametrize("sigma2", [0.0, 0.02])
@pytest.mark.parametrize("kernel", ["rbf", "poly"])
def test_likelihood__is_that_of_ppca_in_feature_space(kernel, sigma2):
    """The rows are embedded in the N − 1 dimensions that their features span."""
    rows = make_rows(40)
    raw = oracle.kernel_matrix(rows, None, kernel, 0.4)
    model = KernelPCA(3, kernel=kernel, gamma=0.4, sigma2=sigma2, tolerance=1e-11, random_state=0)
    model.fit(rows)
    best = ppca_oracle.closed_form(oracle.features(raw), 3, sigma2 or None)
    assert model.noise_variance_ == pytest.approx(best.noise, rel=1e-7)
    wanted = ppca_oracle.log_densities(oracle.features(raw), best).sum()
    assert model.log_likelihood_ == pytest.approx(wanted, rel=1e-6)


def test_likelihood__without_noise_has_no_bound():
    rows = oracle.planted(oracle.SPECTRA["low rank"], 50)
    model = KernelPCA(3, kernel="linear", random_state=0).fit(rows)
    assert model.noise_variance_ == pytest.approx(0.0, abs=1e-9)
    assert model.log_likelihood_ == np.inf or model.log_likelihood_ > 0


def test_objective_path__of_em_with_noise_never_falls():
    rows = make_rows()
    model = KernelPCA(2, gamma=0.4, solver="em", sigma2=0.01, random_state=0).fit(rows)
    path = model.objective_path_
    assert len(path) == model.n_iter_
    assert (np.diff(path) >= -1e-10 * np.abs(path[1:])).all()
    model.set_params(solver="krylov").fit(rows)
    assert not hasattr(model, "objective_path_")


def test_noise__changes_the_likelihood_not_the_components():
    rows = make_rows()
    one = KernelPCA(2, gamma=0.4, random_state=0).fit(rows)
    other = KernelPCA(2, gamma=0.4, sigma2=0.1, random_state=0).fit(rows)
    np.testing.assert_array_equal(one.components_, other.components_)
    assert other.noise_variance_ == 0.1
    assert other.log_likelihood_ < one.log_likelihood_


# ---- warnings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
def test_convergence__that_is_not_reached_is_told(solver):
    rows = make_rows(300)
    model = KernelPCA(4, gamma=0.4, solver=solver, tolerance=1e-12, max_iter=2, random_state=0)
    with pytest.warns(ConvergenceWarning, match="after 2 products") as caught:
        model.fit(rows)
    assert model.n_iter_ == 2
    assert caught[0].filename == __file__
    truth = oracle.fit(oracle.kernel_matrix(rows, gamma=0.4))
    wanted = oracle.true_residuals(truth.matrix, model.eigenvalues_, model.components_)
    np.testing.assert_allclose(model.residuals_, wanted, atol=1e-10)


def test_em__warns_when_the_noise_swallows_components():
    rows = oracle.toy()
    raw = oracle.kernel_matrix(rows, gamma=10.0)
    truth = oracle.fit(raw)
    sigma2 = (truth.values[1] + truth.values[2]) / 2.0 / len(rows)
    model = KernelPCA(4, gamma=10.0, solver="em", sigma2=sigma2, max_iter=150, random_state=0)
    with pytest.warns(ConvergenceWarning, match="below N sigma2"):
        model.fit(rows)
    np.testing.assert_allclose(model.eigenvalues_[:2], truth.values[:2], rtol=1e-9)
    wanted = oracle.true_residuals(truth.matrix, model.eigenvalues_, model.components_)
    np.testing.assert_allclose(model.residuals_, wanted, atol=1e-10)


@pytest.mark.parametrize("solver", SOLVERS)
def test_kernel_that_is_not_positive__is_told_with_its_eigenvalues(solver):
    rows = 3.0 * make_rows(60)
    lowest = np.linalg.eigvalsh(oracle.centred(sigmoid_kernel(rows)))[0]
    assert lowest < 0
    model = KernelPCA(2, kernel=sigmoid_kernel, solver=solver, random_state=0, max_iter=300)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(rows)
    found = [w for w in caught if issubclass(w.category, IndefiniteKernelWarning)]
    if solver == "krylov":
        (warning,) = found
        assert f"{model.eigenvalues_[0]:.6g}" in str(warning.message)
        told = float(str(warning.message).split("down to ")[1].split(" ")[0])
        assert lowest * 1.001 <= told < 0
    assert np.isfinite(model.transform(rows)).all()


def minus(left, right):
    return -(left @ right.T)


def test_kernel_that_is_negative__has_no_coordinates():
    rows = make_rows(40, d=2) + 1.0
    with pytest.warns(IndefiniteKernelWarning, match="down to"):
        scores = KernelPCA(3, kernel=minus, random_state=0).fit_transform(rows)
    np.testing.assert_allclose(scores, 0.0, atol=1e-5)


# ---- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [40, 41, 1000])
def test_more_components_than_rows__are_refused(q):
    with pytest.raises(InputError, match=f"at least n_components \\+ 1 = {q + 1} rows"):
        KernelPCA(q).fit(make_rows(40))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 37, 89])
def test_row_that_is_not_finite__is_named(bad, row):
    rows = make_rows()
    rows[row, 2] = bad
    with pytest.raises(InputError, match=rf"KernelPCA.fit.* row {row}\b"):
        KernelPCA(2).fit(rows)
    stored = sp.csr_array(np.where(make_rows() == 0, 1.0, make_rows()))
    stored.data[row * 5 + 1] = bad
    with pytest.raises(InputError, match=rf"row {row}\b"):
        KernelPCA(2).fit(stored)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_components", 0),
        ("n_components", 1.5),
        ("n_components", "many"),
        ("kernel", "rbfs"),
        ("kernel", 3),
        ("kernel", None),
        ("gamma", 0.0),
        ("gamma", -1.0),
        ("gamma", np.nan),
        ("gamma", "scale"),
        ("sigma2", -0.1),
        ("sigma2", np.inf),
        ("solver", "arpack"),
        ("tolerance", 0.0),
        ("tolerance", -1e-6),
        ("tolerance", np.nan),
        ("memory_budget", "much"),
        ("memory_budget", 0),
        ("memory_budget", -5),
        ("memory_budget", None),
        ("memory_budget", np.inf),
        ("memory_budget", "4 XB"),
        ("memory_budget", True),
        ("dtype", "float16"),
        ("dtype", np.float64),
        ("degree", 0),
        ("degree", 2.5),
        ("coef0", np.nan),
        ("max_iter", 0),
        ("random_state", -1),
        ("random_state", "seed"),
    ],
)
def test_parameter_that_makes_no_sense__is_named(name, value):
    with pytest.raises(InputError, match=rf"KernelPCA\.fit: {name}"):
        KernelPCA(**{name: value}).fit(make_rows())


@pytest.mark.parametrize(
    "value", [10**9, 1e9, "1 GB", "1GiB", "900 MB", "512 MiB", np.int64(10**8)]
)
def test_memory_budget__in_many_forms(value):
    KernelPCA(1, memory_budget=value, random_state=0).fit(make_rows(20))


def test_kernel_that_nobody_can_import__is_refused():
    def local(left, right):
        return left @ right.T

    for kernel in (lambda x, y: x @ y.T, local):
        with pytest.raises(InputError, match=r"KernelPCA.fit: kernel.*imported by its name"):
            KernelPCA(1, kernel=kernel).fit(make_rows())


def raises(left, right):
    raise RuntimeError("no kernel today")


def test_kernel_that_raises__is_heard_and_the_model_is_usable_after():
    model = KernelPCA(1, kernel=raises, random_state=0)
    with pytest.raises(RuntimeError, match="no kernel today"):
        model.fit(make_rows())
    model.set_params(kernel="rbf").fit(make_rows())
    assert model.components_.shape == (1, 90)


def test_rows_that_do_not_fit__are_refused_before_anything_is_done(monkeypatch):
    monkeypatch.setattr(kernel_pca, "_SHARE_OF_MEMORY", 1e-9)
    with pytest.raises(CapacityError, match="room for"):
        KernelPCA(2).fit(make_rows())


@pytest.mark.parametrize("method", ["transform", "save"])
def test_unfitted__is_said(method):
    with pytest.raises(NotFittedError):
        getattr(KernelPCA(), method)(make_rows())


# ---- sparse stays sparse -----------------------------------------------------------------------


WIDE = 20_000  # columns


@pytest.fixture
def no_dense(monkeypatch):
    """Making sparse rows dense fails; what has fewer columns are values between them."""

    def watched(convert):
        def checked(array, *args, **options):
            assert max(array.shape) < WIDE, "made dense"
            return convert(array, *args, **options)

        return checked

    for kind in (sp.csr_array, sp.csc_array, sp.coo_array, sp.csr_matrix, sp.csc_matrix):
        monkeypatch.setattr(kind, "toarray", watched(kind.toarray))
        monkeypatch.setattr(kind, "todense", watched(kind.todense))


@pytest.mark.usefixtures("no_dense")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kernel", ["linear", "cosine"])
def test_sparse_rows__are_never_made_dense(kernel, dtype, monkeypatch):
    shrink(monkeypatch, 512)
    n, d = 3000, WIDE
    rng = np.random.default_rng(0)
    groups = sp.csr_array((np.ones(n), (np.arange(n), np.arange(n) % 3)), (n, d))
    rows = sp.csr_array(groups + sp.random_array((n, d), density=1e-4, rng=rng, format="csr"))
    tracemalloc.start()
    model = KernelPCA(2, kernel=kernel, dtype=dtype, random_state=0).fit(rows)
    model.transform(rows[:50])
    model.partial_fit(rows[:100])
    model.transform(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sp.issparse(model._rows)
    assert peak < n * n * 8 / 2 < n * d * 8
    if dtype == "float64":
        all_rows = sp.vstack([rows, rows[:100]]).tocsr()
        if kernel == "cosine":
            lengths = np.sqrt(all_rows.multiply(all_rows).sum(axis=1))
            all_rows = sp.diags_array(1.0 / lengths) @ all_rows
        middle = all_rows.mean(axis=0)
        for value, v in zip(model.eigenvalues_, model.components_, strict=True):
            inner = all_rows.T @ v - middle * v.sum()
            product = all_rows @ inner - middle @ inner
            assert np.linalg.norm(product - value * v) < 2e-6 * model.eigenvalues_[0]


# ---- saving ------------------------------------------------------------------------------------


def check_same(one: KernelPCA, other: KernelPCA) -> None:
    names = ("components_", "eigenvalues_", "residuals_", "noise_variance_", "log_likelihood_")
    for name in (*names, "n_iter_", "n_features_in_"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.get_params() == other.get_params()
    new = make_rows(25, 9)
    np.testing.assert_array_equal(one.transform(new), other.transform(new))


@pytest.mark.parametrize("put", [np.asarray, sp.csr_array])
@pytest.mark.parametrize(
    "options",
    [{"kernel": k} for k in NAMED_KERNELS]
    + [
        {"kernel": laplacian_kernel},
        {"dtype": "float32", "gamma": 0.4},
        {"solver": "em", "sigma2": 0.01, "gamma": 0.4},
        {"memory_budget": "1 MB"},
    ],
)
def test_saved__comes_back_the_same(options, put, tmp_path):
    if callable(options.get("kernel")) and put is sp.csr_array:
        pytest.skip("the function takes dense rows only")
    model = KernelPCA(2, random_state=0, **options).fit(put(make_rows()))
    model.save(tmp_path / "model.distclust")
    loaded = distclust.load(tmp_path / "model.distclust")
    check_same(model, loaded)
    assert sp.issparse(loaded._rows) == sp.issparse(model._rows)
    if "solver" in options:
        np.testing.assert_array_equal(loaded.objective_path_, model.objective_path_)
    check_same(loaded, clone(loaded).fit(put(make_rows())))


def test_saved__keeps_names(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(make_rows(), columns=list("abcde"))
    model = KernelPCA(2, random_state=np.random.default_rng(0)).fit(frame)
    model.save(tmp_path / "model")
    loaded = distclust.load(tmp_path / "model")
    assert list(loaded.feature_names_in_) == list("abcde")
    assert loaded.random_state is None  # a generator has moved on
    np.testing.assert_array_equal(loaded.transform(frame), model.transform(frame))


@pytest.mark.parametrize("name", ["rows", "components_", "_row_sums", "eigenvalues_", "product"])
@pytest.mark.parametrize("harm", ["missing", "short"])
def test_saved__and_cut_is_refused(name, harm, tmp_path):
    model = KernelPCA(2, random_state=0).fit(make_rows())
    model.save(tmp_path / "model")
    archive = read_archive(tmp_path / "model")
    arrays = dict(archive.arrays)
    arrays[name] = arrays[name][:-1]
    if harm == "missing":
        del arrays[name]
    write_archive(tmp_path / "cut", archive.kind, archive.meta, arrays)
    with pytest.raises(ModelFormatError, match="complete model"):
        distclust.load(tmp_path / "cut")


def test_saved__with_a_kernel_that_is_gone_is_refused(tmp_path):
    model = KernelPCA(1, kernel=minus, random_state=0)
    with pytest.warns(IndefiniteKernelWarning):
        model.fit(make_rows())
    model.save(tmp_path / "model")
    archive = read_archive(tmp_path / "model")
    meta = dict(archive.meta)
    meta["parameters"] = {**meta["parameters"], "kernel": "no_such_module:kernel"}
    write_archive(tmp_path / "other", archive.kind, meta, archive.arrays)
    with pytest.raises(ModelFormatError, match="no_such_module"):
        distclust.load(tmp_path / "other")


@pytest.mark.parametrize("put", [np.asarray, sp.csr_array])
def test_pickled_and_cloned(put):
    rows = put(make_rows())
    model = KernelPCA(2, gamma=0.4, random_state=0).fit(rows)
    again = pickle.loads(pickle.dumps(model))
    check_same(model, again)
    again.partial_fit(rows[:10])
    model.partial_fit(rows[:10])
    np.testing.assert_array_equal(again.components_, model.components_)
    fresh = clone(model)
    assert not hasattr(fresh, "components_")
    assert fresh.get_params() == model.get_params()


# ---- the crew ----------------------------------------------------------------------------------


def test_close__lets_the_crew_go_and_the_model_stay():
    rows = make_rows()
    model = KernelPCA(2, gamma=0.4, random_state=0).fit(rows)
    scores = model.transform(rows)
    assert hasattr(model, "_kept_crew")
    for _ in range(2):
        model.close()
        assert not hasattr(model, "_kept_crew")
    np.testing.assert_array_equal(model.transform(rows), scores)
    model.partial_fit(rows[:5])
    assert model.components_.shape == (2, 95)


def test_crew__ends_with_its_model():
    model = KernelPCA(2, gamma=0.4, random_state=0).fit(make_rows())
    finalizer = model._kept_crew.finalizer
    assert finalizer.alive
    del model
    assert not finalizer.alive


@pytest.mark.parametrize("kernel", ["rbf", "poly"])
def test_refit__of_other_rows_is_a_fit_of_them(kernel):
    """Tiles of the first rows are there still; they count for nothing where rows differ."""
    rows = make_rows(100)
    model = KernelPCA(2, kernel=kernel, gamma=0.4, random_state=0).fit(rows)
    others = [make_rows(100, 1), make_rows(60), np.concatenate([make_rows(16, 1), rows[16:]])]
    for other in [*others, sp.csr_array(rows), rows]:
        fresh = KernelPCA(2, kernel=kernel, gamma=0.4, random_state=0).fit(other)
        np.testing.assert_array_equal(model.fit(other).components_, fresh.components_)
    model.set_params(gamma=0.1)
    fresh = KernelPCA(2, kernel=kernel, gamma=0.1, random_state=0).fit(rows)
    np.testing.assert_array_equal(model.fit(rows).components_, fresh.components_)


# ---- the start ---------------------------------------------------------------------------------


def test_start__from_a_sample_misses_nothing():
    """The leading direction lives on three rows that no sample of rows is likely to have."""
    rng = np.random.default_rng(0)
    rows = np.zeros((3000, 12))
    rows[:, :8] = rng.normal(size=(3000, 8)) * np.linspace(2.0, 1.0, 8)
    rows[[17, 1203, 2880], :8] = 0.0
    for strength in (90.0, 45.0, 35.0):  # before all others, among them, near the last
        rows[[17, 1203, 2880], 9] = strength, -strength, strength
        exact = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:4] ** 2
        for seed in range(5):
            model = KernelPCA(4, kernel="poly", degree=1, gamma=1.0, coef0=0.0, random_state=seed)
            model.fit(rows)
            np.testing.assert_allclose(model.eigenvalues_, exact, rtol=1e-9)
