"""Deliberate faults, inserted one at a time to check that the tests find them: ``python -m tests.mutations``."""
