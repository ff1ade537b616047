"""The ``distclust`` command: argument parsing only, one command a verb.

Exit codes: 0 done, 1 failed, 2 bad input (one sentence on standard error), 3 interrupted,
with nothing half-written: run the same command again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

import click

from distclust._version import __version__
from distclust.errors import DistclustError

Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)
INTERRUPTED = 3


def common_options(command: Command) -> Command:
    """Add what every verb takes."""
    for option in (
        click.option("-q", "--quiet", is_flag=True, help="No progress and no summary."),
        click.option("-v", "--verbose", count=True, help="More log lines; twice for all."),
        click.option(
            "--plan", is_flag=True, help="Print passes, memory, disk and time; run nothing."
        ),
        click.option(
            "--seed",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Seed of all random choices; commands that make none accept it too.",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="One JSON document on standard output."
        ),
    ):
        command = option(command)
    return command


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


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96})
@click.version_option(__version__, prog_name="distclust")
def distclust() -> None:
    """Bayesian clustering: hierarchies with probabilities, from a laptop to a Dask cluster.

    Every verb has its own --help with an example.
    """


@distclust.command()
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
    from distclust import commands

    commands.demo(out, scheduler, _common(options))


@distclust.command()
@click.argument("method", type=click.Choice(["bhc", "rose"]))
@click.argument("input", type=FILE)
@click.option("--out", type=FILE, required=True, help="File for the fitted model.")
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
@reading_options
@running_options
@common_options
def fit(method: str, input: Path, out: Path, scheduler: str | None, **options: Any) -> None:
    """Fit a tree to a table and save the model.

    INPUT is a .csv or .tsv file (also .gz) with a header, or a .npy or .npz file.
    METHOD is bhc (binary trees) or rose (trees with any number of children).

    \b
    Example:
      distclust fit bhc animals.csv --out animals.model
      distclust fit rose words.npz --out words.model --scheduler tcp://10.0.0.5:8786
      distclust fit bhc big.csv --out big.model --plan
    """
    from distclust import commands

    names = ("family", "concentration", "variant", "gamma", "threshold", "optimize")
    fitting = commands.Fitting(method, {name: options.pop(name) for name in names})
    commands.fit(input, out, fitting, _reading(options), scheduler, _common(options))


@distclust.command()
@click.argument("model", type=FILE)
@click.argument("input", type=FILE)
@click.option("--out", type=FILE, help="CSV file; standard output when left out.")
@click.option("--proba", is_flag=True, help="A column with the probability of each cluster.")
@reading_options
@running_options
@common_options
def predict(
    model: Path, input: Path, out: Path | None, proba: bool, scheduler: str | None, **options: Any
) -> None:
    """Place new rows in the clusters of a model.

    Prints one line a row: its name, its cluster, the probability of that cluster among
    all, and the log predictive density of the row (low means: unlike anything seen).

    \b
    Example:
      distclust predict animals.model new.csv
      distclust predict animals.model new.csv --proba --out placed.csv
    """
    from distclust import commands

    commands.predict(model, input, out, proba, _reading(options), scheduler, _common(options))


@distclust.command()
@click.argument("model", type=FILE)
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
    help="Telling features to list for each cluster.",
)
@common_options
def show(model: Path, features: int, **options: Any) -> None:
    """Show a model: the tree, its clusters, how sure they are.

    \b
    Example:
      distclust show animals.model
      distclust show animals.model --picture tree.svg --page report.html
      distclust show animals.model --newick > tree.nwk
    """
    from distclust import commands

    names = ("picture", "page", "labels", "newick", "threshold")
    chosen = {name: options.pop(name) for name in names}
    commands.show(model, commands.Showing(n_features=features, **chosen), _common(options))


@distclust.command()
@click.option("--scheduler", default=None, help="Examine this Dask cluster too.")
@common_options
def doctor(scheduler: str | None, **options: Any) -> int:
    """Examine versions, threads, memory, disk and the cluster; name what is missing.

    \b
    Example:
      distclust doctor
      distclust doctor --scheduler tcp://10.0.0.5:8786 --json
    """
    from distclust import commands

    return commands.doctor(scheduler, _common(options))


def run() -> NoReturn:
    """Run the command line in a process of its own.

    A command that was interrupted or failed leaves at once: threads that still wait for a
    connection, or for a compiler that the interrupt struck, have nothing left to finish.
    """
    code = main()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if code != 0:
        os._exit(code)
    raise SystemExit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    warnings.showwarning = _show_warning
    try:
        code = distclust.main(arguments, prog_name="distclust", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        click.echo(_one_sentence(error), err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say = "Interrupted; nothing half-written was left. Run the same command again."
        click.echo(say, err=True)
        return INTERRUPTED
    except DistclustError as error:
        click.echo(str(error), err=True)
        return error.exit_code
    except OSError as error:  # disk full, a lost connection
        logging.getLogger(__name__).debug("failed", exc_info=True)
        click.echo(f"{error.filename or 'distclust'}: {error.strerror or error}", err=True)
        return 1
    return code if isinstance(code, int) else 0


def _one_sentence(error: click.ClickException) -> str:
    """Place, finding and remedy of a command that cannot be understood."""
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "distclust"
    found = " ".join(error.format_message().split()).rstrip(".")
    return f"{where}: {found}. See `{where} --help`."


def _common(options: dict[str, Any]) -> Any:
    """Return the common options, and set up logging as they say."""
    from distclust.commands import Common

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


def _reading(options: dict[str, Any]) -> Any:
    from distclust.commands import Reading

    return Reading(options.pop("ids"), options.pop("drop"), options.pop("category"))


def _interrupt(signal_number: int, frame: object) -> None:
    """Treat a request to end, as schedulers send it, like Ctrl-C."""
    raise KeyboardInterrupt


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    click.echo(f"Warning: {message}", err=True)


if __name__ == "__main__":
    run()
