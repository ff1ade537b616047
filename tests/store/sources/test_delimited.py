"""Text tables: what is read equals what was written, and what pandas reads, however cut."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import itertools
import json
import math
import secrets
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from distclust.engine import map_ordered
from distclust.errors import InputError
from distclust.store.mapping import serial_map
from distclust.store.matrix import Column
from distclust.store.sources import (
    Expected,
    SourceOptions,
    cells,
    delimited,
    find_files,
    header,
    number_cells,
    open_source,
    parser,
    prepare,
    schema,
)
from distclust.store.sources import _text_numerics as numerics
from distclust.store.sources.roles import assign_roles
from distclust.store.sources.spool import Spool
from tests.faults import every_fault
from tests.oracles.tables import Table, read_by_pandas
from tests.sources import Read, prepare_source, read_source, scratch_in

TINY = 150  # bytes a piece, so that everything falls into many


@pytest.fixture(params=["many pieces", "many pieces, plainly", "one piece"])
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut files in several ways, and read numbers apart or with everything else."""
    monkeypatch.setattr(delimited, "PIECE_BYTES", 2**20 if request.param == "one piece" else TINY)
    is_plain = request.param == "many pieces, plainly"
    monkeypatch.setattr(number_cells, "_SMALLEST", 2**20 if is_plain else 0)


@pytest.fixture
def many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delimited, "PIECE_BYTES", TINY)
    monkeypatch.setattr(number_cells, "_SMALLEST", 0)


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def read(path: Any, **options: Any) -> Read:
    return read_source(path, f"memory://{secrets.token_hex(8)}", **options)


def assert_same(found: Read, expected: Table) -> None:
    assert found.names == expected.names
    np.testing.assert_array_equal(found.values.astype(float), expected.values)
    assert [column.levels for column in found.prepared.columns] == expected.levels
    assert [column.number for column in found.prepared.columns] == expected.numbers
    assert {name: column.tolist() for name, column in found.obs.items()} == expected.obs
    names = list(map(str, found.ids)) if found.prepared.has_ids else None
    assert names == expected.ids


def assert_equals_pandas(path: Path, ids: str | None = None) -> None:
    assert_same(read(path, ids=ids), read_by_pandas(path, ids=ids))


# ---- equal to pandas, whatever the text looks like ------------------------------------------


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize(
    ("separator", "line_end", "ends", "suffix"),
    [
        (",", "\n", True, ".csv"),
        (";", "\r\n", False, ".csv"),
        ("\t", "\n", False, ".csv.gz"),
        ("\t", "\r\n", True, ".tsv"),
        (",", "\r\n", False, ".csv.gz"),
    ],
)
def test_read__text_equals_pandas(
    tmp_path: Path, separator: str, line_end: str, ends: bool, suffix: str
) -> None:
    lines = ["who;legs;kind;x;seen;when"]
    for i in range(40):
        kind = ["fish", "öre", '"a;b"', "", '"say ""so"""'][i % 5]
        lines.append(f"row{i};{i % 7};{kind};{i / 7!r};{i % 2 == 0};2020-01-{i % 28 + 1:02d}")
    text = line_end.join(lines).replace("a;b", "A").replace(";", separator).replace("A", "a;b")
    path = write(tmp_path / f"t{suffix}", text + (line_end if ends else ""))
    found, expected = read(path), read_by_pandas(path, separator)
    assert found.ids.tolist() == expected.ids == [f"row{i}" for i in range(40)]
    assert_same(found, expected)


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize(
    "cells",
    [
        ["1", "2", "3"],
        ["1", "2.5", "3"],
        ["1", "", "3"],
        ["-1", "300", "70000"],
        ["01", "2", "3"],
        ["1e3", ".5", "2."],
        ["9223372036854775807", "-9223372036854775808", "0"],
        ["0.1", "1e-320", "123456789012345678901234567890"],
        ["True", "FALSE", "true"],
        ["True", "", "False"],
        ["yes", "no", "yes"],
        ["0x10", "0x11", "10"],
        ["1_000", "x", "y"],
        ["12:30", "12:31", "12:30"],
        ["2020-1-1", "2020-1-2", "x"],
        ["2020-01-01", "x", "y"],
        ["2020-01-01", "", "2021-12-31"],
        ["2020-01-01 10:00", "2020-01-01", "2020-01-02T11:12:13.5"],
        ["NA", "null", "n/a"],
        ["a", "NaN", "<NA>"],
        ["", "", ""],
        ["１", "ß", "Ω"],
        ["a b", " lead", "trail "],
    ],
    ids="|".join,
)
@pytest.mark.parametrize("quoted", [False, True], ids=["plain", "quoted"])
def test_read__kinds_of_cells_equal_pandas(tmp_path: Path, cells: list[str], quoted: bool) -> None:
    shown = [f'"{cell}"' for cell in cells] if quoted else cells
    lines = [f"{number},{cell},z" for number, cell in enumerate(shown * 15)]
    assert_equals_pandas(write(tmp_path / "t.csv", "n,x,last\n" + "\n".join(lines)), ids="")


