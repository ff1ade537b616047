"""Stored rows as a matrix: blocks by stored position, live rows only, in any process."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings

from distclust.engine import map_ordered
from distclust.engine.blocks import map_blocks
from distclust.errors import StoreError
from distclust.seeding import row_keys
from distclust.store import generation as generation_module
from distclust.store.ids import StoredIds
from distclust.store.matrix import Column, Matrix, profile_block
from distclust.store.matrix_store import MatrixStore, create_store, open_store
from distclust.store.row_views import KeptRows, RecodedRows, begins, join_values, keep_values
from distclust.store.rows import ArrayRows
from tests.corpora import (
    LAYOUTS,
    N_FEATURES,
    blocks_of,
    content_of,
    prepared,
    rows_of,
    text_ids,
    values_of,
)

IDS = text_ids(0, 10)
MORE = text_ids(10, 17)


@pytest.fixture(autouse=True)
def _small_blocks() -> Any:
    with blocks_of(4):
        yield


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "corpus.zarr")


def dense(block: Any) -> Any:
    return block if isinstance(block, np.ndarray) else block.toarray()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks__hold_the_live_rows_of_their_stored_positions(place, layout):
    store = create_store(place, prepared(IDS, layout), layout=layout)
    store = store.append(prepared(MORE, layout)).delete([IDS[1], *IDS[4:8], MORE[6]])
    matrix = store.matrix()
    stored = [*IDS, *MORE]
    # Positions 4 to 7 have no live row, so their block is left out of the numbering.
    wanted = [[0, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert (matrix.n_blocks, matrix.block_rows, matrix.shape) == (3, 4, (11, N_FEATURES))
    first = 0
    for i, positions in enumerate(wanted):
        ids = [stored[position] for position in positions]
        assert matrix.block_bounds(i) == (first, first + len(ids))
        assert matrix.block_ids(i).tolist() == ids
        np.testing.assert_array_equal(matrix.block_keys(i), row_keys(np.array(ids, object)))
        np.testing.assert_array_equal(dense(matrix.block(i)), values_of(ids))
        first += len(ids)
    for index in (-1, 3):
        for ask in (matrix.block, matrix.block_bounds, matrix.block_ids, matrix.block_keys):
            with pytest.raises(IndexError, match="of a matrix with 3 blocks"):
                ask(index)
    assert matrix.row_ids.tolist() == [stored[position] for part in wanted for position in part]
    np.testing.assert_array_equal(dense(matrix.read_all()), values_of(matrix.row_ids.tolist()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks__are_of_the_kind_that_estimators_want(place, layout):
    store = create_store(place, prepared(IDS, layout), layout=layout)
    store = store.append(prepared(MORE, layout)).delete([IDS[1]])
    matrix = store.matrix()
    assert matrix.is_sparse == (layout != "dense")
    for block in [*matrix.blocks(), matrix.read_all()]:
        assert block.dtype == matrix.dtype
        if layout == "dense":
            assert block.flags.c_contiguous
            assert block.flags.aligned
        else:
            parts = (block.data, block.indices, block.indptr)
            assert scipy.sparse.csr_array(parts, shape=block.shape).has_canonical_format
            assert np.count_nonzero(block.data) == block.nnz


def test_dtype__is_what_all_segments_fit_into(place):
    small, large = np.array([[1, 2]], np.int8), np.array([[300, 4]], np.int16)
    store = create_store(place, prepared(["a"], values=small))
    assert store.matrix().dtype == np.int8
    store = store.append(prepared(["b"], values=large))
    assert store.matrix().dtype == np.int16
    np.testing.assert_array_equal(store.matrix().block(0), [[1, 2], [300, 4]])
    store = store.append(prepared(["c"], values=np.array([[0.5, np.nan]], np.float32)))
    assert store.matrix().dtype == np.float64
    np.testing.assert_array_equal(store.matrix().block(0), [[1, 2], [300, 4], [0.5, np.nan]])
    assert open_store(place, 1).matrix().dtype == np.int8


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    deleted=st.sets(st.integers(0, 30)),
    layout=st.sampled_from(LAYOUTS),
)
@settings(max_examples=30)
def test_blocks__of_any_segments_and_deletions_equal_plain_slicing(sizes, deleted, layout):
    url = f"memory://{np.random.default_rng().integers(2**63)}"
    ids = list(range(sum(sizes)))
    values = values_of(ids)
    ends = np.cumsum(sizes)
    store: MatrixStore | None = None
    with blocks_of(4):
        for start, end in zip(ends - sizes, ends, strict=True):
            part = prepared(ids[start:end], layout)
            store = create_store(url, part, layout=layout) if store is None else store.append(part)
        gone = sorted(set(ids) & deleted)
        matrix = (store.delete(gone) if gone else store).matrix()
        live = [[i for i in ids[at : at + 4] if i not in deleted] for at in range(0, len(ids), 4)]
        live = [part for part in live if part]
        assert [matrix.block_ids(i).tolist() for i in range(matrix.n_blocks)] == live
        for i, part in enumerate(live):
            np.testing.assert_array_equal(dense(matrix.block(i)), values[part])


def test_pickle__sends_a_name_and_opens_the_same_generation(any_url):
    layout = "compact"
    store = create_store(any_url, prepared(IDS, layout), layout=layout)
    matrix = store.matrix()
    sent = pickle.dumps(matrix)
    assert len(sent) < 600
    assert matrix.travels_by_name
    store.append(prepared(MORE, layout))
    for _ in range(2):
        back = pickle.loads(sent)
        assert (back.shape, back.fingerprint) == (matrix.shape, matrix.fingerprint)
        np.testing.assert_array_equal(dense(back.read_all()), values_of(IDS))
        assert back.row_ids.tolist() == IDS
        assert back.columns == matrix.columns


def test_pickle__a_generation_that_was_replaced_is_refused(place):
    sent = pickle.dumps(create_store(place, prepared(IDS)).matrix())
    shutil.rmtree(place)
    create_store(place, prepared(IDS, salt=1))
    generation_module._open_once.cache_clear()
    with pytest.raises(StoreError, match="the generation 1 that was opened, got another one"):
        pickle.loads(sent)


def test_open_once__a_process_opens_a_generation_once(place, monkeypatch):
    sent = pickle.dumps(create_store(place, prepared(IDS)).matrix())
    opened = []
    original = generation_module.open_generation

    def reopen(objects: Any, number: int, digest: str) -> Any:
        opened.append(number)
        return original(objects, number)

    monkeypatch.setattr(generation_module, "reopen", reopen)
    generation_module._open_once.cache_clear()
    for _ in range(3):
        pickle.loads(sent)
    assert opened == [1]
    generation_module._open_once.cache_clear()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_threads__may_read_one_matrix_together(place, layout):
    store = create_store(place, prepared(IDS, layout), layout=layout)
    store = store.append(prepared(MORE, layout)).delete(IDS[2:4])
    matrix = store.matrix()
    wanted = {i: dense(matrix.block(i)) for i in range(matrix.n_blocks)}

    def read(number: int) -> bool:
        i = number % matrix.n_blocks
        return bool((dense(matrix.block(i)) == wanted[i]).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(200)))


def count_rows(block: Any, start: int) -> tuple[int, float]:
    return start, float(block.sum())


@pytest.mark.cluster
def test_cluster__blocks_are_read_where_they_are_worked_on(place, on_client):
    with blocks_of(65_536, 2**16):  # workers know nothing of small blocks
        store = create_store(place, prepared(IDS))
        store = store.append(prepared(MORE), mapper=map_ordered).delete(IDS[:3], mapper=map_ordered)
        here = [count_rows(block, 0) for block in store.matrix().blocks()]
        assert list(map_blocks(count_rows, store.matrix())) == here
        compacted = store.compact(mapper=map_ordered)
        assert content_of(compacted) == rows_of([*IDS[3:], *MORE])
        assert compacted.verify(map_ordered) == []


# ---- rows on their way ---------------------------------------------------------------------------


@given(
    n_rows=st.integers(1, 12),
    dropped=st.sets(st.integers(0, 11)),
    is_sparse=st.booleans(),
    data=st.data(),
)
def test_kept_rows__are_the_others_in_their_order(n_rows, dropped, is_sparse, data):
    ids = list(range(n_rows))
    gone = np.array(sorted(dropped & set(ids)), np.int64)
    source = prepared(ids, "csr" if is_sparse else "dense").rows
    kept = KeptRows(source, gone)
    left = [i for i in ids if i not in dropped]
    assert kept.n_rows == len(left)
    start = data.draw(st.integers(0, len(left)))
    stop = data.draw(st.integers(start, len(left)))
    read = kept.read(start, stop)
    assert read.ids.tolist() == left[start:stop]
    np.testing.assert_array_equal(dense(read.values), values_of(left[start:stop]))
    assert len(read.obs["note"]) == stop - start


def test_kept_rows__never_read_more_at_a_time_than_was_asked_for():
    class Watched(ArrayRows):
        largest = 0

        def read(self, start: int, stop: int) -> Any:
            Watched.largest = max(Watched.largest, stop - start)
            return super().read(start, stop)

    rows = Watched(np.arange(2000.0).reshape(1000, 2))
    kept = KeptRows(rows, np.array([i for i in range(1000) if i % 100]))
    assert kept.read(2, 6).ids.tolist() == [200, 300, 400, 500]
    assert Watched.largest == 4


def test_recoded_rows__missing_values_stay_missing():
    rows = ArrayRows(np.array([[0.0, 5], [1, 5], [np.nan, 5]]))
    recoded = RecodedRows(rows, {0: np.array([7, 3])})
    np.testing.assert_array_equal(recoded.read(0, 3).values, [[7, 5], [3, 5], [np.nan, 5]])
    np.testing.assert_array_equal(rows.read(0, 1).values, [[0, 5]])


@pytest.mark.parametrize("layout", ["dense", "csr"])
def test_join_and_keep__are_inverse(layout):
    values: Any = prepared(list(range(7)), layout).rows.read(0, 7).values
    is_kept = np.array([True, False, True, True, False, False, True])
    kept = keep_values(values, is_kept)
    np.testing.assert_array_equal(dense(kept), values_of(range(7))[is_kept])
    joined = join_values([kept, keep_values(values, ~is_kept)], np.dtype(np.float64))
    order = np.concatenate([np.flatnonzero(is_kept), np.flatnonzero(~is_kept)])
    np.testing.assert_array_equal(dense(joined), values_of(range(7))[order])


def test_stored_ids__take_reads_any_ascending_positions(place):
    store = create_store(place, prepared(IDS)).append(prepared(MORE)).delete(IDS[:2])
    ids = StoredIds(store._generation.readers, store._generation.tombstones)
    stored = [*IDS, *MORE]
    for positions in ([], [0], [3, 4, 9, 10, 16], list(range(17))):
        found = ids.take(np.array(positions, np.int64)).tolist()
        assert found == [stored[i] for i in positions]
    positions, keys = ids.keys((0, 17))
    assert positions.tolist() == list(range(2, 17))
    np.testing.assert_array_equal(keys, row_keys(np.array(stored[2:], object)))


def test_matrix__is_a_matrix_to_estimators(place):
    store = create_store(place, prepared(IDS, columns=tuple(Column(f"f{i}") for i in range(6))))
    matrix = store.matrix()
    assert isinstance(matrix, Matrix)
    assert repr(matrix) == "StoredMatrix(10 x 6, dense float64, 3 blocks)"
    assert [column.name for column in matrix.columns] == [f"f{i}" for i in range(6)]


def test_begins__count_more_values_than_the_type_of_indices_can() -> None:
    few = begins(np.array([3, 0, 4], np.int32), np.dtype(np.int32))
    assert few.dtype == np.int32
    assert few.tolist() == [0, 3, 3, 7]
    many = begins(np.array([2**30, 2**30, 5], np.int32), np.dtype(np.int32))
    assert many.tolist() == [0, 2**30, 2**31, 2**31 + 5]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_known_profile__is_what_a_pass_would_find_and_nothing_if_rows_are_gone(place, layout):
    store = create_store(place, prepared(IDS, layout), layout=layout).append(prepared(MORE, layout))
    known = store.matrix().known_profile
    found = profile_block(values_of([*IDS, *MORE]))
    assert known is not None
    for name in found.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(known, name), getattr(found, name))
    assert store.delete([IDS[1]]).matrix().known_profile is None


# ---- for retrieval -------------------------------------------------------------------------------


def ones_of(compact: Any, n_features: int) -> np.ndarray:
    """Rows of a compact block, in plain loops over its panels."""
    rows = np.zeros((compact.n_rows, n_features))
    for p, (lengths, ids) in enumerate(zip(compact.lengths, compact.ids, strict=True)):
        at = 0
        for i, length in enumerate(lengths.tolist()):
            for rank in ids[at : at + length].tolist():
                rows[i, compact.order[65_535 * p + rank]] = 1
            at += length
    return rows


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compact_block__is_the_block_where_it_lies_whole(place, layout):
    store = create_store(place, prepared(IDS, layout), layout=layout)  # blocks of 4, 4 and 2
    store = store.append(prepared(MORE, layout)).delete([IDS[1]])
    matrix = store.matrix()
    # Row 1 is deleted; the third block and the fourth are cut across two segments.
    for i in range(matrix.n_blocks):
        compact = matrix.compact_block(i)
        assert (compact is not None) == (layout == "compact" and i == 1)
        if compact is not None:
            np.testing.assert_array_equal(ones_of(compact, N_FEATURES), dense(matrix.block(i)) != 0)


def test_compact_block__of_the_last_rows_that_fill_no_block(place):
    matrix = create_store(place, prepared(IDS, "compact"), layout="compact").matrix()
    found = matrix.compact_block(2)
    assert found.n_rows == 2
    np.testing.assert_array_equal(ones_of(found, N_FEATURES), dense(matrix.block(2)) != 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_block_signature__changes_with_the_rows_of_the_block_alone(place, tmp_path, layout):
    def signatures(store: MatrixStore) -> list[str]:
        matrix = store.matrix()
        return [matrix.block_signature(i) for i in range(matrix.n_blocks)]

    store = create_store(place, prepared(IDS, layout), layout=layout)
    first = signatures(store)
    assert len(set(first)) == 3
    assert signatures(open_store(place)) == first
    copied = create_store(str(tmp_path / "copy"), prepared(IDS, layout), layout=layout)
    assert signatures(copied) == first  # of what, not of where
    other = create_store(str(tmp_path / "other"), prepared(IDS, layout, salt=1), layout=layout)
    assert not set(signatures(other)) & set(first)
    grown = store.append(prepared(MORE, layout))
    assert signatures(grown)[:2] == first[:2]
    assert signatures(grown)[2] != first[2]
    deleted = grown.delete([IDS[5]])
    changed = [a != b for a, b in zip(signatures(deleted), signatures(grown), strict=True)]
    assert changed == [False, True, False, False, False]
    again = deleted.delete([IDS[6]])
    assert signatures(again)[1] not in {signatures(deleted)[1], signatures(grown)[1]}


def test_url__is_where_the_store_lies(place):
    assert create_store(place, prepared(IDS)).matrix().url == place
