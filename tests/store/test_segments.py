"""Segments: what goes in comes out, other tools can read it, damage is found, kills do no harm."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from distclust import events
from distclust.engine import map_ordered
from distclust.errors import InputError, StoreError
from distclust.seeding import row_keys
from distclust.store import surveys
from distclust.store.archive import decode_archive, encode_archive
from distclust.store.layouts import base, csr
from distclust.store.layouts.annotations import obs_paths
from distclust.store.mapping import serial_map
from distclust.store.matrix import profile_block
from distclust.store.objects import LocalObjects, Objects, open_objects
from distclust.store.rows import ArrayRows, Rows
from distclust.store.segments import (
    Finding,
    Segment,
    SegmentReader,
    SegmentSpec,
    Survey,
    choose_layout,
    survey_rows,
    verify_segment,
    write_segment,
)
from tests.faults import every_fault

SCRATCH = ".distclust/ingest/0"
N, D = 2100, 30

KINDS = (("age", "integer"), ("weight", "real"), ("is_new", "bool"), ("town", "text"))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Cut every layout into blocks of 1,024 rows, except on a cluster."""
    if "on_client" not in request.fixturenames:
        for module in (base, surveys):
            monkeypatch.setattr(module, "block_rows_for", lambda n_features, is_sparse: 1024)
        monkeypatch.setattr(csr, "_SMALLEST_CHUNK", 256)


def table(n: int = N, d: int = D, seed: int = 0) -> ArrayRows:
    """Rows with text ids and annotations of every kind."""
    rng = np.random.default_rng(seed)
    X = sp.random_array((n, d), density=0.1, format="csr", rng=rng)
    X.data[:] = rng.integers(1, 9, X.nnz)
    obs = {
        "age": rng.integers(-5, 90, n),
        "weight": np.where(rng.random(n) < 0.1, np.nan, rng.random(n)),
        "is_new": rng.random(n) < 0.5,
        "town": np.array([[None, "Ürümqi", "", "Köln"][i % 4] for i in range(n)], object),
    }
    return ArrayRows(X, np.array([f"Zeile {i} ✓" for i in range(n)], object), obs)


def spec_of(rows: Any, layout: str = "compact", codec: str = "hot", **others: Any) -> SegmentSpec:
    options: Any = {"ids_kind": "text", "obs": KINDS, **others}
    return SegmentSpec(layout, codec, rows.n_rows, rows.n_features, rows.dtype.name, **options)


NAMES = [f"Merkmal {i}" for i in range(D)]


def write(objects: Objects, layout: str = "compact", codec: str = "hot", path: str = "") -> Segment:
    rows = table()
    return write_segment(
        objects,
        path,
        rows,
        spec_of(rows, layout, codec),
        mapper=serial_map,
        scratch=SCRATCH,
        feature_names=NAMES,
    )


def everything(reader: SegmentReader) -> dict[str, Any]:
    """Return all that a segment holds, put together over blocks."""
    blocks = range(reader.n_blocks)
    values = [reader.block(i) for i in blocks]
    gathered = {name: np.concatenate([reader.obs(name, i) for i in blocks]) for name, _ in KINDS}
    return {
        "X": np.vstack([v.toarray() if sp.issparse(v) else v for v in values]),
        "ids": np.concatenate([reader.block_ids(i) for i in blocks]),
        "keys": np.concatenate([reader.block_keys(i) for i in blocks]),
        **gathered,
    }


def assert_whole(objects: Objects, segment: Segment, path: str = "") -> None:
    """Compare all that is stored with the rows it was written from."""
    rows = table().read(0, N)
    found = everything(SegmentReader(objects, path, segment))
    np.testing.assert_array_equal(found["X"], rows.values.toarray())
    np.testing.assert_array_equal(found["ids"], rows.ids)
    np.testing.assert_array_equal(found["keys"], row_keys(rows.ids))
    for name, _ in KINDS:
        np.testing.assert_array_equal(found[name], rows.obs[name])


