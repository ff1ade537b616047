"""Kernel PCA by the book: the whole matrix, centred explicitly, and a dense eigensolver.

Kernels are evaluated pair by pair from their definitions, EM is written out in both published
forms with explicit inverses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg


def kernel_matrix(
    rows: np.ndarray,
    others: np.ndarray | None = None,
    kernel: str = "rbf",
    gamma: float | None = None,
    degree: int = 3,
    coef0: float = 1.0,
) -> np.ndarray:
    """Return κ(x, y) of all rows with all others."""
    others = rows if others is None else others
    gamma = 1.0 / rows.shape[1] if gamma is None else gamma
    found = np.empty((len(rows), len(others)))
    for i, x in enumerate(rows):
        if kernel == "rbf":
            found[i] = np.exp(-gamma * ((x - others) ** 2).sum(axis=1))
        elif kernel == "poly":
            found[i] = (gamma * (x * others).sum(axis=1) + coef0) ** degree
        elif kernel == "linear":
            found[i] = (x * others).sum(axis=1)
        elif kernel == "cosine":
            lengths = np.linalg.norm(x) * np.linalg.norm(others, axis=1)
            dots = (x * others).sum(axis=1)
            found[i] = np.divide(dots, lengths, out=np.zeros_like(dots), where=lengths > 0)
        else:
            raise ValueError(kernel)
    return found


def centring(n: int) -> np.ndarray:
    """Return H = I − 11ᵀ/n."""
    return np.eye(n) - np.ones((n, n)) / n


def centred(matrix: np.ndarray) -> np.ndarray:
    """Return H K H."""
    h = centring(len(matrix))
    return h @ matrix @ h


def centred_new(new: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Return the kernel of new rows with training rows, centred in feature space (4.4)."""
    n = len(matrix)
    to_mean = np.ones((len(new), n)) / n
    ones = np.ones((n, n)) / n
    return new - to_mean @ matrix - new @ ones + to_mean @ matrix @ ones


@dataclass
class Fitted:
    """Eigenvalues, the largest first, eigenvectors in columns, and the centred matrix."""

    values: np.ndarray
    vectors: np.ndarray
    matrix: np.ndarray
    raw: np.ndarray

    def scores(self, q: int) -> np.ndarray:
        return self.vectors[:, :q] * np.sqrt(self.values[:q])

    def project(self, new: np.ndarray, q: int) -> np.ndarray:
        """Return Λ^{-1/2} Vᵀ k̂ of rows whose kernel with training rows is `new`."""
        return centred_new(new, self.raw) @ self.vectors[:, :q] / np.sqrt(self.values[:q])


def fit(raw: np.ndarray) -> Fitted:
    matrix = centred(raw)
    values, vectors = scipy.linalg.eigh((matrix + matrix.T) / 2.0)
    vectors = vectors[:, ::-1]
    largest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return Fitted(values[::-1], vectors, matrix, raw)


def true_residuals(matrix: np.ndarray, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return ‖K̂v − λv‖ of vectors in rows."""
    pairs = zip(values, vectors, strict=True)
    return np.array([np.linalg.norm(matrix @ v - value * v) for value, v in pairs])


def angle(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest principal angle between the spans of columns."""
    return float(scipy.linalg.subspace_angles(one, other).max())


def features(matrix: np.ndarray) -> np.ndarray:
    """Return coordinates of the rows in the span of their features, N − 1 of them."""
    found = fit(matrix)
    return found.scores(len(matrix) - 1)


# ---- EM ----------------------------------------------------------------------------------------


def em_step(
    matrix: np.ndarray, z: np.ndarray, c: np.ndarray, sigma2: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return Z and C after a step of Algorithm 5.1."""
    n, q = z.shape
    b = z @ np.linalg.inv(c)
    g = b.T @ matrix @ b + sigma2 * np.eye(q)
    z = matrix @ b @ np.linalg.inv(g)
    return z, n * sigma2 * np.linalg.inv(g) + z.T @ z


def em_step_growing(
    matrix: np.ndarray, z: np.ndarray, c: np.ndarray, sigma2: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return Z and C after a step in the form of Algorithm 5.2: no B, no G."""
    n = len(z)
    middle = np.linalg.inv(z.T @ matrix @ z + sigma2 * c @ c)
    new = matrix @ z @ middle @ c
    return new, n * sigma2 * c @ middle @ c + new.T @ new


def em_objective(matrix: np.ndarray, z: np.ndarray, c: np.ndarray, sigma2: float) -> float:
    """Return (5.24) at the B that Z and C give."""
    n, q = z.shape
    b = z @ np.linalg.inv(c)
    g = b.T @ matrix @ b + sigma2 * np.eye(q)
    fitted = np.trace(matrix @ b @ np.linalg.inv(g) @ b.T @ matrix)
    return float(-n / 2.0 * (np.log(np.linalg.det(g)) - fitted / (n * sigma2)))


# ---- problems ----------------------------------------------------------------------------------


def toy(seed: int = 0) -> np.ndarray:
    """Return the rows of figure 4.2: three Gaussians of 30 points, sd 0.1."""
    rng = np.random.default_rng(seed)
    centres = np.array([[-0.5, -0.2], [0.0, 0.6], [0.5, 0.0]])
    return np.repeat(centres, 30, axis=0) + 0.1 * rng.normal(size=(90, 2))


def planted(values: np.ndarray, n: int, seed: int = 0, offset: float = 1.0) -> np.ndarray:
    """Return n rows whose centred linear kernel has these eigenvalues, and zeros."""
    rng = np.random.default_rng(seed)
    d = len(values)
    block = rng.normal(size=(n, d))
    vectors = np.linalg.qr(block - block.mean(axis=0))[0]
    vectors = np.linalg.qr(vectors - vectors.mean(axis=0))[0]
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    return (vectors * np.sqrt(values)) @ turn.T + offset * rng.normal(size=d)


SPECTRA = {
    "gaps": 2.0 ** -np.arange(40.0),
    "no gaps": np.linspace(2.0, 1.0, 40),
    "slow": 1.0 / (1.0 + np.arange(40.0)) ** 0.25,
    "multiple": np.repeat([5.0, 3.0, 1.0, 0.1], 10),
    "low rank": np.r_[3.0, 2.0, 1.0],
    "one huge": np.r_[1e6, np.linspace(2.0, 1.0, 30)],
    "flat": np.ones(40),
}
