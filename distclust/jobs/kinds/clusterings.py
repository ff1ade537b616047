"""The models that are only labelled between fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from distclust.ensembles import ClusterEnsemble
from distclust.ensembles.bases import plan_bases
from distclust.ensembles.persistence import read_model as read_ensemble
from distclust.jobs.kinds.base import Request, check_family
from distclust.jobs.kinds.labelled import Clusters, Labelled, settings_of
from distclust.jobs.kinds.scores import ConsensusScores, DensityScores
from distclust.mixtures import DPMixture
from distclust.mixtures.persistence import read_model as read_mixture
from distclust.store.results import ResultsStore
from distclust.store.versions import Version
from distclust.trees import BHC, BayesianRoseTree
from distclust.trees.exact import ExactTreeEstimator
from distclust.trees.persistence import (
    MODEL_FILE,
    identity_of,
    metrics_of,
    read_model,
    to_archive,
)

_MANY_ROWS = 2**20  # parameters are checked before the rows are known


class ExactTree(Labelled):
    """What both exact trees have in common; not to be used by itself."""

    model: ClassVar[type[ExactTreeEstimator]]

    def estimator(self, parameters: Mapping[str, Any], seed: int) -> ExactTreeEstimator:
        """Return the estimator, not yet fitted."""
        return self.model(**parameters, random_state=seed)

    def check_values(self, model: Any, where: str) -> None:
        """Refuse parameters that the estimator would refuse."""
        check_family(model.family, where)
        model._plans(where)

    def fit(self, request: Request, store: ResultsStore) -> Version:
        """Fit the tree, or find the fit that was made."""
        model = self.estimator(request.parameters, request.seed)
        identity = identity_of(model, str(request.matrix.fingerprint))
        with store.begin(**identity, run=store.find_run(**identity)) as draft:
            if draft.is_sealed:
                return draft.publish()
            model.fit(request.matrix)
            draft.write_archive(MODEL_FILE, *to_archive(model))
            return draft.publish(metrics_of(model, request.matrix.shape[0]))

    def clusters(self, store: ResultsStore, version_id: str, where: str) -> Clusters:
        """Read a fitted tree."""
        model = read_model(store, version_id)
        assert model.tree_.statistics is not None, "a fitted tree keeps its statistics"
        scores = DensityScores(model.family_, model.tree_.statistics[model._nodes], where)
        return Clusters(model.n_clusters_, model.labels_, scores)


class BinaryTree(ExactTree):
    """`distclust.BHC`."""

    name = "bhc"
    model = BHC


class RoseTree(ExactTree):
    """`distclust.BayesianRoseTree`."""

    name = "rose"
    model = BayesianRoseTree


class Mixture(Labelled):
    """`distclust.DPMixture`."""

    name = "dpmixture"

    def estimator(self, parameters: Mapping[str, Any], seed: int) -> DPMixture:
        """Return the estimator, not yet fitted."""
        return DPMixture(**settings_of(parameters), random_state=seed)

    def check_values(self, model: Any, where: str) -> None:
        """Refuse parameters that the estimator would refuse."""
        check_family(model.family, where)
        model._check_parameters(where)

    def fit(self, request: Request, store: ResultsStore) -> Version:
        """Run the chains, or go on with them."""
        model = self.estimator(request.parameters, request.seed)
        model.fit(request.matrix, results=request.place)
        return store.get(model.version_)

    def clusters(self, store: ResultsStore, version_id: str, where: str) -> Clusters:
        """Read a fitted mixture."""
        model = read_mixture(store, version_id)
        scores = DensityScores(model.family_, model._stats, where)
        return Clusters(model.n_clusters_, model.labels_, scores)


class Ensemble(Labelled):
    """`distclust.ensembles.ClusterEnsemble`."""

    name = "ensemble"

    def estimator(self, parameters: Mapping[str, Any], seed: int) -> ClusterEnsemble:
        """Return the estimator, not yet fitted."""
        return ClusterEnsemble(**settings_of(parameters), random_state=seed)

    def check_values(self, model: Any, where: str) -> None:
        """Refuse parameters that the estimator would refuse."""
        model._check_parameters(where)
        plan_bases(
            model.bases, model.n_bases, model.base_clusters, model.n_clusters, _MANY_ROWS, where
        )

    def fit(self, request: Request, store: ResultsStore) -> Version:
        """Make the bases and find their consensus, or go on."""
        model = self.estimator(request.parameters, request.seed)
        model.fit(request.matrix, results=request.place)
        return store.get(model.version_)

    def clusters(self, store: ResultsStore, version_id: str, where: str) -> Clusters:
        """Read a fitted ensemble."""
        model = read_ensemble(store, version_id)
        scores = ConsensusScores(model._bases, model._model, where)
        return Clusters(model.n_clusters_, model.labels_, scores)
