"""The parts of the benchmark of planners."""
