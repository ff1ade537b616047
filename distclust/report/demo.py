"""The script behind ``distclust demo``: cluster an invented notebook, tell, draw."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distclust.report.demo_data import KINDS, Notebook, field_notebook
from distclust.report.page import Placed, place, render
from distclust.report.pictures import write_picture
from distclust.report.plan import Plan, plan_fit
from distclust.report.summary import Summary, summarise
from distclust.report.terminal import count, print_summary
from distclust.store.files import write_text

if TYPE_CHECKING:
    from rich.console import Console

    from distclust.trees import BHC

SURE = 0.01  # the next best cluster is told from this probability on
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
        return {
            **self.summary.as_dict(),
            "new_rows": [dataclasses.asdict(row) for row in self.placed],
            "adjusted_rand": self.agreement,
            "dendrogram_purity": self.purity,
        }


def plan() -> Plan:
    """Estimate the demo, cluster start and first compilation included."""
    from distclust.trees import BHC

    return plan_fit(BHC(), field_notebook().seen, start_seconds=40.0)


def run(notebook: Notebook, seed: int = 0) -> Found:
    """Fit the notebook where the session says, and place the animals kept back."""
    from sklearn.metrics import adjusted_rand_score

    from distclust.metrics import dendrogram_purity
    from distclust.trees import BHC

    model = BHC(random_state=seed).fit(notebook.seen)
    chances = np.asarray(model.predict_proba(notebook.unseen))
    return Found(
        notebook,
        model,
        summarise(model, n_features=3),
        place(notebook.unseen.index, chances),
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
        found.summary,
        found.model.tree_,
        title=TITLE,
        lead=introduction(found.notebook),
        placed=found.placed,
    )
    write_picture(paths["picture"], found.model.tree_)
    write_text(paths["page"], page)
    write_text(paths["data"], found.notebook.seen.astype(int).to_csv())
    found.model.save(paths["model"])
    return {name: str(path) for name, path in paths.items()}


def tell(console: Console, found: Found, written: dict[str, str]) -> None:
    """Print what was found, how sure it is, and where the files are."""
    console.print()
    console.print(found.model.tree_)
    console.print()
    print_summary(console, found.summary, features=False)
    console.print("\nAnimals that the fit did not see, and where they belong:")
    for row in found.placed:
        console.print(_placed_line(row), highlight=False)
    console.print(
        f"\nAgreement with the {len(KINDS)} kinds that made the notebook, which the fit never "
        f"saw: {found.agreement:.2f} adjusted Rand, {found.purity:.2f} dendrogram purity.\n",
        highlight=False,
    )
    for name, path in written.items():
        console.print(f"{name.capitalize()}: {path}", highlight=False, soft_wrap=True)


def _placed_line(row: Placed) -> str:
    from distclust.trees.draw import percent

    line = f"  {row.name:<12} cluster {row.label}  {percent(row.probability):>7}"
    if row.next_probability < SURE:
        return line
    return f"{line}, or cluster {row.next_label}  {percent(row.next_probability)}"


def introduction(notebook: Notebook) -> str:
    """Say what the data are and what is asked of them."""
    n_rows, n_features = notebook.seen.shape
    return (
        f"An invented field notebook ticks {count(n_features, 'trait')} for {n_rows} animals. "
        "Which kinds are there, and how sure is that?"
    )
