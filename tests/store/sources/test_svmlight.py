from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_svmlight_file, load_svmlight_files

from distclust.engine import map_ordered
from distclust.errors import InputError
from distclust.store.matrix import default_columns
from distclust.store.sources import Expected, svmlight
from tests.faults import every_fault
from tests.sources import prepare_source, read_source


@pytest.fixture
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svmlight, "_PART_BYTES", 120)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_file(text: str | bytes, name: str = "rows.svm") -> Path:
        path = tmp_path / name
        content = text.encode() if isinstance(text, str) else text
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return write_file


def dumped(rng: np.random.Generator, n_rows: int = 30, **options: Any) -> bytes:
    values = rng.normal(size=(n_rows, 12)) * (rng.random((n_rows, 12)) < 0.4)
    values[3] = 0
    values[:2, [0, 11]] = 1
    content = io.BytesIO()
    dump_svmlight_file(values, rng.integers(-1, 2, n_rows), content, **options)
    return content.getvalue()


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("zero_based", [True, False])
@pytest.mark.parametrize("name", ["a.svm", "a.svmlight", "a.libsvm", "a.svm.gz", "a.libsvm.gz"])
def test_rows__equal_those_of_scikit_learn(
    write: Callable[..., Path], rng: np.random.Generator, name: str, zero_based: bool
) -> None:
    queries = np.repeat(np.arange(10), 3)
    path = write(dumped(rng, zero_based=zero_based, query_id=queries, comment="a: 1, b"), name)
    expected, labels, found_queries = load_svmlight_file(str(path), query_id=True)
    found = read_source(path)
    np.testing.assert_array_equal(found.values, expected.toarray())
    np.testing.assert_array_equal(found.obs["label"], labels)
    np.testing.assert_array_equal(found.obs["query"], found_queries)
    assert found.prepared.obs_kinds == {"label": "integer", "query": "integer"}
    assert found.prepared.facts == {"first_feature": 0 if zero_based else 1}
    assert not found.prepared.has_ids
    np.testing.assert_array_equal(found.ids, np.arange(30))


@pytest.mark.usefixtures("cut_small")
def test_files__share_features_and_numbering(
    write: Callable[..., Path], rng: np.random.Generator
) -> None:
    paths = [write(f"1 1:{k} 3:2\n2 {k + 2}:1\n", f"{k}.svm") for k in range(1, 5)]
    paths.append(write(dumped(rng, 9), "z.svm"))
    parts = load_svmlight_files([*map(str, paths)])
    found = read_source([*map(str, paths)])
    np.testing.assert_array_equal(found.values, np.vstack([x.toarray() for x in parts[::2]]))
    np.testing.assert_array_equal(found.obs["label"], np.concatenate(parts[1::2]))
    assert found.prepared.facts == {"first_feature": 0}  # the last one uses 0


def test_lines__may_be_spaced_and_commented_in_any_way(write: Callable[..., Path]) -> None:
    text = "# a header: 1,2\n\n  +1\t 1:1  3:+2 # note 5:5\r\n   \n-1.5 2:-1e-3#x\n0\n2 3:.5"
    path = write(text)
    found = read_source(path)
    expected = [[1, 0, 2], [0, -1e-3, 0], [0, 0, 0], [0, 0, 0.5]]
    np.testing.assert_array_equal(found.values, expected)
    np.testing.assert_array_equal(found.obs["label"], [1, -1.5, 0, 2])
    np.testing.assert_array_equal(load_svmlight_file(str(path))[0].toarray(), expected)
    assert found.prepared.obs_kinds == {"label": "real"}


