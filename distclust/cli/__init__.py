"""The ``distclust`` command: argument parsing only, one command a verb.

Exit codes: 0 done, 1 failed, 2 bad input (one sentence on standard error), 3 interrupted,
with nothing half-written: run the same command again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import NoReturn, TextIO

import click

from distclust._version import __version__
from distclust.cli import crews, jobs, projections, sets, stores, trees
from distclust.errors import DistclustError

INTERRUPTED = 3


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96})
@click.version_option(__version__, prog_name="distclust")
def distclust() -> None:
    """Bayesian clustering: hierarchies with probabilities, from a laptop to a Dask cluster.

    Every verb has its own --help with an example.
    """


_GROUPS = (trees, projections, stores, sets, crews, jobs)

for verb in (verb for group in _GROUPS for verb in group.VERBS):
    distclust.add_command(verb)


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
    for ending in (signal.SIGINT, signal.SIGTERM):  # schedulers send the second
        signal.signal(ending, _interrupt)
    warnings.showwarning = _show_warning
    try:
        code = distclust.main(arguments, prog_name="distclust", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        click.echo(_one_sentence(error), err=True)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as error:
        click.echo(_what_is_left(error), err=True)
        return INTERRUPTED
    except DistclustError as error:
        click.echo(str(error), err=True)
        return error.exit_code
    except OSError as error:  # disk full, a lost connection
        logging.getLogger(__name__).debug("failed", exc_info=True)
        hint = "Check the place, its permissions and the space left."
        click.echo(f"{error.filename or 'distclust'}: {error.strerror or error}. {hint}", err=True)
        return 1
    return code if isinstance(code, int) else 0


def _what_is_left(error: BaseException) -> str:
    """What an interrupt cost: work that resumes says so itself, inside click's own error."""
    interrupt = error.__cause__ if isinstance(error, click.Abort) else error
    said = "" if interrupt is None else str(interrupt)
    return said or "Interrupted; nothing half-done can be seen. Run the same command again."


def _one_sentence(error: click.ClickException) -> str:
    """Place, finding and remedy of a command that cannot be understood."""
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "distclust"
    found = " ".join(error.format_message().split()).rstrip(".")
    return f"{where}: {found}. See `{where} --help`."


def _interrupt(signal_number: int, frame: object) -> None:
    """End what runs, wherever the signal finds it."""
    sys.unraisablehook = _after_an_interrupt
    raise KeyboardInterrupt


def _after_an_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    """Hear what nobody can catch once an interrupt has struck.

    Objects that it left half made, as a compiler's, complain when they are taken apart: that is
    for the log. An interrupt that struck while an object was taken apart would be lost: it strikes
    again, from another thread, as here it would be lost once more.
    """
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        main_thread = threading.main_thread().ident
        threading.Timer(0.01, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
    else:
        logging.getLogger(__name__).debug(
            "after the interrupt, in %r", unraisable.object, exc_info=unraisable.exc_value
        )


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    click.echo(f"Warning: {message}", err=True)
