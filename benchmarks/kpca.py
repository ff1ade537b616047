"""Kernel PCA: speed against scikit-learn at equal accuracy, growth, memory, workers, overhead.

Rows have 50 columns. "clusters": 30 Gaussian clusters, whose kernel has 29 eigenvalues of
about one size and then a gap. "decay": 12 clusters in columns of falling scale, eigenvalues
that fall without a gap. RBF kernel with gamma 1/50, 20 components, tolerance 1e-6.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from sklearn.decomposition import KernelPCA as SklearnKernelPCA

from benchmarks.problem import Problem, Results, Size, table
from distclust.engine import Crew, Vault, connect, one_blas_thread
from distclust.engine.crews.crew import SECONDS_BETWEEN_SAVES
from distclust.engine.crews.role import Room
from distclust.engine.threads import grant_threads, thread_map
from distclust.projections import KernelPCA
from distclust.projections.kernels import Kernel, Preparation
from distclust.projections.krylov import Krylov, Subspace, block_width
from distclust.projections.shards import KernelProducts, n_shards
from distclust.projections.starting import near_block
from distclust.projections.subspace import centred, orthonormal
from distclust.store.objects import open_objects

Doubles = npt.NDArray[np.float64]

COLUMNS = 50
GAMMA = 1.0 / COLUMNS
COMPONENTS = 20
TOLERANCE = 1e-6

_POLL_SECONDS = 0.05
_MOST_SETTLED = 2_000_000_000
# Bytes for tiles where a loop is compared with a crew: memory that is touched later than a second
# after it was settled comes from the host again, and takes as long as the work.
_QUICKLY_TOUCHED = 800_000_000


@dataclass(frozen=True)
class Sizes:
    """Numbers of rows, and how often a fit is tried: the best counts."""

    rows: tuple[int, ...]
    tries: int = 3
    components: int = COMPONENTS
    budget: int = 2_200_000_000  # which leaves 1.8 of 4 GB for all else: three processes


def rows_of(kind: str, n_rows: int) -> Doubles:
    """Rows of one of the two kinds, the same ones every time."""
    random = np.random.default_rng(0)
    if kind == "clusters":
        centres = 1.5 * random.normal(size=(30, COLUMNS))
        noise = 0.7 * random.normal(size=(n_rows, COLUMNS))
        return np.asarray(centres[random.integers(30, size=n_rows)] + noise)
    centres = random.normal(size=(12, COLUMNS))
    rows = centres[random.integers(12, size=n_rows)] + random.normal(size=(n_rows, COLUMNS))
    return np.asarray(rows * 2.0 / np.sqrt(1.0 + np.arange(COLUMNS)))


def model_of(sizes: Sizes, **options: Any) -> KernelPCA:
    """Our estimator as it is measured."""
    settings = {"gamma": GAMMA, "tolerance": TOLERANCE, "random_state": 0} | options
    return KernelPCA(sizes.components, **settings)


def seconds_of(action: Callable[[], Any]) -> float:
    """Return how long it takes."""
    gc.collect()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def settle_memory(n_rows: int) -> None:
    """Touch as much memory as the matrix and a copy of it take, and let it go.

    A virtual machine gets memory from its host when it is touched and gives it back a second
    after it is free; to get it again takes longer than the work that is measured.
    """
    n_bytes = min(2 * 8 * n_rows**2, _MOST_SETTLED)
    np.empty(n_bytes // 8)[::512] = 0.0


# ---- speed ---------------------------------------------------------------------------------------


def make_speed_sizes(size: Size) -> Sizes:
    """Ten thousand rows."""
    return Sizes((10_000,)) if size == "full" else Sizes((600,), 1, 3)


def run_speed(sizes: Sizes) -> Results:
    """Ours in process and on two workers, scikit-learn's solvers, all on the same rows."""
    return {
        "rows": sizes.rows[0],
        "components": sizes.components,
        "kinds": {kind: _race(kind, sizes) for kind in ("clusters", "decay")},
    }


