from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import sparse

from distclust.errors import InputError
from distclust.store.matrix import Column
from distclust.store.sources import iterators, open_source
from tests.faults import every_fault
from tests.sources import prepare_source, read_source


def cut(values: Any, step: int) -> Iterator[Any]:
    """Yield rows a few at a time, once."""
    yield from (values[start : start + step] for start in range(0, values.shape[0], step))


@pytest.fixture
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterators, "_PIECE_BYTES", 300)


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("step", [1, 7, 100])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8, np.bool_, ">i4"])
def test_arrays__come_out_as_they_went_in(rng: np.random.Generator, dtype: Any, step: int) -> None:
    values = rng.integers(0, 2, (53, 4)).astype(dtype)
    found = read_source(cut(values, step))
    np.testing.assert_array_equal(found.values, values)
    assert found.values.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(found.ids, np.arange(53))
    assert not found.prepared.has_ids
    assert found.names == ["x0", "x1", "x2", "x3"]


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("step", [1, 7, 100])
@pytest.mark.parametrize("form", ["csr", "coo", "bool", "sparse"])
def test_sparse__matrices_of_any_form(rng: np.random.Generator, form: str, step: int) -> None:
    values = rng.normal(size=(41, 30)) * (rng.random((41, 30)) < 0.1)
    values[7:15] = 0

    def convert(part: Any) -> Any:
        if form == "sparse":
            return sparse.COO.from_numpy(part)
        matrix = scipy.sparse.coo_array(part)
        return matrix.tocsr().astype(bool) if form == "bool" else matrix.asformat(form)

    found = read_source(convert(part) for part in cut(values, step))
    np.testing.assert_array_equal(found.values, values != 0 if form == "bool" else values)
    assert found.prepared.rows.is_sparse


@pytest.mark.usefixtures("cut_small")
def test_pairs__bring_ids(rng: np.random.Generator) -> None:
    values = rng.normal(size=(20, 3))
    names = np.array([f"é{i}" for i in range(20)])
    text = read_source(zip(cut(names, 6), cut(values, 6), strict=True))
    assert text.ids.tolist() == names.tolist()
    np.testing.assert_array_equal(text.values, values)
    numbers = read_source(([i, i + 100], scipy.sparse.csr_array(values[:2])) for i in range(10))
    assert numbers.ids.tolist() == [j for i in range(10) for j in (i, i + 100)]
    assert numbers.prepared.has_ids
    mixed = read_source([([1, 2], values[:2]), (["a", "b"], values[:2])])
    assert mixed.ids.tolist() == ["1", "2", "a", "b"]


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("step", [1, 4, 100])
def test_tables__are_settled_over_all_batches(step: int) -> None:
    frame = pd.DataFrame(
        {
            "n": range(10),
            "f": [0.5, np.nan, *range(8)],
            "c": pd.Categorical(list("zyxzyxzyxz")),
            "s": list("aabbccaabb"),
            "b": [True, False] * 5,
            "d": pd.date_range("2024-02-28", periods=10),
            "note": [f"note {i}" for i in range(10)],
        },
        index=pd.Index([f"row {i}" for i in range(10)], name="key"),
    )
    found = read_source(cut(frame, step), obs=("note",))
    assert found.ids.tolist() == frame.index.tolist()
    assert found.prepared.columns == (
        Column("n", number="integer"),
        Column("f"),
        Column("c", "category", ("x", "y", "z")),
        Column("s", "category", ("a", "b", "c")),
        Column("b", number="bool"),
    )
    codes = {name: frame[name].astype("category").cat.codes for name in "cs"}
    expected = frame[["n", "f", "c", "s", "b"]].assign(**codes).to_numpy(np.float64)
    np.testing.assert_array_equal(found.values, expected)
    assert found.obs["note"].tolist() == frame["note"].tolist()
    assert found.obs["d"][1].startswith("2024-02-29")


