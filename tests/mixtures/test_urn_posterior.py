"""Long chains against the posterior over all partitions of six rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.families.conftest import CASES
from tests.mixtures.six_rows import ALPHA, N_ROWS, check, problem, start
from tests.oracles.partitions import log_restaurant, set_partitions


def test_partitions_are_counted_and_their_probabilities_sum_to_one() -> None:
    for n_items, n_partitions in ((6, 203), (7, 877)):
        partitions = list(set_partitions(n_items))
        assert len(set(partitions)) == n_partitions
        total = sum(math.exp(log_restaurant(labels, 1.7)) for labels in partitions)
        assert total == pytest.approx(1.0)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("case", "weighted"),
    [*((case, False) for case in CASES), ("diagonal", True), ("poisson", True)],
)
def test_rows_that_move_one_by_one_have_the_posterior(case: str, weighted: bool) -> None:
    sampler, mixture = problem(case, weighted)
    urn, found = sampler.open(), start(sampler)
    rng = np.random.default_rng(1)
    visited = []
    for uniforms in rng.random((25_000, N_ROWS)):
        found = urn.visit(found, ALPHA, uniforms)
        visited.append(found.labels.tobytes())
    check(visited, mixture)


@pytest.mark.statistical
@pytest.mark.parametrize("case", ["diagonal-missing", "gaussian"])
def test_whole_sweeps_have_the_posterior(case: str) -> None:
    sampler, mixture = problem(case, False)
    place, state = sampler.open(), sampler.begin(0, np.random.default_rng(3))
    visited = []
    for _ in range(15_000):
        state = sampler.sweep(place, state)
        visited.append(state.labels.tobytes())
    check(visited, mixture)
