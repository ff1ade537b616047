r"""Blocked Gibbs samplers of truncated mixtures: all rows at once, given the parameters.

There are at most M components. A sweep draws the parameters of each from its rows (without
rows: from the prior), then the weights of the components, then a component for every row;
given the others, rows are independent. Two priors of the weights are at hand.

"dma"
    The Dirichlet-multinomial allocation: weights from a symmetric Dirichlet distribution with
    total `concentration`. Partitions tend to those of a Dirichlet process as M grows.
"tdp"
    The truncated Dirichlet process: weight j is :math:`V_j \prod_{l<j} (1 - V_l)`, the sticks
    V are Beta(1, concentration), the last is 1. The order of components matters here, and rows
    alone would not change it in a reasonable time; so a sweep also tries to exchange the rows
    of neighbouring components.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.families import Family
from distclust.mixtures._blocked_numerics import pick_components
from distclust.mixtures.chains import Labels, Sampler
from distclust.mixtures.concentration import (
    Concentration,
    concentration_of,
    draw_stick_concentration,
    draw_symmetric_concentration,
    log_stick_labels,
    log_symmetric_partition,
)
from distclust.mixtures.parameters import (
    Floats,
    Layout,
    Rows,
    draw_parameters,
    lay_out,
    log_beta_draws,
    log_dirichlet_draw,
    tile_rows,
)
from distclust.mixtures.starts import check_start, starting_labels
from distclust.validation import check_choice, check_integer

VARIANTS = ("dma", "tdp")

_IN_TURN = ("kmeans", "groups")  # what "mixed" stands for here


@dataclass(frozen=True, eq=False)
class BlockedState:
    """Where a chain of a blocked sampler is.

    Parameters and weights are no part of it: a sweep draws them first.

    Attributes
    ----------
    generator
        What is random is drawn from it.
    sweep
        Sweeps done.
    log_joint
        See `BlockedSampler.log_joint`.
    concentration
        Of the prior of the weights.
    n_clusters
        Components that have rows.
    labels
        Component of each row, shape (n,), int32.
    statistics
        Of the components, shape (M, p).
    """

    generator: np.random.Generator
    sweep: int
    log_joint: float
    concentration: float
    n_clusters: int
    labels: npt.NDArray[np.int32]
    statistics: Floats


@dataclass(frozen=True, eq=False)
class BlockedPlace:
    """What chains of one process share.

    Attributes
    ----------
    layout
        The rows, laid out for products.
    row_weights
        How many rows a row stands for, shape (n,).
    """

    layout: Layout
    row_weights: Floats


@dataclass(frozen=True, eq=False)
class BlockedSampler(Sampler[BlockedState]):
    """Chains over the partitions of a truncated mixture.

    Attributes
    ----------
    rows
        The data, an array (n, d) or a CSR matrix.
    family
        How rows of a component are distributed, resolved; one whose parameters can be drawn,
        see `distclust.mixtures.parameters`.
    concentration
        A Gamma prior, a positive number, or anything else that
        `distclust.mixtures.concentration.concentration_of` takes. Of a way to draw only the
        prior counts: truncated mixtures have draws of their own.
    truncation
        Number of components M.
    variant
        "dma" or "tdp", see the text of the module.
    init
        Partition that chains start from; see `distclust.mixtures.starts`. "mixed": groups
        that the family finds and random ones, in turn.
    row_weights
        How many identical rows each row stands for, shape (n,), or None for one. They move
        together: the row's statistics, its share in the size of a component, and its log
        density and log weight are all multiplied by it.
    """

    rows: Rows
    family: Family
    concentration: Any = "gamma"
    truncation: int = 50
    variant: str = "dma"
    init: str = "mixed"
    row_weights: Floats | None = None

    state_type = BlockedState

    def __post_init__(self) -> None:
        where = "BlockedSampler"
        check_integer(self.truncation, f"{where}(truncation)", at_least=1)
        check_choice(self.variant, f"{where}(variant)", VARIANTS)
        check_start(self.init, f"{where}(init)")
        process = concentration_of(self.concentration, f"{where}(concentration)")
        object.__setattr__(self, "concentration", process)
        if self.row_weights is not None:
            object.__setattr__(self, "row_weights", _checked_weights(self))

    @property
    def n_items(self) -> int:
        """Rows."""
        return int(self.rows.shape[0])

    def open(self) -> BlockedPlace:
        """Lay the rows out."""
        weights = np.ones(self.n_items) if self.row_weights is None else self.row_weights
        return BlockedPlace(lay_out(self.family, self.rows), weights)

    def begin(self, chain: int, generator: np.random.Generator) -> BlockedState:
        """Return a state with the partition that the chain starts from."""
        # Given their parameters, rows of one cluster would hardly ever leave it together.
        init = _IN_TURN[chain % len(_IN_TURN)] if self.init == "mixed" else self.init
        labels = starting_labels(init, chain, self.rows, self.family, generator, self.row_weights)
        labels %= self.truncation  # groups that are too many join others
        return self._state(generator, 0, self._process.start(), labels)

    def sweep(self, place: BlockedPlace | None, state: BlockedState) -> BlockedState:
        """Draw parameters, weights, all labels and the concentration."""
        place = self.open() if place is None else place
        generator, stats, labels = state.generator, state.statistics, state.labels
        if self.variant == "tdp":
            stats = stats[exchange(stats[:, 0], state.concentration, generator)]
            log_weights, log_rest = draw_sticks(stats[:, 0], state.concentration, generator)
        else:
            shapes = state.concentration / self.truncation + stats[:, 0]
            log_weights, log_rest = log_dirichlet_draw(shapes, generator), 0.0
        self._draw_labels(place, stats, log_weights, generator, labels)
        after = self._accumulate(labels)
        concentration = self._draw_concentration(
            state.concentration, after[:, 0], log_rest, generator
        )
        return self._state(generator, state.sweep + 1, concentration, labels, after)

    def scalars(self, state: BlockedState) -> tuple[float, float, float]:
        """Return the log joint, the number of clusters and the concentration."""
        return state.log_joint, float(state.n_clusters), state.concentration

    def labels(self, state: BlockedState) -> Labels:
        """Return the partition; components without rows have no label."""
        occupied = np.bincount(state.labels, minlength=self.truncation) > 0
        return np.asarray((np.cumsum(occupied) - 1)[state.labels])

    def log_joint(self, stats: Floats, concentration: float) -> float:
        r"""Return log p(z | concentration, M) + log p(rows | z), parameters integrated out.

        With n_k rows in component k, K components occupied, N rows in all and D_k the rows
        of component k,

        .. math:: \ln p(z | \alpha, M) + \sum_{k: n_k > 0} \ln f(D_k),

        where f is the family's marginal likelihood. For "dma" z is a partition,

        .. math:: p(z | \alpha, M) = \frac{M!}{(M - K)!}
                  \frac{\Gamma(\alpha)}{\Gamma(\alpha + N)}
                  \prod_{k: n_k > 0} \frac{\Gamma(\alpha/M + n_k)}{\Gamma(\alpha/M)},

        and for "tdp" it has the names of the components, whose order matters,

        .. math:: p(z | \alpha, M) = \prod_{j<M}
                  \frac{B(1 + n_j, \alpha + \sum_{l>j} n_l)}{B(1, \alpha)}.
        """
        sizes = stats[:, 0]
        if self.variant == "tdp":
            prior = log_stick_labels(sizes, concentration)
        else:
            prior = log_symmetric_partition(sizes, concentration, self.truncation)
        return prior + float(np.sum(self.family.log_marginal(stats[sizes > 0])))

    @property
    def _process(self) -> Concentration:
        assert isinstance(self.concentration, Concentration)
        return self.concentration

    def _state(
        self,
        generator: np.random.Generator,
        sweep: int,
        concentration: float,
        labels: npt.NDArray[np.int32],
        stats: Floats | None = None,
    ) -> BlockedState:
        stats = self._accumulate(labels) if stats is None else stats
        joint = self.log_joint(stats, concentration)
        n_clusters = int(np.count_nonzero(stats[:, 0]))
        return BlockedState(generator, sweep, joint, concentration, n_clusters, labels, stats)

    def _accumulate(self, labels: npt.NDArray[np.int32]) -> Floats:
        return self.family.accumulate(self.rows, labels, self.truncation, self.row_weights)

    def _draw_labels(
        self,
        place: BlockedPlace,
        stats: Floats,
        log_weights: Floats,
        generator: np.random.Generator,
        labels: npt.NDArray[np.int32],
    ) -> None:
        """Write new labels over `labels`, tile by tile; tiles have one shape."""
        parameters = draw_parameters(self.family, stats, generator)
        uniforms = generator.random(self.n_items)
        size = tile_rows(place.layout.n_features, self.truncation)
        for start in range(0, self.n_items, size):
            stop = min(start + size, self.n_items)
            tile = np.zeros((size, self.truncation))
            place.layout.add_log_densities(start, stop, parameters, tile)
            part = slice(start, stop)
            pick_components(
                tile, log_weights, place.row_weights[part], uniforms[part], labels[part]
            )

    def _draw_concentration(
        self, value: float, sizes: Floats, log_rest: float, generator: np.random.Generator
    ) -> float:
        prior = self._process.prior
        if prior is None:
            return value
        if self.variant == "tdp":
            return draw_stick_concentration(log_rest, self.truncation, prior, generator)
        return draw_symmetric_concentration(value, sizes, self.truncation, prior, generator)


def draw_sticks(
    sizes: Floats, concentration: float, generator: np.random.Generator
) -> tuple[Floats, float]:
    r"""Return log weights (M,) of a truncated process, and :math:`\sum_{j<M} \ln(1 - V_j)`.

    The sticks are Beta(1 + n_j, concentration + rows of later components); the last is 1.
    """
    later = np.cumsum(sizes[::-1])[::-1][1:]
    log_sticks, log_rests = log_beta_draws(1.0 + sizes[:-1], concentration + later, generator)
    before = np.concatenate([[0.0], np.cumsum(log_rests)])
    return np.append(log_sticks, 0.0) + before, float(before[-1])


def exchange(
    sizes: Floats, concentration: float, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    r"""Try to exchange the rows of neighbouring components, from the last pair to the first.

    Returns the component whose rows each component takes. Sticks are integrated out: given
    them, which were drawn for the present order, hardly an exchange would be accepted. What
    is left of the probability of the labels (`log_stick_labels`) is short: with L rows in
    later components, a and b are exchanged with probability
    :math:`(\alpha + L + n_b) / (\alpha + L + n_a)`, at most 1. The last component has no stick
    of its own; for the last pair it is
    :math:`\Gamma(1 + n_b) \Gamma(\alpha + n_a) / (\Gamma(1 + n_a) \Gamma(\alpha + n_b))`.
    """
    counts, order = sizes.tolist(), list(range(len(sizes)))
    bars = np.log1p(-generator.random(len(sizes))).tolist()
    base = concentration
    for a in range(len(counts) - 2, -1, -1):
        left, right = counts[a], counts[a + 1]
        if a == len(counts) - 2:
            gain = math.lgamma(1.0 + right) - math.lgamma(1.0 + left)
            gain += math.lgamma(concentration + left) - math.lgamma(concentration + right)
        else:
            gain = math.log(base + right) - math.log(base + left)
        if bars[a] < gain:
            counts[a], counts[a + 1] = right, left
            order[a], order[a + 1] = order[a + 1], order[a]
        base += counts[a + 1]
    return np.array(order)


def _checked_weights(sampler: BlockedSampler) -> Floats:
    weights = np.ascontiguousarray(sampler.row_weights, dtype=np.float64)
    if weights.shape != (sampler.n_items,) or not (weights > 0).all():
        raise InputError(
            "BlockedSampler(row_weights)",
            f"{sampler.n_items} numbers above 0",
            f"shape {weights.shape}, least {weights.min(initial=math.inf):g}",
            "Pass one weight for each row.",
        )
    return weights
