"""Everything a user may pass in, and every refusal."""

from __future__ import annotations

import datetime
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import sparse

from distclust import engine
from distclust.engine import as_matrix
from distclust.errors import InputError
from distclust.store import Column

VALUES = np.array([[0, 2, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    "X",
    [
        VALUES,
        VALUES.astype(np.float32),
        np.asfortranarray(VALUES),
        VALUES.tolist(),
        VALUES.astype(object),
        scipy.sparse.csr_matrix(VALUES),
        scipy.sparse.csc_array(VALUES),
        scipy.sparse.lil_matrix(VALUES),
        scipy.sparse.coo_array(VALUES),
        sparse.COO.from_numpy(VALUES),
        sparse.GCXS.from_numpy(VALUES, compressed_axes=(1,)),
        sparse.DOK.from_numpy(VALUES),
        pd.DataFrame(VALUES),
        pd.DataFrame(VALUES, columns=list("abc")).astype(pd.SparseDtype("float", 0)),
        da.from_array(VALUES, chunks=(1, 2)),
        da.from_array(VALUES, chunks=(1, 2)).map_blocks(scipy.sparse.csr_matrix),
        engine.as_matrix(VALUES),
    ],
    ids=lambda X: f"{type(X).__module__}.{type(X).__name__}",
)
def test_as_matrix__takes_every_kind(X):
    matrix = as_matrix(X)
    assert matrix.shape == (2, 3)
    block = matrix.block(0)
    assert scipy.sparse.issparse(block) == matrix.is_sparse
    assert block.dtype == matrix.dtype
    np.testing.assert_array_equal(block.toarray() if matrix.is_sparse else block, VALUES)


def test_as_matrix__masked_values_are_missing():
    masked = np.ma.masked_equal(VALUES, 2)
    np.testing.assert_array_equal(as_matrix(masked).block(0), [[0, np.nan, 0], [1, 0, 0]])


def test_as_matrix__chunks_of_unknown_length_are_measured():
    array = da.from_array(np.arange(20.0).reshape(10, 2), chunks=(3, 2))
    picked = array[array[:, 0] > 5]
    assert np.isnan(picked.shape[0])
    matrix = as_matrix(picked)
    assert matrix.shape == (7, 2)
    np.testing.assert_array_equal(matrix.read_all()[:, 0], np.arange(6, 20, 2))
    assert np.isnan(picked.shape[0])  # the user's array is left alone


REFUSALS: list[tuple[Any, str]] = [
    (np.ones(3), r"got 1D array instead.*Reshape your data"),
    (np.ones((2, 2, 2)), "3D array"),
    (3.0, "0D array"),
    (pd.Series([1.0, 2.0]), "1D array"),
    (scipy.sparse.coo_array(np.ones(3)), "1D array"),
    (sparse.COO.from_numpy(np.ones(3)), "1D array"),
    (da.ones(5), "1D array"),
    (np.ones((0, 3)), r"0 sample\(s\) \(shape=\(0, 3\)\) while a minimum of 1 is required\."),
    (np.ones((3, 0)), r"0 feature\(s\) \(shape=\(3, 0\)\) while a minimum of 1 is required\."),
    (scipy.sparse.csr_array((0, 3)), r"0 sample\(s\)"),
    (da.ones((0, 3)), r"0 sample\(s\)"),
    (pd.DataFrame({"a": []}), r"0 sample\(s\)"),
    (np.ones((2, 2), complex), "Complex data not supported"),
    (scipy.sparse.csr_array(np.ones((2, 2), complex)), "Complex data not supported"),
    (da.ones((2, 2), dtype=complex), "Complex data not supported"),
    (np.array([["a", "b"]]), "real numbers"),
    (np.array([["a", 1]], dtype=object), "the text 'a'"),
    (np.array([["2020-01-01"]], dtype="datetime64[D]"), "datetime64"),
    ([[1, 2], [3]], "rows of equal length"),
    (np.array([[1.0, 2.0], [3.0, np.inf]]), "inf in row 1, column 1"),
    (np.array([[-np.inf, np.nan]]), "inf in row 0, column 0"),
    (scipy.sparse.csr_array([[0.0, 0.0], [0.0, np.nan]]), "NaN in row 1, column 1"),
    (scipy.sparse.csr_array([[0.0, 0.0], [np.inf, 1.0]]), "inf in row 1, column 0"),
    (sparse.COO.from_numpy(np.ones((2, 2)), fill_value=1.0), "fill value 1"),
    (pd.DataFrame({"a": [1.0, np.inf]}), "inf in row 1, column 0"),
    (pd.DataFrame({"when": [datetime.datetime(2020, 1, 1)]}), "'when'.*datetime64"),
    (pd.DataFrame([[1, 2]], columns=["a", "a"]), "'a' twice"),
    (pd.DataFrame({"a": pd.Categorical([1, "1"])}), "several that print as '1'"),
]


@pytest.mark.parametrize(("X", "message"), REFUSALS)
def test_as_matrix__refuses_with_a_sentence(X, message):
    with pytest.raises(InputError, match=message) as caught:
        as_matrix(X, where="BHC.fit(X)")
    assert str(caught.value).startswith("BHC.fit(X)")
    assert isinstance(caught.value, ValueError)


def test_as_matrix__objects_that_are_no_numbers_are_a_type_error():
    with pytest.raises(TypeError, match=r"argument must be .* string.* number"):
        as_matrix(np.array([[{"foo": "bar"}]], dtype=object))


def test_as_matrix__dask_table_is_refused_with_the_remedy():
    import dask.bag

    with pytest.raises(InputError, match="to_dask_array"):
        as_matrix(dask.bag.from_sequence([1, 2]))


@pytest.mark.parametrize(
    ("announced", "convert"),
    [
        (np.empty((0, 0)), lambda chunk: chunk[:-1]),
        (np.empty((0, 0)), scipy.sparse.csr_array),
        (np.empty((0, 0), int), lambda chunk: chunk + 0.5),
    ],
)
def test_as_matrix__dask_chunks_that_are_not_as_announced(announced, convert):
    array = da.from_array(np.ones((4, 2)), chunks=(2, 2)).map_blocks(
        convert, meta=announced, dtype=announced.dtype
    )
    with pytest.raises(InputError, match="as the Dask array says"):
        as_matrix(array).block(0)


def test_as_matrix__dask_block_that_failed_can_be_read_again():
    failures = [RuntimeError("first")]

    def fail_once(chunk: np.ndarray) -> np.ndarray:
        if failures:
            raise failures.pop()
        return chunk

    array = da.from_array(np.ones((4, 2)), chunks=(4, 2)).map_blocks(
        fail_once, meta=np.empty((0, 0))
    )
    matrix = as_matrix(array)
    with pytest.raises(RuntimeError, match="first"):
        matrix.block(0)
    np.testing.assert_array_equal(matrix.block(0), np.ones((4, 2)))


def test_as_matrix__sparse_dask_nan_names_its_row():
    values = np.zeros((40_000, 2))
    values[20_000, 1] = np.nan
    array = da.from_array(values, chunks=(15_000, 2)).map_blocks(scipy.sparse.csr_array)
    with pytest.raises(InputError, match="NaN in row 20000, column 1"):
        as_matrix(array).block(1)


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "flag": [True, False, True],
            "count": [3, 0, 5],
            "size": [0.5, np.nan, 2.0],
            "colour": ["red", None, "blue"],
            "grade": pd.Categorical(
                ["low", "high", "low"], categories=["low", "mid", "high"], ordered=True
            ),
            "zone": pd.Categorical([20, 10, np.nan], categories=[20, 10]),
            "maybe": pd.array([1, None, 3], dtype="Int64"),
            "loose": np.array([1, None, 2.5], dtype=object),
        },
        index=["r1", "r2", "r3"],
    )


