"""A model of what a large fit costs, fitted to measured runs and checked on another.

The model is :class:`distclust.report.plan.LargeCost`, linear in its rates. The rates are
fitted by non-negative least squares of relative errors to runs of different rows, columns
and workers, with the clusters and passes that each run had; the run it is checked on was not
among them. Its answer for a billion rows on a
hundred workers goes far beyond this machine: it supposes that storage keeps up with the
workers, and that a network moves the stated bytes.
"""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize

import distclust
from benchmarks.large import fit_apart
from benchmarks.problem import Problem, Results, Size, table
from distclust.report.plan import LargeCost, LargeRates, duration, size
from distclust.trees.estimators import RandomizedBHC

CLUSTERS = 200
FITTED_RATES = ("start", "row", "number")
# Measured by themselves: a pass over a store whose tasks do nothing, such a task, a value that is
# read and not looked at, and the tables of a filter of 200 components for 64 columns.
EACH_PASS, EACH_RESULT, VALUE, SCORE = 0.05, 0.004, 2.5e-10, 240e-9 / (64 * 200)


@dataclass(frozen=True)
class Run:
    """A measured fit."""

    rows: int
    columns: int
    workers: int


@dataclass(frozen=True)
class Runs:
    """Runs to fit the rates to, others to hold the model against, and one nobody has made.

    Attributes
    ----------
    fitted, checked
        The model is fitted to the first and has to hold for the second.
    unclear
        Rows with so few columns that the planted clusters overlap: filters then have many
        more components than there are clusters, which the model cannot know beforehand.
    """

    fitted: tuple[Run, ...]
    checked: Run
    unclear: tuple[Run, ...]
    clusters: int
    asked: Run = Run(1_000_000_000, 64, 100)


def make_runs(size: Size) -> Runs:
    """A design over rows, columns and workers."""
    if size == "toy":
        return Runs((Run(3000, 16, 1), Run(5000, 32, 1)), Run(4000, 16, 1), (), 5)
    return Runs(
        (
            Run(300_000, 64, 1),
            Run(1_000_000, 64, 2),
            Run(5_000_000, 64, 1),
            Run(5_000_000, 64, 2),
            Run(10_000_000, 64, 1),
            Run(1_000_000, 256, 1),
            Run(2_000_000, 256, 2),
        ),
        Run(6_000_000, 128, 2),
        (Run(5_000_000, 32, 1), Run(5_000_000, 32, 2)),
        CLUSTERS,
    )


def run_plan(runs: Runs) -> Results:
    """Measure, fit, check, ask."""
    every = (*runs.fitted, runs.checked, *runs.unclear)
    return conclude(runs, [_measured(run, runs.clusters) for run in every])


def conclude(runs: Runs, measured: list[dict[str, Any]]) -> Results:
    """Fit the rates, hold the model against all runs, and ask it about the last."""
    every = (*runs.fitted, runs.checked, *runs.unclear)
    roles = ["fitted"] * len(runs.fitted) + ["checked"] + ["unclear"] * len(runs.unclear)
    shapes = [_Shape(m["n_leaves"], m["n_passes"]) for m in measured]
    pairs = list(zip(every, shapes, strict=True))
    seconds = np.array([m["seconds"] for m in measured])
    columns = np.array([_columns(run, shape) for run, shape in pairs])
    base = np.array([_cost(run, shape, _rates({})).seconds for run, shape in pairs])
    train = slice(0, len(runs.fitted))
    weights = 1.0 / seconds[train]
    found, _ = scipy.optimize.nnls(
        columns[train] * weights[:, None], np.maximum(seconds - base, 0.0)[train] * weights
    )
    rates = dict(zip(FITTED_RATES, found.tolist(), strict=True))
    told = []
    for i, (run, shape) in enumerate(pairs):
        cost = _cost(run, shape, _rates(rates))
        told.append(
            {
                **dataclasses.asdict(run),
                **dataclasses.asdict(shape),
                "role": roles[i],
                "seconds": float(seconds[i]),
                "model": cost.seconds,
                "worker_bytes": measured[i]["worker_bytes"],
                "model_bytes": cost.memory_bytes,
            }
        )
    most_passes = max(shape.passes for shape in shapes[: len(runs.fitted)])
    asked = _cost(runs.asked, _Shape(runs.clusters, most_passes), _rates(rates))
    figures = ("seconds", "memory_bytes", "read_bytes", "moved_bytes", "disk_bytes", "passes")
    return {
        "rates": rates,
        "runs": told,
        "asked": {
            **dataclasses.asdict(runs.asked),
            **{name: getattr(asked, name) for name in figures},
        },
    }


