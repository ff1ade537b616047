from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given

from distclust.errors import InputError
from distclust.seeding import row_keys
from distclust.store import (
    ArrayMatrix,
    Column,
    Profile,
    SparseMatrix,
    block_rows_for,
    canonical_csr,
    profile_block,
)

SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=9)
# Few distinct values, so that zeros, repeats, infinities and missing values all occur.
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, -3.0, 0.5, 1e300, np.nan, np.inf, -np.inf])
FINITE = st.sampled_from([0.0, 0.0, 0.0, 1.0, -3.0, 0.5, 1e300])


def profile_by_columns(values: np.ndarray) -> list[dict[str, Any]]:
    """Describe every column with plain Python, one value at a time."""
    facts = []
    for column in values.T.tolist():
        present = [v for v in column if v == v]
        finite = [v for v in present if abs(v) != float("inf")]
        facts.append(
            {
                "n_missing": len(column) - len(present),
                "n_nonzero": sum(v != 0 for v in present),
                "minimum": min(present, default=float("inf")),
                "maximum": max(present, default=-float("inf")),
                "all_integer": len(finite) == len(present)
                and all(float(v).is_integer() for v in finite),
                "any_infinite": len(finite) < len(present),
            }
        )
    return facts


def assert_describes(profile: Profile, values: np.ndarray) -> None:
    assert profile.n_rows == len(values)
    assert profile.n_features == values.shape[1]
    for i, facts in enumerate(profile_by_columns(values)):
        actual = {name: getattr(profile, name)[i].item() for name in facts}
        assert actual == facts


@given(hnp.arrays(np.float64, SHAPES, elements=NUMBERS))
def test_profile_block__dense_matches_plain_python(values):
    assert_describes(profile_block(values), values)


@given(
    hnp.arrays(
        st.sampled_from([np.int8, np.uint8, np.int64, np.bool_]),
        SHAPES,
        elements=st.integers(0, 1),
    )
)
def test_profile_block__integers_match_plain_python(values):
    profile = profile_block(values)
    assert_describes(profile, values)
    assert profile.minimum.dtype == np.float64


@given(hnp.arrays(np.float64, SHAPES, elements=FINITE))
def test_profile_block__sparse_matches_plain_python(values):
    assert_describes(profile_block(canonical_csr(scipy.sparse.coo_array(values))), values)


@given(hnp.arrays(np.float64, SHAPES, elements=NUMBERS), st.integers(0, 9))
def test_profile__parts_combine_to_the_whole(values, cut):
    parts = profile_block(values[:cut]) + profile_block(values[cut:])
    assert_describes(parts, values)


def test_profile__take_describes_some_columns():
    values = np.array([[0.0, np.nan, 2.0], [1.0, 5.0, 2.5]])
    profile = profile_block(values).take(np.array([2, 1]))
    assert_describes(profile, values[:, [2, 1]])
    assert profile.has_missing
    assert not profile_block(values[:, ::2].copy()).has_missing


@pytest.mark.parametrize("n_features", [1, 31, 32, 33, 64, 784, 8191, 10**6])
def test_block_rows_for__is_a_power_of_two_near_16_mib(n_features):
    rows = block_rows_for(n_features, is_sparse=False)
    assert rows.bit_count() == 1
    assert 256 <= rows <= 65_536
    if 256 < rows < 65_536:
        assert 2**20 < rows * n_features <= 2**21


def test_block_rows_for__sparse_rows_follow_the_width():
    assert block_rows_for(99_999, is_sparse=True) == 16_384
    assert block_rows_for(100_000, is_sparse=True) == 4_096


@pytest.mark.parametrize("n_rows", [1, 65_535, 65_536, 65_537, 200_000])
def test_array_matrix__blocks_hold_all_rows_once(n_rows):
    values = np.arange(n_rows, dtype=np.int32)[:, None]
    matrix = ArrayMatrix(values)
    assert matrix.shape == (n_rows, 1)
    np.testing.assert_array_equal(np.concatenate(list(matrix.blocks())), values)
    starts, stops = zip(*map(matrix.block_bounds, range(matrix.n_blocks)), strict=True)
    assert stops[-1] == n_rows
    assert starts == (0, *stops[:-1])
    with pytest.raises(IndexError):
        matrix.block(matrix.n_blocks)
    with pytest.raises(IndexError):
        matrix.block(-1)


