"""What a run of a job did, for people: an HTML page that needs nothing else, and a summary.

Both are made from the record of the run as JSON values (see `distclust.jobs.record`), so that a
record of any run, read back, can be shown again.
"""

from __future__ import annotations

import datetime
import importlib.resources
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.table import Table
from rich.text import Text

from distclust.report.terminal import count, print_facts, size

if TYPE_CHECKING:
    import markupsafe
    from rich.console import Console

Record: TypeAlias = Mapping[str, Any]

KINDS = ("born", "split", "merged", "regrouped", "gone")
SHOWN_CHANGES = 10  # of a kind, in a table
SHOWN_RUNS = 30
_SHOWN_TEXT = 200  # characters of a value that may be anything

_STYLES = {
    "published": "good",
    "nothing new": "quiet",
    "gates failed": "bad",
    "failed": "bad",
    "interrupted": "warn",
    "cut off": "bad",
}
_IN_SENTENCE = {"refit below": "refit in part"}
_COLOURS = {"good": "green", "quiet": "dim", "bad": "bold red", "warn": "yellow"}


def sentence(record: Record) -> str:
    """Say what happened."""
    rows, after = record["input"]["rows"], duration(record["seconds"])
    outcome, error = record["outcome"], (record["error"] or "").rstrip()
    if outcome == "published":
        return f"Published state {record['published']}: {_intake(rows)}; {_actions(record)}."
    if outcome == "nothing new":
        n_files = sum(record["input"]["files"].values())
        looked_at = f" in {count(n_files, 'file')}" if n_files else ""  # a store has none
        return f"Nothing new{looked_at}: nothing was published."
    if outcome == "gates failed":
        failed = [gate["name"] for gate in record["gates"] if not gate["passed"]]
        named = f"{len(failed)} of {count(len(record['gates']), 'gate')} failed"
        return f"Not published: {named} ({', '.join(failed)}). The published state is as it was."
    if outcome == "interrupted":
        return f"Interrupted after {after}; running again goes on. {error}".rstrip()
    if outcome == "cut off":
        return f"Cut off; running again goes on. {error}".rstrip()
    return f"Failed after {after}. {error}".rstrip()


def _intake(rows: Mapping[str, int]) -> str:
    said = [f"{rows[name]:,} {name}" for name in ("added", "changed", "deleted") if rows[name]]
    changes = ", ".join(said) or "no rows changed"
    return f"{count(rows['after'], 'row')} ({changes})"


def _actions(record: Record) -> str:
    said = [
        f"{model['name']} {_IN_SENTENCE.get(model['action'], model['action'])}"
        for model in record["models"]
    ]
    return ", ".join(said) or "no models"


