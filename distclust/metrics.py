"""What users measure clusterings with.

:func:`dendrogram_purity` judges a hierarchy, the other two a flat clustering; those come
from scikit-learn unchanged.
"""

from __future__ import annotations

from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from distclust.trees.purity import dendrogram_purity

__all__ = ["adjusted_rand_score", "dendrogram_purity", "normalized_mutual_info_score"]
