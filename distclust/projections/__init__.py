"""Few directions that carry the structure: PCA as a probabilistic model, kernel PCA."""
