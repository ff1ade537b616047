"""Span maps: the rows and keys of blocks, eight blocks a task, wherever the work runs."""

from __future__ import annotations

import itertools
import os
import signal
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
import pytest
import scipy.sparse

from distclust import engine, events
from distclust.engine.on_client import _Balance
from distclust.engine.pieces import BRIEF, LONG, guided_batches
from distclust.seeding import row_keys
from distclust.store import ArrayMatrix, Matrix, SparseMatrix

BLOCK_ROWS = 64
N_ROWS = 19 * BLOCK_ROWS + 5  # twenty blocks, the last not full: three spans, the last short
N_FEATURES = 7
MANY_FEATURES = 100_000  # sparse blocks of 4,096 rows


class Seen(NamedTuple):
    """All that a function can see of one block, as comparable values."""

    block: int
    start: int
    values: bytes
    keys: bytes


def see(index: int, start: int, block: Any, keys: Any) -> Seen:
    parts = (block.data, block.indices, block.indptr) if scipy.sparse.issparse(block) else (block,)
    return Seen(index, start, b"".join(part.tobytes() for part in parts), keys.tobytes())


def see_rows(rows: engine.Rows) -> Seen:
    return see(rows.index, rows.start, rows.block, rows.keys)


def see_span(span: engine.Span) -> tuple[int, int, int, list[Seen]]:
    return span.index, span.start, span.stop, [see_rows(rows) for rows in span]


def add_to_number(span: engine.Span, step: int, factor: int) -> int:
    return (span.index + step) * factor


def see_twice(span: engine.Span) -> bool:
    return [see_rows(rows) for rows in span] == [see_rows(rows) for rows in span]


def process_of(span: engine.Span) -> int:
    return os.getpid()


def see_but_die_once(span: engine.Span, trace: Path) -> tuple[int, int, int, list[Seen]]:
    """Kill the worker that comes to the second span, the first time one does."""
    if span.index == 1 and not trace.exists():
        trace.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return see_span(span)


def blocks_in_spans(matrix: Matrix) -> list[tuple[int, int, int, list[Seen]]]:
    """What the spans must be, from the blocks alone and by plain slicing."""
    seen = [
        see(i, matrix.block_bounds(i)[0], matrix.block(i), matrix.block_keys(i))
        for i in range(matrix.n_blocks)
    ]
    stops = [matrix.block_bounds(i)[1] for i in range(matrix.n_blocks)]
    runs = [(seen[i : i + 8], stops[i : i + 8]) for i in range(0, len(seen), 8)]
    return [(number, run[0].start, ends[-1], run) for number, (run, ends) in enumerate(runs)]


def small_blocks(matrix: Matrix) -> Matrix:
    matrix.block_rows = BLOCK_ROWS
    return matrix


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(N_ROWS, N_FEATURES)) * rng.integers(2, size=(N_ROWS, N_FEATURES))


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Matrix:
    """A store of ten blocks, of which one lost all its rows and others lost some."""
    rng = np.random.default_rng(1)
    n_rows = 9 * 4096 + 100
    rows, columns = np.arange(n_rows), rng.integers(MANY_FEATURES, size=n_rows)
    counts = scipy.sparse.csr_array((rng.integers(1, 9, n_rows), (rows, columns)))
    counts.resize(n_rows, MANY_FEATURES)
    store = engine.ingest(iter([counts]), tmp_path_factory.mktemp("stored") / "X.zarr")
    ids = store.matrix().row_ids
    return store.delete([*ids[10:20], *ids[2 * 4096 : 3 * 4096], ids[-1]]).matrix()


@pytest.fixture(params=["array", "named", "sparse", "dask", "dask_sparse", "stored"])
def matrix(request, values) -> Matrix:
    if request.param == "stored":
        return request.getfixturevalue("stored")
    chunked = da.from_array(values, chunks=(300, 4))
    names = np.array([f"row {i}" for i in range(N_ROWS)], object)
    made = {
        "array": lambda: ArrayMatrix(values),
        "named": lambda: ArrayMatrix(values, row_ids=names),
        "sparse": lambda: SparseMatrix(scipy.sparse.csr_array(values), row_ids=names),
        "dask": lambda: engine.as_matrix(chunked),
        "dask_sparse": lambda: engine.as_matrix(chunked.map_blocks(scipy.sparse.coo_array)),
    }
    return small_blocks(made[request.param]())


