"""The verbs around projections: fit kpca, transform, show."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distclust import events
from distclust.commands.common import (
    Common,
    check_events,
    check_output,
    console,
    followed,
    is_url,
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
from distclust.errors import InputError, StoreError

if TYPE_CHECKING:
    from distclust.commands.trees import Reading
    from distclust.projections import PPCA, KernelPCA

    Model = KernelPCA | PPCA

KINDS = ("KernelPCA", "PPCA")
SUFFIX = ".kpca"  # results of a store lie beside it, under its name and this


# ---- fit -----------------------------------------------------------------------------------------


def fit(source: str, fitting: Fitting, reading: Reading, common: Common) -> None:
    """Fit kernel PCA to a store or a table, keep the model, say what was found."""
    from distclust.commands.trees import read_input

    place = find_place(source, fitting, common, verb="fit kpca", suffix=SUFFIX)
    model = make_model(fitting.parameters, common.seed)
    rows: Any = read_input(source, reading)
    if common.plan:
        _plan(model, rows, fitting, common)
        return
    with resumable(place.store), followed(common), running(fitting.scheduler, fitting.workers):
        start = time.monotonic()
        with heard_of_resuming(common, _products_done(), "product") as resumed:
            model.fit(rows, results=place.results, fresh=fitting.fresh)
        seconds = time.monotonic() - start
    if place.store is None:
        model.save(place.path)
    _say_fit(model, place.path, seconds, resumed[0], common)


def _products_done() -> Callable[[events.Event], int | None]:
    """Return what finds out after which product a fit goes on: work that begins is at 0."""
    from distclust.projections import em, krylov

    is_first = [True]

    def look(event: events.Event) -> int | None:
        if event.stage not in (krylov.STAGE, em.STAGE):
            return None
        found = event.done if is_first[0] and event.done else None
        is_first[0] = False
        return found

    return look


def make_model(parameters: Mapping[str, Any], seed: int) -> KernelPCA:
    """Return the estimator that the options describe, not yet fitted."""
    from distclust.projections import KernelPCA
    from distclust.projections.kernels import find_function

    given = {name: value for name, value in parameters.items() if value is not None}
    kernel = given.get("kernel", "")
    if ":" in kernel:
        here = os.getcwd()
        if here not in sys.path:
            sys.path.insert(0, here)  # as for `python -m`; worker processes here get it, too
        given["kernel"] = find_function(kernel)
    return KernelPCA(random_state=seed, **given)


def _plan(model: KernelPCA, rows: Any, fitting: Fitting, common: Common) -> None:
    from distclust.engine import as_matrix
    from distclust.report.projections import plan_kernel_pca

    where = "KernelPCA.fit"
    matrix = as_matrix(rows, where=where)
    model._check_parameters(matrix.shape, where)
    with hands(fitting) as (n_processes, n_threads, memory):
        say_plan(plan_kernel_pca(model, matrix, n_processes, n_threads, memory), common)


def _say_fit(
    model: KernelPCA, place: str, seconds: float, resumed: int | None, common: Common
) -> None:
    from distclust.report.projections import describe, print_projection

    facts = describe(model)
    if common.as_json:
        how = {"resumed_after": resumed, "seconds": seconds}
        print_json({"command": "fit", "model": place, **how, **facts})
    elif not common.quiet:
        screen = console()
        print_projection(screen, facts)
        say_where(screen, facts["version"], place, seconds)
        told = f"Project rows with: distclust transform {place} ROWS --out coordinates.csv"
        screen.print(told, highlight=False, soft_wrap=True)


# ---- transform -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transforming:
    """Where coordinates go, and where the work is done."""

    out: str | None = None  # standard output
    overwrite: bool = False
    scheduler: str | None = None
    workers: int | None = None


def transform(
    model_path: str, source: str, transforming: Transforming, reading: Reading, common: Common
) -> None:
    """Write the coordinates of rows by a saved model."""
    from distclust.commands.trees import check_same_columns, read_input
    from distclust.engine import as_matrix

    out = transforming.out
    form = _form(out)
    if out is not None:
        _check_free(out, form, transforming.overwrite, model_path, source)
    elif transforming.overwrite:
        hint = "Name a place with --out, or leave --overwrite out."
        raise InputError("--overwrite", "something to overwrite", "standard output", hint)
    others = [] if out is None or is_url(out) else [Path(out)]
    check_events(common, Path(source), Path(model_path), *others)
    model = load(model_path)
    table = read_input(source, reading)
    check_same_columns(model, table, source)
    matrix = as_matrix(table, columns=model._columns, where=source)
    if common.plan:
        from distclust.report.projections import plan_transform

        say_plan(plan_transform(model, matrix), common)
        return
    # A JSON document is printed at the end, and has all rows in it then.
    is_gathered = out is None and common.as_json
    rows: list[dict[str, Any]] = []
    with followed(common), running(transforming.scheduler, transforming.workers):
        start = time.monotonic()
        if is_gathered:
            rows = _gathered(model, table)
        else:
            _write(model, table, matrix.shape[0], out, form, transforming.overwrite)
        seconds = time.monotonic() - start
    facts = {"method": type(model).__name__, "n_rows": matrix.shape[0]}
    facts |= {"n_components": len(model.components_), "seconds": seconds}
    if common.as_json:
        target = {"rows": rows} if out is None else {"out": out, "form": form}
        print_json({"command": "transform", "model": model_path, **facts, **target})
    elif out is not None and not common.quiet:
        told = f"{facts['n_components']} coordinates of {facts['n_rows']:,} rows written to {out}"
        console().print(told, highlight=False, soft_wrap=True)


def _form(out: str | None) -> str:
    """Return what an output is, by its name."""
    if out is None:
        return "csv"
    for form in ("csv", "npy", "zarr"):
        if out.rstrip("/").endswith(f".{form}"):
            if is_url(out) and form != "zarr":
                break
            return form
    expected = "a name that ends in .csv, .npy or .zarr; URLs in .zarr"
    raise InputError("--out", expected, repr(out), "Choose such a name.")


def _check_free(out: str, form: str, overwrite: bool, *inputs: str) -> None:
    """Refuse an output that cannot be written, or that exists and is not to be replaced."""
    if form != "zarr":
        check_output(Path(out), *(Path(place) for place in inputs), is_model=False)
        if os.path.exists(out) and not overwrite:
            raise _occupied(out, "a file")
        return
    _check_no_input(out, *inputs)
    if is_url(out):
        if overwrite:
            hint = "Remove it first, or choose another name."
            raise InputError("--overwrite", "a place on this machine", out, hint)
        return
    if os.path.isfile(out):
        raise InputError(out, "a store to write to", "a file", "Choose another name with --out.")
    if not os.path.isdir(out) or not os.listdir(out):
        return
    from distclust.projections.streaming import check_coordinates
    from distclust.store.objects import open_objects
    from distclust.store.removal import has_begun

    if has_begun(open_objects(out)) and not _is_complete(out):
        return  # what a killed transform left
    if not overwrite:
        raise _occupied(out, "something")
    check_coordinates(out)


def _check_no_input(out: str, *inputs: str) -> None:
    if os.path.realpath(out) in {os.path.realpath(place) for place in inputs}:
        hint = "Choose another name with --out."
        raise InputError(out, "an output apart from the inputs", "an input", hint)


def _is_complete(place: str) -> bool:
    from distclust.store.matrix_store import open_store

    try:
        open_store(place)
    except StoreError:
        return False
    return True


def _occupied(out: str, what: str) -> InputError:
    hint = "Choose another name with --out, or pass --overwrite."
    return InputError(out, "nothing there yet", f"{what} that exists", hint)


def _write(
    model: Model, table: Any, n_rows: int, out: str | None, form: str, overwrite: bool
) -> None:
    from distclust.projections import streaming

    n_components = len(model.components_)
    pieces = streaming.transform_blocks(model, table)
    if out is None:
        for text in streaming.csv_texts(pieces, n_components):
            sys.stdout.write(text)
    elif form == "csv":
        streaming.write_csv(Path(out), pieces, n_components)
    elif form == "npy":
        streaming.write_npy(Path(out), pieces, (n_rows, n_components))
    else:
        streaming.write_store(out, pieces, n_components, overwrite=overwrite)


def _gathered(model: Model, table: Any) -> list[dict[str, Any]]:
    from distclust.projections.streaming import transform_blocks

    return [
        {"row": row_id, "coordinates": values}
        for ids, part in transform_blocks(model, table)
        for row_id, values in zip(ids.tolist(), part.tolist(), strict=True)
    ]


def load(path: str) -> Model:
    """Read a projection from a file or a results store."""
    from distclust.loading import load as load_any
    from distclust.projections.base import Projection

    model: Model = load_any(path)
    if not isinstance(model, Projection):
        hint = "Place rows in clusters of a model with `distclust predict`."
        raise InputError(path, f"a model among {', '.join(KINDS)}", type(model).__name__, hint)
    return model


# ---- show ----------------------------------------------------------------------------------------


def show(model: Model, foreign: Mapping[str, Any], common: Common) -> None:
    """Show the components of a model; `foreign` are options that only trees have."""
    from distclust.report.projections import describe, print_projection

    for name, value in foreign.items():
        if value not in (None, False):
            got, hint = f"a {type(model).__name__}", "Leave it out."
            raise InputError(f"--{name}", "a model that is a tree", got, hint)
    if common.plan:
        from distclust.report.plan import Plan

        n_rows = model.components_.shape[1] if hasattr(model, "eigenvalues_") else 0
        say_plan(Plan("show", n_rows, int(model.n_features_in_), 0, 0, 0, 2.0), common)
        return
    facts = describe(model)
    if common.as_json:
        print_json({"command": "show", **facts})
    elif not common.quiet:
        print_projection(console(), facts)
