"""What sampled partitions say, for people: clusters, whether chains agree, and what to do.

Pictures for users are here, too: `draw_traces` and `draw_coassociation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from distclust.report.chains import head, ordered
from distclust.report.mixture_pictures import draw_coassociation, draw_traces
from distclust.report.terminal import count

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["describe", "draw_coassociation", "draw_traces", "print_mixture"]

CLUSTERS_SHOWN = 20
COLLAPSED = "collapsed"  # the sampler that mixes best
LEGEND = (
    "sure: mean probability of sharing a cluster with the other rows of it. R-hat near 1: chains "
    "agree; samples: how many independent draws the traces are worth."
)


def describe(model: Any) -> dict[str, Any]:
    """Return a fitted DPMixture as plain values, ready for JSON.

    Clusters come with their numbers of rows (and weights, where rows have them) and the mean
    confidence of their rows; figures with R-hat and effective samples. ``advice`` is what to
    do if chains do not agree, else None.
    """
    facts = {
        "method": type(model).__name__,
        "n_rows": len(model.labels_),
        "n_features": int(model.n_features_in_),
        "n_clusters": int(model.n_clusters_),
        "family": type(model.family_).__name__,
        "family_reason": model.family_reason_,
        "sampler": model.sampler,
        "concentration": float(model.concentration_),
        "expected_loss": float(model.expected_loss_),
        **chain_facts(model, float(model.rhat), float(model.min_samples)),
        "clusters": describe_clusters(model.labels_, model.confidence_, model._row_weights),
        "version": getattr(model, "version_", None),
    }
    return {**facts, "advice": advise(facts)}


def chain_facts(model: Any, rhat: float, min_samples: float) -> dict[str, Any]:
    """Return what chains did and whether they agree, and what was asked of them."""
    from distclust.mixtures.chains import Agreement
    from distclust.mixtures.diagnostics import Diagnosis

    n_chains, n_draws = model.draws_.shape[:2]
    agreed = Agreement(rhat, min_samples).holds(Diagnosis(**model.diagnostics_))
    return {
        "n_chains": int(n_chains),
        "n_sweeps": int(model.n_sweeps_),
        "max_sweeps": int(model.max_sweeps),
        "n_draws": int(n_chains * n_draws),
        "agreed": bool(agreed),  # also where nothing was asked for
        "asked": {"rhat": rhat, "samples": min_samples},
        "figures": _figures(model),
    }


def describe_clusters(labels: Any, sure: Any, weights: Any = None) -> list[dict[str, Any]]:
    """Return clusters with their numbers of rows, and how sure those are of it on average.

    Rows with a negative label are in none.
    """
    has_one = np.asarray(labels) >= 0
    labels, sure = np.asarray(labels)[has_one], np.asarray(sure)[has_one]
    weights = None if weights is None else np.asarray(weights)[has_one]
    n_rows = np.bincount(labels)
    totals = np.bincount(labels, weights=sure, minlength=len(n_rows))
    found = [
        {"cluster": k, "n_rows": int(n), "confidence": float(total / max(n, 1))}
        for k, (n, total) in enumerate(zip(n_rows, totals, strict=True))
    ]
    if weights is not None:
        loads = np.bincount(labels, weights=weights, minlength=len(n_rows))
        for each, load in zip(found, loads.tolist(), strict=True):
            each["weight"] = load
    return found


def _figures(model: Any) -> list[dict[str, Any]]:
    said = model.diagnostics_
    found = []
    for name in ordered(model.traces_):
        late = model.traces_[name][:, model.traces_[name].shape[1] // 2 :]
        found.append(
            {
                "figure": name,
                "mean": float(late.mean()),
                "sd": float(late.std()),
                "rhat": float(said["rhat"][name]),
                "ess_bulk": float(said["ess_bulk"][name]),
                "ess_tail": float(said["ess_tail"][name]),
            }
        )
    return found


def advise(facts: Mapping[str, Any]) -> str | None:
    """Return what to do if chains do not agree; None if they do."""
    if facts["agreed"]:
        return None
    if facts["n_chains"] < 2:
        return "One chain cannot tell whether it found what others would: run 4 chains."
    worst = max(_known(figure["rhat"], math.inf) for figure in facts["figures"])
    if worst > facts["asked"]["rhat"]:
        others = "" if facts.get("sampler", COLLAPSED) == COLLAPSED else ", or --sampler collapsed"
        return (
            f"Raise --max-sweeps{others}. If that does not help, several partitions fit about as "
            "well: trust rows of high confidence."
        )
    return "They agree, but say too little so far: raise --max-sweeps."


# ---- for a screen --------------------------------------------------------------------------------


def print_mixture(console: Console, facts: Mapping[str, Any]) -> None:
    """Print what was found, how sure it is, and whether chains agree."""
    for line in _headline(facts):
        console.print(line, highlight=False)
    print_clusters(console, facts["clusters"])
    print_chains(console, facts)


def _headline(facts: Mapping[str, Any]) -> list[str]:
    family, reason = facts["family"], facts["family_reason"]
    chosen = reason if family in reason else f"{family}, {reason}"
    return [
        f"[bold]{count(facts['n_clusters'], 'cluster')}[/bold] among "
        f"{count(facts['n_rows'], 'row')} and {count(facts['n_features'], 'feature')} "
        f"({facts['method']}, {facts['sampler']}; {chosen}).",
        f"A draw is {facts['expected_loss']:.3g} bits (variation of information) from these "
        f"clusters on average; concentration {facts['concentration']:.3g}.",
    ]


def print_clusters(console: Console, clusters: list[dict[str, Any]]) -> None:
    """Print one line a cluster, those with most rows first."""
    shown = sorted(clusters, key=lambda each: (-each["n_rows"], each["cluster"]))[:CLUSTERS_SHOWN]
    n_rows = sum(each["n_rows"] for each in clusters)
    has_weights = "weight" in clusters[0]
    table = _plain_table("cluster", "rows", "share", "sure", *["weight"] * has_weights)
    for each in shown:
        cells = [str(each["cluster"]), f"{each['n_rows']:,}", _percent(each["n_rows"] / n_rows)]
        cells.append(_percent(each["confidence"]))
        cells += [f"{each['weight']:,.0f}"] if has_weights else []
        table.add_row(*cells)
    console.print()
    console.print(table)
    if len(shown) < len(clusters):
        told = f"The {len(shown)} largest of {len(clusters):,} are shown."
        console.print(told, style="dim", highlight=False)


def print_chains(console: Console, facts: Mapping[str, Any]) -> None:
    """Print what is traced, whether chains agree, and what to do if not."""
    table = _plain_table("figure", "mean", "sd", "R-hat", "samples, bulk", "tail")
    for figure in facts["figures"]:
        cells = [f"{figure['mean']:,.6g}", f"{figure['sd']:,.3g}", _number(figure["rhat"], ".3f")]
        cells += [_number(figure[name], ",.0f") for name in ("ess_bulk", "ess_tail")]
        table.add_row(head(figure["figure"]), *cells)
    console.print()
    console.print(table)
    console.print(LEGEND, style="dim", highlight=False)
    console.print(said_of_chains(facts), highlight=False)


def said_of_chains(facts: Mapping[str, Any]) -> str:
    """Return in a sentence how far chains came, whether they agree, and what to do."""
    asked = facts["asked"]
    ran = f"{count(facts['n_chains'], 'chain')} of {count(facts['n_sweeps'], 'sweep')}"
    if facts["agreed"]:
        how = f"R-hat at most {asked['rhat']:g}, at least {asked['samples']:g} samples"
        return f"{ran}: they agree ({how})."
    if facts["n_chains"] < 2:
        return f"{ran}. {facts['advice']}"
    wanted = f"asked for: R-hat at most {asked['rhat']:g}, {asked['samples']:g} samples"
    return f"{ran}: [bold]not agreed[/bold] ({wanted}). {facts['advice']}"


def _plain_table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for text in heads:
        is_text = text == "figure"
        table.add_column(text, justify="left" if is_text else "right", no_wrap=True)
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "unknown"


def _known(value: float, otherwise: float) -> float:
    return otherwise if math.isnan(value) else value