def duration(seconds: float) -> str:
    """Return a measured time as people read it."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def changes_line(clusters: Mapping[str, Any]) -> str:
    """Say what became of the clusters of a model, in numbers."""
    counts = clusters["counts"]
    said = [f"{counts[kind]:,} {kind}" for kind in KINDS if counts.get(kind)]
    said.append(f"{counts['continued']:,} continued")
    return f"{clusters['before']:,} → {clusters['after']:,} clusters: {', '.join(said)}"


# The terminal


def print_status(console: Console, facts: Mapping[str, Any]) -> None:
    """Print what a job has published, who is at work, and how its last runs ended."""
    state, at_work = facts["published"], facts["at_work"]
    told = {"job": facts["job"], "results": facts["out"], "published": "nothing yet"}
    if state is not None:
        told["published"] = f"state {state['number']} of {_moment(state['time'])}"
        told["rows"] = f"generation {state['generation']} of {state['store']}"
    for name, model in ({} if state is None else state["models"]).items():
        told[name] = f"{model['kind']}, version {model['version']}"
    if at_work is not None:
        told["not ended"] = f"run {at_work['run']} on {at_work['host']}"
    print_facts(console, told)
    for record in facts["runs"]:
        style = _COLOURS[_STYLES[record["outcome"]]]
        line = f"{_moment(record['started'])}  {sentence(record)}"
        console.print(Text(line, style="" if style == "dim" else style))


def print_run(console: Console, record: Record) -> None:
    """Print what a run did; without colours where nobody sees them."""
    style = _COLOURS[_STYLES[record["outcome"]]]
    console.print(Text(sentence(record), style="" if style == "dim" else style))
    facts = dict(_facts(record))
    if facts:
        print_facts(console, facts)
    if record["models"]:
        console.print(_models_table(record["models"]))
    for gate in record["gates"]:
        if not gate["passed"]:
            told = f"Gate {gate['name']}: expected {_text(gate['expected'])}"
            console.print(Text(f"{told}, got {_text(gate['got'])}.", style="bold red"))
    for hook in record["hooks"]:
        if hook["status"] != "done":
            console.print(Text(f"Hook {_hook(hook)}", style="yellow"))


def _facts(record: Record) -> Iterable[tuple[str, str]]:
    files, cost = record["input"]["files"], record["cost"]
    if sum(files.values()):
        said = [f"{number:,} {name}" for name, number in files.items() if number]
        yield "files", ", ".join(said)
    yield "took", duration(record["seconds"]) + _stages(cost["stages"])
    if cost["peak_memory_bytes"]:
        yield "memory", f"{size(cost['peak_memory_bytes'])} at the peak"
    pruned = [f"{name} {_text(value)}" for name, value in record["pruned"].items() if value]
    if pruned:
        yield "pruned", ", ".join(pruned)


def _stages(stages: Mapping[str, float]) -> str:
    said = [f"{name} {duration(seconds)}" for name, seconds in stages.items()]
    return f" ({', '.join(said)})" if said else ""


def _models_table(models: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for name in ("model", "kind", "action"):
        table.add_column(name, no_wrap=True)
    table.add_column("what happened", ratio=1)
    for model in models:
        told = model["reason"]
        if model["clusters"]:
            told += f"\n{changes_line(model['clusters'])}"
        table.add_row(*map(Text, (model["name"], model["kind"], model["action"], told)))
    return table


def _hook(hook: Mapping[str, Any]) -> str:
    code = "" if hook["exit_code"] is None else f" with exit code {hook['exit_code']}"
    output = f": {hook['output']}" if hook["output"] else ""
    return f"{' '.join(hook['command'])} ({hook['event']}): {hook['status']}{code}{output}"


# The page


def render_run(record: Record, history: Sequence[Record] = ()) -> str:
    """Return the report of a run as HTML text.

    Parameters
    ----------
    record
        The run.
    history
        The runs before it, the oldest first; the last ones are shown.
    """
    import jinja2

    runs = [*history, record][-SHOWN_RUNS:]
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "text": _text,
        "duration": duration,
        "size": size,
        "number": lambda value: f"{value:,}",
        "moment": _moment,
        "hook": _hook,
        "changes_line": changes_line,
        "style": _STYLES.__getitem__,
    }
    source = importlib.resources.files("distclust.report") / "jobs.html.jinja"
    template = environment.from_string(source.read_text(encoding="utf-8"))
    return template.render(
        record=record,
        sentence=sentence(record),
        facts=_page_facts(record),
        models=[_shown_model(model) for model in record["models"]],
        charts=list(_charts(runs)) if len(runs) > 1 else [],
        stages=_shares(record["cost"]["stages"]),
        runs=[(run, _clusters_after(run)) for run in reversed(runs)],
    )


def _page_facts(record: Record) -> dict[str, str]:
    rows, cost = record["input"]["rows"], record["cost"]
    facts = {"outcome": record["outcome"], "rows": f"{rows['after']:,}"}
    signs = (("added", "+"), ("changed", "~"), ("deleted", "−"))
    changes = [f"{sign}{rows[name]:,}" for name, sign in signs if rows[name]]
    facts["rows changed"] = " ".join(changes) or "none"
    facts["wall time"] = duration(record["seconds"])
    if cost["cpu_seconds"]:
        facts["processor time"] = duration(cost["cpu_seconds"])
    if cost["peak_memory_bytes"]:
        facts["peak memory"] = size(cost["peak_memory_bytes"])
    return facts


def _shown_model(model: Mapping[str, Any]) -> dict[str, Any]:
    from distclust.report.job_pictures import flows

    clusters = model["clusters"]
    return {
        **model,
        "picture": flows(clusters) if clusters else None,
        "changes": list(_changes(clusters)) if clusters else [],
        "figures": list(_compared(model["metrics"]["before"], model["metrics"]["after"])),
        "drift": list(_drift(model["drift"] or {})),
        "nodes": list(_drifted(model["drift"] or {}, model["action"])),
    }


def _drift(drift: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Figures of drift; what is said of nodes has a table of its own."""
    for name, value in drift.items():
        if not isinstance(value, (list, dict)):
            yield name.replace("_", " "), _text(value)


