"""The verbs around fitted trees: fit, predict, show, demo, doctor."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distclust.commands.common import (
    Common,
    check_events,
    check_output,
    check_replaceable,
    connected,
    console,
    followed,
    is_url,
    print_json,
    say_plan,
)
from distclust.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from distclust.store import Matrix
    from distclust.store.results import ResultsStore
    from distclust.store.tables import Table
    from distclust.trees import BHC, BayesianRoseTree

    Model = BHC | BayesianRoseTree


@dataclass(frozen=True)
class Reading:
    """How to read the input table."""

    ids: str | None = None
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fitting:
    """Parameters of a fit; what is None keeps the estimator's own default."""

    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


def fit(
    source: str,
    out: str,
    fitting: Fitting,
    reading: Reading,
    scheduler: str | None,
    common: Common,
) -> None:
    """Fit a tree to a table, save the model, say what was found."""
    from distclust.report.summary import summarise

    results = _results_store(out)
    if results is None:
        check_output(Path(out), Path(source))
    check_events(common, Path(source), Path(out))
    table = _read(source, reading)
    model = make_model(fitting, common.seed)
    if common.plan:
        from distclust.report.plan import plan_fit

        say_plan(plan_fit(model, table), common)
        return
    with followed(common), connected(scheduler):
        model.fit(table)
    version = _keep(model, out, results, _fingerprint(source, table, reading))
    summary = summarise(model)
    if common.as_json:
        print_json({"command": "fit", "model": out, **version, **summary.as_dict()})
    elif not common.quiet:
        from distclust.report.terminal import print_summary

        print_summary(console(), summary)
        made = f"Version {version['version']} is now current in" if version else "Model written to"
        console().print(f"{made} {out}", highlight=False)


def _results_store(out: str) -> ResultsStore | None:
    """Return the results store that an output names, or None for a file."""
    if not (is_url(out) or out.endswith(os.sep) or os.path.isdir(out)):
        return None
    from distclust.store.results import ResultsStore

    results = ResultsStore(out)
    if os.path.isdir(out) and os.listdir(out) and not results.names():
        got, hint = "a folder with other things", "Choose another name with --out."
        raise InputError(out, "a file, a results store or an empty folder", got, hint)
    return results


def _keep(model: Model, out: str, results: ResultsStore | None, fingerprint: str) -> dict[str, str]:
    """Save a model, or publish it; return what there is to say about the version."""
    if results is None:
        model.save(out)
        return {}
    from distclust.trees.persistence import publish_model

    return {"version": publish_model(model, results, fingerprint).id}


