"""Who runs a job, and what it has published: one ledger for both.

Every step is the next record of one `Ledger`, and every record carries the published state:

    begin     a run takes the lock
    publish   the state is now another one: this is the job's one pointer
    end       the run is over, whatever came of it

A record is made only after the last one that the run knows. So a run that was cut off, and
wakes up when another has begun, can publish nothing: its next number is taken. No clock has
a say in that.

Whether a run that has not ended is alive is seen by its heartbeat, a small file that it
writes again and again: it has to change while somebody looks at it. A process of this
machine that is gone needs no looking at.
"""

from __future__ import annotations

import datetime
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from distclust.errors import ConflictError, InputError
from distclust.jobs.record import new_run_id
from distclust.store.ledger import Ledger, Record
from distclust.store.objects import MissingObject, Objects
from distclust.store.sealed import seal, unseal
from distclust.store.work import quietly

LEDGER = ".distclust/job/ledger"
HEARTBEATS = ".distclust/job/heartbeats"
BEAT_SECONDS = 5.0
PATIENCE_SECONDS = 30.0  # without a heartbeat, as seen by who looks

_FORM = "distclust-heartbeat"
_KEPT_RECORDS = 200


def utc_now() -> str:
    """Return the time as records have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class State:
    """What a job has published.

    Attributes
    ----------
    number
        Number of the record that published it.
    run, time
        The run that did so, and when.
    store
        The rows: a name below the job's place, or an absolute path or URL.
    generation, fingerprint
        Of the store, for which the models were made.
    earlier
        Generations of the states that were published before, the newest last.
    models
        By name: ``kind``, ``parameters``, ``seed``, ``version``, ``labels_version``,
        ``refit_at``.
    retired
        Models that were published once and are no longer part of the job, by name: ``since``
        (when the first state without them was published) and ``states`` (how many were).
    """

    number: int
    run: str
    time: str
    store: str
    generation: int
    fingerprint: str
    earlier: list[int]
    models: dict[str, dict[str, Any]]
    retired: dict[str, dict[str, Any]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return dict(vars(self))


class JobLedger:
    """The ledger of the job that has its results in `objects`."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self._ledger = Ledger(objects, LEDGER)

    def head(self) -> Record | None:
        """Return the last record."""
        return self._ledger.head()

    def published(self) -> State | None:
        """Return what is published, or None if nothing is."""
        return _state(self._ledger.head())

    def check_owner(self, job: str) -> None:
        """Raise `InputError` if another job has its results here."""
        _check_owner(self._ledger.head(), job, self.objects.url)

    def begin(self, job: str, say: Callable[[str], None] = lambda text: None) -> Lock:
        """Take the lock for a run of `job`; `say` is told why that takes long.

        Raises
        ------
        InputError
            If another job has its results here.
        ConflictError
            If another run is alive, or begins at the same moment.
        """
        head = self._ledger.head()
        _check_owner(head, job, self.objects.url)
        cut_off = None
        if head is not None and head.content["action"] != "end":
            cut_off = str(head.content["run"])
            self._wait_for_silence(head.content, say)
        number = 1 if head is None else head.number + 1
        run = new_run_id(number, datetime.datetime.now(datetime.UTC))
        content = {
            "action": "begin",
            "job": job,
            "run": run,
            "time": utc_now(),
            "holder": _this_process(),
            "published": None if head is None else head.content["published"],
        }
        record = self._ledger.append(content, number - 1)
        if cut_off is not None:
            quietly(lambda: self.objects.delete(_heartbeat_key(cut_off)))
        return Lock(self.objects, self._ledger, record, run, cut_off)

    def _wait_for_silence(self, content: Mapping[str, Any], say: Callable[[str], None]) -> None:
        """Return once the run that holds the lock is certainly or most probably dead."""
        holder, run = content["holder"], str(content["run"])
        if _is_gone(holder):
            return
        name = f"run {run} on {holder['host']} (process {holder['process']})"
        first, begun = self._beat(run), time.monotonic()
        if not _is_here(holder):
            say(f"{name} has not ended; waiting {PATIENCE_SECONDS:.0f} s for a sign of life")
            while time.monotonic() - begun < PATIENCE_SECONDS:
                time.sleep(min(1.0, BEAT_SECONDS / 2))
                if self._beat(run) != first:
                    break
            else:
                return
        hint = "Let it finish, or stop it; a run that is dead is found out by itself."
        raise ConflictError(self.objects.url, "no other run of this job", f"{name}, alive", hint)

    def _beat(self, run: str) -> int:
        key = _heartbeat_key(run)
        try:
            return int(unseal(self.objects.read(key), _FORM, self.objects.where(key))["beat"])
        except MissingObject:
            return -1