@pytest.fixture
def local(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


ALL = [(layout, codec) for layout in ("dense", "csr", "compact") for codec in ("hot", "packed")]


# ---- round trips ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "codec"), ALL)
def test_write_segment__comes_back_and_verifies(
    local: LocalObjects, layout: str, codec: str
) -> None:
    check_round_trip(local, layout, codec)


def test_write_segment__comes_back_from_anywhere(objects: Objects) -> None:
    check_round_trip(objects, "compact", "packed")


def check_round_trip(objects: Objects, layout: str, codec: str) -> None:
    segment = write(objects, layout, codec, path="segments/0123")
    again = Segment.decode(segment.encode(), "table")
    assert_whole(objects, again, "segments/0123")
    assert verify_segment(objects, "segments/0123", again, serial_map) == []
    assert again.spec == segment.spec
    assert again.n_rows == N
    assert again.nnz == table().read(0, N).values.nnz
    assert again.n_bytes == sum(
        objects.size(key) or 0 for key in objects.list("segments") if not key.endswith("zarr.json")
    )


@pytest.mark.parametrize("layout", ["dense", "csr", "compact"])
def test_write_segment__threads_write_the_same_bytes(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTCLUST_THREADS", "4")
    folders = []
    for name, mapper in (("serial", serial_map), ("threads", map_ordered)):
        objects = open_objects(tmp_path / name)
        rows = table()
        write_segment(
            objects,
            "",
            rows,
            spec_of(rows, layout),
            mapper=mapper,
            scratch=SCRATCH,
        )
        keys = [key for key in objects.list() if not key.startswith(SCRATCH)]
        folders.append({key: objects.read(key) for key in keys})
    assert folders[0] == folders[1]


@pytest.mark.cluster
def test_write_segment__on_a_cluster(local: LocalObjects, on_client: Any) -> None:
    rows = table(17_000, 12)
    segment = write_segment(local, "", rows, spec_of(rows), mapper=map_ordered, scratch=SCRATCH)
    found = everything(SegmentReader(local, "", segment))
    np.testing.assert_array_equal(found["X"], rows.read(0, 17_000).values.toarray())
    assert verify_segment(local, "", segment, map_ordered) == []


def test_write_segment__tells_progress(local: LocalObjects) -> None:
    heard: list[events.Event] = []
    with events.listen(heard.append):
        write(local)
    assert [(e.stage, e.done) for e in heard if e.done == e.total] == [
        ("surveying", 3),
        ("writing", 3),
    ]


def test_write_segment__integer_ids_without_names_and_annotations(local: LocalObjects) -> None:
    X = np.arange(12.0).reshape(4, 3)
    rows = ArrayRows(X, ids=[7, -3, 2**62, 0])
    spec = spec_of(rows, "dense", ids_kind="integer", obs=())
    segment = write_segment(local, "", rows, spec, mapper=serial_map, scratch=SCRATCH)
    reader = SegmentReader(local, "", segment)
    assert reader.block_ids(0).dtype == np.int64
    assert reader.block_ids(0).tolist() == [7, -3, 2**62, 0]
    np.testing.assert_array_equal(reader.block_keys(0), row_keys(np.array([7, -3, 2**62, 0])))
    assert not any(key.startswith("var") for key in local.list())
    assert verify_segment(local, "", segment, serial_map) == []


def test_reader__reads_after_pickling_its_parts(local: LocalObjects) -> None:
    parts = pickle.loads(pickle.dumps((local, write(local))))
    assert_whole(*parts)


ODD = [
    "a/b",
    "..",
    "Größe",
    "Age",
    "age",
    "_index",
    "_key",
    "column-0",
    "",
    "x" * 300,
    "obs",
    "CON",
]


def test_obs__names_never_become_odd_keys(local: LocalObjects) -> None:
    n = 5
    obs = {name: np.arange(n) + i for i, name in enumerate(ODD)}
    rows = ArrayRows(np.eye(n), obs=obs)
    spec = spec_of(rows, "dense", ids_kind="integer", obs=tuple((name, "integer") for name in ODD))
    segment = write_segment(local, "", rows, spec, mapper=serial_map, scratch=SCRATCH)
    segment = Segment.decode(segment.encode(), "table")
    reader = SegmentReader(local, "", segment)
    for name, column in obs.items():
        np.testing.assert_array_equal(reader.obs(name, 0), column)
    paths = list(obs_paths(spec).values())
    assert len({path.lower() for path in paths}) == len(ODD)
    assert paths[3:5] == ["obs/Age", "obs/column-4"]
    assert verify_segment(local, "", segment, serial_map) == []


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("integer", np.array([0.5, 1.0])),
        ("integer", np.array([2**63, 0], np.uint64)),
        ("integer", np.array([1.0, np.nan])),
        ("bool", np.array([0, 2])),
        ("bool", np.array([1.0, np.nan])),
        ("real", np.array([2**53 + 1, 0])),
        ("text", np.array(["a", 3], object)),
        ("text", np.array(["a", "\ud800"], object)),
    ],
)
def test_obs__values_of_another_kind_are_refused(
    local: LocalObjects, kind: str, column: np.ndarray
) -> None:
    rows = ArrayRows(np.eye(2), obs={"q": column})
    spec = spec_of(rows, "dense", ids_kind="integer", obs=(("q", kind),))
    with pytest.raises(InputError, match=r"^q: expected"):
        write_segment(local, "", rows, spec, mapper=serial_map, scratch=SCRATCH)


