"""Block maps: in process, on a client, over any chunking, dense and sparse."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import sparse

from distclust import engine, events
from distclust.engine import on_client as on_client_module
from distclust.engine import sessions
from distclust.engine.sealing import seal
from distclust.engine.shared_values import Shared
from distclust.errors import ClusterError, InputError
from distclust.store import ArrayMatrix, Matrix, SparseMatrix

N_ROWS = 1500  # six blocks, of which the last is not full
WIDE = 60


def matrix_of(X: Any, **options: Any) -> Matrix:
    """Return a matrix with blocks small enough for tests."""
    matrix = engine.as_matrix(X, **options)
    matrix.block_rows = 256
    return matrix


def weigh(block: Any, start: int, weights: np.ndarray) -> np.ndarray:
    """Return sums whose last bits depend on shapes and order."""
    positions = np.arange(start, start + block.shape[0])
    return np.append(block @ weights, [np.sin(positions).sum()])


def first_row(block: Any, start: int) -> int:
    return start


def column_sums(block: Any, start: int) -> np.ndarray:
    return np.asarray(block.sum(axis=0))


def sum_but_die_once(block: Any, start: int, trace: Path) -> np.ndarray:
    """Kill the worker that comes to the third block, the first time one does."""
    if start == 512 and not trace.exists():
        trace.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return np.asarray(block.sum(axis=0))


def outlive(item: int, deaths: Path, n_deaths: int) -> int:
    """Kill `n_deaths` workers one after another; the next one gets the answer."""
    died = len(list(deaths.iterdir()))
    if item == 1 and died < n_deaths:
        (deaths / str(died)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item


class Opened:
    """Leaves a trace every time it is unpickled: the process that did."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return open_and_tell, (self.trace,)


def open_and_tell(trace: Path) -> Opened:
    time.sleep(0.02)  # long enough for others to come in between
    with trace.open("a") as file:
        file.write(f"{os.getpid()}\n")
    return Opened(trace)


def use_opened(block: Any, start: int, opened: Opened) -> int:
    return os.getpid()


def use_opened_for(item: int, opened: Any) -> int:
    time.sleep(0.01)
    return os.getpid()


def report(block: Any, start: int) -> int:
    events.emit("inside", start, job="j", process=os.getpid())
    return os.getpid()


def fail_on(item: int, bad: int) -> int:
    if item == bad:
        raise InputError("item", "a good one", item, "Leave it out.")
    return item


def time_out(item: int) -> None:
    raise TimeoutError("of its own")


def where_am_i() -> tuple[int, int]:
    return os.getpid(), engine.local_threads()


def nested_threads(block: Any, start: int) -> tuple[int, bool]:
    return engine.local_threads(), engine.current_client() is None


def end_process(item: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def describe(matrix: Matrix, *, factor: float) -> tuple[str, float]:
    return type(matrix).__name__, float(matrix.read_all().sum()) * factor


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N_ROWS, WIDE)).round(3)


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    return np.random.default_rng(1).normal(size=WIDE)


def weighed(X: Any, weights: np.ndarray) -> list[bytes]:
    return [part.tobytes() for part in engine.map_blocks(weigh, matrix_of(X), weights)]


CHUNKINGS = [N_ROWS, 700, 256, 100, (1, 0, 1399, 100)]


@pytest.mark.parametrize("rows", CHUNKINGS)
@pytest.mark.parametrize("columns", [WIDE, 25])
def test_map_blocks__any_chunking_equals_one_array(values, weights, rows, columns):
    expected = weighed(values, weights)
    assert len(expected) == 6
    assert weighed(da.from_array(values, chunks=(rows, columns)), weights) == expected


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_map_blocks__any_number_of_threads_gives_the_same_bits(values, weights, threads):
    with engine.connect("threads", threads=threads):
        assert engine.local_threads() == threads
        assert weighed(values, weights) == weighed(values.copy(order="F"), weights)


@pytest.mark.cluster
def test_map_blocks__client_equals_in_process(values, weights, local_client):
    expected = weighed(values, weights)
    with local_client.as_current():
        assert weighed(values, weights) == expected
        for rows in (N_ROWS, 700, 100):
            assert weighed(da.from_array(values, chunks=(rows, 40)), weights) == expected


