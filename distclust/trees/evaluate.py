r"""Evidence of a given tree: which of its nodes are clusters, and how sure that is.

A tree stands for all partitions of its rows into blocks that are subtrees. A *mixing* prior
says how probable each is before the data: at node :math:`k` all rows form one block with
probability :math:`\pi_k`, else each child goes its own way. With :math:`f(D_k)` the marginal
likelihood of the rows under one cluster,

.. math::
    p(D_k \mid T_k) = \pi_k f(D_k) + (1 - \pi_k) \prod_{c} p(D_c \mid T_c),
    \qquad r_k = \pi_k f(D_k) / p(D_k \mid T_k).

For the Dirichlet process :math:`\pi_k = \alpha\Gamma(n_k) / d_k` with
:math:`d_k = \alpha\Gamma(n_k) + \prod_c d_c`; there the unnormalised
:math:`Z_k = d_k\, p(D_k \mid T_k)` is kept instead, because :math:`d` cancels in
:math:`r_k` and the sum :math:`Z_k` needs no prior weights at all.

Everything is in log space and everything derives from the log odds
:math:`o_k = \log r_k / (1 - r_k)`, so nothing saturates. All functions are linear in the
number of nodes. Finding trees is the business of the search, not of this module.

References
----------
Heller, "Efficient Bayesian Methods for Clustering", 2007, chapter 3. Blundell, Teh and
Heller, "Bayesian rose trees", 2010.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, gammaln

from distclust.errors import InputError
from distclust.trees import _tree_numerics as numerics
from distclust.trees.structure import Structure
from distclust.validation import check_choice, check_real

Floats = NDArray[np.float64]
Objective = Literal["lower_bound", "evidence"]


@dataclass(frozen=True)
class DirichletProcess:
    """Partitions weighted as in a Dirichlet-process mixture.

    Parameters
    ----------
    concentration
        Above zero; larger values prefer more clusters.
    """

    concentration: float = 1.0
    name: ClassVar[str] = "dirichlet-process"

    def __post_init__(self) -> None:
        checked = check_real(self.concentration, "DirichletProcess.concentration", above=0.0)
        object.__setattr__(self, "concentration", checked)

    def log_terms(self, structure: Structure, n_rows: Floats) -> tuple[Floats, Floats]:
        """Log weight of a node as one block, and as separate children, each (n_nodes,)."""
        together = math.log(self.concentration) + gammaln(n_rows)
        return together, np.zeros(structure.n_nodes)


@dataclass(frozen=True)
class ConstantMixing:
    """Every internal node is one block with the same prior probability.

    Parameters
    ----------
    gamma
        That probability, strictly between 0 and 1.
    """

    gamma: float = 0.5
    name: ClassVar[str] = "constant"

    def __post_init__(self) -> None:
        checked = check_real(self.gamma, "ConstantMixing.gamma", above=0.0, below=1.0)
        object.__setattr__(self, "gamma", checked)

    def log_prior(self, n_children: NDArray[Any]) -> tuple[Floats, Floats]:
        """Log pi and log(1 - pi) of nodes with so many children, each of that shape."""
        shape = np.shape(n_children)
        return np.full(shape, math.log(self.gamma)), np.full(shape, math.log1p(-self.gamma))

    def gradient(self, n_children: NDArray[Any]) -> tuple[Floats, Floats]:
        """Derivatives of :meth:`log_prior` with respect to gamma."""
        shape = np.shape(n_children)
        return np.full(shape, 1.0 / self.gamma), np.full(shape, -1.0 / (1.0 - self.gamma))

    def log_terms(self, structure: Structure, n_rows: Floats) -> tuple[Floats, Floats]:
        """Log weight of a node as one block, and as separate children, each (n_nodes,)."""
        return _log_terms_by_children(self, structure)


@dataclass(frozen=True)
class RoseMixing:
    """The more children a node has, the likelier they are one block.

    The prior probability of one block is ``1 - (1 - gamma) ** (n_children - 1)``; the finest
    partition then has the same prior weight in every tree, so wide nodes are not favoured.

    Parameters
    ----------
    gamma
        That probability at binary nodes, strictly between 0 and 1.
    """

    gamma: float = 0.5
    name: ClassVar[str] = "rose"

    def __post_init__(self) -> None:
        checked = check_real(self.gamma, "RoseMixing.gamma", above=0.0, below=1.0)
        object.__setattr__(self, "gamma", checked)

    def log_prior(self, n_children: NDArray[Any]) -> tuple[Floats, Floats]:
        """Log pi and log(1 - pi) of nodes with so many children, each of that shape."""
        log_apart = (np.asarray(n_children) - 1.0) * math.log1p(-self.gamma)
        return log1mexp(log_apart), log_apart

    def gradient(self, n_children: NDArray[Any]) -> tuple[Floats, Floats]:
        """Derivatives of :meth:`log_prior` with respect to gamma."""
        extra = np.asarray(n_children) - 1.0
        log_together, log_apart = self.log_prior(n_children)
        of_apart = -extra / (1.0 - self.gamma)
        return -of_apart * np.exp(log_apart - log_together), of_apart

    def log_terms(self, structure: Structure, n_rows: Floats) -> tuple[Floats, Floats]:
        """Log weight of a node as one block, and as separate children, each (n_nodes,)."""
        return _log_terms_by_children(self, structure)


GammaMixing = ConstantMixing | RoseMixing
Mixing = DirichletProcess | ConstantMixing | RoseMixing
MIXINGS: dict[str, type[Mixing]] = {
    mixing.name: mixing for mixing in (DirichletProcess, ConstantMixing, RoseMixing)
}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What :func:`evaluate` finds; arrays have shape (n_nodes,).

    Attributes
    ----------
    log_odds
        Log odds that the rows below a node are one cluster; infinite at leaves.
    log_posterior, log_not_posterior
        log r and log(1 - r), each exact where the other vanishes.
    log_prior, log_not_prior
        log pi and log(1 - pi), the same before seeing the data.
    log_evidence
        log p(D_k | T_k) of the subtree at each node.
    log_weight
        log Z of each node, Dirichlet process only.
    log_lower_bound
        Bound of the whole tree on the evidence of the Dirichlet-process mixture (a single
        number), Dirichlet process only.
    """

    log_odds: Floats
    log_posterior: Floats
    log_not_posterior: Floats
    log_prior: Floats
    log_not_prior: Floats
    log_evidence: Floats
    log_weight: Floats | None = None
    log_lower_bound: float | None = None


