"""Gradients of a fixed tree's objective, and what learning may and may not do."""

from __future__ import annotations

import numpy as np
import pytest

from distclust.families import Bernoulli
from distclust.trees.evaluate import (
    ConstantMixing,
    DirichletProcess,
    RoseMixing,
    evaluate,
    log_block_probability,
)
from distclust.trees.optimise import LearningPlan, _Hill, fit_tree
from distclust.trees.search import SearchPlan, greedy_search
from tests.trees.test_search import PROBLEMS

MIXINGS = [DirichletProcess(0.7), RoseMixing(0.4), ConstantMixing(0.3)]


def hill_of(problem, mixing, seed=0):
    family, stats = PROBLEMS[problem](seed, 12, 3)
    found = greedy_search(family, stats, SearchPlan(mixing, "likelihood_ratio", True))
    return _Hill(found.structure, found.structure.sum_up(stats), family, mixing)


@pytest.mark.parametrize("mixing", MIXINGS, ids=lambda mixing: mixing.name)
@pytest.mark.parametrize("problem", list(PROBLEMS))
def test_descent__gradient_equals_central_differences(problem, mixing):
    hill = hill_of(problem, mixing)
    _, gradient = hill.descent(hill.start)
    numeric = np.empty_like(gradient)
    for i in range(len(hill.start)):
        step = np.zeros_like(hill.start)
        step[i] = 1e-5 * max(1.0, abs(hill.start[i]))
        rise = hill.descent(hill.start + step)[0] - hill.descent(hill.start - step)[0]
        numeric[i] = rise / (2 * step[i])
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-5 * np.abs(gradient).max())


@pytest.mark.parametrize("mixing", MIXINGS, ids=lambda mixing: mixing.name)
@pytest.mark.parametrize("problem", list(PROBLEMS))
def test_family_gradient__weighted_sum_equals_recursion(problem, mixing):
    """∂ log p_k = r_k ∂ log f_k + (1 − r_k) Σ ∂ log p_child, from the leaves up."""
    hill = hill_of(problem, mixing, seed=1)
    structure, family = hill.structure, hill.family
    evaluation = evaluate(structure, hill.stats[:, 0], family.log_marginal(hill.stats), mixing)
    slopes = family.gradient(hill.stats)
    r = np.exp(evaluation.log_posterior)
    below = slopes.copy()
    for node in range(structure.n_leaves, structure.n_nodes):
        parts = below[structure.children(node)].sum(axis=0)
        below[node] = r[node] * slopes[node] + (1.0 - r[node]) * parts
    weights = np.exp(log_block_probability(structure, evaluation))
    np.testing.assert_allclose(
        hill._family_gradient(family, weights), below[structure.root], rtol=1e-9, atol=1e-9
    )


def test_fit_tree__hyperparameters_out_of_range_are_a_wall():
    hill = hill_of("gaussian", DirichletProcess(1.0))
    far = hill.start.copy()
    far[-1] = 1e6
    with np.errstate(over="ignore", invalid="ignore"):
        value, gradient = hill.descent(far)
    assert value == np.inf
    assert not gradient.any()


def test_fit_tree__stops_at_its_tolerance():
    family, stats = PROBLEMS["bernoulli"](3, 25, 6)
    plan = SearchPlan(DirichletProcess(1.0))
    short = fit_tree(family, stats, plan, LearningPlan(optimise=True, tolerance=1e9))
    long = fit_tree(family, stats, plan, LearningPlan(optimise=True))
    assert short.objective <= long.objective
    assert len(short.path) <= len(long.path)


@pytest.mark.parametrize("mixing", MIXINGS, ids=lambda mixing: mixing.name)
def test_fit_tree__evidence_of_binary_data_stays_a_probability(mixing):
    # Columns without structure want infinite pseudo-counts, where log f is all rounding.
    rows = np.random.default_rng(0).integers(0, 2, (40, 12))
    family = Bernoulli(np.ones(12), np.ones(12))
    stats = family.accumulate(rows, np.arange(40), 40)
    plan = SearchPlan(mixing, "likelihood_ratio", True)
    fitted = fit_tree(family, stats, plan, LearningPlan(optimise=True, n_restarts=2))
    assert fitted.objective < 0.0
    hyperparameters = np.exp(fitted.family.parameters)
    assert hyperparameters.max() < 1e6
