"""Every benchmark runs at toy size, and its record and tables hold together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import data, quality_bhc, quality_rose, speed
from benchmarks.__main__ import all_problems, main
from benchmarks.problem import measure, to_markdown, update_page

PROBLEMS = all_problems()

needs_files = pytest.mark.skipif(
    not data.has_files(), reason=f"{data.VARIABLE} does not name the folder of data sets"
)


def test_problems__have_their_markers_in_the_page() -> None:
    page = Path(__file__).parents[1] / "docs" / "benchmarks.md"
    text = page.read_text(encoding="utf-8")
    for name in PROBLEMS:
        assert f"<!-- begin {name} -->" in text
        assert f"<!-- end {name} -->" in text


@pytest.mark.parametrize("name", PROBLEMS)
def test_measure__toy_run_gives_a_json_record_and_tables(name: str) -> None:
    problem = PROBLEMS[name]
    record = measure(problem, "toy")
    copy = json.loads(json.dumps(record))
    assert copy["size"] == "toy"
    assert {"commit", "machine", "versions", "time"} <= set(copy)
    markdown = to_markdown(copy, problem)
    assert "| --- |" in markdown
    assert "nan" not in markdown.lower()
    assert f"python -m benchmarks {name}" in markdown


def test_measure__quality_is_the_same_every_time() -> None:
    problem = PROBLEMS["quality-bhc"]
    assert measure(problem, "toy")["results"] == measure(problem, "toy")["results"]


def scores(**methods: list[float]) -> dict[str, Any]:
    base = {name: [0.5, 0.6, 0.7] for name in (*quality_bhc.LINKAGES, *quality_bhc.MODELS)}
    return {"purity": {"synthetic": base | methods}}


def test_clear_wins__needs_every_linkage_beaten_clearly() -> None:
    assert quality_bhc.clear_wins(scores(BHC=[0.7, 0.81, 0.9]))["synthetic"]
    assert not quality_bhc.clear_wins(scores())["synthetic"]
    assert not quality_bhc.clear_wins(scores(BHC=[0.3, 0.4, 0.5]))["synthetic"]
    noisy = scores(BHC=[0.9, 0.2, 0.8])
    assert not quality_bhc.clear_wins(noisy)["synthetic"]
    one_is_better = scores(BHC=[0.7, 0.81, 0.9], average=[0.9, 0.9, 0.9])
    assert not quality_bhc.clear_wins(one_is_better)["synthetic"]


def test_order__ranks_by_paired_differences() -> None:
    evidence = {model: [-10.0 - i, -20.0 - i] for i, model in enumerate(quality_rose.MODELS)}
    evidence["BRT"] = [-9.0, -21.5]
    assert quality_rose.order(evidence) == "BHC-DP ≥ BRT ≥ BRT-DP > BHC-γ > BRT-γ"


def test_growth__is_the_exponent_of_the_wall_time() -> None:
    rows = [{"n": n, "bhc": {"wall": 1e-6 * n**1.7}} for n in (1000, 3000, 10_000)]
    assert speed.growth({"rows": rows}) == pytest.approx(1.7)


def test_fit_searched__takes_the_weight_with_the_highest_bound() -> None:
    X = data.toy().X
    found = quality_bhc.fit_searched(X)
    bounds = [
        quality_bhc.BHC(quality_bhc.Bernoulli(kappa=weight)).fit(X).log_lower_bound_
        for weight in quality_bhc.STRENGTHS
    ]
    assert found.log_lower_bound_ == max(bounds)
    assert len(set(bounds)) > 1


def test_toy__has_every_pattern_of_each_part_once() -> None:
    draw = data.toy()
    assert draw.X.shape == (45, 12)
    assert len(np.unique(draw.X, axis=0)) == 45
    for kind in range(3):
        rows = draw.X[draw.y == kind].copy()
        assert rows[:, 4 * kind : 4 * kind + 4].any(axis=1).all()
        rows[:, 4 * kind : 4 * kind + 4] = 0
        assert not rows.any()


def test_estimators__toy_evidence_is_the_published_one() -> None:
    published = dict(zip(quality_rose.MODELS, quality_rose.PUBLISHED_EVIDENCE["toy"], strict=True))
    for model in ("BHC-γ", "BRT-γ", "BRT"):
        fitted = quality_rose.fit(model, data.toy().X, "optimised")
        assert round(fitted.log_evidence_) == published[model]


def test_without_entries__removes_about_a_tenth_and_changes_nothing_else() -> None:
    X = np.ones((200, 50), dtype=np.uint8)
    observed = quality_rose.without_entries(X, 0)
    assert 0.09 < np.isnan(observed).mean() < 0.11
    assert (observed[~np.isnan(observed)] == 1).all()


@needs_files
@pytest.mark.parametrize(
    ("make", "shape", "n_each"),
    [
        (data.newsgroups, (120, 500), 30),
        (data.spambase, (200, 57), 100),
        (quality_bhc.SETS["3 digits"], (60, 64), 20),
        (data.digits, (200, 64), 20),
        (quality_rose.SETS["newsgroups"], (120, 485), 30),
        (quality_rose.SETS["spambase"], (120, 57), 60),
        (quality_rose.SETS["digits024"], (120, 64), 40),
        (quality_rose.SETS["digits"], (120, 64), 12),
    ],
)
def test_draws__have_the_published_shape_and_follow_the_seed(
    make: Any, shape: tuple[int, int], n_each: int
) -> None:
    draw = make(0)
    assert draw.X.shape == shape
    assert set(np.unique(draw.X)) == {0, 1}
    assert (np.unique(draw.y, return_counts=True)[1] == n_each).all()
    assert np.array_equal(draw.X, make(0).X)
    assert not np.array_equal(draw.X, make(1).X)


@needs_files
def test_glass__is_whole() -> None:
    draw = data.glass(0)
    assert draw.X.shape == (214, 9)
    assert len(np.unique(draw.y)) == 6


def test_main__lists_without_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in PROBLEMS)


def test_main__refuses_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-benchmark"]) == 2
    assert "no-such-benchmark" in capsys.readouterr().err


def test_main__says_which_folder_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(data.VARIABLE, raising=False)
    data._newsgroup_counts.cache_clear()
    assert main(["quality-bhc"]) == 2
    assert data.VARIABLE in capsys.readouterr().err


def test_main__keeps_results_and_puts_them_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- begin quality-bhc -->\nold\n<!-- end quality-bhc -->\nafter\n",
        encoding="utf-8",
    )
    assert main(["quality-bhc", "--toy", "--json", str(tmp_path)]) == 0
    assert main(["--from", str(tmp_path), "--update", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "synthetic" in text


def test_update_page__refuses_a_page_without_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="markers"):
        update_page(page, "quality-bhc", "text")
    assert page.read_text(encoding="utf-8") == "nothing\n"
