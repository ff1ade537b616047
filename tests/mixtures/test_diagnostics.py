"""R-hat and effective sample sizes: known processes, and an own R-hat by loops."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from distclust.mixtures.diagnostics import diagnose, ess_bulk, ess_tail, rank_rhat
from tests.oracles import consensus as oracle


def autoregressive(rng: np.random.Generator, phi: float, n_chains: int, n_draws: int) -> np.ndarray:
    """Return stationary chains x' = phi x + noise, with variance 1."""
    noise = rng.normal(size=(n_chains, n_draws)) * math.sqrt(1 - phi**2)
    draws = np.empty((n_chains, n_draws))
    draws[:, 0] = rng.normal(size=n_chains)
    for t in range(1, n_draws):
        draws[:, t] = phi * draws[:, t - 1] + noise[:, t]
    return draws


# ---- effective sample sizes ---------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9])
def test_ess__of_autoregressive_chains(phi, rng):
    """Within 15 %; one estimate from 4 x 20,000 draws is off by some hundredths."""
    draws = autoregressive(rng, phi, 4, 20_000)
    assert ess_bulk(draws) / draws.size == pytest.approx((1 - phi) / (1 + phi), rel=0.15)


@pytest.mark.statistical
def test_ess_tail__sees_tails_that_come_in_spells(rng):
    """Signs are independent, so the middle is well known; wide spells of 200 draws are few."""
    draws = rng.normal(size=(4, 4000))
    assert ess_tail(draws) / draws.size == pytest.approx(1.0, abs=0.2)
    spells = np.repeat(rng.permuted(np.tile([1.0, 5.0], (4, 10)), axis=1), 200, axis=1)
    assert ess_bulk(draws * spells) > 0.7 * draws.size
    assert ess_tail(draws * spells) < 0.2 * draws.size


def test_ess__grows_with_the_number_of_chains(rng):
    draws = autoregressive(rng, 0.5, 8, 4000)
    assert ess_bulk(draws[:2]) < 0.4 * ess_bulk(draws)


# ---- R-hat --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_draws", [8, 41, 200])
@pytest.mark.parametrize("n_chains", [2, 4])
def test_rank_rhat__equals_an_own_implementation(n_chains, n_draws, rng):
    draws = autoregressive(rng, 0.6, n_chains, n_draws)
    assert rank_rhat(draws) == pytest.approx(oracle.rank_rhat(draws.tolist()), rel=1e-9)
    whole = np.round(2 * draws)  # as numbers of clusters are, with many ties
    assert rank_rhat(whole) == pytest.approx(oracle.rank_rhat(whole.tolist()), rel=1e-9)
    wild = rng.standard_cauchy((n_chains, n_draws))
    assert rank_rhat(wild) == pytest.approx(oracle.rank_rhat(wild.tolist()), rel=1e-9)


def test_rank_rhat__near_one_for_chains_that_agree(rng):
    assert 0.999 < rank_rhat(rng.normal(size=(4, 2000))) < 1.01


def test_rank_rhat__chains_that_are_shifted(rng):
    """Ranks bound it: with two chains far apart it is near 1.8, with plain draws above 3."""
    draws = rng.normal(size=(4, 500)) + np.array([0, 0, 8, 8])[:, None]
    assert rank_rhat(draws) > 1.5
    assert oracle.plain_rhat(draws.tolist()) > 3


def test_rank_rhat__chains_of_different_spread(rng):
    """They have the same mean: only the folded draws show it."""
    draws = rng.normal(size=(4, 1000)) * np.array([1, 1, 4, 4])[:, None]
    assert rank_rhat(draws) > 1.1
    assert oracle.plain_rhat(draws.tolist()) < 1.02


def test_rank_rhat__a_common_trend_is_caught_by_halves_only(rng):
    draws = rng.normal(size=(4, 1000)) + np.linspace(0, 4, 1000)
    assert oracle.plain_rhat(draws.tolist()) < 1.01
    assert rank_rhat(draws) > 1.2


# ---- what is not random -------------------------------------------------------------------------


def test_constants__the_same_in_all_chains():
    draws = np.full((4, 100), 3.0)
    assert rank_rhat(draws) == 1.0
    assert ess_bulk(draws) == ess_tail(draws) == 400.0


def test_constants__that_differ_never_agree():
    draws = np.repeat([[1.0], [1.0], [2.0]], 100, axis=1)
    assert rank_rhat(draws) == math.inf


def test_one_chain_and_too_few_draws_are_unknown(rng):
    assert math.isnan(rank_rhat(rng.normal(size=(1, 100))))
    assert math.isnan(rank_rhat(rng.normal(size=(4, 3))))
    assert math.isnan(ess_bulk(rng.normal(size=(4, 3))))
    assert math.isnan(ess_tail(rng.normal(size=(4, 3))))
    assert math.isfinite(ess_bulk(rng.normal(size=(1, 100))))


def test_four_draws_are_enough(rng):
    draws = rng.normal(size=(2, 4))
    assert math.isfinite(rank_rhat(draws))
    assert math.isfinite(ess_bulk(draws))
    assert math.isfinite(ess_tail(draws))


# ---- all figures --------------------------------------------------------------------------------


def test_diagnose__each_figure_by_its_name(rng):
    good, bad = rng.normal(size=(3, 400)), autoregressive(rng, 0.95, 3, 400)
    found = diagnose(["good", "bad"], np.stack([good, bad], axis=2))
    assert found.rhat == {"good": rank_rhat(good), "bad": rank_rhat(bad)}
    assert found.ess_bulk == {"good": ess_bulk(good), "bad": ess_bulk(bad)}
    assert found.ess_tail == {"good": ess_tail(good), "bad": ess_tail(bad)}
    assert found.worst_rhat == rank_rhat(bad)
    assert found.least_ess == min(ess_bulk(bad), ess_tail(bad))
    assert found.as_dict()["ess_tail"]["bad"] == ess_tail(bad)


def test_diagnose__what_is_unknown_is_taken_for_bad(rng):
    found = diagnose(["x"], rng.normal(size=(1, 3, 1)))
    assert found.worst_rhat == math.inf
    assert found.least_ess == 0.0


def test_diagnose__one_constant_among_figures_that_move(rng):
    traces = np.stack([rng.normal(size=(4, 300)), np.ones((4, 300))], axis=2)
    found = diagnose(["x", "constant"], traces)
    assert found.worst_rhat == rank_rhat(traces[:, :, 0])


def test_diagnose__one_chain_of_several_stands_still(rng):
    """It is not the same constant: what moves elsewhere must not hide it."""
    draws = rng.normal(size=(4, 300))
    draws[2] = 5.0
    assert rank_rhat(draws) > 1.3


def test_rank_rhat__of_halves_that_are_constant_and_differ_is_infinite() -> None:
    draws = np.array([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isinf(rank_rhat(draws))
