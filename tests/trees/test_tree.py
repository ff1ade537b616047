"""What a tree answers: cuts, partitions, prediction weights, names, features."""

from __future__ import annotations

import itertools
import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distclust.errors import InputError
from distclust.trees import tree as tree_module
from distclust.trees.evaluate import ConstantMixing, DirichletProcess, RoseMixing
from distclust.trees.structure import Structure
from distclust.trees.tree import Feature, Tree
from tests.oracles import trees as oracle
from tests.trees.test_evaluate import GOLDEN_ROWS, MIXINGS, nested_trees, problems, single_rows
from tests.trees.test_structure import cascade


def build(tree, likelihood, mixing, **options):
    structure, nodes = oracle.number_nodes(tree)
    log_marginal = [oracle.log_fraction(likelihood(oracle.leaves_of(node))) for node in nodes]
    return Tree.build(structure, likelihood.sizes, log_marginal, mixing, **options)


def golden(**options):
    structure = Structure.from_merges([(0, 1), (2, 3), (4, 6), (5, 7)])
    likelihood = single_rows(GOLDEN_ROWS)
    log_marginal = [oracle.log_fraction(likelihood(structure.leaves(k).tolist())) for k in range(9)]
    return Tree.build(structure, np.ones(5), log_marginal, DirichletProcess(1.0), **options)


def with_odds(shape, odds):
    """A tree whose internal nodes, children first, have the wanted log odds."""
    structure = shape if isinstance(shape, Structure) else oracle.number_nodes(shape)[0]
    # With constant mixing at one half, odds are log f minus the children's evidences.
    log_marginal = np.zeros(structure.n_nodes)
    evidence = np.zeros(structure.n_nodes)
    for k, wanted in zip(range(structure.n_leaves, structure.n_nodes), odds, strict=True):
        below = evidence[structure.children(k)].sum()
        log_marginal[k] = wanted + below
        evidence[k] = math.log(0.5) + below + np.logaddexp(0.0, wanted)
    return Tree.build(
        structure, np.ones(structure.n_leaves), log_marginal, ConstantMixing(0.5)
    )  # fmt: skip


def log_predictive(tree, likelihood, row, new_cluster):
    log_weights, log_new = tree.predictive_log_weights(new_cluster)
    total = math.exp(log_new) * oracle.predictive(row, [])
    for k in range(tree.n_nodes):
        below = likelihood.rows(tree.structure.leaves(k).tolist())
        total += math.exp(log_weights[k]) * oracle.predictive(row, below)
    return math.log(total)


def cut_by_recursion(tree, node, threshold):
    if node < tree.n_leaves or tree.posterior[node] >= threshold:
        return [frozenset(tree.structure.leaves(node).tolist())]
    children = tree.structure.children(node)
    return [block for c in children for block in cut_by_recursion(tree, c, threshold)]


def test_cut__golden():
    tree = golden()
    assert tree.cut().tolist() == [0, 0, 1, 1, 1]
    assert tree.cut_nodes().tolist() == [5, 7]
    assert tree.map_partition().tolist() == [0, 0, 1, 1, 1]
    assert tree.log_evidence == pytest.approx(-20.014621062378, abs=1e-11)
    assert tree.log_lower_bound == pytest.approx(-21.336376902360, abs=1e-11)


@settings(max_examples=40, deadline=None)
@given(nested_trees(max_leaves=9), st.data(), st.sampled_from([0.2, 0.5, 0.9]))
def test_cut__stops_at_the_first_sure_node_from_the_top(nested, data, threshold):
    n_internal = len(list(oracle.subtrees(nested)))
    odds = data.draw(st.lists(st.floats(-4, 4), min_size=n_internal, max_size=n_internal))
    tree = with_odds(nested, odds)
    labels = tree.cut(threshold)
    blocks = {frozenset(np.flatnonzero(labels == c).tolist()) for c in set(labels.tolist())}
    assert blocks == set(cut_by_recursion(tree, tree.root, threshold))
    # Numbered by first row, and the nodes listed in that order.
    firsts = [int(np.flatnonzero(labels == c)[0]) for c in range(labels.max() + 1)]
    assert firsts == sorted(firsts)
    for cluster, node in enumerate(tree.cut_nodes(threshold)):
        assert tree.rows(node).tolist() == np.flatnonzero(labels == cluster).tolist()


def test_cut__ignores_doubts_below_a_sure_node():
    tree = with_odds(((0, 1), (2, 3)), [-3.0, 2.0, 1.0])
    assert tree.cut().tolist() == [0, 0, 0, 0]


def test_cut__ends_of_the_range():
    tree = with_odds(((0, 1), (2, 3)), [900.0, -900.0, -5.0])
    assert tree.cut(0.0).tolist() == [0, 0, 0, 0]
    assert tree.cut(1.0).tolist() == [0, 1, 2, 3]
    for threshold in (-0.1, 1.1, math.nan, "half"):
        with pytest.raises(InputError, match="threshold"):
            tree.cut(threshold)


