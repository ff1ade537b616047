"""Fits of ClusterEnsemble that are cut off, on workers that die: the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import distclust
from distclust import engine, events
from distclust.engine import Crew
from distclust.ensembles import ClusterEnsemble
from distclust.mixtures import chains
from distclust.store.checkpoints import CHECKPOINTS
from distclust.store.results import ResultsStore
from tests.ensembles.test_cluster_ensemble import check_same, make_rows
from tests.faults import fork

KINDS: dict[str, dict[str, Any]] = {"rows": {}, "collapsed": {"collapse": True}}
_EXIT = 70
_SWEEPS, _ROUND = 60, 10


def make(kind: str) -> ClusterEnsemble:
    settings = {"n_bases": 4, "n_chains": 3, "max_sweeps": _SWEEPS, "stop": None}
    return ClusterEnsemble("dpce", random_state=0, **settings, **KINDS[kind])


@pytest.fixture(scope="module")
def unbroken() -> dict[str, ClusterEnsemble]:
    return {kind: make(kind).fit(make_rows()[0]) for kind in KINDS}


@pytest.fixture(autouse=True)
def every_round(monkeypatch) -> list[Crew]:
    """Rounds are short, crews save after each, and can be looked at."""
    made: list[Crew] = []

    def crew(*args: Any, **options: Any) -> Crew:
        made.append(Crew(*args, **{**options, "every": 1}))
        return made[-1]

    monkeypatch.setattr(chains, "_A_ROUND", (_ROUND,))
    monkeypatch.setattr(chains, "Crew", crew)
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_killed__the_same_fit_goes_on_where_it_was(kind, unbroken, tmp_path):
    def run() -> int:
        def stop(event: events.Event) -> None:
            if event.stage == "chain 0" and event.done == 40:
                os._exit(_EXIT)  # nothing is closed, nothing is flushed

        with events.listen(stop):
            make(kind).fit(make_rows()[0], results=tmp_path)
        return 0

    assert fork(run)() == _EXIT
    done: list[int] = []
    hear = lambda event: done.append(event.done) if event.stage == "chain 0" else None  # noqa: E731
    with events.listen(hear):
        model = make(kind).fit(make_rows()[0], results=tmp_path)
    assert done == [40, 50, 60], "what was saved is not done again"
    check_same(model, unbroken[kind])
    assert ResultsStore(tmp_path).objects.list(CHECKPOINTS) == []
    check_same(distclust.load(tmp_path), unbroken[kind])


@pytest.fixture(scope="module")
def session() -> Iterator[engine.Session]:
    with engine.connect("local", workers=4, threads=1) as found:
        yield found


@pytest.mark.cluster
@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "moment"), [("rows", 30), ("collapsed", 10)])
def test_killed_worker__same_draws(kind, moment, session, every_round, unbroken, tmp_path):
    client = session.client
    client.wait_for_workers(4, timeout=60)
    killed: list[int] = []

    def kill(event: events.Event) -> None:
        if event.stage == "chain 0" and event.done == moment and not killed:
            homes = {member.berth for member in every_round[-1]._members}
            pids = client.run(os.getpid)
            victim = sorted(home for home in homes if home in pids)[0]
            killed.append(pids[victim])
            os.kill(pids[victim], signal.SIGKILL)

    with events.listen(kill):
        model = make(kind).fit(make_rows()[0], results=tmp_path)
    assert killed
    assert every_round[-1].n_restarts >= 1
    check_same(model, unbroken[kind])


@pytest.mark.cluster
@pytest.mark.chaos
def test_killed_worker__while_bases_are_made(session, unbroken):
    """Bases are tasks: those of the dead worker are done again elsewhere."""
    client = session.client
    client.wait_for_workers(4, timeout=60)
    killed: list[int] = []

    def kill(event: events.Event) -> None:
        # Brief tasks come back together, so the first word of the stage may be the only one.
        if event.stage == "base clusterings" and not killed:
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    with events.listen(kill):
        model = make("rows").fit(make_rows()[0])
    assert killed
    check_same(model, unbroken["rows"])


@pytest.mark.cluster
@pytest.mark.parametrize("n_workers", [1, 4])
def test_workers__any_number_gives_the_same(n_workers, unbroken, session):
    rows = make_rows()[0]
    if n_workers == 4:
        check_same(make("rows").fit(rows), unbroken["rows"])
        return
    with engine.connect("local", workers=1, threads=1):
        check_same(make("rows").fit(rows), unbroken["rows"])


def test_chains_depend_on_seed_and_number_alone(unbroken):
    """Two chains more change nothing in the first three."""
    more = make("rows").set_params(n_chains=5).fit(make_rows()[0])
    for name, trace in unbroken["rows"].traces_.items():
        np.testing.assert_array_equal(trace, more.traces_[name][:3])