def _race(kind: str, sizes: Sizes) -> dict[str, Any]:
    """All take turns: a machine that changes its pace changes it for all. The best time counts."""
    n_rows = sizes.rows[0]
    everything = rows_of(kind, n_rows + n_rows // 100)
    rows, added = everything[:n_rows], everything[n_rows:]
    found: dict[str, Any] = {}
    with connect("local", workers=2, threads=1):
        for _ in range(sizes.tries):
            for name, run in _runners(sizes):
                gc.collect()
                settle_memory(n_rows)
                facts = run(rows, added)
                known = found.setdefault(name, facts)
                for key in ("seconds", "grow_seconds"):
                    if key in facts:
                        known[key] = min(known[key], facts[key])
    truth = _matrix(rows)
    for facts in found.values():
        vectors = facts.pop("vectors")
        facts["residual"] = _residual(truth, facts.pop("values"), vectors)
    return found


def _runners(sizes: Sizes) -> Iterator[tuple[str, Callable[[Doubles, Doubles], dict[str, Any]]]]:
    for solver in ("arpack", "randomized"):
        yield f"scikit-learn, {solver}", functools.partial(_peer, sizes, solver)
    for dtype in ("float64", "float32"):
        yield f"distclust, in process, {dtype}", functools.partial(_here, sizes, dtype)
        yield f"distclust, two workers, {dtype}", functools.partial(_ours, sizes, dtype)


def _peer(sizes: Sizes, solver: str, rows: Doubles, _: Doubles) -> dict[str, Any]:
    model = SklearnKernelPCA(
        sizes.components,
        kernel="rbf",
        gamma=GAMMA,
        eigen_solver=solver,
        tol=TOLERANCE,
        random_state=0,
    )
    start = time.perf_counter()
    model.fit(rows)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "values": model.eigenvalues_, "vectors": model.eigenvectors_}


def _here(sizes: Sizes, dtype: str, rows: Doubles, added: Doubles) -> dict[str, Any]:
    with connect("threads"):
        return _ours(sizes, dtype, rows, added)


def _ours(sizes: Sizes, dtype: str, rows: Doubles, added: Doubles) -> dict[str, Any]:
    model = model_of(sizes, dtype=dtype)
    start = time.perf_counter()
    model.fit(rows)
    seconds = time.perf_counter() - start
    facts = {
        "seconds": seconds,
        "values": model.eigenvalues_,
        "vectors": model.components_.T,
        "products": model.n_iter_,
    }
    start = time.perf_counter()
    model.partial_fit(added)
    grow_seconds = time.perf_counter() - start
    model.close()
    return facts | {"grow_seconds": grow_seconds, "grow_products": model.n_iter_}


def _matrix(rows: Doubles) -> Doubles:
    norms = np.einsum("ij,ij->i", rows, rows)
    distances = np.maximum(norms[:, None] + norms - 2.0 * rows @ rows.T, 0.0)
    return np.asarray(np.exp(-GAMMA * distances))


def _residual(matrix: Doubles, values: Doubles, vectors: Doubles) -> float:
    """Return the largest residual of the centred matrix, in parts of the largest eigenvalue."""
    product = centred(matrix @ centred(vectors))
    worst = np.linalg.norm(product - vectors * values, axis=0).max()
    return float(worst / values[0])


def summarise_speed(results: Results) -> str:
    """Times, ratios and true residuals."""
    parts = []
    for kind, found in results["kinds"].items():
        peer = min(facts["seconds"] for name, facts in found.items() if "scikit" in name)
        lines = []
        for name, facts in found.items():
            grow = facts.get("grow_seconds")
            more = "" if grow is None else f"{grow:.3f} s ({grow / facts['seconds']:.0%})"
            ratio = "" if grow is None else f"{peer / facts['seconds']:.1f}"
            products = str(facts.get("products", ""))
            if grow is not None:
                products += f" + {facts['grow_products']}"
            line = [name, f"{facts['seconds']:.2f} s", ratio, f"{facts['residual']:.0e}"]
            lines.append([*line, products, more])
        header = ["", "fit", "times faster than the fastest peer", "true residual", "products"]
        parts.append(f"Rows of kind {kind}:\n\n" + table([*header, "1 % more rows"], lines))
    shape = f"{results['rows']:,} rows x {COLUMNS}, {results['components']} components."
    return "\n\n".join([shape, *parts])


