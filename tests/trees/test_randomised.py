"""RandomizedBHC: the published algorithm, and what holds for every tree it makes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.metrics import adjusted_rand_score

import distclust
from distclust import BHC, RandomizedBHC
from distclust.errors import ConvergenceWarning, DistclustError, InputError, OtherRowsError
from distclust.families import Bernoulli
from distclust.seeding import row_hashes, row_keys
from distclust.trees import growing, sampling
from distclust.trees.filters import Filter
from tests.oracles import trees as oracle
from tests.oracles.randomised import (
    FAMILIES,
    Changing,
    Model,
    as_sets,
    by_first_row,
    check_direct,
    check_same,
    nested_leaves,
    planted,
    separated,
    smallest_hashes,
)
from tests.oracles.search import as_nested

# Small random tables have constant columns now and then.
pytestmark = pytest.mark.filterwarnings("ignore::distclust.errors.ConstantColumnsWarning")

SIZES = (400, 150, 60, 25, 12)
FEW = (70, 40, 25, 5)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 rows, so that a few hundred rows have many blocks and several spans."""
    monkeypatch.setattr("distclust.store.matrix.block_rows_for", lambda *_: 16)


TWO_WAYS = [{}, {"levels_per_pass": 4, "resolve": "rows"}]


# ---- the published algorithm -------------------------------------------------------------------


@pytest.mark.parametrize("predictive", ["subtree", "single"])
@pytest.mark.parametrize("family", FAMILIES)
def test_published__is_the_naive_recursion(family, predictive, seed):
    rows = planted(family, seed, n_rows=50)
    model = RandomizedBHC(
        sample_size=7,
        levels_per_pass=1,
        filter_predictive=predictive,
        resolve="rows",
        family=family,
        random_state=seed,
    ).fit(rows)
    naive = Model(model.family_, rows).rbhc(7, seed, "size", predictive)
    assert as_nested(model.tree_.structure) == as_sets(naive)
    check_direct(model, rows)


@pytest.mark.parametrize("prior", ["pi", "flat"])
def test_published__with_other_priors_is_the_naive_recursion(prior, seed):
    rows = planted("bernoulli", seed, n_rows=50)
    model = RandomizedBHC(
        sample_size=10,
        levels_per_pass=1,
        filter_prior=prior,
        filter_predictive="subtree",
        resolve="rows",
        concentration=0.4,
        random_state=seed,
    ).fit(rows)
    naive = Model(model.family_, rows, 0.4).rbhc(10, seed, prior, "subtree")
    assert as_nested(model.tree_.structure) == as_sets(naive)


@pytest.mark.parametrize("family", FAMILIES)
def test_sample_of_all_rows__is_bhc(family, seed):
    rows = planted(family, seed)
    new = planted(family, seed + 100)
    exact = BHC(family=family).fit(rows)
    model = RandomizedBHC(sample_size=60, resolve="rows", family=family).fit(rows)
    np.testing.assert_array_equal(
        model.tree_.structure.child_list, exact.tree_.structure.child_list
    )
    np.testing.assert_array_equal(model.tree_.log_odds, exact.tree_.log_odds)
    np.testing.assert_array_equal(model.labels_, exact.labels_)
    assert model.log_evidence_ == exact.log_evidence_
    assert model.family_ == exact.family_
    np.testing.assert_array_equal(model.predict(new), exact.predict(new))
    np.testing.assert_array_equal(model.predict_proba(new), exact.predict_proba(new))


# ---- what is reported --------------------------------------------------------------------------

