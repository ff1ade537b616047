"""The tree users hold: shape, evidence, and everything that can be asked of it.

A :class:`Tree` is a frozen value of flat arrays, of any arity, whatever algorithm found it.
Its rows may be fewer in number than its leaves' contents: a leaf may be a cluster formed
beforehand, and several input rows then point to it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distclust.errors import InputError
from distclust.trees import _tree_numerics as numerics
from distclust.trees import evaluate as evaluation_
from distclust.trees.evaluate import DirichletProcess, Evaluation, Mixing
from distclust.trees.structure import Structure
from distclust.validation import check_integer, check_real

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import RenderableType

    from distclust.families import Family

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FEATURE_CELLS = 2**17  # nodes times features that are told apart at once


class Feature(NamedTuple):
    """How a feature tells a node from its siblings."""

    name: str
    information: float  # nats
    mean: float  # of the node's rows
    sibling_mean: float  # of the other rows below the same parent


@dataclass(frozen=True, eq=False, repr=False)
class Tree:
    """A hierarchy of rows with the probability of each merge.

    Made by :meth:`build` or found in the ``tree_`` of a fitted estimator.

    Parameters
    ----------
    structure
        The shape; leaves first, root last.
    n_rows
        Rows below each node (weights included), shape (n_nodes,).
    log_marginal
        Log marginal likelihood of each node as one cluster, shape (n_nodes,).
    mixing
        Prior over the partitions of the tree.
    evaluation
        Evidence and merge probabilities, see :func:`distclust.trees.evaluate.evaluate`.
    leaf_of_row
        Leaf of each input row, shape (n_input_rows,); every leaf has a row.
    row_ids
        Name of each input row, shape (n_input_rows,), numbers or strings.
    feature_names
        Names of the columns, or None if unknown.
    family
        The likelihood, or None if unknown; needed by :meth:`top_features`.
    statistics
        Sufficient statistics of each node, shape (n_nodes, p), or None.
    """

    structure: Structure
    n_rows: Floats
    log_marginal: Floats
    mixing: Mixing
    evaluation: Evaluation
    leaf_of_row: Ints
    row_ids: NDArray[Any]
    feature_names: tuple[str, ...] | None = None
    family: Family | None = None
    statistics: Floats | None = None

    @classmethod
    def build(
        cls,
        structure: Structure,
        n_rows_leaf: ArrayLike,
        log_marginal: ArrayLike,
        mixing: Mixing,
        *,
        leaf_of_row: ArrayLike | None = None,
        row_ids: ArrayLike | None = None,
        feature_names: tuple[str, ...] | None = None,
        family: Family | None = None,
        statistics: Floats | None = None,
    ) -> Tree:
        """Evaluate a structure and wrap it.

        Parameters
        ----------
        structure
            The shape.
        n_rows_leaf
            Rows in each leaf (weights included), shape (n_leaves,).
        log_marginal
            Log marginal likelihood of each node as one cluster, shape (n_nodes,).
        mixing
            Prior over the partitions of the tree.
        leaf_of_row
            Leaf of each input row; by default row i is leaf i.
        row_ids
            Names of the input rows; by default their numbers.
        feature_names, family, statistics
            Kept for prediction and for :meth:`top_features`.
        """
        n_rows = structure.sum_up(np.asarray(n_rows_leaf, dtype=np.float64))
        marginals = np.ascontiguousarray(log_marginal, dtype=np.float64)
        _check_values(structure, n_rows, marginals)
        leaves = _checked_leaves(structure, leaf_of_row)
        evaluation = evaluation_.evaluate(structure, n_rows, marginals, mixing)
        return cls(
            structure,
            n_rows,
            marginals,
            mixing,
            evaluation,
            leaves,
            _checked_ids(row_ids, len(leaves)),
            feature_names,
            family,
            statistics,
        )

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return self.structure.n_leaves

    @property
    def n_nodes(self) -> int:
        """Number of leaves and internal nodes."""
        return self.structure.n_nodes

    @property
    def root(self) -> int:
        """Number of the root node."""
        return self.structure.root

    @property
    def log_odds(self) -> Floats:
        """Log odds that each node is one cluster, shape (n_nodes,); infinite at leaves."""
        return self.evaluation.log_odds

    @property
    def posterior(self) -> Floats:
        """Probability that each node is one cluster given its subtree, shape (n_nodes,)."""
        return np.exp(self.evaluation.log_posterior)

    @property
    def log_evidence(self) -> float:
        """log p(D | T) of the whole tree."""
        return float(self.evaluation.log_evidence[-1])

    @property
    def log_lower_bound(self) -> float | None:
        """Lower bound on the evidence of a Dirichlet-process mixture, where that is the prior."""
        return self.evaluation.log_lower_bound

    @property
    def log10_n_partitions(self) -> float:
        """Decimal logarithm of the number of partitions the tree stands for."""
        return evaluation_.log10_n_partitions(self.structure)

    @functools.cached_property
    def log_block_probability(self) -> Floats:
        """Log probability that each node is a block of the partition, shape (n_nodes,)."""
        return evaluation_.log_block_probability(self.structure, self.evaluation)

    @functools.cached_property
    def heights(self) -> Floats:
        """Heights that never decrease towards the root, shape (n_nodes,); zero at leaves.

        The height of a merge is how far its log odds lie below those of the surest merge of
        the tree, in nats. Odds may rise towards the root, so a node is lifted to its highest
        child where it would otherwise lie below it.
        """
        heights = self.split_preference()
        heights[: self.n_leaves] = 0.0
        if self.n_leaves > 1:
            heights[self.n_leaves :] += self.log_odds[self.n_leaves :].max()
        return heights

    def split_preference(self) -> Floats:
        """Negative log odds, raised to the largest of the subtree; -inf at leaves."""
        preference = -self.log_odds
        numerics.max_up(*self.structure.arrays, preference)
        return preference

    def cut(self, threshold: float = 0.5) -> Ints:
        """Labels of the clusters that the model believes in, shape (n_input_rows,).

        From the root down, the first node whose probability of being one cluster reaches
        `threshold` becomes one. Clusters are numbered by their first row.
        """
        return self._labels(self._cut(threshold))[0]

    def cut_nodes(self, threshold: float = 0.5) -> Ints:
        """Node of each cluster of :meth:`cut`, in the order of its labels."""
        return self._labels(self._cut(threshold))[1]

    def map_partition(self) -> Ints:
        """Labels of the most probable partition of the tree, shape (n_input_rows,)."""
        return self._labels(self._best_blocks())[0]

    def map_nodes(self) -> Ints:
        """Node of each cluster of :meth:`map_partition`, in the order of its labels."""
        return self._labels(self._best_blocks())[1]

    def predictive_log_weights(self, new_cluster: bool = False) -> tuple[Floats, float]:
        """Weights of the mixture that predicts a new row.

        Parameters
        ----------
        new_cluster
            Whether the row may start a cluster of its own; Dirichlet process only.

        Returns
        -------
        Log weight of each node's predictive density, shape (n_nodes,), and of the prior
        predictive density (-inf without `new_cluster`). All weights sum to one.
        """
        n = float(self.n_rows[-1])
        log_weights = np.log(self.n_rows) + self.log_block_probability
        if not new_cluster:
            return log_weights - math.log(n), -math.inf
        if not isinstance(self.mixing, DirichletProcess):
            raise InputError(
                "Tree.predictive_log_weights",
                "new_cluster=False without a Dirichlet process",
                "new_cluster=True",
                "Only variants with a concentration can open a new cluster.",
            )
        alpha = self.mixing.concentration
        log_total = math.log(n + alpha)
        return log_weights - log_total, math.log(alpha) - log_total

    def rows(self, node: int) -> Ints:
        """Positions of the input rows below `node`, ascending."""
        below = np.zeros(self.n_leaves, dtype=np.bool_)
        below[self.structure.leaves(node)] = True
        return np.flatnonzero(below[self.leaf_of_row])

    def leaf_name(self, leaf: int) -> str:
        """Name of a leaf: its row's id, or the first id and how many more."""
        first, n_members = self._first_rows
        name = str(self.row_ids[first[leaf]])
        return name if n_members[leaf] == 1 else f"{name} +{n_members[leaf] - 1}"

    def top_features(self, node: int, n: int = 10) -> list[Feature]:
        """Features that tell a node from its siblings, the most informative first.

        Parameters
        ----------
        node
            Any node but the root.
        n
            How many to return at most.

        Returns
        -------
        Name, information in nats about being here rather than in a sibling, mean here and
        mean in the siblings.
        """
        if not (0 <= node < self.n_nodes and self.structure.parent[node] >= 0):
            raise InputError(
                "Tree.top_features",
                f"a node number from 0 to {self.root - 1}",
                repr(node),
                "The root has no sibling to differ from.",
            )
        return next(self.top_features_of([node], n))

    def top_features_of(self, nodes: Sequence[int], n: int = 10) -> Iterator[list[Feature]]:
        """Yield `top_features` of some nodes, none of which is the root."""
        check_integer(n, "Tree.top_features: n", at_least=1)
        if self.family is None or self.statistics is None:
            raise InputError(
                "Tree.top_features",
                "a tree that carries its family and statistics",
                "one without",
                "Use the tree_ of a fitted or loaded estimator.",
            )
        names = self.feature_names or tuple(f"x{d}" for d in range(self.family.n_features))
        at_once = max(1, _FEATURE_CELLS // self.family.n_features)
        for start in range(0, len(nodes), at_once):
            part = list(nodes[start : start + at_once])
            here = self.statistics[part]
            beside = np.stack([self._siblings_of(node, self.statistics) for node in part])
            information = np.asarray(self.family.feature_informations(here, beside))
            top = np.argsort(-information, axis=1, kind="stable")[:, :n]
            means = self.family.feature_means(here), self.family.feature_means(beside)
            figures = (np.take_along_axis(a, top, axis=1).tolist() for a in (information, *means))
            for chosen, *rest in zip(top.tolist(), *figures, strict=True):
                columns = zip(chosen, *rest, strict=True)
                yield [Feature(names[d], *values) for d, *values in columns]

    def linkage(self) -> Floats:
        """The tree as a SciPy linkage matrix, shape (n_leaves - 1, 4).

        See :func:`distclust.trees.export.linkage` for heights and nodes with many children.
        """
        from distclust.trees import export

        return export.linkage(self)

    def newick(
        self, lengths: Literal["height", "none"] = "height", *, posteriors: bool = True
    ) -> str:
        """The tree in Newick format, see :func:`distclust.trees.export.newick`."""
        from distclust.trees import export

        return export.newick(self, lengths, posteriors=posteriors)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings; family and statistics stay behind."""
        from distclust.trees import export

        return export.to_dict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Tree:
        """Inverse of :meth:`to_dict`, exact to the last bit."""
        from distclust.trees import export

        return export.from_dict(data)

    def to_json(self) -> str:
        """:meth:`to_dict` as strict JSON."""
        from distclust.trees import export

        return export.to_json(self)

    @staticmethod
    def from_json(text: str) -> Tree:
        """Inverse of :meth:`to_json`, exact to the last bit."""
        from distclust.trees import export

        return export.from_json(text)

    def plot(self, ax: Axes | None = None, max_leaves: int = 60, *, threshold: float = 0.5) -> Axes:
        """Draw the tree, see :func:`distclust.trees.draw.plot`."""
        from distclust.trees import draw

        return draw.plot(self, ax, max_leaves, threshold=threshold)

    def __repr__(self) -> str:
        n_clusters = len(self._cut(0.5))
        return (
            f"Tree(n_leaves={self.n_leaves}, n_clusters={n_clusters}, "
            f"log_evidence={self.log_evidence:.6g}, mixing={self.mixing!r})"
        )

    def __rich__(self) -> RenderableType:
        from distclust.trees import draw

        return draw.terminal(self)

    def _repr_html_(self) -> str:
        from distclust.trees import draw

        return draw.html(self)

    def _cut(self, threshold: float) -> Ints:
        level = check_real(threshold, "Tree.cut: threshold", at_least=0.0, at_most=1.0)
        with np.errstate(divide="ignore"):
            log_odds = np.log(level) - np.log1p(-level)
        return evaluation_.first_stops(self.structure, self.log_odds >= log_odds)

    def _best_blocks(self) -> Ints:
        return evaluation_.best_blocks(self.structure, self.n_rows, self.log_marginal, self.mixing)

    def _labels(self, nodes: Ints) -> tuple[Ints, Ints]:
        """Label of each row and node of each label, numbered by first row."""
        from_left = nodes[np.argsort(self.structure.leaf_start[nodes])]
        node_of_leaf = np.empty(self.n_leaves, dtype=np.int64)
        sizes = self.structure.n_leaves_below[from_left]
        node_of_leaf[self.structure.leaf_order()] = np.repeat(from_left, sizes)
        found, first, inverse = np.unique(
            node_of_leaf[self.leaf_of_row], return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        return rank[inverse], found[order]

    @functools.cached_property
    def _first_rows(self) -> tuple[Ints, Ints]:
        _, first, counts = np.unique(self.leaf_of_row, return_index=True, return_counts=True)
        return first, counts

    def _siblings_of(self, node: int, statistics: Floats) -> Floats:
        """Return the sum of the statistics of a node's siblings."""
        family = self.structure.children(int(self.structure.parent[node])).tolist()
        siblings = [child for child in family if child != node]
        return np.asarray(statistics[siblings].sum(axis=0))


def _check_values(structure: Structure, n_rows: Floats, log_marginal: Floats) -> None:
    if not np.all(n_rows > 0) or not np.all(np.isfinite(n_rows)):
        raise InputError(
            "Tree.build: n_rows_leaf",
            "a positive number of rows in each leaf",
            f"a smallest of {n_rows.min()}",
            "Leave empty clusters out.",
        )
    if log_marginal.shape != (structure.n_nodes,) or np.any(np.isnan(log_marginal)):
        raise InputError(
            "Tree.build: log_marginal",
            f"one number for each of {structure.n_nodes} nodes",
            f"shape {log_marginal.shape} with {int(np.isnan(log_marginal).sum())} NaN",
            "Pass the family's log_marginal of the statistics of all nodes.",
        )


def _checked_leaves(structure: Structure, leaf_of_row: ArrayLike | None) -> Ints:
    if leaf_of_row is None:
        return np.arange(structure.n_leaves)
    leaves = np.ascontiguousarray(leaf_of_row, dtype=np.int64)
    in_range = leaves.ndim == 1 and len(leaves) > 0 and leaves.min() >= 0
    in_range = in_range and leaves.max() < structure.n_leaves
    if not in_range or np.any(np.bincount(leaves, minlength=structure.n_leaves) == 0):
        raise InputError(
            "Tree.build: leaf_of_row",
            f"leaf numbers below {structure.n_leaves}, each at least once",
            f"an array of shape {leaves.shape} that is not so",
            "Give every leaf at least one row.",
        )
    return leaves


def _checked_ids(row_ids: ArrayLike | None, n_rows: int) -> NDArray[Any]:
    if row_ids is None:
        return np.arange(n_rows)
    ids = np.asarray(row_ids)
    if ids.dtype.kind not in "iuU":
        ids = ids.astype(str)
    if ids.shape != (n_rows,):
        raise InputError(
            "Tree.build: row_ids", f"{n_rows} names", f"shape {ids.shape}", "Name every row once."
        )
    return ids
