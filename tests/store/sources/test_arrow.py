"""Parquet and Arrow files: what is read equals the frame that was written."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from distclust.engine import map_ordered
from distclust.errors import InputError
from distclust.store.sources import arrow, arrow_files
from tests.faults import every_fault
from tests.sources import Read, prepare_source, read_source

FORMS = ["parquet", "feather", "arrow", "arrows"]


def write(table: Any, path: Path, rows_each: int = 7) -> Path:
    if isinstance(table, pd.DataFrame):
        table = pa.Table.from_pandas(table)
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path, row_group_size=rows_each)
    elif path.suffix == ".feather":
        pa.feather.write_feather(table, str(path), chunksize=rows_each)
    else:
        maker = pa.ipc.new_stream if path.suffix == ".arrows" else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as sink, maker(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows_each)
    return path


def read(path: Any, **options: Any) -> Read:
    return read_source(path, f"memory://{secrets.token_hex(8)}", **options)


@pytest.fixture(params=["as it lies", "spooled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read groups where they lie, or as if they were too large for that."""
    if request.param == "spooled":
        monkeypatch.setattr(arrow, "_LARGEST_GROUP", 0)
        monkeypatch.setattr(arrow, "PIECE_BYTES", 300)
    return str(request.param)


def frame(n_rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "real": rng.normal(size=n_rows),
            "single": rng.normal(size=n_rows).astype(np.float32),
            "count": rng.integers(0, 300, n_rows),
            "some": pd.array([None if i % 5 == 0 else i for i in range(n_rows)], "Int64"),
            "truth": rng.random(n_rows) < 0.5,
            "maybe": pd.array([[None, True, False][i % 3] for i in range(n_rows)], "boolean"),
            "word": rng.choice(["öre", "b", "", None], n_rows),
            "kind": pd.Categorical(rng.choice(["late", "early"], n_rows)),
            "when": pd.date_range("2020-02-28", periods=n_rows, freq="37min"),
        }
    )  # fmt: skip


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("form", FORMS)
def test_read__every_kind_of_column(tmp_path: Path, form: str) -> None:
    table = frame()
    found = read(write(table, tmp_path / f"t.{form}"), ids="")
    assert found.names == list(table.columns[:-1])
    numbers = ["real", "real", "integer", "real", "bool", "bool", "real", "real"]
    assert [column.number for column in found.prepared.columns] == numbers
    for k, name in enumerate(["real", "single", "count", "some", "truth", "maybe"]):
        expected = table[name].to_numpy(float, na_value=np.nan)
        np.testing.assert_array_equal(found.values[:, k], expected)
    for k, name in ((6, "word"), (7, "kind")):
        levels = found.prepared.columns[k].levels
        assert levels == tuple(sorted(table[name].dropna().unique()))
        codes = [levels.index(text) if isinstance(text, str) else np.nan for text in table[name]]
        np.testing.assert_array_equal(found.values[:, k], codes)
    assert found.obs["when"].tolist() == [stamp.isoformat() for stamp in table["when"]]
    assert found.values.dtype == np.float64


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        ({"a": np.float32, "b": np.float32}, np.float32),
        ({"a": np.float16, "b": np.float32}, np.float32),
        ({"a": np.float32, "b": np.float64}, np.float64),
        ({"a": np.float32, "b": np.int8}, np.float64),
        ({"a": np.int64, "b": np.uint16}, np.uint8),
        ({"a": np.bool_, "b": np.bool_}, np.bool_),
    ],
)
def test_read__types_stay_small(tmp_path: Path, way: str, columns: Any, dtype: Any) -> None:
    values = np.arange(20) % 2
    table = pa.table({name: pa.array(values.astype(kind)) for name, kind in columns.items()})
    found = read(write(table, tmp_path / "t.arrow"))
    np.testing.assert_array_equal(found.values, np.column_stack([values, values]))
    assert found.values.dtype == (np.float64 if way == "spooled" and dtype == np.float32 else dtype)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("form", FORMS)
