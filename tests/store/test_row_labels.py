from __future__ import annotations

import pickle

import numpy as np
import pytest
import zarr

from distclust.errors import ConflictError, InputError, StoreError
from distclust.store import row_labels
from distclust.store.changes import Changes
from distclust.store.codes import StoredCodes, spans_between
from distclust.store.results import ResultsStore
from distclust.store.row_labels import (
    LABEL_CHUNK,
    KeptLabels,
    LabelsSpec,
    StoredLabels,
    adopt_labels,
    take_up_chunks,
    write_chunk,
    write_values_chunk,
)
from distclust.store.sealed import seal, unseal
from distclust.store.versions import SEAL, VERSIONS, FileEntry, file_key
from tests.faults import every_fault

N_ROWS = 45
BOUNDS = [(0, 0), (0, 3), (3, 27), (27, 27), (27, 45), (45, 45)]  # across chunks, and empty
CODES = np.random.default_rng(0).integers(0, 50, N_ROWS, np.int32)
LABEL_OF_CODE = np.arange(50) % 7
EXPECTED = LABEL_OF_CODE[CODES]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(row_labels, "LABEL_CHUNK", 10)


@pytest.fixture
def store(memory_url) -> ResultsStore:
    return ResultsStore(memory_url)


def begin(store: ResultsStore, run: str | None = None):
    return store.begin("labels", {}, 0, "fingerprint", run=run)


def publish(store: ResultsStore, values, n_labels: int = 7) -> StoredLabels:
    """Publish labels as they are."""
    with begin(store) as draft:
        spec, place = LabelsSpec(len(values), n_labels), draft.place()
        parts = [values[slice(*spec.chunk_bounds(i))] for i in range(spec.n_chunks)]
        entries = (write_values_chunk(i, place, spec, part) for i, part in enumerate(parts))
        adopt_labels(draft, spec, enumerate(entries))
        version = draft.publish()
    return StoredLabels(store.url, version.id)


def fit(url: str, run: str | None = None) -> str:
    """Publish labels from codes, continuing what was begun, as drivers do."""
    store = ResultsStore(url)
    spec = LabelsSpec(N_ROWS, 7)
    with begin(store, run) as draft:
        if not draft.is_sealed:
            codes = StoredCodes(url, draft.id, 1)
            for span, (start, stop) in enumerate(BOUNDS):
                codes.keep(span, CODES[start:stop])
            missing = take_up_chunks(draft, spec)
            few = (spans_between(BOUNDS, *spec.chunk_bounds(i)) for i in missing)
            tasks = (
                pickle.dumps((i, draft.place(), spec, codes, bounds, LABEL_OF_CODE))
                for i, bounds in zip(missing, few, strict=True)
            )
            entries = (write_chunk(*pickle.loads(task)) for task in tasks)
            adopt_labels(draft, spec, zip(missing, entries, strict=True))
        return draft.publish().id


def test_write_chunk__labels_of_codes_at_any_place(any_url):
    version = fit(any_url)
    labels = StoredLabels(any_url, version)
    np.testing.assert_array_equal(labels.read(0, N_ROWS), EXPECTED)
    store = ResultsStore(any_url)
    assert store.verify() == []
    names = {f"labels/c/{i}" for i in range(5)} | {"labels/zarr.json"}
    assert store.get(version).files.keys() == names


def test_write_chunk__bounds_of_all_spans_do_as_well(store):
    with begin(store) as draft:
        codes = StoredCodes(store.objects, draft.id, 1)
        for span, (start, stop) in enumerate(BOUNDS):
            codes.keep(span, CODES[start:stop])
        spec = LabelsSpec(N_ROWS, 7)
        some = (draft.place(), spec, codes)
        for i in range(spec.n_chunks):
            few = spans_between(BOUNDS, *spec.chunk_bounds(i))
            entry = write_chunk(i, *some, BOUNDS, LABEL_OF_CODE)
            assert entry == write_chunk(i, *some, few, LABEL_OF_CODE)


@pytest.mark.parametrize(
    ("n_labels", "dtype"),
    [(0, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "int32")],
)
def test_labels__of_the_narrowest_type(store, n_labels, dtype):
    values = np.array([0, n_labels - 1, 0]) if n_labels else np.empty(0, int)
    labels = publish(store, values, n_labels)
    assert (labels.dtype, labels.n_labels, labels.n_rows) == (dtype, n_labels, len(values))
    np.testing.assert_array_equal(labels.read(0, len(values)), values)


