"""Figures for operators, in the text format of Prometheus."""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Mapping

import psutil

from distclust.report.prometheus import family, heading, line

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds


class Metrics:
    """Counts of what the service did; used by the event loop's thread only.

    Attributes
    ----------
    n_in_flight
        Requests that are not answered yet.
    connections
        Ends of connections that were no answers, by reason.
    """

    def __init__(self) -> None:
        self.n_in_flight = 0
        self.connections: Counter[str] = Counter(surplus=0, slow=0, malformed=0)
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, float] = {}
        self._buckets: dict[str, list[int]] = {}
        self._process = psutil.Process()
        self._begun = time.time()

    def observe(self, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._requests[route, status] += 1
        self._seconds[route] = self._seconds.get(route, 0.0) + seconds
        buckets = self._buckets.setdefault(route, [0] * (len(_BOUNDS) + 1))
        buckets[bisect.bisect_left(_BOUNDS, seconds)] += 1

    def to_text(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return everything; `gauges` are a help text and a value by name."""
        lines = [*self._requests_lines(), *self._seconds_lines()]
        closed = (({"reason": reason}, count) for reason, count in sorted(self.connections.items()))
        about = "Connections that were cut off, by reason."
        lines += family("distclust_connections_refused_total", "counter", about, closed)
        shown = {
            "distclust_requests_in_flight": ("Requests not answered yet.", self.n_in_flight),
            **gauges,
            "process_resident_memory_bytes": (
                "Resident memory of the process.",
                self._process.memory_info().rss,
            ),
            "process_start_time_seconds": ("When the service began.", self._begun),
        }
        for name, (about, value) in shown.items():
            lines += family(name, "gauge", about, [({}, value)])
        return "\n".join(lines) + "\n"

    def _requests_lines(self) -> list[str]:
        counted = (
            ({"route": route, "status": str(status)}, count)
            for (route, status), count in sorted(self._requests.items())
        )
        about = "Requests by route and status."
        return family("distclust_requests_total", "counter", about, counted)

    def _seconds_lines(self) -> list[str]:
        name = "distclust_request_seconds"
        lines = heading(name, "histogram", "Seconds until a request was answered.")
        for route, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip([*_BOUNDS, "+Inf"], buckets, strict=True):
                total += count
                lines.append(line(f"{name}_bucket", {"route": route, "le": str(bound)}, total))
            lines.append(line(f"{name}_sum", {"route": route}, self._seconds[route]))
            lines.append(line(f"{name}_count", {"route": route}, total))
        return lines
