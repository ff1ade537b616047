"""Every layout gives back what was written, and lies on disk as it says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from distclust.errors import InputError, StoreError
from distclust.store import _layout_numerics as numerics
from distclust.store import surveys
from distclust.store.arrays import StoredArray
from distclust.store.layouts import base, csr
from distclust.store.layouts.base import SegmentSpec
from distclust.store.layouts.compact import PANEL_WIDTH, CompactBlock, CompactReader, ones
from distclust.store.mapping import serial_map
from distclust.store.objects import LocalObjects, open_objects
from distclust.store.rows import ArrayRows
from distclust.store.segments import Segment, SegmentReader, write_segment

LAYOUTS = ("dense", "csr", "compact")
CODECS = ("hot", "packed")


def write(folder: Path | str, X: Any, layout: str, codec: str, **options: Any) -> SegmentReader:
    """Write `X`; read it back through its table as bytes."""
    rows = ArrayRows(X, options.pop("ids", None))
    ids_kind = "integer" if rows.read(0, 1).ids.dtype.kind in "iu" else "text"
    spec = SegmentSpec(layout, codec, rows.n_rows, rows.n_features, rows.dtype.name, ids_kind)
    objects = open_objects(folder)
    segment = write_segment(objects, "", rows, spec, mapper=serial_map, scratch="scratch")
    return SegmentReader(objects, "", Segment.decode(segment.encode(), "table"))


def read(reader: SegmentReader) -> np.ndarray:
    """Return all rows, dense; on the way, blocks must be what `Matrix` promises."""
    blocks = [reader.block(i) for i in range(reader.n_blocks)]
    for index, block in enumerate(blocks):
        start, stop = reader.block_bounds(index)
        assert block.shape == (stop - start, reader.spec.n_features)
        assert block.dtype == reader.dtype
        assert reader.dtype.kind in "biu" or reader.dtype == np.float64
        if sp.issparse(block):
            parts = (block.data, block.indices, block.indptr)
            assert sp.csr_array(parts, shape=block.shape).has_canonical_format
            assert block.has_canonical_format  # known without a look
            assert not len(block.data) or block.data.all()
            block.check_format(full_check=True)
        else:
            assert block.flags.c_contiguous
            assert block.flags.aligned
    return np.vstack([b.toarray() if sp.issparse(b) else b for b in blocks])


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut every layout into blocks of 1,024 rows."""
    cut_small(monkeypatch)


def cut_small(patch: pytest.MonkeyPatch) -> None:
    for module in (base, surveys):
        patch.setattr(module, "block_rows_for", lambda n_features, is_sparse: 1024)
    patch.setattr(csr, "_SMALLEST_CHUNK", 64)


def counts(rng: np.random.Generator, n: int, d: int, density: float, largest: int) -> sp.csr_array:
    X = sp.random_array((n, d), density=density, format="csr", rng=rng)
    X.data[:] = rng.integers(1, largest + 1, X.nnz)
    return X


