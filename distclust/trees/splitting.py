"""What the sample of a node says: one cluster, a way to divide the node, or its exact tree.

One task a node; pure functions of the sample, so the answer is the same wherever it runs.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from distclust import events
from distclust.engine import local_threads, thread_map
from distclust.families import Family
from distclust.trees.evaluate import DirichletProcess, evaluate, first_stops
from distclust.trees.filters import (
    Filter,
    FilterPredictive,
    FilterPrior,
    SampleTree,
    make_filter,
)
from distclust.trees.optimise import LearningPlan, fit_tree
from distclust.trees.routing import Share
from distclust.trees.sampling import Candidates
from distclust.trees.search import SearchPlan, greedy_search
from distclust.trees.structure import Structure

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Resolve = Literal["clusters", "rows"]

_COMPARED_AT_ONCE = 128  # rows: whatever the threads are, the answer is the same
_WIDEST = 64  # subtrees into which one pass divides a node without clusters in it


@dataclass(frozen=True)
class Settings:
    """Parameters of a randomised tree, checked.

    Attributes
    ----------
    sample_size, check_size
        Rows of a sample that divides, and of one that only tests a leaf.
    max_levels
        Largest depth of the tree, None for any.
    levels_per_pass
        Levels of a sample's tree that one pass takes; None: down to its cut.
    prior, predictive
        Of filters.
    resolve
        Whether leaves are clusters or rows.
    mixing
        Prior over partitions.
    seed
        Of the samples.
    """

    sample_size: int
    check_size: int
    max_levels: int | None
    levels_per_pass: int | None
    prior: FilterPrior
    predictive: FilterPredictive
    resolve: Resolve
    mixing: DirichletProcess
    seed: int

    @property
    def moves_sampled_rows(self) -> bool:
        """Whether the filter moves rows of the sample, too; as published it does not.

        Nor on the way to single rows: rows of one cluster may all be likeliest in the same
        subtree, and the node would never become smaller.
        """
        return self.levels_per_pass is None and self.resolve == "clusters"


@dataclass(frozen=True, eq=False)
class Question:
    """A node and its sample.

    Attributes
    ----------
    node, level
        Number of the node and its depth in the tree.
    n_rows
        Rows of the node.
    sample
        The sample by hash, or all rows of the node in their own order.
    """

    node: int
    level: int
    n_rows: int
    sample: Candidates

    @property
    def is_whole(self) -> bool:
        """Whether the sample holds every row of the node."""
        return len(self.sample) == self.n_rows


@dataclass(frozen=True, eq=False)
class Exact:
    """The tree of a node all of whose rows were seen.

    Attributes
    ----------
    merges
        As in `Structure.from_merges`, shape (n_rows - 1, 2).
    positions
        Row of each leaf, ascending, shape (n_rows,).
    stats
        Statistics of each leaf, shape (n_rows, p).
    """

    merges: Indices
    positions: Indices
    stats: Floats


@dataclass(frozen=True, eq=False)
class Answer:
    """What becomes of a node; neither `share` nor `exact` if it stays a leaf.

    Attributes
    ----------
    node
        Its number.
    share
        How to divide it.
    n_sampled, levels, is_cluster
        For each child: rows of the sample in it, its depth, and whether the sample holds it
        for one cluster.
    is_finished
        Whether children that are clusters need no test of their own.
    exact
        Its tree down to the rows.
    """

    node: int
    share: Share | None = None
    n_sampled: Indices = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    levels: Indices = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    is_cluster: npt.NDArray[np.bool_] = dataclasses.field(
        default_factory=lambda: np.empty(0, np.bool_)
    )
    is_finished: bool = False
    exact: Exact | None = None


@dataclass(frozen=True, eq=False)
class FirstAnswer:
    """What the sample of all rows says.

    Attributes
    ----------
    answer
        What becomes of the root.
    family
        With the scale that the sample chose.
    n_compared, n_disagreeing
        Rows outside the sample that were asked, and those that the filter with the subtree
        predictive everywhere would send elsewhere.
    """

    answer: Answer
    family: Family
    n_compared: int
    n_disagreeing: int


def examine_root(
    question: Question, held_out: Any, family: Family, settings: Settings
) -> FirstAnswer:
    """Answer for the root, with all threads; `held_out` are rows to measure filters on."""
    stats = _row_statistics(question, family)
    search = SearchPlan(mixing=settings.mixing, threads=local_threads())
    fitted = fit_tree(family, stats, search, LearningPlan())
    tree = _evaluated(fitted.structure, fitted.log_marginal, stats, settings)
    answer = _answer(question, fitted.family, tree, stats, settings)
    compared, disagreeing = 0, 0
    if settings.predictive == "auto" and answer.share is not None:
        outcomes = _outcomes(question, tree, settings)
        whole = make_filter(fitted.family, tree, outcomes, settings.prior, "subtree")
        rows = held_out if held_out.shape[0] else question.sample.rows
        compared = int(rows.shape[0])
        disagreeing = _count_differing(answer.share.filter, whole, rows)
    return FirstAnswer(answer, fitted.family, compared, disagreeing)


def _count_differing(one: Filter, other: Filter, rows: Any) -> int:
    """Return how many rows two filters send different ways, with all threads."""

    def count(start: int) -> int:
        part = rows[start : start + _COMPARED_AT_ONCE]
        return int(np.sum(one.choose(part) != other.choose(part)))

    starts = range(0, rows.shape[0], _COMPARED_AT_ONCE)
    return sum(thread_map(count, starts, local_threads()))


def examine(question: Question, family: Family, settings: Settings) -> Answer:
    """Answer for any other node, with one thread and the prior that the root has chosen."""
    stats = _row_statistics(question, family)
    with events.redirect(_ignore):  # the number of nodes done says enough
        found = greedy_search(family, stats, SearchPlan(mixing=settings.mixing, threads=1))
    tree = _evaluated(found.structure, found.log_marginal, stats, settings)
    return _answer(question, family, tree, stats, settings)


def _ignore(event: events.Event) -> None:
    pass


def _row_statistics(question: Question, family: Family) -> Floats:
    n_rows = len(question.sample)
    return family.accumulate(question.sample.rows, np.arange(n_rows), n_rows)


def _evaluated(
    structure: Structure, log_marginal: Floats, stats: Floats, settings: Settings
) -> SampleTree:
    all_stats = structure.sum_up(stats)
    evaluation = evaluate(structure, all_stats[:, 0], log_marginal, settings.mixing)
    return SampleTree(structure, evaluation, all_stats)


def _answer(
    question: Question, family: Family, tree: SampleTree, stats: Floats, settings: Settings
) -> Answer:
    node, sample = question.node, question.sample
    if settings.resolve == "rows" and question.is_whole:
        merges = tree.structure.child_list.reshape(-1, 2)
        return Answer(node, exact=Exact(merges, sample.positions, stats))
    outcomes = _outcomes(question, tree, settings)
    if len(outcomes) == 1:
        return Answer(node)
    share = Share(
        make_filter(family, tree, outcomes, settings.prior, settings.predictive),
        merges_above(tree.structure, outcomes),
    )
    if not settings.moves_sampled_rows:
        order = np.argsort(sample.positions)
        of_leaf = outcome_of_leaf(tree.structure, outcomes)
        share = share._replace(
            sampled_rows=sample.positions[order], sampled_outcomes=of_leaf[order]
        )
    depth = tree.structure.depth[outcomes]
    return Answer(
        node,
        share,
        n_sampled=tree.stats[outcomes, 0].astype(np.int64),
        levels=question.level + depth,
        is_cluster=tree.evaluation.log_odds[outcomes] >= 0.0,
        is_finished=question.is_whole,
    )


def _outcomes(question: Question, tree: SampleTree, settings: Settings) -> Indices:
    """Return the subtrees between which rows are to be told apart, from left to right."""
    structure = tree.structure
    stops = structure.depth >= _deepest(question, settings)
    stops[: structure.n_leaves] = True
    if settings.resolve == "clusters" or settings.levels_per_pass is None:
        stops |= tree.evaluation.log_odds >= 0.0
    if settings.resolve == "rows":
        stops[structure.root] = structure.n_leaves == 1 or settings.max_levels == question.level
    outcomes = first_stops(structure, stops)
    if settings.resolve == "rows" and settings.levels_per_pass is None:
        outcomes = _opened(outcomes, question, tree, settings)
    return outcomes[np.argsort(structure.leaf_start[outcomes])]


def _deepest(question: Question, settings: Settings) -> float:
    allowed = math.inf if settings.max_levels is None else settings.max_levels - question.level
    return min(allowed, settings.levels_per_pass or math.inf)


def _opened(outcomes: Indices, question: Question, tree: SampleTree, settings: Settings) -> Indices:
    """Replace the largest subtrees by their children until each will fit one sample.

    Rows without clusters among them make trees that split off little at a time; taking
    several levels at once keeps the number of passes small.
    """
    structure, sizes = tree.structure, tree.stats[:, 0]
    enough = settings.sample_size * len(question.sample) / question.n_rows
    deepest = _deepest(question, settings)
    found = outcomes.tolist()
    while len(found) < _WIDEST:
        k = max(found, key=lambda node: (sizes[node], node))
        if sizes[k] <= max(enough, 1.0) or structure.depth[k] >= deepest:
            break
        found.remove(k)
        found.extend(structure.children(k).tolist())
    return np.array(found, dtype=np.int64)


def merges_above(structure: Structure, outcomes: Indices) -> Indices:
    """Return the tree above some of the nodes, as merges of their places in the list."""
    place = {int(node): i for i, node in enumerate(outcomes)}
    below = np.zeros(structure.n_nodes, np.bool_)
    below[outcomes] = True
    merges: list[list[int]] = []
    for node in range(structure.n_leaves, structure.n_nodes):
        children = structure.children(node).tolist()
        if all(child in place for child in children) and not below[node]:
            merges.append([place[child] for child in children])
            place[node] = len(outcomes) + len(merges) - 1
    return np.array(merges, dtype=np.int64).reshape(-1, 2)


def outcome_of_leaf(structure: Structure, outcomes: Indices) -> Indices:
    """Return the place in `outcomes` of the one that each leaf is in, shape (n_leaves,)."""
    found = np.empty(structure.n_leaves, np.int64)
    for i, node in enumerate(outcomes.tolist()):
        found[structure.leaves(node)] = i
    return found
