from __future__ import annotations

import gzip
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.io
import scipy.sparse

from distclust.engine import map_ordered
from distclust.errors import InputError, StoreError
from distclust.store.sources import matrix_market, runs
from distclust.store.sources.spool import Spool
from tests.faults import every_fault
from tests.sources import prepare_source, read_source, scratch_in

COORDINATE = "%%MatrixMarket matrix coordinate {} {}\n"
ARRAY = "%%MatrixMarket matrix array {} {}\n"


@pytest.fixture
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut files and rows so small that everything falls into many parts."""
    monkeypatch.setattr(matrix_market, "_PART_BYTES", 64)
    monkeypatch.setattr(runs, "_BAND_ENTRIES", 20)
    monkeypatch.setattr(runs, "_GROUPS", 8)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_file(text: str | bytes, name: str = "matrix.mtx") -> Path:
        path = tmp_path / name
        content = text.encode() if isinstance(text, str) else text
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write_file


def oracle(path: Path) -> Any:
    """What scipy reads, with the duplicates of pattern files counted once."""
    matrix = scipy.io.mmread(path)
    dense = matrix.toarray() if scipy.sparse.issparse(matrix) else matrix
    return dense != 0 if scipy.io.mminfo(path)[4] == "pattern" else dense


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", ["rows", "columns", "any"])
@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
def test_coordinate__equals_mmread(
    tmp_path: Path, rng: np.random.Generator, field: str, order: str, compressed: bool
) -> None:
    rows, columns = rng.integers(0, 40, 150), rng.integers(0, 23, 150)
    keep = {"rows": np.lexsort((columns, rows)), "columns": np.lexsort((rows, columns))}
    places = keep.get(order, np.arange(150))
    values = rng.integers(-5, 5, 150) if field == "integer" else rng.normal(size=150)
    entries = (values[places], (rows[places], columns[places]))
    path = tmp_path / ("a.mtx.gz" if compressed else "a.mtx")
    content = io.BytesIO()
    scipy.io.mmwrite(content, scipy.sparse.coo_array(entries, shape=(40, 23)), field=field)
    path.write_bytes(gzip.compress(content.getvalue()) if compressed else content.getvalue())
    found = read_source(path)
    np.testing.assert_array_equal(found.values, oracle(path))
    np.testing.assert_array_equal(found.ids, np.arange(40))
    assert found.prepared.rows.is_sparse
    assert not found.prepared.has_ids
    assert found.prepared.columns[0].number == {"pattern": "bool"}.get(field, field)


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric"])
@pytest.mark.parametrize("field", ["real", "integer"])
@pytest.mark.parametrize("layout", ["coordinate", "array"])
def test_symmetric__fills_the_other_triangle(
    tmp_path: Path, rng: np.random.Generator, layout: str, field: str, symmetry: str
) -> None:
    half = rng.integers(-9, 9, (19, 19)) * (rng.random((19, 19)) < 0.4)
    full = np.tril(half, -1) - np.tril(half, -1).T
    if symmetry == "symmetric":
        full = np.tril(half) + np.tril(half, -1).T
    full = full if field == "integer" else full / 7
    path = tmp_path / "a.mtx"
    matrix = scipy.sparse.coo_array(full) if layout == "coordinate" else full
    scipy.io.mmwrite(path, matrix, symmetry=symmetry)
    assert path.read_text().startswith(f"%%MatrixMarket matrix {layout} {field} {symmetry}")
    found = read_source(path)
    np.testing.assert_array_equal(found.values, oracle(path))
    assert found.prepared.rows.is_sparse == (layout == "coordinate")


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("compressed", [False, True])
def test_array__equals_mmread(
    write: Callable[..., Path], rng: np.random.Generator, compressed: bool
) -> None:
    values = rng.normal(size=(31, 6))
    values[3, 2] = np.nan
    text = ARRAY.format("real", "general") + "% by columns\n31 6\n"
    text += "\n".join(map(repr, values.T.ravel().tolist()))
    path = write(text, "a.mtx.gz" if compressed else "a.mtx")
    np.testing.assert_array_equal(read_source(path).values, values)
    np.testing.assert_array_equal(oracle(path), values)


def test_array__of_whole_numbers_keeps_them(write: Callable[..., Path]) -> None:
    path = write(ARRAY.format("integer", "general") + "2 2\n9223372036854775807\n-1\n0\n4\n")
    found = read_source(path)
    np.testing.assert_array_equal(found.values, [[2**63 - 1, 0], [-1, 4]])
    assert found.values.dtype == np.int64


@pytest.mark.usefixtures("cut_small")
def test_duplicates__add_up_as_in_scipy(write: Callable[..., Path], seed: int) -> None:
    # Sums of floats depend on their order: equal bits mean the same order, across parts.
    rng = np.random.default_rng(seed)
    entries = [(1 + k % 3, 1 + k % 2, repr(v)) for k, v in enumerate(rng.normal(size=200).tolist())]
    lines = "".join(f"{i} {j} {v}\n" for i, j, v in entries)
    path = write(COORDINATE.format("real", "general") + "3 2 200\n" + lines)
    expected = scipy.sparse.csr_array(scipy.io.mmread(path)).toarray()
    np.testing.assert_array_equal(read_source(path).values, expected)


def test_coordinate__drops_explicit_zeros_and_cancelled_entries(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    path = write(COORDINATE.format("real", "general") + "2 3 4\n1 1 0\n2 2 1.5\n2 2 -1.5\n1 3 2\n")
    rows = prepare_source(path, tmp_path / "store").rows.read(0, 2).values
    assert rows.nnz == 1
    assert rows.has_canonical_format
    np.testing.assert_array_equal(rows.toarray(), [[0, 0, 2], [0, 0, 0]])


def test_pattern__names_an_entry_twice_and_has_it_once(write: Callable[..., Path]) -> None:
    path = write(COORDINATE.format("pattern", "general") + "2 2 3\n1 2\n1 2\n2 1\n")
    found = read_source(path)
    assert found.values.dtype == np.bool_
    np.testing.assert_array_equal(found.values, [[False, True], [True, False]])


def test_lines__may_be_spaced_in_any_way(write: Callable[..., Path]) -> None:
    banner = "%%matrixmarket  MATRIX Coordinate REAL general\r\n%comment\r\n\n   \n"
    path = write(banner + "  3   3\t4 \r\n\r\n 1\t1  +1.5e0 \n\n2 2 -.5\r\n3 3 1E2\n3   1 2")
    np.testing.assert_array_equal(
        read_source(path).values, [[1.5, 0, 0], [0, -0.5, 0], [2, 0, 100]]
    )


def test_empty__matrices_have_rows_of_zeros(write: Callable[..., Path]) -> None:
    found = read_source(write(COORDINATE.format("integer", "general") + "5 3 0\n"))
    np.testing.assert_array_equal(found.values, np.zeros((5, 3)))


def test_wide__matrices_of_70000_features(write: Callable[..., Path]) -> None:
    path = write(COORDINATE.format("pattern", "general") + "2 70001 2\n2 70001\n1 65537\n")
    found = read_source(path)
    np.testing.assert_array_equal(np.argwhere(found.values), [[0, 65536], [1, 70000]])
    assert found.names[-1] == "x70000"


@pytest.mark.usefixtures("cut_small")
def test_files__are_stacked(write: Callable[..., Path], rng: np.random.Generator) -> None:
    parts = [rng.integers(0, 3, (n, 5)) for n in (4, 9, 2)]
    paths = []
    for k, part in enumerate(parts):
        paths.append(write(b"", f"{k}.mtx"))
        scipy.io.mmwrite(paths[-1], scipy.sparse.coo_array(part))
    np.testing.assert_array_equal(read_source([*map(str, paths)]).values, np.vstack(parts))


def test_files__must_be_alike(write: Callable[..., Path]) -> None:
    first = write(COORDINATE.format("real", "general") + "1 2 0\n", "a.mtx")
    wide = write(COORDINATE.format("real", "general") + "1 3 0\n", "b.mtx")
    whole = write(COORDINATE.format("integer", "general") + "1 2 0\n", "c.mtx")
    with pytest.raises(InputError, match=r"b\.mtx, columns: expected 2 .* got 3"):
        read_source([str(first), str(wide)])
    with pytest.raises(InputError, match=r"c\.mtx, field: expected real .* got integer"):
        read_source([str(first), str(whole)])
    with pytest.raises(InputError, match=r"a\.mtx: expected every file once"):
        read_source([str(first), str(first)])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: .*coordinate or array"),
        ("1 1 1\n", "line 1: .*coordinate or array"),
        (COORDINATE.format("complex", "general") + "1 1 0\n", "real, integer or pattern"),
        (COORDINATE.format("real", "hermitian") + "1 1 0\n", "line 1"),
        (ARRAY.format("pattern", "general") + "1 1\n", "line 1"),
        (COORDINATE.format("pattern", "skew-symmetric") + "1 1 0\n", "line 1"),
        (COORDINATE.format("real", "general") + "% only\n", "line 3: expected numbers of rows"),
        (COORDINATE.format("real", "general") + "3 3\n", "line 2: expected numbers of rows"),
        (COORDINATE.format("real", "general") + "3 -3 0\n", "line 2: expected numbers of rows"),
        (COORDINATE.format("real", "general") + "0 3 0\n", "got 0 rows"),
        (COORDINATE.format("real", "general") + f"3 {10**15} 0\n", "1 to 134217728 columns"),
        (COORDINATE.format("real", "general") + f"{10**15} 3 0\n", "1 to 2147483647 rows"),
        (COORDINATE.format("real", "symmetric") + "3 4 0\n", "square"),
        (COORDINATE.format("real", "general") + f"3 3 {10**12}\n", "too short"),
        (ARRAY.format("real", "general") + f"{10**6} {10**6}\n1\n", "too short"),
    ],
)
def test_header__that_cannot_be_gets_a_sentence(
    write: Callable[..., Path], text: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_source(write(text))


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("line", "layout", "field"),
    [
        ("4 1 1", "coordinate", "real"),
        ("0 1 1", "coordinate", "real"),
        ("1 4 1", "coordinate", "real"),
        ("1 -1 1", "coordinate", "real"),
        ("1 1", "coordinate", "real"),
        ("1 1 1 1", "coordinate", "real"),
        ("1 1 1,5", "coordinate", "real"),
        ("1 1 x", "coordinate", "real"),
        ("1 1 nan", "coordinate", "real"),
        ("1 1 1e999", "coordinate", "real"),
        ("1.5 1 1", "coordinate", "real"),
        ("1 1 1.5", "coordinate", "integer"),
        ("1 1 9223372036854775808", "coordinate", "integer"),
        ("1 1 1", "coordinate", "pattern"),
        ("% late comment", "coordinate", "real"),
        ("1 2", "array", "real"),
        ("inf", "array", "real"),
        ("1.5", "array", "integer"),
    ],
)
def test_line__that_is_no_entry_is_named(
    write: Callable[..., Path], line: str, layout: str, field: str, compressed: bool
) -> None:
    good = {"array": "2", "coordinate": "2 2" if field == "pattern" else "2 2 2"}[layout]
    size = "3 3" if layout == "array" else "3 3 50"
    lines = [f"%%MatrixMarket matrix {layout} {field} general", size, *[good] * 49]
    lines.insert(41, line)
    path = write("\n".join(lines), "bad.mtx.gz" if compressed else "bad.mtx")
    with pytest.raises(InputError, match=r"bad\.mtx(\.gz)?, line 42: ") as caught:
        read_source(path)
    assert repr(line) in str(caught.value)


def test_skew_symmetric__refuses_the_diagonal(write: Callable[..., Path]) -> None:
    path = write(COORDINATE.format("real", "skew-symmetric") + "3 3 2\n2 1 1\n2 2 1\n")
    with pytest.raises(InputError, match=r"line 4: .*'2 2 1'"):
        read_source(path)


@pytest.mark.parametrize(("said", "layout"), [(3, "coordinate"), (1, "coordinate"), (0, "array")])
def test_header__that_lies_about_counts_is_refused(
    write: Callable[..., Path], said: int, layout: str
) -> None:
    if layout == "array":
        path = write(ARRAY.format("real", "general") + "1 1\n1\n2\n")
        message = "expected 1 entries as its header says, got 2"
    else:
        path = write(COORDINATE.format("real", "general") + f"3 3 {said}\n1 1 1\n2 2 2\n")
        message = f"expected {said} entries as its header says, got 2"
    with pytest.raises(InputError, match=message):
        read_source(path)


def test_gzip__that_is_damaged_gets_a_sentence(write: Callable[..., Path]) -> None:
    path = write(COORDINATE.format("real", "general") + "3 3 1\n1 1 1\n", "a.mtx.gz")
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(InputError, match=r"a\.mtx\.gz: expected a complete gzip file"):
        read_source(path)
    path.write_bytes(b"not gzip")
    with pytest.raises(InputError, match="complete gzip file"):
        read_source(path)


@pytest.mark.usefixtures("cut_small")
def test_rows__are_the_same_on_threads(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = scipy.sparse.random_array((60, 20), density=0.3, rng=rng)
    scipy.io.mmwrite(tmp_path / "a.mtx", matrix)
    found = read_source(tmp_path / "a.mtx", mapper=map_ordered)
    np.testing.assert_array_equal(found.values, oracle(tmp_path / "a.mtx"))


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("bit", [0, 33, 64, 127])
def test_runs__that_were_altered_are_noticed(tmp_path: Path, memory_url: str, bit: int) -> None:
    matrix = scipy.sparse.random_array((30, 9), density=0.1, rng=np.random.default_rng(0))
    scipy.io.mmwrite(tmp_path / "a.mtx", matrix)
    prepare_source(tmp_path / "a.mtx", memory_url)
    scratch = scratch_in(memory_url)
    piece = Spool(scratch.below("lines")).find(3)
    assert piece is not None
    content = scratch.read("lines/pieces/00000003-00000").copy()
    content[piece.start + piece.layout["entries"][2] + bit // 8] ^= 1 << bit % 8
    scratch.write("lines/pieces/00000003-00000", content)
    scratch.objects.delete_tree(f"{scratch.prefix}/bands")
    with pytest.raises(StoreError, match="piece 3 of an unfinished ingest"):
        prepare_source(tmp_path / "a.mtx", memory_url)


@pytest.mark.usefixtures("cut_small")
def test_prepare__is_taken_up_after_a_kill(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scipy.io.mmwrite(tmp_path / "a.mtx", scipy.sparse.random_array((9, 5), density=0.5, rng=rng))
    expected = oracle(tmp_path / "a.mtx")

    def check(place: str, finished: bool) -> None:
        if finished:
            found = read_source(tmp_path / "a.mtx", place)
            np.testing.assert_array_equal(found.values, expected)

    n_faults = every_fault(
        tmp_path / "faults",
        prepare=lambda place: Path(place).mkdir(parents=True),
        action=lambda place: prepare_source(tmp_path / "a.mtx", place),
        check=check,
    )
    assert n_faults > 10


@pytest.mark.usefixtures("cut_small")
def test_prepare__parses_no_part_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    scipy.io.mmwrite(tmp_path / "a.mtx", scipy.sparse.random_array((20, 9), density=0.1, rng=rng))
    prepare_source(tmp_path / "a.mtx", tmp_path / "store")
    monkeypatch.setattr(matrix_market, "parse_cells", None)
    monkeypatch.setattr(runs, "_gather", None)
    prepare_source(tmp_path / "a.mtx", tmp_path / "store")


@hypothesis.given(data=st.data())
def test_coordinate__equals_mmread_wherever_it_is_cut(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    n_rows, n_columns = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 6))
    place = st.tuples(st.integers(1, n_rows), st.integers(1, n_columns), st.integers(-3, 3))
    entries = data.draw(st.lists(place, max_size=30))
    lines = "".join(f"{i} {j} {value}\n" for i, j, value in entries)
    size = f"{n_rows} {n_columns} {len(entries)}\n"
    path = tmp_path_factory.mktemp("any") / "a.mtx"
    path.write_text(COORDINATE.format("integer", "general") + size + lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matrix_market, "_PART_BYTES", data.draw(st.integers(1, 40)))
        patch.setattr(runs, "_BAND_ENTRIES", data.draw(st.integers(1, 10)))
        patch.setattr(runs, "_BAND_ROWS", data.draw(st.integers(1, 5)))
        patch.setattr(runs, "_GROUPS", data.draw(st.integers(1, 12)))
        found = read_source(path, step=data.draw(st.integers(1, 12)))
    np.testing.assert_array_equal(found.values, oracle(path))


def test_identity__tells_another_file(write: Callable[..., Path]) -> None:
    from distclust.store.sources import open_source

    path = write(COORDINATE.format("real", "general") + "1 1 0\n")
    first = open_source(path).identity()
    assert first == open_source(path).identity()
    assert pickle.loads(pickle.dumps(first)) == first
    write(COORDINATE.format("real", "general") + "1 2 0\n\n")
    assert open_source(path).identity() != first
