"""What the commands print for people: summaries, predictions, plans, the doctor's findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from distclust.report.summary import Cluster, Summary

if TYPE_CHECKING:
    from rich.console import Console

N_NAMES = 6  # row names shown for each cluster
LEGEND = (
    "one: probability that the rows are one cluster, given the tree; "
    "apart: that they are not one with their sibling."
)


def print_summary(console: Console, summary: Summary, *, features: bool = True) -> None:
    """Print what was found and how sure it is; `features` as a column of their own."""
    for line in headline(summary):
        console.print(line, highlight=False)
    console.print()
    console.print(cluster_table(summary.clusters, features=features))
    if len(summary.clusters) < summary.n_clusters:
        console.print(f"The {len(summary.clusters)} largest of {summary.n_clusters} are shown.")
    console.print(LEGEND, style="dim", highlight=False)


def headline(summary: Summary) -> list[str]:
    """Sentences for the top of a summary."""
    bound = summary.log_lower_bound
    return [
        f"[bold]{count(summary.n_clusters, 'cluster')}[/bold] among "
        f"{count(summary.n_rows, 'row')} and {count(summary.n_features, 'feature')} "
        f"({summary.method}; {choice_of_family(summary)}).",
        f"Log evidence of the tree {summary.log_evidence:,.2f}"
        + ("" if bound is None else f"; lower bound on the mixture's {bound:,.2f}")
        + f"; {power_of_ten(summary.log10_n_partitions)} partitions weighed.",
    ]


def choice_of_family(summary: Summary) -> str:
    """Which family was used and why, without naming it twice."""
    named = summary.family in summary.family_reason
    return summary.family_reason if named else f"{summary.family}, {summary.family_reason}"


def cluster_table(clusters: Sequence[Cluster], *, features: bool = True) -> Table:
    """One line a cluster: size, how sure, what tells it apart, who is in it."""
    from distclust.trees.draw import percent  # the trees load slowly, and not for every verb

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for name in ("cluster", "rows", "one", "apart"):
        table.add_column(name, justify="right", no_wrap=True)
    if features:
        table.add_column("told from its sibling by", ratio=1)
    table.add_column("members", ratio=1)
    for cluster in clusters:
        apart = cluster.probability_apart
        texts = [", ".join(telling(cluster))] if features else []
        texts.append(members(cluster.rows, cluster.n_rows))
        table.add_row(
            str(cluster.label),
            f"{cluster.n_rows:,}",
            percent(cluster.probability) if cluster.n_rows > 1 else "",
            "" if apart is None else percent(apart),
            *map(Text, texts),
        )
    return table


def telling(cluster: Cluster) -> list[str]:
    """Features that tell the cluster apart, with an arrow for more or less than there.

    Categories have no mean, hence no arrow.
    """
    return [
        f"{feature.name} {'↑' if feature.mean_here > feature.mean_there else '↓'}"
        if feature.mean_here == feature.mean_here
        else feature.name
        for feature in cluster.features
    ]


def members(names: Sequence[str], n_rows: int) -> str:
    """First few names and how many more there are."""
    shown = ", ".join(names[:N_NAMES])
    more = n_rows - min(len(names), N_NAMES)
    return f"{shown} and {more:,} more" if more > 0 else shown


def print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """Print names and values in two columns."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in facts.items():
        table.add_row(name, Text(value))
    console.print(table)


def print_doctor(console: Console, report: Mapping[str, Any]) -> None:
    """Print what the doctor found; the problems last, where they are seen."""
    threads, memory, disk = report["threads"], report["memory"], report["disk"]
    compiled, cluster = report["compiled"], report["cluster"]
    facts = {
        "distclust": f"{report['distclust']} on Python {report['python']}, {report['platform']}",
        "packages": ", ".join(f"{name} {version}" for name, version in report["packages"].items()),
        "threads": f"{threads['used']} used, {threads['allowed']} of {threads['cores']} allowed",
        "memory": f"{size(memory['available'])} free of {size(memory['total'])}",
        "disk": f"{size(disk['free'])} free in {disk['folder']}",
        "compiled code": f"{count(compiled['functions'], 'function')} in {compiled['folder']}",
        "missing": "; ".join(f"{n}: {use}" for n, use in report["missing"].items()) or "nothing",
        "cluster": "none, work runs in this process" if cluster is None else _cluster(cluster),
    }
    print_facts(console, facts)
    for problem in report["problems"]:
        console.print(Text(f"Problem: {problem}", style="bold red"))
    if not report["problems"]:
        console.print("No problems found.")


def _cluster(cluster: Mapping[str, Any]) -> str:
    workers, threads = count(cluster["workers"], "worker"), count(cluster["threads"], "thread")
    return f"{cluster['scheduler']}, {workers}, {threads}, {size(cluster['memory'])} of memory"


def count(number: int, noun: str) -> str:
    """``1 row``, ``1,200 rows``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def power_of_ten(log10: float) -> str:
    """``4,862`` or ``2e31``: a whole number from its decimal logarithm."""
    if log10 < 6:
        return f"{round(10**log10):,}"
    exponent = int(log10)
    return f"{10 ** (log10 - exponent):.1f}e{exponent}"


def size(n_bytes: float) -> str:
    """A number of bytes in the unit people would use."""
    for unit in ("B", "KB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"


def duration(seconds: float) -> str:
    """A time in the unit people would use."""
    if seconds < 1:
        return "under a second"
    if seconds < 120:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 7200 else f"about {seconds / 3600:.0f} h"
