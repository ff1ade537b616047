"""Job files: what is kept up to date, read from TOML and checked before anything is done.

::

    name = "articles"
    out = "results"

    [input]
    source = "incoming/*.csv"

    [models.topics]
    kind = "rbhc"

`starter` is a file with every key explained. Relative paths are seen from the folder of the
job file, so that a schedule may start the job anywhere.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from distclust.errors import InputError, MissingFileError
from distclust.validation import check_bytes, check_integer, check_real

# Bytes. A worker that has loaded what models need holds 200 MB before it has seen a row, and
# Dask pauses and restarts workers that are near their limit: with 256 MB a run never ends.
LEAST_WORKER = 500_000_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_TYPES = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")


Part = TypeVar("Part", bound="_Section")


class _Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A part of a job file; keys that it does not know are refused."""


class Input(_Section, frozen=True):
    """Where rows come from.

    Attributes
    ----------
    source
        A path, a folder, a pattern or a URL, or a list of these; empty if the store is
        kept by somebody else and only read.
    store
        Where the rows are kept; by default inside `Job.out`.
    layout, storage, duplicates
        As for ``distclust ingest``.
    reading
        How the source is read, as for ``distclust ingest``: ``ids``, ``drop``, ``binarise`` ...
    """

    source: str | list[str] = ""
    store: str = ""
    layout: Literal["auto", "dense", "csr", "compact"] = "auto"
    storage: Literal["auto", "hot", "packed"] = "auto"
    duplicates: Literal["refuse", "first", "last"] = "refuse"
    reading: dict[str, Any] = {}


class Refit(_Section, frozen=True):
    """When a model is fitted anew instead of being brought up to date.

    Attributes
    ----------
    drift
        Standard errors by which the mean log predictive of new rows may lie below that of
        old ones.
    share
        Share of the rows below drifted nodes from which on the whole model is refitted.
    period
        At the latest after so much time, such as ``30d``; empty: never for its age.
    """

    drift: float = 4.0
    share: float = 0.25
    period: str = ""


class Model(_Section, frozen=True):
    """One model that is kept up to date."""

    kind: str
    seed: int = 0
    parameters: dict[str, Any] = {}
    refit: Refit = Refit()


class Resources(_Section, frozen=True):
    """Where the work is done; the command line and the environment come first."""

    scheduler: str = ""
    workers: int | None = None
    memory: str = ""
    timeout: str = "60s"


class ModelGate(_Section, frozen=True):
    """What a model must be like to be published."""

    min_clusters: int | None = None
    max_clusters: int | None = None


class Gates(_Section, frozen=True):
    """What a new version must be like to be published.

    Attributes
    ----------
    min_rows
        Fewest rows.
    max_deleted
        Largest share of the published rows that may go in one run.
    max_evidence_drop
        Largest drop of the log evidence a row (of chains the log joint, of consensus its bound
        or likelihood) against the published version, as a share of it, or of 1 if it is less.
    models
        `ModelGate` by name of a model.
    """

    min_rows: int = 1
    max_deleted: float = 0.5
    max_evidence_drop: float = 0.1
    models: dict[str, Any] = {}


class Keep(_Section, frozen=True):
    """What is kept of earlier versions and runs."""

    versions: int = 5
    days: float = 1.0
    runs: int = 90


class Hooks(_Section, frozen=True):
    """Commands that are told how a run ended: a program and its arguments, no shell."""

    success: list[str] = []
    failure: list[str] = []
    timeout: str = "60s"


