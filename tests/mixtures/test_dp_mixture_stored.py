"""Fits of DPMixture that are cut off, on workers that die: the same draws to the bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import distclust
from distclust import DPMixture, engine, events
from distclust.engine import Crew
from distclust.errors import OtherRowsError
from distclust.mixtures import chains
from distclust.store.checkpoints import CHECKPOINTS
from distclust.store.results import ResultsStore
from tests.faults import fork
from tests.mixtures.test_dp_mixture import check_same, make_rows

KINDS: dict[str, dict[str, Any]] = {
    "collapsed": {},
    "tdp": {"sampler": "blocked-tdp"},
    "dma": {"sampler": "blocked-dma"},
}
_EXIT = 70
_SWEEPS = 300  # rounds of 50


def make(kind: str = "collapsed", **more: Any) -> DPMixture:
    settings = {"n_chains": 3, "max_sweeps": _SWEEPS, "stop": None, "random_state": 0}
    return DPMixture(**{**settings, **KINDS[kind], **more})


@pytest.fixture(scope="module")
def unbroken() -> dict[str, DPMixture]:
    return {kind: make(kind).fit(make_rows()[0]) for kind in KINDS}


@pytest.fixture(autouse=True)
def every_round(monkeypatch) -> list[Crew]:
    """Crews save after every round, and can be looked at."""
    made: list[Crew] = []

    def crew(*args: Any, **options: Any) -> Crew:
        made.append(Crew(*args, **{**options, "every": 1}))
        return made[-1]

    monkeypatch.setattr(chains, "Crew", crew)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sweep", [50, 200])
def test_killed__the_same_fit_goes_on_where_it_was(kind, sweep, unbroken, tmp_path):
    def run() -> int:
        def stop(event: events.Event) -> None:
            # The round after the one to be kept: it was saved by then.
            if event.stage == "chain 0" and event.done == sweep + 50:
                os._exit(_EXIT)  # nothing is closed, nothing is flushed

        with events.listen(stop):
            make(kind).fit(make_rows()[0], results=tmp_path)
        return 0

    assert fork(run)() == _EXIT
    (run_id,) = ResultsStore(tmp_path).unfinished()
    done: list[int] = []
    hear = lambda event: done.append(event.done) if event.stage == "chain 0" else None  # noqa: E731
    with events.listen(hear):
        model = make(kind).fit(make_rows()[0], results=tmp_path)
    assert done == list(range(sweep + 50, _SWEEPS + 1, 50)), "what was saved is not done again"
    check_same(model, unbroken[kind])
    assert model.version_ == run_id
    assert ResultsStore(tmp_path).objects.list(CHECKPOINTS) == []
    check_same(distclust.load(tmp_path), unbroken[kind])


def test_results__a_seed_that_was_drawn_is_kept(tmp_path):
    def run() -> int:
        def stop(event: events.Event) -> None:
            if event.stage == "chain 0" and event.done == 100:
                os._exit(_EXIT)

        with events.listen(stop):
            make(random_state=None).fit(make_rows()[0], results=tmp_path)
        return 0

    assert fork(run)() == _EXIT
    (begun,) = ResultsStore(tmp_path).unfinished().values()
    model = make(random_state=None).fit(make_rows()[0], results=tmp_path)
    check_same(model, make(random_state=begun["seed"]).fit(make_rows()[0]))


@pytest.mark.parametrize(
    ("more", "rows"),
    [({"max_sweeps": 350}, 0), ({"concentration": 2.0}, 0), ({}, 1)],
    ids=["sweeps", "concentration", "rows"],
)
def test_results__an_unfinished_fit_of_something_else_is_refused(more, rows, tmp_path):
    def run() -> int:
        def stop(event: events.Event) -> None:
            if event.stage == "chain 0" and event.done == 100:
                os._exit(_EXIT)

        with events.listen(stop):
            make().fit(make_rows()[0], results=tmp_path)
        return 0

    assert fork(run)() == _EXIT
    other = make(**more)
    with pytest.raises(OtherRowsError, match="fresh"):
        other.fit(make_rows(seed=rows)[0], results=tmp_path)
    other.fit(make_rows(seed=rows)[0], results=tmp_path, fresh=True)
    assert len(ResultsStore(tmp_path).versions()) == 1


# ---- workers that die ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def session() -> Iterator[engine.Session]:
    with engine.connect("local", workers=4, threads=1) as found:
        yield found


@pytest.mark.cluster
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("kind", "seed"), [("collapsed", 0), ("collapsed", 1), ("tdp", 0), ("dma", 1)]
)
def test_killed_worker__same_draws(kind, seed, session, every_round, unbroken, tmp_path):
    """A worker that has a chain dies at a random round; workers come back by themselves."""
    client = session.client
    client.wait_for_workers(4, timeout=60)
    moment = 50 * int(np.random.default_rng(seed).integers(1, 5))
    killed: list[int] = []

    def kill(event: events.Event) -> None:
        if event.stage == "chain 0" and event.done == moment and not killed:
            homes = {member.berth for member in every_round[-1]._members}
            facts = client.scheduler_info(n_workers=-1)["workers"]
            pids = client.run(os.getpid)
            victim = sorted(home for home in homes if home in facts)[0]
            killed.append(pids[victim])
            os.kill(pids[victim], signal.SIGKILL)

    with events.listen(kill):
        model = make(kind).fit(make_rows()[0], results=tmp_path)
    assert killed
    assert every_round[-1].n_restarts >= 1
    check_same(model, unbroken[kind])


@pytest.mark.cluster
@pytest.mark.parametrize("n_workers", [1, 4])
def test_workers__any_number_gives_the_same(n_workers, unbroken, session):
    if n_workers == 4:
        check_same(make().fit(make_rows()[0]), unbroken["collapsed"])
        return
    with engine.connect("local", workers=1, threads=1):
        check_same(make().fit(make_rows()[0]), unbroken["collapsed"])