def test_ids__missing_numbers_are_refused(local: LocalObjects) -> None:
    rows = ArrayRows(np.eye(2), np.array([1.0, np.nan]))
    spec = spec_of(rows, "dense", ids_kind="integer", obs=())
    with pytest.raises(InputError, match=r"^ids: expected integer values, got .*nan"):
        write_segment(local, "", rows, spec, mapper=serial_map, scratch=SCRATCH)


# ---- other tools ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "segments/0123"])
@pytest.mark.parametrize(("layout", "codec"), ALL[:4])
def test_anndata__reads_a_segment(local: LocalObjects, layout: str, codec: str, path: str) -> None:
    import anndata

    write(local, layout, codec, path)
    rows = table().read(0, N)
    seen = anndata.read_zarr(local.path / path)  # a warning would be an error
    X = seen.X.toarray() if sp.issparse(seen.X) else seen.X
    np.testing.assert_array_equal(X, rows.values.toarray())
    assert sp.issparse(seen.X) == (layout == "csr")
    assert seen.obs_names.tolist() == rows.ids.tolist()
    assert seen.var_names.tolist() == NAMES
    assert seen.obs.columns.tolist() == [name for name, _ in KINDS]
    for name in ("age", "weight", "is_new"):
        np.testing.assert_array_equal(seen.obs[name], rows.obs[name])
        assert seen.obs[name].dtype == rows.obs[name].dtype
    towns = [None if town is None else town for town in rows.obs["town"]]
    assert [
        None if is_missing else town
        for town, is_missing in zip(seen.obs["town"], seen.obs["town"].isna(), strict=True)
    ] == towns


def test_anndata__reads_a_segment_without_nonzeros(local: LocalObjects) -> None:
    import anndata

    rows = ArrayRows(sp.csr_array((3, 4)), ids=["a", "b", "c"])
    spec = spec_of(rows, "csr", obs=())
    write_segment(local, "", rows, spec, mapper=serial_map, scratch=SCRATCH)
    assert anndata.read_zarr(local.path).X.nnz == 0


def test_anndata__refuses_what_is_not_all(local: LocalObjects) -> None:
    import anndata

    segment = write(local, "csr")
    local.write("zarr.json", segment.face(["segments"]))
    with pytest.raises(Exception, match="segments"):
        anndata.read_zarr(local.path)
    assert "segments" in dict(zarr.open_group(local.path, mode="r").members())


