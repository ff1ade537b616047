"""What clusterings agree on, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
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


SURE = {
    "bce": "sure: mean share of a row that is in its cluster.",
    "mm": "sure: mean probability that a row is of its cluster.",
}
LOSSES = {
    "vi": "variation of information",
    "binder": "Binder's",
    "best": "variation of information of the draw with the highest log joint",
}


def describe(model: Any) -> dict[str, Any]:
    """Return a fitted ensemble as plain values, ready for JSON.

    What only chains, only bounds or only likelihoods have is None elsewhere.
    """
    figures = ("expected_loss", "concentration", "log_joint", "log_bound", "log_likelihood")
    facts = {
        "method": type(model).__name__,
        "ensemble_method": model.method,
        "consensus": model.consensus if is_sampled(model) else None,
        "n_rows": len(model.labels_),
        "n_unlabelled": int((model.labels_ < 0).sum()),
        "n_features": getattr(model, "n_features_in_", None),
        "n_bases": int(model.base_labels_.shape[1]),
        "bases": [asdict(record) for record in model.bases_],
        "n_clusters": int(model.n_clusters_),
        **{name: _float(getattr(model, f"{name}_", None)) for name in figures},
        "clusters": describe_clusters(model.labels_, model.confidence_),
        "version": getattr(model, "version_", None),
    }
    if not is_sampled(model):
        said = model.diagnostics_
        return {**facts, **said, "agreed": bool(said["has_converged"])}
    facts |= chain_facts(model, float(model.rhat), float(model.min_samples))
    return {**facts, "advice": advise(facts)}


def is_sampled(model: Any) -> bool:
    """Whether a consensus comes from chains."""
    return hasattr(model, "draws_")


def print_ensemble(console: Console, facts: Mapping[str, Any]) -> None:
    """Print what was found, how sure it is, and whether chains agree."""
    for line in _headline(facts):
        console.print(line, highlight=False)
    print_clusters(console, facts["clusters"])
    if facts["n_unlabelled"]:
        told = f"{count(facts['n_unlabelled'], 'row')} without any label in no cluster."
        console.print(told, highlight=False)
    if "figures" in facts:
        print_chains(console, facts)
        return
    console.print(SURE[facts["ensemble_method"]], style="dim", highlight=False)
    ended = "converged" if facts["has_converged"] else "[bold]not converged[/bold]"
    console.print(f"{count(facts['n_iterations'], 'iteration')}, {ended}.", highlight=False)


def _headline(facts: Mapping[str, Any]) -> list[str]:
    lines = [
        f"[bold]{count(facts['n_clusters'], 'cluster')}[/bold] among "
        f"{count(facts['n_rows'], 'row')}: the consensus of {count(facts['n_bases'], 'base')} "
        f"({facts['method']}, {facts['ensemble_method']})."
    ]
    if facts["bases"]:
        made = Counter(base["algorithm"].split(",")[0] for base in facts["bases"])
        sizes = [base["n_labels"] for base in facts["bases"]]
        what = ", ".join(f"{n} by {name}" for name, n in made.items())
        lines.append(f"Bases: {what}; {min(sizes)} to {max(sizes)} clusters.")
    if facts["expected_loss"] is not None:
        unit = "" if facts["consensus"] == "binder" else " bits"
        lines.append(
            f"Expected loss of the consensus {facts['expected_loss']:.3g}{unit} "
            f"({LOSSES[facts['consensus']]}); concentration {facts['concentration']:.3g}."
        )
    for name, words in (("log_bound", "Evidence bound"), ("log_likelihood", "Log-likelihood")):
        if facts[name] is not None:
            lines.append(f"{words} {facts[name]:,.2f}.")
    return lines


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
