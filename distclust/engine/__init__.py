"""The only place that names Dask: where work runs, and how blocks get there.

Dask itself is imported when a cluster or a Dask array is first used.
"""

from distclust.engine.blocks import (
    map_blocks,
    map_ordered,
    map_placed,
    profile_matrix,
    reduce_blocks,
    run,
)
from distclust.engine.crews import (
    Addition,
    Crew,
    Plan,
    Role,
    Room,
    Vault,
    drain_worker,
    read_board,
)
from distclust.engine.diagnosis import doctor
from distclust.engine.features import check_features, opened
from distclust.engine.held import fingerprint_of, held_rows
from distclust.engine.ingesting import ingest
from distclust.engine.lazy import block_array, labels_array
from distclust.engine.matrices import as_matrix
from distclust.engine.notes import keeping_notes
from distclust.engine.sessions import Session, connect, current_client, local_memory, local_threads
from distclust.engine.spans import SPAN_BLOCKS, Rows, Span, map_spans, n_spans, span_bounds
from distclust.engine.stored_fits import passing_vault
from distclust.engine.threads import (
    allowed_cores,
    one_blas_thread,
    thread_map,
)
from distclust.engine.workers import check_worker_memory, shares_disk, temporary_results

__all__ = [
    "SPAN_BLOCKS",
    "Addition",
    "Crew",
    "Plan",
    "Role",
    "Room",
    "Rows",
    "Session",
    "Span",
    "Vault",
    "allowed_cores",
    "as_matrix",
    "block_array",
    "check_features",
    "check_worker_memory",
    "connect",
    "current_client",
    "doctor",
    "drain_worker",
    "fingerprint_of",
    "held_rows",
    "ingest",
    "keeping_notes",
    "labels_array",
    "local_memory",
    "local_threads",
    "map_blocks",
    "map_ordered",
    "map_placed",
    "map_spans",
    "n_spans",
    "one_blas_thread",
    "opened",
    "passing_vault",
    "profile_matrix",
    "read_board",
    "reduce_blocks",
    "run",
    "shares_disk",
    "span_bounds",
    "temporary_results",
    "thread_map",
]
