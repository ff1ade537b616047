"""svmlight (LIBSVM) files, plain or gzipped.

A line is a label, perhaps ``qid:number``, and ascending ``feature:value`` pairs; ``#`` begins
a comment. Labels and query numbers become the annotations ``label`` and ``query``. Several
labels, ``1,4,7``, are kept as text; a line may have none.

Features are numbered from 0 or from 1, and files do not say which. As scikit-learn does, they
are taken to begin at 1 unless some file uses 0; rows that join a store follow its first rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.matrix import default_columns
from distclust.store.rows import Rows
from distclust.store.sources.annotations import pack_annotation, settle_kind, unpack_annotation
from distclust.store.sources.base import Expected, ObsKind, Prepared, Scratch, Source, SourceOptions
from distclust.store.sources.files import SourceFile, name_files
from distclust.store.sources.flat import rebuild_csr
from distclust.store.sources.lines import (
    MOST_FEATURES,
    LinePart,
    files_of_lines,
    fill_lines,
    parse_cells,
    refuse_line,
    shown,
    squeeze,
)
from distclust.store.sources.prepare import first_rows, rows_of_files
from distclust.store.sources.spool import PIECE_BYTES, Parsed, Piece, PiecedRows, Spool

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper

Array: TypeAlias = npt.NDArray[Any]

_PART_BYTES = PIECE_BYTES
_COMMENT = re.compile(rb"#[^\n]*")
_UNLABELLED = re.compile(rb"\n(?=[^ :\n]*:)")  # the first word is a pair
_NOT_PAIRS = re.compile(rb" [:-]")
_LABELS = re.compile(r"[0-9.eE+-]+(,[0-9.eE+-]+)*")
_QUERY, _LABEL = -1, -2  # in the place of a feature's number
_LARGEST_WHOLE = 2**53  # queries are read as floats
_HINT = "Check the file, or write it again with sklearn.datasets.dump_svmlight_file."


class SvmlightSource(Source):
    """svmlight files, one below the other."""

    def __init__(self, files: tuple[SourceFile, ...], options: SourceOptions) -> None:
        self.name = name_files(files)
        options.refuse_columns(self.name, "an svmlight file")
        self._files = files
        self._options = options

    def identity(self) -> dict[str, Any]:
        """Return files and options."""
        files = [file.identity() for file in self._files]
        options = self._options.identity()
        return {"format": "svmlight", "files": files, "options": options, "cut": _PART_BYTES}

    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Parse all lines, then settle which features there are and what labels hold."""
        expected = self._options.expected
        spool = Spool(scratch.below("lines"))
        pieces = fill_lines(spool, self._files, _PART_BYTES, parse_rows, mapper=mapper)
        first, n_features = _settle_features(pieces, expected, self.name)
        obs_kinds = _settle_annotations(pieces, expected)
        counts = [piece.n_rows for piece in pieces]
        load = _LoadRows(spool, pieces, first_rows(counts), first, n_features, obs_kinds)
        return Prepared(
            PiecedRows(counts, n_features, True, np.dtype(np.float64), load),
            expected.columns if expected else default_columns(n_features),
            obs_kinds,
            has_ids=False,
            notes=(f"Features are numbered from {first} in the files.",),
            facts={"first_feature": first},
            file_rows=rows_of_files(
                pieces, files_of_lines(self._files, _PART_BYTES), len(self._files)
            ),
        )


def make_source(files: tuple[SourceFile, ...], options: SourceOptions) -> Source:
    """Return the source over svmlight files."""
    return SvmlightSource(files, options)


def parse_rows(part: LinePart) -> Parsed:
    """Parse lines into sparse rows whose features are numbered as in the file.

    Raises
    ------
    InputError
        If a line is not a row.
    """
    text = part.read()
    try:
        numbers, values = _parse_words(text)
        is_row, is_query, is_pair = numbers == _LABEL, numbers == _QUERY, numbers >= 0
        labels = _labels(values.filter(is_row))
        queries = _queries(values.filter(is_query), is_row, is_query)
        data = np.asarray(values.filter(is_pair).cast("float64"))
        is_ascending = (numbers[1:] > numbers[:-1]) | is_row[1:]
        if not (is_ascending.all() and np.isfinite(data).all()):
            raise ValueError
    except ValueError:
        refuse_line(part, text, _fault, "a label and ascending 'feature:value' pairs", _HINT)
    ends = np.append(np.flatnonzero(is_row), len(numbers))
    indptr = np.concatenate([[0], np.cumsum(is_pair)])[ends]
    indices = numbers[is_pair].astype(np.int32)
    arrays = {"data": data, "indices": indices, "indptr": indptr}
    survey: dict[str, Any] = {"url": part.url, "obs": {}}
    survey["features"] = [int(indices.min()), int(indices.max())] if len(indices) else None
    for name, column in (("label", labels), ("query", queries)):
        survey["obs"][name], packed = pack_annotation(f"obs.{name}", column)
        arrays |= packed
    return Parsed(len(labels), arrays, survey)


