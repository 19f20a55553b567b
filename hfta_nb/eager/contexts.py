"""Calls within `torch.inference_mode` and `torch.jit.trace`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from hfta_nb.errors import FusionError

F = TypeVar("F", bound=Callable[..., Any])


def own_execution(function: F) -> F:
    """Let a function of an array run under `torch.no_grad` where it is called in inference mode.

    Tensors that are created in inference mode count no versions, which tell whether a model writes into its inputs.

    Raises:
        FusionError: from the function, while `torch.jit.trace` runs it, which would note its tensors as constants.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if torch._C._get_tracing_state() is not None:
            raise FusionError(
                "torch.jit.trace can't follow an array", where=function.__name__, remedy="trace a member, array[i]"
            )
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return function(*args, **kwargs)

    return cast(F, run)
