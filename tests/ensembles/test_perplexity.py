"""Perplexity: 1 is certainty, and guessing has the number of labels."""

from __future__ import annotations

import numpy as np
import pytest

from distclust.ensembles.label_rows import LabelRows
from distclust.ensembles.multinomial_mixture import fit_multinomial_mixture, log_probabilities
from distclust.ensembles.perplexity import (
    one_hot,
    plugin_perplexity,
    predictive_perplexity,
    uniform_log_probabilities,
)
from distclust.errors import InputError
from tests.ensembles.test_multinomial_mixture import SIZES, make_codes

CODES = np.array([[0, 2], [1, -1], [0, 0]], np.int8)


def test_guessing__has_the_number_of_labels():
    codes = np.array([[0, 4], [3, 1], [-1, 2]], np.int8)
    found = predictive_perplexity(uniform_log_probabilities(codes, [5, 5]), codes, [5, 5])
    assert found.value == pytest.approx(5.0)
    assert found.baseline == pytest.approx(5.0)
    assert found.per_object == pytest.approx(5.0 ** (5 / 3))
    assert (found.n_labels, found.n_objects) == (5, 3)


def test_baseline__is_the_geometric_mean():
    codes = np.array([[0, 2], [1, 0]], np.int8)
    found = predictive_perplexity(uniform_log_probabilities(codes, [2, 3]), codes, [2, 3])
    assert found.baseline == pytest.approx(6**0.5)
    assert found.value == pytest.approx(found.baseline)


def test_plugin__is_a_mean_of_logs():
    memberships = np.array([[0.5, 0.5], [1.0, 0.0], [0.2, 0.8]])
    theta = np.array([[0.9, 0.2], [0.1, 0.8], [0.3, 0.1], [0.3, 0.1], [0.4, 0.8]])
    chances = [0.55, 0.6, 0.1, 0.2 * 0.9 + 0.8 * 0.2, 0.2 * 0.3 + 0.8 * 0.1]
    found = plugin_perplexity(memberships, theta, CODES, [2, 3])
    assert found.value == pytest.approx(np.exp(-np.mean(np.log(chances))))
    twice = plugin_perplexity(memberships, theta, CODES, [2, 3], np.full(3, 2.0))
    assert twice.value == pytest.approx(found.value)
    assert twice.n_labels == 10


def test_plugin__guesses_with_uniform_tables():
    theta = np.repeat([1 / 2, 1 / 3], [2, 3])[:, None].repeat(4, axis=1)
    memberships = np.full((3, 4), 0.25)
    found = plugin_perplexity(memberships, theta, CODES, [2, 3])
    assert found.value == pytest.approx(found.baseline)


def test_certainty__is_one():
    labels = np.array([0, 1, 1])
    codes = np.stack([labels, 1 - labels], axis=1).astype(np.int8)
    theta = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    found = plugin_perplexity(one_hot(labels, 2), theta, codes, [2, 2])
    assert found.value == found.per_object == 1.0


def test_fits__are_between_certainty_and_guessing(seed):
    codes, _ = make_codes(seed)
    fit = fit_multinomial_mixture(codes, SIZES, 3, n_restarts=3)
    logs = log_probabilities(LabelRows.of(codes, SIZES), fit.shares, fit.theta)
    found = predictive_perplexity(logs, codes, SIZES)
    assert 1.0 <= found.value <= found.baseline


def test_impossible_labels__are_infinite():
    found = predictive_perplexity(np.array([0.0, -np.inf, 0.0]), CODES, [2, 3])
    assert found.value == np.inf


@pytest.mark.parametrize("logs", [np.zeros(2), np.array([0.0, 0.1, 0.0]), np.full(3, np.nan)])
def test_what_are_no_probabilities__gets_a_sentence(logs):
    with pytest.raises(InputError):
        predictive_perplexity(logs, CODES, [2, 3])


def test_tables_that_do_not_sum_to_one__get_a_sentence():
    with pytest.raises(InputError):
        plugin_perplexity(np.full((3, 2), 0.5), np.full((5, 2), 0.5), CODES, [2, 3])
    with pytest.raises(InputError):
        plugin_perplexity(np.full((3, 1), 1.0), np.full((4, 1), 0.5), CODES, [2, 3])
