"""Torch's optimizers without what keeps its compiler out of them: for that torch imports the compiler."""

from __future__ import annotations

import inspect
from typing import Any

import torch

_APART = ("add_param_group", "state_dict", "load_state_dict", "zero_grad")


def without_compiler(kind: Any) -> Any:
    """A class that does what this class of torch does, and imports no compiler, which takes a second.

    Nobody compiles the steps of these optimizers: there is nothing to keep out. What a person has put around a method
    stays there.
    """
    own = {name: _unwrapped(getattr(kind, name)) for name in _APART}
    step = _unwrapped(kind.step)
    own["step"] = step if hasattr(step, "__wrapped__") else torch.no_grad()(step)
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, **own})


def _unwrapped(method: Any) -> Any:
    def a_persons(outer: Any) -> bool:
        return not getattr(outer, "__globals__", {}).get("__name__", "").startswith("torch.")

    return inspect.unwrap(method, stop=a_persons)