def _drifted(drift: Mapping[str, Any], action: str) -> Iterable[tuple[str, ...]]:
    """Lines of the table of nodes: which, new rows, standard errors, what was done."""
    nodes = drift.get("nodes")
    told = [node for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
    for node in told[:SHOWN_CHANGES]:
        # Where the whole model was fitted anew, that is what became of them.
        told_of = "drifted" if action == "fitted" else "divided again"
        done = told_of if node.get("is_reopened") else ""
        new, z = node.get("n_new"), node.get("z")
        yield _text(node.get("node")), _text(new), "" if z is None else f"{z:.1f}", done


def _changes(clusters: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Lines of the table of changes, and how many of each kind are not among them."""
    for kind in KINDS:
        changes = clusters.get(kind, [])[:SHOWN_CHANGES]
        for i, change in enumerate(changes):
            is_last = i == len(changes) - 1
            yield {
                "kind": kind,
                "before": _side(change, "before"),
                "after": _side(change, "after"),
                "more": clusters["counts"][kind] - len(changes) if is_last else 0,
            }


def _side(change: Mapping[str, Any], side: str) -> str:
    said = [f"{each['cluster']} ({each['rows']:,})" for each in change[side]]
    more = change[f"n_{side}"] - len(said)
    return ", ".join(said) + (f" and {more:,} more" if more else "")


def _compared(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterable[tuple[str, str, str, str]]:
    """Name, value before, value after and difference of figures that are short enough."""
    for name in sorted(before.keys() | after.keys()):
        pair = before.get(name), after.get(name)
        if any(isinstance(value, (list, dict)) for value in pair):
            continue  # such as the rows of every cluster
        is_number = all(type(value) in (int, float) for value in pair)
        difference = f"{pair[1] - pair[0]:+,.6g}" if is_number else ""  # type: ignore[operator]
        yield name, _text(pair[0]), _text(pair[1]), difference


def _shares(stages: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Name, seconds and percentage of the longest, of every stage."""
    longest = max(stages.values(), default=0.0) or 1.0
    return [(name, seconds, 100 * seconds / longest) for name, seconds in stages.items()]


def _charts(runs: Sequence[Record]) -> Iterable[markupsafe.Markup]:
    """Draw rows, clusters of every model and wall time over the runs."""
    from distclust.report.job_pictures import Bar, bars

    def bar(run: Record, value: float | None, unit: str) -> Bar:
        said = "" if value is None else f": {value:,.6g} {unit}"
        about = f"{_moment(run['started'])}, {run['outcome']}{said}"
        return Bar(value, f"run-{_STYLES[run['outcome']]}", about)

    yield bars([bar(run, run["input"]["rows"]["after"] or None, "rows") for run in runs], "rows")
    for name in sorted({name for run in runs for name in _clusters_after(run)}):
        values, known = [], None
        for run in runs:  # a run that did not touch a model does not count its clusters
            known = _clusters_after(run).get(name, known)
            values.append(bar(run, known, "clusters"))
        yield bars(values, f"clusters of {name}")
    yield bars([bar(run, run["seconds"], "s") for run in runs], "wall time in seconds")


def _clusters_after(run: Record) -> dict[str, int]:
    return {m["name"]: m["clusters"]["after"] for m in run["models"] if m["clusters"]}


def _moment(time: str) -> str:
    moment = datetime.datetime.fromisoformat(time).astimezone(datetime.UTC)
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _text(value: Any) -> str:
    """Return any JSON value as people read it, if short."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if type(value) is int:
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.1f}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_TEXT else f"{text[:_SHOWN_TEXT]}…"
