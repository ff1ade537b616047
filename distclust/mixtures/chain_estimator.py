"""What estimators share whose result is the draws of several chains."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from sklearn.utils.validation import check_is_fitted

from distclust.engine import Vault, check_worker_memory, current_client
from distclust.errors import CapacityError, ConvergenceWarning
from distclust.mixtures.chains import Agreement, Sampler, Traces, n_kept, run_chains, second_half
from distclust.mixtures.diagnostics import Diagnosis, diagnose
from distclust.validation import check_choice, check_integer, check_real

Floats = npt.NDArray[np.float64]

_SHARE_OF_MEMORY = 0.8
_ITEM_BYTES = 64  # of a chain for each item: labels, uniforms, copies


class ChainEstimator:
    """What they share; not to be used by itself.

    Parameters that it reads: n_chains, max_sweeps, stop, rhat, min_samples.
    """

    n_chains: int
    max_sweeps: int
    stop: str | None
    rhat: float
    min_samples: float

    traces_: dict[str, Floats]
    draws_: npt.NDArray[Any]
    diagnostics_: dict[str, Any]
    agreed_: bool
    n_sweeps_: int
    concentration_: float
    _seed: int

    def _run_chains(self, sampler: Sampler[Any], name: str, vault: Vault | None) -> Traces:
        """Run the chains, and set what follows from their traces alone."""
        keep_every = self._keep_every(sampler.n_items)
        traces = run_chains(
            sampler,
            self.n_chains,
            self._seed,
            self.max_sweeps,
            keep_every=keep_every,
            agreement=None if self.stop is None else self._agreement(),
            name=name,
            vault=vault,
        )
        names, kept = sampler.scalar_names, second_half(traces.scalars)
        self.n_sweeps_ = traces.n_sweeps
        self.traces_ = {figure: traces.scalars[:, :, i] for i, figure in enumerate(names)}
        self.draws_ = traces.kept_draws(keep_every)
        diagnosis = diagnose(names, kept)
        self.diagnostics_ = diagnosis.as_dict()
        self.agreed_ = self._agreement().holds(diagnosis)
        self.concentration_ = float(kept[:, :, names.index("concentration")].mean())
        return traces

    @property
    def _pooled_draws(self) -> npt.NDArray[Any]:
        """The draws of all chains, shape (n_chains * n_draws, n_items)."""
        return self.draws_.reshape(-1, self.draws_.shape[2])

    def _warn_unless_agreed(self, stacklevel: int) -> None:
        """Tell of chains that were to agree and do not."""
        if self.stop is None or self.agreed_:
            return
        rhat = self.diagnostics_["rhat"]
        worst = max(rhat, key=lambda name: math.inf if math.isnan(rhat[name]) else rhat[name])
        least = Diagnosis(**self.diagnostics_).least_ess
        warnings.warn(
            f"The chains do not agree after {self.n_sweeps_} sweeps: R-hat of {worst} is "
            f"{rhat[worst]:.3f}, and some figure has {least:.0f} effective samples; at most "
            f"{self.rhat} and at least {self.min_samples:.0f} were asked for. Raise max_sweeps, "
            "or read the result as one of several that fit about as well.",
            ConvergenceWarning,
            stacklevel=stacklevel + 1,
        )

    def _check_room(self, data_bytes: float, n_items: int, where: str, hint: str) -> None:
        """Refuse data, chains and draws that would not fit into memory.

        Parameters
        ----------
        data_bytes
            What a process holds of the data.
        n_items
            That are clustered.
        where, hint
            Place and remedy to name in the error.
        """
        needed = data_bytes + _ITEM_BYTES * n_items
        draws = 2.0 * n_items * self.n_chains * n_kept(n_items, self.n_chains)
        free = _SHARE_OF_MEMORY * psutil.virtual_memory().available
        if needed + draws > free:
            raise CapacityError(
                where,
                f"room for {(needed + draws) / 1e9:,.1f} GB ({n_items:,} rows)",
                f"{free / 1e9:,.1f} GB that may be used",
                hint,
            )
        if current_client() is not None:
            check_worker_memory(needed, where, "the rows and a chain")

    def _keep_every(self, n_items: int) -> int:
        return max(1, self.max_sweeps // n_kept(n_items, self.n_chains))

    def _agreement(self) -> Agreement:
        return Agreement(float(self.rhat), float(self.min_samples))

    def _check_chain_parameters(self, where: str) -> None:
        check_integer(self.n_chains, f"{where}: n_chains", at_least=1)
        check_integer(self.max_sweeps, f"{where}: max_sweeps", at_least=2)
        if self.stop is not None:
            check_choice(self.stop, f"{where}: stop", ("rhat",))
        check_real(self.rhat, f"{where}: rhat", above=1.0)
        check_real(self.min_samples, f"{where}: min_samples", at_least=0.0)

    def to_arviz(self) -> Any:
        """Return the traces as an ArviZ tree: draws of the second half, warm-up apart.

        Needs the extra ``distclust[arviz]``.
        """
        check_is_fitted(self, "labels_")
        from distclust.mixtures.to_arviz import traces_to_arviz

        return traces_to_arviz(self.traces_)