def _fingerprint(source: str, table: Table | Matrix, reading: Reading) -> str:
    """Tell one input from another: by the store's own fingerprint, or by the file's bytes."""
    stored = getattr(table, "fingerprint", None)
    if stored is not None:
        return str(stored)
    digest = hashlib.blake2b(repr(reading).encode(), digest_size=16)
    if os.path.isfile(source):
        with open(source, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()


def predict(
    model_path: str,
    source: str,
    out: Path | None,
    probabilities: bool,
    reading: Reading,
    scheduler: str | None,
    common: Common,
) -> None:
    """Place the rows of a table in the clusters of a model."""
    if out is not None:
        check_output(out, Path(source), Path(model_path), is_model=False)
        check_replaceable(out, b"row,cluster,", "predictions")
    inputs = Path(source), Path(model_path)
    check_events(common, *inputs, *([] if out is None else [out]))
    model = _load(model_path)
    table = _read(source, reading)
    _check_same_columns(model, table, source)
    if common.plan:
        from distclust.report.plan import plan_predict

        say_plan(plan_predict(table.shape[0], table.shape[1], model.tree_.n_nodes), common)
        return
    with followed(common), connected(scheduler):
        frame = _predictions(model, table, probabilities)
    if out is not None:
        from distclust.store.files import write_csv

        write_csv(out, frame)
    if common.as_json:
        rows = frame.to_dict(orient="records") if out is None else []
        target = {"out": str(out)} if out is not None else {"rows": rows}
        print_json({"command": "predict", "n_rows": len(frame), **target})
    elif out is None:
        sys.stdout.write(frame.to_csv(index=False))
    elif not common.quiet:
        console().print(f"{len(frame):,} predictions written to {out}", highlight=False)


@dataclass(frozen=True)
class Showing:
    """What to show of a model, and where to put it."""

    picture: Path | None = None
    page: Path | None = None
    labels: Path | None = None
    newick: bool = False
    threshold: float | None = None  # the model's own cut
    n_features: int = 4


def show(model_path: str, showing: Showing, common: Common) -> None:
    """Show a model in the terminal, and as files where asked."""
    outputs = {
        "picture": showing.picture,
        "page": showing.page,
        "labels": showing.labels,
    }
    written = {name: path for name, path in outputs.items() if path is not None}
    for path in written.values():
        check_output(path, Path(model_path), is_model=False)
    if showing.picture is not None:
        from distclust.report.pictures import check_picture_path

        check_picture_path(showing.picture)
    model = _load(model_path)
    if common.plan:
        from distclust.report.plan import Plan

        n_rows, n_features = len(model.tree_.leaf_of_row), int(model.n_features_in_)
        disk = _size(model_path) if written else 0
        say_plan(Plan("show", n_rows, n_features, 0, 2 * disk, disk, 2.0), common)
        return
    _write_views(model, showing)
    _say_model(model, showing, written, common)


def doctor(scheduler: str | None, common: Common) -> int:
    """Look at versions, threads, memory, disk and the cluster; return the exit code."""
    from distclust.engine import doctor as examine

    if common.plan:
        from distclust.report.plan import Plan

        say_plan(Plan("doctor", 0, 0, 0, 0, 0, 2.0), common)
        return 0
    with connected(scheduler):
        facts = examine()
    if common.as_json:
        print_json({"command": "doctor", **facts})
    else:
        from distclust.report.terminal import print_doctor

        print_doctor(console(), facts)
    return 1 if facts.get("problems") else 0


def demo(out: Path, scheduler: str, common: Common) -> None:
    """Cluster an invented field notebook and draw what was found."""
    from distclust.report import demo as script
    from distclust.report.demo_data import field_notebook

    if common.plan:
        say_plan(script.plan(), common)
        return
    notebook = field_notebook(common.seed)
    is_told = not (common.as_json or common.quiet)
    if is_told:
        console().print(script.introduction(notebook), "\n", highlight=False)
    with followed(common), connected(scheduler, workers=2, threads=1):
        found = script.run(notebook, common.seed)
    written = script.write(found, out)
    if common.as_json:
        print_json({"command": "demo", **found.as_dict(), "written": written})
    elif is_told:
        script.tell(console(), found, written)


def make_model(fitting: Fitting, seed: int) -> Model:
    """Return the estimator that the arguments describe, not yet fitted."""
    from distclust.trees import BHC, BayesianRoseTree

    kind = {"bhc": BHC, "rose": BayesianRoseTree}[fitting.method]
    given = {name: value for name, value in fitting.parameters.items() if value is not None}
    foreign = [name for name in given if name not in signature(kind).parameters]
    if foreign:
        where, hint = f"fit {fitting.method}", "Leave it out, or fit a rose tree."
        raise InputError(where, "options of that method", f"--{foreign[0]}", hint)
    model: Model = kind(random_state=seed, **given)
    return model


def _check_same_columns(model: Model, table: Table | Matrix, source: str) -> None:
    """Say in terms of the command line which columns differ from those of the fit."""
    known = getattr(model, "feature_names_in_", None)
    found = [getattr(column, "name", column) for column in getattr(table, "columns", [])]
    if known is None or not found or list(known) == found:
        return
    extra = [name for name in found if name not in set(known)]
    lacking = [name for name in known if name not in set(found)]
    got, hint = "the same in another order", "Reorder them."
    if lacking:
        got, hint = f"none named {lacking[0]!r}", "Add that column."
    elif extra:
        got, hint = f"{extra[0]!r} as well", f"Pass --drop {shlex.quote(str(extra[0]))}."
    raise InputError(source, "the columns of the fit", got, hint)


def _size(model_path: str) -> int:
    """Bytes of a model file, or of the current version of a results store."""
    if os.path.isfile(model_path):
        return os.path.getsize(model_path)
    from distclust.store.results import ResultsStore

    version = ResultsStore(model_path).current()
    return 0 if version is None else version.size


def _load(path: str) -> Model:
    from distclust.trees import load

    model: Model = load(path)
    return model


def _read(source: str, reading: Reading) -> Table | Matrix:
    """Return a table from a file, or the matrix of a store."""
    if is_url(source) or os.path.isdir(source):
        if reading != Reading():
            hint = "Leave --ids, --drop and --category out, or give them to distclust ingest."
            raise InputError(source, "a file when columns are named", "a store", hint)
        from distclust.engine import as_matrix

        return as_matrix(source)
    from distclust.store.tables import read_table

    return read_table(source, ids=reading.ids, drop=reading.drop, categories=reading.categories)


def _row_names(table: Table | Matrix) -> Any:
    from distclust.store import Matrix
    from distclust.store.tables import row_names

    if isinstance(table, Matrix):
        return table.row_ids
    return row_names(table) or range(table.shape[0])


def _predictions(model: Model, table: Table | Matrix, probabilities: bool) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    chances = np.asarray(model.predict_proba(table))
    frame = pd.DataFrame({"row": _row_names(table)})
    frame["cluster"] = chances.argmax(axis=1)
    frame["probability"] = chances.max(axis=1)
    frame["log_density"] = np.asarray(model.score_samples(table))
    if probabilities:
        each = pd.DataFrame(chances, columns=[f"cluster_{c}" for c in range(chances.shape[1])])
        frame = pd.concat([frame, each], axis=1)
    return frame


def _write_views(model: Model, showing: Showing) -> None:
    from distclust.report import pictures
    from distclust.store.files import write_csv, write_text

    tree, threshold = model.tree_, showing.threshold
    level = model.threshold if threshold is None else threshold  # for pictures
    if showing.picture is not None:
        pictures.write_picture(showing.picture, tree, threshold=level)
    if showing.page is not None:
        from distclust.report.page import render
        from distclust.report.summary import summarise

        summary = summarise(model, threshold=threshold, n_features=showing.n_features)
        title = f"{summary.n_clusters:,} clusters of {summary.n_rows:,} rows"
        lead = "A Bayesian hierarchy, its natural cut and how sure it is."
        page = render(summary, tree, title=title, lead=lead, threshold=level)
        write_text(showing.page, page)
    if showing.labels is not None:
        import pandas as pd

        labels = model.labels_ if threshold is None else tree.cut(threshold)
        frame = pd.DataFrame({"row": tree.row_ids, "cluster": labels})
        write_csv(showing.labels, frame)


def _say_model(model: Model, showing: Showing, written: Mapping[str, Path], common: Common) -> None:
    from distclust.report.summary import summarise
    from distclust.report.terminal import print_summary

    if showing.newick and not common.as_json:
        print(model.tree_.newick())
        return
    summary = summarise(model, threshold=showing.threshold, n_features=showing.n_features)
    if common.as_json:
        files = {name: str(path) for name, path in written.items()}
        newick = {"newick": model.tree_.newick()} if showing.newick else {}
        print_json({"command": "show", **summary.as_dict(), **newick, "written": files})
        return
    if common.quiet:
        return
    out = console()
    out.print(model.tree_)
    out.print()
    print_summary(out, summary, features=False)
    for name, path in written.items():
        out.print(f"{name.capitalize()} written to {path}", highlight=False)
