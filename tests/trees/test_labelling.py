"""Labels of a store by a model: those of `predict`, wherever they are made, killed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distclust import BHC, EMBHC, RandomizedBHC, as_matrix, ingest, open_store
from distclust.errors import InputError
from distclust.store.results import ResultsStore
from distclust.store.row_labels import StoredLabels
from distclust.trees import labelling
from distclust.trees.labelling import label_store

N_ROWS = 300_000  # two chunks of labels


def planted(n_rows: int, seed: int) -> np.ndarray[Any, Any]:
    """Rows of zeros and ones around six profiles."""
    rng = np.random.default_rng(seed)
    profiles = np.random.default_rng(7).beta(0.3, 0.3, size=(6, 24))
    return rng.random((n_rows, 24)) < profiles[rng.integers(0, 6, n_rows)]


@pytest.fixture(scope="module")
def model() -> RandomizedBHC:
    return RandomizedBHC(sample_size=300, random_state=0).fit(planted(5000, 1))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store some of whose rows are deleted, so that blocks and chunks do not meet."""
    path = str(tmp_path_factory.mktemp("stores") / "rows.zarr")
    made = ingest([planted(N_ROWS, 2)], path)
    made.delete(np.random.default_rng(0).choice(N_ROWS, 1000, replace=False).tolist())
    return path


def labels_of(results: Path, version_id: str) -> np.ndarray[Any, Any]:
    return np.asarray(StoredLabels(results, version_id).read(0, N_ROWS - 1000))


def check(model: Any, store: str, results: Path) -> None:
    matrix = open_store(store).matrix()
    assert matrix.n_blocks > 1
    assert any(matrix.block_bounds(i)[0] % 2**18 for i in range(1, matrix.n_blocks))
    version = label_store(model, matrix, results)
    expected = model.predict(matrix.read_all())
    np.testing.assert_array_equal(labels_of(results, version.id), expected)
    assert len(np.unique(expected)) > 2
    assert version.kind == "labels"
    assert version.metrics == {
        "n_rows": N_ROWS - 1000,
        "n_clusters": model.n_clusters_,
        "counts": np.bincount(expected, minlength=model.n_clusters_).tolist(),
    }
    assert ResultsStore(results).verify() == []


def test_label_store__is_predict(model: RandomizedBHC, store: str, tmp_path: Path) -> None:
    check(model, store, tmp_path / "labels")


@pytest.mark.cluster
def test_label_store__is_predict_on_a_cluster(
    model: RandomizedBHC, store: str, tmp_path: Path, on_client: Any
) -> None:
    check(model, store, tmp_path / "labels")


@pytest.mark.parametrize("kind", [BHC, EMBHC])
def test_label_store__of_any_model(kind: Any, store: str, tmp_path: Path) -> None:
    arguments = {"sample_size": 60} if kind is EMBHC else {}
    check(kind(random_state=0, **arguments).fit(planted(200, 3)), store, tmp_path / "labels")


class Killed(BaseException):
    """What no handler expects."""


def test_label_store__goes_on_with_the_chunks_that_are_missing(
    model: RandomizedBHC, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    original = labelling._write_chunk

    def write(item: Any, *shared: Any) -> Any:
        if item[0] == 1 and len(written) < 2:
            raise Killed
        written.append(item[0])
        return original(item, *shared)

    monkeypatch.setattr(labelling, "_write_chunk", write)
    write.__qualname__ = "write"  # as if it could travel
    matrix = open_store(store).matrix()
    results = tmp_path / "labels"
    with pytest.raises(Killed):
        label_store(model, matrix, results)
    assert ResultsStore(results).names() == []
    written.append(-1)  # lets chunk 1 pass
    version = label_store(model, matrix, results)
    assert written == [0, -1, 1]
    np.testing.assert_array_equal(labels_of(results, version.id), model.predict(matrix.read_all()))
    assert sum(version.metrics["counts"]) == N_ROWS - 1000
    assert len(ResultsStore(results).names()) == 1


def test_label_store__a_recorded_chunk_that_was_damaged_is_made_anew(
    model: RandomizedBHC, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = labelling.adopt_labels

    def die(draft: Any, spec: Any, chunks: Any) -> None:
        draft.adopt_all({spec.chunk_name(index): entry for index, entry in chunks})
        raise Killed

    monkeypatch.setattr(labelling, "adopt_labels", die)
    matrix, results = open_store(store).matrix(), tmp_path / "labels"
    with pytest.raises(Killed):
        label_store(model, matrix, results)
    (chunk,) = results.glob("versions/*/labels/c/0")
    chunk.write_bytes(b"other")
    monkeypatch.setattr(labelling, "adopt_labels", original)
    version = label_store(model, matrix, results)
    np.testing.assert_array_equal(labels_of(results, version.id), model.predict(matrix.read_all()))


def test_label_store__fresh_begins_anew(
    model: RandomizedBHC, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise Killed

    matrix, results = open_store(store).matrix(), tmp_path / "labels"
    with monkeypatch.context() as patch:
        patch.setattr(labelling, "adopt_labels", die)
        with pytest.raises(Killed):
            label_store(model, matrix, results)
    (run,) = ResultsStore(results).unfinished()
    assert label_store(model, matrix, results, fresh=True).id != run
    assert ResultsStore(results).unfinished() == {}


def test_label_store__refuses_what_is_no_place_for_labels(
    model: RandomizedBHC, store: str, tmp_path: Path
) -> None:
    small = tmp_path / "rows.zarr"
    ingest([planted(500, 0)], str(small))
    results = tmp_path / "results"
    RandomizedBHC(sample_size=100, random_state=0).fit(small, results=results)
    matrix = open_store(store).matrix()
    with pytest.raises(InputError, match="versions of RandomizedBHC"):
        label_store(model, matrix, results)
    with pytest.raises(InputError, match="a matrix store"):
        label_store(model, matrix, small)
    with pytest.raises(InputError, match="rows in memory"):
        label_store(model, as_matrix(planted(10, 0)), tmp_path / "x")


def test_label_store__rows_that_do_not_fit_are_refused_and_nothing_is_written(
    model: RandomizedBHC, tmp_path: Path
) -> None:
    ingest([np.full((50, 24), 3)], str(tmp_path / "threes.zarr"))
    ingest([planted(50, 0)[:, :5]], str(tmp_path / "narrow.zarr"))
    for name in ("threes", "narrow"):
        matrix = open_store(str(tmp_path / f"{name}.zarr")).matrix()
        with pytest.raises(InputError):
            label_store(model, matrix, tmp_path / "labels")
        assert not (tmp_path / "labels").exists()


def test_predict__of_a_store_returns_a_lazy_array_on_the_labels(
    model: RandomizedBHC, store: str, tmp_path: Path
) -> None:
    lazy = model.predict(store, results=tmp_path / "labels")
    assert lazy.chunks[0][0] == 2**18
    np.testing.assert_array_equal(lazy.compute(), model.predict(store))
    with pytest.raises(InputError, match="rows in memory"):
        model.predict(planted(10, 0), results=tmp_path / "others")
    assert not (tmp_path / "others").exists()
