from __future__ import annotations

import datetime
import json
import os
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from distclust import __version__
from distclust.errors import ConflictError, InputError, StoreError
from distclust.store import collecting, leases
from distclust.store.drafts import DRAFTS, held_back
from distclust.store.leases import SKEW
from distclust.store.objects import Finding, MissingObject, Objects
from distclust.store.results import DAY, ResultsStore
from distclust.store.sealed import seal, unseal
from distclust.store.shelf import CONDEMNED, LEASES, POINTER
from distclust.store.versions import SEAL, VERSIONS, FileEntry, is_id, new_id, time_of
from tests.clocks import give_clock
from tests.faults import every_fault, fork

WORK = {"kind": "bhc", "parameters": {"alpha": 1.5, "tuple": (1, 2)}, "seed": 7}
FINGERPRINT = "0123abcd"


def begin(store: ResultsStore, run: str | None = None, **changes):
    return store.begin(**(WORK | {"input_fingerprint": FINGERPRINT} | changes), run=run)


def find(store: ResultsStore, **changes) -> str | None:
    return store.find_run(**(WORK | {"input_fingerprint": FINGERPRINT} | changes))


def publish(store: ResultsStore, content: bytes = b"content", **changes) -> str:
    with begin(store, **changes) as draft:
        draft.write("labels.csv", content)
        draft.write("deep/er.bin", content[::-1], b"tail")
        draft.publish({"log_evidence": -float(len(content))})
    return draft.id


def read_all(store: ResultsStore, name: str | None = None) -> dict[str, bytes]:
    with store.open_version(name) as reader:
        return {file: reader.read(file) for file in reader.version.files}


def files_of(content: bytes) -> dict[str, bytes]:
    return {"labels.csv": content, "deep/er.bin": content[::-1] + b"tail"}


@pytest.fixture
def store(any_url: str) -> ResultsStore:
    return ResultsStore(any_url)


@pytest.fixture
def quick(memory_url: str) -> ResultsStore:
    """Return a store in memory, for what does not depend on the place."""
    return ResultsStore(memory_url)


@pytest.fixture
def clock(monkeypatch):
    """Return a clock of leases to be turned by hand."""

    class Clock:
        now = time.time()

    give_clock(monkeypatch, leases, time=lambda: Clock.now)
    return Clock


def test_store__an_absent_one_is_empty(store, tmp_path):
    assert store.current() is None
    assert store.versions() == []
    assert store.verify() == []
    assert store.gc() == collecting.Collected()
    with pytest.raises(StoreError, match="expected a published version, got none"):
        store.open_version()
    with pytest.raises(InputError, match="nothing published"):
        store.rollback()


def test_publish__is_read_back(store):
    with begin(store) as draft:
        draft.write("a.txt", b"one ", memoryview(b"two"))
        draft.write("empty")
        draft.write_archive("model", "bhc", {"x": 1}, {"rows": np.arange(3.0)})
        version = draft.publish({"log_evidence": -1.5, "nothing": float("nan")})
    assert version.id == draft.id
    assert is_id(version.id)
    assert (version.kind, version.seed, version.input_fingerprint) == ("bhc", 7, FINGERPRINT)
    assert version.parameters == {"alpha": 1.5, "tuple": [1, 2]}
    assert version.code_version == __version__
    assert version.metrics["log_evidence"] == -1.5
    assert version.size == sum(entry.size for entry in version.files.values())
    sealed = datetime.datetime.fromisoformat(version.created).timestamp()
    assert abs(sealed - time.time()) < 60
    with store.open_version() as reader:
        assert reader.version.id == version.id
        assert reader.version.is_current
        assert reader.read("a.txt") == b"one two"
        assert reader.read("empty") == b""
        archive = reader.read_archive("model")
        with pytest.raises(InputError, match=r"a file 'b.txt', got a\.txt, empty, model"):
            reader.read("b.txt")
    assert archive.meta["x"] == 1
    np.testing.assert_array_equal(archive.arrays["rows"], np.arange(3.0))
    assert store.verify() == []
    left = {key.split("/")[0] + "/" + key.split("/")[1] for key in store.objects.list()}
    assert left == {VERSIONS + "/" + version.id, POINTER}


def test_versions__in_the_order_of_publication(store):
    names = [publish(store, b"%d" % i) for i in range(3)]
    found = store.versions()
    assert [version.id for version in found] == names == store.names()
    assert [version.is_current for version in found] == [False, False, True]
    assert store.current() == found[-1] == store.get(names[-1])
    for i, name in enumerate(names):
        assert read_all(store, name) == files_of(b"%d" % i)


def test_store__pickles(quick):
    publish(quick)
    assert pickle.loads(pickle.dumps(quick)).current() == quick.current()


def test_store__readers_in_other_processes_see_one_version(tmp_path):
    store = ResultsStore(tmp_path / "results")
    publish(store, b"0" * 100)

    def publish_many() -> int:
        for i in range(1, 30):
            publish(store, b"%d" % (i % 10) * 100)
        return 0

    wait = fork(publish_many)
    seen = set()
    while len(store.names()) < 30:
        found = read_all(store)
        content = found["labels.csv"]
        assert found == files_of(content)
        assert len(set(content)) == 1
        seen.add(content)
    assert wait() == 0
    assert len(seen) > 3


@pytest.mark.parametrize("name", ["", "nonsense", "../x", "20260101T000000Z-0a1b2c3d"])
def test_store__unknown_versions_get_a_sentence(quick, name):
    publish(quick)
    for call in (quick.get, quick.open_version, lambda name: quick.diff(name, name)):
        with pytest.raises(InputError, match="expected the id of a version"):
            call(name)
    with pytest.raises(InputError, match="a run that was begun here"):
        begin(quick, run=name)
    if name:
        with pytest.raises(InputError):
            quick.rollback(name)
    assert quick.objects.list(LEASES) == []


