"""Measurements, each with a record of what it was measured on. See `benchmarks.common`."""
