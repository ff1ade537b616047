"""Randomised BHC and EM-BHC as the thesis writes them: recursion, loops over rows, sets.

A tree is a row number or a pair (left, right) of trees. Log marginals of sets of rows come
from the family; everything above them is written out again: greedy search over all pairs,
the predictive as a ratio of marginals, the sum over a subtree, sampling by sorting hashes,
sweeps row by row. Only for tiny problems, and for data without ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from distclust.families import Family
from distclust.seeding import row_hashes, row_keys
from distclust.store import ArrayMatrix
from distclust.trees.evaluate import evaluate
from distclust.trees.structure import Structure

Nested = Any  # an int, or a pair of Nested


def rows_of(tree: Nested) -> list[int]:
    if isinstance(tree, int):
        return [tree]
    return [row for child in tree for row in rows_of(child)]


def nodes_of(tree: Nested) -> list[Nested]:
    """All subtrees, the tree itself first."""
    if isinstance(tree, int):
        return [tree]
    return [tree, *nodes_of(tree[0]), *nodes_of(tree[1])]


def as_sets(tree: Nested) -> Any:
    """Forget which child is the left one."""
    return tree if isinstance(tree, int) else frozenset(as_sets(child) for child in tree)


class Model:
    """A family, rows and a concentration; remembers what it has computed."""

    def __init__(self, family: Family, rows: np.ndarray, concentration: float = 1.0) -> None:
        self.family, self.rows, self.concentration = family, rows, concentration
        self._log_f: dict[frozenset[int], float] = {}
        self._log_p: dict[Any, float] = {}
        self._log_d: dict[Any, float] = {}

    def log_f(self, rows: Sequence[int]) -> float:
        key = frozenset(rows)
        if key not in self._log_f:
            group = self.rows[sorted(key)]
            stats = self.family.accumulate(group, np.zeros(len(group), int), 1)
            self._log_f[key] = float(self.family.log_marginal(stats)[0])
        return self._log_f[key]

    def log_p(self, row: int, others: Sequence[int]) -> float:
        """log p(x_row | others), a ratio of marginals; `row` is not one of them."""
        assert row not in others
        if not others:
            return self.log_f([row])
        return self.log_f([row, *others]) - self.log_f(others)

    # ---- trees -----------------------------------------------------------------------------

    def log_d(self, tree: Nested) -> float:
        if tree not in self._log_d:
            value = math.log(self.concentration) + math.lgamma(len(rows_of(tree)))
            if not isinstance(tree, int):
                value = np.logaddexp(value, self.log_d(tree[0]) + self.log_d(tree[1]))
            self._log_d[tree] = float(value)
        return self._log_d[tree]

    def log_pi(self, tree: Nested) -> float:
        own = math.log(self.concentration) + math.lgamma(len(rows_of(tree)))
        return own - self.log_d(tree)

    def log_evidence(self, tree: Nested) -> float:
        """Equation 3.2, with prior probabilities."""
        if isinstance(tree, int):
            return self.log_f([tree])
        if tree not in self._log_p:
            together = self.log_pi(tree) + self.log_f(rows_of(tree))
            self._log_p[tree] = float(np.logaddexp(together, self._apart(tree)))
        return self._log_p[tree]

    def _apart(self, tree: Nested) -> float:
        log_not = self.log_d(tree[0]) + self.log_d(tree[1]) - self.log_d(tree)
        return log_not + self.log_evidence(tree[0]) + self.log_evidence(tree[1])

    def log_odds(self, tree: Nested) -> float:
        if isinstance(tree, int):
            return math.inf
        return self.log_pi(tree) + self.log_f(rows_of(tree)) - self._apart(tree)

    def bhc(self, rows: Sequence[int]) -> Nested:
        """Greedy search; of two joined trees the one made earlier is the left one."""
        active: list[Nested] = list(rows)
        made: dict[Any, int] = {tree: i for i, tree in enumerate(active)}
        while len(active) > 1:
            pairs = [(a, b) for i, a in enumerate(active) for b in active[i + 1 :]]
            best = max(pairs, key=self.log_odds)
            active = [tree for tree in active if tree not in best]
            best = min(best, key=made.__getitem__), max(best, key=made.__getitem__)
            made[best] = len(made)
            active.append(best)
        return active[0]

    # ---- filters ---------------------------------------------------------------------------

    def score(self, row: int, tree: Nested, prior: str, predictive: str) -> float:
        """Log score of a subtree for a row that is not in it, spec section 3."""
        size = len(rows_of(tree))
        log_prior = {"size": math.log(size), "pi": self.log_pi(tree), "flat": 0.0}[prior]
        if predictive == "single" or isinstance(tree, int):
            return log_prior + self.log_p(row, rows_of(tree))
        return log_prior - math.log(size) + math.log(self._mass(row, tree, 1.0))

    def _mass(self, row: int, tree: Nested, reach: float) -> float:
        """Sum of n_k rho_k p(x | D_k) below a node that is reached with a probability."""
        odds = self.log_odds(tree)
        merged = 1.0 if math.isinf(odds) else 1.0 / (1.0 + math.exp(-odds))
        below = rows_of(tree)
        total = len(below) * reach * merged * math.exp(self.log_p(row, below))
        if isinstance(tree, int):
            return total
        split = reach / (1.0 + math.exp(odds))
        return total + sum(self._mass(row, child, split) for child in tree)

    def rbhc(
        self, sample_size: int, seed: int, prior: str = "size", predictive: str = "subtree"
    ) -> Nested:
        """Algorithms 3.4 and 3.5."""
        keys = row_keys(np.arange(len(self.rows)))

        def divide(rows: list[int], path: str) -> Nested:
            if len(rows) <= sample_size:
                return self.bhc(sorted(rows))
            sample = smallest_hashes(rows, row_hashes(seed, keys[rows], path), sample_size)
            left, right = self.bhc(sample)
            sides = rows_of(left), rows_of(right)
            for row in rows:
                if row not in sample:
                    scores = [self.score(row, side, prior, predictive) for side in (left, right)]
                    sides[0 if scores[0] > scores[1] else 1].append(row)
            return divide(sides[0], f"{path}/0"), divide(sides[1], f"{path}/1")

        return divide(list(range(len(self.rows))), "")

    # ---- EM --------------------------------------------------------------------------------

    def seeds(self, n_seeds: int, seed: int) -> list[int]:
        rows = list(range(len(self.rows)))
        hashes = row_hashes(seed, row_keys(np.arange(len(rows))), "")
        return smallest_hashes(rows, hashes, n_seeds)

    def nearest_seed(self, seeds: list[int]) -> list[int]:
        """Cluster of every row, by its number among the seeds, which stay where they are."""
        stats = self.family.accumulate(self.rows[seeds], np.arange(len(seeds)), len(seeds))
        log_f = self.family.log_marginal(stats)
        found = []
        for i, row in enumerate(self.rows):
            own = self.family.accumulate(row[None], np.zeros(1, int), 1)
            likeliest = _last_highest(self.family.log_marginal(stats + own) - log_f)
            found.append(seeds.index(i) if i in seeds else likeliest)
        return found

    def sweep(self, labels: list[int], n_clusters: int) -> list[int]:
        """One batch sweep of spec section 4; clusters without rows take no part."""
        members = [[i for i, z in enumerate(labels) if z == c] for c in range(n_clusters)]
        found = []
        for i, own in enumerate(labels):
            scores = np.full(n_clusters, -math.inf)
            for c, rows in enumerate(members):
                others = [row for row in rows if row != i]
                if others:
                    scores[c] = math.log(len(others)) + self.log_p(i, others)
                elif c == own:
                    scores[c] = math.log(self.concentration) + self.log_p(i, [])
            found.append(_last_highest(scores))
        return found

    def objective(self, labels: Sequence[int]) -> float:
        """J(z), the log joint probability of a partition and the rows up to a constant."""
        total = 0.0
        for c in set(labels):
            rows = [i for i, z in enumerate(labels) if z == c]
            total += math.log(self.concentration) + math.lgamma(len(rows)) + self.log_f(rows)
        return total

    def em(self, n_seeds: int, n_sweeps: int, seed: int) -> tuple[list[int], list[float]]:
        """Clusters with the highest objective before it first drops, and its path."""
        labels = self.nearest_seed(self.seeds(n_seeds, seed))
        path = [self.objective(labels)]
        for _ in range(n_sweeps):
            moved = self.sweep(labels, n_seeds)
            if moved == labels:
                path.append(path[-1])
                break
            value = self.objective(moved)
            if value < path[-1]:
                break
            labels, path = moved, [*path, value]
        return labels, path


def smallest_hashes(rows: Sequence[int], hashes: Any, n: int) -> list[int]:
    """The rows with the smallest hashes, in that order."""
    return [row for _, row in sorted(zip(hashes.tolist(), rows, strict=True))[:n]]


def by_first_row(labels: Sequence[int]) -> list[int]:
    """The same partition, its blocks numbered by first appearance."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in labels]


