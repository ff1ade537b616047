"""Compile what runs will need, at the build of the image, and say what was left out.

Small fits of every kind fill DISTCLUST_CACHE_DIR. Functions that none of them reached would be
compiled in each process when they are first called; ``--strict`` makes that an error. Where the
folder was filled before, functions that only compiled ones call do not show: begin with an empty
one. ``--record`` keeps the names of those that were reached in warmed.txt, with which a test
compares what there is: it takes minutes less than this.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse

import distclust
from distclust.compiled import cache_folder
from distclust.ensembles.bayesian_ensemble import BayesianEnsembleSampler
from distclust.ensembles.blocked_hosts import sample_by_columns
from distclust.ensembles.hosts import ArrayPart
from distclust.ensembles.hosts_by_columns import fit_mixture_by_columns
from distclust.ensembles.label_rows import LabelRows
from distclust.families import Family, pairs
from distclust.jobs.jobfile import read_job
from distclust.jobs.running import Wish
from distclust.jobs.runs import run_job
from distclust.metrics import dendrogram_purity
from distclust.retrieval import scanning
from distclust.retrieval.index import build_index
from distclust.store.sources import quantiles
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
    for table, dtype in ("reals", "float64"), ("reals", "float32"), ("sparse binary", "float64"):
        rows = data[table]
        model = distclust.KernelPCA(2, dtype=dtype, random_state=0).fit(rows[5:])
        model.partial_fit(rows[:5]).transform(rows[:5])
        model.close()


def warm_families(data: dict[str, Any]) -> None:
    """Ask every family about single rows, and about sparse ones."""
    sparse = scipy.sparse.csr_array(data["counts"])
    labels = np.arange(N_ROWS) % 3
    fitted = {
        "bernoulli": data["binary"],
        "poisson": data["counts"],
        "multinomial": data["counts"],
        "categorical": data["codes"],
        "diagonal_gaussian": data["reals"],
        "gaussian": data["reals"],
    }
    for name, table in fitted.items():
        family: Any = distclust.BHC(name).fit(table).family_
        face, parameters = family.row_functions(), family.row_parameters()
        stats, row = np.zeros(family.n_statistics), np.ones(family.n_features)
        face.add(stats, row, *parameters)
        face.log_predictive(row, stats, *parameters)
        face.remove(stats, row, *parameters)
        rows = scipy.sparse.csr_array(np.ones((N_ROWS, 4))) if name == "categorical" else sparse
        if name != "bernoulli":
            groups = family.accumulate(rows, labels, 3)
            family.log_predictive(rows, groups)
    Family.accumulate(family, data["reals"], labels, 3)  # what families of others inherit


@contextmanager
def no_room(module: ModuleType, name: str) -> Iterator[None]:
    """Let few rows go the way of very many: nothing fits what a module keeps in memory."""
    before = getattr(module, name)
    setattr(module, name, 0)
    yield
    setattr(module, name, before)


def warm_choices(data: dict[str, Any]) -> None:
    """Fit trees as few people do: other cuts, seeds and sweeps of many rows, wide sparse rows."""
    tree = distclust.BHC(cut="map").fit(data["reals"]).tree_
    dendrogram_purity(tree, np.arange(N_ROWS) % 3)
    dendrogram_purity(tree, np.arange(N_ROWS) % 3, "pair")
    for name in ("binary", "sparse binary", "words", "reals"):
        distclust.EMBHC(sample_size=24, random_state=0).fit(data[name])
    wide = scipy.sparse.random_array((N_ROWS, 300), density=0.05, random_state=0)
    with no_room(pairs, "_TABLE_BYTES"):
        distclust.BHC("bernoulli").fit(scipy.sparse.csr_array(wide > 0, dtype=float))


def warm_searches(data: dict[str, Any]) -> None:
    """Ask several queries at once, by a scan and by an index that has found something before."""
    model = distclust.BayesianSets().fit(data["sparse binary"])
    model.query_many([[0, 1], [2]], k=3, engine="scan")
    far_apart = np.array([[1e-9, 1.0], [1e9, 1.0]])  # cannot be packed
    ones = scanning.Ones.of_block(scipy.sparse.csr_array(np.ones((3, 2))))
    scanning.Approximation(far_apart).of(ones, 2)
    model.build_index()
    index: Any = model.index_
    prior = index.prior(model.kappa, model.smoothing)
    query = prior.query(2, np.arange(3), np.ones(3))
    for floor in (-np.inf, -1e3):
        index.shard(0).search(prior, query, 3, floor)


def warm_wide_stores(folder: Path) -> None:
    """Read and binarise rows of very many columns, and of very many values."""
    many = scipy.sparse.csr_array(np.ones((2, 70_000)))
    place = folder / "many-columns.zarr"
    distclust.ingest(iter([many]), place, layout="compact", storage="hot")
    distclust.open_store(str(place)).matrix().block(0)
    rows = np.random.default_rng(0).normal(size=(50, 3))
    with no_room(quantiles, "_GATHERED"):
        for name, table in {"dense": rows, "sparse": scipy.sparse.csr_array(rows)}.items():
            distclust.ingest(iter([table]), folder / f"{name}.bits.zarr", binarise="skewness")


def warm_ensembles(data: dict[str, Any]) -> None:
    """Let clusterings agree in the ways that are asked for seldom."""
    options: dict[str, Any] = {"n_chains": 1, "max_sweeps": 4, "stop": None, "random_state": 0}
    model = distclust.ClusterEnsemble("dpce", collapse=True, **options).fit(data["reals"])
    model.coassociation()
    model.neighbour_graph(3)
    codes = np.ascontiguousarray(model.base_labels_, np.int32)
    sizes = codes.max(axis=0) + 1
    sampler = BayesianEnsembleSampler.of(codes, sizes, 3)
    sampler.sweep(None, sampler.begin(0, np.random.default_rng(0)))
    labels = LabelRows.of(codes, sizes)
    parts = [ArrayPart(labels.columns(slice(k, k + 1))) for k in range(2)]
    fit_mixture_by_columns(parts, N_ROWS, 3)
    sample_by_columns(parts, N_ROWS, n_sticks=5, n_chains=1, n_sweeps=4, keep_every=2)


def compiled_functions() -> dict[str, Any]:
    """Return all compiled functions by name."""
    found = {}
    for module in walk_packages(distclust.__path__, "distclust."):
        if module.name.endswith("_numerics"):
            for name, value in vars(import_module(module.name)).items():
                is_own = getattr(value, "__module__", "") == module.name
                if is_own and hasattr(value, "signatures"):
                    found[f"{module.name.removeprefix('distclust.')}.{name}"] = value
    return dict(sorted(found.items()))


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
        warm_families(data)
        warm_choices(data)
        warm_searches(data)
        warm_wide_stores(Path(temporary))
        warm_ensembles(data)
    functions = compiled_functions()
    cold = [name for name, function in functions.items() if not function.signatures]
    folder = cache_folder()
    n_files = sum(1 for _ in folder.rglob("*.nbi")) if folder else 0
    print(f"{n_files} compiled functions in {folder}; {len(cold)} were not reached")
    for name in cold:
        print(f"  {name}")
    if "--record" in sys.argv:
        reached = [f"{name}\n" for name in functions if name not in cold]
        Path(__file__).with_name("warmed.txt").write_text("".join(reached))
    return 1 if cold and "--strict" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
