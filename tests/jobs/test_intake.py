"""Intake: a folder that changes from night to night, and the store that follows it.

The oracle is the list of rows that the test itself wrote: after every night the live rows of
the store are those, no more and no fewer, and equal to a fresh ingest of the folder.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest

import distclust
from distclust.engine import map_ordered
from distclust.errors import ConflictError, InputError, MissingFileError, StoreError
from distclust.jobs import intake as intakes
from distclust.jobs import inventory as inventories
from distclust.jobs.intake import Intake, bring_in, compact_rows, present_inventory
from distclust.jobs.inventory import Inventory, KnownFile, Survey, survey_input
from tests.corpora import blocks_of
from tests.faults import every_fault

Row = tuple[str, int, int]  # id, and counts of the features "aa" and "bb"
Folder = dict[str, list[Row]]

WORDS = ("aa", "bb")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(inventories, "_TICK", 0.0)
    with blocks_of(4):
        yield


# ---- a job in miniature --------------------------------------------------------------------------


class Job:
    """Keeps inventories in files, as a job does, and runs one night at a time."""

    def __init__(self, root: Path | str, source: Any, **reading: Any) -> None:
        self.root = Path(root)
        self.place = f"{root}/rows.zarr"
        self.source = source
        self.reading = reading
        self.root.mkdir(exist_ok=True)

    def keep(self, inventory: Inventory) -> dict[str, Any]:
        path = self.root / f"{inventory.digest}.json"
        path.with_suffix(".new").write_text(json.dumps(inventory.to_json()))
        os.replace(path.with_suffix(".new"), path)
        return {"kept": path.name}

    def known(self) -> Inventory | None:
        digest = present_inventory(self.place)
        if digest is None:
            return None
        path = self.root / f"{digest}.json"
        return Inventory.from_json(json.loads(path.read_text()), str(path))

    def survey(self) -> Survey:
        return survey_input(self.source, self.known())

    def night(self, **options: Any) -> Intake:
        known = self.known()
        survey = survey_input(self.source, known)
        intake = bring_in(self.place, survey, known, self.reading, keep=self.keep, **options)
        self.keep(intake.inventory)  # with the stamps of now
        return intake


def rows_in(store: Any, with_ids: bool) -> Counter[Any]:
    """Live rows: id (or None) and counts of the two features."""
    places = [[column.name for column in store.columns].index(name) for name in WORDS]
    matrix = store.matrix()
    rows: Counter[Any] = Counter()
    for i in range(matrix.n_blocks):
        block = matrix.block(i)
        dense = block if isinstance(block, np.ndarray) else block.toarray()
        ids = matrix.block_ids(i).tolist()
        for row_id, values in zip(ids, dense[:, places].tolist(), strict=True):
            rows[(row_id if with_ids else None, *map(int, values))] += 1
    return rows


def rows_of(folder: Folder, with_ids: bool) -> Counter[Any]:
    return Counter(
        (row[0] if with_ids else None, *row[1:]) for rows in folder.values() for row in rows
    )


# ---- formats -------------------------------------------------------------------------------------


def _frame(rows: list[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["name", *WORDS])


def _named(path: Path, rows: list[Row]) -> None:
    lines = (f"{name},{a},{b}\n" for name, a, b in rows)
    path.write_text("name,aa,bb\n" + "".join(lines))


def _unnamed(path: Path, rows: list[Row]) -> None:
    path.write_text("aa,bb\n" + "".join(f"{a},{b}\n" for _, a, b in rows))


def _objects(path: Path, rows: list[Row]) -> None:
    lines = ({"id": name, "text": "aa " * a + "bb " * b} for name, a, b in rows)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _parquet(path: Path, rows: list[Row]) -> None:
    _frame(rows).set_index("name").to_parquet(path, row_group_size=3)


# suffix, what writes a file, whether rows have ids
FORMATS: dict[str, tuple[str, Callable[[Path, list[Row]], None], bool]] = {
    "named csv": (".csv", _named, True),
    "unnamed csv": (".csv", _unnamed, False),
    "jsonl": (".jsonl", _objects, True),
    "parquet": (".parquet", _parquet, True),
}


class Nights:
    """A folder of files that is edited at random, and what is in it."""

    def __init__(self, place: Path, form: str, seed: int) -> None:
        self.place = place
        self.suffix, self.write, self.has_ids = FORMATS[form]
        self.random = random.Random(seed)
        self.files: Folder = {}
        self.n_rows = 0
        place.mkdir()
        self.put("first", [self.row(1, 1), *(self.row() for _ in range(9))])  # has all words
        self.put("second", [self.row() for _ in range(5)])

    def row(self, *counts: int) -> Row:
        self.n_rows += 1
        a, b = counts or (self.random.randrange(3), self.random.randrange(3))
        return f"r{self.n_rows}", a, b

    def put(self, name: str, rows: list[Row]) -> None:
        self.files[name] = rows
        self.write(self.place / (name + self.suffix), rows)

    def edit(self) -> None:
        for name, rows in list(self.files.items()):
            what = self.random.choice(["leave", "touch", "shuffle", "edit", "edit", "remove"])
            path = self.place / (name + self.suffix)
            if what == "touch":
                os.utime(path, (1.0, 1.0))
            elif what == "shuffle":
                self.put(name, self.random.sample(rows, len(rows)))
            elif what == "edit":
                kept = [row for row in rows if self.random.random() < 0.7]
                changed = [(r, a + (self.random.random() < 0.3), b) for r, a, b in kept]
                self.put(name, [*changed, *(self.row() for _ in range(self.random.randrange(4)))])
            elif what == "remove" and len(self.files) > 1:
                del self.files[name]
                path.unlink()
        if self.random.random() < 0.7:
            self.put(f"night-{self.n_rows}", [self.row() for _ in range(1 + self.n_rows % 7)])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_nights__the_store_follows_the_folder(form: str, seed: int, tmp_path: Path) -> None:
    nights = Nights(tmp_path / "in", form, seed)
    job = Job(tmp_path / "out", tmp_path / "in")
    job.night()
    for night in range(6):
        before = distclust.open_store(job.place)
        n_before, old = before.shape[0], positions(before)
        nights.edit()
        survey = job.survey()
        done = job.night()
        with_ids = nights.has_ids
        wanted = rows_of(nights.files, with_ids)
        assert rows_in(done.store, with_ids) == wanted
        assert done.store.generation == before.generation + (not survey.is_quiet)
        assert done.store.shape[0] == n_before + done.n_added - done.n_deleted
        if wanted:
            fresh = distclust.ingest(tmp_path / "in", tmp_path / f"fresh-{night}.zarr")
            assert wanted == rows_in(fresh, with_ids)
        check_ownership(done, nights)
        now = positions(done.store)
        if with_ids:  # rows of files that are as they were are where they were
            names = {Path(file.url).stem for file in (*survey.unchanged, *survey.touched)}
            stayed = {row[0] for name in names for row in nights.files[name]}
            assert {row: now[row] for row in stayed} == {row: old[row] for row in stayed}
        assert job.survey().is_quiet
        assert job.survey().n_bytes_hashed == 0
    assert done.store.verify() == []


def positions(store: Any) -> dict[Any, int]:
    """Stored positions of live rows by id."""
    generation = store._generation
    n = generation.manifest.n_stored
    live = np.flatnonzero(generation.is_live(0, n)) if n else []
    return dict(zip(store.matrix().row_ids.tolist(), map(int, live), strict=True))


def check_ownership(done: Intake, nights: Nights) -> None:
    """Live rows within the ranges of every file are the rows of that file."""
    generation: Any = done.store._generation
    for file in done.inventory.files:
        rows: Counter[Any] = Counter()
        for start, stop in file.ranges:
            is_live = generation.is_live(start, stop)
            ids = generation.ids(start, stop)[is_live].tolist()
            rows.update(ids if nights.has_ids else [None] * len(ids))
        own = nights.files[Path(file.url).stem]
        assert rows == Counter(row[0] if nights.has_ids else None for row in own)


def test_nights__blocks_in_which_nothing_changed_stay_the_same(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "in", "named csv", 0)
    job = Job(tmp_path / "out", tmp_path / "in")
    first: Any = job.night().store.matrix()
    rows = nights.files["first"]
    nights.put("first", [*rows[:5], ("r6", 9, 9), *rows[6:], ("new", 1, 2)])
    done = job.night()
    assert (done.n_added, done.n_changed, done.n_deleted, done.n_same) == (1, 1, 0, 9)
    second: Any = done.store.matrix()
    same = [first.block_signature(i) == second.block_signature(i) for i in range(3)]
    assert same == [True, False, True]  # the sixth row is in the second block of four


def test_nights__documents_in_the_words_of_the_first_night(tmp_path: Path) -> None:
    """New words are no features; a folder of documents names its rows by their paths."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("aa bb")
    (folder / "b.txt").write_text("aa aa")
    job = Job(tmp_path / "out", folder)
    job.night()
    (folder / "b.txt").write_text("bb bb cc")
    (folder / "c.txt").write_text("dd")
    done = job.night()
    assert rows_in(done.store, True) == {("a.txt", 1, 1): 1, ("b.txt", 0, 2): 1, ("c.txt", 0, 0): 1}
    assert (done.n_added, done.n_changed, done.n_same) == (1, 1, 0)


