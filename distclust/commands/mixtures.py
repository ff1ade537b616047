"""The verbs around mixtures: fit dpmixture, show."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distclust.commands.common import (
    Common,
    check_output,
    check_replaceable,
    console,
    followed,
    print_json,
    say_plan,
)
from distclust.commands.results_fits import (
    Fitting,
    find_place,
    hands,
    heard_of_resuming,
    resumable,
    running,
    say_where,
)
from distclust.errors import InputError

if TYPE_CHECKING:
    from distclust import events
    from distclust.commands.trees import Reading
    from distclust.mixtures.dp_mixture import DPMixture

KINDS = ("DPMixture", "ClusterEnsemble")
SUFFIX = ".dpmixture"  # results of a store lie beside it, under its name and this
NO_STOP = "none"

LABELS_START = b"row,cluster,confidence"


@dataclass(frozen=True)
class Views:
    """Files for what was found."""

    picture: Path | None = None
    labels: Path | None = None

    @property
    def written(self) -> dict[str, Path]:
        """Files by what they are."""
        found = {"picture": self.picture, "labels": self.labels}
        return {name: path for name, path in found.items() if path is not None}

    def check(self, *inputs: str) -> None:
        """Refuse files that could not be written, or would destroy something, before work."""
        for path in self.written.values():
            check_output(path, *map(Path, inputs), is_model=False)
        if self.picture is not None:
            from distclust.report.pictures import check_picture_path

            check_picture_path(self.picture)
        if self.labels is not None:
            check_replaceable(self.labels, LABELS_START[:11], "labels")
        if self.picture is not None and self.picture == self.labels:
            hint = "Choose two names."
            raise InputError(str(self.picture), "a file for one thing", "two", hint)

    def write(self, model: Any, names: Any) -> None:
        """Write them; `names` are those of the rows."""
        if self.picture is not None:
            from distclust.report.mixture_pictures import write_mixture_picture

            write_mixture_picture(self.picture, model)
        if self.labels is not None:
            import pandas as pd

            from distclust.store.files import write_csv

            frame = pd.DataFrame({"row": names})
            frame["cluster"], frame["confidence"] = model.labels_, model.confidence_
            write_csv(self.labels, frame)


def fit(
    source: str,
    fitting: Fitting,
    views: Views,
    reading: Reading,
    common: Common,
    *,
    row_weights: str | None = None,
) -> None:
    """Fit a Dirichlet-process mixture to a store or a table, keep it, say what was found."""
    from distclust.commands.trees import names_of_rows, read_input

    place = find_place(source, fitting, common, verb="fit dpmixture", suffix=SUFFIX)
    views.check(source, place.path)
    model = make_model(fitting, common.seed)
    rows: Any = read_input(source, reading)
    rows, weights = _without_weights(rows, row_weights, source)
    if common.plan:
        _plan(model, rows, weights, fitting, common)
        return
    with resumable(place.store), followed(common), running(fitting.scheduler, fitting.workers):
        start = time.monotonic()
        with heard_of_resuming(common, sweeps_done, "sweep") as resumed:
            model.fit(rows, row_weights=weights, results=place.results, fresh=fitting.fresh)
        seconds = time.monotonic() - start
    if place.store is None:
        model.save(place.path)
    views.write(model, names_of_rows(rows))
    how = {"resumed_after": resumed[0], "seconds": seconds}
    say_fit(model, place.path, how, views, common)


def sweeps_done(event: events.Event) -> int | None:
    """Return after which sweep chains go on, if an event tells that."""
    found = event.metrics.get("resumed_after")
    return None if found is None else int(found)


def make_model(fitting: Fitting, seed: int) -> DPMixture:
    """Return the estimator that the options describe, not yet fitted."""
    from distclust.mixtures.dp_mixture import DPMixture

    return DPMixture(random_state=seed, **with_stop(fitting.given))


def with_stop(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as estimators take them: without a rule, chains do all sweeps."""
    found = dict(given)
    if found.get("stop") == NO_STOP:
        found["stop"] = None
    return found


def _without_weights(rows: Any, column: str | None, source: str) -> tuple[Any, Any]:
    """Return a table without the column of weights, and the weights."""
    if column is None:
        return rows, None
    names = [str(name) for name in rows.columns] if hasattr(rows, "iloc") else []
    if column not in names:
        got = f"none among {', '.join(map(repr, names[:8]))}" if names else "no table with columns"
        hint = "Name a column of a .csv or .tsv file."
        raise InputError("--row-weights", f"a column {column!r} of {source}", got, hint)
    return rows.drop(columns=column), rows[column].to_numpy()


def _plan(model: DPMixture, rows: Any, weights: Any, fitting: Fitting, common: Common) -> None:
    from distclust.engine import as_matrix
    from distclust.report.mixture_plan import plan_mixture

    matrix = as_matrix(rows, where="DPMixture.fit")
    with hands(fitting) as (n_processes, n_threads, _):
        say_plan(plan_mixture(model, matrix, n_processes, n_threads, weights), common)


def say_fit(model: Any, place: str, how: Mapping[str, Any], views: Views, common: Common) -> None:
    """Say what was found, how sure that is, and where it went."""
    facts = describe_any(model)
    if common.as_json:
        files = {name: str(path) for name, path in views.written.items()}
        print_json({"command": "fit", "model": place, **how, **facts, "written": files})
    elif not common.quiet:
        screen = console()
        print_any(model, facts)
        say_where(screen, facts["version"], place, how["seconds"])
        _say_written(views)
        told = f"Place new rows with: distclust predict {place} ROWS --out placed.csv"
        screen.print(told, highlight=False, soft_wrap=True)


def describe_any(model: Any) -> dict[str, Any]:
    """Return a mixture or an ensemble as plain values."""
    if type(model).__name__ == "DPMixture":
        from distclust.report.mixtures import describe

        return describe(model)
    from distclust.report.ensembles import describe as describe_ensemble

    return describe_ensemble(model)


def print_any(model: Any, facts: Mapping[str, Any]) -> None:
    """Print a mixture or an ensemble for people."""
    if type(model).__name__ == "DPMixture":
        from distclust.report.mixtures import print_mixture

        print_mixture(console(), facts)
        return
    from distclust.report.ensembles import print_ensemble

    print_ensemble(console(), facts)


def _say_written(views: Views) -> None:
    for name, path in views.written.items():
        console().print(f"{name.capitalize()} written to {path}", highlight=False, soft_wrap=True)


# ---- show ----------------------------------------------------------------------------------------


def show(model: Any, views: Views, foreign: Mapping[str, Any], common: Common) -> None:
    """Show the clusters of a model, as files where asked; `foreign` are options of trees."""
    for name, value in foreign.items():
        if value not in (None, False):
            got, hint = f"a {type(model).__name__}", "Leave it out."
            raise InputError(f"--{name}", "a model that is a tree", got, hint)
    n_rows = len(model.labels_)
    if common.plan:
        from distclust.report.plan import Plan

        n_features = int(getattr(model, "n_features_in_", 0))
        say_plan(Plan("show", n_rows, n_features, 0, 0, 0, 2.0), common)
        return
    if views.labels is not None:
        check_replaceable(views.labels, LABELS_START[:11], "labels")
    views.write(model, range(n_rows))  # a model knows its rows by their numbers
    facts = describe_any(model)
    if common.as_json:
        files = {name: str(path) for name, path in views.written.items()}
        print_json({"command": "show", **facts, "written": files})
    elif not common.quiet:
        print_any(model, facts)
        _say_written(views)