# Rollback and differences.


def test_rollback__goes_back_one_by_one(store):
    names = [publish(store, b"%d" % i) for i in range(3)]
    assert store.rollback().id == names[1]
    assert read_all(store) == files_of(b"1")
    assert store.rollback().is_current
    assert store.current().id == names[0]
    with pytest.raises(InputError, match="a version before the current one"):
        store.rollback()
    assert store.rollback(names[2]).id == names[2]
    assert [v.id for v in store.versions()] == names
    head = store._shelf.pointer.head()
    assert head.content["action"] == "rollback"
    store.rollback(names[2])
    assert store._shelf.pointer.head() == head


def test_rollback__publishing_goes_on_after_it(quick):
    names = [publish(quick) for _ in range(2)]
    quick.rollback()
    names.append(publish(quick))
    assert quick.names() == names
    assert quick.rollback().id == names[1]


def test_rollback__refuses_a_damaged_version(quick):
    name = publish(quick, b"old")
    current = publish(quick, b"new")
    quick.objects.write(f"{VERSIONS}/{name}/labels.csv", b"odl")
    with pytest.raises(StoreError, match="altered"):
        quick.rollback()
    assert quick.current().id == current
    assert quick.objects.list(LEASES) == []


def test_rollback__a_move_by_somebody_else_is_a_conflict(quick, monkeypatch):
    publish(quick)
    publish(quick)
    opened = quick.open_version

    def open_while_others_publish(*arguments: object) -> object:
        monkeypatch.setattr(quick, "open_version", opened)
        publish(quick, b"others")
        return opened(*arguments)

    monkeypatch.setattr(quick, "open_version", open_while_others_publish)
    with pytest.raises(ConflictError):
        quick.rollback()
    assert read_all(quick) == files_of(b"others")


def test_diff__says_what_differs_and_nothing_else(quick):
    a = publish(quick, b"same")
    assert quick.diff(a, publish(quick, b"same")) == {}
    with quick.begin("rose", {"alpha": 2.5, "new": None}, 8, "ffff", "9.9") as draft:
        draft.write("labels.csv", b"same")
        draft.write("more", b"")
        draft.publish({"log_evidence": -3.0, "purity": 0.5, "label": "x"})
    assert quick.diff(a, draft.id) == {
        "kind": ["bhc", "rose"],
        "seed": [7, 8],
        "code_version": [__version__, "9.9"],
        "input_fingerprint": [FINGERPRINT, "ffff"],
        "parameters": {"alpha": [1.5, 2.5], "tuple": [[1, 2], None]},
        "metrics": {
            "label": [None, "x"],
            "log_evidence": [-4.0, -3.0, 1.0],
            "purity": [None, 0.5],
        },
        "files": {"added": ["more"], "removed": ["deep/er.bin"], "changed": []},
    }


def test_diff__values_that_are_no_numbers(quick):
    names = []
    for bound in (float("nan"), float("nan"), float("-inf")):
        with begin(quick) as draft:
            draft.publish({"bound": bound})
        names.append(draft.id)
    assert quick.diff(names[0], names[1]) == {}
    assert json.dumps(quick.diff(names[1], names[2])["metrics"]["bound"]) == "[NaN, -Infinity, NaN]"


# Drafts.


def test_draft__is_nothing_to_readers_until_it_is_published(store):
    old = publish(store, b"old")
    with begin(store) as draft:
        draft.write("labels.csv", b"new")
        assert store.names() == [old]
        assert store.verify() == []
        with pytest.raises(InputError):
            store.get(draft.id)
        with pytest.raises(InputError):
            store.open_version(draft.id)
    assert read_all(store) == files_of(b"old")


def test_draft__is_continued_without_rewriting_finished_files(store, monkeypatch):
    with begin(store) as first:
        first.write("a", b"finished")
        first.write("b", b"other")
    written = []
    write = type(store.objects).write

    def noted(self: Objects, key: str, *buffers: object) -> None:
        written.append(key)
        write(self, key, *buffers)

    monkeypatch.setattr(type(store.objects), "write", noted)
    run = find(store)
    assert run == first.id
    with begin(store, run=run) as second:
        assert second.incarnation == first.incarnation + 1
        assert second.names == ["a", "b"]
        assert second.read("a") == b"finished"
        second.write("a", b"finished")
        second.write("b", b"changed")
        second.publish()
    assert [key for key in written if key.startswith(VERSIONS)] == [f"{VERSIONS}/{run}/b"]
    assert read_all(store) == {"a": b"finished", "b": b"changed"}
    assert find(store) is None


def test_find_run__only_of_exactly_the_same_work(quick):
    assert find(quick) is None
    with begin(quick, seed=1), begin(quick) as draft:
        pass
    assert find(quick) == draft.id
    assert find(quick, code_version="9.9") is None
    assert find(quick, parameters={}) is None
    with pytest.raises(InputError, match="other parameters and seed"):
        begin(quick, run=draft.id, seed=3, parameters={})


def test_draft__unknown_file(quick):
    with begin(quick) as draft, pytest.raises(InputError, match="a file 'a', got no files"):
        draft.read("a")


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "", "é", SEAL])
def test_draft__refuses_names_that_lead_elsewhere(quick, name):
    with begin(quick) as draft, pytest.raises(StoreError):
        draft.write(name, b"x")


def test_draft__abandoned_leaves_nothing(quick):
    with begin(quick) as draft:
        draft.write("a", b"x")
        draft.checkpoints().save(1, draft.incarnation, {}, {})
        draft.abandon()
    assert quick.objects.list() == []