def _measured(run: Run, n_clusters: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    profiles = random.beta(0.5, 0.5, (n_clusters, run.columns)).astype(np.float32)
    X = np.empty((run.rows, run.columns), np.uint8)
    for start in range(0, run.rows, 100_000):
        y = random.integers(0, n_clusters, min(100_000, run.rows - start))
        noise = random.random((len(y), run.columns), dtype=np.float32)
        X[start : start + len(y)] = noise < profiles[y]
    with tempfile.TemporaryDirectory() as folder:
        distclust.ingest(X, f"{folder}/rows.zarr")
        del X
        options = ("--workers", str(run.workers), "--memory")
        return fit_apart("RandomizedBHC", f"{folder}/rows.zarr", folder, *options)


@dataclass(frozen=True)
class _Shape:
    """What a fit found: clusters, and passes that moved rows."""

    clusters: int
    passes: int


def _cost(run: Run, shape: _Shape, rates: LargeRates) -> LargeCost:
    return LargeCost(
        run.rows,
        run.columns,
        run.workers,
        sample_size=RandomizedBHC()._method(run.columns, "plan").settings.sample_size,
        n_clusters=shape.clusters,
        moving_passes=shape.passes,
        rates=rates,
    )


def _rates(values: dict[str, float]) -> LargeRates:
    """Rates that are fitted, zero where not given, and those measured by themselves."""
    given = {name: values.get(name, 0.0) for name in FITTED_RATES}
    return LargeRates(
        start=given["start"],
        each_pass=EACH_PASS,
        each_task=0.0,
        each_result=EACH_RESULT,
        value=VALUE,
        row=given["row"],
        score={"": SCORE},
        pair=0.0,
        number={"": given["number"]},
    )


def _columns(run: Run, shape: _Shape) -> list[float]:
    """Seconds of a run for one unit of each rate: the model is linear in them."""
    nothing = _cost(run, shape, _rates({})).seconds
    return [_cost(run, shape, _rates({name: 1.0})).seconds - nothing for name in FITTED_RATES]


def summarise_plan(results: Results) -> str:
    """Measured against the model, and the answer."""
    lines = [
        [
            f"{run['rows']:,}",
            str(run["columns"]),
            str(run["workers"]),
            str(run["clusters"]),
            str(run["passes"]),
            f"{run['seconds']:.2f}",
            f"{run['model']:.2f}",
            f"{run['model'] / run['seconds']:.2f}",
            f"{run['worker_bytes'] / 1e6:.0f}",
            f"{run['model_bytes'] / 1e6:.0f}",
            run["role"],
        ]
        for run in results["runs"]
    ]
    header = [
        "rows", "columns", "workers", "clusters", "moving passes", "seconds", "model", "ratio",
        "MB of a worker", "model", "",
    ]  # fmt: skip
    rates = ", ".join(f"{name} {value:.2g}" for name, value in results["rates"].items())
    asked = results["asked"]
    return "\n\n".join(
        [
            table(header, lines),
            f"Rates in seconds: {rates}.",
            f"{asked['rows']:,} rows of {asked['columns']} columns on {asked['workers']} workers: "
            f"{duration(asked['seconds'])}, {asked['passes']} passes, "
            f"{size(asked['memory_bytes'])} a worker, {size(asked['read_bytes'])} read from the "
            f"store, {size(asked['moved_bytes'])} between processes, "
            f"{size(asked['disk_bytes'])} written.",
        ]
    )


def problems() -> list[Problem]:
    """The problems of this module."""
    return [
        Problem(
            "large-plan",
            "a model of time and memory, fitted to runs and checked on another",
            make_runs,
            run_plan,
            summarise_plan,
        )
    ]
