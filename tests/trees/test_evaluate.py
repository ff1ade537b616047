"""Evidence of given trees against exhaustive enumeration in exact fractions."""

from __future__ import annotations

import math
import time
from decimal import Decimal, getcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distclust.errors import InputError
from distclust.trees.evaluate import (
    ConstantMixing,
    DirichletProcess,
    RoseMixing,
    best_blocks,
    digamma_difference,
    evaluate,
    first_stops,
    gradient_concentration,
    gradient_gamma,
    log1mexp,
    log10_n_partitions,
    log_block_probability,
    log_rising_factorial,
)
from distclust.trees.structure import Structure
from tests.oracles import trees as oracle

MIXINGS = {
    "dp": (DirichletProcess(0.75), oracle.dirichlet_probability(Fraction(3, 4))),
    "rose": (RoseMixing(0.25), oracle.rose_probability(Fraction(1, 4))),
    "constant": (ConstantMixing(0.625), oracle.constant_probability(Fraction(5, 8))),
}
GOLDEN_ROWS = [
    [1, 1, 1, 0, 0, 0],
    [1, 1, 0, 0, 0, 0],
    [0, 0, 0, 1, 1, 1],
    [0, 0, 0, 1, 1, 0],
    [0, 1, 0, 1, 1, 1],
]


@st.composite
def nested_trees(draw, binary=False, min_leaves=2, max_leaves=7):
    """Random trees as nested tuples, built by joining random groups of subtrees."""
    forest = list(draw(st.permutations(range(draw(st.integers(min_leaves, max_leaves))))))
    while len(forest) > 1:
        width = 2 if binary else draw(st.integers(2, len(forest)))
        chosen = draw(st.permutations(range(len(forest))))[:width]
        group = tuple(forest[i] for i in sorted(chosen))
        forest = [tree for i, tree in enumerate(forest) if i not in chosen] + [group]
    return forest[0]


@st.composite
def problems(draw, binary=False, max_leaves=7, grouped=False):
    """A tree and the rows of each of its leaves."""
    tree = draw(nested_trees(binary=binary, max_leaves=max_leaves))
    n = len(oracle.leaves_of(tree))
    row = st.lists(st.integers(0, 1), min_size=3, max_size=3)
    groups = [draw(st.lists(row, min_size=1, max_size=3 if grouped else 1)) for _ in range(n)]
    return tree, oracle.Likelihood(groups)


def evaluated(tree, likelihood, mixing):
    structure, nodes = oracle.number_nodes(tree)
    n_rows = structure.sum_up(np.array(likelihood.sizes, dtype=float))
    log_marginal = np.array(
        [oracle.log_fraction(likelihood(oracle.leaves_of(node))) for node in nodes]
    )
    return structure, nodes, n_rows, log_marginal, evaluate(structure, n_rows, log_marginal, mixing)


def single_rows(rows):
    return oracle.Likelihood([[row] for row in rows])


@settings(max_examples=40, deadline=None)
@given(problems(grouped=True))
def test_evaluate__dirichlet_process_sums_over_all_tree_partitions(problem):
    tree, likelihood = problem
    alpha = Fraction(3, 4)
    _, nodes, _, _, found = evaluated(tree, likelihood, DirichletProcess(0.75))
    for k, node in enumerate(nodes):
        partitions = oracle.tree_partitions(node)
        weights = [oracle.crp_weight(p, alpha, likelihood.sizes) for p in partitions]
        z = sum(w * likelihood.of_partition(p) for w, p in zip(weights, partitions, strict=True))
        d = sum(weights)
        whole = weights[0] * likelihood(oracle.leaves_of(node))
        assert found.log_weight[k] == pytest.approx(oracle.log_fraction(z), abs=1e-10)
        assert found.log_evidence[k] == pytest.approx(oracle.log_fraction(z / d), abs=1e-10)
        assert found.log_prior[k] == pytest.approx(oracle.log_fraction(weights[0] / d), abs=1e-10)
        assert found.log_posterior[k] == pytest.approx(oracle.log_fraction(whole / z), abs=1e-10)


@pytest.mark.parametrize("name", MIXINGS)
@settings(max_examples=25, deadline=None)
@given(problem=problems())
def test_evaluate__evidence_is_the_weighted_sum_over_partitions(name, problem):
    mixing, probability = MIXINGS[name]
    tree, likelihood = problem
    _, nodes, _, _, found = evaluated(tree, likelihood, mixing)
    for k, node in enumerate(nodes):
        weights = oracle.mixing_weights(node, probability)
        assert sum(weights.values()) == 1
        total = sum(w * likelihood.of_partition(p) for p, w in weights.items())
        assert found.log_evidence[k] == pytest.approx(oracle.log_fraction(total), abs=1e-10)


