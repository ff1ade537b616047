from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from distclust.store.sources.annotations import pack_annotation, settle_kind, unpack_annotation
from distclust.store.sources.files import find_files
from distclust.store.sources.flat import flatten_texts, rebuild_texts
from distclust.store.sources.lines import FilePart, FileStream, cut_file, squeeze


@hypothesis.given(
    content=st.text("ab\n\r ", max_size=60).map(str.encode),
    start=st.integers(0, 5),
    n_bytes=st.integers(1, 20),
)
def test_parts__are_the_lines_of_a_file(
    content: bytes, start: int, n_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.txt"
    header = b"h" * start + b"\n" if start else b""
    path.write_bytes(header + content)
    (file,) = find_files(path)
    parts = cut_file(file, len(header), n_bytes)
    assert b"".join(part.read() for part in parts if isinstance(part, FilePart)) == content
    line = 1 + bool(header)
    for part in parts:
        assert isinstance(part, FilePart)
        if part.read():
            assert part.first_line() == line
        line += part.read().count(b"\n")

    zipped = path.with_name("a.txt.gz")
    zipped.write_bytes(gzip.compress(header + content))
    (file,) = find_files(zipped)
    (stream,) = cut_file(file, len(header), n_bytes)
    assert isinstance(stream, FileStream)
    flowing = list(stream.parts())
    assert b"".join(part.read() for part in flowing) == content
    line = 1 + bool(header)
    for passing in flowing:
        assert passing.first_line() == line
        line += passing.content.count(b"\n")


@hypothesis.given(st.text("ab \t\r\n", max_size=60).map(str.encode))
def test_squeeze__keeps_words_and_lines(text: bytes) -> None:
    words = [b" ".join(line.split()) for line in text.strip().split(b"\n")]
    assert squeeze(text) == b"\n".join(words)


@hypothesis.given(st.lists(st.none() | st.text(max_size=5)))
def test_texts__come_back(texts: list[str | None]) -> None:
    assert rebuild_texts(flatten_texts(texts, "name"), "name").tolist() == texts


VALUES = [
    ([True, False], "bool", [True, False]),
    ([1, -2], "integer", [1, -2]),
    ([1, 0.5], "real", [1, 0.5]),
    ([1, None], "real", [1, np.nan]),
    ([0.5, None], "real", [0.5, np.nan]),
    ([None, None], "real", [np.nan, np.nan]),
    ([True, None], "text", ["true", None]),
    ([True, 1], "text", ["true", "1"]),
    (["a", 1], "text", ["a", "1"]),
    (["a", None], "text", ["a", None]),
    ([2**63 - 1, 1 - 2**63], "integer", [2**63 - 1, 1 - 2**63]),
    ([2**63, 1], "text", [str(2**63), "1"]),
    ([2**60 + 1, 0.5], "text", [str(2**60 + 1), "0.5"]),
    ([2**60 + 1, None], "text", [str(2**60 + 1), None]),
    ([1, 2.0, 0.5, "a"], "text", ["1", "2", "0.5", "a"]),
    ([{"a": 1}, ["é"]], "text", ['{"a": 1}', '["é"]']),
]


@pytest.mark.parametrize("size", [1, 3, 9])
@pytest.mark.parametrize(("values", "kind", "expected"), VALUES)
def test_annotations__do_not_depend_on_how_rows_are_cut(
    values: list[object], kind: str, expected: list[object], size: int
) -> None:
    pieces = [values[start : start + size] for start in range(0, len(values), size)]
    packed = [pack_annotation("key", piece) for piece in pieces]
    found = settle_kind(what for what, _ in packed)
    assert found == kind
    columns = [
        unpack_annotation(arrays, "key", found, len(piece))
        for piece, (_, arrays) in zip(pieces, packed, strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate(columns), expected)


def test_annotations__widen_to_what_a_store_has() -> None:
    found, arrays = pack_annotation("key", [1, 2])
    assert settle_kind([found], "real") == "real"
    assert settle_kind([found], "text") == "text"
    assert unpack_annotation(arrays, "key", "text", 2).tolist() == ["1", "2"]
    assert unpack_annotation({}, "key", "text", 2).tolist() == [None, None]


def test_sources__import_nothing_heavy_by_themselves() -> None:
    folder = Path(__file__).parents[3] / "distclust" / "store" / "sources"
    names = [path.stem for path in folder.glob("*.py") if not path.stem.endswith("_numerics")]
    modules = ", ".join(f"distclust.store.sources.{name}" for name in names if name != "__init__")
    heavy = "{'zarr', 'pyarrow', 'pandas', 'sklearn', 'fsspec', 'anndata', 'numba', 'dask'}"
    code = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
