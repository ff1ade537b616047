"""What columns are: roles before a cell is read, kinds after all of them."""

from __future__ import annotations

import functools
import operator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest

from distclust.errors import InputError
from distclust.store.matrix import Column
from distclust.store.sources import Expected, SourceOptions, cells, schema
from distclust.store.sources.packing import pack
from distclust.store.sources.roles import Roles, assign_roles, check_same_names
from distclust.store.sources.schema import Schema, Totals, settle, smallest_integer


def survey(columns: dict[str, list[Any]], roles: Roles | None = None) -> Schema:
    """Settle a table that comes in one piece for each element of its columns."""
    roles = roles or assign_roles(list(columns), SourceOptions(ids=""), "here")
    totals = totals_of(columns, roles)
    return settle(totals, None, "here", lambda column: True)


def totals_of(columns: dict[str, list[Any]], roles: Roles) -> Totals:
    totals = Totals(roles)
    for number, parts in enumerate(zip(*columns.values(), strict=True)):
        arrays = {j: pa.chunked_array([pa.array(part)]) for j, part in enumerate(parts)}
        n_rows = len(parts[0])
        parsed = pack(arrays, n_rows, roles, line_of=lambda row: row + 1)
        totals.add(parsed.survey, n_rows, lambda line, number=number: f"part {number}, line {line}")
    return totals


# ---- roles ----------------------------------------------------------------------------------


def test_assign_roles__places_count_what_is_read() -> None:
    options = SourceOptions(ids="c", drop=("a",), obs=("e",), categories=("d",))
    roles = assign_roles(list("abcde"), options, "here")
    assert roles.names == ("b", "c", "d", "e")
    assert roles.places == (1, 2, 3, 4)
    assert (roles.ids, roles.candidate) == (1, None)
    assert (roles.obs, roles.categories, roles.as_text) == ({3}, {2}, {2})
    assert [roles.is_feature(j) for j in range(4)] == [True, False, True, False]


@pytest.mark.parametrize(
    ("options", "index", "ids", "candidate", "names"),
    [
        ({}, None, None, 0, "abc"),
        ({"ids": ""}, None, None, None, "abc"),
        ({"obs": ("a",)}, None, None, None, "abc"),
        ({"drop": ("a",)}, None, None, 0, "bc"),
        ({"drop": ("a", "b")}, None, None, None, "c"),
        ({}, 0, 0, None, "abc"),
        ({"ids": "b"}, 0, 0, None, "bc"),
        ({"ids": ""}, 0, None, None, "abc"),
        ({"ids": "a"}, 0, 0, None, "abc"),
    ],
)
def test_assign_roles__the_first_column_may_name_rows(
    options: Any, index: int | None, ids: int | None, candidate: int | None, names: str
) -> None:
    roles = assign_roles(list("abc"), SourceOptions(**options), "here", index)
    assert (roles.ids, roles.candidate) == (ids, candidate)
    assert roles.names == tuple(names)


def test_assign_roles__what_a_store_expects_comes_first() -> None:
    columns = (Column("a"), Column("c", "category", ("x",)))
    options = SourceOptions(expected=Expected(columns, {"b": "text", "d": "real"}))
    roles = assign_roles(list("abcd"), options, "here")
    assert roles.candidate is None  # it is a feature there
    assert (roles.obs, roles.categories, roles.as_text) == ({1, 3}, {2}, {1, 2})
    assert assign_roles(list("wabcd"), options, "here").candidate == 0


