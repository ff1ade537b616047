"""``family="auto"``: which family fits the columns, by a rule anyone can check.

============================================  ==========================================
the columns hold                              family
============================================  ==========================================
zeros and ones, or booleans                   Bernoulli
other whole numbers from 0 on                 Multinomial from 50 columns on with under
                                              20 % nonzeros and nothing missing,
                                              Poisson otherwise
other numbers                                 Gaussian up to 32 columns, DiagonalGaussian
                                              beyond or with missing values
categories                                    Categorical
several of these (tables)                     Product of the families of each group
real numbers in a sparse matrix               none: estimators ask for a family by name
============================================  ==========================================

Columns of one type (an array, or a table that could be one) are one group, judged by their
values whatever their type. In other tables each column is judged by itself first: booleans
and whole numbers 0 and 1 are binary, other whole numbers from 0 on are counts (with gaps too,
which make pandas hold them as real ones), categories are categories, the rest is real; the
groups then follow the rule of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from distclust.families.base import Family
from distclust.families.bernoulli import Bernoulli
from distclust.families.categorical import Categorical
from distclust.families.columns import Column, Profile, select_profile
from distclust.families.diagonal import DiagonalGaussian
from distclust.families.gaussian import Gaussian
from distclust.families.multinomial import Multinomial
from distclust.families.poisson import Poisson
from distclust.families.product import Product

_MULTINOMIAL_COLUMNS = 50
_MULTINOMIAL_DENSITY = 0.2
_GAUSSIAN_COLUMNS = 32

Group = Literal["binary", "counts", "real", "category"]


class NumberColumn(Column, Protocol):
    """A column that remembers what kind of number the user's data held."""

    @property
    def number(self) -> str:
        """Either "bool", "integer" or "real"."""


def choose_family(
    profile: Profile, columns: Sequence[NumberColumn], is_sparse: bool = False
) -> tuple[Family, str]:
    """Return the template that fits the data, and the reason in one sentence.

    Parameters
    ----------
    profile
        Facts about every column.
    columns
        Their kinds.
    is_sparse
        Only told in the reason: the rule looks at values, not at how they are stored.
    """
    kinds = {(column.kind, column.number) for column in columns}
    if len(kinds) == 1 and columns[0].kind == "number":
        family, reason = _choose_numbers(profile)
        return family, f"sparse {reason}" if is_sparse else reason
    groups = np.array([_group_of(profile, d, column) for d, column in enumerate(columns)])
    names = [name for name in ("binary", "counts", "real", "category") if name in groups]
    choices = [_choose_group(profile, groups == name, name) for name in names]
    if len(names) == 1:
        return choices[0]
    members = [np.flatnonzero(groups == name) for name in names]
    parts = [
        (family, [int(d) for d in chosen])
        for (family, _), chosen in zip(choices, members, strict=True)
    ]
    reasons = [
        f"{len(chosen)} column{'s' * (len(chosen) > 1)} ({reason})"
        for (_, reason), chosen in zip(choices, members, strict=True)
    ]
    return Product(parts), "a mixed table, hence a product: " + "; ".join(reasons)


def _group_of(profile: Profile, d: int, column: NumberColumn) -> Group:
    if column.kind == "category":
        return "category"
    if column.number == "bool":
        return "binary"
    # A gap makes pandas turn whole numbers into real ones.
    whole = column.number == "integer" or (profile.n_missing[d] > 0 and profile.all_integer[d])
    if whole and profile.minimum[d] >= 0 and np.isfinite(profile.maximum[d]):
        return "binary" if profile.maximum[d] <= 1 else "counts"
    return "real"


def _choose_group(profile: Profile, chosen: npt.NDArray[np.bool_], name: str) -> tuple[Family, str]:
    if name == "category":
        return Categorical(), "categories: Categorical"
    return _choose_numbers(select_profile(profile, chosen))


def _choose_numbers(profile: Profile) -> tuple[Family, str]:
    """Return the family of columns of numbers, by their values."""
    n_columns = len(profile.minimum)
    missing = bool(np.any(profile.n_missing > 0))
    tail = ", some missing" if missing else ""
    whole = bool(np.all(profile.all_integer)) and bool(np.all(profile.minimum >= 0))
    if whole and bool(np.all(profile.maximum <= 1)):
        return Bernoulli(), f"zeros and ones{tail}: Bernoulli"
    if whole:
        density = float(np.sum(profile.n_nonzero)) / max(1, profile.n_rows * n_columns)
        facts = f"counts in {n_columns} columns, {density:.0%} nonzero{tail}"
        wide = n_columns >= _MULTINOMIAL_COLUMNS and density < _MULTINOMIAL_DENSITY
        if wide and not missing:
            return Multinomial(), f"{facts}: Multinomial"
        return Poisson(), f"{facts}: Poisson"
    facts = f"real numbers in {n_columns} columns{tail}"
    if missing or n_columns > _GAUSSIAN_COLUMNS:
        return DiagonalGaussian(), f"{facts}: DiagonalGaussian"
    return Gaussian(), f"{facts}: Gaussian"
