"""The verbs around stores: ingest, info, verify, delete, compact, versions."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distclust.commands.common import (
    Common,
    connected,
    console,
    followed,
    print_json,
    say_plan,
)
from distclust.errors import InputError, MissingFileError

if TYPE_CHECKING:
    from distclust.report.plan import Plan
    from distclust.store.matrix_store import MatrixStore
    from distclust.store.objects import Finding
    from distclust.store.results import ResultsStore

FINDINGS_SHOWN = 20


def ingest(
    source: Sequence[str],
    store: str,
    options: Mapping[str, Any],
    scheduler: str | None,
    common: Common,
) -> None:
    """Bring data into a store, say what was decided on the way and what is there now."""
    from distclust.engine import ingest as bring_in

    where = source[0] if len(source) == 1 else list(source)
    arguments = _ingest_arguments(options)
    if common.plan:
        from distclust.report.plan import plan_ingest

        say_plan(plan_ingest(where, arguments), common)
        return
    with followed(common), connected(scheduler):
        made = bring_in(where, store, **arguments)
    if not common.quiet and not common.as_json:
        for note in made.provenance.get("notes", ()):
            console().print(note, highlight=False)
    _say_store(made, "ingest", common)


def _ingest_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Turn what the command line says into arguments of `distclust.ingest`."""
    if options["append"] and options["replace"]:
        raise InputError("ingest", "--append or --replace", "both", "Choose one.")
    how = "append" if options["append"] else "replace" if options["replace"] else "create"
    given = {
        "ids": options["ids"],
        "drop": options["drop"],
        "categories": options["category"],
        "obs": options["obs"],
        "format": options["format_"],
        "binarise": options["binarise"],
        "text_field": options["text_field"],
        "id_field": options["id_field"],
        "ngrams": _ngrams(options["ngrams"]),
        "min_df": _frequency(options["min_df"], "--min-df"),
        "max_df": _frequency(options["max_df"], "--max-df"),
        "max_features": options["max_features"],
        "hashing": options["hashing"],
        "stop_words": options["stop_words"],
        "lowercase": False if options["keep_case"] else None,
        "binary": options["binary"] or None,
        "missing_chunks": options["missing_chunks"],
    }
    reading = {name: value for name, value in given.items() if value is not None}
    same = {name: options[name] for name in ("layout", "storage", "duplicates", "fresh")}
    return {"how": how, **same, **reading}


