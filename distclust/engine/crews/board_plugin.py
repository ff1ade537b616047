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
        {"name": "", "run": None, "state": "running", "began": time.time(), "members": {}},
    )
    crew["seen"] = time.time()
    kind = event["kind"]
    if kind == "begin":
        crew.update({name: event[name] for name in ("name", "run", "client")}, state="running")
        crew["members"] = {i: _member(i, label) for i, label in enumerate(event["labels"])}
        for old in list(crews)[:-_KEPT]:
            if crews[old]["state"] != "running":
                del crews[old]
    elif kind == "members":
        for facts in event["members"]:
            number = facts["member"]
            member = crew["members"].setdefault(number, _member(number, f"member {number}"))
            if facts["incarnation"] >= member["incarnation"]:  # not one that was given up
                member.update(facts, worker=event["worker"])
    elif kind == "restart":
        for number in event["members"]:
            crew["members"][number]["restarts"] += 1
            crew["members"][number]["worker"] = None
    elif kind == "end" and crew["state"] == "running":
        crew["state"] = event["state"]


def _member(number: int, label: str) -> dict[str, Any]:
    """Return what is known of a member that nobody has taken in yet."""
    facts: dict[str, Any] = {"incarnation": 0, "position": 0, "checkpoint": None, "metrics": {}}
    return {"member": number, "label": label, "worker": None, "restarts": 0, **facts}
