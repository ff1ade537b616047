"""Summaries, pictures, the page and the plan: what people are told about a model."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from rich.console import Console

from distclust import BHC, EMBHC, BayesianRoseTree, RandomizedBHC, ingest
from distclust.errors import InputError
from distclust.report import hierarchy, page, pictures, terminal
from distclust.report.demo_data import KINDS, field_notebook
from distclust.report.plan import LargeCost, LargeRates, plan_fit, plan_large
from distclust.report.summary import Summary, summarise
from distclust.trees import draw
from distclust.trees.levels import describe_levels


@pytest.fixture(scope="module")
def model() -> BHC:
    return BHC().fit(field_notebook(0).seen)


@pytest.fixture(scope="module")
def summary(model: BHC) -> Summary:
    return summarise(model)


def test_summarise__says_what_the_model_says(model: BHC, summary: Summary) -> None:
    assert summary.n_clusters == model.n_clusters_ == len(summary.clusters)
    assert summary.log_evidence == model.log_evidence_
    assert summary.log_lower_bound == model.log_lower_bound_
    sizes = np.bincount(model.labels_)
    for cluster in summary.clusters:
        assert cluster.n_rows == sizes[cluster.label]
        assert cluster.probability == pytest.approx(model.tree_.posterior[cluster.node])
        parent = model.tree_.structure.parent[cluster.node]
        assert cluster.probability_apart == pytest.approx(1 - model.tree_.posterior[parent])
        first = model.tree_.row_ids[np.flatnonzero(model.labels_ == cluster.label)[0]]
        assert cluster.rows[0] == first


def test_summarise__features_point_the_right_way(summary: Summary) -> None:
    seen = field_notebook(0).seen
    for cluster in summary.clusters:
        for feature in cluster.features:
            mean = seen.loc[list(cluster.rows), feature.name].mean()
            assert feature.mean_here == pytest.approx(mean)
            arrow = "↑" if feature.mean_here > feature.mean_there else "↓"
            assert f"{feature.name} {arrow}" in terminal.telling(cluster)


def test_summarise__largest_clusters_first_to_be_kept(model: BHC) -> None:
    few = summarise(model, threshold=0.99999, n_clusters=2)
    assert few.n_clusters > 2
    sizes = np.bincount(model.tree_.cut(0.99999))
    assert sorted(c.n_rows for c in few.clusters) == sorted(sizes)[-2:]


def test_summarise__follows_the_cut_of_the_model() -> None:
    rows = field_notebook(0).seen
    by_map = BHC(cut="map").fit(rows)
    strict = BHC(threshold=0.95).fit(rows)
    assert summarise(by_map).n_clusters == by_map.n_clusters_
    assert summarise(strict).n_clusters == strict.n_clusters_ > 8


def test_summarise__one_cluster_has_no_sibling() -> None:
    rows = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 1], [1, 0, 0]])
    (only,) = summarise(BHC(concentration=1e-6).fit(rows)).clusters
    assert only.probability_apart is None
    assert only.features == ()


def test_summary__is_json(summary: Summary) -> None:
    copy = json.loads(json.dumps(summary.as_dict()))
    assert copy["clusters"][0]["rows"][:2] == ["horse", "zebra"]


def test_print_summary__fits_narrow_and_wide_terminals(summary: Summary) -> None:
    for width in (60, 100, 200):
        console = Console(width=width, record=True, file=None, quiet=False, legacy_windows=False)
        with console.capture() as capture:
            terminal.print_summary(console, summary)
        text = capture.get()
        assert max(len(line) for line in text.splitlines()) <= width
        assert "8 clusters" in text
        assert "Log evidence" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "<0.1 %"), (0.0004, "<0.1 %"), (0.5, "50.0 %"), (0.9994, ">99.9 %"), (1.0, ">99.9 %")],
)
def test_percent__never_claims_certainty(value: float, text: str) -> None:
    assert draw.percent(value) == text


@pytest.mark.parametrize(
    ("log10", "text"), [(0.0, "1"), (3.0, "1,000"), (6.5, "3.2e6"), (120.0, "1.0e120")]
)
def test_power_of_ten__reads_as_a_number(log10: float, text: str) -> None:
    assert terminal.power_of_ten(log10) == text


def test_size_and_duration__use_peoples_units() -> None:
    assert [terminal.size(n) for n in (12, 4_500, 2.5e9, 3e13)] == [
        "12 B",
        "4.5 KB",
        "2.5 GB",
        "30 TB",
    ]
    texts = [terminal.duration(s) for s in (0.2, 30, 600, 20_000)]
    assert texts == ["under a second", "about 30 s", "about 10 min", "about 6 h"]


class Links(HTMLParser):
    """Collects everything that a browser would fetch, and checks that tags match."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "br", "link", "img"}:
            self.open.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href"} and not str(value).startswith("#"):
                self.fetched.append(str(value))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_render__is_one_whole_page_that_fetches_nothing(model: BHC, summary: Summary) -> None:
    chances = model.predict_proba(field_notebook(0).unseen)
    placed = page.place(field_notebook(0).unseen.index, chances)
    text = page.render(summary, model.tree_, title="Animals", lead="What kinds?", placed=placed)
    links = Links()
    links.feed(text)
    assert links.open == []
    assert links.fetched == []
    assert "url(" not in re.sub(r"url\(#", "", text)
    assert "@import" not in text
    for word in ("nightingale", "penguin", "&gt;99.9 %", "<svg"):
        assert word in text


