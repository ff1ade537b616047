"""Scaling down takes task workers only; the scheduler loads this file with ``--preload``.

The operator asks the scheduler which workers may go and does not say of which group: an idle
actor worker would be as good as any, and nobody would ever bring it back.
"""

from __future__ import annotations

from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin


class KeepActors(SchedulerPlugin):
    """Leaves out workers that are for actors, and those that hold any."""

    name = "keep-actors"

    def valid_workers_downscaling(self, scheduler: Scheduler, workers: list[Any]) -> list[Any]:
        """Return the workers that may be closed."""
        return [worker for worker in workers if not (worker.actors or "actors" in worker.resources)]


async def dask_setup(scheduler: Scheduler) -> None:
    """Add the rule to a scheduler that starts."""
    scheduler.add_plugin(KeepActors())
