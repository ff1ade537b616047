"""Documents in files, in lines and in JSON objects, each piece of them counted at once."""

from __future__ import annotations

import codecs
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from distclust.errors import InputError
from distclust.store.sources.annotations import pack_annotation
from distclust.store.sources.base import SourceOptions
from distclust.store.sources.flat import flatten_csr, flatten_texts
from distclust.store.sources.lines import LinePart, open_content, shown
from distclust.store.sources.spool import Parsed
from distclust.store.sources.vocabulary import Bag, count_terms, hash_terms

if TYPE_CHECKING:
    from distclust.store.sources.files import SourceFile

_MOST_FILES = 4096  # in a piece, however small they are


@dataclass(frozen=True)
class Fields:
    """What the fields of JSON objects are for.

    Attributes
    ----------
    text
        The one that holds the text.
    ids
        The one that names the row, where it is there; empty for none.
    kept
        Those that become annotations; empty for all others.
    dropped
        Those that are left out.
    """

    text: str
    ids: str
    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @classmethod
    def chosen(cls, options: SourceOptions) -> Fields:
        """Return what the options say."""
        ids = options.id_field if options.ids is None else options.ids
        return cls(options.text_field, ids, options.obs, options.drop)

    def annotations(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Return what an object says about its row."""
        taken = {self.text, self.ids, *self.dropped}
        return {name: item.get(name) for name in self.kept or item if name not in taken}


@dataclass
class Documents:
    """Documents of one piece: texts, ids (or None) and annotations, one each."""

    texts: list[str] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)


def group_files(files: Sequence[SourceFile], most_bytes: int) -> list[tuple[SourceFile, ...]]:
    """Return files in groups that are read as one piece."""
    groups: list[list[SourceFile]] = []
    n_bytes = 0
    for file in files:
        if not groups or n_bytes + file.size > most_bytes or len(groups[-1]) == _MOST_FILES:
            groups.append([])
            n_bytes = 0
        groups[-1].append(file)
        n_bytes += file.size
    return [tuple(group) for group in groups]


def count_files(files: Sequence[SourceFile], bag: Bag) -> Parsed:
    """Count the terms of files, each of which is a document.

    Raises
    ------
    InputError
        If one is not UTF-8.
    """
    documents = Documents(ids=[file.inside for file in files])
    for file in files:
        with open_content(file) as content:
            text = content.read().removeprefix(codecs.BOM_UTF8)
        documents.texts.append(_decode(text, functools.partial(str, file.url)))
    return _count(documents, bag)


def count_lines(part: LinePart, bag: Bag) -> Parsed:
    """Count the terms of lines, each of which is a document."""
    texts = [_decode(line, where) for line, where in _lines(part)]
    return _count(Documents(texts, [None] * len(texts)), bag)


def count_objects(part: LinePart, bag: Bag, fields: Fields) -> Parsed:
    """Count the terms of JSON objects, one a line; empty lines are skipped.

    Raises
    ------
    InputError
        If a line is not an object with a text, or only some objects have an id.
    """
    documents = Documents()
    for line, where in _lines(part):
        if not line.strip():
            continue
        item = _read_object(_decode(line, where), fields, where)
        documents.texts.append(item[fields.text])
        documents.ids.append(item.get(fields.ids))
        documents.annotations.append(fields.annotations(item))
        if (documents.ids[-1] is None) != (documents.ids[0] is None):
            expected = f"an id in the field {fields.ids!r} of every object, or of none"
            got = "both with and without one"
            raise InputError(where(), expected, got, "Mend the file, or name another field.")
    return _count(documents, bag)


def _lines(part: LinePart) -> Iterator[tuple[bytes, Callable[[], str]]]:
    """Yield lines, each with a function that returns its place; that may take a while."""
    lines = part.read().split(b"\n")
    if not lines[-1]:
        lines.pop()  # what follows the last line end is no line
    for i, line in enumerate(lines):
        yield line.removesuffix(b"\r"), functools.partial(_place, part, i)


def _place(part: LinePart, i: int) -> str:
    return f"{part.url}, line {part.first_line() + i}"


def _decode(text: bytes, where: Callable[[], str]) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        got = f"a byte that is none at position {error.start}"
        raise InputError(where(), "UTF-8 text", got, "Save the file as UTF-8.") from None


def _read_object(line: str, fields: Fields, where: Callable[[], str]) -> dict[str, Any]:
    """Return one object, checked."""
    hint = "Mend the line, or name the fields that hold text and id."
    try:
        item = json.loads(line)
        if "\\ud" in line.lower():  # half of a pair is no character
            json.dumps(item, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InputError(where(), "a JSON object", str(error), hint) from None
    if not isinstance(item, dict):
        raise InputError(where(), "a JSON object", shown(line.encode()), hint)
    for name, kinds in ((fields.text, (str,)), (fields.ids, (str, int, type(None)))):
        value = item.get(name)
        if not isinstance(value, kinds) or isinstance(value, bool):
            expected = f"text in the field {name!r}" if name == fields.text else "text or a number"
            got = json.dumps(value) if name in item else f"only the fields {', '.join(item)}"
            raise InputError(where(), expected, got[:80], hint)
    return item


def _count(documents: Documents, bag: Bag) -> Parsed:
    """Return the counts of all documents of a piece, and what they say about themselves."""
    survey: dict[str, Any] = {"obs": {}}
    if bag.hashing is None:
        terms, csr = count_terms(documents.texts, bag)
        arrays = flatten_texts(terms, "terms") | flatten_csr(csr)
        arrays["documents"] = np.bincount(csr.indices, minlength=len(terms))
        arrays["occurrences"] = np.asarray(csr.sum(axis=0, dtype=np.int64))
    else:
        csr = hash_terms(documents.texts, bag)
        arrays = flatten_csr(csr)
    survey["largest"] = int(csr.data.max(initial=0))
    survey["ids"], packed = pack_annotation("ids", documents.ids)
    arrays |= packed
    for name, values in _columns(documents.annotations).items():
        survey["obs"][name], packed = pack_annotation(f"obs.{name}", values)
        arrays |= packed
    return Parsed(len(documents.texts), arrays, survey)


def _columns(annotations: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for item in annotations for name in item)
    return {name: [item.get(name) for item in annotations] for name in names}
