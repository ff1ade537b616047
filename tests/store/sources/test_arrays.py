"""NumPy files: arrays of every type and order, sparse matrices, and files not to be trusted."""

from __future__ import annotations

import secrets
import zipfile
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse

from distclust.engine import map_ordered
from distclust.errors import CapacityError, InputError
from distclust.store.sources import arrays, npz, open_source
from tests.faults import every_fault
from tests.sources import Read, prepare_source, read_source


@pytest.fixture
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut archives into many pieces."""
    monkeypatch.setattr(npz, "PIECE_BYTES", 100)
    monkeypatch.setattr(npz, "_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(npz, "_ENTRIES_AT_ONCE", 10)


def read(path: Any, **options: Any) -> Read:
    return read_source(path, f"memory://{secrets.token_hex(8)}", **options)


def save(path: Path, values: Any, **options: Any) -> Path:
    if scipy.sparse.issparse(values):
        scipy.sparse.save_npz(path, values, **options)
    elif path.suffix == ".npz":
        np.savez_compressed(path, values)
    else:
        np.save(path, values)
    return path


def raw_array(header: str, content: bytes = b"") -> bytes:
    text = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + content


_dtypes = st.sampled_from(["?", "i1", "u2", ">i4", "i8", "u8", "f2", "f4", ">f8", "f8"])
_matrices = _dtypes.flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=20),
        elements=hnp.from_dtype(np.dtype(dtype), allow_infinity=False, allow_subnormal=False),
    )
)


@hypothesis.given(
    values=_matrices, suffix=st.sampled_from([".npy", ".npz"]), is_fortran=st.booleans()
)
def test_read__round_trips(
    tmp_path_factory: Any, values: Any, suffix: str, is_fortran: bool
) -> None:
    ordered = np.asfortranarray(values) if is_fortran else values
    path = save(tmp_path_factory.mktemp("arrays") / f"t{suffix}", ordered)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(npz, "PIECE_BYTES", 100)
        found = read(path)
    np.testing.assert_array_equal(found.values, values)
    kind = {"b": "bool", "i": "integer", "u": "integer"}.get(values.dtype.kind, "real")
    assert {column.number for column in found.prepared.columns} == {kind}
    assert found.names == [f"x{i}" for i in range(values.shape[1])]
    assert found.values.dtype.isnative
    if values.dtype.kind == "f":
        assert found.values.dtype.itemsize == max(values.dtype.itemsize, 4)
    elif values.dtype.kind in "iu":
        assert found.values.dtype.itemsize <= values.dtype.itemsize


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.bool_])
def test_read__sparse_matrices(tmp_path: Path, form: str, compressed: bool, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    dense = (rng.integers(-3, 4, (60, 9)) * (rng.random((60, 9)) < 0.3)).astype(dtype)
    dense[10:30] = 0  # rows without entries
    matrix = scipy.sparse.csr_array(dense).asformat(form)
    found = read(save(tmp_path / "t.npz", matrix, compressed=compressed))
    np.testing.assert_array_equal(found.values, dense)
    assert found.prepared.rows.is_sparse
    kind = {"b": "bool", "i": "integer"}.get(np.dtype(dtype).kind, "real")
    assert found.prepared.columns[0].number == kind


@pytest.mark.usefixtures("cut_small")
def test_read__sparse_rows_are_put_in_order(tmp_path: Path) -> None:
    parts = (np.array([1.0, 2, 3, 0]), np.array([2, 0, 0, 1]), np.array([0, 3, 4]))
    matrix = scipy.sparse.csr_array(parts, shape=(2, 3))
    found = read(save(tmp_path / "t.npz", matrix))
    np.testing.assert_array_equal(found.values, [[5, 0, 1], [0, 0, 0]])
    first = found.prepared.rows.read(0, 2).values
    assert first.indices.tolist() == [0, 2]


def test_read__files_are_stacked_in_their_common_type(tmp_path: Path) -> None:
    first, second = np.array([[1, 2]], np.int8), np.array([[300, -4], [5, 6]])
    paths = [str(save(tmp_path / f"{i}.npy", part)) for i, part in enumerate((first, second))]
    found = read(paths, step=1)
    np.testing.assert_array_equal(found.values, np.concatenate([first, second]))
    assert found.values.dtype == np.int16
    packed = [str(save(tmp_path / f"{i}.npz", part)) for i, part in enumerate((first, second))]
    assert read(packed).values.dtype == np.int16
    wide = save(tmp_path / "w.npy", np.ones((2, 3)))
    with pytest.raises(InputError, match=f"{wide}: expected 2 columns as in {paths[0]}, got 3"):
        read([paths[0], str(wide)])
    sparse = save(tmp_path / "s.npz", scipy.sparse.csr_array(second))
    with pytest.raises(InputError, match=f"{sparse}: expected dense rows of 2 features"):
        read([packed[0], str(sparse)])


@pytest.mark.parametrize("order", ["False", "True"])
def test_npy__reads_only_the_rows_asked_for(tmp_path: Path, order: str) -> None:
    path = tmp_path / "t.npy"
    start = raw_array(f"{{'descr': '<f8', 'fortran_order': {order}, 'shape': (10000000000, 4), }}")
    with path.open("wb") as file:  # 320 GB, nearly all of it a hole
        file.write(start)
        file.seek(len(start) + 8 * 4 * 5_000_000_000 if order == "False" else len(start))
        file.write(np.arange(1.0, 9.0).tobytes())
        file.truncate(len(start) + 8 * 4 * 10_000_000_000)
    rows = prepare_source(path, tmp_path / "store").rows
    assert rows.n_rows == 10_000_000_000
    first = 5_000_000_000 if order == "False" else 0
    found = rows.read(first, first + 3).values
    by_rows, by_columns = (
        [[1, 2, 3, 4], [5, 6, 7, 8], [0] * 4],
        np.eye(4)[[0, 0, 0]] * [[1], [2], [3]],
    )
    np.testing.assert_array_equal(found, by_rows if order == "False" else by_columns)


# ---- refusals -------------------------------------------------------------------------------


_HOSTILE = {
    "torn": b"\x93NUMPY",
    "empty": b"",
    "text": b"hello",
    "short": raw_array("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }", b"1234"),
    "huge": raw_array("{'descr': '<f8', 'fortran_order': False, 'shape': (10**15, 2), }"),
    "giant": raw_array(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000, 2), }", b"12345678"
    ),
    "code": raw_array("__import__('os').abort()"),
    "version": b"\x93NUMPY\x09\x00" + bytes(100),
}


@pytest.mark.parametrize("content", _HOSTILE.values(), ids=_HOSTILE)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_read__what_is_no_array_gets_a_sentence(
    tmp_path: Path, content: bytes, suffix: str
) -> None:
    path = tmp_path / f"t{suffix}"
    if suffix == ".npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", content)
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"{path}: expected a plain NumPy file"):
        read(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.array([[{}]], object), "pickled objects"),
        (np.ones(3), "rows and features, got 1 dimensions"),
        (np.ones((2, 2, 2)), "rows and features, got 3 dimensions"),
        (np.ones((2, 2), complex), "real numbers, got values of type complex128"),
        (np.array([["a"]]), "real numbers, got values of type <U1"),
        (np.ones((0, 3)), "0 rows and 3 columns"),
        (np.ones((3, 0)), "3 rows and 0 columns"),
        (np.array([[1.0, 2], [3, -np.inf]]), "row 1, column 1: expected finite numbers"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_read__other_arrays_are_refused(
    tmp_path: Path, values: Any, says: str, suffix: str
) -> None:
    path = save(tmp_path / f"t{suffix}", values)
    with pytest.raises(InputError, match=says):
        read(path)


def _altered(path: Path, **members: Any) -> Path:
    """Replace members of a sparse matrix."""
    with np.load(path) as archive:
        content = {**archive, **members}
    np.savez_compressed(
        path, **{name: value for name, value in content.items() if value is not None}
    )
    return path


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"indices": np.array([0, 5])}, "columns below 3"),
        ({"indices": np.array([0, -1])}, "columns below 3"),
        ({"indptr": np.array([0, 2, 1])}, "do not follow each other"),
        ({"indptr": np.array([1, 1, 2])}, "do not follow each other"),
        ({"indptr": np.array([0, 1, 9])}, "do not follow each other"),
        ({"indptr": np.array([0, 1, 1])}, "2 entries where 1 belong"),
        ({"indptr": np.array([0, 2])}, "do not fit together"),
        ({"indices": np.array([0])}, "do not fit together"),
        ({"data": np.array([1.0, np.nan])}, "infinite or missing"),
        ({"data": np.array([1j, 2])}, "real numbers"),
        ({"indptr": None}, "plain NumPy file"),
        ({"format": np.array("xyz")}, "plain NumPy file"),
    ],
)
def test_read__sparse_parts_that_do_not_fit_are_refused(
    tmp_path: Path, members: Any, says: str
) -> None:
    path = save(tmp_path / "t.npz", scipy.sparse.csr_array([[1.0, 0, 0], [0, 0, 2]]))
    with pytest.raises(InputError, match=says):
        read(_altered(path, **members))


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_read__altered_archives_are_noticed(tmp_path: Path, kind: str) -> None:
    values = np.random.default_rng(0).normal(size=(50, 4))
    matrix = scipy.sparse.csr_array(values) if kind == "sparse" else values
    path = save(tmp_path / "t.npz", matrix)
    content = path.read_bytes()
    n_noticed = 0
    for place in range(0, len(content), 23):
        damaged = bytearray(content)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        try:
            found = read(path).values
        except InputError:
            n_noticed += 1
        else:  # a time, a part that is not read, bits behind the end
            np.testing.assert_array_equal(found, values)
    assert n_noticed > 40
    path.write_bytes(content[:-100])
    with pytest.raises(InputError, match="plain NumPy file"):
        read(path)


def test_read__what_must_be_read_whole_must_be_small(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(npz, "_LARGEST_WHOLE", 1000)
    values = np.arange(600.0).reshape(200, 3)
    with pytest.raises(CapacityError, match=r"CSC format.*tocsr"):
        read(save(tmp_path / "a.npz", scipy.sparse.csc_array(values)))
    with pytest.raises(CapacityError, match=r"columns that lie together.*C order"):
        read(save(tmp_path / "b.npz", np.asfortranarray(values)))
    assert read(save(tmp_path / "c.npz", scipy.sparse.csr_array(values))).values.shape == (200, 3)


def test_open__columns_have_no_names_and_two_arrays_no_order(tmp_path: Path) -> None:
    path = save(tmp_path / "t.npy", np.ones((2, 2)))
    with pytest.raises(InputError, match="Leave --ids"):
        read(path, drop=("x0",))
    np.savez(tmp_path / "two.npz", a=[[1]], b=[[2]])
    with pytest.raises(InputError, match="expected one array, got 2 arrays"):
        read(tmp_path / "two.npz")


def test_read__from_far_away(tmp_path: Path) -> None:
    import fsspec

    values = np.arange(60.0).reshape(20, 3)
    root = f"memory://numpy-{secrets.token_hex(4)}"
    for name, array in (("a.npy", values), ("b.npz", values), ("f.npy", np.asfortranarray(values))):
        save(tmp_path / name, array)
        with fsspec.open(f"{root}/{name}", "wb") as file:
            file.write((tmp_path / name).read_bytes())
    for name in ("a.npy", "b.npz"):
        np.testing.assert_array_equal(read(f"{root}/{name}").values, values)
    with pytest.raises(InputError, match="Fortran order"):
        read(f"{root}/f.npy")


# ---- parallel, killed -----------------------------------------------------------------------


@pytest.mark.usefixtures("cut_small")
def test_prepare__in_parallel_equals_serial(tmp_path: Path) -> None:
    values = np.arange(300).reshape(100, 3)
    paths = [str(save(tmp_path / f"{i}.npz", values + i)) for i in range(3)]
    serial, parallel = read(paths), read(paths, mapper=map_ordered)
    np.testing.assert_array_equal(parallel.values, serial.values)
    np.testing.assert_array_equal(parallel.ids, np.arange(300))


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_prepare__killed_anywhere_is_taken_up(tmp_path: Path, kind: str) -> None:
    values = np.arange(300).reshape(100, 3) % 7
    path = save(tmp_path / "t.npz", scipy.sparse.csr_array(values) if kind == "sparse" else values)

    def check(place: str, is_complete: bool) -> None:
        if is_complete:
            np.testing.assert_array_equal(read_source(path, place).values, values)

    every_fault(
        tmp_path / "stores",
        prepare=lambda place: None,
        action=lambda place: prepare_source(path, place),
        check=check,
        stride=4,
    )


def test_make_source__goes_by_content_not_by_name(tmp_path: Path) -> None:
    values = np.arange(6.0).reshape(2, 3)
    path = save(tmp_path / "t.npz", values).rename(tmp_path / "t.npy")
    assert isinstance(open_source(path), arrays.ArraySource)
    np.testing.assert_array_equal(read(path).values, values)