def test_explicit_zeros__count_as_features_but_are_not_kept(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    path = write("1 1:0 4:0\n1 2:3 3:0\n")
    rows = prepare_source(path, tmp_path / "store").rows.read(0, 2).values
    np.testing.assert_array_equal(rows.toarray(), [[0, 0, 0, 0], [0, 3, 0, 0]])
    assert rows.nnz == 1


def test_wide__rows_of_70000_features(write: Callable[..., Path]) -> None:
    found = read_source(write("1 70000:1\n1 1:2 65537:3\n"))
    assert found.values.shape == (2, 70_000)
    np.testing.assert_array_equal(np.argwhere(found.values), [[0, 69_999], [1, 0], [1, 65_536]])


@pytest.mark.usefixtures("cut_small")
def test_labels__several_are_kept_as_text(write: Callable[..., Path]) -> None:
    lines = [*["3 1:1"] * 20, "1,2.5,7 1:1", "1:1 2:1", *["-4 1:1"] * 20]
    found = read_source(write("\n".join(lines)))
    expected = [*["3"] * 20, "1,2.5,7", None, *["-4"] * 20]
    assert found.obs["label"].tolist() == expected
    assert found.prepared.obs_kinds == {"label": "text"}


def test_labels__may_be_missing(write: Callable[..., Path]) -> None:
    some = read_source(write("1 1:1\nqid:4 1:2\nnan 2:1\n"))
    np.testing.assert_array_equal(some.obs["label"], [1, np.nan, np.nan])
    np.testing.assert_array_equal(some.obs["query"], [np.nan, 4, np.nan])
    none = read_source(write("1:1\n1:2\n", "none.svm"))
    assert none.prepared.obs_kinds == {}


def test_numbers__keep_every_digit(write: Callable[..., Path], rng: np.random.Generator) -> None:
    values = rng.normal(size=50) * 10.0 ** rng.integers(-300, 300, 50)
    pairs = " ".join(f"{i}:{value!r}" for i, value in enumerate(values.tolist()))
    found = read_source(write(f"{0.1 + 0.2!r} {pairs}\n"))
    np.testing.assert_array_equal(found.values[0], values)
    assert found.obs["label"][0] == 0.1 + 0.2


BAD = [
    ("a 1:1", "the label 'a'"),
    ("1, 1:1", "the label '1,'"),
    ("1 1:x", "'1:x'"),
    ("1 x:1", "'x:1'"),
    ("1 1:", "'1:'"),
    ("1 :1", "':1'"),
    (":1 1:1", "':1'"),
    ("1 1:1 2", "'2'"),
    ("1 1:1:1", "'1:1:1'"),
    ("1 1:1,5", "'1:1,5'"),
    ("1 -1:1", "'-1:1'"),
    ("1 1.5:1", "'1.5:1'"),
    ("1 1: 1", "'1:'"),
    ("1 2:1 1:1", "'1:1' after feature 2"),
    ("1 2:1 2:1", "'2:1' after feature 2"),
    ("1 1:nan", "'1:nan'"),
    ("1 1:1e999", "'1:1e999'"),
    ("1 134217729:1", "'134217729:1'"),
    ("1 99999999999999999999:1", "'99999999999999999999:1'"),
    ("1 qid:x 1:1", "'qid:x'"),
    ("1 qid:1.5 1:1", "'qid:1.5'"),
    ("1 qid:9007199254740993 1:1", "'qid:9007199254740993'"),
    ("1 qid:1 qid:2 1:1", "'qid:2'"),
    ("1 1:1 qid:2", "'qid:2'"),
    ("1 sid:1 1:1", "'sid:1'"),
    ("é 1:1", "the label 'é'"),
]


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("line", "got"), BAD)
def test_line__that_is_no_row_is_named(
    write: Callable[..., Path], line: str, got: str, compressed: bool
) -> None:
    lines = [*["1 qid:1 1:1 2:2 # fine"] * 40, line, "1 1:1"]
    path = write("\n".join(lines), "bad.svm.gz" if compressed else "bad.svm")
    with pytest.raises(InputError) as caught:
        read_source(path)
    told = f"line 41: expected a label and ascending 'feature:value' pairs, got {got}."
    assert told in str(caught.value)


