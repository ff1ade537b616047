"""Point estimates against definitions over all pairs and all partitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mutual_info_score, rand_score

from distclust import engine
from distclust.errors import InputError
from distclust.mixtures import point_estimates as module
from distclust.mixtures.point_estimates import (
    best_draw,
    canonical,
    choose_draw,
    expected_binder,
    expected_vi,
    minimise,
)
from tests.oracles import consensus as oracle

EXPECTED = {"vi": expected_vi, "binder": expected_binder}
LOSSES = sorted(EXPECTED)


def noisy(
    rng: np.random.Generator, n_draws: int, n_rows: int, n_clusters: int = 3, noise: float = 0.2
) -> np.ndarray:
    """Return draws around one partition."""
    middle = rng.integers(0, n_clusters, n_rows)
    others = rng.integers(0, n_clusters + 1, (n_draws, n_rows))
    return np.where(rng.random((n_draws, n_rows)) < noise, others, middle)


def library_vi(c: np.ndarray, z: np.ndarray) -> float:
    """Return the variation of information from mutual information, which is in nats."""
    nats = mutual_info_score(c, c) + mutual_info_score(z, z) - 2 * mutual_info_score(c, z)
    return nats / math.log(2)


LIBRARY = {"vi": library_vi, "binder": lambda c, z: 1 - rand_score(c, z)}


# ---- canonical labels ---------------------------------------------------------------------------


@given(st.lists(st.integers(-3, 6), max_size=12))
def test_canonical__labels_by_first_appearance(labels):
    found = canonical(np.array(labels, np.int64)).tolist()
    order = list(dict.fromkeys(labels))
    assert found == [order.index(label) for label in labels]


@pytest.mark.parametrize(
    "labels",
    [
        np.array([2**40, -(2**40), 2**40]),
        np.array([200, 0, 200], np.uint8),
        np.array([True, False, True]),
        np.array([127, -128, 127], np.int8),
    ],
)
def test_canonical__any_kind_of_whole_number(labels):
    assert canonical(labels).tolist() == [0, 1, 0]


def test_canonical__refuses_what_is_no_labels():
    with pytest.raises(InputError, match="whole numbers"):
        canonical(np.array([0.5, 1.0]))
    with pytest.raises(InputError, match="whole numbers"):
        canonical(np.zeros((2, 2), int))


# ---- expected losses ----------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@given(data=st.data())
def test_expected__equals_the_definition_over_all_items_and_pairs(loss, data):
    n_rows = data.draw(st.integers(1, 8))
    partition = st.lists(st.integers(0, 4), min_size=n_rows, max_size=n_rows)
    draws = data.draw(st.lists(partition, min_size=1, max_size=6))
    candidates = data.draw(st.lists(partition, min_size=1, max_size=5))
    found = EXPECTED[loss](np.array(candidates), np.array(draws))
    wanted = [oracle.expected_loss(c, draws, loss) for c in candidates]
    assert found == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_expected__equals_a_public_library(loss, rng):
    draws, candidate = noisy(rng, 9, 60), rng.integers(0, 5, 60)
    wanted = np.mean([LIBRARY[loss](candidate, z) for z in draws])
    assert EXPECTED[loss](candidate, draws) == pytest.approx([wanted], rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_expected__row_weights_are_multiplicities(loss, rng):
    draws, candidates = noisy(rng, 7, 12), rng.integers(0, 4, (5, 12))
    counts = rng.integers(0, 4, 12)
    found = EXPECTED[loss](candidates, draws, row_weights=counts)
    repeated = np.repeat(np.arange(12), counts)
    wanted = EXPECTED[loss](candidates[:, repeated], draws[:, repeated])
    assert found == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_expected__weights_that_are_not_whole(loss, rng):
    """Halves of doubled rows: VI does not see a common factor, Binder counts other pairs."""
    draws, candidates = noisy(rng, 7, 12), rng.integers(0, 4, (5, 12))
    weights = rng.integers(1, 6, 12) / 2 + 0.25
    found = EXPECTED[loss](candidates, draws, row_weights=weights)
    whole = EXPECTED[loss](candidates, draws, row_weights=4 * weights)
    total = weights.sum()
    factor = 1.0 if loss == "vi" else (4 * total - 1) / (4 * (total - 1))
    assert found == pytest.approx(factor * whole, rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_expected__draw_weights(loss, rng):
    draws, candidates = noisy(rng, 6, 10), rng.integers(0, 4, (5, 10))
    weights = rng.uniform(0, 3, 6)
    wanted = [oracle.expected_loss(c, draws, loss, weights) for c in candidates]
    assert EXPECTED[loss](candidates, draws, draw_weights=weights) == pytest.approx(wanted)


@pytest.mark.parametrize("loss", LOSSES)
def test_expected__many_clusters_take_the_grouped_way(loss, rng):
    """Tables that would be large are made row after row; the figures are the same."""
    n_rows, n_clusters = 400, 160
    assert 4 * n_clusters**2 > module.numerics._SMALL_TABLES
    draws = noisy(rng, 5, n_rows, n_clusters)
    draws[:, :n_clusters] = np.arange(n_clusters)
    candidates = np.where(rng.random((2, n_rows)) < 0.3, 7, draws[:2])
    candidates[:, :n_clusters] = np.arange(n_clusters)
    counts = rng.integers(1, 4, n_rows)
    rows = np.repeat(np.arange(n_rows), counts)
    found = EXPECTED[loss](candidates, draws, counts)
    wanted = [np.mean([LIBRARY[loss](c[rows], z[rows]) for z in draws]) for c in candidates]
    assert found == pytest.approx(wanted, rel=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_expected__equal_partitions_are_at_distance_zero(loss, rng):
    draw = rng.integers(0, 5, (1, 50))
    names = rng.permutation(100)[draw]
    assert EXPECTED[loss](names, draw).tolist() == [0.0]


@pytest.mark.parametrize("loss", LOSSES)
def test_expected__one_row(loss):
    assert EXPECTED[loss](np.array([[3]]), np.array([[5], [7]])).tolist() == [0.0]


def test_expected__no_candidates():
    assert expected_vi(np.empty((0, 3), int), np.zeros((2, 3), int)).shape == (0,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": np.zeros((2, 3))}, "whole numbers"),
        ({"draws": np.empty((0, 3), int)}, "at least one partition"),
        ({"candidates": np.zeros((1, 4), int)}, "3 rows"),
        ({"row_weights": [1, 2]}, "shape"),
        ({"row_weights": [1, -2, 3]}, "at least 0"),
        ({"row_weights": [0, 0, 0]}, "not all 0"),
        ({"draw_weights": [1, np.nan]}, "finite"),
    ],
)
def test_expected__bad_input(options, message):
    good = {"candidates": np.zeros((1, 3), int), "draws": np.zeros((2, 3), int)}
    with pytest.raises(InputError, match=message):
        expected_vi(**{**good, **options})


def test_expected_binder__weights_that_hold_no_pair():
    with pytest.raises(InputError, match="multiplicities"):
        expected_binder(np.zeros((1, 3), int), np.zeros((2, 3), int), row_weights=np.ones(3) / 3)


# ---- the best draw ------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_best_draw__least_expected_loss_of_all(loss, rng):
    draws = noisy(rng, 15, 9)
    index, losses = best_draw(draws, loss)
    wanted = [oracle.expected_loss(z, draws, loss) for z in draws]
    assert losses == pytest.approx(wanted, abs=1e-12)
    assert index == np.argmin(losses)


@pytest.mark.parametrize("loss", LOSSES)
def test_best_draw__the_first_of_equal_ones(loss):
    far, near = [0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1]
    same = [5, 5, 5, 2, 2, 2]  # by other names
    index, losses = best_draw(np.array([far, same, near, near]), loss)
    assert index == 1
    assert losses[1] == losses[2] == losses[3] < losses[0]
    # Two draws are equally far from each other.
    assert best_draw(np.array([near, far]), loss)[0] == 0


def test_best_draw__weights_of_rows_and_draws(rng):
    draws, counts, shares = noisy(rng, 8, 10), rng.integers(1, 4, 10), rng.uniform(0.5, 2, 8)
    index, losses = best_draw(draws, "vi", counts, shares)
    rows = np.repeat(np.arange(10), counts)
    wanted = [oracle.expected_loss(z[rows], draws[:, rows], "vi", shares) for z in draws]
    assert losses == pytest.approx(wanted, abs=1e-12)
    assert index == np.argmin(losses)


@pytest.mark.parametrize("loss", LOSSES)
def test_best_draw__equal_partitions_are_scored_once(loss, rng, monkeypatch):
    compared = []
    plain = module.numerics.joint_sums

    def spy(candidate, n_clusters, draws, *rest):
        compared.append((len(draws), candidate.size))
        plain(candidate, n_clusters, draws, *rest)

    monkeypatch.setattr(module.numerics, "joint_sums", spy)
    few = np.array([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0, 1, 1], [0, 1] * 4])
    names = rng.permutation(9)
    many = np.concatenate([few, names[few], few])[:, np.arange(24) % 8]
    _, losses = best_draw(many, loss)
    assert sum(n for n, _ in compared) == 3  # the pairs of three
    assert max(n for _, n in compared) <= 8  # and equal rows are counted together
    assert losses == pytest.approx(EXPECTED[loss](many, many), abs=1e-12)


def test_best_draw__same_bits_whatever_the_threads(rng):
    draws, weights = noisy(rng, 40, 80), rng.uniform(0.5, 1.5, 80)
    found = []
    for threads in (1, 2, 5):
        with engine.connect("threads", threads=threads):
            _, losses = best_draw(draws, "vi", weights)
            found.append((losses.tobytes(), expected_vi(draws, draws, weights).tobytes()))
    assert found[0] == found[1] == found[2]


def screen(monkeypatch, n_finalists: int = 4) -> None:
    """Make a small problem a large one."""
    monkeypatch.setattr(module, "_EXACT_WORK", 0)
    monkeypatch.setattr(module, "_SCREENING_WORK", 40 * 10 * 30)
    monkeypatch.setattr(module, "_SCREENING_DRAWS", 10)
    monkeypatch.setattr(module, "_FINAL_WORK", 0)
    monkeypatch.setattr(module, "_LEAST_FINALISTS", n_finalists)


@pytest.mark.parametrize("loss", LOSSES)
def test_best_draw__screening_scores_the_best_exactly(loss, rng, monkeypatch):
    draws = noisy(rng, 40, 120)
    draws[:20] = noisy(rng, 20, 120, noise=0.9)  # before the chain was there
    exact = best_draw(draws, loss)[1]
    screen(monkeypatch)
    choice = choose_draw(draws, loss)
    scored = ~np.isnan(choice.losses)
    assert scored.sum() == 4
    assert choice.losses[scored] == pytest.approx(exact[scored], abs=1e-12)
    assert not scored[:20].any()
    assert choice.loss == np.nanmin(choice.losses) == choice.losses[choice.index]
    assert exact[choice.index] <= np.quantile(exact, 0.15)


@pytest.mark.parametrize("loss", LOSSES)
def test_best_draw__a_screening_that_claims_proof_is_right(loss, monkeypatch):
    """A claim is made now and then, and never wrong."""
    claims = 0
    screen(monkeypatch, n_finalists=2)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        close = noisy(rng, 12, 30, noise=0.02)
        apart = rng.integers(0, 6, (3, 30))
        draws = np.concatenate([apart, close])
        choice = choose_draw(draws, loss)
        with monkeypatch.context() as patch:
            patch.setattr(module, "_EXACT_WORK", 10**9)
            exact = choose_draw(draws, loss)
        assert exact.is_proven
        if choice.is_proven:
            claims += 1
            assert choice.loss == pytest.approx(exact.loss, abs=1e-12)
    assert claims >= 3


@pytest.mark.parametrize("loss", LOSSES)
def test_least_losses__bounds_hold(loss, rng):
    draws = noisy(rng, 12, 20, noise=0.4)
    distances = np.array([[oracle.LOSSES[loss](a, b) for b in draws] for a in draws])
    shares = rng.dirichlet(np.ones(12))
    finalists = np.array([1, 4, 5])
    bounds = module._least_losses(distances[finalists], finalists, shares)
    exact = distances @ shares
    assert np.all(bounds <= exact + 1e-12)
    assert np.all(bounds >= 0.3 * exact)  # and say something


def test_best_draw__screening_with_weights_counts_rows_by_weight(rng, monkeypatch):
    """Rows that almost all the weight lies on decide."""
    right = np.arange(120) % 3
    draws = np.array([rng.permutation(right) for _ in range(12)])
    draws[:, :6] = [0, 0, 1, 1, 2, 2]
    draws[:9, :6] = [0, 1, 2, 0, 1, 2]
    weights = np.where(np.arange(120) < 6, 1000.0, 0.01)
    screen(monkeypatch, n_finalists=9)
    choice = choose_draw(draws, "vi", weights)
    assert np.flatnonzero(~np.isnan(choice.losses)).tolist() == list(range(9))


def test_best_draw__bad_loss():
    with pytest.raises(InputError, match="'vi' or 'binder'"):
        best_draw(np.zeros((2, 3), int), "rand")


# ---- partitions that are no draws ---------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_minimise__finds_the_exact_minimiser_of_samples(loss, rng):
    draws = noisy(rng, 12, 6, noise=0.5)
    least, which = oracle.least_loss(draws, loss)
    found = minimise(draws, loss, seed=1)
    assert found.loss == pytest.approx(least, abs=1e-10)
    assert tuple(found.labels.tolist()) in which
    assert found.is_settled
    assert found.skipped == {}


@pytest.mark.parametrize("loss", LOSSES)
def test_minimise__finds_the_exact_minimiser_under_an_exact_posterior(loss, rng):
    rows = np.concatenate([rng.normal(-2, 1, 3), rng.normal(2, 1, 3)])
    exact = oracle.posterior(rows, 1.0)
    draws, weights = list(exact), list(exact.values())
    assert sum(weights) == pytest.approx(1)
    least, which = oracle.least_loss(draws, loss, weights)
    found = minimise(np.array(draws), loss, draw_weights=weights)
    assert found.loss == pytest.approx(least, abs=1e-10)
    assert tuple(found.labels.tolist()) in which


@pytest.mark.parametrize("loss", LOSSES)
def test_minimise__seven_items(loss):
    draws = noisy(np.random.default_rng(5), 6, 7, noise=0.4)
    least, which = oracle.least_loss(draws, loss)
    found = minimise(draws, loss)
    assert found.loss == pytest.approx(least, abs=1e-10)
    assert tuple(found.labels.tolist()) in which


@pytest.mark.parametrize("loss", LOSSES)
def test_minimise__relocation_alone_reaches_the_least_loss(loss, rng, monkeypatch):
    """Also from nothing: the other candidates do not help it."""
    monkeypatch.setattr(module._Search, "cut_linkage", lambda self: None)
    draws = noisy(rng, 12, 6, noise=0.5)
    least, _ = oracle.least_loss(draws, loss)
    assert minimise(draws, loss, n_orders=8).losses["relocation"] == pytest.approx(least)


@pytest.mark.parametrize(
    ("loss", "draws"),
    [
        ("vi", ["102121", "011111", "121022", "120211"]),
        ("binder", ["122001", "221222", "222200", "212120"]),
    ],
)
def test_minimise__searches_that_begin_with_nothing_find_more(loss, draws, monkeypatch):
    """From the best draw alone no order leads to the least loss."""
    monkeypatch.setattr(module._Search, "cut_linkage", lambda self: None)
    labels = np.array([[int(label) for label in draw] for draw in draws])
    least, _ = oracle.least_loss(labels, loss)
    assert minimise(labels, loss, n_orders=8).loss == pytest.approx(least, abs=1e-10)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("whole", [True, False])
def test_minimise__nothing_is_gained_by_moving_a_row(loss, whole, rng):
    """Weights of any kind; what is claimed is checked by trying all moves."""
    draws = noisy(rng, 10, 14, noise=0.5)
    weights = rng.integers(1, 4, 14) + (0 if whole else rng.uniform(0, 1, 14))
    found = minimise(draws, loss, row_weights=weights, seed=3)
    assert found.is_settled
    moved = []
    for i, group in itertools.product(range(14), range(int(found.labels.max()) + 2)):
        moved.append(found.labels.copy())
        moved[-1][i] = group
    losses = EXPECTED[loss](np.array(moved), draws, weights)
    assert losses.min() >= found.loss - 1e-9
    assert found.loss == pytest.approx(EXPECTED[loss](found.labels, draws, weights)[0])


@pytest.mark.parametrize("loss", LOSSES)
def test_minimise__no_worse_than_any_family(loss, rng):
    draws, start = noisy(rng, 20, 25), rng.integers(0, 3, 25)
    found = minimise(draws, loss, start=start)
    assert set(found.losses) == {"draws", "start", "linkage", "relocation"}
    assert found.loss == min(found.losses.values())
    assert found.losses["draws"] == pytest.approx(best_draw(draws, loss)[1].min(), abs=1e-12)
    assert found.losses["start"] == pytest.approx(EXPECTED[loss](start, draws)[0], abs=1e-12)
    assert np.array_equal(found.labels, canonical(found.labels))


def test_minimise__linkage_finds_what_no_draw_has(monkeypatch, rng):
    draws = noisy(rng, 60, 40, noise=0.3)
    found = minimise(draws, "vi", n_orders=0)
    assert "relocation" not in found.losses
    assert not found.is_settled
    assert found.losses["linkage"] < found.losses["draws"] - 0.1


@pytest.mark.parametrize("loss", LOSSES)
def test_minimise__start_is_kept_if_it_is_the_best(loss, rng, monkeypatch):
    monkeypatch.setattr(module, "_LINKAGE_ROWS", 0)
    middle = np.arange(30) % 3
    draws = np.where(rng.random((40, 30)) < 0.3, rng.integers(0, 3, (40, 30)), middle)
    found = minimise(draws, loss, start=middle + 7, n_orders=0)
    assert found.labels.tolist() == middle.tolist()


def test_minimise__same_result_whatever_the_threads(rng):
    draws = noisy(rng, 20, 25, noise=0.5)
    found = []
    for threads in (1, 3):
        with engine.connect("threads", threads=threads):
            estimate = minimise(draws, "vi", seed=4)
            found.append((estimate.labels.tobytes(), estimate.loss, estimate.losses))
    assert found[0] == found[1]


def test_minimise__says_what_it_leaves_out(rng, monkeypatch):
    draws = noisy(rng, 10, 20)
    monkeypatch.setattr(module, "_LINKAGE_ROWS", 5)
    monkeypatch.setattr(module, "_SEARCH_WORK", 0)
    found = minimise(draws, "vi")
    assert set(found.losses) == {"draws"}
    assert set(found.skipped) == {"linkage", "relocation"}
    assert not found.is_settled


def test_minimise__a_search_cut_short_is_no_local_minimum(rng, monkeypatch):
    draws = noisy(rng, 10, 20, noise=0.6)
    monkeypatch.setattr(module, "_LINKAGE_ROWS", 0)
    work = 10 * 20 * (int(draws.max()) + 2)
    monkeypatch.setattr(module, "_SEARCH_WORK", work)
    found = minimise(draws, "vi")
    assert found.losses["relocation"] <= found.losses["draws"]
    assert not found.is_settled
    assert found.skipped["relocation"] == "stopped after 1 passes over the rows"


def test_minimise__groups_grow_beyond_the_first_tables():
    """From nothing, singletons are the answer: room is made while the search goes on."""
    draws = np.tile(np.arange(40), (3, 1))
    work = module._Relocation(module.gather(draws % 4 * 0, "vi", None, None, "test"))
    singles = module.gather(draws, "vi", None, None, "test")
    labels, is_settled = module._Relocation(singles).run(
        np.zeros(40, np.uint16), np.random.default_rng(0), 20
    )
    assert is_settled
    assert len(set(labels.tolist())) == 40
    together, is_settled = work.run(np.arange(40, dtype=np.uint16), np.random.default_rng(0), 20)
    assert is_settled
    assert set(together.tolist()) == {0}


@pytest.mark.parametrize("loss", LOSSES)
def test_minimise__one_row_and_one_draw(loss):
    found = minimise(np.array([[4]]), loss)
    assert (found.labels.tolist(), found.loss) == ([0], 0.0)
