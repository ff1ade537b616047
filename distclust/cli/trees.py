"""Verbs around fitted trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distclust.cli.fits import METHODS, Fit
from distclust.cli.options import (
    FILE,
    common_options,
    reading_options,
    running_options,
    take_common,
    take_reading,
)

PARAMETERS = (
    *("family", "concentration", "variant", "gamma", "threshold", "optimize"),
    *("sample_size", "max_levels", "levels_per_pass", "filter_prior", "filter_predictive"),
    *("check_size", "n_sweeps", "resolve"),
)


@click.command()
@click.option(
    "--out",
    type=FILE,
    default=Path("distclust-demo"),
    show_default=True,
    help="Folder for the picture and the page.",
)
@click.option("--scheduler", default="local", show_default=True, help="Where to run.")
@common_options
def demo(out: Path, scheduler: str, **options: Any) -> None:
    """Cluster an invented field notebook of animals and draw the hierarchy.

    \b
    Example:
      distclust demo
      distclust demo --seed 7 --out my-demo
    """
    from distclust.commands import trees

    trees.demo(out, scheduler, take_common(options))


@click.command(cls=Fit)
@click.argument("method", type=click.Choice(["bhc", "rose", "rbhc", "embhc", *METHODS]))
@click.argument("input")
@click.option(
    "--out",
    help="File for the fitted model, or a results store (a name that ends in /) for a version; "
    "rbhc and embhc of a store: always a results store.  [required but for --plan]",
)
@click.option(
    "--family",
    help="Likelihood of a cluster's rows: auto, bernoulli, categorical, multinomial, poisson, "
    "gaussian or diagonal-gaussian.  [default: auto]",
)
@click.option("--concentration", type=float, help="Above zero; larger means more clusters.")
@click.option("--variant", help="rose: brt, brt-gamma, brt-dp or bhc-gamma.")
@click.option("--gamma", type=float, help="rose: prior probability of one cluster.")
@click.option("--threshold", type=float, help="Probability that makes a cluster.  [default: 0.5]")
@click.option("--optimize", is_flag=True, default=None, help="Learn the hyperparameters.")
@click.option("--sample-size", help="rbhc, embhc: rows of a sample, or seeds.  [default: auto]")
@click.option("--max-levels", type=int, help="rbhc: largest depth of the tree.")
@click.option(
    "--levels-per-pass", help="rbhc: levels that one pass takes; 1 as published.  [default: auto]"
)
@click.option("--filter-prior", help="rbhc: size, pi or flat.  [default: size]")
@click.option("--filter-predictive", help="rbhc: auto, subtree or single.  [default: auto]")
@click.option("--check-size", type=int, help="rbhc: rows that test a leaf.  [default: 256]")
@click.option("--sweeps", "n_sweeps", type=int, help="embhc: most sweeps.  [default: 5]")
@click.option(
    "--resolve", help="rbhc, embhc: leaves are clusters, or single rows.  [default: clusters]"
)
@click.option("--fresh", is_flag=True, help="rbhc, embhc of a store: discard an unfinished fit.")
@reading_options
@running_options
@common_options
def fit(method: str, input: str, out: str | None, scheduler: str | None, **options: Any) -> None:
    """Fit a tree, or another model, to a table and save it.

    INPUT is a .csv or .tsv file (also .gz) with a header, a .npy or .npz file, or a store.
    METHOD is bhc (exact binary trees), rose (trees with any number of children), or for data
    of any size rbhc (samples and filters) or embhc (seeds and sweeps). Fits of stores by the
    last two resume when the same command is run again. Kernel PCA, Dirichlet-process mixtures
    and cluster ensembles have options of their own: `distclust fit kpca --help`,
    `distclust fit dpmixture --help`, `distclust fit ensemble --help`.

    \b
    Example:
      distclust fit bhc animals.csv --out animals.model
      distclust fit rose words.npz --out words.model --scheduler tcp://10.0.0.5:8786
      distclust fit bhc big.csv --plan
      distclust fit bhc corpus.zarr --out results/
      distclust fit rbhc huge.zarr --out results --scheduler local
      distclust fit kpca corpus.zarr --components 20
      distclust fit dpmixture table.csv --out table.model
    """
    from distclust.commands import trees

    if out is None and not options["plan"]:
        raise click.MissingParameter(param_hint="'--out'", param_type="option")
    parameters = {name: options.pop(name) for name in PARAMETERS}
    for name in ("sample_size", "levels_per_pass"):
        parameters[name] = _whole_number(parameters[name])
    if parameters["family"] is not None:
        parameters["family"] = parameters["family"].replace("-", "_")
    fitting = trees.Fitting(method, parameters, options.pop("fresh"))
    trees.fit(input, out, fitting, take_reading(options), scheduler, take_common(options))


@click.command()
@click.argument("model")
@click.argument("input")
@click.option(
    "--out",
    help="CSV file, standard output when left out; for a store without .csv: a results store.",
)
@click.option("--proba", is_flag=True, help="A column with the probability of each cluster.")
@click.option("--fresh", is_flag=True, help="Labels of a store: discard an unfinished run.")
@reading_options
@running_options
@common_options
def predict(model: str, input: str, out: str | None, scheduler: str | None, **options: Any) -> None:
    """Place new rows in the clusters of a model.

    MODEL is a file, or a results store, whose current version is taken.

    Prints one line a row: its name, its cluster, the probability of that cluster among
    all, and the log predictive density of the row (low means: unlike anything seen).
    For a store, --out without .csv makes a results store that holds the label of every row
    as a Zarr array; run again after a kill, the same command goes on.

    \b
    Example:
      distclust predict animals.model new.csv
      distclust predict animals.model new.csv --proba --out placed.csv
      distclust predict results huge.zarr --out labels --scheduler local
    """
    from distclust.commands import trees

    predicting = trees.Predicting(options.pop("proba"), options.pop("fresh"))
    reading = take_reading(options)
    trees.predict(model, input, out, predicting, reading, scheduler, take_common(options))


@click.command()
@click.argument("model")
@click.option("--picture", type=FILE, help="Draw the tree into a .png, .svg or .pdf file.")
@click.option("--page", type=FILE, help="Write an HTML page that opens offline.")
@click.option("--labels", type=FILE, help="Write rows and their clusters to a CSV file.")
@click.option("--newick", is_flag=True, help="Print the tree in Newick format only.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    help="Cut where rows are one cluster with this probability.  [default: the model's own]",
)
@click.option(
    "--features",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Telling features to list for each cluster or node.",
)
@click.option("--node", type=click.IntRange(min=0), help="Walk the tree from this node down.")
@click.option(
    "--depth", type=click.IntRange(min=0), help="Levels to walk down.  [default for rbhc, embhc: 3]"
)
@common_options
def show(model: str, features: int, **options: Any) -> None:
    """Show a model: the tree, its clusters, how sure they are.

    Models of rbhc and embhc are walked: a table of the levels, then the nodes from the root
    (or --node) down, with what tells each from those beside it. Of a projection, its components
    are listed.

    \b
    Example:
      distclust show animals.model
      distclust show results --node 396 --depth 5
      distclust show animals.model --picture tree.svg --page report.html
      distclust show animals.model --newick > tree.nwk
    """
    from distclust.commands import trees

    names = ("picture", "page", "labels", "newick", "threshold", "node", "depth")
    chosen = {name: options.pop(name) for name in names}
    trees.show(model, trees.Showing(n_features=features, **chosen), take_common(options))


@click.command()
@click.option("--scheduler", default=None, help="Examine this Dask cluster too.")
@common_options
def doctor(scheduler: str | None, **options: Any) -> int:
    """Examine versions, threads, memory, disk and the cluster; name what is missing.

    \b
    Example:
      distclust doctor
      distclust doctor --scheduler tcp://10.0.0.5:8786 --json
    """
    from distclust.commands import trees

    return trees.doctor(scheduler, take_common(options))


def _whole_number(text: str | None) -> int | str | None:
    """Return what may be a number or a word, as the estimators take it."""
    return int(text) if text is not None and text.isdecimal() else text


VERBS = (demo, fit, predict, show, doctor)