def _ngrams(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    numbers = text.split(",")
    if len(numbers) in (1, 2) and all(number.strip().isdecimal() for number in numbers):
        return int(numbers[0]), int(numbers[-1])
    raise InputError("--ngrams", "two whole numbers such as 1,2", repr(text), "Mend it.")


def _frequency(text: str | None, option: str) -> int | float | None:
    """Return a number of documents, or a share of them where there is a decimal point."""
    if text is None:
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        expected = "a number of documents such as 5, or a share such as 0.5"
        raise InputError(option, expected, repr(text), "Mend it.") from None


def info(store: str, common: Common) -> None:
    """Say what a store holds."""
    opened = _open_any(store)
    if _no_plan_needed("info", common):
        return
    if _is_results(opened):
        list_versions(store, common)
    else:
        _say_store(opened, "info", common)


def _say_store(store: MatrixStore, command: str, common: Common) -> None:
    from distclust.report.stores import describe_store, print_store

    facts = describe_store(store)
    if common.as_json:
        print_json({"command": command, **facts, "provenance": dict(store.provenance)})
    elif command == "info" or not common.quiet:
        print_store(console(), facts)


def verify(store: str, scheduler: str | None, common: Common) -> int:
    """Read everything; return 2 if anything is wrong."""
    if common.plan:
        say_plan(_plan_of_reading("verify", store), common)
        return 0
    from distclust.engine import map_ordered

    with followed(common), connected(scheduler):
        opened = _open_any(store)
        findings = opened.verify() if _is_results(opened) else opened.verify(map_ordered)
    _say_findings(store, findings, common)
    return 2 if findings else 0


def _say_findings(store: str, findings: Sequence[Finding], common: Common) -> None:
    if common.as_json:
        found = [{"key": finding.key, "problem": finding.problem} for finding in findings]
        print_json({"command": "verify", "store": store, "findings": found})
        return
    for finding in findings[:FINDINGS_SHOWN]:
        print(f"{store}: {finding.key}: {finding.problem}", file=sys.stderr)
    if len(findings) > FINDINGS_SHOWN:
        print(f"and {len(findings) - FINDINGS_SHOWN:,} more", file=sys.stderr)
    if not findings and not common.quiet:
        console().print(f"{store}: every byte is as it was written.", highlight=False)


def delete(
    store: str, ids: Sequence[str], ids_from: Path | None, ignore_missing: bool, common: Common
) -> None:
    """Delete rows by their ids."""
    chosen = [*ids, *_ids_in(ids_from)]
    if not chosen:
        hint = "Name ids, or a file of them with --ids-from."
        raise InputError("delete", "at least one id", "none", hint)
    opened = _open_matrix(store)
    if _no_plan_needed("delete", common):
        return
    with followed(common):
        changed = opened.delete(chosen, missing="ignore" if ignore_missing else "refuse")
    _say_store(changed, "delete", common)


def _ids_in(path: Path | None) -> list[str]:
    if path is None:
        return []
    if str(path) == "-":
        return [line for line in sys.stdin.read().split("\n") if line]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        got = error.strerror or str(error)
        raise MissingFileError(str(path), "a file of ids", got, "Check the path.") from None
    except UnicodeDecodeError as error:
        got = f"a byte that is not UTF-8 at position {error.start}"
        raise InputError(str(path), "UTF-8 text", got, "Save the file as UTF-8.") from None
    return [line for line in text.split("\n") if line]


def compact(store: str, scheduler: str | None, common: Common) -> None:
    """Rewrite a store without deleted rows, in one piece."""
    if common.plan:
        say_plan(_plan_of_reading("compact", store), common)
        return
    from distclust.engine import map_ordered

    with followed(common), connected(scheduler):
        made = _open_matrix(store).compact(mapper=map_ordered)
    _say_store(made, "compact", common)


def list_versions(store: str, common: Common) -> None:
    """List the versions of a store, the newest last."""
    opened = _open_any(store)
    if _no_plan_needed("versions list", common):
        return
    rows = _history(opened)
    if common.as_json:
        print_json({"command": "versions list", "store": store, "versions": rows})
        return
    from distclust.report.stores import print_versions

    print_versions(console(), rows)


def show_version(store: str, version: str | None, common: Common) -> None:
    """Show one version."""
    facts = _find(_history(_open_any(store)), version, store)
    if _no_plan_needed("versions show", common):
        return
    if common.as_json:
        print_json({"command": "versions show", "store": store, **facts})
        return
    from distclust.report.stores import print_version

    print_version(console(), facts)


def diff_versions(store: str, older: str, newer: str, common: Common) -> None:
    """Say what differs between two versions."""
    opened = _open_any(store)
    if _no_plan_needed("versions diff", common):
        return
    if _is_results(opened):
        differences = opened.diff(older, newer)
    else:
        rows = _history(opened)
        a, b = _find(rows, older, store), _find(rows, newer, store)
        differences = {name: [a[name], b[name]] for name in a if a[name] != b[name]}
    if common.as_json:
        print_json({"command": "versions diff", "store": store, "differences": differences})
        return
    from distclust.report.stores import print_differences

    print_differences(console(), differences)


def rollback(store: str, version: str | None, common: Common) -> None:
    """Make an earlier version current again."""
    opened = _open_any(store)
    if _no_plan_needed("versions rollback", common):
        return
    if _is_results(opened):
        current = opened.rollback(version).id
    else:
        rows = _history(opened)
        number = _find(rows, version, store)["version"] if version else _before(rows, store)
        current = str(opened.rollback(int(number)).generation)
    if common.as_json:
        print_json({"command": "versions rollback", "store": store, "current": current})
    elif not common.quiet:
        console().print(f"Version {current} is now current in {store}", highlight=False)


def gc(store: str, keep: int, grace: float, common: Common) -> None:
    """Remove old versions and leftovers."""
    opened = _open_any(store)
    if _no_plan_needed("versions gc", common):
        return
    swept = opened.gc(keep=keep, older_than=grace, grace=grace)
    facts = {
        name: [str(one) for one in found] if isinstance(found, tuple) else found
        for name, found in vars(swept).items()
    }
    if common.as_json:
        print_json({"command": "versions gc", "store": store, **facts})
    elif not common.quiet:
        from distclust.report.stores import print_collection

        print_collection(console(), facts)


def _open_any(store: str) -> Any:
    """Open a matrix store or a results store, whichever is there."""
    from distclust.store.results import ResultsStore
    from distclust.store.shelf import holds_results

    results = ResultsStore(store)
    return results if holds_results(results.objects) else _open_matrix(store)


def _open_matrix(store: str) -> MatrixStore:
    from distclust.store.matrix_store import open_store

    return open_store(store)


def _is_results(opened: MatrixStore | ResultsStore) -> bool:
    from distclust.store.results import ResultsStore

    return isinstance(opened, ResultsStore)


def _history(opened: Any) -> list[dict[str, Any]]:
    """All versions as JSON values; those of both kinds of store have the same first names."""
    if _is_results(opened):
        return [
            {
                "version": version.id,
                "is_current": version.is_current,
                "created": version.created,
                "kind": version.kind,
                "size_bytes": version.size,
                "parameters": version.parameters,
                "seed": version.seed,
                "code_version": version.code_version,
                "input_fingerprint": version.input_fingerprint,
                "metrics": version.metrics,
                "files": sorted(version.files),
            }
            for version in opened.versions()
        ]
    return [
        {
            "version": str(found.number),
            "is_current": found.is_current,
            "created": found.created,
            "kind": found.action,
            "rows": found.n_rows,
            "deleted": found.n_deleted,
            "segments": found.n_segments,
            "fingerprint": found.fingerprint,
            "provenance": dict(found.provenance),
        }
        for found in opened.generations()
    ]


def _find(rows: Sequence[dict[str, Any]], version: str | None, store: str) -> dict[str, Any]:
    """Return one version by its name, or the current one."""
    for row in rows:
        if row["is_current"] if version is None else row["version"] == version:
            return row
    names = ", ".join(row["version"] for row in rows[-8:]) or "none"
    hint = "See `distclust versions list`."
    raise InputError(store, f"one of its versions ({names})", repr(version), hint)


def _before(rows: Sequence[dict[str, Any]], store: str) -> str:
    if len(rows) < 2:
        raise InputError(store, "a version before the current one", "none", "Name a version.")
    return str(rows[-2]["version"])


def _plan_of_reading(command: str, store: str) -> Plan:
    """Estimate reading all of a store, and for ``compact`` writing it again."""
    from distclust.report.plan import plan_reading

    opened = _open_any(store)
    if _is_results(opened):
        n_bytes, shape = sum(version.size for version in opened.versions()), (0, 0)
    else:
        n_bytes, shape = opened.size_bytes, opened.shape
    return plan_reading(command, shape, n_bytes, writes=command == "compact")


def _no_plan_needed(command: str, common: Common) -> bool:
    """Answer --plan for commands that cost next to nothing to describe."""
    if not common.plan:
        return False
    from distclust.report.plan import Plan

    say_plan(Plan(command, 0, 0, 1, 0, 0, 2.0), common)
    return True