OPTIONS = [
    {},
    {"resolve": "rows"},
    {"levels_per_pass": 1},
    {"levels_per_pass": 2, "resolve": "rows"},
    {"max_levels": 2},
    {"max_levels": 3, "resolve": "rows"},
    {"filter_prior": "pi", "filter_predictive": "single"},
    {"concentration": 5.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_reported__is_a_direct_evaluation_of_the_tree(options, seed, small_blocks):
    rows, _ = separated(seed, (60, 30, 20, 10))
    model = RandomizedBHC(sample_size=16, random_state=seed, **options).fit(rows)
    check_direct(model, rows)
    if options.get("max_levels"):
        assert model.tree_.structure.depth.max() <= options["max_levels"]
    elif options.get("resolve") == "rows":
        assert model.tree_.n_leaves == len(rows)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("resolve", ["clusters", "rows"])
def test_reported__is_a_direct_evaluation_for_every_family(family, resolve, small_blocks):
    rows = planted(family, 1, n_rows=150)
    model = RandomizedBHC(sample_size=30, resolve=resolve, family=family, random_state=0)
    check_direct(model.fit(rows), rows)


def test_preformed_leaves__weight_is_the_sum_over_partitions_that_keep_them():
    """Theorem 3.1 with blocks, in exact fractions."""
    rows, _ = separated(3, (7, 6, 5, 4), width=24, noise=0.03)
    alpha = Fraction(1, 2)
    model = RandomizedBHC(
        sample_size=12, family=Bernoulli(alpha=1.0, beta=1.0), concentration=0.5, random_state=0
    ).fit(rows)
    tree = model.tree_
    assert 3 <= tree.n_leaves < len(rows)
    groups = [rows[tree.rows(leaf)].tolist() for leaf in range(tree.n_leaves)]
    likelihood = oracle.Likelihood(groups)
    weight = sum(
        oracle.crp_weight(p, alpha, likelihood.sizes) * likelihood.of_partition(p)
        for p in oracle.tree_partitions(nested_leaves(tree.structure))
    )
    log_weight = oracle.log_fraction(weight)
    assert tree.evaluation.log_weight[-1] == pytest.approx(log_weight, rel=1e-12)
    bound = log_weight - oracle.log_fraction(oracle.rising(alpha, len(rows)))
    assert model.log_lower_bound_ == pytest.approx(bound, rel=1e-12)


def test_reported__figures_of_the_fit():
    rows, _ = separated(0, SIZES)
    model = RandomizedBHC(sample_size=64, random_state=0).fit(rows)
    assert model.n_passes_ >= 1
    assert 0.0 <= model.filter_disagreement_ <= 0.05
    assert model.family_reason_
    assert model.objective_path_.tolist() == [model.log_lower_bound_]


# ---- the same answer everywhere ----------------------------------------------------------------


def test_same__for_any_order_of_the_rows():
    rows, _ = separated(1, SIZES)
    ids = np.array([f"row {i}" for i in range(len(rows))])
    order = np.random.default_rng(5).permutation(len(rows))
    table = pd.DataFrame(rows.astype(bool), index=ids)
    table.columns = [f"c{i}" for i in range(rows.shape[1])]
    straight = RandomizedBHC(sample_size=64, random_state=3).fit(table)
    shuffled = RandomizedBHC(sample_size=64, random_state=3).fit(table.iloc[order])
    expected = by_first_row(straight.labels_[order].tolist())
    assert shuffled.labels_.tolist() == expected
    sets = []
    for model in (straight, shuffled):
        tree = model.tree_
        sets.append({frozenset(tree.row_ids[tree.rows(k)].tolist()) for k in range(tree.n_nodes)})
    assert sets[0] == sets[1]


@pytest.mark.parametrize("options", TWO_WAYS, ids=str)
def test_same__in_any_chunks_of_a_dask_array(options, small_blocks):
    import dask.array as da

    rows, _ = separated(2, FEW)
    model = RandomizedBHC(sample_size=24, random_state=1, **options)
    here = model.fit(rows)
    for chunks in ((140, 40), (37, 40), ((1, 100, 39), (13, 27))):
        there = RandomizedBHC(**model.get_params()).fit(da.from_array(rows, chunks=chunks))
        check_same(here, there)
        np.testing.assert_array_equal(
            there.predict(da.from_array(rows, chunks=(50, 40))), here.predict(rows)
        )


@pytest.mark.parametrize("options", TWO_WAYS, ids=str)
def test_same__in_any_number_of_threads(options, small_blocks):
    rows, _ = separated(3, FEW)
    fits = []
    for threads in (1, 3):
        with distclust.connect("threads", threads=threads):
            fits.append(RandomizedBHC(sample_size=24, random_state=1, **options).fit(rows))
    check_same(*fits)


@pytest.mark.parametrize("options", TWO_WAYS, ids=str)
def test_same__sparse_and_dense(options, seed):
    rows, _ = separated(seed, FEW)
    dense = RandomizedBHC(sample_size=24, random_state=1, **options).fit(rows)
    sparse = RandomizedBHC(sample_size=24, random_state=1, **options).fit(
        scipy.sparse.csr_array(rows)
    )
    check_same(dense, sparse)
    np.testing.assert_array_equal(sparse.predict(scipy.sparse.csr_array(rows)), dense.predict(rows))


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float64])
def test_same__for_any_type_of_zeros_and_ones(dtype):
    rows, _ = separated(4, FEW)
    one = RandomizedBHC(sample_size=24, random_state=1, family="bernoulli")
    other = RandomizedBHC(**one.get_params())
    check_same(one.fit(rows), other.fit(rows.astype(dtype)))


