"""EM-BHC: seeds and sweeps against loops over rows, and what holds for every tree it makes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.metrics import adjusted_rand_score

import distclust
from distclust import BHC, EMBHC
from distclust.errors import DistclustError, OtherRowsError
from distclust.families import Bernoulli
from distclust.trees import em, sweeping
from distclust.trees.sweeping import Clusters
from tests.oracles import trees as oracle
from tests.oracles.randomised import (
    FAMILIES,
    Changing,
    Model,
    by_first_row,
    check_direct,
    check_same,
    nested_leaves,
    planted,
    separated,
)

pytestmark = pytest.mark.filterwarnings("ignore::distclust.errors.ConstantColumnsWarning")

N_SEEDS = 9
FEW = (70, 40, 25, 5)
TWO_WAYS = [{}, {"resolve": "rows"}]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 16 rows, so that a few hundred rows have many blocks and several spans."""
    monkeypatch.setattr("distclust.store.matrix.block_rows_for", lambda *_: 16)


def leaves_of(model):
    """The cluster of each row before the tree: the leaf it is in."""
    return by_first_row(model.tree_.leaf_of_row.tolist())


# ---- against the naive algorithm -------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_no_sweep__rows_go_to_the_likeliest_seed(family, seed):
    rows = planted(family, seed)
    model = EMBHC(sample_size=N_SEEDS, n_sweeps=0, family=family, random_state=seed).fit(rows)
    naive = Model(model.family_, rows)
    labels = naive.nearest_seed(naive.seeds(N_SEEDS, seed))
    assert leaves_of(model) == by_first_row(labels)
    assert model.objective_path_ == pytest.approx([naive.objective(labels)], rel=1e-10)
    assert model.n_passes_ == 1


