"""BHC and BayesianRoseTree as users see them; the scikit-learn contract of all estimators."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.utils.estimator_checks import parametrize_with_checks

import distclust
from distclust import BHC, EMBHC, BayesianRoseTree, RandomizedBHC, families
from distclust.errors import ConstantColumnsWarning, DistclustError, InputError
from tests.oracles.search import as_nested

# Small random tables have constant columns now and then; one test below is about them.
pytestmark = pytest.mark.filterwarnings("ignore::distclust.errors.ConstantColumnsWarning")

GOLDEN = np.array(
    [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 0],
        [0, 1, 0, 1, 1, 1],
    ]
)
UNIFORM = families.Bernoulli(alpha=1, beta=1)
VARIANTS = ("brt", "brt-gamma", "brt-dp", "bhc-gamma")
MODELS = [BHC(), *(BayesianRoseTree(variant) for variant in VARIANTS)]


def binary(seed=0, n=60, d=12, n_clusters=3):
    rng = np.random.default_rng(seed)
    centres = rng.beta(0.3, 0.3, size=(n_clusters, d))
    labels = rng.integers(0, n_clusters, n)
    return (rng.random((n, d)) < centres[labels]).astype(np.int64), labels


# With small samples, so that filters and sweeps take part.
@parametrize_with_checks(
    [BHC(), BayesianRoseTree(), RandomizedBHC(sample_size=10), EMBHC(sample_size=10)]
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


# ---- golden values --------------------------------------------------------------------------


def test_bhc__golden_run():
    model = BHC(family=UNIFORM, concentration=1.0).fit(GOLDEN)
    tree = model.tree_
    np.testing.assert_allclose(
        tree.log_odds[5:], [1.032945, 1.032945, 1.317353, -4.130027], atol=5e-7
    )
    assert as_nested(tree.structure) == frozenset(
        [frozenset([0, 1]), frozenset([4, frozenset([2, 3])])]
    )
    assert model.log_evidence_ == pytest.approx(-20.014621062378, abs=1e-9)
    assert model.log_lower_bound_ == pytest.approx(-21.336376902360, abs=1e-9)
    assert model.labels_.tolist() == [0, 0, 1, 1, 1]
    new = model.score_samples(np.array([[1, 1, 1, 1, 0, 0]]))
    assert new[0] == pytest.approx(-4.143029664101, abs=1e-9)


@pytest.mark.parametrize(
    ("n", "bound", "evidence"), [(3, -91.379732, -90.974267), (6, -143.822393, -142.155797)]
)
def test_bhc__golden_constant_rows(n, bound, evidence):
    rows = np.zeros((n, 50), dtype=int)
    rows[: (n + 1) // 2] = 1
    model = BHC(family=UNIFORM).fit(rows)
    assert model.log_lower_bound_ == pytest.approx(bound, abs=1e-6)
    assert model.log_evidence_ == pytest.approx(evidence, abs=1e-6)


def test_rose__golden_run():
    model = BayesianRoseTree("brt", 0.5, family=UNIFORM).fit(GOLDEN)
    assert as_nested(model.tree_.structure) == frozenset([frozenset([0, 1]), frozenset([2, 3, 4])])
    assert model.log_evidence_ == pytest.approx(-19.119152161674, abs=1e-9)
    binary_tree = BayesianRoseTree("bhc-gamma", 0.5, family=UNIFORM).fit(GOLDEN)
    assert binary_tree.log_evidence_ == pytest.approx(-19.332081880174, abs=1e-9)


def test_rose__dp_joins_ranked_by_odds_is_bhc():
    rows, _ = binary(3)
    rose = BayesianRoseTree("brt-dp", criterion="posterior_odds", family=UNIFORM)
    rose._many_children = lambda: False
    np.testing.assert_array_equal(
        rose.fit(rows).tree_.structure.child_list,
        BHC(family=UNIFORM).fit(rows).tree_.structure.child_list,
    )


# ---- limits ---------------------------------------------------------------------------------


def test_bhc__concentration_to_zero_and_to_infinity():
    rows, _ = binary(1, n=12)
    few = BHC(family=UNIFORM, concentration=1e-250).fit(rows)
    log_f = families.Bernoulli(np.ones(12), np.ones(12))
    stats = log_f.accumulate(rows, np.zeros(12, int), 1)
    assert few.n_clusters_ == 1
    assert few.log_evidence_ == pytest.approx(log_f.log_marginal(stats)[0], rel=1e-9)
    many = BHC(family=UNIFORM, concentration=1e250).fit(rows)
    assert many.n_clusters_ == 12
    alone = log_f.log_marginal(log_f.accumulate(rows, np.arange(12), 12)).sum()
    assert many.log_evidence_ == pytest.approx(alone, rel=1e-9)


# ---- the same answer everywhere ---------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_fit__sparse_equals_dense(model):
    rows, _ = binary(5)
    dense = clone(model).fit(rows)
    for form in (scipy.sparse.csr_array, scipy.sparse.coo_matrix, scipy.sparse.csc_array):
        other = clone(model).fit(form(rows))
        np.testing.assert_array_equal(dense.labels_, other.labels_)
        np.testing.assert_array_equal(dense.tree_.log_odds, other.tree_.log_odds)
        assert dense.log_evidence_ == other.log_evidence_
        np.testing.assert_allclose(
            other.score_samples(form(rows)), dense.score_samples(rows), rtol=1e-12
        )


@pytest.mark.parametrize("family", ["bernoulli", "multinomial", "poisson", "diagonal_gaussian"])
def test_fit__sparse_equals_dense_for_every_family_that_takes_both(family):
    rng = np.random.default_rng(0)
    rows = rng.poisson(0.4, size=(50, 8))
    rows = np.minimum(rows, 1) if family == "bernoulli" else rows
    dense = BHC(family=family).fit(rows)
    sparse = BHC(family=family).fit(scipy.sparse.csr_array(rows))
    np.testing.assert_array_equal(dense.tree_.log_odds, sparse.tree_.log_odds)
    np.testing.assert_array_equal(dense.labels_, sparse.labels_)


@pytest.mark.cluster
@pytest.mark.parametrize("model", [BHC(), BHC(optimize=True), BayesianRoseTree()], ids=repr)
def test_fit__on_a_client_equals_in_process(model, local_client):
    import dask.array as da

    rows, _ = binary(6, n=80)
    here = clone(model).set_params(random_state=0)
    there = clone(here)
    here.fit(rows)
    with local_client.as_current():
        there.fit(da.from_array(rows, chunks=(17, 5)))
        scores_there = there.score_samples(rows)
    np.testing.assert_array_equal(here.tree_.log_odds, there.tree_.log_odds)
    np.testing.assert_array_equal(here.labels_, there.labels_)
    assert here.log_evidence_ == there.log_evidence_
    np.testing.assert_array_equal(here.score_samples(rows), scores_there)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_fit__row_order_permutes_labels(model):
    rows, _ = binary(7, n=40, d=40)
    order = np.random.default_rng(1).permutation(40)
    straight, shuffled = clone(model).fit(rows), clone(model).fit(rows[order])
    pairs = {(a, b) for a, b in zip(straight.labels_[order], shuffled.labels_, strict=True)}
    assert len(pairs) == straight.n_clusters_ == shuffled.n_clusters_
    assert shuffled.log_evidence_ == pytest.approx(straight.log_evidence_, rel=1e-12)


def test_fit__again_forgets_the_earlier_fit():
    rows, _ = binary(8, d=4)
    model = BayesianRoseTree("brt-dp").fit(pd.DataFrame(rows, columns=list("abcd")))
    model.set_params(variant="brt").fit(rows[:, :3].tolist())
    assert not hasattr(model, "log_lower_bound_")
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 3
    assert not hasattr(model.set_params(variant="brt-dp").fit(rows), "gamma_")


def test_fit__twice_equals_once():
    rows, _ = binary(8)
    model = BHC()
    first = model.fit(rows).tree_.log_odds.copy()
    np.testing.assert_array_equal(first, model.fit(rows).tree_.log_odds)


# ---- learning -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["bernoulli", "gaussian", "diagonal_gaussian", "poisson"])
@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_optimize__never_lowers_its_objective(model, family):
    rows, _ = binary(9, n=30, d=4)
    if family != "bernoulli":
        rows = rows * 3.0 + np.random.default_rng(0).poisson(1.0, rows.shape)
    plain = clone(model).set_params(family=family).fit(rows)
    learnt = clone(plain).set_params(optimize=True, max_rebuilds=3, random_state=0).fit(rows)
    is_dp = hasattr(plain, "log_lower_bound_")
    objective = "log_lower_bound_" if is_dp else "log_evidence_"
    assert getattr(learnt, objective) > getattr(plain, objective)
    assert (np.diff(learnt.objective_path_) > 0).all()
    assert learnt.objective_path_[-1] == pytest.approx(getattr(learnt, objective), rel=1e-12)


def test_optimize__restarts_never_hurt_and_are_repeatable():
    rows, _ = binary(10, n=30)
    once = BHC(optimize=True, random_state=3).fit(rows)
    more = BHC(optimize=True, n_restarts=3, random_state=3).fit(rows)
    again = BHC(optimize=True, n_restarts=3, random_state=3).fit(rows)
    assert more.log_lower_bound_ >= once.log_lower_bound_
    assert more.log_lower_bound_ == again.log_lower_bound_


def test_gaussian_scale__best_of_the_grid_is_taken():
    rows, _ = make_blobs(60, centers=3, random_state=1)
    auto = BHC(family=families.Gaussian()).fit(rows)
    bounds = {
        scale: BHC(family=families.Gaussian(scale=scale)).fit(rows).log_lower_bound_
        for scale in (0.01, 0.03, 0.1, 0.3, 1.0)
    }
    assert auto.log_lower_bound_ == max(bounds.values())
    assert auto.family_.scale == max(bounds, key=bounds.get)


# ---- prediction -----------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_score_samples__sums_to_one_over_all_rows(model):
    rows, _ = binary(11, n=20, d=5)
    fitted = clone(model).fit(rows)
    every = np.array(list(itertools.product((0, 1), repeat=5)))
    assert np.exp(fitted.score_samples(every)).sum() == pytest.approx(1.0, rel=1e-12)


def test_predict_proba__is_size_times_predictive_density():
    rows, _ = binary(12)
    model = BHC().fit(rows)
    new, _ = binary(13, n=7)
    stats = model.family_.accumulate(rows, model.labels_, model.n_clusters_)
    joint = np.empty((7, model.n_clusters_))
    for i, c in np.ndindex(joint.shape):
        both = stats[c] + model.family_.statistics(new[i : i + 1])[0]
        ratio = model.family_.log_marginal(both[None]) - model.family_.log_marginal(stats[c][None])
        joint[i, c] = stats[c, 0] * np.exp(ratio[0])
    expected = joint / joint.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(model.predict_proba(new), expected, rtol=1e-9)
    np.testing.assert_array_equal(model.predict(new), expected.argmax(axis=1))
    assert model.score(new) == pytest.approx(model.score_samples(new).mean())


@pytest.mark.parametrize(
    "family",
    ["bernoulli", "categorical", "multinomial", "gaussian", "diagonal_gaussian", "poisson"],
)
def test_predict__does_not_depend_on_the_company(family):
    rows, _ = binary(14, n=300)
    model = BHC(family=family).fit(rows[:60])
    scores, proba = model.score_samples(rows), model.predict_proba(rows)
    for part in (slice(0, 1), slice(100, 107), slice(37, 300)):
        np.testing.assert_array_equal(model.score_samples(rows[part]), scores[part])
        np.testing.assert_array_equal(model.predict_proba(rows[part]), proba[part])


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_score_entry__is_the_ratio_of_joints(model):
    rows, _ = binary(15, n=15, d=6)
    holes = rows.astype(float)
    holes[3, 2] = np.nan
    fitted = clone(model).set_params(family=UNIFORM).fit(holes)
    for value in (0.0, 1.0):
        filled = holes.copy()
        filled[3, 2] = value
        joint = fitted.score_missing(filled)
        assert fitted.score_entry(3, 2, value) == pytest.approx(joint, rel=1e-9)
    total = sum(math.exp(fitted.score_entry(3, 2, value)) for value in (0.0, 1.0))
    assert total == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [(99, 0, 1.0), (0, 99, 1.0), (1.5, 0, 1.0), ("a", 0, 1.0), (3, 2, 2.0), (3, 2, math.nan)],
)
def test_score_entry__refuses_what_cannot_be(row, column, value):
    rows, _ = binary(15, n=15, d=6)
    holes = rows.astype(float)
    holes[3, 2] = np.nan
    with pytest.raises(InputError, match="score_entry"):
        BHC(family=UNIFORM).fit(holes).score_entry(row, column, value)


# ---- leaves that stand for several rows --------------------------------------------------------


def test_row_weights__equal_preformed_leaves_of_copies():
    rows, _ = binary(16, n=14, d=20)
    weights = np.arange(1, 15)
    copies = np.repeat(rows, weights, axis=0)
    weighted = BHC(family=UNIFORM).fit(rows, row_weights=weights)
    grouped = BHC(family=UNIFORM).fit(copies, leaves=np.repeat(np.arange(14), weights))
    np.testing.assert_array_equal(weighted.tree_.log_odds, grouped.tree_.log_odds)
    np.testing.assert_array_equal(np.repeat(weighted.labels_, weights), grouped.labels_)
    assert weighted.log_lower_bound_ == grouped.log_lower_bound_


@pytest.mark.parametrize(
    "family",
    ["bernoulli", "categorical", "multinomial", "gaussian", "diagonal_gaussian", "poisson"],
)
def test_row_weights__enter_the_empirical_prior(family):
    rows, _ = binary(16, n=14, d=5)
    weights = np.arange(1, 15)
    copies, leaves = np.repeat(rows, weights, axis=0), np.repeat(np.arange(14), weights)
    weighted = BHC(family=family).fit(rows, row_weights=weights)
    grouped = BHC(family=family).fit(copies, leaves=leaves)
    assert weighted.log_lower_bound_ == pytest.approx(grouped.log_lower_bound_, rel=1e-9)
    assert weighted.score_missing(rows) == pytest.approx(0.0, abs=1e-9)


def test_row_weights__may_be_larger_than_four_bytes_hold():
    rows, _ = binary(16, n=14, d=5)
    model = BHC(family=UNIFORM).fit(rows, row_weights=np.full(14, 2.0**31))
    assert np.isfinite(model.log_evidence_)


def test_leaves__singletons_change_nothing():
    rows, _ = binary(17)
    names = np.array([f"row {i}" for i in range(60)])
    plain, grouped = BHC().fit(rows), BHC().fit(rows, leaves=names)
    np.testing.assert_array_equal(plain.tree_.log_odds, grouped.tree_.log_odds)


# ---- tables ---------------------------------------------------------------------------------


def mixed_table(n=80):
    rng = np.random.default_rng(0)
    group = rng.integers(0, 2, n)
    return pd.DataFrame(
        {
            "height": rng.normal(170 + 15 * group, 4.0),
            "visits": rng.poisson(1 + 6 * group),
            "member": rng.random(n) < 0.1 + 0.8 * group,
            "colour": pd.Categorical(np.where(group, "red", "blue"), ["blue", "green", "red"]),
        },
        index=[f"p{i}" for i in range(n)],
    ), group


def test_mixed_table__is_a_product_and_finds_the_groups():
    table, group = mixed_table()
    model = BHC().fit(table)
    assert isinstance(model.family_, families.Product)
    assert "mixed table" in model.family_reason_
    assert model.n_clusters_ == 2
    assert len(set(zip(model.labels_, group, strict=True))) == 2
    assert model.predict(table).tolist() == model.labels_.tolist()
    assert model.tree_.row_ids[0] == "p0"


def test_mixed_table__with_missing_values():
    table, _ = mixed_table()
    table.loc["p3", "height"] = np.nan
    table.loc["p4", "colour"] = np.nan
    model = BHC().fit(table)
    assert model.n_clusters_ == 2
    assert np.isfinite(model.score_samples(table)).all()


# ---- saving ---------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_save__loads_the_same_model(model, tmp_path):
    table, _ = mixed_table()
    fitted = clone(model).set_params(random_state=1).fit(table)
    fitted.save(tmp_path / "model")
    loaded = distclust.load(tmp_path / "model")
    assert type(loaded) is type(fitted)
    assert loaded.get_params() == fitted.get_params()
    np.testing.assert_array_equal(loaded.labels_, fitted.labels_)
    np.testing.assert_array_equal(loaded.tree_.log_odds, fitted.tree_.log_odds)
    assert loaded.log_evidence_ == fitted.log_evidence_
    np.testing.assert_array_equal(loaded.score_samples(table), fitted.score_samples(table))
    assert loaded.tree_.row_ids.tolist() == fitted.tree_.row_ids.tolist()
    with pytest.raises(InputError, match="feature names"):
        loaded.predict(table.rename(columns={"height": "size"}))


def test_save__keeps_a_given_family(tmp_path):
    model = BHC(family=UNIFORM).fit(GOLDEN)
    model.save(tmp_path / "model")
    loaded = distclust.load(tmp_path / "model")
    assert loaded.family == UNIFORM
    assert loaded.fit(GOLDEN).log_evidence_ == model.log_evidence_


# ---- bad input --------------------------------------------------------------------------------

ROWS, _ = binary(18, n=10, d=3)
BAD = [
    (BHC(family="bernoulli"), ROWS * 2, "zeros and ones"),
    (BHC(family="poisson"), ROWS - 1, "from 0 on"),
    (BHC(family="multinomial"), ROWS - 1, "from 0 on"),
    (BHC(family="gaussian"), np.where(ROWS, np.nan, 0.5), "NaN"),
    (BHC(family="multinomial"), np.where(ROWS, np.nan, 1.0), "NaN"),
    (BHC(), np.where(ROWS, np.inf, 0.5), "inf"),
    (BHC(), ROWS[:1], "at least 2 rows"),
    (BHC(), ROWS[:0], "row"),
    (BHC(), ROWS[:, :0], "feature"),
    (BHC(), [["a", "b"], ["c", "d"]], "number"),
    (BHC(), ROWS * 1j, "omplex"),
    (BHC(), np.zeros((2, 2, 2)), "2D array"),
    (BHC(), scipy.sparse.csr_array(ROWS * 0.5), "sparse"),
    (BHC(), "rows.csv", "read_csv"),
    (BHC(), None, "rows and features"),
    (BHC(family="gaussian"), (ROWS + 0.5) * 1e160, "below 1e"),
    (BHC(family="diagonal_gaussian"), (ROWS + 0.5) * 1e160, "Rescale"),
    (BHC(family="poisson"), ROWS * 1e18, "2\\^40"),
    (BHC(), pd.DataFrame(ROWS, columns=["a", 1, "b"]), "names"),
    (BHC(), pd.DataFrame({"a": [[1], [2]], "b": [1, 2]}), "lists"),
    (BHC(family="banana"), ROWS, "'bernoulli'"),
    (BHC(family=3), ROWS, "family"),
    (BHC(concentration=0.0), ROWS, "concentration"),
    (BHC(concentration="big"), ROWS, "concentration"),
    (BHC(threshold=1.5), ROWS, "threshold"),
    (BHC(cut="sharp"), ROWS, "cut"),
    (BHC(criterion="best"), ROWS, "criterion"),
    (BHC(optimize="yes"), ROWS, "optimize"),
    (BHC(n_restarts=-1), ROWS, "n_restarts"),
    (BHC(key_budget=-1.0), ROWS, "key_budget"),
    (BHC(random_state="x"), ROWS, "random_state"),
    (BayesianRoseTree("oak"), ROWS, "variant"),
    (BayesianRoseTree(gamma=1.0), ROWS, "gamma"),
]


@pytest.mark.parametrize(("model", "rows", "word"), BAD, ids=lambda v: repr(v)[:40])
def test_fit__bad_input_gets_one_sentence(model, rows, word):
    with pytest.raises(DistclustError, match=word) as caught:
        model.fit(rows)
    error = caught.value
    assert str(error).startswith(error.where)
    assert error.hint.endswith(".")
    assert not hasattr(model, "tree_")


def test_fit__weights_and_leaves_must_fit_the_rows():
    with pytest.raises(InputError, match="row_weights"):
        BHC().fit(ROWS, row_weights=[1, 2])
    with pytest.raises(InputError, match="row_weights"):
        BHC().fit(ROWS, row_weights=np.full(10, 0.5))
    with pytest.raises(InputError, match=r"0\.5 for row 0"):
        BHC().fit(ROWS, row_weights=np.full(10, 0.5))
    for leaves in ([1, 2], [None, "a"] * 5, np.full(10, np.nan), np.zeros(10)):
        with pytest.raises(InputError, match="leaves"):
            BHC().fit(ROWS, leaves=leaves)


@pytest.mark.parametrize(
    "family",
    ["bernoulli", "categorical", "multinomial", "gaussian", "diagonal_gaussian", "poisson"],
)
def test_fit__constant_columns_are_valid_and_reported_once(family):
    rows = np.column_stack([ROWS, np.zeros(10, int), np.ones(10, int)])
    with pytest.warns(ConstantColumnsWarning, match="2 of 5 columns never vary") as caught:
        model = BHC(family=family).fit(rows)
    assert len(caught) == 1
    assert np.isfinite(model.log_evidence_)
    assert np.isfinite(model.score_samples(rows)).all()


@pytest.mark.parametrize("family", ["bernoulli", "multinomial", "gaussian", "poisson"])
def test_fit__all_zero_data_are_one_cluster(family):
    model = BHC(family=family).fit(np.zeros((6, 3)))
    assert model.n_clusters_ == 1
    assert np.isfinite(model.log_evidence_)


def test_capacity__is_refused_before_work_with_the_figure(monkeypatch):
    class Little:
        available = 1000

    monkeypatch.setattr("distclust.trees.data.psutil.virtual_memory", lambda: Little)
    with pytest.raises(DistclustError, match="GB for 10 leaves"):
        BHC().fit(ROWS)


# ---- what users expect --------------------------------------------------------------------------


def test_iris__setosa_is_a_cluster_of_its_own():
    data = load_iris()
    model = BHC().fit(data.data)
    assert 2 <= model.n_clusters_ <= 4
    np.testing.assert_array_equal(model.labels_ == 0, data.target == 0)


def test_cut__map_is_at_least_as_probable_as_posterior():
    rows, _ = binary(19)

    def log_joint(model):
        stats = model.family_.accumulate(rows, model.labels_, model.n_clusters_)
        sizes = np.bincount(model.labels_)
        prior = sum(math.log(model.concentration_) + math.lgamma(n) for n in sizes)
        return prior + model.family_.log_marginal(stats).sum()

    assert log_joint(BHC(cut="map").fit(rows)) >= log_joint(BHC().fit(rows))
