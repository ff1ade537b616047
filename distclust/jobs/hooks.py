"""Commands that are told how a run ended: mail it, page somebody, start what comes after.

A hook gets the record as JSON on its standard input and what matters most in its environment:

    DISTCLUST_JOB, DISTCLUST_RUN         name of the job, id of the run
    DISTCLUST_EVENT                      success or failure
    DISTCLUST_OUTCOME, DISTCLUST_ERROR   how the run ended, and why if badly
    DISTCLUST_RECORD, DISTCLUST_REPORT   path or URL of the record and of the report
    DISTCLUST_PLACE                      path or URL of all that the job keeps

It is started directly, without a shell. Whatever becomes of it is told but changes nothing:
the run is over.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import IO

from distclust.jobs.record import Hook, HookStatus, Record, encode_record, record_key, report_key
from distclust.store.objects import Objects

TIMEOUT = 60.0  # seconds
_GRACE = 5.0  # seconds between asking a command to end and ending it
_MOST_OUTPUT = 4096  # bytes that are kept, the last
_MOST_TEXT = 4096  # characters of a variable; the record has all of it


def event_of(record: Record) -> str:
    """Return which hook a run calls for: ``success`` or ``failure``."""
    return "success" if record.is_good else "failure"


def run_hook(
    command: Sequence[str], record: Record, objects: Objects, timeout: float = TIMEOUT
) -> Hook:
    """Run a command and tell it about a run; return how it fared, whatever that is.

    Parameters
    ----------
    command
        The program and its arguments.
    record
        What it is told.
    objects
        The place of the job, where the record lies.
    timeout
        Seconds after which the command is ended, and all that it started.
    """
    event = event_of(record)
    begun = time.monotonic()
    # Files, not pipes: nothing waits for a reader, nor for a child that holds the other end.
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as printed:
        told.write(encode_record(record))
        told.seek(0)
        try:
            process = subprocess.Popen(
                list(command),
                stdin=told,
                stdout=printed,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_environment(event, record, objects)},
                start_new_session=True,  # so that a terminal's Ctrl-C leaves it alone
            )
        except (OSError, ValueError) as error:
            return Hook(event, tuple(command), "not started", None, 0.0, str(error))
        try:
            exit_code: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            exit_code = None
        finally:
            _end(process)  # also if this process is interrupted while it waits
        seconds = round(time.monotonic() - begun, 3)
        output = _last(printed)
    return Hook(event, tuple(command), _status(exit_code), exit_code, seconds, output)


def _status(exit_code: int | None) -> HookStatus:
    if exit_code is None:
        return "timed out"
    return "done" if exit_code == 0 else "failed"


def _environment(event: str, record: Record, objects: Objects) -> dict[str, str]:
    told = {
        "JOB": record.job,
        "RUN": record.run,
        "EVENT": event,
        "OUTCOME": record.outcome,
        "ERROR": record.error or "",
        "RECORD": objects.where(record_key(record.run)),
        "REPORT": objects.where(report_key(record.run)),
        "PLACE": objects.url,
    }
    # An environment holds no zero characters, and not much of anything.
    return {f"DISTCLUST_{name}": text.replace("\0", "")[:_MOST_TEXT] for name, text in told.items()}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command that is still running, politely first, and what it started with it."""
    if process.poll() is not None:
        return
    _signal(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    # Also if it ended when it was asked to: what it started may not have.
    _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
    process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


def _last(printed: IO[bytes]) -> str:
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - _MOST_OUTPUT))
    return printed.read().decode("utf-8", "replace").strip()
