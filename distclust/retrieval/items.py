"""Items of a corpus by name: looking up, completing, suggesting, reading their features."""

from __future__ import annotations

import bisect
import functools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.engine import as_matrix
from distclust.errors import InputError, UnknownItemError
from distclust.seeding import row_keys
from distclust.store import Matrix

Array = npt.NDArray[Any]
Columns = npt.NDArray[np.int64]

_ROWS_KEPT = 4096
_ID_BLOCKS_KEPT = 256  # some hundred megabytes of text at most
_NAMES_SEARCHED = 5_000_000  # beyond, looking for a near name would take too long
_NAMES_AT_ONCE = 20_000  # other threads have to wait for so many
_SUGGESTIONS = 3
_IDS = np.iinfo(np.int64)


@dataclass(frozen=True, eq=False)
class Chosen:
    """The rows of a query.

    Attributes
    ----------
    names
        How they are called.
    rows
        Their numbers in the corpus, without repeats; empty for raw vectors.
    vectors
        Their features, CSR, shape (n, n_features).
    """

    names: list[str]
    rows: npt.NDArray[np.int64]
    vectors: scipy.sparse.csr_array


class Items:
    """The rows of a corpus as items with names; thread-safe."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self._lock = threading.Lock()
        self._features: dict[int, Columns] = {}
        self._has_looked = False
        self._block_ids = functools.lru_cache(_ID_BLOCKS_KEPT)(matrix.block_ids)

    @functools.cached_property
    def has_text_ids(self) -> bool:
        """Whether items are called by text rather than by number."""
        if self.matrix.n_blocks == 0:
            return False
        return bool(self.matrix.block_ids(0).dtype.kind not in "iu")

    def choose(self, items: Any, where: str) -> Chosen:
        """Return the rows that a query names: ids, numbers of rows, or raw vectors.

        A repeated item counts once. Whole numbers are ids where the corpus has such, and
        numbers of rows where its ids are text.
        """
        vectors = self._as_vectors(items, where)
        if vectors is not None:
            names = [f"vector {i}" for i in range(vectors.shape[0])]
            return Chosen(names, np.empty(0, np.int64), vectors)
        is_one = isinstance(items, str | int | np.integer) or not isinstance(items, Iterable)
        listed = [items] if is_one else list(items)
        if not listed:
            hint = "Name at least one item."
            raise InputError(where, "a query of one item or more", "an empty one", hint)
        rows = np.array(list(dict.fromkeys(self.find(listed, where).tolist())), np.int64)
        names = [str(name) for name in self.ids_at(rows)]
        return Chosen(names, rows, self.vectors(rows))

    def find(self, names: Sequence[Any], where: str) -> npt.NDArray[np.int64]:
        """Return the number of the row of every name.

        Raises
        ------
        InputError
            If one is unknown; the message has names that are near to it.
        """
        rows = np.full(len(names), -1)
        by_name = [i for i, name in enumerate(names) if not self._is_row_number(name)]
        for i, name in enumerate(names):
            if self._is_row_number(name):
                rows[i] = self._checked(int(name), where)
        if by_name:
            rows[by_name] = self._find_ids([names[i] for i in by_name], where)
        return rows

    def vectors(self, rows: npt.NDArray[np.int64]) -> scipy.sparse.csr_array:
        """Return the features of some rows, CSR."""
        with self._lock:
            found = {row: self._features[row] for row in rows.tolist() if row in self._features}
        missing = [row for row in rows.tolist() if row not in found]
        for block, chosen, places in self.matrix.places_of(missing):
            for i, columns in zip(chosen.tolist(), self._read(block, places), strict=True):
                found[missing[i]] = columns
        with self._lock:
            while self._features and len(self._features) + len(missing) > _ROWS_KEPT:
                self._features.pop(next(iter(self._features)))
            self._features.update({row: found[row] for row in missing[:_ROWS_KEPT]})
        lists = [found[row] for row in rows.tolist()]
        return pattern(lists, self.matrix.shape[1])

    def ids_at(self, rows: npt.ArrayLike) -> Array:
        """Return the ids of some rows; blocks of ids that were read are kept."""
        found: list[Any] = [None] * np.size(rows)
        for block, chosen, places in self.matrix.places_of(rows):
            ids = self._block_ids(block)
            for i, place in zip(chosen.tolist(), places.tolist(), strict=True):
                found[i] = ids[place]
        return np.array(found, object if self.has_text_ids else np.int64)

    def values(self, rows: npt.NDArray[np.int64]) -> Any:
        """Return some rows with their values: CSR, or a dense array."""
        parts: list[Any] = []
        order = []
        for block, chosen, places in self.matrix.places_of(rows):
            parts.append(self.matrix.block(block)[places])
            order.append(chosen)
        back = np.argsort(np.concatenate([np.empty(0, np.int64), *order]))
        if self.matrix.is_sparse:
            return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))[back]
        return np.concatenate(parts)[back]

    def complete(self, text: str, limit: int = 10) -> list[str]:
        """Return names that begin with the text, then names that have it inside."""
        wanted = text.casefold().strip()
        if not wanted:
            return []
        ordered, names = self._by_name
        found: list[str] = []
        at = bisect.bisect_left(ordered, wanted)
        while at < len(ordered) and ordered[at].startswith(wanted) and len(found) < limit:
            found.append(names[at])
            at += 1
        taken = set(found)
        text_of_all, starts = self._joined
        at = text_of_all.find(wanted) if len(found) < limit else -1
        while at >= 0 and len(found) < limit:
            number = bisect.bisect_right(starts, at) - 1
            if names[number] not in taken:
                found.append(names[number])
                taken.add(names[number])
            at = text_of_all.find(wanted, starts[number] + len(ordered[number]) + 1)
        return found

    def nearest(self, name: str, limit: int = _SUGGESTIONS) -> list[str]:
        """Return the names most like one, the most alike first."""
        if self.matrix.shape[0] > _NAMES_SEARCHED:
            return []
        from rapidfuzz import fuzz, process

        ordered, names = self._by_name
        wanted, found = name.casefold(), []
        for first in range(0, len(ordered), _NAMES_AT_ONCE):
            part = ordered[first : first + _NAMES_AT_ONCE]
            near = process.extract(wanted, part, scorer=fuzz.WRatio, limit=limit, score_cutoff=60)
            found += [(-score, first + at) for _, score, at in near]
        return [names[at] for _, at in sorted(found)[:limit]]

    @functools.cached_property
    def _by_name(self) -> tuple[list[str], list[str]]:
        """All names without case in alphabetical order, and as they are."""
        names = [
            str(name) for i in range(self.matrix.n_blocks) for name in self.matrix.block_ids(i)
        ]
        pairs = sorted((name.casefold(), name) for name in names)
        return [folded for folded, _ in pairs], [name for _, name in pairs]

    @functools.cached_property
    def _joined(self) -> tuple[str, list[int]]:
        """All names in one text, and where each begins."""
        ordered, _ = self._by_name
        starts = np.cumsum([0, *(len(name) + 1 for name in ordered)])[:-1]
        return "\n".join(ordered), starts.tolist()

    def _known_keys(
        self, wanted: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Keys of all ids, ascending, and their rows; of those wanted if nobody asked before.

        A single query finds them sooner than it would sort all.
        """
        if self._has_looked:
            return self._by_key
        self._has_looked = True
        keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for i in range(self.matrix.n_blocks):
            those = self.matrix.block_keys(i)
            places = np.flatnonzero(np.isin(those, wanted))
            keys.append(those[places])
            rows.append(self.matrix.block_bounds(i)[0] + places)
        order = np.argsort(together := np.concatenate(keys), kind="stable")
        return together[order], np.concatenate(rows)[order]

    @functools.cached_property
    def _by_key(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Keys of all ids, ascending, and the rows they belong to."""
        keys = [self.matrix.block_keys(i) for i in range(self.matrix.n_blocks)]
        together = np.concatenate([np.empty(0, np.uint64), *keys])
        order = np.argsort(together, kind="stable")
        return together[order], order

    def _is_row_number(self, name: Any) -> bool:
        return self.has_text_ids and not isinstance(name, str) and _whole(name) is not None

    def _checked(self, row: int, where: str) -> int:
        n_rows = self.matrix.shape[0]
        if not 0 <= row < n_rows:
            hint = "Rows are counted from 0."
            raise InputError(where, f"a row from 0 to {n_rows - 1:,}", f"{row:,}", hint)
        return row

    def _find_ids(self, names: list[Any], where: str) -> npt.NDArray[np.int64]:
        wanted = self._as_ids(names, where)
        keys, rows = self._known_keys(wanted_keys := row_keys(wanted))
        found = np.full(len(names), -1)
        at = np.searchsorted(keys, wanted_keys)
        for i, (position, key) in enumerate(zip(at.tolist(), wanted_keys.tolist(), strict=True)):
            while position < len(keys) and keys[position] == key:
                row = int(rows[position])
                if str(self.ids_at([row])[0]) == str(wanted[i]):
                    found[i] = row
                    break
                position += 1
            if found[i] < 0:
                raise self._unknown(str(names[i]), where)
        return found

    def _as_ids(self, names: list[Any], where: str) -> Array:
        """Return names as ids are stored: text, or whole numbers."""
        if self.has_text_ids:
            texts = [str(name) for name in names]
            for text in texts:
                if not _is_unicode(text):  # bytes of another encoding on a command line
                    raise InputError(where, "an id in Unicode", ascii(text)[:80], "Encode it.")
            return np.array(texts, object)
        numbers = []
        for name in names:
            number = _whole(name)
            if number is None:
                hint = "The ids of this corpus are numbers."
                raise InputError(where, "the id of an item", repr(name)[:80], hint)
            if not _IDS.min <= number <= _IDS.max:
                raise self._unknown(str(name), where)
            numbers.append(number)
        return np.array(numbers, np.int64)

    def _unknown(self, name: str, where: str) -> UnknownItemError:
        near = self.nearest(name) if self.has_text_ids else []
        hint = f"Did you mean {_one_of(near)}?" if near else "Check the spelling."
        return UnknownItemError(where, "an item of the corpus", repr(name), hint, name, tuple(near))

    def _read(self, block: int, places: Array) -> list[Columns]:
        """Return the columns of the ones of some rows of a block."""
        compact = self.matrix.compact_block(block)
        if compact is not None and len(compact.ids) == 1:
            lengths, ids = compact.lengths[0], compact.ids[0]
            ends = np.cumsum(lengths, dtype=np.int64)
            return [
                compact.order[ids[ends[i] - lengths[i] : ends[i]]].astype(np.int64) for i in places
            ]
        block_rows: Any = self.matrix.block(block)
        rows = scipy.sparse.csr_array(block_rows[places])
        rows.sort_indices()
        pairs = zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
        return [rows.indices[a:b].astype(np.int64) for a, b in pairs]

    def _as_vectors(self, items: Any, where: str) -> scipy.sparse.csr_array | None:
        """Return raw vectors as CSR, or None for names."""
        is_table = scipy.sparse.issparse(items) or getattr(items, "ndim", 0) == 2
        if isinstance(items, list | tuple) and items:
            is_table = isinstance(items[0], np.ndarray | list | tuple)
        if not is_table:
            if isinstance(items, np.ndarray) and items.dtype.kind in "bf":
                hint = "One raw vector has shape (1, n_features); numbers of rows are integers."
                expected, got = "ids, numbers of rows or rows", f"{items.dtype} values"
                raise InputError(where, expected, got, hint)
            return None
        given: Any = as_matrix(items, columns=self.matrix.columns, where=where).read_all()
        return scipy.sparse.csr_array(given)


def pattern(lists: Sequence[Columns], n_features: int) -> scipy.sparse.csr_array:
    """Return rows of ones from the columns of each."""
    indptr = np.cumsum([0, *(len(columns) for columns in lists)])
    indices = np.concatenate([np.empty(0, np.int64), *lists])
    ones = np.ones(len(indices), np.int8)
    return scipy.sparse.csr_array((ones, indices, indptr), shape=(len(lists), n_features))


def _whole(name: Any) -> int | None:
    """Return the whole number that a name is, or None."""
    if isinstance(name, bool | np.bool_):
        return None
    if isinstance(name, int | np.integer):
        return int(name)
    try:
        return int(name) if isinstance(name, str) else None
    except ValueError:
        return None


def _one_of(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _is_unicode(text: str) -> bool:
    """Whether a text can be written: no half of a pair stands alone in it."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
