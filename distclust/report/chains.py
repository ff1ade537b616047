"""Chains as they run: a table on a terminal, one line for all of them elsewhere.

Every round each chain tells how far it is and its figures (stage "chain 0", "chain 1", ...).
Now and then the plan looks whether they agree, and it says if some have to wait for others
(stage "sampling").
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from distclust.events import Event, Metric
from distclust.report.pace import Start, left

if TYPE_CHECKING:
    from rich.console import RenderableType

STAGE = "sampling"
MOST_SHOWN = 16  # chains in the table

_CHAIN = re.compile(r"chain (\d+)")
_ORDER = ("log_joint", "n_clusters", "concentration")
_HEADS = {"log_joint": "log joint", "n_clusters": "clusters"}


@dataclass
class _Sampling:
    """The chains of one job."""

    chains: dict[int, Event] = field(default_factory=dict)
    starts: dict[int, Start] = field(default_factory=dict)
    look: Event | None = None  # the last one at which agreement was looked at
    note: str = ""


class Board:
    """What is known of chains that run; filled by events from any thread."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Sampling] = {}
        self._lock = threading.Lock()

    def take(self, event: Event) -> bool:
        """Keep an event if it is of chains; return whether it is."""
        found = _CHAIN.fullmatch(event.stage)
        if found is None and event.stage != STAGE:
            return False
        with self._lock:
            sampling = self._jobs.setdefault(event.job, _Sampling())
            if found is not None:
                _take_chain(sampling, int(found[1]), event)
            elif "note" in event.metrics:
                sampling.note = str(event.metrics["note"])
            elif "rhat" in event.metrics:
                sampling.look = event
        return True

    def merged(self, job: str) -> Event | None:
        """Return the chains of a job as one event, with figures from the least to the greatest.

        None as long as no chain was heard of.
        """
        with self._lock:
            sampling = self._jobs.get(job)
            if sampling is None or not sampling.chains:
                return None
            chains = list(sampling.chains.values())
            slowest = min(chains, key=lambda chain: chain.done)
            figures: dict[str, Metric] = {
                head(name): _span([chain.metrics.get(name) for chain in chains])
                for name in slowest.metrics
            }
            if sampling.look is not None:
                figures |= dict(_agreement(sampling.look))
            return Event(job, STAGE, slowest.done, slowest.total, figures, slowest.time)

    def renderables(self) -> Iterator[RenderableType]:
        """Yield what rich draws: for each job a table, and below it whether chains agree."""
        with self._lock:
            for sampling in self._jobs.values():
                yield from _drawn(sampling, time.monotonic())


def note_of(event: Event) -> str:
    """Return what is to be said at once, such as that chains wait for others; else nothing."""
    return str(event.metrics.get("note", "")) if event.stage == STAGE else ""


def _take_chain(sampling: _Sampling, chain: int, event: Event) -> None:
    before = sampling.chains.get(chain)
    if before is not None and event.done < before.done and chain == min(sampling.chains):
        sampling.chains.clear()  # other chains of the same job, one fit after another
        sampling.starts.clear()
        sampling.look = None
    if chain not in sampling.starts:
        sampling.starts[chain] = time.monotonic(), event.done
    sampling.chains[chain] = event


def _drawn(sampling: _Sampling, now: float) -> Iterator[RenderableType]:
    from rich.text import Text

    if sampling.chains:
        yield _table(sampling, now)
        more = len(sampling.chains) - MOST_SHOWN
        if more > 0:
            yield Text(f"and {more:,} more chains", style="dim")
    if sampling.look is not None:
        told = "; ".join(f"{name} {value}" for name, value in _agreement(sampling.look))
        yield Text(f"{told}, after {sampling.look.done:,} sweeps", style="dim")
    if sampling.note:
        yield Text(sampling.note, style="dim")


def _table(sampling: _Sampling, now: float) -> Any:
    from rich.table import Table

    shown = sorted(sampling.chains)[:MOST_SHOWN]
    names = list(sampling.chains[shown[0]].metrics)
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for text in ("chain", "sweeps", *map(head, names)):
        table.add_column(text, justify="right", no_wrap=True)
    table.add_column("", style="dim", no_wrap=True)
    for chain in shown:
        event = sampling.chains[chain]
        done = f"{event.done:,}" if event.total is None else f"{event.done:,} of {event.total:,}"
        figures = (_short(event.metrics.get(name)) for name in names)
        table.add_row(str(chain), done, *figures, left(event, now, sampling.starts[chain]))
    return table


def _agreement(look: Event) -> list[tuple[str, str]]:
    found = [("worst R-hat", _short(look.metrics["rhat"]))]
    samples = look.metrics.get("ess")
    if isinstance(samples, int | float):
        found.append(("least effective samples", _short(math.floor(samples))))
    return found


def ordered(names: Iterable[str]) -> list[str]:
    """Return traced figures in the order in which they are shown."""
    found = list(names)
    return [*(n for n in _ORDER if n in found), *sorted(n for n in found if n not in _ORDER)]


def head(name: str) -> str:
    """Return a traced figure by the name that people read."""
    return _HEADS.get(name, name.replace("_", " "))


def _span(values: list[Metric | None]) -> str:
    known = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    if not known:
        return "unknown"
    least, most = _short(min(known)), _short(max(known))
    return least if least == most else f"{least} to {most}"


def _short(value: Metric | None) -> str:
    """Return a figure with the digits that people read: log joints run to millions."""
    if not isinstance(value, int | float):
        return "" if value is None else value
    if not math.isfinite(value):
        return "unknown"
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3f}"
