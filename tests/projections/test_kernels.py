"""Kernels on tiles: their definitions, padding, and functions that users wrote."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics.pairwise import laplacian_kernel

from distclust.errors import InputError
from distclust.projections import kernels
from distclust.projections._numerics import raise_e
from distclust.projections.kernels import Kernel, Preparation, find_function, name_of
from tests.oracles import kernel_pca as oracle
from tests.small_tiles import TILE, shrink

NAMES = ["rbf", "poly", "linear", "cosine"]
LAYOUTS = {"dense": np.asarray, "sparse": sp.csr_array}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    shrink(monkeypatch)


def make_rows(n: int, seed: int = 0, d: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.6)
    rows[n // 2] = 0.0  # has no direction
    return rows


def values_of(kernel: Kernel, left, right, dtype="float64", middle=None) -> np.ndarray:
    """Return the kernel of all rows with all others, put together from tiles."""
    preparation = Preparation(kernel, dtype, middle)
    out = []
    for a in preparation.tiles(left):
        found = [
            preparation.values(a, b, np.full((TILE, TILE), np.nan, dtype))[: a.n, : b.n].copy()
            for b in preparation.tiles(right)
        ]
        out.append(np.hstack(found))
    return np.vstack(out)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_values__are_those_of_the_definition(name, layout):
    left, right = make_rows(2 * TILE + 3), make_rows(TILE + 1, 1)
    kernel = Kernel(name, gamma=0.7, degree=2, coef0=0.5)
    put = LAYOUTS[layout]
    wanted = oracle.kernel_matrix(left, right, name, 0.7, 2, 0.5)
    np.testing.assert_allclose(values_of(kernel, put(left), put(right)), wanted, atol=1e-13)
    single = values_of(kernel, put(left), put(right), "float32")
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, wanted, rtol=2e-5, atol=2e-6)
    diagonal = np.diag(oracle.kernel_matrix(left, None, name, 0.7, 2, 0.5))
    np.testing.assert_allclose(kernel.diagonal(put(left)), diagonal, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rbf__far_from_the_origin_needs_the_middle(dtype):
    rows = make_rows(30) + 1e4
    kernel = Kernel("rbf", gamma=0.5)
    wanted = oracle.kernel_matrix(rows, gamma=0.5)
    found = values_of(kernel, rows, rows, dtype, rows.mean(axis=0))
    np.testing.assert_allclose(found, wanted, atol=1e-11 if dtype == "float64" else 1e-5)


def test_rbf__of_equal_rows_is_one_at_most():
    rows = np.repeat(make_rows(3) * 1e3, 8, axis=0)
    assert values_of(Kernel("rbf", gamma=1.0), rows, rows).max() <= 1.0


def test_exponential__is_exact_to_the_last_place():
    rng = np.random.default_rng(0)
    x = np.concatenate([-rng.exponential(5.0, 200_000), -rng.uniform(0, 708, 100_000)])
    x[:6] = [0.0, -0.0, -1e-300, -1e-17, -np.log(2.0) / 2, -np.log(2.0)]
    found = x.copy()
    raise_e(found)
    wanted = np.exp(x.astype(np.longdouble))
    assert float(np.abs((found - wanted) / np.spacing(wanted.astype(np.float64))).max()) < 1.0
    assert found[0] == found[1] == found[2] == 1.0
    assert found.max() <= 1.0


def test_exponential__beyond_its_range():
    x = np.array([3.0, 1e-12, np.inf, -708.5, -1e9, -np.inf])  # rounding may lead above 0
    raise_e(x)
    np.testing.assert_array_equal(x, [1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    lost = np.array([np.nan, -1.0, np.nan])
    raise_e(lost)
    np.testing.assert_array_equal(np.isnan(lost), [True, False, True])


@pytest.mark.parametrize("name", NAMES)
def test_values__fill_part_of_an_array(name):
    rows, others = make_rows(TILE), make_rows(TILE, 1)
    preparation = Preparation(Kernel(name, gamma=0.3), "float64", None)
    (a,), (b,) = preparation.tiles(rows), preparation.tiles(others)
    whole = preparation.values(a, b, np.empty((TILE, TILE)))
    larger = np.full((TILE, 2 * TILE), np.nan)
    preparation.values(a, b.part(slice(4, 12)), larger[:, 4:12])
    np.testing.assert_array_equal(larger[:, 4:12], whole[:, 4:12])
    assert np.isnan(larger[:, :4]).all()
    assert np.isnan(larger[:, 12:]).all()
    assert [b.part(s).n for s in (slice(4, 12), slice(12, TILE + 9))] == [8, TILE - 12]


@pytest.mark.parametrize("name", NAMES)
def test_values__do_not_depend_on_the_company(name):
    """A row gives the same bits wherever it lies in its tile, and whoever is beside it."""
    rows, others = make_rows(TILE), make_rows(TILE, 1)
    kernel = Kernel(name, gamma=0.3)
    order = np.random.default_rng(0).permutation(TILE)
    all_values = values_of(kernel, rows, others)
    np.testing.assert_array_equal(values_of(kernel, rows[order], others), all_values[order])
    np.testing.assert_array_equal(values_of(kernel, rows[3:7], others), all_values[3:7])


# ---- functions of users ------------------------------------------------------------------------


def manhattan(left, right):
    return np.exp(-np.abs(left[:, None, :] - right[None, :, :]).sum(axis=2))


def bad_shape(left, right):
    return np.ones((len(left), 1))


def not_finite(left, right):
    return np.full((len(left), len(right)), np.inf)


def reads_padding(left, right):
    assert len(left) <= 3
    return np.ones((len(left), len(right)))


class Holder:
    @staticmethod
    def inside(left, right):
        return left @ right.T


def test_callable__by_its_name():
    assert name_of(manhattan, "here") == f"{__name__}:manhattan"
    assert find_function(f"{__name__}:manhattan") is manhattan
    assert find_function(name_of(Holder.inside, "here")) is Holder.inside
    assert find_function(name_of(laplacian_kernel, "here")) is laplacian_kernel


def test_callable__is_called_with_the_rows_and_without_padding():
    rows = make_rows(3)
    ones = values_of(Kernel(name_of(reads_padding, "here")), rows, rows)
    np.testing.assert_array_equal(ones, np.ones((3, 3)))
    kernel = Kernel(name_of(manhattan, "here"))
    rows = make_rows(TILE + 5)
    np.testing.assert_array_equal(values_of(kernel, rows, rows), manhattan(rows, rows))
    np.testing.assert_array_equal(kernel.diagonal(rows), np.ones(len(rows)))


def test_callable__padding_is_zero():
    preparation = Preparation(Kernel(name_of(manhattan, "here")), "float64", None)
    tile = preparation.tile(make_rows(3))
    values = preparation.values(tile, tile, np.full((TILE, TILE), np.nan))
    assert (values[3:] == 0).all()
    assert (values[:, 3:] == 0).all()


@pytest.mark.parametrize(
    ("function", "got"), [(bad_shape, r"shape \(4, 1\)"), (not_finite, "not finite")]
)
def test_callable__that_returns_something_else_is_refused(function, got):
    rows = make_rows(4)
    with pytest.raises(InputError, match=got) as raised:
        values_of(Kernel(name_of(function, "here")), rows, rows)
    assert function.__name__ in str(raised.value)


def test_callable__that_nobody_can_import_is_refused(monkeypatch):
    def local(left, right):
        return left @ right.T

    def in_a_script(left, right):
        return left @ right.T

    in_a_script.__module__, in_a_script.__qualname__ = "__main__", "in_a_script"
    monkeypatch.setattr(sys.modules["__main__"], "in_a_script", in_a_script, raising=False)

    def replaced(left, right):
        return left @ right.T

    replaced.__module__, replaced.__qualname__ = __name__, "manhattan"

    def renamed(left, right):
        return left @ right.T

    renamed.__module__, renamed.__qualname__ = __name__, "no_such_name"

    class Object:
        def __call__(self, left, right):
            return left @ right.T

    functions = [lambda x, y: x @ y.T, local, in_a_script, replaced, renamed, Object()]
    for function in functions:
        with pytest.raises(InputError, match="can be imported by its name") as raised:
            name_of(function, "KernelPCA.fit: kernel")
        assert "KernelPCA.fit: kernel" in str(raised.value)


@pytest.mark.parametrize(
    "path", ["no_such_module:f", "numpy:no_such", "numpy", "", ":f", "numpy:pi"]
)
def test_find_function__says_what_is_missing(path):
    with pytest.raises(InputError, match="kernel"):
        find_function(path)


def test_tile__is_padded_with_zeros():
    rows = make_rows(3)
    for layout in LAYOUTS.values():
        tile = Preparation(Kernel("linear"), "float64", None).tile(layout(rows))
        assert tile.n == 3
        assert tile.rows.shape == (kernels.TILE, 5)
        assert abs(tile.rows[3:]).sum() == 0
