"""The verbs around fitted trees: fit, predict, show, demo, doctor."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distclust.commands import large
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

    from distclust.report.hierarchy import Walk
    from distclust.store import Matrix
    from distclust.store.results import ResultsStore
    from distclust.store.tables import Table
    from distclust.trees.base import TreeEstimator as Model


OPTIONS = {"n_sweeps": "--sweeps"}  # parameters whose option has another name


@dataclass(frozen=True)
class Reading:
    """How to read the input table."""

    ids: str | None = None
    drop: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fitting:
    """Parameters of a fit; what is None keeps the estimator's own default.

    `fresh` discards an unfinished fit of a store instead of going on with it.
    """

    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool = False

    @property
    def is_large(self) -> bool:
        """Whether the method works by passes over data of any size."""
        return self.method in ("rbhc", "embhc")


def fit(
    source: str,
    out: str | None,
    fitting: Fitting,
    reading: Reading,
    scheduler: str | None,
    common: Common,
) -> None:
    """Fit a tree to a table, save the model, say what was found; a plan needs no place for it."""
    from distclust.report.summary import summarise

    by_passes = fitting.is_large and large.is_store(source)
    if fitting.fresh and not by_passes:
        got, hint = f"{fitting.method} of {source}", "Leave --fresh out."
        raise InputError("--fresh", "a fit that resumes: rbhc or embhc of a store", got, hint)
    results = None
    if out is not None:
        results = large.open_results(out) if by_passes else _results_store(out)
        if results is None:
            check_output(Path(out), Path(source))
        check_events(common, Path(source), Path(out))
    model: Any = make_model(fitting, common.seed)
    table: Any = read_input(source, reading)
    if common.plan:
        _plan(model, table, fitting, scheduler, common)
        return
    assert out is not None, "only a plan needs none"
    if by_passes:
        large.fit(table, out, model, scheduler, common, fresh=fitting.fresh)
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


def _plan(model: Any, table: Any, fitting: Fitting, scheduler: str | None, common: Common) -> None:
    from distclust.report.plan import plan_fit

    if fitting.is_large:
        large.plan(model, table, scheduler, common)
    else:
        say_plan(plan_fit(model, table), common)


def _results_store(out: str) -> ResultsStore | None:
    """Return the results store that an output names, or None for a file."""
    if not (is_url(out) or out.endswith(os.sep) or os.path.isdir(out)):
        return None
    return large.open_results(out)


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


@dataclass(frozen=True)
class Predicting:
    """What to say of each row; `fresh` discards unfinished labels of a store."""

    probabilities: bool = False
    fresh: bool = False


def predict(
    model_path: str,
    source: str,
    out: str | None,
    predicting: Predicting,
    reading: Reading,
    scheduler: str | None,
    common: Common,
) -> None:
    """Place the rows of a table in the clusters of a model: a tree or a mixture."""
    if out is not None and large.is_store(source) and not out.endswith(".csv"):
        _label(model_path, source, out, predicting, reading, scheduler, common)
        return
    if predicting.fresh:
        got, hint = f"rows of {source}", "Leave --fresh out."
        raise InputError("--fresh", "labels of a store in a results store", got, hint)
    file = None if out is None else Path(out)
    _predict_table(model_path, source, file, predicting, reading, scheduler, common)


def _label(
    model_path: str,
    source: str,
    out: str,
    predicting: Predicting,
    reading: Reading,
    scheduler: str | None,
    common: Common,
) -> None:
    """Write labels of a store beside it, chunk by chunk."""
    if predicting.probabilities:
        hint = "Leave it out, or name a .csv file with --out."
        raise InputError("--proba", "predictions in a file", "a store of labels", hint)
    from distclust.commands.ensembles import is_ensemble

    check_events(common)
    model = _load_clusters(model_path)
    if is_ensemble(model):
        got, hint = "a results store", "Name a .csv file with --out."
        raise InputError("--out", "a file for clusters by an ensemble", got, hint)
    matrix: Any = read_input(source, reading)
    check_same_columns(model, matrix, source)
    large.label(model, matrix, out, scheduler, common, fresh=predicting.fresh)


def _predict_table(
    model_path: str,
    source: str,
    out: Path | None,
    predicting: Predicting,
    reading: Reading,
    scheduler: str | None,
    common: Common,
) -> None:
    """Print predictions, or write them to a CSV file."""
    if out is not None:
        check_output(out, Path(source), Path(model_path), is_model=False)
        check_replaceable(out, b"row,cluster,", "predictions")
    inputs = Path(source), Path(model_path)
    check_events(common, *inputs, *([] if out is None else [out]))
    model = _load_clusters(model_path)
    table = read_input(source, reading)
    check_same_columns(model, table, source)
    if common.plan:
        from distclust.report.plan import plan_predict

        n_components = model.tree_.n_nodes if hasattr(model, "tree_") else model.n_clusters_
        say_plan(plan_predict(table.shape[0], table.shape[1], n_components), common)
        return
    with followed(common), connected(scheduler):
        frame = _predictions(model, table, predicting.probabilities)
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
    node: int | None = None  # where a walk begins: the root
    depth: int | None = None  # of a walk

    @property
    def walks(self) -> bool:
        """Whether a walk was asked for."""
        return self.node is not None or self.depth is not None

    @property
    def of_trees(self) -> dict[str, Any]:
        """What can be asked of trees only, by the names of the options."""
        names = ("picture", "page", "labels", "newick", "threshold", "node", "depth")
        return {name: getattr(self, name) for name in names}


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
    model: Any = _load_any(model_path, with_labels=showing.labels is not None)
    if _is_projection(model):
        from distclust.commands import projections

        projections.show(model, showing.of_trees, common)
        return
    if _is_mixture(model):
        from distclust.commands import mixtures

        views = mixtures.Views(showing.picture, showing.labels)
        foreign = {n: v for n, v in showing.of_trees.items() if n not in ("picture", "labels")}
        mixtures.show(model, views, foreign, common)
        return
    _check_tree(model, model_path)
    if showing.labels is not None:
        _check_holds_rows(model, model_path)
    if common.plan:
        from distclust.report.plan import Plan
        from distclust.report.summary import count_rows

        n_rows, n_features = count_rows(model), int(model.n_features_in_)
        disk = _size(model_path) if written else 0
        say_plan(Plan("show", n_rows, n_features, 0, 2 * disk, disk, 2.0), common)
        return
    found = _walk(model, model_path, showing)
    _write_views(model, showing)
    _say_model(model, showing, found, written, common)


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
    from distclust.trees import BHC, EMBHC, BayesianRoseTree, RandomizedBHC

    kinds: dict[str, Any] = {
        "bhc": BHC,
        "rose": BayesianRoseTree,
        "rbhc": RandomizedBHC,
        "embhc": EMBHC,
    }
    kind = kinds[fitting.method]
    given = {name: value for name, value in fitting.parameters.items() if value is not None}
    foreign = [name for name in given if name not in signature(kind).parameters]
    if foreign:
        option = OPTIONS.get(foreign[0], f"--{foreign[0].replace('_', '-')}")
        takers = [name for name in kinds if foreign[0] in signature(kinds[name]).parameters]
        hint = f"Leave it out, or fit {' or '.join(takers)}."
        raise InputError(f"fit {fitting.method}", "options of that method", option, hint)
    model: Model = kind(random_state=seed, **given)
    return model


def check_same_columns(model: Model, table: Table | Matrix, source: str) -> None:
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


def _load_clusters(path: str) -> Any:
    """Read a model that places rows in clusters."""
    model = _load_any(path, with_labels=True)
    if not _is_mixture(model):
        _check_tree(model, path)
    return model


def _is_projection(model: Any) -> bool:
    from distclust.commands.projections import KINDS

    return type(model).__name__ in KINDS


def _is_mixture(model: Any) -> bool:
    from distclust.commands.mixtures import KINDS

    return type(model).__name__ in KINDS


def _check_tree(model: Any, path: str) -> None:
    if hasattr(model, "tree_"):
        return
    hint = "Name another model."
    if _is_projection(model):
        hint = "Get the coordinates of rows with `distclust transform`."
    raise InputError(path, "a tree", f"a model of {type(model).__name__}", hint)


def _load_any(path: str, *, with_labels: bool) -> Any:
    from distclust.loading import load

    if not large.is_store(path):
        return load(path)
    from distclust.commands import mixtures, projections
    from distclust.store.results import ResultsStore
    from distclust.trees.labelling import KIND
    from distclust.trees.persistence import read_model

    results = ResultsStore(path)
    current = results.current()
    if current is not None and current.kind == KIND:
        hint = "Name the results of the fit."
        raise InputError(path, "a model", "labels of rows that a model gave", hint)
    if current is not None and current.kind in (*projections.KINDS, *mixtures.KINDS):
        return load(path)
    return read_model(results, with_labels=with_labels)


def _check_holds_rows(model: Model, path: str) -> None:
    """Refuse to list rows that only their store knows, and say where their labels are."""
    from distclust.report.summary import holds_rows

    if holds_rows(model):
        return
    place = f"{path.rstrip('/')}/versions/{getattr(model, 'version_', '...')}/labels"
    raise InputError(
        "--labels",
        "a model that knows its rows",
        "one of a store, in whose order the labels of all rows lie",
        f"Read the Zarr array {place}, or distclust.load({path!r}).labels_ in Python.",
    )


def _walk(model: Model, path: str, showing: Showing) -> Walk | None:
    """Return the part of the tree to show; None where the usual overview is wanted."""
    from distclust.report.hierarchy import DEPTH, walk
    from distclust.report.summary import cut_nodes
    from distclust.trees.large import LargeTreeEstimator

    if not (showing.walks or isinstance(model, LargeTreeEstimator)):
        return None
    tree, threshold = model.tree_, showing.threshold
    nodes = cut_nodes(model) if threshold is None else tree.cut_nodes(threshold)
    return walk(
        _levels(model, path),
        {int(node): label for label, node in enumerate(nodes.tolist())},
        node=showing.node,
        depth=DEPTH if showing.depth is None else showing.depth,
        n_features=showing.n_features,
    )


def _levels(model: Model, path: str) -> Mapping[str, Any]:
    """Return the description of the levels that lies beside the model, or make it."""
    from distclust.trees.levels import describe_levels
    from distclust.trees.stored_fits import LEVELS_FILE

    if large.is_store(path):
        from distclust.store.results import ResultsStore

        with ResultsStore(path).open_version() as reader:
            if LEVELS_FILE in reader.version.files:
                described: dict[str, Any] = json.loads(reader.read(LEVELS_FILE))
                return described
    return describe_levels(model.tree_)


def read_input(source: str, reading: Reading) -> Table | Matrix:
    """Return a table from a file, or the matrix of a store."""
    if large.is_store(source):
        if reading != Reading():
            hint = "Leave --ids, --drop and --category out, or give them to distclust ingest."
            raise InputError(source, "a file when columns are named", "a store", hint)
        from distclust.engine import as_matrix

        return as_matrix(source)
    from distclust.store.tables import read_table

    return read_table(source, ids=reading.ids, drop=reading.drop, categories=reading.categories)


def names_of_rows(table: Table | Matrix) -> Any:
    """Return the names of the rows of an input, or their numbers."""
    from distclust.store import Matrix
    from distclust.store.tables import row_names

    if isinstance(table, Matrix):
        return table.row_ids
    return row_names(table) or range(table.shape[0])


def _predictions(model: Model, table: Table | Matrix, probabilities: bool) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    from distclust.commands.ensembles import is_ensemble, place
    from distclust.trees.large import LargeTreeEstimator

    if is_ensemble(model):
        return place(model, table, names_of_rows(table), probabilities)
    chances = np.asarray(model.predict_proba(table))
    # Models of data of any size place rows by their filters, not by these chances alone.
    by_filters = isinstance(model, LargeTreeEstimator)
    labels = model.predict(table) if by_filters else chances.argmax(axis=1)
    frame = pd.DataFrame({"row": names_of_rows(table)})
    frame["cluster"] = labels
    frame["probability"] = chances[np.arange(len(chances)), labels]
    frame["log_density"] = np.asarray(model.score_samples(table))
    return with_probabilities(frame, chances) if probabilities else frame


def with_probabilities(frame: pd.DataFrame, chances: Any) -> pd.DataFrame:
    """Return predictions with a column for each cluster."""
    import pandas as pd

    each = pd.DataFrame(chances, columns=[f"cluster_{c}" for c in range(chances.shape[1])])
    return pd.concat([frame, each], axis=1)


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
        import numpy as np
        import pandas as pd

        labels = np.asarray(model.labels_) if threshold is None else tree.cut(threshold)
        frame = pd.DataFrame({"row": tree.row_ids, "cluster": labels})
        write_csv(showing.labels, frame)


def _say_model(
    model: Model,
    showing: Showing,
    found: Walk | None,
    written: Mapping[str, Path],
    common: Common,
) -> None:
    from distclust.report.hierarchy import print_walk
    from distclust.report.summary import summarise
    from distclust.report.terminal import headline, print_summary

    if showing.newick and not common.as_json:
        print(model.tree_.newick())
        return
    summary = summarise(model, threshold=showing.threshold, n_features=showing.n_features)
    if common.as_json:
        files = {name: str(path) for name, path in written.items()}
        newick = {"newick": model.tree_.newick()} if showing.newick else {}
        walked = {} if found is None else found.as_dict()
        print_json({"command": "show", **summary.as_dict(), **walked, **newick, "written": files})
        return
    if common.quiet:
        return
    out = console()
    if found is None:
        out.print(model.tree_)
        out.print()
        print_summary(out, summary, features=False)
    else:
        for line in headline(summary):
            out.print(line, highlight=False)
        out.print()
        print_walk(out, found)
    for name, path in written.items():
        out.print(f"{name.capitalize()} written to {path}", highlight=False)
