"""A tree told level by level: how many nodes, how large, how sure, and what tells them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from distclust.trees.tree import Feature, Tree

_FEATURES = 8
MOST_NODES = 10_000  # of larger trees the upper levels are told
MOST_LEVELS = 1_000


def describe_levels(tree: Tree, n_features: int = _FEATURES) -> dict[str, Any]:
    """Return the levels of a tree and its nodes as JSON values.

    ``levels`` lists for each depth the nodes, leaves and rows there and the largest and
    smallest node; ``nodes`` describes each node: parent, children, rows, whether it is a
    cluster of the cut, its probability and log odds of being one, and its telling features.
    Of large trees the first `MOST_LEVELS` levels and `MOST_NODES` nodes are told, upper
    levels first and larger nodes first within a level; ``n_levels`` and ``n_nodes`` count all.
    """
    structure = tree.structure
    depth = structure.depth
    clusters = set(tree.cut_nodes().tolist())
    order = np.lexsort((-tree.n_rows, depth))
    told = order[:MOST_NODES].tolist()
    others = [k for k in told if structure.parent[k] >= 0]
    features = dict(zip(others, tree.top_features_of(others, n_features), strict=True))
    ends = np.cumsum(np.bincount(depth))  # of each level in that order
    n_told = min(len(ends), MOST_LEVELS)
    return {
        "n_nodes": tree.n_nodes,
        "n_levels": len(ends),
        "levels": [
            _level(tree, level, nodes)
            for level, nodes in enumerate(np.split(order[: ends[n_told - 1]], ends[: n_told - 1]))
        ],
        "nodes": [_node(tree, k, k in clusters, features.get(k, [])) for k in told],
    }


def _level(tree: Tree, level: int, nodes: Any) -> dict[str, Any]:
    sizes = tree.n_rows[nodes]
    return {
        "level": level,
        "n_nodes": len(nodes),
        "n_leaves": int((nodes < tree.n_leaves).sum()),
        "n_rows": int(sizes.sum()),
        "largest": int(sizes.max()),
        "smallest": int(sizes.min()),
    }


def _node(tree: Tree, node: int, is_cluster: bool, features: list[Feature]) -> dict[str, Any]:
    odds = float(tree.log_odds[node])
    return {
        "node": node,
        "parent": int(tree.structure.parent[node]),
        "level": int(tree.structure.depth[node]),
        "children": tree.structure.children(node).tolist(),
        "n_rows": int(tree.n_rows[node]),
        "is_cluster": is_cluster,
        "probability": math.exp(tree.evaluation.log_posterior[node]),
        "log_odds": odds if math.isfinite(odds) else None,
        "features": [
            {
                "name": feature.name,
                "information": _finite(feature.information),
                "mean": _finite(feature.mean),
                "sibling_mean": _finite(feature.sibling_mean),
            }
            for feature in features
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
