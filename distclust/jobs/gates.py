"""Gates: what a new version must be like to be published.

A gate compares the new state with the job file and with what is published; it changes
nothing. All of them are asked, so that a record shows everything that is wrong at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distclust.jobs.jobfile import Gates, ModelGate
from distclust.jobs.record import Gate, RowCounts
from distclust.store.matrix import Column

# What tells how well a model fits, of trees, chains, and consensus by bounds or by EM.
_EVIDENCE = ("log_evidence", "log_joint", "log_bound", "log_likelihood")


def judge_rows(
    gates: Gates,
    rows: RowCounts,
    columns_before: Sequence[Column] | None,
    columns_after: Sequence[Column],
) -> list[Gate]:
    """Judge what came in, before any model is made of it."""
    few = Gate(
        "rows", f"at least {gates.min_rows:,}", f"{rows.after:,}", rows.after >= gates.min_rows
    )
    if columns_before is None:
        return [few]
    return [few, _judge_deleted(gates, rows), _judge_schema(columns_before, columns_after)]


def _judge_deleted(gates: Gates, rows: RowCounts) -> Gate:
    # A changed row is deleted and added again: what counts is how many fewer there are.
    gone = max(0, rows.before - rows.after)
    share = gone / max(1, rows.before)
    return Gate(
        "shrinking",
        f"at most {gates.max_deleted:.0%} of {rows.before:,} rows fewer",
        f"{gone:,} fewer ({share:.1%})",
        share <= gates.max_deleted,
    )


def _judge_schema(before: Sequence[Column], after: Sequence[Column]) -> Gate:
    """Features stay what they were; categories may get further levels."""
    got = "the same"
    if len(before) != len(after):
        got = f"{len(after):,} features"
    for old, new in zip(before, after, strict=False):
        if (old.name, old.kind) != (new.name, new.kind):
            got = f"{new.name!r} ({new.kind}) in the place of {old.name!r} ({old.kind})"
            break
    expected = f"the {len(before):,} features of the published version"
    return Gate("schema", expected, got, got == "the same")


def judge_model(
    gates: Gates,
    name: str,
    n_rows: int,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any],
) -> list[Gate]:
    """Judge a model by the figures of its version and of the published one."""
    found = []
    if "n_rows" in after:
        counted = int(after["n_rows"])
        verdict = Gate(f"{name}: rows", f"{n_rows:,}", f"{counted:,}", counted == n_rows)
        found.append(verdict)
    if before is not None:
        found += _judge_evidence(gates, name, before, after)
    if "n_clusters" in after:
        found += _judge_clusters(gates.models.get(name), name, int(after["n_clusters"]))
    return found


def _judge_evidence(
    gates: Gates, name: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[Gate]:
    both = (before, after)
    known = (figure for figure in _EVIDENCE if all(m.get(figure) is not None for m in both))
    figure = next(known, None)
    if figure is None:
        return []
    old, new = (float(m[figure]) / max(1, int(m["n_rows"])) for m in both)
    # Densities may be near 1, and their logarithms near 0, by the units of the features alone.
    least = old - gates.max_evidence_drop * max(abs(old), 1.0)
    expected = f"at least {least:.6g} nats a row (published: {old:.6g})"
    # Written so that not-a-number does not pass.
    return [Gate(f"{name}: evidence", expected, f"{new:.6g}", new >= least)]


def _judge_clusters(bounds: ModelGate | None, name: str, n_clusters: int) -> list[Gate]:
    if bounds is None:
        return []
    found = []
    for limit, words, passed in (
        (bounds.min_clusters, "at least", n_clusters >= (bounds.min_clusters or 0)),
        (bounds.max_clusters, "at most", n_clusters <= (bounds.max_clusters or n_clusters)),
    ):
        if limit is not None:
            verdict = Gate(f"{name}: clusters", f"{words} {limit:,}", f"{n_clusters:,}", passed)
            found.append(verdict)
    return found