@pytest.mark.parametrize("n_rows", [0, 1, 9, 10, 11, 20, 45])
def test_labels__zarr_reads_the_same(tmp_path, n_rows):
    store = ResultsStore(tmp_path)
    values = np.arange(n_rows) * 7 % 1000
    labels = publish(store, values, 1000)
    array = zarr.open_array(tmp_path / VERSIONS / labels.version_id / "labels", mode="r")
    assert array.dtype == np.uint16
    assert array.attrs["n_labels"] == 1000
    np.testing.assert_array_equal(array[:], values)
    np.testing.assert_array_equal(labels.read(0, n_rows), values)


def test_labels__chunks_as_large_as_they_are(tmp_path, monkeypatch):
    monkeypatch.undo()
    n_rows = 2 * LABEL_CHUNK + 5
    values = np.random.default_rng(0).integers(0, 40, n_rows)
    labels = publish(ResultsStore(tmp_path), values, 40)
    array = zarr.open_array(tmp_path / VERSIONS / labels.version_id / "labels", mode="r")
    assert array.chunks == (LABEL_CHUNK,)
    np.testing.assert_array_equal(array[:], values)
    assert labels.n_chunks == 3
    assert labels.chunk_bounds(2) == (2 * LABEL_CHUNK, n_rows)


def test_stored__chunks_and_ranges(store):
    labels = publish(store, EXPECTED)
    labels = pickle.loads(pickle.dumps(labels))
    assert labels.n_chunks == 5
    assert [labels.chunk_bounds(i) for i in (0, 4)] == [(0, 10), (40, 45)]
    parts = [labels.read_chunk(i) for i in range(5)]
    assert [len(part) for part in parts] == [10, 10, 10, 10, 5]
    np.testing.assert_array_equal(np.concatenate(parts), EXPECTED)
    for start in range(N_ROWS + 1):
        for stop in range(start, N_ROWS + 1):
            np.testing.assert_array_equal(labels.read(start, stop), EXPECTED[start:stop])


def test_stored__rows_and_chunks_that_are_not_there(store):
    labels = publish(store, EXPECTED)
    for start, stop in ((-1, 3), (0, 46), (5, 4)):
        with pytest.raises(InputError, match="rows from 0 to 45"):
            labels.read(start, stop)
    for index in (-1, 5):
        with pytest.raises(InputError, match="one of 5 chunks"):
            labels.read_chunk(index)


def test_stored__only_names_travel(store):
    labels = publish(store, EXPECTED)
    size = len(pickle.dumps(labels))
    labels.read(0, 1)
    assert len(pickle.dumps(labels)) == size < 500


def test_stored__reads_only_the_chunks_that_hold_the_rows(store):
    labels = publish(store, EXPECTED)
    for i in (0, 3, 4):
        store.objects.delete(f"{VERSIONS}/{labels.version_id}/labels/c/{i}")
    np.testing.assert_array_equal(labels.read(10, 30), EXPECTED[10:30])


# Refusals.


@pytest.mark.parametrize(("n_rows", "n_labels"), [(-1, 2), (3, -1), (3, 2**31 + 1)])
def test_spec__numbers_that_cannot_be(n_rows, n_labels):
    with pytest.raises(InputError, match="numbers from 0 on"):
        LabelsSpec(n_rows, n_labels)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.zeros(4, int), "5 integers"),
        (np.zeros((5, 1), int), "5 integers"),
        (np.zeros(5), "5 integers"),
        (np.array([0, 0, 0, 0, 7]), "numbers from 0 to 6, got 0 to 7"),
        (np.array([0, 0, 0, 0, -1]), "numbers from 0 to 6, got -1 to 0"),
    ],
)
def test_write_values__others_than_labels_are_refused(store, values, expected):
    with begin(store) as draft:
        with pytest.raises(InputError, match=f"rows 40 to 45: expected {expected}"):
            write_values_chunk(4, draft.place(), LabelsSpec(N_ROWS, 7), values)
        assert store.objects.list(VERSIONS) == []


