"""Conjugate families: prior, additive statistics, log marginal and predictive.

:class:`Family` is the protocol, documented in :mod:`distclust.families.base` so that a
new family fits in one file.
"""

from __future__ import annotations

from distclust.families._blocks import column_origin, dense_rows, is_sparse
from distclust.families._checks import Hyperparameter
from distclust.families.auto import choose_family
from distclust.families.base import Family, RowFunctions, summarise_block
from distclust.families.bernoulli import Bernoulli
from distclust.families.categorical import Categorical
from distclust.families.diagonal import DiagonalGaussian
from distclust.families.gaussian import Gaussian
from distclust.families.multinomial import Multinomial
from distclust.families.poisson import Poisson
from distclust.families.product import Product
from distclust.families.registry import family_from_dict, family_named, register_family

__all__ = [
    "Bernoulli",
    "Categorical",
    "DiagonalGaussian",
    "Family",
    "Gaussian",
    "Hyperparameter",
    "Multinomial",
    "Poisson",
    "Product",
    "RowFunctions",
    "choose_family",
    "column_origin",
    "dense_rows",
    "family_from_dict",
    "family_named",
    "is_sparse",
    "register_family",
    "summarise_block",
]
