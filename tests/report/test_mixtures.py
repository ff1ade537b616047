"""What is said and drawn of chains, and what they will cost."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from distclust.engine import as_matrix
from distclust.errors import InputError
from distclust.report.ensemble_plan import plan_ensemble
from distclust.report.mixture_pictures import shown_rows, write_mixture_picture
from distclust.report.mixture_plan import ChainsPlan, Trial, plan_mixture
from distclust.report.mixtures import (
    advise,
    chain_facts,
    describe_clusters,
    draw_coassociation,
    draw_traces,
    print_chains,
    print_clusters,
    said_of_chains,
)

NAMES = ("log_joint", "n_clusters", "concentration")


def model(
    n_chains: int = 4, n_sweeps: int = 200, n_rows: int = 60, *, rhat: float = 1.0
) -> SimpleNamespace:
    """What a fitted model has, made up."""
    rng = np.random.default_rng(0)
    labels = np.arange(n_rows) % 3
    draws = np.broadcast_to(labels, (n_chains, 5, n_rows)).copy()
    draws[:, ::2, 0] = 1  # row 0 is apart from its own in three of five draws
    pooled = draws.reshape(-1, n_rows)

    def coassignment(rows: Any) -> Any:
        chosen = pooled[:, rows]
        return (chosen[:, :, None] == chosen[:, None, :]).mean(axis=0)

    return SimpleNamespace(
        labels_=labels,
        confidence_=np.where(np.arange(n_rows) == 0, 0.4, 0.98),
        draws_=draws,
        traces_={
            "concentration": rng.gamma(2.0, size=(n_chains, n_sweeps)),
            "log_joint": rng.normal(-1234.5, 2.0, size=(n_chains, n_sweeps)),
            "n_clusters": np.full((n_chains, n_sweeps), 3.0),
        },
        diagnostics_={
            "rhat": dict.fromkeys(NAMES, rhat),
            "ess_bulk": dict.fromkeys(NAMES, 500.0),
            "ess_tail": dict.fromkeys(NAMES, 450.0),
        },
        n_sweeps_=n_sweeps,
        max_sweeps=1000,
        coassignment=coassignment,
    )


def printed(function: Any, *arguments: Any) -> str:
    file = io.StringIO()
    function(Console(file=file, width=120), *arguments)
    return file.getvalue()


# ---- words ---------------------------------------------------------------------------------------


def test_clusters__have_sizes_confidence_and_weights() -> None:
    labels, sure = np.array([0, 1, 0, -1, 1]), np.array([1.0, 0.5, 0.8, 0.0, 0.7])
    found = describe_clusters(labels, sure, np.array([3.0, 1.0, 2.0, 9.0, 1.0]))
    assert [each["n_rows"] for each in found] == [2, 2]
    assert [each["confidence"] for each in found] == pytest.approx([0.9, 0.6])
    assert [each["weight"] for each in found] == [5.0, 2.0]
    assert "weight" not in describe_clusters(labels, sure)[0]


def test_clusters__the_largest_come_first_and_few_are_shown() -> None:
    labels = np.concatenate([np.arange(30), [17, 17, 4]])
    text = printed(print_clusters, describe_clusters(labels, np.ones(len(labels))))
    firsts = [line.split()[0] for line in text.splitlines() if "%" in line]
    assert firsts[:3] == ["17", "4", "0"]
    assert len(firsts) == 20
    assert "The 20 largest of 30 are shown." in text


def test_figures__come_in_one_order_and_leave_out_the_first_half() -> None:
    made = model()
    made.traces_["log_joint"][:, :100] = 1e6
    facts = chain_facts(made, 1.01, 400.0)
    assert [figure["figure"] for figure in facts["figures"]] == list(NAMES)
    assert facts["figures"][0]["mean"] == made.traces_["log_joint"][:, 100:].mean()
    assert facts["figures"][1]["sd"] == 0.0


@pytest.mark.parametrize(
    ("rhat", "samples", "n_chains", "agreed", "says"),
    [
        (1.0, 400.0, 4, True, "they agree"),
        (1.2, 400.0, 4, False, "Raise --max-sweeps. If that does not help, several partitions"),
        (1.0, 451.0, 4, False, "say too little so far"),
        (np.inf, 400.0, 4, False, "several partitions"),
        (np.nan, 400.0, 1, False, "1 chain of 200 sweeps. One chain cannot tell"),
    ],
)
def test_agreement__says_what_to_do(
    rhat: float, samples: float, n_chains: int, agreed: bool, says: str
) -> None:
    facts = chain_facts(model(n_chains, rhat=rhat), 1.01, samples)
    assert facts["agreed"] is agreed
    facts["advice"] = advise(facts)
    assert (facts["advice"] is None) is agreed
    assert says in said_of_chains(facts)
    assert ("unknown" in printed(print_chains, facts)) is not np.isfinite(rhat)


def test_advice__names_a_better_sampler_where_there_is_one() -> None:
    facts = chain_facts(model(rhat=2.0), 1.01, 400.0)
    assert "--sampler collapsed" in str(advise({**facts, "sampler": "blocked-tdp"}))
    assert "--sampler" not in str(advise({**facts, "sampler": "collapsed"}))


# ---- pictures ------------------------------------------------------------------------------------


def test_shown_rows__are_spread_evenly_and_every_cluster_has_some() -> None:
    labels = np.concatenate([np.zeros(9000, int), np.ones(990, int), np.full(9, 2), [3]])
    labels = np.random.default_rng(0).permutation(labels)
    rows = shown_rows(labels, 500)
    assert len(rows) == len(set(rows.tolist())) == 500
    shown = labels[rows]
    assert (np.diff(shown) >= 0).all()
    assert np.bincount(shown).tolist() == pytest.approx([449, 50, 1, 1], abs=2)
    assert shown[-1] == 3
    gaps = np.diff(np.searchsorted(np.flatnonzero(labels == 0), rows[shown == 0]))
    assert set(gaps.tolist()) <= {20, 21}  # every 20th row or so of 9,000


def test_shown_rows__of_few_rows_are_all_and_those_without_cluster_are_left_out() -> None:
    assert shown_rows([1, 0, -1, 1, 0]).tolist() == [1, 4, 0, 3]
    assert shown_rows(np.arange(700), 500).size == 500  # more clusters than places


def test_traces__have_an_axis_a_figure_and_a_line_a_chain() -> None:
    made = model(3)
    figure = draw_traces(made)
    assert [ax.get_ylabel() for ax in figure.axes] == ["log joint", "clusters", "concentration"]
    for ax, name in zip(figure.axes, NAMES, strict=True):
        lines = ax.get_lines()
        assert len(lines) == 3
        np.testing.assert_array_equal(lines[1].get_ydata(), made.traces_[name][1])
        (shade,) = ax.patches
        assert shade.get_extents().transformed(ax.transData.inverted()).x1 == pytest.approx(100)
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "chain 2"
    assert draw_traces(model(1)).legends == []


def test_traces__a_first_plunge_does_not_flatten_what_is_used() -> None:
    made = model()
    made.traces_["log_joint"][:, 0] = -1e6
    low, high = draw_traces(made).axes[0].get_ylim()
    used = made.traces_["log_joint"][:, 100:]
    assert low < used.min() < used.max() < high
    assert high - low < 4 * np.ptp(used)


@pytest.mark.parametrize(("n_chains", "n_sweeps", "n_rows"), [(1, 2, 2), (30, 5000, 900)])
def test_traces__and_co_association_of_few_and_of_many(
    n_chains: int, n_sweeps: int, n_rows: int
) -> None:
    made = model(n_chains, n_sweeps, n_rows)
    draw_traces(made).canvas.draw()
    draw_coassociation(made).canvas.draw()


def test_coassociation__is_ordered_by_cluster_with_borders() -> None:
    made = model()
    ax = draw_coassociation(made).axes[0]
    (image,) = ax.get_images()
    order = np.argsort(made.labels_, kind="stable")
    np.testing.assert_array_equal(image.get_array(), made.coassignment(order))
    assert image.get_array()[0, 1] == pytest.approx(0.4)
    assert sorted(line.get_ydata()[0] for line in ax.get_lines()[::2]) == [19.5, 39.5]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["0", "1", "2"]
    chosen = draw_coassociation(made, rows=[2, 0, 3]).axes[0].get_images()[0].get_array()
    np.testing.assert_array_equal(chosen, made.coassignment([0, 3, 2]))


def test_coassociation__of_what_was_not_sampled_is_that_of_bases() -> None:
    made = model()
    del made.draws_
    made.coassociation = lambda rows: np.full((len(rows), len(rows)), 0.25)
    figure = draw_coassociation(made)
    assert figure.axes[0].get_images()[0].get_array().max() == 0.25
    assert figure.axes[1].get_ylabel() == "share of bases"


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_picture__is_written_whole_and_always_the_same(suffix: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.{suffix}" for i in range(2)]
    for path in paths:
        write_mixture_picture(path, model())
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert first.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix])
    if suffix == "svg":
        assert b"not used" in first
        assert b"share of draws" in first


def test_picture__of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        write_mixture_picture(tmp_path / "p.bmp", model())


# ---- plans ---------------------------------------------------------------------------------------


def plan(**changes: Any) -> ChainsPlan:
    trial = Trial(2000, 20, 7, 1e-6)
    facts: dict[str, Any] = {
        "what": "fit", "n_rows": 1_000_000, "n_features": 5, "rows_bytes": 4e7, "n_chains": 4,
        "max_sweeps": 100, "kept": 50, "n_processes": 1, "n_threads": 4, "trial": trial,
    }  # fmt: skip
    return ChainsPlan(**{**facts, **changes})


def test_plan__time_follows_from_rows_sweeps_and_turns() -> None:
    four, two, three = plan(), plan(n_threads=2), plan(n_threads=3)
    assert four.sweep_seconds == pytest.approx(1.0)
    assert four.seconds == pytest.approx(100 + 3 + four.n_rows * 1e-9 * 100**2 / 4, rel=1e-6)
    assert (four.rounds, two.rounds, three.rounds) == (1, 2, 2)
    assert plan(n_threads=64).rounds == 1
    assert "2 at a time" in two.facts()["chains"]
    assert "at a time" not in four.facts()["chains"]
    json.dumps(four.as_dict(), allow_nan=False)


def test_plan__memory_has_the_rows_in_every_process() -> None:
    one, three = plan(), plan(n_processes=3)
    assert three.memory_bytes - one.memory_bytes == 3 * 4e7
    assert one.memory_bytes == 4e7 + 64e6 * 4 + 2e6 * 4 * 50


def test_plan__of_a_mixture_measures_and_refuses_as_the_fit_does() -> None:
    from distclust import DPMixture

    rows = np.random.default_rng(0).normal(size=(300, 3))
    found = plan_mixture(
        DPMixture("diagonal_gaussian", n_chains=3, max_sweeps=50), as_matrix(rows), 1, 2
    )
    assert found.trial.n_rows == 300
    assert found.trial.n_sweeps >= 1
    assert found.trial.row_seconds > 0
    assert (found.n_chains, found.max_sweeps, found.rounds) == (3, 50, 2)
    assert found.rows_bytes == 8 * 300 * 3
    with pytest.raises(InputError, match="n_chains"):
        plan_mixture(DPMixture(n_chains=0), as_matrix(rows), 1, 2)


def test_plan__of_an_ensemble_from_the_shape_alone() -> None:
    from distclust.ensembles import ClusterEnsemble

    class Unread:
        shape = (10_000, 8)

    matrix: Any = Unread()
    made = plan_ensemble(ClusterEnsemble(n_bases=6), matrix, 2, is_labels=False)
    given = plan_ensemble(ClusterEnsemble(), matrix, 2, is_labels=True)
    assert len(made.base_clusters) == made.n_bases == 6
    assert (given.n_bases, given.base_clusters, given.base_seconds) == (8, (), 0.0)
    assert made.labels_bytes == 60_000
    bce = plan_ensemble(ClusterEnsemble("bce", n_clusters=4), matrix, 2, is_labels=True)
    assert bce.draws_bytes == 0
    assert bce.seconds < given.seconds
    for each in (made, given, bce):
        json.dumps(each.as_dict(), allow_nan=False)
        assert each.facts()["time"]
    with pytest.raises(InputError, match="n_clusters"):
        plan_ensemble(ClusterEnsemble("mm"), matrix, 2, is_labels=True)
