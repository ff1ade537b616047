"""Scores of any conjugate family: differences of log marginals, and one answer everywhere."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from distclust import BayesianSets, engine, families
from distclust.errors import InputError
from distclust.retrieval import exponential
from distclust.store import ArrayMatrix, SparseMatrix
from tests.oracles import retrieval as oracle
from tests.retrieval.corpora import assert_same, draw_any
from tests.small_blocks import shrink

N_ROWS = 200
FAMILIES = ("poisson", "multinomial", "categorical", "diagonal_gaussian")


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


def corpus(name: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if name == "diagonal_gaussian":
        return rng.normal(size=(N_ROWS, 5)) + 3.0 * rng.integers(3, size=(N_ROWS, 1))
    if name == "categorical":
        return rng.integers(0, 4, (N_ROWS, 6))
    return rng.poisson(np.exp(rng.normal(size=(N_ROWS, 7))))


def log_marginal(family: families.Family, rows: np.ndarray) -> float:
    stats = family.accumulate(rows, np.zeros(len(rows), np.int64), 1)
    return float(family.log_marginal(stats)[0])


# ---- the score -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("query", [[0], [3, 77, 150], list(range(0, N_ROWS, 3))])
def test_scores__are_differences_of_log_marginals(name, query):
    rows = corpus(name)
    sets = BayesianSets(family=name).fit(rows)
    family, found = sets.family_, sets.log_scores(query).compute()
    of_query = log_marginal(family, rows[query])
    for i in (0, 1, 3, 77, 199):
        together = log_marginal(family, np.concatenate([rows[query], rows[[i]]]))
        wanted = together - log_marginal(family, rows[[i]]) - of_query
        assert found[i] == pytest.approx(wanted, rel=1e-9, abs=1e-9)


def test_bernoulli__of_a_family_is_the_linear_form(seed):
    rng = np.random.default_rng(seed)
    rows = draw_any(rng, 60, 9)
    rows[0], rows[1] = 0, 1  # no constant columns
    linear = BayesianSets(kappa=1.5).fit(rows)
    prior = linear._prior
    family = families.Bernoulli(prior.alpha, prior.beta, n_features=9)
    by_family = BayesianSets(family=family).fit(rows)
    assert by_family.family_ is not None
    for query in ([4], [1, 2, 3], list(range(60))):
        a, b = (sets.log_scores(query).compute() for sets in (linear, by_family))
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
        stats = exponential.query_statistics(family, rows[query])
        np.testing.assert_allclose(
            exponential.score_block(rows, 0, family, stats), a, rtol=1e-10, atol=1e-10
        )


def test_poisson__equals_the_closed_form(rng):
    rows = rng.poisson(2.0, (40, 3))
    shape, rate = np.array([0.7, 2.0, 5.0]), np.array([0.3, 1.0, 4.0])
    family = families.Poisson(shape, rate, n_features=3)
    query = rows[[0, 1, 2, 3]]
    stats = exponential.query_statistics(family, query)
    found = exponential.score_block(rows, 0, family, stats)
    for row, score in zip(rows.tolist(), found.tolist(), strict=True):
        total = []
        for x, a, b, column in zip(row, shape, rate, query.T, strict=True):
            n, s = len(column), int(column.sum())
            total += [math.lgamma(a + s + x), -math.lgamma(a + s), -math.lgamma(a + x)]
            total += [math.lgamma(a), (a + s) * math.log(b + n), -a * math.log(b)]
            total += [-(a + s + x) * math.log(b + n + 1), (a + x) * math.log(b + 1)]
        assert score == pytest.approx(math.fsum(total), abs=1e-10)


def test_categorical__is_linear_in_its_levels(rng):
    rows = rng.integers(0, 3, (30, 2))
    sets = BayesianSets(kappa=2.0, family="categorical").fit(rows)
    alpha = np.asarray(sets.family_.alpha).reshape(2, 3)
    np.testing.assert_allclose(alpha.sum(axis=1), 2.0)  # kappa is their total
    query = [0, 1, 2, 3, 4]
    found = sets.log_scores(query).compute()
    for i, row in enumerate(rows):
        wanted = 0.0
        for j, level in enumerate(row.tolist()):
            s = int((rows[query, j] == level).sum())
            wanted += math.log((alpha[j, level] + s) / alpha[j, level]) + math.log(2.0 / 7.0)
        assert found[i] == pytest.approx(wanted, abs=1e-12)


# ---- one answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_ranking__is_a_full_sort_of_all_scores(name):
    sets = BayesianSets(family=name).fit(corpus(name))
    for query in ([5], [1, 2, 100]):
        scores = sets.log_scores(query).compute()
        for k in (1, 7, N_ROWS + 1):
            found = sets.query(query, k)
            wanted = oracle.ranked(scores.tolist(), k)
            assert list(zip(found.rows.tolist(), found.log_scores.tolist(), strict=True)) == wanted
            assert (found.engine, found.reason) == ("scan", "no index for this family")


@pytest.mark.parametrize("name", FAMILIES)
def test_ranking__many_queries_equal_single_ones(name):
    sets = BayesianSets(family=name).fit(corpus(name))
    queries: list[Any] = [[5], [1, 2, 100], [199, 0]]
    for query, found in zip(queries, sets.query_many(queries, 9), strict=True):
        assert_same(found, sets.query(query, 9))


@pytest.mark.parametrize("name", FAMILIES)
def test_ranking__vectors_equal_ids(name):
    rows = corpus(name)
    sets = BayesianSets(family=name).fit(rows)
    a, b = sets.query([4, 150], 20), sets.query(rows[[4, 150]], 20)
    assert a.rows.tolist() == b.rows.tolist()
    assert a.log_scores.tobytes() == b.log_scores.tobytes()


@pytest.mark.parametrize("name", FAMILIES)
def test_ranking__any_chunking_and_threads(name):
    rows = corpus(name)
    wanted = BayesianSets(family=name).fit(rows).query([1, 60], 15)
    for chunks in ((N_ROWS, 7), (33, 2), ((1, 0, 99, 100), 3)):
        chunked = da.from_array(rows, chunks=chunks)
        assert_same(BayesianSets(family=name).fit(chunked).query([1, 60], 15), wanted)
    with engine.connect("threads", threads=3):
        assert_same(BayesianSets(family=name).fit(rows).query([1, 60], 15), wanted)


@pytest.mark.parametrize("name", ["poisson", "multinomial"])
def test_ranking__sparse_rows_score_as_dense_ones(name):
    rows = corpus(name)
    dense, sparse = (
        BayesianSets(family=name).fit(matrix)
        for matrix in (ArrayMatrix(rows), SparseMatrix(scipy.sparse.csr_array(rows)))
    )
    for given in ([3, 4], rows[[3, 4]]):
        a, b = dense.query(given, N_ROWS), sparse.query(given, N_ROWS)
        assert a.rows.tolist() == b.rows.tolist()
        np.testing.assert_allclose(a.log_scores, b.log_scores, rtol=1e-12, atol=1e-12)


def test_ranking__missing_values_are_left_out():
    rows = corpus("diagonal_gaussian")
    rows[3, 1] = rows[8, :] = np.nan
    sets = BayesianSets(family="diagonal_gaussian").fit(rows)
    scores = sets.log_scores([3, 5]).compute()
    assert np.isfinite(scores).all()
    assert scores[8] == 0.0  # nothing is known of it


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("poisson", -1, "counts"),
        ("poisson", 0.5, "counts"),
        ("multinomial", -1, "counts"),
        ("categorical", 99, "codes below the number of levels"),
        ("categorical", 0.5, "whole codes"),
        ("diagonal_gaussian", 1e200, "numbers below"),
    ],
)
def test_query__refuses_vectors_that_the_family_does_not_take(name, value, problem):
    rows = corpus(name)
    sets = BayesianSets(family=name).fit(rows)
    with pytest.raises(InputError, match=problem):
        sets.query(np.full((1, rows.shape[1]), value))


def test_query__takes_tables_of_known_levels():
    table = pd.DataFrame({"a": ["x", "y", "y", "z"], "b": ["u", "u", "v", "v"]})
    sets = BayesianSets(family="categorical").fit(table)
    assert sets.query(table[:2]).log_scores.tolist() == sets.query([0, 1]).log_scores.tolist()
    with pytest.raises(InputError, match="'new'"):
        sets.query(pd.DataFrame({"a": ["new"], "b": ["u"]}))


def test_query__no_index_for_other_families():
    sets = BayesianSets(family="poisson").fit(corpus("poisson"))
    with pytest.raises(InputError, match="binary features"):
        sets.build_index()
    with pytest.raises(InputError, match="binary features"):
        sets.query([0], engine="index")
