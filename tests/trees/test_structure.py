"""Tree shapes against recursion over nested tuples."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distclust.errors import InputError
from distclust.trees.structure import ABSORB_LEFT, ABSORB_RIGHT, COLLAPSE, JOIN, Structure
from tests.oracles import trees as oracle
from tests.trees.test_evaluate import nested_trees

DEEP = 20_000


def cascade(n):
    return Structure.from_merges([(0, 1)] + [(i, n + i - 2) for i in range(2, n)])


@settings(max_examples=60, deadline=None)
@given(nested_trees())
def test_structure__leaves_children_and_parents_match_recursion(tree):
    structure, nodes = oracle.number_nodes(tree)
    for k, node in enumerate(nodes):
        assert sorted(structure.leaves(k)) == sorted(oracle.leaves_of(node))
        assert structure.n_leaves_below[k] == len(oracle.leaves_of(node))
        expected = [] if isinstance(node, int) else node
        found = [frozenset(oracle.leaves_of(nodes[c])) for c in structure.children(k)]
        assert sorted(map(sorted, found)) == sorted(sorted(oracle.leaves_of(c)) for c in expected)
        assert all(structure.parent[c] == k for c in structure.children(k))
        assert structure.is_leaf(k) == isinstance(node, int)
    assert structure.parent[structure.root] == -1


@settings(max_examples=60, deadline=None)
@given(nested_trees())
def test_leaf_order__is_depth_first_with_children_ascending(tree):
    structure, _ = oracle.number_nodes(tree)

    def walk(node):
        children = structure.children(node).tolist()
        return [leaf for child in children for leaf in walk(child)] if children else [node]

    assert structure.leaf_order().tolist() == walk(structure.root)
    for k in range(structure.n_nodes):
        assert structure.leaves(k).tolist() == walk(k)


@settings(max_examples=60, deadline=None)
@given(nested_trees())
def test_depth_and_ancestors__agree_with_climbing(tree):
    structure, _ = oracle.number_nodes(tree)
    for k in range(structure.n_nodes):
        above = structure.ancestors(k)
        assert structure.depth[k] == len(above)
        assert all(k in structure.leaves(a) for a in above) or k >= structure.n_leaves
        assert above[-1:] == ([] if k == structure.root else [structure.root])
        assert above == sorted(set(above))


@settings(max_examples=40, deadline=None)
@given(nested_trees(), st.integers(0, 2**32 - 1))
def test_sum_up__adds_children_in_order_to_the_last_bit(tree, seed):
    structure, _ = oracle.number_nodes(tree)
    values = np.random.default_rng(seed).normal(size=(structure.n_leaves, 2, 3))
    total = structure.sum_up(values)
    for k in range(structure.n_leaves, structure.n_nodes):
        first, *others = structure.children(k)
        expected = total[first]
        for child in others:
            expected = expected + total[child]
        assert np.array_equal(total[k], expected)
    assert np.array_equal(total[: structure.n_leaves], values)


def test_sum_up__keeps_integers_and_refuses_other_lengths():
    structure = Structure.from_merges([(0, 1)])
    assert structure.sum_up(np.array([2, 3])).tolist() == [2, 3, 5]
    assert structure.sum_up(np.array([2, 3])).dtype == np.int64
    assert structure.sum_up(np.zeros((2, 0))).shape == (3, 0)
    with pytest.raises(InputError, match="2 leaves"):
        structure.sum_up(np.ones(3))


@settings(max_examples=40, deadline=None)
@given(nested_trees())
def test_from_parents__is_the_inverse_of_parent(tree):
    structure, _ = oracle.number_nodes(tree)
    again = Structure.from_parents(structure.n_leaves, structure.parent)
    assert np.array_equal(again.child_start, structure.child_start)
    assert np.array_equal(again.child_list, structure.child_list)


def forest_by_operations(n, merges, operations):
    """The four operations on nested tuples, as the rose tree chapter draws them."""
    trees = dict(enumerate(range(n)))
    for t, ((i, j), operation) in enumerate(zip(merges, operations, strict=True)):
        left, right = trees.pop(i), trees.pop(j)
        left_part = left if operation in (ABSORB_LEFT, COLLAPSE) else (left,)
        right_part = right if operation in (ABSORB_RIGHT, COLLAPSE) else (right,)
        trees[n + t] = (*left_part, *right_part)
    return trees[2 * n - 2]


@settings(max_examples=80, deadline=None)
@given(st.data(), st.integers(2, 9))
def test_from_operations__equals_the_operations_on_nested_trees(data, n):
    active, merges, operations = list(range(n)), [], []
    for t in range(n - 1):
        i, j = sorted(data.draw(st.permutations(active))[:2])
        allowed = [JOIN]
        allowed += [ABSORB_LEFT] if i >= n else []
        allowed += [ABSORB_RIGHT] if j >= n else []
        allowed += [COLLAPSE] if i >= n and j >= n else []
        merges.append((i, j))
        operations.append(data.draw(st.sampled_from(allowed)))
        active = [k for k in active if k not in (i, j)] + [n + t]
    structure, surviving = Structure.from_operations(merges, operations)
    expected = forest_by_operations(n, merges, operations)
    clusters = {frozenset(oracle.leaves_of(node)) for node in oracle.subtrees(expected)}
    found = {frozenset(structure.leaves(k).tolist()) for k in range(n, structure.n_nodes)}
    assert found == clusters
    # The working number of a surviving node refers to the same set of leaves.
    binary = Structure.from_merges(merges)
    for k, working in enumerate(surviving):
        assert sorted(structure.leaves(k)) == sorted(binary.leaves(working))


def test_from_operations__refuses_to_absorb_a_leaf():
    with pytest.raises(InputError, match="leaf"):
        Structure.from_operations([(0, 1)], [COLLAPSE])


def test_structure__one_leaf_is_a_tree():
    structure = Structure(1, np.array([0]), np.array([], dtype=int))
    assert structure.root == 0
    assert structure.leaf_order().tolist() == [0]
    assert structure.parent.tolist() == [-1]
    assert structure.sum_up(np.array([2.0])).tolist() == [2.0]
    assert Structure.from_merges(np.empty((0, 2))).n_nodes == 1


@pytest.mark.parametrize(
    ("n_leaves", "child_start", "child_list"),
    [
        (2, [0, 2], [0, 0]),  # a child twice
        (2, [0, 2], [1, 0]),  # descending
        (2, [0, 2], [0, 2]),  # its own child
        (2, [0, 2], [-1, 0]),  # no such node
        (3, [0, 2], [0, 1]),  # a leaf left over
        (3, [0, 1, 4], [0, 1, 2, 3]),  # one child
        (3, [0, 3, 2], [0, 1]),  # starts that fall
        (0, [0], []),  # no leaf
        (2, [0, 2], [0.5, 1.0]),  # not whole
    ],
)
def test_structure__refuses_what_is_not_a_tree(n_leaves, child_start, child_list):
    with pytest.raises(InputError, match="Structure"):
        Structure(n_leaves, np.array(child_start), np.array(child_list))


@pytest.mark.parametrize("parent", [[2, 2], [2, 1, -1], [0, 2, -1], [9, 2, -1], [2, 2, 2]])
def test_from_parents__refuses_other_orders(parent):
    with pytest.raises(InputError, match=r"from_parents|Structure"):
        Structure.from_parents(2, parent)


@pytest.mark.parametrize("node", [-1, 3])
def test_children__refuses_unknown_nodes(node):
    with pytest.raises(InputError, match="node"):
        Structure.from_merges([(0, 1)]).children(node)


def test_structure__deep_cascade_needs_no_stack():
    structure = cascade(DEEP)
    assert structure.depth.max() == DEEP - 1
    assert len(structure.ancestors(0)) == DEEP - 1
    assert sorted(structure.leaf_order()) == list(range(DEEP))
    assert structure.n_leaves_below[structure.root] == DEEP
    copy = pickle.loads(pickle.dumps(structure))
    assert np.array_equal(copy.child_list, structure.child_list)
