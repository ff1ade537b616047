"""Passes that were cut off: what their pieces found is read, and only the rest is done."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distclust import engine
from distclust.store import ArrayMatrix
from distclust.store.matrix import Matrix
from distclust.store.notes import Notebook
from distclust.store.objects import open_objects
from distclust.store.values import pack_value
from tests.small_blocks import shrink

N_ROWS, N_BLOCKS, N_SPANS = 1200, 19, 3


NEVER = 10**6


class Cut(Exception):
    """The end of a run."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    monkeypatch.setenv("DISTCLUST_THREADS", "1")


@pytest.fixture
def matrix(small_blocks: None) -> Matrix:
    return ArrayMatrix(np.random.default_rng(0).normal(size=(N_ROWS, 3)))


def write_down(number: int, journal: str, last: int) -> None:
    with Path(journal).open("a") as file:
        file.write(f"{number}\n")
    if number >= last:
        raise Cut


def sum_block(block: Any, start: int, journal: str, last: int) -> Any:
    write_down(start // 64, journal, last)
    return block.sum(axis=0) / 3.0


def sum_span(span: engine.Span, journal: str, last: int) -> Any:
    write_down(span.index, journal, last)
    return span.index, sum(rows.block.sum(axis=0) for rows in span)


def sum_rows(rows: engine.Rows, journal: str, last: int) -> Any:
    write_down(rows.index, journal, last)
    return rows.index, rows.block.sum(axis=0) / 3.0


def sum_blocks(span: engine.Span, journal: str, last: int) -> Any:
    return span.index, [span.once(rows, sum_rows, journal, last) for rows in span]


def sum_rows_but_die_once(rows: engine.Rows, journal: str, last: int) -> Any:
    """Kill the worker that comes to the last block, the first time one does."""
    trace = Path(f"{journal}.dead")
    if rows.index == last and not trace.exists():
        trace.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return sum_rows(rows, journal, NEVER)


def sum_blocks_but_die_once(span: engine.Span, journal: str, last: int) -> Any:
    return span.index, [span.once(rows, sum_rows_but_die_once, journal, last) for rows in span]


def square(item: int, journal: str, last: int) -> int:
    write_down(item, journal, last)
    return item * item


def blocks(matrix: Matrix, *shared: Any) -> list[Any]:
    return list(engine.map_blocks(sum_block, matrix, *shared))


def spans(matrix: Matrix, *shared: Any) -> list[Any]:
    return list(engine.map_spans(sum_span, matrix, *shared, skip=[0]))


def blocks_of_spans(matrix: Matrix, *shared: Any) -> list[Any]:
    return list(engine.map_spans(sum_blocks, matrix, *shared, skip=[0]))


def items(matrix: Matrix, *shared: Any) -> list[Any]:
    return list(engine.map_ordered(square, range(9), *shared, stage="squares", is_noted=True))


def total(matrix: Matrix, *shared: Any) -> list[Any]:
    return [engine.reduce_blocks(sum_block, matrix, *shared)]


PASSES: dict[str, tuple[Callable[..., list[Any]], list[int]]] = {
    "blocks": (blocks, list(range(N_BLOCKS))),
    "spans": (spans, list(range(1, N_SPANS))),
    "blocks of spans": (blocks_of_spans, list(range(8, N_BLOCKS))),
    "items": (items, list(range(9))),
    "total": (total, list(range(N_BLOCKS))),
}


def bits(found: list[Any]) -> Any:
    packed, arrays = pack_value(found)
    return packed, {name: array.tobytes() for name, array in arrays.items()}


def lines(journal: Path) -> list[int]:
    found = [int(line) for line in journal.read_text().split()]
    journal.unlink()
    return found


@pytest.fixture(params=["in process", "on a client"])
def somewhere(request: pytest.FixtureRequest) -> None:
    """Run here or on workers, to which rows are sent in the blocks that they have here."""
    if request.param == "on a client":
        request.getfixturevalue("on_client")


@pytest.mark.cluster
@pytest.mark.parametrize("name", PASSES)
@pytest.mark.usefixtures("somewhere")
def test_pass__goes_on_where_it_was_cut_off(name, matrix, tmp_path):
    run, pieces = PASSES[name]
    journal, objects = tmp_path / "journal", open_objects(tmp_path / "store")
    wanted = run(matrix, str(journal), NEVER)
    assert sorted(lines(journal)) == pieces
    middle = pieces[len(pieces) // 2]
    with pytest.raises(Cut), engine.keeping_notes(Notebook(objects, "run", "0")):
        run(matrix, str(journal), middle)
    begun = lines(journal)
    for _ in range(2):  # what is known is not done again, in part or as a whole
        with engine.keeping_notes(Notebook(objects, "run", "0")):
            assert bits(run(matrix, str(journal), NEVER)) == bits(wanted)
        if not journal.exists():
            break
        rest = lines(journal)
        assert middle in rest
        assert pieces[0] not in rest
        assert set(rest) <= set(pieces)
        assert set(begun) | set(rest) == set(pieces)
    else:
        pytest.fail("a pass that was complete was done again")


@pytest.mark.cluster
@pytest.mark.chaos
def test_pass__another_worker_goes_on_where_one_died(matrix, tmp_path):
    journal, objects = tmp_path / "journal", open_objects(tmp_path)
    wanted = blocks_of_spans(matrix, str(journal), NEVER)
    lines(journal)
    shared = str(journal), 12
    with (
        engine.connect("local", workers=2, threads=1),
        engine.keeping_notes(Notebook(objects, "run", "0")),
    ):
        found = list(engine.map_spans(sum_blocks_but_die_once, matrix, *shared, skip=[0]))
    assert bits(found) == bits(wanted)
    done = Counter(lines(journal))
    assert sorted(done) == list(range(8, N_BLOCKS))
    assert max(done[block] for block in range(8, 12)) == 1  # before the one it died of
    assert (tmp_path / "journal.dead").exists()


@pytest.mark.parametrize("name", ["blocks", "blocks of spans"])
def test_pass__in_process_does_no_block_twice(name, matrix, tmp_path):
    run, pieces = PASSES[name]
    journal, objects = tmp_path / "journal", open_objects(tmp_path)
    with pytest.raises(Cut), engine.keeping_notes(Notebook(objects, "run", "0")):
        run(matrix, str(journal), 11)
    assert lines(journal) == list(range(pieces[0], 12))
    with engine.keeping_notes(Notebook(objects, "run", "0")):
        run(matrix, str(journal), NEVER)
    assert lines(journal) == list(range(11, N_BLOCKS))


def test_pass__a_damaged_note_of_a_block_is_passed_over(matrix, tmp_path, caplog):
    journal, objects = tmp_path / "journal", open_objects(tmp_path)
    wanted = blocks_of_spans(matrix, str(journal), NEVER)
    with pytest.raises(Cut), engine.keeping_notes(Notebook(objects, "run", "0")):
        blocks_of_spans(matrix, str(journal), 11)
    lines(journal)
    (damaged,) = (key for key in objects.list("checkpoints") if key.endswith("-blocks/9"))
    objects.write(damaged, b"")  # as a power cut leaves it
    with engine.keeping_notes(Notebook(objects, "run", "0")):
        assert bits(blocks_of_spans(matrix, str(journal), NEVER)) == bits(wanted)
    assert lines(journal) == [9, *range(11, N_BLOCKS)]
    assert "Damaged notes are passed over." in caplog.text


@pytest.mark.parametrize("name", [name for name in PASSES if name != "blocks of spans"])
def test_pass__damaged_notes_are_passed_over(name, matrix, tmp_path, caplog):
    run, pieces = PASSES[name]
    journal, objects = tmp_path / "journal", open_objects(tmp_path / "store")
    for _ in range(2):
        with engine.keeping_notes(Notebook(objects, "run", "0")):
            found = run(matrix, str(journal), NEVER)
    assert lines(journal) == pieces
    damaged = objects.list("checkpoints")[-1]  # names are sorted as text
    objects.write(damaged, b"damaged")
    with engine.keeping_notes(Notebook(objects, "run", "0")):
        assert bits(run(matrix, str(journal), NEVER)) == bits(found)
    assert len(lines(journal)) == (len(pieces) if name == "total" else 1)
    assert "Damaged notes are passed over." in caplog.text


def test_pass__several_of_a_chapter_keep_apart(matrix, tmp_path):
    journal, objects = tmp_path / "journal", open_objects(tmp_path)
    wanted = [run(matrix, str(journal), NEVER) for run, _ in PASSES.values()]
    for _ in range(2):
        with engine.keeping_notes(Notebook(objects, "run", "0")):
            found = [run(matrix, str(journal), NEVER) for run, _ in PASSES.values()]
        assert bits(found) == bits(wanted)


@pytest.mark.parametrize("name", PASSES)
def test_pass__keeps_nothing_where_nobody_asks_for_it(name, matrix, tmp_path):
    run, pieces = PASSES[name]
    journal = tmp_path / "journal"
    outer = engine.keeping_notes(Notebook(open_objects(tmp_path), "run", "0"))
    with outer, engine.keeping_notes(None):
        run(matrix, str(journal), NEVER)
    assert lines(journal) == pieces
    assert list(tmp_path.iterdir()) == []