def _last_highest(scores: np.ndarray) -> int:
    return max(range(len(scores)), key=lambda c: (scores[c], c))


# ---- rows of every family ----------------------------------------------------------------------

FAMILIES = ("bernoulli", "categorical", "multinomial", "poisson", "gaussian", "diagonal_gaussian")


def planted(family: str, seed: int, n_rows: int = 60, n_clusters: int = 4) -> np.ndarray:
    """Rows of a few clusters that overlap a little; no two rows are equal."""
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    labels = rng.integers(0, n_clusters, n_rows)
    if family == "bernoulli":
        return (rng.random((n_rows, 24)) < rng.beta(0.5, 0.5, (n_clusters, 24))[labels]).astype(int)
    if family == "categorical":
        chances = rng.dirichlet(np.full(3, 0.4), (n_clusters, 14))
        sums = chances[labels].cumsum(axis=2)
        return (rng.random((n_rows, 14, 1)) > sums).sum(axis=2)
    if family in ("multinomial", "poisson"):
        return rng.poisson(rng.gamma(0.6, 4.0, (n_clusters, 8))[labels])
    return rng.normal(rng.normal(0.0, 3.0, (n_clusters, 3))[labels])


def separated(
    seed: int, sizes: Sequence[int], width: int = 40, noise: float = 0.03
) -> tuple[np.ndarray, np.ndarray]:
    """Binary rows of clusters far apart, in random order, and which they are in."""
    rng = np.random.default_rng(seed)
    centres = rng.integers(0, 2, (len(sizes), width))
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    flipped = rng.random((len(labels), width)) < noise
    return (centres[labels] ^ flipped).astype(np.uint8), labels


