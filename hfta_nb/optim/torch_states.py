"""What torch's optimizers keep of a parameter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hfta_nb.errors import OptimError

_OF_ITS_SHAPE = ("exp_avg", "prev", "sum", "square_avg", "ax", "momentum_buffer", "variance")
"""Names of state that has the shape of its parameter."""


def check_state(known: Collection[str], state: Mapping[str, Any], shape: Sequence[int], where: str) -> None:
    """See that the state of a parameter is of this optimizer, and of this shape.

    Args:
        known: names of what the optimizer keeps, beside "step"; none where they are its own affair.

    Raises:
        OptimError: it is not.
    """
    for key, value in state.items():
        if known and key != "step" and key not in known:
            raise OptimError("the state of another optimizer", where=where, got=key)
        if key in _OF_ITS_SHAPE and value is not None and list(value.shape) != shape:
            raise OptimError("another shape", where=f"{where}, {key}", got=list(value.shape), accepted=str(shape))
