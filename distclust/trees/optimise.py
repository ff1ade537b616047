r"""From leaf statistics to a fitted tree, with its hyperparameters learnt if asked.

For a fixed tree the objective (the lower bound on the Dirichlet-process evidence, or
log p(D | T) for the other mixings) has the gradient

.. math:: \partial_\eta = \sum_k \rho_k \, \partial_\eta \log f(D_k),

a weighted sum over nodes with :math:`\rho_k` the probability that node k is a block of the
partition (spec 2.7, 5.4). Hyperparameters climb it by L-BFGS; then the tree is rebuilt. A
greedy rebuild may be worse, so only improvements of the objective are kept.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.optimize
import scipy.special

from distclust import events
from distclust.errors import InputError
from distclust.families.base import LOG_REACH, Family
from distclust.seeding import generator
from distclust.trees.evaluate import (
    DirichletProcess,
    Mixing,
    evaluate,
    gradient_concentration,
    gradient_gamma,
    log_block_probability,
)
from distclust.trees.search import SearchPlan, greedy_search
from distclust.trees.structure import Structure

Floats = npt.NDArray[np.float64]
Limits = tuple[Floats, Floats]

_NEGLIGIBLE = 1e-12  # nodes that are a block less often do not move the gradient
_GRADIENT_ROWS = 1024
_RESTART_SPREAD = 0.5  # standard deviation of restarts, in logarithms


@dataclass(frozen=True)
class LearningPlan:
    """How to learn hyperparameters.

    Attributes
    ----------
    optimise
        Climb the gradient; otherwise only the family's scale grid is tried.
    n_restarts
        Further climbs from perturbed hyperparameters.
    max_rebuilds
        Largest number of rebuilt trees in a climb.
    tolerance
        A climb ends when a rebuild gains less than this, in nats a row.
    seed
        For the perturbations.
    """

    optimise: bool = False
    n_restarts: int = 0
    max_rebuilds: int = 20
    tolerance: float = 1e-5
    seed: int = 0


@dataclass(frozen=True)
class FittedTree:
    """A tree with the hyperparameters it was found with.

    Attributes
    ----------
    objective
        What was maximised: the lower bound, or log p(D | T).
    path
        Its value after each accepted step.
    """

    family: Family
    mixing: Mixing
    structure: Structure
    log_marginal: Floats
    objective: float
    path: tuple[float, ...]


def fit_tree(
    family: Family, stats: Floats, search: SearchPlan, learning: LearningPlan
) -> FittedTree:
    """Find a tree over leaves with statistics (n_leaves, p), and learn what was asked."""
    best = _best_scale(family, stats, search)
    if not learning.optimise or len(stats) < 2:
        return best
    limits = _limits(best)
    best = _climb(best, stats, search, learning, limits)
    random = generator(learning.seed, "restarts")
    for restart in range(learning.n_restarts):
        events.emit("restarts", restart, learning.n_restarts, objective=best.objective)
        start = _perturbed(best, stats, search, random, limits)
        other = _climb(start, stats, search, learning, limits)
        if other.objective > best.objective:
            best = dataclasses.replace(other, path=(*best.path, other.objective))
    return best


def _best_scale(family: Family, stats: Floats, search: SearchPlan) -> FittedTree:
    """Try the scales a family leaves open; the first of equals wins."""
    candidates = [family.with_scale(scale) for scale in family.scale_grid] or [family]
    best: FittedTree | None = None
    for candidate in candidates:
        fitted = _search(candidate, stats, search)
        if best is None or fitted.objective > best.objective:
            path = (*best.path, fitted.objective) if best else (fitted.objective,)
            best = dataclasses.replace(fitted, path=path)
    assert best is not None, "there is always one candidate"
    return best


def _search(family: Family, stats: Floats, search: SearchPlan) -> FittedTree:
    found = greedy_search(family, stats, search)
    n_rows = found.structure.sum_up(stats[:, 0])
    value = _objective(found.structure, n_rows, found.log_marginal, search.mixing)
    return FittedTree(family, search.mixing, found.structure, found.log_marginal, value, (value,))


def _objective(structure: Structure, n_rows: Floats, log_marginal: Floats, mixing: Mixing) -> float:
    evaluation = evaluate(structure, n_rows, log_marginal, mixing)
    if evaluation.log_lower_bound is not None:
        return evaluation.log_lower_bound
    return float(evaluation.log_evidence[-1])


def _climb(
    start: FittedTree,
    stats: Floats,
    search: SearchPlan,
    learning: LearningPlan,
    limits: Limits,
) -> FittedTree:
    """Alternate gradient steps on a fixed tree with rebuilt trees."""
    best = start
    enough = learning.tolerance * float(stats[:, 0].sum())
    for rebuild in range(learning.max_rebuilds):
        before = best.objective
        best = _ascend(best, stats, limits)
        plan = dataclasses.replace(search, mixing=best.mixing)
        rebuilt = _search(best.family, stats, plan)
        if rebuilt.objective > best.objective:
            best = dataclasses.replace(rebuilt, path=(*best.path, rebuilt.objective))
        events.emit("learning", rebuild + 1, learning.max_rebuilds, objective=best.objective)
        if best.objective - before < enough:
            break
    return best


def _limits(fitted: FittedTree) -> Limits:
    """Range of the vector of :class:`_Hill` in which log f keeps its digits."""
    start = np.concatenate([[_free(fitted.mixing)], fitted.family.parameters])
    reach = np.concatenate([[LOG_REACH], fitted.family.parameter_reach])
    return start - reach, start + reach


def _ascend(fitted: FittedTree, stats: Floats, limits: Limits) -> FittedTree:
    """Climb the objective of a fixed tree; the same tree if that gains nothing."""
    hill = _Hill(fitted.structure, fitted.structure.sum_up(stats), fitted.family, fitted.mixing)
    with np.errstate(over="ignore", invalid="ignore"):
        result = scipy.optimize.minimize(
            hill.descent,
            np.clip(hill.start, *limits),
            jac=True,
            method="L-BFGS-B",
            bounds=scipy.optimize.Bounds(*limits),
            options={"maxiter": 200},
        )
    return hill.fitted_at(np.asarray(result.x), fitted)


def _perturbed(
    fitted: FittedTree,
    stats: Floats,
    search: SearchPlan,
    random: np.random.Generator,
    limits: Limits,
) -> FittedTree:
    """A tree built with hyperparameters near those of `fitted`."""
    hill = _Hill(fitted.structure, fitted.structure.sum_up(stats), fitted.family, fitted.mixing)
    family, mixing = hill.at(hill.start + _RESTART_SPREAD * random.standard_normal(len(hill.start)))
    return _search(family, stats, dataclasses.replace(search, mixing=mixing))


class _Hill:
    """The objective of a fixed tree as a function of one vector.

    The vector holds log α (Dirichlet process) or logit γ, then the family's parameters.
    """

    def __init__(self, structure: Structure, stats: Floats, family: Family, mixing: Mixing) -> None:
        self.structure = structure
        self.stats = stats
        self.family = family
        self.mixing = mixing
        self.start = np.concatenate([[_free(mixing)], family.parameters])

    def at(self, vector: Floats) -> tuple[Family, Mixing]:
        return self.family.with_parameters(vector[1:]), _mixing_at(self.mixing, vector[0])

    def descent(self, vector: Floats) -> tuple[float, Floats]:
        """Negative objective and its gradient; a wall where it is not defined."""
        try:
            family, mixing = self.at(vector)
            log_marginal = family.log_marginal(self.stats)
        except InputError:  # the line search left the range of the hyperparameters
            return math.inf, np.zeros_like(vector)
        n_rows = self.stats[:, 0]
        evaluation = evaluate(self.structure, n_rows, log_marginal, mixing)
        value = evaluation.log_lower_bound
        if isinstance(mixing, DirichletProcess):
            slope = mixing.concentration * gradient_concentration(
                self.structure, n_rows, evaluation, mixing
            )
        else:
            value = float(evaluation.log_evidence[-1])
            slope = gradient_gamma(self.structure, evaluation, mixing)
            slope *= mixing.gamma * (1.0 - mixing.gamma)
        weights = np.exp(log_block_probability(self.structure, evaluation))
        gradient = np.concatenate([[slope], self._family_gradient(family, weights)])
        if value is None or not (math.isfinite(value) and np.isfinite(gradient).all()):
            return math.inf, np.zeros_like(vector)
        return -value, -gradient

    def _family_gradient(self, family: Family, weights: Floats) -> Floats:
        """Σ_k ρ_k ∂ log f(D_k), in pieces that bound the memory."""
        nodes = np.flatnonzero(weights > _NEGLIGIBLE)
        total = np.zeros(len(self.start) - 1)
        for first in range(0, len(nodes), _GRADIENT_ROWS):
            part = nodes[first : first + _GRADIENT_ROWS]
            total += weights[part] @ family.gradient(self.stats[part])
        return total

    def fitted_at(self, vector: Floats, fitted: FittedTree) -> FittedTree:
        """The tree with the hyperparameters of `vector`, if they are better."""
        family, mixing = self.at(vector)
        log_marginal = family.log_marginal(self.stats)
        value = _objective(self.structure, self.stats[:, 0], log_marginal, mixing)
        if not value > fitted.objective:
            return fitted
        path = (*fitted.path, value)
        return FittedTree(family, mixing, self.structure, log_marginal, value, path)


def _free(mixing: Mixing) -> float:
    if isinstance(mixing, DirichletProcess):
        return math.log(mixing.concentration)
    return math.log(mixing.gamma) - math.log1p(-mixing.gamma)


def _mixing_at(mixing: Mixing, free: float) -> Mixing:
    if isinstance(mixing, DirichletProcess):
        return DirichletProcess(float(np.exp(free)))
    return type(mixing)(float(scipy.special.expit(free)))