# ---- growth, memory, workers ---------------------------------------------------------------------


def make_scale_sizes(size: Size) -> Sizes:
    """From five to forty thousand rows."""
    if size == "full":
        return Sizes((5_000, 10_000, 20_000, 40_000))
    return Sizes((600, 1200), 1, 3, 10_000_000)


def run_scale(sizes: Sizes) -> Results:
    """Fits on one and on two workers within a budget; what a round takes, and memory."""
    found: list[dict[str, Any]] = []
    for n_workers in (1, 2):
        with connect("local", workers=n_workers, threads=1):
            model_of(sizes).fit(
                rows_of("clusters", sizes.rows[0])
            ).close()  # loads what is compiled
            for n_rows in sizes.rows:
                rows = rows_of("clusters", n_rows)
                for budget in (sizes.budget, 1):  # kept as far as it goes; nothing kept
                    tries = [_watched(rows, n_workers, budget, sizes) for _ in range(sizes.tries)]
                    found.append(min(tries, key=lambda fit: fit["seconds"]))
    return {"fits": found, "budget": sizes.budget, "components": sizes.components}


def _watched(rows: Doubles, n_workers: int, budget: int, sizes: Sizes) -> dict[str, Any]:
    settle_memory(len(rows))
    with peak_memory() as peak:
        start = time.perf_counter()
        model = model_of(sizes, memory_budget=budget).fit(rows)
        seconds = time.perf_counter() - start
    model.close()
    return {
        "rows": len(rows),
        "workers": n_workers,
        "kept": budget > 1,
        "seconds": seconds,
        "products": model.n_iter_,
        "residual": float(model.residuals_.max() / model.eigenvalues_[0]),
        "client_bytes": peak["client"],
        "worker_bytes": peak["workers"],
    }


