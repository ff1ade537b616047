"""Seconds and bytes: exact trees against linkage, with and without the key matrix, start-up.

Every first call is outside the timing (it compiles or loads machine code). Contenders take
turns, and the best of several repeats counts, as wall and as processor time. Two threads.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import linkage

from benchmarks.problem import Problem, Results, Size, table
from distclust import BHC, BayesianRoseTree
from distclust.families import Gaussian

THREADS = 2
N_CLUSTERS = 20

# Measured elsewhere on comparable hardware, one thread each, 4 true clusters.
R_BHC_SECONDS = 84.0  # R's BHC, 1,600 x 20 binary, processor seconds
PYTHON_BHC_SECONDS = 70.0  # the Python package of rose trees and BHC, 300 x 2 Gaussian

_MEGABYTE = 1e6


# ---- data and clocks -----------------------------------------------------------------------------


def binary_rows(n: int, d: int, n_clusters: int = N_CLUSTERS) -> npt.NDArray[np.uint8]:
    """Rows of a mixture of clusters; chances of ones from Beta(1/2, 1/2)."""
    random = np.random.default_rng(0)
    chances = random.beta(0.5, 0.5, (n_clusters, d))
    members = random.integers(0, n_clusters, n)
    return (random.random((n, d)) < chances[members]).astype(np.uint8)


def real_rows(n: int, d: int, n_clusters: int = N_CLUSTERS) -> npt.NDArray[np.float64]:
    """Rows of a mixture of unit Gaussians with centres of standard deviation 4."""
    random = np.random.default_rng(0)
    centres = 4.0 * random.standard_normal((n_clusters, d))
    members = random.integers(0, n_clusters, n)
    noise: npt.NDArray[np.float64] = random.standard_normal((n, d))
    return centres[members] + noise


def best_of(repeats: int, *calls: Callable[[], object]) -> list[dict[str, float]]:
    """Least wall and processor seconds of each call; the calls take turns."""
    times = [{"wall": math.inf, "cpu": math.inf} for _ in calls]
    for _ in range(repeats):
        for call, best in zip(calls, times, strict=True):
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            best["wall"] = min(best["wall"], time.perf_counter() - wall)
            best["cpu"] = min(best["cpu"], time.process_time() - cpu)
    return times


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Let fits use a number of threads."""
    before = os.environ.get("DISTCLUST_THREADS")
    os.environ["DISTCLUST_THREADS"] = str(number)
    try:
        yield
    finally:
        del os.environ["DISTCLUST_THREADS"]
        if before is not None:
            os.environ["DISTCLUST_THREADS"] = before


# ---- against linkage -----------------------------------------------------------------------------


def make_linkage_data(size: Size) -> list[npt.NDArray[np.uint8]]:
    """Binary rows of 64 columns, from a thousand to ten thousand."""
    sizes = (1_000, 2_000, 5_000, 10_000) if size == "full" else (40, 80)
    return [binary_rows(n, 64) for n in sizes]


def run_linkage(matrices: list[npt.NDArray[np.uint8]]) -> Results:
    """Exact BHC and average linkage on the same rows, in turns."""
    rows = []
    with threads(THREADS):
        BHC().fit(matrices[0])
        for X in matrices:
            tree, average = best_of(
                _repeats(len(X)),
                lambda X=X: BHC().fit(X),
                lambda X=X: linkage(X.astype(float), "average"),
            )
            rows.append({"n": len(X), "bhc": tree, "linkage": average})
    return {"rows": rows, "threads": THREADS}


def _repeats(n: int) -> int:
    return 7 if n <= 2_000 else 3


def summarise_linkage(results: Results) -> str:
    """Seconds and their ratio by number of rows, and the growth of BHC's time."""
    rows = results["rows"]
    lines = [
        [
            f"{row['n']:,}",
            _seconds(row["bhc"]["wall"]),
            _seconds(row["bhc"]["cpu"]),
            _seconds(row["linkage"]["wall"]),
            f"{row['bhc']['wall'] / row['linkage']['wall']:.2f}",
        ]
        for row in rows
    ]
    header = ["rows x 64", "BHC wall s", "BHC CPU s", "average linkage wall s", "ratio"]
    first, last = rows[0], rows[-1]
    text = (
        f"BHC's time grows like n^{growth(results):.2f} from {first['n']:,} to {last['n']:,} rows."
    )
    return f"{table(header, lines)}\n\n{text}"


