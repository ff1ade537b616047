"""Items by name, by number and as raw vectors: looked up, completed, suggested, read."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import distclust
from distclust.errors import InputError, UnknownItemError
from distclust.retrieval import items as items_module
from distclust.retrieval.items import Items
from distclust.store import ArrayMatrix, Matrix, SparseMatrix
from tests.corpora import blocks_of
from tests.retrieval.corpora import draw

N_ROWS, N_FEATURES = 150, 12
NAMES = [f"item {i}" if i % 7 else f"Straße {i}" for i in range(N_ROWS)]


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with blocks_of(64):
        yield


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return draw(np.random.default_rng(0), N_ROWS, N_FEATURES, "falling")


KINDS = ["array", "sparse", "named", "dask", "compact", "packed", "csr", "dense"]


@pytest.fixture(params=KINDS)
def matrix(request, rows, tmp_path) -> Matrix:
    names = np.array(NAMES, object)
    if request.param in ("array", "sparse", "named", "dask"):
        made = {
            "array": lambda: ArrayMatrix(rows),
            "sparse": lambda: SparseMatrix(scipy.sparse.csr_array(rows)),
            "named": lambda: ArrayMatrix(rows, row_ids=names),
            "dask": lambda: distclust.as_matrix(da.from_array(rows, chunks=(31, 5))),
        }
        return made[request.param]()
    table: Any = scipy.sparse.csr_array(rows)
    options: dict[str, Any] = {"layout": request.param}
    if request.param == "packed":
        options = {"layout": "compact", "storage": "packed"}
    if request.param == "dense":
        table = pd.DataFrame(rows, index=NAMES)
    return distclust.ingest(table, tmp_path / "X.zarr", **options).matrix()


# ---- looking up ----------------------------------------------------------------------------------


def test_find__by_id_and_by_number(matrix):
    items = Items(matrix)
    ids = matrix.row_ids.tolist()
    some = [0, 63, 64, 149, 7]
    for _ in range(3):  # by a look at all keys, then in their order
        assert items.find([ids[i] for i in some], "test").tolist() == some
    assert items.ids_at(some).tolist() == [ids[i] for i in some]
    if items.has_text_ids:
        assert items.find(some, "test").tolist() == some
        assert items.find([ids[3], 3, np.int64(3)], "test").tolist() == [3, 3, 3]
    else:
        assert items.find([str(i) for i in some], "test").tolist() == some


def test_choose__takes_one_item_several_or_vectors(matrix, rows):
    items = Items(matrix)
    ids = matrix.row_ids.tolist()
    one = items.choose(ids[5], "test")
    assert (one.names, one.rows.tolist()) == ([str(ids[5])], [5])
    for given in ([ids[70], ids[2], ids[70]], (ids[70], ids[2]), iter([ids[70], ids[2]])):
        chosen = items.choose(given, "test")
        assert chosen.rows.tolist() == [70, 2]  # once each, as they came
        np.testing.assert_array_equal(chosen.vectors.toarray(), rows[[70, 2]])
    for given in (rows[[70, 2]], scipy.sparse.coo_array(rows[[70, 2]]), rows[[70, 2]].tolist()):
        chosen = items.choose(given, "test")
        assert (chosen.names, chosen.rows.tolist()) == (["vector 0", "vector 1"], [])
        np.testing.assert_array_equal(chosen.vectors.toarray(), rows[[70, 2]])


def test_vectors_and_values__are_the_rows_in_the_order_asked(matrix, rows):
    items = Items(matrix)
    asked = np.array([149, 0, 64, 63, 64, 100, 1])
    for _ in range(2):  # read, then kept
        vectors = items.vectors(asked)
        assert vectors.has_sorted_indices
        np.testing.assert_array_equal(vectors.toarray(), rows[asked])
    values: Any = items.values(asked)
    dense = values.toarray() if scipy.sparse.issparse(values) else values
    np.testing.assert_array_equal(dense, rows[asked])


def test_vectors__are_kept_but_not_all_of_them(rows, monkeypatch):
    monkeypatch.setattr(items_module, "_ROWS_KEPT", 10)
    items = Items(ArrayMatrix(rows))
    for asked in (np.arange(8), np.arange(4, 12), np.arange(N_ROWS), np.arange(3)):
        np.testing.assert_array_equal(items.vectors(asked).toarray(), rows[asked])
        assert len(items._features) <= 10


def test_vectors__that_are_kept_are_not_read_again(rows, monkeypatch):
    matrix = ArrayMatrix(rows)
    items = Items(matrix)
    items.vectors(np.array([3, 70]))
    monkeypatch.setattr(matrix, "block", lambda index: pytest.fail("was read again"))
    np.testing.assert_array_equal(items.vectors(np.array([70, 3, 70])).toarray(), rows[[70, 3, 70]])


def test_vectors__may_be_asked_for_by_many_threads(rows, monkeypatch):
    monkeypatch.setattr(items_module, "_ROWS_KEPT", 5)
    items = Items(ArrayMatrix(rows))
    rng = np.random.default_rng(0)
    asked = [rng.integers(N_ROWS, size=6) for _ in range(300)]
    with ThreadPoolExecutor(8) as pool:
        for some, found in zip(asked, pool.map(items.vectors, asked), strict=True):
            np.testing.assert_array_equal(found.toarray(), rows[some])


def test_choose__leaves_the_vectors_of_the_caller_alone(rows):
    given = scipy.sparse.csr_array(
        (np.array([1, 0, 1]), np.array([5, 3, 1]), np.array([0, 3])), shape=(1, N_FEATURES)
    )
    before = pickle.dumps((given.data, given.indices, given.indptr))
    vectors = Items(ArrayMatrix(rows)).choose(given, "test").vectors
    assert vectors.indices.tolist() == [1, 5]
    assert pickle.dumps((given.data, given.indices, given.indptr)) == before


def test_find__tells_ids_apart_whose_keys_are_equal(rows, monkeypatch):
    monkeypatch.setattr(items_module, "row_keys", lambda ids: np.zeros(len(ids), np.uint64))
    matrix = ArrayMatrix(rows, row_ids=np.array(NAMES, object))
    monkeypatch.setattr(
        matrix, "block_keys", lambda i: np.zeros(len(matrix.block_ids(i)), np.uint64)
    )
    items = Items(matrix)
    for _ in range(2):
        assert items.find([NAMES[140], NAMES[0]], "test").tolist() == [140, 0]
        with pytest.raises(UnknownItemError):
            items.find(["item 999"], "test")


def test_find__takes_the_first_of_equal_ids(rows):
    items = Items(ArrayMatrix(rows, row_ids=np.array(["a", "b"] * 75, object)))
    for _ in range(2):
        assert items.find(["b", "a"], "test").tolist() == [1, 0]


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [[0.5], [1.0], [float("nan")], [float("inf")], [None], None, 1.5, [True], ["x"], [b"1"]],
)
def test_choose__refuses_what_is_no_number_where_ids_are(given, rows):
    with pytest.raises(InputError, match="The ids of this corpus are numbers"):
        Items(ArrayMatrix(rows)).choose(given, "test")


@pytest.mark.parametrize("given", [-1, N_ROWS, 2**62, 2**63, 10**30, -(10**30)])
def test_choose__refuses_numbers_beyond_the_corpus(given, rows):
    with pytest.raises(UnknownItemError, match=f"got '{given}'"):
        Items(ArrayMatrix(rows)).choose([given], "test")
    with pytest.raises(InputError, match="a row from 0 to 149"):
        Items(ArrayMatrix(rows, row_ids=np.array(NAMES, object))).choose([given], "test")


def test_choose__refuses_truth_values_as_rows(rows):
    items = Items(ArrayMatrix(rows, row_ids=np.array(NAMES, object)))
    with pytest.raises(UnknownItemError, match="'True'"):
        items.choose([True], "test")


@pytest.mark.parametrize("given", [[], (), np.empty(0, int), iter([])])
def test_choose__refuses_nothing(given, rows):
    with pytest.raises(InputError, match="a query of one item or more"):
        Items(ArrayMatrix(rows)).choose(given, "test")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (np.ones((1, 11)), "11"),
        (np.ones((0, 12)), "0 sample"),
        (np.ones((1, 1, 12)), "ids, numbers of rows or rows"),
        (np.ones(12), "One raw vector has shape"),
        (np.ones(12, bool), "One raw vector has shape"),
        ([[1, 0], [1]], "rows of equal length"),
        (np.full((1, 12), "x"), "real numbers"),
        (np.full((1, 12), np.inf), "inf"),
        (pd.DataFrame(np.ones((1, 12)), columns=list("abcdefghijkl")), "column 0 named 'f0'"),
    ],
)
def test_choose__refuses_vectors_of_other_shapes(given, problem, rows):
    matrix = distclust.as_matrix(pd.DataFrame(rows, columns=[f"f{j}" for j in range(12)]))
    with pytest.raises(InputError, match=problem):
        Items(matrix).choose(given, "test")


def test_find__suggests_names_that_are_near(rows):
    items = Items(ArrayMatrix(rows, row_ids=np.array(NAMES, object)))
    with pytest.raises(UnknownItemError, match="Did you mean 'Straße 14'") as caught:
        items.find(["strase 14"], "test")
    assert caught.value.item == "strase 14"
    assert caught.value.suggestions[0] == "Straße 14"
    with pytest.raises(UnknownItemError, match="Check the spelling"):
        items.find(["%"], "test")


# ---- completing ----------------------------------------------------------------------------------


def complete_slowly(names: list[str], text: str, limit: int) -> list[str]:
    wanted = text.casefold().strip()
    ordered = sorted(names, key=lambda name: (name.casefold(), name))
    first = [name for name in ordered if name.casefold().startswith(wanted)]
    others = [name for name in ordered if wanted in name.casefold() and name not in first]
    return (first + others)[:limit]


@pytest.mark.parametrize(
    "text", ["item", "ITEM 1", "straSSe", "14", "9", " item 13 ", "m 1", "nothing like it", "e"]
)
@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_complete__names_that_begin_so_then_names_that_hold_it(text, limit, rows):
    items = Items(ArrayMatrix(rows, row_ids=np.array(NAMES, object)))
    assert items.complete(text, limit) == complete_slowly(NAMES, text, limit)


def test_complete__nothing_for_nothing(rows):
    assert Items(ArrayMatrix(rows)).complete("  ") == []
    assert Items(ArrayMatrix(rows)).complete("14", 3) == ["14", "140", "141"]


def test_find__refuses_text_that_is_no_unicode(rows):
    matrix = ArrayMatrix(rows, row_ids=np.array(NAMES, object))
    with pytest.raises(InputError, match="an id in Unicode"):
        Items(matrix).find(["item \udcff"], "here")
