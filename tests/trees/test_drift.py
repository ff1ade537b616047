"""The test for drift: how often it is wrong, what it sees, and what it does not mind."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from distclust.engine import as_matrix
from distclust.families import Family
from distclust.trees.data import first_look, resolve_family
from distclust.trees.drift import (
    FEWEST,
    Baseline,
    Moments,
    find_drift,
    new_scores,
    z_of_nodes,
)
from distclust.trees.structure import Structure
from distclust.trees.sweeping import Clusters

N_LEAVES = 400


def family_of(name: str, rows: np.ndarray) -> Family:
    matrix = as_matrix(rows)
    return resolve_family(name, matrix, first_look(matrix), "test")[0]


class Stationary:
    """Leaves whose new rows are drawn as their old ones were."""

    def __init__(self, name: str, n_features: int, seed: int) -> None:
        self.name = name
        self.rng = np.random.default_rng(seed)
        self.means = self.rng.normal(size=(N_LEAVES, n_features)) * 5
        self.chances = self.rng.uniform(0.02, 0.98, size=(N_LEAVES, n_features))

    def draw(self, n_each: int) -> tuple[np.ndarray, np.ndarray]:
        leaves = np.repeat(np.arange(N_LEAVES), n_each)
        if self.name == "bernoulli":
            chances = self.chances[leaves]
            return (self.rng.random(chances.shape) < chances).astype(float), leaves
        means = self.means[leaves]
        return means + self.rng.normal(size=means.shape), leaves

    def compare(self, n_old: int, n_new: int, *, leave_out: bool = True) -> np.ndarray:
        """Return z of every leaf, and of all of them together."""
        old, own = self.draw(n_old)
        new, theirs = self.draw(n_new)
        family = family_of(self.name, old)
        stats = family.accumulate(old, own, N_LEAVES)
        clusters = Clusters(family, stats, np.zeros(N_LEAVES), 0.0)
        scores = clusters.own_densities(old, own)
        if not leave_out:
            scores = new_scores(family, old, own, stats)
        fresh = new_scores(family, new, theirs, stats)
        structure = Structure.from_children(N_LEAVES, [range(N_LEAVES)])
        return z_of_nodes(
            structure, Moments.of(scores, own, N_LEAVES), Moments.of(fresh, theirs, N_LEAVES)
        )


@pytest.mark.parametrize(
    ("name", "kind"),
    [("bernoulli", "dense"), ("bernoulli", "sparse"), ("diagonal_gaussian", "dense")],
)
def test_new_scores__are_log_predictives_of_the_rows_own_leaves(name, kind):
    stationary = Stationary(name, n_features=7, seed=3)
    old, own = stationary.draw(20)
    family = family_of(name, old)
    stats = family.accumulate(old, own, N_LEAVES)
    new, _ = stationary.draw(3)
    leaves = stationary.rng.permutation(len(new)) % (N_LEAVES // 2)  # some leaves have none
    expected = [
        family.log_marginal(stats[[leaf]] + family.statistics(row[None])).item()
        - family.log_marginal(stats[[leaf]]).item()
        for row, leaf in zip(new, leaves, strict=True)
    ]
    if kind == "sparse":
        new = scipy.sparse.csr_array(new)
    np.testing.assert_allclose(new_scores(family, new, leaves, stats), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["bernoulli", "diagonal_gaussian"])
@pytest.mark.parametrize("n_features", [2, 30])
@pytest.mark.parametrize(("n_old", "n_new"), [(20, 8), (200, 8), (200, 60)])
def test_drift__rows_that_did_not_change_rarely_look_so(name, n_features, n_old, n_new):
    z = Stationary(name, n_features, seed=11).compare(n_old, n_new)
    # A normal variable is above 4 once in 30,000 times; few or skewed scores cost some of it.
    assert (z[:-1] > 4.0).mean() <= 0.005
    assert abs(z[-1]) < 4.0  # of all leaves: new rows are not worse on the whole
    assert (z[:-1] > 2.0).mean() <= 0.06  # 0.023 of a normal variable


def test_drift__without_leaving_rows_out_new_rows_would_look_worse():
    corpus = Stationary("diagonal_gaussian", 30, seed=11)
    assert corpus.compare(20, 8, leave_out=False)[-1] > 20.0


def moments(*groups: tuple[int, float]) -> Moments:
    """Return scores of unit variance with such numbers and means."""
    n = np.array([count for count, _ in groups], dtype=float)
    mean = np.array([value for _, value in groups])
    return Moments(n, mean, np.maximum(n - 1.0, 0.0))


def test_z__is_the_difference_in_standard_errors():
    structure = Structure.from_merges(np.array([[0, 1]]))
    old, new = moments((100, -3.0), (50, -5.0)), moments((25, -4.0), (10, -5.0))
    z = z_of_nodes(structure, old, new)
    assert z[0] == pytest.approx(1.0 / np.sqrt(1 / 100 + 1 / 25))
    assert z[1] == pytest.approx(0.0)
    error = np.sqrt(25**2 * (1 / 100 + 1 / 25) + 10**2 * (1 / 50 + 1 / 10))
    assert z[2] == pytest.approx(25.0 / error)


def test_z__another_mix_of_clusters_is_no_drift():
    structure = Structure.from_merges(np.array([[0, 1]]))
    old, new = moments((1000, -3.0), (10, -50.0)), moments((10, -3.0), (1000, -50.0))
    assert abs(z_of_nodes(structure, old, new)).max() < 1e-9


def test_z__few_rows_are_not_compared():
    structure = Structure.from_merges(np.array([[0, 1]]))
    old = moments((100, 0.0), (100, 0.0))
    z = z_of_nodes(structure, old, moments((FEWEST - 1, -9.0), (FEWEST - 2, -9.0)))
    assert np.isnan(z[:2]).all()
    assert z[2] > 4.0  # together they are enough


def test_find_drift__reopens_the_lowest_nodes():
    structure = Structure.from_merges(np.array([[0, 1], [2, 3], [4, 5]]))
    old = moments(*[(1000, 0.0)] * 4)
    latest = moments((50, -3.0), (50, 0.0), (7, -3.0), (7, -3.0))
    drift = find_drift(structure, Baseline(np.full((4, 1), 1e3), old, latest), latest, 4.0)
    assert drift.reopened.tolist() == [0, 5]


def test_find_drift__leaves_without_old_rows_are_tested_once_they_grow():
    structure = Structure.from_merges(np.array([[0, 1]]))
    sizes = np.array([[3.0], [1000.0]])
    old, none = moments((3, 0.0), (256, 0.0)), Moments.none(2)
    grown = moments((20, 0.0), (20, 0.0))
    assert find_drift(structure, Baseline(sizes, old, none), none, 4.0).reopened.tolist() == []
    drift = find_drift(structure, Baseline(sizes, old, grown), grown, 4.0)
    assert drift.reopened.tolist() == [0]
    assert drift.is_outgrown.tolist() == [True, False, False]


def test_find_drift__sees_a_slow_change_by_all_rows_that_came():
    structure = Structure.from_merges(np.empty((0, 2), dtype=np.int64))
    old, latest = moments((10_000, 0.0)), moments((10, -0.5))
    since = moments((400, -0.5))
    assert find_drift(structure, Baseline(np.ones((1, 1)), old, latest), latest, 4.0).z[0] < 2.0
    assert find_drift(structure, Baseline(np.ones((1, 1)), old, since), latest, 4.0).z[0] > 9.0


def test_find_drift__a_node_without_new_rows_is_left_alone():
    structure = Structure.from_merges(np.array([[0, 1]]))
    old, since = moments((1000, 0.0), (1000, 0.0)), moments((50, -3.0), (50, 0.0))
    baseline = Baseline(np.full((2, 1), 1e3), old, since)
    for new, reopened in (((0, 0), []), ((0, 9), [2]), ((1, 0), [0])):
        latest = moments(*((n, 0.0) for n in new))
        assert find_drift(structure, baseline, latest, 4.0).reopened.tolist() == reopened


def test_find_drift__what_drifted_with_a_reopened_node_is_answered():
    structure = Structure.from_merges(np.array([[0, 1], [2, 3], [4, 5]]))
    old = moments(*[(1000, 0.0)] * 4)
    steep, flat = (50, -3.0), (50, 0.0)
    for leaves, answered in (
        ((steep, (3, -3.0), flat, flat), [True] * 4),  # the root drifted, too
        ((steep, flat, (3000, 0.5), flat), [True, True, False, False]),  # but for better ones
        ((flat, flat, flat, flat), [False] * 4),
    ):
        latest = moments(*leaves)
        drift = find_drift(structure, Baseline(np.full((4, 1), 1e3), old, latest), latest, 4.0)
        assert drift.is_answered.tolist() == answered
        kept = latest.without(drift.is_answered)
        assert kept.n.tolist() == np.where(answered, 0.0, latest.n).tolist()


def test_moments__of_parts_add_up():
    rng = np.random.default_rng(0)
    scores, groups = rng.normal(size=500) * 3 + 7, rng.integers(0, 4, 500)
    parts = [Moments.of(scores[i : i + 90], groups[i : i + 90], 5) for i in range(0, 500, 90)]
    total = Moments.none(5)
    for part in parts:
        total = total + part
    for k in range(4):
        own = scores[groups == k]
        assert total.n[k] == len(own)
        assert total.mean[k] == pytest.approx(own.mean())
        assert total.variance[k] == pytest.approx(own.var(ddof=1))
    assert total.n[4] == total.variance[4] == 0
