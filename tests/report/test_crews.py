"""The table of crews: what it says of a board, whatever stands on it."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import pytest
from rich.console import Console

from distclust.report import crews as report

SCHEDULER = "tcp://10.0.0.5:8786"


def member(number: int, **facts: Any) -> dict[str, Any]:
    known = {"worker": f"tcp://10.0.0.{number}:1", "position": 4, "checkpoint": 3, "restarts": 0}
    return {"member": number, "label": f"shard {number}", "metrics": {}, **known, **facts}


def crew(name: str = "kpca", **facts: Any) -> dict[str, Any]:
    known = {"id": "0a1b2c", "name": name, "run": "r", "state": "running", "restarts": 0}
    times = {"began": time.time(), "seen": time.time(), "silent": 0.5, "checkpoint": 3}
    people = [member(0), member(1)]
    return {**known, **times, "workers": ["a", "b"], "members": people, **facts}


def printed(*crews: dict[str, Any], members: bool = False, width: int = 200) -> list[str]:
    """Lines of a pipe, whose width does not matter."""
    file = io.StringIO()
    report.print_crews(Console(file=file, width=width), SCHEDULER, crews, members=members)
    return file.getvalue().splitlines()


def drawn(*crews: dict[str, Any], members: bool = False, width: int = 80) -> str:
    """What a terminal shows."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    report.print_crews(console, SCHEDULER, crews, members=members)
    return file.getvalue()


def cells(heads: str, row: str) -> dict[str, str]:
    """Cells of a row by the heads above them, which stand at the left or right of a column."""
    spans = [(m.group(), m.start(), m.end()) for m in re.finditer(r"\S+", heads)]
    found = [(m.group(), m.start(), m.end()) for m in re.finditer(r"\S+(?: \S+)*", row)]
    return {
        head: next((text for text, a, b in found if a < end and b > start), "")
        for head, start, end in spans
    }


def test_crews__positions_go_from_the_least_to_the_greatest() -> None:
    people = [member(0, position=1_234), member(1, position=7)]
    heads, row = printed(crew(members=people))
    assert cells(heads, row)["position"] == "7 to 1,234"


def test_crews__a_row_says_all_that_is_asked_for() -> None:
    people = [
        member(0, restarts=2, metrics={"loss": 0.25, "rate": 3}),
        member(1, metrics={"loss": 12.5, "rate": 3}),
    ]
    heads, row = printed(crew(restarts=2, members=people))
    found = cells(heads, row)
    assert re.fullmatch(r"\d\d:\d\d:\d\d", found.pop("since"))
    assert found == {
        "id": "0a1b2c",
        "name": "kpca",
        "state": "running",
        "position": "4",
        "saved": "3",
        "restarts": "2",
        "workers": "2",
        "metrics": "loss 0.25 to 12.5, rate 3",
    }


def test_crews__a_day_is_told_of_those_that_began_before_today() -> None:
    began = time.mktime((2020, 2, 3, 4, 5, 6, 0, 0, -1))
    assert "2020-02-03 04:05" in printed(crew(began=began))[1]


def test_crews__nothing_saved_is_never() -> None:
    heads, row = printed(crew(checkpoint=None))
    assert cells(heads, row)["saved"] == "never"


def test_crews__silence_is_told_of_those_that_run() -> None:
    assert "running, silent 75 s" in printed(crew(silent=75.2))[1]
    assert "silent" not in printed(crew(silent=2.0))[1]
    assert "silent" not in printed(crew(silent=75.2, state="done"))[1]


def test_crews__those_that_run_come_first_and_old_ones_are_counted() -> None:
    ended = [crew(f"old{i}", state="done") for i in range(14)]
    lines = printed(*ended[:7], crew("new"), *ended[7:])
    assert " new " in lines[1]
    assert [line.split()[1] for line in lines[2:-1]] == [f"old{i}" for i in range(10)]
    assert lines[-1] == "4 more that are over; --json lists all."


def test_members__have_a_line_each() -> None:
    people = [
        member(0, position=5, checkpoint=None, restarts=1, metrics={"loss": 1.5}),
        member(1, worker=None),
    ]
    lines = printed(crew(members=people), members=True)
    assert lines[2:4] == ["", "kpca (0a1b2c)"]
    first, second = cells(lines[4], lines[5]), cells(lines[4], lines[6])
    assert first == {
        "member": "shard 0",
        "worker": "tcp://10.0.0.0:1",
        "position": "5",
        "saved": "never",
        "restarts": "1",
        "metrics": "loss 1.5",
    }
    assert (second["worker"], second["saved"]) == ("on its way", "3")


def test_crews__none_is_said() -> None:
    assert printed() == ["No crews on tcp://10.0.0.5:8786."]
    assert "No crews on tcp://10.0.0.5:8786." in drawn()


def test_crews__nothing_is_cut_off_in_a_pipe() -> None:
    people = [member(0, metrics={f"figure {i}": float(i) for i in range(30)})]
    one = crew(members=people)
    assert printed(one, width=40) == printed(one, width=400)
    assert "figure 29 29" in printed(one, width=40)[1]


def test_crews__nothing_is_cut_off_on_a_narrow_terminal() -> None:
    people = [member(0, metrics={"loss": 0.125})]
    shown = drawn(crew("a-crew-with-a-long-name", members=people), members=True)
    assert "…" not in shown
    assert "loss 0.125" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize("show", [printed, drawn])
def test_crews__names_of_others_do_nothing_to_a_terminal(show: Any) -> None:
    shown = show(crew("x\x1b[2J\ny [bold]z"))
    text = shown if isinstance(shown, str) else "\n".join(shown)
    assert "\x1b" not in text
    assert "x [2J y [bold]z" in text


def test_lines__stand_alone() -> None:
    people = [member(0, metrics={"loss": 0.5}), member(1, worker=None, checkpoint=None)]
    assert list(report.crew_lines([crew(members=people)], members=True)) == [
        "0a1b2c  kpca  running  position 4  saved 3  restarts 0  workers 2  loss 0.5",
        "0a1b2c  shard 0  tcp://10.0.0.0:1  position 4  saved 3  restarts 0  loss 0.5",
        "0a1b2c  shard 1  on its way  position 4  saved never  restarts 0",
    ]