@pytest.mark.parametrize("code", [-1, 50])
def test_write_chunk__codes_without_a_label_are_refused(store, code):
    with begin(store) as draft:
        codes = StoredCodes(store.objects, draft.id, 1)
        codes.keep(0, np.array([0, code]))
        place, spec = draft.place(), LabelsSpec(2, 7)
        with pytest.raises(InputError, match="codes of rows 0 to 2: expected numbers from 0 to 49"):
            write_chunk(0, place, spec, codes, [(0, 2)], LABEL_OF_CODE)


def test_adopt__not_all_chunks(store):
    with begin(store) as draft, pytest.raises(InputError, match="expected 5 chunks, got 1"):
        adopt_labels(draft, LabelsSpec(N_ROWS, 7), [(3, FileEntry.of(b""))])


def test_adopt__chunks_that_nobody_wrote_are_not_published(store):
    with begin(store) as draft:
        adopt_labels(draft, LabelsSpec(5, 7), [(0, FileEntry.of(b"x"))])
        with pytest.raises(StoreError, match="labels/c/0"):
            draft.publish()
    assert store.current() is None


def test_stored__a_version_without_labels(store):
    with begin(store) as draft:
        draft.write("other", b"x")
        version = draft.publish()
    with pytest.raises(InputError, match="a version without them"):
        StoredLabels(store.url, version.id).read(0, 0)
    with pytest.raises(StoreError):
        StoredLabels(store.url, "20260101T000000Z-0a1b2c3d").n_rows  # noqa: B018


# Damage.


@pytest.mark.parametrize(
    ("damage", "got"),
    [
        (lambda content: content[:-1], "truncated"),
        (lambda content: content + b"x", "altered"),
        (lambda content: content[:9] + bytes([content[9] ^ 1]) + content[10:], "altered"),
        (None, "missing"),
    ],
)
def test_damage__of_a_chunk_is_found(tmp_path, damage, got):
    store = ResultsStore(tmp_path)
    labels = publish(store, EXPECTED)
    key = f"{VERSIONS}/{labels.version_id}/labels/c/2"
    if damage:
        store.objects.write(key, damage(store.objects.read(key)))
    else:
        store.objects.delete(key)
    for action in (lambda: labels.read_chunk(2), lambda: labels.read(29, 31)):
        with pytest.raises(StoreError, match=f"labels/c/2: expected .*, got {got}"):
            action()
    np.testing.assert_array_equal(labels.read(0, 20), EXPECTED[:20])
    assert [finding.key for finding in store.verify()] == [key]


def test_damage__swapped_chunks_are_found(store):
    labels = publish(store, EXPECTED)
    first, second = (f"{VERSIONS}/{labels.version_id}/labels/c/{i}" for i in (0, 1))
    contents = store.objects.read(first), store.objects.read(second)
    store.objects.write(first, contents[1])
    store.objects.write(second, contents[0])
    with pytest.raises(StoreError, match="labels/c/0"):
        labels.read(0, 10)


def test_damage__of_the_metadata_is_found(store):
    labels = publish(store, EXPECTED)
    key = f"{VERSIONS}/{labels.version_id}/labels/zarr.json"
    store.objects.write(key, store.objects.read(key).replace(b"45", b"35"))
    with pytest.raises(StoreError, match=r"zarr\.json: expected the content that was sealed"):
        labels.read(0, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"45", b"55", "a seal of 6 chunks, got 5 of them"),
        (b"45", b"%d" % 2**52, "a seal of .* chunks"),
        (b'"uint8"', b'"float64"', "an array of labels"),
        (b'"n_labels": 7', b'"n_labels": "7"', "an array of labels"),
        (b'"n_labels"', b'"others"', "an array of labels"),
        (b"{", b"[", "a JSON object"),
    ],
)
def test_damage__well_sealed_but_hostile_metadata(store, old, new, message):
    labels = publish(store, EXPECTED)
    folder = f"{VERSIONS}/{labels.version_id}"
    document = store.objects.read(f"{folder}/labels/zarr.json").replace(old, new)
    store.objects.write(f"{folder}/labels/zarr.json", document)
    values = unseal(store.objects.read(f"{folder}/{SEAL}"), "distclust-version", "")
    values["files"]["labels/zarr.json"] = FileEntry.of(document).as_json()
    store.objects.write(f"{folder}/{SEAL}", seal("distclust-version", values))
    with pytest.raises(StoreError, match=message):
        labels.read(0, 1)


# Kills, and processes that come too late.


