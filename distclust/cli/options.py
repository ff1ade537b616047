"""Options that several verbs take."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from distclust.commands.common import Common
    from distclust.commands.trees import Reading

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)


_COSTS = "Print passes, memory, disk and time; run nothing."


def common_options(command: Command) -> Command:
    """Add what every verb takes whose seed is not named elsewhere."""
    seed = click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Seed of all random choices; commands that make none accept it too.",
    )
    return seed(telling_options(_COSTS)(command))


def telling_options(plan: str) -> Callable[[Command], Command]:
    """Add how much is told, and ``--plan`` with what it tells."""

    def add(command: Command) -> Command:
        for option in (
            click.option("-q", "--quiet", is_flag=True, help="No progress and no summary."),
            click.option("-v", "--verbose", count=True, help="More log lines; twice for all."),
            click.option("--plan", is_flag=True, help=plan),
            click.option(
                "--json", "as_json", is_flag=True, help="One JSON document on standard output."
            ),
        ):
            command = option(command)
        return command

    return add


def reading_options(command: Command) -> Command:
    """Add how to read a table."""
    for option in (
        click.option("--category", multiple=True, help="A column of codes, not numbers."),
        click.option("--drop", multiple=True, help="A column to leave out."),
        click.option(
            "--ids",
            help="The column that names the rows; '' for none. "
            "By default the first one if it is text and all its values differ.",
        ),
    ):
        command = option(command)
    return command


def prior_options(command: Command) -> Command:
    """Add the prior of Bayesian Sets."""
    for option in (
        click.option(
            "--smoothing",
            type=float,
            default=0.0,
            show_default=True,
            help="Added to the counts of ones and zeros of every feature.",
        ),
        click.option(
            "--kappa", type=float, default=2.0, show_default=True, help="Strength of the prior."
        ),
    ):
        command = option(command)
    return command


def running_options(command: Command) -> Command:
    """Add where to run and where to log progress."""
    for option in (
        click.option("--events", type=FILE, help="Append progress to a file as JSON lines."),
        click.option(
            "--scheduler",
            default=None,
            help="threads (this process), local (worker processes here), or tcp://HOST:PORT.",
        ),
    ):
        command = option(command)
    return command


def workers_option(command: Command) -> Command:
    """Add how many processes a local cluster has."""
    return click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Processes of --scheduler local.  [default: one a core]",
    )(command)


def keeping_options(suffix: str) -> Callable[[Command], Command]:
    """Add where a model goes whose fit resumes; that of a store has a name and a `suffix`."""

    def add(command: Command) -> Command:
        for option in (
            click.option(
                "--fresh", is_flag=True, help="Discard an unfinished fit instead of going on."
            ),
            click.option(
                "--results",
                help=f"Results store for the model and its checkpoints.  [default: STORE{suffix}]",
            ),
            click.option(
                "-o",
                "--out",
                help="Tables: file for the model, or a results store (a name that ends in /).",
            ),
        ):
            command = option(command)
        return command

    return add


def take_reading(options: dict[str, Any]) -> Reading:
    """Return how to read a table."""
    from distclust.commands.trees import Reading

    return Reading(options.pop("ids"), options.pop("drop"), options.pop("category"))


def take_common(options: dict[str, Any]) -> Common:
    """Return the common options, and set up logging as they say."""
    from distclust.commands.common import Common

    verbose = options.pop("verbose")
    level = [logging.WARNING, logging.INFO, logging.DEBUG][min(verbose, 2)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    if verbose < 2:
        handler.addFilter(_is_ours_or_grave)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    return Common(**options)


def _is_ours_or_grave(record: logging.LogRecord) -> bool:
    """Leave out what others log, such as Dask on every worker that comes and goes.

    asyncio complains of tasks that an interrupt cut off, which is what an interrupt is for.
    """
    if record.name.startswith("distclust"):
        return True
    return record.levelno >= logging.ERROR and record.name != "asyncio"