def test_draft__a_sleeper_that_was_replaced_gets_a_conflict(store):
    sleeper = begin(store)
    sleeper.write("a", b"sleeper")
    with begin(store, run=sleeper.id) as second:
        for action in (lambda: sleeper.write("a", b"late"), sleeper.publish, sleeper.abandon):
            with pytest.raises(ConflictError, match="another took over"):
                action()
        second.write("a", b"second")
        second.publish()
    with pytest.raises(ConflictError):
        sleeper.write("a", b"later still")
    assert read_all(store) == {"a": b"second"}


# Files that workers write.


def test_place__what_workers_wrote_is_adopted_and_published(store):
    with begin(store) as draft:
        draft.write("a", b"driver")
        place = pickle.loads(pickle.dumps(draft.place()))
        entry = place.write("deep/er", b"by a ", b"worker")
        assert draft.names == ["a"]
        draft.adopt("deep/er", entry)
        draft.adopt("deep/er", entry)  # its task ran twice
        assert draft.names == ["a", "deep/er"]
        assert draft.read("deep/er") == b"by a worker"
        draft.publish()
    assert read_all(store) == {"a": b"driver", "deep/er": b"by a worker"}
    assert store.verify() == []


def test_place__what_workers_wrote_is_remembered_by_the_next_process(quick):
    with begin(quick) as first:
        first.adopt("adopted", first.place().write("adopted", b"1"))
        first.place().write("written", b"2")  # killed before it was adopted
        quick.objects.write(f"{VERSIONS}/{first.id}/lost", b"3")  # and before it was recorded
    with begin(quick, run=first.id) as second:
        assert second.names == ["adopted", "written"]
        second.adopt("lost", second.place().write("lost", b"3"))
        second.publish()
    assert read_all(quick) == {"adopted": b"1", "written": b"2", "lost": b"3"}


def test_adopt__files_that_are_not_are_not_sealed_in(quick):
    with begin(quick) as draft:
        draft.place().write("lost", b"2")
        draft.publish()
    assert read_all(quick) == {}
    assert quick.verify() == []


def test_adopt__replaces_what_was_recorded(quick):
    with begin(quick) as draft:
        draft.write("a", b"old")
        draft.adopt("a", draft.place().write("a", b"new"))
        assert draft.read("a") == b"new"
    with begin(quick, run=draft.id) as again:
        assert again.read("a") == b"new"
        again.write("a", b"newest")
        again.publish()
    assert read_all(quick) == {"a": b"newest"}


def test_adopt__a_file_that_is_not_what_its_worker_said_is_not_published(quick):
    with begin(quick) as draft:
        draft.adopt("a", draft.place().write("a", b"right"))
        quick.objects.write(f"{VERSIONS}/{draft.id}/a", b"wrong")
        with pytest.raises(StoreError, match="altered"):
            draft.publish()
    with begin(quick, run=draft.id) as again:
        assert again.names == []
        again.adopt("a", FileEntry.of(b"never written"))
        quick.objects.delete(f"{VERSIONS}/{draft.id}/a")
        with pytest.raises(MissingObject):
            again.publish()
    assert quick.current() is None


def test_adopt__a_sleeper_that_was_replaced_gets_a_conflict(store):
    sleeper = begin(store)
    place = sleeper.place()
    entry = place.write("a", b"sleeper")
    with begin(store, run=sleeper.id) as second:
        with pytest.raises(ConflictError, match="another took over"):
            sleeper.adopt("a", entry)
        with pytest.raises(ConflictError, match="got another or none"):
            place.write("a", b"late")
        assert store.objects.read(f"{VERSIONS}/{second.id}/a") == b"sleeper"
        second.adopt("a", second.place().write("a", b"second"))
        second.publish()
    with pytest.raises(ConflictError):
        place.write("a", b"later still")
    assert read_all(store) == {"a": b"second"}


def test_adopt__into_a_sealed_draft(quick):
    draft = begin(quick)
    place = draft.place()
    entry = place.write("a", b"x")
    draft.adopt("a", entry)
    draft._seal({})
    with pytest.raises(ConflictError, match="a sealed one"):
        place.write("a", b"y")
    with begin(quick, run=draft.id) as again:
        again.adopt("a", entry)
        with pytest.raises(ConflictError, match="other content for 'a'"):
            again.adopt("a", FileEntry.of(b"y"))
        with pytest.raises(ConflictError, match="a sealed one"):
            again.place()
        again.publish()
    assert read_all(quick) == {"a": b"x"}


def test_place__of_a_published_run_that_is_taken_up_again(quick):
    with begin(quick) as draft:
        place = draft.place()
        draft.adopt("a", place.write("a", b"x"))
        draft.publish()
    with begin(quick, run=draft.id) as again:  # counts its processes from 1 again
        assert again.incarnation == place.incarnation
        with pytest.raises(ConflictError, match="a sealed one"):
            place.write("a", b"y")
    assert read_all(quick) == {"a": b"x"}


def test_place__of_an_abandoned_draft(quick):
    with begin(quick) as draft:
        place = draft.place()
        draft.abandon()
    with pytest.raises(ConflictError):
        place.write("a", b"x")
    assert quick.objects.list() == []


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "", SEAL])
def test_place__refuses_names_that_lead_elsewhere(quick, name):
    with begin(quick) as draft:
        with pytest.raises(StoreError):
            draft.place().write(name, b"x")
        with pytest.raises(StoreError):
            draft.adopt(name, FileEntry.of(b"x"))


# Publishing.


