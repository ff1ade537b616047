"""An algorithm of your own on a crew: Metropolis walkers in eight shards, one step for all.

python examples/own_crew.py  # in this process, then on workers of which one is killed
"""

import os
import signal
import tempfile
import threading
from dataclasses import dataclass

import numpy as np

import distclust
from distclust.engine import Crew, Plan, Role, Vault


@dataclass(frozen=True)
class Walkers:  # what a member is; a checkpoint is just this: arrays, numbers, generators
    x: np.ndarray
    rng: np.random.Generator


class Metropolis(Role[Walkers]):  # what a member does, wherever it is
    state_type = Walkers

    def begin(self, member):
        return Walkers(np.zeros(20_000), np.random.default_rng([0, member]))

    def advance(self, place, member, state, step):  # the next state, and a report
        x, rng = state.x, state.rng
        proposal = x + step * rng.normal(size=len(x))
        accepted = np.log(rng.random(len(x))) < abs(x - 3) - abs(proposal - 3)  # exp(-|x - 3|)
        x = np.where(accepted, proposal, x)
        return Walkers(x, rng), (accepted.mean(), x.mean())


@dataclass(frozen=True)
class Tuning:  # what leads the members is a state, too
    sweep: int = 0
    step: float = 0.1
    mean: float = 0.0


class Tune(Plan[Tuning]):  # a round: one order to all members, then all reports
    state_type = Tuning

    def __init__(self, n_sweeps):
        self.n_sweeps = n_sweeps

    def begin(self):
        return Tuning()

    def order(self, state):
        return state.step if state.sweep < self.n_sweeps else None

    def absorb(self, state, reports):
        rate, mean = np.mean(reports, axis=0)
        return Tuning(state.sweep + 1, state.step * np.exp(rate - 0.44), mean)


def sample(n_sweeps, vault=None):
    with Crew(Metropolis(), 8, name="metropolis", vault=vault, every=20) as crew:
        found = crew.follow(Tune(n_sweeps))
    print(f"mean {found.mean:.4f}, {crew.n_restarts} restarts, {crew.n_redone} steps repeated")
    return found


if __name__ == "__main__":  # worker processes import this file
    here = sample(300)
    with tempfile.TemporaryDirectory() as folder, distclust.connect("local", workers=2) as session:
        sample(100, Vault.at(folder, "walk", "seed 0"))  # as if it had been stopped here
        victim = next(iter(session.client.run(os.getpid).values()))
        threading.Timer(0.4, os.kill, (victim, signal.SIGKILL)).start()
        there = sample(300, Vault.at(folder, "walk", "seed 0"))  # goes on from sweep 100
    print("the same bits:", here == there)
