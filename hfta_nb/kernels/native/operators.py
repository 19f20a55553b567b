"""Operators of torch that this package's library computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hfta_nb.kernels.native import likelihood, recurrent

BOUND: dict[str, Callable[..., Any]] = {**recurrent.BOUND, **likelihood.BOUND}
"""By name, what binds an operator's arguments."""
