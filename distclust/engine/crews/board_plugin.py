"""The plugin of the scheduler that keeps the board; see `distclust.engine.crews.board`.

By itself, because it cannot be defined without Dask.
"""

from __future__ import annotations

import time
from typing import Any

from distributed import SchedulerPlugin

from distclust.engine.crews.board import PLUGIN, TOPIC

_KEPT = 100  # crews that are over


class Board(SchedulerPlugin):
    """Gathers what crews log; see the module."""

    name = PLUGIN
    idempotent = True  # the first one stays

    def __init__(self) -> None:
        self.crews: dict[str, dict[str, Any]] = {}
        self.draining: set[str] = set()

    def log_event(self, topic: str, msg: Any) -> None:
        """Take note of an event."""
        if topic == TOPIC:
            _update(self.crews, msg)

    def remove_client(self, scheduler: Any, client: str) -> None:
        """Note that nobody supervises a crew any more."""
        for crew in self.crews.values():
            if crew.get("client") == client and crew["state"] == "running":
                crew["state"] = "lost"

    def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
        """Forget that a worker was to be retired."""
        self.draining.discard(worker)


def _update(crews: dict[str, dict[str, Any]], event: dict[str, Any]) -> None:
    crew = crews.setdefault(
        str(event["crew"]),
        {"name": "", "state": "running", "began": time.time(), "checkpoint": None, "members": {}},
    )
    crew["seen"] = time.time()
    kind = event["kind"]
    if kind == "begin":
        crew.update(name=event["name"], client=event["client"], state="running")
        crew["members"] = {
            number: {"worker": "", "position": 0, "restarts": 0, "metrics": {}, "label": label}
            for number, label in enumerate(event["labels"])
        }
        for old in list(crews)[:-_KEPT]:
            if crews[old]["state"] != "running":
                del crews[old]
    elif kind == "members":
        for number, position, metrics in event["members"]:
            member = crew["members"].setdefault(number, {"restarts": 0, "label": str(number)})
            member.update(worker=event["worker"], position=position, metrics=metrics)
    elif kind == "restart":
        for number in event["members"]:
            crew["members"][number]["restarts"] += 1
    elif kind == "checkpoint":
        crew["checkpoint"] = event["position"]
    elif kind == "end":
        crew["state"] = "done"
