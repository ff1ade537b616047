"""Samples by hashes: limits, candidates, and what comes together from parts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.sparse

from distclust.seeding import path_salt, row_hashes, row_keys
from distclust.trees.sampling import ALL, Candidates, Wanted, hash_limit, join, size_at_least

N_ROWS = 300


def candidates(nodes, hashes, rows=None):
    nodes = np.asarray(nodes, np.int64)
    hashes = np.asarray(hashes, np.uint64)
    positions = np.arange(len(nodes))
    rows = positions[:, None] * 10 if rows is None else rows
    return Candidates(nodes, hashes, hashes + np.uint64(7), positions, rows)


# ---- limits ------------------------------------------------------------------------------------


def test_hash_limit__lets_everything_pass_where_a_large_part_is_wanted():
    assert hash_limit(5, 0.0) == ALL
    assert hash_limit(5, -1.0) == ALL
    assert hash_limit(100, 100.0) == ALL
    assert hash_limit(100, 330.0) == ALL  # 168 of them would pass
    assert hash_limit(100, 340.0) < ALL


def test_hash_limit__is_the_share_with_six_deviations():
    for want, size in ((1, 1000.0), (256, 1e6), (4096, 1e9)):
        share = int(hash_limit(want, size)) / 2**64
        assert share * size == pytest.approx(want + 6 * math.sqrt(want) + 8)


def test_hash_limit__suffices_and_is_not_much_more():
    keys = row_keys(np.arange(20_000))
    for i in range(40):
        n_below = int((row_hashes(i, keys, "x") <= hash_limit(256, 20_000.0)).sum())
        assert 256 <= n_below <= 256 + 12 * 16 + 16


def test_size_at_least__is_below_the_share_but_not_by_much():
    assert size_at_least(1000, 100, 100) == pytest.approx(800.0)
    assert size_at_least(1000, 4, 100) == pytest.approx(10.0)  # a quarter of the share
    assert size_at_least(1000, 0, 100) == 0.0
    sizes = [size_at_least(10**6, k, 4096) for k in range(1, 4097)]
    assert (np.diff(sizes) > 0).all()
    assert all(size < 10**6 * k / 4096 for k, size in enumerate(sizes, 1))


def test_limits__together_leave_few_nodes_short():
    """A node of unknown size, of which 20 rows of a sample of 4,096 were seen."""
    rng, n_rows, want = np.random.default_rng(0), 10**7, 256
    sizes = n_rows * rng.gamma(21.0, size=200_000) / 4096
    share = int(hash_limit(want, size_at_least(n_rows, 20, 4096))) / 2**64
    n_passing = rng.poisson(share * sizes)
    assert 1e-5 < np.mean(n_passing < want) < 3e-4
    assert np.mean(n_passing) < 3 * want


# ---- candidates --------------------------------------------------------------------------------


def test_trimmed__keeps_the_smallest_hashes_of_every_node():
    rng = np.random.default_rng(0)
    nodes = rng.integers(0, 4, 60)
    hashes = rng.permutation(60)
    found = candidates(nodes, hashes).trimmed(np.array([3, 0, 100, 1]))
    expected = []
    for node, want in ((0, 3), (2, 100), (3, 1)):
        mine = sorted((hashes[i], i) for i in np.flatnonzero(nodes == node))[:want]
        expected += [(node, h, i) for h, i in mine]
    assert list(zip(found.nodes, found.hashes, found.positions, strict=True)) == expected
    np.testing.assert_array_equal(found.rows[:, 0], 10 * found.positions)
    np.testing.assert_array_equal(found.keys, found.hashes + np.uint64(7))


def test_trimmed__ties_go_by_position():
    same = Candidates(
        np.zeros(3, np.int64),
        np.full(3, 5, np.uint64),
        np.full(3, 9, np.uint64),
        np.array([8, 2, 4]),
        np.arange(3)[:, None],
    )
    assert same.trimmed(np.array([2])).positions.tolist() == [2, 4]


def test_trimmed__of_nothing_is_nothing():
    nothing = candidates([], [], np.empty((0, 2)))
    assert len(nothing.trimmed(np.array([5]))) == 0
    assert len(nothing.of(3)) == 0


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
def test_join__of_trimmed_parts_is_the_trimmed_whole(form):
    """A sample does not depend on how rows are cut into parts."""
    rng = np.random.default_rng(1)
    nodes, hashes = rng.integers(0, 3, 90), rng.permutation(90).astype(np.uint64)
    values = rng.integers(0, 5, (90, 4))
    whole = Candidates(nodes, hashes, hashes, np.arange(90), form(values))
    want = np.array([5, 40, 1])
    expected = whole.trimmed(want)
    for cuts in ([30], [1, 2, 80], list(range(1, 90))):
        bounds = [0, *cuts, 90]
        parts = [whole.take(np.arange(a, b)).trimmed(want) for a, b in itertools.pairwise(bounds)]
        found = join(parts).trimmed(want)
        for name in ("nodes", "hashes", "keys", "positions"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        if form is np.asarray:
            np.testing.assert_array_equal(found.rows, expected.rows)
        else:
            assert found.rows.format == "csr"
            np.testing.assert_array_equal(found.rows.toarray(), expected.rows.toarray())


def test_of__takes_one_node_and_row_order_goes_by_position():
    found = candidates([2, 0, 2, 1, 2], [5, 1, 9, 2, 1]).trimmed(np.full(3, 9))
    assert found.of(2).hashes.tolist() == [1, 5, 9]
    assert found.of(2).in_row_order().positions.tolist() == [0, 2, 4]
    assert found.of(1).positions.tolist() == [3]


@pytest.mark.parametrize("first_node", [0, 2**16 - 2])
@pytest.mark.parametrize("n_hashes", [3, 2**62])
def test_trimmed__orders_by_node_hash_key_and_position(first_node, n_hashes):
    rng = np.random.default_rng(8)
    n = 500
    held = Candidates(
        first_node + rng.integers(0, 4, n),
        rng.integers(0, n_hashes, n).astype(np.uint64),
        rng.integers(0, 5, n).astype(np.uint64),
        rng.permutation(n),
        np.arange(n)[:, None],
    )
    want = np.full(first_node + 4, 60)
    order = np.lexsort((held.positions, held.keys, held.hashes, held.nodes))
    expected = [k for k in range(4) for k in order[held.nodes[order] == first_node + k][:60]]
    assert held.trimmed(want).rows[:, 0].tolist() == expected


# ---- wanted ------------------------------------------------------------------------------------


def wanted(want, limits=None):
    salts = np.array([path_salt(3, f"/{k}") for k in range(len(want))])
    limits = np.full(len(want), ALL) if limits is None else np.array(limits, np.uint64)
    return Wanted(np.array(want), limits, salts)


def test_wanted__candidates_are_the_smallest_hashes_of_seed_path_and_key():
    rng = np.random.default_rng(2)
    keys = row_keys(np.array([f"row {i}" for i in range(N_ROWS)]))
    nodes = rng.integers(0, 3, N_ROWS)
    block = rng.integers(0, 9, (N_ROWS, 2))
    asked = wanted([7, 0, 20])
    found = asked.candidates(block, nodes, keys, 1000).trimmed(asked.want)
    for node, want in ((0, 7), (1, 0), (2, 20)):
        mine = np.flatnonzero(nodes == node)
        order = np.argsort(row_hashes(3, keys[mine], f"/{node}"))[:want]
        np.testing.assert_array_equal(found.of(node).positions, 1000 + mine[order])
        np.testing.assert_array_equal(found.of(node).rows, block[mine[order]])
        np.testing.assert_array_equal(found.of(node).keys, keys[mine[order]])


def test_wanted__nothing_above_the_limit_is_handed_on():
    keys = row_keys(np.arange(N_ROWS))
    nodes = np.zeros(N_ROWS, np.int64)
    hashes = row_hashes(3, keys, "/0")
    limit = np.sort(hashes)[4]
    found = wanted([100], [limit]).candidates(np.zeros((N_ROWS, 1)), nodes, keys, 0)
    assert set(found.hashes) == set(np.sort(hashes)[:5])


def test_sample__is_the_same_set_of_ids_in_any_order_of_rows():
    ids = np.array([f"id {i}" for i in range(N_ROWS)])
    order = np.random.default_rng(4).permutation(N_ROWS)
    chosen = []
    for these in (ids, ids[order]):
        keys = row_keys(these)
        block, nodes = np.arange(N_ROWS)[:, None], np.zeros(N_ROWS, np.int64)
        found = wanted([25]).candidates(block, nodes, keys, 0).trimmed(np.array([25]))
        chosen.append(these[found.positions].tolist())
    assert chosen[0] == chosen[1]  # in the same order, too


@pytest.mark.statistical
def test_sample__every_row_is_as_likely_as_any_other():
    """Counts over seeds and paths, within five standard errors of even."""
    keys = row_keys(np.arange(40))
    counts = np.zeros(40)
    n_samples = 2000
    for i in range(n_samples):
        counts[np.argsort(row_hashes(i, keys, f"/{i % 7}"))[:10]] += 1
    error = math.sqrt(n_samples * 0.25 * 0.75)
    assert np.abs(counts - n_samples / 4).max() < 5 * error