# ---- round trips -------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [1, 7, 1023, 1024, 1025, 2048, 2100])
@pytest.mark.usefixtures("small_blocks")
def test_round_trip__any_number_of_rows(tmp_path: Path, n: int, layout: str, codec: str) -> None:
    X = counts(np.random.default_rng(n), n, 23, 0.2, 300)
    reader = write(tmp_path, X, layout, codec)
    assert reader.n_blocks == -(-n // 1024)
    np.testing.assert_array_equal(read(reader), X.toarray())


CORNERS: dict[str, Any] = {
    "no nonzeros": np.zeros((1100, 5), np.int64),
    "one value": np.ones((1, 1)),
    "one zero": np.zeros((1, 1)),
    "empty rows at both ends": np.pad(np.ones((3, 4)), ((1500, 1500), (2, 1))),
    "zero columns": np.eye(9)[:, [0, 3, 8]].repeat(2, axis=1) * [1, 0, 1, 0, 1, 0],
    "a full row": np.vstack([np.zeros((1023, 50)), np.arange(1, 51)[None], np.zeros((2, 50))]),
    "largest count": np.array([[0, 65_535], [1, 0]]),
    "count of 256": np.array([[0, 256], [255, 0]]),
    "booleans": np.array([[True, False], [False, True]]),
    "uint8": np.array([[0, 255], [1, 0]], np.uint8),
    "all ones": np.ones((1030, 3), np.float32),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.usefixtures("small_blocks")
def test_round_trip__corners(
    tmp_path: Path, corner: str, is_sparse: bool, layout: str, codec: str
) -> None:
    X = CORNERS[corner]
    reader = write(tmp_path, sp.csr_array(X) if is_sparse else X, layout, codec)
    np.testing.assert_array_equal(read(reader), X)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layout", ["dense", "csr"])
@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int64", "uint16", "uint64", "float16", "float32", "float64", ">f8"]
)
def test_round_trip__every_type(tmp_path: Path, dtype: str, layout: str, codec: str) -> None:
    X = np.array([[0, 1, 100], [0, 0, 7]]).astype(dtype)
    reader = write(tmp_path, X, layout, codec)
    np.testing.assert_array_equal(read(reader), X)
    assert reader.dtype == (X.dtype if X.dtype.kind in "biu" else np.float64)


@pytest.mark.parametrize("codec", CODECS)
def test_round_trip__missing_values_in_dense_rows(tmp_path: Path, codec: str) -> None:
    X = np.array([[np.nan, 1.5], [-0.0, -2.0], [np.nan, np.nan]])
    reader = write(tmp_path, X, "dense", codec)
    np.testing.assert_array_equal(read(reader), X)
    assert reader.profile.n_missing.tolist() == [2, 1]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("layout", ["csr", "compact"])
@pytest.mark.parametrize(("d", "block_rows"), [(70_000, 16_384), (200_000, 4096)])
def test_round_trip__many_features(
    tmp_path: Path, d: int, block_rows: int, layout: str, codec: str
) -> None:
    rng = np.random.default_rng(d)
    n = block_rows + 3
    rows, columns = rng.integers(0, n, 150_000), rng.integers(0, d, 150_000)
    values = rng.integers(1, 1000, 150_000)
    X = sp.coo_array((values, (rows, columns)), shape=(n, d)).tocsr()
    X.data[:] = np.minimum(X.data, 65_535)
    X = sp.vstack([X, sp.csr_array(np.arange(d)[None] % 65_536)], format="csr")  # a full row
    reader = write(tmp_path, X, layout, codec)
    assert reader.block_rows == block_rows
    back = sp.vstack([reader.block(i) for i in range(reader.n_blocks)])
    assert (back != X).nnz == 0
    for block in (reader.block(0), reader.block(1)):
        block.check_format(full_check=True)
        assert all(np.diff(block.indices[a:b]).min(initial=1) > 0 for a, b in pairs(block.indptr))


def pairs(indptr: np.ndarray) -> list[tuple[int, int]]:
    return list(itertools.pairwise(indptr))


values_of = {
    "binary": st.sampled_from([0, 0, 0, 1]),
    "counts": st.integers(0, 3),
    "large counts": st.sampled_from([0, 1, 255, 256, 65_535]),
    "numbers": st.sampled_from([0.0, -1.5, 0.25, 1e300, -0.0]),
}


@st.composite
def matrices(draw: st.DrawFn) -> tuple[np.ndarray, str]:
    """Rows of few kinds, repeated so that they fill one to three blocks."""
    kind = draw(st.sampled_from(sorted(values_of)))
    d = draw(st.integers(1, 6))
    kinds = draw(st.lists(st.tuples(*[values_of[kind]] * d), min_size=1, max_size=4))
    n = draw(st.sampled_from([1, 3, 1024, 1030, 2049]))
    order = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, len(kinds), n)
    return np.array(kinds)[order], kind


@settings(max_examples=30)
@given(matrices(), st.sampled_from(CODECS), st.booleans())
def test_round_trip__of_anything_in_every_layout(
    tmp_path_factory: pytest.TempPathFactory,
    matrix: tuple[np.ndarray, str],
    codec: str,
    is_sparse: bool,
) -> None:
    X, kind = matrix
    given_rows = sp.csr_array(X) if is_sparse else X
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch)
        for layout in LAYOUTS if kind != "numbers" else ("dense", "csr"):
            reader = write(tmp_path_factory.mktemp("store"), given_rows, layout, codec)
            np.testing.assert_array_equal(read(reader), X)
            if layout == "compact":
                for index in range(reader.n_blocks):
                    expected = X[slice(*reader.block_bounds(index))]
                    np.testing.assert_array_equal(decode(reader.compact_block(index)), expected)


