from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

from distclust.engine import map_ordered
from distclust.errors import InputError, MissingFileError, StoreError
from distclust.store.matrix import Column
from distclust.store.matrix_store import MatrixStore, create_store
from distclust.store.rows import ArrayRows
from distclust.store.sources import Prepared, open_source
from tests.sources import read_source


def make_anndata(rng: np.random.Generator, form: str) -> anndata.AnnData:
    """Annotated data with every kind of annotation and unicode names."""
    n_rows = 40
    values: Any = np.round(rng.normal(size=(n_rows, 11)), 3) * (rng.random((n_rows, 11)) < 0.3)
    values[5:9] = 0
    if form != "dense":
        values = scipy.sparse.csr_matrix(values)
        values = values.tocsc() if form == "csc" else values
    obs = pd.DataFrame(
        {
            "group": pd.Categorical(["é", "b", None, "a"] * 10),
            "count": np.arange(n_rows, dtype=np.int32),
            "score": [np.nan, *rng.random(n_rows - 1)],
            "flag": [True, False] * 20,
            "word": [f"w{i}" for i in range(n_rows)],
        },
        index=[f"zelle-{i}-ß" for i in range(n_rows)],
    )
    return anndata.AnnData(values, obs, pd.DataFrame(index=[f"gène {i}" for i in range(11)]))


def write(data: anndata.AnnData, path: Path) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own defaults of tomorrow
        data.write_zarr(path) if path.suffix == ".zarr" else data.write_h5ad(path)
    return str(path)


@pytest.mark.parametrize("suffix", [".zarr", ".h5ad"])
@pytest.mark.parametrize("form", ["csr", "dense"])
def test_anndata__is_read_as_it_is(
    tmp_path: Path, rng: np.random.Generator, form: str, suffix: str
) -> None:
    data = make_anndata(rng, form)
    found = read_source(write(data, tmp_path / f"a{suffix}"))
    expected = data.X.toarray() if form == "csr" else data.X
    np.testing.assert_array_equal(found.values, expected)
    assert found.prepared.rows.is_sparse == (form == "csr")
    assert found.ids.tolist() == data.obs_names.tolist()
    assert found.prepared.has_ids
    assert found.names == data.var_names.tolist()
    assert found.prepared.obs_kinds == {
        "group": "text",
        "count": "integer",
        "score": "real",
        "flag": "bool",
        "word": "text",
    }
    assert found.obs["group"].tolist() == ["é", "b", None, "a"] * 10
    assert found.obs["word"].tolist() == data.obs["word"].tolist()
    for name in ("count", "score", "flag"):
        np.testing.assert_array_equal(found.obs[name], data.obs[name].to_numpy())


@pytest.mark.parametrize("suffix", [".zarr", ".h5ad"])
def test_anndata__goes_into_a_store_and_out_again(
    tmp_path: Path, rng: np.random.Generator, suffix: str
) -> None:
    data = make_anndata(rng, "csr")
    source = open_source(write(data, tmp_path / f"a{suffix}"))
    store = create_store(
        tmp_path / "store.zarr",
        lambda scratch: source.prepare(scratch, map_ordered),
        identity=source.identity(),
        mapper=map_ordered,
    )
    back = store.to_anndata()
    np.testing.assert_array_equal(back.X.toarray(), data.X.toarray())
    assert back.obs_names.tolist() == data.obs_names.tolist()
    assert back.var_names.tolist() == data.var_names.tolist()
    np.testing.assert_array_equal(back.obs["score"], data.obs["score"])


@pytest.mark.parametrize(("suffix", "error"), [(".zarr", StoreError), (".h5ad", InputError)])
def test_anndata__stored_by_columns_is_refused(
    tmp_path: Path, rng: np.random.Generator, suffix: str, error: type[Exception]
) -> None:
    path = write(make_anndata(rng, "csc"), tmp_path / f"a{suffix}")
    with pytest.raises(error, match="a matrix stored by rows, got one stored by columns"):
        read_source(path)


@pytest.mark.parametrize(
    ("column", "kind", "expected"),
    [
        (pd.array([1, None, 3], "Int64"), "real", [1, np.nan, 3]),
        (pd.array([1, 2, 3], "Int64"), "integer", [1, 2, 3]),
        (pd.array([True, None, False], "boolean"), "text", ["True", None, "False"]),
        (pd.array([True, True, False], "boolean"), "bool", [True, True, False]),
        (pd.Categorical([2, 1, 2]), "text", ["2", "1", "2"]),
    ],
)
def test_h5ad__has_annotations_of_every_kind(
    tmp_path: Path, column: Any, kind: str, expected: list[Any]
) -> None:
    obs = pd.DataFrame({"column": column}, index=list("abc"))
    found = read_source(write(anndata.AnnData(np.eye(3), obs), tmp_path / "a.h5ad"))
    assert found.prepared.obs_kinds == {"column": kind}
    np.testing.assert_array_equal(found.obs["column"], expected)


def test_h5ad__without_the_package_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.h5ad"
    path.write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(InputError, match=r"the package anndata .* distclust\[anndata\]"):
        read_source(str(path))


def test_h5ad__that_is_none_gets_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.h5ad"
    with pytest.raises(MissingFileError, match="nothing there"):
        read_source(str(path))
    path.write_bytes(b"no such thing")
    with pytest.raises(InputError, match=r"a\.h5ad: expected an AnnData file"):
        read_source(str(path))
    with pytest.raises(InputError, match="expected a matrix X of numbers, got nothing"):
        read_source(write(anndata.AnnData(obs=pd.DataFrame(index=["a"])), tmp_path / "b.h5ad"))


