"""Kernels in C, compiled where they are first used, if the machine has a compiler; without one, torch's are used."""
