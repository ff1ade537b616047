"""Compiled products against NumPy, and to the bit against sums made one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from distclust.projections._product_numerics import (
    ADD,
    PUT,
    PUT_EXPONENTIAL,
    _multiply_without_compiler,
    block_of,
    multiply,
    multiply_across,
    panel_shape,
    panels_in,
    panels_of,
)

DTYPES = ["float64", "float32"]
# Rows of A, columns of A, columns of B: whole groups of rows and panels, and not.
SHAPES = [(8, 5, 24), (64, 40, 20), (67, 3, 28), (1, 52, 57), (130, 1, 100), (5, 7, 1), (3, 0, 4)]


def make_factors(n: int, m: int, k: int, dtype: str):
    rng = np.random.default_rng(n + m + k)
    return rng.normal(size=(n, m)).astype(dtype), rng.normal(size=(m, k)).astype(dtype)


def tolerance(dtype: str) -> float:
    return 1e-13 if dtype == "float64" else 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("then", [PUT, ADD, PUT_EXPONENTIAL])
def test_multiply__is_a_product(shape, dtype, then):
    left, block = make_factors(*shape, dtype)
    out = np.ones((shape[0], shape[2]))
    multiply(left, panels_of(block, dtype), out, then)
    product = left.astype(np.float64) @ block
    wanted = [product, 1.0 + product, np.exp(np.minimum(product, 0.0))][then]
    np.testing.assert_allclose(out, wanted, rtol=0, atol=tolerance(dtype) * (1 + shape[1]))
    again = np.ones_like(out)
    _multiply_without_compiler(left, panels_of(block, dtype), again, then)
    np.testing.assert_allclose(out, again, rtol=0, atol=tolerance(dtype) * (1 + shape[1]))


def fused(a: float, b: float, c: float) -> float:
    """Return a b + c, rounded once."""
    return float(Fraction(a) * Fraction(b) + Fraction(c))


def test_multiply__every_number_is_one_sum_in_order_rounded_once_a_step():
    left, block = make_factors(9, 30, 11, "float64")
    out = np.empty((9, 11))
    multiply(left, panels_of(block, "float64"), out, PUT)
    for i in range(9):
        for c in range(11):
            total = 0.0
            for j in range(30):
                total = fused(float(left[i, j]), float(block[j, c]), total)
            assert out[i, c] == total


@pytest.mark.parametrize("dtype", DTYPES)
def test_multiply__the_same_bits_in_any_layout_and_company(dtype):
    left, block = make_factors(70, 33, 61, dtype)
    whole = np.empty((70, 61))
    multiply(left, panels_of(block, dtype), whole, PUT)
    for rows, columns in ((slice(3, 4), slice(0, 61)), (slice(5, 23), slice(7, 40))):
        part = np.full((80, 90), np.nan)
        place = part[1 : 1 + rows.stop - rows.start, 2 : 2 + columns.stop - columns.start]
        multiply(left[rows], panels_of(block[:, columns], dtype), place, PUT)
        np.testing.assert_array_equal(place, whole[rows, columns])
        assert np.isnan(part).sum() == part.size - place.size
    turned = np.empty((70, 61)[::-1]).T
    multiply(np.asfortranarray(left), panels_of(np.asfortranarray(block), dtype), turned, PUT)
    np.testing.assert_array_equal(turned, whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", [1, 32, 63, 64, 200])
def test_multiply_across__needs_no_copy_and_gives_the_same_bits(n_columns, dtype):
    left, block = make_factors(12, 9, n_columns + 50, dtype)
    inside = block[:, 3 : 3 + n_columns]
    wanted, found, copied = (np.empty((12, n_columns)) for _ in range(3))
    multiply(left, panels_of(inside, dtype), wanted, PUT)
    multiply_across(left, inside, found)
    multiply_across(left, np.asfortranarray(inside), copied)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(copied, wanted)
    assert np.shares_memory(panels_in(inside), block) == (panels_in(inside).size > 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_panels__hold_a_block(dtype):
    for k in (1, 8, 20, 57, 300):
        _, block = make_factors(1, 6, k, dtype)
        panels = panels_of(block, dtype)
        n_panels, width = panel_shape(k, dtype)
        assert panels.shape == (n_panels, 6, width)
        np.testing.assert_array_equal(block_of(panels)[:, :k], block)
        assert not block_of(panels)[:, k:].any()


def test_multiply__refuses_shapes_that_do_not_fit():
    left, block = make_factors(4, 5, 6, "float64")
    panels = panels_of(block, "float64")
    with pytest.raises(ValueError, match="do not fit"):
        multiply(left[:, :4], panels, np.empty((4, 6)), PUT)
    with pytest.raises(ValueError, match="do not fit"):
        multiply(left, panels, np.empty((3, 6)), PUT)
    with pytest.raises(ValueError, match="fewer columns"):
        multiply(left, panels, np.empty((4, 600)), PUT)


_SHORT_VECTORS = """
import llvmlite.binding as binding
features = type(binding.get_host_cpu_features())()
binding.get_host_cpu_features = lambda: features
from distclust.projections._product_numerics import _VECTOR_BYTES
from tests.projections.test_products import digest
assert _VECTOR_BYTES == 32
print(digest())
"""


def digest() -> str:
    """Return a digest of the bits of some products."""
    import hashlib

    found = hashlib.blake2b()
    for dtype in DTYPES:
        for shape in SHAPES:
            left, block = make_factors(*shape, dtype)
            out = np.ones((shape[0], shape[2]))
            multiply(left, panels_of(block, dtype), out, ADD)
            found.update(out.tobytes())
    return found.hexdigest()


def test_multiply__the_same_bits_with_vectors_of_another_length(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _SHORT_VECTORS],
        capture_output=True,
        text=True,
        env=os.environ | {"DISTCLUST_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest()
