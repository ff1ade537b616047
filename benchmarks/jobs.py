"""What a run of a job costs: every night with a few new rows, and when there is nothing new.

Runs are processes of their own, as cron would start them: `distclust run`. A short run of
another job comes first, so that compiled functions are in their cache as they are from the
second night on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import distclust
from benchmarks.ingest import sparse_batches
from benchmarks.problem import Problem, Results, Size, table

N_CLUSTERS = 40
PACKAGES = Path(np.__file__).parents[1]

NIGHTLY_JOB = """
name = "nightly"
out = "results"
[input]
source = "in/*.csv"
[models.tree]
kind = "rbhc"
[models.similar]
kind = "sets"
"""
KERNEL_JOB = """
name = "kernel"
out = "results"
[input]
source = "in/*.csv"
[models.directions]
kind = "kpca"
parameters = { n_components = 8 }
"""


# ---- rows and runs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """What one process of `distclust run` took.

    Attributes
    ----------
    wall, cpu
        Seconds of the process, from its start to its end.
    record
        What it left behind.
    """

    wall: float
    cpu: float
    record: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the figures."""
        return {
            "wall": self.wall,
            "cpu": self.cpu,
            "inside": self.record["seconds"],
            "stages": self.record["cost"]["stages"],
            "actions": {model["name"]: model["action"] for model in self.record["models"]},
            "rows": self.record["input"]["rows"]["after"],
            "peak_bytes": self.record["cost"]["peak_memory_bytes"],
        }


def run_apart(folder: Path, *options: str) -> Ran:
    """Run the job of a folder in a process of its own."""
    job = folder / "job.toml"
    command = [sys.executable, "-m", "distclust", "run", str(job), "--json", "--quiet", *options]
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None, "it is a pipe"
        told = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begun
    if process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode} of {' '.join(command)}: {told}")
    return Ran(wall, used.ru_utime + used.ru_stime, json.loads(told))


def planted_rows(
    random: np.random.Generator, n_rows: int, profiles: npt.NDArray[np.float64]
) -> npt.NDArray[np.uint8]:
    """Draw zeros and ones, the largest of the clusters ten times the smallest."""
    share = 10.0 ** (-np.arange(len(profiles)) / (len(profiles) - 1))
    chosen = random.choice(len(profiles), n_rows, p=share / share.sum())
    return (random.random((n_rows, profiles.shape[1])) < profiles[chosen]).astype(np.uint8)


def write_rows(path: Path, first: int, rows: npt.NDArray[np.uint8]) -> None:
    """Write a CSV file; ids count on from `first`."""
    n_rows, n_features = rows.shape
    text = np.full((n_rows, 10 + 2 * n_features), ord(","), np.uint8)
    text[:, 0] = ord("r")
    powers = 10 ** np.arange(8, -1, -1)
    text[:, 1:10] = (first + np.arange(n_rows))[:, None] // powers % 10 + ord("0")
    text[:, 11::2] = rows + ord("0")
    lines = np.concatenate([text, np.full((n_rows, 1), ord("\n"), np.uint8)], axis=1)
    header = ",".join(["id", *(f"f{j}" for j in range(n_features))])
    path.write_bytes(f"{header}\n".encode() + lines.tobytes())


def make_folder(folder: Path, job: str) -> Path:
    """Make a folder with a job file; return where its files come in."""
    inbox = folder / "in"
    inbox.mkdir(parents=True)
    (folder / "job.toml").write_text(job, encoding="utf-8")
    return inbox


# ---- every night ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nightly:
    """A corpus, what is made of it, and how many nights are measured."""

    job: str
    n_files: int
    rows_each: int
    n_features: int
    n_nights: int
    is_timed: bool = True


def make_nightly(size: Size) -> list[Nightly]:
    """Ten million rows, and few rows for kernel PCA; or very few."""
    if size == "toy":
        return [Nightly(NIGHTLY_JOB, 4, 250, 16, 1, is_timed=False)]
    return [
        Nightly(NIGHTLY_JOB, 100, 100_000, 384, 3),
        Nightly(KERNEL_JOB, 100, 100, 64, 3),
    ]


def run_nightly(corpora: list[Nightly]) -> Results:
    """Follow one corpus after the other."""
    return {"corpora": [follow_nights(sizes) for sizes in corpora]}


