from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer

from distclust.engine import map_ordered
from distclust.errors import InputError
from distclust.store.matrix import Column
from distclust.store.sources import Expected, documents, text
from tests.faults import every_fault
from tests.sources import Read, prepare_source, read_source

TEXTS = [
    "The quick brown fox jumps over the lazy dog",
    "",
    "the THE The dog, the dog: dogs!",
    "Straße, naïve café — ÉTÉ été",
    "日本語 テスト 日本語",
    "a b c",  # nothing but short words
    "don't e-mail foo_bar 42 42",
    "brown dog and brown fox",
]


@pytest.fixture
def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_PART_BYTES", 60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of documents, some of them in folders of their own."""
    root = tmp_path / "texts"
    for i, content in enumerate(TEXTS):
        path = root / ("deep/er" if i % 3 == 0 else "") / f"{i} ü.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    (root / ".hidden.txt").write_text("hidden words")
    return root


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_file(content: str | bytes | Sequence[Any], name: str = "docs.jsonl") -> Path:
        path = tmp_path / name
        if isinstance(content, list):
            content = "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in content)
        encoded = content if isinstance(content, bytes) else str(content).encode()
        path.write_bytes(gzip.compress(encoded) if name.endswith(".gz") else encoded)
        return path

    return write_file


def lines(texts: Sequence[str]) -> str:
    return "".join(f"{one}\n" for one in texts)


def assert_equals_vectoriser(found: Read, texts: Sequence[str], **options: Any) -> None:
    vectoriser = CountVectorizer(**options)
    counts = vectoriser.fit_transform(texts).toarray()
    assert found.names == vectoriser.get_feature_names_out().tolist()
    np.testing.assert_array_equal(found.values, counts)


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lowercase": False},
        {"binary": True},
        {"ngrams": (1, 3)},
        {"ngrams": (2, 2), "stop_words": "english"},
        {"stop_words": ("dog", "the")},
        {"min_df": 2},
        {"min_df": 0.25},
        {"max_df": 1},
        {"max_df": 0.2},
        {"min_df": 2, "max_df": 0.5, "ngrams": (1, 2)},
        {"max_features": 3},
        {"max_features": 2, "binary": True},
        {"max_features": 1000},
    ],
)
@pytest.mark.parametrize("name", ["docs.txt", "docs.txt.gz"])
def test_lines__equal_a_vectoriser_on_all_documents(
    write: Callable[..., Path], name: str, options: dict[str, Any]
) -> None:
    found = read_source(write(lines(TEXTS), name), **options)
    theirs = {**options, "ngram_range": options.get("ngrams", (1, 1))}
    theirs.pop("ngrams", None)
    if "stop_words" in theirs:
        words = theirs["stop_words"]
        theirs["stop_words"] = words if isinstance(words, str) else list(words)
    assert_equals_vectoriser(found, TEXTS, **theirs)
    assert found.values.dtype == (np.bool_ if options.get("binary") else np.uint8)
    assert not found.prepared.has_ids
    np.testing.assert_array_equal(found.ids, np.arange(len(TEXTS)))
    assert found.prepared.notes == ("Every line is a document.",)


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("binary", [False, True])
def test_hashing__equals_scikit_learn(write: Callable[..., Path], binary: bool) -> None:
    found = read_source(write(lines(TEXTS), "docs.txt"), hashing=16, ngrams=(1, 2), binary=binary)
    hasher = HashingVectorizer(
        n_features=16, ngram_range=(1, 2), binary=binary, norm=None, alternate_sign=False
    )
    np.testing.assert_array_equal(found.values, hasher.transform(TEXTS).toarray())
    assert found.names == [f"x{i}" for i in range(16)]
    assert found.prepared.columns[0].number == ("bool" if binary else "integer")


@pytest.mark.parametrize("most_files", [2, 4096])
def test_folder__has_a_row_for_every_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, most_files: int
) -> None:
    monkeypatch.setattr(documents, "_MOST_FILES", most_files)
    found = read_source(folder)
    names = sorted(str(path) for path in folder.rglob("[!.]*.txt"))
    ids = [Path(name).relative_to(folder).as_posix() for name in names]
    assert found.ids.tolist() == ids
    assert "deep/er/0 ü.txt" in ids
    assert found.prepared.has_ids
    assert_equals_vectoriser(found, [Path(name).read_text(encoding="utf-8") for name in names])


