"""Kernels in C, compiled on first use if the machine has a compiler; otherwise torch's kernels are used."""
