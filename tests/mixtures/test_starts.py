"""Where chains start."""

from __future__ import annotations

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
    for chain, init in enumerate(("kmeans", "single", "groups", "singletons", "kmeans")):
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