def test_publish__damage_before_the_seal_is_found_and_mended_by_a_rerun(quick):
    with begin(quick) as draft:
        draft.write("a", b"right")
        draft.write("b", b"right")
        quick.objects.write(f"{VERSIONS}/{draft.id}/a", b"wrong")
        with pytest.raises(StoreError, match="altered"):
            draft.publish()
    assert quick.current() is None
    with begin(quick, run=draft.id) as again:
        assert again.names == ["b"]
        again.write("a", b"right")
        again.publish()
    assert read_all(quick) == {"a": b"right", "b": b"right"}


def test_publish__files_of_killed_writers_are_not_sealed_in(quick):
    with begin(quick) as draft:
        draft.write("a", b"x")
        quick.objects.write(f"{VERSIONS}/{draft.id}/unrecorded", b"half a run")
        draft.publish()
    assert quick.verify() == []
    assert read_all(quick) == {"a": b"x"}


def test_publish__a_sealed_draft_is_published_as_it_was_sealed(quick):
    draft = begin(quick)
    draft.write("a", b"x")
    draft._seal({"first": 1})
    with begin(quick, run=draft.id) as again:
        assert again.is_sealed
        assert again.read("a") == b"x"
        again.write("a", b"x")
        with pytest.raises(ConflictError, match="other content for 'a'"):
            again.write("a", b"y")
        assert again.publish({"second": 2}).metrics == {"first": 1}
    with begin(quick, run=draft.id) as third:
        third.publish()
    assert quick.names() == [draft.id]
    assert len(quick.objects.list(POINTER)) == 1
    with pytest.raises(InputError, match="other seed"):
        begin(quick, run=draft.id, seed=3)


def test_publish__a_version_that_was_rolled_back_is_not_published_again(quick):
    old, new = publish(quick), publish(quick)
    quick.rollback()
    with begin(quick, run=new) as again:
        again.publish()
    assert quick.current().id == old


def test_publish__two_at_once_both_get_in(quick, monkeypatch):
    append = quick._shelf.pointer.append
    with begin(quick) as draft:

        def append_second(content: dict[str, object], after: int) -> object:
            monkeypatch.undo()
            publish(ResultsStore(quick.url), b"first")
            return append(content, after)

        monkeypatch.setattr(quick._shelf.pointer, "append", append_second)
        draft.publish()
    assert len(quick.names()) == 2
    assert quick.current().id == draft.id


def test_publish__another_seal_of_other_files_is_a_conflict(quick, monkeypatch):
    draft = begin(quick)
    draft.write("a", b"x")
    create = quick.objects.create

    def create_second(key: str, *buffers: bytes) -> bool:
        content = unseal(buffers[0], "distclust-version", "") | {"files": {}}
        create(key, seal("distclust-version", content))
        return create(key, *buffers)

    monkeypatch.setattr(quick.objects, "create", create_second)
    with pytest.raises(ConflictError, match="a seal of other files"):
        draft.publish()


# Collection.


def test_gc__keeps_the_newest_and_the_current(store):
    names = [publish(store, b"%d" % i) for i in range(6)]
    store.rollback(names[1])
    removed = store.gc(keep=2)
    assert set(removed.versions) == {names[0], names[2], names[3]}
    assert store.names() == [names[1], *names[4:]]
    assert read_all(store) == files_of(b"1")
    assert store.verify() == []
    assert {key.split("/")[1] for key in store.objects.list(VERSIONS)} == set(store.names())
    assert store.gc(keep=0).versions == tuple(names[4:])
    assert store.names() == [names[1]]
    assert store.gc(keep=0) == collecting.Collected()
    publish(store, b"goes on")
    assert read_all(store) == files_of(b"goes on")


def test_gc__older_than_looks_at_the_age(quick):
    for _ in range(3):
        publish(quick)
    now = time.time()
    assert quick.gc(keep=0, older_than=100, now=now + 50).versions == ()
    assert len(quick.gc(keep=0, older_than=100, now=now + 150).versions) == 2


def test_gc__a_damaged_version_goes_by_the_time_it_was_begun(quick):
    name, _ = publish(quick), publish(quick)
    quick.objects.write(f"{VERSIONS}/{name}/{SEAL}", b"{}")
    assert quick.gc(keep=0, older_than=100, now=time.time() + 150).versions == (name,)


@pytest.mark.parametrize("options", [{"keep": -1}, {"grace": -1.0}])
def test_gc__refuses_negative_numbers(quick, options):
    with pytest.raises(InputError):
        quick.gc(**options)


def test_gc__does_not_cut_off_a_reader(store):
    old = publish(store, b"old")
    publish(store, b"new")
    with store.open_version(old) as reader:
        assert reader.read("labels.csv") == b"old"
        removed = store.gc(keep=0)
        assert (removed.versions, removed.spared) == ((), (old,))
        assert reader.read("deep/er.bin") == b"dlotail"
        assert old in store.names()
        assert store.objects.list(CONDEMNED) == []
    assert store.gc(keep=0).versions == (old,)
    with pytest.raises(InputError):
        store.open_version(old)


def test_gc__a_reader_that_goes_on_reading_is_safe_for_days(quick, clock):
    old = publish(quick, b"old")
    publish(quick, b"new")
    with quick.open_version(old, seconds=100) as reader:
        for _ in range(30):
            clock.now += 60
            assert quick.gc(keep=0, now=clock.now).spared == (old,)
            assert reader.read("labels.csv") == b"old"
        clock.now += 101 + SKEW
        assert quick.gc(keep=0, now=clock.now).versions == (old,)
        with pytest.raises(MissingObject):
            reader.read("labels.csv")