@pytest.mark.parametrize("name", MIXINGS)
@settings(max_examples=25, deadline=None)
@given(problem=problems())
def test_evaluate__posterior_follows_from_prior_and_odds(name, problem):
    mixing, _ = MIXINGS[name]
    tree, likelihood = problem
    _, _, _, log_marginal, found = evaluated(tree, likelihood, mixing)
    by_bayes = np.exp(found.log_prior + log_marginal - found.log_evidence)
    np.testing.assert_allclose(by_bayes, 1 / (1 + np.exp(-found.log_odds)), rtol=1e-10)
    np.testing.assert_allclose(np.exp(found.log_posterior), by_bayes, rtol=1e-10)
    np.testing.assert_allclose(np.exp(found.log_not_posterior), 1 - by_bayes, atol=1e-12)
    np.testing.assert_allclose(np.exp(found.log_prior) + np.exp(found.log_not_prior), 1.0)


@settings(max_examples=15, deadline=None)
@given(problems(binary=True, max_leaves=6))
def test_evaluate__lower_bound_is_below_the_exact_mixture(problem):
    tree, likelihood = problem
    *_, found = evaluated(tree, likelihood, DirichletProcess(0.75))
    rows = likelihood.rows(range(len(likelihood.groups)))
    exact = oracle.log_fraction(oracle.mixture_marginal(rows, Fraction(3, 4)))
    assert found.log_lower_bound <= exact + 1e-10
    if len(rows) == 2:
        assert found.log_lower_bound == pytest.approx(exact, abs=1e-10)


def test_evaluate__lower_bound_is_exact_for_two_rows():
    likelihood = single_rows(GOLDEN_ROWS[:2])
    *_, found = evaluated((0, 1), likelihood, DirichletProcess(0.75))
    exact = oracle.mixture_marginal(GOLDEN_ROWS[:2], Fraction(3, 4))
    assert found.log_lower_bound == pytest.approx(oracle.log_fraction(exact), abs=1e-12)


@pytest.mark.parametrize("name", MIXINGS)
@settings(max_examples=20, deadline=None)
@given(problem=problems(), data=st.data())
def test_evaluate__row_order_changes_nothing_but_labels(name, problem, data):
    mixing, _ = MIXINGS[name]
    tree, likelihood = problem
    names = data.draw(st.permutations(range(len(likelihood.groups))))
    moved = [likelihood.groups[names.index(leaf)] for leaf in range(len(names))]
    *_, before = evaluated(tree, likelihood, mixing)
    *_, after = evaluated(oracle.relabelled(tree, names), oracle.Likelihood(moved), mixing)
    assert sorted(before.log_odds) == pytest.approx(sorted(after.log_odds), abs=1e-10)
    assert before.log_evidence[-1] == pytest.approx(after.log_evidence[-1], abs=1e-10)


def test_evaluate__preformed_leaf_counts_its_rows():
    grouped = oracle.Likelihood([GOLDEN_ROWS[:2], GOLDEN_ROWS[2:]])
    *_, found = evaluated((0, 1), grouped, DirichletProcess(1.0))
    # Two blocks of 2 and 3 rows: 1! 2! f f against 4! f.
    f = [grouped(block) for block in ([0], [1], [0, 1])]
    z = 2 * f[0] * f[1] + 24 * f[2]
    assert found.log_weight[-1] == pytest.approx(oracle.log_fraction(z), abs=1e-12)
    assert found.log_prior[-1] == pytest.approx(math.log(24 / 26), abs=1e-12)


@pytest.mark.parametrize("name", MIXINGS)
@settings(max_examples=25, deadline=None)
@given(problem=problems())
def test_log_block_probability__equals_enumerated_probability(name, problem):
    mixing, probability = MIXINGS[name]
    tree, likelihood = problem
    structure, nodes, n_rows, _, found = evaluated(tree, likelihood, mixing)
    after = oracle.posterior(tree, likelihood, oracle.mixing_weights(tree, probability))
    blocks = np.exp(log_block_probability(structure, found))
    for k, node in enumerate(nodes):
        block = frozenset(oracle.leaves_of(node))
        expected = sum(p for partition, p in after.items() if block in partition)
        assert blocks[k] == pytest.approx(float(expected), abs=1e-10)
    assert np.sum(blocks * n_rows / n_rows[-1]) == pytest.approx(1.0, abs=1e-12)
    n_blocks = sum(len(partition) * p for partition, p in after.items())
    assert blocks.sum() == pytest.approx(float(n_blocks), abs=1e-10)


