"""Fits and labels of whole stores: work that is resumed, and whose results are versions."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from distclust.commands.common import (
    Common,
    connected,
    console,
    followed,
    is_url,
    print_json,
    say_plan,
)
from distclust.errors import InputError

if TYPE_CHECKING:
    from distclust.mixtures.dp_mixture import DPMixture
    from distclust.store import Matrix
    from distclust.store.results import ResultsStore
    from distclust.trees import EMBHC, RandomizedBHC
    from distclust.trees.base import TreeEstimator

    LargeModel = RandomizedBHC | EMBHC

CLUSTERS_SHOWN = 20
RESUMES = "Interrupted; what is done is kept. Run the same command again: it resumes."


def is_store(source: str) -> bool:
    """Whether an input is a store rather than a file."""
    return is_url(source) or os.path.isdir(source)


def open_results(out: str, option: str = "--out") -> ResultsStore:
    """Return the results store that an output names; refuse a folder of other things."""
    from distclust.store.results import ResultsStore

    hint = f"Choose another name with {option}."
    if os.path.isfile(out):
        raise InputError(out, "a results store, or nothing", "a file", hint)
    results = ResultsStore(out)
    # A store of ours may hold no version yet: a fit that was killed, for instance.
    if os.path.isdir(out) and os.listdir(out) and ".distclust" not in os.listdir(out):
        got = "a folder with other things"
        raise InputError(out, "a file, a results store or an empty folder", got, hint)
    return results


def fit(
    matrix: Matrix,
    out: str,
    model: LargeModel,
    scheduler: str | None,
    common: Common,
    *,
    fresh: bool,
) -> None:
    """Fit the rows of a store beside a results store, or go on with a fit that was cut off."""
    results = open_results(out)
    _check_family(model)
    resumed = None if fresh else _passes_done(model, matrix, results)
    if resumed is not None and not common.quiet:
        print(f"distclust: resuming after {_named(resumed)}", file=sys.stderr)
    with _resumable(), followed(common), connected(scheduler):
        start = time.monotonic()
        model.fit(matrix, results=out, fresh=fresh)
        seconds = time.monotonic() - start
    _say_fit(model, out, seconds, resumed, common)


def plan(model: LargeModel, table: Any, scheduler: str | None, common: Common) -> None:
    """Print what a fit by passes would cost, from shapes alone."""
    from distclust.report.plan import plan_large

    _check_family(model)
    say_plan(plan_large(model, table, count_threads(scheduler)), common)


def count_threads(scheduler: str | None) -> int:
    """Return the threads that would do the work; starts nothing."""
    from distclust.engine import allowed_cores, current_client, local_threads

    if scheduler == "local":
        return allowed_cores()
    if scheduler in (None, "threads"):
        return local_threads()
    with connected(scheduler):
        client = current_client()
        return max(1, sum(client.nthreads().values())) if client is not None else 1


def _check_family(model: LargeModel) -> None:
    """Refuse a family that nobody knows before a folder is made for it."""
    from distclust.families import family_named

    if isinstance(model.family, str) and model.family != "auto":
        family_named(model.family, f"{type(model).__name__}.fit: family")


@contextmanager
def _resumable() -> Iterator[None]:
    """Say of an interrupt that nothing is lost by it."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(RESUMES) from error


def _passes_done(model: LargeModel, matrix: Matrix, results: ResultsStore) -> int | None:
    """Return after which pass an unfinished fit of the same work goes on; None: there is none."""
    from distclust.store.checkpoints import Checkpoints
    from distclust.trees.persistence import identity_of

    fingerprint = str(matrix.fingerprint)  # type: ignore[attr-defined]
    run = results.find_run(**identity_of(model, fingerprint))
    saved = None if run is None else Checkpoints(results.objects, run).latest()
    return None if saved is None else saved.step


def _named(n_passes: int) -> str:
    return f"pass {n_passes}" if n_passes else "the first sample"


def _say_fit(
    model: LargeModel, out: str, seconds: float, resumed: int | None, common: Common
) -> None:
    from distclust.report.summary import summarise

    summary = summarise(model, n_clusters=CLUSTERS_SHOWN)
    disagreement = getattr(model, "filter_disagreement_", None)
    facts = {
        "version": model.version_,
        "n_passes": model.n_passes_,
        "n_leaves": model.tree_.n_leaves,
        "filter_disagreement": disagreement,
        "resumed_after": resumed,
        "seconds": seconds,
    }
    if common.as_json:
        print_json({"command": "fit", "model": out, **facts, **summary.as_dict()})
    elif not common.quiet:
        from distclust.report.terminal import print_summary

        screen = console()
        print_summary(screen, summary)
        told = "1 pass" if model.n_passes_ == 1 else f"{model.n_passes_} passes"
        told += f" moved rows; {seconds:,.1f} s"
        if disagreement is not None:
            told += f"; the cheaper filter differs on {100 * disagreement:.2g} % of compared rows"
        screen.print(f"{told}.", highlight=False)
        screen.print(f"Version {model.version_} is now current in {out}", highlight=False)
        screen.print(f"Walk the tree with: distclust show {out}", highlight=False, soft_wrap=True)


def label(
    model: TreeEstimator | DPMixture,
    matrix: Matrix,
    out: str,
    scheduler: str | None,
    common: Common,
    *,
    fresh: bool,
) -> None:
    """Write the labels of all rows of a store into a results store."""
    from distclust.trees.labelling import label_store

    results = open_results(out)
    if common.plan:
        from distclust.report.plan import plan_label

        n_components = model.tree_.n_leaves if hasattr(model, "tree_") else model.n_clusters_
        say_plan(plan_label(*matrix.shape, n_components, count_threads(scheduler)), common)
        return
    with _resumable(), followed(common), connected(scheduler):
        version = label_store(model, matrix, results, fresh=fresh, **_how_labelled(model))
    place = f"{out.rstrip('/')}/versions/{version.id}/labels"
    if common.as_json:
        facts = {"out": out, "version": version.id, "labels": place}
        print_json({"command": "predict", **facts, **version.metrics})
    elif not common.quiet:
        n_rows, n_used = version.metrics["n_rows"], sum(n > 0 for n in version.metrics["counts"])
        screen = console()
        told = f"{n_rows:,} labels of {n_used:,} clusters written: version {version.id} in {out}"
        screen.print(told, highlight=False, soft_wrap=True)
        screen.print(f"They are a Zarr array, {place}", highlight=False, soft_wrap=True)


def _how_labelled(model: Any) -> dict[str, Any]:
    """Return what labelling by a mixture needs to know; trees are known to it."""
    if hasattr(model, "tree_"):
        return {}
    import numpy as np

    from distclust.mixtures.persistence import to_archive
    from distclust.trees.labelling import Placing, likeliest

    arguments = (model.family_, model._stats, np.log(model._stats[:, 0]))
    return {"placing": Placing(likeliest, arguments), "archive": to_archive(model)}