def test_anndata__refuses_the_compact_layout(local: LocalObjects) -> None:
    import anndata

    write(local, "compact")
    with pytest.raises(Exception, match="distclust"):
        anndata.read_zarr(local.path)


@pytest.mark.parametrize(("layout", "codec"), ALL)
def test_zarr__sees_all_arrays_and_nothing_else(
    local: LocalObjects, layout: str, codec: str
) -> None:
    segment = write(local, layout, codec)
    root = zarr.open_group(local.path, mode="r")
    members = dict(root.members(max_depth=None))
    assert members.keys() == segment.metadata.keys()
    for path, array in segment.arrays.items():
        assert members[path].shape == array.shape
        assert members[path][...].shape == array.shape
    np.testing.assert_array_equal(root["obs/_index"][:], table().read(0, N).ids)
    np.testing.assert_array_equal(root["obs/_key"][:], row_keys(table().read(0, N).ids))
    if layout == "dense":
        np.testing.assert_array_equal(root["X"][:], table().read(0, N).values.toarray())


# ---- the survey ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sparse", [True, False])
def test_survey__equals_a_look_at_all_rows_at_once(is_sparse: bool) -> None:
    X = table().read(0, N).values
    survey = survey_rows(ArrayRows(X if is_sparse else X.toarray()), mapper=serial_map)
    whole = profile_block(X)
    for name in ("n_missing", "n_nonzero", "minimum", "maximum", "all_integer", "any_infinite"):
        np.testing.assert_array_equal(getattr(survey.profile, name), getattr(whole, name))
    ends = [0, 1024, 2048, N]
    assert survey.unit_nonzeros.tolist() == np.diff(X.indptr[ends]).tolist()
    assert survey.offsets(2048).tolist() == X.indptr[[0, 2048, N]].tolist()


def test_survey__is_kept_and_not_made_again(local: LocalObjects) -> None:
    first = survey_rows(table(), mapper=serial_map, objects=local, scratch=SCRATCH)
    again = survey_rows(Failing(0), mapper=serial_map, objects=local, scratch=SCRATCH)
    np.testing.assert_array_equal(first.unit_nonzeros, again.unit_nonzeros)
    np.testing.assert_array_equal(first.profile.n_nonzero, again.profile.n_nonzero)
    assert again.profile.maximum.dtype == np.float64


@pytest.mark.parametrize(
    "column",
    [[0.0, 0], [0.5, -3], [np.inf, -np.inf], [255, 256], [2**40, 1], [-1, 7], [True, False]],
)
def test_survey__arrays_lose_nothing(column: list[float]) -> None:
    values = np.array(column)
    small = surveys.shrink(values)
    assert small.nbytes <= values.nbytes
    np.testing.assert_array_equal(np.broadcast_to(small.astype(values.dtype), 2), values)


@pytest.mark.parametrize(
    ("X", "place"),
    [
        (np.array([[0, 1.0], [np.inf, 0]]), "row 1, feature 0.*inf"),
        (sp.csr_array([[0, 1.0], [0, np.nan]]), "row 1, feature 1.*nan"),
        (sp.csr_array([[0, -np.inf], [0, 0]]), "row 0, feature 1.*-inf"),
    ],
)
def test_survey__values_that_are_not_finite_are_refused(X: Any, place: str) -> None:
    with pytest.raises(InputError, match=place):
        survey_rows(ArrayRows(X), mapper=serial_map)


@pytest.mark.parametrize(
    ("X", "dense_becomes", "sparse_becomes"),
    [
        (np.eye(17), "compact", "compact"),
        (np.eye(17) * 65_535, "compact", "compact"),
        (np.eye(17) * 65_536, "dense", "csr"),
        (np.eye(17) * -1, "dense", "csr"),
        (np.eye(17) * 0.5, "dense", "csr"),
        (np.eye(16), "dense", "csr"),  # one in sixteen is not thin
        (np.zeros((2, 2)), "compact", "compact"),
    ],
)
def test_choose_layout__follows_values_and_density(
    X: np.ndarray, dense_becomes: str, sparse_becomes: str
) -> None:
    assert choose_layout(profile_block(X), is_sparse=False) == dense_becomes
    assert choose_layout(profile_block(sp.csr_array(X)), is_sparse=True) == sparse_becomes


