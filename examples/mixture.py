"""A Dirichlet-process mixture: how many groups there are, how sure that is, and two pictures.

python examples/mixture.py
python examples/mixture.py --pictures folder
python examples/mixture.py --scheduler local        # worker processes, here
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import distclust
from distclust.report.mixtures import draw_coassociation, draw_traces

CENTRES = np.array([[-4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [1.5, -2.5]])


def clouds(n_rows: int, seed: int) -> np.ndarray:
    """Return points of four round clouds in the plane, two of which touch."""
    rng = np.random.default_rng(seed)
    return CENTRES[rng.integers(0, 4, n_rows)] + 0.9 * rng.normal(size=(n_rows, 2))


def main(scheduler: str, pictures: Path | None, folder: Path) -> None:
    """Fit, look at clusters, diagnostics and doubtful rows, predict, save."""
    rows = clouds(400, 0)
    with distclust.connect(scheduler) as session:
        print(session)
        # Looser than the defaults, 1.01 and 400, so that it takes seconds.
        model = distclust.DPMixture(max_sweeps=3000, rhat=1.05, min_samples=100, random_state=0)
        model.fit(rows)

    print(f"{model.n_clusters_} clusters of {np.bincount(model.labels_).tolist()} rows")
    print(f"the chains agreed after {model.n_sweeps_} sweeps: {model.agreed_}")
    for name, rhat in model.diagnostics_["rhat"].items():
        samples = model.diagnostics_["ess_bulk"][name]
        print(f"  {name:13}  R-hat {rhat:.3f}, {samples:.0f} effective samples")

    counts = np.bincount(model.traces_["n_clusters"][:, model.n_sweeps_ // 2 :].ravel().astype(int))
    print("draws have more clusters than their consensus: single rows on their own, now and then")
    for number in np.argsort(-counts, kind="stable")[:4]:
        print(f"  {number} clusters with probability {counts[number] / counts.sum():.2f}")

    # Rows between two clouds know less well where they belong.
    doubtful = np.argsort(model.confidence_)[:3]
    print("the least certain rows:", rows[doubtful].round(1).tolist())
    print("confidence:", model.confidence_[doubtful].round(2).tolist())
    print("how often they lay together:")
    print(model.coassignment(doubtful).round(2))

    print("clusters of the four centres:", model.predict(CENTRES).tolist())
    model.save(folder / "clouds.model")
    loaded = distclust.load(folder / "clouds.model")
    assert np.array_equal(loaded.predict(CENTRES), model.predict(CENTRES))
    print("the same after loading")
    if pictures is not None:
        pictures.mkdir(exist_ok=True)
        draw_traces(model).savefig(pictures / "traces.png", dpi=100)
        draw_coassociation(model).savefig(pictures / "coassociation.png", dpi=100)
        print(f"pictures written to {pictures}")


if __name__ == "__main__":  # worker processes import this file
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheduler", default="threads", help="threads, local or tcp://HOST:PORT")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(given.scheduler, given.pictures, Path(temporary))