@pytest.mark.cluster
@pytest.mark.parametrize(
    "options",
    [*TWO_WAYS, {"family": "diagonal_gaussian"}],
    ids=str,
)
def test_same__on_a_client(options, small_blocks, local_client):
    import dask.array as da

    rows, _ = separated(5, FEW)
    here = RandomizedBHC(sample_size=24, random_state=1, **options).fit(rows)
    there = RandomizedBHC(sample_size=24, random_state=1, **options)
    with local_client.as_current():
        check_same(here, there.fit(rows))
        predicted = there.predict(rows)
        check_same(here, there.fit(da.from_array(rows, chunks=(60, 11))))
    np.testing.assert_array_equal(predicted, here.predict(rows))


def test_seed__decides_and_nothing_else_does():
    rows = planted("bernoulli", 0, n_rows=300, n_clusters=8)
    fits = [RandomizedBHC(sample_size=16, random_state=s).fit(rows) for s in (0, 0, 1)]
    check_same(fits[0], fits[1])
    assert fits[0].log_evidence_ != fits[2].log_evidence_


def questions_of(monkeypatch):
    """Return a list to which every question of the fits to come is added."""
    seen = []
    original = growing.make_question

    def spy(*arguments):
        seen.append(original(*arguments))
        return seen[-1]

    monkeypatch.setattr(growing, "make_question", spy)
    return seen


def test_first_sample__is_the_rows_with_the_smallest_hashes(monkeypatch, small_blocks):
    rows, _ = separated(6, SIZES)
    seen = questions_of(monkeypatch)
    RandomizedBHC(sample_size=30, random_state=9).fit(rows)
    hashes = row_hashes(9, row_keys(np.arange(len(rows))), "")
    expected = smallest_hashes(range(len(rows)), hashes, 30)
    assert seen[0].sample.positions.tolist() == expected
    np.testing.assert_array_equal(seen[0].sample.rows, rows[expected])


def test_later_samples__are_the_rows_with_the_smallest_hashes(monkeypatch, small_blocks):
    rows, _ = separated(7, SIZES)
    seen = questions_of(monkeypatch)
    model = RandomizedBHC(sample_size=30, check_size=12, random_state=9).fit(rows)
    keys, paths = row_keys(np.arange(len(rows))), model._router.paths
    ends = np.array([f"{paths[node]}/" for node in model._router.place(rows)])
    for question in seen[1:]:  # the first one is about the root
        path = paths[question.node]
        mine = np.flatnonzero(np.char.startswith(ends, f"{path}/"))
        assert question.n_rows == len(mine)
        n_sampled = len(question.sample)
        assert n_sampled in (min(12, len(mine)), min(30, len(mine)))
        expected = smallest_hashes(mine.tolist(), row_hashes(9, keys[mine], path), n_sampled)
        is_whole = n_sampled == len(mine)
        assert question.sample.positions.tolist() == (sorted(expected) if is_whole else expected)
    assert len(seen) >= 1 + len(SIZES)


