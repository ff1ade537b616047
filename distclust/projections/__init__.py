"""Few directions that carry the structure: PCA as a probabilistic model, kernel PCA."""

from distclust.projections.kernel_pca import KernelPCA
from distclust.projections.ppca import PPCA

__all__ = ["PPCA", "KernelPCA"]
