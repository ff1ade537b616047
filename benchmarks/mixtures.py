"""Dirichlet-process mixtures: speed against other samplers and variational Bayes, and workers.

Rows are 20,000 x 10, from 8 or 30 Gaussian clusters of unequal weight whose columns are
independent and which overlap. 2,000 more rows of the same kind are predicted. All methods run
one after another in processes of their own on the same core, several rounds of them; see
`mixtures_methods` for what is on the clock.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.mixtures_methods import METHODS, is_installed, resolved
from benchmarks.problem import Problem, Results, Size, table
from distclust import DPMixture
from distclust.engine import connect
from distclust.mixtures.chains import run_chains
from distclust.mixtures.concentration import EscobarWest
from distclust.mixtures.urn import UrnSampler

Doubles = npt.NDArray[np.float64]

COLUMNS = 10
NEAR = 0.01  # nats a row: two methods that are as close as this predict equally well
QUICK = ("distclust, collapsed", "distclust, blocked-tdp", "scikit-learn, variational")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Planted:
    """A mixture to draw from: weights (K,), centres and widths (K, d)."""

    weights: Doubles
    centres: Doubles
    widths: Doubles

    def draw(self, n_rows: int, random: np.random.Generator) -> Doubles:
        """Draw rows."""
        y = random.choice(len(self.weights), n_rows, p=self.weights)
        noise = random.normal(size=(n_rows, self.centres.shape[1]))
        return np.asarray(self.centres[y] + self.widths[y] * noise)

    def log_density(self, rows: Doubles) -> Doubles:
        """The true log density of rows."""
        total = np.full(len(rows), -np.inf)
        for weight, centre, width in zip(self.weights, self.centres, self.widths, strict=True):
            square = (((rows - centre) / width) ** 2).sum(axis=1)
            constant = np.log(weight) - np.log(width * np.sqrt(2 * np.pi)).sum()
            total = np.logaddexp(total, constant - 0.5 * square)
        return total


def planted(n_clusters: int, n_columns: int = COLUMNS) -> Planted:
    """Overlapping clusters, the same ones every time."""
    random = np.random.default_rng(n_clusters)
    return Planted(
        random.dirichlet(np.full(n_clusters, 5.0)),
        random.normal(size=(n_clusters, n_columns)),
        random.uniform(0.6, 1.2, size=(n_clusters, n_columns)),
    )


# ---- speed ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """What is fitted, and for how long.

    Attributes
    ----------
    clusters
        Planted numbers of clusters.
    budget, steps
        Seconds and steps of each method at most.
    rounds
        Of all methods; the best time of a step counts, and the earliest arrival.
    """

    rows: int
    held_out: int
    clusters: tuple[int, ...]
    methods: tuple[str, ...]
    budget: float
    steps: int
    rounds: int


def make_speed_sizes(size: Size) -> Sizes:
    """Twenty thousand rows, a minute a method."""
    if size == "full":
        return Sizes(20_000, 2_000, (8, 30), tuple(METHODS), 60.0, 1_000, 1)
    return Sizes(150, 50, (3,), QUICK, 5.0, 8, 1)


def run_speed(sizes: Sizes) -> Results:
    """All methods on the same rows."""
    missing = [name for name in sizes.methods if not is_installed(name)]
    present = [name for name in sizes.methods if name not in missing]
    return {
        "rows": sizes.rows,
        "budget": sizes.budget,
        "missing": missing,
        "planted": {str(k): _race(k, sizes, present) for k in sizes.clusters},
    }


def _race(n_clusters: int, sizes: Sizes, methods: list[str]) -> dict[str, Any]:
    truth = planted(n_clusters)
    random = np.random.default_rng(0)
    rows = truth.draw(sizes.rows, random)
    held_out = truth.draw(sizes.held_out, random)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        np.savez(
            data, rows=rows, held_out=held_out, truncation=2 * n_clusters,
            budget=sizes.budget, steps=sizes.steps,
        )  # fmt: skip
        for _ in range(sizes.rounds):
            for name in methods:
                _note(found, name, _apart(name, data, Path(folder) / "out.json"))
    best = max(facts["best"] for facts in found.values())
    for facts in found.values():
        curves = facts.pop("curves")
        arrivals = [arrival(curve, best - NEAR) for curve in curves]
        facts["arrival"] = min((a for a in arrivals if a is not None), default=None)
    return {"truth": float(truth.log_density(held_out).mean()), "best": best, "methods": found}


def _note(found: dict[str, Any], name: str, facts: dict[str, Any]) -> None:
    curve = facts.pop("curve")
    facts |= {"curves": [curve], "best": max(value for _, value in curve)}
    known = found.setdefault(name, facts)
    if known is not facts:
        known["curves"].append(curve)
        known["best"] = max(known["best"], facts["best"])
        known["step_seconds"] = min(known["step_seconds"], facts["step_seconds"])


def _apart(name: str, data: Path, out: Path) -> dict[str, Any]:
    """Run a method in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.mixtures_methods", name, str(data), str(out)]
    root = Path(__file__).parents[1]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=root, env=os.environ | ONE_THREAD
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def arrival(curve: list[Any], wanted: float) -> float | None:
    """Return the first second at which a curve has what is wanted, or None."""
    return next((seconds for seconds, value in curve if value >= wanted), None)