@pytest.mark.usefixtures("cut")
def test_read__spaces_after_separators_are_dropped_but_not_in_quotes(tmp_path: Path) -> None:
    text = 'a, b,  c\n 1, "x, y",  NA\n2,   " z",3\n  3, w w ,  " 4"\n' * 1
    assert_equals_pandas(write(tmp_path / "t.csv", text), ids="")


@pytest.mark.usefixtures("cut")
def test_read__line_ends_within_cells_are_text(tmp_path: Path) -> None:
    texts = ["one\ntwo", "plain", 'with "quotes"\r\nand more\n\n', '5" pipe', "a,\nb"] * 12
    content = io.StringIO()
    csv.writer(content, lineterminator="\n").writerows(
        [["n", "x\ny"], *([i, text] for i, text in enumerate(texts))]
    )
    path = write(tmp_path / "t.csv", content.getvalue())
    assert_equals_pandas(path, ids="")
    assert read(path, ids="").prepared.columns[1].levels == tuple(sorted(set(texts)))


@pytest.mark.usefixtures("cut")
def test_read__quotes_that_open_no_cell_are_ordinary_characters(tmp_path: Path) -> None:
    lines = [f'{i},5" pipe {i % 3},"in ""quotes"""' for i in range(30)]
    assert_equals_pandas(write(tmp_path / "t.csv", "n,x,y\n" + "\n".join(lines)), ids="")


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"\n\r\n", b""])
def test_read__byte_order_marks_and_empty_lines_are_skipped(tmp_path: Path, start: bytes) -> None:
    text = start + '"öre",x\n\n1,2\n\n\n3,4\n\n'.encode()
    found = read(write(tmp_path / "t.csv", text))
    assert found.names == ["öre", "x"]
    np.testing.assert_array_equal(found.values, [[1, 2], [3, 4]])


@pytest.mark.usefixtures("cut")
def test_read__line_ends_of_old_macs(tmp_path: Path) -> None:
    lines = ["x,y", *(f"{i},{i * i}" for i in range(50))]
    assert_equals_pandas(write(tmp_path / "t.csv", "\r".join(lines)))


def test_read__long_headers_and_long_cells(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(header, "_FIRST_READ", 16)
    names = [f"column {i}" for i in range(300)]
    rows = np.arange(900).reshape(3, 300)
    lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
    found = read(write(tmp_path / "t.csv", "\n".join(lines)))
    assert found.names == names
    np.testing.assert_array_equal(found.values, rows)
    text = "x" * 3 * 2**20  # longer than what the parser looks at at once
    found = read(write(tmp_path / "u.csv", f"x,y\n1,{text}\n2,b\n3,b\n"))
    assert found.prepared.columns[1].levels == ("b", text)


# ---- round trips ----------------------------------------------------------------------------

_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6)
_dates = st.dates().map(datetime.date.isoformat)
_times = st.datetimes().map(lambda when: when.replace(microsecond=0).isoformat(" "))
_kinds = {
    "integer": st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(-3, 300),
    "real": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "text": _text.map("t{}".format),
    "date": st.one_of(_dates, _times),
}


@st.composite
def _tables(draw: Any) -> tuple[list[str], list[list[Any]]]:
    kinds = draw(st.lists(st.sampled_from(sorted(_kinds)), min_size=1, max_size=5))
    hypothesis.assume(set(kinds) != {"date"})
    has_missing = draw(st.lists(st.booleans(), min_size=len(kinds), max_size=len(kinds)))
    cells = [
        st.one_of(st.none(), _kinds[kind]) if missing else _kinds[kind]
        for kind, missing in zip(kinds, has_missing, strict=True)
    ]
    return kinds, draw(st.lists(st.tuples(*cells).map(list), min_size=1, max_size=12))


