"""What a benchmark is, and how its result is recorded."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

import distclust
from distclust.errors import ConstantColumnsWarning

Size = Literal["full", "toy"]
Results = dict[str, Any]

_PACKAGES = ("numpy", "scipy", "numba", "scikit-learn", "dask")


@dataclass(frozen=True)
class Problem:
    """A named benchmark: three functions without side effects.

    Attributes
    ----------
    name, about
        What to call it, and one line on what it measures.
    make_data
        Builds the input from fixed seeds; "toy" is small enough for a test.
    run
        Input to JSON-able results.
    summarise
        Results to Markdown.
    needs_files
        Whether the real data sets are needed at full size.
    """

    name: str
    about: str
    make_data: Callable[[Size], Any]
    run: Callable[[Any], Results]
    summarise: Callable[[Results], str]
    needs_files: bool = False


def measure(problem: Problem, size: Size = "full") -> dict[str, Any]:
    """Run a problem and record it with machine, versions and commit."""
    with warnings.catch_warnings():
        # Corners of digits are always empty: known, and no news in a benchmark.
        warnings.simplefilter("ignore", ConstantColumnsWarning)
        results = problem.run(problem.make_data(size))
    return {"problem": problem.name, "size": size, **circumstances(), "results": results}


def circumstances() -> dict[str, Any]:
    """Describe machine, versions and commit."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {"distclust": distclust.__version__}
        | {name: version(name) for name in _PACKAGES},
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
            "system": platform.platform(terse=True),
        },
    }


def _commit() -> str:
    """Commit of the working folder, "+" after it when files differ."""
    root = Path(__file__).parents[1]
    try:
        commit = _git(root, "rev-parse", "--short=10", "HEAD")
        return commit + ("+" if _git(root, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def to_markdown(record: dict[str, Any], problem: Problem) -> str:
    """Tables of a record, with the line that says where they come from."""
    machine = record["machine"]
    versions = record["versions"]
    source = (
        f"`python -m benchmarks {problem.name}`, {record['time'][:10]}, commit "
        f"{record['commit']}, {machine['processor']}, {machine['cores']} cores, Python "
        f"{record['python']}, numpy {versions['numpy']}, scipy {versions['scipy']}."
    )
    return f"{problem.summarise(record['results']).strip()}\n\n{source}\n"


def update_page(page: Path, name: str, text: str) -> None:
    """Replace what stands between the markers of a problem in a Markdown page."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    old = page.read_text(encoding="utf-8")
    if begin not in old or end not in old:
        sys.exit(f"{page} has no markers {begin} and {end}.")
    head, rest = old.split(begin, 1)
    tail = rest.split(end, 1)[1]
    page.write_text(f"{head}{begin}\n{text.strip()}\n{end}{tail}", encoding="utf-8")


def write_json(path: Path, record: dict[str, Any]) -> None:
    """Write a record for people and programs to read."""
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


# ---- tables ------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error (zero for a single value)."""
    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return float(array.mean()), 0.0
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array)))


def show(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard error."""
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f} ± {error:.{digits}f}" if len(values) > 1 else f"{mean:.{digits}f}"