@pytest.mark.parametrize("options", TWO_WAYS, ids=str)
@pytest.mark.parametrize("times", [3.0, 1e9])  # too few candidates, and none at all
def test_shortfall__costs_a_read_and_changes_nothing(times, options, monkeypatch, small_blocks):
    rows, _ = separated(8, FEW)
    model = RandomizedBHC(sample_size=20, check_size=10, random_state=2, **options)
    usual = model.fit(rows)
    stages = []
    original = growing.run_sweep

    def spy(matrix, task, stage, **how):
        stages.append(stage)
        return original(matrix, task, stage, **how)

    monkeypatch.setattr(growing, "run_sweep", spy)
    monkeypatch.setattr(growing, "size_at_least", lambda n_rows, *_: times * n_rows)
    short = RandomizedBHC(**model.get_params()).fit(rows)
    assert "completing samples" in stages
    check_same(usual, short)


def test_shortfall__of_the_first_sample(monkeypatch, small_blocks):
    rows, _ = separated(8, SIZES)
    usual = RandomizedBHC(sample_size=20, random_state=2).fit(rows)
    limits = []

    def low(want, at_least):
        limits.append(want)
        return np.uint64(0) if len(limits) == 1 else sampling.hash_limit(want, at_least)

    monkeypatch.setattr(growing, "hash_limit", low)
    short = RandomizedBHC(sample_size=20, random_state=2).fit(rows)
    check_same(usual, short)
    assert usual.filter_disagreement_ == short.filter_disagreement_


# ---- prediction and saving ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"filter_predictive": "subtree"}, {"filter_prior": "pi"}, {"max_levels": 2}],
    ids=str,
)
def test_predict__of_fitted_rows_is_their_label(options, seed, small_blocks):
    rows = planted("bernoulli", seed, n_rows=400, n_clusters=7)
    model = RandomizedBHC(sample_size=40, random_state=seed, **options).fit(rows)
    assert model.n_clusters_ > 2
    np.testing.assert_array_equal(model.predict(rows), model.labels_)


@pytest.mark.parametrize("family", FAMILIES)
def test_predict__of_fitted_rows_is_their_label_for_every_family(family, seed):
    rows = planted(family, seed, n_rows=300, n_clusters=5)
    model = RandomizedBHC(sample_size=40, family=family, random_state=0).fit(rows)
    np.testing.assert_array_equal(model.predict(rows), model.labels_)


@pytest.mark.parametrize("options", [*TWO_WAYS, {"levels_per_pass": 1}], ids=str)
@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_save__loads_the_same_model(family, options, tmp_path):
    rows = planted(family, 2, n_rows=200)
    model = RandomizedBHC(sample_size=30, family=family, random_state=1, **options).fit(rows)
    model.save(tmp_path / "model")
    loaded = distclust.load(tmp_path / "model")
    check_same(loaded, model)
    assert loaded.get_params() == model.get_params()
    assert loaded.filter_disagreement_ == model.filter_disagreement_
    new = planted(family, 3, n_rows=200)
    np.testing.assert_array_equal(loaded.predict(new), model.predict(new))
    np.testing.assert_array_equal(loaded.predict(rows), model.predict(rows))
    np.testing.assert_array_equal(loaded.score_samples(new), model.score_samples(new))


@pytest.mark.parametrize("options", TWO_WAYS, ids=str)
def test_predict__rows_unlike_any_cluster_get_a_label(options):
    rows, _ = separated(1, FEW)
    model = RandomizedBHC(sample_size=30, random_state=0, **options).fit(rows)
    strange = np.concatenate([np.zeros((3, 40)), np.ones((3, 40)), 1 - rows[:20]])
    labels = model.predict(strange)
    assert set(labels) <= set(range(model.n_clusters_))
    strange[0, :7] = np.nan  # missing entries are left out
    assert model.predict(strange)[1:].tolist() == labels[1:].tolist()


def test_resolved_rows__new_rows_join_clusters_of_the_cut(seed):
    rows, truth = separated(seed, FEW)
    model = RandomizedBHC(sample_size=40, resolve="rows", random_state=seed).fit(rows)
    assert model.tree_.n_leaves == len(rows)
    new = np.concatenate([rows, 1 - (1 - rows)])
    labels = model.predict(new)
    assert adjusted_rand_score(truth, labels[: len(rows)]) > 0.95
    assert set(labels) <= set(range(model.n_clusters_))


