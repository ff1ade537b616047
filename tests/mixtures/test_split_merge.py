"""Splits and merges: the posterior, what is written, what they cost."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from distclust.families import DiagonalGaussian
from distclust.mixtures import split_merge
from distclust.mixtures.concentration import FixedConcentration
from distclust.mixtures.split_merge import Partition, capacity, split_or_merge, with_room
from distclust.mixtures.starts import compact
from distclust.mixtures.urn import UrnSampler
from tests.mixtures.six_rows import ALPHA, N_ROWS, check, problem, start
from tests.oracles import families as family_oracle


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("case", "weighted"),
    [("diagonal", False), ("gaussian", True), ("bernoulli-missing", False), ("multinomial", True),
     ("product", True),
        ("poisson-missing", True)],
)  # fmt: skip
def test_splits_and_merges_have_the_posterior(case: str, weighted: bool) -> None:
    """Rows move one by one now and then only; without splits the chain would hardly move."""
    sampler, mixture = problem(case, weighted)
    urn, found = sampler.open(), start(sampler)
    rng = np.random.default_rng(2)
    visited, accepted = [], 0
    for step in range(50_000):
        if step % 20 == 0:
            found = urn.visit(found, ALPHA, rng.random(N_ROWS))
        found, _, took = split_or_merge(urn, found, ALPHA, rng)
        accepted += took
        visited.append(found.labels.tobytes())
    assert accepted > 100
    check(visited, mixture)


def two_groups(n_rows: int, seed: int) -> tuple[UrnSampler, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = (np.arange(n_rows) % 2).astype(np.int32)
    rows = rng.normal(size=(n_rows, 2)) + 20.0 * truth[:, None]
    family = family_oracle.resolved(DiagonalGaussian(), rows)
    return UrnSampler(rows, family, FixedConcentration(ALPHA), init="single"), truth


def partition(sampler: UrnSampler, labels: np.ndarray) -> Partition:
    n_clusters = int(labels.max()) + 1
    return Partition(labels, sampler._accumulate(labels, n_clusters), n_clusters)


def settle(sampler: UrnSampler, found: Partition, n_proposals: int) -> Partition:
    urn, rng = sampler.open(), np.random.default_rng(0)
    for _ in range(n_proposals):
        found, _, _ = split_or_merge(urn, found, ALPHA, rng)
        labels = found.labels.copy()
        fresh = partition(sampler, labels)
        assert sorted(set(labels.tolist())) == list(range(found.n_clusters))
        np.testing.assert_allclose(
            found.statistics[: found.n_clusters],
            fresh.statistics[: found.n_clusters],
            atol=1e-8,
        )
        assert not found.statistics[found.n_clusters :].any()
    return found


def test_a_few_proposals_split_two_groups(seed: int) -> None:
    sampler, truth = two_groups(60, seed)
    found = settle(sampler, start(sampler), 12)
    # A row that was drawn may be left among the others.
    found = sampler.open().visit(found, ALPHA, np.random.default_rng(1).random(60))
    for k in range(found.n_clusters):
        assert len(set(truth[found.labels == k].tolist())) == 1


def test_proposals_merge_what_belongs_together(seed: int) -> None:
    sampler, truth = two_groups(60, seed)
    labels = compact(2 * truth + (np.arange(60) % 3 == 0))
    found = settle(sampler, partition(sampler, labels), 60)
    assert found.n_clusters == 2


def test_large_clusters_are_visited_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """About as many rows on average, whatever the size of clusters; and small ones always."""
    sampler, _ = two_groups(400, 0)
    urn, rng, found = sampler.open(), np.random.default_rng(0), start(sampler)
    monkeypatch.setattr(split_merge, "_SMALL_GROUP", 40)
    copies = (Partition(found.labels.copy(), found.statistics.copy(), 1) for _ in range(600))
    tried = [split_or_merge(urn, copy, ALPHA, rng)[1] for copy in copies]
    assert 30 < sum(tried) < 95  # 600 * 40 / 398 = 60 expected
    monkeypatch.setattr(split_merge, "_SMALL_GROUP", 400)
    assert split_or_merge(urn, found, ALPHA, rng)[1]


def test_a_single_row_is_left_alone() -> None:
    sampler, _ = two_groups(4, 0)
    one = dataclasses.replace(sampler, rows=sampler.rows[:1])
    found = start(one)
    assert split_or_merge(one.open(), found, ALPHA, np.random.default_rng(0)) == (
        found, False, False,
    )  # fmt: skip


def test_there_is_room_for_one_more() -> None:
    assert [capacity(k) for k in (0, 7, 8, 15, 16)] == [8, 8, 16, 16, 24]
    stats = np.ones((8, 3))
    assert with_room(stats, 7) is stats
    grown = with_room(stats, 8)
    assert grown.shape == (24, 3)
    np.testing.assert_array_equal(grown[:8], stats)
    assert not grown[8:].any()