def test_choose_layout__missing_values_are_dense() -> None:
    X = np.zeros((20, 20))
    X[0, 0] = np.nan
    assert choose_layout(profile_block(X), is_sparse=False) == "dense"


class Measured(ArrayRows):
    """Rows of `table`, dense, that remember how many were read at a time."""

    def __init__(self) -> None:
        rows = table().read(0, N)
        super().__init__(rows.values.toarray(), rows.ids, rows.obs)
        self.heights: list[int] = []

    def read(self, start: int, stop: int) -> Rows:
        self.heights.append(stop - start)
        return super().read(start, stop)


@pytest.mark.parametrize("layout", ["csr", "compact"])
def test_dense_rows__are_read_by_bytes_and_stored_whole(
    local: LocalObjects, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveys, "_DENSE_BYTES", 100 * D * 8)
    rows = Measured()
    survey = survey_rows(rows, mapper=serial_map)
    whole = survey_rows(table(), mapper=serial_map)
    for name, facts in whole.to_arrays().items():
        np.testing.assert_array_equal(survey.to_arrays()[name], facts)
    segment = write_segment(
        local, "", rows, spec_of(rows, layout), mapper=serial_map, scratch=SCRATCH, survey=survey
    )
    assert max(rows.heights) == 100
    assert_whole(local, segment)


def test_dense_rows__too_wide_for_the_limit_are_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(surveys, "_DENSE_BYTES", 8)
    rows = Measured()
    survey_rows(rows, mapper=serial_map)
    assert set(rows.heights) == {1}


# ---- kills and changes ---------------------------------------------------------------------------


class Failing:
    """Rows of `table` that fail at a read, and remember which were asked for."""

    def __init__(self, fails_at: int = -1, change: Callable[[Rows], Rows] | None = None) -> None:
        rows = table()
        self.n_rows, self.n_features = rows.n_rows, rows.n_features
        self.is_sparse, self.dtype = rows.is_sparse, rows.dtype
        self.fails_at = fails_at
        self.change = change or (lambda part: part)
        self.asked: list[int] = []

    def read(self, start: int, stop: int) -> Rows:
        if start == self.fails_at:
            raise OSError("the source is gone")
        self.asked.append(start)
        return self.change(table().read(start, stop))


@pytest.mark.parametrize("layout", ["dense", "csr", "compact"])
def test_write_segment__goes_on_where_it_ended(local: LocalObjects, layout: str) -> None:
    survey = survey_rows(table(), mapper=serial_map)
    spec = spec_of(table(), layout)
    options: Any = {"mapper": serial_map, "scratch": SCRATCH, "survey": survey}
    with pytest.raises(OSError, match="gone"):
        write_segment(local, "", Failing(2048), spec, **options)
    written = {key: (local.path / key).stat() for key in local.list() if not key.startswith(".")}
    assert any(key.endswith("c/0") for key in written)
    assert "zarr.json" not in written
    again = Failing()
    segment = write_segment(local, "", again, spec, **options)
    assert again.asked[0] >= 1024  # the first block is not read again
    done = [key for key in written if "/c/0" in key]
    for key in done:
        assert (local.path / key).stat().st_ino == written[key].st_ino
    assert_whole(local, segment)
    assert verify_segment(local, "", segment, serial_map) == []


SMALL = ArrayRows(sp.csr_array(np.tile(np.eye(3), (400, 1))))


def write_small(place: str) -> Segment:
    spec = spec_of(SMALL, "csr", ids_kind="integer", obs=())
    objects = open_objects(place)
    return write_segment(objects, "", SMALL, spec, mapper=serial_map, scratch=SCRATCH)


