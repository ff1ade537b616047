"""Commands that are told about a run, and what becomes of those that do not behave."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from distclust.jobs import hooks
from distclust.jobs.hooks import run_hook
from distclust.store.objects import open_objects
from tests.jobs.records import full_record


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def objects(tmp_path):
    return open_objects(str(tmp_path / "out"))


def test_run_hook__is_told_everything(objects, tmp_path):
    file = tmp_path / "told.json"
    code = (
        "import json, os, sys; names = ('JOB', 'RUN', 'EVENT', 'OUTCOME', 'ERROR', 'RECORD', "
        "'REPORT', 'PLACE'); told = {n: os.environ['DISTCLUST_' + n] for n in names}; "
        "json.dump([told, json.load(sys.stdin), sys.argv[1:]], open(sys.argv[1], 'w'))"
    )
    record = full_record(outcome="gates failed", error="evidence: expected more\0, got less.")
    hook = run_hook([*python(code), str(file), "$HOME; *"], record, objects)
    assert (hook.status, hook.exit_code, hook.output) == ("done", 0, "")
    told, found, arguments = json.loads(file.read_text())
    assert arguments == [str(file), "$HOME; *"]  # no shell looked at it
    assert found == record.to_json()
    place = Path(objects.url)
    assert told == {
        "JOB": "newsroom",
        "RUN": record.run,
        "EVENT": "failure",
        "OUTCOME": "gates failed",
        "ERROR": "evidence: expected more, got less.",
        "RECORD": str(place / "runs" / record.run / "record.json"),
        "REPORT": str(place / "runs" / record.run / "report.html"),
        "PLACE": str(place),
    }


def test_run_hook__failing_is_told_with_the_end_of_what_it_printed(objects):
    code = "import sys; print('x' * 100_000); print('no mail server', file=sys.stderr); sys.exit(3)"
    hook = run_hook(python(code), full_record(), objects)
    assert (hook.event, hook.status, hook.exit_code) == ("success", "failed", 3)
    assert len(hook.output) <= 4096
    assert "x" * 1000 in hook.output
    assert "no mail server" in hook.output


def test_run_hook__one_that_does_not_read_is_no_problem(objects):
    record = full_record(error="e" * 10_000_000, outcome="failed")
    assert run_hook(["true"], record, objects).status == "done"


@pytest.mark.parametrize("command", [["/no/such/program"], [os.getcwd()], ["a\0b"]])
def test_run_hook__one_that_cannot_be_started(objects, command):
    hook = run_hook(command, full_record(), objects)
    assert (hook.status, hook.exit_code) == ("not started", None)
    assert hook.output


def test_run_hook__one_that_hangs_is_ended_with_its_children(objects, tmp_path, monkeypatch):
    monkeypatch.setattr(hooks, "_GRACE", 0.5)
    file = tmp_path / "child"
    code = (
        "import signal, subprocess, sys, time; "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('waiting', flush=True); "
        "child = subprocess.Popen(['sleep', '300']); "
        "open(sys.argv[1], 'w').write(str(child.pid)); time.sleep(300)"
    )
    begun = time.monotonic()
    hook = run_hook([*python(code), str(file)], full_record(), objects, timeout=2.0)
    assert time.monotonic() - begun < 20
    assert (hook.status, hook.exit_code, hook.output) == ("timed out", None, "waiting")
    child = int(file.read_text())
    deadline = time.monotonic() + 10
    while _is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(child)


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