def test_folder__may_hold_compressed_files_and_byte_order_marks(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_bytes("\ufeffaa bb".encode())
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"bb cc"))
    found = read_source(folder, format="text")
    assert found.names == ["aa", "bb", "cc"]
    np.testing.assert_array_equal(found.values, [[1, 1, 0], [0, 1, 1]])


def test_lines__of_any_end_and_kind_are_documents(write: Callable[..., Path]) -> None:
    found = read_source(write("\ufeffaa\r\n\r\n \nbb aa", "docs.txt"))
    np.testing.assert_array_equal(found.values, [[1, 0], [0, 0], [0, 0], [1, 1]])


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("name", ["docs.jsonl", "docs.ndjson", "docs.jsonl.gz"])
def test_objects__have_text_ids_and_annotations(write: Callable[..., Path], name: str) -> None:
    items = [
        {"text": one, "id": f"d{i} é", "year": 1990 + i, "score": i / 2, "good": i > 3}
        for i, one in enumerate(TEXTS)
    ]
    found = read_source(write([*items[:4], *items[4:]], name))
    assert_equals_vectoriser(found, TEXTS)
    assert found.ids.tolist() == [item["id"] for item in items]
    kinds = {"year": "integer", "score": "real", "good": "bool"}
    assert found.prepared.obs_kinds == kinds
    for field in kinds:
        assert found.obs[field].tolist() == [item[field] for item in items]


@pytest.mark.usefixtures("cut_small")
def test_objects__have_annotations_whose_kind_all_pieces_settle(
    write: Callable[..., Path],
) -> None:
    items = [
        {"text": "first words of a document", "whole": 1, "mixed": 1, "flag": True, "long": 2**70},
        {"text": "and some more in another", "whole": None, "mixed": "a", "flag": None},
        {"text": "the last one of these", "whole": 3, "mixed": [1, "é"], "late": None},
        {"text": "with one field more", "whole": 4, "flag": False, "later": 2.5},
    ]
    found = read_source(write(items))
    assert found.prepared.obs_kinds == {
        "whole": "real",
        "mixed": "text",
        "flag": "text",
        "long": "text",
        "late": "real",
        "later": "real",
    }
    np.testing.assert_array_equal(found.obs["whole"], [1, np.nan, 3, 4])
    assert found.obs["mixed"].tolist() == ["1", "a", '[1, "é"]', None]
    assert found.obs["flag"].tolist() == ["true", None, None, "false"]
    assert found.obs["long"].tolist() == [str(2**70), None, None, None]
    np.testing.assert_array_equal(found.obs["late"], [np.nan] * 4)
    np.testing.assert_array_equal(found.obs["later"], [np.nan, np.nan, np.nan, 2.5])


def test_objects__fields_can_be_chosen(write: Callable[..., Path]) -> None:
    path = write([{"body": "aa bb", "key": 7, "a": 1, "b": 2}, {"body": "bb", "key": 5, "a": 3}])
    chosen = read_source(path, text_field="body", id_field="key", drop=("b",))
    assert chosen.ids.tolist() == [7, 5]
    assert chosen.prepared.ids_kind == "integer"
    assert list(chosen.obs) == ["a"]
    kept = read_source(path, text_field="body", ids="", obs=("b",))
    assert not kept.prepared.has_ids
    np.testing.assert_array_equal(kept.obs["b"], [2, np.nan])


def test_objects__ids_of_both_kinds_are_text(write: Callable[..., Path]) -> None:
    found = read_source(write([{"text": "aa", "id": 7}, {"text": "aa", "id": "x"}]))
    assert found.ids.tolist() == ["7", "x"]


def test_objects__ids_that_occur_twice_are_left_to_the_store(write: Callable[..., Path]) -> None:
    found = read_source(write([{"text": "aa", "id": 7}, {"text": "bb", "id": 7}]))
    assert found.ids.tolist() == [7, 7]


@pytest.mark.usefixtures("cut_small")
def test_objects__empty_lines_are_skipped(write: Callable[..., Path]) -> None:
    content = '\n\n{"text": "aa"}\n   \r\n' + "\n" * 100 + '{"text": "bb"}'
    np.testing.assert_array_equal(read_source(write(content)).values, [[1, 0], [0, 1]])


