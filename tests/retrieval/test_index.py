"""The stored index: equal to one in memory, grown equal to rebuilt, checked, kept for readers."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import distclust
from distclust import BayesianSets
from distclust.errors import InputError, StoreError
from distclust.retrieval import index as index_module
from distclust.retrieval import shards
from distclust.retrieval.index import build_in_memory, build_index, open_index, place_of_index
from distclust.store import SparseMatrix
from distclust.store.matrix_store import MatrixStore, open_store
from distclust.store.objects import open_objects
from distclust.store.results import ResultsStore
from tests.corpora import blocks_of
from tests.faults import every_fault
from tests.retrieval.corpora import assert_same, draw, shards_of
from tests.small_blocks import BLOCK_ROWS, shrink

N_FEATURES = 30
SHARD = 128
QUERIES: list[Any] = [["r1"], ["r0", "r70", "r299"], [f"r{i}" for i in range(0, 300, 9)]]


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        shards_of(SHARD, patch)
        yield


@pytest.fixture(autouse=True)
def nothing_open():
    index_module._open_once.cache_clear()


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Path:
    """A folder with a store X of 300 rows, three shards, and its index beside it."""
    folder = tmp_path_factory.mktemp("template")
    store = make_store(folder / "X")
    build_index(store.matrix(), place_of_index(store.url))
    return folder


@pytest.fixture
def folder(template, tmp_path) -> Path:
    """A copy of the template."""
    shutil.copytree(template, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def store(folder) -> MatrixStore:
    return open_store(folder / "X")


@pytest.fixture
def place(folder) -> str:
    """Where the index is."""
    return str(folder / "X.sets")


def values_of(n_rows: int, seed: int = 0) -> np.ndarray:
    return draw(np.random.default_rng(seed), n_rows, N_FEATURES, "falling")


def chunk(start: int, stop: int, seed: int = 0) -> Any:
    values = values_of(1000, seed)[start:stop]
    return [f"r{i}" for i in range(start, stop)], scipy.sparse.csr_array(values)


def make_store(place: Path | str, n_rows: int = 300, **options: Any) -> MatrixStore:
    return distclust.ingest(iter([chunk(0, n_rows)]), place, **options)


def files_of(index: index_module.StoredIndex) -> dict[str, Any]:
    """Every file of an index with size and checksum."""
    return {name: (entry.size, entry.checksum) for name, entry in index.version.files.items()}


def words_of(index: Any) -> list[bytes]:
    return [shards.to_words(index.shard(i))[0].tobytes() for i in range(index.n_shards)]


def check_answers(sets: BayesianSets, queries: list[Any] = QUERIES) -> None:
    """The index says what a scan of the same rows says."""
    assert sets.index_ is not None
    for query in queries:
        assert_same(sets.query(query, 20, engine="index"), sets.query(query, 20, engine="scan"))


# ---- built ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["dense", "csr", "compact"])
def test_build__equals_an_index_in_memory(layout, tmp_path):
    values = values_of(1000)[:300]
    rows: Any = values if layout == "dense" else scipy.sparse.csr_array(values)
    ids = [f"r{i}" for i in range(300)]
    store = distclust.ingest(iter([(ids, rows)]), tmp_path / "X", layout=layout)
    sets = BayesianSets().fit(store).build_index()
    held = build_in_memory(SparseMatrix(scipy.sparse.csr_array(values)))
    assert sets.index_.n_shards == held.n_shards == 3
    assert words_of(sets.index_) == words_of(held)
    assert sets.index_.ones.tolist() == held.ones.tolist() == values.sum(axis=0).tolist()
    assert sets.index_.first_rows.tolist() == held.first_rows.tolist() == [0, 128, 256, 300]
    check_answers(sets)


def test_build__is_kept_beside_the_corpus_and_found_again(tmp_path):
    make_store(tmp_path / "X.zarr")
    built = BayesianSets().fit(tmp_path / "X.zarr").build_index()
    assert built.index_place == place_of_index(str(tmp_path / "X.zarr"))
    assert (tmp_path / "X.zarr.sets").is_dir()
    again = BayesianSets(0.5).fit(tmp_path / "X.zarr")
    assert again.index_.version.id == built.index_.version.id
    check_answers(again)
    assert again.build_index().index_.version.id == built.index_.version.id
    fresh = again.build_index(fresh=True)
    assert fresh.index_.version.id != built.index_.version.id
    assert files_of(fresh.index_) == files_of(built.index_)


def test_build__may_lie_anywhere(tmp_path):
    store = make_store("memory://sets/X.zarr")
    try:
        sets = BayesianSets().fit(store).build_index()
        assert sets.index_place == "memory://sets/X.zarr.sets"
        check_answers(sets)
        on_disk = BayesianSets().fit(store).build_index(tmp_path / "index")
        assert on_disk.index_place == str(tmp_path / "index")
        assert files_of(on_disk.index_) == files_of(sets.index_)
        check_answers(BayesianSets().fit(store, index=tmp_path / "index"))
    finally:
        open_objects("memory://sets").delete_tree("X.zarr")
        open_objects("memory://sets").delete_tree("X.zarr.sets")


def test_index__travels_by_name_and_is_opened_once(place):
    built = open_index(place)
    again = pickle.loads(pickle.dumps(built))
    assert again is built
    index_module._open_once.cache_clear()
    other = pickle.loads(pickle.dumps(built))
    assert other is not built
    assert words_of(other) == words_of(built)


def test_shards__are_mapped_and_opened_once(place):
    built = open_index(place)
    first = built.shard(1)
    assert built.shard(1) is first
    assert not first.rows.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        first.rows[0] = 7


# ---- brought up to date --------------------------------------------------------------------------


def grow(store: MatrixStore) -> MatrixStore:
    return distclust.ingest(iter([chunk(300, 450)]), store.url, how="append")


def replace(store: MatrixStore) -> MatrixStore:
    return distclust.ingest(iter([chunk(60, 80, seed=5)]), store.url, how="replace")


CHANGES: dict[str, Callable[[MatrixStore], MatrixStore]] = {
    "append": grow,
    "delete": lambda store: store.delete(["r3", "r130"]),
    "delete a block": lambda store: store.delete([f"r{i}" for i in range(64, 128)]),
    "delete a shard": lambda store: store.delete([f"r{i}" for i in range(128)]),
    "replace": replace,
    "compact": lambda store: store.delete(["r3", "r130"]).compact(),
    "append and delete": lambda store: grow(store).delete(["r0", "r449"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_update__equals_a_new_index_file_by_file(change, store, place, tmp_path):
    store = CHANGES[change](store)
    updated = build_index(store.matrix(), place)
    rebuilt = build_index(store.matrix(), str(tmp_path / "other"))
    assert files_of(updated) == files_of(rebuilt)
    assert updated.version.metrics["n_taken_over"] >= (1 if change in _KEEPS else 0)
    rows: Any = store.matrix().read_all()
    assert updated.ones.tolist() == rows.sum(axis=0).tolist()
    held = build_in_memory(store.matrix())
    assert words_of(updated) == words_of(held)
    sets = BayesianSets().fit(store, index=place)
    ids = store.matrix().row_ids.tolist()
    check_answers(sets, [[ids[0]], ids[::50], ids])


_KEEPS = {"append", "delete", "append and delete"}


def test_update__makes_only_shards_whose_rows_changed(store, place, monkeypatch):
    made: list[int] = []
    make_shard = index_module.make_shard

    def count(number: int, matrix: Any) -> Any:
        made.append(number)
        return make_shard(number, matrix)

    monkeypatch.setattr(index_module, "make_shard", count)
    store = grow(store)  # shards of rows 0-127, 128-255, 256-299 before
    build_index(store.matrix(), place)
    assert sorted(made) == [2, 3]
    made.clear()
    store = store.delete(["r130"])
    assert build_index(store.matrix(), place).version.metrics["n_taken_over"] == 3
    assert made == [1]
    made.clear()
    build_index(store.matrix(), place)
    assert made == []
    build_index(store.matrix(), place, fresh=True)
    assert sorted(made) == [0, 1, 2, 3]


def test_update__reads_and_copies_no_shard_that_it_takes_over(store, place, monkeypatch):
    before = open_index(place)
    opened: list[int] = []
    shard = type(before).shard
    monkeypatch.setattr(
        type(before), "shard", lambda self, number: opened.append(number) or shard(self, number)
    )
    updated = build_index(grow(store).matrix(), place)
    assert opened == [2]  # the one whose rows changed, to take its counts away
    folders = [Path(place) / "versions" / each.version.id for each in (before, updated)]
    for number in (0, 1):
        for name in ("c/0", "zarr.json"):
            old, new = (folder / "shards" / str(number) / name for folder in folders)
            assert old.samefile(new)
    ResultsStore(place).gc(keep=1)
    assert not folders[0].exists()
    index_module._open_once.cache_clear()
    assert ResultsStore(place).verify() == []


@pytest.mark.parametrize("name", ["shards/2/c/0", "ones/c/0"])
def test_update__without_counts_to_start_from_makes_all_anew(name, store, place, tmp_path):
    damaged(Path(place) / "versions" / open_index(place).version.id / name, "altered")
    index_module._open_once.cache_clear()
    store = grow(store)
    updated = build_index(store.matrix(), place)
    assert updated.version.metrics["n_taken_over"] == 0
    assert files_of(updated) == files_of(build_index(store.matrix(), str(tmp_path / "other")))


def test_update__makes_anew_what_was_damaged(store, place, tmp_path):
    path = Path(place) / "versions" / open_index(place).version.id / "shards/0/c/0"
    path.write_bytes(path.read_bytes()[:-8])
    index_module._open_once.cache_clear()
    store = grow(store)
    updated = build_index(store.matrix(), place)
    assert files_of(updated) == files_of(build_index(store.matrix(), str(tmp_path / "other")))


# ---- what is not used ----------------------------------------------------------------------------


def test_fit__does_not_use_an_index_of_other_rows(store, place, tmp_path):
    store = store.delete(["r5"])
    sets = BayesianSets().fit(store)
    assert sets.index_ is None
    assert sets.query(["r1"]).engine == "scan"
    with pytest.raises(InputError, match="built before rows were added or deleted"):
        BayesianSets().fit(store, index=place)
    with pytest.raises(InputError, match="none at that place"):
        BayesianSets().fit(store, index=tmp_path / "nowhere")
    sets.build_index()
    check_answers(sets, [["r1"]])


def test_open__refuses_results_of_another_kind(tmp_path):
    results = ResultsStore(tmp_path / "results")
    with results.begin("bhc", {}, 0, "f") as draft:
        draft.write("labels.csv", b"1")
        draft.publish({})
    with pytest.raises(StoreError, match="results of bhc"):
        open_index(str(tmp_path / "results"))
    assert open_index(str(tmp_path / "nothing")) is None


def damaged(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "longer":
        path.write_bytes(content + b"\0\0")
    else:
        altered = bytearray(content)
        altered[len(content) // 2] ^= 1
        path.write_bytes(bytes(altered))


@pytest.mark.parametrize("how", ["missing", "truncated", "altered", "longer"])
@pytest.mark.parametrize("name", ["index.json", "shards/1/c/0", "ones/c/0", "version.json"])
def test_open__refuses_damaged_files_in_a_sentence(how, name, store, place):
    damaged(Path(place) / "versions" / open_index(place).version.id / name, how)
    index_module._open_once.cache_clear()
    with pytest.raises(StoreError) as caught:
        BayesianSets().fit(store).query(["r1"], engine="index")
    assert name in str(caught.value)
    assert caught.value.hint
    if how == "altered":
        build_index(store.matrix(), place, fresh=True)
        check_answers(BayesianSets().fit(store))


def test_open__refuses_a_newer_format(place, monkeypatch):
    monkeypatch.setattr(index_module, "_FORMAT", 0)
    with pytest.raises(StoreError, match="Use a newer distclust"):
        open_index(place)


def test_other_tools__read_its_arrays(place):
    import zarr

    built = open_index(place)
    folder = Path(place) / "versions" / built.version.id
    ones = zarr.open_array(folder / "ones", mode="r")
    np.testing.assert_array_equal(ones[:], built.ones)
    words = zarr.open_array(folder / "shards/2", mode="r")
    np.testing.assert_array_equal(words[:], built.words(2))
    facts = json.loads((folder / "index.json").read_text())
    assert words.attrs["parts"] == facts["shards"][2]["parts"]


# ---- readers and collectors ----------------------------------------------------------------------


def test_readers__go_on_while_new_versions_are_published(store):
    sets = BayesianSets().fit(store)
    wanted = [sets.query(query, 20, engine="scan") for query in QUERIES]
    is_over = threading.Event()
    problems: list[BaseException] = []
    n_read = [0]

    def read() -> None:
        try:
            while not is_over.is_set():
                index_module._open_once.cache_clear()
                reader = BayesianSets().fit(store)  # the rows as they were
                use = "scan" if reader.index_ is None else "index"
                for query, ranking in zip(QUERIES, wanted, strict=True):
                    assert_same(reader.query(query, 20, engine=use), ranking)
                for query, ranking in zip(QUERIES, wanted, strict=True):
                    assert_same(sets.query(query, 20, engine="index"), ranking)
                n_read[0] += 1
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        grown = store
        for start in range(300, 380, 20):
            grown = distclust.ingest(iter([chunk(start, start + 20)]), store.url, how="append")
            build_index(grown.matrix(), place_of_index(store.url))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert n_read[0] > 0
    check_answers(BayesianSets().fit(grown))


def test_gc__leaves_what_was_opened_and_the_rest_is_told(store):
    old = BayesianSets().fit(store)
    wanted = old.query(["r1"], 20, engine="index")  # opens all shards
    index_module._open_once.cache_clear()
    unopened = BayesianSets().fit(store)
    grown = grow(store)
    build_index(grown.matrix(), old.index_place)
    collected = ResultsStore(old.index_place).gc(keep=0, grace=0.0)
    assert old.index_.version.id in str(collected)
    assert not (Path(old.index_place) / "versions" / old.index_.version.id).exists()
    assert_same(old.query(["r1"], 20, engine="index"), wanted)
    with pytest.raises(StoreError, match=r"shards/0/.*nothing there.*fit again"):
        unopened.query(["r1"], engine="index")
    assert_same(unopened.query(["r1"], 20, engine="scan"), wanted)
    check_answers(BayesianSets().fit(grown))


def test_build__keeps_its_rows_from_being_removed(tmp_path, monkeypatch):
    make_shard = index_module.make_shard
    collected: list[Any] = []

    def clean(place: Path) -> Any:
        return open_store(place).gc(keep=1, older_than=0.0, grace=0.0)

    def make_while_others_clean(number: int, matrix: Any) -> Any:
        if not collected:
            open_store(tmp_path / "X").delete(["r1", "r200"]).compact()
            collected.append(clean(tmp_path / "X"))
        return make_shard(number, matrix)

    with blocks_of(BLOCK_ROWS):  # stored so, not read at once
        matrix = make_store(tmp_path / "X").matrix()
        monkeypatch.setattr(index_module, "make_shard", make_while_others_clean)
        with distclust.connect("threads", threads=1):
            built = build_index(matrix, str(tmp_path / "index"))
        values = values_of(1000)[:300]
        held = build_in_memory(SparseMatrix(scipy.sparse.csr_array(values)))
        assert words_of(built) == words_of(held)
        clean(tmp_path / "X")
        with pytest.raises(StoreError):
            build_index(matrix, str(tmp_path / "other"))  # now they are gone


# ---- interrupted ---------------------------------------------------------------------------------


def test_build__goes_on_after_any_interruption(store, place, tmp_path):
    first = open_index(place)
    grown = grow(store)
    wanted = files_of(build_index(grown.matrix(), str(tmp_path / "wanted")))
    url = grown.url

    def prepare(copy: str) -> None:
        shutil.copytree(place, copy)

    def build(copy: str) -> None:
        index_module._open_once.cache_clear()
        build_index(open_store(url).matrix(), copy)

    def check(copy: str, is_complete: bool) -> None:
        index_module._open_once.cache_clear()
        found = open_index(copy)
        assert found is not None
        assert files_of(found) in ([wanted] if is_complete else [wanted, files_of(first)])
        assert len(words_of(found)) in (3, 4)
        assert ResultsStore(copy).verify() == []

    n_operations = every_fault(
        tmp_path / "tries", prepare=prepare, action=build, check=check, stride=9
    )
    assert n_operations > 10


def test_build__takes_up_shards_that_were_finished(store, place, tmp_path, monkeypatch):
    wanted = files_of(open_index(place))
    make_shard = index_module.make_shard
    made: list[int] = []

    def fail_at_last(number: int, matrix: Any) -> Any:
        if number == 2 and 2 not in made:
            made.append(2)
            raise KeyboardInterrupt
        made.append(number)
        return make_shard(number, matrix)

    monkeypatch.setattr(index_module, "make_shard", fail_at_last)
    with distclust.connect("threads", threads=1):
        with pytest.raises(KeyboardInterrupt):
            build_index(store.matrix(), str(tmp_path / "index"))
        assert open_index(str(tmp_path / "index")) is None
        found = build_index(store.matrix(), str(tmp_path / "index"))
    assert files_of(found) == wanted
    assert found.version.metrics["n_resumed"] == made.index(2)
    assert len(made) == 4
