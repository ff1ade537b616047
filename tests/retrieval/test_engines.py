"""Scan and index give one answer, that of a full sort: ids, scores to the last bit, ties by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from distclust import engine
from distclust.retrieval import BayesianSets, scanning, shards
from distclust.retrieval.index import HeldIndex
from distclust.retrieval.prior import BinaryPrior, Query
from distclust.store import ArrayMatrix, Matrix, SparseMatrix
from tests.oracles import retrieval as oracle
from tests.retrieval.corpora import assert_ranking, draw, draw_any, exact_scores, shards_of

seeds = st.integers(0, 2**32 - 1)
KAPPAS = (1e-6, 1e-3, 0.1, 2.0, 50.0, 1e6)
SMOOTHINGS = (0.0, 0.5, 1e-6)
BLOCKS = (8, 16, 32)


@pytest.fixture(autouse=True, scope="module")
def small_shards():
    with pytest.MonkeyPatch.context() as patch:
        shards_of(32, patch)
        yield


def matrix_of(rows: np.ndarray, block_rows: int, is_sparse: bool) -> Matrix:
    matrix = SparseMatrix(scipy.sparse.csr_array(rows)) if is_sparse else ArrayMatrix(rows)
    matrix.block_rows = block_rows
    return matrix


def check_both(sets: BayesianSets, rows: np.ndarray, queries: list[Any], k: int) -> None:
    """Both engines, one by one and together, against a full sort of scores in plain loops."""
    wanted = [oracle.ranked(exact_scores(sets, rows, query), k) for query in queries]
    for use in ("scan", "index"):
        together = sets.query_many(queries, k, engine=use)
        for query, found, ranked in zip(queries, together, wanted, strict=True):
            assert found.engine == use
            assert_ranking(found, ranked, use)
            assert_ranking(sets.query(query, k, engine=use), ranked, use)


def some_query(rng: np.random.Generator, rows: np.ndarray) -> Any:
    """A query of one, of a few, of many, of everything, of an empty item, or a raw vector."""
    n = len(rows)
    kind = rng.integers(6)
    if kind == 0:
        return np.array([np.zeros(rows.shape[1], np.uint8)])
    if kind == 1:
        return rng.permutation(n).tolist()
    size = min(int(rng.choice([1, 1, 2, 3, n // 2 + 1])), n)
    return rng.choice(n, size, replace=False).tolist()


@settings(max_examples=120)
@given(seeds, st.sampled_from(KAPPAS), st.sampled_from(SMOOTHINGS), st.sampled_from(BLOCKS))
def test_engines__equal_a_full_sort(seed, kappa, smoothing, block_rows):
    rng = np.random.default_rng(seed)
    n_rows, n_features = int(rng.integers(1, 130)), int(rng.choice([1, 2, 7, 8, 9, 17, 40, 130]))
    rows = draw_any(rng, n_rows, n_features)
    matrix = matrix_of(rows, block_rows, bool(rng.integers(2)))
    sets = BayesianSets(kappa, smoothing).fit(matrix).build_index()
    queries = [some_query(rng, rows) for _ in range(int(rng.choice([1, 2, 9])))]
    check_both(sets, rows, queries, int(rng.choice([1, 2, 5, n_rows, n_rows + 3])))


def test_engines__many_shards_and_threads(rng):
    rows = draw(rng, 700, 60, "falling")
    sets = BayesianSets().fit(matrix_of(rows, 32, True)).build_index()
    assert sets.index_.n_shards == 22
    queries = [rng.choice(700, 3, replace=False).tolist() for _ in range(10)]
    with engine.connect("threads", threads=3):
        check_both(sets, rows, queries, 10)


def test_engines__a_later_shard_may_have_all_the_best(rng):
    # The floor is carried from shard to shard; a bound that is too low would cut these off.
    rows = draw(rng, 320, 30, "rare")
    rows[300:310] = draw(rng, 10, 30, "any")
    sets = BayesianSets().fit(matrix_of(rows, 32, True)).build_index()
    check_both(sets, rows, [[300, 301], [305], [300, 10]], 7)


def test_engines__ties_are_broken_by_row_across_shards(rng):
    pattern = draw(rng, 5, 20, "any")
    rows = pattern[rng.integers(5, size=300)]
    sets = BayesianSets().fit(matrix_of(rows, 16, False)).build_index()
    for k in (1, 3, 50, 300):
        check_both(sets, rows, [[7], [7, 8, 9], list(range(300))], k)
    found = sets.query([7], 300, engine="index")
    same = np.flatnonzero((rows == rows[7]).all(axis=1))
    assert found.rows[: len(same)].tolist() == same.tolist()


def test_engines__rows_without_any_feature_and_queries_without_any():
    rows = np.zeros((100, 12), np.uint8)
    rows[60, 3] = rows[97, 3] = rows[98, 5] = 1
    sets = BayesianSets().fit(matrix_of(rows, 16, True)).build_index()
    check_both(sets, rows, [[60], [0], [0, 60], [0, 1, 2]], 5)
    assert sets.query([0], 3, engine="index").rows.tolist() == [0, 1, 2]


def test_engines__nothing_but_constant_features():
    rows = np.ones((70, 4), np.uint8)
    rows[:, 2] = 0
    sets = BayesianSets().fit(matrix_of(rows, 16, False)).build_index()
    for use in ("scan", "index"):
        found = sets.query([5, 6], 3, engine=use)
        assert found.rows.tolist() == [0, 1, 2]
        assert found.log_scores.tolist() == [0.0, 0.0, 0.0]


def test_engines__more_frequent_features_than_bits():
    # 1,020 features at most are kept as bits; the others of them have lists.
    rng = np.random.default_rng(0)
    rows = draw(rng, 96, 1200, "any")
    sets = BayesianSets().fit(matrix_of(rows, 32, True)).build_index()
    assert [len(shard.bit_columns) for shard in sets.index_.shards] == [1020] * 3
    assert all(len(shard.columns) for shard in sets.index_.shards)
    queries = [[3], [4, 40, 80], list(range(96)), rows.any(axis=0, keepdims=True)]
    check_both(sets, rows, queries, 6)


@pytest.mark.parametrize("n_bits", [1, 4, 7, 8, 9, 255, 256, 257, 1019, 1020])
def test_engines__any_number_of_bits(n_bits):
    rng = np.random.default_rng(n_bits)
    rows = np.hstack([draw(rng, 64, n_bits, "any"), draw(rng, 64, 20, "rare")])
    rows[::2, :n_bits] |= 1  # all of them in half of the rows
    rows[:32, 0] = 0
    sets = BayesianSets().fit(matrix_of(rows, 32, True)).build_index()
    check_both(sets, rows, [[1], [2, 33], [5, 6, 7, 63]], 4)


def test_engines__queries_of_thousands():
    rng = np.random.default_rng(0)
    rows = draw(rng, 3000, 25, "falling")
    sets = BayesianSets().fit(matrix_of(rows, 1024, True)).build_index()
    queries = [rng.choice(3000, 2000, replace=False).tolist(), list(range(3000))]
    check_both(sets, rows, queries, 25)


# ---- rounding ------------------------------------------------------------------------------------


def test_engines__weights_that_cancel(rng):
    # All items together weigh every feature as the corpus does: what is left of base and gain
    # is their rounding, and scores differ in the rounding of long sums alone.
    for kappa in (1e-6, 2.0, 1e6):
        rows = draw(rng, 200, 60, "any")
        sets = BayesianSets(kappa).fit(matrix_of(rows, 32, True)).build_index()
        check_both(sets, rows, [list(range(200))] * 2, 5)


def near_ties(rng: np.random.Generator, n_rows: int, n_features: int, length: int) -> np.ndarray:
    """Rows of equal length over features of almost equal frequency: scores differ by 1e-9."""
    rows = np.zeros((n_rows, n_features), np.uint8)
    for row in rows:
        row[rng.choice(n_features, length, replace=False)] = 1
    return rows


@pytest.mark.parametrize("length", [3, 30, 300])
def test_engines__scores_closer_than_their_approximations(length, rng):
    # Twins of a feature differ by one row among many; the sums of 32 bits see no difference.
    n_features = 2 * length
    rows = near_ties(rng, 500, n_features, length)
    sets = BayesianSets(1e-3).fit(matrix_of(rows, 16, True)).build_index()
    nothing = np.zeros((1, n_features), np.uint8)  # asks for short rows of frequent features
    queries = [[1], [2, 3, 4], rng.choice(500, 50, replace=False).tolist(), nothing]
    for k in (1, 10):
        check_both(sets, rows, queries, k)


class Close:
    """A prior and a query whose weights are chosen: adversaries for the bounds."""

    def __init__(self, rng: np.random.Generator, rows: np.ndarray, weights: np.ndarray) -> None:
        n_features = rows.shape[1]
        self.rows = rows
        self.prior = BinaryPrior(len(rows), rows.sum(axis=0, dtype=np.int64))
        base = self.prior.base(1).weights
        base[:] = -np.abs(weights) * rng.choice([1e-3, 1.0, 1e3], n_features)
        asked = np.flatnonzero(rng.random(n_features) < 0.6).astype(np.int32)
        gains = np.abs(weights[asked]) * (1.0 + rng.choice([0.0, 1.0, 1e3], len(asked)))
        constant = float(rng.choice([0.0, -1e4, 1e4]) * weights[0])
        self.query = Query(1, asked, np.maximum(gains, 1e-12), constant)

    def check(self, k: int) -> None:
        base = self.prior.base(1).weights.tolist()
        columns, gains = self.query.columns.tolist(), self.query.gains.tolist()
        by_column = dict(zip(columns, gains, strict=True))
        constant = self.query.constant
        scores = [
            oracle.canonical_score(row, base, by_column, constant) for row in self.rows.tolist()
        ]
        wanted = oracle.ranked(scores, k)
        index = HeldIndex(_shards(self.rows), self.rows.shape[1])
        tops = {"index": _search(index, self.prior, self.query, k)}
        for together in (1, 3):  # in 32 bits, or as whole numbers
            queries = [self.query] * together
            tops["scan"] = scanning.scan(_sparse(self.rows), self.prior, queries, k)[-1]
            for use, top in tops.items():
                found = list(zip(top.rows.tolist(), top.scores.tolist(), strict=True))
                assert found == wanted, (use, together)


def _sparse(rows: np.ndarray) -> Matrix:
    return matrix_of(rows, 16, True)


def _shards(rows: np.ndarray) -> tuple[shards.Shard, ...]:
    parts = [rows[i : i + 16] for i in range(0, len(rows), 16)]
    return tuple(shards.build([part], len(part), rows.shape[1]) for part in parts)


def _search(index: HeldIndex, prior: BinaryPrior, query: Query, k: int) -> Any:
    from distclust.retrieval.ranking import NOBODY, Top, merge

    top = NOBODY
    for shard, first in zip(index.shards, index.first_rows.tolist(), strict=False):
        found = shard.search(prior, query, k, top.floor(k))
        top = merge([top, Top(found.rows + first, found.scores)], k)
    return top


@settings(max_examples=150)
@given(seeds, st.sampled_from([1, 4, 20]))
def test_engines__any_weights_and_equal_sums(seed, k):
    """Weights from 1e-8 to 1e8, or that differ in their last bits; many rows near the floor."""
    rng = np.random.default_rng(seed)
    n_features = int(rng.choice([3, 20, 90]))
    rows = draw_any(rng, 80, n_features)
    if rng.random() < 0.5:
        weights = 10.0 ** rng.uniform(-8, 8, n_features)
    else:
        weights = 1.0 + rng.integers(-9, 10, n_features) * 10.0 ** rng.integers(-16, -6)
    Close(rng, rows, weights).check(k)


@pytest.mark.parametrize("n_small", [8, 80, 400])
@pytest.mark.parametrize("n_others", [0, 40])
def test_engines__sums_that_lose_almost_half_a_unit_at_every_step(n_small, n_others):
    # Row 1 has a 1 and many gains that a sum of 32 bits rounds away one by one; row 0 has
    # almost as much in one piece. Others make the features rare: lists instead of bits.
    unit = 2.0**-23
    rows = np.zeros((2 + n_others, n_small + 2), np.uint8)
    rows[0, 0] = rows[1, 1:] = 1
    prior = BinaryPrior(len(rows), rows.sum(axis=0, dtype=np.int64))
    prior.base(1).weights[:] = 0.0
    gains = np.full(n_small + 2, 0.49 * unit)
    gains[0], gains[1] = 1.0 + 0.48 * n_small * unit, 1.0
    query = Query(1, np.arange(n_small + 2, dtype=np.int32), gains, 0.0)
    scores = [gains[0], gains[1:].sum()]
    assert scores[0] < scores[1]
    whole = shards.build([rows], len(rows), n_small + 2)
    found = whole.search(prior, query, 1, -np.inf)
    assert found.rows.tolist() == [1]
    assert whole.search(prior, query, 1, scores[0]).rows.tolist() == [1]  # after another shard
    top = scanning.scan(matrix_of(rows, 1, True), prior, [query], 1)[0]
    assert top.rows.tolist() == [1]


@pytest.mark.parametrize("n_small", [8, 80])
def test_engines__bases_that_lose_almost_half_a_unit_at_every_step(n_small):
    # As above with a query without features: one small base in each byte of row 1 is rounded
    # away, and row 0, which has almost as much in one piece, seems worse. Two more rows make
    # all features equally frequent, and score far less.
    unit = 2.0**-23
    n_features = 8 * n_small + 3
    own = np.arange(0, 8 * n_small, 8)
    rows = np.zeros((4, n_features), np.uint8)
    rows[2, :-1] = rows[3, : 8 * n_small] = 1
    rows[3, own], rows[1, own] = 0, 1
    rows[1, -2] = rows[0, -3] = rows[3, -1] = 1
    prior = BinaryPrior(4, rows.sum(axis=0, dtype=np.int64))
    base = prior.base(1).weights
    base[:] = -0.49 * unit
    base[-3:] = -1.0 - 0.48 * n_small * unit, -1.0, -5.0
    query = Query(1, np.empty(0, np.int32), np.empty(0), 0.0)
    shard = shards.build([rows], 4, n_features)
    assert shard.bit_places.tolist() == list(range(n_features))  # bytes are added from the last
    assert shard.search(prior, query, 1, -np.inf).rows.tolist() == [0]
    top = scanning.scan(matrix_of(rows, 4, True), prior, [query], 1)[0]
    assert top.rows.tolist() == [0]


# ---- the parts of a scan -------------------------------------------------------------------------


@given(seeds, st.integers(1, 20))
def test_approximation__is_never_off_by_more_than_it_says(seed, n_queries):
    rng = np.random.default_rng(seed)
    n_features = int(rng.choice([1, 9, 70, 400]))
    rows = draw_any(rng, 50, n_features)
    weights = rng.normal(size=(n_features, n_queries)) * 10.0 ** rng.uniform(-6, 3, n_queries)
    ones = scanning.Ones.of_block(rows)
    sums, slacks = scanning.Approximation(weights).of(ones, int(rows.sum(axis=1).max()))
    errors = np.abs(sums - rows.astype(np.float64) @ weights)
    assert sums.shape == (50, n_queries)
    assert (errors.max(axis=0) <= slacks).all()


def test_pack__is_left_where_it_would_be_too_coarse():
    rng = np.random.default_rng(0)
    fine, coarse = rng.normal(size=(300, 3)), rng.normal(size=(300, 3)) * 1e4
    assert scanning.pack(fine, 64) is not None
    assert scanning.pack(coarse, 64) is None
    assert scanning.pack(np.zeros((300, 3)), 2**15) is None


@given(seeds)
def test_pack__no_sum_leaves_its_sixteen_bits(seed):
    rng = np.random.default_rng(seed)
    n_features = int(rng.choice([1, 5, 60]))
    weights = rng.normal(size=(n_features, 8)) * 10.0 ** rng.uniform(-3, 0)
    longest = 1 << int(rng.integers(0, 8))
    packed = scanning.pack(weights, longest)
    if packed is not None:
        numbers = packed.words.view(np.uint16).astype(np.int64)
        heaviest = np.sort(numbers, axis=0)[-longest:].sum(axis=0)
        assert (heaviest < 2**16).all()


def test_scan__of_very_many_queries_makes_several_passes(monkeypatch):
    rng = np.random.default_rng(0)
    rows = draw(rng, 100, 30, "falling")
    sets = BayesianSets().fit(matrix_of(rows, 32, True))
    queries = [[int(i)] for i in rng.integers(100, size=50)]
    together = sets.query_many(queries, 5)
    passes = []
    monkeypatch.setattr(scanning, "_WEIGHTS_AT_ONCE", 30 * 20)  # sixteen queries

    def count(*arguments: Any, **options: Any) -> Any:
        passes.append(len(arguments[2].constants))
        return engine.map_spans(*arguments, **options)

    monkeypatch.setattr(scanning, "map_spans", count)
    apart = sets.query_many(queries, 5)
    assert passes == [16, 16, 16, 2]
    for a, b in zip(together, apart, strict=True):
        assert a.log_scores.tobytes() == b.log_scores.tobytes()
        assert a.rows.tolist() == b.rows.tolist()
