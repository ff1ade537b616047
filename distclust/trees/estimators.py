"""The estimators users touch: exact trees, and trees of data of any size."""

from __future__ import annotations

from typing import Any

from distclust.families import Family
from distclust.trees.em import EM
from distclust.trees.evaluate import ConstantMixing, DirichletProcess, Mixing, RoseMixing
from distclust.trees.exact import ExactTreeEstimator
from distclust.trees.filters import FilterPredictive, FilterPrior
from distclust.trees.fits import Method
from distclust.trees.large import LargeTreeEstimator, check_sample_size
from distclust.trees.randomised import RandomisedBHC
from distclust.trees.splitting import Resolve, Settings
from distclust.validation import check_choice, check_integer, check_real


class BHC(ExactTreeEstimator):
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


class BayesianRoseTree(ExactTreeEstimator):
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


class RandomizedBHC(LargeTreeEstimator):
    r"""Bayesian hierarchical clustering of data of any size, by samples and filters.

    An exact tree of a sample divides all rows in one pass over them; fresh samples of the
    parts test whether each is one cluster, and divide it further if it is not. The rows are
    read block by block and never held. Every node of the returned tree has its statistics,
    odds and evidence from all rows below it.

    Parameters
    ----------
    sample_size
        Rows of a sample; "auto": 4,096, fewer from 8,192 columns on. The sample of a node is
        the rows in it with the smallest hash of (seed, path, row id).
    max_levels
        Largest depth of the tree; what lies deeper stays in one leaf. None: any.
    levels_per_pass
        Levels of a sample's tree that one pass takes. "auto": down to the tree's own cut, and
        unless rows are resolved the filter moves sampled rows too. 1 is the published
        algorithm, in which sampled rows stay where their tree has them.
    filter_prior
        What a row's way depends on beside its density: "size" of the subtrees (coherent with
        the predictive distribution), "pi" (as published) or "flat".
    filter_predictive
        Density of a subtree: the mixture over its "subtree" (as published), its root as a
        "single" cluster, or "auto": single where the sample is all but certain (more than
        0.999) that it is one cluster.
    resolve
        "clusters": the leaves of the tree are clusters, and its size does not grow with the
        rows. "rows": down to single rows; memory is then that of an exact tree.
    family, concentration
        As in :class:`BHC`.
    check_size
        Rows of the fresh sample that tests a leaf, if `sample_size` is not smaller.
    random_state
        Seed of the samples.

    Attributes
    ----------
    tree_, n_clusters_, log_evidence_, log_lower_bound_, family_, family_reason_, concentration_
        As in :class:`BHC`. If the rows are in a store, the rows of the tree are its leaves,
        each named by its first row.
    labels_
        Cluster of each row, numbered by first appearance; for a store a lazy array on the
        results store.
    n_passes_
        Passes that moved rows; two more look at the data and draw the first sample.
    filter_disagreement_
        Share of rows outside the first sample that "auto" sends elsewhere than "subtree".

    References
    ----------
    Heller, "Efficient Bayesian Methods for Clustering", PhD thesis, 2007, section 3.6.

    Examples
    --------
    >>> import numpy as np
    >>> from distclust import RandomizedBHC
    >>> rows = np.kron(np.eye(3, dtype=int), np.ones((200, 8), dtype=int))
    >>> model = RandomizedBHC(sample_size=100, random_state=0).fit(rows)
    >>> model.n_clusters_
    3
    """

    def __init__(
        self,
        sample_size: int | str = "auto",
        max_levels: int | None = None,
        levels_per_pass: int | str = "auto",
        filter_prior: str = "size",
        filter_predictive: str = "auto",
        resolve: str = "clusters",
        family: Family | str = "auto",
        concentration: float = 1.0,
        *,
        check_size: int = 256,
        random_state: Any = None,
    ) -> None:
        self.sample_size = sample_size
        self.max_levels = max_levels
        self.levels_per_pass = levels_per_pass
        self.filter_prior = filter_prior
        self.filter_predictive = filter_predictive
        self.resolve = resolve
        self.family = family
        self.concentration = concentration
        self.check_size = check_size
        self.random_state = random_state

    @property
    def filter_disagreement_(self) -> float:
        """Share of compared rows that the cheaper filter sends elsewhere; 0 if none were."""
        return float(self._facts["n_disagreeing"] / max(1, self._facts["n_compared"]))

    def _method(self, n_features: int, where: str) -> Method[Any]:
        levels = self.max_levels
        each = self.levels_per_pass
        settings = Settings(
            sample_size=check_sample_size(self.sample_size, n_features, where, _SAMPLED),
            check_size=check_integer(self.check_size, f"{where}: check_size", at_least=2),
            max_levels=None
            if levels is None
            else check_integer(levels, f"{where}: max_levels", at_least=1),
            levels_per_pass=None
            if each == "auto"
            else check_integer(each, f"{where}: levels_per_pass", at_least=1),
            prior=check_choice(self.filter_prior, f"{where}: filter_prior", _PRIORS),
            predictive=check_choice(
                self.filter_predictive, f"{where}: filter_predictive", _PREDICTIVES
            ),
            resolve=check_choice(self.resolve, f"{where}: resolve", _RESOLVES),
            mixing=DirichletProcess(self._concentration()),
            seed=self._seed(),
        )
        return RandomisedBHC(self.family, settings, where)


