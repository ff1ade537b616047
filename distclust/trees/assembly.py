"""From nodes and their rows to one tree: the last, bottom-up step of a randomised fit.

Every node of the tree gets its statistics, odds and evidence from all rows below it, not
from a sample (spec 3, erratum T15).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.families import Family
from distclust.trees.growing import Growth
from distclust.trees.routing import ROOT, Split
from distclust.trees.splitting import Exact
from distclust.trees.structure import Structure

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_MARGINAL_CELLS = 1 << 22
NOTHING = 0  # of a node without rows; leaves are counted from 1, merges from -1 down


@dataclass(frozen=True, eq=False)
class Assembled:
    """The tree of all rows.

    Attributes
    ----------
    structure
        Its shape; leaves are ordered by their first rows.
    stats
        Statistics of all its nodes, shape (n_nodes, p).
    log_marginal
        Of all its nodes, shape (n_nodes,).
    leaf_of_node
        Leaf that a node of the router is, -1 where it is none, shape (router nodes,).
    first_rows
        Number of each leaf's first row, shape (n_leaves,).
    row_leaves
        Rows that are leaves of their own, and which, each (n,); of resolved nodes.
    """

    structure: Structure
    stats: Floats
    log_marginal: Floats
    leaf_of_node: Indices
    first_rows: Indices
    row_leaves: tuple[Indices, Indices]


def assemble(growth: Growth) -> Assembled:
    """Put the tree together and evaluate its nodes on all rows."""
    builder = Builder(growth)
    root = int(builder.run()[ROOT])
    assert root == (-len(builder.merges) or 1), "the root is made last"
    return finish(builder, np.array(builder.first_rows))


def finish(builder: Builder, keys: npt.NDArray[Any]) -> Assembled:
    """Return the tree that was built; its leaves are ordered by `keys` (n_leaves,)."""
    growth = builder.growth
    order = np.argsort(keys, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    n_leaves = len(order)
    handles = np.array(builder.merges, dtype=np.int64).reshape(-1, 2)
    is_leaf = handles > 0
    merges = np.where(is_leaf, rank[np.where(is_leaf, handles, 1) - 1], n_leaves - handles - 1)
    structure = Structure.from_merges(merges)
    leaf_stats = np.concatenate(builder.stats)[order]
    stats = structure.sum_up(leaf_stats)
    leaf_of_node = np.full(growth.router.n_nodes, -1)
    for node, leaf in builder.leaf_of_node.items():
        leaf_of_node[node] = rank[leaf]
    rows = [np.concatenate(part) if part else np.empty(0, np.int64) for part in builder.row_leaves]
    return Assembled(
        structure,
        stats,
        log_marginal_of(growth.family, stats),
        leaf_of_node,
        np.asarray(builder.first_rows)[order],
        (rows[0], rank[rows[1]]),
    )


def log_marginal_of(family: Family, stats: Floats) -> Floats:
    """Return the log marginal of many groups, some at a time."""
    step = max(1, _MARGINAL_CELLS // stats.shape[1])
    parts = [family.log_marginal(stats[i : i + step]) for i in range(0, len(stats), step)]
    return np.concatenate(parts)


class Builder:
    """Walks the router's nodes from the last to the first, children before parents.

    A handle is k + 1 for leaf k, -(t + 1) for merge t, and 0 for nothing.

    Attributes
    ----------
    growth
        The nodes and their rows.
    merges
        Pairs of handles, children before parents.
    first_rows, stats
        Of the leaves made so far.
    leaf_of_node
        Leaf that each node of the router is, of those that are one.
    """

    def __init__(self, growth: Growth) -> None:
        self.growth = growth
        self.merges: list[tuple[int, int]] = []
        self.first_rows: list[int] = []
        self.stats: list[Floats] = []
        self.leaf_of_node: dict[int, int] = {}
        self.row_leaves: tuple[list[Indices], list[Indices]] = ([], [])

    def run(self, first: int = ROOT) -> Indices:
        """Build all nodes from number `first` on; return their handles, shape (n_nodes,)."""
        growth = self.growth
        handles = np.zeros(growth.router.n_nodes, np.int64)
        for node in range(growth.router.n_nodes - 1, first - 1, -1):
            if growth.sizes[node] == 0:
                continue
            if node in growth.router.splits:
                handles[node] = self._divided(growth.router.splits[node], handles)
            elif node in growth.exact:
                handles[node] = self._resolved(growth.exact[node])
            else:
                handles[node] = self.leaf(node)
        return handles

    def _divided(self, split: Split, handles: Indices) -> int:
        items = handles[split.children].tolist()
        return self._merged(items, split.merges)

    def _merged(self, items: list[int], merges: Indices) -> int:
        for a, b in merges.tolist():
            items.append(self.merge(items[a], items[b]))
        return items[-1]

    def merge(self, left: int, right: int) -> int:
        """Join two parts; nothing and a part are the part."""
        if left == NOTHING or right == NOTHING:
            return left or right
        self.merges.append((left, right))
        return -len(self.merges)

    def _resolved(self, exact: Exact) -> int:
        first = len(self.first_rows)
        n_rows = len(exact.positions)
        self.first_rows.extend(exact.positions.tolist())
        self.stats.append(exact.stats)
        self.row_leaves[0].append(exact.positions)
        self.row_leaves[1].append(np.arange(first, first + n_rows))
        return self._merged(list(range(first + 1, first + n_rows + 1)), exact.merges)

    def leaf(self, node: int) -> int:
        """Make a node of the router a leaf."""
        self.leaf_of_node[node] = len(self.first_rows)
        self.first_rows.append(int(self.growth.first_rows[node]))
        self.stats.append(self.growth.stats[node : node + 1])
        return len(self.first_rows)