def test_ids__the_index_of_a_frame_names_rows(tmp_path: Path, form: str) -> None:
    table = frame().set_index(pd.Index([f"r{i}" for i in range(40)]))
    found = read(write(table, tmp_path / f"t.{form}"))
    assert found.ids.tolist() == [f"r{i}" for i in range(40)]
    assert "row" not in found.names
    table.index = pd.Index(np.arange(100, 140), name="key")
    found = read(write(table, tmp_path / f"u.{form}"))
    assert found.ids.tolist() == list(range(100, 140))
    assert found.prepared.ids_kind == "integer"
    assert read(write(frame(), tmp_path / f"v.{form}")).prepared.has_ids is False


@pytest.mark.usefixtures("way")
def test_ids__a_first_column_of_distinct_text_names_rows(tmp_path: Path) -> None:
    names = [f"r{i}" for i in range(40)]
    found = read(write(pa.table({"who": names, "x": range(40)}), tmp_path / "t.parquet"))
    assert found.ids.tolist() == names
    repeated = pa.table({"who": [*names, "r3"], "x": range(41)})
    assert read(write(repeated, tmp_path / "u.parquet")).names == ["who", "x"]


@pytest.mark.usefixtures("way")
def test_roles__ids_drop_categories_and_obs(tmp_path: Path) -> None:
    path = write(frame(), tmp_path / "t.parquet")
    options: Any = {"categories": ("truth",), "obs": ("some", "word", "maybe"), "drop": ("kind",)}
    found = read(path, ids="count", **options)
    assert found.names == ["real", "single", "truth"]
    assert found.prepared.columns[2].levels == ("false", "true")
    assert found.ids.tolist() == frame()["count"].tolist()
    kinds = {"some": "real", "maybe": "text", "word": "text", "when": "text"}
    assert dict(found.prepared.obs_kinds) == kinds
    assert found.obs["word"].tolist() == frame()["word"].tolist()


@pytest.mark.usefixtures("way")
def test_files__of_a_folder_are_stacked(tmp_path: Path) -> None:
    table = frame(90)
    (tmp_path / "in").mkdir()
    for i, start in enumerate(range(0, 90, 30)):
        part = table.iloc[start : start + 30].reset_index(drop=True)
        write(part, tmp_path / "in" / f"part-{i}.parquet")
    found, whole = read(tmp_path / "in"), read(write(table, tmp_path / "t.parquet"))
    np.testing.assert_array_equal(found.values, whole.values)
    assert found.prepared.columns == whole.prepared.columns
    assert found.ids.tolist() == list(range(90))


@pytest.mark.usefixtures("way")
def test_files__of_different_types_meet_in_the_wider_one(tmp_path: Path) -> None:
    first = write(pa.table({"x": [1, 2], "y": [1, 2]}), tmp_path / "a.parquet")
    second = write(pa.table({"x": [0.5, 2], "y": ["a", "b"]}), tmp_path / "b.parquet")
    found = read([str(first), str(second)])
    assert found.prepared.columns[1].levels == ("1", "2", "a", "b")
    np.testing.assert_array_equal(found.values, [[1, 0], [2, 1], [0.5, 2], [2, 3]])
    other = write(pa.table({"x": [1], "z": [1]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=f"{other}: expected column 2 named 'y'"):
        read([str(first), str(other)])


_cells = {
    "integer": st.integers(-(2**40), 2**40),
    "real": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "text": st.text(max_size=4),
    "date": st.dates(),
}


@hypothesis.given(data=st.data(), form=st.sampled_from(FORMS), is_spooled=st.booleans())
def test_read__round_trips(
    tmp_path_factory: Any, data: st.DataObject, form: str, is_spooled: bool
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(_cells)), min_size=1, max_size=4))
    rows = data.draw(
        st.lists(st.tuples(*(st.none() | _cells[kind] for kind in kinds)), min_size=1, max_size=20)
    )
    columns = [list(column) for column in zip(*rows, strict=True)]
    names = [f"{kind} {i}" for i, kind in enumerate(kinds)]
    path = tmp_path_factory.mktemp("arrow") / f"t.{form}"
    write(pa.table([pa.array(range(len(rows))), *map(pa.array, columns)], ["n", *names]), path, 6)
    with pytest.MonkeyPatch.context() as patch:
        if is_spooled:
            patch.setattr(arrow, "_LARGEST_GROUP", 0)
            patch.setattr(arrow, "PIECE_BYTES", 100)
        found = read(path, ids="")
    for kind, name, cells in zip(kinds, names, columns, strict=True):
        present = [cell for cell in cells if cell is not None]
        if kind == "date" and present:
            expected = [None if cell is None else cell.isoformat() for cell in cells]
            assert found.obs[name].tolist() == expected
            continue
        values = found.values[:, found.names.index(name)].astype(float)
        levels = found.prepared.columns[found.names.index(name)].levels
        if kind == "text" and present:
            assert levels == tuple(sorted(set(present)))
            cells = [None if cell is None else levels.index(cell) for cell in cells]
        numbers = [np.nan if cell is None else float(cell) for cell in cells]
        np.testing.assert_array_equal(values, numbers)