class Lock:
    """The right of one run to change a job's state, until another one begins.

    Attributes
    ----------
    run
        Id of the run.
    cut_off
        Id of the run before, if it did not end.
    """

    def __init__(
        self, objects: Objects, ledger: Ledger, record: Record, run: str, cut_off: str | None
    ) -> None:
        self.run = run
        self.cut_off = cut_off
        self._objects = objects
        self._ledger = ledger
        self._record = record
        self._beats = 0
        self._is_over = threading.Event()
        self._beat()
        self._heart = threading.Thread(target=self._keep_beating, daemon=True, name="heartbeat")
        self._heart.start()

    @property
    def published(self) -> State | None:
        """What is published now."""
        return _state(self._record)

    def check(self) -> None:
        """Raise `ConflictError` if another run has begun since."""
        if not self._ledger.is_head(self._record.number):
            hint = "Stop this process; the other one goes on."
            where = f"{self._objects.url}, run {self.run}"
            raise ConflictError(where, "to hold the lock of the job", "another run has it", hint)

    def publish(
        self,
        store: str,
        generation: int,
        fingerprint: str,
        models: Mapping[str, Mapping[str, Any]],
        retired: Iterable[str] = (),
    ) -> State:
        """Make another state the published one: one step, seen by everybody or by nobody."""
        before = self.published
        earlier = [] if before is None else [*before.earlier, before.generation]
        now = utc_now()
        state = {
            "number": self._record.number + 1,
            "run": self.run,
            "time": now,
            "store": store,
            "generation": generation,
            "fingerprint": fingerprint,
            "earlier": earlier[-_KEPT_RECORDS:],
            "models": {name: dict(facts) for name, facts in models.items()},
            "retired": _retired(before, retired, now),
        }
        self._append("publish", state)
        made = self.published
        assert made is not None, "it was just published"
        return made

    def end(self, outcome: str, keep: int = _KEPT_RECORDS) -> None:
        """Give the lock back."""
        self._stop_beating()
        self._append("end", self._record.content["published"], outcome=outcome)
        quietly(lambda: self._objects.delete(_heartbeat_key(self.run)))
        quietly(lambda: self._ledger.drop(range(1, self._record.number - keep)))

    def abandon(self) -> None:
        """Stop giving signs of life, for a run that lost its lock."""
        self._stop_beating()

    def _append(self, action: str, published: Any, **others: Any) -> None:
        content = {
            **{name: self._record.content[name] for name in ("job", "run", "holder")},
            "action": action,
            "time": utc_now(),
            "published": published,
            **others,
        }
        self._record = self._ledger.append(content, self._record.number)

    def _keep_beating(self) -> None:
        while not self._is_over.wait(BEAT_SECONDS):
            quietly(self._beat)

    def _beat(self) -> None:
        self._beats += 1
        self._objects.write(_heartbeat_key(self.run), seal(_FORM, {"beat": self._beats}))

    def _stop_beating(self) -> None:
        self._is_over.set()
        self._heart.join()


def _check_owner(head: Record | None, job: str, url: str) -> None:
    if head is not None and head.content["job"] != job:
        got = f"those of job {head.content['job']!r}"
        hint = "Choose another place for one of them (out)."
        raise InputError(url, f"results of job {job!r}", got, hint)


def _state(record: Record | None) -> State | None:
    published = None if record is None else record.content["published"]
    return None if published is None else State(**published)


def _retired(before: State | None, names: Iterable[str], now: str) -> dict[str, dict[str, Any]]:
    """Return what the state after `before` says about models that are not part of it."""
    known = {} if before is None else before.retired
    facts = {name: known.get(name, {"since": now, "states": 0}) for name in names}
    return {name: {**one, "states": one["states"] + 1} for name, one in facts.items()}


def _heartbeat_key(run: str) -> str:
    return f"{HEARTBEATS}/{run}.json"


def _this_process() -> dict[str, Any]:
    process = psutil.Process()
    return {
        "host": socket.gethostname(),
        "space": _process_space(),
        "process": process.pid,
        "started": process.create_time(),
    }


def _process_space() -> str:
    """Return what tells apart machines, their starts, and containers with other processes."""
    try:
        return f"{psutil.boot_time():.0f} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return f"{psutil.boot_time():.0f}"


def _is_here(holder: Mapping[str, Any]) -> bool:
    """Whether a process is or was among those that can be seen from here."""
    return (holder["host"], holder["space"]) == (socket.gethostname(), _process_space())


def _is_gone(holder: Mapping[str, Any]) -> bool:
    """Whether a process of this machine has ended."""
    if not _is_here(holder):
        return False
    if holder["process"] == os.getpid():
        return bool(holder["started"] != psutil.Process().create_time())
    try:
        process = psutil.Process(holder["process"])
        is_other = abs(process.create_time() - holder["started"]) > 1.0
        return bool(is_other or process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
