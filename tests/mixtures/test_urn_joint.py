"""Joint tests of the urn (Geweke): sweeps between draws of rows keep the joint distribution."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from distclust.families import Bernoulli, DiagonalGaussian
from distclust.mixtures.concentration import Concentration, EscobarWest, FittedGamma, GammaPrior
from distclust.mixtures.urn import UrnSampler
from tests.oracles.partitions import draw_restaurant

PRIOR = GammaPrior(3.0, 2.0)
JOINT_ROWS, JOINT_COLUMNS = 8, 3


def draw_binary(family: Bernoulli, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    shares = rng.beta(family.alpha, family.beta, (labels.max() + 1, JOINT_COLUMNS))
    return (rng.random((JOINT_ROWS, JOINT_COLUMNS)) < shares[labels]).astype(float)


def draw_real(family: DiagonalGaussian, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    size = (labels.max() + 1, JOINT_COLUMNS)
    precision = rng.gamma(family.shape, 1.0 / family.rate, size)
    centre = rng.normal(family.mean, 1.0 / np.sqrt(family.strength * precision))
    return rng.normal(centre[labels], 1.0 / np.sqrt(precision[labels]))


BINARY = Bernoulli(alpha=0.8, beta=1.2, n_features=JOINT_COLUMNS)
REAL = DiagonalGaussian(mean=0.5, strength=0.3, shape=3.0, rate=2.0, n_features=JOINT_COLUMNS)
JOINT = {"bernoulli": (BINARY, draw_binary), "diagonal": (REAL, draw_real)}


def figures(labels: np.ndarray, concentration: float, rows: np.ndarray) -> list[float]:
    pairs = labels[:, None] == labels[None, :]
    apart = np.abs(rows[:, None] - rows[None, :]).clip(max=3.0).mean(axis=2)
    return [
        len(np.unique(labels)), concentration, math.log(concentration), np.tanh(rows).mean(),
        pairs.sum(), (pairs * apart).sum(),
    ]  # fmt: skip


def batch_error(values: np.ndarray, n_batches: int = 40) -> np.ndarray:
    means = np.stack([part.mean(axis=0) for part in np.array_split(values, n_batches)])
    return means.std(axis=0, ddof=1) / math.sqrt(n_batches)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "moves", "concentration"),
    [
        ("bernoulli", "rows", EscobarWest(PRIOR)),
        ("bernoulli", "rows and splits", EscobarWest(PRIOR)),
        ("bernoulli", "rows and splits", FittedGamma(PRIOR)),
        ("diagonal", "rows", EscobarWest(PRIOR)),
        ("diagonal", "rows and splits", EscobarWest(PRIOR)),
    ],
)
def test_sweeps_keep_the_joint_distribution(
    name: str, moves: str, concentration: Concentration
) -> None:
    """Geweke: rows drawn given labels, labels swept given rows, against draws from scratch."""
    family, draw = JOINT[name]
    rng = np.random.default_rng(4)
    direct = []
    for _ in range(6000):
        value = rng.gamma(PRIOR.shape, 1.0 / PRIOR.rate)
        labels = np.array(draw_restaurant(JOINT_ROWS, value, rng))
        direct.append(figures(labels, value, draw(family, labels, rng)))  # type: ignore[operator]
    sampler = UrnSampler(
        np.zeros((JOINT_ROWS, JOINT_COLUMNS)), family, concentration, init="single",
        split_merge=moves != "rows",
    )  # fmt: skip
    state = sampler.begin(0, rng)
    swept = []
    for _ in range(6000):
        rows = draw(family, state.labels, rng)  # type: ignore[operator]
        sampler = dataclasses.replace(sampler, rows=rows)
        stats = sampler._accumulate(state.labels, state.n_clusters)
        state = sampler.sweep(sampler.open(), dataclasses.replace(state, statistics=stats))
        swept.append(figures(state.labels, state.concentration, rows))
    a, b = np.array(direct), np.array(swept)
    error = np.hypot(a.std(axis=0) / math.sqrt(len(a)), batch_error(b))
    assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) < 4.0 * error)
