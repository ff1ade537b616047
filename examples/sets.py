"""Name a few items, see what else belongs with them, and why.

python examples/sets.py                                # this process
python examples/sets.py --scheduler local              # worker processes, here
python examples/sets.py --rows 1000000 --folder /scratch
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

import distclust

KINDS = ("pasta", "curry", "sushi", "taco", "stew", "salad", "pie", "noodle")
N_INGREDIENTS = 400
TYPICAL = 14  # ingredients that tell a kind of dish from others


def kinds(seed: int = 0) -> np.ndarray:
    """Return how probable every ingredient is in every kind of dish.

    A few are common to all, most are rare, and each kind has some of its own.
    """
    rng = np.random.default_rng(seed)
    shares = np.tile(0.6 / (1.0 + np.arange(N_INGREDIENTS)), (len(KINDS), 1))
    for kind in shares:
        kind[rng.choice(N_INGREDIENTS, TYPICAL, replace=False)] = rng.uniform(0.2, 0.6, TYPICAL)
    return shares


def dishes(n_rows: int) -> Iterator[pd.DataFrame]:
    """Yield tables of dishes and their ingredients, named after their kind."""
    rng = np.random.default_rng(1)
    shares = kinds()
    columns = [f"ingredient {j}" for j in range(N_INGREDIENTS)]
    for start in range(0, n_rows, 5_000):
        n = min(5_000, n_rows - start)
        chosen = rng.integers(0, len(KINDS), n)
        names = [f"{KINDS[kind]} {start + i}" for i, kind in enumerate(chosen)]
        yield pd.DataFrame(rng.random((n, N_INGREDIENTS)) < shares[chosen], names, columns)


def main(scheduler: str, n_rows: int, folder: Path) -> None:
    """Bring dishes into a store, ask, explain, index, save."""
    place = str(folder / "dishes.zarr")
    distclust.ingest(dishes(n_rows), place, layout="compact")
    with distclust.connect(scheduler) as session:
        print(session)
        sets = distclust.BayesianSets().fit(place)
        sushi = [name for name in sets.matrix_.block_ids(0) if name.startswith("sushi")][:3]

        found = sets.query(sushi, k=10)  # reads all rows: there is no index yet
        print(found, "\n")

        # The features that make the set, and what they add to the score of an item.
        explained = sets.explain(sushi, k=10, exclude_query=True, n_features=4)
        for feature in explained.features:
            print(f"{feature.name}: weight {feature.weight:.2f}, {feature.in_corpus:.1%} have it")
        best = explained.results[0]
        because = ", ".join(f"{name} {weight:+.2f}" for name, weight in best.features)
        print(f"{best.id} has {best.log_score:.2f}: {because}, others {best.others:+.2f}\n")

        sets.build_index()  # once; kept beside the store, and brought up to date when it grows
        sets.warm()  # else the first query opens it
        indexed = sets.query(sushi, k=10, engine="index")
        assert indexed.ids.tolist() == found.ids.tolist()
        assert indexed.log_scores.tolist() == found.log_scores.tolist()
        print(f"{sets}: {indexed.seconds * 1e3:.1f} ms instead of {found.seconds * 1e3:.1f} ms")

        rare = distclust.BayesianSets(kappa=0.2).fit(place).query(sushi, k=10)
        print(f"a weaker prior shares {len(set(rare.ids) & set(found.ids))} of 10 answers")

        sets.save(folder / "dishes.sets.model")  # names the store, does not copy it
        loaded = distclust.load(folder / "dishes.sets.model")
        again = loaded.query(sushi, k=10)
        assert again.log_scores.tolist() == found.log_scores.tolist()
        print("the answer is the same after loading")


if __name__ == "__main__":  # worker processes import this file
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scheduler", default="threads", help="threads, local or tcp://HOST:PORT")
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--folder", type=Path, help="for the store; else a temporary one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(given.scheduler, given.rows, given.folder or Path(temporary))
