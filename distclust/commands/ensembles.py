"""The verbs around ensembles: fit ensemble, predict."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from distclust.commands.common import Common, followed, say_plan
from distclust.commands.mixtures import Views, say_fit, sweeps_done, with_stop
from distclust.commands.results_fits import (
    Fitting,
    find_place,
    hands,
    heard_of_resuming,
    resumable,
    running,
)

if TYPE_CHECKING:
    import pandas as pd

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
    if common.plan:
        _plan(model, rows, fitting, common, is_labels=is_labels)
        return
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


def _plan(model: Any, rows: Any, fitting: Fitting, common: Common, *, is_labels: bool) -> None:
    from distclust.engine import as_matrix
    from distclust.report.ensemble_plan import plan_ensemble

    matrix = as_matrix(rows, where="ClusterEnsemble.fit")
    with hands(fitting) as (_, n_threads, _memory):
        say_plan(plan_ensemble(model, matrix, n_threads, is_labels=is_labels), common)


# ---- predict -------------------------------------------------------------------------------------


def is_ensemble(model: Any) -> bool:
    """Whether a model is an ensemble."""
    return type(model).__name__ == "ClusterEnsemble"


def place(model: Any, table: Any, names: Any, probabilities: bool) -> pd.DataFrame:
    """Return the clusters of new rows; of a model of labels, rows are labels by its bases.

    Rows without any label are in cluster -1, which has no probability.
    """
    import numpy as np
    import pandas as pd

    from distclust.commands.trees import with_probabilities

    if len(model.bases_):
        labels, chances = model.predict(table), model.predict_proba(table)
    else:
        labels, chances = model.predict_labels(table), model.predict_labels_proba(table)
    frame = pd.DataFrame({"row": names})
    frame["cluster"] = labels
    chosen = chances[np.arange(len(chances)), np.maximum(labels, 0)]
    frame["probability"] = np.where(labels < 0, 0.0, chosen)
    return with_probabilities(frame, chances) if probabilities else frame
