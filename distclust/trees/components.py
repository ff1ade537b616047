"""Statistics of a filter's components, held small where rows are wide and mostly zeros.

The components of a filter are nodes of a sample's tree. Of text with ten thousand words each
would take ten thousand numbers, although it is a sum of a few sampled rows with some dozens
of words each. There the sampled rows are held, and which of them each component adds up; the
sums are made when the filter is used, and forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.trees.structure import Structure

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_WIDE = 1024  # numbers of a statistic from which on it pays
_DENSE = 0.1  # share of numbers that are not zero from which on it does not
_PARTS = ("data", "indices", "indptr")


@dataclass(frozen=True, eq=False)
class SparseSums:
    """Components as sums of sparse rows.

    Attributes
    ----------
    rows
        Statistics of sampled rows, CSR of shape (n, p).
    members
        Which rows each component adds up, CSR of ones, shape (components, n).
    """

    rows: Any
    members: Any

    def __len__(self) -> int:
        return int(self.members.shape[0])

    def dense(self) -> Floats:
        """Return the sums, shape (components, p)."""
        return np.asarray((self.members @ self.rows).toarray())

    def take(self, chosen: Indices) -> SparseSums:
        """Return some of the components."""
        return SparseSums(self.rows, self.members[chosen])


Components: TypeAlias = Floats | SparseSums


def dense(components: Components) -> Floats:
    """Return the statistics, shape (components, p)."""
    return components.dense() if isinstance(components, SparseSums) else components


def take(components: Components, chosen: Indices) -> Components:
    """Return some of the components."""
    if isinstance(components, SparseSums):
        return components.take(chosen)
    return components[chosen]


def of_nodes(structure: Structure, stats: Floats, nodes: Indices) -> Components:
    """Return nodes of a tree as components, `stats` (n_nodes, p) being those of all nodes."""
    n_leaves = structure.n_leaves
    leaf_stats = stats[:n_leaves]
    is_wide = stats.shape[1] >= _WIDE
    if not is_wide or np.count_nonzero(leaf_stats) > _DENSE * leaf_stats.size:
        return stats[nodes]
    lists = [np.sort(structure.leaves(node)) for node in nodes.tolist()]
    starts = np.concatenate([[0], np.cumsum([len(part) for part in lists])])
    ones = np.ones(starts[-1])
    members = scipy.sparse.csr_array(
        (ones, np.concatenate(lists), starts), shape=(len(nodes), n_leaves)
    )
    return SparseSums(scipy.sparse.csr_array(leaf_stats), members)


# ---- saving --------------------------------------------------------------------------------------


def to_arrays(components: Components) -> dict[str, npt.NDArray[Any]]:
    """Return components as arrays by name, each of as many entries as it likes."""
    if not isinstance(components, SparseSums):
        return {"stats": components}
    found = {f"rows.{part}": getattr(components.rows, part) for part in _PARTS}
    found |= {f"members.{part}": getattr(components.members, part) for part in _PARTS[1:]}
    return found


def from_arrays(arrays: Mapping[str, npt.NDArray[Any]], n_statistics: int) -> Components:
    """Inverse of `to_arrays`."""
    if "stats" in arrays:
        return arrays["stats"]
    data, indices, indptr = (arrays[f"rows.{part}"] for part in _PARTS)
    chosen, starts = (arrays[f"members.{part}"] for part in _PARTS[1:])
    n_rows = len(indptr) - 1
    return SparseSums(
        scipy.sparse.csr_array((data, indices, indptr), shape=(n_rows, n_statistics)),
        scipy.sparse.csr_array(
            (np.ones(len(chosen)), chosen, starts), shape=(len(starts) - 1, n_rows)
        ),
    )