def test_tables__whose_columns_change_their_type(rng: np.random.Generator) -> None:
    batches = [pd.DataFrame({"a": [1, 2], "b": [1, 2]}), pd.DataFrame({"a": [0.5], "b": ["x"]})]
    found = read_source(iter(batches))
    assert [column.kind for column in found.prepared.columns] == ["number", "category"]
    np.testing.assert_array_equal(found.values, [[1, 0], [2, 1], [0.5, 2]])


def test_tables__of_arrow_and_with_pairs() -> None:
    table = pa.table({"a": [1, 2], "b": [0.5, None]})
    found = read_source([(["x", "y"], table), (["z", "w"], table)])
    assert found.ids.tolist() == ["x", "y", "z", "w"]
    np.testing.assert_array_equal(found.values, [[1, 0.5], [2, np.nan]] * 2)


def test_tables__with_counted_rows_and_columns() -> None:
    frame = pd.DataFrame(np.arange(12).reshape(6, 2))
    found = read_source([frame[:3], frame[3:]])
    assert found.names == ["x0", "x1"]
    assert not found.prepared.has_ids
    np.testing.assert_array_equal(found.values, frame)


@pytest.mark.parametrize("kind", ["array", "sparse", "frame", "list"])
def test_block__that_is_passed_itself_is_one_batch(kind: str) -> None:
    values = np.arange(6.0).reshape(3, 2)
    blocks: dict[str, Any] = {
        "array": values,
        "sparse": scipy.sparse.csr_array(values),
        "frame": pd.DataFrame(values),
        "list": [values.tolist()],
    }
    np.testing.assert_array_equal(read_source(blocks[kind]).values, values)


def test_batches__without_rows_are_skipped() -> None:
    found = read_source([np.zeros((0, 9)), np.ones((2, 3)), np.ones((0, 3))])
    np.testing.assert_array_equal(found.values, np.ones((2, 3)))