def _parse_words(text: bytes) -> tuple[Array, Any]:
    """Return the number and the value of every word, labels and queries among them.

    Every word is put on a line of its own as ``number:value``, a label without a number. So
    a fast reader of tables does the work and is strict about every word.
    """
    lines = squeeze(_COMMENT.sub(b"", text) if b"#" in text else text)
    while b"\n\n" in lines:
        lines = lines.replace(b"\n\n", b"\n")
    words = _UNLABELLED.sub(b"\n ", b"\n" + lines) if lines else b""
    if _NOT_PAIRS.search(words):
        raise ValueError
    words = words.replace(b" qid:", b" %d:" % _QUERY).replace(b"\n", b"\n:").replace(b" ", b"\n")
    types = ["int64", "string" if b"," in words else "float64"]
    numbers, values = parse_cells(words.replace(b":+", b":"), ":", types, nulls=[""])
    filled: Array = numbers.fill_null(_LABEL).to_numpy()
    if (filled > MOST_FEATURES).any():
        raise ValueError
    return filled, values


def _labels(values: Any) -> list[Any]:
    """Return one label a row, a number or several in a text; None where there is none."""
    labels: list[Any] = values.to_pylist()
    if values.type == "string":
        if not all(_LABELS.fullmatch(label) for label in labels if label):
            raise ValueError
        return [label or None for label in labels]
    return _whole([None if label is None or math.isnan(label) else label for label in labels])


def _queries(values: Any, is_row: Array, is_query: Array) -> list[Any]:
    """Return one query a row; None where there is none."""
    queries = np.asarray(values.cast("float64"))
    if not ((queries == np.floor(queries)) & (np.abs(queries) < _LARGEST_WHOLE)).all():
        raise ValueError
    column = np.full(np.count_nonzero(is_row), None)
    column[np.cumsum(is_row)[is_query] - 1] = queries
    return _whole(column.tolist())


def _whole(values: list[float | None]) -> list[Any]:
    """Return numbers as integers if all of them are whole."""
    present = [value for value in values if value is not None]
    if not all(value.is_integer() and abs(value) < _LARGEST_WHOLE for value in present):
        return values
    return [None if value is None else int(value) for value in values]


def _settle_features(
    pieces: Sequence[Piece], expected: Expected | None, name: str
) -> tuple[int, int]:
    """Return the number of the first feature in the files, and how many there are."""
    surveys = [piece.survey for piece in pieces if piece.survey["features"]]
    lowest = min((survey["features"][0] for survey in surveys), default=0)
    known = expected.facts.get("first_feature") if expected else None
    first = min(lowest, 1) if known is None else int(known)
    if expected is None:
        if not surveys:
            raise InputError(name, "rows with features", "none", _HINT)
        return first, max(survey["features"][1] for survey in surveys) + 1 - first
    last = first + len(expected.columns) - 1
    for survey in surveys:
        low, high = survey["features"]
        if low < first or high > last:
            got = f"feature {low if low < first else high}"
            wanted = f"features {first} to {last} as in the store"
            raise InputError(survey["url"], wanted, got, "Ingest it as a store of its own.")
    return first, len(expected.columns)


def _settle_annotations(pieces: Sequence[Piece], expected: Expected | None) -> dict[str, ObsKind]:
    """Return the kinds of labels and queries, where there are any."""
    wanted = expected.obs_kinds if expected else {}
    kinds: dict[str, ObsKind] = {}
    for name in ("label", "query"):
        found = [piece.survey["obs"][name] for piece in pieces]
        if name in wanted or any(kinds for kinds, _ in found):
            kinds[name] = settle_kind(found, wanted.get(name))
    return kinds


@dataclass(frozen=True)
class _LoadRows:
    """Reads all rows of a piece."""

    spool: Spool
    pieces: Sequence[Piece]
    starts: Sequence[int]
    first_feature: int
    n_features: int
    obs_kinds: Mapping[str, ObsKind]

    def __call__(self, number: int) -> Rows:
        piece, start = self.pieces[number], self.starts[number]
        arrays = self.spool.arrays(piece)
        shifted = {**arrays, "indices": arrays["indices"] - np.int32(self.first_feature)}
        obs = {
            name: unpack_annotation(arrays, f"obs.{name}", kind, piece.n_rows)
            for name, kind in self.obs_kinds.items()
        }
        ids = np.arange(start, start + piece.n_rows)
        return Rows(rebuild_csr(shifted, self.n_features), ids, obs)


def _fault(line: bytes) -> str | None:
    """Return what is wrong with a line; slow, and only asked about a part that has a fault."""
    words = line.split(b"#")[0].split()
    if words and b":" not in words[0] and not _is_label(words.pop(0)):
        return f"the label {shown(line.split()[0])}"
    before = _LABEL
    for word in words:
        name, colon, value = word.partition(b":")
        is_query = before == _LABEL and name == b"qid"
        if not colon or not (is_query or name.isdigit()) or not _is_number(value, is_query):
            return shown(word)
        number = _QUERY if is_query else int(name)
        if not before < number <= MOST_FEATURES:
            return f"{shown(word)} after feature {before}" if before >= 0 else shown(word)
        before = number
    return None


def _is_label(word: bytes) -> bool:
    return all(_is_number(part, False, finite=False) for part in word.split(b","))


def _is_number(word: bytes, whole: bool, finite: bool = True) -> bool:
    try:
        value = float(word)
    except ValueError:
        return False
    if whole:
        return value.is_integer() and abs(value) < _LARGEST_WHOLE
    return math.isfinite(value) or not finite