@pytest.mark.cluster
def test_map_blocks__persisted_array_is_read_where_it_lies(values, weights, on_client):
    array = on_client.persist(da.from_array(values, chunks=(400, WIDE)))
    assert weighed(array, weights) == weighed(values, weights)
    np.testing.assert_array_equal(matrix_of(array).block(1), values[256:512])


SPARSE_KINDS = [
    scipy.sparse.csr_matrix,
    scipy.sparse.csr_array,
    scipy.sparse.coo_array,
    sparse.COO.from_numpy,
    sparse.GCXS.from_numpy,
]


@pytest.fixture(scope="module")
def mostly_zeros() -> np.ndarray:
    rng = np.random.default_rng(2)
    return rng.poisson(0.05, size=(40_000, 7))


@pytest.mark.parametrize("convert", SPARSE_KINDS)
def test_map_blocks__sparse_equals_dense(mostly_zeros, convert):
    matrix = engine.as_matrix(convert(mostly_zeros))
    assert matrix.is_sparse
    assert matrix.n_blocks == 3
    total = engine.reduce_blocks(column_sums, matrix)
    np.testing.assert_array_equal(total, mostly_zeros.sum(axis=0))


@pytest.mark.parametrize("convert", SPARSE_KINDS)
@pytest.mark.parametrize("rows", [40_000, 17_000, 3_000])
def test_map_blocks__sparse_chunks_equal_one_csr(mostly_zeros, convert, rows):
    array = da.from_array(mostly_zeros, chunks=(rows, 7)).map_blocks(convert)
    matrix = engine.as_matrix(array)
    assert matrix.is_sparse
    whole = SparseMatrix(scipy.sparse.csr_array(mostly_zeros))
    for index in range(whole.n_blocks):
        expected, actual = whole.block(index), matrix.block(index)
        np.testing.assert_array_equal(actual.data, expected.data)
        np.testing.assert_array_equal(actual.indices, expected.indices)
        np.testing.assert_array_equal(actual.indptr, expected.indptr)
    assert (matrix.read_all() != whole.read_all()).nnz == 0


@pytest.mark.cluster
def test_map_blocks__sparse_chunks_on_client_equal_in_process(mostly_zeros, on_client):
    array = da.from_array(mostly_zeros, chunks=(9_000, 4)).map_blocks(scipy.sparse.csr_array)
    total = engine.reduce_blocks(column_sums, engine.as_matrix(array))
    np.testing.assert_array_equal(total, mostly_zeros.sum(axis=0))


def test_map_blocks__values_come_in_block_order(values):
    starts = list(engine.map_blocks(first_row, matrix_of(values)))
    assert starts == [0, 256, 512, 768, 1024, 1280]


def test_map_blocks__starts_nothing_until_asked_and_stops_when_left():
    computed = []
    lazy = da.from_array(np.zeros((2560, WIDE)), chunks=(256, WIDE)).map_blocks(
        lambda block: computed.append(1) or block, meta=np.empty((0, 0))
    )
    with engine.connect("threads", threads=2):
        results = engine.map_blocks(first_row, matrix_of(lazy))
        assert computed == []
        next(results)
        results.close()
    assert 0 < len(computed) <= 6  # at most 4 in flight beside the one taken, not 10


def test_map_blocks__one_block_runs_in_the_calling_thread():
    small = ArrayMatrix(np.ones((10, 3)))
    assert list(engine.map_blocks(report, small)) == [os.getpid()]
    threads = threading.active_count()
    with engine.connect("threads", threads=3):
        assert list(engine.map_blocks(nested_threads, small)) == [(3, True)]
    assert threading.active_count() == threads


def test_map_blocks__several_blocks_get_one_thread_each(values):
    with engine.connect("threads", threads=3):
        granted = set(engine.map_blocks(nested_threads, matrix_of(values)))
    assert granted == {(1, True)}


