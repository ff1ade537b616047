"""What the two Gaussian families share: the scale's grid, Student densities, information."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from distclust.families._blocks import FloatArray
from distclust.families._checks import Hyperparameter, check_vector
from distclust.validation import check_real

SCALE_GRID = (0.01, 0.03, 0.1, 0.3, 1.0)
_N_NODES = 12
_REACH = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 24.0, 100.0, 600.0, 1e4, 1e6])
_CUTS = np.concatenate([-_REACH[::-1], [0.0], _REACH])


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

    All arguments (2, D), sizes (2,). The integral is cut at multiples of both spreads
    around both centres, so that a narrow group inside a wide one is seen, and each piece
    is done by Gauss-Legendre. (Quantiles of Student's t would be neater and are slow.)
    """
    x, weights = _nodes(centre, spread)  # (nodes, D)
    total = sizes.sum()
    shares = sizes / total if total > 0 else np.full(2, 0.5)
    logs = [log_student(x, freedom[k], centre[k], spread[k]) for k in range(2)]
    with np.errstate(divide="ignore"):
        log_shares = np.log(shares)
    mixed = np.logaddexp(logs[0] + log_shares[0], logs[1] + log_shares[1])
    information = np.zeros(freedom.shape[1])
    for k in range(2):
        if shares[k] > 0.0:
            density = shares[k] * np.exp(logs[k])
            information += np.sum(weights * density * (logs[k] - mixed), axis=0)
    return np.maximum(0.0, information)


def _nodes(centre: FloatArray, spread: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights (nodes, D) that resolve both densities of each column."""
    cuts = centre[:, None] + spread[:, None] * _CUTS[None, :, None]  # (2, cuts, D)
    cuts = np.sort(cuts.reshape(-1, centre.shape[1]), axis=0)
    middle, half = 0.5 * (cuts[1:] + cuts[:-1]), 0.5 * (cuts[1:] - cuts[:-1])
    nodes, weights = np.polynomial.legendre.leggauss(_N_NODES)
    x = middle[:, None] + half[:, None] * nodes[None, :, None]
    w = half[:, None] * weights[None, :, None]
    return x.reshape(-1, centre.shape[1]), w.reshape(-1, centre.shape[1])
