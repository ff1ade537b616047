"""What people are told about a run: the page and the terminal."""

from __future__ import annotations

import io
import itertools
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from distclust.jobs.record import OUTCOMES, Gate, Hook, Input, Model, NamedFiles, Record
from distclust.report import job_pictures, jobs
from distclust.report.jobs import print_run, render_run, sentence
from tests.jobs.records import clusters, full_record

VOID = {"meta", "br"}
HOSTILE = '<script>alert("1")</script>&\'\u202e'


class Page(HTMLParser):
    """Checks that elements are closed in order; keeps the text and all attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.text += " " if tag in {"td", "th", "title"} else ""

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def seen(html: str) -> str:
    return " ".join(Page(html).text.split())


def history(n: int) -> list[dict[str, Any]]:
    return [full_record(number).to_json() for number in range(40 - n, 40)]


def printed(record: Record, **options: Any) -> str:
    file = io.StringIO()
    print_run(Console(file=file, width=100, **options), record.to_json())
    return file.getvalue()


def test_render_run__says_what_the_record_says():
    text = seen(render_run(full_record().to_json(), history(35)))
    for told in (
        "Published state 40: 9,406 rows (473 added, 21 changed, 12 deleted)",
        "topics refit in part, search updated, map kept.",
        "in/2026-04-10.csv, in/late.csv",
        "Generation 39 → 40",
        "New rows fit node 17 worse than old ones by 6.1 standard errors",
        "7 → 7 clusters: 1 born, 1 split, 1 merged, 1 regrouped, 1 gone, 1 continued",
        "split 1 (3,200) 1 (2,356), 5 (900)",
        "merged 2 (800), 3 (640) 2 (1,472)",
        "900 rows of 1 are in 5",
        "largest z 6.1",
        "log_evidence -812,346 -845,013 -32,667.3",
        "evidence of topics at most 5 % below before 1.1 % below passed",
        "ingest 9.1 s",
        "work ran on tcp://scheduler:8786",
    ):
        assert told in text, told
    days = re.findall(r"\d{4}-\d\d-\d\d 02:00 UTC published \d", text)
    assert len(days) == 30
    assert days == sorted(days, reverse=True)


def test_render_run__needs_nothing_else():
    html = render_run(full_record().to_json(), history(5))
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "form", "a"} & set(page.tags)
    assert not {"src", "href", "srcset", "xlink:href"} & {name for name, _ in page.attributes}
    assert "url(" not in html
    assert "@import" not in html
    assert ("name", "viewport") in page.attributes
    assert "prefers-color-scheme: dark" in html


def test_render_run__whatever_is_in_a_record_is_escaped():
    def hostile(values: Any) -> Any:
        if isinstance(values, dict):
            return {key: hostile(value) for key, value in values.items()}
        if isinstance(values, list):
            return [hostile(value) for value in values]
        return HOSTILE if isinstance(values, str) else values

    record = full_record(
        error=HOSTILE,
        outcome="failed",
        hooks=(Hook(HOSTILE, (HOSTILE,), "failed", 1, 0.0, HOSTILE),),
    )
    known = {"outcome", "started", "ended"}
    told = {k: v if k in known else hostile(v) for k, v in record.to_json().items()}
    told["pruned"] = told["cost"]["stages"] = {HOSTILE: 1.0}
    told["models"][0]["drift"] = {HOSTILE: [HOSTILE]}
    told["models"][0]["metrics"]["after"] = {HOSTILE: HOSTILE}
    told["models"][0]["clusters"] = clusters()
    html = render_run(told, [told])
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(") >= 20
    assert HOSTILE in Page(html).text


def test_render_run__a_first_run_that_failed_at_once():
    times = "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00"
    error = "disk: expected room, got none. Make some."
    record = Record("j", "00000001-x", *times, 1.0, "failed", error=error)
    text = seen(render_run(record.to_json()))
    assert "Failed after 1 s. disk: expected room, got none. Make some." in text
    assert "Models" not in text
    assert "Gates" not in text


def test_render_run__long_lists_are_cut():
    told = clusters()
    told["born"] = told["born"] * 25
    told["counts"]["born"] = 60
    told["split"][0]["n_after"] = 50
    model = Model("m", "rbhc", "fitted", "New.", clusters=told)
    named = Input(named=NamedFiles(new=("a", "b")), files=full_record().input.files)
    text = seen(render_run(full_record(models=(model,), input=named).to_json()))
    assert text.count("born 6 (270)") == jobs.SHOWN_CHANGES
    assert "and 50 more born" in text
    assert "5 (900) and 48 more" in text
    assert "files new 2 a, b files changed" in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "Published state 40"),
        ({"outcome": "nothing new"}, "Nothing new in 1,197 files: nothing was published."),
        ({"outcome": "nothing new", "input": Input()}, "Nothing new: nothing was published."),
        (
            {"outcome": "gates failed", "gates": (Gate("evidence", "more", "less", False),)},
            r"Not published: 1 of 1 gate failed \(evidence\)\. The published state is as it was\.",
        ),
        ({"outcome": "interrupted"}, "Interrupted after 83 s; running again goes on."),
        ({"outcome": "cut off", "error": "Killed."}, "Cut off; running again goes on. Killed."),
        ({"outcome": "failed", "error": "x: no."}, "Failed after 83 s. x: no."),
    ],
)
def test_sentence__for_every_outcome(changes, expected):
    assert re.match(expected, sentence(full_record(**changes).to_json()))


def test_render_run__knows_every_outcome():
    for outcome in OUTCOMES:
        record = full_record(outcome=outcome).to_json()
        assert f"newsroom: {outcome}" in render_run(record, [record])


def test_print_run__plain_where_nobody_sees_colours():
    hook = Hook("failure", ("mail", "ops"), "timed out", None, 60.0, "")
    gate = Gate("evidence of topics", "more", "less", False)
    record = full_record(outcome="gates failed", gates=(gate,), hooks=(hook,))
    text = printed(record)
    assert "\x1b" not in text
    assert "Gate evidence of topics: expected more, got less." in text
    assert "Hook mail ops (failure): timed out" in text
    assert "2 new, 1 changed, 1 gone, 3 touched, 1,190 unchanged" in text
    assert "1 born, 1 split, 1 merged" in " ".join(text.split())
    assert "\x1b" in printed(record, force_terminal=True, color_system="standard")


def test_print_run__names_are_not_markup():
    model = Model("[red]x[/red]", "bhc", "kept", "[bold]Why[/bold] not.")
    text = printed(full_record(models=(model,)))
    assert "[red]x[/red]" in text
    assert "[bold]Why[/bold] not." in text


def test_flows__ribbons_stay_within_their_clusters():
    picture = job_pictures.flows(clusters())
    assert picture is not None
    root = ElementTree.fromstring(picture)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    columns: dict[float, list[tuple[float, float]]] = {}
    for rect in root.iter("rect"):
        x, y = float(rect.attrib["x"]), float(rect.attrib["y"])
        tall = float(rect.attrib["height"])
        assert 0 <= x <= width
        assert 0 <= y <= y + tall <= height + 0.5
        columns.setdefault(x, []).append((y, y + tall))
    assert len(columns) == 2
    for spans in columns.values():  # clusters do not overlap
        ordered = sorted(spans)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))
    left, right = columns[min(columns)], columns[max(columns)]
    ribbons = [path for path in root.iter("path") if "ribbon" in path.attrib["class"]]
    assert len(ribbons) == 7
    for path in ribbons:
        n = [float(text) for text in re.findall(r"-?[\d.]+", path.attrib["d"])]
        a, c, d, b = n[1], n[7], n[8], n[-1]
        assert any(top - 0.2 <= a <= b <= bottom + 0.2 for top, bottom in left)
        assert any(top - 0.2 <= c <= d <= bottom + 0.2 for top, bottom in right)


def test_flows__none_if_all_continued():
    told = clusters() | {kind: [] for kind in jobs.KINDS}
    assert job_pictures.flows(told) is None
    model = Model("m", "rbhc", "updated", "More rows.", clusters=told)
    assert "Clusters by label" not in render_run(full_record(models=(model,)).to_json())


def test_bars__heights_are_to_scale_and_unknown_ones_are_marks():
    values = [10.0, 5.0, None, 20.0]
    picture = job_pictures.bars([job_pictures.Bar(v, "run-good", "x") for v in values], "rows")
    heights = [
        float(rect.attrib["height"]) for rect in ElementTree.fromstring(picture).iter("rect")
    ]
    assert heights[0] / heights[1] == pytest.approx(2)
    assert heights[3] / heights[0] == pytest.approx(2)
    assert heights[2] == 4
    job_pictures.bars([], "rows")


def test_charts__clusters_of_a_run_that_did_not_touch_a_model_are_those_before():
    before, last = full_record(39), full_record(40, models=(), outcome="nothing new")
    html = render_run(last.to_json(), [before.to_json()])
    assert "2026-04-10 02:00 UTC, nothing new: 7 clusters" in Page(html).text


def test_render_run__nodes_that_drifted_have_a_table():
    page = render_run(full_record().to_json())
    assert "<td>17</td>" in page
    assert '<td class="number">6.1</td><td>divided again</td>' in page
    assert "largest z" in page
