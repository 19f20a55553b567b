"""Kernel variants, and the measurement of which one is fastest for a shape on this machine."""