@pytest.mark.parametrize(
    ("given_dtype", "block_dtype"),
    [
        (np.bool_, np.bool_),
        (np.uint8, np.uint8),
        (">i4", np.int32),
        (np.float16, np.float64),
        (np.float32, np.float64),
        (">f8", np.float64),
    ],
)
def test_matrix__type_is_compact_where_exact(given_dtype, block_dtype):
    values = np.eye(3).astype(given_dtype)
    for matrix in (ArrayMatrix(values), ArrayMatrix(values.T.copy(order="F"))):
        assert matrix.dtype == block_dtype
        assert matrix.block(0).dtype == block_dtype
        assert matrix.block(0).flags.c_contiguous
        np.testing.assert_array_equal(matrix.block(0), np.eye(3))


def test_array_matrix__block_is_a_view_where_it_can_be():
    values = np.ones((5, 2))
    assert np.shares_memory(ArrayMatrix(values).block(0), values)


def test_array_matrix__memory_that_starts_at_an_odd_byte_is_aligned():
    # Numpy sums unaligned arrays in another order.
    data = np.random.default_rng(0).normal(size=(2000, 10))
    odd = np.frombuffer(b"x" + data.tobytes(), offset=1).reshape(data.shape)
    assert not odd.flags.aligned
    assert ArrayMatrix(odd).block(0).flags.aligned
    assert ArrayMatrix(odd).read_all().sum() == data.sum()
    csr = scipy.sparse.csr_array(data)
    csr.data = np.frombuffer(b"x" + csr.data.tobytes(), offset=1)
    assert canonical_csr(csr).data.flags.aligned


def test_canonical_csr__sorts_adds_duplicates_and_drops_zeros_in_a_copy():
    given_parts = (np.array([1.0, 2.0, 3.0, 0.0, 5.0, -5.0]), np.array([2, 0, 2, 1, 3, 3]))
    matrix = scipy.sparse.csr_matrix((*given_parts, np.array([0, 3, 6])), shape=(2, 4))
    before = matrix.data.copy(), matrix.indices.copy(), matrix.indptr.copy()
    csr = canonical_csr(matrix)
    assert isinstance(csr, scipy.sparse.csr_array)
    assert csr.indices.tolist() == [0, 2]
    assert csr.data.tolist() == [2.0, 4.0]
    assert csr.indptr.tolist() == [0, 2, 2]
    for now, then in zip((matrix.data, matrix.indices, matrix.indptr), before, strict=True):
        np.testing.assert_array_equal(now, then)