@pytest.mark.chaos
def test_write_segment__killed_anywhere_is_completed(tmp_path: Path) -> None:
    def check(place: str, is_complete: bool) -> None:
        objects = open_objects(place)
        if not is_complete:
            assert not objects.exists("zarr.json")  # until all is written
            return
        segment = write_small(place)
        reader = SegmentReader(objects, "", segment)
        found = sp.vstack([reader.block(i) for i in range(2)])
        assert (found != SMALL.read(0, 1200).values).nnz == 0
        assert verify_segment(objects, "", segment, serial_map) == []

    n = every_fault(tmp_path, prepare=lambda place: None, action=write_small, check=check, stride=5)
    assert n > 30


def test_write_segment__a_damaged_record_is_refused(local: LocalObjects) -> None:
    write(local)
    record = local.path / SCRATCH / "blocks" / "1.json"
    record.write_bytes(record.read_bytes()[:-20])
    with pytest.raises(StoreError, match=r"blocks/1\.json"):
        write(local)


def without_first_value(rows: Rows) -> Rows:
    values = rows.values.copy()
    values.data[0] = 0
    return replace(rows, values=values)


def without_last_id(rows: Rows) -> Rows:
    return replace(rows, ids=rows.ids[:-1])


def without_last_column(rows: Rows) -> Rows:
    return replace(rows, values=rows.values[:, :-1])


@pytest.mark.parametrize(
    ("layout", "change"),
    [
        ("csr", without_first_value),
        ("compact", without_first_value),
        ("dense", without_last_id),
        ("dense", without_last_column),
        ("compact", without_last_column),
    ],
)
def test_write_segment__rows_that_change_are_refused(
    local: LocalObjects, layout: str, change: Callable[[Rows], Rows]
) -> None:
    survey = survey_rows(table(), mapper=serial_map)
    rows = Failing(change=change)
    with pytest.raises(InputError, match="the same values every time"):
        write_segment(
            local,
            "",
            rows,
            spec_of(rows, layout),
            mapper=serial_map,
            scratch=SCRATCH,
            survey=survey,
        )


def test_write_segment__strange_types_are_refused(local: LocalObjects) -> None:
    rows = ArrayRows(np.eye(3, dtype=np.longdouble))
    with pytest.raises(InputError, match="float64"):
        write_segment(
            local, "", rows, spec_of(rows, "dense", obs=()), mapper=serial_map, scratch=SCRATCH
        )


@pytest.mark.parametrize(
    ("values", "ids"),
    [(np.zeros(3), None), (np.array([["a"]]), None), (np.eye(3), [1, 2]), (np.eye(2), [[1], [2]])],
)
def test_array_rows__must_be_a_table(values: Any, ids: Any) -> None:
    with pytest.raises(InputError, match=r"^rows: expected"):
        ArrayRows(values, ids)


# ---- damage --------------------------------------------------------------------------------------


