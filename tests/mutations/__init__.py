"""Deliberate faults, one at a time, and whether the tests find them: ``python -m tests.mutations``."""
