"""Kernel PCA: fit, grow with new rows, project, save; and a picture of what was found.

python examples/kernel_pca.py
python examples/kernel_pca.py --picture components.png
python examples/kernel_pca.py --scheduler local        # worker processes, here
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import distclust

CENTRES = np.array([[-0.5, -0.2], [0.0, 0.6], [0.5, 0.0]])
SPREAD = 0.1


def clouds(n_rows: int, seed: int) -> np.ndarray:
    """Return points of three round clouds in the plane, shape (n_rows, 2)."""
    rng = np.random.default_rng(seed)
    return CENTRES[rng.integers(0, 3, n_rows)] + SPREAD * rng.normal(size=(n_rows, 2))


def main(scheduler: str, picture: Path | None, folder: Path) -> None:
    """Fit, grow, compare with a fit of everything, project, save."""
    rows, more = clouds(1500, 0), clouds(300, 1)
    with distclust.connect(scheduler) as session:
        print(session)
        model = distclust.KernelPCA(n_components=6, gamma=10.0, random_state=0).fit(rows)
        print(f"fit of {len(rows):,} rows: kernel products {model.n_iter_}")

        # What is known of the old rows is where the search starts: fewer products.
        model.partial_fit(more)
        print(f"{len(more)} more rows: kernel products {model.n_iter_}")
        again = distclust.KernelPCA(n_components=6, gamma=10.0, random_state=0)
        again.fit(np.concatenate([rows, more]))
        difference = np.abs(model.eigenvalues_ - again.eigenvalues_).max()
        print(f"eigenvalues differ from those of a fit of all by {difference:.1e}")
        print(f"residuals are up to {model.residuals_.max():.1e}, which bounds that")
        again.close()

        for number, value in enumerate(model.eigenvalues_, start=1):
            print(f"  component {number}: {value:8.2f}")
        print("coordinates of the centres, rounded:")
        print(model.transform(CENTRES)[:, :2].round(2))

        if picture is not None:
            draw(model, rows, more, picture)
        model.save(folder / "clouds.model")
        loaded = distclust.load(folder / "clouds.model")
        assert np.array_equal(loaded.transform(CENTRES), model.transform(CENTRES))
        print("the coordinates are the same after loading")
        model.close()


def draw(model: distclust.KernelPCA, rows: np.ndarray, more: np.ndarray, path: Path) -> None:
    """Draw each component as a landscape over the plane: what `transform` says there."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    x, y = np.meshgrid(np.linspace(-1.05, 1.05, 160), np.linspace(-0.8, 1.1, 140))
    heights = model.transform(np.column_stack([x.ravel(), y.ravel()]))
    n_shown = len(model.eigenvalues_)
    figure, axes = pyplot.subplots(
        2, -(-n_shown // 2), figsize=(10.5, 6.6), sharex=True, sharey=True, layout="constrained"
    )
    # The first two tell the clouds apart, the others divide each of them.
    for k, (ax, height) in enumerate(zip(axes.ravel(), heights.T, strict=True)):
        limit = np.abs(height).max()
        levels = np.linspace(-limit, limit, 21)
        height = height.reshape(x.shape)
        ax.contourf(x, y, height, levels, cmap="RdBu_r")
        ax.contour(x, y, height, levels[1:-1:2], colors="black", linewidths=0.4, alpha=0.5)
        ax.plot(*rows[::5].T, "o", ms=2.2, color="black", alpha=0.55, mew=0)
        ax.plot(*more[::3].T, "o", ms=2.6, color="gold", mec="black", mew=0.3)
        ax.set_title(f"component {k + 1}   λ = {model.eigenvalues_[k]:.0f}", fontsize=10)
        ax.set_aspect("equal")
    axes[0, 0].plot([], [], "o", ms=4, color="black", alpha=0.55, mew=0, label="fitted")
    axes[0, 0].plot(
        [], [], "o", ms=4, color="gold", mec="black", mew=0.3, label="joined by partial_fit"
    )
    axes[0, 0].legend(loc="lower right", fontsize=8, framealpha=0.9)
    figure.savefig(path, dpi=130)
    print(f"picture written to {path}")


if __name__ == "__main__":  # worker processes import this file
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheduler", default="threads", help="threads, local or tcp://HOST:PORT")
    parser.add_argument("--picture", type=Path, help="draw the components into this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(given.scheduler, given.picture, Path(temporary))
