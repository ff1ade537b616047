"""Perplexity of consensus models on labels, next to that of guessing.

The perplexity of a model is the number of equally likely labels among which it leaves one to
guess. It is 1 where every label is certain. Guessing uniformly has the geometric mean of the
numbers of labels, over the labels that are there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from distclust.ensembles.label_rows import Array, Floats, LabelRows
from distclust.errors import InputError

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Perplexity:
    """How well a model tells labels.

    Attributes
    ----------
    value
        Of a label: exp of minus the mean log probability.
    baseline
        The same for a model that guesses uniformly.
    per_object
        Of an object, all of its labels together.
    n_labels
        Labels that were looked at, the denominator of `value`.
    n_objects
        Objects, the denominator of `per_object`.
    """

    value: float
    baseline: float
    per_object: float
    n_labels: float
    n_objects: float


def predictive_perplexity(
    log_probabilities: Floats, codes: Array, n_labels: Array, weights: Array | None = None
) -> Perplexity:
    """Return the perplexity of log p of whole label rows.

    Parameters
    ----------
    log_probabilities
        Of each row given the model: of held-out rows, or of those it was fitted to.
    codes, n_labels, weights
        See `LabelRows`.
    """
    labels = LabelRows.of(codes, n_labels, weights)
    if log_probabilities.shape != (labels.n_rows,):
        got = f"shape {log_probabilities.shape}"
        raise InputError("log_probabilities", f"{labels.n_rows} numbers", got, _HINT)
    if not (log_probabilities <= _ROUNDING * labels.n_bases).all():
        got = f"a largest one of {np.max(log_probabilities):g}"
        raise InputError("log_probabilities", "logs of probabilities, at most 0", got, _HINT)
    return _perplexity(labels, np.minimum(log_probabilities, 0.0))


def plugin_perplexity(
    memberships: Floats, theta: Floats, codes: Array, n_labels: Array, weights: Array | None = None
) -> Perplexity:
    r"""Return the perplexity of :math:`\sum_k \pi_{nk} \theta_{m k y_{nm}}`, label by label.

    It takes the memberships of a row as known, though they were fitted to its labels.

    Parameters
    ----------
    memberships
        Of each row in each cluster, shape (n_rows, K); rows sum to one.
    theta
        Probability of each label in each cluster, shape (n_cells, K).
    codes, n_labels, weights
        See `LabelRows`.
    """
    labels = LabelRows.of(codes, n_labels, weights)
    _check_distributions(labels, memberships, theta)
    logs = np.zeros(labels.n_rows)
    for rows, block in labels.blocks():
        for m in range(block.n_bases):
            seen = np.flatnonzero(block.codes[:, m] >= 0)
            cells = block.offsets[m] + block.codes[seen, m]
            chances = np.einsum("nk,nk->n", memberships[rows][seen], theta[cells])
            with np.errstate(divide="ignore"):
                logs[rows.start + seen] += np.log(np.minimum(chances, 1.0))
    return _perplexity(labels, logs)


def one_hot(labels: Array, n_components: int) -> Floats:
    """Return the memberships of a partition, shape (n_rows, n_components)."""
    found = np.zeros((len(labels), n_components))
    found[np.arange(len(labels)), labels] = 1.0
    return found


def uniform_log_probabilities(codes: Array, n_labels: Array) -> Floats:
    """Return log p of label rows for a model that guesses uniformly."""
    found: Floats = np.dot(codes >= 0, -np.log(np.asarray(n_labels, np.float64)))
    return found


def _perplexity(labels: LabelRows, logs: Floats) -> Perplexity:
    guesses = uniform_log_probabilities(labels.codes, labels.n_labels)
    n_labels, n_objects = labels.n_observed, labels.n_objects
    if n_labels == 0:
        hint = "Leave objects without labels out."
        raise InputError("codes", "some label", "only missing ones", hint)
    total = float(labels.weights @ logs)
    return Perplexity(
        _exp(-total / n_labels),
        _exp(-float(labels.weights @ guesses) / n_labels),
        _exp(-total / n_objects),
        n_labels,
        n_objects,
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700.0 else math.inf


def _check_distributions(labels: LabelRows, memberships: Floats, theta: Floats) -> None:
    n_components = memberships.shape[-1]
    for name, found, shape in (
        ("memberships", memberships, (labels.n_rows, n_components)),
        ("theta", theta, (labels.n_cells, n_components)),
    ):
        if found.shape != shape:
            raise InputError(name, f"shape {shape}", f"shape {found.shape}", _HINT)
    sums = np.add.reduceat(theta, labels.offsets, axis=0)
    for name, total in (("memberships", memberships.sum(axis=1)), ("theta", sums)):
        if not np.allclose(total, 1.0, rtol=1e-6):
            raise InputError(name, "distributions that sum to one", "others", _HINT)


_HINT = "Pass what the model returns for these rows."
