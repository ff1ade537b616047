"""Verbs of Bayesian Sets: what else belongs with a few given items."""

from __future__ import annotations

from typing import Any

import click

from distclust.cli.options import common_options, prior_options, running_options, take_common
from distclust.cli.sets_serve import serve

FAMILIES = ("bernoulli", "categorical", "multinomial", "poisson", "diagonal-gaussian")


@click.group()
def sets() -> None:
    """Bayesian Sets: name a few items, see what else belongs with them.

    STORE is a matrix store (see `distclust ingest`); its rows are the items.

    \b
    Example:
      distclust sets build films.zarr
      distclust sets query films.zarr "Mary Poppins" "Toy Story" -k 20
      distclust sets serve films.zarr
    """


@sets.command()
@click.argument("store")
@click.option("--index", help="Where the index lies.  [default: STORE.sets]")
@click.option(
    "--fresh",
    is_flag=True,
    help="Make every part anew, whatever is there; for an index that was damaged.",
)
@running_options
@common_options
def build(
    store: str, index: str | None, fresh: bool, scheduler: str | None, **options: Any
) -> None:
    """Build the index of a store, or bring it up to date.

    Queries also work without one: they read all rows. The index spares that. After rows
    were added or deleted the same command makes the parts that changed and takes over the
    others; killed and run again, it goes on. The store holds zeros and ones.

    \b
    Example:
      distclust sets build films.zarr
      distclust sets build s3://bucket/films.zarr --index /scratch/films.sets --scheduler local
    """
    from distclust.commands import sets

    sets.build(store, index, scheduler, take_common(options), fresh=fresh)


@sets.command()
@click.argument("store")
@click.argument("items", nargs=-1, required=True)
@click.option(
    "-k", "k", type=click.IntRange(min=1), default=10, show_default=True, help="How many to list."
)
@click.option("--explain", is_flag=True, help="Also say which features make the set.")
@click.option("--exclude-query", is_flag=True, help="Leave out the items asked with.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "index", "scan"]),
    default="auto",
    show_default=True,
    help="How to look; the answer is the same.",
)
@prior_options
@click.option(
    "--family",
    default="bernoulli",
    show_default=True,
    help=f"How features are distributed: {', '.join(FAMILIES[:-1])} or {FAMILIES[-1]}.",
)
@click.option("--index", help="Where the index lies.  [default: STORE.sets, if it is there]")
@running_options
@common_options
def query(store: str, items: tuple[str, ...], scheduler: str | None, **options: Any) -> None:
    """Rank the items that best complete a set.

    ITEMS are ids of rows; "-" reads more of them from standard input, one a line. The score
    is the log of how much more probable an item is together with the others than alone.

    \b
    Example:
      distclust sets query films.zarr "Mary Poppins" "Toy Story" -k 20 --explain
      distclust sets query ratings.zarr 17 4711 --exclude-query --json
      cat mine.txt | distclust sets query films.zarr -
    """
    from distclust.commands import sets

    names = ("k", "explain", "exclude_query", "engine", "kappa", "smoothing", "family", "index")
    asking = sets.Asking(**{name: options.pop(name) for name in names})
    sets.query(store, items, asking, scheduler, take_common(options))


sets.add_command(serve)

VERBS = (sets,)
