"""The image recipe keeps the rules; deploy/image/try_steps.py runs its steps."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from distclust import __version__

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "image" / "Dockerfile"

pytestmark = pytest.mark.skipif(
    not DOCKERFILE.is_file(), reason="deploy is not part of an installed package"
)


def stages(text: str) -> list[list[tuple[str, str]]]:
    """Return the instructions of every stage, as pairs of word and rest."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found: list[list[tuple[str, str]]] = []
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).split("\n"):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


def broken_rules(text: str) -> set[str]:
    """Return which of the rules a recipe breaks."""
    build, final = stages(text)
    broken = set()
    for _, base in (build[0], final[0]):
        if not re.match(r"[\w./-]+:\d+\.\d+\.\d+-[\w-]+( AS \w+)?$", base):
            broken.add("base by version")
    words = dict(final)
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", words.get("USER", "")):
        broken.add("a user by number, not root")
    order = [word for word, _ in final]
    if "USER" in order and {"RUN", "COPY"} & set(order[order.index("USER") :]):
        broken.add("nothing is the user's own")
    if any(word == "ADD" for stage in (build, final) for word, _ in stage):
        broken.add("no ADD")
    for word, rest in build + final:
        if word == "RUN" and "pip install" in rest and "--no-cache-dir" not in rest:
            broken.add("no cache of pip")
    for name in ("CMD", "HEALTHCHECK"):
        command = words.get(name, "").removeprefix("--").rpartition("CMD ")[2]
        try:
            json.loads(command)
        except ValueError:
            broken.add(f"{name} in exec form")
    if "LABEL" not in words:
        broken.add("labels")
    if "DISTCLUST_CACHE_DIR=" not in words.get("ENV", ""):
        broken.add("a cache folder")
    return broken


def test_rules__are_kept():
    assert broken_rules(DOCKERFILE.read_text()) == set()


@pytest.mark.parametrize(
    ("rule", "pattern", "replacement"),
    [
        ("base by version", r"python:[\w.-]+", "python:latest"),
        ("a user by number, not root", "USER 10001:10001", "USER 0:0"),
        ("a user by number, not root", "USER 10001:10001\n", ""),
        ("no ADD", "COPY examples", "ADD examples"),
        ("no cache of pip", "--no-cache-dir ", ""),
        ("CMD in exec form", r'\nCMD \["distclust", "--help"\]', "\nCMD distclust --help"),
        ("HEALTHCHECK in exec form", r"HEALTHCHECK.*", "HEALTHCHECK NONE"),
        ("nothing is the user's own", "WORKDIR /tmp", "WORKDIR /tmp\nRUN touch /x"),
    ],
)
def test_rules__can_be_broken(rule, pattern, replacement):
    text = re.sub(pattern, replacement, DOCKERFILE.read_text())
    assert text != DOCKERFILE.read_text()
    assert rule in broken_rules(text)


def hadolint(text: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    if found is None:
        pytest.skip("there is no hadolint command")
    return subprocess.run(
        [found, "--no-color", "-"], input=text, capture_output=True, text=True, check=False
    )


def test_hadolint__finds_nothing():
    done = hadolint(DOCKERFILE.read_text())
    assert (done.returncode, done.stdout) == (0, "")


def test_hadolint__finds_something():
    assert (
        "DL3002" in hadolint(DOCKERFILE.read_text().replace("USER 10001:10001", "USER root")).stdout
    )


def test_version__is_that_of_the_package():
    found = re.findall(r"(?<![\w.])(?:distclust:|version=\")([\d.]+)", DOCKERFILE.read_text())
    assert set(found) == {__version__}
    places = [*ROOT.glob("deploy/**/*.yaml"), ROOT / "docs" / "kubernetes.md"]
    tags = [
        tag
        for path in places
        if path.is_file()
        for tag in re.findall(r"(?:distclust:|newTag: )(\d[\w.]*)", path.read_text())
    ]
    assert set(tags) == {__version__}


def test_copies__exist_and_pass_the_ignore_file():
    kept = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split("\n")
    for stage in stages(DOCKERFILE.read_text()):
        for word, rest in stage:
            if word == "COPY" and "--from" not in rest:
                for source in rest.split()[:-1]:
                    assert (ROOT / source).exists(), source
                    first = source.split("/")[0]
                    assert f"!{source}" in kept or f"!{first}" in kept, source


def compiled_functions() -> list[str]:
    """Return the names of all compiled functions, by their sources."""
    found: list[str] = []
    for path in (ROOT / "distclust").rglob("*_numerics.py"):
        module = ".".join(path.relative_to(ROOT / "distclust").with_suffix("").parts)
        functions = (n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef))
        found += [f"{module}.{each.name}" for each in functions if is_compiled(each)]
    return sorted(found)


def is_compiled(function: ast.FunctionDef) -> bool:
    names = (each.id for each in function.decorator_list if isinstance(each, ast.Name))
    return "compiled" in names


def test_warm__every_compiled_function_is_reached():
    """A new one is warmed in warm.py, `python deploy/image/warm.py --strict --record` says how."""
    warmed = DOCKERFILE.with_name("warmed.txt").read_text().split()
    assert len(warmed) > 200
    assert warmed == compiled_functions()
    assert "warm.py --strict" in DOCKERFILE.read_text()  # what the build of the image refuses


def test_extras__exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (wanted,) = re.findall(r'"\.\[([\w,]+)\]"', DOCKERFILE.read_text())
    assert set(wanted.split(",")) <= set(extras)