@pytest.mark.parametrize("concentration", [0.3, 4.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_sweep__is_the_naive_one(family, concentration, seed):
    """Directly on the sweep, whether or not it raises the objective."""
    rows = planted(family, seed)
    model = EMBHC(sample_size=N_SEEDS, n_sweeps=0, family=family, random_state=seed).fit(rows)
    naive = Model(model.family_, rows, concentration)
    labels = leaves_of(model)
    labels[7] = max(labels) + 1  # one row is alone
    labels = by_first_row(labels)
    own = np.array(labels)
    n_clusters = max(labels) + 1
    stats = model.family_.accumulate(rows, own, n_clusters)
    clusters = Clusters(model.family_, stats, np.log(stats[:, 0]), float(np.log(concentration)))
    expected = naive.sweep(labels, n_clusters)
    assert clusters.better(rows, own).tolist() == expected
    assert clusters.better(rows.astype(float), own).tolist() == expected
    assert expected != labels


@pytest.mark.parametrize("n_sweeps", [1, 2, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_sweeps__are_the_naive_ones(family, n_sweeps, seed):
    rows = planted(family, seed)
    model = EMBHC(
        sample_size=N_SEEDS, n_sweeps=n_sweeps, family=family, concentration=0.5, random_state=seed
    ).fit(rows)
    labels, path = Model(model.family_, rows, 0.5).em(N_SEEDS, n_sweeps, seed)
    assert leaves_of(model) == by_first_row(labels)
    assert model.objective_path_ == pytest.approx(path, rel=1e-10)


def test_tree__is_bhc_of_the_clusters(seed):
    rows = planted("bernoulli", seed, n_rows=120)
    model = EMBHC(sample_size=30, random_state=seed).fit(rows)
    exact = BHC(family=model.family_).fit(rows, leaves=model.tree_.leaf_of_row)
    np.testing.assert_array_equal(
        model.tree_.structure.child_list, exact.tree_.structure.child_list
    )
    np.testing.assert_array_equal(model.tree_.log_odds, exact.tree_.log_odds)
    np.testing.assert_array_equal(model.labels_, exact.labels_)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("resolve", ["clusters", "rows"])
def test_as_many_seeds_as_rows__is_bhc(resolve, family):
    rows = planted(family, 0)
    exact = BHC(family=family).fit(rows)
    model = EMBHC(sample_size=60, resolve=resolve, family=family).fit(rows)
    np.testing.assert_array_equal(
        model.tree_.structure.child_list, exact.tree_.structure.child_list
    )
    np.testing.assert_array_equal(model.tree_.log_odds, exact.tree_.log_odds)
    np.testing.assert_array_equal(model.labels_, exact.labels_)
    assert model.log_evidence_ == exact.log_evidence_
    new = planted(family, 50)
    np.testing.assert_array_equal(model.predict(new), exact.predict(new))


# ---- when sweeping ends -------------------------------------------------------------------------


def test_objective__never_decreases(seed):
    rows = planted("bernoulli", seed, n_rows=300, n_clusters=8)
    model = EMBHC(sample_size=40, n_sweeps=12, random_state=seed).fit(rows)
    assert (np.diff(model.objective_path_) >= 0).all()
    assert len(model.objective_path_) > 2
    final = Model(model.family_, rows).objective(leaves_of(model))
    assert model.objective_path_[-1] == pytest.approx(final, rel=1e-10)


def test_sweeping__ends_when_no_row_moves():
    rows, truth = separated(0, FEW)
    model = EMBHC(sample_size=20, n_sweeps=100, random_state=0).fit(rows)
    assert 2 <= model.n_passes_ < 20
    assert model.objective_path_[-1] == model.objective_path_[-2]
    assert adjusted_rand_score(truth, model.labels_) > 0.95


@pytest.mark.parametrize("resolve", ["clusters", "rows"])
def test_sweeping__ends_when_the_objective_drops_and_the_better_one_is_kept(resolve, monkeypatch):
    rows = planted("bernoulli", 1, n_rows=120, n_clusters=6)
    kept = EMBHC(sample_size=30, n_sweeps=1, resolve=resolve, random_state=0).fit(rows)
    values = []
    original = sweeping.objective

    def dropping(*arguments):
        values.append(original(*arguments))
        return values[-1] if len(values) < 3 else values[-2] - 1.0

    monkeypatch.setattr(em, "objective", dropping)
    model = EMBHC(sample_size=30, n_sweeps=5, resolve=resolve, random_state=0).fit(rows)
    assert len(values) == 3
    np.testing.assert_array_equal(model.labels_, kept.labels_)
    np.testing.assert_array_equal(model.tree_.log_odds, kept.tree_.log_odds)
    check_direct(model, rows)
    if resolve == "clusters":
        assert model.n_passes_ == 3
        assert model.objective_path_.tolist() == values[:2]


# ---- sweeps, row by row --------------------------------------------------------------------------


def test_better__tables_never_change_the_answer(seed):
    rng = np.random.default_rng(seed)
    for n_features in (1, 5, 8, 33, 64):
        rows = (rng.random((150, n_features)) < 0.4).astype(np.uint8)
        own = rng.integers(0, 6, 150)
        own[:6] = np.arange(6)
        own[6] = 6  # alone
        for alpha in (1.0, 1e-6, 30.0):
            family = Bernoulli(alpha=alpha, beta=alpha, n_features=n_features)
            stats = family.accumulate(rows, own, 7)
            clusters = Clusters(family, stats, np.log(stats[:, 0]), 0.0)
            assert clusters._tables is not None
            assert clusters._own_tables is not None
            chosen = clusters.better(rows, own)
            np.testing.assert_array_equal(chosen, clusters._decide(rows, own))
            np.testing.assert_array_equal(clusters.nearest(rows), clusters._decide(rows, None))
            alone = [int(clusters.better(rows[i : i + 1], own[i : i + 1])[0]) for i in range(150)]
            assert chosen.tolist() == alone


@pytest.mark.parametrize("alpha", [1.0, 1e-6, 1e-18])
def test_own_scores__affine_is_the_ratio_of_marginals(alpha, seed):
    rng = np.random.default_rng(seed)
    rows = (rng.random((60, 9)) < 0.4).astype(np.uint8)
    own = np.append(rng.integers(0, 4, 59), 4)
    own[:4] = np.arange(4)
    family = Bernoulli(alpha=alpha, beta=1.0, n_features=9)
    stats = family.accumulate(rows, own, 5)
    clusters = Clusters(family, stats, np.log(stats[:, 0]), -1.5)
    found = clusters.own_scores(rows, own)
    naive = Model(family, rows)
    for i in range(60):
        others = [j for j in range(60) if own[j] == own[i] and j != i]
        weight = np.log(len(others)) if others else -1.5
        assert found[i] == pytest.approx(weight + naive.log_p(i, others), rel=1e-6)
    sparse = clusters.own_scores(scipy.sparse.csr_array(rows), own)
    np.testing.assert_allclose(sparse, found, rtol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_left_out__is_the_ratio_of_marginals(family):
    rows = planted(family, 3, n_rows=40)
    model = EMBHC(sample_size=5, n_sweeps=0, family=family, random_state=0).fit(rows)
    own = np.arange(40) % 6
    own[39] = 6
    stats = model.family_.accumulate(rows, own, 7)
    found = sweeping.left_out(model.family_, rows, stats, own)
    naive = Model(model.family_, rows)
    for i in range(40):
        others = [j for j in range(40) if own[j] == own[i] and j != i]
        assert found[i] == pytest.approx(naive.log_p(i, others), rel=1e-8)


def test_missing_values__are_left_out(seed):
    rows = planted("bernoulli", seed)
    gapped = np.where(np.random.default_rng(seed).random(rows.shape) < 0.1, np.nan, rows)
    model = EMBHC(sample_size=N_SEEDS, random_state=0).fit(gapped)
    labels, path = Model(model.family_, gapped).em(N_SEEDS, 5, 0)
    assert leaves_of(model) == by_first_row(labels)
    assert model.objective_path_ == pytest.approx(path, rel=1e-10)


# ---- what is reported ----------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("resolve", ["clusters", "rows"])
def test_reported__is_a_direct_evaluation_of_the_tree(resolve, family, small_blocks):
    rows = planted(family, 1, n_rows=150)
    model = EMBHC(sample_size=25, resolve=resolve, family=family, random_state=0).fit(rows)
    check_direct(model, rows)
    if resolve == "rows":
        assert model.tree_.n_leaves == len(rows)


def test_preformed_leaves__weight_is_the_sum_over_partitions_that_keep_them():
    """Theorem 3.1 with blocks, in exact fractions."""
    rows, _ = separated(3, (7, 6, 5, 4), width=24, noise=0.03)
    alpha = Fraction(1, 2)
    model = EMBHC(
        sample_size=7, family=Bernoulli(alpha=1.0, beta=1.0), concentration=0.5, random_state=0
    ).fit(rows)
    tree = model.tree_
    assert 3 <= tree.n_leaves < len(rows)
    likelihood = oracle.Likelihood([rows[tree.rows(k)].tolist() for k in range(tree.n_leaves)])
    weight = sum(
        oracle.crp_weight(p, alpha, likelihood.sizes) * likelihood.of_partition(p)
        for p in oracle.tree_partitions(nested_leaves(tree.structure))
    )
    log_weight = oracle.log_fraction(weight)
    assert tree.evaluation.log_weight[-1] == pytest.approx(log_weight, rel=1e-12)
    bound = log_weight - oracle.log_fraction(oracle.rising(alpha, len(rows)))
    assert model.log_lower_bound_ == pytest.approx(bound, rel=1e-12)


def test_resolved_rows__stay_in_their_clusters(seed):
    rows, _ = separated(seed, FEW)
    coarse = EMBHC(sample_size=20, random_state=seed).fit(rows)
    fine = EMBHC(sample_size=20, resolve="rows", random_state=seed).fit(rows)
    nodes = {frozenset(fine.tree_.rows(k).tolist()) for k in range(fine.tree_.n_nodes)}
    np.testing.assert_array_equal(fine.objective_path_, coarse.objective_path_)
    for node in range(coarse.tree_.n_nodes):
        assert frozenset(coarse.tree_.rows(node).tolist()) in nodes


# ---- the same answer everywhere ------------------------------------------------------------------


@pytest.mark.parametrize("options", TWO_WAYS, ids=str)
def test_same__in_any_chunks_threads_and_layout(options, small_blocks):
    import dask.array as da

    rows = planted("bernoulli", 2, n_rows=200, n_clusters=6)
    here = EMBHC(sample_size=30, random_state=1, **options).fit(rows)
    for chunks in ((200, 24), (37, 24), ((1, 100, 99), (13, 11))):
        there = EMBHC(sample_size=30, random_state=1, **options)
        check_same(here, there.fit(da.from_array(rows, chunks=chunks)))
    for threads in (1, 3):
        with distclust.connect("threads", threads=threads):
            check_same(here, EMBHC(sample_size=30, random_state=1, **options).fit(rows))
    sparse = EMBHC(sample_size=30, random_state=1, **options).fit(scipy.sparse.csr_array(rows))
    check_same(here, sparse)
    for other in (rows.astype(bool), rows.astype(float)):
        check_same(here, EMBHC(sample_size=30, random_state=1, **options).fit(other))


@pytest.mark.cluster
@pytest.mark.parametrize("options", [*TWO_WAYS, {"family": "gaussian"}], ids=str)
def test_same__on_a_client(options, small_blocks, local_client):
    rows = planted("bernoulli", 2, n_rows=200, n_clusters=6)[:, :9]
    here = EMBHC(sample_size=30, random_state=1, **options).fit(rows)
    there = EMBHC(sample_size=30, random_state=1, **options)
    with local_client.as_current():
        check_same(here, there.fit(rows))


def test_same__for_any_order_of_the_rows():
    rows = planted("bernoulli", 4, n_rows=200, n_clusters=6).astype(bool)
    table = pd.DataFrame(rows, index=[f"row {i}" for i in range(200)])
    table.columns = [f"c{i}" for i in range(24)]
    order = np.random.default_rng(5).permutation(200)
    straight = EMBHC(sample_size=30, random_state=3).fit(table)
    shuffled = EMBHC(sample_size=30, random_state=3).fit(table.iloc[order])
    assert shuffled.labels_.tolist() == by_first_row(straight.labels_[order].tolist())
    assert shuffled.log_evidence_ == pytest.approx(straight.log_evidence_, rel=1e-12)


# ---- prediction and saving -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [*TWO_WAYS, {"sample_size": 300}], ids=str)
@pytest.mark.parametrize("family", ["bernoulli", "gaussian"])
def test_save__loads_the_same_model(family, options, tmp_path):
    rows, new = planted(family, 2, n_rows=200), planted(family, 3, n_rows=100)
    parameters = {"sample_size": 30, "family": family, "random_state": 1} | options
    model = EMBHC(**parameters).fit(rows)
    model.save(tmp_path / "model")
    loaded = distclust.load(tmp_path / "model")
    check_same(loaded, model)
    assert loaded.get_params() == model.get_params()
    np.testing.assert_array_equal(loaded.objective_path_, model.objective_path_)
    np.testing.assert_array_equal(loaded.predict(new), model.predict(new))
    np.testing.assert_array_equal(loaded.score_samples(new), model.score_samples(new))


def test_predict__is_the_likeliest_leaf_by_size_and_density(seed):
    rows = planted("bernoulli", seed, n_rows=150)
    model = EMBHC(sample_size=25, random_state=seed).fit(rows)
    new = planted("bernoulli", seed + 30, n_rows=50)
    tree = model.tree_
    naive = Model(model.family_, np.concatenate([rows, new]))
    label_of_leaf = {
        int(leaf): int(z) for leaf, z in zip(tree.leaf_of_row, model.labels_, strict=True)
    }
    for i, label in enumerate(model.predict(new)):
        scores = []
        for leaf in range(tree.n_leaves):
            members = tree.rows(leaf).tolist()
            scores.append(np.log(len(members)) + naive.log_p(150 + i, members))
        assert label == label_of_leaf[int(np.argmax(scores))]


# ---- edges and refusals --------------------------------------------------------------------------


def test_found__planted_clusters_of_very_different_size():
    rows, truth = separated(0, (3000, 600, 200, 40))
    model = EMBHC(sample_size=200, random_state=0).fit(rows)
    assert adjusted_rand_score(truth, model.labels_) > 0.99


@pytest.mark.parametrize("options", [*TWO_WAYS, {"n_sweeps": 0}], ids=str)
@pytest.mark.parametrize("family", ["bernoulli", "multinomial", "poisson", "diagonal_gaussian"])
def test_constant_rows(family, options):
    rows = np.ones((40, 3))
    model = EMBHC(sample_size=8, family=family, random_state=0, **options).fit(rows)
    assert model.n_clusters_ == 1
    check_direct(model, rows)
    assert (model.predict(rows) == 0).all()
    # Without a sweep every seed keeps itself.
    leaves = 8 if options.get("n_sweeps") == 0 else 1
    assert model.tree_.n_leaves == (40 if "resolve" in options else leaves)


@pytest.mark.parametrize("options", TWO_WAYS, ids=str)
def test_two_seeds(options):
    rows, _ = separated(0, (20, 12, 6))
    model = EMBHC(sample_size=2, random_state=0, **options).fit(rows)
    check_direct(model, rows)


def test_two_rows():
    rows = np.zeros((2, 30), np.uint8)
    rows[1] = 1
    assert EMBHC().fit(rows).labels_.tolist() == [0, 1]


@pytest.mark.parametrize("n_reads", [1, 2, 3])
def test_data_that_change__are_refused(n_reads, small_blocks):
    rows, _ = separated(0, FEW)
    model = EMBHC(sample_size=10, random_state=0)
    with pytest.raises(OtherRowsError, match=r"rows \d+ to \d+.*changed while they were read"):
        model.fit(Changing(rows, n_reads))
    assert not hasattr(model, "tree_")


ROWS = np.random.default_rng(0).integers(0, 2, (12, 3))
BAD = [
    ({"sample_size": 1}, ROWS, "sample_size"),
    ({"sample_size": "many"}, ROWS, "sample_size"),
    ({"sample_size": 2.5}, ROWS, "sample_size"),
    ({"n_sweeps": -1}, ROWS, "n_sweeps"),
    ({"n_sweeps": 1.5}, ROWS, "n_sweeps"),
    ({"resolve": "x"}, ROWS, "resolve"),
    ({"concentration": 0}, ROWS, "concentration"),
    ({"random_state": "x"}, ROWS, "random_state"),
    ({"family": "bernoulli"}, ROWS * 2, "zeros and ones"),
    ({"family": "poisson"}, ROWS - 1, "from 0 on"),
    ({"family": "banana"}, ROWS, "family"),
    ({}, ROWS[:1], "at least 2 rows"),
]


@pytest.mark.parametrize(("options", "rows", "word"), BAD, ids=lambda v: repr(v)[:40])
def test_fit__bad_input_gets_one_sentence(options, rows, word):
    model = EMBHC(**options)
    with pytest.raises(DistclustError, match=word) as caught:
        model.fit(rows)
    assert "EMBHC.fit" in caught.value.where
    assert caught.value.hint.endswith(".")
    assert not hasattr(model, "tree_")
