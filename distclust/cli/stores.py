"""Verbs around stores: corpora and results on disk."""

from __future__ import annotations

from typing import Any

import click

from distclust.cli.options import (
    FILE,
    common_options,
    reading_options,
    running_options,
    take_common,
)

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(context: click.Context, option: click.Parameter, value: str) -> float:
    """Return the seconds of a time such as ``90s``, ``30m``, ``12h`` or ``7d``."""
    number, unit = value[:-1], value[-1:]
    if unit not in _SECONDS or not number.replace(".", "", 1).isdecimal():
        raise click.BadParameter(f"{value!r} is not a time such as 90s, 30m, 12h or 7d")
    return float(number) * _SECONDS[unit]


@click.command()
@click.argument("source", nargs=-1, required=True)
@click.argument("store")
@click.option("--append", is_flag=True, help="Add rows to a store; their ids must be new.")
@click.option("--replace", is_flag=True, help="Add rows to a store; known ids are replaced.")
@click.option(
    "--fresh",
    is_flag=True,
    help="Start over instead of resuming an unfinished run; never removes a complete store.",
)
@click.option(
    "--layout",
    type=click.Choice(["auto", "dense", "csr", "compact"]),
    default="auto",
    show_default=True,
    help="compact: binary data and small counts, the fastest to scan. AnnData reads dense and csr.",
)
@click.option(
    "--storage",
    type=click.Choice(["auto", "hot", "packed"]),
    default="auto",
    show_default=True,
    help="hot: uncompressed, for local disks. packed: compressed shards, for object stores.",
)
@click.option(
    "--duplicates",
    type=click.Choice(["refuse", "first", "last"]),
    default="refuse",
    show_default=True,
    help="Which row to keep when ids repeat.",
)
@click.option(
    "--format",
    "format_",
    help="Kind of source where its name does not say: csv, tsv, parquet, arrow, npy, npz, mtx, "
    "svmlight, text, jsonl, zarr or h5ad.",
)
@click.option("--obs", multiple=True, help="A column to keep as an annotation, not a feature.")
@click.option(
    "--binarise",
    help="Turn numbers into 0/1: a threshold such as 0.5, row-mean, column-mean "
    "(also times a factor: row-mean*2), or skewness.",
)
@click.option("--text-field", help="JSON lines: the field that holds the text.  [default: text]")
@click.option("--id-field", help="JSON lines: the field that names the row.  [default: id]")
@click.option("--ngrams", help="Text: shortest and longest run of words, such as 1,2.")
@click.option("--min-df", help="Text: drop words in fewer documents (a number or a share).")
@click.option("--max-df", help="Text: drop words in more documents (a number or a share).")
@click.option("--max-features", type=click.IntRange(min=1), help="Text: keep the most frequent.")
@click.option("--hashing", type=click.IntRange(min=1), help="Text: hash words into this many.")
@click.option("--stop-words", help="Text: 'english' drops its commonest words.")
@click.option("--keep-case", is_flag=True, help="Text: do not turn words into lower case.")
@click.option("--binary", is_flag=True, help="Text: which words occur, not how often.")
@click.option(
    "--missing-chunks",
    type=click.Choice(["refuse", "zeros"]),
    default="refuse",
    show_default=True,
    help="Dense Zarr arrays of others: what an absent chunk means.",
)
@reading_options
@running_options
@common_options
def ingest(source: tuple[str, ...], store: str, scheduler: str | None, **options: Any) -> None:
    """Bring data into a store, once, to be read for years.

    SOURCE is one or several of: .csv or .tsv files (also .gz), .parquet, .feather, .npy,
    .npz, .mtx, .svmlight, .jsonl, a folder of .txt files, an AnnData .zarr or .h5ad, or
    another store. STORE is a folder or a URL such as s3://bucket/corpus.zarr; it is complete
    or absent. A run that was killed is resumed by the same command.

    \b
    Example:
      distclust ingest ratings.csv ratings.zarr
      distclust ingest 'parts/*.parquet' corpus.zarr --ids user --scheduler local
      distclust ingest articles.jsonl words.zarr --min-df 5 --binary
      distclust ingest tonight.csv ratings.zarr --append
    """
    from distclust.commands import stores

    common_names = ("as_json", "seed", "plan", "quiet", "verbose", "events")
    common = take_common({name: options.pop(name) for name in common_names})
    stores.ingest(source, store, options, scheduler, common)


