"""Finding the files of a source, and the format that reads them."""

from __future__ import annotations

import errno
import secrets
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from distclust.errors import InputError, MissingFileError
from distclust.store.sources import FORMATS, SourceOptions, files, find_files, open_source
from distclust.store.sources.arrays import ArraySource
from distclust.store.sources.arrow import ArrowSource
from distclust.store.sources.delimited import DelimitedSource
from distclust.store.sources.files import SourceFile, name_files
from tests.sources import read_source


def touch(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def names(spec: Any) -> list[str]:
    return [file.name for file in find_files(spec)]


def test_find_files__paths_folders_globs_and_lists(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "c.txt", "deep/d.csv", ".hidden", "_SUCCESS", "_meta/e.csv"):
        touch(tmp_path / name)
    assert names(tmp_path / "a.csv") == ["a.csv"]
    assert names(str(tmp_path)) == ["a.csv", "b.csv", "c.txt", "d.csv"]
    assert names(f"{tmp_path}/*.csv") == ["a.csv", "b.csv"]
    assert names(f"{tmp_path}/**/*.csv") == ["e.csv", "a.csv", "b.csv", "d.csv"]
    assert names([tmp_path / "b.csv", f"{tmp_path}/a*"]) == ["b.csv", "a.csv"]


def test_find_files__a_name_may_look_like_a_glob(tmp_path: Path) -> None:
    path = touch(tmp_path / "a[1].csv")
    assert names(path) == ["a[1].csv"]


@pytest.mark.parametrize("name", ["none.csv", "none*.csv", "empty"])
def test_find_files__nothing_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingFileError, match="nothing there"):
        find_files(tmp_path / name)
    with pytest.raises(InputError, match="at least one file"):
        find_files([])


def test_find_files__without_permission(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    path = touch(tmp_path / "a.csv")
    for name, refusal in (("stat", refuse), ("access", lambda *_: False)):
        with monkeypatch.context() as patch:  # root may read everything
            patch.setattr(files.os, name, refusal)
            with pytest.raises(MissingFileError, match=r"Permission denied.* Check the perm"):
                find_files(f"{tmp_path}/a.csv")
    assert [file.url for file in find_files(path)] == [str(path)]


def test_find_files__far_away(tmp_path: Path) -> None:
    root = f"memory://files-{secrets.token_hex(4)}"
    for name in ("b.csv", "a.csv", "deep/d.csv", ".hidden"):
        with fsspec.open(f"{root}/{name}", "wb") as file:
            file.write(b"x,y\n1,2\n")
    assert names(f"{root}/a.csv") == ["a.csv"]
    assert names(root) == ["a.csv", "b.csv", "d.csv"]
    assert names(f"{root}/*.csv") == ["a.csv", "b.csv"]
    (file,) = find_files(f"{root}/a.csv")
    assert (file.is_local, file.size, file.read(2, 4)) == (False, 8, b"y\n")
    with pytest.raises(MissingFileError, match="nothing there"):
        find_files(f"{root}/none.csv")
    with pytest.raises(InputError, match="a URL that fsspec can open"):
        find_files("nonsense://a.csv")
    found = read_source(root, f"{root}-store")
    np.testing.assert_array_equal(found.values, [[1, 2]] * 3)


def test_source_file__notices_a_change(tmp_path: Path) -> None:
    path = touch(tmp_path / "a.csv", b"12345")
    (file,) = find_files(path)
    assert file.read(1, 3) == b"23"
    touch(path, b"1234")
    with pytest.raises(InputError, match="expected the file as it was at first"):
        file.open()


def test_name_files__one_or_more() -> None:
    some = [SourceFile("a", 1, ""), SourceFile("b", 1, ""), SourceFile("c", 1, "")]
    assert name_files(some[:1]) == "a"
    assert name_files(some) == "a and 2 more"


# ---- formats --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("t.csv", DelimitedSource),
        ("T.CSV", DelimitedSource),
        ("t.tsv.gz", DelimitedSource),
        ("t.parquet", ArrowSource),
        ("t.feather", ArrowSource),
        ("t.npy", ArraySource),
        ("t.npz", ArraySource),
    ],
)
def test_open_source__goes_by_the_suffix(tmp_path: Path, name: str, kind: type) -> None:
    path = touch(tmp_path / name)
    assert type(open_source(path)) is kind
    assert type(open_source([str(path), path])) is kind
    assert type(open_source(tmp_path)) is kind


def test_open_source__a_named_format_wins(tmp_path: Path) -> None:
    path = touch(tmp_path / "table.dat")
    assert type(open_source(path, SourceOptions(format="csv"))) is DelimitedSource
    with pytest.raises(InputError, match=r"a file ending in \.csv, .*'table\.dat'"):
        open_source(path)
    with pytest.raises(InputError, match="format: expected one of csv, tsv"):
        open_source(path, SourceOptions(format="xlsx"))


def test_open_source__formats_are_not_mixed(tmp_path: Path) -> None:
    touch(tmp_path / "a.csv")
    other = touch(tmp_path / "b.parquet")
    with pytest.raises(InputError, match=f"{other}: expected csv as .*a.csv is, got parquet"):
        open_source(tmp_path)


def test_formats__every_suffix_is_known_once() -> None:
    suffixes = [suffix for _, ends in FORMATS.values() for suffix in ends]
    assert len(set(suffixes)) == len(suffixes)
