"""Shards of an index: what they hold, as words and back, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from distclust.errors import StoreError
from distclust.retrieval import shards
from distclust.retrieval.prior import BinaryPrior
from tests.retrieval.corpora import draw, draw_any

seeds = st.integers(0, 2**32 - 1)


def shard_of(rows: np.ndarray, *cuts: int) -> shards.Shard:
    blocks = np.split(rows, cuts)
    return shards.build(map(scipy.sparse.csr_array, blocks), len(rows), rows.shape[1])


def rows_of(shard: shards.Shard) -> np.ndarray:
    """All rows of a shard, feature by feature, in plain loops."""
    rows = np.zeros((shard.n_rows, shard.n_features), np.uint8)
    for t, column in enumerate(shard.columns.tolist()):
        for row in shard.rows[shard.starts[t] : shard.starts[t + 1]].tolist():
            assert rows[row, column] == 0
            rows[row, column] = 1
    for column, place in zip(shard.bit_columns.tolist(), shard.bit_places.tolist(), strict=True):
        for row in range(shard.n_rows):
            if shard.bits[row, place // 8] >> (7 - place % 8) & 1:
                assert rows[row, column] == 0
                rows[row, column] = 1
    return rows


def words_and_facts(shard: shards.Shard) -> tuple[np.ndarray, dict]:
    words, facts = shards.to_words(shard)
    return words.copy(), facts


@given(seeds)
def test_build__holds_the_rows_whatever_their_blocks(seed):
    rng = np.random.default_rng(seed)
    rows = draw_any(rng, int(rng.integers(1, 70)), int(rng.choice([1, 8, 30])))
    whole = shard_of(rows)
    np.testing.assert_array_equal(rows_of(whole), rows)
    assert whole.n_ones == rows.sum()
    np.testing.assert_array_equal(whole.count_ones(), rows.sum(axis=0, dtype=np.int64))
    cuts = np.sort(rng.integers(0, len(rows) + 1, 2)).tolist()
    assert (
        shards.to_words(shard_of(rows, *cuts))[0].tobytes() == shards.to_words(whole)[0].tobytes()
    )


def test_build__keeps_frequent_features_as_bits_the_most_frequent_first():
    rows = np.zeros((16, 6), np.uint8)
    for column, n_ones in enumerate([1, 2, 3, 16, 0, 3]):
        rows[:n_ones, column] = 1
    shard = shard_of(rows)
    assert shard.columns.tolist() == [0]  # less than one row in eight
    assert shard.bit_columns.tolist() == [1, 2, 3, 5]
    assert shard.bit_places.tolist() == [3, 1, 0, 2]


@pytest.mark.parametrize("n_rows", [65_535, 65_536])
def test_build__row_numbers_take_sixteen_bits(n_rows):
    ones = scipy.sparse.csr_array(
        (np.ones(3, bool), ([0, 1, n_rows - 1], [1, 1, 1])), shape=(n_rows, 2)
    )
    shard = shards.build([ones], n_rows, 2)
    assert shard.rows.tolist() == [0, 1, n_rows - 1]
    again = shards.from_words(*shards.to_words(shard), "test")
    assert np.flatnonzero(rows_of(again)[:, 1]).tolist() == [0, 1, n_rows - 1]


@given(seeds)
def test_words__become_the_same_shard_again(seed):
    rng = np.random.default_rng(seed)
    rows = draw_any(rng, int(rng.integers(1, 60)), int(rng.choice([1, 9, 25])))
    shard = shard_of(rows)
    words, facts = shards.to_words(shard)
    again = shards.from_words(words, facts, "test")
    for name in ("columns", "starts", "rows", "bit_columns", "bit_places", "bits"):
        before, after = getattr(shard, name), getattr(again, name)
        assert before.dtype == after.dtype
        np.testing.assert_array_equal(before, after)
        assert after.flags.aligned
    assert shards.to_words(again)[0].tobytes() == words.tobytes()


def test_from_words__refuses_what_loops_could_not_follow(rng):
    rows = draw(rng, 60, 40, "falling")
    shard = shard_of(rows)

    def altered(name: str, position: int, value: int) -> tuple[np.ndarray, dict]:
        words, facts = words_and_facts(shard)
        at, n_words, dtype, shape = facts["parts"][name]
        part = words[at : at + n_words].view(np.uint8)[
            : int(np.prod(shape)) * np.dtype(dtype).itemsize
        ]
        part.view(dtype)[position] = value
        return words, facts

    n_lists = len(shard.columns)
    wrong = [
        ("rows", 0, 60),
        ("rows", -1, 65_535),
        ("starts", 0, 1),
        ("starts", 1, -1),
        ("starts", 2, 10**9),
        ("starts", n_lists, len(shard.rows) + 1),
        ("columns", 0, -1),
        ("columns", n_lists - 1, 40),
        ("columns", 1, int(shard.columns[0])),
        ("bit_columns", -1, 40),
        ("bit_places", 0, len(shard.bit_columns)),
        ("bit_places", 0, int(shard.bit_places[1])),
    ]
    for name, position, value in wrong:
        with pytest.raises(StoreError, match="lists that do not fit together"):
            shards.from_words(*altered(name, position, value), "test")


def test_resting__belongs_to_the_prior_and_the_size(rng):
    rows = draw(rng, 50, 30, "falling")
    shard = shard_of(rows)
    ones = rows.sum(axis=0, dtype=np.int64)
    for kappa, smoothing in ((2.0, 0.0), (0.1, 0.0), (2.0, 0.5)):
        prior = BinaryPrior(50, ones, kappa, smoothing)
        for size in (1, 2, 7, 1):
            resting = shard.resting(prior, size)
            np.testing.assert_allclose(resting.exact, rows @ prior.base(size).weights, atol=1e-12)
            by_lists = rows[:, shard.columns] @ prior.base(size).weights[shard.columns]
            np.testing.assert_allclose(resting.by_lists, by_lists, rtol=1e-6, atol=1e-12)
            assert shard.resting(prior, size) is resting
    assert len(shard._resting) == 4


def test_caps__are_the_most_that_so_many_bits_can_add(rng):
    for n_bits in (0, 1, 5, 8, 30):
        weights = rng.normal(size=n_bits)
        size = shards._group_size(n_bits)
        groups = [weights[g * size : (g + 1) * size] for g in range(4)]
        caps = shards._caps(weights)
        for pair, cap in zip(((0, 1), (2, 3)), caps, strict=True):
            for i in range(size + 1):
                for j in range(size + 1):
                    most = sum(
                        np.sort(np.maximum(groups[g], 0))[::-1][:count].sum()
                        for g, count in zip(pair, (i, j), strict=True)
                    )
                    found = cap[i * (size + 1) + j]
                    assert most <= found <= most + 1e-6 * (1 + most)


def test_counts__are_how_many_bits_a_row_has_in_every_group(rng):
    rows = draw(rng, 30, 21, "any")
    shard = shard_of(rows)
    n_bits = len(shard.bit_columns)
    size = shards._group_size(n_bits)
    by_place = np.zeros((30, 4 * size), int)
    by_place[:, shard.bit_places] = rows[:, shard.bit_columns]
    counts = by_place.reshape(30, 4, size).sum(axis=2)
    first, second = shard._counts
    assert first.tolist() == (counts[:, 0] * (size + 1) + counts[:, 1]).tolist()
    assert second.tolist() == (counts[:, 2] * (size + 1) + counts[:, 3]).tolist()