class _File(_Section, frozen=True):
    """All of a job file; tables whose keys are names are read one by one."""

    name: str
    out: str
    input: Input
    models: dict[str, Any]
    resources: Resources = Resources()
    gates: Gates = Gates()
    keep: Keep = Keep()
    hooks: Hooks = Hooks()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose file was read and checked; places are absolute paths or URLs.

    Attributes
    ----------
    path
        The job file, for messages.
    name, input, models, resources, gates, keep, hooks
        Its parts.
    out
        Where results, records and the lock are.
    store
        Where the rows are.
    source
        Where rows come from; empty: the store is only read.
    """

    path: str
    name: str
    out: str
    store: str
    source: tuple[str, ...]
    input: Input
    models: dict[str, Model]
    resources: Resources
    gates: Gates
    keep: Keep
    hooks: Hooks


def read_job(path: str | os.PathLike[str]) -> Job:
    """Read a job file; whatever is wrong with it is said before anything is done.

    Raises
    ------
    MissingFileError
        If there is no such file.
    InputError
        If it is no TOML, or has unknown keys, wrong types or impossible values.
    """
    place = Path(path)
    try:
        text = place.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        got = f"a byte that is not UTF-8 at position {error.start}"
        raise InputError(str(place), "UTF-8 text", got, "Save the file as UTF-8.") from None
    except OSError as error:
        hint = "Check the path, or write one with `distclust job init`."
        got = error.strerror or str(error)
        raise MissingFileError(str(place), "a job file", got, hint) from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = "Mend it there; `distclust job init` writes an example."
        raise InputError(str(place), "a job file in TOML", str(error), hint) from None
    return _checked(_converted(values, _File, str(place)), place)


def _converted(values: Any, kind: type[Part], where: str) -> Part:
    """Return a part of the file; what is wrong with it is told by its place."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), kind, where) from None


def _refusal(message: str, kind: type[_Section], where: str) -> InputError:
    """Turn what msgspec says into a sentence about the file."""
    what, _, at = message.partition(" - at `$")
    for key in filter(None, at.strip("`").split(".")):
        where = f"{where}: {key}" if kind is _File else f"{where}.{key}"
        kind = _kind_of(kind, key)
    if found := _UNKNOWN.search(what):
        names = list(kind.__struct_fields__)
        near = _near(found[1], names)
        hint = f"Did you mean {near!r}?" if near else "Check the spelling, or leave it out."
        return InputError(where, f"keys among {', '.join(names)}", repr(found[1]), hint)
    if found := _MISSING.search(what):
        hint = "Add it; `distclust job init` writes a file with every key explained."
        return InputError(where, f"a key {found[1]!r}", "none", hint)
    if found := _TYPES.search(what):
        return InputError(where, found[1], found[2], "Mend the value.")
    return InputError(where, "a valid value", what, "Mend the value.")


def _kind_of(kind: type[_Section], key: str) -> type[_Section]:
    """Return what a key of a section holds, if that is a section."""
    for field in msgspec.structs.fields(kind):
        if field.name == key and isinstance(field.type, type) and issubclass(field.type, _Section):
            return field.type
    return kind


def _near(name: str, names: list[str]) -> str | None:
    from rapidfuzz import fuzz, process

    found = process.extractOne(name, names, scorer=fuzz.ratio, score_cutoff=60)
    return str(found[0]) if found else None


def _checked(read: _File, path: Path) -> Job:
    where = str(path)
    _check_name(read.name, f"{where}: name")
    if not read.models:
        hint = 'Add for instance [models.tree] with kind = "rbhc".'
        raise InputError(f"{where}: models", "at least one model", "none", hint)
    models = {
        name: _checked_model(name, values, f"{where}: models.{name}")
        for name, values in read.models.items()
    }
    gates = _checked_gates(read.gates, models, f"{where}: gates")
    _check_resources(read.resources, f"{where}: resources")
    _check_keep(read.keep, f"{where}: keep")
    seconds(read.hooks.timeout, f"{where}: hooks.timeout")
    source = read.input.source
    named = [source] if isinstance(source, str) else source
    # As it is named: behind links to files that come and go (ConfigMaps) the folder stays.
    folder = Path(os.path.abspath(path)).parent
    out = _place(read.out, folder, f"{where}: out")
    store = f"{out}/rows.zarr"
    if read.input.store:
        store = _place(read.input.store, folder, f"{where}: input.store")
    elif not any(named):
        hint = "Name a source of rows, or a store that somebody else keeps."
        raise InputError(f"{where}: input", "a source or a store", "neither", hint)
    return Job(
        path=where,
        name=read.name,
        out=out,
        store=store,
        source=tuple(_place(one, folder, f"{where}: input.source") for one in named if one),
        input=read.input,
        models=models,
        resources=read.resources,
        gates=gates,
        keep=read.keep,
        hooks=read.hooks,
    )


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        expected = "letters, digits, '-' and '_', at most 64, not '-' or '_' first"
        raise InputError(where, expected, repr(name), "Choose such a name.")


