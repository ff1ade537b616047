"""The way of a row from the root to the end of the filters that are known so far.

A *node* is a set of rows. It is split by a filter into further nodes, or it is where rows
end. Nodes are numbered as they are made, so a node's number is above its parent's.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distclust.families import Family
from distclust.store.archive import with_prefix
from distclust.trees import components
from distclust.trees.filters import Filter

Indices = npt.NDArray[np.int64]

ROOT = 0
_NONE: Indices = np.empty(0, np.int64)
_OF_FILTER = ("log_weights", "starts")
_OF_SPLIT = ("children", "merges", "sampled_rows", "sampled_outcomes")


class Share(NamedTuple):
    """How a node is to be divided, before its children have numbers; see `Split`."""

    filter: Filter
    merges: Indices
    sampled_rows: Indices = _NONE
    sampled_outcomes: Indices = _NONE


@dataclass(frozen=True, eq=False)
class Split:
    """How a node is divided.

    Attributes
    ----------
    filter
        Which of the children a row goes to.
    children
        Numbers of the children, shape (n_children,): ascending as they are made; after
        `Router.reopened` several outcomes may lead to one.
    merges
        The binary tree above the children, shape (n_children - 1, 2), numbered as in
        `Structure.from_merges`.
    sampled_rows, sampled_outcomes
        Rows of the sample that stay where their tree has them: ascending numbers and their
        children. None of them in the default mode, where the filter moves them too.
    """

    filter: Filter
    children: Indices
    merges: Indices
    sampled_rows: Indices
    sampled_outcomes: Indices

    def choose(self, block: Any, numbers: Indices | None) -> Indices:
        """Return the child of every row; rows with `numbers` may be of the sample."""
        chosen = self.filter.choose(block)
        if numbers is not None and len(self.sampled_rows):
            place = np.searchsorted(self.sampled_rows, numbers)
            place = np.minimum(place, len(self.sampled_rows) - 1)
            is_sampled = self.sampled_rows[place] == numbers
            chosen[is_sampled] = self.sampled_outcomes[place[is_sampled]]
        return self.children[chosen]


@dataclass(frozen=True, eq=False)
class Router:
    """All splits made so far.

    Attributes
    ----------
    paths
        Path of every node: the empty text for the root, then children's numbers.
    splits
        How each split node is divided.
    seed
        Of the hashes by which samples of nodes are drawn.
    """

    paths: tuple[str, ...]
    splits: Mapping[int, Split]
    seed: int

    @classmethod
    def start(cls, seed: int) -> Router:
        """Return a router with nothing but the root."""
        return cls(("",), {}, seed)

    @property
    def n_nodes(self) -> int:
        """Number of nodes, split ones included."""
        return len(self.paths)

    @functools.cached_property
    def is_split(self) -> npt.NDArray[np.bool_]:
        """Whether a node is divided further, shape (n_nodes,)."""
        known = np.zeros(self.n_nodes, np.bool_)
        known[list(self.splits)] = True
        return known

    def divided(self, shares: Mapping[int, Share]) -> Router:
        """Return the router with further nodes divided; children get the next numbers."""
        paths, splits = list(self.paths), dict(self.splits)
        for node, share in sorted(shares.items()):
            n_children = share.filter.n_outcomes
            children = np.arange(len(paths), len(paths) + n_children)
            paths.extend(f"{self.paths[node]}/{i}" for i in range(n_children))
            splits[node] = Split(share.filter, children, *share[1:])
        return Router(tuple(paths), splits, self.seed)

    def reopened(self, groups: Sequence[Indices]) -> Router:
        """Return the router with a new end for each group of ends: their rows go there.

        The old ends keep their numbers, and no row reaches them any more. The path of a new
        end is that of the first old one, marked, so that its samples are other rows.
        """
        paths, target = list(self.paths), np.arange(self.n_nodes)
        for ends in groups:
            target[ends] = len(paths)
            paths.append(f"{self.paths[ends[0]]}~")
        splits = {
            node: replace(split, children=target[split.children])
            for node, split in self.splits.items()
        }
        return Router(tuple(paths), splits, self.seed)

    def without(self, is_empty: npt.NDArray[np.bool_]) -> Router:
        """Return the router for new rows, without ways to some of the nodes.

        Nodes keep their numbers. No fitted row goes another way for it, except that rows
        of samples are forgotten.
        """
        splits = {}
        for node, split in self.splits.items():
            kept = np.flatnonzero(~is_empty[split.children])
            if len(kept):
                parts = split.filter.only(kept), split.children[kept], split.merges
                splits[node] = Split(*parts, _NONE, _NONE)
        return Router(self.paths, splits, self.seed)

    def place(
        self, block: Any, start: int | None = None, nodes: npt.NDArray[Any] | None = None
    ) -> Indices:
        """Return the node where each row ends, shape (n,).

        Parameters
        ----------
        block
            Rows, dense or CSR.
        start
            Number of the first of fitted rows, which may be of a sample; None for new rows.
        nodes
            Where the rows are already, shape (n,); by default the root.
        """
        ends = np.zeros(block.shape[0], np.int64) if nodes is None else nodes.astype(np.int64)
        moving = np.flatnonzero(self.is_split[ends])
        while len(moving):
            for node, rows in _grouped(ends[moving], moving):
                part = block if len(rows) == block.shape[0] else block[rows]
                numbers = None if start is None else start + rows
                ends[rows] = self.splits[node].choose(part, numbers)
            moving = moving[self.is_split[ends[moving]]]
        return ends

    # ---- saving --------------------------------------------------------------------------

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return the router as JSON values and arrays; the family stays behind."""
        nodes = sorted(self.splits)
        facts = {"paths": list(self.paths), "split": nodes, "seed": self.seed}
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name in _OF_FILTER:
            arrays |= _listed(name, [getattr(self.splits[k].filter, name) for k in nodes])
        for name in _OF_SPLIT:
            arrays |= _listed(name, [getattr(self.splits[k], name) for k in nodes])
        for node in nodes:
            parts = components.to_arrays(self.splits[node].filter.components)
            arrays |= {f"{node}.{name}": part for name, part in parts.items()}
        return facts, arrays

    @classmethod
    def from_arrays(
        cls, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], family: Family
    ) -> Router:
        """Inverse of `to_arrays`."""
        nodes = facts["split"]
        of_filter = zip(*(_unlisted(name, arrays) for name in _OF_FILTER), strict=True)
        of_split = zip(*(_unlisted(name, arrays) for name in _OF_SPLIT), strict=True)
        splits = {}
        for node, parts, others in zip(nodes, of_filter, of_split, strict=True):
            held = components.from_arrays(with_prefix(arrays, f"{node}."), family.n_statistics)
            splits[node] = Split(Filter(family, held, *parts), *others)
        return cls(tuple(facts["paths"]), splits, int(facts["seed"]))


def _grouped(nodes: Indices, rows: Indices) -> list[tuple[int, Indices]]:
    """Return each node with its rows, ascending."""
    if (nodes == nodes[0]).all():
        return [(int(nodes[0]), rows)]
    order = np.argsort(nodes, kind="stable")
    ordered = nodes[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    groups = np.split(rows[order], starts[1:])
    return list(zip(ordered[starts].tolist(), groups, strict=True))


def _listed(name: str, parts: list[npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return arrays of different lengths as one, and their lengths."""
    if not parts:
        return {f"{name}.lengths": np.zeros(0, np.int64)}
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    return {f"{name}.lengths": lengths, f"{name}.values": np.concatenate(parts)}


def _unlisted(name: str, arrays: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    lengths = arrays[f"{name}.lengths"]
    if len(lengths) == 0:
        return []
    return np.split(arrays[f"{name}.values"], np.cumsum(lengths)[:-1])
