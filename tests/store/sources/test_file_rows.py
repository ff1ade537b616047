"""Every format that reads several files says how many rows each of them gave."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.io
import scipy.sparse

from distclust.store.matrix_store import create_store
from distclust.store.sources import delimited, svmlight, text
from tests.corpora import prepared
from tests.sources import prepare_source

COUNTS = (5, 1, 3)
VALUES = np.arange(18.0).reshape(9, 2)


def _lines(line: Callable[[Any], str], head: str = "") -> Callable[[Path, Any], None]:
    return lambda path, rows: path.write_text(head + "".join(line(row) for row in rows))


def _gzipped(write: Callable[[Path, Any], None]) -> Callable[[Path, Any], None]:
    def compress(path: Path, rows: Any) -> None:
        write(path, rows)
        path.write_bytes(gzip.compress(path.read_bytes()))

    return compress


def _stream(path: Path, rows: Any) -> None:
    table = pa.table({"a": rows[:, 0], "b": rows[:, 1]})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def _frame(rows: Any) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["a", "b"])


_csv = _lines(lambda row: f"{row[0]},{row[1]}\n", "a,b\n")
WRITERS: dict[str, Callable[[Path, Any], Any]] = {
    "csv": _csv,
    "quoted.csv": _lines(lambda row: f'"{row[0]}\n",{row[1]}\n', "a,b\n"),
    "csv.gz": _gzipped(_csv),
    "parquet": lambda path, rows: _frame(rows).to_parquet(path, row_group_size=2),
    "feather": lambda path, rows: _frame(rows).to_feather(path),
    "arrows": _stream,
    "npy": np.save,
    "npz": lambda path, rows: np.savez(path, rows),
    "mtx": lambda path, rows: scipy.io.mmwrite(path, scipy.sparse.coo_array(rows)),
    "svm": _lines(lambda row: f"1 1:{row[0]} 2:{row[1]}\n"),
    "jsonl": _lines(lambda row: f'{{"text": "w{row[0]:.0f}"}}\n'),
    "jsonl.gz": _gzipped(_lines(lambda row: f'{{"text": "w{row[0]:.0f}"}}\n')),
    "txt": _lines(lambda row: f"w{row[0]:.0f}\n"),
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("piece", [40, 2**23])
def test_file_rows__in_the_order_of_the_files(
    suffix: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (svmlight, text):
        monkeypatch.setattr(module, "_PART_BYTES", piece)
    monkeypatch.setattr(delimited, "PIECE_BYTES", piece)
    cut = np.split(VALUES, np.cumsum(COUNTS)[:-1])
    names = [str(tmp_path / f"{name}.{suffix}") for name in "zxy"]
    for name, rows in zip(names, cut, strict=True):
        WRITERS[suffix](Path(name), rows)
    found = prepare_source(names, tmp_path / "scratch")
    assert found.rows.n_rows == 9
    assert found.file_rows == COUNTS
    if suffix in ("csv", "parquet", "npy"):
        rule = prepare_source(names, tmp_path / "binary", binarise="column-mean")
        assert rule.file_rows == COUNTS


def test_file_rows__files_may_be_documents_or_have_no_rows(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text("one two\nthree\n")
    assert prepare_source(folder, tmp_path / "1").file_rows == (1, 1)
    tables = [tmp_path / f"{name}.csv" for name in "abc"]
    for path, n_rows in zip(tables, (0, 2, 0), strict=True):
        path.write_text("a,b\n" + "1,2\n" * n_rows)
    assert prepare_source(tables, tmp_path / "2").file_rows == (0, 2, 0)


def test_file_rows__of_a_store_there_are_none(tmp_path: Path) -> None:
    create_store(tmp_path / "s.zarr", prepared(["a", "b"]))
    assert prepare_source(tmp_path / "s.zarr", tmp_path / "1").file_rows is None


def test_without__takes_rows_from_their_files() -> None:
    rows = prepared(list("abcdefghi"), file_rows=COUNTS)
    left = rows.without(np.array([0, 4, 5, 8]))
    assert left.file_rows == (3, 0, 2)
    assert left.rows.read(0, 5).ids.tolist() == list("bcdgh")
    assert rows.without(np.array([], np.int64)) is rows
