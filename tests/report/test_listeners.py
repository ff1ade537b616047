"""Progress for screens, logs, notebooks and machines."""

from __future__ import annotations

import io
import json
import re
import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import distclust
from distclust import events
from distclust.errors import InputError
from distclust.events import Event
from distclust.report import listeners
from distclust.report.listeners import Lines, json_lines, progress
from tests.clocks import give_clock


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress__is_public() -> None:
    assert distclust.progress is progress


def test_progress__plain_lines_where_there_is_no_screen() -> None:
    file = io.StringIO()
    with progress(file=file), events.stage("merging", 1200) as stage:
        stage.advance(1200, log_evidence=-12.345678)
    (last,) = file.getvalue().splitlines()
    assert last.startswith("distclust: merging  1,200 of 1,200 (100 %)")
    assert last.endswith("log_evidence -12.3457")
    assert "\x1b" not in file.getvalue()


def test_progress__bars_on_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    file = Screen()
    with progress(file=file), events.stage("merging", 30) as stage:
        stage.advance(30)
    assert "30/30" in file.getvalue()
    assert "\x1b" in file.getvalue()


def test_progress__plain_lines_on_a_dumb_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    file = Screen()
    with progress(file=file):
        events.emit("merging", 3, 3)
    assert file.getvalue() == "distclust: merging  3 of 3 (100 %)  0.0 s\n"


def test_progress__off_shows_nothing_and_unknown_modes_are_refused() -> None:
    file = io.StringIO()
    with progress("off", file=file):
        events.emit("merging", 3, 3)
    assert file.getvalue() == ""
    with pytest.raises(InputError, match="'loud'"), progress("loud"):  # type: ignore[arg-type]
        pass


def test_progress__says_nothing_of_quick_work_if_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    give_clock(monkeypatch, listeners, monotonic=lambda: now)
    file = io.StringIO()
    with progress("lines", file=file, after=2.0):
        events.emit("reading", 3, 3)
        now = 101.9
        events.emit("merging", 1, 3)
        assert file.getvalue() == ""
        now = 102.0
        events.emit("merging", 2, 3)
        events.emit("merging", 3, 3)
    assert [line.split("  ")[:2] for line in file.getvalue().splitlines()] == [
        ["distclust: merging", "3 of 3 (100 %)"]
    ]
    with pytest.raises(InputError, match="'loud'"), progress("loud", after=2.0):  # type: ignore[arg-type]
        pass


def test_progress__gives_the_screen_back_after_a_failure() -> None:
    def work() -> None:
        with progress(file=file):
            events.emit("merging", 1, 3)
            events.emit("merging", 2, 3)
            raise RuntimeError("work")

    file = io.StringIO()
    with pytest.raises(RuntimeError, match="work"):
        work()
    assert "2 of 3" in file.getvalue()  # the last state is not lost
    assert not events.has_listeners()


def test_lines__are_few_however_many_events() -> None:
    file = io.StringIO()
    lines = Lines(file)
    for done in range(1001):
        lines(Event("", "merging", done, 1000))
    for _ in range(20):  # a stage that is repeated quickly
        lines(Event("", "merging", 0, 1000))
        lines(Event("", "merging", 1000, 1000))
    lines.close()
    assert len(file.getvalue().splitlines()) == 1


def test_lines__come_again_after_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 6.0, 6.5])
    give_clock(monkeypatch, listeners, monotonic=lambda: next(clock))
    file = io.StringIO()
    lines = Lines(file)
    for done in (0, 1, 2, 3):
        lines(Event("", "rows", done))
    assert file.getvalue() == "distclust: rows  2  6.0 s\n"


def test_lines__from_many_threads_are_whole() -> None:
    file = io.StringIO()
    lines = Lines(file)
    threads = [
        threading.Thread(target=lines, args=(Event(f"job {i}", f"stage {i}", 5, 5),))
        for i in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = file.getvalue().splitlines()
    assert len(written) == 20
    assert all("5 of 5 (100 %)" in line for line in written)


def test_json_lines__hold_every_event_and_come_back_equal() -> None:
    file, seen = io.StringIO(), []
    with json_lines(file), events.listen(seen.append):
        events.emit("merging", 1, 10, job="night", rate=2.5)
        events.emit("öffnen", 2)
    read = [Event.from_dict(json.loads(line)) for line in file.getvalue().splitlines()]
    assert read == seen
    assert len(read) == 2


class ZMQInteractiveShell:
    """Named like the shell of a notebook."""


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stand in for IPython in a notebook; the list holds what the cell showed."""
    pages: list[str] = []

    def display(page: str, display_id: bool) -> Any:
        assert display_id
        pages.append(page)
        return SimpleNamespace(update=pages.append)

    ipython: Any = ModuleType("IPython")
    ipython.get_ipython = ZMQInteractiveShell
    ipython.display = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    return pages


def test_progress__renews_one_display_in_a_notebook(shown: list[str]) -> None:
    with progress():
        events.emit("a <b>", 1, 4)
        events.emit("a <b>", 4, 4)
    assert '<progress value="1" max="4">' in shown[0]
    assert '<progress value="4" max="4">' in shown[-1]
    assert "a &lt;b&gt;" in shown[-1]


@pytest.mark.parametrize(
    ("done", "seconds", "says"),
    [
        (0, 50.0, ""),
        (5, 0.5, ""),  # too early to tell
        (20, 20.0, "about 80 s left"),
        (10, 100.0, "about 15 min left"),
        (1, 600.0, "about 16 h left"),
        (100, 60.0, ""),
    ],
)
def test_lines__say_how_much_is_left(
    done: int, seconds: float, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, seconds, seconds])
    give_clock(monkeypatch, listeners, monotonic=lambda: next(clock))
    file = io.StringIO()
    lines = Lines(file)
    lines(Event("", "filtering, pass 1", 0, 100))
    lines(Event("", "filtering, pass 1", done, 100))
    text = file.getvalue() or "(no line yet)"
    assert (says in text) if says else ("left" not in text)


def test_bars__say_how_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    file = Screen()
    with progress("bar", file=file):
        events.deliver(Event("", "filtering, pass 2", 0, 100))
        later = time.monotonic() + 30
        give_clock(monkeypatch, listeners, monotonic=lambda: later)
        events.deliver(Event("", "filtering, pass 2", 25, 100))
    assert "filtering, pass 2" in file.getvalue()
    assert re.search(r"about (89|90) s left|about 2 min left", file.getvalue())
