"""Parts of the benchmarks of Bayesian Sets on real data, on data of hand size."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from benchmarks import sets_data, sets_lists, sets_quality
from distclust.retrieval.sets import BayesianSets


def planted(seed: int = 0) -> sets_data.Labelled:
    """Two classes of 30 with features of their own."""
    random = np.random.default_rng(seed)
    y = np.repeat([0, 1], 30)
    chances = np.where(np.arange(12) // 6 == y[:, None], 0.6, 0.2)
    binary = scipy.sparse.csr_array((random.random((60, 12)) < chances).astype(np.uint8))
    return sets_data.Labelled("planted", "lists", binary, sets_data.one_class_each(y))


def test_draw_queries__takes_items_of_one_class_once_each() -> None:
    corpus = planted()
    queries = sets_quality.draw_queries(corpus.classes, 50)
    for rows, kind in zip(queries.rows, queries.classes, strict=True):
        assert len(set(rows.tolist())) == sets_quality.QUERY_ITEMS
        assert queries.is_right[rows, kind].all()
    assert set(queries.classes.tolist()) == {0, 1}
    assert queries.by_chance == pytest.approx(27 / 57)


def test_draw_queries__leaves_out_classes_that_cannot_fill_ten_places() -> None:
    classes = sets_data.one_class_each([0] * 12 + [1] * 13)
    assert set(sets_quality.draw_queries(classes, 20).classes.tolist()) == {1}


def test_by_cosine__ranks_by_the_angle_to_the_mean_without_the_query() -> None:
    corpus = planted()
    queries = sets_quality.draw_queries(corpus.classes, 10)
    rows = corpus.binary.toarray().astype(float)
    lengths = np.linalg.norm(rows, axis=1)
    for query, found in zip(
        queries.rows, sets_quality.by_cosine(corpus.binary, queries), strict=True
    ):
        mean = rows[query].mean(axis=0)
        cosines = np.divide(rows @ mean, lengths, out=np.zeros(60), where=lengths > 0)
        others = np.delete(cosines, query)
        np.testing.assert_allclose(cosines[found], np.sort(others)[::-1][:10], atol=1e-12)
        assert not set(found.tolist()) & set(query.tolist())


def test_by_peer__gives_our_scores_and_our_ten() -> None:
    pytest.importorskip(sets_quality.PEER)
    corpus = planted()
    queries = sets_quality.draw_queries(corpus.classes, 10)
    ranked = sets_quality.by_peer(corpus.binary, 2.0, queries)
    assert ranked is not None
    sets = BayesianSets().fit(corpus.binary)
    ours, scores = sets_quality.by_sets(sets, queries)
    for theirs, all_scores, rows, own in zip(*ranked, ours, scores, strict=True):
        np.testing.assert_allclose(all_scores[rows], own, atol=1e-10)
        np.testing.assert_allclose(all_scores[theirs], own, atol=1e-10)


def test_shuffled__moves_rows_and_classes_together() -> None:
    corpus = planted()
    moved = sets_quality.shuffled(corpus)
    assert not (moved.binary != corpus.binary[sets_order(60)]).nnz
    assert (moved.classes.toarray() == corpus.classes.toarray()[sets_order(60)]).all()
    assert (moved.classes.toarray() != corpus.classes.toarray()).any()


def sets_order(n: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(n)


def test_verdict__counts_differences_beyond_two_standard_errors() -> None:
    rows = [{"name": name} for name in "abcd"]
    differences = [(0.05, 0.02), (0.03, 0.02), (0.0, 0.0), (-0.05, 0.02)]
    text = sets_quality.verdict("Ours", differences, rows)
    assert "better on 1, as good on 2 (b, c), worse on 1 (d)" in text


def test_agreement__tells_order_from_membership() -> None:
    assert "in order" in sets_lists.agreement(["a", "b"], ["a", "b"])
    assert "in another order" in sets_lists.agreement(["b", "a"], ["a", "b"])
    assert sets_lists.agreement(["a", "c"], ["a", "b"]) == "1 of the 2"


def test_binarised__published_rule_is_above_twice_the_mean_share() -> None:
    counts = np.array([[4, 0, 4], [1, 7, 0], [2, 2, 4], [0, 0, 0], [1, 1, 30]])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    expected = shares > 2 * shares.mean(axis=0)
    found = sets_data.binarised(
        sets_data.shares(scipy.sparse.csr_array(counts)), sets_data.PUBLISHED
    )
    assert expected.any()
    assert (found.toarray() == expected).all()


def test_named__ids_that_occur_twice_get_a_number() -> None:
    corpus = sets_data.named(np.eye(3), ["a", "b", "a"], ["x", "y", "z"])
    assert corpus.ids == ["a", "b", "a #2"]
    assert corpus.features == ["x", "y", "z"]
