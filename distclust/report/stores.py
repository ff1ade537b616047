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

_HEADS = ("version", "created", "kind", "rows", "deleted", "size_bytes")
_NUMBERS = ("rows", "deleted", "size_bytes")
_LISTED = 12  # values of a long list, such as one of a number for every label


def describe_store(store: MatrixStore) -> dict[str, Any]:
    """Return what a store holds as JSON values, with the family that would be chosen."""
    from distclust.engine import map_ordered
    from distclust.families import DiagonalGaussian, Gaussian, choose_family

    facts, matrix = store.info(), store.matrix()
    profile = store.profile(map_ordered, with_deleted=True)
    family, reason = choose_family(profile, matrix.columns, matrix.is_sparse)
    name: str | None = type(family).__name__
    if matrix.is_sparse and isinstance(family, (Gaussian, DiagonalGaussian)):
        name, reason = None, "sparse real numbers: none is guessed, name one with --family"
    told = f"{reason} (judged with the deleted rows)" if facts["deleted"] else reason
    return {**facts, "family": name, "family_reason": told}


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
        "generation": _generation(facts),
        "deleted rows": f"{facts['deleted']:,}",
        "fingerprint": facts["fingerprint"],
        "health": facts["health"],
    }
    print_facts(console, {name: value for name, value in told.items() if value != "0"})


def _generation(facts: Mapping[str, Any]) -> str:
    if not facts["generation"]:
        return "none: written by another program"
    return f"{facts['generation']}, written {_moment(facts['created'])}"


def print_versions(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print versions, one a line, the current one marked; metrics on a line below."""
    heads = [head for head in _HEADS if rows and head in rows[0]]
    cells = [[_cell(head, row[head]) for head in heads] for row in rows]
    names = [head.replace("_bytes", "") for head in heads]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    _print_line(console, " ", names, widths, heads, style="bold")
    for row, texts in zip(rows, cells, strict=True):
        _print_line(console, "*" if row["is_current"] else " ", texts, widths, heads)
        if row.get("metrics"):
            console.print(Text(f"    {_text(row['metrics'])}", style="dim"))
    if rows:
        console.print("* the current one", style="dim", highlight=False)


def _print_line(
    console: Console,
    mark: str,
    texts: Sequence[str],
    widths: Sequence[int],
    heads: Sequence[str],
    style: str = "",
) -> None:
    padded = [
        text.rjust(width) if head in _NUMBERS else text.ljust(width)
        for text, width, head in zip(texts, widths, heads, strict=True)
    ]
    line = Text(f"{mark} {'  '.join(padded)}".rstrip(), style=style)
    console.print(line, no_wrap=True, overflow="ignore", crop=False)


def print_version(console: Console, facts: Mapping[str, Any]) -> None:
    """Print facts by name, such as those about one version."""
    told = {name.replace("_", " "): _cell(name, value) for name, value in facts.items()}
    print_facts(console, told)


def print_differences(console: Console, differences: Mapping[str, Any]) -> None:
    """Print what differs between two versions: older, newer, and for numbers the change."""
    if not differences:
        console.print("No differences.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for head in ("", "older", "newer", "change"):
        table.add_column(head)
    for name, value in _flat(differences):
        pair = list(value) if isinstance(value, (list, tuple)) else [value]
        texts = [_cell(name, one) for one in pair[:2]] + [_text(one) for one in pair[2:3]]
        table.add_row(name.replace("_", " "), *map(Text, texts))
    console.print(table)


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
        shown = ", ".join(map(_text, value[:_LISTED])) or "none"
        return shown if len(value) <= _LISTED else f"{shown} ... ({len(value):,} in all)"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_collection(console: Console, facts: Mapping[str, Any]) -> None:
    """Print what a collection removed and what it left."""
    words = {
        "generations": "versions removed",
        "versions": "versions removed",
        "drafts": "unfinished runs removed",
        "spared": "left, being read",
        "names": "segments and leftovers removed",
    }
    told = {words[name]: _text(found) for name, found in facts.items() if name in words}
    print_facts(console, told)
    if not facts.get("is_complete", True):
        console.print("A writer may be at work: leftovers were not looked for.")
