"""Making and opening stores: complete or absent, nobody else's files, every id once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given

from distclust.errors import ConflictError, InputError, StoreError
from distclust.seeding import row_keys
from distclust.store import ids as ids_module
from distclust.store.columns import Features, extend_columns, recode_levels
from distclust.store.ids import GivenIds, StoredIds, find_repeats
from distclust.store.mapping import serial_map
from distclust.store.matrix import Column, default_columns, profile_block
from distclust.store.matrix_store import create_store, open_store
from distclust.store.objects import open_objects
from distclust.store.results import ResultsStore
from distclust.store.rows import ArrayRows
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


@pytest.fixture(autouse=True)
def _small_blocks() -> Any:
    with blocks_of(4):
        yield


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "corpus.zarr")


# ---- round trips ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_create_store__shows_the_rows_that_came_in(any_url, layout):
    made = create_store(any_url, prepared(IDS, layout), layout=layout)
    for store in (made, open_store(any_url), open_store(any_url, 1)):
        assert content_of(store) == rows_of(IDS)
        assert list(content_of(store)) == IDS
        assert (store.generation, store.shape, store.layout) == (1, (10, N_FEATURES), layout)
    assert made.verify() == []
    assert made.health() == "complete"
    assert open_objects(any_url).list(".distclust/ingest") == []


@pytest.mark.parametrize("codec", ["hot", "packed"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_create_store__any_codec_holds_any_layout(place, layout, codec):
    store = create_store(place, prepared(IDS, layout), layout=layout, codec=codec)
    assert store.codec == codec
    assert content_of(store) == rows_of(IDS)
    assert store.verify() == []


def test_create_store__the_codec_follows_the_place(any_url):
    store = create_store(any_url, prepared(IDS))
    assert store.codec == ("hot" if open_objects(any_url).is_local else "packed")


def test_create_store__the_layout_follows_the_values(tmp_path):
    thin = (np.arange(400).reshape(20, 20) % 37 == 0).astype(np.float64)
    cases = {
        "compact": scipy.sparse.csr_array(thin),
        "csr": scipy.sparse.csr_array(thin * 0.5),
        "dense": np.random.default_rng(0).normal(size=(20, 20)),
    }
    for layout, values in cases.items():
        rows = Prepared(ArrayRows(values), default_columns(20), has_ids=False)
        assert create_store(tmp_path / layout, rows).layout == layout


def test_create_store__keeps_columns_facts_kinds_and_provenance(place):
    columns = (
        Column("size", number="integer"),
        Column("colour", "category", ("blue", "rot", "vert")),
        Column("ja?", number="bool"),
    )
    values = np.array([[1.0, 0, 1], [2, np.nan, 0], [3, 2, 1]])
    obs = {"when": np.array(["2024-01-01", None, "x"], object), "n": np.arange(3)}
    kinds = {"when": "text", "n": "integer"}
    facts = {"thresholds": [0.5, 1.5]}
    rows = prepared([7, 8, 2**62], values=values, columns=columns, obs=obs, obs_kinds=kinds)
    rows = Prepared(**{**rows.__dict__, "facts": facts})
    create_store(place, rows, provenance={"source": "a.csv"})
    store = open_store(place)
    assert store.columns == store.matrix().columns == columns
    assert store.facts == facts
    assert (store.ids_kind, store.obs_kinds) == ("integer", kinds)
    assert store.generations()[0].provenance == {"source": "a.csv"}
    assert store.matrix().row_ids.tolist() == [7, 8, 2**62]
    np.testing.assert_array_equal(store.matrix().read_all(), values)
    expected = store.expected()
    assert (expected.columns, expected.obs_kinds, expected.ids_kind, expected.facts) == (
        columns,
        kinds,
        "integer",
        facts,
    )


def test_create_store__a_function_gets_a_scratch_that_goes_with_the_work(place):
    seen = []

    def prepare(scratch: Any) -> Prepared:
        scratch.write("spool", b"parsed")
        seen.append(bytes(scratch.read("spool")))
        return prepared(IDS)

    store = create_store(place, prepare, identity="x")
    assert content_of(store) == rows_of(IDS)
    assert seen == [b"parsed"]
    assert open_objects(place).list(".distclust/ingest") == []


def test_fingerprint__is_the_same_for_the_same_rows_only(tmp_path):
    prints = [
        create_store(tmp_path / str(i), rows).fingerprint
        for i, rows in enumerate(
            [
                prepared(IDS),
                prepared(IDS),
                prepared(IDS, salt=1),
                prepared(IDS[::-1]),
                prepared(IDS, columns=default_columns(N_FEATURES, "integer")),
            ]
        )
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4


def test_profile__is_that_of_the_live_rows(place):
    whole = create_store(place, prepared(IDS))
    for store in (whole, whole.delete(IDS[:5])):
        wanted = profile_block(values_of(list(content_of(store))))
        found = store.profile()
        for name in ("n_rows", "n_missing", "n_nonzero", "minimum", "maximum", "all_integer"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert store.delete(IDS[5:]).profile().n_rows == 0


def test_info__tells_what_is_there(place):
    store = create_store(place, prepared(IDS)).append(prepared(["new"])).delete(IDS[:1])
    info = store.info()
    told = {name: info[name] for name in ("generation", "shape", "layout", "segments", "deleted")}
    assert told == {
        "generation": 3,
        "shape": [10, N_FEATURES],
        "layout": "dense",
        "segments": 2,
        "deleted": 1,
    }
    assert info["fingerprint"] == store.fingerprint
    assert info["size_bytes"] > 11 * N_FEATURES * 8
    assert info["health"] == "complete"
    Path(place, "X", "c", "1", "0").unlink()
    assert store.info()["health"].startswith("damaged: 1 object is missing")


# ---- complete or absent --------------------------------------------------------------------------


def test_open_store__nothing_there_is_one_sentence(any_url):
    with pytest.raises(StoreError, match="expected a store, got nothing there"):
        open_store(any_url)


def test_open_store__an_unknown_generation_names_the_known_ones(place):
    create_store(place, prepared(IDS)).append(prepared(["new"]))
    with pytest.raises(StoreError, match="expected generation 9, got generations 1, 2"):
        open_store(place, 9)


def interrupted(place: str, error: BaseException, identity: str = "a") -> None:
    """Begin an ingest and stop it while blocks are being written."""

    def mapper(function: Any, items: Any, *shared: Any, stage: str = "") -> Any:
        for item in items:
            if stage == "writing" and item == 2:
                raise error
            yield function(item, *shared)

    with pytest.raises(type(error)):
        create_store(place, prepared(IDS), identity=identity, mapper=mapper)


def test_create_store__an_interrupted_one_is_absent_and_taken_up(place):
    interrupted(place, KeyboardInterrupt())
    with pytest.raises(StoreError, match="unfinished ingest"):
        open_store(place)
    first = Path(place, "X", "c", "0", "0")
    written = first.stat().st_mtime_ns
    store = create_store(place, prepared(IDS), identity="a")
    assert content_of(store) == rows_of(IDS)
    assert first.stat().st_mtime_ns == written  # a finished block is not written again
    assert open_objects(place).list(".distclust/ingest") == []


def test_create_store__another_unfinished_ingest_is_a_conflict(place):
    interrupted(place, KeyboardInterrupt())
    with pytest.raises(ConflictError, match="another unfinished ingest"):
        create_store(place, prepared(IDS, salt=1), identity="b")
    store = create_store(place, prepared(IDS, salt=1), identity="b", fresh=True)
    assert content_of(store) == rows_of(IDS, 1)
    assert store.verify() == []


@pytest.mark.parametrize(
    "error", [InputError("x", "y", "z", "Mend it."), OSError(28, "full", "a"), MemoryError()]
)
def test_create_store__one_that_fails_gives_its_space_back_unless_it_may_go_on(place, error):
    interrupted(place, error)
    left = open_objects(place).list()
    assert bool(left) == isinstance(error, MemoryError)


def test_create_store__a_store_is_not_overwritten(place):
    create_store(place, prepared(IDS))
    for identity in (None, "x"):
        with pytest.raises(InputError, match="expected no store yet"):
            create_store(place, prepared(IDS, salt=1), identity=identity)
    assert content_of(open_store(place)) == rows_of(IDS)


def test_create_store__the_same_again_is_no_work(place):
    first = create_store(place, prepared(IDS), identity={"path": "a.csv", "size": 7})

    def never(scratch: Any) -> Prepared:
        raise AssertionError("done already")

    again = create_store(place, never, identity={"path": "a.csv", "size": 7})
    assert (again.generation, again.fingerprint) == (1, first.fingerprint)


def test_create_store__fresh_clears_unfinished_work(place):
    interrupted(place, KeyboardInterrupt())
    fresh = create_store(place, prepared(IDS, "csr", 1), layout="csr", fresh=True)
    assert (fresh.generation, fresh.layout) == (1, "csr")
    assert content_of(fresh) == rows_of(IDS, 1)
    assert fresh.verify() == []


@pytest.mark.parametrize("is_begun", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
def test_create_store__files_of_others_are_not_touched(place, is_begun, fresh):
    if is_begun:
        interrupted(place, KeyboardInterrupt())
    foreign = [Path(place, name) for name in ("notes.txt", "X/notes.txt", "obs/a/b")]
    for path in foreign:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("mine")
    if fresh or not is_begun:
        with pytest.raises(InputError, match="expected an empty place"):
            create_store(place, prepared(IDS, salt=1), fresh=fresh)
    assert all(path.read_text() == "mine" for path in foreign)


def test_create_store__fresh_never_removes_what_is_complete(place):
    create_store(place, prepared(IDS))
    with pytest.raises(InputError, match="expected no store yet"):
        create_store(place, prepared(IDS, salt=1), fresh=True)
    assert content_of(open_store(place)) == rows_of(IDS)


def test_create_store__a_results_store_is_left_alone(place):
    results = ResultsStore(place)
    with results.begin("kind", {}, 0, "input") as draft:
        draft.write("a", b"a")
        draft.publish()
    with results.open_version() as reader:
        for fresh in (False, True):
            with pytest.raises(InputError, match="a results store"):
                create_store(place, prepared(IDS), fresh=fresh)
        assert reader.read("a") == b"a"
    assert results.verify() == []


def test_results__a_matrix_store_is_left_alone(place):
    store = create_store(place, prepared(IDS))
    with pytest.raises(InputError, match="a matrix store"):
        ResultsStore(place).begin("kind", {}, 0, "input")
    assert store.verify() == []


@pytest.mark.parametrize(
    "wrong", [{"layout": "sparse"}, {"codec": "cold"}, {"duplicates": "newest"}]
)
def test_create_store__misspelt_options_are_refused(place, wrong):
    with pytest.raises(InputError, match="expected one of"):
        create_store(place, prepared(IDS), **wrong)
    assert open_objects(place).list() == []


def test_create_store__a_lost_connection_leaves_the_work_to_be_taken_up(place):
    interrupted(place, ConnectionResetError(104, "reset"))
    assert open_objects(place).list(".distclust/ingest") != []


def test_create_store__arrays_of_another_program_are_not_touched(place):
    import zarr

    zarr.create_group(place).create_array("X", shape=(3, 2), dtype="f8")[:] = 1.0
    before = {path: path.read_bytes() for path in Path(place).rglob("*") if path.is_file()}
    for fresh in (False, True):
        with pytest.raises(InputError, match="expected an empty place"):
            create_store(place, prepared(IDS), fresh=fresh)
    after = {path: path.read_bytes() for path in Path(place).rglob("*") if path.is_file()}
    assert after == before


def test_create_store__nothing_to_store_is_refused(place):
    for rows in (prepared([], values=np.empty((0, 3))), prepared([1], values=np.empty((1, 0)))):
        with pytest.raises(InputError, match="at least one row and one feature"):
            create_store(place, rows)
    assert open_objects(place).list() == []


# ---- duplicates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [["a", "b", "c", "b", "a", "b"], [5, 1, 2, 1, 5, 1]])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_duplicates__are_refused_or_resolved_while_writing(tmp_path, layout, ids):
    values = values_of(range(6))
    rows = prepared(ids, layout, values=values)
    with pytest.raises(
        InputError, match=f"every row id once, got {ids[1]!r} in row 1 and in row 3"
    ):
        create_store(tmp_path / "refused", rows, layout=layout)
    assert open_objects(tmp_path / "refused").list() == []
    for keep, kept in (("first", [0, 1, 2]), ("last", [2, 4, 5])):
        store = create_store(tmp_path / keep, rows, layout=layout, duplicates=keep)
        assert store.matrix().row_ids.tolist() == [ids[i] for i in kept]
        found: Any = store.matrix().read_all()
        np.testing.assert_array_equal(found if layout == "dense" else found.toarray(), values[kept])
        assert (store.info()["segments"], store.info()["deleted"]) == (1, 0)


def test_duplicates__a_resolved_store_opens_in_anndata(place):
    rows = prepared(["a", "b", "a", "c"], values=values_of(range(4)))
    create_store(place, rows, duplicates="last")
    read = read_anndata(place)
    assert read.obs_names.tolist() == ["b", "a", "c"]
    np.testing.assert_array_equal(read.X, values_of(range(4))[1:])


def test_duplicates__equal_keys_of_different_ids_are_no_duplicates(place, monkeypatch):
    collide(monkeypatch)
    store = create_store(place, prepared(IDS), duplicates="first")
    assert content_of(store) == rows_of(IDS)
    store = store.append(prepared(["x", "y"])).replace(prepared(IDS[3:5], salt=1)).delete(["x"])
    wanted = {**rows_of(IDS), **rows_of(["y"]), **rows_of(IDS[3:5], 1)}
    assert content_of(store) == wanted
    with pytest.raises(InputError, match="'y' in row 11 of the store and in row 0"):
        store.append(prepared(["y"]))


def collide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all ids have one of two keys."""
    for module in ("ids", "layouts.annotations"):
        monkeypatch.setattr(f"distclust.store.{module}.row_keys", lambda ids: row_keys(ids) % 2)


