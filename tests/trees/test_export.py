"""Other programs' formats: SciPy accepts them, an independent parser reads them back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import cophenet, fcluster, is_monotonic, is_valid_linkage

from distclust.errors import InputError, ModelFormatError
from distclust.trees import export
from distclust.trees.evaluate import ConstantMixing, DirichletProcess, RoseMixing
from distclust.trees.structure import Structure
from distclust.trees.tree import Tree
from tests.oracles import trees as oracle
from tests.trees.test_evaluate import nested_trees
from tests.trees.test_structure import cascade
from tests.trees.test_tree import golden, with_odds


@st.composite
def random_trees(draw, max_leaves=8):
    nested = draw(nested_trees(max_leaves=max_leaves))
    n_internal = len(list(oracle.subtrees(nested)))
    odds = draw(st.lists(st.floats(-50, 50), min_size=n_internal, max_size=n_internal))
    return with_odds(nested, odds)


def deep_tree(n=20_000):
    structure = cascade(n)
    size = structure.sum_up(np.ones(n))
    return Tree.build(structure, np.ones(n), -3.0 * np.sqrt(size), DirichletProcess(1.0))


def same_arrays(one, other):
    facts, arrays = export.to_arrays(one)
    other_facts, other_arrays = export.to_arrays(other)
    assert facts == other_facts
    assert arrays.keys() == other_arrays.keys()
    for name, array in arrays.items():
        assert array.dtype == other_arrays[name].dtype, name
        assert np.array_equal(array, other_arrays[name]), name


@settings(max_examples=60, deadline=None)
@given(random_trees())
def test_linkage__is_valid_monotonic_and_complete(tree):
    rows = tree.linkage()
    assert is_valid_linkage(rows)
    assert is_monotonic(rows)
    # Every node of the tree is among the merges, at its height.
    below = [frozenset([leaf]) for leaf in range(tree.n_leaves)]
    heights = {}
    for left, right, height, count in rows:
        below.append(below[int(left)] | below[int(right)])
        heights[below[-1]] = height
        assert count == len(below[-1])
    for k in range(tree.n_leaves, tree.n_nodes):
        assert heights[frozenset(tree.structure.leaves(k).tolist())] == tree.heights[k]


@settings(max_examples=40, deadline=None)
@given(random_trees())
def test_linkage__cophenetic_distance_is_the_height_of_the_common_node(tree):
    found = iter(cophenet(tree.linkage()))
    n = tree.n_leaves
    for i in range(n):
        for j in range(i + 1, n):
            common = min(set(tree.structure.ancestors(i)) & set(tree.structure.ancestors(j)))
            assert next(found) == tree.heights[common]


def test_linkage__rows_are_merges_in_order_for_greedy_trees_without_inversions():
    rows = with_odds(((0, 1), (2, 3)), [5.0, 3.0, -2.0]).linkage()
    assert rows.tolist() == [[0, 1, 0, 2], [2, 3, 2, 2], [4, 5, 7, 4]]


def test_linkage__keeps_children_before_parents_at_equal_heights():
    n = 600
    rng = np.random.default_rng(0)
    active, merges = list(range(n)), []
    for t in range(n - 1):
        i, j = (active.pop(rng.integers(len(active))) for _ in range(2))
        merges.append((i, j))
        active.append(n + t)
    rows = with_odds(Structure.from_merges(merges), [0.0] * (n - 1)).linkage()
    assert is_valid_linkage(rows)
    assert np.array_equal(rows[:, :2], np.sort(merges, axis=1))


def test_linkage__scipy_finds_the_same_clusters():
    tree = golden()
    height = (tree.heights[7] + tree.heights[8]) / 2
    labels = fcluster(tree.linkage(), height, "distance")
    assert [labels[0] == label for label in labels] == [True, True, False, False, False]


def test_linkage__needs_two_leaves():
    tree = Tree.build(Structure.from_merges([]), [1], [-1.0], RoseMixing(0.5))
    with pytest.raises(InputError, match="two leaves"):
        tree.linkage()


def newick_nodes(node, height=0.0):
    """(leaf names, label, depth in branch lengths) of every node of a parsed tree."""
    children, label, length = node
    height += length or 0.0
    found = [entry for child in children for entry in newick_nodes(child, height)]
    names = [label] if not children else [n for c in children for n in newick_nodes(c)[-1][0]]
    return [*found, (names, label, height)]


@settings(max_examples=40, deadline=None)
@given(random_trees(), st.data())
def test_newick__reads_back_with_names_lengths_and_probabilities(tree, data):
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
    n = tree.n_leaves
    names = data.draw(st.lists(text, min_size=n, max_size=n, unique=True))
    named = Tree.build(
        tree.structure, np.ones(n), tree.log_marginal, tree.mixing, row_ids=np.array(names)
    )
    found = newick_nodes(oracle.parse_newick(named.newick()))
    assert len(found) == tree.n_nodes
    by_leaves = {frozenset(names_below): (label, depth) for names_below, label, depth in found}
    for k in range(tree.n_nodes):
        label, depth = by_leaves[frozenset(names[leaf] for leaf in tree.structure.leaves(k))]
        assert depth == pytest.approx(tree.heights[-1] - tree.heights[k], abs=1e-9)
        if k >= n:
            assert float(label) == pytest.approx(tree.posterior[k], rel=1e-5)


def test_newick__quotes_and_bare_form():
    tree = golden(row_ids=["it's", "a b", "(x,y);", "é:1", "_"])
    assert tree.newick("none", posteriors=False) == "(('it''s','a b'),('_',('(x,y);','é:1')));"
    with pytest.raises(InputError, match="lengths"):
        tree.newick("odds")


def test_newick__preformed_leaf_is_an_unresolved_node():
    tree = Tree.build(
        Structure.from_merges([(0, 1)]), [2, 1], [-1.0, -1.0, -2.0], RoseMixing(0.5),
        leaf_of_row=[1, 0, 0],
    )  # fmt: skip
    assert tree.newick("none", posteriors=False) == "(('1','2'),'0');"
    assert tree.newick().startswith("(('1':0.0,'2':0.0)1:0.0,'0':0.0)")


@pytest.mark.parametrize("mixing", [DirichletProcess(0.1), RoseMixing(0.3), ConstantMixing(0.7)])
@pytest.mark.parametrize("ids", [None, ["a", "é", "'"], np.array([2**60, 1, 0])])
def test_json__round_trip_is_exact(mixing, ids):
    structure = Structure.from_children(3, [(0, 1, 2)])
    tree = Tree.build(
        structure, [1, 1, 1], np.log([0.1, 0.2, 0.3, 1 / 3]), mixing,
        row_ids=ids, feature_names=("x", "y"),
    )  # fmt: skip
    text = tree.to_json()
    assert "Infinity" not in text
    assert "NaN" not in text
    again = Tree.from_json(text)
    same_arrays(tree, again)
    assert again.log_odds[0] == np.inf
    assert again.evaluation.log_not_posterior[0] == -np.inf
    assert again.mixing == mixing
    assert again.feature_names == ("x", "y")
    assert again.to_json() == text


@settings(max_examples=40, deadline=None)
@given(random_trees())
def test_dict__round_trip_is_exact_for_random_trees(tree):
    same_arrays(tree, Tree.from_dict(json.loads(json.dumps(tree.to_dict(), allow_nan=False))))


def test_arrays__keep_the_statistics():
    tree = golden(statistics=np.arange(18.0).reshape(9, 2))
    again = export.from_arrays(*export.to_arrays(tree))
    same_arrays(tree, again)
    assert np.array_equal(again.statistics, tree.statistics)
    assert "statistics" not in tree.to_dict()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"format": "another"}, "format"),
        ({"version": 2}, "version"),
        ({"version": None}, "version"),
        ({"n_rows": [1.0]}, "5 leaves"),
        ({"n_rows": [1.0] * 5}, "values"),
        ({"log_odds": [1.0]}, "values"),
        ({"log_odds": ["high"] * 9}, "numbers"),
        ({"child_list": [0, 0, 1, 2, 3, 4, 5, 6]}, "fault"),
        ({"leaf_of_row": [0, 1, 2, 3, 7]}, "fault"),
        ({"mixing": {"name": "rose", "gamma": 2.0}}, "gamma"),
        ({"mixing": {"name": "unheard"}}, "fault"),
    ],
)
def test_from_dict__refuses_what_it_did_not_write(change, word):
    with pytest.raises(ModelFormatError, match=word):
        Tree.from_dict({**golden().to_dict(), **change})


@pytest.mark.parametrize("name", ["row_ids", "log_odds", "mixing", "n_leaves", "child_start"])
def test_from_dict__refuses_missing_parts(name):
    data = golden().to_dict()
    del data[name]
    with pytest.raises(ModelFormatError, match=name):
        Tree.from_dict(data)


@pytest.mark.parametrize("text", ["", "[1, 2]", '"tree"', golden().to_json()[:-20]])
def test_from_json__refuses_what_is_not_a_tree(text):
    with pytest.raises(ModelFormatError):
        Tree.from_json(text)


def test_export__deep_cascade_needs_no_stack():
    tree = deep_tree()
    assert is_valid_linkage(tree.linkage())
    assert is_monotonic(tree.linkage())
    text = tree.newick()
    assert text.count("(") == text.count(")") == tree.n_leaves - 1
    same_arrays(tree, Tree.from_json(tree.to_json()))
