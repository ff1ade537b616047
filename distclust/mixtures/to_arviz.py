"""Traces for ArviZ, whose users have their own plots and diagnostics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError

Floats = npt.NDArray[np.float64]


def traces_to_arviz(traces: Mapping[str, Floats]) -> Any:
    """Return traces (n_chains, n_sweeps) by name as an ``xarray.DataTree``.

    Group ``posterior`` holds the second half of the sweeps, ``warmup_posterior`` the first;
    the coordinate ``draw`` is the number of the sweep, from 1.
    """
    try:
        from arviz_base import from_dict
    except ModuleNotFoundError:
        hint = "Install it with: pip install 'distclust[arviz]'."
        raise InputError("to_arviz", "the package arviz-base", "none", hint) from None
    halves = {
        name: np.array_split(trace, [trace.shape[1] // 2], axis=1) for name, trace in traces.items()
    }
    early = {name: half[0] for name, half in halves.items()}
    late = {name: half[1] for name, half in halves.items()}
    groups = {"posterior": late}
    if all(part.shape[1] for part in early.values()):
        groups["warmup_posterior"] = early
    tree = from_dict(groups, save_warmup=True)
    n_early = next(iter(early.values())).shape[1]
    for name, first in (("posterior", n_early + 1), ("warmup_posterior", 1)):
        if name in groups:
            data = tree[name].to_dataset()
            tree[name] = tree[name].__class__(data.assign_coords(draw=data.draw + first))
    return tree
