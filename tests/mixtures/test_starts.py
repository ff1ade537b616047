"""Where chains start."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import sparse

from distclust.errors import InputError
from distclust.families import Bernoulli, DiagonalGaussian
from distclust.mixtures.starts import STARTS, check_start, compact, starting_labels
from tests.families.conftest import CASES, make
from tests.oracles import families as family_oracle


def is_compact(labels: np.ndarray) -> bool:
    return labels.dtype == np.int32 and set(labels.tolist()) == set(range(labels.max() + 1))


@pytest.mark.parametrize("init", STARTS)
@pytest.mark.parametrize("case", CASES)
def test_every_start_has_compact_labels(init: str, case: str) -> None:
    example = make(case, 0)
    for chain in range(5):
        for n_rows in (1, 2, len(example.rows)):
            rows, rng = example.rows[:n_rows], np.random.default_rng(chain)
            labels = starting_labels(init, chain, rows, example.family, rng)
            assert labels.shape == (n_rows,)
            assert is_compact(labels)


def test_starts_are_what_they_say() -> None:
    example = make("diagonal", 0)
    n_rows = len(example.rows)

    def labels(init: str, chain: int = 0) -> np.ndarray:
        rng = np.random.default_rng(1)
        return starting_labels(init, chain, example.rows, example.family, rng)

    assert not labels("single").any()
    np.testing.assert_array_equal(labels("singletons"), np.arange(n_rows))
    for chain, init in enumerate(("joined", "single", "groups", "singletons", "joined")):
        np.testing.assert_array_equal(labels("mixed", chain), labels(init))


def test_groups_are_found_in_the_terms_of_the_family() -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 40)
    centres = np.array([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]])
    rows = centres[truth] + rng.normal(size=(120, 2))
    family = family_oracle.resolved(DiagonalGaussian(), rows)
    labels = starting_labels("kmeans", 0, rows, family, rng)
    for group in np.unique(labels):
        assert len(set(truth[labels == group].tolist())) == 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_groups_are_joined_while_the_partition_gets_more_probable(case: str, seed: int) -> None:
    """The same by a recursion over partitions, each evaluated from its rows."""
    example = make(case, seed)

    def labels(init: str) -> list[int]:
        rng = np.random.default_rng(seed)
        return starting_labels(init, 0, example.rows, example.family, rng).tolist()

    def log_joint(found: list[int]) -> float:
        stats = example.family.accumulate(example.rows, np.array(found), max(found) + 1)
        sizes = [found.count(group) for group in sorted(set(found))]
        marginals = example.family.log_marginal(stats[np.bincount(found) > 0])
        return sum(map(math.lgamma, sizes)) + float(marginals.sum())

    expected = labels("kmeans")
    while True:
        unions = [
            [left if group == right else group for group in expected]
            for left, right in itertools.combinations(sorted(set(expected)), 2)
        ]
        best = max(unions, key=log_joint, default=expected)
        if log_joint(best) <= log_joint(expected) + 1e-9:
            break
        expected = best
    np.testing.assert_array_equal(labels("joined"), compact(np.array(expected)))


def test_groups_around_the_same_cluster_are_joined() -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 400)
    rows = 20.0 * np.eye(3)[truth] + rng.normal(size=(1200, 3))
    family = family_oracle.resolved(DiagonalGaussian(), rows)
    found = starting_labels("kmeans", 0, rows, family, np.random.default_rng(1))
    joined = starting_labels("joined", 0, rows, family, np.random.default_rng(1))
    assert found.max() + 1 > 5
    np.testing.assert_array_equal(joined, compact(truth))


def test_weights_count_and_sparse_rows_start_alike() -> None:
    rng = np.random.default_rng(0)
    rows = (rng.random((50, 12)) < 0.3).astype(float)
    family = family_oracle.resolved(Bernoulli(), rows)
    starts = [
        starting_labels("kmeans", 0, block, family, np.random.default_rng(2), weights)
        for block in (rows, sparse.csr_array(rows))
        for weights in (None, np.ones(50), np.where(np.arange(50) < 5, 100.0, 1.0))
    ]
    for k in range(3):
        np.testing.assert_array_equal(starts[k], starts[k + 3])
    np.testing.assert_array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])


def test_many_rows_never_start_alone() -> None:
    rows = np.random.default_rng(0).normal(size=(1500, 2))
    family = family_oracle.resolved(DiagonalGaussian(), rows)
    labels = starting_labels("mixed", 3, rows, family, np.random.default_rng(0))
    assert 10 < labels.max() + 1 <= 50


def test_labels_keep_their_order() -> None:
    np.testing.assert_array_equal(compact(np.array([7, 3, 7, 9])), [1, 0, 1, 2])


def test_an_unknown_start_is_refused() -> None:
    with pytest.raises(InputError, match="single"):
        check_start("random", "init")
