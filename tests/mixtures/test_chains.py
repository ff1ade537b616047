"""Chains of a toy sampler: the same bits alone and together, here and on workers that die."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from distclust import engine, events
from distclust.engine import Crew, Vault
from distclust.errors import InputError
from distclust.mixtures import chains
from distclust.mixtures.chains import (
    STAGE,
    SWEEPS_BETWEEN_LOOKS,
    Agreement,
    ChainPlan,
    Sampler,
    Traces,
    run_chains,
    second_half,
    smallest,
)
from distclust.mixtures.diagnostics import diagnose
from distclust.seeding import generator

SEED = 11
N_ITEMS = 6

fault_at: int | None = None  # a sweep of this process that fails


@dataclass(frozen=True, eq=False)
class Walk:
    generator: np.random.Generator
    sweep: int
    x: np.ndarray
    z: np.ndarray


@dataclass(frozen=True, eq=False)
class Walker(Sampler[Walk]):
    """An autoregressive walk; the labels follow it. States are written over.

    Attributes
    ----------
    phi
        How much of a step is kept.
    shift
        How far apart chains are.
    seconds
        How long a sweep takes at least.
    top
        Largest label in the first 150 sweeps; later they are a hundred times larger.
    """

    phi: float = 0.5
    shift: float = 0.0
    seconds: float = 0.0
    top: int = 4
    size: int = N_ITEMS

    state_type = Walk
    scalar_names = ("x", "n_clusters")

    @property
    def n_items(self) -> int:
        return self.size

    def open(self) -> str:
        return "a place"

    def begin(self, chain: int, generator: np.random.Generator) -> Walk:
        x = np.array([self.shift * chain + generator.normal()])
        return Walk(generator, 0, x, np.zeros(self.size, np.int64))

    def sweep(self, place: Any, state: Walk) -> Walk:
        assert place == "a place"
        if fault_at is not None and state.sweep == fault_at:
            raise ArithmeticError("a sweep that fails")
        time.sleep(self.seconds)
        rng = state.generator
        mean = self.shift * np.round(state.x[0] / self.shift) if self.shift else 0.0
        state.x[0] = mean + self.phi * (state.x[0] - mean) + rng.normal()
        n_labels = self.top * (1 if state.sweep < 150 else 100)
        state.z[:] = rng.integers(0, n_labels + 1, self.size)
        return Walk(rng, state.sweep + 1, state.x, state.z)

    def scalars(self, state: Walk) -> tuple[float, float]:
        return float(state.x[0]), float(len(set(state.z.tolist())))

    def labels(self, state: Walk) -> np.ndarray:
        return state.z


def run(
    sampler: Walker | None = None,
    n_chains: int = 3,
    max_sweeps: int = 130,
    *,
    keep_every: int = 7,
    agreement: Agreement | None = None,
    vault: Vault | None = None,
) -> Traces:
    return run_chains(
        sampler or Walker(),
        n_chains,
        SEED,
        max_sweeps,
        keep_every=keep_every,
        agreement=agreement,
        name="walkers",
        vault=vault,
    )


def walk_alone(
    sampler: Walker, chain: int, n_sweeps: int, keep_every: int = 7
) -> tuple[np.ndarray, np.ndarray]:
    """Return the figures and kept labels of one chain, by one plain loop."""
    state = sampler.begin(chain, generator(SEED, "chain", chain))
    figures, kept = [], []
    for number in range(1, n_sweeps + 1):
        state = sampler.sweep("a place", state)
        figures.append(sampler.scalars(state))
        if number % keep_every == 0:
            kept.append(state.z.copy())
    return np.array(figures), np.array(kept).reshape(-1, sampler.size)


def check_same(got: Traces, wanted: Traces) -> None:
    assert got.scalars.shape == wanted.scalars.shape
    assert got.scalars.tobytes() == wanted.scalars.tobytes()
    assert got.draws.dtype == wanted.draws.dtype
    assert got.draws.tobytes() == wanted.draws.tobytes()
    assert got.agreed == wanted.agreed


# ---- what chains leave --------------------------------------------------------------------------


@pytest.mark.parametrize(("max_sweeps", "keep_every"), [(1, 1), (49, 7), (130, 7), (200, 60)])
def test_traces__those_of_plain_loops(max_sweeps, keep_every):
    found = run(max_sweeps=max_sweeps, keep_every=keep_every)
    assert found.n_sweeps == max_sweeps
    assert found.draws.shape == (3, max_sweeps // keep_every, N_ITEMS)
    for chain in range(3):
        figures, kept = walk_alone(Walker(), chain, max_sweeps, keep_every)
        assert found.scalars[chain].tobytes() == figures.tobytes()
        assert np.array_equal(found.draws[chain], kept)
    assert not found.agreed


def test_traces__of_a_chain_do_not_depend_on_how_many_there_are():
    few, many = run(n_chains=2), run(n_chains=5)
    assert few.scalars.tobytes() == many.scalars[:2].tobytes()
    assert few.draws.tobytes() == many.draws[:2].tobytes()
    assert len({scalars.tobytes() for scalars in many.scalars}) == 5


def test_traces__labels_that_become_large_are_kept_whole():
    """Partitions are sent in the smallest kind of number; later ones are wider."""
    found = run(Walker(top=200), max_sweeps=250, keep_every=50)
    assert found.draws.dtype == np.uint16
    assert found.draws[:, :3].max() <= 200 < 1000 < found.draws[:, 3:].max()
    assert np.array_equal(found.draws[1], walk_alone(Walker(top=200), 1, 250, 50)[1])


def test_advance__leaves_the_state_it_was_given_as_it_is():
    """Samplers write over their states; a checkpoint may hold the one from before."""
    role = chains.ChainRole(Walker(), SEED)
    state = role.begin(0)
    x, z = state.x.copy(), state.z.copy()
    after, _ = role.advance("a place", 0, state, chains.Sweeps(0, 3, 1))
    assert (after.sweep, state.sweep) == (3, 0)
    assert np.array_equal(state.x, x)
    assert np.array_equal(state.z, z)
    assert not np.array_equal(after.x, x)


def test_traces__no_partition_kept():
    assert run(max_sweeps=20, keep_every=21).draws.shape == (3, 0, N_ITEMS)


@pytest.mark.parametrize("n_items", [1, 39_999, 10**5, 3 * 10**5, 10**6, 10**8])
def test_rounds__divide_the_sweeps_between_looks(n_items):
    plan = ChainPlan(2, n_items, ("x",), 1000, 10, None)
    assert SWEEPS_BETWEEN_LOOKS % plan.sweeps_a_round == 0
    assert plan.sweeps_a_round == 1 or plan.sweeps_a_round * n_items <= 2_000_000


def test_rounds__of_other_lengths_give_the_same_traces(monkeypatch):
    wanted = run(agreement=Agreement(1.05, 50), max_sweeps=300)
    monkeypatch.setattr(chains, "_CELLS_A_ROUND", 10 * N_ITEMS)
    check_same(run(agreement=Agreement(1.05, 50), max_sweeps=300), wanted)


def test_kept_draws__are_those_of_the_second_half():
    found = run(max_sweeps=100, keep_every=10)
    assert np.array_equal(found.kept_draws(10), found.draws[:, 5:])
    single = run(max_sweeps=10, keep_every=10)
    assert single.kept_draws(10).shape == (3, 1, N_ITEMS)


def test_second_half__of_odd_numbers_has_the_middle():
    assert second_half(np.arange(5)[None]).tolist() == [[2, 3, 4]]


@pytest.mark.parametrize(
    ("top", "kind"), [(0, np.uint8), (255, np.uint8), (256, np.uint16), (70_000, np.uint32)]
)
def test_smallest__kind_that_holds_the_labels(top, kind):
    found = smallest(np.array([0, top]))
    assert (found.dtype, found.tolist()) == (kind, [0, top])


# ---- agreement ----------------------------------------------------------------------------------


def first_look_that_holds(full: Traces, agreement: Agreement) -> int | None:
    """Return after how many sweeps chains agree, looking where one may."""
    for n in range(SWEEPS_BETWEEN_LOOKS, full.n_sweeps + 1, SWEEPS_BETWEEN_LOOKS):
        seen = diagnose(Walker.scalar_names, full.scalars[:, n // 2 : n])
        if max(seen.rhat.values()) <= agreement.rhat and agreement.samples <= min(
            *seen.ess_bulk.values(), *seen.ess_tail.values()
        ):
            return n
    return None


@pytest.mark.parametrize(
    ("agreement", "wanted"),
    [
        (Agreement(2.0, 1), 100),
        (Agreement(1.02, 200), None),
        (Agreement(1.02, 300), None),
        (Agreement(1.1, 350), None),
    ],
)
def test_early_stop__at_the_first_look_that_holds_and_cut_there(agreement, wanted):
    full = run(max_sweeps=900)
    stop = first_look_that_holds(full, agreement)
    assert stop is not None
    assert wanted is None or stop == wanted
    found = run(max_sweeps=900, agreement=agreement)
    assert found.agreed
    assert found.n_sweeps == stop
    assert found.scalars.tobytes() == full.scalars[:, :stop].tobytes()
    assert np.array_equal(found.draws, full.draws[:, : stop // 7])


def test_early_stop__stricter_wishes_take_longer():
    stops = [
        run(max_sweeps=900, agreement=Agreement(1.05, samples)).n_sweeps
        for samples in (50, 300, 500)
    ]
    assert stops == sorted(stops)
    assert stops[0] < stops[-1]


def test_early_stop__chains_that_are_apart_go_on_to_the_end():
    found = run(Walker(phi=0.2, shift=50.0), max_sweeps=250, agreement=Agreement(1.2, 10))
    assert not found.agreed
    assert found.n_sweeps == 250


def test_early_stop__not_before_the_first_look_and_not_between_looks(monkeypatch):
    looks = []

    def spy(names, traces):
        looks.append(traces.shape)
        return diagnose(names, traces)

    monkeypatch.setattr(chains, "diagnose", spy)
    run(max_sweeps=90, agreement=Agreement(99.0, 0.0))
    assert looks == []
    assert run(max_sweeps=350, agreement=Agreement(0.5, 0.0)).n_sweeps == 350
    assert looks == [(3, 50, 2), (3, 100, 2), (3, 150, 2)]


def test_early_stop__one_chain_never_agrees():
    assert not run(n_chains=1, max_sweeps=200, agreement=Agreement(99.0, 0.0)).agreed


def test_events__figures_of_each_chain_and_of_each_look():
    heard: list[events.Event] = []
    with events.listen(heard.append):
        found = run(n_chains=2, max_sweeps=200, agreement=Agreement(0.5, 1))
    mine = [event for event in heard if event.stage == "chain 1"]
    assert [event.done for event in mine] == [50, 100, 150, 200]
    for event in mine:
        figures = found.scalars[1, event.done - 1]
        assert event.metrics == dict(zip(Walker.scalar_names, figures, strict=True))
    looks = [event for event in heard if event.stage == STAGE and "rhat" in event.metrics]
    assert [(event.done, event.total) for event in looks] == [(100, 200), (200, 200)]


# ---- wherever they run --------------------------------------------------------------------------

STOPPING = Agreement(1.05, 300)


@pytest.fixture(scope="module")
def unbroken() -> Traces:
    """Five chains in this process, until they agree."""
    with engine.connect("threads", threads=1):
        found = run(n_chains=5, max_sweeps=900, agreement=STOPPING)
    assert found.agreed
    assert found.n_sweeps >= 200
    return found


@pytest.mark.parametrize("threads", [2, 5, 8])
def test_threads__any_number_gives_the_same_bits(threads, unbroken):
    with engine.connect("threads", threads=threads):
        check_same(run(n_chains=5, max_sweeps=900, agreement=STOPPING), unbroken)


@pytest.mark.cluster
@pytest.mark.usefixtures("on_client")
def test_workers__same_bits_as_in_process(unbroken, tmp_path):
    check_same(run(n_chains=5, max_sweeps=900, agreement=STOPPING), unbroken)
    vault = Vault.at(tmp_path, "run", "mine")
    check_same(run(n_chains=5, max_sweeps=900, agreement=STOPPING, vault=vault), unbroken)


@pytest.mark.cluster
@pytest.mark.usefixtures("on_client")
def test_workers__more_chains_than_threads_are_queued_and_it_is_said():
    heard: list[events.Event] = []
    with events.listen(heard.append):
        found = run(n_chains=5, max_sweeps=10)
    notes = [event.metrics["note"] for event in heard if "note" in event.metrics]
    assert notes == ["5 chains on 2 threads: 2 at a time"]
    check_same(found, run(n_chains=5, max_sweeps=10))


# ---- taken up again -----------------------------------------------------------------------------


@pytest.fixture
def saving(monkeypatch) -> list[Crew]:
    """Chains are saved after each round; their crews are listed."""
    made: list[Crew] = []

    def make(*args: Any, **options: Any) -> Crew:
        made.append(Crew(*args, every=1, **options))
        return made[-1]

    monkeypatch.setattr(chains, "Crew", make)
    return made


@pytest.mark.parametrize("sweep", [0, 49, 50, 120])
def test_resume__after_a_fault_gives_the_same_bits(sweep, saving, unbroken, monkeypatch, tmp_path):
    go = functools.partial(run, n_chains=5, max_sweeps=900, agreement=STOPPING)
    with monkeypatch.context() as patch:
        patch.setattr(f"{__name__}.fault_at", sweep)
        with pytest.raises(ArithmeticError):
            go(vault=Vault.at(tmp_path, "run", "mine"))
    heard: list[events.Event] = []
    with events.listen(heard.append):
        check_same(go(vault=Vault.at(tmp_path, "run", "mine")), unbroken)
    rounds = [event.done for event in heard if event.stage == "chain 0"]
    assert rounds[0] == sweep // 50 * 50 + 50  # and no more was done again


def test_resume__after_an_interrupt(unbroken, tmp_path):
    """Without it nothing would have been saved yet: an interrupt saves."""

    def interrupt(event: events.Event) -> None:
        if event.stage == "chain 2" and event.done == 100 and not struck:
            struck.append(event)
            raise KeyboardInterrupt

    struck: list[events.Event] = []

    go = functools.partial(run, n_chains=5, max_sweeps=900, agreement=STOPPING)
    with events.listen(interrupt), pytest.raises(KeyboardInterrupt):
        go(vault=Vault.at(tmp_path, "run", "mine"))
    heard: list[events.Event] = []
    with events.listen(heard.append):
        check_same(go(vault=Vault.at(tmp_path, "run", "mine")), unbroken)
    assert min(event.done for event in heard if event.stage == "chain 0") >= 100


def test_resume__what_is_over_is_not_done_again(saving, unbroken, tmp_path):
    go = functools.partial(run, n_chains=5, max_sweeps=900, agreement=STOPPING)
    check_same(go(vault=Vault.at(tmp_path, "run", "mine")), unbroken)
    heard: list[events.Event] = []
    with events.listen(heard.append):
        check_same(go(vault=Vault.at(tmp_path, "run", "mine")), unbroken)
    assert [event for event in heard if event.stage == "chain 0"] == []


def test_resume__checkpoints_of_others_are_refused(saving, tmp_path):
    run(vault=Vault.at(tmp_path, "run", "mine"))
    with pytest.raises(InputError, match="mine"):
        run(vault=Vault.at(tmp_path, "run", "another"))


# ---- workers that die ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_session() -> Iterator[engine.Session]:
    with engine.connect("local", workers=2, threads=1) as session:
        yield session


@pytest.fixture
def session(shared_session) -> engine.Session:
    """The cluster, when all that an earlier test killed are there again."""
    wait_for(lambda: len(shared_session.client.nthreads()) == 2)
    return shared_session


def wait_for(what: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def kill_one(session: engine.Session, crew: Crew) -> None:
    """Kill a worker that has chains."""
    places = {member.berth for member in crew._members}
    busy = [k for k in session._cluster.workers.values() if k.worker_address in places]
    os.kill(busy[0].pid, signal.SIGKILL)


@pytest.mark.chaos
@pytest.mark.cluster
@pytest.mark.parametrize("has_vault", [True, False])
def test_killed_worker__same_traces(has_vault, saving, session, unbroken, tmp_path):
    killed_at: list[int] = []

    def strike(event: events.Event) -> None:
        if event.stage == "chain 0" and event.done == 150 and not killed_at:
            killed_at.append(event.done)
            kill_one(session, saving[-1])

    vault = Vault.at(tmp_path, "run", "mine") if has_vault else None
    with events.listen(strike):
        found = run(Walker(), n_chains=5, max_sweeps=900, agreement=STOPPING, vault=vault)
    assert killed_at
    check_same(found, unbroken)
    crew = saving[-1]
    assert crew.n_restarts >= 1
    rounds_lost = 1 if has_vault else 4  # 150 sweeps are three rounds
    assert crew.n_redone <= rounds_lost * crew.n_restarts


@pytest.mark.chaos
@pytest.mark.cluster
def test_killed_worker__in_mid_round(saving, session, unbroken, tmp_path):
    """A round takes a while: the worker dies at work."""
    timers: list[threading.Timer] = []

    def strike(event: events.Event) -> None:
        if event.stage == "chain 0" and event.done == 100 and not timers:
            timers.append(threading.Timer(0.03, kill_one, (session, saving[-1])))
            timers[0].start()

    with events.listen(strike):
        found = run(
            Walker(seconds=0.002),
            n_chains=5,
            max_sweeps=900,
            agreement=STOPPING,
            vault=Vault.at(tmp_path, "run", "mine"),
        )
    timers[0].join()
    check_same(found, unbroken)
    assert saving[-1].n_restarts >= 1
