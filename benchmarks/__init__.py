"""Benchmarks of quality and speed. Run ``python -m benchmarks`` from the project's root."""
