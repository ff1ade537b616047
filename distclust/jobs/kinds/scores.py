"""How models of clusters place rows, and how well rows fit; travels to workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from distclust.ensembles.bases import Base, label_block
from distclust.ensembles.consensus import ConsensusModel
from distclust.families import Family
from distclust.store import Column, profile_block
from distclust.trees.drift import new_scores
from distclust.trees.labelling import likeliest
from distclust.trees.sweeping import Clusters

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


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


@dataclass(frozen=True, eq=False)
class ConsensusScores:
    """Clusters of label rows, through the bases that give labels.

    Distributions of labels are learned from all rows of a cluster, so that one row more or
    less makes no difference: rows of the fit are not left out.
    """

    bases: tuple[Base, ...]
    model: ConsensusModel
    where: str

    def check(self, block: Any, columns: tuple[Column, ...]) -> None:
        """Leave it to the bases, which refuse what they cannot take."""

    def labels(self, block: Any, start: int) -> Labels:
        """Return the most probable cluster of each row."""
        found: Labels = self.model.proba(self._codes(block, start)).argmax(axis=1)
        return found

    def new(self, block: Any, start: int, labels: Labels) -> Floats:
        """Return the log probability of the labels of the bases in the cluster."""
        return self.model.log_likelihood(self._codes(block, start), labels)

    def old(self, block: Any, start: int, labels: Labels) -> Floats:
        """Return the same of rows of the fit."""
        return self.new(block, start, labels)

    def _codes(self, block: Any, start: int) -> Any:
        return label_block(block, start, self.bases, self.where)