def summarise_speed(results: Results) -> str:
    """A table for each number of clusters."""
    parts = []
    for n_clusters, found in results["planted"].items():
        methods = found["methods"]
        own = next(iter(methods.values()))
        lines = [_line(name, facts, own) for name, facts in methods.items()]
        header = ["", "a sweep", "in ours", "clusters", "best log predictive", "first near it"]
        parts.append(
            f"{n_clusters} planted clusters. The true density has a mean log of "
            f"{found['truth']:.3f}, the best prediction {found['best']:.3f}:\n\n"
            + table([*header, "in ours"], lines)
        )
    missing = results["missing"]
    note = f"Not installed: {', '.join(missing)}." if missing else ""
    head = (
        f"{results['rows']:,} rows x {COLUMNS}, one core, at most {results['budget']:.0f} s. "
        f"Near: within {NEAR} nats a row of the best of all."
    )
    return "\n\n".join(part for part in [head, *parts, note] if part)


def _line(name: str, facts: dict[str, Any], own: dict[str, Any]) -> list[str]:
    step = ratio = ""
    if facts["is_sampler"]:
        step = f"{1e3 * facts['step_seconds']:,.1f} ms"
        ratio = f"{facts['step_seconds'] / own['step_seconds']:,.2f}"
    when, own_when = facts["arrival"], own["arrival"]
    first = "never" if when is None else f"{when:,.2f} s"
    times = f"{when / own_when:,.2f}" if when is not None and own_when is not None else ""
    return [name, step, ratio, str(facts["n_clusters"]), f"{facts['best']:.3f}", first, times]


# ---- workers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerSizes:
    """Rows, planted clusters, sweeps of each of four chains, and tries."""

    rows: int
    clusters: int
    sweeps: int
    tries: int


def make_worker_sizes(size: Size) -> WorkerSizes:
    """Twenty thousand rows and thirty clusters."""
    return WorkerSizes(20_000, 30, 200, 3) if size == "full" else WorkerSizes(120, 3, 4, 1)


def run_workers(sizes: WorkerSizes) -> Results:
    """Four chains on one worker and on two, in turn; chains alone, and whole fits."""
    rows = planted(sizes.clusters).draw(sizes.rows, np.random.default_rng(0))
    found: dict[str, Any] = {}
    seen = []
    for _ in range(sizes.tries):
        for n_workers in (1, 2):
            with connect("local", workers=n_workers, threads=1):
                _fit(rows[:100], 4)  # compiled functions, connections
                start = time.perf_counter()
                traces = _chains(rows, sizes.sweeps)
                middle = time.perf_counter()
                model = _fit(rows, sizes.sweeps)
                times = {"chains": middle - start, "fit": time.perf_counter() - middle}
            known = found.setdefault(str(n_workers), times)
            found[str(n_workers)] = {name: min(known[name], times[name]) for name in times}
            seen.append((traces, model.traces_["log_joint"], model.labels_))
            gc.collect()
    first = seen[0]
    equal = all(np.array_equal(a, b) for other in seen for a, b in zip(first, other, strict=True))
    return {
        "rows": sizes.rows,
        "clusters": sizes.clusters,
        "sweeps": sizes.sweeps,
        "workers": found,
        "same": equal,
    }


def _chains(rows: Doubles, sweeps: int) -> Doubles:
    sampler = UrnSampler(rows, resolved(rows), EscobarWest())
    found = run_chains(
        sampler, 4, 0, sweeps, keep_every=max(1, sweeps // 10), agreement=None, name="benchmark"
    )
    return found.scalars


def _fit(rows: Doubles, sweeps: int) -> DPMixture:
    model = DPMixture("diagonal_gaussian", max_sweeps=sweeps, stop=None, random_state=0)
    return model.fit(rows)


def summarise_workers(results: Results) -> str:
    """Times on one and two workers, and whether the traces are the same."""
    one, two = results["workers"]["1"], results["workers"]["2"]
    names = {"chains": "the chains alone", "fit": "`DPMixture.fit`, consensus and all"}
    lines = [
        [text, f"{one[name]:.2f} s", f"{two[name]:.2f} s", f"{one[name] / two[name]:.2f}"]
        for name, text in names.items()
    ]
    same = "the same" if results["same"] else "**not** the same"
    return (
        f"{results['rows']:,} rows x {COLUMNS}, {results['clusters']} planted clusters, four "
        f"chains of {results['sweeps']} sweeps, workers with one thread each. Traces and labels "
        f"are {same}, to the bit.\n\n"
        + table(["", "one worker", "two workers", "times faster"], lines)
    )


def problems() -> list[Problem]:
    """The problems of this module."""
    return [
        Problem(
            "dpm-speed",
            "Dirichlet-process mixtures against scikit-learn and NumPyro, to equal prediction",
            make_speed_sizes,
            run_speed,
            summarise_speed,
        ),
        Problem(
            "dpm-workers",
            "four chains on one worker and on two, with the same traces",
            make_worker_sizes,
            run_workers,
            summarise_workers,
        ),
    ]
