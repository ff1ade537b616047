"""Runs from beginning to end: the lock before, the record, the report and the hooks after.

Whatever becomes of the work, what is told about it cannot change it: a record that cannot be
written, or a hook that fails, is said and nothing more.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from distclust.engine.ingesting import reading_options
from distclust.errors import ConflictError, DistclustError, InputError
from distclust.jobs import record as records
from distclust.jobs.hooks import event_of, run_hook
from distclust.jobs.jobfile import Job, seconds
from distclust.jobs.ledger import JobLedger, Lock, State, utc_now
from distclust.jobs.metrics import Published, write_metrics
from distclust.jobs.published import figures_of
from distclust.jobs.record import Outcome, Record, read_history, report_key, write_record
from distclust.jobs.running import Progress, Runner, Session, Wish, is_changed
from distclust.store.objects import MissingObject, Objects, open_objects
from distclust.validation import check_choice

Say = Callable[[str], None]

_log = logging.getLogger(__name__)


def check_job(job: Job, published: State | None = None) -> None:
    """Refuse options and parameters that cannot work, before anything is done.

    Models of the published state were checked when they were new.
    """
    reading_options(job.input.reading, f"{job.path}: input.reading")
    known = {} if published is None else published.models
    for name, model in job.models.items():
        if name in known and known[name]["kind"] != model.kind:
            expected = f"{known[name]['kind']!r}, which is published under this name"
            hint = "Give the model of another kind another name."
            where = f"{job.path}: models.{name}.kind"
            raise InputError(where, expected, repr(model.kind), hint)
        if name not in known or is_changed(model, known[name]):
            from distclust.jobs.kinds import KINDS  # loads all estimators

            where = f"{job.path}: models.{name}"
            kind = check_choice(model.kind, f"{where}.kind", KINDS)
            KINDS[kind].check(model.parameters, where)


def run_job(job: Job, wish: Wish, session: Session, scheduler: str, say: Say) -> Record:
    """Run a job and leave its record; return it.

    Parameters
    ----------
    job, wish
        What is to be done.
    session
        Makes the context in which work runs; entered only if there is any.
    scheduler
        What the record says about that.
    say
        Told what a person should know meanwhile.

    Raises
    ------
    Whatever stopped the work, after the record of it was written.
    """
    objects = open_objects(job.out)
    ledger = JobLedger(objects)
    check_job(job, ledger.published())
    runner = Runner(job, wish, session)
    lock = ledger.begin(job.name, say)
    if lock.cut_off is not None:
        say(f"run {lock.cut_off} was cut off; going on with what it left")
        _tell(say, lambda: _record_cut_off(job, objects, str(lock.cut_off)))
    watch = _Watch(job, lock, scheduler)
    outcome: Outcome = "failed"
    error: BaseException | None = None
    try:
        outcome = runner.carry_out(lock)
    except KeyboardInterrupt as caught:
        outcome, error = "interrupted", caught
        raise
    except BaseException as caught:
        error = caught
        raise
    finally:
        record = watch.record(runner.progress, outcome, error)
        record = _leave_word(job, objects, record, lock.published, say)
        _end(lock, outcome, error, say)
    return record


class _Watch:
    """Knows when a run began and what it has cost since."""

    def __init__(self, job: Job, lock: Lock, scheduler: str) -> None:
        self._job = job
        self._lock = lock
        self._scheduler = scheduler
        self._started = utc_now()
        self._begun = time.monotonic()
        self._cpu = time.process_time()

    def record(self, progress: Progress, outcome: Outcome, error: BaseException | None) -> Record:
        """Return what there is to say about the run."""
        return Record(
            job=self._job.name,
            run=self._lock.run,
            started=self._started,
            ended=utc_now(),
            seconds=time.monotonic() - self._begun,
            outcome=outcome,
            error=None if error is None else _sentence(error),
            scheduler=self._scheduler,
            input=_input(progress),
            models=tuple(progress.models),
            gates=tuple(progress.gates),
            published=None if progress.state is None else progress.state.number,
            pruned=progress.pruned,
            cost=records.Cost(
                stages={name: round(value, 3) for name, value in progress.stages.items()},
                cpu_seconds=time.process_time() - self._cpu,
                peak_memory_bytes=peak_memory(),
            ),
        )


def peak_memory() -> int:
    """Return the most memory that this process has had, in bytes.

    On Linux `getrusage` also counts what the process had before it became this program: all of
    its parent's.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    (kilobytes,) = re.findall(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    return 1024 * int(kilobytes)


