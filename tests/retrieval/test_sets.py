"""Bayesian Sets as users meet it: one answer whatever holds the rows and however it is asked."""

from __future__ import annotations

import functools
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import distclust
from distclust import BayesianSets, engine
from distclust.errors import InputError, UnknownFeaturesWarning, UnknownItemError
from distclust.retrieval.results import suggested_size
from distclust.retrieval.sets import count_ones
from tests.corpora import blocks_of
from tests.oracles import retrieval as oracle
from tests.retrieval.corpora import (
    GOLDEN,
    assert_ranking,
    assert_same,
    draw,
    exact_scores,
    shards_of,
)

N_ROWS, N_FEATURES = 600, 40
QUERIES: list[Any] = [[0], [5, 70, 599], [64, 65], list(range(0, N_ROWS, 7))]


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with pytest.MonkeyPatch.context() as patch, blocks_of(64):
        shards_of(128, patch)
        yield


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    rows = draw(np.random.default_rng(0), N_ROWS, N_FEATURES, "falling")
    rows[10:13] = 0
    rows[:, 7], rows[:, 30] = 1, 0
    return rows


@pytest.fixture(scope="module")
def wanted(rows) -> list[Any]:
    sets = BayesianSets().fit(rows)
    return [oracle.ranked(exact_scores(sets, rows, query), 25) for query in QUERIES]


def store_of(rows: np.ndarray, place: Path, layout: str) -> Any:
    options: dict[str, Any] = {"layout": layout}
    if layout == "packed":
        options = {"layout": "compact", "storage": "packed"}
    given: Any = rows if layout == "dense" else scipy.sparse.csr_array(rows)
    return distclust.ingest(iter([given[:250], given[250:]]), place, **options)


@pytest.fixture(scope="module")
def places(rows, tmp_path_factory) -> dict[str, Path]:
    """Stores of all layouts, and one whose rows came in two steps."""
    folder = tmp_path_factory.mktemp("stores")
    names = ("dense", "csr", "compact", "packed")
    for name in names:
        store_of(rows, folder / name, name)
    store_of(rows[:300], folder / "grown", "compact")
    distclust.ingest(iter([scipy.sparse.csr_array(rows[300:])]), folder / "grown", how="append")
    return {name: folder / name for name in (*names, "grown")}


IN_MEMORY = ("array", "float", "sparse", "csc", "pandas", "pandas_sparse", "dask", "dask_sparse")
KINDS = (*IN_MEMORY, "dense", "csr", "compact", "packed", "grown")


def source(kind: str, rows: np.ndarray, places: dict[str, Path]) -> Any:
    if kind in places:
        return places[kind]
    chunked = da.from_array(rows, chunks=(77, 9))
    ids = [f"name of {i}" for i in range(N_ROWS)]
    table = pd.DataFrame(rows, index=ids)
    return {
        "array": rows,
        "float": rows.astype(np.float64),
        "sparse": scipy.sparse.csr_array(rows.astype(bool)),
        "csc": scipy.sparse.csc_array(rows),
        "pandas": table,
        "pandas_sparse": table.astype(pd.SparseDtype(np.uint8, 0)),
        "dask": chunked,
        "dask_sparse": chunked.map_blocks(scipy.sparse.coo_array),
    }[kind]


# ---- one answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_query__is_the_same_whatever_holds_the_rows(kind, rows, places, wanted, tmp_path):
    sets = BayesianSets().fit(source(kind, rows, places))
    sets.build_index(tmp_path / "index" if kind in places else None)
    for query, ranked in zip(QUERIES, wanted, strict=True):
        asked = rows[query] if kind == "pandas_sparse" else query
        for use in ("scan", "index", "auto"):
            found = sets.query(query, 25, engine=use)
            assert_ranking(found, ranked, f"{kind} {use}")
            assert found.ids.tolist() == sets.matrix_.row_ids[found.rows].tolist()
        assert_ranking(sets.query(asked, 25), ranked)
    for use in ("scan", "index"):
        for found, ranked in zip(sets.query_many(QUERIES, 25, engine=use), wanted, strict=True):
            assert_ranking(found, ranked)


