"""The mathematics of Bayesian Sets on binary rows: identities that the score must satisfy."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distclust.retrieval import BayesianSets
from distclust.retrieval.prior import BinaryPrior, make_room
from tests.oracles import retrieval as oracle
from tests.retrieval.corpora import GOLDEN, draw_any

seeds = st.integers(0, 2**32 - 1)
KAPPAS = (0.05, 0.7, 2.0, 40.0)


def scores_of(rows: np.ndarray, query: np.ndarray, kappa: float, smoothing: float) -> np.ndarray:
    """Scores of rows of the corpus by the linear form, with numpy alone."""
    prior = BinaryPrior(len(rows), rows.sum(axis=0, dtype=np.int64), kappa, smoothing)
    weighed = prior.query(len(query), np.arange(rows.shape[1]), query.sum(axis=0))
    return weighed.constant + rows @ prior.weights(weighed)


# ---- other forms of the score --------------------------------------------------------------------


@given(seeds, st.sampled_from(KAPPAS), st.sampled_from([0.0, 0.5, 3.0]))
def test_linear_form__equals_gamma_functions_and_marginals(seed, kappa, smoothing):
    rng = np.random.default_rng(seed)
    rows = draw_any(rng, int(rng.integers(2, 12)), int(rng.integers(1, 9)))
    query = rows[rng.choice(len(rows), rng.integers(1, len(rows) + 1), replace=False)]
    prior = oracle.priors(rows.tolist(), kappa, smoothing)
    linear = scores_of(rows, query, kappa, smoothing)
    for row, score in zip(rows.tolist(), linear.tolist(), strict=True):
        assert score == pytest.approx(
            oracle.three_marginals(row, query.tolist(), prior), rel=1e-10, abs=1e-10
        )
        assert score == pytest.approx(
            oracle.gamma_form(row, query.tolist(), prior), rel=1e-10, abs=1e-10
        )


@pytest.mark.parametrize("kappa", [1e-20, 1e-12, 1e-6, 1e6, 1e12, 1e20])
def test_linear_form__keeps_its_digits_for_any_kappa(kappa, rng):
    # Pseudo-counts may be far below 1: a share of the query is then almost 0 or almost 1.
    rows = draw_any(rng, 60, 8)
    rows[0] = 1
    for query in (rows[:1], rows[:7], rows):
        prior = oracle.priors(rows.tolist(), kappa, 0.0)
        linear = scores_of(rows, query, kappa, 0.0)
        for row, score in zip(rows.tolist(), linear.tolist(), strict=True):
            wanted = oracle.gamma_form(row, query.tolist(), prior)
            assert score == pytest.approx(wanted, rel=1e-10, abs=1e-12)


def test_linear_form__keeps_its_digits_for_a_feature_that_all_but_one_have():
    n_rows, kappa = 10**9, 2.0
    prior = BinaryPrior(n_rows, np.array([n_rows - 1, 1]), kappa)
    weighed = prior.query(3, [0, 1], [3, 1])
    (alpha, beta), (alpha_1, beta_1) = (
        (kappa * m / n_rows, kappa * (n_rows - m) / n_rows) for m in (n_rows - 1, 1)
    )
    assert prior.weights(weighed) == pytest.approx(
        [math.log1p(3 / alpha), math.log1p(1 / alpha_1) - math.log1p(2 / beta_1)], rel=1e-13
    )
    assert weighed.gains[0] == pytest.approx(
        math.log1p(3 / alpha) + math.log1p(3 / beta), rel=1e-14
    )


def test_golden_values():
    sets = BayesianSets().fit(GOLDEN)
    weighed = sets._weigh(sets._choose([0, 1], "test"))
    assert weighed.constant == pytest.approx(-0.204794412646, abs=1e-12)
    weights = sets._prior.weights(weighed)
    assert weights == pytest.approx([1.252763, 0.204794, -0.980829, -0.980829], abs=1e-6)
    scores = sets.log_scores([0, 1]).compute()
    expected = [1.252763, 1.047969, -0.980829, -2.166453, -1.185624]
    assert scores == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_scores__average_to_one_over_all_rows(smoothing, rng):
    rows = rng.integers(0, 2, (12, 7))
    prior = oracle.priors(rows.tolist(), 2.0, smoothing)
    corpus = BinaryPrior(12, rows.sum(axis=0), 2.0, smoothing)
    weighed = corpus.query(3, np.arange(7), rows[:3].sum(axis=0))
    weights = corpus.weights(weighed)
    total = math.fsum(
        math.exp(oracle.log_marginal([x], prior) + weighed.constant + float(np.dot(weights, x)))
        for x in oracle.all_rows(7)
    )
    assert total == pytest.approx(1.0, abs=1e-12)


# ---- what it must not depend on ------------------------------------------------------------------


@given(seeds)
def test_scores__of_single_items_are_symmetric(seed):
    rng = np.random.default_rng(seed)
    rows = draw_any(rng, 9, 6)
    table = np.stack([scores_of(rows, rows[[i]], 2.0, 0.0) for i in range(9)])
    np.testing.assert_allclose(table, table.T, rtol=0, atol=1e-12)


@given(seeds)
def test_scores__do_not_depend_on_the_order_of_query_or_features(seed):
    rng = np.random.default_rng(seed)
    rows = draw_any(rng, 20, 11)
    query = rng.choice(20, 6, replace=False)
    given_order = BayesianSets().fit(rows).query(query.tolist(), k=20)
    shuffled = BayesianSets().fit(rows).query(rng.permutation(query).tolist(), k=20)
    assert given_order.log_scores.tobytes() == shuffled.log_scores.tobytes()
    assert given_order.rows.tolist() == shuffled.rows.tolist()
    columns = rng.permutation(11)
    np.testing.assert_allclose(
        scores_of(rows[:, columns], rows[query][:, columns], 2.0, 0.0),
        scores_of(rows, rows[query], 2.0, 0.0),
        rtol=0,
        atol=1e-12,
    )


def test_scores__do_not_depend_on_constant_columns(rng):
    rows = draw_any(rng, 30, 9)
    wider = np.insert(rows, [0, 4, 9], [1, 0, 1], axis=1)
    query = [3, 17, 29]
    a, b = (BayesianSets().fit(X).query(query, k=30) for X in (rows, wider))
    assert a.log_scores.tobytes() == b.log_scores.tobytes()
    assert a.rows.tolist() == b.rows.tolist()


def test_scores__count_constant_columns_if_smoothed():
    rows = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 0]], np.uint8)
    prior = oracle.priors(rows.tolist(), 2.0, 0.5)
    assert None not in prior
    scores = BayesianSets(smoothing=0.5).fit(rows).log_scores([1]).compute()
    wanted = [oracle.three_marginals(row, rows[[1]].tolist(), prior) for row in rows.tolist()]
    assert scores == pytest.approx(wanted, abs=1e-12)


# ---- what a query of one item means --------------------------------------------------------------


def test_single_item__no_row_scores_higher_than_it(rng):
    rows = rng.integers(0, 2, (10, 8))
    rows[0], rows[1] = 0, 1  # no constant columns
    prior = BinaryPrior(10, rows.sum(axis=0), 2.0)
    everything = np.array(oracle.all_rows(8))
    for row in rows:
        weighed = prior.query(1, np.flatnonzero(row), np.ones(row.sum()))
        weights = prior.weights(weighed)
        assert ((weights > 0) == (row == 1)).all()
        assert (everything @ weights).argmax() == int("".join(map(str, row)), 2)


def test_gains__are_positive_and_bases_negative(rng):
    rows = draw_any(rng, 40, 12)
    prior = BinaryPrior(40, rows.sum(axis=0, dtype=np.int64), 0.3)
    for n in range(1, 6):
        weighed = prior.query(n, np.arange(12), rows[:n].sum(axis=0))
        assert (weighed.gains > 0).all()
        base = prior.base(n).weights
        assert (base[prior.is_used] < 0).all()
        assert (base[~prior.is_used] == 0).all()


# ---- keeping -------------------------------------------------------------------------------------


def test_base__is_kept_for_the_last_sizes_and_made_once():
    prior = BinaryPrior(9, np.array([3, 5, 0]))
    first = prior.base(1)
    assert prior.base(1) is first
    for size in range(2, 60):
        prior.base(size)
    assert len(prior._bases) == 16
    assert 59 in prior._bases
    assert prior.base(1) is not first
    np.testing.assert_array_equal(prior.base(1).weights, first.weights)


def test_base__may_be_asked_for_by_many_threads():
    prior = BinaryPrior(9, np.array([3, 5, 0]))
    wanted = [prior._make_base(size).constant for size in range(1, 40)]
    with ThreadPoolExecutor(8) as pool:
        sizes = list(range(1, 40)) * 20
        found = list(pool.map(lambda size: prior.base(size).constant, sizes))
    assert found == wanted * 20


def test_make_room__removes_the_oldest():
    kept = dict.fromkeys("abcde")
    make_room(kept, 4)
    assert list(kept) == ["c", "d", "e"]
    make_room(kept, 4)
    assert list(kept) == ["c", "d", "e"]
