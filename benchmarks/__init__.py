"""Measurements, each with a record of the machine and versions. See `benchmarks.common`."""