def test_gc__a_reader_that_comes_after_the_mark_is_refused(quick, monkeypatch):
    old = publish(quick, b"old")
    publish(quick, b"new")
    live = collecting.live_names
    refused = []

    def arrive_between_mark_and_look(*arguments: object) -> set[str]:
        if quick.objects.list(CONDEMNED):
            with pytest.raises(StoreError, match="being removed") as caught:
                quick.open_version(old)
            refused.append(caught)
            assert old not in quick.names()
            assert read_all(quick) == files_of(b"new")
        return live(*arguments)

    monkeypatch.setattr(collecting, "live_names", arrive_between_mark_and_look)
    assert quick.gc(keep=0).versions == (old,)
    assert len(refused) == 1


def test_gc__a_reader_that_comes_just_before_the_mark_is_spared(quick, monkeypatch):
    old = publish(quick, b"old")
    publish(quick, b"new")
    shelf = type(quick._shelf)
    condemn = shelf.condemn
    readers = []

    def arrive_first(self: object, name: str) -> None:
        readers.append(quick.open_version(name))
        condemn(self, name)

    monkeypatch.setattr(shelf, "condemn", arrive_first)
    assert quick.gc(keep=0).spared == (old,)
    assert readers[0].read("labels.csv") == b"old"


def test_gc__a_rollback_meanwhile_is_spared(quick, monkeypatch):
    old = publish(quick, b"old")
    publish(quick, b"new")
    shelf = type(quick._shelf)
    condemn = shelf.condemn

    def roll_back_first(self: object, name: str) -> None:
        quick.rollback(name)  # its lease is gone when leases are looked at
        condemn(self, name)

    monkeypatch.setattr(shelf, "condemn", roll_back_first)
    assert quick.gc(keep=0).spared == (old,)
    assert read_all(quick) == files_of(b"old")
    assert quick.verify() == []


def test_gc__a_rollback_that_ends_while_leases_are_looked_at_is_spared(quick, monkeypatch):
    old = publish(quick, b"old")
    publish(quick, b"new")
    shelf = type(quick._shelf)
    condemn, live = shelf.condemn, collecting.live_names
    held = []

    def hold_first(self: object, name: str) -> None:
        held.append(quick._shelf.hold(name, 100))
        condemn(self, name)

    def move_and_release_first(*arguments: object) -> set[str]:
        if held:
            quick._shelf.point_to(old, "rollback", 2)
            held.pop().release()
        return live(*arguments)

    monkeypatch.setattr(shelf, "condemn", hold_first)
    monkeypatch.setattr(collecting, "live_names", move_and_release_first)
    assert quick.gc(keep=0).spared == (old,)
    assert read_all(quick) == files_of(b"old")


def test_gc__a_mark_on_the_current_version_stops_nobody(quick):
    name = publish(quick, b"x")
    quick._shelf.condemn(name)  # left by a collector that was killed before it looked
    assert read_all(quick) == files_of(b"x")
    assert quick.names() == [name]
    assert quick.gc(keep=0).spared == (name,)
    assert quick.objects.list(CONDEMNED) == []


def test_gc__a_draft_published_meanwhile_is_spared(quick, monkeypatch):
    draft = begin(quick)
    draft.write("a", b"x")
    draft.close()
    shelf = type(quick._shelf)
    condemn = shelf.condemn

    def publish_first(self: object, name: str) -> None:
        monkeypatch.undo()
        begin(quick, run=name).publish()
        publish(quick, b"and another")
        condemn(self, name)

    monkeypatch.setattr(shelf, "condemn", publish_first)
    assert quick.gc(grace=0, now=time.time() + 1).spared == (draft.id,)
    assert read_all(quick, draft.id) == {"a": b"x"}


def test_gc__current_replaced_and_removed_while_it_is_opened(quick, monkeypatch):
    publish(quick, b"old")
    hold = type(quick._shelf).hold

    def others_first(*arguments: object) -> object:
        monkeypatch.undo()
        publish(quick, b"new")
        quick.gc(keep=0)
        return hold(*arguments)

    monkeypatch.setattr(type(quick._shelf), "hold", others_first)
    assert read_all(quick) == files_of(b"new")


def test_gc__drafts_at_work_stay_and_abandoned_ones_go(store):
    with begin(store) as working, begin(store, seed=1) as abandoned:
        for draft in (working, abandoned):
            draft.write("a", b"x")
            draft.checkpoints("chain").save(1, draft.incarnation, {}, {})
        abandoned.close()
        now = time.time()
        assert store.gc(now=now + DAY - 60).drafts == ()
        removed = store.gc(grace=0, now=now + 2)
        assert removed.drafts == (abandoned.id,)
        assert abandoned.id not in "".join(store.objects.list())
        assert working.checkpoints("chain").latest() is not None
        working.write("b", b"y")
        working.publish()
    assert read_all(store) == {"a": b"x", "b": b"y"}


def test_gc__the_grace_counts_from_the_last_sign_of_life(quick, clock):
    killed = begin(quick)
    killed.write("a", b"x")
    clock.now += 3 * DAY  # a long run
    killed._lease.renew()
    assert quick.gc(now=clock.now + DAY - 60).drafts == ()
    closed = begin(quick, run=killed.id)
    clock.now += 3 * DAY
    closed.close()
    assert quick.gc(now=clock.now + DAY - 60).drafts == ()
    assert quick.gc(now=clock.now + DAY + 60).drafts == (killed.id,)
    assert quick.objects.list(LEASES) == []


def test_gc__a_writer_that_slept_too_long_gets_a_conflict(quick, clock):
    draft = begin(quick)
    draft.write("a", b"x")
    clock.now += 10 * DAY
    assert quick.gc(now=clock.now).drafts == (draft.id,)
    with pytest.raises(ConflictError):
        draft.write("b", b"y")
    assert quick.current() is None


