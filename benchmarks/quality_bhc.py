"""Purity of trees, after table 3.1 of Heller's thesis, and evidence against purity.

BHC is compared with single, complete and average linkage (Euclidean, on the same matrix) on
draws with fixed seeds. Classes serve to judge only; three settings are reported:

- "BHC": the library's defaults. Binary columns have the mean of the whole data set as prior,
  with the weight of two rows; the scale of a Gaussian prior is searched by the evidence; the
  concentration is one. This follows the thesis (section 3.4.1), which set hyperparameters
  from the whole data and searched one by a line search.
- "BHC searched": the same, and the weight of the binary prior searched by the lower bound
  (for Gaussian data nothing changes).
- "BHC optimised": concentration and every hyperparameter by gradient (``optimize=True``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import linkage

from benchmarks import data
from benchmarks.data import Draw
from benchmarks.problem import Problem, Results, Size, mean_and_error, show, table
from distclust import BHC
from distclust.families import Bernoulli
from distclust.metrics import dendrogram_purity

LINKAGES = ("single", "complete", "average")
MODELS = ("BHC", "BHC searched", "BHC optimised")
STRENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
N_DRAWS = 10
N_SETTINGS = 50
CLEAR = 1.5  # standard errors that make a difference clear

SETS: dict[str, Callable[[int], Draw]] = {
    "synthetic": data.synthetic,
    "newsgroups": data.newsgroups,
    "spambase": data.spambase,
    "3 digits": partial(data.digits, classes=(0, 2, 4)),
    "10 digits": data.digits,
    "glass": data.glass,
}
MUST_WIN = ("synthetic", "newsgroups", "spambase", "3 digits", "10 digits")

# Thesis table 3.1: single, complete, average, BHC.
PUBLISHED = {
    "synthetic": ("0.599 ± 0.033", "0.634 ± 0.024", "0.668 ± 0.040", "0.828 ± 0.025"),
    "newsgroups": ("0.275 ± 0.001", "0.315 ± 0.008", "0.282 ± 0.002", "0.465 ± 0.016"),
    "spambase": ("0.598 ± 0.017", "0.699 ± 0.017", "0.668 ± 0.019", "0.728 ± 0.029"),
    "3 digits": ("0.545 ± 0.015", "0.654 ± 0.013", "0.742 ± 0.018", "0.807 ± 0.022"),
    "10 digits": ("0.224 ± 0.004", "0.299 ± 0.006", "0.342 ± 0.005", "0.393 ± 0.015"),
    "glass": ("0.478 ± 0.009", "0.476 ± 0.009", "0.491 ± 0.009", "0.467 ± 0.011"),
}

Draws = dict[str, list[Draw]]


# ---- purity ------------------------------------------------------------------------------------


def make_data(size: Size) -> Draws:
    """All draws of all sets; glass has no draws, it is used whole."""
    if size == "toy":
        return {"synthetic": [data.synthetic(seed, n_each=6) for seed in range(2)]}
    n_draws = dict.fromkeys(SETS, N_DRAWS) | {"glass": 1}
    return {name: [make(seed) for seed in range(n_draws[name])] for name, make in SETS.items()}


def run(draws: Draws) -> Results:
    """Purity of each method on each draw."""
    purity = {}
    for name, those in draws.items():
        scores = [_purities(draw) for draw in those]
        purity[name] = {method: [score[method] for score in scores] for method in scores[0]}
    return {"purity": purity}


def _purities(draw: Draw) -> dict[str, float]:
    rows = draw.X.astype(float)
    scores = {kind: dendrogram_purity(linkage(rows, kind), draw.y) for kind in LINKAGES}
    fits = (BHC().fit, fit_searched, BHC(optimize=True, random_state=0).fit)
    for name, fit in zip(MODELS, fits, strict=True):
        scores[name] = dendrogram_purity(fit(draw.X).tree_, draw.y)
    return scores


def fit_searched(X: Any) -> BHC:
    """Fit with the weight of the binary prior that the lower bound likes best."""
    if X.dtype != np.uint8:
        return BHC().fit(X)
    fits = [BHC(Bernoulli(kappa=strength)).fit(X) for strength in STRENGTHS]
    return max(fits, key=lambda model: model.log_lower_bound_)


def summarise(results: Results) -> str:
    """Table of purities beside the published ones, table of paired differences, verdict."""
    purity = results["purity"]
    methods = (*LINKAGES, *MODELS)
    levels = []
    for name, scores in purity.items():
        levels.append([name, *(show(scores[method]) for method in methods)])
        published = PUBLISHED[name]
        levels.append(["*thesis*", *(f"*{figure}*" for figure in published), "", ""])
    gaps = [
        [name, model, *(_gap(scores[model], scores[kind]) for kind in LINKAGES)]
        for name, scores in purity.items()
        for model in MODELS
    ]
    return "\n\n".join(
        [
            "Dendrogram purity, mean ± standard error:",
            table(["data", *methods], levels),
            "Paired differences of BHC and each linkage, mean ± standard error "
            "(in standard errors):",
            table(["data", "model", *LINKAGES], gaps),
            verdict(results),
        ]
    )


def _gap(model: list[float], other: list[float]) -> str:
    differences = np.subtract(model, other)
    mean, error = mean_and_error(differences)
    if len(differences) < 2:
        return f"{mean:+.3f}"
    return f"{mean:+.3f} ± {error:.3f} ({mean / error:+.1f})"


def clear_wins(results: Results, model: str = "BHC") -> dict[str, bool]:
    """For each data set: does the model beat every linkage by a clear margin?"""
    wins = {}
    for name, scores in results["purity"].items():
        gaps = [mean_and_error(np.subtract(scores[model], scores[kind])) for kind in LINKAGES]
        wins[name] = all(mean > CLEAR * error and mean > 0 for mean, error in gaps)
    return wins


def verdict(results: Results) -> str:
    """Say where BHC wins clearly and where it does not."""
    lines = []
    for model in MODELS:
        wins = clear_wins(results, model)
        good = [name for name, won in wins.items() if won]
        bad = [name for name, won in wins.items() if not won]
        lines.append(
            f"- {model} beats all three linkages by more than {CLEAR} standard errors on: "
            f"{', '.join(good) or 'none'}. Not on: {', '.join(bad) or 'none'}."
        )
    return "\n".join(lines)


# ---- evidence against purity --------------------------------------------------------------------


def make_correlation_data(size: Size) -> list[Draw]:
    """Draws of newsgroups; of a Bernoulli toy set for tests."""
    if size == "toy":
        return [data.toy(n_columns=n) for n in (6, 9)]
    return [data.newsgroups(seed) for seed in range(N_DRAWS)]


def run_correlation(draws: list[Draw]) -> Results:
    """Correlation of evidence and purity over hyperparameters, for each draw.

    Prior weight log-uniform in 1/4..64; concentration log-uniform in 1/100..100, or one.
    """
    random = np.random.default_rng(0)
    weights = 2.0 ** random.uniform(-2, 6, N_SETTINGS)
    concentrations = 10.0 ** random.uniform(-2, 2, N_SETTINGS)
    return {
        "both": _correlations(draws, weights, concentrations),
        "weight": _correlations(draws, weights, np.ones(N_SETTINGS)),
    }


def _correlations(draws: list[Draw], weights: Any, concentrations: Any) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"log_evidence": [], "log_lower_bound": []}
    for draw in draws:
        settings = zip(weights, concentrations, strict=True)
        points = np.array([_point(draw, *setting) for setting in settings])
        with_purity = np.corrcoef(points.T)[2]
        found["log_evidence"].append(float(with_purity[0]))
        found["log_lower_bound"].append(float(with_purity[1]))
    return found


def _point(draw: Draw, weight: float, concentration: float) -> tuple[float, float, float]:
    model = BHC(Bernoulli(kappa=weight), concentration).fit(draw.X)
    return model.log_evidence_, model.log_lower_bound_, dendrogram_purity(model.tree_, draw.y)


def summarise_correlation(results: Results) -> str:
    """Mean correlation beside the published one."""
    names = {"both": "prior weight and concentration", "weight": "prior weight"}
    rows = [
        [name, show(results[key]["log_evidence"]), show(results[key]["log_lower_bound"])]
        for key, name in names.items()
    ]
    rows.append(["*thesis, iterations of an optimisation*", "*0.888*", ""])
    header = [f"{N_SETTINGS} settings of", "with log p(D given T)", "with the lower bound"]
    return table(header, rows)


def problems() -> list[Problem]:
    """The benchmarks of this module."""
    parts: dict[str, Any] = {"needs_files": True}
    return [
        Problem(
            "quality-bhc",
            "purity of BHC and three linkages (thesis table 3.1)",
            make_data,
            run,
            summarise,
            **parts,
        ),
        Problem(
            "quality-bhc-correlation",
            "does evidence find pure trees? (thesis figure 3.2)",
            make_correlation_data,
            run_correlation,
            summarise_correlation,
            **parts,
        ),
    ]
