from __future__ import annotations

import datetime
import os
import signal
import threading
import time

import pytest

from distclust.errors import ConflictError, InputError
from distclust.jobs import ledger as ledgers
from distclust.jobs.ledger import HEARTBEATS, JobLedger, State
from distclust.store.objects import open_objects
from tests.faults import fork

MODELS = {"tree": {"kind": "rbhc", "version": "v1"}}


@pytest.fixture
def job(any_url: str) -> JobLedger:
    return JobLedger(open_objects(any_url))


@pytest.fixture
def quick(memory_url: str) -> JobLedger:
    return JobLedger(open_objects(memory_url))


@pytest.fixture
def elsewhere(monkeypatch):
    """Let processes look as if they were on another machine."""
    monkeypatch.setattr(ledgers, "_is_here", lambda holder: False)
    monkeypatch.setattr(ledgers, "PATIENCE_SECONDS", 0.6)
    monkeypatch.setattr(ledgers, "BEAT_SECONDS", 0.1)


def test_begin__nothing_is_published_at_first(job):
    assert job.published() is None
    job.check_owner("anybody")
    lock = job.begin("articles")
    assert lock.published is None
    lock.check()
    lock.end("nothing new")
    job.check_owner("articles")
    with pytest.raises(InputError, match="results of job 'films', got those of job 'articles'"):
        job.check_owner("films")
    assert job.published() is None


def test_publish__is_seen_by_all_and_carried_on(job):
    lock = job.begin("articles")
    state = lock.publish("rows.zarr", 3, "abc", MODELS)
    assert state == State(2, lock.run, state.time, "rows.zarr", 3, "abc", [], MODELS)
    assert job.published() == state
    lock.end("published")
    later = job.begin("articles")
    assert later.published == state
    assert later.run > lock.run
    assert later.cut_off is None
    later.end("nothing new")
    assert job.published() == state
    last = job.begin("articles")
    state = last.publish("rows.zarr", 5, "def", {}, retired=list(MODELS))
    assert state.earlier == [3]
    last.end("published")
    since = {name: {"since": state.time, "states": 2} for name in MODELS}
    again = job.begin("articles")
    assert again.publish("rows.zarr", 6, "ghi", {}, retired=list(MODELS)).retired == since
    again.end("published")


def test_begin__another_job_is_refused(quick):
    quick.begin("articles").end("published")
    with pytest.raises(InputError, match="job 'articles'"):
        quick.begin("films")


def test_begin__a_living_run_of_this_machine_is_a_conflict(quick):
    lock = quick.begin("articles")
    with pytest.raises(ConflictError, match="alive"):
        quick.begin("articles")
    lock.end("published")


def test_begin__a_process_that_was_killed_is_followed_at_once(tmp_path):
    job = JobLedger(open_objects(str(tmp_path)))

    def die() -> int:
        job.begin("articles")
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with pytest.raises(AssertionError, match="signal 9"):
        fork(die)()
    begun = time.monotonic()
    lock = job.begin("articles")
    assert time.monotonic() - begun < 2.0
    assert lock.cut_off is not None
    lock.end("published")


def test_begin__a_silent_run_elsewhere_is_followed_after_a_while(quick, elsewhere):
    first = quick.begin("articles")
    first.abandon()
    said: list[str] = []
    second = quick.begin("articles", said.append)
    assert second.cut_off == first.run
    assert "has not ended" in said[0]
    second.end("published")


def test_begin__a_beating_run_elsewhere_is_a_conflict(quick, elsewhere):
    lock = quick.begin("articles")
    with pytest.raises(ConflictError, match="alive"):
        quick.begin("articles")
    lock.end("published")


def test_lock__who_lost_it_can_publish_nothing(job, elsewhere):
    sleeper = job.begin("articles")
    sleeper.abandon()
    lock = job.begin("articles")
    state = lock.publish("rows.zarr", 1, "abc", MODELS)
    with pytest.raises(ConflictError, match="another run has it"):
        sleeper.check()
    with pytest.raises(ConflictError):
        sleeper.publish("rows.zarr", 2, "other", {})
    with pytest.raises(ConflictError):
        sleeper.end("published")
    assert job.published() == state
    lock.end("published")


def test_begin__two_at_the_same_moment_one_gets_it(tmp_path):
    job = JobLedger(open_objects(str(tmp_path)))
    gate = threading.Barrier(4)
    locks, conflicts = [], []

    def try_it() -> None:
        gate.wait()
        try:
            locks.append(job.begin("articles"))
        except ConflictError as error:
            conflicts.append(error)

    threads = [threading.Thread(target=try_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(locks), len(conflicts)) == (1, 3)
    locks[0].end("published")


def test_begin__ids_sort_even_if_the_clock_went_backwards(quick, monkeypatch):
    runs = []
    for year in (2026, 2025):

        class Clock(datetime.datetime):
            @classmethod
            def now(cls, tz=None, year=year):
                return datetime.datetime(year, 1, 2, 3, 4, 5, tzinfo=tz)

        monkeypatch.setattr(ledgers.datetime, "datetime", Clock)
        lock = quick.begin("articles")
        lock.end("published")
        runs.append(lock.run)
    assert runs == ["00000001-20260102T030405Z", "00000003-20250102T030405Z"]
    assert runs == sorted(runs)


def test_end__leaves_no_heartbeat_and_drops_old_records(quick):
    for _ in range(4):
        lock = quick.begin("articles")
        lock.end("nothing new", keep=3)
    assert quick.objects.list(HEARTBEATS) == []
    assert len(quick.objects.list(ledgers.LEDGER)) == 4


def test_is_gone__another_process_with_the_same_number():
    holder = ledgers._this_process()
    assert not ledgers._is_gone(holder)
    assert ledgers._is_gone(holder | {"started": holder["started"] - 100.0})
    assert not ledgers._is_gone(holder | {"host": "elsewhere", "process": 2**22 + 1})
    assert ledgers._is_gone(holder | {"process": 2**22 + 1})