@given(
    stored=st.lists(st.integers(0, 9), unique=True),
    new=st.lists(st.integers(0, 9)),
    is_text=st.booleans(),
)
def test_find_repeats__equals_looking_at_all_ids(stored, new, is_text):
    """In partitions, comparisons and spans of a few rows, against a dictionary."""

    def as_ids(ids: list[int]) -> Any:
        return np.array([str(i) for i in ids], object) if is_text else np.array(ids, np.int64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids_module, "PARTITION", 3)
        patch.setattr(ids_module, "COMPARED", 2)
        patch.setattr(ids_module, "_SPAN", 4)
        if is_text:
            patch.setattr(ids_module, "row_keys", lambda ids: row_keys(ids) % 5)
        found = find_repeats(
            GivenIds(as_ids(new)), GivenIds(as_ids(stored)), serial_map, is_exact=not is_text
        )
    places: dict[int, list[int]] = {}
    for position, row_id in enumerate(stored + new):
        places.setdefault(row_id, []).append(position)
    wanted = {tuple(group) for group in places.values() if len(group) > 1}
    groups = np.split(found.positions, np.flatnonzero(np.diff(found.groups)) + 1)
    assert {tuple(group.tolist()) for group in groups if len(group)} == wanted


def test_find_repeats__nothing_repeats_nothing():
    found = find_repeats(StoredIds(), StoredIds(), serial_map, is_exact=True)
    assert found.losers("first")[1].tolist() == found.losers("last")[0].tolist() == []


