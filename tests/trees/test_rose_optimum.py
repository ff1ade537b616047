"""Greedy rose trees against all rose trees of few leaves."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from distclust import BayesianRoseTree, families
from distclust.trees import _numerics as numerics
from distclust.trees.evaluate import ConstantMixing, DirichletProcess, RoseMixing
from distclust.trees.search import SearchPlan, _Search
from tests.oracles.search import NaiveSearch

pytestmark = pytest.mark.filterwarnings("ignore::distclust.errors.ConstantColumnsWarning")

COUNTS = {1: 1, 2: 1, 3: 4, 4: 26, 5: 236, 6: 2752}


@functools.cache
def partitions(items):
    """All ways to split a tuple into two or more blocks, each a tuple."""
    if len(items) == 1:
        return [[items]]
    first, rest = items[0], items[1:]
    found = []
    for blocks in partitions(rest):
        found.append([(first,), *blocks])
        found.extend(
            [*blocks[:i], (first, *block), *blocks[i + 1 :]] for i, block in enumerate(blocks)
        )
    return found


@functools.cache
def rose_trees(leaves):
    """All rose trees over a tuple of leaves, as nested frozensets."""
    if len(leaves) == 1:
        return [leaves[0]]
    trees = []
    for blocks in partitions(leaves):
        if len(blocks) < 2:
            continue
        combined = [frozenset()]
        for block in blocks:
            combined = [
                tree | {child} for tree in combined for child in rose_trees(tuple(sorted(block)))
            ]
        trees.extend(combined)
    return trees


@pytest.mark.parametrize("n", COUNTS)
def test_rose_trees__are_as_many_as_known(n):
    assert len(rose_trees(tuple(range(n)))) == COUNTS[n]


def draw_from_a_tree(rng, n, d, gamma=0.5):
    """Rows from the rose-tree model: a random partition into blocks with shared columns."""
    labels = np.zeros(n, dtype=int)
    while rng.random() > gamma and labels.max() < n - 1:
        labels = np.where(rng.random(n) < 0.5, labels, labels.max() + 1)
    centres = rng.beta(1.0, 1.0, size=(labels.max() + 1, d))
    return (rng.random((n, d)) < centres[labels]).astype(int)


@pytest.mark.parametrize("n", [4, 5])
def test_greedy__never_exceeds_the_optimum_and_nearly_always_finds_it(n):
    family = families.Bernoulli(np.ones(64), np.ones(64))
    found = 0
    for seed in range(12):
        rows = draw_from_a_tree(np.random.default_rng(seed), n, 64)
        stats = family.accumulate(rows, np.arange(n), n)
        model = BayesianRoseTree("brt", 0.5, family=families.Bernoulli(1, 1)).fit(rows)
        log_f = functools.cache(
            lambda leaves, stats=stats: float(
                family.log_marginal(stats[list(leaves)].sum(axis=0)[None])[0]
            )
        )
        oracle = NaiveSearch(
            lambda leaves, log_f=log_f: log_f(tuple(leaves)), len, "rose", 0.5, "", True
        )
        best = max(oracle.log_p(tree) for tree in rose_trees(tuple(range(n))))
        assert model.log_evidence_ <= best + 1e-9
        found += model.log_evidence_ >= best - 1e-9
    assert found >= 10


def test_identical_rows__one_node_two_partitions_while_binary_trees_have_n():
    rows = np.tile([1, 0, 1], (7, 1))
    flat = BayesianRoseTree(family="bernoulli").fit(rows).tree_
    assert flat.structure.n_internal == 1
    assert flat.log10_n_partitions == pytest.approx(np.log10(2))
    cascade = BayesianRoseTree("bhc-gamma", family="bernoulli").fit(rows).tree_
    assert cascade.log10_n_partitions == pytest.approx(np.log10(7))


@pytest.mark.parametrize(
    ("mixing", "name"),
    [(RoseMixing(0.3), "rose"), (ConstantMixing(0.3), "constant"), (DirichletProcess(0.6), "dp")],
)
@pytest.mark.parametrize("criterion", ["likelihood_ratio", "posterior_odds"])
def test_operation_key__equals_recomputation_for_all_four_operations(mixing, name, criterion):
    rng = np.random.default_rng(0)
    family = families.Bernoulli(np.ones(5), np.ones(5))
    stats = family.accumulate(rng.integers(0, 2, (6, 5)), np.arange(6), 6)
    search = _Search(family, stats, SearchPlan(mixing, criterion, True))

    def log_f(rows):
        return float(family.log_marginal(stats[rows].sum(axis=0)[None])[0])

    def merge(i, j, operation, new_id, rows):
        numerics.merge_slots(search.slots, i, j, log_f(rows), operation, new_id, search.rule)

    # older = {0, 1, 2}, younger = {3, {4, 5}}: both have children, of different depths.
    merge(0, 1, numerics.JOIN, 6, [0, 1])
    merge(0, 2, numerics.ABSORB_OLDER, 7, [0, 1, 2])
    merge(4, 5, numerics.JOIN, 8, [4, 5])
    merge(3, 4, numerics.JOIN, 9, [3, 4, 5])
    older, younger = frozenset([0, 1, 2]), frozenset([3, frozenset([4, 5])])
    parameter = mixing.concentration if name == "dp" else mixing.gamma
    oracle = NaiveSearch(log_f, len, name, parameter, criterion, True)
    log_prior = 0.0
    if name == "dp":
        log_prior = numerics.log_block_prior(6, search.rule)
    for operation, tree in enumerate(oracle.candidates(older, younger)):
        key, odds = numerics.operation_key(
            search.slots[0], search.slots[3], operation, log_f(list(range(6))), log_prior,
            search.rule,
        )  # fmt: skip
        assert key == pytest.approx(oracle.key(tree, older, younger), rel=1e-9), operation
        assert odds == pytest.approx(oracle.odds(tree), rel=1e-9), operation
