"""The Dirichlet-process ensemble against sums over all partitions."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from benchmarks.ensembles import NESTED_SIZES as NESTED
from benchmarks.ensembles import nested_bases
from distclust.ensembles import dirichlet_ensemble as dpce
from distclust.ensembles._process_numerics import _weigh_by_logs, _weigh_plainly
from distclust.ensembles.dirichlet_ensemble import DirichletEnsembleSampler, split_or_merge
from distclust.errors import InputError
from distclust.mixtures.chains import run_chains
from distclust.mixtures.concentration import EscobarWest, FixedConcentration, GammaPrior
from distclust.store.states import pack_state, unpack_state
from tests.oracles import ensembles as oracle

ALPHA = 0.8
NESTED_SIZES = list(NESTED)
SIZES = [2, 3, 3]
BETAS = [1.0, 2.5, 0.7]
CODES = np.array(
    [[0, 1, 2], [0, 1, -1], [1, -1, 0], [1, 2, 0], [-1, 0, 1], [0, 1, 2]], dtype=np.int8
)


def make_sampler(codes=CODES, n_labels=SIZES, beta=BETAS, alpha=ALPHA, **options):
    return DirichletEnsembleSampler.of(
        codes, n_labels, beta=beta, concentration=FixedConcentration(alpha), **options
    )


def begin(sampler, chain=0, seed=0):
    return sampler.begin(chain, np.random.default_rng(seed))


def four_groups(n_bases):
    """Return two kinds of two-cluster bases, 4 x 50 objects, and the four groups."""
    truth = np.repeat(np.arange(4, dtype=np.int32), 50)
    columns = [truth // 2 if m < n_bases // 2 else truth % 2 for m in range(n_bases)]
    return np.stack(columns, axis=1).astype(np.int8), truth


# ---- probabilities ----------------------------------------------------------------------------


def test_log_joint__is_the_product_of_predictions():
    sampler = make_sampler()
    for labels in oracle.partitions(6):
        found = sampler.log_joint(np.array(labels, np.int32), ALPHA)
        assert found == pytest.approx(
            oracle.dpce_log_joint(labels, CODES, SIZES, BETAS, ALPHA), abs=1e-10
        )


def test_log_joint__of_the_specification():
    wanted = {
        2: (-288.3, None, -305.2),
        4: (-571.3, -443.9, -325.5),
        8: (-1137.3, -742.7, -366.0),
        32: (-4533.5, -2536.1, -608.9),
    }
    for n_bases, joints in wanted.items():
        codes, truth = four_groups(n_bases)
        sampler = make_sampler(codes, [2] * n_bases, 1.0, 1.0)
        for labels, joint in zip((0 * truth, truth // 2, truth), joints, strict=True):
            if joint is not None:
                assert round(sampler.log_joint(labels, 1.0), 1) == joint


def tables_of(sampler, labels):
    """Return sizes, counts, factors and scales of a partition, with room for one cluster more."""
    cells, n = sampler.cells, max(labels) + 1
    counts = np.zeros((len(cells.pseudo), n + 1), np.int32)
    sizes = np.zeros(n + 1, np.int64)
    for i, k in enumerate(labels):
        sizes[k] += 1
        for m, cell in enumerate(cells.patterns[cells.pattern_of[i]]):
            if cell != cells.missing[m]:
                counts[cell, k] += 1
                counts[cells.missing[m], k] += 1
    return sizes, counts, counts + cells.pseudo[:, None]


def exact_conditional(labels, item):
    """Return log p(everything) with the item in each cluster, and in a new one."""
    n = max(labels) + 1
    moved = [[*labels[:item], k, *labels[item + 1 :]] for k in range(n + 1)]
    return [oracle.dpce_log_joint(z, CODES, SIZES, BETAS, ALPHA) for z in moved]


@pytest.mark.parametrize("groups", [[0, 3], [0, 1, 3], [0, 1, 2, 3]])
def test_conditionals__are_ratios_of_the_joint(groups):
    sampler, groups = make_sampler(), np.array(groups)
    cells = sampler.cells
    for labels in [(0, 0, 1, 1, 0, 2), (0, 1, 1, 2, 2, 0), (0, 0, 0, 0, 0, 1)]:
        sizes, counts, factors = tables_of(sampler, labels)
        totals = factors[cells.missing]
        bounds = itertools.pairwise(groups)
        scales = np.stack([1 / totals[a:b].prod(axis=0) for a, b in bounds])
        n = max(labels) + 1
        for item, own in enumerate(labels):
            pattern = cells.pattern_of[item]
            row, weights = cells.patterns[pattern], np.empty(n + 1)
            new = math.log(ALPHA) + cells.log_new[pattern]
            common = (cells.missing, cells.pseudo, sizes, counts, factors, scales)
            if len(groups) == 2:
                _weigh_plainly(row, own, n, *common, weights)
                new = math.exp(new)
            else:
                new = _weigh_by_logs(row, own, n, new, groups, *common, np.empty(n + 1), weights)
            found = np.append(weights[:n], new)
            wanted = np.exp(exact_conditional(labels, item))
            if sizes[own] == 1:  # to be alone is to be in a new cluster
                assert found[own] == 0.0
                wanted[own] = 0.0
            np.testing.assert_allclose(found / found.sum(), wanted / wanted.sum(), atol=1e-10)


def test_predictive__is_a_ratio_of_joints():
    labels = (0, 0, 1, 1, 2, 0)
    consensus = make_sampler().consensus(np.array(labels, np.int32), ALPHA)
    rows = np.array([[0, 1, 2], [1, 0, -1], [-1, -1, -1], [1, 2, 1]], np.int8)
    found = np.exp(consensus.log_predictive(rows))
    wanted = [oracle.dpce_predictive(r, labels, CODES, SIZES, BETAS, ALPHA) for r in rows]
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    whole = np.array(list(np.ndindex(*SIZES)), np.int8)
    assert np.exp(consensus.log_predictive(whole)).sum() == pytest.approx(1.0)
    np.testing.assert_allclose(consensus.predict_proba(rows).sum(axis=1), 1.0)


def test_labels_of_beta__are_one_a_label():
    same = make_sampler(beta=np.array(SIZES, float))
    np.testing.assert_array_equal(make_sampler(beta="labels").betas, same.betas)


# ---- the sampler against all partitions ---------------------------------------------------------


def sampled(step, state, n_sweeps):
    """Return how often each partition comes, after each step."""
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(n_sweeps):
        state = step(state)
        found[oracle.canonical(state.assignments)] += 1
    return {labels: count / n_sweeps for labels, count in found.items()}


def assert_agrees(found, wanted):
    assert oracle.total_variation(found, wanted) < 0.05
    n = len(next(iter(wanted)))
    pairs = oracle.pair_probabilities(found, n) - oracle.pair_probabilities(wanted, n)
    assert np.abs(pairs).max() < 0.02


def small_sweeps(sampler):
    return lambda state: sampler.sweep(sampler.cells, state)


@pytest.mark.parametrize("n_proposals", [0, 2])
def test_sweeps__draw_from_the_posterior(n_proposals):
    sampler = make_sampler(n_proposals=n_proposals)
    found = sampled(small_sweeps(sampler), begin(sampler), 12_000)
    assert_agrees(found, oracle.dpce_posterior(CODES, SIZES, BETAS, ALPHA))


def test_sweeps__draw_from_the_posterior_by_logs_of_groups(monkeypatch):
    monkeypatch.setattr(dpce, "_SAFE_LOG", 1.0)
    sampler = make_sampler(n_proposals=0)
    assert len(sampler.cells.groups) == 4
    found = sampled(small_sweeps(sampler), begin(sampler), 12_000)
    assert_agrees(found, oracle.dpce_posterior(CODES, SIZES, BETAS, ALPHA))


def test_splits_and_merges__draw_from_the_posterior_alone():
    sampler = make_sampler()
    cells, rng = sampler.cells, np.random.default_rng(1)
    z, n = np.zeros(6, np.int32), 1
    found: Counter[tuple[int, ...]] = Counter()
    n_steps = 40_000
    for _ in range(n_steps):
        n, _ = split_or_merge(cells, math.log(ALPHA), n, z, rng)
        assert n == z.max() + 1 == len(set(z.tolist()))
        found[oracle.canonical(z)] += 1 / n_steps
    assert_agrees(found, oracle.dpce_posterior(CODES, SIZES, BETAS, ALPHA))


@pytest.mark.parametrize("n_proposals", [0, 2])
def test_collapsed__draws_from_partitions_that_keep_equal_rows_together(n_proposals):
    codes = np.array([[0, 1], [0, 1], [0, 1], [1, -1], [1, 2], [1, 2], [0, 0]], np.int8)
    sampler = make_sampler(codes, [2, 3], 1.5, collapse=True, n_proposals=n_proposals)
    assert sampler.n_items == 7
    exact = oracle.dpce_posterior(codes, [2, 3], [1.5, 1.5], ALPHA)
    kept = {z: p for z, p in exact.items() if z[0] == z[1] == z[2] and z[4] == z[5]}
    total = sum(kept.values())
    state, n_sweeps = begin(sampler), 10_000
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(n_sweeps):
        state = sampler.sweep(sampler.cells, state)
        found[oracle.canonical(sampler.labels(state))] += 1 / n_sweeps
    assert_agrees(found, {z: p / total for z, p in kept.items()})


def test_collapsed__has_the_joint_of_all_rows():
    codes = np.repeat(CODES, [3, 1, 2, 1, 30, 2], axis=0)
    rows = make_sampler(codes)
    groups = make_sampler(CODES, collapse=True, weights=np.array([3, 1, 2, 1, 30, 2]))
    state = begin(groups)
    state = groups.sweep(groups.cells, state)
    spread = np.repeat(groups.labels(state), [3, 1, 2, 1, 30, 2]).astype(np.int32)
    assert state.log_joint == pytest.approx(rows.log_joint(spread, state.concentration))


def test_sweep__keeps_count_of_clusters(rng):
    """Clusters are born, die and take each other's places; tables grow."""
    codes = rng.integers(-1, 6, size=(150, 4)).astype(np.int8)
    for collapse in (False, True):
        options = {"collapse": collapse, "start": "single"}
        sampler = make_sampler(codes, [6] * 4, 0.3, 60.0, **options)
        state = begin(sampler, chain=1)
        most = 0
        for _ in range(8):
            state = sampler.sweep(sampler.cells, state)
            used = np.unique(state.assignments)
            np.testing.assert_array_equal(used, np.arange(state.n_clusters))
            most = max(most, state.n_clusters)
        assert most > 40


