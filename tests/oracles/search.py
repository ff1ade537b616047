"""Naive greedy search: every pair, every operation, every time, on nested tuples.

A tree is an int (leaf) or a frozenset of trees. Nothing is cached or updated: the evidence of
each candidate tree is computed from its rows by plain recursion. Only for tiny problems.
"""

from __future__ import annotations

import itertools
import math

import numpy as np


def leaves_of(tree):
    if isinstance(tree, int):
        return [tree]
    return sorted(leaf for child in tree for leaf in leaves_of(child))


class NaiveSearch:
    """`log_f(rows)` is the log marginal of a list of leaf numbers; `size(rows)` their rows."""

    def __init__(self, log_f, size, mixing, parameter, criterion, many_children):
        self.log_f, self.size = log_f, size
        self.mixing, self.parameter = mixing, parameter
        self.criterion, self.many_children = criterion, many_children

    def log_pi(self, tree):
        """log π and log(1 − π) of an internal node."""
        if self.mixing == "dp":
            own = math.log(self.parameter) + math.lgamma(self.size(leaves_of(tree)))
            rest = sum(self.log_d(child) for child in tree)
            total = np.logaddexp(own, rest)
            return own - total, rest - total
        exponent = len(tree) - 1 if self.mixing == "rose" else 1
        return math.log(1 - (1 - self.parameter) ** exponent), exponent * math.log(
            1 - self.parameter
        )

    def log_d(self, tree):
        own = math.log(self.parameter) + math.lgamma(self.size(leaves_of(tree)))
        if isinstance(tree, int):
            return own
        return np.logaddexp(own, sum(self.log_d(child) for child in tree))

    def log_p(self, tree):
        rows = leaves_of(tree)
        if isinstance(tree, int):
            return self.log_f(rows)
        log_pi, log_not = self.log_pi(tree)
        split = log_not + sum(self.log_p(child) for child in tree)
        return np.logaddexp(log_pi + self.log_f(rows), split)

    def odds(self, tree):
        log_pi, log_not = self.log_pi(tree)
        single = log_pi + self.log_f(leaves_of(tree))
        return single - log_not - sum(self.log_p(child) for child in tree)

    def key(self, tree, i, j):
        if self.criterion == "posterior_odds":
            return self.odds(tree)
        return self.log_p(tree) - self.log_p(i) - self.log_p(j)

    def candidates(self, i, j):
        yield frozenset([i, j])
        if not self.many_children:
            return
        if not isinstance(i, int):
            yield frozenset([*i, j])
        if not isinstance(j, int):
            yield frozenset([i, *j])
        if not isinstance(i, int) and not isinstance(j, int):
            yield frozenset([*i, *j])

    def run(self, n_leaves):
        """Return the tree and the key of each merge."""
        active = list(range(n_leaves))
        keys = []
        while len(active) > 1:
            best = None
            for i, j in itertools.combinations(active, 2):
                for tree in self.candidates(i, j):
                    key, odds = self.key(tree, i, j), self.odds(tree)
                    other_pair = best is None or best[3:] != (i, j)
                    if (
                        best is None
                        or key > best[0] + 1e-11
                        # Poor merges tie at log(1 − π): the odds decide between pairs.
                        or (other_pair and abs(key - best[0]) < 1e-11 and odds > best[1] + 1e-9)
                    ):
                        best = key, odds, tree, i, j
            key, _, tree, i, j = best
            keys.append(key)
            active = [t for t in active if t not in (i, j)] + [tree]
        return active[0], keys


def as_nested(structure):
    """A Structure as nested frozensets."""
    nodes = list(range(structure.n_leaves))
    for node in range(structure.n_leaves, structure.n_nodes):
        nodes.append(frozenset(nodes[child] for child in structure.children(node)))
    return nodes[-1]