class Changing(ArrayMatrix):
    """Rows of which one entry changes after so many reads of its block."""

    def __init__(self, values: np.ndarray, n_reads: int) -> None:
        super().__init__(values)
        self.n_left = n_reads

    def block(self, index: int) -> np.ndarray:
        block = super().block(index)
        if index == 2:
            self.n_left -= 1
            if self.n_left < 0:
                block = block.copy()
                block[3, 1] ^= 1
        return block


# ---- of fitted models --------------------------------------------------------------------------


def nested_leaves(structure: Structure) -> Nested:
    """The tree as nested tuples of leaf numbers."""
    nodes: list[Nested] = list(range(structure.n_leaves))
    for node in range(structure.n_leaves, structure.n_nodes):
        nodes.append(tuple(nodes[child] for child in structure.children(node)))
    return nodes[-1]


def check_same(a: Any, b: Any) -> None:
    """Assert that two models have the same tree and labels, to the bit."""
    np.testing.assert_array_equal(np.asarray(a.labels_), np.asarray(b.labels_))
    np.testing.assert_array_equal(a.tree_.structure.child_list, b.tree_.structure.child_list)
    np.testing.assert_array_equal(a.tree_.n_rows, b.tree_.n_rows)
    np.testing.assert_array_equal(a.tree_.log_odds, b.tree_.log_odds)
    assert a.log_evidence_ == b.log_evidence_
    assert a.n_passes_ == b.n_passes_


def check_direct(model: Any, rows: np.ndarray) -> None:
    """Assert that all reported figures are those of the tree, computed from the rows."""
    tree, family = model.tree_, model.family_
    groups = [tree.rows(node) for node in range(tree.n_nodes)]
    leaves = np.concatenate(groups[: tree.n_leaves])
    assert sorted(leaves.tolist()) == list(range(len(rows)))  # every row in one leaf
    first_rows = [int(g.min()) for g in groups[: tree.n_leaves]]
    assert first_rows == sorted(first_rows)
    stats = np.concatenate(
        [family.accumulate(rows[g], np.zeros(len(g), np.int64), 1) for g in groups]
    )
    sizes = np.array([len(g) for g in groups], dtype=float)
    np.testing.assert_array_equal(tree.n_rows, sizes)
    np.testing.assert_allclose(tree.statistics, stats, rtol=1e-9, atol=1e-9)
    direct = evaluate(tree.structure, sizes, family.log_marginal(stats), tree.mixing)
    np.testing.assert_allclose(tree.log_odds, direct.log_odds, rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(tree.posterior, np.exp(direct.log_posterior), rtol=1e-7)
    assert model.log_evidence_ == pytest.approx(direct.log_evidence[-1], rel=1e-10)
    assert model.log_lower_bound_ == pytest.approx(direct.log_lower_bound, rel=1e-10)
    assert len(model.labels_) == len(rows)
    assert set(model.labels_) == set(range(model.n_clusters_))
    assert by_first_row(model.labels_.tolist()) == model.labels_.tolist()
