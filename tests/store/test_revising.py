"""Revisions of stores: files that are read again, compared with the rows that they gave."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from distclust.errors import ConflictError, InputError
from distclust.store import matching
from distclust.store.growing import Change, Revision
from distclust.store.matrix_store import MatrixStore, create_store, open_store
from distclust.store.objects import open_objects
from distclust.store.sources.base import Prepared
from tests.corpora import LAYOUTS, blocks_of, content_of, prepared, rows_of, text_ids, values_of
from tests.faults import every_fault

IDS = text_ids(0, 10)
FIRST, SECOND = IDS[:6], IDS[6:]  # of two files


@pytest.fixture(autouse=True)
def _small_blocks() -> Any:
    with blocks_of(4):
        yield


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "corpus.zarr")


@pytest.fixture
def store(place: str) -> MatrixStore:
    return create_store(place, prepared(IDS))


def signatures(store: MatrixStore) -> list[str]:
    """Of all blocks but the last, which may grow."""
    matrix: Any = store.matrix()
    return [matrix.block_signature(i) for i in range(matrix.n_blocks - 1)]


# ---- what a revision does ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_revise__adds_replaces_and_deletes_in_one_generation(place: str, layout: str) -> None:
    """The first file loses two rows, changes one and gains one; a third file is new."""
    store = create_store(place, prepared(IDS, layout), layout=layout)
    kept, changed = [FIRST[0], FIRST[2], FIRST[5]], [FIRST[1]]
    rows = prepared(
        [*kept, *changed, "more", "third"],
        layout,
        values=np.concatenate(
            [values_of(kept), values_of(changed, 7), values_of(["more", "third"])]
        ),
        obs={
            "note": np.concatenate(
                [notes_of(kept), notes_of(changed, 7), notes_of(["more", "third"])]
            )
        },
        obs_kinds={"note": "text"},
        file_rows=(5, 1),
    )
    told: list[Change] = []

    def describe(change: Change) -> dict[str, Any]:
        told.append(change)
        return {"night": 1}

    revised = store.revise(Revision(rows, (((0, 6),), ())), provenance=describe)
    wanted = rows_of(kept) | rows_of(SECOND) | rows_of(changed, 7) | rows_of(["more", "third"])
    assert content_of(revised) == wanted
    assert (revised.generation, revised.provenance) == (2, {"night": 1})
    (change,) = told
    # One of the six rows was changed and two went; ten rows were stored.
    assert change.ranges == (((0, 6), (10, 12)), ((12, 13),))
    counts = (change.n_added, change.n_changed, change.n_deleted, change.n_same)
    assert counts == (2, 1, 2, 3)
    assert content_of(open_store(place, 1)) == rows_of(IDS)
    assert revised.verify() == []
    assert open_objects(place).list(".distclust/ingest") == []


def notes_of(ids: list[str], salt: int = 0) -> Any:
    return np.array([note for _, note in rows_of(ids, salt).values()], object)


def test_revise__rows_that_are_as_they_were_keep_their_positions(store: MatrixStore) -> None:
    """The same rows in another order are no change: all blocks are the same to the bit."""
    told: list[Change] = []
    again = prepared(FIRST[::-1], file_rows=(6,))
    same = store.revise(
        Revision(again, (((0, 6),),)), provenance=lambda change: told.append(change) or {}
    )
    assert (same.generation, same.fingerprint) == (2, store.fingerprint)
    assert (told[0].n_same, told[0].ranges) == (6, (((0, 6),),))
    changed = same.revise(Revision(prepared([*SECOND, "n"], file_rows=(5,)), (((6, 10),),)))
    assert changed.matrix().row_ids.tolist() == [*IDS, "n"]
    assert signatures(changed) == signatures(store)


def test_revise__only_deletes(store: MatrixStore) -> None:
    told: list[Change] = []
    left = store.revise(
        Revision(gone=((6, 10),)), provenance=lambda change: told.append(change) or {}
    )
    assert content_of(left) == rows_of(FIRST)
    assert (left.info()["segments"], told[0].n_deleted, told[0].ranges) == (1, 4, ())
    nothing = prepared([], values=np.empty((0, 6)))  # a file that lost its rows
    empty = left.revise(Revision(nothing, (((0, 6),),)))
    assert (empty.shape, empty.verify()) == ((0, 6), [])


def test_revise__deleted_rows_do_not_count(store: MatrixStore) -> None:
    """A row that was deleted by hand comes again if its file has it still."""
    deleted = store.delete([FIRST[2]])
    again = deleted.revise(Revision(prepared(FIRST, file_rows=(6,)), (((0, 6),),)))
    assert content_of(again) == rows_of(IDS)
    assert again.matrix().row_ids.tolist() == [*FIRST[:2], *FIRST[3:], *SECOND, FIRST[2]]


def test_revise__rows_without_ids_are_matched_by_content(place: str) -> None:
    values = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [2.0, 0.0], [np.nan, -0.0]])
    store = create_store(place, unnamed(values))
    now = np.array([[np.nan, 0.0], [1.0, 0.0], [3.0, 1.0], [1.0, 0.0]])
    revised = store.revise(Revision(unnamed(now), (((0, 5),),)))
    ids = revised.matrix().row_ids.tolist()
    assert ids[:3] == [0, 1, 4]  # of three equal rows the first two
    assert len(ids) == 4
    assert ids[3] >= 5
    np.testing.assert_array_equal(revised.matrix().read_all()[3], [3.0, 1.0])


def unnamed(values: Any) -> Prepared:
    return prepared(list(range(len(values))), values=values, obs={}, has_ids=False)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_revise__types_and_layouts_do_not_matter(place: str, layout: str, dtype: Any) -> None:
    """Rows are stored sparse or dense, and come again dense or sparse in any type."""
    store = create_store(place, prepared(IDS, layout, obs={}), layout=layout)
    values = values_of(IDS).astype(dtype)
    for given_as in ("dense", "csr"):
        rows = prepared(IDS, given_as, values=values, obs={}, file_rows=(10,))
        revised = open_store(place).revise(Revision(rows, (((0, 10),),)))
        assert revised.fingerprint == store.fingerprint


def test_revise__an_annotation_is_a_part_of_the_row(store: MatrixStore) -> None:
    notes = notes_of(IDS)
    notes[3] = "another"
    rows = prepared(IDS, obs={"note": notes}, obs_kinds={"note": "text"}, file_rows=(10,))
    revised = store.revise(Revision(rows, (((0, 10),),)))
    assert revised.matrix().row_ids.tolist() == [*IDS[:3], *IDS[4:], IDS[3]]
    assert content_of(revised)[IDS[3]][1] == "another"


def test_revise__large_whole_numbers_are_told_apart(place: str) -> None:
    """Neighbours beyond 2^53 are one number in double precision."""
    store = create_store(place, unnamed(np.array([[2**60], [2**60 + 1]])))
    revised = store.revise(Revision(unnamed(np.array([[2**60 + 1]])), (((0, 2),),)))
    assert revised.matrix().row_ids.tolist() == [1]


@pytest.mark.parametrize("duplicates", ["refuse", "first", "last"])
def test_revise__ids_of_other_files_are_duplicates(store: MatrixStore, duplicates: Any) -> None:
    """The first file now has a row of the second one, changed, and one of its own twice."""
    rows = prepared([*FIRST, SECOND[0], "n", "n"], salt=3, file_rows=(9,))
    revision = Revision(rows, (((0, 6),),))
    if duplicates == "refuse":
        with pytest.raises(InputError, match="every row id once"):
            store.revise(revision)
        assert store.refresh().generation == 1
        return
    revised = store.revise(revision, duplicates=duplicates)
    wanted = rows_of(SECOND) | rows_of([*FIRST, "n"], 3)
    if duplicates == "last":
        wanted |= rows_of([SECOND[0]], 3)
    assert content_of(revised) == wanted


def test_revise__rows_may_move_from_file_to_file(store: MatrixStore) -> None:
    """What one file lost, another has now: no duplicate."""
    rows = prepared([*FIRST[1:], *SECOND, FIRST[0]], file_rows=(5, 5))
    revised = store.revise(Revision(rows, (((0, 6),), ((6, 10),))))
    assert content_of(revised) == rows_of(IDS)


def test_revise__other_features_are_refused(store: MatrixStore, place: str) -> None:
    rows = prepared(FIRST, values=np.ones((6, 5)), file_rows=(6,))
    with pytest.raises(InputError, match="expected 6 features as in the store, got 5"):
        store.revise(Revision(rows, (((0, 6),),)))
    assert open_objects(place).list(".distclust/ingest") == []


def test_revise__the_same_again_is_no_work(store: MatrixStore) -> None:
    revision = Revision(prepared(FIRST[1:], file_rows=(5,)), (((0, 6),),))
    assert store.revise(revision, identity="night 1").generation == 2
    assert store.revise(revision, identity="night 1").generation == 2
    with pytest.raises(ConflictError, match="a later one by another writer"):
        store.revise(revision, identity="night 2")


# ---- matching ------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 6), max_size=30),
    st.lists(st.integers(0, 6), max_size=30),
    st.sampled_from([2, 1 << 24]),
)
def test_find_same__is_a_multiset(old: list[int], new: list[int], partition: int) -> None:
    def digests(numbers: list[int]) -> Any:
        words = np.array(numbers, np.uint64).reshape(-1, 1)
        return np.hstack([words << np.uint64(61), words % np.uint64(2)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "PARTITION", partition)
        is_old, is_new = matching._find_same(digests(old), digests(new))
    both = Counter(old) & Counter(new)
    for numbers, mask in ((old, is_old), (new, is_new)):
        kept = [number for number, is_kept in zip(numbers, mask, strict=True) if is_kept]
        assert Counter(kept) == both
        for number, n_kept in both.items():  # the first ones
            places = [i for i, other in enumerate(numbers) if other == number]
            assert all(mask[places[:n_kept]])


def test_row_digests__tell_rows_apart() -> None:
    """Any change of a value, an id, an annotation or the file is another digest."""
    from distclust.store.rows import Rows

    def digest(values: Any, row_id: str = "a", note: Any = "x", file: int = 0) -> bytes:
        rows = Rows(values, np.array([row_id], object), {"note": np.array([note], object)})
        form = matching.Form(scipy.sparse.issparse(values), np.dtype(np.float64), True)
        return bytes(matching.row_digests(rows, form, np.array([file])).tobytes())

    dense = np.array([[0.0, 1.0, 2.0]])
    for values in (dense, scipy.sparse.csr_array(dense)):
        others = [
            digest(values),
            digest(values * 2),
            digest(values[:, [0, 2, 1]]),
            digest(values, "b"),
            digest(values, note="y"),
            digest(values, note=None),
            digest(values, note="None"),
            digest(values, file=1),
        ]
        assert len(set(others)) == len(others)
        assert digest(values.copy()) == others[0]


# ---- kills ---------------------------------------------------------------------------------------


@pytest.mark.chaos
def test_kill__a_revision_is_complete_or_absent_and_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    create_store(tmp_path / "base", prepared(IDS))
    rows = prepared([*FIRST[2:], "n1", "n2"], file_rows=(6,))
    revision = Revision(rows, (((0, 6),),), gone=((6, 8),))
    after = rows_of([*FIRST[2:], *SECOND[2:], "n1", "n2"])

    def action(place: str) -> None:
        open_store(place, 1).revise(revision, identity="night")

    def check(place: str, finished: bool) -> None:
        store = open_store(place)
        assert content_of(store) == (rows_of(IDS) if store.generation == 1 else after)
        if finished:
            assert store.generation == 2
            assert open_objects(place).list(".distclust/ingest") == []
            assert store.verify() == []

    n_faults = every_fault(
        tmp_path / "tries",
        prepare=lambda place: shutil.copytree(tmp_path / "base", place),
        action=action,
        check=check,
    )
    assert n_faults > 10
