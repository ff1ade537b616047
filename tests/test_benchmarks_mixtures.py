"""Parts of the benchmarks of mixtures and ensembles, on data of hand size."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student

from benchmarks import data, ensembles, ensembles_tables, mixtures, mixtures_methods
from distclust.ensembles.dirichlet_ensemble import DirichletEnsembleSampler

needs_files = pytest.mark.skipif(
    not data.has_files(), reason=f"{data.VARIABLE} does not name the folder of data sets"
)


def make_race(**options: Any) -> mixtures_methods.Race:
    random = np.random.default_rng(0)
    rows, held_out = random.normal(size=(40, 2)), random.normal(size=(7, 2))
    settings: dict[str, Any] = {"truncation": 3, "budget": 100.0, "steps": 6} | options
    return mixtures_methods.Race(rows, held_out, **settings)


def method_of(values: list[float], seconds: float = 1.0) -> mixtures_methods.Method:
    def method(race: mixtures_methods.Race) -> Iterator[mixtures_methods.Step]:
        for value in values:
            predict = functools.partial(np.full, 2, value)
            yield mixtures_methods.Step(seconds, predict, lambda: 4)

    return method


# ---- the race ---------------------------------------------------------------------------------


def test_follow__samplers_average_densities_of_the_second_half() -> None:
    race = make_race()
    found = mixtures_methods.follow(method_of([-9.0, -2.0, -1.0, -3.0]), race, is_sampler=True)
    last = math.log((math.exp(-1.0) + math.exp(-3.0)) / 2)
    assert [seconds for seconds, _ in found["curve"]] == [1.0, 2.0, 3.0, 4.0]
    assert found["curve"][-1][1] == pytest.approx(last)
    plain = mixtures_methods.follow(method_of([-9.0, -2.0]), race, is_sampler=False)
    assert [value for _, value in plain["curve"]] == [-9.0, -2.0]


def test_follow__stops_at_the_budget_and_at_the_last_step() -> None:
    endless = method_of([-1.0] * 100)
    assert mixtures_methods.follow(endless, make_race(), is_sampler=True)["steps"] == 6
    short = make_race(budget=2.5)
    found = mixtures_methods.follow(endless, short, is_sampler=True)
    assert found["steps"] == 3
    assert found["step_seconds"] == 1.0
    assert found["n_clusters"] == 4


def test_arrival__is_the_first_time_that_is_good_enough() -> None:
    curve = [(1.0, -3.0), (2.0, -1.0), (3.0, -2.0)]
    assert mixtures.arrival(curve, -2.0) == 2.0
    assert mixtures.arrival(curve, -0.5) is None


def test_planted__density_is_that_of_its_mixture() -> None:
    truth = mixtures.planted(3, n_columns=2)
    rows = truth.draw(5, np.random.default_rng(0))
    expected = sum(
        weight * norm.pdf(rows, centre, width).prod(axis=1)
        for weight, centre, width in zip(truth.weights, truth.centres, truth.widths, strict=True)
    )
    np.testing.assert_allclose(truth.log_density(rows), np.log(expected))


def test_partition_density__integrates_to_one() -> None:
    grid = np.linspace(-60.0, 60.0, 24_001)[:, None]
    rows = np.random.default_rng(0).normal(size=(30, 1))
    race = mixtures_methods.Race(rows, grid, 3, 1.0, 1)
    family = mixtures_methods.resolved(rows)
    labels = np.repeat([4, 7], [10, 20])  # gaps in numbers
    found = mixtures_methods.partition_density(race, family, labels, 0.5)
    assert np.trapezoid(np.exp(found), grid[:, 0]) == pytest.approx(1.0, abs=2e-3)


def test_student_density__is_the_mixture_of_scipy() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 2))
    weights, freedom = np.array([0.3, 0.7]), np.array([4.0, 9.0])
    means, spread = np.array([[0.0, 1.0], [-1.0, 2.0]]), np.array([[1.0, 2.0], [0.5, 0.3]])
    expected = sum(
        weights[k] * student.pdf(rows, freedom[k], means[k], np.sqrt(spread[k])).prod(axis=1)
        for k in range(2)
    )
    found = mixtures_methods._student_density(rows, weights, means, spread, freedom)
    np.testing.assert_allclose(found, np.log(expected))


def test_sklearn__steps_are_iterations_with_growing_predictions() -> None:
    race = make_race(steps=5)
    found = mixtures_methods.follow(mixtures_methods.sklearn_variational, race, is_sampler=False)
    assert 1 <= found["steps"] <= 5
    assert all(seconds > 0 for seconds, _ in found["curve"])


def test_numpyro__density_and_weights_are_those_of_its_mixture() -> None:
    pytest.importorskip("numpyro")
    race = make_race()
    parts = mixtures_methods._NumPyroParts(race)
    values = parts.start()
    sticks = np.asarray(values["sticks"])
    weights = [sticks[0], (1 - sticks[0]) * sticks[1], (1 - sticks[0]) * (1 - sticks[1])]
    means, width = np.asarray(values["means"]), 1 / np.sqrt(np.asarray(values["precision"]))
    expected = sum(
        weights[k] * norm.pdf(race.held_out, means[k], width[k]).prod(axis=1) for k in range(3)
    )
    np.testing.assert_allclose(parts.density(values), np.log(expected))


# ---- ensembles --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_numpy_sweep__draws_what_ours_draws(seed: int) -> None:
    sizes = ensembles.SweepSizes(80, 3, 5, 4, 0, 0, 1)
    codes, _ = ensembles.planted_labels(sizes)
    n_labels = np.full(3, 5)
    sampler = DirichletEnsembleSampler.of(codes, n_labels)
    random = np.random.default_rng(seed)
    ours = random.permutation(np.arange(80) % 12).astype(np.int32)
    theirs = ours.copy()
    for _ in range(4):
        uniforms = random.random(80)
        n = int(ours.max()) + 1
        n = sampler._sweep_items(sampler.open(), math.log(0.7), uniforms, n, ours)
        ensembles.numpy_sweep(codes, n_labels, 1.0, 0.7, uniforms, theirs)
        np.testing.assert_array_equal(ours, theirs)
        assert n == theirs.max() + 1


def test_ordering__asks_for_both_steps() -> None:
    def runs(**values: float) -> list[dict[str, Any]]:
        return [{name: {"test": {"predictive": value}} for name, value in values.items()}]

    assert ensembles_tables.ordering(runs(MM=3.0, BCE=2.0, DPCE=1.0), "test", "predictive")
    for mm, bce, dpce in itertools.permutations([1.0, 2.0, 3.0]):
        is_so = ensembles_tables.ordering(runs(MM=mm, BCE=bce, DPCE=dpce), "test", "predictive")
        assert is_so == ((mm, bce, dpce) == (3.0, 2.0, 1.0))


def test_rows_of__makes_up_rows_of_the_shape_where_files_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(data.VARIABLE, raising=False)
    kind = ensembles_tables.labelled_sets()[0]
    X, y, is_real = ensembles_tables.rows_of(kind)
    assert X.shape == kind.shape
    assert len(np.unique(y)) == kind.classes
    assert not is_real
    np.testing.assert_allclose(X.std(axis=0), 1.0)


@needs_files
def test_rows_of__has_the_published_classes() -> None:
    for kind in ensembles_tables.labelled_sets():
        X, y, is_real = ensembles_tables.rows_of(kind)
        assert is_real
        assert len(np.unique(y)) == kind.classes
        n_columns = kind.shape[1] - (kind.name == "segmentation")  # a constant one is left out
        assert X.shape == (1560 if kind.name == "isolet" else kind.shape[0], n_columns)