def evaluate(
    structure: Structure, n_rows: Floats, log_marginal: Floats, mixing: Mixing
) -> Evaluation:
    """Evidence and merge probabilities of every subtree.

    Parameters
    ----------
    structure
        The tree.
    n_rows
        Rows below each node, shape (n_nodes,). A leaf may be a cluster formed beforehand.
    log_marginal
        log f of the rows below each node as one cluster, shape (n_nodes,).
    mixing
        Prior over the partitions of the tree.

    Notes
    -----
    Linear in the number of nodes.
    """
    _check_shapes(structure, n_rows, log_marginal)
    log_together, log_apart = mixing.log_terms(structure, n_rows)
    log_total, log_odds = _fold_up(structure, log_together + log_marginal, log_apart)
    log_posterior, log_not_posterior = _log_sigmoids(log_odds)
    if not isinstance(mixing, DirichletProcess):
        return Evaluation(
            log_odds,
            log_posterior,
            log_not_posterior,
            log_together,
            _certain_leaves(structure, log_apart),
            log_total,
        )
    log_d, prior_odds = _fold_up(structure, log_together, log_apart)
    log_prior, log_not_prior = _log_sigmoids(prior_odds)
    log_normaliser = log_rising_factorial(mixing.concentration, float(n_rows[-1]))
    return Evaluation(
        log_odds,
        log_posterior,
        log_not_posterior,
        log_prior,
        log_not_prior,
        log_total - log_d,
        log_total,
        float(log_total[-1]) - log_normaliser,
    )


def log_reach_probability(structure: Structure, evaluation: Evaluation) -> Floats:
    """Log posterior probability that all proper ancestors are split, shape (n_nodes,)."""
    return _spread_down(structure, evaluation.log_not_posterior)


def log_block_probability(structure: Structure, evaluation: Evaluation) -> Floats:
    """Log posterior probability that each node is a block of the partition, (n_nodes,)."""
    return log_reach_probability(structure, evaluation) + evaluation.log_posterior


def best_blocks(
    structure: Structure, n_rows: Floats, log_marginal: Floats, mixing: Mixing
) -> NDArray[np.int64]:
    """Nodes that form the most probable partition of the tree, ascending."""
    log_together, log_apart = mixing.log_terms(structure, n_rows)
    together = np.empty(structure.n_nodes, dtype=np.bool_)
    numerics.prefer_together(*structure.arrays, log_together + log_marginal, log_apart, together)
    return first_stops(structure, together)


def first_stops(structure: Structure, stop: NDArray[np.bool_]) -> NDArray[np.int64]:
    """First node from the root with `stop` (n_nodes,) on every way to a leaf, ascending."""
    chosen = np.empty(structure.n_nodes, dtype=np.bool_)
    numerics.first_stops(*structure.arrays, stop, chosen)
    return np.flatnonzero(chosen)