COLUMNS = (
    Column("flag", number="bool"),
    Column("count", number="integer"),
    Column("size", number="real"),
    Column("colour", "category", ("blue", "red")),
    Column("grade", "category", ("low", "mid", "high")),
    Column("zone", "category", ("10", "20")),
    Column("maybe", number="integer"),
    Column("loose", number="real"),
)


def test_as_matrix__table_becomes_numbers_and_codes(table):
    matrix = as_matrix(table)
    assert matrix.columns == COLUMNS
    assert matrix.row_ids.tolist() == ["r1", "r2", "r3"]
    nan = np.nan
    expected = [
        [1, 3, 0.5, 1, 0, 1, 1, 1],
        [0, 0, nan, nan, 2, 0, nan, nan],
        [1, 5, 2.0, 0, 0, nan, 3, 2.5],
    ]
    np.testing.assert_array_equal(matrix.block(0), expected)


def test_as_matrix__table_of_one_type_keeps_it():
    assert as_matrix(pd.DataFrame({"a": [True], "b": [False]})).dtype == np.bool_
    assert as_matrix(pd.DataFrame({"a": [1], "b": [2]}, dtype="uint8")).dtype == np.uint8
    assert as_matrix(pd.DataFrame({"a": [1], "b": [2.0]})).dtype == np.float64


