"""Base clusterings: each from its own seed, the same anywhere; they label rows to come."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, homogeneity_score

from distclust.engine import as_matrix
from distclust.ensembles import bases as bases_module
from distclust.ensembles.base_fitting import chosen_columns
from distclust.ensembles.bases import (
    BaseRecipe,
    Ensemble,
    base_seed,
    label_rows,
    make_bases,
    plan_bases,
    spread_clusters,
)
from distclust.errors import InputError

N, D, K = 300, 6, 3


def make_rows(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, K, n)
    centres = np.random.default_rng(99).normal(size=(K, D)) * 4
    return centres[truth] + rng.normal(size=(n, D)), truth


def make(X: Any, *recipes: BaseRecipe, seed: int = 0) -> Ensemble:
    return make_bases(as_matrix(X), recipes, seed, "fit")


KMEANS = [BaseRecipe(n_clusters=k) for k in (3, 5, 8)]
CHAIN = BaseRecipe("dp", sweeps=8)
PARTS = BaseRecipe(n_clusters=3, column_share=0.5, row_share=0.6)


@pytest.fixture
def few_rows(monkeypatch):
    """Make some hundred rows so many that bases are fitted to samples."""
    monkeypatch.setattr(bases_module, "_SAMPLE_ROWS", (64, 100))
    monkeypatch.setattr(bases_module, "_CHAIN_ROWS", 80)


def test_kmeans_is_that_of_scikit_learn():
    rows, _ = make_rows()
    made = make(rows, *KMEANS)
    for m, recipe in enumerate(KMEANS):
        seed = base_seed(recipe, 0, m)
        peer = KMeans(recipe.n_clusters, n_init=1, random_state=seed, max_iter=100).fit(rows)
        assert adjusted_rand_score(made.labels.codes[:, m], peer.labels_) == 1.0
        assert made.records[m].n_labels == recipe.n_clusters
        assert made.records[m].seed == seed
        assert made.records[m].algorithm == f"k-means, k = {recipe.n_clusters}"
        assert made.records[m].seconds > 0


def test_nearest_centres_far_from_the_origin(rng):
    """Against distances computed one by one."""
    rows = rng.normal(size=(2500, 4)) + 1e7
    made = make(rows, BaseRecipe(n_clusters=7))
    centres = made.bases[0].centres  # type: ignore[attr-defined]
    distances = ((rows[:, None] - centres) ** 2).sum(axis=2)
    np.testing.assert_array_equal(made.labels.codes[:, 0], distances.argmin(axis=1))


def test_a_base_depends_on_its_seed_and_number_alone(few_rows):
    rows, _ = make_rows()
    together = make(rows, *KMEANS, CHAIN, PARTS).labels.codes
    # The same numbers with others around them: only recipes differ.
    others = make(rows, PARTS, KMEANS[1], CHAIN, CHAIN, PARTS).labels.codes
    np.testing.assert_array_equal(together[:, [1, 3, 4]], others[:, [1, 3, 4]])
    assert not np.array_equal(together[:, 1], make(rows, *KMEANS, seed=1).labels.codes[:, 1])
    named = make(rows, BaseRecipe(n_clusters=5, seed=base_seed(KMEANS[1], 0, 1)))
    np.testing.assert_array_equal(named.labels.codes[:, 0], together[:, 1])


def test_whole_rows_beside_a_sample_of_another_base(monkeypatch):
    """A base that takes all rows takes them in their order, whatever other bases need."""
    rows, _ = make_rows()
    alone = make(rows, *KMEANS).labels.codes
    monkeypatch.setattr(bases_module, "_CHAIN_ROWS", 80)
    beside = make(rows, *KMEANS, CHAIN).labels.codes
    np.testing.assert_array_equal(alone, beside[:, :3])


@pytest.mark.parametrize("sampled", [False, True])
def test_same_labels_from_any_kind_of_input(sampled, request, on_client):
    if sampled:
        request.getfixturevalue("few_rows")
    rows, _ = make_rows()
    recipes = (*KMEANS, CHAIN, PARTS)
    chunked = make(da.from_array(rows, chunks=(70, 4)), *recipes).labels
    np.testing.assert_array_equal(make(rows, *recipes).labels.codes, chunked.codes)


def test_in_process_is_the_same_as_on_workers(local_client, few_rows):
    rows, _ = make_rows()
    recipes = (*KMEANS, CHAIN, PARTS)
    here = make(rows, *recipes)
    with local_client.as_current():
        there = make(rows, *recipes)
    np.testing.assert_array_equal(here.labels.codes, there.labels.codes)
    for one, other in zip(here.bases[:3], there.bases[:3], strict=True):
        assert one.centres.tobytes() == other.centres.tobytes()  # type: ignore[attr-defined]


def test_threads_make_no_difference(monkeypatch):
    rows, _ = make_rows()
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("DISTCLUST_THREADS", threads)
        found.append(make(rows, *KMEANS, CHAIN).labels.codes)
    np.testing.assert_array_equal(*found)


def test_small_blocks_and_samples(monkeypatch, few_rows):
    """Samples are the rows with the smallest hashes, however rows are cut."""
    from tests import small_blocks

    rows, truth = make_rows()
    whole = make(rows, *KMEANS, CHAIN, PARTS)
    small_blocks.shrink(monkeypatch)
    cut = make(rows, *KMEANS, CHAIN, PARTS)
    np.testing.assert_array_equal(whole.labels.codes, cut.labels.codes)
    assert [record.n_rows for record in cut.records] == [100, 100, 100, 80, 100]
    assert adjusted_rand_score(cut.labels.codes[:, 0], truth) > 0.9


def test_rows_that_were_left_out_have_no_label(few_rows):
    rows, _ = make_rows()
    half = BaseRecipe(n_clusters=3, row_share=0.5)
    made = make(rows, half, half, *KMEANS)
    missing = made.labels.codes < 0
    assert 0.35 < missing[:, 0].mean() < 0.65
    assert 0.35 < (missing[:, 0] != missing[:, 1]).mean() < 0.65  # each base sees rows of its own
    assert not missing[:, 2:].any()
    new = label_rows(as_matrix(rows), made.bases, "predict")
    assert (new.codes >= 0).all()  # rows to come are all labelled
    np.testing.assert_array_equal(new.codes[~missing], made.labels.codes[~missing])


def test_columns_that_were_left_out_make_no_difference():
    rows, _ = make_rows()
    made = make(rows, PARTS, PARTS)
    columns = [base.columns for base in made.bases]
    assert [len(own) for own in columns] == [3, 3]
    assert not np.array_equal(*columns)
    changed = rows.copy()
    outside = np.setdiff1d(np.arange(D), columns[0])
    changed[:, outside] = 1e3
    np.testing.assert_array_equal(
        label_rows(as_matrix(changed), made.bases[:1], "predict").codes[:, 0],
        label_rows(as_matrix(rows), made.bases[:1], "predict").codes[:, 0],
    )
    assert made.records[0].n_columns == 3
    assert chosen_columns(5, 0.01, 0).shape == (1,)


def test_chains_find_clusters_and_label_rows_to_come(monkeypatch):
    monkeypatch.setattr(bases_module, "_CHAIN_ROWS", 120)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 360)
    rows = rng.normal(size=(360, 4)) + 12 * truth[:, None]
    made = make(rows[:300], BaseRecipe("dp", sweeps=60), CHAIN)
    assert made.records[0].algorithm == "DP mixture, sweep 60"
    assert made.records[0].n_rows == 120
    assert adjusted_rand_score(made.labels.codes[:, 0], truth[:300]) > 0.8
    new = label_rows(as_matrix(rows[300:]), made.bases, "predict").codes[:, 0]
    assert adjusted_rand_score(new, truth[300:]) > 0.8


def test_rows_of_a_chain_have_the_labels_of_its_last_sweep():
    """Not those of the most probable cluster: the base is a draw."""
    from distclust.ensembles.base_fitting import _family_of
    from distclust.mixtures.concentration import EscobarWest
    from distclust.mixtures.urn import UrnSampler
    from distclust.seeding import generator

    rows = np.random.default_rng(0).normal(size=(200, 1))
    made = make(rows, CHAIN)
    matrix = as_matrix(rows)
    sampler = UrnSampler(rows, _family_of(rows, matrix.columns, "fit"), EscobarWest(), "single")
    place, state = sampler.open(), sampler.begin(0, generator(base_seed(CHAIN, 0, 0), "chain"))
    for _ in range(CHAIN.sweeps):
        state = sampler.sweep(place, state)
    np.testing.assert_array_equal(made.labels.codes[:, 0], sampler.labels(state))
    assert (made.labels.codes != label_rows(matrix, made.bases, "predict").codes).any()


def test_chains_take_categories_and_gaps():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 80)
    frame = pd.DataFrame({"a": np.where(truth, "u", "v"), "b": truth * 6.0 + rng.normal(size=80)})
    frame.loc[3, "a"] = None
    frame.loc[5, "b"] = np.nan
    made = make(frame, BaseRecipe("dp", sweeps=10))
    assert homogeneity_score(truth, made.labels.codes[:, 0]) > 0.9


def test_sparse_rows():
    rng = np.random.default_rng(0)
    dense = rng.random((90, 20)) * (rng.random((90, 20)) < 0.3)
    one = make(sp.csr_array(dense), *KMEANS)
    other = make(dense, *KMEANS)
    for m in range(3):  # sums differ in the last bits only
        assert adjusted_rand_score(one.labels.codes[:, m], other.labels.codes[:, m]) > 0.5
        centres = one.bases[m].centres  # type: ignore[attr-defined]
        distances = ((dense[:, None] - centres) ** 2).sum(axis=2)
        np.testing.assert_array_equal(one.labels.codes[:, m], distances.argmin(axis=1))


def test_fewer_distinct_rows_than_clusters():
    rows = np.repeat(np.eye(3), 10, axis=0)
    made = make(rows, BaseRecipe(n_clusters=8))
    assert made.records[0].n_labels == 3
    assert sorted(np.bincount(made.labels.codes[:, 0])) == [10, 10, 10]


REFUSED: dict[str, tuple[Any, BaseRecipe, str]] = {
    "gaps": (np.array([[0.0], [np.nan], [1.0]]), KMEANS[0], r"row 1.*bases='dp'"),
    "categories": (pd.DataFrame({"c": ["a", "b", "a"]}), KMEANS[0], "column 'c'.*categories"),
    "few rows": (np.eye(3), BaseRecipe(n_clusters=2, row_share=1e-9), "at least 2 rows for each"),
    "sparse reals": (sp.csr_array(np.eye(3) / 3), CHAIN, "bases='kmeans'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    rows, recipe, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        make(rows, recipe)


def test_gaps_are_refused_by_their_row_in_samples(few_rows):
    rows, _ = make_rows()
    rows[271, 2] = np.nan
    with pytest.raises(InputError, match="row 271"):
        make(rows, *KMEANS)


# ---- plans -----------------------------------------------------------------------------------


def test_plans():
    kmeans = plan_bases("kmeans", 4, [2, 9], None, 100, "fit")
    assert [recipe.n_clusters for recipe in kmeans] == [2, 9, 2, 9]
    assert {recipe.kind for recipe in plan_bases("dp", 2, None, None, 100, "fit")} == {"dp"}
    shares = [recipe.column_share for recipe in plan_bases("subspace", 2, 5, None, 100, "fit")]
    assert shares == [0.5, 0.5]
    mixed = plan_bases(["dp", BaseRecipe(n_clusters=4), "kmeans"], 99, 7, None, 100, "fit")
    assert [(recipe.kind, recipe.n_clusters) for recipe in mixed] == [
        ("dp", None),
        ("kmeans", 4),
        ("kmeans", 7),
    ]


def test_spread_of_clusters():
    assert spread_clusters(None, 4, 10_000) == [8, 13, 20, 32]
    assert spread_clusters(5, 3, 10_000) == [5, 9, 15]
    assert spread_clusters(5, 3, 12) == [5, 6, 6]
    assert spread_clusters(None, 2, 4) == [2, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ward", 3, None), "'kmeans', 'dp', 'subspace'"),
        (([], 3, None), "at least one base"),
        (("kmeans", 3, [1]), "at least 2"),
        (("kmeans", 3, []), "numbers of clusters"),
        (([3], 3, None), "one of"),
    ],
)
def test_plans_that_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        plan_bases(*arguments, None, 100, "fit")


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "ward"},
        {"row_share": 0.0},
        {"column_share": 1.5},
        {"n_clusters": 1},
        {"sweeps": 0},
        {"seed": -1},
    ],
)
def test_recipes_that_are_refused(changes):
    with pytest.raises(InputError, match="BaseRecipe"):
        BaseRecipe(**changes)