def test_types__widen_over_batches() -> None:
    found = read_source([np.array([[1, 2]]), np.array([[0.5, np.nan]]), np.array([[True, False]])])
    np.testing.assert_array_equal(found.values, [[1, 2], [0.5, np.nan], [1, 0]])


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (np.ones((2, 4)), r"batch 1: expected what the first one is \(array, 3, counted\)"),
        (scipy.sparse.csr_array(np.ones((2, 3))), "got sparse matrix, 3, counted"),
        (([1, 2], np.ones((2, 3))), "got array, 3, with ids"),
        (np.ones(3), "batch 1: expected two dimensions of real numbers, got 1 dim"),
        (np.array([["a", "b", "c"]]), "two dimensions of real numbers"),
        (np.ones((2, 3), complex), "two dimensions of real numbers"),
        ([[1, 2, 3], [1, 2]], "batch 1: expected rows of equal length"),
        (np.array([[1, np.inf, 2]]), "batch 1: expected finite numbers, got inf"),
        ("words", "batch 1: expected two dimensions"),
        (None, "batch 1: expected two dimensions"),
        (([1], np.ones((2, 3))), "batch 1: expected one id for each row, got 1 for 2 rows"),
        (([1.5, 2.0], np.ones((2, 3))), "text or whole numbers, got float"),
        (([None, "a"], np.ones((2, 3))), "text or whole numbers, got NoneType, str"),
        (pd.DataFrame({"a": [1, 2]}), "got table"),
    ],
)
def test_batch__that_does_not_fit_gets_a_sentence(second: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_source([np.ones((2, 3)), second])


def test_sparse__values_must_be_finite() -> None:
    with pytest.raises(InputError, match="batch 0: expected finite numbers, got nan"):
        read_source([scipy.sparse.csr_array([[np.nan, 1]])])


def test_tables__that_cannot_be_read_get_a_sentence() -> None:
    with pytest.raises(InputError, match="batch 0: expected columns of one type each"):
        read_source([pd.DataFrame({"a": [1, "x", [3]]})])
    frame = pd.DataFrame({"a": [1]})
    with pytest.raises(InputError, match="expected what the first one is"):
        read_source([frame, frame.rename(columns={"a": "b"})])


@pytest.mark.parametrize("rows", [[], [np.ones((0, 2))], iter(())])
def test_rows__none_at_all_are_refused(rows: Any) -> None:
    with pytest.raises(InputError, match="iterator: expected rows, got none"):
        read_source(rows)


def test_source__that_is_nothing_gets_a_sentence() -> None:
    with pytest.raises(InputError, match="source: expected a path, a URL, or an iterable"):
        open_source(5)


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("form", ["array", "sparse", "frame"])
def test_prepare__is_taken_up_with_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    values = np.arange(120.0).reshape(40, 3)

    def rows() -> Iterator[Any]:
        forms: dict[str, Any] = {"sparse": scipy.sparse.csr_array, "frame": pd.DataFrame}
        return (forms.get(form, np.asarray)(part) for part in cut(values, 7))

    read_source(rows(), tmp_path / "store")
    monkeypatch.setattr(iterators.Spool, "write", None)  # nothing is written twice
    np.testing.assert_array_equal(read_source(rows(), tmp_path / "store").values, values)


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("change", ["value", "type", "fewer", "ids", "kind"])
def test_prepare__is_not_taken_up_with_other_rows(tmp_path: Path, change: str) -> None:
    values = np.arange(120.0).reshape(40, 3)
    prepare_source([values], tmp_path / "store")
    other = values.copy()
    other[39, 2] = np.nextafter(other[39, 2], 0)
    changed: dict[str, Any] = {
        "value": other,
        "type": values.astype(np.int64),
        "fewer": values[:10],
        "ids": (range(40), values),
        "kind": scipy.sparse.csr_array(values),
    }
    with pytest.raises(InputError, match="expected the rows of the run that is taken up"):
        prepare_source([changed[change]], tmp_path / "store")


@pytest.mark.usefixtures("cut_small")
def test_prepare__reads_on_where_another_run_stopped(tmp_path: Path) -> None:
    values = np.arange(120.0).reshape(40, 3)

    def broken() -> Iterator[Any]:
        yield from cut(values[:25], 5)
        raise OSError("the line went dead")

    with pytest.raises(OSError, match="dead"):
        prepare_source(broken(), tmp_path / "store")
    found = read_source(cut(values, 5), tmp_path / "store")
    np.testing.assert_array_equal(found.values, values)


@pytest.mark.usefixtures("cut_small")
def test_prepare__is_taken_up_after_a_kill(tmp_path: Path) -> None:
    values = np.arange(60.0).reshape(20, 3)

    def check(place: str, finished: bool) -> None:
        if finished:
            found = read_source(cut(values, 3), place)
            np.testing.assert_array_equal(found.values, values)

    n_faults = every_fault(
        tmp_path / "faults",
        prepare=lambda place: Path(place).mkdir(parents=True),
        action=lambda place: prepare_source(cut(values, 3), place),
        check=check,
    )
    assert n_faults >= 3


def test_identity__of_an_iterator_says_that_it_tells_nothing() -> None:
    source = open_source(iter([np.ones((1, 1))]))
    assert not source.tells_rows
    assert source.identity()["tells_rows"] is False
    assert source.identity() == open_source(iter([np.zeros((1, 1))])).identity()


@pytest.mark.parametrize("form", [np.asarray, scipy.sparse.csr_array, pd.DataFrame])
def test_identity__of_blocks_in_memory_is_their_content(form: Any) -> None:
    values = np.arange(6.0).reshape(3, 2)
    other = values.copy()
    other[2, 1] = 7
    first = open_source([form(values)])
    assert first.tells_rows
    assert first.identity() == open_source(form(values)).identity()
    assert first.identity() != open_source([form(other)]).identity()


@hypothesis.given(data=st.data())
def test_arrays__come_out_however_they_are_cut(data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    values = np.arange(3.0 * sum(steps)).reshape(-1, 3)
    hypothesis.assume(len(values))
    batches = np.split(values, np.cumsum(steps)[:-1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iterators, "_PIECE_BYTES", data.draw(st.integers(1, 200)))
        found = read_source(iter(batches), step=data.draw(st.integers(1, 9)))
    np.testing.assert_array_equal(found.values, values)
