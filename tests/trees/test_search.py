"""The greedy search equals the naive one, with and without every shortcut."""

from __future__ import annotations

import os

import numpy as np
import pytest

from distclust import events
from distclust.engine import thread_map
from distclust.families import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Gaussian,
    Multinomial,
    Poisson,
)
from distclust.families.base import Family
from distclust.families.count_pairs import CountPairs, SparseBernoulliPairs
from distclust.families.pair_scorer import PairScorer
from distclust.families.pairs import BernoulliPairs, pair_scorer
from distclust.trees import search as search_module
from distclust.trees.evaluate import ConstantMixing, DirichletProcess, RoseMixing, evaluate
from distclust.trees.search import SearchPlan, greedy_search
from tests.oracles.search import NaiveSearch, as_nested

IS_COMPILED = os.environ.get("NUMBA_DISABLE_JIT") != "1"
# Number of leaves and columns; the last one takes plain Python minutes.
MERGED_SIZES = [(2, 3), (3, 9), (35, 2), (60, 17), (300, 8)][: None if IS_COMPILED else -1]

MIXINGS = {"dp": DirichletProcess, "rose": RoseMixing, "constant": ConstantMixing}


def binary_rows(seed, n, d, n_clusters=3):
    rng = np.random.default_rng(seed)
    centres = rng.beta(0.4, 0.4, size=(n_clusters, d))
    return (rng.random((n, d)) < centres[rng.integers(0, n_clusters, n)]).astype(np.uint8)


def bernoulli_problem(seed, n, d):
    rows = binary_rows(seed, n, d)
    rng = np.random.default_rng(seed + 1)
    family = Bernoulli(rng.gamma(2.0, size=d), rng.gamma(2.0, size=d))
    return family, family.accumulate(rows, np.arange(n), n)


def gaussian_problem(seed, n, d):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) + 4.0 * rng.integers(0, 3, size=(n, 1))
    spread = rng.normal(size=(d, d))
    family = Gaussian(rows.mean(axis=0), 0.3, d + 2.0, 0.2 * (spread @ spread.T + np.eye(d)))
    return family, family.accumulate(rows, np.arange(n), n)


def count_rows(seed, n, d):
    rng = np.random.default_rng(seed)
    rates = rng.gamma(0.5, 2.0, size=(3, d))
    return rng.poisson(rates[rng.integers(0, 3, n)])


def multinomial_problem(seed, n, d):
    family = Multinomial(np.random.default_rng(seed).gamma(2.0, size=d))
    return family, family.accumulate(count_rows(seed, n, d), np.arange(n), n)


def poisson_problem(seed, n, d):
    rng = np.random.default_rng(seed)
    family = Poisson(rng.gamma(2.0, size=d), rng.gamma(2.0, size=d))
    return family, family.accumulate(count_rows(seed, n, d), np.arange(n), n)


def categorical_problem(seed, n, d):
    rows = np.minimum(count_rows(seed, n, d), 3)
    family = Categorical(np.random.default_rng(seed).gamma(2.0, size=4 * d), n_levels=[4] * d)
    return family, family.accumulate(rows, np.arange(n), n)


def diagonal_problem(seed, n, d):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, d)) + 4.0 * rng.integers(0, 3, size=(n, 1))
    family = DiagonalGaussian(rows.mean(axis=0), 0.3, 1.5, rng.gamma(2.0, size=d))
    return family, family.accumulate(rows, np.arange(n), n)


PROBLEMS = {
    "bernoulli": bernoulli_problem,
    "gaussian": gaussian_problem,
    "multinomial": multinomial_problem,
    "poisson": poisson_problem,
    "categorical": categorical_problem,
    "diagonal": diagonal_problem,
}


def naive(family, stats, mixing, parameter, criterion, many_children):
    return NaiveSearch(
        lambda rows: float(family.log_marginal(stats[rows].sum(axis=0)[None])[0]),
        lambda rows: float(stats[rows, 0].sum()),
        mixing,
        parameter,
        criterion,
        many_children,
    ).run(len(stats))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("problem", list(PROBLEMS))