def test_line__that_only_the_fast_reader_refuses_gets_a_sentence(
    write: Callable[..., Path],
) -> None:
    with pytest.raises(InputError, match=r"rows\.svm: .* got lines that cannot be read"):
        read_source(write("1 1:1_0\n"))


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "1\n2\n"])
def test_features__none_at_all_are_refused(write: Callable[..., Path], text: str) -> None:
    with pytest.raises(InputError, match="expected rows with features, got none"):
        read_source(write(text))


def joining(n_features: int, **facts: Any) -> Expected:
    return Expected(default_columns(n_features), {"label": "real"}, facts=facts)


def test_joining__keeps_width_numbering_and_kinds_of_the_store(
    write: Callable[..., Path],
) -> None:
    path = write("1 2:5\n2 1:1\n")
    one_based = read_source(path, expected=joining(4, first_feature=1))
    np.testing.assert_array_equal(one_based.values, [[0, 5, 0, 0], [1, 0, 0, 0]])
    assert one_based.prepared.obs_kinds == {"label": "real"}
    zero_based = read_source(path, expected=joining(4, first_feature=0))
    np.testing.assert_array_equal(zero_based.values, [[0, 0, 5, 0], [0, 1, 0, 0]])
    unknown = read_source(path, expected=joining(2))
    np.testing.assert_array_equal(unknown.values, [[0, 5], [1, 0]])


@pytest.mark.parametrize(("text", "got"), [("1 5:1\n", "feature 5"), ("1 0:1\n", "feature 0")])
def test_joining__refuses_features_that_the_store_lacks(
    write: Callable[..., Path], text: str, got: str
) -> None:
    with pytest.raises(InputError, match=f"features 1 to 4 as in the store, got {got}"):
        read_source(write(text), expected=joining(4, first_feature=1))


@pytest.mark.usefixtures("cut_small")
def test_rows__are_the_same_on_threads(
    write: Callable[..., Path], rng: np.random.Generator
) -> None:
    path = write(dumped(rng))
    found = read_source(path, mapper=map_ordered)
    np.testing.assert_array_equal(found.values, load_svmlight_file(str(path))[0].toarray())


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("name", ["a.svm", "a.svm.gz"])
def test_prepare__is_taken_up_after_a_kill(
    write: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    path = write("\n".join(f"{k} qid:{k} {k + 1}:{k}" for k in range(20)), name)
    expected = load_svmlight_file(str(path))[0].toarray()

    def check(place: str, finished: bool) -> None:
        if finished:
            np.testing.assert_array_equal(read_source(path, place).values, expected)

    n_faults = every_fault(
        tmp_path / "faults",
        prepare=lambda place: Path(place).mkdir(parents=True),
        action=lambda place: prepare_source(path, place),
        check=check,
    )
    assert n_faults >= 5


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("name", ["a.svm", "a.svm.gz"])
def test_prepare__parses_no_part_twice(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = write("1 1:1 2:2\n" * 30, name)
    first = read_source(path, tmp_path / "store")
    monkeypatch.setattr(svmlight, "parse_cells", None)
    np.testing.assert_array_equal(read_source(path, tmp_path / "store").values, first.values)


@hypothesis.given(data=st.data())
def test_rows__equal_those_of_scikit_learn_wherever_a_file_is_cut(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    row = st.dictionaries(st.integers(0, 9), st.floats(-9, 9), max_size=4)
    rows = data.draw(st.lists(row, min_size=1, max_size=20))
    blank = st.sampled_from(["", "\n", "# 1:1\n", "  \n", "\r\n"])
    lines = [
        data.draw(blank) + " ".join(["1", *(f"{i}:{r[i]!r}" for i in sorted(r))]) for r in rows
    ]
    path = tmp_path_factory.mktemp("any") / "a.svm"
    path.write_text("1 3:1\n" + "\n".join(lines), newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(svmlight, "_PART_BYTES", data.draw(st.integers(5, 80)))
        found = read_source(path, step=data.draw(st.integers(1, 9)))
    np.testing.assert_array_equal(found.values, load_svmlight_file(str(path))[0].toarray())