def _sentence(error: BaseException) -> str:
    if isinstance(error, DistclustError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _input(progress: Progress) -> records.Input:
    survey = progress.survey
    files, named, n_bytes = records.Files(), records.NamedFiles(), 0
    if survey is not None:
        groups = {name: getattr(survey, name) for name in ("new", "changed", "gone")}
        most = records.MOST_NAMED
        names = {name: tuple(one.url for one in found[:most]) for name, found in groups.items()}
        counts = {name: len(found) for name, found in groups.items()}
        files = records.Files(
            **counts, touched=len(survey.touched), unchanged=len(survey.unchanged)
        )
        named, n_bytes = records.NamedFiles(**names), survey.n_bytes_hashed
    generations = records.Generations(*progress.generation)
    counted = progress.rows or records.RowCounts()
    return records.Input(files, named, counted, generations, n_bytes)


def _leave_word(
    job: Job, objects: Objects, record: Record, state: State | None, say: Say
) -> Record:
    """Write record, report and figures, and call the hook; return the record with its hook."""
    published: dict[str, Published] = {}
    _tell(say, lambda: published.update(_published(job, state)))

    def write() -> None:
        write_record(objects, record)
        earlier = tuple(each for each in read_history(objects).records if each.run != record.run)
        write_metrics(objects, record, earlier, published)
        if record.outcome != "nothing new":
            from distclust.report.jobs import render_run

            page = render_run(record.to_json(), [each.to_json() for each in earlier])
            objects.write(report_key(record.run), page.encode())
        prune_runs(objects, job.keep.runs)

    _tell(say, write)
    command = getattr(job.hooks, event_of(record))
    if not command:
        return record
    timeout = seconds(job.hooks.timeout, "hooks.timeout")
    hook = run_hook(command, record, objects, timeout)
    if hook.status != "done":
        say(f"the {hook.event} hook {_fate(hook)}")
    told = replace(record, hooks=(hook,))
    _tell(say, lambda: write_record(objects, told))
    return told


def _fate(hook: records.Hook) -> str:
    """Say what became of a hook that did not end well."""
    told: str = hook.status
    if hook.exit_code is not None:
        told += f" with exit code {hook.exit_code}"
    elif hook.status == "timed out":
        told += f" after {hook.seconds:.1f} s"
    return f"{told}: {hook.output}" if hook.output else told


def _published(job: Job, state: State | None) -> Iterator[tuple[str, Published]]:
    """Return the models as they are published, by name."""
    for name, facts in ({} if state is None else state.models).items():
        n_clusters = figures_of(job.out, name, facts).get("n_clusters")
        yield name, Published(facts["kind"], n_clusters)


def _end(lock: Lock, outcome: str, error: BaseException | None, say: Say) -> None:
    """Give the lock back, unless another run has it."""
    if isinstance(error, ConflictError):
        with contextlib.suppress(ConflictError):
            lock.end(outcome)
        lock.abandon()
        return
    _tell(say, lambda: lock.end(outcome))
    lock.abandon()


def _record_cut_off(job: Job, objects: Objects, run: str) -> None:
    """Leave a record of a run that could not write its own."""
    try:
        records.read_record(objects, run)
    except MissingObject:
        now = utc_now()
        error = "It ended without a word: killed, or its machine was."
        record = Record(job.name, run, started_at(run), now, 0.0, "cut off", error)
        write_record(objects, record)


def started_at(run: str) -> str:
    """Return when a run began, by its id."""
    text = run.rpartition("-")[2]
    return datetime.datetime.strptime(text, "%Y%m%dT%H%M%S%z").isoformat(timespec="seconds")


def _tell(say: Say, step: Callable[[], object]) -> None:
    """Do something that the run does not depend on; say if it fails."""
    try:
        step()
    except (OSError, DistclustError) as error:
        _log.debug("not told", exc_info=True)
        say(f"could not be kept: {error}")


def prune_runs(objects: Objects, keep: int) -> int:
    """Remove records and reports of all but the last runs; return how many."""
    old = records.list_runs(objects)[:-keep]
    for run in old:
        objects.delete_tree(f"{records.RUNS}/{run}")
    return len(old)
