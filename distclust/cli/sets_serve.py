"""The verb that serves Bayesian Sets over HTTP."""

from __future__ import annotations

from typing import Any

import click

from distclust.cli.options import common_options, prior_options, running_options, take_common


@click.command()
@click.argument("store")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 for any free one.",
)
@click.option(
    "--token",
    envvar="DISTCLUST_TOKEN",
    help="What clients have to show.  [env: DISTCLUST_TOKEN; default: nothing]",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Requests at a time; one more is told to come back later.",
)
@click.option(
    "--timeout",
    default="10s",
    show_default=True,
    help="Longest time of a request, such as 500ms, 10s or 2min.",
)
@prior_options
@click.option("--family", default="bernoulli", show_default=True, help="As for `sets query`.")
@click.option("--index", help="Where the index lies.  [default: STORE.sets, if it is there]")
@running_options
@common_options
def serve(store: str, scheduler: str | None, **options: Any) -> None:
    """Answer queries over HTTP, with a page to ask them on.

    The page is at the address that is printed; /openapi.json describes the API. Only this
    machine can reach it unless --host says otherwise; then use a token. Build the index
    first (`distclust sets build`): queries take milliseconds with it. Needs the extra
    `distclust[service]`. Ends on Ctrl-C or SIGTERM when running requests are answered.

    \b
    Example:
      distclust sets serve films.zarr
      DISTCLUST_TOKEN=... distclust sets serve films.zarr --host 0.0.0.0 --port 80
      distclust sets serve s3://bucket/films.zarr --scheduler tcp://10.0.0.5:8786
    """
    from distclust.commands import serve

    names = ("host", "port", "token", "limit", "timeout", "kappa", "smoothing", "family", "index")
    serving = serve.Serving(**{name: options.pop(name) for name in names})
    serve.serve(store, serving, scheduler, take_common(options))