# ---- Geweke -----------------------------------------------------------------------------------


def statistics(labels, codes, alpha):
    z = np.asarray(labels)
    same = (z[:, None] == z[None, :]).sum()
    agreeing = (codes[:, :1] == codes[:, 1:2]).mean()
    return [z.max() + 1, alpha, math.log(alpha), codes.mean(), same, agreeing]


@pytest.mark.parametrize("n_proposals", [0, 1])
def test_sweeps__pass_the_joint_test_of_geweke(n_proposals):
    n, sizes, betas = 6, [2, 3], [1.0, 2.0]
    prior, rng = GammaPrior(2.0, 2.0), np.random.default_rng(3 + n_proposals)
    alone = []
    for _ in range(3000):
        alpha = rng.gamma(prior.shape) / prior.rate
        labels, codes = oracle.sample_dpce(rng, n, sizes, betas, alpha)
        alone.append(statistics(labels, codes, alpha))
    chain, state = [], None
    for _ in range(5000):
        sampler = DirichletEnsembleSampler.of(
            codes, sizes, beta=betas, concentration=EscobarWest(prior), n_proposals=n_proposals
        )
        state = sampler.begin(0, rng) if state is None else state
        state = sampler.sweep(sampler.open(), state)
        codes = oracle.sample_labels(rng, state.assignments, sizes, betas)
        chain.append(statistics(state.assignments, codes, state.concentration))
    scores = oracle.z_scores(alone, chain)
    assert np.abs(scores).max() < 4.0, scores


