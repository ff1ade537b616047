"""The public way in: sources of all kinds through the whole of ingest, in process and on Dask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import distclust
from distclust.errors import InputError, StoreError


def batches(start: int, stop: int):
    for i in range(start, stop):
        yield np.full((3, 2), float(i))


def test_ingest__an_iterator_is_never_taken_for_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    distclust.ingest(batches(0, 2), path)
    with pytest.raises(InputError, match="expected no store yet"):
        distclust.ingest(batches(5, 6), path)
    distclust.ingest(batches(2, 3), path, how="append")
    store = distclust.ingest(batches(2, 3), path, how="append")
    assert store.matrix().read_all()[:, 0].tolist() == [0] * 3 + [1] * 3 + [2] * 6
    assert store.matrix().row_ids.tolist() == list(range(12))


def test_ingest__unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected an option among"):
        distclust.ingest(batches(0, 1), tmp_path / "x.zarr", delimiter=";")
    assert not (tmp_path / "x.zarr").exists()


@pytest.mark.cluster
def test_ingest__on_a_cluster_equals_in_process(tmp_path: Path, on_client) -> None:
    random = np.random.default_rng(0)
    for i in range(4):
        frame = pd.DataFrame(random.normal(size=(500, 5)), columns=list("abcde"))
        frame["kind"] = random.choice(["é", "b", "c"], 500)
        frame.insert(0, "id", [f"r{i}-{j}" for j in range(500)])
        frame.to_csv(tmp_path / f"part-{i}.csv", index=False)
    there = distclust.ingest(f"{tmp_path}/part-*.csv", tmp_path / "there.zarr")
    with distclust.connect("threads"):
        here = distclust.ingest(f"{tmp_path}/part-*.csv", tmp_path / "here.zarr")
    assert there.fingerprint == here.fingerprint
    assert there.columns == here.columns
    model = distclust.BHC(random_state=0)
    leaves = np.arange(2000) % 50
    on_cluster = model.fit(there, leaves=leaves).log_evidence_
    with distclust.connect("threads"):
        assert model.fit(here, leaves=leaves).log_evidence_ == on_cluster


@pytest.mark.parametrize("layout", ["dense", "csr", "compact"])
def test_fit__all_layouts_give_the_same_tree_as_memory(tmp_path: Path, layout: str) -> None:
    random = np.random.default_rng(3)
    X = (random.random((120, 30)) < random.beta(0.3, 2, (4, 30))[np.arange(120) % 4]).astype(int)
    store = distclust.ingest([scipy.sparse.csr_array(X)], tmp_path / "x.zarr", layout=layout)
    assert store.layout == layout
    stored, dense = distclust.BHC().fit(store), distclust.BHC().fit(X)
    assert np.array_equal(stored.labels_, dense.labels_)
    assert stored.log_evidence_ == dense.log_evidence_
    assert np.array_equal(stored.tree_.log_odds, dense.tree_.log_odds)


def test_ingest__ten_million_rows_come_back_as_they_were(tmp_path: Path) -> None:
    n_rows, n_batches, n_features = 10_000_000, 20, 64

    def batch(i: int) -> scipy.sparse.csr_array:
        m, random = n_rows // n_batches, np.random.default_rng(i)
        columns = np.stack([random.integers(0, 32, m), random.integers(32, 64, m)], axis=1)
        parts = (np.ones(2 * m, np.bool_), columns.ravel(), np.arange(0, 2 * m + 1, 2))
        return scipy.sparse.csr_array(parts, shape=(m, n_features))

    store = distclust.ingest((batch(i) for i in range(n_batches)), tmp_path / "x.zarr")
    matrix = store.matrix()
    assert matrix.shape == (n_rows, n_features)
    assert store.layout == "compact"
    rows: list[scipy.sparse.csr_array] = []
    given = 0
    for i in range(matrix.n_blocks):
        start, stop = matrix.block_bounds(i)
        while given * (n_rows // n_batches) < stop:
            rows = [scipy.sparse.vstack([*rows, batch(given)], format="csr")]
            given += 1
        block = matrix.block(i)
        assert (block != rows[0][: stop - start]).nnz == 0
        assert np.array_equal(matrix.block_ids(i), np.arange(start, stop))
        rows = [rows[0][stop - start :]]
    assert given == n_batches


def test_ingest__a_wrong_iterator_does_not_cost_the_work_of_a_killed_run(tmp_path: Path) -> None:
    def broken():
        yield np.arange(2_000_000.0).reshape(-1, 2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distclust.ingest(broken(), tmp_path / "x.zarr")
    kept = sorted((tmp_path / "x.zarr").rglob("*"))
    with pytest.raises(InputError, match="the rows of the run that is taken up"):
        distclust.ingest(batches(0, 1), tmp_path / "x.zarr")
    assert set(kept) <= set((tmp_path / "x.zarr").rglob("*"))


@pytest.mark.parametrize(
    "wrong",
    [{"how": "extend"}, {"layout": "sparse"}, {"storage": "cold"}, {"duplicates": "newest"}],
)
def test_ingest__misspelt_choices_are_refused(tmp_path: Path, wrong: dict[str, str]) -> None:
    with pytest.raises(InputError, match="expected one of"):
        distclust.ingest(batches(0, 1), tmp_path / "x.zarr", **wrong)
    assert not (tmp_path / "x.zarr").exists()


def test_ingest__append_takes_no_options_of_a_new_store(tmp_path: Path) -> None:
    distclust.ingest(batches(0, 1), tmp_path / "x.zarr")
    for wrong in ({"layout": "csr"}, {"storage": "packed"}, {"fresh": True}):
        with pytest.raises(InputError, match="no options of a new store"):
            distclust.ingest(batches(1, 2), tmp_path / "x.zarr", how="append", **wrong)


def _sweep(path: str) -> None:
    distclust.open_store(path).gc(keep=1, older_than=0, grace=0)


def test_fit__gc_does_not_cut_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "x.zarr")
    X = np.random.default_rng(0).integers(0, 2, (40, 5))
    store = distclust.ingest([X], path)
    expected = distclust.BHC().fit(X).log_evidence_
    matrix = store.matrix()
    store.delete([0]).compact()
    read = type(matrix).block

    def read_during_gc(self, index):
        _sweep(path)
        return read(self, index)

    monkeypatch.setattr(type(matrix), "block", read_during_gc)
    assert distclust.BHC().fit(matrix).log_evidence_ == expected
    monkeypatch.undo()
    _sweep(path)  # nobody reads it any more
    with pytest.raises(StoreError):
        matrix.block(0)


def test_rollback__numbers_of_rows_are_not_given_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    distclust.ingest(batches(0, 1), path)
    distclust.ingest(batches(1, 2), path, how="append").rollback(1)
    store = distclust.ingest(batches(2, 3), path, how="append")
    assert store.matrix().row_ids.tolist() == [0, 1, 2, 6, 7, 8]


def test_append__whole_numbers_are_not_rounded(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    distclust.ingest([np.array([[2**53 + 1, 0]])], path, layout="dense")
    with pytest.raises(InputError, match=r"whole numbers below 2\^53"):
        distclust.ingest([np.array([[0.5, 0.0]])], path, how="append")
    assert distclust.open_store(path).matrix().read_all().tolist() == [[2**53 + 1, 0]]
