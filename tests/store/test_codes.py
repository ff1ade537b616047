from __future__ import annotations

import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distclust.errors import InputError, StoreError
from distclust.store.checkpoints import CHECKPOINTS, Checkpoints
from distclust.store.codes import (
    Codes,
    HeldCodes,
    StoredCodes,
    read_range,
    spans_between,
)
from distclust.store.objects import MissingObject, checksum
from distclust.store.results import DAY, ResultsStore

RUN = "20260101T000000Z-0a1b2c3d"
BOUNDS = [(0, 0), (0, 5), (5, 6), (6, 6), (6, 6), (6, 20), (20, 31), (31, 31)]  # some are empty
VALUES = np.random.default_rng(0).integers(0, 300, 31, np.int32)


def keep_all(codes: Codes, bounds=BOUNDS, values=VALUES) -> None:
    """Do what workers and driver do, with what travels between them."""
    for span, (start, stop) in enumerate(bounds):
        worker = pickle.loads(pickle.dumps(codes))
        codes.collect(span, worker.keep(span, values[start:stop]))


@pytest.fixture(params=["held", "stored"])
def codes(request, memory_url) -> Codes:
    return HeldCodes() if request.param == "held" else StoredCodes(memory_url, RUN, 3)


@pytest.fixture
def stored(memory_url) -> StoredCodes:
    return StoredCodes(memory_url, RUN, 3)


def test_codes__are_read_back(codes):
    keep_all(codes)
    reader = pickle.loads(pickle.dumps(codes))
    for span, (start, stop) in enumerate(BOUNDS):
        found = reader.read(span)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, VALUES[start:stop])


def test_stored__at_any_place(any_url):
    codes = StoredCodes(any_url, RUN, 3)
    keep_all(codes)
    keep_all(codes)  # tasks may run twice
    np.testing.assert_array_equal(read_range(codes, BOUNDS, 0, 31), VALUES)
    names = {key.removeprefix(f"{CHECKPOINTS}/{RUN}/") for key in codes.objects.list()}
    assert names == {f"codes-3/{span}" for span in range(len(BOUNDS))}


def test_stored__only_names_travel(stored):
    size = len(pickle.dumps(stored))
    keep_all(stored)
    assert stored.keep(0, np.arange(1000)) is None
    assert len(pickle.dumps(stored)) == size < 500


def test_held__what_was_collected_is_not_changed_by_its_maker_or_reader():
    codes, values = HeldCodes(), np.arange(4, dtype=np.int32)
    codes.collect(0, codes.keep(0, values))
    values[:] = 9
    with pytest.raises(ValueError, match="read-only"):
        codes.read(0)[0] = 9
    np.testing.assert_array_equal(codes.read(0), np.arange(4))


@pytest.mark.parametrize(
    ("values", "width"),
    [
        ([], 1),
        ([0, 255], 1),
        ([0, 256], 2),
        ([65535], 2),
        ([65536], 4),
        ([2**31 - 1, -(2**31)], 4),
        ([-1], 4),
    ],
)
def test_stored__no_more_bytes_than_the_largest_code_needs(stored, values, width):
    stored.keep(0, np.array(values, np.int64))
    np.testing.assert_array_equal(stored.read(0), values)
    (key,) = stored.objects.list()
    assert stored.objects.size(key) == 32 + width * len(values)


@pytest.mark.parametrize(
    "values", [[2**31], [-(2**31) - 1], [0.5], [[1, 2]], 3, [True], np.array([2**63], np.uint64)]
)
def test_codes__others_than_32_bit_integers_are_refused(codes, values):
    with pytest.raises(InputError, match="a 32-bit integer for every row"):
        codes.keep(0, np.asarray(values))


# Ranges.


@given(st.data())
def test_read_range__any_rows_of_any_spans(data):
    cuts = sorted(data.draw(st.lists(st.integers(0, 40), max_size=8)))
    bounds = list(zip([0, *cuts], [*cuts, 40], strict=True))
    values = np.arange(40) * 7
    codes = HeldCodes()
    keep_all(codes, bounds, values)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))))
    expected = values[start:stop]
    np.testing.assert_array_equal(read_range(codes, bounds, start, stop), expected)
    few = spans_between(bounds, start, stop)
    np.testing.assert_array_equal(read_range(codes, few, start, stop), expected)
    assert few == {
        span: (a, b)
        for span, (a, b) in enumerate(bounds)
        if set(range(a, b)) & {*range(start, stop)}
    }


def test_read_range__reads_only_spans_that_hold_the_rows(stored):
    keep_all(stored)
    for span in (0, 1, 3, 4, 6, 7):
        stored.objects.delete(f"{stored.prefix}/{span}")
    np.testing.assert_array_equal(read_range(stored, BOUNDS, 5, 20), VALUES[5:20])


@pytest.mark.parametrize(
    "bounds",
    [[], [(0, 9)], [(1, 10)], [(0, 4), (5, 10)], [(0, 5), (4, 10)], {1: (5, 10)}],
)
def test_read_range__spans_that_do_not_cover_the_rows_once_are_refused(bounds):
    codes = HeldCodes()
    pairs = bounds.items() if isinstance(bounds, dict) else enumerate(bounds)
    for span, (start, stop) in pairs:
        codes.collect(span, np.zeros(stop - start, np.int32))
    with pytest.raises(InputError, match="every row in one span"):
        read_range(codes, bounds, 0, 10)


