"""Labels of any kind become codes; equal rows are found; nonsense is refused in a sentence."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest

import distclust
from distclust.engine import as_matrix
from distclust.ensembles import label_reading
from distclust.ensembles import labels as labels_module
from distclust.ensembles.label_reading import as_labels
from distclust.ensembles.labels import LabelMatrix
from distclust.errors import InputError
from distclust.store import Column

# Two bases of five rows: sorted labels 3 < 7 < 9, and 0 < 2.
NUMBERS = np.array([[7, 2], [3, 0], [-1, 2], [9, -1], [7, 0]])
CODES = np.array([[1, 1], [0, 0], [-1, 1], [2, -1], [1, 0]])


def with_nan(values: np.ndarray) -> np.ndarray:
    return np.where(values < 0, np.nan, values)


def as_frame(*dtypes: Any) -> pd.DataFrame:
    columns = {f"m{m}": pd.Series(with_nan(NUMBERS)[:, m]) for m in range(2)}
    return pd.DataFrame(columns).astype({f"m{m}": dtype for m, dtype in enumerate(dtypes)})


def objects(missing: Any) -> np.ndarray:
    found = NUMBERS.astype(object)
    found[NUMBERS < 0] = missing
    return found


FORMS = {
    "integers": lambda: NUMBERS,
    "int8": lambda: NUMBERS.astype(np.int8),
    "fortran": lambda: np.asfortranarray(NUMBERS),
    "floats": lambda: with_nan(NUMBERS),
    "float32": lambda: with_nan(NUMBERS).astype(np.float32),
    "objects with None": lambda: objects(None),
    "objects with NA": lambda: objects(pd.NA),
    "masked": lambda: np.ma.masked_less(NUMBERS, 0),
    "vectors": lambda: [NUMBERS[:, 0], NUMBERS[:, 1]],
    "lists": lambda: [[7, 3, None, 9, 7], [2, 0, 2, -1, 0]],
    "series": lambda: [pd.Series(NUMBERS[:, 0], index=[5, 1, 3, 2, 4]), NUMBERS[:, 1]],
    "frame": lambda: pd.DataFrame(NUMBERS),
    "nullable frame": lambda: as_frame("Int64", "Int64"),
    "frame of categories": lambda: as_frame("category", "category"),
    "frame of two kinds": lambda: as_frame("Int64", "float64"),
    "Dask": lambda: da.from_array(NUMBERS, chunks=(2, 1)),
    "matrix": lambda: as_matrix(NUMBERS),
}


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_of_labels_are_the_same_codes(form):
    labels = as_labels(FORMS[form]())
    np.testing.assert_array_equal(labels.codes, CODES)
    assert labels.codes.dtype == np.int8
    np.testing.assert_array_equal(labels.n_labels, [3, 2])
    assert [values.tolist() for values in labels.values] == [[3, 7, 9], [0, 2]]
    assert labels.n_observed.tolist() == [4, 4]


TEXTS = np.array([["b", "x"], ["a", "long name"], [None, "x"], ["c", None], ["b", "long name"]])
TEXT_FORMS = {
    "objects": lambda: TEXTS,
    "vectors": lambda: [TEXTS[:, 0].tolist(), TEXTS[:, 1].tolist()],
    "NaN among text": lambda: [["b", "a", np.nan, "c", "b"], TEXTS[:, 1]],
    "frame": lambda: pd.DataFrame(TEXTS),
    "strings of pandas": lambda: pd.DataFrame(TEXTS).astype("string"),
    "categories": lambda: pd.DataFrame(TEXTS).astype("category"),
    "Categorical": lambda: [pd.Categorical(TEXTS[:, 0], ["z", "c", "b", "a"]), TEXTS[:, 1]],
}


@pytest.mark.parametrize("form", TEXT_FORMS)
def test_text_and_categories(form):
    labels = as_labels(TEXT_FORMS[form]())
    np.testing.assert_array_equal(labels.codes, [[1, 1], [0, 0], [-1, 1], [2, -1], [1, 0]])
    assert [values.tolist() for values in labels.values] == [["a", "b", "c"], ["long name", "x"]]


def test_explains_rows_in_the_users_words():
    labels = as_labels(pd.DataFrame({"km": [3, 3, 8], "dp": ["u", None, "v"]}))
    assert labels.explain(0) == {"km": 3, "dp": "u"}
    assert labels.explain(1) == {"km": 3, "dp": None}


def test_numbers_beside_text_are_text():
    labels = as_labels([[1, "1", "b", 2, None], [0, 0, 1, 1, 1]])
    assert labels.values[0].tolist() == ["1", "2", "b"]
    assert labels.codes[:, 0].tolist() == [0, 0, 2, 1, -1]


def test_ids_of_rows():
    frame = pd.DataFrame({"a": [0, 1, 1], "b": [0, 0, 1]}, index=["x", "y", "z"])
    ids = as_labels(frame).row_ids
    assert ids is not None
    assert ids.tolist() == ["x", "y", "z"]
    assert as_labels(frame.reset_index(drop=True)).row_ids is None


def test_labels_that_come_late_are_put_in_order(monkeypatch, seed):
    """Many small parts, in which labels appear in any order and the type has to grow."""
    monkeypatch.setattr(label_reading, "_ROWS_AT_A_TIME", 7)
    rng = np.random.default_rng(seed)
    given = rng.integers(-1, 400, size=(900, 3)) * np.array([1, 1000, 1])
    given[:, 1] = np.where(given[:, 1] < 0, -1, given[:, 1])
    given[:50, 2] = 5  # one label at first
    labels = as_labels(given)
    assert labels.codes.dtype == np.int16
    for m in range(3):
        found, codes = np.unique(given[:, m], return_inverse=True)
        np.testing.assert_array_equal(labels.values[m], found[1:])
        np.testing.assert_array_equal(labels.codes[:, m], codes - 1)
    texts = as_labels(given.astype(str).astype(object))
    for m in range(3):
        np.testing.assert_array_equal(
            texts.values[m][texts.codes[:, m]], given[:, m].astype(str).astype(object)
        )


def test_store(tmp_path, monkeypatch):
    from tests import small_blocks

    small_blocks.shrink(monkeypatch)
    rng = np.random.default_rng(0)
    given = rng.integers(-1, 5, size=(500, 3)).astype(float)
    given[given < 0] = np.nan
    ids = [f"row {i}" for i in range(len(given))]
    frame = pd.DataFrame(given, columns=["p", "q", "r"]).assign(id=ids)
    distclust.ingest(frame, tmp_path / "s.zarr", ids="id")
    labels = as_labels(tmp_path / "s.zarr")
    np.testing.assert_array_equal(labels.codes, as_labels(given).codes)
    assert labels.row_ids is not None
    assert labels.row_ids.tolist() == ids


def test_workers_read_the_same(on_client):
    given = np.random.default_rng(0).integers(-1, 5, size=(500, 3))
    labels = as_labels(da.from_array(given, chunks=(100, 2)))
    np.testing.assert_array_equal(labels.codes, as_labels(given).codes)


def test_known_labels():
    labels = as_labels(NUMBERS)
    new = as_labels(np.array([[9, 0], [-1, 2]]), known=labels)
    np.testing.assert_array_equal(new.codes, [[2, 0], [-1, 1]])
    with pytest.raises(InputError, match=r"base 'base 0'.*\(3, 7, 9\), got 4"):
        as_labels(np.array([[9, 0], [4, 2]]), known=labels)
    with pytest.raises(InputError, match="labels of 2 bases"):
        as_labels(np.array([[9], [4]]), known=labels)
    with pytest.raises(InputError, match="got 'q'"):
        as_labels([["q", "q"], [0, 2]], known=labels)


def test_known_labels__named_bases_in_another_order_are_refused():
    table = pd.DataFrame({"north": [0, 1, 1], "south": [1, 0, 1]})
    labels = as_labels(table)
    np.testing.assert_array_equal(as_labels(table, known=labels).codes, labels.codes)
    np.testing.assert_array_equal(as_labels(table.to_numpy(), known=labels).codes, labels.codes)
    with pytest.raises(InputError, match="north, south, in this order, got south, north"):
        as_labels(table[["south", "north"]], known=labels)


REFUSED: dict[str, tuple[Any, str]] = {
    "lengths": ([[0, 1, 1], [0, 1]], "3 labels in base 0 and 2 in base 1"),
    "negative": (np.array([[0, 1], [-2, 0], [1, 1]]), "-1 for missing labels, got -2 in row 1"),
    "fraction": (np.array([[0, 1], [0, 0.5], [1, 1]]), r"base 1'.*got 0\.5 in row 1"),
    "infinite": (np.array([[0, 1], [np.inf, 0], [1, 1]]), "inf in row 1"),
    "negative object": ([[0, 1, -3], [0, 1, 0]], "got -3"),
    "no rows": (np.empty((0, 2), int), "at least one row"),
    "no bases": (np.empty((3, 0), int), "at least one base"),
    "empty list": ([], "at least one base"),
    "empty vectors": ([[], []], "at least one row"),
    "a vector": (np.array([0, 1, 1]), "Pass \\[labels\\]"),
    "a vector in a list": ([0, 1, 1], "a vector of labels"),
    "all missing": (np.array([[0, -1], [1, -1], [1, -1]]), "base 'base 1': expected some labels"),
    "one cluster": (np.array([[0, 3], [0, 3], [0, 3]]), "one cluster in every base"),
    "singletons": (np.array([[0, 3], [1, 2], [2, 4]]), "each row its own cluster.*say nothing"),
    "one or own": (np.array([[0, 3], [0, 2], [0, 4]]), "bases with one cluster, and"),
    "dates": (pd.DataFrame({"a": pd.to_datetime(["2020-01-01", "2020-01-02"])}), "datetime64"),
    "complex": (np.array([[1j, 0], [1, 1]]), "values of type complex128"),
    "a text": ("nowhere.zarr", "nothing at"),
    "negative Dask": (da.from_array(np.array([[0], [-2], [0]])), "got -2 in row 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    given, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as caught:
        as_labels(given, where="fit_labels(Y)")
    assert "fit_labels(Y)" in caught.value.where
    assert caught.value.hint


def test_a_base_with_one_cluster_beside_others_is_fine():
    as_labels(np.array([[0, 1], [0, 1], [0, 2]]))


def test_categories_of_a_matrix_are_labels():
    columns = (Column("a", "category", ("u", "v", "w")), Column("b"))
    from distclust.store import ArrayMatrix

    matrix = ArrayMatrix(np.array([[2.0, 0], [np.nan, 1], [0, 1], [2, 0]]), columns)
    labels = as_labels(matrix)
    assert labels.values[0].tolist() == ["u", "w"]
    assert labels.codes[:, 0].tolist() == [1, -1, 0, 1]
    assert labels.names == ("a", "b")


# ---- equal rows ------------------------------------------------------------------------------


def check_collapsed(labels: LabelMatrix) -> None:
    """Compare with a dictionary of tuples."""
    found = labels.collapsed()
    rows = [tuple(row) for row in labels.codes.tolist()]
    counts = Counter(rows)
    assert [tuple(row) for row in found.codes.tolist()] == sorted(counts)
    assert found.counts.tolist() == [counts[row] for row in sorted(counts)]
    np.testing.assert_array_equal(found.codes[found.inverse], labels.codes)
    assert found.codes.dtype == labels.codes.dtype
    np.testing.assert_array_equal(found.spread(found.codes), labels.codes)


@pytest.mark.parametrize(
    ("n_labels", "largest_table"),
    [((2, 3), 1 << 24), ((2, 3), 4), ((50, 60, 70), 10), ((2**30, 2**30, 2**30, 5), 1 << 24)],
    ids=["table", "search", "mostly distinct", "more than one key"],
)
def test_collapsed_rows(n_labels, largest_table, monkeypatch, rng):
    monkeypatch.setattr(labels_module, "_ROWS_AT_A_TIME", 16)
    monkeypatch.setattr(labels_module.row_slices, "__defaults__", (16,))
    monkeypatch.setattr(labels_module, "_LARGEST_TABLE", largest_table)
    monkeypatch.setattr(labels_module, "_LARGEST_WAIT", 20)
    few = [rng.integers(-1, size, 4) for size in n_labels]  # so that rows come again
    codes = np.column_stack([values[rng.integers(0, 4, 300)] for values in few])
    check_collapsed(LabelMatrix(codes, np.array(n_labels), (), ()))


def test_unlabelled_rows():
    labels = as_labels(np.array([[0, 1], [-1, -1], [0, -1], [1, 0]]))
    assert labels.is_labelled.tolist() == [True, False, True, True]
    assert labels.take(labels.is_labelled).codes.tolist() == [[0, 1], [0, -1], [1, 0]]
