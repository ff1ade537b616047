"""Pieces are parsed once, kept whole, checked when read, and cut into any ranges of rows."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse

from distclust import events
from distclust.engine import map_ordered
from distclust.errors import StoreError
from distclust.store.mapping import serial_map
from distclust.store.rows import ArrayRows, Rows
from distclust.store.sources.spool import Parsed, PiecedRows, Spool
from tests.sources import scratch_in

calls: list[Any] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(scratch_in(tmp_path))


def parse(item: int, factor: int) -> Parsed:
    calls.append(item)
    if item < 0:
        raise ValueError("a bad piece")
    return Parsed(item, {"values": np.full((item, 2), factor * item)}, {"item": item})


def parse_parts(items: list[int], factor: int) -> Iterator[Callable[[], Parsed]]:
    for item in items:
        yield partial(parse, item, factor)


@pytest.mark.parametrize("mapper", [serial_map, map_ordered])
def test_fill__parses_every_item_once(spool: Spool, mapper: Any) -> None:
    for _ in range(2):
        pieces = list(spool.fill(parse, [3, 0, 5], 10, mapper=mapper, stage="reading"))
        assert [piece.n_rows for piece in pieces] == [3, 0, 5]
        assert [piece.survey for piece in pieces] == [{"item": 3}, {"item": 0}, {"item": 5}]
        np.testing.assert_array_equal(spool.arrays(pieces[2])["values"], np.full((5, 2), 50))
    assert sorted(calls) == [0, 3, 5]


def test_fill__goes_on_where_it_stopped(spool: Spool) -> None:
    with pytest.raises(ValueError, match="a bad piece"):
        list(spool.fill(parse, [1, 2, -1, 4], 1, mapper=serial_map))
    list(spool.fill(parse, [1, 2, 3, 4], 1, mapper=serial_map))
    assert calls == [1, 2, -1, 3, 4]


def test_fill__goes_on_within_an_item_of_several_pieces(spool: Spool) -> None:
    with pytest.raises(ValueError, match="a bad piece"):
        list(spool.fill(parse_parts, [[1, 2], [3, 4, -1, 6]], 1, mapper=serial_map))
    pieces = list(spool.fill(parse_parts, [[1, 2], [3, 4, 5, 6]], 1, mapper=serial_map))
    assert [(piece.number, piece.part) for piece in pieces] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (1, 3),
    ]  # fmt: skip
    assert [piece.is_last for piece in pieces] == [False, True, False, False, False, True]
    assert [piece.n_rows for piece in pieces] == [1, 2, 3, 4, 5, 6]
    # 4 waited to see whether it was the last one.
    assert calls == [1, 2, 3, 4, -1, 5, 6]


def test_fill__tells_the_pieces_of_a_single_item(spool: Spool) -> None:
    told: list[Any] = []
    with events.listen(lambda event: told.append((event.stage, event.done, event.total))):
        list(spool.fill(parse_parts, [[1, 2, 3]], 1, mapper=serial_map, stage="reading"))
    assert told[0] == ("reading", 0, 1)
    assert told[-2:] == [("reading pieces", 3, None), ("reading", 1, 1)]
    with events.listen(lambda event: told.append(event.stage)):
        list(spool.fill(parse_parts, [[4], [5]], 1, mapper=serial_map, stage="again"))
        list(spool.fill(parse_parts, [[6]], 1, mapper=serial_map))
    assert "again pieces" not in told


def test_fill__a_generator_that_fails_leaves_its_item_open(spool: Spool) -> None:
    def failing(item: int) -> Iterator[Callable[[], Parsed]]:
        yield partial(parse, 1, 1)
        yield partial(parse, 2, 1)
        raise ValueError("torn")

    with pytest.raises(ValueError, match="torn"):
        list(spool.fill(failing, [0], mapper=serial_map))
    assert spool.find(0, 0) is not None
    assert spool.pieces_of(0) is None


@hypothesis.given(
    st.dictionaries(
        st.text("abc.", min_size=1, max_size=5),
        st.tuples(
            st.sampled_from(["u1", "i4", "f8", "f4", "?", "U3"]),
            st.lists(st.integers(0, 4), min_size=1, max_size=3),
        ),
        max_size=4,
    ),
    st.integers(0, 5) | st.just(100_000),
)
def test_arrays__come_back_as_they_were(
    tmp_path_factory: Any, kinds: dict[str, Any], size: int
) -> None:
    spool = Spool(scratch_in(f"memory://{tmp_path_factory.mktemp('spool').name}"))
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.integers(0, 100, shape).astype(dtype) for name, (dtype, shape) in kinds.items()
    }
    survey = {"long": "x" * size}
    written = spool.write(7, Parsed(3, arrays, survey))
    found = spool.find(7)
    assert found == written
    assert found.survey == survey
    loaded = spool.arrays(found)
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        np.testing.assert_array_equal(spool.array(found, name), array)
        assert loaded[name].dtype == array.dtype
        assert loaded[name].size == 0 or loaded[name].ctypes.data % 64 == 0


def test_arrays__that_do_not_lie_together_are_written_in_order(spool: Spool) -> None:
    values = np.arange(12).reshape(3, 4).T
    piece = spool.write(0, Parsed(4, {"values": values[::2]}))
    np.testing.assert_array_equal(spool.arrays(piece)["values"], values[::2])


@pytest.mark.parametrize("place", [30, -1])
def test_arrays__damage_is_noticed(tmp_path: Path, spool: Spool, place: int) -> None:
    piece = spool.write(0, Parsed(100, {"values": np.arange(800.0)}, {"told": "x"}))
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="piece 0 of an unfinished ingest"):
        spool.arrays(spool.find(0) or piece)
    path.write_bytes(content[:200])
    with pytest.raises(StoreError, match="--fresh"):
        spool.array(piece, "values")


# ---- ranges of rows -------------------------------------------------------------------------


class Load:
    """Reads pieces of an array; counts how often."""

    def __init__(self, rows: ArrayRows, counts: list[int]) -> None:
        self.rows, self.starts = rows, np.cumsum([0, *counts]).tolist()

    def __call__(self, number: int) -> Rows:
        calls.append(number)
        return self.rows.read(self.starts[number], self.starts[number + 1])


def pieced(counts: list[int], is_sparse: bool = False) -> tuple[PiecedRows, Any]:
    n_rows = sum(counts)
    values = np.arange(n_rows * 3).reshape(n_rows, 3) % 4 * 1.5
    data = scipy.sparse.csr_array(values) if is_sparse else values
    obs = {"name": np.array([f"r{i}" for i in range(n_rows)], object)}
    rows = ArrayRows(data, np.arange(n_rows) * 10, obs)
    return PiecedRows(counts, 3, is_sparse, values.dtype, Load(rows, counts)), values


@hypothesis.given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.booleans(), st.data())
def test_pieced_rows__any_range_is_that_range(
    counts: list[int], is_sparse: bool, data: st.DataObject
) -> None:
    rows, values = pieced(counts, is_sparse)
    rows = pickle.loads(pickle.dumps(rows))
    start = data.draw(st.integers(0, sum(counts)))
    stop = data.draw(st.integers(start, sum(counts)))
    found = rows.read(start, stop)
    dense = found.values.toarray() if is_sparse else found.values
    np.testing.assert_array_equal(dense, values[start:stop])
    np.testing.assert_array_equal(found.ids, np.arange(start, stop) * 10)
    assert found.obs["name"].tolist() == [f"r{i}" for i in range(start, stop)]
    assert (rows.n_rows, rows.n_features, rows.is_sparse) == (sum(counts), 3, is_sparse)


def test_pieced_rows__read_forward_loads_every_piece_once() -> None:
    rows, values = pieced([5] * 8)
    parts = [rows.read(start, start + 4).values for start in range(0, 40, 4)]
    np.testing.assert_array_equal(np.concatenate(parts), values)
    assert calls == list(range(8))


def test_pieced_rows__may_be_read_by_many_threads() -> None:
    rows, values = pieced([5] * 8)
    found: dict[int, Any] = {}

    def read(start: int) -> None:
        found[start] = rows.read(start, start + 8).values

    threads = [threading.Thread(target=read, args=(start,)) for start in range(0, 40, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(np.concatenate([found[start] for start in sorted(found)]), values)
