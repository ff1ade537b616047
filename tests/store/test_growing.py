"""Changes of stores: what they do, that they conflict, that readers keep what they have."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distclust.errors import ConflictError, InputError, StoreError
from distclust.store.leases import SECONDS, SKEW
from distclust.store.matrix import Column, default_columns
from distclust.store.matrix_store import MatrixStore, create_store, open_store
from distclust.store.objects import open_objects
from distclust.store.sources.base import Prepared
from tests.corpora import (
    LAYOUTS,
    N_FEATURES,
    blocks_of,
    content_of,
    prepared,
    rows_of,
    text_ids,
    values_of,
)

IDS = text_ids(0, 10)
MORE = text_ids(10, 17)
LATER = SECONDS + SKEW + 1.0  # by then every lease has run out


@pytest.fixture(autouse=True)
def _small_blocks() -> Any:
    with blocks_of(4):
        yield


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "corpus.zarr")


@pytest.fixture
def store(place: str) -> MatrixStore:
    return create_store(place, prepared(IDS))


def snapshot(place: str) -> dict[str, bytes]:
    """All objects of a store but leases."""
    objects = open_objects(place)
    return {key: objects.read(key) for key in objects.list() if "/leases/" not in key}


# ---- what changes do -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_changes__each_is_a_generation_and_older_ones_stay(place, layout):
    check_changes(place, layout)


def test_changes__are_the_same_anywhere(any_url):
    check_changes(any_url, "csr")


def check_changes(any_url: str, layout: str) -> None:
    first = create_store(any_url, prepared(IDS, layout), layout=layout)
    second = first.append(prepared(MORE, layout))
    third = second.replace(prepared([IDS[3], "new", MORE[0]], layout, 1))
    fourth = third.delete([IDS[0], MORE[6]])
    fifth = fourth.compact()
    sixth = fifth.rollback(2)
    replaced = {**rows_of(IDS), **rows_of(MORE)}
    for row_id in (IDS[3], MORE[0]):
        del replaced[row_id]
    replaced |= rows_of([IDS[3], "new", MORE[0]], 1)
    deleted = {row: value for row, value in replaced.items() if row not in (IDS[0], MORE[6])}
    both = {**rows_of(IDS), **rows_of(MORE)}
    wanted = [rows_of(IDS), both, replaced, deleted, deleted, both]
    handles = [first, second, third, fourth, fifth, sixth]
    for number, (handle, rows) in enumerate(zip(handles, wanted, strict=True), 1):
        for store in (handle, open_store(any_url, number)):
            assert store.generation == number
            assert list(content_of(store).items()) == list(rows.items())
    actions = [info.action for info in sixth.generations()]
    assert actions == ["create", "append", "replace", "delete", "compact", "rollback"]
    assert [info.n_deleted for info in sixth.generations()] == [0, 0, 2, 4, 0, 0]
    assert [info.is_current for info in sixth.generations()] == [False] * 5 + [True]
    assert sixth.fingerprint == second.fingerprint != fifth.fingerprint
    assert sixth.verify() == []
    assert open_objects(any_url).list(".distclust/ingest") == []
    assert open_objects(any_url).list(".distclust/leases") == []


def test_append__leaves_stored_bytes_and_earlier_blocks_alone(store, place):
    """Statistics of all blocks but the last are bitwise what they were."""

    def statistics(of: MatrixStore, n_blocks: int) -> list[bytes]:
        matrix = of.matrix()
        return [np.asarray(matrix.block(i)).sum(axis=0).tobytes() for i in range(n_blocks)]

    before, objects = statistics(store, 2), snapshot(place)
    grown = store.append(prepared(MORE))
    assert statistics(grown, 2) == before
    assert statistics(store, 2) == before
    now = snapshot(place)
    changed = {key for key in objects if now.get(key) != objects[key]}
    assert changed == {"zarr.json", ".distclust/latest.json"}  # the face is hidden now


def test_delete__changes_no_block_but_its_own(store):
    deleted = store.delete([IDS[5]])
    for i in (0, 2):
        np.testing.assert_array_equal(deleted.matrix().block(i), store.matrix().block(i))
    assert deleted.matrix().block_ids(1).tolist() == [IDS[4], IDS[6], IDS[7]]


def test_delete__an_id_can_come_again(store):
    again = store.delete([IDS[1]]).append(prepared([IDS[1]], salt=2))
    assert list(content_of(again)) == [IDS[0], *IDS[2:], IDS[1]]
    assert content_of(again)[IDS[1]] == rows_of([IDS[1]], 2)[IDS[1]]


def test_delete__missing_ids_are_refused_or_ignored(store):
    with pytest.raises(InputError, match="expected ids of stored rows, got no row 'nobody'"):
        store.delete([IDS[0], "nobody", "else"])
    assert store.delete(["nobody", IDS[0]], missing="ignore").shape[0] == 9
    assert store.refresh().delete(["nobody"], missing="ignore").generation == 2
    with pytest.raises(InputError, match="no row"):
        store.refresh().delete([IDS[0]])  # deleted already


def test_delete__ids_are_of_the_kind_of_the_store(place, store):
    numbers = create_store(place + "2", prepared(list(range(5))))
    assert numbers.delete([1, np.int32(3), "1"]).matrix().row_ids.tolist() == [0, 2, 4]
    for wrong in (["one"], ["1.5"], [1.5], [2**70]):
        with pytest.raises(InputError, match="whole numbers as ids"):
            numbers.refresh().delete(wrong)


def test_delete__all_rows_may_go_and_others_come(place):
    for layout in LAYOUTS:
        store = create_store(place + layout, prepared(IDS, layout), layout=layout)
        empty = store.delete(IDS)
        assert (empty.shape, empty.matrix().n_blocks, content_of(empty)) == ((0, 6), 0, {})
        assert empty.matrix().read_all().shape == (0, 6)
        compacted = empty.compact()
        assert (compacted.shape, compacted.info()["segments"]) == ((0, 6), 0)
        assert compacted.verify() == []
        filled = compacted.append(prepared(MORE, layout))
        assert content_of(filled) == rows_of(MORE)
        filled.gc(older_than=0, grace=0)
        assert content_of(filled.refresh()) == rows_of(MORE)
        assert filled.verify() == []


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("action", ["append", "replace"])
def test_duplicates__of_stored_rows(place, layout, action):
    store = create_store(place, prepared(IDS, layout), layout=layout)
    new = prepared(["n", IDS[2], "n"], layout, 5)
    change = getattr(store, action)
    where = (
        f"{IDS[2]!r} in row 2 of the store and in row 1" if action == "append" else "'n' in row 0"
    )
    with pytest.raises(InputError, match=where):
        change(new)
    assert store.refresh().generation == 1
    first = change(new, duplicates="first")
    stored_stay = action == "append"
    wanted = rows_of(IDS) if stored_stay else {**rows_of(IDS[:2]), **rows_of(IDS[3:])}
    wanted |= rows_of(["n"], 5) if stored_stay else rows_of(["n", IDS[2]], 5)
    assert list(content_of(first).items()) == list(wanted.items())
    last = getattr(first.rollback(1), action)(new, duplicates="last")
    wanted = {**rows_of(IDS[:2]), **rows_of(IDS[3:]), **rows_of([IDS[2], "n"], 5)}
    assert list(content_of(last).items()) == list(wanted.items())


def test_append__nothing_new_is_no_generation(store):
    assert store.append(prepared(IDS[:3]), duplicates="first").generation == 1
    assert store.refresh().generation == 1
    assert store.verify() == []


def test_append__the_same_again_is_no_work(store):
    grown = store.append(prepared(MORE), identity="night 1")
    assert store.append(prepared(MORE), identity="night 1").generation == 2
    assert grown.append(prepared(MORE), identity="night 1").generation == 2
    with pytest.raises(InputError, match="every row id once"):
        grown.append(prepared(MORE), identity="night 2")


def test_append__features_must_fit(store):
    named = tuple(Column(f"f{i}") for i in range(N_FEATURES))
    cases: list[tuple[Prepared, str]] = [
        (prepared(["n"], values=np.ones((1, 5))), "expected 6 features as in the store, got 5"),
        (prepared([3]), "expected text row ids as in the store, got integer ids"),
        (
            prepared(["n"], obs={}, obs_kinds={}),
            r"annotations of the store \(note: text\), got none",
        ),
        (
            prepared(["n"], columns=(Column("x0", "category", ("a",)), *default_columns(6)[1:])),
            "'x0': expected numbers as in the store, got categories",
        ),
        (prepared(["n"], has_ids=False), "expected row ids as in the store, got rows without ids"),
    ]
    for rows, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            store.append(rows)
    grown = store.append(prepared(["n"], columns=named))  # names by position fit any
    assert grown.columns == default_columns(N_FEATURES)
    assert grown.generation == 2


def test_append__other_names_are_refused(place):
    named = tuple(Column(f"f{i}") for i in range(N_FEATURES))
    store = create_store(place, prepared(IDS, columns=named))
    with pytest.raises(InputError, match="expected a column named 'f0', got 'f5'"):
        store.append(prepared(["n"], columns=named[::-1]))
    assert store.append(prepared(["n"])).columns == named


def test_append__new_levels_go_to_the_end_and_codes_follow(place):
    old = (Column("c", "category", ("b", "d")), Column("x"))
    new = (Column("c", "category", ("a", "b")), Column("x"))
    first = prepared(["1", "2", "3"], values=np.array([[0, 9], [1, 9], [np.nan, 9.0]]), columns=old)
    more = prepared(["4", "5", "6"], values=np.array([[0, 8], [1, 8], [np.nan, 8.0]]), columns=new)
    store = create_store(place, first).append(more)
    assert store.columns[0].levels == ("b", "d", "a")
    found = store.matrix().read_all()
    np.testing.assert_array_equal(found[:, 0], [0, 1, np.nan, 2, 0, np.nan])
    np.testing.assert_array_equal(found[:, 1], [9, 9, 9, 8, 8, 8])
    assert open_store(place, 1).columns == old


def test_append__codes_beyond_the_type_of_the_rows_are_kept(place):
    old = (Column("c", "category", tuple(f"{i:03d}" for i in range(300))),)
    new = (Column("c", "category", ("zz", "299")),)
    store = create_store(place, prepared(["a"], values=np.array([[7]], np.int16), columns=old))
    store = store.append(prepared(["b", "c"], values=np.array([[0], [1]], np.int8), columns=new))
    assert store.matrix().read_all().tolist() == [[7], [300], [299]]


def test_append__rows_without_ids_are_numbered_on(place):
    rows = [0, 1, 2]
    store = create_store(place, prepared(rows, has_ids=False))
    store = store.append(prepared(rows, has_ids=False)).delete([5])
    store = store.append(prepared(rows, has_ids=False))
    assert store.matrix().row_ids.tolist() == [0, 1, 2, 3, 4, 6, 7, 8]
    store = store.delete([8]).compact().append(prepared(rows, has_ids=False))
    assert store.matrix().row_ids.tolist() == [0, 1, 2, 3, 4, 6, 7, 9, 10, 11]
    with pytest.raises(InputError, match="rows without ids"):
        store.replace(prepared(rows, has_ids=False))
    full = create_store(place + "2", prepared([2**63 - 1]))
    with pytest.raises(InputError, match="free numbers"):
        full.append(prepared(rows, has_ids=False))


def test_append__a_compact_store_takes_other_numbers_too(place):
    store = create_store(place, prepared(IDS, "csr"), layout="compact")
    halves = values_of(["n", "m"]) / 2 - 1
    grown = store.append(prepared(["n", "m"], "csr", values=halves))
    found: Any = grown.matrix().read_all()
    np.testing.assert_array_equal(found.toarray(), np.vstack([values_of(IDS), halves]))
    compacted: Any = grown.compact().matrix().read_all()
    np.testing.assert_array_equal(compacted.toarray(), found.toarray())
    gaps = prepared(["o"], values=np.full((1, N_FEATURES), np.nan))
    with pytest.raises(InputError, match="no missing values in a sparse layout"):
        grown.refresh().append(gaps)


def test_append__dense_and_sparse_rows_fit_any_store(place):
    for layout in LAYOUTS:
        store = create_store(place + layout, prepared(IDS, layout), layout=layout)
        store = store.append(prepared(MORE, "csr" if layout == "dense" else "dense"))
        assert content_of(store) == rows_of([*IDS, *MORE])


def test_compact__merges_segments_and_drops_deleted_rows(store, place):
    grown = store.append(prepared(MORE)).delete(IDS[:9])
    compacted = grown.compact()
    assert content_of(compacted) == content_of(grown)
    assert compacted.matrix().n_blocks == 2 < grown.matrix().n_blocks == 3
    info = compacted.info()
    assert (info["segments"], info["deleted"]) == (1, 0)
    assert compacted.compact().generation == compacted.generation  # nothing to do


def test_compact__types_on_disk_stay(place):
    values = values_of(IDS).astype(np.float32) / 3
    store = create_store(place, prepared(IDS, values=values))
    compacted = store.delete(IDS[:2]).compact()
    assert compacted._generation.segments[0].spec.dtype == "float32"
    np.testing.assert_array_equal(compacted.matrix().read_all(), values[2:].astype(np.float64))


def test_rollback__to_what_is_there_is_no_change(store):
    grown = store.append(prepared(MORE))
    assert grown.rollback(2).generation == 2
    back = grown.rollback(1)
    assert (back.generation, back.fingerprint) == (3, store.fingerprint)
    assert back.generations()[-1].provenance == {"generation": 1}
    with pytest.raises(StoreError, match="expected generation 7, got generations 1, 2, 3"):
        back.rollback(7)


# ---- two writers ---------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[MatrixStore], MatrixStore]] = {
    "append": lambda store: store.append(prepared(MORE)),
    "replace": lambda store: store.replace(prepared(IDS[:2], salt=1)),
    "delete": lambda store: store.delete(IDS[:1]),
    "compact": lambda store: store.compact(),
    "rollback": lambda store: store.rollback(1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_conflict__a_handle_of_the_past_changes_nothing(store, place, name):
    handle = store.append(prepared(["mine"])).delete(["mine"])
    theirs = handle.append(prepared(["theirs"]))
    before = snapshot(place)
    with pytest.raises(ConflictError, match="Open the store again"):
        CHANGES[name](handle)
    assert snapshot(place) == before
    assert content_of(open_store(place)) == content_of(theirs)


@pytest.mark.parametrize("name", CHANGES)
def test_conflict__who_publishes_second_loses_nothing_and_leaves_nothing(store, place, name):
    """The other writer publishes while this one is about to."""
    handle = store.append(prepared(["mine"])).delete(["mine"])
    keys = set()

    class Racing(type(handle._generation.objects)):  # type: ignore[misc]
        def create(self, key: str, *buffers: Any) -> bool:
            if key.endswith("00000004.json") and not keys:
                keys.add(key)
                open_store(place).append(prepared(["theirs"]))
                keys.update(open_objects(place).list())
            return bool(super().create(key, *buffers))

    handle._generation.objects.__class__ = Racing
    with pytest.raises(ConflictError, match="a change by another writer"):
        CHANGES[name](handle)
    assert "theirs" in content_of(open_store(place))
    assert set(open_objects(place).list()) <= keys
    assert open_store(place).verify() == []


@pytest.mark.parametrize("stage", ["", "surveying", "writing", "checking ids"])
def test_conflict__a_twin_takes_the_work_over(store, place, stage):
    """A second process is asked for the same at any time; the older one stops."""
    taken: list[Any] = []
    stages = []

    def take_over() -> None:
        if not taken:
            taken.append(None)
            taken.append(open_store(place).append(prepared(MORE), identity="night"))

    def prepare(scratch: Any) -> Prepared:
        if not stage:
            take_over()
        return prepared(MORE)

    def mapper(function: Any, items: Any, *shared: Any, **told: Any) -> Any:
        stages.append(told.get("stage"))
        for item in items:
            yield function(item, *shared)
            if told.get("stage") == stage:
                take_over()

    with pytest.raises(ConflictError, match="no other writer at this work"):
        store.append(prepare, identity="night", mapper=mapper)
    assert ("writing" in stages) == (stage in ("writing", "checking ids"))  # not in vain
    assert content_of(open_store(place)) == content_of(taken[1]) == rows_of([*IDS, *MORE])
    assert open_store(place).verify() == []


def test_conflict__a_twin_never_writes_a_published_table_again(store, place, monkeypatch):
    """Even if it does not notice that it has been overtaken."""
    from distclust.store.work import Work

    def twice(scratch: Any) -> Prepared:
        open_store(place).append(prepared(MORE), identity="night")
        time.sleep(1.1)  # tables tell the second in which they were written
        return prepared(MORE)

    monkeypatch.setattr(Work, "check_ours", lambda work: None)
    with pytest.raises(ConflictError, match="a change by another writer"):
        store.append(twice, identity="night")
    assert content_of(open_store(place)) == rows_of([*IDS, *MORE])
    assert open_store(place).verify() == []


def test_conflict__of_many_writers_each_is_done_or_told(store, place):
    def add(number: int) -> str | None:
        row_id = f"w{number}"
        try:
            open_store(place).append(prepared([row_id]))
        except ConflictError:
            return None
        return row_id

    with ThreadPoolExecutor(6) as pool:
        added = [row_id for row_id in pool.map(add, range(12)) if row_id]
    assert added
    final = open_store(place)
    assert set(content_of(final)) == {*IDS, *added}
    assert final.generation == 1 + len(added)
    assert final.verify() == []


# ---- readers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_readers__keep_their_generation_while_others_write(place, layout):
    store = create_store(place, prepared(IDS, layout), layout=layout)
    ended = threading.Event()

    def read(handle: MatrixStore) -> int:
        n_reads = 0
        while not ended.is_set() or n_reads == 0:
            assert content_of(handle) == rows_of(IDS)
            assert content_of(open_store(place, 1)) == rows_of(IDS)
            current = content_of(open_store(place))
            assert current.items() >= rows_of(IDS[3:]).items() or len(current) == 0
            n_reads += 1
        return n_reads

    with store.reading() as matrix, ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, handle) for handle in (store, open_store(place))]
        try:
            for i in range(3):
                store = store.append(prepared([f"n{i}", f"m{i}"], layout))
                store = store.replace(prepared(IDS[:3], layout, i + 1)).delete([f"n{i}"])
                store = store.compact()
                store.gc(older_than=0, grace=0)
        finally:
            ended.set()
        assert all(reader.result() for reader in readers)
        assert matrix.row_ids.tolist() == IDS
    assert store.gc(older_than=0, grace=0).generations == (1,)
    with pytest.raises(StoreError, match="expected generation 1, got generations"):
        open_store(place, 1)


def test_reading__holds_a_generation_against_gc(store, place):
    grown = store.append(prepared(MORE)).compact()
    with store.reading() as matrix:
        swept = grown.gc(older_than=0, grace=0)
        assert (swept.generations, swept.spared) == ((2,), (1,))
        assert matrix.row_ids.tolist() == IDS
        np.testing.assert_array_equal(matrix.read_all(), values_of(IDS))
    assert grown.gc(older_than=0, grace=0).generations == (1,)
    with pytest.raises(StoreError, match="expected generation 1"), store.reading():
        pass


def test_reading__what_is_being_removed_is_not_given(store, place):
    store.append(prepared(MORE))
    open_objects(place).write(".distclust/condemned/generation-1.json", b"{}")
    with pytest.raises(StoreError, match="one being removed"), store.reading():
        pass


def test_reading__a_lease_is_renewed_while_it_is_held(store, place, monkeypatch):
    from distclust.store import work

    monkeypatch.setattr(
        work, "lease", lambda objects, prefix, name: work.Lease(objects, prefix, name, 0.4)
    )
    objects = open_objects(place)
    with store.reading():
        (key,) = objects.list(".distclust/leases")
        before = objects.read(key)
        for _ in range(100):
            threading.Event().wait(0.05)
            if objects.read(key) != before:
                break
        assert objects.read(key) != before
    assert objects.list(".distclust/leases") == []


# ---- gc ------------------------------------------------------------------------------------------


def test_gc__keeps_the_newest_and_what_was_current_lately(store, place):
    for i in range(4):
        store = store.append(prepared([f"n{i}"]))
    assert store.gc().generations == ()
    assert store.gc(keep=3, older_than=0).generations == (1, 2)
    now = time.time()
    assert store.gc(older_than=100.0, now=now + 50).generations == ()
    assert store.gc(older_than=100.0, now=now + 150).generations == (3, 4)
    assert [info.number for info in store.generations()] == [5]
    assert content_of(store) == rows_of([*IDS, "n0", "n1", "n2", "n3"])
    assert store.verify() == []


def test_gc__removes_all_that_no_generation_names(any_url):
    layout = "compact"
    store = create_store(any_url, prepared(IDS, layout), layout=layout)
    store = store.append(prepared(MORE, layout)).delete(IDS[:2]).compact().delete(MORE[:1])
    swept = store.gc(older_than=0, grace=0)
    assert (swept.generations, swept.is_complete) == ((1, 2, 3, 4), True)
    keys = open_objects(any_url).list()
    assert not [key for key in keys if key.startswith(("X/", "obs/", "var/"))]
    names = {key.split("/")[1] for key in keys if key.startswith("segments/") and "zarr" not in key}
    assert len(names) == 1
    assert len([key for key in keys if "/tombstones/" in key]) == 1
    assert content_of(open_store(any_url)) == rows_of([*IDS[2:], *MORE[1:]])
    assert store.verify() == []
    assert store.gc(older_than=0, grace=0).names == ()


def test_gc__foreign_files_stay(store, place):
    grown = store.append(prepared(MORE))
    (segment,) = {path.parent.name for path in Path(place, "segments").glob("*/zarr.json")}
    names = ["README", "X/c/0/README", "obs/leiden/zarr.json", "obs/leiden/c/0", "segments/a.txt"]
    names += [f"segments/{segment}/X/mine", ".distclust/mine", ".distclust/segments/mine.txt"]
    for name in names:
        Path(place, name).parent.mkdir(parents=True, exist_ok=True)
        Path(place, name).write_text("mine")
    compacted = grown.compact()
    compacted.gc(older_than=0, grace=0)
    assert all(Path(place, name).read_text() == "mine" for name in names)
    assert not Path(place, "X/c/0/0").exists()
    assert not Path(place, f"segments/{segment}/X/zarr.json").exists()
    assert content_of(compacted) == rows_of([*IDS, *MORE])
    found = {finding.key for finding in compacted.verify()}
    assert found == {name for name in names if not name.startswith(("obs/", f"segments/{segment}"))}


def interrupt(store: MatrixStore, place: str) -> None:
    """Leave an append that was interrupted while it wrote."""

    def mapper(function: Any, items: Any, *shared: Any, stage: str = "") -> Any:
        for item in items:
            if stage == "writing" and item == 1:
                raise KeyboardInterrupt
            yield function(item, *shared)

    with pytest.raises(KeyboardInterrupt):
        store.append(prepared(MORE), identity="night", mapper=mapper)


def test_gc__unfinished_work_stays_for_a_while_and_then_goes(store, place):
    before = snapshot(place)
    interrupt(store, place)
    left = snapshot(place)
    assert left.keys() > before.keys()
    assert store.gc(grace=3600).names == ()
    assert snapshot(place) == left
    assert len(store.gc(grace=0).names) == 1
    assert snapshot(place) == before


def test_gc__work_that_is_taken_up_again_is_complete(store, place):
    interrupt(store, place)
    (first,) = Path(place, "segments").glob("*/X/c/0/0")
    written = first.stat().st_mtime_ns
    store.gc()
    grown = store.append(prepared(MORE), identity="night")
    assert first.stat().st_mtime_ns == written  # a finished block is not written again
    assert content_of(grown) == rows_of([*IDS, *MORE])


def test_gc__condemned_work_is_not_taken_up(store, place):
    """A sweep that was killed may have removed some of it."""
    interrupt(store, place)
    (first,) = Path(place, "segments").glob("*/X/c/0/0")
    name = first.relative_to(place).parts[1]
    open_objects(place).write(f".distclust/condemned/{name}.json", b"{}")
    first.unlink()
    grown = store.append(prepared(MORE), identity="night")
    assert content_of(grown) == rows_of([*IDS, *MORE])
    assert grown.verify() == []


def test_gc__touches_nothing_while_somebody_writes(store, place):
    seen = []

    def sweeping(scratch: Any) -> Prepared:
        scratch.write("spool", b"x")
        interrupted = snapshot(place)
        seen.append(open_store(place).gc(older_than=0, grace=0))
        assert snapshot(place) == interrupted
        return prepared(MORE)

    grown = store.append(sweeping)
    assert [swept.is_complete for swept in seen] == [False]
    assert content_of(grown) == rows_of([*IDS, *MORE])


def test_gc__a_killed_writer_is_waited_for_no_longer_than_its_lease(store, place):
    from distclust.store.leases import lease

    interrupt(store, place)
    lease(open_objects(place), ".distclust/leases", "writing")
    now = time.time()
    assert not store.gc(grace=0, now=now + 60).is_complete
    assert store.gc(grace=0, now=now + LATER).is_complete
    assert open_objects(place).list(".distclust/leases") == []
    assert open_objects(place).list(".distclust/ingest") == []


def test_gc__bad_numbers_are_refused(store):
    for wrong in ({"keep": 0}, {"older_than": -1.0}, {"grace": -1.0}):
        with pytest.raises(InputError, match="keep of at least 1"):
            store.gc(**wrong)
