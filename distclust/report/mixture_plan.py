"""What a fit of chains will cost, by a short measurement."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distclust.report.plan import FLOAT
from distclust.report.terminal import count, duration, size

if TYPE_CHECKING:
    from distclust.store import Matrix

START_SECONDS = 3.0  # imports, functions from the cache of compiled ones, the first look
CHAIN_ROW_BYTES = 64  # of a chain for each row: labels, uniforms, copies
LABEL_BYTES = 2  # of a row in a partition that is kept, at most as a rule
PAIR_SECONDS = 1e-9  # of a row in the comparison of two partitions
TRIAL_ROWS = 2000
TRIAL_SWEEPS = 20
TRIAL_SECONDS = 2.0


@dataclass(frozen=True)
class Trial:
    """Some sweeps of one chain on some rows.

    Attributes
    ----------
    n_rows, n_sweeps
        What was measured.
    n_clusters
        Clusters at its end; a sweep takes time in proportion to them.
    row_seconds
        Time of a row in a sweep.
    """

    n_rows: int
    n_sweeps: int
    n_clusters: int
    row_seconds: float


@dataclass(frozen=True)
class ChainsPlan:
    """Cost of a fit of chains.

    With N rows, C chains, S sweeps, T threads and t seconds a row and sweep:

        seconds = start + ⌈C / T⌉ S N t + comparing the draws
    """

    what: str
    n_rows: int
    n_features: int
    rows_bytes: float  # held, once a process
    n_chains: int
    max_sweeps: int
    kept: int  # partitions of a chain that are kept
    n_processes: int
    n_threads: int
    trial: Trial

    @property
    def draws_bytes(self) -> float:
        """Bytes of the partitions that are kept."""
        return float(LABEL_BYTES) * self.n_rows * self.n_chains * self.kept

    @property
    def memory_bytes(self) -> float:
        """Memory of all processes together: rows here and in each, chains, partitions."""
        n_others = self.n_processes if self.n_processes > 1 else 0
        chains = float(CHAIN_ROW_BYTES) * self.n_rows * self.n_chains
        return self.rows_bytes * (1 + n_others) + chains + self.draws_bytes

    @property
    def sweep_seconds(self) -> float:
        """Time of a sweep of one chain."""
        return self.n_rows * self.trial.row_seconds

    @property
    def rounds(self) -> int:
        """How often as many chains as there are threads take their turn."""
        return rounds_of(self.n_chains, self.n_threads)

    @property
    def seconds(self) -> float:
        """Time if all sweeps are done."""
        n_draws = self.n_chains * self.kept / 2
        comparing = PAIR_SECONDS * self.n_rows * n_draws**2 / max(1, self.n_threads)
        return START_SECONDS + self.rounds * self.max_sweeps * self.sweep_seconds + comparing

    @property
    def assumed(self) -> str:
        """What the time rests on."""
        trial = self.trial
        return (
            f"{1e6 * trial.row_seconds:.3g} µs a row and sweep, measured on "
            f"{count(trial.n_rows, 'row')} with {count(trial.n_clusters, 'cluster')}: more "
            "clusters take longer; all sweeps are done, while chains that agree stop before"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, ready for JSON."""
        return {
            "what": self.what,
            "n_rows": self.n_rows,
            "n_features": self.n_features,
            "n_chains": self.n_chains,
            "max_sweeps": self.max_sweeps,
            "n_processes": self.n_processes,
            "n_threads": self.n_threads,
            "rows_bytes": self.rows_bytes,
            "draws_bytes": self.draws_bytes,
            "memory_bytes": self.memory_bytes,
            "disk_bytes": self.draws_bytes,
            "sweep_seconds": self.sweep_seconds,
            "seconds": self.seconds,
            "assumed": self.assumed,
        }

    def facts(self) -> Mapping[str, str]:
        """Return the plan in words."""
        threads = count(self.n_threads, "thread")
        at_once = min(self.n_threads, self.n_chains)
        waiting = "" if self.rounds == 1 else f": {at_once} at a time"
        return {
            "plan": self.what,
            "rows and features": f"{self.n_rows:,} x {self.n_features:,}",
            "chains": f"{self.n_chains:,} on {threads}{waiting}",
            "sweeps": f"{self.max_sweeps:,} of each chain at most",
            "memory": f"{size(self.memory_bytes)} in all processes together",
            "disk": size(self.draws_bytes),
            "time": f"{duration(self.seconds)} at most",
            "assumed": self.assumed,
        }


def rounds_of(n_chains: int, n_threads: int) -> int:
    """Return how often threads take up another chain until all had their turn."""
    return -(-n_chains // max(1, min(n_threads, n_chains)))


def plan_mixture(
    model: Any, matrix: Matrix, n_processes: int, n_threads: int, row_weights: Any = None
) -> ChainsPlan:
    """Estimate a fit of `DPMixture` by some sweeps over some rows of the first block.

    Parameters
    ----------
    model
        Not yet fitted; it is used for the trial.
    matrix
        The rows. They are read once, to choose the family as the fit does.
    n_processes, n_threads
        Of all that would work.
    row_weights
        As for the fit; they are checked.
    """
    from distclust.mixtures.chains import n_kept

    where = f"{type(model).__name__}.fit"
    model._check_parameters(where)
    model._prepare(matrix, row_weights, where)
    family, rows = model.family_, model._rows
    trial = _try(model)
    model._forget_rows()
    n_rows, n_features = matrix.shape
    values = rows.nnz * 1.5 if matrix.is_sparse else float(n_rows * n_features)
    return ChainsPlan(
        what=f"fit {type(model).__name__}, {model.sampler}, {type(family).__name__}",
        n_rows=n_rows,
        n_features=n_features,
        rows_bytes=FLOAT * values,
        n_chains=int(model.n_chains),
        max_sweeps=int(model.max_sweeps),
        kept=min(n_kept(n_rows, model.n_chains), int(model.max_sweeps)),
        n_processes=n_processes,
        n_threads=n_threads,
        trial=trial,
    )


def _try(model: Any) -> Trial:
    """Sweep over some of the rows that a model holds, and take the time."""
    n_rows = min(TRIAL_ROWS, model._rows.shape[0])
    model._rows = model._rows[:n_rows]
    if model._row_weights is not None:
        model._row_weights = model._row_weights[:n_rows]
    return time_sweeps(model._sampler())


def time_sweeps(sampler: Any) -> Trial:
    """Return how long a sweep takes, apart from the first ones, which load compiled code."""
    from distclust.seeding import generator

    place = sampler.open()
    state = sampler.begin(0, generator(0, "chain", 0))
    for _ in range(2):
        state = sampler.sweep(place, state)
    start, n_sweeps = time.monotonic(), 0
    while n_sweeps < TRIAL_SWEEPS and time.monotonic() - start < TRIAL_SECONDS:
        state = sampler.sweep(place, state)
        n_sweeps += 1
    seconds = (time.monotonic() - start) / n_sweeps
    n_clusters = int(sampler.scalars(state)[sampler.scalar_names.index("n_clusters")])
    return Trial(sampler.n_items, n_sweeps, n_clusters, seconds / sampler.n_items)
