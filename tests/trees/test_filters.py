"""Filters: scores against naive sums, tables against the family's own density."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.sparse

from distclust.families import Bernoulli, Categorical, family_named
from distclust.trees import _filter_numerics as numerics
from distclust.trees import filters
from distclust.trees.evaluate import DirichletProcess, evaluate
from distclust.trees.filters import Filter, SampleTree, make_filter, make_tables, pack
from distclust.trees.search import SearchPlan, greedy_search
from tests.oracles.families import resolved
from tests.oracles.randomised import FAMILIES, Model, planted, rows_of

CONCENTRATION = 0.7
N_SAMPLED = 14


def sample_tree(family, rows):
    """The tree of some rows as filters see it, and the same tree nested."""
    n_rows = len(rows)
    stats = family.accumulate(rows, np.arange(n_rows), n_rows)
    mixing = DirichletProcess(CONCENTRATION)
    found = greedy_search(family, stats, SearchPlan(mixing=mixing))
    every = found.structure.sum_up(stats)
    evaluation = evaluate(found.structure, every[:, 0], found.log_marginal, mixing)
    nested = list(range(n_rows))
    for node in range(n_rows, found.structure.n_nodes):
        nested.append(tuple(nested[child] for child in found.structure.children(node)))
    return SampleTree(found.structure, evaluation, every), nested


def example(name, seed):
    """A resolved family and rows that fit it."""
    rows = planted(name, seed, n_rows=40)
    template = family_named(name)
    if name == "categorical":
        template = Categorical(n_levels=(3,) * rows.shape[1])
    return resolved(template, rows), rows


# ---- scores ------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", ["size", "pi", "flat"])
@pytest.mark.parametrize("predictive", ["subtree", "single"])
@pytest.mark.parametrize("name", FAMILIES)
def test_scores__are_the_naive_sums(name, predictive, prior, seed):
    family, rows = example(name, seed)
    tree, nested = sample_tree(family, rows[:N_SAMPLED])
    outcomes = frontier(tree.structure, 3)
    found = make_filter(family, tree, outcomes, prior, predictive).scores(rows[N_SAMPLED:])
    naive = Model(family, rows, CONCENTRATION)
    for i, g in np.ndindex(found.shape):
        expected = naive.score(N_SAMPLED + i, nested[outcomes[g]], prior, predictive)
        assert found[i, g] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def frontier(structure, n_outcomes):
    """Some nodes that cover all leaves: the root, opened from the highest number down."""
    nodes = [structure.root]
    while len(nodes) < n_outcomes:
        largest = max(nodes)
        nodes.remove(largest)
        nodes.extend(structure.children(largest).tolist())
    return np.array(sorted(nodes, key=lambda k: structure.leaf_start[k]))


def test_auto__is_single_exactly_where_a_merge_is_all_but_certain():
    seen = set()
    for seed in range(6):
        family, rows = example("bernoulli", seed)
        tree, nested = sample_tree(family, rows[:N_SAMPLED])
        naive = Model(family, rows, CONCENTRATION)
        for node in range(tree.structure.n_leaves, tree.structure.n_nodes):
            made = make_filter(family, tree, np.array([node]), "size", "auto")
            doubt = 1.0 / (1.0 + math.exp(naive.log_odds(nested[node])))
            n_components = 1 if doubt < 1e-3 else 2 * len(rows_of(nested[node])) - 1
            assert len(made.stats) == n_components
            seen.add(n_components == 1)
    assert seen == {True, False}


def test_auto__takes_either_kind_to_the_bit():
    """An outcome's score under "auto" is its score under the predictive that it takes."""
    family, rows = example("bernoulli", 1)
    tree, _ = sample_tree(family, rows[:N_SAMPLED])
    outcomes = frontier(tree.structure, 5)
    by = {
        p: make_filter(family, tree, outcomes, "size", p).scores(rows)
        for p in ("auto", "subtree", "single")
    }
    doubt = tree.evaluation.log_not_posterior[outcomes]
    kind = np.where(doubt < math.log(filters.CERTAIN), "single", "subtree")
    for g, p in enumerate(kind):
        np.testing.assert_array_equal(by["auto"][:, g], by[p][:, g])


def test_only__keeps_scores_of_the_rest():
    family, rows = example("poisson", 0)
    tree, _ = sample_tree(family, rows[:N_SAMPLED])
    whole = make_filter(family, tree, frontier(tree.structure, 4), "size", "subtree")
    part = whole.only(np.array([0, 3]))
    np.testing.assert_array_equal(part.scores(rows), whole.scores(rows)[:, [0, 3]])


def test_ties__go_to_the_last_outcome():
    family = Bernoulli(alpha=1.0, beta=1.0, n_features=3)
    stats = np.array([[4.0, 2.0, 2.0, 2.0]] * 3)
    same = Filter(family, stats, np.zeros(3), np.arange(4))
    assert same.choose(np.eye(3, dtype=np.uint8)).tolist() == [2, 2, 2]
    scores = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [2.0, 1.0, 1.0], [-np.inf] * 3])
    chosen = np.empty(4, np.int64)
    numerics.last_highest(scores, chosen)
    assert chosen.tolist() == [1, 2, 0, 2]


