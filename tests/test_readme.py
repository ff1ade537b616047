"""What the README shows runs, and what it points at exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"

pytestmark = pytest.mark.skipif(
    not README.is_file(), reason="the README is not part of an installed package"
)


def code_blocks(page: Path = README) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [block for block in blocks if "tcp://" not in block]  # no cluster there


@pytest.mark.parametrize("number", range(4))
def test_readme__python_runs(number: int, tmp_path: Path) -> None:
    environment = {**os.environ, "MPLBACKEND": "agg"}
    subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code_blocks()[number]],
        check=True,
        cwd=tmp_path,
        env=environment,
        timeout=200,
    )


def test_docs__what_the_page_of_sets_shows_runs_and_is_so(tmp_path: Path) -> None:
    page = ROOT / "docs" / "sets.md"
    if not page.is_file():
        pytest.skip("the pages are not part of an installed package")
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", "\n".join(code_blocks(page))],
        check=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    shown = re.findall(r"```\n(Ranking.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    wanted, found = (text.splitlines() for text in (shown[0], done.stdout))
    assert found[:-1] == wanted[:-1]  # the last line has the time


def test_docs__what_the_page_of_crews_shows_runs_and_is_taken_up(tmp_path: Path) -> None:
    page = ROOT / "docs" / "crews.md"
    if not page.is_file():
        pytest.skip("the pages are not part of an installed package")
    (code,) = code_blocks(page)
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    first, again = (
        subprocess.run(
            command, check=True, cwd=tmp_path, capture_output=True, text=True, timeout=200
        ).stdout
        for _ in range(2)
    )
    assert "rounds=20" in first
    assert again == first


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("projections", "partial_fit"),
        ("mixtures", "coassignment"),
        ("ensembles", "fit_labels"),
    ],
)
def test_docs__what_a_page_shows_runs(name: str, shown: str, tmp_path: Path) -> None:
    page = ROOT / "docs" / f"{name}.md"
    if not page.is_file():
        pytest.skip("the pages are not part of an installed package")
    code = "\n".join(code_blocks(page))
    assert shown in code
    subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        check=True,
        cwd=tmp_path,
        timeout=200,
    )


def test_readme__every_python_block_is_run() -> None:
    assert len(code_blocks()) == 4


def test_readme__opens_with_the_two_commands() -> None:
    text = README.read_text(encoding="utf-8")
    first = text.index("python -m pip install . && distclust demo")
    second = text.index('python -m pip install -e ".[test]" && pytest')
    assert first < second < text.index("## ")


def test_readme__points_at_what_exists() -> None:
    text = README.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    here = [target for target in targets if "://" not in target]
    assert here
    assert [target for target in here if not (ROOT / target).exists()] == []