def test_read_range__codes_of_another_number_of_rows_are_refused(codes):
    keep_all(codes)
    bounds = [*BOUNDS[:5], (6, 19), (19, 31)]
    with pytest.raises(StoreError, match=r"span 5: expected codes of 13 rows, got codes of 14"):
        read_range(codes, bounds, 0, 31)


# Damage.


def test_codes__missing_ones_are_refused(codes):
    keep_all(codes)
    with pytest.raises(StoreError, match="span 99"):
        codes.read(99)


def test_stored__missing_says_which(stored):
    with pytest.raises(MissingObject, match=r"codes-3/7: expected codes of span 7 after step 3"):
        stored.read(7)


def test_stored__every_altered_byte_is_found(stored):
    stored.keep(1, np.arange(5))
    key = f"{stored.prefix}/1"
    whole = stored.objects.read(key)
    for i in range(len(whole)):
        stored.objects.write(key, whole[:i], bytes([whole[i] ^ 1]), whole[i + 1 :])
        with pytest.raises(StoreError, match="codes of span 1 after step 3, got an altered"):
            stored.read(1)
    for length in range(len(whole)):
        stored.objects.write(key, whole[:length])
        with pytest.raises(StoreError, match="truncated"):
            stored.read(1)
    stored.objects.write(key, whole, b"x")
    with pytest.raises(StoreError, match="altered"):
        stored.read(1)
    stored.objects.write(key, whole)
    np.testing.assert_array_equal(stored.read(1), np.arange(5))


def test_stored__whole_objects_in_the_wrong_place_are_found(stored):
    stored.keep(1, np.arange(5))
    content = stored.objects.read(f"{stored.prefix}/1")
    other = StoredCodes(stored.objects, RUN, 4)
    stored.objects.write(f"{stored.prefix}/2", content)
    stored.objects.write(f"{other.prefix}/1", content)
    for codes, span in ((stored, 2), (other, 1)):
        with pytest.raises(StoreError, match="altered"):
            codes.read(span)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"dcrc",
        b"else" + bytes([1, 0, 0, 0]) + (5).to_bytes(8, "little") + bytes(5),
        b"dcrc" + bytes([3, 0, 0, 0]) + (1).to_bytes(8, "little") + bytes(3),
        b"dcrc" + bytes([1, 0, 0, 0]) + (6).to_bytes(8, "little") + bytes(5),
    ],
)
def test_stored__well_signed_but_foreign_objects_are_refused(stored, body):
    key = f"{stored.prefix}/1"
    stored.objects.write(key, body, checksum(key.encode(), body))
    with pytest.raises(StoreError, match="after step 3, got a"):
        stored.read(1)


@pytest.mark.parametrize("run", ["../x", "", "a//b"])
def test_stored__runs_that_lead_elsewhere_are_refused(memory_url, run):
    with pytest.raises(StoreError):
        StoredCodes(memory_url, run, 0)


# Beside checkpoints.


def test_remove__only_of_this_step(codes):
    codes.remove()  # nothing there
    keep_all(codes)
    if isinstance(codes, StoredCodes):
        others = [StoredCodes(codes.objects, RUN, step) for step in (2, 33)]
        for other in others:
            keep_all(other)
    codes.remove()
    with pytest.raises(StoreError):
        codes.read(1)
    if isinstance(codes, StoredCodes):
        for other in others:
            np.testing.assert_array_equal(read_range(other, BOUNDS, 0, 31), VALUES)


def test_checkpoints__go_on_beside_codes(stored):
    checkpoints = Checkpoints(stored.objects, RUN)
    keep_all(stored)
    assert checkpoints.latest() is None
    for step in range(5):
        checkpoints.save(step, 1, {"step": step}, {})
    assert checkpoints.latest().meta == {"step": 4}
    np.testing.assert_array_equal(read_range(stored, BOUNDS, 0, 31), VALUES)


@pytest.fixture
def store(memory_url) -> ResultsStore:
    return ResultsStore(memory_url)


@pytest.mark.parametrize("end", ["publish", "abandon"])
def test_codes__go_with_the_run(store, end):
    with store.begin("kind", {}, 0, "f") as draft:
        for step in (1, 2):
            keep_all(StoredCodes(store.url, draft.id, step))
        getattr(draft, end)()
    assert store.objects.list(CHECKPOINTS) == []
    assert store.verify() == []


def test_gc__codes_of_a_run_at_work_stay_and_abandoned_ones_go(store):
    working, abandoned = (store.begin("kind", {}, seed, "f") for seed in range(2))
    for draft in (working, abandoned):
        keep_all(StoredCodes(store.url, draft.id, 1))
    abandoned.close()
    assert store.gc(grace=0, now=time.time() + 2).drafts == (abandoned.id,)
    assert abandoned.id not in "".join(store.objects.list())
    codes = StoredCodes(store.url, working.id, 1)
    np.testing.assert_array_equal(read_range(codes, BOUNDS, 0, 31), VALUES)
    working.close()


@pytest.mark.parametrize("end", ["publish", "abandon"])
def test_gc__codes_of_workers_that_outlived_their_run_go(store, end):
    with store.begin("kind", {}, 0, "f") as draft:
        getattr(draft, end)()
    keep_all(StoredCodes(store.url, draft.id, 1))
    assert store.verify() == []
    store.gc(now=time.time() + 2 * DAY)
    assert store.objects.list(CHECKPOINTS) == []
    assert store.names() == ([draft.id] if end == "publish" else [])