def test_empty_outcomes__are_pruned(monkeypatch):
    """Where the filter leaves an outcome without rows, the tree has no node for it."""
    rows, truth = separated(2, FEW)
    original = growing.examine_root

    monkeypatch.setattr(
        growing, "run", lambda function, *args: _with_an_empty_outcome(original(*args))
    )
    model = RandomizedBHC(sample_size=40, random_state=0).fit(rows)
    check_direct(model, rows)
    assert (model.tree_.n_rows > 0).all()
    assert adjusted_rand_score(truth, model.labels_) > 0.99
    np.testing.assert_array_equal(model.predict(rows), model.labels_)


def _with_an_empty_outcome(first):
    """Add an outcome to the root's answer that no row is ever likeliest in."""
    share = first.answer.share
    made = share.filter
    n = made.n_outcomes
    filter_ = Filter(
        made.family,
        np.concatenate([made.stats[:1], made.stats]),
        np.concatenate([[-1e5], made.log_weights]),
        np.concatenate([[0], made.starts + 1]),
    )
    merges = share.merges + 1  # all numbers move up by one
    merges = np.concatenate([merges, [[0, 2 * n - 1 if len(merges) else 1]]])
    answer = replace(
        first.answer,
        share=share._replace(filter=filter_, merges=merges),
        n_sampled=np.append(1, first.answer.n_sampled),
        levels=np.append(1, first.answer.levels + 1),
        is_cluster=np.append(True, first.answer.is_cluster),
    )
    return replace(first, answer=answer)


# ---- what is found -----------------------------------------------------------------------------


def test_found__planted_clusters_of_very_different_size():
    rows, truth = separated(0, (4000, 900, 300, 60, 4))
    model = RandomizedBHC(sample_size=512, random_state=0).fit(rows)
    # A row with many flips may be a cluster of its own.
    assert adjusted_rand_score(truth, model.labels_) > 0.999
    assert 5 <= model.n_clusters_ <= 7
    assert len(set(zip(truth, model.labels_, strict=True))) == model.n_clusters_
    assert model.n_passes_ <= 3


@pytest.mark.parametrize("resolve", ["clusters", "rows"])
@pytest.mark.parametrize("levels", [1, 2, "auto"])
def test_found__clusters_in_every_mode(levels, resolve):
    rows, truth = separated(1, (60, 40, 20, 10))
    model = RandomizedBHC(
        sample_size=40, levels_per_pass=levels, resolve=resolve, random_state=0
    ).fit(rows)
    assert adjusted_rand_score(truth, model.labels_) > 0.97


@pytest.mark.parametrize("levels", [1, 2, "auto"])
def test_found__small_nodes_are_divided_as_far_as_they_go(levels):
    """A sample of all rows shows all clusters, however few levels a pass takes."""
    rows, truth = separated(1, (30, 20, 20, 10, 5))
    model = RandomizedBHC(sample_size=200, levels_per_pass=levels, random_state=0).fit(rows)
    assert model.n_clusters_ == 5
    assert adjusted_rand_score(truth, model.labels_) == 1.0


def test_outliers__do_not_cost_a_pass_each():
    rng = np.random.default_rng(0)
    crowd = (rng.random((2000, 60)) < 0.02).astype(np.uint8)
    outliers = (rng.random((40, 60)) < 0.5).astype(np.uint8)
    rows = np.concatenate([crowd, outliers])[rng.permutation(2040)]
    model = RandomizedBHC(sample_size=256, random_state=0).fit(rows)
    assert model.n_passes_ <= 6
    sizes = np.bincount(model.labels_)
    assert sizes.max() >= 1990


