"""Small file checks for pre-commit and CI that need nothing but the project environment.

``python .ci/check_files.py end-of-file|yaml|toml FILE...`` prints one line a fault and
exits with 1 if there was one.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import yaml


def end_of_file(path: Path) -> str | None:
    """Return what is wrong with the end of a text file, or None."""
    content = path.read_bytes()
    if not content:
        return None
    if not content.endswith(b"\n"):
        return "no newline at the end"
    return "blank lines at the end" if content.endswith(b"\n\n") else None


def parses_as_yaml(path: Path) -> str | None:
    """Return why the file is not YAML, or None."""
    try:
        list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        return str(error)
    return None


def parses_as_toml(path: Path) -> str | None:
    """Return why the file is not TOML, or None."""
    try:
        tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        return str(error)
    return None


CHECKS: dict[str, Callable[[Path], str | None]] = {
    "end-of-file": end_of_file,
    "yaml": parses_as_yaml,
    "toml": parses_as_toml,
}


def main(name: str, *files: str) -> int:
    """Check every file, print the faults, return the exit code."""
    faults = [(file, CHECKS[name](Path(file))) for file in files]
    faults = [(file, fault) for file, fault in faults if fault]
    for file, fault in faults:
        print(f"{file}: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
