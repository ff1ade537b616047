"""Products: columns go to their parts and come back in order."""

from __future__ import annotations

import numpy as np
import pytest

from distclust.errors import InputError
from distclust.families import Bernoulli, Categorical, DiagonalGaussian, Multinomial, Product
from tests.oracles import families as oracle

ROWS = np.array([[0.5, 1.0, 2.0], [1.5, 0.0, 0.0], [np.nan, 1.0, 1.0], [0.7, np.nan, 2.0]])
NAMED = Product([(Bernoulli(), ["x1"]), (DiagonalGaussian(), ["x0"]), (Categorical(), ["x2"])])


def test_product__names_and_numbers_agree() -> None:
    by_number = Product([(Bernoulli(), [1]), (DiagonalGaussian(), [0]), (Categorical(), [2])])
    one, other = oracle.resolved(NAMED, ROWS), oracle.resolved(by_number, ROWS)
    assert one == other
    assert one.is_resolved
    assert not NAMED.is_resolved


def test_product__statistics_are_laid_out_part_after_part() -> None:
    family = oracle.resolved(NAMED, ROWS)
    (bernoulli, _), (diagonal, _), (categorical, _) = family.parts
    stats = family.accumulate(ROWS, [0] * 4, 1)[0]
    pieces = [
        part.accumulate(ROWS[:, [d]], [0] * 4, 1)[0, 1:]
        for part, d in ((bernoulli, 1), (diagonal, 0), (categorical, 2))
    ]
    np.testing.assert_array_equal(stats, np.concatenate([[4.0], *pieces]))


def test_product__entries_and_features_find_their_part() -> None:
    family = oracle.resolved(NAMED, ROWS)
    stats = family.accumulate(ROWS, [0, 0, 1, 1], 2)
    information = family.feature_information(stats[0], stats[1])
    means = family.feature_means(stats)
    for column, value in ((0, 0.3), (1, 1.0), (2, 2.0)):
        row = np.full((1, 3), np.nan)
        row[0, column] = value
        expected = family.log_predictive(row, stats)[0]
        actual = family.entry_log_predictive(column, value, stats)
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
    assert information.shape == (3,)
    np.testing.assert_allclose(means[0], [1.0, 0.5, np.nan])
    with pytest.raises(InputError, match="a column below 3"):
        family.entry_log_predictive(3, 0.0, stats)


def test_product__scale_reaches_the_gaussian_part_only() -> None:
    family = oracle.resolved(NAMED, ROWS)
    assert family.scale_grid == (0.01, 0.03, 0.1, 0.3, 1.0)
    scaled = family.with_scale(0.5)
    assert scaled.parts[1][0].scale == 0.5
    assert scaled.parts[0] == family.parts[0]


@pytest.mark.parametrize(
    "parts", [[(Bernoulli(), [0, 1])], [(Bernoulli(), [0, 1]), (Bernoulli(), [1, 2])],
              [(Bernoulli(), ["x0", "y"]), (Bernoulli(), [2])]],
)  # fmt: skip
def test_check__every_column_belongs_to_one_part(parts: list[object]) -> None:
    with pytest.raises(InputError, match="each of the 3 columns in exactly one part"):
        Product(parts).check(oracle.plain_profile(np.eye(3)), oracle.plain_columns(3), "X")


@pytest.mark.parametrize("parts", [(), None, [Bernoulli()], [("bernoulli", [0])]])
def test_constructor__parts_are_pairs(parts: object) -> None:
    with pytest.raises(InputError, match="pairs of a family and its columns"):
        Product(parts)


def test_check__parts_refuse_their_own_columns() -> None:
    family = Product([(Multinomial(), [0]), (Bernoulli(), [1, 2])])
    with pytest.raises(InputError, match=r"NaN.*column 'x0'"):
        family.check(oracle.plain_profile(ROWS), oracle.plain_columns(3), "X")
    family = Product([(DiagonalGaussian(), [0]), (Bernoulli(), [1, 2])])
    with pytest.raises(InputError, match=r"zeros and ones.*2 in column 'x2'"):
        family.check(oracle.plain_profile(ROWS), oracle.plain_columns(3), "X")
