from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from distclust import seeding
from distclust.errors import InputError


def test_generator__same_names_same_stream_other_names_other_stream():
    names = [(0,), (1,), (0, 0), (0, 1), (0, "1"), (0, "a"), (0, "a", 1), (0, 1, "a"), (2**40,)]
    draws = {name: seeding.generator(*name).integers(2**63) for name in names}
    assert len(set(draws.values())) == len(names)
    for name, draw in draws.items():
        assert seeding.generator(*name).integers(2**63) == draw
    assert seeding.generator(0, np.int64(1)).integers(2**63) == draws[0, 1]


def test_generator__numbers_stay_the_same_between_releases():
    assert seeding.generator(7, "chain", 3).integers(1000, size=4).tolist() == [527, 58, 59, 157]


def test_row_keys__depend_on_the_id_only():
    ids = np.arange(1000)
    keys = seeding.row_keys(ids)
    assert keys.dtype == np.uint64
    assert len(set(keys.tolist())) == 1000
    np.testing.assert_array_equal(seeding.row_keys(ids[::-1].astype(np.int32)), keys[::-1])
    texts = np.array(["a", "bc", "é"])
    np.testing.assert_array_equal(seeding.row_keys(texts[1:]), seeding.row_keys(texts)[1:])
    np.testing.assert_array_equal(
        seeding.row_keys(texts.astype("<U9")), seeding.row_keys(texts.astype(object))
    )


MIXED = ["a", "é", "a\0", "", 0.1, 1e16, 1e300, float("nan"), None, True, 3, 10**25, b"ab"]
MIXED += [np.float32(0.1), np.str_("x"), np.int64(4), np.datetime64("2024-01-02")]


@pytest.mark.parametrize("row_id", MIXED)
def test_row_keys__objects_hash_as_numpy_writes_them(row_id):
    ids = np.empty(1, object)
    ids[0] = row_id
    np.testing.assert_array_equal(seeding.row_keys(ids), seeding.row_keys(ids.astype(str)))


def test_row_keys__stay_the_same_between_releases():
    ids = np.array(["a", "é", 0.5, None], object)
    keys = [
        3_405_396_810_240_292_928,
        3_394_012_004_367_669_963,
        237_726_477_914_003_235,
        25_992_921_519_320_915,
    ]
    assert seeding.row_keys(ids).tolist() == keys


def test_row_keys__one_long_id_does_not_make_all_long():
    ids = np.array(["a"] * 5000 + ["b" * 50_000], object)
    tracemalloc.start()
    seeding.row_keys(ids)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6  # 1 GB as an array of text


@pytest.mark.statistical
def test_row_hashes__are_uniform_and_unrelated_between_paths():
    keys = seeding.row_keys(np.arange(40_000))
    first, second = (seeding.row_hashes(3, keys, path) / 2**64 for path in ("l", "r"))
    for hashes in (first, second):
        counts = np.histogram(hashes, 20, (0, 1))[0]
        # 20 binomial counts around 2000; 5 standard errors of 43.6
        assert np.abs(counts - 2000).max() < 5 * 43.6
    # correlation of independent numbers: standard error 1 / sqrt(40,000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / 200


def test_row_hashes__change_with_seed_and_path():
    keys = seeding.row_keys(np.arange(10))
    variants = [
        seeding.row_hashes(0, keys),
        seeding.row_hashes(1, keys),
        seeding.row_hashes(0, keys, 0),
        seeding.row_hashes(0, keys, 0, 1),
    ]
    assert len({tuple(v.tolist()) for v in variants}) == 4
    np.testing.assert_array_equal(seeding.row_hashes(0, keys[3:], 0), variants[2][3:])


def test_check_seed__takes_what_scikit_learn_takes():
    assert seeding.check_seed(5) == seeding.check_seed(np.int32(5)) == 5
    assert seeding.check_seed(None) != seeding.check_seed(None)
    for make in (np.random.default_rng, np.random.RandomState):
        assert seeding.check_seed(make(1)) == seeding.check_seed(make(1))
        one = make(1)
        assert seeding.check_seed(one) != seeding.check_seed(one)


@pytest.mark.parametrize("bad", [-1, 1.5, "a", True])
def test_check_seed__refuses_the_rest(bad):
    with pytest.raises(InputError, match="random_state"):
        seeding.check_seed(bad)