def added_up(joint, starts):
    """Every outcome's log Σ exp, component after component."""
    scores = np.empty((len(joint), len(starts) - 1))
    for i, g in np.ndindex(scores.shape):
        terms = joint[i, starts[g] : starts[g + 1]].tolist()
        highest = max(terms)
        if len(terms) > 1 and highest > -math.inf:
            highest += math.log(sum(math.exp(term - highest) for term in terms))
        scores[i, g] = highest
    return scores


def test_choose_outcomes__as_if_all_were_added_up(seed):
    """Scores near each other and far apart, ties of whole outcomes, and nothing at all."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(rng.integers(1, 9, 30))])
    joint = rng.choice([1e-9, 0.3, 5.0, 300.0], 200)[:, None] * rng.normal(size=(200, starts[-1]))
    joint[50:100] = np.round(joint[50:100])
    joint[100:110, starts[7] : starts[8]] = 4000.0
    joint[105:110, starts[3]] = 4000.0 + math.log(starts[8] - starts[7])
    joint[110:120] = 1.0
    joint[120:125] = -math.inf
    joint[125:150][rng.random((25, starts[-1])) < 0.9] = -math.inf
    scores, expected = added_up(joint, starts), np.empty(200, np.int64)
    numerics.last_highest(scores, expected)
    chosen = np.empty(200, np.int64)
    numerics.choose_outcomes(joint, starts, chosen)
    np.testing.assert_array_equal(chosen, expected)
    highest = np.searchsorted(starts, joint.argmax(axis=1), side="right") - 1
    assert (expected != highest).any()  # sums, not single components, decide


# ---- tables ------------------------------------------------------------------------------------


def random_filter(rng, n_features, alpha=None):
    """Outcomes of one to five components, some of them equal, some outcomes equal."""
    n_outcomes = int(rng.integers(1, 7))
    counts = rng.integers(1, 6, n_outcomes)
    n_components = int(counts.sum())
    sizes = rng.integers(1, 200, n_components).astype(float)
    ones = rng.binomial(sizes[:, None].astype(int), rng.random((n_components, n_features)))
    log_weights = rng.choice([0.0, math.log(3.0), -2.0], n_components)
    source = rng.integers(0, n_components, n_components)  # several come from one
    stats = np.column_stack([sizes, ones])[source]
    strength = float(rng.choice([0.1, 1.0, 3.0])) if alpha is None else alpha
    family = Bernoulli(alpha=strength, beta=strength, n_features=n_features)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return Filter(family, stats, log_weights, starts)


WIDTHS = [1, 2, 7, 8, 9, 31, 32, 33, 64, 65, 100, 200]


@pytest.mark.parametrize("n_features", WIDTHS)
def test_tables__never_change_the_outcome(n_features, seed):
    rng = np.random.default_rng([seed, n_features])
    settled = 0
    for _ in range(15):
        made = random_filter(rng, n_features)
        rows = (rng.random((64, n_features)) < rng.random(n_features)).astype(np.uint8)
        assert made._tables is not None
        settled += count_settled(made, rows)
    assert settled > 0


def count_settled(made, rows):
    """Check that tables settle nothing but what the family's own density says; return how much."""
    by_tables, decided = made._tables.choose(pack(rows), made.starts), made._decide(rows)
    is_settled = by_tables != numerics.DOUBT
    np.testing.assert_array_equal(by_tables[is_settled], decided[is_settled])
    many = np.repeat(rows, 8, axis=0)  # so many that tables are used
    np.testing.assert_array_equal(made.choose(many), np.repeat(decided, 8))
    return int(is_settled.sum())


@pytest.mark.parametrize("alpha", [1e-6, 1e-12, 1e6])
def test_tables__never_change_the_outcome_under_extreme_priors(alpha, seed):
    rng = np.random.default_rng([seed, 7])
    for n_features in (3, 40):
        made = random_filter(rng, n_features, alpha)
        rows = (rng.random((200, n_features)) < 0.5).astype(np.uint8)
        if made._tables is not None:  # else units would be too coarse
            count_settled(made, rows)


def test_tables__doubt_what_rounding_could_reverse():
    """Scores that differ by less than the units can tell are decided in double precision."""
    family = Bernoulli(alpha=1.0, beta=1.0, n_features=8)
    stats = np.array([[10.0, *[5.0] * 8]] * 2)
    rows = np.eye(8, dtype=np.uint8)
    for gap in (1e-12, -1e-12, 1e-9, -1e-9):
        made = Filter(family, stats, np.array([0.0, gap]), np.arange(3))
        assert (made._tables.choose(pack(rows), made.starts) == numerics.DOUBT).all()
        assert (made.choose(rows) == (1 if gap > 0 else 0)).all()
    clear = Filter(family, stats, np.array([0.0, 0.01]), np.arange(3))
    assert (clear._tables.choose(pack(rows), clear.starts) == 1).all()


