"""The rule of ``family="auto"``, case by case."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from distclust.families import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Gaussian,
    Multinomial,
    Poisson,
    Product,
    choose_family,
)
from distclust.store import Column, profile_block
from tests.oracles import families as oracle

rng = np.random.default_rng(0)
COUNTS = rng.integers(0, 5, (40, 49)).astype(float)
RARE = np.where(rng.random((40, 50)) < 0.1, 3.0, 0.0)
GAP = np.nan


def with_gap(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(float)
    rows[0, 0] = GAP
    return rows


ARRAYS = [
    ("zeros and ones", np.eye(3), Bernoulli),
    ("booleans", np.eye(3, dtype=bool), Bernoulli),
    ("binary with gaps", with_gap(np.eye(3)), Bernoulli),
    ("all zero", np.zeros((3, 2)), Bernoulli),
    ("counts", COUNTS, Poisson),
    ("49 rare columns", RARE[:, :49], Poisson),
    ("50 rare columns", RARE, Multinomial),
    ("50 full columns", np.column_stack([COUNTS, COUNTS]), Poisson),
    ("rare with gaps", with_gap(RARE), Poisson),
    ("negative whole numbers", np.array([[-1.0, 2.0]]), Gaussian),
    ("32 real columns", rng.normal(size=(5, 32)), Gaussian),
    ("33 real columns", rng.normal(size=(5, 33)), DiagonalGaussian),
    ("real with gaps", with_gap(rng.normal(size=(5, 2))), DiagonalGaussian),
]


@pytest.mark.parametrize(("rows", "expected"), [case[1:] for case in ARRAYS],
                         ids=[case[0] for case in ARRAYS])  # fmt: skip
def test_choose_family__arrays_by_value(rows: np.ndarray, expected: type[Family]) -> None:
    family, reason = choose_family(oracle.plain_profile(rows), oracle.plain_columns(rows.shape[1]))
    assert type(family) is expected
    assert not family.is_resolved
    assert reason.endswith(expected.__name__)


def test_choose_family__one_in_five_nonzero_is_not_rare() -> None:
    rows = np.zeros((10, 50))
    rows[:2] = 2.0
    columns = oracle.plain_columns(50)
    assert isinstance(choose_family(oracle.plain_profile(rows), columns)[0], Poisson)
    rows[1, 0] = 0.0
    assert isinstance(choose_family(oracle.plain_profile(rows), columns)[0], Multinomial)


def test_choose_family__sparse_is_judged_by_value_too() -> None:
    matrix = sparse.csr_array(RARE)
    family, reason = choose_family(profile_block(matrix), oracle.plain_columns(50), True)
    assert isinstance(family, Multinomial)
    assert reason.startswith("sparse counts")


def test_choose_family__mixed_table_is_a_product() -> None:
    columns = (
        Column("smoker", number="bool"),
        Column("height"),
        Column("town", "category", ("A", "B")),
        Column("visits", number="integer"),
        Column("insured", number="integer"),
        Column("balance", number="integer"),
        Column("weight"),
    )
    rows = np.array(
        [[0, 1.7, 0, 4, 1, -3, 70.5], [1, 1.8, 1, 0, 0, 7, 65.0], [1, 1.5, GAP, 1, 1, 0, 59.1]]
    )
    family, reason = choose_family(profile_block(rows), columns)
    assert isinstance(family, Product)
    found = {type(part): list(chosen) for part, chosen in family.parts}
    assert found == {Bernoulli: [0, 4], Poisson: [3], Gaussian: [1, 5, 6], Categorical: [2]}
    assert reason.startswith("a mixed table")
    fitted = oracle.resolved(family, rows, columns)
    assert np.isfinite(fitted.log_marginal(fitted.statistics(rows))).all()


def test_choose_family__tables_of_one_group() -> None:
    towns = tuple(Column(name, "category", ("A", "B")) for name in "ab")
    assert isinstance(choose_family(profile_block(np.eye(2)), towns)[0], Categorical)
    flags = (Column("a", number="bool"), Column("b", number="integer"))
    assert isinstance(choose_family(profile_block(np.eye(2)), flags)[0], Bernoulli)


def test_choose_family__real_columns_of_a_table_follow_their_values() -> None:
    """Whole numbers that gaps turned into floats are still counts."""
    columns = (Column("visits"), Column("town", "category", ("A", "B")))
    rows = np.array([[4.0, 0.0], [GAP, 1.0], [2.0, 1.0]])
    family, _ = choose_family(profile_block(rows), columns)
    assert [type(part) for part, _ in family.parts] == [Poisson, Categorical]
