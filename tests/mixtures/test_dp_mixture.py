"""DPMixture as users meet it: what it finds, what it says of rows, what it refuses."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.integrate import trapezoid
from scipy.special import gammaln, logsumexp
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import distclust
from distclust import DPMixture, events
from distclust.errors import CapacityError, ConvergenceWarning, InputError, ModelFormatError
from distclust.families import Bernoulli, DiagonalGaussian
from distclust.mixtures import chain_estimator
from distclust.mixtures.chains import SWEEPS_BETWEEN_LOOKS
from distclust.mixtures.dp_mixture import SAMPLERS

CENTRES = np.array([[-4.0, 0.0], [0.0, 4.0], [4.0, 0.0]])
FITTED = ("labels_", "draws_", "confidence_", "expected_loss_", "concentration_", "n_sweeps_")


def make_rows(n: int = 90, seed: int = 0, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % len(CENTRES)
    return CENTRES[truth] + noise * rng.normal(size=(n, 2)), truth


def quick(**more: Any) -> DPMixture:
    return DPMixture(**{"n_chains": 2, "max_sweeps": 60, "stop": None, "random_state": 0, **more})


def check_same(one: DPMixture, other: DPMixture) -> None:
    for name in FITTED:
        a, b = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        assert a.tobytes() == b.tobytes(), name
    assert list(one.traces_) == list(other.traces_)
    for name, trace in one.traces_.items():
        assert trace.tobytes() == other.traces_[name].tobytes(), name


@pytest.fixture(scope="module")
def fitted() -> DPMixture:
    return quick().fit(make_rows()[0])


@parametrize_with_checks([quick(max_sweeps=10), quick(max_sweeps=10, sampler="blocked-tdp")])
def test_sklearn(estimator, check):
    check(estimator)


# ---- what it finds ------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_fit__finds_clusters(sampler):
    rows, truth = make_rows()
    model = quick(sampler=sampler, max_sweeps=200, init="single").fit(rows)
    assert adjusted_rand_score(truth, model.labels_) == 1.0
    assert model.n_clusters_ == 3
    assert model.labels_.dtype == np.int64
    first = [int(np.flatnonzero(model.labels_ == k)[0]) for k in range(3)]
    assert first == sorted(first), "labels are numbered by first appearance"


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_fit__other_kinds_of_data(sampler):
    rng = np.random.default_rng(1)
    truth = np.arange(60) % 2
    ones = (rng.random((60, 20)) < np.where(truth[:, None], 0.9, 0.1)).astype(float)
    dense = quick(sampler=sampler).fit(ones)
    sparse = quick(sampler=sampler, family="bernoulli").fit(sp.csr_array(ones))
    assert isinstance(dense.family_, Bernoulli)
    assert adjusted_rand_score(truth, dense.labels_) == 1.0
    assert adjusted_rand_score(truth, sparse.labels_) == 1.0


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_fit__mixed_table_with_gaps(sampler):
    rng = np.random.default_rng(2)
    truth = np.arange(80) % 2
    table = pd.DataFrame(
        {
            "colour": np.where(truth == 1, "red", "blue"),
            "size": truth * 6.0 + rng.normal(size=80),
            "count": rng.poisson(2 + 20 * truth).astype(float),
        }
    )
    table.loc[::7, "size"] = np.nan
    model = quick(sampler=sampler, max_sweeps=200).fit(table)
    assert adjusted_rand_score(truth, model.labels_) == 1.0
    assert model.predict(table.iloc[:2]).tolist() == model.labels_[:2].tolist()


def test_labels__are_the_draw_with_the_least_expected_variation_of_information(fitted):
    rows, _ = make_rows(noise=3.0)  # uncertain: draws differ
    model = quick(max_sweeps=100).fit(rows)
    draws = model.draws_.reshape(-1, len(rows))

    def entropy(*labels: np.ndarray) -> float:
        _, counts = np.unique(np.stack(labels), axis=1, return_counts=True)
        share = counts / counts.sum()
        return float(-(share * np.log2(share)).sum())

    losses = [np.mean([2 * entropy(c, z) - entropy(c) - entropy(z) for z in draws]) for c in draws]
    assert len(np.unique(np.round(losses, 9))) > 3
    assert model.expected_loss_ == pytest.approx(min(losses), abs=1e-12)
    best = draws[int(np.argmin(losses))]
    assert adjusted_rand_score(best, model.labels_) == 1.0


def test_draws__are_those_of_the_second_half(fitted):
    n_chains, n_draws, n_rows = fitted.draws_.shape
    assert (n_chains, n_rows) == (2, 90)
    assert n_draws == 30  # of 60 sweeps, all kept
    assert fitted.traces_["log_joint"].shape == (2, 60)
    counts = [[len(np.unique(draw)) for draw in chain] for chain in fitted.draws_]
    assert np.array_equal(counts, fitted.traces_["n_clusters"][:, 30:])


def test_concentration__is_the_mean_over_what_is_kept(fitted):
    assert fitted.concentration_ == fitted.traces_["concentration"][:, 30:].mean()
    given = quick(concentration=2.5).fit(make_rows()[0])
    assert given.concentration_ == 2.5
    moved = quick(concentration="gamma-mh").fit(make_rows()[0])
    assert len(np.unique(moved.traces_["concentration"])) > 20
    few = quick(concentration_prior=(1.0, 100.0)).fit(make_rows()[0])
    assert few.concentration_ < 0.2 < fitted.concentration_


def test_coassignment__is_how_often_rows_were_together(fitted):
    chosen = [0, 3, 5, 89]
    draws = fitted.draws_.reshape(-1, 90)[:, chosen]
    want = np.mean(draws[:, :, None] == draws[:, None, :], axis=0)
    assert np.allclose(fitted.coassignment(chosen), want, atol=1e-12)
    with pytest.raises(InputError):
        fitted.coassignment([90])
    with pytest.raises(CapacityError, match="max_cells=None"):
        fitted.coassignment(None, max_cells=100)
    assert fitted.coassignment(None, max_cells=None).shape == (90, 90)


def test_confidence__is_low_between_two_clusters():
    rng = np.random.default_rng(3)
    rows = np.concatenate([rng.normal(-3, 1, 60), rng.normal(3, 1, 60), [0.0]])[:, None]
    model = quick(max_sweeps=300, family="diagonal_gaussian").fit(rows)
    assert model.confidence_.shape == (121,)
    assert model.confidence_[-1] < np.median(model.confidence_) - 0.1
    assert np.all((model.confidence_ >= 0) & (model.confidence_ <= 1))


# ---- weights ------------------------------------------------------------------------------------


def test_row_weights__of_one_change_nothing(fitted):
    rows, _ = make_rows()
    weighted = quick().fit(rows, row_weights=np.ones(len(rows)))
    assert np.array_equal(weighted.labels_, fitted.labels_)
    assert np.allclose(weighted.traces_["log_joint"], fitted.traces_["log_joint"], rtol=1e-9)


def test_row_weights__log_joint_is_that_of_the_expanded_rows():
    rows, _ = make_rows(12)
    weights = np.arange(12) % 3 + 1.0
    model = quick(concentration=1.0).fit(rows, row_weights=weights)
    labels = np.repeat(model.draws_[0, -1], weights.astype(int))
    expanded = np.repeat(rows, weights.astype(int), axis=0)
    stats = model.family_.accumulate(expanded, labels, int(labels.max()) + 1)
    stats = stats[stats[:, 0] > 0]
    total = weights.sum()
    want = gammaln(stats[:, 0]).sum() - gammaln(1.0 + total) + gammaln(1.0)
    want += model.family_.log_marginal(stats).sum()
    assert model.traces_["log_joint"][0, -1] == pytest.approx(want, rel=1e-9)


# ---- what it says of rows -----------------------------------------------------------------------


def test_predict_proba__is_size_times_predictive(fitted):
    rows, _ = make_rows()
    new = np.array([[0.0, 0.0], [-4.0, 0.5], [2.0, 2.0]])
    stats = fitted.family_.accumulate(rows, fitted.labels_, 3)
    log_joint = fitted.family_.log_predictive(new, stats) + np.log(np.bincount(fitted.labels_))
    want = np.exp(log_joint - logsumexp(log_joint, axis=1, keepdims=True))
    assert np.allclose(fitted.predict_proba(new), want, atol=1e-12)
    assert np.array_equal(fitted.predict(new), want.argmax(axis=1))


def test_score_samples__is_a_density():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(-2, 0.5, 40), rng.normal(2, 0.5, 40)])[:, None]
    model = quick(family="diagonal_gaussian").fit(rows)
    grid = np.sinh(np.linspace(-9, 9, 20_001))
    density = np.exp(model.score_samples(grid[:, None]))
    assert trapezoid(density, grid) == pytest.approx(1.0, abs=2e-3)
    assert model.score(rows) == pytest.approx(model.score_samples(rows).mean())


# ---- when it stops ------------------------------------------------------------------------------


def test_stop__as_soon_as_chains_agree():
    rows, _ = make_rows(45)
    model = DPMixture(n_chains=4, max_sweeps=2000, random_state=1).fit(rows)
    assert model.agreed_
    assert model.n_sweeps_ < 2000
    assert model.n_sweeps_ % SWEEPS_BETWEEN_LOOKS == 0
    assert max(model.diagnostics_["rhat"].values()) <= 1.01
    assert min(model.diagnostics_["ess_bulk"].values()) >= 400
    assert min(model.diagnostics_["ess_tail"].values()) >= 400


def test_stop__the_longer_run_begins_with_the_shorter():
    rows, _ = make_rows(45)
    settings = {"n_chains": 3, "max_sweeps": 800, "random_state": 1}
    stopped = DPMixture(**settings, rhat=1.1, min_samples=40).fit(rows)
    whole = DPMixture(**settings, stop=None).fit(rows)
    assert stopped.agreed_
    assert stopped.n_sweeps_ < whole.n_sweeps_ == 800
    for name, trace in stopped.traces_.items():
        assert np.array_equal(trace, whole.traces_[name][:, : stopped.n_sweeps_])


def test_stop__chains_that_do_not_agree_are_told():
    rows, _ = make_rows(45)
    with pytest.warns(ConvergenceWarning, match=r"do not agree after 10 sweeps") as told:
        model = DPMixture(n_chains=2, max_sweeps=10, random_state=0).fit(rows)
    assert not model.agreed_
    found, text = model.diagnostics_, str(told[0].message)
    worst = max(found["rhat"], key=found["rhat"].get)
    least = min(*found["ess_bulk"].values(), *found["ess_tail"].values())
    assert f"R-hat of {worst} is {found['rhat'][worst]:.3f}" in text
    assert f"{least:.0f} effective samples" in text
    assert "max_sweeps" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick(max_sweeps=10).fit(rows)  # nothing was asked for


def test_chains__do_not_depend_on_each_other():
    rows, _ = make_rows(45)
    two, five = quick(n_chains=2).fit(rows), quick(n_chains=5).fit(rows)
    for name, trace in two.traces_.items():
        assert np.array_equal(trace, five.traces_[name][:2])


def test_seed__decides():
    rows, _ = make_rows(45)
    check_same(quick().fit(rows), quick().fit(rows))
    assert not np.array_equal(
        quick().fit(rows).traces_["log_joint"],
        quick(random_state=1).fit(rows).traces_["log_joint"],
    )


@pytest.mark.parametrize("threads", ["1", "3"])
def test_threads__make_no_difference(threads, fitted, monkeypatch):
    monkeypatch.setenv("DISTCLUST_THREADS", threads)
    check_same(quick().fit(make_rows()[0]), fitted)


@pytest.mark.cluster
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_workers__make_no_difference(sampler, on_client):
    rows, _ = make_rows()
    there = quick(sampler=sampler).fit(rows)
    with distclust.connect("threads", threads=1):
        here = quick(sampler=sampler).fit(rows)
    check_same(there, here)
    assert np.array_equal(there.predict(rows), here.predict(rows))


def test_chains__that_wait_for_others_are_told(monkeypatch):
    monkeypatch.setenv("DISTCLUST_THREADS", "2")
    heard: list[events.Event] = []
    with events.listen(heard.append):
        quick(n_chains=5, max_sweeps=4).fit(make_rows(12)[0])
    notes = [event.metrics["note"] for event in heard if "note" in event.metrics]
    assert notes == ["5 chains on 2 threads: 2 at a time"]
    by_chain = {event.stage for event in heard if event.stage.startswith("chain ")}
    assert by_chain == {f"chain {i}" for i in range(5)}


# ---- saving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["auto", DiagonalGaussian()], ids=str)
def test_save__what_is_loaded_is_the_same(family, tmp_path):
    rows, _ = make_rows()
    table = pd.DataFrame(rows, columns=["left", "right"])
    model = quick(family=family).fit(table, row_weights=np.arange(len(rows)) % 2 + 1)
    model.save(tmp_path / "m.model")
    loaded = distclust.load(tmp_path / "m.model")
    check_same(model, loaded)
    assert loaded.get_params() == model.get_params() | {"concentration_prior": [1.0, 1.0]}
    assert loaded.diagnostics_ == model.diagnostics_
    assert np.array_equal(loaded.score_samples(table), model.score_samples(table))
    assert np.array_equal(loaded.coassignment([0, 1]), model.coassignment([0, 1]))
    with pytest.raises(InputError):
        loaded.predict(table[["right", "left"]])


def test_save__constants_and_single_chains(tmp_path):
    model = quick(n_chains=1, concentration=1.0).fit(make_rows()[0])
    assert np.isnan(model.diagnostics_["rhat"]["log_joint"])
    model.save(tmp_path / "m.model")
    loaded = distclust.load(tmp_path / "m.model")
    assert np.isnan(loaded.diagnostics_["rhat"]["log_joint"])


@pytest.mark.parametrize("name", ["labels_", "draws_", "_stats", "confidence_"])
def test_load__arrays_that_do_not_fit_are_refused(name, tmp_path, fitted):
    from distclust.mixtures.persistence import to_archive
    from distclust.store import write_archive

    kind, facts, arrays = to_archive(fitted)
    arrays[name] = arrays[name][..., 1:]
    write_archive(tmp_path / "m.model", kind, facts, arrays)
    with pytest.raises(ModelFormatError):
        distclust.load(tmp_path / "m.model")


def test_to_arviz__has_both_halves(fitted):
    tree = fitted.to_arviz()
    late, early = tree["posterior"], tree["warmup_posterior"]
    assert np.array_equal(late["log_joint"].values, fitted.traces_["log_joint"][:, 30:])
    assert np.array_equal(early["n_clusters"].values, fitted.traces_["n_clusters"][:, :30])
    assert late["draw"].values.tolist() == list(range(31, 61))


# ---- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"sampler": "gibbs"}, "sampler"),
        ({"init": "random"}, "init"),
        ({"n_chains": 0}, "n_chains"),
        ({"max_sweeps": 1}, "max_sweeps"),
        ({"concentration": -1.0}, "concentration"),
        ({"concentration": "beta"}, "concentration"),
        ({"concentration": "gamma-mh", "sampler": "blocked-tdp"}, "draws of their own"),
        ({"concentration_prior": (1.0, 0.0)}, "rate"),
        ({"concentration_prior": (1.0,)}, "shape and rate"),
        ({"stop": "ess"}, "stop"),
        ({"rhat": 1.0}, "rhat"),
        ({"truncation": 1}, "truncation"),
        ({"split_merge": "yes"}, "split_merge"),
        ({"random_state": "a"}, "random_state"),
        ({"family": "poisson"}, "whole numbers|counts|from 0"),
    ],
)
def test_fit__bad_parameters(parameters, said):
    with pytest.raises(InputError, match=said):
        quick(**parameters).fit(make_rows()[0])


def test_fit__bad_rows():
    with pytest.raises(InputError, match="at least 2 rows"):
        quick().fit(np.ones((1, 2)))
    with pytest.raises(InputError, match="finite numbers"):
        quick().fit(np.array([[1.0], [np.inf], [0.3]]))
    with pytest.raises(InputError, match="no missing values"):
        quick(family="gaussian").fit(np.array([[1.0, 2.0], [np.nan, 0.5], [0.3, 0.1]]))
    with pytest.raises(InputError, match="row_weights"):
        quick().fit(make_rows()[0], row_weights=np.zeros(90))


def test_fit__rows_that_do_not_fit_into_memory(monkeypatch):
    free = type("Memory", (), {"available": 1000})
    monkeypatch.setattr(chain_estimator.psutil, "virtual_memory", lambda: free)
    with pytest.raises(CapacityError, match="sample"):
        quick().fit(make_rows()[0])


def test_fit__leaves_no_rows_behind(fitted):
    sizes = [np.asarray(v).shape for v in vars(fitted).values() if isinstance(v, np.ndarray)]
    assert not any(shape == (90, 2) for shape in sizes)
    assert all(a.shape[0] == 2 for a in fitted.traces_.values())
    assert list(itertools.chain(fitted.traces_)) == ["log_joint", "n_clusters", "concentration"]