def gradient_concentration(
    structure: Structure,
    n_rows: Floats,
    evaluation: Evaluation,
    mixing: DirichletProcess,
    objective: Objective = "lower_bound",
) -> float:
    """Derivative of the lower bound or of log p(D | T) with respect to the concentration.

    The derivative of log Z is the expected number of blocks after seeing the data, divided
    by the concentration; that of log d the same before seeing them.
    """
    check_choice(objective, "objective", ("lower_bound", "evidence"))
    alpha = mixing.concentration
    n_blocks = float(np.exp(log_block_probability(structure, evaluation)).sum())
    if objective == "lower_bound":
        return n_blocks / alpha - digamma_difference(alpha, float(n_rows[-1]))
    log_reach = _spread_down(structure, evaluation.log_not_prior)
    n_blocks_before = float(np.exp(log_reach + evaluation.log_prior).sum())
    return (n_blocks - n_blocks_before) / alpha


def gradient_gamma(structure: Structure, evaluation: Evaluation, mixing: GammaMixing) -> float:
    """Derivative of log p(D | T) with respect to gamma."""
    internal = slice(structure.n_leaves, None)
    log_reach = log_reach_probability(structure, evaluation)[internal]
    block = np.exp(log_reach + evaluation.log_posterior[internal])
    split = np.exp(log_reach + evaluation.log_not_posterior[internal])
    of_together, of_apart = mixing.gradient(structure.n_children)
    return float(block @ of_together + split @ of_apart)


def log10_n_partitions(structure: Structure) -> float:
    """Decimal logarithm of the number of partitions the tree stands for."""
    zeros = np.zeros(structure.n_nodes)
    log_count, _ = _fold_up(structure, zeros, zeros)
    return float(log_count[-1]) / math.log(10.0)


def log1mexp(log_value: Floats) -> Floats:
    """Return log(1 - exp(x)) for x < 0, accurate near both ends."""
    near_zero = log_value > -0.693
    # Both branches are evaluated everywhere; the unused one may hit log(0).
    with np.errstate(divide="ignore"):
        return np.where(near_zero, np.log(-np.expm1(log_value)), np.log1p(-np.exp(log_value)))


def log_rising_factorial(alpha: float, n: float) -> float:
    """Return lgamma(alpha + n) - lgamma(alpha) without cancellation for large alpha."""
    if alpha < 16.0:
        return float(gammaln(alpha + n) - gammaln(alpha))
    # Stirling's series for both; the leading terms are subtracted by hand.
    leading = (alpha - 0.5) * math.log1p(n / alpha) + n * math.log(alpha + n) - n
    return leading + _stirling_tail(alpha + n) - _stirling_tail(alpha)


def digamma_difference(alpha: float, n: float) -> float:
    """Return psi(alpha + n) - psi(alpha) without cancellation for large alpha."""
    if alpha < 16.0:
        return float(digamma(alpha + n) - digamma(alpha))
    tail = _digamma_tail(alpha + n) - _digamma_tail(alpha)
    return math.log1p(n / alpha) + 0.5 * n / (alpha * (alpha + n)) + tail


def _stirling_tail(x: float) -> float:
    y = 1.0 / (x * x)
    return (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y / 1188)))) / x


def _digamma_tail(x: float) -> float:
    y = 1.0 / (x * x)
    return -y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))


def _log_terms_by_children(mixing: GammaMixing, structure: Structure) -> tuple[Floats, Floats]:
    together, apart = np.zeros(structure.n_nodes), np.zeros(structure.n_nodes)
    internal = slice(structure.n_leaves, None)
    together[internal], apart[internal] = mixing.log_prior(structure.n_children)
    return together, apart


def _certain_leaves(structure: Structure, log_apart: Floats) -> Floats:
    log_not_prior = log_apart.copy()
    log_not_prior[: structure.n_leaves] = -np.inf
    return log_not_prior


def _log_sigmoids(log_odds: Floats) -> tuple[Floats, Floats]:
    return -np.logaddexp(0.0, -log_odds), -np.logaddexp(0.0, log_odds)


def _check_shapes(structure: Structure, n_rows: Floats, log_marginal: Floats) -> None:
    for values in (n_rows, log_marginal):
        if values.shape != (structure.n_nodes,):
            raise InputError(
                "evaluate",
                f"one value for each of {structure.n_nodes} nodes",
                f"shape {values.shape}",
                "Pass n_rows and log_marginal of all nodes.",
            )


def _fold_up(
    structure: Structure, log_together: Floats, log_apart: Floats
) -> tuple[Floats, Floats]:
    log_total, log_odds = np.empty(structure.n_nodes), np.empty(structure.n_nodes)
    numerics.fold_up(*structure.arrays, log_together, log_apart, log_total, log_odds)
    return log_total, log_odds


def _spread_down(structure: Structure, log_pass: Floats) -> Floats:
    log_reach = np.empty(structure.n_nodes)
    numerics.spread_down(*structure.arrays, log_pass, log_reach)
    return log_reach
