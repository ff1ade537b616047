"""Features of a store on disk, and how the features of new rows fit them.

The file is JSON: names (none if they are ``x0, x1, ...``), one letter a feature for its
kind, levels of the categories, and the facts that were learned from the first rows and are
used again for new ones. It is named by the ledger together with its digest.

Rows that join a store bring their own description. Names and kinds must agree; levels that
the store has not seen go to the end, since the codes of stored rows stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError, StoreError
from distclust.store.matrix import Column, NumberKind, default_columns, has_default_names

Array = npt.NDArray[Any]

_LETTERS: dict[NumberKind, str] = {"bool": "b", "integer": "i", "real": "r"}
_NUMBERS = {letter: number for number, letter in _LETTERS.items()}
_CATEGORY = "c"
# A number that is at least as general as both.
_ORDER: tuple[NumberKind, ...] = ("bool", "integer", "real")


@dataclass(frozen=True)
class Features:
    """What a store knows about its features.

    Attributes
    ----------
    columns
        Name and meaning of every feature.
    facts
        JSON that new rows need to be read as the first ones were.
    """

    columns: tuple[Column, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the content of the file; equal features give equal bytes."""
        columns = self.columns
        names = None if has_default_names(columns) else [column.name for column in columns]
        kinds = "".join(_letter(column) for column in columns)
        levels = [column.levels for column in columns if column.kind == "category"]
        content = {"names": names, "kinds": kinds, "levels": levels, "facts": dict(self.facts)}
        return json.dumps(content, sort_keys=True).encode()

    @classmethod
    def decode(cls, content: bytes, where: str) -> Features:
        """Read what `encode` wrote; `StoreError` if it is something else."""
        try:
            read = json.loads(content)
            columns = _columns(read["names"], read["kinds"], read["levels"])
            return cls(columns, dict(read["facts"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            hint = "Restore the store from a copy, or ingest it again."
            raise StoreError(where, "a description of features", repr(error), hint) from error


def _letter(column: Column) -> str:
    return _CATEGORY if column.kind == "category" else _LETTERS[column.number]


def _columns(names: list[str] | None, kinds: str, levels: list[list[str]]) -> tuple[Column, ...]:
    if names is None:
        names = [column.name for column in default_columns(len(kinds))]
    texts = [*names, *(level for group in levels for level in group)]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("names and levels are text")
    if kinds.count(_CATEGORY) != len(levels):
        raise ValueError("another number of categories")
    left = iter(levels)
    return tuple(
        Column(name, "category", tuple(next(left)))
        if letter == _CATEGORY
        else Column(name, number=_NUMBERS[letter])
        for name, letter in zip(names, kinds, strict=True)
    )


def extend_columns(
    stored: tuple[Column, ...], new: tuple[Column, ...], where: str
) -> tuple[Column, ...]:
    """Return the columns of a store with rows of `new` added.

    Parameters
    ----------
    stored
        Columns of the store; their levels keep their codes.
    new
        Columns of the rows to be added. Names by position (``x0, x1, ...``) fit any.
    where
        Place to name in errors.

    Raises
    ------
    InputError
        If number, names, order or kinds of the features differ.
    """
    if len(stored) != len(new):
        hint = "Bring the same features in the same order."
        raise InputError(where, f"{len(stored)} features as in the store", len(new), hint)
    named = not (has_default_names(stored) or has_default_names(new))
    pairs = zip(stored, new, strict=True)
    return tuple(_extend(old, fresh, named, where) for old, fresh in pairs)


def _extend(old: Column, new: Column, named: bool, where: str) -> Column:
    if old == new:
        return old
    if named and old.name != new.name:
        hint = "Rename or reorder the columns as they are in the store."
        raise InputError(where, f"a column named {old.name!r}", repr(new.name), hint)
    if old.kind != new.kind:
        words = {"category": "categories", "number": "numbers"}
        expected = f"{words[old.kind]} as in the store"
        hint = "Convert the column."
        raise InputError(f"{where} column {old.name!r}", expected, words[new.kind], hint)
    known = set(old.levels)
    added = tuple(level for level in new.levels if level not in known)
    number = max(old.number, new.number, key=_ORDER.index)
    return replace(old, levels=old.levels + added, number=number)


def recode_levels(stored: tuple[Column, ...], new: tuple[Column, ...]) -> dict[int, Array]:
    """Return what turns codes of `new` into codes of `stored`, by column.

    Parameters
    ----------
    stored
        Columns as `extend_columns` returns them.
    new
        Columns of the rows to be added.

    Returns
    -------
    Column number to the new code of every old code, int64; columns whose codes stay as
    they are are left out.
    """
    recoded = {}
    for d, (target, source) in enumerate(zip(stored, new, strict=True)):
        if source.levels != target.levels[: len(source.levels)]:
            code_of = {level: code for code, level in enumerate(target.levels)}
            codes = [code_of[level] for level in source.levels]
            recoded[d] = np.array(codes, np.int64)
    return recoded
