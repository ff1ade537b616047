"""Levels: where they come from, and codes that are none."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from distclust.errors import InputError
from distclust.families import Categorical
from tests.oracles import families as oracle


def test_prepare__levels_of_the_table_count_even_unseen() -> None:
    columns = (
        oracle.PlainColumn("colour", "category", ("blue", "green", "red")),
        oracle.PlainColumn("code"),
    )
    rows = np.array([[0.0, 4.0], [1.0, 0.0]])
    family = oracle.resolved(Categorical(), rows, columns)
    assert family.n_levels == (3, 5)


@pytest.mark.parametrize(
    "family",
    [
        Categorical(alpha=2.0, n_levels=[3, 3]),
        Categorical(alpha=2.0, n_levels=3, n_features=2),
        Categorical(alpha=[2.0, 2.0, 2.0], n_levels=[3, 3]),
        Categorical(alpha=[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]),
    ],
)
def test_constructor__the_ways_to_say_alpha_agree(family: Categorical) -> None:
    np.testing.assert_array_equal(family.alpha, np.full(6, 2.0))
    assert family.n_levels == (3, 3)
    assert family.is_resolved


@pytest.mark.parametrize("code", [3.0, -1.0])
def test_codes__outside_the_levels_are_refused_everywhere(code: float) -> None:
    family = Categorical(alpha=1.0, n_levels=[2, 3])
    rows = np.array([[1.0, code]])
    stats = np.zeros((1, family.n_statistics))
    for block in (rows, sparse.csr_array(rows)):
        with pytest.raises(InputError, match="codes from 0 to 2 in column 1"):
            family.accumulate(block, [0], 1)
        with pytest.raises(InputError, match="codes from 0 to 2 in column 1"):
            family.log_predictive(block, stats)
    with pytest.raises(InputError, match="codes from 0 to 2 in column 1"):
        family.entry_log_predictive(1, code, stats)


def test_feature_means__categories_have_none() -> None:
    family = Categorical(alpha=1.0, n_levels=[3, 4])
    stats = family.accumulate(np.array([[1, 2], [0, 3]]), [0, 0], 1)
    assert np.isnan(family.feature_means(stats)).all()


def test_affine__scores_indicators() -> None:
    family = Categorical(alpha=[[0.5, 2.0], [1.0, 3.0, 0.2]])
    rows = np.array([[1.0, 2.0], [0.0, np.nan]])
    stats = family.statistics(np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]))
    weights, constants = family.affine(stats)
    actual = family.indicators(rows).toarray() @ weights + constants
    np.testing.assert_allclose(actual, family.log_predictive(rows, stats), rtol=1e-13)