def test_passes__are_bounded_and_the_rest_is_said(monkeypatch):
    monkeypatch.setattr(growing, "MAX_PASSES", 1)
    rows, _ = separated(0, (400, 40, 30, 20, 10, 5))
    with pytest.warns(ConvergenceWarning, match="would split further after 1 passes"):
        model = RandomizedBHC(sample_size=12, random_state=1).fit(rows)
    assert model.n_passes_ == 1
    check_direct(model, rows)
    np.testing.assert_array_equal(model.predict(rows), model.labels_)


@pytest.mark.parametrize("max_levels", [1, 2, 3])
@pytest.mark.parametrize("levels", [1, "auto"])
def test_max_levels__bounds_the_depth(levels, max_levels):
    rows, _ = separated(0, SIZES)
    model = RandomizedBHC(
        sample_size=64, max_levels=max_levels, levels_per_pass=levels, random_state=0
    ).fit(rows)
    assert model.tree_.structure.depth.max() == max_levels
    check_direct(model, rows)


# ---- edges -------------------------------------------------------------------------------------


def test_one_cluster__is_a_tree_of_one_leaf(tmp_path, small_blocks):
    rows = (np.random.default_rng(0).random((300, 12)) < 0.3).astype(np.uint8)
    model = RandomizedBHC(sample_size=50, random_state=0).fit(rows)
    assert model.tree_.n_nodes == 1
    assert model.n_clusters_ == 1
    assert (model.predict(rows) == 0).all()
    assert model.n_passes_ == 0
    check_direct(model, rows)
    model.save(tmp_path / "one")
    assert (distclust.load(tmp_path / "one").predict(rows) == 0).all()


@pytest.mark.parametrize("resolve", ["clusters", "rows"])
@pytest.mark.parametrize("far", [True, False])
def test_two_rows(far, resolve):
    rows = np.zeros((2, 30), np.uint8)
    rows[1] = far
    model = RandomizedBHC(resolve=resolve).fit(rows)
    assert model.n_clusters_ == (2 if far else 1)
    assert model.tree_.n_leaves == (2 if far or resolve == "rows" else 1)
    assert model.predict(rows).tolist() == model.labels_.tolist()


@pytest.mark.parametrize("family", ["bernoulli", "multinomial", "poisson", "diagonal_gaussian"])
@pytest.mark.parametrize(
    "options", [{}, {"resolve": "rows"}, {"levels_per_pass": 1, "resolve": "rows"}], ids=str
)
def test_constant_rows(options, family):
    rows = np.ones((40, 3))
    model = RandomizedBHC(sample_size=8, family=family, random_state=0, **options).fit(rows)
    assert model.n_clusters_ == 1
    assert model.tree_.n_leaves == (40 if "resolve" in options else 1)
    check_direct(model, rows)
    assert (model.predict(rows) == 0).all()


@pytest.mark.parametrize("options", [{}, {"resolve": "rows"}, {"levels_per_pass": 1}], ids=str)
def test_samples_of_two(options):
    rows, _ = separated(0, (20, 12, 6))
    model = RandomizedBHC(sample_size=2, check_size=2, random_state=0, **options).fit(rows)
    check_direct(model, rows)


def test_missing_values__go_the_same_way_again():
    rows, truth = separated(0, FEW)
    gapped = np.where(np.random.default_rng(0).random(rows.shape) < 0.1, np.nan, rows)
    model = RandomizedBHC(sample_size=50, random_state=0).fit(gapped)
    assert adjusted_rand_score(truth, model.labels_) > 0.95
    np.testing.assert_array_equal(model.predict(gapped), model.labels_)


@pytest.mark.parametrize("n_ids", [1, 2, 120])
@pytest.mark.parametrize(
    "options", [*TWO_WAYS, {"levels_per_pass": 1}, {"resolve": "rows"}], ids=str
)
def test_repeated_ids__have_equal_hashes_and_do_no_harm(options, n_ids):
    """Tables that were stacked have such ids; no node is without a sample, and fits end."""
    rows, _ = separated(0, (120, 80, 40))
    table = pd.DataFrame(rows.astype(bool), index=[f"id {i % n_ids}" for i in range(240)])
    table.columns = [f"c{i}" for i in range(40)]
    model = RandomizedBHC(sample_size=30, check_size=10, random_state=0, **options).fit(table)
    check_direct(model, rows)
    if options.get("resolve") == "rows":
        assert model.tree_.n_leaves == 240