def _checked_model(name: str, values: Any, where: str) -> Model:
    _check_name(name, where)
    model = _converted(values, Model, where)
    check_integer(model.seed, f"{where}.seed")
    check_real(model.refit.drift, f"{where}.refit.drift", above=0)
    check_real(model.refit.share, f"{where}.refit.share", at_least=0, at_most=1)
    if model.refit.period:
        seconds(model.refit.period, f"{where}.refit.period")
    return model


def _check_resources(resources: Resources, where: str) -> None:
    is_local = resources.scheduler == "local"
    seconds(resources.timeout, f"{where}.timeout")
    for name in ("workers", "memory"):
        if getattr(resources, name) and not is_local:
            hint = 'Set scheduler = "local", or leave it out: a cluster has its own limits.'
            got = f"scheduler = {resources.scheduler!r}"
            raise InputError(f"{where}.{name}", "workers that are started here", got, hint)
    known = resources.scheduler in ("", "threads", "local") or "://" in resources.scheduler
    if not known:
        expected = "threads, local, or an address such as tcp://HOST:8786"
        raise InputError(f"{where}.scheduler", expected, repr(resources.scheduler), "Mend it.")
    if is_local:
        _check_fits(resources, where)


def _check_fits(resources: Resources, where: str) -> None:
    """Refuse workers that this machine cannot have."""
    from distclust.engine import allowed_cores, local_memory

    workers = allowed_cores()
    if resources.workers is not None:
        workers = check_integer(resources.workers, f"{where}.workers", at_least=1)
    most = 4 * allowed_cores()
    if workers > most:
        expected = f"at most {most} workers on this machine"
        raise InputError(f"{where}.workers", expected, workers, "Start fewer.")
    if resources.memory:
        each = check_bytes(resources.memory, f"{where}.memory")
        if each < LEAST_WORKER:
            expected = f"at least {LEAST_WORKER / 1e6:.0f} MB for a worker"
            hint = "Give each more and start fewer, or leave it out."
            raise InputError(f"{where}.memory", expected, resources.memory, hint)
        total = local_memory()
        if workers * each > total:
            expected = f"at most {total / workers / 1e9:.3g} GB for each of {workers} workers"
            hint = "Give each less, or start fewer."
            raise InputError(f"{where}.memory", expected, resources.memory, hint)


def _checked_gates(gates: Gates, models: dict[str, Model], where: str) -> Gates:
    check_integer(gates.min_rows, f"{where}.min_rows")
    check_real(gates.max_deleted, f"{where}.max_deleted", at_least=0, at_most=1)
    check_real(gates.max_evidence_drop, f"{where}.max_evidence_drop", at_least=0)
    for name in gates.models:
        if name not in models:
            expected = f"a model among {', '.join(models)}"
            raise InputError(f"{where}.models", expected, repr(name), "Check the spelling.")
    bounds = {
        name: _converted(values, ModelGate, f"{where}.models.{name}")
        for name, values in gates.models.items()
    }
    return msgspec.structs.replace(gates, models=bounds)


def _check_keep(keep: Keep, where: str) -> None:
    check_integer(keep.versions, f"{where}.versions", at_least=1)
    check_integer(keep.runs, f"{where}.runs", at_least=1)
    check_real(keep.days, f"{where}.days", at_least=0)


def seconds(text: str, where: str) -> float:
    """Return the seconds of a time such as ``90s``, ``30m``, ``12h``, ``7d`` or ``4w``."""
    match = _TIME.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(where, "a time such as 90s, 30m, 12h, 7d or 4w", repr(text), "Mend it.")
    return float(match[1]) * _SECONDS[match[2]]


def _place(text: str, folder: Path, where: str) -> str:
    """Return an absolute path or a URL."""
    if not text:
        raise InputError(where, "a path or a URL", "an empty text", "Name a place.")
    if "://" in text:
        return text.rstrip("/")
    return os.path.normpath(folder / os.path.expanduser(text))


def starter() -> str:
    """Return a job file with every key explained, ready to be changed."""
    place = Path(__file__).with_name("starter.toml")
    return place.read_text(encoding="utf-8")
