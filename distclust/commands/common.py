"""What all commands share: where they run, what they say, what they refuse to overwrite."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distclust import events
from distclust.errors import InputError, MissingFileError
from distclust.report.listeners import json_lines, progress

if TYPE_CHECKING:
    from rich.console import Console

    from distclust.report.ensemble_plan import EnsemblePlan
    from distclust.report.mixture_plan import ChainsPlan
    from distclust.report.plan import LargePlan, Plan
    from distclust.report.projections import KernelPlan

    AnyPlan = Plan | LargePlan | KernelPlan | ChainsPlan | EnsemblePlan


@dataclass(frozen=True)
class Common:
    """Options that every verb takes."""

    as_json: bool = False
    seed: int = 0
    plan: bool = False
    quiet: bool = False
    events: Path | None = None  # file for JSON lines of progress


def is_url(place: str) -> bool:
    """Whether a place is a URL rather than a path."""
    return "://" in place


def check_output(path: Path, *inputs: Path, is_model: bool = True) -> None:
    """Refuse an output that cannot be written or would destroy something, before work."""
    hint = "Choose another name with the option for it."
    if not path.resolve().parent.is_dir():
        got = f"no folder {str(path.parent)!r}"
        raise MissingFileError(str(path), "a place to write to", got, "Create the folder first.")
    if not os.access(path.resolve().parent, os.W_OK):
        got = f"no permission in {str(path.parent)!r}"
        raise MissingFileError(str(path), "a place to write to", got, hint)
    if path.is_dir():
        raise InputError(str(path), "a file to write to", "a folder", hint)
    if path.exists() and not path.is_file():
        raise InputError(str(path), "an ordinary file to write to", "a device", hint)
    if path.resolve() in {other.resolve() for other in inputs}:
        raise InputError(str(path), "an output apart from the inputs", "an input", hint)
    if is_model and path.exists() and path.stat().st_size and not _looks_like_model(path):
        got = "an existing file of another kind"
        raise InputError(str(path), "a new file or an older model", got, hint)


def check_events(common: Common, *others: Path) -> None:
    """Refuse a log of events that would spoil another file."""
    if common.events is not None:
        check_output(common.events, *others, is_model=False)
        check_replaceable(common.events, b"{", "events")


def check_replaceable(path: Path, start: bytes, kind: str) -> None:
    """Refuse an existing file that does not start as one of ours does."""
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            if file.read(len(start)) != start:
                got = "an existing file of another kind"
                hint = "Choose another name."
                raise InputError(str(path), f"a new file or one with {kind}", got, hint)


def _looks_like_model(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


@contextmanager
def connected(scheduler: str | None, **options: Any) -> Iterator[None]:
    """Run what is inside on `scheduler`; without one, where the process already runs."""
    if scheduler is None:
        yield
        return
    from distclust.engine import connect

    if scheduler == "threads":
        session = connect(scheduler)
    else:
        with events.stage(f"connecting to {scheduler}", 1) as starting:
            with _children_ignore_interrupts() if scheduler == "local" else nullcontext():
                session = connect(scheduler, **options)
            starting.advance()
    with session:
        yield


@contextmanager
def _children_ignore_interrupts() -> Iterator[None]:
    """Let processes started inside inherit that Ctrl-C is not for them.

    A terminal sends it to all processes of a command; this one alone decides what to do.
    """
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def followed(common: Common, after: float = 0.0) -> Iterator[None]:
    """Show the progress of what is inside as the options say, if it lasts so many seconds."""
    with progress("off" if common.quiet else "auto", after=after):
        if common.events is None:
            yield
            return
        with common.events.open("a", encoding="utf-8") as file, json_lines(file):
            yield


def say_plan(plan: AnyPlan, common: Common) -> None:
    """Print what work would cost."""
    if common.as_json:
        print_json({"command": "plan", **plan.as_dict()})
    else:
        from distclust.report.terminal import print_facts

        print_facts(console(), plan.facts())


def print_json(document: Mapping[str, Any]) -> None:
    """Print the one JSON document of a command."""
    print(json.dumps(finite(document), ensure_ascii=False, indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """JSON knows no infinities: they become null."""
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def console() -> Console:
    """Return where text for people goes."""
    from rich.console import Console

    return Console()