def test_cut__labels_rows_of_preformed_leaves():
    tree = with_odds(((0, 1), 2), [3.0, -3.0])
    grouped = Tree.build(
        tree.structure, [2, 1, 3], tree.log_marginal, tree.mixing, leaf_of_row=[2, 0, 1, 2, 0, 2]
    )
    assert grouped.cut().tolist() == [0, 1, 1, 0, 1, 0]
    assert grouped.cut_nodes().tolist() == [2, 3]
    assert grouped.rows(3).tolist() == [1, 2, 4]


def test_map_partition__may_differ_from_the_cut():
    # The top is slightly unlikely, but each alternative below it is less likely still.
    tree = with_odds(((0, 1), (2, 3)), [0.1, 0.1, -0.5])
    assert tree.cut().tolist() == [0, 0, 1, 1]
    assert tree.map_partition().tolist() == [0, 0, 0, 0]
    assert tree.map_nodes().tolist() == [tree.root]


def test_predictive_log_weights__golden():
    found = log_predictive(golden(), single_rows(GOLDEN_ROWS), [1, 1, 1, 1, 0, 0], True)
    assert found == pytest.approx(-4.143029664101, abs=1e-11)


def test_predictive_log_weights__two_rows_give_the_exact_ratio():
    rows, alpha = GOLDEN_ROWS[1:3], Fraction(3, 4)
    likelihood = single_rows(rows)
    tree = build((0, 1), likelihood, DirichletProcess(0.75))
    for row in ([1, 1, 0, 0, 0, 0], [0, 1, 0, 1, 0, 1]):
        ratio = oracle.mixture_marginal([*rows, row], alpha) / oracle.mixture_marginal(rows, alpha)
        found = log_predictive(tree, likelihood, row, True)
        assert found == pytest.approx(oracle.log_fraction(ratio), abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(problems(grouped=True))
def test_predictive_log_weights__average_crp_seating_over_partitions(problem):
    nested, likelihood = problem
    alpha = Fraction(3, 4)
    tree = build(nested, likelihood, DirichletProcess(0.75))
    prior = {
        p: oracle.crp_weight(p, alpha, likelihood.sizes) for p in oracle.tree_partitions(nested)
    }
    after = oracle.posterior(nested, likelihood, prior)
    n = sum(likelihood.sizes)
    for row in ([0, 0, 0], [1, 0, 1]):
        expected = alpha / (n + alpha) * oracle.predictive(row, [])
        for partition, p in after.items():
            for block in partition:
                rows = likelihood.rows(block)
                expected += p * len(rows) / (n + alpha) * oracle.predictive(row, rows)
        found = log_predictive(tree, likelihood, row, True)
        assert found == pytest.approx(oracle.log_fraction(expected), abs=1e-10)


@pytest.mark.parametrize("name", MIXINGS)
@settings(max_examples=20, deadline=None)
@given(problem=problems())
def test_predictive_log_weights__predict_a_distribution(name, problem):
    nested, likelihood = problem
    mixing, _ = MIXINGS[name]
    tree = build(nested, likelihood, mixing)
    for new_cluster in {False, name == "dp"}:
        log_weights, log_new = tree.predictive_log_weights(new_cluster)
        assert np.exp(log_weights).sum() + math.exp(log_new) == pytest.approx(1.0, abs=1e-12)
        every_row = itertools.product((0, 1), repeat=3)
        total = sum(
            math.exp(log_predictive(tree, likelihood, row, new_cluster)) for row in every_row
        )
        assert total == pytest.approx(1.0, abs=1e-10)


@settings(max_examples=20, deadline=None)
@given(problems())
def test_predictive_log_weights__rose_averages_over_partitions(problem):
    nested, likelihood = problem
    mixing, probability = MIXINGS["rose"]
    tree = build(nested, likelihood, mixing)
    after = oracle.posterior(nested, likelihood, oracle.mixing_weights(nested, probability))
    expected = Fraction(0)
    for partition, p in after.items():
        for block in partition:
            share = Fraction(len(block), tree.n_leaves)
            expected += p * share * oracle.predictive([1, 1, 0], likelihood.rows(block))
    found = log_predictive(tree, likelihood, [1, 1, 0], False)
    assert found == pytest.approx(oracle.log_fraction(expected), abs=1e-10)


def test_predictive_log_weights__no_new_cluster_without_concentration():
    tree = build((0, 1), single_rows(GOLDEN_ROWS[:2]), RoseMixing(0.5))
    with pytest.raises(InputError, match="new_cluster"):
        tree.predictive_log_weights(new_cluster=True)


@settings(max_examples=40, deadline=None)
@given(nested_trees(), st.data())
def test_heights__never_fall_towards_the_root(nested, data):
    n_internal = len(list(oracle.subtrees(nested)))
    odds = data.draw(st.lists(st.floats(-50, 50), min_size=n_internal, max_size=n_internal))
    tree = with_odds(nested, odds)
    heights = tree.heights
    assert np.all(heights[: tree.n_leaves] == 0.0)
    assert heights.min() == 0.0
    assert np.all(heights[tree.structure.parent[:-1]] >= heights[:-1])
    surest = tree.log_odds[tree.n_leaves :].max()
    for k in range(tree.n_leaves, tree.n_nodes):
        below = [
            c for c in range(tree.n_leaves, k + 1) if c == k or k in tree.structure.ancestors(c)
        ]
        expected = max(surest - tree.log_odds[c] for c in below)
        assert heights[k] == pytest.approx(expected, abs=1e-9)


def test_leaf_name__says_how_many_rows():
    tree = Tree.build(
        Structure.from_merges([(0, 1)]), [2, 1], [-1.0, -1.0, -2.0], RoseMixing(0.5),
        leaf_of_row=[1, 0, 0], row_ids=["a", "b", "c"],
    )  # fmt: skip
    assert [tree.leaf_name(leaf) for leaf in range(2)] == ["b +1", "a"]


class ColumnMeans:
    """Just enough of a family: statistics are the number of rows and column sums."""

    n_features = 4

    def feature_means(self, stats):
        return stats[:, 1:] / stats[:, :1]

    def feature_informations(self, here, beside):
        return np.abs(self.feature_means(here) - self.feature_means(beside))


def test_top_features__compare_a_node_with_its_siblings(monkeypatch):
    rows = np.array([[1, 1, 0, 5], [1, 1, 0, 5], [0, 1, 9, 5], [0, 1, 0, 5]], dtype=float)
    structure = Structure.from_children(4, [(0, 1), (2, 3, 4)])
    statistics = structure.sum_up(np.column_stack([np.ones(4), rows]))
    tree = Tree.build(
        structure, np.ones(4), -np.ones(6), RoseMixing(0.5),
        feature_names=("a", "b", "c", "d"), family=ColumnMeans(), statistics=statistics,
    )  # fmt: skip
    assert tree.top_features(4, 2) == [Feature("c", 4.5, 0.0, 4.5), Feature("a", 1.0, 1.0, 0.0)]
    assert tree.top_features(2, 1) == [Feature("c", 9.0, 9.0, 0.0)]
    assert len(tree.top_features(0)) == 4
    one_by_one = [tree.top_features(node, 2) for node in range(5)]
    for cells in (2**17, 8, 1):  # all nodes at once, two, one
        monkeypatch.setattr(tree_module, "_FEATURE_CELLS", cells)
        assert list(tree.top_features_of(range(5), 2)) == one_by_one
    for node in (tree.root, -1, 99):
        with pytest.raises(InputError, match="top_features"):
            tree.top_features(node)


def test_top_features__needs_the_family():
    with pytest.raises(InputError, match="fitted"):
        golden().top_features(0)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"n_rows_leaf": [1, 0]}, "n_rows_leaf"),
        ({"n_rows_leaf": [1, np.inf]}, "n_rows_leaf"),
        ({"log_marginal": [-1.0, -1.0]}, "log_marginal"),
        ({"log_marginal": [-1.0, np.nan, -1.0]}, "1 NaN"),
        ({"leaf_of_row": [0, 0]}, "leaf_of_row"),
        ({"leaf_of_row": [0, 2]}, "leaf_of_row"),
        ({"leaf_of_row": []}, "leaf_of_row"),
        ({"row_ids": ["a"]}, "row_ids"),
    ],
)
def test_build__refuses_inconsistent_input(change, word):
    arguments = {"n_rows_leaf": [1, 1], "log_marginal": [-1.0, -1.0, -2.0], **change}
    with pytest.raises(InputError, match=word):
        Tree.build(Structure.from_merges([(0, 1)]), mixing=RoseMixing(0.5), **arguments)


def test_tree__one_leaf_is_one_cluster():
    structure = Structure.from_merges(np.empty((0, 2)))
    tree = Tree.build(structure, [1], [-3.0], DirichletProcess(2.0))
    assert tree.cut().tolist() == tree.map_partition().tolist() == [0]
    assert tree.log_evidence == -3.0
    assert tree.heights.tolist() == [0.0]


def test_tree__deep_cascade_answers_everything():
    n = 20_000
    structure = cascade(n)
    size = structure.sum_up(np.ones(n))
    tree = Tree.build(structure, np.ones(n), -3.0 * np.sqrt(size), DirichletProcess(1.0))
    assert tree.cut().shape == tree.map_partition().shape == (n,)
    log_weights, log_new = tree.predictive_log_weights(new_cluster=True)
    assert np.exp(log_weights).sum() + math.exp(log_new) == pytest.approx(1.0, abs=1e-9)
    assert np.all(np.diff(tree.heights[n:]) >= 0)
    copy = pickle.loads(pickle.dumps(tree))
    assert np.array_equal(copy.log_odds, tree.log_odds)
    assert len(repr(tree).splitlines()) == 1
