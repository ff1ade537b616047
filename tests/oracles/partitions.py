"""All partitions of a few items, and how probable a Dirichlet process makes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

Labels = tuple[int, ...]


def set_partitions(n_items: int) -> Iterator[Labels]:
    """Every partition once, as labels in the order of first appearance."""
    if n_items == 0:
        yield ()
        return
    for labels in set_partitions(n_items - 1):
        for label in range(max(labels, default=-1) + 2):
            yield (*labels, label)


def canonical(labels: Sequence[int]) -> Labels:
    """The same partition with labels in the order of first appearance."""
    names: dict[int, int] = {}
    return tuple(names.setdefault(int(label), len(names)) for label in labels)


def log_restaurant(labels: Sequence[int], concentration: float) -> float:
    """Items take seats one after another: the product of their chances."""
    total, sizes = 0.0, dict[int, int]()
    for seated, label in enumerate(labels):
        weight = sizes.get(label, concentration)
        total += math.log(weight / (seated + concentration))
        sizes[label] = sizes.get(label, 0) + 1
    return total


def draw_restaurant(n_items: int, concentration: float, rng: np.random.Generator) -> Labels:
    """Items choose seats one after another."""
    labels: list[int] = []
    for _ in range(n_items):
        sizes = np.bincount(labels) if labels else np.zeros(0)
        weights = np.append(sizes, concentration)
        labels.append(int(rng.choice(len(weights), p=weights / weights.sum())))
    return tuple(labels)