# ---- what other tools see ------------------------------------------------------------------------


def read_anndata(place: str) -> Any:
    anndata = pytest.importorskip("anndata")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of AnnData about its own future
        return anndata.read_zarr(place)


@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_anndata__opens_a_fresh_store_and_refuses_any_other(place, layout):
    first = create_store(place, prepared(IDS, layout), layout=layout)
    read = read_anndata(place)
    assert read.obs_names.tolist() == IDS
    np.testing.assert_array_equal(read.X if layout == "dense" else read.X.toarray(), values_of(IDS))
    for change in (
        lambda store: store.append(prepared(["new"], layout)),
        lambda store: store.delete(IDS[:2]),
        lambda store: store.compact(),
        lambda store: store.rollback(1),
    ):
        change(first.refresh())
        with pytest.raises(Exception, match="segments"):
            read_anndata(place)
    gone = first.refresh().compact().append(prepared(["other"], layout))
    gone.gc(older_than=0, grace=0)
    with pytest.raises(Exception, match="segments"):
        read_anndata(place)
    assert first.refresh().verify() == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_to_anndata__gives_the_live_rows_of_any_store(place, layout):
    store = create_store(place, prepared(IDS, layout), layout=layout)
    store = store.append(prepared(["new"], layout)).delete(IDS[:7])
    wanted = [*IDS[7:], "new"]
    read = store.to_anndata()
    assert read.obs_names.tolist() == wanted
    assert read.var_names.tolist() == [f"x{i}" for i in range(N_FEATURES)]
    assert read.obs["note"].tolist() == [note for _, note in rows_of(wanted).values()]
    found = read.X if layout == "dense" else read.X.toarray()
    np.testing.assert_array_equal(found, values_of(wanted))


