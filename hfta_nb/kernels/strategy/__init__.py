"""Kernels that compute the same in several ways, and which of them is fastest for a shape on this machine."""
