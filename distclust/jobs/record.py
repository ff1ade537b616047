"""The record that a run leaves: what it found, what it did, what it cost.

    runs/<run>/record.json       of every run, also of those that failed

The dataclasses are the format: names of fields are names in the JSON, and what is read back is
checked against their types. Names that are not known are ignored, so that a later release may
add some; a field of the record that is missing takes its default.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import re
import typing
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from distclust._version import __version__
from distclust.errors import StoreError
from distclust.store.objects import Finding, Objects

FORMAT = 1
RUNS = "runs"
SHOWN_RUNS = 30
MOST_NAMED = 20  # files in a list of names

Outcome: TypeAlias = Literal[
    "published", "nothing new", "gates failed", "failed", "interrupted", "cut off"
]
HookStatus: TypeAlias = Literal["done", "failed", "timed out", "not started"]

OUTCOMES: tuple[Outcome, ...] = typing.get_args(Outcome)
GOOD_OUTCOMES: frozenset[Outcome] = frozenset({"published", "nothing new"})

_RECORD = re.compile(rf"{RUNS}/([^/]+)/record\.json")
_READERS = 8  # records that are read at a time: far away each takes a round trip


@dataclass(frozen=True)
class Files:
    """Numbers of input files by what became of them; touched ones hold what they held."""

    new: int = 0
    changed: int = 0
    gone: int = 0
    touched: int = 0
    unchanged: int = 0


@dataclass(frozen=True)
class NamedFiles:
    """Some of the input files by name, see `MOST_NAMED`."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowCounts:
    """Live rows before and after, and what made the difference."""

    before: int = 0
    after: int = 0
    added: int = 0
    changed: int = 0
    deleted: int = 0


@dataclass(frozen=True)
class Generations:
    """Generations of the matrix store; None where there was none."""

    before: int | None = None
    after: int | None = None


@dataclass(frozen=True)
class Input:
    """What the input was, compared with the last time."""

    files: Files = field(default_factory=Files)
    named: NamedFiles = field(default_factory=NamedFiles)
    rows: RowCounts = field(default_factory=RowCounts)
    generation: Generations = field(default_factory=Generations)
    bytes_read: int = 0


@dataclass(frozen=True)
class Versions:
    """Ids of the versions of a model; None where there was none."""

    before: str | None = None
    after: str | None = None


@dataclass(frozen=True)
class Figures:
    """Metrics of the versions of a model, JSON values by name."""

    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """What was done about a model.

    Attributes
    ----------
    name, kind
        As the job file has them.
    action, reason
        Kept, updated, refit below nodes or fitted, and why, as a sentence.
    version, metrics
        The versions before and after, and their figures.
    drift
        How far new rows are from what the model knows; None if it was not measured.
    clusters
        What became of the clusters, see `distclust.jobs.lineage.Lineage.to_json`; None for
        models without, and if nothing changed.
    seconds
        Wall time.
    """

    name: str
    kind: str
    action: str
    reason: str
    version: Versions = field(default_factory=Versions)
    metrics: Figures = field(default_factory=Figures)
    drift: dict[str, Any] | None = None
    clusters: dict[str, Any] | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Gate:
    """A condition on what is to be published, what was found, and whether that will do."""

    name: str
    expected: str
    got: str
    passed: bool


@dataclass(frozen=True)
class Cost:
    """What the run took: wall time by stage, processor time, memory at its peak."""

    stages: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0


@dataclass(frozen=True)
class Hook:
    """How a command that was told about the run fared.

    Attributes
    ----------
    event, command
        What it was told of (success or failure), and its arguments.
    status, exit_code
        Whether it ended well, badly, not in time or could not be started.
    seconds, output
        How long it took, and the end of what it printed.
    """

    event: str
    command: tuple[str, ...]
    status: HookStatus
    exit_code: int | None
    seconds: float
    output: str


