"""Reasons: which features define a set, and what they add to each item's score."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from distclust.families import Family, Multinomial
from distclust.retrieval import exponential
from distclust.retrieval.items import Chosen, Items
from distclust.retrieval.prior import BinaryPrior, Query
from distclust.retrieval.results import Contributions, Explanation, Feature, Ranking

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
    chosen: Chosen,
    family: Family,
    items: Items,
    names: list[str],
    corpus_means: Floats,
    n_features: int,
) -> Explanation:
    """Explain by what each column adds to the log predictive ratio."""
    rows = items.values(ranking.rows)
    given = items.values(chosen.rows) if len(chosen.rows) else chosen.vectors
    stats = exponential.query_statistics(family, given)
    results = []
    for i, (name, score) in enumerate(ranking):
        added = _added(family, _dense(rows[[i]])[0], stats)
        order = np.argsort(-np.abs(added), kind="stable")[:n_features]
        features = tuple((names[j], float(added[j])) for j in order.tolist())
        results.append(Contributions(name, score, features, score - float(added[order].sum())))
    group_stats = exponential.query_statistics(family, rows)
    return Explanation(
        ranking,
        _telling(family, given, stats, names, corpus_means, n_features),
        _telling(family, rows, group_stats, names, corpus_means, n_features),
        tuple(results),
    )


def _telling(
    family: Family,
    rows: Any,
    stats: Floats,
    names: list[str],
    corpus_means: Floats,
    n_features: int,
) -> tuple[Feature, ...]:
    """Return the columns that tell the mean row of a set most from any row."""
    mean = _dense(rows).mean(axis=0)
    typical = np.rint(mean) if family.name in ("poisson", "multinomial", "categorical") else mean
    added = _added(family, typical, stats)
    order = np.argsort(-added, kind="stable")[:n_features]
    return tuple(
        Feature(names[j], float(added[j]), float(mean[j]), float(corpus_means[j]))
        for j in order.tolist()
    )


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