def test_query__reads_stored_rows_as_they_lie(places, wanted, monkeypatch):
    for kind in ("compact", "packed"):
        sets = BayesianSets().fit(places[kind])
        assert len(sets.matrix_.compact_block(0).ids) == 1
        order = sets.matrix_.compact_block(0).order
        assert order.tolist() != sorted(order.tolist())  # ids are ranks, not columns
        monkeypatch.setattr(sets.matrix_, "block", lambda index: pytest.fail("was decoded"))
        for query, ranked in zip(QUERIES, wanted, strict=True):
            assert_ranking(sets.query(query, 25, engine="scan"), ranked)


def test_query__of_more_columns_than_a_panel_of_ranks(tmp_path):
    # Ranks beyond 65,535 lie in a second panel: such rows are read column by column.
    rng = np.random.default_rng(0)
    ones = np.concatenate([np.arange(70_000), rng.integers(70_000, size=3000)])
    rows = scipy.sparse.csr_array(
        (np.ones(len(ones), np.uint8), (rng.integers(130, size=len(ones)), ones))
    )
    rows.data[:] = 1
    sets = BayesianSets().fit(distclust.ingest(iter([rows]), tmp_path / "X"))
    assert len(sets.matrix_.compact_block(0).ids) == 2
    held = BayesianSets().fit(rows)
    for query in ([3], [5, 100]):
        wanted = held.query(query, 130)
        assert_same(sets.query(query, 130), wanted)
        scores = held.log_scores(query).compute()
        assert wanted.log_scores.tolist() == sorted(scores.tolist(), reverse=True)