DAMAGE = {
    "csr column": ("csr", "indices", 0, 4),
    "csr far column": ("csr", "indices", 2, 2**30),
    "csr negative column": ("csr", "indices", 1, -1),
    "csr rows that overlap": ("csr", "indptr", 1, 3),
    "csr rows backwards": ("csr", "indptr", 1, -(2**30)),
    "csr rows past the end": ("csr", "indptr", 3, 2**30),
    "csr first row": ("csr", "indptr", 0, 1),
    "csc row": ("csc", "indices", 0, 2**30),
    "csc columns": ("csc", "indptr", 1, 2**30),
    "bsr column": ("bsr", "indices", 0, 2**30),
    "coo row": ("coo", "row", 0, 2**30),
    "coo column": ("coo", "col", 0, -1),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_canonical_csr__indices_that_lead_out_are_refused(damage):
    layout, part, at, value = DAMAGE[damage]
    matrix = scipy.sparse.csr_matrix(np.eye(3, 4)).asformat(layout)
    assert (canonical_csr(matrix) != scipy.sparse.csr_array(np.eye(3, 4))).nnz == 0
    getattr(matrix, part)[at] = value
    with pytest.raises(InputError, match="3 rows and 4 columns"):
        canonical_csr(matrix)


@pytest.mark.parametrize("part", ["data", "indices", "indptr"])
def test_canonical_csr__parts_of_other_lengths_are_refused(part):
    matrix = scipy.sparse.csr_matrix(np.eye(3, 4))
    setattr(matrix, part, getattr(matrix, part)[:-1])
    with pytest.raises(InputError, match="3 rows and 4 columns"):
        canonical_csr(matrix)


def test_canonical_csr__lists_of_columns_that_lead_out_are_refused():
    matrix = scipy.sparse.lil_matrix(np.eye(3, 4))
    matrix.rows[0] = [2**30]
    with pytest.raises(InputError, match="3 rows and 4 columns"):
        canonical_csr(matrix)


@pytest.mark.parametrize("layout", ["bsr", "coo", "csc", "csr", "dia", "dok", "lil"])
def test_canonical_csr__takes_every_kind_of_sparse_matrix(layout):
    values = np.arange(24.0).reshape(4, 6) % 5
    matrix = scipy.sparse.csr_array(values).asformat(layout)
    np.testing.assert_array_equal(canonical_csr(matrix).toarray(), values)


def test_canonical_csr__room_that_is_not_used_is_no_damage():
    matrix = scipy.sparse.csr_matrix(np.eye(3, 4))
    matrix.data, matrix.indices = np.append(matrix.data, 7.0), np.append(matrix.indices, 99)
    np.testing.assert_array_equal(canonical_csr(matrix).toarray(), np.eye(3, 4))


@pytest.mark.parametrize("n_rows", [1, 16_384, 40_000])
def test_sparse_matrix__blocks_equal_slices(n_rows):
    rng = np.random.default_rng(0)
    whole = scipy.sparse.random_array((n_rows, 6), density=0.2, rng=rng, format="csr")
    matrix = SparseMatrix(whole)
    assert matrix.n_blocks == -(-n_rows // 16_384)
    for index in range(matrix.n_blocks):
        start, stop = matrix.block_bounds(index)
        block = matrix.block(index)
        assert block.has_canonical_format
        np.testing.assert_array_equal(block.toarray(), whole[start:stop].toarray())
        assert np.shares_memory(block.data, matrix.read_all().data)


def test_block_ids_and_keys__are_those_of_the_rows():
    ids = np.array([f"row {i}" for i in range(600)])
    matrix = ArrayMatrix(np.zeros((600, 2**13)), row_ids=ids)
    assert matrix.n_blocks == 3
    assert matrix.block_ids(1).tolist() == ids[256:512].tolist()
    keys = np.concatenate([matrix.block_keys(i) for i in range(3)])
    assert np.array_equal(keys, row_keys(ids))


def test_matrix__columns_and_row_ids_have_defaults():
    matrix = ArrayMatrix(np.ones((3, 2), dtype=np.int16))
    assert matrix.columns == (Column("x0", number="integer"), Column("x1", number="integer"))
    assert matrix.row_ids.tolist() == [0, 1, 2]
    named = ArrayMatrix(np.ones((2, 1)), (Column("a"),), np.array(["r", "s"]))
    assert named.columns == (Column("a"),)
    assert named.row_ids.tolist() == ["r", "s"]
    assert "2 x 1, dense float64" in repr(named)


# ---- rows by number ------------------------------------------------------------------------------


def numbered(n_rows: int, row_ids: np.ndarray | None = None) -> ArrayMatrix:
    matrix = ArrayMatrix(np.arange(2 * n_rows).reshape(n_rows, 2), row_ids=row_ids)
    matrix.block_rows = 4
    return matrix


@given(st.lists(st.integers(0, 17), max_size=30))
def test_places_of__say_where_every_row_is(rows):
    matrix = numbered(18)
    seen: dict[int, int] = {}
    blocks = []
    for block, chosen, places in matrix.places_of(rows):
        blocks.append(block)
        for i, value in zip(chosen.tolist(), matrix.block(block)[places, 0].tolist(), strict=True):
            assert i not in seen
            seen[i] = value // 2
    assert [seen[i] for i in range(len(rows))] == rows
    assert blocks == sorted({row // 4 for row in rows})  # each block once, in order


def test_ids_at__are_the_ids_in_the_order_asked():
    assert numbered(18).ids_at([17, 0, 4, 4]).tolist() == [17, 0, 4, 4]
    assert numbered(18).ids_at(np.array([3])).dtype.kind == "i"
    names = np.array([f"name {i}" for i in range(18)], object)
    assert numbered(18, names).ids_at([17, 0, 4]).tolist() == ["name 17", "name 0", "name 4"]
    assert len(numbered(18, names).ids_at([])) == 0


def test_ids_at__reads_only_the_blocks_it_needs(monkeypatch):
    matrix = numbered(18)
    read: list[int] = []
    block_ids = matrix.block_ids
    monkeypatch.setattr(matrix, "block_ids", lambda i: read.append(i) or block_ids(i))
    matrix.ids_at([17, 5, 6])
    assert read == [1, 4]


def test_compact_block__of_rows_in_memory_there_is_none():
    assert numbered(18).compact_block(0) is None
    assert SparseMatrix(scipy.sparse.csr_array(np.eye(3))).compact_block(0) is None
