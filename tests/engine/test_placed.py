"""Maps over numbers that stay with their worker, and arrays over blocks that wait."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
import scipy.sparse

import distclust
from distclust import engine
from distclust.engine.on_client import _affinity, map_groups
from distclust.store import ArrayMatrix, Matrix, SparseMatrix

NUMBERS = range(40)


def see(numbers: Sequence[int], *shared: Any) -> tuple[int, list[int], tuple[Any, ...]]:
    return os.getpid(), list(numbers), shared


def fail_at_seven(numbers: Sequence[int]) -> int:
    if 7 in numbers:
        raise ValueError("seven")
    return len(numbers)


def die_once(numbers: Sequence[int], trace: Path) -> list[int]:
    """Kill the worker that has number 3, the first time."""
    if 3 in numbers and not trace.exists():
        trace.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return list(numbers)


# ---- numbers -------------------------------------------------------------------------------------


def test_map_placed__is_one_call_in_process():
    seen = list(engine.map_placed(see, NUMBERS, "a", 2))
    assert seen == [(os.getpid(), list(NUMBERS), ("a", 2))]


def test_map_placed__refuses_what_a_worker_could_not_import():
    with pytest.raises(AssertionError, match="only module-level functions"):
        list(engine.map_placed(lambda numbers: numbers, NUMBERS))


@pytest.mark.cluster
def test_map_placed__every_number_goes_to_one_worker_and_to_the_same_again(on_client):
    first = list(engine.map_placed(see, NUMBERS, {"b": 3}))
    assert len(first) == 2
    assert os.getpid() not in [pid for pid, _, _ in first]
    assert sorted(number for _, numbers, _ in first for number in numbers) == list(NUMBERS)
    assert all(numbers == sorted(numbers) for _, numbers, _ in first)
    assert all(shared == ({"b": 3},) for _, _, shared in first)
    owner = {number: pid for pid, numbers, _ in first for number in numbers}
    for asked in (NUMBERS, [5, 3, 39], [17]):
        for pid, numbers, _ in engine.map_placed(see, asked):
            assert {owner[number] for number in numbers} == {pid}
            assert numbers == [number for number in asked if owner[number] == pid]
    assert list(engine.map_placed(see, [])) == []


@pytest.mark.cluster
def test_map_placed__an_error_comes_back(on_client):
    with pytest.raises(ValueError, match="seven"):
        list(engine.map_placed(fail_at_seven, NUMBERS))
    assert sum(engine.map_placed(fail_at_seven, range(7))) == 7


@pytest.mark.cluster
def test_map_placed__what_is_not_asked_for_is_not_waited_for(on_client):
    groups = engine.map_placed(see, NUMBERS)
    next(groups)
    groups.close()
    assert len(list(engine.map_placed(see, NUMBERS))) == 2


@pytest.mark.cluster
@pytest.mark.chaos
@pytest.mark.parametrize("n_workers", [1, 2])
def test_map_placed__a_worker_that_dies_has_its_numbers_done_by_others(
    n_workers, tmp_path, monkeypatch
):
    # By one that comes, if there was no other: Dask alone would wait for the dead one's address.
    monkeypatch.setattr("distclust.engine.fetching._QUIET_POLL_SECONDS", 0.5)
    with engine.connect("local", workers=n_workers, threads=1):
        done = list(engine.map_placed(die_once, NUMBERS, tmp_path / "trace"))
        assert (tmp_path / "trace").exists()
    assert sorted(number for numbers in done for number in numbers) == list(NUMBERS)


def test_affinity__moves_only_the_share_of_a_worker_that_comes_or_goes():
    names = [f"tcp://127.0.0.1:{port}" for port in range(5)]

    def owners(workers: list[str]) -> list[str]:
        return [max(workers, key=lambda w: _affinity(w, number)) for number in range(2000)]

    all_five = owners(names)
    four = owners(names[:4])
    for before, after in zip(all_five, four, strict=True):
        assert before == after or before == names[4]
    shares = np.array([all_five.count(name) for name in names])
    assert shares.min() > 300  # of 400 each


@pytest.mark.cluster
def test_map_groups__without_workers_waits_for_one(local_client, monkeypatch):
    # All numbers are one group then, which Dask gives to the first worker that comes.
    monkeypatch.setattr("distclust.engine.on_client.list_threads", lambda client: [])
    (seen,) = map_groups(local_client, see, NUMBERS, (), "see")
    assert seen[1] == list(NUMBERS)


# ---- arrays --------------------------------------------------------------------------------------


def sum_rows(block: Any, start: int, factor: float, shift: np.ndarray) -> np.ndarray:
    weights = np.arange(block.shape[1])
    return np.asarray(start + factor * (block @ weights) + shift[0], np.float64)


calls: list[int] = []
lock = threading.Lock()


def count_calls(block: Any, start: int) -> np.ndarray:
    with lock:
        calls.append(start)
    return np.zeros(block.shape[0])


BLOCK_ROWS, N_ROWS = 50, 430
MANY_FEATURES = 100_000  # sparse blocks of 4,096 rows


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Matrix:
    """A store of three blocks that lost some rows."""
    rng = np.random.default_rng(1)
    n_rows = 2 * 4096 + 100
    ones = (np.ones(n_rows, bool), (np.arange(n_rows), rng.integers(MANY_FEATURES, size=n_rows)))
    rows = scipy.sparse.csr_array(ones, shape=(n_rows, MANY_FEATURES))
    store = distclust.ingest(iter([rows]), tmp_path_factory.mktemp("stored") / "X.zarr")
    return store.delete(store.matrix().row_ids[[0, 70, 5000]].tolist()).matrix()


@pytest.fixture(params=["array", "sparse", "dask", "dask_sparse", "stored"])
def matrix(request) -> Matrix:
    if request.param == "stored":
        return request.getfixturevalue("stored")
    values = np.random.default_rng(0).poisson(0.5, (N_ROWS, 6))
    chunked = da.from_array(values, chunks=(73, 4))
    made = {
        "array": lambda: ArrayMatrix(values),
        "sparse": lambda: SparseMatrix(scipy.sparse.csr_array(values)),
        "dask": lambda: engine.as_matrix(chunked),
        "dask_sparse": lambda: engine.as_matrix(chunked.map_blocks(scipy.sparse.coo_array)),
    }
    matrix = made[request.param]()
    matrix.block_rows = BLOCK_ROWS
    return matrix


def check_array(matrix: Matrix) -> None:
    shift = np.array([0.25])
    found = engine.block_array(sum_rows, matrix, 0.5, shift)
    bounds = [matrix.block_bounds(i) for i in range(matrix.n_blocks)]
    assert found.chunks == (tuple(stop - start for start, stop in bounds),)
    assert (found.shape, found.dtype) == ((matrix.shape[0],), np.float64)
    blocks = [sum_rows(matrix.block(i), start, 0.5, shift) for i, (start, _) in enumerate(bounds)]
    wanted = np.concatenate(blocks)
    np.testing.assert_array_equal(found.compute(), wanted)
    np.testing.assert_array_equal(found[60:170].compute(), wanted[60:170])
    assert float(found.sum().compute()) == pytest.approx(wanted.sum())


def test_block_array__equals_the_blocks(matrix):
    check_array(matrix)
    with dask.config.set(scheduler="synchronous"):
        check_array(matrix)


@pytest.mark.cluster
def test_block_array__equals_the_blocks_on_a_client(matrix, on_client):
    check_array(matrix)


def test_block_array__calls_nothing_before_it_is_computed(matrix):
    calls.clear()
    found = engine.block_array(count_calls, matrix)
    assert calls == []
    with dask.config.set(scheduler="synchronous"):
        found[:10].compute()
        assert calls == [0]
        found.compute()
    assert sorted(calls[1:]) == [matrix.block_bounds(i)[0] for i in range(matrix.n_blocks)]


class Unseen(ArrayMatrix):
    """Travels by name, and can be opened by workers alone."""

    travels_by_name = True

    def __reduce__(self) -> Any:
        return open_on_worker, (self._values,)


def open_on_worker(values: np.ndarray) -> Matrix:
    distributed.get_worker()  # raises anywhere else
    return ArrayMatrix(values)


@pytest.mark.cluster
def test_block_array__is_not_opened_by_the_scheduler(on_client):
    matrix = Unseen(np.arange(12).reshape(6, 2))
    found = engine.block_array(sum_rows, matrix, 1.0, np.zeros(1))
    assert found.compute().tolist() == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
