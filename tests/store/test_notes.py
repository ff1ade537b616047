"""Notes of passes: kept piece by piece, read back, told apart by chapter and pass."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from distclust.errors import StoreError
from distclust.store.notes import Notebook, Notes
from distclust.store.objects import open_objects


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notebook(open_objects(tmp_path), "run", "0").next_pass()


def test_pieces__are_known_once_they_are_kept(notes):
    assert notes.known() == set()
    notes.of_piece(3, lambda: (1, np.arange(3)))
    notes.of_piece(10, lambda: None)
    assert notes.known() == {3, 10}
    number, array = notes.read(3)
    assert number == 1
    np.testing.assert_array_equal(array, np.arange(3))
    assert notes.read(10) is None


def test_pieces__are_computed_once(notes):
    assert notes.of_piece(3, lambda: "first") == "first"
    assert notes.of_piece(3, lambda: "second") == "first"
    assert notes.of_block(3, lambda: "of the block") == "of the block"
    assert notes.of_block(3, lambda: "again") == "of the block"
    assert notes.known() == {3}
    assert notes.with_blocks().blocks == {3}


def test_sum__the_last_counts(notes):
    assert notes.read_sum() == (0, None)
    notes.keep_sum(1, 5)
    notes.keep_sum(2, 7)
    assert notes.read_sum() == (2, 7)
    assert notes.known() == set()


def test_notes__travel(notes):
    pickle.loads(pickle.dumps(notes)).of_piece(1, lambda: "there")
    assert notes.read(1) == "there"


def test_passes__of_a_chapter_and_of_others_are_apart(tmp_path):
    objects = open_objects(tmp_path)
    first = Notebook(objects, "run", "1")
    first.next_pass().of_piece(0, lambda: "a")
    first.next_pass().of_piece(0, lambda: "b")
    Notebook(objects, "run", "2").next_pass().of_piece(0, lambda: "c")
    Notebook(objects, "other", "1").next_pass().of_piece(0, lambda: "d")
    again = Notebook(objects, "run", "1")
    assert [again.next_pass().read(0), again.next_pass().read(0)] == ["a", "b"]


def test_read__damaged_or_displaced_notes_are_refused(notes, tmp_path):
    notes.of_piece(1, lambda: np.arange(100))
    notes.of_piece(2, lambda: np.arange(50))
    folder = tmp_path / notes.prefix
    content = bytearray((folder / "1").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "1").write_bytes(content)
    with pytest.raises(StoreError):
        notes.read(1)
    shutil.copy(folder / "2", folder / "1")
    with pytest.raises(StoreError, match="altered"):
        notes.read(1)
