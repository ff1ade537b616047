"""Where machine code is kept, and what happens where nothing can be kept."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from distclust import compiled as compiled_module

needs_compiler = pytest.mark.skipif(
    os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="machine code needs the compiler"
)

PROGRAM = """
import math
from distclust import compiled
{prepare}
from distclust.trees import _numerics
assert _numerics.log_add(0.0, 0.0) == math.log(2.0)
stats = _numerics.log_add.stats
print(compiled.cache_folder(), sum(stats.cache_hits.values()))
"""


def run(folder, prepare=""):
    """Where the functions are kept, and how many were found ready-made."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(prepare=prepare)],
        env={**os.environ, "DISTCLUST_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    where, hits = done.stdout.split()
    return where, int(hits)


@needs_compiler
def test_compiled__second_process_compiles_nothing(tmp_path):
    where, hits = run(tmp_path)
    assert where.startswith(str(tmp_path))
    assert hits == 0
    assert run(tmp_path) == (where, 1)


@needs_compiler
def test_compiled__read_only_folder_is_used_through_a_private_copy(tmp_path):
    run(tmp_path)
    # A super-user may write everywhere, so the check itself is replaced.
    where, hits = run(tmp_path, "compiled._is_writable = lambda folder: False")
    assert not where.startswith(str(tmp_path))
    assert hits == 1
    assert not os.path.exists(where), "the private copy is removed at the end"


@needs_compiler
def test_compiled__folder_that_cannot_be_made_costs_only_time(tmp_path):
    obstacle = tmp_path / "file"
    obstacle.write_text("in the way")
    where, hits = run(obstacle / "below")
    assert not where.startswith(str(tmp_path))
    assert hits == 0


def test_cache_folder__is_named_after_release_and_sources():
    name = f"{compiled_module.__version__}-{compiled_module._source_hash()}"
    assert len(compiled_module._source_hash()) == 12
    folder = compiled_module.cache_folder()
    assert folder is None or folder.name == name or "distclust-compiled-" in folder.name
