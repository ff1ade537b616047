"""KernelPCA: the same bits on any number of threads and workers, from any kind of input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

import distclust
from distclust import KernelPCA, engine
from distclust.projections.kernels import NAMED_KERNELS
from tests.oracles import kernel_pca as oracle
from tests.small_tiles import TILE, SmallTiles, shrink

N, D = 9 * TILE + 5, 6
TILE_BYTES = 8 * TILE * TILE
ATTRIBUTES = (
    "components_",
    "eigenvalues_",
    "residuals_",
    "noise_variance_",
    "log_likelihood_",
    "n_iter_",
)
FITS: dict[str, dict[str, Any]] = {
    **{kernel: {"kernel": kernel} for kernel in NAMED_KERNELS},
    "float32": {"dtype": "float32"},
    "em": {"solver": "em", "sigma2": 0.001, "n_components": 2},
}


@pytest.fixture(scope="module", autouse=True)
def small_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


def make_rows(n: int = N, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(n, D)) + 1.0) * (rng.random((n, D)) < 0.8)


def make(kind: str, **more: Any) -> KernelPCA:
    return KernelPCA(**{"n_components": 3, "gamma": 0.4, "random_state": 0, **FITS[kind], **more})


def check_same(one: KernelPCA, other: KernelPCA) -> None:
    for name in ATTRIBUTES:
        a, b = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        assert a.tobytes() == b.tobytes(), name


@pytest.fixture(scope="module")
def fitted() -> dict[str, KernelPCA]:
    return {kind: make(kind).fit(make_rows()) for kind in FITS}


@pytest.fixture(scope="module")
def grown(fitted) -> dict[str, KernelPCA]:
    """Models that some rows joined later."""
    return {
        kind: make(kind).fit(make_rows()).partial_fit(make_rows(40, 1))
        for kind in ("rbf", "cosine")
    }


@pytest.mark.parametrize("kind", FITS)
@pytest.mark.parametrize("threads", ["1", "2", "3"])
def test_threads(kind, threads, fitted, monkeypatch):
    monkeypatch.setenv("DISTCLUST_THREADS", threads)
    check_same(make(kind).fit(make_rows()), fitted[kind])


@pytest.mark.parametrize("kind", ["rbf", "cosine"])
def test_threads__of_growth(kind, grown, monkeypatch):
    for threads in ("1", "3"):
        monkeypatch.setenv("DISTCLUST_THREADS", threads)
        check_same(make(kind).fit(make_rows()).partial_fit(make_rows(40, 1)), grown[kind])


@pytest.mark.parametrize("limit", [1, 2])
def test_threads__of_blas(limit, fitted):
    with threadpool_limits(limit, user_api="blas"):
        check_same(make("rbf").fit(make_rows()), fitted["rbf"])
        check_same(make("linear").fit(make_rows()), fitted["linear"])


@pytest.mark.parametrize("kind", ["rbf", "poly", "float32", "em"])
@pytest.mark.parametrize("budget", [1, 3 * TILE_BYTES, 30 * TILE_BYTES, "4 GB"])
def test_memory_budget(kind, budget, fitted):
    check_same(make(kind, memory_budget=budget).fit(make_rows()), fitted[kind])


def test_memory_budget__at_the_real_size_of_tiles(monkeypatch):
    shrink(monkeypatch, 512)
    rows = make_rows(1300)
    whole = make("rbf").fit(rows)
    for budget in (1, 4 * 8 * 512 * 512):
        check_same(make("rbf", memory_budget=budget).fit(rows), whole)


def test_input__of_any_kind(fitted, tmp_path):
    rows = make_rows()
    distclust.ingest(iter([rows]), tmp_path / "X.zarr")
    kinds = [
        rows.tolist(),
        np.asfortranarray(rows),
        pd.DataFrame(rows),
        da.from_array(rows, chunks=(37, 4)),
        da.from_array(rows, chunks=((1, 100, N - 101), (2, 4))),
        tmp_path / "X.zarr",
        str(tmp_path / "X.zarr"),
        distclust.open_store(tmp_path / "X.zarr"),
    ]
    for kind in kinds:
        check_same(make("rbf").fit(kind), fitted["rbf"])


def test_input__sparse_of_any_kind(tmp_path):
    rows = sp.csr_array(make_rows())
    distclust.ingest(iter([rows]), tmp_path / "X.zarr")
    for name in NAMED_KERNELS:
        wanted = make(name).fit(rows)
        for kind in (sp.csc_array(rows), sp.coo_matrix(rows), tmp_path / "X.zarr"):
            check_same(make(name).fit(kind), wanted)


# ---- workers -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[(1, 2), (2, 1)], ids=["1 worker", "2 workers"])
def session(request) -> Iterator[engine.Session]:
    n_workers, n_threads = request.param
    with engine.connect("local", workers=n_workers, threads=n_threads) as session:
        session.client.register_plugin(SmallTiles())
        yield session


@pytest.mark.cluster
@pytest.mark.parametrize("kind", FITS)
def test_workers(kind, fitted, session):
    model = make(kind).fit(make_rows())
    assert model._kept_crew.client() is session.client
    check_same(model, fitted[kind])
    new = make_rows(50, 5)
    found = model.transform(new)
    model.close()
    wanted = fitted[kind]
    assert found.tobytes() == wanted._landmarks.project(new).tobytes()


@pytest.mark.cluster
def test_workers__input_of_any_kind(fitted, session, tmp_path):
    rows = make_rows()
    distclust.ingest(iter([rows]), tmp_path / "X.zarr")
    for kind in (da.from_array(rows, chunks=(37, 4)), tmp_path / "X.zarr", pd.DataFrame(rows)):
        model = make("rbf").fit(kind)
        check_same(model, fitted["rbf"])
        model.close()


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["rbf", "cosine"])
def test_workers__growth(kind, grown, session):
    model = make(kind).fit(make_rows()).partial_fit(make_rows(40, 1))
    check_same(model, grown[kind])
    model.close()


@pytest.mark.cluster
def test_workers__keep_tiles_within_the_budget(fitted, session):
    for budget in (1, 30 * TILE_BYTES):
        model = make("rbf", memory_budget=budget).fit(make_rows())
        check_same(model, fitted["rbf"])
        model.close()


@pytest.mark.cluster
def test_workers__a_model_moves_between_places(fitted, grown, session):
    """Fitted on workers, grown in process: another crew, the same numbers."""
    model = make("rbf").fit(make_rows())
    crew = model._kept_crew.crew
    with engine.connect("threads", threads=2):
        model.partial_fit(make_rows(40, 1))
        assert model._kept_crew.crew is not crew
        check_same(model, grown["rbf"])
    model.close()


@pytest.mark.cluster
def test_workers__a_kernel_of_users(session):
    from sklearn.metrics.pairwise import laplacian_kernel

    model = KernelPCA(2, kernel=laplacian_kernel, random_state=0).fit(make_rows())
    truth = oracle.fit(laplacian_kernel(make_rows()))
    np.testing.assert_allclose(model.eigenvalues_, truth.values[:2], rtol=1e-6)
    model.close()


# ---- a round moves O(N k) ----------------------------------------------------------------------


def test_round__moves_a_block_there_and_back(monkeypatch):
    """What is sent and reported is N k numbers, not N²; what is saved, too."""
    from distclust.engine import Crew
    from distclust.projections.krylov import block_width

    sizes: list[tuple[int, int]] = []
    plain = Crew._do_round

    def spy(crew: Any, order: Any) -> None:
        plain(crew, order)
        sizes.append((order.block.size, sum(report.size for report in crew._reports)))

    monkeypatch.setattr(Crew, "_do_round", spy)
    make("rbf").fit(make_rows())
    assert len(sizes) > 2
    widest = 2 * block_width(make("rbf").n_components, N) + 1  # at first, with sums of rows
    assert all(sent <= N * widest and got == sent for sent, got in sizes)