def _shown(value: Any) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _expected_column(kind: str, cells: list[Any]) -> tuple[Column, list[float]]:
    present = [cell for cell in cells if cell is not None]
    has_missing = len(present) < len(cells)
    if kind in ("text", "date") and present:
        levels = tuple(sorted(set(present)))
        codes = [math.nan if cell is None else float(levels.index(cell)) for cell in cells]
        return Column("", "category", levels), codes
    numbers = [math.nan if cell is None else float(cell) for cell in cells]
    number: Any = kind if kind in ("bool", "real") else "integer"
    if not present or (number == "integer" and has_missing) or kind in ("text", "date"):
        number = "real"
    return Column("", number=number), numbers


@hypothesis.given(
    table=_tables(),
    size=st.sampled_from([1, 25, 2**20]),
    separator=st.sampled_from(",;\t|"),
    line_end=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    is_zipped=st.booleans(),
    is_plain=st.booleans(),
)
def test_read__round_trips(
    tmp_path_factory: Any,
    table: tuple[list[str], list[list[Any]]],
    size: int,
    separator: str,
    line_end: str,
    quoting: Any,
    is_zipped: bool,
    is_plain: bool,
) -> None:
    kinds, rows = table
    if quoting == csv.QUOTE_MINIMAL and line_end == "\n":  # "\r" would not be quoted
        hypothesis.assume(not any("\r" in str(cell) for row in rows for cell in row))
    # A line of one empty cell would be an empty line, which is no row.
    names = ["first", *(f"{kind} {i}" for i, kind in enumerate(kinds))]
    content = io.StringIO()
    writer = csv.writer(content, delimiter=separator, lineterminator=line_end, quoting=quoting)
    writer.writerow(names)
    writer.writerows([i, *map(_shown, row)] for i, row in enumerate(rows))
    folder = tmp_path_factory.mktemp("round-trip")
    path = write(folder / ("t.csv.gz" if is_zipped else "t.csv"), content.getvalue())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "PIECE_BYTES", size)
        patch.setattr(number_cells, "_SMALLEST", 2**20 if is_plain else 0)
        found = read(path, ids="", separator=separator)
    in_obs = {
        name: [row[i] for row in rows]
        for i, (kind, name) in enumerate(zip(kinds, names[1:], strict=True))
        if kind == "date" and any(row[i] is not None for row in rows)
    }
    assert {name: cells.tolist() for name, cells in found.obs.items()} == in_obs
    for i, (kind, name) in enumerate(zip(kinds, names[1:], strict=True)):
        if name in in_obs:
            continue
        column, values = _expected_column(kind, [row[i] for row in rows])
        k = found.names.index(name)
        known = found.prepared.columns[k]
        assert (known.kind, known.levels, known.number) == (
            column.kind, column.levels, column.number,
        )  # fmt: skip
        np.testing.assert_array_equal(found.values[:, k].astype(float), values)


@hypothesis.given(st.text('a, "\n;', max_size=40))
def test_last_line_end__agrees_with_the_csv_module(text: str) -> None:
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    ends = [reader.line_num for _ in reader]  # lines read after each record
    lines = text.splitlines(keepends=True)
    data = np.frombuffer(text.encode(), np.uint8)
    end, opened = numerics.last_line_end(data, ord(","), ord("\n"), False)
    closed = [n for n in ends if n < len(lines) or (opened < 0 and text.endswith("\n"))]
    assert end == sum(map(len, lines[: closed[-1] if closed else 0]))
    if opened >= 0:  # the rest of the text lies in a cell that begins here
        assert text[opened] == '"'
        inside = numerics.last_line_end(data[opened + 1 :], ord(","), ord("\n"), True)
        assert inside == (0, 0)