@pytest.mark.parametrize("name", MIXINGS)
@settings(max_examples=25, deadline=None)
@given(problem=problems())
def test_best_blocks__is_the_most_probable_partition(name, problem):
    mixing, probability = MIXINGS[name]
    tree, likelihood = problem
    structure, nodes, n_rows, log_marginal, _ = evaluated(tree, likelihood, mixing)
    after = oracle.posterior(tree, likelihood, oracle.mixing_weights(tree, probability))
    chosen = best_blocks(structure, n_rows, log_marginal, mixing)
    partition = {frozenset(oracle.leaves_of(nodes[k])) for k in chosen}
    found = next(p for blocks, p in after.items() if set(blocks) == partition)
    assert float(found) == pytest.approx(float(max(after.values())), rel=1e-10)


def test_first_stops__takes_the_topmost_and_always_stops_at_leaves():
    structure, _ = oracle.number_nodes(((0, 1), ((2, 3), 4)))
    # Nodes: 5 = (0, 1), 6 = (2, 3), 7 = (6, 4), 8 the root.
    stop = np.zeros(9, dtype=bool)
    assert first_stops(structure, stop).tolist() == [0, 1, 2, 3, 4]
    stop[[6, 7]] = True
    assert first_stops(structure, stop).tolist() == [0, 1, 7]


@pytest.mark.parametrize("objective", ["lower_bound", "evidence"])
@pytest.mark.parametrize("alpha", [0.05, 1.3, 40.0])
@settings(max_examples=10, deadline=None)
@given(problem=problems(grouped=True))
def test_gradient_concentration__matches_differences(alpha, objective, problem):
    tree, likelihood = problem

    def value(a):
        *_, found = evaluated(tree, likelihood, DirichletProcess(a))
        return found.log_lower_bound if objective == "lower_bound" else found.log_evidence[-1]

    mixing = DirichletProcess(alpha)
    structure, _, n_rows, _, found = evaluated(tree, likelihood, mixing)
    gradient = gradient_concentration(structure, n_rows, found, mixing, objective)
    step = 1e-5 * alpha
    expected = (value(alpha + step) - value(alpha - step)) / (2 * step)
    assert gradient == pytest.approx(expected, rel=1e-5, abs=1e-7 / alpha)


@pytest.mark.parametrize("kind", [RoseMixing, ConstantMixing])
@pytest.mark.parametrize("gamma", [0.02, 0.5, 0.93])
@settings(max_examples=10, deadline=None)
@given(problem=problems())
def test_gradient_gamma__matches_differences(kind, gamma, problem):
    tree, likelihood = problem

    def value(g):
        return evaluated(tree, likelihood, kind(g))[-1].log_evidence[-1]

    structure, *_, found = evaluated(tree, likelihood, kind(gamma))
    step = 1e-6
    expected = (value(gamma + step) - value(gamma - step)) / (2 * step)
    assert gradient_gamma(structure, found, kind(gamma)) == pytest.approx(
        expected, rel=1e-5, abs=1e-6
    )


