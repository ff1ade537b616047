"""Bad data and bad parameters: one sentence, naming the place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from distclust.errors import InputError, ModelFormatError
from distclust.families import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Gaussian,
    Multinomial,
    Poisson,
    family_from_dict,
    family_named,
    register_family,
)
from tests.oracles import families as oracle

GOOD = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
NAN, INF = float("nan"), float("inf")

BAD_DATA = [
    (Bernoulli(), 2.0, r"zeros and ones .* 2 in column 'x1'"),
    (Bernoulli(), -1.0, r"zeros and ones .* -1 in column 'x1'"),
    (Bernoulli(), 0.5, r"zeros and ones .* a fraction in column 'x1'"),
    (Categorical(), -1.0, r"whole codes .* -1 in column 'x1'"),
    (Categorical(), 1.5, r"whole codes .* a fraction in column 'x1'"),
    (Categorical(), 1e9, r"whole codes .* 1e\+09 in column 'x1'"),
    (Categorical(n_levels=2), 2.0, r"codes below the number of levels, got 2 in column 'x1'"),
    (Multinomial(), -2.0, r"counts .* Multinomial family, got -2 in column 'x1'"),
    (Multinomial(), 0.5, r"counts .* a fraction in column 'x1'"),
    (Multinomial(), NAN, r"no missing values \(NaN\) for the Multinomial family"),
    (Poisson(), -2.0, r"counts .* Poisson family, got -2 in column 'x1'"),
    (Gaussian(), NAN, r"no missing values .* column 'x1'.*DiagonalGaussian"),
    (Gaussian(), INF, r"finite numbers, got an infinite value in column 'x1'"),
    (DiagonalGaussian(), -INF, r"finite numbers, got an infinite value in column 'x1'"),
]


@pytest.mark.parametrize(("template", "value", "sentence"), BAD_DATA)
def test_check__bad_values_get_a_sentence(template: Family, value: float, sentence: str) -> None:
    rows = np.array(GOOD)
    template.check(oracle.plain_profile(rows), oracle.plain_columns(2), "BHC.fit")
    rows[1, 1] = value
    with pytest.raises(InputError, match=sentence) as caught:
        template.check(oracle.plain_profile(rows), oracle.plain_columns(2), "BHC.fit")
    assert str(caught.value).startswith("BHC.fit: expected ")


def test_check__other_offending_columns_are_counted() -> None:
    rows = np.full((2, 3), 7.0)
    with pytest.raises(InputError, match=r"7 in column 'x0' \(and in 2 more\)"):
        Bernoulli().check(oracle.plain_profile(rows), oracle.plain_columns(3), "X")


@pytest.mark.parametrize("template", [Bernoulli(1, 1, n_features=3), Gaussian(n_features=3)])
def test_check__number_of_columns_must_match(template: Family) -> None:
    with pytest.raises(InputError, match=r"3 columns for .* got 2 columns"):
        template.check(oracle.plain_profile(np.array(GOOD)), oracle.plain_columns(2), "X")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Bernoulli(alpha=0), r"Bernoulli\(alpha\): expected a finite number above 0"),
        (lambda: Bernoulli(beta=[1, -1]), r"Bernoulli\(beta\): expected positive finite"),
        (lambda: Bernoulli(alpha="a"), r"Bernoulli\(alpha\)"),
        (lambda: Bernoulli(alpha=["a", "b"]), r"Bernoulli\(alpha\)"),
        (lambda: Bernoulli(alpha=[[1, 2]]), r"a vector, got an array of shape \(1, 2\)"),
        (lambda: Bernoulli(alpha=[]), r"an empty list"),
        (lambda: Bernoulli(alpha=[1, 2], beta=[1, 2, 3]), r"Bernoulli\(beta\).* 3 numbers"),
        (lambda: Bernoulli(kappa=NAN), r"Bernoulli\(kappa\)"),
        (lambda: Multinomial(alpha=INF), r"Multinomial\(alpha\)"),
        (lambda: Poisson(shape=-1), r"Poisson\(shape\)"),
        (lambda: Poisson(rate=0), r"Poisson\(rate\)"),
        (lambda: DiagonalGaussian(strength=0), r"DiagonalGaussian\(strength\)"),
        (lambda: DiagonalGaussian(mean=NAN), r"DiagonalGaussian\(mean\)"),
        (lambda: DiagonalGaussian(scale="wide"), r"DiagonalGaussian\(scale\)"),
        (lambda: Gaussian(strength=0), r"Gaussian\(strength\)"),
        (lambda: Gaussian(scale=-1), r"Gaussian\(scale\)"),
        (lambda: Gaussian(degrees=1, n_features=3), r"Gaussian\(degrees\).* above 2"),
        (lambda: Gaussian(scatter=-np.eye(2)), r"positive definite"),
        (lambda: Gaussian(scatter=[[1, 2], [0, 1]]), r"symmetric"),
        (lambda: Gaussian(scatter=[1, 2, 3]), r"shape \(3,\)"),
        (lambda: Gaussian(mean=[0, 0, 0], scatter=np.eye(2)), r"Gaussian\(mean\).*3 numbers"),
        (lambda: Categorical(n_levels=0), r"Categorical\(n_levels\)"),
        (lambda: Categorical(n_levels=[2, 3], n_features=3), r"each of 3 columns"),
        (lambda: Categorical(alpha=[1, 1, 1], n_levels=[2, 2]), r"columns of 2, 2 levels"),
        (lambda: Categorical(alpha=-1), r"Categorical\(alpha\)"),
    ],
)
def test_constructor__bad_parameters_get_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make()


@pytest.mark.parametrize("family", [Bernoulli(1, 1, n_features=2), Poisson(1, 1, n_features=2),
                                    DiagonalGaussian(0, 1, 1, 1, n_features=2),
                                    Gaussian(0, scatter=np.eye(2))])  # fmt: skip
def test_accumulate__unexpected_nan_is_refused(family: Family) -> None:
    with pytest.raises(InputError, match="without missing values"):
        family.accumulate(np.array([[1.0, NAN]]), [0], 1)


def test_entry_log_predictive__dependent_columns_are_refused() -> None:
    family = Gaussian(0, scatter=np.eye(2))
    with pytest.raises(InputError, match="independent columns"):
        family.entry_log_predictive(0, 1.0, np.zeros((1, family.n_statistics)))


def test_family_from_dict__unknown_family_is_refused() -> None:
    with pytest.raises(ModelFormatError, match="register_family"):
        family_from_dict({"family": "unheard of"}, {})


def test_family_named__finds_templates() -> None:
    assert family_named("bernoulli") == Bernoulli()
    with pytest.raises(InputError, match="'bernoulli'"):
        family_named("bernouli", "BHC: family")


def test_register_family__needs_a_name_of_its_own() -> None:
    class Nameless(Bernoulli):
        name = ""

    class Impostor(Bernoulli):
        name = "gaussian"

    for cls in (Nameless, Impostor):
        with pytest.raises(InputError, match="a name of its own"):
            register_family(cls)


def test_equality__families_differ_by_any_field() -> None:
    assert Bernoulli(1, 1) == Bernoulli(1.0, 1.0)
    assert Bernoulli(1, 1) != Bernoulli(1, 2)
    assert Bernoulli(1, 1) != Bernoulli(1, [1, 1])
    assert Bernoulli() != Poisson()