def flip(objects: Objects, key: str) -> None:
    content = bytearray(objects.read(key))
    content[len(content) // 3] ^= 1
    objects.write(key, content)


def swap(objects: Objects, key: str, other: str) -> None:
    first, second = objects.read(key), objects.read(other)
    objects.write(key, second)
    objects.write(other, first)


CHUNKS = {"dense": "X/c/1/0", "csr": "X/indices/c/3", "compact": "X/words/c/1/0"}


@pytest.mark.parametrize(("layout", "codec"), ALL)
def test_verify__finds_each_kind_of_damage(local: LocalObjects, layout: str, codec: str) -> None:
    check_damage(local, layout, codec)


def test_verify__finds_damage_anywhere(objects: Objects) -> None:
    check_damage(objects, "compact", "packed")


def check_damage(objects: Objects, layout: str, codec: str) -> None:
    segment = write(objects, layout, codec)
    flip(objects, CHUNKS[layout])
    objects.write("obs/_key/c/0", objects.read("obs/_key/c/0")[:-3])
    objects.delete("obs/age/c/2")
    sizes = [objects.size(f"obs/weight/c/{i}") or 0 for i in (0, 1)]
    swap(objects, "obs/weight/c/0", "obs/weight/c/1")
    objects.delete("obs/town/zarr.json")
    objects.write("obs/zarr.json", b"{}")
    objects.write("X/notes.txt", b"not ours")
    objects.write("extra/c/0", b"not ours")
    objects.write("segments/0123/zarr.json", b"the caller's")
    expected = {
        (CHUNKS[layout], "altered"),
        ("obs/_key/c/0", "truncated"),
        ("obs/age/c/2", "missing"),
        ("obs/weight/c/0", "truncated" if sizes[1] < sizes[0] else "altered"),
        ("obs/weight/c/1", "truncated" if sizes[0] < sizes[1] else "altered"),
        ("obs/town/zarr.json", "missing"),
        ("obs/zarr.json", "altered"),
        ("X/notes.txt", "foreign"),
        ("extra/c/0", "foreign"),
    }
    found = verify_segment(objects, "", segment, serial_map)
    assert found == sorted((Finding(*each) for each in expected), key=lambda f: f.key)


def test_verify__finds_a_changed_face_below_the_root(local: LocalObjects) -> None:
    segment = write(local, path="segments/0123")
    local.write("segments/0123/zarr.json", segment.face(["more"]))
    assert verify_segment(local, "segments/0123", segment, serial_map) == [
        Finding("segments/0123/zarr.json", "altered")
    ]
    local.delete("segments/0123/zarr.json")
    assert verify_segment(local, "segments/0123", segment, serial_map) == [
        Finding("segments/0123/zarr.json", "missing")
    ]


@pytest.mark.parametrize(("layout", "codec"), ALL)
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "swap"])
def test_reader__notices_damage_before_a_value_is_used(
    local: LocalObjects, layout: str, codec: str, damage: str
) -> None:
    segment = write(local, layout, codec)
    key = CHUNKS[layout]
    others = {"dense": "X/c/0/0", "csr": "X/indices/c/1", "compact": "X/words/c/0/0"}
    if damage == "flip":
        flip(local, key)
    elif damage == "truncate":
        local.write(key, local.read(key)[:-1])
    elif damage == "delete":
        local.delete(key)
    else:
        swap(local, key, others[layout])
    reader = SegmentReader(local, "", segment)
    with pytest.raises(StoreError, match=r"altered|truncated|missing") as error:
        reader.block(1)
    assert error.value.exit_code == 2
    assert "X/" in error.value.where


@pytest.mark.parametrize("path", ["X", "X/zarr.json", "obs/_index", "obs/_key", "obs/town/mask"])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b'"shape": [\n  2100', b'"shape": [\n  1000000000000000'),
        lambda text: text.replace(b"crc32c", b"numcodecs.pickle"),
        lambda text: text[:-5],
        lambda text: b"",
    ],
)
def test_reader__altered_metadata_are_refused(
    local: LocalObjects, path: str, change: Callable[[bytes], bytes]
) -> None:
    segment = write(local, "dense")
    key = path if path.endswith("json") else f"{path}/zarr.json"
    before = local.read(key)
    assert change(before) != before
    local.write(key, change(before))
    with pytest.raises(StoreError, match=r"zarr\.json.*(altered|missing)"):
        everything(SegmentReader(local, "", segment))


# ---- hostile tables ------------------------------------------------------------------------------


def forge(content: bytes, meta: Callable[[Any], Any], arrays: Callable[[Any], Any]) -> bytes:
    """Return a table with another content and a digest that fits it."""
    archive = decode_archive(content, "table")
    values, parts = json.loads(json.dumps(archive.meta)), dict(archive.arrays)
    meta(values)
    arrays(parts)
    return encode_archive(archive.kind, values, parts)


def same(values: Any) -> None:
    pass


