"""Blocked samplers: exact posteriors of a few rows, joint tests, chains that go on alike."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from distclust.errors import InputError
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
from distclust.mixtures._blocked_numerics import pick_components
from distclust.mixtures.blocked import BlockedSampler, BlockedState, draw_sticks, exchange
from distclust.mixtures.chains import run_chains
from distclust.mixtures.concentration import FixedConcentration, GammaPrior
from distclust.store.states import pack_state, unpack_state
from tests.oracles import concentration as oracle
from tests.oracles import families as densities

N_SWEEPS = 6000
VARIANTS = ("dma", "tdp")
PRIORS: dict[str, Callable[..., float]] = {"dma": oracle.dma, "tdp": oracle.tdp}

BINARY = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 1], [0, 1, 1], [1, 0, 0]], float)
REAL = np.array([[0.1, 2.0], [0.3, 1.6], [-1.5, -1.0], [-1.2, 0.4], [1.0, 1.0]])


def run(sampler: BlockedSampler, n_sweeps: int, seed: int = 1) -> list[BlockedState]:
    """States of one chain, each with labels of its own."""
    state, place = sampler.begin(0, np.random.default_rng(seed)), sampler.open()
    states = []
    for _ in range(n_sweeps):
        state = sampler.sweep(place, state)
        states.append(dataclasses.replace(state, labels=state.labels.copy()))
    return states


def partitions(states: list[BlockedState]) -> list[tuple[int, ...]]:
    return [oracle.canonical(state.labels.tolist()) for state in states]


# ---- exact posteriors --------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("variant", VARIANTS)
def test_posterior_of_five_binary_rows(variant: str) -> None:
    alpha, beta = np.full(3, 0.5), np.full(3, 0.8)
    exact = oracle.exact_posterior(
        5,
        lambda labels: PRIORS[variant](labels, 1.4, 5),
        lambda rows: densities.chain_bernoulli(BINARY[rows], alpha, beta),
    )
    assert len(exact) == 52
    sampler = BlockedSampler(BINARY, Bernoulli(0.5, 0.8, n_features=3), 1.4, 5, variant)
    found = oracle.total_variation(exact, partitions(run(sampler, N_SWEEPS)))
    assert found < 0.06


@pytest.mark.statistical
@pytest.mark.parametrize("variant", VARIANTS)
def test_posterior_of_five_real_rows_with_a_drawn_concentration(variant: str) -> None:
    """Fewer components than rows; the concentration is integrated by quadrature."""
    prior = functools.partial(PRIORS[variant], n_components=3)
    exact = oracle.exact_posterior(
        5,
        lambda labels: (
            oracle.averaged(lambda a: prior(labels, a), 2.0, 1.0) if max(labels) < 3 else 0.0
        ),
        lambda rows: densities.chain_diagonal(
            REAL[rows], np.zeros(2), np.full(2, 0.5), np.full(2, 2.0), np.ones(2)
        ),
    )
    family = DiagonalGaussian(0.0, 0.5, 2.0, 1.0, n_features=2)
    sampler = BlockedSampler(REAL, family, GammaPrior(2.0, 1.0), 3, variant)
    found = oracle.total_variation(exact, partitions(run(sampler, N_SWEEPS)))
    assert found < 0.06


@pytest.mark.statistical
def test_posterior_under_a_full_covariance() -> None:
    scatter = np.array([[1.0, 0.4], [0.4, 1.0]])
    exact = oracle.exact_posterior(
        5,
        lambda labels: oracle.dma(labels, 1.0, 6),
        lambda rows: densities.chain_gaussian(REAL[rows], np.zeros(2), 0.5, 4.0, scatter),
    )
    sampler = BlockedSampler(REAL, Gaussian([0.0, 0.0], 0.5, 4.0, scatter), 1.0, 6, "dma")
    assert oracle.total_variation(exact, partitions(run(sampler, 8000))) < 0.06


@pytest.mark.statistical
@pytest.mark.parametrize("variant", VARIANTS)
def test_weights_are_rows_that_move_together(variant: str) -> None:
    """Copies of rows, over the partitions that keep copies in one cluster."""
    rows, weights = BINARY[:4], np.array([2.0, 1.0, 3.0, 1.0])
    copies = np.repeat(np.arange(4), weights.astype(int))

    def log_marginal(chosen: np.ndarray) -> float:
        members = BINARY[copies[np.isin(copies, chosen)]]
        return densities.chain_bernoulli(members, np.ones(3), np.ones(3))

    def prior(labels: tuple[int, ...]) -> float:
        return PRIORS[variant](np.array(labels)[copies].tolist(), 1.0, 4)

    exact = oracle.exact_posterior(4, prior, log_marginal)
    family = Bernoulli(1.0, 1.0, n_features=3)
    sampler = BlockedSampler(rows, family, 1.0, 4, variant, row_weights=weights)
    states = run(sampler, 4000)
    assert oracle.total_variation(exact, partitions(states)) < 0.05
    assert states[-1].statistics[:, 0].sum() == 7.0


@pytest.mark.statistical
@pytest.mark.parametrize("n_components", [3, 8])
def test_number_of_occupied_components(n_components: int) -> None:
    """Rows of which nothing was seen leave the prior."""
    n, value = 12, 1.7
    rest = value * (1 - 1 / n_components)
    logs = math.lgamma(value) + math.lgamma(rest + n) - math.lgamma(value + n) - math.lgamma(rest)
    wanted = n_components * (1 - math.exp(logs))
    family = Bernoulli(1.0, 1.0, n_features=1, has_missing=True)
    sampler = BlockedSampler(np.full((n, 1), np.nan), family, value, n_components, "dma")
    counts = np.array([state.n_clusters for state in run(sampler, 4000)])
    assert_mean(counts, wanted)


@pytest.mark.statistical
def test_number_of_occupied_sticks() -> None:
    sizes = {labels: len(set(labels)) for labels in oracle.set_partitions(6)}
    wanted = sum(k * oracle.tdp(labels, 2.0, 3) for labels, k in sizes.items() if k <= 3)
    family = Bernoulli(1.0, 1.0, n_features=1, has_missing=True)
    sampler = BlockedSampler(np.full((6, 1), np.nan), family, 2.0, 3, "tdp")
    counts = np.array([state.n_clusters for state in run(sampler, 4000)])
    assert_mean(counts, wanted)


def assert_mean(values: np.ndarray, wanted: float) -> None:
    """Within four standard errors, by means of batches."""
    assert abs(values.mean() - wanted) < 4 * batch_error(values)


def batch_error(values: np.ndarray, n_batches: int = 40) -> float:
    batches = values[: len(values) // n_batches * n_batches].reshape(n_batches, -1)
    return float(batches.mean(axis=1).std(ddof=1) / math.sqrt(n_batches))


# ---- joint tests -------------------------------------------------------------------------


def prior_labels(
    variant: str, value: float, n: int, m: int, generator: np.random.Generator
) -> np.ndarray:
    if variant == "dma":
        gammas = generator.standard_gamma(np.full(m, value / m)) + 1e-300
        weights = gammas / gammas.sum()
    else:
        sticks = np.append(generator.beta(1.0, value, m - 1), 1.0)
        weights = sticks * np.concatenate([[1.0], np.cumprod(1 - sticks[:-1])])
    return generator.choice(m, n, p=weights / weights.sum()).astype(np.int32)


def fresh_rows(kind: str, labels: np.ndarray, m: int, generator: np.random.Generator) -> np.ndarray:
    if kind == "binary":
        chances = generator.beta(0.6, 0.9, (m, 2))[labels]
        return np.asarray(generator.random(chances.shape) < chances, dtype=float)
    precisions = generator.gamma(3.0, 1 / 2.0, (m, 2))
    means = generator.normal(0.5, 1 / np.sqrt(0.7 * precisions))
    return np.asarray(generator.normal(means[labels], 1 / np.sqrt(precisions[labels])))


def facts(labels: np.ndarray, rows: np.ndarray, value: float) -> list[float]:
    """What both roads must agree on: clusters, concentration, rows, pairs, and both at once."""
    same = labels[:, None] == labels[None, :]
    together = float((same.sum() - len(labels)) / 2)
    gaps = np.abs(rows[:, None, 0] - rows[None, :, 0])
    return [
        float(len(np.unique(labels))),
        math.log(value),
        float(rows.mean()),
        float(np.mean(np.minimum(np.abs(rows), 3.0) ** 2)),
        together,
        float(np.minimum(gaps * same, 3.0).sum() / 2),
        together * math.log(value),
    ]


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("variant", "kind"), [("dma", "binary"), ("tdp", "binary"), ("tdp", "real")]
)
def test_joint_distribution(variant: str, kind: str) -> None:
    """Geweke: sweeps and fresh rows in turns leave the joint distribution as it is."""
    n, m, prior = 7, 4, GammaPrior(3.0, 2.0)
    generator = np.random.default_rng(11)
    direct = []
    for _ in range(8000):
        value = generator.gamma(3.0, 0.5)
        labels = prior_labels(variant, value, n, m, generator)
        direct.append(facts(labels, fresh_rows(kind, labels, m, generator), value))
    family: Family = Bernoulli(0.6, 0.9, n_features=2)
    if kind == "real":
        family = DiagonalGaussian(0.5, 0.7, 3.0, 2.0, n_features=2)
    rows = fresh_rows(kind, labels, m, generator)
    sampler = BlockedSampler(rows, family, prior, m, variant, "single")
    state = sampler.begin(0, generator)
    turns = []
    for _ in range(4000):
        state = sampler.sweep(None, state)
        rows = fresh_rows(kind, state.labels, m, generator)
        sampler = dataclasses.replace(sampler, rows=rows)
        stats = family.accumulate(rows, state.labels, m)
        state = dataclasses.replace(state, statistics=stats)
        turns.append(facts(state.labels, rows, state.concentration))
    one, two = np.array(direct), np.array(turns[100:])
    errors = [batch_error(column) for column in two.T]
    scale = np.sqrt(one.var(axis=0) / len(one) + np.square(errors))
    scores = (one.mean(axis=0) - two.mean(axis=0)) / scale
    assert np.abs(scores).max() < 4.0, scores


# ---- pieces ------------------------------------------------------------------------------


@pytest.mark.statistical
def test_sticks_have_the_means_of_their_posteriors() -> None:
    sizes, value = np.array([3.0, 0.0, 5.0, 1.0]), 0.7
    generator = np.random.default_rng(0)
    draws = [draw_sticks(sizes, value, generator) for _ in range(20_000)]
    weights = np.exp([logs for logs, _ in draws])
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    later = np.array([6.0, 6.0, 1.0])
    sticks = (1 + sizes[:3]) / (1 + sizes[:3] + value + later)
    means = np.append(sticks, 1.0) * np.concatenate([[1.0], np.cumprod(1 - sticks)])
    errors = weights.std(axis=0) / math.sqrt(len(weights))
    assert (np.abs(weights.mean(axis=0) - means) < 4 * errors).all()
    rests = np.array([rest for _, rest in draws])
    np.testing.assert_allclose(rests, np.log(weights[:, -1]), rtol=1e-9)


def test_sticks_of_a_tiny_concentration_are_finite() -> None:
    weights, rest = draw_sticks(np.array([9.0, 0.0, 0.0]), 1e-250, np.random.default_rng(0))
    assert np.isfinite(weights).all()
    assert math.isfinite(rest)
    assert weights[0] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.statistical
@pytest.mark.parametrize("value", [0.4, 3.0])
def test_exchanges_keep_the_distribution_of_names(value: float) -> None:
    """Names of clusters follow the probability of labels, sticks integrated out."""
    sizes = np.array([3.0, 1.0, 0.0, 2.0])
    orders = list(itertools.permutations(range(4)))
    wanted = np.array([oracle.tdp_labels(sizes[list(order)], value) for order in orders])
    generator, order = np.random.default_rng(0), np.arange(4)
    counts = dict.fromkeys(orders, 0)
    for _ in range(30_000):
        order = order[exchange(sizes[order], value, generator)]
        counts[tuple(order.tolist())] += 1
    found = np.array([counts[key] for key in orders]) / 30_000
    np.testing.assert_allclose(found, wanted / wanted.sum(), atol=0.012)


def test_large_clusters_move_to_the_front() -> None:
    """Rows alone would never leave a component that is so much better than an empty one."""
    rows = np.repeat([[0.0], [40.0]], [150, 30], axis=0) + np.linspace(0.0, 1.0, 180)[:, None]
    family = DiagonalGaussian(20.0, 0.01, 2.0, 1.0, n_features=1)
    sampler = BlockedSampler(rows, family, 0.5, 8, "tdp", "single")
    state = sampler.begin(0, np.random.default_rng(0))
    labels = np.repeat([7, 6], [150, 30]).astype(np.int32)
    state = dataclasses.replace(state, labels=labels, statistics=family.accumulate(rows, labels, 8))
    places = []
    for _ in range(60):
        state = sampler.sweep(None, state)
        places.append((np.bincount(state.labels[:150]).argmax(), state.labels[-1]))
    first, second = np.mean(places[20:], axis=0)
    assert first < 1.0
    assert second < 2.0


@pytest.mark.statistical
def test_picked_components_have_their_shares() -> None:
    generator = np.random.default_rng(3)
    scores = np.tile(np.log([0.5, 2.0, 1e-30, 1.0]), (40_000, 1))
    log_weights, row_weights = np.log([0.4, 0.1, 0.2, 0.3]), np.full(40_000, 2.0)
    labels = np.empty(40_000, np.int32)
    pick_components(scores, log_weights, row_weights, generator.random(40_000), labels)
    shares = np.array([0.2, 0.2, 0.2e-30, 0.3]) ** 2
    wanted = shares / shares.sum()
    np.testing.assert_allclose(np.bincount(labels, minlength=4) / 40_000, wanted, atol=0.01)


def test_picking_is_by_inverse_cumulative_shares() -> None:
    uniforms = np.array([0.0, 0.2499, 0.2501, 0.7499, 0.7501, np.nextafter(1.0, 0.0)])
    scores = np.tile(np.log([1.0, 2.0, 1.0]) - 5000.0, (6, 1))
    labels = np.empty(6, np.int32)
    pick_components(scores, np.zeros(3), np.ones(6), uniforms, labels)
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]
    impossible_first = np.array([[-5000.0, 0.0]])
    pick_components(impossible_first, np.zeros(2), np.ones(1), np.zeros(1), labels[:1])
    assert labels[0] == 1


# ---- chains ------------------------------------------------------------------------------


def mixed_rows(n: int = 60) -> np.ndarray:
    """Columns: 2 real, 2 binary, 1 of categories, 2 counts; two clusters."""
    rng = np.random.default_rng(2)
    groups = np.arange(n) % 2
    real = rng.normal(size=(n, 2)) + 4.0 * groups[:, None]
    binary = rng.random((n, 2)) < 0.2 + 0.6 * groups[:, None]
    levels = rng.integers(0, 3, n)
    counts = rng.poisson(1.0 + 5.0 * groups[:, None], (n, 2))
    return np.column_stack([real, binary, levels, counts]).astype(float)


FAMILIES: dict[str, tuple[Family, list[int]]] = {
    "diagonal": (DiagonalGaussian(0.0, 0.5, 2.0, 1.0, n_features=2), [0, 1]),
    "gaussian": (Gaussian([0.0, 0.0], 0.5, 4.0, np.eye(2)), [0, 1]),
    "bernoulli": (Bernoulli(1.0, 1.0, n_features=2), [2, 3]),
    "categorical": (Categorical(1.0, n_levels=(3,)), [4]),
    "poisson": (Poisson(1.0, 1.0, n_features=2), [5, 6]),
    "multinomial": (Multinomial(1.0, n_features=2), [5, 6]),
}
FAMILIES["product"] = (
    Product(
        [FAMILIES[name] for name in ("gaussian", "bernoulli", "categorical", "poisson")],
        n_features=7,
    ),
    list(range(7)),
)


def a_sampler(name: str, variant: str = "dma", **changes: Any) -> BlockedSampler:
    family, columns = FAMILIES[name]
    return BlockedSampler(mixed_rows()[:, columns], family, "gamma", 6, variant, **changes)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_sparse_rows_lead_to_the_same_labels(name: str, variant: str) -> None:
    dense = a_sampler(name, variant)
    rows = sparse.csr_array(dense.rows)
    one, two = run(dense, 8)[-1], run(dataclasses.replace(dense, rows=rows), 8)[-1]
    np.testing.assert_array_equal(one.labels, two.labels)
    assert one.log_joint == pytest.approx(two.log_joint, rel=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["diagonal", "product"])
def test_resumed_chains_go_on_alike(name: str, variant: str) -> None:
    sampler = a_sampler(name, variant)
    wanted = run(sampler, 14)
    state = sampler.begin(0, np.random.default_rng(1))
    for i in range(14):
        if i == 7:
            values, arrays = pack_state(state)
            copies = {key: value.copy() for key, value in arrays.items()}
            state = unpack_state(BlockedState, values, copies)
        state = sampler.sweep(None, state)
    np.testing.assert_array_equal(state.labels, wanted[-1].labels)
    np.testing.assert_array_equal(state.statistics, wanted[-1].statistics)
    assert sampler.scalars(state) == sampler.scalars(wanted[-1])
    assert state.sweep == 14


def test_missing_entries_are_left_out() -> None:
    rows = mixed_rows()[:, :2]
    rows[::5, 0] = np.nan
    family = DiagonalGaussian(0.0, 0.5, 2.0, 1.0, n_features=2, has_missing=True)
    states = run(BlockedSampler(rows, family, "gamma", 6, init="kmeans"), 60)[20:]
    assert_told_apart(states)  # by the other column


def assert_told_apart(states: list[BlockedState]) -> None:
    """Rows of the two clusters are seldom together, those of one cluster mostly."""
    together = np.mean([state.labels[:, None] == state.labels for state in states], axis=0)
    truth = np.arange(60) % 2
    same = truth[:, None] == truth
    assert together[~same].mean() < 0.05
    assert together[same].mean() > 0.6


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("value", [1e-200, 1e200])
def test_extreme_concentrations(variant: str, value: float) -> None:
    for state in run(a_sampler("product", variant, init="groups"), 3):
        assert math.isfinite(state.log_joint)
    sampler = dataclasses.replace(
        a_sampler("product", variant), concentration=FixedConcentration(value)
    )
    for state in run(sampler, 5):
        assert math.isfinite(state.log_joint)
        assert state.concentration == value


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_log_joint_is_that_of_the_partition(variant: str) -> None:
    family = Bernoulli(0.5, 0.8, n_features=3)
    sampler = BlockedSampler(BINARY, family, "gamma", 4, variant)
    state = run(sampler, 5)[-1]
    marginal = sum(
        densities.chain_bernoulli(BINARY[state.labels == k], np.full(3, 0.5), np.full(3, 0.8))
        for k in np.unique(state.labels)
    )
    if variant == "dma":
        prior = oracle.dma(oracle.canonical(state.labels.tolist()), state.concentration, 4)
    else:
        prior = oracle.tdp_labels(np.bincount(state.labels, minlength=4) * 1.0, state.concentration)
    assert sampler.scalars(state)[0] == pytest.approx(math.log(prior) + marginal, rel=1e-10)
    assert sampler.scalars(state)[1] == len(np.unique(state.labels))


def test_labels_are_compact() -> None:
    sampler = a_sampler("diagonal")
    state = dataclasses.replace(
        run(sampler, 1)[0], labels=np.repeat([5, 1, 3], 20).astype(np.int32)
    )
    assert sampler.labels(state).tolist() == [2] * 20 + [0] * 20 + [1] * 20


@pytest.mark.parametrize("init", ["single", "singletons", "groups", "kmeans"])
def test_starts_are_capped(init: str) -> None:
    state = a_sampler("diagonal", init=init).begin(0, np.random.default_rng(0))
    assert state.labels.max() < 6
    assert state.n_clusters == len(np.unique(state.labels)) == (1 if init == "single" else 6)
    assert math.isfinite(state.log_joint)


def test_chains_run_on_a_crew() -> None:
    sampler = a_sampler("product", "tdp")
    traces = run_chains(
        sampler, 2, seed=4, max_sweeps=20, keep_every=5, agreement=None, name="blocked"
    )
    assert traces.scalars.shape == (2, 20, 3)
    assert traces.draws.shape == (2, 4, 60)


@pytest.mark.parametrize("variant", VARIANTS)
def test_two_clusters_are_found(variant: str) -> None:
    assert_told_apart(run(a_sampler("product", variant, init="kmeans"), 80)[20:])


@pytest.mark.parametrize(
    "changes",
    [
        {"truncation": 0},
        {"variant": "crp"},
        {"concentration": -1.0},
        {"init": "nowhere"},
        {"row_weights": np.ones(3)},
        {"row_weights": np.zeros(5)},
        {"row_weights": np.full(5, np.nan)},
    ],
)
def test_what_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(changes))):
        BlockedSampler(BINARY, Bernoulli(1.0, 1.0, n_features=3), **changes)