@pytest.mark.parametrize("kind", ["array", "sparse", "dask", "compact", "csr"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_query__is_the_same_with_any_number_of_threads(kind, threads, rows, places, wanted):
    with engine.connect("threads", threads=threads):
        sets = BayesianSets().fit(source(kind, rows, places))
        for found, ranked in zip(sets.query_many(QUERIES, 25), wanted, strict=True):
            assert_ranking(found, ranked)


@pytest.mark.parametrize("kind", ["array", "sparse", "dask", "dask_sparse", "compact", "dense"])
def test_log_scores__are_lazy_and_those_of_the_ranking(kind, rows, places):
    sets = BayesianSets().fit(source(kind, rows, places))
    for query in QUERIES:
        lazy = sets.log_scores(query)
        assert isinstance(lazy, da.Array)
        assert (lazy.shape, lazy.dtype) == ((N_ROWS,), np.float64)
        scores = lazy.compute(scheduler="synchronous")
        assert scores.tolist() == exact_scores(sets, rows, query)
        found = sets.query(query, N_ROWS)
        assert found.log_scores.tobytes() == scores[found.rows].tobytes()
        assert float(lazy[3:90].sum().compute()) == pytest.approx(scores[3:90].sum())


@pytest.mark.parametrize(("kappa", "smoothing"), [(2.0, 0.0), (0.3, 0.5), (1e-3, 1e-4)])
def test_query__by_id_by_number_and_by_vector(kappa, smoothing, rows, places):
    table = source("pandas", rows, places)
    sets = BayesianSets(kappa, smoothing).fit(table).build_index()
    for query in QUERIES:
        names = [f"name of {i}" for i in query]
        by_name = sets.query(names, 30, engine="index")
        assert by_name.query == tuple(names)
        assert_same(by_name, sets.query(query, 30, engine="scan"))
        for vectors in (rows[query], scipy.sparse.csr_array(rows[query]), table.iloc[query]):
            by_vector = sets.query(vectors, 30)
            assert by_vector.rows.tolist() == by_name.rows.tolist()
            assert by_vector.log_scores.tobytes() == by_name.log_scores.tobytes()


@pytest.mark.parametrize("use", ["scan", "index"])
def test_query__may_be_asked_by_many_threads(use, places, tmp_path):
    sets = BayesianSets().fit(places["compact"]).build_index(tmp_path / "index")
    rng = np.random.default_rng(0)
    queries = [rng.choice(N_ROWS, size, replace=False).tolist() for size in range(1, 25)]
    wanted = [sets.query(query, 12, engine=use) for query in queries]
    fresh = BayesianSets().fit(places["compact"], index=tmp_path / "index")
    with ThreadPoolExecutor(8) as pool:
        ask = functools.partial(fresh.query, k=12, engine=use)
        for found, ranking in zip(pool.map(ask, queries * 5), wanted * 5, strict=True):
            assert_same(found, ranking)


def test_query__counts_a_repeated_item_once(rows):
    sets = BayesianSets().fit(rows)
    assert_same(sets.query([3, 4, 3, 3]), sets.query([3, 4]))


def test_query_many__mixes_sizes_and_kinds(rows):
    sets = BayesianSets().fit(rows).build_index()
    queries: list[Any] = [[1], rows[:3], [5, 6], 9, range(20), rows[[0]]] * 3
    for use in ("scan", "index"):
        for query, found in zip(queries, sets.query_many(queries, 12, engine=use), strict=True):
            assert_same(found, sets.query(query, 12, engine=use))
    assert sets.query_many([]) == []


# ---- what is left out ----------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["scan", "index"])
def test_query__leaves_out_its_own_items_if_asked_to(use, rows):
    sets = BayesianSets().fit(rows).build_index()
    for query in QUERIES:
        everything = sets.query(query, N_ROWS, engine=use)
        kept = ~np.isin(everything.rows, query)
        for k in (1, 10, N_ROWS):
            found = sets.query(query, k, exclude_query=True, engine=use)
            assert found.rows.tolist() == everything.rows[kept][:k].tolist()
            assert found.log_scores.tolist() == everything.log_scores[kept][:k].tolist()
    together = sets.query_many(QUERIES, 10, exclude_query=True, engine=use)
    for query, found in zip(QUERIES, together, strict=True):
        assert_same(found, sets.query(query, 10, exclude_query=True, engine=use))


def test_query__of_everything_without_itself_is_empty(rows):
    found = BayesianSets().fit(rows).query(range(N_ROWS), exclude_query=True)
    assert (len(found), found.suggested_size, found.is_open) == (0, 0, False)
    assert "0 belong" in repr(found)
    assert found.to_dict()["results"] == []


def test_query__says_whether_more_belong():
    rows = np.zeros((40, 3), np.uint8)
    rows[:6, 0], rows[6:, 1], rows[0, 2] = 1, 1, 1
    sets = BayesianSets(kappa=0.01).fit(rows)
    few, enough = sets.query([0, 1, 2], 4), sets.query([0, 1, 2], 10)
    assert (few.suggested_size, few.is_open) == (4, True)
    assert (enough.suggested_size, enough.is_open) == (6, False)
    others = sets.query([0, 1, 2], 40, exclude_query=True)
    assert (others.suggested_size, others.is_open) == (3, False)
    everything = sets.query(range(40), 40)
    assert (everything.suggested_size, everything.is_open) == (40, False)


def test_suggested_size__is_the_prior_odds_of_belonging():
    line = np.log((100 - 4) / 4)
    scores = np.array([line + 1, line + 1e-9, line, line - 1])
    assert suggested_size(scores, 4, 100) == 2
    assert suggested_size(scores, 100, 100) == 4
    assert suggested_size(scores[:0], 4, 100) == 0


# ---- features that the corpus does not have ------------------------------------------------------


def unseen(rows: np.ndarray) -> np.ndarray:
    vector = rows[[5]].copy()
    vector[0, 30] = 1  # nobody has it
    vector[0, 7] = 0  # everybody has it
    return vector


def test_query__ignores_unseen_features_with_a_warning(rows):
    sets = BayesianSets().fit(rows).build_index()
    with pytest.warns(UnknownFeaturesWarning, match=r"1 features .* ignored \('x30'\)"):
        found = sets.query(unseen(rows), 20)
    seen = sets.query(rows[[5]], 20)
    assert found.rows.tolist() == seen.rows.tolist()
    assert found.log_scores.tolist() == seen.log_scores.tolist()
    with pytest.warns(UnknownFeaturesWarning) as caught:
        sets.explain(unseen(rows))
    assert len(caught) == 1
    with pytest.warns(UnknownFeaturesWarning):
        sets.log_scores(unseen(rows))


def test_query__counts_unseen_features_if_smoothed(rows):
    sets = BayesianSets(smoothing=0.5).fit(rows).build_index()
    prior = oracle.priors(rows.tolist(), 2.0, 0.5)
    vector = unseen(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sets.query(vector, N_ROWS, engine="index")
    for row, score in list(zip(found.rows.tolist(), found.log_scores.tolist(), strict=True))[::50]:
        exact = oracle.three_marginals(rows[row].tolist(), vector.tolist(), prior)
        assert score == pytest.approx(exact, abs=1e-9)
    assert not np.array_equal(found.log_scores, sets.query(rows[[5]], N_ROWS).log_scores)


@pytest.mark.parametrize("wrong", [2, -1, 0.5, np.nan])
def test_query__refuses_vectors_that_are_not_binary(wrong, rows):
    vector = rows[[0]].astype(np.float64)
    vector[0, 3] = wrong
    for given in (vector, scipy.sparse.csr_array(vector)):
        with pytest.raises(InputError):
            BayesianSets().fit(rows).query(given)


# ---- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, -1, 1.5, "3", None, True])
def test_query__refuses_a_k_that_is_none(k):
    with pytest.raises(InputError, match="a whole number of at least 1"):
        BayesianSets().fit(GOLDEN).query([0], k)


@pytest.mark.parametrize("name", ["kappa", "smoothing"])
@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, "2", None, True, 1e-300, 1e300])
def test_fit__refuses_parameters_that_are_no_strength(name, value):
    with pytest.raises(InputError, match=f"{name}: expected"):
        BayesianSets(**{name: value}).fit(GOLDEN)


def test_fit__refuses_a_kappa_of_zero_but_no_smoothing_of_zero():
    with pytest.raises(InputError, match="kappa"):
        BayesianSets(0).fit(GOLDEN)
    BayesianSets(np.float32(2), 0).fit(GOLDEN)


@pytest.mark.parametrize(
    ("X", "problem"),
    [
        (GOLDEN * 2, "zeros and ones"),
        (GOLDEN - 0.5, "zeros and ones"),
        (-GOLDEN.astype(int), "zeros and ones"),
        (np.where(GOLDEN, np.nan, 0.0), "missing values"),
        (pd.DataFrame({"a": ["x", "y"]}), "categories"),
        (np.empty((0, 3)), "0 sample"),
    ],
)
def test_fit__refuses_what_is_not_binary_and_is_then_not_fitted(X, problem):
    sets = BayesianSets().fit(GOLDEN)
    with pytest.raises(InputError, match=problem):
        sets.fit(X)
    if not hasattr(sets, "matrix_"):
        with pytest.raises(InputError, match="Call fit first"):
            sets.query([0])


@pytest.mark.parametrize("method", ["query", "explain", "log_scores", "query_many", "save"])
def test_methods__need_a_corpus(method):
    with pytest.raises(InputError, match="Call fit first"):
        getattr(BayesianSets(), method)(["a"])


def test_query__refuses_engines_that_there_are_not(rows, tmp_path):
    sets = BayesianSets().fit(rows)
    with pytest.raises(InputError, match="'auto', 'index' or 'scan'"):
        sets.query([0], engine="gpu")
    with pytest.raises(InputError, match="build_index"):
        sets.query([0], engine="index")
    with pytest.raises(InputError, match="Ingest the rows into a store first"):
        sets.build_index(tmp_path / "index")


def test_query__unknown_items_get_names_that_are_near(rows, places):
    sets = BayesianSets().fit(source("pandas", rows, places))
    with pytest.raises(UnknownItemError, match="Did you mean 'name of 17'"):
        sets.query(["name off 17"])


# ---- the plan ------------------------------------------------------------------------------------


def test_plan__chooses_what_reads_less_and_says_why(rows, places, tmp_path):
    sets = BayesianSets().fit(rows)
    found = sets.query([0])
    assert (found.engine, found.reason) == ("scan", "there is no index")
    sets.build_index()
    assert sets.query(range(N_ROWS)).engine == "scan"
    rare = np.zeros((1, N_FEATURES), np.uint8)
    rare[0, 39] = 1
    found = sets.query(rare)
    assert found.engine == "index"
    assert "of all ones are of the query's features" in found.reason
    stored = BayesianSets().fit(places["compact"]).build_index(tmp_path / "index")
    assert stored.query(rare).reason.startswith("a single query reads the corpus sooner")
    assert stored.query(rare).engine == "index"
    warmed = BayesianSets().fit(places["compact"], index=tmp_path / "index").warm()
    assert warmed.query(rare).engine == "index"
    assert_ranking(warmed.query(rare), [(r, s) for r, s in zip(*_pairs(found), strict=True)])


def _pairs(found: Any) -> tuple[list[int], list[float]]:
    return found.rows.tolist(), found.log_scores.tolist()


def test_refit__forgets_the_corpus_before():
    counts = np.random.default_rng(0).poisson(2.0, (80, 5))
    sets = BayesianSets(family="poisson").fit(counts)
    sets.explain([0])
    fresh = BayesianSets(family="poisson").fit(counts[:50] * 3)
    sets.fit(counts[:50] * 3)
    assert sets.explain([0]).features == fresh.explain([0]).features


def test_query__belongs_to_the_parameters_of_the_fit(rows):
    sets = BayesianSets().fit(rows).build_index()
    wanted = sets.query([4, 5], engine="scan")
    sets.kappa, sets.smoothing = 50.0, 0.5
    for use in ("scan", "index"):
        assert_same(sets.query([4, 5], engine=use), wanted)


def test_query__two_kappas_may_share_an_index(places, tmp_path):
    first = BayesianSets(2.0).fit(places["compact"]).build_index(tmp_path / "index")
    second = BayesianSets(50.0, 0.5).fit(places["compact"], index=tmp_path / "index")
    assert first.index_ is second.index_
    for _ in range(2):
        for sets in (first, second):
            a, b = (sets.query([1, 2], engine=use) for use in ("index", "scan"))
            assert_same(a, b)


def test_count_ones__of_a_store_are_those_of_its_live_rows(rows, tmp_path):
    store = store_of(rows, tmp_path / "X.zarr", "compact")
    np.testing.assert_array_equal(count_ones(store.matrix(), "test"), rows.sum(axis=0))
    ids = store.matrix().row_ids
    kept = np.delete(rows, [3, 64, 599], axis=0)
    store = store.delete(ids[[3, 64, 599]].tolist())
    np.testing.assert_array_equal(count_ones(store.matrix(), "test"), kept.sum(axis=0))
    found = BayesianSets().fit(store).query([0, 5], N_ROWS)  # row 5 is the fourth by now
    assert found.rows.tolist() == BayesianSets().fit(kept).query([0, 4], N_ROWS).rows.tolist()
    store = store.compact()
    np.testing.assert_array_equal(count_ones(store.matrix(), "test"), kept.sum(axis=0))


def test_repr__says_what_it_is(rows):
    assert repr(BayesianSets(0.5)) == "BayesianSets(kappa=0.5, smoothing=0, family='bernoulli')"
    assert "600 items x 40 features, no index" in repr(BayesianSets().fit(rows))
    assert "with index" in repr(BayesianSets().fit(rows).build_index())
