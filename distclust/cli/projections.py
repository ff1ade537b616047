"""Verbs around projections: fit kpca, transform."""

from __future__ import annotations

from typing import Any

import click

from distclust.cli.options import (
    common_options,
    keeping_options,
    reading_options,
    running_options,
    take_common,
    take_reading,
    workers_option,
)

KPCA = "kpca"

PARAMETERS = (
    *("n_components", "kernel", "gamma", "degree", "coef0", "sigma2", "solver"),
    *("tolerance", "memory_budget", "dtype", "max_iter"),
)


@click.command(KPCA)
@click.argument("input")
@click.option(
    "--components", "n_components", type=int, help="How many components to find.  [default: 2]"
)
@click.option(
    "--kernel",
    help="rbf, linear, poly, cosine, or module:function of your own.  [default: rbf]",
)
@click.option("--gamma", type=float, help="rbf, poly: scale.  [default: 1 / features]")
@click.option("--degree", type=int, help="poly: exponent.  [default: 3]")
@click.option("--coef0", type=float, help="poly: constant.  [default: 1]")
@click.option("--sigma2", type=float, help="Noise variance of the model.  [default: 0, the limit]")
@click.option("--solver", help="auto, krylov, or em as published.  [default: auto]")
@click.option(
    "--tolerance",
    type=float,
    help="Largest residual, in parts of the largest eigenvalue.  [default: 1e-6]",
)
@click.option(
    "--memory-budget",
    help="Memory for kernel values in all processes, such as '4 GB'; changes the time, never the "
    "result.  [default: half of what there is]",
)
@click.option("--dtype", help="float64, or float32 for half the memory.  [default: float64]")
@click.option("--max-iter", type=int, help="Most products with the kernel.  [default: 1000]")
@keeping_options(".kpca")
@workers_option
@reading_options
@running_options
@common_options
def kpca(input: str, **options: Any) -> None:
    """Fit kernel PCA: few directions that carry the structure of the rows.

    INPUT is a store, or a table: .csv, .tsv (also .gz), .npy or .npz. The model of a store is
    a version in a results store beside it, where the fit saves its state every ten seconds:
    after a kill, the same command goes on.

    \b
    Example:
      distclust fit kpca corpus.zarr --components 20
      distclust fit kpca corpus.zarr --components 20 --scheduler local --memory-budget '4 GB'
      distclust fit kpca corpus.zarr --components 20 --plan
      distclust fit kpca table.csv --kernel cosine --out table.model
    """
    from distclust.commands import projections
    from distclust.commands.results_fits import Fitting

    parameters = {name: options.pop(name) for name in PARAMETERS}
    names = ("out", "results", "fresh", "scheduler", "workers")
    fitting = Fitting(parameters, **{name: options.pop(name) for name in names})
    projections.fit(input, fitting, take_reading(options), take_common(options))


@click.command()
@click.argument("model")
@click.argument("input")
@click.option(
    "-o",
    "--out",
    help="A .csv or .npy file, or a .zarr store; CSV on standard output when left out.",
)
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@workers_option
@reading_options
@running_options
@common_options
def transform(model: str, input: str, **options: Any) -> None:
    """Write the coordinates of rows along the components of a projection.

    MODEL is the file or results store of KernelPCA or PPCA; INPUT a table or a store with the
    columns of the fit. Rows are read and written block by block, in their order and with their
    ids. A .zarr is a store that other verbs take as input: cluster what was projected.

    \b
    Example:
      distclust transform corpus.zarr.kpca corpus.zarr --out coordinates.zarr
      distclust transform table.model new.csv --out coordinates.csv
      distclust fit rbhc coordinates.zarr --out clusters
    """
    from distclust.commands import projections

    names = ("out", "overwrite", "scheduler", "workers")
    transforming = projections.Transforming(**{name: options.pop(name) for name in names})
    reading = take_reading(options)
    projections.transform(model, input, transforming, reading, take_common(options))


VERBS = (transform,)
