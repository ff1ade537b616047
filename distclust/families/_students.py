"""What the two Gaussian families share: the scale's grid, Student densities, information."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, stdtrit

from distclust.families._blocks import FloatArray
from distclust.families._checks import Hyperparameter, check_vector
from distclust.validation import check_real

SCALE_GRID = (0.01, 0.03, 0.1, 0.3, 1.0)
_N_QUADRATURE = 256


def check_scale(value: object, where: str) -> object:
    """Return "auto", None or a positive float."""
    if value is None or (isinstance(value, str) and value == "auto"):
        return value
    return check_real(value, where, above=0.0)


def check_mean(value: object, where: str) -> Hyperparameter:
    """Return None, a float or a vector of floats."""
    if value is None:
        return None
    if np.ndim(value) == 0:  # type: ignore[arg-type]
        item = value.item() if isinstance(value, np.ndarray) else value
        return check_real(item, where)
    return check_vector(value, where)


def log_student(
    x: FloatArray, freedom: FloatArray, centre: FloatArray, spread: FloatArray
) -> FloatArray:
    """Return the log density of Student's t with location and scale."""
    half = 0.5 * (freedom + 1.0)
    squares = ((x - centre) / spread) ** 2 / freedom
    out: FloatArray = (
        gammaln(half)
        - gammaln(0.5 * freedom)
        - 0.5 * np.log(np.pi * freedom)
        - np.log(spread)
        - half * np.log1p(squares)
    )
    return out


def student_information(
    freedom: FloatArray, centre: FloatArray, spread: FloatArray, sizes: FloatArray
) -> FloatArray:
    """Return the mutual information of columns with membership in one of two groups.

    All arguments (2, D), sizes (2,). For each group the expectation of
    log p_k / p_mixture is an integral over the quantiles of p_k, done by Gauss-Legendre.
    """
    nodes, weights = np.polynomial.legendre.leggauss(_N_QUADRATURE)
    levels = 0.5 * (nodes + 1.0)[:, None]
    total = sizes.sum()
    shares = sizes / total if total > 0 else np.full(2, 0.5)
    information = np.zeros(freedom.shape[1])
    for k in range(2):
        if shares[k] == 0.0:
            continue
        x = centre[k] + spread[k] * stdtrit(freedom[k], levels)  # (nodes, D)
        own = log_student(x, freedom[k], centre[k], spread[k])
        other = log_student(x, freedom[1 - k], centre[1 - k], spread[1 - k])
        with np.errstate(divide="ignore"):
            log_shares = np.log([shares[k], shares[1 - k]])
        mixed = np.logaddexp(own + log_shares[0], other + log_shares[1])
        information += shares[k] * 0.5 * (weights @ (own - mixed))
    return np.maximum(0.0, information)
