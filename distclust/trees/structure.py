"""The shape of a tree in two flat arrays, for any number of children.

Leaves are numbered ``0 .. n_leaves - 1``. Internal nodes follow in the order in which they
were made, so children always have smaller numbers than their parents and the root is the
last node. Walks over the tree are therefore loops over node numbers; nothing here recurses,
because the depth of a cascade is its number of leaves.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distclust.errors import InputError
from distclust.trees import _tree_numerics as numerics

Ints = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)

#: What a merge of two trees does with their roots, as in :meth:`Structure.from_operations`.
JOIN, ABSORB_LEFT, ABSORB_RIGHT, COLLAPSE = range(4)


@dataclass(frozen=True, eq=False)
class Structure:
    """Which node has which children.

    Parameters
    ----------
    n_leaves
        Number of leaves, at least one.
    child_start
        Shape (n_internal + 1,). The children of node ``n_leaves + i`` are
        ``child_list[child_start[i] : child_start[i + 1]]``, ascending, two or more.
    child_list
        Shape (n_nodes - 1,). Every node but the root, once.

    Raises
    ------
    InputError
        If the arrays do not describe one tree in this numbering.

    Examples
    --------
    >>> tree = Structure.from_merges([(0, 1), (2, 3)])
    >>> tree.root, tree.children(4).tolist(), tree.leaf_order().tolist()
    (4, [2, 3], [2, 0, 1])
    """

    n_leaves: int
    child_start: Ints
    child_list: Ints

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_leaves", int(self.n_leaves))
        object.__setattr__(self, "child_start", _whole_numbers(self.child_start))
        object.__setattr__(self, "child_list", _whole_numbers(self.child_list))
        self._check()

    @classmethod
    def from_merges(cls, merges: ArrayLike) -> Structure:
        """Build a binary tree from (n_leaves - 1, 2) pairs; merge t makes node n_leaves + t."""
        pairs = np.asarray(merges)
        if pairs.size == 0:
            pairs = pairs.reshape(0, 2)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise InputError(
                "Structure.from_merges",
                "pairs of nodes",
                f"shape {pairs.shape}",
                "Pass an array of shape (n_leaves - 1, 2).",
            )
        ordered = np.sort(_whole_numbers(pairs), axis=1)
        return cls(len(pairs) + 1, 2 * np.arange(len(pairs) + 1), ordered.ravel())

    @classmethod
    def from_children(cls, n_leaves: int, children: Sequence[Sequence[int]]) -> Structure:
        """Build a tree from the children of each internal node, in the order of nodes."""
        sizes = [len(nodes) for nodes in children]
        flat = [child for nodes in children for child in sorted(nodes)]
        return cls(n_leaves, np.cumsum([0, *sizes]), np.array(flat, dtype=np.int64))

    @classmethod
    def from_parents(cls, n_leaves: int, parent: ArrayLike) -> Structure:
        """Build a tree from the parent of each node, shape (n_nodes,); the root's is -1."""
        parents = _whole_numbers(parent)
        n_nodes = len(parents)
        numbers = np.arange(n_nodes)
        fits = n_nodes >= max(n_leaves, 1) and parents[-1] == -1
        below = parents[:-1]
        if (
            not fits
            or np.any(below <= numbers[:-1])
            or np.any((below < n_leaves) | (below >= n_nodes))
        ):
            raise InputError(
                "Structure.from_parents",
                "every node below a later internal one, the root last",
                "another order",
                "Number the nodes so that children come before parents.",
            )
        child_start = np.zeros(n_nodes - n_leaves + 1, dtype=np.int64)
        child_list = np.zeros(n_nodes - 1, dtype=np.int64)
        numerics.lists_from_parents(n_leaves, parents, child_start, child_list)
        return cls(n_leaves, child_start, child_list)

    @classmethod
    def from_operations(cls, merges: ArrayLike, operations: ArrayLike) -> tuple[Structure, Ints]:
        """Build a rose tree from merges of two trees that may swallow their roots.

        Parameters
        ----------
        merges
            Shape (n_leaves - 1, 2): merge t makes working node ``n_leaves + t`` of two others.
        operations
            Shape (n_leaves - 1,): JOIN keeps both roots as children, ABSORB_LEFT replaces the
            first one of the pair by its children, ABSORB_RIGHT the second, COLLAPSE both.

        Returns
        -------
        The tree, and the working number of each of its nodes, shape (n_nodes,).
        """
        pairs = _whole_numbers(merges).reshape(-1, 2)
        codes = _whole_numbers(operations)
        binary = cls.from_merges(pairs)
        dissolved = np.zeros(binary.n_nodes, dtype=np.bool_)
        dissolved[pairs[(codes == ABSORB_LEFT) | (codes == COLLAPSE), 0]] = True
        dissolved[pairs[(codes == ABSORB_RIGHT) | (codes == COLLAPSE), 1]] = True
        if np.any(dissolved[: binary.n_leaves]):
            raise InputError(
                "Structure.from_operations",
                "only internal nodes to be absorbed",
                "a leaf",
                "Use JOIN for leaves.",
            )
        parent = binary.parent.copy()
        numerics.lift_dissolved(dissolved, parent)
        surviving = np.flatnonzero(~dissolved)
        renumbered = np.cumsum(~dissolved) - 1
        kept = parent[surviving]
        parents = np.where(kept < 0, -1, renumbered[kept])
        return cls.from_parents(binary.n_leaves, parents), surviving

    @property
    def n_internal(self) -> int:
        """Number of nodes that have children."""
        return len(self.child_start) - 1

    @property
    def n_nodes(self) -> int:
        """Number of all nodes, leaves first."""
        return self.n_leaves + self.n_internal

    @property
    def root(self) -> int:
        """The last node; the only one without a parent."""
        return self.n_nodes - 1

    @property
    def is_binary(self) -> bool:
        """Whether every internal node has exactly two children."""
        return self.n_internal == self.n_leaves - 1

    @property
    def n_children(self) -> Ints:
        """Number of children of each internal node, shape (n_internal,)."""
        return np.diff(self.child_start)

    @functools.cached_property
    def parent(self) -> Ints:
        """Parent of each node, shape (n_nodes,); -1 for the root."""
        parent = np.empty(self.n_nodes, dtype=np.int64)
        numerics.find_parents(*self.arrays, parent)
        return parent

    @functools.cached_property
    def depth(self) -> Ints:
        """Number of proper ancestors of each node, shape (n_nodes,)."""
        depth = np.empty(self.n_nodes, dtype=np.int64)
        numerics.count_depth(self.parent, depth)
        return depth

    @functools.cached_property
    def n_leaves_below(self) -> Ints:
        """Number of leaves under each node, shape (n_nodes,); one for a leaf."""
        return self.sum_up(np.ones(self.n_leaves, dtype=np.int64))

    @functools.cached_property
    def leaf_start(self) -> Ints:
        """Position in :meth:`leaf_order` of each node's leftmost leaf, shape (n_nodes,)."""
        start = np.empty(self.n_nodes, dtype=np.int64)
        numerics.place_leaves(*self.arrays, self.n_leaves_below, start)
        return start

    @functools.cached_property
    def _leaf_order(self) -> Ints:
        order = np.empty(self.n_leaves, dtype=np.int64)
        order[self.leaf_start[: self.n_leaves]] = np.arange(self.n_leaves)
        return order

    @property
    def arrays(self) -> tuple[int, Ints, Ints]:
        """The three arguments every compiled pass over the tree begins with."""
        return self.n_leaves, self.child_start, self.child_list

    def is_leaf(self, node: int) -> bool:
        """Whether `node` has no children."""
        return self._checked(node) < self.n_leaves

    def children(self, node: int) -> Ints:
        """Children of `node`, ascending; none for a leaf."""
        i = self._checked(node) - self.n_leaves
        if i < 0:
            return self.child_list[:0]
        return self.child_list[self.child_start[i] : self.child_start[i + 1]]

    def ancestors(self, node: int) -> list[int]:
        """Proper ancestors of `node`, the parent first and the root last."""
        above = []
        node = int(self.parent[self._checked(node)])
        while node >= 0:
            above.append(node)
            node = int(self.parent[node])
        return above

    def leaf_order(self) -> Ints:
        """Leaves from left to right, shape (n_leaves,); each node's leaves are neighbours."""
        return self._leaf_order

    def leaves(self, node: int) -> Ints:
        """Leaves under `node` from left to right; the node itself if it is a leaf."""
        start = self.leaf_start[self._checked(node)]
        return self._leaf_order[start : start + self.n_leaves_below[node]]

    def sum_up(self, leaf_values: NDArray[Number]) -> NDArray[Number]:
        """Add values of leaves up the tree.

        Parameters
        ----------
        leaf_values
            Shape (n_leaves, ...).

        Returns
        -------
        Shape (n_nodes, ...), same type. Children are added in child order, one after
        another, so the result is reproducible to the last bit.
        """
        values = np.asarray(leaf_values)
        if len(values) != self.n_leaves:
            raise InputError(
                "Structure.sum_up",
                f"one value for each of {self.n_leaves} leaves",
                f"{len(values)}",
                "Pass an array of shape (n_leaves, ...).",
            )
        total: NDArray[Any] = np.empty((self.n_nodes, *values.shape[1:]), dtype=values.dtype)
        total[: self.n_leaves] = values
        width = int(np.prod(values.shape[1:], dtype=np.int64))
        numerics.add_up(*self.arrays, total.reshape(self.n_nodes, width))
        return total

    def __repr__(self) -> str:
        return f"Structure(n_leaves={self.n_leaves}, n_internal={self.n_internal})"

    def _checked(self, node: int) -> int:
        if 0 <= node < self.n_nodes:
            return int(node)
        raise InputError(
            "node",
            f"a node number from 0 to {self.root}",
            repr(node),
            "Nodes below n_leaves are leaves; the last one is the root.",
        )

    def _check(self) -> None:
        n_listed = len(self.child_list)
        starts = self.child_start
        bounded = (
            self.n_leaves >= 1
            and len(starts) >= 1
            and starts[0] == 0
            and starts[-1] == n_listed == self.n_nodes - 1
            and bool(np.all(np.diff(starts) >= 2))
            and (n_listed == 0 or self.child_list.min() >= 0)
        )
        fault = numerics.first_fault(*self.arrays) if bounded else 0
        if fault >= 0:
            raise InputError(
                "Structure",
                "one tree whose nodes have two or more ascending earlier children",
                f"a fault at node {self.n_leaves + fault}",
                "List every node but the last exactly once as a child.",
            )


def _whole_numbers(values: ArrayLike) -> Ints:
    array = np.asarray(values)
    if array.dtype.kind not in "iu" and (
        array.dtype.kind != "f" or not np.all(array == np.rint(array))
    ):
        raise InputError(
            "Structure",
            "whole node numbers",
            f"values of type {array.dtype}",
            "Pass integers.",
        )
    return np.ascontiguousarray(array, dtype=np.int64)
