"""Nodes of a fitted tree opened again, and what grew below them put in their place.

The rest of the tree stays: its leaves keep their order, and with it clusters their labels. The
largest leaf that grew below a node takes the place of the first leaf that was there; the others
come last. A leaf that has no rows any more is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.families import Family
from distclust.trees.assembly import NOTHING, Assembled, Builder, finish
from distclust.trees.growing import Growth
from distclust.trees.passes import NOWHERE
from distclust.trees.routing import Router
from distclust.trees.structure import Structure

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


def reopen(
    family: Family,
    reason: str,
    router: Router,
    structure: Structure,
    ends: Indices,
    nodes: Indices,
    leaves: Mapping[str, npt.NDArray[Any]],
    want: int,
) -> Growth:
    """Return the state from which the rows of some nodes are divided again.

    Parameters
    ----------
    family, reason
        Frozen, and why it was chosen.
    router, structure, ends
        The tree, and the end of the router that each leaf is.
    nodes
        Nodes to reopen, none below another, ascending.
    leaves
        "sizes", "first_rows" and "stats" of the leaves on all rows.
    want
        Rows of the samples that divide them.
    """
    groups = [ends[structure.leaves(node)] for node in nodes.tolist()]
    n_before = router.n_nodes
    router = router.reopened(groups)
    n_nodes = router.n_nodes
    sizes, first_rows = np.zeros(n_nodes, np.int64), np.full(n_nodes, NOWHERE)
    stats, wants = np.zeros((n_nodes, family.n_statistics)), np.zeros(n_nodes, np.int64)
    levels = np.zeros(n_nodes, np.int64)
    sizes[ends], first_rows[ends] = leaves["sizes"], leaves["first_rows"]
    stats[ends] = leaves["stats"]
    for new, (node, group) in enumerate(zip(nodes.tolist(), groups, strict=True), n_before):
        sizes[new], first_rows[new] = sizes[group].sum(), first_rows[group].min()
        stats[new] = stats[group].sum(axis=0)
        levels[new], wants[new] = structure.depth[node], want
        sizes[group], stats[group] = 0, 0.0
    return Growth(
        family=family,
        reason=reason,
        router=router,
        step=1,
        levels=levels,
        sizes=sizes,
        first_rows=first_rows,
        stats=stats,
        want=wants,
        expected=sizes.astype(np.float64),
        exact={},
        digests=np.empty(0, np.uint64),
    )


def names_of_ends(n_before: int, structure: Structure, ends: Indices, nodes: Indices) -> Indices:
    """Return what the nodes of the router before are called once some are reopened."""
    names = np.arange(n_before)
    for new, node in enumerate(nodes.tolist(), n_before):
        names[ends[structure.leaves(node)]] = new
    return names


def graft(
    growth: Growth, n_before: int, structure: Structure, ends: Indices, nodes: Indices
) -> Assembled:
    """Put the tree together: what was there, and in place of `nodes` what grew.

    Parameters
    ----------
    growth
        Complete; made by `reopen`.
    n_before
        Nodes of the router before.
    structure, ends, nodes
        As in `reopen`.
    """
    builder = Builder(growth)
    grown = builder.run(n_before)
    keys = [structure.n_leaves + first for first in builder.first_rows]
    handles = np.full(structure.n_nodes, NOTHING)
    is_old = np.ones(structure.n_nodes, np.bool_)  # neither reopened nor below such a node
    for new, node in enumerate(nodes.tolist(), n_before):
        handles[node] = grown[new]
        is_old[_subtree(structure, node)] = False
        below = _leaves_below(builder, new)
        if below:
            largest = max(below, key=lambda leaf: (builder.stats[leaf][0, 0], -leaf))
            keys[largest] = int(structure.leaves(node).min())
    for leaf in range(structure.n_leaves):
        if is_old[leaf] and growth.sizes[ends[leaf]]:
            handles[leaf] = builder.leaf(int(ends[leaf]))
            keys.append(leaf)
    for node in range(structure.n_leaves, structure.n_nodes):
        if is_old[node]:
            left, right = handles[structure.children(node)].tolist()
            handles[node] = builder.merge(left, right)
    return finish(builder, np.array(keys))


def _subtree(structure: Structure, node: int) -> list[int]:
    """Return a node and all below it."""
    found = [node]
    for k in found:
        if not structure.is_leaf(k):
            found.extend(structure.children(k).tolist())
    return found


def _leaves_below(builder: Builder, node: int) -> list[int]:
    """Return the leaves that were built at or below a node of the router."""
    found = [node]
    for k in found:
        split = builder.growth.router.splits.get(k)
        found.extend([] if split is None else split.children.tolist())
    return [builder.leaf_of_node[k] for k in found if k in builder.leaf_of_node]


def way_of_new_rows(growth: Growth) -> Router:
    """Return the router without ways to where no row is."""
    router = growth.router
    is_empty = growth.sizes == 0
    for node in sorted(router.splits, reverse=True):
        is_empty[node] = is_empty[router.splits[node].children].all()
    return router.without(is_empty)
