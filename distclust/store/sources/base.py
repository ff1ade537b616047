"""What every source of rows shares: its options, its scratch, and what it promises.

A source is opened without reading more than names and sizes, and prepared once: everything
that has to be known about all rows (types, levels, vocabulary, thresholds) is settled and
whatever is expensive to parse is parsed into the scratch. What comes out is a `RowSource`
that reads any range of rows, as often as the writer of a store likes, from any process.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust._version import __version__
from distclust.errors import InputError
from distclust.store.matrix import Column

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper
    from distclust.store.objects import Objects
    from distclust.store.rows import RowSource

IdsKind: TypeAlias = Literal["integer", "text"]
ObsKind: TypeAlias = Literal["bool", "integer", "real", "text"]


@dataclass(frozen=True)
class Expected:
    """What rows must fit that are added to a store: the store's own columns and facts.

    Attributes
    ----------
    columns
        Features by name and order. Categories keep the codes of their levels; levels that
        are new get the next ones.
    obs_kinds, ids_kind
        Kinds of the annotations and of the row ids.
    facts
        What was learned from the first rows (thresholds, a vocabulary) and is used again.
    """

    columns: tuple[Column, ...]
    obs_kinds: Mapping[str, ObsKind] = field(default_factory=dict)
    ids_kind: IdsKind = "integer"
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceOptions:
    """How to read a source; what a format has no use for, it refuses or ignores.

    Attributes
    ----------
    format
        Name of a format, or None to go by the suffix.
    binarise
        Rule that turns values into zeros and ones, see `distclust.store.sources.binarise`.
    expected
        The store that the rows are to join, or None for a new one.
    ids
        Column that names the rows; None finds it, an empty string says there is none.
    drop, categories, obs
        Columns to leave out, to read as categories, and to keep as annotations of rows.
    separator
        What separates cells of a text table; None finds it in the header.
    ngrams, min_df, max_df, max_features, hashing, lowercase, stop_words, binary
        Bag of words: shortest and longest run of words; smallest and largest document
        frequency (whole numbers count documents, fractions are shares); largest
        vocabulary; number of hashed features instead of a vocabulary; whether case is
        folded; words left out; presence instead of counts.
    text_field, id_field
        JSON lines: which fields hold the text and the row id.
    missing_chunks
        What chunks that a foreign Zarr array lacks stand for.
    """

    format: str | None = None
    binarise: str | None = None
    expected: Expected | None = None
    ids: str | None = None
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    obs: tuple[str, ...] = ()
    separator: str | None = None
    ngrams: tuple[int, int] = (1, 1)
    min_df: int | float = 1
    max_df: int | float = 1.0
    max_features: int | None = None
    hashing: int | None = None
    lowercase: bool = True
    stop_words: str | tuple[str, ...] | None = None
    binary: bool = False
    text_field: str = "text"
    id_field: str = "id"
    missing_chunks: Literal["refuse", "zeros"] = "refuse"

    def refuse_columns(self, name: str, what: str) -> None:
        """Refuse options that name columns, for a source that has none to name."""
        if self.ids or self.drop or self.categories or self.obs:
            hint = "Leave --ids, --drop, --category and --obs out."
            raise InputError(name, "a table when columns are named", what, hint)

    def identity(self) -> dict[str, Any]:
        """Return as JSON what changes the rows; what was expected is told by its facts.

        So is the release: what one has parsed, another must not take up.
        """
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if self.expected is not None:
            plain["expected"] = _describe(self.expected)
        plain["release"] = __version__
        described: dict[str, Any] = json.loads(json.dumps(plain))
        return described


def _describe(expected: Expected) -> dict[str, Any]:
    columns = [[column.name, column.kind, *column.levels] for column in expected.columns]
    return {
        "columns": columns,
        "obs_kinds": dict(expected.obs_kinds),
        "ids_kind": expected.ids_kind,
        "facts": dict(expected.facts),
    }


@dataclass(frozen=True)
class Scratch:
    """A place for unfinished work, below one prefix of a store; picklable.

    Names are those of `Objects`: plain letters, digits, dots, dashes and slashes.
    """

    objects: Objects
    prefix: str

    @property
    def url(self) -> str:
        """Where it is, for messages."""
        return self.objects.url

    def below(self, name: str) -> Scratch:
        """Return the scratch of one part of the work."""
        return replace(self, prefix=f"{self.prefix}/{name}")

    def read(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of one object."""
        return self.objects.read_array(f"{self.prefix}/{name}")

    def read_range(self, name: str, start: int, stop: int) -> bytes | None:
        """Return bytes ``[start, stop)`` of an object, or None if there is none."""
        from distclust.store.objects import MissingObject

        try:
            return self.objects.read_range(f"{self.prefix}/{name}", start, stop)
        except MissingObject:
            return None

    def write(self, name: str, *buffers: Any) -> None:
        """Write one object, whole or not at all."""
        self.objects.write(f"{self.prefix}/{name}", *buffers)


@dataclass(frozen=True)
class Prepared:
    """Rows ready to be written, and what was decided about them.

    Attributes
    ----------
    rows
        Reads any range of rows.
    columns
        Name and meaning of every feature.
    obs_kinds
        Kind of every annotation that the rows carry, in order.
    ids_kind
        Whether row ids are whole numbers or text.
    has_ids
        Whether the source names its rows; if not, ids count from 0.
    notes
        What was decided on the way, one sentence each, for the user.
    facts
        JSON that new rows need to be read in the same way, such as learned thresholds.
    file_rows
        How many rows each file gave, in the order of the files; None of what is no list of
        files.
    """

    rows: RowSource
    columns: tuple[Column, ...]
    obs_kinds: Mapping[str, ObsKind] = field(default_factory=dict)
    ids_kind: IdsKind = "integer"
    has_ids: bool = True
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    file_rows: tuple[int, ...] | None = None

    def without(self, dropped: npt.NDArray[np.int64]) -> Prepared:
        """Return these rows but those at some positions, ascending."""
        from distclust.store.row_views import KeptRows

        if len(dropped) == 0:
            return self
        file_rows = self.file_rows
        if file_rows is not None:
            ends = np.cumsum(file_rows)
            lost = np.diff(np.searchsorted(dropped, ends), prepend=0)
            file_rows = tuple((np.array(file_rows) - lost).tolist())
        return replace(self, rows=KeptRows(self.rows, dropped), file_rows=file_rows)


class Source(ABC):
    """Rows from somewhere, not read yet.

    Attributes
    ----------
    name
        What the user called it; begins every error.
    tells_rows
        Whether equal identities mean equal rows. If not, work that stopped may be taken up
        (`prepare` compares), but work that is done says nothing about other work.
    """

    name: str
    tells_rows: bool = True

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return JSON that differs whenever the rows may: paths, sizes, times, options.

        Work that stopped is taken up again only if this is the same.
        """

    def held(self) -> contextlib.AbstractContextManager[object]:
        """Keep the rows from being removed while the context is open."""
        return contextlib.nullcontext()

    @abstractmethod
    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Settle everything that takes all rows; parts already in `scratch` are kept."""
