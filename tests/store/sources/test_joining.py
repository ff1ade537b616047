"""Rows that join a store are read as its own were; numbers too long for a type are kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

import distclust.store.sources.base as base
from distclust.engine import ingest
from distclust.errors import InputError
from distclust.store.matrix import Column
from distclust.store.sources import Expected, SourceOptions, find_files, open_source
from tests.sources import read_source

LONG = 2**53 + 1  # the first whole number that double precision does not have


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def values_of(store: Any) -> Any:
    return np.asarray(store.matrix().read_all())


# ---- binarised stores -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["append", "replace"])
@pytest.mark.parametrize("option", [{}, {"binarise": "column-mean"}])
def test_binarise__rows_that_join_are_turned_by_the_rule_of_the_store(
    tmp_path: Path, how: Any, option: Any
) -> None:
    first, more = pd.DataFrame({"x": [1.0, 5], "y": [2.0, 4]}), pd.DataFrame({"x": [9.0], "y": [1]})
    first.index, more.index = pd.Index(["a", "b"]), pd.Index(["c"])
    ingest(first, tmp_path / "s.zarr", binarise="column-mean")
    store = ingest(more, tmp_path / "s.zarr", how=how, **option)
    np.testing.assert_array_equal(values_of(store), [[0, 0], [1, 1], [1, 0]])  # means 3 and 3


@pytest.mark.parametrize(
    ("first", "then", "says"),
    [
        (None, "2", "binarise: expected none, as in the store, got '2'"),
        ("2", "3", "binarise: expected the rule '2' of the store, got '3'"),
    ],
)
def test_binarise__another_rule_than_that_of_the_store_is_refused(
    tmp_path: Path, first: str | None, then: str, says: str
) -> None:
    store = ingest(np.array([[1.0, 5]]), tmp_path / "s.zarr", binarise=first)
    with pytest.raises(InputError, match=says):
        ingest(np.array([[2.0, 7]]), tmp_path / "s.zarr", how="append", binarise=then)
    assert values_of(store).tolist() == ([[1, 5]] if first is None else [[0, 1]])


def test_binarise__rows_of_a_binarised_store_are_not_turned_again(tmp_path: Path) -> None:
    values = np.array([[1.0, 5], [3, 0]])
    one, other = tmp_path / "a.zarr", tmp_path / "b.zarr"
    ingest([(["a", "b"], values)], one, binarise="2")
    ingest([(["c"], values[:1])], other, binarise="2")
    joined = ingest(one, other, how="append")
    np.testing.assert_array_equal(values_of(joined), [[0, 1], [0, 1], [1, 0]])
    with pytest.raises(InputError, match="expected numbers, got a store made by '2'"):
        ingest(one, tmp_path / "c.zarr", binarise="0.5")


# ---- ids ------------------------------------------------------------------------------------


def test_ids__of_a_store_with_text_may_all_look_whole(tmp_path: Path) -> None:
    place = tmp_path / "s.zarr"
    ingest(write(tmp_path / "a.csv", "name,x\na,1\nb,2\n"), place)
    store = ingest(write(tmp_path / "b.csv", "name,x\n078,3\n79,4\n"), place, how="append")
    assert store.matrix().row_ids.tolist() == ["a", "b", "078", "79"]
    frame = pd.DataFrame({"x": [5]}, index=pd.Index([80], name="name"))
    store = ingest(frame, place, how="append")
    store = ingest([([81], np.array([[6]]))], place, how="append")
    pa.parquet.write_table(pa.table({"name": [82], "x": [7]}), tmp_path / "c.parquet")
    store = ingest(tmp_path / "c.parquet", place, how="append")
    assert store.matrix().row_ids.tolist() == ["a", "b", "078", "79", "80", "81", "82"]
    np.testing.assert_array_equal(values_of(store)[:, 0], range(1, 8))


@pytest.mark.parametrize("ids", [["a\0", "b"], ["a\0\0", 1], np.array(["a\0", "b"], object)])
def test_ids__keep_zeros_at_their_end(tmp_path: Path, ids: Any) -> None:
    store = ingest([(ids, np.eye(2))], tmp_path / "s.zarr")
    assert store.matrix().row_ids.tolist() == [str(row_id) for row_id in ids]


@pytest.mark.parametrize(
    "ids", [[np.int64(3), np.int64(4)], (3, 4), np.array([3, 4], np.uint8), pd.Index([3, 4])]
)
def test_ids__whole_numbers_of_any_kind(ids: Any) -> None:
    found = read_source([(ids, np.eye(2))])
    assert (found.ids.tolist(), found.prepared.ids_kind) == ([3, 4], "integer")


@pytest.mark.parametrize("ids", [[1.5, 2], [True, False], [b"a", b"b"], [[1], [2]], [1]])
def test_ids__anything_else_is_refused(ids: Any) -> None:
    with pytest.raises(InputError, match=r"ids that are text or whole|one id for each row"):
        read_source([(ids, np.eye(2))])


# ---- long whole numbers ---------------------------------------------------------------------


def tables(tmp_path: Path, frame: pd.DataFrame) -> list[Any]:
    """Return a table as a CSV file, a Parquet file, and itself."""
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    return [tmp_path / "t.csv", tmp_path / "t.parquet", frame]


def test_obs__long_numbers_of_which_some_are_missing_are_text(tmp_path: Path) -> None:
    tags = pd.array([LONG, None, -3], "Int64")
    for source in tables(tmp_path, pd.DataFrame({"x": [1, 2, 3], "tag": tags})):
        found = read_source(source, obs=("tag",))
        assert found.prepared.obs_kinds == {"tag": "text"}
        assert found.obs["tag"].tolist() == [str(LONG), None, "-3"]


def test_obs__long_numbers_stay_whole_and_short_ones_may_be_missing(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1, 2], "long": [LONG, -LONG]})
    frame["short"] = pd.array([7, None], "Int64")
    for source in tables(tmp_path, frame):
        found = read_source(source, obs=("long", "short"))
        assert found.prepared.obs_kinds == {"long": "integer", "short": "real"}
        assert found.obs["long"].tolist() == [LONG, -LONG]
        np.testing.assert_array_equal(found.obs["short"], [7, np.nan])


def test_obs__long_numbers_among_real_ones_are_rounded_and_told(tmp_path: Path) -> None:
    first = pa.table({"x": [1], "tag": pa.array([LONG])})
    second = pa.table({"x": [1], "tag": pa.array([0.5])})
    for name, table in (("a", first), ("b", second)):
        pa.parquet.write_table(table, tmp_path / f"{name}.parquet")
    found = read_source(tmp_path, obs=("tag",))
    assert found.obs["tag"].tolist() == [float(LONG), 0.5]
    assert any("2^53 are rounded" in note and "'tag'" in note for note in found.prepared.notes)


def test_unsigned__ids_and_annotations_beyond_63_bits_are_text(tmp_path: Path) -> None:
    large = np.array([2**63, 2**64 - 1, 5], np.uint64)
    frame = pd.DataFrame({"key": large, "x": [1, 2, 3], "tag": large})
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    for source in (tmp_path / "t.parquet", frame):
        found = read_source(source, ids="key", obs=("tag",))
        assert (found.prepared.ids_kind, found.prepared.obs_kinds) == ("text", {"tag": "text"})
        assert found.ids.tolist() == found.obs["tag"].tolist() == [str(key) for key in large]
    frame.iloc[2:].to_parquet(tmp_path / "t.parquet", index=False)
    found = read_source(tmp_path / "t.parquet", ids="key", obs=("tag",))
    assert (found.prepared.ids_kind, found.prepared.obs_kinds) == ("integer", {"tag": "integer"})


def test_features__long_numbers_that_become_real_are_told(tmp_path: Path) -> None:
    frame = pd.DataFrame({"long": [LONG, 1], "short": [3, 4]})
    frame["some"] = pd.array([None, 2], "Int64")
    for source in tables(tmp_path, frame):
        (note,) = (note for note in read_source(source).prepared.notes if "2^53" in note)
        assert note.endswith("whole numbers: 'long'.")
    for source in tables(tmp_path, frame[["long", "short"]]):
        found = read_source(source)
        assert found.values.tolist() == [[LONG, 3], [1, 4]]
        assert not any("2^53" in note for note in found.prepared.notes)


@pytest.mark.parametrize(
    ("signed", "unsigned", "dtype"),
    [
        ([-1, 300], [1, 2], np.int16),
        ([-1, LONG], [1, LONG], np.int64),
        ([0, LONG], [1, 2**63 + 1], np.uint64),
        ([-1, 2], [1, 2**63 + 2**11], np.float64),
    ],
)
def test_features__signed_and_unsigned_ones_side_by_side(
    tmp_path: Path, signed: list[int], unsigned: list[int], dtype: Any
) -> None:
    table = pa.table({"a": pa.array(signed, pa.int64()), "b": pa.array(unsigned, pa.uint64())})
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    for source in (tmp_path / "t.parquet", table):
        found = read_source(source)
        assert found.values.dtype == dtype
        assert found.values.tolist() == list(map(list, zip(signed, unsigned, strict=True)))
        is_told = any("2^53" in note for note in found.prepared.notes)
        assert is_told == (dtype == np.float64)


# ---- the same source again ------------------------------------------------------------------


def test_identity__a_file_replaced_with_its_time_kept_is_another(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x,y\n1,2\n")
    source, (file,) = open_source(path), find_files(path)
    before = path.stat()
    for replaced in (path, write(tmp_path / "new.csv", "")):
        write(replaced, "x,y\n3,4\n")
        os.utime(replaced, ns=(before.st_atime_ns, before.st_mtime_ns))
        os.replace(replaced, path)
        assert path.stat().st_mtime_ns == before.st_mtime_ns
        assert open_source(path).identity() != source.identity()
        with pytest.raises(InputError, match="as it was at first"):
            file.open()


def test_identity__another_release_takes_nothing_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.csv", "x,y\n1,2\n")
    before = open_source(path).identity()
    assert open_source(path).identity() == before
    monkeypatch.setattr(base, "__version__", "0.0.1")
    assert open_source(path).identity() != before


def test_identity__tells_the_rule_of_the_store(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x,y\n1,2\n")
    rule = {"binarise": {"rule": "2"}}
    expected = Expected((Column("x"), Column("y")), facts=rule)
    identity = open_source(path, SourceOptions(expected=expected)).identity()
    assert identity["options"]["binarise"] == "2"