@pytest.mark.parametrize("is_finished", [False, True])
def test_gc__a_publisher_that_slept_between_seal_and_pointer(quick, clock, is_finished):
    draft = begin(quick)
    draft.write("a", b"x")
    seal_it = draft._seal

    def seal_and_sleep(metrics: dict[str, object]) -> object:
        version = seal_it(metrics)
        clock.now += 10 * DAY
        if is_finished:
            quick.gc(now=clock.now)
        else:
            quick._shelf.condemn(draft.id)
        return version

    draft._seal = seal_and_sleep
    with pytest.raises(StoreError):
        draft.publish()
    assert quick.current() is None


def test_gc__two_at_once_the_first_stops(quick, monkeypatch):
    names = [publish(quick) for _ in range(4)]
    live = collecting.live_names

    def other_first(*arguments: object) -> set[str]:
        if quick.objects.list(CONDEMNED):
            monkeypatch.undo()
            assert quick.gc(keep=1).versions == tuple(names[:3])
        return live(*arguments)

    monkeypatch.setattr(collecting, "live_names", other_first)
    with pytest.raises(ConflictError, match="one collection at a time"):
        quick.gc(keep=1)
    assert quick.names() == names[3:]
    assert quick.gc(keep=1) == collecting.Collected()


def test_gc__papers_of_published_drafts_and_part_files_go(tmp_path):
    store = ResultsStore(tmp_path)
    name = publish(store)
    with begin(store, run=name):
        pass
    part = tmp_path / VERSIONS / name / ".labels.csv.01.partial"
    part.write_bytes(b"half")
    os.utime(part, (0, 0))
    fresh = tmp_path / POINTER / ".x.02.partial"
    fresh.write_bytes(b"half")
    assert store.objects.list(DRAFTS) != []
    store.gc()
    assert store.objects.list(DRAFTS) == []
    assert not part.exists()
    assert fresh.exists()
    assert store.verify() == []


def test_gc__papers_of_a_published_draft_that_is_held_stay(quick):
    name = publish(quick)
    with begin(quick, run=name):
        quick.gc()
        assert quick.objects.list(f"{DRAFTS}/{name}") != []
    quick.gc()
    assert quick.objects.list(DRAFTS) == []


def test_find_run__not_one_that_is_being_removed(quick):
    with begin(quick) as draft:
        pass
    quick._shelf.condemn(draft.id)
    assert find(quick) is None
    with pytest.raises(StoreError, match="being removed"):
        begin(quick, run=draft.id)


# Faults.


def state_of(place: str) -> list[dict[str, bytes]]:
    """Return the contents of all versions, which are whole, the current one last."""
    store = ResultsStore(place)
    assert store.verify() == []
    found = [read_all(store, name) for name in store.names()]
    current = store.current()
    return [*found, read_all(store)] if current else found


def contents(*texts: bytes) -> list[dict[str, bytes]]:
    return [files_of(text) for text in texts]


def prepare_two(place: str) -> None:
    for text in (b"one", b"two"):
        publish(ResultsStore(place), text)


def publish_three(place: str) -> None:
    """Publish unless that happened, continuing what was begun: what a command does."""
    store = ResultsStore(place)
    if len(store.names()) == 3 and find(store) is None:
        return
    with begin(store, run=find(store)) as draft:
        draft.write("labels.csv", b"three")
        draft.write("deep/er.bin", b"eerht", b"tail")
        draft.publish({"log_evidence": -5.0})


def check_publish(place: str, is_done: bool) -> None:
    old, new = contents(b"one", b"two", b"two"), contents(b"one", b"two", b"three", b"three")
    found = state_of(place)
    assert found == new if is_done else found in (old, new)
    if is_done:
        assert ResultsStore(place).objects.list(DRAFTS) == []
        ResultsStore(place).gc(keep=9, grace=0, now=time.time() + DAY)
        assert state_of(place) == new
        versions = ResultsStore(place).objects.list(VERSIONS)
        assert len({key.split("/")[1] for key in versions}) == 3


def take_two_over(place: str) -> None:
    """As `publish_three`, but with files of the version before."""
    store = ResultsStore(place)
    if len(store.names()) == 3 and find(store) is None:
        return
    with begin(store, run=find(store)) as draft:
        if not draft.is_sealed:
            draft.write("own", b"three")
            names = {"labels.csv": "labels.csv", "elsewhere/er.bin": "deep/er.bin"}
            draft.take_over(store.get(store.names()[1]), names)
        draft.publish({"log_evidence": -5.0})


def check_taken_over(place: str, is_done: bool) -> None:
    old = contents(b"one", b"two", b"two")
    new = {"own": b"three", "labels.csv": b"two", "elsewhere/er.bin": b"owttail"}
    found = state_of(place)
    assert found == [*old[:2], new, new] if is_done else found in (old, [*old[:2], new, new])
    if is_done:
        ResultsStore(place).gc(keep=1, grace=0, now=time.time() + DAY)
        assert state_of(place) == [new, new]  # what it was taken from is gone


@pytest.mark.parametrize("fault", ["kill", "disk full", "no permission"])
def test_take_over__faults_leave_the_old_or_the_new(tmp_path, fault):
    n_points = every_fault(
        tmp_path, prepare=prepare_two, action=take_two_over, check=check_taken_over, fault=fault
    )
    assert n_points >= 15


def test_take_over__on_s3(s3_url):
    prepare_two(s3_url)
    take_two_over(s3_url)
    check_taken_over(s3_url, True)