def run_again(place: str) -> None:
    """Publish unless that happened, continuing what was begun."""
    store = ResultsStore(place)
    run = store.find_run("labels", {}, 0, "fingerprint")
    if run is not None or not store.names():
        fit(place, run)


def check_labels(place: str, is_done: bool) -> None:
    store = ResultsStore(place)
    assert store.verify() == []
    assert len(store.names()) == 1 or not (is_done or store.names())
    for name in store.names():
        np.testing.assert_array_equal(StoredLabels(place, name).read(0, N_ROWS), EXPECTED)
    if is_done:
        assert store.objects.list("checkpoints") == []


@pytest.mark.parametrize("fault", ["kill", "disk full"])
def test_labels__faults_leave_nothing_or_all(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(row_labels, "LABEL_CHUNK", 30)  # fewer points
    n_points = every_fault(
        tmp_path,
        prepare=lambda place: None,
        action=run_again,
        check=check_labels,
        fault=fault,
    )
    assert n_points >= 20


def test_labels__only_what_is_not_whole_is_written_again(store):
    spec = LabelsSpec(N_ROWS, 7)
    parts = [EXPECTED[slice(*spec.chunk_bounds(i))] for i in range(5)]
    with begin(store) as killed:
        entries = [write_values_chunk(i, killed.place(), spec, parts[i]) for i in range(4)]
        killed.adopt(spec.chunk_name(0), entries[0])  # of the others, the answers were lost
    for i, content in ((1, b"damaged"), (3, b"")):
        store.objects.write(file_key(killed.id, spec.chunk_name(i)), content)
    with begin(store, killed.id) as draft:
        assert take_up_chunks(draft, spec) == [1, 3, 4]
        assert take_up_chunks(draft, spec) == [1, 3, 4]
    version = fit(store.url, killed.id)
    np.testing.assert_array_equal(StoredLabels(store.url, version).read(0, 45), EXPECTED)


def test_labels__a_worker_of_a_process_that_was_replaced_writes_nothing(store):
    spec = LabelsSpec(5, 7)
    with begin(store) as sleeper:
        place = sleeper.place()
    with begin(store, sleeper.id) as draft:
        entry = write_values_chunk(0, draft.place(), spec, EXPECTED[:5])
        with pytest.raises(ConflictError, match="another or none"):
            write_values_chunk(0, place, spec, EXPECTED[5:10])
        with pytest.raises(ConflictError, match="another took over"):
            adopt_labels(sleeper, spec, [(0, entry)])
        adopt_labels(draft, spec, [(0, entry)])
        version = draft.publish()
    for late in (place, draft.place()):
        with pytest.raises(ConflictError):
            write_values_chunk(0, late, spec, EXPECTED[5:10])
    np.testing.assert_array_equal(StoredLabels(store.url, version.id).read(0, 5), EXPECTED[:5])
    assert store.verify() == []


# ---- rows of an earlier generation ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("deleted", "n_labels", "taken"),
    [([], 7, [0, 1, 2, 3]), ([21, 30], 7, [0, 1]), ([0], 7, []), ([], 300, [])],
    ids=["all kept", "some deleted", "all moved", "of another type"],
)
def test_kept__chunks_of_rows_that_did_not_move_are_taken_over(store, deleted, n_labels, taken):
    known = publish(store, EXPECTED[:44])
    n_after = 44 - len(deleted) + 20
    kept = KeptLabels(known, Changes(44, n_after, np.array(deleted, np.int64)))
    spec = LabelsSpec(n_after, n_labels)
    with store.begin("labels", {"later": True}, 0, "fingerprint") as draft:
        kept.take_over(draft, spec)
        missing = take_up_chunks(draft, spec)
        assert sorted({*range(spec.n_chunks)} - {*missing}) == taken
        labels = np.concatenate([kept.read(0, n_after), np.arange(20) % 7])
        np.testing.assert_array_equal(labels[:-20], np.delete(EXPECTED[:44], deleted))
        parts = (labels[slice(*spec.chunk_bounds(i))] for i in missing)
        entries = [
            (i, write_values_chunk(i, draft.place(), spec, part))
            for i, part in zip(missing, parts, strict=True)
        ]
        adopt_labels(draft, spec, entries)
        version = draft.publish()
    np.testing.assert_array_equal(StoredLabels(store.url, version.id).read(0, n_after), labels)
    assert store.verify() == []
