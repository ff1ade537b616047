"""Randomised BHC as a method of fitting by passes; see `distclust.trees.growing`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.families import Family
from distclust.store import Matrix
from distclust.trees import growing
from distclust.trees.assembly import Assembled, assemble
from distclust.trees.evaluate import evaluate, first_stops
from distclust.trees.filters import Filter
from distclust.trees.fits import Finished, Method
from distclust.trees.growing import CodesFor, Growth
from distclust.trees.routing import Router, Share
from distclust.trees.splitting import Settings
from distclust.trees.structure import Structure

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RandomisedBHC(Method[Growth]):
    """Algorithms 3.4 and 3.5: samples divide the rows, from the root down.

    Attributes
    ----------
    family
        As the user gave it.
    settings
        Parameters, checked.
    where
        Place to name in errors.
    """

    family: Family | str
    settings: Settings
    where: str

    def start(self, matrix: Matrix) -> Growth:
        """Look at all rows and divide the root."""
        return growing.plant(matrix, self.family, self.settings, self.where)

    def is_complete(self, state: Growth) -> bool:
        """Whether every row is where it stays."""
        return state.is_complete

    def advance(self, matrix: Matrix, state: Growth, codes_for: CodesFor) -> Growth:
        """Do one pass."""
        return growing.grow(matrix, state, self.settings, codes_for)

    def finish(self, state: Growth) -> Finished:
        """Put the tree together."""
        growing.warn_unresolved(state, self.where)
        found = assemble(state)
        router = state.router.without(state.sizes == 0)
        leaf_of_end = found.leaf_of_node
        if state.exact:
            router, leaf_of_end = _closed(router, leaf_of_end, state, found, self.settings)
        return Finished(
            family=state.family,
            structure=found.structure,
            stats=found.stats,
            log_marginal=found.log_marginal,
            first_rows=found.first_rows,
            step=state.codes_number(state.step),
            leaf_of_code=found.leaf_of_node,
            row_leaves=found.row_leaves,
            router=router,
            leaf_of_end=leaf_of_end,
            facts={
                "family_reason": state.reason,
                "n_passes": state.step,
                "sample_size": self.settings.sample_size,
                "n_compared": state.compared[0],
                "n_disagreeing": state.compared[1],
                "n_unresolved": state.n_unresolved,
                "objective": list(state.objective),
            },
        )

    def step_of(self, state: Growth) -> int:
        """Return the number of the codes after the last pass."""
        return state.codes_number(state.step)

    def to_arrays(self, state: Growth) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return a state as JSON values and arrays."""
        return growing.to_arrays(state)

    def from_arrays(
        self, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> Growth:
        """Inverse of `to_arrays`."""
        return growing.from_arrays(facts, arrays, self.where)


def _closed(
    router: Router, leaf_of_end: Indices, state: Growth, found: Assembled, settings: Settings
) -> tuple[Router, Indices]:
    """Return a router that places new rows in clusters below nodes resolved to the rows.

    Rows themselves are no place for a new row: it joins the cluster of the cut that it is
    likeliest in, as in an exact tree.
    """
    structure = found.structure
    evaluation = evaluate(structure, found.stats[:, 0], found.log_marginal, settings.mixing)
    clusters = first_stops(structure, evaluation.log_odds >= 0.0)
    cluster_of_leaf = _cluster_of_leaf(structure, clusters)
    leaf_of_row = dict(zip(*(part.tolist() for part in found.row_leaves), strict=True))
    shares, leaves = {}, leaf_of_end.tolist()
    for node, exact in sorted(state.exact.items()):
        rows = [leaf_of_row[position] for position in exact.positions.tolist()]
        inside, first = np.unique(cluster_of_leaf[rows], return_index=True)
        stats = found.stats[inside]
        one_each = np.arange(len(inside) + 1)
        merges = np.empty((0, 2), np.int64)  # of no use to new rows
        shares[node] = Share(Filter(state.family, stats, np.log(stats[:, 0]), one_each), merges)
        leaves.extend(rows[i] for i in first.tolist())
    return router.divided(shares), np.array(leaves, dtype=np.int64)


def _cluster_of_leaf(structure: Structure, clusters: Indices) -> Indices:
    """Return the node of the cluster that each leaf is in, shape (n_leaves,)."""
    found = np.empty(structure.n_leaves, np.int64)
    for node in clusters.tolist():
        found[structure.leaves(node)] = node
    return found