@pytest.mark.parametrize("seed", range(4))
def test_repeated_ids__every_node_gets_its_sample(seed, monkeypatch):
    """Three hashes for 1,200 rows: all of them may be above the limit of a node."""
    rows, _ = separated(seed, (600, 400, 200))
    table = pd.DataFrame(rows.astype(bool), index=[f"id {i % 3}" for i in range(1200)])
    table.columns = [f"c{i}" for i in range(40)]
    seen = questions_of(monkeypatch)
    model = RandomizedBHC(sample_size=30, check_size=10, random_state=seed).fit(table)
    check_direct(model, rows)
    assert all(len(question.sample) >= min(10, question.n_rows) for question in seen)


def test_mixed_table__is_fitted_by_a_product():
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 300)
    table = pd.DataFrame(
        {
            "height": rng.normal(10.0 * group, 1.0),
            "visits": rng.poisson(1.0 + 9.0 * group),
            "colour": pd.Categorical(np.array(["r", "g", "b"])[group]),
        }
    )
    model = RandomizedBHC(sample_size=60, random_state=0).fit(table)
    assert adjusted_rand_score(group, model.labels_) > 0.98
    assert model.predict(table).tolist() == model.labels_.tolist()


# ---- refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_reads", [1, 2, 3])
def test_data_that_change__are_refused(n_reads, small_blocks):
    rows, _ = separated(0, FEW)
    model = RandomizedBHC(sample_size=10, random_state=0)
    with pytest.raises(OtherRowsError, match=r"rows \d+ to \d+.*changed while they were read"):
        model.fit(Changing(rows, n_reads))
    assert not hasattr(model, "tree_")


ROWS = np.random.default_rng(0).integers(0, 2, (12, 3))
BAD = [
    ({"sample_size": 1}, ROWS, "sample_size: expected .*at least 2"),
    ({"sample_size": "many"}, ROWS, "sample_size"),
    ({"sample_size": 2.5}, ROWS, "sample_size"),
    ({"sample_size": True}, ROWS, "sample_size"),
    ({"check_size": 1}, ROWS, "check_size"),
    ({"levels_per_pass": 0}, ROWS, "levels_per_pass"),
    ({"levels_per_pass": "all"}, ROWS, "levels_per_pass"),
    ({"max_levels": 0}, ROWS, "max_levels"),
    ({"max_levels": 1.5}, ROWS, "max_levels"),
    ({"filter_prior": "x"}, ROWS, "filter_prior"),
    ({"filter_predictive": "x"}, ROWS, "filter_predictive"),
    ({"resolve": "x"}, ROWS, "resolve"),
    ({"concentration": 0}, ROWS, "concentration"),
    ({"concentration": "big"}, ROWS, "concentration"),
    ({"random_state": "x"}, ROWS, "random_state"),
    ({"family": "bernoulli"}, ROWS * 2, "zeros and ones"),
    ({"family": "banana"}, ROWS, "family"),
    ({"family": 3}, ROWS, "family"),
    ({}, ROWS[:1], "at least 2 rows"),
    ({}, np.where(ROWS, np.inf, 0.5), "inf"),
    ({}, scipy.sparse.csr_array(ROWS * 0.5), "sparse"),
    ({}, None, "rows and features"),
]


@pytest.mark.parametrize(("options", "rows", "word"), BAD, ids=lambda v: repr(v)[:40])
def test_fit__bad_input_gets_one_sentence(options, rows, word):
    model = RandomizedBHC(**options)
    with pytest.raises(DistclustError, match=word) as caught:
        model.fit(rows)
    error = caught.value
    assert "RandomizedBHC.fit" in error.where
    assert error.hint.endswith(".")
    assert not hasattr(model, "tree_")


def test_fit__results_are_for_stores(tmp_path):
    with pytest.raises(InputError, match="a store as X"):
        RandomizedBHC().fit(ROWS, results=tmp_path / "r")
    assert not (tmp_path / "r").exists()