@hypothesis.given(
    st.lists(st.text('a,"\n', max_size=8), min_size=1, max_size=30), st.integers(1, 40)
)
def test_find_line_ends__cuts_between_records_only(
    tmp_path_factory: Any, texts: list[str], size: int
) -> None:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n", quoting=csv.QUOTE_ALL)
    starts = [content.tell()]
    for text in texts:
        writer.writerow([text, "b"])
        starts.append(content.tell())
    path = write(tmp_path_factory.mktemp("cut") / "t.csv", "x,y\n" + content.getvalue())
    (file,) = find_files(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "PIECE_BYTES", size)
        parts = delimited.cut_file(file, header.read_header(file, SourceOptions()))
    exact = delimited.find_line_ends(parts, serial_map)
    first = exact[0].start
    assert [part.start for part in exact[1:]] == [part.stop for part in exact[:-1]]
    assert exact[-1].stop == file.size
    assert {part.start - first for part in exact} <= set(starts)
    # Cuts are about as far apart as they were asked to be.
    longest = max(b - a for a, b in itertools.pairwise(starts))
    assert max(part.stop - part.start for part in exact) <= 2 * (size + longest)


# ---- numbers --------------------------------------------------------------------------------

_decimals = st.from_regex(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{0,17})?", fullmatch=True)
_cells = st.one_of(
    _decimals,
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.sampled_from(["", "NA", "+1", "-0", "-0.0", "1.", ".5", "007", "1E5", "1e-310", "2 ", "-"]),
)


