"""Figures for Prometheus, read back by an independent reading of its text format."""

from __future__ import annotations

import re

import numpy as np
import pytest

from distclust.jobs.metrics import Published, to_text, write_metrics
from distclust.jobs.record import Hook, Model
from distclust.report.prometheus import family, line
from distclust.store.objects import open_objects
from tests.jobs.records import full_record

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def parse(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return every sample; each metric has its help and its type before it, once."""
    assert text.endswith("\n")
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    described: list[str] = []
    lines = text.splitlines()
    for i, each in enumerate(lines):
        if each.startswith("# HELP "):
            name = each.split(" ")[2]
            assert name not in described
            assert lines[i + 1] == f"# TYPE {name} gauge"
            described.append(name)
        elif not each.startswith("# TYPE "):
            match = SAMPLE.fullmatch(each)
            assert match, each
            assert match[1] == described[-1]
            labels = {
                name: re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value)
                for name, value in LABEL.findall(match[2] or "")
            }
            key = match[1].removeprefix("distclust_job_"), frozenset(labels.items())
            assert key not in samples
            samples[key] = float(match[3])
    return samples


def value(text: str, name: str, **labels: str) -> float | None:
    return parse(text).get((name, frozenset({"job": "newsroom", **labels}.items())))


PUBLISHED = {"topics": Published("rbhc", 9), "search": Published("sets"), "map": Published("kpca")}


def test_to_text__a_quiet_run_goes_on_telling_what_is_published():
    quiet = full_record(41, outcome="nothing new", models=(), published=None)
    text = to_text(quiet, [full_record(40)], PUBLISHED)
    assert value(text, "clusters", model="topics") == 9
    assert value(text, "clusters", model="search") is None
    assert value(text, "model_info", model="search", kind="sets", action="kept") == 1
    assert value(text, "model_seconds", model="topics") == 0
    assert value(text, "model_drift", model="topics", figure="largest_z") == 6.1
    assert value(text, "clusters_changed", model="topics", change="split") is None


def test_to_text__says_what_the_record_says():
    record = full_record()
    text = to_text(record, published=PUBLISHED)
    assert value(text, "rows") == 9406
    assert value(text, "rows_changed", change="added") == 473
    assert value(text, "files", state="touched") == 3
    assert value(text, "outcome", outcome="published") == 1
    assert value(text, "outcome", outcome="failed") == 0
    assert value(text, "run_seconds") == 83.2
    assert value(text, "end_timestamp_seconds") == pytest.approx(1775786483.2)
    assert value(text, "published_number") == 40
    assert value(text, "stage_seconds", stage="ingest") == 9.1
    assert value(text, "gate_failures") == 0
    assert value(text, "model_drift", model="topics", figure="largest_z") == 6.1
    assert value(text, "model_info", model="map", kind="kpca", action="kept") == 1
    assert value(text, "clusters", model="topics") == 9
    assert value(text, "clusters_changed", model="topics", change="split") == 1
    assert value(text, "clusters", model="search") is None


def test_to_text__the_last_success_stays_when_runs_fail():
    good = full_record(40)
    gates = tuple(type(gate)(gate.name, gate.expected, gate.got, False) for gate in good.gates)
    hook = Hook("failure", ("page",), "timed out", None, 60.0, "")
    bad = full_record(41, outcome="gates failed", published=None, gates=gates, hooks=(hook,))
    text = to_text(bad, [good])
    assert value(text, "success_timestamp_seconds") == value(to_text(good), "end_timestamp_seconds")
    assert value(text, "published_number") == 40
    assert value(text, "gate_failures") == 2
    assert value(text, "hook_failures") == 1
    alone = to_text(bad)
    assert value(alone, "success_timestamp_seconds") is None
    assert "# TYPE distclust_job_success_timestamp_seconds gauge" in alone


def test_to_text__any_name_is_escaped():
    odd = 'a "b" \\ c\nd'
    text = to_text(full_record(models=(Model(odd, "bhc", "kept", "Why not."),)))
    assert value(text, "model_seconds", model=odd) == 0


def test_line__values_that_are_no_numbers():
    assert line("x", {}, float("nan")) == "x NaN"
    assert line("x", {}, True) == "x 1"
    assert line("x", {}, np.float64(1.5)) == "x 1.5"
    assert line("x", {}, float("inf")) == "x +Inf"
    assert line("x", {"a": "b"}, -float("inf")) == 'x{a="b"} -Inf'
    assert family("x", "gauge", "a\nb\\", []) == ["# HELP x a\\nb\\\\", "# TYPE x gauge"]


def test_write_metrics__replaces_the_file(tmp_path):
    objects = open_objects(str(tmp_path))
    for number in (1, 2):
        where = write_metrics(objects, full_record(number))
    assert where == str(tmp_path / "metrics.prom")
    text = (tmp_path / "metrics.prom").read_text("utf-8")
    assert value(text, "published_number") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.prom"]
