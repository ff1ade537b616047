"""What fits that resume have in common: where models go, who works, what an interrupt costs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distclust import events
from distclust.commands.common import Common, check_events, check_output, connected, is_url
from distclust.commands.large import RESUMES, is_store, open_results
from distclust.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from distclust.store.results import ResultsStore


@dataclass(frozen=True)
class Fitting:
    """What to fit, and where it goes; parameters that are None keep their default.

    Attributes
    ----------
    parameters
        Of the estimator.
    out
        A model file, or a results store by its form.
    results
        A results store.
    fresh
        Discard an unfinished fit instead of going on with it.
    scheduler, workers
        Where to run; processes of a local cluster.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    out: str | None = None
    results: str | None = None
    fresh: bool = False
    scheduler: str | None = None
    workers: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """Parameters that were given."""
        return {name: value for name, value in self.parameters.items() if value is not None}


@dataclass(frozen=True)
class Place:
    """Where a model goes: a file, or a results store, in which the fit also saves its state."""

    path: str
    store: ResultsStore | None

    @property
    def results(self) -> str | None:
        """What ``fit(results=...)`` takes."""
        return None if self.store is None else self.path


def find_place(source: str, fitting: Fitting, common: Common, *, verb: str, suffix: str) -> Place:
    """Return where the model goes; refuse what could not be written, before any work.

    The results of a store lie beside it, under its name and `suffix`.
    """
    path, is_results = _chosen(source, fitting, verb, suffix)
    store = open_results(path, "--results") if is_results else None
    if store is None:
        check_output(Path(path), Path(source))
        if fitting.fresh:
            got, hint = f"a model file, {path}", "Leave --fresh out, or name --results."
            raise InputError("--fresh", "a fit that resumes, in a results store", got, hint)
    check_events(common, Path(source), Path(path))
    return Place(path, store)


def _chosen(source: str, fitting: Fitting, verb: str, suffix: str) -> tuple[str, bool]:
    """Return where the model goes, and whether that is a results store."""
    if fitting.out is not None and fitting.results is not None:
        raise InputError(verb, "--out or --results", "both of them", "Leave one of them out.")
    if fitting.results is not None:
        return fitting.results, True
    if is_store(source):
        return fitting.out or f"{source.rstrip('/')}{suffix}", True
    if fitting.out is None:
        hint = "Name a model file with --out, or a results store with --results."
        raise InputError(verb, "a place for the model of a table", "none", hint)
    out = fitting.out
    return out, is_url(out) or out.endswith(os.sep) or os.path.isdir(out)


@contextmanager
def hands(fitting: Fitting) -> Iterator[tuple[int, int, float]]:
    """Give processes, threads and their memory as they would be; nothing is started."""
    import psutil

    from distclust.engine import allowed_cores, current_client, local_threads

    scheduler = fitting.scheduler
    if scheduler == "local":
        n_workers = fitting.workers or allowed_cores()
        yield n_workers, max(n_workers, allowed_cores()), float(psutil.virtual_memory().total)
        return
    if scheduler in (None, "threads") and current_client() is None:
        yield 1, local_threads(), float(psutil.virtual_memory().available)
        return
    with connected(scheduler):
        client: Any = current_client()
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        memory = sum(worker["memory_limit"] for worker in workers)
        yield max(1, len(workers)), max(1, sum(w["nthreads"] for w in workers)), float(memory)


@contextmanager
def running(scheduler: str | None, workers: int | None) -> Iterator[None]:
    """Run what is inside where the options say."""
    if workers is not None and scheduler != "local":
        hint = "Pass --scheduler local, or leave --workers out."
        raise InputError("--workers", "--scheduler local", scheduler or "none", hint)
    with connected(scheduler, **({} if workers is None else {"workers": workers})):
        yield


@contextmanager
def resumable(results: ResultsStore | None) -> Iterator[None]:
    """Say of an interrupt that nothing is lost by it, where that is so."""
    try:
        yield
    except KeyboardInterrupt as error:
        if results is None:
            raise
        raise KeyboardInterrupt(RESUMES) from error


@contextmanager
def heard_of_resuming(
    common: Common, resumed_after: Callable[[events.Event], int | None], step: str
) -> Iterator[list[int | None]]:
    """Say that a fit goes on where another one was cut off; give after which step.

    `resumed_after` returns the number of the step if an event tells of it.
    """
    found: list[int | None] = [None]

    def hear(event: events.Event) -> None:
        after = resumed_after(event)
        if after is not None:
            found[0] = after
            if not common.quiet:
                print(f"distclust: resuming after {step} {after}", file=sys.stderr)

    with events.listen(hear):
        yield found


def say_where(screen: Console, version: str | None, place: str, seconds: float) -> None:
    """Print where the model is, and how long it took."""
    made = f"Version {version} is now current in" if version else "Model written to"
    screen.print(f"{made} {place}; {seconds:,.1f} s", highlight=False, soft_wrap=True)
