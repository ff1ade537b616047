"""The urn: choices, draws, sparse rows, states."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import sparse
from scipy.special import betaln

from distclust.errors import InputError
from distclust.families import Bernoulli, DiagonalGaussian, Family, Gaussian, Poisson
from distclust.families._blocks import dense_rows
from distclust.mixtures.concentration import EscobarWest, FixedConcentration, GammaPrior
from distclust.mixtures.split_merge import Partition
from distclust.mixtures.starts import compact
from distclust.mixtures.urn import REBUILD_EVERY, CompiledUrn, PlainUrn, Urn, UrnSampler, UrnState
from distclust.store.states import pack_state, unpack_state
from tests.families.conftest import CASES, make
from tests.oracles import families as family_oracle
from tests.oracles.mixtures import Mixture

ALPHA = 1.3


def sampler_of(case: str, seed: int = 0, weighted: bool = False, **options: object) -> UrnSampler:
    example = make(case, seed)
    weights = np.random.default_rng(seed).integers(1, 4, len(example.rows)) if weighted else None
    fixed = FixedConcentration(ALPHA)
    return UrnSampler(example.rows, example.family, fixed, row_weights=weights, **options)  # type: ignore[arg-type]


def plain(sampler: UrnSampler) -> PlainUrn:
    return PlainUrn(sampler.rows, sampler._working, sampler._weights)


def partition(sampler: UrnSampler, labels: np.ndarray) -> Partition:
    n_clusters = int(labels.max()) + 1
    return Partition(labels, sampler._accumulate(labels, n_clusters), n_clusters)


def run(sampler: UrnSampler, place: Urn, n_sweeps: int, seed: int = 0) -> list[UrnState]:
    state = sampler.begin(0, np.random.default_rng(seed))
    states = []
    for _ in range(n_sweeps):
        state = sampler.sweep(place, state)
        copies = {"labels": state.labels.copy(), "statistics": state.statistics.copy()}
        states.append(dataclasses.replace(state, **copies))  # a sweep writes over its state
    return states


def same(a: UrnState, b: UrnState) -> bool:
    arrays = np.array_equal(a.labels, b.labels) and np.array_equal(a.statistics, b.statistics)
    fields = ("n_clusters", "concentration", "log_joint", "sweep", "proposed", "accepted")
    values = all(getattr(a, name) == getattr(b, name) for name in fields)
    return arrays and values and a.generator.bit_generator.state == b.generator.bit_generator.state


# ---- choices ----------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_choices_are_ratios_of_the_joint(case: str, weighted: bool, seed: int) -> None:
    sampler = sampler_of(case, seed, weighted)
    example = make(case, seed)
    mixture = Mixture(example.rows, example.log_marginal, ALPHA, sampler.row_weights)
    rng = np.random.default_rng(seed)
    labels = compact(rng.integers(0, 4, sampler.n_items))
    labels[-1] = labels.max() + 1  # one is alone
    labels = compact(labels)
    for urn in (sampler.open(), plain(sampler)):
        for row in (0, 3, sampler.n_items - 1):
            found = urn.log_choices(partition(sampler, labels), ALPHA, row)
            found -= np.logaddexp.reduce(found)
            np.testing.assert_allclose(found, mixture.log_choices(labels, row), atol=1e-10)


def test_an_outlier_that_leaves_takes_its_spread_with_it() -> None:
    # Nearly all of the spread of its cluster is its own.
    rng = np.random.default_rng(0)
    rows = 1e-3 * rng.normal(size=(6, 2))
    rows[5] = 30.0
    labels = np.array([0, 0, 0, 1, 1, 0], np.int32)
    for family in (DiagonalGaussian(mean=0.0, rate=1e-8), Gaussian(scatter=1e-8 * np.eye(2))):
        resolved = family_oracle.resolved(family, rows)
        sampler = UrnSampler(rows, resolved, FixedConcentration(ALPHA))
        found = partition(sampler, labels)
        here = sampler.open().log_choices(found, ALPHA, 5)
        np.testing.assert_allclose(here[1] - here[2], there_of(resolved, rows, labels), rtol=1e-6)
        small = np.delete(np.arange(6), 5)
        without = resolved.accumulate(rows[small], labels[small], 2)
        own = resolved.log_predictive(rows[5:], without)[0, 0] + math.log(3.0)
        np.testing.assert_allclose(here[0], own, rtol=1e-6)


def there_of(family: Family, rows: np.ndarray, labels: np.ndarray) -> float:
    stats = family.accumulate(rows[labels == 1], [0, 0], 1)
    nothing = np.zeros_like(stats)
    there, new = family.log_predictive(rows[5:], np.concatenate([stats, nothing]))[0]
    return float(there + math.log(2.0) - new - math.log(ALPHA))


def test_an_outlier_beyond_all_digits_still_has_choices() -> None:
    rows = 1e-4 * np.random.default_rng(0).normal(size=(6, 2))
    rows[5] = 1e7
    labels = np.array([0, 0, 0, 1, 1, 0], np.int32)
    for family in (DiagonalGaussian(mean=0.0, rate=1e-8), Gaussian(scatter=1e-8 * np.eye(2))):
        sampler = UrnSampler(rows, family_oracle.resolved(family, rows), FixedConcentration(ALPHA))
        for row in range(6):
            choices = sampler.open().log_choices(partition(sampler, labels), ALPHA, row)
            assert np.isfinite(choices).all()


def test_columns_may_have_priors_of_their_own() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(7, 3))
    priors = (
        DiagonalGaussian(strength=[0.1, 0.5, 2.0]),
        DiagonalGaussian(shape=[0.6, 1.5, 4.0]),
        DiagonalGaussian(mean=[3.0, 0.0, -3.0], rate=[0.1, 1.0, 10.0]),
    )
    for template in priors:
        family = family_oracle.resolved(template, rows)
        check_against_plain(UrnSampler(rows, family, FixedConcentration(ALPHA)), 1e-9)
        moved = family.with_parameters(family.parameters + 0.1)  # a mean that is not the shift
        check_against_plain(UrnSampler(rows, moved, FixedConcentration(ALPHA)), 1e-9)


def test_many_columns_do_not_overflow() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(7, 400)) * 1e3
    rows[:3] += 1e5
    family = family_oracle.resolved(DiagonalGaussian(mean=0.0, rate=1e-3), rows)
    check_against_plain(UrnSampler(rows, family, FixedConcentration(ALPHA)), 1e-8)
    binary = (rng.random((7, 2000)) < 0.5).astype(float)
    family = family_oracle.resolved(Bernoulli(alpha=1e-9, beta=1e-3), binary)
    check_against_plain(UrnSampler(binary, family, FixedConcentration(ALPHA)), 1e-7)
    counts = rng.poisson(3.0, (7, 500)).astype(float)
    counts[0, :5] = 1e6
    family = family_oracle.resolved(Poisson(shape=1e-5, rate=1e-5), counts)
    check_against_plain(UrnSampler(counts, family, FixedConcentration(ALPHA)), 1e-6)


def check_against_plain(sampler: UrnSampler, tolerance: float) -> None:
    labels = np.array([0, 0, 1, 1, 2, 0, 1], np.int32)
    found, urn = partition(sampler, labels), sampler.open()
    assert isinstance(urn, CompiledUrn)
    for row in range(7):
        a = urn.log_choices(found, ALPHA, row)
        b = plain(sampler).log_choices(found, ALPHA, row)
        np.testing.assert_allclose(a - a[0], b - b[0], atol=tolerance, rtol=1e-9)


# ---- draws ------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_compiled_visits_draw_what_plain_ones_draw(case: str, weighted: bool) -> None:
    sampler = sampler_of(case, 1, weighted, init="groups")
    urn = sampler.open()
    assert isinstance(urn, CompiledUrn)
    ours, theirs = run(sampler, urn, 25), run(sampler, plain(sampler), 25)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a.labels, b.labels)
        assert a.proposed == b.proposed
        assert a.accepted == b.accepted
        assert a.log_joint == pytest.approx(b.log_joint, abs=1e-8)
    assert weighted or len({state.n_clusters for state in ours}) > 1


@pytest.mark.parametrize("case", ["bernoulli", "categorical", "multinomial", "poisson", "diagonal",
                                  "gaussian", "product"])  # fmt: skip
def test_sparse_rows_draw_what_dense_ones_draw(case: str) -> None:
    dense = sampler_of(case, 2, init="kmeans")
    rows = sparse.csr_array(dense.rows)
    thin = dataclasses.replace(dense, rows=rows)
    for a, b in zip(run(dense, dense.open(), 20), run(thin, thin.open(), 20), strict=True):
        np.testing.assert_array_equal(a.labels, b.labels)
        assert a.log_joint == pytest.approx(b.log_joint, rel=1e-12)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Geometric(Family):
    """A family of a user, with the two methods that it must have."""

    name = "test_geometric"
    positive = ("alpha", "beta")
    alpha: object = 1.0
    beta: object = 1.0

    def statistics(self, block: object) -> np.ndarray:
        rows = dense_rows(block)
        return np.column_stack([np.ones(len(rows)), rows])

    def log_marginal(self, stats: np.ndarray) -> np.ndarray:
        n, total = stats[:, :1], stats[:, 1:]
        terms = betaln(self.alpha + n, self.beta + total) - betaln(self.alpha, self.beta)
        return np.sum(terms, axis=1)


def test_a_family_of_a_user_is_sampled() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.geometric(0.9, (20, 5)), rng.geometric(0.02, (20, 5))]) - 1.0
    sampler = UrnSampler(rows, Geometric(n_features=2 + 3), EscobarWest(GammaPrior(1.0, 1.0)))
    urn = sampler.open()
    assert isinstance(urn, PlainUrn)
    last = run(sampler, urn, 30)[-1]
    assert len({int(label) for label in last.labels[:20]} & set(last.labels[20:].tolist())) == 0


# ---- states -----------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["diagonal", "gaussian", "bernoulli-missing", "product-missing"])
def test_a_chain_resumes_to_the_bit(case: str) -> None:
    sampler = dataclasses.replace(
        sampler_of(case, 0, weighted=case == "gaussian"),
        concentration=EscobarWest(GammaPrior(1.0, 1.0)),
    )
    n = REBUILD_EVERY - 7
    unbroken = run(sampler, sampler.open(), 2 * n)[-1]
    half = run(sampler, sampler.open(), n)[-1]
    values, arrays = pack_state(half)
    copies = {name: array.copy() for name, array in arrays.items()}
    state = unpack_state(UrnState, values, copies)
    place = sampler.open()
    for _ in range(n):
        state = sampler.sweep(place, state)
    assert same(state, unbroken)


def test_statistics_are_added_up_afresh_at_fixed_sweeps() -> None:
    sampler = sampler_of("diagonal")
    place = sampler.open()
    state = run(sampler, place, REBUILD_EVERY)[-1]
    drifted = state.statistics.copy()
    drifted[: state.n_clusters, 1:] *= 1.0 + 1e-9
    a = sampler.sweep(place, dataclasses.replace(state, labels=state.labels.copy(),
                      statistics=drifted, generator=np.random.default_rng(5)))  # fmt: skip
    b = sampler.sweep(place, dataclasses.replace(state, generator=np.random.default_rng(5)))
    assert same(a, b)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", ["multinomial", "gaussian", "bernoulli-missing", "product"])
def test_states_are_consistent_after_every_sweep(case: str, weighted: bool) -> None:
    sampler = sampler_of(case, 0, weighted)
    example = make(case, 0)
    mixture = Mixture(example.rows, example.log_marginal, ALPHA, sampler.row_weights)
    constant = float(sampler._weights @ sampler.family.log_coefficient(example.rows))
    for state in run(sampler, sampler.open(), 60):
        assert sorted(set(state.labels.tolist())) == list(range(state.n_clusters))
        fresh = sampler._working.accumulate(
            sampler.rows, state.labels, state.n_clusters, sampler.row_weights
        )
        np.testing.assert_allclose(state.statistics[: state.n_clusters], fresh, atol=1e-9)
        assert not state.statistics[state.n_clusters :].any()
        np.testing.assert_array_equal(state.sizes, fresh[:, 0])
        assert sampler.scalars(state) == (state.log_joint, state.n_clusters, ALPHA)
        exact = mixture.log_joint(state.labels) + constant
        assert state.log_joint == pytest.approx(exact, abs=1e-8)


def test_there_is_always_room_for_another_cluster() -> None:
    rows = np.zeros((40, 1))  # which say nothing about clusters
    family = Bernoulli(alpha=1e9, beta=1e9, n_features=1)
    sampler = UrnSampler(rows, family, FixedConcentration(1e4), init="single")
    state = run(sampler, sampler.open(), 3)[-1]
    assert state.n_clusters > 30
    assert len(state.statistics) > state.n_clusters
    few = dataclasses.replace(sampler, concentration=FixedConcentration(1e-9), init="singletons")
    states = run(few, few.open(), REBUILD_EVERY + 1)
    assert states[-1].n_clusters == 1
    assert len(states[-1].statistics) == 8  # room is given back


def test_a_chain_follows_from_its_generator_and_number_alone() -> None:
    sampler = sampler_of("diagonal", init="mixed")
    states = []
    for _ in range(2):
        state = sampler.begin(3, np.random.default_rng(9))
        place = sampler.open()
        for _ in range(10):
            state = sampler.sweep(place, state)
        states.append(state)
    assert same(*states)


def test_weights_must_be_whole() -> None:
    for bad in ([1.0] * 7, [0.0] + [1.0] * 7, [1.5] + [1.0] * 7, [math.nan] + [1.0] * 7):
        with pytest.raises(InputError, match="row_weights"):
            dataclasses.replace(sampler_of("diagonal"), row_weights=np.array(bad))


def test_a_weighted_row_is_as_many_equal_rows() -> None:
    rows = np.array([[0.0], [0.0], [0.0], [5.0]])
    family = family_oracle.resolved(DiagonalGaussian(), rows)
    fixed = FixedConcentration(ALPHA)
    expanded = UrnSampler(rows, family, fixed)
    weighted = UrnSampler(rows[2:], family, fixed, row_weights=np.array([3.0, 1.0]))
    values = []
    for sampler, labels in ((expanded, [0, 0, 0, 1]), (weighted, [0, 1])):
        stats = partition(sampler, np.array(labels, np.int32)).statistics[:2]
        values.append(sampler._log_joint(stats, family.log_marginal(stats), ALPHA))
    assert values[0] == pytest.approx(values[1])