@dataclass(frozen=True)
class Record:
    """One run of a job.

    Attributes
    ----------
    job, run
        Name of the job and id of the run, see `new_run_id`.
    started, ended, seconds
        Times (UTC, ISO format) and their distance by a clock that does not jump.
    outcome, error
        How it ended; a sentence if badly. A run that was killed is recorded by the next one
        as cut off.
    code_version, scheduler
        The release, and where work ran ("in process" or an address).
    input, models, gates
        What came in, what was done with it, and what was checked.
    published
        Number of the published state, if this run moved the pointer.
    pruned
        What the keep rules removed, numbers by name.
    cost
        What it took.
    hooks
        Commands that were told.
    """

    job: str
    run: str
    started: str
    ended: str
    seconds: float
    outcome: Outcome
    error: str | None = None
    code_version: str = __version__
    scheduler: str = "in process"
    input: Input = field(default_factory=Input)
    models: tuple[Model, ...] = ()
    gates: tuple[Gate, ...] = ()
    published: int | None = None
    pruned: dict[str, Any] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    hooks: tuple[Hook, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether the published state is what the input calls for."""
        return self.outcome in GOOD_OUTCOMES

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values; numbers that JSON has not become None."""
        values: dict[str, Any] = _plain(dataclasses.asdict(self))
        return {"format": FORMAT, **values}


# msgspec notes what it needs to know of a dataclass when it first meets it. A thread that comes
# while another one is at it finds half of the notes and crashes: they are made here, by one.
msgspec.json.Decoder(Record)


def _plain(value: Any) -> Any:
    """Return a value as strict JSON has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # of numpy
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def new_run_id(number: int, now: datetime.datetime) -> str:
    """Return the id of the run that is `number` in the job's ledger.

    Ids sort in the order of runs, also if the clock went backwards.
    """
    return f"{number:08d}-{now.astimezone(datetime.UTC):%Y%m%dT%H%M%SZ}"


def record_key(run: str) -> str:
    """Key of the record of a run within the job's place."""
    return f"{RUNS}/{run}/record.json"


def report_key(run: str) -> str:
    """Key of the report of a run within the job's place."""
    return f"{RUNS}/{run}/report.html"


def encode_record(record: Record) -> bytes:
    """Return the content of the file of a record."""
    return json.dumps(record.to_json(), indent=1, allow_nan=False).encode() + b"\n"


def write_record(objects: Objects, record: Record) -> str:
    """Write or replace the record of a run, whole or not at all; return where it is."""
    key = record_key(record.run)
    objects.write(key, encode_record(record))
    return objects.where(key)


def read_record(objects: Objects, run: str) -> Record:
    """Return the record of a run.

    Raises
    ------
    MissingObject
        If there is none.
    StoreError
        If it is truncated, something else, or of a newer format.
    """
    key = record_key(run)
    return decode_record(objects.read(key), objects.where(key))


def decode_record(content: bytes, where: str) -> Record:
    """Return the record that `encode_record` wrote; `where` is its place in messages."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        raise _refused(where, "a truncated or foreign file") from None
    version = values.get("format") if isinstance(values, dict) else None
    if type(version) is not int or version < 1:
        raise _refused(where, "a foreign file")
    if version > FORMAT:
        got = f"format {version}, written by distclust {values.get('code_version')!r:.40}"
        raise StoreError(where, f"format {FORMAT} or older", got, "Upgrade distclust to read it.")
    try:
        return msgspec.convert(values, Record)
    except msgspec.ValidationError as error:
        raise _refused(where, str(error)) from None


def _refused(where: str, got: str) -> StoreError:
    hint = "Remove it, or restore it from a copy."
    return StoreError(where, "the record of a run", got, hint)


@dataclass(frozen=True)
class History:
    """The last runs, the oldest first, and records that cannot be read."""

    records: tuple[Record, ...]
    findings: tuple[Finding, ...]


def list_runs(objects: Objects) -> list[str]:
    """Return the ids of all runs that left a record, the oldest first."""
    return sorted(match[1] for key in objects.list(RUNS) if (match := _RECORD.fullmatch(key)))


def read_history(objects: Objects, most: int = SHOWN_RUNS) -> History:
    """Return the last runs; a record that is damaged or gone is a finding, not an error."""

    def read(run: str) -> Record | Finding:
        try:
            return read_record(objects, run)
        except StoreError as error:
            return Finding(record_key(run), f"expected {error.expected}, got {error.got}")

    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(read, list_runs(objects)[-most:]))
    return History(
        tuple(each for each in found if isinstance(each, Record)),
        tuple(each for each in found if isinstance(each, Finding)),
    )
