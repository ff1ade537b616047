"""A family of your own: two methods, then every estimator can use it.

Rows hold numbers of failures before a success (a geometric distribution); the prior of the
success probability is a Beta distribution, so the marginal likelihood is a ratio of Beta
functions.

    python examples/own_family.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betaln

from distclust import BHC
from distclust.families import Family, Hyperparameter, dense_rows, register_family


@register_family
@dataclass(frozen=True, eq=False, repr=False)
class Geometric(Family):
    """Failures before a success, independent columns."""

    name = "geometric"
    positive = ("alpha", "beta")

    alpha: Hyperparameter = 1.0
    beta: Hyperparameter = 1.0

    def statistics(self, block: np.ndarray) -> np.ndarray:
        """Number of rows and sum of failures, shape (n_rows, 1 + n_features)."""
        rows = dense_rows(block)
        return np.column_stack([np.ones(len(rows)), rows])

    def log_marginal(self, stats: np.ndarray) -> np.ndarray:
        """Sum over columns of log B(alpha + n, beta + failures) - log B(alpha, beta)."""
        n_rows, failures = stats[:, :1], stats[:, 1:]
        posterior = betaln(self.alpha + n_rows, self.beta + failures)
        return np.sum(posterior - betaln(self.alpha, self.beta), axis=1)


def main() -> None:
    """Find three kinds of machine by how often they fail."""
    rng = np.random.default_rng(0)
    chance = rng.choice([0.05, 0.2, 0.8], size=(3, 8))  # three kinds, eight parts
    failures = rng.geometric(chance[np.repeat([0, 1, 2], 10)]) - 1
    model = BHC(family=Geometric(), optimize=True).fit(failures)
    print(model.labels_)
    print(model.family_)
    print(f"log evidence {model.log_evidence_:.2f}, alpha {model.family_.alpha.round(2)}")


if __name__ == "__main__":
    main()