BAD = [
    ('{"text": "aa"', "a JSON object", "Expecting"),
    ('["text"]', "a JSON object", "'[\"text\"]'"),
    ("3", "a JSON object", "'3'"),
    ('{"body": "aa"}', "text in the field 'text'", "only the fields body"),
    ('{"text": null}', "text in the field 'text'", "null"),
    ('{"text": 5}', "text in the field 'text'", "5"),
    ('{"text": "aa", "id": 1.5}', "text or a number", "1.5"),
    ('{"text": "aa", "id": true}', "text or a number", "true"),
    ('{"text": "\\ud800 aa"}', "a JSON object", "surrogates not allowed"),
    ("[" * 100_000, "a JSON object", "recursion"),
    (b'{"text": "\xff"}', "UTF-8 text", "position 10"),
]


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("line", "expected", "got"), BAD)
def test_objects__a_line_that_is_none_is_named(
    write: Callable[..., Path], line: str | bytes, expected: str, got: str, compressed: bool
) -> None:
    encoded = line.encode() if isinstance(line, str) else line
    content = b'{"text": "fine"}\n\n' * 15 + encoded + b'\n{"text": "fine"}\n'
    path = write(content, "docs.jsonl.gz" if compressed else "docs.jsonl")
    with pytest.raises(InputError) as caught:
        read_source(path)
    assert f", line 31: expected {expected}" in str(caught.value)
    assert got in str(caught.value)


