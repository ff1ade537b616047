"""A small corpus that grows from night to night, and a job over it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from distclust.jobs.jobfile import read_job
from distclust.jobs.ledger import JobLedger
from distclust.jobs.published import open_job
from distclust.jobs.record import Record
from distclust.jobs.running import Wish
from distclust.jobs.runs import run_job
from distclust.store.objects import open_objects
from distclust.store.results import ResultsStore

N_FEATURES = 16
PROFILES = np.random.default_rng(5).beta(0.15, 0.15, (8, N_FEATURES))

JOB = """
name = "corpus"
out = "results"
[input]
source = "in/*.csv"
[models.tree]
kind = "rbhc"
[models.tree.parameters]
sample_size = 64
check_size = 64
[models.similar]
kind = "sets"
"""


class Corpus:
    """A folder with a job file and the files that come in."""

    def __init__(self, folder: str | Path, job: str = JOB) -> None:
        self.folder = Path(folder)
        self.inbox = self.folder / "in"
        self.path = self.folder / "job.toml"
        if not self.path.exists():
            self.inbox.mkdir(parents=True)
            self.path.write_text(job)
        self.said: list[str] = []

    @property
    def out(self) -> str:
        return str(self.folder / "results")

    def bring(self, night: int, n_rows: int = 40, kinds: Sequence[int] = (0, 1, 2)) -> Path:
        """Write the file of a night; the same night and kinds give the same rows."""
        rng = np.random.default_rng([night, n_rows, *kinds])
        chosen = np.array(kinds)[rng.integers(0, len(kinds), n_rows)]
        rows = (rng.random((n_rows, N_FEATURES)) < PROFILES[chosen]).astype(int)
        names = [f"f{i}" for i in range(N_FEATURES)]
        ids = pd.Index([f"n{night}-{i}" for i in range(n_rows)], name="id")
        path = self.inbox / f"night{night:03d}.csv"
        pd.DataFrame(rows, columns=names, index=ids).to_csv(path)
        return path

    def run(self, *, refit: tuple[str, ...] = (), accept: bool = False) -> Record:
        """Run the job in this process."""
        job = read_job(self.path)
        wish = Wish(refit, accept)
        return run_job(job, wish, contextlib.nullcontext, "in process", self.said.append)

    def state(self) -> Any:
        return JobLedger(open_objects(self.out)).published()

    def content(self) -> dict[str, Any]:
        """Return what is published, without what differs from run to run."""
        job = open_job(self.out)
        matrix: Any = job.store().matrix()
        labels = np.asarray(job.labels("tree"))
        model = job.model("tree")
        index = ResultsStore(f"{self.out}/models/similar")
        version = index.get(job.state.models["similar"]["version"])
        return {
            "ids": matrix.row_ids.tolist(),
            "rows": _digest(matrix.read_all()),
            "labels": labels.tolist(),
            "tree": model.tree_.to_json(),
            "index": {name: entry.checksum for name, entry in version.files.items()},
        }


def _digest(rows: Any) -> str:
    dense = rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)
    return hashlib.sha256(np.ascontiguousarray(dense, np.float64).tobytes()).hexdigest()


def record_on_disk(corpus: Corpus, run: str) -> dict[str, Any]:
    """Return the record of a run as a program would read it."""
    path = Path(corpus.out) / "runs" / run / "record.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found
