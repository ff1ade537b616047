"""Rose trees: evidence, number of partitions and missing entries.

After tables 1.2 to 1.4 of Blundell, Teh and Heller's chapter: 120 rows in equal classes, ten
draws; the toy set is made by hand and has no draws. Three settings:

- "default": empirical prior with the weight of two rows, γ = 1/2, concentration 1;
- "searched": the same, and the weight of the prior searched by the model's own objective;
- "optimised": all hyperparameters by gradient (``optimize=True``).

BHC-DP ranks merges by the likelihood ratio, as the chapter does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from benchmarks import data
from benchmarks.data import Draw
from benchmarks.problem import Problem, Results, Size, mean_and_error, show, table
from distclust import BHC, BayesianRoseTree
from distclust.families import Bernoulli

MODELS = ("BHC-DP", "BRT-DP", "BHC-γ", "BRT-γ", "BRT")
N_DRAWS = 10
N_RESTARTS = 0  # the chapter used 10
N_OPTIMISED = {"newsgroups": 3}  # draws, where 971 hyperparameters make a climb slow
STRENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SHARE_MISSING = 0.1

SETS: dict[str, Callable[[int], Draw]] = {
    "toy": data.toy,
    "spambase": partial(data.spambase, n_each=60),
    "digits024": partial(data.digits, classes=(0, 2, 4), n_each=40, threshold=32.0),
    "digits": partial(data.digits, n_each=12, threshold=32.0),
    "newsgroups": partial(data.newsgroups, n_words=485),
}

# Tables 1.2, 1.3 and 1.4 of the chapter, in the order of MODELS.
PUBLISHED_EVIDENCE = {
    "toy": (-215, -215, -168, -167, -166),
    "spambase": (-2258, -2259, -1980, -2006, -1973),
    "digits024": (-4010, -4015, -3711, -3726, -3702),
    "digits": (-4223, -4216, -3891, -3916, -3888),
    "newsgroups": (-10912, -10937, -10606, -10807, -10645),
}
PUBLISHED_PARTITIONS = {
    "toy": (4, 4, 4, 4, 1),
    "spambase": (14, 14, 14, 14, 7),
    "digits024": (15, 15, 15, 13, 6),
    "digits": (17, 17, 17, 16, 8),
    "newsgroups": (14, 14, 14, 13, 7),
}
PUBLISHED_PREDICTIVE = {
    "toy": (-14.7, -14.7, -14.4, -14.6, -14.3),
    "spambase": (-190, -187, -192, -192, -190),
    "digits024": (-347, -345, -345, -345, -343),
    "digits": (-372, -371, -369, -371, -370),
    "newsgroups": (-1122, -1122, -1114, -1114, -1114),
}


Setting = Literal["default", "searched", "optimised"]


@dataclass(frozen=True)
class Input:
    """Draws of each set, and how hyperparameters are set."""

    draws: dict[str, list[Draw]]
    setting: Setting


def fit(model: str, X: Any, setting: Setting) -> Any:
    """Fit one of the five models."""
    if setting == "optimised":
        return estimator(model, optimize=True, n_restarts=N_RESTARTS, random_state=0).fit(X)
    if setting == "default":
        return estimator(model).fit(X)
    fits = [estimator(model, family=Bernoulli(kappa=weight)).fit(X) for weight in STRENGTHS]
    return max(fits, key=objective)


def objective(model: Any) -> float:
    """What the library maximises: the lower bound, or log p(D | T) without a process."""
    return float(getattr(model, "log_lower_bound_", model.log_evidence_))


def estimator(model: str, **options: Any) -> Any:
    """One of the five models."""
    if model == "BHC-DP":
        return BHC(criterion="likelihood_ratio", **options)
    variant = {"BRT": "brt", "BRT-γ": "brt-gamma", "BRT-DP": "brt-dp", "BHC-γ": "bhc-gamma"}
    return BayesianRoseTree(variant[model], **options)


# ---- evidence and partitions ---------------------------------------------------------------------


def make_data(size: Size, setting: Setting, n_toy: int = 1) -> Input:
    """Draws of the five sets (the toy set `n_toy` times); at toy size two small ones."""
    if size == "toy":
        return Input({"toy": [data.toy(n_columns=n) for n in (6, 9)]}, setting)
    n_draws = dict.fromkeys(SETS, N_DRAWS) | {"toy": n_toy}
    if setting == "optimised":
        n_draws |= N_OPTIMISED
    draws = {name: [make(seed) for seed in range(n_draws[name])] for name, make in SETS.items()}
    return Input(draws, setting)


def run(given: Input) -> Results:
    """Log evidence and log10 of the number of partitions, by set, model and draw."""
    evidence: dict[str, dict[str, list[float]]] = {}
    partitions: dict[str, dict[str, list[float]]] = {}
    for name, draws in given.draws.items():
        evidence[name], partitions[name] = {}, {}
        for model in MODELS:
            trees = [fit(model, draw.X, given.setting).tree_ for draw in draws]
            evidence[name][model] = [float(tree.log_evidence) for tree in trees]
            partitions[name][model] = [float(tree.log10_n_partitions) for tree in trees]
    return {"evidence": evidence, "partitions": partitions}


def summarise(results: Results) -> str:
    """Both tables beside the published ones, and the orders."""
    return "\n\n".join(
        [
            "Log evidence log p(D given T), mean ± standard error (table 1.2):",
            _beside(results["evidence"], PUBLISHED_EVIDENCE, digits=1),
            "Base-10 logarithm of the number of partitions (table 1.3):",
            _beside(results["partitions"], PUBLISHED_PARTITIONS, digits=1),
            "Order of the models by evidence; `>` is a paired difference of more than two "
            "standard errors, `≥` a smaller one:",
            table(
                ["data", "here", "chapter"],
                [
                    [name, order(scores), _published_order(PUBLISHED_EVIDENCE[name])]
                    for name, scores in results["evidence"].items()
                ],
            ),
        ]
    )


def _beside(
    found: dict[str, dict[str, list[float]]], published: dict[str, tuple[float, ...]], digits: int
) -> str:
    rows = []
    for name, scores in found.items():
        rows.append([name, *(show(scores[model], digits) for model in MODELS)])
        rows.append(["*chapter*", *(f"*{figure:g}*" for figure in published[name])])
    return table(["data", *MODELS], rows)


def order(scores: dict[str, list[float]]) -> str:
    """Models from best to worst, neighbours compared by their paired differences."""
    ranked = sorted(MODELS, key=lambda model: -float(np.mean(scores[model])))
    text = ranked[0]
    for better, worse in itertools.pairwise(ranked):
        mean, error = mean_and_error(np.subtract(scores[better], scores[worse]))
        text += f" {'>' if mean > 2 * error else '≥'} {worse}"
    return text


def _published_order(figures: tuple[float, ...]) -> str:
    ranked = sorted(zip(figures, MODELS, strict=True), key=lambda pair: -pair[0])
    text = ranked[0][1]
    for (better, _), (worse, model) in itertools.pairwise(ranked):
        text += f" {'=' if better == worse else '>'} {model}"
    return text


# ---- missing entries -----------------------------------------------------------------------------


def run_missing(given: Input) -> Results:
    """Joint log probability of removed entries, by set, model and draw."""
    predictive: dict[str, dict[str, list[float]]] = {}
    for name, draws in given.draws.items():
        predictive[name] = {model: [] for model in MODELS}
        for seed, draw in enumerate(draws):
            observed = without_entries(draw.X, seed)
            for model in MODELS:
                fitted = fit(model, observed, given.setting)
                score = fitted.score_missing(draw.X.astype(float))
                predictive[name][model].append(float(score))
    return {"predictive": predictive}


def without_entries(X: Any, seed: int) -> Any:
    """Remove one entry in ten at random."""
    observed = X.astype(float)
    gone = np.random.default_rng([seed, 1]).random(X.shape) < SHARE_MISSING
    observed[gone] = np.nan
    return observed


def summarise_missing(results: Results) -> str:
    """Table 1.4 beside the published one."""
    return "\n\n".join(
        [
            "Log probability of the missing entries, mean ± standard error (table 1.4):",
            _beside(results["predictive"], PUBLISHED_PREDICTIVE, digits=1),
        ]
    )


def problems() -> list[Problem]:
    """The benchmarks of this module."""
    found = []
    settings: tuple[Setting, ...] = ("default", "searched", "optimised")
    for setting in settings:
        about = f"{setting} hyperparameters"
        found.append(
            Problem(
                f"quality-rose-{setting}",
                f"evidence and partitions of five models, {about} (tables 1.2, 1.3)",
                partial(make_data, setting=setting),
                run,
                summarise,
                needs_files=True,
            )
        )
        if setting != "searched":  # seven fits for each, and nothing new to see
            found.append(
                Problem(
                    f"quality-rose-missing-{setting}",
                    f"log probability of missing entries, {about} (table 1.4)",
                    partial(make_data, setting=setting, n_toy=N_DRAWS),
                    run_missing,
                    summarise_missing,
                    needs_files=True,
                )
            )
    return found