def test_as_matrix__counted_columns_and_rows_are_like_an_array():
    matrix = as_matrix(pd.DataFrame(VALUES))
    assert matrix.columns == as_matrix(VALUES).columns
    assert matrix.row_ids.tolist() == [0, 1]


def test_as_matrix__new_rows_take_the_codes_of_the_fitted_columns(table):
    new = table.iloc[[2, 0]].assign(colour=["red", "red"])
    matrix = as_matrix(new, columns=COLUMNS)
    assert matrix.columns is COLUMNS
    assert matrix.block(0)[:, 3].tolist() == [1, 1]
    assert matrix.block(0)[:, 4].tolist() == [0, 0]


def test_as_matrix__unknown_level_is_named(table):
    with pytest.raises(InputError, match=r"column 'colour'.*'green'"):
        as_matrix(table.assign(colour=["red", "green", "blue"]), columns=COLUMNS)


def test_as_matrix__other_names_order_or_width(table):
    with pytest.raises(InputError, match=r"column 2 named 'size', got 'length'.*should match"):
        as_matrix(table.rename(columns={"size": "length"}), columns=COLUMNS)
    swapped = table[[*table.columns[[1, 0]], *table.columns[2:]]]
    with pytest.raises(InputError, match="same order"):
        as_matrix(swapped, columns=COLUMNS)
    sentence = "X has 7 features, but BHC is expecting 8 features as input"
    for data in (table.iloc[:, 1:], np.ones((2, 7)), scipy.sparse.csr_array(np.ones((2, 7)))):
        with pytest.raises(InputError, match=sentence):
            as_matrix(data, columns=COLUMNS, where="BHC.predict(X)")


def test_as_matrix__text_where_fit_had_numbers(table):
    with pytest.raises(InputError, match=r"'size'.*numbers as in fit"):
        as_matrix(table.assign(size=["a", "b", "c"]), columns=COLUMNS)


def test_as_matrix__array_cannot_stand_for_categories():
    with pytest.raises(InputError, match=r"'colour'.*categories as in fit"):
        as_matrix(np.ones((2, 8)), columns=COLUMNS)


def test_as_matrix__array_takes_names_of_number_columns():
    columns = (Column("a", number="bool"), Column("b"), Column("c"))
    for X in (VALUES, scipy.sparse.csr_array(VALUES), da.from_array(VALUES)):
        assert as_matrix(X, columns=columns).columns == columns
    assert as_matrix(as_matrix(VALUES), columns=columns).shape == (2, 3)
    other = as_matrix(pd.DataFrame(VALUES, columns=list("abd")))
    with pytest.raises(InputError, match="named 'c', got 'd'"):
        as_matrix(other, columns=columns)


def test_as_matrix__named_table_fits_a_model_of_an_array():
    columns = as_matrix(VALUES).columns
    assert as_matrix(pd.DataFrame(VALUES, columns=list("abc")), columns=columns).shape == (2, 3)