@hypothesis.given(
    st.lists(st.tuples(_cells, _cells, _cells), min_size=1, max_size=9),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_numbers__read_apart_are_those_read_with_everything_else(
    rows: list[tuple[str, ...]], line_end: str, ends: bool
) -> None:
    cells_ = [",".join(["id", *row, "t"]) for row in rows]
    content = line_end.join(cells_) + (line_end if ends else "")
    roles = assign_roles(["k", "a", "b", "c", "d"], SourceOptions(ids=""), "")
    known = header.Header(roles.names, None, ",", ord("\n"), 0, 0)
    lines = parser.Lines(content.encode(), "here", known, lambda: 1)
    plain = parser.parse_lines(lines, roles)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(number_cells, "_SMALLEST", 0)
        apart = parser.parse_lines(lines, roles)
    for parsed in (plain, apart):  # what is missing says nothing about the rest
        flags = bytearray.fromhex(parsed.survey["flags"])
        for j in map(int, parsed.survey["missing"]):
            flags[j] |= flags[j] and schema.REAL
        parsed.survey["flags"] = flags
    assert apart.survey == plain.survey
    order = np.argsort(apart.arrays["places"])
    np.testing.assert_array_equal(apart.arrays["places"][order], plain.arrays["places"])
    values = [apart.arrays["matrix"][:, order], plain.arrays["matrix"]]
    np.testing.assert_array_equal(*values)
    assert values[0].dtype == values[1].dtype
    np.testing.assert_array_equal(*(np.signbit(matrix.astype(float)) for matrix in values))
    np.testing.assert_array_equal(apart.arrays["rest"], plain.arrays["rest"])


@hypothesis.given(st.lists(_decimals, min_size=1, max_size=20))
def test_read_short_numbers__are_rounded_correctly(texts: list[str]) -> None:
    data = np.frombuffer("".join(f"{text}\n" for text in texts).encode(), np.uint8)
    values = np.empty(len(data))
    is_real, n_missing = np.zeros(1, np.bool_), np.zeros(1, np.int64)
    places = data, ord(","), ord("\n"), np.ones(1, np.bool_)
    with np.errstate(over="ignore"):
        n_rows, n_values, _ = numerics.read_short_numbers(
            *places, values, data[:0].copy(), is_real, n_missing
        )
    is_short = all(sum(map(str.isdigit, text)) <= 15 for text in texts)
    assert n_rows == (len(texts) if is_short else -1)
    if is_short:
        assert values[: int(n_values)].tolist() == [float(text) for text in texts]
        assert is_real[0] == any("." in text for text in texts)
        assert n_missing[0] == 0


@pytest.mark.parametrize(
    "text", ["1,2\n1\n", "1,2\n1,2,3\n", "1,2\n3,4,", "1,2\n\n,\n3", "1,2\n1,x\n", "1,2\n1\r,2\n"]
)
def test_split__lines_of_other_lengths_and_other_cells_are_noticed(text: str) -> None:
    data = np.frombuffer(text.rstrip("\n").encode() + b"\n", np.uint8)
    kinds = number_cells._kinds(",", ord("\n"))
    is_number, is_real = np.ones(2, np.bool_), np.zeros(2, np.bool_)
    places = data, ord(","), ord("\n"), is_number
    empty = np.empty(0, np.uint8)
    out, values = np.empty(len(data), np.uint8), np.empty(len(data))
    assert numerics.split_numbers(*places, kinds, out, empty, is_real)[0] == -1
    n_missing = np.zeros(2, np.int64)
    assert numerics.read_short_numbers(*places, values, empty, is_real, n_missing)[0] == -1


# ---- types over all pieces ------------------------------------------------------------------


@pytest.mark.usefixtures("many_pieces")
@pytest.mark.parametrize("late", ["2.5", "", "NA", "-70000", "1e3"])
def test_types__one_late_cell_decides_for_all(tmp_path: Path, late: str) -> None:
    lines = [f"{i},{i % 9}" for i in range(200)] + [f"200,{late}"]
    assert_equals_pandas(write(tmp_path / "t.csv", "n,x\n" + "\n".join(lines)))


@pytest.mark.usefixtures("many_pieces")
def test_types__numbers_that_turn_out_to_be_text_are_read_as_written(tmp_path: Path) -> None:
    cells = [f"{i % 5:02d}" for i in range(40)] + ["True"] * 3 + [f"c{i % 4}" for i in range(60)]
    path = write(tmp_path / "t.csv", "n,x\n" + "".join(f"{i},{c}\n" for i, c in enumerate(cells)))
    assert_equals_pandas(path)
    assert "00" in read(path).prepared.columns[1].levels


@pytest.mark.usefixtures("many_pieces")
@pytest.mark.parametrize(
    ("cells", "dtype"),
    [
        ([0, 255], np.uint8),
        ([0, 256], np.uint16),
        ([-1, 0], np.int8),
        ([-1, 40_000], np.int32),
        ([0, 2**40], np.int64),
        (["True", "False"], np.bool_),
        (["True", "3"], np.uint8),
        ([1, 2.5], np.float64),
        ([1, ""], np.float64),
    ],
)
def test_types__dense_values_take_the_smallest_type(
    tmp_path: Path, cells: list[Any], dtype: Any
) -> None:
    a, b = cells
    is_mixed = {str(a), str(b)} == {"True", "3"}
    lines = [f"{a},{b}" if is_mixed else f"{cell},{cell}" for cell in [*[a] * 60, *[b] * 60]]
    found = read(write(tmp_path / "t.csv", "x,y\n" + "\n".join(lines)))
    assert found.values.dtype == dtype
    assert_equals_pandas(tmp_path / "t.csv")


@pytest.mark.usefixtures("many_pieces")
def test_types__slips_are_refused_with_file_column_and_line(tmp_path: Path) -> None:
    lines = [f'"a\nb",{i}' for i in range(50)] + ["c,7O", "c,1"]
    path = write(tmp_path / "t.csv", "what,count\n\n" + "\n".join(lines))
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value) == (
        f"{path}, column 'count', line 103: expected a number as in most rows, got '7O'. "
        "Mend the cell, empty it, or pass --category count."
    )
    assert len(read(path, categories=("count",)).prepared.columns[1].levels) == 51


@pytest.mark.usefixtures("many_pieces")
@pytest.mark.parametrize("number", ["inf", "-Infinity", "1e400"])
def test_types__infinite_values_are_refused(tmp_path: Path, number: str) -> None:
    text = "x,y\n" + "1,2\n" * 100 + f"1,{number}\n"
    with pytest.raises(InputError, match=r"column 'y', line 102: expected finite numbers"):
        read(write(tmp_path / "t.csv", text))