def test_h5ad__values_must_be_finite(tmp_path: Path) -> None:
    path = write(anndata.AnnData(np.array([[1.0, 2.0], [3.0, np.inf]])), tmp_path / "a.h5ad")
    with pytest.raises(InputError, match="row 1, feature 1: expected a finite number"):
        read_source(path)


def test_h5ad__far_away_is_refused(memory_url: str) -> None:
    import fsspec

    with fsspec.open(f"{memory_url}/a.h5ad", "wb") as file:
        file.write(b"x")
    with pytest.raises(InputError, match="expected a local file, got a URL"):
        open_source(f"{memory_url}/a.h5ad")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr__array_is_rows_and_features(
    tmp_path: Path, rng: np.random.Generator, zarr_format: Any
) -> None:
    values = rng.normal(size=(23, 5)).astype(np.float32)
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=(23, 5), chunks=(4, 5), dtype="f4", zarr_format=zarr_format
    )
    array[:] = values
    found = read_source(tmp_path / "a.zarr")
    np.testing.assert_array_equal(found.values, values)
    np.testing.assert_array_equal(found.ids, np.arange(23))
    assert not found.prepared.has_ids
    assert "cannot be verified" in found.prepared.notes[0]


def test_zarr__absent_chunks_are_refused_unless_they_are_zeros(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "a.zarr", shape=(8, 2), chunks=(4, 2), dtype="f8")
    array[:4] = 1.0
    with pytest.raises(StoreError):
        read_source(tmp_path / "a.zarr")
    found = read_source(tmp_path / "a.zarr", missing_chunks="zeros")
    np.testing.assert_array_equal(found.values, np.repeat([1.0, 0.0], 4)[:, None] * np.ones(2))


def grown_store(path: Path, rng: np.random.Generator) -> MatrixStore:
    """A store of mixed columns that has grown and shrunk."""
    columns = (Column("n"), Column("c", "category", ("x", "y")))

    def rows(start: int, stop: int) -> Prepared:
        values = np.stack([np.arange(start, stop), rng.integers(0, 2, stop - start)], axis=1)
        ids = np.array([f"r{i}" for i in range(start, stop)], object)
        obs = {"year": np.arange(start, stop)}
        facts = {"thresholds": [1.5]}
        source = ArrayRows(values.astype(float), ids, obs)
        return Prepared(source, columns, {"year": "integer"}, "text", facts=facts)

    store = create_store(path, rows(0, 30)).append(rows(30, 45))
    return store.delete(["r3", "r31", "r44"])


def test_own__store_gives_its_live_rows(tmp_path: Path, rng: np.random.Generator) -> None:
    store = grown_store(tmp_path / "grown.zarr", rng)
    found = read_source(tmp_path / "grown.zarr")
    np.testing.assert_array_equal(found.values, store.matrix().read_all())
    assert found.ids.tolist() == store.matrix().row_ids.tolist()
    assert "r31" not in found.ids.tolist()
    np.testing.assert_array_equal(found.obs["year"], [int(row_id[1:]) for row_id in found.ids])
    assert found.prepared.columns == store.columns
    assert dict(found.prepared.facts) == {"thresholds": [1.5]}


def test_own__store_is_copied_clean(tmp_path: Path, rng: np.random.Generator) -> None:
    grown = grown_store(tmp_path / "grown.zarr", rng)
    source = open_source(str(tmp_path / "grown.zarr"))
    clean = create_store(
        tmp_path / "clean.zarr",
        lambda scratch: source.prepare(scratch, map_ordered),
        identity=source.identity(),
    )
    assert clean.shape == grown.shape
    np.testing.assert_array_equal(clean.matrix().read_all(), grown.matrix().read_all())
    assert clean.matrix().row_ids.tolist() == grown.matrix().row_ids.tolist()
    assert clean.info()["segments"] == 1
    assert clean.info()["deleted"] == 0


def test_own__store_has_an_identity_that_changes_with_it(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    store = grown_store(tmp_path / "grown.zarr", rng)
    before = open_source(str(tmp_path / "grown.zarr")).identity()
    assert before == open_source(str(tmp_path / "grown.zarr")).identity()
    store.delete(["r5"])
    assert open_source(str(tmp_path / "grown.zarr")).identity() != before


def test_foreign__store_has_an_identity_that_changes_with_it(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    path = write(make_anndata(rng, "csr"), tmp_path / "a.zarr")
    before = open_source(path).identity()
    assert before == open_source(path).identity()
    ids = sorted(file for file in (tmp_path / "a.zarr/obs/_index").rglob("*") if file.is_file())
    ids[-1].write_bytes(ids[-1].read_bytes() + b"x")
    assert open_source(path).identity() != before


def test_own__store_that_is_unfinished_is_refused(tmp_path: Path) -> None:
    def broken(scratch: Any) -> Prepared:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_store(tmp_path / "a.zarr", broken, identity={"rows": 1})
    with pytest.raises(StoreError, match="unfinished ingest"):
        open_source(str(tmp_path / "a.zarr"))


def test_store__that_is_not_there_gets_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing there"):
        open_source(str(tmp_path / "none.zarr"))


def test_store__has_no_columns_to_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a table when columns are named, got a store"):
        read_source(str(tmp_path / "none.zarr"), drop=("a",))