def test_take_over__refuses_what_is_not_as_long_as_it_was(store):
    name = publish(store)
    store.objects.write(f"{VERSIONS}/{name}/labels.csv", b"cut")
    with begin(store) as draft:
        draft.take_over(store.get(name), {"labels.csv": "labels.csv"})
        with pytest.raises(StoreError, match=r"labels.csv: expected 7 bytes, got 3"):
            draft.publish()
    assert store.names() == [name]


def test_take_over__what_is_written_after_it_counts(quick):
    name = publish(quick)
    with begin(quick) as draft:
        draft.take_over(quick.get(name), {"labels.csv": "labels.csv"})
        draft.write("labels.csv", b"my own")
        draft.publish()
    assert read_all(quick) == {"labels.csv": b"my own"}
    assert read_all(quick, name) == files_of(b"content")


@pytest.mark.parametrize("fault", ["kill", "disk full", "no permission"])
def test_publish__faults_leave_the_old_or_the_new(tmp_path, fault):
    n_points = every_fault(
        tmp_path, prepare=prepare_two, action=publish_three, check=check_publish, fault=fault
    )
    assert n_points >= 20


def test_publish__killed_on_s3(s3_url):
    n_points = every_fault(
        s3_url, prepare=prepare_two, action=publish_three, check=check_publish, stride=5
    )
    assert n_points >= 9


def roll_back(place: str) -> None:
    store = ResultsStore(place)
    store.rollback(store.names()[0])


def check_rollback(place: str, is_done: bool) -> None:
    old, new = contents(b"one", b"two", b"two"), contents(b"one", b"two", b"one")
    found = state_of(place)
    assert found == new if is_done else found in (old, new)


@pytest.mark.parametrize("fault", ["kill", "disk full", "no permission"])
def test_rollback__faults_leave_the_old_or_the_new(tmp_path, fault):
    n_points = every_fault(
        tmp_path, prepare=prepare_two, action=roll_back, check=check_rollback, fault=fault
    )
    assert n_points >= 3


READERS = {}


def prepare_garbage(place: str) -> None:
    store = ResultsStore(place)
    names = [publish(store, text) for text in (b"one", b"two", b"three", b"four")]
    with begin(store) as draft:
        draft.write("a", b"abandoned")
        draft.checkpoints().save(1, 1, {}, {})
    READERS[place] = store.open_version(names[1])


def collect_garbage(place: str) -> None:
    ResultsStore(place).gc(keep=1, grace=0.0)


def check_garbage(place: str, is_done: bool) -> None:
    store, reader = ResultsStore(place), READERS[place]
    assert {name: reader.read(name) for name in reader.version.files} == files_of(b"two")
    assert store.verify() == []
    assert read_all(store) == files_of(b"four")
    for name in store.names():
        assert read_all(store, name) in contents(b"one", b"two", b"three", b"four")
    if is_done:
        assert state_of(place) == contents(b"two", b"four", b"four")
        versions = {key.split("/")[1] for key in store.objects.list(VERSIONS)}
        assert versions == set(store.names())
        for prefix in (CONDEMNED, DRAFTS, "checkpoints"):
            assert store.objects.list(prefix) == []


@pytest.mark.parametrize("fault", ["kill", "disk full", "no permission"])
def test_gc__faults_leave_whole_versions_and_a_rerun_finishes(tmp_path, fault):
    n_points = every_fault(
        tmp_path, prepare=prepare_garbage, action=collect_garbage, check=check_garbage, fault=fault
    )
    assert n_points >= 15


def test_gc__killed_on_s3(s3_url):
    n_points = every_fault(
        s3_url, prepare=prepare_garbage, action=collect_garbage, check=check_garbage, stride=11
    )
    assert n_points >= 10


# Damage.


def altered(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


@pytest.mark.parametrize(
    ("damage", "expected"),
    [(altered, "altered content"), (lambda c: c[:-1], "6 bytes"), (lambda c: c + b"x", "8 bytes")],
)
def test_damage__of_a_file_is_found_before_content_is_returned(store, damage, expected):
    name = publish(store)
    key = f"{VERSIONS}/{name}/labels.csv"
    store.objects.write(key, damage(b"content"))
    with store.open_version() as reader:
        with pytest.raises(StoreError, match=f"labels.csv: expected .* got {expected}"):
            reader.read("labels.csv")
        assert reader.read("deep/er.bin") == b"tnetnoctail"
    (finding,) = store.verify()
    assert finding.key == key
    assert expected in finding.problem


def test_damage__missing_swapped_and_foreign_files(quick):
    name = publish(quick, b"12")
    first, second = (f"{VERSIONS}/{name}/{file}" for file in ("deep/er.bin", "labels.csv"))
    quick.objects.write(f"{VERSIONS}/{name}/stranger", b"x")
    assert quick.verify() == [Finding(f"{VERSIONS}/{name}/stranger", "no seal names this file")]
    quick.objects.delete(f"{VERSIONS}/{name}/stranger")

    contents = quick.objects.read(first), quick.objects.read(second)
    quick.objects.write(first, contents[1])
    quick.objects.write(second, contents[0])
    assert [finding.key for finding in quick.verify()] == [first, second]
    with quick.open_version() as reader, pytest.raises(StoreError):
        reader.read("labels.csv")

    quick.objects.write(first, contents[0])
    quick.objects.delete(second)
    assert quick.verify() == [Finding(second, "missing")]
    with quick.open_version() as reader, pytest.raises(MissingObject):
        reader.read("labels.csv")


def test_damage__of_the_seal(quick):
    other, name = publish(quick, b"other"), publish(quick, b"ours")
    key = f"{VERSIONS}/{name}/{SEAL}"
    whole = quick.objects.read(key)
    bad = [b"", whole[:-1], whole.replace(b'"seed": 7', b'"seed": 8'), b"[]"]
    bad.append(quick.objects.read(f"{VERSIONS}/{other}/{SEAL}"))
    for content in bad:
        quick.objects.write(key, content)
        for call in (quick.current, quick.versions, quick.open_version, lambda: quick.get(name)):
            with pytest.raises(StoreError, match=SEAL):
                call()
        assert [finding.key for finding in quick.verify()] == [key]
        assert quick.names() == [other, name]
    quick.objects.delete(key)
    with pytest.raises(MissingObject):
        quick.versions()
    assert quick.verify() == [Finding(key, "missing")]
    assert quick.rollback(other).id == other
    assert read_all(quick) == files_of(b"other")


GOOD = {"size": 0, "checksum": "0" * 32}


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../x": GOOD}},
        {"files": {"/etc/passwd": GOOD}},
        {"files": {"a/../../x": GOOD}},
        {"files": {"": GOOD}},
        {"files": {SEAL: GOOD}},
        {"files": {"a": GOOD | {"size": -1}}},
        {"files": {"a": GOOD | {"size": True}}},
        {"files": {"a": GOOD | {"size": "0"}}},
        {"files": {"a": GOOD | {"checksum": "0"}}},
        {"files": {"a": 7}},
        {"files": ["a"]},
        {"seed": "7"},
        {"created": None},
        {"metrics": []},
        {"parameters": None},
        {"id": "../x"},
        {"kind": 7},
    ],
)
def test_damage__well_signed_but_hostile_seals(quick, changes):
    name = publish(quick)
    key = f"{VERSIONS}/{name}/{SEAL}"
    form = "distclust-version"
    content = unseal(quick.objects.read(key), form, "")
    quick.objects.write(key, seal(form, content))
    assert quick.current().id == name  # so what follows is due to the change
    quick.objects.write(key, seal(form, content | changes))
    with pytest.raises(StoreError):
        quick.open_version()
    assert len(quick.verify()) == 1


