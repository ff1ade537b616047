"""What families are told about data: columns and a one-pass profile.

Structural types: whatever has these attributes will do, so that families need not know
how matrices are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt


class Column(Protocol):
    """What a family wants to know about a column."""

    @property
    def name(self) -> str:
        """Shown to the user."""

    @property
    def kind(self) -> str:
        """Either "number" or "category"."""

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the categories, in the order of their codes; empty for numbers."""


class Profile(Protocol):
    """One-pass facts about the data, one value a column (arrays of length d)."""

    @property
    def n_rows(self) -> int:
        """Rows seen."""

    @property
    def n_missing(self) -> npt.NDArray[Any]:
        """Entries that are NaN."""

    @property
    def n_nonzero(self) -> npt.NDArray[Any]:
        """Entries that are neither NaN nor zero."""

    @property
    def minimum(self) -> npt.NDArray[Any]:
        """Smallest observed value; infinity if there is none."""

    @property
    def maximum(self) -> npt.NDArray[Any]:
        """Largest observed value; minus infinity if there is none."""

    @property
    def all_integer(self) -> npt.NDArray[Any]:
        """Whether every observed value is whole."""

    @property
    def any_infinite(self) -> npt.NDArray[Any]:
        """Whether any value is infinite."""


@dataclass(frozen=True)
class ProfileView:
    """The profile of some of the columns."""

    n_rows: int
    n_missing: npt.NDArray[Any]
    n_nonzero: npt.NDArray[Any]
    minimum: npt.NDArray[Any]
    maximum: npt.NDArray[Any]
    all_integer: npt.NDArray[Any]
    any_infinite: npt.NDArray[Any]


def select_profile(profile: Profile, chosen: npt.NDArray[Any]) -> ProfileView:
    """Return the profile of the `chosen` columns (indices or a mask)."""
    return ProfileView(
        profile.n_rows,
        profile.n_missing[chosen],
        profile.n_nonzero[chosen],
        profile.minimum[chosen],
        profile.maximum[chosen],
        profile.all_integer[chosen],
        profile.any_infinite[chosen],
    )
