"""Workers of a cluster started here come back, however they died.

Dask's keeper of a worker starts it again when it dies, once: if the new process dies
before it is up, the keeper gives up, and the cluster shrinks for good. How such workers
treat freed memory is said here, too, as it must hold for those that come back.
"""

from __future__ import annotations

import contextlib
from typing import Any

REVIVE_SECONDS = 2.0

# Dask tells its workers to give freed memory back at once, and with that every block that
# is read gets new pages, which the kernel clears: a third of the time of a pass.
_ALLOCATION = {
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**27,
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 2**25,
}


def reused_memory() -> contextlib.AbstractContextManager[object]:
    """Let workers that are started in this context use freed memory again."""
    import dask

    return dask.config.set(_ALLOCATION)  # type: ignore[no-any-return]


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
        with reused_memory():
            cluster.scale(len(cluster.worker_spec))  # starts those that are not there