FORGERIES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "rows": (lambda m: m["spec"].update(n_rows=10**15), same),
    "rows beyond sense": (lambda m: m["spec"].update(n_rows=10**18), same),
    "rows as text": (lambda m: m["spec"].update(n_rows="2100"), same),
    "no rows": (lambda m: m["spec"].update(n_rows=0), same),
    "features": (lambda m: m["spec"].update(n_features=10**15), same),
    "one feature more": (lambda m: m["spec"].update(n_features=D + 1), same),
    "objects": (lambda m: m["spec"].update(dtype="object"), same),
    "another layout": (lambda m: m["spec"].update(layout="csr"), same),
    "no layout": (lambda m: m["spec"].update(layout="../x"), same),
    "more spec": (lambda m: m["spec"].update(more=1), same),
    "no spec": (lambda m: m.pop("spec"), same),
    "spec as list": (lambda m: m.update(spec=[1]), same),
    "obs kind": (lambda m: m["spec"].update(obs=[["age", "pickle"]]), same),
    "obs gone": (lambda m: m["spec"].update(obs=[]), same),
    "path out": (lambda m: m["metadata"].update({"../../x": m["metadata"]["X/words"]}), same),
    "array gone": (lambda m: m["metadata"].pop("X/words"), same),
    "metadata": (lambda m: m.update(metadata=3), same),
    "shape": (lambda m: m["metadata"]["X/words"].update(shape=[3, 10**15]), same),
    "data type": (lambda m: m["metadata"]["X/order"].update(data_type="object"), same),
    "pickle": (lambda m: m["metadata"]["obs/_key"].update(codecs=[{"name": "pickle"}]), same),
    "fewer sizes": (same, lambda a: a.update(sizes=a["sizes"][:-1])),
    "float sizes": (same, lambda a: a.update(sizes=a["sizes"].astype(float))),
    "no checksums": (same, lambda a: a.pop("checksums")),
    "long units": (same, lambda a: a.update(unit_nonzeros=np.zeros(9, np.int64))),
    "negative units": (same, lambda a: a.update(unit_nonzeros=a["unit_nonzeros"] - 10**6)),
    "huge units": (same, lambda a: a.update(unit_nonzeros=a["unit_nonzeros"] + 10**15)),
    "long profile": (same, lambda a: a.update(n_nonzero=np.zeros(99, np.int64))),
    "no profile": (same, lambda a: a.pop("maximum")),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_decode__forged_tables_are_refused(local: LocalObjects, forgery: str) -> None:
    content = write(local).encode()
    Segment.decode(forge(content, same, same), "table")
    with pytest.raises(StoreError, match=r"^table: expected"):
        Segment.decode(forge(content, *FORGERIES[forgery]), "table")


@pytest.mark.parametrize("cut", [0, 10, -1])
def test_decode__truncated_or_altered_tables_are_refused(local: LocalObjects, cut: int) -> None:
    content = write(local).encode()
    for damaged in (content[:cut], content[:100] + b"\xff" + content[101:]):
        with pytest.raises(StoreError, match=r"^table: expected"):
            Segment.decode(damaged, "table")


def test_decode__a_model_is_no_segment() -> None:
    with pytest.raises(StoreError, match="segment"):
        Segment.decode(encode_archive("BHC", {}, {}), "table")


def test_table__is_small_for_thin_data(local: LocalObjects) -> None:
    X = sp.csr_array((np.ones(3), ([0, 1, 2], [0, 69_999, 5])), shape=(3, 70_000))
    rows = ArrayRows(X)
    spec = spec_of(rows, "compact", ids_kind="integer", obs=())
    segment = write_segment(local, "", rows, spec, mapper=serial_map, scratch=SCRATCH)
    assert len(segment.encode()) < 4 * 70_000
    again = Segment.decode(segment.encode(), "table")
    assert isinstance(again.survey, Survey)
    np.testing.assert_array_equal(again.profile.n_nonzero, segment.profile.n_nonzero)
    np.testing.assert_array_equal(again.profile.maximum, segment.profile.maximum)
