"""Reasons: contributions add up to scores, features come by weight, groups are queries."""

from __future__ import annotations

import io
import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import rich.console

from distclust import BayesianSets
from distclust.errors import InputError
from distclust.retrieval import Explanation
from tests.oracles import retrieval as oracle
from tests.retrieval.corpora import GOLDEN, draw

NAMES = [f"feature {j}" for j in range(25)]


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    rows = draw(np.random.default_rng(0), 120, 25, "falling")
    rows[50] = 0
    return rows


@pytest.fixture(scope="module")
def sets(rows) -> BayesianSets:
    return BayesianSets().fit(pd.DataFrame(rows, columns=NAMES))


def weights_of(rows: np.ndarray, query: list[int]) -> tuple[np.ndarray, float]:
    """Weight of every feature and the constant: differences of scores by Gamma functions."""
    prior = oracle.priors(rows.tolist(), 2.0, 0.0)
    asked = rows[query].tolist()
    n_features = rows.shape[1]
    nothing = oracle.gamma_form([0] * n_features, asked, prior)
    single = np.eye(n_features, dtype=int).tolist()
    return np.array([oracle.gamma_form(x, asked, prior) - nothing for x in single]), nothing


@pytest.mark.parametrize("query", [[0], [3, 4, 5], [50], list(range(120))])
@pytest.mark.parametrize("n_features", [1, 4, 100])
def test_contributions__with_others_make_the_score(query, n_features, sets, rows):
    weights, constant = weights_of(rows, query)
    found = sets.explain(query, k=15, n_features=n_features)
    for result, row in zip(found.results, found.ranking.rows.tolist(), strict=True):
        listed = [NAMES.index(name) for name, _ in result.features]
        own = np.flatnonzero(rows[row])
        assert set(listed) <= set(own.tolist())
        assert len(listed) == min(n_features, len(own))
        added = [weight for _, weight in result.features]
        np.testing.assert_allclose(added, weights[listed], atol=1e-10)
        assert np.abs(added).tolist() == sorted(np.abs(added).tolist(), reverse=True)
        left_out = weights[np.setdiff1d(own, listed)]
        assert result.others == pytest.approx(constant + left_out.sum(), abs=1e-9)
        if len(left_out):
            assert np.abs(left_out).max() <= np.abs(added).min() + 1e-10
        assert sum(added) + result.others == pytest.approx(result.log_score, abs=1e-12)


def test_features__are_those_of_the_query_by_falling_weight(sets, rows):
    query = [3, 4, 5]
    weights, _ = weights_of(rows, query)
    found = sets.explain(query, n_features=100).features
    own = np.flatnonzero(rows[query].any(axis=0))
    assert {feature.name for feature in found} == {NAMES[j] for j in own}
    listed = [NAMES.index(feature.name) for feature in found]
    np.testing.assert_allclose([feature.weight for feature in found], weights[listed], atol=1e-10)
    assert np.diff([feature.weight for feature in found]).max() <= 0
    for feature, j in zip(found, listed, strict=True):
        assert feature.in_query == pytest.approx(rows[query, j].mean())
        assert feature.in_corpus == pytest.approx(rows[:, j].mean())
    assert sets.explain(query, n_features=3).features == found[:3]


def test_group_features__are_those_of_a_query_with_the_ranked_items(sets):
    for exclude in (False, True):
        found = sets.explain([3, 4, 5], k=8, exclude_query=exclude, n_features=100)
        ranked = found.ranking.rows.tolist()
        assert bool({3, 4, 5} & set(ranked)) != exclude
        assert found.group_features == sets.explain(ranked, n_features=100).features


def test_explain__ranks_as_query_does(sets):
    for options in ({}, {"k": 3}, {"k": 7, "exclude_query": True}, {"engine": "scan"}):
        a, b = sets.explain([1, 2], **options).ranking, sets.query([1, 2], **options)
        assert a.rows.tolist() == b.rows.tolist()
        assert a.log_scores.tolist() == b.log_scores.tolist()
    assert sets.explain(iter([1, 2])).ranking.query == ("1", "2")
    with pytest.raises(InputError, match="explain: k"):
        sets.explain([1], k=0)


def test_explain__what_ranks_nobody(sets):
    found = sets.explain(range(120), exclude_query=True)
    assert (len(found.ranking), found.results, found.group_features) == (0, (), ())
    assert len(found.features) > 0


def test_explain__an_item_without_features(sets):
    found = sets.explain([50], k=2)
    assert found.features == ()
    first = found.results[0]
    assert (first.features, first.others) == ((), first.log_score)


# ---- other families ------------------------------------------------------------------------------


def counts() -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.poisson(np.exp(rng.normal(size=(60, 6))))


CORPORA: dict[str, Any] = {
    "poisson": counts(),
    "multinomial": counts(),
    "categorical": counts() % 3,
    "diagonal_gaussian": np.random.default_rng(2).normal(size=(60, 6)),
}


