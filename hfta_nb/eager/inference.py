"""Calls within `torch.inference_mode`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def outside_inference_mode(function: F) -> F:
    """Let a function run under `torch.no_grad` where it is called in inference mode.

    Tensors that are created in inference mode count no versions, which tell whether a model writes into its inputs.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return cast(F, run)
