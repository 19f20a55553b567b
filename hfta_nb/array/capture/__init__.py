"""Whole steps recorded as kernel calls and replayed without Python, autograd and `vmap`."""