# ---- refusals -------------------------------------------------------------------------------


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("form", FORMS)
def test_read__infinite_values_are_refused(tmp_path: Path, form: str) -> None:
    values = np.arange(30.0)
    values[17] = np.inf
    path = write(pa.table({"n": range(30), "x": values}), tmp_path / f"t.{form}")
    with pytest.raises(InputError, match=f"{path}.*column 'x'.*expected finite") as caught:
        read(path)
    assert "row 18" in str(caught.value)


def test_read__columns_of_lists_are_refused_by_name(tmp_path: Path) -> None:
    table = pa.table({"x": [1], "many": [[1, 2]]})
    path = write(table, tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"column 'many'.*list.*--drop"):
        read(path)
    assert read(path, drop=("many",)).names == ["x"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("damage", ["empty", "cut", "text"])
def test_read__damage_gets_a_sentence(tmp_path: Path, form: str, damage: str) -> None:
    path = write(frame(400), tmp_path / f"t.{form}", 100)
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": content[:-300], "text": b"x,y\n1,2\n"}[damage])
    with pytest.raises(InputError, match=f"{path}: expected a complete Parquet or Arrow file"):
        read(path)


def test_read__empty_tables_are_refused(tmp_path: Path) -> None:
    for form in FORMS:
        with pytest.raises(InputError, match=r"0 rows and \d columns"):
            read(write(frame().iloc[:0], tmp_path / f"t.{form}"))


# ---- memory, parallel, killed ---------------------------------------------------------------


def test_read__types_alone_take_no_pass(tmp_path: Path, monkeypatch: Any) -> None:
    path = write(frame()[["real", "single"]], tmp_path / "t.parquet")
    reads: list[Any] = []
    read_group = arrow_files.TypedFile.read

    def read_and_tell(file: Any, group: int, names: Any) -> Any:
        reads.append((group, *names))
        return read_group(file, group, names)

    monkeypatch.setattr(arrow_files.TypedFile, "read", read_and_tell)
    prepare_source(path, tmp_path / "store")
    assert reads == []
    write(frame()[["real", "word", "count"]], path)
    prepare_source(path, tmp_path / "other")
    assert reads == [(group, "word", "count") for group in range(6)]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("form", ["parquet", "arrows"])
def test_prepare__in_parallel_equals_serial(tmp_path: Path, form: str) -> None:
    path = write(frame(), tmp_path / f"t.{form}")
    serial, parallel = read(path), read(path, mapper=map_ordered)
    np.testing.assert_array_equal(parallel.values, serial.values)


@pytest.mark.usefixtures("way")
def test_prepare__killed_anywhere_is_taken_up(tmp_path: Path) -> None:
    path = write(frame(), tmp_path / "t.parquet")
    expected = read(path)

    def check(place: str, is_complete: bool) -> None:
        if is_complete:
            np.testing.assert_array_equal(read_source(path, place).values, expected.values)

    every_fault(
        tmp_path / "stores",
        prepare=lambda place: None,
        action=lambda place: prepare_source(path, place),
        check=check,
        stride=4,
    )
