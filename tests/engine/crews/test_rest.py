"""Crews between two pieces of work: they let go of workers, and mix nothing up."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from distclust import engine
from distclust.engine.crews import Crew, Vault, drain_worker
from distclust.errors import CheckpointWarning, InputError
from distclust.store.checkpoints import Checkpoints
from distclust.store.objects import open_objects
from tests.walkers import Leader, Walker


def vault(tmp_path, run: str = "run", incarnation: int = 1) -> Vault:
    return Vault(open_objects(tmp_path), run, "a fingerprint", incarnation)


@pytest.mark.cluster
def test_rest__a_worker_is_drained_although_nobody_supervises():
    with Crew(Walker(), 5) as crew:
        wanted = crew.follow(Leader(6)).total
    with engine.connect("local", workers=2, threads=1) as session, Crew(Walker(), 5) as crew:
        np.testing.assert_array_equal(crew.follow(Leader(6)).total, wanted)
        first = sorted(session.client.scheduler_info(n_workers=-1)["workers"])[0]
        drain_worker(first, timeout=10.0)
        assert first not in crew._hands._remotes
        crew.assign(Walker(), 5)
        np.testing.assert_array_equal(crew.follow(Leader(6)).total, wanted)


def test_resume__with_another_number_of_members_is_refused(tmp_path):
    with Crew(Walker(), 4, vault=vault(tmp_path), every=2) as crew:
        crew.follow(Leader(4))
    for n_members in (2, 6):
        with (
            Crew(Walker(), n_members, vault=vault(tmp_path, incarnation=2)) as crew,
            pytest.raises(InputError, match=f"{n_members} members.*4 members"),
        ):
            crew.follow(Leader(4))


def test_follow__a_second_plan_on_the_same_run_is_refused(tmp_path):
    with Crew(Walker(), 3, vault=vault(tmp_path), every=1) as crew:
        crew.follow(Leader(2))
        with pytest.raises(InputError, match="one plan a run"):
            crew.follow(Leader(3))
        crew.assign(Walker(), 3, vault(tmp_path, "another"))
        assert crew.follow(Leader(3)).n == 3
    with Crew(Walker(), 3) as crew:  # nothing is saved, nothing is mixed up
        crew.follow(Leader(2))
        crew.follow(Leader(2))


def test_saving__that_fails_is_said_once_until_it_works_again(tmp_path, monkeypatch):
    save = Checkpoints.save
    is_full = [True]

    def failing(self, *arguments, **options):
        if is_full[0]:
            raise OSError(28, "No space left on device", str(tmp_path))
        save(self, *arguments, **options)

    monkeypatch.setattr(Checkpoints, "save", failing)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Crew(Walker(), 3, vault=vault(tmp_path), every=1) as crew:
            for i in range(12):
                is_full[0] = not 4 <= i < 8
                crew.round(float(i))
    said = [w for w in caught if w.category is CheckpointWarning]
    assert len(said) == 2


class Stumbler(Walker):
    def advance(self, place, member, state, order):
        if member == 1 and state.n == 3:
            raise ZeroDivisionError("a stone")
        return super().advance(place, member, state, order)


def test_error__of_a_member_says_whose_it_is():
    with Crew(Stumbler(), 3) as crew, pytest.raises(ZeroDivisionError, match="a stone") as found:
        crew.follow(Leader(6))
    assert found.value.__notes__ == ["in walker 1 of a crew, order 3"]


def test_saving__that_takes_long_is_done_less_often(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("distclust.engine.crews.crew.time.monotonic", lambda: clock[0])
    save = Vault.save
    saved: list[float] = []

    def slow(self, part, *arguments, **options):
        save(self, part, *arguments, **options)
        if part == "plan":
            saved.append(clock[0])
            clock[0] += 2.0

    monkeypatch.setattr(Vault, "save", slow)

    class Slow(Leader):
        def absorb(self, state, reports):
            clock[0] += 5.0
            return super().absorb(state, reports)

    with Crew(Walker(), 2, vault=vault(tmp_path), seconds=10.0) as crew:
        crew.follow(Slow(40))
    assert saved[0] <= 15.0
    assert np.diff(saved).min() >= 80.0
    assert len(saved) == 3