def test_nights__thresholds_are_those_of_the_first_night(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    _named(folder / "a.csv", [("r1", 0, 0), ("r2", 10, 10)])
    job = Job(tmp_path / "out", folder, binarise="column-mean")
    job.night()
    _named(folder / "a.csv", [("r1", 0, 0), ("r2", 10, 10), ("r3", 6, 4)])
    done = job.night()
    assert rows_in(done.store, True)[("r3", 1, 0)] == 1
    assert (done.n_added, done.n_same) == (1, 2)


# ---- surveys -------------------------------------------------------------------------------------


def test_survey__content_is_hashed_only_where_size_or_stamp_changed(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "in", "named csv", 1)
    job = Job(tmp_path / "out", tmp_path / "in")
    first = job.survey()
    assert [Path(file.url).name for file in first.new] == ["first.csv", "second.csv"]
    assert first.n_bytes_hashed == sum(file.size for file in first.files)
    done = job.night()
    os.utime(tmp_path / "in/first.csv", (5.0, 5.0))
    touched = job.survey()
    assert (len(touched.touched), len(touched.unchanged), touched.is_quiet) == (1, 1, True)
    assert touched.n_bytes_hashed == (tmp_path / "in/first.csv").stat().st_size
    again = job.night()
    assert again.store.generation == done.store.generation
    assert again.inventory.digest == done.inventory.digest
    assert job.survey().n_bytes_hashed == 0
    nights.put("second", nights.files["second"][1:])
    (tmp_path / "in/first.csv").unlink()
    survey = job.survey()
    assert [len(part) for part in (survey.new, survey.changed, survey.gone)] == [0, 1, 1]
    assert not survey.is_quiet


def test_survey__a_change_of_equal_size_within_a_tick_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventories, "_TICK", 0.02)
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    survey_input(path, None)
    assert time.time() - path.stat().st_ctime > 0.02  # later writes have another time


