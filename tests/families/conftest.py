"""One example of every family: a resolved family, rows that fit it, an oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from distclust.families import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Gaussian,
    Multinomial,
    Poisson,
    Product,
)
from tests.oracles import families as oracle


@dataclass(frozen=True)
class Example:
    family: Family
    rows: np.ndarray
    log_marginal: Callable[[np.ndarray], float]  # of all rows given, by another road

    @property
    def stats(self) -> np.ndarray:
        return self.family.statistics(self.rows)


def _with_gaps(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    gaps = rng.random(rows.shape) < 0.25
    gaps[0, 0], gaps[1, 0] = True, False
    return np.where(gaps, np.nan, rows)


def bernoulli(rng: np.random.Generator, gaps: bool) -> Example:
    rows = (rng.random((9, 4)) < [0.1, 0.5, 0.8, 0.4]).astype(float)
    rows = _with_gaps(rng, rows) if gaps else rows
    family = oracle.resolved(Bernoulli(), rows)
    return Example(family, rows, lambda x: oracle.chain_bernoulli(x, family.alpha, family.beta))


def categorical(rng: np.random.Generator, gaps: bool) -> Example:
    rows = np.column_stack([rng.integers(0, k, 9) for k in (2, 3, 4)]).astype(float)
    rows[:3] = [[1, 2, 3], [0, 0, 0], [1, 1, 1]]
    rows = _with_gaps(rng, rows) if gaps else rows
    family = oracle.resolved(Categorical(n_levels=(2, 3, 4)), rows)
    alphas = np.split(family.alpha, [2, 5])
    return Example(family, rows, lambda x: oracle.chain_categorical(x, alphas))


def multinomial(rng: np.random.Generator, gaps: bool) -> Example:
    rows = rng.poisson([0.3, 2.0, 0.1, 12.0], (8, 4)).astype(float)
    family = oracle.resolved(Multinomial(), rows)
    return Example(family, rows, lambda x: oracle.chain_multinomial(x, family.alpha))


def poisson(rng: np.random.Generator, gaps: bool) -> Example:
    rows = rng.poisson([0.3, 2.0, 15.0], (8, 3)).astype(float)
    rows = _with_gaps(rng, rows) if gaps else rows
    family = oracle.resolved(Poisson(shape=[1.0, 0.5, 2.0]), rows)
    return Example(family, rows, lambda x: oracle.chain_poisson(x, family.shape, family.rate))


def diagonal(rng: np.random.Generator, gaps: bool) -> Example:
    rows = rng.normal([0.0, 50.0, -3.0], [1.0, 0.1, 20.0], (8, 3))
    rows[rng.random(rows.shape) < 0.2] = 0.0
    rows = _with_gaps(rng, rows) if gaps else rows
    family = oracle.resolved(DiagonalGaussian(), rows)
    return Example(
        family,
        rows,
        lambda x: oracle.chain_diagonal(x, family.mean, family.strength, family.shape, family.rate),
    )


def gaussian(rng: np.random.Generator, gaps: bool) -> Example:
    rows = rng.normal(size=(9, 3)) @ rng.normal(size=(3, 3)) + [5.0, 0.0, -2.0]
    rows[rng.random(rows.shape) < 0.1] = 0.0
    family = oracle.resolved(Gaussian(), rows)
    prior = family.mean, family.strength, family.degrees, family.scatter
    return Example(family, rows, lambda x: oracle.chain_gaussian(x, *prior))


def mixed(rng: np.random.Generator, gaps: bool) -> Example:
    """A product whose parts take columns in turns, not side by side."""
    first, second, third = bernoulli(rng, gaps), gaussian(rng, False), poisson(rng, gaps)
    rows = np.column_stack([first.rows[:8], second.rows[:8], third.rows[:8]])
    order = rng.permutation(rows.shape[1])
    place = np.argsort(order)
    parts = [
        (Bernoulli(), place[:4].tolist()),
        (Gaussian(), place[4:7].tolist()),
        (Poisson(), place[7:].tolist()),
    ]
    rows = rows[:, order]
    family = oracle.resolved(Product(parts), rows)
    (one, a), (two, b), (three, c) = family.parts

    def by_parts(x: np.ndarray) -> float:
        total = oracle.chain_bernoulli(x[:, a], one.alpha, one.beta)
        total += oracle.chain_gaussian(x[:, b], two.mean, two.strength, two.degrees, two.scatter)
        return total + oracle.chain_poisson(x[:, c], three.shape, three.rate)

    return Example(family, rows, by_parts)


COMPLETE = {
    "bernoulli": bernoulli,
    "categorical": categorical,
    "multinomial": multinomial,
    "poisson": poisson,
    "diagonal": diagonal,
    "gaussian": gaussian,
    "product": mixed,
}
GAPPED = ["bernoulli", "categorical", "poisson", "diagonal", "product"]
CASES = [*COMPLETE, *(f"{name}-missing" for name in GAPPED)]


def make(case: str, seed: int) -> Example:
    name, _, gaps = case.partition("-")
    return COMPLETE[name](np.random.default_rng(seed), bool(gaps))


@pytest.fixture(params=CASES)
def example(request: pytest.FixtureRequest, seed: int) -> Example:
    return make(request.param, seed)


@pytest.fixture(params=list(COMPLETE))
def complete(request: pytest.FixtureRequest, seed: int) -> Example:
    return make(request.param, seed)


@pytest.fixture(params=[f"{name}-missing" for name in GAPPED])
def gapped(request: pytest.FixtureRequest, seed: int) -> Example:
    return make(request.param, seed)


@pytest.fixture(params=[f"{name}-missing" for name in GAPPED if name != "product"])
def independent(request: pytest.FixtureRequest, seed: int) -> Example:
    """Families of independent columns, with gaps."""
    return make(request.param, seed)


@pytest.fixture(params=["bernoulli", "categorical", "multinomial", "poisson", "diagonal"])
def light(request: pytest.FixtureRequest, seed: int) -> Example:
    """Families that never unfold a sparse row; full covariances do, a tile at a time."""
    return make(request.param, seed)


@pytest.fixture(params=[case for case in CASES if "categorical" not in case])
def numeric(request: pytest.FixtureRequest, seed: int) -> Example:
    """Families whose columns have means."""
    return make(request.param, seed)
