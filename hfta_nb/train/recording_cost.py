"""What it costs to cut an array down: its calls are recorded anew.

This is not measured: how wide an array is decides how it rounds, and all runs on a machine are to give the same bits.
"""

from __future__ import annotations

STEPS = 100.0
"""Steps of the array that recording its calls anew costs at most."""
