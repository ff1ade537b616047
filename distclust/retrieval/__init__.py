"""Retrieval: what belongs with a few given items (Bayesian Sets)."""

from distclust.retrieval.results import Explanation, Ranking
from distclust.retrieval.sets import BayesianSets

__all__ = ["BayesianSets", "Explanation", "Ranking"]
