"""Sparse matrices in ``.npz`` files: their places are checked, what meets in one adds up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from distclust.errors import CapacityError, InputError
from distclust.store.sources import npz
from distclust.store.tables import read_table
from tests.sources import read_source

FAR = 2**30  # what scipy would read from there ends the process


def save(path: Path, form: str, **members: Any) -> Path:
    """Save a 4 x 6 matrix as scipy does, some members replaced."""
    matrix = scipy.sparse.csr_array(np.kron(np.eye(2, 3), [[1.0, 2], [3, 4]]))
    scipy.sparse.save_npz(path, matrix.asformat(form))
    with np.load(path) as archive:
        content = {**archive, **members}
    np.savez(path, **content)
    return path


def read_both(path: Path) -> list[Any]:
    return [read_source(path).values, scipy.sparse.csr_array(read_table(path)).toarray()]


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "dia"])
def test_read__every_form(tmp_path: Path, form: str) -> None:
    expected = np.kron(np.eye(2, 3), [[1.0, 2], [3, 4]])
    for found in read_both(save(tmp_path / "t.npz", form)):
        np.testing.assert_array_equal(found, expected)


def _indices(n: int, *last: int) -> Any:
    return np.array([0] * (n - len(last)) + [*last])


@pytest.mark.parametrize(
    ("form", "members"),
    [
        ("csr", {"indices": _indices(8, FAR)}),
        ("csr", {"indices": _indices(8, -1)}),
        ("csr", {"indices": np.zeros(8)}),
        ("csr", {"indptr": np.array([0, 2, 4, FAR, 8])}),
        ("csr", {"indptr": np.array([0, FAR, 0, 0, 0])}),
        ("csr", {"indptr": np.array([0, 2, 4, 6, -1])}),
        ("csr", {"indptr": np.array([0, 2, 4, 6, 8], np.float64)}),
        ("csr", {"data": np.float64(1)}),
        ("csr", {"shape": np.array([4, 2**60])}),
        ("csr", {"shape": np.array([0, 6]), "indptr": np.array([0])}),
        ("csc", {"indices": _indices(8, FAR)}),
        ("csc", {"indices": _indices(8, FAR, 1)}),
        ("csc", {"indptr": np.array([0, FAR, 0, 0, 0, 0, 0])}),
        ("csc", {"indptr": np.array([0, 2, 4])}),
        ("csc", {"indptr": np.array([0, 8, 0, 0, 0, 0, 0])}),
        ("csr", {"indptr": np.array([0, 8, 0, 0, 0])}),
        ("bsr", {"indptr": np.array([0, 2, 0])}),
        ("csc", {"shape": np.array([4])}),
        ("csc", {"shape": np.array([4, -6])}),
        ("bsr", {"indices": np.array([0, FAR])}),
        ("bsr", {"indices": np.array([0, 3])}),
        ("bsr", {"indptr": np.array([0, FAR, 0])}),
        ("bsr", {"shape": np.array([5, 6])}),
        ("bsr", {"data": np.zeros((2, 0, 2))}),
        ("coo", {"row": _indices(8, FAR)}),
        ("coo", {"col": _indices(8, 6)}),
        ("coo", {"col": _indices(7)}),
        ("coo", {"coords": np.zeros((1, 8), int)}),
        ("dia", {"offsets": np.array([-1, 0, FAR])}),
        ("dia", {"offsets": np.array([-1, 0, 2**32])}),
    ],
)
def test_read__places_that_lead_elsewhere_are_refused(
    tmp_path: Path, form: str, members: Any
) -> None:
    path = save(tmp_path / "t.npz", form, **members)
    for read in (read_source, read_table):
        with pytest.raises(InputError, match=f"{path}: expected "):
            read(path)


def test_read__more_rows_than_can_be_counted_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "t.npz", "coo", shape=np.array([2**40, 6]))
    with pytest.raises(CapacityError, match=f"COO format in {2**40 * 8 >> 20} MB"):
        read_source(path)
    assert npz._LARGEST_WHOLE < 2**40 * 8


@pytest.mark.parametrize(
    ("values", "dtype", "total"),
    [
        ([200, 100], np.uint8, 300),
        ([100, 100, 100], np.int8, 300),
        ([-100, -100], np.int8, -200),
        ([60_000, 60_000], np.uint16, 120_000),
        ([1, 2], np.uint8, 3),
    ],
)
@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_read__repeated_places_add_up_beyond_their_type(
    tmp_path: Path, form: str, values: list[int], dtype: Any, total: int
) -> None:
    data, n = np.array(values, dtype), len(values)
    parts = (data, (np.zeros(n, int), np.ones(n, int)))
    ends = {"csr": [0, n, n], "csc": [0, 0, n, n]}
    path = tmp_path / "t.npz"
    members: dict[str, Any] = {"row": parts[1][0], "col": parts[1][1]}
    if form != "coo":
        members = {"indices": np.full(n, form == "csr", int), "indptr": np.array(ends[form])}
    np.savez(path, format=np.array(form.encode()), shape=[2, 3], data=data, **members)
    blocks = [scipy.sparse.coo_array(parts, shape=(2, 3))]
    for found in (*read_both(path), read_source(blocks).values):
        np.testing.assert_array_equal(found, [[0, total, 0], [0, 0, 0]])


def test_read__sums_that_fit_keep_the_type(tmp_path: Path) -> None:
    parts = (np.array([1, 2], np.uint8), ([0, 0], [1, 1]))
    scipy.sparse.save_npz(tmp_path / "t.npz", scipy.sparse.coo_array(parts, shape=(2, 3)))
    assert all(found.dtype == np.uint8 for found in read_both(tmp_path / "t.npz"))
