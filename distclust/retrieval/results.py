"""What queries return: ranked items, and why they are where they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 20


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """Items by falling score, equal ones in the order of their rows.

    Attributes
    ----------
    ids
        Ids of the items, shape (at most k,).
    rows
        Numbers of their rows.
    log_scores
        Log Bayes factors: above 0, the item is more probable together with the query than
        alone.
    query
        Names of the items that were asked with.
    suggested_size
        How many of the ranked items more probably belong to the set than not, if an item of
        the corpus is supposed to belong with probability (items asked with) / (items there
        are): scores above ``log((n - N) / N)``.
    is_open
        Whether all ranked items belong, so that a larger k would show more.
    engine, reason
        How the answer was found, ``"index"`` or ``"scan"``, and why so. Both give the same.
    seconds
        How long it took.
    """

    ids: npt.NDArray[Any]
    rows: npt.NDArray[np.int64]
    log_scores: npt.NDArray[np.float64]
    query: tuple[str, ...]
    suggested_size: int
    is_open: bool
    engine: str
    reason: str
    seconds: float

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        return iter(zip(self.ids.tolist(), self.log_scores.tolist(), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "query": list(self.query),
            "results": [
                {"rank": i + 1, "id": name, "row": row, "log_score": score}
                for i, (name, row, score) in enumerate(
                    zip(
                        self.ids.tolist(), self.rows.tolist(), self.log_scores.tolist(), strict=True
                    )
                )
            ],
            "suggested_size": self.suggested_size,
            "is_open": self.is_open,
            "engine": self.engine,
            "reason": self.reason,
            "seconds": self.seconds,
        }

    @property
    def title(self) -> str:
        """The query in a line."""
        return _shortened(", ".join(self.query), 72)

    @property
    def footnote(self) -> str:
        """What is suggested, and how it was found, in a line."""
        size = self.suggested_size
        belong = f"{size} or more belong" if self.is_open else f"{size} belong"
        if size == 1 and not self.is_open:
            belong += "s"
        return f"{belong}; {self.engine} ({self.reason}), {self.seconds * 1e3:.1f} ms"

    def __repr__(self) -> str:
        width = max((len(str(name)) for name in self.ids[:_SHOWN]), default=0)
        lines = [f"Ranking for {self.title}"]
        for i, (name, score) in enumerate(self):
            if i == self.suggested_size and 0 < i < len(self):
                lines.append("  " + "-" * (width + 14))
            if i == _SHOWN:
                lines.append(f"  ... {len(self) - _SHOWN} more")
                break
            lines.append(f"  {i + 1:>3}  {name!s:<{width}}  {score:>8.3f}")
        return "\n".join([*lines, f"  {self.footnote}"])

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        # Names are text, not markup: they may have brackets.
        table = Table(title=Text(f"Like {self.title}"), title_justify="left")
        table.add_column("", justify="right", style="dim")
        table.add_column("item")
        table.add_column("log score", justify="right")
        for i, (name, score) in enumerate(self):
            style = None if i < self.suggested_size else "dim"
            table.add_row(str(i + 1), Text(str(name)), f"{score:.3f}", style=style)
        return Group(table, Text(self.footnote, style="dim"))  # wider than a narrow table


@dataclass(frozen=True)
class Feature:
    """A feature that defines a set.

    Attributes
    ----------
    name
        Of the feature.
    weight
        What an item's score gains (or loses) by having it.
    in_query, in_corpus
        Share of the query's items, and of all items, that have it; for counts and
        measurements the means.
    """

    name: str
    weight: float
    in_query: float
    in_corpus: float


@dataclass(frozen=True)
class Contributions:
    """Why an item has its score.

    Attributes
    ----------
    id, log_score
        The item.
    features
        Its features with what each adds, the weightiest first.
    others
        What all features that are not listed add together.
    """

    id: Any
    log_score: float
    features: tuple[tuple[str, float], ...]
    others: float


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """The features that define a query's set, and the reasons of each ranked item.

    Attributes
    ----------
    ranking
        The items.
    features
        Features of the query by falling weight.
    group_features
        The same for the set of the ranked items, as if they had been the query.
    results
        For each ranked item, what its features add to its score.
    """

    ranking: Ranking
    features: tuple[Feature, ...]
    group_features: tuple[Feature, ...]
    results: tuple[Contributions, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        described = self.ranking.to_dict()
        for entry, result in zip(described["results"], self.results, strict=True):
            entry["features"] = [
                {"name": name, "weight": weight} for name, weight in result.features
            ]
            entry["others"] = result.others
        for name in ("features", "group_features"):
            described[name] = [
                {
                    "name": feature.name,
                    "weight": feature.weight,
                    "in_query": feature.in_query,
                    "in_corpus": feature.in_corpus,
                }
                for feature in getattr(self, name)
            ]
        return described

    def __repr__(self) -> str:
        width = max((len(feature.name) for feature in self.features), default=0)
        lines = [repr(self.ranking), "Features of the query"]
        lines += [
            f"  {feature.name:<{width}}  {feature.weight:>7.3f}  "
            f"{feature.in_query:.3g} in the query, {feature.in_corpus:.3g} in the corpus"
            for feature in self.features
        ]
        return "\n".join(lines)

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        reasons = Table(title=Text(f"Like {self.ranking.title}"), title_justify="left")
        reasons.add_column("item")
        reasons.add_column("log score", justify="right")
        reasons.add_column("because of")
        for result in self.results:
            because = ", ".join(f"{name} {weight:+.2f}" for name, weight in result.features[:5])
            name = Text(str(result.id))
            reasons.add_row(name, f"{result.log_score:.3f}", Text(because))
        return Group(
            _feature_table("Features of the query", self.features),
            _feature_table("Features of all ranked items", self.group_features),
            reasons,
            Text(self.ranking.footnote, style="dim"),
        )


def _feature_table(title: str, features: tuple[Feature, ...]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    table.add_column("feature")
    for head in ("weight", "here", "corpus"):
        table.add_column(head, justify="right")
    for feature in features:
        means = f"{feature.in_query:.3g}", f"{feature.in_corpus:.3g}"
        table.add_row(Text(feature.name), f"{feature.weight:.2f}", *means)
    return table


def suggested_size(log_scores: npt.NDArray[np.float64], n_items: int, n_rows: int) -> int:
    """Return how many ranked items more probably belong to the set than not."""
    if n_items >= n_rows:
        return len(log_scores)
    line = math.log((n_rows - n_items) / n_items)
    return int(np.count_nonzero(log_scores > line))


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
