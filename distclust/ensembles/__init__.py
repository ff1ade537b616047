"""What several clusterings agree on."""

from __future__ import annotations
