"""Slow, obvious answers about tiny trees, by enumeration in exact fractions.

A tree is a nested tuple of leaf numbers, ``((0, 1), (2, 3, 4))``, and everything recurses
over it. Marginal likelihoods come from the chain rule of one-step predictions under Beta(1, 1)
priors, so neither gamma functions nor logarithms nor sufficient statistics are shared with
the code under test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

from distclust.trees.structure import Structure

Nested = Any  # an int, or a tuple of Nested
Partition = tuple[frozenset[int], ...]
Rows = Sequence[Sequence[int]]


# ---- trees as nested tuples ------------------------------------------------------------


def leaves_of(tree: Nested) -> list[int]:
    if isinstance(tree, int):
        return [tree]
    return [leaf for child in tree for leaf in leaves_of(child)]


def subtrees(tree: Nested) -> Iterator[Nested]:
    """Internal nodes, children before parents."""
    if isinstance(tree, int):
        return
    for child in tree:
        yield from subtrees(child)
    yield tree


def number_nodes(tree: Nested) -> tuple[Structure, list[Nested]]:
    """The tree in flat form, and the nested subtree of each node number."""
    nodes: list[Nested] = sorted(leaves_of(tree))
    children = []
    for subtree in subtrees(tree):
        # Leaf sets identify nodes: no two nodes of a tree have the same.
        numbers = [_index(nodes, child) for child in subtree]
        children.append(sorted(numbers))
        nodes.append(subtree)
    return Structure.from_children(len(leaves_of(tree)), children), nodes


def _index(nodes: list[Nested], wanted: Nested) -> int:
    for number, node in enumerate(nodes):
        if frozenset(leaves_of(node)) == frozenset(leaves_of(wanted)):
            return number
    raise AssertionError("not a node of the tree")


def binarised(tree: Nested) -> Nested:
    """The same tree with every wide node turned into a cascade."""
    if isinstance(tree, int):
        return tree
    children = [binarised(child) for child in tree]
    joined = children[0]
    for child in children[1:]:
        joined = (joined, child)
    return joined


def relabelled(tree: Nested, names: Sequence[int]) -> Nested:
    if isinstance(tree, int):
        return names[tree]
    return tuple(relabelled(child, names) for child in tree)


# ---- partitions ------------------------------------------------------------------------


def tree_partitions(tree: Nested) -> list[Partition]:
    """All partitions into subtrees."""
    if isinstance(tree, int):
        return [(frozenset([tree]),)]
    together: list[Partition] = [(frozenset(leaves_of(tree)),)]
    choices = itertools.product(*(tree_partitions(child) for child in tree))
    return together + [tuple(itertools.chain(*choice)) for choice in choices]


def set_partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All partitions of a set."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for partition in set_partitions(rest):
        yield [[first], *partition]
        for i, block in enumerate(partition):
            yield [*partition[:i], [first, *block], *partition[i + 1 :]]


def mixing_weights(
    tree: Nested, probability: Callable[[Nested], Fraction]
) -> dict[Partition, Fraction]:
    """Prior weight of each partition: blocks with `probability` at each internal node."""
    if isinstance(tree, int):
        return {(frozenset([tree]),): Fraction(1)}
    pi = probability(tree)
    weights = {(frozenset(leaves_of(tree)),): pi}
    parts = [mixing_weights(child, probability).items() for child in tree]
    for choice in itertools.product(*parts):
        blocks = tuple(itertools.chain(*(partition for partition, _ in choice)))
        weights[blocks] = (1 - pi) * math.prod(weight for _, weight in choice)
    return weights


def rose_probability(gamma: Fraction) -> Callable[[Nested], Fraction]:
    return lambda tree: 1 - (1 - gamma) ** (len(tree) - 1)


def constant_probability(gamma: Fraction) -> Callable[[Nested], Fraction]:
    return lambda tree: gamma


def dirichlet_probability(
    alpha: Fraction, sizes: Sequence[int] | None = None
) -> Callable[[Nested], Fraction]:
    def probability(tree: Nested) -> Fraction:
        whole = (frozenset(leaves_of(tree)),)
        total = sum(crp_weight(p, alpha, sizes) for p in tree_partitions(tree))
        return crp_weight(whole, alpha, sizes) / total

    return probability


def crp_weight(
    partition: Sequence[Any], alpha: Fraction, sizes: Sequence[int] | None = None
) -> Fraction:
    """Product over blocks of alpha (n_b - 1)!, leaves counting `sizes` rows each."""
    weight = Fraction(1)
    for block in partition:
        n = len(block) if sizes is None else sum(sizes[leaf] for leaf in block)
        weight *= alpha * math.factorial(n - 1)
    return weight


# ---- likelihoods -----------------------------------------------------------------------


def marginal(rows: Rows) -> Fraction:
    """Probability of binary rows under one cluster: each given those before."""
    probability = Fraction(1)
    for i, row in enumerate(rows):
        probability *= predictive(row, rows[:i])
    return probability


def predictive(row: Sequence[int], rows: Rows) -> Fraction:
    """Probability of a binary row given others of its cluster (Laplace's rule a column)."""
    probability = Fraction(1)
    for d, value in enumerate(row):
        agreeing = sum(1 for other in rows if other[d] == value)
        probability *= Fraction(agreeing + 1, len(rows) + 2)
    return probability


class Likelihood:
    """f of sets of leaves, where leaf i holds the rows `groups[i]`."""

    def __init__(self, groups: Sequence[Rows]) -> None:
        self.groups = groups
        self._known: dict[frozenset[int], Fraction] = {}

    @property
    def sizes(self) -> list[int]:
        return [len(group) for group in self.groups]

    def rows(self, block: Any) -> list[Sequence[int]]:
        return [row for leaf in sorted(block) for row in self.groups[leaf]]

    def __call__(self, block: Any) -> Fraction:
        key = frozenset(block)
        if key not in self._known:
            self._known[key] = marginal(self.rows(key))
        return self._known[key]

    def of_partition(self, partition: Sequence[Any]) -> Fraction:
        return math.prod((self(block) for block in partition), start=Fraction(1))


def log_fraction(value: Fraction) -> float:
    return math.log(value.numerator) - math.log(value.denominator)


def rising(alpha: Fraction, n: int) -> Fraction:
    return math.prod((alpha + i for i in range(n)), start=Fraction(1))


def mixture_marginal(rows: Rows, alpha: Fraction) -> Fraction:
    """Exact evidence of the Dirichlet-process mixture: all partitions of the rows."""
    likelihood = Likelihood([[row] for row in rows])
    total = sum(
        crp_weight(partition, alpha) * likelihood.of_partition(partition)
        for partition in set_partitions(list(range(len(rows))))
    )
    return Fraction(total) / rising(alpha, len(rows))


def posterior(
    tree: Nested, likelihood: Likelihood, prior: dict[Partition, Fraction]
) -> dict[Partition, Fraction]:
    """Posterior probability of each partition of the tree."""
    joint = {p: weight * likelihood.of_partition(p) for p, weight in prior.items()}
    total = sum(joint.values())
    return {p: value / total for p, value in joint.items()}


# ---- purity ----------------------------------------------------------------------------


def purity_by_pairs(tree: Nested, labels: Sequence[Any], weighting: str) -> Fraction:
    """Expected share of the class in the smallest subtree of two of its rows."""
    pairs = [
        (i, j)
        for i, j in itertools.permutations(sorted(leaves_of(tree)), 2)
        if labels[i] == labels[j]
    ]
    total, weight = Fraction(0), Fraction(0)
    for i, j in pairs:
        n_partners = sum(1 for a, _ in pairs if a == i)
        share = Fraction(1, n_partners) if weighting == "leaf" else Fraction(1)
        below = leaves_of(smallest_common(tree, i, j))
        n_same = sum(1 for leaf in below if labels[leaf] == labels[i])
        total += share * Fraction(n_same, len(below))
        weight += share
    return total / weight


def smallest_common(tree: Nested, i: int, j: int) -> Nested:
    for child in tree:
        if not isinstance(child, int) and {i, j} <= set(leaves_of(child)):
            return smallest_common(child, i, j)
    return tree


# ---- Newick ----------------------------------------------------------------------------


def parse_newick(text: str) -> tuple[Any, str, float | None]:
    """Read Newick character by character: (children or [], label, length) of the root."""
    node, position = _parse_node(text, 0)
    assert text[position:] == ";"
    return node


def _parse_node(text: str, at: int) -> tuple[tuple[Any, str, float | None], int]:
    children = []
    if text[at] == "(":
        while text[at] in "(,":
            child, at = _parse_node(text, at + 1)
            children.append(child)
        assert text[at] == ")"
        at += 1
    label, at = _parse_label(text, at)
    length = None
    if text[at] == ":":
        end = at + 1
        while text[end] not in ",();":
            end += 1
        length, at = float(text[at + 1 : end]), end
    return (children, label, length), at


def _parse_label(text: str, at: int) -> tuple[str, int]:
    label = ""
    if text[at] != "'":
        while text[at] not in ",():;":
            label += text[at]
            at += 1
        return label, at
    at += 1
    while True:
        if text[at] == "'" and text[at + 1] != "'":
            return label, at + 1
        at += 2 if text[at] == "'" else 1
        label += text[at - 1]
