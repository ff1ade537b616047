"""Levels of a tree against what a walk over it finds, node by node."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from distclust import BHC, BayesianRoseTree, RandomizedBHC
from distclust.families import Bernoulli
from distclust.trees import levels
from distclust.trees.evaluate import DirichletProcess
from distclust.trees.levels import describe_levels
from distclust.trees.structure import Structure
from distclust.trees.tree import Tree


@pytest.fixture(params=["bhc", "rose", "large", "poisson", "two rows"])
def tree(request, rng) -> Tree:
    ones = rng.beta(0.4, 0.4, size=(4, 12))
    rows = (rng.random((60, 12)) < ones[rng.integers(4, size=60)]).astype(int)
    made: dict[str, Any] = {
        "bhc": lambda: BHC().fit(rows),
        "rose": lambda: BayesianRoseTree().fit(rows),
        "large": lambda: RandomizedBHC(20, check_size=10, random_state=0).fit(rows),
        "poisson": lambda: BHC(family="poisson").fit(rows * 5),
        "two rows": lambda: BHC(family="diagonal_gaussian").fit([[0.0, 1.0], [1.0, 3.0]]),
    }
    return made[request.param]().tree_


def walk(tree: Tree) -> dict[int, list[int]]:
    """Return the nodes of each level, found by going down from the root."""
    found: dict[int, list[int]] = {}
    waiting = [(tree.structure.root, 0)]
    while waiting:
        node, level = waiting.pop()
        found.setdefault(level, []).append(int(node))
        waiting += [(int(child), level + 1) for child in tree.structure.children(node)]
    return found


def rows_below(tree: Tree, node: int) -> int:
    """Count the input rows of a node one by one."""
    leaves = set(tree.structure.leaves(node).tolist())
    return sum(int(leaf) in leaves for leaf in tree.leaf_of_row)


def test_levels__are_those_of_a_walk(tree):
    told = describe_levels(tree)
    by_level = walk(tree)
    assert told["n_levels"] == len(by_level) == len(told["levels"])
    for level in told["levels"]:
        nodes = by_level[level["level"]]
        sizes = [rows_below(tree, node) for node in nodes]
        assert level == {
            "level": level["level"],
            "n_nodes": len(nodes),
            "n_leaves": sum(len(tree.structure.children(node)) == 0 for node in nodes),
            "n_rows": sum(sizes),
            "largest": max(sizes),
            "smallest": min(sizes),
        }
    assert told["levels"][0]["n_rows"] == len(tree.leaf_of_row)


def test_nodes__say_where_they_are_and_what_they_hold(tree):
    told = describe_levels(tree)
    level_of = {node: level for level, nodes in walk(tree).items() for node in nodes}
    nodes = {node["node"]: node for node in told["nodes"]}
    assert sorted(nodes) == list(range(tree.n_nodes)) == sorted(level_of)
    labels = tree.cut()
    for k, node in nodes.items():
        assert node["level"] == level_of[k]
        assert node["n_rows"] == rows_below(tree, k)
        assert node["children"] == tree.structure.children(k).tolist()
        for child in node["children"]:
            assert nodes[child]["parent"] == k
        mine = np.isin(tree.leaf_of_row, tree.structure.leaves(k))
        one_label = len(set(labels[mine])) == 1
        assert node["is_cluster"] == (one_label and not np.isin(labels[~mine], labels[mine]).any())
        odds = float(tree.log_odds[k])
        assert node["log_odds"] == (odds if math.isfinite(odds) else None)
        assert 0.0 <= node["probability"] <= 1.0
        if math.isfinite(odds):
            assert node["probability"] == pytest.approx(1.0 / (1.0 + math.exp(-odds)), abs=1e-12)
    assert nodes[tree.structure.root]["parent"] == -1


def test_nodes__upper_levels_and_larger_nodes_come_first(tree):
    order = [(node["level"], -node["n_rows"]) for node in describe_levels(tree)["nodes"]]
    assert order == sorted(order)


def test_features__are_the_telling_ones(tree):
    for node in describe_levels(tree, n_features=3)["nodes"]:
        if node["parent"] == -1:
            assert node["features"] == []
            continue
        wanted = tree.top_features(node["node"], 3)
        assert [feature["name"] for feature in node["features"]] == [f.name for f in wanted]
        for feature, f in zip(node["features"], wanted, strict=True):
            assert feature["mean"] == pytest.approx(f.mean)
            assert feature["sibling_mean"] == pytest.approx(f.sibling_mean)
            assert feature["information"] == pytest.approx(f.information)


def test_levels__are_strict_json(tree):
    told = describe_levels(tree)
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_levels__numbers_without_a_value_are_null():
    rows = np.array([[0.0, np.nan], [0.1, np.nan], [5.0, 1.0], [5.1, 1.2]])
    tree = BHC(family="diagonal_gaussian").fit(rows).tree_
    told = describe_levels(tree)
    text = json.dumps(told, allow_nan=False)
    assert "null" in text
    means = [f["mean"] for node in told["nodes"] for f in node["features"]]
    assert None in means  # nothing was observed of a column there


def chain(n_leaves: int) -> Tree:
    """A tree that splits off one row at a time, the deepest there is."""
    merges = [[0, 1]] + [[n_leaves + k - 2, k] for k in range(2, n_leaves)]
    structure = Structure.from_merges(np.array(merges))
    family = Bernoulli(alpha=np.ones(2), beta=np.ones(2), n_features=2)
    rng = np.random.default_rng(0)
    rows = rng.integers(2, size=(n_leaves, 2)).astype(float)
    stats = structure.sum_up(np.column_stack([np.ones(n_leaves), rows]))
    return Tree.build(
        structure,
        np.ones(n_leaves),
        family.log_marginal(stats),
        DirichletProcess(1.0),
        family=family,
        statistics=stats,
    )


def test_levels__of_large_trees_are_bounded():
    tree = chain(20_000)
    told = describe_levels(tree, n_features=1)
    assert (told["n_nodes"], told["n_levels"]) == (39_999, 20_000)
    assert len(told["nodes"]) == levels.MOST_NODES
    assert len(told["levels"]) == levels.MOST_LEVELS
    assert told["levels"][0] == {
        "level": 0,
        "n_nodes": 1,
        "n_leaves": 0,
        "n_rows": 20_000,
        "largest": 20_000,
        "smallest": 20_000,
    }
    assert told["levels"][-1] == {
        "level": 999,
        "n_nodes": 2,
        "n_leaves": 1,
        "n_rows": 19_002,
        "largest": 19_001,
        "smallest": 1,
    }
    assert max(node["level"] for node in told["nodes"]) == 5_000