@pytest.mark.parametrize("name", CORPORA)
def test_families__contributions_of_all_columns_make_the_score(name):
    sets = BayesianSets(family=name).fit(CORPORA[name])
    found = sets.explain([3, 9], k=60, n_features=6)
    for result in found.results:
        added = [weight for _, weight in result.features]
        assert np.abs(added).tolist() == sorted(np.abs(added).tolist(), reverse=True)
        assert sum(added) + result.others == pytest.approx(result.log_score, abs=1e-12)
        if name != "multinomial":  # whose columns share their total
            assert result.others == pytest.approx(0.0, abs=1e-9)
    group = sets.explain(found.ranking.rows[:5].tolist(), n_features=6).features
    few = sets.explain([3, 9], k=5, n_features=6)
    assert few.group_features == group
    assert np.diff([feature.weight for feature in few.features]).max() <= 0


def test_families__features_have_their_means():
    rows = CORPORA["poisson"]
    for feature in BayesianSets(family="poisson").fit(rows).explain([3, 9]).features:
        j = int(feature.name[1:])
        assert feature.in_query == pytest.approx(rows[[3, 9], j].mean())
        assert feature.in_corpus == pytest.approx(rows[:, j].mean())


def test_categories__are_told_by_their_levels():
    table = pd.DataFrame(
        {"shape": ["round", "round", "long", "flat"] * 3, "size": ["s", "m", "s", "m"] * 3}
    )
    sets = BayesianSets(family="categorical").fit(table)
    found = sets.explain([0, 1, 4], k=2)
    shape, size = sorted(found.features, key=lambda feature: feature.name)
    assert (shape.name, shape.in_query, shape.in_corpus) == ("shape=round", 1.0, 0.5)
    assert size.name == "size=s"
    assert (size.in_query, size.in_corpus) == pytest.approx((2 / 3, 0.5))
    assert {name for name, _ in found.results[0].features} == {"shape=round", "size=s"}
    coded = BayesianSets(family="categorical").fit(
        table.apply(lambda c: c.astype("category").cat.codes)
    )
    assert coded.explain([0]).features[0].name in {"shape=2", "size=1"}


def test_missing_values__add_nothing():
    rows = CORPORA["diagonal_gaussian"].copy()
    rows[3, 1] = rows[7, :4] = np.nan
    sets = BayesianSets(family="diagonal_gaussian").fit(rows)
    found = sets.explain([3, 9], k=60, n_features=6)
    assert all(math.isfinite(feature.weight) for feature in found.features)
    by_id = {result.id: dict(result.features) for result in found.results}
    assert by_id[3]["x1"] == 0.0
    assert by_id[7]["x0"] == by_id[7]["x3"] == 0.0
    assert math.isfinite(sets.explain([3], n_features=6).features[0].weight)


# ---- as text and JSON ----------------------------------------------------------------------------


def shown(value: Any) -> str:
    console = rich.console.Console(width=100, record=True, file=io.StringIO())
    console.print(value)
    return console.export_text()


def test_explanation__is_told_in_text_tables_and_json():
    table = pd.DataFrame(GOLDEN, index=["a", "b [x]", "c", "d", "e"], columns=list("pqrs"))
    sets = BayesianSets().fit(table)
    found = sets.explain(["a", "b [x]"], k=3)
    assert isinstance(found, Explanation)
    assert "Ranking for a, b [x]" in repr(found)
    assert "1.253" in repr(found)
    text = shown(found)
    for part in ("b [x]", "p +1.25", "1.048", "0.4", "Features of the query"):
        assert part in text
    told = json.loads(json.dumps(found.to_dict()))
    assert [entry["id"] for entry in told["results"]] == ["a", "b [x]", "c"]
    assert [entry["rank"] for entry in told["results"]] == [1, 2, 3]
    assert told["features"][0] == {
        "name": "p",
        "weight": pytest.approx(1.252763, abs=1e-6),
        "in_query": 1.0,
        "in_corpus": 0.4,
    }
    assert told["results"][0]["features"][0]["name"] == "p"
    assert told["query"] == ["a", "b [x]"]


def test_ranking__is_told_in_text_tables_and_json():
    sets = BayesianSets().fit(GOLDEN)
    found = sets.query([0, 1], k=4)
    assert len(found) == 4
    assert [name for name, _ in found] == [0, 1, 2, 4]
    assert "1.253" in repr(found)
    assert "log score" in shown(found)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["results"][3] == {
        "rank": 4,
        "id": 4,
        "row": 4,
        "log_score": pytest.approx(-1.185624, abs=1e-6),
    }
    assert (told["engine"], told["reason"]) == ("scan", "there is no index")
    long = BayesianSets().fit(np.eye(40)).query(range(40), k=40)
    assert "... 20 more" in repr(long)
    assert len(long.title) == 72
