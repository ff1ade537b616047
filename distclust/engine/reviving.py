"""Workers of a cluster started here come back, however they died.

Dask's keeper of a worker starts it again when it dies, once: if the new process dies
before it is up, the keeper gives up, and the cluster shrinks for good. Dask's settings for
such a cluster are here, too, as they must hold for workers that come back.
"""

from __future__ import annotations

import contextlib
from typing import Any

REVIVE_SECONDS = 2.0

# Dask tells its workers to give freed memory back at once, and with that every block that is
# read gets new pages, which the kernel clears: a third of the time of a pass.
_ALLOCATION = {"MALLOC_TRIM_THRESHOLD_": str(2**27), "MALLOC_MMAP_THRESHOLD_": str(2**25)}

# Scheduler and client share their cores with the workers. Looking at themselves 50 times a
# second, at memory and disks twice, and workers at their stacks 100 times, would take a part of
# them from two workers.
_SETTINGS = {
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "2s",
}
_SETTINGS_OF_WORKERS = {
    "distributed.admin.system-monitor.interval": "2s",
    "distributed.worker.profile.interval": "100ms",
}


def own_settings() -> contextlib.AbstractContextManager[object]:
    """Let a cluster that is started in this context have our settings."""
    import dask

    return dask.config.set(_SETTINGS)  # type: ignore[no-any-return]


def keeper_class() -> type:
    """Return the keeper of a worker that hands our settings on, whenever it is made."""
    from distributed import Nanny

    class Keeper(Nanny):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            with own_settings():
                super().__init__(*args, config=_SETTINGS_OF_WORKERS, **kwargs)
            # Not by Dask's settings: another cluster of this process may have left its own in
            # the environment, which goes before them.
            self.pre_spawn_env.update(_ALLOCATION)
            self.env.update(_ALLOCATION)

    return Keeper


def keep_workers_alive(cluster: Any) -> None:
    """Look after the workers of a local cluster until it is closed."""
    from tornado.ioloop import PeriodicCallback

    def start() -> None:
        watch = PeriodicCallback(lambda: _revive(cluster), REVIVE_SECONDS * 1000)
        cluster.periodic_callbacks["distclust-revive"] = watch  # stopped with the cluster
        watch.start()

    cluster.loop.add_callback(start)  # the cluster's own thread: nobody else changes it


def _revive(cluster: Any) -> None:
    from distributed import Status

    if cluster.status != Status.running:
        return
    for name, keeper in list(cluster.workers.items()):
        if keeper.status in (Status.closed, Status.failed):
            del cluster.workers[name]
    if cluster.workers.keys() != cluster.worker_spec.keys():
        cluster.scale(len(cluster.worker_spec))  # starts those that are not there
