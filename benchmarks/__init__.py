"""Benchmarks: `python -m benchmarks.NAME` prints a readable table, then one JSON object on the last line."""
