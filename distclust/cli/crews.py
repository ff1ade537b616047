"""Verbs around crews: what runs on a scheduler, and how to clear a worker."""

from __future__ import annotations

from typing import Any

import click

from distclust.cli.options import common_options, take_common

_scheduler = click.option("--scheduler", help="Address of the scheduler: tcp://HOST:PORT.")


@click.group(invoke_without_command=True)
@_scheduler
@click.option("--members", is_flag=True, help="A line for each member, too.")
@click.option("--watch", is_flag=True, help="Keep the table up to date until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks with --watch.",
)
@common_options
@click.pass_context
def crews(context: click.Context, /, scheduler: str | None, **options: Any) -> None:
    """Show what crews do on a scheduler: state, position, checkpoint, restarts, workers.

    With --watch the table stays up to date on a terminal; elsewhere a line is printed when
    there is news. --json prints one document, or with --watch one a line.

    \b
    Example:
      distclust crews --scheduler tcp://10.0.0.5:8786
      distclust crews --scheduler tcp://10.0.0.5:8786 --members --watch
      distclust crews drain tcp://10.0.0.7:40123 --scheduler tcp://10.0.0.5:8786
    """
    if context.invoked_subcommand is not None:
        return
    from distclust.commands import crews

    names = ("members", "watch", "every")
    looking = crews.Looking(**{name: options.pop(name) for name in names})
    crews.show(scheduler, looking, take_common(options))


@crews.command()
@click.argument("address")
@_scheduler
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds that crews have to leave.",
)
@common_options
@click.pass_context
def drain(
    context: click.Context, /, address: str, scheduler: str | None, timeout: float, **options: Any
) -> None:
    """Have all crews leave a worker, then retire it.

    ADDRESS is that of the worker, as `distclust crews --members` shows it. Members are saved
    and go on elsewhere; nothing is computed twice. Dask by itself never retires a worker
    that holds members of a crew.

    \b
    Example:
      distclust crews drain tcp://10.0.0.7:40123 --scheduler tcp://10.0.0.5:8786
    """
    from distclust.commands import crews

    assert context.parent is not None
    place = scheduler or context.parent.params["scheduler"]
    crews.drain(address, place, timeout, take_common(options))


VERBS = (crews,)
