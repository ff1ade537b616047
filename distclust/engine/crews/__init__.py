"""Crews: supervised sets of members that hold their state where they work.

Dask's actors hold state on a worker, and die with it. A crew makes them dependable:

``role``        what a member does: a frozen state and a pure function from state to state
``berth``       the members in one process: advance, save, restore; knows nothing of Dask
``in_process``  one berth in this process
``on_client``   one berth a worker, as Dask actors: calls, loss, silence, draining
``board``       who runs what, on the scheduler, for any client to read
``crew``        the supervisor: one call in flight for each member, checkpoints, restarts
"""

from distclust.engine.crews.berth import Vault
from distclust.engine.crews.board import drain_worker, read_board
from distclust.engine.crews.crew import Crew
from distclust.engine.crews.role import Addition, Plan, Role, Room

__all__ = ["Addition", "Crew", "Plan", "Role", "Room", "Vault", "drain_worker", "read_board"]
