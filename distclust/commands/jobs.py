"""The verbs of jobs: run, init, check, status."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distclust.commands.common import (
    Common,
    check_events,
    connected,
    console,
    followed,
    print_json,
)
from distclust.errors import InputError
from distclust.jobs.jobfile import Job, read_job, seconds, starter

if TYPE_CHECKING:
    from distclust.jobs.record import Record

GATES_FAILED = 4
RESUMES = "Interrupted; what is done is kept. Run the same job again: it goes on."


def run(
    path: Path, refit: Sequence[str], accept: bool, scheduler: str | None, common: Common
) -> int:
    """Run a job, or say what it would do; return the exit code."""
    from distclust.jobs.running import Wish
    from distclust.jobs.runs import run_job

    job = read_job(path)
    check_events(common, path)
    wish = Wish(tuple(refit), accept)
    if common.plan:
        _say_plan(job, wish, common)
        return 0
    where = _scheduler(job, scheduler)

    @contextlib.contextmanager
    def session() -> Iterator[None]:
        with connected(where, **_limits(job, where)):
            yield

    try:
        with followed(common):
            record = run_job(job, wish, session, where or "in process", _say)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(RESUMES) from error
    _say_run(record, common)
    return 0 if record.is_good else GATES_FAILED


def _scheduler(job: Job, given: str | None) -> str | None:
    """Return where to run: as the command line, the environment, or the job file says."""
    return given or os.environ.get("DASK_SCHEDULER_ADDRESS") or job.resources.scheduler or None


def _limits(job: Job, where: str | None) -> dict[str, Any]:
    """Return what `connect` is to know about the workers."""
    if where is None or where == "threads":
        return {}
    limits: dict[str, Any] = {"timeout": seconds(job.resources.timeout, "resources.timeout")}
    if where == "local":
        limits["workers"] = job.resources.workers
        limits["memory_limit"] = job.resources.memory or "auto"
    return limits


def _say(text: str) -> None:
    print(f"distclust: {text}", file=sys.stderr, flush=True)


def _say_run(record: Record, common: Common) -> None:
    from distclust.report.jobs import print_run

    if common.as_json:
        print_json({"command": "run", **record.to_json()})
    elif not common.quiet:
        print_run(console(), record.to_json())


def _say_plan(job: Job, wish: Any, common: Common) -> None:
    from distclust.jobs.ledger import JobLedger
    from distclust.jobs.running import plan_run
    from distclust.jobs.runs import check_job
    from distclust.report.terminal import print_facts
    from distclust.store.objects import open_objects

    ledger = JobLedger(open_objects(job.out))
    ledger.check_owner(job.name)
    check_job(job, ledger.published())
    plan = plan_run(job, wish)
    if common.as_json:
        print_json({"command": "plan", **plan})
        return
    files = plan["files"]
    told = ", ".join(f"{n:,} {name}" for name, n in files.items() if n) or "none"
    facts = {"job": job.name, "input files": told}
    facts |= {f"model {name}": text for name, text in plan["models"].items()}
    print_facts(console(), facts)


def init(path: Path, common: Common) -> None:
    """Write a job file to be changed."""
    if path.exists():
        hint = "Choose another name."
        raise InputError(str(path), "no file yet", "one that exists", hint)
    if not common.plan:
        path.write_text(starter(), encoding="utf-8")
    if common.as_json:
        print_json({"command": "job init", "path": str(path)})
    elif not common.quiet:
        told = f"{path} is written. Change it, then: distclust run {path} --plan"
        console().print(told, highlight=False, soft_wrap=True)


def check(path: Path, common: Common) -> None:
    """Check a job file."""
    from distclust.jobs.ledger import JobLedger
    from distclust.jobs.running import check_rows_owner
    from distclust.jobs.runs import check_job
    from distclust.store.objects import open_objects

    job = read_job(path)
    check_job(job)
    JobLedger(open_objects(job.out)).check_owner(job.name)
    check_rows_owner(job)
    if common.as_json:
        print_json({"command": "job check", "job": job.name, "path": str(path)})
    elif not common.quiet:
        told = f"{path}: job {job.name!r} with {len(job.models)} models is sound."
        console().print(told, highlight=False, soft_wrap=True)


def status(path: Path, n_runs: int, common: Common) -> None:
    """Show what a job has published, and its last runs."""
    from distclust.jobs.ledger import JobLedger
    from distclust.jobs.record import read_history
    from distclust.jobs.running import check_rows_owner
    from distclust.report.jobs import print_status
    from distclust.store.objects import open_objects

    job = read_job(path)
    objects = open_objects(job.out)
    ledger = JobLedger(objects)
    ledger.check_owner(job.name)
    head, state = ledger.head(), ledger.published()
    if state is None:  # else the rows were the job's own; what is published is told even if
        check_rows_owner(job)  # they are damaged
    at_work = None
    if head is not None and head.content["action"] != "end":
        at_work = {"run": head.content["run"], **head.content["holder"]}
    facts = {
        "job": job.name,
        "out": job.out,
        "published": None if state is None else state.as_json(),
        "at_work": at_work,
        "runs": [record.to_json() for record in read_history(objects, n_runs).records],
    }
    if common.as_json:
        print_json({"command": "job status", **facts})
    else:
        print_status(console(), facts)
