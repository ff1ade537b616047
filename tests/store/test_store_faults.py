"""Kills, full disks and missing permissions at every storage operation of every change.

After a fault the store is what it was or what it was to become, never a mixture; run again,
the change completes. What a kill leaves is finished by the next run or removed by gc; what a
refusal leaves is nothing.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distclust.errors import ConflictError, InputError, StoreError
from distclust.store.matrix_store import MatrixStore, create_store, open_store
from distclust.store.objects import LocalObjects, open_objects
from tests import corpora
from tests.corpora import blocks_of, content_of, plain, text_ids
from tests.faults import every_fault, run_with_fault

pytestmark = pytest.mark.chaos

rows_of = functools.partial(corpora.rows_of, with_notes=False)
IDS = text_ids(0, 6)
MORE = text_ids(6, 11)
Rows = dict[Any, Any]


@pytest.fixture(autouse=True)
def _small_and_quick(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Blocks of four rows; no power cut is simulated, so nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    with blocks_of(4):
        yield


def start(place: str, layout: str = "dense") -> MatrixStore:
    """A store of two segments and a deleted row."""
    store = create_store(place, plain(IDS, layout), layout=layout)
    return store.append(plain(["x", "y"], layout)).delete(["x"])


BEFORE = rows_of([*IDS, "y"])

# Change -> what is asked for, and the rows that are there afterwards.
CHANGES: dict[str, tuple[Callable[[MatrixStore, str], object], Rows]] = {
    "append": (
        lambda store, layout: store.append(plain(MORE, layout), identity="night"),
        rows_of([*IDS, "y", *MORE]),
    ),
    "append the new": (
        lambda store, layout: store.append(
            plain(["y", *MORE, MORE[0]], layout), duplicates="first", identity="night"
        ),
        rows_of([*IDS, "y", *MORE]),
    ),
    "replace": (
        lambda store, layout: store.replace(plain(MORE[:1] + IDS[:2], layout, 3), identity="n"),
        {**rows_of([*IDS[2:], "y"]), **rows_of(MORE[:1] + IDS[:2], 3)},
    ),
    "delete": (
        lambda store, layout: store.delete(IDS[1:3], missing="ignore"),
        rows_of([IDS[0], *IDS[3:], "y"]),
    ),
    "compact": (lambda store, layout: store.compact(), BEFORE),
    "rollback": (lambda store, layout: store.rollback(1), rows_of(IDS)),
    "gc": (lambda store, layout: store.gc(older_than=0, grace=0), BEFORE),
}


class Template:
    """Makes the store that a change starts from by copying files."""

    def __init__(self, folder: Path, layout: str = "dense", name: str = "") -> None:
        self.folder = folder
        store = start(str(folder), layout)
        if name == "gc":
            store.compact()  # leaves segments that nothing but old generations names

    def __call__(self, place: str) -> None:
        shutil.copytree(self.folder, place)


def blocks_written(place: str) -> dict[str, int]:
    """When each finished block of an unfinished change was written."""
    objects = open_objects(place)
    finished = [key for key in objects.list(".distclust/ingest") if "/blocks/" in key]
    times = {}
    for key in finished:
        name, number = key.split("/")[2], Path(key).stem
        chunks = [f"segments/{name}/X/c/{number}/0", f"X/c/{number}/0"]
        times |= {chunk: mtime(place, chunk) for chunk in chunks if objects.exists(chunk)}
    return times


def mtime(place: str, key: str) -> int:
    return os.stat(f"{place}/{key}").st_mtime_ns


@pytest.mark.parametrize("name", CHANGES)
def test_kill__changes_are_done_or_not_and_can_be_repeated(tmp_path, name):
    change, after = CHANGES[name]
    finished: dict[str, dict[str, int]] = {}

    def check(place: str, completed: bool) -> None:
        store = open_store(place)
        rows = content_of(store)
        assert rows == after or (rows == BEFORE and not completed)
        assert store.verify() == []
        if name not in ("rollback", "gc"):
            assert content_of(open_store(place, 2)) == rows_of([*IDS, "x", "y"])
        if not completed:
            finished[place] = blocks_written(place)
        elif name in ("append", "append the new", "replace"):
            assert open_objects(place).list(".distclust/ingest") == []  # nothing left to do
        for chunk, written in finished.get(place, {}).items():
            assert mtime(place, chunk) == written  # no finished block is written again

    n_operations = every_fault(
        tmp_path / "tries",
        prepare=Template(tmp_path / "template", name=name),
        action=lambda place: change(open_store(place), "dense"),
        check=check,
    )
    assert n_operations > 5
    if name in ("append", "append the new", "compact"):
        assert any(finished.values())  # some were killed with finished blocks


def test_kill__an_append_whose_chunks_cross_blocks(tmp_path):
    change, after = CHANGES["append"]
    layout = "csr"

    def check(place: str, completed: bool) -> None:
        rows = content_of(open_store(place))
        assert rows == after or (rows == BEFORE and not completed)
        assert open_store(place).verify() == []

    every_fault(
        tmp_path / "tries",
        prepare=Template(tmp_path / "template", layout),
        action=lambda place: change(open_store(place), layout),
        check=check,
    )


def test_kill__ingest_is_complete_or_absent_and_taken_up(tmp_path):
    finished: dict[str, dict[str, int]] = {}

    def check(place: str, completed: bool) -> None:
        try:
            store = open_store(place)
        except StoreError:
            assert not completed
            finished[place] = blocks_written(place)
            return
        assert content_of(store) == rows_of(IDS)
        assert store.verify() == []
        for chunk, written in finished.get(place, {}).items():
            assert mtime(place, chunk) == written

    every_fault(
        tmp_path,
        prepare=lambda place: None,
        action=lambda place: create_store(
            place, plain([*IDS, IDS[0]]), duplicates="first", identity="a.csv"
        ),
        check=check,
    )
    assert any(finished.values())


def test_kill__a_fresh_start_leaves_nothing_of_what_was_begun_before(tmp_path):
    def begin(place: str) -> None:
        ingest = functools.partial(create_store, rows=plain(IDS), identity="a")
        assert not run_with_fault(ingest, place, 40)
        assert len(open_objects(place).list("X")) > 0

    def check(place: str, completed: bool) -> None:
        try:
            store = open_store(place)
        except StoreError:
            assert not completed
            return
        assert content_of(store) == rows_of(MORE)
        assert store.verify() == []

    every_fault(
        tmp_path,
        prepare=begin,
        action=lambda place: create_store(place, plain(MORE), identity="b", fresh=True),
        check=check,
    )


@pytest.mark.parametrize("name", ["append", "compact", "delete"])
def test_kill__gc_removes_what_is_left(tmp_path, name):
    """After any kill a collection leaves what a store without the change consists of."""
    change, after = CHANGES[name]
    template = Template(tmp_path / "template")
    change(open_store(_copy(template, tmp_path / "whole")), "dense")
    kept = {BEFORE_KEYS: _shape(tmp_path / "template"), AFTER_KEYS: _shape(tmp_path / "whole")}
    for n_before in range(0, 1000, 3):
        place = _copy(template, tmp_path / str(n_before))
        finished = run_with_fault(lambda place: change(open_store(place), "dense"), place, n_before)
        store = open_store(place)
        is_done = content_of(store) == after and store.generation == 4
        store.gc(keep=4, grace=0, now=4e9)  # all leases have run out by then
        assert _shape(Path(place)) == kept[AFTER_KEYS if is_done else BEFORE_KEYS]
        assert store.verify() == []
        if finished:
            return


BEFORE_KEYS, AFTER_KEYS = "before", "after"


def _copy(template: Template, place: Path) -> str:
    template(str(place))
    return str(place)


def _shape(place: Path) -> list[tuple[str, int]]:
    """Where objects lie, names that are drawn at random left out; the face may be hidden."""
    keys = [key for key in open_objects(place).list() if key != "zarr.json"]
    # A lease that was written and could not be synced runs out by itself.
    keys = [key for key in keys if "/leases/" not in key and key != "segments/zarr.json"]
    drawn = {part for key in keys for part in Path(key).parts for part in [part.split(".")[0]]}
    names = {name for name in drawn if len(name) == 16}
    shapes = []
    for key in keys:
        for name in names:
            key = key.replace(name, "*")
        shapes.append(key)
    return sorted((key, shapes.count(key)) for key in set(shapes))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("append", "disk full"),
        ("compact", "no permission"),
        ("delete", "disk full"),
        ("delete", "no permission"),
        ("rollback", "disk full"),
    ],
)
def test_refusal__nothing_is_published_and_the_space_comes_back(tmp_path, name, fault):
    change, after = CHANGES[name]
    template = Template(tmp_path / "template")
    before = _shape(tmp_path / "template")

    def check(place: str, completed: bool) -> None:
        store = open_store(place)
        rows = content_of(store)
        if not completed and rows == BEFORE and store.generation == 3:
            assert _shape(Path(place)) == before
        else:
            assert rows == after
        assert store.verify() == []

    every_fault(
        tmp_path / "tries",
        prepare=template,
        action=lambda place: change(open_store(place), "dense"),
        check=check,
        fault=fault,
    )


def test_refusal__a_failed_ingest_leaves_nothing(tmp_path):
    def check(place: str, completed: bool) -> None:
        if completed:
            assert content_of(open_store(place)) == rows_of(IDS)
            return
        left = open_objects(place).list()
        assert left == [] or content_of(open_store(place)) == rows_of(IDS)

    every_fault(
        tmp_path,
        prepare=lambda place: None,
        action=lambda place: create_store(place, plain(IDS), identity="a.csv"),
        check=check,
        fault="disk full",
    )


def test_refusal__what_cannot_be_removed_does_not_hide_why(tmp_path, monkeypatch):
    store = start(str(tmp_path / "store"))
    write = LocalObjects.write

    def refuse(objects: Any, key: str, *buffers: Any) -> None:
        if "/X/c/1/" in key:
            raise OSError(errno.ENOSPC, "the disk is full", key)
        write(objects, key, *buffers)

    def keep(objects: Any, prefix: str) -> None:
        raise OSError(errno.EACCES, "not allowed", prefix)

    monkeypatch.setattr(LocalObjects, "write", refuse)
    monkeypatch.setattr(LocalObjects, "delete_tree", keep)
    with pytest.raises(OSError, match="the disk is full") as caught:
        store.append(plain(MORE))
    assert "could be removed" in caught.value.__notes__[0]
    assert content_of(store.refresh()) == BEFORE


def test_kill__on_an_object_store(s3_url):
    """Fewer operations than on disk: whole objects, no renames."""
    change, after = CHANGES["append"]

    def check(place: str, completed: bool) -> None:
        rows = content_of(open_store(place))
        assert rows == after or (rows == BEFORE and not completed)

    for n_before in range(3, 1000, 17):
        place = f"{s3_url}/{n_before}"
        start(place)
        finished = run_with_fault(lambda place: change(open_store(place), "dense"), place, n_before)
        check(place, finished)
        if finished:
            assert open_store(place).verify() == []
            return
        change(open_store(place), "dense")
        check(place, True)


def test_kill__other_work_is_not_disturbed_by_what_was_killed(tmp_path):
    place = str(tmp_path / "store")
    start(place)
    assert not run_with_fault(
        lambda place: open_store(place).append(plain(MORE), identity="night"), place, 20
    )
    store = open_store(place).append(plain(["other"]))
    assert content_of(store) == {**BEFORE, **rows_of(["other"])}
    with pytest.raises(InputError, match="every row id once"):
        store.append(plain(["other"]))
    store = store.append(plain(MORE), identity="night")
    assert content_of(store) == {**BEFORE, **rows_of(["other"]), **rows_of(MORE)}
    with pytest.raises(ConflictError):
        open_store(place, 3).delete(IDS[:1])
