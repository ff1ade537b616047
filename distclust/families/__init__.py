"""Conjugate families: prior, additive statistics, log marginal and predictive."""

from __future__ import annotations

from distclust.families._blocks import column_origin, dense_rows
from distclust.families.base import (
    Family,
    Hyperparameter,
    RowFunctions,
    family_from_dict,
    register_family,
    summarise_block,
)
from distclust.families.bernoulli import Bernoulli
from distclust.families.gaussian import Gaussian

__all__ = [
    "Bernoulli",
    "Family",
    "Gaussian",
    "Hyperparameter",
    "RowFunctions",
    "column_origin",
    "dense_rows",
    "family_from_dict",
    "register_family",
    "summarise_block",
]