def follow_nights(sizes: Nightly) -> dict[str, Any]:
    """Time the first run, and nights with one file of new rows each."""
    random = np.random.default_rng(0)
    profiles = random.beta(0.3, 0.3, (N_CLUSTERS, sizes.n_features))
    with tempfile.TemporaryDirectory() as place:
        if sizes.is_timed:
            warm_up(Path(place) / "warm", sizes.job, profiles)
        folder = Path(place) / "corpus"
        inbox = make_folder(folder, sizes.job)
        for k in range(sizes.n_files):
            rows = planted_rows(random, sizes.rows_each, profiles)
            write_rows(inbox / f"part{k:04d}.csv", k * sizes.rows_each, rows)
        os.sync()  # or the disk is still busy with what was written here
        full = run_apart(folder)
        nights = []
        n_rows = sizes.n_files * sizes.rows_each
        n_new = max(1, n_rows // 100)
        for night in range(sizes.n_nights):
            rows = planted_rows(random, n_new, profiles)
            write_rows(inbox / f"night{night:04d}.csv", n_rows + night * n_new, rows)
            nights.append(run_apart(folder))
    return {
        "n_rows": n_rows,
        "n_new": n_new,
        "n_features": sizes.n_features,
        "full": full.to_json(),
        "nights": [night.to_json() for night in nights],
    }


def warm_up(folder: Path, job: str, profiles: npt.NDArray[np.float64]) -> None:
    """Run a small job twice, so that whatever is compiled is in its cache."""
    inbox = make_folder(folder, job)
    random = np.random.default_rng(1)
    for night in range(2):
        write_rows(inbox / f"n{night}.csv", 2000 * night, planted_rows(random, 2000, profiles))
        run_apart(folder)


def middle(nights: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the night whose wall time is the median."""
    return sorted(nights, key=lambda night: float(night["wall"]))[(len(nights) - 1) // 2]


def summarise_nightly(results: Results) -> str:
    """Every stage of both, and shares, for each corpus."""
    return "\n\n".join(_summary_of_nights(found) for found in results["corpora"])


def _summary_of_nights(found: dict[str, Any]) -> str:
    full, night = found["full"], middle(found["nights"])
    lines = [_shares("whole process, wall", full["wall"], night["wall"])]
    lines.append(_shares("whole process, CPU", full["cpu"], night["cpu"]))
    lines.append(_shares("the run inside it", full["inside"], night["inside"]))
    stages = {name: None for each in (full, night) for name in each["stages"]}
    for name in stages:
        both = (each["stages"].get(name, 0.0) for each in (full, night))
        lines.append(_shares(f"- {name}", *both))
    actions = ", ".join(f"{name} {what}" for name, what in night["actions"].items())
    text = (
        f"{found['n_rows']:,} rows x {found['n_features']}, then {found['n_new']:,} new rows "
        f"a night; median of {len(found['nights'])} nights ({actions}):"
    )
    header = ["seconds", "full run", "a night", "share"]
    return f"{text}\n\n{table(header, lines)}"


def _shares(name: str, full: float, night: float) -> list[str]:
    share = f"{night / full:.1%}" if full > 0.005 else ""
    return [name, f"{full:.2f}", f"{night:.2f}", share]


# ---- nothing new ---------------------------------------------------------------------------------


QUIET_JOB = """
name = "quiet"
out = "results"
[input]
source = "in/*.csv"
[models.tree]
kind = "rbhc"
[models.similar]
kind = "sets"
"""
STORE_JOB = """
name = "reader"
out = "results"
[input]
store = "many.zarr"
[models.similar]
kind = "sets"
"""


def make_quiet(size: Size) -> int:
    """Files, and blocks of a store."""
    return 10_000 if size == "full" else 20


def run_quiet(n_parts: int) -> Results:
    """Time runs with nothing new: of many files, and of a store of many blocks."""
    with tempfile.TemporaryDirectory() as place:
        files = Path(place) / "files"
        inbox = make_folder(files, QUIET_JOB)
        random = np.random.default_rng(0)
        profiles = random.beta(0.3, 0.3, (8, 16))
        for k in range(n_parts):
            write_rows(inbox / f"part{k:05d}.csv", 4 * k, planted_rows(random, 4, profiles))
        store = Path(place) / "store"
        make_folder(store, STORE_JOB)
        write_blocks(store / "many.zarr", n_parts)
        found = {"files": quiet_runs(files), "store": quiet_runs(store)}
    return {"n_parts": n_parts, **found}


def write_blocks(path: Path, n_blocks: int) -> None:
    """Write a store of many blocks, each as small as blocks get."""
    from distclust.store import block_rows_for

    n_features = 100_000  # from here on blocks are small
    rows_each = block_rows_for(n_features, is_sparse=True)
    distclust.ingest(sparse_batches(n_blocks, rows_each, n_features), str(path))


def quiet_runs(folder: Path) -> dict[str, Any]:
    """Return what the first run took, one from the disk, and three more."""
    first = run_apart(folder)
    forget_files(folder, PACKAGES, Path(distclust.__file__).parent)
    runs = [run_apart(folder) for _ in range(4)]
    if any(run.record["outcome"] != "nothing new" for run in runs):
        raise RuntimeError("a run with nothing new did something")
    warm = min(runs[1:], key=lambda run: run.wall)
    return {"first": first.to_json(), "cold": runs[0].to_json(), "warm": warm.to_json()}


def forget_files(*folders: Path) -> None:
    """Ask the system to drop what it holds of files in memory."""
    os.sync()
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def summarise_quiet(results: Results) -> str:
    """Whole processes, with files in memory or not."""
    lines = []
    for name, key in (("files", "files"), ("blocks of a store that is only read", "store")):
        cold, warm = results[key]["cold"], results[key]["warm"]
        figures = (cold["wall"], warm["wall"], warm["cpu"], warm["inside"])
        lines.append([f"{results['n_parts']:,} {name}", *(f"{s:.2f}" for s in figures)])
    header = ["nothing new in", "from the disk, s", "wall, s", "CPU, s", "the run inside, s"]
    return table(header, lines)


def problems() -> list[Problem]:
    """All problems of this module."""
    return [
        Problem(
            "jobs-nightly",
            "a night with 1 % new rows as a share of a full run of a job",
            make_nightly,
            run_nightly,
            summarise_nightly,
        ),
        Problem(
            "jobs-quiet",
            "a run of a job with nothing new in 10,000 files or blocks",
            make_quiet,
            run_quiet,
            summarise_quiet,
        ),
    ]
