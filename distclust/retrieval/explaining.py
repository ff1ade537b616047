"""Reasons: which features define a set, and what they add to each item's score."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from distclust.families import Categorical, Family, Multinomial
from distclust.retrieval import exponential
from distclust.retrieval.items import Chosen, Items
from distclust.retrieval.prior import BinaryPrior, Query
from distclust.retrieval.results import Contributions, Explanation, Feature, Ranking
from distclust.store import Column

Floats = npt.NDArray[np.float64]


def explain_binary(
    ranking: Ranking,
    chosen: Chosen,
    query: Query,
    prior: BinaryPrior,
    items: Items,
    names: list[str],
    n_features: int,
) -> Explanation:
    """Explain by the weights ``q_j`` of binary features."""
    found = items.vectors(ranking.rows)
    group_sums = np.bincount(found.indices, minlength=len(prior.ones))
    columns = np.flatnonzero(group_sums)
    group = prior.query(max(found.shape[0], 1), columns, group_sums[columns])
    weights = prior.weights(query)
    results = []
    for i, (name, score) in enumerate(ranking):
        own = found.indices[found.indptr[i] : found.indptr[i + 1]]
        own = own[np.argsort(-np.abs(weights[own]), kind="stable")][:n_features]
        features = tuple((names[j], float(weights[j])) for j in own.tolist())
        results.append(Contributions(name, score, features, score - float(weights[own].sum())))
    sums = np.bincount(chosen.vectors.indices, minlength=len(prior.ones))
    return Explanation(
        ranking,
        _heaviest(query, prior, sums, names, n_features),
        _heaviest(group, prior, group_sums, names, n_features),
        tuple(results),
    )


def _heaviest(
    query: Query, prior: BinaryPrior, sums: npt.NDArray[Any], names: list[str], n_features: int
) -> tuple[Feature, ...]:
    weights = prior.weights(query)
    order = query.columns[np.argsort(-weights[query.columns], kind="stable")][:n_features]
    return tuple(
        Feature(
            names[j],
            float(weights[j]),
            float(sums[j]) / query.n_items,
            float(prior.ones[j]) / prior.n_rows,
        )
        for j in order.tolist()
    )


def explain_family(
    ranking: Ranking,
    given: Any,
    family: Family,
    items: Items,
    corpus_stats: Floats,
    n_features: int,
) -> Explanation:
    """Explain by what each column adds to the log predictive ratio.

    Parameters
    ----------
    given
        Rows of the query with their values.
    corpus_stats
        Statistics of all rows, shape (1, p).
    """
    columns = items.matrix.columns
    stats = exponential.query_statistics(family, given)
    rows = items.values(ranking.rows) if len(ranking) else given[:0]
    results = []
    for i, (name, score) in enumerate(ranking):
        row = _dense(rows[[i]])[0]
        added = _added(family, row, stats)
        order = np.argsort(-np.abs(added), kind="stable")[:n_features]
        features = tuple(
            (_label(family, columns[j], row[j]), float(added[j])) for j in order.tolist()
        )
        results.append(Contributions(name, score, features, score - float(added[order].sum())))
    telling = functools.partial(_telling, family, corpus_stats, columns, n_features)
    group_stats = exponential.query_statistics(family, rows)
    group_features = telling(group_stats) if len(ranking) else ()
    return Explanation(ranking, telling(stats), group_features, tuple(results))


def _telling(
    family: Family,
    corpus_stats: Floats,
    columns: tuple[Column, ...],
    n_features: int,
    stats: Floats,
) -> tuple[Feature, ...]:
    """Return the columns that tell the typical row of a set most from any row."""
    if isinstance(family, Categorical):
        typical, share, share_of_all = _modes(family, stats[0], corpus_stats[0])
    else:
        share, share_of_all = (family.feature_means(s)[0] for s in (stats[:1], corpus_stats))
        typical = np.rint(share) if family.name in ("poisson", "multinomial") else share
    added = _added(family, typical, stats)
    order = np.argsort(-added, kind="stable")[:n_features]
    return tuple(
        Feature(
            _label(family, columns[j], typical[j]),
            float(added[j]),
            float(share[j]),
            float(share_of_all[j]),
        )
        for j in order.tolist()
    )


def _modes(family: Categorical, stats: Floats, corpus_stats: Floats) -> tuple[Floats, ...]:
    """Return the most frequent level of every column in a set, and its shares in set and corpus."""
    modes, share, share_of_all = np.full((3, family.n_features), np.nan)
    ends = 1 + np.cumsum(family.n_levels)
    for j, (end, n_levels) in enumerate(zip(ends.tolist(), family.n_levels, strict=True)):
        counts, of_all = stats[end - n_levels : end], corpus_stats[end - n_levels : end]
        if counts.any():  # else it is missing in all rows of the set
            level = int(np.argmax(counts))
            modes[j] = level
            share[j] = counts[level] / counts.sum()
            share_of_all[j] = of_all[level] / of_all.sum() if of_all.any() else np.nan
    return modes, share, share_of_all


def _label(family: Family, column: Column, value: float) -> str:
    """Return how a feature is called: a column, or a level of one."""
    if not isinstance(family, Categorical) or np.isnan(value):
        return column.name
    level = int(value)
    return f"{column.name}={column.levels[level] if column.levels else level}"


def _added(family: Family, row: Floats, stats: Floats) -> Floats:
    if isinstance(family, Multinomial):
        alpha = np.asarray(family.alpha)
        given = alpha + stats[0, 1 : 1 + len(row)]
        return np.asarray(
            gammaln(given + row) - gammaln(given) - gammaln(alpha + row) + gammaln(alpha)
        )
    return exponential.column_scores(family, row, stats)


def _dense(rows: Any) -> Floats:
    dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
    return np.asarray(dense, np.float64)
