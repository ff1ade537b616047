"""Verbs around mixtures and ensembles: fit dpmixture, fit ensemble."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from distclust.cli.options import (
    FILE,
    Command,
    common_options,
    keeping_options,
    reading_options,
    running_options,
    take_common,
    take_reading,
    workers_option,
)

if TYPE_CHECKING:
    from distclust.commands.mixtures import Views
    from distclust.commands.results_fits import Fitting

PARAMETERS = (
    *("family", "concentration", "sampler", "n_chains", "max_sweeps", "init", "split_merge"),
    *("stop", "concentration_prior", "truncation", "rhat", "min_samples"),
)
ENSEMBLE_PARAMETERS = (
    *("method", "n_clusters", "n_bases", "bases", "base_clusters", "beta", "concentration"),
    *("n_chains", "max_sweeps", "consensus", "collapse", "n_init", "stop", "rhat", "min_samples"),
)


class NumberOrWord(click.ParamType[Any]):
    """A number, or one of some words; what it is the estimator judges."""

    name = "number|word"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a number where the text is one."""
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
        return value


class Numbers(click.ParamType[Any]):
    """Whole numbers between commas."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a list of numbers."""
        try:
            return [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is not a list such as 4,8,16", param, ctx)


def chain_options(command: Command) -> Command:
    """Add how chains run and when they stop."""
    for option in (
        click.option(
            "--min-samples",
            type=float,
            help="Least effective samples to stop with.  [default: 400]",
        ),
        click.option(
            "--rhat", type=float, help="Largest R-hat of chains that agree.  [default: 1.01]"
        ),
        click.option(
            "--stop",
            help="rhat: as soon as chains agree; none: after all sweeps.  [default: rhat]",
        ),
        click.option("--max-sweeps", type=int, help="Sweeps of a chain at most.  [default: 1000]"),
        click.option("--chains", "--n-chains", "n_chains", type=int, help="[default: 4]"),
        click.option(
            "--concentration",
            type=NumberOrWord(),
            help="gamma: drawn with the partition; or a number above zero, larger for more "
            "clusters. dpmixture: also gamma-mh, by Metropolis-Hastings.  [default: gamma]",
        ),
    ):
        command = option(command)
    return command


def view_options(command: Command) -> Command:
    """Add files for what was found."""
    for option in (
        click.option(
            "--picture",
            type=FILE,
            help="Draw traces and co-association into a .png, .svg or .pdf file.",
        ),
        click.option(
            "--labels-out",
            type=FILE,
            help="Write rows, their clusters and how sure they are to a CSV file.",
        ),
    ):
        command = option(command)
    return command


@click.command("dpmixture")
@click.argument("input")
@click.option(
    "--family",
    help="Likelihood of a cluster's rows: auto, bernoulli, categorical, multinomial, poisson, "
    "gaussian or diagonal-gaussian.  [default: auto]",
)
@click.option(
    "--sampler",
    help="collapsed (row after row, mixes best), blocked-dma or blocked-tdp (all rows at once).  "
    "[default: collapsed]",
)
@chain_options
@click.option(
    "--init",
    help="Where chains start: mixed, single, singletons, groups, kmeans or joined.  "
    "[default: mixed]",
)
@click.option(
    "--split-merge/--no-split-merge",
    default=None,
    help="collapsed: also split and merge whole clusters.  [default: yes]",
)
@click.option(
    "--concentration-prior",
    type=float,
    nargs=2,
    metavar="SHAPE RATE",
    help="Gamma prior of the concentration.  [default: 1 1]",
)
@click.option("--truncation", type=int, help="blocked: most clusters.  [default: 50]")
@click.option(
    "--row-weights",
    help="Column of a table that says how many equal rows a row stands for; no feature.",
)
@view_options
@keeping_options(".dpmixture")
@workers_option
@reading_options
@running_options
@common_options
def dpmixture(input: str, **options: Any) -> None:
    """Fit a Dirichlet-process mixture: which groups there are, and how sure that is.

    INPUT is a store, or a table: .csv, .tsv (also .gz), .npy or .npz. Several chains sample
    partitions of the rows and stop when they agree; a table shows them as they run. The model
    of a store is a version in a results store beside it, where the fit saves its state every
    ten seconds: after a kill, the same command goes on.

    \b
    Example:
      distclust fit dpmixture table.csv --out table.model --labels-out clusters.csv
      distclust fit dpmixture corpus.zarr --scheduler local --workers 4
      distclust fit dpmixture corpus.zarr --sampler blocked-tdp --plan
      distclust fit dpmixture table.csv --out table.model --picture traces.png
    """
    from distclust.commands import mixtures

    if options["family"] is not None:
        options["family"] = options["family"].replace("-", "_")
    weights = options.pop("row_weights")
    fitting, views = _fitting(options, PARAMETERS), _views(options)
    reading = take_reading(options)
    mixtures.fit(input, fitting, views, reading, take_common(options), row_weights=weights)


@click.command("ensemble")
@click.argument("input")
@click.option(
    "--labels",
    "is_labels",
    is_flag=True,
    help="INPUT is itself a label matrix: a column is a clustering by any tool.",
)
@click.option(
    "--method",
    help="dpce (chains; finds the number of clusters), bce (variational Bayes) or mm (EM).  "
    "[default: dpce]",
)
@click.option(
    "--clusters", "--n-clusters", "n_clusters", type=int, help="bce, mm: clusters to find."
)
@click.option(
    "--bases",
    help="How bases are made: kmeans, dp or subspace (half the columns).  [default: kmeans]",
)
@click.option("--n-bases", type=int, help="How many bases to make.  [default: 10]")
@click.option(
    "--base-clusters", type=Numbers(), help="Clusters of k-means bases, such as 4,8,16; in turn."
)
@click.option(
    "--beta",
    type=NumberOrWord(),
    help="dpce: total pseudo-count of a base, or labels: one a label.  [default: 1 for labels, "
    "by the number of rows for bases that are made]",
)
@chain_options
@click.option(
    "--consensus", help="dpce: vi, binder or best: the partition that counts.  [default: vi]"
)
@click.option(
    "--collapse/--no-collapse",
    default=None,
    help="dpce: rows with equal labels move together: much faster, and an approximation.",
)
@click.option("--n-init", type=int, help="bce, mm: starts, of which the best counts.  [default: 5]")
@view_options
@keeping_options(".ensemble")
@workers_option
@reading_options
@running_options
@common_options
def ensemble(input: str, **options: Any) -> None:
    """Fit a cluster ensemble: what several clusterings of the same rows agree on.

    INPUT is a store, or a table: .csv, .tsv (also .gz), .npy or .npz, whose rows are clustered
    many times; or with --labels the clusterings themselves, one a column, empty where a label
    is missing.

    \b
    Example:
      distclust fit ensemble table.csv --out table.model --labels-out clusters.csv
      distclust fit ensemble clusterings.csv --labels --out consensus.model
      distclust fit ensemble corpus.zarr --n-bases 20 --scheduler local
    """
    from distclust.commands import ensembles

    is_labels = options.pop("is_labels")
    fitting, views = _fitting(options, ENSEMBLE_PARAMETERS), _views(options)
    reading = take_reading(options)
    ensembles.fit(input, fitting, views, reading, take_common(options), is_labels=is_labels)


def _fitting(options: dict[str, Any], parameters: tuple[str, ...]) -> Fitting:
    from distclust.commands.results_fits import Fitting

    names = ("out", "results", "fresh", "scheduler", "workers")
    return Fitting(
        {name: options.pop(name) for name in parameters},
        **{name: options.pop(name) for name in names},
    )


def _views(options: dict[str, Any]) -> Views:
    from distclust.commands.mixtures import Views

    return Views(options.pop("picture"), options.pop("labels_out"))
