"""What clusterings agree on, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distclust.report.mixtures import (
    advise,
    chain_facts,
    describe_clusters,
    print_chains,
    print_clusters,
)
from distclust.report.terminal import count

if TYPE_CHECKING:
    from rich.console import Console


def describe(model: Any) -> dict[str, Any]:
    """Return a fitted ensemble as plain values, ready for JSON."""
    facts = {
        "method": type(model).__name__,
        "ensemble_method": model.method,
        "consensus": model.consensus,
        "n_rows": len(model.labels_),
        "n_features": getattr(model, "n_features_in_", None),
        "n_bases": len(model.bases_),
        "n_clusters": int(model.n_clusters_),
        "expected_loss": _float(getattr(model, "expected_loss_", None)),
        "concentration": _float(getattr(model, "concentration_", None)),
        "clusters": describe_clusters(model.labels_, model.confidence_),
        "version": getattr(model, "version_", None),
    }
    if not is_sampled(model):
        return facts
    facts |= chain_facts(model, float(model.rhat), float(model.min_samples))
    return {**facts, "advice": advise(facts)}


def is_sampled(model: Any) -> bool:
    """Whether a consensus comes from chains."""
    return bool(getattr(model, "diagnostics_", None))


def print_ensemble(console: Console, facts: Mapping[str, Any]) -> None:
    """Print what was found, how sure it is, and whether chains agree."""
    console.print(
        f"[bold]{count(facts['n_clusters'], 'cluster')}[/bold] among "
        f"{count(facts['n_rows'], 'row')}: the consensus of {count(facts['n_bases'], 'base')} "
        f"({facts['ensemble_method']}).",
        highlight=False,
    )
    if facts["expected_loss"] is not None:
        told = f"Expected loss {facts['expected_loss']:.3g} ({facts['consensus']})."
        console.print(told, highlight=False)
    print_clusters(console, facts["clusters"])
    if "figures" in facts:
        print_chains(console, facts)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
