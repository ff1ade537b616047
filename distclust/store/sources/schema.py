"""What the columns of a table are, settled over all of its pieces.

Every piece says what it saw (a `Survey`); surveys add up to `Totals`, in which a column's
type is a set of flags joined by "or", so that the outcome does not depend on where pieces
were cut. From the totals follows the `Schema` by which all pieces are read.

Rules. Whole numbers and other numbers are numbers; so are columns without any value. Truth
values are truth values as long as nothing else is there. Dates go to the annotations.
Anything else is text: the levels of a category, sorted, at most 65,536 of them. A column of
numbers with a few cells that are not is refused, as that is a slip far more often than a
category. The first column names the rows if its header is empty, or if it is text and no
value is missing or occurs twice.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np

from distclust.errors import InputError
from distclust.store.matrix import Column, NumberKind
from distclust.store.sources.base import Expected, IdsKind, ObsKind
from distclust.store.sources.roles import Roles

Kind: TypeAlias = Literal["integer", "real", "bool", "date", "text"]

MAX_LEVELS = 65_536
LONG = 2**53  # from here on, not all whole numbers are real ones in double precision
_ID_NAME = re.compile(r"(?:^|[\W_])(?:id|ids|uid|uuid|guid)$", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_LARGEST = 2**63 - 1  # of the whole numbers that ids and annotations can be
SLIPS = 0.5  # a column with a smaller share of cells that are not numbers is one of numbers

# What a column held in one piece; nothing but missing values is 0.
INTEGER, REAL, BOOL, DATE, ZONED_DATE, TEXT = 1, 2, 4, 8, 16, 32
_NUMBER = INTEGER | REAL
_NO_TEXT = INTEGER | REAL | BOOL  # not kept as text
_KINDS: dict[int, Kind] = {
    0: "real",
    INTEGER: "integer",
    REAL: "real",
    INTEGER | REAL: "real",
    BOOL: "bool",
    DATE: "date",
    ZONED_DATE: "date",
}


class TextFacts(TypedDict):
    """What one piece says about a column that is not numbers.

    `numbers` counts the cells that could be numbers; `first` is the first one that could
    not, its line or row in the piece and its text; `levels` are the different values, None
    if they are too many; `is_distinct` says that none is missing or occurs twice, and
    `is_whole` that all are plain whole numbers.
    """

    numbers: int
    first: tuple[int, str] | None
    levels: list[str] | None
    is_distinct: bool
    is_whole: bool


class Survey(TypedDict):
    """What one piece says about its columns, as JSON.

    `flags` has two hexadecimal digits a column; `missing` counts by column where there are
    any; `bounds` are those of the features if all are whole numbers; `long` are those of the
    columns with whole numbers from 2^53 on; `infinite` is the line and the column of the
    first infinite value; `texts` describe columns that are not numbers.
    """

    flags: str
    missing: dict[str, int]
    bounds: tuple[int, int] | None
    long: dict[str, tuple[int, int]]
    infinite: tuple[int, int] | None
    texts: dict[str, TextFacts]


@dataclass
class _TextTotals:
    first: tuple[str, str] | None = None  # where and what
    levels: set[str] | None = field(default_factory=set)
    is_distinct: bool = True
    is_whole: bool = True

    def add(self, facts: TextFacts, place: Callable[[int], str]) -> None:
        if self.first is None and facts["first"] is not None:
            line, text = facts["first"]
            self.first = (place(line), text)
        if self.levels is not None and facts["levels"] is not None:
            self.levels.update(facts["levels"])
        if facts["levels"] is None or (self.levels and len(self.levels) > MAX_LEVELS):
            self.levels = None
        self.is_distinct &= facts["is_distinct"]
        self.is_whole &= facts["is_whole"]


class Totals:
    """Surveys of all pieces added up."""

    def __init__(self, roles: Roles) -> None:
        self.roles = roles
        n_columns = len(roles.names)
        self.n_rows = 0
        self.flags = np.zeros(n_columns, np.uint8)
        self.missing = np.zeros(n_columns, np.int64)
        self.numbers = np.zeros(n_columns, np.int64)
        self.bounds = (0, 0)
        self.long: dict[int, tuple[int, int]] = {}
        self.texts: dict[int, _TextTotals] = {}

    def add(self, survey: Survey, n_rows: int, place: Callable[[int], str]) -> None:
        """Add one piece.

        Parameters
        ----------
        survey, n_rows
            What it says and how many rows it has.
        place
            Function that turns a line of the piece into a place to name in errors.

        Raises
        ------
        InputError
            If the piece holds infinite values.
        """
        if survey["infinite"] is not None:
            line, column = survey["infinite"]
            raise InputError(
                _in_column(place(line), self.roles.names[column]),
                "finite numbers",
                "an infinite value",
                "Replace it by a finite number or leave it empty.",
            )
        flags = np.frombuffer(bytes.fromhex(survey["flags"]), np.uint8)
        missing = np.zeros(len(flags), np.int64)
        for j, count in survey["missing"].items():
            missing[int(j)] = count
        self.n_rows += n_rows
        self.flags |= flags
        self.missing += missing
        self.numbers += np.where(flags & _NUMBER, n_rows - missing, 0)
        low, high = survey["bounds"] or (0, 0)
        self.bounds = min(self.bounds[0], low), max(self.bounds[1], high)
        for key, (low, high) in survey["long"].items():
            known = self.long.get(int(key), (0, 0))
            self.long[int(key)] = min(known[0], low), max(known[1], high)
        for key, facts in survey["texts"].items():
            self.numbers[int(key)] += facts["numbers"]
            self.texts.setdefault(int(key), _TextTotals()).add(facts, place)

    def kind(self, j: int) -> Kind:
        """Return what a column is, all pieces considered."""
        return "text" if j in self.roles.categories else _KINDS.get(int(self.flags[j]), "text")

    def misread(self) -> frozenset[int]:
        """Return the columns of text that some piece took for something else.

        Truth values with missing ones among them are text too where they are annotations,
        and so are long whole numbers with missing ones, and those that are too long.
        """
        columns = range(len(self.flags))
        texts = {j for j in columns if self.kind(j) == "text" and self.flags[j] & _NO_TEXT}
        unsure = {j for j in self.roles.obs if self.kind(j) == "bool" and self.missing[j]}
        unsure |= {j for j in self.roles.obs & self.long.keys() if self._is_lost(j)}
        return frozenset(texts | unsure)

    def _is_lost(self, j: int) -> bool:
        """Whether long whole numbers would be rounded for no more than a missing one."""
        return self.kind(j) == "integer" and (self.missing[j] > 0 or self.is_too_long(j))

    def is_too_long(self, j: int) -> bool:
        """Whether there are whole numbers that 64 bits with a sign do not hold."""
        low, high = self.long.get(j, (0, 0))
        return low < -_LARGEST - 1 or high > _LARGEST

    def check_slips(self) -> None:
        """Refuse a column that is numbers but for a few cells."""
        for j, facts in self.texts.items():
            present = self.n_rows - int(self.missing[j])
            spoilt = present - int(self.numbers[j])
            is_judged = self.roles.is_feature(j) and j not in self.roles.categories
            if is_judged and facts.first and 0 < spoilt < SLIPS * present:
                name = self.roles.names[j]
                place, text = facts.first
                hint = f"Mend the cell, empty it, or pass --category {name}."
                where = _in_column(place, name)
                raise InputError(where, "a number as in most rows", repr(text), hint)


def _in_column(place: str, name: str) -> str:
    """Return "file, column 'x', line 5" for "file, line 5"."""
    file, _, line = place.rpartition(", ")
    return f"{file}, column {name!r}, {line}"


@dataclass(frozen=True)
class Schema:
    """How the columns of every piece become rows.

    Attributes
    ----------
    columns, features
        Features, and the place of each among the columns that are read.
    dtype
        Type of the values.
    ids, ids_kind
        Place and kind of the column that names the rows; None where they are counted.
    obs
        Name, place and kind of every annotation.
    notes
        What was decided, for the user.
    """

    columns: tuple[Column, ...]
    features: tuple[int, ...]
    dtype: np.dtype[Any]
    ids: int | None = None
    ids_kind: IdsKind = "integer"
    obs: tuple[tuple[str, int, ObsKind], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def obs_kinds(self) -> dict[str, ObsKind]:
        """Kind of every annotation by name."""
        return {name: kind for name, _, kind in self.obs}


def settle(
    totals: Totals,
    expected: Expected | None,
    where: str,
    is_distinct: Callable[[int], bool],
) -> Schema:
    """Return the schema of a table.

    Parameters
    ----------
    totals
        Surveys of all pieces.
    expected
        What the rows must fit, or None.
    where
        Place to name in errors.
    is_distinct
        Function of a column that is distinct within every piece: whether it is overall.

    Raises
    ------
    InputError
        If a column cannot be used as it is, or nothing is left.
    """
    totals.check_slips()
    roles = totals.roles
    ids = roles.ids if roles.ids is not None else _named_by(totals, is_distinct, where)
    rest = [j for j in range(len(roles.names)) if j != ids]
    features = [j for j in rest if j not in roles.obs and totals.kind(j) != "date"]
    if (totals.n_rows == 0 and expected is None) or not features:
        got = f"{totals.n_rows} rows and {len(features)} columns"
        raise InputError(where, "at least one row and one column", got, "Check the file.")
    chosen = set(features)
    known = {column.name: column for column in expected.columns} if expected else {}
    columns = tuple(_column(totals, j, known.get(roles.names[j]), where) for j in features)
    schema = Schema(
        columns,
        tuple(features),
        _dtype(totals, features, columns),
        ids,
        _ids_kind(totals, ids, expected, where),
        tuple((roles.names[j], j, _obs_kind(totals, j, expected)) for j in rest if j not in chosen),
    )
    return replace(schema, notes=(*_notes(totals, ids, features), *_rounded(totals, schema)))


def _named_by(totals: Totals, is_distinct: Callable[[int], bool], where: str) -> int | None:
    """Return the first column if it is text that tells all rows apart.

    One that is called an id but does not is a slip more often than a category.
    """
    j = totals.roles.candidate
    facts = None if j is None else totals.texts.get(j)
    if j is None or facts is None or totals.kind(j) not in ("text", "date") or totals.missing[j]:
        return None
    if facts.is_distinct and is_distinct(j):
        return j
    name = totals.roles.names[j]
    if _ID_NAME.search(name):
        hint = f"Pass --ids {shlex.quote(name)} (with --duplicates to keep one), or --ids ''."
        where = f"{where}, column {name!r}"
        raise InputError(where, "ids that differ, as its name says", "some twice", hint)
    return None


def _check_no_commas(levels: set[str], name: str, where: str, *, is_meant: bool) -> None:
    """Refuse numbers with decimal commas, which would pass for categories."""
    if levels and not is_meant and all(map(_DECIMAL_COMMA.fullmatch, levels)):
        got = f"{min(levels)!r}, with a decimal comma"
        hint = f"Write points instead of commas, or pass --category {shlex.quote(name)}."
        raise InputError(f"{where}, column {name!r}", "numbers", got, hint)


def _column(totals: Totals, j: int, known: Column | None, where: str) -> Column:
    name, kind = totals.roles.names[j], totals.kind(j)
    if totals.n_rows == 0 and known is not None:
        return known  # a file that lost its rows
    if kind == "text":
        levels = totals.texts[j].levels if j in totals.texts else set()
        if levels is None:
            hint = f"Leave the column out with --drop {name}, or keep it with --obs {name}."
            got = f"more than {MAX_LEVELS:,}"
            raise InputError(f"{where}, column {name!r}", "few different values", got, hint)
        _check_no_commas(levels, name, where, is_meant=j in totals.roles.categories)
        old = known.levels if known else ()
        return Column(name, "category", (*old, *sorted(levels.difference(old))))
    if known is not None and known.kind == "category":
        return known  # nothing but missing values
    number: NumberKind = "bool" if kind == "bool" else "integer"
    is_real = kind == "real" or (kind == "integer" and totals.missing[j] > 0)
    return Column(name, number="real" if is_real else number)


def _dtype(totals: Totals, features: list[int], columns: tuple[Column, ...]) -> np.dtype[Any]:
    """Return the smallest type that holds every value exactly."""
    numbers = {column.number for column in columns if column.kind == "number"}
    if "real" in numbers or totals.missing[features].any():
        return np.dtype(np.float64)
    if numbers == {"bool"} and all(column.kind == "number" for column in columns):
        return np.dtype(np.bool_)
    low, high = totals.bounds
    return smallest_integer(low, max([high, *(len(column.levels) - 1 for column in columns)]))


def smallest_integer(low: int, high: int) -> np.dtype[Any]:
    """Return the smallest integer type that holds all of ``[low, high]``."""
    unsigned = (np.uint8, np.uint16, np.uint32)
    signed = (np.int8, np.int16, np.int32, np.int64)
    for kind in (*(unsigned if low >= 0 else ()), *signed, np.uint64):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            dtype: np.dtype[Any] = np.dtype(kind)
            return dtype
    return np.dtype(np.float64)


def _ids_kind(totals: Totals, ids: int | None, expected: Expected | None, where: str) -> IdsKind:
    if ids is None:
        return "integer"
    if totals.missing[ids]:
        got = f"{totals.missing[ids]} rows without one"
        hint = "Fill the column, or choose another one with --ids."
        raise InputError(f"{where}, column {totals.roles.names[ids]!r}", "row ids", got, hint)
    facts = totals.texts.get(ids)
    is_whole = facts.is_whole if facts else totals.kind(ids) == "integer"
    is_text = (expected is not None and expected.ids_kind == "text") or totals.is_too_long(ids)
    return "integer" if is_whole and not is_text else "text"


def _obs_kind(totals: Totals, j: int, expected: Expected | None) -> ObsKind:
    wanted = (expected.obs_kinds if expected else {}).get(totals.roles.names[j])
    kind = totals.kind(j)
    is_unsure = kind == "bool" and totals.missing[j] > 0
    if kind in ("text", "date") or wanted == "text" or is_unsure:
        return "text"
    is_real = kind == "real" or totals.missing[j] > 0 or wanted == "real"
    return "real" if is_real else ("bool" if kind == "bool" else "integer")


def _notes(totals: Totals, ids: int | None, features: list[int]) -> list[str]:
    roles = totals.roles
    named = "a count" if ids is None else f"column {roles.names[ids]!r}"
    notes = [f"Rows are named by {named}."]
    others = sorted({*range(len(roles.names))} - {*features, ids})
    dates = [roles.names[j] for j in others if j not in roles.obs]
    if dates:
        notes.append(f"Dates are kept as annotations, not as features: {_listed(dates)}.")
    texts = [roles.names[j] for j in features if totals.kind(j) == "text"]
    if texts:
        notes.append(f"Text is read as categories: {_listed(texts)}.")
    many = [roles.names[j] for j in features if _is_nearly_distinct(totals, j)]
    if many:
        told = "Nearly every row has a category of its own; consider --drop or --obs"
        notes.append(f"{told}: {_listed(many)}.")
    return notes


def _is_nearly_distinct(totals: Totals, j: int) -> bool:
    facts = totals.texts.get(j) if totals.kind(j) == "text" else None
    levels = facts.levels if facts is not None else None
    return levels is not None and totals.n_rows >= 20 and 2 * len(levels) > totals.n_rows


def _rounded(totals: Totals, schema: Schema) -> list[str]:
    """Return a note about whole numbers that are kept in double precision."""
    places = schema.features if schema.dtype.kind == "f" else ()
    places += tuple(j for _, j, kind in schema.obs if kind == "real")
    names = [totals.roles.names[j] for j in places if j in totals.long and totals.kind(j) != "text"]
    told = "Whole numbers beyond 2^53 are rounded, as some values are missing or no whole numbers"
    return [f"{told}: {_listed(names)}."] if names else []


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
