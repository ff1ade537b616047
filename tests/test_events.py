from __future__ import annotations

import json
import threading

import pytest

from distclust import events
from distclust.events import Event


def test_emit__reaches_every_listener_only_while_it_listens():
    first: list[Event] = []
    second: list[Event] = []
    events.emit("before", 1)
    with events.listen(first.append):
        events.emit("a", 1, 3, job="j", loss=0.5)
        with events.listen(second.append):
            events.emit("b", 2)
        events.emit("c", 3)
    events.emit("after", 1)
    assert [event.stage for event in first] == ["a", "b", "c"]
    assert [event.stage for event in second] == ["b"]
    assert first[0].job == "j"
    assert (first[0].done, first[0].total, first[0].metrics) == (1, 3, {"loss": 0.5})
    assert first[0].time > 1e9


def test_listen__the_same_callback_twice_is_two_listeners():
    seen: list[Event] = []
    with events.listen(seen.append):
        with events.listen(seen.append):
            events.emit("a", 1)
        events.emit("b", 1)
    assert [event.stage for event in seen] == ["a", "a", "b"]
    assert not events.has_listeners()


def test_emit__what_a_listener_raises_comes_out():
    def broken(event: Event) -> None:
        raise KeyError("broken")

    with events.listen(broken), pytest.raises(KeyError, match="broken"):
        events.emit("a", 1)
    assert not events.has_listeners()


def test_listen__hears_other_threads():
    seen: list[int] = []
    with events.listen(lambda event: seen.append(event.done)):
        threads = [threading.Thread(target=events.emit, args=("a", i)) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == list(range(20))


def test_redirect__takes_events_of_its_own_context_only():
    heard: list[str] = []
    redirected: list[str] = []
    with events.listen(lambda event: heard.append(event.stage)):
        with events.redirect(lambda event: redirected.append(event.stage)):
            events.emit("mine", 1)
            other = threading.Thread(target=events.emit, args=("theirs", 1))
            other.start()
            other.join()
        events.emit("later", 1)
    assert redirected == ["mine"]
    assert heard == ["theirs", "later"]


def test_from_dict__undoes_as_dict_through_json():
    event = Event("j", "s", 3, None, {"a": 1, "b": 0.1, "c": "x"}, 12.25)
    line = json.dumps(event.as_dict())
    assert Event.from_dict({**json.loads(line), "worker": "tcp://added-by-dask"}) == event


def test_stage__emits_first_and_last_and_few_between():
    seen: list[Event] = []
    with events.listen(seen.append), events.stage("work", 10_000) as progress:
        for i in range(10_000):
            progress.advance(loss=float(i))
    assert (seen[0].done, seen[0].total) == (0, 10_000)
    assert (seen[-1].done, seen[-1].metrics) == (10_000, {"loss": 9999.0})
    assert len(seen) < 100
    assert [event.done for event in seen] == sorted({event.done for event in seen})


def test_stage__work_that_fails_does_not_report_an_end():
    seen: list[Event] = []

    def fail() -> None:
        with events.stage("work", 2) as progress:
            progress.advance()
            progress.advance()
            raise ValueError("stop")

    with events.listen(seen.append), pytest.raises(ValueError, match="stop"):
        fail()
    assert all(event.done < 2 for event in seen)