def growth(results: Results) -> float:
    """Exponent of the growth of BHC's wall time from the least to the largest size."""
    first, last = results["rows"][0], results["rows"][-1]
    return math.log(last["bhc"]["wall"] / first["bhc"]["wall"]) / math.log(last["n"] / first["n"])


# ---- key matrix or not ---------------------------------------------------------------------------


def make_memory_data(size: Size) -> int:
    """Number of rows."""
    return 10_000 if size == "full" else 60


def run_memory(n: int) -> Results:
    """Time, extra memory and trees of both paths."""
    X = binary_rows(n, 64)
    with_keys, without = BHC(), BHC(key_budget=0.0)
    with threads(THREADS):
        with_keys.fit(X)
        without.fit(X)
        times = best_of(2, lambda: BHC().fit(X), lambda: BHC(key_budget=0.0).fit(X))
    structures = with_keys.tree_.structure, without.tree_.structure
    same = all(np.array_equal(*pair) for pair in zip(*(s.arrays for s in structures), strict=True))
    same = same and np.array_equal(with_keys.tree_.log_marginal, without.tree_.log_marginal)
    return {
        "n": n,
        "identical": bool(same),
        "with_keys": {**times[0], "extra_bytes": extra_bytes(n, 1e9)},
        "without_keys": {**times[1], "extra_bytes": extra_bytes(n, 0.0)},
    }


def extra_bytes(n: int, key_budget: float) -> int:
    """Peak memory of a fit above what its process held before, measured in a fresh process."""
    code = f"from benchmarks.speed import fit_and_tell; fit_and_tell({n}, {key_budget})"
    return int(_python(code, {"DISTCLUST_THREADS": str(THREADS)}))


def fit_and_tell(n: int, key_budget: float) -> None:
    """Print the extra peak bytes of a warm fit; called in a process of its own."""
    BHC(key_budget=key_budget).fit(binary_rows(200, 64))
    X = binary_rows(n, 64)
    before = _reset_peak()
    BHC(key_budget=key_budget).fit(X)
    print(max(0, _status("VmHWM") - before))


def _reset_peak() -> int:
    """Set the peak of this process to what it holds now (Linux); return that."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def summarise_memory(results: Results) -> str:
    """Both paths side by side."""
    lines = []
    for name, key in (("key matrix", "with_keys"), ("O(n) memory", "without_keys")):
        path = results[key]
        lines.append([name, _seconds(path["wall"]), f"{path['extra_bytes'] / _MEGABYTE:.0f}"])
    ratio = results["without_keys"]["wall"] / results["with_keys"]["wall"]
    same = "identical" if results["identical"] else "DIFFERENT"
    header = [f"{results['n']:,} x 64", "wall s", "extra MB"]
    return f"{table(header, lines)}\n\nRatio of times {ratio:.2f}; the trees are {same}."


# ---- families and variants -----------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Rows of a kind, the models to fit, and the seconds another package needs for them."""

    X: npt.NDArray[Any]
    models: dict[str, Any]
    theirs: tuple[str, float] | None = None