@settings(max_examples=25, deadline=None)
@given(problems(binary=True))
def test_evaluate__rose_and_constant_mixing_agree_on_binary_trees(problem):
    tree, likelihood = problem
    *_, rose = evaluated(tree, likelihood, RoseMixing(0.3))
    *_, constant = evaluated(tree, likelihood, ConstantMixing(0.3))
    np.testing.assert_allclose(rose.log_odds, constant.log_odds, rtol=0, atol=1e-12)
    np.testing.assert_allclose(rose.log_evidence, constant.log_evidence, rtol=0, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(nested_trees())
def test_rose_mixing__finest_partition_has_the_same_mass_in_every_tree(tree):
    structure, _ = oracle.number_nodes(tree)
    # If only single leaves have likelihood one, the evidence is the finest one's mass.
    log_marginal = np.where(np.arange(structure.n_nodes) < structure.n_leaves, 0.0, -np.inf)
    found = evaluate(structure, np.ones(structure.n_nodes), log_marginal, RoseMixing(0.3))
    expected = (structure.n_leaves - 1) * math.log(0.7)
    assert found.log_evidence[-1] == pytest.approx(expected, abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(problems())
def test_evaluate__binarising_never_lowers_the_dirichlet_process_weight(problem):
    tree, likelihood = problem
    *_, wide = evaluated(tree, likelihood, DirichletProcess(0.75))
    *_, narrow = evaluated(oracle.binarised(tree), likelihood, DirichletProcess(0.75))
    assert narrow.log_weight[-1] >= wide.log_weight[-1] - 1e-10


@settings(max_examples=40, deadline=None)
@given(nested_trees())
def test_log10_n_partitions__counts_them(tree):
    structure, _ = oracle.number_nodes(tree)
    expected = math.log10(len(oracle.tree_partitions(tree)))
    assert log10_n_partitions(structure) == pytest.approx(expected, abs=1e-12)


def test_log10_n_partitions__flat_node_has_two_and_cascade_has_n():
    n = 9
    flat = Structure.from_children(n, [range(n)])
    cascade, _ = oracle.number_nodes(oracle.binarised(tuple(range(n))))
    assert log10_n_partitions(flat) == pytest.approx(math.log10(2), abs=1e-12)
    assert log10_n_partitions(cascade) == pytest.approx(math.log10(n), abs=1e-12)


@pytest.mark.parametrize("kind", [RoseMixing, ConstantMixing])
def test_evaluate__extreme_gamma_tends_to_the_ends(kind):
    likelihood = single_rows(GOLDEN_ROWS)
    _, _, _, log_marginal, low = evaluated(((0, 1), (2, 3, 4)), likelihood, kind(1e-15))
    *_, high = evaluated(((0, 1), (2, 3, 4)), likelihood, kind(1 - 1e-15))
    assert low.log_evidence[-1] == pytest.approx(log_marginal[:5].sum(), abs=1e-9)
    assert high.log_evidence[-1] == pytest.approx(log_marginal[-1], abs=1e-9)


@pytest.mark.parametrize("tree", [((0, 1), (4, (2, 3))), ((0, 1), (2, 3, 4))])
def test_evaluate__extreme_concentration_tends_to_one_or_n_clusters(tree):
    likelihood = single_rows(GOLDEN_ROWS)
    structure, _, _, log_marginal, few = evaluated(tree, likelihood, DirichletProcess(1e-12))
    *_, many = evaluated(tree, likelihood, DirichletProcess(1e12))
    assert few.log_evidence[-1] == pytest.approx(log_marginal[-1], abs=1e-6)
    assert few.log_odds[-1] > 0
    assert many.log_evidence[-1] == pytest.approx(log_marginal[:5].sum(), abs=1e-6)
    assert np.all(many.log_odds[structure.n_leaves :] < 0)
    assert many.log_lower_bound == pytest.approx(log_marginal[:5].sum(), abs=1e-6)


def test_evaluate__golden_dirichlet_process_run():
    likelihood = single_rows(GOLDEN_ROWS)
    structure = Structure.from_merges([(0, 1), (2, 3), (4, 6), (5, 7)])
    log_marginal = np.array(
        [oracle.log_fraction(likelihood(structure.leaves(k).tolist())) for k in range(9)]
    )
    n_rows = structure.sum_up(np.ones(5))
    found = evaluate(structure, n_rows, log_marginal, DirichletProcess(1.0))
    expected = [1.032945, 1.032945, 1.317353, -4.130027]
    np.testing.assert_allclose(found.log_odds[5:], expected, rtol=0, atol=5e-7)
    log_d = found.log_weight - found.log_evidence
    assert log_d[-1] == pytest.approx(math.log(32), abs=1e-12)
    assert found.log_evidence[-1] == pytest.approx(-20.014621062378, abs=1e-11)
    assert found.log_lower_bound == pytest.approx(-21.336376902360, abs=1e-11)
    exact = oracle.mixture_marginal(GOLDEN_ROWS, Fraction(1))
    assert oracle.log_fraction(exact) == pytest.approx(-20.954499257336, abs=1e-11)


@pytest.mark.parametrize(
    ("n", "tree", "bound", "evidence"),
    [
        (3, (0, (1, 2)), -91.379732, -90.974267),
        (6, (((0, 1), 2), ((3, 4), 5)), -143.822393, -142.155797),
    ],
)
def test_evaluate__golden_constant_rows(n, tree, bound, evidence):
    rows = [[0] * 50] * (n // 2) + [[1] * 50] * (n - n // 2)
    *_, found = evaluated(tree, single_rows(rows), DirichletProcess(1.0))
    exact = oracle.log_fraction(oracle.mixture_marginal(rows, Fraction(1)))
    assert exact == pytest.approx(bound, abs=6e-7)
    assert found.log_lower_bound == pytest.approx(bound, abs=6e-7)
    assert found.log_evidence[-1] == pytest.approx(evidence, abs=6e-7)


@pytest.mark.parametrize(
    ("tree", "mixing", "evidence"),
    [
        (((0, 1), (2, 3, 4)), RoseMixing(0.5), -19.119152161674),
        (((0, 1), ((2, 3), 4)), ConstantMixing(0.5), -19.332081880174),
    ],
)
def test_evaluate__golden_rose_trees(tree, mixing, evidence):
    *_, found = evaluated(tree, single_rows(GOLDEN_ROWS), mixing)
    assert found.log_evidence[-1] == pytest.approx(evidence, abs=1e-11)


def test_evaluate__leaf_is_certain():
    structure = Structure(1, np.array([0]), np.array([], dtype=int))
    for mixing, _ in MIXINGS.values():
        found = evaluate(structure, np.ones(1), np.array([-2.5]), mixing)
        assert found.log_odds[0] == np.inf
        assert found.log_posterior[0] == found.log_prior[0] == 0.0
        assert found.log_not_posterior[0] == found.log_not_prior[0] == -np.inf
        assert found.log_evidence[0] == -2.5


def test_evaluate__odds_do_not_saturate():
    structure = Structure.from_merges([(0, 1)])
    found = evaluate(
        structure, structure.sum_up(np.ones(2)), np.array([-900.0, -900.0, -950.0]),
        DirichletProcess(1.0),
    )  # fmt: skip
    assert found.log_odds[-1] == pytest.approx(850.0)
    assert found.log_posterior[-1] == 0.0
    assert found.log_not_posterior[-1] == pytest.approx(-850.0)


def test_evaluate__refuses_values_of_the_wrong_length():
    structure = Structure.from_merges([(0, 1)])
    with pytest.raises(InputError, match="3 nodes"):
        evaluate(structure, np.ones(2), np.ones(2), RoseMixing(0.5))


def test_evaluate__deep_cascade_is_fast():
    n = 20_000
    merges = [(0, 1)] + [(i, n + i - 2) for i in range(2, n)]
    structure = Structure.from_merges(merges)
    n_rows = structure.sum_up(np.ones(n))
    log_marginal = -3.0 * np.sqrt(n_rows)
    for mixing, _ in MIXINGS.values():
        evaluate(structure, n_rows, log_marginal, mixing)
        start = time.perf_counter()
        found = evaluate(structure, n_rows, log_marginal, mixing)
        # Milliseconds when compiled; the limit is for busy machines and plain Python.
        assert time.perf_counter() - start < 2.0
        assert np.isfinite(found.log_evidence[-1])
        blocks = np.exp(log_block_probability(structure, found))
        assert np.sum(blocks * n_rows) / n == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (DirichletProcess, 0.0),
        (DirichletProcess, -1),
        (DirichletProcess, math.inf),
        (RoseMixing, 0.0),
        (RoseMixing, 1.0),
        (ConstantMixing, math.nan),
        (ConstantMixing, "half"),
    ],
)
def test_mixing__refuses_parameters_out_of_range(kind, value):
    with pytest.raises(InputError, match=kind.__name__):
        kind(value)


@pytest.mark.parametrize("alpha", [1e-9, 0.3, 15.9, 16.0, 900.0, 1e9, 1e14])
@pytest.mark.parametrize("n", [1, 2, 50, 3000])
def test_log_rising_factorial__is_the_sum_of_logs(alpha, n):
    expected = math.fsum(math.log(alpha + i) for i in range(n))
    assert log_rising_factorial(alpha, n) == pytest.approx(expected, rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("alpha", [1e-9, 0.3, 15.9, 16.0, 900.0, 1e9, 1e14])
@pytest.mark.parametrize("n", [1, 2, 50, 3000])
def test_digamma_difference__is_the_sum_of_reciprocals(alpha, n):
    expected = math.fsum(1.0 / (alpha + i) for i in range(n))
    assert digamma_difference(alpha, n) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("x", [-1e-12, -0.1, -0.692, -0.694, -3.0, -45.0, -700.0])
def test_log1mexp__matches_many_digits(x):
    getcontext().prec = 400
    expected = float((1 - Decimal(x).exp()).ln())
    assert log1mexp(np.array([x]))[0] == pytest.approx(expected, rel=1e-13)
