"""Fits of stores: what they publish, and that no kill, cluster or chunking changes it."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import zarr

import distclust
from distclust import EMBHC, RandomizedBHC, engine
from distclust.engine import workers
from distclust.errors import (
    CapacityError,
    ClusterError,
    InputError,
    OtherRowsError,
    StoreError,
)
from distclust.store.checkpoints import CHECKPOINTS, Checkpoints
from distclust.store.codes import StoredCodes
from distclust.store.drafts import Draft
from distclust.store.results import ResultsStore
from distclust.store.shelf import DRAFTS, Shelf
from distclust.store.stored_matrix import StoredMatrix
from distclust.store.versions import VERSIONS
from distclust.trees import capacity, fits, stored_fits
from distclust.trees.em import EM
from distclust.trees.large import LargeTreeEstimator
from distclust.trees.randomised import RandomisedBHC
from tests.faults import every_fault, fork, leftovers
from tests.small_blocks import BLOCK_ROWS, SmallBlocks, planted, shrink

N_ROWS, N_FEATURES = 23 * BLOCK_ROWS + 9, 40  # three spans, the last block not full
_EXIT = 70

MAKERS: dict[str, Callable[..., LargeTreeEstimator]] = {
    "rbhc": lambda **k: RandomizedBHC(**{"sample_size": 48, "check_size": 16, **k}, random_state=1),
    "embhc": lambda **k: EMBHC(**{"sample_size": 24, "n_sweeps": 3, **k}, random_state=1),
    "rows": lambda **k: RandomizedBHC(
        **{"sample_size": 64, "resolve": "rows", **k}, random_state=1
    ),
}
METHODS = {"rbhc": RandomisedBHC, "embhc": EM, "rows": RandomisedBHC}


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return planted(N_ROWS, N_FEATURES, 12)


@pytest.fixture(scope="module")
def stored(values, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "X.zarr"
    distclust.ingest(iter([values]), path)
    assert engine.n_spans(distclust.open_store(path).matrix()) == 3
    return path


@pytest.fixture(params=MAKERS)
def kind(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def in_memory(values) -> Callable[[str], LargeTreeEstimator]:
    """Fits of the same rows as an array, each made once."""
    known: dict[str, LargeTreeEstimator] = {}

    def fitted(kind: str) -> LargeTreeEstimator:
        if kind not in known:
            known[kind] = MAKERS[kind]().fit(values)
        return known[kind]

    return fitted


def assert_same_tree(got: LargeTreeEstimator, wanted: LargeTreeEstimator) -> None:
    """All that describes the tree, to the last bit."""
    assert got.tree_.n_leaves == wanted.tree_.n_leaves
    pairs = {
        "children": (got.tree_.structure.child_list, wanted.tree_.structure.child_list),
        "statistics": (got.tree_.statistics, wanted.tree_.statistics),
        "log odds": (got.tree_.log_odds, wanted.tree_.log_odds),
        "objective": (got.objective_path_, wanted.objective_path_),
    }
    for name, (a, b) in pairs.items():
        assert a.tobytes() == b.tobytes(), name
    assert got.log_evidence_ == wanted.log_evidence_
    assert got.n_clusters_ == wanted.n_clusters_
    assert got.n_passes_ == wanted.n_passes_


def assert_same(got: LargeTreeEstimator, wanted: LargeTreeEstimator) -> None:
    assert_same_tree(got, wanted)
    np.testing.assert_array_equal(np.asarray(got.labels_), np.asarray(wanted.labels_))


# ---- what a fit publishes ------------------------------------------------------------------------


def test_fit__of_a_store_equals_that_of_an_array(kind, stored, in_memory, tmp_path):
    wanted = in_memory(kind)
    model = MAKERS[kind]().fit(stored, results=tmp_path / "results")
    assert wanted.n_clusters_ > 3
    assert wanted.n_passes_ > 1
    assert type(model.labels_).__module__.startswith("dask.array")
    assert model.labels_.shape == (N_ROWS,)
    assert_same(model, wanted)


def test_fit__labels_are_a_zarr_array_of_the_version(kind, stored, in_memory, tmp_path):
    results = tmp_path / "results"
    model = MAKERS[kind]().fit(stored, results=results)
    assert model.results_ == ResultsStore(results).url
    assert ResultsStore(results).current().id == model.version_
    labels = zarr.open_array(results / VERSIONS / model.version_ / "labels", mode="r")
    np.testing.assert_array_equal(labels[:], in_memory(kind).labels_)


def test_fit__loaded_again_is_the_same_model(kind, stored, values, tmp_path):
    results = tmp_path / "results"
    model = MAKERS[kind]().fit(stored, results=results)
    loaded = distclust.load(results)
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    assert (loaded.results_, loaded.version_) == (model.results_, model.version_)
    assert_same(loaded, model)
    np.testing.assert_array_equal(loaded.predict(values), model.predict(values))


def test_fit__levels_are_published(stored, tmp_path):
    model = MAKERS["rbhc"]().fit(stored, results=tmp_path / "results")
    with ResultsStore(tmp_path / "results").open_version() as version:
        told = json.loads(version.read(stored_fits.LEVELS_FILE))
    assert told["n_nodes"] == model.tree_.n_nodes
    assert sum(node["is_cluster"] for node in told["nodes"]) == model.n_clusters_


def test_fit__leaves_neither_codes_nor_checkpoints_behind(kind, stored, tmp_path):
    MAKERS[kind]().fit(stored, results=tmp_path / "results")
    assert_nothing_unfinished(ResultsStore(tmp_path / "results"))


def assert_nothing_unfinished(store: ResultsStore) -> None:
    assert store.objects.list(CHECKPOINTS) == []
    assert store.objects.list(DRAFTS) == []
    assert store.unfinished() == {}
    folders = {key.split("/")[1] for key in store.objects.list(VERSIONS)}
    assert folders == {version.id for version in store.versions()}
    assert store.verify() == []


def test_fit__twice_publishes_twice(stored, tmp_path):
    results = tmp_path / "results"
    first = MAKERS["embhc"]().fit(stored, results=results)
    second = MAKERS["embhc"]().fit(stored, results=results)
    assert [v.id for v in ResultsStore(results).versions()] == [first.version_, second.version_]
    assert_same(second, first)


def test_fit__metrics_of_the_version(stored, tmp_path):
    model = MAKERS["embhc"]().fit(stored, results=tmp_path / "results")
    assert ResultsStore(tmp_path / "results").current().metrics == {
        "n_rows": N_ROWS,
        "n_clusters": model.n_clusters_,
        "log_evidence": model.log_evidence_,
    }


def test_fit__of_rows_in_memory_takes_no_results(values, tmp_path):
    with pytest.raises(InputError, match="a store as X"):
        MAKERS["embhc"]().fit(values, results=tmp_path / "results")


def test_fit__of_an_array_after_one_of_a_store_forgets_the_store(stored, values, tmp_path):
    model = MAKERS["embhc"]().fit(stored, results=tmp_path / "results").fit(values)
    assert not hasattr(model, "results_")
    assert not hasattr(model, "version_")
    assert isinstance(model.labels_, np.ndarray)


# ---- without a results store ---------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Where temporary folders are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def folders_of_results(place: Path) -> list[Path]:
    return list(place.glob("distclust-results-*"))


def test_temporary_results__last_as_long_as_the_model(stored, in_memory, temporary):
    model = MAKERS["embhc"]().fit(stored)
    (folder,) = folders_of_results(temporary)
    assert str(folder) in model.results_
    assert_same(model, in_memory("embhc"))
    del model
    gc.collect()
    assert folders_of_results(temporary) == []


def test_temporary_results__last_as_long_as_labels_that_outlive_the_model(
    stored, in_memory, temporary
):
    labels = MAKERS["embhc"]().fit_predict(stored)
    gc.collect()
    np.testing.assert_array_equal(labels.compute(), in_memory("embhc").labels_)
    few = labels[:10]
    del labels
    gc.collect()
    np.testing.assert_array_equal(few.compute(), in_memory("embhc").labels_[:10])
    del few
    gc.collect()
    assert folders_of_results(temporary) == []


def test_temporary_results__of_a_second_fit_replace_the_first(stored, temporary):
    model = MAKERS["embhc"]().fit(stored).fit(stored)
    gc.collect()
    (folder,) = folders_of_results(temporary)
    assert str(folder) in model.results_


def test_temporary_results__of_a_fit_that_fails_are_removed(stored, temporary, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(EM, "advance", fail)
    model = MAKERS["embhc"]()
    with pytest.raises(RuntimeError, match="no"):
        model.fit(stored)
    assert folders_of_results(temporary) == []


def test_temporary_results__refused_where_workers_have_other_disks(stored, temporary, monkeypatch):
    monkeypatch.setattr(workers, "shares_disk", lambda: False)
    with pytest.raises(InputError, match=r"EMBHC.fit: results: expected a path or URL.*results="):
        MAKERS["embhc"]().fit(stored)
    assert folders_of_results(temporary) == []
    MAKERS["embhc"]().fit(stored, results=temporary / "results")


# ---- rows of stores ------------------------------------------------------------------------------


def test_fit__of_a_store_with_deleted_and_appended_rows(kind, values, tmp_path):
    numbers = np.arange(N_ROWS)
    distclust.ingest(iter([(numbers[:-200], values[:-200])]), tmp_path / "X.zarr")
    more = iter([(numbers[-200:], values[-200:])])
    distclust.ingest(more, tmp_path / "X.zarr", how="append")
    # Some rows here and there, a block as a whole, and the last row.
    dead = np.r_[5:50, 4 * BLOCK_ROWS : 5 * BLOCK_ROWS, N_ROWS - 1]
    store = distclust.open_store(tmp_path / "X.zarr").delete(dead)
    left = np.delete(numbers, dead)
    frame = pd.DataFrame(values[left], index=left)
    wanted = MAKERS[kind]().fit(engine.as_matrix(frame))
    model = MAKERS[kind]().fit(store, results=tmp_path / "results")
    assert_same(model, wanted)
    assert set(np.unique(model.tree_.row_ids)) <= set(left.tolist())


@pytest.mark.parametrize("ids", ["text", "integer"])
def test_fit__leaves_are_named_by_the_ids_of_their_first_rows(ids, kind, values, tmp_path):
    numbers = 7 * np.arange(N_ROWS)[::-1] + 10**12
    names = numbers if ids == "integer" else np.array([f"row {k}" for k in numbers], object)
    distclust.ingest(iter([(names, values)]), tmp_path / "X.zarr")
    model = MAKERS[kind]().fit(tmp_path / "X.zarr", results=tmp_path / "results")
    wanted = MAKERS[kind]().fit(engine.as_matrix(pd.DataFrame(values, index=names)))
    assert_same(model, wanted)
    leaves = wanted.tree_.leaf_of_row
    first = [int(np.flatnonzero(leaves == k)[0]) for k in range(wanted.tree_.n_leaves)]
    assert list(model.tree_.row_ids) == [names[i] for i in first]
    assert model.tree_.row_ids.dtype.kind == ("i" if ids == "integer" else "U")
    assert list(distclust.load(tmp_path / "results").tree_.row_ids) == [names[i] for i in first]


# ---- bit for bit ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_values() -> np.ndarray:
    """Real numbers, whose sums depend on their order."""
    rng = np.random.default_rng(3)
    centres = rng.normal(0.0, 3.0, size=(6, 8))
    return centres[rng.integers(6, size=N_ROWS)] + rng.normal(size=(N_ROWS, 8))


@pytest.fixture(scope="module")
def real_stored(real_values, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("real") / "X.zarr"
    distclust.ingest(iter([real_values]), path)
    return path


def real_makers(kind: str) -> LargeTreeEstimator:
    return MAKERS[kind](family="diagonal_gaussian")


@pytest.fixture(scope="module")
def in_process(stored, real_stored, tmp_path_factory) -> dict[tuple[str, str], LargeTreeEstimator]:
    """Every fit in one thread of this process."""
    found = {}
    place = tmp_path_factory.mktemp("in-process")
    with engine.connect("threads", threads=1):
        for kind in ("rbhc", "embhc"):
            found[kind, "binary"] = MAKERS[kind]().fit(stored, results=place / f"{kind}-binary")
            found[kind, "real"] = real_makers(kind).fit(real_stored, results=place / f"{kind}-real")
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_fit__same_bits_on_any_number_of_workers(
    in_process, n_workers, stored, real_stored, tmp_path
):
    with engine.connect("local", workers=n_workers, threads=1) as session:
        session.client.register_plugin(SmallBlocks())
        for kind in ("rbhc", "embhc"):
            binary = MAKERS[kind]().fit(stored, results=tmp_path / f"{kind}-binary")
            assert_same(binary, in_process[kind, "binary"])
            real = real_makers(kind).fit(real_stored, results=tmp_path / f"{kind}-real")
            assert_same(real, in_process[kind, "real"])


@pytest.mark.parametrize("kind", ["rbhc", "embhc"])
def test_fit__same_bits_with_several_threads(in_process, kind, real_stored, tmp_path):
    with engine.connect("threads", threads=3):
        model = real_makers(kind).fit(real_stored, results=tmp_path / "results")
    assert_same(model, in_process[kind, "real"])


@pytest.mark.parametrize("kind", ["rbhc", "embhc"])
def test_fit__same_bits_however_rows_came(in_process, kind, real_values, tmp_path):
    chunks = np.split(real_values, [1, 70, 71, 500, 1200])
    distclust.ingest(iter(chunks), tmp_path / "chunks.zarr")
    frame = pd.DataFrame(real_values, columns=[f"x{i}" for i in range(8)])
    frame.to_csv(tmp_path / "X.csv", index=False)
    distclust.ingest(str(tmp_path / "X.csv"), tmp_path / "csv.zarr")
    for name in ("chunks", "csv"):
        model = real_makers(kind).fit(tmp_path / f"{name}.zarr", results=tmp_path / name)
        assert_same(model, in_process[kind, "real"])
    assert_same(real_makers(kind).fit(real_values), in_process[kind, "real"])


# ---- killed and run again ------------------------------------------------------------------------


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """Return a list that gets longer with every call of a method."""
    calls: list[int] = []
    original = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, counted)
    return calls


def killed(owner: Any, name: str, n_calls: int, *, after: bool, action: Callable[[], Any]) -> None:
    """Run an action in a fork that ends at the `n_calls`-th call of a method, or after it."""

    def run() -> int:
        original, calls = getattr(owner, name), []

        def fatal(*arguments: Any, **options: Any) -> Any:
            calls.append(1)
            is_time = len(calls) == n_calls
            if is_time and not after:
                os._exit(_EXIT)
            result = original(*arguments, **options)
            if is_time:
                os._exit(_EXIT)
            return result

        setattr(owner, name, fatal)
        action()
        return 0

    assert fork(run)() == _EXIT, "the action ended before it could be killed"


def begin_and_kill(kind: str, stored: Any, results: Path, n_saves: int = 2) -> str:
    """Begin a fit, kill it after it saved its state so many times; return its run."""
    fit = lambda: MAKERS[kind]().fit(stored, results=results)  # noqa: E731
    killed(Checkpoints, "save", n_saves, after=True, action=fit)
    (run,) = ResultsStore(results).unfinished()
    return str(run)


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "stride"), [("rbhc", 29), ("embhc", 11)])
def test_resume__after_a_kill_at_any_storage_operation(kind, stride, stored, in_memory, tmp_path):
    wanted = in_memory(kind)
    over: set[str] = set()  # killed when all was done: to run again is to fit again

    def check(place: str, is_finished: bool) -> None:
        store = ResultsStore(f"{place}/results")
        assert store.verify() == []
        if is_finished:
            assert len(store.names()) == 1 + (place in over)
            assert_same(distclust.load(store.url), wanted)
            assert_nothing_unfinished(store)
        elif store.names() and not store.unfinished():
            over.add(place)

    n_operations = every_fault(
        tmp_path,
        prepare=lambda place: None,
        action=lambda place: MAKERS[kind]().fit(stored, results=f"{place}/results"),
        check=check,
        stride=stride,
    )
    assert n_operations > 90
    assert len(over) <= 1


@pytest.mark.chaos
@pytest.mark.parametrize("kind", MAKERS)
def test_resume__passes_that_were_saved_are_not_done_again(
    kind, stored, in_memory, tmp_path, monkeypatch
):
    starts = count_calls(monkeypatch, METHODS[kind], "start")
    passes = count_calls(monkeypatch, METHODS[kind], "advance")
    MAKERS[kind]().fit(stored, results=tmp_path / "whole")
    n_passes = len(passes)
    assert n_passes >= 2
    for n_saved in range(1, n_passes + 2):  # the first state is saved before any pass
        run = begin_and_kill(kind, stored, tmp_path / f"{n_saved}", n_saved)
        starts.clear()
        passes.clear()
        model = MAKERS[kind]().fit(stored, results=tmp_path / f"{n_saved}")
        assert (len(starts), len(passes)) == (0, n_passes + 1 - n_saved)
        assert model.version_ == run
        assert_same(model, in_memory(kind))


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["rbhc", "embhc"])
@pytest.mark.parametrize(
    ("owner", "name", "n_calls"),
    [
        (StoredMatrix, "block_bounds", 30),  # in the first pass, which is not saved
        (StoredCodes, "keep", 5),  # the second span of the second pass
        (Checkpoints, "save", 3),
        (fits, "write_chunk", 1),  # the only chunk of labels
        (Draft, "write_archive", 1),  # the model
        (Shelf, "publish", 1),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_resume__after_a_kill_at_any_stage(
    kind, owner, name, n_calls, after, stored, in_memory, tmp_path
):
    fit = lambda: MAKERS[kind]().fit(stored, results=tmp_path / "results")  # noqa: E731
    killed(owner, name, n_calls, after=after, action=fit)
    assert_same(fit(), in_memory(kind))
    store = ResultsStore(tmp_path / "results")
    assert len(store.names()) == 1
    assert_nothing_unfinished(store)
    assert leftovers(str(tmp_path)) == []


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["rbhc", "embhc"])
def test_resume__from_the_state_before_if_the_last_one_is_damaged(
    kind, stored, in_memory, tmp_path
):
    fit = lambda: MAKERS[kind]().fit(stored, results=tmp_path / "results")  # noqa: E731
    killed(StoredCodes, "remove", 1, after=True, action=fit)  # those of both states stay
    states = sorted((tmp_path / "results" / CHECKPOINTS).glob("*/*.checkpoint"))
    assert len(states) == 2
    states[-1].write_bytes(states[-1].read_bytes()[:-9])
    assert_same(fit(), in_memory(kind))


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["rbhc", "embhc"])
@pytest.mark.parametrize("damage", ["altered", "missing"])
@pytest.mark.parametrize("n_steps", [1, 9])
def test_resume__codes_that_a_power_cut_took_are_made_again(
    kind, damage, n_steps, stored, in_memory, tmp_path, caplog, monkeypatch
):
    fit = lambda: MAKERS[kind]().fit(stored, results=tmp_path / "results")  # noqa: E731
    killed(StoredCodes, "remove", 1, after=True, action=fit)  # those of both states stay
    folders = sorted((tmp_path / "results" / CHECKPOINTS).glob("*/codes-*"))
    assert len(folders) > 1
    for folder in folders[-n_steps:]:
        codes = folder / "1"
        if damage == "missing":
            codes.unlink()
        else:
            codes.write_bytes(codes.read_bytes()[:-1] + b"x")
    starts = count_calls(monkeypatch, METHODS[kind], "start")
    assert_same(fit(), in_memory(kind))
    assert len(starts) == (n_steps > 1)  # from the state before, or from the start
    assert "A damaged checkpoint is passed over" in caplog.text


@pytest.fixture
def sealed(stored, tmp_path) -> ResultsStore:
    """A fit that was killed when only publishing was left."""
    fit = lambda: MAKERS["embhc"]().fit(stored, results=tmp_path / "results")  # noqa: E731
    killed(Shelf, "publish", 1, after=False, action=fit)
    store = ResultsStore(tmp_path / "results")
    assert store.names() == []
    return store


@pytest.mark.chaos
def test_resume__a_sealed_draft_is_just_published(sealed, stored, values, in_memory, monkeypatch):
    wanted = in_memory("embhc")
    for name in ("start", "advance", "finish"):
        monkeypatch.setattr(EM, name, None)
    (run,) = sealed.unfinished()
    model = MAKERS["embhc"]().fit(stored, results=sealed.url)
    assert model.version_ == run
    assert_same(model, wanted)
    np.testing.assert_array_equal(model.predict(values), wanted.predict(values))
    assert_nothing_unfinished(sealed)


@pytest.mark.chaos
def test_resume__a_sealed_draft_replaces_an_earlier_fit_of_the_model(
    sealed, stored, values, in_memory
):
    model = MAKERS["embhc"]().fit(values[:300])
    before = model.get_params()
    model.fit(stored, results=sealed.url)
    assert_same(model, in_memory("embhc"))
    assert all(model.get_params()[name] is value for name, value in before.items())


@pytest.mark.chaos
def test_resume__a_sealed_draft_leaves_parameters_as_they_are(stored, tmp_path):
    family = distclust.families.Bernoulli()
    fit = lambda: MAKERS["embhc"](family=family).fit(stored, results=tmp_path / "results")  # noqa: E731
    killed(Shelf, "publish", 1, after=False, action=fit)
    model = fit()
    assert model.family is family
    assert len(ResultsStore(tmp_path / "results").names()) == 1


@pytest.mark.chaos
def test_fresh__starts_over_and_leaves_nothing_of_the_old_run(
    kind, stored, in_memory, tmp_path, monkeypatch
):
    run = begin_and_kill(kind, stored, tmp_path / "results")
    starts = count_calls(monkeypatch, METHODS[kind], "start")
    model = MAKERS[kind]().fit(stored, results=tmp_path / "results", fresh=True)
    assert len(starts) == 1
    assert model.version_ != run
    assert_same(model, in_memory(kind))
    store = ResultsStore(tmp_path / "results")
    assert [key for key in store.objects.list() if run in key and "/leases/" not in key] == []
    assert_nothing_unfinished(store)


@pytest.mark.chaos
def test_fresh__a_sealed_draft_is_published_before_the_new_one(sealed, stored, in_memory):
    (run,) = sealed.unfinished()
    model = MAKERS["embhc"]().fit(stored, results=sealed.url, fresh=True)
    assert sealed.names() == [run, model.version_]
    assert_same(model, in_memory("embhc"))
    assert_nothing_unfinished(sealed)


@pytest.mark.chaos
def test_resume__refused_if_the_store_has_changed_since(values, tmp_path):
    path, results = tmp_path / "X.zarr", tmp_path / "results"
    numbers = np.arange(N_ROWS)
    distclust.ingest(iter([(numbers[:-100], values[:-100])]), path)
    run = begin_and_kill("embhc", path, results)
    distclust.ingest(iter([(numbers[-100:], values[-100:])]), path, how="append")
    for _ in range(2):
        with pytest.raises(OtherRowsError, match=rf"run {run} in .*other rows.*fresh=True") as info:
            MAKERS["embhc"]().fit(path, results=results)
        assert info.value.exit_code == 2
        assert list(ResultsStore(results).unfinished()) == [run]
    model = MAKERS["embhc"]().fit(path, results=results, fresh=True)
    assert_same(model, MAKERS["embhc"]().fit(values))
    assert_nothing_unfinished(ResultsStore(results))
    assert_same(MAKERS["embhc"]().fit(path, results=results), model)  # nothing left to refuse


@pytest.mark.chaos
def test_resume__other_parameters_are_other_work(stored, in_memory, tmp_path):
    run = begin_and_kill("embhc", stored, tmp_path / "results")
    other = MAKERS["embhc"](n_sweeps=1).fit(stored, results=tmp_path / "results")
    assert other.version_ != run
    model = MAKERS["embhc"]().fit(stored, results=tmp_path / "results")
    assert model.version_ == run
    assert_same(model, in_memory("embhc"))


def test_resume__refused_if_another_release_began(stored, tmp_path):
    model, store = MAKERS["embhc"](), ResultsStore(tmp_path / "results")
    fingerprint = distclust.open_store(stored).matrix().fingerprint
    identity = stored_fits.identity_of(model, fingerprint)
    store.begin(**identity, code_version="0.0.1").close()
    with pytest.raises(OtherRowsError, match=r"began with distclust 0\.0\.1"):
        model.fit(stored, results=store.url)
    model.fit(stored, results=store.url, fresh=True)
    assert_nothing_unfinished(store)


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 0, -3, 2.5, "many", True, None])
@pytest.mark.parametrize("kind", ["rbhc", "embhc"])
def test_sample_size__below_two_is_refused(kind, size, stored, tmp_path):
    with pytest.raises(InputError, match="sample_size: expected 'auto' or a whole number"):
        MAKERS[kind](sample_size=size).fit(stored, results=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_fit__refused_data_leave_no_unfinished_run(values, tmp_path):
    path, results = tmp_path / "X.zarr", tmp_path / "results"
    store = distclust.ingest(iter([values * 3]), path)
    with pytest.raises(InputError, match="Bernoulli"):
        MAKERS["rbhc"](family="bernoulli").fit(store, results=results)
    assert_nothing_unfinished(ResultsStore(results))


def with_memory(monkeypatch: pytest.MonkeyPatch, n_bytes: float) -> None:
    free = psutil.virtual_memory()._replace(available=int(n_bytes))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)


@pytest.mark.parametrize("kind", ["rbhc", "embhc"])
def test_memory__too_little_for_a_block_is_refused_before_anything_is_read(
    kind, stored, tmp_path, monkeypatch
):
    reads = count_calls(monkeypatch, StoredMatrix, "block")
    with_memory(monkeypatch, 1e6)
    with pytest.raises(CapacityError, match=r"BHC\.fit: expected at least 0\.03 GB.*got 0\.00 GB"):
        MAKERS[kind]().fit(stored, results=tmp_path / "results")
    assert reads == []
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("kind", ["rbhc", "embhc"])
def test_memory__too_little_for_a_sample_is_refused_before_it_is_drawn(
    kind, stored, tmp_path, monkeypatch
):
    size = 1_000  # 6 copies of 41 numbers a row, and 4 MB of keys
    needed = 2**25 + BLOCK_ROWS * N_FEATURES * 9 + size * 41 * 8 * 6 + 4 * size**2
    with engine.connect("threads", threads=1):
        with_memory(monkeypatch, (needed - 1e5) / 0.8)
        reads = count_calls(monkeypatch, StoredMatrix, "block")
        with pytest.raises(CapacityError, match=r"expected at least 0\.04 GB.*1,000 sampled rows"):
            MAKERS[kind](sample_size=size).fit(stored, results=tmp_path / "results")
        assert reads == []
        assert ResultsStore(tmp_path / "results").unfinished() == {}
        with_memory(monkeypatch, (needed + 1e5) / 0.8)
        MAKERS[kind](sample_size=size).fit(stored, results=tmp_path / "results")


@pytest.mark.cluster
def test_memory__too_small_workers_are_refused_with_the_figure(stored, tmp_path):
    with (
        engine.connect("local", workers=1, threads=1, memory_limit="30MB"),
        pytest.raises(CapacityError, match=r"workers with at least 0\.03 GB.*got 0\.03 GB on tcp"),
    ):
        MAKERS["rbhc"]().fit(stored, results=tmp_path / "results")


@pytest.mark.parametrize("kind", ["rbhc", "embhc"])
def test_memory__a_tree_down_to_the_rows_is_costed_before_it_starts(
    kind, stored, tmp_path, monkeypatch
):
    needed = N_ROWS * 41 * 8 * 6
    free = psutil.virtual_memory()._replace(available=int((needed - 1e4) / 0.8))
    monkeypatch.setattr(capacity.psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(capacity, "check_worker_memory", lambda *_: None)
    model = MAKERS[kind](resolve="rows")
    with pytest.raises(CapacityError, match=r"0\.00 GB for 1,481 rows of 41.*resolve='clusters'"):
        model.fit(stored, results=tmp_path / "results")
    MAKERS[kind]().fit(stored, results=tmp_path / "results")
    free = psutil.virtual_memory()._replace(available=int((needed + 1e4) / 0.8))
    model.fit(stored, results=tmp_path / "results")


@pytest.mark.cluster
@pytest.mark.chaos
def test_cluster__without_workers_is_given_up(stored, tmp_path, monkeypatch, in_memory):
    monkeypatch.setenv("DISTCLUST_NO_WORKERS_SECONDS", "2")
    with engine.connect("local", workers=1, threads=1) as session:
        session.client.register_plugin(SmallBlocks())
        session._cluster.scale(0)
        session.client.sync(session._cluster._correct_state)
        with pytest.raises(ClusterError, match="at least one worker, got none for 2 s"):
            MAKERS["embhc"]().fit(stored, results=tmp_path / "results")
    model = MAKERS["embhc"]().fit(stored, results=tmp_path / "results")
    assert_same(model, in_memory("embhc"))


def test_labels__of_a_version_that_was_removed_are_refused(stored, tmp_path):
    model = MAKERS["embhc"]().fit(stored, results=tmp_path / "results")
    for chunk in (tmp_path / "results" / VERSIONS / model.version_ / "labels" / "c").iterdir():
        chunk.unlink()
    with pytest.raises(StoreError):
        model.labels_.compute()