def make_variant_data(size: Size) -> list[Shape]:
    """Rows of each measured shape."""
    part = 1 if size == "full" else 40
    gaussians = {
        "BHC, Gaussian, one scale": BHC(Gaussian(scale=0.03)),
        "BHC, Gaussian, five scales (default)": BHC(),
    }
    variants = ("brt", "brt-gamma", "brt-dp", "bhc-gamma")
    roses = {f"rose tree, {variant}": BayesianRoseTree(variant) for variant in variants}
    return [
        Shape(real_rows(300 // part, 2, 4), gaussians, ("Python's BHC", PYTHON_BHC_SECONDS)),
        Shape(real_rows(3_000 // part, 10), gaussians),
        Shape(
            binary_rows(1_600 // part, 20, 4), {"BHC, Bernoulli": BHC()}, ("R's BHC", R_BHC_SECONDS)
        ),
        Shape(binary_rows(2_000 // part, 64), roses),
    ]


def run_variants(shapes: list[Shape]) -> Results:
    """Seconds of a fit of each model on each shape."""
    fits = []
    with threads(THREADS):
        for shape in shapes:
            for name, model in shape.models.items():
                model.fit(shape.X)
                spent = best_of(3, lambda model=model, X=shape.X: model.fit(X))[0]
                fits.append(
                    {"model": name, "shape": shape.X.shape, "theirs": shape.theirs, **spent}
                )
    return {"fits": fits}


def summarise_variants(results: Results) -> str:
    """Seconds, and ratios to the figures of other packages."""
    lines = []
    for spent in results["fits"]:
        ratio = ""
        if spent["theirs"] is not None:
            name, seconds = spent["theirs"]
            ratio = f"{seconds / spent['cpu']:,.0f} ({name}: {seconds:.0f} s)"
        n, d = spent["shape"]
        shape = f"{n:,} x {d}"
        lines.append(
            [spent["model"], shape, _seconds(spent["wall"]), _seconds(spent["cpu"]), ratio]
        )
    return (
        f"{table(['fit', 'rows', 'wall s', 'CPU s', 'times faster than'], lines)}\n\n"
        "The seconds of the other packages were measured elsewhere on comparable hardware, on "
        "one thread; ratios are of processor seconds."
    )


# ---- start-up ------------------------------------------------------------------------------------


def make_start_data(size: Size) -> int:
    """Number of repeats; 0 leaves the demo out."""
    return 5 if size == "full" else 0


def run_start(repeats: int) -> Results:
    """Seconds to import, and of the demo without and with cached machine code."""
    code = (
        "import time; start = time.perf_counter(); import distclust; "
        "print(time.perf_counter() - start)"
    )
    results: Results = {"import": min(float(_python(code)) for _ in range(max(1, repeats)))}
    if repeats:
        with tempfile.TemporaryDirectory() as folder:
            results["first_demo"] = _demo_seconds(Path(folder))
            results["second_demo"] = min(_demo_seconds(Path(folder)) for _ in range(2))
    return results


def _demo_seconds(folder: Path) -> float:
    code = f"from distclust.cli import main; main(['demo', '--out', {str(folder / 'demo')!r}])"
    start = time.perf_counter()
    _python(code, {"DISTCLUST_CACHE_DIR": str(folder / "cache")})
    return time.perf_counter() - start


def summarise_start(results: Results) -> str:
    """Seconds of each start."""
    names = {
        "import": "`import distclust`",
        "first_demo": "`distclust demo`, nothing compiled yet",
        "second_demo": "`distclust demo`, again",
    }
    return table(
        ["start", "wall s"],
        [[names[key], _seconds(value)] for key, value in results.items()],
    )


# ---- helpers -------------------------------------------------------------------------------------


def _python(code: str, environment: dict[str, str] | None = None) -> str:
    """Run code in a fresh interpreter at the project's root; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | (environment or {}),
        cwd=Path(__file__).parents[1],
    )
    return done.stdout.strip()


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1.0 else f"{value:.2f}"


def problems() -> list[Problem]:
    """The benchmarks of this module."""
    return [
        Problem(
            "speed-linkage",
            "exact BHC against scipy's average linkage",
            make_linkage_data,
            run_linkage,
            summarise_linkage,
        ),
        Problem(
            "speed-memory",
            "with and without the key matrix: tree, time, memory",
            make_memory_data,
            run_memory,
            summarise_memory,
        ),
        Problem(
            "speed-variants",
            "Gaussian and Bernoulli BHC, rose trees",
            make_variant_data,
            run_variants,
            summarise_variants,
        ),
        Problem(
            "speed-start",
            "import and demo, cold and warm",
            make_start_data,
            run_start,
            summarise_start,
        ),
    ]
