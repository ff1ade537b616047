"""The estimators users touch: :class:`BHC` and :class:`BayesianRoseTree`."""

from __future__ import annotations

from typing import Any

from distclust.families import Family
from distclust.trees.base import TreeEstimator
from distclust.trees.evaluate import ConstantMixing, DirichletProcess, Mixing, RoseMixing
from distclust.validation import check_choice, check_real


class BHC(TreeEstimator):
    r"""Bayesian hierarchical clustering.

    A greedy tree whose merges are Bayesian hypothesis tests: at each step the two subtrees
    whose rows most probably form one cluster are joined. The tree says where it should be
    cut, and bounds the evidence of a Dirichlet-process mixture.

    Parameters
    ----------
    family
        How rows of one cluster are distributed: "auto" (chosen from the data and reported in
        ``family_reason_``), a name such as "bernoulli", or one of
        :mod:`distclust.families`.
    concentration
        Concentration of the Dirichlet process, above zero; larger values prefer more
        clusters.
    optimize
        Learn the concentration and the family's hyperparameters by gradient. Steps that do
        not raise ``log_lower_bound_`` are not taken.
    n_restarts
        Further optimisations from perturbed hyperparameters.
    max_rebuilds
        Largest number of trees built while optimising.
    criterion
        Rank merges by "posterior_odds" (as published) or "likelihood_ratio".
    cut
        "posterior" cuts from the root down where a merge is improbable; "map" takes the most
        probable partition of the tree.
    threshold
        Probability at which the posterior cut accepts a merge.
    key_budget
        Bytes for keeping all pairs' keys. What does not fit is recomputed; the tree is the
        same.
    random_state
        Seed of the restarts.

    Attributes
    ----------
    tree_
        The hierarchy, a :class:`distclust.Tree`.
    labels_
        Cluster of each row, numbered by first appearance.
    n_clusters_, log_evidence_, log_lower_bound_
        Number of clusters; log p(D | T); bound on the evidence of the DP mixture.
    family_, family_reason_
        The family with its hyperparameters, and why it was chosen.
    concentration_
        The concentration used, learnt or given.
    objective_path_
        The objective after every accepted step of scale search and optimisation.

    References
    ----------
    Heller and Ghahramani, "Bayesian Hierarchical Clustering", ICML 2005. Heller, "Efficient
    Bayesian Methods for Clustering", PhD thesis, 2007, chapter 3.

    Examples
    --------
    >>> import numpy as np
    >>> from distclust import BHC
    >>> rows = [[1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1],
    ...         [0, 0, 0, 1, 1, 0], [0, 1, 0, 1, 1, 1]]
    >>> model = BHC().fit(np.array(rows))
    >>> model.labels_.tolist()
    [0, 0, 1, 1, 1]
    """

    def __init__(
        self,
        family: Family | str = "auto",
        concentration: float = 1.0,
        optimize: bool = False,
        *,
        n_restarts: int = 0,
        max_rebuilds: int = 20,
        criterion: str = "posterior_odds",
        cut: str = "posterior",
        threshold: float = 0.5,
        key_budget: float = 1e9,
        random_state: Any = None,
    ) -> None:
        self.family = family
        self.concentration = concentration
        self.optimize = optimize
        self.n_restarts = n_restarts
        self.max_rebuilds = max_rebuilds
        self.criterion = criterion
        self.cut = cut
        self.threshold = threshold
        self.key_budget = key_budget
        self.random_state = random_state

    def _mixing(self) -> Mixing:
        where = "BHC.fit: concentration"
        return DirichletProcess(check_real(self.concentration, where, above=0.0))


class BayesianRoseTree(TreeEstimator):
    r"""Bayesian rose trees: hierarchies whose nodes have as many children as they need.

    Merging two trees may join them under a new root, absorb one into the other, or collapse
    both into one node. A group without inner structure becomes one node with many children
    instead of an arbitrary cascade.

    Parameters
    ----------
    variant
        "brt": the more children, the likelier one cluster, π = 1 − (1 − γ)^(children − 1);
        "brt-gamma": π = γ; "brt-dp": Dirichlet-process mixing; "bhc-gamma": binary trees
        with π = γ.
    gamma
        Prior probability of a merge at a binary node, between 0 and 1.
    concentration
        Concentration of the Dirichlet process, for "brt-dp".
    optimize
        Learn γ or the concentration and the family's hyperparameters by gradient; only
        improvements of ``log_evidence_`` ("brt-dp": ``log_lower_bound_``) are kept.
    family, n_restarts, max_rebuilds, criterion, cut, threshold, key_budget, random_state
        As in :class:`BHC`; the criterion of the rose-tree chapter is the likelihood ratio.

    Attributes
    ----------
    tree_, labels_, n_clusters_, log_evidence_, family_, family_reason_, objective_path_
        As in :class:`BHC`.
    log_lower_bound_, concentration_
        For "brt-dp" only.
    gamma_
        The γ used, learnt or given; not for "brt-dp".

    References
    ----------
    Blundell, Teh and Heller, "Bayesian Rose Trees", UAI 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from distclust import BayesianRoseTree
    >>> rows = [[1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1],
    ...         [0, 0, 0, 1, 1, 0], [0, 1, 0, 1, 1, 1]]
    >>> model = BayesianRoseTree().fit(np.array(rows))
    >>> model.labels_.tolist()
    [0, 0, 1, 1, 1]
    """

    def __init__(
        self,
        variant: str = "brt",
        gamma: float = 0.5,
        family: Family | str = "auto",
        concentration: float = 1.0,
        optimize: bool = False,
        *,
        n_restarts: int = 0,
        max_rebuilds: int = 20,
        criterion: str = "likelihood_ratio",
        cut: str = "posterior",
        threshold: float = 0.5,
        key_budget: float = 1e9,
        random_state: Any = None,
    ) -> None:
        self.variant = variant
        self.gamma = gamma
        self.family = family
        self.concentration = concentration
        self.optimize = optimize
        self.n_restarts = n_restarts
        self.max_rebuilds = max_rebuilds
        self.criterion = criterion
        self.cut = cut
        self.threshold = threshold
        self.key_budget = key_budget
        self.random_state = random_state

    def _mixing(self) -> Mixing:
        where = "BayesianRoseTree.fit"
        variants = ("brt", "brt-gamma", "brt-dp", "bhc-gamma")
        variant = check_choice(self.variant, f"{where}: variant", variants)
        gamma = check_real(self.gamma, f"{where}: gamma", above=0.0, below=1.0)
        concentration = check_real(self.concentration, f"{where}: concentration", above=0.0)
        if variant == "brt":
            return RoseMixing(gamma)
        return DirichletProcess(concentration) if variant == "brt-dp" else ConstantMixing(gamma)

    def _many_children(self) -> bool:
        return self.variant != "bhc-gamma"