def test_survey__is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand files that are as they were: none is opened."""
    for i in range(10_000):
        (tmp_path / f"{i}.csv").write_text("a,b\n1,2\n")
    first = survey_input(tmp_path, None)
    files = tuple(
        KnownFile(file.url, file.size, file.stamp, first.digests[file.url], ((i, i + 1),))
        for i, file in enumerate(first.files)
    )
    known = Inventory(files, {})
    monkeypatch.setattr(inventories.SourceFile, "open", None)
    began = time.perf_counter()
    survey = survey_input(tmp_path, known)
    seconds = time.perf_counter() - began
    assert len(survey.unchanged) == 10_000
    assert survey.is_quiet
    assert seconds < 2.0  # a third of a second on an idle machine


def test_survey__far_away(tmp_path: Path, memory_url: str) -> None:
    def write(name: str, text: str) -> None:
        with fsspec.open(f"{memory_url}/in/{name}", "w") as file:
            file.write(text)

    write("a.csv", "name,aa,bb\nr1,1,2\n")
    write("b.csv", "name,aa,bb\nr2,1,2\n")
    job = Job(tmp_path / "out", f"{memory_url}/in")
    job.night()
    assert job.survey().is_quiet
    write("b.csv", "name,aa,bb\nr2,3,2\nr3,1,1\n")
    done = job.night()
    assert (done.n_added, done.n_changed) == (1, 1)
    assert rows_in(done.store, True) == {("r1", 1, 2): 1, ("r2", 3, 2): 1, ("r3", 1, 1): 1}


def test_survey__paths_mean_the_same_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Nights(tmp_path / "in", "named csv", 1)
    monkeypatch.chdir(tmp_path)
    Job(tmp_path / "out", "in").night()
    assert Job(tmp_path / "out", [str(tmp_path / "in")]).survey().is_quiet


@pytest.mark.parametrize("name", ["in.zarr", "in.h5ad"])
def test_nights__a_store_is_an_input(tmp_path: Path, name: str) -> None:
    """One of ours grows and shrinks; an AnnData file is written again."""

    def write(rows: list[Row]) -> None:
        if name == "in.h5ad":
            import anndata

            frame = _frame(rows).set_index("name")
            anndata.AnnData(frame.astype(np.float32)).write_h5ad(tmp_path / "new.h5ad")
            os.replace(tmp_path / "new.h5ad", tmp_path / name)  # HDF5 may hold the other open
        else:
            _named(tmp_path / "rows.csv", rows)
            is_there = (tmp_path / name).exists()
            how: Any = "replace" if is_there else "create"
            store = distclust.ingest(tmp_path / "rows.csv", tmp_path / name, how=how)
            names = {row[0] for row in rows}
            gone = [row for row in store.matrix().row_ids.tolist() if row not in names]
            if gone:
                store.delete(gone)

    first: list[Row] = [("r1", 1, 2), ("r2", 3, 4), ("r3", 5, 6)]
    write(first)
    job = Job(tmp_path / "out", tmp_path / name)
    assert job.night().n_added == 3
    assert job.survey().is_quiet
    write([first[0], ("r2", 9, 9), ("r4", 7, 8)])
    done = job.night()
    assert rows_in(done.store, True) == {("r1", 1, 2): 1, ("r2", 9, 9): 1, ("r4", 7, 8): 1}
    assert (done.n_added, done.n_changed, done.n_deleted, done.n_same) == (1, 1, 1, 1)


# ---- what is refused -----------------------------------------------------------------------------


def test_bad_input__is_refused_in_a_sentence(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "in", "named csv", 1)
    job = Job(tmp_path / "out", tmp_path / "in")
    generation = job.night().store.generation
    first = tmp_path / "in/first.csv"
    cases = [
        ("name,aa,cc\nr1,1,2\n", "'cc'"),
        ("name,aa\nr1,1\n", "first.csv: expected 2 features as in the store, got 1"),
        ("name,aa,bb\nr1,1\n", "first.csv, line 2"),
        ("", "first.csv"),
        ("name,aa,bb\nr11,1,2\n", "every row id once, got 'r11' in row 10 of the store"),
    ]
    for text, message in cases:
        first.write_text(text)
        with pytest.raises(InputError, match=message):
            job.night()
    assert distclust.open_store(job.place).generation == generation
    nights.put("first", nights.files["first"])
    assert job.survey().is_quiet
    with pytest.raises(InputError, match="every file once"):
        survey_input([tmp_path / "in", tmp_path / "in/*.csv"], None)
    shutil.rmtree(tmp_path / "in")
    with pytest.raises(MissingFileError, match="nothing there"):
        job.night()
    with pytest.raises(StoreError, match="an inventory of files"):
        Inventory.from_json({"files": [["a", 1, "s", "d", [[3, 2]]]], "reading": {}}, "x.json")


def test_bad_input__other_options_or_another_store(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "in", "named csv", 1)
    job = Job(tmp_path / "out", tmp_path / "in")
    job.night()
    known = job.known()
    nights.edit()
    with pytest.raises(InputError, match=r"options of the rows that are there, \{'drop': None\}"):
        Job(tmp_path / "out", tmp_path / "in", drop=["aa"]).night()
    with pytest.raises(ConflictError, match="rows of another inventory"):
        bring_in(job.place, survey_input(job.source, None), None, {}, keep=job.keep)
    survey = survey_input(job.source, known)
    job.night()
    with pytest.raises(ConflictError, match="rows of another inventory"):  # an old one
        bring_in(job.place, survey, known, {}, keep=job.keep)
    distclust.open_store(job.place).delete(["r1"], missing="ignore")
    with pytest.raises(InputError, match="rows that a job brought in, got generation 3"):
        job.night()


def test_duplicates__the_one_that_came_first_or_last(tmp_path: Path) -> None:
    for duplicates, wanted in (("first", (1, 1)), ("last", (3, 3))):
        folder = tmp_path / duplicates
        folder.mkdir()
        _named(folder / "a.csv", [("r1", 1, 1), ("r2", 2, 2)])
        job = Job(tmp_path / f"out-{duplicates}", folder, ids="name")
        job.night(duplicates=duplicates)
        _named(folder / "b.csv", [("r1", 3, 3), ("r4", 4, 4)])
        done = job.night(duplicates=duplicates)
        assert rows_in(done.store, True) == {
            ("r1", *wanted): 1,
            ("r2", 2, 2): 1,
            ("r4", 4, 4): 1,
        }


# ---- kills, interruptions, compaction ------------------------------------------------------------


@pytest.mark.chaos
@pytest.mark.parametrize("is_first", [True, False])
def test_kill__a_night_is_complete_or_absent_and_completes(
    is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at any storage operation, the same run again ends as one that was never killed."""
    monkeypatch.setenv("DISTCLUST_THREADS", "1")
    nights = Nights(tmp_path / "in", "named csv", 3)
    if not is_first:
        Job(tmp_path / "base", tmp_path / "in").night()
    before = rows_of(nights.files, True)
    nights.put("first", [*nights.files["first"][2:], ("new", 2, 2), ("r3", 7, 7)][1:])
    nights.put("third", [("t1", 1, 1), ("t2", 0, 1)])
    after = rows_of(nights.files, True)

    def prepare(place: str) -> None:
        if not is_first:
            shutil.copytree(tmp_path / "base", place)
        Path(place).mkdir(parents=True, exist_ok=True)

    def action(place: str) -> None:
        Job(place, tmp_path / "in").night()

    def check(place: str, finished: bool) -> None:
        job = Job(place, tmp_path / "in")
        known = job.known()
        assert known is not None or (is_first and not finished)
        if known is None:
            return
        store = distclust.open_store(job.place)
        is_new = store.generation == 2 - is_first
        assert rows_in(store, True) == (after if is_new else before)
        if finished:
            assert is_new  # and never one more
            assert survey_input(job.source, known).is_quiet
            assert store.verify() == []

    # Every third will do: test_kills.py has all kinds of them, test_revising.py every one.
    tries = tmp_path / "tries"
    n_faults = every_fault(tries, prepare=prepare, action=action, check=check, stride=3)
    assert n_faults > 20