@pytest.mark.parametrize(
    ("mixing", "parameter", "criterion", "many_children"),
    [
        ("dp", 1.3, "posterior_odds", False),
        ("dp", 0.4, "likelihood_ratio", False),
        ("dp", 0.8, "likelihood_ratio", True),
        ("dp", 0.8, "posterior_odds", True),
        ("rose", 0.4, "likelihood_ratio", True),
        ("rose", 0.4, "posterior_odds", True),
        ("constant", 0.3, "likelihood_ratio", True),
        ("constant", 0.3, "likelihood_ratio", False),
    ],
)
@pytest.mark.parametrize("key_budget", [0.0, 1e9])
def test_greedy_search__equals_naive_search(
    seed, problem, mixing, parameter, criterion, many_children, key_budget
):
    family, stats = PROBLEMS[problem](seed, 9, 7)
    expected, _ = naive(family, stats, mixing, parameter, criterion, many_children)
    plan = SearchPlan(MIXINGS[mixing](parameter), criterion, many_children, key_budget)
    found = greedy_search(family, stats, plan)
    assert as_nested(found.structure) == expected


@pytest.mark.parametrize("seed", range(3))
def test_greedy_search__odds_equal_naive_odds_to_nine_digits(seed):
    family, stats = bernoulli_problem(seed, 10, 12)
    _, expected = naive(family, stats, "dp", 1.0, "posterior_odds", False)
    mixing = DirichletProcess(1.0)
    found = greedy_search(family, stats, SearchPlan(mixing))
    n_rows = found.structure.sum_up(stats[:, 0])
    odds = evaluate(found.structure, n_rows, found.log_marginal, mixing).log_odds[10:]
    np.testing.assert_allclose(odds, expected, rtol=1e-9)


@pytest.mark.parametrize("problem", list(PROBLEMS))
@pytest.mark.parametrize("many_children", [False, True])
def test_greedy_search__key_matrix_and_threads_change_nothing(problem, many_children):
    family, stats = PROBLEMS[problem](3, 150, 5)
    plans = [
        SearchPlan(RoseMixing(0.5), "likelihood_ratio", many_children, budget, threads)
        for budget, threads in [(0.0, 1), (0.0, 2), (1e9, 1), (1e9, 2)]
    ]
    first, *others = [greedy_search(family, stats, plan) for plan in plans]
    for other in others:
        np.testing.assert_array_equal(first.structure.child_list, other.structure.child_list)
        np.testing.assert_array_equal(first.log_marginal, other.log_marginal)


@pytest.mark.parametrize("problem", list(PROBLEMS))
@pytest.mark.parametrize("n", [60, 140])
def test_greedy_search__shortcuts_change_nothing(problem, n, monkeypatch):
    # Few columns: many equal rows, hence many exact ties.
    family, stats = PROBLEMS[problem](5, n, 4)
    plan = SearchPlan(DirichletProcess(1.0))
    fast = greedy_search(family, stats, plan)
    monkeypatch.setattr(search_module, "pair_scorer", PairScorer)
    plain = greedy_search(family, stats, plan)
    np.testing.assert_array_equal(fast.structure.child_list, plain.structure.child_list)
    np.testing.assert_array_equal(fast.log_marginal, plain.log_marginal)


