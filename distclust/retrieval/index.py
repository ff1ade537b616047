"""The index of a corpus: its shards, in memory or in a store beside it.

    corpus.zarr                         the corpus
    corpus.zarr.sets                    a results store; the current version is the index:
        versions/<id>/index.json        shape, and of every shard its place, rows and source
        versions/<id>/ones/...          how many rows have each feature (Zarr)
        versions/<id>/shards/<i>/...    words of shard i (Zarr, one uncompressed chunk)

An index belongs to one state of the corpus, by fingerprint. After rows were added or deleted
a new version takes over the shards whose rows are the same, as links on a local disk, and makes
the others: what comes out is what a new index would be. Shards are checked when they are opened,
and mapped into memory where they lie on a local disk.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from distclust.engine import current_client, local_threads, map_ordered, map_placed, thread_map
from distclust.errors import InputError, StoreError
from distclust.retrieval import shards
from distclust.retrieval.prior import BinaryPrior, Query
from distclust.retrieval.ranking import NOBODY, Top, merge
from distclust.retrieval.shards import SHARD_ROWS, Shard
from distclust.store import Matrix
from distclust.store.arrays import METADATA, ArraySpec
from distclust.store.codecs import Chain
from distclust.store.drafts import Draft, DraftPlace
from distclust.store.objects import MissingObject, Objects, checksum
from distclust.store.results import ResultsStore
from distclust.store.stored_matrix import StoredMatrix
from distclust.store.versions import FileEntry, Version, file_key
from distclust.store.zarr_metadata import encode_json

Ones = npt.NDArray[np.int64]

KIND = "sets-index"

_FACTS = "index.json"
_FORMAT = 1
_RAW = Chain(())
_HINT = "Build it again: `distclust sets build --fresh`."


class Index(Protocol):
    """What a search needs."""

    @property
    def n_shards(self) -> int:
        """How many shards there are."""

    @property
    def first_rows(self) -> npt.NDArray[np.int64]:
        """First row of every shard, and the number of rows, shape (n_shards + 1,)."""

    @property
    def ones(self) -> Ones:
        """How many rows have each feature, shape (n_features,)."""

    def shard(self, number: int) -> Shard:
        """Return a shard, opened once."""

    def prior(self, kappa: float, smoothing: float) -> BinaryPrior:
        """Return the prior that the corpus implies."""


def search(
    index: Index, kappa: float, smoothing: float, queries: Sequence[Query], k: int
) -> list[Top]:
    """Return the best `k` rows for every query.

    Shards are shared out among threads here, or among the workers of a cluster, each of
    which keeps those it has opened. One that dies has its shards opened by others.
    """
    common = (index, kappa, smoothing, tuple(queries), k)
    numbers = range(index.n_shards)
    if current_client() is None or not isinstance(index, StoredIndex):
        n_groups = max(1, min(local_threads(), len(numbers) // 4))
        groups = [numbers[g::n_groups] for g in range(n_groups)]
        found = thread_map(lambda group: _search_shards(group, *common), groups, n_groups)
    else:
        found = list(map_placed(_search_shards, numbers, *common))
    return [merge(parts, k) for parts in zip(*found, strict=True)]


def _search_shards(
    numbers: Sequence[int],
    index: Index,
    kappa: float,
    smoothing: float,
    queries: Sequence[Query],
    k: int,
) -> list[Top]:
    """Search some shards, one after another; runs where they are kept."""
    prior = index.prior(kappa, smoothing)
    tops = [NOBODY] * len(queries)
    for number in numbers:
        shard, first = index.shard(number), int(index.first_rows[number])
        for q, query in enumerate(queries):
            found = shard.search(prior, query, k, tops[q].floor(k))
            if len(found.rows):
                tops[q] = merge([tops[q], Top(found.rows + first, found.scores)], k)
    return tops


# ---- in memory -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeldIndex:
    """An index in memory."""

    shards: tuple[Shard, ...]
    n_features: int
    _priors: dict[tuple[float, float], BinaryPrior] = field(default_factory=dict, repr=False)

    @property
    def n_shards(self) -> int:
        """How many shards there are."""
        return len(self.shards)

    @functools.cached_property
    def first_rows(self) -> npt.NDArray[np.int64]:
        """First row of every shard, and the number of rows."""
        return np.cumsum([0, *(shard.n_rows for shard in self.shards)])

    @functools.cached_property
    def ones(self) -> Ones:
        """How many rows have each feature, shape (n_features,)."""
        return _add_up([shard.count_ones() for shard in self.shards], self.n_features)

    def shard(self, number: int) -> Shard:
        """Return a shard."""
        return self.shards[number]

    def prior(self, kappa: float, smoothing: float) -> BinaryPrior:
        """Return the prior that the corpus implies."""
        return _kept_prior(self._priors, self, kappa, smoothing)


def _kept_prior(
    kept: dict[tuple[float, float], BinaryPrior], index: Index, kappa: float, smoothing: float
) -> BinaryPrior:
    """Return a prior that was made before, so that what it keeps is found again."""
    found = kept.get((kappa, smoothing))
    if found is None:
        found = BinaryPrior(int(index.first_rows[-1]), index.ones, kappa, smoothing)
        kept[kappa, smoothing] = found
    return found


def build_in_memory(matrix: Matrix) -> HeldIndex:
    """Return the index of a matrix, with all threads."""
    numbers = range(n_shards(matrix))
    made = thread_map(lambda number: make_shard(number, matrix), numbers, local_threads())
    return HeldIndex(tuple(made), matrix.shape[1])


def n_shards(matrix: Matrix) -> int:
    """Return how many shards the rows of a matrix make."""
    return -(-matrix.n_blocks // _blocks_a_shard(matrix))


def make_shard(number: int, matrix: Matrix) -> Shard:
    """Return one shard of a matrix."""
    blocks = _blocks_of(number, matrix)
    n_rows = sum(b - a for a, b in map(matrix.block_bounds, blocks))
    return shards.build(map(matrix.block, blocks), n_rows, matrix.shape[1])


def _blocks_a_shard(matrix: Matrix) -> int:
    return max(SHARD_ROWS // matrix.block_rows, 1)


def _blocks_of(number: int, matrix: Matrix) -> range:
    size = _blocks_a_shard(matrix)
    return range(number * size, min((number + 1) * size, matrix.n_blocks))


def _add_up(parts: Sequence[Ones], n_features: int) -> Ones:
    total = np.zeros(n_features, np.int64)
    for part in parts:
        total += part
    return total


# ---- in a store ----------------------------------------------------------------------------------


class StoredIndex:
    """An index in a store; pickles as its name and is opened once a process.

    Attributes
    ----------
    url, version
        Where it lies, and which version it is.
    fingerprint
        Of the corpus that it belongs to.
    """

    def __init__(self, store: ResultsStore, version: Version) -> None:
        self.url = store.url
        self.version = version
        self.fingerprint = version.input_fingerprint
        self._objects: Objects = store.objects
        self._facts = self._read_facts()
        self._open: dict[int, Shard] = {}
        self._lock = threading.Lock()
        self._priors: dict[tuple[float, float], BinaryPrior] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_once, (self.url, self.version.id)

    @property
    def n_shards(self) -> int:
        """How many shards there are."""
        return len(self._facts["shards"])

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self._facts["n_features"])

    @functools.cached_property
    def first_rows(self) -> npt.NDArray[np.int64]:
        """First row of every shard, and the number of rows."""
        return np.cumsum([0, *(facts["shape"][0] for facts in self._facts["shards"])])

    @functools.cached_property
    def ones(self) -> Ones:
        """How many rows have each feature, shape (n_features,)."""
        return self._content("ones/c/0").view(np.int64)

    @property
    def sources(self) -> list[str]:
        """What the rows of every shard are."""
        return [str(facts["source"]) for facts in self._facts["shards"]]

    def facts_of(self, number: int) -> dict[str, Any]:
        """Return what a shard says about its words, without its source."""
        facts: dict[str, Any] = self._facts["shards"][number]
        return {name: value for name, value in facts.items() if name != "source"}

    def whole_shards(self) -> set[int]:
        """Return the shards whose files are there, as long as they should be."""
        sizes = self._objects.sizes(file_key(self.version.id, "shards"))
        files = self.version.files
        return {
            number
            for number in range(self.n_shards)
            if all(
                name in files and sizes.get(file_key(self.version.id, name)) == files[name].size
                for name in _files(number)
            )
        }

    def shard(self, number: int) -> Shard:
        """Return a shard, checked when it is opened."""
        found = self._open.get(number)
        if found is None:
            with self._lock:
                found = self._open.get(number) or self._open_shard(number)
                self._open[number] = found
        return found

    def words(self, number: int) -> npt.NDArray[np.uint16]:
        """Return the words of a shard, checked."""
        return self._content(f"{_folder(number)}/c/0").view(np.uint16)

    def prior(self, kappa: float, smoothing: float) -> BinaryPrior:
        """Return the prior that the corpus implies."""
        return _kept_prior(self._priors, self, kappa, smoothing)

    def _open_shard(self, number: int) -> Shard:
        where = self._objects.where(file_key(self.version.id, _folder(number)))
        return shards.from_words(self.words(number), self._facts["shards"][number], where)

    def _content(self, name: str) -> npt.NDArray[np.uint8]:
        key = file_key(self.version.id, name)
        entry = self.version.files.get(name)
        try:
            content = self._objects.map_array(key)
        except MissingObject as error:
            hint = f"An old index may have been removed: fit again. {_HINT}"
            raise StoreError(error.where, "a part of the index", "nothing there", hint) from error
        if entry is None or len(content) != entry.size or checksum(content).hex() != entry.checksum:
            where = self._objects.where(key)
            raise StoreError(where, "the part of an index that was built", "altered content", _HINT)
        return content

    def _read_facts(self) -> dict[str, Any]:
        where = self._objects.where(file_key(self.version.id, _FACTS))
        facts: dict[str, Any] = json.loads(self._content(_FACTS).tobytes())
        if facts["format"] > _FORMAT:
            got = f"format {facts['format']}"
            raise StoreError(where, f"format {_FORMAT} at most", got, "Use a newer distclust.")
        return facts


@functools.lru_cache(4)
def _open_once(url: str, version_id: str) -> StoredIndex:
    store = ResultsStore(url)
    return StoredIndex(store, store.get(version_id))


def place_of_index(corpus: str) -> str:
    """Return where the index of a corpus lies unless another place is named."""
    return f"{corpus.rstrip('/')}.sets"


def open_index(url: str, version_id: str | None = None) -> StoredIndex | None:
    """Open the current index of a place, or return None if there is none; or a version of it."""
    store = ResultsStore(url)
    version = store.current() if version_id is None else store.get(version_id)
    if version is None:
        return None
    if version.kind != KIND:
        raise StoreError(url, "an index of Bayesian Sets", f"results of {version.kind}", _HINT)
    return _open_once(store.url, version.id)


def build_index(
    matrix: StoredMatrix,
    url: str,
    stage: str = "building the index",
    *,
    fresh: bool = False,
    before_version: str | None = None,
) -> StoredIndex:
    """Build the index of a stored corpus, or bring it up to date; one that is is kept.

    An interrupted build is resumed: shards that were finished are kept. A `fresh` one makes
    all shards, whatever is there. Shards are taken over from the current version, or from
    `before_version`.
    """
    store = ResultsStore(url)
    before = None if fresh else open_index(url, before_version)
    if before is not None and before.fingerprint == matrix.fingerprint:
        return before
    identity: dict[str, Any] = {
        "kind": KIND,
        "parameters": {"shard_rows": SHARD_ROWS, "bits_from": shards.BITS_FROM},
        "seed": None,
        "input_fingerprint": matrix.fingerprint,
    }
    run = None if fresh else store.find_run(**identity)
    with store.begin(**identity, run=run) as draft, matrix.held():
        version = draft.publish() if draft.is_sealed else _write(matrix, draft, before, stage)
    return _open_once(store.url, version.id)


def _write(matrix: StoredMatrix, draft: Draft, before: StoredIndex | None, stage: str) -> Version:
    sources = [_source(number, matrix) for number in range(n_shards(matrix))]
    taken = _Taken.of(before, sources, matrix.shape[1])
    done = set(draft.names)
    rest = [i for i in range(len(sources)) if i not in taken.known_as]
    total = taken.ones
    for number in (i for i in rest if _last_file(i) in done):
        total += _finished(draft, number).count_ones()
    numbers = [i for i in rest if _last_file(i) not in done]
    for made in map_ordered(_write_shard, numbers, matrix, draft.place(), stage=stage):
        draft.adopt_all(made.files)
        total[made.columns] += made.ones
    if before is not None:
        draft.take_over(before.version, taken.files)
    facts = []
    for i, source in enumerate(sources):
        told = taken.facts(i) if i in taken.known_as else _described(draft, i)
        facts.append(told | {"source": source})
    spec = ArraySpec(total.shape, (max(len(total), 1),), total.dtype, _RAW)
    draft.write("ones/c/0", *spec.encode(total))
    draft.write(f"ones/{METADATA}", encode_json(spec.metadata()))
    document = {"format": _FORMAT, "n_features": matrix.shape[1], "shards": facts}
    draft.write(_FACTS, json.dumps(document).encode())
    metrics = {
        "n_rows": matrix.shape[0],
        "n_ones": int(total.sum()),
        "n_shards": len(sources),
        "n_taken_over": len(taken.known_as),
        "n_resumed": len(rest) - len(numbers),
    }
    return draft.publish(metrics)


@dataclass(frozen=True, eq=False)
class _Taken:
    """Shards that are taken over from the index before.

    Attributes
    ----------
    before
        That index, if there is one.
    known_as
        Number of a shard there, by its number now.
    ones
        How many of their rows have each feature, shape (n_features,).
    """

    before: StoredIndex | None
    known_as: dict[int, int]
    ones: Ones

    @classmethod
    def of(cls, before: StoredIndex | None, sources: Sequence[str], n_features: int) -> _Taken:
        """Find shards of the same rows whose files are there.

        Shards that are taken over are not read. What they count is what the index before
        counted without the others, of which there are few.
        """
        nothing = cls(before, {}, np.zeros(n_features, np.int64))
        if before is None or before.n_features != n_features:
            return nothing
        whole = before.whole_shards()
        numbers = {source: i for i, source in enumerate(before.sources) if i in whole}
        known_as = {i: numbers[source] for i, source in enumerate(sources) if source in numbers}
        others = sorted(set(range(before.n_shards)) - set(known_as.values()))
        try:
            ones = before.ones.copy()
            for number in others if known_as else ():
                ones -= before.shard(number).count_ones()
        except StoreError:  # damaged: a new index needs nothing of it
            return nothing
        return cls(before, known_as, ones) if known_as else nothing

    @property
    def files(self) -> dict[str, str]:
        """Names of files there, by their names now."""
        return {
            name: known
            for i, number in self.known_as.items()
            for name, known in zip(_files(i), _files(number), strict=True)
        }

    def facts(self, number: int) -> dict[str, Any]:
        """Return what the index before says about a shard."""
        assert self.before is not None, "it was taken from there"
        return self.before.facts_of(self.known_as[number])


def _described(draft: Draft, number: int) -> dict[str, Any]:
    """Return what a finished shard says about its words."""
    document: dict[str, Any] = json.loads(draft.read(f"{_folder(number)}/{METADATA}"))
    return dict(document["attributes"])


def _finished(draft: Draft, number: int) -> Shard:
    """Return a shard that an earlier process wrote."""
    words = np.frombuffer(draft.read(f"{_folder(number)}/c/0"), np.uint16)
    return shards.from_words(words, _described(draft, number), f"shard {number}")


@dataclass(frozen=True, eq=False)
class _Made:
    """Files of a shard, and how many rows have which features."""

    files: dict[str, FileEntry]
    columns: npt.NDArray[np.int64]
    ones: Ones


def _write_shard(number: int, matrix: StoredMatrix, place: DraftPlace) -> _Made:
    """Make and write one shard; runs on a worker that sees the store."""
    shard = make_shard(number, matrix)
    words, facts = shards.to_words(shard)
    spec = ArraySpec(words.shape, (max(len(words), 1),), words.dtype, _RAW, facts)
    content, described = _files(number)
    files = {
        content: place.write(content, *spec.encode(words)),
        described: place.write(described, encode_json(spec.metadata())),
    }
    ones = shard.count_ones()
    columns = np.flatnonzero(ones)
    return _Made(files, columns, ones[columns])


def _source(number: int, matrix: StoredMatrix) -> str:
    return "+".join(matrix.block_signature(i) for i in _blocks_of(number, matrix))


def _folder(number: int) -> str:
    return f"shards/{number}"


def _files(number: int) -> tuple[str, str]:
    """Return the names of the files of a shard, in the order in which they are written."""
    return f"{_folder(number)}/c/0", f"{_folder(number)}/{METADATA}"


def _last_file(number: int) -> str:
    """Return the file of a shard that is there only if the others are."""
    return _files(number)[-1]


def check_matches(index: StoredIndex, matrix: Matrix, where: str) -> None:
    """Refuse an index of other rows."""
    if getattr(matrix, "fingerprint", None) != index.fingerprint:
        got = "one built before rows were added or deleted"
        hint = "Bring it up to date: `distclust sets build`."
        raise InputError(where, "the index of these rows", got, hint)
