"""A run that is killed, or finds the disk full, at any moment: run again, it ends the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from distclust.store.matrix_store import open_store
from tests.faults import every_fault, run_with_fault
from tests.jobs.corpus import Corpus
from tests.small_blocks import shrink

pytestmark = pytest.mark.chaos


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    shrink(monkeypatch)


def prepare(place: str) -> None:
    """Leave a job that has published once and has something to do."""
    corpus = Corpus(place)
    corpus.bring(0, 150)
    corpus.run()
    corpus.bring(1)
    path = corpus.inbox / "night000.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]))  # two rows are gone


def run(place: str) -> None:
    corpus = Corpus(place)
    assert corpus.run().outcome in ("published", "nothing new")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> tuple[dict, dict]:
    """Return what is published before and after a run that nothing happens to."""
    patch = pytest.MonkeyPatch()
    shrink(patch)
    place = str(tmp_path_factory.mktemp("unbroken"))
    prepare(place)
    before = Corpus(place).content()
    run(place)
    after = Corpus(place).content()
    patch.undo()
    return before, after


def check(place: str, finished: bool, unbroken: tuple[dict, dict]) -> None:
    """Look at what is published: the old state or the new one, never a mixture."""
    before, after = unbroken
    found = Corpus(place).content()
    assert found in ([after] if finished else [before, after])
    if finished:
        out = Path(place) / "results"
        assert open_store(out / "rows.zarr").generation == 2  # rows came in once
        for model in ("tree", "similar"):  # nothing was made twice
            assert len(list((out / "models" / model / "versions").iterdir())) == 2


def test_run__killed_anywhere_and_run_again(tmp_path, unbroken):
    assert unbroken[0] != unbroken[1]
    n_operations = every_fault(
        tmp_path,
        prepare=prepare,
        action=run,
        check=lambda place, finished: check(place, finished, unbroken),
        stride=9,
    )
    assert n_operations > 100


@pytest.mark.parametrize("n_before", range(0, 300, 23))
def test_run__a_full_disk_anywhere(tmp_path, unbroken, n_before):
    # What is told about a run may be lost without a word to its outcome, so a run that
    # met the fault may have got through.
    place = str(tmp_path)
    prepare(place)
    run_with_fault(run, place, n_before, "disk full")
    check(place, False, unbroken)
    run(place)
    check(place, True, unbroken)
