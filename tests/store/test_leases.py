from __future__ import annotations

import time

import pytest

from distclust.errors import StoreError
from distclust.store import leases
from distclust.store.leases import SKEW, lease, live_names, sweep_leases
from distclust.store.sealed import seal
from tests.clocks import give_clock

PREFIX = ".distclust/leases"


@pytest.fixture
def clock(monkeypatch):
    """Return a clock to be turned by hand."""

    class Clock:
        now = 1_000_000.0

    give_clock(monkeypatch, leases, time=lambda: Clock.now)
    return Clock


def test_lease__is_live_inside_the_context_only(objects):
    assert live_names(objects, PREFIX) == set()
    with lease(objects, PREFIX, "a"), lease(objects, PREFIX, "a"), lease(objects, PREFIX, "b"):
        assert live_names(objects, PREFIX) == {"a", "b"}
    assert live_names(objects, PREFIX) == set()
    assert objects.list() == []


def test_lease__two_readers_of_one_thing(objects):
    first, second = lease(objects, PREFIX, "a"), lease(objects, PREFIX, "a")
    first.release()
    first.release()
    assert live_names(objects, PREFIX) == {"a"}
    second.release()
    assert live_names(objects, PREFIX) == set()


def test_lease__is_released_when_the_reader_fails(objects):
    with pytest.raises(KeyError), lease(objects, PREFIX, "a"):
        raise KeyError
    assert live_names(objects, PREFIX) == set()


def test_live_names__clocks_may_differ(objects):
    lease(objects, PREFIX, "a", seconds=100)
    now = time.time()
    assert live_names(objects, PREFIX, now + 100 + SKEW - 5) == {"a"}
    assert live_names(objects, PREFIX, now + 100 + SKEW + 5) == set()
    assert live_names(objects, PREFIX, now - 10**6) == {"a"}


def test_lease__keep_renews_when_half_is_gone(memory_objects, clock):
    objects = memory_objects
    held = lease(objects, PREFIX, "a", seconds=100)
    (key,) = objects.list(PREFIX)
    before = objects.read(key)
    clock.now += 40
    assert held.keep()
    assert objects.read(key) == before
    clock.now += 20
    assert held.keep()
    assert objects.read(key) != before
    assert objects.list(PREFIX) == [key]
    assert live_names(objects, PREFIX, clock.now + 99 + SKEW) == {"a"}


def test_lease__one_that_ran_out_says_so_and_holds_again(memory_objects, clock):
    objects = memory_objects
    held = lease(objects, PREFIX, "a", seconds=100)
    (key,) = objects.list(PREFIX)
    clock.now += 100
    assert not held.keep()
    assert held.keep()
    assert live_names(objects, PREFIX) == {"a"}
    # Whoever sweeps the old one away does not meet the new one.
    objects.delete(key)
    assert live_names(objects, PREFIX) == {"a"}


def test_sweep_leases__removes_those_of_killed_readers(memory_objects, clock):
    objects = memory_objects
    lease(objects, PREFIX, "killed", seconds=100)
    clock.now += 100 + SKEW - 1
    sweep_leases(objects, PREFIX)
    assert live_names(objects, PREFIX) == {"killed"}
    lease(objects, PREFIX, "alive", seconds=100)
    clock.now += 1
    sweep_leases(objects, PREFIX)
    assert len(objects.list(PREFIX)) == 1
    assert live_names(objects, PREFIX) == {"alive"}


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", seal("distclust-lease", {}), seal("distclust-lease", {"name": 1, "expires": 2})],
)
def test_live_names__a_lease_that_cannot_be_read_stops_the_collector(memory_objects, content):
    memory_objects.write(f"{PREFIX}/x.json", content)
    with pytest.raises(StoreError, match=r"x\.json"):
        live_names(memory_objects, PREFIX)


def test_live_names__a_lease_released_meanwhile_is_no_error(memory_objects, monkeypatch):
    held = lease(memory_objects, PREFIX, "a")
    keys = memory_objects.list(PREFIX)
    held.release()
    monkeypatch.setattr(memory_objects, "list", lambda prefix: keys)
    assert live_names(memory_objects, PREFIX) == set()