@pytest.mark.parametrize("target", ["../x", "x", 7, None])
def test_damage__a_pointer_that_leads_elsewhere(quick, target):
    quick._shelf.pointer.append({"version": target}, 0)
    for call in (quick.current, quick.open_version, quick.names, quick.rollback):
        with pytest.raises(StoreError, match="the id of a version"):
            call()
    (finding,) = quick.verify()
    assert finding.key == POINTER


@pytest.mark.parametrize("changes", [{"name": "../a"}, {"name": "b"}, {"size": -1}])
def test_damage__records_of_a_draft(quick, changes):
    with begin(quick) as draft:
        draft.write("a", b"x")
    key = f"{DRAFTS}/{draft.id}/files/a.json"
    form = "distclust-draft-file"
    content = unseal(quick.objects.read(key), form, "")
    quick.objects.write(key, seal(form, content | changes))
    with pytest.raises(StoreError):
        begin(quick, run=draft.id)


def test_store__a_newer_format_is_refused_with_the_writer(quick):
    name = publish(quick)
    key = f"{VERSIONS}/{name}/{SEAL}"
    values = json.loads(quick.objects.read(key))
    quick.objects.write(key, json.dumps(values | {"format_version": 2, "writer": "9.9"}).encode())
    with pytest.raises(StoreError, match=r"written by distclust 9\.9"):
        quick.current()


def test_new_id__sorts_by_time_and_is_unique():
    names = [new_id() for _ in range(100)]
    assert len(set(names)) == 100
    assert all(map(is_id, names))
    assert abs(time_of(names[0]) - time.time()) < 60
    assert not is_id(names[0] + "\n")


def test_store__a_path_that_is_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="got a file"):
        ResultsStore(tmp_path / "file")


# ---- held back -----------------------------------------------------------------------------------


def test_held_back__is_sealed_but_not_current_until_it_is_released(store):
    first = publish(store, b"first")
    with held_back():
        second = publish(store, b"second")
    assert store.current().id == first
    assert [version.id for version in store.versions()] == [first]
    assert read_all(store, second) == files_of(b"second")
    assert store.release(second).is_current
    assert store.current().id == second
    assert read_all(store) == files_of(b"second")
    assert store.unfinished() == {}


def test_held_back__the_same_work_begun_again_finds_the_seal(quick):
    with held_back():
        made = publish(quick)
        assert find(quick) == made
        with begin(quick, run=find(quick)) as draft:
            assert draft.is_sealed
            assert draft.publish({"log_evidence": 1.0}).metrics == {"log_evidence": -7.0}
    assert quick.current() is None
    quick.release(made)
    assert quick.current().id == made


def test_held_back__ends_with_its_block(quick):
    with pytest.raises(ZeroDivisionError), held_back():
        _ = 1 / 0
    assert quick.current() is None
    assert publish(quick) == quick.current().id


def test_release__twice_moves_the_pointer_once(quick):
    with held_back():
        made = publish(quick, b"first")
    quick.release(made)
    later = publish(quick, b"later")
    quick.release(made)
    assert quick.current().id == later


def test_release__refuses_what_was_never_sealed(quick):
    with begin(quick) as draft:
        draft.write("labels.csv", b"content")
    with pytest.raises(StoreError):
        quick.release(draft.id)
    with pytest.raises(InputError, match="the id of a version"):
        quick.get(draft.id)


def test_held_back__is_collected_like_a_draft_that_nobody_takes_up(quick, clock):
    with held_back():
        made = publish(quick)
    assert quick.gc(grace=DAY).drafts == ()
    clock.now += DAY + 2 * SKEW
    assert quick.gc(grace=DAY, now=time_of(made) + DAY + 2 * SKEW).drafts == (made,)
    with pytest.raises(InputError, match="the id of a version"):
        quick.get(made)
