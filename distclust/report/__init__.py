"""What people see: progress, terminal summaries, pictures, the HTML page, the demo."""

from __future__ import annotations

from distclust.report.listeners import json_lines, progress

__all__ = ["json_lines", "progress"]
