"""What there is to tell about stores: one description for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from distclust.report.terminal import count, print_facts, size

if TYPE_CHECKING:
    from rich.console import Console

    from distclust.store.matrix_store import MatrixStore

_HEADS = ("version", "created", "kind", "rows", "deleted", "size_bytes", "metrics")


def describe_store(store: MatrixStore) -> dict[str, Any]:
    """Return what a store holds as JSON values, with the family that would be chosen."""
    from distclust.engine import map_ordered
    from distclust.families import choose_family

    facts, matrix = store.info(), store.matrix()
    profile = store.profile(map_ordered, with_deleted=True)
    family, reason = choose_family(profile, matrix.columns, matrix.is_sparse)
    told = f"{reason} (judged with the deleted rows)" if facts["deleted"] else reason
    return {**facts, "family": type(family).__name__, "family_reason": told}


def print_store(console: Console, facts: Mapping[str, Any]) -> None:
    """Print the description of a store."""
    n_rows, n_features = facts["shape"]
    annotations = ", ".join(f"{name} ({kind})" for name, kind in facts["annotations"].items())
    told = {
        "store": facts["url"],
        "shape": f"{count(n_rows, 'row')}, {count(n_features, 'feature')}",
        "family guess": facts["family_reason"],
        "layout": f"{facts['layout']}, {facts['codec']}, {count(facts['blocks'], 'block')}",
        "size": size(facts["size_bytes"]),
        "row ids": facts["ids"],
        "annotations": annotations or "none",
        "generation": f"{facts['generation']}, written {_moment(facts['created'])}",
        "deleted rows": f"{facts['deleted']:,}",
        "fingerprint": facts["fingerprint"],
        "health": facts["health"],
    }
    print_facts(console, {name: value for name, value in told.items() if value != "0"})


def print_versions(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print versions, one a line, the current one marked."""
    heads = [head for head in _HEADS if rows and head in rows[0]]
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("")
    for head in heads:
        is_number = head in ("rows", "deleted", "size_bytes")
        table.add_column(
            head.replace("_bytes", ""),
            justify="right" if is_number else "left",
            no_wrap=head != "metrics",
        )
    for row in rows:
        cells = [_cell(head, row[head]) for head in heads]
        table.add_row("*" if row["is_current"] else "", *map(Text, cells))
    console.print(table)


def print_version(console: Console, facts: Mapping[str, Any]) -> None:
    """Print facts by name, such as those about one version."""
    told = {name.replace("_", " "): _cell(name, value) for name, value in facts.items()}
    print_facts(console, told)


def print_differences(console: Console, differences: Mapping[str, Any]) -> None:
    """Print what differs between two versions, old and new."""
    if not differences:
        console.print("No differences.")
        return
    print_facts(console, {name: _text(value) for name, value in _flat(differences)})


def _flat(values: Mapping[str, Any], prefix: str = "") -> Sequence[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.extend(_flat(value, f"{prefix}{name}."))
        else:
            flat.append((prefix + name, value))
    return flat


def _cell(name: str, value: Any) -> str:
    if name == "size_bytes":
        return size(value)
    if name == "created":
        return _moment(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and name != "seed"
    return f"{value:,}" if is_count else _text(value)


def _moment(stamp: str) -> str:
    """A time as people write it, in UTC."""
    return f"{stamp[:19].replace('T', ' ')} UTC"


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items()) or "none"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value)) or "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
