"""What torch's optimizers keep of a parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hfta_nb.errors import OptimError

_OF_ITS_SHAPE = ("exp_avg", "prev", "sum", "square_avg", "ax", "momentum_buffer", "variance")
"""Names of state that has the shape of its parameter."""


def check_state(optimizer: str, state: Mapping[str, Any], shape: Sequence[int], where: str) -> None:
    """See that the state of a parameter is of this optimizer, and of this shape.

    Raises:
        OptimError: it is not.
    """
    known = _known(optimizer)
    for key, value in state.items():
        if known and key not in known:
            raise OptimError("the state of another optimizer", where=where, got=key)
        if key in _OF_ITS_SHAPE and value is not None and list(value.shape) != shape:
            raise OptimError("another shape", where=f"{where}, {key}", got=list(value.shape), accepted=str(shape))


def _known(name: str) -> set[str]:
    """Names under which torch's optimizer of this name keeps state; empty where they are torch's own affair."""
    words = {
        "SGD": "momentum_buffer",
        "Muon": "momentum_buffer",
        "Adam": "exp_avg exp_avg_sq max_exp_avg_sq",
        "AdamW": "exp_avg exp_avg_sq max_exp_avg_sq",
        "Adamax": "exp_avg exp_inf",
        "NAdam": "exp_avg exp_avg_sq mu_product",
        "RAdam": "exp_avg exp_avg_sq",
        "Adadelta": "square_avg acc_delta",
        "Adagrad": "sum",
        "RMSprop": "square_avg momentum_buffer grad_avg",
        "ASGD": "eta mu ax",
        "Rprop": "prev step_size",
        "Adafactor": "row_var col_var variance",
    }
    found = words.get(name)
    return {"step", *found.split()} if found else set()
