"""Labels that stay on hosts: the same fits as where all labels lie in one place."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from distclust.engine import Crew, Vault
from distclust.ensembles import bayesian_ensemble as bce
from distclust.ensembles import hosts, hosts_by_columns, hosts_by_rows
from distclust.ensembles import multinomial_mixture as mm
from distclust.ensembles.bayesian_ensemble import VariationalOptions
from distclust.ensembles.blocked_hosts import BlockedByColumns, BlockedColumns, sample_by_columns
from distclust.ensembles.dirichlet_ensemble import DirichletEnsembleSampler
from distclust.ensembles.hosts import ArrayPart, FilePart
from distclust.ensembles.label_rows import LabelRows
from distclust.ensembles.multinomial_mixture import EMOptions
from distclust.errors import InputError
from distclust.mixtures.concentration import EscobarWest, FixedConcentration, GammaPrior
from distclust.seeding import generator
from tests.ensembles.test_dirichlet_ensemble import four_groups, statistics
from tests.ensembles.test_multinomial_mixture import SIZES, make_codes
from tests.oracles import ensembles as oracle

N = 90
CODES, TRUTH = make_codes(3, N)
WEIGHTS = np.random.default_rng(0).integers(1, 4, size=N).astype(float)
LABELS = LabelRows.of(CODES, SIZES, WEIGHTS)
EM = EMOptions(max_iterations=40)
VB = VariationalOptions(max_iterations=25)


@pytest.fixture(params=["here", "workers"])
def anywhere(request):
    """Run a test in process, then on workers."""
    if request.param == "workers":
        request.getfixturevalue("on_client")


def by_columns():
    return [ArrayPart(LABELS.columns(slice(0, 2))), ArrayPart(LABELS.columns(slice(2, 3)))]


def by_rows(cuts=(0, 20, 55, N)):
    return [ArrayPart(LABELS.rows(slice(a, b))) for a, b in itertools.pairwise(cuts)]


def first_of_rows(n_components, cuts=(0, 20, 55, N)):
    sizes = np.diff(cuts)
    parts = [hosts.random_memberships(n, n_components, 0, i) for i, n in enumerate(sizes)]
    return np.vstack(parts)


def local_mixture(memberships, options):
    theta = hosts.tables_of(LABELS, memberships, options.epsilon)
    shares = WEIGHTS @ memberships / WEIGHTS.sum()
    return mm.climb(LABELS, mm.MixtureState(shares, theta), options)


def local_ensemble(memberships, options):
    theta = hosts.tables_of(LABELS, memberships, options.epsilon)
    prior = bce.prior_of(None, memberships.shape[1])
    return bce.climb(LABELS, bce.start(LABELS, theta, prior), options)


def assert_same_mixture(found, wanted):
    np.testing.assert_allclose(found.trace, wanted.trace, rtol=1e-11)
    np.testing.assert_allclose(found.shares, wanted.shares, atol=1e-9)
    np.testing.assert_allclose(found.theta, wanted.theta, atol=1e-9)
    assert found.log_likelihood == pytest.approx(wanted.log_likelihood, rel=1e-11)
    assert found.has_converged == wanted.has_converged


def assert_same_ensemble(found, wanted):
    np.testing.assert_allclose(found.trace, wanted.trace, rtol=1e-10)
    np.testing.assert_allclose(found.gamma, wanted.gamma, rtol=1e-7)
    np.testing.assert_allclose(found.theta, wanted.theta, atol=1e-8)
    np.testing.assert_allclose(found.prior, wanted.prior, rtol=1e-7)


# ---- EM and variational Bayes -------------------------------------------------------------------


def test_mixture_by_columns__is_the_local_one(anywhere):
    found = hosts_by_columns.fit_mixture_by_columns(by_columns(), N, 3, weights=WEIGHTS, options=EM)
    assert_same_mixture(found, local_mixture(hosts.random_memberships(N, 3, 0), EM))
    assert len(found.trace) > 10


def test_mixture_by_rows__is_the_local_one(anywhere):
    found = hosts_by_rows.fit_mixture_by_rows(by_rows(), SIZES, 3, options=EM)
    assert_same_mixture(found, local_mixture(first_of_rows(3), EM))


def test_ensemble_by_columns__is_the_local_one(anywhere):
    found = hosts_by_columns.fit_bayesian_by_columns(
        by_columns(), N, 3, 3, weights=WEIGHTS, options=VB
    )
    assert_same_ensemble(found, local_ensemble(hosts.random_memberships(N, 3, 0), VB))


def test_ensemble_by_rows__is_the_local_one(anywhere):
    found = hosts_by_rows.fit_bayesian_by_rows(by_rows(), SIZES, 3, options=VB)
    assert_same_ensemble(found, local_ensemble(first_of_rows(3), VB))
    assert found.gamma.shape == (N, 3)


@pytest.mark.parametrize("options", [EMOptions(7, epsilon=0.3), EMOptions(300, 1e-6)])
def test_mixtures__stop_where_the_local_one_does(options):
    columns = hosts_by_columns.fit_mixture_by_columns(
        by_columns(), N, 2, weights=WEIGHTS, options=options
    )
    assert_same_mixture(columns, local_mixture(hosts.random_memberships(N, 2, 0), options))
    rows = hosts_by_rows.fit_mixture_by_rows(by_rows(), SIZES, 2, options=options)
    assert_same_mixture(rows, local_mixture(first_of_rows(2), options))


@pytest.mark.parametrize(
    "options",
    [
        VariationalOptions(6, epsilon=0.3, inner=3),
        VariationalOptions(300, 1e-5, learns_prior=True, inner=1),
    ],
)
def test_ensembles__stop_where_the_local_one_does(options):
    columns = hosts_by_columns.fit_bayesian_by_columns(
        by_columns(), N, 3, 2, weights=WEIGHTS, options=options
    )
    assert_same_ensemble(columns, local_ensemble(hosts.random_memberships(N, 2, 0), options))
    rows = hosts_by_rows.fit_bayesian_by_rows(by_rows(), SIZES, 2, options=options)
    assert_same_ensemble(rows, local_ensemble(first_of_rows(2), options))


def test_parts_in_files__are_read_where_members_work(tmp_path, on_client):
    parts = []
    for i, (a, b) in enumerate([(0, 40), (40, N)]):
        np.save(tmp_path / f"{i}.npy", CODES[a:b])
        parts.append(FilePart(str(tmp_path / f"{i}.npy"), tuple(SIZES)))
    plain = LabelRows.of(CODES, SIZES)
    arrays = [ArrayPart(plain.rows(slice(0, 40))), ArrayPart(plain.rows(slice(40, N)))]
    there = hosts_by_rows.fit_mixture_by_rows(parts, SIZES, 3, options=EM)
    here = hosts_by_rows.fit_mixture_by_rows(arrays, SIZES, 3, options=EM)
    np.testing.assert_array_equal(there.theta, here.theta)


def test_bad_parts__get_a_sentence():
    with pytest.raises(InputError):
        hosts_by_rows.fit_mixture_by_rows([], SIZES, 3)
    with pytest.raises(InputError):
        hosts_by_rows.fit_mixture_by_rows([CODES], SIZES, 3)
    with pytest.raises(InputError):
        hosts_by_columns.fit_mixture_by_columns(by_columns(), N, 3, memberships=np.ones((N, 2)))
    with pytest.raises(InputError):
        sample_by_columns([], N)


@pytest.mark.parametrize("n_rows", [N - 1, N + 1])
def test_parts_of_other_rows__are_refused(n_rows, anywhere):
    short = [*by_columns()[:1], ArrayPart(LABELS.columns(slice(2, 3)).rows(slice(0, N - 5)))]
    for parts, n in ((by_columns(), n_rows), (short, N)):
        with pytest.raises(InputError, match=r"labels of host \d: expected .* rows, as on all"):
            hosts_by_columns.fit_mixture_by_columns(parts, n, 3, options=EM)
        with pytest.raises(InputError, match=r"labels of host \d: expected .* rows, as on all"):
            hosts_by_columns.fit_bayesian_by_columns(parts, n, 3, 3, options=VB)
        with pytest.raises(InputError, match=r"labels of host \d: expected .* rows, as on all"):
            sample_by_columns(parts, n, n_chains=1, n_sweeps=3)


def test_parts_of_other_bases__are_refused(anywhere):
    parts = [*by_rows()[:2], ArrayPart(LABELS.rows(slice(55, N)).columns(slice(0, 2)))]
    for n_labels, wrong in ((SIZES, parts), (np.add(SIZES, 1), by_rows()), (SIZES[:2], by_rows())):
        with pytest.raises(InputError, match=r"labels of host \d: expected bases of"):
            hosts_by_rows.fit_mixture_by_rows(wrong, n_labels, 3, options=EM)
        with pytest.raises(InputError, match=r"labels of host \d: expected bases of"):
            hosts_by_rows.fit_bayesian_by_rows(wrong, n_labels, 3, options=VB)


# ---- the Dirichlet-process ensemble -----------------------------------------------------------


SMALL = np.array([[0, 1, 2], [0, 1, -1], [1, -1, 0], [1, 2, 0], [-1, 0, 1]], np.int8)
SIZES_OF_SMALL = [2, 3, 3]


def small_parts():
    labels = LabelRows.of(SMALL, SIZES_OF_SMALL)
    return [ArrayPart(labels.columns(slice(0, 1))), ArrayPart(labels.columns(slice(1, 3)))]


def test_blocked__draws_from_the_truncated_posterior():
    n_sweeps, beta, alpha = 10_000, 1.4, 0.8
    role = BlockedColumns(tuple(small_parts()), beta, 4, 0, 0)
    plan = BlockedByColumns(5, 4, FixedConcentration(alpha), 0, 0, n_sweeps, 1)
    found = followed(role, plan, 2)
    exact = oracle.blocked_posterior(SMALL, SIZES_OF_SMALL, [beta] * 3, alpha, 4)
    kept = Counter(oracle.canonical(z) for z in found)
    seen = {z: count / len(found) for z, count in kept.items()}
    assert oracle.total_variation(seen, exact) < 0.05
    pairs = oracle.pair_probabilities(seen, 5) - oracle.pair_probabilities(exact, 5)
    assert np.abs(pairs).max() < 0.02


def followed(role, plan, n_members):
    """Do rounds without a crew: thousands of sweeps, of which draws are not kept twice."""
    place = role.open(None, None)
    members = [role.begin(i) for i in range(n_members)]
    state, found = plan.begin(), []
    while (order := plan.order(state)) is not None:
        reports = [role.advance(place, i, members[i], order)[1] for i in range(n_members)]
        state = plan.absorb(state, reports)
        if len(state.draws):
            found.append(state.draws[-1])
            state = replace(state, draws=state.draws[:0], scalars=state.scalars[:0])
    return np.array(found)


def drawn_from_sticks(n_rows, n_sticks, prior, rng):
    """Return clusters and a concentration of the truncated process, before any label is seen."""
    alpha = rng.gamma(prior.shape) / prior.rate
    sticks = np.append(rng.beta(1.0, alpha, n_sticks - 1), 1.0)
    shares = sticks * np.cumprod(np.append(1.0, 1.0 - sticks[:-1]))
    return rng.choice(n_sticks, size=n_rows, p=shares / shares.sum()), alpha


def test_blocked__passes_the_joint_test_of_geweke():
    """Rounds and fresh labels in turns leave clusters, concentration and labels as they are."""
    n_rows, n_sticks, sizes, betas = 6, 4, [2, 3], [1.2, 1.2]
    prior, rng = GammaPrior(3.0, 2.0), np.random.default_rng(5)

    def facts(sticks, codes, alpha):
        return statistics(oracle.canonical(sticks), codes, alpha)

    alone = []
    for _ in range(2500):
        sticks, alpha = drawn_from_sticks(n_rows, n_sticks, prior, rng)
        codes = oracle.sample_labels(rng, sticks, sizes, betas)
        alone.append(facts(sticks, codes, alpha))
    plan = BlockedByColumns(n_rows, n_sticks, EscobarWest(prior), 0, 0, 10**9, 1)
    state, chain, streams = plan.begin(), [], None
    for _ in range(4000):
        labels = LabelRows.of(codes, sizes)
        parts = tuple(ArrayPart(labels.columns(slice(m, m + 1))) for m in range(2))
        role = BlockedColumns(parts, betas[0], n_sticks, 0, 0)
        streams = streams or [role.begin(m) for m in range(2)]
        place = role.open(None, None)
        told = [role.advance(place, m, streams[m], state.assignments)[1] for m in range(2)]
        state = plan.absorb(state, told)
        state = replace(state, draws=state.draws[:0], scalars=state.scalars[:0])
        codes = oracle.sample_labels(rng, state.assignments, sizes, betas)
        chain.append(facts(state.assignments, codes, state.concentration))
    scores = oracle.z_scores(alone, chain)
    assert np.abs(scores).max() < 4.0, scores


def test_blocked__reports_the_joint_of_the_process():
    parts, beta = small_parts(), 0.9
    traces = sample_by_columns(
        parts, 5, beta=beta, n_sticks=4, n_chains=2, n_sweeps=12, keep_every=1
    )
    assert traces.scalars.shape == (2, 12, 3)
    assert traces.draws.shape == (2, 12, 5)
    for chain in range(2):
        for (joint, n, alpha), z in zip(traces.scalars[chain], traces.draws[chain], strict=True):
            wanted = oracle.dpce_log_joint(z.tolist(), SMALL, SIZES_OF_SMALL, [beta] * 3, alpha)
            assert joint == pytest.approx(wanted, abs=1e-9)
            assert n == len(set(z.tolist()))


def test_blocked__agrees_with_collapsed_chains():
    n_sweeps, prior = 4000, GammaPrior(2.0, 2.0)
    role = BlockedColumns(tuple(small_parts()), 1.0, 15, 1, 0)
    plan = BlockedByColumns(5, 15, EscobarWest(prior), 1, 0, n_sweeps, 1)
    blocked = followed(role, plan, 2)
    sampler = DirichletEnsembleSampler.of(SMALL, SIZES_OF_SMALL, concentration=EscobarWest(prior))
    state, collapsed = sampler.begin(0, np.random.default_rng(0)), []
    for _ in range(n_sweeps):
        state = sampler.sweep(sampler.open(), state)
        collapsed.append(state.assignments.copy())
    a, b = ((z[:, :, None] == z[:, None, :]).mean(axis=0) for z in (blocked, np.array(collapsed)))
    assert np.abs(a - b).max() < 0.06
    sizes = [np.mean([len(set(z.tolist())) for z in draws]) for draws in (blocked, collapsed)]
    assert sizes[0] == pytest.approx(sizes[1], abs=0.12)


def test_blocked__finds_four_groups_anywhere(anywhere):
    codes, truth = four_groups(8)
    labels = LabelRows.of(codes, [2] * 8)
    parts = [ArrayPart(labels.columns(slice(a, a + 4))) for a in (0, 4)]
    traces = sample_by_columns(
        parts, 200, beta=1.0, n_sticks=12, n_chains=1, n_sweeps=40, keep_every=5, seed=1
    )
    assert adjusted_rand_score(traces.draws[0, -1], truth) > 0.7
    key = (traces.scalars[0, -1, 0], traces.draws.sum())
    assert SEEN.setdefault("four", key) == key  # the same here and on workers


SEEN: dict[str, tuple[float, float]] = {}


def test_blocked__goes_on_bit_for_bit_after_a_stop(tmp_path):
    parts = small_parts()

    def run(n_sweeps, vault):
        role = BlockedColumns(tuple(parts), 1.0, 6, 0, 0)
        plan = BlockedByColumns(5, 6, EscobarWest(), 0, 0, n_sweeps, 2)
        with Crew(role, 2, name="blocked", vault=vault, every=1) as crew:
            return crew.follow(Stopping(plan, n_sweeps) if vault else plan)

    unbroken = run(20, None)
    place = Vault.at(tmp_path, "blocked", "same")
    with pytest.raises(KeyboardInterrupt):
        run(-9, place)
    found = run(20, Vault.at(tmp_path, "blocked", "same"))
    np.testing.assert_array_equal(found.scalars, unbroken.scalars)
    np.testing.assert_array_equal(found.draws, unbroken.draws)


class Stopping(BlockedByColumns):
    """A plan of 20 sweeps that is interrupted after some if their number is negative."""

    def __init__(self, plan, n_sweeps):
        fields = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
        super().__init__(**{**fields, "n_sweeps": 20})
        object.__setattr__(self, "stop", -n_sweeps if n_sweeps < 0 else None)

    def order(self, state):
        if state.sweep == self.stop:
            raise KeyboardInterrupt
        return super().order(state)


def test_streams__differ_between_hosts_and_chains():
    role = BlockedColumns(tuple(small_parts()), 1.0, 4, 0, 0)
    other = BlockedColumns(tuple(small_parts()), 1.0, 4, 0, 1)
    plan = generator(0, "chain", 0)
    draws = [role.begin(0), role.begin(1), other.begin(0)]
    numbers = {state.generator.random() for state in draws} | {plan.random()}
    assert len(numbers) == 4
