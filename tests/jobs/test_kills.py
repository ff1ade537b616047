"""A run that is killed, or finds the disk full, at any moment: run again, it ends the same.

Kills come between all kinds of writes: of rows, drafts, seals, pointers, the ledger, records. What
the killed run and the next one write together says how much was done twice.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distclust.store import row_labels
from distclust.store.matrix_store import open_store
from tests.faults import run_with_fault, storage_operations
from tests.jobs.corpus import Corpus
from tests.retrieval.corpora import shards_of
from tests.small_blocks import BLOCK_ROWS, shrink

pytestmark = pytest.mark.chaos

# What takes work to make: parsed lines, blocks of rows, codes, labels and leaves of rows, shards,
# notes of what blocks were found to hold.
LABOUR = ("/pieces/", "/X/c/", "/codes-", "/labels/c/", "/leaves/c/", "/shards/*/c/", "/notes/")


@dataclass(frozen=True)
class Unbroken:
    """A job that has something to do, and what a run makes of it that nothing happens to."""

    place: Path
    kept: Path
    before: dict[str, Any]
    after: dict[str, Any]
    operations: list[str]

    def again(self) -> str:
        """Put the job back to where it was: files that lie elsewhere would be other files."""
        shutil.rmtree(self.place)
        shutil.copytree(self.kept, self.place)
        return str(self.place)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Iterator[Unbroken]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        shards_of(BLOCK_ROWS, patch)
        patch.setattr(row_labels, "LABEL_CHUNK", BLOCK_ROWS)
        patch.setenv("DISTCLUST_THREADS", "1")  # the same operations in the same order
        folder = tmp_path_factory.mktemp("unbroken")
        place, kept = folder / "job", folder / "kept"
        prepare(place)
        shutil.copytree(place, kept)
        before = Corpus(place).content()
        operations = storage_operations(run, str(place))
        yield Unbroken(place, kept, before, Corpus(place).content(), operations)


def prepare(folder: Path) -> None:
    """Leave a job that has published once and has something to do."""
    corpus = Corpus(folder)
    corpus.bring(0, 150)
    corpus.run()
    corpus.bring(1, 150)
    path = corpus.inbox / "night000.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]))  # two rows are gone


def run(place: str) -> None:
    assert Corpus(place).run().outcome in ("published", "nothing new")


def check(place: str, is_finished: bool, unbroken: Unbroken) -> None:
    """Look at what is published: the old state or the new one, never a mixture."""
    found = Corpus(place).content()
    assert found in ([unbroken.after] if is_finished else [unbroken.before, unbroken.after])
    if is_finished:
        out = Path(place) / "results"
        assert open_store(out / "rows.zarr").generation == 2  # rows came in once
        for model in ("tree", "similar"):  # nothing was made twice
            assert len(list((out / "models" / model / "versions").iterdir())) == 2


def kill_points(operations: list[str]) -> list[int]:
    """Return where to kill: before the first write of every kind, and after what publishes.

    After other writes comes nothing but a folder until the next one. Of what takes work to make
    also before the last: then the more is done, the more could be done again.
    """
    last = {operation: i for i, operation in enumerate(operations)}
    first = {operation: i for i, operation in reversed(list(enumerate(operations)))}
    writes = [i for name, i in first.items() if name.startswith(("link", "replace"))]
    published = [i + 1 for i in writes if operations[i].startswith("link")]
    return sorted({*writes, *published, *(last[name] for name in labour(operations))})


def labour(operations: list[str]) -> Counter[str]:
    """Count what was made, without the records of it."""
    made = (name for name in operations if name.startswith("replace") and "/drafts/" not in name)
    return Counter(name for name in made if any(part in name for part in LABOUR))


def test_run__killed_before_and_after_every_write_and_run_again(unbroken):
    assert unbroken.before != unbroken.after
    points = kill_points(unbroken.operations)
    assert len(points) > 60
    most = labour(unbroken.operations)
    assert most.total() > 6
    assert any("link" in name and "/shards/" in name for name in unbroken.operations)
    for n_before in points:
        place = unbroken.again()
        done = storage_operations(run, place, n_before)
        check(place, False, unbroken)
        done += storage_operations(run, place)
        check(place, True, unbroken)
        assert (labour(done) - most).total() <= 1, unbroken.operations[n_before : n_before + 1]


def test_run__a_full_disk_anywhere(unbroken):
    # What is told about a run may be lost without a word to its outcome, so a run that
    # met the fault may have got through.
    for n_before in range(0, 300, 31):
        place = unbroken.again()
        run_with_fault(run, place, n_before, "disk full")
        check(place, False, unbroken)
        run(place)
        check(place, True, unbroken)
