"""How models of clusters place rows, and how well rows fit; travels to workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.engine import reduce_blocks
from distclust.ensembles.bases import Base, label_block
from distclust.ensembles.consensus import ConsensusModel
from distclust.errors import InputError
from distclust.families import Family, family_from_dict
from distclust.store import Column, Matrix, profile_block
from distclust.store.archive import with_prefix
from distclust.trees.data import first_look, resolve_family
from distclust.trees.drift import new_scores
from distclust.trees.labelling import likeliest
from distclust.trees.sweeping import Clusters

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

_FAMILY, _STATS = "scores.family.", "scores.stats"  # of what was learned, in an archive


class Scores(Protocol):
    """What is asked of a model; blocks come with the number of their first row."""

    def check(self, block: Any, columns: tuple[Column, ...]) -> None:
        """Refuse rows that the model cannot take."""

    def labels(self, block: Any, start: int) -> Labels:
        """Return the cluster of each row, as `predict` does."""

    def new(self, block: Any, start: int, labels: Labels) -> Floats:
        """Return the log predictive density of rows that the model has not seen."""

    def old(self, block: Any, start: int, labels: Labels) -> Floats:
        """Return that of rows of the fit, each left out where the model allows it."""

    def learned(self, matrix: Matrix, labels: Labels, n_clusters: int) -> Scores:
        """Return scores that know what they need of the rows of the fit and their clusters."""

    def to_arrays(self) -> tuple[dict[str, Any], Arrays]:
        """Return what was learned and is not in the model, as JSON values and arrays."""

    def restored(self, facts: Mapping[str, Any], arrays: Arrays) -> Scores:
        """Return the scores with what was learned."""


@dataclass(frozen=True, eq=False)
class DensityScores:
    """Clusters of a family, by their statistics (n_clusters, p)."""

    family: Family
    stats: Floats
    where: str

    def check(self, block: Any, columns: tuple[Column, ...]) -> None:
        """Refuse rows that the family cannot take."""
        self.family.check(profile_block(block), columns, self.where)

    def labels(self, block: Any, start: int) -> Labels:
        """Return the most probable cluster of each row."""
        return likeliest(block, start, self.family, self.stats, np.log(self.stats[:, 0]))

    def new(self, block: Any, start: int, labels: Labels) -> Floats:
        """Return log p(x | cluster)."""
        return new_scores(self.family, block, labels, self.stats)

    def old(self, block: Any, start: int, labels: Labels) -> Floats:
        """Return log p(x | the other rows of its cluster)."""
        clusters = Clusters(self.family, self.stats, np.zeros(len(self.stats)), 0.0)
        return clusters.own_densities(block, labels)

    def learned(self, matrix: Matrix, labels: Labels, n_clusters: int) -> DensityScores:
        """Return the same: the model knows all of it."""
        return self

    def to_arrays(self) -> tuple[dict[str, Any], Arrays]:
        """Return nothing."""
        return {}, {}

    def restored(self, facts: Mapping[str, Any], arrays: Arrays) -> DensityScores:
        """Return the same."""
        return self


@dataclass(frozen=True, eq=False)
class ConsensusScores:
    """Clusters of label rows, through the bases that give labels.

    A base by k-means says which centre is nearest, not how far it is, so labels hardly tell rows
    that are far from everything. How well rows fit is therefore asked of their own densities, by
    the family that suits the data and the rows of each cluster. Where no family takes the rows,
    the labels of the bases are all there is; their distributions are learned from all rows of a
    cluster, and rows of the fit are not left out.
    """

    bases: tuple[Base, ...]
    model: ConsensusModel
    where: str
    density: DensityScores | None = None

    def check(self, block: Any, columns: tuple[Column, ...]) -> None:
        """Refuse rows that the family cannot take; bases refuse for themselves."""
        if self.density is not None:
            self.density.check(block, columns)

    def labels(self, block: Any, start: int) -> Labels:
        """Return the most probable cluster of each row."""
        found: Labels = self.model.proba(self._codes(block, start)).argmax(axis=1)
        return found

    def new(self, block: Any, start: int, labels: Labels) -> Floats:
        """Return log p(x | cluster), or that of the labels of the bases."""
        if self.density is not None:
            return self.density.new(block, start, labels)
        return self.model.log_likelihood(self._codes(block, start), labels)

    def old(self, block: Any, start: int, labels: Labels) -> Floats:
        """Return the same of rows of the fit."""
        if self.density is not None:
            return self.density.old(block, start, labels)
        return self.new(block, start, labels)

    def learned(self, matrix: Matrix, labels: Labels, n_clusters: int) -> ConsensusScores:
        """Return scores with the family of the data and the statistics of the clusters."""
        try:
            family, _ = resolve_family("auto", matrix, first_look(matrix), self.where)
        except InputError:
            return self  # no family takes such rows, see above
        shared = family, labels, n_clusters
        stats = reduce_blocks(_sum_up, matrix, *shared, stage="learning the clusters")
        return replace(self, density=DensityScores(family, stats, self.where))

    def to_arrays(self) -> tuple[dict[str, Any], Arrays]:
        """Return the family and the statistics."""
        if self.density is None:
            return {}, {}
        family, arrays = self.density.family.to_dict()
        told = {_FAMILY + name: array for name, array in arrays.items()}
        return {"family": family}, {_STATS: self.density.stats, **told}

    def restored(self, facts: Mapping[str, Any], arrays: Arrays) -> ConsensusScores:
        """Return the scores with family and statistics, if there are any."""
        if "family" not in facts:
            return self
        family = family_from_dict(facts["family"], with_prefix(arrays, _FAMILY), self.where)
        return replace(self, density=DensityScores(family, arrays[_STATS], self.where))

    def _codes(self, block: Any, start: int) -> Any:
        return label_block(block, start, self.bases, self.where)


def _sum_up(block: Any, start: int, family: Family, labels: Labels, n_clusters: int) -> Floats:
    """Return the statistics of the clusters in a block."""
    own = labels[start : start + block.shape[0]]
    rows = np.flatnonzero(own >= 0)
    return family.accumulate(block[rows], own[rows], n_clusters)
