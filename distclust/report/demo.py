"""The script behind ``distclust demo``: cluster an invented notebook, tell, draw."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distclust.report.demo_data import KINDS, Notebook, field_notebook
from distclust.report.page import Placed, render
from distclust.report.pictures import write_picture
from distclust.report.plan import Plan, plan_fit
from distclust.report.summary import Summary, summarise
from distclust.report.terminal import cluster_table, count, headline, percent
from distclust.store.files import write_text

if TYPE_CHECKING:
    from rich.console import Console

    from distclust.trees import BHC

TITLE = "A field notebook, clustered"


@dataclass(frozen=True)
class Found:
    """What the demo found."""

    notebook: Notebook
    model: BHC
    summary: Summary
    placed: tuple[Placed, ...]
    agreement: float  # adjusted Rand index with the kinds the notebook was made from
    purity: float  # dendrogram purity for the same kinds

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        placed = [
            {"row": p.name, "cluster": p.label, "probability": p.probability} for p in self.placed
        ]
        return {
            **self.summary.as_dict(),
            "new_rows": placed,
            "adjusted_rand": self.agreement,
            "dendrogram_purity": self.purity,
        }


def plan() -> Plan:
    """Estimate the demo, cluster start and first compilation included."""
    from distclust.trees import BHC

    return plan_fit(BHC(optimize=True), field_notebook().seen, start_seconds=40.0)


def run(seed: int = 0) -> Found:
    """Fit the notebook where the session says, and place the animals kept back."""
    from sklearn.metrics import adjusted_rand_score

    from distclust.metrics import dendrogram_purity
    from distclust.trees import BHC

    notebook = field_notebook(seed)
    model = BHC(optimize=True, random_state=seed).fit(notebook.seen)
    chances = np.asarray(model.predict_proba(notebook.unseen))
    placed = tuple(
        Placed(str(name), int(row.argmax()), float(row.max()))
        for name, row in zip(notebook.unseen.index, chances, strict=True)
    )
    return Found(
        notebook,
        model,
        summarise(model, n_features=3),
        placed,
        float(adjusted_rand_score(notebook.kinds, model.labels_)),
        float(dendrogram_purity(model.tree_, notebook.kinds)),
    )


def write(found: Found, folder: Path) -> dict[str, str]:
    """Write picture, page and data into `folder`; return what lies where."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {
        "picture": folder / "tree.png",
        "page": folder / "index.html",
        "data": folder / "animals.csv",
        "model": folder / "animals.model",
    }
    page = render(
        found.summary, found.model.tree_, title=TITLE, lead=_lead(found), placed=found.placed
    )
    write_picture(paths["picture"], found.model.tree_)
    write_text(paths["page"], page)
    write_text(paths["data"], found.notebook.seen.astype(int).to_csv())
    found.model.save(paths["model"])
    return {name: str(path) for name, path in paths.items()}


def tell(console: Console, found: Found, written: dict[str, str]) -> None:
    """Print what was found, how sure it is, and where the files are."""
    console.print(f"\n{_lead(found)}\n", highlight=False)
    console.print(found.model.tree_)
    console.print()
    for line in headline(found.summary):
        console.print(line, highlight=False)
    console.print()
    console.print(cluster_table(found.summary.clusters))
    console.print("\nAnimals that the fit did not see, and the cluster they belong to:")
    for row in found.placed:
        console.print(
            f"  {row.name:<14}{row.label:>3}  {percent(row.probability):>8}", highlight=False
        )
    console.print(
        f"\nAgreement with the {len(KINDS)} kinds that made the notebook (which the fit never "
        f"saw): {found.agreement:.2f} adjusted Rand, {found.purity:.2f} dendrogram purity.",
        highlight=False,
    )
    for name, path in written.items():
        console.print(f"{name.capitalize()}: {path}", highlight=False, soft_wrap=True)


def _lead(found: Found) -> str:
    n_rows, n_features = found.notebook.seen.shape
    return (
        f"An invented notebook ticks {count(n_features, 'trait')} for {n_rows} animals. "
        "Which kinds are there, and how sure is that?"
    )