def test_interrupted__finished_blocks_are_not_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights = Nights(tmp_path / "in", "named csv", 3)
    job = Job(tmp_path / "out", tmp_path / "in")
    job.night()
    nights.put("first", [nights.row() for _ in range(12)])

    def stopping(function: Any, items: Any, *shared: Any, stage: str = "") -> Any:
        for number, result in enumerate(map_ordered(function, items, *shared, stage=stage)):
            if stage == "writing" and number == 1:
                raise KeyboardInterrupt
            yield result

    with monkeypatch.context() as patch:
        patch.setattr(intakes, "map_ordered", stopping)
        with pytest.raises(KeyboardInterrupt):
            job.night()
    (block,) = Path(job.place, "segments").glob("*/X/c/0/0")
    written = block.stat().st_mtime_ns
    os.utime(tmp_path / "in/first.csv", (9.0, 9.0))  # touched meanwhile: the same content
    done = job.night()
    assert list(Path(job.place, "segments").glob("*/X/c/0/0")) == [block]  # work was taken up
    assert block.stat().st_mtime_ns == written
    assert rows_in(done.store, True) == rows_of(nights.files, True)


def test_interrupted__a_first_night_of_other_files_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody watches: unfinished work must not stand in the way once the input has changed."""

    def stopping(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    nights = Nights(tmp_path / "in", "named csv", 3)
    job = Job(tmp_path / "out", tmp_path / "in")
    with monkeypatch.context() as patch:
        patch.setattr(job, "keep", stopping)
        with pytest.raises(KeyboardInterrupt):
            job.night()
    nights.edit()
    assert rows_in(job.night().store, True) == rows_of(nights.files, True)


def test_compact_rows__the_inventory_follows(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "in", "named csv", 4)
    job = Job(tmp_path / "out", tmp_path / "in")
    job.night()
    for _ in range(3):
        nights.edit()
        job.night()
    known = job.known()
    assert known is not None
    done = compact_rows(job.place, known, keep=job.keep)
    assert done.store.info()["deleted"] == 0
    check_ownership(done, nights)
    assert job.survey().is_quiet
    nights.edit()
    done = job.night()
    assert rows_in(done.store, True) == rows_of(nights.files, True)
    check_ownership(done, nights)
