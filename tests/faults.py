"""Faults at every storage operation: a kill, a full disk, a missing permission.

`every_fault` runs an action in a forked process that meets its fault at the first storage
operation, then (from a fresh start) at the second, and so on until the action gets through.
After each fault the caller looks at what is left, the action is run again without faults,
and the caller looks once more. So each state that a crash can leave is seen.

Operations are the calls that change what is stored: ``os.mkdir``, ``link``, ``replace`` and
so on for local files (a temporary file is written before the first of them, so leftovers
occur), and puts and deletions for storages far away. A kill comes before the operation;
the kill after it is the one before the next. Threads may share the work.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from distclust.store.remote import RemoteObjects

Action = Callable[[str], object]
Check = Callable[[str, bool], object]
Fault = Literal["kill", "disk full", "no permission"]

# Operations that give something back; a full disk does not refuse them.
_RELEASING = [
    (os, "unlink"),
    (os, "rmdir"),
    (RemoteObjects, "_delete"),
    (RemoteObjects, "_delete_tree"),
]
_TAKING = [
    (os, "mkdir"),
    (os, "link"),
    (os, "rename"),
    (os, "replace"),
    (RemoteObjects, "write"),
    (RemoteObjects, "create"),
    (RemoteObjects, "copy"),
]
# Changes nothing that a killed process could leave, but is where full disks are noticed.
_SYNCING = [(os, "fsync")]

_OPERATIONS = {
    "kill": _TAKING + _RELEASING,
    "disk full": _TAKING + _SYNCING,
    "no permission": _TAKING + _SYNCING,
}
_ERRORS = {"disk full": errno.ENOSPC, "no permission": errno.EACCES}

_FINISHED, _KILLED, _REFUSED, _FAILED = 0, 70, 71, 72
_SECONDS = 60


def every_fault(
    root: str | Path,
    *,
    prepare: Action,
    action: Action,
    check: Check,
    fault: Fault = "kill",
    stride: int = 1,
    at_most: int = 1000,
) -> int:
    """Try `action` with a fault at each of its storage operations; return how many there were.

    Parameters
    ----------
    root
        Local folder or URL below which every try gets a place of its own.
    prepare
        Called with the place: make what the action starts from.
    action
        Called with the place: the work under test. Run again after a fault, it completes.
    check
        Called with the place and whether the action was completed there. If not, what was
        there before must be there still, or all of the new.
    fault
        What happens at the operation. Refusals must come out of the action as an OSError
        that names a file, and leave no temporary file.
    stride
        Try every so many operations only, where they are slow.
    at_most
        Give up after so many operations.
    """
    for n_before in itertools.count(0, stride):
        place = f"{root}/{n_before:04d}"
        prepare(place)
        finished = run_with_fault(action, place, n_before, fault)
        if fault != "kill":
            assert leftovers(place) == []
        check(place, finished)
        if finished:
            return n_before
        action(place)
        check(place, True)
        assert n_before < at_most, f"more than {at_most} operations"
    raise AssertionError("unreachable")


def run_with_fault(action: Action, place: str, n_before: int, fault: Fault = "kill") -> bool:
    """Run `action` in a fork that meets a fault after `n_before` operations.

    Returns whether it got through. What else goes wrong in the fork is raised here.
    """
    code = fork(lambda: _meet_fault(action, place, n_before, fault))()
    expected = _KILLED if fault == "kill" else _REFUSED
    assert code in {_FINISHED, expected}, f"{place}: exit code {code}"
    return code == _FINISHED


def fork(action: Callable[[], int]) -> Callable[[], int]:
    """Start `action` in a fork; return what waits for the exit code that it returns.

    The fork ends with the action, whatever happens: it never goes on as a second pytest.
    What it raises is raised here, as text.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads; the child touches none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reader)
        _run_child(action, writer)
    os.close(writer)

    def wait() -> int:
        with os.fdopen(reader) as report:
            text = report.read()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code >= 0, f"the fork ended by signal {-code}"
        assert code != _FAILED, text
        return code

    return wait


def storage_operations(action: Action, place: str, n_before: int = 10**9) -> list[str]:
    """Run `action` in a fork, killed after `n_before` operations; return them in order.

    Each is named by its call and by the last of its paths below `place`, in which numbers, ids
    and digests are left out: two operations of one name are of one kind. The last of a process
    that was killed is the one that it did not come to do.
    """
    journal = Path(f"{place}.operations")
    journal.touch()

    def run() -> int:
        for owner, name in _OPERATIONS["kill"]:
            setattr(owner, name, _written_down(getattr(owner, name), name, place, journal))
        return _meet_fault(action, place, n_before, "kill")

    assert fork(run)() in {_FINISHED, _KILLED}
    found = journal.read_text().splitlines()
    journal.unlink()
    return found


def _written_down(
    operation: Callable[..., Any], name: str, place: str, journal: Path
) -> Callable[..., Any]:
    def step(*arguments: Any, **options: Any) -> Any:
        paths = [str(argument) for argument in arguments if isinstance(argument, str | Path)]
        *_, inside = paths[-1].partition(f"{place}/")
        kind = re.sub(r"(?<![a-z])[0-9a-f]*\d[0-9a-fTZ-]*", "*", inside)
        with journal.open("a") as file:
            file.write(f"{name} {kind}\n")
        return operation(*arguments, **options)

    return step


def leftovers(place: str) -> list[str]:
    """Return the temporary files below a local place."""
    return [str(path) for path in Path(place).rglob("*.partial")]


def _run_child(action: Callable[[], int], writer: int) -> None:
    code = _FAILED
    try:
        signal.alarm(_SECONDS)
        code = action()
    except BaseException:
        os.write(writer, traceback.format_exc().encode()[-60_000:])
    finally:
        os._exit(code)


def _meet_fault(action: Action, place: str, n_before: int, fault: Fault) -> int:
    steps = _Steps(n_before, fault)
    for owner, name in _OPERATIONS[fault]:
        setattr(owner, name, steps.counted(getattr(owner, name)))
    try:
        action(place)
    except OSError as error:
        if error.errno == _ERRORS.get(fault) and error.filename:
            return _REFUSED
        raise
    return _FINISHED


class _Steps:
    """Counts operations and lets the fault happen at one of them."""

    def __init__(self, n_before: int, fault: Fault) -> None:
        self.left = n_before
        self.fault = fault
        self.lock = threading.Lock()

    def counted(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            with self.lock:
                self.left -= 1
                is_time = self.left == -1
            if is_time:
                self._fail()
            return operation(*arguments, **options)

        return step

    def _fail(self) -> None:
        if self.fault == "kill":
            os._exit(_KILLED)
        number = _ERRORS[self.fault]
        raise OSError(number, os.strerror(number))