@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_open_store__what_anndata_wrote_is_read_and_never_changed(place, layout):
    anndata = pytest.importorskip("anndata")
    values = values_of(IDS)
    X: Any = values if layout == "dense" else scipy.sparse.csr_matrix(values)
    written = anndata.AnnData(X)
    written.obs_names, written.var_names = IDS, [f"gene {i}" for i in range(N_FEATURES)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of AnnData about its own future
        written.write_zarr(place, convert_strings_to_categoricals=False)
    before = {path: path.read_bytes() for path in Path(place).rglob("*") if path.is_file()}
    store = open_store(place)
    found: Any = store.matrix().read_all()
    np.testing.assert_array_equal(found if layout == "dense" else found.toarray(), values)
    assert [column.name for column in store.columns] == [f"gene {i}" for i in range(N_FEATURES)]
    assert store.matrix().row_ids.tolist() == IDS
    assert store.profile().n_nonzero.tolist() == np.count_nonzero(values, axis=0).tolist()
    info = store.info()
    assert (info["layout"], info["ids"], info["health"]) == (layout, "text", "unverified")
    assert info["size_bytes"] == sum(map(len, before.values()))
    with store.reading() as matrix:
        assert matrix.shape == store.shape == (10, N_FEATURES)
    for change in (
        lambda: store.append(prepared(["n"])),
        lambda: store.replace(prepared(["n"])),
        lambda: store.delete(IDS[:1]),
        store.compact,
        lambda: store.rollback(1),
        store.gc,
        store.verify,
        store.generations,
        store.to_anndata,
    ):
        with pytest.raises(InputError, match="got one of another program, which is only read"):
            change()
    after = {path: path.read_bytes() for path in Path(place).rglob("*") if path.is_file()}
    assert after == before


# ---- features ------------------------------------------------------------------------------------

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
levels = st.lists(names, unique=True, max_size=4).map(tuple)
columns_of_any_kind = st.lists(
    st.builds(Column, names, number=st.sampled_from(["bool", "integer", "real"]))
    | st.builds(lambda name, found: Column(name, "category", found), names, levels),
    max_size=5,
).map(tuple)


@given(columns=columns_of_any_kind)
def test_features__come_back_as_they_were(columns):
    features = Features(columns, {"a": [1, None]})
    assert Features.decode(features.encode(), "here") == features


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"names": null, "kinds": "rr", "levels": [["a"]], "facts": {}}',
        b'{"names": ["a"], "kinds": "rr", "levels": [], "facts": {}}',
        b'{"names": [1], "kinds": "r", "levels": [], "facts": {}}',
        b'{"names": ["a"], "kinds": "z", "levels": [], "facts": {}}',
        b'{"names": ["a"], "kinds": "c", "levels": [], "facts": {}}',
        b'{"names": ["a"], "kinds": "c", "levels": [[2]], "facts": {}}',
    ],
)
def test_features__other_content_is_refused(content):
    with pytest.raises(StoreError, match="a description of features"):
        Features.decode(content, "here")


@given(old=levels, new=levels)
def test_extend_columns__old_codes_stay_and_new_levels_follow(old, new):
    stored, fresh = (Column("c", "category", old),), (Column("c", "category", new),)
    merged = extend_columns(stored, fresh, "here")
    assert merged[0].levels[: len(old)] == old
    assert sorted(merged[0].levels) == sorted({*old, *new})
    codes = recode_levels(merged, fresh).get(0, np.arange(len(new)))
    assert [merged[0].levels[code] for code in codes] == list(new)


def test_extend_columns__numbers_take_the_wider_kind():
    kinds = [("bool", "integer", "integer"), ("real", "bool", "real"), ("bool", "bool", "bool")]
    for old, new, wanted in kinds:
        stored, fresh = (Column("x", number=old),), (Column("x", number=new),)
        assert extend_columns(stored, fresh, "here")[0].number == wanted
