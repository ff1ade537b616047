"""Workers of a cluster started here leave an interrupt to the process that started them.

Ctrl-C in a terminal reaches all of them. The process that leads the work then saves what is
there, and for that it needs the workers. They end with it.
"""

from __future__ import annotations

import signal
import threading
from typing import Any


def dask_setup(worker: Any) -> None:
    """Ignore interrupts; called by Dask when a worker starts."""
    if threading.current_thread() is threading.main_thread():  # else it has no process of its own
        signal.signal(signal.SIGINT, signal.SIG_IGN)