def test_map_blocks__reports_its_stage(values):
    seen: list[events.Event] = []
    with events.listen(seen.append):
        list(engine.map_blocks(first_row, matrix_of(values), stage="look"))
    assert (seen[0].stage, seen[0].done, seen[0].total) == ("look", 0, 6)
    assert (seen[-1].done, seen[-1].total) == (6, 6)


def test_map_ordered__yields_in_order_and_raises_what_the_function_raised():
    assert list(engine.map_ordered(fail_on, range(20), -1)) == list(range(20))
    results = engine.map_ordered(fail_on, range(20), 7)
    assert [next(results) for _ in range(7)] == list(range(7))
    with pytest.raises(InputError, match="a good one"):
        next(results)


@pytest.mark.cluster
def test_map_ordered__errors_come_back_whole_from_a_worker(on_client):
    assert list(engine.map_ordered(fail_on, range(20), -1)) == list(range(20))
    with pytest.raises(InputError, match="a good one") as caught:
        list(engine.map_ordered(fail_on, range(20), 7))
    assert caught.value.got == 7


@pytest.mark.cluster
def test_run__a_timeout_of_the_function_is_its_own_error(on_client):
    with pytest.raises(TimeoutError, match="of its own"):
        engine.run(time_out, 0)


def test_map_ordered__takes_from_a_stream_only_what_is_soon_needed():
    taken = []
    stream = (taken.append(i) or i for i in range(1000))
    results = engine.map_ordered(fail_on, stream, -1)
    assert [next(results) for _ in range(10)] == list(range(10))
    assert len(taken) <= 11 + 2 * engine.local_threads()


def test_map_ordered__nothing_to_do():
    assert list(engine.map_ordered(fail_on, [], 0)) == []


def test_map_blocks__refuses_functions_that_cannot_travel(values):
    with pytest.raises(AssertionError, match="module-level"):
        list(engine.map_blocks(lambda block, start: 0, matrix_of(values)))


@pytest.mark.cluster
def test_run__uses_one_worker_and_its_threads(local_client):
    assert engine.run(where_am_i) == (os.getpid(), engine.local_threads())
    with local_client.as_current():
        process, threads = engine.run(where_am_i)
    assert process != os.getpid()
    assert threads == 1


@pytest.mark.cluster
def test_run__dask_matrix_arrives_in_memory(values, local_client):
    array = da.from_array(values, chunks=(400, 30))
    expected = describe(ArrayMatrix(values), factor=2.0)
    with local_client.as_current():
        assert engine.run(describe, matrix_of(values), factor=2.0) == expected
        assert engine.run(describe, engine.as_matrix(array), factor=2.0) == expected


@pytest.mark.cluster
def test_map_blocks__shared_values_are_opened_once_by_a_worker(values, on_client, tmp_path):
    for kind, X in {"array": values, "dask": da.from_array(values, chunks=(100, WIDE))}.items():
        trace = tmp_path / kind
        for _ in range(2):  # every map opens its own: values of an older one are gone
            trace.write_text("")
            processes = list(engine.map_blocks(use_opened, matrix_of(X), Opened(trace)))
            opened = [int(line) for line in trace.read_text().split()]
            assert sorted(opened) == sorted(set(processes))


def test_shared__is_opened_once_by_several_threads(tmp_path):
    trace = tmp_path / "trace"
    shared = Shared(seal(Opened(trace), 3))
    opened = engine.thread_map(lambda _: shared.open(), range(8), 8)
    assert len(trace.read_text().split()) == 1
    assert all(values is opened[0] for values in opened)
    assert pickle.loads(pickle.dumps(shared)).open()[1] == 3  # travels, locked and opened or not


@pytest.fixture(params=[0, 2**22], ids=["large", "small"])
def shared_as(request, monkeypatch):
    """What batches of tasks share counts as large, and is held by a task; or as small."""
    monkeypatch.setattr(on_client_module, "_SMALL_BYTES", request.param)


@pytest.mark.cluster
def test_map_ordered__shared_values_of_batches_are_opened_once_by_a_worker(
    on_client, shared_as, tmp_path
):
    trace = tmp_path / "trace"
    for _ in range(2):
        trace.write_text("")
        used = list(engine.map_ordered(use_opened_for, range(60), Opened(trace), is_brief=True))
        opened = [int(line) for line in trace.read_text().split()]
        assert sorted(opened) == sorted(set(used))
        assert os.getpid() not in used