# ---- kinds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([[1, 2], [3]], "integer"),
        ([[1, 2], [3.5]], "real"),
        ([[1, None], [3]], "real"),
        ([[1], [None]], "real"),
        ([[None], [None]], "real"),
        ([[True], [False]], "bool"),
        ([[True], [None, False]], "bool"),
        ([["a"], ["b", None]], "category"),
        ([["a"], [None]], "category"),
    ],
)
def test_settle__kinds_of_columns(parts: list[Any], kind: str) -> None:
    (column,) = survey({"x": parts}).columns
    assert kind == ("category" if column.kind == "category" else column.number)


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        ({"x": [[1], [255]]}, np.uint8),
        ({"x": [[-1], [255]]}, np.int16),
        ({"x": [[1], [2]], "y": [[70_000], [1]]}, np.uint32),
        ({"x": [[1], [2]], "y": [[True], [False]]}, np.uint8),
        ({"x": [["a"], ["b"]], "y": [[-3], [4]]}, np.int8),
        ({"x": [["a"], ["b"]]}, np.uint8),
        ({"x": [["a"], [None]]}, np.float64),
        ({"x": [[True], [False]]}, np.bool_),
        ({"x": [[True], [None]]}, np.float64),
        ({"x": [[1], [2]], "y": [[0.5], [1]]}, np.float64),
        ({"x": [[2**40], [0]]}, np.int64),
    ],
)
def test_settle__values_take_the_smallest_type(columns: Any, dtype: Any) -> None:
    assert survey(columns).dtype == dtype


def test_settle__many_levels_count_for_the_type() -> None:
    texts = [f"t{i:03d}" for i in range(300)]
    assert survey({"x": [texts[:200], texts[150:]]}).dtype == np.uint16
    assert survey({"x": [texts[:200], texts[150:]]}).columns[0].levels == tuple(texts)


def test_misread__are_columns_of_text_that_some_piece_took_for_something_else() -> None:
    columns = {
        "number": [[1], ["a"]],
        "truth": [[True], ["a"]],
        "both": [[True], [1]],
        "text": [["a"], ["1"]],
        "real": [[1], [1.5]],
    }
    roles = assign_roles(list(columns), SourceOptions(ids=""), "here")
    assert totals_of(columns, roles).misread() == {0, 1, 2}
    columns = {"truth": [[True], [None]], "number": [[1], [None]], "x": [[1], [1]]}
    roles = assign_roles(list(columns), SourceOptions(ids="", obs=("truth", "number")), "here")
    assert totals_of(columns, roles).misread() == {0}


_kinds = [st.integers(-9, 9), st.floats(-9, 9), st.booleans(), st.text("ab1", max_size=2)]
_piece = st.one_of(st.lists(st.one_of(st.none(), kind), min_size=1, max_size=4) for kind in _kinds)


@hypothesis.given(st.lists(_piece, min_size=2, max_size=5))
def test_totals__do_not_depend_on_the_order_of_pieces(parts: list[Any]) -> None:
    roles = assign_roles(["x"], SourceOptions(ids=""), "here")
    one, other = (totals_of({"x": order}, roles) for order in (parts, parts[::-1]))
    for name in ("n_rows", "bounds"):
        assert getattr(one, name) == getattr(other, name)
    for name in ("flags", "missing", "numbers"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.kind(0) == other.kind(0)
    assert {j: facts.levels for j, facts in one.texts.items()} == {
        j: facts.levels for j, facts in other.texts.items()
    }


# ---- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_numbers", "n_texts", "is_slip"), [(9, 1, True), (5, 5, False), (6, 5, True), (1, 9, False)]
)
def test_check_slips__fewer_than_half(n_numbers: int, n_texts: int, is_slip: bool) -> None:
    cells_ = [["1"] * n_numbers + ["O"] * n_texts]
    roles = assign_roles(["x"], SourceOptions(ids=""), "here")
    totals = totals_of({"x": cells_}, roles)
    if not is_slip:
        totals.check_slips()
        return
    with pytest.raises(InputError, match=f"part 0, column 'x', line {n_numbers + 1}: .*'O'"):
        totals.check_slips()


def test_check_slips__truth_values_among_numbers() -> None:
    roles = assign_roles(["x"], SourceOptions(ids=""), "here")
    totals = totals_of({"x": [[1, 2, 3], [None, True]]}, roles)
    with pytest.raises(InputError, match=r"part 1, column 'x', line 2: .*'True'"):
        totals.check_slips()


def test_settle__nothing_left_is_refused() -> None:
    with pytest.raises(InputError, match="0 rows and 1 columns"):
        survey({"x": [[], []]})
    roles = assign_roles(["x"], SourceOptions(ids="", obs=("x",)), "here")
    with pytest.raises(InputError, match="1 rows and 0 columns"):
        survey({"x": [[1]]}, roles)


