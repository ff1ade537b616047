"""The verb fit ensemble."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from distclust.commands.common import Common, followed
from distclust.commands.mixtures import Views, say_fit, sweeps_done, with_stop
from distclust.commands.results_fits import (
    Fitting,
    find_place,
    heard_of_resuming,
    resumable,
    running,
)

if TYPE_CHECKING:
    from distclust.commands.trees import Reading

SUFFIX = ".ensemble"  # results of a store lie beside it, under its name and this


def fit(
    source: str,
    fitting: Fitting,
    views: Views,
    reading: Reading,
    common: Common,
    *,
    is_labels: bool,
) -> None:
    """Fit an ensemble to rows, or to clusterings of them; keep it, say what was found."""
    from distclust.commands.trees import names_of_rows, read_input
    from distclust.ensembles.cluster_ensemble import ClusterEnsemble

    place = find_place(source, fitting, common, verb="fit ensemble", suffix=SUFFIX)
    views.check(source, place.path)
    model: Any = ClusterEnsemble(random_state=common.seed, **with_stop(fitting.given))
    rows: Any = read_input(source, reading)
    with resumable(place.store), followed(common), running(fitting.scheduler, fitting.workers):
        start = time.monotonic()
        with heard_of_resuming(common, sweeps_done, "sweep") as resumed:
            kept = {"results": place.results, "fresh": fitting.fresh}
            model.fit_labels(rows, **kept) if is_labels else model.fit(rows, **kept)
        seconds = time.monotonic() - start
    if place.store is None:
        model.save(place.path)
    views.write(model, names_of_rows(rows))
    how = {"resumed_after": resumed[0], "seconds": seconds}
    say_fit(model, place.path, how, views, common)