# ---- compact -----------------------------------------------------------------------------------


def decode(block: CompactBlock) -> np.ndarray:
    """Decode a compact block in plain Python; ids must follow the order of columns."""
    X = np.zeros((block.n_rows, block.n_features), np.int64)
    for panel, (lengths, ids) in enumerate(zip(block.lengths, block.ids, strict=True)):
        assert lengths.dtype == ids.dtype == np.uint16
        at = 0
        for row, length in enumerate(lengths.tolist()):
            columns = []
            for k in range(at, at + length):
                columns.append(int(block.order[panel * 65_535 + int(ids[k])]))
                X[row, columns[-1]] = 1 if block.counts is None else block.counts[panel][k]
            assert columns == sorted(set(columns))
            at += length
        assert at == len(ids)
    return X


def test_panel_width__is_the_same_in_compiled_code() -> None:
    assert PANEL_WIDTH == numerics.WIDTH == 65_535


@pytest.mark.parametrize("codec", CODECS)
def test_compact_block__columns_are_ranked_by_frequency(tmp_path: Path, codec: str) -> None:
    X = np.zeros((50, 6), np.uint8)
    X[:10, 0] = X[:40, 1] = X[:10, 3] = X[:45, 5] = 1
    reader = write(tmp_path, X, "compact", codec)
    block = reader.compact_block(0)
    assert block.order.tolist() == [5, 1, 0, 3, 2, 4]  # equal ones as they stand
    assert block.counts is None
    np.testing.assert_array_equal(decode(block), X)
    assert block.ids[0][:4].tolist() == [2, 1, 3, 0]  # columns 0, 1, 3, 5
    assert reader.block(0).dtype == np.bool_


@pytest.mark.parametrize("codec", CODECS)
def test_compact_block__several_panels_with_counts(
    tmp_path: Path, codec: str, rng: np.random.Generator
) -> None:
    d = 140_000
    X = sp.lil_array((3, d), dtype=np.int64)
    X[0, :] = rng.integers(1, 500, d)  # every column occurs
    X[2, rng.integers(0, d, 400)] = 1
    X = X.tocsr()
    X.sum_duplicates()
    reader = write(tmp_path, X, "compact", codec)
    block = reader.compact_block(0)
    assert [len(panel) for panel in block.lengths] == [3, 3, 3]
    assert block.counts is not None
    assert block.counts[0].dtype == np.uint16
    np.testing.assert_array_equal(decode(block), X.toarray())
    assert (reader.block(0) != X).nnz == 0


def test_compact_block__panels_hold_only_columns_in_use(tmp_path: Path) -> None:
    X = sp.csr_array((np.ones(3), ([0, 1, 2], [0, 69_999, 5])), shape=(3, 70_000))
    reader = write(tmp_path, X, "compact", "hot")
    assert len(reader.compact_block(0).lengths) == 1
    assert (reader.block(0) != X).nnz == 0