def test_render__escapes_names(model: BHC) -> None:
    evil = "<script>alert('&')</script>"
    rows = pd.DataFrame(np.eye(6, 4, dtype=int), index=[evil, *"bcdef"], columns=[evil, *"xyz"])
    fitted = BHC().fit(rows)
    text = page.render(summarise(fitted), fitted.tree_, title=evil, lead=evil)
    assert "<script" not in text
    assert "&lt;script" in text


def test_place__names_the_two_most_probable_clusters() -> None:
    (row,) = page.place(["a"], np.array([[0.1, 0.6, 0.3]]))
    assert (row.label, row.next_label) == (1, 2)
    assert (row.probability, row.next_probability) == (0.6, 0.3)
    (single,) = page.place(["a"], np.array([[1.0]]))
    assert single.label == 0


def test_svg__is_xml_with_the_names_as_text_and_the_same_bytes_again(model: BHC) -> None:
    text = pictures.svg(model.tree_)
    ElementTree.fromstring(text)
    assert "nightingale" in text
    assert text == pictures.svg(model.tree_)


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_write_picture__by_suffix(model: BHC, tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / f"tree{suffix}"
    pictures.write_picture(path, model.tree_)
    assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path]


def test_write_picture__other_suffixes_are_refused(model: BHC, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.bmp"):
        pictures.write_picture(tmp_path / "tree.bmp", model.tree_)
    assert list(tmp_path.iterdir()) == []


def test_field_notebook__is_seeded_and_complete() -> None:
    first, again, other = field_notebook(0), field_notebook(0), field_notebook(1)
    pd.testing.assert_frame_equal(first.seen, again.seen)
    assert not first.seen.equals(other.seen)
    assert first.seen.index.is_unique
    assert list(first.seen.columns) == list(first.unseen.columns)
    assert set(first.kinds) == {kind.name for kind in KINDS}
    assert not set(first.seen.index) & set(first.unseen.index)


def test_plan_fit__grows_with_rows_and_with_the_family() -> None:
    rng = np.random.default_rng(0)
    binary = rng.integers(0, 2, size=(300, 20))
    real = rng.normal(size=(300, 20))
    small, large = (plan_fit(BHC(), binary[:n]) for n in (100, 300))
    assert large.memory_bytes > small.memory_bytes
    assert large.seconds > small.seconds
    assert plan_fit(BHC(), real).seconds > large.seconds
    assert plan_fit(BayesianRoseTree(), binary).seconds > large.seconds
    assert plan_fit(BHC(optimize=True), binary).seconds > large.seconds
    assert plan_fit(BHC(key_budget=0), binary).memory_bytes < large.memory_bytes


def test_plan_fit__disk_is_the_size_of_the_model(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 2, size=(300, 40))
    model = BHC().fit(rows)
    model.save(tmp_path / "m")
    plan = plan_fit(BHC(), rows)
    assert plan.disk_bytes == pytest.approx((tmp_path / "m").stat().st_size, rel=0.5)


def test_plan_fit__refuses_what_the_fit_would_refuse() -> None:
    with pytest.raises(InputError, match="Bernoulli"):
        plan_fit(BHC(family="bernoulli"), np.arange(12).reshape(4, 3))


# ---- data of any size ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> RandomizedBHC:
    """A model whose rows stay in their store."""
    folder = tmp_path_factory.mktemp("stored")
    rng = np.random.default_rng(0)
    profiles = rng.beta(0.2, 0.2, size=(7, 20))
    rows = rng.random((4000, 20)) < profiles[rng.integers(0, 7, 4000)]
    ingest([rows], str(folder / "rows.zarr"))
    model = RandomizedBHC(sample_size=300, random_state=0)
    return model.fit(str(folder / "rows.zarr"), results=folder / "results")


def test_summarise__counts_the_rows_of_the_store(stored: RandomizedBHC) -> None:
    summary = summarise(stored)
    labels = np.asarray(stored.labels_)
    assert summary.n_rows == 4000 != len(stored.tree_.leaf_of_row)
    assert summary.n_clusters == stored.n_clusters_ == 7
    for cluster in summary.clusters:
        assert cluster.n_rows == (labels == cluster.label).sum()
        members = {str(row) for row in np.flatnonzero(labels == cluster.label)}
        assert set(cluster.rows) <= members
        assert cluster.rows[0] == str(np.flatnonzero(labels == cluster.label)[0])


def test_page_and_picture__tell_the_size_of_leaves(stored: RandomizedBHC, model: BHC) -> None:
    text = pictures.svg(stored.tree_)
    for cluster in summarise(stored).clusters:
        assert f"{cluster.rows[0]} · {cluster.n_rows:,} rows" in text
    assert "rows" not in pictures.svg(model.tree_).split("48 rows", 1)[1].replace(
        "several rows", ""
    )


def describe(stored: RandomizedBHC) -> tuple[dict[str, Any], dict[int, int]]:
    labels = {int(node): i for i, node in enumerate(stored.tree_.cut_nodes())}
    return describe_levels(stored.tree_), labels


def test_walk__shows_each_node_once_below_its_parent(stored: RandomizedBHC) -> None:
    described, labels = describe(stored)
    found = hierarchy.walk(described, labels, depth=99)
    numbers = [node["node"] for node in found.nodes]
    assert sorted(numbers) == list(range(stored.tree_.n_nodes))
    for place, node in enumerate(found.nodes[1:], 1):
        assert node["parent"] in numbers[:place]
        below = stored.tree_.structure.leaves(node["node"])
        clusters = {int(stored._label_of_leaf[leaf]) for leaf in below}
        assert node["n_clusters"] == len(clusters)
    assert {node["label"] for node in found.nodes if node["is_cluster"]} == set(range(7))


def test_walk__depth_zero_is_one_node(stored: RandomizedBHC) -> None:
    described, labels = describe(stored)
    (only,) = hierarchy.walk(described, labels, depth=0).nodes
    assert not only["is_open"]
    with pytest.raises(InputError, match="--node"):
        hierarchy.walk(described, labels, node=-1)


def test_walk__nodes_that_are_not_described_are_not_shown(stored: RandomizedBHC) -> None:
    described, labels = describe(stored)
    described["nodes"] = described["nodes"][:4]
    found = hierarchy.walk(described, labels, depth=99)
    assert {node["node"] for node in found.nodes} <= {n["node"] for n in described["nodes"]}
    parents = {node["parent"] for node in found.nodes[1:]}
    assert parents == {node["node"] for node in found.nodes if node["is_open"]}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_print_walk__fits_the_terminal(stored: RandomizedBHC, width: int) -> None:
    described, labels = describe(stored)
    console = Console(width=width, legacy_windows=False)
    with console.capture() as capture:
        hierarchy.print_walk(console, hierarchy.walk(described, labels, depth=99))
    text = capture.get()
    assert max(len(line) for line in text.splitlines()) <= width
    assert text.count("●") == 8  # seven, and the legend


def test_large_cost__is_the_documented_sum() -> None:
    rates = LargeRates(
        start=1.0, each_pass=10.0, each_task=100.0, each_result=19e6, value=3.0, row=7.0,
        score={"": 11.0}, pair=13.0, number={"": 17.0},
    )  # fmt: skip
    cost = LargeCost(
        2**20, 32, 4, family="Poisson", sample_size=6, check_size=2, n_clusters=5,
        moving_passes=3, rates=rates,
    )  # fmt: skip
    n, d, w, p, passes, moving, k = 2**20, 32, 4, 33, 5, 3, 5
    spans = n // (8 * 2**16)
    a_pair = 13 + 17 * p
    expected = 1 + passes * 10 + 6**2 / 2 * a_pair
    expected += k * (2**2 / 2 * a_pair + 100) / w
    expected += n * (passes * (7 + 3 * d) + moving * d * k * 11) / w
    expected += spans * passes * (100 / w + 19e6)
    assert cost.passes == passes
    assert cost.seconds == pytest.approx(expected)


def test_large_cost__memory_does_not_grow_with_the_rows_and_time_does() -> None:
    small, large = (LargeCost(n, 64, 2) for n in (10**6, 10**9))
    assert small.memory_bytes == large.memory_bytes < 1e9
    assert large.read_bytes == 1000 * small.read_bytes
    more = large.seconds - small.seconds
    twice = LargeCost(2 * 10**9, 64, 2).seconds - large.seconds
    assert twice == pytest.approx(more, rel=0.01)  # linear in the rows
    alone = LargeRates(each_result=0.0)  # what only one process can do
    on = {w: LargeCost(10**9, 64, w, rates=alone).seconds for w in (2, 100, 10**9)}
    assert on[100] - on[10**9] == pytest.approx((on[2] - on[10**9]) / 50, rel=1e-6)
    assert LargeCost(10**6, 64, resolves_rows=True).memory_bytes > 2 * small.memory_bytes


@pytest.mark.parametrize(
    ("values", "family"),
    [
        (np.zeros((50, 40), bool), "Bernoulli"),
        (np.zeros((50, 40), np.uint8), "Bernoulli"),
        (np.zeros((50, 40), np.int64), "Poisson"),
        (np.zeros((50, 8)), "Gaussian"),
        (np.zeros((50, 40)), "DiagonalGaussian"),
        (scipy.sparse.csr_array(np.eye(60, dtype=np.int32)), "Multinomial"),
    ],
)
def test_plan_large__assumes_a_family_by_type_and_says_so(values: Any, family: str) -> None:
    plan = plan_large(RandomizedBHC(), values, 3)
    assert plan.cost.family == family
    assert family in plan.assumed
    assert plan.as_dict()["n_workers"] == 3
    chosen = plan_large(RandomizedBHC(family="bernoulli"), values)
    assert chosen.cost.family == "Bernoulli"
    assert "chosen by the user" in chosen.assumed


def test_plan_large__statistics_are_those_of_the_family() -> None:
    rng = np.random.default_rng(0)
    for values in (rng.random((60, 5)), rng.random((60, 40)), rng.random((60, 9)) < 0.5):
        fitted = RandomizedBHC(sample_size=30).fit(values)
        plan = plan_large(RandomizedBHC(), values)
        assert plan.cost.family == type(fitted.family_).__name__
        assert plan.cost.n_statistics == fitted.family_.n_statistics


def test_plan_large__follows_the_parameters() -> None:
    rows = np.zeros((100_000, 16), bool)
    usual = plan_large(RandomizedBHC(), rows).cost
    assert plan_large(EMBHC(n_sweeps=9), rows).cost.moving_passes == 10
    assert plan_large(RandomizedBHC(levels_per_pass=1), rows).cost.passes > usual.passes
    assert plan_large(RandomizedBHC(levels_per_pass=1, max_levels=3), rows).cost.passes == 4
    counts = plan_large(RandomizedBHC(levels_per_pass=1, max_levels=3), rows.astype(np.int64))
    assert counts.cost.passes == 5  # the prior takes another one
    assert plan_large(RandomizedBHC(filter_predictive="subtree"), rows).cost.seconds > usual.seconds
    assert plan_large(RandomizedBHC(resolve="rows"), rows).cost.memory_bytes > usual.memory_bytes
    with pytest.raises(InputError, match="sample_size"):
        plan_large(RandomizedBHC(sample_size=1), rows)


def test_plan_large__disk_bounds_what_a_fit_leaves(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((50_000, 16)) < 0.5
    ingest([rows], str(tmp_path / "rows.zarr"))
    RandomizedBHC(sample_size=300).fit(str(tmp_path / "rows.zarr"), results=tmp_path / "r")
    left = sum(path.stat().st_size for path in (tmp_path / "r").rglob("*") if path.is_file())
    plan = plan_large(RandomizedBHC(sample_size=300), rows)
    assert 0.02 * plan.cost.disk_bytes < left < plan.cost.disk_bytes