class EMBHC(LargeTreeEstimator):
    r"""Bayesian hierarchical clustering of data of any size, by seeds and EM sweeps.

    Every row goes to the seed it is likeliest under; sweeps over all rows then move rows to
    the cluster they are likeliest in, each row taken out of its own cluster first; an exact
    tree joins the clusters that still have rows. One pass over the rows a sweep.

    Parameters
    ----------
    sample_size
        Number of seeds; "auto": 2,048, fewer from 16,384 columns on. There should be several
        for every cluster that is looked for.
    n_sweeps
        Largest number of sweeps; they end earlier when the objective drops or no row moves.
    resolve
        "clusters": leaves of the tree are clusters. "rows": trees within them, too.
    family, concentration
        As in :class:`BHC`.
    random_state
        Seed of the samples.

    Attributes
    ----------
    tree_, labels_, n_clusters_, log_evidence_, log_lower_bound_, family_, n_passes_
        As in :class:`RandomizedBHC`.
    objective_path_
        The log joint probability of clustering and rows after each sweep; never decreases.

    Notes
    -----
    With as many seeds as rows this is :class:`BHC`. `predict` takes the cluster under which a
    row is likeliest; a fitted row was taken out of its own cluster first, so that its label
    may differ.

    References
    ----------
    Heller, "Efficient Bayesian Methods for Clustering", PhD thesis, 2007, section 3.6.

    Examples
    --------
    >>> import numpy as np
    >>> from distclust import EMBHC
    >>> rows = np.kron(np.eye(3, dtype=int), np.ones((200, 8), dtype=int))
    >>> model = EMBHC(sample_size=30, random_state=0).fit(rows)
    >>> model.n_clusters_
    3
    """

    def __init__(
        self,
        sample_size: int | str = "auto",
        n_sweeps: int = 5,
        resolve: str = "clusters",
        family: Family | str = "auto",
        concentration: float = 1.0,
        *,
        random_state: Any = None,
    ) -> None:
        self.sample_size = sample_size
        self.n_sweeps = n_sweeps
        self.resolve = resolve
        self.family = family
        self.concentration = concentration
        self.random_state = random_state

    def _method(self, n_features: int, where: str) -> Method[Any]:
        sample_size = check_sample_size(self.sample_size, n_features, where, _SEEDS)
        settings = Settings(
            sample_size=sample_size,
            check_size=sample_size,
            max_levels=None,
            levels_per_pass=None,
            prior="size",
            predictive="auto",
            resolve=check_choice(self.resolve, f"{where}: resolve", _RESOLVES),
            mixing=DirichletProcess(self._concentration()),
            seed=self._seed(),
        )
        return EM(self.family, check_integer(self.n_sweeps, f"{where}: n_sweeps"), settings, where)


_SAMPLED, _SEEDS = 4096, 2048
_PRIORS: tuple[FilterPrior, ...] = ("size", "pi", "flat")
_PREDICTIVES: tuple[FilterPredictive, ...] = ("auto", "subtree", "single")
_RESOLVES: tuple[Resolve, ...] = ("clusters", "rows")
