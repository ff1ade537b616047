"""Figures of a job's last run for Prometheus, as a file for node_exporter's textfile collector.

All are gauges: the file says how things stand after the last run, also one that found nothing new
and so says nothing about models in its record. What an operator watches is
``distclust_job_success_timestamp_seconds``, which stops moving when runs fail or do not start.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distclust.jobs.record import OUTCOMES, Model, Record
from distclust.report.prometheus import Sample, family
from distclust.store.objects import Objects

METRICS = "metrics.prom"

_Family = tuple[str, str, Iterable[Sample]]


@dataclass(frozen=True)
class Published:
    """A model as it is published: its kind, and how many clusters it has if it has any."""

    kind: str
    n_clusters: int | None = None


def write_metrics(
    objects: Objects,
    record: Record,
    earlier: Sequence[Record] = (),
    published: Mapping[str, Published] | None = None,
) -> str:
    """Write or replace the file of a job, whole or not at all; return where it is."""
    objects.write(METRICS, to_text(record, earlier, published).encode())
    return objects.where(METRICS)


def to_text(
    record: Record,
    earlier: Sequence[Record] = (),
    published: Mapping[str, Published] | None = None,
) -> str:
    """Return the figures of a run in the text format of Prometheus.

    Parameters
    ----------
    record
        The run.
    earlier
        Runs before it, the oldest first: the last that went well is told, too.
    published
        Models as they are published after the run, by name.
    """
    lines: list[str] = []
    about_models = _about_models(record, earlier, published or {})
    for name, about, samples in (*_about_run(record, earlier), *about_models):
        lines += family(f"distclust_job_{name}", "gauge", about, samples)
    return "\n".join(lines) + "\n"


def _about_run(record: Record, earlier: Sequence[Record]) -> Iterator[_Family]:
    job = {"job": record.job}
    rows, files, cost = record.input.rows, record.input.files, record.cost
    good = [each.ended for each in (*earlier, record) if each.is_good]
    moved = [each.published for each in (*earlier, record) if each.published is not None]
    n_failed = sum(not gate.passed for gate in record.gates)

    def one(value: float) -> list[Sample]:
        return [(job, value)]

    def each(label: str, values: dict[str, Any]) -> list[Sample]:
        return [({**job, label: name}, value) for name, value in values.items()]

    yield "start_timestamp_seconds", "When the last run began.", one(_seconds(record.started))
    yield "end_timestamp_seconds", "When the last run ended.", one(_seconds(record.ended))
    yield (
        "success_timestamp_seconds",
        "When a run last ended with the published state up to date.",
        one(_seconds(good[-1])) if good else [],
    )
    yield "run_seconds", "Wall time of the last run.", one(record.seconds)
    yield (
        "outcome",
        "How the last run ended: 1 for what happened, 0 for the others.",
        each("outcome", {name: int(name == record.outcome) for name in OUTCOMES}),
    )
    yield "rows", "Live rows after the last run.", one(rows.after)
    changed = {"added": rows.added, "changed": rows.changed, "deleted": rows.deleted}
    yield "rows_changed", "Rows that the last run took in, by change.", each("change", changed)
    found = {name: getattr(files, name) for name in files.__dataclass_fields__}
    yield "files", "Input files of the last run, by state.", each("state", found)
    yield "read_bytes", "Bytes of input that the last run read.", one(record.input.bytes_read)
    yield "gates", "Gates of the last run.", one(len(record.gates))
    yield "gate_failures", "Gates that the last run failed.", one(n_failed)
    yield (
        "published_number",
        "Number of the newest published state known to the last runs.",
        one(moved[-1]) if moved else [],
    )
    yield "stage_seconds", "Wall time of the last run, by stage.", each("stage", cost.stages)
    yield "cpu_seconds", "Processor time of the last run.", one(cost.cpu_seconds)
    yield "peak_memory_bytes", "Memory of the last run at its peak.", one(cost.peak_memory_bytes)
    bad = sum(hook.status != "done" for hook in record.hooks)
    yield "hook_failures", "Hooks of the last run that failed.", one(bad)


def _about_models(
    record: Record, earlier: Sequence[Record], published: Mapping[str, Published]
) -> Iterator[_Family]:
    def each(values: Iterable[tuple[Model, dict[str, str], float]]) -> list[Sample]:
        return [
            ({"job": record.job, "model": model.name, **labels}, value)
            for model, labels, value in values
        ]

    touched = {model.name for model in record.models}
    others = {name: facts.kind for name, facts in published.items() if name not in touched}
    kept = (Model(name, kind, "kept", "") for name, kind in others.items())
    models = (*record.models, *kept)
    ran = [model for run in (*earlier, record) for model in run.models]
    drift = {model.name: model.drift for model in ran if model.drift is not None}
    yield (
        "model_seconds",
        "Wall time of the last run, by model.",
        each((model, {}, model.seconds) for model in models),
    )
    yield (
        "model_info",
        "What the last run did about a model.",
        each((model, {"kind": model.kind, "action": model.action}, 1) for model in models),
    )
    yield (
        "model_drift",
        "How far new rows were from what a model knew when it was last compared, by figure.",
        each(
            (model, {"figure": figure}, x)
            for model in models
            for figure, x in _numbers(drift.get(model.name))
        ),
    )
    with_clusters = [(model, model.clusters) for model in models if model.clusters is not None]
    yield (
        "clusters",
        "Clusters of a model as it is published.",
        [
            ({"job": record.job, "model": name}, facts.n_clusters)
            for name, facts in published.items()
            if facts.n_clusters is not None
        ],
    )
    yield (
        "clusters_changed",
        "What became of clusters in the last run, in groups of linked clusters, by change.",
        each(
            (model, {"change": kind}, count)
            for model, told in with_clusters
            for kind, count in told["counts"].items()
        ),
    )


def _numbers(values: dict[str, Any] | None) -> Iterator[tuple[str, float]]:
    for name, value in (values or {}).items():
        if isinstance(value, (int, float)):
            yield name, value


def _seconds(time: str) -> float:
    return datetime.datetime.fromisoformat(time).timestamp()
