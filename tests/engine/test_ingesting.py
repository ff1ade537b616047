"""The public way in: sources of all kinds through the whole of ingest, in process and on Dask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import distclust
from distclust.errors import InputError


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
        distclust.ingest(batches(0, 1), tmp_path / "x.zarr", seperator=";")
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
