"""Dirichlet-process mixtures as an estimator: several chains, one partition, its uncertainty."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from distclust.engine import (
    Vault,
    as_matrix,
    check_features,
    fingerprint_of,
    held_rows,
    local_threads,
    map_blocks,
    opened,
    passing_vault,
)
from distclust.engine.held import RowArray
from distclust.errors import InputError
from distclust.families import Family
from distclust.mixtures.blocked import BlockedSampler
from distclust.mixtures.chain_estimator import ChainEstimator
from distclust.mixtures.chains import Sampler
from distclust.mixtures.concentration import (
    Concentration,
    EscobarWest,
    FittedGamma,
    FixedConcentration,
    GammaPrior,
)
from distclust.mixtures.point_estimates import best_draw, canonical
from distclust.mixtures.similarity import MAX_CELLS, coassignment, confidence
from distclust.mixtures.starts import STARTS
from distclust.mixtures.urn import UrnSampler
from distclust.seeding import Keys, check_seed, row_hashes, row_keys
from distclust.store import Matrix
from distclust.store.objects import checksum
from distclust.trees.data import check_row_weights, first_look, resolve_family
from distclust.trees.evaluate import DirichletProcess
from distclust.trees.optimise import LearningPlan, fit_tree
from distclust.trees.prediction import cluster_log_proba, log_density
from distclust.trees.search import SearchPlan
from distclust.validation import check_choice, check_flag, check_integer, check_real

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

SAMPLERS = ("collapsed", "blocked-dma", "blocked-tdp")

_SCALE_ROWS = 512  # that tell the scale of a prior
_COMPONENTS = 50  # of the blocked samplers, if nothing is said


class DPMixture(ChainEstimator, ClusterMixin, BaseEstimator):
    r"""Mixture of as many clusters as the rows call for, by Gibbs sampling.

    Clusters are drawn from a Dirichlet process: row i joins cluster k with probability
    proportional to :math:`N_k\, p(x_i \mid D_k)`, or opens one of its own with
    :math:`\alpha\, p(x_i)`. Several chains start from different partitions, run on the
    workers of a cluster or the threads of this process, and stop when they agree.

    Parameters
    ----------
    family
        How rows of one cluster are distributed: "auto" (chosen from the data and reported in
        ``family_reason_``), a name such as "bernoulli", or one of
        :mod:`distclust.families`.
    concentration
        "gamma": drawn with the partition, exactly (Escobar and West). "gamma-mh": drawn by
        Metropolis-Hastings with a fitted Gamma proposal. A number: given. Blocked samplers
        have draws of their own, the same for both words.
    sampler
        "collapsed": one row after another, parameters integrated out; mixes best.
        "blocked-dma": finite Dirichlet mixture with many components, "blocked-tdp":
        truncated stick-breaking; all rows at once, given parameters.
    n_chains
        Chains. Two and more tell whether they agree.
    max_sweeps
        Sweeps of each chain at most. The first half of what was done is thrown away.
    init
        Partition that a chain starts from: "mixed" (chains start differently), "single",
        "singletons", "groups", "kmeans" or "joined".
    split_merge
        Whether whole clusters are split and merged, too; for "collapsed".
    stop
        "rhat": stop as soon as chains agree: R-hat at most `rhat` and at least
        `min_samples` effective samples of everything that is traced, looked at every 100
        sweeps. None: do all sweeps.
    random_state
        Seed. A chain depends on it and on its number only.
    concentration_prior
        Shape and rate of the Gamma prior of the concentration.
    truncation
        Components of the blocked samplers at most; left out: 50, or the number of rows.
    rhat, min_samples
        See `stop`.

    Attributes
    ----------
    labels_
        Cluster of each row: the draw with the least expected variation of information over
        all draws of all chains, numbered by first appearance.
    n_clusters_
        Number of clusters of `labels_`.
    expected_loss_
        Expected variation of information, in bits, between `labels_` and a draw.
    confidence_
        For each row the mean probability of sharing a cluster with the other rows of its
        own.
    family_, family_reason_
        The family with its hyperparameters, and why it was chosen.
    concentration_
        Mean of the concentration over the draws.
    traces_
        Log joint, number of clusters and concentration of every sweep by name, each of shape
        (n_chains, n_sweeps).
    draws_
        Partitions that were kept, without those of the first half, shape (n_chains, n_draws,
        n_rows).
    diagnostics_
        R-hat and effective numbers of samples by name.
    agreed_
        Whether the chains agreed, as `stop` asks for.
    n_sweeps_
        Sweeps that each chain did.

    Notes
    -----
    Rows are held in memory, on each worker once. The result does not depend on workers,
    threads or restarts, to the bit.

    References
    ----------
    Neal, "Markov chain sampling methods for Dirichlet process mixture models", 2000,
    algorithm 3. Wang, "Nonparametric Bayesian models for unsupervised learning", PhD thesis,
    2011, chapters 2 and 4. Yu, "Clustering and projection", PhD thesis, chapter 3.

    Examples
    --------
    >>> import numpy as np
    >>> from distclust import DPMixture
    >>> rng = np.random.default_rng(0)
    >>> rows = np.repeat([[-3.0, 0.0], [0.0, 3.0], [3.0, 0.0]], 30, axis=0)
    >>> rows += 0.4 * rng.normal(size=rows.shape)
    >>> model = DPMixture(n_chains=2, max_sweeps=200, stop=None, random_state=0).fit(rows)
    >>> np.bincount(model.labels_).tolist()
    [30, 30, 30]
    """

    labels_: Labels
    family_: Family
    _stats: Floats
    _seed: int

    def __init__(
        self,
        family: Family | str = "auto",
        concentration: float | str = "gamma",
        sampler: str = "collapsed",
        n_chains: int = 4,
        max_sweeps: int = 1000,
        init: str = "mixed",
        split_merge: bool = True,
        stop: str | None = "rhat",
        random_state: Any = None,
        *,
        concentration_prior: Sequence[float] = (1.0, 1.0),
        truncation: int | None = None,
        rhat: float = 1.01,
        min_samples: float = 400.0,
    ) -> None:
        self.family = family
        self.concentration = concentration
        self.sampler = sampler
        self.n_chains = n_chains
        self.max_sweeps = max_sweeps
        self.init = init
        self.split_merge = split_merge
        self.stop = stop
        self.random_state = random_state
        self.concentration_prior = concentration_prior
        self.truncation = truncation
        self.rhat = rhat
        self.min_samples = min_samples

    # ---- fitting --------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        row_weights: npt.ArrayLike | None = None,
        results: str | os.PathLike[str] | None = None,
        *,
        fresh: bool = False,
    ) -> Self:
        """Sample partitions of the rows of `X`.

        Parameters
        ----------
        X
            Rows and features: an array, a sparse matrix, a data frame, a Dask array, or the
            path or URL of a store.
        y
            Ignored.
        row_weights
            How many equal rows each row stands for, shape (n_rows,); the copies are never
            separated. By default one.
        results
            Path or URL of a results store. State is saved there every ten seconds; the same
            fit begun again goes on, and the model is published as a version.
        fresh
            Discard an unfinished fit instead of going on with it.
        """
        where = f"{type(self).__name__}.fit"
        self._check_parameters(where)
        X = opened(X, where)
        check_features(self, X, where, reset=True)
        matrix = as_matrix(X, where=where)
        with matrix.held():
            self._prepare(matrix, row_weights, where)
        if results is None:
            with passing_vault(type(self).__name__, self._fingerprint) as vault:
                self._fit_rows(vault)
        else:
            from distclust.mixtures.persistence import fit_mixture_beside

            fit_mixture_beside(self, matrix, results, fresh=fresh, where=where)
        self._forget_rows()
        self._warn_unless_agreed(stacklevel=2)
        return self

    def fit_predict(self, X: Any, y: Any = None, **fit_params: Any) -> Labels:
        """Fit, and return the cluster of each row, shape (n_rows,)."""
        return self.fit(X, y, **fit_params).labels_

    def _prepare(self, matrix: Matrix, row_weights: npt.ArrayLike | None, where: str) -> None:
        """Look at the data, choose the family, and hold the rows."""
        n_rows, n_features = matrix.shape
        if n_rows < 2:
            expected, got = "at least 2 rows", f"n_samples = {n_rows}"
            raise InputError(where, expected, got, "Pass more rows.")
        weights = check_row_weights(row_weights, n_rows, where)
        look = first_look(matrix)
        family, reason = resolve_family(self.family, matrix, look, where, weights)
        self._check_memory(matrix, int(look.profile.n_nonzero.sum()), where)
        self.n_features_in_ = n_features
        self.family_, self.family_reason_ = family, reason
        self._columns, self._row_weights = matrix.columns, weights
        self._seed = check_seed(self.random_state, f"{where}: random_state")
        self._rows: RowArray = held_rows(matrix)
        self.family_ = _with_scale(family, self._rows, row_keys(matrix.row_ids))

    def _fit_rows(self, vault: Vault | None) -> None:
        """Run the chains on rows that are held, and keep what they say."""
        self._run_chains(self._sampler(), "DP mixture", vault)
        self._keep()

    def _sampler(self) -> Sampler[Any]:
        concentration = self._concentration()
        weights = self._row_weights
        if self.sampler == "collapsed":
            return UrnSampler(
                self._rows, self.family_, concentration, self.init, self.split_merge, weights
            )
        return BlockedSampler(
            self._rows,
            self.family_,
            concentration,
            min(self._rows.shape[0], self.truncation or _COMPONENTS),
            "dma" if self.sampler == "blocked-dma" else "tdp",
            self.init,
            weights,
        )

    def _keep(self) -> None:
        """Set what follows from the draws."""
        best, losses = best_draw(self._pooled_draws, "vi", self._row_weights)
        self.expected_loss_ = float(losses[best])
        self.labels_ = canonical(self._pooled_draws[best]).astype(np.int64)
        self.n_clusters_ = int(self.labels_.max()) + 1
        self.confidence_ = confidence(self.labels_, self._pooled_draws, self._row_weights)
        self._stats = self.family_.accumulate(
            self._rows, self.labels_, self.n_clusters_, self._row_weights
        )

    def _forget_rows(self) -> None:
        self.__dict__.pop("_rows", None)

    # ---- what the partition says of rows ---------------------------------------------------

    def predict(self, X: Any) -> Labels:
        """Return the most probable cluster of each row, shape (n_rows,).

        From the rows of `labels_`; the lowest label on ties.
        """
        parts = [part.argmax(axis=1) for part in self._cluster_log_proba(X, "predict")]
        return np.concatenate(parts).astype(np.int64)

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each cluster, shape (n_rows, n_clusters_).

        Proportional to the cluster's number of rows times its predictive density.
        """
        proba: Floats = np.exp(np.concatenate(list(self._cluster_log_proba(X, "predict_proba"))))
        return proba

    def score_samples(self, X: Any) -> Floats:
        """Return the log predictive density of each row, shape (n_rows,).

        The mixture of the clusters of `labels_`, by their numbers of rows, and of a new one.
        """
        matrix = self._new_rows(X, "score_samples")
        stats = np.concatenate([self._stats, np.zeros((1, self._stats.shape[1]))])
        sizes = np.append(self._stats[:, 0], self.concentration_)
        log_weights = np.log(sizes / sizes.sum())
        parts = map_blocks(log_density, matrix, self.family_, stats, log_weights, stage="scoring")
        return np.concatenate(list(parts))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log predictive density of the rows."""
        return float(self.score_samples(X).mean())

    def coassignment(
        self, rows: npt.ArrayLike | None, *, max_cells: int | None = MAX_CELLS
    ) -> Floats:
        """Return how often rows shared a cluster, over all draws, shape (m, m).

        Parameters
        ----------
        rows
            Positions of m rows of the fit; None for all.
        max_cells
            A matrix of more cells is refused; None for no limit.
        """
        check_is_fitted(self, "labels_")
        return coassignment(self._pooled_draws, rows, max_cells=max_cells)

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file, complete or not at all.

        Read it back with :func:`distclust.load`. Draws are part of it, rows are not.
        """
        check_is_fitted(self, "labels_")
        from distclust.mixtures.persistence import save_mixture

        save_mixture(self, path)

    def _cluster_log_proba(self, X: Any, method: str) -> Iterable[Floats]:
        matrix = self._new_rows(X, method)
        return map_blocks(
            cluster_log_proba,
            matrix,
            self.family_,
            self._stats,
            np.log(self._stats[:, 0]),
            stage="predicting",
        )

    def _new_rows(self, X: Any, method: str) -> Matrix:
        check_is_fitted(self, "labels_")
        where = f"{type(self).__name__}.{method}"
        X = opened(X, where)
        check_features(self, X, where, reset=False)
        matrix = as_matrix(X, columns=self._columns, where=where)
        self.family_.check(first_look(matrix).profile, matrix.columns, where)
        return matrix

    # ---- small parts ----------------------------------------------------------------------

    def _concentration(self) -> Concentration:
        prior = GammaPrior(*self.concentration_prior)
        if self.concentration == "gamma":
            return EscobarWest(prior)
        if self.concentration == "gamma-mh":
            return FittedGamma(prior)
        return FixedConcentration(float(self.concentration))

    def _fingerprint(self) -> str:
        """Return what a fit depends on, as a checksum."""
        settings = {name: repr(value) for name, value in self.get_params(deep=False).items()}
        settings |= {"random_state": repr(self._seed), "family": repr(self.family_.to_dict())}
        weights = b"" if self._row_weights is None else self._row_weights
        prints = fingerprint_of(self._rows).encode()
        return checksum(prints, repr(settings).encode(), weights).hex()

    def _check_memory(self, matrix: Matrix, n_nonzero: int, where: str) -> None:
        """Refuse rows that a process could not hold, before they are read."""
        n_rows, n_features = matrix.shape
        held = 8.0 * (2 * n_nonzero if matrix.is_sparse else n_rows * n_features)
        hint = "Fit a sample and predict the rest, or use RandomizedBHC, which reads blocks."
        self._check_room(held, n_rows, where, hint)

    def _check_parameters(self, where: str) -> None:
        check_choice(self.sampler, f"{where}: sampler", SAMPLERS)
        check_choice(self.init, f"{where}: init", STARTS)
        check_flag(self.split_merge, f"{where}: split_merge")
        self._check_chain_parameters(where)
        if self.truncation is not None:
            check_integer(self.truncation, f"{where}: truncation", at_least=2)
        if isinstance(self.concentration, str):
            check_choice(self.concentration, f"{where}: concentration", ("gamma", "gamma-mh"))
            if self.concentration == "gamma-mh" and self.sampler != "collapsed":
                raise InputError(
                    f"{where}: concentration",
                    f"'gamma' or a number with sampler={self.sampler!r}",
                    "'gamma-mh'",
                    "Blocked samplers have draws of their own; 'gamma' is exact.",
                )
        else:
            check_real(self.concentration, f"{where}: concentration", above=0.0)
        if len(tuple(self.concentration_prior)) != 2:
            hint = "For instance (1.0, 1.0)."
            got = repr(self.concentration_prior)
            raise InputError(f"{where}: concentration_prior", "shape and rate", got, hint)
        GammaPrior(*self.concentration_prior)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # With "auto" some sparse data are refused (real numbers), so the tag cannot promise.
        tags.input_tags.sparse = not isinstance(self.family, str) or self.family != "auto"
        tags.input_tags.allow_nan = True
        return tags


def _with_scale(family: Family, rows: RowArray, keys: Keys) -> Family:
    """Choose the scale that a prior leaves open by trees of a sample, as for `BHC`.

    The sample follows from the ids of the rows, so that no seed has a part in the prior.
    """
    if not family.scale_grid:
        return family
    sample = np.sort(np.argsort(row_hashes(0, keys, "scale"), kind="stable")[:_SCALE_ROWS])
    stats = family.accumulate(rows[sample], np.arange(len(sample)), len(sample))
    search = SearchPlan(mixing=DirichletProcess(1.0), threads=local_threads())
    return fit_tree(family, stats, search, LearningPlan()).family
