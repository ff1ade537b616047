"""Dendrogram purity against brute force over pairs."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage

from distclust import metrics
from distclust.errors import InputError
from distclust.trees.evaluate import RoseMixing
from distclust.trees.purity import dendrogram_purity
from distclust.trees.structure import Structure
from distclust.trees.tree import Tree
from tests.oracles import trees as oracle
from tests.trees.test_evaluate import nested_trees
from tests.trees.test_structure import cascade


@pytest.mark.parametrize(("weighting", "golden"), [("leaf", 0.7066666667), ("pair", 0.7166666667)])
def test_dendrogram_purity__golden(weighting, golden):
    structure, _ = oracle.number_nodes(((0, 1), (2, (3, 4))))
    found = dendrogram_purity(structure, [0, 0, 1, 1, 0], weighting)
    assert found == pytest.approx(golden, abs=1e-10)


@pytest.mark.parametrize("weighting", ["leaf", "pair"])
@settings(max_examples=60, deadline=None)
@given(tree=nested_trees(max_leaves=9), data=st.data())
def test_dendrogram_purity__equals_brute_force_over_pairs(weighting, tree, data):
    structure, _ = oracle.number_nodes(tree)
    n = structure.n_leaves
    labels = data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    assume(len(set(labels)) < n)
    expected = oracle.purity_by_pairs(tree, labels, weighting)
    found = dendrogram_purity(structure, labels, weighting)
    assert found == pytest.approx(float(expected), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(nested_trees(max_leaves=8), st.data())
def test_dendrogram_purity__is_one_only_if_classes_fill_subtrees(tree, data):
    structure, nodes = oracle.number_nodes(tree)
    n = structure.n_leaves
    labels = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    members = {c: {i for i in range(n) if labels[i] == c} for c in set(labels)}
    shared = [rows for rows in members.values() if len(rows) > 1]
    assume(shared)
    clusters = [set(oracle.leaves_of(node)) for node in nodes]

    def lies_pure(rows):
        # Smallest subtree that holds the class holds nothing else.
        return min((c for c in clusters if rows <= c), key=len) == rows

    assert (dendrogram_purity(structure, labels) == 1.0) == all(map(lies_pure, shared))


@settings(max_examples=40, deadline=None)
@given(nested_trees(max_leaves=5), st.data())
def test_dendrogram_purity__preformed_leaf_is_an_unresolved_node(tree, data):
    structure, _ = oracle.number_nodes(tree)
    n = structure.n_leaves
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    leaf_of_row = np.array(data.draw(st.permutations(np.repeat(range(len(sizes)), sizes).tolist())))
    labels = data.draw(
        st.lists(st.integers(0, 2), min_size=len(leaf_of_row), max_size=len(leaf_of_row))
    )
    assume(len(set(labels)) < len(labels))
    groups = [tuple(np.flatnonzero(leaf_of_row == k).tolist()) for k in range(len(sizes))]
    expanded = oracle.relabelled(tree, [g if len(g) > 1 else g[0] for g in groups])
    flat = Tree.build(
        structure, sizes, np.zeros(structure.n_nodes), RoseMixing(0.5), leaf_of_row=leaf_of_row
    )
    expected = oracle.purity_by_pairs(expanded, labels, "leaf")
    assert dendrogram_purity(flat, labels) == pytest.approx(float(expected), abs=1e-12)


def test_dendrogram_purity__takes_scipy_linkage_and_strings():
    rows = np.array([[0.0], [0.1], [5.0], [5.1], [9.0]])
    tree = linkage(rows, "average")
    assert dendrogram_purity(tree, ["a", "a", "b", "b", "c"]) == 1.0
    assert dendrogram_purity(tree, ["a", "b", "b", "a", "c"]) < 1.0


def test_dendrogram_purity__refuses_what_it_cannot_measure():
    structure = Structure.from_merges([(0, 1)])
    with pytest.raises(InputError, match="2 rows"):
        dendrogram_purity(structure, [0, 1, 1])
    with pytest.raises(InputError, match="two rows or more"):
        dendrogram_purity(structure, [0, 1])
    with pytest.raises(InputError, match="weighting"):
        dendrogram_purity(structure, [0, 0], "median")
    with pytest.raises(InputError, match="linkage"):
        dendrogram_purity(np.ones((3, 2)), [0, 0])


@pytest.mark.parametrize("n_per_class", [2, 2000])
def test_dendrogram_purity__deep_cascade_with_many_classes_is_fast(n_per_class):
    n = 20_000
    structure = cascade(n)
    labels = np.arange(n) // n_per_class
    start = time.perf_counter()
    found = dendrogram_purity(structure, labels)
    assert time.perf_counter() - start < 20.0  # compilation included; milliseconds after
    # Leaves join in order: the class of rows a..b meets at nodes over 0..j, a < j <= b.
    first = np.arange(0, n, n_per_class)
    within = np.arange(1, n_per_class)
    at = first[:, None] + within
    share = np.where(at == 1, 1.0, (within + 1) / (at + 1))
    expected = (share * within).sum() * 2 / (n_per_class - 1) / n
    assert found == pytest.approx(expected, rel=1e-10)


def test_metrics__gathers_what_users_expect():
    assert metrics.dendrogram_purity is dendrogram_purity
    assert metrics.adjusted_rand_score([0, 0, 1], [1, 1, 0]) == 1.0
    assert metrics.normalized_mutual_info_score([0, 0, 1], [1, 1, 0]) == pytest.approx(1.0)
