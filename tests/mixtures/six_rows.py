"""Six rows of every family: their posterior over all partitions, and chains that must have it."""

from __future__ import annotations

import numpy as np

from distclust.mixtures.concentration import FixedConcentration
from distclust.mixtures.split_merge import Partition
from distclust.mixtures.urn import UrnSampler
from tests.families.conftest import make
from tests.oracles.mixtures import Mixture, frequencies, together, total_variation

ALPHA = 1.0
N_ROWS = 6


def problem(case: str, weighted: bool) -> tuple[UrnSampler, Mixture]:
    """Six rows whose posterior is spread over several partitions."""
    example = make(case, 3)
    rows = example.rows[:N_ROWS]
    weights = np.array([1.0, 3.0, 1.0, 2.0, 1.0, 1.0]) if weighted else None
    fixed = FixedConcentration(ALPHA)
    sampler = UrnSampler(rows, example.family, fixed, init="single", row_weights=weights)
    return sampler, Mixture(rows, example.log_marginal, ALPHA, weights)


def start(sampler: UrnSampler) -> Partition:
    state = sampler.begin(0, np.random.default_rng(0))
    return Partition(state.labels, state.statistics, state.n_clusters)


def check(visited: list[bytes], mixture: Mixture) -> None:
    exact = mixture.posterior()
    found = frequencies(np.frombuffer(labels, np.int32) for labels in visited)
    assert max(exact.values()) < 0.9  # otherwise there is nothing to see
    assert total_variation(found, exact) < 0.05
    np.testing.assert_allclose(together(found), together(exact), atol=0.02)
