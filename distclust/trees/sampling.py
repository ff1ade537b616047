"""Samples of nodes: the rows with the smallest hashes, the same wherever rows lie.

The sample of a node is the `want` rows in it with the smallest hash of (seed, path of the
node, row id). A block cannot know which of its rows these are, but it knows a bound: with n
rows in the node, few more than `want` hashes lie below want / n of their range. So a pass
hands on the rows below a *limit* (candidates), and what is handed on does not grow with
the number of rows. Only where a node turns out smaller than it was thought to be, too few
come together and the rows are read again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.seeding import Keys, salted_hashes

Indices = npt.NDArray[np.int64]

ALL = np.uint64(2**64 - 1)  # the limit that lets every row pass


@dataclass(frozen=True, eq=False)
class Wanted:
    """Which nodes want a sample; arrays by node number.

    Attributes
    ----------
    want
        Rows of the sample, shape (n_nodes,); 0 where none is wanted.
    limits
        Largest hash that is handed on, shape (n_nodes,).
    salts
        What makes the hashes of a node its own, shape (n_nodes,).
    """

    want: Indices
    limits: Keys
    salts: Keys

    def candidates(self, block: Any, nodes: Indices, keys: Keys, start: int) -> Candidates:
        """Return the rows of a block below their nodes' limits, as they lie in it.

        Parameters
        ----------
        block, keys, start
            Rows, their keys, and the number of the first of them.
        nodes
            Node of every row, shape (n,).
        """
        asked: Any = np.flatnonzero((self.want > 0)[nodes])
        if len(asked) == len(nodes):
            asked = slice(None)  # nothing to pick out
        hashes = salted_hashes(keys[asked], self.salts[nodes[asked]])
        passing = np.flatnonzero(hashes <= self.limits[nodes[asked]])
        chosen = np.arange(len(nodes))[asked][passing]
        return Candidates(
            nodes[chosen], hashes[passing], keys[chosen], start + chosen, block[chosen]
        )


@dataclass(frozen=True, eq=False)
class Candidates:
    """Rows that may belong to samples.

    Attributes
    ----------
    nodes, hashes, keys, positions
        Node, hash and key of every row and its number in the matrix, each (n,).
    rows
        The rows, a dense or CSR block (n, d).
    """

    nodes: Indices
    hashes: Keys
    keys: Keys
    positions: Indices
    rows: Any

    def __len__(self) -> int:
        return len(self.nodes)

    def take(self, chosen: npt.NDArray[Any] | slice) -> Candidates:
        """Return some of them, in the order given; a slice shares their memory."""
        return Candidates(
            self.nodes[chosen],
            self.hashes[chosen],
            self.keys[chosen],
            self.positions[chosen],
            self.rows[chosen],
        )

    def trimmed(self, want: Indices) -> Candidates:
        """Return the `want` smallest of every node, ordered by node, hash and key."""
        order = self._order()
        nodes, places = self.nodes[order], np.arange(len(order))
        is_first = np.diff(nodes, prepend=-1) > 0
        first = np.maximum.accumulate(np.where(is_first, places, 0))  # its node's smallest
        return self.take(order[places - first < want[nodes]])

    def _order(self) -> Indices:
        """Return their order by node, hash, key and number in the matrix."""
        by_hash = np.argsort(self.hashes)
        nodes = self.nodes[by_hash]
        if nodes.max(initial=0) < 2**16:
            nodes = nodes.astype(np.uint16)  # numpy sorts these by counting
        order = by_hash[np.argsort(nodes, kind="stable")]
        hashes, nodes = self.hashes[order], self.nodes[order]
        if ((hashes[1:] == hashes[:-1]) & (nodes[1:] == nodes[:-1])).any():
            order = np.lexsort((self.positions, self.keys, self.hashes, self.nodes))
        return order

    def of(self, node: int) -> Candidates:
        """Return those of one node; they are ordered by node."""
        start, stop = np.searchsorted(self.nodes, [node, node + 1])
        return self.take(slice(int(start), int(stop)))

    def in_row_order(self) -> Candidates:
        """Return them by their number in the matrix."""
        return self.take(np.argsort(self.positions, kind="stable"))


def join(parts: list[Candidates]) -> Candidates:
    """Return the candidates of several parts as one, in their order."""
    if len(parts) == 1:
        return parts[0]
    if scipy.sparse.issparse(parts[0].rows):
        rows = scipy.sparse.vstack([part.rows for part in parts], format="csr")
    else:
        rows = np.concatenate([part.rows for part in parts])
    return Candidates(
        np.concatenate([part.nodes for part in parts]),
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.positions for part in parts]),
        rows,
    )


def hash_limit(want: int, at_least: float) -> np.uint64:
    """Return the limit below which `want` of `at_least` rows or more lie, all but surely.

    Six standard deviations above what is wanted; everything where that is a large part.
    """
    if at_least <= 0.0:
        return ALL
    share = (want + 6.0 * math.sqrt(want) + 8.0) / at_least
    return ALL if share > 0.5 else np.uint64(int(share * 2.0**64))


def size_at_least(n_rows: int, n_sampled: int, n_sample: int) -> float:
    """Return what a node most probably exceeds in size: `n_sampled` of a sample are in it.

    Two standard deviations less than it seems. Together with those of `hash_limit`, one of ten
    thousand nodes with 20 sampled rows gets too few candidates for a test.
    """
    fewer = max(n_sampled - 2.0 * math.sqrt(n_sampled), 0.25 * n_sampled)
    return n_rows * fewer / n_sample