def test_check_same_names__says_where_they_differ() -> None:
    check_same_names(["a", "b"], ["a", "b"], "f", "g")
    with pytest.raises(InputError, match="f: expected column 2 named 'b' as in g, got 'c'"):
        check_same_names(["a", "c"], ["a", "b"], "f", "g")
    with pytest.raises(InputError, match="f: expected 3 columns as in g, got 2"):
        check_same_names(["a", "b"], ["a", "b", "c"], "f", "g")


# ---- single columns -------------------------------------------------------------------------


@hypothesis.given(st.integers(-(2**63), 2**63), st.integers(-(2**63), 2**64 - 1))
def test_smallest_integer__holds_both_and_none_smaller_does(a: int, b: int) -> None:
    low, high = sorted((a, b))
    dtype = smallest_integer(low, high)
    kinds = [np.dtype(f"{letter}{size}") for size in (1, 2, 4, 8) for letter in "ui"]
    holds = {kind: np.iinfo(kind).min <= low and high <= np.iinfo(kind).max for kind in kinds}
    if dtype == np.float64:
        assert not any(holds.values())
    else:
        assert holds[dtype]
        assert not any(holds[kind] for kind in kinds if kind.itemsize < dtype.itemsize)


@pytest.mark.parametrize(
    ("texts", "whole"),
    [
        (["1", "-20", "0"], True),
        (["9223372036854775807"], True),
        (["9223372036854775808"], False),
        (["01"], False),
        (["+1"], False),
        (["-0"], False),
        (["1.0"], False),
        (["a"], False),
        (["1", None], True),
    ],
)
def test_is_whole__as_python_writes_them(texts: list[Any], whole: bool) -> None:
    assert cells.is_whole(pa.array(texts)) == whole


@hypothesis.given(st.lists(st.text(), max_size=20))
def test_hash_texts__equal_texts_only_have_equal_hashes(texts: list[str]) -> None:
    array = pa.array(["x", *texts], pa.string())[1:]  # a slice: its bytes begin later
    hashes = cells.hash_texts(array).tolist()
    for text, found in zip(texts, hashes, strict=True):
        assert found == functools.reduce(
            lambda value, byte: operator.xor(value, byte) * 0x100000001B3 % 2**64,
            text.encode(),
            0xCBF29CE484222325,
        )


@pytest.mark.parametrize(
    ("stamp", "text"),
    [
        ("2020-01-31T10:20:30", "2020-01-31T10:20:30"),
        ("2020-01-31T10:20:30.5", "2020-01-31T10:20:30.5"),
        ("2020-01-31T10:20:30.000001", "2020-01-31T10:20:30.000001"),
        ("1677-09-22T00:00:00", "1677-09-22T00:00:00"),
    ],
)
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_as_text__stamps_are_iso(stamp: str, text: str, zone: str | None) -> None:
    values = np.array([stamp, "NaT"], "datetime64[ns]")
    column = pa.chunked_array([pa.array(values, pa.timestamp("ns", zone))])
    assert cells.as_text(column).to_pylist() == [text + ("Z" if zone else ""), None]


@pytest.mark.parametrize("dtype", [pa.list_(pa.int64()), pa.binary(), pa.duration("s")])
def test_flag_of__what_is_no_cell_is_refused(dtype: Any) -> None:
    with pytest.raises(InputError, match="--drop"):
        cells.flag_of(dtype, "column 'x'")
    assert cells.flag_of(pa.dictionary(pa.int8(), pa.int64()), "") == schema.TEXT


def test_level_codes__levels_that_nobody_told_of_are_refused() -> None:
    levels = pa.array(["a", "b"])
    column = pa.chunked_array([pa.array(["b", None]), pa.array(["a"])])
    np.testing.assert_array_equal(cells.level_codes(column, levels, "x"), [1, np.nan, 0])
    encoded = column.dictionary_encode()
    np.testing.assert_array_equal(cells.level_codes(encoded, levels, "x"), [1, np.nan, 0])
    with pytest.raises(InputError, match="x: expected the source as it was at first"):
        cells.level_codes(column, levels[:1], "x")
