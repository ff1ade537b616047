"""Clustering ensembles as an estimator: several clusterings, one consensus, its uncertainty."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from distclust.engine import Vault, as_matrix, check_features, opened, passing_vault
from distclust.ensembles import bayesian_ensemble as bce
from distclust.ensembles import multinomial_mixture as mm
from distclust.ensembles.bases import Base, BaseRecord, label_rows, make_bases, plan_bases
from distclust.ensembles.consensus import (
    CONSENSUS,
    METHODS,
    ConsensusModel,
    Items,
    choose_partition,
    log_joint_of_draws,
)
from distclust.ensembles.dirichlet_ensemble import DirichletEnsembleSampler, betas_of
from distclust.ensembles.label_reading import as_labels
from distclust.ensembles.labels import MISSING, LabelMatrix
from distclust.errors import ConvergenceWarning, InputError
from distclust.mixtures.chain_estimator import ChainEstimator
from distclust.mixtures.chains import Traces, second_half
from distclust.mixtures.concentration import concentration_of
from distclust.mixtures.point_estimates import canonical
from distclust.mixtures.similarity import (
    MAX_CELLS,
    check_rows,
    coassignment,
    coassociation,
    confidence,
    neighbour_graph,
)
from distclust.seeding import check_seed
from distclust.store import Column, Matrix
from distclust.store.objects import checksum
from distclust.validation import check_choice, check_flag, check_integer

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

AUTO = "auto"

_PREDICTED_ROWS = 1 << 16
_TOO_MANY = "Move equal rows together (collapse=True, an approximation), or take method='bce'."


class ClusterEnsemble(ChainEstimator, ClusterMixin, BaseEstimator):
    r"""What several clusterings agree on.

    Base clusterings label the rows; a model of the labels finds the consensus. The rows
    themselves are not looked at again, and labels are a few bytes a row. Labels of any other
    tool can be used as well, with gaps: see `fit_labels`.

    Parameters
    ----------
    method
        "dpce": a Dirichlet-process mixture of products of multinomials, which finds the number
        of consensus clusters, sampled by several chains. "bce": Bayesian cluster ensembles,
        in which rows belong to several clusters in part, by variational Bayes. "mm": a finite
        mixture of multinomials, by EM.
    n_clusters
        Clusters of the consensus, for "bce" and "mm". "dpce" finds them; a number given there
        only tells how many clusters bases have at least.
    n_bases
        Base clusterings that `fit` makes.
    bases
        "kmeans", "dp" (chains of Dirichlet-process mixtures) or "subspace" (k-means on a
        random half of the columns each), or a list of names and
        :class:`~distclust.ensembles.BaseRecipe`, one a base.
    base_clusters
        Clusters of k-means bases: a number, or a list taken in turn. Left out: spread between
        `n_clusters` and three times as many, or where that is unknown between a quarter of the
        square root of the number of rows and the root, 32 at most.
    beta
        "dpce": total pseudo-count of each base, one number or one a base, or "labels" for one
        a label. Bases that are cut from the same features are nested rather than independent,
        and a small `beta` lets them split the consensus ever more, the more rows there are.
        "auto": 1 for labels that are given; for bases that `fit` makes, a thirtieth of the
        number of rows, at least 100 or, of few rows, a third of them.
    concentration
        "dpce": "gamma" to draw it, or a number.
    n_chains, max_sweeps
        "dpce": chains, and sweeps of each at most. The first half is thrown away.
    consensus
        "dpce": the partition with the least expected variation of information ("vi") or
        Binder's loss ("binder") over all draws, or the draw with the highest log joint
        ("best").
    collapse
        "dpce": move equal label rows together. Much faster for many rows, and an
        approximation: equal rows are never apart. "bce" and "mm" always do so: there it is
        exact.
    n_init
        "bce" and "mm": starts, of which the best is kept.
    stop
        "dpce": "rhat" to stop as soon as chains agree (`rhat`, `min_samples`), None to do all
        sweeps.
    random_state
        Seed. A base depends on it and its number only, and so does a chain.
    rhat, min_samples
        "dpce": largest R-hat and least effective samples of everything that is traced.

    Attributes
    ----------
    labels_
        Cluster of each row, numbered by first appearance; -1 for rows without any label.
    n_clusters_
        Number of clusters.
    confidence_
        How surely each row lies in its cluster, 0 for rows without labels. "dpce": mean
        probability of sharing a cluster with the other rows of its own. "bce": membership,
        "mm": probability.
    bases_
        How each base was made: algorithm, clusters, seed, seconds. Empty after `fit_labels`.
    base_labels_
        Labels of the bases as whole numbers, shape (n_rows, n_bases), -1 where missing.
    expected_loss_
        "dpce": expected loss of the consensus over all draws: variation of information in
        bits, or Binder's.
    log_joint_, log_bound_, log_likelihood_
        "dpce": mean log joint of the draws. "bce": evidence lower bound. "mm":
        log-likelihood.
    traces_
        "dpce": log joint, number of clusters and concentration of every sweep, each of shape
        (n_chains, n_sweeps). Others: the bound or log-likelihood of every iteration.
    draws_
        "dpce": partitions that were kept, shape (n_chains, n_draws, n_items), where items are
        rows, or distinct label rows with ``collapse=True``.
    diagnostics_
        "dpce": R-hat and effective samples by name. Others: whether the fit converged, and
        which start was the best.
    agreed_
        "dpce": whether chains agreed, as `stop` asks for. Others: whether the fit converged.

    Notes
    -----
    Rows are read in blocks, and k-means is fitted to a sample of many rows. The result does not
    depend on workers, threads or restarts, to the bit.

    References
    ----------
    Wang, "Nonparametric Bayesian models for unsupervised learning", PhD thesis, 2011, chapter
    4. Wang, Shan and Banerjee, "Bayesian cluster ensembles", 2011. Topchy, Jain and Punch, "A
    mixture model for clustering ensembles", 2004.

    Examples
    --------
    >>> import numpy as np
    >>> from distclust.ensembles import ClusterEnsemble
    >>> truth = np.repeat([0, 1], 50)
    >>> rng = np.random.default_rng(0)
    >>> labels = np.column_stack([2 * truth + rng.integers(0, 2, 100) for _ in range(5)])
    >>> model = ClusterEnsemble(max_sweeps=100, n_chains=2, stop=None, random_state=0)
    >>> np.bincount(model.fit_labels(labels).labels_).tolist()
    [50, 50]
    """

    labels_: Labels
    confidence_: Floats
    bases_: tuple[BaseRecord, ...]
    _columns: tuple[Column, ...]
    _bases: tuple[Base, ...]
    _labels: LabelMatrix
    _items: Items
    _model: ConsensusModel

    def __init__(
        self,
        method: str = "dpce",
        n_clusters: int | None = None,
        n_bases: int = 10,
        bases: Any = "kmeans",
        base_clusters: Any = None,
        beta: Any = "auto",
        concentration: float | str = "gamma",
        n_chains: int = 4,
        max_sweeps: int = 1000,
        consensus: str = "vi",
        collapse: bool = False,
        n_init: int = 5,
        stop: str | None = "rhat",
        random_state: Any = None,
        *,
        rhat: float = 1.01,
        min_samples: float = 400.0,
    ) -> None:
        self.method = method
        self.n_clusters = n_clusters
        self.n_bases = n_bases
        self.bases = bases
        self.base_clusters = base_clusters
        self.beta = beta
        self.concentration = concentration
        self.n_chains = n_chains
        self.max_sweeps = max_sweeps
        self.consensus = consensus
        self.collapse = collapse
        self.n_init = n_init
        self.stop = stop
        self.random_state = random_state
        self.rhat = rhat
        self.min_samples = min_samples

    # ---- fitting --------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any = None,
        results: str | os.PathLike[str] | None = None,
        *,
        fresh: bool = False,
    ) -> Self:
        """Make base clusterings of the rows of `X`, and find their consensus.

        Parameters
        ----------
        X
            Rows and features: an array, a sparse matrix, a data frame, a Dask array, or the
            path or URL of a store.
        y
            Ignored.
        results
            Path or URL of a results store. Chains are saved there every ten seconds; the same
            fit begun again goes on, and the model is published as a version.
        fresh
            Discard an unfinished fit instead of going on with it.
        """
        where = f"{type(self).__name__}.fit"
        self._check_parameters(where)
        X = opened(X, where)
        check_features(self, X, where, reset=True)
        matrix = as_matrix(X, where=where)
        if matrix.shape[0] < 2:
            got = f"n_samples = {matrix.shape[0]}"
            raise InputError(where, "at least 2 rows", got, "Pass more rows.")
        recipes = plan_bases(
            self.bases, self.n_bases, self.base_clusters, self.n_clusters, matrix.shape[0], where
        )
        if not self.collapse:  # how many distinct rows there are is seen later
            self._check_memory(matrix.shape[0], len(recipes), where)
        self.n_features_in_, self._columns = matrix.shape[1], matrix.columns

        def label() -> LabelMatrix:
            with matrix.held():
                made = make_bases(matrix, recipes, self._seed, where)
            self._bases, self.bases_ = made.bases, made.records
            made.labels.check(where)
            return made.labels

        self._fit_beside(label, _fingerprint_of(matrix), results, fresh, where)
        return self

    def fit_labels(
        self,
        Y: Any,
        results: str | os.PathLike[str] | None = None,
        *,
        fresh: bool = False,
    ) -> Self:
        """Find the consensus of labels that other clusterings gave.

        Parameters
        ----------
        Y
            Labels, shape (n_rows, n_bases): an array of whole numbers, of floats with NaN or of
            text, a pandas table, a Dask array, the path or URL of a store; or a list of label
            vectors, one a base. A label is missing where it is -1, NaN or None. Rows without
            any label are left out and get the cluster -1.
        results, fresh
            See `fit`.
        """
        where = f"{type(self).__name__}.fit_labels"
        self._check_parameters(where)
        labels = as_labels(Y, where=where)
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
        self._columns, self._bases, self.bases_ = (), (), ()
        self._fit_beside(lambda: labels, _fingerprint_of_labels(labels), results, fresh, where)
        return self

    def fit_predict(self, X: Any, y: Any = None, **fit_params: Any) -> Labels:
        """Fit, and return the cluster of each row, shape (n_rows,)."""
        return self.fit(X, y, **fit_params).labels_

    def _fit_beside(
        self,
        label: Callable[[], LabelMatrix],
        fingerprint: str,
        results: str | os.PathLike[str] | None,
        fresh: bool,
        where: str,
    ) -> None:
        """Fit with or without a results store; labels are made when the seed is known."""
        self._seed = check_seed(self.random_state, f"{where}: random_state")
        if results is None:
            labels = label()
            with passing_vault(type(self).__name__, lambda: fingerprint) as vault:
                self._fit_items(labels, vault, where)
        else:
            from distclust.ensembles.stored_fits import fit_ensemble_beside

            def fit(vault: Vault) -> None:
                self._fit_items(label(), vault, where)

            fit_ensemble_beside(self, fit, fingerprint, results, fresh=fresh, where=where)
        if self.method == "dpce":
            self._warn_unless_agreed(stacklevel=3)
        elif not self.agreed_:
            text = f"The best of {self.n_init} starts did not converge."
            warnings.warn(text, ConvergenceWarning, stacklevel=3)

    def _fit_items(self, labels: LabelMatrix, vault: Vault | None, where: str) -> None:
        self._forget()
        self._labels, self.base_labels_ = labels, labels.codes
        collapse = self.method != "dpce" or bool(self.collapse)
        self._items = Items.of(labels, collapse=collapse, where=where)
        if self.method == "dpce":
            n_items, n_bases = self._items.codes.shape
            self._check_memory(n_items, n_bases, where)
            self._fit_process(vault)
        elif self.method == "bce":
            self._fit_memberships()
        else:
            self._fit_mixture()
        self._describe()

    def _fit_mixture(self) -> None:
        found = mm.fit_multinomial_mixture(
            self._items.codes,
            self._labels.n_labels,
            int(self.n_clusters or 0),
            weights=self._items.counts,
            n_restarts=self.n_init,
            seed=self._seed,
        )
        model = ConsensusModel("mm", self._labels.n_labels, found.shares, found.theta)
        self.log_likelihood_ = found.log_likelihood
        self._keep_components(model, model.proba(self._items.codes), found)

    def _fit_memberships(self) -> None:
        found = bce.fit_bayesian_ensemble(
            self._items.codes,
            self._labels.n_labels,
            int(self.n_clusters or 0),
            weights=self._items.counts,
            n_restarts=self.n_init,
            seed=self._seed,
        )
        model = ConsensusModel("bce", self._labels.n_labels, found.prior, found.theta)
        self.log_bound_ = found.bound
        self._keep_components(model, found.memberships, found)

    def _keep_components(self, model: ConsensusModel, proba: Floats, found: Any) -> None:
        """Keep the components that some row is most in, by first appearance of a row."""
        items = proba.argmax(axis=1)
        rows = self._items.spread(items, MISSING)
        order = _by_appearance(rows)
        place = np.full(proba.shape[1], MISSING, np.int64)
        place[order] = np.arange(len(order))
        self._model = model.only(order)
        self._item_labels = place[items]
        self._item_confidence = proba.max(axis=1)
        name = "log_likelihood" if model.method == "mm" else "log_bound"
        self.traces_ = {name: found.trace[None, :]}
        self.diagnostics_ = {
            "has_converged": bool(found.has_converged),
            "n_iterations": len(found.trace),
            "best_start": int(found.restart),
        }
        self.agreed_ = bool(found.has_converged)

    def _fit_process(self, vault: Vault | None) -> None:
        sampler = self._sampler()
        traces = self._run_chains(sampler, "cluster ensemble", vault)
        self._keep_chains(sampler, traces)

    def _sampler(self) -> DirichletEnsembleSampler:
        return DirichletEnsembleSampler.of(
            self._items.codes,
            self._labels.n_labels,
            beta=self._beta(),
            concentration=concentration_of(self.concentration, "concentration"),
            collapse=bool(self.collapse),
            weights=self._items.counts,
        )

    def _keep_chains(self, sampler: DirichletEnsembleSampler, traces: Traces) -> None:
        """Set what follows from the draws."""
        self.log_joint_ = float(second_half(self.traces_["log_joint"]).mean())
        counts = self._items.counts
        log_joint = log_joint_of_draws(traces, self._keep_every(sampler.n_items))
        chosen = choose_partition(self.consensus, self.draws_, log_joint, counts, self._seed)
        self.expected_loss_ = chosen.loss
        rows = self._items.spread(chosen.labels, MISSING)
        order = _by_appearance(rows)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        self._item_labels = place[chosen.labels]
        said = sampler.consensus(self._item_labels.astype(np.int32), self.concentration_)
        self._model = ConsensusModel("dpce", self._labels.n_labels, said.shares, said.theta)
        self._item_confidence = confidence(self._item_labels, self._pooled_draws, counts)

    def _describe(self) -> None:
        """Set what follows for every row from what is known of items."""
        self.n_clusters_ = self._model.n_clusters
        self.labels_ = self._items.spread(self._item_labels, MISSING)
        self.confidence_ = self._items.spread(self._item_confidence, 0.0)

    def _forget(self) -> None:
        """Drop what an earlier fit by another method left."""
        names = ("log_joint_", "log_bound_", "log_likelihood_", "draws_", "expected_loss_")
        for name in (*names, "concentration_", "n_sweeps_", "results_", "version_"):
            self.__dict__.pop(name, None)

    # ---- rows to come ---------------------------------------------------------------------

    def predict(self, X: Any) -> Labels:
        """Return the most probable cluster of each row, shape (n_rows,), through the bases."""
        return self._predicted(self._new_labels(X, "predict"))

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each cluster, shape (n_rows, n_clusters_).

        Through the bases; for "bce" the mean membership.
        """
        return self._proba(self._new_labels(X, "predict_proba"))

    def predict_labels(self, Y: Any) -> Labels:
        """Return the most probable cluster of label vectors, shape (n_rows,).

        Parameters
        ----------
        Y
            Labels of the bases of the fit, in any form that `fit_labels` takes. Rows without
            any label get -1.
        """
        return self._predicted(self._known_labels(Y, "predict_labels"))

    def predict_labels_proba(self, Y: Any) -> Floats:
        """Return the probability of each cluster for label vectors, (n_rows, n_clusters_)."""
        return self._proba(self._known_labels(Y, "predict_labels_proba"))

    def _predicted(self, labels: LabelMatrix) -> Labels:
        found = labels.collapsed()
        best = np.empty(len(found.counts), np.int64)
        for start in range(0, len(best), _PREDICTED_ROWS):
            part = slice(start, start + _PREDICTED_ROWS)
            best[part] = self._model.proba(found.codes[part]).argmax(axis=1)
        best[(found.codes < 0).all(axis=1)] = MISSING
        spread: Labels = found.spread(best)
        return spread

    def _proba(self, labels: LabelMatrix) -> Floats:
        found = labels.collapsed()
        proba: Floats = found.spread(self._model.proba(found.codes))
        return proba

    def _new_labels(self, X: Any, method: str) -> LabelMatrix:
        check_is_fitted(self, "labels_")
        where = f"{type(self).__name__}.{method}"
        if not self._bases:
            raise InputError(
                where,
                "a model with bases of its own",
                "one that was fitted to labels",
                "Use predict_labels with labels of the same bases.",
            )
        X = opened(X, where)
        check_features(self, X, where, reset=False)
        matrix = as_matrix(X, columns=self._columns, where=where)
        return label_rows(matrix, self._bases, where)

    def _known_labels(self, Y: Any, method: str) -> LabelMatrix:
        check_is_fitted(self, "labels_")
        return as_labels(Y, where=f"{type(self).__name__}.{method}", known=self._labels)

    # ---- how rows lie together ------------------------------------------------------------

    def coassociation(
        self, rows: npt.ArrayLike | None = None, *, max_cells: int | None = MAX_CELLS
    ) -> npt.NDArray[np.float32]:
        """Return in which share of the bases rows have the same label, shape (m, m).

        Parameters
        ----------
        rows
            Positions of m rows of the fit; left out: all.
        max_cells
            A matrix of more cells is refused; None for no limit.
        """
        check_is_fitted(self, "labels_")
        return coassociation(self.base_labels_, rows, max_cells=max_cells).values

    def coassignment(
        self, rows: npt.ArrayLike | None, *, max_cells: int | None = MAX_CELLS
    ) -> Floats:
        """Return how often rows shared a consensus cluster, over all draws, shape (m, m).

        For "dpce". Rows without labels share one with themselves alone. Parameters are those
        of `coassociation`.
        """
        check_is_fitted(self, "labels_")
        self._check_chains("coassignment")
        chosen = check_rows(rows, len(self.labels_), max_cells, "coassignment")
        items = chosen if self._items.item_of_row is None else self._items.item_of_row[chosen]
        found = coassignment(self._pooled_draws, np.maximum(items, 0), max_cells=max_cells)
        unlabelled = items < 0
        found[unlabelled] = 0.0
        found[:, unlabelled] = 0.0
        np.fill_diagonal(found, 1.0)
        return found

    def neighbour_graph(self, n_neighbours: int = 10) -> sp.csr_array:
        """Return the rows with the largest co-association to each row, (n_rows, n_rows).

        A sparse matrix with at most `n_neighbours` entries a row.
        """
        check_is_fitted(self, "labels_")
        return neighbour_graph(self.base_labels_, n_neighbours)

    def to_arviz(self) -> Any:
        """Return the traces of "dpce" as an ArviZ tree; needs ``distclust[arviz]``."""
        check_is_fitted(self, "labels_")
        self._check_chains("to_arviz")
        return super().to_arviz()

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file, complete or not at all.

        Read it back with :func:`distclust.load`. Labels and draws are part of it, rows are not.
        """
        check_is_fitted(self, "labels_")
        from distclust.ensembles.persistence import save_ensemble

        save_ensemble(self, path)

    # ---- small parts ----------------------------------------------------------------------

    def _beta(self) -> Any:
        """Return the pseudo-counts of bases; "auto" follows from where labels come from."""
        if isinstance(self.beta, str) and self.beta == AUTO:
            n_rows = self._labels.n_rows
            return max(min(100.0, n_rows / 3), n_rows / 30) if self._bases else 1.0
        return self.beta

    def _check_memory(self, n_items: int, n_bases: int, where: str) -> None:
        """Refuse more items than chains could hold."""
        if self.method == "dpce":
            self._check_room(n_items * n_bases, n_items, where, _TOO_MANY)

    def _check_chains(self, method: str) -> None:
        if not hasattr(self, "draws_"):
            where = f"{type(self).__name__}.{method}"
            expected = "method='dpce', which draws partitions"
            raise InputError(where, expected, repr(self.method), "Fit with method='dpce'.")

    def _check_parameters(self, where: str) -> None:
        check_choice(self.method, f"{where}: method", METHODS)
        check_choice(self.consensus, f"{where}: consensus", CONSENSUS)
        check_flag(self.collapse, f"{where}: collapse")
        check_integer(self.n_bases, f"{where}: n_bases", at_least=1)
        self._check_chain_parameters(where)
        check_integer(self.n_init, f"{where}: n_init", at_least=1)
        if self.n_clusters is not None:
            check_integer(self.n_clusters, f"{where}: n_clusters", at_least=1)
        elif self.method != "dpce":
            hint = "Pass it, or take method='dpce', which finds it."
            expected = f"a number of clusters for method={self.method!r}"
            raise InputError(f"{where}: n_clusters", expected, "None", hint)
        concentration_of(self.concentration, f"{where}: concentration")
        if np.ndim(self.beta) == 0 and not (isinstance(self.beta, str) and self.beta == AUTO):
            betas_of(self.beta, np.ones(1, np.int64))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.bases in ("kmeans", "subspace")
        return tags


def _by_appearance(labels: Labels) -> Labels:
    """Return labels in the order in which rows have them first; -1 is none."""
    seen = labels[labels >= 0]
    numbered = canonical(seen)
    order = np.empty(int(numbered.max()) + 1, np.int64)
    order[numbered] = seen
    return order


def _fingerprint_of(matrix: Matrix) -> str:
    """Return a checksum of rows, block by block; a store knows its own."""
    known = getattr(matrix, "fingerprint", None)
    if known is not None:
        return str(known)
    parts = [repr(matrix.shape).encode()]
    for block in matrix.blocks():
        arrays = (block.data, block.indices, block.indptr) if sp.issparse(block) else (block,)
        parts.append(checksum(*(np.ascontiguousarray(array) for array in arrays)))
    return checksum(*parts).hex()


def _fingerprint_of_labels(labels: LabelMatrix) -> str:
    told = [checksum(repr(values.tolist()).encode()) for values in labels.values]
    shape = repr((labels.codes.shape, str(labels.codes.dtype))).encode()
    return checksum(shape, np.ascontiguousarray(labels.codes), *told).hex()