def check_spans(matrix: Matrix) -> None:
    expected = blocks_in_spans(matrix)
    assert len(expected) == engine.n_spans(matrix) >= 2
    assert list(engine.map_spans(see_span, matrix)) == expected
    bounds = [engine.span_bounds(matrix, i) for i in range(engine.n_spans(matrix))]
    assert bounds == [(start, stop) for _, start, stop, _ in expected]
    assert (bounds[0][0], bounds[-1][1]) == (0, matrix.shape[0])


@pytest.mark.parametrize("threads", [1, 3])
def test_map_spans__equal_blocks_in_process(matrix, threads):
    with engine.connect("threads", threads=threads):
        check_spans(matrix)


@pytest.mark.cluster
def test_map_spans__equal_blocks_on_a_client(matrix, on_client):
    check_spans(matrix)
    assert os.getpid() not in engine.map_spans(process_of, matrix)
    assert all(engine.map_spans(see_twice, matrix))


@pytest.mark.cluster
@pytest.mark.parametrize("rows", [N_ROWS, 700, 64, (1, 0, N_ROWS - 101, 100)])
def test_map_spans__any_chunking_equals_one_array(values, rows, local_client):
    expected = blocks_in_spans(small_blocks(ArrayMatrix(values)))
    chunked = da.from_array(values, chunks=(rows, N_FEATURES))
    assert list(engine.map_spans(see_span, small_blocks(engine.as_matrix(chunked)))) == expected
    with local_client.as_current():
        assert list(engine.map_spans(see_span, small_blocks(engine.as_matrix(chunked)))) == expected


@pytest.mark.cluster
def test_map_spans__leaves_out_what_is_skipped(matrix, local_client):
    expected = [span for span in blocks_in_spans(matrix) if span[0] != 1]
    assert list(engine.map_spans(see_span, matrix, skip={1})) == expected
    with local_client.as_current():
        assert list(engine.map_spans(see_span, matrix, skip=[1, 1, 99])) == expected
        assert list(engine.map_spans(see_span, matrix, skip=range(9))) == []


def test_map_spans__reads_nothing_of_what_is_skipped(values):
    read = []

    class Watched(ArrayMatrix):
        def block(self, index: int) -> Any:
            read.append(index)
            return super().block(index)

    list(engine.map_spans(see_span, small_blocks(Watched(values)), skip={0}))
    assert sorted(read) == list(range(8, 20))


@pytest.mark.cluster
def test_map_spans__computes_no_chunk_of_what_is_skipped(values, on_client):
    wrong = values.copy()
    wrong[:100] = np.inf
    chunked = da.from_array(wrong, chunks=(BLOCK_ROWS, N_FEATURES)).map_blocks(fail_on_infinity)
    matrix = small_blocks(engine.as_matrix(chunked))
    assert list(engine.map_spans(add_to_number, matrix, 0, 1, skip={0})) == [1, 2]


def fail_on_infinity(chunk: np.ndarray) -> np.ndarray:
    assert not np.isinf(chunk).any(), "a chunk that nobody needs was computed"
    return chunk


@pytest.mark.cluster
def test_map_spans__shared_values_follow_in_order(values, local_client):
    matrix = small_blocks(ArrayMatrix(values))
    assert list(engine.map_spans(add_to_number, matrix, 5, 10)) == [50, 60, 70]
    with local_client.as_current():
        assert list(engine.map_spans(add_to_number, matrix, 5, 10)) == [50, 60, 70]


@pytest.mark.cluster
def test_map_spans__reports_spans_done(values, local_client):
    matrix = small_blocks(ArrayMatrix(values))
    for place in (engine.connect("threads"), local_client.as_current()):
        seen: list[events.Event] = []
        with place, events.listen(seen.append):
            list(engine.map_spans(see_span, matrix, stage="look", skip={0}))
        assert (seen[0].stage, seen[0].done, seen[0].total) == ("look", 0, 2)
        assert (seen[-1].done, seen[-1].total) == (2, 2)


def test_span__has_one_block_in_memory_at_a_time(values):
    read = []

    class Watched(ArrayMatrix):
        def block(self, index: int) -> Any:
            read.append(index)
            return super().block(index)

    (span,) = engine.spans._read_span(small_blocks(Watched(values)), 1)
    rows = iter(span)
    assert read == []
    first = next(rows)
    assert (first.index, read) == (8, [])
    assert first.block is first.block
    assert read == [8]  # when it is asked for, and once


def test_rows__are_not_read_for_the_sake_of_their_compact_form(values, stored, monkeypatch):
    for rows in engine.spans._read_span(small_blocks(ArrayMatrix(values)), 0)[0]:
        assert rows.compact is None
    monkeypatch.setattr(stored, "block", lambda index: pytest.fail("was read"))
    found = [rows.compact for rows in engine.spans._read_span(stored, 0)[0]]
    assert [compact is not None for compact in found][:3] == [False, True, True]  # ten are gone
    assert found[1].n_rows == 4096