def test_types__too_many_levels_are_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(cells, "MAX_LEVELS", 50)
    monkeypatch.setattr(schema, "MAX_LEVELS", 50)
    for n_pieces in (1, 20):
        monkeypatch.setattr(delimited, "PIECE_BYTES", 2000 // n_pieces)
        text = "n,word\n" + "".join(f"{i},word{i % 51}\n" for i in range(150))
        path = write(tmp_path / "t.csv", text)
        with pytest.raises(InputError, match=r"more than 50.*--drop word, or keep.*--obs word"):
            read(path)
        assert len(read(path, obs=("word",)).obs["word"]) == 150
        assert read(path, drop=("word",)).names == ["n"]
    path = write(tmp_path / "u.csv", text.replace("word50", "word0"))
    assert len(read(path).prepared.columns[1].levels) == 50


# ---- names of rows, and roles of columns ----------------------------------------------------


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize(
    ("text", "options", "names", "ids"),
    [
        ("who,x\nb,1\na,2\n", {}, ["x"], ["b", "a"]),
        ("who,x\nb,1\nb,2\n", {}, ["who", "x"], None),
        ("who,x\nb,1\n,2\n", {}, ["who", "x"], None),
        ("who\nb\na\n", {}, ["who"], None),
        ("n,x\n1,1\n2,2\n", {}, ["n", "x"], None),
        ("n,x\n7,1\n9,2\n", {"ids": "n"}, ["x"], [7, 9]),
        ("n,x\n07,1\n9,2\n", {"ids": "n"}, ["x"], ["07", "9"]),
        ("n,x\n1.50,1\n2,2\n", {"ids": "n"}, ["x"], ["1.50", "2"]),
        (",x\n7,1\n9,2\n", {}, ["x"], [7, 9]),
        ("x\n7,1\n9,2\n", {}, ["x"], [7, 9]),
        (",x,k\n7,1,a\n9,2,b\n", {"ids": "k"}, ["x"], ["a", "b"]),
        (",x\n7,1\n9,2\n", {"ids": ""}, ["row", "x"], None),
        ("who,x\nb,1\na,2\n", {"ids": ""}, ["who", "x"], None),
        ("who,x\nb,1\na,2\n", {"categories": ("who",)}, ["who", "x"], None),
        ("when,x\n2020-01-01,1\n2020-01-02,2\n", {}, ["x"], ["2020-01-01", "2020-01-02"]),
        ("x,,y\n1,2,3\n", {}, ["x", "Unnamed: 1", "y"], None),
    ],
)
def test_ids__follow_the_rule(
    tmp_path: Path, text: str, options: dict[str, Any], names: list[str], ids: list[Any] | None
) -> None:
    found = read(write(tmp_path / "t.csv", text), **options)
    assert found.names == names
    assert found.prepared.has_ids == (ids is not None)
    assert found.ids.tolist() == (list(range(len(found.ids))) if ids is None else ids)


@pytest.mark.usefixtures("many_pieces")
@pytest.mark.parametrize("n_parts", [1, 4])
@pytest.mark.parametrize("hashing", ["as it is", "all equal"])
def test_ids__repetitions_are_found_across_pieces(
    tmp_path: Path, monkeypatch: Any, n_parts: int, hashing: str
) -> None:
    monkeypatch.setattr(prepare, "_KEYS_AT_ONCE", 128 // n_parts)
    if hashing == "all equal":
        monkeypatch.setattr(cells, "hash_texts", lambda texts: np.ones(len(texts), np.uint64))
    lines = [f"row{i},{i}" for i in range(100)]
    distinct = write(tmp_path / "t.csv", "who,x\n" + "\n".join(lines))
    assert read(distinct).ids.tolist() == [f"row{i}" for i in range(100)]
    repeated = write(tmp_path / "u.csv", "who,x\n" + "\n".join([*lines, "row3,1"]))
    assert read(repeated).names == ["who", "x"]


def test_ids__missing_ones_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "k,x\na,1\n,2\n")
    with pytest.raises(InputError, match="column 'k': expected row ids, got 1 rows without one"):
        read(path, ids="k")


@pytest.mark.usefixtures("cut")
def test_obs__columns_of_every_kind_are_kept(tmp_path: Path) -> None:
    names = ["n", "some", "real", "truth", "maybe", "word", "when", "mixed"]
    rows = [
        [i, i if i % 2 else "", i / 3, i % 2 == 0, ["TRUE", ""][i % 2], f"w{i}", "2020-01-01",
         f"{i:03d}" if i < 20 else "late"]
        for i in range(30)
    ]  # fmt: skip
    lines = [",".join(map(str, [*row, 1])) for row in rows]
    path = write(tmp_path / "t.csv", ",".join([*names, "x"]) + "\n" + "\n".join(lines))
    found = read(path, obs=tuple(names), ids="")
    assert found.names == ["x"]
    assert list(found.prepared.obs_kinds.values()) == [
        "integer", "real", "real", "bool", "text", "text", "text", "text",
    ]  # fmt: skip
    columns = [list(column) for column in zip(*rows, strict=True)]
    np.testing.assert_array_equal(found.obs["some"][1::2], columns[1][1::2])
    assert np.isnan(found.obs["some"][::2]).all()
    columns[4] = ["TRUE" if cell else None for cell in columns[4]]
    for name, cells_ in zip(names, columns, strict=True):
        if name != "some":
            assert found.obs[name].tolist() == cells_


def test_roles__wrong_names_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x,y\n1,2\n")
    with pytest.raises(InputError, match=r"expected a column 'z', got x, y\."):
        read(path, obs=("z",))
    with pytest.raises(InputError, match="one role for each column, got 'x' twice"):
        read(path, obs=("x",), drop=("x",))
    with pytest.raises(InputError, match="different names, got 'x' twice"):
        read(write(tmp_path / "u.csv", "x,y,x\n1,2,3\n"))
    with pytest.raises(InputError, match="at least one column, got none that is left"):
        read(path, drop=("x", "y"))


def test_expected__levels_keep_their_codes_and_kinds_hold(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "code,note,x,who\n7,5,1,a\n3,6,2,b\n7,7,2,c\n")
    columns = (Column("code", "category", ("9", "7")), Column("x", number="integer"))
    expected = Expected(columns, {"note": "text"}, "text")
    found = read(path, expected=expected, ids="who")
    assert found.prepared.columns[0].levels == ("9", "7", "3")
    np.testing.assert_array_equal(found.values[:, 0], [1, 2, 1])
    assert found.obs["note"].tolist() == ["5", "6", "7"]


# ---- several files, damage ------------------------------------------------------------------


@pytest.mark.usefixtures("many_pieces")
def test_files__are_stacked_in_order(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i, suffix in enumerate([".csv", ".csv.gz", ".csv", ".csv"]):
        rows = "".join(f"{i}{j:02d},t{j % 3}\n" for j in range(0 if i == 2 else 30))
        write(tmp_path / "in" / f"part{i}{suffix}", "n,x\n" + rows)
    write(tmp_path / "in" / "_SUCCESS", "")
    write(tmp_path / "in" / ".hidden.csv", "a\n1\n")
    expected = [int(f"{i}{j:02d}") for i in (0, 1, 3) for j in range(30)]
    by_hand = [str(path) for path in sorted((tmp_path / "in").glob("part*"))]
    for spec in (tmp_path / "in", f"{tmp_path}/in/part*", by_hand):
        found = read(spec)
        assert found.values[:, 0].tolist() == expected
        assert found.prepared.columns[1].levels == ("t0", "t1", "t2")


def test_files__other_headers_are_refused_by_name(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", "x,y\n1,2\n")
    other = write(tmp_path / "b.csv", "x,z\n1,2\n")
    longer = write(tmp_path / "c.csv", "x,y,z\n1,2,3\n")
    with pytest.raises(InputError, match=f"{other}: expected column 2 named 'y' as in {first}"):
        read([str(first), str(other)])
    with pytest.raises(InputError, match=f"{longer}: expected 2 columns as in {first}, got 3"):
        read([str(first), str(longer)])


def test_files__lines_are_counted_in_each_file(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", "x,y\n" + "1,2\n" * 30)
    other = write(tmp_path / "b.csv.gz", "x,y\n" + "1,2\n" * 5 + "1,two\n")
    with pytest.raises(InputError, match=rf"{other}, column 'y', line 7"):
        read([str(first), str(other)])


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "expected a header and rows, got an empty file"),
        (b"\n\n", "expected a header and rows, got an empty file"),
        (b"x,y\n", "0 rows and 2 columns"),
        (b"x,y\n" + b"3,4\n" * 60 + b"1,2,3\n", "line 62: expected 2 cells as .*, got 3"),
        (b"x,y\n" + b"3,4\n" * 60 + b'\n"5\n6",7\n1\n', "line 65: expected 2 cells .*, got 1"),
        (b"x,y\n1,2,3,4\n", "a name for every column, got 2 names over 4 columns"),
        (b"x,y\n" + b"a,4\n" * 60 + b"\xff\xfe,1\n", "line 62: expected UTF-8 text, .* 0xff"),
        ("x,y\nå,1\n".encode("utf-16"), "line 1: expected UTF-8 text, got the byte 0xff"),
        (b"x,y\n" + b"a,4\n" * 60 + b'"open,5\n' + b"b,6\n" * 9, "line 62: expected a quoted cell"),
    ],
)  # fmt: skip
def test_damage__gets_a_sentence(tmp_path: Path, content: bytes, says: str, suffix: str) -> None:
    path = write(tmp_path / f"t{suffix}", content)
    with pytest.raises(InputError, match=says) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.usefixtures("many_pieces")
@pytest.mark.parametrize("cut", [-9, 40, 0])
def test_damage__gzip_that_is_cut_short_or_altered(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "t.csv.gz"
    content = bytearray(gzip.compress(b"x,y\n" + b"1,2\n3,4\n" * 2000))
    content[-6] ^= cut == 0
    path.write_bytes(content[: cut or None])
    with pytest.raises(InputError, match="expected a complete gzip file"):
        read(path)


def test_damage__quotes_left_open_for_ever_are_given_up(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(delimited, "_LONGEST_CELL", 500)
    monkeypatch.setattr(delimited, "PIECE_BYTES", 100)
    text = "x,y\n" + "a,4\n" * 10 + '"open,5\n' + "b,6\n" * 900 + '"c",7\n'
    for name in ("t.csv", "t.csv.gz"):
        with pytest.raises(InputError, match="line 12: expected a quoted cell to end"):
            read(write(tmp_path / name, text))


def test_files__that_change_meanwhile_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x,y\n1,2\n")
    source = open_source(path)
    write(path, "x,y\n1,2\n3,4\n")
    with pytest.raises(InputError, match="expected the file as it was at first"):
        source.prepare(scratch_in(tmp_path / "store"), serial_map)


# ---- parallel, and after a kill -------------------------------------------------------------

_MIXED = "who,word,x\n" + "".join(
    f"row{i},{i % 3 if i < 40 else 'late'},{i / 7}\n" for i in range(120)
)


@pytest.mark.usefixtures("many_pieces")
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_prepare__in_parallel_equals_serial(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, _MIXED)
    serial, parallel = read(path), read(path, mapper=map_ordered)
    np.testing.assert_array_equal(parallel.values, serial.values)
    np.testing.assert_array_equal(parallel.ids, serial.ids)
    assert parallel.prepared.columns == serial.prepared.columns


@pytest.mark.cluster
@pytest.mark.usefixtures("on_client")
def test_prepare__on_a_cluster_equals_serial(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", _MIXED)
    on_workers = read_source(path, tmp_path / "store", map_ordered)
    np.testing.assert_array_equal(on_workers.values, read(path).values)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.usefixtures("many_pieces")
def test_prepare__killed_anywhere_is_taken_up(tmp_path: Path, monkeypatch: Any, name: str) -> None:
    path = write(tmp_path / name, _MIXED.replace("late", '"la\nte"'))
    expected = read(path)
    written = tmp_path / "written"
    write_piece = Spool.write

    def write_and_tell(spool: Spool, number: int, parsed: Any, *args: Any) -> Any:
        with written.open("a") as file:
            file.write(f"{spool._scratch.prefix} {number} {args}\n")
        return write_piece(spool, number, parsed, *args)

    monkeypatch.setattr(Spool, "write", write_and_tell)

    def check(place: str, is_complete: bool) -> None:
        if not is_complete:
            return
        found = read_source(path, place)
        np.testing.assert_array_equal(found.values, expected.values)
        told = written.read_text().splitlines()
        # The piece that was being written when the kill came is written again, no other.
        assert len(told) <= len(set(told)) + 1
        written.unlink()

    n_faults = every_fault(
        tmp_path / "stores",
        prepare=lambda place: written.unlink(missing_ok=True),
        action=lambda place: prepare_source(path, place),
        check=check,
        stride=5,
    )
    assert n_faults > 20


def test_identity__tells_files_and_options_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "x,y\n1,2\n")
    identity = open_source(path).identity()
    assert identity == open_source(path).identity() == json.loads(json.dumps(identity))
    assert identity != open_source(path, SourceOptions(drop=("x",))).identity()
    write(path, "x,y\n1,3\n")
    assert identity != open_source(path).identity()
