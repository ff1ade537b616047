"""Tables as people keep them: what is read, and the sentence for what cannot be."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from distclust.errors import InputError, MissingFileError
from distclust.store.tables import read_table, row_names


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "separator"),
    [("t.csv", ","), ("t.csv", ";"), ("t.csv", "\t"), ("t.tsv", "\t"), ("t.csv.gz", ",")],
)
def test_read_table__text_by_suffix_and_header(tmp_path: Path, name: str, separator: str) -> None:
    lines = ["who,legs,wings", "öre,4,0", "wren,2,1"]
    path = write(tmp_path / name, "\n".join(lines).replace(",", separator) + "\n")
    frame = read_table(path)
    assert list(frame.columns) == ["legs", "wings"]
    assert row_names(frame) == ["öre", "wren"]
    np.testing.assert_array_equal(np.asarray(frame), [[4, 0], [2, 1]])


def test_read_table__first_column_names_rows_only_if_distinct_text(tmp_path: Path) -> None:
    repeated = read_table(write(tmp_path / "a.csv", "colour,x\nred,1\nred,2\n"))
    numbers = read_table(write(tmp_path / "b.csv", "x,y\n1,2\n3,4\n"))
    unnamed = read_table(write(tmp_path / "c.csv", ",y\n7,2\n9,4\n"))
    assert list(repeated.columns) == ["colour", "x"]
    assert row_names(repeated) is None
    assert list(numbers.columns) == ["x", "y"]
    assert row_names(unnamed) == ["7", "9"]


def test_read_table__ids_drop_and_categories_are_obeyed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "name,code,key,x\na,1,k1,2\nb,,k2,3\n")
    frame = read_table(path, ids="key", drop=["name"], categories=["code"])
    assert row_names(frame) == ["k1", "k2"]
    assert list(frame.columns) == ["code", "x"]
    assert list(frame["code"].cat.categories) == ["1"]
    assert "name" in read_table(path, ids="").columns


def test_read_table__empty_cells_are_missing(tmp_path: Path) -> None:
    frame = read_table(write(tmp_path / "t.csv", "x,y\n1,\n,4\n"))
    np.testing.assert_array_equal(np.isnan(frame.to_numpy()), [[False, True], [True, False]])


def test_read_table__numpy_files(tmp_path: Path) -> None:
    dense = np.arange(6.0).reshape(3, 2)
    np.save(tmp_path / "a.npy", dense)
    np.savez(tmp_path / "b.npz", dense)
    sparse.save_npz(tmp_path / "c.npz", sparse.csc_array(dense))
    np.testing.assert_array_equal(read_table(tmp_path / "a.npy"), dense)
    np.testing.assert_array_equal(read_table(tmp_path / "b.npz"), dense)
    loaded = read_table(tmp_path / "c.npz")
    assert loaded.format == "csr"
    np.testing.assert_array_equal(loaded.toarray(), dense)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.xlsx", b"x", "ending in .csv"),
        ("t.csv", b"", "empty file"),
        ("t.csv", b"x,y\n", "0 rows"),
        ("t.csv", b"x,y\n1,2\n1,2,3,4,5\n", "line 3: expected 2 cells"),
        ("t.csv", b"x\n1\n2\n3\ntwo\n", "column 'x', line 5: expected a number"),
        ("t.csv", b"x,y\n\xff\xfe,1\n", "UTF-8"),
        ("t.csv", b"x,y\n1,2,3,4\n5,6,7,8\n", "name for every column"),
        ("t.csv.gz", b"not gzip", "gzip"),
        ("t.npy", b"\x93NUMPY", "a plain NumPy file"),
        ("t.npz", b"PK\x03\x04 torn", "expected"),
    ],
)
def test_read_table__bad_content_gets_a_sentence(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=says) as caught:
        read_table(path)
    assert str(path) in str(caught.value)


def test_read_table__pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="plain NumPy file"):
        read_table(tmp_path / "t.npy")


def test_read_table__absent_file_folder_and_column(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="nothing there"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(MissingFileError, match="a folder"):
        read_table(tmp_path / "folder.csv")
    with pytest.raises(InputError, match="a column 'z'"):
        read_table(write(tmp_path / "t.csv", "x,y\n1,2\n"), drop=["z"])
    np.savez(tmp_path / "two.npz", a=[1], b=[2])
    with pytest.raises(InputError, match="2 arrays"):
        read_table(tmp_path / "two.npz")
