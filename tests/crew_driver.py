"""A process that leads a crew, for tests to interrupt and to kill.

python -m tests.crew_driver FOLDER ROUNDS SECONDS [ADDRESS]

Prints a line before every round; with an address it works on that cluster, else on one that
it starts. FOLDER holds the checkpoints, the journal of all steps, and in the end the result.
"""

from __future__ import annotations

import sys
from pathlib import Path

from distclust import engine
from distclust.engine.crews import Crew, Vault
from tests.walkers import Leader, Tally, Walker

N_MEMBERS, EVERY = 4, 5


class Talking(Leader):
    def order(self, state: Tally):
        print("round", state.n, flush=True)
        return super().order(state)


def main(folder: Path, n_rounds: int, seconds: float, address: str | None) -> None:
    place = (
        {"where": "local", "workers": 2, "threads": 1} if address is None else {"where": address}
    )
    with engine.connect(**place):
        vault = Vault.at(folder / "results", "run", "mine")
        role = Walker(seconds, folder / "journal")
        with Crew(role, N_MEMBERS, name="driven", vault=vault, every=EVERY) as crew:
            total = crew.follow(Talking(n_rounds)).total
    (folder / "result").write_bytes(total.tobytes())


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *(sys.argv[4:] or [None]))
    except KeyboardInterrupt:
        print("stopped", flush=True)
        sys.exit(130)
