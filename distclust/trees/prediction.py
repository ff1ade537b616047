r"""What a fitted tree says about new rows and about missing entries.

A new row joins node k with weight :math:`\omega_k = (n_k / n)\, \rho_k`, where
:math:`\rho_k` is the probability that the node is a block of the partition, or opens a
cluster of its own with the Dirichlet process's weight:

.. math::
    p(x \mid D) = \frac{n}{n + \alpha} \sum_k \omega_k\, p(x \mid D_k)
                  + \frac{\alpha}{n + \alpha}\, p(x)

(thesis eq. 3.10, in the telescoped form of spec 2.6; rose trees without a Dirichlet process
have no second term, spec 5.3).

A family's predictive density of a row does not depend, to the bit, on the rows and groups
asked with it, so rows and nodes are taken in pieces that bound the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from distclust.families import Family
from distclust.trees.evaluate import DirichletProcess, evaluate
from distclust.trees.tree import Tree

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_ROWS = 1024
_NODES = 4096


def cluster_log_proba(
    block: Any, start: int, family: Family, stats: Floats, log_sizes: Floats
) -> Floats:
    """log of n_c p(x | D_c), normalised over the clusters, shape (n, clusters)."""
    out = np.empty((block.shape[0], len(stats)))
    for rows in _pieces(block.shape[0], _ROWS):
        joint = family.log_predictive(block[rows], stats) + log_sizes
        out[rows] = joint - logsumexp(joint, axis=1, keepdims=True)
    return out


def log_density(
    block: Any, start: int, family: Family, stats: Floats, log_weights: Floats
) -> Floats:
    """Log predictive density of each row under a mixture of groups, shape (n,).

    Includes the multinomial coefficient where the family has one.
    """
    out = np.full(block.shape[0], -math.inf)
    for rows in _pieces(block.shape[0], _ROWS):
        for nodes in _pieces(len(stats), _NODES):
            terms = family.log_predictive(block[rows], stats[nodes]) + log_weights[nodes]
            out[rows] = np.logaddexp(out[rows], logsumexp(terms, axis=1))
        out[rows] += family.log_coefficient(block[rows])
    return out


def mixture_of(tree: Tree) -> tuple[Floats, Floats]:
    """Statistics and log weights of the predictive mixture, new cluster included."""
    assert tree.statistics is not None, "a fitted tree keeps its statistics"
    is_dp = isinstance(tree.mixing, DirichletProcess)
    log_weights, log_new = tree.predictive_log_weights(new_cluster=is_dp)
    if not is_dp:
        return tree.statistics, log_weights
    nothing = np.zeros((1, tree.statistics.shape[1]))
    return np.concatenate([tree.statistics, nothing]), np.append(log_weights, log_new)


def entry_log_density(tree: Tree, row: int, column: int, value: float) -> float:
    """log p(x_row,column = value | D, T) of an entry that was missing in the fit.

    The mixture over the blocks that may hold the row: the nodes on its way to the root
    (spec 5.3).
    """
    assert tree.statistics is not None, "a fitted tree keeps its statistics"
    assert tree.family is not None, "a fitted tree keeps its family"
    path = [int(tree.leaf_of_row[row])]
    while path[-1] != tree.root:
        path.append(int(tree.structure.parent[path[-1]]))
    log_rho = tree.log_block_probability[path]
    terms = tree.family.entry_log_predictive(column, value, tree.statistics[path])
    return float(logsumexp(log_rho + terms))


def log_evidence_of_leaves(tree: Tree, leaf_stats: Floats) -> float:
    """log p(D' | T) of other data on the same tree, given its leaves' statistics."""
    assert tree.family is not None, "a fitted tree keeps its family"
    stats = tree.structure.sum_up(leaf_stats)
    log_marginal = tree.family.log_marginal(stats)
    evaluation = evaluate(tree.structure, stats[:, 0], log_marginal, tree.mixing)
    return float(evaluation.log_evidence[-1])


def _pieces(n: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, n, size))
