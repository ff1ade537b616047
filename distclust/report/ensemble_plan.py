"""What a fit of an ensemble will cost, from shapes and stated rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distclust.report.mixture_plan import (
    CHAIN_ROW_BYTES,
    LABEL_BYTES,
    START_SECONDS,
    rounds_of,
)
from distclust.report.terminal import count, duration, size

if TYPE_CHECKING:
    from distclust.store import Matrix

# Measured on one core of an ordinary machine.
LABEL_SECONDS = 3.5e-9  # of a label and a cluster: in a sweep, or in an iteration
ROW_SECONDS = 4e-8  # of a row in a sweep, beside its labels
VALUE_SECONDS = 1e-9  # of a value of a row and a cluster of k-means
# Only the data say these.
ASSUMED_CLUSTERS = 30
ITERATIONS = 100  # of EM or of variational Bayes
KMEANS_PASSES = 60  # over the sample of a base, all starts together
SAMPLE_ROWS = 65_536


@dataclass(frozen=True)
class EnsemblePlan:
    """Cost of a fit of an ensemble.

    With N rows, M bases, K clusters, C chains, S sweeps and T threads:

        seconds = start + bases / T + ⌈C / T⌉ S N (M K l + r)

    where l is the time of a label and a cluster, r that of a row. Collapsed rows, of which
    there are at most N, take no more.
    """

    method: str
    n_rows: int
    n_features: int
    n_bases: int
    base_clusters: Sequence[int]  # empty if labels are given
    n_clusters: int
    n_chains: int
    max_sweeps: int
    n_init: int
    kept: int
    n_threads: int

    @property
    def labels_bytes(self) -> float:
        """Bytes of the labels."""
        return float(self.n_rows) * self.n_bases

    @property
    def draws_bytes(self) -> float:
        """Bytes of the partitions that are kept."""
        is_sampled = self.method == "dpce"
        return float(LABEL_BYTES) * self.n_rows * self.n_chains * self.kept if is_sampled else 0.0

    @property
    def memory_bytes(self) -> float:
        """Memory beside the rows, which are read in blocks."""
        n_chains = self.n_chains if self.method == "dpce" else 1
        own = float(CHAIN_ROW_BYTES) * self.n_rows * n_chains
        if self.method != "dpce":
            own = 8.0 * self.n_rows * self.n_clusters  # probabilities of every distinct row
        return 4.0 * self.labels_bytes + own + self.draws_bytes

    @property
    def base_seconds(self) -> float:
        """Time of all bases."""
        sample = min(self.n_rows, SAMPLE_ROWS)
        visits = KMEANS_PASSES * sample + self.n_rows
        total = sum(VALUE_SECONDS * visits * self.n_features * k for k in self.base_clusters)
        return total / max(1, min(self.n_threads, len(self.base_clusters)))

    @property
    def model_seconds(self) -> float:
        """Time of all sweeps or iterations."""
        a_row = self.n_bases * self.n_clusters * LABEL_SECONDS + ROW_SECONDS
        if self.method == "dpce":
            waits = rounds_of(self.n_chains, self.n_threads)
            return waits * self.max_sweeps * self.n_rows * a_row
        return ITERATIONS * self.n_init * self.n_rows * a_row / max(1, self.n_threads)

    @property
    def seconds(self) -> float:
        """Time of the fit."""
        return START_SECONDS + self.base_seconds + self.model_seconds

    @property
    def assumed(self) -> str:
        """What the time rests on."""
        what = "all sweeps are done, while chains that agree stop before"
        if self.method != "dpce":
            what = f"{ITERATIONS} iterations of each start"
        return (
            f"{count(self.n_clusters, 'cluster')} in the consensus; no two rows have equal labels; "
            f"{1e9 * LABEL_SECONDS:g} ns a label and cluster; {what}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, ready for JSON."""
        return {
            "what": f"fit ClusterEnsemble, {self.method}",
            "n_rows": self.n_rows,
            "n_features": self.n_features,
            "n_bases": self.n_bases,
            "base_clusters": list(self.base_clusters),
            "n_chains": self.n_chains if self.method == "dpce" else None,
            "max_sweeps": self.max_sweeps if self.method == "dpce" else None,
            "n_threads": self.n_threads,
            "labels_bytes": self.labels_bytes,
            "draws_bytes": self.draws_bytes,
            "memory_bytes": self.memory_bytes,
            "disk_bytes": self.labels_bytes + self.draws_bytes,
            "base_seconds": self.base_seconds,
            "seconds": self.seconds,
            "assumed": self.assumed,
        }

    def facts(self) -> Mapping[str, str]:
        """Return the plan in words."""
        made = f"{self.n_bases:,}, as they are given"
        if self.base_clusters:
            least, most = min(self.base_clusters), max(self.base_clusters)
            made = f"{self.n_bases:,} of {least} to {most} clusters, {duration(self.base_seconds)}"
        work = f"{self.n_init} starts"
        if self.method == "dpce":
            work = f"{count(self.n_chains, 'chain')} of {self.max_sweeps:,} sweeps at most"
        return {
            "plan": f"fit ClusterEnsemble, {self.method}",
            "rows and columns": f"{self.n_rows:,} x {self.n_features:,}",
            "bases": made,
            "consensus": work,
            "memory": f"{size(self.memory_bytes)} beside the rows",
            "disk": size(self.labels_bytes + self.draws_bytes),
            "time": f"{duration(self.seconds)} on {count(self.n_threads, 'thread')}",
            "assumed": self.assumed,
        }


def plan_ensemble(model: Any, matrix: Matrix, n_threads: int, *, is_labels: bool) -> EnsemblePlan:
    """Estimate a fit from the shape alone: no row is read."""
    from distclust.ensembles.bases import plan_bases
    from distclust.mixtures.chains import n_kept

    where = f"{type(model).__name__}.{'fit_labels' if is_labels else 'fit'}"
    model._check_parameters(where)
    n_rows, n_columns = matrix.shape
    clusters: list[int] = []
    if not is_labels:
        recipes = plan_bases(
            model.bases, model.n_bases, model.base_clusters, model.n_clusters, n_rows, where
        )
        clusters = [recipe.n_clusters or ASSUMED_CLUSTERS for recipe in recipes]
    return EnsemblePlan(
        method=model.method,
        n_rows=n_rows,
        n_features=n_columns,
        n_bases=n_columns if is_labels else len(clusters),
        base_clusters=tuple(clusters),
        n_clusters=int(model.n_clusters or ASSUMED_CLUSTERS),
        n_chains=int(model.n_chains),
        max_sweeps=int(model.max_sweeps),
        n_init=int(model.n_init),
        kept=min(n_kept(n_rows, model.n_chains), int(model.max_sweeps)),
        n_threads=n_threads,
    )
