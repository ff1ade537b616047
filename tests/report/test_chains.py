"""Chains as they run: a table on a screen, one line elsewhere, JSON for machines."""

from __future__ import annotations

import io
import json
import math
import re
from typing import Any

import pytest

from distclust import events
from distclust.events import Event
from distclust.report import chains, listeners
from distclust.report.chains import MOST_SHOWN, Board
from distclust.report.listeners import Bars, Lines, json_lines, progress
from tests.clocks import give_clock


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def chain(number: int, done: int, joint: float, n_clusters: float = 4.0, **more: Any) -> Event:
    figures = {"log_joint": joint, "n_clusters": n_clusters, "concentration": 0.5, **more}
    return Event("", f"chain {number}", done, 1000, figures)


def drawn(board: Board) -> str:
    from rich.console import Console

    file = io.StringIO()
    console = Console(file=file, width=100)
    for part in board.renderables():
        console.print(part)
    return file.getvalue()


def test_board__takes_chains_and_leaves_the_rest() -> None:
    board = Board()
    assert board.take(chain(0, 50, -1.0))
    assert board.take(Event("", "sampling", 0, 1000, {"note": "x"}))
    assert not board.take(Event("", "chain mail", 1))
    assert not board.take(Event("", "reading", 1))


def test_board__has_a_line_a_chain_and_below_it_whether_they_agree() -> None:
    board = Board()
    for number in range(3):
        board.take(chain(number, 250 + number, -12345.678 - number, 4.0 + number))
    board.take(Event("", "sampling", 200, 1000, {"rhat": 1.0342, "ess": 131.7}))
    board.take(Event("", "sampling", 0, 1000, {"note": "3 chains on 2 threads: 2 at a time"}))
    lines = drawn(board).splitlines()
    assert lines[0].split() == ["chain", "sweeps", "log", "joint", "clusters", "concentration"]
    assert lines[2].split() == ["1", "251", "of", "1,000", "-12,346.7", "5", "0.500"]
    assert lines[4] == "worst R-hat 1.034; least effective samples 131, after 200 sweeps"
    assert lines[5] == "3 chains on 2 threads: 2 at a time"


def test_board__shows_so_many_chains_and_counts_the_others() -> None:
    board = Board()
    for number in range(MOST_SHOWN + 7):
        board.take(chain(number, 10, -1.5))
    lines = drawn(board).splitlines()
    assert len(lines) == 1 + MOST_SHOWN + 1
    assert lines[-1] == "and 7 more chains"


def test_board__time_left_counts_from_where_chains_went_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    give_clock(monkeypatch, chains, listeners, monotonic=lambda: now)
    board = Board()
    board.take(chain(0, 800, -1.5))
    now = 10.0
    board.take(chain(0, 900, -1.5))
    assert "about 10 s left" in drawn(board)  # 0.1 s each, not 0.011 s


def test_board__another_sampling_of_the_same_job_starts_anew() -> None:
    board = Board()
    for number in range(4):
        board.take(chain(number, 1000, -1.5))
    board.take(Event("", "sampling", 1000, 1000, {"rhat": 1.0, "ess": 500.0}))
    board.take(chain(0, 50, -7.5))
    merged = board.merged("")
    assert merged is not None
    assert (merged.done, merged.metrics["log joint"]) == (50, "-7.500")
    assert "worst R-hat" not in merged.metrics


def test_board__jobs_are_apart() -> None:
    board = Board()
    board.take(chain(0, 50, -1.5))
    assert board.merged("night") is None


def test_merged__is_as_far_as_the_slowest_and_spans_the_figures() -> None:
    board = Board()
    board.take(chain(0, 200, -20.25, 3.0))
    board.take(chain(1, 150, -30.25, 3.0))
    board.take(chain(2, 200, math.nan, 3.0))
    merged = board.merged("")
    assert merged is not None
    assert (merged.stage, merged.done, merged.total) == ("sampling", 150, 1000)
    assert merged.metrics["log joint"] == "-30.250 to -20.250"
    assert merged.metrics["clusters"] == "3"


def test_bars__draw_chains_below_other_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    file = Screen()
    with progress(file=file):
        events.emit("reading", 3, 3)
        for number in range(2):
            events.emit(f"chain {number}", 50, 100, log_joint=-5.5, n_clusters=2.0)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).split("reading")[-1]
    assert "3/3" in last
    assert "50 of 100" in last
    assert "log joint" in last
    assert "chain 0 " not in last  # no bar of its own


def test_bars__start_and_end_without_any_chain() -> None:
    bars = Bars(Screen())
    bars(Event("", "reading", 1, 3))
    bars.close()


def test_lines__of_many_chains_are_one_and_at_a_bounded_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    give_clock(monkeypatch, chains, listeners, monotonic=lambda: now)
    file = io.StringIO()
    lines = Lines(file)
    for done in range(10, 1001, 10):  # 0.3 s a round, 30 s in all
        now += 0.3
        for number in range(40):
            lines(chain(number, done, -float(number) - 0.5))
    lines.close()
    found = file.getvalue().splitlines()
    assert 5 <= len(found) <= 7
    assert all(line.startswith("distclust: sampling  ") for line in found)
    assert "log joint -39.500 to -0.500" in found[0]
    assert "left" in found[0]
    assert found[-1].startswith("distclust: sampling  1,000 of 1,000 (100 %)")


def test_lines__say_at_once_that_chains_wait() -> None:
    file = io.StringIO()
    lines = Lines(file)
    lines(Event("", "sampling", 0, 100, {"note": "4 chains on 2 threads: 2 at a time"}))
    assert file.getvalue() == "distclust: 4 chains on 2 threads: 2 at a time\n"
    lines(chain(0, 50, -1.5))
    lines.close()
    assert file.getvalue().count("2 at a time") == 1


def test_lines__of_work_that_ended_early_promise_no_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    give_clock(monkeypatch, chains, listeners, monotonic=lambda: now)
    file = io.StringIO()
    lines = Lines(file)
    lines(chain(0, 100, -1.5))
    now = 3.0
    lines(chain(0, 200, -1.5))
    lines.close()
    assert "200 of 1,000" in file.getvalue()
    assert "left" not in file.getvalue()


def test_json_lines__are_json_also_where_chains_stand_still() -> None:
    file = io.StringIO()
    with json_lines(file):
        events.emit("sampling", 100, 1000, rhat=math.inf, ess=400.0)
    (line,) = file.getvalue().splitlines()
    found = json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert found["metrics"] == {"rhat": None, "ess": 400.0}