@pytest.mark.cluster
def test_map_ordered__workers_let_go_of_what_batches_share(on_client, shared_as):
    list(engine.map_ordered(use_opened_for, range(60), Travelling(), is_brief=True))
    assert_let_go(on_client)


class Watched:
    """Something large, in a test that asks whether it is still there."""


watched: weakref.WeakSet[Watched] = weakref.WeakSet()


def make_watched() -> Watched:
    made = Watched()
    watched.add(made)
    return made


class Travelling:
    """Arrives as something watched."""

    def __reduce__(self) -> tuple[Any, ...]:
        return make_watched, ()


def look_at(block: Any, start: int, large: Watched) -> bool:
    return large in watched


def count_watched() -> int:
    gc.collect()
    return len(watched)


@pytest.mark.cluster
def test_map_blocks__workers_let_go_of_shared_values_after_the_map(values, on_client):
    assert all(engine.map_blocks(look_at, matrix_of(values), Travelling()))
    assert_let_go(on_client)


def assert_let_go(client: Any) -> None:
    deadline = time.monotonic() + 20
    while sum(client.run(count_watched).values()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(client.run(count_watched).values()) == {0}


@pytest.mark.cluster
def test_map_blocks__events_from_workers_reach_the_listener(values, on_client):
    seen: list[events.Event] = []
    with events.listen(seen.append):
        processes = list(engine.map_blocks(report, matrix_of(values)))
    assert os.getpid() not in processes
    assert sorted(event.done for event in seen) == [0, 256, 512, 768, 1024, 1280]
    assert {event.metrics["process"] for event in seen} == set(processes)
    assert {(event.job, event.stage) for event in seen} == {("j", "inside")}


@pytest.mark.cluster
def test_map_blocks__a_broken_listener_of_worker_events_is_an_error(values, on_client):
    def broken(event: events.Event) -> None:
        raise RuntimeError("broken listener")

    with events.listen(broken), pytest.raises(RuntimeError, match="broken listener"):
        list(engine.map_blocks(report, matrix_of(values)))


def test_profile_matrix__names_the_place_of_an_infinity_in_a_dask_array():
    values = np.zeros((700, WIDE))
    values[600, 17] = -np.inf
    matrix = matrix_of(da.from_array(values, chunks=(500, WIDE)), where="BHC.fit(X)")
    with pytest.raises(InputError, match=r"BHC.fit\(X\).*inf in row 600, column 17"):
        engine.profile_matrix(matrix)


@pytest.mark.cluster
@pytest.mark.chaos
def test_map_blocks__killed_worker_changes_nothing(values, tmp_path):
    kinds = {"array": values, "dask": da.from_array(values, chunks=(400, WIDE))}
    expected = [part.sum(axis=0).tobytes() for part in matrix_of(values).blocks()]
    # A cluster of its own: other tests count on workers that are all there. Three, so that
    # one is left even if neither of the two killed has come back.
    with engine.connect("local", workers=3, threads=1):
        for kind, X in kinds.items():
            trace = tmp_path / kind
            results = engine.map_blocks(sum_but_die_once, matrix_of(X), trace)
            assert [part.tobytes() for part in results] == expected
            assert trace.exists()


@pytest.mark.cluster
@pytest.mark.chaos
def test_map_ordered__outlives_more_deaths_than_dask_allows(tmp_path):
    with engine.connect("local", workers=2, threads=1):
        results = engine.map_ordered(outlive, range(8), tmp_path, 5)
        assert list(results) == list(range(8))
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.cluster
@pytest.mark.chaos
def test_run__task_that_kills_its_workers_is_a_cluster_error(monkeypatch):
    monkeypatch.setattr(sessions, "ALLOWED_FAILURES", 0)
    with (
        engine.connect("local", workers=1, threads=1),
        pytest.raises(ClusterError, match="more memory"),
    ):
        engine.run(end_process, 0)