@contextlib.contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Watch resident memory of this process, and of its children together."""
    peak = {"client": 0, "workers": 0}
    is_over = threading.Event()
    me = psutil.Process(os.getpid())

    def poll() -> None:
        while not is_over.wait(_POLL_SECONDS):
            peak["client"] = max(peak["client"], me.memory_info().rss)
            total = 0
            for child in me.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += child.memory_info().rss
            peak["workers"] = max(peak["workers"], total)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()


def summarise_scale(results: Results) -> str:
    """A line a number of rows; the exponent of a round."""
    fits = results["fits"]

    def at(n_rows: int, workers: int, *, kept: bool) -> dict[str, Any]:
        wanted = (n_rows, workers, kept)
        return next(f for f in fits if (f["rows"], f["workers"], f["kept"]) == wanted)

    sizes = sorted({fit["rows"] for fit in fits})
    lines = []
    for n_rows in sizes:
        one, two = at(n_rows, 1, kept=True), at(n_rows, 2, kept=True)
        bare, bare_two = at(n_rows, 1, kept=False), at(n_rows, 2, kept=False)
        lines.append(
            [
                f"{n_rows:,}",
                f"{8e-9 * n_rows**2:.1f} GB",
                f"{two['seconds']:.2f} s",
                f"{one['seconds'] / two['seconds']:.2f}",
                f"{(two['worker_bytes'] + two['client_bytes']) / 1e9:.2f} GB",
                f"{bare_two['seconds'] / bare_two['products']:.3f} s",
                f"{bare['seconds'] / bare_two['seconds']:.2f}",
                f"{two['residual']:.0e}",
            ]
        )
    first, last = (at(n, 2, kept=False) for n in (sizes[0], sizes[-1]))
    ratio = (last["seconds"] / last["products"]) / (first["seconds"] / first["products"])
    exponent = np.log(ratio) / np.log(sizes[-1] / sizes[0])
    header = [
        "rows",
        "the matrix",
        "fit, two workers",
        "one worker takes, times",
        "peak of all processes",
        "a round, nothing kept",
        "one worker takes, times",
        "residual",
    ]
    text = (
        f"{results['components']} components, float64, `memory_budget` "
        f"{results['budget'] / 1e9:g} GB. A round with nothing kept grows as the "
        f"{exponent:.2f}th power of the rows."
    )
    return f"{text}\n\n{table(header, lines)}"


# ---- overhead ------------------------------------------------------------------------------------


def make_overhead_sizes(size: Size) -> Sizes:
    """Ten and twenty thousand rows."""
    return Sizes((10_000, 20_000), 11) if size == "full" else Sizes((600,), 1, 3)


def run_overhead(sizes: Sizes) -> Results:
    """The same products in a plain loop, in a crew here, in crews on workers, and saved."""
    lines = []
    for n_rows in sizes.rows:
        role = _role(rows_of("clusters", n_rows))
        loop = functools.partial(_loop, role, sizes.components)
        crew = functools.partial(_follow, role, sizes.components)
        facts: dict[str, Any] = {"rows": n_rows}
        here = {"loop": lambda: loop(2), "crew": crew, "loop, again": lambda: loop(2)}  # noqa: B023
        facts |= in_turns(sizes.tries, n_rows, here)
        with connect("local", workers=1, threads=1):
            alone = functools.partial(crew, threads=1)
            pair = {"loop, one thread": lambda: loop(1), "one worker": alone}  # noqa: B023
            facts |= in_turns(sizes.tries, n_rows, pair)
        with connect("local", workers=2, threads=1), tempfile.TemporaryDirectory() as folder:
            saving = functools.partial(crew, folder, every=1)
            pair = {"two workers": crew, "two workers, saved every round": saving}
            facts |= in_turns(sizes.tries, n_rows, pair)
            n_rounds = crew().n_products
        bare, saved = (min(facts[name]) for name in pair)
        facts["a checkpoint"] = [(saved - bare) / n_rounds]
        lines.append(facts)
    return {"lines": lines, "components": sizes.components}


def in_turns(
    tries: int, n_rows: int, actions: dict[str, Callable[[], Any]]
) -> dict[str, list[float]]:
    """Return the times of each; all take turns, there and back, as the machine changes its pace."""
    found: dict[str, list[float]] = {name: [] for name in actions}
    for i in range(tries):
        for name, action in list(actions.items())[:: (-1) ** i]:
            settle_memory(n_rows)
            found[name].append(seconds_of(action))
    return found


def more_than(seconds: list[float], reference: list[float]) -> str:
    """Return what is added to a reference: the best of each, as others only ever slow us down."""
    return f"{min(seconds) / min(reference) - 1:+.1%}"


def _role(rows: Doubles) -> KernelProducts:
    kernel = Kernel("rbf", GAMMA)
    return KernelProducts(rows, kernel, "float64", rows.mean(axis=0), _QUICKLY_TOUCHED)


def _plan(role: KernelProducts, n_components: int, settle: Callable[[], None]) -> Krylov:
    """Find a block to start from, as a fit does."""
    n_rows = len(role.rows)
    preparation = Preparation(role.kernel, role.dtype, role.middle)
    width = block_width(n_components, n_rows)
    near = near_block(preparation, role.rows, width, 0, preparation.tiles)
    settle()
    start = Subspace.starting_with(orthonormal(near), n_components)
    return Krylov(start, n_components, TOLERANCE, 1000, float(n_rows), may_round=True)


def _loop(role: KernelProducts, n_components: int, threads: int) -> Subspace:
    """Do without a crew."""
    place = role.open(None, Room())
    members = range(n_shards(len(role.rows)))
    with one_blas_thread, grant_threads(threads):
        plan = _plan(role, n_components, lambda: None)
        state = plan.begin()
        while (order := plan.order(state)) is not None:
            reports = thread_map(lambda m: place.multiply(m, order), members, threads)
            state = plan.absorb(state, reports)
    return state


def _follow(
    role: KernelProducts,
    n_components: int,
    folder: str | None = None,
    threads: int = 2,
    **options: Any,
) -> Subspace:
    vault = None
    if folder is not None:
        vault = Vault(open_objects(folder), f"run-{time.monotonic_ns()}", "benchmark")
    crew = Crew(role, n_shards(len(role.rows)), vault=vault, **options)
    with one_blas_thread, crew, grant_threads(threads):  # as a fit does, and the loop
        return crew.follow(_plan(role, n_components, crew.settle))


_COMPARED_WITH = {"crew": "loop", "loop, again": "loop", "one worker": "loop, one thread"}


# ---- checkpoints ---------------------------------------------------------------------------------


def make_checkpoint_sizes(size: Size) -> Sizes:
    """A fit of half a minute: shorter ones are hardly ever saved."""
    return Sizes((40_000,), 2) if size == "full" else Sizes((600,), 1, 3)


def run_checkpoints(sizes: Sizes) -> Results:
    """The same fit on two workers without a results store and with one, as it comes."""
    rows = rows_of("clusters", sizes.rows[0])

    def fit(results: str | None) -> None:
        model_of(sizes, memory_budget=sizes.budget).fit(rows, results=results, fresh=True).close()

    with connect("local", workers=2, threads=1), tempfile.TemporaryDirectory() as folder:
        pair = {"without": lambda: fit(None), "with": lambda: fit(folder)}
        facts = in_turns(sizes.tries, len(rows), pair)
    return {"rows": len(rows), "components": sizes.components, "seconds": facts}


def summarise_checkpoints(results: Results) -> str:
    """Both times, and what saving adds."""
    bare, saved = results["seconds"]["without"], results["seconds"]["with"]
    lines = [
        ["without a results store", f"{min(bare):.2f} s", ""],
        [
            "with one: saved every ten seconds, published",
            f"{min(saved):.2f} s",
            f"{min(saved) / min(bare) - 1:+.1%}",
        ],
    ]
    text = f"{results['rows']:,} rows x {COLUMNS}, {results['components']} components, two workers."
    return f"{text}\n\n{table(['', 'fit', 'more'], lines)}"


def summarise_overhead(results: Results) -> str:
    """The best of the turns, what is added to the plain loop, and the price of a checkpoint.

    The loop comes twice: by how much the two differ, no other difference means anything.
    """
    names = [name for name in results["lines"][0] if name != "rows"]
    lines = []
    for name in names:
        line = [name]
        for facts in results["lines"]:
            reference = _COMPARED_WITH.get(name)
            seconds = min(facts[name])
            if name == "a checkpoint":
                share = seconds / SECONDS_BETWEEN_SAVES
                line.append(f"{seconds:.3f} s ({share:.1%} at one in ten seconds)")
                continue
            more = "" if reference is None else f" ({more_than(facts[name], facts[reference])})"
            line.append(f"{seconds:.2f} s{more}")
        lines.append(line)
    return table(["", *(f"{facts['rows']:,} rows" for facts in results["lines"])], lines)


def problems() -> list[Problem]:
    """The problems of this module."""
    return [
        Problem(
            "kpca-speed",
            "kernel PCA against scikit-learn on the same rows, and 1 % more rows",
            make_speed_sizes,
            run_speed,
            summarise_speed,
        ),
        Problem(
            "kpca-scale",
            "kernel PCA from 5,000 to 40,000 rows: time, memory, one and two workers",
            make_scale_sizes,
            run_scale,
            summarise_scale,
        ),
        Problem(
            "kpca-overhead",
            "what a crew costs beside a plain loop, and what checkpoints cost",
            make_overhead_sizes,
            run_overhead,
            summarise_overhead,
        ),
        Problem(
            "kpca-checkpoints",
            "a fit of kernel PCA that saves its state, and one that does not",
            make_checkpoint_sizes,
            run_checkpoints,
            summarise_checkpoints,
        ),
    ]