def test_tables__several_components_may_win_together():
    """No component of the winner need be the likeliest one: slack makes it a doubt."""
    family = Bernoulli(alpha=1.0, beta=1.0, n_features=4)
    stats = np.array([[10.0, 5, 5, 5, 5]] * 4)
    made = Filter(family, stats, np.array([0.1, 0.0, 0.0, 0.0]), np.array([0, 1, 4]))
    rows = np.eye(4, dtype=np.uint8)
    assert (made._tables.choose(pack(rows), made.starts) == numerics.DOUBT).all()
    assert (made.choose(rows) == 1).all()


def test_tables__are_sums_of_weights():
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(11, 3))
    tables = filters._sums_by_byte(np.rint(weights * 1000).astype(np.int32))
    row = rng.integers(0, 2, 11)
    packed = pack(row[None].astype(np.uint8))[0]
    total = sum(tables[i, byte] for i, byte in enumerate(packed))
    np.testing.assert_array_equal(total, (row[:, None] * np.rint(weights * 1000)).sum(axis=0))
    assert len(packed) == numerics.WORD


def test_tables__are_not_made_where_they_do_not_fit():
    narrow = Bernoulli(alpha=1.0, beta=1.0, n_features=4)
    stats = np.array([[3.0, 1, 1, 1, 1]] * 2)
    nothing = np.zeros(2)
    assert make_tables(narrow, stats, nothing, nothing) is not None
    gapped = Bernoulli(alpha=1.0, beta=1.0, n_features=4, has_missing=True)
    assert make_tables(gapped, np.ones((2, 9)), nothing, nothing) is None
    far = np.array([0.0, -1e9])  # the units would be too coarse
    assert make_tables(narrow, stats, far, nothing) is None
    wide = Bernoulli(alpha=1.0, beta=1.0, n_features=2**14)
    assert make_tables(wide, np.ones((64, 2**14 + 1)), np.zeros(64), np.zeros(64)) is None


# ---- rows in every form ------------------------------------------------------------------------


@pytest.mark.parametrize("n_features", [1, 8, 13, 33])
def test_choose__is_the_same_for_every_kind_of_block(n_features, seed):
    rng = np.random.default_rng([seed, n_features])
    made = random_filter(rng, n_features)
    rows = (rng.random((90, n_features)) < 0.5).astype(np.uint8)
    expected = made._decide(rows)
    for dtype in (np.bool_, np.uint8, np.int8, np.int64, np.uint16, np.float32, np.float64):
        np.testing.assert_array_equal(made.choose(rows.astype(dtype)), expected)
    np.testing.assert_array_equal(made.choose(np.asfortranarray(rows)), expected)
    sparse = made.choose(scipy.sparse.csr_array(rows.astype(float)))
    scores = made.scores(rows)
    # A sparse product adds in another order: only scores that are equal may change places.
    np.testing.assert_allclose(
        np.take_along_axis(scores, sparse[:, None], 1)[:, 0], scores.max(axis=1), atol=1e-9
    )


def test_choose__rows_with_gaps_are_decided_by_what_is_there(seed):
    rng = np.random.default_rng(seed)
    made = random_filter(rng, 12)
    rows = (rng.random((50, 12)) < 0.5).astype(float)
    rows[::3, 4] = np.nan
    whole = np.flatnonzero(~np.isnan(rows).any(axis=1))
    chosen = made.choose(rows)
    np.testing.assert_array_equal(chosen, made._decide(rows))
    np.testing.assert_array_equal(chosen[whole], made.choose(rows[whole]))
    scores = made.scores(rows[:1])
    stats = made.stats[:, [0, *np.delete(np.arange(1, 13), 4)]]
    narrower = Bernoulli(alpha=made.family.alpha[:11], beta=made.family.beta[:11], n_features=11)
    without = Filter(narrower, stats, made.log_weights, made.starts)
    expected = without.scores(np.delete(rows[:1], 4, axis=1))
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_choose__does_not_depend_on_the_company(name, seed):
    family, rows = example(name, seed)
    tree, _ = sample_tree(family, rows[:N_SAMPLED])
    for predictive in ("subtree", "single", "auto"):
        made = make_filter(family, tree, frontier(tree.structure, 4), "size", predictive)
        together = made.choose(rows)
        alone = [int(made.choose(rows[i : i + 1])[0]) for i in range(len(rows))]
        assert together.tolist() == alone
        scores = np.concatenate([made.scores(rows[i : i + 1]) for i in range(len(rows))])
        np.testing.assert_array_equal(made.scores(rows), scores)


def test_decide__takes_many_rows_some_at_a_time(monkeypatch):
    rng = np.random.default_rng(3)
    made = random_filter(rng, 9)
    rows = (rng.random((700, 9)) < 0.5).astype(np.uint8)
    whole = made._decide(rows)
    monkeypatch.setattr(filters, "_SCORE_CELLS", 1)
    np.testing.assert_array_equal(made._decide(rows), whole)


def test_pack__says_no_to_what_tables_cannot_take():
    assert pack(np.array([[0.0, np.nan]])) is None
    packed = pack(np.array([[0, 3, 0], [1, 0, 1]]))
    assert np.unpackbits(packed, axis=1)[:, :3].tolist() == [[0, 1, 0], [1, 0, 1]]
