"""Markov chains on a crew: each chain is a member, and all stop when they agree.

A chain depends on the seed and its own number only. A round is a fixed number of sweeps;
chains that were lost go on from their checkpoint, to the same bits. Whether they agree is
looked at after fixed numbers of sweeps, on what all of them have reached.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from distclust import events
from distclust.engine import Crew, Plan, Role, Room, Vault
from distclust.mixtures.diagnostics import Diagnosis, diagnose
from distclust.seeding import generator

State = TypeVar("State")
Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[Any]  # of any kind of whole number

STAGE = "sampling"
SWEEPS_BETWEEN_LOOKS = 100

_LOGGER = logging.getLogger(__name__)
_KEPT_LABELS = 200_000_000  # labels of all partitions that are kept, about
_MOST_KEPT, _LEAST_KEPT = 200, 20  # partitions of a chain

_CELLS_A_ROUND = 2_000_000  # items visited between two reports of a chain, about
_A_ROUND = (50, 25, 10, 5, 2)  # they divide the sweeps between two looks


class Sampler(ABC, Generic[State]):
    """What a chain draws from. It holds the data, and is pickled to where chains run.

    Attributes
    ----------
    state_type
        The frozen dataclass of states; see `distclust.store.states`. It has a field
        ``generator``, from which all that is random is drawn.
    scalar_names
        What `scalars` returns.
    """

    state_type: type[State]
    scalar_names: tuple[str, ...] = ("log_joint", "n_clusters", "concentration")

    @abstractmethod
    def begin(self, chain: int, generator: np.random.Generator) -> State:
        """Return the state that a chain starts from."""

    @abstractmethod
    def sweep(self, place: Any, state: State) -> State:
        """Return the next state; arrays of `state` may be written over and taken into it.

        The work follows from the state and the data alone. What is refreshed now and then is
        refreshed at fixed sweeps.
        """

    @abstractmethod
    def scalars(self, state: State) -> Sequence[float]:
        """Return the figures of a state that are traced, quickly: it is asked each sweep."""

    @abstractmethod
    def labels(self, state: State) -> Labels:
        """Return the partition that a state stands for, shape (n_items,)."""

    @property
    @abstractmethod
    def n_items(self) -> int:
        """How many items are clustered."""

    def open(self) -> Any:
        """Return what chains in one process share, such as tables; never saved."""
        return None


@dataclass(frozen=True)
class Sweeps:
    """An order: so many sweeps, of which every `keep_every`-th leaves its partition.

    Attributes
    ----------
    first
        Sweeps done before.
    count
        Sweeps to do.
    keep_every
        A partition is kept after each sweep whose number (from 1) it divides.
    """

    first: int
    count: int
    keep_every: int


@dataclass(frozen=True, eq=False)
class Stretch:
    """A report: the figures of each sweep, and the partitions that were kept."""

    scalars: Floats
    draws: Labels


@dataclass(frozen=True, eq=False)
class ChainRole(Role[Any]):
    """Members that are chains."""

    sampler: Sampler[Any]
    seed: int

    @property
    def state_type(self) -> type[Any]:  # type: ignore[override]
        """States are those of the sampler."""
        return self.sampler.state_type

    def open(self, previous: Any, room: Room) -> Any:
        """Open the sampler."""
        return self.sampler.open()

    def begin(self, member: int) -> Any:
        """Return where a chain starts from; its stream follows from seed and number."""
        return self.sampler.begin(member, generator(self.seed, "chain", member))

    def advance(self, place: Any, member: int, state: Any, order: Sweeps) -> tuple[Any, Stretch]:
        """Do sweeps."""
        sampler, state = self.sampler, _own(state)
        figures = np.empty((order.count, len(sampler.scalar_names)))
        kept = []
        for i in range(order.count):
            state = sampler.sweep(place, state)
            figures[i] = sampler.scalars(state)
            if (order.first + i + 1) % order.keep_every == 0:
                kept.append(smallest(sampler.labels(state)))
        draws = np.stack(kept) if kept else np.empty((0, sampler.n_items), np.uint8)
        return state, Stretch(figures, draws)

    def label(self, member: int) -> str:
        """Return the name of a chain."""
        return f"chain {member}"

    def metrics(self, state: Any) -> dict[str, float]:
        """Return the figures that are traced."""
        return dict(zip(self.sampler.scalar_names, self.sampler.scalars(state), strict=True))


@dataclass(frozen=True)
class Agreement:
    """When chains are done: they agree, and say enough.

    Attributes
    ----------
    rhat
        Largest rank-normalised split R-hat of any figure.
    samples
        Least effective number of samples, bulk and tail, of any figure, all chains together.
    """

    rhat: float = 1.01
    samples: float = 400.0

    def holds(self, found: Diagnosis) -> bool:
        """Return whether a diagnosis is good enough."""
        return found.worst_rhat <= self.rhat and found.least_ess >= self.samples


@dataclass(frozen=True, eq=False)
class Traces:
    """What chains have left so far; the state of the plan.

    Attributes
    ----------
    scalars
        Shape (n_chains, n_sweeps, figures).
    draws
        Partitions that were kept, shape (n_chains, n_kept, n_items).
    agreed
        Whether the chains were seen to agree.
    """

    scalars: Floats
    draws: Labels
    agreed: bool = False

    @property
    def n_sweeps(self) -> int:
        """Sweeps that all chains have done."""
        return int(self.scalars.shape[1])

    def kept_draws(self, keep_every: int) -> Labels:
        """Return the partitions of the second half, shape (n_chains, n_draws, n_items).

        At least one a chain, if any was kept at all.
        """
        n_dropped = (self.n_sweeps // 2) // keep_every
        return self.draws[:, min(n_dropped, max(self.draws.shape[1] - 1, 0)) :]


@dataclass(frozen=True, eq=False)
class ChainPlan(Plan[Traces]):
    """Sweeps until chains agree, or until there were enough.

    Attributes
    ----------
    n_chains, n_items, scalar_names
        What is sampled.
    max_sweeps
        Sweeps at most.
    keep_every
        See `Sweeps`.
    agreement
        When to stop before, or None.
    """

    n_chains: int
    n_items: int
    scalar_names: tuple[str, ...]
    max_sweeps: int
    keep_every: int
    agreement: Agreement | None

    state_type = Traces

    def begin(self) -> Traces:
        """Return traces of no sweeps."""
        return Traces(
            np.empty((self.n_chains, 0, len(self.scalar_names))),
            np.empty((self.n_chains, 0, self.n_items), np.uint8),
        )

    def order(self, state: Traces) -> Sweeps | None:
        """Return the next sweeps, or None at the end."""
        done = state.n_sweeps
        if state.agreed or done >= self.max_sweeps:
            return None
        count = min(self.sweeps_a_round, self.max_sweeps - done)
        return Sweeps(done, count, self.keep_every)

    def absorb(self, state: Traces, reports: Sequence[Stretch]) -> Traces:
        """Append what the chains report, and look whether they agree."""
        scalars = np.stack([report.scalars for report in reports])
        draws = np.stack(_alike([report.draws for report in reports]))
        found = Traces(
            np.concatenate([state.scalars, scalars], axis=1),
            np.concatenate(_alike([state.draws, draws]), axis=1),
        )
        self._tell(found)
        return dataclasses.replace(found, agreed=self._agree(found))

    @property
    def sweeps_a_round(self) -> int:
        """Follows from the number of items only."""
        for count in _A_ROUND:
            if count * self.n_items <= _CELLS_A_ROUND:
                return count
        return 1

    def _agree(self, found: Traces) -> bool:
        if self.agreement is None or found.n_sweeps % SWEEPS_BETWEEN_LOOKS:
            return False
        seen = diagnose(self.scalar_names, second_half(found.scalars))
        events.emit(
            STAGE, found.n_sweeps, self.max_sweeps, rhat=seen.worst_rhat, ess=seen.least_ess
        )
        return self.agreement.holds(seen)

    def _tell(self, found: Traces) -> None:
        for chain, figures in enumerate(found.scalars[:, -1].tolist()):
            metrics = dict(zip(self.scalar_names, figures, strict=True))
            events.emit(f"chain {chain}", found.n_sweeps, self.max_sweeps, **metrics)


def run_chains(
    sampler: Sampler[Any],
    n_chains: int,
    seed: int,
    max_sweeps: int,
    *,
    keep_every: int,
    agreement: Agreement | None,
    name: str,
    vault: Vault | None = None,
) -> Traces:
    """Run chains until they agree; return all that they left, burn-in and all.

    Parameters
    ----------
    sampler
        What chains draw from.
    n_chains
        How many there are.
    seed
        Of the run; each chain has its own stream.
    max_sweeps
        Sweeps at most.
    keep_every
        Partitions are kept after sweeps that it divides.
    agreement
        When to stop before `max_sweeps`, or None.
    name
        Name of the crew.
    vault
        Where chains are saved.
    """
    plan = ChainPlan(
        n_chains, sampler.n_items, sampler.scalar_names, max_sweeps, keep_every, agreement
    )
    with Crew(ChainRole(sampler, seed), n_chains, name=name, vault=vault) as crew:
        _say_if_resumed(plan, vault)
        _say_if_queued(n_chains, crew.n_threads, max_sweeps)
        return crew.follow(plan)


def n_kept(n_items: int, n_chains: int) -> int:
    """Return how many partitions of each chain are kept: fewer of very many items."""
    return int(np.clip(_KEPT_LABELS // max(n_items * n_chains, 1), _LEAST_KEPT, _MOST_KEPT))


def second_half(traces: Floats) -> Floats:
    """Return what is left of traces (n_chains, n_sweeps, ...) without the first half."""
    return traces[:, traces.shape[1] // 2 :]


def _say_if_resumed(plan: ChainPlan, vault: Vault | None) -> None:
    """Say after how many sweeps chains go on; the checkpoint counts rounds of them."""
    rounds = None if vault is None else vault.checkpoints("plan").newest_step()
    if rounds is not None:
        done = min(rounds * plan.sweeps_a_round, plan.max_sweeps)
        events.emit(STAGE, done, plan.max_sweeps, resumed_after=done)


def _say_if_queued(n_chains: int, n_threads: int, max_sweeps: int) -> None:
    if n_chains > n_threads:
        threads = "1 thread" if n_threads == 1 else f"{n_threads} threads"
        note = f"{n_chains} chains on {threads}: {n_threads} at a time"
        _LOGGER.info(note)
        events.emit(STAGE, 0, max_sweeps, note=note)


def smallest(labels: Labels) -> Labels:
    """Return labels in the smallest kind of number that holds them."""
    top = int(labels.max(initial=0))
    return labels.astype(np.min_scalar_type(top))


def _alike(parts: list[Labels]) -> list[Labels]:
    """Return arrays in the kind of number that holds them all."""
    kind = np.result_type(*parts)
    return [part.astype(kind, copy=False) for part in parts]


def _own(state: State) -> State:
    """Return a state whose arrays may be written over."""
    copies = {
        field.name: copy.deepcopy(value)
        for field in dataclasses.fields(state)  # type: ignore[arg-type]
        if isinstance(value := getattr(state, field.name), np.ndarray)
    }
    return dataclasses.replace(state, **copies)  # type: ignore[type-var]
