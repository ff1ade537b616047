"""A bag of words: how documents become counts of terms, and which terms are kept.

Documents are counted piece by piece, each piece with terms of its own; what all pieces found
makes the vocabulary. It is the one that scikit-learn's ``CountVectorizer``, whose analyser
reads the text, finds in all documents at once: terms in the order of their characters,
without those in too few or too many documents, and of the rest the most frequent ones. Where
some are equally frequent at the limit, the first ones are kept.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.store.sources.base import SourceOptions
from distclust.store.sources.lines import MOST_FEATURES

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True)
class Bag:
    """How text becomes terms; the attributes are those of `SourceOptions`."""

    ngrams: tuple[int, int] = (1, 1)
    lowercase: bool = True
    stop_words: str | tuple[str, ...] | None = None
    binary: bool = False
    hashing: int | None = None

    @classmethod
    def chosen(cls, options: SourceOptions) -> Bag:
        """Return how the options want it, or how a store that is joined was made."""
        given = {name: getattr(options, name) for name in cls.__dataclass_fields__}
        known: Mapping[str, Any] = options.expected.facts.get("bag", {}) if options.expected else {}
        values = {**given, **known}
        if isinstance(values["stop_words"], list):
            values["stop_words"] = tuple(values["stop_words"])
        return cls(**{**values, "ngrams": tuple(values["ngrams"])})

    def describe(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def check_bag(options: SourceOptions) -> None:
    """Refuse options that make no bag of words, before any document is read.

    Raises
    ------
    InputError
        That names the option.
    """
    shortest, longest = options.ngrams
    if not 1 <= shortest <= longest:
        raise _refused("ngrams", "two numbers, the first from 1 to the second", options.ngrams)
    if isinstance(options.stop_words, str) and options.stop_words != "english":
        raise _refused("stop_words", "'english' or a list of words", options.stop_words)
    for name in ("min_df", "max_df"):
        value = getattr(options, name)
        is_count = isinstance(value, int) and value >= 1
        if not (is_count or (isinstance(value, float) and 0 <= value <= 1)):
            raise _refused(name, "a whole number from 1 or a share from 0.0 to 1.0", value)
    for name in ("max_features", "hashing"):
        value = getattr(options, name)
        if value is not None and not 1 <= value <= MOST_FEATURES:
            raise _refused(name, f"1 to {MOST_FEATURES}", value)
    limits = (options.min_df, options.max_df, options.max_features)
    if options.hashing is not None and limits != (1, 1.0, None):
        got = "limits on terms as well"
        raise InputError("hashing", "no limits on terms", got, "Leave one of them out.")


def _refused(name: str, expected: str, got: Any) -> InputError:
    return InputError(name, expected, repr(got), "Change the option.")


def count_terms(texts: Iterable[str], bag: Bag) -> tuple[list[str], Any]:
    """Return the terms of some documents in order, and how often each occurs in each.

    Returns
    -------
    Sorted terms, and a CSR array of shape (n_texts, n_terms): whole numbers, or booleans
    where only presence counts.
    """
    import scipy.sparse

    analyse = _analyser(bag)
    codes: dict[str, int] = {}
    indices: list[int] = []
    counts: list[int] = []
    indptr = [0]
    for text in texts:
        found = Counter([codes.setdefault(term, len(codes)) for term in analyse(text)])
        indices.extend(found)
        counts.extend(found.values())
        indptr.append(len(indices))
    terms = sorted(codes)
    places = np.empty(len(terms), np.int32)
    places[[codes[term] for term in terms]] = np.arange(len(terms))
    data = np.ones(len(counts), np.bool_) if bag.binary else np.array(counts, np.int32)
    columns = places[np.array(indices, np.int64)]
    shape = (len(indptr) - 1, len(terms))
    csr = scipy.sparse.csr_array((data, columns, np.array(indptr)), shape=shape)
    csr.sort_indices()
    return terms, csr


def hash_terms(texts: Iterable[str], bag: Bag) -> Any:
    """Return how often the terms of each hashed feature occur in each document.

    Returns
    -------
    A CSR array of shape (n_texts, bag.hashing), as `count_terms` gives.
    """
    import scipy.sparse

    documents = list(texts)
    hashed = scipy.sparse.csr_array(_hasher(bag).transform(documents or [""]))
    return hashed[: len(documents)].astype(np.bool_ if bag.binary else np.int32)


@functools.lru_cache(maxsize=4)
def _analyser(bag: Bag) -> Any:
    from sklearn.feature_extraction.text import CountVectorizer

    return CountVectorizer(**_arguments(bag)).build_analyzer()


@functools.lru_cache(maxsize=4)
def _hasher(bag: Bag) -> Any:
    from sklearn.feature_extraction.text import HashingVectorizer

    # Signs would make counts cancel each other; they are of use for inner products only.
    return HashingVectorizer(
        n_features=bag.hashing, alternate_sign=False, norm=None, **_arguments(bag)
    )


def _arguments(bag: Bag) -> dict[str, Any]:
    words = list(bag.stop_words) if isinstance(bag.stop_words, tuple) else bag.stop_words
    return {
        "ngram_range": bag.ngrams,
        "lowercase": bag.lowercase,
        "stop_words": words,
        "binary": bag.binary,
    }


class TermTotals:
    """Adds up over pieces in how many documents each term occurs, and how often."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._documents = np.zeros(0, np.int64)
        self._occurrences = np.zeros(0, np.int64)

    def add(self, terms: Iterable[str], documents: Array, occurrences: Array) -> None:
        """Add the terms of one piece, each once, with its two counts."""
        known = self._codes
        codes = np.array([known.setdefault(term, len(known)) for term in terms], np.int64)
        missing = len(known) - len(self._documents)
        if missing > 0:
            room = np.zeros(max(missing, len(self._documents)), np.int64)  # doubles
            self._documents = np.concatenate([self._documents, room])
            self._occurrences = np.concatenate([self._occurrences, room])
        self._documents[codes] += documents
        self._occurrences[codes] += occurrences

    def select(self, n_documents: int, options: SourceOptions) -> list[str]:
        """Return the terms that the options keep, sorted.

        Raises
        ------
        InputError
            If none is left.
        """
        terms = sorted(self._codes)
        codes = np.array([self._codes[term] for term in terms], np.int64)
        least = _as_count(options.min_df, n_documents)
        most = _as_count(options.max_df, n_documents)
        documents = self._documents[codes]
        kept = np.flatnonzero((documents >= least) & (documents <= most))
        if options.max_features is not None and len(kept) > options.max_features:
            by_frequency = np.argsort(-self._occurrences[codes[kept]], kind="stable")
            kept = np.sort(kept[by_frequency[: options.max_features]])
        if len(kept) == 0:
            got = f"none of {len(terms)} that occur in {least:g} to {most:g} documents"
            hint = "Allow a smaller min_df, a larger max_df or other words."
            raise InputError("documents", "terms to count", got, hint)
        return [terms[i] for i in kept]


def _as_count(limit: int | float, n_documents: int) -> int | float:
    return limit * n_documents if isinstance(limit, float) else limit
