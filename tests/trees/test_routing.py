"""Routers: the way of a row through the filters, by hand and row by row."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from distclust.families import Bernoulli
from distclust.trees.filters import Filter
from distclust.trees.routing import ROOT, Router, Share

N_FEATURES = 6
FAMILY = Bernoulli(alpha=1.0, beta=1.0, n_features=N_FEATURES)
SEED = 11


def filter_between(*features):
    """Outcome i is a cluster of rows with ones in feature `features[i]` only."""
    stats = np.zeros((len(features), 1 + N_FEATURES))
    stats[:, 0] = 20.0
    for i, feature in enumerate(features):
        stats[i, 1 + feature] = 20.0
    return Filter(FAMILY, stats, np.zeros(len(features)), np.arange(len(features) + 1))


def caterpillar(n):
    """Merges of n places: ((0, 1), 2), 3 ..."""
    return np.array([[0 if i == 0 else n + i - 1, i + 1] for i in range(n - 1)]).reshape(-1, 2)


def two_level_router():
    """The root divides features 0, 1, 2; its second child divides 3 and 4."""
    first = Router.start(SEED).divided({ROOT: Share(filter_between(0, 1, 2), caterpillar(3))})
    return first.divided({2: Share(filter_between(3, 4), caterpillar(2))})


def test_divided__numbers_and_names_children():
    router = two_level_router()
    assert router.paths == ("", "/0", "/1", "/2", "/1/0", "/1/1")
    assert router.splits[2].children.tolist() == [4, 5]
    assert router.is_split.tolist() == [True, False, True, False, False, False]
    right, left = (
        Share(filter_between(0, 1), caterpillar(2)),
        Share(filter_between(4), caterpillar(1)),
    )
    both = router.divided({3: right, 1: left})
    assert both.paths[6:] == ("/0/0", "/2/0", "/2/1")


def test_place__goes_filter_by_filter():
    router = two_level_router()
    rows = np.eye(N_FEATURES, dtype=np.uint8)
    rows[3:5, 1] = 1  # ones in 1 and 3, in 1 and 4
    assert router.place(rows)[:5].tolist() == [1, 5, 3, 4, 5]  # ties go right


def test_place__starts_where_rows_are():
    router = two_level_router()
    rows = np.eye(N_FEATURES, dtype=np.uint8)[[3, 3, 3, 3]]
    nodes = np.array([1, 2, 3, 5], np.int32)
    assert router.place(rows, nodes=nodes).tolist() == [1, 4, 3, 5]
    assert nodes.tolist() == [1, 2, 3, 5]  # not written into


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array])
def test_place__does_not_depend_on_the_company(form, seed):
    router = two_level_router()
    rows = np.random.default_rng(seed).integers(0, 2, (80, N_FEATURES)).astype(float)
    block = form(rows)
    together = router.place(block)
    alone = [int(router.place(block[[i]])[0]) for i in range(80)]
    assert together.tolist() == alone
    assert len(set(alone)) > 2


def test_place__sampled_rows_stay_with_their_tree():
    rows = np.zeros((30, N_FEATURES), np.uint8)
    rows[:, 0] = 1  # the filter sends all of them to outcome 0
    share = Share(
        filter_between(0, 1), caterpillar(2), np.array([103, 107, 120, 130]), np.array([1, 1, 0, 1])
    )
    router = Router.start(SEED).divided({ROOT: share})
    ends = router.place(rows, 100)
    assert np.flatnonzero(ends == 2).tolist() == [3, 7]
    assert (router.place(rows) == 1).all()  # new rows are of no sample
    assert (router.place(rows, 0) == 1).all()  # other rows are of no sample
    assert (router.without(np.zeros(3, bool)).place(rows, 100) == 1).all()


def test_place__a_sample_below_the_root_stays_too():
    rows = np.zeros((30, N_FEATURES), np.uint8)
    rows[:, [1, 3]] = 1
    rows[::2, [0, 1]] = rows[::2, [1, 0]]  # every other row goes elsewhere at the root
    first = Router.start(SEED).divided({ROOT: Share(filter_between(0, 1, 2), caterpillar(3))})
    share = Share(filter_between(3, 4), caterpillar(2), np.array([5, 6]), np.array([1, 1]))
    ends = first.divided({2: share}).place(rows, 0)
    assert np.flatnonzero(ends == 5).tolist() == [5]
    assert (ends[::2] == 1).all()
    assert set(ends) == {1, 4, 5}


def test_without__leads_nobody_to_an_empty_node():
    router = two_level_router()
    is_empty = np.array([False, True, False, False, False, True])
    rest = router.without(is_empty)
    rows = np.random.default_rng(0).integers(0, 2, (200, N_FEATURES))
    before, after = router.place(rows), rest.place(rows)
    assert not is_empty[after].any()
    stays = ~is_empty[before]
    np.testing.assert_array_equal(after[stays], before[stays])
    assert (~stays).any()


def test_arrays__bring_back_the_same_router():
    rows = np.random.default_rng(1).integers(0, 2, (200, N_FEATURES))
    sample = np.array([3, 50, 51, 199]), np.array([0, 1, 0, 1])
    share = Share(filter_between(5, 4), caterpillar(2), *sample)
    sampled = Router.start(SEED).divided({ROOT: share})
    for router in (Router.start(3), two_level_router(), sampled):
        again = Router.from_arrays(*router.to_arrays(), FAMILY)
        assert again.paths == router.paths
        assert again.seed == router.seed
        np.testing.assert_array_equal(again.place(rows, 0), router.place(rows, 0))
        for node, split in router.splits.items():
            np.testing.assert_array_equal(again.splits[node].merges, split.merges)
            np.testing.assert_array_equal(again.splits[node].children, split.children)
