"""A user's own family: two methods in one file, everything else by default."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import integrate, sparse
from scipy.special import betaln

from distclust.errors import InputError
from distclust.families import (
    Family,
    Hyperparameter,
    Product,
    dense_rows,
    family_from_dict,
    family_named,
    register_family,
)
from distclust.families.bernoulli import Bernoulli
from tests.oracles import families as oracle


@register_family
@dataclass(frozen=True, eq=False, repr=False)
class Geometric(Family):
    """Failures before the first success, whose probability is Beta(alpha, beta)."""

    name = "geometric"
    positive = ("alpha", "beta")

    alpha: Hyperparameter = 1.0
    beta: Hyperparameter = 1.0

    def statistics(self, block):
        rows = dense_rows(block)
        return np.column_stack([np.ones(len(rows)), rows])

    def log_marginal(self, stats):
        n, total = stats[:, :1], stats[:, 1:]
        logs = betaln(self.alpha + n, self.beta + total) - betaln(self.alpha, self.beta)
        return logs.sum(axis=1)


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).geometric(0.3, (7, 2)).astype(float) - 1.0


@pytest.fixture
def family(rows: np.ndarray) -> Family:
    return oracle.resolved(Geometric(alpha=2.0), rows)


def test_user_family__is_resolved_by_default(family: Family) -> None:
    assert family.is_resolved
    assert family.n_statistics == 3
    np.testing.assert_array_equal(family.alpha, [2.0, 2.0])
    assert repr(Geometric(alpha=2)) == "Geometric(alpha=2.0)"


def test_user_family__marginal_is_the_integral(rows: np.ndarray) -> None:
    family = Geometric(2.0, 3.0, n_features=1)
    x = rows[:, :1]

    def joint(p: float) -> float:
        prior = 12.0 * p * (1 - p) ** 2
        return float(prior * np.prod(p * (1 - p) ** x))

    stats = family.accumulate(x, [0] * 7, 1)
    expected = np.log(integrate.quad(joint, 0, 1, epsabs=0)[0])
    assert family.log_marginal(stats)[0] == pytest.approx(expected, rel=1e-8)


def test_user_family__predictive_sums_to_one(family: Family, rows: np.ndarray) -> None:
    one = Geometric(2.0, 3.0, n_features=1)
    stats = one.accumulate(rows[:, :1], [0, 0, 0, 1, 1, 1, -1], 2)
    outcomes = np.arange(3000.0)[:, None]
    np.testing.assert_allclose(np.exp(one.log_predictive(outcomes, stats)).sum(axis=0), 1.0, 1e-6)


def test_user_family__defaults_agree_with_each_other(family: Family, rows: np.ndarray) -> None:
    stats = family.statistics(rows)
    pairs = family.log_marginal_pairs(stats, 0, [3, 1])
    np.testing.assert_array_equal(pairs, family.log_marginal(stats[0] + stats[[3, 1]]))
    np.testing.assert_allclose(family.gradient(stats), oracle.differences(family, stats), 1e-5)
    face = family.row_functions()
    group = np.zeros(3)
    for row in rows:
        face.add(group, row, *family.row_parameters())
    np.testing.assert_allclose(group, stats.sum(axis=0))
    expected = family.log_predictive(rows[:1], group[None])[0, 0]
    assert face.log_predictive(rows[0], group, *family.row_parameters()) == expected
    face.remove(group, rows[0], *family.row_parameters())
    np.testing.assert_array_equal(group, stats[1:].sum(axis=0))


def test_user_family__sparse_weights_and_labels_work(family: Family, rows: np.ndarray) -> None:
    labels, weights = [0, 1, -1, 1, 0, 0, 1], np.arange(7.0)
    dense = family.accumulate(rows, labels, 2, weights)
    other = family.accumulate(sparse.csr_array(rows), labels, 2, weights)
    np.testing.assert_array_equal(dense, other)
    assert dense[0, 0] == 0 + 4 + 5


def test_user_family__saves_loads_and_joins_products(family: Family, rows: np.ndarray) -> None:
    meta, arrays = family.to_dict()
    assert family_from_dict(json.loads(json.dumps(meta)), arrays) == family
    assert family_named("geometric") == Geometric()
    table = np.column_stack([rows, rows > 1])
    product = oracle.resolved(Product([(Geometric(), [0, 1]), (Bernoulli(), [2, 3])]), table)
    stats = product.statistics(table)
    joint = np.array([product.log_marginal(stats + row) for row in stats])
    predictive = product.log_predictive(table, stats)
    np.testing.assert_allclose(predictive, joint - product.log_marginal(stats), rtol=1e-9)
    meta, arrays = product.to_dict()
    assert family_from_dict(json.loads(json.dumps(meta)), arrays) == product


def test_user_family__missing_values_are_refused_by_default(rows: np.ndarray) -> None:
    rows[0, 0] = np.nan
    with pytest.raises(InputError, match="no missing values"):
        oracle.resolved(Geometric(), rows)
    with pytest.raises(InputError, match="independent columns"):
        Geometric(n_features=2).entry_log_predictive(0, 1.0, np.zeros((1, 3)))


def test_user_family__what_it_does_not_know_is_nan(family: Family) -> None:
    stats = np.ones((2, 3))
    assert np.isnan(family.feature_information(stats[0], stats[1])).all()
    assert np.isnan(family.feature_means(stats)).all()
    assert (family.log_coefficient(np.ones((2, 2))) == 0).all()
    assert family.with_scale(2.0) is family