# ---- the layouts of the specification -----------------------------------------------------------


def consensus_of(sampler, n_sweeps, chain=0, seed=0):
    """Return numbers of clusters and partitions of the second half of a chain."""
    state, sizes, seen = begin(sampler, chain, seed), Counter(), Counter()
    for sweep in range(n_sweeps):
        state = sampler.sweep(sampler.cells, state)
        if sweep >= n_sweeps // 2:
            sizes[state.n_clusters] += 1
            seen[oracle.canonical(state.assignments)] += 1
    return sizes.most_common(1)[0][0], np.array(seen.most_common(1)[0][0]), seen


@pytest.mark.parametrize("beta", [1.0, 5.0, "labels"])
def test_bases_that_divide_groups_independently__give_the_groups(beta):
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1], 100)
    sizes = [4, 8, 16, 32, 32]
    codes = np.stack([group * (j // 2) + rng.integers(j // 2, size=200) for j in sizes], axis=1)
    sampler = make_sampler(codes.astype(np.int8), sizes, beta, 1.0)
    mode, partition, _ = consensus_of(sampler, 200)
    assert mode == 2
    assert adjusted_rand_score(partition, group) == 1.0


@pytest.mark.parametrize("n_bases", [4, 8, 16, 32])
def test_two_kinds_of_bases__give_four_groups(n_bases):
    codes, truth = four_groups(n_bases)
    sampler = make_sampler(codes, [2] * n_bases, 1.0, 1.0)
    mode, partition, _ = consensus_of(sampler, 200)
    assert adjusted_rand_score(partition, truth) == 1.0
    assert n_bases == 4 or mode == 4


def test_a_chain_from_one_cluster__needs_splits_to_find_four():
    codes, _ = four_groups(16)

    def found(n_proposals, seed):
        sampler = make_sampler(codes, [2] * 16, 1.0, 1.0, n_proposals=n_proposals)
        return consensus_of(sampler, 150, chain=1, seed=seed)[0]

    assert [found(0, seed) for seed in range(2)] == [3, 3]
    assert [found(2, seed) for seed in range(2)] == [4, 4]


def log_joint_of_nested(labels, codes):
    """Return the log joint at beta = 60 and a concentration of 1, by the slow road."""
    return oracle.dpce_log_joint(labels, codes, NESTED_SIZES, [60.0] * 5, 1.0)


@pytest.mark.parametrize("seed", range(4))
def test_k_means_bases__keep_two_gaussians_apart(seed):
    """Bases of the same points are nested: the posterior has a cluster or two more than two.

    The number follows from how the points fall and how k-means starts; what always holds is
    that the two Gaussians are apart. `benchmarks dpce-nested` reports it for other values.
    """
    sampler = make_sampler(nested_bases(seed), NESTED_SIZES, 60.0, 1.0)
    mode, partition, _ = consensus_of(sampler, 200, seed=seed)
    assert mode in {2, 3, 4}
    first, second = (np.bincount(partition[i : i + 75]).argmax() for i in (0, 75))
    assert first != second


def halves(codes):
    """Return the partition by the two Gaussians; noise goes where its label of a base does."""
    base, side = codes[:, 3], np.repeat([0, 1], 75)
    votes = np.zeros((NESTED_SIZES[3], 2))
    np.add.at(votes, (base[:150], side), 1.0)
    return votes.argmax(axis=1)[base]


@pytest.mark.parametrize("seed", [1, 3])
def test_k_means_bases__may_be_more_probable_in_four_clusters_than_in_three(seed):
    """Two or three clusters do not follow from the model: here four are more probable.

    The partition in four is compared by an evaluation that shares nothing with the sampler:
    with all that comes of joining two of its clusters, and with every partition in at most
    three that a plain Gibbs sampler finds from the two halves. That sampler stays there: rows
    that move one at a time do not divide a cluster. That four clusters have the greater
    *mass*, too, is what the sampler says, whose posteriors other tests compare with sums.
    """
    codes = nested_bases(seed)
    sampler = make_sampler(codes, NESTED_SIZES, 60.0, 1.0)
    mode, partition, _ = consensus_of(sampler, 600, seed=seed)
    assert mode == len(set(partition.tolist())) == 4
    best = log_joint_of_nested(partition, codes)
    for a, b in itertools.combinations(range(4), 2):
        assert log_joint_of_nested(np.where(partition == b, a, partition), codes) < best
    start, rng = halves(codes), np.random.default_rng(seed)
    assert log_joint_of_nested(start, codes) < best
    plain = oracle.dpce_gibbs(start, codes, NESTED_SIZES, [60.0] * 5, 1.0, 60, rng)
    few = {oracle.canonical(z) for z in plain if len(set(z.tolist())) <= 3}
    assert len(few) > 10
    assert max(log_joint_of_nested(z, codes) for z in few) < best


def test_plain_gibbs__draws_from_the_posterior():
    """The sampler of the test above is a sampler of the model."""
    codes, rng = np.where(CODES < 0, 0, CODES), np.random.default_rng(0)
    drawn = oracle.dpce_gibbs([0] * 6, codes, SIZES, BETAS, ALPHA, 6000, rng)
    found = Counter(oracle.canonical(z) for z in drawn)
    wanted = oracle.dpce_posterior(codes, SIZES, BETAS, ALPHA)
    shares = {z: n / 6000 for z, n in found.items()}
    assert oracle.total_variation(shares, wanted) < 0.06


# ---- chains -----------------------------------------------------------------------------------


def test_starts__are_distinct_rows_or_one_cluster(monkeypatch):
    sampler = make_sampler()
    assert begin(sampler, 0).n_clusters == 5
    assert begin(sampler, 1).n_clusters == 1
    assert begin(make_sampler(start="single"), 0).n_clusters == 1
    assert begin(make_sampler(start="distinct"), 1).n_clusters == 5
    monkeypatch.setattr(dpce, "START_ROWS", 2)
    state = begin(sampler)
    assert state.n_clusters == 2
    assert state.assignments[0] == state.assignments[1] == state.assignments[5]


def noisy_groups(n=3000, seed=0):
    """Return four groups that five bases tell apart, but for errors."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(4, size=n)
    codes = np.stack([rng.permutation(6)[truth] for _ in range(5)], axis=1)
    wrong = rng.random(codes.shape) < 0.08
    return np.where(wrong, (codes + 1) % 6, codes).astype(np.int8), truth


@pytest.mark.parametrize("chain", [0, 1])
def test_collapsed_chains__find_groups(chain):
    codes, truth = noisy_groups()
    sampler = make_sampler(codes, [6] * 5, 1.0, 1.0, collapse=True)
    state = begin(sampler, chain)
    for _ in range(20):
        state = sampler.sweep(sampler.cells, state)
    assert state.n_clusters == 4
    assert adjusted_rand_score(sampler.labels(state), truth) > 0.95


def test_joining__stops_where_no_pair_gains():
    codes, _ = noisy_groups(300, 1)
    sampler = make_sampler(codes, [6] * 5, 1.0, 1.0, collapse=True)
    apart = np.arange(len(sampler.cells.patterns), dtype=np.int32) % 40
    found = sampler._joined(apart, 1.0)
    joint = sampler.log_joint(found, 1.0)
    assert joint > sampler.log_joint(apart, 1.0)
    n = found.max() + 1
    assert 1 < n < 40
    for a, b in itertools.combinations(range(n), 2):
        names = np.arange(n)
        names[b] = a
        names = np.unique(names, return_inverse=True)[1].astype(np.int32)
        assert sampler.log_joint(names[found], 1.0) < joint + 1e-9


@pytest.mark.parametrize("collapse", [False, True])
def test_resumed__is_unbroken_bit_for_bit(rng, collapse):
    codes = rng.integers(-1, 3, size=(60, 4)).astype(np.int8)

    def make():
        return DirichletEnsembleSampler.of(codes, [3] * 4, collapse=collapse, n_proposals=2)

    sampler = make()
    unbroken = begin(sampler)
    for _ in range(10):
        unbroken = sampler.sweep(sampler.open(), unbroken)
    state = begin(sampler)
    for _ in range(10):
        values, arrays = pack_state(state)
        fresh = make()
        state = unpack_state(fresh.state_type, values, arrays)
        state = fresh.sweep(fresh.open(), state)
    np.testing.assert_array_equal(state.assignments, unbroken.assignments)
    assert fresh.scalars(state) == sampler.scalars(unbroken)
    assert state.generator.random() == unbroken.generator.random()


def test_chains__are_the_same_on_workers(on_client):
    codes, _ = four_groups(8)
    sampler = DirichletEnsembleSampler.of(codes, [2] * 8)
    there = run_chains(sampler, 3, 0, 20, keep_every=5, agreement=None, name="dpce")
    here = sweeps_in_process(sampler, 3, 0, 20)
    np.testing.assert_array_equal(there.scalars, here)


def sweeps_in_process(sampler, n_chains, seed, n_sweeps):
    from distclust.seeding import generator

    found = np.empty((n_chains, n_sweeps, 3))
    for chain in range(n_chains):
        state = sampler.begin(chain, generator(seed, "chain", chain))
        for sweep in range(n_sweeps):
            state = sampler.sweep(sampler.open(), state)
            found[chain, sweep] = sampler.scalars(state)
    return found


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"beta": 0.0},
        {"beta": [1.0, 2.0]},
        {"beta": "rows"},
        {"start": "random"},
        {"n_proposals": -1},
        {"weights": np.ones(6)},
        {"weights": np.full(6, 1.5), "collapse": True},
        {"weights": np.zeros(6), "collapse": True},
        {"n_labels": [2, 3]},
        {"n_labels": [2, 2, 3]},
        {"codes": CODES - 1},
        {"codes": CODES.astype(float)},
    ],
)
def test_bad_input__gets_a_sentence(options):
    with pytest.raises(InputError):
        make_sampler(**options)
