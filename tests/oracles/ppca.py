"""Probabilistic PCA by the book: eigenvectors, full covariances, a loop over rows.

Posteriors come from conditioning the joint Gaussian of x and z, densities from scipy; nothing
here uses ``M = WᵀW + σ²I``, on which the package stands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import multivariate_normal


@dataclass
class Gaussian:
    """Mean (d,), loadings (d, q) and noise of a model."""

    mean: np.ndarray
    loadings: np.ndarray
    noise: float

    @property
    def covariance(self) -> np.ndarray:
        return self.loadings @ self.loadings.T + self.noise * np.eye(len(self.mean))


def closed_form(rows: np.ndarray, q: int, noise: float | None = None) -> Gaussian:
    """Return the most likely model of complete rows (5.3-5.4), also at a given noise."""
    mean = rows.mean(axis=0)
    values, vectors = np.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))
    values, vectors = values[::-1], vectors[:, ::-1]
    noise = float(values[q:].mean()) if noise is None else noise
    lengths = np.sqrt(np.maximum(values[:q] - noise, 0.0))
    return Gaussian(mean, vectors[:, :q] * lengths, noise)


def log_densities(rows: np.ndarray, model: Gaussian) -> np.ndarray:
    """Return ln p of the values that each row has."""
    found = []
    for row in rows:
        seen = ~np.isnan(row)
        if seen.any():
            covariance = model.covariance[np.ix_(seen, seen)]
            normal = multivariate_normal(model.mean[seen], covariance)
            found.append(float(normal.logpdf(row[seen])))
        else:
            found.append(0.0)
    return np.array(found)


def posterior(row: np.ndarray, model: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of z given the values that a row has."""
    seen = ~np.isnan(row)
    loadings = model.loadings[seen]
    gain = loadings.T @ np.linalg.inv(model.covariance[np.ix_(seen, seen)])
    mean = gain @ (row[seen] - model.mean[seen])
    return mean, np.eye(loadings.shape[1]) - gain @ loadings


def filled(row: np.ndarray, model: Gaussian) -> np.ndarray:
    """Return a row whose missing values are their conditional means."""
    seen = ~np.isnan(row)
    known = model.covariance[np.ix_(seen, seen)]
    across = model.covariance[np.ix_(~seen, seen)]
    out = row.copy()
    gap = np.linalg.solve(known, row[seen] - model.mean[seen])
    out[~seen] = model.mean[~seen] + across @ gap
    return out


def plain_step(rows: np.ndarray, model: Gaussian) -> Gaussian:
    """Return the next model of EM as printed (complete rows, mean kept)."""
    centred = rows - model.mean
    q = model.loadings.shape[1]
    moments, cross, total = np.zeros((q, q)), np.zeros(model.loadings.shape), 0.0
    found = [posterior(row, model) for row in rows]
    for x, (z, spread) in zip(centred, found, strict=True):
        moments += spread + np.outer(z, z)
        cross += np.outer(x, z)
    loadings = cross @ np.linalg.inv(moments)
    for x, (z, spread) in zip(centred, found, strict=True):
        total += float(np.sum((x - loadings @ z) ** 2) + np.trace(loadings @ spread @ loadings.T))
    return Gaussian(model.mean, loadings, total / rows.size)


def plain_step_with_gaps(rows: np.ndarray, model: Gaussian) -> Gaussian:
    """Return the next model of EM with missing values, mean learned, column by column."""
    q = model.loadings.shape[1]
    found = [posterior(row, model) for row in rows]
    mean, loadings = model.mean.copy(), model.loadings.copy()
    total, n_values = 0.0, 0
    for j in range(rows.shape[1]):
        seen = np.flatnonzero(~np.isnan(rows[:, j]))
        left, right = np.zeros((q + 1, q + 1)), np.zeros(q + 1)
        for i in seen:
            z, spread = found[i]
            with_one = np.append(z, 1.0)
            left += np.outer(with_one, with_one)
            left[:q, :q] += spread
            right += rows[i, j] * with_one
        both = np.linalg.solve(left, right)
        loadings[j], mean[j] = both[:q], both[q]
        for i in seen:
            z, spread = found[i]
            total += float((rows[i, j] - mean[j] - loadings[j] @ z) ** 2)
            total += float(loadings[j] @ spread @ loadings[j])
        n_values += len(seen)
    return Gaussian(mean, loadings, total / n_values)
