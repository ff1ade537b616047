"""Co-association, neighbour graphs and confidence against loops over pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distclust import engine
from distclust.errors import CapacityError, InputError
from distclust.mixtures import similarity as module
from distclust.mixtures.similarity import (
    coassignment,
    coassociation,
    confidence,
    neighbour_graph,
)
from tests.oracles import consensus as oracle


def make_labels(
    rng: np.random.Generator, n_rows: int, n_bases: int, n_labels: int, missing: float = 0.0
) -> np.ndarray:
    labels = rng.integers(0, n_labels, (n_rows, n_bases))
    labels[rng.random(labels.shape) < missing] = -1
    return labels


# ---- dense --------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0.0, 0.4])
@pytest.mark.parametrize("kind", [np.int8, np.int64])
def test_coassociation__equals_the_definition(missing, kind, rng):
    labels = make_labels(rng, 12, 5, 3, missing).astype(kind)
    labels[3] = labels[7] = -1 if missing else 2
    found = coassociation(labels)
    for i, first in enumerate(labels):
        for j, second in enumerate(labels):
            agreed, observed = oracle.coassociation(first, second)
            assert found.counts[i, j] == observed
            assert found.values[i, j] == np.float32(agreed / observed if observed else 0)


def test_coassociation__of_chosen_rows_in_their_order(rng, monkeypatch):
    monkeypatch.setattr(module, "_ROWS_A_BLOCK", 3)
    labels = make_labels(rng, 20, 4, 3, 0.2)
    rows = [11, 3, 3, 19, 0]
    whole, some = coassociation(labels), coassociation(labels, rows)
    assert np.array_equal(some.values, whole.values[np.ix_(rows, rows)])
    assert np.array_equal(some.counts, whole.counts[np.ix_(rows, rows)])


def test_coassociation__refuses_what_does_not_fit_unless_asked(rng):
    labels = make_labels(rng, 30, 2, 3)
    with pytest.raises(CapacityError, match=r"at most 20 rows.*30 rows.*neighbour_graph"):
        coassociation(labels, max_cells=400)
    assert coassociation(labels, range(20), max_cells=400).values.shape == (20, 20)
    assert coassociation(labels, max_cells=None).values.shape == (30, 30)
    with pytest.raises(CapacityError, match="GB"):
        coassociation(np.zeros((20_000, 1), np.int8))


@pytest.mark.parametrize(
    ("labels", "rows", "message"),
    [
        (np.array([[0, -2]]), None, "at least -1"),
        (np.array([0, 1]), None, "whole numbers"),
        (np.zeros((3, 2)), None, "whole numbers"),
        (np.zeros((3, 0), int), None, "whole numbers"),
        (np.zeros((3, 2), int), [3], "from 0 to 2"),
        (np.zeros((3, 2), int), [-1], "from 0 to 2"),
        (np.zeros((3, 2), int), [0.5], "numbers of rows"),
    ],
)
def test_coassociation__bad_input(labels, rows, message):
    with pytest.raises(InputError, match=message):
        coassociation(labels, rows)


def test_coassignment__share_of_draws(rng):
    draws = rng.integers(-2, 3, (9, 15)).astype(np.int8)  # any names, also negative ones
    rows = [4, 2, 14]
    found = coassignment(draws, rows)
    wanted = [[np.mean(draws[:, i] == draws[:, j]) for j in rows] for i in rows]
    assert found == pytest.approx(np.array(wanted))
    with pytest.raises(CapacityError):
        coassignment(draws, max_cells=100)


# ---- neighbours ---------------------------------------------------------------------------------


def check_graph(labels: np.ndarray, n_neighbours: int) -> None:
    found = neighbour_graph(labels, n_neighbours)
    assert found.shape == (len(labels), len(labels))
    assert found.has_canonical_format
    for i in range(len(labels)):
        wanted = oracle.neighbours(labels.tolist(), i, n_neighbours)
        start, stop = found.indptr[i : i + 2]
        got = dict(zip(found.indices[start:stop], found.data[start:stop], strict=True))
        assert got == {j: np.float32(value) for j, value in wanted.items()}


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize(
    ("n_bases", "n_labels", "n_neighbours"),
    [(1, 3, 4), (2, 2, 40), (5, 3, 4), (10, 2, 3), (10, 8, 6), (12, 40, 5)],
)
def test_neighbour_graph__best_of_all_rows(missing, n_bases, n_labels, n_neighbours, rng):
    check_graph(make_labels(rng, 45, n_bases, n_labels, missing), n_neighbours)


@given(data=st.data())
def test_neighbour_graph__small_cases(data):
    n_bases = data.draw(st.integers(1, 6))
    row = st.lists(st.integers(data.draw(st.sampled_from([-1, 0])), 2), min_size=n_bases)
    rows = data.draw(st.lists(row.map(lambda r: r[:n_bases]), min_size=1, max_size=9))
    check_graph(np.array(rows), data.draw(st.integers(1, 10)))


def test_neighbour_graph__clustered_labels_with_many_identical_rows(rng, monkeypatch):
    monkeypatch.setattr(module, "_GROUPS_A_BLOCK", 3)
    monkeypatch.setattr(module, "_ROWS_EXPANDED", 16)
    bases = rng.integers(0, 9, (4, 8))
    labels = bases[rng.integers(0, 4, 60)]
    flips = rng.random(labels.shape) < 0.08
    check_graph(np.where(flips, rng.integers(0, 9, labels.shape), labels), 12)


def test_neighbour_graph__ties_go_to_the_lowest_rows():
    labels = np.zeros((6, 3), int)
    found = neighbour_graph(labels, 2).toarray()
    assert [np.flatnonzero(row).tolist() for row in found] == [
        [1, 2],
        [0, 2],
        [0, 1],
        [0, 1],
        [0, 1],
        [0, 1],
    ]


def test_neighbour_graph__rows_with_nothing_in_common_have_no_neighbours():
    labels = np.array([[0, 0], [1, 1], [-1, -1], [0, 2]])
    found = neighbour_graph(labels, 3).toarray()
    wanted = np.zeros((4, 4))
    wanted[0, 3] = wanted[3, 0] = 0.5
    assert np.array_equal(found, wanted)


def test_neighbour_graph__looks_at_few_groups_only(rng, monkeypatch):
    """Complete labels are searched by parts: most groups are settled before single bases."""
    middles = rng.integers(0, 50, (20, 9))
    labels = np.repeat(middles, 10, axis=0)
    labels[np.arange(200), rng.integers(0, 9, 200)] = rng.integers(50, 90, 200)
    asked = []
    plain = module._Buckets.best_rows

    def spy(buckets, groups, n_best, wanted):
        asked.append((buckets.numbers.shape[1], wanted.size))
        return plain(buckets, groups, n_best, wanted)

    monkeypatch.setattr(module._Buckets, "best_rows", spy)
    check_graph(labels, 3)
    assert asked[-1][0] < 9
    assert {n_parts for n_parts, _ in asked} >= {1, 2, 3}


def test_neighbour_graph__same_bits_whatever_the_threads(rng, monkeypatch):
    monkeypatch.setattr(module, "_GROUPS_A_BLOCK", 4)
    labels = make_labels(rng, 60, 6, 4)
    found = []
    for threads in (1, 3):
        with engine.connect("threads", threads=threads):
            graph = neighbour_graph(labels, 5)
            found.append((graph.indices.tobytes(), graph.data.tobytes()))
    assert found[0] == found[1]


def test_neighbour_graph__labels_of_a_wide_range():
    labels = np.array([[10**9, 0], [10**9, 5], [3, 10**9], [3, 5]])
    check_graph(labels, 2)


def test_neighbour_graph__bad_input():
    with pytest.raises(InputError, match="n_neighbours"):
        neighbour_graph(np.zeros((3, 2), int), 0)
    with pytest.raises(InputError, match="at least -1"):
        neighbour_graph(np.array([[0], [-7]]), 1)


# ---- confidence ---------------------------------------------------------------------------------


def test_confidence__mean_share_over_the_members(rng, monkeypatch):
    monkeypatch.setattr(module, "_DRAWS_A_BLOCK", 2)
    draws = rng.integers(0, 4, (7, 16))
    labels = rng.integers(0, 3, 16)
    labels[5] = 9  # alone
    draws[:3, 5] = 8
    found = confidence(labels, draws)
    wanted = [oracle.confidence(labels, draws, i) for i in range(16)]
    assert found == pytest.approx(wanted, abs=1e-12)
    assert found[5] == pytest.approx(3 / 7)


def test_confidence__many_clusters(rng):
    """More cells than rows: they are counted by sorting."""
    draws = np.array([rng.permutation(np.arange(80) // 2) for _ in range(3)])
    labels = rng.permutation(np.arange(80) // 2)
    draws[1] = labels
    assert 40 * 40 > 4 * 80 + 1024
    wanted = [oracle.confidence(labels, draws, i) for i in range(80)]
    assert confidence(labels, draws) == pytest.approx(wanted, abs=1e-12)


def test_confidence__weights_are_multiplicities(rng):
    draws, labels = rng.integers(0, 3, (6, 10)), rng.integers(0, 3, 10)
    counts = rng.integers(1, 4, 10)
    rows = np.repeat(np.arange(10), counts)
    wanted = confidence(labels[rows], draws[:, rows])
    first = np.searchsorted(rows, np.arange(10))
    assert confidence(labels, draws, counts) == pytest.approx(wanted[first], abs=1e-12)


def test_confidence__certain_and_uncertain_rows():
    labels = np.array([0, 0, 0, 1, 1])
    draws = np.array([[0, 0, 0, 1, 1], [0, 0, 1, 1, 1]])
    assert confidence(labels, draws).tolist() == [0.75, 0.75, 0.5, 1.0, 1.0]


def test_confidence__bad_input():
    with pytest.raises(InputError, match="4 rows"):
        confidence(np.zeros(4, int), np.zeros((2, 3), int))
    with pytest.raises(InputError, match="row_weights"):
        confidence(np.zeros(3, int), np.zeros((2, 3), int), [1, 2, -1])
