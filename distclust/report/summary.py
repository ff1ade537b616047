"""What a fitted tree found and how sure it is, as one plain value.

The terminal, the HTML page and ``--json`` all show this value, so they cannot disagree.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from distclust.trees import Tree
    from distclust.trees.base import TreeEstimator


@dataclass(frozen=True)
class Feature:
    """A feature that tells a cluster from its sibling in the tree."""

    name: str
    information: float  # nats of mutual information with "here rather than there"
    mean_here: float
    mean_there: float


@dataclass(frozen=True)
class Cluster:
    """One cluster of the cut."""

    label: int
    node: int
    n_rows: int
    probability: float  # that its rows are one cluster, given the tree
    probability_apart: float | None  # that it is not one with its sibling; None at the root
    rows: tuple[str, ...]  # names of the first few rows
    features: tuple[Feature, ...]


@dataclass(frozen=True)
class Summary:
    """A fitted model in a few numbers and one line a cluster."""

    method: str
    n_rows: int
    n_features: int
    family: str
    family_reason: str
    n_clusters: int
    log_evidence: float
    log_lower_bound: float | None
    log10_n_partitions: float
    clusters: tuple[Cluster, ...]  # in the order of their labels

    def as_dict(self) -> dict[str, Any]:
        """Return plain lists, dictionaries and numbers, ready for JSON."""
        return dataclasses.asdict(self)


def summarise(
    model: TreeEstimator,
    *,
    threshold: float | None = None,
    n_features: int = 4,
    n_rows: int = 12,
    n_clusters: int = 50,
) -> Summary:
    """Describe a fitted model.

    Parameters
    ----------
    model
        A fitted estimator.
    threshold
        Probability from which on rows are called one cluster, instead of the model's own
        cut.
    n_features, n_rows
        How many telling features and row names to keep for each cluster.
    n_clusters
        Describe only that many clusters, the largest; `Summary.n_clusters` counts all.
    """
    tree = model.tree_
    nodes = cut_nodes(model) if threshold is None else tree.cut_nodes(threshold)
    largest = np.argsort(-tree.n_rows[nodes], kind="stable")[:n_clusters]
    return Summary(
        method=type(model).__name__,
        n_rows=count_rows(model),
        n_features=int(model.n_features_in_),
        family=type(model.family_).__name__,
        family_reason=model.family_reason_,
        n_clusters=len(nodes),
        log_evidence=float(model.log_evidence_),
        log_lower_bound=_optional(getattr(model, "log_lower_bound_", None)),
        log10_n_partitions=float(tree.log10_n_partitions),
        clusters=tuple(
            _describe(tree, label, int(nodes[label]), n_features, n_rows)
            for label in sorted(largest.tolist())
        ),
    )


def cut_nodes(model: TreeEstimator) -> NDArray[np.int64]:
    """Node of each cluster of the model, in the order of its labels."""
    tree: Tree = model.tree_
    nodes: NDArray[np.int64] = (
        tree.map_nodes() if model.cut == "map" else tree.cut_nodes(model.threshold)
    )
    return nodes


def count_rows(model: TreeEstimator) -> int:
    """Return how many rows the fit saw; the tree of a store has leaves for rows."""
    tree = model.tree_
    return len(tree.leaf_of_row) if holds_rows(model) else int(tree.n_rows[-1])


def holds_rows(model: TreeEstimator) -> bool:
    """Whether the model knows every row, not only the first of each leaf."""
    return bool(getattr(model, "_has_rows", True))


def _describe(tree: Tree, label: int, node: int, n_features: int, n_rows: int) -> Cluster:
    parent = int(tree.structure.parent[node])
    log_not_posterior = tree.evaluation.log_not_posterior
    return Cluster(
        label=label,
        node=node,
        n_rows=int(tree.n_rows[node]),
        probability=math.exp(tree.evaluation.log_posterior[node]),
        probability_apart=None if parent < 0 else math.exp(log_not_posterior[parent]),
        rows=tuple(str(tree.row_ids[row]) for row in tree.rows(node)[:n_rows]),
        features=_telling(tree, node, n_features) if parent >= 0 else (),
    )


def _telling(tree: Tree, node: int, n_features: int) -> tuple[Feature, ...]:
    return tuple(
        Feature(name, information, mean, sibling_mean)
        for name, information, mean, sibling_mean in tree.top_features(node, n_features)
    )


def _optional(value: Any) -> float | None:
    return None if value is None else float(value)
