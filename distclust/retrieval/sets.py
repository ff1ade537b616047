"""Bayesian Sets (Ghahramani and Heller): what else belongs with these items?"""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt

from distclust.engine import as_matrix, block_array, profile_matrix, reduce_blocks
from distclust.errors import InputError, UnknownFeaturesWarning
from distclust.retrieval import exponential, scanning
from distclust.retrieval.index import (
    Index,
    StoredIndex,
    build_in_memory,
    build_index,
    check_matches,
    open_index,
    place_of_index,
    search,
)
from distclust.retrieval.items import Chosen, Items
from distclust.retrieval.prior import BinaryPrior, Query
from distclust.retrieval.ranking import Top
from distclust.retrieval.results import Explanation, Ranking, suggested_size
from distclust.store import Matrix, profile_block
from distclust.store.stored_matrix import StoredMatrix

if TYPE_CHECKING:  # families load slowly, and binary features need none
    from distclust.families import Family

Engine = Literal["auto", "index", "scan"]

_BERNOULLI = "bernoulli"
_LEAST, _MOST = 1e-20, 1e20  # of kappa and smoothing: beyond, logarithms lose their digits
_SCAN_FROM = 0.5  # of all ones in the lists of a query: then a scan reads less


class BayesianSets:
    """Query by example: rank all items by how well they complete a few given ones.

    The score of an item is the log Bayes factor of belonging to the same set as the query,
    ``log p(x | query) - log p(x)``, exact. An index rather than an estimator: `fit` learns
    the prior, `query` asks.

    Parameters
    ----------
    kappa
        Strength of the prior: it counts as so many items with the corpus's mean features.
        For binary and categorical features; other families have the priors that their
        classes describe.
    smoothing
        Added to the counts of ones and zeros of a feature. With 0, as published, features
        that all items have or none are left out.
    family
        ``"bernoulli"`` for binary features; or ``"categorical"``, ``"multinomial"``,
        ``"poisson"``, ``"diagonal_gaussian"`` or an instance of a family.

    Attributes
    ----------
    matrix_
        The corpus.
    n_items_
        How many items it has.
    family_
        The resolved family; None for binary features, whose score is linear.
    index_
        The index that queries may use, or None.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]])
    >>> sets = BayesianSets().fit(X)
    >>> found = sets.query([0, 1], k=3)
    >>> found.ids.tolist(), found.log_scores.round(3).tolist()
    ([0, 1, 2], [1.253, 1.048, -0.981])
    """

    def __init__(
        self, kappa: float = 2.0, smoothing: float = 0.0, family: Family | str = _BERNOULLI
    ) -> None:
        self.kappa = kappa
        self.smoothing = smoothing
        self.family = family

    # ---- the corpus ------------------------------------------------------------------------------

    def fit(self, X: Any, *, index: str | os.PathLike[str] | None = None) -> Self:
        """Learn the prior of a corpus in one pass.

        Parameters
        ----------
        X
            Rows of items: anything `as_matrix` takes, such as an array, a sparse matrix, a
            table, or the path or URL of a store.
        index
            Where the index of a store lies; left out, beside it (``<store>.sets``). One that
            fits the store as it is serves queries, and spares the pass.
        """
        where = "BayesianSets.fit"
        self._check_parameters(where)
        matrix = as_matrix(X)
        if matrix.shape[0] == 0 or matrix.shape[1] == 0:
            raise InputError(where, "items with features", f"shape {matrix.shape}", "Add rows.")
        self.matrix_ = matrix
        self.n_items_ = int(matrix.shape[0])
        self.items_ = Items(matrix)
        self.index_: Index | None = None
        self.family_: Family | None = None
        self._prior: BinaryPrior | None = None
        self._n_asked = 0
        self.index_place = self._place(index)
        vars(self).pop("_corpus_statistics", None)
        try:
            self._learn(index, where)
        except BaseException:
            del self.matrix_  # without a prior it is not fitted
            raise
        return self

    def _learn(self, index: str | os.PathLike[str] | None, where: str) -> None:
        if self.family != _BERNOULLI:
            self.family_ = self._resolved_family(where)
        elif (found := self._stored_index(index, where)) is not None:
            self.index_ = found
            self._prior = found.prior(self.kappa, self.smoothing)
        else:
            ones = count_ones(self.matrix_, where)
            self._prior = BinaryPrior(self.n_items_, ones, self.kappa, self.smoothing)

    def build_index(
        self, path: str | os.PathLike[str] | None = None, *, fresh: bool = False
    ) -> Self:
        """Build the index, or bring it up to date: in a store beside the corpus or in memory.

        Needed once; queries choose it where it is quicker. For binary features. A `fresh`
        one takes nothing over from what is there.
        """
        where = "BayesianSets.build_index"
        self._check_binary(where)
        if isinstance(self.matrix_, StoredMatrix):
            place = self.index_place if path is None else os.fspath(path)
            assert place is not None, "a stored corpus has a place"
            self.index_place = place
            self.index_ = build_index(self.matrix_, place, fresh=fresh)
        else:
            if path is not None:
                hint = "Ingest the rows into a store first, or leave out the path."
                raise InputError(where, "a corpus in a store", "one in memory", hint)
            self.index_ = build_in_memory(self.matrix_)
        return self

    # ---- asking ----------------------------------------------------------------------------------

    def query(
        self, items: Any, k: int = 10, exclude_query: bool = False, engine: Engine = "auto"
    ) -> Ranking:
        """Rank the `k` items that best complete a set.

        Parameters
        ----------
        items
            Ids of items, numbers of rows, or raw vectors of shape (n, n_features). A repeated
            item counts once.
        k
            How many are wanted.
        exclude_query
            Leave out the items that were asked with; as published they are ranked too.
        engine
            ``"index"`` or ``"scan"``; by default whichever reads less. The answer is the same.
        """
        return self.query_many([items], k, exclude_query, engine)[0]

    def query_many(
        self,
        queries: Sequence[Any],
        k: int = 10,
        exclude_query: bool = False,
        engine: Engine = "auto",
    ) -> list[Ranking]:
        """Answer several queries at once, sharing the reading of the corpus."""
        where = "BayesianSets.query"
        self._check_asked(k, engine, where)
        begun = time.perf_counter()
        chosen = [self._choose(items, where) for items in queries]
        return self._answer(chosen, int(k), exclude_query, engine, where, begun)

    def _answer(
        self,
        chosen: list[Chosen],
        k: int,
        exclude_query: bool,
        engine: Engine,
        where: str,
        begun: float,
    ) -> list[Ranking]:
        if not chosen:
            return []
        spare = max(len(part.rows) for part in chosen) if exclude_query else 0
        wanted = min(k + spare, self.n_items_)
        tops, engine_used, reason = self._search(chosen, wanted, engine, where)
        self._n_asked += len(chosen)
        each = (time.perf_counter() - begun) / len(chosen)
        return [
            self._ranking(part, top, k, exclude_query, (engine_used, reason, each))
            for part, top in zip(chosen, tops, strict=True)
        ]

    def explain(
        self,
        items: Any,
        k: int = 10,
        exclude_query: bool = False,
        n_features: int = 10,
        engine: Engine = "auto",
    ) -> Explanation:
        """Say which features define the set, and what each adds to every ranked item."""
        from distclust.retrieval.explaining import explain_binary, explain_family

        where = "BayesianSets.explain"
        self._check_asked(k, engine, where)
        begun = time.perf_counter()
        chosen = self._choose(items, where)
        (ranking,) = self._answer([chosen], int(k), exclude_query, engine, where, begun)
        if self._prior is not None:
            names = [column.name for column in self.matrix_.columns]
            query = self._weigh(chosen)
            return explain_binary(
                ranking, chosen, query, self._prior, self.items_, names, n_features
            )
        assert self.family_ is not None, "fitted"
        given, corpus = self._values(chosen), self._corpus_statistics
        return explain_family(ranking, given, self.family_, self.items_, corpus, n_features)

    def log_scores(self, items: Any) -> Any:
        """Return the scores of all items as a Dask array, computed when it is asked for."""
        where = "BayesianSets.log_scores"
        self._check_fitted(where)
        chosen = self._choose(items, where)
        if self._prior is not None:
            query = self._weigh(chosen)
            base = self._prior.base(query.n_items).weights
            gains = np.zeros(len(base))
            gains[query.columns] = query.gains
            shared: tuple[Any, ...] = (base, gains, query.constant)
            return block_array(scanning.score_all, self.matrix_, *shared)
        assert self.family_ is not None, "fitted"
        stats = exponential.query_statistics(self.family_, self._values(chosen))
        return block_array(exponential.score_block, self.matrix_, self.family_, stats)

    def warm(self, sizes: Sequence[int] = (1, 2, 3)) -> Self:
        """Open the index and prepare queries of these sizes, so that none waits for it."""
        self._check_fitted("BayesianSets.warm")
        if self.index_ is not None and self._prior is not None:
            for size in sizes:
                first = np.flatnonzero(self._prior.is_used)[:1]
                query = self._prior.query(size, first, np.ones(len(first)))
                search(self.index_, self._prior.kappa, self._prior.smoothing, [query], 1)
            self._n_asked += 1
        return self

    # ---- keeping ---------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write to one file: the prior, and the corpus itself or the name of its store."""
        from distclust.retrieval.persistence import save_sets

        self._check_fitted("BayesianSets.save")
        save_sets(self, path)

    @classmethod
    def load(cls, path: str | Path) -> BayesianSets:
        """Read what `save` wrote; `distclust.load` does too."""
        from distclust.retrieval.persistence import load_sets

        return load_sets(path)

    def __repr__(self) -> str:
        family = self.family if isinstance(self.family, str) else repr(self.family)
        text = f"BayesianSets(kappa={self.kappa:g}, smoothing={self.smoothing:g}, family={family!r}"
        if hasattr(self, "matrix_"):
            index = "with index" if self.index_ is not None else "no index"
            text += f"; {self.n_items_:,} items x {self.matrix_.shape[1]:,} features, {index}"
        return text + ")"

    # ---- inside ----------------------------------------------------------------------------------

    def _search(
        self, chosen: list[Chosen], wanted: int, engine: Engine, where: str
    ) -> tuple[list[Top], str, str]:
        if self._prior is None:
            if engine == "index":
                hint = "Leave out `engine`."
                raise InputError(where, "binary features for an index", str(self.family), hint)
            assert self.family_ is not None, "fitted"
            stats = [
                exponential.query_statistics(self.family_, self._values(part)) for part in chosen
            ]
            tops = exponential.scan(self.matrix_, self.family_, stats, wanted, "scanning")
            return tops, "scan", "no index for this family"
        prior, queries = self._prior, [self._weigh(part) for part in chosen]
        use, reason = self._plan(queries, engine, where)
        if use == "index":
            assert self.index_ is not None, "the plan has looked"
            tops = search(self.index_, prior.kappa, prior.smoothing, queries, wanted)
            return tops, use, reason
        tops = scanning.scan(self.matrix_, prior, queries, wanted, "scanning")
        return tops, use, reason

    def _plan(self, queries: list[Query], engine: Engine, where: str) -> tuple[str, str]:
        """Choose what reads less, and say why."""
        if engine == "index" and self.index_ is None:
            hint = "Call build_index() or run `distclust sets build`."
            raise InputError(where, "an index", "none", hint)
        if engine != "auto":
            return engine, "asked for"
        if self.index_ is None:
            return "scan", "there is no index"
        if self._n_asked == 0 and len(queries) == 1 and isinstance(self.index_, StoredIndex):
            return "scan", "a single query reads the corpus sooner than it opens the index"
        assert self._prior is not None, "binary"
        total = max(int(self._prior.ones.sum()), 1)
        touched = sum(int(self._prior.ones[query.columns].sum()) for query in queries)
        share = touched / (total * len(queries))
        if share > _SCAN_FROM:
            return "scan", f"{share:.0%} of all ones are of the query's features"
        return "index", f"{share:.1%} of all ones are of the query's features"

    def _ranking(
        self, chosen: Chosen, top: Top, k: int, exclude: bool, how: tuple[str, str, float]
    ) -> Ranking:
        rows, scores = top.rows, top.scores
        if exclude:
            kept = ~np.isin(rows, chosen.rows)
            rows, scores = rows[kept], scores[kept]
        rows, scores = rows[:k], scores[:k]
        size = suggested_size(scores, chosen.vectors.shape[0], self.n_items_)
        engine, reason, seconds = how
        n_others = self.n_items_ - (len(chosen.rows) if exclude else 0)
        return Ranking(
            ids=self.items_.ids_at(rows),
            rows=rows,
            log_scores=scores,
            query=tuple(chosen.names),
            suggested_size=size,
            is_open=size == len(rows) < n_others,
            engine=engine,
            reason=reason,
            seconds=seconds,
        )

    def _choose(self, items: Any, where: str) -> Chosen:
        """Return the rows of a query, of values that the corpus may have."""
        chosen = self.items_.choose(items, where)
        if len(chosen.rows) == 0:
            self._check_vectors(chosen.vectors, where)
        return chosen

    def _check_vectors(self, vectors: Any, where: str) -> None:
        if self._prior is None:
            assert self.family_ is not None, "fitted"
            given = vectors if self.matrix_.is_sparse else vectors.toarray()
            self.family_.check(profile_block(given), self.matrix_.columns, where)
            return
        if not (vectors.data == 1).all():
            hint = "Binarise them as the corpus was."
            raise InputError(where, "raw vectors of zeros and ones", "other values", hint)
        columns = np.unique(vectors.indices)
        unknown = columns[self._prior.ones[columns] == 0]
        if len(unknown) and self._prior.smoothing == 0.0:
            names = ", ".join(repr(self.matrix_.columns[j].name) for j in unknown[:3].tolist())
            warnings.warn(
                f"{where}: {len(unknown)} features that no item of the corpus has were ignored "
                f"({names}). Fit with smoothing above 0 to count them.",
                UnknownFeaturesWarning,
                stacklevel=5,
            )

    def _weigh(self, chosen: Chosen) -> Query:
        assert self._prior is not None, "binary"
        sums = np.bincount(chosen.vectors.indices, minlength=len(self._prior.ones))
        columns = np.flatnonzero(sums)
        return self._prior.query(chosen.vectors.shape[0], columns, sums[columns])

    def _values(self, chosen: Chosen) -> Any:
        """Return the rows of a query with their values, as the family takes them."""
        if len(chosen.rows) == 0:
            given = chosen.vectors
            return given if self.matrix_.is_sparse else given.toarray()
        return self.items_.values(chosen.rows)

    @functools.cached_property
    def _corpus_statistics(self) -> npt.NDArray[np.float64]:
        """Statistics of all items, for explanations of other families, shape (1, p)."""
        assert self.family_ is not None, "not binary"
        return reduce_blocks(exponential.corpus_statistics, self.matrix_, self.family_)

    def _check_binary(self, where: str) -> None:
        self._check_fitted(where)
        if self._prior is None:
            hint = "Queries of other families scan the corpus."
            raise InputError(where, "binary features", f"family {self.family!r}", hint)

    def _place(self, index: str | os.PathLike[str] | None) -> str | None:
        if index is not None:
            return os.fspath(index)
        if isinstance(self.matrix_, StoredMatrix):
            return place_of_index(self.matrix_.url)
        return None

    def _stored_index(self, asked: str | os.PathLike[str] | None, where: str) -> StoredIndex | None:
        """Return the index beside the corpus if it fits; one that was named has to."""
        if self.index_place is None or not isinstance(self.matrix_, StoredMatrix):
            return None
        found = open_index(self.index_place)
        if found is None:
            if asked is not None:
                hint = "Build it first: `distclust sets build`."
                raise InputError(f"{where}: index", "an index", "none at that place", hint)
            return None
        if asked is not None:
            check_matches(found, self.matrix_, f"{where}: index")
        return found if found.fingerprint == self.matrix_.fingerprint else None

    def _resolved_family(self, where: str) -> Family:
        from distclust.families import Categorical
        from distclust.trees.data import first_look, resolve_family

        template = Categorical(kappa=self.kappa) if self.family == "categorical" else self.family
        family, _ = resolve_family(template, self.matrix_, first_look(self.matrix_), where)
        return family

    def _check_parameters(self, where: str) -> None:
        hint = "For example kappa=2.0, smoothing=0.5."
        for name, others in (("kappa", ""), ("smoothing", "0, or ")):
            value: Any = getattr(self, name)
            is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not is_number or not (_LEAST <= value <= _MOST or (others and value == 0)):
                expected = f"{others}a number from {_LEAST:g} to {_MOST:g}"
                raise InputError(f"{where}: {name}", expected, repr(value), hint)

    def _check_asked(self, k: int, engine: str, where: str) -> None:
        self._check_fitted(where)
        given: Any = k
        if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
            raise InputError(f"{where}: k", "a whole number of at least 1", repr(k), "Try 10.")
        if engine not in ("auto", "index", "scan"):
            hint = "Leave it out."
            raise InputError(f"{where}: engine", "'auto', 'index' or 'scan'", repr(engine), hint)

    def _check_fitted(self, where: str) -> None:
        if not hasattr(self, "matrix_"):
            raise InputError(where, "a fitted index", "one without a corpus", "Call fit first.")


def count_ones(matrix: Matrix, where: str) -> npt.NDArray[np.int64]:
    """Return how many rows have each feature; refuse anything but zeros and ones."""
    known = matrix.known_profile if isinstance(matrix, StoredMatrix) else None
    profile = known or profile_matrix(matrix, stage="counting features")
    if int(np.asarray(profile.n_missing).sum()):
        hint = "Fill them in or drop the rows; an absent feature is a zero."
        raise InputError(where, "zeros and ones", "missing values", hint)
    is_binary = (profile.minimum >= 0) & (profile.maximum <= 1) & profile.all_integer
    if not is_binary.all() or any(column.kind != "number" for column in matrix.columns):
        from distclust.families import Bernoulli

        Bernoulli().check(profile, matrix.columns, where)  # says which column it is
    return np.asarray(profile.n_nonzero, np.int64)
