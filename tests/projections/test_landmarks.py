"""New rows by a fitted model: the centred kernel with the training rows, in every layout."""

from __future__ import annotations

import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import distclust
from distclust import KernelPCA
from distclust.errors import InputError
from distclust.projections.kernels import NAMED_KERNELS
from tests import small_blocks
from tests.oracles import kernel_pca as oracle
from tests.small_tiles import shrink


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    shrink(monkeypatch)


def make_rows(n: int, seed: int = 0, d: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.7)
    return rows + (np.arange(n) % 3)[:, None] * (rows != 0)


def make_model(kernel="rbf", q=3, **options) -> KernelPCA:
    options = {"gamma": 0.3, "tolerance": 1e-11, "random_state": 0, **options}
    return KernelPCA(q, kernel=kernel, **options)


@pytest.mark.parametrize("put", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("kernel", NAMED_KERNELS)
def test_training_rows__come_back_as_their_scores(kernel, put):
    rows = put(make_rows(70))
    model = make_model(kernel)
    scores = model.fit_transform(rows)
    np.testing.assert_allclose(model.transform(rows), scores, atol=1e-8)
    np.testing.assert_array_equal(scores, model.components_.T * np.sqrt(model.eigenvalues_))


@pytest.mark.parametrize("layouts", ["dd", "ds", "sd", "ss"])
@pytest.mark.parametrize("kernel", NAMED_KERNELS)
def test_new_rows__as_by_the_book(kernel, layouts):
    rows, new = make_rows(70), make_rows(40, 1) * 1.5
    put = {"d": np.asarray, "s": sp.csr_array}
    truth = oracle.fit(oracle.kernel_matrix(rows, None, kernel, 0.3))
    wanted = truth.project(oracle.kernel_matrix(new, rows, kernel, 0.3), 3)
    model = make_model(kernel).fit(put[layouts[0]](rows))
    np.testing.assert_allclose(model.transform(put[layouts[1]](new)), wanted, atol=1e-7)


def test_linear__is_projection_on_the_axes_of_centred_features():
    """Centring the kernel is centring the features, for training and for new rows."""
    rows, new = make_rows(70) + 5.0, make_rows(20, 1) + 4.0
    model = make_model("linear").fit(rows)
    mean = rows.mean(axis=0)
    u, lengths, axes = np.linalg.svd(rows - mean, full_matrices=False)
    np.testing.assert_allclose(model.eigenvalues_, lengths[:3] ** 2, rtol=1e-10)
    signs = np.sign(np.einsum("ij,ji->i", model.components_, u[:, :3]))
    np.testing.assert_allclose(model.components_, (u[:, :3] * signs).T, atol=1e-8)
    np.testing.assert_allclose(model.transform(new), (new - mean) @ axes[:3].T * signs, atol=1e-7)


def test_float32__is_near():
    rows, new = make_rows(70), make_rows(40, 1)
    one, other = make_model().fit(rows), make_model(dtype="float32").fit(rows)
    np.testing.assert_allclose(other.transform(new), one.transform(new), atol=1e-4)


def test_component_without_direction__is_zero():
    rows = make_rows(40, d=2)
    model = make_model("linear", 4)
    scores = model.fit_transform(rows)
    assert (scores[:, 2:] == 0).all()
    assert (model.transform(rows)[:, 2:] == 0).all()
    np.testing.assert_allclose(model.transform(rows), scores, atol=1e-9)


@pytest.mark.parametrize("kernel", NAMED_KERNELS)
def test_bits__do_not_depend_on_pieces_threads_or_kind(kernel, monkeypatch, tmp_path):
    small_blocks.shrink(monkeypatch)
    rows, new = make_rows(70), make_rows(200, 1)
    model = make_model(kernel).fit(rows)
    whole = model.transform(new)
    distclust.ingest(iter([new]), tmp_path / "new.zarr")
    kinds = [
        pd.DataFrame(new),
        da.from_array(new, chunks=(33, 2)),
        tmp_path / "new.zarr",
        np.asfortranarray(new),
    ]
    for kind in kinds:
        np.testing.assert_array_equal(model.transform(kind), whole)
    for threads in ("1", "3"):
        monkeypatch.setenv("DISTCLUST_THREADS", threads)
        np.testing.assert_array_equal(model.transform(new), whole)
    pieces = [model.transform(new[i : i + 37]) for i in range(0, 200, 37)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_pickled__is_the_same():
    rows = make_rows(70)
    model = make_model().fit(rows)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.transform(rows), model.transform(rows))


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_row_that_is_not_finite__is_named(bad, monkeypatch):
    small_blocks.shrink(monkeypatch)
    model = make_model().fit(make_rows(70))
    new = make_rows(200, 1)
    new[150, 3] = new[170, 1] = bad
    with pytest.raises(InputError, match=r"KernelPCA.transform.* row 150\b"):
        model.transform(new)


def test_other_features__are_refused():
    model = make_model().fit(make_rows(70))
    with pytest.raises(InputError, match="4 features"):
        model.transform(make_rows(10, d=4))
    named = pd.DataFrame(make_rows(70), columns=list("abcde"))
    model = make_model().fit(named)
    assert list(model.feature_names_in_) == list("abcde")
    with pytest.raises(InputError):
        model.transform(named.rename(columns={"a": "z"}))
    assert list(model.get_feature_names_out()) == ["kernelpca0", "kernelpca1", "kernelpca2"]
