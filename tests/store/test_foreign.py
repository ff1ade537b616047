"""Zarr stores of other programs: read as they are, refused when they cannot be trusted."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

from distclust.errors import InputError, StoreError
from distclust.store.foreign import ForeignMatrix, open_foreign
from distclust.store.foreign_store import ForeignStore
from distclust.store.mapping import serial_map
from distclust.store.matrix_store import open_store
from distclust.store.objects import LocalObjects, Objects, open_objects
from distclust.store.segments import SegmentReader, SegmentSpec, write_segment

N, D = 50, 7

anndata = pytest.importorskip("anndata")


def values(kind: str) -> Any:
    rng = np.random.default_rng(3)
    X = rng.integers(0, 4, (N, D)) * (rng.random((N, D)) < 0.4)
    X[:, -1] = 1  # no chunk of zeros
    made = {
        "float64": X * 1.5,
        "float32": X.astype(np.float32),
        "int64": X,
        "bool": X > 0,
        "csr": sp.csr_matrix(X * 1.5),
        "csr int": sp.csr_matrix(X),
        "csr array": sp.csr_array(X.astype(np.float32)),
    }
    return made[kind]


def frame() -> pd.DataFrame:
    index = [f"Zelle {i} é" for i in range(N)]
    columns = {
        "n": np.arange(N),
        "share": np.linspace(0, 1, N),
        "never": np.zeros(N, bool),  # a chunk that Zarr leaves out
        "kind": pd.Categorical(["a", "b"] * (N // 2)),
        "group": pd.Categorical([1.5, None] * (N // 2)),
        "note": [None, "x"] * (N // 2),
        "count": pd.array([1, None] * (N // 2), dtype="Int64"),
        "flag": pd.array([True, None] * (N // 2), dtype="boolean"),
    }
    return pd.DataFrame(columns, index=index)


def write_anndata(path: Path, X: Any, version: int, obs: pd.DataFrame | None = None) -> Path:
    """Write as AnnData does by itself; what it warns of is its own business."""
    names = pd.DataFrame(index=[f"Gen {j} ß" for j in range(X.shape[1])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = anndata.settings.zarr_write_format
        anndata.settings.zarr_write_format = version
        try:
            anndata.AnnData(X, obs=obs, var=names).write_zarr(path)
        finally:
            anndata.settings.zarr_write_format = before
    return path


def dense(X: Any) -> np.ndarray:
    return X.toarray() if sp.issparse(X) else np.asarray(X)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "kind", ["float64", "float32", "int64", "bool", "csr", "csr int", "csr array"]
)
def test_open_foreign__reads_what_anndata_writes(tmp_path: Path, kind: str, version: int) -> None:
    X = values(kind)
    matrix = open_foreign(str(write_anndata(tmp_path / "a.zarr", X, version, frame())))
    assert matrix.health == "unverified"
    assert matrix.shape == (N, D)
    assert matrix.is_sparse == sp.issparse(X)
    np.testing.assert_array_equal(dense(matrix.read_all()), dense(X))
    np.testing.assert_array_equal(dense(matrix.block(0)), dense(X))
    assert matrix.block(0).dtype == matrix.dtype == (X.dtype if X.dtype.kind in "bi" else float)
    assert matrix.row_ids.tolist() == frame().index.tolist()
    assert matrix.block_ids(0).tolist() == frame().index.tolist()
    assert [column.name for column in matrix.columns] == [f"Gen {j} ß" for j in range(D)]
    again = pickle.loads(pickle.dumps(matrix))
    np.testing.assert_array_equal(dense(again.block(0)), dense(X))


@pytest.mark.parametrize("version", [2, 3])
def test_read__gives_annotations_too(tmp_path: Path, version: int) -> None:
    matrix = open_foreign(str(write_anndata(tmp_path / "a.zarr", values("csr"), version, frame())))
    assert matrix.obs_kinds == {
        "n": "integer",
        "share": "real",
        "never": "bool",
        "kind": "text",
        "group": "text",
        "note": "text",
        "count": "real",
        "flag": "real",
    }
    rows = matrix.read(3, 7)
    np.testing.assert_array_equal(dense(rows.values), dense(values("csr"))[3:7])
    assert rows.ids.tolist() == frame().index[3:7].tolist()
    assert rows.obs["n"].tolist() == [3, 4, 5, 6]
    assert rows.obs["never"].tolist() == [False] * 4
    assert rows.obs["kind"].tolist() == ["b", "a", "b", "a"]
    assert rows.obs["group"].tolist() == [None, "1.5", None, "1.5"]
    assert rows.obs["note"].tolist() == ["x", None, "x", None]
    np.testing.assert_array_equal(rows.obs["count"], [np.nan, 1, np.nan, 1])
    np.testing.assert_array_equal(rows.obs["flag"], [np.nan, 1, np.nan, 1])


def test_read__is_a_source_of_rows(tmp_path: Path) -> None:
    matrix = open_foreign(str(write_anndata(tmp_path / "a.zarr", values("csr"), 2, frame())))
    spec = SegmentSpec(
        "csr", "hot", N, D, matrix.dtype.name, "text", tuple(matrix.obs_kinds.items())
    )
    objects = open_objects(tmp_path / "ours")
    segment = write_segment(objects, "", matrix, spec, mapper=serial_map, scratch="s")
    reader = SegmentReader(objects, "", segment)
    np.testing.assert_array_equal(dense(reader.block(0)), dense(values("csr")))
    assert reader.obs("note", 0).tolist() == [None, "x"] * (N // 2)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("chunks", [(20, 3), (50, 7), (7, 7)])
def test_open_foreign__reads_a_plain_array(
    tmp_path: Path, version: int, chunks: tuple[int, int]
) -> None:
    X = values("float64") + 1.0
    zarr.create_array(tmp_path / "p.zarr", data=X, chunks=chunks, zarr_format=version)
    matrix = open_foreign(str(tmp_path / "p.zarr"))
    np.testing.assert_array_equal(matrix.read_all(), X)
    np.testing.assert_array_equal(matrix.read(13, 29).values, X[13:29])
    assert matrix.row_ids.tolist() == list(range(N))
    assert matrix.read(3, 5).ids.tolist() == [3, 4]
    assert matrix.columns[2].name == "x2"


@pytest.mark.parametrize("version", [2, 3])
def test_open_foreign__reads_big_endian_and_other_separators(tmp_path: Path, version: int) -> None:
    X = values("int64")
    options: Any = {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
    zarr.create_array(
        tmp_path / "p.zarr", data=X.astype(">i4"), chunks=(9, 2), zarr_format=version, **options
    )
    matrix = open_foreign(str(tmp_path / "p.zarr"))
    np.testing.assert_array_equal(matrix.read_all(), X)
    assert matrix.block(0).dtype.isnative


def test_open_foreign__several_blocks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = sp.random_array((40_000, 50), density=0.01, format="csr", rng=rng)
    matrix = open_foreign(str(write_anndata(tmp_path / "a.zarr", sp.csr_matrix(X), 2)))
    assert matrix.n_blocks == 3
    assert (sp.vstack(list(matrix.blocks())) != X).nnz == 0
    assert matrix.block_ids(2)[0] == "32768"


def test_open_foreign__from_anywhere(tmp_path: Path, objects: Objects) -> None:
    source = LocalObjects(write_anndata(tmp_path / "a.zarr", values("csr"), 3))
    for key in source.list():
        objects.write(key, source.read(key))
    np.testing.assert_array_equal(dense(open_foreign(objects).read_all()), dense(values("csr")))


def test_read__makes_rows_canonical(tmp_path: Path) -> None:
    X = sp.csr_matrix(
        (np.array([2.0, 1.0, 0.0, 3.0]), np.array([3, 1, 2, 0]), np.array([0, 3, 4])), shape=(2, 4)
    )
    block = open_foreign(str(write_anndata(tmp_path / "a.zarr", X, 2))).block(0)
    assert block.indices.tolist() == [1, 3, 0]
    assert block.data.tolist() == [1.0, 2.0, 3.0]


# ---- absent chunks -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_missing_chunks__of_values_are_refused_unless_they_are_zeros(
    tmp_path: Path, version: int
) -> None:
    X = np.zeros((N, D))
    X[0, 0] = 1.0
    path = tmp_path / "p.zarr"
    zarr.create_array(path, data=X, chunks=(10, D), zarr_format=version)
    with pytest.raises(StoreError, match=r'5 chunks.*no chunk.*missing_chunks="zeros"'):
        open_foreign(str(path))
    np.testing.assert_array_equal(open_foreign(str(path), missing_chunks="zeros").read_all(), X)


def test_missing_chunks__that_are_not_zeros_are_always_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.zarr"
    zarr.create_array(path, shape=(N, D), chunks=(10, D), dtype=float, fill_value=np.nan)
    with pytest.raises(StoreError, match="no chunk"):
        open_foreign(str(path), missing_chunks="zeros")


@pytest.mark.parametrize("missing_chunks", ["refuse", "zeros"])
@pytest.mark.parametrize("fill_value", [0.0, 7.0, np.nan])
def test_missing_chunks__inside_a_shard_follow_the_same_rule(
    tmp_path: Path, missing_chunks: Any, fill_value: float
) -> None:
    path = tmp_path / "p.zarr"
    array = zarr.create_array(
        path, shape=(8, 2), chunks=(2, 2), shards=(8, 2), dtype=float, fill_value=fill_value
    )
    array[0:2] = 1.0
    matrix = open_foreign(str(path), missing_chunks=missing_chunks)
    if missing_chunks == "zeros" and fill_value == 0:
        np.testing.assert_array_equal(matrix.read_all(), array[:])
    else:
        with pytest.raises(StoreError, match=r"c/0/0.*inner chunk.*missing_chunks"):
            matrix.read_all()


def test_missing_chunks__past_the_end_of_an_array_hold_nothing(tmp_path: Path) -> None:
    path = tmp_path / "p.zarr"
    X = np.arange(1.0, 19.0).reshape(9, 2)
    array = zarr.create_array(
        path, shape=X.shape, chunks=(2, 2), shards=(8, 2), dtype=float, fill_value=7.0
    )
    array[:] = X
    np.testing.assert_array_equal(open_foreign(str(path)).read_all(), X)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("X", [sp.csr_matrix((4, 3)), sp.csr_matrix(np.ones((4, 1)))])
def test_missing_chunks__of_what_can_only_be_zeros_are_read(
    tmp_path: Path, X: Any, version: int
) -> None:
    matrix = open_foreign(str(write_anndata(tmp_path / "a.zarr", X, version)))
    np.testing.assert_array_equal(dense(matrix.read_all()), dense(X))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("part", ["X/data", "X/indices", "X/indptr", "obs/_index", "var/_index"])
def test_missing_chunks__of_a_sparse_matrix_or_an_index_are_refused(
    tmp_path: Path, part: str, version: int
) -> None:
    path = write_anndata(tmp_path / "a.zarr", values("csr"), version)
    (path / part / ("0" if version == 2 else "c/0")).unlink()
    with pytest.raises(StoreError, match=f"{part}.*no chunk"):
        open_foreign(str(path))


def test_missing_chunks__lost_while_reading_are_refused(tmp_path: Path) -> None:
    path = write_anndata(tmp_path / "a.zarr", values("float64"), 3)
    matrix = open_foreign(str(path))
    (path / "X" / "c" / "0" / "0").unlink()
    with pytest.raises(StoreError, match="nothing there"):
        matrix.block(0)


# ---- what is refused -----------------------------------------------------------------------------


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


HOSTILE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "rows": ("X/zarr.json", lambda m: m["attributes"].update(shape=[10**15, D])),
    "features": ("X/zarr.json", lambda m: m["attributes"].update(shape=[N, 10**15])),
    "no shape": ("X/zarr.json", lambda m: m["attributes"].pop("shape")),
    "fewer features": ("X/zarr.json", lambda m: m["attributes"].update(shape=[N, 3])),
    "length": ("X/data/zarr.json", lambda m: m.update(shape=[10**15])),
    "both lengths": ("X/indptr/zarr.json", lambda m: m.update(shape=[10**15])),
    "objects": ("X/data/zarr.json", lambda m: m.update(data_type="object")),
    "text": (
        "X/data/zarr.json",
        lambda m: m.update(data_type="string", codecs=[{"name": "vlen-utf8"}]),
    ),
    "real indices": ("X/indices/zarr.json", lambda m: m.update(data_type="float32")),
    "pickles": ("X/data/zarr.json", lambda m: m["codecs"].append({"name": "numcodecs.pickle"})),
    "two dimensions": (
        "X/indptr/zarr.json",
        lambda m: (
            m.update(shape=[51, 1]),
            m["chunk_grid"]["configuration"].update(chunk_shape=[51, 1]),
        ),
    ),
    "index outside": ("obs/zarr.json", lambda m: m["attributes"].update(_index="../../secret")),
    "index absent": ("obs/zarr.json", lambda m: m["attributes"].update(_index="nobody")),
    "no frame": ("obs/zarr.json", lambda m: m.update(attributes={})),
    "no group": ("obs/zarr.json", lambda m: m.update(node_type="link")),
    "other rows": ("obs/_index/zarr.json", lambda m: m.update(shape=[N + 1])),
    "other features": ("var/_index/zarr.json", lambda m: m.update(shape=[10**15])),
    "another matrix": ("X/zarr.json", lambda m: m["attributes"].update({"encoding-type": "coo"})),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_open_foreign__hostile_metadata_are_refused(tmp_path: Path, kind: str) -> None:
    path = write_anndata(tmp_path / "a.zarr", values("csr"), 3, frame())
    name, change = HOSTILE[kind]
    edit(path / name, change)
    with pytest.raises(StoreError) as error:
        open_foreign(str(path)).read_all()
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("indptr", lambda a: a.__setitem__(3, 10**9)),
        ("indptr", lambda a: a.__setitem__(3, -1)),
        ("indptr", lambda a: a.__setitem__(-1, 2)),
        ("indptr", lambda a: a.__setitem__(0, 1)),
        ("indices", lambda a: a.__setitem__(0, D)),
        ("indices", lambda a: a.__setitem__(0, -1)),
    ],
)
def test_read__rows_and_columns_outside_are_refused(
    tmp_path: Path, part: str, change: Callable[[Any], Any]
) -> None:
    path = write_anndata(tmp_path / "a.zarr", values("csr"), 3)
    array = zarr.open_array(path / "X" / part, mode="r+")
    content = array[:]
    change(content)
    array[:] = content
    with pytest.raises(StoreError, match=r"rows|columns"):
        open_foreign(str(path)).read_all()


@pytest.mark.parametrize("damage", [lambda content: content[:-2], lambda content: content[::-1]])
def test_read__chunks_that_cannot_be_decoded_are_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = write_anndata(tmp_path / "a.zarr", values("csr"), 2)
    chunk = path / "X" / "data" / "0"
    chunk.write_bytes(damage(chunk.read_bytes()))
    with pytest.raises(StoreError, match="X/data/0"):
        open_foreign(str(path)).read_all()


@pytest.mark.parametrize("X", [sp.csr_matrix([[0, np.nan]]), np.array([[np.inf, 1.0]])])
def test_read__values_that_are_not_finite_are_refused(tmp_path: Path, X: Any) -> None:
    with pytest.raises(InputError, match="finite"):
        open_foreign(str(write_anndata(tmp_path / "a.zarr", X, 2))).read_all()


def test_read__dense_values_may_be_missing(tmp_path: Path) -> None:
    X = np.array([[np.nan, 1.0]])
    matrix = open_foreign(str(write_anndata(tmp_path / "a.zarr", X, 2)))
    np.testing.assert_array_equal(matrix.read_all(), X)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (np.array([1, 2**63], np.uint64), r"below 2\*\*63, got 9223372036854775808"),
        (pd.array([1, 2**53 + 1], dtype="Int64"), r"up to 9007199254740992 .* 9007199254740993"),
        (pd.array([1, -(2**53) - 1], dtype="Int64"), r"up to 9007199254740992"),
        (pd.array([1, 2**64 - 1], dtype="UInt64"), r"below 2\*\*63"),
    ],
)
def test_read__numbers_that_would_change_are_refused(
    tmp_path: Path, column: Any, expected: str
) -> None:
    obs = pd.DataFrame({"n": column}, index=["a", "b"])
    matrix = open_foreign(str(write_anndata(tmp_path / "a.zarr", np.eye(2), 3, obs)))
    with pytest.raises(StoreError, match=rf"obs/n.*{expected}.*as text"):
        matrix.read(0, 2)
    assert matrix.read(0, 1).obs["n"].tolist() == [1]


def test_read__large_numbers_that_fit_are_kept(tmp_path: Path) -> None:
    columns = {
        "u": np.array([2**63 - 1, 0], np.uint64),
        "n": pd.array([2**53, None], dtype="Int64"),
    }
    obs = pd.DataFrame(columns, index=["a", "b"])
    path = write_anndata(tmp_path / "a.zarr", np.eye(2), 3, obs)
    found = open_foreign(str(path)).read(0, 2).obs
    assert found["u"].tolist() == [2**63 - 1, 0]
    assert found["n"][0] == 2**53
    zarr.open_array(path / "obs" / "n" / "values", mode="r+")[1] = 2**53 + 1  # behind the mask
    assert np.isnan(open_foreign(str(path)).read(0, 2).obs["n"][1])


def test_row_ids__numbers_that_would_change_are_refused(tmp_path: Path) -> None:
    path = write_anndata(tmp_path / "a.zarr", np.eye(2), 3)
    edit(path / "obs" / "zarr.json", lambda m: m["attributes"].update(_index="id"))
    ids = np.array([1, 2**64 - 1], np.uint64)
    zarr.create_array(path / "obs" / "id", data=ids)
    with pytest.raises(StoreError, match="18446744073709551615"):
        _ = open_foreign(str(path)).row_ids


def test_read__codes_outside_are_refused(tmp_path: Path) -> None:
    path = write_anndata(tmp_path / "a.zarr", values("csr"), 3, frame())
    zarr.open_array(path / "obs" / "kind" / "codes", mode="r+")[:] = 2
    matrix = open_foreign(str(path))
    with pytest.raises(StoreError, match="codes from -1 to 1"):
        matrix.read(0, 5)


def test_open_foreign__columns_first_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = write_anndata(tmp_path / "a.zarr", sp.csc_matrix(values("csr")), 3)
    with pytest.raises(StoreError, match="tocsr"):
        open_foreign(str(path))


def test_open_foreign__columns_with_odd_names_are_left_out(tmp_path: Path) -> None:
    path = write_anndata(tmp_path / "a.zarr", values("csr"), 3, frame()[["n"]])
    edit(
        path / "obs" / "zarr.json",
        lambda m: m["attributes"].update({"column-order": ["n", "../x"]}),
    )
    assert open_foreign(str(path)).obs_kinds == {"n": "integer"}


@pytest.mark.parametrize("content", [{}, {"zarr.json": b"{}"}, {"zarr.json": b"[]"}, {"a": b""}])
def test_open_foreign__what_is_no_store_is_refused(
    tmp_path: Path, content: dict[str, bytes]
) -> None:
    for name, text in content.items():
        (tmp_path / name).write_bytes(text)
    with pytest.raises(StoreError, match=r"expected"):
        open_foreign(str(tmp_path))


def test_open_foreign__a_group_without_a_matrix_is_refused(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "g.zarr")
    with pytest.raises(StoreError, match="AnnData"):
        open_foreign(str(tmp_path / "g.zarr"))


def test_open_foreign__an_array_of_other_dimensions_is_refused(tmp_path: Path) -> None:
    for shape in ((5,), (5, 0), (2, 3, 4)):
        zarr.create_array(tmp_path / "p.zarr", shape=shape, dtype=float, overwrite=True)
        with pytest.raises(StoreError, match="expected"):
            open_foreign(str(tmp_path / "p.zarr"), missing_chunks="zeros")


@pytest.mark.parametrize("version", [2, 3])
def test_open_foreign__chunks_too_large_for_memory_are_refused(
    tmp_path: Path, version: int
) -> None:
    shape = (2**17, 2**14)  # 16 GiB of float64 in one chunk
    path = tmp_path / "p.zarr"
    array = zarr.create_array(path, shape=shape, chunks=shape, dtype=float, zarr_format=version)
    chunk = path / ("0.0" if version == 2 else "c/0/0")
    chunk.parent.mkdir(parents=True, exist_ok=True)
    chunk.write_bytes(b"compressed")
    assert array.nbytes == 2**34
    with pytest.raises(StoreError, match="at most 1,073,741,824 bytes"):
        open_foreign(str(path))


def test_foreign_store__fingerprint_changes_with_a_chunk_of_equal_size(tmp_path: Path) -> None:
    path = tmp_path / "p.zarr"
    array = zarr.create_array(path, data=np.ones((4, 2)), chunks=(4, 2), compressors=None)
    before = open_store(path)
    assert before.fingerprint == open_store(path).fingerprint
    assert before.size_bytes == sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    chunk = path / "c" / "0" / "0"
    os.utime(chunk, (1, 1))  # clocks are too coarse for what follows
    older = open_store(path)
    array[:] = 2.0
    after = open_store(path)
    assert after.size_bytes == before.size_bytes
    assert len({before.fingerprint, older.fingerprint, after.fingerprint}) == 3


def test_foreign_store__sizes_come_from_the_listing(
    objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = LocalObjects(write_anndata(tmp_path / "a.zarr", values("csr"), 3))
    for key in source.list():
        objects.write(key, source.read(key))
    asked: list[str] = []
    monkeypatch.setattr(type(objects), "size", lambda self, key: asked.append(key))
    store = ForeignStore(objects)
    assert store.size_bytes == sum(len(source.read(key)) for key in source.list())
    assert asked == []


def test_foreign_matrix__shows_what_it_is(tmp_path: Path) -> None:
    matrix = open_foreign(str(write_anndata(tmp_path / "a.zarr", values("csr"), 2)))
    assert isinstance(matrix, ForeignMatrix)
    assert repr(matrix) == "ForeignMatrix(50 x 7, sparse float64, 1 blocks)"