@click.command()
@click.argument("store")
@common_options
def info(store: str, **options: Any) -> None:
    """Say what a store holds: shape, family guess, layout, size, fingerprint, health.

    \b
    Example:
      distclust info corpus.zarr
      distclust info s3://bucket/corpus.zarr --json
    """
    from distclust.commands import stores

    stores.info(store, take_common(options))


@click.command()
@click.argument("store")
@running_options
@common_options
def verify(store: str, scheduler: str | None, **options: Any) -> int:
    """Read every byte of a store and name every missing, truncated or altered part.

    Exit code 2 if anything is wrong.

    \b
    Example:
      distclust verify corpus.zarr
      distclust verify results --json
    """
    from distclust.commands import stores

    return stores.verify(store, scheduler, take_common(options))


@click.command()
@click.argument("store")
@click.argument("ids", nargs=-1)
@click.option("--ids-from", type=FILE, help="A text file with one id a line; - for standard input.")
@click.option("--ignore-missing", is_flag=True, help="Ids that are not there are no error.")
@common_options
def delete(store: str, ids: tuple[str, ...], **options: Any) -> None:
    """Delete rows of a store by their ids.

    Rows are marked; `distclust compact` gives their space back. The change can be undone
    with `distclust versions rollback`.

    \b
    Example:
      distclust delete corpus.zarr user-17 user-42
      distclust delete corpus.zarr --ids-from gone.txt
    """
    from distclust.commands import stores

    ids_from, ignore = options.pop("ids_from"), options.pop("ignore_missing")
    stores.delete(store, ids, ids_from, ignore, take_common(options))


@click.command()
@click.argument("store")
@running_options
@common_options
def compact(store: str, scheduler: str | None, **options: Any) -> None:
    """Rewrite a store without its deleted rows, all rows in one piece.

    Readers keep what they have open; `distclust versions gc` then frees the old space.

    \b
    Example:
      distclust compact corpus.zarr
    """
    from distclust.commands import stores

    stores.compact(store, scheduler, take_common(options))


@click.group()
def versions() -> None:
    """List, compare, restore and clear out versions of a store.

    STORE is a matrix store, whose versions are numbered generations, or a results store.

    \b
    Example:
      distclust versions list results
      distclust versions diff results 20260101T010000Z-1a2b3c 20260102T010000Z-4d5e6f
      distclust versions rollback corpus.zarr 3
    """


@versions.command("list")
@click.argument("store")
@common_options
def list_versions(store: str, **options: Any) -> None:
    """List all versions, the current one marked.

    \b
    Example:
      distclust versions list results
    """
    from distclust.commands import stores

    stores.list_versions(store, take_common(options))


@versions.command("show")
@click.argument("store")
@click.argument("version", required=False)
@common_options
def show_version(store: str, version: str | None, **options: Any) -> None:
    """Show one version, the current one when none is named.

    \b
    Example:
      distclust versions show results
    """
    from distclust.commands import stores

    stores.show_version(store, version, take_common(options))


@versions.command("diff")
@click.argument("store")
@click.argument("older")
@click.argument("newer")
@common_options
def diff_versions(store: str, older: str, newer: str, **options: Any) -> None:
    """Say what differs between two versions.

    \b
    Example:
      distclust versions diff corpus.zarr 1 2
    """
    from distclust.commands import stores

    stores.diff_versions(store, older, newer, take_common(options))


@versions.command("rollback")
@click.argument("store")
@click.argument("version", required=False)
@common_options
def rollback(store: str, version: str | None, **options: Any) -> None:
    """Make an earlier version the current one again: the one before, when none is named.

    \b
    Example:
      distclust versions rollback results
    """
    from distclust.commands import stores

    stores.rollback(store, version, take_common(options))


@versions.command("gc")
@click.argument("store")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Newest versions that stay; the current one always does.",
)
@click.option(
    "--grace",
    callback=_seconds,
    default="1h",
    show_default=True,
    help="Leave alone what is younger: it may be in the making.",
)
@common_options
def gc(store: str, keep: int, grace: float, **options: Any) -> None:
    """Remove old versions and leftovers of killed runs; open readers are not cut off.

    \b
    Example:
      distclust versions gc results --keep 7
      distclust versions gc corpus.zarr --keep 1 --grace 0s
    """
    from distclust.commands import stores

    stores.gc(store, keep, grace, take_common(options))


VERBS = (ingest, info, verify, delete, compact, versions)