def binary_stats(kind, n, d):
    """Leaves of a kind that asks something of ties, and a family."""
    family, stats = bernoulli_problem(n + d, n, d)
    rng = np.random.default_rng(n)
    if kind == "duplicates":
        stats = stats[rng.integers(0, max(1, n // 4), n)]
    elif kind == "all equal":
        stats = np.repeat(stats[:1], n, axis=0)
    elif kind == "weighted":
        stats = stats[rng.integers(0, max(1, n // 2), n)] * rng.integers(1, 9, (n, 1))
    elif kind == "groups":
        others, _ = np.unique(rng.integers(1, n, n // 2), return_counts=True)
        stats = np.add.reduceat(stats, np.array([0, *others]), axis=0)
    return family, stats


def bits(found):
    structure = found.structure
    tree = structure.child_start.tobytes(), structure.child_list.tobytes()
    return *tree, found.log_marginal.tobytes(), found.n_rescans


@pytest.mark.parametrize("kind", ["rows", "duplicates", "all equal", "weighted", "groups"])
@pytest.mark.parametrize(
    "model",
    [
        (DirichletProcess(1.0), "posterior_odds", False),
        (DirichletProcess(0.3), "likelihood_ratio", True),
        (RoseMixing(0.5), "likelihood_ratio", True),
        (ConstantMixing(0.4), "posterior_odds", False),
    ],
)
@pytest.mark.parametrize("key_budget", [0.0, 1e9])
def test_greedy_search__compiled_merges_have_the_bits_of_the_python_loop(
    kind, model, key_budget, monkeypatch
):
    plan = SearchPlan(*model, key_budget)
    problems = [binary_stats(kind, n, d) for n, d in MERGED_SIZES]
    assert all(pair_scorer(*problem).compiled_groups() is not None for problem in problems)
    compiled = [bits(greedy_search(*problem, plan)) for problem in problems]
    monkeypatch.setattr(search_module, "_MERGES_A_CALL", 7)
    assert [bits(greedy_search(*problem, plan)) for problem in problems] == compiled
    monkeypatch.setattr(BernoulliPairs, "compiled_groups", lambda scorer: None)
    assert [bits(greedy_search(*problem, plan)) for problem in problems] == compiled


def test_greedy_search__compiled_merges_report_each_call(monkeypatch):
    seen = []
    monkeypatch.setattr(events, "_SECONDS_BETWEEN", 0.0)
    monkeypatch.setattr(search_module, "_MERGES_A_CALL", 10)
    with events.listen(lambda event: seen.append((event.stage, event.done))):
        greedy_search(*bernoulli_problem(0, 25, 8), SearchPlan(DirichletProcess(1.0)))
    assert [done for stage, done in seen if stage == "merging"] == [0, 10, 20, 24]


def test_greedy_search__long_merges_are_fewer_a_call(monkeypatch):
    family, stats = bernoulli_problem(0, 20, 8)
    monkeypatch.setattr(search_module, "_CELLS_A_CALL", 1)
    search = search_module._Search(family, stats, SearchPlan(DirichletProcess(1.0)))
    search._first_pairs()
    assert list(search._merges()) == [1] * 19


@pytest.mark.parametrize("d", [1, 8, 63, 64, 65, 130])
def test_bernoulli_pairs__rows_and_groups_of_any_width(d):
    family, stats = bernoulli_problem(3, 90, d)
    scorer = pair_scorer(family, stats)
    assert isinstance(scorer, BernoulliPairs)
    for k, joined in [(0, range(1, 20)), (20, range(21, 30)), (30, [31])]:
        for j in joined:
            scorer.combine(k, j, float(scorer.exact(k, np.array([j]))[0]))
    everyone = np.array([0, 20, 30, *range(32, 90)])
    for k in (0, 30, 89):
        others = everyone[everyone != k]
        row, error = scorer.row(k, others)
        assert np.abs(row - scorer.exact(k, others)).max() <= error < 1e-6
        np.testing.assert_array_equal(
            scorer.exact(k, others), family.log_marginal_pairs(scorer.stats, k, others)
        )


@pytest.mark.skipif(
    not IS_COMPILED, reason="plain Python holds the interpreter, so threads cannot meet"
)
def test_greedy_search__several_threads_do_not_meet():
    problems = [bernoulli_problem(seed, 120, 12) for seed in range(8)]
    family = problems[0][0]  # one family for all, as in the nodes of a large tree
    plan = SearchPlan(DirichletProcess(1.0))
    together = thread_map(lambda problem: greedy_search(family, problem[1], plan), problems, 4)
    alone = [greedy_search(family, stats, plan) for _, stats in problems]
    assert [bits(found) for found in together] == [bits(found) for found in alone]


def test_greedy_search__ties_go_to_smallest_ids():
    rows = np.repeat([[1, 1, 0, 0], [0, 0, 1, 1]], 3, axis=0)
    family = Bernoulli(np.ones(4), np.ones(4))
    found = greedy_search(
        family, family.accumulate(rows, np.arange(6), 6), SearchPlan(DirichletProcess(1.0))
    )
    assert found.structure.children(6).tolist() == [0, 1]
    assert found.structure.children(7).tolist() == [2, 6]
    assert found.structure.children(8).tolist() == [3, 4]


def test_greedy_search__identical_rows_become_one_rose_node():
    rows = np.ones((12, 3))
    family = Bernoulli(np.ones(3), np.ones(3))
    stats = family.accumulate(rows, np.arange(12), 12)
    found = greedy_search(family, stats, SearchPlan(RoseMixing(0.5), "likelihood_ratio", True))
    assert found.structure.n_internal == 1


@pytest.mark.parametrize("problem", list(PROBLEMS))
def test_greedy_search__row_order_only_renames_leaves(problem):
    family, stats = PROBLEMS[problem](8, 40, 30)
    order = np.random.default_rng(0).permutation(40)
    plan = SearchPlan(DirichletProcess(1.0))
    straight = greedy_search(family, stats, plan).structure
    shuffled = greedy_search(family, stats[order], plan).structure

    def clades(structure, names):
        below = [frozenset(names[structure.leaves(k)].tolist()) for k in range(40, 79)]
        return set(below)

    assert clades(straight, np.arange(40)) == clades(shuffled, order)


def test_greedy_search__preformed_singletons_change_nothing_and_blocks_stay_whole():
    family, stats = bernoulli_problem(2, 30, 8)
    blocks = np.add.reduceat(stats, np.arange(0, 30, 3), axis=0)
    found = greedy_search(family, blocks, SearchPlan(DirichletProcess(1.0), key_budget=0.0))
    expected, _ = naive(family, blocks, "dp", 1.0, "posterior_odds", False)
    assert as_nested(found.structure) == expected


@pytest.mark.parametrize("problem", list(PROBLEMS))
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_pair_scorer__stays_within_its_stated_error(problem, scale):
    family, stats = PROBLEMS[problem](1, 80, 6)
    if problem == "gaussian":
        stats = family.accumulate(
            scale * np.random.default_rng(0).normal(size=(80, 6)), np.arange(80), 80
        )
    scorer = pair_scorer(family, stats)
    tile, error = scorer.leaf_rows(0, 80)
    for k in range(80):
        others = np.delete(np.arange(80), k)
        exact = scorer.exact(k, others)
        assert np.abs(tile[k, others] - exact).max() <= error
        row, row_error = scorer.row(k, others)
        assert np.abs(row - exact).max() <= row_error
    for j in range(1, 40):
        log_f = float(scorer.exact(0, np.array([j]))[0])
        scorer.combine(0, j, log_f)
    rest = np.arange(40, 80)
    for k, others in [(0, rest), (50, np.array([0])), (50, np.array([0, *range(51, 80)]))]:
        row, row_error = scorer.row(k, others)
        assert np.abs(row - scorer.exact(k, others)).max() <= row_error


@pytest.mark.skipif(
    not IS_COMPILED, reason="plain Python holds the interpreter, so threads cannot meet"
)
@pytest.mark.parametrize("problem", list(PROBLEMS))
def test_leaf_rows__of_several_threads_do_not_meet(problem):
    # Leaves of different sizes take the general route, one compiled call a row.
    family, stats = PROBLEMS[problem](2, 480, 12)
    stats *= np.random.default_rng(0).integers(1, 3, (480, 1))
    scorer = pair_scorer(family, stats)
    starts = range(0, 480, 16)
    together = thread_map(lambda start: scorer.leaf_rows(start, start + 16)[0], starts, 4)
    alone = [scorer.leaf_rows(start, start + 16)[0] for start in starts]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("problem", ["multinomial", "poisson", "categorical"])
def test_count_scorer__is_used_and_gives_way_when_tables_would_not_fit(problem, monkeypatch):
    family, stats = PROBLEMS[problem](0, 20, 4)
    assert isinstance(pair_scorer(family, stats), CountPairs)
    monkeypatch.setattr("distclust.families.count_pairs._TABLE_ENTRIES", 3)
    assert type(pair_scorer(family, stats)) is PairScorer


def wide_problem(seed, n, d):
    rng = np.random.default_rng(seed)
    centres = rng.beta(0.1, 3.0, size=(4, d))
    rows = (rng.random((n, d)) < centres[rng.integers(0, 4, n)]).astype(int)
    family = Bernoulli(rng.gamma(0.5, size=d), rng.gamma(2.0, size=d))
    return family, family.accumulate(rows, np.arange(n), n)


@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_bernoulli_pairs__change_nothing(weighted, monkeypatch):
    family, stats = wide_problem(0, 150, 400)
    if weighted:
        stats *= np.random.default_rng(1).integers(1, 4, (150, 1))
    plan = SearchPlan(DirichletProcess(1.0), key_budget=0.0)
    expected = greedy_search(family, stats, plan)
    monkeypatch.setattr("distclust.families.pairs._TABLE_BYTES", 1000)
    scorer = pair_scorer(family, stats)
    assert isinstance(scorer, SparseBernoulliPairs)
    others = np.arange(1, 150)
    row, error = scorer.row(0, others)
    assert np.abs(row - scorer.exact(0, others)).max() <= error < 1e-4
    found = greedy_search(family, stats, plan)
    np.testing.assert_array_equal(found.structure.child_list, expected.structure.child_list)
    np.testing.assert_array_equal(found.log_marginal, expected.log_marginal)


def test_bernoulli_pairs__tables_have_the_bits_of_the_formula():
    family, stats = bernoulli_problem(6, 200, 11)
    scorer = pair_scorer(family, stats)
    for j in range(1, 60):
        scorer.combine(0, j, 0.0)
    others = np.arange(60, 200)
    for k in (0, 70):
        np.testing.assert_array_equal(
            scorer.exact(k, others), family.log_marginal_pairs(scorer.stats, k, others)
        )


@pytest.mark.parametrize("problem", list(PROBLEMS))
def test_pair_scorer__own_is_the_log_marginal_of_each_group(problem):
    family, stats = PROBLEMS[problem](6, 50, 11)
    stats *= np.random.default_rng(0).integers(1, 4, (50, 1))
    np.testing.assert_array_equal(pair_scorer(family, stats).own(), family.log_marginal(stats))


def test_bernoulli_pairs__tables_too_small_for_the_counts_change_nothing(monkeypatch):
    family, stats = bernoulli_problem(4, 120, 9)
    stats[:5] *= 50  # leaves that stand for many rows
    plan = SearchPlan(DirichletProcess(1.0))
    expected = greedy_search(family, stats, plan)
    monkeypatch.setattr("distclust.families.pairs._TABLE_BYTES", 16 * 9 * 7)
    assert pair_scorer(family, stats).compiled_groups() is None
    found = greedy_search(family, stats, plan)
    np.testing.assert_array_equal(found.structure.child_list, expected.structure.child_list)


@pytest.mark.parametrize("many_children", [False, True])
@pytest.mark.parametrize("mixing", [DirichletProcess(1.0), RoseMixing(0.5), ConstantMixing(0.5)])
def test_greedy_search__rows_that_all_differ_still_make_a_tree(mixing, many_children):
    # Every merge is so poor that likelihood ratios reach their floor log(1 − π).
    rows = np.random.default_rng(0).integers(0, 2, (40, 600))
    family = Bernoulli(np.full(600, 0.2), np.full(600, 0.2))
    stats = family.accumulate(rows, np.arange(40), 40)
    found = greedy_search(family, stats, SearchPlan(mixing, "likelihood_ratio", many_children))
    assert found.structure.n_leaves == 40


def test_greedy_search__poor_merges_are_ordered_by_their_odds():
    # With constant mixing and joins both criteria rank alike in exact arithmetic.
    rows = np.random.default_rng(1).integers(0, 2, (40, 600))
    family = Bernoulli(np.full(600, 0.2), np.full(600, 0.2))
    stats = family.accumulate(rows, np.arange(40), 40)
    trees = [
        greedy_search(family, stats, SearchPlan(ConstantMixing(0.5), criterion)).structure
        for criterion in ("likelihood_ratio", "posterior_odds")
    ]
    np.testing.assert_array_equal(trees[0].child_list, trees[1].child_list)


def test_greedy_search__two_leaves_and_one():
    family, stats = bernoulli_problem(0, 2, 3)
    assert greedy_search(family, stats, SearchPlan(DirichletProcess(1.0))).structure.n_nodes == 3
    one = greedy_search(family, stats[:1], SearchPlan(DirichletProcess(1.0)))
    assert one.structure.n_nodes == 1
    assert isinstance(family, Family)