def test_compact_block__does_not_depend_on_the_codec(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    X = counts(rng, 3000, 400, 0.02, 9)
    hot, packed = (write(tmp_path / c, X, "compact", c).compact_block(0) for c in CODECS)
    assert hot.counts is not None
    assert packed.counts is not None
    for left, right in ((hot.lengths, packed.lengths), (hot.ids, packed.ids)):
        np.testing.assert_array_equal(left[0], right[0])
    np.testing.assert_array_equal(hot.counts[0], packed.counts[0])
    np.testing.assert_array_equal(hot.order, packed.order)


def test_compact__only_that_layout_has_compact_blocks(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="dense"):
        write(tmp_path, np.eye(3), "dense", "hot").compact_block(0)


@pytest.mark.parametrize("codec", CODECS)
def test_compact__zarr_sees_the_words(tmp_path: Path, codec: str, rng: np.random.Generator) -> None:
    thin = sp.csr_array((17_000, 300))
    X = sp.vstack([thin, counts(rng, 23_000, 300, 0.03, 5)], format="csr")
    reader = write(tmp_path, X, "compact", codec)
    group = zarr.open_group(tmp_path, mode="r")["X"]
    assert group.attrs["shape"] == [40_000, 300]
    assert group.attrs["n_panels"] == 1
    words, stored_counts, order = group["words"][:], group["counts"][:], group["order"][:]
    for index in range(reader.n_blocks):
        start, stop = reader.block_bounds(index)
        lengths = words[index, : stop - start].astype(int)
        np.testing.assert_array_equal(lengths, np.diff(X.indptr[start : stop + 1]))
        ids = np.split(words[index, stop - start :][: lengths.sum()], np.cumsum(lengths)[:-1])
        values = np.split(stored_counts[index, : lengths.sum()], np.cumsum(lengths)[:-1])
        for row in (0, 5, stop - start - 1):
            is_ranks = group.attrs["ids"] == "ranks"
            columns = order[ids[row]] if is_ranks else np.cumsum(ids[row])
            expected = X[[start + row]]
            np.testing.assert_array_equal(columns, expected.indices)
            np.testing.assert_array_equal(values[row], expected.data)


def test_compact__blocks_take_room_for_their_own_values_only(tmp_path: Path) -> None:
    full, thin = np.ones((16_384, 60)), np.zeros((16_384 * 4, 60))
    thin[::8, 0] = 1
    reader = write(tmp_path, sp.csr_array(np.vstack([full, thin])), "compact", "hot")
    sizes = reader.segment.tables["X/words"].sizes.astype(int)
    words = 16_384 * 61
    assert 2 * words <= sizes[0] <= 2 * words + 2 * 2**14 + 16 * 100
    assert (sizes[1:] <= 2 * (16_384 + 2048) + 2 * 2**14 + 16 * 100).all()


def test_ones__are_shared_and_not_to_be_written_into() -> None:
    few, many = ones(3), ones(3_000_000)
    assert few.all()
    assert many.all()
    assert len(many) == 3_000_000
    assert np.shares_memory(many, ones(2_999_999))
    with pytest.raises(ValueError, match="read-only"):
        many[0] = False


# ---- what compiled code must not be given ------------------------------------------------------


class Forged(StoredArray):
    """An array whose chunks are what a test says, as if its table agreed."""

    def __init__(self, array: StoredArray, values: np.ndarray) -> None:
        super().__init__(array.objects, array.path, array.spec, array.table)
        self.values = values

    def beginning(self, number: int, n_values: int) -> np.ndarray:
        return self.values[:n_values]

    def chunk(self, number: int) -> np.ndarray:
        return self.values


def forged(reader: SegmentReader, path: str, change: Any) -> CompactReader:
    """Open values with the content of one array changed."""
    array = reader._array(path)
    values = array.chunk(0).reshape(-1).copy()
    change(values)
    reader._open[path] = Forged(array, values)
    return CompactReader(reader.spec, reader.segment.survey, reader._array)


def put(position: int, value: int) -> Any:
    return lambda values: values.__setitem__(position, value)


@pytest.mark.parametrize(
    ("codec", "path", "position", "value"),
    [
        ("hot", "X/words", 3, 3),  # an id that is no rank
        ("hot", "X/words", 3, 65_535),
        ("hot", "X/words", 0, 9),  # lengths that do not add up
        ("hot", "X/order", 1, 3),  # a rank that is no column
        ("packed", "X/words", 3, 3),
        ("packed", "X/words", 0, 3),
    ],
)
def test_block__out_of_range_is_refused_before_it_is_looked_up(
    tmp_path: Path, codec: str, path: str, position: int, value: int
) -> None:
    reader = write(tmp_path, np.array([[1, 0, 1], [0, 0, 1], [0, 0, 1]]), "compact", codec)
    values = forged(reader, path, put(position, value))
    with pytest.raises(StoreError, match=r"another length|does not exist"):
        values.block(0)
    with pytest.raises(StoreError, match=r"another length|does not exist"):
        values.compact_block(0)


def test_merge__out_of_range_in_a_later_panel_is_refused(tmp_path: Path) -> None:
    X = sp.csr_array(np.ones((1, 65_540)))
    reader = write(tmp_path, X, "compact", "hot")
    last_panel = 1 + 65_535 + 1
    values = forged(reader, "X/words", put(last_panel, 5))  # there are ranks 0 to 4
    with pytest.raises(StoreError, match="does not exist"):
        values.block(0)


@pytest.mark.parametrize(
    ("path", "position", "value"),
    [("X/indices", 1, 3), ("X/indices", 1, -1), ("X/indptr", 1, 9), ("X/indptr", 0, 1)],
)
def test_csr__out_of_range_is_refused(tmp_path: Path, path: str, position: int, value: int) -> None:
    reader = write(tmp_path, sp.csr_array([[1.5, 0, 2], [0, 0, 3], [1, 0, 0]]), "csr", "hot")
    values = reader._array(path).chunk(0).copy()
    values[position] = value
    reader._open[path] = Forged(reader._array(path), values)
    from distclust.store.layouts.csr import CsrReader

    with pytest.raises(StoreError, match=r"rows that follow|columns below"):
        CsrReader(reader.spec, reader.segment.survey, reader._array).block(0)


# ---- compiled functions against plain Python ---------------------------------------------------


def plain_words(X: np.ndarray, rank: np.ndarray | None, width: int) -> tuple[list[int], list[int]]:
    """Words and counts of dense rows; differences of columns without a rank."""
    keys = np.arange(X.shape[1]) if rank is None else rank
    words: list[int] = []
    values: list[int] = []
    for first in range(0, X.shape[1], width):
        inside = [
            [j for j in range(X.shape[1]) if row[j] and first <= keys[j] < first + width]
            for row in X
        ]
        words += [len(columns) for columns in inside]
        for row, columns in zip(X, inside, strict=True):
            ids = [int(keys[j]) - first for j in columns]
            words += ids if rank is not None else np.diff([0, *ids]).tolist()
            values += [int(row[j]) for j in columns]
    return words, values


@pytest.mark.parametrize("has_counts", [False, True])
@pytest.mark.parametrize("n_panels", [1, 2])
def test_pack__equals_plain_python(
    n_panels: int, has_counts: bool, rng: np.random.Generator
) -> None:
    d = 12 if n_panels == 1 else 65_540
    X = np.zeros((4, d), np.uint8)
    columns = rng.choice(d, 10 if n_panels == 1 else 40, replace=False)
    X[rng.integers(0, 3, len(columns)), columns] = rng.integers(1, 200, len(columns))
    X[0, -1] = 3
    csr = sp.csr_array(X)
    given_counts = csr.data if has_counts else csr.data[:0]
    rank = rng.permutation(d).astype(np.int32)
    packs = {
        "ranks": numerics.pack_ranks(csr.indptr, csr.indices, given_counts, rank, n_panels),
        "deltas": numerics.pack_deltas(csr.indptr, csr.indices, given_counts, n_panels),
    }
    for name, (words, values) in packs.items():
        expected, expected_counts = plain_words(X, rank if name == "ranks" else None, 65_535)
        assert words.tolist() == expected
        assert values.tolist() == (expected_counts if has_counts else [])


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "layout"),
    [
        ([[0.5]], "compact"),
        ([[-1]], "compact"),
        ([[65_536]], "compact"),
        ([[np.nan]], "compact"),
        ([[np.nan, 1.0]], "csr"),
    ],
)
def test_write__a_layout_that_cannot_hold_the_rows_is_refused(
    tmp_path: Path, X: Any, layout: str
) -> None:
    with pytest.raises(InputError, match=r"layout"):
        write(tmp_path, np.array(X), layout, "hot")
    assert [key for key in LocalObjects(tmp_path).list() if not key.startswith("scratch")] == []


def test_read__index_outside_is_refused(tmp_path: Path) -> None:
    reader = write(tmp_path, np.eye(3), "dense", "hot")
    for index in (-1, 1):
        with pytest.raises(IndexError, match="block"):
            reader.block(index)