@pytest.mark.cluster
def test_map_spans__workers_read_a_store_themselves(stored, on_client, monkeypatch):
    expected = blocks_in_spans(stored)

    def refuse(index: int) -> None:
        raise AssertionError("read by the process that asked")

    monkeypatch.setattr(stored, "block", refuse)  # travels by name, so workers have theirs
    monkeypatch.setattr(stored, "block_keys", refuse)
    assert list(engine.map_spans(see_span, stored)) == expected


@pytest.mark.parametrize("index", [-1, 3])
def test_span_bounds__refuse_a_span_that_is_not_there(values, index):
    with pytest.raises(IndexError, match=f"span {index} of a matrix with 3 spans"):
        engine.span_bounds(small_blocks(ArrayMatrix(values)), index)


def test_block_keys__never_make_all_ids_for_one_block():
    huge = engine.as_matrix(da.zeros((10**14, N_FEATURES), chunks=(10**12, N_FEATURES)))
    start, stop = huge.block_bounds(10**6)
    np.testing.assert_array_equal(huge.block_keys(10**6), row_keys(np.arange(start, stop)))


@pytest.mark.cluster
@pytest.mark.chaos
def test_map_spans__killed_worker_changes_nothing(values, stored, tmp_path):
    chunked = da.from_array(values, chunks=(400, N_FEATURES))
    kinds = {
        "array": small_blocks(ArrayMatrix(values)),
        "dask": small_blocks(engine.as_matrix(chunked)),
        "stored": stored,
    }
    with engine.connect("local", workers=2, threads=1):
        for kind, matrix in kinds.items():
            expected = blocks_in_spans(matrix)
            trace = tmp_path / kind
            assert list(engine.map_spans(see_but_die_once, matrix, trace)) == expected
            assert trace.exists()


@pytest.mark.parametrize("n_threads", [1, 2, 16])
@pytest.mark.parametrize("n_pieces", [0, 1, 39, 5000])
@pytest.mark.parametrize("grain", [BRIEF, LONG])
def test_guided_batches__take_every_piece_once_and_end_short(n_pieces, n_threads, grain):
    batches = [list(batch) for batch in guided_batches(range(n_pieces), n_threads, grain)]
    sizes = [len(batch) for batch in batches]
    assert list(itertools.chain(*batches)) == list(range(n_pieces))
    assert max(sizes, default=1) <= grain.most
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes[-n_threads:], default=1) <= grain.least


def test_guided_batches__brief_pieces_make_fewer_tasks_but_keep_all_threads():
    sizes = {
        grain: [len(b) for b in guided_batches(range(39), 2, grain)] for grain in (BRIEF, LONG)
    }
    assert len(sizes[BRIEF]) < 0.7 * len(sizes[LONG])
    assert [len(b) for b in guided_batches(range(3), 2, BRIEF)] == [2, 1]
    assert [len(b) for b in guided_batches(range(4), 4, BRIEF)] == [1, 1, 1, 1]


def test_balance__gives_workers_equal_shares_and_counts_threads():
    class Cluster:
        def nthreads(self) -> dict[str, int]:
            return {"small": 1, "large": 3}

    balance = _Balance(Cluster())
    given = [balance.choose(weight) for weight in (6, 5, 4, 3, 2, 2, 1, 1)]
    shares = {"small": 0, "large": 0}
    for name, weight in zip(given, (6, 5, 4, 3, 2, 2, 1, 1), strict=True):
        shares[str(name)] += weight
    assert shares == {"small": 6, "large": 18}
    balance.note_end("small", 6, Future())
    assert balance.choose(1) == "small"


@pytest.mark.cluster
def test_map_ordered__first_tasks_of_a_worker_go_out_together(on_client, monkeypatch):
    sent: list[list[str]] = []
    send = type(on_client).map

    def spy(client: Any, *args: Any, key: list[str], **options: Any) -> Any:
        sent.append([name.rsplit("-", 1)[1] for name in key])
        return send(client, *args, key=key, **options)

    monkeypatch.setattr(type(on_client), "map", spy)
    assert list(engine.map_ordered(abs, range(-300, 0), is_brief=True)) == list(range(300, 0, -1))
    assert [len(keys) for keys in sent[:2]] == [4, 4]
    assert [len(keys) for keys in sent[2:]] == [1] * (len(sent) - 2)
    assert sorted(int(key) for keys in sent for key in keys) == list(range(len(sent) + 6))
