"""A process that fits kernel PCA on a cluster, for tests that cut its workers off.

python -m tests.kernel_driver FOLDER ADDRESS

Prints a line after every product, and what losses cost. Shards are saved every `EVERY` products.
FOLDER gets the results store and, in the end, the components.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np

from distclust import KernelPCA, engine, events
from distclust.projections import kernel_pca
from distclust.projections.krylov import STAGE
from tests import slow_kernels

N_ROWS = 2600  # six shards
EVERY = 2


def make_rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(N_ROWS, 6)) + rng.integers(0, 4, size=(N_ROWS, 1))


def make() -> KernelPCA:
    """Return a model that evaluates all tiles in every round: a round takes a while."""
    kernel = slow_kernels.slow_rbf
    return KernelPCA(6, kernel=kernel, tolerance=1e-11, memory_budget=1, random_state=0)


def say(event: events.Event) -> None:
    if event.stage == STAGE:
        print("product", event.done, flush=True)


def main(folder: Path, address: str) -> None:
    kernel_pca.Crew = functools.partial(engine.Crew, every=EVERY)  # type: ignore[assignment,misc]
    with engine.connect(address), events.listen(say):
        model = make().fit(make_rows(), results=folder / "results")
        crew = model._kept_crew.crew
        print("restarts", crew.n_restarts, flush=True)
        print("redone", crew.n_redone, flush=True)
        model.close()
    np.save(folder / "components.npy", model.components_)
    np.save(folder / "eigenvalues.npy", model.eigenvalues_)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
