"""Verbs around jobs: results that are kept up to date."""

from __future__ import annotations

from typing import Any

import click

from distclust.cli.options import (
    FILE,
    common_options,
    running_options,
    take_common,
    telling_options,
)


@click.command()
@click.argument("job", type=FILE)
@click.option("--refit", multiple=True, metavar="MODEL", help="Fit a model anew, whatever is new.")
@click.option("--accept", is_flag=True, help="Publish even if gates fail.")
@running_options
@telling_options("Print which files are new and what would become of each model; run nothing.")
def run(job: Any, scheduler: str | None, **options: Any) -> int:
    """Bring the results of a job up to date: what is needed, and no more.

    JOB is a file that `distclust job init` writes and explains. New, changed and deleted input
    is brought in, models are updated or fitted anew where rows drifted, gates are asked, and
    all of it is published by one step. Killed and run again, it goes on. --plan says what
    would be done.

    Exit code 0: published, or nothing new. 4: kept aside, because a gate failed.

    \b
    Example:
      distclust run articles.toml
      distclust run articles.toml --plan
      distclust run articles.toml --refit topics --scheduler tcp://10.0.0.5:8786
    """
    from distclust.commands import jobs

    refit, accept = options.pop("refit"), options.pop("accept")
    return jobs.run(job, refit, accept, scheduler, take_common(options))


@click.group()
def job() -> None:
    """Write, check and look at jobs; `distclust run` runs them.

    \b
    Example:
      distclust job init articles.toml
      distclust job status articles.toml
    """


@job.command()
@click.argument("path", type=FILE, default="job.toml")
@common_options
def init(path: Any, **options: Any) -> None:
    """Write a job file with every key explained.

    \b
    Example:
      distclust job init articles.toml
    """
    from distclust.commands import jobs

    jobs.init(path, take_common(options))


@job.command()
@click.argument("path", type=FILE, metavar="JOB")
@common_options
def check(path: Any, **options: Any) -> None:
    """Check a job file, parameters of models and places included; nothing is run.

    \b
    Example:
      distclust job check articles.toml
    """
    from distclust.commands import jobs

    jobs.check(path, take_common(options))


@job.command()
@click.argument("path", type=FILE, metavar="JOB")
@click.option("--runs", type=click.IntRange(min=1), default=10, show_default=True)
@common_options
def status(path: Any, runs: int, **options: Any) -> None:
    """Show what is published, who is at work, and how the last runs ended.

    \b
    Example:
      distclust job status articles.toml
      distclust job status articles.toml --json
    """
    from distclust.commands import jobs

    jobs.status(path, runs, take_common(options))


VERBS = (run, job)
