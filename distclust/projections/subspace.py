"""Algebra of thin blocks: centring, orthonormal bases, Rayleigh-Ritz.

Blocks are tall and narrow, (N, k). All of it runs on one BLAS thread: the bits do not depend
on the machine's number of cores.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import scipy.linalg

Doubles = npt.NDArray[np.float64]

_WORST_CONDITION = 1e7  # beyond it a Cholesky factor of the Gram matrix loses half the digits


def centred(block: Doubles) -> Doubles:
    """Return H Z: the block without its column means (4.3)."""
    found: Doubles = block - block.mean(axis=0)
    return found


def orthonormal(block: Doubles, basis: Doubles | None = None) -> Doubles:
    """Return an orthonormal basis of a block's span that is orthogonal to `basis`.

    Directions that are lost in rounding are replaced by others: the number of columns stays.
    Columns of the result have mean 0 if those of the block and the basis have.
    """
    found = _without(_unit_columns(block), basis)
    found = _without(_factor(found), basis)
    return _factor(centred(found))


def _unit_columns(block: Doubles) -> Doubles:
    lengths = np.sqrt(np.einsum("ij,ij->j", block, block))
    return block / np.where(lengths > 0, lengths, 1.0)


def _without(block: Doubles, basis: Doubles | None) -> Doubles:
    if basis is None or basis.shape[1] == 0:
        return block
    return block - basis @ (basis.T @ block)


def _factor(block: Doubles) -> Doubles:
    """Return Q of a QR decomposition, by Cholesky where the block is well conditioned."""
    gram = block.T @ block
    try:
        factor = np.linalg.cholesky(gram).T
    except np.linalg.LinAlgError:
        factor = None
    if factor is not None:
        diagonal = np.abs(factor.diagonal())
        if diagonal.min() * _WORST_CONDITION > diagonal.max():
            half = scipy.linalg.solve_triangular(factor.T, block.T, lower=True).T
            again = np.linalg.cholesky(half.T @ half).T
            return np.ascontiguousarray(
                scipy.linalg.solve_triangular(again.T, half.T, lower=True).T
            )
    return np.linalg.qr(block)[0]


def ritz(projected: Doubles) -> tuple[Doubles, Doubles]:
    """Return Ritz values, the largest first, and their vectors in the basis."""
    values, vectors = np.linalg.eigh((projected + projected.T) / 2.0)
    return values[::-1].copy(), np.ascontiguousarray(vectors[:, ::-1])


def with_signs(vectors: Doubles) -> Doubles:
    """Return vectors whose entry of largest modulus is positive, the first one on ties."""
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return vectors * np.where(signs == 0, 1.0, signs)
