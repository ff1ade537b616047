"""Whether chains agree and how much they say: R-hat and effective sample sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_LEAST_DRAWS = 4  # a half of them is the least that has a variance
_TAIL = (0.05, 0.95)


@dataclass(frozen=True)
class Diagnosis:
    """Diagnostics of each traced figure, by its name.

    Attributes
    ----------
    rhat
        Rank-normalised split R-hat. 1 for a figure that is the same constant in all chains,
        infinite for constants that differ, NaN for a single chain or too few draws.
    ess_bulk, ess_tail
        Effective number of samples for the middle of the distribution and for its 5 % tails,
        of all chains together.
    """

    rhat: dict[str, float]
    ess_bulk: dict[str, float]
    ess_tail: dict[str, float]

    @property
    def worst_rhat(self) -> float:
        """The largest R-hat; infinite if one is unknown."""
        return max(_known(value, math.inf) for value in self.rhat.values())

    @property
    def least_ess(self) -> float:
        """The smallest effective number of samples; 0 if one is unknown."""
        found = (*self.ess_bulk.values(), *self.ess_tail.values())
        return min(_known(value, 0.0) for value in found)

    def as_dict(self) -> dict[str, Any]:
        """Return all as plain values."""
        return {"rhat": self.rhat, "ess_bulk": self.ess_bulk, "ess_tail": self.ess_tail}


def diagnose(names: Sequence[str], traces: Floats) -> Diagnosis:
    """Return the diagnostics of traces (n_chains, n_draws, figures)."""
    columns = [traces[:, :, i] for i in range(len(names))]
    return Diagnosis(
        {name: rank_rhat(column) for name, column in zip(names, columns, strict=True)},
        {name: ess_bulk(column) for name, column in zip(names, columns, strict=True)},
        {name: ess_tail(column) for name, column in zip(names, columns, strict=True)},
    )


def rank_rhat(draws: Floats) -> float:
    """Return the rank-normalised split R-hat of draws (n_chains, n_draws)."""
    n_chains, n_draws = draws.shape
    if n_chains < 2 or n_draws < _LEAST_DRAWS:
        return math.nan
    if _is_constant_by_chain(draws):
        return 1.0 if np.all(draws == draws[0, 0]) else math.inf
    with np.errstate(divide="ignore", invalid="ignore"):  # halves that are constant
        return float(_stats().rhat(draws, chain_axis=0, draw_axis=1, method="rank"))


def ess_bulk(draws: Floats) -> float:
    """Return the effective number of samples in the bulk, of draws (n_chains, n_draws)."""
    return _ess(draws, method="bulk")


def ess_tail(draws: Floats) -> float:
    """Return the effective number of samples in the 5 % tails."""
    return _ess(draws, method="tail", prob=_TAIL)


def _ess(draws: Floats, **options: Any) -> float:
    if draws.shape[1] < _LEAST_DRAWS:
        return math.nan
    if _is_constant_by_chain(draws):
        return float(draws.size)
    return float(_stats().ess(draws, chain_axis=0, draw_axis=1, **options))


def _is_constant_by_chain(draws: Floats) -> bool:
    return bool(np.all(draws == draws[:, :1]))


def _known(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value


def _stats() -> Any:
    import arviz_stats.base  # on first use: it takes a while to import

    return arviz_stats.base.array_stats  # type: ignore[attr-defined]
