"""Compile what runs will need, at the build of the image, and say what was left out.

Small fits of every kind fill DISTCLUST_CACHE_DIR. Functions that none of them reached are
compiled in each process when they are first called; ``--strict`` makes that an error.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

import distclust
from distclust.compiled import cache_folder
from distclust.jobs.jobfile import read_job
from distclust.jobs.running import Wish
from distclust.jobs.runs import run_job
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


def warm_sources(data: dict[str, Any], folder: Path) -> None:
    """Bring rows in as people have them: in many columns, quoted, spaced, to be binarised."""
    wide = pd.DataFrame(np.hstack([data["counts"]] * 20)).add_prefix("column ")
    wide.insert(0, "name", [f"row {i}" for i in range(N_ROWS)])
    texts = {
        "short": wide.to_csv(index=False),
        "long": (wide.set_index("name") / 7).to_csv(),
        "quoted": wide.to_csv(index=False, quoting=csv.QUOTE_ALL),
        "spaced": wide.to_csv(index=False).replace(",", ", "),
    }
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)
        distclust.ingest(folder / f"{name}.csv", folder / f"{name}.text.zarr")
    for name in ("counts", "words", "reals"):
        for rule in ("above:1", "row-mean", "column-mean", "skewness"):
            place = folder / f"{name}.{rule.partition(':')[0]}.zarr"
            distclust.ingest(iter([data[name]]), place, binarise=rule)
    for name in ("words", "sparse binary"):
        for storage in ("hot", "packed"):
            place = folder / f"{name}.{storage}.compact.zarr"
            distclust.ingest(iter([data[name]]), place, layout="compact", storage=storage)
            distclust.EMBHC(random_state=0).fit(place)


JOB = """
name = "{name}"
out = "results"
[input]
source = "in/*.csv"
[gates]
max_evidence_drop = 1e9
"""
MODEL = """
[models.{kind}]
kind = "{kind}"
parameters = {parameters}
"""
KINDS = {
    "rbhc": "{ sample_size = 64, check_size = 64 }",
    "embhc": "{}",
    "bhc": "{}",
    "rose": "{}",
    "dpmixture": "{ n_chains = 2, max_sweeps = 8 }",
}
OF_NUMBERS = {"ensemble": "{ n_chains = 2, max_sweeps = 8 }", "kpca": "{}", "ppca": "{}"}
OF_BITS = {"sets": "{}"}


def warm_jobs(data: dict[str, Any], folder: Path) -> None:
    """Run jobs with models of all kinds, which follow the rows from night to night."""
    for name, kinds in {
        "binary": KINDS | OF_NUMBERS | OF_BITS,
        "counts": KINDS | OF_NUMBERS,
        "reals": KINDS | OF_NUMBERS,
        "codes": KINDS,
    }.items():
        models = (MODEL.format(kind=kind, parameters=given) for kind, given in kinds.items())
        place = folder / f"{name}.job"
        (place / "in").mkdir(parents=True)
        (place / "job.toml").write_text("".join([JOB.format(name=name), *models]))
        for file, rows in nights(pd.DataFrame(data[name])):
            rows.to_csv(place / "in" / f"{file}.csv", index_label="id")
            run_job(read_job(place / "job.toml"), Wish(), nullcontext, "in process", print)


def nights(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the files of nights: first rows, more, changed ones, fewer, and of another kind."""
    table.columns = [f"column {i}" for i in range(table.shape[1])]
    table.index = pd.Index([f"row {i}" for i in range(len(table))])
    yield "first", table[:100]
    yield "second", table[100:110]
    yield "second", table[105:]
    yield "first", table[:90]
    turned = pd.DataFrame(np.roll(table[:40].to_numpy(), 5, axis=1), columns=table.columns)
    yield "third", turned.set_index("turned " + table.index[:40])


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
        warm_sources(data, Path(temporary))
        warm_jobs(data, Path(temporary))
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
