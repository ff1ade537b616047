"""Compile what runs will need, at the build of the image, and say what was left out.

Small fits of every kind fill DISTCLUST_CACHE_DIR. Functions that none of them reached are
compiled in each process when they are first called; ``--strict`` makes that an error.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

import distclust
from distclust.compiled import cache_folder
from distclust.retrieval.index import build_index
from distclust.store.stored_matrix import StoredMatrix

N_ROWS, N_FEATURES = 160, 12


def tables() -> dict[str, Any]:
    """Return rows of every family, dense and sparse."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 3, N_ROWS)
    binary = rng.random((N_ROWS, N_FEATURES)) < rng.beta(0.3, 0.3, (3, N_FEATURES))[kinds]
    counts = rng.poisson(rng.gamma(1.0, 3.0, (3, N_FEATURES))[kinds])
    words = scipy.sparse.csr_array(rng.poisson(rng.gamma(0.1, 1.0, (3, 80))[kinds] + 0.01))
    reals = rng.normal(3.0 * rng.normal(size=(3, N_FEATURES))[kinds])
    codes = pd.DataFrame(rng.integers(0, 3, (N_ROWS, 4)), columns=list("abcd"))
    codes = codes.astype(str).astype("category")
    return {
        "binary": binary,
        "sparse binary": scipy.sparse.csr_array(binary.astype(float)),
        "counts": counts,
        "words": words,
        "reals": reals,
        "wide reals": rng.normal(3.0 * rng.normal(size=(3, 40))[kinds]),
        "codes": codes,
        "mixed": codes.assign(height=reals[:, 0], count=counts[:, 0]),
    }


def warm_trees(table: Any) -> None:
    """Fit every kind of tree and ask it."""
    exact = distclust.BHC().fit(table)
    exact.predict_proba(table[:5])
    exact.score_samples(table[:5])
    exact.tree_.linkage()
    distclust.BayesianRoseTree().fit(table)
    large = distclust.RandomizedBHC(sample_size=40, random_state=0).fit(table)
    large.predict(table[:5])
    distclust.EMBHC(random_state=0).fit(table)


def warm_stores(data: dict[str, Any], folder: Path) -> None:
    """Bring rows into stores of every layout, fit there, and complete sets by an index."""
    for name in ("binary", "words", "reals", "counts"):
        place = folder / f"{name}.zarr"
        distclust.ingest((data[name] for _ in range(20)), place)
        model = distclust.RandomizedBHC(sample_size=64, check_size=64, random_state=0)
        model.fit(place, results=folder / f"{name}.results").predict(place)
        distclust.ingest(iter([data[name]]), folder / f"{name}.packed.zarr", storage="packed")
        distclust.BHC().fit(folder / f"{name}.packed.zarr")
    for name in ("reals", "counts", "mixed"):  # numbers and texts, as people bring them
        table = folder / f"{name}.csv"
        pd.DataFrame(data[name]).to_csv(table, index_label="row")
        distclust.ingest(table, folder / f"{name}.from-csv.zarr")
    binary = folder / "binary.zarr"
    distclust.BayesianSets().fit(binary).query([0, 1], k=5)
    matrix = distclust.open_store(str(binary)).matrix()
    assert isinstance(matrix, StoredMatrix)
    build_index(matrix, f"{binary}.sets")
    distclust.BayesianSets().fit(binary).warm().query([0, 1], k=5)


def warm_mixtures(data: dict[str, Any]) -> None:
    """Run short chains of every sampler, and let clusterings agree."""
    for table in data.values():
        distclust.DPMixture(n_chains=2, max_sweeps=8, stop=None, random_state=0).fit(table)
    for name in ("binary", "words", "reals"):
        distclust.DPMixture(
            sampler="blocked-dma", n_chains=2, max_sweeps=8, stop=None, random_state=0
        ).fit(data[name])
    for method in ("dpce", "bce"):
        distclust.ClusterEnsemble(
            method, n_clusters=3, n_chains=2, max_sweeps=8, stop=None, random_state=0
        ).fit(data["reals"])


def warm_projections(data: dict[str, Any]) -> None:
    """Fit projections."""
    distclust.PPCA(2).fit(data["reals"])
    model = distclust.KernelPCA(2, random_state=0).fit(data["reals"])
    model.transform(data["reals"][:5])
    model.close()


def cold_functions() -> Iterator[str]:
    """Yield the names of compiled functions that nobody has called."""
    for module in walk_packages(distclust.__path__, "distclust."):
        if not module.name.endswith("_numerics"):
            continue
        for name, value in vars(import_module(module.name)).items():
            is_own = getattr(value, "__module__", "") == module.name
            if is_own and not getattr(value, "signatures", True):
                yield f"{module.name.removeprefix('distclust.')}.{name}"


def main() -> int:
    """Warm the cache and report on it."""
    data = tables()
    with tempfile.TemporaryDirectory() as temporary:
        for table in data.values():
            warm_trees(table)
        warm_stores(data, Path(temporary))
        warm_mixtures(data)
        warm_projections(data)
    cold = sorted(cold_functions())
    folder = cache_folder()
    n_files = sum(1 for _ in folder.rglob("*.nbi")) if folder else 0
    print(f"{n_files} compiled functions in {folder}; {len(cold)} were not reached")
    for name in cold:
        print(f"  {name}")
    return 1 if cold and "--strict" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
