"""Imports go one way: the arrows of the design, as a test.

Every import statement of every file is looked at, also inside functions and under
``TYPE_CHECKING``, and ``importlib.import_module`` with a literal name, so that a hidden
import does not escape. Absolute imports only (the linter keeps that, and so does this).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import distclust

PACKAGE = Path(distclust.__file__).parent

LEAVES = {"_version", "errors", "seeding", "validation", "events", "compiled"}
SUBJECTS = {
    "trees",
    "retrieval",
    "mixtures",
    "ensembles",
    "coclusters",
    "projections",
    "topics",
}
FOUNDATION = LEAVES | {"families", "store", "engine"}
REPORTING = FOUNDATION | SUBJECTS | {"loading", "metrics"}
OPERATION = REPORTING | {"report"}

# Top-level name -> top-level names it may import. A missing name is a new part of the
# house: it is drawn in the design first, then entered here.
MAY_IMPORT: dict[str, set[str]] = {
    **{leaf: LEAVES - {leaf} for leaf in LEAVES},
    "families": LEAVES,
    "store": LEAVES,
    "engine": LEAVES | {"store"},
    # Subjects may use each other's public names; cycles are looked for separately.
    **{subject: FOUNDATION | SUBJECTS - {subject} for subject in SUBJECTS},
    "metrics": FOUNDATION | SUBJECTS,
    "loading": FOUNDATION | SUBJECTS,
    "report": REPORTING,
    "jobs": OPERATION,
    "service": OPERATION | {"jobs"},
    "commands": OPERATION | {"jobs", "service"},
    "cli": LEAVES | {"commands", "report"},
    "__init__": OPERATION | {"jobs"},
    "__main__": {"cli"},
}

# Third-party package -> the parts of the house that may name it.
GUARDED = {
    "dask": {"engine"},
    "distributed": {"engine"},
    "zarr": {"store", "engine"},
}


def imported_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import in `source`, wherever it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                yield node.lineno, "." * node.level + (node.module or "")
            elif node.module == "distclust":
                for alias in node.names:
                    yield node.lineno, f"distclust.{alias.name}"
            else:
                yield node.lineno, node.module
        elif isinstance(node, ast.Call) and _is_import_call(node.func) and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield node.lineno, name.value


def _is_import_call(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in {"import_module", "__import__"}


def part_of(path: Path) -> str:
    """Folder or module name at the top of the package, e.g. ``trees`` or ``cli``."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def fault(part: str, name: str) -> str | None:
    """Say why `part` may not import `name`, or return None."""
    root, *rest = name.split(".")
    if root == "":
        return "relative imports are not used"
    if root in GUARDED and part not in GUARDED[root]:
        return f"only {sorted(GUARDED[root])} may name {root}"
    if root != "distclust" or not rest or rest[0].startswith("__"):
        return None
    if part not in MAY_IMPORT:
        return f"{part!r} is not in the table of this test"
    if rest[0] == part or rest[0] in MAY_IMPORT[part]:
        return None
    return f"{part} may import only {sorted(MAY_IMPORT[part])} of distclust"


def source_files() -> list[Path]:
    """Every Python file of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def test_layering__every_part_is_in_the_table() -> None:
    assert {part_of(path) for path in source_files()} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_layering__imports_follow_the_arrows(path: Path) -> None:
    faults = [
        f"{path.relative_to(PACKAGE)}:{line}: import {name}: {reason}"
        for line, name in imported_names(path.read_text(encoding="utf-8"))
        if (reason := fault(part_of(path), name))
    ]
    assert not faults, "\n".join(faults)


def test_layering__subjects_have_no_cycles() -> None:
    uses: dict[str, set[str]] = {subject: set() for subject in SUBJECTS}
    for path in source_files():
        if (part := part_of(path)) in SUBJECTS:
            names = (name.split(".") for _, name in imported_names(path.read_text("utf-8")))
            uses[part] |= {name[1] for name in names if name[0] == "distclust" and name[1:]}
    reached = {subject: uses[subject] & SUBJECTS - {subject} for subject in SUBJECTS}
    for middle in SUBJECTS:
        for subject in SUBJECTS:
            if middle in reached[subject]:
                reached[subject] |= reached[middle]
    assert [subject for subject in SUBJECTS if subject in reached[subject]] == []


@pytest.mark.parametrize(
    ("part", "source", "refused"),
    [
        ("families", "import dask.array", "dask.array"),
        ("trees", "def f():\n    from distributed import get_client", "distributed"),
        ("engine", "from distclust import cli", "distclust.cli"),
        ("store", "from distclust.engine import connect", "distclust.engine"),
        ("trees", "import importlib\nimportlib.import_module('zarr.storage')", "zarr.storage"),
        ("trees", "from . import structure", "."),
        ("trees", "if TYPE_CHECKING:\n    from distclust.report import page", "distclust.report"),
    ],
)
def test_layering__the_test_itself_finds_faults(part: str, source: str, refused: str) -> None:
    found = [name for _, name in imported_names(source) if fault(part, name)]
    assert found == [refused]