def test_objects__some_without_an_id_are_refused(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write([{"text": "aa", "id": 1}, {"text": "aa"}])
    with pytest.raises(InputError, match=r"line 2: expected an id in the field 'id' of every"):
        read_source(path)
    monkeypatch.setattr(text, "_PART_BYTES", 20)  # one object a piece
    with pytest.raises(InputError, match="expected an id in every object, or in none"):
        read_source(path)


def test_objects__of_too_many_fields_are_refused(write: Callable[..., Path]) -> None:
    path = write([{"text": "aa", f"field {i}": 1} for i in range(1001)])
    with pytest.raises(InputError, match="expected at most 1000 fields, got 1001"):
        read_source(path)


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("name", ["docs.txt", "docs.txt.gz"])
def test_lines__that_are_not_utf8_are_named(write: Callable[..., Path], name: str) -> None:
    path = write(b"good words\n" * 20 + "é".encode("latin-1") + b"\n", name)
    with pytest.raises(InputError, match=r"line 21: expected UTF-8 text"):
        read_source(path)


def test_files__that_are_not_utf8_are_named(folder: Path) -> None:
    (folder / "latin.txt").write_bytes("déjà vu".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.txt: expected UTF-8 text, .* position 1"):
        read_source(folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ngrams": (0, 1)}, "ngrams: expected two numbers"),
        ({"ngrams": (2, 1)}, "ngrams"),
        ({"stop_words": "klingon"}, "stop_words: expected 'english' or a list"),
        ({"min_df": 0}, "min_df: expected a whole number from 1 or a share"),
        ({"min_df": 1.5}, "min_df"),
        ({"max_df": -0.1}, "max_df"),
        ({"max_features": 0}, "max_features"),
        ({"hashing": 0}, "hashing"),
        ({"hashing": 2**40}, "hashing"),
        ({"hashing": 8, "min_df": 2}, "hashing: expected no limits on terms"),
    ],
)
def test_options__that_make_no_bag_are_refused_before_reading(
    write: Callable[..., Path], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_source(write(b"\xff", "docs.txt"), **options)


@pytest.mark.parametrize("options", [{"min_df": 5}, {"max_df": 1, "min_df": 2}])
def test_terms__none_left_are_refused(write: Callable[..., Path], options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected terms to count, got none of 2"):
        read_source(write("aa bb\naa\n", "docs.txt"), **options)


def test_documents__none_at_all_are_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="expected documents, got none"):
        read_source(write("", "docs.txt"))
    with pytest.raises(InputError, match="expected terms to count, got none of 0"):
        read_source(write("\n\n", "docs.txt"))


def test_max_features__keeps_the_first_of_equally_frequent_terms(
    write: Callable[..., Path],
) -> None:
    words = [f"w{i:03d}" for i in range(300)]
    path = write(lines([" ".join(reversed(words)), "w299 w150"]), "docs.txt")
    assert read_source(path, max_features=5).names == ["w000", "w001", "w002", "w150", "w299"]


def test_vocabulary__of_70000_terms(write: Callable[..., Path]) -> None:
    texts = [" ".join(f"t{i}" for i in range(k, 70_001, 7)) for k in range(7)]
    path = write(lines(texts), "docs.txt")
    assert_equals_vectoriser(read_source(path), texts)


@pytest.mark.usefixtures("cut_small")
def test_joining__counts_in_the_terms_and_the_way_of_the_store(
    write: Callable[..., Path],
) -> None:
    first = read_source(write(lines(TEXTS), "old.txt"), ngrams=(1, 2), lowercase=False, min_df=2)
    facts = json.loads(json.dumps(dict(first.prepared.facts)))
    expected = Expected(first.prepared.columns, facts=facts)
    more = ["brown DOG", "dog brown dog", "unknown words only"]
    found = read_source(write(lines(more), "new.txt"), expected=expected)
    vectoriser = CountVectorizer(ngram_range=(1, 2), lowercase=False, vocabulary=first.names)
    assert found.names == first.names
    np.testing.assert_array_equal(found.values, vectoriser.transform(more).toarray())


def test_joining__hashes_as_the_store_does(write: Callable[..., Path]) -> None:
    first = read_source(write(lines(TEXTS), "old.txt"), hashing=8)
    expected = Expected(first.prepared.columns, facts=first.prepared.facts)
    again = read_source(write(lines(TEXTS), "new.txt"), expected=expected)
    np.testing.assert_array_equal(again.values, first.values)
    other = Expected(tuple(Column(name) for name in "abc"))
    with pytest.raises(InputError, match="hashing: expected 3 as in the store, got 4"):
        read_source(write("aa\n", "other.txt"), expected=other, hashing=4)


def test_joining__keeps_kinds_of_the_store(write: Callable[..., Path]) -> None:
    columns = (Column("aa"),)
    expected = Expected(columns, {"year": "real", "tag": "text"}, "text")
    found = read_source(write([{"text": "aa", "id": 5, "year": 7}]), expected=expected)
    assert found.ids.tolist() == ["5"]
    assert found.prepared.obs_kinds == {"year": "real", "tag": "text"}
    assert found.obs["tag"].tolist() == [None]


@pytest.mark.usefixtures("cut_small")
def test_rows__are_the_same_on_threads(write: Callable[..., Path]) -> None:
    found = read_source(write(lines(TEXTS), "docs.txt"), mapper=map_ordered)
    assert_equals_vectoriser(found, TEXTS)


@pytest.mark.usefixtures("cut_small")
@pytest.mark.parametrize("name", ["docs.txt", "docs.txt.gz"])
def test_prepare__is_taken_up_after_a_kill(
    write: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    path = write(lines(TEXTS), name)

    def check(place: str, finished: bool) -> None:
        if finished:
            assert_equals_vectoriser(read_source(path, place), TEXTS)

    n_faults = every_fault(
        tmp_path / "faults",
        prepare=lambda place: Path(place).mkdir(parents=True),
        action=lambda place: prepare_source(path, place),
        check=check,
    )
    assert n_faults >= 8


@pytest.mark.usefixtures("cut_small")
def test_prepare__counts_no_document_twice(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(lines(TEXTS), "docs.txt")
    prepare_source(path, tmp_path / "store")
    monkeypatch.setattr(documents, "count_terms", None)
    assert_equals_vectoriser(read_source(path, tmp_path / "store"), TEXTS)


@hypothesis.given(data=st.data())
def test_lines__equal_a_vectoriser_wherever_they_are_cut(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    word = st.sampled_from(["aa", "Bb", "cc-dd", "é", "ünï", "日本", "x", "\t"])
    texts = data.draw(st.lists(st.lists(word, max_size=6).map(" ".join), min_size=1, max_size=12))
    texts.append("aa aa bb")
    least, most = data.draw(st.integers(1, 2)), data.draw(st.floats(0.5, 1.0))
    step, size = data.draw(st.integers(1, 13)), data.draw(st.integers(5, 60))
    options = {"min_df": least, "max_df": most, "ngram_range": (1, 2)}
    path = tmp_path_factory.mktemp("any") / "docs.txt"
    path.write_text(lines(texts), encoding="utf-8")
    try:
        CountVectorizer(**options).fit(texts)
    except ValueError:  # no terms left
        hypothesis.reject()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_PART_BYTES", size)
        found = read_source(path, step=step, min_df=least, max_df=most, ngrams=(1, 2))
    assert_equals_vectoriser(found, texts, **options)
